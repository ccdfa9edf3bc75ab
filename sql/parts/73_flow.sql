-- Topic: Dependencies

-- These run as the caller, through a wrapper (src/api/wrapper.c), so row-level security shows the
-- edges of children of queues that it may see.  Each job is looked up by itself, in a subquery that
-- OFFSET 0 keeps from becoming a join: with old statistics, a join may begin at the other table or
-- read all of it for each job.  A child and a parent are compared as a row where this decides which
-- index is used.  Conditions on the edges of a parent also name queue_id, which is never 0: otherwise
-- an index-only scan of the whole primary key would do, once per parent.

-- Nearest first, so that what is left out beyond most is what is farthest.
CREATE FUNCTION idemq.flow_ids(id bigint, most int DEFAULT 100000) RETURNS SETOF bigint
	ROWS 1000 STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_as_caller';
COMMENT ON FUNCTION idemq.flow_ids(bigint, int) IS 'List the ids of all jobs that are directly or indirectly connected to the given job through dependencies, which is its entire graph or fan-out. The argument "most" is the maximum number of ids; if it is less than 1, no ids are returned. Returns no rows for a job that you may not see. To end the flow, call idemq.cancel_many(ARRAY(SELECT idemq.flow_ids(id))).';

CREATE FUNCTION idemq_internal.flow_ids_impl(id bigint, most int) RETURNS SETOF bigint
	ROWS 1000 STABLE LANGUAGE sql SET enable_seqscan = off SET enable_hashjoin = off
	SET enable_mergejoin = off SET jit = off
	AS $$
	WITH RECURSIVE members AS (
		SELECT j.id FROM idemq.jobs j WHERE j.id = flow_ids_impl.id
		UNION
		SELECT e.id FROM members m CROSS JOIN LATERAL (
			(SELECT d.parent FROM idemq.dependencies d WHERE d.child = m.id OFFSET 0)
			UNION ALL
			(SELECT d.child FROM idemq.dependencies d WHERE d.parent = m.id AND d.queue_id <> 0
				OFFSET 0)) e (id))
	SELECT m.id FROM members m LIMIT CASE WHEN most < 0 THEN 0 ELSE most END
	$$;

CREATE FUNCTION idemq.flow(
	id bigint, most int DEFAULT 100000,
	OUT jobs bigint, OUT waiting bigint, OUT blocked bigint, OUT running bigint,
	OUT retrying bigint, OUT completed bigint, OUT dead bigint, OUT cancelled bigint,
	OUT done bigint, OUT progress float8, OUT begun_at timestamptz, OUT ended_at timestamptz,
	OUT eta interval, OUT held_up_by bigint, OUT held_up_why text, OUT slowest bigint,
	OUT slowest_kind text, OUT slowest_for interval, OUT failed_ids bigint[],
	OUT roots bigint[], OUT cut boolean)
	RETURNS SETOF record
	ROWS 1 VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_as_caller';
COMMENT ON FUNCTION idemq.flow(bigint, int) IS 'Report the progress of a graph or fan-out, given any of its jobs. Returns one row, or no row if you may not see the job. The argument "most" is the maximum number of jobs to read.
- jobs: total number of jobs. The next columns count the waiting (pending), blocked, running, retrying (begun, and waiting for the next attempt), completed, dead and cancelled jobs. A deleted parent is counted with the status that its children see.
- done: number of completed, dead or cancelled jobs
- progress: percentage of jobs that are done
- begun_at: when the first job was claimed
- ended_at: when the last job finished. NULL means that some jobs are unfinished.
- eta: estimated time until all jobs are done, based on the pace of the later half of the finished jobs. NULL means that no estimate is possible.
- held_up_by: job that the most other jobs are waiting for, or else the job that has been unfinished longest. The next column contains the result of idemq.why for this job.
- slowest: job with the longest attempt among the running and completed jobs
- failed_ids: ids of up to 100 dead jobs, followed by jobs that are being retried
- roots: ids of up to 100 jobs without parents
- cut: whether the flow has more jobs than "most". The other jobs are not counted.';

