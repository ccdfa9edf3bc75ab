-- FIFO groups, without the worker: what a claim, a finish and an enqueue do to them.
CREATE EXTENSION idemq;
-- What tests before this one have left marked, in databases of their own.
SELECT used AS groups_before FROM idemq.memory WHERE resource = 'groups' \gset
SELECT idemq.create_queue('q', retry_base => '1 ms', retry_jitter => 0, max_attempts => 2) IS NOT NULL AS created; -- meant to expire

-- One in flight, in order; the next one when the head is finished.
SELECT outcome, status FROM idemq.enqueue('q', '1', group_key => 'a');
SELECT outcome, status FROM idemq.enqueue('q', '2', group_key => 'a');
SELECT outcome, status FROM idemq.enqueue('q', '3', group_key => 'b');
SELECT outcome, status FROM idemq.enqueue('q', '4');
SELECT payload, group_key, attempt FROM idemq.claim('q', 10) ORDER BY id;
SELECT payload FROM idemq.claim('q', 10);
SELECT payload, status, group_key, ready_at IS NULL AS unready FROM idemq.jobs ORDER BY id;
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE payload = '1';
SELECT payload, group_key FROM idemq.claim('q', 10);
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running' ORDER BY id;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT * FROM idemq.check();

CREATE FUNCTION row_of(p jsonb) RETURNS text LANGUAGE sql AS $$
	SELECT status || CASE WHEN ready_at IS NULL THEN '' WHEN ready_at > clock_timestamp() THEN ', later' ELSE ', ready' END
	FROM idemq.jobs WHERE payload = p $$;
CREATE FUNCTION line() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload::text || ':' || status, ' ' ORDER BY id) FROM idemq.jobs WHERE finished_at IS NULL $$;
CREATE FUNCTION take() RETURNS text LANGUAGE sql AS $$ SELECT string_agg(payload::text, ' ') FROM idemq.claim('q', 10) $$;
CREATE FUNCTION end_all() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(idemq.try_commit(id, token)::text, ' ') FROM idemq.jobs WHERE status = 'running' $$;
CREATE FUNCTION add(first int, last int, name text) RETURNS void LANGUAGE sql AS $$
	SELECT idemq.enqueue('q', to_jsonb(n), group_key => name) FROM generate_series(first, last) n $$;
CREATE FUNCTION sqlstate_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN EXECUTE command; RETURN 'none'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE; END $$;

-- A retrying head keeps its place, released and retried as well.
SELECT add(10, 12, 'f');
SELECT take();
SELECT idemq.fail(id, token, 'no', retry_in => '1 h') FROM idemq.jobs WHERE payload = '10';
SELECT line(), take();
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload = '10';
SELECT take();
SELECT idemq.release(id, token) FROM idemq.jobs WHERE payload = '10';
SELECT line(), take();
-- A dead one lets the next through; so does a cancelled one; one that is blocked has no say.
SELECT idemq.fail(id, token, 'no', permanent => true) FROM idemq.jobs WHERE payload = '10';
SELECT idemq.cancel(id) FROM idemq.jobs WHERE payload = '11';
SELECT take(), line();
SELECT add(13, 15, 'f');
SELECT idemq.cancel(id) FROM idemq.jobs WHERE payload = '14';
SELECT idemq.cancel(id) FROM idemq.jobs WHERE payload = '12';
SELECT take(), line();
-- Back to life they wait for their turn, in their old place.
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload IN ('10', '11');
SELECT line();
SELECT end_all();
SELECT take(), line();
SELECT end_all();
SELECT take(), line();
SELECT idemq.redrive('q'), end_all(), take(), line();
SELECT end_all();
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q');
SELECT idemq.redrive('q') AS none;

-- A time is heeded when the turn comes; the group waits for it.
SELECT idemq.enqueue('q', '20', group_key => 't', delay => '1 h');
SELECT idemq.enqueue('q', '21', group_key => 't', run_at => '2001-01-01');
SELECT run_at IS NULL AS at_once FROM idemq.jobs WHERE payload IN ('20', '21') ORDER BY id;
SELECT take(), row_of('20'), row_of('21');
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload = '20';
SELECT take(), end_all(), take(), end_all();

