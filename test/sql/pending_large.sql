-- What a transaction notes for its end: how much memory a large one takes.
-- slow: it enqueues 170,000 jobs
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0) AS q \gset

-- Memory of the open transaction's notes, in bytes each; a few other things are there too.
CREATE FUNCTION bytes_each(notes int) RETURNS numeric LANGUAGE sql AS $$
	SELECT sum(total_bytes - 32768) / notes FROM pg_backend_memory_contexts WHERE name = 'TopTransactionContext'
$$;
CREATE TABLE held (id bigint, token bigint);

-- 50,000 jobs: at most 80 bytes each.
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg('1'::jsonb) FROM generate_series(1, 50000)));
BEGIN;
INSERT INTO held SELECT id, token FROM generate_series(1, 50) g, LATERAL idemq.claim('q', 1000 + 0 * g);
SELECT count(*), bytes_each(50000) <= 80 AS claims_are_small FROM held;
COMMIT;
BEGIN;
SELECT count(*) FILTER (WHERE outcome = 'committed') FROM idemq.commit_many(
	(SELECT array_agg(id ORDER BY id) FROM held), (SELECT array_agg(token ORDER BY id) FROM held));
SELECT bytes_each(50000) <= 80 AS ends_are_small;
ROLLBACK;
SELECT count(*) FILTER (WHERE outcome = 'committed') FROM idemq.commit_many(
	(SELECT array_agg(id ORDER BY id) FROM held), (SELECT array_agg(token ORDER BY id) FROM held));
SELECT count(*) FILTER (WHERE status = 'completed') AS completed, count(*) FROM idemq.jobs;

-- 20,000 attempts given back and claimed again at once: an end, a claim and what that took
-- over, each at most 80 bytes, and PostgreSQL's own memory of rows written twice.
TRUNCATE held;
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg('1'::jsonb) FROM generate_series(1, 20000)));
INSERT INTO held SELECT id, token FROM generate_series(1, 20) g, LATERAL idemq.claim('q', 1000 + 0 * g);
BEGIN;
SELECT count(idemq.release(id, token)) FROM held;
SELECT count(*) FROM generate_series(1, 20) g, LATERAL idemq.claim('q', 1000 + 0 * g);
SELECT bytes_each(20000) <= 3 * 80 + 40 AS take_overs_are_small;
ROLLBACK;
SELECT count(*) FILTER (WHERE outcome = 'committed') FROM idemq.commit_many(
	(SELECT array_agg(id ORDER BY id) FROM held), (SELECT array_agg(token ORDER BY id) FROM held));

-- 50,000 groups: 80 bytes and the name.
BEGIN;
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg('1'::jsonb) FROM generate_series(1, 50000)),
	group_keys => (SELECT array_agg(md5(n::text)) FROM generate_series(1, 50000) n));
SELECT bytes_each(50000) <= 80 + 32 AS groups_are_small;
-- Once more the same ones, and one whose name is too long to be kept.
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg('1'::jsonb) FROM generate_series(1, 50000)),
	group_keys => (SELECT array_agg(md5(n::text)) FROM generate_series(1, 50000) n));
SELECT count(*) FROM idemq.enqueue('q', '1', group_key => repeat('long', 100));
SELECT count(*) FROM idemq.enqueue('q', '1', group_key => repeat('long', 100));
SELECT bytes_each(50000) <= 80 + 32 AS groups_are_small;
ROLLBACK;

-- What is rolled back leaves nothing: a job that is given back and claimed again, in
-- 5,000 savepoints, each of which takes over an entry.
SELECT id AS job FROM idemq.enqueue('q', '"again"') \gset
SELECT token FROM idemq.claim('q') \gset
CREATE PROCEDURE again(job bigint, token bigint, times int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. times LOOP
		BEGIN
			PERFORM idemq.release(job, token);
			PERFORM FROM idemq.claim('q');
			RAISE SQLSTATE 'UNDO0';
		EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL;
		END;
	END LOOP;
END $$;
BEGIN;
CALL again(:job, :token, 5000);
-- PostgreSQL itself keeps some 10 bytes of each row that was written twice.
SELECT bytes_each(5000) < 20 AS nothing_left;
COMMIT;
SELECT idemq.validate(:job, :token), idemq.commit(:job, :token);
SELECT * FROM idemq.check();
