# max_running and rate_limit between sessions: exact after a restart, with prepared transactions and with full tables; and
# a session that waits is woken when a slot or a token comes free.  Under load, and that no session polls: limits_slow.pl.
# stops: idemq_lease_count_transferred wait_woken
# at least 71 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('limits', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', max_connections => 40, jit => 'off', log_statement => 'none');

# A fresh queue with those settings and that many jobs.
sub fresh
{
	my ($settings, $jobs) = @_;

	sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues");
	sql($node, "SELECT idemq.create_queue('q', $settings); SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(1, $jobs) n");
}

# ---- Eight sessions claim at once, and hold what they have: five get a job

fresh("lease => '1 h', max_running => 5", 30);
{
	my $barrier = barrier($node);
	my $claimers = clients($node, "BEGIN;\nSELECT count(*) AS n FROM idemq.claim('q') \\gset\n\\if :n\n" . $barrier->sql . ";\n\\endif\nCOMMIT;\n", '-c', 8, '-t', 1);

	$barrier->wait_for(5);
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 100)", 0, 'five claims are open: nothing is left for another');
	$barrier->open;
	is($claimers->(), '', 'the claimers come through');
	is_sql($node, 'SELECT permits_used, running FROM idemq.metrics', '5|5', 'five are running');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
}

# ---- A restart with running jobs, many ready ones before and behind them.
fresh("lease => '1 h', max_running => 5", 3000);
sql($node, "CREATE TABLE held AS SELECT id, token FROM idemq.claim('q', 100)");
sql($node, "SELECT count(idemq.enqueue('q', '0', priority => n % 10)) FROM generate_series(1, 3000) n");
foreach my $worker ('off', 'on')
{
	$node->append_conf('postgresql.conf', "idemq.worker = $worker");
	crash($node);
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 100)", 0, "worker $worker: nothing is claimed after a restart");
	is_sql($node, 'SELECT permits_used, recovering FROM idemq.metrics', '5|f', 'all are counted');
	is_sql($node, "SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1", 'committed', 'a commit');
	sql($node, 'DELETE FROM held WHERE id = (SELECT min(id) FROM held)');
	is_sql($node, "INSERT INTO held SELECT id, token FROM idemq.claim('q', 100) RETURNING 1", 1, 'makes room for one');
}
# In a transaction that ends an attempt which nobody has counted yet, no search is trusted.
$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->restart;
is_sql($node, "BEGIN; SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1; SELECT count(*) FROM idemq.claim('q', 100); ROLLBACK;
	SELECT count(*) FROM idemq.claim('q', 100)", "committed\n0\n0", 'an uncounted attempt makes no room');
$node->append_conf('postgresql.conf', 'idemq.worker = on');
$node->restart;
wait_until($node, "SELECT recovering FROM idemq.metrics WHERE queue = 'q'", 'f');

# ---- PREPARE TRANSACTION

is_state($node, "BEGIN; SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1; PREPARE TRANSACTION 'p'", '0A000', 'PREPARE of an end');
is_sql($node, "SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1", 'committed', 'and it is undone');
is_state($node, "BEGIN; SELECT id FROM idemq.claim('q'); PREPARE TRANSACTION 'p'", '0A000', 'PREPARE of a claim');
# The limit is set after the end, by somebody else: PREPARE reads the settings anew.
sql($node, "SELECT idemq.alter_queue('q', max_running => 0)");
my $preparer = session($node);
$preparer->query("\\set VERBOSITY sqlstate\nBEGIN; SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running' ORDER BY id LIMIT 1");
sql($node, "SELECT idemq.alter_queue('q', max_running => 5)");
$preparer->query("PREPARE TRANSACTION 'p'");
like($preparer->{stderr}, qr/0A000/, 'PREPARE of an end from before there was a limit');
leave($preparer);
is_state($node, "BEGIN; SELECT idemq.enqueue('q', '1'); PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'", '00000', 'of an enqueue it is allowed');
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 100)", 1, 'after ROLLBACK PREPARED everything is counted');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');

# The end of a transaction that has ended one attempt and claimed with its permit, stopped
# before the claim is counted: the one that it ended still is.
{
	fresh("lease => '1 h', max_running => 1", 5);
	my $worker = session($node);

	$worker->query_safe("SELECT id, token FROM idemq.claim('q') \\gset\nBEGIN; SELECT idemq.commit(:id, :token); SELECT id FROM idemq.claim('q')");
	my $stop = stop_at($worker->{backend}, 'idemq_lease_count_transferred');
	$worker->query_until(qr/sent/, "\\echo sent\nCOMMIT;\n");
	$stop->();
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'running'", 1, 'a commit that others see, before it is counted');
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 5)", 0, 'makes no room');
	$stop->();
	$worker->query('SELECT');
	leave($worker);
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 5)", 0, 'nor after it');
	is_sql($node, 'SELECT permits_used, running FROM idemq.metrics', '1|1', 'and all is counted');
}

# ---- Waking.  The waiters sleep before the worker is stopped: they count on it, and do not look by themselves.

