\echo Use "CREATE EXTENSION idemq_cluster" to load this file. \quit

-- idemq_cluster: the router of many servers that are one queue.  A logical shard is a database
-- with idemq in it; this database has the map of them, and functions that find the shard and
-- call idemq there by PL/Proxy.  Nothing of a job is stored here.

CREATE SCHEMA cluster;
COMMENT ON SCHEMA cluster IS 'router for idemq shards';

CREATE FUNCTION cluster.in_transaction() RETURNS boolean
	VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_cluster_in_transaction';
COMMENT ON FUNCTION cluster.in_transaction()
	IS 'Return whether the caller is in a transaction block or its statement has written to this database. Such work can still be rolled back, but a call to a shard cannot be undone.';

CREATE TABLE cluster.settings (
	one      boolean PRIMARY KEY DEFAULT true CHECK (one),
	shards   int NOT NULL CHECK (shards IN (1, 2, 4, 8, 16, 32, 64)),
	patience interval NOT NULL DEFAULT '15 s'
);
COMMENT ON TABLE cluster.settings IS 'settings of the router, in a single row written by cluster.init';
COMMENT ON COLUMN cluster.settings.one IS 'always true, which limits the table to one row';
COMMENT ON COLUMN cluster.settings.shards IS 'number of logical shards, which never changes because keys are never rehashed';
COMMENT ON COLUMN cluster.settings.patience IS 'maximum time that a call waits for a shard that is being moved, after which the call raises 55000';

CREATE TABLE cluster.shards (
	shard   int PRIMARY KEY CHECK (shard >= 0),
	dsn     text NOT NULL,
	state   text NOT NULL DEFAULT 'up' CHECK (state IN ('up', 'moving')),
	version bigint NOT NULL
);
COMMENT ON TABLE cluster.shards IS 'location of each logical shard; use cluster.set_shard_dsn and cluster.set_shard_state to change it';
COMMENT ON COLUMN cluster.shards.shard IS 'shard number, counted from 0. It equals the first bits of the MD5 hash of a key, and the bits of a job id from bit 47 on.';
COMMENT ON COLUMN cluster.shards.dsn IS 'connection string of the shard''s database, without the user and password, which are in the user mapping of each role';
COMMENT ON COLUMN cluster.shards.state IS 'state of the shard: up or moving. Moving means that the shard is being moved to another server and that calls wait for it.';
COMMENT ON COLUMN cluster.shards.version IS 'version of this row, which increases with each change; the highest of these versions is the version of the map';

-- Opening it is also how a transaction hears of a change of the map: cluster.again.
CREATE SEQUENCE cluster.map_version;
COMMENT ON SEQUENCE cluster.map_version IS 'source of the map''s version numbers';

SELECT pg_catalog.pg_extension_config_dump('cluster.settings', '');
SELECT pg_catalog.pg_extension_config_dump('cluster.shards', '');
SELECT pg_catalog.pg_extension_config_dump('cluster.map_version', '');

CREATE FUNCTION cluster.map_changed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM pg_notify('cluster_map', '');
	RETURN NULL;
END $$;
COMMENT ON FUNCTION cluster.map_changed() IS 'trigger on cluster.shards that sends NOTIFY cluster_map';
CREATE TRIGGER map_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON cluster.shards
	FOR EACH STATEMENT EXECUTE FUNCTION cluster.map_changed();

CREATE FUNCTION cluster.map() RETURNS TABLE (shard int, dsn text, state text, version bigint)
	STABLE ROWS 64 LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
	AS 'SELECT s.shard, s.dsn, s.state, s.version FROM cluster.shards s ORDER BY s.shard';
COMMENT ON FUNCTION cluster.map() IS 'Return the location of each shard. Workers read it when they start and after each NOTIFY cluster_map.';

