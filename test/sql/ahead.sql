-- Jobs that a worker has claimed ahead (heartbeat_many with ahead): what the server shows, when they may begin, and what their loss counts.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', job_timeout => '2 h', max_attempts => 1) > 0 AS created;
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 4) g;
CREATE TABLE held AS SELECT id, token, payload::int AS n FROM idemq.claim('q', 4, worker => 'W');
CREATE FUNCTION beat(numbers int[], ahead boolean, lease interval DEFAULT NULL) RETURNS TABLE (n int, outcome idemq.outcome) LANGUAGE sql
	AS $$SELECT h.n, b.outcome FROM (SELECT array_agg(s.id) AS ids, array_agg(s.token) AS tokens FROM held s WHERE s.n = ANY (numbers)) a,
		idemq.heartbeat_many(a.ids, a.tokens, beat.lease, ahead => beat.ahead) b JOIN held h USING (id) ORDER BY 1$$;
CREATE VIEW shown AS SELECT n, ahead, state FROM held JOIN idemq.running_jobs ON job_id = id ORDER BY n;

-- The mark, which a heartbeat without ahead keeps.
SELECT * FROM beat('{2,3,4}', true);
SELECT * FROM beat('{1,2,3,4}', NULL);
SELECT * FROM shown;
SELECT n, regexp_replace(idemq.why(id), ',? lease expires.*', '') AS why FROM held WHERE n = 2;
-- A later attempt has no mark to set or to remove.
SELECT outcome FROM held, idemq.heartbeat_many(ARRAY[id], ARRAY[token - 1], ahead => false) WHERE n = 2;
SELECT * FROM shown;

-- While the queue is paused or held back, none may begin.  Those that run are not affected.
SELECT idemq.pause('q');
SELECT * FROM beat('{2}', false);
SELECT * FROM beat('{1,2}', NULL);
SELECT idemq.resume('q');
SELECT idemq.hold_back(id, token, '1 h', scope => 'queue') > now() AS held FROM held WHERE n = 1;
SELECT * FROM beat('{2}', false);
SELECT idemq.resume('q');
SELECT * FROM shown;
-- One may begin, and its job_timeout begins.
SELECT * FROM beat('{2}', false);
SELECT count(*) FROM beat('{1,2}', NULL, '1 day');
SELECT max(deadline) FILTER (WHERE n = 2) > max(deadline) FILTER (WHERE n = 1) AS later FROM held JOIN idemq.running_jobs ON job_id = id;
SELECT * FROM shown;
-- One that is cancelled may not.
SELECT idemq.cancel(id) FROM held WHERE n = 4;
SELECT * FROM beat('{4}', false);

-- The leases end: what has begun is dead, because it has one attempt.  What has not begun is ready again.
SELECT * FROM beat('{1,2,3}', NULL, '1 us');
SELECT idemq.reap('q');
SELECT n, status, attempt, last_error FROM held JOIN idemq.jobs USING (id) ORDER BY n;
SELECT n, a.outcome, a.attempt, a.error FROM held JOIN idemq.attempts a ON job_id = id ORDER BY n;
-- Its next attempt has no mark.
SELECT payload, attempt FROM idemq.claim('q', 4);
SELECT j.payload, r.ahead FROM idemq.running_jobs r JOIN idemq.jobs j ON id = job_id;
SELECT * FROM idemq.check();
