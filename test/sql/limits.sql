-- max_running and rate_limit: in one session.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
CREATE FUNCTION permits(queue text DEFAULT 'q') RETURNS int
	RETURN (SELECT permits_used FROM idemq.metrics m WHERE m.queue = $1);
-- A queue anew, with n jobs 1 to n as payloads.
CREATE PROCEDURE fresh(settings text, n int DEFAULT 5) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq.drop_queue(name, force => true) FROM idemq.queues;
	EXECUTE format('SELECT idemq.create_queue(''q'', lease => ''1 h'', retry_jitter => 0, %s)', settings);
	COMMIT;
	PERFORM idemq.enqueue('q', to_jsonb(i)) FROM generate_series(1, n) i;
END $$;
CREATE TEMP TABLE held (id bigint, token bigint, payload jsonb);
-- Claims, and says what came.
CREATE FUNCTION take(n int DEFAULT 1) RETURNS jsonb LANGUAGE sql AS $$
	WITH c AS MATERIALIZED (SELECT id, token, payload FROM idemq.claim('q', n)),
		h AS (INSERT INTO held SELECT * FROM c)
	SELECT jsonb_agg(payload) FROM c $$;
-- Commits the first n of what is held.
CREATE FUNCTION finish(n int DEFAULT 1) RETURNS SETOF idemq.outcome LANGUAGE sql AS $$
	WITH d AS (DELETE FROM held WHERE id IN (SELECT id FROM held ORDER BY id LIMIT n) RETURNING id, token)
	SELECT m.outcome FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM d) d, idemq.commit_many(ids, tokens) m $$;

-- The limit is that of running jobs.
CALL fresh('max_running => 2');
SELECT take(5), permits();
SELECT take(5), count(*) FROM idemq.claim_any('{q}', 5);
SELECT (c).outcome, (c).retry_after, (c).id IS NOT NULL AS id FROM (SELECT idemq.claim_job(max(id)) AS c FROM idemq.jobs) _;
SELECT idemq.commit_once(max(id)) FROM idemq.jobs;
SELECT (a).outcome, (a).retry_after FROM (SELECT idemq.acquire('q', 'k', '6') AS a) _;
SELECT regexp_replace(idemq.why(max(id)), 'job \d+', 'job n') FROM idemq.jobs WHERE status = 'pending';
SELECT queue, running, pending, permits_used, max_running FROM idemq.metrics;
-- Each way to end an attempt makes room.
SELECT finish();
SELECT take(5), permits();
SELECT idemq.fail(id, token, retry_in => '1 h') FROM held ORDER BY id LIMIT 1;
DELETE FROM held WHERE id = (SELECT min(id) FROM held);
SELECT take(5), permits();
SELECT idemq.release(id, token, delay => '1 h') FROM held ORDER BY id LIMIT 1;
DELETE FROM held WHERE id = (SELECT min(id) FROM held);
SELECT take(5), permits();
SELECT idemq.cancel(min(id)) FROM held;
DELETE FROM held WHERE id = (SELECT min(id) FROM held);
SELECT take(5), permits();
SELECT count(idemq.enqueue('q', to_jsonb(i))) FROM generate_series(7, 9) i;
SELECT idemq.fail(id, token, permanent => true) FROM held ORDER BY id LIMIT 1;
DELETE FROM held WHERE id = (SELECT min(id) FROM held);
SELECT take(5), permits();
SELECT idemq.heartbeat(min(id), (array_agg(token ORDER BY id))[1], '1 us') FROM held;
DELETE FROM held WHERE id = (SELECT min(id) FROM held);
SELECT pg_sleep(0.002);
SELECT take(5), permits();
UPDATE idemq.jobs SET status = 'pending' WHERE id = (SELECT min(id) FROM held);
DELETE FROM held WHERE id = (SELECT min(id) FROM held);
SELECT permits();
DELETE FROM idemq.jobs WHERE id = (SELECT max(id) FROM held);
SELECT permits(), (SELECT count(*) FROM idemq.jobs WHERE status = 'running') AS running;
TRUNCATE held;
-- commit_once, acquire and claim_job are let by again.
SELECT idemq.commit_once(max(id)), permits() FROM idemq.jobs WHERE status = 'pending';
SELECT (a).outcome FROM (SELECT idemq.acquire('q', 'k') AS a) _;
SELECT permits();

