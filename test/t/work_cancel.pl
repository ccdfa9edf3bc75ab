# idemq-work is told at once that a job is cancelled or taken back.  Leases last for an hour, so no heartbeat is due.
#
# at least 42 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Runner;
use Test::More;

my $node = new_server('work_cancel', 'idemq.worker' => 'on');
my $dsn = $node->connstr('postgres') . ' application_name=idemq-work';
my $listens = 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep();
my $program = 'echo $$ >$T/$IDEMQ_KEY; sleep 1000 & wait';
my $jobs = 0;

sql($node, "SELECT idemq.alter_queue('q', lease => '1 h', retry_jitter => 0)");

# Enqueues a job, and returns its id and the process id of its program once that runs.
sub begun
{
	my $key = 'job' . ++$jobs;
	my ($id) = sql($node, "SELECT id FROM idemq.enqueue('q', '1', key => '$key')");

	return ($id, until_file($key) + 0);
}

foreach my $slots (1, 2)
{
	my $runner = start_runner($dsn, '-j', $slots, '--', 'sh', '-c', $program);

	foreach my $end ('cancel', 'revoke_lease')
	{
		my ($id, $pid) = begun();

		sql($node, "BEGIN; SELECT idemq.$end($id); SELECT idemq.cancel($id); COMMIT");
		until_said($runner, qr/^idemq-work: q $id: .*, so the program is being stopped$/m);
		is_soon($node, "SELECT count(*) = 0 FROM idemq.running_jobs", "$slots slots, $end: the job is no longer running");
		ok(eval { until_true("the end of $pid", sub { !runs($pid) }); 1 }, 'and the program has ended');
	}

	# If the cancel is rolled back, the attempt does not count.
	my $other = session($node);
	my ($id, $pid) = begun();
	$other->query_safe("BEGIN; SELECT idemq.cancel($id)");
	until_said($runner, qr/^idemq-work: q $id: the job is being cancelled, so the program is being stopped$/m);
	sql($node, "SELECT idemq.pause('q')");
	until_said($runner, qr/^idemq-work: q $id: the lease was lost \(cancelled/m);
	ok(eval { until_true("the end of $pid", sub { !runs($pid) }); 1 }, 'a cancel that is still open ends the program');
	$other->query_safe('ROLLBACK');
	is_soon($node, "SELECT status = 'pending' AND attempt = 0 FROM idemq.jobs WHERE id = $id", 'if the cancel is rolled back, the job is released');
	is_sql($node, "SELECT string_agg(outcome, ' ') FROM idemq.attempts WHERE job_id = $id", 'released', 'and the attempt has not failed');
	leave($other);
	sql($node, "SELECT idemq.cancel($id), idemq.resume('q')");
	kill 'TERM', $runner->{pid};
	my ($status) = ended($runner);
	is($status, 0, 'the runner ends');
}

# A program that has ended its own attempt runs on, and nothing is said about it, even if the cancel of another job makes the runner
# send heartbeats for all its jobs.
my %own = (
	commit => "SELECT idemq.commit(:id, :token)",
	fail => "SELECT idemq.fail(:id, :token, 'its own', retry_in => '1 h')",
	release => "SELECT idemq.release(:id, :token, '1 h')",
	await_event => "SELECT idemq.await_event(:id, :token, 'paid', '1 h')");
my $ends_itself = q[if [ -n "$IDEMQ_KIND" ]; then echo "$IDEMQ_KIND" | psql -XAtq -d '] . $dsn . q[' -v id="$IDEMQ_ID" -v token="$IDEMQ_TOKEN" || exit 1; fi; ] .
  'echo $$ >$T/$IDEMQ_KEY; while [ ! -e $T/open_$IDEMQ_KEY ]; do sleep 0.05; done; exit 1';
{
	my $runner = start_runner($dsn, '-j', 2, '--', 'sh', '-c', $ends_itself);

	foreach my $name (sort keys %own)
	{
		my ($id) = sql($node, "SELECT id FROM idemq.enqueue('q', '1', key => '$name', kind => \$\$$own{$name}\$\$)");
		my $pid = until_file($name) + 0;
		my ($other) = begun();
		my $status = sql($node, "SELECT status FROM idemq.jobs WHERE id = $id");

		wait_until($node, $listens);
		sql($node, "SELECT idemq.cancel($other)");
		until_said($runner, qr/^idemq-work: q $other: .*, so the program is being stopped$/m);
		open_gate("open_job$jobs");
		is_soon($node, 'SELECT count(*) = 0 FROM idemq.running_jobs', "$name: the other job has ended");
		wait_until($node, $listens);
		ok(runs($pid), 'the program that has ended its own attempt still runs');
		open_gate("open_$name");
		until_true("the end of $pid", sub { !runs($pid) });
		is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $id", $status, "its job is still $status");
		unlike(slurp_file($runner->{err}), qr/q $id/, 'and nothing is said about it');
		sql($node, "SELECT idemq.cancel($id)");
	}
	kill 'TERM', $runner->{pid};
	my ($status) = ended($runner);
	is($status, 0, 'the runner ends');
}

# A runner that drains still listens, whether or not it has a free slot.
foreach my $slots (2, 3)
{
	my $runner = start_runner($dsn, '-j', $slots, '--', 'sh', '-c', $program);
	my ($id) = begun();
	my ($second) = begun();

	wait_until($node, $listens);
	kill 'TERM', $runner->{pid};
	until_said($runner, qr/stopping: 2 programs have 30 s to finish/);
	foreach my $job ($id, $second)
	{
		sql($node, "SELECT idemq.cancel($job)");
		until_said($runner, qr/^idemq-work: q $job: the job (?:was|is being) cancelled, so the program is being stopped$/m);
	}
	my ($status, $said) = ended($runner);
	is($status, 0, "$slots slots: a runner that drains learns of a cancel at once, and ends");
	is_sql($node, "SELECT string_agg(status::text, ' ') FROM idemq.jobs WHERE id IN ($id, $second)", 'cancelled cancelled', 'its jobs are cancelled');
	is_soon($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'idemq-work'", 'it leaves no session behind');
}

# With --once, a runner that ends after it has listened leaves no session behind.
my $runner = start_runner($dsn, '--once', '--', 'sh', '-c', 'echo $$ >$T/once; while [ ! -e $T/open ]; do sleep 0.05; done')
  if sql($node, "SELECT id FROM idemq.enqueue('q', '1')");
until_file('once');
wait_until($node, $listens);
open_gate('open');
my ($status) = ended($runner);
is($status, 0, 'the runner with --once ends');
is_soon($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'idemq-work'", 'it leaves no session behind');
is_sql($node, "SELECT count(*) FROM idemq.check() WHERE severity = 'error'", 0, 'check');

done_testing();
