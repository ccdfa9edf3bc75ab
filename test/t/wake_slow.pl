# Who is woken, at large: ninety waiters, sixty that are told of each change, and everybody at random.
# slow: random traffic, and waiters that look once a second
#
# at least 34 assertions

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

# The worker stays where it is, so that nobody gives a second signal: what wakes a
# waiter here is the first one.  Not under valgrind: each that sleeps looks once a second, all the time then.
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

	is_soon($node, $waiters, $count, "$count waiters");
	foreach my $left (reverse $spare .. $count - 1)
	{
		sql($node, "SELECT idemq.enqueue('q', '1')");
		wait_until($node, 'SELECT count(*) FROM got', $count - $left);
		push @seen, sql($node, $waiters) - $left;
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

	is_soon($node, $waiters, $count, "$count waiters for changes");
	my $before = sql($node, $looks);
	foreach my $n (1 .. $changes)
	{
		sql($node, "SELECT idemq.alter_queue('q', max_attempts => $n)");
		is_soon($node, $waiters, $count, "all sleep again after change $n");
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

# Everybody at random: jobs now and later, timeouts, cancels, claims that are
# rolled back or never made.  No waiter is left with work that is ready.
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
is_soon($node, $waiters, 8, 'random: and then all sleep');
sql($node, 'SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ' . asleep());
is($last->(), '', 'random: they say nothing but that they were ended');
is_soon($node, 'SELECT count(*) FROM idemq.check()', 0, 'random: the audit');

$node->stop;
done_testing();
