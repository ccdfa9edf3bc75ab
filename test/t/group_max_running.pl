# Groups of which several jobs may be running.  Turns: every group has its next job within one round,
# however many jobs of others wait, and jobs without a group count as one more group; among groups that always have a
# claimable job, none gets ahead by more than one.  Limits: sessions that commit, fail, release, roll back, claim by id and are ended, a
# crash in between, while group_max_running is what a watcher compares each snapshot with; then every
# effect has happened once, and some groups were at their limit.  More of all of that: group_max_running_slow.pl.
# at least 43 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupMaxRunning;
use Idemq;
use Test::More;

my $node = running_server('group_max_running', 'idemq.attach_grace' => '200 ms'); # meant to expire: what a crash leaves

# ---- Turns.

# One with 2,000 jobs, and fifty with four each that came later.
sql($node, "SELECT idemq.create_queue('t', group_max_running => 5, lease => '1 h');
	SELECT count(*) FROM idemq.enqueue_many('t', array_fill('1'::jsonb, '{2000}'), group_keys => array_fill('giant'::text, '{2000}'));
	SELECT count(idemq.enqueue('t', '1', group_key => 'dwarf' || n % 50)) FROM generate_series(1, 200) n");
is_soon($node, "SELECT count(*) = 51 FROM idemq.jobs WHERE queue_id = idemq.queue_id('t') AND status = 'pending'", 'the worker has promoted a job of each');
take_turns($node, 't', 51, ends => 1);
is_sql($node, 'SELECT count(DISTINCT name), count(*) FROM turns', '51|51', 'all are served in the first round');
take_turns($node, 't', 170, ends => 1, promoted => 1);
is_sql($node, "SELECT most_ahead('giant|dwarf.\$')", 1, 'nobody gets ahead by more than one');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('t') AND group_key <> 'giant' AND status <> 'completed'", 0,
	'the small ones are done');
is_sql($node, "SELECT count(*) >= 4 FROM turns WHERE name = 'giant'", 't', 'the large one had its turns');
sql($node, "SELECT idemq.drop_queue('t', force => true)");

sub turns_of
{
	my ($what, $running, %options) = @_;

	# Jobs without a group are one more, where groups may have several at once.
	my $alone = $running > 1 ? 'g0' : '';

	sql($node, "SELECT idemq.create_queue('f', group_max_running => $running, lease => '1 h'); SELECT fill('f', 12, 20, '$alone')");
	take_turns($node, 'f', 150, %options);
	is_sql($node, 'SELECT count(DISTINCT name) FROM turns', 12, "$what: all have turns");
	# Without the worker each claim promotes the job that it takes.
	if ($options{promoted})
	{
		is_sql($node, "SELECT min((SELECT count(DISTINCT name) FROM unnest(waiting) AS name)) FROM turns", 12, "$what: every group always had a job waiting");
		is_sql($node, 'SELECT most_ahead()', 1, "$what: at most one ahead");
	}
	is_sql($node, "SELECT max(n) - min(n) <= 2 FROM (SELECT count(*) AS n FROM turns GROUP BY name) x", 't', "$what: even");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$what: check() is clean");
	sql($node, "SELECT idemq.drop_queue('f', force => true)");
}

turns_of('with the worker, 3 of a group', 3, ends => 1, promoted => 1);
turns_of('with the worker, never ended', 100, promoted => 1);
turns_of('with the worker, in order', 1, ends => 1, promoted => 1);

# ---- Limits.

my $jobs = 400;
sql($node, "SET client_min_messages = error; SELECT idemq.create_queue('w', group_max_running => 3, lease => '1 h', retry_base => '1 ms', max_attempts => 1000)"); # meant to expire
sql($node, "SELECT produce('w', $jobs, 7)");
# All groups reach their limit once, however the race goes.
my $held = session($node);
$held->query_safe('CREATE TABLE held AS SELECT id, token FROM idemq.jobs LIMIT 0');
until_true('three of each run', sub { $held->query_safe("INSERT INTO held SELECT id, token FROM idemq.claim('w', 100)"); sql($node, 'SELECT count(*) FROM held') >= 21 });
sql($node, "SELECT watch('w')");
$held->query_safe('SELECT idemq.release(id, token) FROM held');
leave($held);
my ($said, $done, $end) = ('', "SELECT count(*) FROM done WHERE queue = 'w'", "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'");
my $left = "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'w' AND finished_at IS NULL";
my $run = start_workers($node, 'w', '-c', 8, '-T', 600);
foreach my $part (1, 2)
{
	wait_until($node, "SELECT ($done) >= $part * 60");
	is_sql($node, "$end ORDER BY random() LIMIT 1) x", 1, 'w: a session is ended');
}
wait_until($node, "SELECT ($done) >= 180");
crash($node);
$said .= $run->();
$run = start_workers($node, 'w', '-c', 8, '-T', 600);
wait_until($node, $left, 0);
wait_until($node, "SELECT sum(looks) > 10 FROM seen WHERE queue = 'w'");
# A session that pgbench opens after that would never be ended.
wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", 8);
sql($node, "$end) x");
$said .= $run->();
is($said, '', 'w: the workers say nothing but that they were ended');
check_limits($node, 'w', $jobs, 3);

# ---- A group at its limit is seen; the end of one wakes who waits.

sql($node, "SELECT idemq.create_queue('l', group_max_running => 2, lease => '1 h'); SELECT fill('l', 1, 4)");
# Two at most, whatever the worker and the claim each promote.
is_soon($node, "SELECT count(*) = 0 FROM idemq.claim('l', 10); SELECT count(*) = 2 FROM idemq.jobs WHERE queue_id = idemq.queue_id('l') AND status = 'running'",
	"t\nt", 'two run');
is_soon($node, "SELECT coalesce(sum(groups_limited), 0) = 1 FROM idemq.metrics WHERE queue = 'l'", 'a group is at its limit');
my $waiter = waiter($node, "CALL idemq.wait('l', '10 min')");
sql($node, "SELECT idemq.commit(id, token) FROM idemq.jobs WHERE queue_id = idemq.queue_id('l') AND status = 'running' LIMIT 1");
is(answer($waiter), 't', 'the end of one wakes who waits');
is_sql($node, "SELECT groups_limited FROM idemq.metrics WHERE queue = 'l'", 0, 'it is not at its limit now');
is_sql($node, "SELECT count(*) FROM idemq.claim('l', 10)", 1, 'the next one runs');

each_claim_promotes($node, 20);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# ---- Without the worker.

$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->restart;
turns_of('without the worker', 3, ends => 1);
$node->stop;
is(unexpected($node, qw(57P01 57P02 57P03)), '', 'no error but of those that were ended');
done_testing();
