-- on_duplicate => 'replace' with a delay: it starts again with each request, and with max_wait ends that long after the first.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h');
CREATE FUNCTION ask(payload jsonb, delay interval DEFAULT '10 min', max_wait interval DEFAULT '1 h', group_key text DEFAULT NULL, key text DEFAULT 'k') RETURNS TABLE (outcome idemq.outcome, status idemq.status)
	LANGUAGE sql AS $$ SELECT e.outcome, e.status FROM idemq.enqueue('q', ask.payload, key => ask.key, delay => ask.delay, group_key => ask.group_key, max_wait => ask.max_wait, on_duplicate => 'replace') e $$;
-- Minutes from now on; time is moved by hand.
CREATE VIEW row AS SELECT status, payload, round(extract(epoch FROM coalesce(ready_at, run_at) - clock_timestamp()) / 60) AS due FROM idemq.jobs ORDER BY id;
CREATE PROCEDURE later(by interval) LANGUAGE sql AS $$ UPDATE idemq.jobs SET enqueued_at = enqueued_at - later.by, ready_at = ready_at - later.by, run_at = run_at - later.by, claimed_at = claimed_at - later.by $$;

-- Each request puts the job off, to the end of max_wait.
SELECT * FROM ask('1');
SELECT * FROM row;
CALL later('8 min');
SELECT * FROM row;
SELECT * FROM ask('2');
SELECT * FROM row;
CALL later('47 min');
SELECT * FROM ask('3');
SELECT * FROM row;
SELECT count(*) FROM idemq.claim('q');
CALL later('10 min');
SELECT * FROM ask('4');
SELECT * FROM row;
-- It keeps its place: it is due since then, whatever a request asks for.
SELECT ready_at = enqueued_at + interval '1 h' AS bound FROM idemq.jobs;
-- The new payload is claimed, once; a claimed job is not touched.
SELECT id, token, payload FROM idemq.claim('q') \gset
\echo :payload
SELECT * FROM ask('5');
SELECT payload, status, rerun_payload FROM idemq.jobs;
SELECT idemq.release(:id, :token);
SELECT payload, status FROM idemq.jobs;
-- Of a job that was begun, the time that it waits for is not deferred.
SELECT * FROM ask('6');
SELECT * FROM row;
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT * FROM ask('7');
SELECT idemq.purge('q');

-- A first request is bound as well; a longer or shorter max_wait counts for its own request.
SELECT * FROM ask('1', delay => '2 h');
SELECT * FROM row;
SELECT * FROM ask('2', delay => '2 h', max_wait => '90 min');
SELECT * FROM row;
SELECT * FROM ask('3', delay => '2 h', max_wait => '20 min');
SELECT * FROM row;
SELECT outcome FROM idemq.enqueue('q', '4', key => 'k', run_at => now() + interval '3 h', max_wait => '30 min', on_duplicate => 'replace');
SELECT * FROM row;
SELECT outcome FROM idemq.enqueue('q', '5', key => 'k', max_wait => '30 min', on_duplicate => 'replace');
SELECT payload FROM idemq.claim('q');
DELETE FROM idemq.jobs;

-- A job whose lease was lost was claimed: a request does not touch it, though it is pending; one to rerun does.
SELECT * FROM ask('1', delay => '0');
-- meant to expire
SELECT id FROM idemq.claim('q', lease => '1 ms') \gset
SELECT pg_sleep(0.01);
SELECT idemq.reap('q');
SELECT * FROM ask('2');
SELECT status, attempt, payload FROM idemq.jobs;
SELECT outcome, status FROM idemq.enqueue('q', '3', key => 'k', on_duplicate => 'rerun');
SELECT status, attempt, payload FROM idemq.jobs;
DELETE FROM idemq.jobs;

-- A key that is free again begins anew: key_ttl.
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', delay => '0', max_wait => '1 h', key_ttl => '1 ms', on_duplicate => 'replace'); -- meant to expire
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT pg_sleep(0.01);
SELECT outcome FROM idemq.enqueue('q', '2', key => 'k', delay => '10 min', max_wait => '1 h', key_ttl => '1 ms', on_duplicate => 'replace'); -- meant to expire
SELECT * FROM row;
DELETE FROM idemq.jobs;

