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
COMMENT ON TABLE idemq_internal.history_steps IS 'source of idemq.history, with one row per step and queue and at most 2,808 rows per queue. To delete the history, TRUNCATE this table.';
COMMENT ON COLUMN idemq_internal.history_steps.step IS 'length of the step in seconds';
COMMENT ON COLUMN idemq_internal.history_steps.place IS 'number of the step within its retention tier';
COMMENT ON COLUMN idemq_internal.history_steps.queue_id IS 'numeric id of the queue; 0 means that the row covers all queues';
COMMENT ON COLUMN idemq_internal.history_steps.due_since IS 'when the job that had been ready longest at the end of the step became ready; NULL means that no job was ready';
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
	IS 'Return the time within which the given fraction (such as 0.95) of jobs was claimed or of attempts was committed, accurate to within 12.5 %. Pass wait_counts or run_counts from idemq.history, or their sum from idemq.sum_counts, as the histogram. Returns NULL if the histogram is NULL. Raises 22023 if the array is not a histogram.';

CREATE FUNCTION idemq_internal.add_counts(counts int[], more int[]) RETURNS int[]
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_add_counts';
COMMENT ON FUNCTION idemq_internal.add_counts(int[], int[])
	IS 'Add two histograms, such as values of wait_counts or run_counts from idemq.history. Returns NULL if either is NULL.';

CREATE AGGREGATE idemq.sum_counts(int[]) (
	SFUNC = idemq_internal.add_counts, STYPE = int[], COMBINEFUNC = idemq_internal.add_counts,
		PARALLEL = SAFE);
COMMENT ON AGGREGATE idemq.sum_counts(int[])
	IS 'Add the histograms of several steps or queues from idemq.history. Returns NULL if there are no histograms.';

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
COMMENT ON VIEW idemq.history IS 'activity of each queue over time, for charts: one row per step and per queue that you may claim from or administer. The role pg_monitor sees every queue, and also one row per step for all queues together. A step in which nothing changed has no row. The background worker writes the rows while idemq.history is on.';
COMMENT ON COLUMN idemq.history.queue IS 'name of the queue; NULL means that the row covers all queues in the database';
COMMENT ON COLUMN idemq.history.step IS 'length of the step in seconds: 10 for the last hour, 60 for the last day, 600 for the last week; older rows remain until they are overwritten';
COMMENT ON COLUMN idemq.history.at IS 'end of the step, which is a multiple of the step length';
COMMENT ON COLUMN idemq.history.pending IS 'number of jobs that were ready or would be ready at their scheduled time; in this and the next four columns, NULL means that jobs had not been counted yet';
COMMENT ON COLUMN idemq.history.blocked IS 'number of blocked jobs';
COMMENT ON COLUMN idemq.history.running IS 'number of running jobs';
COMMENT ON COLUMN idemq.history.retrying IS 'number of jobs that had begun and were waiting for their next attempt';
COMMENT ON COLUMN idemq.history.dead IS 'number of dead jobs';
COMMENT ON COLUMN idemq.history.oldest_due IS 'how long the longest-waiting ready job had been ready; NULL means that no job was ready';
COMMENT ON COLUMN idemq.history.enqueued IS 'number of jobs enqueued in the step';
COMMENT ON COLUMN idemq.history.claimed IS 'number of attempts begun in the step';
COMMENT ON COLUMN idemq.history.completed IS 'number of jobs committed in the step';
COMMENT ON COLUMN idemq.history.failures IS 'number of attempts that failed';
COMMENT ON COLUMN idemq.history.died IS 'number of jobs that became dead';
COMMENT ON COLUMN idemq.history.cancelled IS 'number of jobs that were cancelled or were not claimed in time';
COMMENT ON COLUMN idemq.history.expired IS 'number of leases that expired';
COMMENT ON COLUMN idemq.history.wait_counts IS 'how long the jobs claimed in the step had been due, as a histogram for idemq.percentile and idemq.sum_counts; NULL means that no job was claimed. The first element is the number of a bucket, and the others are the counts of that bucket and the following buckets. Bucket b ends before b + 1 us for b up to 7, and before (5 + b % 4) * 2^(b / 4 - 1) us for b from 8 on.';
COMMENT ON COLUMN idemq.history.run_counts IS 'how long the attempts committed in the step had run, as a histogram like wait_counts';
COMMENT ON COLUMN idemq.history.place IS 'number of the step within its retention tier: "at" divided by "step", both in seconds, modulo 360, 1,440 or 1,008, depending on the tier. The number identifies a row within its tier and queue.';
