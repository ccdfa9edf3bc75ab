# notify_finished: what the background worker tells about finished jobs, how often, and what becomes of notifications that
# PostgreSQL refuses.
# stops: idemq_announce_begin idemq_announce_send idemq_announce_ended
# at least 52 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils 'slurp_file';
use Test::More;
use Time::HiRes;

# The longest name that a queue can have, with all kinds of characters.
my $long = 'L.' . ('x' x 45) . '-';
my $node = new_server('notify_finished', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'idemq.history' => 'off');
my $listener = session($node);

# Reads notifications until one matches, and returns them all as [channel, payload].
sub heard_until
{
	my ($until) = @_;
	my @heard;

	foreach (1 .. 6000)
	{
		my $output = $listener->query('SELECT');

		push @heard, [ $1, $2 ] while $output =~ /notification "([^"]*)" with payload "(.*)" received/mg;
		return @heard if grep { $_->[1] =~ $until } @heard;
		select undef, undef, undef, 0.02;
	}
	die "never heard: $until";
}

# Returns the payloads that came before a job of queue gate was announced, which finishes now.  A round tells the news of all
# queues, so what had finished before is in them; a queue with an overflow besides has its second notification in the next round.
sub heard
{
	my @heard;

	foreach (1, 2)
	{
		sql($node, "SELECT idemq.enqueue('gate', '1'); SELECT idemq.commit(id, token) FROM idemq.claim('gate')");
		push @heard, heard_until(qr/"finished","queue":"gate"/);
	}
	return join "\n", map { $_->[1] } grep { $_->[1] !~ /"gate"/ && $_->[0] =~ /:/ } @heard;
}

