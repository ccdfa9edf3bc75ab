-- Idempotency keys: the first job's answer, other payloads, policies, the window.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h');
SELECT idemq.create_queue('other');
CREATE VIEW row AS SELECT status, attempt, priority, payload, headers, result, key FROM idemq.jobs ORDER BY id;

-- The first is accepted, the next ones get its answer as it stands.
SELECT id FROM idemq.enqueue('q', '{"a": 1, "b": [1, 2]}', key => 'k1') \gset
SELECT id = :id AS same, outcome, status, result FROM idemq.enqueue('q', '{"a": 1, "b": [1, 2]}', key => 'k1');
-- Payloads are compared as jsonb: neither order nor spelling counts.
SELECT id = :id AS same, outcome, status, result FROM idemq.enqueue('q', '{ "b":[1,2.0], "a":1.00 }', key => 'k1');
SELECT token FROM idemq.claim('q') \gset
SELECT id = :id AS same, outcome, status, result FROM idemq.enqueue('q', '{"a": 1, "b": [1, 2]}', key => 'k1');
SELECT idemq.fail(:id, :token, retry_in => '0');
SELECT id = :id AS same, outcome, status, result FROM idemq.enqueue('q', '{"a": 1, "b": [1, 2]}', key => 'k1');
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.commit(:id, :token, '{"receipt": 7}');
SELECT id = :id AS same, outcome, status, result FROM idemq.enqueue('q', '{"a": 1, "b": [1, 2]}', key => 'k1');
-- The other settings of a duplicate are not looked at, and change nothing.
SELECT xmin AS version FROM idemq.jobs WHERE id = :id \gset
SELECT id = :id AS same, outcome FROM idemq.enqueue('q', '{"a": 1, "b": [1, 2]}', key => 'k1', priority => 0, delay => '1 h',
	max_attempts => 1, headers => '1', expires_in => '1 h');
SELECT xmin = :'version' AS untouched FROM idemq.jobs WHERE id = :id;
SELECT count(*) FROM idemq.jobs;
-- A key is per queue; no key is never a duplicate.
SELECT id > :id AS another, outcome FROM idemq.enqueue('other', '{"a": 1, "b": [1, 2]}', key => 'k1');
SELECT outcome FROM idemq.enqueue('q', '1');
SELECT outcome FROM idemq.enqueue('q', '1');
SELECT idemq.purge('q');
SELECT idemq.purge('other');

