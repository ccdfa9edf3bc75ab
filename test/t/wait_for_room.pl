# CALL idemq.wait_for_room: every way to free room wakes a waiter, only as many waiters wake as there is room for, and room
# that a waiter does not use is offered to the next one.
# stops: wait_woken room_count
# at least 47 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('room', 'idemq.worker' => 'on', max_connections => 30, max_prepared_transactions => 2, jit => 'off');
my $finish = "SELECT idemq.commit(id, token) FROM idemq.claim('q')";
my $call = "CALL idemq.wait_for_room('q', 1, '10 h')";

# Creates a full queue with that limit.
sub full
{
	my ($limit) = @_;

	sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues");
	sql($node, "SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0, max_unfinished => $limit);
		SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(1, $limit) n");
}

sub asleep_count { return sql($node, 'SELECT count(*) FROM pg_stat_activity WHERE ' . asleep()) }

# ---- Without sleeping

sql($node, "SELECT idemq.create_queue('free')");
is_sql($node, "CALL idemq.wait_for_room('free', 1000000, '10 h')", 't', 'a queue without the limit has room');
full(2);
is_sql($node, "CALL idemq.wait_for_room('q', 1, '0')", 'f', 'a full queue');
is_state($node, "CALL idemq.wait_for_room('q', 3, '10 h')", 'IQ007', 'a queue never has room for more jobs than its limit');
sql($node, $finish);
is_sql($node, "CALL idemq.wait_for_room('q', 1, '10 h')", 't', 'room for one');
is_sql($node, "CALL idemq.wait_for_room('q', 2, '0')", 'f', 'no room for two');
is_sql($node, "CALL idemq.wait_for_room('q', jobs => 1)", 't', 'the call takes no room');
crash($node);
is_sql($node, "CALL idemq.wait_for_room('q', 1, '10 h')", 't', 'after a crash, the call counts');
is_sql($node, "SELECT unfinished FROM idemq.metrics WHERE queue = 'q'", '1', 'and the count is known');
is_state($node, "BEGIN; $call", '2D000', 'not in a transaction');
sql($node, 'CREATE ROLE claimer; GRANT USAGE ON SCHEMA idemq TO claimer; CREATE ROLE producer; GRANT USAGE ON SCHEMA idemq TO producer');
sql($node, "SELECT idemq.grant_queue('q', 'claimer', 'claim'), idemq.grant_queue('q', 'producer', 'enqueue')");
is_state($node, "SET ROLE claimer; $call", '42501', 'claim is not enough');
is_sql($node, "SET ROLE producer; $call", 't', 'enqueue is');

# ---- Every way to free room wakes a waiter

my $sleeping = session($node);
my $other = session($node);
foreach (
	[ 'the end of a job', $finish ],
	[ 'a cancellation', "SELECT idemq.cancel(min(id)) FROM idemq.job_list WHERE queue = 'q' AND status = 'pending'" ],
	[ 'a job deleted with SQL', 'DELETE FROM idemq.jobs WHERE id = (SELECT min(id) FROM idemq.jobs WHERE finished_at IS NULL)' ],
	[ 'a higher limit', "SELECT idemq.alter_queue('q', max_unfinished => 3)" ],
	[ 'no limit', "SELECT idemq.alter_queue('q', max_unfinished => 0)" ],
	[ 'a TRUNCATE', 'TRUNCATE idemq.jobs, idemq.dependencies, idemq.children' ],
	[ 'COMMIT PREPARED of a cancellation', "BEGIN; SELECT idemq.cancel(min(id)) FROM idemq.jobs; PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'" ],
	[ 'a rollback', 'ROLLBACK', "BEGIN; SELECT outcome FROM idemq.enqueue('q', '1')" ],
	[ 'a rollback to a savepoint', 'ROLLBACK TO SAVEPOINT a', "BEGIN; SAVEPOINT a; SELECT outcome FROM idemq.enqueue('q', '1')" ])
{
	my ($name, $then, $before) = @$_;

	full(2);
	if (defined $before)
	{
		sql($node, $finish);
		$other->query_safe($before);
	}
	my $waiter = waiter($node, $call, $sleeping);
	$other->query_safe($then) if defined $before;
	sql($node, $then) if !defined $before;
	is(answer($waiter), 't', $name);
	$other->query_safe('ROLLBACK') if $name =~ /savepoint/;
}
full(2);
my $waiter = waiter($node, $call, $sleeping);
sql($node, "SELECT idemq.recount()");
# The waiter may wake, count the jobs itself, and sleep again.
until_true('a count that became unknown does not end the call', sub { asleep_count() eq '1' });
sql($node, "SELECT idemq.drop_queue('q', force => true)");
like(answer($waiter), qr/^(?:t|IQ005)$/, 'the end of the queue ends the call');
full(2);
$waiter = waiter($node, "CALL idemq.wait_for_room('q', 2, '10 h')", $sleeping);
sql($node, "SELECT idemq.alter_queue('q', max_unfinished => 1)");
is(answer($waiter), 'IQ007', 'a limit below the room that a session waits for ends its call');
full(2);
# meant to expire
is_sql($node, "CALL idemq.wait_for_room('q', 1, '50 ms')", 'f', 'the timeout passes');
# meant to expire
is_sql($node, "SET statement_timeout = '300 ms'; CALL idemq.wait_for_room('q', 1, '10 h')", 'f', 'the call ends before statement_timeout');

# ---- Room that a woken session does not use is offered to the next one by the worker

full(2);
my @waiters = map { waiter($node, $call) } 1 .. 3;
sql($node, $finish);
is(answer($_), 't', 'every waiter is woken, although those before it have not used the room') foreach @waiters;
leave(map { $_->{session} } @waiters);

# ---- Only as many as there is room for

SKIP:
{
	skip 'no stop points in the library', 18 unless has_stops();

	full(4);
	@waiters = map { waiter($node, $call) } 1 .. 3;
	my @pids = map { $_->{pid} } @waiters;
	my @stops = map { stop_at($_, 'wait_woken') } @pids;
	# Without the worker, promised room is not taken back.
	my $worker = stop_worker($node);
	sql($node, $finish);
	until_true('a waiter is woken', sub { my @at = at_stop(@pids); @at > 0 });
	sql($node, 'SELECT 1') foreach 1 .. 3;
	is(scalar(my @first = at_stop(@pids)), 1, 'room for one wakes one');
	sql($node, $finish);
	until_true('a waiter is woken', sub { my @at = at_stop(@pids); @at > 1 });
	sql($node, 'SELECT 1') foreach 1 .. 3;
	is(scalar(my @second = at_stop(@pids)), 2, 'room for another wakes another');
	# An enqueue that takes the room does not free any.
	sql($node, "SELECT outcome FROM idemq.enqueue('q', '1')");
	is(scalar(my @third = at_stop(@pids)), 2, 'an enqueue wakes no waiter');
	# A woken session that leaves passes its signal on to the third.
	sql($node, "SELECT pg_cancel_backend($first[0])");
	my ($n) = grep { $pids[$_] == $first[0] } 0 .. 2;
	$stops[$n]->();
	$stops[$n]->();
	is(answer($waiters[$n]), '57014', 'a woken session is cancelled');
	$n = (grep { my $pid = $pids[$_]; !grep { $_ == $pid } @second } 0 .. 2)[0];
	$stops[$n]->();
	$stops[$n]->();
	is(answer($waiters[$n]), 't', 'and passes its signal on');
	kill 'CONT', $worker;
	$n = (grep { $pids[$_] != $first[0] && $_ != $n } 0 .. 2)[0];
	$stops[$n]->();
	$stops[$n]->();
	is(answer($waiters[$n]), 't', 'there is still room for the other');
	leave(map { $_->{session} } @waiters);

	# A waiter that needs more room than there is does not keep the others from waking.
	full(4);
	$worker = stop_worker($node);
	@waiters = (waiter($node, "CALL idemq.wait_for_room('q', 3, '10 h')"), waiter($node, $call));
	@stops = map { stop_at($_->{pid}, 'wait_woken') } @waiters;
	sql($node, $finish);
	$stops[1]->();
	is(scalar(my @small = at_stop($waiters[0]{pid})), 0, 'the waiter that needs room for three sleeps on');
	$stops[1]->();
	is(answer($waiters[1]), 't', 'the waiter that needs room for one wakes');
	is(sql($node, "SELECT outcome FROM idemq.enqueue('q', '1')"), 'accepted', 'and uses it');
	sql($node, $finish) foreach 1 .. 2;
	is(scalar(my @none = at_stop($waiters[0]{pid})), 0, 'and not for room for two');
	sql($node, $finish);
	$stops[0]->();
	$stops[0]->();
	is(answer($waiters[0]), 't', 'room for three wakes it');
	kill 'CONT', $worker;
	leave(map { $_->{session} } @waiters);

	# Waiters take turns, even if one of them waits again as soon as it has enqueued.
	full(2);
	$worker = stop_worker($node);
	@waiters = map { waiter($node, $call) } 1 .. 2;
	@stops = map { stop_at($_->{pid}, 'wait_woken') } @waiters;
	my @turns;
	foreach my $turn (1 .. 2)
	{
		sql($node, $finish);
		until_true('a waiter is woken', sub { my @at = at_stop(map { $_->{pid} } @waiters); @at > 0 });
		($turns[$turn]) = grep { my @at = at_stop($waiters[$_]{pid}); @at > 0 } 0, 1;
		$stops[ $turns[$turn] ]->() foreach 1 .. 2;
		is(answer($waiters[ $turns[$turn] ]), 't', "turn $turn");
		next if $turn == 2;
		sql($node, "SELECT outcome FROM idemq.enqueue('q', '1')");
		$waiters[ $turns[1] ] = waiter($node, $call, $waiters[ $turns[1] ]{session});
		$stops[ $turns[1] ] = stop_at($waiters[ $turns[1] ]{pid}, 'wait_woken');
	}
	is($turns[2], 1 - $turns[1], 'the other waiter is woken in the second turn');

	# A session that ends after it was woken passes the signal on.
	sql($node, "SELECT outcome FROM idemq.enqueue('q', '1')");
	$waiters[ $turns[2] ] = waiter($node, $call, $waiters[ $turns[2] ]{session});
	$stops[ $turns[2] ] = stop_at($waiters[ $turns[2] ]{pid}, 'wait_woken');
	sql($node, $finish);
	$stops[ $turns[1] ]->();
	sql($node, "SELECT pg_terminate_backend($waiters[ $turns[1] ]{pid})");
	$stops[ $turns[1] ]->();
	$stops[ $turns[2] ]->() foreach 1 .. 2;
	is(answer($waiters[ $turns[2] ]), 't', 'the end of a woken session wakes the next one');
	kill 'CONT', $worker;
	$waiters[ $turns[1] ]{session}{run}->kill_kill;
	leave($waiters[ $turns[2] ]{session});

	# While another session counts, a waiter sleeps; the end of the count wakes it.
	full(2);
	sql($node, "$finish; SELECT idemq.recount()");
	my $stop = stop_at($other->{backend}, 'room_count');
	$other->query_until(qr/sent/, "\\echo sent\nSELECT outcome FROM idemq.enqueue('q', '1', 'k');\n");
	$stop->();
	$waiter = waiter($node, "CALL idemq.wait_for_room('q', 1, '10 h')", $sleeping);
	sql($node, $finish);
	$stop->();
	is(answer($waiter), 't', 'the end of a count wakes a waiter');
	is($other->query('SELECT 1') =~ s/\s+/ /gr, 'accepted 1', 'the session that counted adds its job');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
}
leave($sleeping, $other);

# ---- Without stop points

full(2);
shipped($node);
sql($node, $finish);
my $one = session($node);
stop_at($one->{backend}, 'room_count') if $ENV{IDEMQ_SHIPPED};
is($one->query_safe("CALL idemq.wait_for_room('q', 1, '0')"), 't', 'the call counts');
leave($one);
SKIP:
{
	skip 'the library was built with stop points', 1 unless $ENV{IDEMQ_SHIPPED};
	ok(-e $node->data_dir . "/idemq_stops/$one->{backend}.room_count", 'the stop is still armed');
}
$node->stop;
done_testing();
