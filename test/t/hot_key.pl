# One key used again and again while a snapshot is held: what a use reads does not grow
# with the dead versions of those before.  Counted in buffers, which do not depend on the
# machine.
# at least 8 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

use constant USES => 600;

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
-- The same of once.
CREATE PROCEDURE use_once(uses int) LANGUAGE plpgsql AS $$
DECLARE
	once bigint;
BEGIN
	FOR nth IN 1 .. uses LOOP
		once := public.buffers('SELECT 1 / idemq.once(''hot'', ''key'', ''1 us'')::int');
		COMMIT;
		INSERT INTO public.uses VALUES ('once', nth, once, once);
		COMMIT;
	END LOOP;
END $$;
-- The same of a job that waits, and is replaced.
CREATE PROCEDURE replace_key(uses int) LANGUAGE plpgsql AS $$
DECLARE
	replaced bigint;
BEGIN
	FOR nth IN 0 .. uses LOOP
		replaced := public.buffers(format('SELECT 1 / (outcome = %L)::int FROM idemq.enqueue(''hot'', ''%s'', key => ''new'', on_duplicate => ''replace'')',
			CASE nth WHEN 0 THEN 'accepted' ELSE 'duplicate' END, nth));
		COMMIT;
		INSERT INTO public.uses VALUES ('replace', nth, replaced, replaced);
		COMMIT;
	END LOOP;
END $$;
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

# Some 100 versions fit on a page, of which one has an index entry.
$user->query_safe("CALL use_once(@{[USES]})");
my ($first, $last) = (median('once', 'enqueued', 11, 60), median('once', 'enqueued', USES - 50, USES));

note "once: $first buffers at first, $last in the end";
cmp_ok($last, '<=', $first + USES / 20, 'once: a few more buffers for 100 uses');

$user->query_safe("CALL replace_key(@{[USES]})");
($first, $last) = (median('replace', 'enqueued', 11, 60), median('replace', 'enqueued', USES - 50, USES));
note "replace: $first buffers at first, $last in the end";
cmp_ok($last, '<=', 2 * $first, "replace: no more buffers after @{[USES]} uses");
is_sql($node, "SELECT payload FROM idemq.claim('hot')", USES, 'the newest payload');

# The key is that of one job, whoever asks; all of them were the key's.
is_sql($node, "SELECT count(*), count(key) FROM idemq.jobs WHERE queue_id = (SELECT queue_id FROM idemq.queues WHERE name = 'hot')",
	(USES + 1) . '|2', 'one job has each key');
is($holder->query_safe('SELECT count(*) FROM idemq.jobs; COMMIT'), 0, 'the snapshot was held all the time');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'nothing is amiss');

$node->stop;
done_testing();
