-- Topic: Producers

-- As a statement of its own: the defaults keep their place in it, and the fewer digits
-- that takes, the shorter is their text.  Above 2 kB the row in pg_proc is compressed, and
-- each parse of a call decompresses it: by lz4, where the server has that, since pglz takes
-- 13,500 instructions.
DO $do$
DECLARE
	before text := pg_catalog.current_setting('default_toast_compression');
BEGIN
	BEGIN
		PERFORM pg_catalog.set_config('default_toast_compression', 'lz4', true);
	EXCEPTION WHEN invalid_parameter_value THEN
		NULL;
	END;
EXECUTE $sql$
CREATE FUNCTION idemq.enqueue(
	queue text, payload jsonb, key text DEFAULT NULL, delay interval DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, priority int DEFAULT 4, group_key text DEFAULT NULL,
	max_attempts int DEFAULT NULL, headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL,
	key_ttl interval DEFAULT NULL, on_duplicate text DEFAULT 'keep', nowait boolean DEFAULT false,
	kind text DEFAULT NULL, max_wait interval DEFAULT NULL,
	depends_on bigint[] DEFAULT NULL, on_parent_failure text DEFAULT 'cancel')
	RETURNS idemq.enqueue_result
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_enqueue'
$sql$;
EXECUTE $sql$
CREATE FUNCTION idemq.enqueue_many(
	queue text, payloads jsonb[], keys text[] DEFAULT NULL, run_ats timestamptz[] DEFAULT NULL,
	priorities int[] DEFAULT NULL, group_keys text[] DEFAULT NULL, delays interval[] DEFAULT NULL,
	max_attempts int[] DEFAULT NULL, headers jsonb[] DEFAULT NULL,
	expires_ins interval[] DEFAULT NULL,
	key_ttls interval[] DEFAULT NULL, on_duplicate text DEFAULT 'keep',
	nowait boolean DEFAULT false,
	kinds text[] DEFAULT NULL, max_wait interval DEFAULT NULL,
	depends_on bigint[] DEFAULT NULL, on_parent_failure text DEFAULT 'cancel')
	RETURNS TABLE (ord int, id bigint, outcome idemq.outcome, status idemq.status, result jsonb)
	ROWS 1000 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_enqueue_many'
$sql$;
	PERFORM pg_catalog.set_config('default_toast_compression', before, true);
END $do$;
COMMENT ON FUNCTION idemq.enqueue(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, interval, text, boolean, text, interval, bigint[], text)
	IS 'Add a job. Returns the job''s id and the outcome accepted. If the key is in use, returns the id, status and result of the existing job and the outcome duplicate. Raises IQ007 if the queue (max_unfinished) or the group (group_max_unfinished) is full. Requires enqueue.
- key: up to 1,024 bytes. A call waits for any open transaction that uses the same key. With nowait, it returns locked without an id instead of waiting.
- key_ttl: time after this call at which the key of the finished job becomes free, used instead of the queue''s idempotency_window
- on_duplicate: keep raises IQ003 if the payload or kind differs, ignore does not compare them, and error raises IQ004
- on_duplicate replace: a waiting job gets the new payload and time
- on_duplicate rerun: a running or finished job runs once more with the new payload, and the outcome is rerun. A waiting job is never postponed.
- max_wait: maximum total delay with replace. Each request restarts the delay, but the job becomes due no later than max_wait after the first request.
- delay: may be 0
- priority: from 0 (claimed first) to 9 (claimed last)
- group_key: up to 1,024 bytes
- kind: label of up to 64 bytes that tells the worker which handler to use
- depends_on: ids of jobs that must complete first. The jobs may be in any queue on which you hold a privilege; otherwise, the call raises IQ002.
- on_parent_failure: what happens if one of those jobs is dead or cancelled: cancel, wait or run';

COMMENT ON FUNCTION idemq.enqueue_many(text, jsonb[], text[], timestamptz[], int[], text[], interval[], int[], jsonb[], interval[], interval[], text, boolean, text[], interval, bigint[], text)
	IS 'Add many jobs, as idemq.enqueue does. Adds all or none, except that nowait skips jobs whose keys are locked. A NULL element means that the argument is omitted for that job. depends_on and on_parent_failure apply to every job. Returns one row per element, numbered from 1 in ord. If keys are given, the rows are in key order. Requires enqueue.';

