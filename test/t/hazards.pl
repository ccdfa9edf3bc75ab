# The hazards of writing to a table by direct access: read-only transactions,
# parallel workers, row locks of one's own, what a DBA adds to the table, and
# indexes that are rebuilt while everybody works: for two rounds here, for more in hazards_slow.pl.
# at least 116 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use Rebuilds;
use Test::More;

my $node = new_server('hazards', autovacuum_naptime => '1s'); # meant to expire
# ---- Read-only transactions, parallel workers, standby

my @writers = (
	"idemq.enqueue('q', '1')", "idemq.enqueue('q', '1', key => 'k')",
	"idemq.enqueue_many('q', ARRAY['1'::jsonb])",
	"idemq.claim('q')", "idemq.claim_any(ARRAY['q'])", 'idemq.claim_job(1000000000001)',
	'idemq.commit(1000000000001, 1)', 'idemq.try_commit(1000000000001, 1)', 'idemq.commit_many(ARRAY[1000000000001], ARRAY[1])',
	'idemq.commit_once(1000000000001)', 'idemq.fail(1000000000001, 1)', 'idemq.fail_many(ARRAY[1000000000001], ARRAY[1])',
	'idemq.release(1000000000001, 1)', 'idemq.release_many(ARRAY[1000000000001], ARRAY[1])', "idemq.checkpoint(1000000000001, 1, '1')", 'idemq.assert_current(1000000000001, 1)',
	'idemq.cancel(1000000000001)', 'idemq.retry(1000000000001)', "idemq.redrive('q')",
	"idemq.create_queue('new')", "idemq.alter_queue('q', lease => '2 h')", "idemq.ensure_queue('new')", "idemq.ensure_queue('q', lease => '2 h')",
	"idemq.drop_queue('q', true)", "idemq.pause('q')", "idemq.purge('q')",
	"idemq.grant_queue('q', 'postgres', 'claim')");

