-- Moves the jobs of a table with SKIP LOCKED into idemq, in the same database.  psql -d shop -f skip-locked.sql prints what it would
-- move; with -v go=1, it moves the jobs.  Put the columns of your table into the view; move.sql explains each column.  The view
-- must not include jobs that a worker is running.  Locked rows are skipped automatically; exclude other running jobs by status.
\set QUIET on
\set source jobs
CREATE OR REPLACE TEMP VIEW idemq_import AS
	SELECT id, 'mail'::text AS queue, payload::text AS payload, NULL::text AS key, run_at, greatest(0, least(9, priority)) AS priority,
		NULL::text AS group_key, NULL::text AS kind, attempts, greatest(1, max_attempts - attempts) AS max_attempts, status = 'failed' AS dead,
		last_error, created_at AS enqueued_at
	FROM jobs
	WHERE status IN ('waiting', 'failed');
\ir move.sql
