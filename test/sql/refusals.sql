-- Refusals are counted when they are answered, and stay counted when the caller rolls back.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 100, retry_base => '1 ms', retry_max => '1 ms'); -- meant to expire
CREATE VIEW refused AS SELECT duplicates_total AS duplicates, stale_commits_total AS stale_commits, stale_calls_total AS stale_calls, repeated_commits_total AS repeated FROM idemq.metrics WHERE queue = 'q';
CREATE TABLE zombies (id bigint, token bigint);

-- A lease ends ten times while its worker lives on, and commits.
SELECT id FROM idemq.enqueue('q', '1') \gset
CREATE PROCEDURE lose_leases(job bigint, n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		LOOP
			INSERT INTO zombies SELECT c.id, c.token FROM idemq.claim_job(job, lease => '1 ms') c WHERE c.token IS NOT NULL; -- meant to expire
			EXIT WHEN FOUND;
			COMMIT;
		END LOOP;
		COMMIT;
		LOOP
			PERFORM idemq.reap('q');
			COMMIT;
			EXIT WHEN EXISTS (SELECT FROM idemq.attempts a JOIN zombies z ON z.id = a.job_id AND z.token = a.token HAVING count(*) = i);
		END LOOP;
	END LOOP;
END $$;
CALL lose_leases(:id, 10);
CREATE PROCEDURE zombies_commit() LANGUAGE plpgsql AS $$
DECLARE
	z record;
BEGIN
	FOR z IN SELECT * FROM zombies LOOP
		BEGIN
			PERFORM idemq.commit(z.id, z.token);
			RAISE 'a zombie''s commit was accepted';
		EXCEPTION WHEN SQLSTATE 'IQ001' THEN
		END;
	END LOOP;
END $$;
BEGIN;
CALL zombies_commit();
ROLLBACK;
SELECT stale_commits_total AS zombies_refused, expired_total AS resurrections, stale_commits_total = expired_total AS equal FROM idemq.metrics WHERE queue = 'q';
SELECT * FROM refused;
-- Of a batch, and by try_commit.
SELECT outcome, count(*) FROM idemq.commit_many((SELECT array_agg(id) FROM zombies), (SELECT array_agg(token) FROM zombies)) GROUP BY 1;
SELECT idemq.try_commit(id, token) FROM zombies LIMIT 1;
SELECT * FROM refused;

-- Their other calls.  validate only asks.
SELECT token FROM zombies LIMIT 1 \gset
SELECT idemq.heartbeat(:id, :token), idemq.fail(:id, :token, 'x'), idemq.release(:id, :token), idemq.validate(:id, :token);
SELECT outcome FROM idemq.heartbeat_many(ARRAY[:id], ARRAY[:token]::bigint[]);
SELECT idemq.checkpoint(:id, :token, '1');
SELECT idemq.assert_current(:id, :token);
CREATE TABLE documents (job_id bigint, token bigint);
CREATE TRIGGER fence BEFORE INSERT ON documents FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token');
INSERT INTO documents VALUES (:id, :token);
SELECT * FROM refused;
-- Also a heartbeat that the lease table answers: another has the job.
SELECT token AS current FROM idemq.claim_job(:id) \gset
SELECT idemq.heartbeat(:id, :token), idemq.heartbeat(:id, :current);
SELECT * FROM refused;

-- Repeated commits, which a rollback of theirs does not uncount.
SELECT idemq.commit(:id, :current);
BEGIN;
SELECT idemq.commit(:id, :current);
ROLLBACK;
SELECT idemq.try_commit(:id, :current), idemq.commit_once(:id);
SELECT idemq.fail(:id, :current, 'x'), idemq.heartbeat(:id, :current);
SELECT * FROM refused;
-- A commit that is rolled back was no refusal, and is not counted at all.
SELECT id FROM idemq.enqueue('q', '2') \gset
BEGIN;
SELECT idemq.commit_once(:id);
ROLLBACK;
SELECT committed_total FROM idemq.metrics WHERE queue = 'q';

-- Duplicates: answered, raised, in a batch, of acquire.
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k');
BEGIN;
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k');
SELECT outcome FROM idemq.enqueue_many('q', '{1,1}', keys => '{k,k}');
ROLLBACK;
SELECT * FROM refused;
SELECT idemq.enqueue('q', '2', key => 'k');
SELECT idemq.enqueue('q', '1', key => 'k', on_duplicate => 'error');
SELECT outcome FROM idemq.enqueue('q', '2', key => 'k', on_duplicate => 'rerun');
SELECT * FROM refused;
SELECT id, token FROM idemq.acquire('q', 'k') \gset
SELECT outcome FROM idemq.acquire('q', 'k');
SELECT * FROM refused;
SELECT idemq.commit(:id, :token);
BEGIN;
SELECT outcome FROM idemq.acquire('q', 'k');
ROLLBACK;
SELECT idemq.acquire('q', 'k', '3');
SELECT * FROM refused;

-- once has no queue: its answers are counted for the whole server.
SELECT first, repeated FROM idemq.once_calls \gset before_
SELECT idemq.once('s', 'k'), idemq.once('s', 'k');
BEGIN;
SELECT idemq.once('s', 'k'), idemq.once('s', 'l');
ROLLBACK;
SELECT first - :before_first AS first, repeated - :before_repeated AS repeated FROM idemq.once_calls;

-- Not of a job that the role may not claim: nothing is told of it, nothing counted.
CREATE ROLE regress_refused;
GRANT USAGE ON SCHEMA idemq TO regress_refused;
SET ROLE regress_refused;
SELECT idemq.try_commit(:id, 1), idemq.heartbeat(:id, 1);
SELECT * FROM idemq.once_calls;
RESET ROLE;
SELECT * FROM refused;
DROP OWNED BY regress_refused;
DROP ROLE regress_refused;
SELECT idemq.check();
DROP TABLE documents, zombies;
DROP PROCEDURE lose_leases, zombies_commit;
DROP VIEW refused;
DROP EXTENSION idemq;
