-- commit, try_commit: the end of an attempt, once, with its effect.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0) AS q \gset
CREATE TABLE effects (job bigint, note text);

-- A job that succeeds: the row afterwards.
SELECT id FROM idemq.enqueue('q', '{"n": 1}', headers => '{"trace": "t"}') \gset
SELECT token FROM idemq.claim('q', worker => 'w1') \gset
SELECT idemq.checkpoint(:id, :token, '{"step": 2}');
SELECT idemq.commit(:id, :token, '{"ok": true}');
SELECT status, attempt, token = :token AS same_token, ready_at, finished_at >= claimed_at AS finished,
	deadline > claimed_at AS has_deadline, worker, payload, headers, checkpoint, result, last_error
FROM idemq.job(:id);
SELECT count(*) AS attempts FROM idemq.attempts;

-- The same call again: its effect must not happen twice.
SELECT xmin AS version FROM idemq.jobs WHERE id = :id \gset
SELECT idemq.commit(:id, :token, '{"ok": false}');
SELECT idemq.try_commit(:id, :token, '{"ok": false}');
SELECT result, xmin = :'version' AS untouched FROM idemq.jobs WHERE id = :id;

-- A result is optional; a JSON null is a result.
SELECT id FROM idemq.enqueue('q', '2') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.commit(:id, :token);
SELECT status, result FROM idemq.job(:id);
SELECT id FROM idemq.enqueue('q', '3') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.try_commit(:id, :token, result => 'null');
SELECT status, result FROM idemq.job(:id);

-- Tokens that are not the job's, jobs that are not there.
SELECT id FROM idemq.enqueue('q', '4') \gset
SELECT id AS other FROM idemq.enqueue('q', '5') \gset
SELECT token FROM idemq.claim_job(:id) \gset
SELECT token AS other_token FROM idemq.claim_job(:other) \gset
SELECT idemq.commit(:id, :other_token);
SELECT idemq.commit(:other, :token);
SELECT idemq.commit(:id, :token + 1);
SELECT idemq.commit(:id, 0);
SELECT idemq.commit(:id, -1);
SELECT idemq.commit(:id, 9223372036854775807);
SELECT idemq.commit(0, :token);
SELECT idemq.commit(-1, :token);
SELECT idemq.commit(9223372036854775807, :token);
SELECT idemq.try_commit(:id, :other_token), idemq.try_commit(0, :token);
SELECT id = :id AS first, status, attempt, result FROM idemq.jobs WHERE id IN (:id, :other) ORDER BY id;
SELECT idemq.commit(:id, :token, '"mine"'), idemq.commit(:other, :other_token, '"other"');
SELECT result FROM idemq.jobs WHERE id IN (:id, :other) ORDER BY id;

-- Commit and effect share a transaction; a stale commit undoes the effect.
SELECT id FROM idemq.enqueue('q', '6') \gset
SELECT token AS old FROM idemq.claim('q') \gset
SELECT idemq.fail(:id, :old, 'cut off', '0');
SELECT token AS new FROM idemq.claim('q') \gset
BEGIN;
INSERT INTO effects VALUES (:id, 'by the old attempt');
SELECT idemq.commit(:id, :old);
COMMIT;
BEGIN;
SELECT idemq.commit(:id, :new);
INSERT INTO effects VALUES (:id, 'by the new attempt');
COMMIT;
-- The client did not see the answer to COMMIT, and runs all of it again.
BEGIN;
SELECT idemq.commit(:id, :new);
INSERT INTO effects VALUES (:id, 'by the new attempt, again');
COMMIT;
SELECT note FROM effects WHERE job = :id;
SELECT status, attempt, token = :new AS by_new FROM idemq.job(:id);
SELECT idemq.try_commit(:id, :old) AS old, idemq.try_commit(:id, :new) AS new;

