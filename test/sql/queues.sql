-- create_queue, alter_queue, drop_queue, pause, resume, purge.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
CREATE FUNCTION state(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE sql;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN SQLSTATE || ' ' || SQLERRM || CASE hint WHEN '' THEN ', no hint' ELSE '' END;
END $$;

-- The defaults.
SELECT idemq.create_queue('q') AS made \gset
SELECT queue_id = :made AS its_id FROM idemq.queues;
\x on
SELECT name, lease, max_attempts, retry_base, retry_factor, retry_max, retry_jitter, retention, idempotency_window, max_running, rate_limit,
	rate_period, dead_letter_queue, paused, now() - created_at < '1 min' AS just_now FROM idemq.queues;
-- All settings, by name and by place.
SELECT idemq.create_queue(name => 'named', lease => '1 min', max_attempts => 3, retry_base => '2 min', retry_factor => 1.5, retry_max => '5 min',
	retry_jitter => 0, retention => '0', idempotency_window => '2 days', rate_period => '1 min') > 0 AS made;
SELECT idemq.create_queue('placed', '1 min', 3, '2 min', 1.5, '5 min', 0, '0', '2 days') > 0 AS made;
SELECT a.lease, a.max_attempts, a.retry_base, a.retry_factor, a.retry_max, a.retry_jitter, a.retention, a.idempotency_window, a.rate_period,
	(a.lease, a.max_attempts, a.retry_base, a.retry_factor, a.retry_max, a.retry_jitter, a.retention, a.idempotency_window) =
	(b.lease, b.max_attempts, b.retry_base, b.retry_factor, b.retry_max, b.retry_jitter, b.retention, b.idempotency_window) AS same
FROM idemq.queues a, idemq.queues b WHERE a.name = 'named' AND b.name = 'placed';
\x off

-- Names.
SELECT n, state(format('SELECT idemq.create_queue(%L)', n)) FROM unnest(ARRAY['a', 'Z', '_', '_9', 'a.b-c_D9', 'Q', 'select', 'a--', repeat('x', 48),
	repeat('x', 49), repeat('x', 64), repeat('x', 2000), '', ' ', 'a b', ' a', 'a ', '1a', '.a', '-a', 'a''b', 'a"b', 'a;b', E'a\nb', E'a\tb', 'a$b', 'a/b', 'a\b', 'a%b',
	'é', 'aé', '队列', 'a*', 'q', NULL]) WITH ORDINALITY u(n, ord) WHERE length(n) < 100 OR n IS NULL ORDER BY ord;
SELECT state(format('SELECT idemq.create_queue(%L)', repeat('x', 2000)));
-- Names differ by case, and by every byte.
SELECT name FROM idemq.queues WHERE lower(name) = 'q' ORDER BY 1;
SELECT (idemq.enqueue('Q', '1')).outcome;
SELECT count(*) FROM idemq.claim('q');
SELECT count(*) FROM idemq.claim('Q');
SELECT (idemq.enqueue(repeat('x', 48), '1')).outcome;
SELECT idemq.enqueue(repeat('x', 47), '1');
SELECT idemq.enqueue(repeat('x', 49), '1');
SELECT idemq.enqueue('a.b-c_d9', '1');
-- A duplicate leaves the first as it was.
SELECT idemq.create_queue('q', lease => '1 h');
SELECT lease FROM idemq.queues WHERE name = 'q';

-- Every setting out of range; the same for alter_queue.
CREATE TABLE settings (ord int GENERATED ALWAYS AS IDENTITY, setting text, val text);
INSERT INTO settings (setting, val) VALUES
	('lease', '''0'''), ('lease', '''-1 s'''), ('lease', '''1 us'''), ('lease', '''1 day'''), ('lease', '''1000 years'''), ('max_lease', '''0'''), ('max_lease', '''1 us'''), ('max_lease', '''1000 years'''), ('max_lease', '''2000 years'''), ('lease', '''1015 years'''), ('lease', '''-1 mon 1 day'''), ('lease', '''100000000 years'''),
	('max_attempts', '0'), ('max_attempts', '-1'), ('max_attempts', '1'), ('max_attempts', '2147483647'),
	('retry_base', '''0'''), ('retry_base', '''-1 s'''), ('retry_base', '''1 us'''), ('retry_base', '''2000 years'''),
	('retry_factor', '0.999'), ('retry_factor', '1'), ('retry_factor', '1000'), ('retry_factor', '1000.1'), ('retry_factor', '''NaN'''), ('retry_factor', '''Infinity'''), ('retry_factor', '''-Infinity'''), ('retry_factor', '-2'),
	('retry_max', '''0'''), ('retry_max', '''-1 s'''), ('retry_max', '''1 us'''), ('retry_max', '''2000 years'''),
	('retry_jitter', '-0.1'), ('retry_jitter', '0'), ('retry_jitter', '1'), ('retry_jitter', '1.1'), ('retry_jitter', '''NaN'''), ('retry_jitter', '''Infinity'''),
	('retention', '''-1 s'''), ('retention', '''0'''), ('retention', '''1000 years'''), ('retention', '''2000 years'''),
	('idempotency_window', '''-1 s'''), ('idempotency_window', '''0'''), ('idempotency_window', '''2000 years'''),
	('rate_period', '''0'''), ('rate_period', '''-1 s'''), ('rate_period', '''1 us'''),
	('max_running', '5'), ('max_running', '0'), ('max_running', '-1'), ('max_running', '2147483647'),
	('rate_limit', '5'), ('rate_limit', '0'), ('rate_limit', '-1'), ('rate_limit', '2147483647'), ('dead_letter_queue', '''q'''),
	('job_timeout', '''1 us'''), ('job_timeout', '''0'''), ('job_timeout', '''-1 s'''), ('job_timeout', '''1000 years'''), ('job_timeout', '''2000 years''');
SET client_min_messages = error;
SELECT setting, val, state(format('SELECT idemq.create_queue(%L, %s => %s)', 'n' || ord, setting, val)) AS created,
	state(format('SELECT idemq.alter_queue(%L, %s => %s)', 'a', setting, val)) AS altered FROM settings ORDER BY ord;
RESET client_min_messages;
-- A NULL setting is an error in create_queue, and no change in alter_queue.
SELECT setting, state(format('SELECT idemq.create_queue(%L, %s => NULL)', 'null_' || setting, setting)) AS created
FROM (SELECT DISTINCT setting FROM settings) s ORDER BY 1;
SELECT name FROM idemq.queues WHERE name LIKE 'null%' ORDER BY 1;

-- alter_queue changes what is named, and no more; the next call sees it.
SELECT xmin AS version FROM idemq.queues WHERE name = 'named' \gset
SELECT to_jsonb(q) - 'queue_id' AS before FROM idemq.queues q WHERE name = 'named' \gset
SELECT idemq.alter_queue('named');
SELECT to_jsonb(q) - 'queue_id' = :'before' AS the_same FROM idemq.queues q WHERE name = 'named';
SELECT idemq.alter_queue('named', lease => '9 min', max_attempts => NULL);
SELECT to_jsonb(q) - 'queue_id' - 'lease' = :'before'::jsonb - 'lease' AS the_rest, lease FROM idemq.queues q WHERE name = 'named';
SELECT (idemq.enqueue('named', '1')).outcome;
SELECT round(extract(epoch FROM deadline - now()) / 60), max_attempts FROM idemq.claim('named');
SELECT idemq.alter_queue('named', '8 min', 9, '3 min', 3, '6 min', 0.5, '2 h', '3 h');
SELECT lease, max_attempts, retry_base, retry_factor, retry_max, retry_jitter, retention, idempotency_window FROM idemq.queues WHERE name = 'named';
SELECT idemq.alter_queue('nope', lease => '1 h');
SELECT idemq.alter_queue(NULL, lease => '1 h');
SELECT idemq.alter_queue('', lease => '1 h');
-- No limit, one, the same, none again.
SELECT job_timeout IS NULL AS none FROM idemq.queues WHERE name = 'named';
SELECT idemq.alter_queue('named', job_timeout => '5 min');
SELECT idemq.alter_queue('named', retention => '2 h');
SELECT job_timeout FROM idemq.queues WHERE name = 'named';
SELECT idemq.alter_queue('named', job_timeout => '0');
SELECT job_timeout IS NULL AS none FROM idemq.queues WHERE name = 'named';
-- A check that fails leaves everything.
SELECT idemq.alter_queue('named', lease => '1 h', retry_factor => 0);
SELECT lease FROM idemq.queues WHERE name = 'named';

-- A window shorter than all attempts together is warned of.
SELECT idemq.create_queue('short_window', lease => '1 h', max_attempts => 25, idempotency_window => '1 day') > 0 AS made;
SELECT idemq.create_queue('long_window', lease => '1 h', max_attempts => 24, idempotency_window => '1 day') > 0 AS made;
-- So by alter_queue, by what the settings are then; not when it changes none of the three.
SELECT idemq.alter_queue('long_window', max_attempts => 25);
SELECT idemq.alter_queue('long_window', retention => '2 days');
SELECT idemq.alter_queue('long_window', idempotency_window => '2 days');
SELECT idemq.alter_queue('long_window', lease => '2 h');
SELECT idemq.alter_queue('long_window', lease => '1 h');
SELECT idemq.alter_queue('long_window', idempotency_window => '1 h');

-- pause: jobs come in, none go out; those in flight go on.  resume: all of them.
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.pause('q');
SELECT (idemq.enqueue('q', '2')).outcome;
SELECT (idemq.enqueue('q', '3', key => 'k')).outcome;
SELECT count(*) FROM idemq.claim('q', 10);
SELECT count(*) FROM idemq.claim_any('{q}', 10);
SELECT idemq.heartbeat(:id, :token), idemq.commit(:id, :token);
SELECT idemq.pause('q');
SELECT paused FROM idemq.queues WHERE name = 'q';
SELECT idemq.resume('q');
SELECT payload FROM idemq.claim('q', 10);
SELECT idemq.resume('q');
SELECT paused FROM idemq.queues WHERE name = 'q';
BEGIN;
SELECT idemq.pause('q');
SELECT (idemq.enqueue('q', '4')).outcome;
SELECT count(*) FROM idemq.claim('q', 10);
ROLLBACK;
SELECT (idemq.enqueue('q', '4')).outcome;
SELECT payload FROM idemq.claim('q', 10);
SELECT idemq.pause('nope');
SELECT idemq.pause(NULL);
SELECT idemq.resume('nope');
SELECT idemq.resume(NULL);

-- purge: one status, or all but running; the jobs of the queue alone, with their attempts.
DELETE FROM idemq.jobs;
CREATE FUNCTION fill(queue text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq.enqueue(queue, to_jsonb(g)) FROM generate_series(1, 6) g;
	PERFORM CASE payload::int WHEN 1 THEN idemq.commit(id, token) WHEN 2 THEN idemq.fail(id, token, permanent => true)
		WHEN 3 THEN idemq.cancel(id) WHEN 4 THEN idemq.fail(id, token) END FROM idemq.claim(queue, 5);
	UPDATE idemq.jobs SET status = 'blocked', ready_at = NULL WHERE payload = '6' AND queue_id = (SELECT queue_id FROM idemq.queues WHERE name = queue);
	PERFORM idemq.enqueue(queue, '7', key => 'seven');
END $$;
SELECT fill('q'), fill('Q');
SELECT s, idemq.purge('q', s), idemq.purge('q', s) AS again FROM unnest(array_remove(enum_range(NULL::idemq.status), 'running')) s;
SELECT idemq.purge('q', 'running');
SELECT name, string_agg(status || ' ' || n, ', ' ORDER BY status) FROM (SELECT queue_id, status, count(*) n FROM idemq.jobs GROUP BY 1, 2) s JOIN idemq.queues USING (queue_id) GROUP BY 1 ORDER BY 1;
SELECT name, count(*) FROM idemq.attempts JOIN idemq.queues USING (queue_id) GROUP BY 1 ORDER BY 1;
SELECT idemq.purge('Q');
SELECT name, status FROM idemq.jobs JOIN idemq.queues USING (queue_id) ORDER BY 1;
SELECT idemq.purge('Q', NULL);
SELECT (idemq.enqueue('q', '7', key => 'seven')).outcome;
SELECT idemq.purge('nope');
SELECT idemq.purge(NULL);
SELECT idemq.purge('q', 'no_status');

-- purge of ids: those alone, of that queue alone, and none that is running; what is meant twice or by nobody is no error.
SELECT idemq.purge('q');
SELECT fill('q'), fill('Q');
CREATE FUNCTION of(queue text, VARIADIC which int[]) RETURNS bigint[] LANGUAGE sql AS $$
	SELECT array_agg(id ORDER BY id DESC) FROM idemq.job_list l WHERE l.queue = of.queue AND payload::int = ANY (which) $$;
SELECT idemq.purge('q', ids => '{}'), idemq.purge('q', ids => of('Q', 1, 2, 3)), idemq.purge('q', ids => '{1,1}');
SELECT idemq.purge('q', ids => of('q', 1, 2, 2, 5, 7) || of('q', 1) || of('Q', 1)) AS three;
SELECT queue, string_agg(payload::text || ' ' || status, ', ' ORDER BY id) FROM idemq.job_list GROUP BY 1 ORDER BY 1;
SELECT count(*) AS attempts_of_those FROM idemq.attempts a WHERE NOT EXISTS (SELECT FROM idemq.jobs j WHERE j.id = a.job_id);
SELECT idemq.purge('q', 'cancelled', of('q', 3, 4)) AS one;
SELECT idemq.purge('q', ids => ARRAY[1, NULL]);
SELECT idemq.purge('q', ids => '{{1}}');
SELECT idemq.purge('q'), idemq.purge('Q') > 0 AS some;
SELECT jobs, details FROM idemq.audit WHERE action = 'purge' AND details ? 'ids' ORDER BY id;
DROP FUNCTION of;

-- drop_queue: refused with unfinished jobs; with force, and without any, all of it goes.
SELECT idemq.drop_queue('q');
SELECT idemq.drop_queue('q', force => NULL);
SELECT (idemq.enqueue('q', '8')).id \gset
SELECT idemq.fail((j).id, (j).token) FROM (SELECT idemq.claim_job(:id) AS j OFFSET 0) s;
SELECT idemq.grant_queue('q', 'pg_monitor', 'claim');
SELECT idemq.drop_queue('q', force => true);
SELECT (SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'q') AS jobs, (SELECT count(*) FROM idemq.queues WHERE name = 'q') AS queues,
	(SELECT count(*) FROM idemq.jobs WHERE id = :id) AS job, (SELECT count(*) FROM idemq.attempts WHERE job_id = :id) AS attempts, (SELECT count(*) FROM idemq_internal.queue_grants) AS grants;
SELECT idemq.enqueue('q', '1');
SELECT * FROM idemq.claim('q');
SELECT idemq.drop_queue('q');
SELECT idemq.drop_queue(NULL);
-- Finished jobs do not keep it.
SELECT idemq.create_queue('done') > 0 AS made;
SELECT idemq.commit_once((idemq.enqueue('done', '1', key => 'k')).id);
SELECT idemq.drop_queue('done');
SELECT count(*) FROM idemq.jobs WHERE key = 'k';
-- A queue of the same name is a new one: other id, no jobs, no grants, keys free, a fresh scan start.
SELECT idemq.create_queue('q', lease => '1 h') AS second \gset
SELECT count(*) FROM idemq.claim('q', 10);
SELECT (idemq.enqueue('q', '1', key => 'seven', run_at => '2001-01-01')).outcome;
SELECT payload FROM idemq.claim('q', 10);
SELECT idemq.drop_queue('q', force => true);
-- Made, used and dropped in one transaction; dropped and made in one.
BEGIN;
SELECT idemq.create_queue('q') > :second AS newer;
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT idemq.drop_queue('q');
SELECT idemq.create_queue('q') > :second AS newer;
SELECT (idemq.enqueue('q', '2')).outcome;
COMMIT;
SELECT payload, idemq.commit(id, token) FROM idemq.claim('q', 10);
-- A user's trigger that fires after ours and still sees the row of before: what it has the session read is not kept.
CREATE FUNCTION look() RETURNS trigger STABLE LANGUAGE plpgsql AS $$ BEGIN PERFORM idemq_internal.may_see(NEW.queue_id); RETURN NULL; END $$;
CREATE TRIGGER later AFTER UPDATE ON idemq.queues FOR EACH ROW EXECUTE FUNCTION look();
BEGIN;
UPDATE idemq.queues SET max_attempts = 11 WHERE name = 'q';
SELECT id FROM idemq.enqueue('q', '3') \gset
SELECT max_attempts FROM idemq.jobs WHERE id = :id;
ROLLBACK;
DROP TRIGGER later ON idemq.queues;
DROP FUNCTION look;
-- More queues than a session reads one by one.
\set n 100
SET client_min_messages = error;
DO $$
BEGIN
	FOR i IN 1 .. 100 LOOP
		PERFORM idemq.create_queue('many' || i, retry_jitter => 0);
	END LOOP;
END $$;
RESET client_min_messages;
SELECT count((idemq.enqueue(name, '1')).id) = :n AS all_of_them FROM idemq.queues WHERE name LIKE 'many%';
SELECT count(*) = :n AS all_of_them, count(DISTINCT queue) = :n AS each FROM idemq.claim_any((SELECT array_agg(name) FROM idemq.queues WHERE name LIKE 'many%'), 10000, lease => '1 h');
SELECT count(*) FROM idemq.claim_any((SELECT array_agg(name) FROM idemq.queues WHERE name LIKE 'many%'), 10000);
SELECT count(*) = :n - 10 AS committed FROM (SELECT idemq.commit(j.id, token) FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE name LIKE 'many%' AND status = 'running' ORDER BY j.id LIMIT :n - 10) s;
SELECT idemq.fail(id, token, retry_in => '0'), idemq.try_commit(id, token) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name LIKE 'many%' AND status = 'running';
SELECT count(*), min(attempt), max(attempt) FROM idemq.claim_any((SELECT array_agg(name) FROM idemq.queues WHERE name LIKE 'many%'), 10000);
SELECT count(idemq.drop_queue(name, true)::text) = :n AS dropped FROM (SELECT name FROM idemq.queues WHERE name LIKE 'many%' OFFSET 0) s;

-- No queue has the id 0, which means all elsewhere.
SELECT idemq.create_queue('zero') > 0 AS id;
SELECT idemq_internal.may_see(0), idemq_internal.may_use(0), idemq_internal.may_administer(0), (SELECT count(*) FROM idemq.check()) AS found;
