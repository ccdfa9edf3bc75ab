-- max_unfinished in one session.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
-- Shows the number that the limit compares, and the number of rows if it differs.
CREATE FUNCTION unfinished(queue text DEFAULT 'q') RETURNS text RETURN
	(SELECT coalesce(m.unfinished::text, '?') || ' of ' || coalesce(m.max_unfinished::text, 'any')
		|| CASE WHEN m.unfinished <> m.blocked + m.pending + m.running + m.retrying THEN ', but the rows say '
			|| m.blocked + m.pending + m.running + m.retrying ELSE '' END
	FROM idemq.metrics m WHERE m.queue = $1);
CREATE PROCEDURE fresh(max int, n int DEFAULT 0, queue text DEFAULT 'q') LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq.drop_queue(queue, force => true) FROM idemq.queues WHERE name = queue;
	PERFORM idemq.create_queue(queue, lease => '1 h', retry_jitter => 0, max_unfinished => max);
	COMMIT;
	PERFORM idemq.enqueue(queue, to_jsonb(i)) FROM generate_series(1, n) i;
END $$;
CREATE FUNCTION add(n int DEFAULT 1) RETURNS bigint LANGUAGE sql AS
	$$ SELECT count(idemq.enqueue('q', to_jsonb(i))) FROM generate_series(1, n) i $$;
-- Runs a statement, which is rolled back alone if it fails; returns ok or its SQLSTATE.
CREATE FUNCTION state_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'ok';
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate;
END $$;
CREATE FUNCTION claim_commit() RETURNS SETOF idemq.outcome LANGUAGE sql AS
	$$ SELECT idemq.commit(id, token) FROM idemq.claim('q') $$;

-- Valid and invalid values.
SELECT idemq.create_queue('q', max_unfinished => 0);
SELECT idemq.create_queue('q', max_unfinished => -1);
CALL fresh(NULL);
SELECT add(3);
SELECT unfinished();
SELECT idemq.alter_queue('q', max_unfinished => -1);
SELECT idemq.alter_queue('q', max_unfinished => 4);
-- Jobs that were enqueued before the limit was set also count.
SELECT unfinished();
SELECT add();
SELECT unfinished();
SELECT add();
SELECT unfinished();
\set VERBOSITY default
SELECT add();
SELECT idemq.enqueue_many('q', array_agg(to_jsonb(n))) FROM generate_series(1, 5) n;
\set VERBOSITY sqlstate
SELECT idemq.alter_queue('q', max_unfinished => 0);
SELECT add();
SELECT unfinished();
SELECT settings.max_unfinished FROM idemq.queues settings;
SELECT * FROM idemq.check();

-- Jobs in every unfinished status count, and a change from one to another does not change the count.
CALL fresh(4);
SELECT (idemq.enqueue('q', '1')).id AS parent \gset
SELECT (idemq.enqueue('q', '2', depends_on => ARRAY[:parent])).status;
SELECT (idemq.enqueue('q', '3', group_key => 'g')).status;
SELECT (idemq.enqueue('q', '4', delay => '1 h')).id AS last \gset
SELECT unfinished(), add();
SELECT count(*) FROM idemq.claim('q');
SELECT unfinished(), state_of('SELECT add()');
SELECT idemq.fail(id, token, retry_in => '1 h') FROM idemq.jobs WHERE status = 'running';
SELECT unfinished(), state_of('SELECT add()');
SELECT idemq.retry(id) FROM idemq.jobs WHERE status = 'retrying';
SELECT unfinished(), state_of('SELECT add()');
SELECT idemq.release(id, token) FROM idemq.claim('q');
SELECT unfinished(), state_of('SELECT add()');
-- Each way to end a job frees its room.  If a parent dies, the next claim also cancels its child.
SELECT idemq.cancel(:last);
SELECT unfinished(), add();
SELECT unfinished();
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q');
SELECT unfinished(), add();
SELECT unfinished();
SELECT claim_commit();
SELECT unfinished(), add();
SELECT unfinished();
SELECT idemq.commit_once(id) FROM idemq.jobs WHERE status = 'pending' ORDER BY id LIMIT 1;
SELECT unfinished(), add();
SELECT unfinished();
DELETE FROM idemq.jobs WHERE id = (SELECT id FROM idemq.jobs WHERE status = 'pending' ORDER BY id LIMIT 1);
SELECT unfinished(), add();
SELECT unfinished();
UPDATE idemq.jobs SET status = 'cancelled', finished_at = now(), ready_at = NULL
	WHERE id = (SELECT id FROM idemq.jobs WHERE status = 'pending' ORDER BY id LIMIT 1);
