-- Calls of one shard: that of the key, or that which the id tells.

SELECT cluster.make_call('enqueue',
	$$queue text, payload jsonb, key text DEFAULT NULL, delay interval DEFAULT NULL,
	run_at timestamptz DEFAULT NULL, priority int DEFAULT 4, group_key text DEFAULT NULL,
	max_attempts int DEFAULT NULL, headers jsonb DEFAULT NULL, expires_in interval DEFAULT NULL,
	key_ttl interval DEFAULT NULL, on_duplicate text DEFAULT 'keep', nowait boolean DEFAULT false$$,
	'SETOF cluster.enqueue_result', 'SETOF cluster.enqueue_result',
	'e.id, e.outcome::text, e.status::text, e.result FROM idemq.enqueue(queue, payload, key, delay, run_at, priority, group_key,
		max_attempts, headers, expires_in, key_ttl, on_duplicate, nowait) e',
	'cluster.route(key, group_key)', $$(key IS NOT NULL AND on_duplicate IN ('keep', 'ignore', 'replace'))$$,
	'PERFORM cluster.refuse_in_transaction(key IS NULL);');
COMMENT ON FUNCTION cluster.enqueue
	IS 'idemq.enqueue on the shard of the key, else of the group, else on any; takes effect at once, whatever becomes of the caller''s transaction: without a key it is refused in one (25001); with a key and a group both must be hashed by the same text, {group}..., 0A000 otherwise';

CREATE FUNCTION cluster.refuse_in_transaction(is_unkeyed boolean) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF is_unkeyed AND cluster.in_transaction() THEN
		RAISE EXCEPTION 'a job without a key is not enqueued in a cluster from within a transaction'
			USING ERRCODE = 'active_sql_transaction',
				DETAIL = 'It takes effect at once: a rollback would not undo it, and the transaction run again would enqueue it twice.',
				HINT = 'Pass a key; or enqueue in a queue of this database, from which a forwarder takes it to the cluster; or call this outside of a transaction.';
	END IF;
END $$;
COMMENT ON FUNCTION cluster.refuse_in_transaction(boolean) IS 'part of enqueue and enqueue_many: raises 25001';

SELECT cluster.make_call('acquire',
	'queue text, key text, payload jsonb DEFAULT NULL, lease interval DEFAULT NULL, worker text DEFAULT NULL',
	'SETOF cluster.claim_result', 'SETOF cluster.claim_result',
	'a.outcome::text, a.id, a.token, a.attempt, a.max_attempts, a.deadline, a.payload, a.key, a.group_key, a.checkpoint,
		a.enqueued_at, a.headers, a.result, a.retry_after FROM idemq.acquire(queue, key, payload, lease, worker) a',
	'cluster.route(key, NULL)', 'false', '');
COMMENT ON FUNCTION cluster.acquire
	IS 'idemq.acquire on the key''s shard; takes effect at once; never attached: the session in the shard is the proxy''s';

SELECT cluster.make_call('job_by_key', 'queue text, key text', 'SETOF cluster.job', 'SETOF cluster.job',
	'j.id, q.name AS "queue", j.created_at, j.priority::int4, j.max_attempts, j.expires_at, j.run_at, j.status::text, j.attempt, j.token,
		j.ready_at, j.claimed_at, j.deadline, j.finished_at, j.worker, j.key, j.group_key, j.headers, j.checkpoint, j.result,
		j.last_error, j.payload FROM idemq.job_by_key(queue, key) j LEFT JOIN idemq.queues q ON q.queue_id = j.queue_id',
	'cluster.route(key, NULL)', 'true', '');
COMMENT ON FUNCTION cluster.job_by_key IS 'the job that has a key, of its shard';
SELECT cluster.make_call('cancel_by_key', 'queue text, key text', 'text', 'TABLE (answer text)',
	'c.answer::text FROM idemq.cancel_by_key(queue, key) c(answer)', 'cluster.route(key, NULL)', 'true', '');
