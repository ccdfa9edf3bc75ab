-- What a DBA does to idemq.jobs by hand: rows made, changed and removed by SQL,
-- and what may be added to the table: triggers, foreign keys, columns, indexes,
-- constraints.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h') AS q \gset
SELECT idemq.create_queue('p', lease => '1 h') AS p \gset
-- The scan start stands at the end of the index.
SELECT count(*) FROM idemq.claim('q');

-- INSERT, COPY, UPDATE and DELETE are seen by the next claim, also behind the scan start.
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	VALUES (:q, now(), 4, 3, 'pending', '2001-01-01', '"inserted"');
SELECT payload, attempt, max_attempts FROM idemq.claim('q');
COPY idemq.jobs (id, queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload) FROM STDIN;
1001	1	2001-01-01	4	3	pending	2001-01-01	"copied 1"
1002	1	2001-01-01	4	3	pending	2001-01-01	"copied 2"
1003	1	2001-01-01	4	3	pending	2001-01-01	"copied 3"
\.
SELECT payload, attempt FROM idemq.claim('q', 10);
SELECT (idemq.enqueue('q', '"delayed"', delay => '1 h')).id \gset
SELECT count(*) FROM idemq.claim('q');
UPDATE idemq.jobs SET ready_at = '2001-01-01' WHERE id = :id;
SELECT payload FROM idemq.claim('q');
SELECT (idemq.enqueue('q', '"moved"', priority => 9, delay => '1 h')).id \gset
SELECT count(*) FROM idemq.claim('p');
UPDATE idemq.jobs SET queue_id = :p, priority = 0, ready_at = now() WHERE id = :id;
SELECT count(*) FROM idemq.claim('q');
SELECT payload FROM idemq.claim('p');
SELECT (idemq.enqueue('q', '"removed"')).id \gset
DELETE FROM idemq.jobs WHERE id = :id;
SELECT count(*) FROM idemq.claim('q');
SELECT (idemq.enqueue('q', '"renumbered"')).id \gset
UPDATE idemq.jobs SET id = 5000 WHERE id = :id;
SELECT id, payload FROM idemq.claim('q');
-- As a replica, as logical replication and pg_restore --disable-triggers write.
SET session_replication_role = replica;
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	VALUES (:q, now(), 4, 3, 'pending', '2001-01-01', '"replicated"');
SELECT payload FROM idemq.claim('q');
SELECT (idemq.enqueue('q', '"by a replica"', key => 'replica')).outcome;
SELECT payload, idemq.commit(id, token) FROM idemq.claim('q');
RESET session_replication_role;
ALTER TABLE idemq.jobs DISABLE TRIGGER ALL;
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	VALUES (:q, now(), 4, 3, 'pending', '2001-01-01', '"unnoticed"');
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_truncated;
-- (The net below the triggers: a queue that looks empty is looked through once a second.)
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		EXIT WHEN EXISTS (SELECT FROM idemq.claim('q'));
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT status, attempt FROM idemq.jobs WHERE payload = '"unnoticed"';
-- Times that no function would take.
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, expires_at, payload)
	VALUES (:q, '-infinity', 4, 3, 'pending', '-infinity', 'infinity', '"from eternity"'), (:q, 'infinity', 0, 3, 'pending', 'infinity', NULL, '"to eternity"');
SELECT payload, enqueued_at FROM idemq.claim('q', 10);
SELECT outcome, retry_after FROM idemq.jobs j, idemq.claim_job(j.id) WHERE j.payload = '"to eternity"';
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	VALUES (:q, now(), 4, 3, 'pending', NULL, '"nowhere"'), (:q, now(), 50, 3, 'pending', now(), '"too low"'), (:q, now(), -1, 3, 'pending', now(), '"too high"');
SELECT payload FROM idemq.claim('q', 10);
SELECT j.payload, outcome FROM idemq.jobs j, LATERAL idemq.claim_job(j.id) WHERE j.status = 'pending' ORDER BY j.id;
-- Undone, they are not.
BEGIN;
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	VALUES (:q, now(), 4, 3, 'pending', '2001-01-01', '"undone"');
ROLLBACK;
SELECT count(*) FROM idemq.claim('q');
-- A finished job made pending again.
SELECT (idemq.enqueue('q', '"again"')).id \gset
SELECT idemq.commit(id, token) FROM idemq.claim('q');
UPDATE idemq.jobs SET status = 'pending', finished_at = NULL, ready_at = now() WHERE id = :id;
SELECT payload, attempt FROM idemq.claim('q');

