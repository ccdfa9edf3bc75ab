-- One tenant, all tenants: what a role sees and may do that holds nothing, little, or one of PostgreSQL's own roles.
CREATE EXTENSION idemq;
\pset null -
\set VERBOSITY terse
CREATE ROLE regress_outsider;
CREATE ROLE regress_tenant;
CREATE ROLE regress_eye IN ROLE pg_monitor;
CREATE ROLE regress_reader IN ROLE pg_read_all_data;
CREATE ROLE regress_writer IN ROLE pg_write_all_data;
SELECT idemq.create_queue('q', lease => '1 h') AS q, idemq.create_queue('other') AS other \gset
CREATE FUNCTION has_usage(role text) RETURNS boolean LANGUAGE sql AS $$ SELECT has_schema_privilege(role, 'idemq', 'USAGE') $$;

-- ---- PUBLIC has nothing
SELECT count(*) FROM pg_namespace n, aclexplode(n.nspacl) a WHERE nspname = 'idemq' AND grantee = 0;
SET ROLE regress_outsider;
SELECT idemq.enqueue('q', '1');
SELECT count(*) FROM idemq.jobs;
SELECT idemq.validate(1, 1);
RESET ROLE;

-- ---- The first grant gives USAGE, the last revoke takes it
SELECT idemq.grant_queue('q', 'regress_tenant', 'enqueue');
SELECT idemq.grant_queue('q', 'regress_tenant', 'enqueue');
SELECT idemq.grant_queue('other', 'regress_tenant', 'claim');
SELECT has_usage('regress_tenant');
SELECT idemq.revoke_queue('q', 'regress_tenant', 'enqueue');
SELECT idemq.revoke_queue('q', 'regress_tenant', 'enqueue');
SELECT has_usage('regress_tenant');
SELECT idemq.revoke_queue('other', 'regress_tenant', 'claim');
SELECT has_usage('regress_tenant');
-- With the queue; undone with the transaction.
SELECT idemq.grant_queue('other', 'regress_tenant', 'admin');
BEGIN;
SELECT idemq.drop_queue('other');
SELECT has_usage('regress_tenant');
ROLLBACK;
SELECT has_usage('regress_tenant');
SELECT idemq.drop_queue('other');
SELECT has_usage('regress_tenant');
BEGIN;
SELECT idemq.grant_queue('q', 'regress_tenant', 'admin');
ROLLBACK;
SELECT has_usage('regress_tenant');
-- What the DBA has granted keeps it.
GRANT USAGE ON SCHEMA idemq TO regress_tenant;
GRANT EXECUTE ON FUNCTION idemq.create_queue TO regress_tenant;
SET ROLE regress_tenant;
SELECT idemq.create_queue('mine') > 0 AS made;
SELECT idemq.drop_queue('mine');
SELECT idemq.create_queue('mine') > 0 AS made;
RESET ROLE;
SELECT has_usage('regress_tenant');
REVOKE ALL ON FUNCTION idemq.create_queue FROM regress_tenant;
-- By a group, or to an administrator that is not the owner.
CREATE ROLE regress_group;
GRANT regress_group TO regress_outsider;
SET ROLE regress_tenant;
SELECT idemq.grant_queue('mine', 'regress_group', 'claim');
SET ROLE regress_outsider;
SELECT count(*) FROM idemq.claim('mine');
SET ROLE regress_tenant;
SELECT idemq.revoke_queue('mine', 'regress_group', 'claim');
SET ROLE regress_outsider;
SELECT count(*) FROM idemq.claim('mine');
RESET ROLE;
-- A role with a grant is not dropped.
DROP ROLE regress_tenant;
-- A revoke of one that is already gone by hand.
REVOKE USAGE ON SCHEMA idemq FROM regress_tenant;
SELECT idemq.grant_queue('q', 'regress_tenant', 'enqueue');
SELECT has_usage('regress_tenant');

-- ---- What spans queues is the monitor's
SET ROLE regress_tenant;
SELECT count(*) FROM idemq.memory;
SELECT count(*) FROM idemq.admissions;
SELECT count(*) FROM idemq_internal.memory_usage();
SELECT count(*) FROM idemq.background_worker;
SET ROLE regress_eye;
SELECT count(*) FROM idemq.memory;
SELECT count(*) FROM idemq.admissions;
-- These tests have no worker.
SELECT pid, stuck_for FROM idemq.background_worker;
SELECT count(*) FROM idemq.metrics;
SELECT count(*) FROM idemq.check();
RESET ROLE;

