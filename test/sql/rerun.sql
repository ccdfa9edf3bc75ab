-- on_duplicate => 'rerun': a request whose job is in progress, or finished, makes it run once more.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 2, idempotency_window => '1 day');
CREATE VIEW row AS SELECT status, attempt, payload, headers, checkpoint, result, rerun_payload, rerun_headers, rerun_at IS NOT NULL AS asked FROM idemq.jobs ORDER BY id;
CREATE FUNCTION ask(payload jsonb, key text DEFAULT 'k', group_key text DEFAULT NULL, headers jsonb DEFAULT NULL) RETURNS TABLE (outcome idemq.outcome, status idemq.status, result jsonb)
	LANGUAGE sql AS $$ SELECT e.outcome, e.status, e.result FROM idemq.enqueue('q', ask.payload, key => ask.key, group_key => ask.group_key, headers => ask.headers, on_duplicate => 'rerun') e $$;

-- The first is a job; one that waits takes the newest payload, as with replace.
SELECT * FROM ask('1');
SELECT * FROM ask('2', headers => '"h2"');
SELECT * FROM row;

-- In progress it remembers the newest request, and its worker is not disturbed.
SELECT id, token FROM idemq.claim('q') \gset
SELECT idemq.checkpoint(:id, :token, '"half"');
SELECT * FROM ask('3');
SELECT * FROM ask('4', headers => '"h4"');
SELECT * FROM row;
SELECT idemq.validate(:id, :token), idemq.heartbeat(:id, :token);
SELECT idemq.why(:id) LIKE '%; it will then run once more%' AS why;
SELECT idemq.commit(:id, :token, '"did 2"');
SELECT * FROM row;
-- A repeated commit is told that it is one, now and after the next claim.
SELECT idemq.try_commit(:id, :token);
SELECT idemq.commit(:id, :token);
SELECT idemq.heartbeat(:id, :token), idemq.validate(:id, :token);
SELECT attempt, outcome, error, details, ended_at IS NOT NULL AS ended FROM idemq.attempts WHERE token = :token;
\set first_token :token
SELECT id = :id AS same, token > :token AS newer, attempt, payload, headers, checkpoint, token FROM idemq.claim('q') \gset again_
\echo :again_same :again_newer :again_attempt :again_payload :again_headers :again_checkpoint
SELECT idemq.try_commit(:id, :first_token);
SELECT idemq.commit(:id, :again_token, '"did 4"');
SELECT * FROM row;

-- Finished, it is made ready.
SELECT * FROM ask('5');
SELECT * FROM row;
SELECT outcome, details FROM idemq.attempts ORDER BY token;
-- So is one that was cancelled, or is dead.
SELECT idemq.cancel(:id);
SELECT * FROM ask('6');
SELECT idemq.fail(id, token, 'no', permanent => true) FROM idemq.claim('q');
SELECT * FROM ask('7');
SELECT * FROM row;
-- A retrying one keeps its attempts and its time, and takes the payload.
SELECT idemq.fail(id, token, 'no', retry_in => '1 h') FROM idemq.claim('q');
SELECT * FROM ask('8');
SELECT * FROM row;
SELECT ready_at > now() + interval '50 min' AS waits FROM idemq.jobs;

-- Whatever ends the attempt serves the request, as if it had come after.
SELECT idemq.retry(:id);
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.checkpoint(:id, :token, '"half"');
SELECT outcome, status FROM ask('9');
SELECT idemq.fail(:id, :token, 'dead');
SELECT * FROM row;
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.checkpoint(:id, :token, '"half"');
SELECT outcome, status FROM ask('10');
SELECT idemq.release(:id, :token);
SELECT * FROM row;
SELECT token FROM idemq.claim('q') \gset
SELECT outcome, status FROM ask('11');
SELECT idemq.fail(:id, :token, 'again', retry_in => '0');
SELECT * FROM row;
-- The last attempt is lost: it would be dead.
SELECT token FROM idemq.claim('q') \gset
SELECT outcome, status FROM ask('12');
SELECT idemq.heartbeat(:id, :token, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.01), idemq.reap('q') >= 0 AS reaped;
SELECT * FROM row;
SELECT token FROM idemq.claim('q') \gset
SELECT outcome, status FROM ask('13');
SELECT idemq.heartbeat(:id, :token, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.01), idemq.reap('q') >= 0 AS reaped;
SELECT * FROM row;
-- A cancel drops it: it ends what was asked before.
SELECT token FROM idemq.claim('q') \gset
SELECT outcome, status FROM ask('14');
SELECT idemq.cancel(:id);
SELECT * FROM row;
SELECT idemq.check();
SELECT idemq.purge('q');

