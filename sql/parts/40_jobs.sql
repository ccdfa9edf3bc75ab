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
	IS 'add a job; returns its id, with outcome accepted, or duplicate with the first job''s id, status and result; needs enqueue
- key: up to 1,024 bytes; a call waits for an open transaction that uses the same key, or with nowait answers locked and no id
- key_ttl: once the job is finished the key is free so long after this call, whatever the queue''s idempotency_window
- on_duplicate: keep raises IQ003 for another payload or kind, ignore does not compare them, error raises IQ004
- on_duplicate replace: a job that waits takes the new payload, and the new time
- on_duplicate rerun: a job that is running or finished runs once more with the new payload, outcome rerun; one that waits is never made to wait longer
- max_wait: with replace, the delay starts again with each request, but ends so long after the first
- delay: may be 0
- priority: 0 is first, 9 last
- group_key: up to 1,024 bytes
- kind: a label of up to 64 bytes, by which a worker chooses what to do
- depends_on: blocked until these jobs are completed, which may be of any queue on which you hold a privilege (IQ002 otherwise)
- on_parent_failure: cancel, wait or run when one of them is dead or cancelled';

COMMENT ON FUNCTION idemq.enqueue_many(text, jsonb[], text[], timestamptz[], int[], text[], interval[], int[], jsonb[], interval[], interval[], text, boolean, text[], interval, bigint[], text)
	IS 'add many jobs as idemq.enqueue does, all or none (with nowait, all but those that are locked); an element of an array that is NULL says nothing; depends_on and on_parent_failure are those of each of the jobs; returns a row an element, ord counting from 1 (with keys the rows come in the order of the keys); needs enqueue';

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
	IS 'idemq.enqueue as a CALL, for drivers and libraries that take a SELECT for a read: cached, sent to a standby, or never committed; returns id, outcome, status and result; needs enqueue';

