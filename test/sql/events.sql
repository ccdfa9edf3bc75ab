-- Events: a job gives itself back until one is sent, or its time is over.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 3) AS q, idemq.create_queue('other') AS other \gset
CREATE VIEW waits AS SELECT name, state, round, token = (SELECT token FROM idemq.jobs j WHERE j.id = job_id) AS last_asked,
	call_until - begun_at AS lasts, answered_at IS NOT NULL AS answered, response, effect_key, request FROM idemq.steps ORDER BY job_id, name;
CREATE FUNCTION times_out() RETURNS void LANGUAGE sql AS
	$$ UPDATE idemq.steps SET begun_at = begun_at - interval '4 days', call_until = call_until - interval '4 days' WHERE state = 'waiting';
		UPDATE idemq.jobs SET ready_at = ready_at - interval '4 days' WHERE status = 'pending' $$;

-- Nothing was sent: the job is given back until then, the attempt not counted.
SELECT (idemq.enqueue('q', '"order"')).id \gset
SELECT token AS t FROM idemq.claim('q') \gset
SELECT * FROM idemq.await_event(:id, :t, 'paid', '3 days');
SELECT status, attempt, token = :t AS same_token, ready_at - clock_timestamp() BETWEEN interval '2 days 23 h' AND '3 days' AS asleep FROM idemq.jobs;
TABLE waits;
SELECT outcome, attempt FROM idemq.attempts;
SELECT count(*) FROM idemq.claim('q');
SELECT regexp_replace(idemq.why(:id), '\d{4}-\d\d-\d\d [^,;]*', '<time>', 'g');
-- The token is used up.
SELECT * FROM idemq.await_event(:id, :t, 'paid', '3 days');
SELECT idemq.commit(:id, :t);
-- Of another queue, or another name: it sleeps on.
SELECT * FROM idemq.send_event('other', 'paid', '1');
SELECT * FROM idemq.send_event('q', 'Paid', '1');
SELECT count(*) FROM idemq.claim('q');
-- Sent: ready at once, and answered.
SELECT * FROM idemq.send_event('q', 'paid', '{"amount": 12}');
TABLE waits;
SELECT attempt, token AS t2 FROM idemq.claim('q') \gset
SELECT :attempt AS attempt;
SELECT * FROM idemq.await_event(:id, :t2, 'paid', '3 days');
SELECT * FROM idemq.await_event(:id, :t2, 'paid', '0');
-- The first one stays, also in the transaction that sent it; a rolled back one is none.
SELECT * FROM idemq.send_event('q', 'paid', '{"amount": 13}');
SELECT * FROM idemq.send_event('q', 'paid');
BEGIN;
SELECT * FROM idemq.send_event('q', 'shipped', '1');
SELECT * FROM idemq.send_event('q', 'shipped', '2');
ROLLBACK;
SELECT name, payload, keep_until - sent_at AS kept FROM idemq.events WHERE queue_id = :q ORDER BY name;
-- The answer outlives the attempt and the event.
SELECT idemq.fail(:id, :t2, retry_in => '0');
DELETE FROM idemq.events;
SELECT attempt, token AS t3 FROM idemq.claim('q') \gset
SELECT :attempt AS attempt, (idemq.await_event(:id, :t3, 'paid', '1 h')).*;

