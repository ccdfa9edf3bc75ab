# Settings and grants as sessions know them: on a standby and after its promotion, in
# another database, after DROP EXTENSION; roles; and what a change of one queue among many
# has the others read.  (What two sessions of one server see: specs/settings-seen.spec.)

# stops: before_commit
# at least 35 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('settings', autovacuum => 'off');
my $claim = "SELECT payload FROM idemq.claim('q')";

# How often a session has read idemq.queues: its statistics are looked at in one transaction.
my $reads = "sum(pg_stat_get_xact_numscans(c)) FROM unnest(ARRAY['idemq.queues', 'idemq.queues_pkey', 'idemq.queues_name_key']::regclass[]) c";

sub reads_of
{
	my ($session, $sql) = @_;
	my $out = $session->query_safe("BEGIN; SELECT $reads; SELECT $sql; SELECT $reads; COMMIT");
	my @lines = grep { /^\d*$/ } split /\n/, $out, -1;

	return ($lines[-1] || 0) - ($lines[0] || 0);
}

# ---- Among many

sql($node, "SELECT count(idemq.create_queue('many' || n)) FROM generate_series(1, 300) n");
my $one = session($node);
my $look = "idemq_internal.may_see(queue_id) FROM idemq.queues WHERE name = 'q'";
$one->query_safe("SELECT $look");
sql($node, "SELECT idemq.create_queue('more'); SELECT idemq.alter_queue('many1', lease => '1 min'); SELECT idemq.drop_queue('many2')");
my $quiet = reads_of($one, $look);
sql($node, "SELECT idemq.alter_queue('q', lease => '2 h')");
is(reads_of($one, $look) - $quiet, 1, 'one read for a change of this queue');
sql($node, "SELECT idemq.alter_queue('many3', lease => '1 min')");
is(reads_of($one, $look), $quiet, 'none for those of others');
cmp_ok(reads_of($one, "count(idemq.create_queue('new' || n)) FROM generate_series(1, 20) n"), '<=', 20 * 5, 'create_queue reads what it creates');

# All queues at once are two scans, however many there are.
my $all = reads_of($one, 'count(*) FROM idemq_internal.queue_metrics()');
cmp_ok($all, '<', 10, 'all queues are read together');
is(reads_of($one, 'count(*) FROM idemq_internal.queue_metrics()'), 0, 'and kept');

# ---- Roles

