-- group_max_unfinished in one session.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
-- The number of unfinished jobs of each group; the number of groups in which transactions hold room.
CREATE FUNCTION unfinished(queue text DEFAULT 'q') RETURNS text RETURN
	(SELECT coalesce(string_agg(n, ' '), 'none') FROM (SELECT group_key || ' ' || count(*) AS n
		FROM idemq.job_list j WHERE j.queue = $1 AND status IN ('blocked', 'pending', 'running', 'retrying') AND group_key IS NOT NULL
		GROUP BY group_key ORDER BY group_key COLLATE "C") g);
CREATE FUNCTION taken() RETURNS bigint RETURN (SELECT used FROM idemq.memory WHERE resource = 'group room');
CREATE PROCEDURE fresh(max int, n int DEFAULT 0, queue text DEFAULT 'q') LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq.drop_queue(queue, force => true) FROM idemq.queues WHERE name = queue;
	PERFORM idemq.create_queue(queue, lease => '1 h', retry_jitter => 0, group_max_running => 3, group_max_unfinished => max);
	COMMIT;
	PERFORM idemq.enqueue(queue, to_jsonb(i), group_key => 'g') FROM generate_series(1, n) i;
END $$;
CREATE FUNCTION add(n int DEFAULT 1, g text DEFAULT 'g') RETURNS bigint LANGUAGE sql AS
	$$ SELECT count(idemq.enqueue('q', to_jsonb(i), group_key => g)) FROM generate_series(1, n) i $$;
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
-- Ends the first jobs of a group.
CREATE FUNCTION finish(n int DEFAULT 1, g text DEFAULT 'g') RETURNS bigint LANGUAGE sql AS
	$$ SELECT count(idemq.cancel(id)) FROM (SELECT id FROM idemq.jobs WHERE group_key = g AND finished_at IS NULL ORDER BY id LIMIT n) j $$;
-- The id of the group's first waiting job.
CREATE FUNCTION first(g text DEFAULT 'g') RETURNS bigint RETURN
	(SELECT min(id) FROM idemq.jobs WHERE group_key = g AND status IN ('blocked', 'pending'));

-- Valid and invalid values.
SELECT idemq.create_queue('q', group_max_unfinished => 0);
SELECT idemq.create_queue('q', group_max_unfinished => -1);
SELECT idemq.create_queue('q', group_max_unfinished => 10001);
SELECT idemq.create_queue('q', group_max_unfinished => 10000);
CALL fresh(NULL, 3);
SELECT idemq.alter_queue('q', group_max_unfinished => -1);
SELECT idemq.alter_queue('q', group_max_unfinished => 10001);
SELECT idemq.alter_queue('q', group_max_unfinished => 4);
-- Jobs that were enqueued before the limit was set also count in their group.
SELECT add();
SELECT add();
\set VERBOSITY default
SELECT add();
SELECT count(*) FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[5]), group_keys => array_fill('h'::text, ARRAY[5]));
-- A hint shows only the beginning of a long name.
SELECT count(*) FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[5]), group_keys => array_fill(repeat('ä', 300), ARRAY[5]));
\set VERBOSITY sqlstate
SELECT add(4, 'h'), state_of($$SELECT add(1, 'h')$$);
SELECT add(4, repeat('long', 200)), state_of($$SELECT add(1, repeat('long', 200))$$);
-- Jobs without a group are not limited, and the limit of another queue does not matter.
SELECT count(idemq.enqueue('q', '1')) FROM generate_series(1, 9);
SELECT count(idemq.enqueue('q', '1')), count(idemq.enqueue('q', '1', 'k' || n)) FROM generate_series(1, 9) n;
CALL fresh(4, 4, 'r');
SELECT idemq.alter_queue('q', group_max_unfinished => 0);
SELECT add(2), state_of($$SELECT idemq.enqueue('r', '1', group_key => 'g')$$);
SELECT settings.name, settings.group_max_unfinished FROM idemq.queues settings ORDER BY 1;
SELECT idemq.drop_queue('r', force => true);
SELECT taken();
SELECT * FROM idemq.check();

