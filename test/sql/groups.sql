-- FIFO groups, without the worker: what a claim, a finish and an enqueue do to them.
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q', retry_base => '1 ms', retry_jitter => 0, max_attempts => 2) IS NOT NULL AS created;

-- One in flight, in order; the next one when the head is finished.
SELECT outcome, status FROM idemq.enqueue('q', '1', group_key => 'a');
SELECT outcome, status FROM idemq.enqueue('q', '2', group_key => 'a');
SELECT outcome, status FROM idemq.enqueue('q', '3', group_key => 'b');
SELECT outcome, status FROM idemq.enqueue('q', '4');
SELECT payload, group_key, attempt FROM idemq.claim('q', 10) ORDER BY id;
SELECT payload FROM idemq.claim('q', 10);
SELECT payload, status, group_key, ready_at IS NULL AS unready FROM idemq.jobs ORDER BY id;
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE payload = '1';
SELECT payload, group_key FROM idemq.claim('q', 10);
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'processing' ORDER BY id;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT * FROM idemq.check();
