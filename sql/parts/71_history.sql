-- Three retention tiers, with steps of 10 s, 1 min and 10 min: a step overwrites the one that ended
-- an hour, a day or a week before, if there is one.  Rows of one step are side by side, since they
-- are written together; half of each page is free, so that they are overwritten in place (HOT), and
-- nothing is left behind.  Not dumped, because it is about this server.
CREATE TABLE idemq_internal.history_steps (
	step        int NOT NULL,
	place       int NOT NULL,
	queue_id    int NOT NULL,
	at          timestamptz NOT NULL,
	pending     bigint,
	blocked     bigint,
	running     bigint,
	retrying    bigint,
	dead        bigint,
	due_since   timestamptz,
	enqueued    bigint NOT NULL,
	claimed     bigint NOT NULL,
	completed   bigint NOT NULL,
	failures    bigint NOT NULL,
	died        bigint NOT NULL,
	cancelled   bigint NOT NULL,
	expired     bigint NOT NULL,
	wait_counts int[],
	run_counts  int[],
	PRIMARY KEY (step, place, queue_id)
) WITH (fillfactor = 45);
COMMENT ON TABLE idemq_internal.history_steps IS 'what idemq.history shows; one row a step and queue, at most 2,808 a queue; TRUNCATE it to forget all of it';
COMMENT ON COLUMN idemq_internal.history_steps.step IS 'length of the step in seconds';
COMMENT ON COLUMN idemq_internal.history_steps.place IS 'number of the step in its retention tier';
COMMENT ON COLUMN idemq_internal.history_steps.queue_id IS 'number of the queue; 0: all together';
COMMENT ON COLUMN idemq_internal.history_steps.due_since IS 'since when a job could be claimed at the end of the step; NULL: none could be';
CREATE INDEX history_queue ON idemq_internal.history_steps (queue_id, step);
-- No policy: the view shows what is to be seen.
ALTER TABLE idemq_internal.history_steps ENABLE ROW LEVEL SECURITY;

-- Topic: Internal

-- What has changed of each queue since the last step (src/worker/history.c); in the worker alone.
CREATE FUNCTION idemq_internal.history()
	RETURNS TABLE (queue_id int, pending bigint, blocked bigint, running bigint, retrying bigint,
		dead bigint, due_since timestamptz, enqueued bigint, claimed bigint, completed bigint,
		failures bigint, died bigint, cancelled bigint, expired bigint, wait_counts int[],
		run_counts int[])
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_history';

-- The number of steps in a retention tier: an hour of 10 s, a day of 1 min, a week of 10 min.
CREATE FUNCTION idemq_internal.history_tier_length(step int) RETURNS int
	IMMUTABLE LANGUAGE sql AS 'SELECT CASE step WHEN 10 THEN 360 WHEN 60 THEN 1440 ELSE 1008 END';

CREATE FUNCTION idemq_internal.history_place(step int, at timestamptz) RETURNS int
	IMMUTABLE LANGUAGE sql AS $$
	SELECT (extract(epoch FROM at)::bigint / step % idemq_internal.history_tier_length(step))::int
	$$;

-- Writes the step of 10 s that has ended at until; or folds the steps since then, up to until, into
-- longer ones, each that a part of them lies in.  since NULL: since the last of these.  A folded
-- row has the gauges of its last part: none has changed since.  Returns how many rows.
CREATE FUNCTION idemq_internal.write_history(step int, since timestamptz, until timestamptz)
	RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	length CONSTANT interval := make_interval(secs => write_history.step);
	part CONSTANT int := CASE write_history.step WHEN 600 THEN 60 ELSE 10 END;
	places int[];
	count bigint;
