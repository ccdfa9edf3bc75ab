-- commit_many, fail_many, release_many, heartbeat_many: mixed outcomes, odd arrays, big ones.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, retry_base => '10 min', lease => '1 h');

-- One of each: current, completed by this token, stale, cancelled, missing.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 5) g;
CREATE TABLE held AS SELECT payload::int AS n, id, token FROM idemq.claim('q', 5);
SELECT idemq.commit(id, token, '"before"') FROM held WHERE n = 2;
SELECT idemq.fail(id, token, retry_in => '1 h') FROM held WHERE n = 3;
SELECT idemq.cancel(id) FROM held WHERE n = 4;
DELETE FROM idemq.jobs WHERE id = (SELECT id FROM held WHERE n = 5);
SELECT n, h.outcome FROM held,
	idemq.heartbeat_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held)) h
WHERE h.id = held.id ORDER BY n;
BEGIN;
SELECT n, f.outcome FROM held,
	idemq.fail_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held)) f
WHERE f.id = held.id ORDER BY n;
ROLLBACK;
SELECT n, c.outcome FROM held,
	idemq.commit_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held),
					  (SELECT array_agg(to_jsonb(n)) FROM held)) c
WHERE c.id = held.id ORDER BY n;
SELECT n, status, attempt, result FROM held LEFT JOIN idemq.jobs USING (id) ORDER BY n;
SELECT n, attempt, outcome, error FROM held JOIN idemq.attempts ON job_id = id ORDER BY n;
-- The effects of a batch: only for rows whose outcome is committed.
SELECT count(*) FROM idemq.commit_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held))
WHERE outcome = 'committed';

-- An (id, token) named twice counts once, for the first; the rows come by id.
TRUNCATE held;
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 3) g;
INSERT INTO held SELECT payload::int, id, token FROM idemq.claim('q', 3);
SELECT a.id AS a, a.token AS ta, b.id AS b, b.token AS tb, c.id AS c, c.token AS tc
FROM held a, held b, held c WHERE a.n = 1 AND b.n = 2 AND c.n = 3 \gset
SELECT id - :a AS job, outcome FROM idemq.commit_many(ARRAY[:c, :a, :c, :a, :a], ARRAY[:tc, :ta, :tc, :ta, :ta],
	ARRAY['"c1"', '"a1"', '"c2"', '"a2"', '"a3"']::jsonb[]);
SELECT id - :a AS job, status, result FROM idemq.jobs WHERE id IN (:a, :b, :c) ORDER BY id;
-- Two tokens of one job: each has its own answer.
SELECT id = :b AS job, token - :tb AS token, outcome FROM idemq.heartbeat_many(ARRAY[:b, :b], ARRAY[:tb, :tb - 1]);
BEGIN;
SELECT id = :b AS job, token - :tb AS token, outcome FROM idemq.fail_many(ARRAY[:b, :b], ARRAY[:tb, :tb - 1]);
ROLLBACK;
SELECT id = :b AS job, token - :tb AS token, outcome FROM idemq.commit_many(ARRAY[:b, :b, :b], ARRAY[:tb, :tb - 1, :tb], ARRAY['"right"', '"wrong"', '"late"']::jsonb[]);
SELECT result FROM idemq.job(:b);
-- The effect is that of the attempt which committed.
SELECT id AS b FROM idemq.enqueue('q', '"effect"') \gset
SELECT token AS stale FROM idemq.claim('q') \gset
SELECT idemq.release(:b, :stale);
SELECT token AS tb FROM idemq.claim('q') \gset
CREATE TABLE batch AS SELECT :b AS id, t.token, t.effect FROM (VALUES (:stale, 'stale'), (:tb, 'current')) t (token, effect);
SELECT effect FROM batch JOIN idemq.commit_many((SELECT array_agg(id) FROM batch), (SELECT array_agg(token) FROM batch)) c
	USING (id, token) WHERE c.outcome = 'committed';