-- A running job that a DBA takes from its worker: the token is stale and the lease gone.
SELECT (idemq.enqueue('q', '"cancelled"')).id \gset
SELECT token FROM idemq.claim('q') \gset
UPDATE idemq.jobs SET status = 'cancelled', ready_at = NULL, finished_at = now() WHERE id = :id;
SELECT idemq.heartbeat(:id, :token), idemq.validate(:id, :token), idemq.try_commit(:id, :token);
SELECT idemq.commit(:id, :token);
SELECT outcome FROM idemq.claim_job(:id);
SELECT (idemq.enqueue('q', '"reset"')).id \gset
SELECT token FROM idemq.claim('q') \gset
UPDATE idemq.jobs SET status = 'pending' WHERE id = :id;
SELECT idemq.heartbeat(:id, :token), idemq.try_commit(:id, :token);
SELECT payload, attempt, token > :token AS grew FROM idemq.claim('q');
SELECT (idemq.enqueue('q', '"fenced off"')).id \gset
SELECT token FROM idemq.claim('q') \gset
UPDATE idemq.jobs SET token = token + 1000000 WHERE id = :id;
SELECT idemq.heartbeat(:id, :token), idemq.try_commit(:id, :token), idemq.try_commit(:id, :token + 1000000);
SELECT (idemq.enqueue('q', '"deleted"')).id \gset
SELECT token FROM idemq.claim('q') \gset
DELETE FROM idemq.jobs WHERE id = :id;
SELECT idemq.heartbeat(:id, :token), idemq.try_commit(:id, :token);
-- Undone, the worker has it still.
SELECT (idemq.enqueue('q', '"kept"')).id \gset
SELECT token FROM idemq.claim('q') \gset
BEGIN;
UPDATE idemq.jobs SET status = 'cancelled', ready_at = NULL, finished_at = now() WHERE id = :id;
ROLLBACK;
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.heartbeat(:id, :token), idemq.commit(:id, :token);
-- Other columns of a running job may change under its worker.
SELECT (idemq.enqueue('q', '"edited"')).id \gset
SELECT token FROM idemq.claim('q') \gset
UPDATE idemq.jobs SET payload = '"by hand"', worker = 'dba', priority = 0, max_attempts = 1 WHERE id = :id;
SELECT idemq.heartbeat(:id, :token), idemq.fail(:id, :token, 'last now');
SELECT status, payload, worker FROM idemq.job(:id);
-- One made completed without a time of it, which is asked to run again: its end is noted as now.
SELECT (idemq.enqueue('q', '"untimed"', key => 'untimed')).id \gset
UPDATE idemq.jobs SET status = 'completed', ready_at = NULL WHERE id = :id;
SELECT status FROM idemq.enqueue('q', '"again"', key => 'untimed', on_duplicate => 'rerun');
SELECT outcome, ended_at > now() - interval '1 h' AS now FROM idemq.attempts WHERE job_id = :id;
SELECT payload FROM idemq.claim('q');
-- TRUNCATE: no lease is left for the jobs that get the old ids.
TRUNCATE idemq.jobs RESTART IDENTITY;
SELECT count(idemq.enqueue('q', '1')) FROM generate_series(1, 3);
SELECT id, token FROM idemq.claim('q') \gset
BEGIN;
TRUNCATE idemq.jobs;
ROLLBACK;
SELECT idemq.heartbeat(:id, :token);
SELECT count(*) FROM idemq.claim('q', 10);
TRUNCATE idemq.jobs RESTART IDENTITY;
SELECT idemq.heartbeat(:id, :token), idemq.try_commit(:id, :token);
SELECT count(idemq.enqueue('q', '1')) FROM generate_series(1, 3);
SELECT count(*) FROM idemq.claim('q', 10);
-- A row of a running job that nobody of this server has claimed: restored, replicated.
DELETE FROM idemq.jobs;
SELECT idemq.reap(), idemq.reap('q');
INSERT INTO idemq.jobs (id, queue_id, enqueued_at, priority, max_attempts, status, attempt, token, ready_at, claimed_at, deadline, payload)
	VALUES (101, :q, now(), 4, 3, 'running', 1, 17, now() - interval '2 h', now() - interval '1 h', now() - interval '1 h' + interval '1 ms', '"over"'), -- meant to expire
		(102, :q, now(), 4, 3, 'running', 1, 17, now() - interval '2 h', now() - interval '1 min', now() + interval '1 h', '"running"'),
		(103, :q, now(), 4, 3, 'running', 1, 17, now() - interval '2 h', now() - interval '1 min', now() + interval '1 h', '"committed"');
