-- idemq.attempts: one row per attempt that did not commit.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 10) AS q \gset
SELECT idemq.create_queue('p') AS p \gset
CREATE VIEW history AS SELECT attempt, worker, outcome, error, claimed_at <= ended_at AS in_order, queue_id FROM idemq.attempts ORDER BY ended_at;

-- A job with every kind of end.
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT token AS t1, claimed_at AS c1 FROM idemq.claim('q', worker => 'w1'), LATERAL (SELECT clock_timestamp() AS claimed_at) c \gset
SELECT idemq.fail(:id, :t1, E'it said "no"\nin two lines, with ümläut', '0');
SELECT token AS t2 FROM idemq.claim('q', worker => 'w2') \gset
SELECT idemq.release(:id, :t2);
SELECT token AS t3 FROM idemq.claim('q') \gset
SELECT idemq.fail(:id, :t3, retry_in => '0');
-- meant to expire
SELECT token AS t4 FROM idemq.claim('q', lease => '1 ms', worker => 'w4') \gset
SELECT pg_sleep(0.005);
SELECT idemq.reap('q');
SELECT token AS t5 FROM idemq.claim('q', worker => 'w5') \gset
SELECT idemq.cancel(:id);
SELECT idemq.retry(:id);
SELECT token AS t6 FROM idemq.claim('q', worker => 'w6') \gset
SELECT idemq.fail(:id, :t6, 'for good', permanent => true);
SELECT idemq.redrive('q');
SELECT token AS t7 FROM idemq.claim('q', worker => 'w7') \gset
SELECT idemq.commit(:id, :t7);
SELECT attempt, worker, outcome, error, in_order FROM history;
-- Each with its own token, and the times of its claim and its end.
SELECT array_agg(token ORDER BY ended_at) = ARRAY[:t1, :t2, :t3, :t4, :t5, :t6] AS tokens, bool_and(job_id = :id AND queue_id = :q) AS job,
	count(DISTINCT claimed_at) AS claims, count(DISTINCT ended_at) AS ends, bool_and(ended_at BETWEEN :'c1' AND clock_timestamp()) AS times FROM idemq.attempts;
SELECT status, attempt, last_error FROM idemq.job(:id);

-- What is no attempt leaves none.
DELETE FROM idemq.attempts;
SELECT (idemq.enqueue('q', '2')).id \gset
SELECT idemq.cancel(:id);
SELECT idemq.retry(:id);
SELECT idemq.commit_once(:id);
-- meant to expire
SELECT (idemq.enqueue('q', '3', expires_in => '1 ms')).id \gset
SELECT pg_sleep(0.005);
SELECT count(*) FROM idemq.claim('q');
SELECT (idemq.enqueue('q', '4')).id \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.fail(:id, :token + 1), idemq.release(:id, :token + 1), idemq.try_commit(:id, :token + 1);
SELECT idemq.commit(:id, :token);
SELECT * FROM idemq.attempts;

-- A retrying job that is cancelled or retried by hand has the attempts that it had.
SELECT (idemq.enqueue('q', '5')).id \gset
SELECT idemq.fail(id, token, 'once') FROM idemq.claim('q');
SELECT idemq.retry(:id), idemq.cancel(:id);
SELECT attempt, outcome, error FROM history;

-- Rolled back with what it tells of.
BEGIN;
SELECT (idemq.enqueue('q', '6')).id \gset
SELECT idemq.fail(id, token, 'undone') FROM idemq.claim('q');
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;
ROLLBACK;
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;

-- Long errors.
SELECT (idemq.enqueue('q', '7')).id \gset
SELECT idemq.fail(id, token, repeat('x', 1000000), '0') FROM idemq.claim('q');
SELECT idemq.fail(id, token, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 10000) i), '0') FROM idemq.claim('q');
SELECT idemq.fail(id, token, '', '0') FROM idemq.claim('q');
SELECT length(error), md5(error) FROM idemq.attempts WHERE job_id = :id ORDER BY ended_at;
SELECT last_error FROM idemq.job(:id);

-- They go with the job: deleted by its commit,
SELECT idemq.create_queue('gone', retention => '0', lease => '1 h') > 0 AS made;
SELECT (idemq.enqueue('gone', '1')).id \gset
SELECT idemq.fail(id, token, 'once', '0') FROM idemq.claim('gone');
SELECT idemq.release(id, token) FROM idemq.claim('gone');
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;
SELECT idemq.commit(id, token) FROM idemq.claim('gone');
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;
SELECT (idemq.enqueue('gone', '2')).id \gset
SELECT idemq.release(id, token) FROM idemq.claim('gone');
SELECT idemq.commit_once(:id);
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;
-- also if the queue began to keep nothing after an attempt was released, which does not count,
SELECT idemq.alter_queue('gone', retention => '1 h');
SELECT (idemq.enqueue('gone', '3')).id \gset
SELECT idemq.release(id, token) FROM idemq.claim('gone');
SELECT flags, attempt, last_error FROM idemq.job(:id);
SELECT idemq.alter_queue('gone', retention => '0');
SELECT idemq.commit(id, token) FROM idemq.claim('gone');
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;
-- or the job was cancelled while it ran, and brought back; it gets no error for that.
SELECT (idemq.enqueue('gone', '4')).id \gset
SELECT count(*) FROM idemq.claim('gone');
SELECT idemq.cancel(:id);
SELECT idemq.retry(:id);
SELECT flags, attempt, last_error FROM idemq.job(:id);
SELECT idemq.commit(id, token) FROM idemq.claim('gone');
SELECT count(*) FROM idemq.attempts WHERE job_id = :id;
SELECT idemq.drop_queue('gone');
-- purged, and with the queue.
SELECT (idemq.enqueue('p', '1')).id \gset
SELECT idemq.fail(id, token, 'of p', permanent => true) FROM idemq.claim('p');
SELECT queue_id = :p AS of_p, count(*) FROM idemq.attempts GROUP BY 1 ORDER BY 1;
SELECT idemq.purge('q', 'retrying');
SELECT queue_id = :p AS of_p, count(*) FROM idemq.attempts GROUP BY 1 ORDER BY 1;
SELECT idemq.purge('p');
SELECT queue_id = :p AS of_p, count(*) FROM idemq.attempts GROUP BY 1 ORDER BY 1;
SELECT idemq.drop_queue('q', force => true);
SELECT count(*) FROM idemq.attempts;

