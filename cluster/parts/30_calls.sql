-- Calls of one shard: that of the key, or that which the id tells.

SELECT cluster.make_call('enqueue',
	$$queue text, payload jsonb, key text DEFAULT NULL, delay interval DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, priority int DEFAULT 4, group_key text DEFAULT NULL,
	max_attempts int DEFAULT NULL, headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL,
	key_ttl interval DEFAULT NULL, on_duplicate text DEFAULT 'keep', nowait boolean DEFAULT false,
	kind text DEFAULT NULL, max_wait interval DEFAULT NULL,
	depends_on bigint[] DEFAULT NULL, on_parent_failure text DEFAULT 'cancel'$$,
	'SETOF cluster.enqueue_result', 'SETOF cluster.enqueue_result',
	'e.id, e.outcome::text, e.status::text, e.result FROM idemq.enqueue(*) e',
	'cluster.route(key, group_key, depends_on)', $$(key IS NOT NULL AND on_duplicate IN ('keep', 'ignore', 'replace'))$$,
	'PERFORM cluster.refuse_in_transaction(key IS NULL);');
COMMENT ON FUNCTION cluster.enqueue
	IS 'Call idemq.enqueue on the shard of the key or, failing that, of the group or the parents. A job without any of these goes to any shard. Takes effect immediately, regardless of the caller''s transaction. Raises 25001 if a job without a key is enqueued inside a transaction. Raises 0A000 if the key and the group have different hash tags (begin the key with {group}), or if a parent (depends_on) is on a different shard.';

CREATE FUNCTION cluster.refuse_in_transaction(is_unkeyed boolean) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF is_unkeyed AND cluster.in_transaction() THEN
		RAISE EXCEPTION 'a job without a key cannot be enqueued to a cluster inside a transaction'
			USING ERRCODE = 'active_sql_transaction',
				DETAIL = 'The job would be added immediately. A rollback would not remove it, and repeating the transaction would add it twice.',
				HINT = 'Pass a key, or call this function outside a transaction. Alternatively, enqueue the job to a queue in this database, from which a forwarder sends it to the cluster.';
	END IF;
END $$;
COMMENT ON FUNCTION cluster.refuse_in_transaction(boolean) IS 'part of cluster.enqueue and cluster.enqueue_many: raise 25001 if a job without a key is enqueued inside a transaction';

SELECT cluster.make_call('acquire',
	'queue text, key text, payload jsonb DEFAULT NULL, lease interval DEFAULT NULL, worker text DEFAULT NULL,
	attach boolean DEFAULT false',
	'SETOF cluster.claim_result', 'SETOF cluster.claim_result',
	'a.outcome::text, a.id, a.token, a.attempt, a.max_attempts, a.deadline, a.payload, a.key, a.group_key, a.checkpoint,
		a.enqueued_at, a.headers, a.result, a.retry_after, a.kind FROM idemq.acquire(*) a',
	'cluster.route(key, NULL)', 'false', 'PERFORM cluster.refuse_attach(attach);');
COMMENT ON FUNCTION cluster.acquire
	IS 'Call idemq.acquire on the key''s shard. Takes effect immediately. Refuses attach (0A000), because the session on the shard belongs to the proxy.';

CREATE FUNCTION cluster.refuse_attach(attach boolean) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF attach THEN
		RAISE EXCEPTION 'a lease cannot be attached through the router' USING ERRCODE = 'feature_not_supported',
			DETAIL = 'The session on the shard belongs to the proxy, and continues after the caller''s session ends.',
			HINT = 'Connect to the key''s shard (see cluster.map()) and call idemq.acquire there. Alternatively, pass a lease and send heartbeats.';
	END IF;
END $$;
COMMENT ON FUNCTION cluster.refuse_attach(boolean) IS 'part of cluster.acquire: raise 0A000 if attach is true';

-- Of a job: name, arguments, shard, comment.
DO $do$
DECLARE
	c record;