sub without_worker
{
	my ($code) = @_;
	my $worker = stop_worker($node);

	$code->();
	kill 'CONT', $worker;
}
my $waiters = 'SELECT count(*) FROM pg_stat_activity WHERE ' . asleep();

my %frees = (
	'a commit' => 'SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1',
	'a fail' => "SELECT idemq.fail(id, token, permanent => true) FROM held ORDER BY id LIMIT 1",
	'a cancel' => 'SELECT idemq.cancel(min(id)) FROM held',
	'a batch' => 'SELECT idemq.commit_many(array_agg(id), array_agg(token)) FROM (SELECT * FROM held ORDER BY id LIMIT 1) h',
	'an UPDATE by hand' => "UPDATE idemq.jobs SET status = 'completed', ready_at = NULL, finished_at = now() WHERE id = (SELECT min(id) FROM held)",
	'a limit that is raised' => "SELECT idemq.alter_queue('q', max_running => 6)",
	'a limit that is taken away' => "SELECT idemq.alter_queue('q', max_running => 0)");
foreach my $name (sort keys %frees)
{
	fresh("lease => '1 h', max_running => 5", 30);
	sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
	my $waiter = waiter($node, "CALL idemq.wait('q', '1 h')");

	without_worker(sub {
		sql($node, $frees{$name});
		is(answer($waiter), 't', "$name wakes a waiter");
	});
	leave($waiter->{session});
}

# Sessions that stop as soon as they wake: returns the stops of all that are asleep, and how many have woken.
sub stops_of_waiters
{
	return map { stop_at($_, 'wait_woken') } split /\n/, sql($node, 'SELECT pid FROM pg_stat_activity WHERE ' . asleep());
}
sub woken { return scalar(() = glob($node->data_dir . '/idemq_stops/*.wait_woken.here')) }
sub let_go
{
	foreach my $file (glob($node->data_dir . '/idemq_stops/*.wait_woken'), glob($node->data_dir . '/idemq_stops/*.wait_woken.here'))
	{
		unlink $file;
	}
}

# One slot wakes one waiter; what is free at once is passed on.
fresh("lease => '1 h', max_running => 5", 30);
sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
{
	my $done = clients($node, "CALL idemq.wait('q', '1 h');\nINSERT INTO held SELECT id, token FROM idemq.claim('q');\n", '-c', 20, '-t', 1);

	is_soon($node, $waiters, 20, '20 waiters in a queue at its limit');
	without_worker(sub {
		stops_of_waiters();
		sql($node, 'SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1');
		until_true('a waiter that wakes', sub { woken() > 0 });
		is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'a slot that comes free can be claimed');
		is(woken(), 1, 'it wakes one waiter');
		let_go();
		sql($node, "SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running' AND id NOT IN (SELECT id FROM held)");
		is_soon($node, 'SELECT count(*) FROM held', 6, 'the next slot: one claims');
		sql($node, "SELECT idemq.commit_many(array_agg(id), array_agg(token)) FROM (SELECT h.* FROM held h JOIN idemq.jobs j USING (id) WHERE status = 'running') h");
		is_soon($node, 'SELECT count(*) FROM held', 11, 'five slots: five claim');
		sql($node, "SELECT idemq.alter_queue('q', max_running => 0)");
		is($done->(), '', 'no limit: all end well');
		is_sql($node, 'SELECT count(*) BETWEEN 20 AND 25 FROM held', 't', 'with a job');
	});
}

# With both limits, claims that max_running turns away use no token and wake nobody.
fresh("lease => '1 h', max_running => 1, rate_limit => 2, rate_period => '1 h'", 30);
sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
{
	my $waiter = waiter($node, "CALL idemq.wait('q', '1 h')");
	my ($stop) = stops_of_waiters();

	sql($node, "SELECT count(*) FROM generate_series(1, 100) n, LATERAL idemq.claim('q', n)");
	is(woken(), 0, 'both limits: claims in vain wake no session');
	sql($node, 'SELECT idemq.commit(id, token) FROM held');
	$stop->(); # it is there
	$stop->(); # and goes on
	is(answer($waiter), 't', 'a commit does');
	is_sql($node, "INSERT INTO held SELECT id, token FROM idemq.claim('q', 5) RETURNING 1", 1, 'and there is a token');
	leave($waiter->{session});
}

# LISTEN: a session whose claim was turned away is told when there is room.
fresh("lease => '1 h', max_running => 1", 3);
sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q')");
{
	my $listener = session($node);
	my $heard = '';
	# Listens until it has heard something of a queue.
	my $hear = sub {
		my ($queue) = @_;

		until_true("a NOTIFY of $queue", sub { $heard .= scalar $listener->query('SELECT 1'); $heard =~ /"ready","queue":"$queue"/ });
	};

	$listener->query_safe('LISTEN idemq_q; LISTEN idemq_gate');
	# The worker tells the news of all queues at once, twice: what it does itself is told in the next round.
	sql($node, "SELECT idemq.create_queue('gate')");
	is($listener->query_safe("SELECT count(*) FROM idemq.claim('q')"), '0', 'a claim is turned away');
	foreach (1, 2)
	{
		sql($node, "SELECT idemq.enqueue('gate', '1')");
		$hear->('gate');
		$heard =~ s/"queue":"gate"//g;
	}
	# Of the jobs that were enqueued.
	$heard = '';
	sql($node, 'SELECT idemq.commit(id, token) FROM held');
	$hear->('q');
	like($heard, qr/"ready","queue":"q"/, 'and told when there is room');
	leave($listener);
}