# The first id of a server's run is the time of day; those after it are small again.
sql($node, "SELECT idemq.enqueue('q', '0')");
reset_queues($node);
sql($node, "ALTER SEQUENCE idemq.jobs_id_seq RESTART; SELECT idemq.enqueue('q', '1'); SELECT idemq.enqueue('q', '2', key => 'k')");
# Raises 25006, with a hint.
sub is_refused
{
	my ($server, $sql, $hint, $name) = @_;
	my $stderr;

	$server->psql('postgres', $sql, stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($stderr, qr/ERROR:  25006: cannot execute [^\n]+\nHINT:  $hint/, $name);
}
is_refused($node, "BEGIN READ ONLY; SELECT * FROM $_", 'Begin the transaction with READ WRITE', "read-only: $_") foreach @writers;
is_refused($node, 'BEGIN READ ONLY; SELECT idemq.follow()', 'Begin the transaction with READ WRITE', 'read-only: follow');
is_state($node, "SET default_transaction_read_only = on; SELECT * FROM idemq.claim('q')", '25006',
	'read-only by default');
is_sql($node, 'SELECT status, attempt, token FROM idemq.jobs ORDER BY id', "pending|0|0\npending|0|0",
	'nothing was written');

my $token = sql($node, "SELECT token FROM idemq.claim_job(1000000000001)");
is_sql($node, "BEGIN READ ONLY; SELECT idemq.heartbeat(1000000000001, $token), idemq.validate(1000000000001, $token),
	(SELECT status FROM idemq.job(1000000000001))", 'current|current|running',
	'read-only: heartbeat, validate and job work');
is_state($node, "BEGIN READ ONLY; SELECT idemq.commit(1000000000001, $token)", '25006',
	'read-only: commit of a job that is held');

sql($node, "CREATE FUNCTION liar() RETURNS bigint PARALLEL SAFE LANGUAGE sql
	AS \$\$ SELECT count(*) FROM idemq.claim('q') \$\$");
my $forced = $node->pg_version >= 16 ? 'debug_parallel_query' : 'force_parallel_mode';
is_state($node, "SET $forced = on; SELECT liar()", '25000', 'claim in a parallel worker');
sql($node, "CREATE FUNCTION liar2() RETURNS text PARALLEL SAFE LANGUAGE sql
	AS \$\$ SELECT idemq.try_commit(1000000000001, $token)::text \$\$");
is_state($node, "SET $forced = on; SELECT liar2()", '25000', 'commit in a parallel worker');
is_sql($node, 'SELECT status FROM idemq.jobs WHERE id = 1000000000001', 'running', 'nothing was written');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = 1000000000002", 'pending', 'nothing was written');
sql($node, "SELECT idemq.commit(1000000000001, $token)");

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
caught_up($node, $standby);
is_refused($standby, "SELECT * FROM $_", 'Connect to the primary', "standby: $_") foreach @writers;
is_sql($standby, "SELECT idemq.validate(1000000000001, $token), (SELECT status FROM idemq.job(1000000000001))",
	'stale|completed', 'standby: validate and job work');
is_state($standby, "SELECT idemq.heartbeat(1000000000001, $token + 1)", '25006', 'standby: heartbeat');
$standby->stop;

# ---- Row locks of one's own

foreach my $lock ('KEY SHARE', 'SHARE', 'NO KEY UPDATE', 'UPDATE')
{
	reset_queues($node);
	sql($node, "SELECT idemq.enqueue('q', '1')");
	is_sql($node, "BEGIN; SELECT 'locked' FROM idemq.jobs FOR $lock;
		SELECT attempt, idemq.commit(id, token) FROM idemq.claim('q'); COMMIT",
		"locked\n1|committed", "own FOR $lock, claim and commit");
	reset_queues($node);
	sql($node, "SELECT idemq.enqueue('q', '1')");
	is_sql($node, "BEGIN; SAVEPOINT a; SELECT 'locked' FROM idemq.jobs FOR $lock; RELEASE a; SAVEPOINT b;
		SELECT attempt FROM idemq.claim('q'); ROLLBACK TO b;
		SELECT attempt, outcome FROM idemq.claim_job((SELECT id FROM idemq.jobs)); COMMIT",
		"locked\n1\n1|claimed", "own FOR $lock in savepoints");
	sql($node, "SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.jobs WHERE status = 'running'");
	is_sql($node, "BEGIN; SELECT 'locked' FROM idemq.jobs FOR $lock;
		SELECT idemq.commit_once((SELECT id FROM idemq.jobs)); COMMIT",
		"locked\ncommitted", "own FOR $lock and commit_once");
}

# Own lock and a stranger's: his counts, ours does not.
reset_queues($node);
sql($node, "SELECT idemq.enqueue('q', '1')");
my $stranger = session($node);
$stranger->query_safe("BEGIN; SELECT 'locked' FROM idemq.jobs FOR SHARE");
is_sql($node, "BEGIN; SELECT 'locked' FROM idemq.jobs FOR SHARE; SELECT count(*) FROM idemq.claim('q');
	COMMIT; SELECT status FROM idemq.jobs", "locked\n0\npending", 'own and a stranger\'s FOR SHARE');
$stranger->query_safe('COMMIT');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'claimable when the stranger has left');

# ---- Logical replication

reset_queues($node);
sql($node, "CREATE PUBLICATION pub FOR TABLE idemq.jobs;
	SELECT idemq.enqueue('q', '1'); SELECT idemq.enqueue('none', '2')");
sql($node, "SELECT pg_create_logical_replication_slot('slot', 'pgoutput')");
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('q');
	SELECT idemq.commit(id, token) FROM idemq.claim('none'); SELECT idemq.enqueue('q', '3')");
is_sql($node, "SELECT string_agg(chr(get_byte(data, 0)), '' ORDER BY lsn) FROM
	pg_logical_slot_get_binary_changes('slot', NULL, NULL, 'proto_version', '1', 'publication_names', 'pub')
	WHERE chr(get_byte(data, 0)) IN ('I', 'U', 'D')", 'UUUDI', 'rows written by direct access are replicated');
sql($node, "SELECT pg_drop_replication_slot('slot'); ALTER TABLE idemq.jobs REPLICA IDENTITY NOTHING");
is_state($node, "SELECT * FROM idemq.claim('q')", '55000', 'a claim that a subscriber could not follow is refused');
is_sql($node, "SELECT status FROM idemq.jobs WHERE payload = '3'", 'pending', 'and is not done');
sql($node, "ALTER TABLE idemq.jobs REPLICA IDENTITY DEFAULT; DROP PUBLICATION pub");
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 10)", 1, 'it is done without the publication');
is_sql($node, "SET session_replication_role = replica;
	INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
		SELECT queue_id, now(), 4, 3, 'pending', '2020-01-01', '4' FROM idemq.queues WHERE name = 'q';
	SELECT payload FROM idemq.claim('q')", 4, 'a row that a subscription brought is claimable at once');

# ---- What a DBA adds to the table

reset_queues($node);
sql($node, q{
	CREATE TABLE log (n serial, op text, id bigint, was idemq.status, is_now idemq.status);
	CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS $$ -- sees no search_path but pg_catalog
	BEGIN
		IF TG_OP = 'INSERT' THEN
			INSERT INTO public.log (op, id, is_now) VALUES (TG_OP, NEW.id, NEW.status);
		ELSIF TG_OP = 'DELETE' THEN
			INSERT INTO public.log (op, id, was) VALUES (TG_OP, OLD.id, OLD.status);
		ELSE
			INSERT INTO public.log (op, id, was, is_now) VALUES (TG_OP, NEW.id, OLD.status, NEW.status);
		END IF;
		RETURN NULL;
	END $$;
	CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION log();
});
my $cycle = "SELECT id FROM idemq.enqueue('QUEUE', '1', key => KEY);
	SELECT id FROM (SELECT id, idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.claim('QUEUE')) x;
	SELECT id FROM (SELECT id, idemq.commit(id, token) FROM idemq.claim('QUEUE')) x";
my @changes = ('INSERT||pending', 'UPDATE|pending|running', 'UPDATE|running|retrying',
	'UPDATE|retrying|running');

foreach my $kept ("q|NULL", "q|'k'", "none|NULL")
{
	my ($queue, $key) = split /\|/, $kept;
	my $sql = $cycle =~ s/QUEUE/$queue/gr =~ s/KEY/$key/r;

	sql($node, "TRUNCATE log; $sql");
	is_sql($node, 'SELECT op, was, is_now FROM log ORDER BY n',
		join("\n", @changes, $queue eq 'none' ? 'DELETE|running|' : 'UPDATE|running|completed'),
		"a user's trigger sees every change (queue $queue, key $key)");
}
sql($node, 'TRUNCATE log');
is_state($node, "SELECT 1 / 0 FROM idemq.enqueue('q', '1')", '22012', 'rolled back with an error');
is_sql($node, 'SELECT count(*) FROM log', 0, 'and so was what the trigger did');
check_relations($node, 'with a trigger');

reset_queues($node);
sql($node, "DROP TRIGGER log ON idemq.jobs;
	CREATE TABLE runs (job bigint REFERENCES idemq.jobs ON DELETE CASCADE);
	CREATE TABLE kept (job bigint REFERENCES idemq.jobs);
	SELECT idemq.enqueue('q', '1'); SELECT idemq.enqueue('none', '2')");
$stranger->query_safe('BEGIN; INSERT INTO runs SELECT id FROM idemq.jobs');
is_sql($node, "SELECT payload, idemq.try_commit(id, token) FROM idemq.claim('q')", '1|committed',
	'a foreign key check keeps nobody from claim and commit');
$stranger->query_safe('COMMIT');
sql($node, "INSERT INTO kept SELECT id FROM idemq.jobs WHERE status = 'pending'");
is_state($node, "SELECT idemq.commit(id, token) FROM idemq.claim('none')", '23503',
	'a foreign key keeps a job from being deleted by its commit');
sql($node, 'TRUNCATE kept');
is_sql($node, "SELECT payload, idemq.commit(id, token) FROM idemq.claim('none')", '2|committed',
	'the foreign key does not mind any more');
is_sql($node, 'SELECT count(*) FROM runs r LEFT JOIN idemq.jobs j ON j.id = r.job WHERE j.id IS NULL', 0,
	'ON DELETE CASCADE follows');
check_relations($node, 'with foreign keys');

# Indexes alone leave the short way in place.
reset_queues($node);
sql($node, "DROP TABLE runs, kept;
	CREATE INDEX by_status ON idemq.jobs (status); CREATE INDEX by_payload ON idemq.jobs USING gin (payload);
	CREATE UNIQUE INDEX once ON idemq.jobs (queue_id, payload) WHERE status <> 'completed';
	SELECT idemq.enqueue('q', '1')");
is_state($node, "SELECT idemq.enqueue('q', '1')", '23505', 'a unique index of a DBA holds');
is_sql($node, "SELECT attempt, idemq.commit(id, token) FROM idemq.claim('q')", '1|committed',
	'claim and commit with further indexes');
is_sql($node, "SET enable_seqscan = off; SELECT count(*), min(status) FROM idemq.jobs WHERE status = 'completed'",
	'1|completed', 'and the indexes know');
sql($node, "SELECT idemq.enqueue('q', '1')");
check_relations($node, 'with further indexes');
sql($node, 'DROP INDEX idemq.by_status, idemq.by_payload, idemq.once');
is_state($node, "BEGIN; DROP INDEX idemq.jobs_ready; SELECT * FROM idemq.claim('q')", '55000',
	'no ready index');
is_sql($node, "BEGIN; DROP INDEX idemq.jobs_ready;
	CREATE INDEX another ON idemq.jobs (queue_id, priority, ready_at, id) WHERE ready_at IS NOT NULL;
	SELECT attempt FROM idemq.claim('q'); COMMIT", '1',
	'a ready index by another name');

# ---- Indexes rebuilt, rows moved, while everybody works

reset_queues($node);
prepare_work($node);
work_while($node, 'indexes rebuilt', 2,
	'REINDEX INDEX CONCURRENTLY idemq.another', 'REINDEX INDEX CONCURRENTLY idemq.jobs_pkey',
	'VACUUM idemq.jobs', 'REINDEX TABLE CONCURRENTLY idemq.jobs',
	'CREATE INDEX CONCURRENTLY extra ON idemq.jobs (status, id)', 'ANALYZE idemq.jobs',
	'DROP INDEX CONCURRENTLY idemq.extra', 'VACUUM FULL idemq.jobs', 'REINDEX INDEX idemq.another');

if ($node->pg_version->major >= 19)
{
	work_while($node, 'repacked', 2, 'REPACK (CONCURRENTLY) idemq.jobs', 'ANALYZE idemq.jobs',
		'REPACK (CONCURRENTLY) idemq.jobs USING INDEX jobs_pkey', 'REPACK idemq.jobs',
		'REPACK (CONCURRENTLY) idemq.queues', 'REPACK (CONCURRENTLY) idemq.attempts');
}

# ---- Columns and constraints of a DBA: the long way

reset_queues($node);
sql($node, "ALTER TABLE idemq.jobs ADD COLUMN tenant text DEFAULT 'none';
	ALTER TABLE idemq.jobs ADD COLUMN size int GENERATED ALWAYS AS (length(payload::text) + attempt) STORED;
	ALTER TABLE idemq.jobs ADD CONSTRAINT few CHECK (attempt < 3);
	CREATE INDEX by_status ON idemq.jobs (status, tenant);
	CREATE INDEX by_size ON idemq.jobs ((size * 2)) WHERE attempt > 0;
	CREATE INDEX by_hash ON idemq.jobs USING hash (status);
	CREATE INDEX by_block ON idemq.jobs USING brin (finished_at);
	SELECT idemq.enqueue('q', '12345')");
is_sql($node, $cycle =~ s/QUEUE/q/gr =~ s/KEY/NULL/r =~ s/SELECT id FROM idemq.enqueue[^;]*;//r,
	"6\n6" =~ s/6/sql($node, 'SELECT max(id) FROM idemq.jobs')/ger, 'columns, constraint and indexes of a DBA');
is_sql($node, 'SELECT status, attempt, tenant, size FROM idemq.jobs', 'completed|2|none|7',
	'a generated column follows');
is_sql($node, "SET enable_seqscan = off; SELECT count(*) FROM idemq.jobs WHERE status = 'completed'", 1,
	'an index by status follows');
sql($node, "SELECT idemq.enqueue('q', '1', max_attempts => 9);
	SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q');
	SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q')");
is_state($node, "SELECT * FROM idemq.claim('q')", '23514', 'a check constraint holds');
check_relations($node, 'with columns and indexes of a DBA');
sql($node, "ALTER TABLE idemq.jobs DROP CONSTRAINT few, DROP COLUMN size, DROP COLUMN tenant;
	DROP INDEX idemq.by_block, idemq.by_hash");

work_while($node, 'columns come and go', 2, 'ALTER TABLE idemq.jobs ADD COLUMN extra int',
	'CREATE INDEX CONCURRENTLY extra ON idemq.jobs ((attempt + 1))',
	'CREATE TRIGGER noop AFTER UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION noop()',
	'REINDEX TABLE CONCURRENTLY idemq.jobs', 'DROP TRIGGER noop ON idemq.jobs',
	'DROP INDEX idemq.extra', 'ALTER TABLE idemq.jobs DROP COLUMN extra');

leave($stranger);
$node->stop;
done_testing();
