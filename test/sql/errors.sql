-- idemq.errors: what goes wrong, grouped; error_pattern; who sees it; redrive by error and ids.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -

-- What differs from job to job is a question mark.
SELECT message, idemq_internal.error_pattern(message) AS pattern FROM (VALUES
	('division by zero'),
	('order 4711 not found'),
	('order -7 and -8.5e-3 of 1,000'),
	('took 30s, 12.5 ms, 1e10 or 0xdeadBEEF'),
	('at 2026-11-22T10:32:05.123+01 from 10.0.0.7:5432'),
	('key (id)=(12) already exists in "orders_12_pkey"'),
	('no such file: ''/tmp/a b/''''c''''.txt'''),
	('the worker''s session can''t go on: ''x'''),
	('`ls -l` says "it''s ""gone"""'),
	('job 6f1c2a9e-3b1d-4e55-9d3f-00aa11bb22cc of 6F1C2A9E-3B1D-4E55-9D3F-00AA11BB22CC'),
	('host db17, part_2026_11, utf8, sha256'),
	('commit 9fceb02d and request req_8Gk29xPqLm40Zt7w'),
	('an open "quote and 5'),
	('HTTP 503' || E'\n\t  from  ' || 'upstream 2  '),
	('5''x'' and ?''y'''),
	('Größe 3 überschritten'),
	('a-5 b--5 (-5) x=-5'),
	(''), ('?'), ('1'), ('''''')) v(message);
-- A pattern is its own pattern; NULL has none.
SELECT count(*) AS all, count(*) FILTER (WHERE idemq_internal.error_pattern(p) = p) AS same FROM (
	SELECT idemq_internal.error_pattern(string_agg(substr(E' ''"`?-+.:eEx_T0159aZü\n', 1 + (get_byte(decode(md5(g || '/' || n), 'hex'), 3) % 24), 1), '')) AS p
	FROM generate_series(1, 2000) g, generate_series(1, 20) n GROUP BY g) s;
SELECT idemq_internal.error_pattern(NULL);
-- A long message is cut, in no character.
SELECT length(idemq_internal.error_pattern(repeat('a', 1999) || 'ü')), length(idemq_internal.error_pattern(repeat('a ', 1000000)));
-- SQLSTATEs: of details first, then as drivers write them.
SELECT details, error, idemq_internal.error_sqlstate(details, error) FROM (VALUES
	('{"sqlstate": "23505"}'::jsonb, 'SQLSTATE 22012'),
	('{"sqlstate": "short"}', 'ERROR: division by zero (SQLSTATE 22012)'),
	('{"sqlstate": 23505}', 'SQLSTATE[HY000]: General error'),
	('["sqlstate"]', 'SQLSTATE: 40001'),
	(NULL, 'SQLSTATE 220123'), (NULL, 'SQLSTATE'), (NULL, 'SQLSTATE SQLSTATE=57014'), (NULL, NULL), ('{"sqlstate": "57014"}', NULL), ('"x"', 'SQLSTATE 2201')) v(details, error);
-- The same on every server.
SELECT idemq_internal.error_fingerprint(NULL, 'order 1'), idemq_internal.error_fingerprint(NULL, 'order 2') = idemq_internal.error_fingerprint(NULL, 'order ?') AS same,
	idemq_internal.error_fingerprint('22012', 'order 1') <> idemq_internal.error_fingerprint(NULL, 'order 1') AS other_state, idemq_internal.error_fingerprint(NULL, NULL) = idemq_internal.error_fingerprint('', '') AS none;

