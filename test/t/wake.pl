# Who is woken: a signal is one waiter's, and is never lost, whatever becomes of
# the one who got it.  wake_slow has everybody at random.
# stops: wait_woken idemq_jobs_lock
#
# at least 45 assertions

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
my $waiters = 'SELECT count(*) FROM pg_stat_activity WHERE ' . asleep();

# The worker stays where it is, so that nobody gives a second signal: what wakes a waiter here is the first one.  Whoever
# slept before the worker stopped does not look by itself.
sub without_reminders
{
	my ($code) = @_;
	my $worker = stop_worker($node);

	$code->();
	kill 'CONT', $worker;
	return;
}

sql($node, 'CREATE TABLE got (id bigint)');
# The first claim of a cluster writes a row of settings, which has all look.
sql($node, "SELECT idemq.enqueue('q', '1'); SELECT count(*) FROM idemq.claim('q')");

{
	my ($count, $jobs) = (70, 20);
	my $end = clients($node, "CALL idemq.wait('q', '30 min');\nINSERT INTO got SELECT id FROM idemq.claim('q');\n", '-c', $count, '-t', 1);
	my @left;

	is_soon($node, $waiters, $count, "$count waiters");
	without_reminders(sub {
		foreach my $n (1 .. $jobs)
		{
			sql($node, "SELECT idemq.enqueue('q', '1')");
			wait_until($node, 'SELECT count(*) FROM got', $n);
			push @left, sql($node, $waiters) - $count + $n;
		}
	});
	is("@left", join(' ', (0) x $jobs), 'each job wakes one of them');
	sql($node, "SELECT idemq.enqueue('q', '1') FROM generate_series(1, $count - $jobs)");
	is($end->(), '', 'all end well');
	is_sql($node, "SELECT count(*), count(DISTINCT id) FROM got", "$count|$count", 'with a job for each');
}