-- An event that came first; no payload is not a time-out.
SELECT * FROM idemq.send_event('q', 'approved');
SELECT * FROM idemq.await_event(:id, :t3, 'approved', '3 days');
-- A time-out is said, and stands, also when the event comes after it.
SELECT * FROM idemq.await_event(:id, :t3, 'signed', '0');
SELECT * FROM idemq.send_event('q', 'signed', '1');
SELECT * FROM idemq.await_event(:id, :t3, 'signed', '3 days');
TABLE waits;
-- In time, but heard when the time is over: it has arrived.  The first call's time counts.
SELECT * FROM idemq.await_event(:id, :t3, 'late', '3 days');
SELECT times_out();
SELECT token AS t4 FROM idemq.claim('q') \gset
SELECT * FROM idemq.send_event('q', 'late', '"late"');
SELECT * FROM idemq.await_event(:id, :t4, 'late', '30 days');
SELECT * FROM idemq.await_event(:id, :t4, 'never', '3 days');
SELECT times_out();
SELECT token AS t5 FROM idemq.claim('q') \gset
SELECT * FROM idemq.await_event(:id, :t5, 'never', '30 days');
-- Woken by hand: it waits on, no longer than it would have.
SELECT * FROM idemq.await_event(:id, :t5, 'more', '3 days');
SELECT call_until AS until FROM idemq.steps WHERE name = 'more' \gset
SELECT idemq.retry(:id);
SELECT token AS t6 FROM idemq.claim('q') \gset
SELECT * FROM idemq.await_event(:id, :t6, 'more', '30 days');
SELECT call_until = :'until' AS same, ready_at - call_until BETWEEN '0' AND interval '1 min' AS asleep_until FROM idemq.steps, idemq.jobs WHERE name = 'more';
-- One that waits for another by now is let alone, and still has its answer.
SELECT idemq.retry(:id);
SELECT token AS t7 FROM idemq.claim('q') \gset
SELECT * FROM idemq.await_event(:id, :t7, 'most', '3 days');
SELECT outcome FROM idemq.send_event('q', 'more', '"more"');
SELECT count(*) FROM idemq.claim('q');
SELECT name, state, response FROM idemq.steps WHERE name IN ('more', 'most') ORDER BY 1;
-- In an attempt: it is not disturbed.
SELECT idemq.retry(:id);
SELECT token AS t8 FROM idemq.claim('q') \gset
SELECT outcome FROM idemq.send_event('q', 'most');
SELECT idemq.validate(:id, :t8);
SELECT * FROM idemq.await_event(:id, :t8, 'most', '1 h');

-- The effects of an attempt and its wait are one transaction; a savepoint undoes both.
CREATE TABLE effects (what text);
BEGIN;
INSERT INTO effects VALUES ('asked for a signature');
SELECT outcome FROM idemq.await_event(:id, :t8, 'a', '3 days');
SELECT idemq.commit(:id, :t8);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT outcome FROM idemq.await_event(:id, :t8, 'a', '3 days');
ROLLBACK TO s;
SELECT outcome FROM idemq.await_event(:id, :t8, 'b', '3 days');
-- Sent by the very transaction that waits.
SELECT outcome FROM idemq.send_event('q', 'b', '"own"');
COMMIT;
SELECT name, state FROM idemq.steps WHERE name IN ('a', 'b');
SELECT token AS t9 FROM idemq.claim('q') \gset
SELECT * FROM idemq.await_event(:id, :t9, 'b', '3 days');

-- Steps and events of a job share their names.
SELECT idemq.finish_step(:id, :t9, 'step');
CALL idemq.begin_step(:id, :t9, 'begun', '1', '1 h') \gset
SELECT * FROM idemq.await_event(:id, :t9, 'step', '1 h');
SELECT * FROM idemq.await_event(:id, :t9, 'begun', '1 h');
SELECT idemq.finish_step(:id, :t9, 'b');
SELECT idemq.refuse_step(:id, :t9, 'never');
CALL idemq.begin_step(:id, :t9, 'paid', '1', '1 h');

