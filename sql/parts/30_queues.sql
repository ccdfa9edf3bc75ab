-- Topic: Queues

-- All three take the settings in the order of src/queue/queue.h.
CREATE FUNCTION idemq.create_queue(
	name text,
	lease interval DEFAULT '30 s',
	max_attempts int DEFAULT 20,
	retry_base interval DEFAULT '1 s',
	retry_factor float8 DEFAULT 2,
	retry_max interval DEFAULT '1 h',
	retry_jitter float8 DEFAULT 0.2,
	retention interval DEFAULT '1 day',
	idempotency_window interval DEFAULT '1 day',
	max_running int DEFAULT NULL,
	rate_limit int DEFAULT NULL,
	rate_period interval DEFAULT '1 s',
	dead_letter_queue text DEFAULT NULL,
	dead_retention interval DEFAULT '30 days',
	max_lease interval DEFAULT '1 day',
	job_timeout interval DEFAULT NULL,
	dead_letter_cancelled boolean DEFAULT false,
	group_max_running int DEFAULT 1,
	group_rate_limit int DEFAULT NULL,
	group_rate_period interval DEFAULT '1 second',
	expect_workers boolean DEFAULT true,
	rate_burst int DEFAULT NULL,
	group_rate_burst int DEFAULT NULL,
	max_hold_back interval DEFAULT '1 h',
	max_unfinished int DEFAULT NULL,
	group_max_unfinished int DEFAULT NULL,
	notify_finished boolean DEFAULT false)
	RETURNS int LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_create_queue';
COMMENT ON FUNCTION idemq.create_queue
	IS 'Create a queue. Returns its queue_id. The caller gets the enqueue, claim and admin privileges. Raises 42710 if the queue already exists, and 53400 if there are already idemq.max_queues queues.
- name: [A-Za-z_][A-Za-z0-9_.-]*, up to 48 bytes
- max_running: maximum number of jobs running at once; NULL means no limit
- rate_limit: maximum number of claims in any rate_period; NULL means no limit
- max_lease: maximum value of lease, and maximum lease that a claim or heartbeat may request
- job_timeout: maximum duration of an attempt; heartbeats do not extend the lease beyond it
- dead_letter_cancelled: whether dead_letter_queue also gets records of jobs that were cancelled after an attempt had begun
- group_max_running: maximum number of jobs in one group that run at once; 1 means strict order
- group_rate_limit: maximum number of attempts per group that may start in any group_rate_period; NULL means no limit
- expect_workers: false means that it is normal for the queue to have no worker, so idemq.metrics.unattended_for is NULL
- rate_burst, group_rate_burst: size of a bucket that refills at a constant rate (GCRA). A size of 1 spaces the starts evenly. NULL means that the limit applies to every period and that all starts allowed in a period may happen at once.
- max_hold_back: maximum duration of a hold that a worker can begin with idemq.hold_back; 0 forbids holds
- max_unfinished: maximum number of unfinished jobs, beyond which an enqueue raises IQ007; NULL means no limit
- group_max_unfinished: the same for each group, from 1 to 10,000; NULL means no limit
- notify_finished: whether the background worker announces the ids and statuses of finished jobs with NOTIFY, on the channel idemq_finished:<queue>';

CREATE FUNCTION idemq.alter_queue(
	name text,
	lease interval DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	retry_base interval DEFAULT NULL,
	retry_factor float8 DEFAULT NULL,
	retry_max interval DEFAULT NULL,
	retry_jitter float8 DEFAULT NULL,
	retention interval DEFAULT NULL,
	idempotency_window interval DEFAULT NULL,
	max_running int DEFAULT NULL,
	rate_limit int DEFAULT NULL,
	rate_period interval DEFAULT NULL,
	dead_letter_queue text DEFAULT NULL,
	dead_retention interval DEFAULT NULL,
	max_lease interval DEFAULT NULL,
	job_timeout interval DEFAULT NULL,
	dead_letter_cancelled boolean DEFAULT NULL,
	group_max_running int DEFAULT NULL,
	group_rate_limit int DEFAULT NULL,
	group_rate_period interval DEFAULT NULL,
	expect_workers boolean DEFAULT NULL,
	rate_burst int DEFAULT NULL,
	group_rate_burst int DEFAULT NULL,
	max_hold_back interval DEFAULT NULL,
	max_unfinished int DEFAULT NULL,
	group_max_unfinished int DEFAULT NULL,
	notify_finished boolean DEFAULT NULL)
	RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_alter_queue';
