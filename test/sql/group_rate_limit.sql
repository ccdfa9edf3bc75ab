-- So many starts of a group in a period, without the worker.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
CREATE FUNCTION sqlstate_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN EXECUTE command; RETURN 'none'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$;
SELECT idemq.create_queue('q', group_rate_limit => 3, group_rate_period => '1 h', group_rate_burst => 3, retry_base => '1 ms', retry_jitter => 0) IS NOT NULL AS created; -- meant to expire
SELECT c, sqlstate_of(c) FROM unnest(ARRAY[
	$$SELECT idemq.create_queue('x', group_rate_limit => 0)$$, $$SELECT idemq.create_queue('x', group_rate_limit => -1)$$,
	$$SELECT idemq.create_queue('x', group_rate_period => '0')$$, $$SELECT idemq.create_queue('x', group_rate_period => NULL)$$,
	$$SELECT idemq.create_queue('y', group_rate_limit => 1, group_rate_period => '200 years')$$,
	$$SELECT idemq.alter_queue('q', group_rate_limit => -1)$$, $$SELECT idemq.alter_queue('q', group_rate_period => '0')$$,
	$$SELECT idemq.alter_queue('q', group_rate_limit => NULL, group_rate_period => NULL)$$]) c;
SELECT name, group_rate_limit, group_rate_period FROM idemq.queues;

