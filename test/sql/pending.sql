-- What a transaction notes for its end: how much memory that takes, and that nested
-- savepoints which take over one another's lease entries are undone one by one.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0) AS q \gset

-- Memory of the open transaction's notes, in bytes each; a few other things are there too.
CREATE FUNCTION bytes_each(notes int) RETURNS numeric LANGUAGE sql AS $$
	SELECT sum(total_bytes - 32768) / notes FROM pg_backend_memory_contexts WHERE name = 'TopTransactionContext'
$$;
CREATE TABLE held (id bigint, token bigint);

-- 7,500 jobs: at most 80 bytes each.  So many fill what PostgreSQL allocates; pending_large.sql has more.
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg('1'::jsonb) FROM generate_series(1, 7500)));
BEGIN;
INSERT INTO held SELECT id, token FROM generate_series(1, 10) g, LATERAL idemq.claim('q', 750 + 0 * g);
SELECT count(*), bytes_each(7500) <= 80 AS claims_are_small FROM held;
COMMIT;
BEGIN;
SELECT count(*) FILTER (WHERE outcome = 'committed') FROM idemq.commit_many(
	(SELECT array_agg(id ORDER BY id) FROM held), (SELECT array_agg(token ORDER BY id) FROM held));
SELECT bytes_each(7500) <= 80 AS ends_are_small;
ROLLBACK;
SELECT count(*) FILTER (WHERE outcome = 'committed') FROM idemq.commit_many(
	(SELECT array_agg(id ORDER BY id) FROM held), (SELECT array_agg(token ORDER BY id) FROM held));
SELECT count(*) FILTER (WHERE status = 'completed') AS completed, count(*) FROM idemq.jobs;

-- 2,000 attempts given back and claimed again at once: an end, a claim and what that took
-- over, each at most 80 bytes, and PostgreSQL's own memory of rows written twice.
TRUNCATE held;
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg('1'::jsonb) FROM generate_series(1, 2000)));
INSERT INTO held SELECT id, token FROM generate_series(1, 2) g, LATERAL idemq.claim('q', 1000 + 0 * g);
BEGIN;
SELECT count(idemq.release(id, token)) FROM held;
SELECT count(*) FROM generate_series(1, 2) g, LATERAL idemq.claim('q', 1000 + 0 * g);
SELECT bytes_each(2000) <= 3 * 80 + 40 AS take_overs_are_small;
ROLLBACK;
SELECT count(*) FILTER (WHERE outcome = 'committed') FROM idemq.commit_many(
	(SELECT array_agg(id ORDER BY id) FROM held), (SELECT array_agg(token ORDER BY id) FROM held));

-- 5,000 groups: 80 bytes and the name.
BEGIN;
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg('1'::jsonb) FROM generate_series(1, 5000)),
	group_keys => (SELECT array_agg(md5(n::text)) FROM generate_series(1, 5000) n));
SELECT bytes_each(5000) <= 80 + 32 AS groups_are_small;
-- Once more the same ones, and one whose name is too long to be kept.
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg('1'::jsonb) FROM generate_series(1, 5000)),
	group_keys => (SELECT array_agg(md5(n::text)) FROM generate_series(1, 5000) n));
SELECT count(*) FROM idemq.enqueue('q', '1', group_key => repeat('long', 100));
SELECT count(*) FROM idemq.enqueue('q', '1', group_key => repeat('long', 100));
SELECT bytes_each(5000) <= 80 + 32 AS groups_are_small;
ROLLBACK;

-- What is rolled back leaves nothing: a job that is given back and claimed again, in
-- 500 savepoints, each of which takes over an entry.
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
CALL again(:job, :token, 500);
-- PostgreSQL itself keeps some 10 bytes of each row that was written twice.
SELECT bytes_each(500) < 20 AS nothing_left;
COMMIT;
SELECT idemq.validate(:job, :token), idemq.commit(:job, :token);
-- check(), which reads every row, is asked often from here on.
SELECT count(*) AS purged FROM idemq.purge('q');
VACUUM ANALYZE idemq.jobs;

