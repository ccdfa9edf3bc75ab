-- Moves the jobs and schedules of pg-boss 10 and later into idemq, in one database: psql -d shop -f deploy/import/pg-boss.sql
-- shows what it would do, psql -v go=1 does it.  Also -v schema=..., and SQL over the columns of pgboss.job: -v queue=..., idemq's
-- queue for a job; -v priority=...; -v only=..., which jobs.
\set QUIET on
\set source pg-boss
\if :{?schema} \else \set schema pgboss \endif
\if :{?queue} \else \set queue name \endif
\if :{?only} \else \set only true \endif
-- The higher is first there, and 0 is usual: 4 here.
\if :{?priority} \else \set priority 'greatest(0, least(9, 4 - priority::bigint))::int' \endif
-- A job that others wait for, or that waits for others, stays: who counts them is pg-boss.  What is in work stays, too.
-- singleton_key is a key where the policy lets no second one wait, and a group where it lets no second one run.
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
-- Each in a subtransaction: gone there when it is here.
DO $$
DECLARE
	r record;
BEGIN
	FOR r IN EXECUTE format('SELECT s.name, cron, coalesce(timezone, ''UTC'') AS zone, coalesce(data, ''null'') AS data, options, to_jsonb(s) ->> ''key'' AS key,
		coalesce(to_jsonb(s) ->> ''kind'', ''cron'') AS kind, s.ctid AS place FROM %I.schedule s FOR UPDATE', current_setting('idemq_import.schema'))
	LOOP
		BEGIN
			IF r.kind <> 'cron' THEN
				RAISE EXCEPTION 'not a cron expression, but %', r.kind;
			END IF;
			PERFORM idemq.schedule(concat_ws('/', 'pg-boss', r.name, nullif(r.key, '')), r.cron, r.name, r.data, r.zone,
				priority => greatest(0, least(9, 4 - coalesce((r.options ->> 'priority')::int, 0))));
			EXECUTE format('DELETE FROM %I.schedule WHERE ctid = $1', current_setting('idemq_import.schema')) USING r.place;
			RAISE NOTICE 'schedule % has been created in idemq', r.name;
		EXCEPTION WHEN OTHERS THEN
			RAISE WARNING 'not moved: schedule of %: %', r.name, SQLERRM USING ERRCODE = SQLSTATE;
		END;
	END LOOP;
END $$;
\endif
