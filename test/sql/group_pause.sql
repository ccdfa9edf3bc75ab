-- One group of a queue is paused: its jobs wait outside the ready index, the others go on, and whatever would make one of them
-- ready makes it blocked instead.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0) > 0 AS q, idemq.create_queue('turns', group_max_running => 2) > 0 AS turns;
CREATE VIEW paused AS SELECT queue, group_key, paused_until IS NOT NULL AS ends, paused_by = current_user AS mine FROM idemq.paused_group_list;
-- Jobs in order: what each is for, its status, whether it is in the ready index, and whether it has a time that is to come.
CREATE VIEW jobs AS SELECT q.name AS queue, group_key, payload, status, ready_at IS NOT NULL AS in_index, run_at > now() AS later
	FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE finished_at IS NULL;
CREATE FUNCTION claimed(queue text, most int DEFAULT 10) RETURNS text LANGUAGE sql AS
	$$ SELECT string_agg(concat(group_key, payload), ' ') FROM idemq.claim(queue, most) $$;

-- ---- Others go on; running jobs go on; a pause may come before the group's first job

SELECT idemq.pause('q', group_key => 'later');
SELECT count(id) FROM idemq.enqueue_many('q', '{1,1,1,2,2,2}', group_keys => '{a,b,c,a,b,later}');
SELECT claimed('q', 1);
SELECT idemq.pause('q', group_key => 'a'), idemq.pause('q', group_key => 'b');
SELECT * FROM paused ORDER BY group_key;
SELECT * FROM jobs ORDER BY payload, group_key;
SELECT claimed('q');
SELECT claimed('q');
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE group_key = 'a' AND status = 'running';
SELECT claimed('q');
SELECT * FROM jobs ORDER BY payload, group_key;
-- By id.
SELECT id AS b1 FROM idemq.jobs WHERE group_key = 'b' AND payload = '1' \gset
SELECT id AS b2 FROM idemq.jobs WHERE group_key = 'b' AND payload = '2' \gset
SELECT outcome, retry_after FROM idemq.claim_job(:b1);
SELECT outcome, retry_after FROM idemq.claim_job(:b2);
SELECT idemq.commit_once(:b1);
SELECT id AS keyed FROM idemq.enqueue('q', '3', key => 'k', group_key => 'b') \gset
SELECT outcome, retry_after FROM idemq.acquire('q', 'k', '3');
SELECT claimed('q'), (SELECT count(*) FROM idemq.claim_any('{q}'));
SELECT outcome FROM idemq.enqueue('q', '0') \gset
SELECT id, token FROM idemq.claim('q') \gset
SELECT count(*) FROM idemq.commit_and_claim(:id, :token);
SELECT regexp_replace(idemq.why(:b1), '\d{5,}', 'N', 'g') AS why, regexp_replace(idemq.why(:b2), '\d{5,}', 'N', 'g') AS why_2;
SELECT queue, paused, paused_groups, blocked FROM idemq.metrics ORDER BY 1;
SELECT value FROM idemq.prometheus WHERE name = 'idemq_queue_paused_groups' AND labels ->> 'queue' = 'q';
SELECT * FROM idemq.check();

-- ---- Resume: behind the others, in order

SELECT outcome FROM idemq.enqueue('q', '9', group_key => 'x');
SELECT claimed('q', 1), idemq.resume('q', 'b');
SELECT outcome FROM idemq.enqueue('q', '9', group_key => 'y');
SELECT claimed('q');
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running';
SELECT claimed('q'), (SELECT string_agg(group_key, ' ') FROM paused);
SELECT idemq.resume('q', 'a'), idemq.resume('q', group_key => 'later'), idemq.resume('q', 'never paused');
SELECT count(*) FROM paused;
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running';
SELECT claimed('q');
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running';
SELECT claimed('q');
DELETE FROM idemq.jobs;

-- ---- Nothing puts a job back: a failure, a release, a lost lease, a retry, another time, a redrive, a second run

