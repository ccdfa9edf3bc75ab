-- Groups that may have several running jobs, without the worker: which jobs have a permit, which group is next.
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q', group_max_running => 2, retry_base => '1 ms', retry_jitter => 0) IS NOT NULL AS created; -- meant to expire
CREATE FUNCTION sqlstate_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN EXECUTE command; RETURN 'none'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$;
SELECT c, sqlstate_of(c) FROM unnest(ARRAY[
	$$SELECT idemq.create_queue('x', group_max_running => 0)$$, $$SELECT idemq.create_queue('x', group_max_running => -1)$$,
	$$SELECT idemq.create_queue('x', group_max_running => NULL)$$, $$SELECT idemq.alter_queue('q', group_max_running => 0)$$,
	$$SELECT idemq.alter_queue('q', group_max_running => NULL)$$]) c;
SELECT group_max_running FROM idemq.queues;

-- The jobs that are not finished, in the order of their ids: their status, and + when they have a permit.
CREATE FUNCTION jobs(name text DEFAULT NULL) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg((payload #>> '{}') || ':' || status || CASE WHEN status = 'running' OR flags & 32 <> 0
		THEN '+' WHEN ready_at > clock_timestamp() THEN ' later' ELSE '' END, ', ' ORDER BY id)
	FROM idemq.jobs WHERE finished_at IS NULL AND (name IS NULL OR group_key = name) $$;
CREATE FUNCTION take(wanted int DEFAULT 1) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload #>> '{}', ' ') FROM idemq.claim('q', wanted) $$;
CREATE FUNCTION done(name text) RETURNS text LANGUAGE sql AS $$
	SELECT idemq.try_commit(id, token)::text FROM idemq.jobs WHERE payload = to_jsonb(name) $$;
CREATE FUNCTION add(name text, first int, last int) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(idemq.enqueue('q', to_jsonb(name || n), group_key => name)) FROM generate_series(first, last) n $$;
CREATE FUNCTION id_of(name text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.jobs WHERE payload = to_jsonb(name) $$;

-- Two of a group at once, one for each group in a round; jobs of no group are not limited.
SELECT add('a', 1, 5), add('b', 1, 3), count(idemq.enqueue('q', to_jsonb('free' || n))) FROM generate_series(1, 3) n;
SELECT take(), take(), take();
SELECT take(), take(), take(), take(), take();
SELECT jobs('a'), jobs('b');
SELECT group_key, groups_limited FROM idemq.metrics, (SELECT group_key FROM idemq.jobs WHERE id = id_of('a5')) j WHERE queue = 'q';
SELECT regexp_replace(idemq.why(id_of('a4')), '\d+ of', 'N of');
SELECT done('a2');
SELECT take(), take(), jobs('a');
SELECT idemq.cancel(id_of('a1')), done('a3'), done('b1'), done('b2');
SELECT take(10), take(10);
SELECT done(n) FROM unnest('{a4,a5,b3,free1,free2,free3}'::text[]) n;
SELECT jobs();
SELECT * FROM idemq.check();

-- A claim of many: one of each group in a round, then another round.
SELECT add('a', 11, 13), add('b', 11, 13), add('c', 11, 13);
SELECT take(100), take(100);
SELECT done(g || n) FROM unnest('{a,b,c}'::text[]) g, generate_series(11, 13) n;
SELECT take(2), take(100);
SELECT done(g || n) FROM unnest('{a,b,c}'::text[]) g, generate_series(11, 13) n;
SELECT jobs();

-- What waits for its retry, or for its time, takes no permit.
SELECT add('r', 1, 4);
SELECT take(), take();
SELECT idemq.fail(id, token, 'no', retry_in => '1 h') FROM idemq.jobs WHERE payload = '"r1"';
SELECT jobs('r');
SELECT take(), take(), jobs('r');
-- When it is due it waits for a permit, before those that were enqueued later.
SELECT idemq.retry(id_of('r1'));
SELECT take(), jobs('r');
SELECT idemq.why(id_of('r1'));
SELECT done('r3');
SELECT take(), jobs('r');
SELECT payload, attempt, last_error FROM idemq.jobs WHERE payload = '"r1"';
SELECT idemq.release(id, token) FROM idemq.jobs WHERE payload = '"r2"';
SELECT jobs('r');
SELECT take(), jobs('r');
SELECT idemq.release(id, token, '1 h') FROM idemq.jobs WHERE payload = '"r2"';
SELECT take(), jobs('r');
SELECT idemq.reschedule(id_of('r2'), clock_timestamp() + interval '2 h'), jobs('r');
SELECT idemq.reschedule(id_of('r2'), clock_timestamp()), jobs('r');
SELECT done('r1'), take(), jobs('r');
SELECT done('r2'), done('r3'), done('r4');
SELECT take(10), done('r4'), jobs();
SELECT outcome FROM idemq.enqueue('q', '"d1"', group_key => 'd', delay => '1 h');
SELECT outcome FROM idemq.enqueue('q', '"d2"', group_key => 'd', run_at => clock_timestamp() + interval '2 h');
SELECT add('d', 3, 5);
SELECT take(10), jobs('d');
SELECT idemq.retry(id_of('d2'));
SELECT done('d3'), take(10), jobs('d');
SELECT idemq.cancel(id_of('d1')), done('d2'), done('d4'), take(10), done('d5'), done('d2'), jobs();
-- A lease that ends.
SELECT add('l', 1, 3);
SELECT payload FROM idemq.claim('q', 2, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.01);
SELECT idemq.reap('q'), jobs('l');
SELECT take(10), jobs('l');
SELECT done('l1'), done('l2'), done('l3');
SELECT take(), done('l2'), done('l3'), jobs();
SELECT * FROM idemq.check();

-- By id: one that is blocked is taken when it is next and there is a permit.
SELECT add('i', 1, 4);
SELECT take();
SELECT outcome FROM idemq.claim_job(id_of('i3'));
SELECT outcome FROM idemq.claim_job(id_of('i2'));
SELECT outcome FROM idemq.claim_job(id_of('i3'));
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"i1"';
SELECT jobs('i');
SELECT outcome, attempt FROM idemq.claim_job(id_of('i1'));
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"i1"';
SELECT take(), jobs('i');
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"i1"';
SELECT idemq.commit_once(id_of('i1')), jobs('i');
SELECT idemq.commit_once(id_of('i4')), jobs('i');
SELECT idemq.commit_once(id_of('i3')), jobs('i');
SELECT done('i2'), idemq.commit_once(id_of('i4')), jobs();

SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE finished_at IS NULL;
-- Keys: one that is replaced waits for a permit again.
SELECT outcome FROM idemq.enqueue('q', '"k1"', key => 'k', group_key => 'k');
SELECT add('k', 2, 4);
SELECT take();
SELECT outcome FROM idemq.enqueue('q', '"k5"', key => 'k5', group_key => 'k');
SELECT idemq.commit_once(id_of('k2')), idemq.commit_once(id_of('k3')), idemq.commit_once(id_of('k4')), jobs('k');
SELECT idemq.retry(id_of('k5')), jobs('k');
SELECT outcome FROM idemq.enqueue('q', '"k6"', key => 'k5', group_key => 'k', on_duplicate => 'replace', delay => '1 h');
SELECT jobs('k'), add('k', 7, 8);
SELECT take(10), jobs('k');
SELECT outcome FROM idemq.enqueue('q', '"k9"', key => 'k5', group_key => 'k', on_duplicate => 'replace');
SELECT jobs('k'), take(10), jobs('k');
SELECT done('k1'), take(10), jobs('k');
SELECT outcome FROM idemq.enqueue('q', '"k10"', key => 'k5', group_key => 'k', on_duplicate => 'rerun');
SELECT done('k9'), jobs('k');
SELECT take(10), done('k7'), done('k10');
SELECT take(10), done('k8'), jobs();

SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE finished_at IS NULL;
-- A rollback, of a savepoint too, gives back what it took.
SELECT add('s', 1, 4);
SELECT take(1);
BEGIN;
SELECT take(10), jobs('s');
ROLLBACK;
SELECT jobs('s');
BEGIN;
SAVEPOINT one;
SELECT take(10), jobs('s');
ROLLBACK TO one;
SELECT take(10), jobs('s');
SELECT done('s1'), take(10), jobs('s');
SAVEPOINT two;
SELECT done('s2'), take(10), jobs('s');
ROLLBACK TO two;
SELECT take(10), jobs('s');
COMMIT;
SELECT take(10), jobs('s');
SELECT * FROM idemq.check();
SELECT done('s1'), done('s2'), done('s3');
SELECT take(10), done('s4'), jobs();

SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE finished_at IS NULL;
-- The end of one and the claim of the next in one call.
SELECT add('n', 1, 4);
SELECT take(10);
SELECT c.payload FROM idemq.jobs j, idemq.commit_and_claim(j.id, j.token, queue => 'q') c WHERE j.payload = '"n1"';
SELECT take(10), jobs('n');
SELECT done('n2'), done('n3');
SELECT take(10), done('n4'), jobs();

SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE finished_at IS NULL;
-- Another group_max_running: more at once; fewer take nothing away.
SELECT add('g', 1, 8);
SELECT take(10), jobs('g');
SELECT idemq.alter_queue('q', group_max_running => 4);
SELECT take(10), jobs('g');
SELECT idemq.alter_queue('q', group_max_running => 1);
SELECT take(10), done('g1'), done('g2'), take(10), jobs('g');
SELECT * FROM idemq.check();
SELECT done('g3'), done('g4'), take(10), jobs('g');
SELECT idemq.alter_queue('q', group_max_running => 3);
SELECT take(10), jobs('g');
SELECT group_key, count(*) FROM idemq.jobs WHERE status = 'running' GROUP BY 1;
SELECT take(10), groups_limited FROM idemq.metrics WHERE queue = 'q';
SELECT take(10);
SELECT groups_limited FROM idemq.metrics WHERE queue = 'q';
SELECT value FROM idemq_internal.prometheus_samples WHERE name = 'idemq_queue_groups_limited';
SELECT * FROM idemq.check();

-- What check() finds: more than may be; a group that nobody knows of.
SELECT idemq.create_queue('h', group_max_running => 2) IS NOT NULL AS created;
SELECT count(idemq.enqueue('h', to_jsonb('h' || n), group_key => 'h')) FROM generate_series(1, 4) n;
SELECT count(*) FROM idemq.claim('h', 10);
UPDATE idemq.jobs SET status = 'pending', ready_at = clock_timestamp(), flags = 32 WHERE payload = '"h3"';
SELECT severity, invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
-- A row by hand has no permit unless its flags say so: a claim makes it wait for one.
UPDATE idemq.jobs SET flags = 0 WHERE payload = '"h3"';
SELECT * FROM idemq.check();
SELECT count(*) FROM idemq.claim('h', 10);
SELECT status FROM idemq.jobs WHERE payload = '"h3"';
SELECT * FROM idemq.check();
SELECT done(n) FROM unnest('{g5,g6,g7}'::text[]) n;
SELECT take(10), done('g8'), jobs();
SET session_replication_role = replica;
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, payload, group_key)
	SELECT idemq.queue_id('q'), now(), 4, 3, 'blocked', '"forgotten"', 'forgotten';
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
RESET session_replication_role;
SELECT idemq.recount() > 0 AS counted;
SELECT take();
SELECT severity, invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
UPDATE idemq.jobs SET status = status WHERE payload = '"forgotten"';
SELECT take(), done('forgotten'), jobs();
SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE finished_at IS NULL;
-- Jobs without a group are served as one more group, which has no limit.
SELECT add('a', 1, 3), count(idemq.enqueue('q', to_jsonb('alone' || n))) FROM generate_series(1, 6) n;
SELECT count(*) FROM idemq.enqueue_many('q', '{"\"alone7\"", "\"alone8\""}', group_keys => '{NULL, NULL}');
SELECT add('b', 1, 2), id IS NOT NULL AS delayed FROM idemq.enqueue('q', '"later"', delay => '1 h');
SELECT take(), take(), take(), take(), take(), take(), take();
SELECT jobs(), names FROM (SELECT string_agg(DISTINCT coalesce(group_key, 'NULL'), ' ') AS names FROM idemq.jobs WHERE finished_at IS NULL) x;
SELECT regexp_replace(idemq.why(id_of('alone7')), '\d+', 'N', 'g');
SELECT outcome, payload, group_key FROM idemq.claim_job(id_of('alone7'));
SELECT outcome, payload FROM idemq.claim_job(id_of('alone7'));
SELECT outcome FROM idemq.claim_job(id_of('later'));
SELECT payload, group_key FROM idemq.claim('q');
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.jobs WHERE payload = '"alone1"';
SELECT idemq.release(id, token) FROM idemq.jobs WHERE payload = '"alone2"';
SELECT take(10);
SELECT take(10), jobs('');
SELECT * FROM idemq.check();
-- A lower group_max_running makes no group of them.
SELECT count(idemq.enqueue('q', to_jsonb('alone' || n))) FROM generate_series(9, 12) n;
SELECT idemq.alter_queue('q', group_max_running => 1);
SELECT take(), take(), idemq.fail(id, token, 'no', retry_in => '1 h') FROM idemq.jobs WHERE payload = '"alone1"';
SELECT take(10), jobs('');
SELECT (idemq.enqueue('q', '"alone13"')).outcome;
SELECT group_key IS NULL AS alone, status FROM idemq.jobs WHERE id = id_of('alone13');
SELECT * FROM idemq.check();
SELECT idemq.alter_queue('q', group_max_running => 3);
SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE finished_at IS NULL;
SELECT idemq.enqueue('q', '1', group_key => '');
-- Priority comes before fair order.
SELECT count(idemq.enqueue('q', to_jsonb('low' || n), group_key => 'low', priority => 6)) FROM generate_series(1, 2) n;
SELECT count(idemq.enqueue('q', to_jsonb('high' || n), group_key => 'high', priority => 2)) FROM generate_series(1, 3) n;
SELECT take(4);
SELECT take(10), done('high1'), done('high2'), done('low1');
SELECT take(10);

SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE finished_at IS NULL;
-- A child joins its group when its parents are done, and waits for a permit.
SELECT add('c', 1, 2);
SELECT (idemq.enqueue('q', '"parent"')).id AS parent \gset
SELECT outcome FROM idemq.enqueue('q', '"c3"', group_key => 'c', depends_on => ARRAY[:parent]);
SELECT outcome FROM idemq.enqueue('q', '"c4"', group_key => 'c', depends_on => ARRAY[:parent]);
SELECT add('c', 5, 5);
SELECT idemq.alter_queue('q', group_max_running => 2);
SELECT take(10), jobs('c');
SELECT group_key FROM idemq.jobs WHERE payload = '"c3"';
SELECT done('parent');
SELECT take(10), jobs('c');
SELECT done('c1'), take(10), jobs('c');
SELECT * FROM idemq.check();
SELECT done('c2'), take(10), jobs('c');
SELECT done('c3'), take(10), done('c4'), done('c5'), jobs();

-- One that waits for an event has no permit, and waits for one again.
SELECT add('e', 1, 4);
SELECT take(10);
SELECT outcome FROM idemq.await_event(id_of('e1'), (SELECT token FROM idemq.jobs WHERE id = id_of('e1')), 'paid', '1 h');
SELECT ready_at > now() AS waits, flags & 32 AS permit, status FROM idemq.jobs WHERE id = id_of('e1');
SELECT take(10), jobs('e');
SELECT outcome FROM idemq.send_event('q', 'paid', '1');
SELECT take(10), jobs('e');
SELECT done('e2');
SELECT take(10), jobs('e');
SELECT outcome FROM idemq.await_event(id_of('e1'), (SELECT token FROM idemq.jobs WHERE id = id_of('e1')), 'paid', '1 h');
SELECT * FROM idemq.check();
SELECT done('e1'), done('e3');
SELECT take(10), done('e4'), jobs();
DROP EXTENSION idemq;
