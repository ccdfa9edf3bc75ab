-- idemq.metrics: every counter and gauge through a job's life; rollbacks and
-- savepoints; rows changed by hand; who sees what; idemq.recount, idemq.memory.
CREATE EXTENSION idemq;
-- What was refused to tests before this one, on the same server.
SELECT refused FROM idemq.memory WHERE resource = 'queues' \gset
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 2) AS q \gset
SELECT idemq.create_queue('p', lease => '1 h') AS p \gset

-- What shared memory counted, in short: statuses that have jobs, counters that are not 0.
CREATE FUNCTION metrics(name text DEFAULT 'q', OUT jobs text, OUT totals text) LANGUAGE sql AS $$
	SELECT string_agg(key || ' ' || value, ', ' ORDER BY ord) FILTER (WHERE key IN ('pending', 'blocked', 'running', 'retrying', 'completed', 'dead', 'cancelled')),
		string_agg(replace(key, '_total', '') || ' ' || value, ', ' ORDER BY ord) FILTER (WHERE key LIKE '%_total')
	FROM idemq.metrics m, json_each_text(row_to_json(m)) WITH ORDINALITY e(key, value, ord) WHERE m.queue = name AND value <> '0'
$$;
-- Queues of which the gauges are not what the table says.
CREATE VIEW drift AS
	SELECT q.name, c.status, coalesce(n, 0) AS jobs, gauge FROM idemq.metrics m JOIN idemq.queues q USING (queue_id),
		LATERAL (VALUES ('pending', pending), ('blocked', blocked), ('running', running), ('retrying', retrying),
			('completed', completed), ('dead', dead), ('cancelled', cancelled)) c(status, gauge)
		LEFT JOIN LATERAL (SELECT count(*) AS n FROM idemq.jobs j WHERE j.queue_id = q.queue_id AND j.status::text = c.status) j ON true
	WHERE coalesce(n, 0) IS DISTINCT FROM gauge;

SELECT queue, queue_id = :q AS q, paused, pending, oldest_ready, enqueued_total, wait_p50, run_p99, in_memory, counted_since <= now() AS since
FROM idemq.metrics WHERE queue = 'q';

-- A life: enqueued, claimed, failed, retried, claimed, dead, redriven, claimed, committed.
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT * FROM metrics();
SELECT oldest_ready > '0' AND oldest_ready < '1 h' AS waits FROM idemq.metrics WHERE queue = 'q';
SELECT id, token FROM idemq.claim('q') \gset
SELECT * FROM metrics();
SELECT oldest_ready FROM idemq.metrics WHERE queue = 'q';
SELECT idemq.fail(:id, :token, 'x', '1 h');
SELECT * FROM metrics();
SELECT idemq.retry(:id);
SELECT * FROM metrics();
SELECT id, token FROM idemq.claim('q') \gset
SELECT idemq.fail(:id, :token, 'x');
SELECT * FROM metrics();
SELECT idemq.redrive('q');
SELECT id, token FROM idemq.claim('q') \gset
SELECT idemq.release(:id, :token);
SELECT id, token FROM idemq.claim('q') \gset
SELECT idemq.heartbeat(:id, :token), idemq.checkpoint(:id, :token, '1');
SELECT idemq.commit(:id, :token);
SELECT * FROM metrics();
-- A commit that is late, repeated or refused counts nothing.
SELECT idemq.try_commit(:id, :token), idemq.try_commit(:id, :token - 1);
SELECT idemq.commit(:id, :token);
SELECT totals FROM metrics();
-- Times: everything has happened just now.
SELECT wait_p50 >= '0' AND wait_p50 <= wait_p95 AND wait_p95 <= wait_p99 AND wait_p99 < '1 h' AS wait,
	run_p50 > '0' AND run_p50 <= run_p95 AND run_p95 <= run_p99 AND run_p99 < '1 h' AS run FROM idemq.metrics WHERE queue = 'q';