SELECT count(id) FROM idemq.enqueue_many('q', '{1,2,3,4,5,6}', group_keys => '{fail,release,lost,die,rerun,event}', keys => '{fail,release,lost,die,rerun,event}');
CREATE TABLE taken AS SELECT * FROM idemq.claim('q', 10);
SELECT idemq.pause('q', group_key => g) FROM unnest('{fail,release,lost,die,rerun,event}'::text[]) g;
SELECT group_key, CASE group_key WHEN 'fail' THEN idemq.fail(id, token, 'no', retry_in => '1 h')::text
	WHEN 'release' THEN idemq.release(id, token, delay => '1 h')::text
	WHEN 'die' THEN idemq.fail(id, token, 'no', permanent => true)::text
	WHEN 'event' THEN (SELECT e.outcome FROM idemq.await_event(id, token, 'e', '1 h') e)
	WHEN 'rerun' THEN (SELECT e.outcome::text FROM idemq.enqueue('q', '55', key => 'rerun', group_key => 'rerun', on_duplicate => 'rerun') e) END AS outcome
	FROM taken ORDER BY 1;
SELECT idemq.try_commit(id, token) FROM taken WHERE group_key = 'rerun';
SELECT idemq.revoke_lease(id) FROM taken WHERE group_key = 'lost';
SELECT idemq.retry(id) FROM taken WHERE group_key = 'die';
SELECT * FROM jobs ORDER BY group_key;
SELECT claimed('q');
-- A time that is to come is kept; retry and another request leave the job where it is.
SELECT group_key, idemq.retry(id) FROM taken WHERE group_key = 'fail';
SELECT outcome FROM idemq.enqueue('q', '22', key => 'release', group_key => 'release', on_duplicate => 'replace');
SELECT idemq.reschedule(id, run_at => now() + '2 h') FROM taken WHERE group_key = 'release';
SELECT * FROM jobs WHERE group_key IN ('fail', 'release') ORDER BY group_key;
-- An event that arrives meanwhile is not forgotten.
SELECT outcome FROM idemq.send_event('q', 'e', '7');
SELECT * FROM jobs WHERE group_key = 'event';
SELECT * FROM idemq.check();
SELECT idemq.resume('q', g) FROM unnest('{fail,release,lost,die,rerun,event}'::text[]) g;
SELECT claimed('q');
SELECT * FROM jobs ORDER BY group_key;
SELECT e.outcome, e.payload FROM idemq.jobs j, idemq.await_event(j.id, j.token, 'e', '1 h') e WHERE group_key = 'event';
DROP TABLE taken;
DELETE FROM idemq.jobs;

-- A lease that ended is taken back by a claim, a job that waits for its retry when the pause comes keeps its time.
SELECT count(id) FROM idemq.enqueue_many('q', '{1,2}', group_keys => '{ends,retries}');
CREATE TABLE taken AS SELECT * FROM idemq.claim('q', 10, lease => '1 ms'); -- meant to expire
SELECT idemq.fail(id, token, 'no', retry_in => '1 h') FROM taken WHERE group_key = 'retries';
SELECT pg_sleep(0.01);
SELECT * FROM jobs ORDER BY group_key;
SELECT idemq.pause('q', group_key => 'ends'), idemq.pause('q', group_key => 'retries');
SELECT claimed('q');
SELECT * FROM jobs ORDER BY group_key;
SELECT idemq.resume('q', 'ends'), idemq.resume('q', 'retries');
SELECT claimed('q');
SELECT * FROM jobs ORDER BY group_key;
DROP TABLE taken;
DELETE FROM idemq.jobs;

-- ---- Groups with permits, and with a rate

