-- claim_any, claim_job, commit_once: every outcome.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('a', retry_jitter => 0, lease => '1 h');
SELECT idemq.create_queue('b', lease => '2 h');
SELECT idemq.create_queue('c', lease => '3 h');

-- claim_any: the queues in the order given, as claim, and the queue's name.
SELECT count(idemq.enqueue(q, to_jsonb(q || n), priority => 10 - n)) FROM unnest(ARRAY['a', 'b', 'c']) q, generate_series(1, 3) n;
SELECT queue, payload, attempt, round(extract(epoch FROM deadline - now()) / 3600) AS hours FROM idemq.claim_any(ARRAY['b', 'a'], 4);
SELECT queue, payload FROM idemq.claim_any(ARRAY['a', 'b']);
SELECT queue, payload, round(extract(epoch FROM deadline - now()) / 60) AS minutes FROM idemq.claim_any(ARRAY['a', 'c', 'b', 'c'], 10, lease => '1 min', worker => 'any');
SELECT queue FROM idemq.claim_any(ARRAY['a', 'b', 'c'], 10);
SELECT worker, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;
SELECT * FROM idemq.claim_any('{}', 10);
SELECT * FROM idemq.claim_any(NULL);
SELECT * FROM idemq.claim_any(ARRAY['a', NULL]);
SELECT * FROM idemq.claim_any(ARRAY['a', 'nope']);
SELECT * FROM idemq.claim_any(ARRAY[['a'], ['b']]);
SELECT * FROM idemq.claim_any('[0:1]={a,b}');
SELECT * FROM idemq.claim_any(ARRAY['a'], 0);
SELECT * FROM idemq.claim_any(ARRAY['a'], NULL);
SELECT * FROM idemq.claim_any(ARRAY['a'], lease => '0');
-- A typo is an error also when the first queue fills the call.
SELECT (idemq.enqueue('a', '"x"')).outcome;
SELECT queue FROM idemq.claim_any(ARRAY['a', 'nope']);
SELECT idemq.pause('a');
SELECT queue, payload FROM idemq.claim_any(ARRAY['a', 'b'], 10);
SELECT idemq.resume('a');
SELECT queue, payload FROM idemq.claim_any(ARRAY['a', 'b'], 10);
DELETE FROM idemq.jobs;

-- claim_job: claimed, with the columns of claim.
SELECT id FROM idemq.enqueue('a', '{"n": 1}', key => 'k', headers => '{"h": 1}', max_attempts => 3) \gset
\x on
SELECT outcome, id = :id AS same_id, token > 0 AS token, attempt, max_attempts, round(extract(epoch FROM deadline - now()) / 60) AS lease, payload, key,
	group_key, checkpoint, enqueued_at IS NOT NULL AS enqueued, headers, result, retry_after
FROM idemq.claim_job(:id, lease => '10 min', worker => 'w');
-- locked: nothing but when to ask again, the holder's deadline.
SELECT outcome, id = :id AS same_id, token, attempt, max_attempts, payload, key, checkpoint, enqueued_at, headers, result,
	abs(extract(epoch FROM retry_after - (SELECT deadline FROM idemq.job(:id)))) < 60 AS at_deadline
