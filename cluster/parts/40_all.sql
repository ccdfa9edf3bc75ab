-- Calls of all shards, one by one (RUN ON ALL fails as a whole): a row a shard, or more; of one
-- that is down, a row that says so in column error.

-- Name, arguments, call, comment.
DO $do$
DECLARE
	c record;
BEGIN
	FOR c IN VALUES
		('create_queue',
			$$name text, lease interval DEFAULT '30 s', max_attempts int DEFAULT 20, retry_base interval DEFAULT '1 s',
			retry_factor float8 DEFAULT 2, retry_max interval DEFAULT '1 h', retry_jitter float8 DEFAULT 0.2,
			retention interval DEFAULT '1 day', idempotency_window interval DEFAULT '1 day', max_running int DEFAULT NULL,
			rate_limit int DEFAULT NULL, rate_period interval DEFAULT '1 s', dead_letter_queue text DEFAULT NULL,
			dead_retention interval DEFAULT '30 days', max_lease interval DEFAULT '1 day',
			job_timeout interval DEFAULT NULL, dead_letter_cancelled boolean DEFAULT false, group_max_running int DEFAULT 1,
			group_rate_limit int DEFAULT NULL, group_rate_period interval DEFAULT '1 second',
			expect_workers boolean DEFAULT true, rate_burst int DEFAULT NULL, group_rate_burst int DEFAULT NULL,
			max_hold_back interval DEFAULT '1 h',
			max_unfinished int DEFAULT NULL, group_max_unfinished int DEFAULT NULL,
			notify_finished boolean DEFAULT false$$, 'idemq.create_queue(*)',
			'Call idemq.create_queue on every shard. Returns one row per shard, with the error if it failed. max_running and rate_limit apply to each shard separately; group limits are exact because a group is on one shard.'),
		('alter_queue',
			$$name text, lease interval DEFAULT NULL, max_attempts int DEFAULT NULL, retry_base interval DEFAULT NULL,
			retry_factor float8 DEFAULT NULL, retry_max interval DEFAULT NULL, retry_jitter float8 DEFAULT NULL,
			retention interval DEFAULT NULL, idempotency_window interval DEFAULT NULL, max_running int DEFAULT NULL,
			rate_limit int DEFAULT NULL, rate_period interval DEFAULT NULL, dead_letter_queue text DEFAULT NULL,
			dead_retention interval DEFAULT NULL, max_lease interval DEFAULT NULL, job_timeout interval DEFAULT NULL,
			dead_letter_cancelled boolean DEFAULT NULL, group_max_running int DEFAULT NULL, group_rate_limit int DEFAULT NULL,
			group_rate_period interval DEFAULT NULL, expect_workers boolean DEFAULT NULL,
			rate_burst int DEFAULT NULL, group_rate_burst int DEFAULT NULL,
			max_hold_back interval DEFAULT NULL,
			max_unfinished int DEFAULT NULL, group_max_unfinished int DEFAULT NULL,
			notify_finished boolean DEFAULT NULL$$, 'idemq.alter_queue(*)',
			'Call idemq.alter_queue on every shard.'),
		('drop_queue', 'name text, force boolean DEFAULT false', 'idemq.drop_queue(*)', 'Call idemq.drop_queue on every shard.'),
		('pause', 'name text, until timestamptz DEFAULT NULL, group_key text DEFAULT pg_catalog.repeat(''(whole queue)'',80)',
			'idemq.pause(*)', 'Call idemq.pause on every shard, for the queue or for one group.'),
		('resume', 'name text, group_key text DEFAULT pg_catalog.repeat(''(whole queue)'',80)', 'idemq.resume(*)',
			'Call idemq.resume on every shard, for the queue or for one group.'),
		('grant_queue', 'name text, role name, privilege text', 'idemq.grant_queue(name, role::regrole, privilege)',
			'Call idemq.grant_queue on every shard. The role must exist on each shard.'),
		('revoke_queue', 'name text, role name, privilege text', 'idemq.revoke_queue(name, role::regrole, privilege)',
			'Call idemq.revoke_queue on every shard.')
	LOOP
		PERFORM cluster.make_call(c.column1, c.column2, 'done boolean', 'TABLE (done boolean)',
			format('c.done FROM (SELECT true, %s) c(done, nothing)', c.column3), 'all', 'true', '');
		EXECUTE format('COMMENT ON FUNCTION cluster.%s IS %L', c.column1, c.column4);
	END LOOP;
	FOR c IN VALUES ('cancel_many'), ('retry_many') LOOP
		PERFORM cluster.make_call(c.column1, 'ids bigint[]', 'id bigint, outcome text', 'TABLE (id bigint, outcome text)',
			format('m.id, m.outcome::text FROM idemq.%s(ARRAY(SELECT i FROM unnest(ids) i WHERE i >> 47 = at_shard)) m', c.column1),
			'SELECT DISTINCT cluster.shard_of(i) FROM unnest(coalesce(ids, ARRAY[NULL::bigint])) i ORDER BY 1', 'true', '');
		EXECUTE format('COMMENT ON FUNCTION cluster.%1$s IS %2$L', c.column1,
			format('Call idemq.%s on the shards encoded in the ids, one after another. Returns one row per id. For each shard that failed, also returns one row with an error and no id.', c.column1));
	END LOOP;
