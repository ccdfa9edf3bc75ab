-- idemq: every background job's effect, once.
-- Built from sql/parts/*.sql by make; edit those.
\echo Use "CREATE EXTENSION idemq" to load this file. \quit

-- A library of another version, in memory until the restart, lacks functions that follow, or
-- is too new for them.
DO $$
BEGIN
	IF pg_catalog.current_setting('idemq.max_leases', true) IS NOT NULL
		AND pg_catalog.current_setting('idemq.version', true) IS DISTINCT FROM
			(SELECT e.extversion FROM pg_catalog.pg_extension e WHERE e.extname = 'idemq') THEN
		RAISE EXCEPTION 'the server has another version of idemq''s library in memory than was '
			'installed'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Restart the server, then run CREATE EXTENSION idemq again.';
	END IF;
END $$;

-- Plain CREATE: a schema planted under this name makes the install fail.
CREATE SCHEMA idemq;
COMMENT ON SCHEMA idemq IS 'idemq: every background job''s effect, once';
