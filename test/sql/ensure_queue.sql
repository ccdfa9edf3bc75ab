-- ensure_queue, ensure_topic and ensure_handler, which a program calls whenever it starts.
CREATE EXTENSION idemq;
\set VERBOSITY default
\set SHOW_CONTEXT never
\pset null -

-- ---- Created, unchanged, changed

SELECT * FROM idemq.ensure_queue('mail', lease => '1 min', max_running => 20);
SELECT * FROM idemq.ensure_queue('mail', lease => '1 min', max_running => 20);
SELECT lease, max_running, max_attempts, declared FROM idemq.queues;
-- The same values in another notation.
SELECT * FROM idemq.ensure_queue('mail', lease => '60 s');
-- Settings that are not named stay; a call that names no setting changes nothing.
SELECT * FROM idemq.ensure_queue('mail');
SELECT * FROM idemq.ensure_queue('mail', max_running => 30, retention => '2 days');
SELECT * FROM idemq.ensure_queue('mail', retention => '48 h');
SELECT lease, max_running, retention, declared FROM idemq.queues;
-- As in alter_queue, 0 and '' mean no limit and no queue; a call may name a setting with its default.
SELECT (idemq.ensure_queue('letters')).outcome, (idemq.ensure_queue('more')).outcome;
SELECT * FROM idemq.ensure_queue('mail', max_running => 0, dead_letter_queue => 'letters', job_timeout => '1 h', max_attempts => 20);
SELECT * FROM idemq.ensure_queue('mail', max_running => 0, dead_letter_queue => 'letters', job_timeout => '60 min', max_attempts => 20);
SELECT * FROM idemq.ensure_queue('mail', dead_letter_queue => '', job_timeout => '0');
SELECT max_running, dead_letter_queue, job_timeout, dead_letter_role, declared FROM idemq.queues WHERE name = 'mail';
-- A call that creates a queue also accepts 0 and ''.
SELECT * FROM idemq.ensure_queue('none', max_running => 0, dead_letter_queue => '', job_timeout => '0');
SELECT max_running, dead_letter_queue, job_timeout, declared FROM idemq.queues WHERE name = 'none';

-- ---- A setting of every type, from one declaration to another

SELECT proargnames[3:28] = (SELECT array_agg(a) FROM unnest((SELECT proargnames FROM pg_proc WHERE proname = 'create_queue')[2:]) a) AS as_create_queue
	FROM pg_proc WHERE proname = 'ensure_queue';
SELECT outcome FROM idemq.ensure_queue('types', lease => '1 min', retry_factor => 1.5, retry_jitter => 0, expect_workers => false, rate_limit => 5, dead_letter_queue => 'letters', job_timeout => '1 h');
SELECT outcome, jsonb_pretty(changes) FROM idemq.ensure_queue('types', lease => '2 min', retry_factor => 3, retry_jitter => 0.5, expect_workers => true, rate_limit => 6, dead_letter_queue => 'more', job_timeout => '2 h');
SELECT outcome FROM idemq.ensure_queue('types', lease => '2 min', retry_factor => 3, retry_jitter => 0.5, expect_workers => true, rate_limit => 6, dead_letter_queue => 'more', job_timeout => '2 h');
-- A new queue has the defaults of create_queue.
SELECT idemq.create_queue('plain') > 0 AS made, (idemq.ensure_queue('declared')).outcome;
SELECT count(DISTINCT to_jsonb(q) - '{queue_id,name,created_at,declared}'::text[]) AS kinds FROM idemq.queues q WHERE name IN ('plain', 'declared');

-- ---- exact

SELECT * FROM idemq.ensure_queue('types', exact => true, lease => '2 min');
SELECT * FROM idemq.ensure_queue('types', true, '2 min');
SELECT count(DISTINCT to_jsonb(q) - '{queue_id,name,created_at,declared,lease}'::text[]) AS kinds FROM idemq.queues q WHERE name IN ('plain', 'types');
SELECT (SELECT count(*) FROM jsonb_object_keys(declared)) AS declared FROM idemq.queues WHERE name = 'types';
-- If the call names no setting, all are set to their defaults.
SELECT * FROM idemq.ensure_queue('types', exact => true);
SELECT * FROM idemq.ensure_queue('types', exact => true);
-- A new queue.
SELECT outcome FROM idemq.ensure_queue('exact', exact => true, max_running => 3);
SELECT max_running, max_attempts FROM idemq.queues WHERE name = 'exact';
SELECT outcome, changes FROM idemq.ensure_queue('exact', exact => true);