COMMENT ON FUNCTION cluster.cancel_by_key IS 'idemq.cancel_by_key on the key''s shard';

SELECT cluster.make_call('job', 'id bigint', 'SETOF cluster.job', 'SETOF cluster.job',
	'j.id, q.name AS "queue", j.created_at, j.priority::int4, j.max_attempts, j.expires_at, j.run_at, j.status::text, j.attempt, j.token,
		j.ready_at, j.claimed_at, j.deadline, j.finished_at, j.worker, j.key, j.group_key, j.headers, j.checkpoint, j.result,
		j.last_error, j.payload FROM idemq.job(id) j LEFT JOIN idemq.queues q ON q.queue_id = j.queue_id',
	'cluster.shard_of(id)', 'true', '');
COMMENT ON FUNCTION cluster.job IS 'a job by its id, of the shard that the id tells; no row when there is none that you may see';
SELECT cluster.make_call('why', 'id bigint', 'text', 'TABLE (answer text)',
	'c.answer FROM idemq.why(id) c(answer)', 'cluster.shard_of(id)', 'true', '');
COMMENT ON FUNCTION cluster.why IS 'idemq.why on the shard that the id tells';
SELECT cluster.make_call('result', 'id bigint', 'SETOF cluster.status_and_result', 'SETOF cluster.status_and_result',
	'r.status::text, r.result FROM idemq.result(id) r', 'cluster.shard_of(id)', 'true', '');
COMMENT ON FUNCTION cluster.result IS 'idemq.result on the shard that the id tells: status and stored result as they are now';

-- name, arguments, may be repeated, comment
DO $do$
DECLARE
	c record;
BEGIN
	FOR c IN VALUES
		('cancel', 'id bigint', 'idemq.cancel(id)', 'true', 'idemq.cancel on the shard that the id tells'),
		('retry', 'id bigint', 'idemq.retry(id)', 'true', 'idemq.retry on the shard that the id tells'),
		('reschedule', 'id bigint, run_at timestamptz DEFAULT NULL, priority int DEFAULT NULL',
			'idemq.reschedule(id, run_at, priority)', 'true', 'idemq.reschedule on the shard that the id tells'),
		('heartbeat', 'id bigint, token bigint, lease interval DEFAULT NULL', 'idemq.heartbeat(id, token, lease)', 'true',
			'idemq.heartbeat on the shard that the id tells'),
		('validate', 'id bigint, token bigint', 'idemq.validate(id, token)', 'true',
			'idemq.validate on the shard that the id tells'),
		('try_commit', 'id bigint, token bigint, result jsonb DEFAULT NULL', 'idemq.try_commit(id, token, result)', 'true',
			'idemq.try_commit on the shard that the id tells; at once, so that it shares no transaction with an effect in this database'),
		('fail', 'id bigint, token bigint, error text DEFAULT NULL, retry_in interval DEFAULT NULL, permanent boolean DEFAULT false, details jsonb DEFAULT NULL',
			'idemq.fail(id, token, error, retry_in, permanent, details)', 'false', 'idemq.fail on the shard that the id tells'),
		('release', 'id bigint, token bigint, delay interval DEFAULT NULL', 'idemq.release(id, token, delay)', 'false',
			'idemq.release on the shard that the id tells')
	LOOP
		PERFORM cluster.make_call(c.column1, c.column2, 'text', 'TABLE (answer text)',
			format('c.answer::text FROM %s c(answer)', c.column3), 'cluster.shard_of(id)', c.column4, '');
		EXECUTE format('COMMENT ON FUNCTION cluster.%s IS %L', c.column1, c.column5);
	END LOOP;
END $do$;

SELECT cluster.make_call('checkpoint', 'id bigint, token bigint, state jsonb', 'void', 'TABLE (answer text)',
	'c.answer FROM (SELECT ''done''::text, idemq.checkpoint(id, token, state)) c(answer, nothing)', 'cluster.shard_of(id)', 'true', '');
COMMENT ON FUNCTION cluster.checkpoint IS 'idemq.checkpoint on the shard that the id tells';
