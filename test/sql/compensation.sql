-- The dead-letter record: checkpoint and steps, for whoever undoes them; dead_letter_cancelled sends cancelled jobs there, too.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('undo', lease => '1 h') AS undo \gset
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 2, dead_letter_queue => 'undo', dead_letter_cancelled => true) AS q \gset
SELECT name, dead_letter_queue, dead_letter_cancelled FROM idemq.queues ORDER BY 1;
CREATE VIEW records AS SELECT payload->>'status' AS status, payload->'payload' AS payload, payload->'checkpoint' AS checkpoint, payload->'last_error' AS error,
	jsonb_path_query_array(payload, '$.steps[*].name') AS steps, jsonb_array_length(payload->'attempts') AS attempts, jobs.kind, jobs.status AS state
	FROM idemq.jobs WHERE queue_id = (SELECT queue_id FROM idemq.queues WHERE name = 'undo') ORDER BY id;

-- A death: the steps in the order of their calls, with what they were answered.
SELECT id FROM idemq.enqueue('q', '"trip"', kind => 'trip') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.checkpoint(:id, :token, '{"done": 1}');
CALL idemq.begin_step(:id, :token, 'z first', '{"to": "Lisbon"}', '1 h') \gset s_
SELECT idemq.finish_step(:id, :token, 'z first', '{"booking": 7}');
CALL idemq.begin_step(:id, :token, 'a second', '1', '1 h') \gset t_
CALL idemq.begin_step(:id, :token, 'refused', '2', '1 h') \gset u_
SELECT idemq.refuse_step(:id, :token, 'refused', 'no car');
SELECT idemq.finish_step(:id, :token, 'here', '"row"');
SELECT idemq.fail(:id, :token, 'no car', permanent => true);
SELECT * FROM records;
SELECT s->>'name' AS name, s->>'state' AS state, s->'request' AS request, s->'response' AS response, s->>'error' AS error, s->>'effect_key' IN (:'s_effect_key', :'t_effect_key', :'u_effect_key') AS key,
	s->>'begun_at' IS NOT NULL AS begun, s->>'call_until' IS NOT NULL AS until, s->>'answered_at' IS NOT NULL AS answered
	FROM idemq.jobs, jsonb_array_elements(payload->'steps') WITH ORDINALITY AS e(s, n) WHERE queue_id = :undo ORDER BY n;
-- An answer that comes later is in idemq.steps, not in the record.
SELECT idemq.finish_step(:id, :token, 'a second', '"late"');
SELECT state FROM idemq.steps WHERE job_id = :id AND name = 'a second';
SELECT s->>'state' AS state FROM idemq.jobs, jsonb_array_elements(payload->'steps') s WHERE queue_id = :undo AND s->>'name' = 'a second';
-- A job that is brought back takes its record away; cancelled before another attempt, it adds that once more.
SELECT idemq.retry(:id), idemq.cancel(:id);
SELECT count(*) FROM records;
-- With another attempt there is.
SELECT idemq.retry(:id);
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.cancel(:id);
SELECT status, steps, attempts FROM records;
SELECT idemq.commit(:id, :token);
DELETE FROM idemq.jobs;

-- A cancel: not of what nobody has begun; running, retrying, or given back.
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT idemq.cancel(:id);
SELECT count(*) FROM records;
SELECT id FROM idemq.enqueue('q', '2', headers => '"h"') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT idemq.checkpoint(:id, :token, '"half"');
SELECT idemq.cancel(:id);
SELECT id FROM idemq.enqueue('q', '3') \gset
SELECT idemq.fail(id, token, 'no') FROM idemq.claim('q');
SELECT idemq.cancel(:id);
SELECT id FROM idemq.enqueue('q', '4', key => 'k') \gset
SELECT idemq.release(id, token) FROM idemq.claim('q');
SELECT idemq.cancel_by_key('q', 'k');
SELECT * FROM records;
SELECT headers FROM idemq.jobs WHERE queue_id = :undo ORDER BY id;
-- Given back, and expired: by whoever meets it.
SELECT id FROM idemq.enqueue('q', '5', expires_in => '1 h') \gset
SELECT idemq.release(id, token) FROM idemq.claim('q');
UPDATE idemq.jobs SET expires_at = now() - interval '1 h' WHERE id = :id;
SELECT count(*) FROM idemq.claim('q');
SELECT status, payload, error FROM records ORDER BY payload DESC LIMIT 1;
SELECT id FROM idemq.enqueue('q', '6', expires_in => '1 h') \gset
UPDATE idemq.jobs SET expires_at = now() - interval '1 h' WHERE id = :id;
SELECT count(*) FROM idemq.claim('q');
SELECT count(*) FROM records;
-- Undone with its transaction.
SELECT id FROM idemq.enqueue('q', '7') \gset
SELECT token FROM idemq.claim('q') \gset
BEGIN;
SELECT idemq.cancel(:id);
SELECT count(*) FROM records;
ROLLBACK;
SELECT count(*) FROM records;
SELECT idemq.commit(:id, :token);
-- A commit leaves nothing to undo; a purge undoes nothing.
SELECT idemq.cancel(:id);
SELECT id FROM idemq.enqueue('q', '8') \gset
SELECT idemq.release(id, token) FROM idemq.claim('q');
SELECT idemq.purge('q', 'pending');
SELECT count(*) FROM records;
DELETE FROM idemq.jobs;