-- Leases that end; jobs cancelled, expired, and committed without a claim.
SELECT idemq.create_queue('r', lease => '1 us', max_attempts => 2) AS r \gset
SELECT (idemq.enqueue('r', '1')).outcome;
SELECT count(*) FROM idemq.claim('r');
SELECT idemq.reap('r');
SELECT * FROM metrics('r');
SELECT count(*) FROM idemq.claim('r');
SELECT idemq.reap('r');
SELECT * FROM metrics('r');
SELECT idemq.cancel((idemq.enqueue('r', '2')).id);
SELECT idemq.commit_once((idemq.enqueue('r', '3')).id);
SELECT (idemq.enqueue('r', '4', expires_in => '1 us')).outcome;
SELECT oldest_ready FROM idemq.metrics WHERE queue = 'r';
SELECT count(*) FROM idemq.claim('r');
SELECT idemq.retry(id) FROM idemq.jobs WHERE queue_id = :r AND payload = '2';
SELECT * FROM metrics('r');

-- Keys: duplicates, and what is neither one nor the other.
SELECT (idemq.enqueue('p', '1', key => 'k')).outcome;
SELECT (idemq.enqueue('p', '1', key => 'k')).outcome;
SELECT (idemq.enqueue('p', '2', key => 'k', on_duplicate => 'replace', delay => '1 h')).outcome;
SELECT (idemq.enqueue('p', '3', key => 'k')).outcome;
SELECT ord, outcome FROM idemq.enqueue_many('p', '{1,2,3}', keys => '{l,m,l}');
SELECT ord, outcome FROM idemq.enqueue_many('p', '{1,2,1}', keys => '{l,m,l}') ORDER BY ord;
SELECT count(*) FROM idemq.enqueue_many('p', '{1,2,3}');
SELECT * FROM metrics('p');
-- The oldest job that is due counts, in whichever priority; jobs in flight do not.
SELECT (idemq.enqueue('p', '9', priority => 9, run_at => now() - interval '3 days')).outcome;
SELECT oldest_ready BETWEEN '72 h' AND '73 h' AS days FROM idemq.metrics WHERE queue = 'p';
SELECT idemq.pause('p');
SELECT paused, oldest_ready BETWEEN '72 h' AND '73 h' AS days FROM idemq.metrics WHERE queue = 'p';
SELECT idemq.resume('p');
SELECT count(*) FROM idemq.claim('p', 10);
SELECT oldest_ready FROM idemq.metrics WHERE queue = 'p';
-- commit_many, fail_many.
SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM (SELECT * FROM idemq.jobs WHERE queue_id = :p AND status = 'running' ORDER BY id LIMIT 2) j) a,
	idemq.commit_many(ids, tokens);
SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.jobs WHERE queue_id = :p AND status = 'running') a,
	idemq.fail_many(ids, tokens, permanent => true);
SELECT * FROM metrics('p');
SELECT idemq.purge('p', 'dead');
SELECT jobs FROM metrics('p');
SELECT idemq.purge('p');
SELECT * FROM metrics('p');
SELECT * FROM drift;

