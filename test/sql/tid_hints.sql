-- The TID that a row had at its claim is remembered; whatever becomes of that TID, its commit
-- finds the row, and no other.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
SELECT idemq.create_queue('q', retry_base => '1 us', retry_max => '1 us') > 0 AS created;

-- Claims three of ten jobs; the others are there to be met at their TIDs.
CREATE TABLE claimed (id bigint, token bigint, payload jsonb);
CREATE PROCEDURE begin_again() LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq.purge('q');
	DELETE FROM idemq.jobs;
	DELETE FROM claimed;
	PERFORM idemq.enqueue('q', to_jsonb(n), key => CASE WHEN n % 2 = 0 THEN n::text END) FROM generate_series(1, 10) n;
	-- In the order of the ready index, they are not the first of the table.
	UPDATE idemq.jobs SET ready_at = ready_at - interval '1 h' WHERE payload::int IN (4, 5, 9);
	INSERT INTO claimed SELECT c.id, c.token, c.payload FROM idemq.claim('q', 3) c;
END $$;
CREATE VIEW done AS SELECT j.payload, j.status, j.result, j.token = c.token AS by_its_token FROM idemq.jobs j JOIN claimed c USING (id) ORDER BY 1;
CREATE FUNCTION finish() RETURNS TABLE (payload jsonb, outcome idemq.outcome) LANGUAGE sql
	AS $$ SELECT c.payload, idemq.try_commit(c.id, c.token, c.payload) FROM claimed c ORDER BY 1 $$;

-- Where it was.
CALL begin_again();
SELECT * FROM finish();
SELECT * FROM finish();
SELECT * FROM done;

-- The table is rewritten in another order, so that other rows have those TIDs.
CALL begin_again();
DELETE FROM idemq.jobs WHERE payload::int IN (1, 2, 3);
VACUUM FULL idemq.jobs;
SELECT * FROM finish();
SELECT * FROM done;
CALL begin_again();
CREATE INDEX backwards ON idemq.jobs (priority, payload DESC);
CLUSTER idemq.jobs USING backwards;
SELECT * FROM finish();
SELECT * FROM done;
DROP INDEX idemq.backwards;

-- Twice, within the claim's transaction.
BEGIN;
CREATE TEMP TABLE one AS SELECT c.* FROM idemq.enqueue('q', '11') e, idemq.claim_job(e.id) c;
ALTER TABLE idemq.jobs ALTER COLUMN rerun_headers TYPE jsonb USING rerun_headers || NULL;
SELECT idemq.commit(id, token) FROM one;
DROP TABLE one;
COMMIT;

-- The row moves by updates that are not HOT, its TID is vacuumed away and used again.
CALL begin_again();
UPDATE idemq.jobs SET ready_at = ready_at - interval '1 min';
VACUUM idemq.jobs;
SELECT count(*) FROM generate_series(1, 100) n, idemq.enqueue('q', to_jsonb(-n));
SELECT * FROM finish();
SELECT * FROM done;

-- The end of the file is cut off, with the TID in it.
CALL begin_again();
SELECT count(*) FROM generate_series(1, 1000) n, idemq.enqueue('q', to_jsonb(-n));
INSERT INTO claimed SELECT c.id, c.token, c.payload FROM idemq.enqueue('q', '"last"') e, idemq.claim_job(e.id) c;
SELECT ctid > '(2,0)' AS at_the_end FROM idemq.jobs WHERE payload = '"last"';
DELETE FROM idemq.jobs WHERE payload < '0' AND payload <> '"last"';
VACUUM idemq.jobs;
-- A session that has inserted nothing: it asks where there is room.
\c -
\set VERBOSITY sqlstate
DO $$
BEGIN
	-- So many versions in one transaction that it has to move.
	FOR i IN 1 .. 100 LOOP
		UPDATE idemq.jobs SET ready_at = ready_at - interval '1 min' WHERE payload = '"last"';
	END LOOP;
END $$;
SELECT ctid < '(30,0)' AS has_moved FROM idemq.jobs WHERE payload = '"last"';
ALTER TABLE idemq.jobs SET (vacuum_truncate = on);
VACUUM (TRUNCATE) idemq.jobs;
SELECT pg_relation_size('idemq.jobs') < 36 * 8192 AS is_cut;
SELECT * FROM finish();
SELECT * FROM done;
ALTER TABLE idemq.jobs SET (vacuum_truncate = off);

-- Emptied: the job is not found, though its TID may be.
CALL begin_again();
TRUNCATE idemq.jobs;
SELECT outcome FROM idemq.enqueue('q', '20');
SELECT * FROM finish();

-- An older token does not commit the next attempt, at the same TID.
CALL begin_again();
CREATE TABLE before AS SELECT * FROM claimed;
SELECT outcome FROM claimed c, LATERAL idemq.fail(c.id, c.token, 'no') f(outcome);
SELECT count(*) FROM claimed c, idemq.claim_job(c.id) j WHERE j.outcome = 'claimed_again';
SELECT idemq.try_commit(id, token), idemq.validate(id, token), idemq.heartbeat(id, token) FROM before;
SELECT j.payload, status, attempt FROM idemq.jobs j JOIN before b USING (id) ORDER BY 1;

-- A claim that takes a job over, and is undone: the TID hint is as before.
CALL begin_again();
BEGIN;
SELECT idemq.release(id, token) FROM claimed;
SAVEPOINT a;
SELECT count(*) FROM claimed c, idemq.claim_job(c.id) j WHERE j.outcome = 'claimed';
ROLLBACK TO a;
ROLLBACK;
SELECT * FROM finish();

-- Pages: what a job's life adds has room where it is, also once more and again; with a
-- row of any length.
SELECT count(idemq.purge('q'));
DELETE FROM idemq.jobs;
VACUUM FULL idemq.jobs;
SELECT count(*) FROM generate_series(1, 100) n, idemq.enqueue('q', jsonb_build_object('a', repeat('x', n)));
SELECT pg_relation_size('idemq.jobs') AS size \gset
DO $$
BEGIN
	FOR i IN 1 .. 500 LOOP
		PERFORM idemq.release(c.id, c.token) FROM idemq.claim('q') c;
		COMMIT;
	END LOOP;
END $$;
SELECT count(*) AS released FROM idemq.jobs WHERE status = 'pending' AND token > 0;
SELECT pg_relation_size('idemq.jobs') <= 2 * :size AS is_no_larger;

-- Unique indexes of a user hold: a key that an update leaves as it was is checked where the
-- predicate begins to hold.
CREATE UNIQUE INDEX one_done ON idemq.jobs (priority) WHERE finished_at IS NOT NULL;
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;
DROP INDEX idemq.one_done;
SELECT * FROM idemq.check();
DROP VIEW done;
DROP FUNCTION finish;
DROP TABLE claimed, before;
DROP PROCEDURE begin_again;
DROP EXTENSION idemq;
