# What a cluster must not let through: a map that leads to the wrong database, a role that chooses
# as whom it comes to the shards, a move that is killed between any two of its steps, and what a
# move must not leave behind: the users' sequences.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('shards', 'idemq.worker' => 'off', max_connections => 60, max_replication_slots => 10, max_wal_senders => 10);
$node->start;
if (sql($node, "SELECT count(*) FROM pg_available_extensions WHERE name = 'plproxy'") eq '0')
{
	$node->stop;
	plan skip_all => 'no plproxy';
}

# A space and a quoted value: as the manual has them.
sub place { return 'host=' . $node->host . ' port=' . $node->port . " dbname=$_[0] options='-c lock_timeout=30s'" }
sub literal { return "'" . ($_[0] =~ s/'/''/gr) . "'" }
sub rt { return sql($node, $_[0], 'router') }
sub is_rt { local $Test::Builder::Level = $Test::Builder::Level + 1; return is(rt($_[0]), $_[1], $_[2]) }
sub is_rt_state { local $Test::Builder::Level = $Test::Builder::Level + 1; return is_state($node, $_[0], $_[1], $_[2], 'router') }
sub set_place { return "SELECT cluster.set_shard_dsn($_[0], " . literal(place($_[1])) . ')' }

sql($node, "CREATE DATABASE $_") foreach 'router', 'blank';
sql($node, 'CREATE EXTENSION idemq', 'blank');
sql($node, "CREATE DATABASE $_ TEMPLATE blank") foreach 's0', 's1', 'other';
sql($node, "SELECT idemq.set_shard($_, 2)", "s$_") foreach 0, 1;
sql($node, 'SELECT idemq.set_shard(1, 4)', 'other');
rt('CREATE EXTENSION idemq_cluster CASCADE; SELECT cluster.init(2); CREATE USER MAPPING FOR CURRENT_USER SERVER idemq_cluster');

# ---- The map

rt(set_place($_, "s$_")) foreach 0, 1;
rt(q{SELECT count(*) FROM cluster.create_queue('q')});
my $map = rt('SELECT * FROM cluster.map()');
is_rt_state(set_place(@$_), '55000', "shard $_->[0] is not $_->[1]") foreach [ 1, 's0' ], [ 0, 's1' ], [ 1, 'other' ], [ 1, 'blank' ];
is_rt_state('SELECT cluster.metrics()\; ' . set_place(1, 's0'), '55000', 'also where there is a connection to the right one');
is_rt('SELECT * FROM cluster.map()', $map, 'the map is as it was');
is_rt('SELECT string_agg(is_shard::text, $$ $$ ORDER BY shard) FROM cluster.identities()', '0 1', 'and the way');
rt("SET client_min_messages = error; SELECT cluster.set_shard_dsn(1, 'host=/nonexistent dbname=x')");
is_rt('SELECT count(error) FROM cluster.identities()', 1, 'a place that cannot be asked is taken, for a server that is down now');
rt(set_place(1, 's1'));

# Another database behind the address, which the map knows nothing of: the shard refuses each call.
my ($of_0, $of_1) = map { rt("SELECT min(k) FROM (SELECT 'k' || i AS k FROM generate_series(1, 100) i) x WHERE cluster.shard_of_key(k, 2) = $_") } 0, 1;
foreach my $stranger ('s0', 'other', 'blank')
{
	sql($node, "ALTER DATABASE s1 RENAME TO away; ALTER DATABASE $stranger RENAME TO s1");
	is_rt_state("SELECT cluster.$_->[0]", '55000', "$stranger in the place of s1: $_->[1]")
	  foreach [ "enqueue('q', '1', key => '$of_1')", 'enqueue' ], [ "acquire('q', '$of_1')", 'acquire' ],
	  [ "cancel_by_key('q', '$of_1')", 'cancel_by_key' ], [ 'cancel((1::bigint << 47) + 1)', 'cancel' ], [ 'why((1::bigint << 47) + 1)', 'why' ];
	# Planning asks for the queue, and raises IQ005 where there is none.
	is_rt_state("SELECT cluster.job_by_key('q', '$of_1')", '55000', "$stranger in the place of s1: job_by_key") if $stranger eq 's0';
	is_rt("SELECT left(error, 6), ord FROM cluster.enqueue_many('q', '{1,2}', keys => '{$of_1,$of_0}') WHERE error IS NOT NULL", '55000:|1',
		"$stranger in the place of s1: enqueue_many") unless $stranger eq 's0';
	is_rt(q{SELECT string_agg(DISTINCT detail, ',') FROM cluster.check() WHERE shard = 1 AND severity = 'error'},
		'database s1 is not shard 1: correct its address, or what leads there', 'the audit says so') unless $stranger eq 'other';
	is_sql($node, 'SELECT count(*) FROM idemq.jobs', 0, 'and it has no job of it', 's1');
	sql($node, "ALTER DATABASE s1 RENAME TO $stranger; ALTER DATABASE away RENAME TO s1");
}
is_rt("SELECT outcome FROM cluster.enqueue('q', '1', key => '$of_1')", 'accepted', 'the right one takes it');
is_rt("SELECT count(*) FROM cluster.check()", 0, 'and the audit has nothing to say');
rt("SELECT cluster.cancel_by_key('q', k) FROM unnest('{$of_0,$of_1}'::text[]) k");

# ---- NULL, and what is too much

is_rt_state("SELECT cluster.$_->[0]", $_->[1], $_->[0])
  foreach [ 'enqueue_many($$q$$, NULL)', '22004' ], [ 'enqueue_many($$q$$, NULL, keys => $${a}$$)', '22004' ], [ 'grant_use(NULL)', '22004' ],
  [ 'revoke_use(NULL)', '22004' ], [ 'shard_of(9223372036854775807)', '22023' ], [ 'shard_of_key($$a$$, 3)', '22023' ],
  [ 'shard_of_key($$a$$, 0)', '22023' ], [ 'shard_of_key($$a$$, 2147483647)', '22023' ], [ 'set_shard_state(NULL, $$up$$)', '22023' ],
  [ 'set_shard_state(0, NULL)', '23502' ], [ 'acquire($$q$$, NULL)', '22004' ],
  [ 'enqueue(NULL, $$1$$)', '22004' ], [ 'enqueue($$q$$, NULL)', '22004' ];

# ---- Rights: as whom a role comes is the owner's to say

rt('CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; SELECT cluster.grant_use($$app$$); SELECT cluster.grant_use($$other$$)');
rt(q{CREATE USER MAPPING FOR app SERVER idemq_cluster OPTIONS (user 'app')});
rt(q{SELECT count(*) FROM cluster.grant_queue('q', 'app', 'enqueue')});
my $superuser = rt('SELECT current_user');
sub as { return "SET SESSION AUTHORIZATION $_[0]; $_[1]" }
is_rt_state(as('app', "ALTER USER MAPPING FOR app SERVER idemq_cluster OPTIONS (SET user '$superuser')"), '42501', 'a role does not change its mapping');
is_rt_state(as('other', "CREATE USER MAPPING FOR other SERVER idemq_cluster OPTIONS (user '$superuser')"), '42501', 'nor makes one');
is_rt(as('app', 'SELECT DISTINCT role FROM cluster.identities()'), 'app', 'it comes as itself');
is_rt_state('CREATE USER MAPPING FOR PUBLIC SERVER idemq_cluster', '42501', 'there is none for all');
rt('CREATE SERVER idemqxcluster FOREIGN DATA WRAPPER plproxy OPTIONS (p0 $$host=a$$); GRANT USAGE ON FOREIGN SERVER idemqxcluster TO app');
is_rt(as('app', 'CREATE USER MAPPING FOR app SERVER idemqxcluster; SELECT 1'), 1, 'other servers are not ours');

# ---- A move that is killed

my $dir = "$PostgreSQL::Test::Utils::tmp_check/killing";
mkdir $dir;
append_to_file("$dir/psql", <<'END');
#!/bin/bash
# psql that takes the whole process group with it when it has run what KILL_AFTER says.
sql=$(cat)
PATH=${PATH#*:}
psql "$@" <<<"$sql"
status=$?
[[ -z ${KILL_AFTER:-} || $sql != *"$KILL_AFTER"* ]] || kill -9 0
exit $status
END
chmod 0755, "$dir/psql";
sql($node, 'CREATE TABLE mine (n serial PRIMARY KEY, "it\'s" int GENERATED ALWAYS AS IDENTITY)', 's1');
sql($node, 'INSERT INTO mine SELECT FROM generate_series(1, 100)', 's1');
my $key = rt(q{SELECT i::text FROM generate_series(1, 100) i WHERE cluster.shard_of_key(i::text) = 1 LIMIT 1});
my @move = ('setsid', '--wait', "$ENV{IDEMQ_SOURCE}/cluster/bin/move-shard", '--router', $node->connstr('router'), '--shard', 1, '--to', place('moved'));

sub move
{
	my ($kill_after, @more) = @_;
	my ($stdout, $stderr) = ('', '');
	local $ENV{PATH} = "$dir:$ENV{PATH}";
	local $ENV{KILL_AFTER} = $kill_after;

	IPC::Run::run([ @move, @more ], '<', \undef, '>', \$stdout, '2>', \$stderr, IPC::Run::timeout(180));
	return ($? >> 8 || $? & 127, $stdout, $stderr);
}

my $done = 0;
foreach my $step ('CREATE SUBSCRIPTION', 'lock_timeout', 'DISABLE', 'idemq.take_over()')
{
	sql($node, 'CREATE DATABASE moved');
	my ($status, $out, $err) = move($step);
	like($status, qr/^(9|137)$/, "killed after $step");
	is($out, '', 'not moved');
	($status, $out, $err) = move('', '--give-up');
	is($status, 0, 'given up') or diag $err;
	is_rt("SELECT state FROM cluster.map() WHERE shard = 1", 'up', 'the map');
	is_rt("SELECT outcome FROM cluster.enqueue('q', '1', key => '$key', on_duplicate => 'ignore')", $done++ ? 'duplicate' : 'accepted', 'the old database goes on');
	is(sql($node, 'SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_subscription)', 's1'), '0|0|0', 'nothing is left behind');
	is_sql($node, q{SELECT invariant FROM idemq.check() WHERE invariant <> 'schedules.driver'}, '', 'check', 's1');
	sql($node, 'DROP DATABASE moved');
}

# ---- One that is not

sql($node, 'CREATE DATABASE moved');
my ($status, $out, $err) = move('');
is($status, 0, 'moved') or diag $err;
is_sql($node, 'INSERT INTO mine DEFAULT VALUES RETURNING n, "it\'s"', '101|101', 'sequences go on', 'moved');
is_rt("SELECT outcome FROM cluster.enqueue('q', '1', key => '$key', on_duplicate => 'ignore')", 'duplicate', 'the key is there');
($status, $out, $err) = move('', '--give-up');
is($status, 1, 'what has moved is not given up');
like($err, qr/it has moved there/, 'and it says so');
is_rt("SELECT outcome FROM cluster.enqueue('q', '1', key => '$key', on_duplicate => 'ignore')", 'duplicate', 'the new place goes on');
is_state($node, "SELECT idemq.enqueue('q', '1')", '55000', 'the old one does not', 's1');

# A fenced database: what writes is refused, and what would say of a job, or of a limit, how it is now.
is_state($node, "SELECT idemq.$_", '55000', "fenced: $_", 's1')
  foreach 'enqueue_many($$q$$, $${1}$$)', 'claim($$q$$)', 'acquire($$q$$, $$k$$, $$1$$)', 'heartbeat(1, 1)', 'try_commit(1, 1)', 'fail(1, 1)', 'release(1, 1)',
  'checkpoint(1, 1, $$1$$)', 'cancel(1)', 'retry(1)', 'create_queue($$r$$)', 'alter_queue($$q$$)', 'pause($$q$$)', 'drop_queue($$q$$)', 'take_over()',
  'validate(1, 1)', 'result(1)', 'admit($$b$$, 1, $$1 s$$)';
is_state($node, 'CALL idemq.wait_result(1, $$1 s$$)', '55000', 'fenced: wait_result', 's1');

$node->stop;
done_testing();
