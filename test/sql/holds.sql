-- hold_back: which claims obey, how long it lasts, what ends it, who says so, what is refused.  Without the worker.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
CREATE FUNCTION sqlstate_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN EXECUTE command; RETURN 'none'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE || ' ' || regexp_replace(SQLERRM, '\d{4}-\d\d-\d\d [^,]*', 'TIME'); END $$;
SELECT idemq.create_queue('q', lease => '1 h', retry_base => '1 ms', retry_jitter => 0) IS NOT NULL AS created; -- meant to expire
SELECT id AS j1 FROM idemq.enqueue('q', '1', key => 'k1') \gset
SELECT id AS j2 FROM idemq.enqueue('q', '2', key => 'k2') \gset
SELECT id AS j3 FROM idemq.enqueue('q', '3', key => 'k3') \gset
SELECT token AS t1 FROM idemq.claim('q') \gset
CREATE FUNCTION rows() RETURNS TABLE (queue text, group_key text, began text, ends text) LANGUAGE sql AS $$
	SELECT idemq.queue_name(queue_id), group_key, 'in ' || ceil(extract(epoch FROM began_at - now()) / 60) || ' min', 'in ' || round(extract(epoch FROM until - now()) / 60) || ' min'
	FROM idemq_internal.hold_entries ORDER BY 1, 2, until $$;
-- The time of a queue's holds is over now.
CREATE FUNCTION over(name text) RETURNS bigint LANGUAGE sql AS $$
	WITH ended AS (UPDATE idemq_internal.hold_entries SET until = clock_timestamp()
		WHERE queue_id = idemq.queue_id(name) AND until > clock_timestamp() RETURNING 1) SELECT count(*) FROM ended $$;
CREATE FUNCTION in_words(id bigint) RETURNS text LANGUAGE sql AS $$ SELECT regexp_replace(idemq.why(id), '\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[-+.\d]*( [A-Z]+)?', 'TIME', 'g') $$;

-- ---- What is refused

SELECT sqlstate_of(format(c, :j1, :t1)) FROM unnest(ARRAY[
	'SELECT idemq.hold_back(%s, %s)', $$SELECT idemq.hold_back(%s, %s, '1 min', now() + '1 min')$$, $$SELECT idemq.hold_back(%s, %s, '0')$$,
	$$SELECT idemq.hold_back(%s, %s, '-1 s')$$, $$SELECT idemq.hold_back(%s, %s, until => now() - '1 s'::interval)$$, -- meant to expire
	$$SELECT idemq.hold_back(%s, %s, until => '-infinity')$$, $$SELECT idemq.hold_back(%s, %s, until => 'infinity')$$,
	$$SELECT idemq.hold_back(%s, %s, '1 min', scope => 'all')$$, $$SELECT idemq.hold_back(%s, %s, '1 min', scope => '')$$,
	$$SELECT idemq.hold_back(%s, %s, '1 min', scope => 'group')$$, $$SELECT idemq.hold_back(%s, %s - 1, '1 min')$$,
	$$SELECT idemq.hold_back(%s + 1000000, %s, '1 min')$$, $$SELECT idemq.hold_back(NULL, %2$s, '1 min')$$, $$SELECT idemq.hold_back(%s, NULL, '1 min')$$,
	$$SELECT idemq.hold_back(%s, %s, '61 min')$$, $$SELECT idemq.alter_queue('q', max_hold_back => '-1 s')$$,
	$$SELECT idemq.create_queue('x', max_hold_back => NULL)$$]) c;
SELECT regexp_replace(sqlstate_of(format('SELECT idemq.hold_back(%s, %s, ''1 min'')', :j2, :t1)), 'job \d+', 'job N') AS not_running;
BEGIN READ ONLY;
SELECT idemq.hold_back(:j1, :t1, '1 min');
ROLLBACK;
SELECT idemq.alter_queue('q', max_hold_back => '0');
SELECT sqlstate_of(format($$SELECT idemq.hold_back(%s, %s, '1 us')$$, :j1, :t1));
SELECT idemq.alter_queue('q', max_hold_back => '1 h');
SELECT * FROM rows();
SELECT count(*) FROM idemq.audit WHERE action = 'hold_back';

-- ---- A queue: every claimer obeys; what runs goes on

