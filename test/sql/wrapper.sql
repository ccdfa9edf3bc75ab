-- The wrapper (src/api/wrapper.c): a function NAME in C, which calls its implementation, NAME_impl of schema idemq_internal.
\set VERBOSITY sqlstate
\pset null -
-- A schema that is planted under the name makes the install fail, as a whole.
CREATE SCHEMA idemq_internal;
CREATE EXTENSION idemq;
SELECT count(*) FROM pg_namespace WHERE nspname = 'idemq';
DROP SCHEMA idemq_internal;
CREATE EXTENSION idemq;
ALTER EXTENSION idemq SET SCHEMA public;

-- ---- Only the owner calls what is in schema idemq_internal, and the owner, even a superuser, only through a wrapper
SELECT DISTINCT n.nspowner = e.extowner AS owns_schema, n.nspacl, p.proowner = e.extowner AS owns, p.proacl
	FROM pg_namespace n JOIN pg_extension e ON e.extname = 'idemq' JOIN pg_proc p ON p.pronamespace = n.oid
	WHERE nspname = 'idemq_internal' AND (proname ~ '_impl$' OR prosrc ~ '^idemq_sql_internal_' OR probin IS NULL);
CREATE FUNCTION sqlstate_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN '00000';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
SELECT count(*) > 10 AS many, string_agg(name, ' ') FILTER (WHERE state <> '55000') AS not_refused
	FROM (SELECT p.proname AS name, sqlstate_of(format('SELECT %s(%s)', p.oid::regproc,
			(SELECT string_agg(format('NULL::%s', replace(format_type(t, NULL), '"any"', 'text')), ', ') FROM unnest(p.proargtypes) t))) AS state
		FROM pg_proc p WHERE pronamespace = 'idemq_internal'::regnamespace AND prosrc ~ '^idemq_sql_internal_') x;
CREATE ROLE regress_wrap_caller;
CREATE ROLE regress_wrap_definer;
SET ROLE regress_wrap_caller;
SELECT idemq_internal.caller();
RESET ROLE;

-- ---- Each wrapper has an implementation with its arguments and result; both are called with NULL
CREATE VIEW wrappers AS SELECT * FROM pg_proc WHERE pronamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND prosrc ~ '^idemq_sql_wrapper';
SELECT count(*) > 5 AS some FROM wrappers;
SELECT f.oid::regprocedure AS lonely FROM wrappers f LEFT JOIN pg_proc b ON b.pronamespace = 'idemq_internal'::regnamespace AND b.proname = f.proname || '_impl'
	AND b.proargtypes = f.proargtypes
	WHERE (b.prorettype, b.proretset, b.proisstrict, b.prosecdef, b.prokind, f.proisstrict, f.prokind) IS DISTINCT FROM (f.prorettype, f.proretset, false, false, 'f', false, 'f')
	OR (b.proallargtypes, b.proargmodes, b.proargnames) IS DISTINCT FROM (f.proallargtypes, f.proargmodes, f.proargnames);
-- A wrapper that only looks may be called in a read-only transaction; a STABLE wrapper has a STABLE implementation.
SELECT f.oid::regprocedure AS writes FROM wrappers f JOIN pg_proc b ON b.pronamespace = 'idemq_internal'::regnamespace AND b.proname = f.proname || '_impl'
	WHERE f.provolatile <> 'v' AND b.provolatile = 'v';

-- ---- What it is inside
CREATE FUNCTION idemq.looks() RETURNS text LANGUAGE c AS '$libdir/idemq', 'idemq_sql_wrapper';
CREATE FUNCTION idemq_internal.looks_impl() RETURNS text STABLE LANGUAGE sql AS $$
	SELECT format('%s for %s: %s, %s, seqscan %s, jit %s', current_user, idemq_internal.caller()::regrole, current_setting('search_path'),
		current_setting('plan_cache_mode'), current_setting('enable_seqscan'), current_setting('jit')) $$;