-- ---- What a DBA changes stays until the declaration changes

SELECT outcome FROM idemq.ensure_queue('incident', max_running => 20, lease => '1 min', max_unfinished => 100);
SELECT idemq.alter_queue('incident', max_running => 2, max_unfinished => 0, retention => '3 days');
SELECT * FROM idemq.ensure_queue('incident', max_running => 20, lease => '1 min', max_unfinished => 100);
SELECT max_running, max_unfinished FROM idemq.queues WHERE name = 'incident';
-- The declaration of another setting changes: these settings stay, and the WARNING names them.
SELECT * FROM idemq.ensure_queue('incident', max_running => 20, lease => '2 min', max_unfinished => 100);
-- The declared values of these settings change.
SELECT * FROM idemq.ensure_queue('incident', max_running => 30, lease => '2 min', max_unfinished => 100);
SELECT max_running, max_unfinished, retention FROM idemq.queues WHERE name = 'incident';
-- The DBA and the declaration agree again, and no WARNING is raised.
SELECT idemq.alter_queue('incident', max_unfinished => 100);
SELECT * FROM idemq.ensure_queue('incident', max_running => 30, lease => '2 min', max_unfinished => 100);
-- The declaration follows the DBA: it is stored, and no setting changes.
SELECT idemq.alter_queue('incident', max_running => 40);
SELECT * FROM idemq.ensure_queue('incident', max_running => 40);
SELECT * FROM idemq.ensure_queue('incident', max_running => 40);
-- With exact, a setting that is not named is declared as well.
SELECT idemq.alter_queue('exact', max_attempts => 7);
SELECT * FROM idemq.ensure_queue('exact', exact => true);
-- Two programs that declare different settings, and two that run an old and a new version.
SELECT (idemq.ensure_queue('shared', lease => '1 min')).outcome, (idemq.ensure_queue('shared', max_running => 5)).outcome;
SELECT (idemq.ensure_queue('shared', lease => '1 min')).outcome, (idemq.ensure_queue('shared', max_running => 5)).outcome;

-- ---- A queue that was created with create_queue

SELECT idemq.create_queue('old', max_running => 5) > 0 AS made;
SELECT * FROM idemq.ensure_queue('old');
SELECT declared FROM idemq.queues WHERE name = 'old';
SELECT * FROM idemq.ensure_queue('old', max_running => 5, lease => '1 min');
SELECT declared FROM idemq.queues WHERE name = 'old';

-- ---- Pauses, holds and grants stay

CREATE ROLE regress_ensure;
SELECT idemq.pause('old'), idemq.pause('old', group_key => 'g'), idemq.grant_queue('old', 'regress_ensure', 'enqueue');
SELECT outcome FROM idemq.ensure_queue('old', exact => true, max_running => 6);
SELECT paused, (SELECT count(*) FROM idemq.paused_groups p WHERE p.queue_id = q.queue_id) AS groups,
	(SELECT count(*) FROM idemq_internal.queue_grants g WHERE g.queue_id = q.queue_id) AS grants FROM idemq.queues q WHERE name = 'old';

-- ---- Privileges

