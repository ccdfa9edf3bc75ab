-- What an operator does by hand: take a job from its worker, run a schedule out of turn.
CREATE EXTENSION idemq;
CREATE FUNCTION state(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || SQLERRM;
END $$;
SELECT idemq.create_queue('work') > 0 AS created;
CREATE ROLE steering_admin; CREATE ROLE steering_worker; CREATE ROLE steering_other;
SELECT idemq.grant_queue('work', 'steering_admin', 'admin'), idemq.grant_queue('work', 'steering_worker', 'claim'), idemq.grant_queue('work', 'steering_other', 'enqueue');

-- revoke_lease: the attempt is not counted, the worker's token is stale, the job is ready.
SELECT (idemq.enqueue('work', '1')).id \gset
SELECT idemq.revoke_lease(:id);
SELECT token FROM idemq.claim('work', lease => '1 h') \gset
SET ROLE steering_worker;
SELECT idemq.revoke_lease(:id);
SET ROLE steering_admin;
SELECT idemq.revoke_lease(:id);
RESET ROLE;
SELECT state(format('SELECT idemq.commit(%s, %s)', :id, :token));
SELECT status, attempt, ready_at <= clock_timestamp() AS ready FROM idemq.job(:id);
SELECT outcome, attempt FROM idemq.attempts WHERE job_id = :id;
SELECT action, role, job_id = :id AS this_job FROM idemq.audit WHERE action = 'revoke_lease';
SELECT count(*) FROM idemq.running_jobs;
-- Rolled back, the lease is there again; so by a savepoint.
SELECT token FROM idemq.claim('work', lease => '1 h') \gset
BEGIN;
SELECT idemq.revoke_lease(:id);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idemq.revoke_lease(:id);
ROLLBACK TO s;
SELECT idemq.validate(:id, :token);
COMMIT;
SELECT idemq.heartbeat(:id, :token), idemq.commit(:id, :token);
SELECT idemq.revoke_lease(:id), idemq.revoke_lease(-1), state('SELECT idemq.revoke_lease(NULL)');
SELECT (idemq.enqueue('work', '2')).id \gset
SELECT idemq.cancel(:id), idemq.revoke_lease(:id);
SELECT (idemq.enqueue('work', '3', group_key => 'g')).id, (idemq.enqueue('work', '4', group_key => 'g')).id AS second \gset
SELECT idemq.revoke_lease(:second);
SELECT * FROM idemq.check() WHERE invariant NOT LIKE 'schedules%';

-- run_schedule_now: a job as its ticks', without their key, as often as it is called.
CALL idemq.tick();
SELECT idemq.schedule('nightly', '0 3 * * *', 'work', '{"report": 1}', priority => 2, expires_in => '1 h') IS NOT NULL AS made;
SELECT next_run, last_run FROM idemq.schedules \gset before_
SELECT idemq.run_schedule_now('nightly') AS a, idemq.run_schedule_now('nightly') AS b \gset
SELECT payload, priority, key IS NULL AS no_key, headers ->> 'schedule' AS schedule, headers ? 'tick' AS tick, expires_at > clock_timestamp() + interval '50 min' AS expires
FROM idemq.jobs WHERE id IN (:a, :b);
SELECT next_run = :'before_next_run' AS same, last_run FROM idemq.schedules;
SELECT state('SELECT idemq.run_schedule_now(NULL)'), state($$SELECT idemq.run_schedule_now('none')$$), state(format('SELECT idemq.run_schedule_now(%L)', repeat('x', 200)));
SET ROLE steering_other;
SELECT state($$SELECT idemq.run_schedule_now('nightly')$$);
SET ROLE steering_admin;
SELECT idemq.run_schedule_now('nightly') > 0 AS done;
RESET ROLE;
SELECT action, role = 'steering_admin' AS admin, queue, details FROM idemq.audit WHERE action = 'run_schedule_now' ORDER BY id;
-- Who has made it has lost the right: nobody runs it.
SET ROLE steering_other;
SELECT idemq.schedule('others', '0 4 * * *', 'work', '2') IS NOT NULL AS made;
RESET ROLE;
SELECT idemq.revoke_queue('work', 'steering_other', 'enqueue');
SELECT state($$SELECT idemq.run_schedule_now('others')$$);
SELECT count(*) FROM idemq.jobs WHERE payload = '2' AND status = 'pending';

SELECT idemq.drop_queue('work', force => true);
DROP OWNED BY steering_admin, steering_worker, steering_other;
DROP ROLE steering_admin, steering_worker, steering_other;