SELECT unfinished(), add();
SELECT unfinished();
SELECT * FROM idemq.check();
-- An expired lease does not change the count.
CALL fresh(1, 1);
SELECT count(*) FROM idemq.claim('q', lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.01);
SELECT idemq.reap('q');
SELECT status, unfinished(), state_of('SELECT add()') FROM idemq.jobs ORDER BY id DESC LIMIT 1;

-- A call adds all of its jobs or none.
CALL fresh(4, 1);
SELECT count(*) FROM idemq.enqueue_many('q', ARRAY[1, 2, 3, 4]::text[]::jsonb[]);
SELECT count(*) FROM idemq.enqueue_many('q', ARRAY[1, 2, 3, 4]::text[]::jsonb[], keys => ARRAY['a', 'b', 'c', 'd']);
SELECT count(*) FROM idemq.enqueue_many('q', ARRAY[1, 2, 3, 4]::text[]::jsonb[], keys => ARRAY['a', 'b', NULL, NULL]);
SELECT unfinished();
SELECT count(*) FROM idemq.enqueue_many('q', ARRAY[1, 2, 3, 3]::text[]::jsonb[], keys => ARRAY[NULL, 'b', 'a', 'a']);
SELECT unfinished();
SELECT (idemq.enqueue_sequenced('q', 'p', 1, '1')).outcome;
SELECT idemq.cancel(min(id)) FROM idemq.jobs WHERE status = 'pending';
-- A refused sequence number can be used again.
SELECT (idemq.enqueue_sequenced('q', 'p', 1, '1')).outcome;
SELECT unfinished();

CALL fresh(2);
SELECT count(*) FROM idemq.enqueue_graph('[{"queue": "q", "name": "a", "payload": 1}, {"queue": "q", "name": "b", "payload": 2, "depends_on": ["a"]}, {"queue": "q", "name": "c", "payload": 3, "depends_on": ["b"]}]');
SELECT unfinished();
SELECT count(*) FROM idemq.enqueue_graph('[{"queue": "q", "name": "a", "payload": 1}, {"queue": "q", "name": "b", "payload": 2, "depends_on": ["a"]}]');
SELECT unfinished();

-- A duplicate does not need room, and does not take any.
CALL fresh(2);
SELECT (idemq.enqueue('q', '1', 'k')).outcome, (idemq.enqueue('q', '2', 'l')).outcome;
SELECT (idemq.enqueue('q', '1', 'k')).outcome, (idemq.acquire('q', 'k', '1')).outcome;
SELECT unfinished();
SELECT (idemq.enqueue('q', '3', 'l', on_duplicate => 'replace')).outcome, unfinished();
SELECT (idemq.acquire('q', 'm', '1')).outcome;
SELECT claim_commit() FROM generate_series(1, 2);
SELECT (idemq.acquire('q', 'm', '1')).outcome;
SELECT unfinished();

-- wait_for_room, without sleeping.
CALL fresh(2, 1);
CALL idemq.wait_for_room('q', 1, '0');
CALL idemq.wait_for_room('q', 2, '0');
CALL idemq.wait_for_room('q', 3, '0');
CALL idemq.wait_for_room('q', 0, '0');
CALL idemq.wait_for_room('q', NULL, '0');
CALL idemq.wait_for_room('q', 1, NULL);
CALL idemq.wait_for_room('none', 1, '0');
BEGIN;
CALL idemq.wait_for_room('q', 1, '0');
ROLLBACK;
SELECT unfinished();