SELECT idemq.enqueue('q', '4', key => 'k4') IS NOT NULL AS more;
SELECT id AS j4 FROM idemq.jobs WHERE key = 'k4' \gset
SELECT token AS t4 FROM idemq.claim_job(:j4) \gset
SELECT idemq.hold_back(:j1, :t1, '30 min') - clock_timestamp() > '29 min' AS half_an_hour;
SELECT * FROM rows();
SELECT (SELECT count(*) FROM idemq.claim('q')), (SELECT count(*) FROM idemq.claim_any('{q}')), idemq.commit_once(:j2);
SELECT outcome, retry_after = until AS at_its_end FROM idemq.claim_job(:j2), idemq.holds;
SELECT outcome, retry_after = until AS at_its_end FROM idemq.acquire('q', 'k2'), idemq.holds;
SELECT outcome, retry_after = until AS at_its_end FROM idemq.acquire('q', 'new', '1'), idemq.holds;
SELECT outcome FROM idemq.commit_many_and_claim(ARRAY[]::bigint[], ARRAY[]::bigint[], queue => 'q');
CALL idemq.wait('q', '1 ms', NULL); -- meant to expire
SELECT idemq.heartbeat(:j1, :t1), idemq.validate(:j1, :t1);
SELECT count(*) AS claimed FROM idemq.commit_and_claim(:j4, :t4);
SELECT status FROM idemq.jobs WHERE id = :j4;
SELECT replace(in_words(:j2), :'j1', 'N') AS why;
SELECT queue, scope, group_key, began_at < clock_timestamp() AS began, until - clock_timestamp() < '30 min' AS ends, job_id = :j1 AS its_job FROM idemq.holds;
SELECT held_until = (SELECT until FROM idemq.holds) AS held_until, groups_held, unattended_for FROM idemq.metrics;
SELECT name, value > 0 AS is_held FROM idemq_internal.prometheus_samples WHERE name ~ 'held' ORDER BY 1;

-- ---- The latest end wins; a call whose end is no later writes nothing; the beginning stays

BEGIN;
SELECT idemq.hold_back(:j1, :t1, '20 min') = until AS as_it_was FROM idemq.holds;
SELECT pg_current_xact_id_if_assigned() AS nothing_was_written;
COMMIT;
SELECT idemq.hold_back(:j1, :t1, until => until) = until AS as_it_was FROM idemq.holds;
SELECT count(*) FROM rows();
UPDATE idemq_internal.hold_entries SET began_at = began_at - interval '20 min';
SELECT idemq.hold_back(:j1, :t1, '39 min') IS NOT NULL AS longer;
SELECT * FROM rows();
SELECT sqlstate_of(format($$SELECT idemq.hold_back(%s, %s, '41 min')$$, :j1, :t1));
SELECT count(*) AS holds, min(until - began_at) BETWEEN '58 min' AND '60 min' AS the_longest FROM idemq.holds;
SELECT action, details - 'until' AS details, job_id = :j1 AS its_job FROM idemq.audit WHERE action = 'hold_back';

-- ---- A rollback leaves nothing

SELECT idemq.create_queue('r', lease => '1 h') IS NOT NULL AS created;
SELECT count(idemq.enqueue('r', to_jsonb(n))) FROM generate_series(1, 9) n;
SELECT id AS r1, token AS tr1 FROM idemq.claim('r') \gset
BEGIN;
SELECT idemq.hold_back(:r1, :tr1, '1 min') IS NOT NULL AS held;
SELECT count(*) FROM idemq.claim('r');
ROLLBACK;
SELECT count(*) FROM idemq.claim('r');
BEGIN;
SAVEPOINT s;
SELECT idemq.hold_back(:r1, :tr1, '1 min') IS NOT NULL AS held;
SELECT count(*) FROM idemq.claim('r');
ROLLBACK TO s;
SELECT count(*) FROM idemq.claim('r');
COMMIT;
SELECT count(*) FROM idemq.claim('r');
SELECT count(*) FROM idemq.holds WHERE queue = 'r';

-- ---- The clock ends it.  The next one only after a claim

