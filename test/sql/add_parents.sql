-- Flows that grow: a running job makes a child of it wait for further parents.  Without the worker.
CREATE EXTENSION idemq;
\set VERBOSITY terse
SELECT idemq.create_queue('list', max_attempts => 3, retry_jitter => 0, lease => '1 h') IS NOT NULL
	AND idemq.create_queue('page', max_attempts => 1, lease => '1 h') IS NOT NULL AND idemq.create_queue('sum', lease => '1 h') IS NOT NULL AS created;
CREATE FUNCTION add(queue text, p text, depends_on bigint[] DEFAULT NULL, failure text DEFAULT 'cancel', key text DEFAULT NULL, group_key text DEFAULT NULL)
	RETURNS bigint LANGUAGE sql AS $$
	SELECT id FROM idemq.enqueue(queue, to_jsonb(p), depends_on => depends_on, on_parent_failure => failure, key => key, group_key => group_key) $$;
CREATE FUNCTION id_of(p text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.jobs WHERE payload #>> '{}' = p $$;
CREATE FUNCTION token_of(p text) RETURNS bigint LANGUAGE sql AS $$ SELECT token FROM idemq.jobs WHERE payload #>> '{}' = p $$;
CREATE FUNCTION take(queue text) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload #>> '{}', ' ' ORDER BY id) FROM idemq.claim(queue, 20) $$;
CREATE FUNCTION done(p text) RETURNS idemq.outcome LANGUAGE sql AS $$ SELECT idemq.commit(id_of(p), token_of(p)) $$;
CREATE FUNCTION die(p text) RETURNS idemq.outcome LANGUAGE sql AS $$ SELECT idemq.fail(id_of(p), token_of(p), 'no', permanent => true) $$;
-- The holder of a job adds parents to a child.
CREATE FUNCTION grow(p text, child text, VARIADIC parents text[]) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg((SELECT payload #>> '{}' FROM idemq.jobs WHERE id = a.parent) || ':' || a.outcome, ' ' ORDER BY a.parent)
	FROM idemq.add_parents(id_of(child), ARRAY(SELECT id_of(x) FROM unnest(parents) x), id_of(p), token_of(p)) a $$;
CREATE FUNCTION try(p text, child text, VARIADIC parents text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	said text;
BEGIN
	RETURN grow(p, child, VARIADIC parents);
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS said = PG_EXCEPTION_HINT;
	FOR said IN SELECT sqlstate || ' ' || sqlerrm || CASE WHEN said = '' THEN ' (no hint)' ELSE '' END LOOP
		RETURN regexp_replace(said, '\d{10,}', 'N', 'g');
	END LOOP;
END $$;
CREATE FUNCTION line() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload #>> '{}' || ':' || status, ' ' ORDER BY id) FROM idemq.jobs $$;
CREATE FUNCTION clean() RETURNS text LANGUAGE sql AS $$ SELECT string_agg(c::text, E'\n') FROM idemq.check() c $$;
CREATE FUNCTION empty() RETURNS void LANGUAGE sql AS $$ TRUNCATE idemq.jobs $$;

-- List the pages, process each, then sum up; the pages are added in the transaction that commits the list.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, take('list');
BEGIN;
SELECT count(add('page', 'page ' || i)) FROM generate_series(1, 3) i;
SELECT grow('list', 'sum', 'page 3', 'page 1', 'page 2', 'page 1');
SELECT grow('list', 'sum', 'page 2');
SELECT done('list');
COMMIT;
SELECT take('sum') AS none, take('page');
SELECT done('page 1'), done('page 3');
SELECT take('sum') AS none, done('page 2');
SELECT take('sum');
SELECT queue, status, count(*) FROM idemq.parents(id_of('sum')) GROUP BY 1, 2 ORDER BY 1;
SELECT jobs, completed, running FROM idemq.flow(id_of('page 2'));
SELECT queue, depth, cardinality(parents) AS parents FROM idemq.flow_jobs(id_of('page 2'));
SELECT clean(), empty();

-- In transactions before; what is rolled back, to a savepoint as well, is not added.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, take('list');
SELECT add('page', 'a') > 0, add('page', 'b') > 0, add('page', 'c') > 0;
SELECT grow('list', 'sum', 'a');
BEGIN;
SELECT grow('list', 'sum', 'b');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT grow('list', 'sum', 'b');
ROLLBACK TO s;
SELECT grow('list', 'sum', 'c', 'a');
COMMIT;
SELECT done('list'), take('page'), done('c');
SELECT take('sum') AS none, done('a');
SELECT take('sum');
SELECT clean(), empty();

-- Parents that have finished count as they do at an enqueue.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, add('sum', 'any', ARRAY[id_of('list')], 'run') > 0, add('sum', 'patient', ARRAY[id_of('list')], 'wait') > 0, take('list');
SELECT add('page', 'good') > 0, add('page', 'bad') > 0, take('page'), done('good'), die('bad');
SELECT grow('list', 'sum', 'good'), grow('list', 'any', 'good', 'bad'), grow('list', 'patient', 'good', 'bad');
SELECT done('list');
SELECT take('sum');
SELECT line();
SELECT idemq.retry(id_of('bad')), take('page'), done('bad');
SELECT take('sum');
SELECT clean(), empty();
-- One that has failed cancels the child at once, though the list still runs.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, take('list'), add('page', 'bad') > 0, take('page'), die('bad');
-- Nothing is left to look at.
SELECT take('sum') AS none;
SELECT grow('list', 'sum', 'bad');
SELECT take('sum') AS none, line();
SELECT try('list', 'sum', 'bad');
-- Brought back, it waits for all of them.
SELECT idemq.retry(id_of('bad')), idemq.retry(id_of('sum')), add('page', 'more') > 0, grow('list', 'sum', 'bad', 'more'), take('page'), done('bad'), done('list');
SELECT take('sum') AS none;
SELECT done('more');
SELECT take('sum');
SELECT clean(), empty();

-- Added parents get the child's on_parent_failure.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, add('sum', 'any', ARRAY[id_of('list')], 'run') > 0, take('list');
SELECT add('page', 'bad') > 0, grow('list', 'sum', 'bad'), grow('list', 'any', 'bad'), done('list'), take('page');
SELECT take('sum') AS none, die('bad');
SELECT take('sum');
SELECT line(), clean(), empty();

-- The attempt fails: what was added stays, and the next one adds with keys.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, take('list');
SELECT add('page', 'a', key => 'a') > 0, grow('list', 'sum', 'a'), idemq.fail(id_of('list'), token_of('list'), 'no', retry_in => '0'), take('list');
SELECT add('page', 'a', key => 'a') = id_of('a') AS same, add('page', 'b', key => 'b') > 0, grow('list', 'sum', 'a', 'b'), done('list'), take('page'), done('a');
SELECT take('sum') AS none, done('b');
SELECT take('sum');
SELECT clean(), empty();
-- It dies: the child is cancelled with it, and what was added runs.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, take('list'), add('page', 'a') > 0, grow('list', 'sum', 'a'), die('list');
SELECT take('sum') AS none, take('page'), line();
SELECT clean(), empty();

-- Jobs that this transaction has enqueued may have parents, if all of these are such jobs.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, take('list'), add('page', 'old') > 0, add('page', 'old child', ARRAY[id_of('old')]) > 0;
SELECT try('list', 'sum', 'old child');
BEGIN;
SELECT add('page', 'a') > 0, add('page', 'b', ARRAY[id_of('a'), id_of('old')]) > 0, add('page', 'c', ARRAY[id_of('b'), id_of('list')]) > 0;
SELECT try('list', 'sum', 'c');
SELECT add('page', 'd', ARRAY[id_of('a'), id_of('old child')]) > 0, add('page', 'e', ARRAY[id_of('d')]) > 0, add('page', 'f', ARRAY[id_of('sum')]) > 0;
SELECT try('list', 'sum', 'd'), try('list', 'sum', 'e');
SELECT try('list', 'sum', 'f');
-- A job that this transaction has changed is not one that it has enqueued.
SELECT idemq.reschedule(id_of('old child'), priority => 1), try('list', 'sum', 'old child');
COMMIT;
SELECT try('list', 'sum', 'b') AS not_any_more, try('list', 'sum', 'c') AS already;
-- A child of its own that it has just enqueued grows, and no circle is closed.
BEGIN;
SELECT add('sum', 'new', ARRAY[id_of('list')]) > 0, add('page', 'x', ARRAY[id_of('new')]) > 0, add('page', 'y', ARRAY[id_of('x')]) > 0;
SELECT try('list', 'new', 'x'), try('list', 'new', 'y'), try('list', 'new', 'old');
ROLLBACK;
-- The depth of a job that was added counts for its child, which is older.
SELECT trim('"' FROM j.payload::text) AS job, f.depth FROM idemq.flow_jobs(id_of('sum')) f JOIN idemq.jobs j USING (id) ORDER BY id;
SELECT done('list'), take('page');
SELECT done('a'), done('old'), take('page');
SELECT done('b'), take('page');
SELECT take('sum') AS none;
SELECT done('c');
SELECT take('sum');
SELECT clean(), empty();

-- What is refused.
SELECT add('page', 'older') > 0, add('list', 'list') > 0, add('list', 'other') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, add('sum', 'grandchild', ARRAY[id_of('sum')]) > 0, add('page', 'p') > 0, take('list');
SELECT try('list', 'sum', 'older'), try('list', 'sum', 'list'), try('list', 'sum', 'sum'), try('list', 'sum', 'grandchild');
SELECT try('other', 'sum', 'p'), try('list', 'grandchild', 'p'), try('list', 'p', 'p'), try('list', 'older', 'p');
SELECT try('list', 'sum', 'other') AS another_list;
\set VERBOSITY sqlstate
SELECT * FROM idemq.add_parents(id_of('sum') + 100, ARRAY[id_of('p')], id_of('list'), token_of('list'));
SELECT * FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('p') + 100], id_of('list'), token_of('list'));
SELECT * FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('p')], id_of('list'), token_of('list') - 1);
SELECT * FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('p')], id_of('list') + 100, token_of('list'));
SELECT * FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('p'), NULL], id_of('list'), token_of('list'));
SELECT * FROM idemq.add_parents(NULL, ARRAY[id_of('p')], id_of('list'), token_of('list'));
SELECT * FROM idemq.add_parents(id_of('sum'), NULL, id_of('list'), token_of('list'));
SELECT * FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('p')], NULL, token_of('list'));
SELECT * FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('p')], id_of('list'), NULL);
SELECT * FROM idemq.add_parents(id_of('sum'), '{}', id_of('list'), token_of('list'));
BEGIN READ ONLY;
SELECT * FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('p')], id_of('list'), token_of('list'));
ROLLBACK;
SELECT done('list');
SELECT * FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('p')], id_of('list'), token_of('list'));
\set VERBOSITY terse
-- Nothing came of that; the other list is no parent of the sum, and was added as one.
SELECT count(*) FROM idemq.dependencies WHERE child = id_of('sum');
SELECT clean(), empty();

