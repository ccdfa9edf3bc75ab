-- check(): each invariant broken by hand, reported, mended, and clean again.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 3) AS q \gset
SELECT count(idemq.enqueue('q', to_jsonb(g), run_at => '2001-01-01')) FROM generate_series(1, 24) g;
SELECT count(*) FROM idemq.claim('q', 4);
SELECT idemq.commit(id, token) FROM idemq.job(1000000000001);
SELECT * FROM idemq.check();

-- Rows: the trigger is off, so that the rows alone are wrong.
CREATE PROCEDURE broken(change text) LANGUAGE plpgsql AS $$
DECLARE
	found record;
BEGIN
	BEGIN
		ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
		EXECUTE change;
		ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
		FOR found IN SELECT * FROM idemq.check() LOOP
			RAISE INFO '%|%|%', found.severity, found.invariant, found.detail;
		END LOOP;
		RAISE division_by_zero;
	EXCEPTION WHEN division_by_zero THEN NULL;
	END;
	FOR found IN SELECT * FROM idemq.check() LOOP
		RAISE INFO 'still: %', found;
	END LOOP;
END $$;
\set VERBOSITY terse
CALL broken('UPDATE idemq.jobs SET ready_at = NULL WHERE id = 1000000000010');
CALL broken('UPDATE idemq.jobs SET ready_at = now() WHERE id = 1000000000001');
CALL broken('UPDATE idemq.jobs SET finished_at = NULL WHERE id = 1000000000001');
CALL broken('UPDATE idemq.jobs SET finished_at = now() WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET deadline = NULL WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET deadline = claimed_at WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET flags = 7 WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET flags = 32 WHERE id = 1000000000010');
CALL broken('UPDATE idemq.jobs SET flags = 64, group_key = ''g'' WHERE id IN (1000000000001, 1000000000002)');
CALL broken('UPDATE idemq.jobs SET flags = 1 WHERE id IN (1000000000001, 1000000000010)');
CALL broken('UPDATE idemq.jobs SET flags = -1 WHERE id = 1000000000002');
-- renewed_at: with its flag alone, and the deadline that a heartbeat has set lies after it.
CALL broken('UPDATE idemq.jobs SET renewed_at = now() WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET flags = 4 WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET flags = 4, renewed_at = deadline WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET flags = 4, renewed_at = ''infinity'' WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET flags = 4, renewed_at = now() WHERE id IN (1000000000002, 1000000000010)');
CALL broken('UPDATE idemq.jobs SET attempt = 0 WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET attempt = 4 WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET attempt = 3 WHERE id > 1000000000004');
CALL broken('UPDATE idemq.jobs SET priority = 10 WHERE id = 1000000000010');
CALL broken('UPDATE idemq.jobs SET token = -1 WHERE id = 1000000000010');
CALL broken('UPDATE idemq.jobs SET token = 9007199254740992 WHERE id = 1000000000010');
CALL broken('UPDATE idemq.jobs SET token = 9007199254740991 WHERE id = 1000000000010');
CALL broken('INSERT INTO idemq.attempts (job_id, token, queue_id, attempt, ended_at, outcome) SELECT id, token + 1, queue_id, 1, now(), ''failed'' FROM idemq.jobs WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET queue_id = 1000000 WHERE id = 1000000000010');
-- Lease entries whose row has gone on, or away.
CALL broken('UPDATE idemq.jobs SET status = ''pending'', attempt = 1 WHERE id = 1000000000002');
CALL broken('UPDATE idemq.jobs SET token = token + 1 WHERE id = 1000000000002');
CALL broken('DELETE FROM idemq.jobs WHERE id = 1000000000002');
-- Indexes, triggers, row-level security.
CALL broken('DROP INDEX idemq.jobs_ready');
CALL broken('DROP INDEX idemq.jobs_key');
CALL broken('DROP INDEX idemq.jobs_group');
CALL broken('UPDATE pg_index SET indisvalid = false WHERE indexrelid = ''idemq.jobs_dead''::regclass');
CALL broken('DROP INDEX idemq.jobs_ready; CREATE INDEX mine ON idemq.jobs (queue_id, priority, ready_at, id) WHERE ready_at IS NOT NULL');
CALL broken('ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_truncated');
-- Each trigger of idemq's, whether disabled or not for the apply worker any more.
SELECT format('CALL broken(''ALTER TABLE %s %s TRIGGER %s'')', tgrelid::regclass, how, tgname)
	FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid, unnest('{DISABLE,ENABLE}'::text[]) how
	WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND NOT tgisinternal AND relname <> 'jobs' ORDER BY relname, tgname, how \gexec
