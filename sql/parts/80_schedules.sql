-- Topic: Schedules

CREATE FUNCTION idemq.schedule(
	name text, cron text, queue text, payload jsonb, time_zone text DEFAULT 'UTC',
	priority int DEFAULT 4, group_key text DEFAULT NULL, max_attempts int DEFAULT NULL,
	headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL, kind text DEFAULT NULL)
	RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_schedule';
COMMENT ON FUNCTION idemq.schedule(text, text, text, jsonb, text, int, text, int, jsonb, interval, text)
	IS 'enqueue a job at each tick of a cron expression, once; creates or replaces the schedule of that name (up to 256 bytes, unique in the database); returns its next run; raises 55000 where idemq.worker is off and nothing calls idemq.tick(); needs enqueue';

CREATE FUNCTION idemq.unschedule(name text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_unschedule';
COMMENT ON FUNCTION idemq.unschedule(text)
	IS 'end a schedule; jobs that it has enqueued stay; returns false when there is none that you may see; for its creator and those with admin';

CREATE FUNCTION idemq.next_tick(
	cron text, time_zone text DEFAULT 'UTC', after timestamptz DEFAULT pg_catalog.clock_timestamp())
	RETURNS timestamptz STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_next_tick';
COMMENT ON FUNCTION idemq.next_tick(text, text, timestamptz)
	IS 'the first tick of a cron expression after a time; NULL when it never comes';

CREATE FUNCTION idemq.last_tick(
	cron text, time_zone text DEFAULT 'UTC', until timestamptz DEFAULT pg_catalog.clock_timestamp())
	RETURNS timestamptz STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_last_tick';
COMMENT ON FUNCTION idemq.last_tick(text, text, timestamptz)
	IS 'the last tick of a cron expression not after a time; NULL when there was none';

-- Topic: Inside

CREATE FUNCTION idemq.next_run(cron text, time_zone text, done_until timestamptz)
	RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_next_run';
COMMENT ON FUNCTION idemq.next_run(text, text, timestamptz)
	IS 'for idemq.schedules: the tick that is due, or else the next one; NULL when the time zone is not known';

CREATE FUNCTION idemq.may_enqueue(queue_id int) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_may_enqueue';
COMMENT ON FUNCTION idemq.may_enqueue(int) IS 'whether the current role may enqueue to a queue; the view idemq.schedules asks it';

CREATE FUNCTION idemq.may_change_schedule(queue_id int, created_by name, created_by_oid oid) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_may_change_schedule';
COMMENT ON FUNCTION idemq.may_change_schedule(int, name, oid)
	IS 'whether the current role may replace and end a schedule that this role has made for this queue; the view idemq.schedules asks it';

-- The worker lists them again; a restore writes them as well (hence ENABLE ALWAYS).
CREATE FUNCTION idemq.schedules_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_schedules_changed';
COMMENT ON FUNCTION idemq.schedules_changed() IS 'trigger: has the background worker look at the schedules anew';

CREATE TRIGGER idemq_schedules_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idemq.schedule_entries
	FOR EACH STATEMENT EXECUTE FUNCTION idemq.schedules_changed();
ALTER TABLE idemq.schedule_entries ENABLE ALWAYS TRIGGER idemq_schedules_changed;

-- What a job holds is for the roles that may change the schedule.
CREATE VIEW idemq.schedules WITH (security_barrier) AS
	SELECT e.name, q.name AS queue, e.cron, e.time_zone,
		idemq.next_run(e.cron, e.time_zone, e.done_until) AS next_run,
		e.last_run, e.last_job, e.failed_at,
		CASE WHEN m.may_change THEN e.last_error END AS last_error,
		CASE WHEN m.may_change THEN e.payload END AS payload,
		CASE WHEN m.may_change THEN e.headers END AS headers,
		CASE WHEN m.may_change THEN e.group_key END AS group_key,
		e.priority, e.max_attempts, e.expires_in, e.created_by, e.created_at, e.kind
	FROM idemq.schedule_entries e
	JOIN idemq.queues q ON q.queue_id OPERATOR(pg_catalog.=) e.queue_id
	CROSS JOIN LATERAL (
		SELECT idemq.may_change_schedule(e.queue_id, e.created_by, e.created_by_oid) AS may_change) m
	WHERE idemq.may_enqueue(e.queue_id) OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');
COMMENT ON VIEW idemq.schedules IS 'one row a schedule of a queue that you may enqueue to or administer (pg_monitor: every queue); payload, headers, group_key and last_error for its creator and administrators alone';
COMMENT ON COLUMN idemq.schedules.name IS 'its name, unique in the database';
COMMENT ON COLUMN idemq.schedules.queue IS 'queue of its jobs';
COMMENT ON COLUMN idemq.schedules.cron IS 'when it ticks';
COMMENT ON COLUMN idemq.schedules.time_zone IS 'zone of the cron expression';
COMMENT ON COLUMN idemq.schedules.last_error IS 'why a tick could not be enqueued';
COMMENT ON COLUMN idemq.schedules.payload IS 'of its jobs';
COMMENT ON COLUMN idemq.schedules.headers IS 'of its jobs, beside schedule and tick';
COMMENT ON COLUMN idemq.schedules.group_key IS 'of its jobs';
COMMENT ON COLUMN idemq.schedules.priority IS 'of its jobs';
COMMENT ON COLUMN idemq.schedules.max_attempts IS 'of its jobs; NULL: the queue''s';
COMMENT ON COLUMN idemq.schedules.expires_in IS 'a job that was not claimed for so long after its tick is cancelled; a tick that is later is left out';
COMMENT ON COLUMN idemq.schedules.kind IS 'of its jobs; NULL: none';
COMMENT ON COLUMN idemq.schedules.created_by IS 'role as which ticks are enqueued';
COMMENT ON COLUMN idemq.schedules.created_at IS 'when it was made, or made again';
COMMENT ON COLUMN idemq.schedules.next_run IS 'the tick that is due, when it is over, or else the next one; NULL when the server does not know its time zone';
COMMENT ON COLUMN idemq.schedules.last_run IS 'the last tick that was enqueued: its own time, not when that was';
COMMENT ON COLUMN idemq.schedules.last_job IS 'the job of last_run';
COMMENT ON COLUMN idemq.schedules.failed_at IS 'when a tick was last tried that could not be enqueued; NULL when one has been since';

CREATE FUNCTION idemq.due_schedules() RETURNS text[]
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_due_schedules';
COMMENT ON FUNCTION idemq.due_schedules()
	IS 'part of idemq.tick: the names of schedules that have a tick to enqueue; notes that it was asked';

CREATE FUNCTION idemq.run_schedule(name text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_run_schedule';
COMMENT ON FUNCTION idemq.run_schedule(text)
	IS 'part of idemq.tick: enqueue the last tick of a schedule that is due; returns false when there is none, or another session is at it';

CREATE FUNCTION idemq.schedule_failed(name text, error text) RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_schedule_failed';
COMMENT ON FUNCTION idemq.schedule_failed(text, text)
	IS 'part of idemq.tick: note why a tick could not be enqueued; returns that with the name in front';

-- Topic: Schedules

-- A transaction for each schedule, so that one that fails undoes no other; then an
-- error, for the caller.  A procedure that commits cannot pin search_path: it
-- uses no operator, and no name without its schema, of a type neither.
CREATE PROCEDURE idemq.tick() LANGUAGE plpgsql AS $$
DECLARE
	due pg_catalog.text[];
	schedule pg_catalog.text;
	state pg_catalog.text;
	failures pg_catalog.text[];
BEGIN
	COMMIT;
	SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
	due := idemq.due_schedules();
	FOREACH schedule IN ARRAY due LOOP
		COMMIT;
		SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
		BEGIN
			PERFORM idemq.run_schedule(schedule);
		EXCEPTION WHEN OTHERS THEN
			state := coalesce(state, SQLSTATE);
			failures := pg_catalog.array_append(failures, idemq.schedule_failed(schedule, SQLERRM));
		END;
	END LOOP;
	COMMIT;
	IF failures IS NOT NULL THEN
		RAISE EXCEPTION USING ERRCODE = state, MESSAGE = failures[1],
			DETAIL = pg_catalog.format('Ticks not enqueued: %s.', pg_catalog.cardinality(failures)),
			HINT = 'Look at last_error in idemq.schedules; they are tried again in a minute.';
	END IF;
END $$;
COMMENT ON PROCEDURE idemq.tick()
	IS 'enqueue the ticks that are due, each in a transaction of its own; the background worker does so by itself; where idemq.worker is off, pg_cron, or another driver, calls this once a minute; raises the first failure when all are tried';
