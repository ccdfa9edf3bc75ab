-- Topic: Schedules

-- A schedule is a row of idemq_internal.schedule_entries; its ticks up to done_until are dealt
-- with.  The session that enqueues a tick holds the row, and moves done_until up to the tick in the
-- transaction of the enqueue; another session that comes meanwhile skips the row.  If the row is
-- lost or put back (a restore, a schedule that was ended and made again), the enqueue answers
-- duplicate, because its key is made of the schedule's name and the tick's own time.
--
-- The column cron contains a cron expression or an interval (src/schedule/cron.c).  No row contains
-- the time of the next tick: it is computed from the expression and done_until.  So a schedule that
-- ticks every second also updates its row only once per tick, and if the server was down for a day,
-- it enqueues one job, for the last tick.
--
-- A paused schedule (paused_at) has no ticks.  When it is resumed, done_until is set to that time, so
-- it continues with the next tick.  A tick that is being enqueued holds the row, so pause_schedule
-- waits for it.  If idemq.schedule replaces a paused schedule, as a deployment may do, it stays paused.
--
-- Times are those of the wall clock, not of idemq_now(), because a calendar means the wall clock.

CREATE FUNCTION idemq.schedule(
	name text, cron text, queue text, payload jsonb, time_zone text DEFAULT 'UTC',
	priority int DEFAULT 4, group_key text DEFAULT NULL, max_attempts int DEFAULT NULL,
	headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL, kind text DEFAULT NULL)
	RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.schedule(text, text, text, jsonb, text, int, text, int, jsonb, interval, text)
	IS 'Enqueue one job at each tick of a cron expression or an interval. Creates or replaces the schedule with the given name, which is unique in the database and has up to 256 bytes. Returns the time of its next run, or NULL if it is paused. Raises 55000 if idemq.worker is off and no program calls idemq.tick(). Requires enqueue.
- audit: a call that creates or changes the schedule is recorded in idemq.audit.
- cron: cron expression with five fields, or an interval from 1 s to 24 h, for example ''every 10 s'', ''every 5 min'' or ''every 12 h''.
- time_zone: time zone of the cron expression. An interval cannot have one, because its ticks are multiples of the interval since 1970-01-01 00:00 UTC.';

