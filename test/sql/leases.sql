-- release, heartbeat, validate, assert_current, checkpoint, reap.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 3) AS q \gset
SELECT idemq.create_queue('p', lease => '1 h') AS p \gset

-- release: back in its queue, now or later, and the attempt is not counted.
SELECT (idemq.enqueue('q', '1', run_at => '2001-01-01')).id \gset
SELECT token FROM idemq.claim('q', worker => 'w') \gset
SELECT idemq.release(:id, :token);
SELECT status, attempt, ready_at > now() - interval '1 min' AS ready_now, finished_at, last_error FROM idemq.job(:id);
SELECT idemq.release(:id, :token), idemq.try_commit(:id, :token), idemq.validate(:id, :token);
-- However often: max_attempts is not used up.
DO $$
BEGIN
	FOR i IN 1 .. 10 LOOP
		PERFORM idemq.release(id, token) FROM idemq.claim('q');
	END LOOP;
END $$;
SELECT token, attempt FROM idemq.claim('q') \gset
SELECT :attempt AS attempt, idemq.release(:id, :token, delay => '1 h');
SELECT status, ready_at > now() + interval '59 min' AS later FROM idemq.job(:id);
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.retry(:id);
-- After a failed one, the number is again that of the next.
SELECT idemq.fail(id, token, 'one', '0') FROM idemq.claim('q');
SELECT attempt, idemq.release(id, token, '0') FROM idemq.claim('q');
SELECT status, attempt, last_error FROM idemq.job(:id);
SELECT attempt, token FROM idemq.claim('q') \gset
SELECT :attempt AS attempt, idemq.commit(:id, :token);
SELECT idemq.release(:id, :token);
SELECT idemq.release(NULL, 1);
SELECT idemq.release(1, NULL);
SELECT idemq.release(:id, :token, '-1 s');
SELECT idemq.release(0, 0);

-- heartbeat: the lease begins again from now; the row keeps the deadline of the claim.
SELECT (idemq.enqueue('q', '2')).id \gset
-- meant to expire
SELECT token, deadline FROM idemq.claim('q', lease => '1 ms') \gset
SELECT pg_sleep(0.005);
SELECT idemq.validate(:id, :token);
SELECT idemq.heartbeat(:id, :token, '1 h');
SELECT idemq.validate(:id, :token), deadline = :'deadline' AS of_the_claim FROM idemq.job(:id);
SELECT round(extract(epoch FROM retry_after - now()) / 60) FROM idemq.claim_job(:id);
SELECT idemq.reap('q');
-- By default its own length, which is the last one named.
SELECT idemq.heartbeat(:id, :token, '2 h'), idemq.heartbeat(:id, :token);
SELECT round(extract(epoch FROM retry_after - now()) / 60) FROM idemq.claim_job(:id);
-- Shorter, too.
SELECT idemq.heartbeat(:id, :token, '1 ms'); -- meant to expire
SELECT pg_sleep(0.005);
SELECT idemq.validate(:id, :token), idemq.reap('q'), idemq.heartbeat(:id, :token), idemq.validate(:id, :token);
SELECT idemq.heartbeat(:id, :token - 1), idemq.heartbeat(:id + 100, :token), idemq.heartbeat(0, 0), idemq.heartbeat(-1, -1);
SELECT idemq.heartbeat(NULL, 1);
SELECT idemq.heartbeat(1, NULL);
SELECT idemq.heartbeat(1, 1, '0');
SELECT idemq.heartbeat(1, 1, '-1 h');
SELECT idemq.heartbeat(1, 1, '2000 years');
-- While the claim is open, and in a read-only transaction.
BEGIN;
-- meant to expire
SELECT token FROM idemq.claim('q', lease => '1 ms') \gset
SELECT idemq.heartbeat(:id, :token, '3 h'), idemq.validate(:id, :token);
SELECT pg_sleep(0.005);
SELECT idemq.validate(:id, :token);
COMMIT;
SELECT round(extract(epoch FROM retry_after - now()) / 60) FROM idemq.claim_job(:id);
BEGIN READ ONLY;
SELECT idemq.heartbeat(:id, :token, '4 h'), idemq.validate(:id, :token);
SAVEPOINT a;
SELECT idemq.commit(:id, :token);
ROLLBACK TO a;
SELECT count(*) FROM idemq.claim('q');
ROLLBACK TO a;
SELECT idemq.enqueue('q', '1');
COMMIT;
SELECT round(extract(epoch FROM retry_after - now()) / 60) FROM idemq.claim_job(:id);
-- A lease begins at the claim's commit: a long transaction is not born expired.
SELECT (idemq.enqueue('q', '3')).id AS long \gset
BEGIN;
SELECT token AS long_token FROM idemq.claim_job(:long, lease => '1 h') \gset
SELECT pg_sleep(0.05);
SELECT clock_timestamp() AS committing \gset
COMMIT;
SELECT deadline >= :'committing'::timestamptz + interval '1 h' AS from_the_commit FROM idemq.running_jobs WHERE job_id = :long;
SELECT idemq.validate(:long, :long_token), idemq.reap('q'), idemq.commit(:long, :long_token);

