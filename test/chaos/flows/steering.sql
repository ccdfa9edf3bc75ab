-- The queues, schedules and ledgers of the third part of the chaos test of flows, in which running jobs are cancelled, queues are
-- declared, schedules are paused and finished jobs are announced; see README.md.

-- The end of a job, written by the transaction that completes, cancels or fails it for good.
CREATE TABLE finishes (queue text, job bigint, status text, life timestamptz DEFAULT life());
CREATE INDEX ON finishes (job);

-- Calls of ensure_queue, alter_queue (what: alter) and drop_queue (what: drop).  Each of these calls except an unchanged ensure_queue
-- holds the lock of the queue's name until its transaction ends, so the order of their ids is the order of the changes.
-- seen: a snapshot that is older than the call.  named: the arguments.  stored: the settings after the call.
CREATE TABLE declarations (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text, what text, named jsonb, changes jsonb, stored jsonb, declared jsonb,
	seen pg_snapshot, t0 timestamptz, t1 timestamptz, xid xid8 DEFAULT pg_current_xact_id());

-- Calls of pause_schedule and resume_schedule: t0 and t1 are just before and after the call, which holds the lock of the schedule's row.
CREATE TABLE steered (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, what text, t0 timestamptz, t1 timestamptz DEFAULT clock_timestamp());

-- What the Listener has received.  known: the ledger already contained the end of the job.
CREATE TABLE listening (life timestamptz DEFAULT life(), since timestamptz DEFAULT clock_timestamp());
CREATE TABLE announced (queue text, job bigint, status text, known bool, life timestamptz DEFAULT life());
CREATE INDEX ON announced (job);
CREATE TABLE overflows (queue text, lost bigint, life timestamptz DEFAULT life());

SELECT idemq.create_queue(q, lease => make_interval(secs => 10 * slow()), retry_max => '1 s', max_attempts => 1000000, retention => '1 day', notify_finished => true)
	FROM unnest('{s.told,s.ticks,s.burst}'::text[]) q;
SELECT idemq.schedule('every' || n, format('every %s s', n), 's.ticks', '{}') FROM generate_series(1, 7) n;

-- Completes the job (commit) or fails it for good (dead).
CREATE FUNCTION steer_finish(q text, job bigint, job_token bigint, how text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF how = 'dead' THEN
		IF idemq.fail(job, job_token, 'no luck', permanent => true)::text <> 'dead' THEN
			RETURN;
		END IF;
	ELSE
		PERFORM idemq.commit(job, job_token);
	END IF;
	INSERT INTO finishes VALUES (q, job, CASE how WHEN 'dead' THEN 'dead' ELSE 'completed' END);
END $$;

-- Cancels a job or takes it back.  Returns the outcome.
CREATE FUNCTION steer_cancel(q text, job bigint, job_key text, how text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	outcome text := CASE how WHEN 'cancel' THEN idemq.cancel(job)::text WHEN 'cancel_by_key' THEN idemq.cancel_by_key(q, job_key)::text
		ELSE idemq.revoke_lease(job)::text END;
BEGIN
	-- A second cancel returns the same.
	IF outcome = 'cancelled' AND NOT EXISTS (SELECT FROM finishes f WHERE (f.job, f.status) = (steer_cancel.job, 'cancelled')) THEN
		INSERT INTO finishes VALUES (q, job, 'cancelled');
	END IF;
	RETURN outcome;
END $$;

-- The settings that declarations name and the DBA changes.
CREATE FUNCTION steer_stored(q text, OUT settings jsonb, OUT declared jsonb) LANGUAGE sql AS $$
	SELECT jsonb_build_object('max_attempts', max_attempts, 'max_running', max_running, 'rate_limit', rate_limit, 'group_max_running', group_max_running), declared
		FROM idemq.queues WHERE name = q ORDER BY age(xmin) LIMIT 1 $$;

CREATE FUNCTION steer_declare(q text, named jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	seen pg_snapshot := pg_current_snapshot();
	t0 timestamptz := clock_timestamp();
	got record;
	t1 timestamptz;
	after record;
BEGIN
	SELECT * INTO got FROM idemq.ensure_queue(q, max_attempts => (named->>'max_attempts')::int, max_running => (named->>'max_running')::int,
		rate_limit => (named->>'rate_limit')::int, group_max_running => (named->>'group_max_running')::int);
	t1 := clock_timestamp();
	SELECT * INTO after FROM steer_stored(q);
	-- ensure_queue changes the latest version of the row.  Above READ COMMITTED, this transaction may still see an older version.
	INSERT INTO declarations (queue, what, named, changes, stored, declared, seen, t0, t1) SELECT q, got.outcome, named, got.changes,
		CASE WHEN knows THEN after.settings END, CASE WHEN knows THEN after.declared END, seen, t0, t1
		FROM (SELECT got.outcome <> 'changed' OR current_setting('transaction_isolation') = 'read committed' AS knows) k;
END $$;

-- named is NULL: drops the queue.
CREATE FUNCTION steer_alter(q text, named jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	t0 timestamptz := clock_timestamp();
	after record;
BEGIN
	IF named IS NULL THEN
		PERFORM idemq.drop_queue(q, force => true);
	ELSE
		PERFORM idemq.alter_queue(q, max_attempts => (named->>'max_attempts')::int, max_running => (named->>'max_running')::int,
			rate_limit => (named->>'rate_limit')::int, group_max_running => (named->>'group_max_running')::int);
	END IF;
	SELECT * INTO after FROM steer_stored(q);
	INSERT INTO declarations (queue, what, named, stored, declared, t0, t1)
		VALUES (q, CASE WHEN named IS NULL THEN 'drop' ELSE 'alter' END, named, after.settings, after.declared, t0, clock_timestamp());
END $$;

CREATE FUNCTION steer_schedule(schedule text, what text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	t0 timestamptz := clock_timestamp();
BEGIN
	IF what = 'pause' THEN
		PERFORM idemq.pause_schedule(schedule);
	ELSE
		PERFORM idemq.resume_schedule(schedule);
	END IF;
	INSERT INTO steered (name, what, t0) VALUES (schedule, what, t0);
END $$;