-- Nothing counts before its commit, or after a rollback.
BEGIN;
SELECT count(*) FROM idemq.enqueue_many('p', '{1,2,3}');
SELECT * FROM metrics('p');
COMMIT;
SELECT * FROM metrics('p');
BEGIN;
SELECT count(*) FROM idemq.enqueue_many('p', '{1,2,3}');
SELECT idemq.commit(id, token) FROM idemq.claim('p', 10);
ROLLBACK;
SELECT * FROM metrics('p');
-- Savepoints: rolled back, released, nested, with other queues in between.
BEGIN;
SELECT (idemq.enqueue('p', '"kept 1"')).outcome;
SAVEPOINT a;
SELECT (idemq.enqueue('p', '"undone"')).outcome;
SELECT (idemq.enqueue('q', '"undone"')).outcome;
SAVEPOINT b;
SELECT count(*) FROM idemq.claim('p', 2);
RELEASE b;
ROLLBACK TO a;
SELECT (idemq.enqueue('q', '"kept 1"')).outcome;
SAVEPOINT b;
SELECT (idemq.enqueue('r', '"kept 1"')).outcome;
SELECT (idemq.enqueue('p', '"kept 2"')).outcome;
SAVEPOINT c;
SELECT (idemq.enqueue('q', '"kept 2"')).outcome;
SELECT (idemq.enqueue('r', '"kept 2"')).outcome;
RELEASE c;
SAVEPOINT d;
SELECT (idemq.enqueue('r', '"undone"')).outcome;
ROLLBACK TO d;
RELEASE a;
SELECT (idemq.enqueue('p', '"kept 3"')).outcome;
COMMIT;
SELECT * FROM metrics('p');
SELECT * FROM metrics('q');
SELECT * FROM metrics('r');
SELECT * FROM drift;
-- A loop of exception blocks leaves one tally.
DO $$
BEGIN
	FOR i IN 1 .. 2000 LOOP
		BEGIN
			PERFORM idemq.enqueue('p', '"loop"');
			IF i % 2 = 0 THEN
				RAISE SQLSTATE 'UNDO0';
			END IF;
		EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL;
		END;
	END LOOP;
END $$;
SELECT * FROM metrics('p');
DELETE FROM idemq.jobs WHERE queue_id = :p;
SELECT * FROM metrics('p');
-- Many queues in a transaction, with and without savepoints.
SELECT count(idemq.create_queue('many' || i)) FROM generate_series(1, 100) i;
DO $$
BEGIN
	FOR i IN 1 .. 300 LOOP
		PERFORM idemq.enqueue('many' || i % 100 + 1, '1');
		BEGIN
			PERFORM idemq.enqueue('many' || i % 100 + 1, '1'), idemq.enqueue('many' || (i + 7) % 100 + 1, '1');
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP;
END $$;
SELECT pending, enqueued_total, count(*) FROM idemq.metrics WHERE queue LIKE 'many%' GROUP BY 1, 2;

-- By hand: rows count, events do not.
SELECT jobs FROM metrics();
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	SELECT :q, now(), 4, 3, s, now(), '"hand"' FROM unnest(enum_range(NULL::idemq.status)) s;
SELECT * FROM metrics();
UPDATE idemq.jobs SET status = 'dead' WHERE payload = '"hand"' AND status IN ('blocked', 'retrying');
UPDATE idemq.jobs SET worker = 'same status' WHERE payload = '"hand"';
UPDATE idemq.jobs SET queue_id = :p WHERE payload = '"hand"' AND status = 'cancelled';
UPDATE idemq.jobs SET queue_id = :p, status = 'pending' WHERE payload = '"hand"' AND status = 'completed';
SELECT jobs FROM metrics() UNION ALL SELECT jobs FROM metrics('p');
DELETE FROM idemq.jobs WHERE payload = '"hand"';
SELECT jobs FROM metrics() UNION ALL SELECT jobs FROM metrics('p');
COPY idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload) FROM STDIN;
1	2001-01-01	4	3	pending	2001-01-01	"copied"
\.
SELECT jobs FROM metrics();
-- Rows of no queue are nobody's.
INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	VALUES (99999, now(), 4, 3, 'pending', now(), '"nobody"');
DELETE FROM idemq.jobs WHERE queue_id = 99999;
SELECT * FROM drift;
-- With more on the table, rows are written by SQL, and still count once.
ALTER TABLE idemq.jobs ADD COLUMN more int;
SELECT (idemq.enqueue('p', '1')).outcome;
SELECT (idemq.enqueue('p', '1', key => 'more')).outcome;
SELECT idemq.commit(id, token) FROM idemq.claim('p', 2);
SELECT * FROM metrics('p');
ALTER TABLE idemq.jobs DROP COLUMN more;
SELECT * FROM drift;
-- What no trigger has seen, only a recount can tell.
ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
DELETE FROM idemq.jobs WHERE payload = '"copied"';
ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
SELECT * FROM drift;
SELECT idemq.recount() = count(*) AS all_jobs FROM idemq.jobs;
SELECT * FROM drift;
-- A transaction that has changed something cannot count.
BEGIN;
SELECT (idemq.enqueue('p', '1')).outcome;
SELECT idemq.recount();
ROLLBACK;
-- One that changes something afterwards can; above READ COMMITTED as well.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idemq.recount() > 0 AS counted;
SELECT (idemq.enqueue('p', '1')).outcome;
SELECT * FROM drift;
COMMIT;
SELECT * FROM drift;
-- A queue that keeps nothing.
SELECT idemq.create_queue('gone', retention => '0');
SELECT count(*) FROM idemq.enqueue_many('gone', '{1,2}');
SELECT idemq.commit(id, token) FROM idemq.claim('gone');
SELECT * FROM metrics('gone');