-- A request that is rolled back was none; a commit that is rolled back serves none.
SELECT outcome FROM ask('1');
SELECT id, token FROM idemq.claim('q') \gset
BEGIN;
SELECT outcome, status FROM ask('2');
ROLLBACK;
SELECT * FROM row;
SELECT outcome, status FROM ask('3');
BEGIN;
SELECT idemq.commit(:id, :token);
SELECT * FROM row;
SELECT idemq.claim('q') IS NULL AS claimed_in_it;
ROLLBACK;
SELECT * FROM row;
-- All in one transaction.
BEGIN;
SELECT idemq.commit(:id, :token);
SELECT outcome, status FROM ask('4');
SELECT token AS second FROM idemq.claim('q') \gset
SELECT outcome, status FROM ask('5');
SELECT idemq.commit(:id, :second, '"4"');
COMMIT;
SELECT * FROM row;
SELECT outcome, count(*) FROM idemq.attempts WHERE job_id = :id GROUP BY 1;
-- Its time is that of the request.
SELECT token FROM idemq.claim('q') \gset
SELECT outcome, status FROM idemq.enqueue('q', '6', key => 'k', delay => '1 h', on_duplicate => 'rerun');
SELECT idemq.commit(:id, :token);
SELECT status, ready_at > now() + interval '50 min' AS waits FROM idemq.jobs;
SELECT idemq.check();
SELECT idemq.purge('q');

-- A stream of requests with a delay does not postpone the job: of their times the earliest holds.
CREATE FUNCTION later(delay interval, key text DEFAULT 'k', group_key text DEFAULT NULL, on_duplicate text DEFAULT 'rerun') RETURNS text
	LANGUAGE sql AS $$ SELECT e.outcome || ', ' || e.status FROM idemq.enqueue('q', to_jsonb(delay), key => later.key, group_key => later.group_key, delay => later.delay, on_duplicate => later.on_duplicate) e $$;
CREATE VIEW due AS SELECT key, status, payload, round(extract(epoch FROM coalesce(ready_at, run_at) - now()) / 60) AS minutes, round(extract(epoch FROM rerun_at - now()) / 60) AS again FROM idemq.jobs ORDER BY id;
SELECT later('10 min'), later('30 min');
SELECT * FROM due;
SELECT later('5 min'), later('20 min');
SELECT * FROM due;
-- Only replace restarts its time.
SELECT later('40 min', on_duplicate => 'replace');
SELECT * FROM due;
-- By SQL, as a trigger of the user's has it.
CREATE FUNCTION own() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER own BEFORE UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION own();
SELECT later('50 min');
SELECT * FROM due;
SELECT later('15 min'), later('0');
SELECT status, payload, ready_at <= now() AS due FROM idemq.jobs;
DROP TRIGGER own ON idemq.jobs;
SELECT later('1 h');
SELECT id, token FROM idemq.claim('q') \gset
-- The same while it runs.
SELECT later('10 min'), later('30 min');
SELECT * FROM due;
SELECT later('5 min');
SELECT idemq.commit(:id, :token);
SELECT later('1 h');
SELECT * FROM due;
-- And of a group: its head, and those behind it; without a delay is at once.
SELECT later('10 min', 'head', 'g'), later('10 min', 'second', 'g');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'third', group_key => 'g');
SELECT count(*) FROM idemq.claim('q');
SELECT later('30 min', 'head', 'g'), later('30 min', 'second', 'g'), later('30 min', 'third', 'g');
SELECT * FROM due;
SELECT later('5 min', 'head', 'g'), later('5 min', 'second', 'g');
SELECT * FROM due;
SELECT idemq.check();
SELECT count(idemq.cancel(id)) FROM idemq.jobs;
SELECT idemq.purge('q');
DROP VIEW due;

-- In a group it has its place by its id again: before those that came after it.
SELECT outcome FROM ask('1', 'a', 'g');
SELECT outcome FROM ask('1', 'b', 'g');
SELECT id, token FROM idemq.claim('q') \gset
SELECT outcome, status FROM ask('2', 'a', 'g');
SELECT idemq.commit(:id, :token);
SELECT key, status, payload FROM idemq.jobs ORDER BY id;
SELECT key, payload, id, token FROM idemq.claim('q') \gset
\echo :key :payload
SELECT idemq.commit(:id, :token);
SELECT key, payload, id, token FROM idemq.claim('q') \gset
\echo :key :payload
SELECT outcome, status FROM ask('3', 'a', 'g');
SELECT key, status, payload FROM idemq.jobs ORDER BY id;
SELECT idemq.commit(:id, :token);
SELECT key, payload FROM idemq.claim('q');
SELECT idemq.check();
SELECT idemq.purge('q');

