-- enqueue_sequenced: one row a producer says which of its numbers were accepted.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', retention => '0') AS q \gset
SELECT idemq.create_queue('kept', lease => '1 h') AS kept \gset
CREATE FUNCTION send(seq bigint, payload jsonb DEFAULT '0', producer text DEFAULT 'p0', queue text DEFAULT 'kept') RETURNS TABLE (known boolean, outcome idemq.outcome, status idemq.status, result jsonb)
	LANGUAGE sql AS $$ SELECT e.id IS NOT NULL, e.outcome, e.status, e.result FROM idemq.enqueue_sequenced(send.queue, send.producer, send.seq, send.payload) e $$;

-- Higher is new, with gaps; anything else a duplicate, of which only the last one is known.
SELECT * FROM send(10, '"ten"');
SELECT * FROM send(10, '"ten again"');
SELECT * FROM send(11);
SELECT * FROM send(1000);
SELECT * FROM send(10);
SELECT * FROM send(999);
SELECT * FROM send(-5);
SELECT payload, key, status FROM idemq.jobs ORDER BY id;
SELECT queue_id = :kept AS its_queue, name, seq, job_id = (SELECT max(id) FROM idemq.jobs) AS its_job, enqueued_at = (SELECT max(enqueued_at) FROM idemq.jobs) AS its_time FROM idemq.producers;
-- Each producer and queue by itself; from the least number on.
SELECT * FROM send(-9223372036854775808, producer => 'p1');
SELECT * FROM send(-9223372036854775808, producer => 'p1');
SELECT * FROM send(9223372036854775807, producer => 'p1');
SELECT * FROM send(9223372036854775807, producer => 'p1');
SELECT * FROM send(7, queue => 'q');
SELECT queue_id = :kept AS kept, name, seq FROM idemq.producers ORDER BY 1, 2;

-- What became of the last one.
SELECT idemq.commit(id, token, '"done"') FROM idemq.claim('kept', 10);
SELECT * FROM send(1000);
SELECT (e).id = (SELECT job_id FROM idemq.producers WHERE name = 'p0' AND queue_id = :kept) AS same FROM idemq.enqueue_sequenced('kept', 'p0', 1000, '1') e;
-- In a queue that keeps nothing the job is gone, and the number is not.
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT count(*) FROM idemq.jobs WHERE queue_id = :q;
SELECT * FROM send(7, queue => 'q');
SELECT idemq.apply_retention() >= 0 AS applied;
SELECT * FROM send(7, queue => 'q');
SELECT * FROM send(8, queue => 'q');

-- The job is as enqueue makes it.
SELECT outcome FROM idemq.enqueue_sequenced('kept', 'options', 1, '{"a": 1}', delay => '1 h', priority => 2, group_key => 'g', max_attempts => 7, headers => '"h"', expires_in => '2 h', kind => 'mail');
SELECT status, priority, group_key, max_attempts, headers, kind, run_at - enqueued_at AS run_at, expires_at - enqueued_at AS expires_in, payload FROM idemq.jobs ORDER BY id DESC LIMIT 1;
SELECT outcome FROM idemq.enqueue_sequenced('kept', 'options', 2, '2', run_at => '2100-01-01 00:00:00+00');
SELECT status, ready_at = '2100-01-01 00:00:00+00' AS run_at FROM idemq.jobs ORDER BY id DESC LIMIT 1;
SELECT enqueued_total, duplicates_total FROM idemq.metrics ORDER BY queue;

-- With the transaction, and with the savepoint.
BEGIN;
SELECT * FROM send(2000);
SAVEPOINT a;
SELECT * FROM send(3000);
ROLLBACK TO a;
SELECT * FROM send(2500);
SELECT * FROM send(2500);
SELECT seq FROM idemq.producers WHERE name = 'p0' AND queue_id = :kept;
ROLLBACK;
SELECT seq FROM idemq.producers WHERE name = 'p0' AND queue_id = :kept;
SELECT * FROM send(1001);
-- One HOT update each: the index has an entry a producer.
CREATE VIEW writes AS SELECT pg_stat_get_xact_tuples_updated('idemq.producers'::regclass) AS updated, pg_stat_get_xact_tuples_hot_updated('idemq.producers'::regclass) AS hot,
	pg_stat_get_xact_tuples_inserted('idemq.producers'::regclass) AS inserted;
