# Groups of which several jobs may be running, at full speed: turns while the worker promotes beside the claims; limits
# under 16 sessions that are ended all the time, with a crash in between; more groups than memory has room for.
# With the background worker and without.
# slow: loads of several seconds, and sessions that are ended by time
# at least 49 assertions
# takes long

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupMaxRunning;
use Idemq;
use Test::More;
use Time::HiRes qw(sleep time);

my $jobs = $ENV{IDEMQ_GROUP_JOBS} // (to_begin() ? 600 : 6000);
my $few = int($jobs / 4);
my $node = running_server('group_max_running_slow');

# ---- Turns.

# One with 20,000 jobs, and a hundred with ten each that came later; fewer where all is slow.
my $each = to_begin() ? 3 : 10;
my $giants = 2000 * $each;
sql($node, "SELECT idemq.create_queue('t', group_max_running => 5);
	SELECT count(*) FROM idemq.enqueue_many('t', array_fill('1'::jsonb, '{$giants}'), group_keys => array_fill('giant'::text, '{$giants}'));
	SELECT count(idemq.enqueue('t', '1', group_key => 'dwarf' || n % 100)) FROM generate_series(1, 100 * $each) n");
my $waiting = "SELECT count(*) = 101 FROM idemq.jobs WHERE queue_id = idemq.queue_id('t') AND status = 'pending'";
is_soon($node, $waiting, 'the worker has promoted a job of each');
take_turns($node, 't', 101, ends => 1);
is_sql($node, 'SELECT count(DISTINCT name), count(*) FROM turns', '101|101', 'all are served in the first round');
take_turns($node, 't', 110 * $each, ends => 1);
is_sql($node, "SELECT most_ahead('giant|dwarf.\$') <= 1", 't', 'nobody gets ahead by more than one');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('t') AND group_key <> 'giant' AND status <> 'completed'", 0,
	'the small ones are done');
is_sql($node, "SELECT count(*) >= 8 FROM turns WHERE name = 'giant'", 't', 'the large one had its turns');
sql($node, "SELECT idemq.drop_queue('t', force => true)");

sub turns_of
{
	my ($what, $running, %options) = @_;

	# Jobs without a group are one more, where groups may have several at once.
	my $alone = $running > 1 ? 'g0' : '';

	sql($node, "SELECT idemq.create_queue('f', group_max_running => $running); SELECT fill('f', 12, 40, '$alone')");
	take_turns($node, 'f', 300, %options);
	is_sql($node, 'SELECT count(DISTINCT name) FROM turns', 12, "$what: all have turns");
	# Without the worker each claim promotes the job that it takes.
	if ($what =~ /with the/)
	{
		is_sql($node, 'SELECT most_ahead() <= 1', 't', "$what: at most one ahead");
		is_sql($node, "SELECT sum((waiting = '{}')::int) < 250 FROM turns", 't', "$what: others mostly waited");
	}
	is_sql($node, "SELECT max(n) - min(n) <= 2 FROM (SELECT count(*) AS n FROM turns GROUP BY name) x", 't', "$what: even");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$what: check() is clean");
	sql($node, "SELECT idemq.drop_queue('f', force => true)");
	return;
}

turns_of('with the worker, 3 of a group', 3, ends => 1);
turns_of('with the worker, never ended', 100);
turns_of('with the worker, in order', 1, ends => 1);

# ---- Limits.

# Works a queue until nothing is left, while backends are killed; crash: once, in the middle.
sub drain
{
	my ($queue, $limit, $crash) = @_;
	my ($start, $killed, $said) = (time, 0, '');
	my $left = "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = '$queue' AND finished_at IS NULL";

	while (time - $start < $limit * (1 + to_begin()))
	{
		my $run = start_workers($node, $queue, '-c', 16, '-T', 2);

		foreach (1 .. 3)
		{
			sleep 0.4 + 2 * to_begin();
			$killed += sql($node, "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
				WHERE query ~ 'work\\(|finish\\(|claim\\(' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) x");
		}
		$said .= $run->();
		crash($node) if $crash;
		last if !$crash && sql($node, $left) == 0;
		$crash = 0 if defined $crash;
	}
	note sprintf '%s: %.1f s, %d sessions killed', $queue, time - $start, $killed;
	cmp_ok($killed, '>', 0, "$queue: sessions were killed");
	is($crash, 0, "$queue: the server crashed") if defined $crash;
	is($said, '', "$queue: the workers say nothing but that they were ended");
	is_sql($node, $left, 0, "$queue: nothing is left");
}

sql($node, "SELECT idemq.create_queue('w', group_max_running => 3, lease => '10 s', retry_base => '1 ms', max_attempts => 1000);
	SELECT produce('w', $jobs, 7)");
drain('w', 200, 1);
check_limits($node, 'w', $jobs, 3);

# More groups than memory has room for.
sql($node, "SELECT idemq.create_queue('m', group_max_running => 2);
	SELECT count(*) FROM idemq.enqueue_many('m', array_fill('1'::jsonb, '{40000}'), group_keys => (SELECT array_agg('m' || n % 20000) FROM generate_series(1, 40000) n))");
is_sql($node, "SELECT used <= size, refused > 0 FROM idemq.memory WHERE resource = 'groups'", 't|t', 'there is no room for so many groups');
is_soon($node, "SELECT count(*) = 20000 FROM idemq.jobs WHERE queue_id = idemq.queue_id('m') AND status = 'pending'",
	'each gets its turn all the same');
my $some = to_begin() ? 1000 : 20000;
is_sql($node, "SELECT count(*), count(DISTINCT group_key) FROM idemq.claim('m', $some)", "$some|$some", 'one of each');
is_soon($node, "SELECT count(*) = 20000 FROM idemq.jobs WHERE queue_id = idemq.queue_id('m') AND status = 'pending'",
	'and then the second');
sql($node, "SELECT idemq.drop_queue('m', force => true)");

each_claim_promotes($node, 60);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# ---- Without the worker.

$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->restart;
turns_of('without the worker', 3, ends => 1);
sql($node, "SELECT idemq.create_queue('n', group_max_running => 2, lease => '10 s', retry_base => '1 ms', max_attempts => 1000);
	SELECT produce('n', $few, 5)");
drain('n', 200);
check_limits($node, 'n', $few, 2);
$node->stop;
is(unexpected($node, qw(57P01 57P02 57P03)), '', 'no error but of those that were ended');
done_testing();
