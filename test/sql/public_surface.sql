-- Schema idemq is what users call and read: as a role that may not use schema idemq_internal, every function and every
-- table and view does its work, or says what the caller did wrong.  The lists come from the catalog.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate

-- ---- What is public, and what is not

SELECT count(*) <= 114 AS few FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace;
-- Nobody but the owner may use the schema, and nothing in it runs with another's rights.
SELECT grantee::regrole FROM pg_namespace, aclexplode(nspacl) WHERE nspname = 'idemq_internal' AND grantee <> nspowner;
SELECT oid::regprocedure AS definer FROM pg_proc WHERE pronamespace = 'idemq_internal'::regnamespace AND prosecdef;
SELECT c.oid::regclass AS granted FROM pg_class c, aclexplode(relacl) WHERE relnamespace = 'idemq_internal'::regnamespace AND grantee <> relowner;
-- What nobody but the owner may read is no part of schema idemq.
SELECT oid::regclass AS unread FROM pg_class WHERE relnamespace = 'idemq'::regnamespace AND relkind IN ('r', 'v')
	AND NOT EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee <> relowner AND privilege_type = 'SELECT');
-- A function there that others may execute is one that a policy or a view calls.
SELECT p.oid::regprocedure AS uncalled FROM pg_proc p WHERE pronamespace = 'idemq_internal'::regnamespace
	AND EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee <> proowner)
	AND NOT EXISTS (SELECT FROM pg_depend WHERE refclassid = 'pg_proc'::regclass AND refobjid = p.oid
		AND classid IN ('pg_policy'::regclass, 'pg_rewrite'::regclass));
-- A body that is a string is read when it is called, as whoever calls: it can name nothing there.
SELECT p.oid::regprocedure AS names_it FROM pg_proc p JOIN pg_language l ON l.oid = prolang AND lanname <> 'c'
	WHERE prosqlbody IS NULL AND NOT prosecdef AND (pronamespace = 'idemq'::regnamespace AND prosrc ~ 'idemq_internal'
		OR pronamespace = 'idemq_internal'::regnamespace AND EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee <> proowner));

-- ---- Something of everything, so that each policy and view has rows to look at