-- Jobs in every unfinished status count.
CALL fresh(4, 4);
SELECT count(*) FROM idemq.claim('q', 2);
SELECT idemq.fail(id, token, retry_in => '1 h') FROM idemq.jobs WHERE status = 'running' AND id = (SELECT min(id) FROM idemq.jobs);
SELECT string_agg(status::text, ' ' ORDER BY id) FROM idemq.jobs;
SELECT unfinished(), state_of('SELECT add()');
SELECT idemq.retry(id) FROM idemq.jobs WHERE status = 'retrying';
SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running';
SELECT unfinished(), state_of('SELECT add()');
-- Each way to end a job frees its room.
SELECT idemq.cancel(first());
SELECT add(), state_of('SELECT add()');
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q');
SELECT add(), state_of('SELECT add()');
SELECT claim_commit();
SELECT add(), state_of('SELECT add()');
SELECT idemq.release(id, token) FROM idemq.claim('q');
SELECT idemq.commit_once(id) FROM idemq.jobs WHERE status = 'pending' ORDER BY id LIMIT 1;
SELECT add(), state_of('SELECT add()');
DELETE FROM idemq.jobs WHERE id = (SELECT first());
SELECT add(), state_of('SELECT add()');
UPDATE idemq.jobs SET status = 'cancelled', finished_at = now(), ready_at = NULL WHERE id = (SELECT first());
SELECT add(), state_of('SELECT add()');
UPDATE idemq.jobs SET group_key = 'h' WHERE id = (SELECT first());
SELECT add(), state_of('SELECT add()');
SELECT unfinished(), taken();
SELECT idemq.alter_queue('q', retention => '0');
SELECT finish(1, 'h');
SELECT claim_commit();
SELECT add(), state_of('SELECT add()'), unfinished();
BEGIN;
SELECT claim_commit();
SELECT add(), state_of('SELECT add()'), taken();
COMMIT;
SELECT * FROM idemq.check();

-- A call adds all of its jobs or none, even if they belong to many groups.
CALL fresh(3, 1);
SELECT count(*) FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[7]), group_keys => '{h,g,i,h,g,h,NULL}');
SELECT unfinished();
SELECT count(*) FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[4]), group_keys => '{i,i,g,j}');
SELECT unfinished();
-- With keys: a duplicate does not need room.
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2}', keys => '{a,b}', group_keys => '{k,k}');
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,3}', keys => '{a,b,c}', group_keys => '{k,k,k}');
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,3}', keys => '{a,b,c}', group_keys => '{k,k,k}');
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,3,4}', keys => '{a,b,c,NULL}', group_keys => '{k,k,k,k}');
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,4,4}', keys => '{a,b,d,d}', group_keys => '{k,k,l,l}');
SELECT count(*) FROM idemq.enqueue_many('q', '{5,6,7}', keys => '{e,NULL,NULL}', group_keys => '{l,l,l}');
SELECT count(*) FROM idemq.enqueue_many('q', '{5,6}', keys => '{e,NULL}', group_keys => '{l,l}');
SELECT unfinished(), taken();
-- Room that was taken for duplicates is given back at the end of the call, and not of the transaction.
SELECT finish(2, 'k');
BEGIN;
SELECT outcome, count(*) FROM idemq.enqueue_many('q', '{3,3}', keys => '{c,c}', group_keys => '{k,k}') GROUP BY 1;
SELECT taken();
SELECT outcome, count(*) FROM idemq.enqueue_many('q', '{3,4}', keys => '{c,f}', group_keys => '{k,k}') GROUP BY 1 ORDER BY 1;
SELECT taken(), add(1, 'k'), state_of($$SELECT add(1, 'k')$$);
COMMIT;
SELECT unfinished(), taken();
-- A refused sequence number can be used again.
SELECT (idemq.enqueue_sequenced('q', 'p', 1, '1', group_key => 'g')).outcome;
SELECT finish();
SELECT (idemq.enqueue_sequenced('q', 'p', 1, '1', group_key => 'g')).outcome;
SELECT (idemq.enqueue_sequenced('q', 'p', 1, '1', group_key => 'g')).outcome;
SELECT unfinished();
CALL fresh(2);
SELECT count(*) FROM idemq.enqueue_graph('[{"queue": "q", "name": "a", "payload": 1, "group_key": "g"}, {"queue": "q", "name": "b", "payload": 2, "group_key": "g"}, {"queue": "q", "name": "c", "payload": 3, "group_key": "g"}]');
SELECT unfinished();
-- Children do not count before they join their group, and joining is never refused.
SELECT count(*) FROM idemq.enqueue_graph('[{"queue": "q", "name": "a", "payload": 1, "group_key": "g"}, {"queue": "q", "name": "b", "payload": 2, "group_key": "g", "depends_on": ["a"]}, {"queue": "q", "name": "c", "payload": 3, "group_key": "g", "depends_on": ["a"]}, {"queue": "q", "name": "d", "payload": 3, "group_key": "g", "depends_on": ["a"]}]');
SELECT unfinished(), add(), state_of('SELECT add()');
SELECT claim_commit();
BEGIN;
SELECT count(*) FROM idemq.claim('q', 3);
SELECT unfinished(), state_of('SELECT add()');
COMMIT;
SELECT unfinished(), state_of('SELECT add()'), finish(2);
SELECT unfinished(), state_of('SELECT add()'), finish();
SELECT unfinished(), add(), state_of('SELECT add()');
SELECT count(*) FROM idemq.enqueue_many('q', '{1,1,1}', group_keys => '{m,m,m}', depends_on => ARRAY[(SELECT max(id) FROM idemq.jobs)]);