-- Of many; a key twice in one batch.
SELECT * FROM (SELECT outcome, status FROM idemq.enqueue_many('q', '{1,2,3}', keys => '{x,y,x}', on_duplicate => 'rerun')) x;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT * FROM (SELECT ord, outcome, status FROM idemq.enqueue_many('q', '{4,5,6}', keys => '{x,y,x}', on_duplicate => 'rerun')) x ORDER BY ord;
SELECT count(idemq.commit(id, token)) FROM idemq.jobs WHERE status = 'running';
SELECT key, status, payload FROM idemq.jobs ORDER BY key;
CALL idemq.enqueue_job('q', '7', key => 'x', on_duplicate => 'rerun');
SELECT idemq.enqueue('q', '7', key => 'x', on_duplicate => 'again');
SELECT idemq.check();

-- Requests and reruns are counted; the dead-letter queue has its copy of a death that was served.
SELECT idemq.create_queue('letters');
SELECT idemq.create_queue('dying', max_attempts => 1, dead_letter_queue => 'letters');
SELECT outcome FROM idemq.enqueue('dying', '1', key => 'k');
SELECT id, token FROM idemq.claim('dying') \gset
SELECT outcome FROM idemq.enqueue('dying', '2', key => 'k', on_duplicate => 'rerun');
SELECT idemq.fail(:id, :token, 'dead');
SELECT payload->'payload' AS payload, payload->>'last_error' AS error FROM idemq.claim('letters');
SELECT queue, pending, dead, enqueued_total, duplicates_total, reruns_total, dead_total FROM idemq.metrics WHERE queue = 'dying';
-- A user's trigger: the long way by SQL.
CREATE FUNCTION nop() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER nop BEFORE UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION nop();
SELECT token FROM idemq.claim('dying') \gset
SELECT outcome, status FROM idemq.enqueue('dying', '3', key => 'k', on_duplicate => 'rerun', headers => '1');
SELECT idemq.commit(:id, :token, '"2"');
SELECT status, payload, headers, result FROM idemq.jobs WHERE id = :id;
SELECT token FROM idemq.claim('dying') \gset
SELECT idemq.commit(:id, :token, '"3"');
SELECT outcome, status, result FROM idemq.enqueue('dying', '4', key => 'k', on_duplicate => 'rerun');
DROP TRIGGER nop ON idemq.jobs;
-- Payloads that are stored out of line.
SELECT token FROM idemq.claim('dying') \gset
SELECT outcome FROM idemq.enqueue('dying', to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 1000) n)), key => 'k', on_duplicate => 'rerun');
SELECT idemq.commit(:id, :token);
SELECT length(payload::text), rerun_payload FROM idemq.jobs WHERE id = :id;
SELECT token FROM idemq.claim('dying') \gset
SELECT outcome FROM idemq.enqueue('dying', to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 2000) n)), key => 'k', on_duplicate => 'rerun');
SELECT idemq.release(:id, :token);
SELECT length(payload::text), rerun_payload FROM idemq.jobs WHERE id = :id;
-- What was asked for is not said of the payload before: a checkpoint that a released job
-- kept, the time by which the first request was to be claimed.
SELECT idemq.create_queue('other', lease => '1 h');
SELECT id FROM idemq.enqueue('other', '1', key => 'k', expires_in => '1 h') \gset
SELECT token FROM idemq.claim('other') \gset
SELECT idemq.checkpoint(:id, :token, '"half"'), idemq.release(:id, :token);
SELECT outcome, status FROM idemq.enqueue('other', '2', key => 'k', expires_in => '1 h', on_duplicate => 'rerun');
SELECT payload, checkpoint FROM idemq.jobs WHERE id = :id;
SELECT token FROM idemq.claim('other') \gset
UPDATE idemq.jobs SET expires_at = now() - interval '1 h' WHERE id = :id;
SELECT outcome, status FROM idemq.enqueue('other', '3', key => 'k', on_duplicate => 'rerun');
SELECT idemq.release(:id, :token);
SELECT id = :id AS same, payload FROM idemq.claim('other');
SELECT status, expires_at FROM idemq.jobs WHERE id = :id;
SELECT idemq.check();
DROP FUNCTION ask;
DROP VIEW row;
DROP EXTENSION idemq;
