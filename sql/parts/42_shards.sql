-- Topic: Many servers

CREATE TABLE idemq.shard (
	one    boolean PRIMARY KEY DEFAULT true CHECK (one),
	shard  int NOT NULL CHECK (shard >= 0 AND shard < shards),
	shards int NOT NULL CHECK (shards BETWEEN 1 AND 64),
	since  timestamptz NOT NULL
);
COMMENT ON TABLE idemq.shard IS 'which shard of a cluster of many servers this database is, at most one row; written by idemq.set_shard, for ever';
COMMENT ON COLUMN idemq.shard.one IS 'true: there is one row at most';
COMMENT ON COLUMN idemq.shard.shard IS 'its number, from 0; the ids of its jobs tell it: idemq.shard_of';
COMMENT ON COLUMN idemq.shard.shards IS 'how many there are';
COMMENT ON COLUMN idemq.shard.since IS 'when it was made one';
SELECT pg_catalog.pg_extension_config_dump('idemq.shard', '');

-- No secret: a client asks whether it has come to the shard that the map names.
ALTER TABLE idemq.shard ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_everybody ON idemq.shard FOR SELECT USING (true);

CREATE FUNCTION idemq_internal.shard_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_shard_changed';
COMMENT ON FUNCTION idemq_internal.shard_changed() IS 'row and truncate trigger of idemq.shard: has every session look again which ids are this database''s';

CREATE TRIGGER idemq_shard_changed AFTER INSERT OR UPDATE OR DELETE ON idemq.shard
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.shard_changed();
ALTER TABLE idemq.shard ENABLE ALWAYS TRIGGER idemq_shard_changed;
CREATE TRIGGER idemq_shard_truncated AFTER TRUNCATE ON idemq.shard
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.shard_changed();
ALTER TABLE idemq.shard ENABLE ALWAYS TRIGGER idemq_shard_truncated;

CREATE FUNCTION idemq.set_shard(shard int, shards int) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_set_shard';
COMMENT ON FUNCTION idemq.set_shard(int, int)
	IS 'make this database one shard of a cluster of many servers, for ever: the ids of its jobs tell the shard (idemq.shard_of) and stay below 2^53; shards: 1 to 64, a power of two; returns false when it is that shard already; raises 55000 when it is another, or when jobs have been made; the owner''s';

CREATE FUNCTION idemq.assert_shard(shard int, shards int) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_assert_shard';
COMMENT ON FUNCTION idemq.assert_shard(int, int)
	IS 'true when this database is that shard of so many; raises 55000 when it is another, or none: what a router asks in each call, so that a job never lands where its key is not looked for; for everybody';

CREATE FUNCTION idemq.shard_of(id bigint) RETURNS int
	IMMUTABLE STRICT PARALLEL SAFE LANGUAGE sql
	AS 'SELECT (shard_of.id OPERATOR(pg_catalog.>>) 47)::pg_catalog.int4';
COMMENT ON FUNCTION idemq.shard_of(bigint)
	IS 'the shard that a job''s id tells; of a database that is no shard the ids tell nothing';

CREATE FUNCTION idemq.retire(moved_to text) RETURNS boolean
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_retire';
COMMENT ON FUNCTION idemq.retire(text)
	IS 'fence this database, which moves to another server, for good; returns whether that changed anything; the owner''s
- moved_to: says where, for people
- From this transaction''s commit on every function that writes, and validate, admit, result and wait_result, raise 55000 with the hint to read the cluster''s map.
- It waits for open transactions that have written jobs.
- NULL takes it back, for a move that did not take place; idemq.take_over() then lets it go on.';

CREATE FUNCTION idemq.result(id bigint, OUT status idemq.status, OUT result jsonb)
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_result';
COMMENT ON FUNCTION idemq.result(bigint)
	IS 'a job''s status and stored result as they are now: idemq.wait_result without the wait, for a proxy that calls functions only; raises IQ002 (no such job); needs any privilege on its queue';