-- A job that was done, and runs again, is no parent for which the child still waits.
SELECT add('list', 'list', key => 'k') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, add('page', 'other') > 0, add('sum', 'two', ARRAY[id_of('list'), id_of('other')]) > 0, take('list'), done('list');
SELECT take('sum');
SELECT outcome FROM idemq.enqueue('list', '"list"', key => 'k', on_duplicate => 'rerun');
SELECT take('list'), add('page', 'p') > 0, try('list', 'sum', 'p'), try('list', 'two', 'p');
SELECT done('list');
-- Nor is one that this transaction itself has brought back, which others still see as done.
SELECT add('list', 'list 2', key => 'k2') > 0, take('list'), add('sum', 'sum 2', ARRAY[id_of('list 2')]) > 0, done('list 2');
BEGIN;
SELECT outcome FROM idemq.enqueue('list', '"list 2"', key => 'k2', on_duplicate => 'rerun');
SELECT take('list'), try('list 2', 'sum 2', 'p');
ROLLBACK;
-- If it is run again before it was seen done, the child waits for that run, which may add.
SELECT add('list', 'list 3', key => 'k3') > 0, add('sum', 'sum 3', ARRAY[id_of('list 3')]) > 0, take('list');
SELECT outcome FROM idemq.enqueue('list', '"list 3"', key => 'k3', on_duplicate => 'rerun');
SELECT done('list 3'), take('list'), add('page', 'p 3') > 0, try('list 3', 'sum 3', 'p 3'), done('list 3');
SELECT take('sum') AS sum_2, take('page'), done('p 3');
SELECT take('sum');
SELECT clean(), empty();

