# What shared memory says of when something is to be done, and of who is to be told, is not lost
# with an error, nor with the process that was about to do it.
# at least 10 assertions
# stops: handler_asked_to_leave idemq_qstates_forget_database

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no stop points in the library' unless has_stops();

my $node = new_node('lost', 'idemq.worker' => 'on', 'max_worker_processes' => 16, jit => 'off', 'idemq.test_clock' => 'on');
$node->start;
sql($node, q[CREATE EXTENSION idemq;
	CREATE TABLE done (n int, pid int DEFAULT pg_backend_pid());
	CREATE FUNCTION f(payload jsonb) RETURNS void LANGUAGE sql AS 'INSERT INTO public.done VALUES ((payload)::int)';
	SELECT idemq.create_queue('q')]);

# ---- A task that fails, here for a lock, has its time again

# Nothing else makes a queue's handler due: its jobs were there before it.
sql($node, "SELECT idemq.enqueue('q', '1')");
my $holder = session($node);
$holder->query_safe('BEGIN; LOCK TABLE idemq.jobs IN ACCESS EXCLUSIVE MODE');
# meant to expire: the process
sql($node, "SELECT idemq.set_handler('q', 'public.f(jsonb)', max_idle => '1 ms')");
wait_logged($node, qr/maintenance task "handle" for queue "q"/);
$holder->query_safe('COMMIT');
is_soon($node, 'SELECT count(*) FROM done', 1, 'a handler whose start has failed for a lock is started after it');

# What comes due by time: a setting has the worker look when the next job does.
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
sql($node, "SELECT idemq.enqueue('q', '2', delay => '1 h')");
$holder->query_safe('BEGIN; LOCK TABLE idemq.jobs IN ACCESS EXCLUSIVE MODE');
sql($node, "SELECT idemq.alter_queue('q', max_attempts => 7)");
wait_logged($node, qr/maintenance task "due" for queue "q"/);
$holder->query_safe('COMMIT');
advance($node, '2 h');
is_soon($node, 'SELECT count(*) FROM done', 2, 'a job that comes due after such a failure is run');

sql($node, "SELECT idemq.drop_handler('q')");

# ---- Who sleeps is told, whatever becomes of the slot of its queue

my $handlers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event IN ('Extension', 'IdemqHandlerMain')";

# A handler's process sleeps among those of its queue's slot, and TRUNCATE takes all slots away: the
# queue that is looked up first gets the first one.
sql($node, q[SELECT idemq.create_queue('r'); SELECT idemq.set_handler('r', 'public.f(jsonb)', max_idle => '10 min'); SELECT idemq.enqueue('r', '3')]);
is_soon($node, 'SELECT count(*) FROM done WHERE n = 3', 1, 'a handler runs a job');
wait_until($node, $handlers, 1);
sql($node, 'TRUNCATE idemq.jobs');
sql($node, "SELECT idemq.enqueue('r', '4')");
is_soon($node, 'SELECT count(*) FROM done WHERE n = 4', 1, 'and one of a queue that has another slot by then');
wait_until($node, $handlers, 1);

# The end of a process that sleeps leaves no bit behind, to be woken in place of somebody else.  Who is
# next goes round by words of 64, for one session: so one of these meets it.
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler'", 0);
sql($node, "SELECT idemq.drop_handler('r')");
my @waiters = map { waiter($node, "CALL idemq.wait('r', '10 min')") } 1 .. 4;
my $worker = stop_worker($node);
foreach my $n (1 .. 4)
{
	$holder->query_safe("SELECT idemq.enqueue('r', '5')");
}
is(join(' ', map { answer($_) } @waiters), 't t t t', 'each job wakes one, when a process has ended that slept');
kill 'CONT', $worker;
leave(map { $_->{session} } @waiters);
sql($node, "SELECT count(*) FROM idemq.claim('r', 10)");

{
	# It looks again while the slot is there still, and sleeps among those of a slot that is no queue's.
	sql($node, "SELECT count(*) FROM idemq.claim('q'); SELECT count(*) FROM idemq.claim('r')");
	my $waiter = waiter($node, "CALL idemq.wait('r', '10 min')");
	my $stop = stop_at($holder->{backend}, 'idemq_qstates_forget_database');

	$holder->query_until(qr/sent/, "\\echo sent\nTRUNCATE idemq.jobs;\n");
	$stop->();
	wait_until($node, 'SELECT count(*) FROM pg_stat_activity WHERE ' . asleep(), 1);
	$stop->();
	$holder->query_safe('SELECT 1');
	sql($node, "SELECT idemq.enqueue('r', '6')");
	is(answer($waiter), 't', 'a waiter that has looked in the midst of TRUNCATE');
	leave($waiter->{session});
	sql($node, "SELECT count(*) FROM idemq.claim('r', 10)");
}

# ---- A process that is asked to leave, and cannot, does not keep others from being asked

sql($node, q[CREATE FUNCTION g(payload jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_advisory_xact_lock((payload)::int); INSERT INTO public.done VALUES ((payload)::int)';
	ALTER SYSTEM SET idemq.max_handler_workers = 2]);
reload_worker($node);
$holder->query_safe('SELECT pg_advisory_lock(101), pg_advisory_lock(102)');
sql($node, "SELECT idemq.create_queue('h$_'); SELECT idemq.set_handler('h$_', 'public.g(jsonb)', max_idle => '10 min')") foreach 1 .. 3;
foreach (1, 2)
{
	sql($node, "SELECT idemq.enqueue('h$_', '10$_')");
	wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event_type = 'Lock'", $_);
}
my @busy = split /\n/, sql($node, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
my @counts = map { count_at($_, 'handler_asked_to_leave') } @busy;
# The third queue has one of them asked, after their fair turn of 5 s; then the other one has nothing to do.
sql($node, "SELECT idemq.enqueue('h3', '103')");
advance($node, '1 min');
my $asked;
until_true('a process is asked to leave', sub {
	my @found = grep { ($counts[$_]->())[0] } 0 .. $#busy;
	$asked = $busy[ $found[0] ] if @found;
	return $asked;
});
my $free = sql($node, "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid <> $asked");
$holder->query_safe("SELECT pg_advisory_unlock($free)");
advance($node, '1 min');
is_soon($node, 'SELECT count(*) FROM done WHERE n = 103', 1, 'a handler without a process gets that of another one, which is idle');
is_sql($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid = $asked", 1, 'not of the one that was asked and cannot');
$holder->query_safe('SELECT pg_advisory_unlock_all()');
is_soon($node, 'SELECT count(*) FROM done WHERE n > 100', 3, 'and all are done');

leave($holder);

# With the shipped library.
shipped($node);
sql($node, "SELECT idemq.enqueue('h1', '104')");
is_soon($node, 'SELECT count(*) FROM done WHERE n > 100', 4, 'and after a restart as well');
$node->stop;
done_testing;