-- Another payload waits anew; so does a rerun that is asked for in the middle of a wait, and is not held up by it.
SELECT (idemq.enqueue('q', '1', key => 'k')).id AS keyed \gset
SELECT token AS k1 FROM idemq.claim('q') \gset
SELECT outcome FROM idemq.await_event(:keyed, :k1, 'x', '3 days');
SELECT outcome FROM idemq.enqueue('q', '2', key => 'k', on_duplicate => 'replace');
SELECT state, round FROM idemq.steps WHERE job_id = :keyed;
SELECT payload, token AS k2 FROM idemq.claim('q') \gset
SELECT outcome FROM idemq.enqueue('q', '3', key => 'k', on_duplicate => 'rerun');
SELECT outcome FROM idemq.await_event(:keyed, :k2, 'x', '3 days');
SELECT state, round FROM idemq.steps WHERE job_id = :keyed;
SELECT payload, token AS k3 FROM idemq.claim('q') \gset
SELECT :payload AS payload;
SELECT outcome FROM idemq.await_event(:keyed, :k3, 'x', '3 days');
SELECT state, round, call_until - begun_at AS lasts FROM idemq.steps WHERE job_id = :keyed;
SELECT outcome FROM idemq.send_event('q', 'x', '3');
SELECT token AS k4 FROM idemq.claim('q') \gset
SELECT * FROM idemq.await_event(:keyed, :k4, 'x', '3 days');
-- With the job its waits go.
SELECT idemq.commit(:keyed, :k4);
SELECT idemq.purge('q', 'completed');
SELECT count(*) FROM idemq.steps WHERE job_id = :keyed;

-- Many wait for one, all are woken; a head of a group holds up its group, and no permit of max_running.
SELECT idemq.create_queue('crowd', lease => '1 h', max_running => 2) AS crowd \gset
SELECT count(*) FROM generate_series(1, 50) n, idemq.enqueue('crowd', to_jsonb(n));
DO $$ BEGIN
	FOR i IN 1 .. 25 LOOP
		PERFORM idemq.await_event(id, token, 'opens', '3 days') FROM idemq.claim('crowd', 10);
	END LOOP;
END $$;
SELECT count(*) FROM idemq.steps WHERE state = 'waiting';
SELECT permits_used FROM idemq.metrics WHERE queue = 'crowd';
SELECT outcome FROM idemq.send_event('crowd', 'opens', '"now"');
SELECT count(*) FILTER (WHERE s.state = 'arrived' AND s.response = '"now"'), count(*) FILTER (WHERE j.ready_at <= clock_timestamp())
	FROM idemq.steps s JOIN idemq.jobs j ON j.id = s.job_id WHERE j.queue_id = :crowd;
SELECT idemq.create_queue('grouped', lease => '1 h') AS grouped \gset
SELECT count(*) FROM generate_series(1, 2) n, idemq.enqueue('grouped', to_jsonb(n), group_key => 'g');
SELECT id AS g1, token AS gt FROM idemq.claim('grouped') \gset
SELECT outcome FROM idemq.await_event(:g1, :gt, 'go', '3 days');
SELECT count(*) FROM idemq.claim('grouped');
SELECT outcome FROM idemq.send_event('grouped', 'go');
SELECT id = :g1 AS head, idemq.commit(id, token) FROM idemq.claim('grouped');
SELECT payload, idemq.commit(id, token) FROM idemq.claim('grouped');

-- An event's time: then the name is free, retention deletes it, and nobody hears it.
UPDATE idemq.events SET sent_at = sent_at - interval '1 day', keep_until = keep_until - interval '1 day' WHERE queue_id IN (:q, :crowd);
SELECT (idemq.enqueue('crowd', '"late"', priority => 0)).id AS late \gset
SELECT token AS lt FROM idemq.claim('crowd') \gset
SELECT * FROM idemq.await_event(:late, :lt, 'opens', '3 days');
SELECT * FROM idemq.send_event('crowd', 'opens', '"again"');
SELECT payload, keep_until > clock_timestamp() AS counts FROM idemq.events WHERE queue_id = :crowd;
SELECT response FROM idemq.steps WHERE job_id = :late;
SELECT idemq.apply_retention() >= 0 AS applied;
SELECT name, queue_id = :crowd AS crowd FROM idemq.events WHERE queue_id IN (:q, :crowd);
-- With a window of 0 an event is heard by those who wait for it already.
SELECT idemq.create_queue('brief', idempotency_window => '0', lease => '1 h') AS brief \gset
SELECT (idemq.enqueue('brief', '1')).id AS brief_id \gset
SELECT outcome FROM idemq.send_event('brief', 'e', '1');
SELECT token AS bt FROM idemq.claim('brief') \gset
SELECT outcome FROM idemq.await_event(:brief_id, :bt, 'e', '3 days');
SELECT outcome FROM idemq.send_event('brief', 'e', '2');
SELECT token AS bt FROM idemq.claim('brief') \gset
SELECT * FROM idemq.await_event(:brief_id, :bt, 'e', '3 days');

