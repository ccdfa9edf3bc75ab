# How long a task waits for a lock, of sixty queues whose leases have ended: none for long.
# slow: it measures times
# asserts times
#
# at least 6 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('slices', 'idemq.worker' => 'on', 'idemq.purge_interval' => '-1', 'idemq.max_queues' => 200, autovacuum => 'off',
	checkpoint_timeout => '1h', max_connections => 30);

worker_pid($node);
sub said { my ($from, $what) = @_; return scalar grep { /$what/ } split /^/, slurp_file($node->logfile, $from) }

my $log = log_end($node);
my $held = session($node);
sql($node, "SELECT idemq.create_queue('late', lease => '1 h'); SELECT idemq.create_queue('locked' || i, lease => '1 h', retry_base => '1 ms', retry_max => '1 ms') FROM generate_series(1, 60) i;
	SELECT idemq.enqueue('locked' || i, '1') FROM generate_series(1, 60) i");
$held->query_safe('BEGIN; LOCK TABLE idemq.attempts IN SHARE MODE');
sql($node, "SELECT count(*) FROM generate_series(1, 60) i, LATERAL idemq.claim('locked' || i, lease => '1 ms')");
# A job that comes due, and a head: neither needs the table that is locked.
my $waiter = waiter($node, "CALL idemq.wait('late', '2 min'); SELECT id FROM idemq.claim('late')");
sql($node, "SELECT idemq.enqueue('late', '2', delay => '50 ms')");
like(answer($waiter), qr/^t\n\d+$/, 'one that comes due meanwhile wakes its waiter');
sql($node, "SELECT idemq.enqueue('q', '3', group_key => 'g')");
is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE group_key = 'g'", 'a group gets its head');
until_true('refusals of all queues', sub { said($log, qr/maintenance task "reap" for queue "locked\d+"/) >= 60 });
is(said($log, qr/canceling statement due to lock timeout/) >= 60, 1, 'each queue has been refused the lock');
is_sql($node, "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name LIKE 'locked%' AND status = 'running'", 60, 'and the lock is held still');
# From one refusal to the next, half of the times: a worker that the machine gives no processor for a while is late once.
my $file = $node->logfile;
my @refused = map { /^\S+ (\d+):(\d+):(\d+\.\d+) .*canceling statement due to lock timeout/ ? 3600 * $1 + 60 * $2 + $3 : () } split /^/,
  slurp_file($file, $log);
my @waits = sort { $a <=> $b } map { $refused[$_] - $refused[ $_ - 1 ] } 1 .. $#refused;
cmp_ok($waits[ @waits / 2 ], '<', 1, 'no task has waited for long');
$held->query_safe('COMMIT');
is_soon($node, "SELECT count(*) = 60 FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name LIKE 'locked%' AND status = 'pending'", 'once it is free, all are taken back');
leave($waiter->{session}, $held);

$node->stop;
done_testing();
