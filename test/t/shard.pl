# A database that is one shard of many: its jobs' ids tell the shard, below 2^53, whatever becomes
# of the sequence; it stays that shard for ever, in a dump and to a subscriber; and one that has
# moved lets nobody write.
# at least 84 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('shard', 'idemq.worker' => 'off', max_connections => 50);
my @at = ('-h', $node->host, '-p', $node->port);
my $base = 5 << 47;
# Where a sequence that has given nothing begins: beyond int.
my $start = 1_000_000_000_001;
my %given;

sub database
{
	my ($name) = @_;

	sql($node, "CREATE DATABASE $name");
	sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q')", $name);
	return $name;
}

# Enqueues so many jobs at once; answers their ids, none given before, all of shard 5.
sub take
{
	my ($db, $count, $name, $session) = @_;
	my $sql = "SELECT id FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[$count]))";
	my @ids = split /\n/, $session ? $session->query_safe($sql) : sql($node, $sql, $db);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join(' ', scalar(@ids), (grep { $given{$_}++ } @ids), (grep { $_ >> 47 != 5 || $_ >= 2**53 } @ids)), $count, $name);
	return @ids;
}

# ---- set_shard

my $db = database('one');
is_state($node, "SELECT idemq.set_shard($_->[0])", $_->[1], "set_shard($_->[0])", $db)
  foreach [ 'NULL, 8', '22004' ], [ '1, NULL', '22004' ], [ '-1, 8', '22023' ], [ '8, 8', '22023' ], [ '3, 6', '22023' ],
  [ '0, 128', '22023' ], [ '0, 0', '22023' ];
sql($node, 'CREATE ROLE app LOGIN');
sql($node, "SELECT idemq.grant_queue('q', 'app', 'admin')", $db);
is_state($node, "SET ROLE app; SELECT idemq.$_", '42501', "an administrator of queues may not $_", $db)
  foreach 'set_shard(1, 8)', q{retire('elsewhere')};
is_state($node, 'BEGIN READ ONLY; SELECT idemq.set_shard(5, 8)', '25006', 'nor a read-only transaction', $db);