-- validate tells, and changes nothing.
SELECT xmin AS version FROM idemq.jobs WHERE id = :id \gset
SELECT idemq.validate(:id, :token), idemq.validate(:id, :token - 1), idemq.validate(0, :token);
SELECT idemq.validate(NULL, 1);
SELECT idemq.validate(1, NULL);
SELECT xmin = :'version' AS untouched FROM idemq.jobs WHERE id = :id;

-- checkpoint: kept for the next attempt.
SELECT idemq.checkpoint(:id, :token, '{"step": 1}');
SELECT idemq.checkpoint(:id, :token, '{"step": 2}');
SELECT status, attempt, token = :token AS same_token, checkpoint FROM idemq.job(:id);
SELECT idemq.checkpoint(:id, :token - 1, '{"step": 9}');
SELECT idemq.checkpoint(0, :token, '{"step": 9}');
SELECT idemq.checkpoint(:id, :token, NULL);
SELECT idemq.checkpoint(NULL, :token, '1');
SELECT idemq.checkpoint(:id, NULL, '1');
SELECT idemq.fail(:id, :token, retry_in => '0');
SELECT idemq.checkpoint(:id, :token, '{"step": 9}');
SELECT token, attempt, checkpoint FROM idemq.claim_job(:id) \gset
SELECT :attempt AS attempt, :'checkpoint' AS checkpoint;
SELECT idemq.checkpoint(:id, :token, 'null');
SELECT checkpoint, idemq.release(id, token) FROM idemq.job(:id);
SELECT token, checkpoint FROM idemq.claim_job(:id) \gset
SELECT idemq.checkpoint(:id, :token, to_jsonb(repeat('x', 1000000)));
SELECT length(checkpoint::text) FROM idemq.job(:id);
SELECT idemq.commit(:id, :token);
SELECT idemq.checkpoint(:id, :token, '1');

-- assert_current: an effect's guard; keeps the reaper out until the transaction ends.
SELECT (idemq.enqueue('q', '4')).id \gset
-- meant to expire
SELECT token FROM idemq.claim_job(:id, lease => '1 ms') \gset
SELECT pg_sleep(0.005);
BEGIN;
SELECT idemq.assert_current(:id, :token);
SELECT idemq.reap('q');
SELECT count(*) FROM idemq.claim('q');
SELECT outcome FROM idemq.claim_job(:id);
SELECT idemq.validate(:id, :token), idemq.heartbeat(:id, :token);
COMMIT;
SELECT pg_sleep(0.11);
SELECT idemq.reap('q');
SELECT idemq.assert_current(:id, :token);
SELECT idemq.assert_current(0, :token);
SELECT idemq.assert_current(NULL, :token);
SELECT idemq.assert_current(:id, NULL);
SELECT token FROM idemq.claim_job(:id) \gset
BEGIN;
SELECT idemq.assert_current(:id, :token);
SELECT idemq.checkpoint(:id, :token, '1');
SELECT idemq.assert_current(:id, :token);
SELECT idemq.commit(:id, :token);
SELECT idemq.assert_current(:id, :token);
ROLLBACK;
SELECT idemq.commit(:id, :token);

