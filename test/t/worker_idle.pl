# The background worker has nothing to do where there is nothing that it can do: it
# is not kept busy by what it cannot change yet.  Its transactions are counted: a
# worker that goes round and round has many thousand of them in a second.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_server('idle', 'idemq.worker' => 'on', autovacuum => 'off');
my $transactions = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'";
my $claim = "INSERT INTO held SELECT id, token FROM idemq.claim('q')";
my $holder = session($node);

sub is_idle
{
	my ($name) = @_;
	my $began = time;
	my $before = sql($node, $transactions);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql($node, 'SELECT pg_sleep(2.5)');
	my $count = sql($node, $transactions) - $before;

	note "figure: $count transactions: $name";
	# On a busy machine this takes longer than that.
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
	last if $told =~ /ready/;
	select undef, undef, undef, 0.02;
}
like($told, qr/ready/, 'it is looked at when it is committed');
$holder->query_safe('UNLISTEN *');

# A job in processing that memory knows nothing of, and whose row cannot be read for sure: the
# search for such jobs begins again after a second, not at once.
sql($node, "SELECT idemq.create_queue('lost', lease => '1 h'); SELECT idemq.enqueue('lost', '1')");
sql($node, "SELECT id FROM idemq.claim('lost'); BEGIN; SELECT idemq.release(id, token) FROM idemq.jobs WHERE queue_id = idemq.queue_id('lost'); PREPARE TRANSACTION 'idle'");
my $worker = stop_worker($node);
sql($node, "ROLLBACK PREPARED 'idle'");
$holder->query_safe("BEGIN; SELECT id FROM idemq.jobs WHERE status = 'processing' FOR UPDATE");
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
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held");
is_idle('an expired lease of a job that somebody holds');
$holder->query_safe('ROLLBACK');
ok($node->poll_query_until('postgres', "SELECT count(*) > 0 FROM idemq.attempts"), 'it is reaped when he lets go');
sql($node, "SELECT idemq.pause('q')");
is_idle('a paused queue with a job');
sql($node, "SELECT idemq.resume('q'); SELECT idemq.purge('q'); SELECT idemq.enqueue('q', '1', expires_in => '10 ms')");
is_idle('a job that expired');

# More chores fail than one would think: each is left alone for a while.
my $queues = 100;
sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
	SELECT idemq.create_queue('r' || n) FROM generate_series(1, $queues) n;
	SELECT idemq.enqueue('r' || n, '1') FROM generate_series(1, $queues) n; TRUNCATE held;
	INSERT INTO held SELECT id, token FROM generate_series(1, $queues) n, idemq.claim('r' || n);
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
	CREATE TRIGGER refuse BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (NEW.status = 'pending') EXECUTE FUNCTION refuse()");
# A transaction is reported up to a second after it: those of a hundred new queues are not to be counted.
wait_until($node, "SELECT state = 'idle' AND state_change < clock_timestamp() - interval '1.5 s'
	FROM pg_stat_activity WHERE backend_type = 'idemq worker'");
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held");
is_idle('more failing chores than a few');
my $errors;
until_true('each is tried', sub { ($errors = () = slurp_file($node->logfile) =~ /ERROR:  refused/g) >= $queues });
cmp_ok($errors, '<', 5 * $queues, 'and not again and again');
sql($node, 'DROP FUNCTION refuse CASCADE');
ok($node->poll_query_until('postgres', "SELECT count(*) FROM idemq.jobs WHERE status = 'pending'", $queues), 'and done in the end');

$holder->quit;
$node->stop;
done_testing();