SELECT idemq.ensure_topic('orders'), idemq.ensure_topic('orders');
SET ROLE regress_ensure;
SELECT * FROM idemq.ensure_queue('old');
SELECT * FROM idemq.ensure_queue('old', max_running => 6);
SELECT * FROM idemq.ensure_queue('old', exact => true, max_running => 6);
SELECT * FROM idemq.ensure_queue('old', max_running => 7, retention => '1 day');
SELECT * FROM idemq.ensure_queue('new');
SELECT * FROM idemq.ensure_queue('mail');
SELECT idemq.ensure_topic('orders');
SELECT idemq.ensure_topic('new');
RESET ROLE;
SELECT idemq.revoke_queue('old', 'regress_ensure', 'enqueue'), idemq.grant_queue('old', 'regress_ensure', 'claim'), idemq.grant_topic('orders', 'regress_ensure', 'publish');
SET ROLE regress_ensure;
SELECT * FROM idemq.ensure_queue('old', max_running => 6);
SELECT idemq.ensure_topic('orders');
RESET ROLE;
SELECT idemq.grant_queue('old', 'regress_ensure', 'admin');
GRANT EXECUTE ON FUNCTION idemq.create_queue, idemq.create_topic TO regress_ensure;
SET ROLE regress_ensure;
SELECT outcome FROM idemq.ensure_queue('old', max_running => 7);
-- Like create_queue, it checks the privilege on the dead-letter queue.
SELECT outcome FROM idemq.ensure_queue('old', dead_letter_queue => 'letters');
SELECT outcome FROM idemq.ensure_queue('new', dead_letter_queue => 'letters');
-- The role that creates a queue has admin on it.
SELECT (idemq.ensure_queue('new', lease => '1 min')).outcome, (idemq.ensure_queue('new', lease => '2 min')).outcome, idemq.ensure_topic('new'), idemq.ensure_topic('new');
SELECT privileges FROM idemq.queue_privileges WHERE queue = 'new';
SELECT privileges FROM idemq.topics WHERE topic = 'new';
RESET ROLE;

-- ---- Invalid arguments

SELECT idemq.ensure_queue(NULL);
SELECT idemq.ensure_queue('');
SELECT idemq.ensure_queue('mail', NULL);
SELECT (idemq.ensure_queue('mail', lease => NULL)).outcome;
SELECT idemq.ensure_queue(repeat('x', 64));
SELECT (idemq.ensure_queue(repeat('x', 48))).outcome, (idemq.ensure_queue(repeat('x', 48))).outcome;
SELECT idemq.ensure_queue(repeat('x', 49));
SELECT idemq.ensure_queue('no name');
SELECT idemq.ensure_queue('mail', colour => 'red');
SELECT idemq.ensure_queue('mail', max_attempts => 0);
SELECT idemq.ensure_queue('bad', max_attempts => 0);
SELECT idemq.ensure_queue('mail', max_running => -1);
SELECT idemq.ensure_queue('mail', group_max_unfinished => 10001);
SELECT idemq.ensure_queue('mail', lease => '2 days');
SELECT idemq.ensure_queue('bad', lease => '2 days');
SELECT idemq.ensure_queue('mail', dead_letter_queue => 'nowhere');
SELECT idemq.ensure_queue('mail', dead_letter_queue => 'mail');
SELECT idemq.ensure_topic(NULL);
SELECT idemq.ensure_topic('or der');
-- None of these calls has left a queue or a setting.
SELECT lease, declared->'lease' AS declared FROM idemq.queues WHERE name = 'mail';
SELECT count(*) FROM idemq.queues WHERE name = 'bad';
-- The same WARNING as from alter_queue and create_queue.
SELECT outcome FROM idemq.ensure_queue('mail', idempotency_window => '1 min');

-- ---- An unchanged call writes nothing, and takes no lock beyond a read

BEGIN READ ONLY;
SELECT outcome FROM idemq.ensure_queue('incident', max_running => 40);
SELECT idemq.ensure_topic('orders');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid, count(*) FILTER (WHERE mode <> 'AccessShareLock' AND locktype <> 'virtualxid') AS other_locks
	FROM pg_locks WHERE pid = pg_backend_pid();
ROLLBACK;
BEGIN READ ONLY;
SELECT outcome FROM idemq.ensure_queue('incident', max_running => 41);
ROLLBACK;
BEGIN READ ONLY;
SELECT outcome FROM idemq.ensure_queue('bad');
ROLLBACK;
BEGIN READ ONLY;
SELECT idemq.ensure_topic('bad');
ROLLBACK;

-- ---- Rolled back, even to a savepoint

