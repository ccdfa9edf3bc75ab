-- acquire: a message that came from elsewhere becomes a job, or finds its job, and
-- is claimed; each outcome.  job_by_key, cancel_by_key, queue_id.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 2);
CREATE VIEW row AS SELECT key, status, attempt, payload, result FROM idemq.jobs ORDER BY id;
-- An answer, with times as whether they lie ahead.
CREATE FUNCTION said(a idemq.claim_result, OUT outcome idemq.outcome, OUT job text, OUT deadline boolean, OUT result jsonb, OUT retry_after boolean) LANGUAGE sql AS $$
	SELECT a.outcome, CASE WHEN a.token IS NULL THEN a.id::text ELSE format('%s attempt %s of %s, payload %s, key %s', a.id, a.attempt, a.max_attempts, a.payload, a.key) END,
		a.deadline > now(), a.result, a.retry_after > now() $$;

-- New: inserted and claimed, by the name of the worker, for the lease.
SELECT * FROM said(idemq.acquire('q', 'a', '{"x": 1, "y": [2]}', lease => '2 h', worker => 'w1'));
SELECT worker, deadline - claimed_at AS lease, priority, max_attempts FROM idemq.job_by_key('q', 'a');
-- Somebody is on it: its deadline.
SELECT * FROM said(idemq.acquire('q', 'a', '{"y": [2.0], "x": 1}'));
SELECT retry_after - now() BETWEEN '119 min' AND '2 h' AS his_deadline, retry_after = deadline AS twice FROM idemq.acquire('q', 'a');
-- Another payload is IQ003 in each status; the order of keys is of no matter; none is not compared.
SELECT idemq.acquire('q', 'a', '{"x": 1, "y": [3]}');
SELECT idemq.acquire('q', 'a', 'null');
SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.job_by_key('q', 'a');
SELECT idemq.acquire('q', 'a', '{"x": 2}');
SELECT * FROM said(idemq.acquire('q', 'a', '{"y":[2],"x":1}'));
SELECT idemq.commit(id, token, '{"receipt": 7}') FROM idemq.job_by_key('q', 'a');
SELECT * FROM said(idemq.acquire('q', 'a', '{"y":[2],"x":1}'));
SELECT * FROM said(idemq.acquire('q', 'a'));
SELECT idemq.acquire('q', 'a', '1');
-- Completed without a result.
SELECT idemq.commit(id, token) FROM idemq.acquire('q', 'b');
SELECT * FROM said(idemq.acquire('q', 'b'));
SELECT * FROM row;
-- Dead; redriven it is claimed again, attempts counted from the start.
SELECT idemq.fail(id, token, permanent => true) FROM idemq.acquire('q', 'c', '1');
SELECT * FROM said(idemq.acquire('q', 'c', '1'));
SELECT idemq.redrive('q');
SELECT * FROM said(idemq.acquire('q', 'c', '1'));
SELECT idemq.fail(id, token, retry_in => '1 h') FROM idemq.job_by_key('q', 'c');
-- Not due: when it is.
SELECT * FROM said(idemq.acquire('q', 'c', '1'));
SELECT retry_after - now() BETWEEN '59 min' AND '1 h' AS due FROM idemq.acquire('q', 'c');
SELECT idemq.cancel_by_key('q', 'c'), idemq.cancel_by_key('q', 'c'), idemq.cancel_by_key('q', 'a'), idemq.cancel_by_key('q', 'none');
SELECT * FROM said(idemq.acquire('q', 'c', '1'));
-- Enqueued before, by enqueue; not claimed in time.
SELECT outcome FROM idemq.enqueue('q', '1', key => 'd', priority => 7, expires_in => '1 us');
SELECT pg_sleep(0.001);
SELECT * FROM said(idemq.acquire('q', 'd', '1'));
SELECT outcome FROM idemq.enqueue('q', '1', key => 'e', priority => 7, headers => '{"h": 1}');
SELECT outcome, payload, headers FROM idemq.acquire('q', 'e', '1');
-- A lease that is over is taken back first, and the attempt counts.
SELECT outcome FROM idemq.acquire('q', 'f', '1', lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.01);
SELECT * FROM said(idemq.acquire('q', 'f', '1', lease => '1 ms')); -- meant to expire
SELECT pg_sleep(0.01);
SELECT * FROM said(idemq.acquire('q', 'f', '1'));
SELECT outcome, error FROM idemq.attempts WHERE job_id = (SELECT id FROM idemq.job_by_key('q', 'f')) ORDER BY token;
-- Released, it does not count.
SELECT idemq.release(id, token) FROM idemq.acquire('q', 'g', '1');
SELECT * FROM said(idemq.acquire('q', 'g', '1'));
-- Paused: the message is kept, and not due.
SELECT idemq.pause('q');
SELECT * FROM said(idemq.acquire('q', 'h', '1'));
SELECT * FROM said(idemq.acquire('q', 'h', '1'));
SELECT * FROM said(idemq.acquire('q', 'a'));
SELECT idemq.resume('q');
SELECT * FROM said(idemq.acquire('q', 'h', '1'));
-- No payload: null.  A later one differs.
SELECT * FROM said(idemq.acquire('q', 'i'));
SELECT idemq.acquire('q', 'i', '1');
SELECT outcome FROM idemq.acquire('q', 'i', 'null');
SELECT * FROM row;

