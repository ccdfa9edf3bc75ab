# Two-phase commit: between PREPARE and its end no session owns the
# transaction; nothing is lost, and what it leaves claimable is so at once.  A claim
# is a session's, so PREPARE refuses it; what a former version let through is
# recovered.
# at least 329 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('twophase');

# Fresh queues: the first job is claimed (its token in held), 2 is ready, 3 waits for its time.
sub reset_queues
{
	sql($node, "DROP TABLE IF EXISTS held;
		SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
		ALTER SEQUENCE idemq.jobs_id_seq RESTART;
		SELECT idemq.create_queue('q', lease => '1 h', retry_base => '1 h');
		SELECT idemq.enqueue('q', '1', priority => 0);
		CREATE TABLE held AS SELECT * FROM idemq.claim('q');
		SELECT idemq.enqueue('q', '2');
		SELECT idemq.enqueue('q', '3', key => 'k', delay => '1 h')");
}

# The first id of a run is the time of day; reset_queues makes the next ones small again.
sub reset_ids { return sql($node, "SELECT idemq.enqueue('q', '5')") }

sub prepare
{
	my ($work) = @_;

	sql($node, "BEGIN; $work; PREPARE TRANSACTION 'p'");
}

reset_ids();

# Everybody's scan start goes to the end, past whatever is prepared.
my $drain = "SELECT id % 1000 FROM idemq.claim('q', 10) ORDER BY id";
my $states = "SELECT string_agg(id % 1000 || ' ' || status || ' ' || attempt, ', ' ORDER BY id) FROM idemq.jobs";

# name, the work, what others can claim meanwhile, then after COMMIT PREPARED:
# claimable at once, states; and after ROLLBACK PREPARED.
my @cases = (
	[ 'a claim that finds nothing', "SELECT idemq.create_queue('e'); SELECT * FROM idemq.claim('e'); SELECT idemq.enqueue('q', '4', run_at => '2020-01-01')", '2',
		'4', '1 running 1, 2 running 1, 3 pending 0, 4 running 1', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'claim in a savepoint that was rolled back', "SAVEPOINT a; SELECT * FROM idemq.claim('q'); ROLLBACK TO a",
		'2', '', '1 running 1, 2 running 1, 3 pending 0', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'commit', 'SELECT idemq.commit(id, token) FROM held', '2',
		'', '1 completed 1, 2 running 1, 3 pending 0', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'fail', "SELECT idemq.fail(id, token, retry_in => '0') FROM held", '2',
		'1', '1 running 2, 2 running 1, 3 pending 0', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'release', 'SELECT idemq.release(id, token) FROM held', '2',
		'1', '1 running 1, 2 running 1, 3 pending 0', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'cancel', 'SELECT idemq.cancel(1000000000002)', '',
		'', '1 running 1, 2 cancelled 0, 3 pending 0', '2', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'retry', 'SELECT idemq.retry(1000000000003)', '2',
		'3', '1 running 1, 2 running 1, 3 running 1', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'commit_once', 'SELECT idemq.commit_once(1000000000002)', '',
		'', '1 running 1, 2 completed 0, 3 pending 0', '2', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'enqueue', "SELECT idemq.enqueue('q', '4', run_at => '2020-01-01')", '2',
		'4', '1 running 1, 2 running 1, 3 pending 0, 4 running 1', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'enqueue with a key', "SELECT idemq.enqueue('q', '4', key => 'new')", '2',
		'4', '1 running 1, 2 running 1, 3 pending 0, 4 running 1', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'replace', "SELECT idemq.enqueue('q', '4', key => 'k', on_duplicate => 'replace')", '2',
		'3', '1 running 1, 2 running 1, 3 running 1', '', '1 running 1, 2 running 1, 3 pending 0' ],
	[ 'a hand-made job', "INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
		SELECT queue_id, now(), 4, 3, 'pending', '2020-01-01', '4' FROM idemq.queues", '2',
		'4', '1 running 1, 2 running 1, 3 pending 0, 4 running 1', '', '1 running 1, 2 running 1, 3 pending 0' ]);

foreach my $case (@cases)
{
	my ($name, $work, $meanwhile, @after) = @$case;

	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my ($claimable, $state) = splice @after, 0, 2;

		reset_queues();
		prepare($work);
		is_sql($node, $drain, $meanwhile, "$name prepared: others go on");
		is_sql($node, $drain, '', "$name prepared: nothing more");
		sql($node, "$end PREPARED 'p'");
		is_sql($node, $drain, $claimable, "$name, $end PREPARED: claimable at once");
		is_sql($node, $states, $state, "$name, $end PREPARED: what the rows say");
	}
}