BEGIN;
SELECT * FROM writes \gset
SELECT count(*) FROM generate_series(2001, 2020) n, LATERAL send(n);
SELECT updated - :updated AS updated, hot - :hot AS hot, inserted - :inserted AS inserted FROM writes;
COMMIT;

-- Forgotten, anything is accepted again.
SELECT idemq.forget_producer('kept', 'p0'), idemq.forget_producer('kept', 'p0'), idemq.forget_producer('q', 'other');
SELECT * FROM send(1);

-- Refused.
SELECT idemq.enqueue_sequenced(NULL, 'p', 1, '1');
SELECT idemq.enqueue_sequenced('q', NULL, 1, '1');
SELECT idemq.enqueue_sequenced('q', 'p', NULL, '1');
SELECT idemq.enqueue_sequenced('q', 'p', 1, NULL);
SELECT idemq.enqueue_sequenced('q', 'p', 1, '1', priority => NULL);
SELECT idemq.enqueue_sequenced('q', '', 1, '1');
SELECT idemq.enqueue_sequenced('q', repeat('x', 257), 1, '1');
SELECT idemq.enqueue_sequenced('none', 'p', 1, '1');
SELECT idemq.enqueue_sequenced('q', 'p', 1, '1', delay => '1 h', run_at => now());
SELECT idemq.enqueue_sequenced('q', 'p', 1, '1', kind => repeat('x', 65));
SELECT idemq.forget_producer('none', 'p');
SELECT idemq.forget_producer('q', NULL);
SELECT outcome FROM idemq.enqueue_sequenced('q', repeat('x', 256), 1, '1');
BEGIN READ ONLY;
SELECT idemq.enqueue_sequenced('q', 'p', 1, '1');
ROLLBACK;
-- What was refused has taken no number.
SELECT count(*) FROM idemq.producers WHERE name = 'p';

-- Rights: enqueue sends, admin forgets, any privilege shows; others see nothing.
CREATE ROLE sequenced_app;
CREATE ROLE sequenced_other;
SELECT idemq.grant_queue('kept', 'sequenced_app', 'enqueue'), idemq.grant_queue('q', 'sequenced_other', 'claim');
SET ROLE sequenced_app;
SELECT outcome FROM idemq.enqueue_sequenced('kept', 'app', 1, '1');
SELECT name, seq FROM idemq.producers WHERE queue_id = idemq.queue_id('kept') ORDER BY name;
SELECT outcome FROM idemq.enqueue_sequenced('q', 'app', 1, '1');
SELECT idemq.forget_producer('kept', 'app');
UPDATE idemq.producers SET seq = 0;
SET ROLE sequenced_other;
SELECT count(*) FROM idemq.producers WHERE queue_id = :kept;
SELECT outcome FROM idemq.enqueue_sequenced('q', 'app', 1, '1');
RESET ROLE;

-- They go with their queue; what a hand has left is told of.
SELECT * FROM idemq.check();
SELECT idemq.drop_queue('kept', force => true);
SELECT queue_id = :q AS of_q, count(*) FROM idemq.producers GROUP BY 1;
INSERT INTO idemq.producers VALUES (99, 'lost', 1, 1, now());
SELECT severity, invariant FROM idemq.check();
DELETE FROM idemq.producers WHERE queue_id = 99;
TRUNCATE idemq.queues;
SELECT count(*) FROM idemq.producers;
DROP OWNED BY sequenced_app, sequenced_other;
DROP ROLE sequenced_app, sequenced_other;
DROP FUNCTION send;
DROP VIEW writes;
DROP EXTENSION idemq;