SELECT count(id) FROM idemq.enqueue_many('turns', '{1,2,3,4,1,2,3,4}', group_keys => '{a,a,a,a,b,b,b,b}');
SELECT outcome FROM idemq.enqueue('turns', '5', group_key => 'a', delay => '1 h');
SELECT claimed('turns', 2);
SELECT idemq.pause('turns', group_key => 'a');
SELECT claimed('turns', 10);
SELECT * FROM jobs WHERE queue = 'turns' ORDER BY group_key, payload;
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE group_key = 'b' AND status = 'running';
SELECT claimed('turns', 10);
SELECT count(*) FROM idemq.jobs WHERE group_key = 'a' AND ready_at IS NOT NULL AND status <> 'running';
SELECT idemq.resume('turns', 'a');
SELECT claimed('turns', 10);
SELECT * FROM jobs WHERE queue = 'turns' ORDER BY group_key, payload;
SELECT * FROM idemq.check();
DELETE FROM idemq.jobs;
SELECT idemq.alter_queue('turns', group_max_running => 1, group_rate_limit => 1, group_rate_period => '1 h');
SELECT count(id) FROM idemq.enqueue_many('turns', '{1,2}', group_keys => '{a,a}');
SELECT claimed('turns', 10);
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running';
SELECT claimed('turns', 10);
SELECT status, ready_at > now() AS waits_for_rate FROM idemq.jobs WHERE finished_at IS NULL;
SELECT idemq.pause('turns', group_key => 'a');
SELECT status, ready_at IS NULL AS outside, run_at > now() AS later, flags & 64 AS rate FROM idemq.jobs WHERE finished_at IS NULL;
SELECT idemq.resume('turns', 'a');
SELECT claimed('turns', 10);
SELECT status, ready_at > now() AS waits_for_rate FROM idemq.jobs WHERE finished_at IS NULL;
DELETE FROM idemq.jobs;

-- ---- Until a time; here no worker deletes the row, but a claim does

SELECT outcome FROM idemq.enqueue('q', '1', group_key => 'u');
SELECT idemq.pause('q', clock_timestamp() + '1 h', 'u');
SELECT * FROM paused;
SELECT id AS u FROM idemq.jobs \gset
SELECT outcome, retry_after = (SELECT paused_until FROM idemq.paused_groups) AS until FROM idemq.claim_job(:u);
SELECT regexp_replace(idemq.why(:u), 'until [^:]*\d\d:\d\d:\d\d[^:]*:', 'until TIME:') AS why;
SELECT idemq.pause('q', clock_timestamp() + '150 ms', 'u'); -- meant to expire
SELECT claimed('q');
SELECT pg_sleep(0.2);
SELECT count(*) AS rows, (SELECT count(*) FROM paused) AS shown FROM idemq.paused_groups;
SELECT * FROM idemq.check();
SELECT claimed('q');
SELECT count(*) AS rows FROM idemq.paused_groups;
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running';
-- Above READ COMMITTED, too, where the row may be one that the transaction must not delete.
SELECT outcome FROM idemq.enqueue('q', '2', group_key => 'u');
SELECT idemq.pause('q', clock_timestamp() + '50 ms', 'u'); -- meant to expire
SELECT pg_sleep(0.1);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT claimed('q');
COMMIT;
SELECT claimed('q');
SELECT count(*) AS rows FROM idemq.paused_groups;
DELETE FROM idemq.jobs;

-- ---- Rolled back, in a savepoint, seen by its own transaction at once

SELECT outcome FROM idemq.enqueue('q', '1', group_key => 'r');
BEGIN;
SELECT idemq.pause('q', group_key => 'r');
SELECT claimed('q');
ROLLBACK;
SELECT * FROM idemq.check();
BEGIN;
SAVEPOINT s;
SELECT idemq.pause('q', group_key => 'r');
SELECT claimed('q');
ROLLBACK TO s;
SELECT claimed('q');
ROLLBACK;
BEGIN;
SELECT idemq.pause('q', group_key => 'r');
SAVEPOINT s;
SELECT idemq.resume('q', group_key => 'r');
ROLLBACK TO s;
SELECT claimed('q');
COMMIT;
SELECT claimed('q');
-- By hand: what a DBA or logical replication writes does the same.
DELETE FROM idemq.paused_groups;
SELECT claimed('q', 1);
SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running';
INSERT INTO idemq.paused_groups (queue_id, group_key) SELECT queue_id, 'r' FROM idemq.queues WHERE name = 'q';
SELECT claimed('q');
SELECT * FROM jobs;
UPDATE idemq.paused_groups SET group_key = 'another';
SELECT claimed('q');
SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running';
UPDATE idemq.paused_groups SET group_key = 'r';
SELECT claimed('q');
TRUNCATE idemq.paused_groups;
SELECT claimed('q');
DELETE FROM idemq.jobs;