END $do$;

SELECT cluster.make_call('ensure_queue',
	$$name text, exact boolean DEFAULT false, lease interval DEFAULT NULL, max_attempts int DEFAULT NULL, retry_base interval DEFAULT NULL,
	retry_factor float8 DEFAULT NULL, retry_max interval DEFAULT NULL, retry_jitter float8 DEFAULT NULL,
	retention interval DEFAULT NULL, idempotency_window interval DEFAULT NULL, max_running int DEFAULT NULL,
	rate_limit int DEFAULT NULL, rate_period interval DEFAULT NULL, dead_letter_queue text DEFAULT NULL,
	dead_retention interval DEFAULT NULL, max_lease interval DEFAULT NULL, job_timeout interval DEFAULT NULL,
	dead_letter_cancelled boolean DEFAULT NULL, group_max_running int DEFAULT NULL, group_rate_limit int DEFAULT NULL,
	group_rate_period interval DEFAULT NULL, expect_workers boolean DEFAULT NULL,
	rate_burst int DEFAULT NULL, group_rate_burst int DEFAULT NULL,
	max_hold_back interval DEFAULT NULL,
	max_unfinished int DEFAULT NULL, group_max_unfinished int DEFAULT NULL,
	notify_finished boolean DEFAULT NULL$$,
	'outcome text, changes jsonb', 'TABLE (outcome text, changes jsonb)', 'e.outcome, e.changes FROM idemq.ensure_queue(*) e',
	'all', 'true', '');
COMMENT ON FUNCTION cluster.ensure_queue IS 'Call idemq.ensure_queue on every shard. Returns one row per shard, with the error if the call failed. If a shard is added later, the next call creates the queue on it.';
SELECT cluster.make_call('cancel_matching',
	'queue text, kind text DEFAULT NULL, group_key text DEFAULT NULL, key_prefix text DEFAULT NULL, max_jobs int DEFAULT NULL',
	'cancelled bigint, locked bigint', 'TABLE (cancelled bigint, locked bigint)',
	'm.cancelled, m.locked FROM idemq.cancel_matching(*) m', 'all', 'true', '');
COMMENT ON FUNCTION cluster.cancel_matching IS 'Call idemq.cancel_matching on every shard. max_jobs applies to each shard separately.';
SELECT cluster.make_call('queues', '', 'queue text, paused boolean, max_running int', 'TABLE (queue text, paused boolean, max_running int)',
	'q.queue, q.paused, q.max_running FROM (SELECT n.name, n.paused, n.max_running FROM idemq.queues n) q(queue, paused, max_running)',
	'all', 'true', '');
