-- Which function runs the jobs of a queue inside the server.  Names in place of OIDs: they
-- survive pg_dump and pg_upgrade.  No type of ours is in a handler's signature.
CREATE TABLE idemq.handler_entries (
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
COMMENT ON TABLE idemq.handler_entries IS 'one row a handler; see idemq.handlers, change it with idemq.set_handler';
COMMENT ON COLUMN idemq.handler_entries.queue_id IS 'queue whose jobs it runs';
COMMENT ON COLUMN idemq.handler_entries.schema_name IS 'schema of its function';
COMMENT ON COLUMN idemq.handler_entries.function_name IS 'name of its function';
COMMENT ON COLUMN idemq.handler_entries.argument_types IS 'types of the function''s arguments: jsonb';
COMMENT ON COLUMN idemq.handler_entries.role_name IS 'role that has set it, and as which it runs';
COMMENT ON COLUMN idemq.handler_entries.role_oid IS 'the role that had the name when the row was written; NULL when there was none: then the name alone decides';
COMMENT ON COLUMN idemq.handler_entries.owner_name IS 'owner of the function when the handler was set: it runs no other''s, but a superuser''s and the role''s own';
COMMENT ON COLUMN idemq.handler_entries.owner_oid IS 'the role that had that name, as role_oid';
COMMENT ON COLUMN idemq.handler_entries.workers IS 'processes that it may have at a time';
COMMENT ON COLUMN idemq.handler_entries.batch IS 'jobs that it may run in a transaction';
COMMENT ON COLUMN idemq.handler_entries.max_idle IS 'a process without a job ends after that';
COMMENT ON COLUMN idemq.handler_entries.set_at IS 'when it was set, or set again';
COMMENT ON COLUMN idemq.handler_entries.crashes IS 'crashes of the server in a row in the middle of its jobs';
COMMENT ON COLUMN idemq.handler_entries.crashed_at IS 'when the last of these was found out; NULL: there was none';
COMMENT ON COLUMN idemq.handler_entries.stopped_at IS 'when it was stopped, after three of them; NULL: it is not';

SELECT pg_catalog.pg_extension_config_dump('idemq.handler_entries', '');

CREATE TRIGGER idemq_role_named BEFORE INSERT OR UPDATE OF role_name ON idemq.handler_entries
	FOR EACH ROW EXECUTE FUNCTION idemq.role_named('role_name', 'role_oid');
ALTER TABLE idemq.handler_entries ENABLE ALWAYS TRIGGER idemq_role_named;
CREATE TRIGGER idemq_owner_named BEFORE INSERT OR UPDATE OF owner_name ON idemq.handler_entries
	FOR EACH ROW EXECUTE FUNCTION idemq.role_named('owner_name', 'owner_oid');
ALTER TABLE idemq.handler_entries ENABLE ALWAYS TRIGGER idemq_owner_named;
CREATE TRIGGER idemq_settings_changed AFTER INSERT OR UPDATE OR DELETE ON idemq.handler_entries
	FOR EACH ROW EXECUTE FUNCTION idemq.settings_changed();
ALTER TABLE idemq.handler_entries ENABLE ALWAYS TRIGGER idemq_settings_changed;
CREATE TRIGGER idemq_settings_truncated AFTER TRUNCATE ON idemq.handler_entries
	FOR EACH STATEMENT EXECUTE FUNCTION idemq.settings_changed();
ALTER TABLE idemq.handler_entries ENABLE ALWAYS TRIGGER idemq_settings_truncated;
-- No policy: the view shows what is to be seen.
ALTER TABLE idemq.handler_entries ENABLE ROW LEVEL SECURITY;

-- Topic: Handlers

CREATE FUNCTION idemq.set_handler(
	queue text, function text, workers int DEFAULT 1, batch int DEFAULT 1,
	max_idle interval DEFAULT '10 s')
	RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_set_handler';
COMMENT ON FUNCTION idemq.set_handler(text, text, int, int, interval)
	IS 'have a function f(payload jsonb), which returns jsonb or void, and is given by its name (''app.f'' or ''app.f(jsonb)''), run a queue''s jobs inside the server, as the current role; creates or replaces the queue''s one handler
- workers: so many processes at a time
- batch: so many jobs in a transaction
- max_idle: a process ends when it had no job for so long
- It needs claim and EXECUTE on the function, now and at each run, and a role that may log in; to replace another role''s, admin.
- Raises 53400 for a queue beyond idemq.max_queues.';

CREATE FUNCTION idemq.drop_handler(queue text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_drop_handler';
COMMENT ON FUNCTION idemq.drop_handler(text)
	IS 'end a queue''s handler: the job that is running ends as it does, others stay in the queue; returns false when there was none; for the role that set it and those with admin';

CREATE FUNCTION idemq.current_job(
	OUT id bigint, OUT token bigint, OUT attempt int, OUT max_attempts int, OUT deadline timestamptz,
	OUT payload jsonb, OUT key text, OUT group_key text, OUT checkpoint jsonb, OUT enqueued_at timestamptz,
	OUT headers jsonb, OUT queue text, OUT kind text)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_current_job';
COMMENT ON FUNCTION idemq.current_job() IS 'the job that the handler''s function was called for, as idemq.claim shows it, and its queue; NULLs outside of a handler';

-- Topic: Inside

CREATE FUNCTION idemq.handler_states()
	RETURNS TABLE (queue_id int, state text, workers_running int, done_total bigint, failed_total bigint,
		jobs_per_second float8, last_error text, last_error_at timestamptz)
	ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_handler_states';
COMMENT ON FUNCTION idemq.handler_states()
	IS 'what shared memory knows of handlers of queues that the caller may claim from or administer, all for pg_monitor; last_error not for the latter; use the view idemq.handlers';

-- Topic: Handlers

CREATE VIEW idemq.handlers WITH (security_barrier) AS
	SELECT q.name AS queue,
		pg_catalog.format('%I.%I(%s)', e.schema_name, e.function_name, e.argument_types) AS function,
		e.role_name AS role, e.workers, e.batch, e.max_idle, s.state, s.workers_running, s.jobs_per_second,
		s.done_total, s.failed_total, s.last_error, s.last_error_at, e.crashes, e.stopped_at, e.set_at
	FROM idemq.handler_entries e
	JOIN idemq.queues q ON q.queue_id OPERATOR(pg_catalog.=) e.queue_id
	JOIN idemq.handler_states() s ON s.queue_id OPERATOR(pg_catalog.=) e.queue_id;
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
