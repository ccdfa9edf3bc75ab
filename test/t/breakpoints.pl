# Sessions stopped at an exact place: between what they do to a row and what they do to shared memory.
# at least 105 assertions
# stops: claim_before_snapshot idemq_claim_row_fill idemq_scan_start_lower idemq_scan_start_read idemq_groups_know idemq_jobs_group_head idemq_jobs_group_next idemq_jobs_lock idemq_jobs_refresh_or_raise idemq_lease_activate idemq_lease_drop idemq_lease_hold idemq_lease_restore idemq_lease_count_transferred idemq_reap_some idemq_waiters_join idemq_tick_key_check idemq_transition idemq_worker_announce_use

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $node = new_server('stopped', autovacuum => 'off', max_prepared_transactions => 2);

plan skip_all => 'no stop points in the library' unless has_stops();

my $one = session($node);
my $pid = $one->query_safe('SELECT pg_backend_pid()');
my $claim = "SELECT string_agg(payload::text, ' ' ORDER BY payload) FROM idemq.claim('q', 10)";

# Jobs 1 and 2, of which $claimed are claimed by session one, with the rest claimed
# and the scan start at the end.
sub prepare
{
	my ($claimed) = @_;

	sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h');
		SELECT idemq.enqueue('q', '1'); SELECT idemq.enqueue('q', '2');
		DROP TABLE IF EXISTS held; CREATE TABLE held (id bigint, token bigint, payload jsonb)");
	sql($node, "INSERT INTO held SELECT id, token, payload FROM idemq.claim('q', $claimed)") if $claimed;
	$one->query_safe('SELECT 1');
}

# Sends SQL to session one, which stops at a function.
sub send_to
{
	my ($sql, $function) = @_;
	my $stop = stop_at($pid, $function);

	$one->query_until(qr/sent/, "\\echo sent\n$sql;\n");
	$stop->();
	return sub { $stop->(); return $one->query('SELECT 1') };
}

# What can be claimed now, beside a job 4 that is new.  A queue that looks empty
# is searched from the start, once a second: this one does not, so that search
# cannot make good for what the scan start has passed.
sub claim_with_4
{
	sql($node, "SELECT idemq.enqueue('q', '4')");
	return sql($node, $claim);
}

# What is committed before the claim's snapshot is claimed; what is committed
# between its look at the scan start and its snapshot is not passed.
prepare(1);
my $go = send_to($claim, 'idemq_scan_start_read');
sql($node, "SELECT idemq.enqueue('q', '3', run_at => '2020-01-01')");
like($go->() . claim_with_4(), qr/^2 3$|3 4$/m, 'committed before the scan start is read: claimed');

prepare(1);
$go = send_to($claim, 'claim_before_snapshot');
sql($node, "SELECT idemq.enqueue('q', '3', run_at => '2020-01-01')");
like($go->() . claim_with_4(), qr/^2 3$|3 4$/m, 'committed before the snapshot: claimed');

prepare(1);
$go = send_to($claim, 'idemq_claim_row_fill');
sql($node, "SELECT idemq.enqueue('q', '3', run_at => '2020-01-01')");
like($go->(), qr/^2$/m, 'committed in the middle of the claim: it has its own');
is(claim_with_4(), '3 4', 'and the scan start does not pass the other');

# The entry is there, the row is not written yet.
prepare(0);
$go = send_to("SELECT payload FROM idemq.claim('q')", 'idemq_transition');
is_sql($node, $claim, '2', 'a claim between its entry and its row: others skip the job');
is_sql($node, "SELECT outcome FROM idemq.claim_job((SELECT id FROM idemq.jobs WHERE payload = '1'))", 'locked',
	'and claim_job says so');
like($go->(), qr/^1$/m, 'it has it');
is_sql($node, $claim, '', 'alone');

# Committed, and shared memory does not know yet.
prepare(0);
$go = send_to("SELECT payload FROM idemq.claim('q')", 'idemq_lease_activate');
is_sql($node, $claim, '2', 'a claim that is committed, its lease not started');
$go->();
is_sql($node, $claim, '', 'nobody else gets it');
is_sql($node, "SELECT idemq.heartbeat(id, token) FROM idemq.jobs WHERE payload = '1'", 'current', 'its lease runs');