BEGIN
	IF write_history.step > 10 THEN
		since := coalesce(since, (SELECT max(h.at) FROM idemq_internal.history_steps h
			WHERE h.queue_id = 0 AND h.step = write_history.step), '-infinity');
		-- What is older would have the place of a step that is not.
		since := greatest(since, until - length *
			idemq_internal.history_tier_length(write_history.step));
		places := ARRAY(SELECT idemq_internal.history_place(part, p.at)
			FROM generate_series(greatest(since, until - make_interval(
				secs => part * (idemq_internal.history_tier_length(part) - 1))), until,
				make_interval(secs => part)) p (at));
	END IF;
	INSERT INTO idemq_internal.history_steps AS h
	SELECT write_history.step, idemq_internal.history_place(write_history.step, s.at), s.*
	FROM (
		SELECT n.queue_id, until AS at, n.pending, n.blocked, n.running, n.retrying, n.dead,
			n.due_since, n.enqueued, n.claimed, n.completed, n.failures, n.died, n.cancelled,
			n.expired, n.wait_counts, n.run_counts
		FROM idemq_internal.history() n WHERE write_history.step = 10
		UNION ALL
		SELECT f.queue_id, f.at, (f.last).pending, (f.last).blocked, (f.last).running,
			(f.last).retrying, (f.last).dead, (f.last).due_since, f.enqueued, f.claimed, f.completed,
			f.failures, f.died, f.cancelled, f.expired, f.wait_counts, f.run_counts
		FROM (
			SELECT p.queue_id, e.at, (array_agg(p ORDER BY p.at DESC))[1] AS last,
				sum(p.enqueued)::bigint AS enqueued, sum(p.claimed)::bigint AS claimed,
				sum(p.completed)::bigint AS completed, sum(p.failures)::bigint AS failures,
				sum(p.died)::bigint AS died, sum(p.cancelled)::bigint AS cancelled,
				sum(p.expired)::bigint AS expired, idemq.sum_counts(p.wait_counts) AS wait_counts,
				idemq.sum_counts(p.run_counts) AS run_counts
			FROM idemq_internal.history_steps p
			CROSS JOIN LATERAL (SELECT date_bin(length, p.at - interval '1 us',
				'2000-01-01 00:00:00+00') + length AS at) e
			WHERE p.step = part AND p.place = ANY (places) AND p.at > since AND p.at <= until
			GROUP BY p.queue_id, e.at) f) s
	ORDER BY s.at, s.queue_id
	ON CONFLICT (step, place, queue_id) DO UPDATE SET (at, pending, blocked, running, retrying,
		dead, due_since, enqueued, claimed, completed, failures, died, cancelled, expired,
		wait_counts, run_counts) = (excluded.at, excluded.pending, excluded.blocked,
		excluded.running, excluded.retrying, excluded.dead, excluded.due_since, excluded.enqueued,
		excluded.claimed, excluded.completed, excluded.failures, excluded.died, excluded.cancelled,
		excluded.expired, excluded.wait_counts, excluded.run_counts);
	GET DIAGNOSTICS count = ROW_COUNT;
	IF write_history.step = 600 THEN
		-- Of queues that were dropped: each number is looked up once, whatever it has left.
		WITH RECURSIVE numbers AS (
			SELECT min(h.queue_id) AS queue_id FROM idemq_internal.history_steps h
				WHERE h.queue_id > 0
			UNION ALL
			SELECT (SELECT min(h.queue_id) FROM idemq_internal.history_steps h
				WHERE h.queue_id > n.queue_id)
			FROM numbers n WHERE n.queue_id IS NOT NULL)
		DELETE FROM idemq_internal.history_steps h USING numbers n WHERE h.queue_id = n.queue_id
			AND NOT EXISTS (SELECT FROM idemq.queues q WHERE q.queue_id = n.queue_id);
	END IF;
	RETURN count;
END $$;

-- Topic: Observing

CREATE FUNCTION idemq.percentile(counts int[], part float8) RETURNS interval
	IMMUTABLE PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_percentile';
COMMENT ON FUNCTION idemq.percentile(int[], float8)
	IS 'the time within which that part (0.95) of what is counted was done, within 12.5 %: of wait_counts or run_counts of idemq.history, or of idemq.sum_counts of some; NULL for NULL; raises 22023 for anything else';

CREATE FUNCTION idemq_internal.add_counts(counts int[], more int[]) RETURNS int[]
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_add_counts';
COMMENT ON FUNCTION idemq_internal.add_counts(int[], int[])
	IS 'both histograms together, as wait_counts and run_counts of idemq.history are; NULL for NULL';

