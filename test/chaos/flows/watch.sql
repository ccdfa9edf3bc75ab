-- The queues and the ledger of the second part of the chaos test of flows, in which jobs are kept from starting; see README.md.

-- What happened.  The transaction that does something also writes the row, so the row exists if and only if that transaction
-- has committed, and pg_xact_commit_timestamp returns the time of the commit.  t0, t1: just before and after the call.
-- ready: when the job is due; computed after the call, so it is never too early.  until: the end of a hold or a pause.
CREATE TABLE happened (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, what text, queue text, name text, job bigint, token bigint,
	t0 timestamptz, t1 timestamptz DEFAULT clock_timestamp(), ready timestamptz, until timestamptz, worker text);

CREATE TABLE watched (queue text PRIMARY KEY, grouped bool, max_running int, group_max_running int, rate int, group_rate int, period interval,
	max_unfinished int, group_max_unfinished int);
-- There are several queues of each kind, so that in each of them there is often no event that would wake a worker by chance.
INSERT INTO watched SELECT kind || n, grouped, max_running, group_max_running, rate, group_rate, period, max_unfinished, group_max_unfinished FROM (VALUES
	('w.plain', false, NULL, 1, NULL, NULL, interval '500 ms', NULL::int, NULL::int),
	('w.fifo', true, NULL, 1, NULL, NULL, '500 ms', NULL, NULL),
	('w.permits', true, NULL, 2, NULL, NULL, '500 ms', NULL, NULL),
	('w.tenants', true, NULL, 2, NULL, 2, '600 ms', NULL, NULL),
	('w.rate', false, NULL, 1, 3, NULL, '500 ms', NULL, NULL),
	('w.rates', true, NULL, 1, 4, 2, '700 ms', NULL, NULL),
	('w.one', false, 1, 1, NULL, NULL, '500 ms', NULL, NULL),
	('w.groups', true, NULL, 2, NULL, NULL, '500 ms', NULL, 3),
	('w.full', false, NULL, 1, NULL, NULL, '500 ms', 3, NULL)) k (kind, grouped, max_running, group_max_running, rate, group_rate, period, max_unfinished,
		group_max_unfinished),
	generate_series(1, 3) n;
SELECT idemq.create_queue(queue, lease => make_interval(secs => 5 * slow()), retry_max => '1 s', max_attempts => 1000000, retention => '1 day',
	max_running => max_running, group_max_running => group_max_running, rate_limit => rate, rate_period => period,
	group_rate_limit => group_rate, group_rate_period => period, max_unfinished => max_unfinished,
	group_max_unfinished => group_max_unfinished) FROM watched;

CREATE FUNCTION watch_enqueue(q text, name text, delay interval) RETURNS bigint LANGUAGE sql AS $$
	WITH new AS (SELECT id, clock_timestamp() AS t1 FROM idemq.enqueue(q, '{}', group_key => name, delay => delay))
	INSERT INTO happened (what, queue, name, job, ready) SELECT 'enqueue', q, name, id, t1 + delay FROM new RETURNING job $$;

CREATE FUNCTION watch_claim(queues text[], worker text, attach bool) RETURNS TABLE (job bigint, token bigint, queue text, name text) LANGUAGE plpgsql AS $$
DECLARE
	t0 timestamptz := clock_timestamp();
	got idemq.claimed_queue_job;
BEGIN
	SELECT * INTO got FROM idemq.claim_any(queues, 1, worker => worker, attach => attach);
	IF got.id IS NOT NULL THEN
		INSERT INTO happened (what, queue, name, job, token, t0, worker) VALUES ('start', got.queue, got.group_key, got.id, got.token, t0, worker);
		RETURN QUERY SELECT got.id, got.token, got.queue, got.group_key;
	END IF;
END $$;

-- Ends an attempt; how is commit, fail or release.
CREATE FUNCTION watch_end(q text, name text, job bigint, token bigint, how text, delay interval) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	outcome text;
BEGIN
	outcome := CASE how WHEN 'commit' THEN idemq.commit(job, token)::text
		WHEN 'fail' THEN idemq.fail(job, token, 'no luck', retry_in => delay)::text ELSE idemq.release(job, token, delay)::text END;
	INSERT INTO happened (what, queue, name, job, token, ready) VALUES (how, q, name, job, token, clock_timestamp() + delay);
END $$;

CREATE FUNCTION watch_hold(q text, name text, job bigint, token bigint, delay interval, scope text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	t0 timestamptz := clock_timestamp();
	ends timestamptz := idemq.hold_back(job, token, delay, scope => scope);
	number bigint;
BEGIN
	INSERT INTO happened (what, queue, name, job, token, t0, until)
		VALUES ('hold', q, CASE scope WHEN 'group' THEN name END, job, token, t0, ends) RETURNING id INTO number;
	RETURN number;
END $$;

-- Pauses a group, or the whole queue if name is NULL.  If delay is NULL, the pause lasts until it is resumed.
CREATE FUNCTION watch_pause(q text, name text, delay interval) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	t0 timestamptz := clock_timestamp();
	number bigint;
BEGIN
	IF name IS NULL THEN
		PERFORM idemq.pause(q, t0 + delay);
	ELSE
		PERFORM idemq.pause(q, t0 + delay, group_key => name);
	END IF;
	INSERT INTO happened (what, queue, name, t0, until) VALUES ('pause', q, name, t0, coalesce(t0 + delay, 'infinity')) RETURNING id INTO number;
	RETURN number;
END $$;

CREATE FUNCTION watch_resume(q text, name text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	t0 timestamptz := clock_timestamp();
BEGIN
	IF name IS NULL THEN
		PERFORM idemq.resume(q);
	ELSE
		PERFORM idemq.resume(q, group_key => name);
	END IF;
	INSERT INTO happened (what, queue, name, t0) VALUES ('resume', q, name, t0);
END $$;
