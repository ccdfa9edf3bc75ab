CREATE TYPE idemq.status AS ENUM (
	'blocked', 'pending', 'running', 'retrying', 'completed', 'dead', 'cancelled');
COMMENT ON TYPE idemq.status IS 'where a job stands';

CREATE TYPE idemq.outcome AS ENUM (
	'accepted', 'duplicate', 'rerun',
	'claimed', 'claimed_again', 'locked', 'completed', 'dead', 'cancelled',
	'blocked', 'not_due', 'not_found',
	'committed', 'already_committed', 'stale',
	'current', 'expired', 'retrying', 'released');
COMMENT ON TYPE idemq.outcome IS 'what a call did, or why it did nothing';

CREATE TYPE idemq.enqueue_result AS (
	id      bigint,
	outcome idemq.outcome,
	status  idemq.status,
	result  jsonb
);
COMMENT ON TYPE idemq.enqueue_result IS 'answer of idemq.enqueue: the job, new or the first with its key';

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
COMMENT ON TYPE idemq.claimed_job IS 'a row of idemq.claim: what a worker needs, and the token that it must show';

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
COMMENT ON TYPE idemq.claimed_queue_job IS 'a row of idemq.claim_any: as idemq.claimed_job, with the queue''s name';

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
COMMENT ON TYPE idemq.claim_result IS 'answer of idemq.claim_job: an outcome; the claim, the stored result, or when to ask again';

CREATE TYPE idemq.admission AS (
	allowed     boolean,
	remaining   int,
	retry_after interval
);
COMMENT ON TYPE idemq.admission IS 'answer of idemq.admit: whether, how many more at once, and how long to wait';
