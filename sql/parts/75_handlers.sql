-- Which function runs the jobs of a queue inside the server.  Names in place of OIDs: they
-- survive pg_dump and pg_upgrade.  No type of ours is in a handler's signature.
CREATE TABLE idemq_internal.handler_entries (
	queue_id       int PRIMARY KEY,
	schema_name    name NOT NULL,
	function_name  name NOT NULL,
	argument_types text NOT NULL,
	role_name      name NOT NULL,
	role_oid       oid,
	owner_name     name NOT NULL,
	owner_oid      oid,
	workers        int NOT NULL,
	batch          int NOT NULL,
	max_idle       interval NOT NULL,
	set_at         timestamptz NOT NULL,
	crashes        int NOT NULL DEFAULT 0,
	crashed_at     timestamptz,
	stopped_at     timestamptz
);
COMMENT ON TABLE idemq_internal.handler_entries IS 'one row a handler; see idemq.handlers, change it with idemq.set_handler';
COMMENT ON COLUMN idemq_internal.handler_entries.queue_id IS 'queue whose jobs it runs';
COMMENT ON COLUMN idemq_internal.handler_entries.schema_name IS 'schema of its function';
COMMENT ON COLUMN idemq_internal.handler_entries.function_name IS 'name of its function';
COMMENT ON COLUMN idemq_internal.handler_entries.argument_types IS 'types of the function''s arguments: jsonb';
COMMENT ON COLUMN idemq_internal.handler_entries.role_name IS 'role that has set it, and as which it runs';
COMMENT ON COLUMN idemq_internal.handler_entries.role_oid IS 'the role that had the name when the row was written; NULL when there was none: then the name alone decides';
COMMENT ON COLUMN idemq_internal.handler_entries.owner_name IS 'owner of the function when the handler was set: it runs no other''s, but a superuser''s and the role''s own';
COMMENT ON COLUMN idemq_internal.handler_entries.owner_oid IS 'the role that had that name, as role_oid';
COMMENT ON COLUMN idemq_internal.handler_entries.workers IS 'processes that it may have at a time';
COMMENT ON COLUMN idemq_internal.handler_entries.batch IS 'jobs that it may run in a transaction';
COMMENT ON COLUMN idemq_internal.handler_entries.max_idle IS 'a process without a job ends after that';
COMMENT ON COLUMN idemq_internal.handler_entries.set_at IS 'when it was set, or set again';
COMMENT ON COLUMN idemq_internal.handler_entries.crashes IS 'crashes of the server in a row in the middle of its jobs';
COMMENT ON COLUMN idemq_internal.handler_entries.crashed_at IS 'when the last of these was found out; NULL: there was none';
COMMENT ON COLUMN idemq_internal.handler_entries.stopped_at IS 'when it was stopped, after three of them; NULL: it is not';

SELECT pg_catalog.pg_extension_config_dump('idemq_internal.handler_entries', '');

CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF role_name
	ON idemq_internal.handler_entries
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.role_named('role_name', 'role_oid');
ALTER TABLE idemq_internal.handler_entries ENABLE ALWAYS TRIGGER idemq_role_named;
CREATE TRIGGER idemq_owner_named BEFORE INSERT OR UPDATE OF owner_name
	ON idemq_internal.handler_entries
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.role_named('owner_name', 'owner_oid');
ALTER TABLE idemq_internal.handler_entries ENABLE ALWAYS TRIGGER idemq_owner_named;
CREATE TRIGGER idemq_settings_changed AFTER INSERT OR UPDATE OR DELETE
	ON idemq_internal.handler_entries
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.settings_changed();
ALTER TABLE idemq_internal.handler_entries ENABLE ALWAYS TRIGGER idemq_settings_changed;
CREATE TRIGGER idemq_settings_truncated AFTER TRUNCATE ON idemq_internal.handler_entries
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.settings_changed();
ALTER TABLE idemq_internal.handler_entries ENABLE ALWAYS TRIGGER idemq_settings_truncated;
-- No policy, so nobody reads the table itself.  The view idemq.handlers shows what a role may see.
ALTER TABLE idemq_internal.handler_entries ENABLE ROW LEVEL SECURITY;

