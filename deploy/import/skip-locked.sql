-- Moves the jobs of a table with SKIP LOCKED into idemq, in one database: psql -d shop -f skip-locked.sql shows what it would do,
-- psql -v go=1 does it.  Put your table's columns into the view; move.sql says what each is.  What a worker has in hand must not
-- be in it, whether that is a locked row (skipped by itself) or a status.
\set QUIET on
\set source jobs
CREATE OR REPLACE TEMP VIEW idemq_import AS
	SELECT id, 'mail'::text AS queue, payload::text AS payload, NULL::text AS key, run_at, greatest(0, least(9, priority)) AS priority,
		NULL::text AS group_key, NULL::text AS kind, attempts, greatest(1, max_attempts - attempts) AS max_attempts, status = 'failed' AS dead,
		last_error, created_at AS enqueued_at
	FROM jobs
	WHERE status IN ('waiting', 'failed');
\ir move.sql
