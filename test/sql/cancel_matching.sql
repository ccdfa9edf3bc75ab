-- cancel_many, by ids; cancel_matching, by kind, group and beginning of the key.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('dead') > 0 AS created;
SELECT idemq.create_queue('q', lease => '1 h', dead_letter_queue => 'dead', dead_letter_cancelled => true) > 0 AS created;
SELECT idemq.create_queue('other') > 0 AS created;
CREATE FUNCTION job(name text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.jobs WHERE payload = to_jsonb(name) ORDER BY id LIMIT 1 $$;
CREATE VIEW left_over AS SELECT q.name, string_agg(payload #>> '{}', ' ' ORDER BY id) AS jobs
	FROM idemq.jobs JOIN idemq.queues q USING (queue_id) WHERE finished_at IS NULL AND q.name <> 'dead' GROUP BY 1 ORDER BY 1;

-- By ids, of any queues: each once, in their order; what is finished says so, again is no error.
SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM unnest('{a,b,c,d}'::text[]) n;
SELECT count(idemq.enqueue('other', to_jsonb(n))) FROM unnest('{o,p}'::text[]) n;
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT payload FROM idemq.claim('q');
SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('other');
SELECT outcome, payload, status FROM idemq.cancel_many(ARRAY[job('p'), job('b'), job('o'), job('a'), job('b'), job('c')]) r JOIN idemq.jobs USING (id) ORDER BY id;
SELECT outcome FROM idemq.cancel_many(ARRAY[job('b'), -7]);
SELECT * FROM idemq.cancel_many('{}');
SELECT * FROM idemq.cancel_many(NULL);
SELECT * FROM idemq.cancel_many('{NULL}');
-- The one that was running had begun: its worker is refused, and the dead-letter queue has it.
SELECT payload->'payload' AS job, payload->'status' AS status FROM idemq.claim('dead');
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE id = job('b');
SELECT * FROM left_over;

-- By kind, by group, by key, and by what they have in common.
SELECT count(idemq.enqueue('q', to_jsonb(k || g || n), kind => k, group_key => g, key => k || '/' || g || '/' || n))
	FROM unnest('{mail,pdf}'::text[]) k, unnest('{x,y}'::text[]) g, generate_series(1, 3) n;
SELECT count(idemq.enqueue('other', '"other"', kind => 'mail', group_key => 'x', key => 'mail/x/1'));
SELECT * FROM left_over;
SELECT * FROM idemq.cancel_matching('q', kind => 'mail', group_key => 'x', key_prefix => 'mail/x/2');
SELECT * FROM idemq.cancel_matching('q', kind => 'mail', max_jobs => 2);
SELECT * FROM left_over;
SELECT * FROM idemq.cancel_matching('q', group_key => 'x');
SELECT * FROM idemq.cancel_matching('q', key_prefix => 'pdf/y/');
SELECT * FROM idemq.cancel_matching('q', key_prefix => 'pdf/y/');
SELECT * FROM left_over;
SELECT * FROM idemq.cancel_matching('q', kind => 'fax');
SELECT * FROM idemq.cancel_matching('q', kind => 'mail');
-- With a parent goes its child.
SELECT id AS parent FROM idemq.enqueue('q', '"parent"', kind => 'root') \gset
SELECT count(idemq.enqueue('other', '"child"', depends_on => ARRAY[:parent]));
SELECT * FROM idemq.cancel_matching('q', kind => 'root');
SELECT payload FROM idemq.claim('other', 5);
SELECT * FROM left_over;
-- The beginning is bytes: no pattern, and nothing that sorts beside it.
SELECT count(idemq.enqueue('q', to_jsonb(k), key => k)) FROM unnest('{a%c,abc,a_c,A%c,a&,a%,éa,éb,ëa}'::text[]) k;
SELECT * FROM idemq.cancel_matching('q', key_prefix => 'a%');
SELECT * FROM idemq.cancel_matching('q', key_prefix => 'é');
SELECT * FROM left_over;

-- Which jobs has to be said; the rest as everywhere.
SELECT * FROM idemq.cancel_matching('q');
SELECT * FROM idemq.cancel_matching('q', kind => NULL, max_jobs => 1);
SELECT * FROM idemq.cancel_matching('q', kind => '');
SELECT * FROM idemq.cancel_matching('q', group_key => '');
SELECT * FROM idemq.cancel_matching('q', key_prefix => '');
SELECT * FROM idemq.cancel_matching('q', key_prefix => repeat('k', 1025));
SELECT * FROM idemq.cancel_matching('q', kind => 'mail', max_jobs => 0);
SELECT * FROM idemq.cancel_matching(NULL, kind => 'mail');
SELECT * FROM idemq.cancel_matching('nowhere', kind => 'mail');

-- What was done, and by whom: only what was changed.
SELECT action, queue, job_id, jobs, details FROM idemq.audit WHERE action LIKE 'cancel%' ORDER BY id;
-- Producers and administrators; a worker's role may not.
CREATE ROLE idemq_producer; CREATE ROLE idemq_worker;
GRANT USAGE ON SCHEMA idemq TO idemq_producer, idemq_worker;
SELECT idemq.grant_queue('q', 'idemq_producer', 'enqueue'), idemq.grant_queue('q', 'idemq_worker', 'claim');
SELECT job('abc') AS mine, job('other') AS foreign \gset
SET ROLE idemq_worker;
SELECT * FROM idemq.cancel_matching('q', key_prefix => 'a');
SELECT outcome FROM idemq.cancel_many(ARRAY[:mine]);
SET ROLE idemq_producer;
SELECT * FROM idemq.cancel_matching('other', key_prefix => 'a');
SELECT outcome FROM idemq.cancel_many(ARRAY[:foreign]);
SELECT * FROM idemq.cancel_matching('q', key_prefix => 'ab');
SELECT outcome FROM idemq.cancel_many(ARRAY[:mine]);
RESET ROLE;
SELECT * FROM left_over;
SELECT * FROM idemq.check();
SELECT idemq.drop_queue('q', true), idemq.drop_queue('other', true), idemq.drop_queue('dead', true);
DROP VIEW left_over;
DROP FUNCTION job;
DROP EXTENSION idemq;
DROP ROLE idemq_producer, idemq_worker;