# Committed, and its lease not started yet: another session ends the attempt, claims the job again in the same
# transaction, and takes that back.  Where session one goes on ($go) among these steps makes no difference: its lease starts.
my $two = session($node);
my $first = "(SELECT id FROM idemq.jobs WHERE payload = '1')";
my $release = "SELECT idemq.release(id, token) FROM idemq.jobs WHERE payload = '1'";
my $retry = "SELECT idemq.fail(id, token, permanent => true), idemq.retry(id) FROM idemq.jobs WHERE payload = '1'";
my $again = "SELECT outcome FROM idemq.claim_job($first)";
my $goes = 'session one goes on';

sub in_two
{
	return map { my $answer = $_ eq $goes ? $go->() : $two->query($_); $_ eq $goes || $answer eq '' ? () : $answer } @_;
}

foreach my $case (
	[ [ 'BEGIN', $release, $again, 'ROLLBACK', $goes ], 'released claimed' ],
	[ [ 'BEGIN', $release, $again, $goes, 'ROLLBACK' ], 'released claimed' ],
	[ [ 'BEGIN', $release, $goes, $again, 'ROLLBACK' ], 'released claimed' ],
	[ [ 'BEGIN', $retry, $again, 'ROLLBACK', $goes ], 'dead|retrying claimed' ],
	[ [ 'BEGIN', $release, 'SAVEPOINT s', $again, 'ROLLBACK TO s', $goes, 'ROLLBACK' ], 'released claimed' ],
	[ [ 'BEGIN', 'SAVEPOINT s', $release, $again, $goes, 'ROLLBACK TO s', 'COMMIT' ], 'released claimed' ],
	[ [ 'BEGIN', $release, 'SAVEPOINT s', $again, $release, $again, $goes, 'ROLLBACK' ], 'released claimed released claimed' ],
	[ [ 'BEGIN', $release, 'SAVEPOINT s', $again, 'ROLLBACK TO s', "PREPARE TRANSACTION 'end'", $goes, "ROLLBACK PREPARED 'end'" ], 'released claimed' ])
{
	prepare(0);
	# The lease is meant to expire.
	$go = send_to("SELECT payload FROM idemq.claim('q', lease => '1 ms')", 'idemq_lease_activate');
	is(join(' ', in_two(@{ $case->[0] })), $case->[1], join('; ', map { s/SELECT (?:idemq\.|outcome FROM idemq\.)(\w+).*/$1/r } @{ $case->[0] }));
	is_sql($node, "SELECT pg_sleep(0.01); SELECT idemq.reap('q'); SELECT status FROM idemq.jobs WHERE payload = '1'", "\n1\npending",
		'the attempt goes on, and its lease ends');
}

# The end stands, and the claim does not.
prepare(0);
$go = send_to("SELECT payload FROM idemq.claim('q')", 'idemq_lease_activate');
in_two('BEGIN', $release, 'SAVEPOINT s', $again, 'ROLLBACK TO s', 'COMMIT', $goes);
is(claim_with_4(), '1 2 4', 'a claim that is taken back behind an end that is not: the job is ready');