CREATE FUNCTION cluster.shard_count() RETURNS int STABLE LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n int := (SELECT s.shards FROM cluster.settings s);
BEGIN
	IF n IS NULL THEN
		RAISE EXCEPTION 'this cluster has no shards' USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'As a superuser, run SELECT cluster.init(64), and then cluster.set_shard_dsn for each shard.';
	END IF;
	RETURN n;
END $$;
COMMENT ON FUNCTION cluster.shard_count() IS 'Return the number of logical shards.';

-- Routing.  md5 and not hashtext, which no version of PostgreSQL promises to keep.

CREATE FUNCTION cluster.hash_tag(key text) RETURNS text IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
	SET search_path = pg_catalog, pg_temp
	AS $$SELECT coalesce(substring(key FROM '^[^{]*\{([^}]+)\}'), key)$$;
COMMENT ON FUNCTION cluster.hash_tag(text)
	IS 'Return the part of a key that is hashed: the non-empty text in its first pair of braces, or otherwise the whole key. For example, ''{customer-7}order-42'' goes to the same shard as group customer-7.';

CREATE FUNCTION cluster.check_count(shards int) RETURNS int IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF shards NOT IN (1, 2, 4, 8, 16, 32, 64) THEN
		RAISE EXCEPTION 'shards must be a power of two up to 64, not %', shards
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass cluster.shard_count().';
	END IF;
	RETURN shards;
END $$;
COMMENT ON FUNCTION cluster.check_count(int) IS 'part of cluster.shard_of_key: check the number of shards, and raise 22023 if it is invalid';

CREATE FUNCTION cluster.shard_of_key(key text, shards int) RETURNS int IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
	SET search_path = pg_catalog, pg_temp
	AS $$SELECT ('x' || substr(md5(convert_to(cluster.hash_tag(key), 'UTF8')), 1, 7))::bit(28)::int / (268435456 / cluster.check_count(shards))$$;
COMMENT ON FUNCTION cluster.shard_of_key(text, int)
	IS 'Return the shard of a key or group key, given the number of shards. The shard number is the first bits of the MD5 hash of the key''s hash_tag in UTF-8.';

CREATE FUNCTION cluster.shard_of_key(key text) RETURNS int STABLE STRICT LANGUAGE sql
	SET search_path = pg_catalog, pg_temp
	AS 'SELECT cluster.shard_of_key(key, cluster.shard_count())';
COMMENT ON FUNCTION cluster.shard_of_key(text) IS 'Return the shard of a key or group key in this cluster.';

CREATE FUNCTION cluster.shard_of(id bigint) RETURNS int STABLE LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF id IS NULL OR id < 0 OR id >> 47 >= cluster.shard_count() THEN
		RAISE EXCEPTION 'no shard of this cluster issued the job id %', coalesce(id::text, 'NULL')
			USING ERRCODE = CASE WHEN id IS NULL THEN 'null_value_not_allowed' ELSE 'invalid_parameter_value' END,
				HINT = 'Pass an id that was returned by cluster.enqueue or by a claim on a shard.';
	END IF;
	RETURN (id >> 47)::int;
END $$;
COMMENT ON FUNCTION cluster.shard_of(bigint) IS 'Return the number of the shard encoded in a job''s id. Raises 22023 if this cluster did not issue the id.';

CREATE FUNCTION cluster.route(key text, group_key text, depends_on bigint[] DEFAULT NULL) RETURNS int VOLATILE LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n int := cluster.shard_count();
	of_parents int[] := ARRAY(SELECT DISTINCT cluster.shard_of(p) FROM unnest(depends_on) p);
	up int[];
	at_shard int := of_parents[1];
