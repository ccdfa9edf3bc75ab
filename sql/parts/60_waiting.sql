-- Topic: Waiting

CREATE PROCEDURE idemq.wait(
	queue text, timeout interval DEFAULT '30 s', INOUT ready boolean DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait';
COMMENT ON PROCEDURE idemq.wait(text, interval, boolean)
	IS 'sleep until the queue has a job to claim; ready is false after timeout (or just before statement_timeout); holds no transaction, snapshot or lock: CALL it outside a transaction block, 2D000 otherwise; needs claim';

CREATE PROCEDURE idemq.wait_any(
	queues text[], timeout interval DEFAULT '30 s', INOUT ready boolean DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait_any';
COMMENT ON PROCEDURE idemq.wait_any(text[], interval, boolean)
	IS 'idemq.wait for the first of several queues; then claim with idemq.claim_any; needs claim on each';

CREATE PROCEDURE idemq.wait_result(
	id bigint, timeout interval DEFAULT '30 s',
	INOUT status idemq.status DEFAULT NULL, INOUT result jsonb DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait_result';
COMMENT ON PROCEDURE idemq.wait_result(bigint, interval, idemq.status, jsonb)
	IS 'sleep until a job is completed, dead or cancelled; returns its status and stored result, after timeout the status that it has; CALL it outside a transaction block, 2D000 otherwise; on a standby, too, where a job that has yet to arrive is waited for; raises IQ002 (no such job); needs any privilege on its queue';

CREATE PROCEDURE idemq.wait_results(
	ids bigint[], timeout interval DEFAULT '30 s',
	INOUT statuses idemq.status[] DEFAULT NULL, INOUT results jsonb[] DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait_results';
COMMENT ON PROCEDURE idemq.wait_results(bigint[], interval, idemq.status[], jsonb[])
	IS 'sleep until all of these jobs are completed, dead or cancelled; returns their statuses and stored results in the order of the ids, after timeout what they are then; CALL it outside a transaction block, 2D000 otherwise; raises IQ002 (no such job); needs any privilege on each queue';

-- Topic: Limits

CREATE FUNCTION idemq.admit(bucket text, max_calls int, per interval, cost int DEFAULT 1, burst int DEFAULT NULL)
	RETURNS idemq.admission
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_admit';
COMMENT ON FUNCTION idemq.admit(text, int, interval, int, int)
	IS 'ask for a call under a limit of at most max_calls in any period per, of which it takes cost; burst n makes it a bucket of n that fills evenly (GCRA); cost 0 only asks; takes effect at once, a rollback does not undo it and a restart forgets it; retry_after is exactly when to ask again; all roles that may execute it share its buckets';
