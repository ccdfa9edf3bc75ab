# Jobs that depend on others, with the background worker: a child is ready right after the last
# commit of its parents, whoever stops where, and after a crash, a promotion, a restore, COMMIT
# PREPARED.  Sessions are stopped by a debugger between "visible" and "marked"; that is skipped
# where there is none.

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

# ---- Ready by the worker, in another queue, and a listener is woken

sql($node, "SELECT parent('a'), parent('b'); SELECT child('ab', 'a', 'b')");
my $sleeper = sleeper($node, "CALL idemq.wait('children', '60 s')");
sql($node, "SELECT done('b')");
is_sql($node, "SELECT status('ab')", 'blocked', 'one of two parents is done: it is blocked');
sql($node, "SELECT done('a')");
is(answer($sleeper), 't', 'the last one commits: who waits for the child\'s queue is woken');
is_sql($node, "SELECT payload FROM idemq.claim('children')", '"ab"', 'and claims it');
sql($node, "SELECT parent('c'); SELECT child('cc', 'c'); SELECT child('ccc', 'cc')");
sql($node, "SELECT idemq.cancel(id) FROM idemq.jobs WHERE key = 'c'");
status_soon('ccc', 'cancelled', 'a parent is cancelled: so are the child, and the child of that');

# ---- Children of one group whose parents end together: the first of them goes by their ids

