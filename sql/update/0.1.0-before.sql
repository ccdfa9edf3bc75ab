-- idemq: from 0.1.0 to the version of sql/parts.
-- Built from sql/update/*.sql and sql/parts/*.sql by make; edit those.
\echo Use "ALTER EXTENSION idemq UPDATE" to load this file. \quit

-- Tables are made anew, as CREATE EXTENSION makes them, and the rows moved: the payload of a
-- job comes last now.  Types stay, and so do functions whose arguments and results are what
-- they were: what depends on those is not touched.  What depends on the others is looked
-- for first, and named; nothing is dropped that is not idemq's own.  Rights that were granted
-- or revoked by hand are put back.  It is one transaction, and holds the tables to its end.

-- The old library, in memory until the restart, lacks the functions that follow.
DO $$
BEGIN
	IF pg_catalog.current_setting('idemq.max_leases', true) IS NOT NULL
		AND pg_catalog.current_setting('idemq.version', true) IS NULL THEN
		RAISE EXCEPTION 'the server still has an older library of idemq in memory'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Restart the server, then run ALTER EXTENSION idemq UPDATE again.';
	END IF;
END $$;

-- What is made belongs to the role that what was there belongs to.
DO $$
DECLARE
	owner pg_catalog.pg_roles;
BEGIN
	SELECT r.* INTO owner FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_roles r ON r.oid = e.extowner
		WHERE e.extname = 'idemq';
	IF NOT owner.rolsuper THEN
		RAISE EXCEPTION 'role "%", which owns the extension idemq, is no superuser', owner.rolname
			USING ERRCODE = 'insufficient_privilege', HINT = 'ALTER ROLE ... SUPERUSER for the time of the update.';
	END IF;
	PERFORM pg_catalog.set_config('role', owner.rolname, true);
END $$;

LOCK TABLE idemq.queues, idemq.jobs, idemq.attempts, idemq.queue_grants, idemq.seen,
	idemq.schedule_entries, idemq.ticker IN ACCESS EXCLUSIVE MODE;

-- What is dropped, or moved away and dropped.
CREATE TEMPORARY TABLE idemq_goes AS
	SELECT 'pg_class'::regclass AS classid, c.oid AS objid, c.relnatts AS columns
		FROM pg_class c WHERE c.relnamespace = 'idemq'::regnamespace
		AND c.relname IN ('queues', 'jobs', 'attempts', 'queue_grants', 'seen', 'schedule_entries', 'ticker',
			'metrics', 'schedules')
	UNION ALL SELECT 'pg_type', t.oid, NULL FROM pg_type t JOIN pg_class c ON t.typrelid = c.oid OR t.typelem = c.reltype
		WHERE c.relnamespace = 'idemq'::regnamespace
		AND c.relname IN ('queues', 'jobs', 'attempts', 'queue_grants', 'seen', 'schedule_entries', 'ticker',
			'metrics', 'schedules')
	UNION ALL SELECT 'pg_proc', p.oid, NULL FROM pg_proc p WHERE p.pronamespace = 'idemq'::regnamespace
		AND p.proname IN ('create_queue', 'alter_queue', 'enqueue', 'enqueue_many', 'fail', 'fail_many', 'commit_many',
			'heartbeat_many', 'queue_metrics', 'may_change_schedule', 'job', 'job_by_key', 'redrive', 'pause', 'purge', 'schedule');

DO $$
DECLARE
	others text;
BEGIN
	SELECT string_agg(DISTINCT what, E'\n') INTO others FROM (
		SELECT CASE WHEN d.classid = 'pg_rewrite'::regclass THEN
			(SELECT pg_describe_object('pg_class'::regclass, r.ev_class, 0) FROM pg_rewrite r WHERE r.oid = d.objid)
			ELSE pg_describe_object(d.classid, d.objid, d.objsubid) END AS what
		FROM idemq_goes g JOIN pg_depend d ON d.refclassid = g.classid AND d.refobjid = g.objid
		WHERE d.deptype IN ('n', 'a')
		AND NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = d.classid AND e.objid = d.objid AND e.deptype = 'e')
		AND NOT EXISTS (SELECT FROM idemq_goes o WHERE o.classid = d.classid AND o.objid = d.objid)
		-- What 0.1.0 itself hangs on its tables.
		AND NOT EXISTS (SELECT FROM pg_class i WHERE d.classid = 'pg_class'::regclass AND i.oid = d.objid
			AND i.relname IN ('jobs_ready', 'jobs_key', 'jobs_finished', 'jobs_group', 'seen_expires'))
		AND NOT EXISTS (SELECT FROM pg_constraint k JOIN idemq_goes o ON o.objid = k.conrelid
			WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
			AND k.conname IN ('queues_pkey', 'queues_name_key', 'jobs_pkey', 'attempts_pkey', 'queue_grants_pkey',
				'queue_grants_privilege_check', 'queue_grants_queue_id_fkey', 'seen_pkey', 'schedule_entries_pkey',
				'schedule_entries_queue_id_fkey', 'ticker_pkey', 'ticker_one_check'))
		AND NOT EXISTS (SELECT FROM pg_constraint k JOIN idemq_goes o ON o.objid = k.conrelid
			WHERE d.classid = 'pg_constraint'::regclass AND k.oid = d.objid AND k.contype = 'n')
		AND NOT EXISTS (SELECT FROM pg_trigger t WHERE d.classid = 'pg_trigger'::regclass AND t.oid = d.objid
			AND (t.tgisinternal OR t.tgname IN ('idemq_jobs_changed', 'idemq_jobs_truncated', 'idemq_settings_changed')))
		AND NOT EXISTS (SELECT FROM pg_policy p WHERE d.classid = 'pg_policy'::regclass AND p.oid = d.objid
			AND p.polname = 'idemq_own_queues')
		AND NOT EXISTS (SELECT FROM pg_rewrite r JOIN idemq_goes o ON o.objid = r.ev_class
			WHERE d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid AND r.rulename = '_RETURN')
		AND NOT EXISTS (SELECT FROM pg_attrdef a WHERE d.classid = 'pg_attrdef'::regclass AND a.oid = d.objid
			AND a.adrelid IN (SELECT objid FROM idemq_goes))
		AND NOT EXISTS (SELECT FROM pg_class t WHERE d.classid = 'pg_class'::regclass AND t.oid = d.objid AND t.relkind = 't')
		-- Further columns.
		UNION ALL SELECT pg_describe_object('pg_class'::regclass, c.oid, a.attnum)
			FROM pg_class c JOIN idemq_goes g ON g.objid = c.oid JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
			JOIN (VALUES ('queues', 16), ('jobs', 22), ('attempts', 9), ('queue_grants', 3), ('seen', 3),
				('schedule_entries', 17), ('ticker', 2)) n(name, columns) ON n.name = c.relname
			WHERE a.attnum > n.columns) w;
	IF others IS NOT NULL THEN
		RAISE EXCEPTION 'other objects depend on tables or functions of idemq that change'
			USING ERRCODE = 'dependent_objects_still_exist', DETAIL = others,
				HINT = 'In one transaction: drop these, ALTER EXTENSION idemq UPDATE, create them again. doc/operations/upgrade.md has a query that writes the commands.';
	END IF;
END $$;

-- Rights beyond those that CREATE EXTENSION gave, and those of them that were taken away.
CREATE TEMPORARY TABLE idemq_rights AS
	WITH objects AS (
		SELECT 'pg_proc'::regclass AS classid, p.oid AS objid, 0 AS objsubid, 'ROUTINE' AS kind, p.proname AS name,
				NULL::name AS attribute, coalesce(p.proacl, acldefault('f', p.proowner)) AS acl,
				acldefault('f', p.proowner) AS otherwise, p.proowner AS owner
			FROM pg_proc p WHERE p.pronamespace = 'idemq'::regnamespace
		UNION ALL SELECT 'pg_class', c.oid, 0, CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.relname, NULL,
				coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, c.relowner)),
				acldefault(CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, c.relowner), c.relowner
			FROM pg_class c WHERE c.relnamespace = 'idemq'::regnamespace AND c.relkind IN ('r', 'v', 'S')
		UNION ALL SELECT 'pg_class', c.oid, a.attnum, 'TABLE', c.relname, a.attname, a.attacl, NULL, c.relowner
			FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
			WHERE c.relnamespace = 'idemq'::regnamespace AND c.relkind IN ('r', 'v') AND a.attacl IS NOT NULL
		UNION ALL SELECT 'pg_namespace', n.oid, 0, 'SCHEMA', n.nspname, NULL,
				coalesce(n.nspacl, acldefault('n', n.nspowner)), acldefault('n', n.nspowner), n.nspowner
			FROM pg_namespace n WHERE n.nspname = 'idemq'
	), had AS (
		SELECT o.*, coalesce(i.initprivs, o.otherwise) AS at_first FROM objects o
			LEFT JOIN pg_init_privs i ON i.classoid = o.classid AND i.objoid = o.objid AND i.objsubid = o.objsubid
	), changes AS (
		(SELECT true AS granted, h.kind, h.name, h.attribute, h.owner, x.grantee, x.privilege_type, x.is_grantable
			FROM had h, aclexplode(h.acl) x
		EXCEPT SELECT true, h.kind, h.name, h.attribute, h.owner, x.grantee, x.privilege_type, x.is_grantable
			FROM had h, aclexplode(h.at_first) x)
		UNION ALL
		(SELECT false AS granted, h.kind, h.name, h.attribute, h.owner, x.grantee, x.privilege_type, false
			FROM had h, aclexplode(h.at_first) x
		EXCEPT SELECT false, h.kind, h.name, h.attribute, h.owner, x.grantee, x.privilege_type, false
			FROM had h, aclexplode(h.acl) x)
	)
	SELECT c.granted, c.kind, c.name, c.attribute, c.privilege_type, c.is_grantable,
		CASE WHEN c.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(c.grantee)) END AS grantee,
		format('%s%s ON %s %s', c.privilege_type, ' (' || quote_ident(c.attribute) || ')', c.kind,
			CASE c.kind WHEN 'SCHEMA' THEN 'idemq' ELSE 'idemq.' || quote_ident(c.name) END) AS what
	FROM changes c WHERE c.grantee <> c.owner;

-- Until the end there are the rights of CREATE EXTENSION alone.
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN SELECT format('REVOKE %s FROM %s CASCADE', what, grantee) FROM idemq_rights WHERE granted LOOP
		EXECUTE command;
	END LOOP;
END $$;
REVOKE ALL ON SCHEMA idemq FROM PUBLIC;

DROP VIEW idemq.metrics, idemq.schedules, idemq.admissions;
DROP FUNCTION idemq.create_queue, idemq.alter_queue, idemq.enqueue, idemq.enqueue_many, idemq.fail, idemq.fail_many,
	idemq.commit_many, idemq.heartbeat_many, idemq.queue_metrics, idemq.may_change_schedule, idemq.job, idemq.job_by_key,
	idemq.redrive, idemq.pause, idemq.purge, idemq.schedule, idemq.admission_counts;
-- Nothing in this script may use it: it is not committed yet.
ALTER TYPE idemq.outcome ADD VALUE 'rerun' AFTER 'duplicate';
ALTER TYPE idemq.claimed_job ADD ATTRIBUTE kind text;
ALTER TYPE idemq.claimed_queue_job ADD ATTRIBUTE kind text;
ALTER TYPE idemq.claim_result ADD ATTRIBUTE kind text;

CREATE SCHEMA idemq_before;
-- First out of the list of what pg_dump takes along.
ALTER EXTENSION idemq DROP SEQUENCE idemq.queues_queue_id_seq;
ALTER EXTENSION idemq DROP SEQUENCE idemq.jobs_id_seq;
ALTER EXTENSION idemq DROP TABLE idemq.queues;
ALTER EXTENSION idemq DROP TABLE idemq.jobs;
ALTER EXTENSION idemq DROP TABLE idemq.attempts;
ALTER EXTENSION idemq DROP TABLE idemq.seen;
ALTER EXTENSION idemq DROP TABLE idemq.queue_grants;
ALTER EXTENSION idemq DROP TABLE idemq.schedule_entries;
ALTER EXTENSION idemq DROP TABLE idemq.ticker;
ALTER TABLE idemq.queues SET SCHEMA idemq_before;
ALTER TABLE idemq.jobs SET SCHEMA idemq_before;
ALTER TABLE idemq.attempts SET SCHEMA idemq_before;
ALTER TABLE idemq.seen SET SCHEMA idemq_before;
ALTER TABLE idemq.queue_grants SET SCHEMA idemq_before;
ALTER TABLE idemq.schedule_entries SET SCHEMA idemq_before;
ALTER TABLE idemq.ticker SET SCHEMA idemq_before;
-- They look up the tables by their names.
DROP POLICY idemq_own_queues ON idemq_before.queues;
DROP POLICY idemq_own_queues ON idemq_before.jobs;
DROP POLICY idemq_own_queues ON idemq_before.attempts;

-- The parts, as CREATE EXTENSION runs them, but that functions and views are replaced.
