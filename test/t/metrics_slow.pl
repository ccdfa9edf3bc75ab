# idemq.metrics: gauges are exact after counts under load.  The rest is in metrics.pl.
# slow: six pgbench clients while counts run
# at least 5 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('metrics');

# What the table says and the gauges do not.  Each queue has seven gauges: none may be missing.
my $drift = "SELECT string_agg(q.name || ' ' || status || ' ' || coalesce(gauge::text, 'nothing') || ' instead of ' || jobs, ', ') FROM idemq.queues q
	LEFT JOIN idemq.metrics m USING (queue_id),
	LATERAL (VALUES ('pending', pending), ('blocked', blocked), ('running', running), ('retrying', retrying),
		('completed', completed), ('dead', dead), ('cancelled', cancelled)) c(status, gauge),
	LATERAL (SELECT count(*) AS jobs FROM idemq.jobs j WHERE j.queue_id = q.queue_id AND j.status::text = c.status) j
	WHERE jobs IS DISTINCT FROM gauge";

# Some transactions are rolled back; the others do everything that changes a gauge.
my $load = q{
	SELECT idemq.enqueue('q', '1') FROM generate_series(1, 3);
	BEGIN;
	SELECT idemq.try_commit(id, token) FROM idemq.claim('q', 2);
	COMMIT;
	BEGIN;
	SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q');
	SAVEPOINT a;
	SELECT idemq.cancel(id) FROM idemq.enqueue('q', '2');
	ROLLBACK TO a;
	DELETE FROM idemq.jobs WHERE id = (SELECT id FROM idemq.jobs WHERE status = 'completed' LIMIT 1 FOR UPDATE SKIP LOCKED);
	\if :undo
	ROLLBACK;
	\else
	COMMIT;
	\endif
};
my $counts = 0;

# More load until there were enough counts: on a busy machine a few take longer than it lasts.
for (my $round = 0; $round < 10 && $counts <= 3; $round++)
{
	my @runs = map { clients($node, $load, '-D', "undo=$_", '-c', 3, '-T', 4) } 0, 1;
	my $until = time + 4;

	while (time < $until)
	{
		sql($node, 'SELECT idemq.recount()');
		$counts++;
	}
	is($_->(), '', 'the clients came through') foreach @runs;
}
cmp_ok($counts, '>', 3, "counts under load: $counts");
is_sql($node, "BEGIN; CREATE TEMP TABLE before AS SELECT pending FROM idemq.metrics WHERE queue = 'q';
	DO \$\$ BEGIN PERFORM idemq.enqueue('q', '1'); END \$\$;
	SELECT m.pending = before.pending FROM idemq.metrics m, before WHERE queue = 'q'; ROLLBACK", 't', 'the gauges come from memory');
is_sql($node, $drift, '', 'and are exact');
$node->stop;
done_testing();