-- Dropped, and created again, a queue begins anew.
SELECT idemq.drop_queue('gone', force => true);
SELECT count(*) FROM idemq.metrics WHERE queue = 'gone';
SELECT idemq.create_queue('gone') AS gone \gset
SELECT * FROM metrics('gone');
BEGIN;
SELECT idemq.drop_queue('gone');
ROLLBACK;
SELECT (idemq.enqueue('gone', '1')).outcome;
SELECT * FROM metrics('gone');
-- Made and filled in one transaction, also when a savepoint undid the first try.
BEGIN;
SAVEPOINT a;
SELECT idemq.create_queue('new') > 0 AS created;
SELECT (idemq.enqueue('new', '1')).outcome;
ROLLBACK TO a;
SELECT idemq.create_queue('new') > 0 AS created;
SELECT (idemq.enqueue('new', '1')).outcome;
COMMIT;
SELECT * FROM metrics('new');
SELECT * FROM drift;

-- Truncated: nothing is known, and everything is counted by SQL until it is.
BEGIN;
TRUNCATE idemq.jobs;
SELECT (idemq.enqueue('p', '1')).outcome;
ROLLBACK;
SELECT * FROM drift;
BEGIN;
SELECT (idemq.enqueue('p', '1')).outcome;
TRUNCATE idemq.jobs;
SELECT count(*) FROM idemq.enqueue_many('p', '{1,2}');
COMMIT;
SELECT jobs FROM metrics('p');
SELECT (idemq.enqueue('p', '1')).outcome;
SELECT * FROM metrics('p');
SELECT idemq.recount();
SELECT (idemq.enqueue('p', '1')).outcome;
SELECT * FROM metrics('p');
SELECT * FROM drift;
SELECT idemq.purge('p');

-- Read-only transactions.
BEGIN READ ONLY;
SELECT * FROM metrics('p');
SELECT idemq.recount();
SELECT resource, used > 0 AS used, size, refused - :refused AS refused FROM idemq.memory WHERE resource = 'queues';
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT * FROM drift;
COMMIT;

-- Who sees what.
SELECT (idemq.enqueue('p', '1')).outcome;
CREATE ROLE idemq_claimer;
CREATE ROLE idemq_producer;
CREATE ROLE idemq_stranger;
GRANT USAGE ON SCHEMA idemq TO idemq_stranger;
CREATE ROLE idemq_watcher IN ROLE pg_monitor;
SELECT idemq.grant_queue('p', 'idemq_claimer', 'claim');
SELECT idemq.grant_queue('p', 'idemq_producer', 'enqueue');
CREATE FUNCTION leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$;
\set VERBOSITY terse
SET ROLE idemq_claimer;
SELECT queue, pending, enqueued_total FROM idemq.metrics WHERE leak(queue);
SELECT queue_id = :p AS p, pending FROM idemq.metrics;
SELECT idemq.recount();
SELECT count(*) FROM idemq.memory;
SET ROLE idemq_producer;
SELECT count(*) FROM idemq.metrics WHERE leak(queue);
SET ROLE idemq_stranger;
SELECT count(*) FROM idemq.metrics WHERE leak(queue);
SELECT count(*) FROM idemq.metrics;
SELECT idemq.recount();
SET ROLE idemq_watcher;
SELECT queue, pending FROM idemq.metrics WHERE queue IN ('p', 'q') ORDER BY 1;
SELECT idemq.recount() > 0 AS counted;
RESET ROLE;
\set VERBOSITY sqlstate
DROP FUNCTION leak;
SELECT idemq.revoke_queue('p', 'idemq_claimer', 'claim'), idemq.revoke_queue('p', 'idemq_producer', 'enqueue');
DROP OWNED BY idemq_claimer, idemq_producer, idemq_stranger, idemq_watcher;
DROP ROLE idemq_claimer, idemq_producer, idemq_stranger, idemq_watcher;