-- The window: inside it the answer, after it a new job; the old one stays, without its key.
SELECT id AS old FROM idemq.job_by_key('q', 'a') \gset
UPDATE idemq.jobs SET finished_at = now() - interval '1 day' + interval '1 min' WHERE id = :old;
SELECT outcome FROM idemq.acquire('q', 'a');
UPDATE idemq.jobs SET finished_at = now() - interval '1 day' - interval '1 min' WHERE id = :old;
SELECT outcome, id > :old AS newer, payload FROM idemq.acquire('q', 'a', '"other"');
SELECT status, key, result FROM idemq.job(:old);
-- A window of 0: only while unfinished.
SELECT idemq.create_queue('w0', idempotency_window => '0', lease => '1 h');
SELECT outcome FROM idemq.acquire('w0', 'k', '1');
SELECT outcome FROM idemq.acquire('w0', 'k', '1');
SELECT idemq.commit(id, token) FROM idemq.job_by_key('w0', 'k');
SELECT outcome FROM idemq.acquire('w0', 'k', '2');
SELECT idemq.commit(id, token) FROM idemq.job_by_key('w0', 'k');
SELECT outcome FROM idemq.enqueue('w0', '3', key => 'k');
SELECT count(*), count(key) FROM idemq.jobs WHERE queue_id = idemq.queue_id('w0');
-- Several times in one transaction: freed, given, rolled back, given again.
BEGIN;
SELECT idemq.commit(id, token) FROM idemq.acquire('w0', 'k', '3');
SAVEPOINT s;
SELECT outcome FROM idemq.acquire('w0', 'k', '4');
SELECT outcome FROM idemq.acquire('w0', 'k', '4');
ROLLBACK TO s;
SELECT outcome, payload FROM idemq.acquire('w0', 'k', '5');
SAVEPOINT s;
SELECT idemq.commit(id, token) FROM idemq.job_by_key('w0', 'k');
ROLLBACK TO s;
SELECT outcome FROM idemq.acquire('w0', 'k', '5');
COMMIT;
SELECT payload, status, key FROM idemq.jobs WHERE queue_id = idemq.queue_id('w0') ORDER BY id;
-- Two in one statement; each isolation level; a rollback leaves nothing.
SELECT a.outcome, b.outcome FROM idemq.acquire('w0', 'two', '1') a, idemq.acquire('w0', 'two', '1') b;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outcome FROM idemq.acquire('q', 'rr', '1');
SELECT idemq.commit(id, token, '"r"') FROM idemq.job_by_key('q', 'rr');
SELECT outcome, result FROM idemq.acquire('q', 'rr', '1');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outcome FROM idemq.acquire('q', 'ser', '1');
SELECT outcome FROM idemq.acquire('q', 'ser', '1');
ROLLBACK;
SELECT count(*) FROM idemq.job_by_key('q', 'ser');
SELECT outcome FROM idemq.acquire('q', 'ser', '1');
BEGIN READ ONLY;
SELECT idemq.acquire('q', 'a');
ROLLBACK;

-- The lock is an advisory one in a class of its own, held while the claim's transaction is open;
-- not by who claimed nothing, nor after the rollback of the claim.
CREATE VIEW locks AS SELECT mode, objsubid, count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) GROUP BY 1, 2;
BEGIN;
SELECT outcome FROM idemq.acquire('q', 'rr');
SELECT * FROM locks;
SAVEPOINT s;
SELECT outcome FROM idemq.acquire('q', 'l', '1');
SELECT * FROM locks;
ROLLBACK TO s;
SELECT * FROM locks;
SELECT outcome FROM idemq.acquire('q', 'l', '1');
SELECT outcome FROM idemq.acquire('q', 'l', '1');
SELECT * FROM locks;
SELECT pg_advisory_unlock_all();
SELECT * FROM locks;
COMMIT;
SELECT * FROM locks;