-- Of many copies, unsorted, the first result stays; fail_many likewise.
TRUNCATE held;
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 20) g;
INSERT INTO held SELECT payload::int, id, token FROM idemq.claim('q', 20);
CREATE TABLE copies AS
	SELECT row_number() OVER () AS ord, copy, n, id, token FROM generate_series(1, 30) copy, held
	ORDER BY copy, (n * 7 + copy * 3) % 20;
SELECT outcome, count(*) FROM idemq.commit_many((SELECT array_agg(id ORDER BY ord) FROM copies WHERE n <= 10),
	(SELECT array_agg(token ORDER BY ord) FROM copies WHERE n <= 10),
	(SELECT array_agg(to_jsonb(copy) ORDER BY ord) FROM copies WHERE n <= 10)) GROUP BY 1;
SELECT result, count(*) FROM idemq.jobs WHERE id IN (SELECT id FROM held WHERE n <= 10) GROUP BY 1;
SELECT outcome, count(*) FROM idemq.fail_many((SELECT array_agg(id ORDER BY ord) FROM copies WHERE n > 10),
	(SELECT array_agg(token ORDER BY ord) FROM copies WHERE n > 10),
	(SELECT array_agg(copy::text ORDER BY ord) FROM copies WHERE n > 10)) GROUP BY 1;
SELECT last_error, attempt, count(*) FROM idemq.jobs WHERE id IN (SELECT id FROM held WHERE n > 10) GROUP BY 1, 2;
SELECT error, outcome, count(*) FROM idemq.attempts WHERE job_id IN (SELECT id FROM held) GROUP BY 1, 2;

-- fail_many: errors, retry_in and permanent for all.
TRUNCATE held;
SELECT count(idemq.enqueue('q', to_jsonb(g), max_attempts => CASE g WHEN 3 THEN 1 ELSE 5 END)) FROM generate_series(1, 3) g;
INSERT INTO held SELECT payload::int, id, token FROM idemq.claim('q', 3);
SELECT n, f.outcome FROM idemq.fail_many((SELECT array_agg(id ORDER BY n) FROM held),
	(SELECT array_agg(token ORDER BY n) FROM held), ARRAY['first', NULL, 'third']) f JOIN held USING (id) ORDER BY n;
SELECT n, status, j.ready_at - a.ended_at AS delay, last_error, error
FROM held JOIN idemq.jobs j USING (id) JOIN idemq.attempts a ON a.job_id = j.id ORDER BY n;
SELECT idemq.retry(id) FROM held;
TRUNCATE held;
INSERT INTO held SELECT payload::int, id, token FROM idemq.claim('q', 3);
SELECT n, f.outcome FROM idemq.fail_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held),
	retry_in => '3 min') f JOIN held USING (id) ORDER BY n;
SELECT n, status, j.attempt, ready_at - ended_at AS delay, last_error
FROM held JOIN idemq.jobs j USING (id) LEFT JOIN idemq.attempts a ON a.token = j.token ORDER BY n;
SELECT idemq.retry(id) FROM held WHERE n < 3;
TRUNCATE held;
INSERT INTO held SELECT payload::int, id, token FROM idemq.claim('q', 3);
SELECT n, f.outcome FROM idemq.fail_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held),
	permanent => true) f JOIN held USING (id) ORDER BY n;

-- release_many: what was claimed and not begun; the attempts do not count, the delay is for all.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 4) g;
TRUNCATE held;
INSERT INTO held SELECT payload::int, id, token FROM idemq.claim('q', 4);
SELECT idemq.commit(id, token) FROM held WHERE n = 1;
SELECT n, r.token - held.token AS token, r.outcome FROM idemq.release_many(
	(SELECT array_agg(id ORDER BY n) || array_agg(id) FILTER (WHERE n = 3) FROM held),
	(SELECT array_agg(token ORDER BY n) || array_agg(token - 1) FILTER (WHERE n = 3) FROM held), '5 min') r
	JOIN held USING (id) ORDER BY n, 2;
