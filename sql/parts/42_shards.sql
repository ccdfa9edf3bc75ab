-- Topic: Many servers

CREATE TABLE idemq.shard (
	one    boolean PRIMARY KEY DEFAULT true CHECK (one),
	shard  int NOT NULL CHECK (shard >= 0 AND shard < shards),
	shards int NOT NULL CHECK (shards BETWEEN 1 AND 64),
	since  timestamptz NOT NULL
);
COMMENT ON TABLE idemq.shard IS 'shard number of this database in a cluster of many servers, in at most one row, which idemq.set_shard writes once';
COMMENT ON COLUMN idemq.shard.one IS 'always true, which limits the table to one row';
COMMENT ON COLUMN idemq.shard.shard IS 'shard number, counted from 0, which is encoded in job ids (see idemq.shard_of)';
COMMENT ON COLUMN idemq.shard.shards IS 'number of shards in the cluster';
COMMENT ON COLUMN idemq.shard.since IS 'when the database became a shard';
SELECT pg_catalog.pg_extension_config_dump('idemq.shard', '');

-- No secret: a client asks whether it has come to the shard that the map names.
ALTER TABLE idemq.shard ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_everybody ON idemq.shard FOR SELECT USING (true);

CREATE FUNCTION idemq_internal.shard_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_shard_changed';
COMMENT ON FUNCTION idemq_internal.shard_changed() IS 'row and truncate trigger on idemq.shard that makes every session recheck which ids belong to this database';

CREATE TRIGGER idemq_shard_changed AFTER INSERT OR UPDATE OR DELETE ON idemq.shard
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.shard_changed();
ALTER TABLE idemq.shard ENABLE ALWAYS TRIGGER idemq_shard_changed;
CREATE TRIGGER idemq_shard_truncated AFTER TRUNCATE ON idemq.shard
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.shard_changed();
ALTER TABLE idemq.shard ENABLE ALWAYS TRIGGER idemq_shard_truncated;

CREATE FUNCTION idemq.set_shard(shard int, shards int) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_set_shard';
COMMENT ON FUNCTION idemq.set_shard(int, int)
	IS 'Permanently make this database a shard of a cluster of many servers. Job ids then encode the shard number (see idemq.shard_of) and stay below 2^53. shards must be a power of two from 1 to 64. Returns false if the database is already that shard. Raises 55000 if it is a different shard or already has jobs. Only the owner may call it.';

CREATE FUNCTION idemq.assert_shard(shard int, shards int) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_assert_shard';
COMMENT ON FUNCTION idemq.assert_shard(int, int)
	IS 'Return true if this database is the given shard of the given number of shards. Raises 55000 otherwise. A router includes this check in each call, so that no job is added to the wrong shard, where its key would not be found. Any role may call it.';

CREATE FUNCTION idemq.shard_of(id bigint) RETURNS int
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
	AS 'SELECT (shard_of.id OPERATOR(pg_catalog.>>) 47)::pg_catalog.int4';
COMMENT ON FUNCTION idemq.shard_of(bigint)
	IS 'Return the shard number encoded in a job id. The result is meaningful only for ids issued by a shard.';

CREATE FUNCTION idemq.retire(moved_to text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_retire';
COMMENT ON FUNCTION idemq.retire(text)
	IS 'Permanently fence this database because it is moving to another server. Returns whether the call changed anything. Only the owner may call it.
- moved_to: description of the new server, for people to read
- Once this transaction commits, validate, admit, result, wait_result and every function that writes raise 55000 with a hint to read the cluster''s map.
- The call waits for open transactions that have written jobs.
- NULL reverses a move that did not take place; idemq.take_over() then makes the database active again.';

CREATE FUNCTION idemq.result(id bigint, OUT status idemq.status, OUT result jsonb)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_result';
COMMENT ON FUNCTION idemq.result(bigint)
	IS 'Return the current status and stored result of a job without waiting. This function is for proxies that cannot call procedures. Raises IQ002 if the job does not exist. Requires any privilege on its queue.';
