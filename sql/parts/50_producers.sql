CREATE TYPE idemq.enqueue_result AS (
	id      bigint,
	outcome idemq.outcome,
	status  idemq.status,
	result  jsonb
);
COMMENT ON TYPE idemq.enqueue_result IS 'answer of idemq.enqueue: the job, new or the first with its key';

CREATE FUNCTION idemq.enqueue(
	queue text, payload jsonb, key text DEFAULT NULL, delay interval DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, priority int DEFAULT 4, group_key text DEFAULT NULL,
	max_attempts int DEFAULT NULL, headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL,
	on_duplicate text DEFAULT 'keep')
	RETURNS idemq.enqueue_result
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_enqueue';
COMMENT ON FUNCTION idemq.enqueue(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, text)
	IS 'add a job; outcome accepted, or duplicate with the first job''s id, status and result';

CREATE FUNCTION idemq.enqueue_many(
	queue text, payloads jsonb[], keys text[] DEFAULT NULL, run_ats timestamptz[] DEFAULT NULL,
	priorities int[] DEFAULT NULL, group_keys text[] DEFAULT NULL)
	RETURNS TABLE (ord int, id bigint, outcome idemq.outcome, status idemq.status, result jsonb)
	ROWS 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_enqueue_many';
COMMENT ON FUNCTION idemq.enqueue_many(text, jsonb[], text[], timestamptz[], int[], text[])
	IS 'add many jobs, all or none; one row an element, ord counting from 1 (with keys the rows come in the order of the keys)';

CREATE FUNCTION idemq.cancel(id bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel';
COMMENT ON FUNCTION idemq.cancel(bigint)
	IS 'cancel a job that is not finished; returns cancelled, or why not: completed, dead, not_found';

CREATE FUNCTION idemq.retry(id bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_retry';
COMMENT ON FUNCTION idemq.retry(bigint)
	IS 'make a job ready now: failed, not yet due, or dead or cancelled (with a fresh set of attempts); returns retrying, or why not: current (ready already), locked, blocked, completed, not_found';

CREATE FUNCTION idemq.redrive(queue text, max_jobs int DEFAULT NULL) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_redrive';
COMMENT ON FUNCTION idemq.redrive(text, int)
	IS 'make dead jobs of a queue ready again with a fresh set of attempts, oldest first; returns how many';