-- In a group: the head, and one behind it.
SELECT * FROM ask('1', group_key => 'g', key => 'head');
SELECT * FROM ask('2', group_key => 'g', key => 'next');
SELECT count(*) FROM idemq.claim('q');
SELECT * FROM row;
CALL later('55 min');
SELECT * FROM ask('3', group_key => 'g', key => 'head');
SELECT * FROM ask('4', group_key => 'g', key => 'next');
SELECT * FROM row;
SELECT * FROM ask('5', group_key => 'g', key => 'next', delay => '0');
CALL later('6 min');
SELECT * FROM ask('6', group_key => 'g', key => 'next');
SELECT * FROM row;
SELECT payload, idemq.commit(id, token) FROM idemq.claim('q');
SELECT payload, idemq.commit(id, token) FROM idemq.claim('q');
DELETE FROM idemq.jobs;

-- At no time later than max_wait after the first, and deferred until then, however the requests come.
DO $$
DECLARE
	moved int := 0;
	last timestamptz;
	job idemq.jobs;
BEGIN
	FOR i IN 1..200 LOOP
		PERFORM idemq.enqueue('q', to_jsonb(i), key => 'stream', delay => '30 ms', max_wait => '60 ms', on_duplicate => 'replace'); -- meant to expire
		SELECT * INTO job FROM idemq.jobs;
		ASSERT job.payload = to_jsonb(i), 'the newest';
		ASSERT job.ready_at <= job.enqueued_at + interval '60 ms', 'the bound'; -- meant to expire
		moved := moved + coalesce(job.ready_at > last, false)::int;
		last := job.ready_at;
		PERFORM pg_sleep(0.001);
	END LOOP;
	ASSERT moved > 0 AND last = job.enqueued_at + interval '60 ms'; -- meant to expire
END $$;
SELECT payload FROM idemq.claim('q');
DELETE FROM idemq.jobs;

-- Many.
SELECT outcome FROM idemq.enqueue_many('q', '{1,2}', keys => '{a,b}', delays => '{2 h,10 min}', on_duplicate => 'replace', max_wait => '1 h');
CALL later('55 min');
SELECT outcome FROM idemq.enqueue_many('q', '{3,4}', keys => '{a,b}', delays => '{2 h,10 min}', on_duplicate => 'replace', max_wait => '1 h');
SELECT * FROM row;
CALL idemq.enqueue_job('q', '9', key => 'call', delay => '2 h', on_duplicate => 'replace', max_wait => '1 h', id => 0);
SELECT * FROM row;

-- A claim finds a job that was put before others which have been claimed, be the replacement rolled back or not.
SELECT idemq.create_queue('front', lease => '1 h') > 0 AS created;
SELECT outcome FROM idemq.enqueue('front', '"late"', key => 'k', delay => '1 day');
SELECT count(*) FROM idemq.enqueue_many('front', '{1,2,3}');
SELECT count(*) FROM idemq.claim('front', 10);
SELECT count(*) FROM idemq.claim('front', 10);
BEGIN;
SELECT outcome FROM idemq.enqueue('front', '"undone"', key => 'k', run_at => now() - interval '1 h', on_duplicate => 'replace');
ROLLBACK;
SELECT count(*) FROM idemq.claim('front', 10);
SELECT outcome FROM idemq.enqueue('front', '"first"', key => 'k', run_at => now() - interval '1 h', on_duplicate => 'replace');
SELECT payload FROM idemq.claim('front', 10);
SELECT * FROM idemq.check();
-- Nor is one passed whose replacement, for later, is rolled back with a claim that went by it.
SELECT outcome FROM idemq.enqueue('front', '"back"', key => 'back');
SELECT outcome FROM idemq.enqueue('front', '"behind"');
BEGIN;
SELECT outcome FROM idemq.enqueue('front', '"undone"', key => 'back', delay => '1 h', on_duplicate => 'replace');
SELECT payload FROM idemq.claim('front');
ROLLBACK;
SELECT payload FROM idemq.claim('front');
SELECT payload FROM idemq.claim('front');
SELECT idemq.drop_queue('front', force => true);

-- Refused.
SELECT idemq.enqueue('q', '1', max_wait => '1 h', on_duplicate => 'replace');
SELECT idemq.enqueue('q', '1', key => 'x', max_wait => '1 h');
SELECT idemq.enqueue('q', '1', key => 'x', max_wait => '1 h', on_duplicate => 'rerun');
SELECT idemq.enqueue('q', '1', key => 'x', max_wait => '0', on_duplicate => 'replace');
SELECT idemq.enqueue('q', '1', key => 'x', max_wait => '-1 h', on_duplicate => 'replace');
SELECT idemq.enqueue_many('q', '{1,2}', keys => '{x,NULL}', max_wait => '1 h', on_duplicate => 'replace');
SELECT * FROM idemq.check();
DROP FUNCTION ask;
DROP PROCEDURE later;
DROP VIEW row;
DROP EXTENSION idemq;