FROM idemq.claim_job(:id, lease => '1 min', worker => 'w2');
\x off
SELECT worker, attempt, deadline - claimed_at AS lease, token FROM idemq.job(:id) \gset held_
SELECT :'held_worker' AS worker, :held_attempt AS attempt, :'held_lease' AS lease;
-- The deadline that a heartbeat moved.
SELECT idemq.heartbeat(:id, :held_token, '5 h');
SELECT outcome, round(extract(epoch FROM retry_after - now()) / 3600) AS hours FROM idemq.claim_job(:id);
-- claimed_again, with what the attempt before has left.
SELECT idemq.checkpoint(:id, :held_token, '{"step": 1}');
SELECT idemq.fail(:id, :held_token, 'oops', '0');
SELECT outcome, attempt, checkpoint, token > :held_token AS grew FROM idemq.claim_job(:id);
-- completed, with the result.
SELECT idemq.commit(id, token, '{"r": 1}') FROM idemq.job(:id);
SELECT outcome, id = :id AS same_id, token, attempt, payload, result, retry_after FROM idemq.claim_job(:id);
-- completed without one.
SELECT id FROM idemq.enqueue('a', '2') \gset
SELECT idemq.commit_once(:id);
SELECT outcome, result FROM idemq.claim_job(:id);
-- not_due: when it will be.
SELECT id FROM idemq.enqueue('a', '3', delay => '2 h') \gset
SELECT outcome, token, payload, round(extract(epoch FROM retry_after - now()) / 3600) AS hours FROM idemq.claim_job(:id);
SELECT status, attempt FROM idemq.job(:id);
-- of a retrying job too
SELECT id FROM idemq.enqueue('a', '4') \gset
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.fail(:id, :token, retry_in => '3 h');
SELECT outcome, round(extract(epoch FROM retry_after - now()) / 3600) AS hours FROM idemq.claim_job(:id);
-- of a paused queue, of which nobody knows
SELECT id FROM idemq.enqueue('a', '5') \gset
SELECT idemq.pause('a');
SELECT outcome, retry_after FROM idemq.claim_job(:id);
SELECT idemq.commit_once(:id);
SELECT idemq.resume('a');
SELECT outcome FROM idemq.claim_job(:id);
-- dead, cancelled, blocked, not_found
SELECT idemq.fail(id, token, permanent => true) FROM idemq.job(:id);
SELECT outcome, id = :id AS same_id, token, result, retry_after FROM idemq.claim_job(:id);
SELECT idemq.retry(:id), idemq.cancel(:id);
SELECT outcome, id = :id AS same_id, token FROM idemq.claim_job(:id);
UPDATE idemq.jobs SET status = 'blocked', ready_at = NULL, finished_at = NULL WHERE id = :id;
SELECT outcome, id = :id AS same_id, token FROM idemq.claim_job(:id);
SELECT outcome, id, token FROM idemq.claim_job(:id + 1000);
SELECT outcome, id, token FROM idemq.claim_job(-1);
SELECT * FROM idemq.claim_job(NULL);
SELECT * FROM idemq.claim_job(1, lease => '0');
SELECT * FROM idemq.claim_job(1, lease => '-1 s');
SELECT * FROM idemq.claim_job(1, worker => '');
SELECT * FROM idemq.claim_job(1, attach => NULL);
-- The lease is over: it is taken back, and claimed.
SELECT id FROM idemq.enqueue('a', '6') \gset
-- meant to expire
SELECT token FROM idemq.claim_job(:id, lease => '1 ms') \gset
SELECT pg_sleep(0.005);
SELECT outcome, attempt FROM idemq.claim_job(:id);
SELECT attempt, outcome, error FROM idemq.attempts WHERE job_id = :id;
-- The last one was over: dead.
SELECT id FROM idemq.enqueue('a', '7', max_attempts => 1) \gset
-- meant to expire
SELECT token FROM idemq.claim_job(:id, lease => '1 ms') \gset
SELECT pg_sleep(0.005);
SELECT outcome, attempt FROM idemq.claim_job(:id);
SELECT status, last_error FROM idemq.job(:id);
-- Expired before it was claimed: cancelled.
-- meant to expire
SELECT id FROM idemq.enqueue('a', '8', expires_in => '1 ms') \gset
SELECT pg_sleep(0.005);
SELECT outcome, attempt FROM idemq.claim_job(:id);
SELECT status FROM idemq.job(:id);
-- It passes by those who wait in front of it.
DELETE FROM idemq.jobs;
SELECT count(idemq.enqueue('a', to_jsonb(g))) FROM generate_series(1, 5) g;
SELECT outcome, c.payload FROM idemq.jobs j, LATERAL idemq.claim_job(j.id) c WHERE j.payload = '3';
SELECT string_agg(payload::text, ' ') FROM idemq.claim('a', 10);
DELETE FROM idemq.jobs;

