-- idemq: every background job's effect, once.
-- Built from sql/parts/*.sql by make; edit those.
\echo Use "CREATE EXTENSION idemq" to load this file. \quit

-- An older library, in memory until the restart, lacks functions that follow.  A newer one works
-- with these, or says what to do: a dump of this version is restored into them.
DO $$
BEGIN
	IF pg_catalog.current_setting('idemq.max_leases', true) IS NOT NULL
		AND coalesce(pg_catalog.string_to_array(
				pg_catalog.current_setting('idemq.version', true), '.')::int[] OPERATOR(pg_catalog.<)
			(SELECT pg_catalog.string_to_array(e.extversion, '.')::int[]
				FROM pg_catalog.pg_extension e WHERE e.extname = 'idemq'), true) THEN
		RAISE EXCEPTION 'the server still has an older library of idemq in memory'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Restart the server, then run CREATE EXTENSION idemq again.';
	END IF;
END $$;

-- Plain CREATE: a schema planted under this name makes the install fail.
CREATE SCHEMA idemq;
COMMENT ON SCHEMA idemq IS 'idemq: every background job''s effect, once';
