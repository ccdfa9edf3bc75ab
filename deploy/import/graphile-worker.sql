-- Moves the jobs of graphile-worker 0.14 and later into idemq, in the same database.
-- psql -d shop -f deploy/import/graphile-worker.sql prints what it would move; with -v go=1, it moves the jobs.  -v schema=... names
-- the schema of graphile-worker, and -v queue=... idemq's queue ('jobs').  These options are SQL over the columns of its jobs:
-- -v priority=..., and -v only=... (which jobs to move).
\set QUIET on
\set source graphile-worker
\if :{?schema} \else \set schema graphile_worker \endif
\if :{?queue} \else \set queue jobs \endif
\if :{?only} \else \set only true \endif
-- In graphile-worker, a lower number is also served first; 0 is the default, which becomes 4.
\if :{?priority} \else \set priority 'greatest(0, least(9, 4 + priority))' \endif
-- All jobs go to one queue, and the task becomes the kind.  A named queue becomes a group across all tasks, as it is there.  If a
-- job of a named queue is running, the jobs of that queue are not moved until it is done.
CREATE OR REPLACE TEMP VIEW idemq_import AS
	SELECT id, :'queue'::text AS queue, payload::text AS payload, key, run_at, :priority AS priority,
		(SELECT q.queue_name FROM :schema._private_job_queues q WHERE q.id = job_queue_id) AS group_key,
		(SELECT t.identifier FROM :schema._private_tasks t WHERE t.id = task_id) AS kind,
		attempts::int AS attempts, greatest(1, max_attempts - attempts) AS max_attempts, attempts >= max_attempts AS dead, last_error, created_at AS enqueued_at
	FROM :schema._private_jobs j
	WHERE locked_at IS NULL AND NOT EXISTS (SELECT FROM :schema._private_job_queues q WHERE q.id = job_queue_id AND q.locked_at IS NOT NULL) AND (:only);
SELECT t.identifier AS "stays in graphile-worker", count(*) FROM :schema._private_jobs j JOIN :schema._private_tasks t ON t.id = j.task_id
	WHERE j.id NOT IN (SELECT id FROM pg_temp.idemq_import) GROUP BY 1 ORDER BY 1;
SELECT identifier AS "crontab entry to recreate with idemq.schedule()" FROM :schema._private_known_crontabs ORDER BY 1;
\ir move.sql
