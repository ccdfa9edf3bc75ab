-- enqueue_many beyond one batch of rows (128, or 64 kB): order, entries, errors in the middle.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h');

-- Ids follow the array, one after the other, and jobs are claimed in that order.
CREATE FUNCTION payloads(n int) RETURNS jsonb[] LANGUAGE sql AS 'SELECT array_agg(to_jsonb(g) ORDER BY g) FROM generate_series(1, n) g';
SELECT count(*), max(ord), bool_and(e.id = first + ord - 1) AS one_after_the_other, bool_and(outcome = 'accepted' AND status = 'pending')
FROM (SELECT *, min(id) OVER () AS first FROM idemq.enqueue_many('q', payloads(1000))) e;
SELECT count(*), bool_and(right_place) FROM (SELECT payload::int = row_number() OVER () AS right_place FROM idemq.claim('q', 1000)) c;
-- An id that nextval gives is greater, and so is that of the next batch; each is logged.
SELECT nextval('idemq.jobs_id_seq') > max(id) AS greater FROM idemq.jobs;
SELECT min(id) > (SELECT max(id) FROM idemq.jobs) AS greater FROM idemq.enqueue_many('q', payloads(2));
-- Each index has each row.
CREATE FUNCTION rows_by(setting text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	PERFORM set_config('enable_indexscan', setting, true), set_config('enable_indexonlyscan', setting, true),
		set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', CASE setting WHEN 'on' THEN 'off' ELSE 'on' END, true);
	EXECUTE 'SELECT concat_ws('' '', (SELECT count(*) FROM idemq.jobs WHERE id > 0),
		(SELECT md5(string_agg(id::text, '','' ORDER BY id)) FROM idemq.jobs WHERE queue_id = 1 AND ready_at IS NOT NULL),
		(SELECT md5(string_agg(id::text, '','' ORDER BY id)) FROM idemq.jobs WHERE queue_id = 1 AND key IS NOT NULL),
		(SELECT md5(string_agg(id::text, '','' ORDER BY id)) FROM idemq.jobs WHERE queue_id = 1 AND group_key IS NOT NULL AND finished_at IS NULL))' INTO answer;
	RETURN answer;
END $$;
CREATE VIEW indexes AS SELECT rows_by('on') = rows_by('off') AS each_has_each_row;
SELECT * FROM indexes;
SELECT pending, running FROM idemq.metrics;
DELETE FROM idemq.jobs;

-- A sequence that counts otherwise gives its ids one by one; one that would end gives none.
ALTER SEQUENCE idemq.jobs_id_seq INCREMENT 10;
SELECT count(DISTINCT id) FILTER (WHERE id % 10 = first % 10), max(id) - min(id) AS apart
FROM (SELECT id, min(id) OVER () AS first FROM idemq.enqueue_many('q', payloads(300))) e;
ALTER SEQUENCE idemq.jobs_id_seq INCREMENT 1 CACHE 20;
SELECT count(DISTINCT id) FROM idemq.enqueue_many('q', payloads(300));
ALTER SEQUENCE idemq.jobs_id_seq CACHE 1;
BEGIN;
SELECT setval('idemq.jobs_id_seq', 9223372036854775807 - 299) > 0 AS near_its_end;
SAVEPOINT s;
SELECT count(DISTINCT id), max(id) FROM idemq.enqueue_many('q', payloads(299));
ROLLBACK TO s;
SELECT setval('idemq.jobs_id_seq', 9223372036854775807 - 299) > 0 AS near_its_end;
SELECT count(*) FROM idemq.enqueue_many('q', payloads(300));
ROLLBACK;
-- (Sequences do not roll back.)
SELECT setval('idemq.jobs_id_seq', (SELECT max(id) FROM idemq.jobs)) > 0 AS set;
DELETE FROM idemq.jobs;

-- The 500th of 1,000 is wrong: nothing is half done, in a savepoint, a block or alone.
SELECT count(*) FROM idemq.enqueue_many('q', payloads(1000), priorities => array_fill(4, ARRAY[499]) || 10 || array_fill(4, ARRAY[500]));
BEGIN;
SELECT count(*) FROM idemq.enqueue_many('q', payloads(300));
SAVEPOINT s;
SELECT count(*) FROM idemq.enqueue_many('q', payloads(300));
ROLLBACK TO s;
SAVEPOINT t;
SELECT count(*) FROM idemq.enqueue_many('q', payloads(1000), priorities => array_fill(4, ARRAY[499]) || 10 || array_fill(4, ARRAY[500]));
ROLLBACK TO t;
SELECT count(*) FROM idemq.enqueue_many('q', payloads(200));
SELECT count(*) FROM idemq.jobs;
SELECT count(*) FROM idemq.claim('q', 10);
COMMIT;
SELECT count(*), sum(payload::int) FROM idemq.jobs;
SELECT pending, running FROM idemq.metrics;
SELECT * FROM indexes;
SELECT count(*) FROM idemq.claim('q', 1000);
DELETE FROM idemq.jobs;

