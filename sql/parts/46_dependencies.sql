-- Topic: Dependencies

-- No foreign keys to idemq.jobs: see idemq.queue_grants; and each would make every write of a
-- job go through the executor.
CREATE TABLE idemq.dependencies (
	child      bigint NOT NULL,
	parent     bigint NOT NULL,
	queue_id   int NOT NULL,
	gone_as    idemq.status,
	seen_token bigint,
	PRIMARY KEY (child, parent)
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.dependencies IS 'one row a child and parent: which jobs a job was enqueued to wait for (depends_on); there as long as the child; row-level security shows those of children in queues that the role may claim from or administer';
COMMENT ON COLUMN idemq.dependencies.child IS 'the job that waits';
COMMENT ON COLUMN idemq.dependencies.parent IS 'the job that it waits for';
COMMENT ON COLUMN idemq.dependencies.queue_id IS 'queue of the child';
COMMENT ON COLUMN idemq.dependencies.gone_as IS 'what the parent counts as once its row is gone: what it was when it was deleted by hand, cancelled if it was not finished; dead, if it had failed when the child was enqueued; NULL: completed';
COMMENT ON COLUMN idemq.dependencies.seen_token IS 'in one row of each child whose parents were done: a token issued at that moment; who claims the child is told results of attempts of its parents with a lesser token (idemq.parents), and of later ones only with a privilege on the parent''s queue';
-- Retention and purge ask it, and who cancels children with their parent.
CREATE INDEX dependencies_parent ON idemq.dependencies (parent);

CREATE TABLE idemq.children (
	job_id            bigint PRIMARY KEY,
	queue_id          int NOT NULL,
	on_parent_failure text NOT NULL CHECK (on_parent_failure IN ('cancel', 'wait', 'run')),
	group_key         text COLLATE "C",
	waits_for         bigint NOT NULL
) WITH (
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_threshold = 5000,
	autovacuum_vacuum_cost_delay = 0,
	vacuum_truncate = off
);
COMMENT ON TABLE idemq.children IS 'one row a job whose parents are not done: it is blocked, or was cancelled before they were; row-level security as in idemq.dependencies';
COMMENT ON COLUMN idemq.children.job_id IS 'the job';
COMMENT ON COLUMN idemq.children.queue_id IS 'its queue';
COMMENT ON COLUMN idemq.children.on_parent_failure IS 'what becomes of it when a parent is dead or cancelled: cancel, it is cancelled as well; wait, for the parent to be brought back; run, as if the parent were completed';
COMMENT ON COLUMN idemq.children.group_key IS 'the FIFO group that it joins when its parents are done; NULL: none';
COMMENT ON COLUMN idemq.children.waits_for IS 'the parent that it waits for at the moment: all with lesser ids are done';
CREATE INDEX children_waits_for ON idemq.children (waits_for);
-- An expression: with statistics of when the table was empty the planner would look a job up by a
-- second column, for which it reads the whole index.
CREATE INDEX children_queue ON idemq.children (queue_id, (job_id + 0));

SELECT pg_catalog.pg_extension_config_dump('idemq.dependencies', '');
SELECT pg_catalog.pg_extension_config_dump('idemq.children', '');

ALTER TABLE idemq.dependencies ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.dependencies FOR SELECT USING (idemq.may_see(queue_id));
ALTER TABLE idemq.children ENABLE ROW LEVEL SECURITY;
CREATE POLICY idemq_own_queues ON idemq.children FOR SELECT USING (idemq.may_see(queue_id));

CREATE FUNCTION idemq.kin_changed() RETURNS trigger
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_kin_changed';
COMMENT ON FUNCTION idemq.kin_changed() IS 'statement trigger of idemq.dependencies and idemq.children: has rows that were restored, or written by hand, read anew at the end of the transaction';

CREATE TRIGGER idemq_kin_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idemq.dependencies
	FOR EACH STATEMENT EXECUTE FUNCTION idemq.kin_changed();
ALTER TABLE idemq.dependencies ENABLE ALWAYS TRIGGER idemq_kin_changed;
CREATE TRIGGER idemq_kin_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON idemq.children
	FOR EACH STATEMENT EXECUTE FUNCTION idemq.kin_changed();
ALTER TABLE idemq.children ENABLE ALWAYS TRIGGER idemq_kin_changed;

CREATE FUNCTION idemq.parents(id bigint)
	RETURNS TABLE (parent bigint, queue text, status idemq.status, result jsonb)
	STABLE ROWS 10 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_parents';
COMMENT ON FUNCTION idemq.parents(bigint)
	IS 'the jobs that a job was enqueued to wait for, with what they have come to; results also of queues on which you hold no privilege, as they were when the job was released: who enqueued it could ask for them; status NULL: completed and gone, in a queue with retention 0, or claimed again since and not yours to ask for; no rows for a job that is not yours to claim or administer';

CREATE FUNCTION idemq.enqueue_graph(jobs jsonb)
	RETURNS TABLE (name text, id bigint, outcome idemq.outcome, status idemq.status)
	ROWS 100 LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_enqueue_graph';
COMMENT ON FUNCTION idemq.enqueue_graph(jsonb)
	IS 'add jobs that depend on each other, all or none: an array of objects with a name, a queue, a payload, depends_on (names in the graph, and ids of jobs as numbers), and the other arguments of idemq.enqueue as members; returns a row a job, parents before their children; raises 22023 for a cycle; needs enqueue on each queue';