-- The setting: off by default, and only with a dead-letter queue.
SELECT idemq.alter_queue('q', dead_letter_cancelled => false);
SELECT details FROM idemq.audit ORDER BY id DESC LIMIT 1;
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.cancel(:id);
SELECT count(*) FROM records;
SELECT idemq.alter_queue('q', dead_letter_queue => '', dead_letter_cancelled => true);
SELECT id FROM idemq.enqueue('q', '2') \gset
SELECT count(*) FROM idemq.claim('q');
SELECT idemq.cancel(:id);
SELECT count(*) FROM records;
SELECT idemq.create_queue('other', dead_letter_cancelled => NULL);
SELECT idemq.create_queue('other', dead_letter_queue => 'undo');
SELECT dead_letter_cancelled FROM idemq.queues WHERE name = 'other';
SELECT idemq.alter_queue('other', lease => '1 min');
SELECT dead_letter_cancelled FROM idemq.queues WHERE name = 'other';
-- Gone by hand: the cancel stands, and says so.
SELECT idemq.alter_queue('q', dead_letter_queue => 'undo');
SELECT id FROM idemq.enqueue('q', '3') \gset
SELECT count(*) FROM idemq.claim('q');
UPDATE idemq.queues SET dead_letter_queue = 'nowhere' WHERE name = 'q';
\set VERBOSITY terse
SELECT idemq.cancel(:id);
SELECT status FROM idemq.job(:id);
UPDATE idemq.queues SET dead_letter_queue = 'undo' WHERE name = 'q';

-- Long requests and responses are left out, and steps beyond the first hundred.
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT length(idemq.finish_step(:id, :token, 'long', to_jsonb(repeat('x', 10000)))::text);
SELECT count(idemq.finish_step(:id, :token, 'step ' || n, to_jsonb(n))) FROM generate_series(1, 120) n;
SELECT idemq.cancel(:id);
SELECT jsonb_array_length(steps) AS steps FROM records;
SELECT s->'response' AS response FROM idemq.jobs, jsonb_array_elements(payload->'steps') s WHERE queue_id = :undo AND s->>'name' = 'long';
DELETE FROM idemq.jobs;
DELETE FROM idemq.steps;
-- So is a checkpoint that is above 64 MB as text with payload and headers, and then these.
\set VERBOSITY terse
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT count(*) FROM idemq.claim('q');
UPDATE idemq.jobs SET checkpoint = to_jsonb(repeat(chr(1), 11 * 1024 * 1024)) WHERE id = :id;
SELECT idemq.cancel(:id) \gset
SELECT payload, checkpoint FROM records;
DELETE FROM idemq.jobs;
SELECT id FROM idemq.enqueue('q', '1') \gset
SELECT count(*) FROM idemq.claim('q');
UPDATE idemq.jobs SET payload = to_jsonb(repeat(chr(1), 11 * 1024 * 1024)), checkpoint = '2' WHERE id = :id;
SELECT idemq.cancel(:id) \gset
SELECT payload, checkpoint FROM records;
DELETE FROM idemq.jobs;
SELECT * FROM idemq.check();
DROP VIEW records;
DROP EXTENSION idemq;
