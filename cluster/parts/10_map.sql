\echo Use "CREATE EXTENSION idemq_cluster" to load this file. \quit

-- idemq_cluster: the router of many servers that are one queue.  A logical shard is a database
-- with idemq in it; this database has the map of them, and functions that find the shard and
-- call idemq there by PL/Proxy.  Nothing of a job is stored here.

CREATE SCHEMA cluster;
COMMENT ON SCHEMA cluster IS 'the router of idemq''s shards';

CREATE FUNCTION cluster.in_transaction() RETURNS boolean
	VOLATILE LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_cluster_in_transaction';
COMMENT ON FUNCTION cluster.in_transaction()
	IS 'whether the caller is in a transaction block, or its statement has written something here: what may yet be rolled back, while a call of a shard is not';

CREATE TABLE cluster.settings (
	one      boolean PRIMARY KEY DEFAULT true CHECK (one),
	shards   int NOT NULL CHECK (shards IN (1, 2, 4, 8, 16, 32, 64)),
	patience interval NOT NULL DEFAULT '15 s'
);
COMMENT ON TABLE cluster.settings IS 'one row, written by cluster.init';
COMMENT ON COLUMN cluster.settings.one IS 'true: there is one row at most';
COMMENT ON COLUMN cluster.settings.shards IS 'how many logical shards there are, for ever: keys are never hashed anew';
COMMENT ON COLUMN cluster.settings.patience IS 'for how long a call waits for a shard that is being moved, before it raises 55000';

CREATE TABLE cluster.shards (
	shard   int PRIMARY KEY CHECK (shard >= 0),
	dsn     text NOT NULL,
	state   text NOT NULL DEFAULT 'up' CHECK (state IN ('up', 'moving')),
	version bigint NOT NULL
);
COMMENT ON TABLE cluster.shards IS 'the map: where each logical shard is; change it with cluster.set_shard_dsn and cluster.set_shard_state';
COMMENT ON COLUMN cluster.shards.shard IS 'its number, from 0: the first bits of a key''s md5, the bits of an id from 47 on';
COMMENT ON COLUMN cluster.shards.dsn IS 'connection string of its database, without user and password: each user''s own are in its user mapping';
COMMENT ON COLUMN cluster.shards.state IS 'up; or moving: to another server, and calls wait';
COMMENT ON COLUMN cluster.shards.version IS 'grows with each change of this row; that of the map is the greatest';

-- Opening it is also how a transaction hears of a change of the map: cluster.again.
CREATE SEQUENCE cluster.map_version;
COMMENT ON SEQUENCE cluster.map_version IS 'the map''s versions';

SELECT pg_catalog.pg_extension_config_dump('cluster.settings', '');
SELECT pg_catalog.pg_extension_config_dump('cluster.shards', '');
SELECT pg_catalog.pg_extension_config_dump('cluster.map_version', '');

CREATE FUNCTION cluster.map_changed() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	PERFORM pg_notify('cluster_map', '');
	RETURN NULL;
END $$;
COMMENT ON FUNCTION cluster.map_changed() IS 'trigger of cluster.shards: NOTIFY cluster_map';
CREATE TRIGGER map_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON cluster.shards
	FOR EACH STATEMENT EXECUTE FUNCTION cluster.map_changed();

CREATE FUNCTION cluster.map() RETURNS TABLE (shard int, dsn text, state text, version bigint)
	STABLE ROWS 64 LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
	AS 'SELECT s.shard, s.dsn, s.state, s.version FROM cluster.shards s ORDER BY s.shard';
COMMENT ON FUNCTION cluster.map() IS 'where each shard is: what workers read, at their start and whenever they hear NOTIFY cluster_map';

CREATE FUNCTION cluster.shard_count() RETURNS int STABLE LANGUAGE plpgsql SECURITY DEFINER
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n int := (SELECT s.shards FROM cluster.settings s);
BEGIN
	IF n IS NULL THEN
		RAISE EXCEPTION 'this cluster has no shards' USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'As a superuser: SELECT cluster.init(64), then cluster.set_shard_dsn for each.';
	END IF;
	RETURN n;
END $$;
COMMENT ON FUNCTION cluster.shard_count() IS 'how many logical shards there are';

