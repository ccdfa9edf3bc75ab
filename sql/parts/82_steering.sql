-- Topic: Jobs

CREATE FUNCTION idemq.revoke_lease(id bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_revoke_lease';
COMMENT ON FUNCTION idemq.revoke_lease(bigint)
	IS 'Revoke the lease of a running job. The job becomes ready immediately, the attempt does not count, and the worker''s commit is refused (IQ001). Returns released, or the reason the lease was not revoked: current (not running), blocked, completed, dead, cancelled or not_found. Requires admin. The call is recorded in idemq.audit.';

-- Topic: Schedules

CREATE FUNCTION idemq.run_schedule_now(name text) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq.run_schedule_now(text)
	IS 'Enqueue one job for a schedule immediately, in addition to its ticks, as the role that created the schedule. Returns the job''s id. Requires membership in that role, or admin on the queue. Raises 42704 if the schedule does not exist, and 42501 if you may not run it. The call is recorded in idemq.audit.';
