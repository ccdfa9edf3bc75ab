-- idemq.report_worker and idemq.workers: who is there, as workers report it.
CREATE EXTENSION idemq;
\set VERBOSITY terse
\pset null -
SELECT idemq.create_queue('q') IS NOT NULL AND idemq.create_queue('r') IS NOT NULL AS created;
CREATE ROLE regress_here LOGIN;
CREATE ROLE regress_there LOGIN;
SELECT idemq.grant_queue('q', 'regress_here', 'claim'), idemq.grant_queue('r', 'regress_here', 'claim'), idemq.grant_queue('r', 'regress_there', 'claim');
CREATE VIEW seen AS SELECT worker, role, host, program, version, queues, concurrency, running, jobs, done, per_minute, state FROM idemq.workers ORDER BY worker;
GRANT SELECT ON seen TO PUBLIC;
\set one '7b0c7f6a-1111-4222-8333-444455556666'
\set two '7b0c7f6a-1111-4222-8333-444455556667'

SET ROLE regress_here;
SELECT idemq.report_worker(:'one', 'w1', '{q,r}', program => 'sh', version => '1', host => 'h', concurrency => 5, running => '{3,4}', done => 10);
SELECT * FROM seen;
RESET ROLE;
-- However long the statements of this test take: the report before is never more than 5 s ago, where that matters.
CREATE PROCEDURE reported_just_now() LANGUAGE sql AS $$ UPDATE idemq_internal.worker_entries SET seen_at = idemq.clock_timestamp() + interval '1 h' $$;
-- Its last two reports were that long apart.
CREATE PROCEDURE reports_apart(length interval) LANGUAGE sql AS $$ UPDATE idemq_internal.worker_entries SET seen_at = seen_before + length $$;
CALL reported_just_now();
SET ROLE regress_here;
-- The next word is of the same row; so soon it moves no rate.
SELECT idemq.report_worker(:'one', 'w1', '{q,r}', program => 'sh', version => '2', done => 12);
SELECT * FROM seen;
SELECT started_at < seen_at AS later FROM idemq.workers;
RESET ROLE;
-- Half a minute ago: the report before the next one.
UPDATE idemq_internal.worker_entries SET seen_at = seen_at - interval '00:00:30';
SELECT seen_at AS before FROM idemq_internal.worker_entries \gset
SET ROLE regress_here;
SELECT idemq.report_worker(:'one', 'w1', '{q,r}', done => 32);
RESET ROLE;
SELECT seen_before = :'before' AS of_the_report_before, seen_at - seen_before >= interval '00:00:30' AS and_later FROM idemq_internal.worker_entries;
CALL reports_apart('00:00:30');
SELECT per_minute FROM idemq.workers;
-- It is gone, with what it did.
CALL reported_just_now();
SET ROLE regress_here;
SELECT idemq.report_worker(:'one', 'w1', '{q,r}', running => '{3}', done => 33, stopping => true);
RESET ROLE;
CALL reports_apart('00:00:30');
SET ROLE regress_here;
SELECT worker, running, jobs, done, per_minute, state FROM seen;
SELECT idemq.report_worker(:'one', 'w1', '{q,r}', done => 33);
RESET ROLE;
UPDATE idemq_internal.worker_entries SET seen_at = seen_at - interval '91 s';
SELECT worker, state FROM seen;

-- Another role's process of the same number is another one. A role sees its own, and those of its queues, with these queues.
SET ROLE regress_there;
SELECT * FROM seen \gset his_
SELECT :'his_worker' AS worker, :'his_queues' AS queues;
SELECT idemq.report_worker(:'one', 'w2', '{r,r}');
SELECT worker, queues, state FROM seen;
SELECT idemq.report_worker(:'two', 'w2', '{q}');
RESET ROLE;
SELECT idemq.revoke_queue('r', 'regress_there', 'claim');
SET ROLE regress_there;
SELECT worker, queues, state FROM seen;
SELECT idemq.report_worker(:'one', 'w2', '{r}');
SELECT count(*) FROM idemq_internal.worker_entries;
RESET ROLE;