COMMENT ON FUNCTION idemq.alter_queue
	IS 'Change a queue''s settings from the next call on. NULL leaves a setting unchanged. 0 removes max_running, rate_limit, rate_burst, group_rate_limit, group_rate_burst, job_timeout, max_unfinished or group_max_unfinished, and '''' removes dead_letter_queue. Jobs already enqueued keep their max_attempts, and running jobs keep their leases. Raises 22023 if lease would exceed max_lease. Requires admin.';

CREATE FUNCTION idemq.ensure_queue(
	name text,
	exact boolean DEFAULT false,
	lease interval DEFAULT NULL,
	max_attempts int DEFAULT NULL,
	retry_base interval DEFAULT NULL,
	retry_factor float8 DEFAULT NULL,
	retry_max interval DEFAULT NULL,
	retry_jitter float8 DEFAULT NULL,
	retention interval DEFAULT NULL,
	idempotency_window interval DEFAULT NULL,
	max_running int DEFAULT NULL,
	rate_limit int DEFAULT NULL,
	rate_period interval DEFAULT NULL,
	dead_letter_queue text DEFAULT NULL,
	dead_retention interval DEFAULT NULL,
	max_lease interval DEFAULT NULL,
	job_timeout interval DEFAULT NULL,
	dead_letter_cancelled boolean DEFAULT NULL,
	group_max_running int DEFAULT NULL,
	group_rate_limit int DEFAULT NULL,
	group_rate_period interval DEFAULT NULL,
	expect_workers boolean DEFAULT NULL,
	rate_burst int DEFAULT NULL,
	group_rate_burst int DEFAULT NULL,
	max_hold_back interval DEFAULT NULL,
	max_unfinished int DEFAULT NULL,
	group_max_unfinished int DEFAULT NULL,
	notify_finished boolean DEFAULT NULL,
	OUT outcome text,
	OUT changes jsonb)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_ensure_queue';
COMMENT ON FUNCTION idemq.ensure_queue
	IS 'Declare a queue: create it, or set the settings that are named and leave the others as they are. Returns the outcome created, changed or unchanged; if changed, changes contains the changed settings, each with from and to. Requires any privilege on the queue for unchanged, admin for changed, and EXECUTE on idemq.create_queue for created.
- exact: also set the settings that are not named to the defaults of idemq.create_queue
- A setting is changed only if its value differs from the value that the last call naming it declared (idemq.queues.declared). If it was changed with idemq.alter_queue since then, it keeps its value, and a WARNING names it.
- NULL means that a setting is not named. As in idemq.alter_queue, 0 means no limit or no job_timeout, and '''' means no dead_letter_queue.
- A call that has nothing to change only reads, so it also works in a read-only transaction and on a standby.
- changes is {} if only the declaration was stored.';

CREATE FUNCTION idemq.drop_queue(name text, force boolean DEFAULT false)
	RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq.drop_queue(text, boolean)
	IS 'Drop a queue and its jobs. Without force, raises 55006 if the queue has unfinished jobs, and 2BP01 if it is the dead_letter_queue of another queue. Requires admin.';

-- The jobs of a queue that are not running, or have one status; at most that many, NULL means all.
-- Most jobs are in no other index than the primary key, so the table is read as a whole.
CREATE FUNCTION idemq_internal.jobs_at_rest(queue_id int, status idemq.status, most bigint)
	RETURNS bigint[]
	SET enable_seqscan = on
	LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
	RETURN ARRAY(SELECT id FROM idemq.jobs WHERE queue_id = jobs_at_rest.queue_id
		AND status <> 'running'
		AND (jobs_at_rest.status IS NULL OR status = jobs_at_rest.status) LIMIT most);
END $$;

CREATE FUNCTION idemq_internal.refuse_unfinished(queue_id int, name text) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	jobs bigint := (SELECT n FROM idemq_internal.latest(
		'SELECT count(*) FROM idemq.jobs WHERE queue_id = $1 AND finished_at IS NULL', queue_id)
		AS (n bigint));
