-- Topic: Jobs

CREATE FUNCTION idemq.revoke_lease(id bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_revoke_lease';
COMMENT ON FUNCTION idemq.revoke_lease(bigint)
	IS 'take a running job from its worker: it is ready at once, the attempt not counted, and its worker''s commit is refused (IQ001); returns released, or why not: current (not running), blocked, completed, dead, cancelled, not_found; needs admin; written to idemq.audit';

-- Topic: Schedules

CREATE FUNCTION idemq.run_schedule_now(name text) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq.run_schedule_now(text)
	IS 'enqueue one job of a schedule at once, beside its ticks, as the role that has made it; returns the job''s id; for that role and administrators of the queue; written to idemq.audit; raises 42704, 42501';