CREATE FUNCTION outside() RETURNS text LANGUAGE sql AS $$
	SELECT format('%s, %s, seqscan %s, jit %s', current_user, current_setting('search_path'), current_setting('enable_seqscan'), current_setting('jit')) $$;
CREATE FUNCTION defined() RETURNS text SECURITY DEFINER LANGUAGE sql AS 'SELECT idemq.looks()';
ALTER FUNCTION defined() OWNER TO regress_wrap_definer;
GRANT USAGE ON SCHEMA idemq TO regress_wrap_caller, regress_wrap_definer;
SET jit = on;
SELECT idemq.looks();
SET ROLE regress_wrap_caller;
SELECT idemq.looks(), defined(), outside();
BEGIN READ ONLY;
SELECT idemq.looks();
SELECT idemq.create_topic('a');
ROLLBACK;
RESET ROLE;
BEGIN READ ONLY;
SELECT idemq.create_topic('a');
ROLLBACK;

-- ---- Errors
CREATE TABLE secrets (name text PRIMARY KEY, number int CHECK (number > 0));
INSERT INTO secrets VALUES ('a secret', 1);
REVOKE ALL ON secrets FROM PUBLIC;
CREATE FUNCTION idemq.acts(what text) RETURNS text LANGUAGE c AS '$libdir/idemq', 'idemq_sql_wrapper';
CREATE FUNCTION idemq_internal.acts_impl(what text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	IF what = 'ours' THEN
		RAISE EXCEPTION 'of ours' USING ERRCODE = 'IQ001', DETAIL = 'what we say', HINT = 'what to do';
	ELSIF what = 'unique' THEN
		INSERT INTO public.secrets VALUES ('a secret', 1);
	ELSIF what = 'check' THEN
		UPDATE public.secrets SET number = 0;
	ELSIF what = 'syntax' THEN
		EXECUTE 'SELEC 1';
	ELSIF what = 'temporary' THEN
		CREATE TEMPORARY TABLE mine ();
	ELSIF what = 'caught' THEN
		BEGIN
			PERFORM 1 / 0;
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	ELSIF what = 'caught as the caller' THEN
		BEGIN
			PERFORM FROM idemq_internal.as_caller('SELECT 1 / 0') AS (n int);
		EXCEPTION WHEN division_by_zero THEN
			NULL;
		END;
	ELSIF what = 'types' THEN
		PERFORM FROM idemq_internal.latest('SELECT 1') AS (n text);
	ELSIF what = 'as the caller' THEN
		SELECT a INTO answer FROM idemq_internal.as_caller('SELECT pg_catalog.concat(current_user, pg_catalog.chr(32), pg_catalog.current_setting(''search_path''))') AS (a text);
		RETURN answer;
	ELSIF what = 'unique to the caller' THEN
		PERFORM FROM idemq_internal.as_caller('WITH i AS (INSERT INTO public.secrets VALUES (''a secret'', 1)) SELECT 1') AS (n int);
	ELSIF what = 'as a role' THEN
		SELECT a INTO answer FROM idemq_internal.as_role('regress_wrap_definer'::regrole, 'SELECT pg_catalog.concat(current_user, $1, pg_catalog.current_setting(''search_path''))', ' by ') AS (a text);
	ELSIF what = 'nested' THEN
		SELECT a INTO answer FROM idemq_internal.as_caller('SELECT idemq.looks()') AS (a text);
	ELSIF what = 'away' THEN
		SELECT a INTO answer FROM idemq_internal.as_caller('SELECT public.strays()') AS (a text);
	END IF;
	RETURN format('%s %s for %s', coalesce(answer, what), current_user, idemq_internal.caller()::regrole);
END $$;
-- What a handler learns, and that all is as it was: the role, the settings, the frame.
CREATE FUNCTION told(what text) RETURNS TABLE (state text, message text, detail text, hint text, shows_inside boolean) LANGUAGE plpgsql AS $$
DECLARE
	before text := outside();
	context text;
BEGIN
	state := '00000';
	message := idemq.acts(what);
	RETURN NEXT;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT,
		context = PG_EXCEPTION_CONTEXT;
	shows_inside := context !~ 'told\(text\)' OR context ~ 'idemq_internal|acts(_impl)?\(text\)';
	IF outside() <> before THEN RAISE 'was %, is %', before, outside(); END IF;
	IF sqlstate_of('SELECT idemq_internal.caller()') NOT IN ('55000', '42501') THEN RAISE 'a frame is open'; END IF;
	-- Again, in the handler.
	IF message <> (SELECT t.message FROM again(what) t) THEN RAISE 'not the same again'; END IF;
	RETURN NEXT;
END $$;
CREATE FUNCTION again(what text) RETURNS TABLE (message text) LANGUAGE plpgsql AS $$
BEGIN
	message := idemq.acts(what);
	RETURN NEXT;
EXCEPTION WHEN OTHERS THEN
	message := SQLERRM;
	RETURN NEXT;
END $$;
CREATE FUNCTION strays() RETURNS text LANGUAGE sql AS 'SELECT public.sqlstate_of(''SELECT idemq_internal.caller()'')';
\x
SELECT w, t.* FROM unnest('{ours,unique,check,syntax,temporary,caught,caught as the caller,types,as the caller,as a role,nested,away}'::text[]) w, told(w) t;
GRANT SELECT, INSERT ON secrets TO regress_wrap_caller;
SET ROLE regress_wrap_caller;
SELECT w, t.* FROM unnest('{ours,unique,unique to the caller,temporary,caught as the caller,as the caller,as a role,nested}'::text[]) w, told(w) t;
RESET ROLE;
-- A wrapper that may write idemq.jobs, where a DBA may defer triggers.
CREATE OR REPLACE FUNCTION idemq.acts(what text) RETURNS text LANGUAGE c AS '$libdir/idemq', 'idemq_sql_wrapper_jobs';
SELECT w, t.* FROM unnest('{temporary,away}'::text[]) w, told(w) t;
\x

-- ---- Sets, by SQL and by PL/pgSQL, all at once; rows; void is no NULL
CREATE FUNCTION idemq.some(n int) RETURNS TABLE (a int, b text) LANGUAGE c AS '$libdir/idemq', 'idemq_sql_wrapper';
CREATE FUNCTION idemq_internal.some_impl(n int) RETURNS TABLE (a int, b text) STABLE LANGUAGE sql AS $$
	SELECT g, current_user || ' ' || idemq_internal.caller()::regrole FROM generate_series(1, n) g $$;
SELECT * FROM idemq.some(3) LIMIT 2;
SELECT idemq.some(2), outside();
SELECT (SELECT count(*) FROM idemq.some(g)) FROM generate_series(0, 2) g;
CREATE OR REPLACE FUNCTION idemq_internal.some_impl(n int) RETURNS TABLE (a int, b text) STABLE LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY SELECT g, current_user || ' ' || idemq_internal.caller()::regrole FROM generate_series(1, n) g;
END $$;
SELECT * FROM idemq.some(3) LIMIT 2;
SELECT idemq.some(2), outside();
CREATE FUNCTION idemq.nothing(OUT a int, OUT b text) LANGUAGE c AS '$libdir/idemq', 'idemq_sql_wrapper';
CREATE FUNCTION idemq_internal.nothing_impl(OUT a int, OUT b text) STABLE LANGUAGE sql AS $$ SELECT idemq_internal.caller()::int * 0 + 7, 'x'::text $$;
SELECT * FROM idemq.nothing();
CREATE FUNCTION idemq.vain() RETURNS void LANGUAGE c AS '$libdir/idemq', 'idemq_sql_wrapper';
CREATE FUNCTION idemq_internal.vain_impl() RETURNS void STABLE LANGUAGE sql AS 'SELECT idemq_internal.given(''x'', 1)';
SELECT idemq.vain() IS NULL AS is_null;

-- ---- A call that failed, called again with the state of the first: a domain's check survives an error
CREATE TYPE pair AS (a text, b int);
CREATE DOMAIN plpgsql_behind AS pair CHECK (CASE WHEN (value).a IS NULL THEN true ELSE idemq.unschedule((value).a) IS NOT NULL END);
DO $$
DECLARE
	r plpgsql_behind;
	said text := '';
BEGIN
	r.b := 1;
	FOR i IN 1..3 LOOP
		BEGIN
			r.a := repeat('x', 2000);
		EXCEPTION WHEN OTHERS THEN said := said || sqlstate || ' ';
		END;
	END LOOP;
	PERFORM set_config('wrapper.said', said, false);
END $$;
SELECT current_setting('wrapper.said') AS said;

-- ---- What a session has set does not reach the SQL of an implementation
DO $$ BEGIN
	IF current_setting('server_version_num')::int < 190000 THEN -- always on since
		SET standard_conforming_strings = off;
	END IF;
END $$;
SET quote_all_identifiers = on;
SELECT idemq.create_queue('words') > 0 AS created;
SELECT count(*) FROM idemq.enqueue('words', '1') first,
	LATERAL idemq.enqueue_graph(jsonb_build_array(jsonb_build_object('name', 'x', 'queue', 'words', 'payload', 1, 'depends_on', jsonb_build_array(first.id))));
RESET standard_conforming_strings;
SELECT * FROM idemq.check();
RESET quote_all_identifiers;
SELECT idemq.drop_queue('words', force => true) IS NOT NULL AS dropped;

-- ---- No implementation runs in a parallel query, into which a wrapper that says PARALLEL SAFE can take it
CREATE FUNCTION safe_they_say(oid) RETURNS boolean PARALLEL SAFE COST 100000 LANGUAGE plpgsql AS 'BEGIN RETURN idemq.looks() IS NULL; END';
CREATE FUNCTION acts_they_say(oid) RETURNS boolean PARALLEL SAFE COST 100000 LANGUAGE plpgsql AS 'BEGIN RETURN idemq.acts(''x'') IS NULL; END';
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
SELECT count(*) FROM pg_class WHERE safe_they_say(oid);
SELECT count(*) FROM pg_class WHERE acts_they_say(oid);
SET max_parallel_workers_per_gather = 0;
SELECT count(*) FROM pg_class WHERE safe_they_say(oid);
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET min_parallel_table_scan_size;
RESET max_parallel_workers_per_gather;
DROP FUNCTION safe_they_say, acts_they_say;

-- ---- A trigger's function is for idemq's own trigger
CREATE TABLE strange (queue_id int);
CREATE TRIGGER t AFTER DELETE ON strange FOR EACH ROW EXECUTE FUNCTION idemq_internal.queue_gone();
INSERT INTO strange VALUES (1);
DELETE FROM strange;
SELECT idemq_internal.queue_gone();

-- ---- Without an implementation
CREATE FUNCTION idemq.wrapper_alone() RETURNS int LANGUAGE c AS '$libdir/idemq', 'idemq_sql_wrapper';
SELECT idemq.wrapper_alone();
SELECT idemq.looks();
DROP FUNCTION idemq.looks, idemq.acts, idemq.some, idemq.nothing, idemq.vain, idemq.wrapper_alone,
	idemq_internal.looks_impl, idemq_internal.acts_impl, idemq_internal.some_impl, idemq_internal.nothing_impl, idemq_internal.vain_impl;
DROP VIEW wrappers;
DROP DOMAIN plpgsql_behind;
DROP TYPE pair;
DROP TABLE strange;
DROP EXTENSION idemq;
SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'idemq%';
DROP OWNED BY regress_wrap_caller, regress_wrap_definer CASCADE;
DROP ROLE regress_wrap_caller, regress_wrap_definer;