-- expires_in counts as for any job that is released.
SELECT (idemq.enqueue('q', '"expires"', expires_in => '1 h', priority => 0)).id AS expires \gset
SELECT token AS et FROM idemq.claim('q') \gset
SELECT outcome FROM idemq.await_event(:expires, :et, 'z', '3 days');
UPDATE idemq.jobs SET expires_at = enqueued_at, ready_at = enqueued_at WHERE id = :expires;
SELECT count(*) FROM idemq.claim('q');
SELECT status FROM idemq.jobs WHERE id = :expires;

-- Arguments.
SELECT idemq.await_event(NULL, 1, 'e', '1 h');
SELECT idemq.await_event(:id, NULL, 'e', '1 h');
SELECT idemq.await_event(:id, :t9, NULL, '1 h');
SELECT idemq.await_event(:id, :t9, '', '1 h');
SELECT idemq.await_event(:id, :t9, repeat('x', 257), '1 h');
SELECT idemq.await_event(:id, :t9, 'e', NULL);
SELECT idemq.await_event(:id, :t9, 'e', '-1 s');
SELECT idemq.await_event(:id, :t9, 'e', '1001 years');
SELECT idemq.await_event(0, 1, 'e', '1 h');
SELECT idemq.send_event(NULL, 'e');
SELECT idemq.send_event('nowhere', 'e');
SELECT idemq.send_event('q', NULL);
SELECT idemq.send_event('q', '');
SELECT idemq.send_event('q', repeat('x', 257));
SELECT idemq.send_event('q', 'long', to_jsonb(repeat('x', 17 * 1024 * 1024)));
BEGIN READ ONLY;
SELECT idemq.send_event('q', 'e');
ROLLBACK;
BEGIN READ ONLY;
SELECT idemq.await_event(:id, :t9, 'e', '1 h');
ROLLBACK;
SELECT length((idemq.send_event('q', repeat('x', 256), to_jsonb(repeat('y', 1000000)))).first_payload::text);

-- Privileges: enqueue sends, claim awaits.
CREATE ROLE regress_sender;
CREATE ROLE regress_worker;
SELECT idemq.grant_queue('q', 'regress_sender', 'enqueue'), idemq.grant_queue('q', 'regress_worker', 'claim');
SET ROLE regress_sender;
SELECT * FROM idemq.send_event('q', 'by a sender', '{"a": 1, "b": 2}');
-- A sender sees no payloads: not that of another's event either, only whether its own is the same.
SELECT * FROM idemq.send_event('q', 'by a sender', '{"b": 2, "a": 1}');
SELECT * FROM idemq.send_event('q', 'by a sender', '{"a": 1}');
SELECT * FROM idemq.send_event('q', 'by a sender');
SELECT * FROM idemq.send_event('q', 'without'), idemq.send_event('q', 'without') again, idemq.send_event('q', 'without', 'null') json_null;
SELECT * FROM idemq.await_event(:id, :t9, 'by a sender', '1 h');
SELECT count(*) FROM idemq.events;
SELECT idemq.send_event('other', 'e');
SET ROLE regress_worker;
SELECT idemq.send_event('q', 'e');
SELECT * FROM idemq.await_event(:id, :t9, 'by a sender', '1 h');
RESET ROLE;
-- A role that may claim or administer as well sees it.
BEGIN;
SELECT idemq.grant_queue('q', 'regress_sender', 'claim');
SET LOCAL ROLE regress_sender;
SELECT * FROM idemq.send_event('q', 'by a sender', '1');
ROLLBACK;
BEGIN;
SELECT idemq.grant_queue('q', 'regress_sender', 'admin');
SET LOCAL ROLE regress_sender;
SELECT * FROM idemq.send_event('q', 'by a sender', '1');
ROLLBACK;
SET ROLE regress_worker;
SELECT count(*) > 0 AS sees FROM idemq.events;
INSERT INTO idemq.events VALUES (:q, 'forged', now(), now(), '1');
RESET ROLE;
SELECT locktype FROM pg_locks WHERE objsubid = 25974;
BEGIN;
SELECT outcome FROM idemq.send_event('other', 'locked');
SELECT locktype, mode FROM pg_locks WHERE objsubid = 25974;
ROLLBACK;

