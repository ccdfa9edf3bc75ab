# NOTIFY: what the background worker tells those who LISTEN, and who pays for it.
# stops: idemq_notify_copy idemq_notify_ended
# at least 40 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

# meant to expire: the least time between two NOTIFYs
my $node = new_server('notify', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'idemq.notify_delay' => '10 ms');
my $listener = session($node);
my $ready = '{"event":"ready","queue":"q"}';

# The payloads that came until one that matches; the session must poll for them.
sub heard
{
	my ($until) = @_;
	my @heard;

	foreach (1 .. 6000)
	{
		my $output = $listener->query('SELECT');

		push @heard, $output =~ /notification "([^"]*)" with payload "(.*)" received/mg;
		last if "@heard" =~ $until;
		select undef, undef, undef, 0.02;
	}
	return join "\n", @heard[ grep { $_ % 2 } 0 .. $#heard ];
}

# What has come until now.  The worker tells all queues' news at once, and queue gate's are
# asked for last; twice, for what it does itself is told in the round after that.
sub heard_all
{
	my @heard;

	foreach (1 .. 2)
	{
		sql($node, "SELECT idemq.enqueue('gate', '1')");
		push @heard, split /\n/, heard(qr/"gate"/);
	}
	return join "\n", grep { !/"gate"/ } @heard;
}