-- ---- The hint of 42501 can be pasted
\set VERBOSITY default
CREATE ROLE "Mailer's; \ ""x""";
GRANT USAGE ON SCHEMA idemq TO "Mailer's; \ ""x""";
CREATE FUNCTION hint_of(role text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE hint text;
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', role);
	PERFORM idemq.enqueue('q', '1');
	RETURN 'no error';
EXCEPTION WHEN insufficient_privilege THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN hint;
END $$;
SELECT hint_of('Mailer''s; \ "x"') AS hint \gset
SELECT :'hint' AS hint, substring(:'hint' FROM 'SELECT .*\)') AS pasted \gset
\echo :hint
:pasted;
SELECT role_name, privilege FROM idemq_internal.queue_grants WHERE role_name ~ 'Mailer';
\set VERBOSITY terse

-- ---- PostgreSQL's roles for all data
INSERT INTO idemq_internal.ticker (called_at) VALUES (clock_timestamp());
SELECT idemq.schedule('s', '0 0 1 1 *', 'q', '"secret"') > now() AS made;
SELECT idemq.once('scope', 'secret');
SELECT (idemq.enqueue('q', '"secret"')).outcome;
GRANT ALL ON SCHEMA public TO regress_reader;
SET ROLE regress_reader;
SELECT (SELECT count(*) FROM idemq_internal.schedule_entries) AS schedules, (SELECT count(*) FROM idemq_internal.queue_grants) AS grants, (SELECT count(*) FROM idemq_internal.seen) AS seen,
	(SELECT count(*) FROM idemq_internal.ticker) AS ticker, (SELECT count(*) FROM idemq.jobs) AS jobs, (SELECT count(*) FROM idemq.attempts) AS attempts,
	(SELECT count(*) FROM idemq.queues) AS queues, (SELECT count(*) FROM idemq.schedules) AS schedules;
CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$;
SELECT count(*) FROM idemq_internal.schedule_entries WHERE pg_temp.leak(payload::text);
DROP FUNCTION pg_temp.leak;
RESET ROLE;
SET ROLE regress_writer;
INSERT INTO idemq_internal.queue_grants (queue_id, role_name, privilege) VALUES (1, 'regress_writer', 'admin');
INSERT INTO idemq_internal.schedule_entries (name, queue_id, cron, time_zone, payload, priority, created_by, created_at, done_until) VALUES ('mine', 1, '0 0 1 1 *', 'UTC', '1', 4, 'postgres', now(), now());
INSERT INTO idemq_internal.seen VALUES ('scope', 'other', now() + interval '1 day');
INSERT INTO idemq_internal.ticker (called_at) VALUES (now());
INSERT INTO idemq.queues (name, lease, max_attempts, retry_base, retry_factor, retry_max, retry_jitter, retention, idempotency_window, rate_period) VALUES ('w', '1 min', 1, '1 min', 1, '1 min', 0, '1 min', '1 min', '1 min');
UPDATE idemq_internal.schedule_entries SET payload = '1';
UPDATE idemq_internal.queue_grants SET role_name = 'regress_writer';
UPDATE idemq.queues SET paused = true;
DELETE FROM idemq_internal.seen;
DELETE FROM idemq.jobs;
RESET ROLE;
SELECT count(*) FROM idemq_internal.queue_grants WHERE role_name = 'regress_writer';
SELECT payload FROM idemq_internal.schedule_entries;
SELECT count(*) FROM idemq_internal.seen;
SELECT bool_or(paused) FROM idemq.queues;

-- ---- The next role of a name
DROP OWNED BY regress_tenant;
DROP ROLE regress_tenant;
CREATE ROLE regress_tenant;
GRANT USAGE ON SCHEMA idemq TO regress_tenant;
SET ROLE regress_tenant;
SELECT idemq.enqueue('q', '1');
SELECT count(*) FROM idemq.claim('mine');
RESET ROLE;
SELECT severity, invariant, detail FROM idemq.check();
-- Granted one thing anew, it has that one.
SELECT idemq.grant_queue('q', 'regress_tenant', 'enqueue');
SET ROLE regress_tenant;
SELECT (idemq.enqueue('q', '1')).outcome;
SELECT count(*) FROM idemq.claim('mine');
RESET ROLE;
SELECT severity, invariant FROM idemq.check();
-- As after a restore in which no such role existed: the name alone decides; and by the name written again.
UPDATE idemq_internal.queue_grants SET role_oid = NULL WHERE role_name = 'regress_tenant';
SET ROLE regress_tenant;
SELECT count(*) FROM idemq.claim('mine');
RESET ROLE;
SELECT count(*) FROM idemq.check();
UPDATE idemq_internal.queue_grants SET role_name = role_name;
SELECT count(*) FROM idemq_internal.queue_grants WHERE role_oid IS DISTINCT FROM quote_ident(role_name)::regrole::oid;
-- Its schedules are not the next one's either.
SET ROLE regress_tenant;
SELECT idemq.schedule('t', '0 0 1 1 *', 'q', '1') > now() AS made;
RESET ROLE;
SELECT idemq.grant_queue('q', 'regress_outsider', 'enqueue');
UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '1 year' WHERE name = 't';
DROP OWNED BY regress_tenant;
DROP ROLE regress_tenant;
CREATE ROLE regress_tenant;
SELECT idemq.grant_queue('q', 'regress_tenant', 'enqueue');
SET ROLE regress_tenant;
SELECT name, payload FROM idemq.schedules ORDER BY 1;
SELECT idemq.unschedule('t');
SELECT idemq.schedule('t', '0 0 1 1 *', 'q', '"mine"');
RESET ROLE;
CALL idemq.tick();
SELECT severity, invariant, detail FROM idemq.check() WHERE invariant = 'schedules.role';
SELECT idemq.schedule('t', '0 0 1 1 *', 'q', '1') < now() AS due;
CALL idemq.tick();
SELECT last_run IS NOT NULL AS ran FROM idemq.schedules WHERE name = 't';
-- An audit misses what would undo this.
ALTER TABLE idemq_internal.seen DISABLE ROW LEVEL SECURITY;
ALTER TABLE idemq_internal.queue_grants DISABLE TRIGGER idemq_role_named;
SELECT severity, invariant, detail FROM idemq.check() WHERE invariant <> 'grants.role';

DROP EXTENSION idemq;
REVOKE ALL ON SCHEMA public FROM regress_reader;
DROP FUNCTION has_usage, hint_of;
DROP ROLE regress_outsider, regress_tenant, regress_eye, regress_reader, regress_writer, regress_group, "Mailer's; \ ""x""";