CREATE FUNCTION idemq_internal.flow_impl(
	id bigint, most int,
	OUT jobs bigint, OUT waiting bigint, OUT blocked bigint, OUT running bigint,
	OUT retrying bigint, OUT completed bigint, OUT dead bigint, OUT cancelled bigint,
	OUT done bigint, OUT progress float8, OUT begun_at timestamptz, OUT ended_at timestamptz,
	OUT eta interval, OUT held_up_by bigint, OUT held_up_why text, OUT slowest bigint,
	OUT slowest_kind text, OUT slowest_for interval, OUT failed_ids bigint[],
	OUT roots bigint[], OUT cut boolean)
	RETURNS SETOF record
	ROWS 1 VOLATILE LANGUAGE sql SET enable_seqscan = off SET enable_hashjoin = off
	SET enable_mergejoin = off SET jit = off
	AS $$
	WITH ids AS MATERIALIZED (
		SELECT f.id, row_number() OVER () AS n
			FROM idemq.flow_ids(flow_impl.id,
				least(greatest(flow_impl.most, 0), 2147483646) + 1) f (id)
	), seen AS MATERIALIZED (
		SELECT i.id, j.id IS NOT NULL AS is_there, j.status, j.kind, j.claimed_at, j.finished_at,
			j.ready_at, CASE WHEN j.id IS NULL THEN (SELECT d.child FROM idemq.dependencies d
				WHERE d.parent = i.id AND d.queue_id <> 0 LIMIT 1) END AS child
		FROM ids i LEFT JOIN LATERAL (SELECT j.id, j.status, j.kind, j.claimed_at, j.finished_at,
			j.ready_at FROM idemq.jobs j WHERE j.id = i.id OFFSET 0) j ON true
		WHERE i.n <= flow_impl.most
	), gone AS (
		-- Parents whose rows are gone, or of queues of others: a child is told what they count as.
		SELECT DISTINCT ON (p.parent) p.parent AS id, coalesce(p.status, 'completed') AS status
		FROM (SELECT DISTINCT s.child FROM seen s WHERE s.child IS NOT NULL) c
		CROSS JOIN LATERAL idemq.parents(c.child) p
		WHERE (SELECT true FROM idemq.jobs j WHERE j.id = p.parent) IS NULL
	), members AS MATERIALIZED (
		SELECT s.id, s.status, s.kind, s.claimed_at, s.finished_at, s.ready_at FROM seen s
			WHERE s.is_there
		UNION ALL
		SELECT g.id, g.status, NULL, NULL, NULL, NULL FROM gone g
	), counts AS (
		SELECT count(*) AS jobs,
			count(*) FILTER (WHERE m.status = 'pending') AS waiting,
			count(*) FILTER (WHERE m.status = 'blocked') AS blocked,
			count(*) FILTER (WHERE m.status = 'running') AS running,
			count(*) FILTER (WHERE m.status = 'retrying') AS retrying,
			count(*) FILTER (WHERE m.status = 'completed') AS completed,
			count(*) FILTER (WHERE m.status = 'dead') AS dead,
			count(*) FILTER (WHERE m.status = 'cancelled') AS cancelled,
			count(*) FILTER (WHERE m.status IN ('completed', 'dead', 'cancelled')) AS done,
			min(m.claimed_at) AS begun_at, max(m.finished_at) AS ended_at,
			-- The pace is that of the later half, or of all while they are few.
			count(m.finished_at) AS finished,
			percentile_disc(0.5) WITHIN GROUP (ORDER BY m.finished_at) AS middle
		FROM members m
	), pace AS (
		SELECT c.*, CASE WHEN c.finished < 4 THEN c.begun_at ELSE c.middle END AS since FROM counts c
	), holder AS (
		-- What most wait for; where nothing waits, what is not done for the longest time.
		SELECT m.id, m.status FROM members m CROSS JOIN LATERAL (SELECT count(*) AS waiting
			FROM idemq.children k WHERE k.waits_for = m.id
				AND (SELECT j.status = 'blocked' FROM idemq.jobs j WHERE j.id = k.job_id)) k
		WHERE m.status IN ('pending', 'retrying', 'running')
			OR m.status IN ('dead', 'cancelled') AND k.waiting > 0
		ORDER BY k.waiting DESC, coalesce(m.claimed_at, m.ready_at), m.id LIMIT 1
	)
	SELECT p.jobs, p.waiting, p.blocked, p.running, p.retrying, p.completed, p.dead, p.cancelled,
		p.done, p.done * 100.0::float8 / p.jobs, p.begun_at,
		CASE WHEN p.done = p.jobs THEN p.ended_at END,
		CASE WHEN p.done = p.jobs THEN interval '0'
			WHEN p.finished > 0 AND (SELECT h.status NOT IN ('dead', 'cancelled') FROM holder h)
			THEN (p.jobs - p.done) * (idemq.clock_timestamp() - p.since) / (SELECT greatest(count(*), 1)
				FROM members m WHERE m.finished_at > p.since) END,
		(SELECT h.id FROM holder h), (SELECT idemq.why(h.id) FROM holder h),
		w.id, w.kind, w.lasted,
		ARRAY(SELECT m.id FROM members m WHERE m.status IN ('dead', 'retrying')
			ORDER BY m.status = 'dead' DESC, m.id LIMIT 100),
		ARRAY(SELECT m.id FROM members m
			WHERE (SELECT true FROM idemq.dependencies d WHERE d.child = m.id LIMIT 1) IS NULL
			ORDER BY m.id LIMIT 100),
		EXISTS (SELECT FROM ids i WHERE i.n > flow_impl.most)
	FROM pace p
	LEFT JOIN (
		SELECT m.id, m.kind, coalesce(m.finished_at, idemq.clock_timestamp()) - m.claimed_at AS lasted
		FROM members m WHERE m.claimed_at IS NOT NULL AND m.status IN ('running', 'completed')
		ORDER BY lasted DESC, m.id LIMIT 1) w ON true
	WHERE p.jobs > 0
	$$;