-- hold_claimed: the same for the one job that this session's last transaction has claimed.
SELECT (idemq.enqueue('q', '5')).id \gset
SELECT id AS other FROM idemq.enqueue('q', '6') \gset
-- meant to expire
SELECT token FROM idemq.claim_job(:id, lease => '1 ms') \gset
SELECT pg_sleep(0.005);
BEGIN;
SELECT idemq.hold_claimed();
SELECT idemq.hold_claimed();
SELECT idemq.reap('q');
COMMIT;
-- Reads, and what is rolled back, forget nothing.
SELECT idemq.validate(:id, :token);
BEGIN;
SELECT count(*) FROM idemq.claim_job(:other);
ROLLBACK;
SELECT idemq.hold_claimed();
-- In the transaction that ends the attempt, and after it.
BEGIN;
SELECT idemq.commit(:id, :token);
SELECT idemq.hold_claimed();
ROLLBACK;
SELECT idemq.hold_claimed();
SELECT pg_sleep(0.11);
SELECT idemq.reap('q');
SELECT idemq.hold_claimed();
-- Not one job: none, several, the one that is ended at once.
SELECT count(*) FROM idemq.claim('q', 2) \gset
SELECT :count AS claimed, idemq.hold_claimed();
SELECT count(idemq.release(id, token)) FROM idemq.jobs WHERE status = 'running';
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.hold_claimed();
SELECT idemq.commit_once(:other);
SELECT idemq.hold_claimed();
-- As it is meant: in one message, with the commit of the last one.
SELECT id AS third FROM idemq.enqueue('q', '7') \gset
SELECT id, token FROM idemq.commit_and_claim(:id, :token, NULL, 'q') \gset
BEGIN \; SELECT idemq.hold_claimed(), :id = :third AS of_the_third \; COMMIT;
-- Not by a role that may not claim; not by whom a pooler gives the session to.
CREATE ROLE regress_holder;
SELECT idemq.grant_queue('q', 'regress_holder', 'enqueue');
SET ROLE regress_holder;
SELECT idemq.hold_claimed();
RESET ROLE;
SELECT idemq.revoke_queue('q', 'regress_holder', 'enqueue');
DROP ROLE regress_holder;
SELECT idemq.hold_claimed();
DISCARD ALL;
SELECT idemq.hold_claimed();
SELECT idemq.commit(:id, :token);
SELECT stale_calls_total FROM idemq.metrics WHERE queue = 'q';

-- reap: one queue, or all; only what is over.
DELETE FROM idemq.jobs;
SELECT count(idemq.enqueue(q, '1')) FROM unnest(ARRAY['q', 'p']) q, generate_series(1, 4);
SELECT count(*) FROM idemq.claim('p', 2);
SELECT count(*) FROM idemq.claim_any('{q,p}', 10, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.02);
SELECT idemq.reap('p'), idemq.reap('p');
SELECT idemq.reap(), idemq.reap(NULL);
SELECT queue_id = :q AS of_q, status, attempt, count(*) FROM idemq.jobs GROUP BY 1, 2, 3 ORDER BY 1, 2;
SELECT idemq.reap('nope');
SELECT idemq.reap('');
-- A claim does by itself what a reaper would.
SELECT count(idemq.alter_queue(q, retry_base => '1 us', retry_max => '1 us')) FROM unnest(ARRAY['q', 'p']) q;
SELECT count(*) FROM idemq.claim_any('{q,p}', 10, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.02);
SELECT count(*), min(attempt), max(attempt) FROM idemq.claim_any('{q,p}', 10, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.02);
SELECT count(*), min(attempt), max(attempt) FROM idemq.claim_any('{p,q}', 10);
SELECT queue_id = :q AS of_q, status, attempt, count(*) FROM idemq.jobs GROUP BY 1, 2, 3 ORDER BY 1, 2, 3;
-- A paused queue's leases end as well.
DELETE FROM idemq.jobs;
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT count(*) FROM idemq.claim('q', lease => '1 ms'); -- meant to expire
SELECT idemq.pause('q');
SELECT pg_sleep(0.02);
SELECT idemq.reap('q');
SELECT status FROM idemq.job(:id);
SELECT idemq.resume('q');

