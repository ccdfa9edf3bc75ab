-- Topic: Workers

-- hold_back only inserts rows, so that two workers whose provider refuses requests do not wait for
-- each other (src/job/holds.c).  The key is random for the same reason: an insert waits for a
-- concurrent insert of an equal key.
-- No foreign key to idemq.queues: see idemq_internal.queue_grants.
CREATE TABLE idemq_internal.hold_entries (
	hold_id   uuid PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
	queue_id  int NOT NULL,
	group_key text COLLATE "C",
	began_at  timestamptz NOT NULL,
	until     timestamptz NOT NULL,
	held_at   timestamptz NOT NULL,
	job_id    bigint NOT NULL,
	token     bigint NOT NULL
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq_internal.hold_entries IS 'one row per call of idemq.hold_back that began or extended a hold, kept until the first claim after the hold has ended; use the view idemq.holds to read it';
COMMENT ON COLUMN idemq_internal.hold_entries.hold_id IS 'random key of the row';
COMMENT ON COLUMN idemq_internal.hold_entries.queue_id IS 'numeric id of the queue';
COMMENT ON COLUMN idemq_internal.hold_entries.group_key IS 'group that is held back; NULL means the whole queue';
COMMENT ON COLUMN idemq_internal.hold_entries.began_at IS 'when the hold that this call began or extended started';
COMMENT ON COLUMN idemq_internal.hold_entries.until IS 'end of the hold; the latest end for the queue or group counts; idemq.resume sets this column to the time of its call';
COMMENT ON COLUMN idemq_internal.hold_entries.held_at IS 'when idemq.hold_back was called';
COMMENT ON COLUMN idemq_internal.hold_entries.job_id IS 'job whose worker called idemq.hold_back';
COMMENT ON COLUMN idemq_internal.hold_entries.token IS 'token of the attempt that called idemq.hold_back';
CREATE INDEX hold_entries_scope ON idemq_internal.hold_entries
	(queue_id, (coalesce(group_key, '')), until);

SELECT pg_catalog.pg_extension_config_dump('idemq_internal.hold_entries', '');
ALTER TABLE idemq_internal.hold_entries ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq_internal.hold_entries FOR SELECT
	USING (idemq_internal.may_see(queue_id));

CREATE FUNCTION idemq_internal.holds_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_holds_changed';
COMMENT ON FUNCTION idemq_internal.holds_changed() IS 'row and truncate trigger on idemq_internal.hold_entries that makes every session reread the holds of a queue';
-- For each row: logical replication fires no other triggers.
CREATE TRIGGER idemq_holds_changed AFTER INSERT OR UPDATE OR DELETE ON idemq_internal.hold_entries
	FOR EACH ROW EXECUTE FUNCTION idemq_internal.holds_changed();
ALTER TABLE idemq_internal.hold_entries ENABLE ALWAYS TRIGGER idemq_holds_changed;
CREATE TRIGGER idemq_holds_truncated AFTER TRUNCATE ON idemq_internal.hold_entries
	FOR EACH STATEMENT EXECUTE FUNCTION idemq_internal.holds_changed();
ALTER TABLE idemq_internal.hold_entries ENABLE ALWAYS TRIGGER idemq_holds_truncated;

CREATE FUNCTION idemq.hold_back(
	id bigint, token bigint, delay interval DEFAULT NULL, until timestamptz DEFAULT NULL,
	scope text DEFAULT NULL)
	RETURNS timestamptz LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_hold_back';
COMMENT ON FUNCTION idemq.hold_back(bigint, bigint, interval, timestamptz, text)
	IS 'Hold back further jobs of a running job''s group or queue, for example because a provider has answered 429. None of them starts before the hold ends. Takes effect when this transaction commits. Returns the end of the hold. Raises IQ001 for a stale token. Requires claim.
- delay or until: end of the hold, as an interval from now or as a time. The latest end counts, and a call that would not extend the hold writes nothing.
- scope: group or queue; the default is the group, or the queue if the job has no group
- A hold ends at most max_hold_back after it began, however often it is extended, and the next hold can begin only after a job of the queue or group has been claimed. Otherwise, the call raises 22023.
- Running jobs continue. idemq.resume ends holds.';

-- The rows are read as the owner of the view, so the view itself decides which queues are shown.
CREATE VIEW idemq.holds WITH (security_barrier) AS
	SELECT q.name AS queue, h.queue_id,
		CASE WHEN h.group_key IS NULL THEN 'queue' ELSE 'group' END AS scope,
		CASE WHEN h.sees_keys THEN h.group_key END AS group_key, h.began_at, h.until, h.job_id
	FROM (SELECT DISTINCT ON (e.queue_id, e.group_key) e.*, idemq_internal.may_see(e.queue_id) AS sees_keys
		FROM idemq_internal.hold_entries e
		WHERE e.until OPERATOR(pg_catalog.>) idemq.clock_timestamp()
		ORDER BY e.queue_id, e.group_key, e.until DESC) h
	CROSS JOIN LATERAL (SELECT q.name FROM idemq.queues q
		WHERE q.queue_id OPERATOR(pg_catalog.=) h.queue_id OFFSET 0) q
	WHERE h.sees_keys OR pg_catalog.pg_has_role('pg_monitor', 'USAGE');
COMMENT ON VIEW idemq.holds IS 'one row per hold in force (idemq.hold_back), for queues that you may claim from or administer; pg_monitor sees all queues, without group keys';
COMMENT ON COLUMN idemq.holds.queue IS 'name of the queue';
COMMENT ON COLUMN idemq.holds.queue_id IS 'numeric id of the queue';
COMMENT ON COLUMN idemq.holds.scope IS 'what is held back: queue or group';
COMMENT ON COLUMN idemq.holds.group_key IS 'group that is held back; NULL means the whole queue';
COMMENT ON COLUMN idemq.holds.began_at IS 'when the hold began; max_hold_back counts from this time';
COMMENT ON COLUMN idemq.holds.until IS 'when the hold ends automatically';
COMMENT ON COLUMN idemq.holds.job_id IS 'job whose worker requested the current end of the hold';