# Claims and promotions are refused, and undone: the transaction is aborted.
sub is_refused
{
	my ($work, $name) = @_;

	my (undef, undef, $error) = $node->psql('postgres', "BEGIN; $work; PREPARE TRANSACTION 'p'", extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	like($error, qr/ERROR:  0A000: cannot PREPARE a transaction that has claimed or promoted jobs/, "$name: refused");
	like($error, qr/HINT:  Claim jobs in a separate transaction/, "$name: a hint");
	is_sql($node, 'SELECT count(*) FROM pg_prepared_xacts', 0, "$name: it is not prepared");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$name: check() is clean");
}

foreach my $case (
	[ 'claim', "SELECT * FROM idemq.claim('q')" ],
	[ 'claim_any', "SELECT * FROM idemq.claim_any('{q}')" ],
	[ 'claim_job', 'SELECT * FROM idemq.claim_job(1000000000002)' ],
	[ 'acquire', "SELECT * FROM idemq.acquire('q', 'new', '5')" ],
	[ 'acquire of a job that there is', "SELECT idemq.enqueue('q', '5', key => 'there'); SELECT * FROM idemq.acquire('q', 'there')" ],
	[ 'an attached claim', "SELECT * FROM idemq.claim('q', attach => true)" ],
	[ 'commit_and_claim', "SELECT c.* FROM held, idemq.commit_and_claim(id, token) c" ],
	[ 'commit_many_and_claim', "SELECT c.* FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM held) h, idemq.commit_many_and_claim(ids, tokens, max_jobs => 1) c" ],
	[ 'a claim whose attempt it ends', "SELECT idemq.commit(id, token) FROM idemq.claim('q')" ],
	[ 'a claim of what it gives back', "SELECT idemq.release(id, token) FROM held; SELECT * FROM idemq.claim('q', 2)" ],
	[ 'a claim in a savepoint', "SAVEPOINT a; SELECT * FROM idemq.claim('q'); RELEASE a" ])
{
	my ($name, $work) = @$case;

	reset_queues();
	is_refused($work, $name);
	is_sql($node, 'SELECT idemq.validate(id, token) FROM held', 'current', "$name: the attempt goes on that it ended");
	is_sql($node, $drain, '2', "$name: its job is claimable at once");
}

# A promotion alone: the first job of the group is not due yet, so that nothing is claimed.
foreach my $running (1, 2)
{
	reset_queues();
	sql($node, "SELECT idemq.create_queue('g', group_max_running => $running);
		SELECT idemq.enqueue('g', '1', group_key => 'a', delay => '1 h')");
	is_refused("SELECT count(*) FROM idemq.claim('g')", "a promotion, group_max_running $running");
	is_sql($node, "BEGIN; SAVEPOINT a; SELECT count(*) FROM idemq.claim('g'); ROLLBACK TO a; PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p';
		SELECT count(*) FROM idemq.claim('g'); SELECT status FROM idemq.jobs WHERE group_key = 'a'", "0\n0\npending", 'one that a savepoint has undone is none');
}

# The end of an attempt marks its group, and promotes nothing.
reset_queues();
sql($node, "SELECT idemq.create_queue('g'); SELECT count(idemq.enqueue('g', to_jsonb(n), group_key => 'a')) FROM generate_series(1, 2) n;
	DROP TABLE held; CREATE TABLE held AS SELECT * FROM idemq.claim('g')");
prepare('SELECT idemq.commit(id, token) FROM held');
is_sql($node, "SELECT count(*) FROM idemq.claim('g')", 0, 'a commit in a group, prepared: its job is the head');
sql($node, "COMMIT PREPARED 'p'");
is_sql($node, "SELECT payload FROM idemq.claim('g')", 2, 'committed: the next one is');

# Held jobs answer locked, without waiting; ends of one attempt wait.  A former version prepared
# claims, and promotions with them: what an UPDATE by hand writes is what it wrote.  The server has been
# restarted since.
sub claimed_before
{
	my ($where) = @_;

	prepare("UPDATE idemq.jobs SET status = 'running', attempt = 1, token = 1000, ready_at = coalesce(ready_at, now()),
		claimed_at = now(), deadline = now() + interval '1 h' WHERE $where");
	crash($node);
}

reset_queues();
claimed_before('id = 1000000000002');
is_sql($node, 'SELECT outcome FROM idemq.claim_job(1000000000002)', 'locked', 'claim_job of a job that is prepared');
is_sql($node, 'SELECT idemq.commit_once(1000000000002)', 'locked', 'commit_once of it');
sql($node, "COMMIT PREPARED 'p'");
is_sql($node, "SELECT outcome, retry_after > clock_timestamp() FROM idemq.claim_job(1000000000002)", 'locked|t',
	'and after COMMIT PREPARED');
is_sql($node, 'SELECT idemq.validate(id, token), idemq.heartbeat(id, token), idemq.commit(id, token)
	FROM idemq.jobs WHERE id = 1000000000002', 'current|current|committed', 'a claim that was prepared holds its job');
reset_ids();

foreach my $running (1, 2)
{
	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		my $name = "claimed of a group before the update, group_max_running $running, $end PREPARED";
		my $take = "SELECT string_agg(payload::text, ' ' ORDER BY id) FROM idemq.claim('g', 10)";

		reset_queues();
		sql($node, "SELECT idemq.create_queue('g', group_max_running => $running, lease => '1 h');
			SELECT count(idemq.enqueue('g', to_jsonb(n), group_key => 'a')) FROM generate_series(1, 3) n");
		claimed_before("payload = '1' AND group_key = 'a'");
		is_sql($node, $take, '', "$name: nobody passes it");
		sql($node, "$end PREPARED 'p'");
		is_sql($node, $take, { 1 => { COMMIT => '', ROLLBACK => '1' }, 2 => { COMMIT => '2', ROLLBACK => '1 2' } }->{$running}{$end}, "$name: its permits");
		is_sql($node, "SELECT count(idemq.commit(id, token)) FROM idemq.jobs WHERE group_key = 'a' AND status = 'running'", $running, "$name: what runs");
		is_sql($node, $take, $running == 1 ? 2 : 3, "$name: the next");
		is_sql($node, 'SELECT * FROM idemq.check()', '', "$name: check() is clean");
		reset_ids();
	}
}

foreach my $end ('COMMIT', 'ROLLBACK')
{
	reset_queues();
	prepare('SELECT idemq.commit(id, token) FROM held');
	is_sql($node, 'SELECT idemq.heartbeat(id, token) FROM held', 'current', 'a heartbeat waits for nobody');
	my $session = session($node);
	$session->query_until(qr/asked/, "\\echo asked\nSELECT idemq.try_commit(id, token) FROM held;\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND query ~ 'try_commit'");
	sql($node, "$end PREPARED 'p'");
	like($session->query('SELECT 1'), $end eq 'COMMIT' ? qr/^already_committed$/m : qr/^committed$/m,
		"a second commit waits for the first one's $end PREPARED");
	leave($session);
}

# A lease that runs out meanwhile is reaped when the transaction is gone.
reset_queues();
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held"); # meant to expire
wait_until($node, 'SELECT idemq.validate(id, token) FROM held', 'expired');
prepare('SELECT idemq.commit(id, token) FROM held');
is_sql($node, "SELECT idemq.reap('q')", 0, 'a prepared commit keeps the reaper out');
sql($node, "ROLLBACK PREPARED 'p'");
sql($node, "UPDATE idemq.jobs SET deadline = claimed_at WHERE id = 1000000000001");
is_soon($node, "SELECT count(*) = 1 FROM idemq.claim('q', 10) WHERE id = 1000000000001", 'its job is claimed after ROLLBACK PREPARED');
is_sql($node, 'SELECT idemq.try_commit(id, token) FROM held', 'stale', 'and the old token is stale');

# A crash in between.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	reset_queues();
	prepare("SELECT idemq.fail(id, token, retry_in => '0') FROM held; SELECT idemq.enqueue('q', '4')");
	crash($node);
	is_sql($node, $drain, '2', 'others go on after a crash');
	sql($node, "$end PREPARED 'p'");
	is_sql($node, $drain, $end eq 'COMMIT' ? "1\n4" : '', "$end PREPARED after a crash: claimable at once");
	reset_ids();
}

# Queues.
reset_queues();
prepare("SELECT idemq.create_queue('new')");
is_state($node, "SELECT idemq.enqueue('new', '1')", 'IQ005', 'a queue that is prepared is not there');
sql($node, "COMMIT PREPARED 'p'");
is_state($node, "SELECT idemq.enqueue('new', '1')", '00000', 'after COMMIT PREPARED it is');
prepare("SELECT idemq.pause('q')");
sql($node, "ROLLBACK PREPARED 'p'");
is_sql($node, $drain, '2', 'a pause that was undone');
is_state($node, "BEGIN; SELECT idemq.drop_queue('new', force => true); PREPARE TRANSACTION 'p'", '0A000',
	'a drop cannot be prepared');
is_state($node, "SELECT idemq.enqueue('new', '1')", '00000', 'the queue is still there');

# What has changed none of our rows, resets nothing when it ends: not the search for jobs
# in flight, of which the metrics tell, nor the scan starts and counts that go with it.
sql($node, "CREATE ROLE stranger; GRANT USAGE ON SCHEMA idemq TO stranger;
	CREATE ROLE tenant; SELECT idemq.create_queue('empty'); SELECT idemq.grant_queue('empty', 'tenant', 'admin')");
reset_queues();
sql($node, "SELECT idemq.create_queue('empty'); SELECT idemq.grant_queue('empty', 'tenant', 'admin')");
# A full search of q, and it knows all of its jobs in flight.
sql($node, "SELECT idemq.claim('q', 10)") for (1 .. 2);
my $recovering = "SELECT recovering FROM idemq.metrics WHERE queue = 'q'";
is_sql($node, $recovering, 'f', 'all jobs in flight are known');

sub ends_with
{
	my ($role, $work, $expected, $name, $crash) = @_;

	foreach my $end ('COMMIT', 'ROLLBACK')
	{
		sql($node, "SET ROLE $role; BEGIN; $work; PREPARE TRANSACTION 'p'");
		if ($crash)
		{
			crash($node);
			sql($node, "SELECT idemq.claim('q', 10)") for (1 .. 2);
		}
		is_sql($node, $recovering, 'f', "$name, prepared: q is known");
		sql($node, "SET ROLE $role; $end PREPARED 'p'");
		is_sql($node, $recovering, $expected, "$name, $end PREPARED");
		sql($node, "SELECT idemq.claim('q', 10)") for (1 .. 2);
	}
}

ends_with('stranger', $_, 'f', "a stranger's $_")
	foreach ('SELECT 1', 'SELECT count(*) FROM idemq.jobs', 'SELECT idemq.validate(1000000000001, 1)', 'SELECT idemq.cancel(1000000000002)',
		'SELECT idemq.retry(1000000000002)', 'SELECT idemq.try_commit(1000000000002, 1)', 'SELECT * FROM idemq.commit_many(ARRAY[1000000000001, 1000000000002], ARRAY[1, 1])',
		'SELECT idemq.fail(1000000000002, 1)', 'SELECT idemq.release(1000000000002, 1)', 'SELECT idemq.heartbeat(1000000000002, 1)', 'SELECT idemq.commit_once(1000000000002)',
		'SELECT idemq.claim_job(1000000000002)', 'SELECT idemq.reap()', 'SELECT idemq.job(1000000000002)', 'SELECT count(*) FROM idemq.metrics');
ends_with('tenant', $_, 'f', "a tenant's $_")
	foreach ("SELECT idemq.claim('empty')", "SELECT idemq.reap('empty')", "SELECT idemq.redrive('empty')",
		"SELECT idemq.acquire('empty', 'k') WHERE false", 'SELECT idemq.why(1000000000002)');
ends_with('postgres', $_, 't', $_)
	foreach ("SELECT idemq.enqueue('empty', '1')", "SELECT idemq.enqueue('empty', '1'); SELECT idemq.validate(1000000000001, 1)",
		"SELECT idemq.pause('empty')", "SELECT idemq.grant_queue('empty', 'tenant', 'claim')",
		"UPDATE idemq.jobs SET payload = '5' WHERE id = 1000000000002", "SELECT id FROM idemq.jobs FOR UPDATE; DELETE FROM idemq.jobs WHERE false");
# Locks outlive a crash.
ends_with('tenant', 'SELECT pg_current_xact_id(), idemq.cancel(1000000000002)', 'f', "a tenant's cancel, after a crash", 1);
ends_with('tenant', "SELECT idemq.enqueue('empty', '1')", 't', "a tenant's enqueue, after a crash", 1);
# A database without idemq.
$node->safe_psql('template1', "BEGIN; CREATE TABLE t (); PREPARE TRANSACTION 'p'");
is($node->psql('template1', "ROLLBACK PREPARED 'p'"), 0, 'without idemq in the database');
is($node->psql('template1', "ROLLBACK PREPARED 'p'"), 3, 'no such transaction is the error that it was');

$node->stop;
done_testing();
