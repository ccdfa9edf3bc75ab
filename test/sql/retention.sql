-- Retention: what idemq.apply_retention deletes, as the background worker does, and
-- what stays.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('day') > 0 AS created;
SELECT idemq.create_queue('dead', retention => '1 min', dead_retention => '2 days', idempotency_window => '10 days') > 0 AS created;
SELECT idemq.create_queue('week', retention => '7 days', idempotency_window => '1 hour') > 0 AS created;
SELECT idemq.create_queue('none', retention => '0') > 0 AS created;
SELECT idemq.create_queue('window', retention => '1 hour', idempotency_window => '3 days') > 0 AS created;

-- One job of each kind, finished so long ago.
CREATE FUNCTION hours(ago interval) RETURNS text LANGUAGE sql AS $$ SELECT (extract(epoch FROM ago) / 3600)::int || 'h' $$;
CREATE FUNCTION finished(queue text, what text, ago interval, key text DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	job record;
BEGIN
	SELECT id, 0 AS token INTO job FROM idemq.enqueue(queue, to_jsonb(queue || ' ' || what || ' ' || hours(ago) || coalesce(' ' || key, '')), key => key);
	IF what IN ('completed', 'dead') THEN
		SELECT c.id, c.token INTO job FROM idemq.claim_job(job.id) c;
	END IF;
	IF what = 'completed' THEN
		PERFORM idemq.commit(job.id, job.token, '"result"');
	ELSIF what = 'dead' THEN
		PERFORM idemq.fail(job.id, job.token, 'no', permanent => true);
	ELSIF what = 'cancelled' THEN
		PERFORM idemq.cancel(job.id);
	END IF;
	UPDATE idemq.jobs j SET finished_at = finished_at - ago WHERE j.id = job.id AND finished_at IS NOT NULL;
	RETURN job.id;
END $$;
CREATE VIEW left_over AS SELECT payload FROM idemq.jobs ORDER BY id;

SELECT count(finished(q, s, a, k)) FROM unnest(ARRAY['day', 'dead', 'week', 'window']) q, unnest(ARRAY['pending', 'completed', 'dead', 'cancelled']) s,
	unnest(ARRAY['23 h', '25 h', '8 days', '40 days']::interval[]) a, unnest(ARRAY[NULL, q || s || hours(a)]) k;
SELECT count(*) FROM idemq.attempts;
SELECT idemq.apply_retention();
-- Of the day's: 23 h; of the week's: 23 h and 25 h; with the window: 23 h and 25 h if there is a key.
-- What is dead: up to 30 days, or 2 days in the queue dead, where with a key all up to 10 days.
SELECT * FROM left_over;
-- With a job goes its history.
SELECT count(*), count(j.id) AS of_jobs FROM idemq.attempts a LEFT JOIN idemq.jobs j ON j.id = a.job_id;
SELECT queue, completed, dead, cancelled, pending, purged_total FROM idemq.metrics ORDER BY queue;
SELECT * FROM idemq.check();
SELECT idemq.apply_retention();

-- A key answers for its window, and is free after it.
SELECT outcome, status, result FROM idemq.enqueue('window', '"window completed 25h windowcompleted25h"', key => 'windowcompleted25h');
SELECT outcome FROM idemq.enqueue('window', '"window completed 192h windowcompleted192h"', key => 'windowcompleted192h');
-- A key that an old job has given up keeps the job no longer.
SELECT idemq.purge('window');
SELECT finished('window', 'completed', '2 days', 'k') > 0 AS there;
UPDATE idemq.jobs SET key = NULL WHERE key = 'k';
SELECT idemq.apply_retention();

-- With a child goes what it depended on.
SELECT id AS parent FROM idemq.enqueue('day', '"parent"') \gset
SELECT id AS child FROM idemq.enqueue('day', '"child"', depends_on => ARRAY[:parent]) \gset
SELECT idemq.commit_once(:parent), idemq.commit_once(:child);
UPDATE idemq.jobs SET finished_at = finished_at - interval '2 days' WHERE id IN (:parent, :child);
SELECT count(*) AS edges FROM idemq.dependencies;
SELECT idemq.apply_retention();
SELECT count(*) AS edges FROM idemq.dependencies;
-- What a purged parent has ended as is kept for its child: brought back, it does not run.
SELECT id AS parent FROM idemq.enqueue('day', '"parent"') \gset
SELECT id AS child FROM idemq.enqueue('window', '"child"', depends_on => ARRAY[:parent]) \gset
SELECT idemq.cancel(:parent);
SELECT count(*) AS none FROM idemq.claim('window', 100) WHERE id = :child;
UPDATE idemq.jobs SET finished_at = finished_at - interval '2 days' WHERE id = :parent;
SELECT idemq.apply_retention();
SELECT gone_as FROM idemq.dependencies WHERE child = :child;
SELECT idemq.retry(:child);
SELECT count(*) AS none FROM idemq.claim('window', 100) WHERE id = :child;
SELECT status, last_error FROM idemq.job(:child);
DELETE FROM idemq.jobs WHERE id = :child;

-- Retention 0: at once, but with a key after the window; what died stays for dead_retention.
SELECT idemq.purge('day'), idemq.purge('week'), idemq.drop_queue('dead', force => true) FROM left_over LIMIT 1;
SELECT count(finished('none', s, a, k)) FROM unnest(ARRAY['completed', 'dead', 'cancelled']) s,
	unnest(ARRAY['0', '1 h', '25 h']::interval[]) a, unnest(ARRAY[NULL, s || hours(a)]) k;
SELECT idemq.apply_retention();
SELECT * FROM left_over;
SELECT idemq.redrive('none');
SELECT idemq.apply_retention();
SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;

-- The setting that counts is the present one.
SELECT finished('week', 'completed', '2 days') > 0 AS there;
SELECT idemq.apply_retention();
SELECT idemq.alter_queue('week', retention => '1 day');
SELECT idemq.apply_retention();

-- Not more than asked for, the oldest first; also among jobs of one time.
SELECT idemq.purge('none'), idemq.purge('day');
SELECT count(*) FROM idemq.enqueue_many('day', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 5000) i));
SELECT count(*) FROM idemq.claim('day', 5000) c, idemq.try_commit(c.id, c.token) o WHERE o = 'committed';
UPDATE idemq.jobs SET finished_at = now() - interval '2 days' - interval '1 hour' * (payload::int <= 100)::int;
SELECT idemq.apply_retention(60), idemq.apply_retention(max_jobs => 40);
SELECT min(payload::int), count(*) FROM idemq.jobs;
SELECT idemq.apply_retention(3000);
SELECT count(*) FROM idemq.jobs;
SELECT idemq.apply_retention(), (SELECT count(*) FROM idemq.jobs) AS as_before;
SELECT count(*) FROM idemq.jobs;
SELECT purged_total FROM idemq.metrics WHERE queue = 'day';

