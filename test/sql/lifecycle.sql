-- Every status x every function: the outcome, and the job afterwards.
-- doc/explanation/states.svg shows what is allowed; all else must leave
-- the row alone.
CREATE EXTENSION idemq;

-- How a job comes to each status: what it is enqueued with, then SQL on
-- $1 id, $2 token.
CREATE TABLE states (state text PRIMARY KEY, max_attempts int, delay interval, steps text[]);
INSERT INTO states VALUES
	('pending', 3, NULL, '{}'),
	('pending, not due', 3, '1 h', '{}'),
	('running', 3, NULL, '{claim}'),
	('running, last attempt', 1, NULL, '{claim}'),
	('running, lease over', 3, NULL, '{claim 1 ms,sleep}'),
	('running, last lease over', 1, NULL, '{claim 1 ms,sleep}'),
	('running, over again', 4, NULL, '{claim 1 ms,sleep,reap,claim 1 ms,sleep}'),
	('pending, reaped', 3, NULL, '{claim 1 ms,sleep,reap}'),
	('pending, released', 3, NULL, '{claim,release}'),
	('retrying', 3, NULL, '{claim,fail later}'),
	('retrying, due', 3, NULL, '{claim,fail now}'),
	('retrying, lost', 4, NULL, '{claim 1 ms,sleep,reap,claim 1 ms,sleep,reap}'),
	('completed', 3, NULL, '{claim,commit}'),
	('dead', 3, NULL, '{claim,fail for good}'),
	('cancelled', 3, NULL, '{claim,cancel}'),
	('cancelled, unclaimed', 3, NULL, '{cancel}'),
	('blocked', 3, NULL, '{block}'),
	('missing', 3, NULL, '{claim,remove}');

CREATE TABLE steps (step text PRIMARY KEY, sql text);
INSERT INTO steps VALUES
	('claim', 'SELECT token FROM idemq.claim_job($1)'),
	('claim 1 ms', 'SELECT token FROM idemq.claim_job($1, lease => ''1 ms'')'), -- meant to expire
	('sleep', 'SELECT $2 FROM pg_sleep(0.003)'),
	('reap', 'SELECT $2 FROM idemq.reap()'),
	('release', 'SELECT $2 FROM idemq.release($1, $2)'),
	('fail later', 'SELECT $2 FROM idemq.fail($1, $2, ''oops'', ''1 h'')'),
	('fail now', 'SELECT $2 FROM idemq.fail($1, $2, ''oops'', ''0'')'),
	('fail for good', 'SELECT $2 FROM idemq.fail($1, $2, ''oops'', permanent => true)'),
	('commit', 'SELECT $2 FROM idemq.commit($1, $2, ''"done"'')'),
	('cancel', 'SELECT $2 FROM idemq.cancel($1)'),
	('block', 'UPDATE idemq.jobs SET status = ''blocked'', ready_at = NULL WHERE id = $1 RETURNING $2'),
	('remove', 'DELETE FROM idemq.jobs WHERE id = $1 RETURNING $2');

-- What is then done to it: $1 id, $2 token, $3 queue.
CREATE TABLE calls (ord int GENERATED ALWAYS AS IDENTITY, call text, sql text);
INSERT INTO calls (call, sql) VALUES
	('claim', 'SELECT coalesce((SELECT ''row'' FROM idemq.claim($3)), ''no row'')'),
	('claim_any', 'SELECT coalesce((SELECT ''row'' FROM idemq.claim_any(ARRAY[$3])), ''no row'')'),
	('claim_job', 'SELECT outcome FROM idemq.claim_job($1)'),
	('commit', 'SELECT idemq.commit($1, $2)'),
	('try_commit', 'SELECT idemq.try_commit($1, $2)'),
	('commit_many', 'SELECT outcome FROM idemq.commit_many(ARRAY[$1], ARRAY[$2])'),
	('commit_once', 'SELECT idemq.commit_once($1)'),
	('fail', 'SELECT idemq.fail($1, $2, ''oops'', ''1 h'')'),
	('fail permanent', 'SELECT idemq.fail($1, $2, ''oops'', permanent => true)'),
	('fail_many', 'SELECT outcome FROM idemq.fail_many(ARRAY[$1], ARRAY[$2])'),
	('release', 'SELECT idemq.release($1, $2)'),
	('release_many', 'SELECT outcome FROM idemq.release_many(ARRAY[$1], ARRAY[$2])'),
	('heartbeat', 'SELECT idemq.heartbeat($1, $2)'),
	('heartbeat_many', 'SELECT outcome FROM idemq.heartbeat_many(ARRAY[$1], ARRAY[$2])'),
	('validate', 'SELECT idemq.validate($1, $2)'),
	('checkpoint', 'SELECT ''done'' || idemq.checkpoint($1, $2, ''1'')'),
	('assert_current', 'SELECT ''done'' || idemq.assert_current($1, $2)'),
	('cancel', 'SELECT idemq.cancel($1)'),
	('retry', 'SELECT idemq.retry($1)'),
	('redrive', 'SELECT idemq.redrive($3)'),
	('reap', 'SELECT idemq.reap($3)'),
	('purge', 'SELECT idemq.purge($3)');
-- The same with a token that is not the job's.
INSERT INTO calls (call, sql)
	SELECT call || ', stale', replace(sql, '$2', '($2 - 1)') FROM calls WHERE sql LIKE '%$2%' ORDER BY ord;

CREATE TABLE results (
	run text, call text, state text, outcome text, id bigint, before idemq.jobs, after idemq.jobs,
	history text);

