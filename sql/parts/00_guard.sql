-- idemq: every background job's effect, once.
-- Built from sql/parts/*.sql by make; edit those.
\echo Use "CREATE EXTENSION idemq" to load this file. \quit

-- Schema idemq has what users call and read; everything else is in idemq_internal, and no role may
-- use that schema.
-- Plain CREATE: a schema planted under one of these names makes the install fail.
CREATE SCHEMA idemq;
COMMENT ON SCHEMA idemq IS 'idemq: background jobs whose effects happen exactly once';
CREATE SCHEMA idemq_internal;
COMMENT ON SCHEMA idemq_internal IS 'functions, tables and views for internal use by idemq; their names and arguments can change in any version';

-- Every released library has this function, so it can be called before it is known which library
-- is in memory.
CREATE FUNCTION idemq_internal.compare_versions(a text, b text) RETURNS int
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_compare_versions';
COMMENT ON FUNCTION idemq_internal.compare_versions(text, text) IS 'Compare two versions of idemq according to Semantic Versioning. Returns a number that is less than, equal to or greater than 0.';

-- An older library, in memory until the restart, lacks functions that follow.  A newer one works
-- with these, or says what to do: a dump of this version is restored into them.
DO $$
BEGIN
	IF (SELECT idemq_internal.compare_versions(pg_catalog.current_setting('idemq.version'),
			e.extversion) OPERATOR(pg_catalog.<) 0
		FROM pg_catalog.pg_extension e WHERE e.extname OPERATOR(pg_catalog.=) 'idemq') THEN
		RAISE EXCEPTION 'the server still has an older version of the idemq library loaded'
			USING ERRCODE = 'object_not_in_prerequisite_state',
				HINT = 'Restart the server, and run CREATE EXTENSION idemq again.';
	END IF;
END $$;
