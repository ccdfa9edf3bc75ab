# A restore table by table, in any order (pg_restore -j), alongside sessions that claim and a worker
# that looks: what memory learns in between must not remain in force afterwards.  After the restore
# every job comes to its end.  Tables are restored one after the other, and all at once as pg_restore -j does it:
# rows are written while no row of another table is committed.  restore_order_slow has more orders.
# takes long
# at least 49 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use RestoreOrder;
use Test::More;

# Jobs last, and first.
my @orders = ([qw(queues dependencies children steps events attempts jobs)], [qw(jobs children dependencies steps events attempts queues)]);

start_servers();
foreach my $n (0 .. $#orders)
{
	try_order($_, "copy$n", $orders[$n]) foreach $without, $with;
}

# ---- All at once: jobs are written before their queues exist, and committed after them

try_order($_, 'at_once', [qw(queues dependencies children steps events attempts jobs)], [qw(jobs dependencies children queues steps events attempts)]) foreach $without, $with;
{
	my $writer = session($with);
	my $id = sql($with, 'SELECT last_value + 1 FROM idemq.queues_queue_id_seq');

	$writer->query_safe("BEGIN; INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
		VALUES ($id, now(), 4, 5, 'pending', now(), '1')");
	is_sql($with, "SELECT idemq.create_queue('late')", $id, 'a queue that another transaction has a job for');
	my $waiter = waiter($with, "CALL idemq.wait('late', '10 min')");
	$writer->query_safe('COMMIT');
	is(answer($waiter), 't', 'its commit wakes who waits for that queue');
	leave($writer, $waiter->{session});
}

# ---- A schedule whose tick is due before the jobs are there: its job has none of their ids

sql($without, 'CREATE DATABASE ticking');
sql($without, q{
	CREATE EXTENSION idemq; CALL idemq.tick(); SELECT idemq.create_queue('ticked');
	SELECT idemq.enqueue('ticked', '"restored"') FROM generate_series(1, 5);
	SELECT idemq.schedule('yearly', '0 0 1 1 *', 'ticked', '"tick"');
	UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '2 years'}, 'ticking');
command_ok([ 'pg_dump', '-Fc', '-f', "$dump.ticking", $without->connstr('ticking') ], 'a dump with a schedule');
foreach my $node ($without, $with)
{
	my $db = 'ticked';
	my @to = ('-d', $node->connstr($db), "$dump.ticking");

	sql($node, "CREATE DATABASE $db");
	system_or_bail('pg_restore', '--section=pre-data', @to);
	system_or_bail('pg_restore', '--data-only', '-n', 'idemq', '-n', 'idemq_internal', '-t', $_, @to) foreach qw(queues schedule_entries);
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
	-- meant to expire
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
	is_sql($without, q{SELECT q.name, status FROM idemq.jobs JOIN idemq.queues q USING (queue_id) ORDER BY 1}, "children|running\nfifo|running\nleased|running\nparents|completed",
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
sql($with, 'TRUNCATE idemq_internal.handler_entries; SELECT idemq.enqueue(\'handled\', \'"left"\')', 'by_hand');
until_true('no handler', sub { sql($with, 'SELECT count(*) FROM idemq.handlers', 'by_hand') == 0 });
is_sql($with, "SELECT payload FROM idemq.claim('handled')", '"left"', 'no handler, no job of its', 'by_hand');
sql($with, q{BEGIN; SELECT idemq.schedule('late', '0 0 1 1 *', 'handled', '"tick"'); UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '2 years';
	PREPARE TRANSACTION 'schedule'; COMMIT PREPARED 'schedule'}, 'by_hand');
until_true('a tick', sub { sql($with, q{SELECT count(*) FROM idemq.jobs WHERE payload = '"tick"'}, 'by_hand') > 0 });
pass('a schedule of a prepared transaction ticks');
is(unexpected($with, 'workers'), '', 'no error of the worker');

done_testing();