-- Routing.  md5 and not hashtext, which no version of PostgreSQL promises to keep.

CREATE FUNCTION cluster.hash_tag(key text) RETURNS text IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
	SET search_path = pg_catalog, pg_temp
	AS $$SELECT coalesce(substring(key FROM '^[^{]*\{([^}]+)\}'), key)$$;
COMMENT ON FUNCTION cluster.hash_tag(text)
	IS 'the part of a key that is hashed: what is in its first pair of braces, if there is anything in them, or all of it; ''{customer-7}order-42'' goes where group customer-7 is';

CREATE FUNCTION cluster.check_count(shards int) RETURNS int IMMUTABLE STRICT PARALLEL SAFE LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF shards NOT IN (1, 2, 4, 8, 16, 32, 64) THEN
		RAISE EXCEPTION 'shards must be a power of two up to 64, not %', shards
			USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass cluster.shard_count().';
	END IF;
	RETURN shards;
END $$;
COMMENT ON FUNCTION cluster.check_count(int) IS 'part of shard_of_key: the number of shards; raises 22023 when it cannot be one';

CREATE FUNCTION cluster.shard_of_key(key text, shards int) RETURNS int IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
	SET search_path = pg_catalog, pg_temp
	AS $$SELECT ('x' || substr(md5(convert_to(cluster.hash_tag(key), 'UTF8')), 1, 7))::bit(28)::int / (268435456 / cluster.check_count(shards))$$;
COMMENT ON FUNCTION cluster.shard_of_key(text, int)
	IS 'the shard of a key, or of a group key, among so many: the first bits of the md5 of its hash_tag in UTF-8';

CREATE FUNCTION cluster.shard_of_key(key text) RETURNS int STABLE STRICT LANGUAGE sql
	SET search_path = pg_catalog, pg_temp
	AS 'SELECT cluster.shard_of_key(key, cluster.shard_count())';
COMMENT ON FUNCTION cluster.shard_of_key(text) IS 'the shard of a key, or of a group key, in this cluster';

CREATE FUNCTION cluster.shard_of(id bigint) RETURNS int STABLE LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF id IS NULL OR id < 0 OR id >> 47 >= cluster.shard_count() THEN
		RAISE EXCEPTION 'no shard of this cluster has made a job of the id %', coalesce(id::text, 'NULL')
			USING ERRCODE = CASE WHEN id IS NULL THEN 'null_value_not_allowed' ELSE 'invalid_parameter_value' END,
				HINT = 'Pass an id that cluster.enqueue, or a claim in a shard, has returned.';
	END IF;
	RETURN (id >> 47)::int;
END $$;
COMMENT ON FUNCTION cluster.shard_of(bigint) IS 'the shard that a job''s id tells; raises 22023 for one that is of none of this cluster';

CREATE FUNCTION cluster.route(key text, group_key text, depends_on bigint[] DEFAULT NULL) RETURNS int VOLATILE LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	n int := cluster.shard_count();
	of_parents int[] := ARRAY(SELECT DISTINCT cluster.shard_of(p) FROM unnest(depends_on) p);
	up int[];
	at_shard int := of_parents[1];
BEGIN
	IF cluster.hash_tag(key) <> cluster.hash_tag(group_key) THEN
		RAISE EXCEPTION 'key and group_key go to shards of their own'
			USING ERRCODE = 'feature_not_supported',
				DETAIL = 'A key is unique over all shards, so it decides where the job is; a group is in order on one shard only.',
				HINT = format('Begin the key with the group in braces, {%s}..., so that both go by that; or leave one out.',
					left(cluster.hash_tag(group_key), 100));
	END IF;
	IF key IS NOT NULL OR group_key IS NOT NULL THEN
		at_shard := cluster.shard_of_key(coalesce(key, group_key), n);
	ELSIF at_shard IS NULL THEN
		SELECT array_agg(m.shard) FILTER (WHERE m.state = 'up') INTO up FROM cluster.map() m;
		at_shard := coalesce(up[1 + floor(random() * cardinality(up))::int], floor(random() * n)::int);
	END IF;
	IF at_shard <> ANY (of_parents) THEN
		RAISE EXCEPTION 'a job depends on jobs of its own shard only'
			USING ERRCODE = 'feature_not_supported',
				DETAIL = format('It would be on shard %s, its parents are on %s. A parent''s commit makes it ready, and is one transaction of one shard.',
					at_shard, array_to_string(of_parents, ', ')),
				HINT = 'Begin all their keys, or groups, with the same text in braces; a job with neither goes where its parents are.';
	END IF;
	RETURN at_shard;
