-- Jobs that depend on others, without the worker: what enqueue, claims and ends of parents do.
CREATE EXTENSION idemq;
-- With statistics of an empty table a child is still looked up by its id, not by reading an index.
VACUUM ANALYZE idemq.children;
SET enable_seqscan = off;
CREATE TEMP TABLE plan (line text);
DO $$ DECLARE line text; BEGIN FOR line IN EXPLAIN SELECT FROM idemq.children WHERE job_id = 1 LOOP INSERT INTO plan VALUES (line); END LOOP; END $$;
SELECT substring(line FROM 'using (\w+)') AS index FROM plan WHERE line ~ 'using| on children_queue';
RESET enable_seqscan;
SELECT idemq.create_queue('q', max_attempts => 1) IS NOT NULL AND idemq.create_queue('other', max_attempts => 1) IS NOT NULL AS created;
CREATE FUNCTION add(p text, depends_on bigint[] DEFAULT NULL, failure text DEFAULT 'cancel', queue text DEFAULT 'q', group_key text DEFAULT NULL)
	RETURNS bigint LANGUAGE sql AS $$
	SELECT id FROM idemq.enqueue(queue, to_jsonb(p), depends_on => depends_on, on_parent_failure => failure, group_key => group_key) $$;
CREATE FUNCTION ids(VARIADIC p text[]) RETURNS bigint[] LANGUAGE sql AS $$
	SELECT array_agg(id ORDER BY id) FROM idemq.jobs WHERE payload #>> '{}' = ANY (p) $$;
