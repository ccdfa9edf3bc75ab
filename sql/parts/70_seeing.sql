CREATE FUNCTION idemq.may_see(queue_id int) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_may_see';
COMMENT ON FUNCTION idemq.may_see(int) IS 'whether the current role may claim from or administer a queue; row-level security asks it';

CREATE FUNCTION idemq.may_use(queue_id int) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_may_use';
COMMENT ON FUNCTION idemq.may_use(int) IS 'whether the current role holds any privilege on a queue; row-level security asks it';

ALTER TABLE idemq.jobs ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.jobs FOR SELECT USING (idemq.may_see(queue_id));
ALTER TABLE idemq.attempts ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.attempts FOR SELECT USING (idemq.may_see(queue_id));
ALTER TABLE idemq.queues ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.queues FOR SELECT USING (idemq.may_use(queue_id));

CREATE FUNCTION idemq.job(id bigint) RETURNS SETOF idemq.jobs
	ROWS 1 STABLE LANGUAGE sql
	AS 'SELECT j.* FROM idemq.jobs j WHERE j.id OPERATOR(pg_catalog.=) job.id';
COMMENT ON FUNCTION idemq.job(bigint) IS 'one job as a row of idemq.jobs; no row when there is none that you may see';
