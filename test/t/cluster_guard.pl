# What a cluster must not let through: a map that leads to the wrong database, a role that chooses
# as whom it comes to the shards, a move that is killed between any two of its steps, and what a
# move must not leave behind: the users' sequences.  (After its other steps: cluster_guard_slow.pl.)
# takes long
# at least 84 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use Shards;
use Test::More;

my $node = shards('shards');

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
my ($of_0, $of_1) = map { key_of($_) } 0, 1;
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
		'database s1 is not shard 1: correct its address in the map, or fix the DNS entry or the pooler\'s configuration', 'the audit says so') unless $stranger eq 'other';
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

# A move that is killed between the copy and the cut leaves the most behind.
my $key = movable();
is_killed_after('DISABLE');

# ---- One that is not

sql($node, 'CREATE DATABASE moved');
my ($status, $out, $err) = move('');
is($status, 0, 'moved') or diag $err;
is_sql($node, 'INSERT INTO mine DEFAULT VALUES RETURNING n, "it\'s"', '101|101', 'sequences go on', 'moved');
is_rt("SELECT outcome FROM cluster.enqueue('q', '1', key => '$key', on_duplicate => 'ignore')", 'duplicate', 'the key is there');
($status, $out, $err) = move('', '--give-up');
is($status, 1, 'what has moved is not given up');
like($err, qr/the shard has moved/, 'and it says so');
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