SELECT n, status, j.attempt, ready_at - ended_at AS delay, outcome, error
FROM held JOIN idemq.jobs j USING (id) LEFT JOIN idemq.attempts a ON a.token = held.token ORDER BY n;
SELECT idemq.retry(id) FROM held WHERE n > 1;
TRUNCATE held;
INSERT INTO held SELECT payload::int, id, token FROM idemq.claim('q', 3);
SELECT n, outcome FROM idemq.release_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held)) JOIN held USING (id) ORDER BY n;
SELECT payload, attempt FROM idemq.claim('q', 10) ORDER BY payload;

-- heartbeat_many moves the deadline of each.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 3) g;
TRUNCATE held;
INSERT INTO held SELECT payload::int, id, token FROM idemq.claim('q', 3, lease => '1 ms'); -- meant to expire
SELECT n, outcome FROM idemq.heartbeat_many((SELECT array_agg(id ORDER BY n) FROM held WHERE n < 3),
	(SELECT array_agg(token ORDER BY n) FROM held WHERE n < 3), lease => '1 h') JOIN held USING (id) ORDER BY n;
SELECT pg_sleep(0.005);
SELECT n, idemq.validate(id, token) FROM held ORDER BY n;

-- Arrays that are empty, of different lengths, with NULLs, of another shape.
SELECT * FROM idemq.commit_many('{}', '{}');
SELECT * FROM idemq.commit_many('{}', '{}', '{}');
SELECT * FROM idemq.fail_many('{}', '{}');
SELECT * FROM idemq.heartbeat_many('{}', '{}');
SELECT * FROM idemq.release_many('{}', '{}');
CREATE FUNCTION state(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE sql;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN SQLSTATE || ' ' || SQLERRM || CASE hint WHEN '' THEN ', no hint' ELSE '' END;
END $$;
CREATE TABLE bad (ord int GENERATED ALWAYS AS IDENTITY, args text);
INSERT INTO bad (args) VALUES
	('NULL, ARRAY[1]'), ('ARRAY[1], NULL'), ('NULL, NULL'),
	('ARRAY[1, 2], ARRAY[1]'), ('ARRAY[1], ARRAY[1, 2]'), ('ARRAY[1], ''{}'''), ('''{}'', ARRAY[1]'),
	('ARRAY[1, NULL], ARRAY[1, 2]'), ('ARRAY[1, 2], ARRAY[1, NULL]'),
	('''[0:1]={1,2}'', ARRAY[1, 2]'), ('ARRAY[1, 2], ''[5:6]={1,2}'''), ('''[2:2]={1}'', ''[2:2]={1}'''),
	('ARRAY[[1], [2]], ARRAY[1, 2]'), ('ARRAY[[1, 2], [3, 4]], ARRAY[[1, 2], [3, 4]]'),
	('array_fill(1::bigint, ARRAY[1000001]), array_fill(1::bigint, ARRAY[1000001])');
SELECT fn, args, state('SELECT * FROM idemq.' || fn || '(' || args || ')')
FROM bad, unnest(ARRAY['commit_many', 'fail_many', 'release_many', 'heartbeat_many']) fn ORDER BY fn, ord;
SELECT state($$SELECT * FROM idemq.commit_many(ARRAY[1, 2], ARRAY[1, 2], ARRAY['1']::jsonb[])$$);
SELECT state($$SELECT * FROM idemq.commit_many(ARRAY[1], ARRAY[1], ARRAY['1', '2']::jsonb[])$$);
SELECT state($$SELECT * FROM idemq.commit_many(ARRAY[1], ARRAY[1], '{}')$$);
SELECT state($$SELECT * FROM idemq.commit_many(ARRAY[1], ARRAY[1], '{{1}}')$$);
SELECT state($$SELECT * FROM idemq.commit_many(ARRAY[1], ARRAY[1], '[3:3]={1}')$$);
SELECT state($$SELECT * FROM idemq.fail_many(ARRAY[1, 2], ARRAY[1, 2], ARRAY['one'])$$);
SELECT state($$SELECT * FROM idemq.fail_many(ARRAY[1], ARRAY[1], permanent => NULL)$$);
SELECT state($$SELECT * FROM idemq.fail_many(ARRAY[1], ARRAY[1], retry_in => '-1 s')$$);
SELECT state($$SELECT * FROM idemq.heartbeat_many(ARRAY[1], ARRAY[1], lease => '0')$$);
SELECT state($$SELECT * FROM idemq.release_many(ARRAY[1], ARRAY[1], delay => '-1 s')$$);
-- Nothing of a refused batch is done.
SELECT state(format('SELECT * FROM idemq.commit_many(ARRAY[%s, NULL], ARRAY[%s, 1])', id, token)) FROM held WHERE n = 1;
SELECT n, status FROM held JOIN idemq.jobs USING (id) ORDER BY n;

-- An exact million is accepted (of jobs that are not there: no write).
SELECT outcome, count(*) FROM idemq.heartbeat_many(array_fill(0::bigint, ARRAY[10000]), array_fill(0::bigint, ARRAY[10000])) GROUP BY 1;
SELECT outcome, count(*) FROM idemq.commit_many(array_fill(0::bigint, ARRAY[1000000]), array_fill(0::bigint, ARRAY[1000000])) GROUP BY 1;

-- A batch that fills its pages: the claims' versions go elsewhere.
SELECT idemq.create_queue('page', lease => '1 h');
SELECT count(idemq.enqueue('page', to_jsonb(g))) FROM generate_series(1, 300) g;
CREATE TABLE page AS SELECT id, token FROM idemq.claim('page', 300);
SELECT outcome, count(*) FROM idemq.commit_many((SELECT array_agg(id) FROM page), (SELECT array_agg(token) FROM page)) GROUP BY 1;
SELECT status, count(*) FROM idemq.jobs JOIN page USING (id) GROUP BY 1;

-- 5,000 jobs in one call; batches_large.sql has more than the lease table holds.
SELECT idemq.create_queue('big', lease => '1 h');
SELECT count(*), count(DISTINCT id), min(ord), max(ord) FROM idemq.enqueue_many('big', (SELECT array_agg(to_jsonb(g)) FROM generate_series(1, 5000) g));
CREATE TABLE big AS SELECT * FROM idemq.claim('big', 5000);
SELECT count(*), count(DISTINCT token), min(attempt), max(attempt), sum(payload::int) FROM big;
SELECT count(*) FROM idemq.claim('big', 10);
SELECT outcome, count(*) FROM idemq.heartbeat_many((SELECT array_agg(id ORDER BY id) FROM big WHERE payload::int <= 1000),
	(SELECT array_agg(token ORDER BY id) FROM big WHERE payload::int <= 1000)) GROUP BY 1;
SELECT outcome, count(*) FROM idemq.heartbeat_many((SELECT array_agg(id ORDER BY id) FROM big WHERE payload::int > 4000),
	(SELECT array_agg(token ORDER BY id) FROM big WHERE payload::int > 4000)) GROUP BY 1;
SELECT outcome, count(*) FROM idemq.fail_many((SELECT array_agg(id ORDER BY id) FROM big WHERE payload::int % 100 = 0),
	(SELECT array_agg(token ORDER BY id) FROM big WHERE payload::int % 100 = 0), retry_in => '0') GROUP BY 1;
SELECT outcome, count(*) FROM idemq.commit_many((SELECT array_agg(id ORDER BY id % 1000, id) FROM big),
	(SELECT array_agg(token ORDER BY id) FROM big)) GROUP BY 1 ORDER BY 1;
SELECT outcome, count(*) FROM idemq.commit_many((SELECT array_agg(id ORDER BY id DESC) FROM big),
	(SELECT array_agg(token ORDER BY id DESC) FROM big)) GROUP BY 1 ORDER BY 1;
SELECT status, j.attempt, count(*) FROM idemq.jobs j JOIN big USING (id) GROUP BY 1, 2 ORDER BY 1, 2;
SELECT count(*), min(attempt), max(attempt) FROM idemq.claim('big', 5000);