-- Another payload is IQ003, whatever became of the job.
SELECT id FROM idemq.enqueue('q', '{"n": 1}', key => 'k2') \gset
SELECT idemq.enqueue('q', '{"n": 2}', key => 'k2');
SELECT idemq.enqueue('q', 'null', key => 'k2', on_duplicate => 'keep');
SELECT idemq.enqueue('q', '{"n": 1, "m": null}', key => 'k2');
SELECT idemq.commit_once(:id, '"done"');
SELECT idemq.enqueue('q', '{"n": 2}', key => 'k2');
SELECT * FROM row;
CREATE FUNCTION error_of(sql text, OUT state text, OUT message text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE sql;
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
END $$;
-- The errors name the job, never the key or a payload: they go to the log.
\x on
SELECT e.* FROM error_of($$SELECT idemq.enqueue('q', '{"secret": 2}', key => 'k2')$$) e;
SELECT e.* FROM error_of($$SELECT idemq.enqueue('q', '{"n": 1}', key => 'k2', on_duplicate => 'error')$$) e;
\x off

-- ignore: keep, without a look at the payload.
SELECT id = :id AS same, outcome, status, result FROM idemq.enqueue('q', '{"n": 2}', key => 'k2', on_duplicate => 'ignore');
-- error: IQ004, also for the same payload.
SELECT idemq.enqueue('q', '{"n": 1}', key => 'k2', on_duplicate => 'error');
SELECT idemq.enqueue('q', '{"n": 2}', key => 'k2', on_duplicate => 'error');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k3', on_duplicate => 'error');
SELECT idemq.enqueue('q', '1', key => 'k3', on_duplicate => 'error');
SELECT idemq.enqueue('q', '1', key => 'k3', on_duplicate => 'Keep');
SELECT idemq.enqueue('q', '1', key => 'k3', on_duplicate => '');
SELECT idemq.enqueue('q', '1', key => 'k3', on_duplicate => NULL);
SELECT * FROM row;
SELECT idemq.purge('q');

-- replace: a job not yet claimed takes the new payload, time, priority and what else is given.
SELECT id FROM idemq.enqueue('q', '{"n": 1}', key => 'k4', headers => '{"h": 1}', max_attempts => 2) \gset
SELECT id = :id AS same, outcome, status, result FROM idemq.enqueue('q', '{"n": 2}', key => 'k4', priority => 1, delay => '1 h',
	on_duplicate => 'replace');
SELECT * FROM row;
SELECT ready_at > now() + '59 min' AS later, max_attempts, expires_at, enqueued_at < now() AS old FROM idemq.job(:id);
SELECT count(*) FROM idemq.claim('q');
SELECT outcome FROM idemq.enqueue('q', '{"n": 3}', key => 'k4', headers => '{"h": 3}', max_attempts => 4, expires_in => '1 h',
	on_duplicate => 'replace');
SELECT payload, headers, priority, max_attempts, expires_at > now() AS expires FROM idemq.job(:id);
SELECT id = :id AS same, payload, attempt, headers, max_attempts FROM idemq.claim('q', 10);
-- Claimed, it is kept, in each status.
SELECT token FROM idemq.job(:id) \gset
SELECT outcome, status FROM idemq.enqueue('q', '{"n": 4}', key => 'k4', priority => 9, on_duplicate => 'replace');
SELECT idemq.fail(:id, :token, retry_in => '1 h');
SELECT outcome, status FROM idemq.enqueue('q', '{"n": 4}', key => 'k4', priority => 9, on_duplicate => 'replace');
SELECT idemq.retry(:id);
SELECT outcome, status FROM idemq.enqueue('q', '{"n": 4}', key => 'k4', priority => 9, on_duplicate => 'replace');
SELECT idemq.commit_once(:id, '"r"');
SELECT outcome, status, result FROM idemq.enqueue('q', '{"n": 4}', key => 'k4', priority => 9, on_duplicate => 'replace');
SELECT * FROM row;
-- Without a key to replace, and for a first one.
SELECT outcome, status FROM idemq.enqueue('q', '1', key => 'k5', on_duplicate => 'replace');
SELECT outcome, status FROM idemq.enqueue('q', '1', on_duplicate => 'replace');
-- Brought forward, behind the scan start of an empty queue.
SELECT idemq.purge('q');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k6', delay => '1 h');
SELECT count(*) FROM idemq.claim('q');
SELECT outcome FROM idemq.enqueue('q', '2', key => 'k6', run_at => '2001-01-01', on_duplicate => 'replace');
SELECT payload FROM idemq.claim('q');
-- To another priority.
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k7', priority => 0);
SELECT outcome FROM idemq.enqueue('q', '1', priority => 5);
SELECT outcome FROM idemq.enqueue('q', '7', key => 'k7', priority => 9, on_duplicate => 'replace');
SELECT payload FROM idemq.claim('q', 10);
SELECT idemq.cancel(id) FROM idemq.jobs;
SELECT idemq.purge('q');

-- In one transaction, and in one statement.
BEGIN;
SELECT outcome, status FROM idemq.enqueue('q', '1', key => 'k8');
SELECT outcome, status FROM idemq.enqueue('q', '1', key => 'k8');
SAVEPOINT a;
SELECT idemq.enqueue('q', '2', key => 'k8');
ROLLBACK TO a;
SELECT outcome, status FROM idemq.enqueue('q', '2', key => 'k8', on_duplicate => 'replace');
SELECT outcome, payload FROM (SELECT idemq.commit(id, token, '"r"') AS outcome, payload FROM idemq.claim('q') OFFSET 0) s;
SELECT outcome, status, result FROM idemq.enqueue('q', '2', key => 'k8');
COMMIT;
SELECT count(DISTINCT e.id) AS ids, count(*) FILTER (WHERE e.outcome = 'accepted') AS accepted, count(*) AS answers
FROM generate_series(1, 10) g, LATERAL idemq.enqueue('q', '1', key => 'k9-' || g % 3) e;
-- A key that was rolled back is free.
BEGIN;
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k10');
ROLLBACK;
SELECT outcome FROM idemq.enqueue('q', '2', key => 'k10');

-- Keys: lengths in bytes, any characters, exactly compared.
SELECT outcome FROM idemq.enqueue('q', '1', key => repeat('x', 1024));
SELECT outcome FROM idemq.enqueue('q', '1', key => repeat('x', 1024));
SELECT idemq.enqueue('q', '1', key => repeat('x', 1025));
SELECT outcome FROM idemq.enqueue('q', '1', key => repeat('é', 512));
SELECT idemq.enqueue('q', '1', key => repeat('é', 513));
SELECT idemq.enqueue('q', '1', key => '');
SELECT string_agg(outcome::text, ' ') FROM unnest(ARRAY['A', 'a', ' a', 'a ', E'a\n', 'ä', U&'a\0308', '''"\%$1', 'NULL']) k, LATERAL idemq.enqueue('q', '1', key => k);
-- (incompressible, so that the index row is as long as it can be)
SELECT outcome FROM idemq.enqueue('q', '1', key => (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 32) i));

-- The window begins when the job finishes.  Inside it the key is held ...
SELECT idemq.purge('q');
SELECT id FROM idemq.enqueue('q', '1', key => 'w') \gset
SELECT idemq.commit_once(:id, '"first"');
SELECT outcome, result FROM idemq.enqueue('q', '1', key => 'w');
UPDATE idemq.jobs SET finished_at = now() - interval '1 day' + interval '1 min' WHERE id = :id;
SELECT outcome, result FROM idemq.enqueue('q', '1', key => 'w');
-- ... after it, it is free, also for another payload; the old job stays, without it.
UPDATE idemq.jobs SET finished_at = now() - interval '1 day' - interval '1 min' WHERE id = :id;
SELECT outcome, result, id > :id AS newer FROM idemq.enqueue('q', '2', key => 'w');
SELECT * FROM row;
SELECT outcome, status FROM idemq.enqueue('q', '2', key => 'w');
-- A job that is not finished holds its key however old it is.
UPDATE idemq.jobs SET enqueued_at = '2001-01-01', ready_at = '2001-01-01' WHERE key = 'w';
SELECT outcome, status FROM idemq.enqueue('q', '2', key => 'w');
-- Dead and cancelled ones are finished.
SELECT idemq.cancel(id) FROM idemq.jobs WHERE key = 'w';
SELECT outcome, status FROM idemq.enqueue('q', '2', key => 'w');
UPDATE idemq.jobs SET finished_at = now() - interval '2 days' WHERE key = 'w';
SELECT outcome, status FROM idemq.enqueue('q', '3', key => 'w', on_duplicate => 'error');
-- The setting that counts is the present one.
SELECT idemq.commit_once(id) FROM idemq.jobs WHERE key = 'w';
SELECT idemq.alter_queue('q', idempotency_window => '0');
SELECT outcome FROM idemq.enqueue('q', '4', key => 'w');
SELECT outcome FROM idemq.enqueue('q', '4', key => 'w');
SELECT payload, status, key FROM idemq.jobs ORDER BY id;

-- Window '0': the key is held while the job is unfinished, and no longer.  It warns.
SELECT idemq.create_queue('w0', idempotency_window => '0');
SELECT outcome FROM idemq.enqueue('w0', '1', key => 'k');
SELECT outcome FROM idemq.enqueue('w0', '1', key => 'k');
SELECT idemq.commit(id, token) FROM idemq.claim('w0');
SELECT outcome FROM idemq.enqueue('w0', '2', key => 'k');
SELECT outcome FROM idemq.enqueue('w0', '2', key => 'k');
SELECT count(*), count(key) FROM idemq.jobs WHERE queue_id = (SELECT queue_id FROM idemq.queues WHERE name = 'w0');
-- Freed, and given again, in one batch that names it twice.
SELECT idemq.commit(id, token) FROM idemq.claim('w0');
SELECT ord, outcome FROM idemq.enqueue_many('w0', ARRAY['3', '3', '4']::jsonb[], keys => ARRAY['k', 'k', 'l']) ORDER BY ord;

-- A purged job's key is free; so is one of a dropped queue.
SELECT idemq.purge('q');
SELECT outcome FROM idemq.enqueue('q', '5', key => 'w');
SELECT idemq.drop_queue('q', force => true);
SELECT idemq.create_queue('q') > 0 AS created;
SELECT outcome FROM idemq.enqueue('q', '6', key => 'w');