-- A duplicate does not need room, and does not take any.
CALL fresh(2);
SELECT (idemq.enqueue('q', '1', 'k', group_key => 'g')).outcome, (idemq.enqueue('q', '2', 'l', group_key => 'g')).outcome;
SELECT (idemq.enqueue('q', '1', 'k', group_key => 'g')).outcome, (idemq.enqueue('q', '3', 'l', group_key => 'g', on_duplicate => 'replace')).outcome;
SELECT state_of($$SELECT idemq.enqueue('q', '1', 'm', group_key => 'g')$$), state_of($$SELECT idemq.enqueue('q', '1', 'm', group_key => 'g', nowait => true)$$);
SELECT (idemq.acquire('q', 'm', '1')).outcome;
SELECT unfinished(), taken();
-- The successor of a job whose key has expired.
SELECT idemq.alter_queue('q', idempotency_window => '0');
SELECT idemq.cancel(id) FROM idemq.jobs WHERE key = 'k';
SELECT add();
SELECT state_of($$SELECT idemq.enqueue('q', '1', 'k', group_key => 'g')$$);
SELECT idemq.cancel(id) FROM idemq.jobs WHERE key = 'l';
SELECT (idemq.enqueue('q', '1', 'k', group_key => 'g')).outcome;
SELECT unfinished(), taken();

-- With both limits, a job that is refused because its group is full takes no room in the queue.
CALL fresh(2, 2);
SELECT idemq.alter_queue('q', max_unfinished => 3);
BEGIN;
SELECT state_of($$SELECT idemq.enqueue('q', '1', 'k', group_key => 'g')$$), state_of('SELECT add()'), state_of($$SELECT add(2, 'h')$$);
SELECT unfinished FROM idemq.metrics;
SELECT add(1, 'h'), taken();
COMMIT;
SELECT unfinished(), taken();
SELECT unfinished FROM idemq.metrics;