-- What a transaction ends, it may replace; by its end either way the count is right.
CALL fresh('max_running => 2', 8);
SELECT take(5);
BEGIN;
SELECT finish(), permits();
SELECT take(5), permits();
SELECT take(5);
COMMIT;
SELECT permits(), take();
BEGIN;
SELECT finish(2);
SELECT take(5), permits();
ROLLBACK;
SELECT permits(), take(), (SELECT count(*) FROM idemq.jobs WHERE status = 'running') AS running;
-- Savepoints: what is ended in one that is rolled back makes no room.
BEGIN;
SAVEPOINT a;
SELECT finish();
SELECT take(5), permits();
ROLLBACK TO a;
SELECT take(5), permits();
SELECT finish();
SAVEPOINT b;
SELECT take(5);
ROLLBACK TO b;
SELECT take(5);
RELEASE b;
SELECT take(5), permits();
COMMIT;
SELECT permits(), (SELECT count(*) FROM idemq.jobs WHERE status = 'running') AS running;
-- The same job again: ended and claimed, over and over.
BEGIN;
SELECT idemq.release(id, token), permits() FROM held ORDER BY id LIMIT 1;
DELETE FROM held WHERE id = (SELECT min(id) FROM held);
SELECT id, token FROM held \gset other_
SELECT id, token FROM idemq.claim('q') \gset
SELECT idemq.release(:id, :token), permits();
SELECT c.outcome FROM idemq.claim_job(:id) c;
SELECT permits(), take();
SELECT idemq.commit(:other_id, :other_token);
SELECT count(*) AS one FROM idemq.claim('q', 5);
SELECT count(*) AS none FROM idemq.claim('q', 5);
COMMIT;
SELECT permits(), (SELECT count(*) FROM idemq.jobs WHERE status = 'running') AS running;
TRUNCATE held;
-- Many commit_once in one transaction are one after the other.
CALL fresh('max_running => 1');
BEGIN;
SELECT idemq.commit_once(id) FROM idemq.jobs ORDER BY id;
SELECT permits();
ROLLBACK;
SELECT permits();
SELECT idemq.commit_once(id), permits() FROM idemq.jobs ORDER BY id;
-- Claimed and committed in one transaction, again and again.
CALL fresh('max_running => 1');
DO $$
BEGIN
	FOR i IN 1 .. 5 LOOP
		ASSERT (SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 5)) = 1;
	END LOOP;
END $$;
SELECT status, count(*), permits() FROM idemq.jobs GROUP BY status;
-- REPEATABLE READ.
CALL fresh('max_running => 2');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT take(5);
SELECT take(5);
SELECT finish();
SELECT take(5), permits();
COMMIT;
SELECT permits();
TRUNCATE held;

-- Lowered below what runs: nothing is taken away, claims wait.  0: no limit.
CALL fresh('max_running => 4');
SELECT take(5);
SELECT idemq.alter_queue('q', max_running => 2);
BEGIN;
SELECT finish(2);
SELECT take(5);
COMMIT;
SELECT finish(1);
SELECT take(5), permits();
SELECT idemq.alter_queue('q');
SELECT max_running FROM idemq.queues;
SELECT idemq.alter_queue('q', max_running => 0);
SELECT max_running FROM idemq.queues;
SELECT count(idemq.enqueue('q', to_jsonb(i))) FROM generate_series(6, 9) i;
SELECT take(5), permits();
-- A limit that is set finds what runs.
SELECT idemq.alter_queue('q', max_running => 6);
SELECT take(5), permits();
SELECT finish(1);
SELECT count(idemq.enqueue('q', '10'));
SELECT take(5), permits();
-- In one transaction with the claim.
BEGIN;
SELECT idemq.alter_queue('q', max_running => 1);
SELECT take(5);
ROLLBACK;
TRUNCATE held;
-- A hand-made row counts as well; claims wait for it.
CALL fresh('max_running => 1');
SELECT idemq.reap('q');
UPDATE idemq.jobs SET status = 'running', token = 7, attempt = 1, claimed_at = now(), deadline = now() + interval '1 h'
WHERE id IN (SELECT id FROM idemq.jobs ORDER BY id LIMIT 2);
SELECT take(5), permits();
SELECT idemq.commit(min(id), 7) FROM idemq.jobs;
SELECT take(5), permits();
SELECT idemq.commit(max(id), 7) FROM idemq.jobs WHERE status = 'running';
SELECT take(5), permits();
TRUNCATE held;
SELECT * FROM idemq.check();

