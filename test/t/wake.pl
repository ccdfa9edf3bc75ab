# Who is woken: a signal is one sleeper's, and is never lost, whatever becomes of
# the one who got it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

# More sessions than one word of a bitmap has bits.
my $node = new_server('wake', 'idemq.worker' => 'on', max_connections => 120, jit => 'off');
my $sleepers = 'SELECT count(*) FROM pg_stat_activity WHERE ' . asleep();

# The worker stays where it is, so that nobody gives a second signal: what wakes a
# sleeper here is the first one.  Not under valgrind: each that sleeps looks once a second, all the time then.
sub without_reminders
{
	my ($code) = @_;

	return if to_begin();
	my $worker = stop_worker($node);

	$code->();
	kill 'CONT', $worker;
}

sql($node, 'CREATE TABLE got (id bigint)');
# The first claim of a cluster writes a row of settings, which has all look.
sql($node, "SELECT idemq.enqueue('q', '1'); SELECT count(*) FROM idemq.claim('q')");
# A worker that does not move is as good as none: who begins to wait 2 s after it should have moved looks once a
# second, and may meet a job that another one is woken for, and end with nothing.  So a few are spare.
without_reminders(sub {
	my ($count, $spare) = (90, 10);
	my $end = clients($node, "CALL idemq.wait('q', '30 min');\nINSERT INTO got SELECT id FROM idemq.claim('q');\n", '-c', $count, '-t', 1);
	my @seen;

	is_soon($node, $sleepers, $count, "$count sleepers");
	foreach my $left (reverse $spare .. $count - 1)
	{
		sql($node, "SELECT idemq.enqueue('q', '1')");
		wait_until($node, 'SELECT count(*) FROM got', $count - $left);
		push @seen, sql($node, $sleepers) - $left;
	}
	is(scalar(grep { $_ > 0 || $_ < -$spare } @seen), 0, 'each job wakes one of them') or diag "@seen";
	sql($node, "SELECT idemq.enqueue('q', '1') FROM generate_series(1, $spare)");
	is($end->(), '', 'all end well');
	is_sql($node, "SELECT count(*) = count(DISTINCT id), count(*) >= $count - $spare FROM got", 't|t', 'with a job for each');
	sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
});

# All are told of a change, each once: who looks and finds nothing sleeps again, while others are
# still being told.  Each look is a transaction.
without_reminders(sub {
	my ($count, $changes, $begun) = (60, 20, time);
	my $looks = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'";
	my $end = clients($node, "CALL idemq.wait('q', '30 min');\n", '-c', $count, '-t', 1);

	is_soon($node, $sleepers, $count, "$count sleepers for changes");
	my $before = sql($node, $looks);
	foreach my $n (1 .. $changes)
	{
		sql($node, "SELECT idemq.alter_queue('q', max_attempts => $n)");
		is_soon($node, $sleepers, $count, "all sleep again after change $n");
	}
	sql($node, "SELECT idemq.enqueue('q', '1') FROM generate_series(1, $count)");
	is($end->(), '', 'all are woken');
	wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", 0);
	my $transactions = sql($node, $looks) - $before;
	cmp_ok($transactions, '>', $count * 2, 'each has looked again');
	# Once a second, too, from when the worker has not moved for 2 s.
	cmp_ok($transactions, '<', $count * (($changes + 1) * 3 + time - $begun), 'and once for each change');
	sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
});