-- A transaction may use the room of jobs that it ends itself.
CALL fresh(2, 2);
BEGIN;
SELECT claim_commit(), unfinished();
SELECT add(), taken();
SELECT state_of('SELECT add()');
COMMIT;
SELECT unfinished(), taken();
-- This is also true if the group is above the limit.
SELECT idemq.alter_queue('q', group_max_unfinished => 1);
WITH done AS MATERIALIZED (SELECT claim_commit() AS outcome) SELECT outcome, add() FROM done;
SELECT state_of('SELECT add()'), unfinished();
SELECT idemq.alter_queue('q', group_max_unfinished => 2);
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
SELECT unfinished(), taken();
-- The same, if a job was ended before a later enqueue: exactly the room of that enqueue is given back.
CALL fresh(3, 1);
BEGIN;
SELECT add(), taken();
SAVEPOINT a;
SELECT add(), taken();
SELECT state_of('SELECT add()');
SELECT claim_commit();
SAVEPOINT b;
SELECT add();
RELEASE SAVEPOINT b;
SELECT state_of('SELECT add()');
SAVEPOINT c;
SELECT add(1, 'h'), taken();
ROLLBACK TO SAVEPOINT a;
SELECT unfinished(), taken();
SELECT add(), state_of('SELECT add()');
ROLLBACK;
SELECT taken(), unfinished(), add();
-- Jobs are deleted, or moved to another group, with SQL.
SELECT add();
BEGIN;
DELETE FROM idemq.jobs WHERE id = (SELECT first());
SELECT add(), state_of('SELECT add()'), taken();
UPDATE idemq.jobs SET group_key = 'h' WHERE id = (SELECT first());
SELECT add(), state_of('SELECT add()'), taken();
SELECT add(2, 'h'), state_of($$SELECT add(1, 'h')$$), taken();
COMMIT;
SELECT unfinished(), taken();
-- A loop of exception blocks, half of which are rolled back.
CALL fresh(5);
DO $$
BEGIN
	FOR i IN 1 .. 20 LOOP
		BEGIN
			PERFORM idemq.enqueue('q', to_jsonb(i), group_key => 'g');
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
SELECT unfinished(), taken();
-- One transaction enqueues into many groups, in exception blocks, half of which are rolled back.
CALL fresh(2);
BEGIN;
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		BEGIN
			PERFORM idemq.enqueue('q', to_jsonb(i), group_key => 'a' || i);
			PERFORM idemq.enqueue('q', to_jsonb(i), group_key => 'b' || i);
			IF i % 2 = 0 THEN
				RAISE division_by_zero;
			END IF;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	END LOOP;
END $$;
SELECT taken();
SAVEPOINT a;
SELECT count(*), sum((outcome = 'accepted')::int) FROM generate_series(1, 1000) i, idemq.enqueue('q', to_jsonb(i), group_key => 'a' || i);
SELECT taken(), state_of($$SELECT add(1, 'a1')$$), state_of($$SELECT add(1, 'a2')$$);
ROLLBACK TO SAVEPOINT a;
SELECT taken(), state_of($$SELECT add(1, 'a1')$$);
COMMIT;
SELECT taken(), count(*), count(DISTINCT group_key) FROM idemq.jobs;
-- enqueue_many with keys, in a transaction that ends a job between two calls.
CALL fresh(2);
BEGIN;
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2}', keys => '{a,NULL}', group_keys => '{g,g}');
SELECT state_of('SELECT add()');
SELECT claim_commit();
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2}', keys => '{a,c}', group_keys => '{g,g}');
SELECT state_of('SELECT add()');
COMMIT;
SELECT unfinished(), taken();
SELECT * FROM idemq.check();

-- Some jobs are never refused.  They take the group above the limit, and enqueues are refused until it is below.
CALL fresh(2, 2);
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q', 2);
SELECT add(2);
SELECT idemq.redrive('q');
SELECT unfinished(), state_of('SELECT add()');
INSERT INTO idemq.jobs (queue_id, priority, enqueued_at, max_attempts, status, group_key, payload)
	SELECT queue_id, 4, now(), 20, 'blocked', 'g', '1' FROM idemq.queues WHERE name = 'q';