-- Keys of any bytes and any collation.
SELECT outcome, count(*) FROM generate_series(1, 255) i, LATERAL idemq.acquire('q', 'byte ' || chr(i), to_jsonb(i)) GROUP BY 1;
SELECT count(*) FROM generate_series(1, 255) i, LATERAL idemq.job_by_key('q', 'byte ' || chr(i)) j WHERE j.payload = to_jsonb(i);
SELECT count(*) FROM generate_series(1, 255) i WHERE idemq.cancel_by_key('q', 'byte ' || chr(i)) = 'cancelled';
CREATE TABLE keys (k text COLLATE "POSIX");
INSERT INTO keys VALUES ('rr'), ('col');
SELECT k, (idemq.acquire('q', k)).outcome, idemq.once('s', k) FROM keys ORDER BY 1;
SELECT k, j.status, idemq.cancel_by_key('q', k) FROM keys, idemq.job_by_key('q', k) j ORDER BY 1;
EXPLAIN (COSTS OFF) SELECT * FROM idemq.job_by_key('q', 'a');

-- Bad input.
SELECT idemq.acquire('q', '');
SELECT idemq.acquire('q', repeat('x', 1025));
SELECT idemq.acquire('q', NULL);
SELECT idemq.acquire(NULL, 'k');
SELECT idemq.acquire('nope', 'k');
SELECT idemq.acquire('q', 'k', lease => '0');
SELECT idemq.queue_id('nope');
SELECT idemq.queue_id(NULL);
SELECT idemq.job_by_key('nope', 'k');
SELECT idemq.cancel_by_key('nope', 'k');
SELECT idemq.cancel_by_key('q', '');
SELECT count(*) FROM idemq.job_by_key('q', '');

-- Privileges: claim is enough for what is there; enqueue for what is new.
CREATE ROLE idemq_consumer;
CREATE ROLE idemq_stranger;
GRANT USAGE ON SCHEMA idemq TO idemq_stranger;
SELECT idemq.grant_queue('q', 'idemq_consumer', 'claim');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'p');
SET ROLE idemq_consumer;
SELECT outcome FROM idemq.acquire('q', 'p', '1');
SELECT outcome FROM idemq.acquire('q', 'rr');
SELECT idemq.acquire('q', 'new', '1');
SELECT idemq.cancel_by_key('q', 'p');
SELECT status FROM idemq.job_by_key('q', 'p');
RESET ROLE;
SELECT idemq.grant_queue('q', 'idemq_consumer', 'enqueue');
SET ROLE idemq_consumer;
SELECT outcome FROM idemq.acquire('q', 'new', '1');
SELECT idemq.cancel_by_key('q', 'new');
RESET ROLE;
SELECT idemq.revoke_queue('q', 'idemq_consumer', 'claim');
SET ROLE idemq_consumer;
SELECT idemq.acquire('q', 'p', '1');
SELECT count(*) FROM idemq.job_by_key('q', 'p');
SELECT idemq.queue_id('q') > 0 AS known;
SET ROLE idemq_stranger;
SELECT idemq.acquire('q', 'p', '1');
SELECT idemq.cancel_by_key('q', 'p');
SELECT idemq.job_by_key('q', 'p');
SELECT idemq.queue_id('q');
RESET ROLE;

-- Counters: a job that is made is enqueued; that its key was taken is no duplicate enqueue.
SELECT idemq.create_queue('c');
SELECT outcome FROM idemq.acquire('c', 'k', '1');
SELECT outcome FROM idemq.acquire('c', 'k', '1');
SELECT outcome FROM idemq.enqueue('c', '1', key => 'k');
SELECT count(*) FROM idemq.enqueue_many('c', ARRAY['1', '1', '1']::jsonb[], keys => ARRAY['k', 'l', 'l']);
SELECT running, pending, enqueued_total, duplicates_total, claimed_total FROM idemq.metrics WHERE queue = 'c';
SELECT * FROM idemq.check();
DROP OWNED BY idemq_consumer, idemq_stranger;
DROP OWNED BY idemq_consumer, idemq_stranger;
DROP ROLE idemq_consumer, idemq_stranger;