CREATE FUNCTION idemq.cancel(id bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel';
COMMENT ON FUNCTION idemq.cancel(bigint)
	IS 'cancel a job that is not finished; an attempt in flight becomes stale, and its worker is told at once, also while this waits for its transaction; returns cancelled, or why not: completed, dead, not_found; needs enqueue';

CREATE FUNCTION idemq.cancel_many(ids bigint[]) RETURNS TABLE (id bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel_many';
COMMENT ON FUNCTION idemq.cancel_many(bigint[])
	IS 'idemq.cancel for many jobs, of any queues, which never waits: locked is a job that an open transaction holds, whose worker is told until this transaction ends; call again; returns a row an id, in their order; an id that is named twice has one; needs enqueue';

CREATE FUNCTION idemq.cancel_matching(
	queue text, kind text DEFAULT NULL, group_key text DEFAULT NULL, key_prefix text DEFAULT NULL,
	max_jobs int DEFAULT NULL, OUT cancelled bigint, OUT locked bigint)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_cancel_matching';
COMMENT ON FUNCTION idemq.cancel_matching(text, text, text, text, int)
	IS 'cancel the jobs of a queue that are not finished and have this kind, this group_key, a key that begins with key_prefix; several arguments: what they have in common; 22004 when all three are NULL; max_jobs: no more in this call, the smallest ids first; never waits; returns how many were cancelled, and how many were left because an open transaction holds them (locked): call again; needs enqueue';

CREATE FUNCTION idemq.retry(id bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_retry';
COMMENT ON FUNCTION idemq.retry(bigint)
	IS 'make a job ready now: retrying, not yet due, or dead or cancelled (with a fresh set of attempts and no expiry; in a group it waits for its turn; its dead-letter record is cancelled, with a NOTICE, unless a worker is running or has completed it); returns retrying, or why not: current (ready already), locked (running), blocked, completed, not_found; needs enqueue';

CREATE FUNCTION idemq.redrive(
	queue text, max_jobs int DEFAULT NULL, error text DEFAULT NULL, ids bigint[] DEFAULT NULL)
	RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq.redrive(text, int, text, bigint[])
	IS 'make dead jobs of a queue ready again with a fresh set of attempts, the longest dead first; error: those of that fingerprint of idemq.errors, or whose last_error, or pattern, is LIKE that; ids: those of these ids; several arguments: jobs that match all; the dead-letter record of each is cancelled, unless a worker is running or has completed it; a NOTICE says how many; returns the number of jobs; needs admin';

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
	IS 'idemq.retry for many jobs, of any queues; returns a row an id, in their order; an id that is named twice has one; needs enqueue';

CREATE FUNCTION idemq.reschedule(id bigint, run_at timestamptz DEFAULT NULL,
	priority int DEFAULT NULL)
	RETURNS idemq.outcome LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_reschedule';
COMMENT ON FUNCTION idemq.reschedule(bigint, timestamptz, int)
	IS 'give a job that waits another time, another priority, or both; NULL leaves one as it is, a run_at in the past is now; a job of a group keeps its place in it; attempts, last_error and expires_at stay; returns accepted, or why not: locked (running), completed, dead, cancelled, not_found; needs enqueue';

-- Topic: Workers

CREATE FUNCTION idemq.claim(
	queue text, max_jobs int DEFAULT 1, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS SETOF idemq.claimed_job
	ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_claim';
COMMENT ON FUNCTION idemq.claim(text, int, interval, text, boolean)
	IS 'begin an attempt of up to max_jobs ready jobs; returns a row a job, with the token that all later calls must show; no row means none is ready; lease: instead of the queue''s; attach: the lease also ends with the session; needs claim';

CREATE FUNCTION idemq.claim_any(
	queues text[], max_jobs int DEFAULT 1, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS SETOF idemq.claimed_queue_job
	ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_claim_any';
COMMENT ON FUNCTION idemq.claim_any(text[], int, interval, text, boolean)
	IS 'idemq.claim from several queues, in the order given; returns the queue''s name with each job';

CREATE FUNCTION idemq.claim_job(
	id bigint, lease interval DEFAULT NULL, worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS idemq.claim_result
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_claim_job';
COMMENT ON FUNCTION idemq.claim_job(bigint, interval, text, boolean)
	IS 'begin an attempt of one job; outcome claimed, claimed_again (attempt > 1), locked (until retry_after), completed (with result), dead, cancelled, blocked, not_due (until retry_after, or the queue is paused or at a limit), not_found; needs claim';

CREATE FUNCTION idemq.heartbeat(id bigint, token bigint, lease interval DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_heartbeat';
COMMENT ON FUNCTION idemq.heartbeat(bigint, bigint, interval)
	IS 'start the lease again from now, at once and not undone by rollback (with a full lease table: in this transaction); returns an outcome
- outcome current: the lease was extended
- outcome stale or not_found: it is lost
- outcome expired: job_timeout is over
- outcome cancelled: a transaction that cancels the job waits for the worker''s
- lease: NULL extends it by the length that the claim had, even after a crash of the server; any other length also holds for later heartbeats, until the server restarts; never beyond the queue''s job_timeout, counted from the claim';

CREATE FUNCTION idemq.heartbeat_many(ids bigint[], tokens bigint[], lease interval DEFAULT NULL)
	RETURNS TABLE (id bigint, token bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_heartbeat_many';
COMMENT ON FUNCTION idemq.heartbeat_many(bigint[], bigint[], interval)
	IS 'idemq.heartbeat for many jobs; returns a row an element, with its id and token';

CREATE FUNCTION idemq.validate(id bigint, token bigint) RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_validate';
COMMENT ON FUNCTION idemq.validate(bigint, bigint)
	IS 'ask whether a token is good, and change nothing; returns current, expired (deadline passed, no other attempt has the job), cancelled (an open transaction cancels the job), stale or not_found';

CREATE FUNCTION idemq.commit(id bigint, token bigint, result jsonb DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit';
COMMENT ON FUNCTION idemq.commit(bigint, bigint, jsonb)
	IS 'complete a job in this transaction, with its result; returns committed, or raises IQ001 (stale), IQ002 (no such job), IQ006 (already committed): call it before the effect';

CREATE FUNCTION idemq.try_commit(id bigint, token bigint, result jsonb DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_try_commit';
COMMENT ON FUNCTION idemq.try_commit(bigint, bigint, jsonb)
	IS 'complete a job in this transaction; returns committed, already_committed, stale or not_found, and does not raise for these: apply the effect only when committed';

CREATE PROCEDURE idemq.commit_job(
	id bigint, token bigint, result jsonb DEFAULT NULL, INOUT outcome idemq.outcome DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_job';
COMMENT ON PROCEDURE idemq.commit_job(bigint, bigint, jsonb, idemq.outcome)
	IS 'idemq.commit as a CALL; in the caller''s transaction, which it does not end; returns committed, or raises IQ001, IQ002, IQ006';

CREATE FUNCTION idemq.commit_many(ids bigint[], tokens bigint[], results jsonb[] DEFAULT NULL)
	RETURNS TABLE (id bigint, token bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_many';
COMMENT ON FUNCTION idemq.commit_many(bigint[], bigint[], jsonb[])
	IS 'complete many jobs; returns a row per (id, token), as idemq.try_commit: apply effects only for those committed, joined by id and token';

CREATE FUNCTION idemq.commit_and_claim(
	id bigint, token bigint, result jsonb DEFAULT NULL,
	queue text DEFAULT NULL, max_jobs int DEFAULT 1, lease interval DEFAULT NULL,
	worker text DEFAULT NULL, attach boolean DEFAULT false)
	RETURNS SETOF idemq.claimed_job
	ROWS 1 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_and_claim';
COMMENT ON FUNCTION idemq.commit_and_claim(bigint, bigint, jsonb, text, int, interval, text, boolean)
	IS 'idemq.commit of one job and idemq.claim of the next, in one transaction; returns the claimed jobs, or raises IQ001, IQ002, IQ006 and claims none
- queue: the next job is of this queue; the committed job''s unless given
- A queue that is paused, at a limit, or not to be claimed from gives no row, and the commit stands.
- The next job of the same group is not among them: it is ready after the commit.';

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
	IS 'idemq.commit_many and idemq.claim in one transaction; returns a row per (id, token) with its outcome, then one with outcome claimed for each claimed job; queue: that of the first job that is committed here, none if there is none';

CREATE FUNCTION idemq.commit_once(id bigint, result jsonb DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_commit_once';
COMMENT ON FUNCTION idemq.commit_once(bigint, jsonb)
	IS 'complete a ready job with no claim; returns committed once, then already_committed; or locked, dead, cancelled, blocked, not_due (or paused, or at a limit), not_found; needs claim';

CREATE FUNCTION idemq.fail(
	id bigint, token bigint, error text DEFAULT NULL, retry_in interval DEFAULT NULL,
	permanent boolean DEFAULT false, details jsonb DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_fail';
COMMENT ON FUNCTION idemq.fail(bigint, bigint, text, interval, boolean, jsonb)
	IS 'end an attempt that failed; the retry comes after the queue''s backoff, or after retry_in, which may be 0; error and details go into idemq.attempts; returns retrying, dead (attempts used up, or permanent), stale or not_found';

CREATE PROCEDURE idemq.fail_job(
	id bigint, token bigint, error text DEFAULT NULL, retry_in interval DEFAULT NULL,
	permanent boolean DEFAULT false, details jsonb DEFAULT NULL,
	INOUT outcome idemq.outcome DEFAULT NULL)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_fail_job';
COMMENT ON PROCEDURE idemq.fail_job(bigint, bigint, text, interval, boolean, jsonb, idemq.outcome)
	IS 'idemq.fail as a CALL; returns retrying, dead, stale or not_found';

CREATE FUNCTION idemq.fail_many(
	ids bigint[], tokens bigint[], errors text[] DEFAULT NULL, retry_in interval DEFAULT NULL,
	permanent boolean DEFAULT false, details jsonb[] DEFAULT NULL)
	RETURNS TABLE (id bigint, token bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_fail_many';
COMMENT ON FUNCTION idemq.fail_many(bigint[], bigint[], text[], interval, boolean, jsonb[])
	IS 'idemq.fail for many jobs; returns a row per (id, token)';

CREATE FUNCTION idemq.release(id bigint, token bigint, delay interval DEFAULT NULL)
	RETURNS idemq.outcome
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_release';
COMMENT ON FUNCTION idemq.release(bigint, bigint, interval)
	IS 'give a job back, ready now or after delay, the attempt not counted; returns released, stale or not_found';

CREATE FUNCTION idemq.release_many(ids bigint[], tokens bigint[], delay interval DEFAULT NULL)
	RETURNS TABLE (id bigint, token bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_release_many';
COMMENT ON FUNCTION idemq.release_many(bigint[], bigint[], interval)
	IS 'idemq.release for many jobs, as a worker does with what it has not begun; returns a row per (id, token)';

CREATE FUNCTION idemq.checkpoint(id bigint, token bigint, state jsonb) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_checkpoint';
COMMENT ON FUNCTION idemq.checkpoint(bigint, bigint, jsonb)
	IS 'store how far an attempt came, for the next one to read; does not move the deadline; raises IQ001 (stale), IQ002 (no such job), IQ006 (already committed)';

CREATE FUNCTION idemq.assert_current(id bigint, token bigint) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_assert_current';
COMMENT ON FUNCTION idemq.assert_current(bigint, bigint)
	IS 'raise IQ001 unless the token is current and no open transaction cancels the job, IQ002 and IQ006 as idemq.commit does; keeps the job from being reaped until this transaction ends';

CREATE FUNCTION idemq.hold_claimed() RETURNS text
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_hold_claimed';
COMMENT ON FUNCTION idemq.hold_claimed()
	IS 'as idemq.assert_current, of the one job that the last claim of this session has claimed, so that a client can send it in one message with commit_and_claim and COMMIT, before it knows which job that is; never waits; returns what has become of the job, because an error would fail the whole message and hide that the COMMIT is done: held; busy (an open transaction has its row: call assert_current); gone (none was claimed or several, it has ended, or its lease is lost)';

CREATE FUNCTION idemq.reap(queue text DEFAULT NULL) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_reap';
COMMENT ON FUNCTION idemq.reap(text)
	IS 'take back expired leases of a queue, or of every queue that you may claim from, as the background worker does by itself; returns how many; needs claim';

CREATE FUNCTION idemq.advance_tokens() RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_advance_tokens';
COMMENT ON FUNCTION idemq.advance_tokens()
	IS 'raise all tokens to come by 2^41, as a promotion does: after storage was rolled back, or a backup restored without the history of its timelines; once for each promotion that was lost; returns where tokens begin now; raises 54000 when there is no room below 2^53; the owner''s';

CREATE FUNCTION idemq.follow() RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_follow';
COMMENT ON FUNCTION idemq.follow()
	IS 'have this database follow another, whose queues and jobs come by logical replication; returns false when it follows already; the owner''s
- Until idemq.take_over() every function that writes raises 55000, and the background worker does nothing.
- An enabled subscription that writes idemq.jobs does so by itself.
- It waits for open transactions that have written jobs.';

CREATE FUNCTION idemq.take_over() RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_take_over';
COMMENT ON FUNCTION idemq.take_over()
	IS 'let a database that follows go on in the publisher''s place; returns false when it does not follow; reads all jobs once; the owner''s
- Ids and tokens go on above those that came, running leases begin again, roles of replicated grants get USAGE.
- It raises 55000 while a subscription that writes idemq''s tables is enabled, and 55006 for its worker or a prepared transaction that does not end.';