# ---- rate_limit: a token lets one session claim, when it comes, with a worker and without

foreach my $worker ('on', 'off')
{
	$node->append_conf('postgresql.conf', "idemq.worker = $worker");
	$node->restart;
	fresh("lease => '1 day', rate_limit => 2, rate_period => '2 h', rate_burst => 2", 30);
	sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
	# Each claims until it has a job: a second session may be woken before the first has claimed, and then gets nothing.
	my $done = clients($node, "\\if :n = 0\nCALL idemq.wait('q', '60 days');\nWITH c AS (INSERT INTO held SELECT id, token FROM idemq.claim('q') RETURNING 1) SELECT count(*) AS n FROM c \\gset\n\\endif\n",
		'-D', 'n=0', '-c', 4, '-t', 50);

	is_soon($node, $waiters, 4, "worker $worker: sessions wait for tokens");
	advance($node, '59 min');
	# The step of the clock wakes them all: they look, and sleep again.
	is_soon($node, $waiters, 4, "worker $worker: sessions still wait");
	is_sql($node, 'SELECT count(*) FROM held', 2, "worker $worker: none comes early");
	advance($node, '1 min');
	is_soon($node, 'SELECT count(*) FROM held', 3, "worker $worker: one claims when a token comes");
	is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, "worker $worker: that was the only one");
	foreach my $held (4 .. 6)
	{
		advance($node, '1 h');
		is_soon($node, 'SELECT count(*) FROM held', $held, "worker $worker: with each token one more");
	}
	sql($node, "SELECT idemq.alter_queue('q', rate_limit => 0)");
	is($done->(), '', "worker $worker: without a limit the others end");

	# Without a burst: all of them again, when the first ones have counted for a period and the rest of its sixteenth.
	fresh("lease => '1 day', rate_limit => 2, rate_period => '2 h'", 30);
	sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
	$done = clients($node, "\\if :n = 0\nCALL idemq.wait('q', '60 days');\nWITH c AS (INSERT INTO held SELECT id, token FROM idemq.claim('q') RETURNING 1) SELECT count(*) AS n FROM c \\gset\n\\endif\n",
		'-D', 'n=0', '-c', 4, '-t', 50);
	foreach my $held (2, 4)
	{
		is_soon($node, $waiters, 6 - $held, "worker $worker: sessions wait for the period's end");
		advance($node, '119 min');
		is_soon($node, $waiters, 6 - $held, "worker $worker: sessions still wait");
		is_sql($node, 'SELECT count(*) FROM held', $held, "worker $worker: none comes early");
		advance($node, '9 min');
		is_soon($node, 'SELECT count(*) FROM held', $held + 2, "worker $worker: then two claim at once");
	}
	is($done->(), '', "worker $worker: all have claimed");
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
$node->stop;

# ---- Full tables: what cannot be counted is not handed out.
my $full = new_server('limits_full', 'idemq.max_leases' => 4, 'idemq.max_leases_per_database' => 4);
sql($full, "SELECT idemq.create_queue('lim', lease => '1 h', max_running => 3);
	SELECT count(idemq.enqueue(name, to_jsonb(n))) FROM idemq.queues, generate_series(1, 9) n;
	CREATE TABLE held AS SELECT id, token FROM idemq.claim('q', 3)");
is_sql($full, "SELECT count(*) FROM idemq.claim('lim', 5)", 1, 'a limited queue hands out what finds room in the lease table');
is_sql($full, "SELECT count(*) FROM idemq.claim('q', 2)", 2, 'one without a limit more');
is_sql($full, "SELECT refused > 0 FROM idemq.memory WHERE resource = 'leases'", 't', 'it is counted');
is_sql($full, "SELECT idemq.why(max(id)) LIKE '%idemq.max_leases%' FROM idemq.jobs WHERE status = 'pending' AND queue_id = idemq.queue_id('lim')",
	't', 'idemq.why');
is_sql($full, "SELECT count(*) FROM idemq.check() WHERE invariant = 'limits.full'", 1, 'idemq.check() warns');
is_sql($full, 'SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 2', "committed\ncommitted", 'room');
is_sql($full, "SELECT count(*) FROM idemq.claim('lim', 5)", 2, 'and it goes on, to its limit');

is_sql($full, "SELECT count(*) FROM idemq.check() WHERE severity = 'error'", 0, 'idemq.check() finds no error');

# The library as it ships, without stop points.
shipped($full);
is_sql($full, "SELECT count(*) FROM idemq.check() WHERE severity = 'error'", 0, 'nor with the shipped library');
$full->stop;

done_testing();
