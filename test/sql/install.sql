-- What CREATE EXTENSION makes: exactly this.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT extname, nspname AS schema, extrelocatable FROM pg_extension JOIN pg_namespace n ON n.oid = extnamespace WHERE extname = 'idemq';

-- Functions: arguments with their names and defaults, and results, a line each.
\a
\t on
SELECT proname || '(' || pg_get_function_arguments(p.oid) || ') -> ' || coalesce(pg_get_function_result(p.oid), 'procedure')
FROM pg_proc p WHERE pronamespace = 'idemq'::regnamespace ORDER BY proname;
\t off
\a
-- All of them volatile, parallel unsafe, not strict, run as the caller, but for those that only look.
SELECT proname, provolatile, proparallel, proisstrict, prosecdef, proconfig FROM pg_proc
WHERE pronamespace = 'idemq'::regnamespace AND (provolatile, proparallel, proisstrict, prosecdef, proconfig) IS DISTINCT FROM ('v', 'u', false, false, NULL)
ORDER BY 1;
-- Nothing is without a comment.
SELECT 'function' AS kind, oid::regprocedure::text AS name FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
UNION ALL SELECT 'table', oid::regclass::text FROM pg_class WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND relkind IN ('r', 'v') AND obj_description(oid, 'pg_class') IS NULL
UNION ALL SELECT 'type', t.oid::regtype::text FROM pg_type t LEFT JOIN pg_class c ON c.oid = typrelid
	WHERE typnamespace = 'idemq'::regnamespace AND typcategory <> 'A' AND coalesce(relkind, 'c') = 'c' AND obj_description(t.oid, 'pg_type') IS NULL
ORDER BY 1, 2;

-- Types, tables, columns.
SELECT enum_range(NULL::idemq.status) AS status;
SELECT enum_range(NULL::idemq.outcome) AS outcome;
SELECT relnamespace::regnamespace AS schema, relname, relkind, relrowsecurity AS rls, relforcerowsecurity AS forced FROM pg_class
WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND relkind NOT IN ('i', 'S') ORDER BY 3, 1, 2;
SELECT attname, format_type(atttypid, atttypmod) AS type, attnotnull AS not_null, pg_get_expr(adbin, adrelid) AS default_value, attidentity AS identity
FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = 'idemq.jobs'::regclass AND attnum > 0 ORDER BY attnum;
SELECT attname, format_type(atttypid, atttypmod) AS type, attnotnull AS not_null FROM pg_attribute
WHERE attrelid = 'idemq.queues'::regclass AND attnum > 0 ORDER BY attnum;
SELECT attname, format_type(atttypid, atttypmod) AS type, attnotnull AS not_null FROM pg_attribute
WHERE attrelid = 'idemq.attempts'::regclass AND attnum > 0 ORDER BY attnum;
-- Indexes of jobs, and no others; keys are compared as bytes.
SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'idemq.jobs'::regclass ORDER BY indexrelid::regclass::text;
SELECT indexrelid::regclass::text AS index, indisunique, indisvalid FROM pg_index JOIN pg_class c ON c.oid = indrelid
WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND indrelid <> 'idemq.jobs'::regclass ORDER BY 1;
SELECT tgrelid::regclass::text, tgname, tgenabled FROM pg_trigger JOIN pg_class c ON c.oid = tgrelid
WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND NOT tgisinternal ORDER BY 1, 2;
SELECT tablename, policyname, cmd, roles, qual, with_check FROM pg_policies WHERE schemaname ~ '^idemq' ORDER BY 1;

-- PUBLIC: the schema, four tables to read under row-level security, functions that check for themselves.
SELECT nspname, acl.privilege_type FROM pg_namespace, aclexplode(nspacl) acl WHERE nspname ~ '^idemq' AND grantee = 0;
SELECT relname, string_agg(acl.privilege_type, ' ') FROM pg_class, aclexplode(relacl) acl
WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND grantee = 0 GROUP BY 1 ORDER BY 1;
SELECT proname FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace
AND NOT has_function_privilege('pg_monitor', oid, 'EXECUTE') ORDER BY 1;
SELECT typname FROM pg_type WHERE typnamespace = 'idemq'::regnamespace AND NOT has_type_privilege('pg_monitor', oid, 'USAGE') ORDER BY 1;
-- Nobody else has anything, but pg_monitor has idemq.recount.
SELECT DISTINCT grantee::regrole FROM (
	SELECT acl.grantee FROM pg_class, aclexplode(relacl) acl WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace)
	UNION ALL SELECT acl.grantee FROM pg_proc, aclexplode(proacl) acl WHERE pronamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace)
	UNION ALL SELECT acl.grantee FROM pg_namespace, aclexplode(nspacl) acl WHERE nspname ~ '^idemq') g
WHERE grantee NOT IN (0, 'postgres'::regrole);
-- pg_dump takes the rows of every table but idemq_internal.ticker, and the positions of the sequences.
SELECT c::regclass FROM pg_extension, unnest(extconfig) c WHERE extname = 'idemq' ORDER BY c::regclass::text;
SELECT c.oid::regclass::text AS not_dumped FROM pg_class c WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND relkind IN ('r', 'S')
AND c.oid NOT IN (SELECT unnest(extconfig) FROM pg_extension) ORDER BY 1;
-- Nothing is made at install.
SELECT (SELECT count(*) FROM idemq.queues) AS queues, (SELECT count(*) FROM idemq.jobs) AS jobs, (SELECT count(*) FROM idemq.attempts) AS attempts,
	(SELECT count(*) FROM idemq_internal.queue_grants) AS grants;