END $$;
COMMENT ON FUNCTION cluster.route(text, text, bigint[])
	IS 'the shard for a new job: that of its key, else of its group, else of its parents, else any that is up; raises 0A000 for a key and a group that are not hashed by the same text (cluster.hash_tag), and for parents on another shard';

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
				HINT = 'Take 64, and put several on each server: their number is for ever, their places are not.';
	ELSIF n <> shards THEN
		RAISE EXCEPTION 'this cluster has % shards already', n USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = 'Their number is for ever: move shards to more servers in place of that.';
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
	IS 'make this database the router of so many logical shards, for ever: the foreign server idemq_cluster, which leads nowhere until cluster.set_shard_dsn; nothing when it is that already; a superuser''s';

CREATE FUNCTION cluster.check_shard(shard int) RETURNS void STABLE LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
BEGIN
	IF shard IS NULL OR shard < 0 OR shard >= cluster.shard_count() THEN
		RAISE EXCEPTION 'there is no shard %', coalesce(shard::text, 'NULL') USING ERRCODE = 'invalid_parameter_value',
			HINT = format('Shards are 0 to %s.', cluster.shard_count() - 1);
	END IF;
END $$;
COMMENT ON FUNCTION cluster.check_shard(int) IS 'part of set_shard_dsn and set_shard_state: raises 22023 when there is no such shard';

CREATE FUNCTION cluster.set_shard_dsn(shard int, dsn text) RETURNS bigint LANGUAGE plpgsql
	SET search_path = pg_catalog, pg_temp AS $$
DECLARE
	number bigint;
BEGIN
	PERFORM cluster.check_shard(shard);
	IF dsn IS NULL OR dsn !~ '=' OR dsn ~ '://' OR dsn ~* '(user|password|service|passfile)\s*=' THEN
		RAISE EXCEPTION 'not the place of a shard: %', coalesce(regexp_replace(dsn, '(password\s*=\s*)(''[^'']*''|\S*)', '\1...', 'gi'), 'NULL')
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Pass host=..., port=... and dbname=..., without a user and a password: each user''s own are in CREATE USER MAPPING ... SERVER idemq_cluster.';
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
	IS 'say where a shard is from now on, and that it is up; returns the map''s new version, NOTIFY cluster_map; raises 55000 when the database says that it is another shard, or none (idemq.set_shard), and warns when it cannot be asked: then look at cluster.identities(); of the owner of server idemq_cluster';

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
		RAISE WARNING 'the database of shard % has not been asked whether it is that shard', shard
			USING DETAIL = SQLERRM, HINT = 'When it can be: SELECT * FROM cluster.identities(); is_shard must be shard.';
		RETURN;
	END;
	IF is_shard IS DISTINCT FROM shard OR of_shards <> n THEN
		RAISE EXCEPTION 'that database is not shard % of %', shard, n USING ERRCODE = 'object_not_in_prerequisite_state',
			DETAIL = coalesce(format('This database is shard %s of %s.', is_shard, of_shards), 'This database is not a shard.'),
			HINT = format('A key that is enqueued in the wrong place is not unique. In the right database, before its first job: SELECT idemq.set_shard(%s, %s).', shard, n);
	END IF;
END $$;
COMMENT ON FUNCTION cluster.check_place(int)
	IS 'part of set_shard_dsn: raises 55000 when what answers in a shard''s place is not that shard';

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
		RAISE EXCEPTION 'shard % has no place yet', shard USING ERRCODE = 'object_not_in_prerequisite_state',
			HINT = format('SELECT cluster.set_shard_dsn(%s, ''host=... dbname=...'').', shard);
	END IF;
	RETURN number;
END $$;
COMMENT ON FUNCTION cluster.set_shard_state(int, text)
	IS 'say that a shard is up, or moving: calls that it refuses then wait for its new place; returns the map''s new version; what cluster/bin/move-shard calls';
