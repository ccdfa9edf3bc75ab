-- Every function is undone by ROLLBACK and by ROLLBACK TO, and the job is then
-- what it was: claimable exactly once, or still its worker's.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -

-- What is done ($1 id, $2 token; the queue is undo), to a job in which state.
CREATE TABLE calls (ord int GENERATED ALWAYS AS IDENTITY, state text, call text, sql text);
INSERT INTO calls (state, call, sql) VALUES
	('pending', 'enqueue', 'SELECT outcome FROM idemq.enqueue(''undo'', ''2'')'),
	('pending', 'enqueue with a key', 'SELECT outcome FROM idemq.enqueue(''undo'', ''2'', key => ''k2'')'),
	('pending', 'enqueue, replace', 'SELECT outcome FROM idemq.enqueue(''undo'', ''2'', key => ''k'', priority => 9, on_duplicate => ''replace'')'),
	('pending', 'enqueue_many', 'SELECT string_agg(outcome::text, '' '' ORDER BY ord) FROM idemq.enqueue_many(''undo'', ARRAY[''2'', ''1'']::jsonb[], ARRAY[NULL, ''k''])'),
	('pending', 'claim', 'SELECT ''row'' FROM idemq.claim(''undo'')'),
	('pending', 'claim, attached', 'SELECT ''row'' FROM idemq.claim(''undo'', attach => true)'),
	('pending', 'claim_any', 'SELECT ''row'' FROM idemq.claim_any(''{undo}'')'),
	('pending', 'claim_job', 'SELECT outcome FROM idemq.claim_job($1)'),
	('pending', 'commit_once', 'SELECT idemq.commit_once($1)'),
	('pending', 'cancel', 'SELECT idemq.cancel($1)'),
	('pending', 'purge', 'SELECT idemq.purge(''undo'')'),
	('pending', 'pause', 'SELECT ''done'' || idemq.pause(''undo'')'),
	('pending', 'alter_queue', 'SELECT ''done'' || idemq.alter_queue(''undo'', lease => ''5 min'', retention => ''0'', max_attempts => 1)'),
	('pending', 'drop_queue', 'SELECT ''done'' || idemq.drop_queue(''undo'', force => true)'),
	('pending', 'create_queue', 'SELECT idemq.create_queue(''undo_too'') > 0'),
	('pending', 'grant_queue', 'SELECT ''done'' || idemq.grant_queue(''undo'', ''pg_monitor'', ''claim'')'),
	('retrying', 'claim', 'SELECT ''row'' FROM idemq.claim(''undo'')'),
	('retrying', 'retry', 'SELECT idemq.retry($1)'),
	('retrying', 'reschedule', 'SELECT idemq.reschedule($1, now() + interval ''1 h'', 2)'),
	('pending', 'reschedule', 'SELECT idemq.reschedule($1, priority => 9)'),
	('pending', 'pause until', 'SELECT ''done'' || idemq.pause(''undo'', clock_timestamp() + ''1 h'')'),
	('retrying', 'cancel', 'SELECT idemq.cancel($1)'),
	('running', 'commit', 'SELECT idemq.commit($1, $2)'),
	('running', 'try_commit', 'SELECT idemq.try_commit($1, $2)'),
	('running', 'commit_many', 'SELECT outcome FROM idemq.commit_many(ARRAY[$1], ARRAY[$2])'),
	('running', 'commit, row deleted', 'SELECT idemq.commit($1, $2) FROM idemq.alter_queue(''undo'', retention => ''0'')'),
	('running', 'fail', 'SELECT idemq.fail($1, $2, ''oops'', ''0'')'),
	('running', 'fail for good', 'SELECT idemq.fail($1, $2, ''oops'', permanent => true)'),
	('running', 'fail_many', 'SELECT outcome FROM idemq.fail_many(ARRAY[$1], ARRAY[$2], ARRAY[''oops''], ''0'')'),
	('running', 'release', 'SELECT idemq.release($1, $2)'),
	('running', 'hold_back', 'SELECT ''done'' FROM idemq.hold_back($1, $2, ''1 min'')'),
	('running', 'release_many', 'SELECT outcome FROM idemq.release_many(ARRAY[$1], ARRAY[$2])'),
	('running', 'checkpoint', 'SELECT ''done'' || idemq.checkpoint($1, $2, ''1'')'),
	('running', 'assert_current', 'SELECT ''done'' || idemq.assert_current($1, $2)'),
	('running', 'cancel', 'SELECT idemq.cancel($1)'),
	('running', 'drop_queue', 'SELECT ''done'' || idemq.drop_queue(''undo'', force => true)'),
	('running', 'fail, claim', 'SELECT idemq.fail($1, $2, ''oops'', ''0'') || '' '' || (SELECT attempt FROM idemq.claim(''undo''))'),
	('running', 'fail, claim, commit', 'SELECT idemq.fail($1, $2, ''oops'', ''0'') || '' '' || (SELECT idemq.commit(c.id, c.token) FROM idemq.claim(''undo'') c)'),
	('running', 'release, claim_job', 'SELECT idemq.release($1, $2) || '' '' || (SELECT outcome FROM idemq.claim_job($1))'),
	('running', 'cancel, retry, claim', 'SELECT idemq.cancel($1) || '' '' || idemq.retry($1) || '' '' || (SELECT attempt FROM idemq.claim(''undo''))'),
	('over', 'reap', 'SELECT idemq.reap(''undo'')'),
	('over', 'claim', 'SELECT attempt FROM idemq.claim(''undo'')'),
	('over', 'claim_job', 'SELECT outcome FROM idemq.claim_job($1)'),
	('dead', 'retry', 'SELECT idemq.retry($1)'),
	('dead', 'redrive', 'SELECT idemq.redrive(''undo'')'),
	('cancelled', 'retry', 'SELECT idemq.retry($1)');

