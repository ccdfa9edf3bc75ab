# Jobs that depend on others: ten thousand parents and children; graphs that are enqueued, run, rolled back,
# failed and brought back all at once.  The rest is in dependencies.pl.
# slow: ten thousand jobs three times over, and clients that run for seconds
# at least 29 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes;

my $node = new_server('dependencies', 'idemq.worker' => 'on', max_prepared_transactions => 4, max_connections => 50);

sql($node, q{
	SELECT idemq.create_queue('parents', lease => '1 h', max_attempts => 1), idemq.create_queue('children', lease => '1 h', max_attempts => 1);
	CREATE FUNCTION parent(p text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.enqueue('parents', to_jsonb(p), key => p) $$;
	CREATE FUNCTION child(p text, VARIADIC parents text[]) RETURNS bigint LANGUAGE sql AS $$
		SELECT id FROM idemq.enqueue('children', to_jsonb(p), key => p, depends_on =>
			(SELECT array_agg(id) FROM idemq.jobs WHERE key = ANY (parents))) $$;
	CREATE FUNCTION done(p text) RETURNS text LANGUAGE sql AS $$ SELECT idemq.commit_once(id, to_jsonb(p)) FROM idemq.jobs WHERE key = p $$;
	CREATE FUNCTION status(p text) RETURNS text LANGUAGE sql AS $$ SELECT status FROM idemq.jobs WHERE key = p $$;
});

# Each case has jobs of its own names.
sub status_soon
{
	my ($key, $status, $name, $at) = @_;

	is_soon($at // $node, "SELECT status('$key')", $status, $name);
}

# ---- Many

my $many = 10_000;
sql($node, "SELECT count(*) FROM idemq.enqueue_many('parents', array_fill('\"many\"'::jsonb, ARRAY[$many]))");
my $since = Time::HiRes::time;
sql($node, "SELECT id FROM idemq.enqueue('children', '1', key => 'of many', depends_on => (SELECT array_agg(id) FROM idemq.jobs WHERE payload = '\"many\"'))");
note sprintf 'a child of %d parents is enqueued in %.0f ms', $many, 1000 * (Time::HiRes::time - $since);
my $open = session($node);
$open->query_safe(q{BEGIN; SELECT idemq.commit_once(min(id)) FROM idemq.jobs WHERE payload = '"many"'});
$since = Time::HiRes::time;
sql($node, q{SELECT idemq.commit_once(id) FROM (SELECT id FROM idemq.jobs WHERE payload = '"many"' ORDER BY id DESC LIMIT } . ($many - 1) . ') p');
is_sql($node, "SELECT status('of many')", 'blocked', 'all parents but one are done');
$open->query_safe('COMMIT');
status_soon('of many', 'pending', 'all of many parents are done, one by one from the last');
note sprintf 'they are done in %.1f s', Time::HiRes::time - $since;
sql($node, "SELECT parent('one')");
my $busy = stop_worker($node);
sql($node, "SELECT count(idemq.enqueue('children', to_jsonb(n), depends_on => ARRAY[(SELECT id FROM idemq.jobs WHERE key = 'one')])) FROM generate_series(1, $many) n");
is_sql($node, "SELECT used, refused FROM idemq.memory WHERE resource = 'groups'", '0|0', 'while nobody looks at them they take no entry of a group');
kill 'CONT', $busy;
my $waiting = "SELECT count(*) FROM idemq.children WHERE waits_for = (SELECT id FROM idemq.jobs WHERE key = 'one')";
is_sql($node, $waiting, $many, 'as many children of one parent');
$since = Time::HiRes::time;
sql($node, "SELECT done('one')");
is_soon($node, $waiting, '0', 'are all released');
note sprintf 'in %.1f s', Time::HiRes::time - $since;
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
sql($node, "SELECT idemq.purge('children'), idemq.purge('parents')");
# Statistics say that every job is the parent of all others.
sql($node, "SELECT idemq.create_queue('dropped'), parent('two')");
sql($node, "SELECT count(idemq.enqueue('dropped', to_jsonb(n), depends_on => ARRAY[(SELECT id FROM idemq.jobs WHERE key = 'two')])) FROM generate_series(1, $many) n");
sql($node, 'ANALYZE idemq.jobs, idemq.dependencies, idemq.children');
is_state($node, "SET statement_timeout = '50 ms'; SELECT idemq.drop_queue('dropped', force => true)", '57014', 'a drop of many children can be cancelled on its way');
is_sql($node, "SELECT count(*) FROM idemq.job_list WHERE queue = 'dropped'", $many, 'and then nothing is dropped');
my $entries = "SELECT sum(idx_tup_read) FROM pg_stat_all_indexes WHERE schemaname = 'idemq' AND relname IN ('children', 'dependencies')";
my $before = sql($node, $entries);
$since = Time::HiRes::time;
sql_counted($node, "SELECT idemq.drop_queue('dropped', force => true)");
note sprintf 'dropped in %.1f s', Time::HiRes::time - $since;
cmp_ok(sql($node, $entries) - $before, '<', 100 * $many, 'a queue of many children is dropped without a look at all of them for each');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
sql($node, "SELECT idemq.purge('parents')");

# ---- A parent of very many children ends, with statistics of when the tables were full, and then of when they had been emptied

my $late = q{DO $$ DECLARE
	claimed record; at timestamptz; worst interval := '0';
BEGIN
	WHILE EXISTS (SELECT FROM idemq.jobs WHERE queue_id = idemq.queue_id('fan') AND status = 'blocked') LOOP
		SELECT id, token INTO claimed FROM idemq.claim('short');
		ASSERT claimed.id IS NOT NULL;
		COMMIT;
		at := clock_timestamp();
		LOOP
			PERFORM pg_sleep(0.001);
			EXIT WHEN (SELECT status <> 'running' FROM idemq.jobs WHERE id = claimed.id) IS NOT FALSE;
			COMMIT;
		END LOOP;
		worst := greatest(worst, clock_timestamp() - at - interval '100 ms');
		COMMIT;
	END LOOP;
	RAISE WARNING 'late % ms', round(extract(epoch FROM worst) * 1000);
END $$};
sql($node, "SELECT idemq.create_queue('short', lease => '100 ms', max_attempts => 1000000), idemq.create_queue('fan')"); # meant to expire
sql($node, "SELECT count(*) FROM idemq.enqueue_many('short', array_fill('1'::jsonb, ARRAY[10000]))"); # each is claimed once: a second loss has a delay
foreach my $statistics ('full', 'emptied')
{
	foreach my $case ([ 4_000, 'cancel' ], [ 4_000, 'commit_once' ], [ 32_000, 'cancel' ])
	{
		my ($children, $end) = @$case;

		sql($node, 'ANALYZE idemq.jobs, idemq.dependencies, idemq.children') if $statistics eq 'emptied';
		sql($node, "SELECT parent('$statistics $children $end')");
		sql($node, "SELECT count(idemq.enqueue('fan', to_jsonb(n), depends_on => ARRAY[(SELECT id FROM idemq.jobs WHERE key = '$statistics $children $end')])) FROM generate_series(1, $children) n");
		sql($node, 'ANALYZE idemq.jobs, idemq.dependencies, idemq.children') if $statistics eq 'full';
		my $started = Time::HiRes::time;
		sql($node, "SELECT idemq.$end(id) FROM idemq.jobs WHERE key = '$statistics $children $end'");
		my (undef, undef, $said) = $node->psql('postgres', $late);
		note sprintf '%s of a parent of %d children, statistics %s: %.2f s; a lease of 100 ms in another queue was taken back %s',
			$end, $children, $statistics, Time::HiRes::time - $started, $said =~ /(late \d+ ms)/ ? $1 : $said;
		unlike($said, qr/ERROR/, 'there were leases to take back');
		is_sql($node, "SELECT status, count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('fan') GROUP BY 1", ($end eq 'cancel' ? 'cancelled' : 'pending') . "|$children",
			"$end, $children, $statistics: of each child it is seen");
		sql($node, "SELECT idemq.cancel_many(ARRAY(SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id('fan'))); DELETE FROM idemq.jobs WHERE queue_id = idemq.queue_id('fan')");
	}
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
sql($node, "SELECT idemq.drop_queue('short', force => true), idemq.drop_queue('fan', force => true)");

# ---- Everything at once: graphs, groups, failures, rollbacks, retries

sql($node, q{
	SELECT count(idemq.commit(id, token)) FROM idemq.jobs WHERE status = 'running';
	SELECT idemq.purge('children'), idemq.purge('parents');
	CREATE TABLE claims (job bigint, at timestamptz DEFAULT clock_timestamp());
});
my $graph = q{BEGIN;
SELECT count(*) FROM idemq.enqueue_graph(jsonb_build_array(
	'{"name": "a", "queue": "parents", "payload": "a"}'::jsonb,
	jsonb_build_object('name', 'b', 'queue', 'children', 'payload', 'b', 'depends_on', '["a"]'::jsonb, 'group_key', 'g' || :client_id),
	jsonb_build_object('name', 'c', 'queue', 'parents', 'payload', 'c', 'depends_on', '["a"]'::jsonb, 'on_parent_failure', (ARRAY['cancel', 'run', 'wait'])[1 + :r % 3]),
	'{"name": "d", "queue": "children", "payload": "d", "depends_on": ["b", "c"]}'::jsonb));
\if :r > 90
ROLLBACK;
\else
COMMIT;
\endif
};
my $work = q{WITH c AS (SELECT id, token FROM idemq.claim(:queue, 3)), n AS (INSERT INTO claims (job) SELECT id FROM c)
SELECT CASE WHEN (id + :r) % 20 = 0 THEN idemq.fail(id, token, 'no') ELSE idemq.commit(id, token) END FROM c;
};
my $retry = q{SELECT idemq.retry(id) FROM (SELECT id FROM idemq.jobs WHERE status IN ('dead', 'cancelled') ORDER BY random() LIMIT 2) j;
};
foreach (1 .. 10)
{
	my $run = clients($node, [ [ "\\set r random(1, 100)\n$graph", 2 ], map({ [ "\\set r random(1, 100)\n" . ($work =~ s/:queue/'$_'/r), 4 ] } qw(parents children)), [ $retry, 1 ] ],
		'-c', 4, '-T', 5, '--max-tries=5');
	is($run->(), '', 'graphs are enqueued, run, rolled back, failed and brought back');
	last if sql($node, 'SELECT count(*) FROM claims') > 50;
}
cmp_ok(sql($node, 'SELECT count(*) FROM claims'), '>', 50, 'and many of their jobs are claimed');
# What waits for a failed parent stays; the rest comes to its end.
wait_until($node, q{WITH c AS (SELECT id, token FROM idemq.claim_any(ARRAY['parents', 'children'], 1000)), d AS (SELECT count(idemq.commit(id, token)) FROM c)
	SELECT (SELECT * FROM d) = 0 AND NOT EXISTS (SELECT FROM idemq.jobs j WHERE finished_at IS NULL AND NOT (status = 'blocked'
		AND EXISTS (SELECT FROM idemq.children k JOIN idemq.jobs p ON p.id = k.waits_for WHERE k.job_id = j.id
			AND (p.status IN ('dead', 'cancelled') AND on_parent_failure = 'wait' OR p.finished_at IS NULL))))});
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
is_sql($node, q{SELECT count(*) FROM idemq.dependencies d JOIN idemq.jobs c ON c.id = d.child AND c.status = 'completed'
	JOIN idemq.jobs p ON p.id = d.parent WHERE p.status <> 'completed' AND c.payload = '"b"'}, '0', 'no child is completed whose parent is not');
is_sql($node, q{SELECT count(*) FROM idemq.dependencies d JOIN claims c ON c.job = d.child WHERE NOT EXISTS (SELECT FROM claims p WHERE p.job = d.parent AND p.at <= c.at)
	AND EXISTS (SELECT FROM idemq.jobs j WHERE j.id = d.child AND j.payload <> '"c"')}, '0', 'no child was claimed before its parents');
is(unexpected($node, 'workers'), '', 'no error of the worker');

done_testing();