-- ---- A child joins a paused group; a name too long for shared memory

SELECT idemq.pause('q', group_key => repeat('long', 50)), idemq.pause('q', group_key => 'joined');
SELECT id AS parent FROM idemq.enqueue('q', '1') \gset
SELECT outcome FROM idemq.enqueue('q', '2', group_key => 'joined', depends_on => ARRAY[:parent]);
SELECT outcome FROM idemq.enqueue('q', '3', group_key => repeat('long', 50));
SELECT id, token FROM idemq.claim('q', 10) \gset
SELECT idemq.commit(:id, :token);
SELECT claimed('q');
SELECT left(group_key, 8) AS name, status FROM jobs ORDER BY 1;
SELECT idemq.resume('q', repeat('long', 50)), idemq.resume('q', 'joined');
SELECT count(*) FROM idemq.claim('q', 10);
DELETE FROM idemq.jobs;

-- The back of the turn is behind a job that has been in the index since before the resume, though the paused one is older; once only.
SELECT outcome FROM idemq.enqueue('q', '1', group_key => 'old');
SELECT claimed('q', 1);
SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running';
SELECT idemq.pause('q', group_key => 'old');
SELECT count(id) FROM idemq.enqueue_many('q', '{2,3,4,5,6}', group_keys => '{v,w,x,old,v}');
SELECT claimed('q', 3);
SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running' AND group_key IN ('w', 'x') ORDER BY id;
SELECT group_key, status, in_index FROM jobs ORDER BY payload;
SELECT idemq.resume('q', 'old');
SELECT outcome FROM idemq.enqueue('q', '7', group_key => 'y');
SELECT claimed('q', 2);
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running' ORDER BY id;
SELECT claimed('q', 1);
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running';
SELECT claimed('q', 10);
SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running' ORDER BY id;
SELECT * FROM idemq.check();
DELETE FROM idemq.jobs;

-- ---- A schedule's job, made now or at its tick, waits

CALL idemq.tick();
SELECT idemq.pause('q', clock_timestamp() + '1 h', 'scheduled'), idemq.schedule('s', '0 0 1 1 *', 'q', '8', group_key => 'scheduled');
SELECT idemq.run_schedule_now('s') AS run \gset
SELECT outcome, retry_after = (SELECT paused_until FROM idemq.paused_groups WHERE group_key = 'scheduled') AS at_its_end FROM idemq.claim_job(:run);
SELECT idemq.commit_once(:run), claimed('q');
SELECT * FROM jobs;
SELECT idemq.unschedule('s'), idemq.resume('q', 'scheduled');
SELECT claimed('q');
DELETE FROM idemq.jobs;

-- ---- A group that is paused and held back: each keeps its jobs; resume of the group ends both, resume of the queue only the hold

