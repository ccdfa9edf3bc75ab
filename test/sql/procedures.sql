-- enqueue_job, commit_job, fail_job: enqueue, commit and fail as a CALL.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0);

-- The row of the function; INOUT arguments are left out.
CALL idemq.enqueue_job('q', '1', key => 'k', headers => '{"h": 1}', max_attempts => 2);
CALL idemq.enqueue_job('q', '1', 'k', nowait => true);
CALL idemq.enqueue_job('q', '2', 'k');
CALL idemq.enqueue_job('nope', '2');
CALL idemq.enqueue_job('q', NULL);
CALL idemq.enqueue_job('q', '2', delay => '-1 s');
SELECT id, token FROM idemq.claim('q') \gset
CALL idemq.commit_job(:id, :token - 1);
CALL idemq.commit_job(NULL, :token);
CALL idemq.commit_job(0, 0);
CALL idemq.fail_job(:id, :token - 1, 'stale');
CALL idemq.fail_job(:id, :token, 'once', '0', details => '{"status": 502}');
SELECT attempt, outcome, error, details FROM idemq.attempts;
SELECT id, token FROM idemq.claim('q') \gset
CALL idemq.commit_job(:id, :token, '"done"');
CALL idemq.commit_job(:id, :token, '"again"');
CALL idemq.enqueue_job('q', '1', 'k');

-- In the caller's transaction, which they do not end; undone with it.
BEGIN;
CALL idemq.enqueue_job('q', '3', 'l');
SAVEPOINT s;
CALL idemq.enqueue_job('q', '4', 'm');
ROLLBACK TO s;
COMMIT;
SELECT key, payload, status FROM idemq.jobs ORDER BY key;
SELECT id, token FROM idemq.claim('q') \gset
BEGIN;
CALL idemq.commit_job(:id, :token);
ROLLBACK;
SELECT idemq.validate(:id, :token);
-- Not in a transaction that only reads.
BEGIN READ ONLY;
CALL idemq.commit_job(:id, :token);
ROLLBACK;

-- From PL/pgSQL with variables, in a procedure that commits.
CREATE PROCEDURE work(id bigint, token bigint) LANGUAGE plpgsql AS $$
DECLARE
	said idemq.outcome;
	job bigint;
	status idemq.status;
	result jsonb;
BEGIN
	CALL idemq.commit_job(id, token, '"r"', said);
	COMMIT;
	CALL idemq.enqueue_job('q', '5', key => 'n', id => job, outcome => said, status => status, result => result);
	RAISE NOTICE '% %', said, status;
	COMMIT;
	CALL idemq.enqueue_job('q', '3', key => 'l', id => job, outcome => said, status => status, result => result);
	RAISE NOTICE '% % %', said, status, result;
END $$;
CALL work(:id, :token);
SELECT key, status FROM idemq.jobs ORDER BY key;

-- By a role that may not.
CREATE ROLE procedures_stranger;
GRANT USAGE ON SCHEMA idemq TO procedures_stranger;
SET ROLE procedures_stranger;
CALL idemq.enqueue_job('q', '1');
CALL idemq.commit_job(:id, :token);
CALL idemq.fail_job(:id, :token);
RESET ROLE;
DROP OWNED BY procedures_stranger;
DROP ROLE procedures_stranger;
SELECT * FROM idemq.check();
