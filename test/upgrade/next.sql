-- From this version to the next, which test/t/lib/NextVersion.pm makes: an example of an update that runs under load.
\echo Use "ALTER EXTENSION idemq UPDATE" to load this file. \quit

-- A library that is older does not know what follows.  A column of a DBA's has the place of ours.
DO $$
DECLARE
	mine text := (SELECT pg_catalog.format('column "%s" of %s', attname, attrelid::pg_catalog.regclass) FROM pg_catalog.pg_attribute
		WHERE attrelid = 'idemq.jobs'::pg_catalog.regclass AND attnum = 30
			OR attrelid = 'idemq.queues'::pg_catalog.regclass AND attname = 'max_trace' LIMIT 1);
BEGIN
	IF pg_catalog.string_to_array(pg_catalog.current_setting('idemq.version'), '.')::int[] < pg_catalog.string_to_array('NEXT_VERSION', '.')::int[] THEN
		RAISE EXCEPTION 'the server still has an older library of idemq in memory'
			USING ERRCODE = '55000', HINT = 'Restart the server, then run ALTER EXTENSION idemq UPDATE again.';
	END IF;
	IF mine IS NOT NULL THEN
		RAISE EXCEPTION '% is in the place of a new one', mine
			USING ERRCODE = '2BP01', HINT = 'Keep it in a table of your own, by the id of the job or the queue.';
	END IF;
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

-- Whoever has planned a call of the old one goes on with it: it is renamed, and goes with the version after the next.
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

CREATE FUNCTION idemq_internal.check_kind(name text, value text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_inside_check_kind';
REVOKE ALL ON FUNCTION idemq_internal.check_kind(text, text) FROM PUBLIC;
-- SCHEDULE
