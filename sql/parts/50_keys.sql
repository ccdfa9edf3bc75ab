-- Topic: Keys

CREATE FUNCTION idemq.acquire(
	queue text, key text, payload jsonb DEFAULT NULL, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS idemq.claim_result
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_acquire';
COMMENT ON FUNCTION idemq.acquire(text, text, jsonb, interval, text, boolean)
	IS 'Claim the job for a message from another system, after enqueuing the job if its key is new. Returns an outcome as idemq.claim_job does. Returns locked without waiting if another transaction is using the key. Requires claim, and enqueue if the key is new.';

CREATE FUNCTION idemq.once(scope text, key text, ttl interval DEFAULT '1 day') RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_once';
COMMENT ON FUNCTION idemq.once(text, text, interval)
	IS 'Return true the first time that this scope and key are used within ttl, and false afterwards. Use it for an effect that does not belong to a job. A rollback undoes the call. Waits for any open transaction that uses the same key. All roles with EXECUTE share the keys.';

CREATE FUNCTION idemq.cancel_by_key(queue text, key text) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel_by_key';
COMMENT ON FUNCTION idemq.cancel_by_key(text, text)
	IS 'Cancel the job with the given key. Returns cancelled, or completed, dead or not_found if the job cannot be cancelled. Requires enqueue.';

CREATE FUNCTION idemq.job_by_key(queue text, key text) RETURNS SETOF idemq.jobs
	ROWS 1 STABLE LANGUAGE sql
	AS 'SELECT j.* FROM idemq.jobs j
		WHERE j.queue_id OPERATOR(pg_catalog.=) idemq.queue_id(job_by_key.queue)
		AND j.key OPERATOR(pg_catalog.=) job_by_key.key COLLATE pg_catalog."C"';
COMMENT ON FUNCTION idemq.job_by_key(text, text)
	IS 'Return the job with the given key, as a row of idemq.jobs. Returns no row if there is no such job or you may not see it.';

CREATE FUNCTION idemq.fence() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_fence';
COMMENT ON FUNCTION idemq.fence()
	IS 'Refuse rows written with a stale token to your own tables. Use this trigger function BEFORE INSERT OR UPDATE FOR EACH ROW, with the names of the columns for the job''s id and token as arguments (''job_id'', ''token''). Raises IQ001 if the row''s token is no longer the job''s token.';
