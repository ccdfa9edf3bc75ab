-- enqueue_many, claim, heartbeat_many, fail_many and commit_many of more jobs than the lease table holds.
-- slow: 100,000 jobs, each claimed and ended in one call
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -

-- 100,000 jobs in one call: more than the lease table holds.
SHOW idemq.max_leases;
SELECT idemq.create_queue('big', lease => '1 h');
SELECT count(*), count(DISTINCT id), min(ord), max(ord) FROM idemq.enqueue_many('big', (SELECT array_agg(to_jsonb(g)) FROM generate_series(1, 100000) g));
CREATE TABLE big AS SELECT * FROM idemq.claim('big', 100000);
SELECT count(*), count(DISTINCT token), min(attempt), max(attempt), sum(payload::int) FROM big;
SELECT count(*) FROM idemq.claim('big', 10);
SELECT outcome, count(*) FROM idemq.heartbeat_many((SELECT array_agg(id ORDER BY id) FROM big WHERE payload::int <= 1000),
	(SELECT array_agg(token ORDER BY id) FROM big WHERE payload::int <= 1000)) GROUP BY 1;
SELECT outcome, count(*) FROM idemq.heartbeat_many((SELECT array_agg(id ORDER BY id) FROM big WHERE payload::int > 99000),
	(SELECT array_agg(token ORDER BY id) FROM big WHERE payload::int > 99000)) GROUP BY 1;
SELECT outcome, count(*) FROM idemq.fail_many((SELECT array_agg(id ORDER BY id) FROM big WHERE payload::int % 100 = 0),
	(SELECT array_agg(token ORDER BY id) FROM big WHERE payload::int % 100 = 0), retry_in => '0') GROUP BY 1;
SELECT outcome, count(*) FROM idemq.commit_many((SELECT array_agg(id ORDER BY id % 1000, id) FROM big),
	(SELECT array_agg(token ORDER BY id) FROM big)) GROUP BY 1 ORDER BY 1;
SELECT outcome, count(*) FROM idemq.commit_many((SELECT array_agg(id ORDER BY id DESC) FROM big),
	(SELECT array_agg(token ORDER BY id DESC) FROM big)) GROUP BY 1 ORDER BY 1;
SELECT status, j.attempt, count(*) FROM idemq.jobs j JOIN big USING (id) GROUP BY 1, 2 ORDER BY 1, 2;
SELECT count(*), min(attempt), max(attempt) FROM idemq.claim('big', 100000);