-- rate_limit: so many claims in a period, and a rollback gives nothing back.
CALL fresh('rate_limit => 3, rate_period => ''1 h''', 8);
SELECT take(2);
BEGIN;
SELECT take(5);
ROLLBACK;
SELECT take(5);
SELECT (c).outcome, (c).retry_after - now() BETWEEN '59 min' AND '64 min' AS in_an_hour FROM (SELECT idemq.claim_job(max(id)) AS c FROM idemq.jobs) _;
SELECT idemq.commit_once(max(id)) FROM idemq.jobs;
SELECT (a).outcome, (a).retry_after > now() AS later FROM (SELECT idemq.acquire('q', 'k', '6') AS a) _;
SELECT regexp_replace(idemq.why(max(id)), 'at 20.*', 'at ...') FROM idemq.jobs WHERE status = 'pending';
CALL idemq.wait('q', '1 ms'); -- meant to expire
-- alter_queue takes effect at once, whatever was used up before.
SELECT idemq.alter_queue('q', rate_limit => 1000, rate_period => '1 s'); -- meant to expire
SELECT take(5);
SELECT pg_sleep(0.1);
SELECT take(5);
SELECT idemq.alter_queue('q', rate_limit => 1, rate_period => '1 h');
SELECT count(idemq.enqueue('q', '9'));
SELECT take(5);
SELECT idemq.alter_queue('q', rate_limit => 0);
SELECT rate_limit, rate_period FROM idemq.queues;
SELECT take(5);
-- A call that takes nothing uses no token; commit_once uses one.
CALL fresh('rate_limit => 1, rate_period => ''1 h''', 0);
SELECT take(5), take(5);
SELECT count(idemq.enqueue('q', to_jsonb(i))) FROM generate_series(1, 2) i;
SELECT idemq.commit_once(min(id)), idemq.commit_once(max(id)) FROM idemq.jobs;
-- Both limits.
CALL fresh('max_running => 1, rate_limit => 2, rate_period => ''1 h''');
TRUNCATE held;
SELECT take(5);
SELECT take(5);
SELECT finish();
SELECT take(5);
SELECT finish();
SELECT take(5), permits();
-- A claim of several jobs ends at a limit, although a lower priority has ready jobs of other groups.
SET statement_timeout = '1 min';
CALL fresh('group_max_running => 2, max_running => 1', 0);
TRUNCATE held;
SELECT count(idemq.enqueue('q', to_jsonb(i), group_key => 'g' || i, priority => i)) FROM generate_series(1, 3) i;
SELECT take(5), permits();
SELECT finish();
SELECT take(5);
CALL fresh('group_max_running => 2, rate_limit => 1, rate_period => ''1 h''', 0);
SELECT count(idemq.enqueue('q', to_jsonb(i), group_key => 'g' || i, priority => i)) FROM generate_series(1, 3) i;
SELECT take(5);
SELECT take(5);
RESET statement_timeout;
-- As long as there may be.
CALL fresh('max_running => 2147483647, rate_limit => 2147483647, rate_period => ''1000 years''');
SELECT take(5), permits();
SELECT * FROM idemq.check();
DROP EXTENSION idemq CASCADE;
