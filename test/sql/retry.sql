-- Retry: backoff and jitter, attempts used up, lost leases, permanent failures.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -

-- Fails a job n times (each made ready by hand) and says what came of it.
CREATE FUNCTION fail_times(queue text, n int, OUT attempt int, OUT outcome idemq.outcome, OUT delay interval)
RETURNS SETOF record LANGUAGE plpgsql AS $$
DECLARE
	job bigint := (idemq.enqueue(queue, '1')).id;
	c record;
BEGIN
	FOR i IN 1 .. n LOOP
		SELECT * INTO STRICT c FROM idemq.claim_job(job);
		EXIT WHEN c.outcome NOT IN ('claimed', 'claimed_again');
		outcome := idemq.fail(job, c.token, 'oops');
		SELECT j.attempt, ready_at - ended_at INTO attempt, delay
			FROM idemq.jobs j, idemq.attempts a WHERE j.id = job AND a.job_id = job AND a.token = c.token;
		RETURN NEXT;
		PERFORM idemq.retry(job);
	END LOOP;
END $$;

-- 1 s, doubling, capped by retry_max; the last attempt is dead.
SELECT idemq.create_queue('doubling', retry_jitter => 0, retry_max => '00:00:10', max_attempts => 7);
SELECT * FROM fail_times('doubling', 7);
-- Other bases and factors.
SELECT idemq.create_queue('tripling', retry_jitter => 0, retry_base => '00:00:00.1', retry_factor => 3);
SELECT * FROM fail_times('tripling', 6);
SELECT idemq.create_queue('constant', retry_jitter => 0, retry_base => '00:00:07', retry_factor => 1);
SELECT DISTINCT delay, outcome FROM fail_times('constant', 10);
SELECT idemq.create_queue('fraction', retry_jitter => 0, retry_base => '1 us', retry_factor => 1.5, retry_max => '5 us');
SELECT attempt, delay FROM fail_times('fraction', 6);
SELECT idemq.create_queue('base_over_max', retry_jitter => 0, retry_base => '1 h', retry_max => '1 min');
SELECT attempt, delay FROM fail_times('base_over_max', 2);
SELECT idemq.create_queue('steep', retry_jitter => 0, retry_factor => 1000, retry_max => '1000 years');
SELECT attempt, delay FROM fail_times('steep', 6);
-- No overflow, however many attempts.
SELECT idemq.create_queue('many', retry_jitter => 0, max_attempts => 2147483647);
SELECT (idemq.enqueue('many', '1')).id \gset
UPDATE idemq.jobs SET attempt = 2147483645 WHERE id = :id;
SELECT token, attempt FROM idemq.claim('many') \gset
SELECT idemq.fail(:id, :token);
SELECT j.attempt, ready_at - ended_at AS delay FROM idemq.job(:id) j, idemq.attempts WHERE job_id = :id;
SELECT idemq.retry(:id);
SELECT attempt, idemq.fail(id, token) FROM idemq.claim('many');

-- Jitter: each delay within 20 % of 1 s, spread over all of it, differently each time.
SELECT idemq.create_queue('jitter', lease => '1 h');
SELECT count(*) FROM idemq.enqueue_many('jitter', (SELECT array_agg(to_jsonb(g)) FROM generate_series(1, 1000) g));
CREATE TABLE held AS SELECT id, token FROM idemq.claim('jitter', 1000);
SELECT outcome, count(*) FROM idemq.fail_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held)) GROUP BY 1;
CREATE VIEW delays AS SELECT job_id, a.attempt, extract(epoch FROM ready_at - ended_at) AS delay
	FROM idemq.jobs j JOIN idemq.attempts a ON a.job_id = j.id AND a.token = j.token WHERE j.id IN (SELECT id FROM held);
SELECT count(*), min(delay) BETWEEN 0.8 AND 0.83 AS low, max(delay) BETWEEN 1.17 AND 1.2 AS high, avg(delay) BETWEEN 0.97 AND 1.03 AS middle,
	count(DISTINCT delay) > 900 AS spread FROM delays;
