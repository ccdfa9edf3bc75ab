-- Bad input for every function: a clear error with a SQLSTATE and a hint, and
-- nothing half done.  And large input, which goes in and comes out.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h');

-- Arguments that each function takes as they are; names that mean an error are changed below.
CREATE TABLE good (arg text PRIMARY KEY, value text);
INSERT INTO good VALUES ('queue', '''q'''), ('queues', '''{q}'''), ('payload', '''1'''), ('payloads', '''{1}'''), ('key', '''k'''), ('keys', '''{k}'''),
	('delay', '''1 min'''), ('delays', 'NULL'), ('expires_ins', '''{1 h}'''), ('nowait', 'false'), ('details', '''{}'''), ('run_at', '''2001-01-01'''), ('run_ats', '''{2001-01-01}'''), ('priority', '3'), ('priorities', '''{3}'''), ('group_key', 'NULL'),
	('group_keys', 'NULL'), ('max_attempts', '2'), ('headers', '''{}'''), ('expires_in', '''1 h'''), ('key_ttl', 'NULL'), ('key_ttls', 'NULL'), ('on_duplicate', '''keep'''), ('max_jobs', '2'),
	('lease', '''1 h'''), ('worker', '''w'''), ('attach', 'false'), ('id', '$1'), ('ids', 'ARRAY[$1]'), ('token', '$2'), ('tokens', 'ARRAY[$2]'), ('result', '''1'''),
	('results', '''{1}'''), ('error', '''e'''), ('errors', '''{e}'''), ('retry_in', '''1 min'''), ('permanent', 'false'), ('state', '''1'''), ('name', '''q'''), ('response', '''1'''),
	('role', '''pg_monitor'''), ('privilege', '''claim'''), ('force', 'true'), ('status', '''pending'''), ('retry_base', '''1 min'''), ('retry_factor', '2'),
	('retry_max', '''1 h'''), ('retry_jitter', '0'), ('retention', '''1 day'''), ('idempotency_window', '''1 day'''), ('max_running', 'NULL'), ('rate_limit', 'NULL'),
	('rate_period', '''1 min'''), ('dead_letter_queue', 'NULL'), ('dead_retention', '''30 days'''), ('max_lease', '''1 day'''), ('job_timeout', '''1 h'''), ('queue_id', '1'), ('scope', '''s'''), ('ttl', '''1 h'''), ('bucket', '''b'''), ('max_calls', '3'),
	('kind', '''mail'''), ('kinds', '''{mail}'''), ('max_wait', 'NULL'), ('dead_letter_cancelled', 'false'), ('group_max_running', '2'), ('group_rate_limit', 'NULL'), ('rate_burst', 'NULL'), ('group_rate_burst', 'NULL'), ('max_unfinished', 'NULL'), ('group_max_unfinished', 'NULL'), ('notify_finished', 'true'), ('when_full', '''skip'''), ('max_hold_back', '''1 h'''), ('burst', 'NULL'), ('group_rate_period', '''1 min'''), ('producer', '''p'''), ('seq', '1'), ('shard', '3'), ('shards', '8'), ('moved_to', '''there'''), ('timeout', '''1 h'''), ('pattern', '''order.#'''), ('topic', '''order.paid'''), ('key_prefix', '''order-'''),
	('per', '''1 min'''), ('cost', '1'), ('function', '''regress_handler(jsonb)'''), ('workers', '2'), ('batch', '10'), ('max_idle', '''1 min'''),
	('cron', '''0 0 1 1 *'''), ('time_zone', '''UTC'''), ('after', '''2026-01-01'''), ('until', '''2100-01-01'''), ('checkpoint', '''{}'''),
	('depends_on', 'ARRAY[$1]'), ('on_parent_failure', '''wait'''), ('jobs', '''[{"name": "a", "queue": "q", "payload": 1, "depends_on": []}]'''),
	('expect_workers', 'true'), ('most', '10'), ('member', '$1'), ('counts', '''{10,1}'''), ('part', '0.5'), ('process', '''7b0c7f6a-1111-4222-8333-444455556666'''),
	('program', '''sh'''), ('version', '''1'''), ('host', '''here'''), ('concurrency', '2'), ('running', 'ARRAY[$1]'), ('done', '3'), ('stopping', 'false'), ('end_waits', '''{}'''), ('ahead', 'true'), ('exact', 'false'),
	('child', '(idemq.enqueue(''q'', ''1'', depends_on => ARRAY[$1])).id'), ('parents', 'ARRAY[(idemq.enqueue(''q'', ''1'')).id]');
