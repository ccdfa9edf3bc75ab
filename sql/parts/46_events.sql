-- Topic: Events

-- No foreign key to idemq.queues: see idemq_internal.queue_grants.
CREATE TABLE idemq.events (
	queue_id   int NOT NULL,
	name       text COLLATE "C" NOT NULL,
	sent_at    timestamptz NOT NULL,
	keep_until timestamptz NOT NULL,
	payload    jsonb,
	PRIMARY KEY (queue_id, name)
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.events IS 'one row per event sent to a queue with idemq.send_event, until the event expires. Row-level security restricts the rows to queues that the role may claim from or administer.';
COMMENT ON COLUMN idemq.events.queue_id IS 'numeric id of the queue';
COMMENT ON COLUMN idemq.events.name IS 'name of the event, unique within the queue';
COMMENT ON COLUMN idemq.events.sent_at IS 'when the event was sent';
COMMENT ON COLUMN idemq.events.keep_until IS 'time at which the event expires and is deleted, which is sent_at plus the queue''s idempotency_window';
COMMENT ON COLUMN idemq.events.payload IS 'payload of the event';
-- For retention.
CREATE INDEX events_keep_until ON idemq.events (keep_until);

SELECT pg_catalog.pg_extension_config_dump('idemq.events', '');

ALTER TABLE idemq.events ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.events FOR SELECT USING (idemq_internal.may_see(queue_id));

CREATE FUNCTION idemq.await_event(
	id bigint, token bigint, name text, timeout interval, OUT outcome text, OUT payload jsonb)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_await_event';
COMMENT ON FUNCTION idemq.await_event(bigint, bigint, text, interval)
	IS 'Await an event in the job''s queue. Returns an outcome. Requires claim.
- outcome arrived: the event''s payload is returned
- outcome waiting: the job was released, as with idemq.release, until the event arrives or timeout has passed since the first call. The next attempt must call the function again.
- outcome timed_out: the event did not arrive in time
- An outcome of arrived or timed_out is final: every later call for the job returns it again.
- timeout: may be 0
- It raises IQ001 (stale token), IQ002, IQ006 and 55000 (a step has that name).';

CREATE FUNCTION idemq.send_event(
	queue text, name text, payload jsonb DEFAULT NULL, OUT outcome idemq.outcome,
		OUT first_payload jsonb, OUT same_payload boolean)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_send_event';
COMMENT ON FUNCTION idemq.send_event(text, text, jsonb)
	IS 'Send an event to the jobs in a queue that are waiting for it now or will wait for it within the queue''s idempotency_window. Waiting jobs become ready when the transaction commits. Waits for open transactions that are sending or awaiting the same event. Requires enqueue.
- outcome: accepted, or duplicate if the event had already been sent
- first_payload: payload of the event when it was first sent. For a duplicate, it is NULL unless you may claim from the queue or administer it.
- same_payload: whether your payload equals the first one
- name: up to 256 bytes';