-- Versions are compared by the rules of SemVer: all pairs of a list in ascending order, and versions that are equal.
WITH list (v, n) AS (SELECT * FROM unnest('{0.9.9,1.0.0-0,1.0.0-2,1.0.0-10,1.0.0-alpha,1.0.0-alpha.1,1.0.0-alpha.beta,1.0.0-beta,1.0.0-beta.2,1.0.0-beta.11,
	1.0.0-beta2,1.0.0dev,1.0.0-rc.1,1.0.0,1.0.1-rc.1+build,1.0.1,1.2.0,1.10.0rc1,1.10.0,2.0.0-99999999999999999999,2.0.0-100000000000000000000,2.0.0,10.0.0}'::text[]) WITH ORDINALITY)
SELECT a.v AS a, b.v AS b, idemq_internal.compare_versions(a.v, b.v) FROM list a, list b WHERE sign(idemq_internal.compare_versions(a.v, b.v)) <> sign(a.n - b.n);
SELECT a, b, idemq_internal.compare_versions(a, b) FROM (VALUES ('1.0.0', '1.0.0'), ('1.0.0+7', '1.0.0+8'), ('1.0.0-rc.1+7', '1.0.0-rc.1'), ('1.0', '1.0.0')) AS v(a, b);
-- A function that returns a fixed number of rows declares that number (test/t/maintenance_tasks.pl: task_counts).
SELECT proname, prorows, n FROM (SELECT 'memory_usage' AS name, count(*) AS n FROM idemq_internal.memory_usage()
	UNION ALL SELECT 'server_counts', count(*) FROM idemq_internal.server_counts()) c JOIN pg_proc ON pronamespace = 'idemq_internal'::regnamespace AND proname = name ORDER BY 1;
-- Settings: of the server only.
SELECT name, CASE name WHEN 'idemq.version' THEN 'that of idemq.control' ELSE boot_val END AS boot_val, unit, context, vartype FROM pg_settings WHERE name LIKE 'idemq.%' ORDER BY 1;
SELECT current_setting('idemq.version') = default_version AS same FROM pg_available_extensions WHERE name = 'idemq';
SET idemq.max_queues = 1;
SET idemq.no_such_setting = 1;

-- DROP and CREATE again in this session: with plans that are cached, jobs in flight and a scan start that stands.
SELECT idemq.create_queue('q', lease => '1 h');
CREATE FUNCTION work(OUT enqueued text, OUT again text, OUT taken bigint, OUT outcomes text, OUT failed text, OUT dead bigint) LANGUAGE plpgsql AS $$
BEGIN
	enqueued := (idemq.enqueue('q', '1', key => 'k')).outcome;
	again := (idemq.enqueue('q', '1', key => 'k')).outcome;
	PERFORM idemq.enqueue('q', to_jsonb(g)) FROM generate_series(1, 3) g;
	failed := (SELECT idemq.fail(id, token, 'x', permanent => true) FROM idemq.claim('q'));
	SELECT count(*), string_agg(idemq.commit(id, token)::text, ' ') INTO taken, outcomes FROM idemq.claim('q', 2);
	dead := idemq.redrive('q');
	PERFORM FROM idemq.claim('q', 1);
END $$;
SELECT * FROM work();
PREPARE look AS SELECT status::text, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;
EXECUTE look;
DROP EXTENSION idemq;
SELECT * FROM work();
SELECT count(*) FROM pg_namespace WHERE nspname = 'idemq';
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q', lease => '1 h');
SELECT * FROM work();
EXECUTE look;
SELECT count(*) FROM idemq.claim('q', 10);
-- Rolled back, nothing has happened: leases and scan starts are there.
SELECT (idemq.enqueue('q', '9')).id \gset
SELECT token FROM idemq.claim('q') \gset
BEGIN;
DROP EXTENSION idemq;
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q');
SELECT (idemq.enqueue('q', '1')).outcome;
ROLLBACK;
EXECUTE look;
SELECT idemq.heartbeat(:id, :token), idemq.commit(:id, :token);
SELECT count(*) FROM idemq.claim('q', 10);
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT count(*) FROM idemq.claim('q', 10);

-- In one transaction that commits.
BEGIN;
DROP EXTENSION idemq;
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q');
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 9) g;
COMMIT;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT count(*) FROM idemq.claim('q', 10);

-- Another database is a world of its own, with the same ids.
SELECT current_database() AS here \gset
CREATE DATABASE idemq_elsewhere;
\c idemq_elsewhere
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q', lease => '1 h');
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 3) g;
SELECT array_agg(id ORDER BY id) FROM idemq.claim('q', 10);
SELECT count(*) FROM idemq.claim('q', 10);
\c :here
SELECT idemq.create_queue('elsewhere');
DROP DATABASE idemq_elsewhere;
SELECT outcome, count(*) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.jobs) s, idemq.heartbeat_many(ids, tokens) GROUP BY 1;
SELECT outcome, count(*) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.jobs) s, idemq.commit_many(ids, tokens) GROUP BY 1;

-- A planted schema fails closed; the extension stays in its schema.
DROP EXTENSION idemq;
CREATE SCHEMA idemq;
CREATE EXTENSION idemq;
CREATE EXTENSION idemq SCHEMA idemq;
DROP SCHEMA idemq;
CREATE EXTENSION idemq SCHEMA public;
CREATE EXTENSION idemq;
ALTER EXTENSION idemq SET SCHEMA public;
DROP TABLE idemq.jobs;
DROP FUNCTION idemq.claim;
DROP SCHEMA idemq CASCADE;
SELECT idemq.create_queue('still_here');
-- Without it, its functions are not there.
DROP EXTENSION idemq;
SELECT idemq.claim('q');