CREATE ROLE regress_surface_user;    -- USAGE of idemq, and what 90_grants.sql gives
CREATE ROLE regress_surface_tenant;  -- a privilege on a queue as well
CREATE ROLE regress_surface_all;     -- every function, which a DBA may grant, and what pg_monitor may
GRANT USAGE ON SCHEMA idemq TO regress_surface_user, regress_surface_all;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA idemq TO regress_surface_all;
GRANT SELECT ON ALL TABLES IN SCHEMA idemq TO regress_surface_all;
GRANT pg_monitor TO regress_surface_all;
CREATE FUNCTION surface_handler(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS '';
SELECT idemq.create_queue('q', lease => '1 h') > 0 AS made;
SELECT idemq.grant_queue('q', 'regress_surface_tenant', 'admin'), idemq.grant_queue('q', 'regress_surface_all', 'admin');
SELECT idemq.create_topic('space'), idemq.grant_topic('space', 'regress_surface_tenant', 'admin'), idemq.bind_topic('space.#', 'q');
CALL idemq.tick();
SELECT idemq.schedule('s', '0 0 1 1 *', 'q', '1') > now() AS to_come;
SELECT idemq.set_handler('q', 'surface_handler'), idemq.drop_handler('q');
SELECT outcome FROM idemq.enqueue_sequenced('q', 'p', 1, '1');
SELECT idemq.once('s', 'k'), outcome FROM idemq.send_event('q', 'e');
SELECT id AS parent FROM idemq.enqueue('q', '1', key => 'k') \gset
SELECT id AS child, outcome FROM idemq.enqueue('q', '1', depends_on => ARRAY[:parent]) \gset
SELECT id, token FROM idemq.claim_job(:parent, worker => 'w') \gset
CALL idemq.begin_step(:id, :token, 'step', '1', '1 h') \gset step_
SELECT idemq.fail(:id, :token, 'order 1 SQLSTATE 22012', '1 h');
SELECT idemq.report_worker('7b0c7f6a-1111-4222-8333-444455556666', 'w', '{q}');

-- ---- Every function, with its arguments by their name or type; every table, view and sequence, with all columns

CREATE FUNCTION surface_value(argument text, type text) RETURNS text STABLE LANGUAGE sql AS $$
	SELECT coalesce(
		CASE argument WHEN 'queue' THEN '''q''' WHEN 'queues' THEN '''{q}''' WHEN 'name' THEN '''q''' WHEN 'id' THEN (SELECT min(id) FROM idemq.jobs)::text
			WHEN 'member' THEN (SELECT min(id) FROM idemq.jobs)::text WHEN 'ids' THEN format('ARRAY[%s]', (SELECT min(id) FROM idemq.jobs))
			WHEN 'tokens' THEN '''{1}''' WHEN 'cron' THEN '''0 0 1 1 *''' WHEN 'topic' THEN '''space''' WHEN 'pattern' THEN '''space.#'''
			WHEN 'key' THEN '''k''' WHEN 'privilege' THEN '''claim''' WHEN 'function' THEN '''surface_handler''' WHEN 'jobs'
			THEN '''[{"name": "a", "queue": "q", "payload": 1}]''' WHEN 'payloads' THEN '''{1}''' WHEN 'counts' THEN '''{10,1}''' END,
		-- The time is meant to expire.
		CASE type WHEN 'text' THEN '''x''' WHEN 'jsonb' THEN '''{"done": 1, "of": 2}''' WHEN 'interval' THEN '''1 ms'''
			WHEN 'timestamp with time zone' THEN 'now()' WHEN 'boolean' THEN 'true' WHEN 'uuid' THEN 'gen_random_uuid()'
			WHEN 'regrole' THEN '''regress_surface_user''' WHEN 'double precision' THEN '0.5' WHEN 'integer' THEN '1' WHEN 'bigint' THEN '1' END,
		format('NULL::%s', type))
$$;
CREATE FUNCTION surface_arguments(function oid) RETURNS text STABLE LANGUAGE sql AS $$
	SELECT coalesce(string_agg(concat(quote_ident(a.name) || ' => ', surface_value(a.name, format_type(a.type, NULL))), ', ' ORDER BY n), '')
	FROM pg_proc p, unnest(p.proargtypes::oid[], p.proargnames[1:p.pronargs]) WITH ORDINALITY a (type, name, n)
	WHERE p.oid = function AND (n <= p.pronargs - p.pronargdefaults OR a.name = 'timeout')
$$;
-- What a call raises; it is undone.
CREATE FUNCTION surface_says(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RAISE SQLSTATE 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
	RETURN '00000';
WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
GRANT EXECUTE ON FUNCTION surface_handler, surface_says TO PUBLIC;
CREATE TABLE surface AS
	SELECT 'function' AS kind, p.oid::regprocedure::text AS name, p.oid AS function, NULL::oid AS relation,
		CASE prokind WHEN 'a' THEN format('SELECT %s(NULL::%s)', p.oid::regproc, format_type(proargtypes[0], NULL))
			ELSE format('SELECT count(x::text) FROM %s(%s) x', p.oid::regproc, surface_arguments(p.oid)) END AS call
	FROM pg_proc p WHERE pronamespace = 'idemq'::regnamespace AND prokind <> 'p' AND prorettype <> 'trigger'::regtype
	UNION ALL
	SELECT 'procedure', p.oid::regproc::text, p.oid, NULL, format('CALL %s(%s)', p.oid::regproc, surface_arguments(p.oid))
	FROM pg_proc p WHERE pronamespace = 'idemq'::regnamespace AND prokind = 'p'
	UNION ALL
	SELECT 'relation', c.oid::regclass::text, NULL, c.oid, format('SELECT count(x::text) FROM %s x', c.oid::regclass)
	FROM pg_class c WHERE relnamespace = 'idemq'::regnamespace AND relkind IN ('r', 'v', 'S');
GRANT SELECT ON surface TO PUBLIC;
SELECT count(*) FILTER (WHERE kind = 'function') > 80 AS functions, count(*) FILTER (WHERE kind = 'relation') > 20 AS relations FROM surface;

-- Not as it should be: an error of the server's, something that is not there, or a right that was not withheld on purpose.
-- idemq itself denies a queue, a topic, a schedule or a handler.
CREATE FUNCTION surface_wrong() RETURNS TABLE (who name, what text, said text) LANGUAGE sql AS $$
	SELECT current_user, s.name, a.said FROM surface s, LATERAL (SELECT surface_says(s.call)) a (said)
	WHERE a.said ~ 'idemq_internal|^(XX|42883|42P01|3F|26|21|42601|42804)'
		OR a.said ~ '^42501 permission denied for (schema|type|sequence|database)' AND s.name !~ '_seq$|ids_since'
		OR a.said ~ '^42501 permission denied for (function|procedure|table|view)'
			AND (has_function_privilege(s.function, 'EXECUTE') OR has_table_privilege(s.relation, 'SELECT'))
	ORDER BY 2
$$;
GRANT EXECUTE ON FUNCTION surface_wrong TO PUBLIC;
SET client_min_messages = error;
SET ROLE regress_surface_user;
SELECT * FROM surface_wrong();
SET ROLE regress_surface_tenant;
SELECT * FROM surface_wrong();
SET ROLE regress_surface_all;
SELECT * FROM surface_wrong();
-- Most of them do their work, and none is refused by PostgreSQL.
SELECT count(*) FILTER (WHERE said = '00000') > 70 AS work, count(*) FILTER (WHERE said ~ '^42501 permission denied for (function|table|view)') AS refused
	FROM surface s, LATERAL (SELECT surface_says(s.call)) a (said) WHERE s.kind <> 'procedure';
RESET ROLE;
RESET client_min_messages;
-- Would it be seen?
CREATE FUNCTION idemq.surface_names() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM idemq_internal.seen';
INSERT INTO surface VALUES ('function', 'surface_names', 'idemq.surface_names'::regproc, NULL, 'SELECT idemq.surface_names()');
SET ROLE regress_surface_user;
SELECT * FROM surface_wrong();
RESET ROLE;
DROP FUNCTION idemq.surface_names;

-- ---- Every procedure, at the top level: some end transactions

\t on
SELECT call FROM surface WHERE kind = 'procedure' ORDER BY name;
\set ECHO queries
\o /dev/null
SET ROLE regress_surface_user;
SELECT call FROM surface WHERE kind = 'procedure' ORDER BY name \gexec
SET ROLE regress_surface_all;
SELECT call FROM surface WHERE kind = 'procedure' ORDER BY name \gexec
RESET ROLE;
\o
\set ECHO all
\t off

-- ---- What is inside cannot be named, though some of it may be executed

SET ROLE regress_surface_all;
SELECT idemq_internal.may_see(1);
SELECT count(*) FROM idemq_internal.schedule_entries;
RESET ROLE;
DROP TABLE surface;
DROP FUNCTION surface_wrong, surface_says, surface_arguments, surface_value, surface_handler;
DROP EXTENSION idemq;
DROP OWNED BY regress_surface_user, regress_surface_tenant, regress_surface_all;
DROP ROLE regress_surface_user, regress_surface_tenant, regress_surface_all;
