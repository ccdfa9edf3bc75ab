# The background worker has nothing to do where there is nothing that it can do: it
# is not kept busy by what it cannot change yet.  Its tasks are counted: a worker that
# goes round and round runs many thousand of them in a second.
# at least 15 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_server('idle', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', autovacuum => 'off');
my $runs = 'SELECT sum(runs) FROM idemq.maintenance_tasks';
my $claim = "INSERT INTO held SELECT id, token FROM idemq.claim('q')";
my $holder = session($node);

sub is_idle
{
	my ($name) = @_;
	my $began = time;
	my $before = sql($node, $runs);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql($node, 'SELECT pg_sleep(0.3)');
	my $count = sql($node, $runs) - $before;

	note "figure: $count tasks: $name";
	# However long that took.
	return cmp_ok($count, '<', 400 * (time - $began), "idle: $name");
}

worker_pid($node);
sql($node, 'CREATE TABLE held (id bigint, token bigint)');
is_idle('nothing to do');

$holder->query_safe("BEGIN; SELECT idemq.create_queue('later'); SELECT idemq.enqueue('later', '1')");
is_idle('a queue that is not committed');
# In the transaction: the worker may tell before a statement after it, even before the COMMIT's answer.
my $told = $holder->query_safe("LISTEN idemq_later; COMMIT");
foreach (1 .. 3000)
{
	$told .= $holder->query('SELECT');
	last if $told =~ /"ready"/;
	select undef, undef, undef, 0.02;
}
like($told, qr/ready/, 'it is looked at when it is committed');
$holder->query_safe('UNLISTEN *');

# A running job that memory knows nothing of, and whose row cannot be read for sure: the
# search for such jobs begins again after a second, not at once.
sql($node, "SELECT idemq.create_queue('lost', lease => '1 h'); SELECT idemq.enqueue('lost', '1')");
sql($node, "SELECT id FROM idemq.claim('lost'); BEGIN; SELECT idemq.release(id, token) FROM idemq.jobs WHERE queue_id = idemq.queue_id('lost'); PREPARE TRANSACTION 'idle'");
my $worker = stop_worker($node);
sql($node, "ROLLBACK PREPARED 'idle'");
$holder->query_safe("BEGIN; SELECT id FROM idemq.jobs WHERE status = 'running' FOR UPDATE");
kill 'CONT', $worker;
wait_until($node, "SELECT recovering FROM idemq.metrics WHERE queue = 'lost'");
is_idle('a search for lost leases that a held row keeps from its end');
is_sql($node, "SELECT recovering FROM idemq.metrics WHERE queue = 'lost'", 't', 'it is not at its end');
$holder->query_safe('ROLLBACK');
is_soon($node, "SELECT NOT recovering FROM idemq.metrics WHERE queue = 'lost'", 'when the row is free it is');
sql($node, "SELECT idemq.drop_queue('lost', force => true)");

sql($node, "SELECT idemq.create_queue('gone'); DELETE FROM idemq.queues WHERE name = 'gone'");
is_idle('a queue deleted by hand');

sql($node, "SELECT idemq.enqueue('q', '1')");
$holder->query_safe('BEGIN; SELECT id FROM idemq.jobs FOR UPDATE');
is_idle('a ready job that somebody holds');
$holder->query_safe('ROLLBACK');
sql($node, $claim);
$holder->query_safe('BEGIN; SELECT id FROM idemq.jobs FOR UPDATE');
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held");  # meant to expire
is_idle('an expired lease of a job that somebody holds');
$holder->query_safe('ROLLBACK');
is_soon($node, 'SELECT count(*) > 0 FROM idemq.attempts', 'it is reaped when he lets go');
sql($node, "SELECT idemq.pause('q')");
is_idle('a paused queue with a job');
sql($node, "SELECT idemq.resume('q'); SELECT idemq.purge('q'); SELECT idemq.enqueue('q', '1', expires_in => '1 day')");
advance($node, '1 day');
is_idle('a job that expired');

# More tasks fail than one would think: each is left alone for a while.
my $queues = 100;
sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
	SELECT idemq.create_queue('r' || n) FROM generate_series(1, $queues) n;
	SELECT idemq.enqueue('r' || n, '1') FROM generate_series(1, $queues) n; TRUNCATE held;
	INSERT INTO held SELECT id, token FROM generate_series(1, $queues) n, idemq.claim('r' || n);
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
	CREATE TRIGGER refuse BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (NEW.status = 'pending') EXECUTE FUNCTION refuse()");
my $failures = "SELECT failures FROM idemq.maintenance_tasks WHERE task = 'reap'";
my $began = time;
my $failed = sql($node, $failures);
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held");  # meant to expire
# Each is tried again after a second, then after two: n times take no less than 2 ^ (n - 1) - 1 seconds.
wait_until($node, "SELECT ($failures) >= $failed + $queues");
$failed = sql($node, $failures) - $failed;
cmp_ok($failed, '<=', $queues * (1 + log(1 + time - $began) / log(2)), 'failing tasks are not tried again and again');
is_idle('more failing tasks than a few');
sql($node, 'DROP FUNCTION refuse CASCADE');
advance($node, '0');
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'pending'", $queues, 'and done in the end');

leave($holder);
$node->stop;
done_testing();