-- Undone with the transaction; not counted then.
SELECT finished('day', 'completed', '2 days') > 0 AS there;
BEGIN;
SELECT idemq.apply_retention();
ROLLBACK;
SELECT count(*) FROM idemq.jobs;
SELECT purged_total FROM idemq.metrics WHERE queue = 'day';
-- At other levels.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idemq.apply_retention();
COMMIT;
SELECT count(*) FROM idemq.jobs;
BEGIN READ ONLY;
SELECT idemq.apply_retention();
ROLLBACK;

-- What once has seen goes.  The history of a job that was deleted by hand stays: a restore
-- may be about to bring the job.
SELECT idemq.once('s', 'long'), idemq.once('s', 'short', '1 us');
SELECT finished('day', 'dead', '0') AS dead \gset
SELECT finished('day', 'dead', '1 h') AS other \gset
DELETE FROM idemq.jobs WHERE id = :dead;
SELECT pg_sleep(0.001);
SELECT idemq.apply_retention();
SELECT key FROM idemq_internal.seen;
SELECT count(*) AS both FROM idemq.attempts WHERE job_id IN (:dead, :other);
DELETE FROM idemq.attempts WHERE job_id = :dead;

-- What a DBA has put on the table: the row stays, the others go.
SELECT idemq.purge('day');
SELECT finished('day', 'completed', '2 days') AS kept \gset
SELECT finished('day', 'completed', '3 days') AS refused \gset
SELECT finished('day', 'completed', '4 days') AS swallowed \gset
SELECT count(finished('day', 'dead', make_interval(days => 30 + i))) FROM generate_series(2, 10) i;
CREATE TABLE invoices (job_id bigint REFERENCES idemq.jobs);
INSERT INTO invoices VALUES (:kept);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF OLD.finished_at < now() - interval '3 days' AND OLD.status = 'completed' THEN
		RETURN NULL;
	ELSIF OLD.finished_at < now() - interval '71 h' AND OLD.status = 'completed' THEN
		RAISE 'not this one';
	END IF;
	RETURN OLD;
END $$;
CREATE TRIGGER refuse BEFORE DELETE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION refuse();
SELECT idemq.apply_retention();
SELECT count(*), count(*) FILTER (WHERE id IN (:kept, :refused, :swallowed)) AS refused FROM idemq.jobs WHERE finished_at IS NOT NULL;
SELECT count(*) FROM idemq.attempts;
SELECT * FROM idemq.check();
DROP TABLE invoices;
DROP FUNCTION refuse CASCADE;
SELECT idemq.apply_retention();

-- Columns that a DBA has added.
ALTER TABLE idemq.jobs ADD mine int DEFAULT 1;
SELECT finished('day', 'completed', '2 days') > 0 AS there;
SELECT idemq.apply_retention();
ALTER TABLE idemq.jobs DROP mine;

-- Bad input.
SELECT idemq.apply_retention(0);
SELECT idemq.apply_retention(NULL);

-- Not PUBLIC's: it is for all queues.
CREATE ROLE idemq_p;
SELECT idemq.grant_queue('day', 'idemq_p', 'admin');
SELECT finished('day', 'completed', '2 days') > 0 AS there;
SET ROLE idemq_p;
SELECT idemq.apply_retention();
RESET ROLE;
GRANT USAGE ON SCHEMA idemq TO idemq_p;
GRANT EXECUTE ON FUNCTION idemq.apply_retention TO idemq_p;
SET ROLE idemq_p;
SELECT idemq.apply_retention();
RESET ROLE;
DELETE FROM idemq_internal.queue_grants;
DROP OWNED BY idemq_p;
DELETE FROM idemq_internal.queue_grants;
DROP OWNED BY idemq_p;
DROP ROLE idemq_p;
SELECT * FROM idemq.check();
DROP VIEW left_over;
DROP EXTENSION idemq;
