# A router and two shards on one server, and a move of the second that can be killed, for cluster_guard.pl and
# cluster_guard_slow.pl.
package Shards;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(shards place rt is_rt is_rt_state set_place key_of movable move is_killed_after);

my ($node, $dir, $key);

# A space and a quoted value: as the manual has them.
sub place { return 'host=' . $node->host . ' port=' . $node->port . " dbname=$_[0] options='-c lock_timeout=5min'" }
sub literal { return "'" . ($_[0] =~ s/'/''/gr) . "'" }
sub rt { return sql($node, $_[0], 'router') }
sub is_rt { local $Test::Builder::Level = $Test::Builder::Level + 1; return is(rt($_[0]), $_[1], $_[2]) }
sub is_rt_state { local $Test::Builder::Level = $Test::Builder::Level + 1; return is_state($node, $_[0], $_[1], $_[2], 'router') }
sub set_place { return "SELECT cluster.set_shard_dsn($_[0], " . literal(place($_[1])) . ')' }

# Starts the server, and makes its databases; skips the test where there is no PL/Proxy.
sub shards
{
	my ($name) = @_;

	$node = new_node($name, 'idemq.worker' => 'off', max_connections => 60, max_replication_slots => 10, max_wal_senders => 10);
	$node->start;
	if (sql($node, "SELECT count(*) FROM pg_available_extensions WHERE name = 'plproxy'") eq '0')
	{
		$node->stop;
		plan skip_all => 'no plproxy';
	}
	sql($node, "CREATE DATABASE $_") foreach 'router', 'blank';
	sql($node, 'CREATE EXTENSION idemq', 'blank');
	sql($node, "CREATE DATABASE $_ TEMPLATE blank") foreach 's0', 's1', 'other';
	sql($node, "SELECT idemq.set_shard($_, 2)", "s$_") foreach 0, 1;
	sql($node, 'SELECT idemq.set_shard(1, 4)', 'other');
	rt('CREATE EXTENSION idemq_cluster CASCADE; SELECT cluster.init(2); CREATE USER MAPPING FOR CURRENT_USER SERVER idemq_cluster');
	return $node;
}

# A key that the map leads to a shard.
sub key_of { return rt("SELECT min(k) FROM (SELECT 'k' || i AS k FROM generate_series(1, 100) i) x WHERE cluster.shard_of_key(k, 2) = $_[0]") }

# Makes shard 1 one with a table of its own, to be moved by a script that can be killed.
sub movable
{
	$dir = "$PostgreSQL::Test::Utils::tmp_check/killing";
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
	$key = rt(q{SELECT i::text FROM generate_series(1, 100) i WHERE cluster.shard_of_key(i::text) = 1 LIMIT 1});
	return $key;
}

# Moves it, with a psql that kills the script after a statement.
sub move
{
	my ($kill_after, @more) = @_;
	my ($stdout, $stderr) = ('', '');
	local $ENV{PATH} = "$dir:$ENV{PATH}";
	local $ENV{KILL_AFTER} = $kill_after;
	my @move = ('setsid', '--wait', "$ENV{IDEMQ_SOURCE}/cluster/bin/move-shard", '--router', $node->connstr('router'), '--shard', 1, '--to', place('moved'));

	IPC::Run::run([ @move, @more ], '<', \undef, '>', \$stdout, '2>', \$stderr, IPC::Run::timeout(180));
	return ($? >> 8 || $? & 127, $stdout, $stderr);
}

my $done = 0;

# Asserts that nothing comes of a move that is killed after a statement, and is given up.
sub is_killed_after
{
	my ($step) = @_;

	sql($node, 'CREATE DATABASE moved');
	my ($status, $out, $err) = move($step);
	like($status, qr/^(9|137)$/, "killed after $step");
	is($out, '', "killed after $step: not moved");
	($status, $out, $err) = move('', '--give-up');
	is($status, 0, "killed after $step: given up") or diag $err;
	is_rt("SELECT state FROM cluster.map() WHERE shard = 1", 'up', "killed after $step: the map");
	is_rt("SELECT outcome FROM cluster.enqueue('q', '1', key => '$key', on_duplicate => 'ignore')", $done++ ? 'duplicate' : 'accepted', "killed after $step: the old database goes on");
	is(sql($node, 'SELECT (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_subscription)', 's1'), '0|0|0', "killed after $step: nothing is left behind");
	is_sql($node, q{SELECT invariant FROM idemq.check() WHERE invariant <> 'schedules.driver'}, '', "killed after $step: check", 's1');
	sql($node, 'DROP DATABASE moved');
	return;
}

1;
