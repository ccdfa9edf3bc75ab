# group_max_unfinished with several sessions: the limit is exact under load, in each forced order of steps, after a crash,
# after the end of a session, with prepared transactions, and when the table of groups is full.
# stops: group_room_asks group_room_taken before_commit idemq_pending_group_room_apply
# at least 71 assertions
# expects in log: was terminated by signal 9

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

# Each queue can use two entries of the table.
my $node = new_server('full', max_connections => 40, max_prepared_transactions => 4, jit => 'off',
	restart_after_crash => 'on', 'idemq.max_buckets' => 4,
	'idemq.max_queues' => 2);
my $add = "SELECT outcome FROM idemq.enqueue('q', '1', group_key => 'g')";
my $finish = "SELECT idemq.cancel(min(id)) FROM idemq.job_list WHERE queue = 'q' AND group_key = 'g' AND status IN ('blocked', 'pending')";
my $jobs = "SELECT count(*) FROM idemq.jobs WHERE group_key = 'g' AND finished_at IS NULL";
my $taken = "SELECT used FROM idemq.memory WHERE resource = 'group room'";

# Creates a queue with that limit, and with that many jobs in group g.
sub fresh
{
	my ($limit, $jobs) = @_;

	sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues");
	sql($node, "SELECT idemq.create_queue('q', lease => '1 h', group_max_unfinished => $limit);
		SELECT count(idemq.enqueue('q', to_jsonb(n), group_key => 'g')) FROM generate_series(1, $jobs) n");
}

# Sends a statement that will not finish at once to a session.
sub send_to
{
	my ($session, $statement) = @_;

	$session->query_until(qr/sent/, "\\echo sent\n$statement;\n");
}

# Returns the results of the statements that were sent to a session.
sub answer_of
{
	my ($session) = @_;

	return $session->query('SELECT 1') =~ s/\s+/ /gr;
}

# ---- Eight sessions enqueue at once and keep their transactions open: five add a job

fresh(5, 0);
sql($node, q{CREATE FUNCTION try_add() RETURNS boolean LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM idemq.enqueue('q', '1', group_key => 'g');
		RETURN true;
	EXCEPTION WHEN SQLSTATE 'IQ007' OR query_canceled THEN RETURN false;
	END $$});
{
	my $barrier = barrier($node);
	my $producers = clients($node, "BEGIN;\nSELECT count(*) AS n FROM try_add() t WHERE t \\gset\n\\if :n\n" . $barrier->sql . ";\n\\endif\nCOMMIT;\n",
		'-c', 8, '-t', 1);

	$barrier->wait_for(5);
	is_state($node, $add, 'IQ007', 'five enqueues are open, so there is no room for another');
	is_sql($node, "SELECT outcome FROM idemq.enqueue('q', '1', group_key => 'h')", 'accepted', 'another group has room');
	$barrier->open;
	is($producers->(), '', 'the producers finish without errors');
	is_sql($node, "$jobs; $taken", "5\n0", 'there are five jobs, and no entry is left');
}

# ---- Random calls, while another session watches

fresh(5, 0);
sql($node, q{CREATE FUNCTION next_step(choice int) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF choice < 4 THEN
			PERFORM idemq.enqueue('q', '1', group_key => 'g');
		ELSIF choice < 6 THEN
			PERFORM idemq.enqueue_many('q', '{1,1,1}', group_keys => '{g,h,g}');
		ELSIF choice < 8 THEN
			PERFORM idemq.enqueue_many('q', '{1,1}', keys => ARRAY['k' || choice, 'l'], group_keys => '{g,g}');
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
	my ($most, $looks, $above) = (0, 0, 0);
	my $observer = session($node);

	while (sql($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'") > 0 || $looks < 20)
	{
		my $seen = $observer->query_safe('SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM idemq.jobs WHERE finished_at IS NULL GROUP BY group_key) g');

		$most = $seen if $seen > $most;
		$above += $seen > 0;
		$looks++;
	}
	is($run->(), '', 'the sessions finish without errors');
	cmp_ok($most, '<=', 5, "the limit is never exceeded, in $looks snapshots");
	cmp_ok($above, '>', 0, 'there were jobs');
	is_sql($node, $taken, '0', 'no room is left over');
	sql($node, 'SELECT next_step(0)') foreach 1 .. 6;
	is_sql($node, $jobs, '5', 'and the whole limit can be used');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
	leave($observer);
}

# ---- Sessions end, and the server crashes, with open transactions

foreach my $how ('is terminated', 'is killed', 'crashes with the server')
{
	fresh(3, 1);
	my $holder = session($node);

	$holder->query_safe("BEGIN; $add; SAVEPOINT a; $add");
	is_state($node, $add, 'IQ007', 'an open transaction has added two jobs');
	if ($how eq 'is terminated')
	{
		sql($node, "SELECT pg_terminate_backend($holder->{backend})");
		wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $holder->{backend}");
	}
	elsif ($how eq 'is killed')
	{
		my $log = log_end($node);

		kill 'KILL', $holder->{backend};
		wait_logged($node, qr/\(PID $holder->{backend}\) was terminated by signal 9[\s\S]*reinitializing/, $log);
		wait_until($node, 'SELECT true');
	}
	else
	{
		crash($node);
	}
	is_sql($node, $taken, '0', "the session $how: its room is free");
	is_sql($node, "$add; $add", "accepted\naccepted", 'there is room for two');
	is_state($node, $add, 'IQ007', 'and not for another');
	$holder->{run}->kill_kill;
}

# ---- PREPARE TRANSACTION

fresh(3, 2);
foreach (
	[ 'an enqueue', $add, '0A000' ],
	[ 'an enqueue with the room of a job that it has ended', "$finish; $add", '0A000' ],
	[ 'an enqueue without a group', "SELECT outcome FROM idemq.enqueue('q', '1')", '00000' ],
	[ 'a savepoint that is rolled back', "SAVEPOINT a; $add; ROLLBACK TO SAVEPOINT a", '00000' ],
	[ 'the end of a job', $finish, '00000' ])
{
	my ($name, $work, $state) = @$_;

	is_state($node, "BEGIN; $work; PREPARE TRANSACTION 'p'", $state, "PREPARE after $name");
	sql($node, "ROLLBACK PREPARED 'p'") if $state eq '00000';
}
# A transaction that was prepared before the limit was set.
sql($node, "SELECT idemq.alter_queue('q', group_max_unfinished => 0); BEGIN; $add; PREPARE TRANSACTION 'p'");
sql($node, "SELECT idemq.alter_queue('q', group_max_unfinished => 3)");
is_sql($node, $add, 'accepted', 'a prepared transaction that has not asked for room does not count');
sql($node, "COMMIT PREPARED 'p'; $finish");
is_state($node, $add, 'IQ007', 'it counts when it commits');
is_sql($node, $taken, '0', 'no room is left over');

# ---- A trigger uses the room that enqueue_many has taken for a job that turns out to be a duplicate

fresh(3, 0);
sql($node, q{SELECT idemq.enqueue('q', '1', 'k', group_key => 'g');
	CREATE FUNCTION follow_up() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		IF NEW.payload = '"first"' THEN
			PERFORM idemq.enqueue('q', '"second"', group_key => 'g');
		END IF;
		RETURN NEW;
	END $$;
	CREATE TRIGGER follow_up BEFORE INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION follow_up()});
{
	my $holder = session($node);

	is($holder->query_safe(q{BEGIN; SELECT string_agg(outcome::text, ' ' ORDER BY ord) FROM idemq.enqueue_many('q', '{1,"\"first\""}', keys => '{k,l}', group_keys => '{g,g}')}),
		'duplicate accepted', 'one job is a duplicate, and the trigger adds another');
	is_state($node, $add, 'IQ007', 'both new jobs have room until the transaction ends');
	$holder->query_safe('COMMIT');
	leave($holder);
}
is_sql($node, "$jobs; $taken; DROP TRIGGER follow_up ON idemq.jobs", "3\n0", 'the group is full, and no entry is left');

# ---- A full table, of which a queue may use half

fresh(3, 0);
sql($node, "SELECT idemq.create_queue('r', group_max_unfinished => 3), idemq.create_topic('news'), idemq.bind_topic('news', 'q')");
sql($node, "SELECT count(*) FROM idemq.enqueue_many('q', '{1,1}', keys => '{e,f}', group_keys => '{e,f}')");
{
	my $holder = session($node);
	my $other = session($node);

	$holder->query_safe("BEGIN; SELECT count(*) FROM idemq.enqueue_many('q', '{1,1,1}', group_keys => '{a,b,a}')");
	is_state($node, $add, '53400', 'there is no entry for a third group of the queue');
	is_sql($node, "SELECT outcome FROM idemq.enqueue('q', '1', group_key => 'a')", 'accepted', 'an enqueue into a group that has an entry succeeds');
	is_sql($node, "SELECT outcome FROM idemq.enqueue('r', '1', group_key => 'g')", 'accepted', 'and so does an enqueue into another queue');
	$other->query_safe("BEGIN; SELECT count(*) FROM idemq.enqueue_many('r', '{1,1}', group_keys => '{a,b}')");
	is_sql($node, "SELECT used, size, refused FROM idemq.memory WHERE resource = 'group room'", '4|4|1', 'idemq.memory');
	is_state($node, "SELECT idemq.enqueue_many('q', '{1,1,1}', group_keys => '{c,d,e}')", '53400', 'there are no entries for three groups in one call');
	is_state($node, "SELECT idemq.enqueue_many('q', '{1,1}', keys => '{k,l}', group_keys => '{c,d}')", '53400', 'nor for two groups of jobs with keys');
	is_sql($node, "SELECT string_agg(outcome::text, ' ') FROM idemq.enqueue_many('q', '{1,1,1}', keys => '{e,f,NULL}', group_keys => '{e,f,b}')",
		'duplicate duplicate accepted', 'duplicates in groups without an entry need no room');
	is_sql($node, 'SELECT outcome FROM idemq.publish(\'news\', \'1\', group_key => \'e\'); SELECT over_limit FROM idemq.topic_bindings', "accepted\n1",
		'a published job in a group without an entry is added, and counted in over_limit');
	is_sql($node, $taken, '4', 'no other entries are in use');
	$holder->query_safe('ROLLBACK');
	is_sql($node, $add, 'accepted', 'after the end of the transaction there is an entry again');
	$other->query_safe('COMMIT');
	is_sql($node, $taken, '0', 'at rest the table is empty');

	# An open transaction enqueues a key with the room of a job that it has ended, so its group has no entry.
	my $waiter = session($node);
	$other->query_safe("BEGIN; $finish; SELECT outcome FROM idemq.enqueue('q', '1', 'm', group_key => 'g')");
	$holder->query_safe("BEGIN; SELECT count(*) FROM idemq.enqueue_many('q', '{1,1}', group_keys => '{c,d}')");
	is_sql($node, $taken, '2', 'the queue has no more entries');
	send_to($waiter, "SELECT outcome FROM idemq.enqueue('q', '1', 'm', group_key => 'g')");
	wait_until($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $waiter->{backend}");
	$other->query_safe('COMMIT');
	is(answer_of($waiter), 'duplicate 1', 'a duplicate waits for the open transaction that has its key, even if there is no free entry');
	$holder->query_safe('ROLLBACK');
	leave($waiter);
	leave($holder);
	leave($other);
}

# A restored queue that has no state in shared memory.
sql($node, 'CREATE TEMP TABLE t AS SELECT * FROM idemq.queues WHERE name = \'q\'; UPDATE t SET queue_id = 1000, name = \'s\', max_unfinished = 3;
	INSERT INTO idemq.queues OVERRIDING SYSTEM VALUE SELECT * FROM t');
is_state($node, "SELECT idemq.enqueue_many('s', '{1,1}')", '53400', 'a queue with max_unfinished needs a state');
is_state($node, "SELECT idemq.enqueue_many('s', '{1,1}', group_keys => '{g,g}')", '53400', 'and so does one with group_max_unfinished');

# ---- A dump

{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/dump.sql";

	fresh(2, 2);
	command_ok([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-f', $file, 'postgres' ], 'pg_dump');
	sql($node, 'CREATE DATABASE restored');
	command_ok([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port, '-f', $file, '-o', '/dev/null', 'restored' ], 'restore');
	is(sqlstate($node, $add, 'restored'), 'IQ007', 'the dump restores the limit and the jobs');
}

# ---- Two enqueues compete for the last place, in each order of steps

SKIP:
{
	skip 'no stop points in the library', 22 unless has_stops();

	my $one = session($node);
	my $two = session($node);

	# One enqueue has taken room, and has not yet counted.  A later enqueue is refused.
	fresh(2, 1);
	my $stop = stop_at($one->{backend}, 'group_room_taken');
	send_to($one, $add);
	$stop->();
	is_state($node, $add, 'IQ007', 'the later one of two enqueues for the last place is refused, and does not wait');
	$stop->();
	is(answer_of($one), 'accepted 1', 'the earlier one is accepted');
	is_sql($node, "$jobs; $taken", "2\n0", 'the limit holds');

	# One enqueue is about to ask.  Meanwhile another begins and commits, so the snapshot of the first must show its job.
	fresh(2, 1);
	$stop = stop_at($one->{backend}, 'group_room_asks');
	send_to($one, 'SELECT try_add()');
	$stop->();
	is_sql($node, $add, 'accepted', 'the enqueue that begins later is accepted');
	$stop->();
	is(answer_of($one), 'f 1', 'the first one is refused');
	is_sql($node, "$jobs; $taken", "2\n0", 'the limit holds');

	# One enqueue is about to commit; then its commit is visible, but it has not yet given its room back.
	foreach my $place ('before_commit', 'idemq_pending_group_room_apply')
	{
		fresh(3, 1);
		$stop = stop_at($one->{backend}, $place);
		send_to($one, $add);
		$stop->();
		$two->query_safe('BEGIN');
		is_sql($node, $jobs, $place eq 'before_commit' ? '1' : '2', "$place: what others see");
		if ($place eq 'before_commit')
		{
			is_sql($node, $add, 'accepted', 'one place is left');
			is_state($node, $add, 'IQ007', 'and no other');
		}
		else
		{
			is_state($node, $add, 'IQ007', 'the job is counted twice, rather than not at all');
		}
		$stop->();
		is(answer_of($one), 'accepted 1', 'the commit is over');
		is_sql($node, $add, 'accepted', 'the last place is free') if $place ne 'before_commit';
		is_state($node, $add, 'IQ007', 'the limit holds');
		is_sql($node, "$jobs; $taken", "3\n0", 'exactly');
		$two->query_safe('COMMIT');
	}

	# An exception block that has taken room is rolled back, because its statement is cancelled.
	fresh(2, 1);
	$one->query_safe('BEGIN');
	$stop = stop_at($one->{backend}, 'group_room_taken');
	send_to($one, 'SELECT try_add()');
	$stop->();
	sql($node, "SELECT pg_cancel_backend($one->{backend})");
	$stop->();
	is(answer_of($one), 'f 1', 'an enqueue is cancelled');
	is_sql($node, $taken, '0', 'its room is given back');
	is_sql($node, $add, 'accepted', 'another enqueue gets it');
	$one->query_safe('COMMIT');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
	leave($_) foreach $one, $two;
}

# ---- Without stop points

fresh(2, 1);
shipped($node);
my $one = session($node);
stop_at($one->{backend}, 'group_room_taken') if $ENV{IDEMQ_SHIPPED};
is($one->query_safe($add), 'accepted', 'there is room for one job');
is_state($node, $add, 'IQ007', 'and not for another');
leave($one);
SKIP:
{
	skip 'the library was built with stop points', 1 unless $ENV{IDEMQ_SHIPPED};
	ok(-e $node->data_dir . "/idemq_stops/$one->{backend}.group_room_taken", 'the stop is still armed');
}
$node->stop;
done_testing();