# One signal, many jobs: who claims wakes the next, over priorities too.
foreach my $priorities (1, 10)
{
	my $end = clients($node, "CALL idemq.wait('q', '30 min');\nINSERT INTO got SELECT id FROM idemq.claim('q');\n", '-c', 20, '-t', 1);

	is_soon($node, $waiters, 20, '20 waiters');
	without_reminders(sub {
		# Due by time alone: nobody knows how many they are, and who looks finds it.
		# meant to expire
		sql($node, "TRUNCATE got; BEGIN; SELECT idemq.enqueue('q', '1', delay => '300 ms', priority => n % $priorities)
			FROM generate_series(1, 40) n; COMMIT; SELECT pg_sleep(0.31); INSERT INTO got SELECT id FROM idemq.claim('q')");
		is_soon($node, 'SELECT count(*) FROM got', 21, "one claim, and all are woken one after the other ($priorities priorities)");
	});
	is($end->(), '', 'all of them');
	sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
}

# Two waiters; the one that gets the signal is stopped before it looks, and ends.
SKIP:
{
	skip 'no stops', 5 unless can_stop($node);

	foreach my $end ('pg_cancel_backend', 'pg_terminate_backend')
	{
		my @two = map { waiter($node, "CALL idemq.wait('q', '30 min')") } 1 .. 2;

		without_reminders(sub {
			my @stops = map { stop_at($_->{pid}, 'wait_woken') } @two;

			sql($node, "SELECT idemq.enqueue('q', '1')");
			my $first = signalled(@two);
			is_sql($node, "SELECT $end($two[$first]{pid})", 't', "$end of the waiter with the signal");
			$stops[$first]->() foreach 1 .. 2;
			# The one to which it is passed on stops there as well.
			$stops[ 1 - $first ]->() foreach 1 .. 2;
			is(answer($two[ 1 - $first ]), 't', 'it is passed on');
			if ($end eq 'pg_cancel_backend') { is(answer($two[$first]), '57014', 'the other is cancelled') }
		});
		foreach (@two) { eval { leave($_->{session}) } }
		sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
	}
}

# Which of two waiters was woken, and is at its stop.
sub signalled
{
	my @two = @_;
	my $first;

	until_true('one of two waiters is woken',
		sub { ($first) = grep { -e $node->data_dir . "/idemq_stops/$two[$_]{pid}.wait_woken.here" } 0, 1; return defined $first });
	return $first;
}

# The worker between its mark on a lease and the row: no heartbeat wins any more, a
# commit does; and a heartbeat that comes first keeps the lease.
my $of_held = 'SELECT status FROM idemq.jobs WHERE id = (SELECT id FROM held)';
my $hold = "TRUNCATE held; SELECT idemq.enqueue('q', '1'); INSERT INTO held SELECT id, token FROM idemq.claim('q', lease => '1 h')";

sql($node, 'CREATE TABLE held (id bigint, token bigint)');
SKIP:
{
	skip 'no stops', 9 unless can_stop($node);
	foreach my $commits (1, 0)
	{
		sql($node, $hold);
		my $stop = stop_at(worker_pid($node), 'idemq_jobs_lock');
		# meant to expire
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
}

# Its row is held by an open commit: tried again until that ends, either way.
sub commit_while_it_expires
{
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my $committer = session($node);
		my $next;

		sql($node, $hold);
		$committer->query_safe('BEGIN; SELECT idemq.commit(id, token) FROM held');
		# Another lease, which ends after this one and is taken back after it was looked at.
		$next = sql($node, "SELECT id FROM idemq.enqueue('q', '2')");
		# meant to expire
		is_sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held", 'current', 'the last heartbeat');
		sql($node, "SELECT pg_sleep(0.01); SELECT id FROM idemq.claim_job($next, lease => '1 ms')"); # meant to expire
		wait_until($node, "SELECT attempt = 1 AND status = 'pending' FROM idemq.jobs WHERE id = $next");
		is_sql($node, $of_held, 'running', 'an open commit keeps a lease that has expired');
		$committer->query_safe($end);
		is_soon($node, $of_held, $end eq 'COMMIT' ? 'completed' : 'pending', "$end of an open commit, then the reap");
		sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
		leave($committer);
	}
	return;
}
commit_while_it_expires();

# Who got the signal looked, said so, and never claims: the worker signals again.
my @three = map { waiter($node, "CALL idemq.wait('q', '30 min')") } 1 .. 3;
sql($node, "SELECT idemq.enqueue('q', '1')");
is(answer($_), 't', 'a job that nobody claims is announced to the next waiter') foreach @three;
# And so it does when a claim of another job came between.
$_ = waiter($node, "CALL idemq.wait('q', '30 min')", $_->{session})
  foreach (sql($node, "SELECT count(*) FROM idemq.claim('q', 100)") ? @three : ());
sql($node, "SELECT idemq.enqueue('q', '1', priority => 0); SELECT idemq.enqueue('q', '2');
	SELECT count(*) FROM idemq.claim('q')");
is(answer($_), 't', 'a claim of another does not make it forgotten') foreach @three;
leave($_->{session}) foreach @three;
sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");

# Who waits for a result sleeps in a set that all databases share; what changes in one wakes nobody of another.
sql($node, 'CREATE DATABASE other');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q')", 'other');
my $id = sql($node, "SELECT id FROM idemq.enqueue('q', '1', delay => '1 h')", 'other');
my $looks = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'other'";
my @waiting = map { waiter($node, "CALL idemq.wait_result($id, '10 min', NULL, NULL)", session($node, 'other')) } 1 .. 5;
my $before = sql($node, $looks);
sql($node, "SELECT idemq.alter_queue('q', max_attempts => $_)") foreach 1 .. 60;
sql($node, "SELECT idemq.cancel($id)", 'other');
is(join(' ', map { answer($_) } @waiting), join(' ', ('cancelled|') x 5), 'they have the result');
leave($_->{session}) foreach @waiting;
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = 'other' AND backend_type = 'client backend'");
cmp_ok(sql($node, $looks) - $before, '<', 150, 'and have not looked at each change in another database');

# In the shipped library, which has no stops: jobs that nobody claims are announced, and an open commit keeps its lease.
shipped($node);
my $waiter = waiter($node, "CALL idemq.wait('q', '30 min')");
sql($node, "SELECT idemq.enqueue('q', '1')");
is(answer($waiter), 't', 'shipped: woken');
leave($waiter->{session});
sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
commit_while_it_expires();
$node->stop;
done_testing();