-- Jitter 1: from nothing to twice as much; never above retry_max.
SELECT idemq.alter_queue('jitter', retry_jitter => 1, retry_base => '1 min', retry_factor => 1, retry_max => '90 s');
SELECT count(idemq.retry(id)) FROM held;
UPDATE held SET token = c.token FROM idemq.claim('jitter', 1000) c WHERE c.id = held.id;
SELECT outcome, count(*) FROM idemq.fail_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held)) GROUP BY 1;
SELECT count(*), min(attempt), min(delay) BETWEEN 0 AND 5 AS low, max(delay) AS high,
	count(*) FILTER (WHERE delay = 90) BETWEEN 150 AND 350 AS a_quarter_capped FROM delays;
DROP TABLE held CASCADE;

-- retry_in instead of the backoff: 0, less, and more than retry_max.
SELECT idemq.create_queue('q', retry_jitter => 0, max_attempts => 3, lease => '1 h');
SELECT (idemq.enqueue('q', '1', max_attempts => 5)).id \gset
SELECT idemq.fail(id, token, 'now', retry_in => '0') FROM idemq.claim('q');
SELECT idemq.fail(id, token, 'soon', retry_in => '1 us') FROM idemq.claim('q');
SELECT pg_sleep(0.001);
SELECT idemq.fail(id, token, 'much later', retry_in => '2 days') FROM idemq.claim('q');
SELECT idemq.retry(:id);
SELECT idemq.fail(id, token, 'a year', retry_in => '1 year') FROM idemq.claim('q');
SELECT idemq.retry(:id);
-- Not for the last attempt.
SELECT idemq.fail(id, token, 'last', retry_in => '1 h') FROM idemq.claim('q');
SELECT a.attempt, error, a.outcome, CASE WHEN error = 'last' THEN ready_at - ended_at END AS delay FROM idemq.attempts a, idemq.job(:id) WHERE job_id = :id ORDER BY ended_at;
SELECT status, attempt, last_error, ready_at, finished_at IS NOT NULL AS finished FROM idemq.job(:id);

-- The queue's max_attempts, the job's own, and one.
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q');
SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q');
SELECT attempt, max_attempts, idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q');
SELECT count(*) FROM idemq.claim('q');
SELECT (idemq.enqueue('q', '1', max_attempts => 1)).id \gset
SELECT attempt, max_attempts, idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q');
-- Jobs that are there keep theirs when the queue changes.
SELECT (idemq.enqueue('q', '1')).id AS old \gset
SELECT idemq.alter_queue('q', max_attempts => 1);
SELECT (idemq.enqueue('q', '1')).id AS new \gset
SELECT id = :old AS old, idemq.fail(id, token, retry_in => '1 h') FROM idemq.claim('q', 2);
SELECT idemq.cancel(:old);
SELECT idemq.alter_queue('q', max_attempts => 3);

-- Permanent: dead at once, whatever is left.
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT idemq.fail(id, token, 'bad input', permanent => true) FROM idemq.claim('q');
SELECT status, attempt, max_attempts, last_error, ready_at FROM idemq.job(:id);
SELECT idemq.fail(id, token, 'again', permanent => true) FROM idemq.job(:id);
-- retry_in is checked, and of no use to it.
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.fail(:id, :token, retry_in => '-1 s', permanent => true);
SELECT idemq.fail(:id, :token, retry_in => '1 h', permanent => true);

-- A lost lease counts as an attempt; the job is ready at once; the last one is dead.
SELECT (idemq.enqueue('q', '1', max_attempts => 2)).id \gset
SELECT attempt FROM idemq.claim('q', lease => '1 ms', worker => 'crashed'); -- meant to expire
SELECT pg_sleep(0.005);
SELECT idemq.reap('q');
SELECT status, attempt, ready_at <= clock_timestamp() AS ready, ready_at > enqueued_at AS moved, last_error FROM idemq.job(:id);
SELECT attempt, idemq.heartbeat(id, token, '1 ms') FROM idemq.claim('q', worker => 'crashed too'); -- meant to expire
SELECT pg_sleep(0.005);
SELECT idemq.reap();
SELECT status, attempt, last_error FROM idemq.job(:id);
SELECT attempt, worker, outcome, error FROM idemq.attempts WHERE job_id = :id ORDER BY attempt;
SELECT idemq.reap('q'), idemq.reap();

-- The error of a later success stays to be read; so does the number of attempts.
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT idemq.fail(id, token, 'first time', '0') FROM idemq.claim('q');
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT status, attempt, last_error FROM idemq.job(:id);
