-- A function whose symbol is idemq_sql_wrapper (src/api/wrapper.c) calls the one named NAME_impl in
-- schema idemq_internal, which has the same arguments, as the owner of the tables.

-- Topic: Test clock

-- Defined before the tables, because column defaults call these functions.
CREATE FUNCTION idemq.now() RETURNS timestamptz
	STABLE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_now';
COMMENT ON FUNCTION idemq.now()
	IS 'Return the start time of this transaction according to idemq''s clock. This is now() plus the total added by idemq.advance_clock as of the first call in the transaction. Use it to compute run_at.';

CREATE FUNCTION idemq.clock_timestamp() RETURNS timestamptz
	PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_clock_timestamp';
COMMENT ON FUNCTION idemq.clock_timestamp()
	IS 'Return the current time according to idemq''s clock, which is clock_timestamp() plus the total added by idemq.advance_clock.';

CREATE FUNCTION idemq.test_clock_ahead() RETURNS interval
	STABLE PARALLEL RESTRICTED LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_test_clock_ahead';
COMMENT ON FUNCTION idemq.test_clock_ahead()
	IS 'Return how far idemq''s clock is ahead of the server''s clock. Returns NULL if idemq.test_clock is off.';

CREATE PROCEDURE idemq.advance_clock(by interval)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_advance_clock';
COMMENT ON PROCEDURE idemq.advance_clock(interval)
	IS 'Move idemq''s clock forward on a test server. Returns when the background worker has done all work that is due by the new time, or after 30 s with a warning that lists the remaining work. Raises 2D000 in a transaction block, 55000 if idemq.test_clock is off, 22023 if the interval contains months, and 22008 if the clock would be more than ten years ahead.';

-- Topic: Internal

-- The C functions that they call; src/api/internal.c says what each takes and raises.
CREATE FUNCTION idemq_internal.caller() RETURNS oid
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_caller';
CREATE FUNCTION idemq_internal.now() RETURNS timestamptz
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_now';
CREATE FUNCTION idemq_internal.given(name text, value "any") RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_given';
CREATE FUNCTION idemq_internal.check_text(name text, value text, most int) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_check_text';
CREATE FUNCTION idemq_internal.check_int(name text, value int, lowest int, highest int) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_check_int';
CREATE FUNCTION idemq_internal.check_interval(name text, value interval, lowest int DEFAULT 1)
	RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_check_interval';
CREATE FUNCTION idemq_internal.check_document(name text, value jsonb, reserve int DEFAULT 0)
	RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_check_document';
CREATE FUNCTION idemq_internal.check_kind(kind text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_check_kind';
CREATE FUNCTION idemq_internal.check_ids(name text, value bigint[]) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_check_ids';
CREATE FUNCTION idemq_internal.raise_message(warning boolean, message text, hint text DEFAULT NULL,
	detail text DEFAULT NULL) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_raise_message';
CREATE FUNCTION idemq_internal.mark_cancels(queue_id int) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_mark_cancels';
CREATE FUNCTION idemq_internal.end_waits(pids int[]) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_end_waits';
CREATE FUNCTION idemq_internal.queue(name text, privilege text, hold text DEFAULT '',
	argument text DEFAULT 'queue')
	RETURNS int
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_queue';
CREATE FUNCTION idemq_internal.tick_key(queue_id int, key text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_tick_key';
CREATE FUNCTION idemq_internal.try_share_queue(queue_id int) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_try_share_queue';
CREATE FUNCTION idemq_internal.worker_comes() RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_worker_comes';
CREATE FUNCTION idemq_internal.role_may(role oid, queue_id int, privilege text) RETURNS boolean
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_role_may';
CREATE FUNCTION idemq_internal.role_of(name name, role_oid oid) RETURNS oid
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_role_of';
CREATE FUNCTION idemq_internal.lock_role(role oid, what text DEFAULT 'grants') RETURNS name
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_lock_role';
CREATE FUNCTION idemq_internal.settle_usage(role oid) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_settle_usage';
CREATE FUNCTION idemq_internal.audit(action text, queue_id int, queue text,
	details jsonb DEFAULT NULL,
	job_id bigint DEFAULT NULL, jobs bigint DEFAULT NULL) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_audit';
CREATE FUNCTION idemq_internal.latest(query text) RETURNS SETOF record
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_latest';
CREATE FUNCTION idemq_internal.latest(query text, VARIADIC args "any") RETURNS SETOF record
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_latest';
CREATE FUNCTION idemq_internal.as_caller(query text) RETURNS SETOF record
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_as_caller';
CREATE FUNCTION idemq_internal.as_caller(query text, VARIADIC args "any") RETURNS SETOF record
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_as_caller';
CREATE FUNCTION idemq_internal.as_role(role oid, query text, VARIADIC args "any")
	RETURNS SETOF record
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_as_role';
CREATE FUNCTION idemq_internal.deletable(queue_id int, ids bigint[], hold boolean)
	RETURNS bigint[]
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_deletable';
CREATE FUNCTION idemq_internal.forget_queue(queue_id int) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_forget_queue';

-- Above READ COMMITTED a row may be newer than the transaction's snapshot, and nothing can delete
-- it then.
CREATE FUNCTION idemq_internal.refuse_newer(there boolean, what text) RETURNS void
	LANGUAGE plpgsql AS $$
BEGIN
	IF there THEN
		RAISE EXCEPTION 'could not serialize access due to a concurrent %',
			what USING ERRCODE = '40001',
			HINT = 'Run the transaction again.';
	END IF;
END $$;
