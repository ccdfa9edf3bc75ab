-- Shared memory follows rows that change by any way but table/jobs_write.c: SPI, a DBA's
-- UPDATE, COPY, logical replication (hence ENABLE ALWAYS).
CREATE FUNCTION idemq.jobs_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_jobs_changed';
COMMENT ON FUNCTION idemq.jobs_changed() IS 'row trigger of idemq.jobs: tells the ready cursor and the lease table at the end of the transaction';

CREATE TRIGGER idemq_jobs_changed AFTER INSERT OR UPDATE OR DELETE ON idemq.jobs
	FOR EACH ROW EXECUTE FUNCTION idemq.jobs_changed();
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;

CREATE FUNCTION idemq.jobs_truncated() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_jobs_truncated';
COMMENT ON FUNCTION idemq.jobs_truncated() IS 'truncate trigger of idemq.jobs: forgets leases and ready cursors at the end of the transaction';

CREATE TRIGGER idemq_jobs_truncated AFTER TRUNCATE ON idemq.jobs
	FOR EACH STATEMENT EXECUTE FUNCTION idemq.jobs_truncated();
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_truncated;

CREATE FUNCTION idemq.settings_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_settings_changed';
COMMENT ON FUNCTION idemq.settings_changed() IS 'statement trigger: tells every backend to read queue settings and grants anew';

CREATE TRIGGER idemq_settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idemq.queues
	FOR EACH STATEMENT EXECUTE FUNCTION idemq.settings_changed();
ALTER TABLE idemq.queues ENABLE ALWAYS TRIGGER idemq_settings_changed;
CREATE TRIGGER idemq_settings_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idemq.queue_grants
	FOR EACH STATEMENT EXECUTE FUNCTION idemq.settings_changed();
ALTER TABLE idemq.queue_grants ENABLE ALWAYS TRIGGER idemq_settings_changed;
