-- Handlers: what set_handler takes, from whom, and what is to be seen of one.  (That they run: TAP test handlers.)
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q'), idemq.create_queue('other');
CREATE ROLE regress_h LOGIN;
CREATE ROLE regress_other LOGIN;
CREATE ROLE regress_admin LOGIN;
CREATE FUNCTION regress_f(payload jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp AS 'SELECT';
CREATE FUNCTION regress_bare(jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION regress_int(jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION regress_set(jsonb) RETURNS SETOF jsonb LANGUAGE sql AS 'SELECT $1';
CREATE FUNCTION regress_text(text) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE FUNCTION regress_two(jsonb, int) RETURNS void LANGUAGE sql AS 'SELECT';
CREATE PROCEDURE regress_p(jsonb) LANGUAGE sql AS 'SELECT';
CREATE AGGREGATE regress_a(jsonb) (SFUNC = jsonb_concat, STYPE = jsonb);
\set VERBOSITY sqlstate

-- The function, and the numbers.
SELECT idemq.set_handler('q', 'regress_int(jsonb)');
SELECT idemq.set_handler('q', 'regress_set(jsonb)');
SELECT idemq.set_handler('q', 'regress_text(text)');
SELECT idemq.set_handler('q', 'regress_two(jsonb, int)');
SELECT idemq.set_handler('q', 'regress_p(jsonb)');
SELECT idemq.set_handler('q', 'regress_a(jsonb)');
SELECT idemq.set_handler('q', 'no_such(jsonb)');
SELECT idemq.set_handler('q', 'regress_text');
SELECT idemq.set_handler('q', 'regress_int');
SELECT idemq.set_handler('q', 'no_schema.f');
-- What is no name: 42602 and 22P02 to PostgreSQL 15, no function to later ones.
DO $$ BEGIN PERFORM idemq.set_handler('q', 'regress_f('); EXCEPTION WHEN invalid_text_representation OR undefined_function THEN RAISE NOTICE 'refused'; END $$;
DO $$ BEGIN PERFORM idemq.set_handler('q', 'a b'); EXCEPTION WHEN invalid_name OR undefined_function THEN RAISE NOTICE 'refused'; END $$;
SELECT idemq.set_handler('q', '');
SELECT idemq.set_handler('q', repeat('f', 1001));
SELECT idemq.set_handler('q', NULL);
SELECT idemq.set_handler(NULL, 'regress_f(jsonb)');
SELECT idemq.set_handler('none', 'regress_f(jsonb)');
SELECT idemq.set_handler('q', 'regress_f(jsonb)', workers => 0);
SELECT idemq.set_handler('q', 'regress_f(jsonb)', workers => NULL);
SELECT idemq.set_handler('q', 'regress_f(jsonb)', batch => 0);
SELECT idemq.set_handler('q', 'regress_f(jsonb)', batch => 10001);
SELECT idemq.set_handler('q', 'regress_f(jsonb)', max_idle => '-1 s');
SELECT idemq.set_handler('q', 'regress_f(jsonb)', max_idle => NULL);
SELECT idemq.set_handler('q', 'regress_f(jsonb)', max_idle => '1 mon');
SELECT count(*) FROM idemq_internal.handler_entries;
BEGIN READ ONLY;
SELECT idemq.set_handler('q', 'regress_f(jsonb)');
ROLLBACK;

-- What it stores: names; and a warning for a function without a search_path.
SELECT idemq.set_handler('q', 'regress_f(jsonb)', workers => 2, batch => 10, max_idle => '0');
SELECT schema_name, function_name, argument_types, role_name = current_user AS mine, workers, batch, max_idle
FROM idemq_internal.handler_entries;
SELECT queue, function, workers, batch, state IN ('idle', 'off') AS quiet, workers_running, done_total, failed_total, last_error, crashes, stopped_at
FROM idemq.handlers;
-- The name alone is enough: there is but one argument that a handler can have.
SELECT idemq.set_handler('q', 'public.regress_f');
SELECT function FROM idemq.handlers;
\set VERBOSITY default
SELECT idemq.set_handler('q', 'h3');
SELECT idemq.set_handler('q', 'regress_int');
SELECT idemq.set_handler('q', 'regress_bare');
\set VERBOSITY sqlstate
SELECT function, workers, batch, max_idle FROM idemq.handlers;
-- Names of 63 bytes, with all that must be quoted.
CREATE SCHEMA "regress ""it's"" a schema of sixty-three bytes, not one byte more...";
CREATE FUNCTION "regress ""it's"" a schema of sixty-three bytes, not one byte more..."."regress ""it's"" a functn of sixty-three bytes, not one byte more..."(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS 'SELECT';
SELECT idemq.set_handler('q', p.oid::regprocedure::text) FROM pg_proc p WHERE proname LIKE 'regress "it%';
SELECT function FROM idemq.handlers;
-- A function that goes leaves the handler; the extension takes no function along.
DROP SCHEMA "regress ""it's"" a schema of sixty-three bytes, not one byte more..." CASCADE;
SELECT count(*) FROM idemq.handlers;
SELECT count(*) FROM pg_depend WHERE refobjid = 'regress_f(jsonb)'::regprocedure OR (objid = 'regress_f(jsonb)'::regprocedure AND refclassid = 'pg_extension'::regclass);
SELECT idemq.drop_handler('q');
SELECT idemq.drop_handler('q');
SELECT idemq.drop_handler('none');
SELECT idemq.drop_handler(NULL);

-- Rights: EXECUTE on set_handler, claim on the queue, EXECUTE on the function.
SET ROLE regress_h;
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
RESET ROLE;
GRANT USAGE ON SCHEMA idemq TO regress_h, regress_other;
SET ROLE regress_h;
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
RESET ROLE;
GRANT EXECUTE ON FUNCTION idemq.set_handler TO regress_h, regress_other, regress_admin;
SET ROLE regress_h;
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
RESET ROLE;
SELECT idemq.grant_queue('q', 'regress_h', 'enqueue');
SET ROLE regress_h;
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
RESET ROLE;
SELECT idemq.grant_queue('q', 'regress_h', 'claim'), idemq.grant_queue('q', 'regress_other', 'claim'), idemq.grant_queue('q', 'regress_admin', 'admin');
REVOKE EXECUTE ON FUNCTION regress_f(jsonb) FROM PUBLIC;
SET ROLE regress_h;
\set VERBOSITY default
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
\set VERBOSITY sqlstate
RESET ROLE;
GRANT EXECUTE ON FUNCTION regress_f(jsonb) TO PUBLIC;
SET ROLE regress_h;
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
SELECT queue, role FROM idemq.handlers;
SELECT * FROM idemq_internal.handler_entries;
INSERT INTO idemq_internal.handler_entries DEFAULT VALUES;
-- Another role's takes admin.
SET ROLE regress_other;
SELECT queue, role FROM idemq.handlers;
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
\set VERBOSITY default
SELECT idemq.drop_handler('q');
\set VERBOSITY sqlstate
SET ROLE regress_admin;
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
SELECT role FROM idemq.handlers;
SELECT idemq.drop_handler('q');
RESET ROLE;
-- A stranger sees nothing; the monitor all, but no errors.
SELECT idemq.set_handler('other', 'regress_f(jsonb)');
SET ROLE regress_h;
SELECT count(*) FROM idemq.handlers;
RESET ROLE;
GRANT pg_monitor TO regress_h;
SET ROLE regress_h;
SELECT queue, last_error FROM idemq.handlers;
RESET ROLE;
REVOKE pg_monitor FROM regress_h;

-- A role that may not log in: a warning, and a reason.
ALTER ROLE regress_h NOLOGIN;
SET ROLE regress_h;
\set VERBOSITY default
SELECT idemq.set_handler('q', 'public.regress_f(jsonb)');
\set VERBOSITY sqlstate
RESET ROLE;
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT regexp_replace(idemq.why(:id), '^.*; the handler', 'the handler');
ALTER ROLE regress_h LOGIN;
UPDATE idemq_internal.handler_entries e SET stopped_at = now(), crashes = 3 FROM idemq.queues q WHERE q.queue_id = e.queue_id AND q.name = 'q';
SELECT regexp_replace(idemq.why(:id), '^.*; the handler', 'the handler');
SELECT state FROM idemq.handlers WHERE queue = 'q';
SELECT idemq.set_handler('q', 'regress_f(jsonb)');
SELECT crashes, stopped_at FROM idemq.handlers WHERE queue = 'q';

-- Nothing outside of a handler.
SELECT * FROM idemq.current_job();

-- Rolled back, with a savepoint too; and with its queue a handler goes.
BEGIN;
SELECT idemq.drop_handler('q');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idemq.drop_handler('q');
ROLLBACK TO s;
COMMIT;
SELECT count(*) FROM idemq.handlers WHERE queue = 'q';
SELECT idemq.drop_queue('q', force => true);
SELECT count(*) FROM idemq_internal.handler_entries;
SELECT action, queue, role = current_user AS mine, details FROM idemq.audit WHERE action LIKE '%handler' ORDER BY id;
SELECT * FROM idemq.check();
DROP EXTENSION idemq CASCADE;
SELECT 'regress_f(jsonb)'::regprocedure;
DROP FUNCTION regress_f, regress_bare, regress_int, regress_set, regress_text, regress_two;
DROP PROCEDURE regress_p;
DROP AGGREGATE regress_a(jsonb);
DROP ROLE regress_h, regress_other, regress_admin;