# With the permit of an attempt that it has ended in the same transaction: counted by the time that the other is not.
prepare(0);
sql($node, "SELECT idemq.alter_queue('q', max_running => 1); SELECT idemq.enqueue('q', '3');
	INSERT INTO held SELECT id, token, payload FROM idemq.claim_job((SELECT id FROM idemq.jobs WHERE payload = '2'))");
$go = send_to("SELECT payload FROM idemq.commit_and_claim((SELECT id FROM held), (SELECT token FROM held))", 'idemq_lease_count_transferred');
is(join(' ', in_two('BEGIN', $release, $again, $goes, $again)), 'released not_due claimed',
	'a claim by permit transfer that another session has ended: counted beside the attempt whose permit it takes, until that is gone');
is_sql($node, $claim, '', 'runs alone');
in_two('ROLLBACK');
is_sql($node, $claim, '', 'and when that is taken back');
is_sql($node, 'SELECT state FROM idemq.running_jobs', 'active', 'its lease runs');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# Attached.
prepare(0);
$go = send_to("SELECT payload FROM idemq.claim('q', attach => true)", 'idemq_lease_activate');
in_two('BEGIN', $release, $again, $goes, 'ROLLBACK');
leave($one);
is_sql($node, "SELECT idemq.reap('q')", 1, 'an attached lease ends with its session');
$one = session($node);
$pid = $one->query_safe('SELECT pg_backend_pid()');

# A session's own claim, released and claimed again in a savepoint that is rolled back, is open as before.
prepare(0);
$two->query("BEGIN; $again; SAVEPOINT s; $release; $again; ROLLBACK TO s");
is_sql($node, 'SELECT state FROM idemq.running_jobs', 'claiming', 'an own claim that was ended in a savepoint is open');
$two->query('COMMIT');
is_sql($node, 'SELECT state FROM idemq.running_jobs', 'active', 'until the commit');

# The other way round: session one has ended the attempt, claimed the job again, and is rolled back, but its entry is still
# there when another session ends the attempt as well.
foreach my $case (
	[ [ 'BEGIN', $release, 'COMMIT', $goes ], '1 2 4' ],
	[ [ 'BEGIN', $release, $goes, 'COMMIT' ], '1 2 4' ],
	[ [ 'BEGIN', $release, $goes, 'ROLLBACK' ], '2 4' ],
	[ [ 'BEGIN', 'SAVEPOINT s', $release, 'ROLLBACK TO s', $goes, 'COMMIT' ], '2 4' ])
{
	prepare(0);
	sql($node, $again);
	$one->query_safe("BEGIN; $release; $again");
	$go = send_to('ROLLBACK', 'idemq_lease_restore');
	is(join(' ', in_two(@{ $case->[0] })), 'released', join('; ', 'rolled back', map { s/SELECT idemq\.(\w+).*/$1/r } @{ $case->[0] }));
	is(claim_with_4(), $case->[1], 'the job is ready when its attempt has ended');
	is_sql($node, "SELECT count(*) FROM idemq.jobs NATURAL JOIN (SELECT job_id AS id FROM idemq.running_jobs) w WHERE status = 'running'", 3, 'and each has its lease');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
}

prepare(2);
$go = send_to("SELECT idemq.enqueue('q', '3')", 'idemq_scan_start_lower');
my $got = sql($node, $claim);
$go->();
is($got eq '' ? claim_with_4() : "$got " . claim_with_4(), '3 4', 'an enqueue that is committed, the scan start not lowered: claimed now or then');

prepare(2);
$go = send_to("SELECT idemq.fail(id, token, retry_in => '0') FROM held WHERE payload = '1'", 'idemq_lease_drop');
is_sql($node, $claim, '', 'a failure that is committed, its entry still there: others skip the job');
$go->();
is(claim_with_4(), '1 4', 'and have it when the entry is gone');

# Ended, and made ready again by a third before the entry is gone.
foreach my $end ("idemq.fail(id, token, permanent => true)", 'idemq.cancel(id)')
{
	prepare(2);
	$go = send_to("SELECT $end FROM held WHERE payload = '1'", 'idemq_lease_drop');
	is_sql($node, "SELECT idemq.retry(id) FROM held WHERE payload = '1'", 'retrying', "$end is committed; retried");
	is_sql($node, $claim, '', 'its entry turns others away');
	$go->();
	is(claim_with_4(), '1 4', 'until it is gone; they have not passed the job');
}

# Likewise, passed by a claimer whose own snapshot is older, but which sees that it is ready.
prepare(2);
$two->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM held');
$go = send_to("SELECT idemq.fail(id, token, permanent => true) FROM held WHERE payload = '1'", 'idemq_lease_drop');
is_sql($node, "SELECT idemq.retry(id) FROM held WHERE payload = '1'", 'retrying', 'retried before its entry is gone');
is($two->query("$claim; COMMIT"), '', 'above READ COMMITTED nobody gets it either');
$go->();
is(claim_with_4(), '1 4', 'and it is not passed');

# How many entries of the ready index a claim reads that finds no job.  The counter includes what the session has read
# before, as long as that has not been reported to PostgreSQL's statistics.
sub entries_read
{
	my $count = "SELECT pg_stat_get_xact_tuples_returned('idemq.jobs_ready'::regclass)";
	my ($before, $found, $after) = split /\n/, sql($node, "BEGIN; $count; $claim; $count; COMMIT"), -1;

	die "'$found' in place of nothing" if $found ne '';
	return $after - $before;
}

# A claim that finds nothing searches an empty queue from its start, which reads these entries as well; a new queue is
# searched for the first time after a second.  A run that took longer tells nothing, and is repeated.
sub within_a_second
{
	my ($code) = @_;

	for (;;)
	{
		my $begin = Time::HiRes::time;
		my @answer = $code->();

		return @answer if Time::HiRes::time - $begin < 1;
	}
}

# An attempt that ends, and whose job nobody makes ready again, lowers no scan start, though
# claimers have met its entry: its finisher had not committed, or the claim was not in their snapshot.
my ($read) = within_a_second(sub {
	prepare(2);
	$one->query_safe("BEGIN; SELECT idemq.commit(id, token) FROM held WHERE payload = '1'");
	sql($node, "SELECT idemq.enqueue('q', '3', run_at => '2020-01-01')");
	my $met = sql($node, $claim);
	die "'$met' in place of 3" if $met ne '3';
	$one->query_safe('COMMIT');
	return entries_read();
});
is($read, 0, 'the entry of an attempt that ends, which a claim has met: nobody reads it again');

foreach my $end ('commit(id, token)', "fail(id, token, retry_in => '0')")
{
	my $again = $end =~ /^fail/ ? 1 : 0;
	my @met;

	($read, @met) = within_a_second(sub {
		prepare(0);
		$go = send_to($claim, 'idemq_lease_hold');
		my $first = sql($node, $claim);
		$two->query_safe("BEGIN; SELECT idemq.$end FROM idemq.jobs");
		my $second = $go->();
		$two->query_safe('COMMIT');
		return ($again ? sql($node, $claim) : entries_read(), $first, $second);
	});
	is("@met", "1 2 \n1", "$end: a claim has met the entries of attempts that end, of jobs claimed behind its snapshot");
	is($read, $again ? '1 2' : 0, "$end: " . ($again ? 'ready again' : 'nobody reads them again'));
}

# A claim that has ended an expired lease has its entry, and gives it back after it was rolled back.
prepare(0);
# The lease is meant to expire.
sql($node, "SELECT count(*) FROM idemq.claim('q', lease => '1 ms'); SELECT pg_sleep(0.01)");
is($one->query_safe("BEGIN; SELECT count(*) FROM idemq.claim_job((SELECT id FROM idemq.jobs WHERE payload = '1'))"), 1, 'a lease that is over is taken');
$go = send_to('ROLLBACK', 'idemq_lease_restore');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() finds nothing between a rollback and its lease');
$go->();
is(claim_with_4(), '1 2 4', 'and the job can be claimed');

# An abort: the row is free before the entry is gone.
prepare(0);
$one->query_safe("BEGIN; SELECT * FROM idemq.claim('q')");
$go = send_to('ROLLBACK', 'idemq_lease_drop');
is_sql($node, $claim, '2', 'a claim that is rolled back, its entry still there');
$go->();
is(claim_with_4(), '1 4', 'claimable when it is gone');

# A reaper between its mark and the row: no heartbeat wins any more, a commit does.
prepare(2);
# The lease is meant to expire.
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held WHERE payload = '1'; SELECT pg_sleep(0.01)");
$go = send_to("SELECT idemq.reap('q')", 'idemq_jobs_lock');
is_sql($node, "SELECT idemq.heartbeat(id, token, '1 h') FROM held WHERE payload = '1'", 'stale', 'a heartbeat during a reap');
sql($node, "SELECT idemq.commit(id, token) FROM held WHERE payload = '1'");
$go->();
is_sql($node, "SELECT status FROM idemq.jobs WHERE payload = '1'", 'completed', 'a commit during a reap');

# It has no mark any more when somebody else has ended the attempt, and taken that back: then a
# heartbeat wins, and the reap does not.
prepare(2);
# The lease is meant to expire.
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held WHERE payload = '1'; SELECT pg_sleep(0.01)");
$go = send_to("SELECT idemq.reap('q')", 'idemq_jobs_lock');
sql($node, "BEGIN; SELECT idemq.fail(id, token) FROM held WHERE payload = '1'; ROLLBACK");
is_sql($node, "SELECT idemq.heartbeat(id, token, '1 h') FROM held WHERE payload = '1'", 'current', 'a heartbeat after an end that was rolled back, during a reap');
$go->();
is_sql($node, "SELECT status FROM idemq.jobs WHERE payload = '1'", 'running', 'has won');
is_sql($node, "SELECT idemq.heartbeat(id, token, '1 h') FROM held WHERE payload = '1'", 'current', 'and goes on');

# A queue that is dropped between a session's look at idemq.queues and its look for the
# queue's state: no queue state is left behind.
# A wait that has read that its queue is paused, and is not among the waiters yet: the resume wakes nobody.
prepare(0);
sql($node, "SELECT idemq.pause('q')");
$go = send_to("CALL idemq.wait('q', '2 min')", 'idemq_waiters_join');
sql($node, "SELECT idemq.resume('q')");
like($go->(), qr/^t$/m, 'resumed between the look at the queue and the sleep: it is looked at again');

leave($one);
sql($node, "SELECT idemq.create_queue('gone')");
$one = session($node);
$pid = $one->query_safe('SELECT pg_backend_pid()');
$go = send_to("\\set VERBOSITY sqlstate\nSELECT * FROM idemq.claim('gone')", 'idemq_worker_announce_use');
sql($node, "SELECT idemq.drop_queue('gone')");
$go->();
like($one->{stderr}, qr/IQ005/, 'a queue is dropped while it is looked up: it does not exist');
$one->{stderr} = '';
is_sql($node, 'SELECT * FROM idemq.check()', '', 'and has no state');

# A group's head ends by COMMIT PREPARED, while somebody whose snapshot is older looks
# at the group, and is met by who looks at all groups for that.
sql($node, "SELECT idemq.create_queue('g'); SELECT idemq.enqueue('g', to_jsonb(n), group_key => 'g') FROM generate_series(1, 2) n");
is_sql($node, "SELECT payload FROM idemq.claim('g')", 1, 'the head of a group');
is_sql($node, "SELECT payload FROM idemq.claim('g')", '', 'all groups are looked at');
sql($node, "SELECT idemq.enqueue('g', '3', group_key => 'g')");
sql($node, "BEGIN; SELECT idemq.commit(id, token) FROM idemq.jobs WHERE group_key = 'g' AND payload = '1'; PREPARE TRANSACTION 'head'");
$one->query_safe('SELECT 1');
$go = send_to("SELECT payload FROM idemq.claim('g')", 'idemq_jobs_group_head');
sql($node, "COMMIT PREPARED 'head'");
is_sql($node, "SELECT payload FROM idemq.claim('g')", '', 'its end is prepared and committed; somebody else owns the group');
is($go->() . sql($node, "SELECT payload FROM idemq.claim('g')"), "2\n1", 'who looks again');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'the group is not forgotten');

