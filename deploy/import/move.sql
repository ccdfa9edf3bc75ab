-- Moves the jobs in the view idemq_import into idemq.  The other psql scripts of this directory end with this one.
--
-- The caller creates the view in pg_temp, on a single table, so that its rows can be locked and deleted.  Its columns:
--	id, queue                   identifies the row; the name of the queue in idemq
--	payload                     text: JSON
--	key                         the key that a repeated request would have; NULL means none
--	run_at                      earliest start; NULL or a past time means immediately
--	priority                    from 0 (first) to 9 (last)
--	group_key, kind             or NULL
--	attempts, max_attempts      number of past attempts, and maximum number of further attempts
--	dead, last_error            whether the job has failed permanently; its last error
--	enqueued_at
-- A job without a key gets the key source/id.  Without go, nothing is changed.
--
-- Each job is moved within one transaction: its row is locked, the job is enqueued, and the row is deleted.  If anything dies,
-- each job is therefore in exactly one of the two systems.  Rows locked by a worker of the other system are skipped.  Run the
-- script again to move jobs that have arrived since.
\set ON_ERROR_STOP on
SELECT queue, count(*) FILTER (WHERE NOT dead AND coalesce(run_at, now()) <= now()) AS ready, count(*) FILTER (WHERE NOT dead AND run_at > now()) AS delayed,
	count(*) FILTER (WHERE dead) AS dead, count(*) FILTER (WHERE attempts > 0 AND NOT dead) AS "to be retried", count(key) AS "with a key",
	count(group_key) AS "in a group", CASE WHEN EXISTS (SELECT FROM idemq.queues q WHERE q.name = queue) THEN 'is there' ELSE 'create it first' END AS "idemq's queue"
	FROM pg_temp.idemq_import GROUP BY queue ORDER BY queue;
\if :{?go}
SELECT set_config('idemq_import.source', :'source', false) \g /dev/null
SET client_min_messages = warning;
DROP TABLE IF EXISTS pg_temp.idemq_importing;
RESET client_min_messages;
CREATE TEMP TABLE idemq_importing AS SELECT id, queue, row_number() OVER (ORDER BY dead, priority, coalesce(run_at, enqueued_at), enqueued_at, id) AS n FROM pg_temp.idemq_import;
ANALYZE pg_temp.idemq_importing;
DO $$
DECLARE
	source text := current_setting('idemq_import.source');
	total bigint;
	seen bigint := 0;
	slice int := 500;
	missing text;
	r record;
	own text;
	options jsonb;
	done idemq.enqueue_result;
	claim idemq.claim_result;
	moved_now int := 0;
	dead_now int := 0;
	merged_now int := 0;
	left_there int := 0;
BEGIN
	SELECT string_agg(DISTINCT quote_literal(i.queue), ', ') INTO missing FROM pg_temp.idemq_importing i
		WHERE NOT EXISTS (SELECT FROM idemq.queues q WHERE q.name = i.queue);
	IF missing IS NOT NULL THEN
		RAISE EXCEPTION 'these queues do not exist in idemq: %', missing USING ERRCODE = 'IQ005', HINT = 'Nothing was moved. Create the queues with SELECT idemq.create_queue(''...'').';
	END IF;
	SELECT count(*) INTO total FROM pg_temp.idemq_importing;
	WHILE seen < total LOOP
		FOR r IN SELECT i.* FROM pg_temp.idemq_importing t JOIN pg_temp.idemq_import i USING (id, queue)
			WHERE t.n > seen AND t.n <= seen + slice ORDER BY t.n FOR UPDATE OF i SKIP LOCKED
		LOOP
			-- A job that idemq cannot accept is left where it is, and does not undo the others.
			BEGIN
				done := NULL;
				own := source || '/' || r.id;
				options := jsonb_build_object('imported', jsonb_strip_nulls(jsonb_build_object('from', source, 'id', r.id, 'attempts', r.attempts,
					'last_error', CASE WHEN NOT r.dead THEN left(r.last_error, 1000) END)));
				IF r.key IS NOT NULL AND NOT r.dead THEN
					BEGIN
						done := idemq.enqueue(r.queue, r.payload::jsonb, key => r.key, run_at => r.run_at, priority => r.priority, group_key => r.group_key,
							kind => r.kind, max_attempts => r.max_attempts, headers => options);
						-- If the same request is already waiting, the two are merged.  Otherwise this becomes a separate job.
						IF done.outcome = 'duplicate' AND done.status NOT IN ('pending', 'blocked', 'retrying') THEN
							done := NULL;
						END IF;
					EXCEPTION WHEN SQLSTATE 'IQ003' THEN
						done := NULL;
					END;
				END IF;
				IF done IS NULL THEN
					-- A dead job takes no place in a group.
					done := idemq.enqueue(r.queue, r.payload::jsonb, key => own, run_at => CASE WHEN NOT r.dead THEN r.run_at END, priority => r.priority,
						group_key => CASE WHEN NOT r.dead THEN r.group_key END, kind => r.kind, max_attempts => r.max_attempts, headers => options);
				END IF;
				IF r.dead AND done.outcome = 'accepted' THEN
					claim := idemq.claim_job(done.id);
					IF claim.outcome <> 'claimed' THEN
						RAISE EXCEPTION 'could not claim the dead job in order to mark it as dead in idemq: %', claim.outcome USING HINT = 'Make sure that the queue is neither paused nor at a limit.';
					END IF;
					PERFORM idemq.fail(done.id, claim.token, coalesce(r.last_error, 'failed in ' || source), permanent => true);
				END IF;
				DELETE FROM pg_temp.idemq_import WHERE id = r.id AND queue = r.queue;
				moved_now := moved_now + (done.outcome = 'accepted' AND NOT r.dead)::int;
				dead_now := dead_now + (done.outcome = 'accepted' AND r.dead)::int;
				merged_now := merged_now + (done.outcome = 'duplicate')::int;
			EXCEPTION WHEN OTHERS THEN
				left_there := left_there + 1;
				RAISE WARNING 'could not move job % of queue %: %', r.id, r.queue, SQLERRM USING ERRCODE = SQLSTATE;
			END;
		END LOOP;
		seen := seen + slice;
		COMMIT;
	END LOOP;
	RAISE NOTICE 'jobs moved: %; dead jobs moved: %; jobs merged with a waiting job that has the same key: %; jobs not moved because of errors: %; jobs not moved because another session has locked them: %',
		moved_now, dead_now, merged_now, left_there, total - moved_now - dead_now - merged_now - left_there;
END $$;
\else
\echo Nothing was changed. To move the jobs, pass -v go=1.
\endif
