-- From this version to the next, which test/t/lib/NextVersion.pm makes: an example of an update that runs under load.
\echo Use "ALTER EXTENSION idemq UPDATE" to load this file. \quit

-- A library that is older does not know what follows.  A column of a DBA's has the place of ours.
DO $$
DECLARE
	mine text := (SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = 'idemq.jobs'::pg_catalog.regclass AND attnum = 30);
BEGIN
	IF pg_catalog.string_to_array(pg_catalog.current_setting('idemq.version'), '.')::int[] < pg_catalog.string_to_array('NEXT_VERSION', '.')::int[] THEN
		RAISE EXCEPTION 'the server still has an older library of idemq in memory'
			USING ERRCODE = '55000', HINT = 'Restart the server, then run ALTER EXTENSION idemq UPDATE again.';
	END IF;
	IF mine IS NOT NULL THEN
		RAISE EXCEPTION 'column "%" of idemq.jobs is in the place of a new one', mine
			USING ERRCODE = '2BP01', HINT = 'Keep it in a table of your own, by the job''s id.';
	END IF;
END $$;

ALTER TABLE idemq.jobs ADD COLUMN trace text;

-- Whoever has planned a call of the old one goes on with it: it is renamed, and goes with the version after the next.
-- Rights that a DBA has given or taken would be kept as sql/update/0.1.0-after.sql keeps them.
ALTER FUNCTION idemq.enqueue(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, interval, text,
	boolean, text, interval, bigint[], text) RENAME TO v2_enqueue;
-- ENQUEUE
REVOKE ALL ON FUNCTION idemq.enqueue FROM PUBLIC;
GRANT EXECUTE ON FUNCTION idemq.enqueue TO PUBLIC;

CREATE FUNCTION idemq_inside.check_kind(name text, value text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v3_inside_check_kind';
REVOKE ALL ON FUNCTION idemq_inside.check_kind(text, text) FROM PUBLIC;
-- SCHEDULE