-- Nested: each level gives the job back, or fails it, and claims it again.  deep: how many
-- levels; keep: so many of them, from the first, are not rolled back.  Returns the token
-- of the last one that is kept.
CREATE FUNCTION nest(job bigint, token bigint, deep int, keep int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	kept bigint;
	own bigint;
BEGIN
	IF deep = 0 THEN
		RETURN token;
	END IF;
	BEGIN
		IF deep % 2 = 0 THEN
			PERFORM idemq.release(job, token);
		ELSE
			PERFORM idemq.fail(job, token, retry_in => '0');
		END IF;
		SELECT c.token INTO STRICT own FROM idemq.claim('n') c WHERE c.id = job;
		kept := nest(job, own, deep - 1, keep - 1);
		IF keep <= 0 THEN
			RAISE SQLSTATE 'UNDO0';
		END IF;
		-- What was rolled back below has left this level's lease as it was.
		IF idemq.validate(job, kept) <> 'current' OR idemq.heartbeat(job, kept) <> 'current' THEN
			RAISE 'the lease of level % is lost', deep;
		END IF;
	EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
		kept := token;
	END;
	RETURN kept;
END $$;
CREATE FUNCTION nested(deep int, keep int) RETURNS TABLE (kept_levels int, lease text, others bigint, ended text) LANGUAGE plpgsql AS $$
DECLARE
	job bigint;
	first bigint;
	last bigint;
BEGIN
	SELECT e.id INTO job FROM idemq.enqueue('n', '"nest"') e;
	SELECT c.token INTO STRICT first FROM idemq.claim('n') c;
	last := nest(job, first, deep, keep);
	RETURN QUERY SELECT keep, idemq.validate(job, last)::text || CASE WHEN last = first THEN ' as before' ELSE ' anew' END,
		(SELECT count(*) FROM idemq.claim('n', 10)), idemq.try_commit(job, last)::text;
END $$;
SELECT idemq.create_queue('n', lease => '1 h', retry_jitter => 0) > :q AS n;

-- With the claim in the same transaction, without max_running and with it.
SELECT n.* FROM generate_series(0, 6) keep, LATERAL nested(6, keep) n;
SELECT idemq.alter_queue('n', max_running => 1);
SELECT n.* FROM generate_series(0, 6) keep, LATERAL nested(6, keep) n;
SELECT count(*) FROM idemq.check();

-- With the claim committed before; rolled back in the end, or committed.
SELECT id AS job FROM idemq.enqueue('n', '"committed"') \gset
SELECT token FROM idemq.claim('n') \gset
BEGIN;
SELECT nest(:job, :token, 5, 3) > :token AS anew;
ROLLBACK;
SELECT idemq.validate(:job, :token), (SELECT count(*) FROM idemq.claim('n')) AS others, (SELECT count(*) FROM idemq.check()) AS wrong;
SELECT nest(:job, :token, 5, 3) AS last \gset
SELECT idemq.validate(:job, :token), idemq.validate(:job, :last), (SELECT count(*) FROM idemq.claim('n')) AS others, (SELECT count(*) FROM idemq.check()) AS wrong;
SELECT idemq.commit(:job, :last);

-- With PREPARE TRANSACTION: refused with a claim; rolled back, committed.
SELECT idemq.alter_queue('n', max_running => 0);
SELECT id AS job FROM idemq.enqueue('n', '"prepared"') \gset
SELECT token FROM idemq.claim('n') \gset
BEGIN;
SELECT nest(:job, :token, 5, 0) = :token AS as_before;
SELECT count(*) FROM idemq.claim('n');
SELECT count(*) FROM idemq.enqueue('n', '"other"');
SELECT count(*) FROM idemq.claim('n');
PREPARE TRANSACTION 'idemq pending';
SELECT idemq.validate(:job, :token), (SELECT count(*) FROM idemq.check()) AS wrong;
BEGIN;
SELECT nest(:job, :token, 5, 3) > :token AS anew;
PREPARE TRANSACTION 'idemq pending';
SELECT idemq.validate(:job, :token), (SELECT count(*) FROM idemq.check()) AS wrong;
BEGIN;
SELECT nest(:job, :token, 5, 0) = :token AS as_before, idemq.release(:job, :token);
PREPARE TRANSACTION 'idemq pending';
SELECT count(*) AS others FROM idemq.claim('n');
ROLLBACK PREPARED 'idemq pending';
SELECT idemq.validate(:job, :token), (SELECT count(*) FROM idemq.claim('n')) AS others, (SELECT count(*) FROM idemq.check()) AS wrong;
BEGIN;
SELECT nest(:job, :token, 5, 0) = :token AS as_before, idemq.commit(:job, :token);
PREPARE TRANSACTION 'idemq pending';
COMMIT PREPARED 'idemq pending';
SELECT idemq.validate(:job, :token), (SELECT count(*) FROM idemq.claim('n')) AS others, (SELECT count(*) FROM idemq.check()) AS wrong;

-- A queue that a prepared transaction creates: rolled back, it keeps no queue state; committed, it works.
BEGIN;
SELECT idemq.create_queue('gone') > 0 AS created, (idemq.enqueue('gone', '1')).outcome;
PREPARE TRANSACTION 'idemq pending';
ROLLBACK PREPARED 'idemq pending';
SELECT * FROM idemq.check();
BEGIN;
SELECT idemq.create_queue('made', max_running => 1) > 0 AS created, (idemq.enqueue('made', '1')).outcome;
PREPARE TRANSACTION 'idemq pending';
COMMIT PREPARED 'idemq pending';
SELECT pending FROM idemq.metrics WHERE queue = 'made';
-- From PREPARE on its jobs would not count for max_running: no attempt's end there.
SELECT id AS job, token FROM idemq.claim('made') \gset
BEGIN;
SELECT idemq.release(:job, :token);
PREPARE TRANSACTION 'idemq pending';
SELECT idemq.validate(:job, :token), (SELECT count(*) FROM pg_prepared_xacts) AS prepared;
SELECT * FROM idemq.check();
