-- enqueue_many: all or none, ids and answers in the order of the arrays.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 7);

-- Payloads alone: the defaults of enqueue.
SELECT ord, id - min(id) OVER () AS nth, outcome, status, result FROM idemq.enqueue_many('q', ARRAY['"a"', '{"b": 1}', 'null']::jsonb[]) ORDER BY ord;
SELECT payload, priority, max_attempts, key, group_key, headers, expires_at, attempt, token, status, ready_at = enqueued_at AS now
FROM idemq.jobs ORDER BY id;
SELECT count(DISTINCT enqueued_at), bool_and(enqueued_at <= clock_timestamp()) FROM idemq.jobs;
SELECT payload FROM idemq.claim('q', 10);
-- Ids follow those of the first block, one by one.
SELECT (SELECT e.id - max(j.id) FROM idemq.jobs j) AS next FROM idemq.enqueue('q', '"next"') e;
SELECT (SELECT e.id - max(j.id) FROM idemq.jobs j) AS next FROM idemq.enqueue('q', '"next"') e;
SELECT * FROM idemq.enqueue_many('q', '{}');
SELECT * FROM idemq.enqueue_many('q', '{}', '{}', '{}', '{}');
DELETE FROM idemq.jobs;

-- All arrays; NULL elements mean the default.
SELECT ord, outcome FROM idemq.enqueue_many('q', ARRAY['1', '2', '3', '4']::jsonb[], keys => ARRAY['z', NULL, 'b', 'a'],
	run_ats => ARRAY[NULL, '2001-01-01', '2100-01-01', NULL]::timestamptz[], priorities => ARRAY[NULL, 9, 0, 1]) ORDER BY ord;
SELECT payload, key, ready_at < now() - interval '1 day' AS past, ready_at > now() + interval '1 day' AS future, priority FROM idemq.jobs ORDER BY id;
SELECT payload, key FROM idemq.claim('q', 10);

-- Ids follow the array, also where keys are out of order; so do jobs without a time or a priority of their own.
DELETE FROM idemq.jobs;
CREATE TABLE added AS SELECT ord, id FROM idemq.enqueue_many('q', (SELECT array_agg(to_jsonb(g) ORDER BY g) FROM generate_series(1, 500) g),
	(SELECT array_agg(md5(g::text) ORDER BY g) FROM generate_series(1, 500) g));
SELECT count(*), bool_and(ord = payload::int) AS right_payload, bool_and(grows) AS in_order
FROM (SELECT ord, payload, id > lag(id, 1, 0::bigint) OVER (ORDER BY ord) AS grows FROM added JOIN idemq.jobs USING (id)) s;
SELECT count(*), bool_and(in_order) FROM (SELECT payload::int > lag(payload::int, 1, 0) OVER () AS in_order FROM idemq.claim('q', 500)) s;
DELETE FROM idemq.jobs;

-- A key twice in one array: the second is the first one's duplicate.
SELECT ord, e.id - min(id) OVER () = 0 AS first, outcome, status FROM idemq.enqueue_many('q', ARRAY['1', '2', '1', '1', '2']::jsonb[], ARRAY['k', 'm', 'k', 'k', NULL]) e ORDER BY ord;
SELECT payload, key FROM idemq.jobs ORDER BY id;
-- With another payload it is IQ003, and nothing is added.
SELECT * FROM idemq.enqueue_many('q', ARRAY['1', '2', '3']::jsonb[], ARRAY['x', 'y', 'x']);
SELECT * FROM idemq.enqueue_many('q', ARRAY['7', '8']::jsonb[], ARRAY['new', 'k']);
SELECT count(*) FROM idemq.jobs;
-- Jobs of earlier calls are duplicates with their answers.
SELECT idemq.commit_once(id, '"r"') FROM idemq.jobs WHERE key = 'm';
SELECT ord, outcome, status, result FROM idemq.enqueue_many('q', ARRAY['3', '2', '1']::jsonb[], ARRAY['n', 'm', 'k']) ORDER BY ord;
SELECT key, status FROM idemq.jobs ORDER BY key;
DELETE FROM idemq.jobs;