-- Topic: Handlers

CREATE FUNCTION idemq.set_handler(
	queue text, function text, workers int DEFAULT 1, batch int DEFAULT 1,
	max_idle interval DEFAULT '10 s')
	RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.set_handler(text, text, int, int, interval)
	IS 'have a function f(payload jsonb), which returns jsonb or void, and is given by its name (''app.f'' or ''app.f(jsonb)''), run a queue''s jobs inside the server, as the current role; creates or replaces the queue''s one handler
- workers: so many processes at a time
- batch: so many jobs in a transaction
- max_idle: a process ends when it had no job for so long
- It needs claim and EXECUTE on the function, now and at each run, and a role that may log in; to replace another role''s, admin.
- Raises 53400 for a queue beyond idemq.max_queues.';

CREATE FUNCTION idemq.drop_handler(queue text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.drop_handler(text)
	IS 'end a queue''s handler: the job that is running ends as it does, others stay in the queue; returns false when there was none; for the role that set it and those with admin';

-- Why a queue's handler does not run, NULL when it may; raises 53400 for a queue without a state in shared memory.
CREATE FUNCTION idemq_internal.handler_refusal(queue_id int) RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_handler_refusal';

-- Whether the caller may change a handler: the role that has set it, and administrators of its
-- queue.
CREATE FUNCTION idemq_internal.may_change(h idemq_internal.handler_entries) RETURNS boolean
	LANGUAGE sql AS $$
	SELECT idemq_internal.role_may(idemq_internal.caller(), h.queue_id, 'admin')
		OR coalesce(pg_has_role(idemq_internal.caller(), idemq_internal.role_of(h.role_name,
			h.role_oid), 'USAGE'), false)
$$;

CREATE FUNCTION idemq_internal.refuse_handler(queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'permission denied for the handler of queue "%"', queue USING ERRCODE = '42501',
		DETAIL = 'The role that set it and administrators of the queue may change it.',
		HINT = format('Let one of them call idemq.drop_handler(''%s'').', queue);
END $$;

-- A function is looked up as the caller's search_path has it, and as it is now, at each isolation
-- level.  What is not as it must be is an error where it is the caller's to mend: the function's
-- shape, the rights to it.  That the role may not log in, or that the function leaves its
-- search_path to whoever may SET it, is a warning: the DBA may mend it later.
CREATE FUNCTION idemq_internal.set_handler_impl(queue text, function text, workers int, batch int,
	max_idle interval)
	RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	signature text := CASE WHEN strpos(function, '(') > 0 THEN function
		ELSE function || '(jsonb)' END;
	role name := pg_get_userbyid(idemq_internal.caller());
	number int;
	f record;
	named text;
	why text;
BEGIN
	PERFORM idemq_internal.check_text('function', function, 1000);
	-- It may be named without its argument: it can have but one.
	SELECT o.id, o.shown INTO f
		FROM idemq_internal.as_caller('SELECT p::pg_catalog.oid, p::pg_catalog.text '
		'FROM pg_catalog.to_regprocedure($1) p', signature) AS o (id oid, shown text);
	IF f.id IS NULL THEN
		RAISE EXCEPTION 'function % does not exist', signature USING ERRCODE = '42883',
			HINT =
				'Pass the name of a function f(payload jsonb), with its schema unless that is in '
				'search_path, as in ''app.send_mail''.';
	END IF;
	PERFORM idemq_internal.check_int('workers', workers, 1, 1000), idemq_internal.check_int('batch',
		batch, 1, 10000),
		idemq_internal.check_interval('max_idle', max_idle, 0);
	SELECT f.shown, p.* INTO f FROM idemq_internal.latest(
		'SELECT p.oid, p.proname, n.nspname, pg_get_userbyid(p.proowner), p.prorettype IN (2278, '
			'3802) AND NOT p.proretset '
			'AND p.prokind = ''f'' AND p.proargtypes::text = ''3802'', '
			'EXISTS (SELECT FROM unnest(p.proconfig) c WHERE starts_with(c, ''search_path='')) '
			'FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = $1', f.id)
		AS p (id oid, name name, schema name, owner name, fits boolean, pinned boolean);
	IF NOT f.fits THEN
		RAISE EXCEPTION 'function % cannot be a handler', f.shown USING ERRCODE = '42P13',
			HINT =
				'A handler is a function f(payload jsonb) that RETURNS void or jsonb, the result; '
				'all else comes from '
				'idemq.current_job().';
	ELSIF NOT has_function_privilege(idemq_internal.caller(), f.id, 'EXECUTE') THEN
		RAISE EXCEPTION 'permission denied for function %', f.shown USING ERRCODE = '42501';
	END IF;
	number := idemq_internal.queue(queue, 'claim', 'keep');
	INSERT INTO idemq_internal.handler_entries AS h (queue_id, schema_name, function_name,
		argument_types,
		role_name, workers,
			batch, max_idle, set_at, owner_name)
		VALUES (number, f.schema, f.name, 'jsonb', role, workers, batch, max_idle,
			idemq.clock_timestamp(), f.owner)
		ON CONFLICT ON CONSTRAINT handler_entries_pkey DO UPDATE
			SET schema_name = excluded.schema_name,
			function_name = excluded.function_name, argument_types = excluded.argument_types,
			role_name = excluded.role_name, workers = excluded.workers, batch = excluded.batch,
			max_idle = excluded.max_idle, set_at = excluded.set_at,
				owner_name = excluded.owner_name,
			crashes = 0, crashed_at = NULL, stopped_at = NULL
		WHERE idemq_internal.may_change(h);
	IF NOT FOUND THEN
		PERFORM idemq_internal.refuse_handler(queue);
	END IF;
	why := idemq_internal.handler_refusal(number);
	named := format('%I.%I(pg_catalog.jsonb)', f.schema, f.name);
	PERFORM idemq_internal.audit('set_handler', number, queue,
		jsonb_build_object('function', named));
	IF why IS NOT NULL THEN
		PERFORM idemq_internal.raise_message(true, 'the handler does not run yet',
			'Mend it; the handler then runs by itself. Until then idemq.handlers says why it '
			'does not.', why || '.');
	END IF;
	IF NOT f.pinned THEN
		PERFORM idemq_internal.raise_message(true,
			format('function %s does not set its search_path', named),
			format('ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp, with the schemas '
			'that it needs between the two.', named),
			format('Who may create objects in a schema of role "%s"''s search_path decides '
			'what the names in it mean.', role));
	END IF;
END $$;

CREATE FUNCTION idemq_internal.drop_handler_impl(queue text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	number int := idemq_internal.queue(queue, 'claim', 'share');
BEGIN
	DELETE FROM idemq_internal.handler_entries h WHERE h.queue_id = number
		AND idemq_internal.may_change(h);
	IF FOUND THEN
		PERFORM idemq_internal.audit('drop_handler', number, queue);
		RETURN true;
	END IF;
	PERFORM idemq_internal.refuse_handler(queue) FROM idemq_internal.handler_entries h
		WHERE h.queue_id = number;
	PERFORM idemq_internal.refuse_newer(EXISTS (SELECT FROM idemq_internal.latest('SELECT 1
		FROM idemq_internal.handler_entries
		WHERE queue_id = $1', number) AS (one int)), 'set_handler');
	RETURN false;
END $$;

CREATE FUNCTION idemq.current_job(
	OUT id bigint, OUT token bigint, OUT attempt int, OUT max_attempts int,
		OUT deadline timestamptz,
	OUT payload jsonb, OUT key text, OUT group_key text, OUT checkpoint jsonb,
		OUT enqueued_at timestamptz,
	OUT headers jsonb, OUT queue text, OUT kind text)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_current_job';
COMMENT ON FUNCTION idemq.current_job() IS 'the job that the handler''s function was called for, as idemq.claim shows it, and its queue; NULLs outside of a handler';

-- Topic: Internal

CREATE FUNCTION idemq_internal.handler_states()
	RETURNS TABLE (queue_id int, state text, workers_running int, done_total bigint,
		failed_total bigint,
		jobs_per_second float8, last_error text, last_error_at timestamptz)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_handler_states';
COMMENT ON FUNCTION idemq_internal.handler_states()
	IS 'what shared memory knows of handlers of queues that the caller may claim from or administer, all for pg_monitor; last_error not for the latter; use the view idemq.handlers';

-- Topic: Handlers

CREATE VIEW idemq.handlers WITH (security_barrier) AS
	SELECT q.name AS queue,
		pg_catalog.format('%I.%I(%s)', e.schema_name, e.function_name,
			e.argument_types) AS function,
		e.role_name AS role, e.workers, e.batch, e.max_idle, s.state, s.workers_running,
			s.jobs_per_second,
		s.done_total, s.failed_total, s.last_error, s.last_error_at, e.crashes, e.stopped_at,
			e.set_at
	FROM idemq_internal.handler_states() s
	CROSS JOIN LATERAL (SELECT e.schema_name, e.function_name, e.argument_types, e.role_name,
			e.workers, e.batch, e.max_idle, e.crashes, e.stopped_at, e.set_at
		FROM idemq_internal.handler_entries e
		WHERE e.queue_id OPERATOR(pg_catalog.=) s.queue_id OFFSET 0) e
	CROSS JOIN LATERAL (SELECT q.name FROM idemq.queues q
		WHERE q.queue_id OPERATOR(pg_catalog.=) s.queue_id OFFSET 0) q;
COMMENT ON VIEW idemq.handlers IS 'one row a handler of a queue that you may claim from or administer; pg_monitor sees all, without their errors';
COMMENT ON COLUMN idemq.handlers.queue IS 'queue whose jobs it runs';
COMMENT ON COLUMN idemq.handlers.function IS 'its function, by name: looked up at each run';
COMMENT ON COLUMN idemq.handlers.role IS 'role as which it runs: the one that has set it';
COMMENT ON COLUMN idemq.handlers.workers IS 'processes that it may have at a time';
COMMENT ON COLUMN idemq.handlers.batch IS 'jobs that it may run in a transaction';
COMMENT ON COLUMN idemq.handlers.max_idle IS 'a process without a job ends after that';
COMMENT ON COLUMN idemq.handlers.state IS 'running; idle (no job is ready); waiting (idemq.max_handler_workers or max_worker_processes are used up); refused (last_error says why; tried again within 64 s, or needs a restart); stopped (after three crashes of the server in a row); off (idemq.worker is off)';
COMMENT ON COLUMN idemq.handlers.workers_running IS 'processes that it has now';
COMMENT ON COLUMN idemq.handlers.jobs_per_second IS 'jobs a second of the last minute';
COMMENT ON COLUMN idemq.handlers.done_total IS 'jobs that its function has returned for since the server started';
COMMENT ON COLUMN idemq.handlers.failed_total IS 'attempts that ended with an error since then';
COMMENT ON COLUMN idemq.handlers.last_error IS 'the last error of a job, or why it does not run';
COMMENT ON COLUMN idemq.handlers.last_error_at IS 'when that was';
COMMENT ON COLUMN idemq.handlers.crashes IS 'crashes of the server in a row in the middle of its jobs';
COMMENT ON COLUMN idemq.handlers.stopped_at IS 'when it was stopped, after three of them; NULL: it is not';
COMMENT ON COLUMN idemq.handlers.set_at IS 'when it was set, or set again';
