-- Topic: Producers

-- As small as there are producers: few rows a page leave their versions room.
CREATE TABLE idemq.producers (
	queue_id    int NOT NULL,
	name        text COLLATE "C" NOT NULL,
	seq         bigint NOT NULL,
	job_id      bigint NOT NULL,
	enqueued_at timestamptz NOT NULL,
	PRIMARY KEY (queue_id, name)
) WITH (
	fillfactor = 10,
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.producers IS 'one row per producer that numbers its messages (idemq.enqueue_sequenced); the row is kept until idemq.forget_producer is called or the queue is dropped. Row-level security restricts the rows to queues on which the role holds a privilege.';
COMMENT ON COLUMN idemq.producers.queue_id IS 'numeric id of the queue to which the producer sends';
COMMENT ON COLUMN idemq.producers.name IS 'name of the producer, unique within the queue';
COMMENT ON COLUMN idemq.producers.seq IS 'highest number accepted so far, after which the producer continues';
COMMENT ON COLUMN idemq.producers.job_id IS 'id of the job with that number; the job may have been deleted since then';
COMMENT ON COLUMN idemq.producers.enqueued_at IS 'when the job with that number was enqueued';

SELECT pg_catalog.pg_extension_config_dump('idemq.producers', '');
ALTER TABLE idemq.producers ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.producers FOR SELECT
	USING (idemq_internal.may_use(queue_id));

CREATE FUNCTION idemq.enqueue_sequenced(
	queue text, producer text, seq bigint, payload jsonb, delay interval DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, priority int DEFAULT 4, group_key text DEFAULT NULL,
	max_attempts int DEFAULT NULL, headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL,
	kind text DEFAULT NULL)
	RETURNS idemq.enqueue_result
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_enqueue_sequenced';
COMMENT ON FUNCTION idemq.enqueue_sequenced(text, text, bigint, jsonb, interval, timestamptz, int, text, int, jsonb, interval, text)
	IS 'Add a job for a message in an ordered log, identified by the number of the message in the log. Requires enqueue.
- outcome accepted: seq is higher than the producer''s last number. Gaps are allowed.
- outcome duplicate: seq is not higher. The job''s id, status and result are returned only if seq is the last number.
- seq: numbers must be committed in ascending order, as they are by the only consumer of a Kafka partition. The ids of an outbox table do not meet this condition.
- producer: name of the producer, up to 256 bytes. A call waits for any open transaction of the same producer.
- payload: not compared with the payload of an earlier call';

CREATE FUNCTION idemq.forget_producer(queue text, producer text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.forget_producer(text, text)
	IS 'Forget a producer that will send no more messages with idemq.enqueue_sequenced. Afterwards, any number from that producer is accepted. Returns false if there is no such producer. Requires admin.';

CREATE FUNCTION idemq_internal.forget_producer_impl(queue text, producer text) RETURNS boolean
	LANGUAGE plpgsql AS $$
DECLARE
	number int;
	is_gone boolean;
BEGIN
	PERFORM idemq_internal.check_text('producer', producer, 256);
	number := idemq_internal.queue(queue, 'admin');
	DELETE FROM idemq.producers p WHERE p.queue_id = number AND p.name = producer;
	is_gone := FOUND;
	IF NOT is_gone THEN
		PERFORM idemq_internal.refuse_newer(EXISTS (SELECT FROM idemq_internal.latest('SELECT 1
			FROM idemq.producers
			WHERE queue_id = $1 AND name = $2', number, producer) AS (one int)),
				'enqueue_sequenced');
	END IF;
	RETURN is_gone;
END $$;