BEGIN
	IF cluster.hash_tag(key) <> cluster.hash_tag(group_key) THEN
		RAISE EXCEPTION 'key and group_key belong to different shards'
			USING ERRCODE = 'feature_not_supported',
				DETAIL = 'A key is unique across all shards, so it determines the job''s shard. A group keeps its order on only one shard.',
				HINT = format('Begin the key with the group in braces, {%s}..., so that both have the same shard. Otherwise omit one of them.',
					left(cluster.hash_tag(group_key), 100));
	END IF;
	IF key IS NOT NULL OR group_key IS NOT NULL THEN
		at_shard := cluster.shard_of_key(coalesce(key, group_key), n);
	ELSIF at_shard IS NULL THEN
		SELECT array_agg(m.shard) FILTER (WHERE m.state = 'up') INTO up FROM cluster.map() m;
		at_shard := coalesce(up[1 + floor(random() * cardinality(up))::int], floor(random() * n)::int);
	END IF;
	IF at_shard <> ANY (of_parents) THEN
		RAISE EXCEPTION 'a job can depend only on jobs on its own shard'
			USING ERRCODE = 'feature_not_supported',
				DETAIL = format('The job would be on shard %s, but its parents are on %s. A parent must be committed and the job made ready in a single transaction, which is possible only on a single shard.',
					at_shard, array_to_string(of_parents, ', ')),
				HINT = 'Begin the keys or groups of all these jobs with the same text in braces. A job with neither key nor group goes to the shard of its parents.';
	END IF;
	RETURN at_shard;
END $$;
COMMENT ON FUNCTION cluster.route(text, text, bigint[])
	IS 'Return the shard for a new job. This is the shard of its key or, failing that, of its group or its parents. If the job has none of these, it is any shard that is up. Raises 0A000 if the key and the group have different hash tags (cluster.hash_tag), or if a parent is on a different shard.';

-- The map's changes, which are the DBA's.

CREATE FUNCTION cluster.init(shards int DEFAULT 64) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n int := (SELECT s.shards FROM cluster.settings s);
	parts text;
BEGIN
	IF shards IS NULL OR shards NOT IN (1, 2, 4, 8, 16, 32, 64) THEN
		RAISE EXCEPTION 'shards must be a power of two up to 64, not %', coalesce(shards::text, 'NULL')
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Use 64, and put several shards on each server. You can move shards later, but their number cannot change.';
	ELSIF n <> shards THEN
		RAISE EXCEPTION 'this cluster already has % shards', n USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'The number of shards cannot change. Move shards to more servers instead.';
	ELSIF n = shards THEN
		RETURN;
	END IF;
	INSERT INTO cluster.settings (shards) VALUES (init.shards);
	-- PL/Proxy wants all of them at once: these lead nowhere until set_shard_dsn.
	SELECT string_agg(format('p%s %L', i, format('host=/nonexistent dbname=shard_%s_is_not_set', i)), ', ' ORDER BY i)
		INTO parts FROM generate_series(0, init.shards - 1) i;
	EXECUTE format('CREATE SERVER idemq_cluster FOREIGN DATA WRAPPER plproxy OPTIONS (%s)', parts);
END $$;
COMMENT ON FUNCTION cluster.init(int)
	IS 'Permanently make this database the router for the given number of logical shards. Creates the foreign server idemq_cluster, which has no valid connection until cluster.set_shard_dsn is called. Does nothing if the database is already the router for that number of shards. Only a superuser may call it.';

CREATE FUNCTION cluster.check_shard(shard int) RETURNS void STABLE LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF shard IS NULL OR shard < 0 OR shard >= cluster.shard_count() THEN
		RAISE EXCEPTION 'shard % does not exist', coalesce(shard::text, 'NULL') USING ERRCODE = 'invalid_parameter_value',
			HINT = format('Pass a number from 0 to %s.', cluster.shard_count() - 1);
	END IF;
END $$;
COMMENT ON FUNCTION cluster.check_shard(int) IS 'part of cluster.set_shard_dsn and cluster.set_shard_state: raise 22023 if there is no such shard';