-- expires_in counts from the enqueue; a head whose time was over is cancelled, and the next one follows.
SELECT idemq.enqueue('q', '30', group_key => 'e', expires_in => '1 us');
SELECT idemq.enqueue('q', '31', group_key => 'e', expires_in => '1 us');
SELECT idemq.enqueue('q', '32', group_key => 'e');
SELECT take(), row_of('30'), row_of('31');
SELECT last_error FROM idemq.jobs WHERE payload = '31';
SELECT end_all();

-- By id: claim_job and commit_once see whose turn it is.
SELECT add(40, 41, 'i');
SELECT outcome, attempt FROM idemq.claim_job((SELECT id FROM idemq.jobs WHERE payload = '41'));
SELECT row_of('40');
SELECT outcome, attempt FROM idemq.claim_job((SELECT id FROM idemq.jobs WHERE payload = '40'));
SELECT outcome, retry_after IS NOT NULL AS till FROM idemq.claim_job((SELECT id FROM idemq.jobs WHERE payload = '40'));
SELECT idemq.commit_once((SELECT id FROM idemq.jobs WHERE payload = '41'));
SELECT end_all();
SELECT idemq.commit_once((SELECT id FROM idemq.jobs WHERE payload = '41')), line();

-- Keys: the first answer, also while blocked; replace changes a blocked job in its place.
SELECT add(50, 50, 'k');
SELECT outcome, status FROM idemq.enqueue('q', '51', key => 'k1', group_key => 'k');
SELECT outcome, status FROM idemq.enqueue('q', '51', key => 'k1', group_key => 'k');
SELECT outcome, status FROM idemq.enqueue('q', '52', key => 'k1', group_key => 'k', priority => 1, delay => '1 h', on_duplicate => 'replace');
SELECT payload, status, priority, run_at > now() AS later FROM idemq.jobs WHERE key = 'k1';
SELECT take(), end_all(), take(), row_of('52');
SELECT outcome, status FROM idemq.enqueue('q', '53', key => 'k1', on_duplicate => 'replace');
SELECT take(), end_all();

-- Many at once, groups or none.
SELECT ord, outcome, status FROM idemq.enqueue_many('q', '{60,61,62,63}', group_keys => '{g,NULL,g,h}', keys => '{b,NULL,a,NULL}',
	run_ats => ARRAY[NULL, NULL, NULL, now() + '1 h']) ORDER BY ord;
SELECT take(), end_all();
SELECT take(), line();
SELECT end_all(), idemq.purge('q', 'pending');

-- Names of all lengths; what is none.
SELECT count(idemq.enqueue('q', to_jsonb(170 + n), group_key => repeat('x', length) || n % 2))
	FROM unnest('{1,1,1,1,115,115,115,116,116,116,117,117,117,1023,1023,1023}'::int[]) WITH ORDINALITY l(length, n);
SELECT take(), end_all();
SELECT take(), end_all();
SELECT take(), end_all();
SELECT take(), line();
SELECT sqlstate_of($$SELECT idemq.enqueue('q', '1', group_key => '')$$), sqlstate_of($$SELECT idemq.enqueue('q', '1', group_key => repeat('x', 1025))$$),
	sqlstate_of($$SELECT idemq.enqueue_many('q', '{1}', group_keys => '{""}')$$), sqlstate_of($$SELECT idemq.enqueue_many('q', '{1}', group_keys => '{a,b}')$$);

-- Rollbacks: what a claim promoted is somebody else's to promote.
SELECT add(80, 82, 'r');
BEGIN;
SELECT take();
ROLLBACK;
SELECT row_of('80');
BEGIN;
SAVEPOINT s;
SELECT take();
ROLLBACK TO s;
SELECT take();
SELECT end_all();
SAVEPOINT t;
SELECT line(), take();
ROLLBACK TO t;
SELECT line();
COMMIT;
SELECT line(), take();
-- The end of the head, undone.
BEGIN;
SELECT end_all();
ROLLBACK;
SELECT line(), take();
-- The next one in the transaction that ends the last one: once the group is marked.
SELECT end_all(), take(), end_all(), take();
SELECT line();

