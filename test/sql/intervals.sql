-- Schedules with an interval ('every 10 s') instead of a cron expression, and paused schedules.  No background worker runs here,
-- so the test calls idemq.tick().  t/intervals.pl tests schedules with the worker.
CREATE EXTENSION idemq;
SET timezone = 'UTC';
\pset null -
SELECT idemq.create_queue('q') > 0 AS made;

-- ---- Which expressions are intervals

CREATE FUNCTION said(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE statement;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
	RETURN concat_ws(' | ', SQLSTATE, SQLERRM, detail);
END $$;
SELECT c AS interval, idemq.next_tick(c, after => '2026-11-30 09:00:03.5') FROM unnest(ARRAY['every 1 s', 'every 10 s', 'every 7 second', 'every 59 seconds', 'every 60 s',
	'every 90 s', 'every 1 min', 'every 5 minute', 'every 1440 minutes', 'every 1 h', 'every 12 hour', 'every 24 hours', 'every 86400 s', 'every 007 s',
	'EVERY 10 S', '  every	 10   Min	']) WITH ORDINALITY t(c, n) ORDER BY n;
SELECT said(format('SELECT idemq.next_tick(%L)', c)) FROM unnest(ARRAY['every 0 s', 'every 25 h', 'every 86401 s', 'every 1441 min', 'every 1.5 s', 'every -1 s', 'every +1 s', 'every 1e1 s', 'every ten s',
	'every', 'every 10', 'every s', 'every second', 'every 10s', 'every 5 m', 'every 1 day', 'every 1 week', 'every 1000 ms', 'every 10 s 5 s', 'every 10 s * * *', 'every 1 h 30 min',
	'every 99999999999999999999999999 h', 'every ' || repeat('9', 90) || ' s', 'every 1 ' || repeat('s', 90), 'every 10 s' || chr(10), 'every 10 é', 'everyday', 'every10 s', '@every 10 s', '10 min', repeat(' ', 1020) || 'every 10 s'])
	WITH ORDINALITY t(c, n) ORDER BY n;
SELECT idemq.next_tick('every 0 s');
-- A time zone is refused, even UTC under another name.
SELECT idemq.next_tick('every 10 s', 'Europe/Berlin');
SELECT said(format('SELECT idemq.%s(''every 10 s'', %s)', f, z)) FROM unnest(ARRAY['next_tick', 'last_tick']) f, unnest(ARRAY['''Etc/UTC''', '''utc''', '''Mars/Olympus''', '''''', 'NULL']) z;

-- ---- Ticks are multiples of the interval since 1970-01-01 00:00 UTC, regardless of the calendar

SELECT bool_and(mod(extract(epoch FROM idemq.next_tick(c, after => t)), n) = 0 AND idemq.next_tick(c, after => t) > t AND idemq.next_tick(c, after => t) <= t + make_interval(secs => n)
	AND idemq.last_tick(c, until => t) = idemq.next_tick(c, after => t) - make_interval(secs => n)) AS right, count(*) > 1000 AS many
	FROM unnest(ARRAY[1, 7, 59, 61, 3599, 3600, 43200, 86399, 86400]) n, format('every %s s', n) c,
	generate_series('2026-03-28 22:00:00.000001'::timestamptz, '2026-03-29 06:00', '4 min 1.7 s') t;
-- Every 7 s does not restart at midnight; at a tick, last_tick returns this tick and next_tick the one after it; times before 1970.
SELECT idemq.next_tick('every 7 s', after => '2026-11-30 23:59:57'), idemq.last_tick('every 7 s', until => '2026-12-01 00:00:02');
SELECT t, idemq.last_tick('every 10 s', until => t), idemq.next_tick('every 10 s', after => t)
	FROM unnest('{2026-11-30 09:00:10,2026-11-30 09:00:09.999999,1970-01-01,1969-12-31 23:59:59.5,1969-12-31 23:59:50,infinity,-infinity,9999-06-01,0044-03-15 BC}'::timestamptz[]) t;

-- ---- Without the worker, less than a minute requires pg_cron 1.5, which is not installed here

\set VERBOSITY default
SELECT idemq.schedule('a', 'every 59 s', 'q', '1');
CALL idemq.tick();
-- A recent call of idemq.tick() is enough for an interval of a minute or more, but not for a shorter one.
SELECT said($$SELECT idemq.schedule('a', 'every 59 s', 'q', '1')$$);
SELECT said(format('SELECT idemq.schedule(%s, %L, ''q'', ''1'', %s)', n, c, z)) FROM (VALUES ('NULL', 'every 60 s', '''UTC'''), ('''a''', 'every 0 s', '''UTC'''), ('''a''', 'every 25 h', '''UTC'''),
	('''a''', 'every 1.5 s', '''UTC'''), ('''a''', 'every 60 s', '''Europe/Berlin'''), ('''a''', 'every 60 s', 'NULL'), ('''a''', NULL, '''UTC''')) v (n, c, z);
SELECT count(*) FROM idemq.schedules;
SELECT idemq.schedule('a', 'every 24 h', 'q', '1') = date_trunc('day', now()) + interval '1 day' AS midnight;
SELECT name, cron, time_zone, next_run = date_trunc('day', now()) + interval '1 day' AS midnight, paused_at FROM idemq.schedules;

-- ---- Ticks of a daily schedule.  t/intervals.pl tests ticks every second with the worker

CREATE FUNCTION miss(schedule text, since interval) RETURNS boolean LANGUAGE sql AS $$ UPDATE idemq_internal.schedule_entries SET done_until = clock_timestamp() - since WHERE name = schedule RETURNING true $$;
SELECT miss('a', '10 days');
SELECT next_run = date_trunc('day', now()) AS today FROM idemq.schedules;
CALL idemq.tick();
CALL idemq.tick();
SELECT replace(key, to_char(now(), 'YYYY-MM-DD'), 'TODAY') AS key, payload FROM idemq.jobs;
-- A schedule that is created again unchanged keeps the tick that is due; with another expression, even of the same length, it starts from now.
SELECT miss('a', '10 days');
SELECT idemq.schedule('a', 'every 24 h', 'q', '2') = date_trunc('day', now()) AS due;
SELECT idemq.schedule('a', 'every 1440 min', 'q', '2') > now() AS to_come;
SELECT miss('a', '10 days');
SELECT idemq.schedule('a', '0 0 * * *', 'q', '2') > now() AS to_come;
SELECT idemq.schedule('a', 'every 24 h', 'q', '2') > now() AS to_come;

-- ---- Paused schedules

DELETE FROM idemq.jobs;
SELECT idemq.pause_schedule('a');
SELECT name, next_run, paused_at BETWEEN now() - interval '1 min' AND clock_timestamp() AS paused FROM idemq.schedules;
SELECT paused_at AS paused FROM idemq.schedules \gset
-- A second pause has no effect.
SELECT idemq.pause_schedule('a');
SELECT paused_at = :'paused' AS same FROM idemq.schedules;
-- No driver enqueues ticks of it.
SELECT miss('a', '10 days');
CALL idemq.tick();
SELECT idemq_internal.run_schedule('a'), idemq_internal.run_schedules('{a,none}', '{NULL,NULL}'), idemq_internal.due_schedules();
SELECT count(*) FROM idemq.jobs;
-- run_schedule_now still works.
SELECT idemq.run_schedule_now('a') > 0 AS runs;
DELETE FROM idemq.jobs;
-- If it is created again, it stays paused, even with another expression.
SELECT idemq.schedule('a', 'every 24 h', 'q', '3'), idemq.schedule('a', 'every 12 h', 'q', '3'), idemq.schedule('a', 'every 24 h', 'q', '3');
SELECT paused_at = :'paused' AS same, payload FROM idemq.schedules;
-- A paused schedule does not require a driver.
UPDATE idemq_internal.ticker SET called_at = called_at - interval '11 min';
UPDATE idemq_internal.schedule_entries SET created_at = created_at - interval '11 min', done_until = now() - interval '3 days';
SELECT * FROM idemq.check();
CALL idemq.tick();
-- After resume_schedule, it continues with the next tick.
SELECT idemq.resume_schedule('a') = date_trunc('day', now()) + interval '1 day' AS tomorrow;
SELECT name, next_run = date_trunc('day', now()) + interval '1 day' AS tomorrow, paused_at FROM idemq.schedules;
CALL idemq.tick();
SELECT count(*) FROM idemq.jobs;
-- resume_schedule keeps the due tick of a schedule that is not paused.
SELECT miss('a', '10 days');
SELECT idemq.resume_schedule('a') = date_trunc('day', now()) AS due;
CALL idemq.tick();
SELECT replace(key, to_char(now(), 'YYYY-MM-DD'), 'TODAY') AS key FROM idemq.jobs;
-- A place is only a hint: if it is wrong, the row is found by name, and no other schedule runs.
SELECT idemq.schedule('b', 'every 24 h', 'q', '1') > now() AS to_come;
-- As a deployment repeats it: nothing changes, and the audit below has no row of it.
SELECT idemq.schedule('b', 'every 24 h', 'q', '1') > now() AS to_come;
CREATE VIEW places AS SELECT array_agg(ctid::text ORDER BY name) AS place FROM idemq_internal.schedule_entries;
DELETE FROM idemq.jobs;
SELECT miss('a', '10 days'), miss('b', '10 days');
SELECT r.due[1] > now() AS to_come, array_length(r.due, 1) AS due, r.place[1] AS came FROM places p, idemq_internal.run_schedules('{a}', p.place[2:2]) r \gset
SELECT :'to_come' AS to_come, :due AS due, :'came' = place[1] AS place FROM places;
SELECT split_part(key, '@', 1) AS ran FROM idemq.jobs;
SELECT miss('a', '10 days');
DELETE FROM idemq.jobs;
SELECT array_length(due, 1), 'infinity' <> ALL (due) AS due FROM places p, idemq_internal.run_schedules('{a,b}', ARRAY[p.place[2], p.place[1]]) r;
SELECT split_part(key, '@', 1) AS ran FROM idemq.jobs ORDER BY 1;
SELECT miss('a', '10 days');
DELETE FROM idemq.jobs;
SELECT array_length(due, 1) FROM idemq_internal.run_schedules('{a}', '{"(4000000000,65535)"}');
SELECT split_part(key, '@', 1) AS ran FROM idemq.jobs;
SELECT idemq.unschedule('b');
-- Each call that changed something is in the audit.
SELECT action, queue, details FROM idemq.audit WHERE action ~ 'schedule' ORDER BY id;
-- A schedule whose done_until is ahead of the clock, and one that has failed: resuming does not change this.
SELECT idemq.pause_schedule('a');
UPDATE idemq_internal.schedule_entries SET done_until = now() + interval '5 min', failed_at = now(), last_error = 'x';
SELECT idemq.resume_schedule('a') > now() AS to_come;
SELECT done_until > now() + interval '4 min' AS kept, last_error FROM idemq_internal.schedule_entries;
-- A schedule is deleted while it is paused; a new one with its name is not paused.
SELECT idemq.pause_schedule('a');
SELECT idemq.unschedule('a');
SELECT idemq.schedule('a', 'every 24 h', 'q', '1') > now() AS to_come;
-- A rollback undoes a pause, even a rollback to a savepoint.
BEGIN;
SELECT idemq.pause_schedule('a');
SAVEPOINT s;
SELECT idemq.resume_schedule('a') > now() AS to_come;
ROLLBACK TO s;
SELECT paused_at IS NOT NULL AS paused FROM idemq.schedules;
ROLLBACK;
SELECT paused_at FROM idemq.schedules;
-- Invalid arguments, schedules that do not exist, a read-only transaction.
SELECT said(format('SELECT idemq.%s(%s)', f, n)) FROM unnest(ARRAY['pause_schedule', 'resume_schedule']) f, unnest(ARRAY['NULL', '''''', '''none''', 'repeat(''x'', 257)']) n;
BEGIN READ ONLY;
SELECT idemq.pause_schedule('a');
ROLLBACK;

-- ---- Privileges: the role that created the schedule, members of that role, and administrators of the queue

CREATE ROLE regress_pause_maker;
CREATE ROLE regress_pause_mate IN ROLE regress_pause_maker;
CREATE ROLE regress_pause_other;
CREATE ROLE regress_pause_boss;
CREATE ROLE regress_pause_eye IN ROLE pg_monitor;
SELECT idemq.grant_queue('q', 'regress_pause_maker', 'enqueue'), idemq.grant_queue('q', 'regress_pause_other', 'enqueue'), idemq.grant_queue('q', 'regress_pause_other', 'claim'), idemq.grant_queue('q', 'regress_pause_boss', 'admin');
SET ROLE regress_pause_maker;
SELECT idemq.schedule('made', 'every 1 h', 'q', '1') > now() AS to_come;
\set VERBOSITY default
SET ROLE regress_pause_other;
SELECT idemq.pause_schedule('made');
\set VERBOSITY terse
SELECT idemq.resume_schedule('made');
SET ROLE regress_pause_eye;
SELECT idemq.pause_schedule('made');
SET ROLE regress_pause_mate;
SELECT idemq.pause_schedule('made');
SET ROLE regress_pause_other;
SELECT name, paused_at IS NOT NULL AS paused, next_run, payload FROM idemq.schedules WHERE name = 'made';
SELECT idemq.resume_schedule('made');
SET ROLE regress_pause_eye;
SELECT name, paused_at IS NOT NULL AS paused, payload FROM idemq.schedules WHERE name = 'made';
SET ROLE regress_pause_boss;
SELECT idemq.resume_schedule('made') > now() AS to_come;
SELECT idemq.pause_schedule('made');
RESET ROLE;
SELECT action, role FROM idemq.audit WHERE details->>'schedule' = 'made' ORDER BY id;
-- As with unschedule, the role that created it needs no privilege on the queue.
SELECT idemq.grant_queue('q', 'regress_pause_maker', 'claim'), idemq.revoke_queue('q', 'regress_pause_maker', 'enqueue');
SET ROLE regress_pause_maker;
SELECT idemq.resume_schedule('made') > now() AS to_come;
RESET ROLE;

-- ---- If the place of its row is known, a tick does not search by name, and the check of its own key does not either

BEGIN;
CREATE FUNCTION scans() RETURNS bigint LANGUAGE sql AS $$ SELECT seq_scan + idx_scan FROM pg_stat_xact_all_tables WHERE relid = 'idemq_internal.schedule_entries'::regclass $$;
SELECT miss('a', '10 days');
DELETE FROM idemq.jobs;
SELECT ctid AS place FROM idemq_internal.schedule_entries WHERE name = 'a' \gset
SELECT scans() AS before \gset
SELECT due[1] > now() AS to_come FROM idemq_internal.run_schedules('{a}', ARRAY[:'place']);
SELECT scans() - :before AS scans;
SELECT key AS tick FROM idemq.jobs WHERE headers->>'schedule' = 'a' \gset
SELECT starts_with(:'tick', 'a@') AS is_tick;
-- After the tick, no other role can use its key.
DELETE FROM idemq.jobs;
SET LOCAL ROLE regress_pause_other;
\set VERBOSITY sqlstate
SELECT idemq.enqueue('q', '"other"', key => :'tick', on_duplicate => 'ignore');
ROLLBACK;

-- ---- At other isolation levels: if the schedule has ticked since the snapshot, the call raises 40001; a new transaction succeeds

\set VERBOSITY sqlstate
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idemq.pause_schedule('a');
SELECT idemq.resume_schedule('a') > now() AS to_come;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idemq.pause_schedule('a');
COMMIT;
SELECT paused_at IS NOT NULL AS paused FROM idemq.schedules WHERE name = 'a';

SELECT idemq.unschedule(name) FROM unnest('{a,made}'::text[]) name;
SELECT * FROM idemq.check();
DROP VIEW places;
DROP FUNCTION said, miss;
DROP EXTENSION idemq;
DROP ROLE regress_pause_maker, regress_pause_mate, regress_pause_other, regress_pause_boss, regress_pause_eye;