COMMENT ON FUNCTION cluster.queues IS 'List the queues that you may use on every shard.';
SELECT cluster.make_call('metrics', '',
	'queue text, paused boolean, pending bigint, blocked bigint, running bigint, retrying bigint, completed bigint, dead bigint,
	cancelled bigint, oldest_ready interval, enqueued_total bigint, claimed_total bigint, committed_total bigint,
	failed_total bigint, dead_total bigint, wait_p95 interval, run_p95 interval, permits_used int',
	'TABLE (queue text, paused boolean, pending bigint, blocked bigint, running bigint, retrying bigint, completed bigint, dead bigint,
	cancelled bigint, oldest_ready interval, enqueued_total bigint, claimed_total bigint, committed_total bigint,
	failed_total bigint, dead_total bigint, wait_p95 interval, run_p95 interval, permits_used int)',
	'm.queue, m.paused, m.pending, m.blocked, m.running, m.retrying, m.completed, m.dead, m.cancelled, m.oldest_ready,
	m.enqueued_total, m.claimed_total, m.committed_total, m.failed_total, m.dead_total, m.wait_p95, m.run_p95, m.permits_used
	FROM idemq.metrics m', 'all', 'true', '');
COMMENT ON FUNCTION cluster.metrics IS 'Return the most important columns of idemq.metrics from every shard. To get the totals for a queue, add up its rows.';
SELECT cluster.make_call('running_jobs', '',
	'queue text, job_id bigint, worker text, pid int, attempt int, claimed_at timestamptz, deadline timestamptz, state text',
	'TABLE (queue text, job_id bigint, worker text, pid int, attempt int, claimed_at timestamptz, deadline timestamptz, state text)',
	'w.queue, w.job_id, w.worker, w.pid, w.attempt, w.claimed_at, w.deadline, w.state FROM idemq.running_jobs w', 'all', 'true', '');
