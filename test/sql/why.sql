-- why(id), idemq.running_jobs: every state of a job in one sentence.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
\a
\t on
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 2) AS q \gset
CREATE FUNCTION why(id bigint) RETURNS text LANGUAGE sql AS
	$$ SELECT regexp_replace(regexp_replace(idemq.why(id), 'pid [1-9]\d*', 'pid N', 'g'), '\d\d\d\d-\d\d-\d\d [\d:.]+[+-]\d+', 'T', 'g') $$;

-- No such job, and no id.
SELECT why(0);
SELECT idemq.why(NULL);
-- Ready: first, behind others, behind other priorities; nobody works.
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 3) g;
SELECT why(1000000000001);
SELECT why(1000000000002);
SELECT why(1000000000003);
SELECT (idemq.enqueue('q', '4', priority => 0)).id;
SELECT why(1000000000003);
SELECT why(1000000000004);
-- Not due.
SELECT (idemq.enqueue('q', '5', delay => '1 h')).id;
SELECT why(1000000000005);
SELECT idemq.retry(1000000000005);
SELECT why(1000000000005);
-- A paused queue hands out nothing.
SELECT idemq.pause('q');
SELECT why(1000000000001);
SELECT idemq.resume('q');
-- Expired, not yet cancelled; then cancelled by a claim.
SELECT (idemq.enqueue('q', '6', priority => 0, expires_in => '1 ms')).id, pg_sleep(0.01); -- meant to expire
SELECT why(1000000000006);
-- Running: by a worker, attached, heartbeat overdue.
SELECT token FROM idemq.claim('q', worker => 'w one') \gset
SELECT why(1000000000004);
SELECT why(1000000000001);
SELECT token AS token1 FROM idemq.claim('q', attach => true) \gset
SELECT why(1000000000001);
SELECT queue, job_id, worker, pid = pg_backend_pid() AS mine, attempt, claimed_at <= clock_timestamp() AS claimed,
	deadline - claimed_at BETWEEN '1 h' AND '1 h 1 min' AS lease, expires_in BETWEEN '59 min' AND '1 h' AS expires, attached, state FROM idemq.running_jobs ORDER BY job_id;
SELECT idemq.heartbeat(1000000000004, :token, '1 ms'), pg_sleep(0.01); -- meant to expire
SELECT why(1000000000004);
SELECT expires_in < '0' AS overdue FROM idemq.running_jobs WHERE job_id = 1000000000004;
-- That heartbeat made the lease shorter: the next claim sees its end.
SELECT id, attempt FROM idemq.claim('q', worker => 'w two');
SELECT why(1000000000004);
-- Retrying, dead, cancelled, expired, completed, completed with no claim.
SELECT idemq.fail(1000000000001, :token1, 'secret error', '1 h');
SELECT why(1000000000001);
SELECT idemq.retry(1000000000001);
SELECT idemq.fail(id, token, 'secret error') FROM idemq.claim_job(1000000000001);
SELECT why(1000000000001);
SELECT idemq.cancel(1000000000002);
SELECT why(1000000000002);
SELECT why(1000000000006);
SELECT idemq.commit(id, token) FROM idemq.claim_job(1000000000003);
SELECT why(1000000000003);
SELECT idemq.commit_once(1000000000005);
SELECT why(1000000000005);
SELECT idemq.fail(1000000000004, token, permanent => true) FROM idemq.job(1000000000004);
SELECT why(1000000000004);
-- Within one transaction.
BEGIN;
SELECT (idemq.enqueue('q', '7')).id;
SELECT why(1000000000007);
SELECT id FROM idemq.claim_job(1000000000007);
SELECT why(1000000000007);
SELECT state, attempt, deadline FROM idemq.running_jobs;
SELECT idemq.fail(1000000000007, token, retry_in => '0') FROM idemq.job(1000000000007);
SELECT why(1000000000007);
COMMIT;
-- On its row alone: running with no entry.
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, attempt, token, ready_at, claimed_at, deadline, payload)
	VALUES (:q, now(), 4, 3, 'running', 1, 5, now(), now(), now() + interval '1 h', '8');
SELECT why(1000000000008);
SELECT outcome FROM idemq.claim_job(1000000000008);
SELECT why(1000000000008);
SELECT job_id, pid, attempt, state FROM idemq.running_jobs;
-- More ready jobs than are counted.
SELECT count(idemq.enqueue('q', to_jsonb(g), priority => 1)) FROM generate_series(1, 1100) g;
SELECT why(1000000000007);
-- Blocked, and next in its group.
UPDATE idemq.jobs SET status = 'blocked', ready_at = NULL, group_key = 'g' WHERE id = 1000000000007;
SELECT why(1000000000007);
-- Behind a job of its group, or a parent, that is not due: when that one is.
SELECT idemq.create_queue('line', lease => '1 h', max_attempts => 2, retry_jitter => 0) AS line \gset
SELECT id AS head FROM idemq.enqueue('line', '1', group_key => 'g', delay => '1 h') \gset
SELECT id AS behind FROM idemq.enqueue('line', '2', group_key => 'g') \gset
SELECT id AS child FROM idemq.enqueue('line', '3', depends_on => ARRAY[:head]) \gset
CREATE FUNCTION of_head(waits bigint, head bigint) RETURNS text LANGUAGE sql AS
	$$ SELECT replace(why(waits), head::text, 'HEAD') || CASE WHEN strpos(idemq.why(waits), to_char(coalesce(j.run_at, j.ready_at), 'YYYY-MM-DD HH24:MI:SS')) > 0 THEN ' (its time)' ELSE '' END FROM idemq.job(head) j $$;
SELECT of_head(:behind, :head);
SELECT count(*) FROM idemq.claim('line');
SELECT of_head(:behind, :head);
SELECT of_head(:child, :head);
SELECT idemq.reschedule(:head, now());
SELECT of_head(:behind, :head);
SELECT of_head(:child, :head);
SELECT idemq.fail(id, token, 'no', '1 h') FROM idemq.claim_job(:head);
SELECT of_head(:behind, :head);
SELECT of_head(:child, :head);

-- A stranger learns nothing; claim or admin are enough; pg_monitor sees all workers.
CREATE ROLE idemq_stranger;
GRANT USAGE ON SCHEMA idemq TO idemq_stranger;
CREATE ROLE idemq_worker;
CREATE ROLE idemq_watch IN ROLE pg_monitor;
SELECT idemq.grant_queue('q', 'idemq_stranger', 'enqueue');
SELECT idemq.grant_queue('q', 'idemq_worker', 'claim');
SET ROLE idemq_stranger;
SELECT idemq.why(1000000000001);
SELECT idemq.why(0);
SELECT count(*) FROM idemq.running_jobs;
SELECT idemq.check();
SET ROLE idemq_worker;
SELECT idemq.why(1000000000001) ~ '^dead since';
SELECT count(*) FROM idemq.running_jobs;
SELECT idemq.check();
SET ROLE idemq_watch;
SELECT idemq.why(1000000000001);
SELECT count(*) FROM idemq.running_jobs;
SELECT * FROM idemq.check() WHERE invariant <> 'jobs.attempt';
RESET ROLE;
-- Where nothing may be written.
BEGIN READ ONLY;
SELECT why(1000000000001);
SELECT count(*) FROM idemq.running_jobs;
SELECT count(*) FROM idemq.check();
COMMIT;
DROP OWNED BY idemq_stranger, idemq_worker, idemq_watch;
DROP OWNED BY idemq_stranger, idemq_worker, idemq_watch;
DROP ROLE idemq_stranger, idemq_worker, idemq_watch;
