CREATE FUNCTION idemq.apply_retention(max_jobs int DEFAULT 100000) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_apply_retention';
COMMENT ON FUNCTION idemq.apply_retention(int)
	IS 'delete finished jobs of all queues past their retention, with their attempts, and what idemq.once need not remember: what the background worker does by itself; returns how many jobs';
