-- idemq.audit: who decided what about queues and jobs; who may read it; when it goes.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
CREATE ROLE idemq_boss LOGIN;
CREATE ROLE idemq_producer LOGIN;
CREATE ROLE idemq_other LOGIN;
CREATE ROLE idemq_watcher LOGIN IN ROLE pg_monitor;
GRANT USAGE ON SCHEMA idemq TO idemq_boss, idemq_producer, idemq_other;
GRANT EXECUTE ON FUNCTION idemq.create_queue TO idemq_boss;

SET ROLE idemq_boss;
SELECT idemq.create_queue('q', lease => '1 h') > 0 AS created;
RESET ROLE;
SELECT idemq.create_queue('foreign') > 0 AS created;
SET SESSION AUTHORIZATION idemq_boss;
SELECT idemq.alter_queue('q', lease => '2 h', max_running => 5);
SELECT idemq.alter_queue('q', lease => '2 h');
SELECT idemq.alter_queue('q', max_running => 0, dead_retention => '1 day');
SELECT idemq.grant_queue('q', 'idemq_producer', 'enqueue');
SELECT idemq.grant_queue('q', 'idemq_producer', 'enqueue');
SELECT idemq.revoke_queue('q', 'idemq_producer', 'claim');
SELECT idemq.grant_queue('q', 'idemq_other', 'claim');
SELECT idemq.revoke_queue('q', 'idemq_other', 'claim');
SELECT idemq.pause('q');
SELECT idemq.resume('q');
SET SESSION AUTHORIZATION idemq_producer;
SELECT outcome FROM idemq.enqueue_many('q', '{1,2,3,4,5}', keys => '{a,b,c,d,e}');
SELECT idemq.cancel(id) FROM idemq.enqueue('q', '1', key => 'a');
SELECT idemq.cancel(id) FROM idemq.enqueue('q', '1', key => 'a');
SELECT idemq.cancel_by_key('q', 'b');
SELECT idemq.cancel_by_key('q', 'nope');
SELECT idemq.retry(id) FROM idemq.enqueue('q', '1', key => 'a');
SELECT idemq.retry(id) FROM idemq.enqueue('q', '1', key => 'a');
SET SESSION AUTHORIZATION idemq_boss;
SELECT outcome FROM idemq.claim('q', 2) c, idemq.fail_many(ARRAY[c.id], ARRAY[c.token], permanent => true);
SELECT idemq.redrive('q'), idemq.redrive('q');
SELECT idemq.purge('q', 'cancelled'), idemq.purge('q', 'dead');
SELECT idemq.purge('q'), idemq.purge('q');

-- What was rolled back was never done; what was refused neither.
BEGIN;
SELECT idemq.pause('q');
ROLLBACK;
SELECT idemq.pause('foreign');
SET SESSION AUTHORIZATION idemq_producer;
SELECT idemq.purge('q');
SET SESSION AUTHORIZATION idemq_boss;
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT idemq.drop_queue('q');
SELECT idemq.drop_queue('q', force => true);
RESET SESSION AUTHORIZATION;
SELECT session_role, role, action, queue, j.n AS job, jobs, CASE WHEN action <> 'create_queue' THEN details END AS details
FROM idemq.audit LEFT JOIN (SELECT job_id, row_number() OVER (ORDER BY job_id) AS n FROM (SELECT DISTINCT job_id FROM idemq.audit WHERE job_id IS NOT NULL) i) j USING (job_id)
ORDER BY id;
SELECT queue, details FROM idemq.audit WHERE action = 'create_queue';
SELECT bool_and(at BETWEEN now() - interval '1 h' AND clock_timestamp()) AS just_now, bool_and(queue_id IS NOT NULL) AS has_queue FROM idemq.audit;

-- Of a function of the owner's, both roles are known.
CREATE FUNCTION pause_it() RETURNS void SECURITY DEFINER LANGUAGE sql AS $$ SELECT idemq.pause('foreign') $$;
GRANT ALL ON SCHEMA public TO PUBLIC;
SET SESSION AUTHORIZATION idemq_other;
SELECT pause_it();
RESET SESSION AUTHORIZATION;
SELECT session_role, role = session_user AS owner, action FROM idemq.audit ORDER BY id DESC LIMIT 1;

-- For whom a session says that it acts: no check, no more than 200 characters, and nothing when it is over.
SET idemq.actor = 'anna';
SELECT idemq.resume('foreign');
BEGIN;
SELECT set_config('idemq.actor', repeat('ä', 300), true) IS NOT NULL AS said;
SELECT idemq.pause('foreign');
COMMIT;
RESET idemq.actor;
SELECT idemq.resume('foreign');
SELECT action, left(actor, 5) AS actor, length(actor) FROM idemq.audit ORDER BY id DESC LIMIT 3;

-- Who sees it: administrators their queues, pg_monitor all; nobody writes.
SELECT idemq.grant_queue('foreign', 'idemq_boss', 'admin');
SELECT idemq.grant_queue('foreign', 'idemq_producer', 'enqueue'), idemq.grant_queue('foreign', 'idemq_other', 'claim');
SELECT count(*) AS whole, count(*) FILTER (WHERE queue = 'foreign') AS of_foreign FROM idemq.audit;
SET ROLE idemq_boss;
SELECT queue, count(*) FROM idemq.audit GROUP BY 1;
DELETE FROM idemq.audit;
UPDATE idemq.audit SET role = 'x';
INSERT INTO idemq.audit (at, session_role, role, action, queue_id, queue) VALUES (now(), 'x', 'x', 'x', 1, 'x');
SET ROLE idemq_producer;
SELECT count(*) FROM idemq.audit;
SET ROLE idemq_other;
SELECT count(*) FROM idemq.audit;
SET ROLE idemq_watcher;
SELECT count(*) FROM idemq.audit;
RESET ROLE;

-- Other levels, and a prepared transaction; read-only.
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idemq.resume('foreign');
SELECT action FROM idemq.audit ORDER BY id DESC LIMIT 1;
COMMIT;
BEGIN READ ONLY;
SELECT idemq.pause('foreign');
ROLLBACK;

-- It goes after idemq.audit_retention, with apply_retention as well.
SHOW idemq.audit_retention;
UPDATE idemq.audit SET at = at - interval '89 days' WHERE action = 'grant_queue';
UPDATE idemq.audit SET at = at - interval '91 days' WHERE action = 'resume';
SELECT count(*) FILTER (WHERE action = 'grant_queue') > 0 AS younger, count(*) FILTER (WHERE action = 'resume') AS older FROM idemq.audit;
SELECT idemq.apply_retention();
SELECT count(*) FILTER (WHERE action = 'grant_queue') > 0 AS younger, count(*) FILTER (WHERE action = 'resume') AS older FROM idemq.audit;

SELECT * FROM idemq.check();
SELECT idemq.drop_queue('foreign');
DROP FUNCTION pause_it;
DROP EXTENSION idemq;
REVOKE ALL ON SCHEMA public FROM idemq_boss;
DROP ROLE idemq_boss, idemq_producer, idemq_other, idemq_watcher;
