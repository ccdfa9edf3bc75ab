# group_rate_limit, while sessions claim, roll back, release, fail, commit_and_claim and take by id: of no group more starts
# than it may have, in groups with one job at a time and with several, when sessions are ended, after a crash and
# a restart; and what happens when there is no room for buckets.  More sessions, and short periods over every
# interval: group_rate_limit_slow.pl.
# at least 50 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupRateLimit;
use Idemq;
use Test::More;

my $node = rate_server('group_rate_limit');

# ---- Never more, whatever happens to the starts.

foreach my $running (1, 4)
{
	my $q = "r$running";

	sql($node, "SET client_min_messages = error; SELECT idemq.create_queue('$q', group_max_running => $running, group_rate_limit => 20, group_rate_period => '$per', max_attempts => 1000, lease => '1 h');
		SELECT fill('$q', 10, 40)");
	my $run = hammer($node, $q, '-c', 8, '-T', 600);
	# Two sessions are ended in the middle, and all of them once a group has used up its starts.
	my $end = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'";
	wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", 8);
	wait_until($node, "SELECT max(starts) >= 5 FROM starts('$q')");
	is_sql($node, "$end LIMIT 2) x", 2, "$q: two sessions are ended");
	wait_until($node, "SELECT max(starts) >= 20 FROM starts('$q')");
	sql($node, "$end) x");
	is($run->(), '', "$q: the workers say nothing but that they were ended");
	# Other sessions go on: a group that has used up its starts gets no more.
	is(hammer($node, $q, '-c', 8, '-t', 20)->(), '', "$q: others work on");
	is_sql($node, "SELECT max(starts) FROM starts('$q')", 20, "$q: of no group more than may be, and as many");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$q: check() is clean");
}

# ---- A crash and a restart forget the buckets: they are empty then, and full where nothing can have been started.

sql($node, "SELECT idemq.create_queue('old', group_rate_limit => 20, group_rate_period => '$per'); SELECT fill('old', 1, 3)");
# So is the rate of a queue, with a burst and without one.
my %rated = (rate => 'NULL', burst => 2);
sql($node, "SELECT idemq.create_queue('old_$_', rate_limit => 3, rate_period => '$per', rate_burst => $rated{$_});
	SELECT count(idemq.enqueue('old_$_', '1')) FROM generate_series(1, 9);
	SELECT count(*) FROM idemq.claim('old_$_')") foreach sort keys %rated;
crash($node);
sql($node, "SELECT idemq.create_queue('young_$_', rate_limit => 3, rate_period => '$per', rate_burst => $rated{$_});
	SELECT count(idemq.enqueue('young_$_', '1')) FROM generate_series(1, 9)") foreach sort keys %rated;
foreach my $rule (sort keys %rated)
{
	is_sql($node, "SELECT count(*) FROM idemq.claim('old_$rule', 9)", 0, "$rule: nothing of a queue from before the crash");
	is_sql($node, "SELECT idemq.why(max(id)) ~ 'rate_limit of queue \"old_$rule\" is used up' FROM idemq.jobs WHERE queue_id = idemq.queue_id('old_$rule')", 't', "$rule: why says so");
	is_sql($node, "SELECT count(*) FROM idemq.claim('young_$rule', 9)", $rule eq 'rate' ? 3 : 2, "$rule: all of a new one");
	is_sql($node, "SELECT idemq.alter_queue('old_$rule', rate_limit => 0); SELECT count(*) FROM idemq.claim('old_$rule', 9)", "\n8", "$rule: without the limit it goes on");
}
# A sequence jumps in a crash.
sql($node, "SELECT count(restart(name)) FROM starts('r4')");
sql($node, "SELECT idemq.create_queue('young', group_max_running => 9, group_rate_limit => 3, group_rate_period => '$per'); SELECT fill('young', 2, 5)");
is(hammer($node, 'r4', '-c', 8, '-t', 20)->(), '', 'r4 after the crash');
is_sql($node, "SELECT max(starts) FROM starts('r4')", 0, 'r4: not one more after the crash');
is_sql($node, "SELECT count(*) FROM idemq.claim('old')", 0, 'nothing of a queue from before');
is_sql($node, "SELECT idemq.why(min(id)) ~ 'group_rate_limit of queue \"old\" is used up' FROM idemq.jobs WHERE queue_id = idemq.queue_id('old')", 't', 'why says so');
# Until it has started what it may.
my ($said, $all) = ('', "SELECT min(starts) >= 3 FROM starts('young')");
until_true('a new queue has its starts', sub { $said .= hammer($node, 'young', '-c', 8, '-t', 20)->(); sql($node, $all) eq 't' });
is($said, '', 'a new queue');
is_sql($node, "SELECT min(starts), max(starts) FROM starts('young')", '3|3', 'all of a queue that is new');
sql($node, "SELECT count(restart(name)) FROM starts('$_')") foreach qw(r1 young);
$node->restart;
is(hammer($node, $_, '-c', 8, '-t', 20)->(), '', "$_ after a restart") foreach qw(r1 young);
is_sql($node, "SELECT max(starts) FROM starts('$_')", 0, "$_: not one more") foreach qw(r1 young);

# ---- Another rate has its effect at once, also for jobs that wait: promoted for later, and deferred when they were to be retried.

foreach my $running (1, 3)
{
	my $q = "a$running";
	my $of = "FROM idemq.jobs WHERE queue_id = idemq.queue_id('$q')";

	sql($node, "SET client_min_messages = error; SELECT idemq.create_queue('$q', group_max_running => $running, group_rate_limit => 1, group_rate_period => '$per', lease => '1 h', max_attempts => 1000);
		SELECT fill('$q', 50, 3)");
	is_soon($node, "SELECT count(*) >= 0 FROM idemq.claim('$q', 100); SELECT count(*) = 50 $of AND status = 'running'", "t\nt", "$q: one of each group");
	sql($node, "SELECT CASE WHEN id % 2 = 0 THEN idemq.commit(id, token)::text ELSE idemq.fail(id, token, 'no', retry_in => '0')::text END $of AND status = 'running'");
	is_soon($node, "SELECT count(*) FROM idemq.claim('$q', 100); SELECT count(*) = 50 $of AND status IN ('pending', 'retrying') AND ready_at > now() + interval '1 day'", "0\nt", "$q: the next ones wait");
	my $waiter = waiter($node, "CALL idemq.wait('$q', '10 min')");
	# Each of them has one more start, a little later.
	sql($node, "SELECT idemq.alter_queue('$q', group_rate_period => '1 ms')"); # meant to expire
	is(answer($waiter), 't', "$q: who waits for work is woken");
	leave($waiter->{session});
	is_soon($node, "SELECT count(idemq.commit(id, token)) >= 0 FROM idemq.claim('$q', 100); SELECT count(*) = 0 $of AND finished_at IS NULL", "t\nt", "$q: all get on");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$q: check() is clean");
}

# So has another burst.
{
	my $of = "FROM idemq.jobs WHERE queue_id = idemq.queue_id('burst')";

	sql($node, "SELECT idemq.create_queue('burst', group_max_running => 5, group_rate_limit => 1, group_rate_period => '1 year', group_rate_burst => 1, lease => '1 h'); SELECT fill('burst', 1, 5)");
	is_soon($node, "SELECT count(*) >= 0 FROM idemq.claim('burst', 9); SELECT count(*) = 1 $of AND status = 'running'", "t\nt", 'burst: one starts');
	is_soon($node, "SELECT count(*) FROM idemq.claim('burst', 9); SELECT count(*) = 1 $of AND ready_at > now() + interval '1 day'", "0\nt", 'burst: the next one waits');
	my $waiter = waiter($node, "CALL idemq.wait('burst', '10 min')");
	sql($node, "SELECT idemq.alter_queue('burst', group_rate_burst => 4)");
	is(answer($waiter), 't', 'burst: who waits for work is woken');
	leave($waiter->{session});
	is_soon($node, "SELECT count(*) >= 0 FROM idemq.claim('burst', 9); SELECT count(*) = 4 $of AND status = 'running'", "t\nt", 'burst: as many as may start at once');
}

# ---- Nobody gets all buckets, and nobody needs one: a queue whose groups find none has one for them together.

my $used = "SELECT used = size FROM idemq.memory WHERE resource = 'buckets'";
sql($node, "CREATE DATABASE other");
sql($node, "CREATE EXTENSION idemq", 'other');
sql($node, "SELECT idemq.admit('used' || i, 1, '$per') FROM generate_series(1, 300) i", 'other');
is_sql($node, $used, 'f', 'the names of one database do not fill the table');
sql($node, "SELECT idemq.create_queue('before', group_rate_limit => 1, group_rate_period => '$per'), idemq.create_queue('greedy', group_rate_limit => 1, group_rate_period => '$per');
	SELECT fill('before', 1, 2), fill('greedy', 300, 1)");
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('greedy') AND status = 'pending'", 300, 'heads');
my $started = sql($node, "SELECT count(*) FROM idemq.claim('greedy', 1000)");
cmp_ok($started, '<', 130, 'the groups of one queue get half at most');
cmp_ok($started, '>', 1, 'and have what is left');
is_sql($node, $used, 't', 'together they fill it');
my $shared = sql($node, 'SELECT shared FROM idemq.admissions');
my $refused = sql($node, "SELECT refused FROM idemq.memory WHERE resource = 'buckets'");
sql($node, "SELECT idemq.create_queue('f', group_rate_limit => 7, group_rate_period => '$per', lease => '1 h'); SELECT fill('f', 20, 3)");
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('f') AND status = 'pending'", 20, 'other heads');
# Eight at once, each of which commits what it gets: so the next of each group follow.
is(clients($node, "SELECT count(idemq.commit(id, token)) FROM idemq.claim('f', 2);\n", '-c', 8, '-t', 20)->(), '', '8 sessions');
# A start that lost a race and is not the last one is not given back.
is_sql($node, "SELECT count(*) BETWEEN 1 AND 7 FROM idemq.jobs WHERE queue_id = idemq.queue_id('f') AND status = 'completed'", 't', 'they start, all together as many as one may at most');
is_sql($node, "SELECT idemq.why(min(id)) ~ 'group_rate_limit of queue \"f\" is used up' FROM idemq.jobs WHERE queue_id = idemq.queue_id('f') AND status <> 'completed'", 't', 'why says so');
is_sql($node, "SELECT refused > $refused FROM idemq.memory WHERE resource = 'buckets'", 't', 'it is counted');
is_sql($node, 'SELECT shared FROM idemq.admissions', $shared, 'and not as a call of admit');
is_sql($node, "SELECT count(*) FROM idemq.claim('before', 10)", 1, 'so does one that came before');
# A queue that is dropped gives its buckets back, and the queue that gets its state is a new one.
sql($node, "SELECT idemq.drop_queue('greedy', force => true)");
# All but one of those that were started had a bucket of their own.
is_sql($node, "SELECT used <= size - $started + 1 FROM idemq.memory WHERE resource = 'buckets'", 't', 'a queue that is dropped has no buckets');
sql($node, "SELECT idemq.create_queue('successor', group_rate_limit => 1, group_rate_period => '$per'); SELECT fill('successor', 20, 1)");
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('successor') AND status = 'pending'", 20, 'its heads');
is_sql($node, "SELECT count(*) FROM idemq.claim('successor', 100)", 20, 'the next queue of its state begins with full ones');
# There is room: who was started without a bucket is not started too soon with one.
sql($node, 'DROP DATABASE other');
sql($node, "SELECT idemq.enqueue('f', '1', group_key => 'new')");
is_sql($node, "SELECT count(*) FROM idemq.claim('f', 100)", 0, 'a bucket begins where the common one stood');
is_sql($node, $used, 'f', 'there is room');
sql($node, "SELECT idemq.alter_queue('f', group_rate_period => '1 ms')"); # meant to expire
is_soon($node, "SELECT count(idemq.commit(id, token)) >= 0 FROM idemq.claim('f', 100); SELECT count(*) = 0 FROM idemq.jobs WHERE queue_id = idemq.queue_id('f') AND status <> 'completed'",
	"t\nt", 'they all get on');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
# The memory of all queues is given up, so it is not known what they have started.
sql($node, "SELECT idemq.create_queue('emptied', rate_limit => 3, rate_period => '$per'); TRUNCATE idemq.jobs CASCADE; SELECT count(idemq.enqueue('emptied', '1')) FROM generate_series(1, 3)");
is_sql($node, "SELECT count(*) FROM idemq.claim('emptied', 3)", 0, 'TRUNCATE: the limit counts as used up');
$node->stop;
is(unexpected($node, qw(57P01 57P02 57P03)), '', 'no error but of those that were ended');
done_testing();
