-- dead_letter_queue: a dead job goes on as a job of another queue, in the transaction of its death.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SET TIME ZONE 'UTC';
SELECT idemq.create_queue('letters', max_attempts => 7, lease => '1 h') AS letters \gset
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 2, dead_letter_queue => 'letters') AS q \gset
SELECT name, dead_letter_queue FROM idemq.queues ORDER BY 1;

-- Payload, key, error and attempts; headers as headers too; priority, attempts and the rest are the dead-letter queue's.
SELECT id FROM idemq.enqueue('q', '{"order": [1.50, null, "ü"]}', key => 'order-1', priority => 0, headers => '{"traceparent": "00-01"}') \gset
SELECT idemq.fail(id, token, 'first', '0') FROM idemq.claim('q', worker => 'w1');
SELECT count(*) FROM idemq.jobs WHERE queue_id = :letters;
SELECT token, idemq.fail(id, token, 'second') AS outcome FROM idemq.claim('q', worker => 'w2') \gset
SELECT :'outcome' AS outcome;
SELECT status, last_error, attempt, key FROM idemq.job(:id);
\x on
SELECT status, priority, attempt, max_attempts, expires_at, key = format('@dead:%s:%s:%s', idemq.queue_id('q'), :id, :token) AS its_key, group_key, headers, checkpoint,
	payload - 'attempts' - 'id' - 'died_at' - 'enqueued_at' AS payload, (payload->>'id')::bigint = :id AS its_id,
	(payload->>'died_at')::timestamptz = (SELECT finished_at FROM idemq.job(:id)) AS died_at,
	(payload->>'enqueued_at')::timestamptz = (SELECT enqueued_at FROM idemq.job(:id)) AS enqueued_at
FROM idemq.jobs WHERE queue_id = :letters;
\x off
SELECT a.attempt, a.worker, a.outcome, a.error, a.claimed_at = h.claimed_at AS claimed_at, a.ended_at = h.ended_at AS ended_at
FROM idemq.jobs, ROWS FROM (jsonb_to_recordset(payload->'attempts') AS (attempt int, worker text, outcome text, error text, claimed_at timestamptz, ended_at timestamptz))
	WITH ORDINALITY AS a(attempt, worker, outcome, error, claimed_at, ended_at, ord) JOIN idemq.attempts h ON h.job_id = :id AND h.attempt = a.attempt WHERE jobs.queue_id = :letters ORDER BY ord;
SELECT payload->>'last_error' AS error, headers, idemq.commit(id, token) FROM idemq.claim('letters');
SELECT enqueued_total, claimed_total, dead_total FROM idemq.metrics WHERE queue = 'letters';

-- What there is not is null.
SELECT idemq.fail((j).id, (j).token, permanent => true) FROM (SELECT idemq.claim_job((idemq.enqueue('q', 'null')).id) AS j OFFSET 0) s;
SELECT payload - 'attempts' - 'id' - 'died_at' - 'enqueued_at' AS payload, jsonb_array_length(payload->'attempts') AS attempts, headers,
	payload->'attempts'->0->'worker' AS worker FROM idemq.claim('letters');

-- A reaped lease; each way to reap.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT count(idemq.enqueue('q', to_jsonb(n), max_attempts => 1)) FROM generate_series(1, 4) n;
SELECT count(*) FROM idemq.claim('q', 4, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.005);
SELECT outcome FROM idemq.claim_job((SELECT id FROM idemq.jobs WHERE payload = '2'));
SELECT payload->'payload' AS payload FROM idemq.claim('letters', 10);
SELECT idemq.reap('q');
SELECT payload->'payload' AS payload, payload->>'last_error' AS error, payload->'attempts'->0->>'outcome' AS outcome FROM idemq.claim('letters', 10) ORDER BY 1;
SELECT count(idemq.enqueue('q', to_jsonb(n), max_attempts => 1)) FROM generate_series(5, 6) n;
SELECT count(*) FROM idemq.claim('q', 2, lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.005);
-- One call: what dies in the first queue is claimed from the second.
SELECT queue, payload->'payload' AS payload FROM idemq.claim_any('{q,letters}', 10) ORDER BY 2;
-- A lease that memory does not know.
SELECT (idemq.enqueue('q', '7', max_attempts => 1)).outcome;
UPDATE idemq.jobs SET status = 'running', attempt = 1, token = 1, claimed_at = '2020-01-01', deadline = '2020-01-01' WHERE payload = '7';
SELECT idemq.reap('q');
SELECT status FROM idemq.jobs WHERE payload = '7';