CREATE FUNCTION apply(sql text, id bigint, token bigint, queue text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE sql INTO STRICT answer USING id, token, queue;
	RETURN answer;
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;

-- Runs all of it, each step in a transaction of its own, or, with in_one, each
-- case in one.  A lease starts at its claim's commit, so one that is over
-- cannot be made in one.
CREATE PROCEDURE matrix(in_one boolean) LANGUAGE plpgsql AS $$
DECLARE
	s states;
	c record;
	r results;
	step_sql text;
	id bigint;
	token bigint;
BEGIN
	FOR s IN SELECT * FROM states WHERE NOT (in_one AND steps @> '{sleep}') LOOP
		FOR c IN SELECT * FROM calls ORDER BY ord LOOP
			PERFORM idemq.create_queue('life', retry_base => '1 h', retry_jitter => 0);
			SELECT e.id, 0 INTO id, token
				FROM idemq.enqueue('life', '1', max_attempts => s.max_attempts, delay => s.delay) e;
			FOR step_sql IN
				SELECT sql FROM unnest(s.steps) WITH ORDINALITY u(step, ord) JOIN steps USING (step) ORDER BY ord
			LOOP
				IF NOT in_one THEN COMMIT; END IF;
				EXECUTE step_sql INTO STRICT token USING id, token;
			END LOOP;
			IF NOT in_one THEN COMMIT; END IF;
			r.run := CASE WHEN in_one THEN 'one' ELSE 'many' END;
			r.call := c.call;
			r.state := s.state;
			r.id := id;
			SELECT j INTO r.before FROM idemq.jobs j WHERE j.id = r.id;
			r.outcome := apply(c.sql, id, token, 'life');
			IF NOT in_one THEN COMMIT; END IF;
			SELECT j INTO r.after FROM idemq.jobs j WHERE j.id = r.id;
			SELECT string_agg(outcome, ', ' ORDER BY ended_at) INTO r.history
				FROM idemq.attempts WHERE job_id = r.id;
			INSERT INTO results SELECT r.*;
			PERFORM idemq.drop_queue('life', force => true);
			COMMIT;
		END LOOP;
	END LOOP;
END $$;

CALL matrix(in_one => false);

-- status: "=" where it stays; attempt: how it moved; history: idemq.attempts.
\a
SELECT call, outcome,
	CASE WHEN (after).id IS NULL THEN CASE WHEN (before).id IS NULL THEN '=' ELSE 'deleted' END
		 WHEN (before).status = (after).status THEN '='
		 ELSE (after).status::text END AS status,
	(after).attempt - (before).attempt AS attempt,
	string_agg(state || CASE WHEN history IS NULL THEN '' ELSE ' [' || history || ']' END, '; ' ORDER BY state) AS states
FROM results JOIN calls USING (call)
GROUP BY calls.ord, 1, 2, 3, 4
ORDER BY calls.ord, 2, 3, 4;
\a

-- In one transaction all outcomes are the same.  (For a job that the
-- transaction itself has deleted, stale is as good as not_found.)
CALL matrix(in_one => true);
SELECT call, state, many.outcome, (many.after).status, one.outcome AS in_one, (one.after).status AS status_in_one
FROM results one JOIN results many USING (call, state) JOIN calls USING (call)
WHERE one.run = 'one' AND many.run = 'many'
	AND (one.outcome, (one.after).status, (one.after).attempt, one.history)
		IS DISTINCT FROM (many.outcome, (many.after).status, (many.after).attempt, many.history)
	AND (many.outcome, one.outcome) IS DISTINCT FROM ('not_found', 'stale')
ORDER BY calls.ord, state;

-- A refused call leaves the row as it was (a claim reaps what is over).
SELECT run, call, state, outcome, before, after
FROM results
WHERE before IS DISTINCT FROM after
	AND outcome IN ('stale', 'not_found', 'locked', 'blocked', 'not_due', 'completed', 'no row',
					'already_committed', 'current', 'expired', '0', 'IQ001', 'IQ002', 'IQ006')
	AND NOT (outcome = 'no row' AND state = 'running, last lease over')
	AND NOT (outcome IN ('no row', 'not_due') AND state = 'running, over again');
-- Only the statuses of the picture follow each other.
SELECT (before).status AS from_status, (after).status AS to_status, string_agg(DISTINCT call, ', ' ORDER BY call) AS by
FROM results WHERE (before).status <> (after).status GROUP BY 1, 2 ORDER BY 1, 2;
-- Columns that go with a status.
SELECT run, call, state, after FROM results
WHERE (after).id IS NOT NULL AND (
	((after).ready_at IS NULL) <> ((after).status IN ('blocked', 'completed', 'dead', 'cancelled'))
	OR ((after).finished_at IS NOT NULL) <> ((after).status IN ('completed', 'dead', 'cancelled'))
	OR (after).token < (before).token
	OR ((after).status = 'running' AND ((after).token = 0 OR (after).deadline IS NULL OR (after).claimed_at IS NULL))
	OR (after).attempt > (after).max_attempts);
-- A new attempt has a larger token, and nothing else has a new one.
SELECT run, call, state, (after).token > (before).token AS grew, (after).status
FROM results
WHERE ((after).token > (before).token) <> (call IN ('claim', 'claim_any', 'claim_job', 'commit_once') AND
	outcome IN ('row', 'claimed', 'claimed_again', 'committed'));
-- Nothing is left of the dropped queues.
SELECT (SELECT count(*) FROM idemq.jobs) AS jobs, (SELECT count(*) FROM idemq.attempts) AS attempts,
	(SELECT count(*) FROM idemq.queues) AS queues, (SELECT count(*) FROM idemq_internal.queue_grants) AS grants;
