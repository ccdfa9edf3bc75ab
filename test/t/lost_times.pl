# What shared memory says of when something is to be done, and of who is to be told, is not lost
# with an error, nor with the process that was about to do it.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('lost', 'idemq.worker' => 'on', 'max_worker_processes' => 16, jit => 'off');
$node->start;
sql($node, q[CREATE EXTENSION idemq;
	CREATE TABLE done (n int, pid int DEFAULT pg_backend_pid());
	CREATE FUNCTION f(payload jsonb) RETURNS void LANGUAGE sql AS 'INSERT INTO public.done VALUES ((payload)::int)';
	SELECT idemq.create_queue('q')]);

sub has_failed
{
	my ($chore, $queue) = @_;

	foreach (1 .. 600)
	{
		return if slurp_file($node->logfile) =~ /chore "$chore" of queue "$queue"/;
		select undef, undef, undef, 0.1;
	}
	die "chore $chore of queue $queue has not failed";
}

# ---- A chore that fails, here for a lock, has its time again

# Nothing else makes a queue's handler due: its jobs were there before it.
sql($node, "SELECT idemq.enqueue('q', '1')");
my $holder = session($node);
$holder->query_safe('BEGIN; LOCK TABLE idemq.jobs IN ACCESS EXCLUSIVE MODE');
sql($node, "SELECT idemq.set_handler('q', 'public.f(jsonb)', max_idle => '1 ms')");
has_failed('handle', 'q');
$holder->query_safe('COMMIT');
is_soon($node, 'SELECT count(*) FROM done', 1, 'a handler whose start has failed for a lock is started after it');

# What comes due by time: a setting has the worker look when the next job does.
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
sql($node, "SELECT idemq.enqueue('q', '2', run_at => now() + interval '3 s')");
$holder->query_safe('BEGIN; LOCK TABLE idemq.jobs IN ACCESS EXCLUSIVE MODE');
sql($node, "SELECT idemq.alter_queue('q', max_attempts => 7)");
has_failed('due', 'q');
$holder->query_safe('COMMIT');
is_soon($node, 'SELECT count(*) FROM done', 2, 'a job that comes due after such a failure is run');

$node->stop;
done_testing;