sub is_heard
{
	my ($expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(heard(), $expected, $name);
}

# Creates jobs, and returns their ids.
sub jobs
{
	my ($count, $arguments, $queue) = @_;
	my $ids = sql($node, sprintf "SELECT string_agg((e).id::text, ',') FROM (SELECT idemq.enqueue('%s', '1' %s) AS e FROM generate_series(1, %d)) s",
		$queue // 'q', $arguments ? ", $arguments" : '', $count);

	return split /,/, $ids;
}

# The payload for jobs with these statuses.
sub finished
{
	my ($queue, @lists) = @_;
	my $text = '';

	while (my ($status, $ids) = splice @lists, 0, 2)
	{
		$text .= qq(,"$status":[) . join(',', @$ids) . ']';
	}
	return qq({"event":"finished","queue":"$queue"$text});
}

my $all = 'SELECT count(idemq.commit(id, token)) FROM idemq.claim(\'q\', 100000)';
my $overflow = '{"event":"overflow","queue":"q","lost":null}';

worker_pid($node);
sql($node, "SELECT idemq.alter_queue('q', notify_finished => true), idemq.create_queue('off', lease => '1 h'),
	idemq.create_queue('gate', lease => '1 h', notify_finished => true), idemq.create_queue('$long', notify_finished => true);
	CREATE ROLE nobody_special LOGIN");
# Any role may listen, and hears only ids and statuses.
$listener->query_safe('SET SESSION AUTHORIZATION nobody_special');
$listener->query_safe(qq(LISTEN "idemq_finished:$_")) foreach 'q', 'off', 'gate', $long;
$listener->query_safe('LISTEN idemq_gate');
is_heard('', 'nothing to tell');

# Every way in which a job finishes.
my @ids = jobs(3);
sql($node, "SELECT idemq.commit(id, token, '\"secret\"') FROM idemq.claim('q', 3)");
is_heard(finished('q', completed => \@ids), 'commit: one notification for the jobs of a transaction');
@ids = jobs(3, "key => 'secret ' || generate_series");
sql($node, "SELECT idemq.fail(id, token, 'secret', permanent => true) FROM idemq.claim('q'); SELECT idemq.cancel($ids[2]); SELECT idemq.commit_once($ids[1])");
my @parts = map { s/.*"queue":"q",//r =~ s/}//r } split /\n/, heard();
is(join(',', sort split /,/, join ',', @parts), qq("cancelled":[$ids[2]],"completed":[$ids[1]],"dead":[$ids[0]]), 'fail, commit_once and cancel');
@ids = jobs(1, "expires_in => '1 h'");
advance($node, '1 h 1 s');
is_heard(finished('q', cancelled => \@ids), 'a job that expires');
@ids = jobs(1, 'max_attempts => 1');
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM idemq.claim('q')"); # meant to expire
wait_until($node, "SELECT status = 'dead' FROM idemq.jobs WHERE id = $ids[0]");
is_heard(finished('q', dead => \@ids), 'a lease that expires in the last attempt');
@ids = jobs(1);
push @ids, jobs(1, "depends_on => '{$ids[0]}'");
sql($node, "SELECT idemq.cancel($ids[0])");
wait_until($node, "SELECT status = 'cancelled' FROM idemq.jobs WHERE id = $ids[1]");
my @named = heard() =~ /\d+/g;
is_deeply([ sort @named ], \@ids, 'a child that is cancelled with its parent');
@ids = jobs(2);
sql($node, "UPDATE idemq.jobs SET status = 'completed', finished_at = now(), ready_at = NULL WHERE id = ANY ('{$ids[0],$ids[1]}')");
is_heard(finished('q', completed => \@ids), 'an UPDATE by hand');
sql($node, "CREATE TABLE saved AS SELECT * FROM idemq.jobs WHERE id = $ids[0]; DELETE FROM idemq.jobs WHERE id = $ids[0]; INSERT INTO idemq.jobs SELECT * FROM saved");
is_heard('', 'a job that was finished when it was restored');
sql($node, "SELECT idemq.alter_queue('q', retention => '0')");
@ids = jobs(2);
sql($node, $all);
is_heard(finished('q', completed => \@ids), 'jobs that are deleted as they complete');
sql($node, "SELECT idemq.alter_queue('q', retention => '1 day')");

# What does not finish a job.
@ids = jobs(1);
sql($node, "SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q'); SELECT idemq.release(id, token) FROM idemq.claim('q'); SELECT idemq.claim('q')");
is_heard('', 'a retry, a release and a claim');
sql($node, "SELECT idemq.enqueue('q', '2', key => 'again', on_duplicate => 'rerun')");
@ids = sql($node, "SELECT id FROM idemq.claim('q')");
sql($node, "SELECT idemq.enqueue('q', '3', key => 'again', on_duplicate => 'rerun');
	SELECT idemq.commit(id, token) FROM idemq.jobs WHERE id = $ids[0]");
is_heard('', 'a job that was asked to run once more when it completes');
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('q')");
is_heard(finished('q', completed => \@ids), 'and then');

# Transactions.
@ids = jobs(3);
sql($node, "BEGIN; $all; ROLLBACK");
is_heard('', 'a transaction that is rolled back');
sql($node, "BEGIN; SELECT idemq.cancel($ids[0]); SAVEPOINT a; SELECT idemq.cancel($ids[1]); ROLLBACK TO a; SAVEPOINT b; SELECT idemq.cancel($ids[2]); RELEASE b; COMMIT");
is_heard(finished('q', cancelled => [ @ids[ 0, 2 ] ]), 'a savepoint that is rolled back, and one that is released');
my $open = session($node);
$open->query_safe("BEGIN; SELECT idemq.cancel($ids[1])");
is_heard('', 'before the commit');
$open->query_safe('COMMIT');
is_heard(finished('q', cancelled => [ $ids[1] ]), 'after it');
leave($open);
jobs(2);
sql($node, "CREATE TABLE held AS SELECT id, token FROM idemq.claim('q', 2)");
sql($node, "BEGIN; SELECT idemq.commit(id, token) FROM held; PREPARE TRANSACTION 'p'");
is_heard('', 'PREPARE TRANSACTION');
sql($node, "COMMIT PREPARED 'p'");
like(heard(), qr/^\Q$overflow\E$/m, 'COMMIT PREPARED: jobs have finished, and it is not known how many');

# The setting.
worker_pid($node);
my $runs = sql($node, "SELECT runs FROM idemq.maintenance_tasks WHERE task = 'announce'");
sql($node, "SELECT idemq.enqueue('off', '1'); SELECT idemq.commit(id, token) FROM idemq.claim('off')");
worker_pid($node);
is_sql($node, "SELECT runs FROM idemq.maintenance_tasks WHERE task = 'announce'", $runs, 'a queue without notify_finished gives the worker nothing to do');
is_heard('', 'nothing is told of it');
sql($node, "SELECT idemq.alter_queue('off', notify_finished => true)");
@ids = jobs(1, '', 'off');
sql($node, "SELECT idemq.cancel($ids[0])");
is_heard(finished('off', cancelled => \@ids), 'from alter_queue on');
sql($node, "SELECT idemq.alter_queue('off', notify_finished => false)");
@ids = jobs(1, '', 'off');
sql($node, "SELECT idemq.cancel($ids[0])");
is_heard('', 'until the next');
@ids = jobs(1);
my $told_by = stop_worker($node);
sql($node, "$all; SELECT idemq.alter_queue('q', notify_finished => false)");
kill 'CONT', $told_by;
is_heard('', 'what was not told yet when the setting is switched off is not told');
sql($node, "SELECT idemq.alter_queue('q', notify_finished => true)");
is_heard('', 'nor when it is on again');
@ids = jobs(1, '', $long);
sql($node, "SELECT idemq.cancel($ids[0])");
is_heard(finished($long, cancelled => \@ids), 'the longest name');

# More than the ring keeps: the rest is counted.
@ids = jobs(1000);
$told_by = stop_worker($node);
sql($node, "$all; SELECT idemq.cancel(id) FROM idemq.enqueue('q', '1')");
kill 'CONT', $told_by;
my @told = sort split /\n/, heard();
is($told[0], finished('q', completed => [ @ids[ 0 .. 255 ] ]), 'the ids that are kept');
is($told[1], '{"event":"overflow","queue":"q","lost":745}', 'and the number of the others');
is(scalar(@told), 2, 'nothing else');
# While the ring never gets empty, ids and overflows take turns.
{
	@ids = jobs(300);
	$told_by = stop_worker($node);
	my $stop = stop_at($told_by, 'idemq_announce_ended', 'idemq_announce_begin');
	sql($node, $all);
	kill 'CONT', $told_by;
	$stop->() foreach 1 .. 3; # now the next round begins
	my @more = jobs(1);
	sql($node, $all);
	$stop->();
	is(join("\n", map { $_->[1] } grep { $_->[0] =~ /:/ } heard_until(qr/$more[0]/)),
		join("\n", finished('q', completed => [ @ids[ 0 .. 255 ] ]), '{"event":"overflow","queue":"q","lost":44}', finished('q', completed => \@more)), 'ids, overflow, ids');
}
# Ids with as many digits as there are: the notification still fits.
sql($node, "INSERT INTO idemq.jobs SELECT (jsonb_populate_record(s, jsonb_build_object('id', 9223372036854775807 - n, 'status', 'pending', 'ready_at', now(), 'finished_at', NULL))).*
	FROM saved s, generate_series(1, 256) n; SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE id > 9000000000000000000");
my $longest = heard();
is(scalar(() = $longest =~ /\b9223372036854775\d{3}\b/g), 256, '256 ids with 19 digits');
cmp_ok(length($longest), '>', 5000, 'in one long notification');
sql($node, 'DELETE FROM idemq.jobs WHERE id > 9000000000000000000');

# Under load.  A round tells of many jobs; the time is measured from before the first job to after the last notification.
{
	jobs(600);
	my $from = Time::HiRes::time;
	sql($node, q{DO 'BEGIN FOR i IN 1 .. 600 LOOP PERFORM idemq.commit(id, token) FROM idemq.claim(''q''); COMMIT; PERFORM pg_sleep(0.002); END LOOP; END'});
	my @load = split /\n/, heard();
	my $most = 20 * (Time::HiRes::time - $from) + 1;
	my $ids = 0;

	$ids += () = /\b\d{10,}\b/g foreach @load;
	is($ids, 600, 'under load: every job is told once');
	cmp_ok(scalar(@load), '<=', $most, 'at most 20 notifications per second');
	cmp_ok(scalar(@load), '>=', 3, 'and not all at the end');
}

# A queue that is dropped with what it has not told, and another in its place.
sql($node, "SELECT idemq.create_queue('first', notify_finished => true); SELECT idemq.enqueue('first', '1')");
heard();
$told_by = stop_worker($node);
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('first'); SELECT idemq.drop_queue('first', force => true);
	SELECT idemq.create_queue('second', notify_finished => true); SELECT idemq.cancel(id) FROM idemq.enqueue('second', '1')");
@ids = sql($node, "SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id('second')");
$listener->query_safe('LISTEN "idemq_finished:second"');
kill 'CONT', $told_by;
is_heard(finished('second', cancelled => \@ids), 'a queue that is dropped with its news, and one in its slot');
{
	my $stop = stop_at(worker_pid($node), 'idemq_announce_begin');

	sql($node, "SELECT idemq.cancel(id) FROM idemq.enqueue('second', '1')");
	$stop->();
	sql($node, "SELECT idemq.drop_queue('second', force => true); SELECT idemq.create_queue('second', notify_finished => true)");
	$stop->();
	is_heard('', 'the same if the worker has begun: it tells nothing of the other queue');
}

# idemq.notify.
$node->append_conf('postgresql.conf', 'idemq.notify = off');
reload_worker($node);
worker_pid($node);
$runs = sql($node, "SELECT runs FROM idemq.maintenance_tasks WHERE task = 'announce'");
@ids = jobs(1);
sql($node, $all);
worker_pid($node);
is_sql($node, "SELECT runs FROM idemq.maintenance_tasks WHERE task = 'announce'", $runs, 'idemq.notify = off: the worker has nothing to do');
$node->append_conf('postgresql.conf', 'idemq.notify = on');
reload_worker($node);
is_heard('', 'idemq.notify = off');

# A worker that ends in the middle of a round: the next one sends what it had copied.
@ids = jobs(1);
{
	my $pid = worker_pid($node);
	my $stop = stop_at($pid, 'idemq_announce_send');

	sql($node, $all);
	$stop->();
	kill 'TERM', $pid;
	$stop->();
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	is_heard(finished('q', completed => \@ids), 'a worker that ends in the middle of a round');
}

# A job that finishes while a round is under way is in the next one, although its ring was waiting already.
{
	my $stop = stop_at(worker_pid($node), 'idemq_announce_ended');
	my @first = jobs(1);

	sql($node, $all);
	$stop->();
	@ids = jobs(1);
	sql($node, $all);
	$stop->();
	is(join("\n", map { $_->[1] } grep { $_->[0] =~ /:/ } heard_until(qr/$ids[0]/)), finished('q', completed => \@first) . "\n" . finished('q', completed => \@ids),
		'a job that finishes during a round');
}

# Without a worker, the ring keeps what it can.
$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->reload;
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'idemq worker'");
@ids = jobs(257);
sql($node, $all);
$node->append_conf('postgresql.conf', 'idemq.worker = on');
$node->reload;
worker_pid($node);
@told = sort split /\n/, heard();
is("@told", finished('q', completed => [ @ids[ 0 .. 255 ] ]) . ' {"event":"overflow","queue":"q","lost":1}', 'jobs that finished while no worker was running');

# Refused: here the statement is cancelled, and the worker treats every error alike.
my $log = log_end($node);
my $failures = "SELECT failures FROM idemq.maintenance_tasks WHERE task =";
is_sql($node, "$failures 'announce'", 0, 'no failure yet');
foreach my $round (1, 2)
{
	my $pid = worker_pid($node);
	my $stop = stop_at($pid, 'idemq_announce_send');

	jobs(5);
	sql($node, $all);
	$stop->();
	sql($node, "SELECT pg_cancel_backend($pid)");
	$stop->();
	wait_until($node, "$failures 'announce'", $round);
}
sql($node, "SELECT idemq.enqueue('gate', '1')");
my @ready = heard_until(qr/"ready","queue":"gate"/);
is($ready[-1][1], '{"event":"ready","queue":"gate"}', 'the ready channel goes on');
is_sql($node, "$failures 'notify'", 0, 'and has not failed');
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('gate')");
@told = map { $_->[1] } @ready, heard_until(qr/"finished","queue":"gate"/);
is(join("\n", grep { /"q"/ && /overflow|finished/ } @told), '{"event":"overflow","queue":"q","lost":10}', 'refused jobs are a part of the next overflow');
is(scalar(() = slurp_file($node->logfile, $log) =~ /maintenance task "announce"/g), 1, 'one line in the log per minute');
@ids = jobs(1);
sql($node, $all);
is_heard(finished('q', completed => \@ids), 'then all is as before');

# From PostgreSQL 17 on, the size of the NOTIFY queue can be set, and a session can fill it.  Before, it has 8 GB.
if (sql($node, 'SHOW server_version_num') >= 170000)
{
	$node->append_conf('postgresql.conf', 'max_notify_queue_pages = 64');
	leave($listener);
	$node->restart;
	$listener->reconnect_and_clear;
	$listener->query_safe('LISTEN "idemq_finished:q"; LISTEN "idemq_finished:gate"; LISTEN idemq_gate');
	worker_pid($node);
	my $reader = session($node);
	$reader->query_safe('LISTEN other; BEGIN; SELECT 1');
	sql($node, "SELECT count(pg_notify('other', repeat('x', 7900) || n)) FROM generate_series(1, 40) n");
	@ids = jobs(1);
	sql($node, $all);
	wait_until($node, "SELECT failures > 0 FROM idemq.maintenance_tasks WHERE task = 'announce'");
	is_logged($node, qr/notifications of finished jobs are not sent while the NOTIFY queue is more than half full/, 'a queue of notifications that is half full');
	sql($node, "SELECT idemq.enqueue('gate', '1')");
	ok(scalar(heard_until(qr/"ready","queue":"gate"/)), 'the ready channel may use the other half');
	$reader->query_safe('COMMIT');
	sql($node, 'SELECT pg_notification_queue_usage()');
	is((grep { /"q"/ } map { $_->[1] } heard_until(qr/overflow/))[0], '{"event":"overflow","queue":"q","lost":1}', 'an overflow once there is room');
	leave($reader);
	sql($node, "SELECT count(idemq.commit(id, token)) FROM idemq.claim('gate', 10)");
}

# A database that follows another one tells nothing, not even after it has taken over.
heard();
jobs(2);
sql($node, 'SELECT idemq.follow()');
sql($node, "UPDATE idemq.jobs SET status = 'completed', finished_at = now(), ready_at = NULL WHERE status = 'pending'");
worker_pid($node);
sql($node, q{NOTIFY "idemq_finished:q", 'end'});
is(join("\n", grep { /"q"/ } map { $_->[1] } heard_until(qr/^end$/)), '', 'a database that follows');
sql($node, 'SELECT idemq.take_over()');
is_heard('', 'nor does it tell of them afterwards');
@ids = jobs(1);
sql($node, $all);
is_heard(finished('q', completed => \@ids), 'but of what finishes from then on');

# A crash loses what was not told.  The listener has lost its session, and reads the jobs when it has a new one.
jobs(1);
$told_by = stop_worker($node);
sql($node, $all);
leave($listener);
crash($node);
$listener->reconnect_and_clear;
$listener->query_safe('LISTEN "idemq_finished:q"; LISTEN "idemq_finished:gate"');
worker_pid($node);
is_heard('', 'after a crash');

leave($listener);
# The library as it ships, without stop points.
shipped($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$node->stop;
done_testing();
