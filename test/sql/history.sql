-- idemq.history: what it shows, to whom; how steps are folded; its histograms. That the worker writes it: test/t/history.pl.
CREATE EXTENSION idemq;
\set VERBOSITY terse
\pset null -
SET timezone = 'UTC';
SELECT idemq.create_queue('q') AS q \gset
SELECT idemq.create_queue('r') AS r \gset

-- ---- Histograms: the number of the first bucket, then counts
SELECT idemq.sum_counts(c) FROM (VALUES ('{10,1,2}'::int[]), (NULL), ('{12,5}'), ('{8,1}'), ('{11,3}')) v (c);
SELECT idemq.sum_counts(c), idemq.sum_counts(NULL) FROM (VALUES (NULL::int[])) v (c);
SELECT idemq_internal.add_counts('{10,2147483647}', '{10,1}'), idemq_internal.add_counts('{10,1}', NULL), idemq_internal.add_counts('{10}', '{10,0}');
SELECT p, idemq.percentile('{36,50,0,0,0,49,0,0,0,1}', p) FROM unnest('{0,0.5,0.51,0.99,1}'::float8[]) p;
SELECT idemq.percentile(NULL, 0.5), idemq.percentile('{159,1}', 0.5), idemq.percentile('{0,1}', 0.5), idemq.percentile('{5}', 0.5);
SELECT idemq.percentile('{10,1}', NULL);
SELECT idemq.percentile('{10,1}', 1.5);
SELECT idemq.percentile('{10,1}', 'NaN');
SELECT idemq.percentile('{}', 0.5);
SELECT idemq.percentile('{159,1,1}', 0.5);
SELECT idemq.percentile('{-1,1}', 0.5);
SELECT idemq.percentile('{1,-1}', 0.5);
SELECT idemq.percentile('{1,NULL}', 0.5);
SELECT idemq.percentile('{{1,1}}', 0.5);
SELECT idemq.sum_counts(c) FROM (VALUES ('{10,1}'::int[]), ('{200,1}')) v (c);
-- As those of idemq.metrics: a bucket is the same here and there.
SELECT count(idemq.enqueue('q', '1')) FROM generate_series(1, 20);
SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 20);

-- ---- Only the worker reads what has changed; a session finds nothing
SELECT count(*) FROM idemq_internal.history();
SELECT idemq_internal.write_history(10, NULL, now());

-- ---- Folding: by hand, the rows of an hour
CREATE FUNCTION step(queue int, at timestamptz, pending int, done int, counts int[]) RETURNS boolean LANGUAGE sql AS $$
	INSERT INTO idemq_internal.history_steps VALUES (10, idemq_internal.history_place(10, at), queue, at, pending, 0, 1, 2, 3, at - interval '00:00:05',
		done + 1, done, done, 1, 0, 0, 0, counts, NULL) RETURNING true $$;
SELECT count(step(n.queue, '2026-01-01 12:00'::timestamptz + s * interval '00:00:10', s, s, ARRAY[20 + s, s]))
	FROM (VALUES (:q), (0)) n (queue), unnest('{1,3,6,7,12,60,61}'::int[]) s;
SELECT idemq_internal.write_history(60, NULL, '2026-01-01 12:02');
SELECT queue, step, at, pending, running, retrying, dead, oldest_due, enqueued, claimed, completed, failures, wait_counts, run_counts
	FROM idemq.history WHERE step > 10 ORDER BY queue, at;
-- What is folded already is not folded again, and what is beyond is later.
SELECT idemq_internal.write_history(60, NULL, '2026-01-01 12:02'), idemq_internal.write_history(60, '2026-01-01 12:02', '2026-01-01 12:10');
SELECT idemq_internal.write_history(60, NULL, '2026-01-01 12:11');
SELECT idemq_internal.write_history(600, NULL, '2026-01-01 12:10');
SELECT at, completed, wait_counts, pending FROM idemq.history WHERE queue = 'q' AND step = 600 ORDER BY at;
-- A retention tier: a step is written over the one of the hour before, in place; the sum of a minute is of that minute alone.
DELETE FROM idemq_internal.history_steps WHERE step = 10 AND at = '2026-01-01 12:00:10';
SELECT step(:q, '2026-01-01 13:00:10', 9, 9, '{30,9}');
SELECT idemq_internal.write_history(60, '2026-01-01 12:11', '2026-01-01 13:01');
SELECT at, completed FROM idemq.history WHERE queue = 'q' AND step = 60 ORDER BY at DESC LIMIT 1;
SELECT idemq_internal.history_place(60, '2026-01-01 12:00') = idemq_internal.history_place(60, '2026-01-02 12:00') AS a_day,
	idemq_internal.history_place(10, '2026-01-01 12:00') = idemq_internal.history_place(10, '2026-01-01 13:00') AS an_hour,
	idemq_internal.history_place(600, '2026-01-01 12:00') = idemq_internal.history_place(600, '2026-01-08 12:00') AS a_week;

-- ---- A step that was left over a day ago has no part in the minute that has its place
INSERT INTO idemq_internal.history_steps (step, place, queue_id, at, enqueued, claimed, completed, failures, died, cancelled, expired)
SELECT 10, idemq_internal.history_place(10, a), 0, a, 1, 0, 0, 0, 0, 0, 0 FROM (VALUES ('2030-01-01 12:00:50+00'::timestamptz), ('2030-01-02 12:00:20+00')) v (a);
BEGIN;
SELECT idemq_internal.write_history(60, NULL, '2030-01-02 12:01:00+00') IS NOT NULL AS written;
SELECT at, enqueued FROM idemq_internal.history_steps WHERE step = 60 AND queue_id = 0 AND at > '2030-01-01';
ROLLBACK;
DELETE FROM idemq_internal.history_steps WHERE at > '2029-01-01';

-- ---- Renamed by hand it is the same queue; dropped, its rows are not shown, and swept with the next 10 minutes
UPDATE idemq.queues SET name = 'renamed' WHERE name = 'q';
SELECT DISTINCT queue FROM idemq.history;
UPDATE idemq.queues SET name = 'q' WHERE name = 'renamed';

-- ---- Visible as metrics are: of queues that one may claim from or administer; all together for pg_monitor
CREATE ROLE regress_history LOGIN;
CREATE ROLE regress_history_producer LOGIN;
CREATE ROLE regress_history_monitor LOGIN IN ROLE pg_monitor;
SELECT idemq.grant_queue('q', 'regress_history', 'claim'), idemq.grant_queue('r', 'regress_history_producer', 'enqueue'), idemq.grant_queue('q', 'regress_history_producer', 'enqueue');
SET ROLE regress_history;
SELECT DISTINCT queue FROM idemq.history;
SET ROLE regress_history_producer;
SELECT DISTINCT queue FROM idemq.history;
SELECT count(*) FROM idemq_internal.history_steps;
SET ROLE regress_history_monitor;
SELECT DISTINCT queue FROM idemq.history ORDER BY 1;
BEGIN READ ONLY;
SELECT count(*) > 0 AS some FROM idemq.history;
COMMIT;
RESET ROLE;
SELECT idemq.drop_queue('q', force => true);
SELECT DISTINCT queue FROM idemq.history;
SELECT count(DISTINCT queue_id) FROM idemq_internal.history_steps;
SELECT idemq_internal.write_history(600, '2026-01-02', '2026-01-02');
SELECT count(DISTINCT queue_id) FROM idemq_internal.history_steps;
DROP FUNCTION step(int, timestamptz, int, int, int[]);
DROP EXTENSION idemq;
DROP ROLE regress_history, regress_history_producer, regress_history_monitor;