CREATE FUNCTION idemq.unschedule(name text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.unschedule(text)
	IS 'Drop a schedule. Jobs that it has enqueued remain. Returns false if there is no such schedule or you may not see it. Requires membership in the role that created the schedule, or admin. A call that drops the schedule is recorded in idemq.audit.';

CREATE FUNCTION idemq.pause_schedule(name text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.pause_schedule(text)
	IS 'Pause a schedule: it has no ticks until idemq.resume_schedule is called, even if idemq.schedule replaces it. Jobs that it has enqueued remain. A second pause has no effect. Requires membership in the role that created the schedule, or admin on the queue. Raises 42704 if the schedule does not exist, and 42501 if you may not pause it. A call that pauses the schedule is recorded in idemq.audit.';

CREATE FUNCTION idemq.resume_schedule(name text) RETURNS timestamptz
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.resume_schedule(text)
	IS 'Resume a paused schedule, which continues with its next tick. The ticks during the pause are skipped. Returns the time of its next run. Has no effect on a schedule that is not paused. Requires membership in the role that created the schedule, or admin on the queue. Raises 42704 if the schedule does not exist, and 42501 if you may not resume it. A call that resumes the schedule is recorded in idemq.audit.';

CREATE FUNCTION idemq.next_tick(
	cron text, time_zone text DEFAULT 'UTC', after timestamptz DEFAULT idemq.clock_timestamp())
	RETURNS timestamptz STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_next_tick';
COMMENT ON FUNCTION idemq.next_tick(text, text, timestamptz)
	IS 'Return the first tick of a cron expression or an interval after a given time. Returns NULL if there will never be another tick.';

CREATE FUNCTION idemq.last_tick(
	cron text, time_zone text DEFAULT 'UTC', until timestamptz DEFAULT idemq.clock_timestamp())
	RETURNS timestamptz STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_last_tick';
COMMENT ON FUNCTION idemq.last_tick(text, text, timestamptz)
	IS 'Return the last tick of a cron expression or an interval at or before a given time. Returns NULL if there was none.';

-- Topic: Internal

CREATE FUNCTION idemq_internal.next_run(cron text, time_zone text, done_until timestamptz)
	RETURNS timestamptz STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_next_run';
COMMENT ON FUNCTION idemq_internal.next_run(text, text, timestamptz)
	IS 'Return the overdue tick of a schedule, or its next tick if none is overdue, for idemq.schedules. Returns NULL if the time zone is not recognized.';

CREATE FUNCTION idemq_internal.interval_seconds(cron text) RETURNS int
	IMMUTABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_interval_seconds';
COMMENT ON FUNCTION idemq_internal.interval_seconds(text)
	IS 'Return the length of an interval, such as every 10 s, in seconds. Returns NULL for a cron expression and for an invalid interval.';

-- For schedule_times and schedules_due.
CREATE FUNCTION idemq_internal.due_at(cron text, time_zone text, done_until timestamptz,
	failed_at timestamptz, now timestamptz)
	RETURNS timestamptz STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_due_at';

CREATE FUNCTION idemq_internal.may_change_schedule(queue_id int, created_by name,
	created_by_oid oid)
	RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_may_change_schedule';
COMMENT ON FUNCTION idemq_internal.may_change_schedule(int, name, oid)
	IS 'Return whether the current role may replace and drop a schedule that the given role created for this queue. The view idemq.schedules calls this function.';

-- The worker lists them again; a restore writes them as well (hence ENABLE ALWAYS).
CREATE FUNCTION idemq_internal.schedules_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_schedules_changed';
COMMENT ON FUNCTION idemq_internal.schedules_changed() IS 'trigger that makes the background worker reread the schedules';

CREATE TRIGGER idemq_schedules_changed AFTER INSERT OR UPDATE OR DELETE
	OR TRUNCATE ON idemq_internal.schedule_entries
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.schedules_changed();
ALTER TABLE idemq_internal.schedule_entries ENABLE ALWAYS TRIGGER idemq_schedules_changed;

-- What a job holds is for the roles that may change the schedule.
CREATE VIEW idemq.schedules WITH (security_barrier) AS
	SELECT e.name, q.name AS queue, e.cron, e.time_zone,
		CASE WHEN e.paused_at IS NULL
			THEN idemq_internal.next_run(e.cron, e.time_zone, e.done_until) END AS next_run,
		e.last_run, e.last_job, e.failed_at,
		CASE WHEN m.may_change THEN e.last_error END AS last_error,
		CASE WHEN m.may_change THEN e.payload END AS payload,
		CASE WHEN m.may_change THEN e.headers END AS headers,
		CASE WHEN m.may_change THEN e.group_key END AS group_key,
		e.priority, e.max_attempts, e.expires_in, e.created_by, e.created_at, e.kind, e.paused_at
	FROM idemq_internal.schedule_entries e
	CROSS JOIN LATERAL (SELECT q.name FROM idemq.queues q
		WHERE q.queue_id OPERATOR(pg_catalog.=) e.queue_id OFFSET 0) q
	CROSS JOIN LATERAL (
		SELECT idemq_internal.may_change_schedule(e.queue_id, e.created_by,
			e.created_by_oid) AS may_change) m
	WHERE idemq_internal.may_enqueue(e.queue_id) OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');
COMMENT ON VIEW idemq.schedules IS 'one row per schedule of a queue that you may enqueue to or administer (for pg_monitor, every queue). Only the role that created the schedule and administrators of its queue see payload, headers, group_key and last_error.';
COMMENT ON COLUMN idemq.schedules.name IS 'name of the schedule, unique in the database';
COMMENT ON COLUMN idemq.schedules.queue IS 'queue to which the schedule adds jobs';
COMMENT ON COLUMN idemq.schedules.cron IS 'cron expression or interval of the schedule';
COMMENT ON COLUMN idemq.schedules.time_zone IS 'time zone of the cron expression; UTC for an interval';
COMMENT ON COLUMN idemq.schedules.last_error IS 'why the last failed tick could not be enqueued';
COMMENT ON COLUMN idemq.schedules.payload IS 'payload of the schedule''s jobs';
COMMENT ON COLUMN idemq.schedules.headers IS 'headers of the schedule''s jobs, to which the name of the schedule and the time of the tick are added';
COMMENT ON COLUMN idemq.schedules.group_key IS 'group_key of the schedule''s jobs';
COMMENT ON COLUMN idemq.schedules.priority IS 'priority of the schedule''s jobs';
COMMENT ON COLUMN idemq.schedules.max_attempts IS 'max_attempts of the schedule''s jobs; NULL means that the queue''s setting applies';
COMMENT ON COLUMN idemq.schedules.expires_in IS 'time after a tick at which its job is cancelled if it has not been claimed; a tick that is overdue by more than this time is skipped';
COMMENT ON COLUMN idemq.schedules.kind IS 'kind of the schedule''s jobs; NULL means that the jobs have no kind';
COMMENT ON COLUMN idemq.schedules.created_by IS 'role that created the schedule and whose privileges are used to enqueue its jobs';
COMMENT ON COLUMN idemq.schedules.created_at IS 'when the schedule was created or last replaced';
COMMENT ON COLUMN idemq.schedules.next_run IS 'time of the overdue tick, or of the next tick if none is overdue; NULL means that the schedule is paused, or that the server does not recognize the time zone';
COMMENT ON COLUMN idemq.schedules.last_run IS 'scheduled time of the last tick that was enqueued';
COMMENT ON COLUMN idemq.schedules.last_job IS 'id of the job enqueued at last_run';
COMMENT ON COLUMN idemq.schedules.failed_at IS 'when enqueuing a tick last failed; NULL means that no tick has failed since the last success';

COMMENT ON COLUMN idemq.schedules.paused_at IS 'when the schedule was paused with idemq.pause_schedule; NULL means that it is not paused';

CREATE FUNCTION idemq_internal.due_schedules() RETURNS text[]
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq_internal.due_schedules()
	IS 'part of idemq.tick: list the schedules that have a tick to enqueue, and record the call';

CREATE FUNCTION idemq_internal.run_schedule(name text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq_internal.run_schedule(text)
	IS 'part of idemq.tick: enqueue the latest due tick of a schedule. Returns false if there is none, or if another session is enqueuing it.';

CREATE FUNCTION idemq_internal.run_schedules(names text[], places text[],
	OUT due timestamptz[], OUT place text[])
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq_internal.run_schedules(text[], text[])
	IS 'for the background worker: enqueue the latest due tick of each of these schedules. places contains the last known place (ctid) of each schedule''s row. Returns when each schedule is due again (NULL if it no longer exists or is paused), and the new places of the rows.';

CREATE FUNCTION idemq_internal.schedule_failed(name text, error text) RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq_internal.schedule_failed(text, text)
	IS 'part of idemq.tick: record why a tick could not be enqueued. Returns the name of the schedule, followed by the reason.';

-- Topic: Schedules

CREATE PROCEDURE idemq.tick() LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_tick';
COMMENT ON PROCEDURE idemq.tick()
	IS 'Enqueue the jobs for all due ticks, each in a separate transaction. The background worker does this automatically; if idemq.worker is off, have pg_cron or another program call this procedure once per minute, or once per second if a schedule has an interval of less than a minute. After trying all ticks, raises the first error that occurred.';

-- Topic: Internal

-- Functions of schema idemq that everybody may call, under names to which nobody else can give a
-- meaning.
CREATE FUNCTION idemq_internal.next_tick(cron text, time_zone text, after timestamptz)
	RETURNS timestamptz
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_next_tick';
CREATE FUNCTION idemq_internal.last_tick(cron text, time_zone text, until timestamptz)
	RETURNS timestamptz
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_last_tick';

-- Whether the caller may change a schedule: the role that has made it, and administrators of its
-- queue.
CREATE FUNCTION idemq_internal.may_change(s idemq_internal.schedule_entries) RETURNS boolean
	LANGUAGE sql AS $$
	SELECT idemq_internal.role_may(idemq_internal.caller(), s.queue_id, 'admin')
		OR coalesce(pg_has_role(idemq_internal.caller(), idemq_internal.role_of(s.created_by,
			s.created_by_oid), 'USAGE'), false)
$$;

CREATE FUNCTION idemq_internal.refuse_schedule(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'permission denied for schedule "%"', name USING ERRCODE = '42501',
		DETAIL = 'Only the role that created the schedule and administrators of its queue may change it.',
		HINT = 'Choose another name, or ask that role or an administrator to change the schedule.';
END $$;

CREATE FUNCTION idemq_internal.no_schedule(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'schedule "%" does not exist', name USING ERRCODE = '42704',
		HINT = 'Run SELECT name FROM idemq.schedules to list the schedules that you may see.';
END $$;

-- A schedule that nothing ticks is a lie, so there is none without a driver: the worker; pg_cron in
-- this database, whose job is made here when there is none; or a call of idemq.tick() in the last
-- minutes, by a pg_cron of another database or anything else.  That is one call a minute in each
-- database, whatever the number of its schedules.  (One pg_cron job for each schedule would leave
-- the calendar to a well-kept library.  But pg_cron has one time zone for all jobs, and before 1.5
-- none but GMT; it does not say which minute a late run is for, so that no key could be made of it;
-- it forgets the minutes in which it was down; it knows no next run; and its jobs are in one
-- database of the server, from where a schedule in another cannot be made, and are not in that
-- one's dump.)
--
-- An interval of less than a minute requires a call every second.  Only pg_cron in this database
-- shows how often it will call: since version 1.5, a job can have the schedule '1 second'.  Calls by
-- another program prove nothing about its next calls.
CREATE FUNCTION idemq_internal.require_driver(seconds int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	cron_version text := (SELECT extversion FROM pg_extension WHERE extname = 'pg_cron');
	libraries text;
	loaded boolean;
	cron_database text := current_setting('cron.database_name', true);
	may_read boolean := pg_has_role(idemq_internal.caller(), 'pg_read_all_settings', 'USAGE');
BEGIN
	IF idemq_internal.worker_comes() THEN
		RETURN;
	END IF;
	libraries := current_setting('shared_preload_libraries');
	loaded := libraries ~ '(^|[,/"\s])pg_cron[^,/]*(,|$)';
	IF seconds < 60 THEN
		IF NOT loaded OR cron_version IS NULL
			OR regexp_match(cron_version, '^(\d+)\.(\d+)')::int[] < '{1,5}' THEN
			RAISE EXCEPTION 'an interval of less than a minute requires idemq.worker, or pg_cron 1.5 or later in this database'
				USING ERRCODE = '55000',
				DETAIL = format('The setting idemq.worker is off, and %s.',
					CASE WHEN NOT loaded THEN 'pg_cron is not loaded'
						WHEN cron_version IS NULL THEN
							'the extension pg_cron has not been created in this database'
						ELSE format('pg_cron has version %s', cron_version) END),
				HINT = 'Set idemq.worker to on. Otherwise install pg_cron 1.5 or later, add it to shared_preload_libraries, restart the server, and run CREATE EXTENSION pg_cron or ALTER EXTENSION pg_cron UPDATE in this database.';
		END IF;
		-- As below.  A job that calls at least twice per interval, or every second, is enough.
		PERFORM FROM idemq_internal.latest($q$
			SELECT j.jobid FROM cron.job j JOIN pg_roles r ON r.rolname = j.username
			WHERE j.command ~* '^\s*call\s+idemq\.tick\s*\(\s*\)[\s;]*$'
				AND j.database = current_database()
				AND has_schema_privilege(r.oid, 'idemq', 'USAGE')
				AND has_function_privilege(r.oid, 'idemq.tick()', 'EXECUTE')
				AND substring(j.schedule, '(?i)^\s*(\d+)\s*seconds?\s*$')::int
					<= greatest($1 / 2, 1)$q$, seconds) AS (jobid bigint);
		IF NOT FOUND THEN
			PERFORM cron.schedule('idemq-tick'::text, '1 second'::text, 'CALL idemq.tick()'::text);
		END IF;
		RETURN;
	END IF;
	IF loaded AND cron_version IS NOT NULL THEN
		-- A job that was switched off (active is false) stays off.  One of a role that may not call
		-- idemq.tick is no driver.
		PERFORM FROM idemq_internal.latest($q$
			SELECT j.jobid FROM cron.job j JOIN pg_roles r ON r.rolname = j.username
			WHERE j.command ~* '^\s*call\s+idemq\.tick\s*\(\s*\)[\s;]*$'
				AND j.database = current_database()
				AND has_schema_privilege(r.oid, 'idemq', 'USAGE')
				AND has_function_privilege(r.oid, 'idemq.tick()', 'EXECUTE')$q$)
					AS (jobid bigint);
		IF NOT FOUND THEN
			PERFORM cron.schedule('idemq-tick'::text, '* * * * *'::text, 'CALL idemq.tick()'::text);
		END IF;
		RETURN;
	END IF;
	PERFORM FROM idemq_internal.latest('SELECT one FROM idemq_internal.ticker WHERE called_at > $1',
		idemq.clock_timestamp() - interval '10 min')
		AS (one boolean);
	IF FOUND THEN
		RETURN;
	ELSIF NOT loaded THEN
		libraries := CASE WHEN may_read THEN libraries ELSE '...' END;
		RAISE EXCEPTION 'schedules require pg_cron, which is not loaded' USING ERRCODE = '55000',
			DETAIL = 'No program has called idemq.tick() in this database recently.',
			HINT =
				format(E'Add the first two lines to postgresql.conf, restart the server, and run '
				'the third in database %I:\n'
				'shared_preload_libraries = ''%s''\ncron.database_name = ''%s''\nCREATE EXTENSION '
					'pg_cron;',
				current_database(), concat_ws(', ', nullif(libraries, ''), 'pg_cron'),
					current_database());
	ELSIF cron_database IS DISTINCT FROM current_database() THEN
		RAISE EXCEPTION 'pg_cron runs in %, and no program calls idemq.tick() in this database',
			CASE WHEN may_read AND cron_database IS NOT NULL THEN format('database %I',
				cron_database)
				ELSE 'the database named by cron.database_name' END
			USING ERRCODE = '55000',
			HINT =
				format(E'As a superuser, run the first line in that database and the second line in this one. Then try '
				'again:\n'
				'SELECT cron.schedule_in_database(%L, ''* * * * *'', ''CALL idemq.tick()'', '
					'%L);\nCALL idemq.tick();',
				'idemq-tick-' || current_database(), current_database());
	END IF;
	RAISE EXCEPTION 'schedules require the pg_cron extension, which has not been created in this database'
		USING ERRCODE = '55000',
		HINT = E'Run this command in this database as a superuser:\nCREATE EXTENSION pg_cron;';
END $$;

-- Other roles do not get as far as the row's lock, which keeps ticks away: rights are asked of the
-- row as it is read, and again of the row that is locked, which another role may have taken over.
CREATE FUNCTION idemq_internal.schedule_impl(
	name text, cron text, queue text, payload jsonb, time_zone text, priority int, group_key text,
	max_attempts int, headers jsonb, expires_in interval, kind text)
	RETURNS timestamptz LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	now timestamptz := idemq.clock_timestamp();
	queue_id int;
	old idemq_internal.schedule_entries;
	made idemq_internal.schedule_entries;
	role name := pg_get_userbyid(idemq_internal.caller());
	most int := current_setting('idemq.max_schedules_per_role');
	limited boolean := most >= 0 AND NOT pg_has_role(idemq_internal.caller(), current_user,
		'USAGE');  -- the owner
	of_role bigint;
BEGIN
	PERFORM idemq_internal.check_text('name', name, 256);
	IF idemq_internal.next_tick(cron, time_zone, now) IS NULL THEN
		RAISE EXCEPTION 'cron expression "%" names a day that does not exist', cron
			USING ERRCODE = '22023', HINT = 'Correct the day of month or the month.';
	END IF;
	PERFORM idemq_internal.given('payload', payload),
		idemq_internal.check_document('payload', payload);
	-- What a tick adds is shorter: the name at 6 bytes each, a time, their keys.
	PERFORM idemq_internal.check_document('headers', headers, 2048) WHERE headers IS NOT NULL;
	PERFORM idemq_internal.check_int('priority', priority, 0, 9);
	PERFORM idemq_internal.check_text('group_key', group_key, 1024) WHERE group_key IS NOT NULL;
	PERFORM idemq_internal.check_int('max_attempts', max_attempts, 1, 2147483647)
		WHERE max_attempts IS NOT NULL;
	IF jsonb_typeof(headers) <> 'object' THEN
		RAISE EXCEPTION 'headers of a schedule must be a JSON object'
			USING ERRCODE = '22023', HINT = 'Pass an object. The name of the schedule and the time of the tick are added to it.';
	END IF;
	PERFORM idemq_internal.check_interval('expires_in', expires_in) WHERE expires_in IS NOT NULL;
	PERFORM idemq_internal.check_kind(kind) WHERE kind IS NOT NULL;
	queue_id := idemq_internal.queue(queue, 'enqueue', 'keep');
	PERFORM idemq_internal.require_driver(idemq_internal.interval_seconds(cron));
	IF limited THEN
		PERFORM idemq_internal.lock_role(idemq_internal.caller(), 'schedules');
	END IF;
	LOOP
		PERFORM idemq_internal.refuse_schedule(name)
			FROM idemq_internal.schedule_entries s
				WHERE s.name = schedule_impl.name AND NOT idemq_internal.may_change(s);
		SELECT s.* INTO old FROM idemq_internal.schedule_entries s
			WHERE s.name = schedule_impl.name AND idemq_internal.may_change(s) FOR UPDATE;
		-- Made again as it is, by a deployment perhaps, it does not lose the tick that is due now.
		INSERT INTO idemq_internal.schedule_entries AS s (name, cron, queue_id, payload, time_zone,
			priority,
			group_key,
				max_attempts, headers, expires_in, kind, created_by, created_at, done_until)
			VALUES (name, cron, queue_id, payload, time_zone, priority, group_key,
				max_attempts, headers, expires_in, kind, role, now, now)
			ON CONFLICT ON CONSTRAINT schedule_entries_pkey DO UPDATE SET
				cron = excluded.cron, queue_id = excluded.queue_id, payload = excluded.payload,
				time_zone = excluded.time_zone, priority = excluded.priority,
					group_key = excluded.group_key,
				max_attempts = excluded.max_attempts, headers = excluded.headers,
					expires_in = excluded.expires_in,
				kind = excluded.kind, created_by = excluded.created_by, failed_at = NULL,
					last_error = NULL,
				created_at = CASE WHEN s.queue_id = excluded.queue_id THEN s.created_at
					ELSE now END,
				done_until = CASE WHEN s.cron = excluded.cron AND s.time_zone = excluded.time_zone
					THEN s.done_until ELSE now END
			WHERE idemq_internal.may_change(s) RETURNING s.* INTO made;
		EXIT WHEN FOUND;
	END LOOP;
	IF limited THEN
		of_role := (SELECT n
			FROM idemq_internal.latest('SELECT count(*) FROM idemq_internal.schedule_entries '
			'WHERE created_by = $1 AND coalesce(created_by_oid = $2, true)', role,
			idemq_internal.caller()) AS (n bigint));
		IF of_role > most THEN
			RAISE EXCEPTION 'role "%" may have at most % schedules', role,
				most USING ERRCODE = '53400',
				HINT = 'Drop a schedule with idemq.unschedule, or raise idemq.max_schedules_per_role.';
		END IF;
	END IF;
	-- A deployment that declares the schedule as it is leaves no row.
	IF (old.cron, old.time_zone, old.queue_id, old.payload, old.priority, old.group_key,
		old.max_attempts, old.headers, old.expires_in, old.kind, old.created_by)
		IS DISTINCT FROM (made.cron, made.time_zone, made.queue_id, made.payload, made.priority,
			made.group_key, made.max_attempts, made.headers, made.expires_in, made.kind,
			made.created_by) THEN
		PERFORM idemq_internal.audit_schedule('schedule', made);
	END IF;
	RETURN CASE WHEN made.paused_at IS NULL
		THEN idemq_internal.next_run(cron, time_zone, made.done_until) END;
END $$;

-- Returns the row of a schedule, locked if the caller may change it, or NULL if there is none.
-- Privileges are checked first, as in schedule_impl.  While the session waits for the row, the schedule
-- may be dropped and created again with a new row, so the function looks for the row once more.
CREATE FUNCTION idemq_internal.try_lock_schedule(name text) RETURNS idemq_internal.schedule_entries
	LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	s idemq_internal.schedule_entries;
BEGIN
	PERFORM idemq_internal.check_text('name', name, 256);
	LOOP
		SELECT e.* INTO s FROM idemq_internal.schedule_entries e
			WHERE e.name = try_lock_schedule.name;
		EXIT WHEN s.name IS NULL OR NOT idemq_internal.may_change(s);
		SELECT e.* INTO s FROM idemq_internal.schedule_entries e
			WHERE e.name = try_lock_schedule.name FOR UPDATE;
		EXIT WHEN FOUND;
	END LOOP;
	RETURN s;
END $$;

CREATE FUNCTION idemq_internal.unschedule_impl(name text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	s idemq_internal.schedule_entries := idemq_internal.try_lock_schedule(name);
BEGIN
	IF s.name IS NULL THEN
		RETURN false;
	ELSIF idemq_internal.may_change(s) THEN
		DELETE FROM idemq_internal.schedule_entries e WHERE e.name = s.name;
		PERFORM idemq_internal.audit_schedule('unschedule', s);
		RETURN true;
	END IF;
	PERFORM idemq_internal.refuse_schedule(name)
		WHERE idemq_internal.role_may(idemq_internal.caller(), s.queue_id, 'enqueue');
	RETURN false;
END $$;

-- Locks the row of a schedule that will be paused or resumed, so that no session enqueues a tick of
-- it meanwhile.
CREATE FUNCTION idemq_internal.lock_schedule(name text) RETURNS idemq_internal.schedule_entries
	LANGUAGE plpgsql AS $$
DECLARE
	s idemq_internal.schedule_entries := idemq_internal.try_lock_schedule(name);
BEGIN
	IF s.name IS NULL THEN
		PERFORM idemq_internal.no_schedule(name);
	ELSIF NOT idemq_internal.may_change(s) THEN
		RAISE EXCEPTION 'permission denied for schedule "%"', name USING ERRCODE = '42501',
			DETAIL = 'Only the role that created the schedule and administrators of its queue may pause and resume it.',
			HINT = 'Ask that role or an administrator to pause or resume the schedule.';
	END IF;
	RETURN s;
END $$;

-- The payload and the headers are not recorded, because pg_monitor may read the row.
CREATE FUNCTION idemq_internal.audit_schedule(action text, s idemq_internal.schedule_entries,
	job_id bigint DEFAULT NULL)
	RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq_internal.audit(action, q.queue_id, q.name,
		CASE WHEN action = 'schedule' THEN jsonb_build_object('schedule', s.name, 'cron', s.cron,
			'time_zone', s.time_zone) ELSE jsonb_build_object('schedule', s.name) END, job_id)
		FROM idemq.queues q WHERE q.queue_id = s.queue_id;
END $$;

CREATE FUNCTION idemq_internal.pause_schedule_impl(name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	s idemq_internal.schedule_entries := idemq_internal.lock_schedule(name);
BEGIN
	IF s.paused_at IS NULL THEN
		UPDATE idemq_internal.schedule_entries e SET paused_at = idemq.clock_timestamp()
			WHERE e.name = s.name;
		PERFORM idemq_internal.audit_schedule('pause_schedule', s);
	END IF;
END $$;

CREATE FUNCTION idemq_internal.resume_schedule_impl(name text) RETURNS timestamptz
	LANGUAGE plpgsql AS $$
DECLARE
	s idemq_internal.schedule_entries := idemq_internal.lock_schedule(name);
BEGIN
	IF s.paused_at IS NOT NULL THEN
		s.done_until := greatest(s.done_until, idemq.clock_timestamp());
		UPDATE idemq_internal.schedule_entries e SET paused_at = NULL, done_until = s.done_until
			WHERE e.name = s.name;
		PERFORM idemq_internal.audit_schedule('resume_schedule', s);
	END IF;
	RETURN idemq_internal.next_run(s.cron, s.time_zone, s.done_until);
END $$;

-- When the worker or idemq.tick() must run each schedule (schedule/calendar.c).  retry: a schedule
-- that has failed is due at once, without the pause before a retry.  place: the ctid of its row.
CREATE FUNCTION idemq_internal.schedule_times(now timestamptz, retry boolean)
	RETURNS TABLE (name text, at timestamptz, failed_at timestamptz, place text)
	STABLE LANGUAGE sql AS $$
	SELECT s.name, idemq_internal.due_at(s.cron, s.time_zone, s.done_until,
		CASE WHEN NOT retry THEN s.failed_at END, now), s.failed_at, s.ctid::text
		FROM idemq_internal.schedule_entries s WHERE s.paused_at IS NULL
$$;

-- When the worker must run a schedule again that has failed, or whose row another session holds: the
-- latter is tried again as if it had failed now.  NULL: the schedule no longer exists or is paused.
CREATE FUNCTION idemq_internal.retry_at(schedule text) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
	now timestamptz := idemq.clock_timestamp();
BEGIN
	RETURN (SELECT idemq_internal.due_at(s.cron, s.time_zone, s.done_until, now, now)
		FROM idemq_internal.schedule_entries s WHERE s.name = schedule AND s.paused_at IS NULL);
END $$;

-- Behind one that has failed there is only what has failed since.
CREATE FUNCTION idemq_internal.due_schedules_impl() RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
	now timestamptz := idemq.clock_timestamp();
BEGIN
	INSERT INTO idemq_internal.ticker (called_at) VALUES (now) ON CONFLICT (one) DO UPDATE
		SET called_at = excluded.called_at;
	RETURN ARRAY(SELECT t.name
		FROM idemq_internal.latest(
		'SELECT name FROM idemq_internal.schedule_times($1, true) '
		'WHERE at <= $1 ORDER BY failed_at NULLS FIRST, name', now) AS t (name text));
END $$;

-- For the background worker: runs schedules that are due together, in one subtransaction.  Returns
-- the result of run_schedules, or NULLs if one of them failed: then all are rolled back, and the
-- worker runs each by itself.  Deferred triggers on idemq.jobs run here rather than at COMMIT, where
-- their errors would also roll back other tasks.
CREATE FUNCTION idemq_internal.try_run_schedules(names text[], places text[],
	OUT due timestamptz[], OUT place text[])
	LANGUAGE plpgsql AS $$
BEGIN
	SELECT r.due, r.place INTO due, place FROM idemq_internal.run_schedules(names, places) r;
	SET CONSTRAINTS ALL IMMEDIATE;
EXCEPTION WHEN query_canceled OR OTHERS THEN
	due := NULL;
	place := NULL;
END $$;

-- For the background worker: runs one schedule that is due.  Returns when it is due again, and the
-- place of its row, or (0,0), where no row can be.  If it fails, only its tick is rolled back, and the
-- error is noted.  A schedule may fail every second, so the log gets one line per error and minute.
CREATE FUNCTION idemq_internal.run_or_note(schedule text, INOUT place text, OUT due timestamptz,
	OUT failed boolean)
	LANGUAGE plpgsql AS $$
BEGIN
	SELECT r.due[1], coalesce(r.place[1], '(0,0)') INTO due, place
		FROM idemq_internal.run_schedules(ARRAY[schedule], ARRAY[place]) r;
	SET CONSTRAINTS ALL IMMEDIATE;
	failed := false;
EXCEPTION WHEN query_canceled OR OTHERS THEN
	IF NOT EXISTS (SELECT FROM idemq_internal.schedule_entries s WHERE s.name = schedule
		AND s.last_error = SQLERRM
		AND date_trunc('minute', s.failed_at) = date_trunc('minute', idemq.clock_timestamp()))
	THEN
		RAISE LOG 'schedule "%": %', schedule, SQLERRM USING ERRCODE = SQLSTATE;
	END IF;
	PERFORM idemq_internal.schedule_failed(schedule, SQLERRM);
	place := '(0,0)';
	due := idemq_internal.retry_at(schedule);
	failed := true;
END $$;

-- For idemq.tick: runs one schedule that is due.  Only a schedule that fails is undone, and it is
-- noted, as by run_or_note.  Returns the error and its SQLSTATE; NULLs if it did not fail.
CREATE FUNCTION idemq_internal.try_run_schedule(schedule text, OUT state text, OUT failure text)
	LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq_internal.run_schedule(schedule);
	SET CONSTRAINTS ALL IMMEDIATE;
EXCEPTION WHEN OTHERS THEN
	state := SQLSTATE;
	failure := idemq_internal.schedule_failed(schedule, SQLERRM);
END $$;

-- Enqueues a schedule's job as the role that has made it, by a plain call: what that role may not
-- do any more, its schedule cannot.  That of a tick has the tick's key, and waits for nobody: a
-- session that drops its queue, or has its key in an open transaction, is looked for first; 100 ms
-- are for what comes between.
CREATE FUNCTION idemq_internal.enqueue_scheduled(
	s idemq_internal.schedule_entries, tick timestamptz, is_tick boolean, expires_in interval)
	RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '100ms' AS $$
DECLARE
	queue text := (SELECT q.name FROM idemq.queues q WHERE q.queue_id = s.queue_id);
	role oid := idemq_internal.role_of(s.created_by, s.created_by_oid);
	tick_text text := to_char(tick AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
	key text := CASE WHEN is_tick THEN s.name || '@' || tick_text END;
	job record;
BEGIN
	IF is_tick AND NOT idemq_internal.try_share_queue(s.queue_id) THEN
		RAISE EXCEPTION 'an open transaction is dropping queue "%"', queue
			USING ERRCODE = '55P03',
				HINT = 'The next call to idemq.tick() will try the tick again.';
	ELSIF role IS NULL THEN
		RAISE EXCEPTION 'role "%", which created the schedule, no longer exists',
			s.created_by USING ERRCODE = '42704',
			HINT = format('Ask a role that may enqueue to queue "%s" to call idemq.schedule again.',
				queue);
	ELSIF NOT idemq_internal.role_may(role, s.queue_id, 'enqueue') THEN
		RAISE EXCEPTION 'role "%", which created the schedule, may no longer enqueue to queue "%"',
			s.created_by, queue
			USING ERRCODE = '42501', HINT = format('Ask an administrator of the queue to run SELECT '
				'idemq.grant_queue(%L, %L, ''enqueue''), or call idemq.schedule again.', queue,
					quote_ident(s.created_by));
	END IF;
	IF is_tick THEN
		PERFORM idemq_internal.tick_key(s.queue_id, key);
	END IF;
	SELECT * INTO job
		FROM idemq_internal.as_role(role,
		'SELECT id, outcome::pg_catalog.text FROM idemq.enqueue($1, $2, '
		'key => $3, priority => $4, group_key => $5, max_attempts => $6, headers => $7, expires_in '
			'=> $8, '
		'on_duplicate => ''ignore'', nowait => $9, kind => $10)',
		queue, s.payload, key, s.priority,
			s.group_key, s.max_attempts,
		coalesce(s.headers, '{}') || jsonb_build_object('schedule', s.name, 'tick', tick_text),
			expires_in, is_tick, s.kind)
		AS e (id bigint, outcome text);
	PERFORM idemq_internal.tick_key(0, '');
	IF job.outcome = 'locked' THEN
		RAISE EXCEPTION 'an open transaction holds the key of the tick'
			USING ERRCODE = '55P03',
				HINT = 'The next call to idemq.tick() will try the tick again.';
	ELSIF job.outcome = 'duplicate' THEN
		PERFORM
			FROM idemq_internal.latest(
				'SELECT id FROM idemq.jobs WHERE id = $1 AND enqueued_at < $2',
				job.id, s.created_at)
			AS (id bigint);
		IF FOUND THEN
			RAISE EXCEPTION 'the key of the tick is already in use by job %, which is older than the '
				'schedule', job.id
				USING ERRCODE = 'IQ004',
				HINT =
					'Ask an administrator of the queue to purge the job, or create the schedule under '
					'another name.';
		END IF;
	END IF;
	RETURN job.id;
END $$;

-- Runs a schedule whose row, at place, is locked.  If several ticks were missed, it enqueues only the
-- last one, with its own time in the key.  A tick that fails stays due and is tried again, until the
-- next one replaces it.  Returns whether a tick was enqueued, and the new row and its place.
CREATE FUNCTION idemq_internal.run_tick(INOUT s idemq_internal.schedule_entries, INOUT place tid,
	now timestamptz, OUT ran boolean)
	LANGUAGE plpgsql AS $$
DECLARE
	tick timestamptz := idemq_internal.last_tick(s.cron, s.time_zone, now);
BEGIN
	ran := false;
	IF s.done_until > now + interval '10 min' THEN
		-- By a clock that was ahead.  Up to that, it is waited for: those ticks are enqueued.
		s.done_until := now;
	ELSIF coalesce(tick <= s.done_until, true) THEN
		RETURN;
	ELSIF tick + s.expires_in <= now THEN
		s.done_until := tick;
		s.failed_at := now;
		s.last_error := 'the tick was overdue by more than expires_in';
	ELSE
		s.last_job := idemq_internal.enqueue_scheduled(s, tick, true,
			make_interval(secs => extract(epoch FROM tick + s.expires_in - now)));
		s.done_until := tick;
		s.last_run := tick;
		s.failed_at := NULL;
		s.last_error := NULL;
		ran := true;
	END IF;
	UPDATE idemq_internal.schedule_entries e SET done_until = s.done_until, last_run = s.last_run,
		last_job = s.last_job, failed_at = s.failed_at, last_error = s.last_error
		WHERE e.ctid = place RETURNING e.ctid INTO place;
END $$;

CREATE FUNCTION idemq_internal.run_schedule_impl(name text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
	entry record;
BEGIN
	PERFORM idemq_internal.given('name', run_schedule_impl.name);
	SELECT e AS schedule, e.ctid AS place INTO entry FROM idemq_internal.schedule_entries e
		WHERE e.name = run_schedule_impl.name AND e.paused_at IS NULL FOR UPDATE SKIP LOCKED;
	IF NOT FOUND THEN
		RETURN false;
	END IF;
	RETURN (SELECT r.ran FROM idemq_internal.run_tick(entry.schedule, entry.place,
		idemq.clock_timestamp()) r);
END $$;

-- Looks for each row at its last known place, and then by name.  If a row is updated every second, it
-- has one dead version for each second of the oldest snapshot's age, and a search by name would visit
-- all of them for each tick.  A place is only a hint, so the row there must have one of the names.
-- That condition is written so that no index fits it, because the planner prefers the index of names
-- if the table is small.
CREATE FUNCTION idemq_internal.run_schedules_impl(names text[], places text[],
	OUT due timestamptz[], OUT place text[])
	LANGUAGE plpgsql AS $$
DECLARE
	now timestamptz := idemq.clock_timestamp();
	entry record;
	ran record;
	many int := cardinality(names);
BEGIN
	PERFORM idemq_internal.given('names', names), idemq_internal.given('places', places);
	due := array_fill(NULL::timestamptz, ARRAY[many]);
	place := array_fill(NULL::text, ARRAY[many]);
	FOR entry IN SELECT e AS schedule, e.ctid AS place, array_position(names, e.name) AS n
		FROM idemq_internal.schedule_entries e
		WHERE e.ctid = ANY (places::tid[]) AND array_position(names, e.name) IS NOT NULL
			AND e.paused_at IS NULL
		FOR UPDATE SKIP LOCKED
	LOOP
		SELECT * INTO ran FROM idemq_internal.run_tick(entry.schedule, entry.place, now);
		due[entry.n] := idemq_internal.due_at((ran.s).cron, (ran.s).time_zone, (ran.s).done_until,
			(ran.s).failed_at, now);
		place[entry.n] := ran.place;
	END LOOP;
	FOR entry IN SELECT e AS schedule, e.ctid AS place, array_position(names, e.name) AS n
		FROM idemq_internal.schedule_entries e
		WHERE e.name = ANY (ARRAY(SELECT m.name FROM unnest(names, place) m (name, place)
			WHERE m.place IS NULL)) AND e.paused_at IS NULL
		FOR UPDATE SKIP LOCKED
	LOOP
		SELECT * INTO ran FROM idemq_internal.run_tick(entry.schedule, entry.place, now);
		due[entry.n] := idemq_internal.due_at((ran.s).cron, (ran.s).time_zone, (ran.s).done_until,
			(ran.s).failed_at, now);
		place[entry.n] := ran.place;
	END LOOP;
	-- Another session holds the row, or there is none, or the schedule is paused (the last two: NULL).
	FOR i IN 1 .. many LOOP
		IF place[i] IS NULL THEN
			due[i] := idemq_internal.retry_at(names[i]);
		END IF;
	END LOOP;
END $$;

CREATE FUNCTION idemq_internal.schedule_failed_impl(name text, error text) RETURNS text
	LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq_internal.given('name', schedule_failed_impl.name),
		idemq_internal.given('error', error);
	UPDATE idemq_internal.schedule_entries e SET failed_at = idemq.clock_timestamp(),
		last_error = error
		WHERE e.name =
		(SELECT s.name FROM idemq_internal.schedule_entries s
			WHERE s.name = schedule_failed_impl.name FOR UPDATE SKIP LOCKED);
	RETURN format('schedule "%s": %s', name, error);
END $$;

-- The row is not locked: what a tick writes at the same time is nothing that is read here.
CREATE FUNCTION idemq_internal.run_schedule_now_impl(name text) RETURNS bigint
	LANGUAGE plpgsql AS $$
DECLARE
	s idemq_internal.schedule_entries;
	job bigint;
BEGIN
	PERFORM idemq_internal.given('name', run_schedule_now_impl.name);
	SELECT e.* INTO s FROM idemq_internal.schedule_entries e
		WHERE e.name = run_schedule_now_impl.name;
	IF NOT FOUND THEN
		PERFORM idemq_internal.no_schedule(name);
	ELSIF NOT idemq_internal.may_change(s) THEN
		RAISE EXCEPTION 'permission denied for schedule "%"', name USING ERRCODE = '42501',
			DETAIL = 'Only the role that created the schedule and administrators of its queue may run it.',
				HINT = 'Ask that role or an administrator to run the schedule.';
	END IF;
	job := idemq_internal.enqueue_scheduled(s, idemq.clock_timestamp(), false, s.expires_in);
	PERFORM idemq_internal.audit_schedule('run_schedule_now', s, job);
	RETURN job;
END $$;