CREATE FUNCTION make(state text, OUT id bigint, OUT token bigint) LANGUAGE plpgsql AS $$
BEGIN
	IF NOT EXISTS (SELECT FROM idemq.queues WHERE name = 'undo') THEN
		PERFORM idemq.create_queue('undo', retry_jitter => 0, lease => '1 h');
	END IF;
	SELECT e.id INTO id FROM idemq.enqueue('undo', '1', key => 'k') e;
	IF state <> 'pending' THEN
		SELECT c.token INTO token FROM idemq.claim_job(make.id, CASE WHEN state = 'over' THEN '1 ms'::interval END) c; -- meant to expire
	END IF;
	CASE state
		WHEN 'retrying' THEN PERFORM idemq.fail(make.id, make.token, retry_in => '0');
		WHEN 'dead' THEN PERFORM idemq.fail(make.id, make.token, permanent => true);
		WHEN 'cancelled' THEN PERFORM idemq.cancel(make.id);
		ELSE NULL;
	END CASE;
END $$;

CREATE FUNCTION tables() RETURNS text LANGUAGE sql AS $$
	SELECT jsonb_build_array((SELECT jsonb_agg(j ORDER BY id) FROM idemq.jobs j), (SELECT jsonb_agg(a ORDER BY job_id, token) FROM idemq.attempts a),
		(SELECT jsonb_agg(q ORDER BY queue_id) FROM idemq.queues q), (SELECT jsonb_agg(g) FROM idemq_internal.queue_grants g),
		(SELECT jsonb_agg(h) FROM idemq_internal.hold_entries h))::text
$$;

