-- Moves the jobs of graphile-worker 0.14 and later into idemq, in one database: psql -d shop -f deploy/import/graphile-worker.sql
-- shows what it would do, psql -v go=1 does it.  Also -v schema=..., -v queue=..., idemq's queue ('jobs'), and SQL over the columns
-- of its jobs: -v priority=...; -v only=..., which jobs.
\set QUIET on
\set source graphile-worker
\if :{?schema} \else \set schema graphile_worker \endif
\if :{?queue} \else \set queue jobs \endif
\if :{?only} \else \set only true \endif
-- The lower is first there, too, and 0 is usual: 4 here.
\if :{?priority} \else \set priority 'greatest(0, least(9, 4 + priority))' \endif
-- One queue, in which the task is the kind: a named queue is a group then, over all tasks, as it is there.  A named queue
-- of which a job is in work stays until that is done.
CREATE OR REPLACE TEMP VIEW idemq_import AS
	SELECT id, :'queue'::text AS queue, payload::text AS payload, key, run_at, :priority AS priority,
		(SELECT q.queue_name FROM :schema._private_job_queues q WHERE q.id = job_queue_id) AS group_key,
		(SELECT t.identifier FROM :schema._private_tasks t WHERE t.id = task_id) AS kind,
		attempts::int AS attempts, greatest(1, max_attempts - attempts) AS max_attempts, attempts >= max_attempts AS dead, last_error, created_at AS enqueued_at
	FROM :schema._private_jobs j
	WHERE locked_at IS NULL AND NOT EXISTS (SELECT FROM :schema._private_job_queues q WHERE q.id = job_queue_id AND q.locked_at IS NOT NULL) AND (:only);
SELECT t.identifier AS "stays in graphile-worker", count(*) FROM :schema._private_jobs j JOIN :schema._private_tasks t ON t.id = j.task_id
	WHERE j.id NOT IN (SELECT id FROM pg_temp.idemq_import) GROUP BY 1 ORDER BY 1;
SELECT identifier AS "crontab entry: idemq.schedule() is its place" FROM :schema._private_known_crontabs ORDER BY 1;
\ir move.sql
