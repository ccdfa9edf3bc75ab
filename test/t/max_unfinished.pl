# max_unfinished with several sessions: the limit is exact under load, after a restart, a crash and a promotion, with prepared
# transactions, and while the jobs are being counted.
# stops: room_count idemq_counters_add idemq_tick_key_check
# at least 67 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('full', max_connections => 40, max_prepared_transactions => 4, jit => 'off');
my $add = "SELECT outcome FROM idemq.enqueue('q', '1')";
my $finish = "SELECT idemq.commit(id, token) FROM idemq.claim('q')";
my $jobs = "idemq.job_list WHERE queue = 'q' AND status IN ('blocked', 'pending', 'running', 'retrying')";
my $numbers = "SELECT m.unfinished, (SELECT count(*) FROM $jobs) FROM idemq.metrics m WHERE queue = 'q'";

# Creates a queue with that limit and that many jobs.
sub fresh
{
	my ($limit, $jobs) = @_;

	sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues");
	sql($node, "SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0, max_unfinished => $limit);
		SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(1, $jobs) n");
}

# ---- Eight sessions enqueue at once and keep their transactions open: five add a job

fresh(5, 0);
sql($node, q{CREATE FUNCTION try_add() RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM idemq.enqueue('q', '1');
		RETURN true;
	EXCEPTION WHEN SQLSTATE 'IQ007' THEN RETURN false;
	END $$});
{
	my $barrier = barrier($node);
	my $producers = clients($node, "BEGIN;\nSELECT count(*) AS n FROM try_add() t WHERE t \\gset\n\\if :n\n" . $barrier->sql . ";\n\\endif\nCOMMIT;\n",
		'-c', 8, '-t', 1);

	$barrier->wait_for(5);
	is_state($node, $add, 'IQ007', 'five enqueues are open, so there is no room for another');
	is_sql($node, $numbers, '5|0', 'open transactions count');
	$barrier->open;
	is($producers->(), '', 'the producers finish without errors');
	is_sql($node, $numbers, '5|5', 'there are five jobs');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
}

# ---- Random calls, while other sessions watch, and make the count unknown

fresh(5, 0);
sql($node, q{CREATE FUNCTION next_step(choice int) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF choice < 4 THEN
			PERFORM idemq.enqueue('q', '1');
		ELSIF choice < 6 THEN
			PERFORM idemq.enqueue_many('q', '{1,1}');
		ELSIF choice < 8 THEN
			PERFORM idemq.enqueue('q', '1', 'k' || choice);
		ELSE
			PERFORM idemq.commit(id, token) FROM idemq.claim('q', 2);
		END IF;
	EXCEPTION WHEN SQLSTATE 'IQ007' THEN NULL;
	END $$});
{
	my $step = "\\set a random(0, 11)\nSELECT next_step(:a);\n";
	my $run = clients($node, [ [ $step, 2 ], [ "BEGIN;\n$step${step}COMMIT;\n", 3 ], [ "BEGIN;\n$step${step}ROLLBACK;\n", 1 ],
			[ "BEGIN;\n${step}SAVEPOINT a;\n$step${step}ROLLBACK TO SAVEPOINT a;\n${step}COMMIT;\n", 2 ] ],
		'-c', 6, '-t', 100);
	my ($most, $looks, $counts) = (0, 0, 0);
	my $observer = session($node);

	while (sql($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'") > 0 || $looks < 20)
	{
		my $seen = $observer->query_safe('SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL');

		$most = $seen if $seen > $most;
		$looks++;
		$counts += sqlstate($node, 'SELECT idemq.recount()') eq '00000' if $looks % 4 == 0;
	}
	is($run->(), '', 'the sessions finish without errors');
	cmp_ok($most, '<=', 5, "the limit is never exceeded, in $looks snapshots");
	cmp_ok($counts, '>', 0, 'the count was made unknown');
	sql($node, 'SELECT next_step(9)');
	sql($node, 'SELECT next_step(0)') foreach 1 .. 6;
	is_sql($node, $numbers, '5|5', 'and the whole limit can be used');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
	leave($observer);
}

# ---- A restart and a crash: blocked, pending, running and retrying jobs

fresh(5, 1);
sql($node, "SELECT idemq.enqueue('q', '2', depends_on => ARRAY[(idemq.enqueue('q', '3', delay => '1 h')).id]);
	SELECT idemq.enqueue('q', '4', group_key => 'g');
	SELECT idemq.fail(id, token, retry_in => '1 h') FROM idemq.claim('q');
	SELECT count(*) FROM idemq.claim('q');
	SELECT idemq.enqueue('q', '5')");
foreach my $how ('restart', 'crash')
{
	# The server stops while a transaction is open; its changes must not count.
	my $open = session($node);
	$open->query_safe("BEGIN; SELECT idemq.cancel(max(id)) FROM idemq.jobs WHERE status = 'pending'; $add");
	$how eq 'crash' ? crash($node) : $node->restart;
	$open->{run}->kill_kill;
	is_sql($node, $numbers, '|5', "$how: no session has counted");
	is_state($node, $add, 'IQ007', 'the first enqueue counts, and is refused');
	is_sql($node, $numbers, '5|5', 'all are counted');
	sql($node, "SELECT idemq.cancel(max(id)) FROM idemq.jobs WHERE status = 'pending'");
	is_sql($node, $add, 'accepted', 'one is cancelled, so there is room for one');
	is_state($node, $add, 'IQ007', 'and not for another');
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');

# ---- The count reads one entry more than the limit

sql($node, "SELECT idemq.alter_queue('q', max_unfinished => 0); SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(1, 30) n;
	SELECT idemq.alter_queue('q', max_unfinished => 5)");
sql($node, 'SELECT idemq.recount()');
{
	my $read = "SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'idemq' AND relname = 'jobs'),
		(SELECT seq_tup_read FROM pg_stat_user_tables WHERE schemaname = 'idemq' AND relname = 'jobs')";
	my ($entries, $rows) = split /\|/, sql_counted($node, $read);

	is(sql_counted($node, qq{SELECT full_queue FROM (SELECT try_add()::text AS full_queue) t}), 'false', 'the queue is full');
	my ($entries_after, $rows_after) = split /\|/, sql($node, $read);
	# Six entries are enough, but there may also be entries of rows that no longer exist.
	cmp_ok($entries_after - $entries, '<', 15, 'the count reads few of the 35 entries');
	is($rows_after - $rows, 0, 'and reads no rows without an index');
}

# ---- An enqueue waits for a TRUNCATE, after which the queue has another queue state

fresh(2, 2);
{
	my $truncating = session($node);
	my $waiting = session($node);

	$truncating->query_safe('BEGIN; TRUNCATE idemq.jobs, idemq.dependencies, idemq.children');
	$waiting->query_until(qr/sent/, "\\echo sent\n$add;\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $waiting->{backend} AND wait_event_type = 'Lock'");
	$truncating->query_safe('COMMIT');
	is($waiting->query('SELECT 1') =~ s/\s+/ /gr, 'accepted 1', 'an enqueue that has waited for a TRUNCATE succeeds');
	is_sql($node, $numbers, '1|1', 'and its job counts');
	leave($truncating, $waiting);
}

# ---- PREPARE TRANSACTION

fresh(3, 1);
sql($node, "SELECT idemq.cancel((idemq.enqueue('q', '2')).id)");
foreach (
	[ 'an enqueue', $add, '0A000' ],
	[ 'an enqueue with the room of a job that it has ended', "$finish; $add", '0A000' ],
	[ 'a job that is never refused', "SELECT idemq.retry(id) FROM idemq.jobs WHERE status = 'cancelled'", '0A000' ],
	[ 'a duplicate', "SELECT outcome FROM idemq.enqueue('other', '1', 'k')", '00000' ],
	[ 'a savepoint that is rolled back', "SAVEPOINT a; $add; ROLLBACK TO SAVEPOINT a", '00000' ],
	[ 'the end of a job', 'SELECT idemq.cancel(min(id)) FROM idemq.jobs', '00000' ])
{
	my ($name, $work, $state) = @$_;

	sql($node, "SELECT idemq.create_queue('other'); SELECT outcome FROM idemq.enqueue('other', '1', 'k')") if $name eq 'a duplicate';
	is_state($node, "BEGIN; $work; PREPARE TRANSACTION 'p'", $state, "PREPARE after $name");
	sql($node, "ROLLBACK PREPARED 'p'") if $state eq '00000';
}
is_sql($node, $add, 'accepted', 'transactions that were refused or rolled back have given their room back');
is_sql($node, $add, 'accepted', 'all of it');
is_state($node, $add, 'IQ007', 'and no more');
# A transaction that was prepared before the limit was set.
sql($node, "SELECT idemq.alter_queue('q', max_unfinished => 0); BEGIN; $add; PREPARE TRANSACTION 'p'");
sql($node, "SELECT idemq.alter_queue('q', max_unfinished => 4)");
is_sql($node, $add, 'accepted', 'a prepared transaction that has not asked for room does not count');
sql($node, "COMMIT PREPARED 'p'");
is_state($node, $add, 'IQ007', 'it counts when it commits');
is_sql($node, $numbers, '5|5', 'and takes the count above the limit');

# ---- A dump

{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/dump.sql";

	command_ok([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-f', $file, 'postgres' ], 'pg_dump');
	sql($node, 'CREATE DATABASE restored');
	command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port, '-f', $file, '-o', '/dev/null', 'restored' ], 'restore');
	is(sqlstate($node, $add, 'restored'), 'IQ007', 'the dump restores the limit, and also jobs above it');
}

# ---- A standby

{
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$node->backup('base');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	is_sql($standby, "SELECT unfinished, max_unfinished FROM idemq.metrics WHERE queue = 'q'", '|4', 'a standby does not count');
	is_state($standby, $add, '25006', 'and cannot enqueue');
	$standby->promote;
	is_state($standby, $add, 'IQ007', 'after the promotion the first enqueue counts');
	sql($standby, "SELECT count(idemq.cancel(id)) FROM (SELECT id FROM $jobs LIMIT 2) _");
	is_sql($standby, $add, 'accepted', 'and the limit holds');
	is_state($standby, $add, 'IQ007', 'on the new primary, too');
	$standby->stop;
}

# ---- Sessions are stopped while they count, and between their commit and the change of the count

SKIP:
{
	skip 'no stop points in the library', 17 unless has_stops();

	# The jobs of a queue without the limit are not counted.
	fresh(3, 1);
	sql($node, "SELECT idemq.alter_queue('q', max_unfinished => 0)");
	$node->restart;
	my $first = session($node);
	my $counts = count_at($first->{backend}, 'room_count');
	is($first->query_safe($add), 'accepted', 'an enqueue without a limit');
	is(($counts->())[0], 0, 'no session counts');
	sql($node, "SELECT idemq.alter_queue('q', max_unfinished => 3)");
	is($first->query_safe($add), 'accepted', 'an enqueue after the limit was set');
	is(($counts->())[0], 1, 'it counts the jobs');

	# Another session enqueues the key between the look for a duplicate and the insert.
	my $stop = stop_at($first->{backend}, 'idemq_tick_key_check');
	my $key = "SELECT outcome FROM idemq.enqueue('q', '1', 'k')";
	sql($node, "SELECT count(idemq.cancel(id)) FROM idemq.jobs");
	$first->query_until(qr/sent/, "\\echo sent\nBEGIN;\n$key;\n");
	$stop->();
	is_sql($node, $key, 'accepted', 'another session enqueues the key');
	$stop->();
	is($first->query_safe($add) =~ s/\s+/ /gr, 'duplicate accepted', 'a duplicate has given its room back');
	is($first->query_safe($add), 'accepted', 'and all of that room');
	is_sql($node, $numbers, '3|1', 'and the jobs that were added have room');
	$first->query_safe('COMMIT');
	leave($first);

	# While one session counts, another commits, and a third waits.
	fresh(3, 2);
	sql($node, 'SELECT idemq.recount()');
	my $one = session($node);
	my $two = session($node);

	$stop = stop_at($one->{backend}, 'room_count');
	$one->query_until(qr/sent/, "\\echo sent\n$add;\n");
	$stop->();
	sql($node, $finish);
	$two->query_until(qr/sent/, "\\echo sent\n$add;\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $two->{backend} AND wait_event_type = 'Extension'");
	$stop->();
	is($one->query('SELECT 1') =~ s/\s+/ /gr, 'accepted 1', 'the session that counted adds its job');
	is($two->query('SELECT 1') =~ s/\s+/ /gr, 'accepted 1', 'and so does the session that waited');
	is_sql($node, $numbers, '3|3', 'the commit during the count is counted');

	# A count takes too long; then the session that counts ends.
	sql($node, "$finish; SELECT idemq.recount()");
	$stop = stop_at($one->{backend}, 'room_count');
	$one->query_until(qr/sent/, "\\echo sent\n$add;\n");
	$stop->();
	is_state($node, $add, '55P03', 'a session waits for 5 s, and then raises an error');
	$two->query_until(qr/sent/, "\\echo sent\n$add;\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $two->{backend} AND wait_event_type = 'Extension'");
	kill 'TERM', $one->{backend};
	$stop->();
	is($two->query('SELECT 1') =~ s/\s+/ /gr, 'accepted 1', 'when the counting session ends, another counts');
	is_sql($node, $numbers, '3|3', 'the room of the session that ended was given back');
	$one->{run}->kill_kill;

	# A commit is visible, but not yet in the count.  A count that sees its job does not count the job twice.
	fresh(3, 0);
	sql($node, $add);
	$stop = stop_at($two->{backend}, 'idemq_counters_add');
	$two->query_until(qr/sent/, "\\echo sent\n$add;\n");
	$stop->();
	sql($node, 'SELECT idemq.recount()');
	is_state($node, $add, 'IQ007', 'its room is taken until it is counted');
	$stop->();
	is($two->query('SELECT 1') =~ s/\s+/ /gr, 'accepted 1', 'the commit is over');
	is_sql($node, $numbers, '2|2', 'its job is counted once');
	is_sql($node, $add, 'accepted', 'there is room for another');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
	leave($two);
}

# ---- Without stop points

fresh(3, 2);
shipped($node);
my $one = session($node);
stop_at($one->{backend}, 'room_count') if $ENV{IDEMQ_SHIPPED};
is($one->query_safe($add), 'accepted', 'the first enqueue counts');
is_sql($node, $numbers, '3|3', 'all are counted');
leave($one);
SKIP:
{
	skip 'the library was built with stop points', 1 unless $ENV{IDEMQ_SHIPPED};
	ok(-e $node->data_dir . "/idemq_stops/$one->{backend}.room_count", 'the stop is still armed');
}
$node->stop;
done_testing();