-- The first loss in a row: ready at once.  From the second on: the queue's retry policy.
SELECT idemq.create_queue('lossy', lease => '1 ms', retry_base => '1 h', retry_jitter => 0) > 0; -- meant to expire
SELECT (idemq.enqueue('lossy', '1')).id \gset
\set lose 'SELECT j.status, j.attempt, ready_at - ended_at AS wait, last_error FROM idemq.jobs j JOIN idemq.attempts a ON a.job_id = j.id AND a.token = j.token WHERE j.id = :id'
SELECT attempt FROM idemq.claim('lossy');
SELECT pg_sleep(0.02), idemq.reap('lossy');
:lose;
SELECT attempt FROM idemq.claim('lossy');
SELECT pg_sleep(0.02), idemq.reap('lossy');
:lose;
SELECT count(*) FROM idemq.claim('lossy');
SELECT regexp_replace(idemq.why(:id), '[0-9]{4}-.*', '...');
-- By hand it is ready; the session's end is a loss as well.
SELECT idemq.retry(:id);
SELECT attempt FROM idemq.claim('lossy', lease => '1 h', attach => true);
DISCARD ALL;
SELECT idemq.reap('lossy') >= 0;
:lose;
-- A failure in between: the row of losses begins anew.
SELECT idemq.retry(:id);
SELECT idemq.fail(id, token, 'no paper', retry_in => '0') FROM idemq.claim('lossy', lease => '1 h');
SELECT attempt FROM idemq.claim('lossy');
SELECT pg_sleep(0.02), idemq.reap('lossy');
:lose;
-- Whatever text it gave.
SELECT idemq.retry(:id);
SELECT idemq.fail(id, token, 'lease expired', retry_in => '0') FROM idemq.claim('lossy', lease => '1 h');
SELECT attempt FROM idemq.claim('lossy');
SELECT pg_sleep(0.02), idemq.reap('lossy');
:lose;
-- And so it does with a redrive, whose last_error is of another life.
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('lossy', lease => '1 h');
UPDATE idemq.jobs SET last_error = 'lease expired' WHERE id = :id;
SELECT idemq.retry(:id);
SELECT attempt FROM idemq.claim('lossy');
SELECT pg_sleep(0.02), idemq.reap('lossy');
:lose;
-- A worker has no name by which a handler's process is known.
\set VERBOSITY default
SELECT * FROM idemq.claim('lossy', worker => 'idemq handler 42');
\set VERBOSITY sqlstate
SELECT idemq.drop_queue('lossy', force => true);

-- DISCARD ALL hands the session on: attached leases end, others do not.
DELETE FROM idemq.jobs;
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 2) g;
SELECT payload FROM idemq.claim('q', attach => true);
SELECT payload FROM idemq.claim('q', attach => false);
DISCARD ALL;
SELECT idemq.reap('q');
SELECT payload, status FROM idemq.jobs ORDER BY id;

-- No call asks for a lease longer than the queue's max_lease, wherever there is one to ask for.
SELECT idemq.create_queue('m', lease => '1 min', max_lease => '1 h') > 0 AS created;
SELECT idemq.create_queue('free', max_lease => '2 h') > 0 AS created;
SELECT id AS m FROM idemq.enqueue('m', '1', key => 'k') \gset
SELECT * FROM idemq.claim('m', lease => '1 h 1 us');
SELECT * FROM idemq.claim('m', lease => '1000 years', attach => true);
SELECT * FROM idemq.claim_any('{free,m}', lease => '90 min');
SELECT * FROM idemq.claim_job(:m, lease => '90 min');
SELECT * FROM idemq.acquire('m', 'k', '1', lease => '90 min');
SELECT * FROM idemq.acquire('m', 'new', '1', lease => '90 min');
SELECT status, attempt, (SELECT count(*) FROM idemq.jobs WHERE key = 'new') AS others FROM idemq.jobs WHERE id = :m;
SELECT token AS m_token FROM idemq.claim_job(:m, lease => '1 h') \gset
SELECT * FROM idemq.acquire('m', 'k', '1', lease => '90 min');
SELECT idemq.heartbeat(:m, :m_token, '1 h 1 us');
SELECT * FROM idemq.heartbeat_many(ARRAY[:m], ARRAY[:m_token], '90 min');
SELECT idemq.heartbeat(:m, :m_token, '1 h'), idemq.heartbeat(:m, :m_token);
-- The same of a lease that memory has lost.
SELECT id AS row_m FROM idemq.enqueue('m', '2') \gset
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET status = 'running', attempt = 1, token = 7, claimed_at = now(), deadline = now() + interval '1 min' WHERE id = :row_m;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT idemq.heartbeat(:row_m, 7, '1 h 1 us');
SELECT count(*) FROM idemq.running_jobs WHERE job_id = :row_m;
SELECT idemq.heartbeat(:row_m, 7, '1 h');
SELECT deadline > now() + interval '50 min' AS long FROM idemq.running_jobs WHERE job_id = :row_m;
-- A queue's own lease is not longer either; what runs keeps what it has.
SELECT idemq.alter_queue('m', max_lease => '00:00:59');
SELECT idemq.alter_queue('m', lease => '2 h');
SELECT idemq.alter_queue('m', lease => '10 min', max_lease => '10 min');
SELECT deadline > now() + interval '50 min' AS keeps FROM idemq.running_jobs WHERE job_id = :m;
SELECT idemq.heartbeat(:m, :m_token, '11 min');
SELECT idemq.heartbeat(:m, :m_token, '10 min');
SELECT deadline < now() + interval '11 min' AS short FROM idemq.running_jobs WHERE job_id = :m;
SELECT idemq.create_queue('n', lease => '2 days');
SELECT idemq.create_queue('n', lease => '2 days', max_lease => '2 days') > 0 AS created;
