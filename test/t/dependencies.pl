# Jobs that depend on others, with the background worker: a child is ready right after the last
# commit of its parents, whoever stops where, and after a crash, a promotion, a restore, COMMIT
# PREPARED.  Sessions are stopped between "visible" and "marked".  Ten thousand parents and children, and
# everything at once: dependencies_slow.pl.
# stops: idemq_dependency_finished idemq_pending_groups_apply idemq_dependency_watch
# at least 58 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

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
my $waiter = waiter($node, "CALL idemq.wait('children', '1 h')");
sql($node, "SELECT done('b')");
is_sql($node, "SELECT status('ab')", 'blocked', 'one of two parents is done: it is blocked');
sql($node, "SELECT done('a')");
is(answer($waiter), 't', 'the last one commits: who waits for the child\'s queue is woken');
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
	sql($node, "SELECT idemq.create_queue('$queue', group_max_running => $running); SELECT parent('ends first $running'), parent('ends last $running');
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

{
	my ($parent, $child) = (session($node), session($node));

	# A statement of a session that stops at a function.
	my $send = sub {
		my ($who, $sql, @functions) = @_;
		my $session = $who eq 'parent' ? $parent : $child;
		my $stop = stop_at($session->{backend}, @functions);

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

	leave($parent, $child);
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

# ---- Many parents of one child, and many children of one parent; ten thousand of them are in dependencies_slow.pl

my $many = 30;
sql($node, "SELECT count(*) FROM idemq.enqueue_many('parents', array_fill('\"many\"'::jsonb, ARRAY[$many]))");
sql($node, "SELECT id FROM idemq.enqueue('children', '1', key => 'of many', depends_on => (SELECT array_agg(id) FROM idemq.jobs WHERE payload = '\"many\"'))");
my $open = session($node);
$open->query_safe(q{BEGIN; SELECT idemq.commit_once(min(id)) FROM idemq.jobs WHERE payload = '"many"'});
sql($node, q{SELECT idemq.commit_once(id) FROM (SELECT id FROM idemq.jobs WHERE payload = '"many"' ORDER BY id DESC LIMIT } . ($many - 1) . ') p');
is_sql($node, "SELECT status('of many')", 'blocked', 'all parents but one are done');
$open->query_safe('COMMIT');
leave($open);
status_soon('of many', 'pending', 'all of many parents are done');
sql($node, "SELECT parent('one')");
my $busy = stop_worker($node);
sql($node, "SELECT count(idemq.enqueue('children', to_jsonb(n), depends_on => ARRAY[(SELECT id FROM idemq.jobs WHERE key = 'one')])) FROM generate_series(1, $many) n");
is_sql($node, "SELECT used, refused FROM idemq.memory WHERE resource = 'groups'", '0|0', 'while the worker does not look at them they take no entry of a group');
kill 'CONT', $busy;
my $waiting = "SELECT count(*) FROM idemq.children WHERE waits_for = (SELECT id FROM idemq.jobs WHERE key = 'one')";
is_sql($node, $waiting, $many, 'as many children of one parent');
sql($node, "SELECT done('one')");
is_soon($node, $waiting, '0', 'are all released');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
sql($node, "SELECT idemq.purge('children'), idemq.purge('parents')");

# ---- A parent that is cancelled has its children cancelled some at a time; none of them can be claimed meanwhile

my $page = 100; # TOLD_AT_ONCE of src/job/dependencies.c
my $pages = 3 * $page - 10;
sql($node, "SELECT parent('first'); SELECT parent('second')");
# Half of them watch the parent, the others watch another one.
sql($node, "SELECT count(child('child ' || n, VARIADIC CASE WHEN n % 2 = 0 THEN '{second}' ELSE '{first,second}' END::text[])) FROM generate_series(1, $pages) n");
my $children = "FROM idemq.jobs WHERE key LIKE 'child %'";
is_sql($node, "SELECT count(*), count(*) FILTER (WHERE status = 'blocked') $children", "$pages|$pages", 'as many children wait as make three pages');
is_sql($node, "SELECT count(DISTINCT waits_for) FROM idemq.children WHERE job_id IN (SELECT id $children)", '2', 'for two parents');
$busy = stop_worker($node);
sql($node, "SELECT idemq.cancel(id) FROM idemq.jobs WHERE key = 'second'");
is_sql($node, "SELECT count(*) FROM idemq.claim('children', 1000)", '0', 'the second one is cancelled, and the worker does nothing: no child can be claimed');
is_sql($node, "SELECT count(*) FILTER (WHERE c.id IS NOT NULL), count(*) FROM (SELECT id $children ORDER BY id DESC LIMIT 10) k LEFT JOIN LATERAL idemq.claim_job(k.id) c ON c.token IS NOT NULL",
	'0|10', 'nor by its id');
kill 'CONT', $busy;
is_soon($node, "SELECT count(*) FILTER (WHERE status = 'cancelled'), sum(attempt) $children", "$pages|0", 'the worker cancels all of them, and none has run');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
# They keep what they wait for, and go on when the parent is brought back.
sql($node, "SELECT idemq.retry(id) FROM idemq.jobs WHERE key = 'second'; SELECT done('second'); SELECT done('first')");
sql($node, "SELECT count(*) FROM idemq.retry_many(ARRAY(SELECT id $children))");
is_soon($node, "SELECT count(*) FILTER (WHERE status = 'pending') $children", $pages, 'brought back after their parents, all are released');
sql($node, "SELECT count(*) FROM idemq.cancel_many(ARRAY(SELECT id $children))");

# ---- More parents end than there are marks (MAX_DEPENDENCY_MARKS of src/shared/groups/groups.c), and the child is of another queue

my $marks = 8192;
sql($node, "SELECT count(*) FROM idemq.enqueue_many('parents', array_fill('\"marked\"'::jsonb, ARRAY[$marks + 1]))");
sql($node, "SELECT id FROM idemq.enqueue('children', '1', key => 'of the first', depends_on => (SELECT array_agg(id) FROM idemq.jobs WHERE payload = '\"marked\"'))");
is_soon($node, "SELECT count(*) FROM idemq.children k JOIN idemq.jobs j ON j.id = k.job_id WHERE j.key = 'of the first' AND waits_for = (SELECT min(id) FROM idemq.jobs WHERE payload = '\"marked\"')",
	'1', 'a child of many parents waits for the first');
$busy = stop_worker($node);
sql($node, "SELECT count(idemq.commit_once(id)) FROM (SELECT id FROM idemq.jobs WHERE payload = '\"marked\"' ORDER BY id OFFSET 1) p");
sql($node, "SELECT idemq.commit_once(min(id)) FROM idemq.jobs WHERE payload = '\"marked\"'");
kill 'CONT', $busy;
status_soon('of the first', 'pending', 'the first one ends when there is no room for its mark: its child is found');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
sql($node, "SELECT idemq.purge('children'), idemq.purge('parents')");

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
my $worker = stop_worker($node);
sql($node, "SELECT parent('held'); BEGIN; SELECT child('of held', 'held'); PREPARE TRANSACTION 'held'");
sql($node, "SELECT idemq.claim_job(id, lease => '1 ms') FROM idemq.jobs WHERE key = 'held'"); # meant to expire
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
caught_up($node, $standby);
is_sql($standby, "SELECT status('pp')", 'blocked', 'the parent\'s commit has come, and not yet what follows it');
stop_at_once($node);
$standby->promote;
status_soon('pp', 'pending', 'the promoted server releases the child', $standby);
sql($standby, "SELECT done('r')");
status_soon('rr', 'pending', 'and the next one', $standby);
is_sql($standby, 'SELECT * FROM idemq.check()', '', 'check() is clean there');
is(unexpected($node, 'workers', '57P01'), '', 'no error of the worker');
# The library as it ships, without stop points.
shipped($standby);
is_sql($standby, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$standby->stop;

done_testing();
