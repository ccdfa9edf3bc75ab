CREATE TYPE idemq.status AS ENUM (
	'blocked', 'pending', 'running', 'retrying', 'completed', 'dead', 'cancelled');
COMMENT ON TYPE idemq.status IS 'state of a job';

CREATE TYPE idemq.outcome AS ENUM (
	'accepted', 'duplicate', 'rerun',
	'claimed', 'claimed_again', 'locked', 'completed', 'dead', 'cancelled',
	'blocked', 'not_due', 'not_found',
	'committed', 'already_committed', 'stale',
	'current', 'expired', 'retrying', 'released',
	'added', 'already');
COMMENT ON TYPE idemq.outcome IS 'outcome of a call: what the call did, or why it did nothing';

CREATE TYPE idemq.enqueue_result AS (
	id      bigint,
	outcome idemq.outcome,
	status  idemq.status,
	result  jsonb
);
COMMENT ON TYPE idemq.enqueue_result IS 'result of idemq.enqueue: the new job, or the existing job with the same key';

-- Named row types: a caller's plan takes them from the type cache, where it
-- would build an anonymous one from pg_proc at every call.
CREATE TYPE idemq.claimed_job AS (
	id           bigint,
	token        bigint,
	attempt      int,
	max_attempts int,
	deadline     timestamptz,
	payload      jsonb,
	key          text,
	group_key    text,
	checkpoint   jsonb,
	enqueued_at  timestamptz,
	headers      jsonb,
	kind         text
);
COMMENT ON TYPE idemq.claimed_job IS 'row returned by idemq.claim: the job, and the token that the worker passes to later calls';

CREATE TYPE idemq.claimed_queue_job AS (
	id           bigint,
	token        bigint,
	attempt      int,
	max_attempts int,
	deadline     timestamptz,
	payload      jsonb,
	key          text,
	group_key    text,
	checkpoint   jsonb,
	enqueued_at  timestamptz,
	headers      jsonb,
	queue        text,
	kind         text
);
COMMENT ON TYPE idemq.claimed_queue_job IS 'row returned by idemq.claim_any: the columns of idemq.claimed_job and the name of the queue';

CREATE TYPE idemq.claim_result AS (
	outcome      idemq.outcome,
	id           bigint,
	token        bigint,
	attempt      int,
	max_attempts int,
	deadline     timestamptz,
	payload      jsonb,
	key          text,
	group_key    text,
	checkpoint   jsonb,
	enqueued_at  timestamptz,
	headers      jsonb,
	result       jsonb,
	retry_after  timestamptz,
	kind         text
);
COMMENT ON TYPE idemq.claim_result IS 'result of idemq.claim_job: an outcome and, depending on it, the claimed job, its stored result, or the time at which to try again';

CREATE TYPE idemq.admission AS (
	allowed     boolean,
	remaining   int,
	retry_after interval
);
COMMENT ON TYPE idemq.admission IS 'result of idemq.admit: whether the call is allowed, how many more calls are allowed now, and how long to wait before asking again';