CALL broken('ALTER TABLE idemq.attempts DISABLE ROW LEVEL SECURITY');

-- What is committed: a job below the scan start, mended by a claim that finds nothing.
\set VERBOSITY sqlstate
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET ready_at = '2000-01-01' WHERE id = 1000000000020;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT severity, invariant, replace(detail, 'queue ' || :q, 'queue Q') AS detail FROM idemq.check();
UPDATE idemq.jobs SET ready_at = '2000-01-01' WHERE id = 1000000000020;
SELECT * FROM idemq.check();
-- A row of a running job that no entry, and no search, knows.
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET status = 'running', attempt = 1, token = 7, claimed_at = now(), deadline = now() + interval '1 h' WHERE id = 1000000000021;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT id FROM idemq.claim('q');
SELECT * FROM idemq.check();
SELECT idemq.recount() > 0 AS counted;
SELECT outcome FROM idemq.claim_job(1000000000021);
SELECT * FROM idemq.check();
-- A row whose token is not its lease's: both sides say so.  (check_large.sql: a lease entry that a search has made.)
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET token = token + 1 WHERE id = 1000000000002;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT invariant, detail FROM idemq.check();
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET token = token - 1 WHERE id = 1000000000002;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT * FROM idemq.check();
-- By hand with the trigger on: nothing to report.
UPDATE idemq.jobs SET status = 'running', attempt = 1, token = 7, claimed_at = now(), deadline = now() + interval '1 h' WHERE id = 1000000000022;
SELECT * FROM idemq.check();
SELECT count(*) FROM idemq.claim('q', 2);
SELECT * FROM idemq.check();
-- A token greater than all that were issued is left alone.
SELECT idemq.heartbeat(1000000000021, 7), idemq.try_commit(1000000000021, 7);
SELECT * FROM idemq.check();

-- Not in a transaction whose changes shared memory does not know yet; one that only looks, or writes elsewhere, may.
BEGIN;
SELECT count(*) FROM idemq.claim('q', 1);
SELECT * FROM idemq.check();
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
CREATE TABLE report AS SELECT * FROM idemq.check();
COMMIT;
TRUNCATE idemq.jobs;
SELECT * FROM idemq.check();
SELECT idemq.drop_queue('q', force => true);
SELECT * FROM idemq.check();

-- Gauges: rows that were written with triggers off are in none, until recount() counts them.
SELECT idemq.create_queue('gauged') AS gauged \gset
SELECT count(idemq.enqueue('gauged', '1')) FROM generate_series(1, 5);
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
DELETE FROM idemq.jobs WHERE id IN (SELECT id FROM idemq.jobs WHERE queue_id = :gauged ORDER BY id LIMIT 2);
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT pending FROM idemq.metrics WHERE queue = 'gauged';
SELECT * FROM idemq.check();
SELECT count(idemq.enqueue('gauged', '1'));
SELECT * FROM idemq.check();
SELECT idemq.recount() > 0 AS counted;
SELECT * FROM idemq.check();
SELECT idemq.drop_queue('gauged', force => true);
-- A row that was inserted so is below the scan start, too.
SELECT idemq.create_queue('b', lease => '1 h') > 0 AS created;
SELECT (idemq.enqueue('b', '1')).outcome;
SELECT count(*) FROM idemq.claim('b');
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	SELECT queue_id, now(), 4, 3, 'pending', '2001-01-01', '"hand"' FROM idemq.queues WHERE name = 'b';
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT severity, invariant FROM idemq.check();
SELECT idemq.recount() AS counted;
SELECT severity, invariant FROM idemq.check();
SELECT idemq.drop_queue('b', force => true);
SELECT * FROM idemq.check();