-- A transaction may use the room of jobs that it ends itself.
CALL fresh(2, 2);
BEGIN;
SELECT add();
ROLLBACK;
BEGIN;
SELECT claim_commit(), unfinished();
SELECT add();
SELECT unfinished();
SELECT state_of('SELECT add()');
COMMIT;
SELECT unfinished();
WITH done AS MATERIALIZED (SELECT claim_commit() AS outcome) SELECT outcome, add() FROM done;
SELECT unfinished();
-- A rollback to a savepoint undoes both the end of the job and the enqueue.
BEGIN;
SAVEPOINT a;
SELECT claim_commit();
SELECT add();
ROLLBACK TO SAVEPOINT a;
SELECT state_of('SELECT add()');
SELECT claim_commit();
SAVEPOINT b;
SELECT add();
ROLLBACK TO SAVEPOINT b;
SELECT add(), state_of('SELECT add()');
COMMIT;
SELECT unfinished();
-- The same, if a job was ended before a later enqueue: exactly the room of that enqueue is given back.
CALL fresh(3, 1);
BEGIN;
SELECT add();
SAVEPOINT a;
SELECT add();
SELECT state_of('SELECT add()');
SELECT claim_commit();
SAVEPOINT b;
SELECT add();
RELEASE SAVEPOINT b;
SELECT state_of('SELECT add()');
ROLLBACK TO SAVEPOINT a;
SELECT unfinished();
SELECT add(), state_of('SELECT add()');
ROLLBACK;
SELECT add(2);
SELECT unfinished();
-- A loop of exception blocks, half of which are rolled back.
CALL fresh(5);
DO $$
BEGIN
	FOR i IN 1 .. 20 LOOP
		BEGIN
			PERFORM idemq.enqueue('q', to_jsonb(i));
			IF i % 2 = 0 THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		WHEN SQLSTATE 'IQ007' THEN
			NULL;
		END;
	END LOOP;
END $$;
SELECT unfinished();
SELECT * FROM idemq.check();
-- A trigger on idemq.jobs enqueues before or after the row that fires it has been counted.  Both jobs need room.
CREATE FUNCTION follow_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.payload = '"first"' THEN
		PERFORM idemq.enqueue('q', '"second"');
	END IF;
	RETURN NEW;
END $$;
CREATE TABLE results (call text, room int, state text, unfinished text);
CREATE PROCEDURE fire() LANGUAGE plpgsql AS $$
DECLARE
	call text;
BEGIN
	TRUNCATE results;
	FOREACH call IN ARRAY ARRAY[$s$enqueue('q', '"first"')$s$, $s$enqueue('q', '"first"', 'k' || clock_timestamp())$s$,
		$s$enqueue_sequenced('q', 'p', nextval('numbers'), '"first"')$s$, $s$enqueue_many('q', '{1,"\"first\""}')$s$] LOOP
		FOR room IN 1 .. 3 LOOP
			CALL fresh(5, 5 - room);
			COMMIT;
			INSERT INTO results VALUES (call, room, state_of('SELECT idemq.' || call));
			COMMIT;
			UPDATE results r SET unfinished = unfinished() WHERE r.unfinished IS NULL;
		END LOOP;
	END LOOP;
END $$;
CREATE SEQUENCE numbers;
CREATE TRIGGER follow_up BEFORE INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION follow_up();
CALL fire();
SELECT call, string_agg(format('%s, %s', state, unfinished), '; ' ORDER BY room) FROM results GROUP BY 1 ORDER BY 1;
DROP TRIGGER follow_up ON idemq.jobs;
CREATE TRIGGER follow_up AFTER INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION follow_up();
CALL fire();
SELECT call, string_agg(format('%s, %s', state, unfinished), '; ' ORDER BY room) FROM results GROUP BY 1 ORDER BY 1;
ALTER TRIGGER follow_up ON idemq.jobs RENAME TO z;
CALL fire();
SELECT call, string_agg(format('%s, %s', state, unfinished), '; ' ORDER BY room) FROM results GROUP BY 1 ORDER BY 1;
DROP TRIGGER z ON idemq.jobs;
SELECT * FROM idemq.check();

-- Some jobs are never refused.  They take the count above the limit, and enqueues are refused until it is below.
CALL fresh(2, 2);
SELECT claim_commit() FROM generate_series(1, 2);
SELECT add(2);
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q', 2);
SELECT add(2);
SELECT idemq.redrive('q');
SELECT unfinished(), state_of('SELECT add()');
INSERT INTO idemq.jobs (queue_id, priority, enqueued_at, max_attempts, status, ready_at, payload)
	SELECT queue_id, 4, now(), 20, 'pending', now(), '1' FROM idemq.queues WHERE name = 'q';
