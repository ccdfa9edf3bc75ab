# One key used again and again while a snapshot is held: what a use reads does not grow
# with the dead versions of those before.  Counted in buffers, which do not depend on the
# machine.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

use constant USES => 1500;

my $node = new_server('hot', autovacuum => 'off', 'idemq.worker' => 'off');

sql($node, <<'SQL');
SELECT idemq.create_queue('hot', idempotency_window => '1 us', lease => '1 h');
-- The buffers that a query has read.
CREATE FUNCTION buffers(query text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	plan json;
BEGIN
	EXECUTE 'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ' || query INTO plan;
	RETURN (plan->0->'Plan'->>'Shared Hit Blocks')::bigint + (plan->0->'Plan'->>'Shared Read Blocks')::bigint;
END $$;
CREATE TABLE uses (kind text, nth int, enqueued bigint, finished bigint);
-- Each use is a transaction: a key is free when its job's commit is.
CREATE PROCEDURE use_key(kind text, uses int) LANGUAGE plpgsql AS $$
DECLARE
	first bigint;
	second bigint;
BEGIN
	FOR nth IN 1 .. uses LOOP
		first := public.buffers(format('SELECT 1 / (outcome = ''accepted'')::int FROM idemq.enqueue(''hot'', ''%s'', key => %L)', nth, kind));
		COMMIT;
		second := public.buffers(format('SELECT idemq.commit(id, token) FROM idemq.claim(''hot'')'));
		COMMIT;
		INSERT INTO public.uses VALUES (kind, nth, first, second);
		COMMIT;
	END LOOP;
END $$;
SQL

# The median of the buffers of uses from $from to $to.
sub median
{
	my ($kind, $column, $from, $to) = @_;

	return sql($node, "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY $column) FROM uses "
		  . "WHERE kind = '$kind' AND nth BETWEEN $from AND $to");
}

my $holder = session($node);
my $user = session($node);

$holder->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idemq.jobs');
$user->query_safe("CALL use_key('key', @{[USES]})");
for my $column ('enqueued', 'finished')
{
	my ($first, $last) = (median('key', $column, 11, 60), median('key', $column, USES - 50, USES));

	note "$column: $first buffers at first, $last in the end";
	cmp_ok($last, '<=', 2 * $first, "$column: no more buffers after @{[USES]} uses");
}

# The key is that of one job, whoever asks; all of them were the key's.
is_sql($node, "SELECT count(*), count(key) FROM idemq.jobs WHERE queue_id = (SELECT queue_id FROM idemq.queues WHERE name = 'hot')",
	USES . '|1', 'one job has the key');
is($holder->query_safe('SELECT count(*) FROM idemq.jobs; COMMIT'), 0, 'the snapshot was held all the time');
is_sql($node, 'SELECT count(*) FROM idemq.check()', 0, 'nothing is amiss');

done_testing();