-- A job that sleeps and is moved to another queue asks there, and no longer than it would have.
SELECT idemq.create_queue('from') > 0 AND idemq.create_queue('to') > 0 AS created;
SELECT (idemq.enqueue('from', '"moved"')).id AS moved \gset
SELECT token AS t10 FROM idemq.claim('from') \gset
SELECT outcome FROM idemq.await_event(:moved, :t10, 'm', '3 days');
UPDATE idemq.jobs SET queue_id = idemq.queue_id('to') WHERE id = :moved;
SELECT token AS t11 FROM idemq.claim('to') \gset
SELECT outcome FROM idemq.await_event(:moved, :t11, 'm', '9 days');
SELECT queue_id = idemq.queue_id('to') AS followed, lasts FROM idemq.steps JOIN waits USING (name) WHERE job_id = :moved;
SELECT s.outcome FROM idemq.send_event('from', 'm', '"to nobody"') s, idemq.send_event('to', 'm', '"heard"');
SELECT token AS t12 FROM idemq.claim('to') \gset
SELECT * FROM idemq.await_event(:moved, :t12, 'm', '3 days');
SELECT idemq.drop_queue('from', force => true), idemq.drop_queue('to', force => true);
-- With the queue its events go.
SELECT idemq.drop_queue('crowd', force => true), idemq.drop_queue('brief', force => true), idemq.drop_queue('grouped', force => true);
SELECT count(*) FROM idemq.events WHERE queue_id IN (:crowd, :brief, :grouped);
SELECT count(*) FROM idemq.steps WHERE queue_id IN (:crowd, :brief, :grouped);
INSERT INTO idemq.events VALUES (:crowd, 'orphan', now(), now() + interval '1 day');
SELECT severity, invariant FROM idemq.check() ORDER BY 2;
DELETE FROM idemq.events WHERE name = 'orphan';
-- What check() would say of a wait that was missed.
SELECT (idemq.enqueue('q', '"missed"', priority => 0)).id AS missed \gset
SELECT token AS mt FROM idemq.claim('q') \gset
SELECT outcome FROM idemq.await_event(:missed, :mt, 'm', '3 days');
INSERT INTO idemq.events VALUES (:q, 'm', clock_timestamp(), now() + interval '1 day');
SELECT severity, invariant, detail ~ 'waiting for an event' AS detail FROM idemq.check() WHERE invariant <> 'steps.unknown';
DELETE FROM idemq.events WHERE name = 'm';
SELECT outcome FROM idemq.send_event('q', 'm');
SELECT * FROM idemq.check() WHERE invariant <> 'steps.unknown';
SELECT idemq.drop_queue('q', force => true), idemq.drop_queue('other', force => true);
DROP ROLE regress_sender, regress_worker;
DROP EXTENSION idemq CASCADE;