SELECT unfinished(), state_of('SELECT add()');
SELECT finish(3);
SELECT unfinished(), state_of('SELECT add()');
SELECT finish();
SELECT unfinished(), add(), state_of('SELECT add()');
-- A transaction that has added such jobs also needs room for them before it can enqueue.
BEGIN;
SELECT finish(2), add(2);
SELECT idemq.retry(max(id)) FROM idemq.jobs WHERE status = 'cancelled';
SELECT unfinished(), state_of('SELECT add()');
SELECT finish(1), state_of('SELECT add()');
SELECT finish(1), add(), state_of('SELECT add()');
ROLLBACK;
SELECT unfinished(), taken();
-- A rerun of a finished job.
CALL fresh(1);
SELECT (idemq.enqueue('q', '1', 'k', group_key => 'g')).outcome;
SELECT claim_commit();
SELECT add();
SELECT (idemq.enqueue('q', '1', 'k', group_key => 'g', on_duplicate => 'rerun')).outcome;
SELECT unfinished(), state_of('SELECT add()');
-- Dead-letter records and published jobs.
CALL fresh(1, 1, 'dead');
CALL fresh(2, 2);
SELECT idemq.alter_queue('q', dead_letter_queue => 'dead');
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q', 2);
SELECT unfinished(), unfinished('dead');
SELECT idemq.create_topic('news');
SELECT idemq.bind_topic('news', 'dead');
SELECT queue, outcome FROM idemq.publish('news', '1', group_key => 'g');
SELECT unfinished('dead'), state_of($$SELECT idemq.enqueue('dead', '1', group_key => 'g')$$);
-- If its group is full, a published job is counted in over_limit, or is skipped and then takes no room in the queue.
SELECT outcome FROM idemq.publish('news', '1', group_key => 'h');
SELECT outcome FROM idemq.publish('news', '1', group_key => 'h', key => 'k');
SELECT over_limit FROM idemq.topic_bindings;
SELECT idemq.bind_topic('news', 'dead', when_full => 'skip'), idemq.alter_queue('dead', max_unfinished => 10) IS NULL;
BEGIN;
SELECT outcome FROM idemq.publish('news', '1', group_key => 'h');
SELECT outcome FROM idemq.publish('news', '1', group_key => 'h', key => 'l');
SELECT outcome FROM idemq.publish('news', '1', group_key => 'i');
SELECT taken(), unfinished FROM idemq.metrics WHERE queue = 'dead';
COMMIT;
SELECT over_limit FROM idemq.topic_bindings;
SELECT unfinished('dead'), taken();
SELECT * FROM idemq.check();
SELECT idemq.drop_topic('news');
SELECT idemq.alter_queue('q', dead_letter_queue => '');
SELECT idemq.drop_queue('dead', force => true);

-- Lowering the limit does not remove jobs.
CALL fresh(5, 5);
SELECT idemq.alter_queue('q', group_max_unfinished => 3);
SELECT unfinished(), state_of('SELECT add()');
SELECT finish(2);
SELECT unfinished(), state_of('SELECT add()');
SELECT finish(1);
SELECT add(), state_of('SELECT add()');
-- A transaction that has changed the limit itself.
BEGIN;
SELECT idemq.alter_queue('q', group_max_unfinished => 4);
SELECT add(), state_of('SELECT add()');
ROLLBACK;
SELECT unfinished(), state_of('SELECT add()'), taken();