CREATE FUNCTION jobs(name text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg((payload #>> '{}') || ':' || status || CASE WHEN ready_at > clock_timestamp() THEN ' later' ELSE '' END, ', ' ORDER BY id)
	FROM idemq.jobs WHERE finished_at IS NULL AND group_key = name $$;
CREATE FUNCTION take(wanted int DEFAULT 1, queue text DEFAULT 'q') RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload #>> '{}', ' ') FROM idemq.claim(queue, wanted) $$;
CREATE FUNCTION done(name text) RETURNS text LANGUAGE sql AS $$
	SELECT idemq.try_commit(id, token)::text FROM idemq.jobs WHERE payload = to_jsonb(name) $$;
CREATE FUNCTION add(name text, first int, last int, queue text DEFAULT 'q') RETURNS bigint LANGUAGE sql AS $$
	SELECT count(idemq.enqueue(queue, to_jsonb(name || n), group_key => name)) FROM generate_series(first, last) n $$;
CREATE FUNCTION id_of(name text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.jobs WHERE payload = to_jsonb(name) $$;
-- When the job may be started, from now, to ten minutes: the third of an hour that a start of q is worth.
CREATE FUNCTION waits(name text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN ready_at <= clock_timestamp() THEN 'not'
		ELSE 'up to ' || ceil(extract(epoch FROM ready_at - clock_timestamp()) / 600) * 10 || ' min' END FROM idemq.jobs WHERE payload = to_jsonb(name) $$;

-- One after the other: three, then one in 20 minutes.  Other groups, and jobs of none, have their own.
SELECT add('a', 1, 6), add('b', 1, 1), count(idemq.enqueue('q', to_jsonb('free' || n))) FROM generate_series(1, 4) n;
SELECT take(10);
SELECT done('a1');
SELECT take(10), done('a2');
SELECT take(10), done('a3');
SELECT take(10), jobs('a'), waits('a4');
SELECT regexp_replace(idemq.why(id_of('a4')), '\d{4}-\d\d-\d\d .*', '<time>');
SELECT outcome, retry_after BETWEEN now() + '15 min' AND now() + '20 min' AS soon FROM idemq.claim_job(id_of('a4'));
SELECT idemq.commit_once(id_of('a4')), idemq.commit_once(id_of('a5'));
-- Nobody can make it start sooner.
SELECT idemq.retry(id_of('a4'));
SELECT jobs('a');
SELECT outcome, retry_after BETWEEN now() + '15 min' AND now() + '20 min' AS soon FROM idemq.claim_job(id_of('a4'));
SELECT take(10), jobs('a'), waits('a4');
SELECT idemq.reschedule(id_of('a4'), now());
SELECT take(10), jobs('a'), waits('a4');
-- Nor by the name of its bucket.
SELECT allowed, remaining FROM idemq.admit('group', 1, '1 h');

-- A job that fails is started again: that counts.  It stays the head, and retrying.
SELECT add('f', 1, 2);
SELECT take(10), idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"f1"';
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"f1"';
SELECT take(10), idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"f1"';
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"f1"';
SELECT outcome FROM idemq.claim_job(id_of('f1'));
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"f1"';
SELECT jobs('f');
SELECT take(10), jobs('f'), waits('f1');
-- One that waits longer for its retry says so.
SELECT idemq.reschedule(id_of('f1'), now() + '2 days');
SELECT idemq.why(id_of('f1')) ~ 'not due before' AS not_due;

-- A rollback gives no start back; one that did not come about takes none.
SELECT add('r', 1, 2);
BEGIN; SELECT take(10); ROLLBACK;
BEGIN; SELECT take(10); ROLLBACK;
SELECT idemq.alter_queue('q', max_running => 1);
SELECT count(*) FROM idemq.claim('q', 10);
SELECT count(*), max(outcome::text) FROM generate_series(1, 5) n, idemq.claim_job(id_of('r1'));
SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running';
SELECT idemq.alter_queue('q', max_running => 0);
SELECT take(10), jobs('r'), waits('r1');
-- commit_once and commit_and_claim start jobs, too.
SELECT add('o', 1, 5);
SELECT idemq.commit_once(id_of('o1'));
SELECT idemq.commit_once(id_of('o2'));
SELECT take(10);
SELECT c.payload FROM idemq.jobs j, idemq.commit_and_claim(j.id, j.token, queue => 'q') c WHERE j.payload = '"o3"';
SELECT take(10), jobs('o'), waits('o4');
-- And acquire.
SELECT count(idemq.enqueue('q', to_jsonb('k' || n), key => 'k' || n, group_key => 'k')) FROM generate_series(1, 4) n;
SELECT (idemq.acquire('q', 'k1')).outcome;
SELECT done('k1');
SELECT (idemq.acquire('q', 'k2')).outcome;
SELECT done('k2');
SELECT (idemq.acquire('q', 'k3')).outcome;
SELECT done('k3');
SELECT (idemq.acquire('q', 'k4')).outcome, jobs('k'), waits('k4');
SELECT * FROM idemq.check();

-- Another rate, for what waits, too: jobs that were promoted for a time to come, or that a claim has deferred, after
-- an attempt or before.  A time that was asked for stays: of d1 in the enqueue, e1 by reschedule, g1 by release, h1 by fail.
SELECT idemq.reschedule(id_of('f1'), now());
SELECT count(idemq.enqueue('q', to_jsonb(name || 1), group_key => name, delay => CASE name WHEN 'd' THEN interval '1 day' ELSE '0' END)) FROM unnest('{d,e,g,h}'::text[]) name;
SELECT idemq.reschedule(id_of('e1'), now() + '1 day');
SELECT take(10), idemq.release(id, token, '1 day') FROM idemq.jobs WHERE payload = '"g1"';
SELECT idemq.release(id, token, '1 day') FROM idemq.jobs WHERE payload = '"g1"';
SELECT idemq.fail(id, token, 'no', retry_in => '1 day') FROM idemq.jobs WHERE payload = '"h1"';
CREATE FUNCTION all_wait() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(n || ' ' || waits(n), ', ') FROM unnest('{a4,f1,r1,o4,k4,d1,e1,g1,h1}'::text[]) n $$;
SELECT take(10), all_wait();
SELECT idemq.alter_queue('q', group_rate_limit => 6);
SELECT take(10), all_wait();
SELECT idemq.alter_queue('q', group_rate_limit => 1, group_rate_period => '3 h');
SELECT take(10), all_wait();
-- Lower: a job that is due sooner is deferred when it is.
SELECT idemq.retry(id_of('o4'));
SELECT take(10), waits('o4');
-- No emptier than empty.
SELECT idemq.alter_queue('q', group_rate_period => '6 min');
SELECT take(10), all_wait();
SELECT idemq.alter_queue('q', group_rate_limit => 0);
SELECT group_rate_limit, group_rate_period FROM idemq.queues WHERE name = 'q';
SELECT take(10), all_wait();
SELECT done('o4');
SELECT take(10), done('o5');
SELECT * FROM idemq.check();

-- Several of a group at once.
SELECT idemq.create_queue('p', group_max_running => 4, group_rate_limit => 3, group_rate_period => '1 h', group_rate_burst => 3) IS NOT NULL AS created;
SELECT add('x', 1, 6, 'p'), add('y', 1, 2, 'p');
-- Jobs of no group are not limited.
SELECT idemq.create_queue('n', group_max_running => 2, group_rate_limit => 1, group_rate_period => '1 h') IS NOT NULL AS created;
SELECT count(idemq.enqueue('n', to_jsonb('n' || n))) FROM generate_series(1, 4) n;
SELECT take(10, 'n');
SELECT take(2, 'p'), take(10, 'p');
-- The next one has its permit, and keeps it while it waits.
SELECT jobs('x'), jobs('y'), waits('x4');
SELECT flags & 32 <> 0 AS has_permit, flags & 64 <> 0 AS waits_for_rate FROM idemq.jobs WHERE id = id_of('x4');
SELECT regexp_replace(idemq.why(id_of('x4')), '\d{4}-\d\d-\d\d .*', '<time>'), idemq.why(id_of('x5')) ~ 'behind job \d+, which is the next to be claimed and not due before \d{4}-\d\d-\d\d .*: see' AS behind;
SELECT done('x1'), done('x2'), done('x3');
SELECT take(10, 'p'), jobs('x');
-- Who waits for his own time takes no permit; nor does one that is retried.
SELECT idemq.retry(id_of('x4'));
SELECT outcome FROM idemq.claim_job(id_of('x4'));
SELECT take(10, 'p'), jobs('x'), waits('x4');
SELECT idemq.release(id, token) FROM idemq.jobs WHERE payload = '"y1"';
SELECT take(10, 'p'), jobs('y');
SELECT idemq.release(id, token) FROM idemq.jobs WHERE payload = '"y1"';
SELECT take(10, 'p'), jobs('y'), waits('y1');
-- With another group_max_running, and another rate, the one that waits still counts.
SELECT idemq.alter_queue('p', group_max_running => 2, group_rate_limit => 0);
SELECT take(10, 'p'), jobs('x'), jobs('y');
SELECT * FROM idemq.check();
SELECT done('x4'), done('x5');
SELECT take(10, 'p'), done('x6'), done('y1'), done('y2');

-- Deferred while it has its permit: that is still counted.
SELECT idemq.create_queue('z', group_max_running => 3, group_rate_limit => 1, group_rate_period => '1 h') IS NOT NULL AS created;
SELECT add('z', 1, 5, 'z');
SELECT take(1, 'z');
SELECT idemq.alter_queue('z', group_rate_limit => 0);
SELECT idemq.pause('z');
SELECT outcome FROM idemq.claim_job(id_of('z2'));
SELECT jobs('z');
SELECT idemq.alter_queue('z', group_rate_limit => 1);
SELECT idemq.resume('z');
SELECT take(10, 'z'), jobs('z'), waits('z2');
SELECT flags & 32 <> 0 AS has_permit, flags & 64 <> 0 AS waits_for_rate FROM idemq.jobs WHERE id = id_of('z2');
SELECT idemq.alter_queue('z', group_rate_limit => 0);
SELECT done('z1');
SELECT take(10, 'z'), jobs('z');
SELECT * FROM idemq.check();

-- A time that was asked for, and that the rate has put behind it: another rate brings the job back to it, never before.
SELECT idemq.create_queue('w', group_rate_limit => 3, group_rate_period => '1 h') IS NOT NULL AS created;
SELECT add('s', 1, 3, 'w');
SELECT take(10, 'w'), done('s1');
SELECT take(10, 'w'), done('s2');
SELECT take(10, 'w'), done('s3');
SELECT count(idemq.enqueue('w', '"s4"', group_key => 's', delay => '10 min'));
SELECT take(10, 'w'), waits('s4');
SELECT idemq.alter_queue('w', group_rate_limit => 3600);
SELECT take(10, 'w'), waits('s4');
SELECT ready_at > clock_timestamp() + '5 min' AS not_before FROM idemq.jobs WHERE payload = '"s4"';
SELECT * FROM idemq.check();

-- group_max_running to and fro, while jobs wait: for the rate, and for their own time, which stays.  With permits the
-- latter is in nobody's way.
SELECT idemq.create_queue('v', group_rate_limit => 1, group_rate_period => '1 h', retry_base => '1 ms') IS NOT NULL AS created; -- meant to expire
SELECT add('i', 1, 3, 'v'), add('j', 1, 3, 'v'), add('l', 1, 3, 'v');
SELECT take(10, 'v');
SELECT done('i1'), idemq.release(id, token, '1 day') FROM idemq.jobs WHERE payload = '"j1"';
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"l1"';
CREATE FUNCTION all_v() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(n || ' ' || status || ' ' || coalesce(waits(n), ''), ', ' ORDER BY n) FROM unnest('{i2,i3,j1,j2,l1,l2}'::text[]) n JOIN idemq.jobs ON payload = to_jsonb(n) $$;
SELECT take(10, 'v'), all_v();
SELECT idemq.alter_queue('v', group_max_running => 2);
SELECT take(10, 'v'), all_v();
SELECT idemq.alter_queue('v', group_max_running => 1);
SELECT take(10, 'v'), all_v();
SELECT idemq.alter_queue('v', group_max_running => 3, group_rate_limit => 2);
SELECT take(10, 'v'), all_v();
SELECT * FROM idemq.check();
SELECT idemq.alter_queue('v', group_max_running => 1);
SELECT idemq.alter_queue('v', group_rate_limit => 0);
-- In any order: which of these groups is checked first is not promised.
SELECT string_agg(p, ' ' ORDER BY p) FROM string_to_table(take(10, 'v'), ' ') p;
SELECT all_v();
SELECT * FROM idemq.check();

-- A transaction counts the permits that it has given itself for a time that is to come.
SELECT idemq.create_queue('own', group_max_running => 3, group_rate_limit => 2, group_rate_period => '1 h') IS NOT NULL AS created;
SELECT count(idemq.enqueue('own', to_jsonb('own' || n), group_key => 'own')) FROM generate_series(1, 6) n;
SELECT payload FROM idemq.claim('own');
BEGIN;
SELECT payload FROM idemq.claim('own');
SELECT count(*) FROM idemq.claim('own');
SELECT count(*) FROM idemq.claim('own', 10);
SELECT outcome, count(*) FROM idemq.jobs j, idemq.claim_job(j.id) WHERE j.group_key = 'own' AND j.status = 'blocked' GROUP BY outcome ORDER BY outcome;
COMMIT;
SELECT status, count(*) FROM idemq.jobs WHERE group_key = 'own' GROUP BY status ORDER BY status;
SELECT * FROM idemq.check();
DROP EXTENSION idemq;
