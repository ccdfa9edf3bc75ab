-- From this version to the next, which test/t/lib/NextVersion.pm makes: an example of an update that runs under load.
\echo Use "ALTER EXTENSION idemq UPDATE" to load this file. \quit

-- A library that is older does not know what follows.  A column of a DBA's has the place of ours.
DO $$
DECLARE
	mine text := (SELECT pg_catalog.format('column "%s" of %s', attname, attrelid::pg_catalog.regclass) FROM pg_catalog.pg_attribute
		WHERE attrelid = 'idemq.jobs'::pg_catalog.regclass AND attnum = 32
			OR attrelid = 'idemq.queues'::pg_catalog.regclass AND attname = 'max_trace' LIMIT 1);
BEGIN
	IF idemq_internal.compare_versions(pg_catalog.current_setting('idemq.version'), 'NEXT_VERSION') OPERATOR(pg_catalog.<) 0 THEN
		RAISE EXCEPTION 'the server still has an older version of the idemq library loaded'
			USING ERRCODE = '55000', HINT = 'Restart the server, then run ALTER EXTENSION idemq UPDATE again.';
	END IF;
	IF mine IS NOT NULL THEN
		RAISE EXCEPTION '% is in the place of a new one', mine
			USING ERRCODE = '2BP01', HINT = 'Keep it in a table of your own, by the id of the job or the queue.';
	END IF;
END $$;

-- What is made belongs to the role that the rest belongs to, whoever runs the update.
DO $$
DECLARE
	owner pg_catalog.pg_roles := (SELECT r FROM pg_catalog.pg_extension e JOIN pg_catalog.pg_roles r ON r.oid = e.extowner
		WHERE e.extname = 'idemq');
BEGIN
	IF NOT owner.rolsuper THEN
		RAISE EXCEPTION 'role "%", which owns the extension idemq, is not a superuser', owner.rolname
			USING ERRCODE = '42501', HINT = 'ALTER ROLE ... SUPERUSER for the time of the update.';
	END IF;
	PERFORM pg_catalog.set_config('role', owner.rolname, true);
END $$;

-- Two tables that sessions use.  A session that has locked the second may be about to lock the first: so the second is not
-- waited for while the first is locked.
DO $$
DECLARE
	timeout interval := pg_catalog.current_setting('lock_timeout');
	last timestamptz := CASE WHEN timeout > '0' THEN pg_catalog.clock_timestamp() + timeout END;
BEGIN
	LOOP
		BEGIN
			LOCK TABLE idemq.jobs IN ACCESS EXCLUSIVE MODE;
			LOCK TABLE idemq.queues IN ACCESS EXCLUSIVE MODE NOWAIT;
			EXIT;
		EXCEPTION WHEN lock_not_available THEN
			IF pg_catalog.clock_timestamp() >= last THEN
				RAISE;
			END IF;
		END;
		PERFORM pg_catalog.pg_sleep(0.01);
	END LOOP;
END $$;
ALTER TABLE idemq.jobs ADD COLUMN trace text;
ALTER TABLE idemq.queues ADD COLUMN max_trace int;

-- Whoever has planned a call of the old one goes on with it: it is renamed, and goes with the version after the next.  Its
-- comment goes along; the new one gets its own.
ALTER FUNCTION idemq.enqueue(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, interval, text,
	boolean, text, interval, bigint[], text) RENAME TO v1_enqueue;
-- ENQUEUE
ALTER FUNCTION idemq.create_queue RENAME TO v1_create_queue;
-- CREATE_QUEUE
ALTER FUNCTION idemq.alter_queue RENAME TO v1_alter_queue;
-- ALTER_QUEUE

-- The new ones have the rights that a DBA has given or taken, and pg_dump goes on to know which those are.
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN
		WITH f AS (SELECT n.oid::pg_catalog.regprocedure AS new, coalesce(o.proacl, pg_catalog.acldefault('f', o.proowner)) AS acl
			FROM pg_catalog.pg_proc o JOIN pg_catalog.pg_proc n ON o.proname = 'v1_' || n.proname
			WHERE o.pronamespace = 'idemq'::pg_catalog.regnamespace AND n.pronamespace = o.pronamespace)
		SELECT pg_catalog.format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', new) FROM f
		UNION ALL SELECT pg_catalog.format('GRANT %s ON FUNCTION %s TO %s%s', a.privilege_type, new,
			CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::pg_catalog.regrole::text END,
			CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
		FROM f, pg_catalog.aclexplode(acl) a
	LOOP
		EXECUTE command;
	END LOOP;
END $$;
UPDATE pg_catalog.pg_init_privs i SET initprivs = was.initprivs
	FROM pg_catalog.pg_proc n, pg_catalog.pg_proc o, pg_catalog.pg_init_privs was
	WHERE o.proname = 'v1_' || n.proname AND o.pronamespace = 'idemq'::pg_catalog.regnamespace AND n.pronamespace = o.pronamespace
		AND i.classoid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND i.objoid = n.oid
		AND was.classoid = i.classoid AND was.objoid = o.oid;
-- From PostgreSQL 17 on these roles are noted there, too, and could not be dropped.
DELETE FROM pg_catalog.pg_shdepend s USING pg_catalog.pg_proc n, pg_catalog.pg_proc o
	WHERE o.proname = 'v1_' || n.proname AND o.pronamespace = 'idemq'::pg_catalog.regnamespace AND n.pronamespace = o.pronamespace
		AND s.dbid = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
		AND s.classid = 'pg_catalog.pg_proc'::pg_catalog.regclass AND s.objid = n.oid AND s.deptype = 'i'
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_init_privs i, pg_catalog.aclexplode(i.initprivs) a
			WHERE i.classoid = s.classid AND i.objoid = s.objid AND a.grantee = s.refobjid);

CREATE FUNCTION idemq_internal.check_kind(name text, value text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_internal_check_kind';
REVOKE ALL ON FUNCTION idemq_internal.check_kind(text, text) FROM PUBLIC;
-- SCHEDULE