SELECT idemq.commit(103, 17);
-- (A claim looks for them a stretch at a time; idemq.reap for all at once.)
DO $$
BEGIN
	FOR i IN 1 .. 500 LOOP
		EXIT WHEN EXISTS (SELECT FROM idemq.claim('q'));
		PERFORM pg_sleep(0.01);
	END LOOP;
END $$;
SELECT payload, status, attempt, token > 17 AS grew FROM idemq.jobs ORDER BY id;
SELECT idemq.heartbeat(102, 17), idemq.try_commit(101, 17), idemq.reap('q');
SELECT idemq.commit(102, 17);
INSERT INTO idemq.jobs (id, queue_id, enqueued_at, priority, max_attempts, status, attempt, token, ready_at, claimed_at, deadline, payload)
	SELECT 200 + n, :q, now(), 9, 1, 'running', 1, 17, now() - interval '2 h', now() - interval '1 h', now() - interval '1 h' + interval '1 ms', '"over, the last"' FROM generate_series(1, 3000) n; -- meant to expire
SELECT idemq.reap('q');
SELECT payload, status, attempt, count(*) FROM idemq.jobs GROUP BY 1, 2, 3 ORDER BY 1;
DELETE FROM idemq.jobs;

-- Settings and grants changed by hand count at once; nonsense does no harm.
UPDATE idemq.queues SET lease = '3 h', name = 'renamed' WHERE name = 'p';
SELECT (idemq.enqueue('renamed', '1')).outcome;
SELECT round(extract(epoch FROM deadline - now()) / 60) FROM idemq.claim('renamed');
SELECT idemq.enqueue('p', '1');
UPDATE idemq.queues SET name = 'p', lease = '-1 s', max_attempts = 0, retry_base = '-1 s', retry_factor = 'NaN', retry_max = '-1 s', retry_jitter = 'Infinity',
	retention = '-1 s', idempotency_window = '-1 s' WHERE name = 'renamed';
SELECT (idemq.enqueue('p', '2', key => 'k')).outcome;
SELECT payload, attempt, idemq.fail(id, token, 'x') FROM idemq.claim('p', lease => '1 h');
SELECT (idemq.enqueue('p', '2', key => 'k', max_attempts => 9)).outcome;
SELECT payload, idemq.fail(id, token, 'x') FROM idemq.claim('p', lease => '1 h');
SELECT count(idemq.retry(id)) FROM idemq.jobs WHERE status = 'retrying';
SELECT payload, idemq.commit(id, token) FROM idemq.claim('p', lease => '1 h');
INSERT INTO idemq_internal.queue_grants VALUES (:p, 'pg_monitor', 'claim'), (:p, 'no_such_role', 'admin');
SET ROLE pg_monitor;
SELECT count(*) FROM idemq.claim('p', lease => '1 h');
RESET ROLE;
DELETE FROM idemq_internal.queue_grants;
SET ROLE pg_monitor;
SELECT count(*) FROM idemq.claim('p', lease => '1 h');
RESET ROLE;
UPDATE idemq.queues SET lease = '1 h', max_attempts = 20, retry_base = '1 min', retry_factor = 2, retry_max = '1 h', retry_jitter = 0, retention = '1 day',
	idempotency_window = '1 day' WHERE name = 'p';
-- A queue deleted by hand: its jobs are there, and nobody's.
SELECT idemq.create_queue('orphaned') AS orphaned \gset
SELECT (idemq.enqueue('orphaned', '1')).id \gset
SELECT token FROM idemq.claim('orphaned') \gset
DELETE FROM idemq.queues WHERE name = 'orphaned';
SELECT idemq.try_commit(:id, :token), idemq.heartbeat(:id, :token), idemq.cancel(:id);
SELECT count(*) FROM idemq.job(:id);
DELETE FROM idemq.jobs;