CREATE FUNCTION cluster.set_shard_dsn(shard int, dsn text) RETURNS bigint LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	number bigint;
BEGIN
	PERFORM cluster.check_shard(shard);
	IF dsn IS NULL OR dsn !~ '=' OR dsn ~ '://' OR dsn ~* '(user|password|service|passfile)\s*=' THEN
		RAISE EXCEPTION 'invalid connection string for a shard: %', coalesce(regexp_replace(dsn, '(password\s*=\s*)(''[^'']*''|\S*)', '\1...', 'gi'), 'NULL')
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Pass host=..., port=... and dbname=..., but not user or password. Set those for each user with CREATE USER MAPPING ... SERVER idemq_cluster.';
	END IF;
	LOCK TABLE cluster.shards IN SHARE ROW EXCLUSIVE MODE;
	number := nextval('cluster.map_version');
	INSERT INTO cluster.shards AS s (shard, dsn, state, version) VALUES (set_shard_dsn.shard, set_shard_dsn.dsn, 'up', number)
		ON CONFLICT ON CONSTRAINT shards_pkey DO UPDATE SET dsn = EXCLUDED.dsn, state = 'up', version = number;
	EXECUTE format('ALTER SERVER idemq_cluster OPTIONS (SET p%s %L)', shard, dsn);
	PERFORM cluster.check_place(shard);
	RETURN number;
END $$;
COMMENT ON FUNCTION cluster.set_shard_dsn(int, text)
	IS 'Set the location of a shard and mark it as up. Returns the map''s new version, and sends NOTIFY cluster_map. Raises 55000 if the database is a different shard or not a shard (idemq.set_shard). Warns if the database cannot be reached; in that case, check cluster.identities() later. Only the owner of server idemq_cluster may call it.';

CREATE FUNCTION cluster.check_place(shard int) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n int := cluster.shard_count();
	is_shard int;
	of_shards int;
BEGIN
	BEGIN
		SELECT i.is_shard, i.of_shards INTO is_shard, of_shards FROM cluster.at_identities(shard) i;
	EXCEPTION WHEN OTHERS THEN
		RAISE WARNING 'could not verify that the database is shard %', shard
			USING DETAIL = SQLERRM, HINT = 'When the database can be reached, run SELECT * FROM cluster.identities(), and make sure that is_shard equals shard.';
		RETURN;
	END;
	IF is_shard IS DISTINCT FROM shard OR of_shards <> n THEN
		RAISE EXCEPTION 'the database is not shard % of %', shard, n USING ERRCODE = 'object_not_in_prerequisite_state',
			DETAIL = coalesce(format('This database is shard %s of %s.', is_shard, of_shards), 'This database is not a shard.'),
			HINT = format('Keys would not be unique in the wrong database. Run SELECT idemq.set_shard(%s, %s) in the right database before it has any jobs.', shard, n);
	END IF;
END $$;
COMMENT ON FUNCTION cluster.check_place(int)
	IS 'part of cluster.set_shard_dsn: raise 55000 if the database is not the given shard';

CREATE FUNCTION cluster.set_shard_state(shard int, state text) RETURNS bigint LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	number bigint;
BEGIN
	PERFORM cluster.check_shard(shard);
	LOCK TABLE cluster.shards IN SHARE ROW EXCLUSIVE MODE;
	UPDATE cluster.shards s SET state = set_shard_state.state, version = nextval('cluster.map_version')
		WHERE s.shard = set_shard_state.shard RETURNING s.version INTO number;
	IF number IS NULL THEN
		RAISE EXCEPTION 'shard % has no connection string yet', shard USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = format('Run SELECT cluster.set_shard_dsn(%s, ''host=... dbname=...'').', shard);
	END IF;
	RETURN number;
END $$;
COMMENT ON FUNCTION cluster.set_shard_state(int, text)
	IS 'Mark a shard as up or moving. While a shard is moving, calls that it refuses wait for its new location. Returns the map''s new version. cluster/bin/move-shard calls this function.';