SELECT count(id) FROM idemq.enqueue_many('q', '{1,2,3}', group_keys => '{both,both,other}');
SELECT id AS both, token AS both_token FROM idemq.claim('q') \gset
SELECT idemq.hold_back(:both, :both_token, '30 min') > now() AS held, idemq.pause('q', group_key => 'both');
SELECT idemq.try_commit(:both, :both_token), claimed('q');
SELECT regexp_replace(idemq.why(id), '\d{5,}', 'N', 'g') AS why FROM idemq.jobs WHERE group_key = 'both' AND finished_at IS NULL;
SELECT held_until, groups_held, paused_groups FROM idemq.metrics WHERE queue = 'q';
BEGIN;
SELECT idemq.resume('q');
SELECT claimed('q'), (SELECT count(*) FROM idemq.holds) AS holds, (SELECT count(*) FROM paused) AS paused;
ROLLBACK;
BEGIN;
DELETE FROM idemq.paused_groups;
SELECT claimed('q'), (SELECT count(*) FROM idemq.holds) AS holds, (SELECT count(*) FROM paused) AS paused;
ROLLBACK;
SELECT idemq.resume('q', 'both');
SELECT claimed('q'), (SELECT count(*) FROM idemq.holds) AS holds, (SELECT count(*) FROM paused) AS paused;
SELECT details FROM idemq.audit WHERE action = 'resume' AND details ->> 'group_key' = 'both';
DELETE FROM idemq.jobs;

-- ---- What is refused; who sees it; what is recorded

\set VERBOSITY default
SELECT idemq.pause('q', group_key => NULL);
SELECT idemq.pause('q', group_key => '');
SELECT idemq.pause('q', NULL, repeat('x', 1025));
SELECT idemq.resume('q', NULL);
SELECT idemq.resume('q', '');
\set VERBOSITY sqlstate
SELECT idemq.pause('q', now() - interval '1 h', 'g');
SELECT idemq.pause('nope', group_key => 'g');
SELECT count(*) FROM idemq.paused_groups;
BEGIN READ ONLY;
SELECT idemq.pause('q', group_key => 'g');
ROLLBACK;
-- The queue's own pause and a group's are two: each ends for itself.
SELECT idemq.pause('q'), idemq.pause('q', group_key => 'g');
SELECT outcome FROM idemq.enqueue('q', '1', group_key => 'g') UNION ALL SELECT outcome FROM idemq.enqueue('q', '2', group_key => 'h');
SELECT claimed('q');
SELECT idemq.resume('q');
SELECT claimed('q');
SELECT idemq.resume('q', 'g');
SELECT claimed('q');
-- A second pause replaces the first, and does not begin anew.
SELECT idemq.pause('q', group_key => 'g');
SELECT paused_at AS before FROM idemq.paused_groups \gset
SELECT idemq.pause('q', clock_timestamp() + '1 h', 'g');
SELECT paused_at = :'before' AS since_then, paused_until IS NOT NULL AS ends FROM idemq.paused_groups;
SELECT idemq.pause('q', 'infinity', 'g');
SELECT paused_until FROM idemq.paused_groups;
CREATE ROLE regress_pause_worker;
CREATE ROLE regress_pause_producer;
SELECT idemq.grant_queue('q', 'regress_pause_worker', 'claim'), idemq.grant_queue('q', 'regress_pause_producer', 'enqueue'), idemq.pause('turns', group_key => 't');
SET ROLE regress_pause_worker;
SELECT group_key FROM idemq.paused_groups;
SELECT queue, group_key FROM idemq.paused_group_list;
SELECT idemq.pause('q', group_key => 'g');
SELECT idemq.resume('q', 'g');
SET ROLE regress_pause_producer;
SELECT count(*) FROM idemq.paused_groups;
SELECT count(*) FROM idemq.paused_group_list;
RESET ROLE;
SELECT action, queue, details ? 'until' AS until, details - 'until' AS rest FROM idemq.audit WHERE action IN ('pause', 'resume') AND queue = 'q' ORDER BY id DESC LIMIT 8;
SELECT count(*) FILTER (WHERE session_role = current_user) = count(*) AS who, count(*) > 1 AS ended_by_claims FROM idemq.audit WHERE action = 'resume' AND details ? 'until';
SELECT idemq.drop_queue('q', true);
SELECT count(*), min(group_key) FROM idemq.paused_groups;
SELECT idemq.drop_queue('turns', true);
SELECT count(*) FROM idemq.paused_groups;
SELECT * FROM idemq.check();
DROP VIEW jobs, paused;
DROP FUNCTION claimed;
DROP ROLE regress_pause_worker, regress_pause_producer;
DROP EXTENSION idemq;