-- The C function is that of idemq.enqueue: INOUT arguments follow its own, and are not read.
CREATE PROCEDURE idemq.enqueue_job(
	queue text, payload jsonb, key text DEFAULT NULL, delay interval DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, priority int DEFAULT 4, group_key text DEFAULT NULL,
	max_attempts int DEFAULT NULL, headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL,
	key_ttl interval DEFAULT NULL, on_duplicate text DEFAULT 'keep', nowait boolean DEFAULT false,
	kind text DEFAULT NULL, max_wait interval DEFAULT NULL,
	depends_on bigint[] DEFAULT NULL, on_parent_failure text DEFAULT 'cancel',
	INOUT id bigint DEFAULT NULL, INOUT outcome idemq.outcome DEFAULT NULL,
	INOUT status idemq.status DEFAULT NULL, INOUT result jsonb DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_enqueue';
COMMENT ON PROCEDURE idemq.enqueue_job(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, interval, text, boolean, text, interval, bigint[], text, bigint, idemq.outcome, idemq.status, jsonb)
	IS 'Call idemq.enqueue as a procedure, for drivers and libraries that treat a SELECT as a read and cache it, send it to a standby or never commit it. Returns id, outcome, status and result. Requires enqueue.';

CREATE FUNCTION idemq.cancel(id bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel';
COMMENT ON FUNCTION idemq.cancel(bigint)
	IS 'Cancel an unfinished job. The token of a running attempt becomes stale, and its worker is notified immediately, even while this call waits for the worker''s transaction. Returns cancelled, or completed, dead or not_found if the job cannot be cancelled. Requires enqueue.';

CREATE FUNCTION idemq.cancel_many(ids bigint[]) RETURNS TABLE (id bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel_many';
COMMENT ON FUNCTION idemq.cancel_many(bigint[])
	IS 'Cancel many jobs in any queues without waiting. The outcome is locked for a job that another open transaction has locked. While the calling transaction is open, the worker of such a job is told to stop; call again for the job. Returns one row per distinct id, in ascending order. Requires enqueue.';

CREATE FUNCTION idemq.cancel_matching(
	queue text, kind text DEFAULT NULL, group_key text DEFAULT NULL, key_prefix text DEFAULT NULL,
	max_jobs int DEFAULT NULL, OUT cancelled bigint, OUT locked bigint)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel_matching';
COMMENT ON FUNCTION idemq.cancel_matching(text, text, text, text, int)
	IS 'Cancel a queue''s unfinished jobs by kind, group_key or the beginning of the key (key_prefix). A job must match all filters that are given. Raises 22004 if all three are NULL. Cancels at most max_jobs jobs, starting with the lowest ids. Never waits. Returns the number of jobs cancelled and the number of jobs locked by other transactions; call again to cancel the latter. Requires enqueue.';

CREATE FUNCTION idemq.retry(id bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_retry';
COMMENT ON FUNCTION idemq.retry(bigint)
	IS 'Make a job ready now if it is retrying, not yet due, dead or cancelled. Returns retrying, or the reason the job was not made ready: current (already ready), locked (running), blocked, completed or not_found. Requires enqueue.
- A dead or cancelled job gets a full set of new attempts and no longer expires. In a group, it waits its turn.
- Its dead-letter record is cancelled, with a NOTICE, unless a worker is running or has completed the record.';

CREATE FUNCTION idemq.redrive(
	queue text, max_jobs int DEFAULT NULL, error text DEFAULT NULL, ids bigint[] DEFAULT NULL)
	RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq.redrive(text, int, text, bigint[])
	IS 'Make a queue''s dead jobs ready again with a full set of new attempts, starting with those that have been dead longest. Returns the number of jobs. Requires admin.
- error: a fingerprint from idemq.errors, or a LIKE pattern for last_error or for the pattern in idemq.errors
- ids: ids of the jobs to redrive
- If several filters are given, a job must match all of them.
- The dead-letter record of each job is cancelled, unless a worker is running or has completed the record. A NOTICE shows the number of cancelled records.';

CREATE FUNCTION idemq_internal.redrive_job(id bigint, token bigint, OUT redriven boolean,
	OUT dead_letter_records bigint)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_redrive_job';

-- Which jobs is asked under the latest snapshot, with the token of the attempt that each died of.
-- Each is then changed by its latest version: if that is dead of another attempt by now, it may be
-- of another error, and stays. In the order of ids, so that two batches never deadlock.  The error
-- is compared as idemq.errors shows it, so both are the same functions.
CREATE FUNCTION idemq_internal.redrive_impl(queue text, max_jobs int, error text, ids bigint[])
	RETURNS bigint
	LANGUAGE plpgsql AS $$
DECLARE
	number int := idemq_internal.queue(queue, 'admin');
	fingerprint text := CASE WHEN error ~ '^[0-9a-f]{16}$' THEN error END;
	redriven bigint;
	dead_letter_records bigint;
BEGIN
	PERFORM idemq_internal.check_int('max_jobs', max_jobs, 1, 2147483647)
		WHERE max_jobs IS NOT NULL;
	PERFORM idemq_internal.check_ids('ids', ids) WHERE ids IS NOT NULL;
	SELECT count(*) FILTER (WHERE r.redriven), coalesce(sum(r.dead_letter_records), 0) INTO redriven, dead_letter_records
		FROM (SELECT * FROM idemq_internal.latest(
		'SELECT j.id, j.token FROM idemq.jobs j
			WHERE j.queue_id = $1 AND j.dead_at IS NOT NULL AND j.status = ''dead''
			AND ($3 IS NULL OR $3 = idemq_internal.error_fingerprint(
				idemq_internal.error_sqlstate((SELECT a.details FROM idemq.attempts a
				WHERE a.job_id = j.id AND a.token <= j.token AND a.outcome IN (''failed'',
					''expired'')
				ORDER BY a.token DESC LIMIT 1), j.last_error), j.last_error))
			AND ($4 IS NULL OR j.last_error LIKE $4
				OR idemq_internal.error_pattern(j.last_error) LIKE $4)'
			|| CASE WHEN ids IS NULL THEN '' ELSE ' AND j.id = ANY ($5)' END ||
				' ORDER BY j.dead_at, j.id LIMIT $2',
		number, max_jobs, fingerprint, CASE WHEN fingerprint IS NULL THEN error END,
			ids) AS (id bigint, token bigint) ORDER BY 1) d
		CROSS JOIN LATERAL idemq_internal.redrive_job(d.id, d.token) r;
	IF dead_letter_records > 0 THEN
		PERFORM idemq_internal.raise_message(false,
			format('cancelled dead-letter records: %s', dead_letter_records));
	END IF;
	IF redriven > 0 THEN
		PERFORM idemq_internal.audit('redrive', number, queue, nullif(jsonb_strip_nulls(
			jsonb_build_object('error', error, 'ids', cardinality(ids)::text,
				'dead_letter_records', nullif(dead_letter_records, 0)::text)), '{}'),
				jobs => redriven);
	END IF;
	RETURN redriven;
END $$;

CREATE FUNCTION idemq.retry_many(ids bigint[]) RETURNS TABLE (id bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_retry_many';
COMMENT ON FUNCTION idemq.retry_many(bigint[])
	IS 'Retry many jobs in any queues, as idemq.retry does. Returns one row per distinct id, in ascending order. Requires enqueue.';

CREATE FUNCTION idemq.reschedule(id bigint, run_at timestamptz DEFAULT NULL,
	priority int DEFAULT NULL)
	RETURNS idemq.outcome LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_reschedule';
COMMENT ON FUNCTION idemq.reschedule(bigint, timestamptz, int)
	IS 'Change the run time or the priority of a waiting job. NULL leaves a value unchanged, and a run_at in the past means now. A job in a group keeps its position in the group. The number of attempts, last_error and expires_at do not change. Returns accepted, or the reason the job was not changed: locked (running), completed, dead, cancelled or not_found. Requires enqueue.';

-- Topic: Workers

CREATE FUNCTION idemq.claim(
	queue text, max_jobs int DEFAULT 1, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS SETOF idemq.claimed_job
	ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_claim';
COMMENT ON FUNCTION idemq.claim(text, int, interval, text, boolean)
	IS 'Claim up to max_jobs ready jobs and begin an attempt of each. Returns one row per job, with the token to pass to all later calls, or no row if no job is ready. The lease argument overrides the queue''s lease. With attach, the lease also ends when the session ends. Requires claim.';

CREATE FUNCTION idemq.claim_any(
	queues text[], max_jobs int DEFAULT 1, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS SETOF idemq.claimed_queue_job
	ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_claim_any';
COMMENT ON FUNCTION idemq.claim_any(text[], int, interval, text, boolean)
	IS 'Claim jobs from several queues, in the given order, as idemq.claim does. Returns each job with the name of its queue. Requires claim.';

CREATE FUNCTION idemq.claim_job(
	id bigint, lease interval DEFAULT NULL, worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS idemq.claim_result
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_claim_job';
COMMENT ON FUNCTION idemq.claim_job(bigint, interval, text, boolean)
	IS 'Claim one job and begin an attempt. Returns an outcome: claimed, claimed_again (attempt > 1), locked (until retry_after), completed (with the result), dead, cancelled, blocked, not_due (until retry_after, or because the queue or group is paused, held back or at a limit) or not_found. Requires claim.';

CREATE FUNCTION idemq.heartbeat(id bigint, token bigint, lease interval DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_heartbeat';
COMMENT ON FUNCTION idemq.heartbeat(bigint, bigint, interval)
	IS 'Extend the lease of a job, counting from now. Takes effect immediately, and a rollback does not undo it. If the lease table is full, the extension takes effect when this transaction commits instead. Returns an outcome.
- outcome current: the lease was extended
- outcome stale or not_found: the lease has been lost
- outcome expired: job_timeout has passed
- outcome cancelled: an open transaction is cancelling the job, or taking it back with revoke_lease or drop_queue. Roll back and release the job; if that transaction is rolled back, the job becomes ready again.
- lease: NULL extends the lease by the duration that it had after the claim, even after a server crash. A different duration also applies to later heartbeats, until the server restarts. The lease never extends beyond the queue''s job_timeout, counted from the claim.';

CREATE FUNCTION idemq.heartbeat_many(
	ids bigint[], tokens bigint[], lease interval DEFAULT NULL, end_waits int[] DEFAULT '{}',
	ahead boolean DEFAULT NULL)
	RETURNS TABLE (id bigint, token bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_heartbeat_many';
COMMENT ON FUNCTION idemq.heartbeat_many(bigint[], bigint[], interval, int[], boolean)
	IS 'Extend the leases of many jobs, as idemq.heartbeat does. Returns one row per element, with the id and token.
- end_waits: process ids of sessions with the same login role; their wait or wait_any ends now, as with idemq.report_worker
- ahead: true marks jobs that the worker has claimed but cannot begin yet. If their leases end, the attempts do not count. false removes the mark before the worker begins the jobs; the outcome blocked means that the queue is paused or held back, so the worker must release the job instead. NULL changes nothing.';

CREATE FUNCTION idemq.validate(id bigint, token bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_validate';
COMMENT ON FUNCTION idemq.validate(bigint, bigint)
	IS 'Check whether a token is valid, without changing anything. Returns current, expired (the deadline has passed, but no other attempt has begun), cancelled (an open transaction is cancelling the job), stale or not_found.';

CREATE FUNCTION idemq.commit(id bigint, token bigint, result jsonb DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit';
COMMENT ON FUNCTION idemq.commit(bigint, bigint, jsonb)
	IS 'Complete a job with its result in this transaction. Returns committed, or raises IQ001 (stale token), IQ002 (no such job) or IQ006 (already committed). Call it before you perform the effect.';

CREATE FUNCTION idemq.try_commit(id bigint, token bigint, result jsonb DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_try_commit';
COMMENT ON FUNCTION idemq.try_commit(bigint, bigint, jsonb)
	IS 'Complete a job in this transaction, as idemq.commit does. Returns committed, or returns already_committed, stale or not_found instead of raising an error. Apply the effect only if the outcome is committed.';

CREATE PROCEDURE idemq.commit_job(
	id bigint, token bigint, result jsonb DEFAULT NULL, INOUT outcome idemq.outcome DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_job';
COMMENT ON PROCEDURE idemq.commit_job(bigint, bigint, jsonb, idemq.outcome)
	IS 'Call idemq.commit as a procedure. It runs in the caller''s transaction and does not end that transaction. Returns committed, or raises IQ001, IQ002 or IQ006.';

CREATE FUNCTION idemq.commit_many(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL)
	RETURNS TABLE (id bigint, token bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_many';
COMMENT ON FUNCTION idemq.commit_many(bigint[], bigint[], jsonb[])
	IS 'Complete many jobs, as idemq.try_commit does. Returns one row per pair of id and token. Join the rows by id and token, and apply only the effects of committed jobs.';

CREATE FUNCTION idemq.commit_and_claim(
	id bigint, token bigint, result jsonb DEFAULT NULL,
	queue text DEFAULT NULL, max_jobs int DEFAULT 1, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS SETOF idemq.claimed_job
	ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_and_claim';
COMMENT ON FUNCTION idemq.commit_and_claim(bigint, bigint, jsonb, text, int, interval, text, boolean)
	IS 'Complete one job and claim the next one in a single transaction, as idemq.commit and idemq.claim do. Returns the claimed jobs, or raises IQ001, IQ002 or IQ006 and claims none.
- queue: queue of the next job; by default, the queue of the committed job
- If the queue is paused, held back or at a limit, or this role may not claim from it, no row is returned, but the job is still completed.
- The claimed jobs never include the next job of the same group, because that job becomes ready only after the transaction commits.';

CREATE FUNCTION idemq.commit_many_and_claim(
	ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL,
	queue text DEFAULT NULL, max_jobs int DEFAULT 1, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS TABLE (
		outcome idemq.outcome, id bigint, token bigint, attempt int, max_attempts int,
		deadline timestamptz, payload jsonb, key text, group_key text, checkpoint jsonb,
		enqueued_at timestamptz, headers jsonb, kind text)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_many_and_claim';
COMMENT ON FUNCTION idemq.commit_many_and_claim(bigint[], bigint[], jsonb[], text, int, interval, text, boolean)
	IS 'Complete many jobs and claim others in a single transaction, as idemq.commit_many and idemq.claim do. Returns one row per pair of id and token, with the outcome, and then one row per claimed job, with the outcome claimed. By default, jobs are claimed from the queue of the first job that the call commits; if it commits none, it claims none.';

CREATE FUNCTION idemq.commit_once(id bigint, result jsonb DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_once';
COMMENT ON FUNCTION idemq.commit_once(bigint, jsonb)
	IS 'Complete a ready job without claiming it. Returns committed the first time and already_committed afterwards, or the reason the job was not completed: locked, dead, cancelled, blocked, not_due (not yet due, or the queue or group is paused, held back or at a limit) or not_found. Requires claim.';

CREATE FUNCTION idemq.fail(
	id bigint, token bigint, error text DEFAULT NULL, retry_in interval DEFAULT NULL,
	permanent boolean DEFAULT false, details jsonb DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_fail';
COMMENT ON FUNCTION idemq.fail(bigint, bigint, text, interval, boolean, jsonb)
	IS 'End a failed attempt. The job is retried after the queue''s backoff, or after retry_in, which may be 0. Stores error and details in idemq.attempts. Returns retrying, dead (no attempts are left, or permanent is true), stale or not_found.';

CREATE PROCEDURE idemq.fail_job(
	id bigint, token bigint, error text DEFAULT NULL, retry_in interval DEFAULT NULL,
	permanent boolean DEFAULT false, details jsonb DEFAULT NULL,
	INOUT outcome idemq.outcome DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_fail_job';
COMMENT ON PROCEDURE idemq.fail_job(bigint, bigint, text, interval, boolean, jsonb, idemq.outcome)
	IS 'Call idemq.fail as a procedure. Returns retrying, dead, stale or not_found.';

CREATE FUNCTION idemq.fail_many(
	ids bigint[], tokens bigint[], errors text[] DEFAULT NULL, retry_in interval DEFAULT NULL,
	permanent boolean DEFAULT false, details jsonb[] DEFAULT NULL)
	RETURNS TABLE (id bigint, token bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_fail_many';
COMMENT ON FUNCTION idemq.fail_many(bigint[], bigint[], text[], interval, boolean, jsonb[])
	IS 'End many failed attempts, as idemq.fail does. Returns one row per pair of id and token.';

CREATE FUNCTION idemq.record_details(ids bigint[], tokens bigint[], details jsonb[]) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_record_details';
COMMENT ON FUNCTION idemq.record_details(bigint[], bigint[], jsonb[])
	IS 'Store details of attempts that have completed their jobs, as rows of idemq.attempts with the outcome committed. The clients store captured logs in this way, in the transaction that completes the job. Returns the number of rows stored. Skips NULL details, and jobs that are not completed or that have run again.';

CREATE FUNCTION idemq.release(id bigint, token bigint, delay interval DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_release';
COMMENT ON FUNCTION idemq.release(bigint, bigint, interval)
	IS 'Return a job to its queue without counting the attempt. The job is ready immediately, or after delay. Returns released, stale, not_found or cancelled (an open transaction is cancelling the job; if it is rolled back, the job becomes ready again).';

CREATE FUNCTION idemq.release_many(ids bigint[], tokens bigint[], delay interval DEFAULT NULL)
	RETURNS TABLE (id bigint, token bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_release_many';
COMMENT ON FUNCTION idemq.release_many(bigint[], bigint[], interval)
	IS 'Release many jobs, as idemq.release does, for example jobs that a worker has claimed but not started. Returns one row per pair of id and token.';

CREATE FUNCTION idemq.checkpoint(id bigint, token bigint, state jsonb) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_checkpoint';
COMMENT ON FUNCTION idemq.checkpoint(bigint, bigint, jsonb)
	IS 'Store the progress of an attempt for the next attempt to read. Does not change the deadline. Raises IQ001 (stale token), IQ002 (no such job) or IQ006 (already committed).';

CREATE FUNCTION idemq.assert_current(id bigint, token bigint) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_assert_current';
COMMENT ON FUNCTION idemq.assert_current(bigint, bigint)
	IS 'Raise IQ001 unless the token is current and no open transaction is cancelling the job. Raises IQ002 and IQ006 as idemq.commit does. Prevents the job from being reaped until this transaction ends.';

CREATE FUNCTION idemq.hold_claimed() RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_hold_claimed';
COMMENT ON FUNCTION idemq.hold_claimed()
	IS 'Check the job that this session claimed last, as idemq.assert_current does. A client can therefore pipeline the check after commit_and_claim and COMMIT without knowing the job''s id. Never waits and never raises an error about the job, because an error would make the pipelined message fail and hide that COMMIT succeeded.
- held: the token is current
- busy: an open transaction has locked the row, so call assert_current
- gone: no job or several jobs were claimed, the job has finished, or its lease has been lost';

CREATE FUNCTION idemq.reap(queue text DEFAULT NULL) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_reap';
COMMENT ON FUNCTION idemq.reap(text)
	IS 'Reclaim expired leases in a queue, or in every queue that you may claim from, as the background worker does automatically. Returns the number of leases. Requires claim.';

CREATE FUNCTION idemq.advance_tokens() RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_advance_tokens';
COMMENT ON FUNCTION idemq.advance_tokens()
	IS 'Raise all future tokens by 2^41, as a promotion does. Call it once for each promotion that was lost because storage was rolled back or a backup was restored without its timeline history. Returns the value at which new tokens start. Raises 54000 if there is no room below 2^53. Only the owner may call it.';

CREATE FUNCTION idemq.follow() RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_follow';
COMMENT ON FUNCTION idemq.follow()
	IS 'Make this database follow another database whose queues and jobs it receives through logical replication. Returns false if it is already following. Only the owner may call it.
- Until idemq.take_over() is called, every function that writes raises 55000, and the background worker is inactive.
- An enabled subscription that writes to idemq.jobs has the same effect without this call.
- The call waits for open transactions that have written jobs.';

CREATE FUNCTION idemq.take_over() RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_take_over';
COMMENT ON FUNCTION idemq.take_over()
	IS 'Make a database that follows another one take over from the publisher. Returns false if it is not following. Reads all jobs once. Only the owner may call it.
- Job ids and tokens continue above the replicated ones, running leases start again, and roles with replicated grants get USAGE on the schema.
- The call raises 55000 if an enabled subscription writes to idemq''s tables, and 55006 if the subscription''s worker or a prepared transaction does not end.';
