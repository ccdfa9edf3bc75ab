# One tenant's work does not hold up the others': the worker's slices and fair order, the bound on
# what a claim takes back, tasks that wait for a lock, and a worker that is stopped.  slices_slow measures how long.
#
# at least 26 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('slices', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'idemq.purge_interval' => '-1', 'idemq.max_queues' => 2000, autovacuum => 'off',
	checkpoint_timeout => '1h', max_connections => 30);
my $pid = worker_pid($node);
my $jobs = 20;
# 300 KB each: a slice holds four of them at most.
my $payload = q{(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 10000) i)};

sub go_on { return kill CONT => $pid }
sub said { my ($from, $what) = @_; return scalar grep { /$what/ } split /^/, slurp_file($node->logfile, $from) }

# A queue whose jobs are dying: large ones, in the hands of workers that are gone.
sub dying
{
	my ($name) = @_;

	sql($node, "SELECT idemq.create_queue('${name}_dead', lease => '1 h'); SELECT idemq.create_queue('$name', max_attempts => 1, dead_letter_queue => '${name}_dead', lease => '1 h')");
	sql($node, "SELECT idemq.enqueue('$name', p) FROM $payload AS x(p), generate_series(1, $jobs)");
	sql($node, "SELECT count(*) FROM idemq.claim('$name', $jobs, lease => '1 ms'); SELECT pg_sleep(0.01)"); # meant to expire
	return;
}

# The attempts of a queue that have ended, with the transaction in which they did.
sub ended { my ($name) = @_; return "(SELECT a.*, a.xmin::text AS xact FROM idemq.attempts a JOIN idemq.queues USING (queue_id) WHERE name = '$name') AS e" }

# ---- Turns

# Both have come due, the large ones first, before the worker looks.
stop_worker($node);
dying('big');
sql($node, "SELECT idemq.enqueue('q', '1'); SELECT id FROM idemq.claim('q', lease => '1 ms')"); # meant to expire
sql($node, 'SELECT pg_sleep(0.01)');
go_on();
wait_until($node, 'SELECT count(*) FROM ' . ended('big'), $jobs);
is_sql($node, 'SELECT max(n) <= 4 FROM (SELECT count(*) AS n FROM ' . ended('big') . ' GROUP BY xact) AS x', 't', 'a transaction is a slice');
is_sql($node, 'SELECT count(*) <= 8 FROM ' . ended('big') . ' WHERE ended_at < (SELECT min(ended_at) FROM ' . ended('q') . ')', 't',
	'who came due second has the second turn');
is_sql($node, "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'big_dead'", $jobs, 'every death is in the dead-letter queue');

# ---- A claim

stop_worker($node);
dying('own');
sql($node, "SELECT count(*) FROM idemq.claim('own')");
is_sql($node, 'SELECT count(*) BETWEEN 1 AND 4 FROM ' . ended('own'), 't', 'a claim takes a slice back');
is_sql($node, "SELECT idemq.reap('own') >= $jobs - 4", 't', 'reap takes back all');
go_on();

# ---- A lock