-- fail_many.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(1, 200) n;
SELECT outcome, count(*) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens, array_agg('e' || (payload #>> '{}')) AS errors FROM idemq.claim('q', 200)) c,
	idemq.fail_many(ids, tokens, errors, permanent => true) GROUP BY 1;
SELECT count(*), count(DISTINCT payload->'id') AS ids, bool_and(payload->>'last_error' = 'e' || (payload->>'payload')) AS errors FROM idemq.claim('letters', 1000);

-- Details of failures go along, but no long ones.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT outcome FROM idemq.enqueue('q', '1');
SELECT idemq.fail(id, token, 'first', '0', details => to_jsonb(repeat('x', 20000))) FROM idemq.claim('q');
SELECT idemq.fail(id, token, 'last', details => '{"status": 502}') FROM idemq.claim('q');
SELECT a->>'error' AS error, a->'details' AS details FROM idemq.claim('letters'), jsonb_array_elements(payload->'attempts') a;

-- With the death it is undone, by savepoint and transaction.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT token FROM idemq.claim('q') \gset
BEGIN;
SAVEPOINT s;
SELECT idemq.fail(:id, :token, 'no', permanent => true);
SELECT count(*) FROM idemq.jobs WHERE queue_id = :letters;
ROLLBACK TO s;
SELECT count(*) FROM idemq.jobs WHERE queue_id = :letters;
SELECT idemq.validate(:id, :token);
SELECT idemq.fail(:id, :token, 'no', permanent => true);
ROLLBACK;
SELECT count(*) FROM idemq.claim('letters');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1;
SELECT idemq.fail(:id, :token, 'yes', permanent => true);
SELECT count(*) FROM idemq.jobs WHERE queue_id = :letters;
COMMIT;
SELECT idemq.fail(:id, :token, 'again', permanent => true);
SELECT payload->>'last_error' AS error, payload->'attempts'->0->>'error' AS last FROM idemq.claim('letters');

-- Only deaths: neither cancel, nor expiry, nor a failed attempt that is retried.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT idemq.cancel((idemq.enqueue('q', '1')).id);
SELECT (idemq.enqueue('q', '2', expires_in => '1 ms')).outcome, pg_sleep(0.005); -- meant to expire
SELECT (idemq.enqueue('q', '3')).outcome;
SELECT idemq.fail(id, token, retry_in => '1 h') FROM idemq.claim('q', 10);
SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;

-- retry and redrive: the dead job goes again, and its dead-letter record goes away, which is said; a second death makes a second record.
\set VERBOSITY terse
SELECT id FROM idemq.enqueue('q', '4') \gset
SELECT idemq.fail(id, token, 'one', permanent => true) FROM idemq.claim('q');
SELECT idemq.redrive('q');
SELECT idemq.fail(id, token, 'two', permanent => true) FROM idemq.claim('q');
SELECT idemq.retry(:id);
SELECT idemq.redrive('q'), idemq.redrive('letters');
SELECT replace(last_error, :'id', 'N') AS last_error, status, key, count(*) FROM idemq.jobs WHERE queue_id = :letters GROUP BY 1, 2, 3;
SELECT action, details - 'kind' AS details, jobs FROM idemq.audit WHERE action IN ('retry', 'redrive') ORDER BY id DESC LIMIT 3;
BEGIN;
SELECT idemq.fail(id, token, 'three', permanent => true) FROM idemq.claim('q');
SELECT * FROM idemq.retry_many(ARRAY[:id]) \gset gone_
SELECT status, count(*) FROM idemq.jobs WHERE queue_id = :letters GROUP BY 1;
ROLLBACK;
SELECT idemq.fail(id, token, 'three', permanent => true) FROM idemq.claim('q');
SELECT regexp_replace(idemq.why(id), '\d\d\d\d-.*?( and|,)', 'T\1') FROM idemq.jobs WHERE queue_id = :letters AND status = 'pending';
SELECT payload->>'last_error' AS error, jsonb_array_length(payload->'attempts') AS attempts FROM idemq.claim('letters', 10);
-- One that somebody is on stays, and one that is done.
BEGIN;
SELECT idemq.retry(:id);
SELECT status, count(*) FROM idemq.jobs WHERE queue_id = :letters AND status <> 'cancelled' GROUP BY 1;
ROLLBACK;
BEGIN;
SELECT count(idemq.commit(id, token)) FROM idemq.jobs WHERE queue_id = :letters AND status = 'running';
SELECT idemq.redrive('q');
SELECT status, count(*) FROM idemq.jobs WHERE queue_id = :letters AND status <> 'cancelled' GROUP BY 1;
ROLLBACK;
-- Of a dead-letter queue that is another by now the record stays.
SELECT idemq.create_queue('others') IS NOT NULL AS created;
BEGIN;
SELECT idemq.alter_queue('q', dead_letter_queue => 'others');
SELECT idemq.retry(:id);
ROLLBACK;
SELECT queue, is_dead_letter_queue FROM idemq.metrics WHERE queue IN ('q', 'letters', 'others') ORDER BY 1;
SELECT idemq.drop_queue('others');
\set VERBOSITY sqlstate

-- The key makes it once a death: one that is put back by hand dies again, and is there.
UPDATE idemq.jobs SET status = 'running', finished_at = NULL, ready_at = now(), deadline = now() + interval '1 h' WHERE id = :id;
SELECT idemq.fail(id, token, 'again', permanent => true) FROM idemq.job(:id);
SELECT count(*) FROM idemq.jobs WHERE queue_id = :letters;

-- The latest 100 attempts, of each error 10,000 characters; a payload that is above 64 MB as text is left out.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT id FROM idemq.enqueue('q', '1', max_attempts => 103) \gset
DO $$
DECLARE
	job record;
BEGIN
	FOR i IN 1 .. 103 LOOP
		SELECT * INTO job FROM idemq.claim('q');
		PERFORM idemq.fail(job.id, job.token, i || repeat('ü', 12000), '0');
	END LOOP;
END $$;
SELECT jsonb_array_length(payload->'attempts') AS attempts, payload->'attempts'->0->'attempt' AS first, payload->'attempts'->-1->'attempt' AS last,
	length(payload->>'last_error') AS last_error, length(payload->'attempts'->-1->>'error') AS error FROM idemq.claim('letters');
SELECT length(last_error) FROM idemq.job(:id);
TRUNCATE idemq.jobs, idemq.attempts;
SELECT id FROM idemq.enqueue('q', '1', headers => '{"a": 1}') \gset
UPDATE idemq.jobs SET payload = to_jsonb(repeat(chr(1), 11 * 1024 * 1024)) WHERE id = :id;
SELECT idemq.fail(id, token, 'big', permanent => true) FROM (SELECT id, token FROM idemq.claim('q')) c;
SELECT payload->'payload' AS payload, payload->'headers' AS in_payload, headers, payload->>'last_error' AS error FROM idemq.claim('letters');
-- Payload and headers of 36 MB each are above it together, and both are left out.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT id FROM idemq.enqueue('q', '1') \gset
UPDATE idemq.jobs SET payload = to_jsonb(repeat(chr(1), 6 * 1024 * 1024)), headers = jsonb_build_object('a', repeat(chr(1), 6 * 1024 * 1024)) WHERE id = :id;
SELECT idemq.fail(id, token, 'two', permanent => true) FROM (SELECT id, token FROM idemq.claim('q')) c;
SELECT payload->'payload' = 'null' AS no_payload, payload->'headers' = 'null' AS no_headers, length(headers->>'a') AS headers FROM idemq.claim('letters');

-- No role may give a job the key of a dead-letter record, a superuser included, whatever the queue.  Other keys that begin like it may be used.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT format('@dead:%s:%s:%s', idemq.queue_id('q'), :id, :token) AS record \gset
SELECT outcome FROM idemq.enqueue('letters', '1', key => :'record');
SELECT outcome FROM idemq.enqueue('letters', '1', key => :'record', on_duplicate => 'replace');
SELECT outcome FROM idemq.enqueue('letters', '1', key => :'record', nowait => true);
SELECT outcome FROM idemq.enqueue_many('letters', '{1,2}', keys => ARRAY['other', :'record']);
SELECT outcome FROM idemq.enqueue_graph(jsonb_build_array(jsonb_build_object('name', 'a', 'queue', 'letters', 'payload', 1, 'key', :'record')));
SELECT outcome FROM idemq.acquire('letters', :'record', '1');
SELECT outcome FROM idemq.enqueue('q', '1', key => '@dead:0:0:0');
SELECT key, outcome FROM unnest('{@dead:1:2,@dead:1:2:,@dead:1:2:3:4,@dead:1:2:3x,@dead:1::3,@dead::2:3,@dead:,@dead,x@dead:1:2:3,dead:q:1:2,@dead:-1:2:3}'::text[]) key,
	idemq.enqueue('letters', '1', key => key, delay => '1 h');
-- So the death leaves its record, and a retry takes that record away, and no job of a producer.
SELECT idemq.fail(:id, :token, permanent => true);
SELECT key = :'record' AS its_key, payload->>'queue' AS queue FROM idemq.jobs WHERE queue_id = :letters AND status = 'pending' AND ready_at <= now();
SELECT outcome FROM idemq.enqueue('letters', '1', key => :'record', on_duplicate => 'rerun');
SELECT idemq.retry(:id);
SELECT status, last_error ~ 'was retried' AS taken_back, count(*) FROM idemq.jobs WHERE queue_id = :letters GROUP BY 1, 2 ORDER BY 1;

-- A row that comes by COPY or a restore is not checked: the death leaves no second one (test/specs/dead-letter-queue.spec: a row that is not committed yet).
TRUNCATE idemq.jobs, idemq.attempts;
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT token FROM idemq.claim('q') \gset
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, key, payload)
	VALUES (:letters, now(), 4, 5, 'pending', now(), format('@dead:%s:%s:%s', idemq.queue_id('q'), :id, :token), '"restored"');
SELECT idemq.fail(:id, :token, permanent => true);
SELECT payload FROM idemq.claim('letters', 10);

-- By SQL, where the table is not simple; a trigger sees it.
TRUNCATE idemq.jobs, idemq.attempts;
ALTER TABLE idemq.jobs ADD CHECK (priority >= 0);
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT idemq.fail(id, token, 'sql', permanent => true) FROM idemq.claim('q');
SELECT payload->>'last_error' AS error FROM idemq.claim('letters');
ALTER TABLE idemq.jobs DROP CONSTRAINT jobs_priority_check;
SELECT * FROM idemq.check();

-- A paused dead-letter queue accepts.
SELECT idemq.pause('letters');
SELECT (idemq.enqueue('q', '2')).outcome;
SELECT idemq.fail(id, token, 'paused', permanent => true) FROM idemq.claim('q');
SELECT count(*) FROM idemq.claim('letters');
SELECT idemq.resume('letters');
SELECT payload->>'last_error' AS error FROM idemq.claim('letters');

-- The setting: another queue that exists, and none whose dead jobs would come back.
SELECT idemq.create_queue('self', dead_letter_queue => 'self');
SELECT idemq.create_queue('bad', dead_letter_queue => '');
SELECT idemq.create_queue('bad', dead_letter_queue => 'nope');
SELECT idemq.create_queue('bad', dead_letter_queue => repeat('x', 49));
SELECT idemq.alter_queue('q', dead_letter_queue => 'q');
SELECT idemq.alter_queue('q', dead_letter_queue => 'nope');
SELECT idemq.alter_queue('letters', dead_letter_queue => 'q');
SELECT idemq.create_queue('third', lease => '1 h') AS third \gset
SELECT idemq.alter_queue('letters', dead_letter_queue => 'third');
SELECT idemq.alter_queue('third', dead_letter_queue => 'q');
SELECT idemq.alter_queue('third', dead_letter_queue => 'letters');
SELECT name, dead_letter_queue FROM idemq.queues ORDER BY 1;
-- Nothing changes when another setting does.
SELECT idemq.alter_queue('q', lease => '2 h');
SELECT dead_letter_queue FROM idemq.queues WHERE name = 'q';
-- A dead job of the dead-letter queue goes on, with its own record.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT idemq.fail(id, token, 'in q', permanent => true) FROM idemq.claim('q');
SELECT idemq.fail(id, token, 'in letters', permanent => true) FROM idemq.claim('letters');
SELECT payload->>'queue' AS queue, payload->>'last_error' AS error, payload#>>'{payload,queue}' AS before, payload#>>'{payload,last_error}' AS error_before,
	payload#>'{payload,payload}' AS payload, idemq.fail(id, token, 'in third', permanent => true) FROM idemq.claim('third');
SELECT status, count(*) FROM idemq.jobs GROUP BY 1;
-- A circle made by hand ends after one round; so does a queue's own name.
UPDATE idemq.queues SET dead_letter_queue = 'q' WHERE name = 'third';
SELECT idemq.redrive('third');
\set VERBOSITY default
SELECT idemq.fail(id, token, 'round', permanent => true) FROM (SELECT * FROM idemq.claim('third')) c;
SELECT count(*) FROM idemq.jobs WHERE queue_id = :q;
UPDATE idemq.queues SET dead_letter_queue = 'third' WHERE name = 'third';
SELECT idemq.redrive('third');
SELECT status, idemq.cancel(id) FROM idemq.jobs WHERE queue_id = :third;
\set VERBOSITY sqlstate
SELECT idemq.alter_queue('third', dead_letter_queue => '');
SELECT idemq.alter_queue('third', dead_letter_queue => '');
SELECT idemq.alter_queue('letters', dead_letter_queue => '');
SELECT name, dead_letter_queue FROM idemq.queues ORDER BY 1;

-- drop_queue of a dead-letter queue is refused, unless force, which takes it away there.
TRUNCATE idemq.jobs, idemq.attempts;
SELECT idemq.create_queue('Other', dead_letter_queue => 'letters') > 0 AS made;
\set VERBOSITY default
SELECT idemq.drop_queue('letters');
\set VERBOSITY sqlstate
SELECT idemq.drop_queue('letters');
BEGIN;
SELECT idemq.drop_queue('letters', force => true);
SELECT name, dead_letter_queue FROM idemq.queues ORDER BY 1;
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT idemq.fail(id, token, 'nowhere', permanent => true) FROM idemq.claim('q');
ROLLBACK;
SELECT name, dead_letter_queue FROM idemq.queues ORDER BY 1;
SELECT idemq.drop_queue('Other');
-- Its own name, set by hand, is in nobody's way.
UPDATE idemq.queues SET dead_letter_queue = 'third' WHERE name = 'third';
SELECT idemq.drop_queue('third');

-- Gone all the same: the death stands, and says so.
DELETE FROM idemq.queues WHERE name = 'letters';
SELECT id FROM idemq.enqueue('q', '1') \gset
\set VERBOSITY default
SELECT idemq.fail((j).id, (j).token, 'no letters', permanent => true) FROM (SELECT idemq.claim_job(:id) AS j OFFSET 0) s;
SELECT id FROM idemq.enqueue('q', '2', max_attempts => 1) AS two \gset
SELECT count(*) FROM idemq.claim('q', lease => '1 ms'); -- meant to expire
SELECT pg_sleep(0.005);
SELECT idemq.reap('q');
\set VERBOSITY sqlstate
SELECT payload, status, last_error FROM idemq.jobs WHERE queue_id = :q ORDER BY id;
SELECT severity, detail FROM idemq.check() WHERE invariant = 'queues.dead_letter_queue';
SELECT idemq.redrive('q');
-- A circle through a name that was gone is seen when the queue comes again.
SELECT idemq.create_queue('letters', dead_letter_queue => 'q');
SELECT idemq.create_queue('letters') > 0 AS made;
SELECT idemq.fail(id, token, 'there again', permanent => true) FROM idemq.claim('q');
SELECT payload->>'last_error' AS error FROM idemq.claim('letters', 10);
SELECT * FROM idemq.check() WHERE severity = 'error';

-- Who sets it may enqueue to it or administer it; who fails a job need not.
CREATE ROLE regress_dead_admin;
CREATE ROLE regress_dead_worker;
SELECT idemq.grant_queue('q', 'regress_dead_admin', 'admin'), idemq.grant_queue('letters', 'regress_dead_admin', 'claim'),
	idemq.grant_queue('q', 'regress_dead_worker', 'claim');
SET ROLE regress_dead_admin;
SELECT idemq.alter_queue('q', dead_letter_queue => 'letters');
RESET ROLE;
SELECT idemq.grant_queue('letters', 'regress_dead_admin', 'enqueue');
SET ROLE regress_dead_admin;
SELECT idemq.alter_queue('q', dead_letter_queue => 'letters');
RESET ROLE;
SELECT idemq.revoke_queue('letters', 'regress_dead_admin', 'enqueue'), idemq.grant_queue('letters', 'regress_dead_admin', 'admin');
SET ROLE regress_dead_admin;
SELECT idemq.alter_queue('q', dead_letter_queue => 'letters');
RESET ROLE;
SELECT (idemq.enqueue('q', '3')).outcome;
SET ROLE regress_dead_worker;
SELECT idemq.enqueue('letters', '1');
SELECT idemq.fail(id, token, 'by a worker', permanent => true) FROM idemq.claim('q', 10);
SELECT count(*) FROM idemq.jobs WHERE queue_id <> :q;
RESET ROLE;
SELECT payload->>'last_error' AS error FROM idemq.claim('letters', 10);

-- The role that set it is asked at each death, whoever fails the job: what was revoked ends at once.
\set VERBOSITY default
SELECT dead_letter_role, dead_letter_role_oid = 'regress_dead_admin'::regrole AS its_oid FROM idemq.queues WHERE name = 'q';
CREATE FUNCTION die(note text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	PERFORM idemq.enqueue('q', '4');
	SELECT * INTO job FROM idemq.claim('q');
	RETURN idemq.fail(job.id, job.token, note, permanent => true) || ', ' || (SELECT count(*) FROM idemq.claim('letters', 10));
END $$;
SET client_min_messages = error;
SELECT idemq.revoke_queue('letters', 'regress_dead_admin', 'admin');
SELECT die('revoked');
SELECT severity, invariant, detail FROM idemq.check() WHERE detail ~ 'dead';
SELECT idemq.grant_queue('letters', 'regress_dead_admin', 'enqueue');
SELECT die('granted again');
SELECT severity, invariant, detail FROM idemq.check() WHERE detail ~ 'dead';
RESET client_min_messages;
BEGIN;
SELECT idemq.revoke_queue('letters', 'regress_dead_admin', 'enqueue');
ROLLBACK;
SELECT status, last_error FROM idemq.jobs WHERE queue_id = :q ORDER BY id DESC LIMIT 1;
-- What still has the privilege by another grant does not end, and is not named.
SELECT idemq.grant_queue('letters', 'regress_dead_admin', 'admin'), idemq.revoke_queue('letters', 'regress_dead_admin', 'enqueue');
SELECT die('still an administrator');
-- A setting of one's own replaces the role's.
SELECT idemq.revoke_queue('letters', 'regress_dead_admin', 'admin');
SELECT idemq.alter_queue('q', max_attempts => 2);
SELECT dead_letter_role FROM idemq.queues WHERE name = 'q';
SELECT idemq.alter_queue('q', dead_letter_queue => 'letters');
SELECT dead_letter_role = current_user AS mine FROM idemq.queues WHERE name = 'q';
SELECT die('by its owner');
-- A role that was dropped may nothing, nor the next one of its name.
CREATE ROLE regress_dead_gone;
SELECT idemq.grant_queue('q', 'regress_dead_gone', 'admin'), idemq.grant_queue('letters', 'regress_dead_gone', 'enqueue');
SET ROLE regress_dead_gone;
SELECT idemq.alter_queue('q', dead_letter_queue => 'letters');
RESET ROLE;
SELECT die('its role is there');
SELECT idemq.revoke_queue('q', 'regress_dead_gone', 'admin');
REVOKE ALL ON SCHEMA idemq FROM regress_dead_gone;
DROP ROLE regress_dead_gone;
CREATE ROLE regress_dead_gone;
SET client_min_messages = error;
SELECT die('another one');
SELECT idemq.grant_queue('letters', 'regress_dead_gone', 'enqueue');
SELECT die('which may enqueue');
SELECT idemq.alter_queue('q', max_attempts => 3);
SELECT die('nor with other settings');
RESET client_min_messages;
-- Nor is a record taken back for a role that may not enqueue there any more.
SELECT idemq.grant_queue('q', 'regress_dead_gone', 'admin');
SET ROLE regress_dead_gone;
SELECT idemq.alter_queue('q', dead_letter_queue => '');
SELECT idemq.alter_queue('q', dead_letter_queue => 'letters');
RESET ROLE;
SELECT outcome FROM idemq.enqueue('q', '5');
SELECT idemq.fail(id, token, 'its record stays', permanent => true) FROM idemq.claim('q');
SELECT idemq.revoke_queue('letters', 'regress_dead_gone', 'enqueue');
SET client_min_messages = notice;
SELECT idemq.redrive('q', ids => ARRAY[max(id)]) FROM idemq.jobs WHERE queue_id = :q AND status = 'dead';
SELECT status, last_error FROM idemq.jobs WHERE queue_id = idemq.queue_id('letters') ORDER BY id DESC LIMIT 1;
SELECT idemq.alter_queue('q', dead_letter_queue => '');
SELECT dead_letter_queue, dead_letter_role, dead_letter_role_oid FROM idemq.queues WHERE name = 'q';
DROP FUNCTION die;
DROP EXTENSION idemq;
DROP ROLE regress_dead_admin, regress_dead_worker, regress_dead_gone;