-- The look that this transaction itself has made at the child, and that has moved its watch, is over.
SELECT add('sum', 'first') > 0, add('sum', 'list') > 0;
SELECT add('sum', 'sum', ARRAY[id_of('first'), id_of('list')], 'run') > 0, (idemq.claim_job(id_of('first'))).outcome, done('first'), add('page', 'p') > 0;
BEGIN;
SELECT take('sum');
SELECT waits_for = id_of('list') AS moved, grow('list', 'sum', 'p'), done('list') FROM idemq.children;
COMMIT;
SELECT take('sum') AS none, take('page'), done('p');
SELECT take('sum');
SELECT clean(), empty();

-- The child joins its group, or is due, after the last of them.
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')], group_key => 'g') > 0, add('sum', 'next', group_key => 'g') > 0, take('list'), add('page', 'a') > 0;
SELECT grow('list', 'sum', 'a'), done('list');
SELECT take('sum'), take('page'), done('next');
SELECT take('sum') AS none, done('a');
SELECT take('sum');
SELECT clean(), empty();

-- An added parent is kept while the child waits, in a queue that keeps nothing too.
SELECT idemq.alter_queue('page', retention => '0');
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, take('list'), add('page', 'a') > 0, add('page', 'b') > 0, grow('list', 'sum', 'a'), take('page'), id_of('b') - id_of('a') AS next;
SELECT done('a'), done('b'), idemq.purge('page'), line();
\set VERBOSITY sqlstate
SELECT outcome FROM idemq.add_parents(id_of('sum'), ARRAY[id_of('a') + 1], id_of('list'), token_of('list'));
\set VERBOSITY terse
SELECT done('list');
SELECT take('sum');
SELECT clean(), empty();