BEGIN
	FOR c IN VALUES
		('job_by_key', 'queue text, key text', 'cluster.route(key, NULL)', 'Return the job with the given key, from the key''s shard.'),
		('job', 'id bigint', 'cluster.shard_of(id)',
			'Return one job, from the shard encoded in its id. Returns no row if there is no such job or you may not see it.')
	LOOP
		PERFORM cluster.make_call(c.column1, c.column2, 'SETOF cluster.job', 'SETOF cluster.job',
			format('j.id, q.name AS "queue", j.priority::int4, j.enqueued_at, j.expires_at, j.run_at, j.max_attempts, j.flags::int4, j.status::text,
				j.attempt, j.token, j.ready_at, j.claimed_at, j.deadline, j.renewed_at, j.finished_at, j.dead_at, j.key_expires_at, j.rerun_at,
				j.worker, j.key, j.group_key, j.kind, j.headers, j.rerun_payload, j.rerun_headers, j.rerun_kind, j.checkpoint,
				j.result, j.last_error, j.payload FROM idemq.%s(*) j LEFT JOIN idemq.queues q ON q.queue_id = j.queue_id', c.column1),
			c.column3, 'true', '');
		EXECUTE format('COMMENT ON FUNCTION cluster.%s IS %L', c.column1, c.column4);
	END LOOP;
END $do$;
SELECT cluster.make_call('cancel_by_key', 'queue text, key text', 'text', 'TABLE (answer text)',
	'c.answer::text FROM idemq.cancel_by_key(*) c(answer)', 'cluster.route(key, NULL)', 'true', '');
COMMENT ON FUNCTION cluster.cancel_by_key IS 'Call idemq.cancel_by_key on the key''s shard.';

SELECT cluster.make_call('why', 'id bigint', 'text', 'TABLE (answer text)',
	'c.answer FROM idemq.why(*) c(answer)', 'cluster.shard_of(id)', 'true', '');
COMMENT ON FUNCTION cluster.why IS 'Call idemq.why on the shard encoded in the job''s id.';
-- Parents and children are of one shard.
SELECT cluster.make_call('flow', 'id bigint, most int DEFAULT 100000', 'SETOF cluster.flow', 'SETOF cluster.flow',
	'f.* FROM idemq.flow(*) f', 'cluster.shard_of(id)', 'true', '');
COMMENT ON FUNCTION cluster.flow IS 'Call idemq.flow on the shard encoded in the job''s id.';
SELECT cluster.make_call('result', 'id bigint', 'SETOF cluster.status_and_result', 'SETOF cluster.status_and_result',
	'r.status::text, r.result FROM idemq.result(*) r', 'cluster.shard_of(id)', 'true', '');
COMMENT ON FUNCTION cluster.result IS 'Return the current status and stored result of a job by calling idemq.result on the shard encoded in the job''s id.';

-- Name, arguments, may be repeated, what else is to say.
DO $do$
DECLARE
	c record;
BEGIN
	FOR c IN VALUES
		('cancel', 'id bigint', 'true', ''),
		('retry', 'id bigint', 'true', ''),
		('reschedule', 'id bigint, run_at timestamptz DEFAULT NULL, priority int DEFAULT NULL', 'true', ''),
		('heartbeat', 'id bigint, token bigint, lease interval DEFAULT NULL', 'true', ''),
		('validate', 'id bigint, token bigint', 'true', ''),
		('try_commit', 'id bigint, token bigint, result jsonb DEFAULT NULL', 'true',
			'. Takes effect immediately, so it cannot be in the same transaction as an effect in this database.'),
		('fail', 'id bigint, token bigint, error text DEFAULT NULL, retry_in interval DEFAULT NULL, permanent boolean DEFAULT false, details jsonb DEFAULT NULL',
			'false', ''),
		('release', 'id bigint, token bigint, delay interval DEFAULT NULL', 'false', '')
	LOOP
		PERFORM cluster.make_call(c.column1, c.column2, 'text', 'TABLE (answer text)',
			format('c.answer::text FROM idemq.%s(*) c(answer)', c.column1), 'cluster.shard_of(id)', c.column3, '');
		EXECUTE format('COMMENT ON FUNCTION cluster.%1$s IS %2$L', c.column1,
			format('Call idemq.%s on the shard encoded in the job''s id%s', c.column1, c.column4));
	END LOOP;
END $do$;

SELECT cluster.make_call('checkpoint', 'id bigint, token bigint, state jsonb', 'void', 'TABLE (answer text)',
	'c.answer FROM (SELECT ''done''::text, idemq.checkpoint(*)) c(answer, nothing)', 'cluster.shard_of(id)', 'true', '');
COMMENT ON FUNCTION cluster.checkpoint IS 'Call idemq.checkpoint on the shard encoded in the job''s id.';