foreach my $running (1, 3)
{
	my $queue = "joined$running";

	# Of one group the later child has the parent that ends first, of the other the earlier one: in
	# whichever order the worker comes to the children, in one group it comes to the later one first.
	sql($node, "SELECT idemq.create_queue('$queue', group_running => $running); SELECT parent('ends first $running'), parent('ends last $running');
		SELECT id FROM unnest('{g1,g2,h1,h2}'::text[], '{last,first,first,last}'::text[]) c (key, ends), LATERAL idemq.enqueue('$queue', '1', key => c.key || ' $running',
			group_key => left(c.key, 1), depends_on => (SELECT array_agg(id) FROM idemq.jobs j WHERE j.key = 'ends ' || ends || ' $running'))");
	is_soon($node, "SELECT count(*) FROM idemq.children WHERE queue_id = idemq.queue_id('$queue')", 4, "$queue: four wait for their parents");

	my $worker = stop_worker($node);

	sql($node, "BEGIN; SELECT done('ends first $running'); SELECT done('ends last $running'); COMMIT");
	kill 'CONT', $worker;
	is_soon($node, "SELECT count(group_key), count(*) FILTER (WHERE status = 'pending') FROM idemq.jobs WHERE queue_id = idemq.queue_id('$queue')", '4|2',
		"$queue: all have joined their groups, and one of each is ready");
	is_sql($node, "SELECT string_agg(key, ', ' ORDER BY key) FROM idemq.jobs WHERE queue_id = idemq.queue_id('$queue') AND status = 'pending'",
		"g1 $running, h1 $running", "$queue: the one that was enqueued first");
	sql($node, "SELECT idemq.drop_queue('$queue', force => true)");
}

# ---- Between "visible" and "marked"

SKIP:
{
	skip 'no gdb that may attach', 1 unless has_debugger($node);

	my $parent = session($node);
	my $child = session($node);
	my %pid = map { $_ => ($_ eq 'parent' ? $parent : $child)->query_safe('SELECT pg_backend_pid()') } qw(parent child);

	# A statement of a session that stops at a function.
	my $send = sub {
		my ($who, $sql, @functions) = @_;
		my $stop = stop_at($pid{$who}, @functions);
		my $session = $who eq 'parent' ? $parent : $child;

		$session->query_until(qr/sent/, "\\echo sent\n$sql;\n");
		$stop->();
		return sub { $stop->(); $session->query('SELECT 1') };
	};

	sql($node, "SELECT parent('d')");
	my $go = $send->('parent', "SELECT done('d')", 'idemq_dependency_finished');
	sql($node, "SELECT child('dd', 'd')");
	status_soon('dd', 'pending', 'the parent is done and not marked when the child commits: its own mark finds that');
	$go->();

	sql($node, "SELECT parent('e')");
	$go = $send->('parent', "SELECT done('e')", 'idemq_dependency_finished');
	$child->query_safe("BEGIN; SELECT child('ee', 'e')");
	$go->();
	sql($node, "SELECT parent('e2'); SELECT done('e2')");
	$child->query_safe('COMMIT');
	status_soon('ee', 'pending', 'the parent is marked while the child is not committed: the child is looked at when it is');

	sql($node, "SELECT parent('f')");
	$go = $send->('child', "SELECT child('ff', 'f')", 'idemq_pending_groups_apply');
	sql($node, "SELECT done('f')");
	status_soon('ff', 'pending', 'the child is committed and not marked when the parent commits: the parent\'s mark finds it');
	$go->();

	sql($node, "SELECT parent('g'); SELECT parent('g2')");
	my $go_child = $send->('child', "SELECT child('gg', 'g', 'g2')", 'idemq_pending_groups_apply');
	my $go_parent = $send->('parent', "SELECT done('g2')", 'idemq_dependency_finished');
	sql($node, "SELECT done('g')");
	status_soon('gg', 'pending', 'both are stopped, and the other parent commits: its mark finds the child, and both parents done');
	$go_child->();
	$go_parent->();

	# The worker moves the watch from one parent to the other; meanwhile that ends, and a claim takes its mark.
	sql($node, "SELECT parent('h'); SELECT parent('h2'); SELECT child('hh', 'h', 'h2')");
	is_soon($node, "SELECT count(*) = 1 FROM idemq.children c JOIN idemq.jobs j ON j.id = waits_for WHERE key = 'h'", 'the child watches its first parent');
	my $stop = stop_at(worker_pid($node), 'idemq_dependency_watch');
	sql($node, "SELECT done('h')");
	$stop->();
	sql($node, "SELECT done('h2')");
	is_sql($node, "SELECT count(*) FROM idemq.claim('parents')", '0', 'a claim takes the mark of the second parent, which nobody watches yet');
	$stop->();
	status_soon('hh', 'pending', 'the watch is committed, and the child looked at again');

	$_->quit foreach ($parent, $child);
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
}

# ---- Prepared transactions

sql($node, "SELECT parent('i'); BEGIN; SELECT child('ii', 'i'); PREPARE TRANSACTION 'child'");
sql($node, "SELECT done('i')");
sql($node, "SELECT parent('j'); SELECT child('jj', 'j'); BEGIN; SELECT done('j'); PREPARE TRANSACTION 'parent'");
sql($node, "SELECT parent('k'); SELECT child('kk', 'k'); BEGIN; SELECT done('k'); PREPARE TRANSACTION 'undone'");
is_sql($node, "SELECT status('jj')", 'blocked', 'the parent is done in a prepared transaction: the child is blocked');
sql($node, "COMMIT PREPARED 'child'");
status_soon('ii', 'pending', 'a child whose enqueue was prepared, its parent done meanwhile');
sql($node, "COMMIT PREPARED 'parent'");
status_soon('jj', 'pending', 'COMMIT PREPARED of the parent\'s end');
sql($node, "ROLLBACK PREPARED 'undone'; SELECT done('k')");
status_soon('kk', 'pending', 'ROLLBACK PREPARED, and then its end');

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
is_sql($node, "SELECT used, refused FROM idemq.memory WHERE resource = 'groups'", '0|0', 'while nobody looks at them they take no place of a group');
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

# ---- A dump, restored in parallel: children wait there as they did here

sql($node, "SELECT parent('l'); SELECT parent('m'); SELECT child('ll', 'l'); SELECT child('lm', 'l', 'm'); SELECT done('m'); CREATE DATABASE restored");
my $dump = "$PostgreSQL::Test::Utils::tmp_check/dump";
command_ok([ 'pg_dump', '-Fd', '-f', $dump, $node->connstr('postgres') ], 'a dump');
command_ok([ 'pg_restore', '-j', 4, '-d', $node->connstr('restored'), $dump ], 'is restored by four at once');
is_sql($node, "SELECT status('ll'), status('lm')", 'blocked|blocked', 'children wait for their parent', 'restored');
sql($node, "SELECT done('l')", 'restored');
wait_until($node, "SELECT status('ll') = 'pending' AND status('lm') = 'pending'", 't', 'restored');
is_sql($node, 'SELECT count(*) FROM idemq.children', '0', 'and are released when it is done', 'restored');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean there', 'restored');
is_sql($node, "SELECT status('ll')", 'blocked', 'here they still wait');

# ---- Nothing is lost by a crash between a parent's commit and what follows it

# Nor does a prepared enqueue keep its parent, whose worker is gone, from being taken back.
sql($node, "SELECT parent('held'); SELECT idemq.claim_job(id, lease => '1 s') FROM idemq.jobs WHERE key = 'held'; BEGIN; SELECT child('of held', 'held'); PREPARE TRANSACTION 'held'");
my $worker = stop_worker($node);
sql($node, "SELECT done('l'); SELECT parent('n'); SELECT child('nn', 'n'); SELECT parent('o'); SELECT child('oo', 'o')");
sql($node, "SELECT idemq.cancel(id) FROM idemq.jobs WHERE key = 'o'");
is_sql($node, "SELECT status('ll'), status('oo')", 'blocked|blocked', 'the worker is stopped');
crash($node);
status_soon('ll', 'pending', 'after a crash the child of a parent that was done is found');
status_soon('oo', 'cancelled', 'and that of one that was cancelled');
is_sql($node, "SELECT status('nn')", 'blocked', 'another waits on');
status_soon('held', 'dead', 'a parent whose lease was lost, and ended, is taken back, though a prepared transaction holds it');
sql($node, "COMMIT PREPARED 'held'");
status_soon('of held', 'cancelled', 'and takes its child along');
sql($node, "SELECT done('n')");
status_soon('nn', 'pending', 'until its parent is done, of which memory knows again');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# ---- A standby is promoted: the same

sql($node, "SELECT parent('p'); SELECT parent('r'); SELECT child('pp', 'p'); SELECT child('rr', 'r')");
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('promoted');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
$worker = stop_worker($node);
sql($node, "SELECT done('p')");
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is_sql($standby, "SELECT status('pp')", 'blocked', 'the parent\'s commit has come, and not yet what follows it');
$node->stop('immediate');
$standby->promote;
status_soon('pp', 'pending', 'the promoted server releases the child', $standby);
sql($standby, "SELECT done('r')");
status_soon('rr', 'pending', 'and the next one', $standby);
is_sql($standby, 'SELECT * FROM idemq.check()', '', 'check() is clean there');
$standby->stop;

# ---- Everything at once: graphs, groups, failures, rollbacks, retries

$node->start;
sql($node, q{
	SELECT count(idemq.commit(id, token)) FROM idemq.jobs WHERE status = 'processing';
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