COMMENT ON FUNCTION cluster.running_jobs IS 'Return the running jobs of every shard and their workers, from idemq.running_jobs.';
SELECT cluster.make_call('errors', '',
	'queue text, sqlstate text, pattern text, fingerprint text, jobs bigint, dead bigint, first_seen timestamptz, last_seen timestamptz, example_id bigint',
	'TABLE (queue text, sqlstate text, pattern text, fingerprint text, jobs bigint, dead bigint, first_seen timestamptz, last_seen timestamptz, example_id bigint)',
	'e.queue, e.sqlstate, e.pattern, e.fingerprint, e.jobs, e.dead, e.first_seen, e.last_seen, e.example_id
	FROM (SELECT v.queue, v.sqlstate, v.error, v.fingerprint, v.jobs, v.dead, v.first_seen, v.last_seen, v.example_id FROM idemq.errors v)
		e(queue, sqlstate, pattern, fingerprint, jobs, dead, first_seen, last_seen, example_id)', 'all', 'true', '');
COMMENT ON FUNCTION cluster.errors IS 'Return the rows of idemq.errors from every shard. The column "pattern" corresponds to the column "error" of idemq.errors. A fingerprint is the same on all shards.';
SELECT cluster.make_call('check', '', 'severity text, invariant text, detail text', 'TABLE (severity text, invariant text, detail text)',
	$$c.severity, c.invariant, c.detail FROM (SELECT k.severity, k.invariant, k.detail FROM idemq.check() k
		UNION ALL SELECT 'error', 'the map leads to its shards',
			format('database %s is not shard %s: correct its address in the map, or fix the DNS entry or the pooler''s configuration', current_database(), at_shard)
			WHERE NOT EXISTS (SELECT FROM idemq.shard s WHERE s.shard = at_shard)) c$$, 'all', 'true', '');
COMMENT ON FUNCTION cluster.check IS 'Call idemq.check on every shard, and check that each database is the shard that the map says it is. Returns no row if there are no problems.';
SELECT cluster.make_call('identities', '', 'is_shard int, of_shards int, database text, role text',
	'TABLE (is_shard int, of_shards int, database text, role text)',
	'i.is_shard, i.of_shards, i.database, i.role FROM (SELECT s.shard, s.shards, d.database::text, d.role::text
		FROM (SELECT current_database(), current_user) d(database, role) LEFT JOIN idemq.shard s ON true)
		i(is_shard, of_shards, database, role)', 'all', 'true', '');
COMMENT ON FUNCTION cluster.identities
	IS 'Return the shard number that each database reports (idemq.set_shard), and the role as which the caller connects to it. is_shard must equal shard.';

DROP FUNCTION cluster.make_call(text, text, text, text, text, text, text, text);

CREATE FUNCTION cluster.enqueue_many(
	queue text, payloads jsonb[], keys text[] DEFAULT NULL, run_ats timestamptz[] DEFAULT NULL,
	priorities int[] DEFAULT NULL, group_keys text[] DEFAULT NULL, delays interval[] DEFAULT NULL,
	max_attempts int[] DEFAULT NULL, headers jsonb[] DEFAULT NULL, expires_ins interval[] DEFAULT NULL,
	key_ttls interval[] DEFAULT NULL, on_duplicate text DEFAULT 'keep', nowait boolean DEFAULT false,
	kinds text[] DEFAULT NULL, max_wait interval DEFAULT NULL,
	depends_on bigint[] DEFAULT NULL, on_parent_failure text DEFAULT 'cancel')
	RETURNS TABLE (ord int, id bigint, outcome text, status text, result jsonb, error text)
	LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
	n int := cardinality(payloads);
	shards int := cluster.shard_count();
	length int;
	anywhere int;
	batch record;
	began timestamptz;
	tries int;
	said text;
	more text;
	hint text;
	part int;
BEGIN
	IF payloads IS NULL THEN
		RAISE EXCEPTION 'payloads must not be NULL' USING ERRCODE = 'null_value_not_allowed', HINT = 'Pass an array of payloads.';
	END IF;
	FOREACH length IN ARRAY ARRAY[cardinality(keys), cardinality(run_ats), cardinality(priorities), cardinality(group_keys),
		cardinality(delays), cardinality(max_attempts), cardinality(headers), cardinality(expires_ins), cardinality(key_ttls),
		cardinality(kinds)]
	LOOP
		IF length <> n THEN
			RAISE EXCEPTION 'arrays have different numbers of elements: % and %', n, length USING ERRCODE = 'array_subscript_error',
				HINT = 'Pass one element per payload. An element that is NULL means that the argument is omitted for that job.';
		END IF;
	END LOOP;
	PERFORM cluster.refuse_in_transaction(keys IS NULL OR array_position(keys, NULL) IS NOT NULL);
	anywhere := cluster.route(NULL, NULL, depends_on);
	FOR batch IN
		SELECT r.place, bool_and(e.key IS NOT NULL) AS keyed, array_agg(e.i::int ORDER BY e.i) AS ords,
			array_agg(e.payload ORDER BY e.i) AS payloads, array_agg(e.key ORDER BY e.i) AS keys,
			array_agg(e.run_at ORDER BY e.i) AS run_ats, array_agg(e.priority ORDER BY e.i) AS priorities,
			array_agg(e.group_key ORDER BY e.i) AS group_keys, array_agg(e.delay ORDER BY e.i) AS delays,
			array_agg(e.attempts ORDER BY e.i) AS attempts, array_agg(e.header ORDER BY e.i) AS headers,
			array_agg(e.expires_in ORDER BY e.i) AS expires_ins, array_agg(e.key_ttl ORDER BY e.i) AS key_ttls,
			array_agg(e.kind ORDER BY e.i) AS kinds
		FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $14)
			WITH ORDINALITY e(payload, key, run_at, priority, group_key, delay, attempts, header, expires_in, key_ttl, kind, i)
		CROSS JOIN LATERAL (SELECT CASE WHEN e.key IS NULL AND e.group_key IS NULL THEN anywhere
			ELSE cluster.route(e.key, e.group_key, $16) END) r(place)
		GROUP BY 1 ORDER BY 1
	LOOP
		tries := 0;
		began := clock_timestamp();
		BEGIN
			LOOP
				BEGIN
					RETURN QUERY SELECT batch.ords[m.ord], m.id, m.outcome, m.status, m.result, NULL::text
						FROM cluster.at_enqueue_many(batch.place, shards, $1, batch.payloads,
							CASE WHEN $3 IS NOT NULL THEN batch.keys END, CASE WHEN $4 IS NOT NULL THEN batch.run_ats END,
							CASE WHEN $5 IS NOT NULL THEN batch.priorities END, CASE WHEN $6 IS NOT NULL THEN batch.group_keys END,
							CASE WHEN $7 IS NOT NULL THEN batch.delays END, CASE WHEN $8 IS NOT NULL THEN batch.attempts END,
							CASE WHEN $9 IS NOT NULL THEN batch.headers END, CASE WHEN $10 IS NOT NULL THEN batch.expires_ins END,
							CASE WHEN $11 IS NOT NULL THEN batch.key_ttls END, $12, $13,
							CASE WHEN $14 IS NOT NULL THEN batch.kinds END, $15, $16, $17) m;
					EXIT;
				EXCEPTION WHEN OTHERS THEN
					GET STACKED DIAGNOSTICS said = MESSAGE_TEXT, more = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
					tries := tries + 1;
					PERFORM cluster.again(batch.place, SQLSTATE, said, more, hint, tries, began,
						batch.keyed AND $12 IN ('keep', 'ignore', 'replace'));
				END;
			END LOOP;
		EXCEPTION WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS more = PG_EXCEPTION_DETAIL;
			error := concat_ws(' ', SQLSTATE || ':', SQLERRM || '.', more);
			FOREACH part IN ARRAY batch.ords LOOP
				ord := part;
				RETURN NEXT;
			END LOOP;
			error := NULL;
		END;
	END LOOP;