my $log = log_end($node);
my $held = session($node);
sql($node, "SELECT idemq.create_queue('late', lease => '1 h'); SELECT idemq.create_queue('locked' || i, lease => '1 h', retry_base => '1 ms', retry_max => '1 ms') FROM generate_series(1, 10) i; -- meant to expire
	SELECT idemq.enqueue('locked' || i, '1') FROM generate_series(1, 10) i");
$held->query_safe('BEGIN; LOCK TABLE idemq.attempts IN SHARE MODE');
# meant to expire
sql($node, "SELECT count(*) FROM generate_series(1, 10) i, LATERAL idemq.claim('locked' || i, lease => '1 ms')");
# A job that comes due, and a head: neither needs the table that is locked.
my $waiter = waiter($node, "CALL idemq.wait('late', '2 min'); SELECT id FROM idemq.claim('late')");
sql($node, "SELECT idemq.enqueue('late', '2', delay => '50 ms')"); # meant to expire
like(answer($waiter), qr/^t\n\d+$/, 'one that comes due meanwhile wakes its waiter');
sql($node, "SELECT idemq.enqueue('q', '3', group_key => 'g')");
is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE group_key = 'g'", 'a group gets its head');
until_true('refusals of all queues', sub { said($log, qr/maintenance task "reap" for queue "locked\d+"/) >= 10 });
cmp_ok(said($log, qr/canceling statement due to lock timeout/), '>=', 10, 'each queue has been refused the lock');
is_sql($node, "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name LIKE 'locked%' AND status = 'running'", 10, 'and the lock is held still');
$held->query_safe('COMMIT');
is_soon($node, "SELECT count(*) = 10 FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name LIKE 'locked%' AND status = 'pending'", 'once it is free, all are taken back');
leave($waiter->{session}, $held);

# ---- A trigger that fails in every queue

# Of two minutes' errors, should one end meanwhile, at most 200 are in the log; all of them are counted.  Errors from
# before have used up the room that a minute has in the log, so another minute begins.
advance($node, '2 min');
$log = log_end($node);
sql($node, q[CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one' USING ERRCODE = 'P0099'; END $$;
	CREATE TRIGGER refuse BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (OLD.worker = 'broken' AND NEW.status = 'pending') EXECUTE FUNCTION refuse();
	SELECT count(idemq.create_queue('broken' || i, lease => '1 h')) FROM generate_series(1, 250) i;
	SELECT count(idemq.enqueue('broken' || i, '1')) FROM generate_series(1, 250) i]);
sql($node, q[SELECT count(*) FROM generate_series(1, 250) i, LATERAL idemq.claim('broken' || i, lease => '1 ms', worker => 'broken')]); # meant to expire
is_soon($node, "SELECT failures >= 300 FROM idemq.maintenance_tasks WHERE task = 'reap'", 'its errors are counted');
my $logged = said($log, qr/P0099 .*ERROR:/);
cmp_ok($logged, '<=', 200, 'and not all of them logged');
cmp_ok($logged, '>', 0, 'but some are');
# Between two tries none may be overdue.
is_soon($node, q[SELECT task IS NULL OR task <> '', lag > '0' FROM idemq.background_worker], 't|t', 'it is late');
sql($node, 'DROP TRIGGER refuse ON idemq.jobs');
is_soon($node, "SELECT count(*) = 250 FROM idemq.jobs WHERE status = 'pending' AND queue_id IN (SELECT queue_id FROM idemq.queues WHERE name LIKE 'broken%')", 'then all are taken back');

# ---- A worker that is stopped

# The job of queue held is in a hand; a waiter waits for it.
sub hold
{
	my ($time, @session) = @_;

	sql($node, "DELETE FROM hand; INSERT INTO hand SELECT id, token FROM idemq.claim('held')");
	return waiter($node, "CALL idemq.wait('held', '$time')", @session);
}

# The hand lets it go: the lease ends at once.
sub let_go { return sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM hand") } # meant to expire

sql($node, "SELECT idemq.create_queue('held', lease => '1 h', retry_base => '1 ms', retry_max => '1 ms'); -- meant to expire
	CREATE TABLE hand (id bigint, token bigint); SELECT idemq.enqueue('held', '1')");
# One that slept to its end before all was done tells nothing: once more, with more time.
foreach my $seconds (4, 16, 64)
{
	$waiter = hold("$seconds s");
	stop_worker($node);
	$log = log_end($node);
	let_go();
	last if sql($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $waiter->{pid} AND " . asleep()) eq '1';
	go_on();
	answer($waiter);
	leave($waiter->{session});
	wait_until($node, "SELECT count(*) = 1 FROM idemq.jobs WHERE queue_id = idemq.queue_id('held') AND status = 'pending'");
}
wait_until($node, "SELECT count(*) FROM idemq.check() WHERE invariant = 'worker.stuck'", 1);
is_sql($node, "SELECT pid, stuck_for BETWEEN '00:00:02' AND '1 h' FROM idemq.background_worker", "$pid|t", 'check() says so, and idemq.background_worker');
# Who slept before hears of nothing but commits, and finds it at its own end: by the claim that follows.
is(answer($waiter), 'f', 'a waiter of before sleeps to its end');
sql($node, "DELETE FROM hand; INSERT INTO hand SELECT id, token FROM idemq.claim('held')");
is_sql($node, 'SELECT count(*) FROM hand', 1, 'the next claim takes the lease back, and the job');

# Who begins to wait meanwhile does what is due.
$waiter = waiter($node, "CALL idemq.wait('held', '5 min')", $waiter->{session});
let_go();
is(answer($waiter), 't', 'a lease is taken back by a waiter that finds the worker still');
$waiter = hold('5 min', $waiter->{session});
sql($node, "SELECT idemq.enqueue('held', '2', group_key => 'g')");
is(answer($waiter), 't', 'a group gets its head');

# Claims promote first: jobs without a group keep no head waiting.
sql($node, "SELECT idemq.enqueue('held', '3', priority => 0), idemq.enqueue('held', '4', priority => 0), idemq.enqueue('held', '5', group_key => 'h')");
is_sql($node, "SELECT payload FROM idemq.claim('held')", 3, 'a claim gets a job without a group');
is_sql($node, "SELECT status FROM idemq.jobs WHERE group_key = 'h'", 'pending', 'and has made a head before');
is(said($log, qr/has not moved/), 0, 'the log is silent');
go_on();
is_soon($node, "SELECT count(*) = 0 FROM idemq.check() WHERE invariant = 'worker.stuck'", 'it moves again');
is_sql($node, 'SELECT pid, stuck_for FROM idemq.background_worker', "$pid|", 'says idemq.background_worker');
sql($node, "SELECT idemq.enqueue('q', '4', delay => '1 ms')"); # meant to expire
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() finds nothing');
is(unexpected($node, qw(55P03 57P01 P0099)), '', 'no other errors');

leave($waiter->{session});
$node->stop;
done_testing();
