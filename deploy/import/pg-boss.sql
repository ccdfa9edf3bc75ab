-- Moves the jobs and schedules of pg-boss 10 and later into idemq, in the same database.  psql -d shop -f deploy/import/pg-boss.sql
-- prints what it would move; with -v go=1, it moves the jobs.  -v schema=... names the schema of pg-boss.  These options are SQL
-- over the columns of pgboss.job: -v queue=... (idemq's queue for a job), -v priority=..., and -v only=... (which jobs to move).
\set QUIET on
\set source pg-boss
\if :{?schema} \else \set schema pgboss \endif
\if :{?queue} \else \set queue name \endif
\if :{?only} \else \set only true \endif
-- In pg-boss, a higher number is served first and 0 is the default, which becomes 4.
\if :{?priority} \else \set priority 'greatest(0, least(9, 4 - priority::bigint))::int' \endif
-- Jobs that wait for other jobs, and the jobs they wait for, are not moved, because pg-boss counts them.  Running jobs are not
-- moved either.  singleton_key becomes the key if the policy allows only one waiting job, and the group if it allows only one
-- running job.
CREATE OR REPLACE TEMP VIEW idemq_import AS
	SELECT id, :queue AS queue, coalesce(data, 'null')::text AS payload,
		CASE WHEN to_jsonb(j) ->> 'policy' IN ('short', 'stately', 'exclusive') THEN singleton_key END AS key, start_after AS run_at, :priority AS priority,
		CASE WHEN to_jsonb(j) ->> 'policy' IN ('singleton', 'stately', 'exclusive', 'key_strict_fifo') THEN coalesce(singleton_key, name) END AS group_key, NULL::text AS kind,
		retry_count + (state IN ('retry', 'failed'))::int AS attempts, least(2147483647, greatest(1, retry_limit::bigint + (state = 'created')::int - retry_count))::int AS max_attempts, state = 'failed' AS dead,
		coalesce(output ->> 'message', output #>> '{}') AS last_error, created_on AS enqueued_at
	FROM :schema.job j
	WHERE (state < 'active' OR state = 'failed') AND name NOT LIKE '\_\_pgboss\_\_%' AND NOT coalesce((to_jsonb(j) ->> 'blocked')::boolean, false)
		AND NOT coalesce((to_jsonb(j) ->> 'blocking')::boolean, false) AND (:only);
SELECT name AS "stays in pg-boss", state, count(*) FROM :schema.job WHERE state <= 'active' AND name NOT LIKE '\_\_pgboss\_\_%'
	AND (name, id) NOT IN (SELECT name, id FROM pg_temp.idemq_import) GROUP BY 1, 2 ORDER BY 1, 2;
SELECT name AS "queue of the schedule", cron, timezone, to_jsonb(s) ->> 'key' AS key FROM :schema.schedule s ORDER BY 1, 4;
\ir move.sql
\if :{?go}
SELECT set_config('idemq_import.schema', :'schema', false) \g /dev/null
-- Each schedule is moved in a subtransaction, so it is deleted there only if it was created here.
DO $$
DECLARE
	r record;
BEGIN
	FOR r IN EXECUTE format('SELECT s.name, cron, coalesce(timezone, ''UTC'') AS zone, coalesce(data, ''null'') AS data, options, to_jsonb(s) ->> ''key'' AS key,
		coalesce(to_jsonb(s) ->> ''kind'', ''cron'') AS kind, s.ctid AS place FROM %I.schedule s FOR UPDATE', current_setting('idemq_import.schema'))
	LOOP
		BEGIN
			IF r.kind <> 'cron' THEN
				RAISE EXCEPTION 'idemq accepts only cron expressions, but this schedule is of kind %', r.kind;
			END IF;
			PERFORM idemq.schedule(concat_ws('/', 'pg-boss', r.name, nullif(r.key, '')), r.cron, r.name, r.data, r.zone,
				priority => greatest(0, least(9, 4 - coalesce((r.options ->> 'priority')::int, 0))));
			EXECUTE format('DELETE FROM %I.schedule WHERE ctid = $1', current_setting('idemq_import.schema')) USING r.place;
			RAISE NOTICE 'created schedule % in idemq', r.name;
		EXCEPTION WHEN OTHERS THEN
			RAISE WARNING 'could not move the schedule for queue %: %', r.name, SQLERRM USING ERRCODE = SQLSTATE;
		END;
	END LOOP;
END $$;
\endif