# Waits until the worker has had two rounds: it takes back two leases in queue gate, one after the other.  By then it has
# looked at everything that was there before.
sub rounds
{
	foreach (1, 2)
	{
		my $id = sql($node, "SELECT id FROM idemq.enqueue('gate', '1')");

		sql($node, "SELECT idemq.claim_job($id, lease => '1 ms')"); # meant to expire
		wait_until($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $id");
	}
	return;
}

# Likewise where the worker tells nothing.
sub heard_without_worker
{
	my $last = 'end of ' . int(rand(2**31));

	rounds();
	sql($node, "NOTIFY idemq_q, '$last'");
	return heard(qr/$last/) =~ s/\n?\Q$last\E//r;
}

sub is_heard
{
	my ($expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(heard_all(), $expected, $name);
}

worker_pid($node);
# No lease of a queue that is heard ends by itself, however long all this takes.
sql($node, "SELECT idemq.create_queue('Or.der-1', lease => '1 h'), idemq.create_queue('gate', lease => '1 h')");
$listener->query_safe('LISTEN idemq_gate; LISTEN idemq_q; LISTEN "idemq_Or.der-1"');
is_heard('', 'nothing to tell');

# ready: whatever makes something claimable, and nothing else.
sql($node, "SELECT idemq.enqueue('q', '1')");
is_heard($ready, 'enqueue');
sql($node, "BEGIN; SELECT idemq.enqueue('q', '1'); PREPARE TRANSACTION 'p'");
is_heard('', 'PREPARE TRANSACTION of an enqueue is possible, and says nothing');
sql($node, "COMMIT PREPARED 'p'");
is_heard($ready, 'COMMIT PREPARED');
sql($node, "SELECT count(*) FROM idemq.claim('q', 100); SELECT idemq.alter_queue('q', max_attempts => 3);
	SELECT idemq.create_queue('other'); SELECT idemq.drop_queue('other')");
is_heard('', 'claims and settings are not news');
sql($node, "BEGIN; SELECT idemq.enqueue('q', '1'); ROLLBACK; BEGIN; SELECT idemq.enqueue('q', '1');
	PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'");
is_heard('', 'nor is what was rolled back');
sql($node, "SELECT count(*) FROM idemq.claim('q', 100); SELECT idemq.enqueue('q', '1', delay => '10 min')");
is_heard('', 'a delayed job, before its time');
advance($node, '10 min');
is_heard($ready, 'and then');
sql($node, "BEGIN; SELECT id FROM idemq.claim('q'); ROLLBACK");
is_heard($ready, 'a claim that is rolled back');
sql($node, "SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q')");
is_heard($ready, 'a failure that is tried again');
sql($node, "SELECT idemq.release(id, token) FROM idemq.claim('q')");
is_heard($ready, 'release');

# Coalesced: the worker looks when all of them have committed.
my $told_by = stop_worker($node);
sql($node, "DO 'BEGIN FOR i IN 1 .. 1000 LOOP PERFORM idemq.enqueue(''q'', ''1''); COMMIT; END LOOP; END'");
kill 'CONT', $told_by;
is_heard($ready, 'a burst of 1000 transactions is told in one NOTIFY');
sql($node, "SELECT count(*) FROM idemq.claim('q', 100000)");

# A name that LISTEN has to quote.
sql($node, "SELECT idemq.enqueue('Or.der-1', '1')");
is_heard('{"event":"ready","queue":"Or.der-1"}', 'a name that needs quotes');
sql($node, "SELECT count(*) FROM idemq.claim('Or.der-1')");

# Paused: silence until it is resumed.
sql($node, "SELECT idemq.pause('q'); SELECT idemq.enqueue('q', '1')");
is_heard('', 'a paused queue says nothing');
sql($node, "SELECT idemq.resume('q')");
# Once for the settings, and once more when the worker has looked what is due by them.
like(heard_all(), qr/^\Q$ready\E(\n\Q$ready\E)?$/, 'until it is resumed');
sql($node, "SELECT count(*) FROM idemq.claim('q', 100); SELECT idemq.pause('q'); SELECT idemq.resume('q')");
is_heard('', 'an empty one says nothing then either');

# Events of single jobs.
sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 2);
	CREATE TABLE held (id bigint, token bigint); SELECT idemq.enqueue('q', '1')");
is_heard($ready, 'one job');
my $id = sql($node, "SELECT max(id) FROM idemq.jobs WHERE queue_id = idemq.queue_id('q')");
my $claim = "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q')";
sub event { return qq({"event":"$_[0]","queue":"q","id":$id,"attempt":$_[1]}) }

sql($node, "$claim; SELECT idemq.heartbeat(id, token, '1 ms') FROM held"); # meant to expire
is_heard(event('lease_expired', 1) . "\n$ready", 'an expired lease');
my $worker = session($node);
$worker->query_safe("SELECT id FROM idemq.claim('q', attach => true)");
is_heard('', 'a claim');
leave($worker);
is_heard(event('worker_lost', 2) . "\n" . event('dead', 2), 'a session that ends with an attached lease; its last attempt');
sql($node, "SELECT idemq.redrive('q')");
is_heard($ready, 'redrive');
sql($node, "$claim; SELECT idemq.fail(id, token, permanent => true) FROM held");
is_heard(event('dead', 1), 'a permanent failure');
sql($node, "SELECT idemq.retry($id); $claim; BEGIN; SELECT idemq.fail(id, token, permanent => true) FROM held; ROLLBACK");
is_heard($ready, 'a failure that is rolled back is none');
sql($node, "SELECT idemq.commit(id, token) FROM held; SELECT idemq.enqueue('q', '1', key => 'k');
	SELECT idemq.cancel(max(id)) FROM idemq.jobs WHERE queue_id = idemq.queue_id('q')");
is_heard($ready, 'commit and cancel are not told');

# More events than are kept.
sql($node, "SELECT idemq.enqueue('q', '1') FROM generate_series(1, 200)");
is_heard($ready, '200 jobs');
$told_by = stop_worker($node); # it tells when all have happened
sql($node, "SELECT count(idemq.fail(id, token, permanent => true)) FROM idemq.claim('q', 200)");
kill 'CONT', $told_by;
my $many = heard_all();
is(scalar(() = $many =~ /"dead"/g), 128, 'events that are kept');
like($many, qr/^\{"event":"overflow","queue":"q","lost":72\}$/m, 'and how many are not');

# What was not told yet of a queue goes with it, and not to the next that has its slot.
sql($node, "SELECT idemq.create_queue('first'); SELECT idemq.enqueue('first', '1')");
heard_all();
$told_by = stop_worker($node);
sql($node, "SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('first'); SELECT idemq.drop_queue('first', force => true);
	SELECT idemq.create_queue('second'); SELECT idemq.enqueue('second', '1')");
$listener->query_safe('LISTEN idemq_second');
kill 'CONT', $told_by;
is_heard('{"event":"ready","queue":"second"}', 'a queue that is dropped with its news, and one in its slot');
sql($node, "SELECT idemq.drop_queue('second', force => true)");
$listener->query_safe('UNLISTEN idemq_second');

# Off and on, by reload.
$node->append_conf('postgresql.conf', 'idemq.notify = off');
reload_worker($node);
sql($node, "SELECT idemq.enqueue('q', '1'); SELECT idemq.redrive('q', 3);
	SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q'); BEGIN; SELECT id FROM idemq.claim('q'); ROLLBACK");
is(heard_without_worker(), '', 'idemq.notify = off');
$node->append_conf('postgresql.conf', 'idemq.notify = on');
reload_worker($node);
is_heard('', 'on again: what was not told stays so');
sql($node, "SELECT idemq.enqueue('q', '1')");
is_heard($ready, 'the next is told');

# Killed between the commit of the NOTIFY and its note of that: told twice.
{
	my $pid = worker_pid($node);
	my $stop = stop_at($pid, 'idemq_notify_ended');

	sql($node, "SELECT idemq.enqueue('q', '1')");
	$stop->();
	is(heard(qr/ready/), $ready, 'told');
	kill 'TERM', $pid;
	$stop->();
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	like(heard(qr/"ready","queue":"q"/), qr/^\Q$ready\E$/m, 'a worker that is killed before it knows of it: the next one repeats');
	heard_all();
}

# After a restart, one for each queue that has something ready.
sql($node, "SELECT idemq.create_queue('empty'); SELECT idemq.create_queue('paused'); SELECT idemq.enqueue('paused', '1');
	SELECT idemq.pause('paused'); SELECT idemq.enqueue('Or.der-1', '1')");
heard_all();
$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->restart;
$listener->reconnect_and_clear;
$listener->query_safe('LISTEN idemq_gate; LISTEN idemq_q; LISTEN "idemq_Or.der-1"; LISTEN idemq_empty; LISTEN idemq_paused');
$node->append_conf('postgresql.conf', 'idemq.worker = on');
$node->reload;
worker_pid($node);
is(join("\n", sort split /\n/, heard_all()), qq({"event":"ready","queue":"Or.der-1"}\n$ready), 'after a restart');

# A queue loses its state while the worker is about to read its events.  After TRUNCATE, each of the other queues gets a
# state, one of them that of "former", and an event.
{
	sql($node, "SELECT idemq.create_queue('former'); SELECT idemq.create_queue('f' || n) FROM generate_series(1, 10) n");
	$listener->query_safe('LISTEN idemq_former; LISTEN idemq_f1');
	heard_all();
	my $stop = stop_at(worker_pid($node), 'idemq_notify_copy');
	sql($node, "SELECT idemq.enqueue('former', '1')");
	$stop->();
	sql($node, "TRUNCATE idemq.jobs; SELECT idemq.enqueue(name, '1') FROM idemq.queues WHERE name NOT IN ('former', 'paused') ORDER BY name;
		SELECT q.name, j.* FROM idemq.queues q, LATERAL (SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim(q.name)) j
		WHERE name NOT IN ('former', 'paused')");
	$stop->();
	my $heard = heard_all();
	like($heard, qr/"dead","queue":"f1"/, 'after TRUNCATE, the events of queues that have got a state are told');
	unlike($heard, qr/"dead","queue":"former"/, 'and not in the name of the queue that had the state before');
}

# idemq.notify_delay is between two NOTIFYs; who sleeps in wait is not made to wait for it.
sql($node, "SELECT count(*) FROM idemq.claim_any('{q,gate,Or.der-1,empty,paused}', 100000)");
$node->append_conf('postgresql.conf', "idemq.notify_delay = '60 s'");
$node->restart;
$listener->reconnect_and_clear;
$listener->query_safe('LISTEN idemq_q');
worker_pid($node);
sql($node, "SELECT idemq.enqueue('q', '1')");
is(heard(qr/ready/), $ready, 'a NOTIFY');
sql($node, "SELECT count(*) FROM idemq.claim('q', 100)");
my $waiter = waiter($node, "CALL idemq.wait('q', '5 min')");
sql($node, "SELECT idemq.enqueue('q', '1')");
is(answer($waiter), 't', 'before the next is due, a waiter is woken');
is(heard_without_worker(), '', 'which is not told yet');
leave($waiter->{session});

leave($listener);
# The library as it ships, without stop points.
shipped($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$node->stop;
done_testing();