SELECT unfinished();
DO $$ BEGIN
	EXECUTE (SELECT format('COPY idemq.jobs (queue_id, priority, enqueued_at, max_attempts, status, ready_at, payload) FROM PROGRAM %L (FORMAT csv)',
		format('echo %s,4,2026-01-01,20,pending,2026-01-01,1', queue_id)) FROM idemq.queues WHERE name = 'q');
END $$;
SELECT unfinished();
SELECT claim_commit() FROM generate_series(1, 4);
SELECT unfinished(), state_of('SELECT add()');
SELECT claim_commit();
SELECT unfinished(), add();
SELECT unfinished();
-- A transaction that has added such jobs also needs room for them before it can enqueue.
BEGIN;
SELECT idemq.cancel(id) FROM idemq.jobs WHERE status = 'pending';
SELECT add(2);
SELECT idemq.retry(id) FROM idemq.jobs WHERE status = 'cancelled';
SELECT state_of('SELECT add()');
SELECT claim_commit();
SELECT state_of('SELECT add()');
SELECT claim_commit(), state_of('SELECT add()');
ROLLBACK;
SELECT unfinished();
-- A rerun of a finished job.
CALL fresh(1);
SELECT (idemq.enqueue('q', '1', 'k')).outcome;
SELECT claim_commit();
SELECT add();
SELECT unfinished();
SELECT (idemq.enqueue('q', '1', 'k', on_duplicate => 'rerun')).outcome, unfinished();
-- Dead-letter records.
CALL fresh(1, 1, 'dead');
SELECT idemq.alter_queue('q', dead_letter_queue => 'dead');
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q', 2);
SELECT unfinished('q'), unfinished('dead');
SELECT state_of($$SELECT idemq.enqueue('dead', '1')$$);
-- Published jobs.
SELECT idemq.create_topic('news');
SELECT idemq.bind_topic('news', 'dead');
SELECT queue, outcome FROM idemq.publish('news', '1');
SELECT unfinished('dead');
SELECT idemq.bind_topic('news.#', 'q', when_full => 'skip'), idemq.bind_topic('news.#', 'q', when_full => 'skip');
SELECT idemq.bind_topic('news.#', 'q', when_full => 'never');
SELECT idemq.bind_topic('news.#', 'q', NULL);
CREATE VIEW bindings AS SELECT pattern, queue, when_full, over_limit, refused_at IS NOT NULL AS skipped FROM idemq.topic_bindings;
SELECT * FROM bindings;
SELECT queue, outcome FROM idemq.publish('news', '2', 'k');
SELECT unfinished(), * FROM bindings;
-- over_limit counts neither duplicates nor jobs of a queue that is not full, and a duplicate is not skipped.
SELECT queue, outcome FROM idemq.publish('news', '2', 'k');
SELECT queue, outcome FROM idemq.publish('news', '3', 'l');
SELECT queue, outcome FROM idemq.publish('news', '3');
SELECT unfinished(), * FROM bindings;
-- A rollback undoes the change of over_limit.  Above READ COMMITTED, jobs are also counted.
BEGIN;
SELECT queue, outcome FROM idemq.publish('news', '4');
SELECT over_limit FROM bindings WHERE queue = 'dead';
ROLLBACK;
SELECT over_limit FROM bindings WHERE queue = 'dead';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT queue, outcome FROM idemq.publish('news', '4');
COMMIT;
SELECT over_limit FROM bindings WHERE queue = 'dead';
SELECT count(*) FROM idemq_internal.topic_over_limit;
SELECT idemq.apply_retention();
SELECT over_limit FROM bindings WHERE queue = 'dead';
SELECT count(*) FROM idemq_internal.topic_over_limit;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT queue, outcome FROM idemq.publish('news', '4');
COMMIT;
SELECT count(*) FROM idemq_internal.topic_over_limit;
SELECT queue, outcome FROM idemq.publish('news', '5');
SELECT over_limit FROM bindings WHERE queue = 'dead';
SELECT count(*) FROM idemq_internal.topic_over_limit;
-- A queue has two bindings: one skips it if it is full, the other does not.
SELECT idemq.bind_topic('news.*', 'q', 'skip'), idemq.bind_topic('news.a', 'q');
SELECT queue, outcome FROM idemq.publish('news.a', '6') WHERE queue = 'q';
SELECT * FROM bindings;
-- Binding again with another when_full replaces the old value.
SELECT idemq.bind_topic('news.#', 'q');
SELECT * FROM bindings WHERE pattern = 'news.#';
SELECT details FROM idemq.audit WHERE action = 'bind_topic' ORDER BY id;
SELECT * FROM idemq.check();