BEGIN
	IF jobs > 0 THEN
		RAISE EXCEPTION 'queue "%" has % unfinished jobs', name, jobs
			USING ERRCODE = '55006', HINT = 'Use force => true to drop the jobs with the queue.';
	END IF;
END $$;

-- Raises unless a queue may be dropped without force.  The last look comes after its jobs are locked:
-- one may have been retried meanwhile, or may have gained a child.  Without bitmaps, as in
-- purge_impl.
CREATE FUNCTION idemq_internal.refuse_drop(queue_id int, name text) RETURNS void
	SET enable_bitmapscan = off
	LANGUAGE plpgsql AS $$
DECLARE
	ids bigint[];
	needed int;
	users text;
BEGIN
	PERFORM idemq_internal.refuse_unfinished(queue_id, name);
	ids := idemq_internal.jobs_at_rest(queue_id, NULL, NULL);
	PERFORM FROM idemq.jobs WHERE id = ANY (ids) FOR UPDATE;
	PERFORM idemq_internal.refuse_unfinished(queue_id, name);
	needed := cardinality(ids) - cardinality(idemq_internal.deletable(queue_id, ids, false));
	IF needed > 0 THEN
		RAISE EXCEPTION 'unfinished jobs in other queues depend on jobs in queue "%" (number of parents: %)',
			name, needed
			USING ERRCODE = '2BP01',
				HINT = 'Wait for those jobs to finish, or use force => true. With force, parents that were not '
				'completed count as cancelled for the jobs that depend on them.';
	END IF;
	SELECT list INTO users FROM idemq_internal.latest(
		'SELECT string_agg(quote_ident(name), '', '' ORDER BY name)
		FROM idemq.queues WHERE dead_letter_queue = $1 AND name <> $1', name) AS (list text);
	IF users IS NOT NULL THEN
		RAISE EXCEPTION 'queue "%" is the dead_letter_queue of other queues', name
			USING ERRCODE = '2BP01', DETAIL = format('It is used by the following queues: %s.', users),
				HINT =
					'Remove the setting with idemq.alter_queue(..., dead_letter_queue => ''''), or use '
					'force => true.';
	END IF;
END $$;

-- Deletes the rows of a queue's jobs, reading the table as a whole; returns how many.
CREATE FUNCTION idemq_internal.delete_jobs_of(number int) RETURNS bigint
	SET enable_seqscan = on
	LANGUAGE plpgsql AS $$
DECLARE
	jobs bigint;
BEGIN
	DELETE FROM idemq.jobs WHERE queue_id = number;
	GET DIAGNOSTICS jobs = ROW_COUNT;
	RETURN jobs;
END $$;

-- Takes a lock that waits for every transaction that enqueues to the queue, or enqueues a
-- child of one of its jobs.  The queue's state in shared memory is freed after the commit.
CREATE FUNCTION idemq_internal.drop_queue_impl(name text, force boolean)
	RETURNS void LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	number int;
	roles oid[];
	jobs bigint;
BEGIN
	PERFORM idemq_internal.given('force', force);
	-- This tells the workers before drop_queue waits for their transactions.  The second call below
	-- tells them of jobs that they have claimed in the meantime.
	PERFORM idemq_internal.mark_cancels(idemq_internal.queue(drop_queue_impl.name, 'admin', '', 'name'))
		WHERE force;
	number := idemq_internal.queue(drop_queue_impl.name, 'admin', 'exclusive', 'name');
	PERFORM idemq_internal.mark_cancels(number) WHERE force;
	roles := ARRAY(SELECT role FROM idemq_internal.latest(
		'SELECT DISTINCT r.oid FROM idemq_internal.queue_grants g JOIN pg_roles r ON r.rolname = '
			'g.role_name WHERE g.queue_id = $1 ORDER BY 1',
		number) AS (role oid));
	PERFORM idemq_internal.lock_role(role) FROM unnest(roles) role;
	PERFORM idemq_internal.refuse_drop(number, drop_queue_impl.name) WHERE NOT force;
	UPDATE idemq.queues SET dead_letter_queue = NULL, dead_letter_role = NULL
		WHERE dead_letter_queue = drop_queue_impl.name;
	jobs := idemq_internal.delete_jobs_of(number);
	-- The rows of a job that was moved to another queue by hand stay: they belong to that tenant.
	-- Each job is looked up: the plan of a join may be from a time when there were none.
	DELETE FROM idemq.attempts a WHERE queue_id = number
		AND (SELECT true FROM idemq.jobs j WHERE j.id = a.job_id) IS NULL;
	DELETE FROM idemq.steps s WHERE queue_id = number
		AND (SELECT true FROM idemq.jobs j WHERE j.id = s.job_id) IS NULL;
	DELETE FROM idemq.queues WHERE queue_id = number;
	PERFORM FROM idemq_internal.latest('SELECT true FROM idemq.jobs WHERE queue_id = $1 LIMIT 1',
		number) AS (is_left boolean);
	IF FOUND THEN
		RAISE EXCEPTION 'queue "%" has jobs that this transaction cannot see', drop_queue_impl.name
			USING ERRCODE = '40001', HINT = 'Run idemq.drop_queue in a READ COMMITTED transaction.';
	END IF;
	PERFORM idemq_internal.settle_usage(role) FROM unnest(roles) role;
	PERFORM idemq_internal.audit('drop_queue', number, drop_queue_impl.name, jobs => jobs),
		idemq_internal.forget_queue(number);
END $$;

-- The default of group_key is too long to be the key of a group.  It is not NULL, because a NULL from
-- an unset variable must not mean the whole queue.
CREATE FUNCTION idemq.pause(name text, until timestamptz DEFAULT NULL,
	group_key text DEFAULT pg_catalog.repeat('(whole queue)',80)) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq.pause(text, timestamptz, text)
	IS 'Pause a queue, or one of its groups. The queue still accepts jobs, but no job of the paused queue or group can be claimed until idemq.resume is called or the given time is reached. Running jobs continue. A second pause replaces the first. Raises 22023 if the time is in the past, or if group_key is NULL or empty. Requires admin.
- group_key: group to pause; other groups continue in fair order. Omit it to pause the whole queue. The group need not have any jobs yet.';

CREATE FUNCTION idemq.resume(name text,
	group_key text DEFAULT pg_catalog.repeat('(whole queue)',80)) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.resume(text, text)
	IS 'Resume a paused queue, or one of its paused groups. Ends the holds of the queue and its groups (idemq.hold_back), or of that group only, and wakes the sessions that are waiting for jobs. Raises 22023 if group_key is NULL or empty. Requires admin.
- group_key: end only the pause and hold of this group, which is served after the groups that are already waiting. Omit it to resume the queue; groups that were paused separately remain paused.';

-- When the transaction has committed, the sessions that wait for a queue's jobs look again.
CREATE FUNCTION idemq_internal.wake_queue(queue_id int) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_wake_queue';

-- Makes the claimable jobs of a newly paused group blocked.
CREATE FUNCTION idemq_internal.pause_group(queue_id int, group_key text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_pause_group';

-- Returns whether a call of pause or resume is about one group.
CREATE FUNCTION idemq_internal.names_group(group_key text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	IF group_key = repeat('(whole queue)', 80) THEN
		RETURN false;
	ELSIF group_key IS NULL OR group_key = '' THEN
		RAISE EXCEPTION 'group_key must not be NULL or empty' USING ERRCODE = '22023',
			HINT = 'Pass the key of the group, or omit the argument for the whole queue.';
	END IF;
	PERFORM idemq_internal.check_text('group_key', group_key, 1024);
	RETURN true;
END $$;

-- src/job/pausing.c and src/job/group_pause.c say who learns of it, and what ends it at its time.
CREATE FUNCTION idemq_internal.pause_impl(name text, until timestamptz, group_key text)
	RETURNS void
	LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
	number int := idemq_internal.queue(name, 'admin', 'keep', 'name');
	is_group boolean := idemq_internal.names_group(group_key);
BEGIN
	IF until <= idemq_internal.now() THEN
		RAISE EXCEPTION '"until" must be in the future' USING ERRCODE = '22023',
			HINT = 'Pass now() plus an interval, or NULL to pause until idemq.resume is called.';
	END IF;
	until := nullif(until, 'infinity');
	IF is_group THEN
		INSERT INTO idemq.paused_groups AS p (queue_id, group_key, paused_at, paused_until, paused_by)
			VALUES (number, group_key, idemq_internal.now(), until,
				pg_get_userbyid(idemq_internal.caller()))
			ON CONFLICT ON CONSTRAINT paused_groups_pkey DO UPDATE SET
				paused_at = CASE WHEN p.paused_until <= excluded.paused_at THEN excluded.paused_at
					ELSE p.paused_at END,
				paused_until = excluded.paused_until, paused_by = excluded.paused_by;
		PERFORM idemq_internal.pause_group(number, group_key);
	ELSE
		UPDATE idemq.queues SET paused = true, paused_until = until WHERE queue_id = number;
	END IF;
	PERFORM idemq_internal.audit('pause', number, name, nullif(jsonb_strip_nulls(
		jsonb_build_object('group_key', CASE WHEN is_group THEN group_key END, 'until',
			to_char(until, 'YYYY-MM-DD HH24:MI:SS.US TZ'))), '{}'));
END $$;

-- Ends the hold of a group, or with NULL the holds of the queue and of all of its groups; returns how
-- many.  When the transaction has committed, jobs that waited for the end of a hold become due.
CREATE FUNCTION idemq_internal.end_holds(queue_id int, group_key text) RETURNS int
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_internal_end_holds';

-- Groups that were paused separately remain paused when the queue is resumed.
CREATE FUNCTION idemq_internal.resume_impl(name text, group_key text) RETURNS void
	LANGUAGE plpgsql AS $$
DECLARE
	number int := idemq_internal.queue(resume_impl.name, 'admin', 'keep', 'name');
	is_group boolean := idemq_internal.names_group(resume_impl.group_key);
	holds int := idemq_internal.end_holds(number, CASE WHEN is_group THEN resume_impl.group_key END);
	was_paused boolean := NOT is_group AND (SELECT q.paused FROM idemq.queues q
		WHERE q.queue_id = number);
BEGIN
	IF is_group THEN
		DELETE FROM idemq.paused_groups p
			WHERE p.queue_id = number AND p.group_key = resume_impl.group_key;
		was_paused := FOUND;
		IF NOT was_paused THEN
			PERFORM idemq_internal.refuse_newer(EXISTS (SELECT FROM idemq_internal.latest('SELECT 1
				FROM idemq.paused_groups WHERE queue_id = $1 AND group_key = $2', number,
					resume_impl.group_key) AS (one int)), 'pause');
		END IF;
	ELSE
		UPDATE idemq.queues SET paused = false, paused_until = NULL WHERE queue_id = number;
	END IF;
	PERFORM idemq_internal.wake_queue(number),
		idemq_internal.audit('resume', number, resume_impl.name, CASE WHEN is_group OR holds > 0 THEN
			jsonb_strip_nulls(jsonb_build_object('group_key', CASE WHEN is_group
				THEN resume_impl.group_key END, 'holds', holds::text, 'paused', was_paused::text)) END);
END $$;

CREATE FUNCTION idemq.purge(name text, status idemq.status DEFAULT NULL, ids bigint[] DEFAULT NULL)
	RETURNS bigint LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq.purge(text, idemq.status, bigint[])
	IS 'Delete a queue''s jobs and their keys, regardless of age. Deletes all jobs, or only those with the given status or ids, but never running jobs. Skips jobs that are locked by other transactions and jobs on which a remaining job depends. Returns the number of jobs deleted. Requires admin.';

-- The jobs are locked, and then it is decided which of them may be deleted.  A first look, without
-- locks, leaves out those that other jobs certainly wait for: they are not locked for nothing.  Never
-- waits for a row: the transaction that holds it may be about to wait for ours.  Without bitmaps: a
-- large one compares each row of a page with the whole array.
CREATE FUNCTION idemq_internal.purge_impl(name text, status idemq.status, ids bigint[])
	RETURNS bigint SET enable_bitmapscan = off
	LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	number int := idemq_internal.queue(name, 'admin', '', 'name');
	chosen bigint[];
	purged bigint;
BEGIN
	PERFORM idemq_internal.check_ids('ids', ids) WHERE ids IS NOT NULL;
	IF purge_impl.status = 'running' THEN
		RAISE EXCEPTION 'running jobs cannot be purged'
			USING ERRCODE = '22023', HINT = 'Cancel them with idemq.cancel first.';
	END IF;
	-- An array has no room for many more.
	chosen := coalesce(ids, idemq_internal.jobs_at_rest(number, status, 50000000));
	chosen := idemq_internal.deletable(number, chosen, false);
	chosen := ARRAY(SELECT id FROM idemq.jobs WHERE id = ANY (chosen) AND queue_id = number
		AND status <> 'running' AND (purge_impl.status IS NULL OR status = purge_impl.status)
		FOR UPDATE SKIP LOCKED);
	chosen := idemq_internal.deletable(number, chosen, true);
	WITH gone AS (
		DELETE FROM idemq.jobs WHERE id = ANY (chosen) RETURNING id
	) SELECT coalesce(array_agg(id), '{}'), count(*) INTO chosen, purged FROM gone;
	DELETE FROM idemq.attempts WHERE job_id = ANY (chosen);
	DELETE FROM idemq.steps WHERE job_id = ANY (chosen);
	IF purged > 0 THEN
		PERFORM idemq_internal.audit('purge', number, name, nullif(jsonb_strip_nulls(
			jsonb_build_object('status', status, 'ids', cardinality(ids)::text)), '{}'),
				jobs => purged);
	END IF;
	RETURN purged;
END $$;

-- Deletes what is past its time, `most` rows at most: what idemq.once has seen, then events, then
-- rows of idemq.audit, each from a time on.  Returns where to go on, and how many rows are gone.
CREATE FUNCTION idemq_internal.delete_by_time(
	INOUT seen timestamptz, INOUT events timestamptz, INOUT audit timestamptz,
	now timestamptz, audit_until timestamptz, most bigint, OUT gone bigint)
	LANGUAGE sql AS $$
	WITH old_seen AS MATERIALIZED (
		SELECT s.ctid FROM idemq_internal.seen s
		WHERE s.visit_at >= delete_by_time.seen AND s.visit_at <= now AND s.expires_at <= now
		ORDER BY s.visit_at LIMIT most FOR UPDATE SKIP LOCKED
	), gone_seen AS (
		DELETE FROM idemq_internal.seen s USING old_seen o
			WHERE s.ctid = o.ctid RETURNING s.visit_at
	), s AS (
		SELECT coalesce(max(visit_at), delete_by_time.seen) AS upto, most - count(*) AS room
			FROM gone_seen
	), old_events AS MATERIALIZED (
		SELECT e.ctid FROM idemq.events e
			WHERE e.keep_until >= delete_by_time.events AND e.keep_until <= now
		ORDER BY e.keep_until LIMIT (SELECT room FROM s) FOR UPDATE SKIP LOCKED
	), gone_events AS (
		DELETE FROM idemq.events e USING old_events o WHERE e.ctid = o.ctid RETURNING e.keep_until
	), e AS (
		SELECT coalesce(max(keep_until), delete_by_time.events) AS upto,
			(SELECT room FROM s) - count(*) AS room FROM gone_events
	), old_audit AS MATERIALIZED (
		SELECT a.id FROM idemq.audit a WHERE a.at >= delete_by_time.audit AND a.at <= audit_until
		ORDER BY a.at LIMIT (SELECT room FROM e) FOR UPDATE SKIP LOCKED
	), gone_audit AS (
		DELETE FROM idemq.audit a USING old_audit o WHERE a.id = o.id RETURNING a.at
	), gone_holds AS (
		-- Ended holds of groups that can no longer cause a call to be refused.  If no job of the group
		-- is ever claimed again, no claim deletes them.  They are few, and not counted.
		DELETE FROM idemq_internal.hold_entries h WHERE h.ctid = ANY (ARRAY(
			SELECT o.ctid FROM idemq_internal.hold_entries o
			WHERE o.until <= now AND o.group_key IS NOT NULL AND NOT EXISTS (SELECT FROM idemq.jobs j
				WHERE j.queue_id = o.queue_id AND j.group_key = o.group_key
				AND j.finished_at IS NULL AND j.status = 'running' AND j.claimed_at <= o.until)
			LIMIT most FOR UPDATE SKIP LOCKED))
	), gone_queue_holds AS (
		-- Of queues, all but the last of those that have ended: calls refer to the last one only, and
		-- claims above READ COMMITTED delete none.
		DELETE FROM idemq_internal.hold_entries h WHERE h.ctid = ANY (ARRAY(
			SELECT o.ctid FROM idemq_internal.hold_entries o
			WHERE o.until <= now AND o.group_key IS NULL AND EXISTS (
				SELECT FROM idemq_internal.hold_entries l WHERE l.queue_id = o.queue_id
				AND coalesce(l.group_key, '') = '' AND l.until > o.until)
			LIMIT most FOR UPDATE SKIP LOCKED))
	), gone_over_limit AS (
		-- Adds the rows that publishers have left to the counts of their bindings (src/api/publish.c).
		DELETE FROM idemq_internal.topic_over_limit o WHERE o.ctid = ANY (ARRAY(
			SELECT l.ctid FROM idemq_internal.topic_over_limit l
			JOIN idemq_internal.topic_binding_entries b USING (topic, pattern, queue_id, role_name)
			LIMIT most FOR NO KEY UPDATE SKIP LOCKED))
		RETURNING o.topic, o.pattern, o.queue_id, o.role_name
	), over_limit AS (
		UPDATE idemq_internal.topic_binding_entries b SET over_limit = b.over_limit + n.jobs
		FROM (SELECT g.topic, g.pattern, g.queue_id, g.role_name, count(*) AS jobs
			FROM gone_over_limit g GROUP BY 1, 2, 3, 4) n
		WHERE b.topic = n.topic AND b.pattern = n.pattern AND b.queue_id = n.queue_id
			AND b.role_name = n.role_name
	), gone_workers AS (
		-- They are few, and not counted.
		DELETE FROM idemq_internal.worker_entries w WHERE w.ctid = ANY (ARRAY(
			SELECT o.ctid FROM idemq_internal.worker_entries o
			WHERE o.seen_at <= now - interval '1 hour' FOR UPDATE SKIP LOCKED))
	)
	SELECT s.upto, e.upto, coalesce(a.upto, delete_by_time.audit), most - e.room + a.gone
	FROM s, e, (SELECT max(at) AS upto, count(*) AS gone FROM gone_audit) a
	$$;

CREATE FUNCTION idemq.apply_retention(max_jobs int DEFAULT 100000) RETURNS bigint
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_apply_retention';
COMMENT ON FUNCTION idemq.apply_retention(int)
	IS 'Delete data whose retention period has passed, in all queues, as the background worker does automatically. Deletes finished jobs with their attempts, keys recorded by idemq.once, events, and rows of idemq.audit. Visits every job once. Deletes at most max_jobs jobs, starting with the lowest ids, and returns the number of jobs deleted.';

CREATE FUNCTION idemq.grant_queue(name text, role regrole, privilege text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.grant_queue(text, regrole, text)
	IS 'Grant a role a privilege on a queue: enqueue, claim or admin. Requires admin.';

CREATE FUNCTION idemq.revoke_queue(name text, role regrole, privilege text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper';
COMMENT ON FUNCTION idemq.revoke_queue(text, regrole, text) IS 'Revoke a privilege that was granted with idemq.grant_queue. The role''s schedules, handler and topic bindings for the queue stop working immediately. If the role set the queue as the dead_letter_queue of other queues, that setting also stops working. A NOTICE lists everything that stopped working. Requires admin.';

-- A grant keeps its queue from being dropped, so that the grant is not left behind; a revocation
-- does not wait for a session that drops the queue.  The trigger of idemq_internal.queue_grants
-- makes every session read the queue again.
CREATE FUNCTION idemq_internal.change_queue_grant(name text, role oid, privilege text,
	granted boolean) RETURNS void
	LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	number int := idemq_internal.queue(name, 'admin', CASE WHEN granted THEN 'keep' ELSE '' END,
		'name');
	grantee name;
	is_new boolean;
	ends text;
BEGIN
	PERFORM idemq_internal.given('role', role),
		idemq_internal.check_text('privilege', privilege, 64);
	IF privilege NOT IN ('enqueue', 'claim', 'admin') THEN
		RAISE EXCEPTION 'privilege must be enqueue, claim or admin, not "%"', privilege
			USING ERRCODE = '22023', HINT = 'The admin privilege includes the other two.';
	END IF;
	grantee := idemq_internal.lock_role(role);
	IF granted THEN
		INSERT INTO idemq_internal.queue_grants AS g (queue_id, role_name, privilege)
			VALUES (number, grantee, change_queue_grant.privilege)
			ON CONFLICT (queue_id, role_name, privilege) DO UPDATE SET role_oid = excluded.role_oid
			WHERE g.role_oid IS DISTINCT FROM excluded.role_oid;
	ELSE
		DELETE FROM idemq_internal.queue_grants WHERE queue_id = number AND role_name = grantee
			AND privilege = change_queue_grant.privilege;
	END IF;
	is_new := FOUND;
	PERFORM idemq_internal.settle_usage(role);
	IF NOT granted THEN
		IF NOT is_new THEN
			PERFORM idemq_internal.refuse_newer(EXISTS (SELECT FROM idemq_internal.latest('SELECT 1
				FROM idemq_internal.queue_grants
				WHERE queue_id = $1 AND role_name = $2 AND privilege = $3', number, grantee,
					change_queue_grant.privilege) AS (one int)), 'grant');
		END IF;
		SELECT string_agg(what, ', ' ORDER BY what COLLATE "default") INTO ends
			FROM (SELECT d.what, d.needs, idemq_internal.role_of(d.role_name, d.role_oid) AS its
				FROM idemq_internal.latest(
				'SELECT format(''dead_letter_queue of queue %I'', name), dead_letter_role,
					dead_letter_role_oid, ''enqueue''
					FROM idemq.queues WHERE dead_letter_queue = $2
				UNION ALL SELECT format(''binding of %L'', pattern), role_name, role_oid,
					''enqueue''
					FROM idemq_internal.topic_binding_entries WHERE queue_id = $1
				UNION ALL SELECT format(''schedule %I'', name), created_by, created_by_oid,
					''enqueue''
					FROM idemq_internal.schedule_entries WHERE queue_id = $1
				UNION ALL SELECT ''handler'', role_name, role_oid, ''claim''
					FROM idemq_internal.handler_entries WHERE queue_id = $1', number, name)
				AS d (what text, role_name name, role_oid oid, needs text)) x
			WHERE pg_has_role(its, change_queue_grant.role, 'USAGE')
				AND NOT idemq_internal.role_may(its, number, needs);
		IF ends IS NOT NULL THEN
			PERFORM idemq_internal.raise_message(false,
				format('these objects depended on the privilege on queue "%s" and have stopped working: %s',
					name, ends),
				'Grant the privilege again to make them work, or remove them.');
		END IF;
	END IF;
	IF is_new THEN
		PERFORM idemq_internal.audit(CASE WHEN granted THEN 'grant_queue' ELSE 'revoke_queue' END,
			number, name,
			jsonb_build_object('role', grantee, 'privilege', privilege));
	END IF;
END $$;
CREATE FUNCTION idemq_internal.grant_queue_impl(name text, role regrole, privilege text)
	RETURNS void
	LANGUAGE sql AS
	'SELECT idemq_internal.change_queue_grant(name, role, privilege, true)';
CREATE FUNCTION idemq_internal.revoke_queue_impl(name text, role regrole, privilege text)
	RETURNS void
	LANGUAGE sql AS
	'SELECT idemq_internal.change_queue_grant(name, role, privilege, false)';

CREATE FUNCTION idemq.queue_id(queue text) RETURNS int
	STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_queue_id';
COMMENT ON FUNCTION idemq.queue_id(text) IS 'Return the numeric id of a queue, as used in idemq.jobs. Raises IQ005 if there is no such queue.';

-- The function decides; the view reads the names as its owner.
CREATE VIEW idemq.queue_privileges WITH (security_barrier) AS
	SELECT q.queue_id, q.name AS queue, p.privileges
	FROM idemq.queues q
		CROSS JOIN LATERAL (SELECT pg_catalog.array_remove(ARRAY[
			CASE WHEN idemq_internal.may_enqueue(q.queue_id) THEN 'enqueue' END,
			CASE WHEN idemq_internal.may_see(q.queue_id) THEN 'claim' END,
			CASE WHEN idemq_internal.may_administer(q.queue_id) THEN 'admin' END], NULL)
			AS privileges) p
	WHERE p.privileges OPERATOR(pg_catalog.<>) '{}'::pg_catalog.text[];
COMMENT ON VIEW idemq.queue_privileges IS 'one row per queue on which you hold a privilege';
COMMENT ON COLUMN idemq.queue_privileges.queue_id IS 'numeric id of the queue, as used in idemq.jobs';
COMMENT ON COLUMN idemq.queue_privileges.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.queue_privileges.privileges IS 'your privileges, any of enqueue, claim and admin';
