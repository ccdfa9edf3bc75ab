# Workers over the shards of a cluster whose connections to the router and to a shard fall silent, as a firewall has it: work goes on over
# new connections, a shard that moves meanwhile is found, no effect happens twice, and SIGTERM ends each within its grace and five seconds.
# The router is a database that has a map and nothing else, since that is all that workers ask of it.
# slow: waits for limits of silent connections in real time
# asserts times
# takes long
# at least 37 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use JSON::PP;
use NodeClient;
use PostgreSQL::Test::Utils;
use SilentProxy;
use Test::More;
use Time::HiRes ();

plan skip_all => 'no node-pg' unless $ENV{IDEMQ_NODE_MODULES};

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $user = getpwuid($>);
my $node = new_server('shards', 'idemq.worker' => 'on', max_connections => 100);
my $app = folder('app', "$FindBin::RealBin/node_shards.mjs");
my ($grace, $jobs, $version) = (3, 0, 0);
my $asleep = 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep();

sql($node, "CREATE TABLE effects (key text, at text); SELECT idemq.alter_queue('q', lease => '15 s', retry_base => '100 ms'); CREATE DATABASE router");
sql($node, 'CREATE SCHEMA cluster; CREATE TABLE map (shard int, dsn text, state text, version bigint);
	CREATE FUNCTION cluster.map() RETURNS SETOF map LANGUAGE sql AS $$SELECT * FROM map$$', 'router');

# The map says that the shard is behind this proxy.
sub move_to
{
	my ($proxy) = @_;

	$version++;
	sql($node, "TRUNCATE map; INSERT INTO map VALUES (0, 'host=127.0.0.1 port=$proxy->{port} dbname=postgres', 'up', $version); NOTIFY cluster_map", 'router');
	return;
}

# A worker of this kind, whose router is behind a proxy: { run, err }.
my $files = 0;
sub begin
{
	my ($kind, $router) = @_;
	my $err = "$tmp/worker." . ++$files;
	my $dsn = "host=127.0.0.1 port=$router->{port} dbname=router user=$user";
	my $program = 'echo "$IDEMQ_KEY $IDEMQ_ATTEMPT" >>$T/began; [ "$(cat)" = "{}" ] || while [ ! -e "$T/never" ]; do sleep 0.1; done; echo "$IDEMQ_KEY" >>$T/effects';
	my %command = (
		node => [ 'node', "$app/node_shards.mjs", 'run' ], node_outside => [ 'node', "$app/node_shards.mjs", 'outside' ],
		python => [ '/usr/bin/python3', "$FindBin::RealBin/shard_worker.py", 'sync' ], asyncio => [ '/usr/bin/python3', "$FindBin::RealBin/shard_worker.py", 'outside_async' ],
		work => [ 'idemq-work', "--cluster=$dsn", '-q', 'q', '--grace', "${grace}s", '--', 'sh', '-c', $program ]);
	local @ENV{qw(T PYTHONPATH PYTHONDONTWRITEBYTECODE ROUTER OPTIONS CONNECTION)} = ($tmp, "$ENV{IDEMQ_SOURCE}/clients/python", 1, $dsn, qq({"grace": $grace}),
		encode_json({ host => '127.0.0.1', port => $router->{port} + 0, user => $user, database => 'router' }));

	return { err => $err, run => IPC::Run::start($command{$kind}, '<', \undef, '>&', $err, IPC::Run::timeout(600)) };
}

sub enqueue { my ($payload) = @_; $jobs++; return sql($node, "SELECT id FROM idemq.enqueue('q', '$payload', key => 'job $jobs')") }

# SIGTERM: the end comes in time. The seconds more are for a busy machine.
sub stops_in_time
{
	my ($worker, $name) = @_;
	my $began = Time::HiRes::time();

	kill 'TERM', $worker->{run}{KIDS}[0]{PID};
	$worker->{run}->finish;
	my $seconds = Time::HiRes::time() - $began;
	cmp_ok($seconds, '<', $grace + 5 + 2, sprintf '%s: SIGTERM ends it in time: %.1f s', $name, $seconds) or diag slurp_file($worker->{err});
	is($worker->{run}->full_result(0) & 127, 0, "$name: by itself");
	return;
}

foreach my $kind (qw(node node_outside python asyncio work))
{
	# It sleeps when all its connections fall silent, and a job comes.
	my ($router, $shard) = (silent_proxy($node), silent_proxy($node));
	move_to($shard);
	my $worker = begin($kind, $router);
	wait_until($node, $asleep);
	$_->{arm}->('all') foreach $router, $shard;
	$_->{silent}->() foreach $router, $shard;
	my $id = enqueue('{}');
	is_soon($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $id", "$kind: work goes on");

	# The shard moves, which nobody hears: the map is read again.
	my $moved = silent_proxy($node);
	$_->{arm}->('all') foreach $router, $shard;
	$_->{silent}->() foreach $router, $shard;
	move_to($moved);
	$shard->{run}->kill_kill;
	$id = enqueue('{}');
	is_soon($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $id", "$kind: a shard that has moved is found") or diag slurp_file($worker->{err});
	stops_in_time($worker, "$kind, asleep");

	# A job is in hand when everything falls silent, and then it is told to end.
	sql($node, 'SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE ' . asleep());
	$worker = begin($kind, $router);
	$id = enqueue('{"gate": "never"}');
	eval { until_true('it has begun', sub { -e "$tmp/began" && slurp_file("$tmp/began") =~ /^job $jobs 1$/m }); 1 }
		or die $@ . slurp_file($worker->{err}) . slurp_file("$tmp/began") . sql($node, "SELECT j FROM idemq.jobs j WHERE id = $id");
	$_->{arm}->('all') foreach $router, $moved;
	$_->{silent}->() foreach $router, $moved;
	stops_in_time($worker, "$kind, with a job in hand");
	# By the worker, or when its lease is over: a second or two may be too short to find out that a connection is silent.
	is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $id", "$kind: which comes back");
	sql($node, "SELECT idemq.cancel($id)");
	$_->{run}->kill_kill foreach $router, $moved;
}
is_sql($node, 'SELECT count(*), count(DISTINCT key) FROM effects', '4|4', 'every effect is there once');
my @outside = split /\n/, slurp_file("$tmp/effects");
my %times = map { $_ => 1 } @outside;
is(scalar(@outside) . ' ' . keys %times, '6 6', 'and outside, no attempt had its effect twice');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
$node->stop;
done_testing();
