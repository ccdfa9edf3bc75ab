-- Topic: Dependencies

-- No foreign keys to idemq.jobs: see idemq_internal.queue_grants; and each would make every write
-- of a job go through the executor.
CREATE TABLE idemq.dependencies (
	child      bigint NOT NULL,
	parent     bigint NOT NULL,
	queue_id   int NOT NULL,
	gone_as    idemq.status,
	seen_token bigint,
	PRIMARY KEY (child, parent)
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.dependencies IS 'one row per pair of child and parent. The parent is a job on which the child depends (depends_on, add_parents). A row exists as long as its child does. Row-level security restricts the rows to children in queues that the role may claim from or administer.';
COMMENT ON COLUMN idemq.dependencies.child IS 'id of the job that waits';
COMMENT ON COLUMN idemq.dependencies.parent IS 'id of the job that the child waits for';
COMMENT ON COLUMN idemq.dependencies.queue_id IS 'numeric id of the child''s queue';
COMMENT ON COLUMN idemq.dependencies.gone_as IS 'status attributed to the parent once its row is deleted: its final status, cancelled if it was unfinished, or dead if it had already failed when the child was enqueued; NULL means that the parent counts as completed';
COMMENT ON COLUMN idemq.dependencies.seen_token IS 'token issued when the child''s last parent was done, stored in one row per child. In idemq.parents, a worker that claims the child can always see the results of parent attempts whose tokens are not higher than this token. It sees later results only if it has a privilege on the parent''s queue.';
-- The children of a parent, in the order of their ids: when a parent has ended, they are marked
-- some at a time; retention and purge ask for them as well.  The second column is an expression, as
-- in the indexes of idemq.children: with statistics from when the table was empty the planner would
-- look a row up by a second column, for which it reads the whole index.  For a query with both
-- child and parent it may still take this index, and read all children of the parent: compare
-- (child, parent) as a row where that matters.
CREATE INDEX dependencies_parent ON idemq.dependencies (parent, (child + 0));

CREATE TABLE idemq.children (
	job_id            bigint PRIMARY KEY,
	queue_id          int NOT NULL,
	on_parent_failure text NOT NULL CHECK (on_parent_failure IN ('cancel', 'wait', 'run')),
	group_key         text COLLATE "C",
	waits_for         bigint NOT NULL
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.children IS 'one row per job with unfinished parents; such a job is blocked, or was cancelled before its parents were done. Row-level security works as it does for idemq.dependencies.';
COMMENT ON COLUMN idemq.children.job_id IS 'id of the job';
COMMENT ON COLUMN idemq.children.queue_id IS 'numeric id of the job''s queue';
COMMENT ON COLUMN idemq.children.on_parent_failure IS 'what happens to the job if a parent is dead or cancelled: cancel (it is cancelled), wait (it waits until the parent is retried) or run (it runs as if the parent had completed)';
COMMENT ON COLUMN idemq.children.group_key IS 'FIFO group that the job joins when its parents are done; NULL means that it does not join a group';
COMMENT ON COLUMN idemq.children.waits_for IS 'id of the parent that the job is currently waiting for; all parents with lower ids are done';
CREATE INDEX children_waits_for ON idemq.children (waits_for, (job_id + 0));
CREATE INDEX children_queue ON idemq.children (queue_id, (job_id + 0));

SELECT pg_catalog.pg_extension_config_dump('idemq.dependencies', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.children', '');

ALTER TABLE idemq.dependencies ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.dependencies FOR SELECT
	USING (idemq_internal.may_see(queue_id));
ALTER TABLE idemq.children ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.children FOR SELECT
	USING (idemq_internal.may_see(queue_id));

CREATE FUNCTION idemq_internal.dependencies_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_dependencies_changed';
COMMENT ON FUNCTION idemq_internal.dependencies_changed() IS 'statement trigger on idemq.dependencies and idemq.children that arranges for rows restored or written by hand to be processed at the end of the transaction';

CREATE TRIGGER idemq_dependencies_changed AFTER INSERT OR UPDATE OR DELETE
	OR TRUNCATE ON idemq.dependencies
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.dependencies_changed();
ALTER TABLE idemq.dependencies ENABLE ALWAYS TRIGGER idemq_dependencies_changed;
CREATE TRIGGER idemq_dependencies_changed AFTER INSERT OR UPDATE OR DELETE
	OR TRUNCATE ON idemq.children
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.dependencies_changed();
ALTER TABLE idemq.children ENABLE ALWAYS TRIGGER idemq_dependencies_changed;

CREATE FUNCTION idemq.parents(id bigint)
	RETURNS TABLE (parent bigint, queue text, status idemq.status, result jsonb)
	STABLE ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_parents';
COMMENT ON FUNCTION idemq.parents(bigint)
	IS 'List the jobs on which a job depends, with their statuses and results. Returns no rows if you may neither claim nor administer the job.
- The list includes results from queues on which you hold no privilege, as they were when the job was unblocked, because the role that enqueued the job was allowed to read them.
- status is NULL if the parent was completed and deleted (retention 0), or was claimed again and you hold no privilege on its queue.';

CREATE FUNCTION idemq.add_parents(child bigint, parents bigint[], id bigint, token bigint)
	RETURNS TABLE (parent bigint, outcome idemq.outcome)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_add_parents';
COMMENT ON FUNCTION idemq.add_parents(bigint, bigint[], bigint, bigint)
	IS 'Make a child of the running job with this id and token wait for further parents. Returns one row per parent. Requires claim on the job''s queue, enqueue on the child''s queue, and any privilege on the parents'' queues.
- Call it while the job is running. In the transaction that commits the job, call it before idemq.commit.
- added: the child waits for this parent if this transaction commits. If the parent has already finished, it counts as it would in depends_on.
- already: the job was already a parent of the child
- locked: not added, because another transaction is ending the running job, deleting the child or the parent, adding the same parent, or checking whether the child can start. Roll back and try again.
- Raises 22023 if a parent was enqueued before the running job, or if it waits for parents and was not enqueued by this transaction.
- Raises 55000 if the child does not wait for the running job.
- Raises IQ001 (stale token), IQ002 (no such job) or IQ006 (already committed).';

CREATE FUNCTION idemq.enqueue_graph(jobs jsonb)
	RETURNS TABLE (name text, id bigint, outcome idemq.outcome, status idemq.status)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_wrapper_jobs';
COMMENT ON FUNCTION idemq.enqueue_graph(jsonb)
	IS 'Add jobs that depend on each other, either all of them or none. The argument is an array of objects with a name, a queue, a payload, depends_on (names in the graph, and job ids as numbers) and the other arguments of idemq.enqueue. Returns one row per job, with parents before children. Raises 22023 if the dependencies form a cycle. Requires enqueue on each queue.';

-- Topic: Internal

CREATE FUNCTION idemq_internal.refuse_graph(job text, what text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION USING ERRCODE = '22023',
		MESSAGE = coalesce('invalid job "' || job || '" in graph: ', 'invalid job graph: ') || what,
		HINT =
			'Pass an array of objects, for example {"name": "a", "queue": "q", "payload": {}, '
			'"depends_on": ["b", 17]}. '
			'The other members are the arguments of idemq.enqueue.';
END $$;

-- It is read and checked first, and put in an order in which each job comes behind those that it
-- depends on; then each is enqueued, as the caller, who needs what that needs.  A job whose key is
-- taken is the one that has the key, for its children as well.  Jobs are numbers here; a list of
-- them is text, since an array has no rows of different lengths.
CREATE FUNCTION idemq_internal.enqueue_graph_impl(jobs jsonb)
	RETURNS TABLE (name text, id bigint, outcome idemq.outcome, status idemq.status)
		LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
	members CONSTANT jsonb := '{"name": "text", "queue": "text", "payload": "any", "key": "text",
		"delay": "text", "run_at": "text",
		"priority": "text", "group_key": "text", "max_attempts": "text", "headers": "any",
			"expires_in": "text", "key_ttl": "text",
		"on_duplicate": "text", "on_parent_failure": "text", "kind": "text", "max_wait": "text",
			"depends_on": "array"}';
	nodes jsonb[];
	numbers jsonb;    -- of each name
	children text[];
	parents text[];   -- by name
	missing int[];    -- how many of these are not in the order yet
	ordered int[];
	place int := 0;
	up int[];
		-- for a job that has no place in the order: one that it depends on, and has none either
	circle int[];
	ids bigint[];
	job jsonb;
	n int;
BEGIN
	PERFORM idemq_internal.given('jobs', jobs);
	IF jsonb_typeof(jobs) <> 'array' THEN
		PERFORM idemq_internal.refuse_graph(NULL, 'it is not an array');
	ELSIF jsonb_array_length(jobs) > 1000000 THEN
		PERFORM idemq_internal.refuse_graph(NULL, 'it has more than 1000000 elements');
	END IF;
	nodes := ARRAY(SELECT jsonb_array_elements(jobs));
	PERFORM idemq_internal.refuse_graph(NULL, CASE jsonb_typeof(j)
		WHEN 'object' THEN 'each element must have a name, which must be a string'
			ELSE 'each element must be an object' END)
		FROM unnest(nodes) j WHERE jsonb_typeof(j -> 'name') IS DISTINCT FROM 'string'
			OR j ->> 'name' = '';
	PERFORM idemq_internal.refuse_graph(j ->> 'name', w.what)
		FROM unnest(nodes) j, jsonb_each(j) m (key, value), LATERAL (SELECT CASE
			WHEN NOT members ? m.key THEN format('member "%s" is not recognized', m.key)
			WHEN members ->> m.key = 'array' AND jsonb_typeof(m.value) NOT IN ('array',
				'null') THEN m.key || ' must be an array'
			WHEN members ->> m.key = 'text' AND jsonb_typeof(m.value) NOT IN ('string', 'number',
				'null')
				THEN m.key || ' must be a string or a number' END) w (what)
		WHERE w.what IS NOT NULL;
	PERFORM idemq_internal.refuse_graph(j ->> 'name', 'queue and payload are required')
		FROM unnest(nodes) j WHERE j ->> 'queue' IS NULL OR NOT j ? 'payload';
	PERFORM idemq_internal.refuse_graph(j ->> 'name', 'another job has the same name')
		FROM unnest(nodes) j GROUP BY j ->> 'name' HAVING count(*) > 1;
	numbers := (SELECT jsonb_object_agg(u.j ->> 'name', u.n)
		FROM unnest(nodes) WITH ORDINALITY u (j, n));
	PERFORM idemq_internal.refuse_graph(j ->> 'name', w.what)
		FROM unnest(nodes) j, jsonb_array_elements(nullif(j -> 'depends_on', 'null')) d,
			LATERAL (SELECT CASE jsonb_typeof(d)
			WHEN 'number' THEN CASE WHEN d::text !~ '^-?\d+$'
				OR d::numeric NOT BETWEEN -9223372036854775808 AND 9223372036854775807
				THEN format('it depends on %s, which is not a job id', left(d::text, 40)) END
			WHEN 'string' THEN CASE WHEN NOT numbers ? (d #>> '{}')
				THEN format('it depends on "%s", which is not in the graph', d #>> '{}') END
			ELSE 'depends_on must contain names of jobs in the graph, or job ids as numbers' END) w (what)
		WHERE w.what IS NOT NULL;

	WITH edge AS MATERIALIZED (
		SELECT u.n AS child, (numbers ->> (d #>> '{}'))::int AS parent
		FROM unnest(nodes) WITH ORDINALITY u (j, n),
			jsonb_array_elements(nullif(u.j -> 'depends_on', 'null')) d
		WHERE jsonb_typeof(d) = 'string')
	SELECT array_agg(coalesce(c.list, '{}') ORDER BY n), array_agg(p.list ORDER BY n),
		array_agg(coalesce(p.count, 0) ORDER BY n)
		INTO children, parents, missing
		FROM generate_series(1, cardinality(nodes)) n
		LEFT JOIN (SELECT parent, array_agg(child ORDER BY child)::text AS list FROM edge
			GROUP BY 1) c ON c.parent = n
		LEFT JOIN (SELECT child, array_agg(parent)::text AS list, count(*) FROM edge
			GROUP BY 1) p ON p.child = n;
	ordered := ARRAY(SELECT u.n FROM unnest(missing) WITH ORDINALITY u (count, n) WHERE u.count = 0
		ORDER BY u.n);
	WHILE place < cardinality(ordered) LOOP
		place := place + 1;
		FOREACH n IN ARRAY children[ordered[place]]::int[] LOOP
			missing[n] := missing[n] - 1;
			IF missing[n] = 0 THEN
				ordered := ordered || n;
			END IF;
		END LOOP;
	END LOOP;

	IF place < cardinality(nodes) THEN
		-- After as many steps up as there are jobs, one is in a circle.
		up := ARRAY(SELECT (SELECT p FROM unnest(parents[c]::int[]) p WHERE missing[p] > 0 LIMIT 1)
			FROM generate_subscripts(nodes, 1) c);
		n := (SELECT min(u.n) FROM unnest(missing) WITH ORDINALITY u (count, n) WHERE u.count > 0);
		FOR i IN 1 .. cardinality(nodes) LOOP
			n := up[n];
		END LOOP;
		circle := ARRAY[n];
		WHILE up[n] <> circle[1] LOOP
			n := up[n];
			circle := circle || n;
		END LOOP;
		RAISE EXCEPTION USING ERRCODE = '22023',
			MESSAGE = 'jobs in the graph depend on each other in a cycle',
			DETAIL = (SELECT string_agg(format('"%s" depends on ', nodes[c] ->> 'name'), '')
				FROM unnest(circle[1:10]) c)
				|| CASE WHEN cardinality(circle) > 10 THEN '... depends on '
					ELSE '' END || format('"%s".', nodes[circle[1]] ->> 'name'),
			HINT = 'Remove one of these dependencies. Otherwise, none of these jobs can ever run.';
	END IF;
	ids := array_fill(NULL::bigint, ARRAY[cardinality(nodes)]);
	FOREACH n IN ARRAY ordered LOOP
		job := nodes[n];
		name := job ->> 'name';
		SELECT e.* INTO id, outcome, status FROM idemq_internal.as_caller(
			'SELECT e.id, e.outcome, e.status FROM idemq.enqueue($1, $2, key => $3, delay => $4, '
				'run_at => $5, priority => $6, '
			'group_key => $7, max_attempts => $8, headers => $9, expires_in => $10, key_ttl => '
				'$11, on_duplicate => $12, '
			'on_parent_failure => $13, kind => $14, max_wait => $15, depends_on => $16) e',
			job ->> 'queue', job -> 'payload', job ->> 'key', (job ->> 'delay')::interval,
				(job ->> 'run_at')::timestamptz,
			coalesce((job ->> 'priority')::int, 4),
				job ->> 'group_key', (job ->> 'max_attempts')::int,
			nullif(job -> 'headers', 'null'), (job ->> 'expires_in')::interval,
				(job ->> 'key_ttl')::interval,
			coalesce(job ->> 'on_duplicate', 'keep'), coalesce(job ->> 'on_parent_failure',
				'cancel'), job ->> 'kind',
			(job ->> 'max_wait')::interval,
			ARRAY(SELECT CASE jsonb_typeof(d)
				WHEN 'string' THEN ids[(numbers ->> (d #>> '{}'))::int] ELSE d::bigint END
				FROM jsonb_array_elements(nullif(job -> 'depends_on', 'null')) d))
			AS e (id bigint, outcome idemq.outcome, status idemq.status);
		ids[n] := id;
		RETURN NEXT;
	END LOOP;
END $$;