-- Payloads that go to the TOAST table, each its own batch, between small ones.
CREATE TEMP TABLE documents AS SELECT g, to_jsonb(CASE WHEN g % 10 = 0 THEN (SELECT string_agg(md5(g::text || i::text), '') FROM generate_series(1, 3200) i) ELSE g::text END) AS document
FROM generate_series(1, 200) g;
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg(document ORDER BY g) FROM documents));
SELECT count(*), bool_and(payload = document) AS same, max(octet_length(payload::text)) AS longest
FROM (SELECT payload, row_number() OVER (ORDER BY id) AS g FROM idemq.jobs) j JOIN documents USING (g);
SELECT count(*) FROM idemq.claim('q', 1000) c;
SELECT * FROM indexes;
DELETE FROM idemq.jobs;

-- All options at once; groups have their heads in order.
SELECT count(*) FROM idemq.enqueue_many('q', payloads(600),
	run_ats => (SELECT array_agg(CASE WHEN g % 4 = 0 THEN now() - g * interval '1 min' END ORDER BY g) FROM generate_series(1, 600) g),
	priorities => (SELECT array_agg(g % 10 ORDER BY g) FROM generate_series(1, 600) g),
	group_keys => (SELECT array_agg(CASE WHEN g % 3 = 0 THEN 'group ' || g % 5 END ORDER BY g) FROM generate_series(1, 600) g),
	keys => (SELECT array_agg(CASE WHEN g % 7 = 0 THEN 'key ' || g END ORDER BY g) FROM generate_series(1, 600) g),
	headers => (SELECT array_agg(CASE WHEN g % 2 = 0 THEN to_jsonb(g) END ORDER BY g) FROM generate_series(1, 600) g));
SELECT count(*), count(key), count(group_key), count(headers), bool_and(priority = payload::int % 10),
	bool_and(headers IS NULL OR headers = payload), bool_and(key IS NULL OR key = 'key ' || payload::text),
	bool_and(group_key IS NULL OR group_key = 'group ' || (payload::int % 5)::text)
FROM idemq.jobs;
SELECT * FROM indexes;
SELECT count(*), count(group_key) AS heads FROM idemq.claim('q', 1000);
SELECT group_key, payload FROM idemq.jobs WHERE status = 'running' AND group_key IS NOT NULL ORDER BY group_key COLLATE "C";
SELECT * FROM idemq.check();
DELETE FROM idemq.jobs;

-- A user's unique index on plain columns: the second job is refused, and nothing stays.
CREATE UNIQUE INDEX mine ON idemq.jobs (enqueued_at);
SELECT count(*) FROM idemq.enqueue_many('q', payloads(300));
SELECT count(*) FROM idemq.enqueue_many('q', payloads(1));
DROP INDEX idemq.mine;
-- One that needs the executor; a partial one; another access method.
CREATE INDEX mine ON idemq.jobs ((payload::text)) WHERE priority > 3;
CREATE INDEX yours ON idemq.jobs USING gin (payload);
SELECT count(*) FROM idemq.enqueue_many('q', payloads(300));
SET enable_seqscan = off;
SELECT count(*) FROM idemq.jobs WHERE payload @> '300';
SELECT count(*) FROM idemq.jobs WHERE payload::text = '300' AND priority > 3;
RESET enable_seqscan;
DROP INDEX idemq.mine, idemq.yours;
-- A trigger of the user sees each row.
CREATE TABLE seen (id bigint);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.seen VALUES (NEW.id); RETURN NEW; END';
CREATE TRIGGER see BEFORE INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION see();
SELECT count(*) FROM idemq.enqueue_many('q', payloads(300));
SELECT count(*), count(DISTINCT id) FROM seen JOIN idemq.jobs USING (id);
-- So it does that of a job which takes its key from a finished one.
SELECT idemq.create_queue('successors', idempotency_window => '1 us') IS NOT NULL AS created;
SELECT idemq.commit_once(id) FROM idemq.enqueue('successors', '1', key => 'k');
SELECT outcome FROM idemq.enqueue('successors', '2', key => 'k');
SELECT payload FROM seen JOIN idemq.job_list USING (id) WHERE queue = 'successors' ORDER BY id;
DROP TRIGGER see ON idemq.jobs;
SELECT idemq.drop_queue('successors', force => true);
SELECT pending FROM idemq.metrics;
DELETE FROM idemq.jobs;

-- In one statement, and above READ COMMITTED.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM idemq.enqueue_many('q', payloads(300));
SELECT count(*) FROM idemq.jobs;
SELECT count(*) FROM idemq.claim('q', 100);
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM idemq.enqueue_many('q', payloads(300));
COMMIT;
SELECT pending, running FROM idemq.metrics;
SELECT * FROM idemq.check();
DROP EXTENSION idemq CASCADE;