sql($node, "CREATE ROLE team; CREATE ROLE worker LOGIN; SELECT idemq.grant_queue('q', 'team', 'enqueue');
	SELECT idemq.enqueue('q', '1')");
my $worker = session($node, 'postgres', extra_params => [ '-U', 'worker' ]);
my $enqueue = "SELECT (idemq.enqueue('q', '1')).outcome";
$worker->query($enqueue);
like($worker->{stderr}, qr/permission denied for schema/, 'a role without privileges');
$worker->{stderr} = '';
sql($node, 'GRANT team TO worker');
is($worker->query($enqueue), 'accepted', 'a member from its GRANT on');
sql($node, 'REVOKE team FROM worker; GRANT USAGE ON SCHEMA idemq TO worker');
$worker->query($enqueue);
like($worker->{stderr}, qr/permission denied for queue "q"/, 'and not after its REVOKE');
$worker->{stderr} = '';
sql($node, "SELECT idemq.grant_queue('q', 'worker', 'claim')");
is($worker->query("SELECT count(*) FROM idemq.claim('q')"), '1', 'a grant of its own');
is(reads_of($one, $look), $quiet + 1, 'which has the queue read again');
sql($node, 'CREATE ROLE stranger; DROP ROLE stranger');
is(reads_of($one, $look), $quiet, 'roles that change have nothing read');
leave($worker);
sql($node, "SELECT idemq.revoke_queue('q', 'worker', 'claim'); SELECT idemq.revoke_queue('q', 'team', 'enqueue');
	DROP OWNED BY worker; DROP ROLE worker; DROP ROLE team");

# ---- A trigger that somebody has disabled: check() has the statement that mends it

sql($node, "CREATE ROLE guest; SELECT idemq.grant_queue('more', 'guest', 'enqueue'); CREATE VIEW broken AS SELECT detail FROM idemq.check() WHERE invariant = 'triggers'");
my $guest = session($node);
$guest->query_safe('SET ROLE guest');
my %disabled = (
	# What changes it; what a session asks; its answers before and after.
	queues => [ sub { sql($node, "SELECT idemq.alter_queue('q', max_attempts => $_[0] + 8)") }, "SELECT FROM idemq.enqueue('q', '1'); SELECT max_attempts FROM idemq.jobs ORDER BY id DESC LIMIT 1", 8, 9 ],
	queue_grants => [ sub { sql($node, 'SELECT idemq.' . ($_[0] ? 'grant' : 'revoke') . "_queue('q', 'guest', 'claim')") }, "SELECT 'claim' = ANY (privileges) FROM idemq.queue_privileges WHERE queue = 'q'", '', 't' ]);
foreach my $table (sort keys %disabled)
{
	my ($change, $seen, $old, $new) = @{ $disabled{$table} };
	my $session = $table eq 'queues' ? $one : $guest;
	my $whole = $table eq 'queues' ? 'idemq.queues' : 'idemq_internal.queue_grants';

	$change->(0);
	is($session->query($seen), $old, "$table: before");
	sql($node, "ALTER TABLE $whole DISABLE TRIGGER idemq_settings_changed");
	is($session->query($seen), $old, "$table: the trigger is disabled");
	$change->(1);
	is($session->query($seen), $old, "$table: a change is not seen");
	my $statement = sql($node, "SELECT split_part(detail, ': ', 2) FROM broken");
	like($statement, qr/^ALTER TABLE $whole ENABLE ALWAYS TRIGGER \w+$/, "$table: check() says what to do");
	sql($node, $statement);
	is($session->query($seen), $new, "$table: and then it is seen");
	is_sql($node, 'SELECT count(*) FROM broken', 0, "$table: mended");
}
leave($guest);
sql($node, "DROP VIEW broken; SELECT idemq.revoke_queue('more', 'guest', 'enqueue'); SELECT idemq.revoke_queue('q', 'guest', 'claim'); DROP ROLE guest");

# ---- A change whose commit is on its way: who reads the queue now reads it again afterwards

{
	my $changer = session($node);
	my $stop = stop_at($changer->{backend}, 'before_commit');
	my $ask = $disabled{queues}[1];

	$changer->query_until(qr/sent/, "\\echo sent\nSELECT idemq.alter_queue('q', max_attempts => 12);\n");
	$stop->();
	is($one->query($ask), 9, 'not committed');
	$stop->();
	$changer->query('SELECT 1');
	is($one->query($ask), 12, 'committed');
	leave($changer);
}

# ---- Another database: queues of the same id and name

$node->safe_psql('postgres', 'CREATE DATABASE other');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q'); SELECT idemq.enqueue('q', '\"other\"')", 'other');
my $other = session($node, 'other');
is($other->query_safe("SELECT count(*) FROM idemq.why(1)"), '1', 'another database');
sql($node, "SELECT idemq.pause('q')");
is($other->query_safe($claim), '"other"', 'the queue of another database is not paused');
is_sql($node, $claim, '', 'this one is');
sql($node, "SELECT idemq.resume('q')");

# ---- The extension anew, under the eyes of a session

$other->query_safe("SELECT idemq.alter_queue('q', max_attempts => 2)");
sql($node, "DROP EXTENSION idemq CASCADE; CREATE EXTENSION idemq; SELECT idemq.create_queue('q', max_attempts => 5); SELECT idemq.create_queue('r')", 'other');
$other->query($enqueue);
$other->query($enqueue);
is($other->query("SELECT DISTINCT max_attempts FROM idemq.jobs"), '5', 'DROP and CREATE EXTENSION: the new queue of the same id');
leave($other);

# ---- A standby, and its promotion

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('settings_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my $reader = session($standby);
my $why = "SELECT idemq.why(min(id)) FROM idemq.jobs WHERE status = 'pending'";
caught_up($node, $standby);
unlike($reader->query_safe($why), qr/paused/, 'standby: not paused');
sql($node, "SELECT idemq.pause('q')");
caught_up($node, $standby);
like($reader->query_safe($why), qr/paused/, 'standby: a change is seen once it is replayed');
sql($node, "SELECT idemq.resume('q')");
caught_up($node, $standby);
unlike($reader->query_safe($why), qr/paused/, 'and the next');
sql($node, "SELECT idemq.pause('q')");
caught_up($node, $standby);
$standby->promote;
wait_until($standby, 'SELECT NOT pg_is_in_recovery()');
like($reader->query_safe($why), qr/paused/, 'promoted: what was replayed and not looked at');
sql($standby, "SELECT idemq.resume('q')");
unlike($reader->query_safe($why), qr/paused/, 'and changes of its own, in a session from before');
leave($reader);
$standby->stop;

leave($one);
# The library as it ships, without stop points.
shipped($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$node->stop;
done_testing();
