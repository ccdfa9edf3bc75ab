# A restore table by table, in any order (pg_restore -j), beside sessions that claim and a worker
# that looks: what memory learns in between must not be what it goes by afterwards.  After it every
# job comes to its end.  One table after the other; and all at once, as pg_restore -j has them:
# rows are written while none of another table is committed.
#
#   RESTORE_ORDERS=n  orders with each server (6); the first ones are always the same
#   RESTORE_SEED=n    of the others

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use List::Util qw(shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes;

my $seed = $ENV{RESTORE_SEED} // time;
my $orders = $ENV{RESTORE_ORDERS} // 6;
my @tables = qw(queues jobs dependencies children steps events attempts);
my $queues = q{ARRAY['plain', 'parents', 'children', 'fifo', 'places', 'paced', 'limited', 'told']};

note "RESTORE_SEED=$seed";
srand $seed;

my $without = new_server('without');
# Who drops a database ends what vacuums it, with an error that looks like one of the worker.
my $with = new_server('with', 'idemq.worker' => 'on', autovacuum => 'off');

# ---- Something of all that one table's rows say about another's

sql($without, q{
	CREATE FUNCTION parent(p text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.enqueue('parents', to_jsonb(p), key => p) $$;
	CREATE FUNCTION child(p text, parents text[], failure text DEFAULT 'cancel', g text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
		SELECT id FROM idemq.enqueue('children', to_jsonb(p), key => p, group_key => g, on_parent_failure => failure, depends_on =>
			(SELECT array_agg(id) FROM idemq.jobs WHERE key = ANY (parents))) $$;
	SELECT idemq.create_queue('plain', lease => '1 h'), idemq.create_queue('parents', lease => '1 h', max_attempts => 1),
		idemq.create_queue('children', lease => '1 h'), idemq.create_queue('fifo', lease => '1 h'),
		idemq.create_queue('places', lease => '1 h', group_running => 2),
		idemq.create_queue('paced', lease => '1 h', group_rate => 10, group_period => '1 s'),
		idemq.create_queue('limited', lease => '1 h', max_running => 2), idemq.create_queue('told', lease => '1 h');
	SELECT idemq.enqueue('plain', to_jsonb(n), delay => make_interval(secs => n % 3), priority => n % 2) FROM generate_series(1, 10) n;
	SELECT idemq.enqueue(q, to_jsonb(n), group_key => 'g' || n % 2) FROM unnest('{fifo,places,paced}'::text[]) q, generate_series(1, 10) n;
	SELECT idemq.enqueue('limited', to_jsonb(n)) FROM generate_series(1, 6) n;
	SELECT count(parent(n)) FROM unnest('{fails,works,done,bare,first,last}'::text[]) n;
	SELECT child('cancelled', '{fails,works}'), child('run', '{fails,works}', 'run'), child('wait', '{fails,works}', 'wait'),
		child('one', '{works}'), child('done', '{done,works}'), child('grouped', '{works}', g => 'g'), child('behind', '{first,last}', g => 'g');
	SELECT child('grandchild', '{one,behind}');
	SELECT idemq.commit_once(id) FROM idemq.jobs WHERE key = 'done';
	SELECT idemq.enqueue('told', to_jsonb(n)) FROM generate_series(1, 3) n;
	SELECT idemq.send_event('told', 'early');
	SELECT idemq.await_event(id, token, CASE payload WHEN '1' THEN 'early' ELSE 'late' END, '1 h') FROM idemq.claim('told', 3);
});
# In flight: their ends come after the restore.
sql($without, "CREATE TABLE held AS SELECT id, token FROM idemq.claim_any(ARRAY['fifo', 'places', 'paced', 'limited'], 12)
	UNION ALL SELECT id, token FROM idemq.jobs WHERE status = 'processing'");
is_sql($without, 'SELECT count(*) FROM held', 2 + 4 + 2 + 2 + 1, 'jobs are in flight');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/dump";
command_ok([ 'pg_dump', '-Fc', '-f', $dump, $without->connstr('postgres') ], 'a dump');

# What others do between two tables: it leaves no row behind, but all that they have learned.
my $look = qq{
	BEGIN; SELECT count(*) FROM idemq.claim_any($queues, 100); ROLLBACK;
	CALL idemq.wait('plain', '0'); SELECT count(*) FROM idemq.metrics; CALL idemq.tick(); SELECT idemq.reap(name) FROM idemq.queues;
};

# Ends what is held, sends what is awaited, and works until nothing is left; answers what is, should that take too long.
sub work_it_off
{
	my ($node, $db) = @_;
	my $end = time + 180;
	my $left;

	sql($node, "SELECT idemq.commit(id, token) FROM held; SELECT idemq.send_event('told', 'late')", $db);
	do
	{
		sql($node, qq{SELECT CASE WHEN payload = '"fails"' THEN idemq.fail(id, token, 'no') ELSE idemq.commit(id, token) END FROM idemq.claim_any($queues, 100)}, $db);
		$left = sql($node, q{SELECT id, status, payload, idemq.why(id) FROM idemq.jobs WHERE finished_at IS NULL AND payload <> '"wait"' ORDER BY 1}, $db);
	} while ($left ne '' && time < $end);
	return $left;
}

# Restores the tables in an order, each in a transaction of its own.  written: an order in which all
# are written before the first is committed.
sub try_order
{
	my ($node, $db, $order, $written) = @_;
	my @to = ('-d', $node->connstr($db), $dump);
	my $try = $node->name . ' worker, ' . (defined $written ? "written @$written, committed " : '') . "@$order";
	my %writers;

	sql($node, "CREATE DATABASE $db");
	system_or_bail('pg_restore', '--section=pre-data', @to);
	foreach my $table (@{ $written // [] })
	{
		my $file = "$PostgreSQL::Test::Utils::tmp_check/$table.sql";

		system_or_bail('pg_restore', '--data-only', '-n', 'idemq', '-t', $table, '-f', $file, $dump);
		$writers{$table} = session($node, $db);
		$writers{$table}->query_safe("BEGIN;\n\\i $file");
	}
	foreach my $table (@$order)
	{
		if (defined $written) { $writers{$table}->query_safe('COMMIT') }
		else { system_or_bail('pg_restore', '--data-only', '-n', 'idemq', '-t', $table, @to) }
		$node->psql($db, $look);
		Time::HiRes::sleep(rand 0.03) if $node == $with;
	}
	$_->quit foreach values %writers;
	system_or_bail('pg_restore', '--data-only', '-t', 'held', @to);
	system_or_bail('pg_restore', '--section=post-data', @to);
	# Before anybody works, whose claims would find what memory has missed.
	is_sql($node, q{SELECT * FROM idemq.check() WHERE severity = 'error'}, '', "$try: check() is clean at once", $db);
	# The worker may be between a row and its gauge.
	wait_until($node, q{SELECT count(*) = 0 FROM idemq.metrics m WHERE ((pending, processing) =
		(SELECT count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'processing') FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = m.queue)) IS NOT TRUE},
		't', $db);
	pass("$try: the gauges are right");
	is(work_it_off($node, $db), '', "$try: every job ends");
	is_sql($node, q{SELECT key, status FROM idemq.jobs WHERE key IN ('cancelled', 'run', 'wait', 'grandchild') ORDER BY 1},
		"cancelled|cancelled\ngrandchild|completed\nrun|completed\nwait|blocked", "$try: each as its parents say", $db);
	is_sql($node, q{SELECT * FROM idemq.check() WHERE severity = 'error'}, '', "$try: check() is clean", $db);
	sql($node, "DROP DATABASE $db WITH (FORCE)");
	return;
}

# Jobs last, first, and before their queues; then any.
my @first = ([qw(queues dependencies children steps events attempts jobs)], [qw(jobs children dependencies steps events attempts queues)],
	[qw(queues dependencies jobs children steps events attempts)], [ reverse @tables ]);
foreach my $n (0 .. $orders - 1)
{
	my @order = $n < @first ? @{ $first[$n] } : shuffle(@tables);

	try_order($_, "copy$n", \@order) foreach $without, $with;
}

# ---- All at once: jobs are written when their queues are not there, and committed when these are

try_order($_, 'at_once', [qw(queues dependencies children steps events attempts jobs)], [qw(jobs dependencies children queues steps events attempts)]) foreach $without, $with;
try_order($_, 'at_random', [ shuffle(@tables) ], [ shuffle(@tables) ]) foreach $without, $with;
{
	my $writer = session($with);
	my $id = sql($with, 'SELECT last_value + 1 FROM idemq.queues_queue_id_seq');

	$writer->query_safe("BEGIN; INSERT INTO idemq.jobs (queue_id, created_at, priority, max_attempts, status, ready_at, payload)
		VALUES ($id, now(), 4, 5, 'pending', now(), '1')");
	is_sql($with, "SELECT idemq.create_queue('late')", $id, 'a queue that another transaction has a job for');
	my $sleeper = sleeper($with, "CALL idemq.wait('late', '10 min')");
	$writer->query_safe('COMMIT');
	is(answer($sleeper), 't', 'its commit wakes who waits for that queue');
	$_->quit foreach $writer, $sleeper->{session};
}

# ---- A schedule whose tick is due before the jobs are there: its job has none of their ids

sql($without, 'CREATE DATABASE ticking');
sql($without, q{
	CREATE EXTENSION idemq; CALL idemq.tick(); SELECT idemq.create_queue('ticked');
	SELECT idemq.enqueue('ticked', '"restored"') FROM generate_series(1, 5);
	SELECT idemq.schedule('minutely', '* * * * *', 'ticked', '"tick"');
	UPDATE idemq.schedule_entries SET done_until = done_until - interval '1 hour'}, 'ticking');
command_ok([ 'pg_dump', '-Fc', '-f', "$dump.ticking", $without->connstr('ticking') ], 'a dump with a schedule');
foreach my $node ($without, $with)
{
	my $db = 'ticked';
	my @to = ('-d', $node->connstr($db), "$dump.ticking");

	sql($node, "CREATE DATABASE $db");
	system_or_bail('pg_restore', '--section=pre-data', @to);
	system_or_bail('pg_restore', '--data-only', '-n', 'idemq', '-t', $_, @to) foreach qw(queues schedule_entries);
	sql($node, 'CALL idemq.tick()', $db) if $node == $without;
	until_true('a tick', sub { sql($node, q{SELECT count(*) FROM idemq.jobs WHERE payload = '"tick"'}, $db) == 1 });
	command_ok([ 'pg_restore', '--data-only', '-n', 'idemq', '-t', 'jobs', @to ], $node->name . ' worker: jobs that come after a tick');
	is_sql($node, q{SELECT count(*) FROM idemq.jobs WHERE payload = '"restored"'}, 5, $node->name . ' worker: all are there', $db);
}
# ---- Rows that come where no trigger, or no session, tells of them at the commit

sql($without, 'CREATE DATABASE by_hand');
sql($without, q{
	CREATE EXTENSION idemq;
	SELECT idemq.create_queue('parents'), idemq.create_queue('children'), idemq.create_queue('fifo'), idemq.create_queue('leased');
	SELECT idemq.enqueue('children', '1', depends_on => ARRAY[(SELECT id FROM idemq.enqueue('parents', '1'))]);
	SELECT idemq.commit_once(min(id)) FROM idemq.jobs;
	SELECT idemq.enqueue('fifo', '1', group_key => 'g'), idemq.enqueue('leased', '1');
	SELECT count(*) FROM idemq.claim('leased', lease => '1 ms');
	CREATE TABLE jobs AS TABLE idemq.jobs; CREATE TABLE children AS TABLE idemq.children; CREATE TABLE dependencies AS TABLE idemq.dependencies}, 'by_hand');
my $insert_jobs = 'INSERT INTO idemq.jobs TABLE jobs;';
my $insert_dependencies = 'INSERT INTO idemq.children TABLE children; INSERT INTO idemq.dependencies TABLE dependencies;';
my $claim = q{SELECT count(*) FROM idemq.claim_any('{parents,children,fifo,leased}', 10)};
my %ways = (
	'a trigger that fires for the origin alone' => [ "SET session_replication_role = replica; $insert_jobs", "SET session_replication_role = replica; $insert_dependencies" ],
	'a prepared transaction' => [ $insert_jobs, "BEGIN; $insert_dependencies PREPARE TRANSACTION 'dependencies'; COMMIT PREPARED 'dependencies'" ],
	'triggers that are off' => [ '', join '', map { "ALTER TABLE idemq.$_ DISABLE TRIGGER ALL; INSERT INTO idemq.$_ TABLE $_; ALTER TABLE idemq.$_ ENABLE TRIGGER ALL;" } qw(jobs children dependencies) ]);
foreach my $way (sort keys %ways)
{
	sql($without, "TRUNCATE idemq.jobs; $claim", 'by_hand');
	sql($without, "$ways{$way}[0]; $claim; $claim", 'by_hand');
	sql($without, $ways{$way}[1], 'by_hand');
	sql($without, $claim, 'by_hand');
	is_sql($without, q{SELECT q.name, status FROM idemq.jobs JOIN idemq.queues q USING (queue_id) ORDER BY 1}, "children|processing\nfifo|processing\nleased|processing\nparents|completed",
		"$way: all is claimed", 'by_hand');
	is_sql($without, q{SELECT * FROM idemq.check() WHERE severity = 'error' AND invariant <> 'triggers'}, '', "$way: check() is clean", 'by_hand');
}

sql($with, 'CREATE DATABASE by_hand');
sql($with, q{
	CREATE EXTENSION idemq; SELECT idemq.create_queue('handled');
	CREATE FUNCTION done(payload jsonb) RETURNS jsonb LANGUAGE sql AS 'SELECT $1';
	SELECT idemq.enqueue('handled', '"handled"')}, 'by_hand');
sql($with, q{BEGIN; SELECT idemq.set_handler('handled', 'done(jsonb)'); PREPARE TRANSACTION 'handler'; COMMIT PREPARED 'handler'}, 'by_hand');
until_true('handled', sub { sql($with, 'SELECT status FROM idemq.jobs', 'by_hand') eq 'completed' });
pass('the handler of a prepared transaction runs jobs');
sql($with, 'TRUNCATE idemq.handler_entries; SELECT idemq.enqueue(\'handled\', \'"left"\')', 'by_hand');
until_true('no handler', sub { sql($with, 'SELECT count(*) FROM idemq.handlers', 'by_hand') == 0 });
is_sql($with, "SELECT payload FROM idemq.claim('handled')", '"left"', 'no handler, no job of its', 'by_hand');
sql($with, q{BEGIN; SELECT idemq.schedule('late', '* * * * *', 'handled', '"tick"'); UPDATE idemq.schedule_entries SET done_until = done_until - interval '1 hour';
	PREPARE TRANSACTION 'schedule'; COMMIT PREPARED 'schedule'}, 'by_hand');
until_true('a tick', sub { sql($with, q{SELECT count(*) FROM idemq.jobs WHERE payload = '"tick"'}, 'by_hand') > 0 });
pass('a schedule of a prepared transaction ticks');
is(unexpected($with, 'workers'), '', 'no error of the worker');

done_testing();
