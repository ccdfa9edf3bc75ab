# idemq-work: what takes real time.  A program that is ended at job_timeout, heartbeats that keep a lease for longer
# than it is, a failover.
# slow: waits for seconds of real time, and has a second server
# asserts times
# at least 18 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Runner;
use Test::More;

my $node = new_server('work_slow', 'idemq.worker' => 'on');
our $dsn = $node->connstr('postgres');
my $user = getpwuid($>);

# The program is the text of a shell script.
sub runner { my ($script, @options) = @_; return start_runner($dsn, @options, '--', 'sh', '-c', $script) }
sub enqueue { return sql($node, "SELECT id FROM idemq.enqueue('q', '$_[0]')") }

# The time, and the lease.
{
	my $id = enqueue('1');
	sql($node, "SELECT idemq.alter_queue('q', job_timeout => '3 s')");
	my ($status, $said) = ended(runner('while :; do sleep 0.1; done', '--once', '--timeout', '1h'));
	is($status, 0, 'the runner ends');
	# On a busy machine the server may be first.
	like($said, qr/(retrying|the lease was lost \(.*\)): stopped after 2.4 s \(job_timeout\)$|the lease was lost, so the program is being stopped$/, 'job_timeout of the queue');
	is_soon($node, "SELECT status = 'retrying' AND last_error IN ('stopped after 2.4 s (job_timeout)', 'job_timeout reached')
		FROM idemq.jobs WHERE id = $id", 'which the row says as well');
	sql($node, "SELECT idemq.cancel($id), idemq.alter_queue('q', job_timeout => '0')");

	$id = enqueue('1');
	my $runner = runner('echo $$ >$T/beats; while [ ! -e $T/beaten ]; do sleep 0.1; done', '--once', '--lease', '6s');
	until_file('beats');
	wait_until($node, "SELECT clock_timestamp() > claimed_at + '7 s' FROM idemq.jobs WHERE id = $id");
	open_gate('beaten');
	($status, $said) = ended($runner);
	is($said, '', 'heartbeats keep a lease');
	is_job($node, $id, 'completed|1||', 'for longer than it is');

	$id = enqueue('1');
	$runner = runner('echo $$ >$T/lost; sleep 1000 & wait', '--once', '--lease', '6s');
	my $pid = until_file('lost') + 0;
	is_sql($node, "SELECT idemq.cancel($id)", 'cancelled', 'a job is cancelled');
	($status, $said) = ended($runner);
	like($said, qr/^idemq-work: q $id: the job (?:was|is being) cancelled, so the program is being stopped$/m, 'a heartbeat finds out, and its runner says so');
	ok(!runs($pid), 'and its program is ended');
}
# As the first process of a container, which inherits what programs leave behind.
SKIP: {
	my @alone = qw(unshare --user --map-root-user --pid --fork --kill-child);

	skip 'no namespaces here', 5 unless run_log([ @alone, 'true' ]);
	my $run = IPC::Run::start([ @alone, 'idemq-work', '-d', "$dsn user=$user", '-q', 'q', '-j', '4', '--', 'sh', '-c', 'setsid true & sleep 1000 & exit 0' ], '<', \undef, '>&', "$PostgreSQL::Test::Utils::tmp_check/first.log");
	my ($outer) = $run->{KIDS}[0]{PID};
	my $children = sub { return map { split ' ', slurp_file($_) } grep { -e } glob "/proc/$_[0]/task/*/children" };
	until_true('it has begun', sub { my ($first) = $children->($outer); $first && $children->($first) });
	my ($first) = $children->($outer);
	like(slurp_file("/proc/$first/status"), qr/^NSpid:.*\t1$/m, 'the runner has the number 1');
	sql($node, "SELECT count(idemq.enqueue('q', '{}', key => 'orphan ' || n)) FROM generate_series(1, 20) n");
	is_soon($node, "SELECT count(*) = 20 FROM idemq.jobs WHERE key LIKE 'orphan %' AND status = 'completed'", 'twenty jobs leave processes behind');
	until_true('no zombie stays, nor any other child but the runner', sub { 1 == (() = $children->($first)) });
	pass('the first process has no child but the runner');
	kill 'TERM', $first;
	$run->finish;
	is($run->full_result(0) >> 8, 0, 'and ends when it is told to, with the status of the runner');
	is(slurp_file("$PostgreSQL::Test::Utils::tmp_check/first.log"), '', 'in silence');
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');

# A failover, with both servers in the DSN.
{
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$node->backup('base');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	local $dsn = 'host=' . $standby->host . ',' . $node->host . ' port=' . $standby->port . ',' . $node->port . ' dbname=postgres';
	my $id = enqueue('6');
	my $runner = runner('echo $$ >$T/over.$IDEMQ_ID; while [ ! -e $T/failed_over ]; do sleep 0.1; done');
	my $pid = until_file("over.$id") + 0;
	$node->wait_for_catchup($standby);
	$node->stop('immediate');
	until_said($runner, qr/^idemq-work: server: /m);
	$standby->promote;
	until_said($runner, qr/^idemq-work: server: reconnected/m);
	ok(runs($pid), 'a program runs on during a failover');
	open_gate('failed_over');
	is_soon($standby, "SELECT status = 'completed' AND attempt = 1 FROM idemq.jobs WHERE id = $id", 'and is committed on the new primary');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
	is_sql($standby, 'SELECT * FROM idemq.check()', '', 'every invariant holds there');
	$standby->stop;
}
done_testing();