-- A schedule's tick is refused, and is retried until there is room or the next tick replaces it.
CALL fresh(1, 1);
CALL idemq.tick();
SELECT idemq.schedule('s', '0 0 1 1 *', 'q', '"tick"', time_zone => 'UTC') > now();
CREATE FUNCTION ticks() RETURNS TABLE (failed boolean, last_error text, last_run interval, job text) LANGUAGE sql AS
	$$ SELECT failed_at IS NOT NULL, s.last_error, date_trunc('year', now(), 'UTC') - s.last_run, j.headers->>'schedule' FROM idemq.schedules s LEFT JOIN idemq.jobs j ON j.id = s.last_job $$;
UPDATE idemq_internal.schedule_entries SET done_until = now() - interval '3 years';
CALL idemq.tick();
SELECT * FROM ticks();
CALL idemq.tick();
SELECT * FROM ticks();
SELECT claim_commit(), unfinished();
CALL idemq.tick();
SELECT unfinished(), * FROM ticks();
SELECT count(*) FROM idemq.jobs WHERE payload = '"tick"';
SELECT idemq.run_schedule_now('s');
SELECT idemq.unschedule('s');

-- Lowering the limit does not remove jobs.
CALL fresh(5, 5);
SELECT idemq.alter_queue('q', max_unfinished => 3);
SELECT unfinished(), state_of('SELECT add()');
SELECT claim_commit() FROM generate_series(1, 2);
SELECT unfinished(), state_of('SELECT add()');
SELECT claim_commit();
SELECT unfinished(), add(), state_of('SELECT add()');

-- After recount, the next enqueue counts the jobs.
CALL fresh(3, 3);
SELECT idemq.recount() > 0;
SELECT unfinished(), state_of('SELECT add()');
SELECT unfinished();
SELECT claim_commit() FROM generate_series(1, 2);
SELECT unfinished(), add(2), state_of('SELECT add()');
-- If the transaction that counts has changed jobs, each change is counted exactly once.
SELECT idemq.recount() > 0;
BEGIN;
SELECT claim_commit();
SELECT add(), state_of('SELECT add()');
SELECT unfinished();
COMMIT;
SELECT unfinished();
SELECT idemq.recount() > 0;
BEGIN;
SELECT claim_commit();
SELECT add(), state_of('SELECT add()');
ROLLBACK;
SELECT unfinished(), state_of('SELECT add()');
-- A count reads at most one entry beyond the limit.  Its lower bound refuses enqueues until it is below the limit.
SELECT idemq.alter_queue('q', max_unfinished => 10);
SELECT add(7);
SELECT idemq.alter_queue('q', max_unfinished => 2);
SELECT idemq.recount() > 0;
SELECT state_of('SELECT add()');
SELECT claim_commit() FROM generate_series(1, 2);
SELECT state_of('SELECT add()');
SELECT claim_commit() FROM generate_series(1, 5);
SELECT state_of('SELECT add()'), unfinished();
SELECT claim_commit() FROM generate_series(1, 2);
SELECT state_of('SELECT add()'), state_of('SELECT add()');
SELECT unfinished();
-- Rows that were deleted with triggers disabled.
ALTER TABLE idemq.jobs DISABLE TRIGGER ALL;
DELETE FROM idemq.jobs WHERE finished_at IS NULL;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_truncated;
SELECT severity, invariant, regexp_replace(detail, 'because.*', '') FROM idemq.check() WHERE invariant = 'limits.unfinished';
SELECT state_of('SELECT add()');
SELECT idemq.recount() >= 0;
SELECT add(2);
SELECT unfinished();
TRUNCATE idemq.jobs, idemq.dependencies, idemq.children;
SELECT add(2);
SELECT unfinished();
SELECT * FROM idemq.check();
SELECT idemq.drop_queue('q', force => true);
CALL fresh(1);
SELECT add(), state_of('SELECT add()');
SELECT unfinished();
DROP EXTENSION idemq CASCADE;
