-- For people: progress, names of queues, idemq.job_list.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT c AS checkpoint, idemq.progress(c::jsonb) FROM unnest(ARRAY['{"done": 3, "of": 10}', '{"done": 1, "of": 3, "x": []}', '{"done": 0, "of": 1}', '{"done": 11, "of": 10}',
	'{"done": -1, "of": 10}', '{"done": 1, "of": 0}', '{"done": 1, "of": -1}', '{"done": "3", "of": 10}', '{"done": 3}', '{"of": 3}', '[3, 10]', '7', 'null', '{}',
	'{"done": 1e400, "of": 1e500}', '{"done": 1, "of": 1e500}', '{"done": 1e307, "of": 2e307}', '{"done": 1e-400, "of": 1e-500}', NULL]) c;
SELECT idemq.create_queue('mail', lease => '1 h') AS mail, idemq.create_queue('other') AS other \gset
SELECT count(idemq.enqueue('mail', to_jsonb(g))) FROM generate_series(1, 3) g;
SELECT id AS foreign_id FROM idemq.enqueue('other', '"secret"') \gset
SELECT count(idemq.checkpoint(id, token, CASE payload::text WHEN '1' THEN '{"done": 3, "of": 10}'::jsonb ELSE '"page 7"' END)) FROM idemq.claim('mail', 2, worker => 'w');
SELECT queue, progress, state FROM idemq.running_jobs ORDER BY progress;
SELECT queue, status, progress, worker, payload FROM idemq.job_list ORDER BY id;
SELECT queue, count(*) FROM idemq.job_list WHERE queue = 'mail' AND status = 'running' GROUP BY 1;
SELECT idemq.queue_name(:mail), idemq.queue_name(-1), idemq.queue_name(0), idemq.queue_name(NULL);
SELECT idemq.queue_name(queue_id), count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1;

CREATE ROLE idemq_worker; CREATE ROLE idemq_producer; CREATE ROLE idemq_watcher IN ROLE pg_monitor;
GRANT USAGE ON SCHEMA idemq TO idemq_worker, idemq_producer;
SELECT idemq.grant_queue('mail', 'idemq_worker', 'claim'), idemq.grant_queue('mail', 'idemq_producer', 'enqueue');
CREATE FUNCTION spy(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$;
SET ROLE idemq_worker;
\set VERBOSITY terse
SELECT DISTINCT queue FROM idemq.job_list WHERE spy(queue) AND spy(CASE WHEN payload IN ('1', '2', '3') THEN 'own' ELSE payload::text END);
\set VERBOSITY sqlstate
SELECT count(*) FROM idemq.job_list WHERE id = :foreign_id;
SELECT idemq.queue_name(:mail), idemq.queue_name(:other);
SET ROLE idemq_producer;
SELECT count(*) FROM idemq.job_list;
SELECT idemq.queue_name(:mail), idemq.queue_name(:other);
SET ROLE idemq_watcher;
SELECT count(*) FROM idemq.job_list;
SELECT idemq.queue_name(:mail), idemq.queue_name(:other);
SELECT count(*) FROM idemq.running_jobs WHERE progress = 30;
RESET ROLE;
SELECT idemq.drop_queue('mail', true), idemq.drop_queue('other', true);
DROP FUNCTION spy;
DROP EXTENSION idemq;
DROP ROLE idemq_worker, idemq_producer, idemq_watcher;