CREATE AGGREGATE idemq.sum_counts(int[]) (
	SFUNC = idemq_internal.add_counts, STYPE = int[], COMBINEFUNC = idemq_internal.add_counts,
		PARALLEL = SAFE);
COMMENT ON AGGREGATE idemq.sum_counts(int[])
	IS 'all histograms together, of several steps or queues of idemq.history; NULL when there is none';

-- By queue first, so that its privileges are asked once, and not for each row.
CREATE VIEW idemq.history WITH (security_barrier) AS
	SELECT q.name AS queue, h.step, h.at, h.pending, h.blocked, h.running,
		h.retrying, h.dead, h.at OPERATOR(pg_catalog.-) h.due_since AS oldest_due,
		h.enqueued, h.claimed, h.completed, h.failures, h.died, h.cancelled, h.expired,
		h.wait_counts, h.run_counts, h.place
	FROM (SELECT n.queue_id, n.name FROM idemq.queues n
			WHERE pg_catalog.pg_has_role('pg_monitor', 'USAGE')
				OR idemq_internal.may_see(n.queue_id)
		UNION ALL
		SELECT 0, NULL WHERE pg_catalog.pg_has_role('pg_monitor', 'USAGE')) q
	JOIN idemq_internal.history_steps h ON h.queue_id OPERATOR(pg_catalog.=) q.queue_id;
COMMENT ON VIEW idemq.history IS 'what happened in each queue, and what it had, over time, for charts: one row a queue that you may claim from or administer (pg_monitor: every queue, and one of all together) and step in which something changed; a step that has none is one in which nothing did; written by the background worker while idemq.history is on';
COMMENT ON COLUMN idemq.history.queue IS 'name of the queue; NULL: all queues of the database together';
COMMENT ON COLUMN idemq.history.step IS 'length of the step in seconds: 10 of the last hour, 60 of the last day, 600 of the last week; older ones stay until they are written over';
COMMENT ON COLUMN idemq.history.at IS 'end of the step, a multiple of its length';
COMMENT ON COLUMN idemq.history.pending IS 'jobs that were ready then, or would be at their time; this and the next four NULL: they were not counted yet';
COMMENT ON COLUMN idemq.history.blocked IS 'jobs that were blocked';
COMMENT ON COLUMN idemq.history.running IS 'jobs in flight';
COMMENT ON COLUMN idemq.history.retrying IS 'jobs that had begun, and waited for their next attempt';
COMMENT ON COLUMN idemq.history.dead IS 'jobs that were dead';
COMMENT ON COLUMN idemq.history.oldest_due IS 'for how long the job had been due that could be claimed for the longest time; NULL: none could be';
COMMENT ON COLUMN idemq.history.enqueued IS 'jobs enqueued in the step';
COMMENT ON COLUMN idemq.history.claimed IS 'attempts begun in it';
COMMENT ON COLUMN idemq.history.completed IS 'jobs committed';
COMMENT ON COLUMN idemq.history.failures IS 'attempts that failed';
COMMENT ON COLUMN idemq.history.died IS 'jobs that died';
COMMENT ON COLUMN idemq.history.cancelled IS 'jobs cancelled, or not claimed in time';
COMMENT ON COLUMN idemq.history.expired IS 'leases that ended';
COMMENT ON COLUMN idemq.history.wait_counts IS 'how long the jobs claimed in the step had been due: a histogram, for idemq.percentile and idemq.sum_counts; NULL: there was none. Its first element is the number of a bucket, the others are counts, of that bucket and those after it; bucket b ends before b + 1 us up to 7, from 8 on before (5 + b % 4) * 2^(b / 4 - 1) us';
COMMENT ON COLUMN idemq.history.run_counts IS 'how long the attempts committed in the step ran, likewise';
COMMENT ON COLUMN idemq.history.place IS 'number of the step in its retention tier, by which a row is found: at divided by step, both in seconds, modulo 360, 1,440 or 1,008 for the three tiers';
