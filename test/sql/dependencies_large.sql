-- Jobs that depend on many others, or on which many depend.
-- slow: it enqueues 400,000 edges
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q', max_attempts => 1) IS NOT NULL AS created;
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
CREATE FUNCTION clean() RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(c::text, E'\n') FROM idemq.check() c $$;
CREATE FUNCTION sqlstate_of(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN EXECUTE command; RETURN 'none'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE || ': ' || SQLERRM; END $$;

-- A circle in which each job has many parents is found in no time.
CREATE TEMP TABLE circle AS SELECT (SELECT jsonb_agg(jsonb_build_object('name', 'n' || i, 'queue', 'q', 'payload', 1)) FROM generate_series(1, 200000) i)
	|| jsonb_build_array(jsonb_build_object('name', 'x', 'queue', 'q', 'payload', 1, 'depends_on', (SELECT jsonb_agg('n' || i) || '["y"]' FROM generate_series(1, 200000) i)),
	'{"name": "y", "queue": "q", "payload": 1, "depends_on": ["x"]}'::jsonb) AS graph;
-- 0.5 s, and minutes with a step for each edge at each job.
SET statement_timeout = '1 min';
SELECT sqlstate_of('SELECT idemq.enqueue_graph(graph) FROM circle');
RESET statement_timeout;
DROP TABLE circle;
SELECT count(*) AS unchanged FROM idemq.jobs;

-- Many parents, in the order that is worst for a watch; many children of one.
SELECT count(*) FROM idemq.enqueue_many('q', array_fill('"many"'::jsonb, ARRAY[2000]));
SELECT add('child of many', ids('many')) > 0 AS child;
SELECT count(*) FROM (SELECT idemq.commit_once(id) FROM (SELECT id FROM idemq.jobs WHERE payload = '"many"' ORDER BY id DESC) m OFFSET 0) n;
SELECT take();
SELECT done('child of many');
SELECT add('one') > 0 AS one;
SELECT count(add('many children', ids('one'))) FROM generate_series(1, 1500);
SELECT count(*) FROM idemq.claim('q');
SELECT done('one');
SELECT count(*) FROM idemq.claim('q', 2000);
SELECT count(*) AS waiting FROM idemq.children;
SELECT clean();