# Who looks at all groups knows of none until he comes to it: check() gives him a second.
sql($node, "SELECT idemq.enqueue('g', '4', group_key => repeat('g', 200))");
$one->query_safe('SELECT 1');
$go = send_to("SELECT payload FROM idemq.claim('g')", 'idemq_jobs_group_next');
my $check = stop_at($two->query_safe('SELECT pg_backend_pid()'), ('idemq_groups_know') x 2);
$two->query_until(qr/sent/, "\\echo sent\nSELECT invariant FROM idemq.check();\n");
# It suspects the group, and looks for the first time whether it is known; and is held until it is.
$check->() foreach 1 .. 3;
like($go->(), qr/4/, 'a long name: all groups are looked at');
$check->();
unlike($two->query('SELECT 1'), qr/headless/, 'check() does not take those for forgotten that are to be looked at');
leave($two);

# A claim comes between the lookup of a request that replaces and its write, and is given back before the next
# lookup: the job is as it was, and the request replaces it.
sql($node, "SELECT idemq.create_queue('r'); SELECT idemq.enqueue('r', '1', key => 'k')");
$one->query_safe('SELECT 1');
my $stop = stop_at($pid, 'idemq_tick_key_check', 'idemq_jobs_refresh_or_raise');
$one->query_until(qr/sent/, "\\echo sent\nSELECT outcome, status FROM idemq.enqueue('r', '2', key => 'k', on_duplicate => 'replace');\n");
$stop->();
sql($node, "DELETE FROM held; INSERT INTO held SELECT id, token, payload FROM idemq.claim('r')");
$stop->();
$stop->();
is_sql($node, 'SELECT payload, idemq.release(id, token) FROM held', '1|released', 'claimed in between, and given back');
$stop->();
like($one->query('SELECT 1'), qr/^duplicate\|pending$/m, 'the answer is of a job that waits');
is_sql($node, "SELECT payload, attempt FROM idemq.claim('r')", '2|1', 'which has the new payload');