-- After the deadline it is accepted, until the lease is reaped.
SELECT id FROM idemq.enqueue('q', '7') \gset
-- meant to expire
SELECT token FROM idemq.claim('q', lease => '1 ms') \gset
SELECT pg_sleep(0.005);
SELECT idemq.validate(:id, :token);
SELECT idemq.commit(:id, :token);
SELECT status, finished_at > deadline AS late FROM idemq.job(:id);
SELECT id FROM idemq.enqueue('q', '8') \gset
-- meant to expire
SELECT token FROM idemq.claim('q', lease => '1 ms') \gset
SELECT pg_sleep(0.005);
SELECT idemq.reap('q');
SELECT idemq.commit(:id, :token);
SELECT idemq.try_commit(:id, :token);
SELECT status, attempt, last_error FROM idemq.job(:id);

-- After a cancel it is stale; after drop_queue there is no such job.
SELECT idemq.cancel(:id);
SELECT idemq.commit(:id, :token);
SELECT idemq.create_queue('short');
SELECT id FROM idemq.enqueue('short', '1') \gset
SELECT token FROM idemq.claim('short') \gset
SELECT idemq.drop_queue('short', force => true);
SELECT idemq.commit(:id, :token);
SELECT idemq.try_commit(:id, :token);

-- A paused queue hands out nothing, but takes what is in flight.
SELECT id FROM idemq.enqueue('q', '9') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.pause('q');
SELECT idemq.commit(:id, :token);
SELECT idemq.resume('q');

-- retention '0': commit deletes the row of a job without a key.
SELECT idemq.create_queue('keep_none', retention => '0');
SELECT id FROM idemq.enqueue('keep_none', '1') \gset
SELECT token FROM idemq.claim('keep_none') \gset
SELECT idemq.commit(:id, :token, '"gone"');
SELECT count(*) FROM idemq.jobs WHERE id = :id;
SELECT idemq.commit(:id, :token, '"gone"');
SELECT idemq.try_commit(:id, :token), idemq.validate(:id, :token), idemq.heartbeat(:id, :token), idemq.fail(:id, :token);
-- With a key, the row stays for its window.
SELECT id FROM idemq.enqueue('keep_none', '2', key => 'k') \gset
SELECT token FROM idemq.claim('keep_none') \gset
SELECT idemq.commit(:id, :token, '"kept"');
SELECT idemq.commit(:id, :token, '"kept"');
SELECT id = :id AS same, outcome, status, result FROM idemq.enqueue('keep_none', '2', key => 'k');
-- Other ends of a job keep the row.
SELECT id FROM idemq.enqueue('keep_none', '3', max_attempts => 1) \gset
SELECT token FROM idemq.claim('keep_none') \gset
SELECT idemq.fail(:id, :token);
SELECT status FROM idemq.job(:id);
-- The setting counts at commit.
SELECT id FROM idemq.enqueue('q', '10') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.alter_queue('q', retention => '0');
SELECT idemq.commit(:id, :token);
SELECT count(*) FROM idemq.job(:id);
SELECT idemq.alter_queue('q', retention => '1 day');

-- The answers inside the committing transaction are those after it.
SELECT id FROM idemq.enqueue('q', '11') \gset
BEGIN;
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.commit(:id, :token, '"r"');
SELECT outcome, result FROM idemq.claim_job(:id);
SELECT idemq.try_commit(:id, :token), idemq.commit_once(:id), idemq.heartbeat(:id, :token),
	idemq.validate(:id, :token), idemq.fail(:id, :token), idemq.release(:id, :token), idemq.cancel(:id), idemq.retry(:id);
SELECT count(*) FROM idemq.claim('q');
COMMIT;
SELECT status, result FROM idemq.job(:id);

-- What the errors say.
CREATE FUNCTION error_of(sql text, OUT state text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE sql;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
END $$;
\x on
SELECT * FROM error_of(format('SELECT idemq.commit(%s, %s)', :id, :token));
SELECT * FROM error_of(format('SELECT idemq.commit(%s, %s)', :id, :token - 1));
SELECT * FROM error_of('SELECT idemq.commit(0, 0)');
\x off

-- Nothing but the jobs above was touched.
SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;
