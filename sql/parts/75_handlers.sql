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
COMMENT ON TABLE idemq_internal.handler_entries IS 'one row per handler; use idemq.handlers to read it and idemq.set_handler to change it';
COMMENT ON COLUMN idemq_internal.handler_entries.queue_id IS 'numeric id of the queue whose jobs the handler runs';
COMMENT ON COLUMN idemq_internal.handler_entries.schema_name IS 'schema of the handler''s function';
COMMENT ON COLUMN idemq_internal.handler_entries.function_name IS 'name of the handler''s function';
COMMENT ON COLUMN idemq_internal.handler_entries.argument_types IS 'types of the function''s arguments, always jsonb';
COMMENT ON COLUMN idemq_internal.handler_entries.role_name IS 'role that set the handler and that the handler runs as';
COMMENT ON COLUMN idemq_internal.handler_entries.role_oid IS 'OID of the role with this name when the row was written; NULL means that no such role existed, so the role is identified by name only';
COMMENT ON COLUMN idemq_internal.handler_entries.owner_name IS 'owner of the function when the handler was set; the handler runs only while the function is owned by this role, by a superuser, or by the handler''s role';
COMMENT ON COLUMN idemq_internal.handler_entries.owner_oid IS 'OID of owner_name when the row was written; NULL means that no such role existed, so the role is identified by name only';
COMMENT ON COLUMN idemq_internal.handler_entries.workers IS 'maximum number of processes';
COMMENT ON COLUMN idemq_internal.handler_entries.batch IS 'maximum number of jobs per transaction';
COMMENT ON COLUMN idemq_internal.handler_entries.max_idle IS 'how long a process may be idle before it exits';
COMMENT ON COLUMN idemq_internal.handler_entries.set_at IS 'when the handler was last set';
COMMENT ON COLUMN idemq_internal.handler_entries.crashes IS 'number of consecutive server crashes while the handler was running jobs';
COMMENT ON COLUMN idemq_internal.handler_entries.crashed_at IS 'when the last of these crashes was detected; NULL means that there have been none';
COMMENT ON COLUMN idemq_internal.handler_entries.stopped_at IS 'when the handler was stopped after three consecutive crashes; NULL means that the handler is not stopped';

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
	IS 'Run a queue''s jobs inside the server by calling a function f(payload jsonb) that returns jsonb or void. The function runs as the current role. Pass the name of the function (''app.f'' or ''app.f(jsonb)''). Creates or replaces the queue''s only handler.
- workers: maximum number of processes
- batch: maximum number of jobs per transaction
- max_idle: how long a process may be idle before it exits
- The role must have claim, EXECUTE on the function (now and at each run) and LOGIN. Replacing another role''s handler requires admin.
- The call raises 53400 if the queue is in excess of idemq.max_queues.';

CREATE FUNCTION idemq.ensure_handler(
	queue text, function text, workers int DEFAULT 1, batch int DEFAULT 1,
	max_idle interval DEFAULT '10 s', OUT outcome text, OUT changes jsonb)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_ensure_handler';
COMMENT ON FUNCTION idemq.ensure_handler(text, text, int, int, interval)
	IS 'Set a queue''s handler with idemq.set_handler, unless the same role has already set it with the same arguments. Returns the outcome created, changed or unchanged; if changed, changes contains the changed arguments, each with from and to.
- unchanged: the call only reads. If the handler was stopped after crashes, the call does not restart it, but raises a WARNING
- created, changed: recorded in idemq.audit as set_handler
- privileges: any privilege on the queue for unchanged, and otherwise EXECUTE on idemq.set_handler and the privileges that this function requires';

