-- Schedules without pg_cron: cron expressions, time zones, errors, ticks as a driver calls them.
CREATE EXTENSION idemq;
SET timezone = 'UTC';
\pset null -
SELECT idemq.create_queue('q', lease => '1 h') > 0 AS made;

-- Nothing calls idemq.tick here: a clear error, with the three lines.
SELECT idemq.schedule('a', '0 0 1 1 *', 'q', '1');
\set VERBOSITY terse
-- Something does.
CALL idemq.tick();
SELECT idemq.schedule('a', '0 0 1 1 *', 'q', '1') = date_trunc('year', now()) + interval '1 year' AS next_year;
SELECT name, queue, cron, time_zone, next_run > now() AS to_come, last_run, last_job, failed_at, last_error, payload, headers, group_key,
	priority, max_attempts, expires_in, created_by = current_user AS mine, created_at <= now() AS made FROM idemq.schedules;

-- ---- Cron expressions
\set VERBOSITY default
-- What is none, and why.
CREATE FUNCTION refused(cron text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE detail text; state text;
BEGIN
	PERFORM idemq.next_tick(cron);
	RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, state = RETURNED_SQLSTATE;
	RETURN concat_ws(' ', state, detail);
END $$;
SELECT left(c, 30) AS cron, refused(c) FROM unnest(ARRAY[
	'60 * * * *', '* 24 * * *', '* * 0 * *', '* * 32 * *', '* * * 0 *', '* * * 13 *', '* * * * 8', '-1 * * * *',
	'* * * *', '0 * * * * *', '', ' ', '* * * * MON#1', '* * L * *', '5/15 * * * *', '*/0 * * * *', '*/61 * * * *', '*/90 * * * *', '*/ * * * *', '10-5 * * * *',
	'* * * * fri-mon', '1,,2 * * * *', '1, * * * *', ', * * * *', '1- * * * *', '* * * january *', '* * * * monday', 'mon * * * *', '? * * * *', '** * * * *', '*5 * * * *',
	'1.5 * * * *', '99999999999999999999 * * * *', '@reboot', '@every 5m', '@hourly 1', '10 minutes', E'0 * * * *\n', '* * * * é', repeat('é', 90), repeat('1,', 300) || '1 * * * *', repeat('1', 1100)]) WITH ORDINALITY t(c, n) ORDER BY n;
SELECT idemq.next_tick('60 * * * *');
-- What other programs take for the last day of the month: the hint says what to write.
SELECT idemq.next_tick('0 0 L * *');
CREATE FUNCTION hint(cron text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE hint text;
BEGIN
	PERFORM idemq.next_tick(cron);
	RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN left(hint, 33);
END $$;
SELECT c AS cron, hint(c) FROM unnest(ARRAY['0 0 $ * *', '0 0 l * *', '  0	0  15,L * *', '0 0 L-2 * *', '0 0 LW * *', '0 0 X * *', '0 0 jul * *', '0 0 * jul L', 'L', '0 L', '0 0 1 L *']) c;
SELECT idemq.next_tick(NULL);
SELECT idemq.next_tick('* * * * *', NULL);
SELECT idemq.next_tick('* * * * *', 'UTC', NULL);
SELECT z, idemq.next_tick('* * * * *', z, '2026-01-01') FROM unnest(ARRAY['UTC', 'Europe/Berlin', 'europe/berlin']) z;
SELECT idemq.next_tick('* * * * *', 'Mars/Olympus');
SELECT idemq.next_tick('* * * * *', '../../etc/passwd');
SELECT idemq.next_tick('* * * * *', '');

-- What is one: the ticks that follow.
CREATE FUNCTION ticks(cron text, zone text, after timestamptz, until timestamptz, most int DEFAULT 100000) RETURNS SETOF timestamptz LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. most LOOP
		after := idemq.next_tick(cron, zone, after);
		EXIT WHEN after IS NULL OR after > until;
		RETURN NEXT after;
	END LOOP;
END $$;
CREATE FUNCTION shown(cron text, n int) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(to_char(t, 'Dy YYYY-MM-DD HH24:MI'), ', ' ORDER BY t) FROM ticks(cron, 'UTC', '2026-01-30 22:58', 'infinity', n) t
$$;
SELECT c, shown(c, 4) FROM unnest(ARRAY[
	'* 0-23 * * *', '*/20 * * * *', '7-59/20 * * * *', '5,35 * * * *', '0 3 * * *', '0 9-17/4 * * *', '0 0 31 * *', '0 0 29 feb *', '0 0 29 2 7', '0 0 */29 2 */7',
	'0 12 * * mon-fri', '0 12 * * SUN,Sat', '0 0 13 * fri', '0 0 */2 * mon', '0 0 1 jan,JUL *', '  0   0	1  1   * ', '0 0 * * 7', '0 0 * * 0', '0 0 * * 5-7', '0-10/5,58 22,23 30-31 1 *',
	'@hourly', '@daily', '@midnight', '@weekly', '@monthly', '@yearly', '@annually', '@Daily', ' @daily ']) WITH ORDINALITY u(c, n) ORDER BY n;
-- Never; and beyond what a key can show.
SELECT idemq.next_tick('* * 31 2 *'), idemq.next_tick('0 0 30 2 *'), idemq.last_tick('* * 31 4,6,9,11 *');
SELECT t, idemq.next_tick('* * * * *', 'UTC', t), idemq.last_tick('* * * * *', 'UTC', t) FROM unnest('{infinity,-infinity,9998-12-31 23:59:30,9999-06-01,294276-12-31,0044-03-15 12:00:30,0044-03-15 12:00 BC,1969-12-31 23:59:59.5}'::timestamptz[]) t;
SELECT idemq.next_tick('0 0 29 2 *', 'UTC', '2096-03-01');
-- After is after, until is until, to the microsecond.
SELECT t::text, idemq.next_tick('* * * * *', 'UTC', t), idemq.last_tick('* * * * *', 'UTC', t) FROM unnest('{2026-01-01 11:59:59.999999,2026-01-01 12:00,2026-01-01 12:00:00.000001}'::timestamptz[]) t;

-- ---- Time zones
-- The local clock jumps from 2 to 3 and, in autumn, from 3 back to 2.
SELECT c, string_agg(to_char(t, 'DD HH24:MI'), ', ' ORDER BY t) AS skipped FROM unnest(ARRAY['30 2 * * *', '*/20 2 * * *', '0 */2 * * *', '30 * * * *', '0 3 * * *', '0 1-3 * * *']) c, ticks(c, 'Europe/Berlin', '2026-03-28 22:00', '2026-03-29 05:00') t GROUP BY 1 ORDER BY 1;
SELECT c, string_agg(to_char(t, 'DD HH24:MI'), ', ' ORDER BY t) AS twice FROM unnest(ARRAY['30 2 * * *', '*/20 2 * * *', '0 */2 * * *', '30 * * * *', '0 3 * * *', '0 1-3 * * *']) c, ticks(c, 'Europe/Berlin', '2026-10-24 22:00', '2026-10-25 05:00') t GROUP BY 1 ORDER BY 1;
-- The rule, minute by minute: a fixed time ticks when the local clock first reaches or passes it; every hour, whenever the clock shows it.
CREATE TABLE jumps (zone text, begins timestamptz, ends timestamptz);
INSERT INTO jumps VALUES ('Europe/Berlin', '2026-03-27', '2026-03-31'), ('Europe/Berlin', '2026-10-23', '2026-10-27'), ('America/New_York', '2026-03-06', '2026-03-10'),
	('America/New_York', '2026-10-30', '2026-11-03'), ('Australia/Lord_Howe', '2026-04-02', '2026-04-07'), ('Australia/Lord_Howe', '2026-10-01', '2026-10-06'),
	('America/St_Johns', '2006-10-27', '2006-10-31'), ('America/St_Johns', '2006-03-31', '2006-04-04'), ('America/Havana', '2026-03-06', '2026-03-10'), ('America/Havana', '2026-10-30', '2026-11-03'),
	('America/Santiago', '2026-09-04', '2026-09-08'), ('America/Santiago', '2026-04-03', '2026-04-07'), ('Pacific/Apia', '2011-12-27', '2012-01-02'), ('Asia/Kathmandu', '2026-03-27', '2026-03-29'), ('UTC', '2026-03-27', '2026-03-29'),
	('Africa/Casablanca', '2087-04-01', '2087-06-01'), ('Europe/Berlin', '2099-10-23', '2099-10-27');
CREATE TABLE crons (cron text, minutes int[], hours int[]);
INSERT INTO crons VALUES ('*/15 * * * *', '{0,15,30,45}', NULL), ('7 * * * *', '{7}', NULL), ('7 0-23 * * *', '{7}', NULL), ('30 2 * * *', '{30}', '{2}'), ('*/10 0-3 * * *', '{0,10,20,30,40,50}', '{0,1,2,3}'),
	('0 0 * * *', '{0}', '{0}'), ('1,59 23,0 * * *', '{1,59}', '{0,23}'), ('0 */2 * * *', '{0}', '{0,2,4,6,8,10,12,14,16,18,20,22}');
CREATE TABLE clock AS SELECT zone, begins, t, t AT TIME ZONE zone AS shows FROM jumps, generate_series(begins - interval '2 days', ends + interval '2 days', '1 min') t;
CREATE INDEX ON clock (zone, begins, t);
ANALYZE clock;
CREATE FUNCTION expected(j jumps, minutes int[], hours int[]) RETURNS SETOF timestamptz STABLE LANGUAGE sql AS $$
	SELECT t FROM clock c WHERE c.zone = j.zone AND c.begins = j.begins AND hours IS NULL AND extract(minute FROM shows)::int = ANY (minutes) AND t > j.begins AND t <= j.ends
	UNION SELECT t FROM generate_series(j.begins::date - 1, j.ends::date + 1, '1 day') day, unnest(hours) h, unnest(minutes) m, make_interval(hours => h, mins => m) at,
		LATERAL (SELECT t FROM clock c WHERE c.zone = j.zone AND c.begins = j.begins AND t > day - interval '15 h' + at AND shows >= (day AT TIME ZONE 'UTC') + at ORDER BY t LIMIT 1) first
	WHERE t > j.begins AND t <= j.ends
$$;
CREATE TABLE compared AS SELECT *, ARRAY(SELECT t FROM ticks(cron, zone, begins, ends) t ORDER BY 1) AS forward, ARRAY(SELECT t FROM expected(jumps, minutes, hours) t ORDER BY 1) AS expected FROM jumps, crons
	WHERE ends - begins < interval '10 days' OR cron IN ('30 2 * * *', '7 * * * *');
SELECT count(*), sum(cardinality(expected)) > 3000 AS many FROM compared;
SELECT zone, begins, cron, (SELECT string_agg(t::text, ', ') FROM (SELECT unnest(forward) EXCEPT SELECT unnest(expected)) x(t)) AS too_many,
	(SELECT string_agg(t::text, ', ') FROM (SELECT unnest(expected) EXCEPT SELECT unnest(forward)) x(t)) AS missing FROM compared WHERE forward <> expected;
-- Backward, as forward.
SELECT zone, begins, cron FROM compared WHERE ARRAY(SELECT DISTINCT idemq.last_tick(cron, zone, u) FROM unnest(forward) f, unnest(ARRAY[f, f + interval '00:00:01']) u ORDER BY 1) <> forward;
SELECT zone, begins, cron FROM compared WHERE ARRAY(SELECT idemq.last_tick(cron, zone, f - interval '1 us') FROM unnest(forward) f ORDER BY 1 OFFSET 1) <> forward[:cardinality(forward) - 1];

-- ---- Arguments
\set VERBOSITY terse
SELECT idemq.schedule(NULL, '0 0 1 1 *', 'q', '1');
SELECT idemq.schedule('', '0 0 1 1 *', 'q', '1');
SELECT idemq.schedule(repeat('x', 257), '0 0 1 1 *', 'q', '1');
SELECT idemq.schedule('b', NULL, 'q', '1');
SELECT idemq.schedule('b', '* * 31 2 *', 'q', '1');
SELECT idemq.schedule('b', '@reboot', 'q', '1');
SELECT idemq.schedule('b', '0 0 1 1 *', NULL, '1');
SELECT idemq.schedule('b', '0 0 1 1 *', 'nope', '1');
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', NULL);
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', NULL);
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', 'Mars/Olympus');
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', priority => 10);
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', priority => NULL);
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', group_key => '');
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', max_attempts => 0);
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', headers => '[1]');
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', headers => '"x"');
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1', expires_in => '0');
SELECT idemq.unschedule(NULL);
BEGIN READ ONLY;
SELECT idemq.schedule('b', '0 0 1 1 *', 'q', '1');
ROLLBACK;
BEGIN READ ONLY;
SELECT idemq.unschedule('a');
ROLLBACK;
SELECT count(*) FROM idemq.schedules;
-- tick ends transactions: not in a block.
BEGIN;
CALL idemq.tick();
ROLLBACK;

-- ---- Ticks
CREATE FUNCTION miss(schedule text, since interval) RETURNS boolean LANGUAGE sql AS $$ UPDATE idemq_internal.schedule_entries SET done_until = clock_timestamp() - since WHERE name = schedule RETURNING true $$;
CREATE VIEW enqueued AS SELECT id, replace(key, to_char(idemq.last_tick('0 0 1 1 *'), 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), 'NOW') AS key, payload, headers - 'tick' AS headers,
	headers ->> 'tick' = split_part(key, '@', -1) AS tick, priority, max_attempts, expires_at IS NOT NULL AS expires, status FROM idemq.jobs;
-- Three ticks were missed: the last one, under its own time, once.
SELECT miss('a', '3 years');
CALL idemq.tick();
CALL idemq.tick();
SELECT key, payload, headers, tick, priority, max_attempts, expires, status FROM enqueued;
SELECT next_run > now() AS to_come, last_run = idemq.last_tick('0 0 1 1 *') AS ran, last_job = (SELECT max(id) FROM idemq.jobs) AS job FROM idemq.schedules;
-- The row forgets (a restore): the key does not.
SELECT miss('a', '3 years');
CALL idemq.tick();
SELECT count(*) FROM idemq.jobs;
SELECT last_job = (SELECT max(id) FROM idemq.jobs) AS job, failed_at FROM idemq.schedules;
-- Made again as it is, it keeps the tick that is due, with what is new; changed, it begins anew.
DELETE FROM idemq.jobs;
SELECT miss('a', '3 years');
SELECT idemq.schedule('a', '0 0 1 1 *', 'q', '{"n": 2}', priority => 1, max_attempts => 3, headers => '{"trace": 7, "tick": "x"}', expires_in => '2 years') = idemq.last_tick('0 0 1 1 *') AS due;
CALL idemq.tick();
SELECT key, payload, headers, tick, priority, max_attempts, expires, status FROM enqueued;
SELECT miss('a', '3 years');
SELECT idemq.schedule('a', '0 0 1 jan *', 'q', '1') > now() AS to_come;
SELECT miss('a', '3 years');
SELECT idemq.schedule('a', '0 0 1 jan *', 'q', '1', 'Asia/Tokyo') > now() AS to_come;
CALL idemq.tick();
SELECT count(*) FROM idemq.jobs;
-- A schedule's time zone: noon in Tokyo was at 3 in UTC.
SELECT idemq.unschedule('a');
SELECT idemq.schedule('noon', '0 12 * * *', 'q', '1', 'Asia/Tokyo') > now() AS to_come;
SELECT miss('noon', '1 day');
CALL idemq.tick();
SELECT right(key, 10) FROM idemq.jobs ORDER BY id DESC LIMIT 1;
-- Later than its expires_in: it is left out, and says so.
SELECT idemq.schedule('noon', '0 0 1 1 *', 'q', '1', expires_in => '1 us') > now() AS to_come;
SELECT miss('noon', '1 year');
CALL idemq.tick();
SELECT next_run > now() AS to_come, last_run = idemq.last_tick('0 0 1 1 *') AS ran, failed_at <= now() AS failed, last_error FROM idemq.schedules;
SELECT idemq.unschedule('noon'), idemq.unschedule('noon'), idemq.unschedule('nope');
DELETE FROM idemq.jobs;
-- One that has failed is tried last: whoever holds it up does not hold up the others.
SELECT count(idemq.schedule(name, '0 0 1 1 *', 'q', '1')) FROM unnest(ARRAY['a held', 'b']) name;
UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '1 year', failed_at = CASE name WHEN 'a held' THEN now() END;
SELECT idemq_internal.due_schedules();
SELECT idemq.unschedule('a held'), idemq.unschedule('b');
-- The clock was set back behind done_until: it goes on with the next tick.
SELECT idemq.schedule('back', '* 0-23 * * *', 'q', '1') > now() AS to_come;
UPDATE idemq_internal.schedule_entries SET done_until = now() + interval '1 day';
CALL idemq.tick();
SELECT next_run < now() + interval '61 s' AS next_minute FROM idemq.schedules;
SELECT done_until <= clock_timestamp() AS goes_on FROM idemq_internal.schedule_entries;
-- By a few minutes, whose ticks are enqueued: it waits, and says so.
UPDATE idemq_internal.schedule_entries SET done_until = now() + interval '5 min';
CALL idemq.tick();
SELECT next_run > now() + interval '4 min' AS later FROM idemq.schedules;
SELECT done_until > clock_timestamp() AS waits FROM idemq_internal.schedule_entries;
SELECT idemq.unschedule('back');
-- Names of any kind, long ones too.
CREATE TABLE odd (name text);
INSERT INTO odd VALUES ('it''s "quoted"'), ('$$; DROP TABLE idemq.jobs; --'), (E'line\nfeed'), ('ümlaut %s'), (repeat('ü', 128)), ('a@2026-01-01T00:00:00Z'), (' '), ('NULL');
SELECT count(idemq.schedule(name, '0 0 1 1 *', 'q', to_jsonb(name))) FROM odd;
SELECT count(miss(name, '1 year')) FROM odd;
CALL idemq.tick();
SELECT count(*), count(*) FILTER (WHERE key = format('%s@%s', payload #>> '{}', headers ->> 'tick') AND headers ->> 'schedule' = payload #>> '{}') AS right FROM idemq.jobs;
SELECT bool_and(idemq.unschedule(name)) FROM odd;
SELECT count(*) FROM idemq.schedules;
DELETE FROM idemq.jobs;
-- A paused queue accepts; they wait.
SELECT idemq.schedule('p', '0 0 1 1 *', 'q', '1') > now() AS to_come;
SELECT idemq.pause('q');
SELECT miss('p', '1 year');
CALL idemq.tick();
SELECT status, (SELECT count(*) FROM idemq.claim('q')) AS claimed FROM idemq.jobs;
SELECT idemq.resume('q');
SELECT count(*) FROM idemq.claim('q');
-- Undone with the transaction.
BEGIN;
SELECT idemq.unschedule('p');
SELECT idemq.schedule('r', '0 0 1 1 *', 'q', '1') > now() AS to_come;
SAVEPOINT s;
SELECT idemq.schedule('s', '0 0 1 1 *', 'q', '1') > now() AS to_come;
ROLLBACK TO s;
SELECT name FROM idemq.schedules;
ROLLBACK;
SELECT name FROM idemq.schedules;
-- A schedule goes with its queue.
SELECT idemq.create_queue('other') > 0 AS made;
SELECT idemq.schedule('o', '0 0 1 1 *', 'other', '1') > now() AS to_come;
SELECT idemq.drop_queue('other');
SELECT name FROM idemq.schedules;
SELECT idemq.create_queue('other') > 0 AS made;
CALL idemq.tick();
SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'other';

-- ---- Rights
CREATE ROLE regress_shop;
CREATE ROLE regress_mate IN ROLE regress_shop;
CREATE ROLE regress_other;
CREATE ROLE regress_boss;
CREATE ROLE regress_eye IN ROLE pg_monitor;
SELECT idemq.grant_queue('q', 'regress_shop', 'enqueue'), idemq.grant_queue('q', 'regress_other', 'enqueue'), idemq.grant_queue('q', 'regress_boss', 'admin'), idemq.grant_queue('other', 'regress_other', 'claim');
SELECT idemq.unschedule('p');
SET ROLE regress_shop;
SELECT idemq.schedule('shop', '0 0 1 1 *', 'q', '"secret"', headers => '{"h": 1}') > now() AS to_come;
SELECT idemq.schedule('x', '0 0 1 1 *', 'other', '1');
SELECT name, payload, headers FROM idemq.schedules;
SELECT * FROM idemq_internal.schedule_entries;
CALL idemq.tick();
SELECT idemq_internal.run_schedule('shop');
SET ROLE regress_other;
-- Another producer sees that it is there, and may not change it.
SELECT name, queue, next_run > now() AS to_come, payload, headers, created_by FROM idemq.schedules;
SELECT idemq.schedule('shop', '0 0 1 1 *', 'q', '"mine"');
SELECT idemq.unschedule('shop');
RESET ROLE;
SELECT idemq.revoke_queue('q', 'regress_other', 'enqueue');
SET ROLE regress_other;
-- A stranger sees nothing; one who only claims, neither.
SELECT name FROM idemq.schedules;
SELECT idemq.unschedule('shop');
SELECT idemq.schedule('other', '0 0 1 1 *', 'other', '1');
SET ROLE regress_eye;
SELECT name, queue, next_run > now() AS to_come, payload, headers, last_error FROM idemq.schedules;
SELECT idemq.unschedule('shop');
SET ROLE regress_mate;
SELECT name, payload FROM idemq.schedules;
SELECT idemq.schedule('shop', '0 0 1 1 *', 'q', '"mate"') > now() AS to_come;
SET ROLE regress_boss;
SELECT name, payload, created_by FROM idemq.schedules;
RESET ROLE;
-- The creator's rights are the schedule's.  One that fails does not keep others from running; the call fails in the end.
SELECT idemq.schedule('a first', '0 0 1 1 *', 'q', '1') > now() AS to_come;
SELECT idemq.schedule('z last', '0 0 1 1 *', 'q', '1') > now() AS to_come;
SELECT idemq.revoke_queue('q', 'regress_shop', 'enqueue');
DELETE FROM idemq.jobs;
SELECT count(miss(name, '1 year')) FROM idemq.schedules;
\set VERBOSITY default
CALL idemq.tick();
\set VERBOSITY terse
SELECT key FROM enqueued ORDER BY key;
SELECT name, next_run > now() AS to_come, failed_at <= now() AS failed, last_error FROM idemq.schedules ORDER BY 1;
SET ROLE regress_eye;
SELECT name, failed_at <= now() AS failed, last_error FROM idemq.schedules ORDER BY 1;
RESET ROLE;
-- Given back, it is made up for.
SELECT idemq.grant_queue('q', 'regress_shop', 'enqueue');
CALL idemq.tick();
SELECT key FROM enqueued ORDER BY key;
SELECT name, next_run > now() AS to_come, failed_at, last_error FROM idemq.schedules ORDER BY 1;
-- Its creator goes; an administrator takes it over.
SELECT miss('shop', '1 year');
DROP ROLE regress_mate;
CALL idemq.tick();
SET ROLE regress_boss;
SELECT idemq.schedule('shop', '0 0 1 1 *', 'q', '"boss"') < now() AS due;
RESET ROLE;
CALL idemq.tick();
SELECT created_by, failed_at, last_error, payload FROM idemq.schedules WHERE name = 'shop';
-- A right on idemq.enqueue that is gone counts as well.
REVOKE EXECUTE ON FUNCTION idemq.enqueue FROM PUBLIC;
SELECT miss('shop', '1 year');
CALL idemq.tick();
GRANT EXECUTE ON FUNCTION idemq.enqueue TO PUBLIC;
-- An expression or a zone that this server cannot read (a restore): this one fails, alone.
UPDATE idemq_internal.schedule_entries SET time_zone = 'Mars/Olympus' WHERE name = 'shop';
SELECT name, next_run FROM idemq.schedules WHERE name = 'shop';
CALL idemq.tick();
SELECT idemq.unschedule('shop');
-- ---- The key of a tick is the schedule's
SELECT idemq.grant_queue('q', 'regress_other', 'enqueue');
SET ROLE regress_shop;
SELECT idemq.schedule('keys', '0 0 1 1 *', 'q', '"tick"') > now() AS to_come;
SET ROLE regress_other;
\set VERBOSITY default
SELECT idemq.enqueue('q', '"instead"', key => 'keys@2030-01-01T00:00:00Z');
\set VERBOSITY terse
SELECT idemq.enqueue('q', '"instead"', key => 'keys@2030-01-01T00:00:00Z', on_duplicate => 'replace');
SELECT outcome FROM idemq.enqueue_many('q', '{1,2}', '{x,keys@2030-01-01T00:00:00Z}');
-- What has not its shape, or not its name, is anybody's.
SELECT key, (idemq.enqueue('q', '1', key => key)).outcome FROM unnest(ARRAY['keys', 'keys@', 'keys@2030-01-01T00:00:00', '@2030-01-01T00:00:00Z', 'other@2030-01-01T00:00:00Z', 'keys@2030-01-01 00:00:00Z', 'keys@x030-01-01T00:00:00Z', ' keys@2030-01-01T00:00:00Z', 'Z']) key;
-- The job of a tick is found, and not replaced, by others.
SET ROLE regress_shop;
SELECT (idemq.enqueue('q', '"by hand"', key => 'keys@2030-01-01T00:00:00Z')).outcome;
SET ROLE regress_other;
SELECT (idemq.enqueue('q', '"by hand"', key => 'keys@2030-01-01T00:00:00Z')).outcome;
SELECT idemq.enqueue('q', '"instead"', key => 'keys@2030-01-01T00:00:00Z', on_duplicate => 'replace');
SET ROLE regress_boss;
SELECT (idemq.enqueue('q', '"boss"', key => 'keys@2031-01-01T00:00:00Z')).outcome;
RESET ROLE;
-- Nor is it run once more for them, while it runs or when it is done.
SELECT id AS tick FROM idemq.jobs WHERE key = 'keys@2031-01-01T00:00:00Z' \gset
SELECT (idemq.claim_job(:tick)).outcome;
SET ROLE regress_other;
SELECT idemq.enqueue('q', '"instead"', key => 'keys@2031-01-01T00:00:00Z', on_duplicate => 'rerun');
RESET ROLE;
SELECT idemq.try_commit(id, token), payload, rerun_at IS NULL AS not_asked FROM idemq.jobs WHERE id = :tick;
SET ROLE regress_other;
SELECT idemq.enqueue('q', '"instead"', key => 'keys@2031-01-01T00:00:00Z', on_duplicate => 'rerun');
SET ROLE regress_shop;
SELECT (idemq.enqueue('q', '"again"', key => 'keys@2031-01-01T00:00:00Z', on_duplicate => 'rerun')).outcome;
RESET ROLE;
SELECT status, payload FROM idemq.jobs WHERE id = :tick;
SELECT idemq.grant_queue('q', 'regress_other', 'claim');
SET ROLE regress_other;
SELECT idemq.acquire('q', 'keys@2032-01-01T00:00:00Z', '1');
-- In a queue where there is no such schedule, as in all that there was before.
RESET ROLE;
SELECT (idemq.enqueue('other', '1', key => 'keys@2030-01-01T00:00:00Z')).outcome;
-- Taken before there was the schedule, it is an error, not a duplicate.
SET ROLE regress_other;
SELECT (idemq.enqueue('q', '"before"', key => 'late@' || to_char(idemq.last_tick('0 0 1 1 *') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), headers => '{"schedule": "late"}')).outcome;
SET ROLE regress_shop;
SELECT idemq.schedule('late', '0 0 1 1 *', 'q', '"tick"') > now() AS to_come;
RESET ROLE;
SELECT miss('late', '1 year');
\set VERBOSITY sqlstate
SELECT idemq_internal.run_schedule('late');
CALL idemq.tick();
\set VERBOSITY terse
SELECT name, regexp_replace(last_error, '\d+', 'N') AS last_error FROM idemq.schedules WHERE last_error IS NOT NULL;
DELETE FROM idemq.jobs WHERE key ~ '^late@';
SELECT idemq_internal.run_schedule('late');
SELECT payload FROM idemq.jobs WHERE key ~ '^late@';
-- In another queue it is as new there.
SELECT created_at AS made FROM idemq_internal.schedule_entries WHERE name = 'late' \gset
SELECT idemq.grant_queue('other', 'regress_shop', 'enqueue');
SET ROLE regress_shop;
SELECT idemq.schedule('late', '0 0 1 1 *', 'q', '"again"') > now() AS to_come;
RESET ROLE;
SELECT created_at = :'made' AS same FROM idemq_internal.schedule_entries WHERE name = 'late';
SET ROLE regress_shop;
SELECT idemq.schedule('late', '0 0 1 1 *', 'other', '"again"') > now() AS to_come;
RESET ROLE;
SELECT created_at > :'made' AS later FROM idemq_internal.schedule_entries WHERE name = 'late';
SELECT idemq.unschedule('late'), idemq.unschedule('keys');
-- So many for each role; superusers have no limit.
SET ROLE regress_other;
SELECT count(idemq.schedule('n' || n, '0 0 1 1 *', 'q', '1')) FROM generate_series(1, 100) n;
\set VERBOSITY default
SELECT idemq.schedule('n101', '0 0 1 1 *', 'q', '1');
\set VERBOSITY terse
SELECT idemq.schedule('n100', '0 0 1 1 *', 'q', '2') > now() AS to_come;
SELECT idemq.unschedule('n1');
SELECT idemq.schedule('n101', '0 0 1 1 *', 'q', '1') > now() AS to_come;
SET ROLE regress_shop;
SELECT idemq.schedule('n102', '0 0 1 1 *', 'q', '1') > now() AS to_come;
RESET ROLE;
SELECT count(idemq.schedule('s' || n, '0 0 1 1 *', 'q', '1')) FROM generate_series(1, 101) n;
SELECT count(idemq.unschedule(name)) FROM (SELECT name FROM idemq.schedules WHERE name ~ '^[ns]\d' OFFSET 0) s;
DELETE FROM idemq.jobs;

-- A deferred trigger that refuses a tick's job at COMMIT holds up no other schedule, and its error is noted.
CREATE FUNCTION refuse_late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF NEW.payload = '"late"' THEN RAISE 'refused'; END IF; RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER refuse_late AFTER INSERT ON idemq.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse_late();
SELECT idemq.schedule('b late', '0 0 1 1 *', 'q', '"late"') > now() AS b, idemq.schedule('c after', '0 0 1 1 *', 'q', '"after"') > now() AS c;
SELECT miss('b late', '1 year'), miss('c after', '1 year');
CALL idemq.tick();
SELECT name, last_error, last_run IS NOT NULL AS has_run FROM idemq.schedules WHERE name IN ('b late', 'c after') ORDER BY 1;
SELECT payload FROM idemq.jobs WHERE key ~ '^(b late|c after)@';
DROP TRIGGER refuse_late ON idemq.jobs;
SELECT idemq.unschedule('b late'), idemq.unschedule('c after');
DELETE FROM idemq.jobs;

-- At other isolation levels, and with a planted search_path, in a session that has not compiled it.
\c -
\set VERBOSITY terse
SET default_transaction_isolation = 'serializable';
CREATE FUNCTION public.array_append(text[], text) RETURNS text[] LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'planted'; END $$;
CREATE FUNCTION public."coalesce"(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'planted'; END $$;
SELECT miss('a first', '1 year');
SELECT miss('z last', '1 year');
UPDATE idemq_internal.schedule_entries SET time_zone = 'Mars/Olympus' WHERE name = 'a first';
CREATE DOMAIN public.text AS pg_catalog.text CHECK (VALUE = 'planted');
SET search_path = public, pg_catalog;
CALL idemq.tick();
RESET search_path;
DROP DOMAIN public.text;
RESET default_transaction_isolation;
SELECT name, last_error FROM idemq.schedules ORDER BY 1;
-- An audit finds nothing, but that nobody ticks any more.
SELECT * FROM idemq.check();
UPDATE idemq_internal.ticker SET called_at = called_at - interval '11 min';
UPDATE idemq_internal.schedule_entries SET created_at = created_at - interval '11 min';
SELECT * FROM idemq.check();
SELECT count(idemq.unschedule(name)) FROM (SELECT name FROM idemq.schedules OFFSET 0) s;
SELECT * FROM idemq.check();
DROP VIEW enqueued;
DROP EXTENSION idemq;
DROP ROLE regress_shop, regress_other, regress_boss, regress_eye;