-- Who may: claim on the job's queue, enqueue on the child's, any privilege on a parent's.
CREATE ROLE idemq_grower;
SELECT idemq.create_queue('secret') > 0;
SELECT add('list', 'list') > 0, add('sum', 'sum', ARRAY[id_of('list')]) > 0, take('list'), add('page', 'a') > 0, add('secret', 's') > 0;
SELECT id_of('list') AS list, token_of('list') AS token, id_of('sum') AS sum, id_of('a') AS a, id_of('s') AS s \gset
CREATE FUNCTION as_grower(child bigint, parent bigint, id bigint, token bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	said text;
BEGIN
	SET LOCAL ROLE idemq_grower;
	SELECT a.outcome INTO said FROM idemq.add_parents(child, ARRAY[parent], id, token) a;
	RESET ROLE;
	RETURN said;
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || ' ' || regexp_replace(sqlerrm, '\d{10,}', 'N', 'g');
END $$;
SELECT idemq.grant_queue('page', 'idemq_grower', 'claim');
SELECT as_grower(:sum, :a, :list, :token) AS stranger;
SELECT idemq.grant_queue('list', 'idemq_grower', 'enqueue');
SELECT as_grower(:sum, :a, :list, :token), as_grower(:sum, :a, :list, :token - 1) AS no_token;
SELECT idemq.grant_queue('list', 'idemq_grower', 'claim');
SELECT as_grower(:sum, :a, :list, :token), as_grower(:s, :a, :list, :token) AS no_child;
SELECT idemq.grant_queue('sum', 'idemq_grower', 'claim');
SELECT as_grower(:sum, :a, :list, :token);
SELECT idemq.grant_queue('sum', 'idemq_grower', 'enqueue');
SELECT as_grower(:sum, :s, :list, :token), as_grower(:sum, :a, :list, :token);
SELECT clean(), empty();
SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
DROP OWNED BY idemq_grower;
DROP ROLE idemq_grower;
DROP EXTENSION idemq CASCADE;