-- Details of a failure: a document of any size, of each attempt its own; a stale one leaves none.
DELETE FROM idemq.attempts;
DELETE FROM idemq.jobs;
SELECT idemq.create_queue('d', retry_jitter => 0, lease => '1 h') IS NULL AS none;
SELECT (idemq.enqueue('d', '7')).id \gset
SELECT idemq.fail(id, token, 'bad gateway', '0', details => '{"status": 502}') FROM idemq.claim('d');
SELECT idemq.fail(id, token, retry_in => '0', details => 'null') FROM idemq.claim('d');
SELECT token FROM idemq.claim('d') \gset
SELECT idemq.fail(:id, :token - 1, details => '"stale"');
SELECT idemq.fail(:id, :token, permanent => true, details => to_jsonb((SELECT array_agg(g) FROM generate_series(1, 100000) g)));
SELECT attempt, outcome, error, left(details::text, 20) AS details, jsonb_typeof(details) AS type FROM idemq.attempts ORDER BY token;
SELECT count(*) FROM idemq.enqueue_many('d', '{1,2,3}');
SELECT f.outcome FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.claim('d', 3)) c,
	idemq.fail_many(ids, tokens, '{a,b,NULL}', '0', details => ARRAY['{"n": 1}', NULL, '{"n": 3}']::jsonb[]) f;
SELECT payload, error, details FROM idemq.attempts JOIN idemq.jobs ON id = job_id WHERE payload <> '7' ORDER BY payload;
-- Of another attempt, released or reaped, there are none; they are not the job's result.
SELECT count(idemq.release(id, token)) FROM idemq.claim('d', 1);
SELECT a.outcome, details, result FROM idemq.attempts a JOIN idemq.jobs ON id = job_id WHERE a.outcome = 'released';
SELECT idemq.fail_many('{1}', '{1}', details => '{1,2}');
-- An attempt that a DBA put back to running ends again.
SELECT id, token FROM idemq.claim('d') \gset
SELECT idemq.fail(:id, :token, 'first', details => '1');
UPDATE idemq.jobs SET status = 'running', deadline = now() + interval '1 h' WHERE id = :id;
SELECT idemq.fail(:id, :token, 'last', details => '2');
SELECT error, details FROM idemq.attempts WHERE token = :token;

-- In a queue that keeps nothing: however the job came back to life, its commit leaves no history.
SELECT idemq.create_queue('gone', retention => '0', lease => '1 h') > 0 AS made;
CREATE FUNCTION dies_and_is_back(how text, reason text, OUT of_history bigint, OUT outcome text, OUT is_left bigint) LANGUAGE plpgsql AS $$
DECLARE job bigint;
BEGIN
	SELECT id INTO job FROM idemq.enqueue('gone', '1');
	IF how = 'cancelled' THEN
		PERFORM id FROM idemq.claim('gone');
		PERFORM idemq.cancel(job);
	ELSE
		PERFORM idemq.fail(id, token, reason, permanent => true) FROM idemq.claim('gone');
	END IF;
	of_history := count(*) FROM idemq.attempts WHERE job_id = job;
	IF how = 'redriven' THEN PERFORM idemq.redrive('gone'); ELSE PERFORM idemq.retry(job); END IF;
	SELECT c.outcome INTO outcome FROM idemq.claim_job(job) c;
	PERFORM idemq.commit(id, token) FROM idemq.jobs WHERE id = job;
	is_left := count(*) FROM idemq.attempts WHERE job_id = job;
END $$;
SELECT how, reason, d.* FROM (VALUES ('redriven', 'no'), ('redriven', NULL), ('retried', 'no'), ('retried', NULL), ('cancelled', NULL)) v(how, reason),
	dies_and_is_back(how, reason) d;
SELECT count(*) FROM idemq.jobs;

-- An attempt that a DBA puts back to running ends again: its last end stands.
SELECT idemq.create_queue('back', retry_jitter => 0, lease => '1 h') > 0 AS made;
SELECT (idemq.enqueue('back', '1')).id \gset
SELECT token FROM idemq.claim('back') \gset
SELECT idemq.fail(:id, :token, 'the first end', '0');
SELECT ended_at AS first_end FROM idemq.attempts WHERE job_id = :id \gset
UPDATE idemq.jobs SET status = 'running', attempt = 1 WHERE id = :id;
SELECT idemq.fail(:id, :token, 'the last end', permanent => true);
SELECT outcome, error, attempt, ended_at > :'first_end' AS later FROM idemq.attempts WHERE job_id = :id;
UPDATE idemq.jobs SET status = 'running', finished_at = NULL, ready_at = now() WHERE id = :id;
SELECT idemq.release(:id, :token);
SELECT outcome, error FROM idemq.attempts WHERE job_id = :id;
