# Connections that a proxy silences at each point of a job's life: workers of Node and idemq-work go on over new connections,
# no effect happens twice, and SIGTERM ends each within its grace and five seconds.
# slow: waits for limits of silent connections in real time
# asserts times
# takes long
# at least 63 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use JSON::PP;
use NodeClient;
use NodeWorkers;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Runner ();
use SilentProxy;
use Test::More;
use Time::HiRes ();

plan skip_all => 'no node-pg' unless $ENV{IDEMQ_NODE_MODULES};

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('silent', 'idemq.worker' => 'on', max_connections => 100);
my $app = folder('app', glob "$FindBin::RealBin/node_*.mjs");
my $grace = 3;

workers_of($node, $app);
# Limits come from the lease.
sql($node, "CREATE TABLE effects (id bigint, token bigint); SELECT idemq.alter_queue('q', lease => '15 s', retry_base => '100 ms')");

sub proxy { return silent_proxy($node) }

# A worker by way of a proxy: { pid, end }; end waits for its end, and answers its status and what it said.
sub begin
{
	my ($kind, $port) = @_;

	if ($kind =~ /^node_(\w+)/)
	{
		my $worker = worker($1, { grace => $grace }, { primary(), host => '127.0.0.1', port => $port });
		return { pid => $worker->{pid}, end => sub { return ended($worker) } };
	}
	my $dsn = "host=127.0.0.1 port=$port dbname=postgres";
	my $program = 'echo 1 >>$T/began.$IDEMQ_ID; [ -z "$GATE" ] || while [ ! -e "$T/$GATE" ]; do sleep 0.1; done; echo "$IDEMQ_ID $IDEMQ_TOKEN" >>$T/effects';
	local $ENV{PGCONNECT_TIMEOUT} = 5;
	local $ENV{T} = $tmp;
	my $runner = Runner::start_runner($dsn, '--grace', "${grace}s", '--', 'sh', '-c', $program);
	return { pid => $runner->{pid}, end => sub { return join ' ', Runner::ended($runner) } };
}

# SIGTERM: the end comes in time. The seconds more are for a busy machine.
sub stops_in_time
{
	my ($worker, $name) = @_;
	my $began = Time::HiRes::time();

	kill 'TERM', $worker->{pid};
	my $said = $worker->{end}->();
	my $seconds = Time::HiRes::time() - $began;
	cmp_ok($seconds, '<', $grace + 5 + 2, sprintf '%s: SIGTERM ends it in time: %.1f s', $name, $seconds) or diag $said;
	unlike($said, qr/^signal/, "$name: by itself");
	return;
}

my %commit = (node_run => 'idemq_commit', node_outside => 'idemq_commit_many', work => 'try_commit|commit_many|idemq_work_');
foreach my $kind ('node_run', 'node_outside', 'work')
{
	# It sleeps, and all its connections are silent.
	my $proxy = proxy();
	my $worker = begin($kind, $proxy->{port});
	wait_until($node, 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep());
	$proxy->{arm}->('all');
	$proxy->{silent}->();
	stops_in_time($worker, "$kind, asleep");
	$proxy->{run}->kill_kill;

	# The same, and a job comes.
	sql($node, 'SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE ' . asleep());
	$proxy = proxy();
	$worker = begin($kind, $proxy->{port});
	wait_until($node, 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep());
	$proxy->{arm}->('all');
	$proxy->{silent}->();
	my $id = enqueue('{}');
	is_soon($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $id", "$kind, asleep: work goes on");
	stops_in_time($worker, "$kind, asleep, with a job");
	$proxy->{run}->kill_kill;

	foreach my $point ("request $commit{$kind}", "answer $commit{$kind}", 'request heartbeat', $kind eq 'node_run' ? ('request INSERT INTO effects', 'answer INSERT INTO effects', 'request idemq_assert') : ())
	{
		my $name = "$kind, $point";
		my $gate = $point =~ /heartbeat/ ? "beaten.$kind" : '';
		local $ENV{GATE} = $gate;
		$proxy = proxy();
		$worker = begin($kind, $proxy->{port});
		wait_until($node, 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep());
		$proxy->{arm}->($point);
		$id = enqueue($gate ? qq({"gate": "$gate"}) : '{}');
		$proxy->{silent}->();
		if ($gate)
		{
			# The heartbeat that was swallowed is sent again over another connection, before the lease is over.
			wait_until($node, "SELECT clock_timestamp() > claimed_at + '17 s' FROM idemq.jobs WHERE id = $id");
			is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'running|1', "$name: the lease is kept");
			open_gate($gate);
		}
		is_soon($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $id", "$name: the job is done");
		stops_in_time($worker, $name);
		$proxy->{run}->kill_kill;
	}

	# A job is in hand when everything falls silent, and then it is told to end.
	$proxy = proxy();
	local $ENV{GATE} = "never";
	$worker = begin($kind, $proxy->{port});
	$id = enqueue('{"gate": "never"}');
	until_file("began.$id");
	$proxy->{arm}->('all');
	$proxy->{silent}->();
	stops_in_time($worker, "$kind, with a job in hand");
	# By the worker, although the transaction of its silent session held the job.
	is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $id", 'pending', "$kind, with a job in hand: which is given back");
	$proxy->{run}->kill_kill;
	sql($node, "SELECT idemq.cancel($id)");
}
effects_are_once();

is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
$node->stop;
done_testing();