# TRUNCATE has every queue get another state, while a claim that knows the old one waits for its turn; the group of
# which it takes a job is listed by then, to be checked.
sub truncate_before
{
	my ($goes_on, $its, $others) = @_;

	sql($node, 'TRUNCATE idemq.jobs CASCADE');
	sql($node, "SELECT idemq.enqueue('p', to_jsonb(n), group_key => 'g') FROM generate_series(1, 3) n");
	is_sql($node, "SELECT idemq.release(id, token) FROM idemq.claim('p')", 'released', 'another claim finds the new state');
	sql($node, "SELECT idemq.enqueue('p', '4', group_key => 'g')");
	like($goes_on->(), qr/^$its$/m, 'who knows the old one takes the job');
	is_sql($node, "SELECT string_agg(payload::text, ' ' ORDER BY payload) FROM idemq.claim('p', 5)", $others, 'and the group goes on');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
	return;
}
sql($node, "SELECT idemq.create_queue('p', group_max_running => 3, lease => '1 h')");
$one->query_safe('SELECT 1');
truncate_before(send_to("SELECT payload FROM idemq.claim('p')", 'idemq_reap_some'), '1\n1', '2 3');

# Above READ COMMITTED a claim neither deletes nor locks the row of a pause that has ended.  SKIP LOCKED would skip a row that
# another claim is deleting, but raise 40001 for one that it has deleted since the snapshot.
sql($node, "SELECT idemq.create_queue('above'), idemq.pause('above', group_key => 'g'); SELECT idemq.enqueue('above', '1', group_key => 'g');
	SELECT idemq.enqueue('above', '2'); UPDATE idemq.paused_groups SET paused_until = now() - interval '1 h'");
$one->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($one->query_safe("SELECT string_agg(payload::text, ' ' ORDER BY payload) FROM idemq.claim('above', 5)"), '1 2', 'at REPEATABLE READ, a claim takes a job whose pause is over');
is_sql($node, "SELECT count(*) FROM idemq.claim('above')", 0, 'meanwhile another one finds no job');
is_sql($node, 'SELECT count(*) FROM idemq.paused_groups', 0, 'but deletes the row of the pause, which the first has not locked');
$one->query_safe('COMMIT');
is_sql($node, "SELECT count(*) FROM idemq.audit WHERE action = 'resume' AND details ->> 'group_key' = 'g'", 1, 'the end of the pause is recorded once');
leave($one);

# The shipped library has no stop points: it leaves one that is armed alone.
shipped($node);
$one = session($node);
stop_at($one->{backend}, 'idemq_reap_some') if $ENV{IDEMQ_SHIPPED};
# Without a stop the claim comes after the release.
truncate_before(sub { $one->query_safe("SELECT payload FROM idemq.claim('p')") }, '2', '1 3');
leave($one);
SKIP:
{
	skip 'the library was built with stop points', 1 unless $ENV{IDEMQ_SHIPPED};
	ok(-e $node->data_dir . "/idemq_stops/$one->{backend}.idemq_reap_some", 'the stop is still armed');
}
$node->stop;
done_testing();
