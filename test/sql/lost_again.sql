-- A job that loses its lease again waits for its next attempt, as after fail(): its status, the gauges, groups, check().
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 ms', retry_base => '1 h', retry_jitter => 0) > 0 AS created; -- meant to expire
-- Where metrics and the rows differ, and what check() finds: nothing.
CREATE VIEW wrong AS
	SELECT format('%s: %s %s', m.queue, status, gauge) AS what
	FROM idemq.metrics m, LATERAL (VALUES ('pending', pending), ('blocked', blocked), ('running', running), ('retrying', retrying),
		('completed', completed), ('dead', dead), ('cancelled', cancelled)) g (status, gauge)
	WHERE gauge IS DISTINCT FROM (SELECT count(*) FROM idemq.jobs j WHERE j.queue_id = m.queue_id AND j.status::text = g.status)
	UNION ALL SELECT concat_ws(': ', severity, invariant, detail) FROM idemq.check();
-- Claims the jobs that are ready, or one by its id, and lets their leases end.
CREATE PROCEDURE lose(queue text, id bigint DEFAULT NULL) LANGUAGE plpgsql AS $$
BEGIN
	IF lose.id IS NULL THEN
		PERFORM FROM idemq.claim(lose.queue, 10, lease => '1 ms'); -- meant to expire
	ELSE
		PERFORM FROM idemq.claim_job(lose.id, lease => '1 ms'); -- meant to expire
	END IF;
	COMMIT;
	PERFORM pg_sleep(0.005);
	PERFORM idemq.reap(lose.queue);
	COMMIT;
END $$;
CREATE VIEW jobs AS SELECT j.id, q.name AS queue, payload, status, attempt, ready_at > clock_timestamp() + '59 min' AS waits, last_error, flags
	FROM idemq.jobs j JOIN idemq.queues q USING (queue_id);

-- The first loss leaves it pending, and ready; the second does not.
SELECT (idemq.enqueue('q', '1')).id \gset
CALL lose('q');
SELECT status, attempt, waits, last_error FROM jobs;
SELECT * FROM wrong;
CALL lose('q');
SELECT status, attempt, waits, last_error FROM jobs;
SELECT pending, running, retrying, permits_used FROM idemq.metrics;
SELECT * FROM wrong;
SELECT attempt, outcome, error FROM idemq.attempts ORDER BY attempt;
SELECT regexp_replace(idemq.why(:id), 'before .*, when', 'before T, when');
SELECT retrying, waiting FROM idemq.flow(:id);
SELECT jobs, dead FROM idemq.errors;
SELECT count(*) FROM idemq.claim('q');
SELECT outcome FROM idemq.claim_job(:id);
-- Another time and priority leave the status; when it is due, it is claimed again.
SELECT idemq.reschedule(:id, clock_timestamp() + '2 h', 9);
SELECT status, attempt FROM jobs;
SELECT idemq.reschedule(:id, clock_timestamp());
SELECT status, attempt, waits FROM jobs;
SELECT attempt FROM idemq.claim('q', lease => '1 h');
SELECT idemq.fail(:id, token, 'no', retry_in => '0') FROM idemq.job(:id);
SELECT * FROM wrong;
-- fail() in between: the next loss is the first again, and a released job is pending.
CALL lose('q');
SELECT status, attempt, waits FROM jobs;
SELECT idemq.release(id, token) FROM idemq.claim('q', lease => '1 h');
SELECT status, attempt, waits FROM jobs;
-- retry() makes it pending, cancel() ends it.
CALL lose('q');
CALL lose('q');
SELECT status, waits FROM jobs;
SELECT idemq.retry(:id), status, waits FROM jobs;
SELECT status, waits FROM jobs;
CALL lose('q');
SELECT idemq.cancel(:id);
SELECT status FROM jobs;
SELECT * FROM wrong;
-- The row itself knows: idemq.attempts may be emptied.
SELECT (idemq.enqueue('q', '2')).id \gset
CALL lose('q');
SELECT status, flags FROM jobs WHERE id = :id;
DELETE FROM idemq.attempts;
CALL lose('q');
SELECT status, flags, waits FROM jobs WHERE id = :id;
SELECT idemq.cancel(:id);
SELECT flags FROM jobs WHERE id = :id;
SELECT * FROM wrong;
-- The last attempt is dead.
SELECT (idemq.enqueue('q', '2', max_attempts => 2)).id \gset
CALL lose('q');
CALL lose('q');
SELECT status, attempt, last_error FROM jobs WHERE id = :id;
SELECT idemq.purge('q');