CREATE FUNCTION idemq.drop_handler(queue text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.drop_handler(text)
	IS 'Drop a queue''s handler. A running job finishes normally, and other jobs stay in the queue. Returns false if the queue had no handler. Requires membership in the role that set the handler, or admin.';

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

-- Adds or replaces a handler, even one that is newer than the snapshot.  Returns false if the caller
-- may not change the handler.
CREATE FUNCTION idemq_internal.put_handler(queue_id int, schema name, function name, owner name,
	role name, workers int, batch int, max_idle interval) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_put_handler';

CREATE FUNCTION idemq_internal.refuse_handler(queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'permission denied for handler of queue "%"', queue USING ERRCODE = '42501',
		DETAIL = 'Only the role that set the handler and administrators of the queue may change it.',
		HINT = format('Ask that role or an administrator to call idemq.drop_handler(''%s'').', queue);
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
				'Pass the name of a function f(payload jsonb), with its schema unless the schema is in '
				'search_path, for example ''app.send_mail''.';
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
		RAISE EXCEPTION 'function % cannot be used as a handler', f.shown USING ERRCODE = '42P13',
			HINT =
				'Pass a function f(payload jsonb) that returns void, or that returns the result of the job as jsonb. '
				'Other data about the job is available from '
				'idemq.current_job().';
	ELSIF NOT has_function_privilege(idemq_internal.caller(), f.id, 'EXECUTE') THEN
		RAISE EXCEPTION 'permission denied for function %', f.shown USING ERRCODE = '42501';
	END IF;
	number := idemq_internal.queue(queue, 'claim', 'name');
	IF NOT idemq_internal.put_handler(number, f.schema, f.name, f.owner, role, workers, batch,
		max_idle) THEN
		PERFORM idemq_internal.refuse_handler(queue);
	END IF;
	why := idemq_internal.handler_refusal(number);
	named := format('%I.%I(pg_catalog.jsonb)', f.schema, f.name);
	PERFORM idemq_internal.audit('set_handler', number, queue,
		jsonb_build_object('function', named));
	IF why IS NOT NULL THEN
		PERFORM idemq_internal.raise_message(true, 'the handler is not running yet',
			'Fix the cause, and the handler will start automatically. Until then, idemq.handlers shows why it '
			'is not running.', why || '.');
	END IF;
	IF NOT f.pinned THEN
		PERFORM idemq_internal.raise_message(true,
			format('function %s does not set its search_path', named),
			format('Run ALTER FUNCTION %s SET search_path = pg_catalog, pg_temp, and list '
			'the schemas that it needs between the two.', named),
			format('A role that may create objects in a schema in the search_path of role "%s" can change '
			'what the names in the function refer to.', role));
	END IF;
END $$;

CREATE FUNCTION idemq_internal.drop_handler_impl(queue text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	number int := idemq_internal.queue(queue, 'claim', 'name');
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
COMMENT ON FUNCTION idemq.current_job() IS 'Return the job for which the handler''s function was called, with the columns that idemq.claim_any returns. Outside a handler, all columns are NULL.';

-- Topic: Internal

CREATE FUNCTION idemq_internal.handler_states()
	RETURNS TABLE (queue_id int, state text, workers_running int, done_total bigint,
		failed_total bigint,
		jobs_per_second float8, last_error text, last_error_at timestamptz)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_handler_states';
COMMENT ON FUNCTION idemq_internal.handler_states()
	IS 'Return the state of handlers in shared memory, for queues that the caller may claim from or administer; pg_monitor gets all handlers, without last_error. Use the view idemq.handlers instead.';

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
COMMENT ON VIEW idemq.handlers IS 'one row per handler of a queue that you may claim from or administer; pg_monitor sees all handlers, but not their errors';
COMMENT ON COLUMN idemq.handlers.queue IS 'queue whose jobs the handler runs';
COMMENT ON COLUMN idemq.handlers.function IS 'name of the handler''s function, which is looked up at each run';
COMMENT ON COLUMN idemq.handlers.role IS 'role that set the handler and that the handler runs as';
COMMENT ON COLUMN idemq.handlers.workers IS 'maximum number of processes';
COMMENT ON COLUMN idemq.handlers.batch IS 'maximum number of jobs per transaction';
COMMENT ON COLUMN idemq.handlers.max_idle IS 'how long a process may be idle before it exits';
COMMENT ON COLUMN idemq.handlers.state IS 'state of the handler: running, idle (no job is ready), waiting, refused, stopped or off. Waiting means that idemq.max_handler_workers or max_worker_processes is exhausted. Refused means that the handler does not run for the reason in last_error; idemq tries again within 64 s, or after a restart. Stopped means that idemq stopped the handler after three consecutive server crashes. Off means that idemq.worker is off.';
COMMENT ON COLUMN idemq.handlers.workers_running IS 'current number of processes';
COMMENT ON COLUMN idemq.handlers.jobs_per_second IS 'jobs per second during the last minute';
COMMENT ON COLUMN idemq.handlers.done_total IS 'number of jobs for which the function has returned since the server started';
COMMENT ON COLUMN idemq.handlers.failed_total IS 'number of attempts that have ended with an error since the server started';
COMMENT ON COLUMN idemq.handlers.last_error IS 'error of the last failed job, or the reason why the handler does not run';
COMMENT ON COLUMN idemq.handlers.last_error_at IS 'when the error in last_error occurred';
COMMENT ON COLUMN idemq.handlers.crashes IS 'number of consecutive server crashes while the handler was running jobs';
COMMENT ON COLUMN idemq.handlers.stopped_at IS 'when the handler was stopped after three consecutive crashes; NULL means that the handler is not stopped';
COMMENT ON COLUMN idemq.handlers.set_at IS 'when the handler was last set';