# One signal, many jobs: who claims wakes the next, over priorities too.
foreach my $priorities (1, 10)
{
	without_reminders(sub {
		my $end = clients($node, "CALL idemq.wait('q', '30 min');\nINSERT INTO got SELECT id FROM idemq.claim('q');\n", '-c', 20, '-t', 1);

		is_soon($node, $sleepers, 20, '20 sleepers');
		# Due by time alone: nobody knows how many they are, and who looks finds it.
		sql($node, "TRUNCATE got; BEGIN; SELECT idemq.enqueue('q', '1', delay => '1 s', priority => n % $priorities)
			FROM generate_series(1, 40) n; COMMIT; SELECT pg_sleep(1.1); INSERT INTO got SELECT id FROM idemq.claim('q')");
		is_soon($node, 'SELECT count(*) FROM got', 21, "one claim, and all are woken one after the other ($priorities priorities)");
		is($end->(), '', 'all of them');
	});
	sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
}

SKIP:
{
	skip 'no gdb that may attach', 2 unless has_debugger($node);

	# Two sleepers; the one that gets the signal is stopped before it looks, and ends.
	foreach my $end ('pg_cancel_backend', 'pg_terminate_backend')
	{
		without_reminders(sub {
			my @two = map { sleeper($node, "CALL idemq.wait('q', '30 min')") } 1 .. 2;
			my @stops = map { stop_at($_->{pid}, 'ResetLatch') } @two;

			sql($node, "SELECT idemq.enqueue('q', '1')");
			my $first = wait_for_hit(@two);
			my $second = 1 - $first;
			is_sql($node, "SELECT $end($two[$first]{pid})", 't', "$end of the sleeper with the signal");
			$stops[$first]->();
			$stops[$first]->();
			# Whom it was passed on to stops there as well.
			$stops[$second]->();
			$stops[$second]->();
			is(answer($two[$second]), 't', 'it is passed on');
			if ($end eq 'pg_cancel_backend') { is(answer($two[$first]), '57014', 'the other is cancelled') }
			eval { $_->{session}->quit } foreach @two;
		});
		sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
	}
}

# The worker between its mark on a lease and the row: no heartbeat wins any more, a
# commit does; and a heartbeat that comes first keeps the lease.
SKIP:
{
	skip 'no gdb that may attach', 1 unless has_debugger($node);
	sql($node, 'CREATE TABLE held (id bigint, token bigint)');
	foreach my $commits (1, 0)
	{
		my $of_held = "SELECT status FROM idemq.jobs WHERE id = (SELECT id FROM held)";

		sql($node, "TRUNCATE held; SELECT idemq.enqueue('q', '1');
			INSERT INTO held SELECT id, token FROM idemq.claim('q', lease => '1 h')");
		my $stop = stop_at(worker_pid($node), 'idemq_jobs_lock');
		is_sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held", 'current', 'the last heartbeat');
		$stop->();
		is_sql($node, "SELECT idemq.heartbeat(id, token, '1 h') FROM held", 'stale', 'a heartbeat during the reap');
		is_sql($node, 'SELECT idemq.commit(id, token) FROM held', 'committed', 'a commit during the reap') if $commits;
		$stop->();
		is_soon($node, $of_held, $commits ? 'completed' : 'pending', $commits ? 'the commit stands' : 'reaped');
		is_sql($node, 'SELECT idemq.try_commit(id, token) FROM held', $commits ? 'already_committed' : 'stale',
			'the token afterwards');
		sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
	}

	# Its row is held by an open commit: tried again until that ends, either way.
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my $committer = session($node);

		sql($node, "TRUNCATE held; SELECT idemq.enqueue('q', '1');
			INSERT INTO held SELECT id, token FROM idemq.claim('q', lease => '1 h')");
		$committer->query_safe('BEGIN; SELECT idemq.commit(id, token) FROM held');
		is_sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held; SELECT pg_sleep(0.3);
			SELECT status FROM idemq.jobs WHERE id = (SELECT id FROM held)", "current\n\nprocessing",
			'an open commit keeps a lease that has expired');
		$committer->query_safe($end);
		is_soon($node, 'SELECT status FROM idemq.jobs WHERE id = (SELECT id FROM held)', $end eq 'COMMIT' ? 'completed' : 'pending',
			"$end of an open commit, then the reap");
		sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
		$committer->quit;
	}
}

sub hit
{
	my ($pid) = @_;

	return scalar(glob("$PostgreSQL::Test::Utils::tmp_check/stop.$pid.*.hit0"));
}

sub wait_for_hit
{
	my @two = @_;

	foreach (1 .. 1800)
	{
		foreach my $i (0, 1) { return $i if hit($two[$i]{pid}); }
		select undef, undef, undef, 0.1;
	}
	die 'nobody was signalled';
}

# Who got the signal looked, said so, and never claims: the worker signals again.
my @three = map { sleeper($node, "CALL idemq.wait('q', '30 min')") } 1 .. 3;
sql($node, "SELECT idemq.enqueue('q', '1')");
is(answer($_), 't', 'a job that nobody claims is announced to the next sleeper') foreach @three;
# And so it does when a claim of another job came between.
$_ = sleeper($node, "CALL idemq.wait('q', '30 min')", $_->{session})
  foreach (sql($node, "SELECT count(*) FROM idemq.claim('q', 100)") ? @three : ());
sql($node, "SELECT idemq.enqueue('q', '1', priority => 0); SELECT idemq.enqueue('q', '2');
	SELECT count(*) FROM idemq.claim('q')");
is(answer($_), 't', 'a claim of another does not make it forgotten') foreach @three;
$_->{session}->quit foreach @three;
sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");

# Everybody at random: jobs now and later, timeouts, cancels, claims that are
# rolled back or never made.  No sleeper is left with work that is ready.
sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '300 ms',
	max_attempts => 1000000, retry_base => '10 ms'); TRUNCATE got");
my $workers = clients($node, <<'EOS', '-c', 12, '-t', 40);
\set ms random(0, 60)
\set do random(1, 10)
\set n random(1, 3)
CALL idemq.wait('q', :ms * interval '1 ms');
\if :do = 1
BEGIN;
SELECT id FROM idemq.claim('q', :n);
ROLLBACK;
\elif :do = 2
SELECT id FROM idemq.claim('q', :n);
\elif :do = 3
SELECT idemq.fail(id, token) FROM idemq.claim('q', :n);
\elif :do < 9
SELECT idemq.commit(id, token) FROM idemq.claim('q', :n);
\endif
EOS
my $producers = clients($node, <<'EOS', '-c', 3, '-t', 100);
\set ms random(0, 100)
\set p random(0, 9)
\set do random(1, 4)
BEGIN;
SELECT idemq.enqueue('q', '1', priority => :p, delay => :ms * interval '1 ms');
\if :do = 1
ROLLBACK;
\else
COMMIT;
\endif
EOS
is($producers->(), '', 'random: producers');
is($workers->(), '', 'random: workers');
# Who sleeps now sleeps for long: what is left must wake them.
my $last = clients($node, "CALL idemq.wait('q', '1000 s');\nSELECT idemq.commit(id, token) FROM idemq.claim('q');\n", '-c', 8, '-t', 10000, 'killed');
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE status <> 'completed'", 0, 'random: what is left is claimed by who sleeps');
is_soon($node, $sleepers, 8, 'random: and then all sleep');
sql($node, 'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ' . asleep());
is($last->(), '', 'random: they say nothing but that they were ended');
is_soon($node, 'SELECT count(*) FROM idemq.check()', 0, 'random: the audit');

# Who waits for a result sleeps in a set that all databases share; what changes in one wakes nobody of another.
sql($node, 'CREATE DATABASE other');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q')", 'other');
my $id = sql($node, "SELECT id FROM idemq.enqueue('q', '1', delay => '1 h')", 'other');
my $looks = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'other'";
my @waiting = map { sleeper($node, "CALL idemq.wait_result($id, '10 min', NULL, NULL)", session($node, 'other')) } 1 .. 5;
my $before = sql($node, $looks);
sql($node, "SELECT idemq.alter_queue('q', max_attempts => $_)") foreach 1 .. 60;
sql($node, "SELECT idemq.cancel($id)", 'other');
is(join(' ', map { answer($_) } @waiting), join(' ', ('cancelled|') x 5), 'they have the result');
$_->{session}->quit foreach @waiting;
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'other' AND backend_type = 'client backend'");
cmp_ok(sql($node, $looks) - $before, '<', 150, 'and have not looked at each change in another database');

$node->stop;
done_testing();