-- commit_once: pending -> completed, in one call.
SELECT id FROM idemq.enqueue('a', '1', key => 'once') \gset
SELECT idemq.commit_once(:id, '{"r": 1}');
SELECT status, attempt, token > 0 AS token, ready_at, claimed_at, finished_at IS NOT NULL AS finished, worker, result FROM idemq.job(:id);
SELECT idemq.commit_once(:id, '{"r": 2}');
SELECT result FROM idemq.job(:id);
SELECT idemq.try_commit(id, token) AS by_its_token FROM idemq.job(:id);
SELECT outcome, status, result FROM idemq.enqueue('a', '1', key => 'once');
SELECT count(*) FROM idemq.claim('a', 10);
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;
-- Of one that failed before, of one that is not due, claimed, dead, cancelled, blocked, missing.
SELECT id FROM idemq.enqueue('a', '2') \gset
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.commit_once(:id);
SELECT idemq.fail(:id, :token, retry_in => '1 h');
SELECT idemq.commit_once(:id);
SELECT idemq.retry(:id);
SELECT idemq.commit_once(:id);
SELECT status, attempt, token > :token AS grew FROM idemq.job(:id);
SELECT idemq.try_commit(:id, :token) AS by_the_old_token;
SELECT id FROM idemq.enqueue('a', '3', max_attempts => 1) \gset
SELECT idemq.fail(id, token) FROM idemq.claim_job(:id);
SELECT idemq.commit_once(:id);
SELECT idemq.retry(:id), idemq.cancel(:id), idemq.commit_once(:id);
UPDATE idemq.jobs SET status = 'blocked', ready_at = NULL, finished_at = NULL WHERE id = :id;
SELECT idemq.commit_once(:id);
SELECT idemq.commit_once(0);
SELECT idemq.commit_once(NULL);
-- meant to expire
SELECT id FROM idemq.enqueue('a', '4', expires_in => '1 ms') \gset
SELECT pg_sleep(0.005);
SELECT idemq.commit_once(:id);
-- Twice in a transaction that ends twice: the effect once.
CREATE TABLE effects (id bigint);
SELECT id FROM idemq.enqueue('a', '5') \gset
BEGIN;
INSERT INTO effects SELECT :id WHERE idemq.commit_once(:id) = 'committed';
ROLLBACK;
BEGIN;
INSERT INTO effects SELECT :id WHERE idemq.commit_once(:id) = 'committed';
INSERT INTO effects SELECT :id WHERE idemq.commit_once(:id) = 'committed';
COMMIT;
INSERT INTO effects SELECT :id WHERE idemq.commit_once(:id) = 'committed';
SELECT count(*) FROM effects;
-- Without retention the row goes.
SELECT idemq.alter_queue('a', retention => '0');
SELECT id FROM idemq.enqueue('a', '6') \gset
SELECT idemq.commit_once(:id), idemq.commit_once(:id);
SELECT count(*) FROM idemq.job(:id);

-- expires_in is for jobs that nobody has claimed: one that has failed is claimed though its time is over.
SELECT idemq.create_queue('late', lease => '1 h', retry_jitter => 0) > 0 AS made;
SELECT id FROM idemq.enqueue('late', '1', expires_in => '1 h') \gset
SELECT outcome FROM idemq.claim_job(:id);
SELECT idemq.fail(id, token, 'once', '0') FROM idemq.jobs WHERE id = :id;
UPDATE idemq.jobs SET expires_at = clock_timestamp() WHERE id = :id;
SELECT status, expires_at < clock_timestamp() AS over FROM idemq.jobs WHERE id = :id;
SELECT outcome, attempt FROM idemq.claim_job(:id);
SELECT idemq.fail(id, token, 'twice', '0') FROM idemq.jobs WHERE id = :id;
SELECT id = :id AS same, attempt FROM idemq.claim('late');
