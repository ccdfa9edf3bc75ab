-- Topic: Waiting

CREATE PROCEDURE idemq.wait(
	queue text, timeout interval DEFAULT '30 s', INOUT ready boolean DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait';
COMMENT ON PROCEDURE idemq.wait(text, interval, boolean)
	IS 'Sleep until the queue has a job to claim. Returns ready = false when timeout has passed, or just before statement_timeout. It holds no transaction, snapshot or lock while it sleeps, so CALL it outside a transaction block; otherwise, it raises 2D000. Requires claim.
- idemq.process: if the session has set it, the call also returns false as soon as a job of that worker process is being cancelled or has been taken back. Then send heartbeats to find out which job.
- queue: if idemq.process is set, NULL means to sleep only until a job of the process is cancelled or taken back, not until a job is ready';

CREATE PROCEDURE idemq.wait_any(
	queues text[], timeout interval DEFAULT '30 s', INOUT ready boolean DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait_any';
COMMENT ON PROCEDURE idemq.wait_any(text[], interval, boolean)
	IS 'Sleep until one of several queues has a job to claim, as idemq.wait does. Afterwards, claim the job with idemq.claim_any. Requires claim on each queue.';

CREATE PROCEDURE idemq.wait_for_room(
	queue text, jobs int DEFAULT 1, timeout interval DEFAULT '30 s', INOUT ready boolean DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait_for_room';
COMMENT ON PROCEDURE idemq.wait_for_room(text, int, interval, boolean)
	IS 'Sleep until a queue with max_unfinished has room for that number of jobs. Returns ready = false when timeout has passed. Reserves nothing, so the enqueue that follows can still raise IQ007. CALL it outside a transaction block; otherwise, it raises 2D000. Raises IQ007 if jobs is greater than max_unfinished. Requires enqueue.';

CREATE PROCEDURE idemq.wait_result(
	id bigint, timeout interval DEFAULT '30 s',
	INOUT status idemq.status DEFAULT NULL, INOUT result jsonb DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait_result';
COMMENT ON PROCEDURE idemq.wait_result(bigint, interval, idemq.status, jsonb)
	IS 'Sleep until a job is completed, dead or cancelled. Returns its status and stored result, or its current status when timeout has passed. CALL it outside a transaction block; otherwise, it raises 2D000. Works on a standby, where it also waits for a job that has not been replicated yet. Raises IQ002 if the job does not exist. Requires any privilege on its queue.';

CREATE PROCEDURE idemq.wait_results(
	ids bigint[], timeout interval DEFAULT '30 s',
	INOUT statuses idemq.status[] DEFAULT NULL, INOUT results jsonb[] DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wait_results';
COMMENT ON PROCEDURE idemq.wait_results(bigint[], interval, idemq.status[], jsonb[])
	IS 'Sleep until all of these jobs are completed, dead or cancelled. Returns their statuses and stored results in the order of the ids, or their current statuses when timeout has passed. CALL it outside a transaction block; otherwise, it raises 2D000. Raises IQ002 if a job does not exist. Requires any privilege on each queue.';

-- Topic: Limits

CREATE FUNCTION idemq.admit(bucket text, max_calls int, per interval, cost int DEFAULT 1, burst int DEFAULT NULL)
	RETURNS idemq.admission
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_admit';
COMMENT ON FUNCTION idemq.admit(text, int, interval, int, int)
	IS 'Check whether a call is allowed under a limit of max_calls in any period of length per. The call counts as cost calls; a cost of 0 only checks. With burst, the limit is a bucket of that size that refills at a constant rate (GCRA). The call counts immediately, even if you roll back, until the server restarts. retry_after is the time to wait before asking again. All roles with EXECUTE share limits.';