-- What is wrong is refused; nothing of it is there.
SELECT idemq.report_worker(NULL, 'w', '{q}');
SELECT idemq.report_worker(:'two', NULL, '{q}');
SELECT idemq.report_worker(:'two', repeat('w', 257), '{q}');
SELECT idemq.report_worker(:'two', 'w', NULL);
SELECT idemq.report_worker(:'two', 'w', '{}');
SELECT idemq.report_worker(:'two', 'w', '{{q}}');
SELECT idemq.report_worker(:'two', 'w', '{q,NULL}');
SELECT idemq.report_worker(:'two', 'w', '{q,nope}');
SELECT idemq.report_worker(:'two', 'w', '{q}', program => repeat('p', 65));
SELECT idemq.report_worker(:'two', 'w', '{q}', version => repeat('p', 65));
SELECT idemq.report_worker(:'two', 'w', '{q}', host => repeat('p', 257));
SELECT idemq.report_worker(:'two', 'w', '{q}', concurrency => 0);
SELECT idemq.report_worker(:'two', 'w', '{q}', running => NULL);
SELECT idemq.report_worker(:'two', 'w', '{q}', running => '{{1}}');
SELECT idemq.report_worker(:'two', 'w', '{q}', done => NULL);
SELECT idemq.report_worker(:'two', 'w', '{q}', stopping => NULL);
SELECT idemq.report_worker(:'two', 'w', '{q}', end_waits => NULL);
SELECT idemq.report_worker(:'two', 'w', '{q}', end_waits => '{{1}}');
SELECT idemq.report_worker(:'two', 'w', '{q}', end_waits => '{1,NULL}');
SELECT idemq.report_worker(:'two', 'w', '{q}', end_waits => ARRAY(SELECT generate_series(1, 1000000)));
SELECT count(*) FROM seen;
-- What is too much is cut: jobs and queues beyond a hundred.
SELECT idemq.report_worker(:'two', 'w', array_fill('q'::text, '{150}'), running => ARRAY(SELECT generate_series(1, 150)::bigint));
SELECT running, cardinality(jobs) AS jobs, queues FROM seen WHERE worker = 'w';
BEGIN READ ONLY;
SELECT idemq.report_worker(:'two', 'w', '{q}');
ROLLBACK;

-- A request to end the waits of no session, of the background writer, or of this session, which is not waiting: its next wait takes it.
SELECT pid AS writer FROM pg_stat_activity WHERE backend_type = 'background writer' \gset
SET ROLE regress_here;
SELECT idemq.report_worker(:'one', 'w1', '{q}', end_waits => ARRAY[0, -1, 2147483647, :writer]);
SELECT idemq.report_worker(:'one', 'w1', '{q}', end_waits => ARRAY[pg_backend_pid()]);
CALL idemq.wait('q', '1 h');
RESET ROLE;

-- Whatever a role says it has done, others read the view; whatever bounds its array has, it is asked for each queue.
SET ROLE regress_here;
SELECT idemq.report_worker(:'one', 'w1', '{q}', done => -9223372036854775808);
RESET ROLE;
UPDATE idemq_internal.worker_entries SET seen_at = seen_at - interval '00:00:10' WHERE id = :'one';
SET ROLE regress_here;
SELECT idemq.report_worker(:'one', 'w1', '{q}', done => 9223372036854775807);
SELECT idemq.report_worker(:'one', 'w1', '[-5:-4]={q,nowhere}');
RESET ROLE;
SELECT count(*) FROM idemq.workers WHERE per_minute > 1e18;

-- A role has a thousand at most; those that are gone, or silent for ten minutes, make room.
SET ROLE regress_here;
SELECT count(*) FILTER (WHERE idemq.report_worker(gen_random_uuid(), 'many', '{q}')) FROM generate_series(1, 1005);
SELECT idemq.report_worker(:'one', 'w1', '{q}');
RESET ROLE;
UPDATE idemq_internal.worker_entries SET stopping = true WHERE ctid IN (SELECT ctid FROM idemq_internal.worker_entries WHERE worker = 'many' LIMIT 10);
SET ROLE regress_here;
SELECT idemq.report_worker(gen_random_uuid(), 'many', '{q}');
SELECT count(*) FROM seen WHERE worker = 'many';
RESET ROLE;

-- After an hour it is not shown, and retention sweeps it.
UPDATE idemq_internal.worker_entries SET seen_at = seen_at - interval '1 h' WHERE worker <> 'w';
SELECT worker FROM seen;
SELECT idemq.apply_retention();
SELECT worker FROM idemq_internal.worker_entries;

-- A handler of the server is there, too; idle where a background worker has heard of it (make installcheck), or off.
CREATE FUNCTION regress_seen(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS 'SELECT';
SELECT idemq.set_handler('q', 'regress_seen', workers => 3);
SELECT worker, program, host, queues, concurrency, running, jobs, done, state IN ('off', 'idle') AS state FROM seen WHERE program = 'handler';
SELECT idemq.drop_handler('q');
DROP FUNCTION regress_seen(jsonb);
DROP VIEW seen;
DROP PROCEDURE reported_just_now, reports_apart;
DROP EXTENSION idemq;
DROP ROLE regress_here, regress_there;