-- By hand: what a DBA does is followed.
SELECT add(90, 95, 'd');
SELECT take();
DELETE FROM idemq.jobs WHERE payload = '90';
SELECT take();
UPDATE idemq.jobs SET status = 'blocked', ready_at = NULL WHERE payload = '91';
SELECT take();
SELECT take(), line();
UPDATE idemq.jobs SET group_key = 'd2' WHERE payload = '94';
SELECT take(), line();
SELECT idemq.purge('q', 'blocked'), line();
SELECT end_all(), take();
SELECT idemq.purge('q') > 0 AS purged;

-- A queue that keeps nothing: the row is gone, the group goes on.
SELECT idemq.create_queue('none', retention => '0') IS NOT NULL AS created;
SELECT idemq.enqueue('none', to_jsonb(n), group_key => 'n') FROM generate_series(1, 3) n;
SELECT payload, idemq.commit(id, token) FROM idemq.claim('none', 5);
SELECT payload, idemq.commit(id, token) FROM idemq.claim('none', 5);
SELECT payload FROM idemq.claim('none', 5);
SELECT idemq.drop_queue('none', force => true);

-- Two queues have nothing in common but the name.
SELECT idemq.create_queue('other') IS NOT NULL AS created;
SELECT add(100, 101, 'o'), idemq.enqueue('other', '102', group_key => 'o');
SELECT queue, payload FROM idemq.claim_any('{other,q}', 5) ORDER BY 1;

-- Why.
SELECT regexp_replace(idemq.why(id), '\d+', 'N', 'g') FROM idemq.jobs WHERE payload = '101';
SELECT add(103, 105, 'o2');
SELECT regexp_replace(idemq.why(id), '\d+', 'N', 'g') FROM idemq.jobs WHERE payload IN ('103', '104') ORDER BY id;

-- idemq.check() sees two heads, and one that stands in no group.
SELECT * FROM idemq.check();
UPDATE idemq.jobs SET status = 'pending', ready_at = now() WHERE payload = '101';
SELECT severity, invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
UPDATE idemq.jobs SET status = 'blocked', ready_at = NULL, group_key = NULL WHERE payload = '101';
SELECT severity, invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
DELETE FROM idemq.jobs WHERE payload = '101';
-- A change that nobody follows.
SELECT take(), end_all();
SET session_replication_role = replica;
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, payload, group_key)
	SELECT idemq.queue_id('q'), now(), 4, 3, 'blocked', '106', 'forgotten';
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
RESET session_replication_role;
SELECT idemq.recount() > 0 AS counted;
SELECT take();
SELECT severity, invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
UPDATE idemq.jobs SET status = status WHERE payload = '106';
SELECT take(), end_all();
SELECT take(), end_all();
SELECT * FROM idemq.check();
SELECT add(110, 111, 'floor');
SELECT take();
SET session_replication_role = replica;
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
UPDATE idemq.jobs SET ready_at = ready_at - interval '1 h' WHERE payload = '110';
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
RESET session_replication_role;
SELECT idemq.recount() > 0 AS counted;
SELECT severity, invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
UPDATE idemq.jobs SET status = status WHERE payload = '110';
SELECT * FROM idemq.check();
SELECT take(), end_all();
SELECT take(), end_all();
SELECT resource, used - :groups_before AS used FROM idemq.memory WHERE resource = 'groups';

-- A claim finds the one that is due behind heads that are not, and behind groups that have theirs.
SELECT idemq.create_queue('behind') IS NOT NULL AS created;
SELECT count(idemq.enqueue('behind', '200', group_key => 'later' || n, delay => '1 h')) FROM generate_series(1, 3) n;
SELECT outcome FROM idemq.enqueue('behind', '201', group_key => 'due');
SELECT payload FROM idemq.claim('behind');
SELECT count(idemq.enqueue('behind', '202', group_key => 'g' || n)) FROM generate_series(1, 600) n;
SELECT count(*) FROM idemq.claim('behind', 600);
SELECT count(idemq.enqueue('behind', '203', group_key => 'g' || n)) FROM generate_series(1, 600) n;
SELECT outcome FROM idemq.enqueue('behind', '204', group_key => 'new');
SELECT payload FROM idemq.claim('behind');
SELECT * FROM idemq.check();
