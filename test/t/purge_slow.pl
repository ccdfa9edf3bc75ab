# Retention and expiry do not go round and round: while a snapshot is held, and while jobs wait that expire later.
# slow: it counts transactions for five seconds
#
# at least 3 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;
use Time::HiRes qw(time);

my $node = new_server('purge', 'idemq.worker' => 'on', 'idemq.purge_interval' => '100ms', autovacuum => 'off');
my $other = session($node);
my $transactions = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'";

sub does_not_go_round
{
	my ($name) = @_;
	my $began = time;
	my $before = sql($node, $transactions);

	sql($node, 'SELECT pg_sleep(2.5)');
	cmp_ok(sql($node, $transactions) - $before, '<', 400 * (time - $began), "$name: it does not go round and round");
	return;
}

sql($node, "SELECT idemq.create_queue('mark', retention => '1 ms', idempotency_window => '0')");
$other->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idemq.jobs');
sql($node, "SELECT count(*) FROM idemq.enqueue_many('mark', array_fill('1'::jsonb, ARRAY[5000]));
	SELECT count(*) FROM idemq.claim('mark', 5000) c, idemq.try_commit(c.id, c.token)");
is_soon($node, "SELECT count(*) = 0 FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = 'mark'", 'beside a held snapshot');
does_not_go_round('a held snapshot');
$other->query_safe('COMMIT');
leave($other);

# Of many jobs that wait, one expires after the other.
sql($node, "SELECT idemq.create_queue('far'); SELECT idemq.pause('far');
	SELECT count(*) FROM idemq.enqueue_many('far', array_fill('1'::jsonb, ARRAY[30000]), delays => array_fill('30 min'::interval, ARRAY[30000]));
	SELECT count(idemq.enqueue('far', '1', expires_in => n * interval '10 ms')) FROM generate_series(1, 300) n");
does_not_go_round('jobs that expire');

$node->stop;
done_testing();
