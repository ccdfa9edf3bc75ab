-- cancel, retry, redrive; expires_in; headers.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 2) AS q \gset
SELECT idemq.create_queue('p', lease => '1 h') AS p \gset

-- cancel: finished, no longer claimable; a worker's token is stale from then on.
SELECT (idemq.enqueue('q', '1', key => 'k')).id \gset
SELECT idemq.cancel(:id);
SELECT status, ready_at, finished_at IS NOT NULL AS finished, attempt FROM idemq.job(:id);
SELECT idemq.cancel(:id);
SELECT count(*) FROM idemq.claim('q');
SELECT outcome, status, result FROM idemq.enqueue('q', '1', key => 'k');
SELECT (idemq.enqueue('q', '2')).id \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.cancel(:id);
SELECT idemq.validate(:id, :token), idemq.heartbeat(:id, :token), idemq.try_commit(:id, :token), idemq.fail(:id, :token), idemq.release(:id, :token);
SELECT idemq.checkpoint(:id, :token, '1');
SELECT status, attempt, token = :token AS same_token FROM idemq.job(:id);
SELECT idemq.cancel(0), idemq.cancel(-1);
SELECT idemq.cancel(NULL);

-- retry: a cancelled or dead job starts again with all its attempts and a growing token.
SELECT idemq.retry(:id);
SELECT status, attempt, token = :token AS same_token, ready_at <= clock_timestamp() AS ready, finished_at FROM idemq.job(:id);
SELECT token > :token AS grew, attempt, max_attempts, idemq.fail(id, token, 'a', '0') FROM idemq.claim('q');
SELECT attempt, idemq.fail(id, token, 'b', '0') FROM idemq.claim('q');
SELECT idemq.retry(:id);
SELECT status, attempt, last_error, finished_at FROM idemq.job(:id);
-- A retrying job is brought forward, and keeps its number of attempts; so is a delayed one.
SELECT attempt, idemq.fail(id, token, 'c', '1 h') FROM idemq.claim('q');
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.retry(:id);
SELECT status, attempt, last_error FROM idemq.job(:id);
SELECT idemq.retry(:id);
SELECT attempt, idemq.commit(id, token) FROM idemq.claim('q');
SELECT (idemq.enqueue('q', '3', delay => '1 h')).id \gset
SELECT idemq.retry(:id), idemq.retry(:id);
SELECT attempt, idemq.retry(id) FROM idemq.claim('q');
SELECT idemq.retry(0), idemq.retry(-1);
SELECT idemq.retry(NULL);

-- redrive: the dead ones of a queue, the longest dead first.
DELETE FROM idemq.jobs;
SELECT count(idemq.enqueue(q, to_jsonb(n))) FROM unnest(ARRAY['q', 'p']) q, generate_series(1, 5) n;
SELECT count(idemq.fail(id, token, 'bad', permanent => true)) FROM idemq.claim_any('{q,p}', 10);
SELECT (idemq.enqueue('q', '6')).id AS pending \gset
SELECT idemq.cancel((idemq.enqueue('q', '7')).id);
SELECT idemq.redrive('q', 2);
SELECT payload, status, attempt FROM idemq.jobs WHERE queue_id = :q ORDER BY id;
SELECT idemq.redrive('q', max_jobs => 100);
SELECT idemq.redrive('q');
SELECT queue_id = :q AS of_q, status, count(*) FROM idemq.jobs GROUP BY 1, 2 ORDER BY 1, 2;
-- Behind what became ready before; in the order of their enqueuing among themselves.
SELECT payload, attempt FROM idemq.claim('q', 10);
SELECT idemq.redrive('p', NULL);
SELECT payload FROM idemq.claim('p', 10);
SELECT idemq.redrive('q', 0);
SELECT idemq.redrive('q', -1);
SELECT idemq.redrive(NULL);
SELECT idemq.redrive('nope');

-- expires_in: not claimed by then, it is cancelled by whoever comes by.
DELETE FROM idemq.jobs;
-- meant to expire
SELECT (idemq.enqueue('q', '1', expires_in => '5 ms')).id \gset
SELECT (idemq.enqueue('q', '2', expires_in => '1 h')).id AS later \gset
SELECT expires_at - enqueued_at AS expires_in FROM idemq.jobs ORDER BY id;
SELECT pg_sleep(0.01);
SELECT payload FROM idemq.claim('q', 10);
SELECT payload, status, last_error, attempt, finished_at IS NOT NULL AS finished FROM idemq.jobs ORDER BY id;
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;
-- Claimed in time, it is a job as any other.
SELECT (idemq.enqueue('q', '3', expires_in => '1 h')).id \gset
SELECT token FROM idemq.claim('q') \gset
UPDATE idemq.jobs SET expires_at = clock_timestamp() WHERE id = :id;
SELECT idemq.validate(:id, :token), idemq.commit(:id, :token);
-- Not due before it expires.
-- meant to expire
SELECT (idemq.enqueue('q', '4', expires_in => '5 ms', delay => '10 ms')).id \gset
SELECT pg_sleep(0.02);
SELECT count(*) FROM idemq.claim('q');
SELECT status FROM idemq.job(:id);
-- retry gives it another chance, without a term.
SELECT idemq.retry(:id);
SELECT payload, attempt FROM idemq.claim('q');
SELECT expires_at FROM idemq.job(:id);
-- commit_once and claim_job by id see it as well.
-- meant to expire
SELECT (idemq.enqueue('q', '5', expires_in => '1 ms')).id \gset
SELECT pg_sleep(0.005);
SELECT outcome, payload FROM idemq.claim_job(:id);
SELECT status FROM idemq.job(:id);
SELECT idemq.enqueue('q', '6', expires_in => '0');
SELECT idemq.enqueue('q', '6', expires_in => '-1 s');
SELECT idemq.enqueue('q', '6', expires_in => '2000 years');

-- headers reach the worker untouched, in every attempt; a row keeps them.
DELETE FROM idemq.jobs;
SELECT (idemq.enqueue('q', '1', headers => '{"traceparent": "00-0af7-b7ad-01", "list": [1.50, null, "ü"], "": {}}')).id \gset
SELECT headers, idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q');
SELECT headers FROM idemq.claim('q');
SELECT headers, payload FROM idemq.job(:id);
SELECT (idemq.enqueue('q', '2', headers => 'null')).id \gset
SELECT headers, headers IS NULL AS none FROM idemq.claim('q');
SELECT (idemq.enqueue('q', '3')).id \gset
SELECT headers, headers IS NULL AS none FROM idemq.claim('q');

-- A job that was claimed in time does not expire while it waits for its retry.
SELECT idemq.create_queue('in_time', retry_jitter => 0) > 0 AS made;
SELECT (idemq.enqueue('in_time', '1', expires_in => '1 h')).outcome;
SELECT idemq.fail(id, token, 'once', '0') FROM idemq.claim('in_time');
UPDATE idemq.jobs SET expires_at = clock_timestamp() WHERE status = 'retrying';
SELECT attempt, idemq.commit(id, token) FROM idemq.claim('in_time');