CREATE FUNCTION idemq.flow_jobs(member bigint, most int DEFAULT 2000)
	RETURNS TABLE (id bigint, queue text, kind text, status idemq.status, parents bigint[],
		depth int, begun_at timestamptz, ended_at timestamptz, progress float8, last_error text)
	ROWS 1000 STABLE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_as_caller';
COMMENT ON FUNCTION idemq.flow_jobs(bigint, int) IS 'List the jobs of idemq.flow by id, with their parents and depth, which is the length of the longest path from a job without parents. Returns no row for a deleted job. The argument "most" is the maximum number of jobs to list. If there are more, those nearest to the given job are listed.';

CREATE FUNCTION idemq_internal.flow_jobs_impl(member bigint, most int)
	RETURNS TABLE (id bigint, queue text, kind text, status idemq.status, parents bigint[],
		depth int, begun_at timestamptz, ended_at timestamptz, progress float8, last_error text)
	ROWS 1000 STABLE LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off
	SET enable_mergejoin = off SET jit = off
	AS $$
#variable_conflict use_column
DECLARE
	ids CONSTANT bigint[] := ARRAY(SELECT f FROM idemq.flow_ids(member, most) f ORDER BY f);
	places CONSTANT jsonb := (SELECT jsonb_object_agg(u.id, u.n)
		FROM unnest(ids) WITH ORDINALITY u (id, n));
	depths int[] := array_fill(0, ARRAY[cardinality(ids)]);
	edge record;
	changed boolean;
	younger boolean;
BEGIN
	-- A parent is older than its child, so its depth is known by then; unless it was added (add_parents):
	-- then this repeats, at most once per job on the longest path.
	FOR pass IN 1 .. cardinality(ids) LOOP
		changed := false;
		younger := false;
		FOR edge IN SELECT u.n AS child, (places -> d.parent::text)::int AS parent
			FROM unnest(ids) WITH ORDINALITY u (id, n) CROSS JOIN LATERAL (
				SELECT d.parent FROM idemq.dependencies d WHERE d.child = u.id OFFSET 0) d
			ORDER BY u.n LOOP
			younger := younger OR coalesce(edge.parent > edge.child, false);
			IF depths[edge.child] <= depths[edge.parent] THEN
				depths[edge.child] := depths[edge.parent] + 1;
				changed := true;
			END IF;
		END LOOP;
		EXIT WHEN NOT (changed AND younger);
	END LOOP;
	RETURN QUERY SELECT j.id, idemq.queue_name(j.queue_id), j.kind, j.status,
			ARRAY(SELECT d.parent FROM idemq.dependencies d
				WHERE (d.child, d.parent) >= (j.id, -9223372036854775808)
					AND (d.child, d.parent) <= (j.id, 9223372036854775807)
				ORDER BY d.child, d.parent),
			depths[u.n], j.claimed_at, j.finished_at, idemq.progress(j.checkpoint), j.last_error
		FROM unnest(ids) WITH ORDINALITY u (id, n) CROSS JOIN LATERAL (
			SELECT j.id, j.queue_id, j.kind, j.status, j.claimed_at, j.finished_at, j.checkpoint,
				j.last_error FROM idemq.jobs j WHERE j.id = u.id OFFSET 0) j ORDER BY u.n;
END $$;