SELECT over('q') > 0 AS over;
SELECT count(*) FROM idemq.holds;
SELECT held_until, groups_held FROM idemq.metrics WHERE queue = 'q';
SELECT count(*) > 0 AS rows_are_there FROM rows();
SELECT sqlstate_of(format($$SELECT idemq.hold_back(%s, %s, '1 min')$$, :j1, :t1));
-- A claim that is rolled back, or finds nothing, does not count.
BEGIN;
SELECT count(*) FROM idemq.claim('q');
SELECT count(*) AS rows FROM rows();
ROLLBACK;
SELECT idemq.commit_once(:j1);
SELECT sqlstate_of(format($$SELECT idemq.hold_back(%s, %s, '1 min')$$, :j1, :t1));
SELECT outcome FROM idemq.claim_job(:j2);
SELECT * FROM rows();
SELECT idemq.hold_back(:j1, :t1, '1 min') IS NOT NULL AS held;
SELECT over('q');
-- The caller's own claim counts, even if it has deleted nothing.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT id AS j5, token AS t5 FROM idemq.claim('q') \gset
COMMIT;
SELECT count(*) AS rows FROM rows();
SELECT sqlstate_of(format($$SELECT idemq.hold_back(%s, %s, '1 min')$$, :j1, :t1));
SELECT idemq.hold_back(:j5, :t5, '1 min') IS NOT NULL AS held;

-- ---- resume ends the pause and the holds, and says which

SELECT idemq.pause('q');
SELECT idemq.resume('q');
SELECT count(*) FROM idemq.holds;
SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(6, 9) n;
-- The hold has ended: another needs a claim.
SELECT sqlstate_of(format($$SELECT idemq.hold_back(%s, %s, '1 min')$$, :j5, :t5));
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.hold_back(:j5, :t5, '1 min') IS NOT NULL AS held;
SELECT idemq.resume('q');
SELECT idemq.resume('q');
SELECT action, details FROM idemq.audit WHERE action IN ('resume', 'pause') ORDER BY id;

-- ---- A group: others go on