# One that has known the sequence since before, and one whose transaction has taken an id.
my $early = session($node, $db);
sql($node, 'BEGIN; SELECT idemq.set_shard(5, 8); ROLLBACK', $db);
is($early->query_safe("BEGIN; SELECT id FROM idemq.enqueue('q', '1')"), $start, 'a set_shard that is rolled back changes no id');
my $setter = session($node, $db);
my $pid = $setter->query_safe('SELECT pg_backend_pid()');
$setter->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\nSELECT idemq.set_shard(5, 8);\n");
wait_until($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
$early->query_safe('ROLLBACK');
$setter->query('SELECT');
like($setter->{stderr}, qr/ERROR:\s+55000/, 'set_shard waits for who has taken an id, and is refused: also for one that was rolled back');
leave($early, $setter);

$db = database('five');
$early = session($node, $db);
is($early->query_safe("SELECT count(*) FROM idemq.claim('q')"), '0', 'a session from before');
$setter = session($node, $db);
is($setter->query_safe('BEGIN; SELECT idemq.set_shard(5, 8)'), 't', 'set_shard');
$pid = $early->query_safe('SELECT pg_backend_pid()');
$early->query_until(qr/sent/, "\\echo sent\nSELECT id FROM idemq.enqueue('q', '1');\n");
wait_until($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
$setter->query_safe('COMMIT');
leave($setter);
is($early->query_safe('SELECT') =~ /(\d+)/ && $1 - $base, $start, 'who comes while it is being set waits, and takes an id of the shard');
$given{ $base + $start }++;
is_sql($node, 'SELECT idemq.set_shard(5, 8)', 'f', 'again is nothing new', $db);
is_state($node, 'SELECT idemq.set_shard(4, 8)', '55000', 'no other shard', $db);
is_state($node, 'SELECT idemq.set_shard(5, 16)', '55000', 'nor of another number', $db);
is_sql($node, 'SET ROLE app; SELECT shard, shards FROM idemq.shard', '5|8', 'anybody may know', $db)
  if sql($node, "SELECT idemq.grant_queue('q', 'app', 'enqueue')", $db) eq '';
is_sql($node, 'SELECT idemq.shard_of(0), idemq.shard_of(140737488355328), idemq.shard_of(9007199254740991), idemq.shard_of(NULL)',
	'0|1|63|', 'shard_of', $db);
is_sql($node, "SELECT shard FROM (SELECT idemq.set_shard(63, 64)) s, LATERAL (SELECT idemq.shard_of(id) AS shard FROM idemq.enqueue('q', '1')) e",
	'63', 'the last shard of 64, in one statement', database('last'));
is_sql($node, 'SELECT max(id) < 2::bigint ^ 53 FROM idemq.jobs', 't', 'and its ids are below 2^53', 'last');

# ---- Whatever becomes of the sequence

is(join(' ', map { $_ - $base - $start } take($db, 3, 'a batch')), '1 2 3', 'they begin at the sequence\'s start in the shard');
is_sql($node, "SELECT nextval('idemq.jobs_id_seq') - $base - $start", '4', 'nextval by hand', $db);
is_sql($node, "INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	SELECT queue_id, now(), 4, 1, 'pending', now(), '1' FROM idemq.queues RETURNING id - $base - $start", '5', 'the column\'s default', $db);
$given{ $base + $start + $_ }++ foreach 4, 5;
take($db, 2, 'the session from before', $early);
my ($before) = take($db, 2, 'before the restart of the server');
leave($early);
crash($node);
my ($after) = take($db, 2, 'after a crash');
cmp_ok($after - $before, '>', 2**26, 'far behind: nothing that a crash lost is given again');
$early = session($node, $db);
($before) = take($db, 2, 'a session', $early);
sql($node, 'TRUNCATE idemq.jobs RESTART IDENTITY', $db);
($after) = take($db, 2, 'the same session, after TRUNCATE ... RESTART IDENTITY', $early);
cmp_ok($after - $base, '>', 3e12, 'by the time of day');
sql($node, 'ALTER SEQUENCE idemq.jobs_id_seq RESTART WITH 7', $db);
take($db, 2, 'after ALTER SEQUENCE ... RESTART', $early);
is($early->query_safe("SELECT id >> 47 FROM idemq.enqueue('q', '1', key => 'k')"), '5', 'a keyed job, too');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check', $db);
sql($node, 'UPDATE idemq.jobs SET id = 1 WHERE id = (SELECT max(id) FROM idemq.jobs)', $db);
is_sql($node, 'SELECT severity, invariant FROM idemq.check()', 'error|ids.shard', 'check finds a job of another shard', $db);
sql($node, 'DELETE FROM idemq.jobs WHERE id = 1', $db);

# ---- A dump

my $file = "$PostgreSQL::Test::Utils::tmp_check/shard.dump";
command_ok([ 'pg_dump', @at, '-Fc', '-f', $file, $db ], 'pg_dump');
sql($node, 'CREATE DATABASE copied');
command_ok([ 'pg_restore', '-e', @at, '-d', 'copied', $file ], 'pg_restore');
is_sql($node, 'SELECT shard, shards FROM idemq.shard', '5|8', 'the copy is the shard', 'copied');
take('copied', 3, 'and gives its ids');
# The row without the sequence.
is_sql($node, "BEGIN; INSERT INTO idemq.shard SELECT true, 5, 8, now();
	SELECT id >> 47 FROM idemq.enqueue('q', '1'); ROLLBACK;
	SELECT id < 2 * $start FROM idemq.enqueue('q', '1')", "5\nf", 'a row that comes without the sequence', database('rows'));

# ---- The end of its ids: never another shard's, and none again

sql($node, "SELECT setval('idemq.jobs_id_seq', $base + (1::bigint << 47) - 3)", $db);
is($early->query_safe("SELECT id - $base - (1::bigint << 47) FROM idemq.enqueue('q', '1')"), '-2', 'the last but one');
is_state($node, "SELECT idemq.enqueue_many('q', array_fill('1'::jsonb, '{2}'))", '54000', 'two more there are not', $db);
is_state($node, "SELECT idemq.enqueue('q', '1')", '54000', 'nor one', $db) foreach 1, 2;
leave($early);

# ---- A shard that has moved

$db = database('moves');
is_sql($node, "SELECT idemq.set_shard(0, 8)::text UNION ALL SELECT id::text FROM idemq.enqueue('q', '1')", "true\n$start", 'shard 0 begins beyond int, too', database('zero'));
sql($node, 'SELECT idemq.set_shard(5, 8)', $db);
is_state($node, "SELECT idemq.retire('')", '22023', 'retire says where to', $db);
is_state($node, 'SELECT idemq.retire(NULL)', '55000', 'retire(NULL) takes back what was there', $db);
my $open = session($node, $db);
my ($id, $token) = split /\|/, sql($node, "SELECT c.id, c.token FROM idemq.enqueue('q', '1') e, idemq.claim_job(e.id) c", $db);
$open->query_safe("BEGIN; SELECT idemq.enqueue('q', '\"open\"')");
my $retiring = session($node, $db);
$pid = $retiring->query_safe('SELECT pg_backend_pid()');
$retiring->query_until(qr/sent/, "\\echo sent\nSELECT idemq.retire('host=new');\n");
wait_until($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
$open->query_safe('COMMIT');
is($retiring->query_safe('SELECT 1') =~ /^t/ ? 't' : 'f', 't', 'retire waits for a transaction that has written a job');
is_sql($node, q{SELECT count(*) FROM idemq.jobs WHERE payload = '"open"'}, '1', 'which is there', $db);
foreach (
	"enqueue('q', '2')", "enqueue('q', '2', key => 'k')", "claim('q')", "claim_job($id)", "commit($id, $token)", "try_commit($id, $token)",
	"fail($id, $token)", "heartbeat($id, $token)", "checkpoint($id, $token, '1')", "cancel($id)", "acquire('q', 'k', '1')",
	"create_queue('r')", "pause('q')", "admit('b', 1, '1 min')", 'take_over()', 'set_shard(5, 8)')
{
	is_state($node, "SELECT idemq.$_", '55000', "refused: $_", $db);
}
my ($stdout, $stderr);
$node->psql($db, "SELECT idemq.enqueue('q', '2')", stdout => \$stdout, stderr => \$stderr);
like($stderr, qr/this shard has moved to host=new.*HINT:.*cluster\.map\(\)/s, 'with a hint that names the map');
is_sql($node, "SELECT idemq.retire('host=new')", 'f', 'again is nothing new', $db);
is_state($node, "SELECT status FROM idemq.result($id)", '55000', 'what it would answer may be otherwise in the new place', $db);
is_sql($node, "SELECT status FROM idemq.job($id)", 'running', 'what it was can be read', $db);
is_sql($node, q{SELECT count(*) FROM idemq.check() WHERE invariant = 'follows' AND detail LIKE 'this shard has moved to host=new permanently%'}, 1, 'check says so', $db);

# It did not take place.
is_sql($node, 'SELECT idemq.retire(NULL)', 't', 'retire(NULL)', $db);
is_state($node, "SELECT idemq.enqueue('q', '2')", '55000', 'still fenced', $db);
is_sql($node, 'SELECT idemq.take_over()', 't', 'until take_over', $db);
is_sql($node, "SELECT idemq.commit($id, $token)", 'committed', 'an attempt of before commits', $db);
is_sql($node, "SELECT id >> 47 FROM idemq.enqueue('q', '2')", '5', 'new ids are the shard\'s', $db);
is_sql($node, "SELECT invariant FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', 'check', $db);
leave($open, $retiring);

# ---- idemq.result

is_sql($node, "SELECT * FROM idemq.commit_once((SELECT id FROM idemq.enqueue('q', '3', key => 'r')), '{\"a\": 1}')", 'committed', 'a job with a result', $db);
$id = sql($node, "SELECT id FROM idemq.job_by_key('q', 'r')", $db);
is_sql($node, "SELECT * FROM idemq.result($id)", 'completed|{"a": 1}', 'result', $db);
is_state($node, "SELECT * FROM idemq.result(1)", 'IQ002', 'of no job', $db);
is_state($node, "SELECT * FROM idemq.result(NULL)", '22004', 'of NULL', $db);
sql($node, 'CREATE ROLE stranger; GRANT USAGE ON SCHEMA idemq TO stranger', $db);
is_state($node, "SET ROLE stranger; SELECT * FROM idemq.result($id)", 'IQ002', 'of a job that one may not know of', $db);
sql($node, "SELECT idemq.grant_queue('q', 'app', 'enqueue')", $db);
is_sql($node, "SET ROLE app; SELECT status FROM idemq.result($id)", 'completed', 'a producer may', $db);

$node->stop;
done_testing();