CREATE FUNCTION take(queue text DEFAULT 'q') RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload #>> '{}', ' ' ORDER BY id) FROM idemq.claim(queue, 20) $$;
CREATE FUNCTION done(VARIADIC p text[]) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(idemq.try_commit(id, token, to_jsonb(payload #>> '{}' || '!'))::text, ' ' ORDER BY id) FROM idemq.jobs
	WHERE status = 'running' AND payload #>> '{}' = ANY (p) $$;
CREATE FUNCTION die(VARIADIC p text[]) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(idemq.fail(id, token, 'no')::text, ' ' ORDER BY id) FROM idemq.jobs
	WHERE status = 'running' AND payload #>> '{}' = ANY (p) $$;
CREATE FUNCTION line() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload #>> '{}' || ':' || status, ' ' ORDER BY id) FROM idemq.jobs $$;
CREATE FUNCTION why(p text) RETURNS text LANGUAGE sql AS $$
	SELECT regexp_replace(regexp_replace(idemq.why(id), '\d{4}-\d\d-\d\d [0-9:.+-]+', 'T', 'g'), '\y\d+\y', 'N', 'g')
	FROM idemq.jobs WHERE payload #>> '{}' = p $$;
CREATE FUNCTION clean() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(c::text, E'\n') FROM idemq.check() c $$;
CREATE FUNCTION reset() RETURNS void LANGUAGE sql AS $$
	TRUNCATE idemq.jobs $$;
CREATE FUNCTION sqlstate_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN EXECUTE command; RETURN 'none'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE || ': ' || SQLERRM; END $$;

-- A diamond, of two queues.
SELECT add('a') IS NOT NULL AS a;
SELECT outcome, status FROM idemq.enqueue('q', '"b"', depends_on => ids('a'));
SELECT add('c', ids('a'), queue => 'other') IS NOT NULL AS c;
SELECT add('d', ids('b', 'c', 'b')) IS NOT NULL AS d;
SELECT payload, status, ready_at, run_at, group_key FROM idemq.jobs WHERE status = 'blocked' ORDER BY id;
SELECT payload, on_parent_failure, c.group_key, waits_for = ANY (ids('a', 'b')) AS waits FROM idemq.children c JOIN idemq.jobs j ON j.id = job_id ORDER BY job_id;
SELECT c.payload AS child, p.payload AS parent, gone_as, d.queue_id = c.queue_id AS its_queue
	FROM idemq.dependencies d JOIN idemq.jobs c ON c.id = child JOIN idemq.jobs p ON p.id = parent ORDER BY child, parent;
SELECT take();
SELECT take('other');
SELECT why('b'), why('d');
SELECT clean();
SELECT done('a');
SELECT take();
SELECT take('other');
SELECT done('b');
SELECT take();
SELECT why('d');
SELECT done('c');
SELECT take();
SELECT p.queue, p.status, p.result FROM idemq.jobs j, idemq.parents(j.id) p WHERE j.payload = '"d"' ORDER BY parent;
SELECT done('d');
SELECT line();
SELECT count(*) AS waiting FROM idemq.children;
SELECT count(*) AS edges FROM idemq.dependencies;
SELECT clean();

-- A parent that is done already; of this transaction; an empty array is none.
SELECT status FROM idemq.enqueue('q', '"e"', depends_on => ids('a'));
SELECT status FROM idemq.enqueue('q', '"f"', depends_on => '{}');
SELECT take();
SELECT done('e', 'f');
BEGIN;
SELECT add('g') > 0 AS g;
SELECT add('h', ids('g')) > 0 AS h;
SELECT take();
SELECT done('g');
COMMIT;
SELECT take();
SELECT done('h');
-- Rolled back with its savepoint, its parent's end as well.
SELECT add('i') > 0;
SELECT take();
BEGIN;
SAVEPOINT s;
SELECT add('j', ids('i')) > 0 AS j;
ROLLBACK TO s;
SELECT add('k', ids('i')) > 0 AS k;
SAVEPOINT s;
SELECT done('i');
ROLLBACK TO s;
COMMIT;
SELECT take();
SELECT why('k');
SELECT done('i');
SELECT take();
SELECT done('k');
SELECT clean();

-- Errors.
SELECT sqlstate_of($$SELECT idemq.enqueue('q', '1', depends_on => '{123456789}')$$);
SELECT sqlstate_of($$SELECT idemq.enqueue('q', '1', depends_on => '{1,NULL}')$$);
SELECT sqlstate_of($$SELECT idemq.enqueue('q', '1', depends_on => '{{1},{2}}')$$);
SELECT sqlstate_of($$SELECT idemq.enqueue('q', '1', depends_on => '{1}', on_parent_failure => 'skip')$$);
SELECT sqlstate_of($$SELECT idemq.enqueue('q', '1', depends_on => '{1}', on_parent_failure => NULL)$$);
-- A job is no parent of its own, whose id can be guessed.
SELECT sqlstate_of(format('SELECT idemq.enqueue(%L, %L, depends_on => %L)', 'q', '1', ARRAY[id + 1])) ~ '^IQ002' AS refused FROM idemq.enqueue('q', '"before"');
SELECT idemq.cancel((ids('before'))[1]);
SELECT sqlstate_of($$SELECT * FROM idemq.parents(NULL)$$);
SELECT count(*) AS none FROM idemq.parents(123456789);

-- What becomes of a child whose parent is dead, or cancelled; at once, whatever the others do.
SELECT reset();
SELECT add('slow') > 0, add('bad') > 0;
SELECT add('c1', ids('slow', 'bad')) > 0, add('w1', ids('slow', 'bad'), 'wait') > 0, add('r1', ids('slow', 'bad'), 'run') > 0;
SELECT add('c2', ids('c1')) > 0 AS grandchild, add('w2', ids('c1'), 'wait', 'other') > 0 AS waits;
SELECT take();
SELECT die('bad');
SELECT take();
SELECT take('other');
SELECT take();
SELECT line();
SELECT payload, last_error ~ '^its parent, job \d+, is (dead|cancelled)$' AS told FROM idemq.jobs WHERE status = 'cancelled' ORDER BY id;
SELECT why('w1'), why('w2'), why('r1');
SELECT done('slow');
SELECT take();
SELECT line();
SELECT why('w1');
SELECT clean();
-- The parent is brought back: who waited for it goes on, who was cancelled can be brought back, too.
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload = '"c1"';
SELECT status, ready_at FROM idemq.jobs WHERE payload = '"c1"';
SELECT take();
SELECT line();
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload = '"bad"';
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload IN ('"c1"', '"c2"') ORDER BY id;
SELECT line();
SELECT take();
SELECT done('bad');
SELECT line();
SELECT take();
SELECT line();
SELECT done('c1', 'w1');
SELECT take();
SELECT take('other');
SELECT done('c2', 'w2', 'r1');
SELECT line();
SELECT clean();
-- Dead when the child is enqueued.
SELECT add('x') > 0;
SELECT take();
SELECT die('x');
SELECT add('xc', ids('x')) > 0, add('xw', ids('x'), 'wait') > 0, add('xr', ids('x'), 'run') > 0;
SELECT take();
SELECT take();
SELECT line() ~ 'xc:cancelled xw:blocked xr:running' AS as_asked;
-- Redrive brings back the dead parent, cancel the child.
SELECT idemq.redrive('q') AS parents;
SELECT idemq.cancel(id) FROM idemq.jobs WHERE payload = '"xw"';
SELECT take();
SELECT done('x', 'xr');
SELECT take();
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload = '"xw"';
SELECT take();
SELECT done('xw');
SELECT clean();

-- A child joins its group when its parents are done: not before one of them that is behind it.
SELECT reset();
SELECT add('first', NULL, group_key => 'g') > 0, add('p') > 0;
SELECT add('child', ids('p'), group_key => 'g') > 0, add('last', NULL, group_key => 'g') > 0;
SELECT add('behind', ids('last'), group_key => 'g') > 0;
SELECT payload, group_key FROM idemq.jobs ORDER BY id;
SELECT take();
SELECT done('first');
SELECT take();
SELECT done('last');
SELECT take();
SELECT line();
SELECT payload, group_key FROM idemq.jobs WHERE payload = '"behind"';
SELECT done('p');
SELECT take();
SELECT done('behind');
SELECT take();
SELECT done('child');
SELECT line();
SELECT clean();

-- Time, priority and expiry of a child.
SELECT reset();
SELECT add('p') > 0 AS p;
SELECT id > 0 FROM idemq.enqueue('q', '"late"', run_at => '2100-01-01', depends_on => ids('p'));
SELECT id > 0 FROM idemq.enqueue('q', '"soon"', expires_in => '1 ms', depends_on => ids('p')); -- meant to expire
SELECT id > 0 FROM idemq.enqueue('q', '"moved"', depends_on => ids('p'));
SELECT idemq.reschedule(id, run_at => '2101-01-01') FROM idemq.jobs WHERE payload = '"moved"';
SELECT pg_sleep(0.01);
SELECT take();
SELECT done('p');
SELECT take();
SELECT payload, status, extract(year FROM ready_at AT TIME ZONE 'UTC') AS ready_at, last_error FROM idemq.jobs ORDER BY id;
SELECT idemq.check();

-- By key: a duplicate keeps its own parents.
SELECT reset();
SELECT add('p') > 0, add('p2') > 0;
SELECT outcome, status FROM idemq.enqueue('q', '"k"', key => 'k', depends_on => ids('p'));
SELECT outcome, status FROM idemq.enqueue('q', '"k"', key => 'k', depends_on => ids('p2'));
SELECT outcome, status FROM idemq.enqueue('q', '"k"', key => 'k', depends_on => '{123456789}');
SELECT outcome, status FROM idemq.enqueue('q', '"k2"', key => 'k', on_duplicate => 'replace');
SELECT outcome, status FROM idemq.enqueue('q', '"k3"', key => 'k', on_duplicate => 'rerun', depends_on => ids('p2'));
SELECT line();
SELECT take();
SELECT done('p');
SELECT take();
SELECT outcome, status FROM idemq.enqueue('q', '"k4"', key => 'k', on_duplicate => 'rerun', depends_on => ids('p2'));
SELECT done('k3');
SELECT take();
SELECT done('k4');
SELECT line();
-- Cancelled while it waited, and asked to rerun: it waits again.
SELECT outcome, status FROM idemq.enqueue('q', '"m"', key => 'm', depends_on => ids('p2'));
SELECT idemq.cancel_by_key('q', 'm');
SELECT outcome, status FROM idemq.enqueue('q', '"m2"', key => 'm', on_duplicate => 'rerun');
SELECT take();
SELECT done('p2');
SELECT take();
SELECT done('m2');
SELECT line();
SELECT clean();
-- claim_job and acquire look at the job's parents.
SELECT add('p3') > 0 AS p;
SELECT add('n', ids('p3')) > 0 AS n;
SELECT outcome FROM idemq.claim_job((ids('n'))[1]);
SELECT idemq.commit_once((ids('n'))[1]);
SELECT idemq.commit_once((ids('p3'))[1]);
SELECT idemq.commit_once((ids('n'))[1]);

-- Retention and purge keep parents of children that are not finished.
SELECT reset();
SELECT idemq.create_queue('none', retention => '0') > 0 AS created;
SELECT add('p', queue => 'none') > 0, add('alone', queue => 'none') > 0;
SELECT add('child', ids('p')) > 0 AS child, add('grandchild', ids('child'), queue => 'other') > 0 AS grandchild;
SELECT take('none');
SELECT done('p', 'alone');
SELECT line();
SELECT idemq.apply_retention();
SELECT idemq.purge('none');
SELECT line();
SELECT take();
SELECT p.status, p.result FROM idemq.parents((ids('child'))[1]) p;
SELECT idemq.purge('q', 'completed');
SELECT idemq.purge('q');
SELECT done('child');
SELECT idemq.apply_retention();
SELECT line();
SELECT p.parent IS NOT NULL AS known, p.queue, p.status FROM idemq.parents((ids('child'))[1]) p;
SELECT idemq.purge('q');
SELECT take('other');
SELECT done('grandchild');
SELECT idemq.purge('q');
SELECT idemq.purge('other');
SELECT line();
SELECT count(*) AS edges FROM idemq.dependencies;
-- So does purge of ids: a child that stays keeps its parent, and one that goes along does not.
SELECT reset();
SELECT add('a') > 0 AS a, add('b', ids('a')) > 0 AS b, add('c', ids('b')) > 0 AS c;
SELECT idemq.purge('q', ids => ids('a')), idemq.purge('q', ids => ids('a', 'b'));
SELECT line();
SELECT idemq.purge('q', 'pending', ids('a', 'b', 'c'));
SELECT idemq.purge('q', ids => ids('a', 'b', 'c'));
SELECT line();
SELECT count(*) AS edges FROM idemq.dependencies;
-- A parent that failed has failed for good, also when retention has deleted it before the child is brought back.
SELECT idemq.create_queue('brief', retention => '0', dead_retention => '0', max_attempts => 1) > 0 AS created;
SELECT add('d', queue => 'brief') > 0, add('x', queue => 'brief') > 0;
SELECT add('of d', ids('d')) > 0, add('of x', ids('x'), 'wait') > 0, add('run of d', ids('d'), 'run') > 0;
SELECT idemq.cancel((ids('x'))[1]), idemq.cancel((ids('run of d'))[1]), idemq.cancel((ids('of x'))[1]);
SELECT take('brief');
SELECT die('d');
SELECT take();
SELECT idemq.apply_retention();
SELECT payload, status, last_error ~ 'is (dead|cancelled)$' AS told FROM idemq.jobs ORDER BY id;
SELECT p.status FROM idemq.parents((ids('of d'))[1]) p;
SELECT idemq.retry(id) FROM idemq.jobs ORDER BY id;
SELECT take();
SELECT payload, status, last_error ~ 'is gone$' AS told FROM idemq.jobs ORDER BY id;
SELECT done('run of d');
SELECT idemq.purge('q'), clean();
SELECT idemq.drop_queue('brief');
-- A whole chain of one queue goes; what another queue's child needs stays.
SELECT add('p') > 0 AS p;
SELECT add('c', ids('p')) > 0 AS c;
SELECT add('gc', ids('c')) > 0 AS gc;
SELECT idemq.purge('q');
SELECT line();
SELECT add('p') > 0 AS p;
SELECT add('c', ids('p')) > 0 AS c;
SELECT add('gc', ids('c'), queue => 'other') > 0 AS gc, add('c2', ids('c')) > 0 AS c2;
SELECT idemq.purge('q');
SELECT line();
SELECT (SELECT count(*) FROM idemq.dependencies) AS edges, (SELECT count(*) FROM idemq.children) AS waiting, clean();

-- A queue that is dropped, with parents of jobs elsewhere; rows that are deleted by hand.
SELECT sqlstate_of($$SELECT idemq.drop_queue('q')$$);
SELECT take();
SELECT done('p');
SELECT take();
SELECT done('c');
SELECT sqlstate_of($$SELECT idemq.drop_queue('q')$$);
SELECT idemq.drop_queue('q', force => true);
SELECT take('other');
SELECT p.queue, p.status, p.result FROM idemq.parents((ids('gc'))[1]) p;
SELECT idemq.create_queue('q') > 0, add('p') > 0;
SELECT add('c', ids('p'), queue => 'other') > 0, add('w', ids('p'), 'wait', 'other') > 0, add('r', ids('p'), 'run', 'other') > 0;
SELECT idemq.drop_queue('q', force => true);
SELECT take('other');
SELECT payload, status, last_error ~ '^its parent, job \d+, is gone$' AS told FROM idemq.jobs ORDER BY id;
SELECT add('p', queue => 'other') > 0 AS p;
SELECT add('c5', ids('p'), queue => 'other') > 0 AS c;
DELETE FROM idemq.jobs WHERE payload = '"p"';
SELECT why('c5');
SELECT take('other');
SELECT why('c5') ~ '^cancelled' AS cancelled;
SELECT clean();
DELETE FROM idemq.jobs;
SELECT (SELECT count(*) FROM idemq.dependencies) AS edges, (SELECT count(*) FROM idemq.children) AS waiting;
SELECT add('p', queue => 'other') > 0 AS p;
SELECT add('c', ids('p'), queue => 'other') > 0 AS c;
TRUNCATE idemq.jobs;
SELECT (SELECT count(*) FROM idemq.dependencies) AS edges, (SELECT count(*) FROM idemq.children) AS waiting, clean();
-- A commit that deletes its row does so with what it depended on.
SELECT add('p', queue => 'none') > 0 AS p;
SELECT add('c', ids('p'), queue => 'none') > 0 AS c;
SELECT take('none');
SELECT done('p');
SELECT take('none');
SELECT line();
SELECT done('c');
SELECT line();
SELECT (SELECT count(*) FROM idemq.dependencies) AS edges, (SELECT count(*) FROM idemq.children) AS waiting;
SELECT idemq.purge('none');

-- A child that is moved to another queue is released there.
SELECT add('p', queue => 'none') > 0 AS p;
SELECT add('c', ids('p'), queue => 'none') > 0 AS c;
UPDATE idemq.jobs SET queue_id = idemq.queue_id('other') WHERE payload = '"c"';
SELECT take('none');
SELECT done('p');
SELECT take('other');
SELECT done('c');
SELECT clean();
SELECT reset();

-- What check() says of rows that were written by hand.
SELECT add('p', queue => 'other') > 0 AS p;
SELECT add('c', ids('p'), queue => 'other') > 0 AS c;
UPDATE idemq.jobs SET status = 'pending', ready_at = now() WHERE payload = '"c"';
SELECT invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
UPDATE idemq.jobs SET status = 'blocked', ready_at = NULL WHERE payload = '"c"';
DELETE FROM idemq.dependencies;
SELECT invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
DELETE FROM idemq.children;
SELECT invariant, regexp_replace(detail, '\d+', 'N', 'g') FROM idemq.check();
TRUNCATE idemq.jobs;

-- Who may depend on what, and read what.
CREATE ROLE dependencies_clerk;
CREATE ROLE dependencies_worker;
SELECT idemq.create_queue('secret') > 0 AS created;
SELECT idemq.grant_queue('other', 'dependencies_clerk', 'enqueue');
SELECT idemq.grant_queue('other', 'dependencies_worker', 'claim');
SELECT add('p', queue => 'secret') AS p \gset
SET ROLE dependencies_clerk;
SELECT id FROM idemq.enqueue('other', '"c"', depends_on => ARRAY[:p]);
RESET ROLE;
SELECT idemq.grant_queue('secret', 'dependencies_clerk', 'enqueue');
SET ROLE dependencies_clerk;
SELECT id AS c FROM idemq.enqueue('other', '"c"', depends_on => ARRAY[:p]) \gset
SELECT count(*) AS none FROM idemq.parents(:c);
SELECT count(*) AS none FROM idemq.dependencies;
RESET ROLE;
SELECT take('secret');
SELECT done('p');
SET ROLE dependencies_worker;
SELECT c.payload, p.queue, p.status, p.result FROM idemq.claim('other') c, idemq.parents(c.id) p;
SELECT count(*) AS edges FROM idemq.dependencies;
SELECT count(*) AS none FROM idemq.parents(:p);
INSERT INTO idemq.dependencies VALUES (1, 2, 3);
RESET ROLE;
-- The right to ask is revoked: what the child has seen is told, and no result that comes later; to who may ask, it is.
SELECT idemq.grant_queue('secret', 'dependencies_clerk', 'enqueue');
SELECT outcome, status FROM idemq.enqueue('secret', '"r"', key => 'r');
SET ROLE dependencies_clerk;
SELECT id AS r FROM idemq.enqueue('secret', '"r"', key => 'r') \gset
SELECT id AS seen FROM idemq.enqueue('other', '"seen"', depends_on => ARRAY[:r]) \gset
SELECT id AS waits FROM idemq.enqueue('other', '"waits"', depends_on => ARRAY[:r, :c]) \gset
RESET ROLE;
SELECT idemq.revoke_queue('secret', 'dependencies_clerk', 'enqueue');
SELECT take('secret');
SELECT idemq.commit(id, token, '"first"') FROM idemq.jobs WHERE id = :r;
CREATE FUNCTION told(id bigint) RETURNS text LANGUAGE sql AS $$ SELECT string_agg(concat_ws(' ', queue, status, result), ', ' ORDER BY parent) FROM idemq.parents(id) $$;
SET ROLE dependencies_worker;
SELECT payload FROM idemq.claim('other');
SELECT told(:seen), told(:waits);
RESET ROLE;
SELECT outcome, status FROM idemq.enqueue('secret', '"r"', key => 'r', on_duplicate => 'rerun');
SET ROLE dependencies_worker;
SELECT told(:seen);
RESET ROLE;
SELECT take('secret');
SELECT idemq.commit(id, token, '"later"') FROM idemq.jobs WHERE id = :r;
SET ROLE dependencies_worker;
SELECT told(:seen), told(:waits);
RESET ROLE;
SELECT told(:seen), told(:waits);
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE id = :c;
SET ROLE dependencies_worker;
SELECT payload FROM idemq.claim('other');
SELECT told(:seen), told(:waits);
RESET ROLE;

-- A graph: parents first, whatever the order; a key that is taken stands for its job.
SELECT idemq.create_queue('q') > 0 AS created;
SELECT add('before') AS before \gset
SELECT name, outcome, status FROM idemq.enqueue_graph(jsonb_build_array(
	'{"name": "ship", "queue": "q", "payload": "ship", "depends_on": ["pay", "pack"], "on_parent_failure": "wait", "priority": 2}'::jsonb,
	jsonb_build_object('name', 'pack', 'queue', 'other', 'payload', 'pack', 'depends_on', jsonb_build_array('pay', :before)),
	'{"name": "pay", "queue": "q", "payload": "pay", "key": "order-1", "headers": {"a": 1}, "max_attempts": 3, "delay": "0 s", "kind": "charge"}'::jsonb));
SELECT c.payload AS child, p.payload AS parent FROM idemq.dependencies d JOIN idemq.jobs c ON c.id = child JOIN idemq.jobs p ON p.id = parent
	WHERE c.payload IN ('"ship"', '"pack"') ORDER BY child, parent;
SELECT payload, priority, max_attempts, headers, key, kind FROM idemq.jobs WHERE payload IN ('"ship"', '"pay"') ORDER BY id;
SELECT take();
SELECT done('pay', 'before');
SELECT take('other');
SELECT done('pack');
SELECT take();
SELECT name, outcome, status FROM idemq.enqueue_graph('[{"name": "pay", "queue": "q", "payload": "pay", "key": "order-1"},
	{"name": "again", "queue": "q", "payload": "again", "depends_on": ["pay"]}]');
SELECT take();
SELECT count(*) AS none FROM idemq.enqueue_graph('[]');
SELECT count(*) FROM idemq.jobs;
SELECT idemq.enqueue_graph('[{"name": "a", "queue": "q", "payload": 1, "depends_on": ["c"]}, {"name": "b", "queue": "q", "payload": 1, "depends_on": ["a"]},
	{"name": "c", "queue": "q", "payload": 1, "depends_on": ["b"]}, {"name": "d", "queue": "q", "payload": 1, "depends_on": ["a"]}]');
SELECT sqlstate_of(format('SELECT idemq.enqueue_graph(%L)', g)) FROM unnest('{
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"depends_on\": [\"a\"]}]",
	"{}", "1", "[1]", "[{\"queue\": \"q\"}]", "[{\"name\": 1}]", "[{\"name\": \"a\"}]", "[{\"name\": \"a\", \"queue\": \"q\"}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"nope\": 1}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"key\": true}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"depends_on\": 1}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"depends_on\": [\"z\"]}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"depends_on\": [true]}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"depends_on\": [1.4]}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"depends_on\": [1e30]}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1}, {\"name\": \"b\", \"queue\": \"nope\", \"payload\": 1}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1}, {\"name\": \"a\", \"queue\": \"q\", \"payload\": 1}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1, \"delay\": \"soon\"}]",
	"[{\"name\": \"a\", \"queue\": \"q\", \"payload\": null, \"priority\": 99}]"}'::text[]) g;
SELECT sqlstate_of('SELECT idemq.enqueue_graph(NULL)');
-- Its message names the circle; of more than ten jobs, the first ten.
CREATE FUNCTION circle_of(jobs int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
BEGIN
	PERFORM idemq.enqueue_graph((SELECT jsonb_agg(jsonb_build_object('name', 'n' || i, 'queue', 'q', 'payload', 1, 'depends_on', jsonb_build_array('n' || (i % jobs) + 1)))
		FROM generate_series(1, jobs) i));
	RETURN 'accepted';
EXCEPTION WHEN invalid_parameter_value THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN (length(detail) - length(replace(detail, 'depends on', ''))) / length('depends on') || CASE WHEN detail LIKE '%...%' THEN ' and more' ELSE '' END;
END $$;
SELECT jobs, circle_of(jobs) FROM unnest(ARRAY[2, 10, 11, 12]) jobs;
DROP FUNCTION circle_of;
SELECT count(*) AS unchanged FROM idemq.jobs;
SET ROLE dependencies_worker;
SELECT idemq.enqueue_graph('[{"name": "a", "queue": "other", "payload": 1}]');
RESET ROLE;

-- Many parents, in the order that is worst for a watch; many children of one; dependencies_large.sql has more.
SELECT reset();
SELECT count(*) FROM idemq.enqueue_many('q', array_fill('"many"'::jsonb, ARRAY[200]));
SELECT add('child of many', ids('many')) > 0 AS child;
SELECT count(*) FROM (SELECT idemq.commit_once(id) FROM (SELECT id FROM idemq.jobs WHERE payload = '"many"' ORDER BY id DESC) m OFFSET 0) n;
SELECT take();
SELECT done('child of many');
SELECT add('one') > 0 AS one;
SELECT count(add('many children', ids('one'))) FROM generate_series(1, 150);
SELECT count(*) FROM idemq.claim('q');
SELECT done('one');
SELECT count(*) FROM idemq.claim('q', 200);
SELECT count(*) AS waiting FROM idemq.children;
SELECT clean();

-- All results at once.
CALL idemq.wait_results(ids('one', 'child of many'), '5 min');
CALL idemq.wait_results('{}', '5 min');
SELECT add('open') AS open \gset
CALL idemq.wait_results(ids('one') || :open, '1 ms'); -- meant to expire
CALL idemq.wait_results('{123456789}', '1 ms'); -- meant to expire
CALL idemq.wait_results('{NULL}', '1 ms'); -- meant to expire
CALL idemq.wait_results(NULL);

-- Children of the same parents, in one call: with keys and without, in a group, delayed; a duplicate keeps its own.
SELECT reset();
SELECT add('a') IS NOT NULL AND add('b', queue => 'other') IS NOT NULL AS added;
SELECT ord, outcome, status FROM idemq.enqueue_many('q', ARRAY['"c"', '"d"', '"e"', '"f"']::jsonb[], keys => ARRAY[NULL, 'd', NULL, 'f'],
	group_keys => ARRAY[NULL, NULL, 'g', 'h'], delays => ARRAY[NULL, NULL, NULL, '1 h']::interval[], depends_on => ids('a', 'b', 'a')) ORDER BY ord;
SELECT ord, outcome, status FROM idemq.enqueue_many('q', ARRAY['"d"', '"h"']::jsonb[], keys => ARRAY['d', 'h'],
	depends_on => ids('b'), on_parent_failure => 'run') ORDER BY ord;
SELECT payload, status, ready_at, run_at IS NOT NULL AS has_time, group_key FROM idemq.jobs WHERE status = 'blocked' ORDER BY id;
SELECT j.payload, c.on_parent_failure, c.group_key, (SELECT array_agg(p.payload ORDER BY p.id) FROM idemq.dependencies d JOIN idemq.jobs p ON p.id = parent WHERE child = j.id) AS parents
	FROM idemq.children c JOIN idemq.jobs j ON j.id = job_id ORDER BY job_id;
SELECT clean();
SELECT take(), take('other');
SELECT done('a');
SELECT take();
SELECT done('b');
SELECT take();
SELECT done('c', 'd', 'e', 'h');
SELECT line();
SELECT clean();
-- Those that join a group together: the first goes by their ids, in whatever order they were written.
SELECT reset();
SELECT add('a') IS NOT NULL AS added;
SELECT count(*) FROM idemq.enqueue_many('q', ARRAY['"s1"', '"s2"', '"s3"']::jsonb[], keys => '{z,y,x}', group_keys => '{s,s,s}', depends_on => ids('a'));
SELECT take();
SELECT done('a');
SELECT take();
SELECT done('s1');
SELECT take();
SELECT done('s2');
SELECT take();
SELECT done('s3');
-- All or none.
SELECT sqlstate_of($$ SELECT idemq.enqueue_many('q', '{1,2}', depends_on => ARRAY[-1]) $$);
SELECT sqlstate_of($$ SELECT idemq.enqueue_many('q', '{1,2}', depends_on => ARRAY[NULL]::bigint[]) $$);
SELECT sqlstate_of($$ SELECT idemq.enqueue_many('q', '{1,2}', depends_on => ids('a'), on_parent_failure => 'no') $$);
SELECT sqlstate_of($$ SELECT idemq.enqueue_many('q', '{1,2}', depends_on => ids('a'), on_parent_failure => NULL) $$);
SELECT count(*) FROM idemq.jobs WHERE payload IN ('1', '2', '3');
SELECT count(*), bool_and(status = 'pending') AS none_waits FROM idemq.enqueue_many('q', '{1,2}', depends_on => '{}');
-- A parent that waits for its retry, and a subtransaction that is rolled back.
SELECT add('k') IS NOT NULL AS added;
SELECT take();
SELECT die('k');
BEGIN;
SAVEPOINT s;
SELECT count(*) FROM idemq.enqueue_many('q', '{4,5}', depends_on => ids('k'));
ROLLBACK TO s;
SELECT count(*) FROM idemq.enqueue_many('q', '{6,7}', depends_on => ids('k'));
COMMIT;
SELECT take();
SELECT payload, status FROM idemq.jobs WHERE payload IN ('4', '5', '6', '7') ORDER BY id;
SELECT clean();

SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
DROP EXTENSION idemq;
DROP OWNED BY dependencies_clerk, dependencies_worker;
DROP ROLE dependencies_clerk, dependencies_worker;