-- One bad element, and nothing is added.
CREATE FUNCTION state(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE sql;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN SQLSTATE || ' ' || SQLERRM || CASE hint WHEN '' THEN ', no hint' ELSE '' END;
END $$;
SELECT args, state('SELECT * FROM idemq.enqueue_many(' || args || ')') FROM unnest(ARRAY[
	'''nope'', ''{1}''', 'NULL, ''{1}''', '''q'', NULL',
	'''q'', ''{1,NULL}''', '''q'', ''{{1,2},{3,4}}''', '''q'', ''[0:1]={1,2}''',
	'''q'', ''{1,2}'', ''{a}''', '''q'', ''{1}'', ''{a,b}''', '''q'', ''{1}'', ''[2:2]={a}''', '''q'', ''{1,2}'', ''{{a},{b}}''',
	'''q'', ''{1,2}'', ''{a,""}''', '''q'', ''{1,2}'', ARRAY[''a'', repeat(''x'', 1025)]',
	'''q'', ''{1,2}'', run_ats => ''{now}''', '''q'', ''{1,2}'', run_ats => ''{now,infinity}''', '''q'', ''{1,2}'', run_ats => ''{-infinity,now}''',
	'''q'', ''{1,2}'', priorities => ''{1}''', '''q'', ''{1,2}'', priorities => ''{1,10}''', '''q'', ''{1,2}'', priorities => ''{-1,1}''',
	'''q'', ''{1,2}'', group_keys => ''{g}''',
	'''q'', array_fill(''1''::jsonb, ARRAY[1000001])']) args;
SELECT count(*) FROM idemq.jobs;

-- NULL for an optional array is its absence.
SELECT outcome FROM idemq.enqueue_many('q', '{1}', NULL, NULL, NULL, NULL);
-- Undone with its savepoint.
BEGIN;
SAVEPOINT a;
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,3}', '{a,b,c}');
ROLLBACK TO a;
SELECT outcome FROM idemq.enqueue_many('q', '{4}', '{a}');
COMMIT;
SELECT payload, key FROM idemq.claim('q', 10);

-- Large payloads beside small ones.
SELECT ord, outcome FROM idemq.enqueue_many('q', ARRAY['1', to_jsonb(repeat('x', 1000000)), to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 10000) i)), '4'], ARRAY['p', 'o', NULL, 'n']) ORDER BY ord;
SELECT key, length(payload::text) FROM idemq.claim('q', 10);
DELETE FROM idemq.jobs;

-- All options of enqueue.
SELECT count(*) FROM idemq.enqueue_many('q', ARRAY['1', '2', '3', '4']::jsonb[], delays => ARRAY['1 h', NULL, '0', '1 mon']::interval[],
	max_attempts => ARRAY[1, 2, NULL, 3], headers => ARRAY['{"trace": 1}', NULL, 'null', '{"trace": 4}']::jsonb[],
	expires_ins => ARRAY[NULL, '1 day', '2 h', NULL]::interval[], group_keys => ARRAY[NULL, NULL, NULL, 'g'],
	run_ats => ARRAY[NULL, '2100-01-01', NULL, NULL]::timestamptz[]);
SELECT payload, status, CASE WHEN ready_at < '2099-01-01' THEN ready_at - enqueued_at END AS delay, ready_at > '2099-01-01' AS late, run_at = enqueued_at + interval '1 mon' AS run_at,
	max_attempts, headers, expires_at - enqueued_at AS expires_in FROM idemq.jobs ORDER BY payload;
SELECT args, state('SELECT * FROM idemq.enqueue_many(''q'', ''{1,2}'', ' || args || ')') FROM unnest(ARRAY[
	'delays => ''{1 s}''', 'delays => ''{1 s,-1 s}''', 'delays => ''{NULL,1001 years}''',
	'delays => ''{NULL,1 s}'', run_ats => ''{NULL,now}''', 'max_attempts => ''{0,1}''', 'max_attempts => ''{1}''',
	'headers => ''{1}''', 'expires_ins => ''{0,1 s}''', 'expires_ins => ''{1 s}''',
	'on_duplicate => NULL', 'on_duplicate => ''merge''', 'nowait => NULL']) args;
SELECT outcome FROM idemq.enqueue_many('q', '{7,8}', delays => '{NULL,1 s}', run_ats => '{now,NULL}', max_attempts => '{NULL,NULL}', headers => NULL, expires_ins => NULL);
DELETE FROM idemq.jobs;
-- on_duplicate is for all of them, also for a key that is there twice.
SELECT outcome FROM idemq.enqueue_many('q', '{1,1}', '{k,l}');
SELECT ord, outcome, status FROM idemq.enqueue_many('q', '{2,2}', '{k,m}', on_duplicate => 'ignore') ORDER BY ord;
SELECT idemq.commit_once(id) FROM idemq.jobs WHERE key = 'l';
SELECT ord, outcome, status FROM idemq.enqueue_many('q', '{3,4,5,6,7,8}', '{k,k,l,n,n,k}', on_duplicate => 'replace', priorities => '{1,2,3,4,5,6}',
	headers => ARRAY['{}', NULL, NULL, NULL, '{"n": 2}', '{"k": 3}']::jsonb[], delays => '{NULL,NULL,NULL,NULL,1 h,NULL}') ORDER BY ord;
SELECT key, payload, status, priority, headers, ready_at - enqueued_at > '59 min' AS delayed FROM idemq.jobs ORDER BY key;
SELECT ord, outcome, status FROM idemq.enqueue_many('q', '{9,9}', '{n,n}', on_duplicate => 'replace', nowait => true) ORDER BY ord;
SELECT payload FROM idemq.jobs WHERE key = 'n';
SELECT state('SELECT * FROM idemq.enqueue_many(''q'', ''{1,1}'', ''{new,k}'', on_duplicate => ''error'')');
SELECT count(*) FROM idemq.jobs WHERE key = 'new';
-- nowait, with nobody in the way.
SELECT ord, outcome, status FROM idemq.enqueue_many('q', '{1,2}', '{o,NULL}', nowait => true) ORDER BY ord;
SELECT outcome FROM idemq.enqueue('q', '1', key => 'o', nowait => true);
SELECT outcome FROM idemq.enqueue('q', '1', nowait => true);
SELECT state('SELECT idemq.enqueue(''q'', ''1'', nowait => NULL)');
SELECT * FROM idemq.check();
SELECT idemq.drop_queue('q', force => true);
