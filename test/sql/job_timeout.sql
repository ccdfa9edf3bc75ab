-- job_timeout: a lease ends then, whatever its length, its heartbeats and its session.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('hour', lease => '30 min', job_timeout => '1 h') > 0 AS created;
SELECT idemq.create_queue('short', lease => '1 h', job_timeout => '1 ms', max_attempts => 2, retry_jitter => 0, retry_base => '1 h') > 0 AS created; -- meant to expire
SELECT count(idemq.enqueue('hour', to_jsonb(g))) FROM generate_series(1, 4) g;
-- From the claim on, for the lease asked for and the queue's.
CREATE TABLE held AS SELECT c.*, clock_timestamp() AS at FROM idemq.claim('hour', 1, lease => '1 day') c;
INSERT INTO held SELECT c.*, clock_timestamp() FROM idemq.claim('hour', 1) c;
INSERT INTO held SELECT c.*, clock_timestamp() FROM idemq.claim('hour', 1, lease => '1 day', attach => true) c;
CREATE VIEW ends AS SELECT payload, attached, w.deadline - at BETWEEN '59 min' AND '60 min 1 s' AS in_an_hour, w.deadline - at BETWEEN '29 min' AND '30 min 1 s' AS in_half
	FROM held JOIN idemq.running_jobs w ON job_id = id ORDER BY id;
SELECT payload, h.deadline - j.claimed_at AS lease, j.deadline <= h.deadline AS row FROM held h JOIN idemq.jobs j USING (id, payload) ORDER BY id;
SELECT * FROM ends;
-- Heartbeats go as far, and no further.
SELECT outcome FROM idemq.heartbeat_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held), lease => '5 h');
SELECT * FROM ends;
SELECT idemq.heartbeat(id, token, '29 min 59 s') FROM held;
SELECT * FROM ends;
-- An attempt keeps the limit of its claim.
SELECT idemq.alter_queue('hour', job_timeout => '0');
SELECT idemq.heartbeat(id, token, '5 h') FROM held;
SELECT * FROM ends;
SELECT c.deadline - clock_timestamp() > '4 h' AS without FROM idemq.claim('hour', 1, lease => '5 h') c;

-- Over: the heartbeat says so, the job is taken back, and waits as after a failure.
SELECT (idemq.enqueue('short', '1')).outcome;
SELECT id, token FROM idemq.claim('short', 1, attach => true) \gset
SELECT pg_sleep(0.01);
SELECT idemq.heartbeat(:id, :token), idemq.heartbeat(:id, :token, '1 h'), idemq.validate(:id, :token);
SELECT idemq.why(:id) ~ 'will reclaim the job' AS why;
SELECT idemq.reap('short'), idemq.heartbeat(:id, :token), idemq.validate(:id, :token);
SELECT status, attempt, last_error, ready_at - clock_timestamp() > '59 min' AS waits FROM idemq.job(:id);
SELECT outcome, error FROM idemq.attempts WHERE job_id = :id;
SELECT idemq.commit(:id, :token);
-- Until it is taken back the attempt may commit; the last attempt is dead.
SELECT outcome FROM idemq.enqueue('short', '2');
SELECT id, token FROM idemq.claim('short') \gset
SELECT pg_sleep(0.01);
SELECT idemq.heartbeat(:id, :token), idemq.commit(:id, :token);
SELECT id AS old FROM idemq.jobs WHERE payload = '1' AND queue_id = idemq.queue_id('short') \gset
SELECT idemq.retry(:old);
SELECT attempt FROM idemq.claim('short');
SELECT pg_sleep(0.01);
SELECT idemq.reap();
SELECT status, last_error FROM idemq.job(:old);
SELECT error, dead FROM idemq.errors;
SELECT * FROM idemq.check();
DROP VIEW ends;
DROP TABLE held;
SELECT idemq.drop_queue('hour', true), idemq.drop_queue('short', true);
DROP EXTENSION idemq;