-- A request that came while it ran is what the next attempt does.
SELECT (idemq.enqueue('q', '"old"', key => 'k')).id \gset
CALL lose('q');
SELECT token FROM idemq.claim('q') \gset
SELECT outcome, status FROM idemq.enqueue('q', '"new"', key => 'k', on_duplicate => 'rerun');
SELECT pg_sleep(0.005);
SELECT idemq.reap('q');
SELECT status, attempt, payload, waits FROM jobs;
SELECT outcome, status FROM idemq.enqueue('q', '"newest"', key => 'k', on_duplicate => 'rerun');
SELECT status, attempt, payload, waits FROM jobs;
SELECT * FROM wrong;
SELECT idemq.purge('q');

-- A reap that is rolled back, alone or to a savepoint, leaves the attempt as it was.
SELECT (idemq.enqueue('q', '3')).id \gset
CALL lose('q');
SELECT token FROM idemq.claim('q') \gset
SELECT pg_sleep(0.005);
BEGIN;
SAVEPOINT s;
SELECT idemq.reap('q');
SELECT status, attempt, waits FROM jobs;
ROLLBACK TO s;
SELECT status, attempt, waits FROM jobs;
SELECT idemq.validate(:id, :token);
COMMIT;
SELECT running, retrying, permits_used FROM idemq.metrics;
SELECT * FROM wrong;
DO $$ BEGIN
	-- A reap that did not come through is tried again after a while.
	FOR i IN 1 .. 500 LOOP
		EXIT WHEN idemq.reap('q') > 0;
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT status, attempt, waits FROM jobs;
SELECT running, retrying, permits_used FROM idemq.metrics;
SELECT * FROM wrong;
SELECT idemq.purge('q');

-- A claim takes it back by itself, and passes it over.
SELECT (idemq.enqueue('q', '4')).id \gset
CALL lose('q');
SELECT count(*) FROM idemq.claim('q');
SELECT pg_sleep(0.005);
SELECT count(*) FROM idemq.claim('q');
SELECT status, attempt, waits FROM jobs;
SELECT * FROM wrong;
SELECT idemq.purge('q');

-- In a group in strict order it stays the head, and the others wait behind it.
SELECT count(idemq.enqueue('q', to_jsonb('g' || n), group_key => 'g')) FROM generate_series(1, 2) n;
SELECT id FROM jobs WHERE payload = '"g1"' \gset
CALL lose('q', :id);
CALL lose('q', :id);
SELECT payload, status FROM jobs ORDER BY id;
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.why(max(id)) LIKE '%behind job ' || :id || ', which is retrying and not due before %: see%' AS why FROM jobs;
SELECT * FROM wrong;
SELECT idemq.purge('q');

-- In a group of which two may run it has no permit: two others run.  When it is due it waits for a permit.
SELECT idemq.alter_queue('q', group_max_running => 2, lease => '1 h');
SELECT count(idemq.enqueue('q', to_jsonb('h' || n), group_key => 'h')) FROM generate_series(1, 4) n;
SELECT id FROM jobs WHERE payload = '"h1"' \gset
CALL lose('q', :id);
CALL lose('q', :id);
SELECT payload, status FROM jobs ORDER BY id;
SELECT string_agg(payload #>> '{}', ' ') FROM idemq.claim('q', 10);
SELECT payload, status FROM jobs ORDER BY id;
SELECT * FROM wrong;
SELECT idemq.reschedule(:id, clock_timestamp());
SELECT string_agg(payload #>> '{}', ' ') FROM idemq.claim('q', 10);
SELECT payload, status FROM jobs ORDER BY id;
SELECT * FROM wrong;
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE payload = '"h2"';
SELECT payload, attempt FROM idemq.claim('q', 10);
SELECT payload, status FROM jobs ORDER BY id;
SELECT * FROM wrong;
DROP VIEW wrong, jobs;
DROP EXTENSION idemq;