CREATE FUNCTION run(sql text, id bigint, token bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE sql INTO STRICT answer USING id, token;
	RETURN answer;
END $$;

-- Runs it in a savepoint, or in two, and rolls that back.
CREATE FUNCTION run_undone(sql text, id bigint, token bigint, deep boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	IF deep THEN
		BEGIN
			answer := run(sql, id, token);
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	ELSE
		answer := run(sql, id, token);
	END IF;
	RAISE SQLSTATE 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
	RETURN answer;
END $$;

-- How the job can be used: a job that is ready is claimed once and committed; one
-- running is its worker's, one whose lease is over the next one's; others are nobody's.
CREATE FUNCTION use(state text, id bigint, token bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	IF state IN ('pending', 'retrying') THEN
		RETURN (SELECT string_agg(attempt || ' ' || idemq.commit(c.id, c.token), ' ') FROM idemq.claim('undo', 10) c)
			|| (SELECT CASE WHEN count(*) > 0 THEN ' claimed twice' ELSE '' END FROM idemq.claim('undo', 10));
	END IF;
	IF state = 'over' THEN
		-- A reap that did not come through is tried again after a while.
		FOR i IN 1 .. 500 LOOP
			EXIT WHEN EXISTS (SELECT FROM idemq.claim('undo'));
			PERFORM pg_sleep(0.01);
		END LOOP;
		RETURN 'attempt ' || (SELECT attempt FROM idemq.job(id)) || ' ' || idemq.try_commit(id, token);
	END IF;
	RETURN idemq.validate(id, token) || (SELECT CASE WHEN count(*) > 0 THEN ' claimed' ELSE '' END FROM idemq.claim('undo', 10))
		|| ' ' || CASE state WHEN 'running' THEN idemq.commit(id, token) ELSE idemq.try_commit(id, token) END;
END $$;

CREATE TABLE results (ord int, mode text, answer text, undone boolean, used text);
CREATE PROCEDURE check_all(mode text) LANGUAGE plpgsql AS $$
DECLARE
	c calls;
	job record;
	before text;
	answer text;
	undone boolean;
	used text;
BEGIN
	FOR c IN SELECT * FROM calls ORDER BY ord LOOP
		SELECT * INTO job FROM make(c.state);
		COMMIT;
		IF c.state = 'over' THEN PERFORM pg_sleep(0.011); END IF;
		before := tables();
		IF mode = 'ROLLBACK' THEN
			answer := run(c.sql, job.id, job.token);
			ROLLBACK;
		ELSE
			answer := run_undone(c.sql, job.id, job.token, mode LIKE '%two%');
			IF mode LIKE '%then%' THEN COMMIT; END IF;
		END IF;
		undone := tables() = before;
		used := use(c.state, job.id, job.token);
		COMMIT;
		INSERT INTO results VALUES (c.ord, mode, answer, undone, used);
		DELETE FROM idemq.jobs;
		DELETE FROM idemq.attempts;
		COMMIT;
	END LOOP;
END $$;

CALL check_all('ROLLBACK');
CALL check_all('savepoint');
CALL check_all('savepoint, then commit');
CALL check_all('two savepoints');
SELECT state, call, answer, undone, used FROM results JOIN calls USING (ord) WHERE mode = 'ROLLBACK' ORDER BY ord;
-- The other ways differ in nothing.
SELECT o.mode, state, call, o.answer, o.undone, o.used FROM results o JOIN results r USING (ord) JOIN calls USING (ord)
WHERE r.mode = 'ROLLBACK' AND (o.answer, o.undone, o.used) IS DISTINCT FROM (r.answer, r.undone, r.used) ORDER BY o.mode, ord;
DROP TABLE results, calls;

-- The cases that take more than one call.
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h');
CREATE VIEW shown AS SELECT status, attempt, last_error, result, ready_at IS NOT NULL AS ready FROM idemq.jobs
	WHERE queue_id = (SELECT queue_id FROM idemq.queues WHERE name = 'q') ORDER BY id;

-- Claim, savepoint, commit, back, commit.
SELECT id FROM idemq.enqueue('q', '1') \gset
BEGIN;
SELECT token FROM idemq.claim('q') \gset
SAVEPOINT a;
SELECT idemq.commit(:id, :token, '"first"');
ROLLBACK TO a;
SELECT idemq.validate(:id, :token), idemq.heartbeat(:id, :token);
SELECT idemq.commit(:id, :token, '"second"');
COMMIT;
SELECT * FROM shown;
SELECT count(*) FROM idemq.claim('q', 10);

-- The same, but nothing after the rollback: the worker still has it.
SELECT id FROM idemq.enqueue('q', '2') \gset
BEGIN;
SELECT token FROM idemq.claim('q') \gset
SAVEPOINT a;
SELECT idemq.commit(:id, :token);
ROLLBACK TO a;
COMMIT;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT idemq.validate(:id, :token);
SELECT idemq.commit(:id, :token);

-- A savepoint's claim, rolled back and made again.
SELECT id FROM idemq.enqueue('q', '3') \gset
BEGIN;
SAVEPOINT a;
SELECT token AS lost FROM idemq.claim('q') \gset
ROLLBACK TO a;
SELECT idemq.try_commit(:id, :lost);
SELECT token > :lost AS grew, token, attempt FROM idemq.claim('q') \gset
SELECT :'grew' AS grew, :attempt AS attempt;
SAVEPOINT b;
SELECT idemq.try_commit(:id, :lost) AS lost, idemq.commit(:id, :token);
RELEASE b;
COMMIT;
SELECT * FROM shown OFFSET 2;

-- A released savepoint goes with its transaction.
SELECT id FROM idemq.enqueue('q', '4') \gset
BEGIN;
SAVEPOINT a;
SAVEPOINT b;
SELECT token FROM idemq.claim('q') \gset
RELEASE b;
RELEASE a;
ROLLBACK;
SELECT idemq.try_commit(:id, :token);
SELECT count(*) FROM idemq.claim('q', 10);

-- Claim, fail and claim again in one transaction; then only the last token counts.
SELECT id FROM idemq.enqueue('q', '5') \gset
BEGIN;
SELECT token AS t1 FROM idemq.claim('q') \gset
SELECT idemq.fail(:id, :t1, 'one', '0');
SELECT token AS t2, attempt FROM idemq.claim('q') \gset
SELECT idemq.fail(:id, :t2, 'two', '0');
SELECT token AS t3, attempt FROM idemq.claim('q') \gset
SELECT :attempt AS attempt, :t1 < :t2 AND :t2 < :t3 AS growing;
COMMIT;
SELECT * FROM shown OFFSET 4;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT idemq.validate(:id, :t1), idemq.validate(:id, :t2), idemq.validate(:id, :t3);
SELECT attempt, outcome, error, token = :t1 AS t1, token = :t2 AS t2 FROM idemq.attempts WHERE job_id = :id ORDER BY token;
SELECT idemq.commit(:id, :t3);
-- Rolled back in part: the second attempt is the one in flight again.
SELECT id FROM idemq.enqueue('q', '6') \gset
BEGIN;
SELECT token AS t1 FROM idemq.claim('q') \gset
SELECT idemq.fail(:id, :t1, 'one', '0');
SELECT token AS t2 FROM idemq.claim('q') \gset
SAVEPOINT a;
SELECT idemq.fail(:id, :t2, 'two', '0');
SELECT token AS t3 FROM idemq.claim('q') \gset
ROLLBACK TO a;
SELECT idemq.heartbeat(:id, :t1) AS t1, idemq.heartbeat(:id, :t2) AS t2, idemq.heartbeat(:id, :t3) AS t3;
COMMIT;
SELECT idemq.heartbeat(:id, :t1) AS t1, idemq.heartbeat(:id, :t2) AS t2, idemq.heartbeat(:id, :t3) AS t3;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT attempt, outcome, error FROM idemq.attempts WHERE job_id = :id;
SELECT idemq.commit(:id, :t2);
-- Rolled back as a whole after a claim that was committed: the first lease goes on.
SELECT id FROM idemq.enqueue('q', '7') \gset
SELECT token AS t1 FROM idemq.claim('q') \gset
BEGIN;
SELECT idemq.release(:id, :t1);
SELECT token AS t2 FROM idemq.claim('q') \gset
SELECT idemq.commit(:id, :t2);
ROLLBACK;
SELECT idemq.heartbeat(:id, :t1) AS t1, idemq.heartbeat(:id, :t2) AS t2;
SELECT count(*) FROM idemq.claim('q', 10);
-- Committed: the second one counts.
BEGIN;
SELECT idemq.release(:id, :t1);
SELECT token AS t2, attempt FROM idemq.claim('q') \gset
COMMIT;
SELECT :attempt AS attempt, idemq.heartbeat(:id, :t1) AS t1, idemq.heartbeat(:id, :t2) AS t2;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT idemq.commit(:id, :t2);

-- A transaction claims what it enqueued itself, also when the queue was empty before.
SELECT count(*) FROM idemq.claim('q', 10);
BEGIN;
SELECT id FROM idemq.enqueue('q', '8') \gset
SELECT count(*) FROM idemq.claim('q', 10);
SELECT count(*) FROM idemq.claim('q', 10);
ROLLBACK;
SELECT count(*) FROM idemq.claim('q', 10);
BEGIN;
SAVEPOINT a;
SELECT id FROM idemq.enqueue('q', '9') \gset
SELECT count(*) FROM idemq.claim('q', 10);
ROLLBACK TO a;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT id FROM idemq.enqueue('q', '10') \gset
COMMIT;
SELECT id = :id AS the_tenth FROM idemq.claim('q', 10);

-- What it removed itself, it does not see; rolled back, the next claim does.
SELECT (idemq.enqueue('q', '"removed"', run_at => '2001-01-01')).id \gset
BEGIN;
SELECT (idemq.enqueue('q', '"own"')).outcome;
DELETE FROM idemq.jobs WHERE id = :id;
SELECT payload FROM idemq.claim('q', 10);
ROLLBACK;
SELECT (idemq.enqueue('q', '"next"')).outcome;
SELECT payload FROM idemq.claim('q');
BEGIN;
SELECT payload FROM idemq.claim('q');
COMMIT;
SELECT (idemq.enqueue('q', '"purged"', run_at => '2001-01-01')).outcome;
BEGIN;
SELECT idemq.purge('q', 'pending');
SELECT count(*) FROM idemq.claim('q');
ROLLBACK;
SELECT (idemq.enqueue('q', '"next"')).outcome;
SELECT payload FROM idemq.claim('q', 10);
SELECT (idemq.enqueue('q', '"truncated"', run_at => '2001-01-01')).outcome;
BEGIN;
TRUNCATE idemq.jobs;
SELECT (idemq.enqueue('q', '"own"')).outcome;
SELECT payload FROM idemq.claim('q', 10);
ROLLBACK;
SELECT (idemq.enqueue('q', '"next"')).outcome;
SELECT payload FROM idemq.claim('q', 10);

-- An error after a claim, in one statement and in one transaction.
SELECT id FROM idemq.enqueue('q', '11') \gset
SELECT 1 / (c.attempt - 1) FROM idemq.claim('q') c;
BEGIN;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT 1 / 0;
SELECT count(*) FROM idemq.claim('q', 10);
COMMIT;
SELECT count(*), min(attempt) FROM idemq.claim('q', 10);

-- plpgsql: what an EXCEPTION block catches is undone, and no more.
SELECT id FROM idemq.enqueue('q', '12') \gset
\set VERBOSITY terse
DO $$
DECLARE
	c record;
	d record;
BEGIN
	SELECT * INTO STRICT c FROM idemq.claim('q');
	BEGIN
		PERFORM idemq.commit(c.id, c.token, '"undone"');
		RAISE EXCEPTION 'after the commit';
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE '%, fail: %', idemq.validate(c.id, c.token), idemq.fail(c.id, c.token, SQLERRM, '0');
	END;
	BEGIN
		SELECT * INTO STRICT d FROM idemq.claim('q');
		RAISE EXCEPTION 'after the claim';
	EXCEPTION WHEN raise_exception THEN
		RAISE NOTICE 'attempt % is %', d.attempt, idemq.try_commit(d.id, d.token);
	END;
	SELECT * INTO STRICT d FROM idemq.claim('q');
	RAISE NOTICE 'attempt % is %', d.attempt, idemq.commit(d.id, d.token, '"done"');
END $$;
\set VERBOSITY sqlstate
SELECT status, attempt, result, last_error FROM idemq.job(:id);
SELECT attempt, outcome, error FROM idemq.attempts WHERE job_id = :id;

-- A heartbeat is not undone.
SELECT id FROM idemq.enqueue('q', '13') \gset
-- meant to expire
SELECT token FROM idemq.claim('q', lease => '1 ms') \gset
BEGIN;
SELECT idemq.heartbeat(:id, :token, '1 h');
ROLLBACK;
SELECT pg_sleep(0.02);
SELECT idemq.validate(:id, :token), idemq.reap('q');
SELECT idemq.commit(:id, :token);

-- A dropped queue that came back: its settings and scan start are right.
SELECT id FROM idemq.enqueue('q', '14') \gset
BEGIN;
SELECT idemq.drop_queue('q', force => true);
SELECT count(*) FROM idemq.claim('q');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT idemq.alter_queue('q', lease => '2 h');
ROLLBACK TO a;
SELECT deadline - now() < '90 min' AS old_lease FROM idemq.claim('q', 10);
ROLLBACK;
SELECT id = :id AS the_job, attempt FROM idemq.claim('q', 10);

SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;