SELECT idemq.create_queue('g', lease => '1 h', retry_base => '1 ms', retry_jitter => 0) IS NOT NULL AS created; -- meant to expire
CREATE FUNCTION take(wanted int DEFAULT 10, queue text DEFAULT 'g') RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload #>> '{}', ' ') FROM idemq.claim(queue, wanted) $$;
CREATE FUNCTION id_of(name text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.jobs WHERE payload = to_jsonb(name) $$;
CREATE FUNCTION add(name text, first int, last int, queue text DEFAULT 'g') RETURNS bigint LANGUAGE sql AS $$
	SELECT count(idemq.enqueue(queue, to_jsonb(name || n), group_key => name)) FROM generate_series(first, last) n $$;
CREATE FUNCTION hold(name text, delay interval, scope text DEFAULT NULL) RETURNS boolean LANGUAGE sql AS $$
	SELECT idemq.hold_back(id, token, delay, scope => scope) IS NOT NULL FROM idemq.jobs WHERE payload = to_jsonb(name) $$;
CREATE FUNCTION done(name text) RETURNS text LANGUAGE sql AS $$ SELECT idemq.try_commit(id, token)::text FROM idemq.jobs WHERE payload = to_jsonb(name) $$;
SELECT add('a', 1, 4), add('b', 1, 3), add('c', 1, 2), count(idemq.enqueue('g', to_jsonb('free' || n))) FROM generate_series(1, 2) n;
SELECT take();
SELECT hold('a1', '30 min');
SELECT queue, scope, group_key FROM idemq.holds;
SELECT held_until, groups_held FROM idemq.metrics WHERE queue = 'g';
SELECT name, value FROM idemq_internal.prometheus_samples WHERE name ~ 'held' AND labels ->> 'queue' = 'g' ORDER BY 1;
-- The next job of the group is promoted, and waits for the end.
SELECT done('a1'), done('b1');
SELECT take();
SELECT status, ready_at = until AS at_its_end, flags FROM idemq.jobs, idemq.holds WHERE id = id_of('a2');
SELECT replace(in_words(id_of('a2')), id_of('a1')::text, 'N') AS why;
SELECT regexp_replace(in_words(id_of('a3')), '\d{13}', 'N', 'g') AS why;
SELECT outcome, retry_after = until AS at_its_end FROM idemq.claim_job(id_of('a2')), idemq.holds;
SELECT idemq.commit_once(id_of('a2')), idemq.commit_once(id_of('a3'));
-- Nobody makes it start sooner.
SELECT idemq.retry(id_of('a2')), idemq.reschedule(id_of('a2'), now());
SELECT take();
SELECT outcome, retry_after = until AS at_its_end FROM idemq.claim_job(id_of('a2')), idemq.holds;
-- Longer: a job that was put off until the earlier end is put off again.
SELECT hold('b2', '10 min'), hold('b2', '20 min'), done('b2');
SELECT take();
UPDATE idemq.jobs SET ready_at = clock_timestamp() WHERE id = id_of('b3');
SELECT take();
SELECT ready_at = until AS at_the_later_end FROM idemq.jobs j, idemq.holds h WHERE id = id_of('b3') AND h.group_key = 'b';
-- One that is in the ready index when the hold begins: a retry, due at once.
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE id = id_of('c1');
SELECT idemq.claim_job(id_of('c1')) IS NOT NULL AS claimed;
SELECT hold('c1', '30 min'), idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE id = id_of('c1');
SELECT status, ready_at <= clock_timestamp() AS is_due FROM idemq.jobs WHERE id = id_of('c1');
SELECT outcome, retry_after = until AS at_its_end FROM idemq.claim_job(id_of('c1')), idemq.holds h WHERE h.group_key = 'c';
SELECT take();
SELECT status, ready_at = until AS at_its_end FROM idemq.jobs, idemq.holds h WHERE id = id_of('c1') AND h.group_key = 'c';
-- resume(queue, group_key) ends one group's, at once; the pause of the queue stays.
SELECT idemq.pause('g');
SELECT idemq.resume('g', 'b');
SELECT group_key FROM idemq.holds WHERE queue = 'g' ORDER BY 1;
SELECT paused FROM idemq.queues WHERE name = 'g';
SELECT take();
SELECT idemq.resume('g');
SELECT take(1);
SELECT count(*) FROM idemq.holds;
SELECT outcome FROM idemq.claim_job(id_of('c1'));
SELECT take();
SELECT sqlstate_of($$SELECT idemq.resume('g', '')$$), sqlstate_of($$SELECT idemq.resume('g', repeat('x', 1025))$$), sqlstate_of($$SELECT idemq.resume('nope', 'b')$$);
SELECT idemq.resume('g', 'nobody');
SELECT details FROM idemq.audit WHERE action = 'resume' AND queue = 'g' ORDER BY id;
SELECT action, queue, details - 'until' AS details FROM idemq.audit WHERE action = 'hold_back' AND queue = 'g' ORDER BY id;
-- A group's next hold needs a claim in that group, a queue's in that queue.
SELECT hold('b3', '1 min');
SELECT idemq.resume('g', 'b');
SELECT sqlstate_of($$SELECT hold('b3', '1 min')$$);
SELECT idemq.enqueue('g', '"free3"') IS NOT NULL AS other, add('b', 4, 5);
SELECT take();
SELECT sqlstate_of($$SELECT hold('b3', '1 min')$$);
SELECT done('b3');
SELECT take();
SELECT hold('b4', '1 min');
-- scope: the queue, of a job that has a group; a job without one.
SELECT hold('b4', '1 min', 'queue'), hold('free3', '2 min');
SELECT scope, group_key FROM idemq.holds WHERE queue = 'g' ORDER BY 1, 2;
SELECT idemq.resume('g');

-- ---- Groups of which several jobs may run

SELECT idemq.create_queue('p', lease => '1 h', group_max_running => 2) IS NOT NULL AS created;
SELECT add('m', 1, 6, 'p'), add('n', 1, 2, 'p'), count(idemq.enqueue('p', to_jsonb('alone' || n))) FROM generate_series(1, 2) n;
SELECT take(10, 'p');
SELECT hold('m1', '30 min');
SELECT done('m1'), done('m2');
SELECT take(10, 'p');
SELECT outcome, retry_after = until AS at_its_end FROM idemq.claim_job(id_of('m3')), idemq.holds;
SELECT flags & 96 AS permit_and_waits FROM idemq.jobs WHERE id = id_of('m3');
-- Its job without a group holds the queue.
SELECT hold('alone1', '1 min');
SELECT scope, group_key FROM idemq.holds WHERE queue = 'p' ORDER BY 1;
SELECT idemq.resume('p');
SELECT take(10, 'p');
SELECT done('m3'), done('m4');
SELECT take(10, 'p');
SELECT over('p') > 0 AS over;
SELECT hold('m6', '1 min'), over('p') > 0 AS over, done('m6'), add('m', 7, 8, 'p');
SELECT sqlstate_of($$SELECT hold('m5', '1 min')$$);
SELECT take(10, 'p');
SELECT hold('m5', '1 min');

-- ---- Who sees what; what goes with the queue

CREATE ROLE regress_holds_worker;
CREATE ROLE regress_holds_other;
CREATE ROLE regress_holds_monitor;
GRANT USAGE ON SCHEMA idemq TO regress_holds_other;
GRANT pg_monitor TO regress_holds_monitor;
SELECT idemq.grant_queue('p', 'regress_holds_worker', 'claim'), idemq.grant_queue('q', 'regress_holds_other', 'enqueue');
SELECT id AS p1, token AS tp1 FROM idemq.jobs WHERE id = id_of('m5') \gset
SET ROLE regress_holds_worker;
SELECT queue, scope, group_key FROM idemq.holds;
SELECT idemq.hold_back(:p1, :tp1, '2 min') IS NOT NULL AS held;
SELECT sqlstate_of($$SELECT idemq.resume('p')$$);
SET ROLE regress_holds_other;
SELECT * FROM idemq.holds;
SELECT idemq.hold_back(:p1, :tp1, '3 min');
SET ROLE regress_holds_monitor;
SELECT queue, scope, group_key FROM idemq.holds;
SELECT count(*) FROM idemq.audit WHERE action = 'hold_back' AND details ->> 'scope' = 'group';
RESET ROLE;
SELECT idemq.drop_queue('p', true);
SELECT count(*) FROM rows() WHERE queue = 'p';
-- Retention deletes what is left of a group's holds, once no running job is older.
SELECT add('old', 1, 2);
SELECT idemq.resume('g');
SELECT take();
SELECT hold('old1', '1 min'), over('g') > 0 AS over;
SELECT idemq.apply_retention() IS NOT NULL AS visited;
SELECT count(*) FROM idemq_internal.hold_entries WHERE group_key = 'old';
SELECT done('old1'), idemq.apply_retention() IS NOT NULL AS visited;
SELECT count(*) FROM idemq_internal.hold_entries WHERE group_key = 'old';
-- A claim counts even if its transaction has claimed before the hold: nobody is refused after its commit.
SELECT idemq.create_queue('t', lease => '1 h') IS NOT NULL AS created;
SELECT count(idemq.enqueue('t', to_jsonb(n))) FROM generate_series(1, 9) n;
SELECT id AS s1, token AS ts1 FROM idemq.claim('t') \gset
SELECT idemq.hold_back(:s1, :ts1, '1 min') IS NOT NULL AS held, over('t');
BEGIN;
SELECT count(*) FROM idemq.claim('t');
SELECT idemq.hold_back(:s1, :ts1, '1 min') IS NOT NULL AS held, over('t');
SELECT count(*) FROM idemq.claim('t');
COMMIT;
SELECT idemq.hold_back(:s1, :ts1, '1 min') IS NOT NULL AS held, over('t');
-- If all claims are above READ COMMITTED, retention leaves the last row.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT id AS s2, token AS ts2 FROM idemq.claim('t') \gset
COMMIT;
SELECT idemq.hold_back(:s2, :ts2, '1 min') IS NOT NULL AS held, over('t');
SELECT count(*) FROM rows() WHERE queue = 't';
SELECT idemq.apply_retention() IS NOT NULL AS visited;
SELECT count(*) FROM rows() WHERE queue = 't';
SELECT sqlstate_of(format($$SELECT idemq.hold_back(%s, %s, '1 min')$$, :s2, :ts2));
INSERT INTO idemq_internal.hold_entries (queue_id, began_at, until, held_at, job_id, token) VALUES (1000000, now(), now(), now(), 1, 1);
SELECT severity, invariant FROM idemq.check();
TRUNCATE idemq_internal.hold_entries;
SELECT count(*) FROM idemq.claim('q');
SELECT * FROM idemq.check();
SELECT idemq.drop_queue(name, true) FROM idemq.queues;
DROP OWNED BY regress_holds_other;
DROP ROLE regress_holds_worker, regress_holds_other, regress_holds_monitor;
DROP EXTENSION idemq;
