-- Topic: Steps

-- A row by the time of its first step; none here, since a dump brings its own.
CREATE TABLE idemq_internal.database_uuid (
	one  boolean PRIMARY KEY DEFAULT true CHECK (one),
	uuid uuid NOT NULL
);
COMMENT ON TABLE idemq_internal.database_uuid IS 'what the effect keys of this database are made with; drawn at its first step, and dumped: a restored database has the same keys';
COMMENT ON COLUMN idemq_internal.database_uuid.one IS 'true: there is one row';
COMMENT ON COLUMN idemq_internal.database_uuid.uuid IS 'drawn at random';

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
COMMENT ON TABLE idemq.steps IS 'one row a job and step: what its attempts have done already, outside of this database and in it, and which events it awaits; row-level security shows the steps of queues that the role may claim from or administer';
COMMENT ON COLUMN idemq.steps.job_id IS 'the job';
COMMENT ON COLUMN idemq.steps.name IS 'name of the step, or of the event, unique in the job';
COMMENT ON COLUMN idemq.steps.queue_id IS 'queue of the job';
COMMENT ON COLUMN idemq.steps.state IS 'open: begun, and no answer is stored (unknown, once the attempt of token is over); done; refused: the other side did not do it; void: of an earlier payload of the job, so that the next begin_step or await_event is new; of events: waiting, arrived, timed_out';
COMMENT ON COLUMN idemq.steps.round IS 'how often it was refused, or its job got another payload: each time it is another effect, under another effect_key';
COMMENT ON COLUMN idemq.steps.token IS 'token of the attempt that began it last; of one that was done in this database, of the attempt that did it; of an event, of the attempt that asked last';
COMMENT ON COLUMN idemq.steps.earlier IS 'tokens of attempts that began it before, and were lost between call and answer: they may still bring the answer';
COMMENT ON COLUMN idemq.steps.begun_at IS 'when its last call began; NULL: it was never begun, but done in a transaction of this database; of an event, when the job first asked for it';
COMMENT ON COLUMN idemq.steps.call_until IS 'until then its call may still arrive; of an event, when the wait times out';
COMMENT ON COLUMN idemq.steps.answered_at IS 'when it was done or refused, arrived or timed out';
COMMENT ON COLUMN idemq.steps.effect_key IS 'the idempotency key to send along: the same for every attempt, until the step is refused; NULL as begun_at';
COMMENT ON COLUMN idemq.steps.request IS 'what was asked for';
COMMENT ON COLUMN idemq.steps.response IS 'the answer: the first one; the payload of an event that arrived';
COMMENT ON COLUMN idemq.steps.error IS 'why it was refused';
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
	IS 'store that an attempt is about to have another system do something, before the call; commits by itself; needs claim
- outcome new: call, and give up when call_timeout has passed since before this CALL
- outcome done: with the response that is stored
- outcome unknown: an attempt was lost between call and answer, with its request and time; ask the other side, or call again under the same effect_key
- outcome busy: its call may still arrive; ask again in retry_after
- It flushes also with synchronous_commit = off.
- It raises IQ001 (stale token), IQ002, IQ003 (another request under that name), IQ006, and 2D000 inside a transaction block.';

CREATE FUNCTION idemq.finish_step(id bigint, token bigint, name text, response jsonb DEFAULT NULL)
	RETURNS jsonb
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_finish_step';
COMMENT ON FUNCTION idemq.finish_step(bigint, bigint, text, jsonb)
	IS 'store the answer to a step that this attempt has begun, also when its token is stale by now; returns the response that counts: the first one; needs claim
- A step that was never begun is done by the transaction that calls this, fenced as by idemq.assert_current: call it before the effect.
- It raises IQ001 (stale token), IQ002, IQ006 (done already: the effect stands, roll back), 55000 (another attempt has begun it).';

CREATE FUNCTION idemq.refuse_step(id bigint, token bigint, name text, error text DEFAULT NULL)
	RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_refuse_step';
COMMENT ON FUNCTION idemq.refuse_step(bigint, bigint, text, text)
	IS 'store that the other side definitely did not do what the attempt that began the step last has asked for, also when its token is stale by now; the next begin_step answers new, under another effect_key; raises IQ001 (stale token), IQ002, 55000 (it is done, or not begun by this attempt); needs claim';