-- Jobs that it wrote before it set the limit count: in earlier statements, in the same statement, and inside a savepoint.
CALL fresh(NULL, 1);
BEGIN;
SELECT add(2), idemq.alter_queue('q', group_max_unfinished => 4), add(1), state_of('SELECT add()');
SELECT add(1, 'h'), state_of('SELECT add()'), taken();
ROLLBACK;
SELECT unfinished(), taken();
BEGIN;
SELECT finish();
SELECT idemq.alter_queue('q', group_max_unfinished => 1);
SAVEPOINT a;
SELECT add(), state_of('SELECT add()'), taken();
ROLLBACK TO SAVEPOINT a;
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2}', keys => '{a,NULL}', group_keys => '{g,g}');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT add(2);
ROLLBACK TO SAVEPOINT a;
SELECT idemq.alter_queue('q', group_max_unfinished => 2);
SELECT add(), state_of('SELECT add()'), taken();
COMMIT;
SELECT unfinished(), taken();
-- Jobs that were added to a group, or moved to or from it with SQL, before the transaction sets the limit.
SELECT idemq.alter_queue('q', group_max_unfinished => 0);
BEGIN;
SELECT add(3, 'h');
UPDATE idemq.jobs SET group_key = 'i' WHERE group_key = 'h';
SELECT idemq.alter_queue('q', group_max_unfinished => 3);
SELECT add(3, 'h'), state_of($$SELECT add(1, 'h')$$), state_of($$SELECT add(1, 'i')$$), taken();
ROLLBACK;
BEGIN;
UPDATE idemq.jobs SET group_key = 'h' WHERE group_key = 'g' AND finished_at IS NULL;
SELECT idemq.alter_queue('q', group_max_unfinished => 2);
SELECT unfinished(), state_of($$SELECT add(1, 'h')$$), state_of('SELECT add(3)'), add(2), taken();
ROLLBACK;
-- One transaction removes the limit and sets it again.
BEGIN;
SELECT idemq.alter_queue('q', group_max_unfinished => 3), add(1, 'h'), idemq.alter_queue('q', group_max_unfinished => 0);
SAVEPOINT a;
SELECT add(2, 'h');
RELEASE SAVEPOINT a;
SELECT idemq.alter_queue('q', group_max_unfinished => 3), state_of($$SELECT add(1, 'h')$$), finish(1, 'h'), add(1, 'h'), state_of($$SELECT add(1, 'h')$$);
ROLLBACK;
-- A child joins its group before the transaction sets the limit.
SELECT add(1, 'j'), idemq.alter_queue('q', group_max_running => 1);
SELECT count(*) FROM idemq.claim('q', 9);
SELECT id AS parent FROM idemq.enqueue('q', '1') \gset
SELECT (idemq.enqueue('q', '1', group_key => 'j', depends_on => ARRAY[:parent])).outcome;
SELECT claim_commit();
BEGIN;
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.alter_queue('q', group_max_unfinished => 2);
SELECT unfinished(), state_of($$SELECT add(1, 'j')$$);
ROLLBACK;
-- A transaction ends jobs before it sets the limit, and then enqueues the same number.
CALL fresh(NULL, 2);
BEGIN;
SELECT finish(2);
SELECT idemq.alter_queue('q', group_max_unfinished => 2);
SELECT add(2), state_of('SELECT add()'), taken();
ROLLBACK;
-- While the group is above the limit, it has no room, even if the transaction has ended some of its jobs.
SELECT add(4);
BEGIN;
SELECT finish(4);
SELECT idemq.alter_queue('q', group_max_unfinished => 2);
SELECT unfinished(), state_of('SELECT add()'), finish(), add(), state_of('SELECT add()'), taken();
COMMIT;
SELECT unfinished(), taken();

-- enqueue_many asks for room only in groups that get a job.
CALL fresh(2);
SELECT add(), finish(), (idemq.enqueue('q', '1', 'k', group_key => 'g')).outcome, add();
BEGIN;
SELECT idemq.retry(id) FROM idemq.jobs WHERE status = 'cancelled';
SELECT ord, outcome FROM idemq.enqueue_many('q', '{1,2}', keys => '{k,NULL}', group_keys => '{g,h}');
SELECT unfinished(), state_of('SELECT add()');
COMMIT;

-- A schedule's tick is refused, and retried until there is room or the next tick replaces it.
CALL fresh(2, 2);
CALL idemq.tick();
SELECT idemq.schedule('s', '0 0 1 1 *', 'q', '"tick"', time_zone => 'UTC', group_key => 'g') > now();
CREATE FUNCTION ticks() RETURNS TABLE (failed boolean, last_error text, last_run interval, job text) LANGUAGE sql AS
	$$ SELECT failed_at IS NOT NULL, s.last_error, date_trunc('year', now(), 'UTC') - s.last_run, j.headers->>'schedule' FROM idemq.schedules s LEFT JOIN idemq.jobs j ON j.id = s.last_job $$;