CREATE FUNCTION regress_handler(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS 'SELECT';
-- Schedules want somebody who ticks; what is published, a topic.
CALL idemq.tick();
SELECT idemq.create_topic('order');

-- The call of a function with one argument replaced; with a running job, and undone.
CREATE FUNCTION answer(fn text, changed text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	args text := (SELECT string_agg(format('%s => %s', name, CASE WHEN fn LIKE '%\_many' AND name IN ('max_attempts', 'headers', 'details') AND name IS DISTINCT FROM changed THEN 'NULL' WHEN name = changed THEN answer.value
			WHEN fn IN ('enqueue', 'enqueue_sequenced') AND name IN ('delay', 'run_at') AND coalesce(changed, '') IN ('delay', 'run_at') THEN 'NULL' WHEN fn IN ('enqueue', 'enqueue_sequenced') AND name = 'delay' THEN 'NULL' WHEN fn = 'create_queue' AND name = 'name' THEN '''another''' WHEN fn = 'hold_back' AND name = 'scope' THEN '''queue''' WHEN fn = 'hold_back' AND name = CASE WHEN changed = 'until' THEN 'delay' ELSE 'until' END THEN 'NULL' WHEN fn IN ('pause', 'resume') AND name = 'group_key' THEN '''g''' ELSE good.value END), ', ' ORDER BY ord)
		FROM pg_proc, unnest(proargnames[1:pronargs]) WITH ORDINALITY a(name, ord) LEFT JOIN good ON arg = name
		WHERE proname = fn AND pronamespace = 'idemq'::regnamespace);
	job record;
	said text;
	hint text;
BEGIN
	PERFORM idemq.enqueue('q', '1');
	SELECT id, token INTO job FROM idemq.claim('q');
	EXECUTE format('SELECT (SELECT string_agg(x::text, '' '') FROM idemq.%I(%s) x)', fn, args) INTO said USING job.id, job.token;
	RAISE SQLSTATE 'UNDO0';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN CASE WHEN SQLSTATE = 'UNDO0' THEN 'accepted'
		ELSE SQLSTATE || ' ' || left(regexp_replace(SQLERRM, 'job -?[0-9]+', 'job ...'), 60) || CASE WHEN hint = '' AND SQLSTATE ~ '^(22|IQ)' THEN ', no hint' ELSE '' END END;
END $$;

-- Every function with all its arguments in order; then each argument NULL.
SELECT proname, answer(proname, NULL, NULL) FROM pg_proc
WHERE pronamespace = 'idemq'::regnamespace AND prokind = 'f' AND prorettype <> 'trigger'::regtype ORDER BY 1;
SELECT proname, name, answer(proname, name, 'NULL')
FROM pg_proc, unnest(proargnames[1:pronargs]) WITH ORDINALITY a(name, ord)
WHERE pronamespace = 'idemq'::regnamespace AND prokind = 'f' AND prorettype <> 'trigger'::regtype ORDER BY proname, ord;

-- Each argument empty, negative, zero, too large.
CREATE TABLE bad (ord int GENERATED ALWAYS AS IDENTITY, arg text, value text);
INSERT INTO bad (arg, value) VALUES
	('queue', ''''''), ('queue', '''nope'''), ('queue', 'repeat(''x'', 1024)'), ('queue', 'repeat(''x'', 1025)'), ('queue', '''Q'''), ('queue', '''q; DROP'''),
	('queues', '''{nope}'''), ('queues', '''{""}'''), ('queues', '''{NULL}'''), ('queues', '''{{q},{q}}'''), ('queues', 'array_fill(''q''::text, ARRAY[1000001])'),
	('key', ''''''), ('key', 'repeat(''x'', 1024)'), ('key', 'repeat(''x'', 1025)'), ('key', 'repeat(''é'', 513)'), ('key', 'repeat(''x'', 1000000)'),
	('delay', '''-1 us'''), ('delay', '''1015 years'''), ('run_at', '''infinity'''), ('run_at', '''-infinity'''), ('run_at', '''294276-12-31 23:59:59+00'''), ('run_at', '''4714-11-24 00:00:00+00 BC'''),
	('priority', '-1'), ('priority', '0'), ('priority', '9'), ('priority', '10'), ('priority', '2147483647'), ('priority', '-2147483648'), ('priority', '65540'),
	('group_key', '''g'''), ('key_prefix', ''''''), ('key_prefix', 'repeat(''k'', 1025)'), ('key_prefix', '''%'''), ('max_attempts', '0'), ('max_attempts', '-1'), ('max_attempts', '2147483647'),
	('expires_in', '''0'''), ('expires_in', '''-1 s'''), ('expires_in', '''2000 years'''), ('key_ttl', '''0'''), ('key_ttl', '''2000 years'''), ('on_duplicate', '''other'''), ('on_duplicate', ''''''), ('on_duplicate', 'repeat(''x'', 1000)'),
	('kind', ''''''), ('kind', 'repeat(''x'', 64)'), ('kind', 'repeat(''x'', 65)'), ('kind', 'repeat(''é'', 33)'), ('kinds', '''{""}'''), ('kinds', '''{NULL}'''), ('max_wait', '''0'''), ('max_wait', '''1 h'''), ('max_wait', '''2000 years'''),
	('producer', ''''''), ('producer', 'repeat(''x'', 257)'), ('seq', '0'), ('seq', '-9223372036854775808'), ('seq', '9223372036854775807'),
	('max_jobs', '0'), ('max_jobs', '-1'), ('max_jobs', '1000000'), ('max_jobs', '1000001'), ('max_jobs', '2147483647'),
	('lease', '''0'''), ('lease', '''-1 s'''), ('lease', '''1 us'''), ('lease', '''2000 years'''), ('lease', '''178000000 years'''), ('lease', '''-178000000 years'''),
	('worker', ''''''), ('worker', 'repeat(''x'', 256)'), ('worker', 'repeat(''x'', 257)'), ('worker', 'repeat(''é'', 129)'), ('worker', '''ü "''''\ 队'''),
	('id', '0'), ('id', '-1'), ('id', '9223372036854775807'), ('id', '-9223372036854775808'), ('token', '0'), ('token', '-1'), ('token', '9223372036854775807'), ('token', '-9223372036854775808'),
	('retry_in', '''0'''), ('retry_in', '''-1 us'''), ('retry_in', '''2000 years'''), ('privilege', '''all'''), ('privilege', ''''''), ('status', '''running'''),
	('scope', ''''''), ('scope', 'repeat(''x'', 256)'), ('scope', 'repeat(''x'', 257)'), ('ttl', '''0'''), ('ttl', '''-1 s'''), ('ttl', '''2000 years'''), ('ttl', '''1 us'''),
	('function', '0'), ('function', '''pg_sleep(float8)'''), ('workers', '0'), ('workers', '1001'), ('batch', '0'), ('batch', '10001'), ('max_idle', '''0'''), ('max_idle', '''-1 us'''), ('max_idle', '''2000 years''');
SET client_min_messages = error;
\a
SELECT b.arg, left(b.value, 40) AS value, a AS answer, string_agg(proname, ', ' ORDER BY proname) AS functions
FROM bad b JOIN pg_proc ON prokind = 'f' AND b.arg = ANY (proargnames[1:pronargs]) AND pronamespace = 'idemq'::regnamespace
	AND NOT (proname LIKE '%\_many' AND b.arg = 'max_attempts'), LATERAL answer(proname, b.arg, b.value) a
GROUP BY b.ord, 1, 2, 3 ORDER BY b.ord, 3;
\a
RESET client_min_messages;
-- Nothing of all that is left.
SELECT count(*) FROM idemq.jobs;
SELECT count(*) FROM idemq.attempts;
SELECT count(*) FROM idemq.claim('q', 10);
-- delay and run_at exclude each other, even when they agree.
SELECT idemq.enqueue('q', '1', delay => '0', run_at => now());
-- What PostgreSQL itself refuses.
SELECT idemq.enqueue('q', '{"a": ');
SELECT idemq.enqueue('q', '"\u0000"');
SELECT idemq.enqueue('q', '');
SELECT idemq.commit('one', 1);
SELECT idemq.commit(9223372036854775808, 1);
SELECT idemq.enqueue('q', payload => '1', no_such_argument => 1);
SELECT idemq.enqueue('q');
SELECT idemq.purge('q', 'finished');

-- Payloads of every kind come out as they went in.
CREATE TABLE kinds (n serial, payload jsonb);
INSERT INTO kinds (payload) VALUES ('null'), ('true'), ('0'), ('-0.0'), ('1e300'), ('123456789012345678901234567890.123456789'), ('""'), ('"\u00e9\ud83d\ude00"'), ('[]'), ('{}'),
	('[[[[[[]]]]]]'), ('{"": {"": null}}'), ('{"a": [1, {"b": [2, {"c": 3}]}]}'), ('"\\ \" \/ \b \f \n \r \t"'), (to_jsonb(repeat('é', 1000))),
	((SELECT jsonb_object_agg(i, i) FROM generate_series(1, 1000) i)), (('[' || repeat('[', 5000) || repeat(']', 5000) || ']')::jsonb);
INSERT INTO kinds (payload) SELECT to_jsonb((SELECT string_agg(md5(i::text), '') FROM generate_series(1, n) i)) FROM unnest(ARRAY[10, 50, 55, 60, 70, 100, 200, 250, 255, 300, 1000]) n;
SELECT count((idemq.enqueue('q', payload, headers => payload)).id) FROM kinds;
SELECT count(*) AS claimed, count(*) FILTER (WHERE c.payload::text = k.payload::text AND c.headers::text = k.payload::text) AS the_same
FROM (SELECT row_number() OVER () AS n, payload, headers FROM idemq.claim('q', 100)) c JOIN kinds k USING (n);
SELECT count(*) FILTER (WHERE j.payload::text = k.payload::text AND j.headers::text = k.payload::text) AS the_same
FROM (SELECT row_number() OVER (ORDER BY id) AS n, payload, headers FROM idemq.jobs) j JOIN kinds k USING (n);
SELECT count(idemq.checkpoint(j.id, token, j.payload)::text), count(idemq.commit(j.id, token, j.payload)) FROM idemq.jobs j;
SELECT count(*) FILTER (WHERE result = payload AND checkpoint = payload) AS the_same FROM idemq.jobs;
DELETE FROM idemq.jobs;

-- 1 MB of jsonb by enqueue and claim; 100 kB that do not compress, in every column; input_large.sql has more.
CREATE FUNCTION large() RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('data', repeat(md5('x'), 32768)) $$;
SELECT (idemq.enqueue('q', large())).id \gset
SELECT md5(payload::text) = md5('{"data": "' || repeat(md5('x'), 32768) || '"}') AS the_same, token FROM idemq.claim('q') \gset
SELECT :'the_same' AS the_same, idemq.commit(:id, :token, '"done"');
SELECT status, result, length(payload ->> 'data') FROM idemq.job(:id);
CREATE TABLE medium AS SELECT jsonb_build_object('data', string_agg(md5(i::text), '')) AS payload FROM generate_series(1, 3000) i;
SELECT (idemq.enqueue('q', payload, headers => payload)).id FROM medium \gset
SELECT c.payload = m.payload AS payload, c.headers = m.payload AS headers, c.token FROM idemq.claim('q') c, medium m \gset
SELECT :'payload' AS payload, :'headers' AS headers, idemq.checkpoint(:id, :token, payload) FROM medium;
SELECT idemq.release(:id, :token);
SELECT checkpoint = m.payload AS the_same, token FROM idemq.claim('q'), medium m \gset
SELECT :'the_same' AS the_same, idemq.commit(:id, :token, payload) FROM medium;
SELECT status, j.payload = m.payload AS payload, headers = m.payload AS headers, checkpoint = m.payload AS checkpoint, result = m.payload AS result
FROM idemq.job(:id) j, medium m;
SELECT (idemq.enqueue('q', '1', key => 'k')).id \gset
SELECT idemq.commit_once(:id, payload) FROM medium;
SELECT outcome, result = payload AS the_same FROM idemq.enqueue('q', '1', key => 'k'), medium;
SELECT outcome, result = m.payload AS the_same FROM idemq.claim_job(:id), medium m;
SELECT idemq.purge('q');
-- What is too large for a field fails, and leaves the job as it was.
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT token FROM idemq.claim('q') \gset
CREATE FUNCTION fail_at_length(n int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	RETURN idemq.fail((SELECT id FROM idemq.jobs), (SELECT token FROM idemq.jobs), repeat('x', n));
EXCEPTION WHEN program_limit_exceeded THEN
	RETURN 'too large';
END $$;
SELECT fail_at_length(16 * 1024 * 1024 + 1);
SELECT status, last_error, idemq.validate(:id, :token) FROM idemq.job(:id);
SELECT fail_at_length(16 * 1024 * 1024);
SELECT status, length(last_error) FROM idemq.job(:id);
