CREATE FUNCTION idemq.why(id bigint) RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_why';
COMMENT ON FUNCTION idemq.why(bigint)
	IS 'one sentence: what a job waits for, and the next step; for roles that may claim from or administer its queue';

CREATE FUNCTION idemq.leases()
	RETURNS TABLE (queue text, job_id bigint, worker text, pid int, attempt int, claimed_at timestamptz,
		deadline timestamptz, expires_in interval, attached boolean, state text)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_leases';
COMMENT ON FUNCTION idemq.leases()
	IS 'the entries of the lease table, of queues that the caller may claim from or administer, all for pg_monitor; use the view idemq.workers';

CREATE VIEW idemq.workers AS SELECT * FROM idemq.leases();
COMMENT ON VIEW idemq.workers IS 'who holds what: one row a job in flight, of queues that the role may claim from or administer; pg_monitor sees all';
COMMENT ON COLUMN idemq.workers.pid IS 'process of the session that claimed; NULL when it has ended, or after a restart';
COMMENT ON COLUMN idemq.workers.deadline IS 'end of the lease as heartbeats moved it; NULL while the claim''s transaction is open';
COMMENT ON COLUMN idemq.workers.state IS 'claiming (its transaction is open), active, ending (a transaction that finishes or cancels it is open), reaping';

CREATE FUNCTION idemq.check()
	RETURNS TABLE (severity text, invariant text, detail text)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_check';
COMMENT ON FUNCTION idemq.check()
	IS 'audit rows, indexes, triggers and shared memory while others work; returns a row for each broken invariant (error) or degraded state (warning), none when all is well';