-- 300 jobs of three causes, one that goes on, one that is running, one whose lease ended.
SELECT idemq.create_queue('mail', max_attempts => 1, lease => '1 h'), idemq.create_queue('pay', max_attempts => 5, lease => '1 h') \gset
CREATE TABLE cause (n int, error text, details jsonb);
INSERT INTO cause SELECT g, CASE g % 3 WHEN 0 THEN 'order ' || g || ' not found' WHEN 1 THEN 'host ''mx' || g || ''' timed out after ' || g || ' ms'
	ELSE 'duplicate key ' || gen_random_uuid() END, CASE WHEN g % 3 = 2 THEN '{"sqlstate": "23505"}'::jsonb END FROM generate_series(1, 300) g;
SELECT count(idemq.enqueue('mail', to_jsonb(n))) FROM (SELECT n FROM cause ORDER BY n) c;
SELECT count(idemq.fail(c.id, c.token, error, details => cause.details)) FROM idemq.claim('mail', 300) c JOIN cause ON n = c.payload::int;
SELECT queue, sqlstate, error, jobs, dead, first_seen <= last_seen AS ordered, last_seen <= clock_timestamp() AS past,
	(SELECT status FROM idemq.job(example_id)) AS example FROM idemq.errors ORDER BY error;
SELECT count(DISTINCT fingerprint), bool_and(fingerprint ~ '^[0-9a-f]{16}$') AS hex,
	bool_and(fingerprint = idemq_internal.error_fingerprint(sqlstate, error)) AS of_pattern FROM idemq.errors;
SELECT count(idemq.enqueue('pay', to_jsonb(g))) FROM generate_series(1, 4) g;
SELECT payload, idemq.fail(id, token, 'refused ' || id, retry_in => '0', details => '{"sqlstate": "P0001"}') FROM idemq.claim('pay', 4);
-- One goes on and is worked at; one is done; one loses its lease.
SELECT attempt, payload FROM idemq.claim('pay', 1) \gset going_
SELECT idemq.commit(id, token) FROM idemq.claim('pay', 1);
SELECT idemq.heartbeat(id, token, '1 ms') FROM idemq.claim('pay', 1); -- meant to expire
SELECT pg_sleep(0.01);
SELECT idemq.reap('pay');
SELECT error, sqlstate, jobs, dead FROM idemq.errors WHERE queue = 'pay' ORDER BY error;
-- A job that failed and was committed, or redriven with no error since, is not among them.
SELECT status, last_error IS NOT NULL AS error, attempt FROM idemq.jobs WHERE queue_id = idemq.queue_id('pay') ORDER BY id;
-- Its last error can still be found, with the same fingerprint.
SELECT e.status, e.sqlstate, e.error, e.failed_at <= clock_timestamp() AS past, e.fingerprint IN (SELECT fingerprint FROM idemq.errors) AS known
	FROM idemq.job_errors e WHERE queue = 'pay' ORDER BY job_id;

-- redrive: by fingerprint, by LIKE of the message or of its pattern, by ids, by several, and of no more than so many.
SELECT fingerprint FROM idemq.errors WHERE error LIKE 'order%' \gset
SELECT idemq.redrive('mail', error => :'fingerprint', max_jobs => 10);
SELECT idemq.redrive('mail', error => 'order 33 not found');
SELECT idemq.redrive('mail', error => 'order 33 not found');
SELECT idemq.redrive('mail', error => 'order ? not found', max_jobs => 5);
SELECT idemq.redrive('mail', error => 'duplicate key %', ids => (SELECT array_agg(id) FROM idemq.jobs WHERE last_error LIKE 'duplicate%' AND id % 2 = 0));
SELECT max(id) AS one FROM idemq.jobs WHERE status = 'dead' \gset
SELECT idemq.redrive('mail', ids => ARRAY[:one, :one, -1, 0, 9223372036854775807]), idemq.redrive('mail', ids => '{}'), idemq.redrive('pay', ids => ARRAY[:one]);
SELECT idemq.redrive('mail', error => '%no such%'), idemq.redrive('mail', error => ''), idemq.redrive('mail', error => '0123456789abcdef');
SELECT error, jobs, dead FROM idemq.errors WHERE queue = 'mail' ORDER BY error;
SELECT status, attempt, count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('mail') GROUP BY 1, 2 ORDER BY 1, 2;
SELECT idemq.redrive('mail', 3), idemq.redrive('mail', NULL, NULL, NULL);
SELECT count(*) FROM idemq.errors WHERE queue = 'mail';
-- Without an error too: by its fingerprint.
SELECT idemq.fail(id, token, NULL) FROM idemq.claim('mail', 1);
SELECT error, jobs, dead FROM idemq.errors WHERE queue = 'mail';
SELECT idemq.redrive('mail', error => fingerprint) FROM idemq.errors WHERE queue = 'mail';
SELECT idemq.redrive('mail', ids => '{NULL}');
SELECT idemq.redrive('mail', ids => '{{1}}');
SELECT idemq.redrive('mail', 0, error => 'x');
SELECT idemq.fail(id, token, 'xy') FROM idemq.claim('mail', 1);
SELECT idemq.redrive('mail', error => 'x\');
SELECT action, queue, jobs, details FROM idemq.audit WHERE action = 'redrive' ORDER BY id;
SELECT * FROM idemq.check();

-- Who sees them: as the jobs.
CREATE ROLE idemq_worker; CREATE ROLE idemq_producer; CREATE ROLE idemq_watcher IN ROLE pg_monitor;
GRANT USAGE ON SCHEMA idemq TO idemq_worker, idemq_producer;
SELECT idemq.grant_queue('pay', 'idemq_worker', 'claim'), idemq.grant_queue('pay', 'idemq_producer', 'enqueue');
SET ROLE idemq_worker;
SELECT DISTINCT queue FROM idemq.errors;
SELECT DISTINCT queue FROM idemq.job_errors;
-- A function of the role's own sees nothing of other queues' rows.
RESET ROLE;
CREATE FUNCTION spy(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$;
SET ROLE idemq_worker;
\set VERBOSITY terse
SELECT count(*) FROM idemq.errors WHERE spy(queue);
SELECT count(*) FROM idemq.job_errors WHERE spy(queue);
\set VERBOSITY sqlstate
SELECT idemq.redrive('pay', error => '%');
SET ROLE idemq_producer;
SELECT count(*) FROM idemq.errors;
SELECT count(*) FROM idemq.job_errors;
SET ROLE idemq_watcher;
SELECT count(*) FROM idemq.errors;
RESET ROLE;
SELECT idemq.drop_queue('mail', true), idemq.drop_queue('pay', true);
DROP TABLE cause;
DROP FUNCTION spy;
DROP EXTENSION idemq CASCADE;
DROP ROLE idemq_worker, idemq_producer, idemq_watcher;
