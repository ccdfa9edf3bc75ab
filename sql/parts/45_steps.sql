-- Topic: Steps

-- A row by the time of its first step; none here, since a dump brings its own.
CREATE TABLE idemq_internal.database_uuid (
	one  boolean PRIMARY KEY DEFAULT true CHECK (one),
	uuid uuid NOT NULL
);
COMMENT ON TABLE idemq_internal.database_uuid IS 'identifier from which this database derives its effect keys; it is created with the first step and included in dumps, so a restored database derives the same keys';
COMMENT ON COLUMN idemq_internal.database_uuid.one IS 'always true, which limits the table to one row';
COMMENT ON COLUMN idemq_internal.database_uuid.uuid IS 'random identifier of the database';

-- No foreign key to idemq.jobs: see idemq_internal.queue_grants.
CREATE TABLE idemq.steps (
	job_id      bigint NOT NULL,
	name        text COLLATE "C" NOT NULL,
	queue_id    int NOT NULL,
	state       text NOT NULL CHECK (state IN ('open', 'done', 'refused', 'void', 'waiting',
		'arrived', 'timed_out')),
	round       int NOT NULL CHECK (round >= 0),
	token       bigint NOT NULL,
	earlier     bigint[] NOT NULL DEFAULT '{}',
	begun_at    timestamptz,
	call_until  timestamptz,
	answered_at timestamptz,
	effect_key  text,
	request     jsonb,
	response    jsonb,
	error       text,
	PRIMARY KEY (job_id, name),
	CHECK ((begun_at IS NULL) OPERATOR(pg_catalog.=) (call_until IS NULL)),
	CHECK (state OPERATOR(pg_catalog.<>) 'open' OR begun_at IS NOT NULL)
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.steps IS 'one row per step of a job, or per event that the job awaits. The rows record which effects the job''s attempts have already had inside and outside this database. Row-level security restricts the rows to queues that the role may claim from or administer.';
COMMENT ON COLUMN idemq.steps.job_id IS 'id of the job';
COMMENT ON COLUMN idemq.steps.name IS 'name of the step or event, unique within the job';
COMMENT ON COLUMN idemq.steps.queue_id IS 'numeric id of the job''s queue';
COMMENT ON COLUMN idemq.steps.state IS 'state of the step or event. A step is open (begun, but without a stored response), done, or refused (the other system did not act on the request). The outcome of an open step is unknown once the attempt with this token has ended. An event is waiting, arrived or timed_out. A step or event is void if it belongs to an earlier payload, so the next begin_step or await_event starts over.';
COMMENT ON COLUMN idemq.steps.round IS 'number of times that the step has been refused or the job''s payload has been replaced; each time, the step becomes a new effect with a new effect_key';
COMMENT ON COLUMN idemq.steps.token IS 'token of the attempt that last began the step, performed it in this database, or awaited the event';
COMMENT ON COLUMN idemq.steps.earlier IS 'tokens of earlier attempts that were lost between request and response; their responses may still arrive';
COMMENT ON COLUMN idemq.steps.begun_at IS 'when the step''s last request began, or when the job first awaited the event; NULL means that the step was performed in a transaction in this database, without begin_step';
COMMENT ON COLUMN idemq.steps.call_until IS 'time until which the step''s request may still arrive, or at which the wait for the event times out';
COMMENT ON COLUMN idemq.steps.answered_at IS 'when the step was done or refused, or when the event arrived or timed out';
COMMENT ON COLUMN idemq.steps.effect_key IS 'idempotency key to send with the request. It is the same for every attempt until the step is refused, and NULL if begun_at is NULL.';
COMMENT ON COLUMN idemq.steps.request IS 'request that the step sends';
COMMENT ON COLUMN idemq.steps.response IS 'first response to the step''s request, or the payload of the event';
COMMENT ON COLUMN idemq.steps.error IS 'why the step was refused';
-- Few rows: for idemq.metrics and idemq.check.
CREATE INDEX steps_open ON idemq.steps (queue_id, job_id) WHERE state OPERATOR(pg_catalog.=) 'open';
-- For idemq.send_event.
CREATE INDEX steps_waiting ON idemq.steps (queue_id, name, job_id)
	WHERE state OPERATOR(pg_catalog.=) 'waiting';

SELECT pg_catalog.pg_extension_config_dump('idemq_internal.database_uuid', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.steps', '');

ALTER TABLE idemq.steps ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.steps FOR SELECT USING (idemq_internal.may_see(queue_id));
ALTER TABLE idemq_internal.database_uuid ENABLE ROW LEVEL SECURITY;

CREATE PROCEDURE idemq.begin_step(
	id bigint, token bigint, name text, request jsonb, call_timeout interval,
	INOUT outcome text DEFAULT NULL, INOUT response jsonb DEFAULT NULL,
	INOUT former_request jsonb DEFAULT NULL, INOUT begun_at timestamptz DEFAULT NULL,
	INOUT retry_after interval DEFAULT NULL, INOUT effect_key text DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_begin_step';
COMMENT ON PROCEDURE idemq.begin_step(bigint, bigint, text, jsonb, interval, text, jsonb, jsonb, timestamptz, interval, text)
	IS 'Record that an attempt is about to send a request to another system. Call it before sending. The procedure commits. Requires claim.
- outcome new: send the request, and give up when call_timeout has passed, counted from just before this CALL
- outcome done: response contains the stored response
- outcome unknown: an attempt was lost between request and response. former_request and begun_at show what it requested and when. Ask the other system, or send the request again with the same effect_key.
- outcome busy: the earlier request may still arrive. Call again after retry_after.
- The record is flushed to disk even if synchronous_commit is off.
- It raises IQ001 (stale token), IQ002, IQ003 (the step was begun with a different request), IQ006, and 2D000 inside a transaction block.';

CREATE FUNCTION idemq.finish_step(id bigint, token bigint, name text, response jsonb DEFAULT NULL)
	RETURNS jsonb
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_finish_step';
COMMENT ON FUNCTION idemq.finish_step(bigint, bigint, text, jsonb)
	IS 'Store the response to a step that this attempt has begun, even if its token is stale by now. Returns the first response stored for the step, which is the valid one. Requires claim.
- If the step was never begun, the calling transaction itself performs the step, fenced as with idemq.assert_current. In this case, call the function before you perform the effect.
- It raises IQ001 (stale token), IQ002, IQ006 (the step is already done, so roll back) and 55000 (another attempt has begun the step).';

CREATE FUNCTION idemq.refuse_step(id bigint, token bigint, name text, error text DEFAULT NULL)
	RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_refuse_step';
COMMENT ON FUNCTION idemq.refuse_step(bigint, bigint, text, text)
	IS 'Record that the other system definitely did not act on the request of the attempt that last began the step, even if the token of this attempt is stale by now. The next begin_step returns new, with a new effect_key. Raises IQ001 (stale token), IQ002 and 55000 (the step is done, or was not begun by this attempt). Requires claim.';
