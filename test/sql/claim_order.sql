-- claim: priority first, then ready time, then id; nothing before it is due.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h');
SELECT idemq.create_queue('p', lease => '1 h');
-- What a claim hands out, in order; and put back as it was.
CREATE FUNCTION taken(n int, OUT jobs text) LANGUAGE plpgsql AS $$
BEGIN
	SELECT string_agg(payload #>> '{}', ' ') INTO jobs FROM idemq.claim('q', n);
END $$;

-- The columns of a claim.
SELECT id FROM idemq.enqueue('q', '{"n": 1}', key => 'k', headers => '{"trace": [1, {"a": null}]}', max_attempts => 3) \gset
SELECT id = :id AS same_id, token > 0 AS token, attempt, max_attempts, deadline - now() BETWEEN '59 min' AND '61 min' AS lease,
	payload, key, group_key, checkpoint, enqueued_at = (SELECT enqueued_at FROM idemq.jobs) AS enqueued_at, headers
FROM idemq.claim('q', worker => 'w-1');
SELECT status, attempt, worker, ready_at = enqueued_at AS ready_kept, claimed_at >= enqueued_at AS claimed,
	deadline - claimed_at AS lease, finished_at FROM idemq.job(:id);
SELECT token BETWEEN 1 AND 2::numeric ^ 53 AS fits_javascript FROM idemq.jobs;
SELECT count(*) FROM idemq.claim('q', 10);
DELETE FROM idemq.jobs;

-- In the order in which they were enqueued; no more than asked for; one by default.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 7) g;
SELECT payload FROM idemq.claim('q');
SELECT taken(2);
SELECT taken(3);
SELECT taken(100);
SELECT taken(100);

-- Priority 0 first, 9 last, 4 by default; within one, by time.
SELECT count(idemq.enqueue('q', to_jsonb('p' || p || n), priority => p)) FROM generate_series(1, 2) n, unnest(ARRAY[9, 0, 5, 3, 8, 1, 6, 2, 7, 4]) p;
SELECT (idemq.enqueue('q', '"default"')).outcome;
SELECT taken(1);
SELECT taken(3);
SELECT taken(6);
SELECT taken(100);

-- A late job of a higher priority goes first.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 3) g;
SELECT taken(1);
SELECT (idemq.enqueue('q', '"urgent"', priority => 0)).outcome;
SELECT taken(2);
SELECT taken(9);

-- run_at: the earliest first, the past before the present; the same time by id.
SELECT count(idemq.enqueue('q', to_jsonb(t), run_at => t::timestamptz)) FROM unnest(ARRAY['2020-01-03', '2020-01-01', '2020-01-02', '1999-12-31', '4713-01-01 BC']) t;
SELECT (idemq.enqueue('q', '"now"')).outcome;
SELECT payload FROM idemq.claim('q', 10);
SELECT count(idemq.enqueue('q', to_jsonb(g), run_at => '2020-01-01')) FROM generate_series(1, 5) g;
SELECT taken(10);
-- One behind the scan start: seen at once.
SELECT taken(10);
SELECT (idemq.enqueue('q', '"past"', run_at => '2001-01-01')).outcome;
SELECT taken(10);

-- Nothing before it is due.
SELECT (idemq.enqueue('q', '"delayed"', delay => '1 h')).outcome;
SELECT (idemq.enqueue('q', '"future"', run_at => now() + interval '1 min')).outcome;
SELECT (idemq.enqueue('q', '"far"', run_at => '290000-01-01')).outcome;
SELECT (idemq.enqueue('q', '"very long"', delay => '1000 years')).outcome;
SELECT (idemq.enqueue('q', '"no delay"', delay => '0')).outcome;
SELECT taken(10);
SELECT (idemq.enqueue('q', '"soon"', delay => '300 ms')).outcome; -- meant to expire
-- Asked for again and again, it comes, and not before.
DO $$ BEGIN WHILE taken(10) IS NULL LOOP PERFORM pg_sleep(0.01); END LOOP; END $$;
SELECT status, ready_at - enqueued_at AS delay, claimed_at >= ready_at AS due FROM idemq.jobs WHERE payload = '"soon"';
SELECT idemq.enqueue('q', '1', run_at => 'infinity');
SELECT idemq.enqueue('q', '1', run_at => '-infinity');
SELECT idemq.enqueue('q', '1', delay => '1 h', run_at => now());
SELECT idemq.enqueue('q', '1', delay => '-1 us');
SELECT idemq.enqueue('q', '1', delay => '1015 years');
SELECT idemq.purge('q') AS waiting;