BEGIN;
SAVEPOINT a;
SELECT outcome FROM idemq.ensure_queue('undone', lease => '1 min');
SELECT outcome FROM idemq.ensure_queue('undone', lease => '2 min');
ROLLBACK TO a;
SELECT outcome FROM idemq.ensure_queue('undone', lease => '3 min');
SELECT outcome FROM idemq.ensure_queue('incident', lease => '3 min');
ROLLBACK TO a;
SELECT outcome, changes FROM idemq.ensure_queue('incident', lease => '3 min');
ROLLBACK;
SELECT (SELECT count(*) FROM idemq.queues WHERE name = 'undone') AS undone, lease, declared->'lease' AS declared FROM idemq.queues WHERE name = 'incident';

-- ---- Dropped, renamed

SELECT idemq.drop_queue('shared');
SELECT * FROM idemq.ensure_queue('shared', max_running => 6);
SELECT lease, declared FROM idemq.queues WHERE name = 'shared';
-- Renamed by hand: the declaration stays with the queue.
UPDATE idemq.queues SET name = 'shared.2' WHERE name = 'shared';
SELECT (idemq.ensure_queue('shared.2', max_running => 6)).outcome, (idemq.ensure_queue('shared', max_running => 6)).outcome;
-- Dropping the dead-letter queue counts as a change by a DBA.
SELECT outcome FROM idemq.ensure_queue('shared', dead_letter_queue => 'shared.2');
SELECT idemq.drop_queue('shared.2', force => true);
SELECT outcome FROM idemq.ensure_queue('shared', dead_letter_queue => 'shared.2');
-- A declaration that is not an object cannot be stored, even by hand.
\set VERBOSITY sqlstate
UPDATE idemq.queues SET declared = '[]' WHERE name = 'shared';
\set VERBOSITY default
-- A value that is invalid for its setting: the next call replaces it, and calls that do not name the setting do not read it.
UPDATE idemq.queues SET declared = '{"lease": "long", "max_running": {"a": 1}, "retention": 5, "retry_factor": "x", "expect_workers": null}' WHERE name = 'shared';
SELECT outcome FROM idemq.ensure_queue('shared', max_running => 6, retention => '1 day', retry_factor => 2, expect_workers => true);
SELECT declared FROM idemq.queues WHERE name = 'shared';
SELECT outcome FROM idemq.ensure_queue('shared', lease => '1 min');
UPDATE idemq.queues SET declared = NULL WHERE name = 'shared';
SELECT outcome, changes FROM idemq.ensure_queue('shared', max_running => 6);

-- ---- Triggers of the DBA on idemq.queues

-- A trigger that rejects the row: the call does not try indefinitely.
CREATE FUNCTION regress_ensure_out() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER regress_ensure_out BEFORE INSERT ON idemq.queues FOR EACH ROW EXECUTE FUNCTION regress_ensure_out();
SELECT idemq.ensure_queue('kept_out');
DROP TRIGGER regress_ensure_out ON idemq.queues;
-- A trigger that gives the row another name.
CREATE FUNCTION regress_ensure_lower() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.name := lower(NEW.name); RETURN NEW; END';
CREATE TRIGGER regress_ensure_lower BEFORE INSERT ON idemq.queues FOR EACH ROW EXECUTE FUNCTION regress_ensure_lower();
SELECT * FROM idemq.ensure_queue('Lowered');
SELECT idemq.ensure_queue('Lowered');
SELECT outcome FROM idemq.ensure_queue('lowered');
DROP TRIGGER regress_ensure_lower ON idemq.queues;
-- A trigger that deletes the row: no audit row is written.
CREATE FUNCTION regress_ensure_gone() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN DELETE FROM idemq.queues WHERE queue_id = NEW.queue_id; RETURN NULL; END';
CREATE TRIGGER regress_ensure_gone AFTER INSERT ON idemq.queues FOR EACH ROW EXECUTE FUNCTION regress_ensure_gone();
SELECT outcome FROM idemq.ensure_queue('gone');
SELECT idemq.create_queue('gone') > 0 AS made;
DROP TRIGGER regress_ensure_gone ON idemq.queues;
DROP FUNCTION regress_ensure_out, regress_ensure_lower, regress_ensure_gone;
SELECT queue, action FROM idemq.audit WHERE queue IN ('', 'gone', 'kept_out', 'lowered', 'Lowered') AND action ~ 'queue';