END $$;
COMMENT ON FUNCTION cluster.enqueue_many
	IS 'Call idemq.enqueue_many with one batch per shard. Jobs with neither key nor group go to one shard together. Each shard adds all or none of its batch, independently of the other shards. Returns one row per element, numbered from 1 in ord; if the element''s shard failed or is down, the row has an error and no id. With keys, the call can be repeated safely.';

CREATE FUNCTION cluster.at_enqueue_many(
	at_shard int, of_shards int, queue text, payloads jsonb[], keys text[], run_ats timestamptz[], priorities int[], group_keys text[],
	delays interval[], max_attempts int[], headers jsonb[], expires_ins interval[], key_ttls interval[], on_duplicate text,
	nowait boolean, kinds text[], max_wait interval, depends_on bigint[], on_parent_failure text)
	RETURNS TABLE (ord int, id bigint, outcome text, status text, result jsonb) LANGUAGE plproxy AS $$
	CLUSTER 'idemq_cluster';
	RUN ON at_shard;
	SELECT m.ord, m.id, m.outcome::text, m.status::text, m.result
		FROM idemq.enqueue_many(queue, payloads, keys, run_ats, priorities, group_keys, delays, max_attempts, headers,
			expires_ins, key_ttls, on_duplicate, nowait, kinds, max_wait, depends_on, on_parent_failure) m
		WHERE (SELECT idemq.assert_shard(at_shard, of_shards));
$$;
COMMENT ON FUNCTION cluster.at_enqueue_many IS 'part of cluster.enqueue_many: make the call on one shard';

-- No SET: it commits.
CREATE PROCEDURE cluster.wait_result(
	id bigint, timeout interval DEFAULT '30 s', INOUT status text DEFAULT NULL, INOUT result jsonb DEFAULT NULL)
	LANGUAGE plpgsql AS $$
DECLARE
	pause float8 := 0.01;
	until timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) timeout;
BEGIN
	LOOP
		SELECT r.status, r.result INTO wait_result.status, wait_result.result FROM cluster.result(wait_result.id) r;
		COMMIT;
		pause := cluster.next_pause(wait_result.status, until, pause);
		EXIT WHEN pause IS NULL;
		PERFORM pg_catalog.pg_sleep(pause);
	END LOOP;
END $$;
COMMENT ON PROCEDURE cluster.wait_result
	IS 'Wait until a job is completed, dead or cancelled. Returns its status and stored result, or its current status when timeout has passed. Polls the shard after 10 ms and then at increasing intervals of up to half a second, and holds no transaction in between. CALL it outside a transaction block. A client that waits often should connect to the shard and call idemq.wait_result there, which does not poll.';

CREATE FUNCTION cluster.next_pause(status text, until timestamptz, pause float8) RETURNS float8 LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	remaining float8 := extract(epoch FROM until - clock_timestamp());
BEGIN
	IF status IN ('completed', 'dead', 'cancelled') OR remaining <= 0 OR remaining IS NULL THEN
		RETURN NULL;
	END IF;
	RETURN least(remaining, pause * 1.5, 0.5);
END $$;
COMMENT ON FUNCTION cluster.next_pause(text, timestamptz, float8) IS 'part of cluster.wait_result: return the number of seconds until the next poll, or NULL if there are no more polls';