-- A job that is not due does not keep a later one of a lower priority back.
SELECT (idemq.enqueue('q', '"later"', priority => 0, delay => '1 h')).outcome;
SELECT (idemq.enqueue('q', '"first"', priority => 9)).outcome;
SELECT taken(1);
SELECT idemq.purge('q') AS waiting;

-- A retry stands by the time at which it is due, a released or reaped job by the time of that.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 5) g;
CREATE TABLE held AS SELECT * FROM idemq.claim('q', 3);
SELECT idemq.fail(id, token, retry_in => '0') FROM held WHERE payload = '1';
SELECT idemq.release(id, token) FROM held WHERE payload = '2';
SELECT idemq.fail(id, token, retry_in => '1 h') FROM held WHERE payload = '3';
SELECT idemq.retry(id) FROM held WHERE payload = '3';
SELECT (idemq.enqueue('q', '6')).outcome;
SELECT taken(10);

-- Queues are apart from each other.
SELECT (idemq.enqueue('p', '"of p"')).outcome;
SELECT taken(10);
SELECT payload FROM idemq.claim('p', 10);

-- A million at once may be asked for; none, not.
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT taken(1000000);
SELECT * FROM idemq.claim('q', 1000001);
SELECT * FROM idemq.claim('q', 0);
SELECT * FROM idemq.claim('q', -1);

-- The lease asked for, and the queue's.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 3) g;
SELECT round(extract(epoch FROM deadline - now()) / 60) FROM idemq.claim('q', lease => '10 min');
SELECT idemq.alter_queue('q', lease => '20 min', max_lease => '30000 days');
SELECT round(extract(epoch FROM deadline - now()) / 60) FROM idemq.claim('q');
SELECT deadline > now() + interval '29999 days' AS long FROM idemq.claim('q', lease => '30000 days');
SELECT deadline - claimed_at FROM idemq.jobs WHERE status = 'running' ORDER BY token DESC LIMIT 3;

-- 2,000 jobs of random priorities and times against ORDER BY, in claims of many sizes.
DELETE FROM idemq.jobs;
SELECT setseed(0.4);
SELECT count(idemq.enqueue('q', to_jsonb(g), priority => (random() * 9)::int,
	run_at => '2020-01-01'::timestamptz + (random() * 50)::int * interval '1 day')) FROM generate_series(1, 2000) g;
CREATE TABLE in_order (nth serial, id bigint);
DO $$
DECLARE
	n int;
BEGIN
	FOREACH n IN ARRAY ARRAY[1, 1, 2, 3, 10, 1, 100, 7, 500, 1, 999, 1000] LOOP
		INSERT INTO in_order (id) SELECT c.id FROM idemq.claim('q', n) c;
	END LOOP;
END $$;
SELECT count(*), count(*) FILTER (WHERE nth <> should) AS out_of_order
FROM (SELECT nth, row_number() OVER (ORDER BY priority, ready_at, id) AS should FROM in_order JOIN idemq.jobs USING (id)) s;

-- Ids to the end of the sequence.
DELETE FROM idemq.jobs;
ALTER TABLE idemq.jobs ALTER COLUMN id RESTART WITH 9223372036854775805;
SELECT count(idemq.enqueue('q', to_jsonb(g), run_at => '2001-01-01')) FROM generate_series(1, 3) g;
SELECT idemq.enqueue('q', '4');
SELECT id, payload FROM idemq.claim('q', 2);
SELECT id, payload FROM idemq.claim('q', 2);
SELECT outcome, count(*) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.jobs) s, idemq.commit_many(ids, tokens) GROUP BY 1;
SELECT id, status FROM idemq.jobs ORDER BY id;