-- Row triggers fire for every way in which a job changes, with the right OLD and NEW.
CREATE TABLE log (n serial, entry text);
CREATE FUNCTION log_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.log (entry) VALUES (concat_ws(' ', TG_ARGV[0], TG_WHEN, TG_OP,
		CASE WHEN TG_OP <> 'INSERT' THEN OLD.status || '/' || OLD.attempt || '/' || (OLD.token > 0) END, '->',
		CASE WHEN TG_OP <> 'DELETE' THEN NEW.status || '/' || NEW.attempt || '/' || (NEW.token > 0) || coalesce('/' || (NEW.result #>> '{}'), '') END));
	RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END $$;
CREATE TRIGGER a_before BEFORE INSERT OR UPDATE OR DELETE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION log_row('row');
CREATE TRIGGER a_after AFTER INSERT OR UPDATE OR DELETE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION log_row('row');
CREATE TRIGGER b_status AFTER UPDATE OF status ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION log_row('status');
CREATE TRIGGER b_payload AFTER UPDATE OF payload, id ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION log_row('payload');
CREATE TRIGGER b_completed AFTER UPDATE ON idemq.jobs FOR EACH ROW WHEN (OLD.status = 'running' AND NEW.status = 'completed') EXECUTE FUNCTION log_row('completed');
CREATE FUNCTION logged(OUT entry text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY SELECT l.entry FROM log l ORDER BY n;
	TRUNCATE log;
END $$;
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT * FROM logged();
BEGIN;
SELECT token FROM idemq.claim('q') \gset
SELECT * FROM logged();
SELECT idemq.checkpoint(:id, :token, '1');
SELECT * FROM logged();
COMMIT;
SELECT idemq.commit(:id, :token, '"done"');
SELECT * FROM logged();
SELECT (idemq.enqueue('q', '2', key => 'k')).id \gset
SELECT outcome FROM idemq.enqueue('q', '3', key => 'k', on_duplicate => 'replace');
SELECT * FROM logged();
DROP TRIGGER a_before ON idemq.jobs;
DROP TRIGGER b_status ON idemq.jobs;
SELECT idemq.fail(id, token, 'x', '0') FROM idemq.claim('q');
SELECT idemq.release(id, token) FROM idemq.claim('q');
-- meant to expire
SELECT token FROM idemq.claim('q', lease => '1 ms') \gset
SELECT pg_sleep(0.02);
SELECT idemq.reap('q');
SELECT idemq.cancel(:id), idemq.retry(:id), idemq.commit_once(:id, '"once"');
SELECT * FROM logged();
SELECT count(*) FROM idemq.enqueue_many('q', '{1,2}');
WITH c AS MATERIALIZED (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.claim('q', 2))
SELECT outcome FROM c, idemq.commit_many(ids, tokens);
SELECT idemq.alter_queue('q', retention => '0');
SELECT (idemq.enqueue('q', '4')).id \gset
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT idemq.alter_queue('q', retention => '1 day');
SELECT * FROM logged();
DROP TRIGGER a_after ON idemq.jobs;
DROP TRIGGER b_payload ON idemq.jobs;
DROP TRIGGER b_completed ON idemq.jobs;
-- A deferred one fires at the end of the transaction.
CREATE CONSTRAINT TRIGGER c_deferred AFTER INSERT OR UPDATE ON idemq.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION log_row('deferred');
BEGIN;
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT token FROM idemq.claim_job(:id) \gset
SELECT idemq.commit(:id, :token, '"deferred"');
SELECT * FROM logged();
COMMIT;
SELECT * FROM logged();
DROP TRIGGER c_deferred ON idemq.jobs;
DELETE FROM idemq.jobs;
-- Statement triggers, and transition tables.
CREATE FUNCTION log_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.log (entry) VALUES (concat_ws(' ', TG_WHEN, TG_OP, TG_LEVEL));
	RETURN NULL;
END $$;
CREATE FUNCTION log_tables() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.log (entry) SELECT concat_ws(' ', TG_WHEN, TG_OP, 'of', o.status, '->', n.status) FROM o JOIN n USING (id);
	RETURN NULL;
END $$;
CREATE TRIGGER s_before BEFORE INSERT OR UPDATE OR DELETE ON idemq.jobs FOR EACH STATEMENT EXECUTE FUNCTION log_statement();
CREATE TRIGGER s_after AFTER INSERT OR UPDATE OR DELETE ON idemq.jobs FOR EACH STATEMENT EXECUTE FUNCTION log_statement();
CREATE TRIGGER s_tables AFTER UPDATE ON idemq.jobs REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION log_tables();
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.commit(:id, :token);
SELECT * FROM logged();
DROP TRIGGER s_before ON idemq.jobs;
DROP TRIGGER s_after ON idemq.jobs;
DROP TRIGGER s_tables ON idemq.jobs;

-- A BEFORE trigger may change the row ...
CREATE FUNCTION change_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.worker := upper(NEW.worker);
	NEW.headers := coalesce(NEW.headers, '{}') || jsonb_build_object('seen', TG_OP);
	RETURN NEW;
END $$;
CREATE TRIGGER change BEFORE INSERT OR UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION change_row();
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT headers FROM idemq.job(:id);
SELECT token FROM idemq.claim('q', worker => 'w') \gset
SELECT worker, headers FROM idemq.job(:id);
SELECT idemq.commit(:id, :token);
DROP TRIGGER change ON idemq.jobs;
-- ... and refuse a change with an error ...
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (NEW.status = 'completed') EXECUTE FUNCTION refuse();
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.commit(:id, :token);
SELECT idemq.validate(:id, :token), status FROM idemq.job(:id);
DROP TRIGGER refuse ON idemq.jobs;
SELECT idemq.commit(:id, :token);
-- ... but when it skips the row, no call answers as if it were written.
CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER skip BEFORE INSERT OR UPDATE OR DELETE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION skip();
SET statement_timeout = '1 min';
SELECT idemq.enqueue('q', '1');
SELECT idemq.enqueue('q', '1', key => 'skipped');
SELECT * FROM idemq.enqueue_many('q', '{1}');
ALTER TABLE idemq.jobs DISABLE TRIGGER skip;
SELECT count(idemq.enqueue('q', '1')) FROM generate_series(1, 2);
SELECT id, token FROM idemq.claim('q') \gset
ALTER TABLE idemq.jobs ENABLE TRIGGER skip;
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.commit(:id, :token);
SELECT idemq.try_commit(:id, :token);
SELECT idemq.fail(:id, :token);
SELECT idemq.cancel(:id);
SELECT idemq.alter_queue('q', retention => '0');
SELECT idemq.commit(:id, :token);
SELECT idemq.alter_queue('q', retention => '1 day');
RESET statement_timeout;
DROP TRIGGER skip ON idemq.jobs;
SELECT idemq.validate(:id, :token), idemq.commit(:id, :token);
SELECT idemq.commit(id, token) FROM idemq.claim('q', 10);
-- A trigger that calls idemq about the same row is refused.
CREATE FUNCTION call_back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM idemq.cancel(NEW.id); RETURN NEW; END $$;
CREATE TRIGGER call_back BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (NEW.status = 'running') EXECUTE FUNCTION call_back();
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT count(*) FROM idemq.claim('q');
DROP TRIGGER call_back ON idemq.jobs;
SELECT idemq.commit(id, token) FROM idemq.claim('q', 10);
-- One that enqueues a follow-up is fine.
CREATE FUNCTION follow_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM idemq.enqueue('p', to_jsonb(NEW.id), key => 'after-' || NEW.id); RETURN NULL; END $$;
CREATE TRIGGER follow_up AFTER UPDATE ON idemq.jobs FOR EACH ROW WHEN (NEW.status = 'completed') EXECUTE FUNCTION follow_up();
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT idemq.commit(id, token) FROM idemq.claim('q');
DROP TRIGGER follow_up ON idemq.jobs;
SELECT payload = to_jsonb(:id::bigint) AS of_that_job, idemq.commit(id, token) FROM idemq.claim('p');

-- A user's foreign key to a job.
DELETE FROM idemq.jobs;
CREATE TABLE results (job bigint REFERENCES idemq.jobs (id), note text);
SELECT (idemq.enqueue('q', '1')).id \gset
INSERT INTO results VALUES (:id, 'first');
SELECT token FROM idemq.claim('q') \gset
BEGIN;
INSERT INTO results VALUES (:id, 'in the same transaction');
SELECT idemq.commit(:id, :token);
COMMIT;
SELECT status FROM idemq.job(:id);
SELECT idemq.purge('q');
SELECT idemq.alter_queue('q', retention => '0');
SELECT (idemq.enqueue('q', '2')).id AS other \gset
SELECT token FROM idemq.claim('q') \gset
INSERT INTO results VALUES (:other, 'kept by the row');
SELECT idemq.commit(:other, :token);
SELECT idemq.validate(:other, :token);
ALTER TABLE results DROP CONSTRAINT results_job_fkey, ADD FOREIGN KEY (job) REFERENCES idemq.jobs ON DELETE CASCADE;
SELECT idemq.commit(:other, :token);
SELECT note FROM results;
SELECT idemq.purge('q');
SELECT count(*) FROM results;
-- A deferred one, with a commit that deletes the row.
ALTER TABLE results DROP CONSTRAINT results_job_fkey, ADD FOREIGN KEY (job) REFERENCES idemq.jobs DEFERRABLE INITIALLY DEFERRED;
SELECT (idemq.enqueue('q', '3')).id \gset
INSERT INTO results VALUES (:id, 'deferred');
BEGIN;
SELECT idemq.commit(id, token) FROM idemq.claim('q');
DELETE FROM results;
COMMIT;
SELECT count(*) FROM idemq.job(:id);
DROP TABLE results;
SELECT idemq.alter_queue('q', retention => '1 day');

-- Columns: one with a default, one generated, one dropped again.
ALTER TABLE idemq.jobs ADD COLUMN tenant text DEFAULT 'nobody', ADD COLUMN n int GENERATED ALWAYS AS ((payload ->> 'n')::int) STORED;
ALTER TABLE idemq.jobs ADD COLUMN gone int DEFAULT 1;
ALTER TABLE idemq.jobs DROP COLUMN gone;
SELECT (idemq.enqueue('q', '{"n": 7}')).id \gset
SELECT (idemq.enqueue('q', '{"n": 8}', key => 'n8')).id AS other \gset
SELECT count(*) FROM idemq.enqueue_many('q', '{"{\"n\": 9}"}');
UPDATE idemq.jobs SET tenant = 'somebody' WHERE id = :other;
CREATE TABLE held AS SELECT id, token FROM idemq.claim('q', 3);
SELECT payload, tenant, n, status FROM idemq.jobs ORDER BY id;
SELECT idemq.commit(id, token, '1') FROM held ORDER BY id LIMIT 1;
SELECT idemq.fail(id, token, 'x', '0') FROM held ORDER BY id OFFSET 1;
SELECT outcome FROM idemq.enqueue('q', '{"n": 18}', key => 'new', on_duplicate => 'replace');
SELECT outcome FROM idemq.enqueue('q', '{"n": 19}', key => 'new', on_duplicate => 'replace');
SELECT payload, tenant, n, status, result FROM idemq.jobs ORDER BY id;
SELECT payload FROM idemq.claim('q', 10);
ALTER TABLE idemq.jobs DROP COLUMN n, DROP COLUMN tenant;
DELETE FROM idemq.jobs;
DROP TABLE held;

-- Check constraints are honoured.
ALTER TABLE idemq.jobs ADD CONSTRAINT small CHECK (length(payload::text) < 20), ADD CONSTRAINT signed CHECK (status <> 'running' OR worker IS NOT NULL);
SELECT (idemq.enqueue('q', '"small"')).id \gset
SELECT idemq.enqueue('q', to_jsonb(repeat('x', 20)));
SELECT idemq.enqueue('q', to_jsonb(repeat('x', 20)), key => 'k');
SELECT * FROM idemq.claim('q');
SELECT token FROM idemq.claim('q', worker => 'me') \gset
SELECT idemq.commit(:id, :token);
ALTER TABLE idemq.jobs DROP CONSTRAINT small, DROP CONSTRAINT signed;
ALTER TABLE idemq.jobs ADD CONSTRAINT later CHECK (priority < 8) NOT VALID;
SELECT idemq.enqueue('q', '1', priority => 8);
ALTER TABLE idemq.jobs DROP CONSTRAINT later;
-- So is NOT NULL.
DELETE FROM idemq.jobs;
ALTER TABLE idemq.jobs ALTER COLUMN headers SET NOT NULL;
SELECT idemq.enqueue('q', '1');
SELECT (idemq.enqueue('q', '1', headers => '{}')).outcome;
SELECT idemq.commit(id, token) FROM idemq.claim('q');
ALTER TABLE idemq.jobs ALTER COLUMN headers DROP NOT NULL;

-- Indexes: on an expression, partial, unique, on a changing column, hash, GIN, exclusion; all of them right.
DELETE FROM idemq.jobs;
CREATE INDEX by_customer ON idemq.jobs ((payload ->> 'customer'));
CREATE INDEX by_status ON idemq.jobs (status, worker) INCLUDE (attempt);
CREATE INDEX by_worker ON idemq.jobs USING hash (worker);
CREATE INDEX by_payload ON idemq.jobs USING gin (payload jsonb_path_ops);
CREATE INDEX by_time ON idemq.jobs USING brin (enqueued_at, finished_at);
CREATE UNIQUE INDEX one_in_flight ON idemq.jobs ((payload ->> 'customer')) WHERE status = 'running';
SELECT count(idemq.enqueue('q', jsonb_build_object('customer', g % 3, 'n', g))) FROM generate_series(1, 9) g;
SELECT * FROM idemq.claim('q', 9);
SELECT payload ->> 'customer' AS customer FROM idemq.claim('q', 3, worker => 'w');
SET enable_seqscan = off;
SET enable_bitmapscan = on;
SELECT count(*) FROM idemq.jobs WHERE payload ->> 'customer' = '1';
SELECT count(*) FROM idemq.jobs WHERE status = 'running' AND worker = 'w';
SELECT count(*) FROM idemq.jobs WHERE worker = 'w';
SELECT count(*) FROM idemq.jobs WHERE payload @> '{"n": 2}';
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running' AND worker = 'w';
SELECT count(*) FROM idemq.jobs WHERE status = 'running' AND worker = 'w';
SELECT count(*) FROM idemq.jobs WHERE status = 'completed' AND worker = 'w';
SELECT count(*) FROM idemq.jobs WHERE finished_at > now() - interval '1 h';
DROP INDEX idemq.one_in_flight;
SELECT count(idemq.fail(id, token, 'x', '0')) FROM idemq.claim('q', 10, worker => 'x');
SELECT count(*) FROM idemq.jobs WHERE status = 'retrying' AND worker = 'x';
SELECT count(*) FROM idemq.jobs WHERE worker = 'x';
SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 10, worker => 'y');
SELECT count(*) FROM idemq.jobs WHERE worker = 'x';
SELECT count(*) FROM idemq.jobs WHERE worker = 'y';
RESET enable_seqscan;
RESET enable_bitmapscan;
DROP INDEX idemq.by_customer, idemq.by_status, idemq.by_worker, idemq.by_payload, idemq.by_time;
-- A unique index and an exclusion constraint refuse.
DELETE FROM idemq.jobs;
CREATE UNIQUE INDEX one_payload ON idemq.jobs (payload);
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT idemq.enqueue('q', '1');
SELECT idemq.enqueue('q', '1', key => 'other');
DROP INDEX idemq.one_payload;
ALTER TABLE idemq.jobs ADD CONSTRAINT one_worker EXCLUDE USING btree (worker WITH =) WHERE (status = 'running');
SELECT (idemq.enqueue('q', '2')).outcome;
SELECT * FROM idemq.claim('q', 2, worker => 'same');
SELECT count(*) FROM idemq.claim('q', 1, worker => 'same');
SELECT * FROM idemq.claim('q', 1, worker => 'same');
SELECT count(*) FROM idemq.claim('q', 1, worker => 'another');
ALTER TABLE idemq.jobs DROP CONSTRAINT one_worker;

-- Maintenance of the table itself.
DELETE FROM idemq.jobs;
SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, 6) g;
SELECT id, token FROM idemq.claim('q') \gset
VACUUM (FULL) idemq.jobs;
SELECT payload FROM idemq.claim('q');
CLUSTER idemq.jobs USING jobs_pkey;
SELECT payload FROM idemq.claim('q');
REINDEX TABLE idemq.jobs;
SELECT payload FROM idemq.claim('q');
REINDEX TABLE CONCURRENTLY idemq.jobs;
SELECT payload FROM idemq.claim('q');
ALTER TABLE idemq.jobs SET (fillfactor = 100);
VACUUM (ANALYZE, FREEZE) idemq.jobs;
SELECT idemq.heartbeat(:id, :token), idemq.commit(:id, :token);
SELECT payload FROM idemq.claim('q');
-- Without its ready index a claim says so; with another like it, it works.
DROP INDEX idemq.jobs_ready;
SELECT * FROM idemq.claim('q');
CREATE INDEX jobs_ready_again ON idemq.jobs (queue_id, priority, ready_at, id) WHERE ready_at IS NOT NULL;
SELECT (idemq.enqueue('q', '7')).outcome;
SELECT payload FROM idemq.claim('q');