UPDATE idemq_internal.schedule_entries SET done_until = now() - interval '3 years';
CALL idemq.tick();
SELECT * FROM ticks();
CALL idemq.tick();
SELECT * FROM ticks();
SELECT finish();
CALL idemq.tick();
SELECT unfinished(), taken(), * FROM ticks();
SELECT count(*) FROM idemq.jobs WHERE payload = '"tick"' AND group_key = 'g';
SELECT idemq.run_schedule_now('s');
SELECT idemq.unschedule('s');

-- A trigger on idemq.jobs enqueues before or after the row that fires it has been counted.  Both jobs need room.
CREATE FUNCTION follow_up() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NEW.payload = '"first"' THEN
		PERFORM idemq.enqueue('q', '"second"', group_key => 'g');
	END IF;
	RETURN NEW;
END $$;
CREATE TABLE results (call text, room int, state text, unfinished text);
CREATE SEQUENCE numbers;
CREATE PROCEDURE fire() LANGUAGE plpgsql AS $$
DECLARE
	call text;
BEGIN
	TRUNCATE results;
	FOREACH call IN ARRAY ARRAY[$s$enqueue('q', '"first"', group_key => 'g')$s$, $s$enqueue('q', '"first"', 'k' || clock_timestamp(), group_key => 'g')$s$,
		$s$enqueue_sequenced('q', 'p', nextval('numbers'), '"first"', group_key => 'g')$s$,
		$s$enqueue_many('q', '{1,"\"first\""}', group_keys => '{g,g}')$s$] LOOP
		FOR room IN 1 .. 3 LOOP
			CALL fresh(5, 5 - room);
			COMMIT;
			INSERT INTO results VALUES (call, room, state_of('SELECT idemq.' || call));
			COMMIT;
			UPDATE results r SET unfinished = unfinished() WHERE r.unfinished IS NULL;
		END LOOP;
	END LOOP;
END $$;
CREATE TRIGGER follow_up BEFORE INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION follow_up();
CALL fire();
SELECT call, string_agg(format('%s, %s', state, unfinished), '; ' ORDER BY room) FROM results GROUP BY 1 ORDER BY 1;
DROP TRIGGER follow_up ON idemq.jobs;
CREATE TRIGGER follow_up AFTER INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION follow_up();
CALL fire();
SELECT call, string_agg(format('%s, %s', state, unfinished), '; ' ORDER BY room) FROM results GROUP BY 1 ORDER BY 1;
-- No room is lost if a job for which there was room is not added, because it is a duplicate or is rolled back.
BEGIN;
SELECT idemq.drop_queue('q', force => true), idemq.create_queue('q', group_max_unfinished => 3);
SELECT count(*) FROM idemq.enqueue_many('q', '{1,1}', keys => '{k,k}', group_keys => '{g,g}', on_duplicate => 'ignore');
SAVEPOINT a;
SELECT state_of($s$SELECT idemq.enqueue('q', '"first"', group_key => 'g')$s$), unfinished();
ROLLBACK TO SAVEPOINT a;
SELECT state_of($$SELECT add(2)$$), state_of('SELECT add()'), unfinished();
COMMIT;
DROP TRIGGER follow_up ON idemq.jobs;

-- If a user has created a trigger, rows are written through SQL; each of them is counted once.
CALL fresh(2, 2);
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER nothing BEFORE INSERT OR UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION nothing();
BEGIN;
SELECT claim_commit();
SELECT add(), state_of('SELECT add()');
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2}', keys => '{a,NULL}', group_keys => '{h,h}');
SELECT state_of($$SELECT add(1, 'h')$$);
COMMIT;
SELECT unfinished(), taken();
DROP TRIGGER nothing ON idemq.jobs;
-- At each isolation level.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT finish();
SELECT add(), state_of('SELECT add()');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT state_of('SELECT add()');
SELECT finish();
SELECT add(), state_of('SELECT add()');
COMMIT;
SELECT unfinished(), taken();
SELECT * FROM idemq.check();
SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
CALL fresh(1);
SELECT add(), state_of('SELECT add()'), unfinished();
DROP EXTENSION idemq CASCADE;