-- Random calls, in transactions with savepoints, many of them undone.
SELECT setseed(0.4);
CREATE PROCEDURE run(steps int) LANGUAGE plpgsql AS $$
DECLARE
	job idemq.jobs;
	call int;
BEGIN
	FOR step IN 1 .. steps LOOP
		FOR i IN 1 .. floor(random() * 8) LOOP
			BEGIN
				SELECT * INTO job FROM idemq.jobs ORDER BY (status = 'running') = (random() < 0.7) DESC, random() LIMIT 1;
				call := CASE WHEN job.id IS NULL THEN 1 ELSE floor(random() * 14) END;
				CASE call
					WHEN 0 THEN PERFORM idemq.enqueue('q', '1', key => 'k' || floor(random() * 30), on_duplicate => 'ignore');
					WHEN 1, 2 THEN PERFORM count(*) FROM idemq.enqueue_many('q', '{1,2}');
					WHEN 3 THEN PERFORM count(*) FROM idemq.claim('q', 3);
					WHEN 4 THEN PERFORM count(*) FROM idemq.claim_any('{q,p}', 3, lease => '1 us');
					WHEN 5 THEN PERFORM idemq.try_commit(job.id, job.token);
					WHEN 6 THEN PERFORM idemq.fail(job.id, job.token, 'x', '0');
					WHEN 7 THEN PERFORM idemq.fail(job.id, job.token, permanent => true);
					WHEN 8 THEN PERFORM idemq.release(job.id, job.token);
					WHEN 9 THEN PERFORM idemq.cancel(job.id);
					WHEN 10 THEN PERFORM idemq.retry(job.id), idemq.redrive('q', 3);
					WHEN 11 THEN PERFORM idemq.commit_once(job.id), idemq.reap();
					WHEN 12 THEN UPDATE idemq.jobs SET queue_id = CASE WHEN random() < 0.5 THEN 1 ELSE 2 END WHERE id = job.id AND status <> 'running' AND key IS NULL;
					ELSE DELETE FROM idemq.jobs WHERE id = job.id AND status <> 'running';
				END CASE;
				IF random() < 0.3 THEN
					RAISE SQLSTATE 'UNDO0';
				END IF;
			EXCEPTION WHEN SQLSTATE 'UNDO0' THEN NULL;
			END;
		END LOOP;
		IF random() < 0.3 THEN ROLLBACK; ELSE COMMIT; END IF;
		IF step % 20 = 0 AND EXISTS (SELECT FROM drift) THEN
			RAISE EXCEPTION 'drift at step %', step;
		END IF;
	END LOOP;
END $$;
CALL run(600);
SELECT * FROM drift;
SELECT enqueued_total > 100 AND claimed_total > 100 AND committed_total > 10 AND failed_total > 10 AND expired_total > 10 AND cancelled_total > 10 AS much FROM idemq.metrics WHERE queue = 'q';

-- A job that is committed in one step has waited, and has not run.
SELECT idemq.create_queue('once') AS once \gset
SELECT idemq.commit_once((idemq.enqueue('once', '1')).id);
SELECT committed_total, wait_p50 >= '0' AS waited, run_p50 AS ran FROM idemq.metrics WHERE queue = 'once';