-- ---- Changes take effect on the waiting jobs of groups, as with alter_queue

SELECT outcome FROM idemq.ensure_queue('effect', lease => '1 h', group_max_running => 1);
SELECT count(idemq.enqueue('effect', '1', group_key => 'g')) FROM generate_series(1, 3);
SELECT count(*) FROM idemq.claim('effect', 5);
SELECT outcome FROM idemq.ensure_queue('effect', group_max_running => 2);
SELECT count(*) FROM idemq.claim('effect', 5);

-- ---- Handlers

CREATE FUNCTION regress_ensure_f(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS '';
CREATE FUNCTION regress_ensure_g(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS '';
SELECT * FROM idemq.ensure_handler('mail', 'regress_ensure_f', max_idle => '1 day');
SELECT set_at AS at FROM idemq.handlers \gset
SELECT * FROM idemq.ensure_handler('mail', 'public.regress_ensure_f(jsonb)', max_idle => '24 h');
SELECT set_at = :'at' AS same FROM idemq.handlers;
SELECT * FROM idemq.ensure_handler('mail', 'regress_ensure_f', workers => 2, batch => 3);
SELECT * FROM idemq.ensure_handler('mail', 'regress_ensure_g', workers => 2, batch => 3);
-- An unchanged call does not restart a handler that was stopped after crashes; a change does.
UPDATE idemq_internal.handler_entries SET stopped_at = now();
SELECT * FROM idemq.ensure_handler('mail', 'regress_ensure_g', workers => 2, batch => 3);
SELECT outcome FROM idemq.ensure_handler('mail', 'regress_ensure_g', workers => 1, batch => 3);
SELECT stopped_at IS NULL AS started FROM idemq.handlers;
BEGIN READ ONLY;
SELECT outcome FROM idemq.ensure_handler('mail', 'regress_ensure_g', workers => 1, batch => 3);
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid, count(*) FILTER (WHERE mode <> 'AccessShareLock' AND locktype <> 'virtualxid') AS other_locks
	FROM pg_locks WHERE pid = pg_backend_pid();
SELECT idemq.ensure_handler('mail', 'regress_ensure_f');
ROLLBACK;
SELECT idemq.ensure_handler('mail', 'nowhere');
SELECT idemq.ensure_handler('mail', NULL);
SELECT idemq.ensure_handler('mail', 'regress_ensure_f', workers => NULL);
SELECT idemq.ensure_handler('mail', 'regress_ensure_f', workers => 0);
SELECT idemq.ensure_handler('nowhere', 'regress_ensure_f');
-- A call is unchanged only for the role that has set the handler.
SELECT idemq.grant_queue('mail', 'regress_ensure', 'claim');
SET ROLE regress_ensure;
SELECT idemq.ensure_handler('mail', 'regress_ensure_g', workers => 1, batch => 3);
RESET ROLE;
GRANT EXECUTE ON FUNCTION idemq.set_handler TO regress_ensure;
SET ROLE regress_ensure;
SELECT idemq.ensure_handler('mail', 'regress_ensure_g', workers => 1, batch => 3);
RESET ROLE;
SELECT idemq.drop_handler('mail');
SET client_min_messages = error;
SET ROLE regress_ensure;
SELECT outcome FROM idemq.ensure_handler('mail', 'regress_ensure_g');
SELECT outcome FROM idemq.ensure_handler('mail', 'regress_ensure_g');
RESET ROLE;
RESET client_min_messages;

-- ---- The audit

SELECT action, role = session_role AS by_owner, details - 'settings' AS details, details ? 'settings' AS settings, details->'settings'->'max_running' AS max_running
	FROM idemq.audit WHERE queue IN ('incident', 'new') AND action <> 'grant_queue' ORDER BY id;
SELECT action, queue, details->'topic' AS topic FROM idemq.audit WHERE action ~ 'topic|handler' ORDER BY id;

DROP EXTENSION idemq;
DROP FUNCTION regress_ensure_f, regress_ensure_g;
DROP OWNED BY regress_ensure;
DROP ROLE regress_ensure;
