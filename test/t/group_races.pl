# FIFO groups: sessions stopped between "visible" and "marked", or between "owned" and the
# snapshot.  Whoever looks at the group meanwhile makes no second head, and passes no earlier job that is committed.
# at least 88 assertions
# stops: before_commit idemq_claim_one idemq_group_mark idemq_jobs_refresh idemq_lease_take idemq_qstates_unset_database idemq_transition idemq_wake_for_result

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('group_races', autovacuum => 'off', max_prepared_transactions => 2, 'idemq.max_queues' => 3);

plan skip_all => 'no stop points in the library' unless has_stops();

my $one = session($node);
my $pid = $one->query_safe('SELECT pg_backend_pid()');
my $claim = "SELECT string_agg(payload #>> '{}', ' ' ORDER BY id) FROM idemq.claim('g', 10)";
my $finish = "SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running'";
my $heads = "SELECT string_agg(payload #>> '{}', ' ' ORDER BY id) FROM idemq.jobs WHERE group_key = 'a' AND finished_at IS NULL AND status <> 'blocked'";

sub enqueue
{
	return "SELECT idemq.enqueue('g', to_jsonb('$_[0]'::text), group_key => '" . ($_[1] // 'a') . "')";
}

# Sends SQL to session one, which stops at a function; with two it goes on to the second
# one when what is answered is called, and ends when that is called again.
sub send_to
{
	my ($sql, @functions) = @_;
	my $stop = stop_at($pid, @functions);

	$one->query_until(qr/sent/, "\\echo sent\n$sql;\n");
	$stop->();
	return sub {
		$stop->();
		return shift(@functions) && @functions ? $stop->() : $one->query('SELECT 1');
	};
}

# A queue g, all of whose groups are known; group a has a low-water mark: jobs first, second and
# third, of which first is the head, running; and a mark.
sub prepare
{
	sql($node, "SELECT idemq.drop_queue('g', force => true) FROM idemq.queues WHERE name = 'g'");
	sql($node, "SELECT idemq.create_queue('g', lease => '1 h')");
	is_sql($node, $claim, '', 'nothing yet');
	sql($node, join('; ', map { enqueue($_) } @_)) if @_;
	is_sql($node, $claim, $_[0], 'the head') if @_;
	sql($node, enqueue('more')) if @_;
	$one->query_safe('SELECT 1');
}

# Session one begins a transaction that enqueues early; others enqueue late and later in
# the same group; late is the head, and ends.
sub prepare_late
{
	prepare();
	$one->query_safe('BEGIN; ' . enqueue('early'));
	sql($node, join('; ', map { enqueue($_) } 'late', 'later', 'last'));
	is_sql($node, $claim, 'late', 'an earlier job is not committed: the head is the next');
	sql($node, $finish);
}

# A statement by hand moves ready_at of the head back.
my $move = "UPDATE idemq.jobs SET ready_at = ready_at - interval '1 h' WHERE ready_at IS NOT NULL AND finished_at IS NULL";

prepare('first', 'second');
my $go = send_to($move, 'idemq_group_mark');
is_sql($node, $claim, '', 'a head is moved by hand, its group not marked: no second head');
is_sql($node, $heads, 'first', 'it is the only one');
$go->();
is_sql($node, $claim, '', 'nor when it is marked');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# The promoter has taken the group, but not yet its snapshot: all of the writer's commit comes in between.
prepare('first', 'second');
$go = send_to($claim, 'idemq_jobs_refresh');
sql($node, $move);
unlike($go->(), qr/second|more/, 'a head is moved between ownership and snapshot: no second head');
is_sql($node, $heads, 'first', 'it is the only one');
is_sql($node, $claim, '', 'nor afterwards');

# In one transaction: what it writes is visible to its own checks before it is marked.
prepare('first', 'second');
like($one->query("BEGIN; $move; $claim; COMMIT"), qr/^$/, 'a head is moved and the group looked at in one transaction');
is_sql($node, $heads, 'first', 'no second head');

# With ordinary calls: a job that is committed is not passed.
prepare_late();
$go = send_to('COMMIT', 'idemq_group_mark');
is_sql($node, $claim, 'early', 'an enqueue that is committed, its group not marked: it is not passed');
$go->();
sql($node, $finish);
is_sql($node, $claim, 'later', 'the others follow');

# A retry of a dead job, the same.
prepare('first', 'second');
sql($node, "SELECT idemq.fail(id, token, 'no', permanent => true) FROM idemq.jobs WHERE status = 'running'");
is_sql($node, $claim, 'second', 'the first is dead');
$go = send_to("SELECT idemq.retry(id) FROM idemq.jobs WHERE status = 'dead'", 'idemq_group_mark');
sql($node, $finish);
is_sql($node, $claim, 'first', 'a retry that is committed, its group not marked: in its old place');
$go->();

# The whole commit between ownership and snapshot.
prepare_late();
my $two = session($node);
my $promoter = $two->query_safe('SELECT pg_backend_pid()');
my $stop = stop_at($promoter, 'idemq_jobs_refresh');
$two->query_until(qr/sent/, "\\echo sent\n$claim;\n");
$stop->();
$one->query_safe('COMMIT');
$stop->();
is($two->query('SELECT 1'), "early\n1", 'an enqueue that is committed and marked between ownership and snapshot: it is not passed');

# A writer that is in the commit window while others leave it: of its generation, and of another.
prepare_late();
$two->query_safe('BEGIN; ' . enqueue('other', 'b'));
$stop = stop_at($promoter, 'idemq_group_mark');
$two->query_until(qr/sent/, "\\echo sent\nCOMMIT;\n");
$stop->();
$go = send_to('COMMIT', 'idemq_group_mark');
sql($node, enqueue('other', 'c'));
is(sql($node, $claim) =~ s/ other//gr, 'early', 'others come and go in its generation: it is not passed');
sql($node, "SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running' AND payload = '\"early\"'");
$stop->();
$two->query_safe('SELECT 1');
sql($node, enqueue('other', 'c')) foreach 1 .. 3;
is(sql($node, $claim) =~ s/ other//gr, 'early', 'and in the other one');
$go->();

# Prepared: visible before the low-water marks of the database are dropped.
prepare_late();
$one->query_safe("PREPARE TRANSACTION 'early'");
$go = send_to("COMMIT PREPARED 'early'", 'idemq_qstates_unset_database');
is_sql($node, $claim, 'early', 'COMMIT PREPARED is visible, low-water marks are not dropped: it is not passed');
$go->();
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# What a commit tells others by waking them is there when they look: the group is marked, the
# end counted, while the lease entry still stands.
prepare('first', 'second');
my $completed = "SELECT committed_total FROM idemq.metrics WHERE queue = 'g'";
my $before = sql($node, $completed);
$go = send_to($finish, 'idemq_wake_for_result');
is(sql($node, $completed) - $before, 1, 'a commit that has woken nobody yet is counted');
is_sql($node, $claim, 'second', 'and its group marked');
$go->();

# What a commit window costs.  A held snapshot keeps an entry of each job that was blocked, so a
# check that begins further back reads more of the index.
prepare();
my $reader = session($node);
sql($node, q{CREATE TABLE skew (n int);
	CREATE PROCEDURE run(jobs int) LANGUAGE plpgsql AS $$
	DECLARE job record;
	BEGIN
		FOR i IN 1 .. jobs LOOP
			SELECT * INTO job FROM idemq.claim('g');
			COMMIT;
			PERFORM idemq.commit(job.id, job.token);
			COMMIT;
		END LOOP;
	END $$});
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
sub reads
{
	my $sql = "SELECT idx_tup_read FROM pg_stat_all_indexes WHERE indexrelname = 'jobs_group'";
	my $before = sql($node, $sql);

	sql_counted($node, 'CALL run(100)');
	return sql($node, $sql) - $before;
}
my $early = enqueue('early', 'b') =~ s/\)$/, delay => '1 h')/r;
my $skew = 'SELECT count(*) FROM skew; INSERT INTO skew VALUES (1)';
$one->query_safe("BEGIN ISOLATION LEVEL SERIALIZABLE; $early; $skew");
$two->query_safe("BEGIN; $early");
sql($node, "SELECT idemq.enqueue('g', to_jsonb(n), group_key => 'a') FROM generate_series(1, 700) n");
my @reads = map { reads() } 1 .. 3;
cmp_ok($reads[2], '<', 2 * $reads[1], 'former heads are not read again');

# An error behind PRE_COMMIT.
sql($node, "BEGIN ISOLATION LEVEL SERIALIZABLE; $skew; COMMIT");
$one->query('COMMIT');
like($one->{stderr}, qr/could not serialize.*during commit attempt/s, 'a commit fails');
$one->{stderr} = '';
cmp_ok(reads(), '<', 2 * $reads[1], 'it has left the commit window');

# There always is somebody in the commit window; who has left does not count any more.
$stop = stop_at($promoter, 'idemq_group_mark');
$two->query_until(qr/sent/, "\\echo sent\nCOMMIT;\n");
$stop->();
cmp_ok(reads(), '>', 10 * $reads[1], 'an early job that is committed, its group not marked: all check from there on');
$go = send_to(enqueue('next', 'c'), 'idemq_group_mark');
$stop->();
$two->query_safe('SELECT 1');
cmp_ok(reads(), '<', 2 * $reads[1], 'the next one is in the commit window when it leaves: they do no more');
$go->();
leave($reader);

# By hand, in a queue that has no state when the transaction enters a commit window, and gets one before that is visible.
sql($node, "SELECT idemq.drop_queue('g', force => true)");
sql($node, "SELECT idemq.create_queue('x' || n) FROM generate_series(1, 2) n; " . restored_queue('g'));
is_sql($node, "SELECT used, size FROM idemq.memory WHERE resource = 'queues'", '3|3', 'all queue states are used');
$one->query_safe(q{BEGIN; INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, payload, group_key)
	SELECT queue_id, now(), 4, 5, 'blocked', '"early"', 'a' FROM idemq.queues WHERE name = 'g'});
$go = send_to('COMMIT', 'before_commit', 'idemq_group_mark');
sql($node, "SELECT idemq.drop_queue('x1')");
is_sql($node, "SELECT refused > 0 FROM idemq.memory WHERE resource = 'queues'", 't', 'the queue had no state');
is_sql($node, $claim, '', 'it has one now');
sql($node, join('; ', map { enqueue($_) } 'late', 'later', 'last'));
is_sql($node, $claim, 'late', 'its group has a low-water mark');
sql($node, $finish);
$go->();
is_sql($node, $claim, 'early', 'the commit window of the database: it is not passed');
$go->();
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# Where marks may be missing, all groups are looked at.  A session that is ended while it does leaves that to the next.
prepare('first', 'second');
sql($node, $finish);
crash($node);
$_->reconnect_and_clear foreach $one, $two;
$pid = $one->query_safe('SELECT pg_backend_pid()');
$promoter = $two->query_safe('SELECT pg_backend_pid()');
my $looked = stop_at($pid, 'idemq_jobs_refresh');
$one->query_until(qr/sent/, "\\echo sent\n$claim;\n");
$looked->();
sql($node, "SELECT pg_cancel_backend($pid)");
$looked->();
$one->query('SELECT 1');
like($one->{stderr}, qr/canceling statement/, 'a look at all groups is cancelled');
$one->{stderr} = '';
is_sql($node, $claim, 'second', 'the next one looks at all of them');

# A job that may be started twice: a claim that has found it is stopped before it has the lease entry, and another one starts
# the job and releases it.  The first one finds the job changed, and is not charged: there is one more start.
sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues");
foreach my $running (1, 2)
{
	sql($node, "SELECT idemq.create_queue('g', group_max_running => $running, group_rate_limit => 2, group_rate_period => '100 years', lease => '1 h')");
	sql($node, enqueue('twice'));
	is_sql($node, "CALL idemq.wait('g', '0')", 't', 'promoted');
	my $asked = stop_at($pid, 'idemq_lease_take');
	$one->query_until(qr/sent/, "\\echo sent\n$claim;\n");
	$asked->();
	is_sql($node, $claim, 'twice', "group_max_running $running: another claim starts it");
	is_sql($node, "SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running'", 'released', 'and gives it back');
	$asked->();
	my $has_it = $one->query('SELECT 1') =~ /twice/;
	is_sql($node, $claim, $has_it ? '' : 'twice', 'the other start is ' . ($has_it ? "the first one's" : 'left'));
	sql($node, "SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running'");
	is_sql($node, $claim, '', 'and there is no third');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
	sql($node, "SELECT idemq.drop_queue('g', force => true)");
}

# A claim that has read the hold of a group is stopped before it puts the group's job off until the end of that hold, or
# promotes the job for that time.  Meanwhile the hold is ended.  The job waits for the former end, until resume is called again.
foreach my $running (1, 2)
{
	foreach my $way ('put off', 'promoted')
	{
		sql($node, "SELECT idemq.create_queue('g', group_max_running => $running, lease => '1 h')");
		sql($node, enqueue('first'));
		sql($node, enqueue('next')) if $way eq 'promoted';
		sql($node, "SELECT idemq.hold_back(id, token, '30 min'), " . ($way eq 'promoted' ? 'idemq.commit(id, token)::text' : 'idemq.release(id, token)::text') . " FROM idemq.claim('g')");
		my $went_on = send_to($claim, 'idemq_transition');
		sql($node, "SELECT idemq.resume('g', 'a')");
		sql($node, "CALL idemq.wait('g', '0')");
		my $name = $way eq 'promoted' ? 'next' : 'first';
		my $has_it = $went_on->() =~ /$name/;
		# A job that was released has lost its permit: the claim is stopped while it blocks the job, and promotes it afterwards.
		is($has_it, $running == 2 && $way eq 'put off', "group_max_running $running: the job is $way");
		is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE ready_at > now() + interval '20 min'", $has_it ? 0 : 1, 'as if the hold were in force');
		sql($node, "SELECT idemq.resume('g', 'a')");
		is_sql($node, $claim, $has_it ? '' : $name, 'the job can be claimed');
		is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
		sql($node, "SELECT idemq.drop_queue('g', force => true)");
	}
}
# The last start of a group.  A claim reads the head, another one is charged for its start, and then the first one is refused a
# start: it leaves the job alone.  If it made the job wait for the rate, the other claim would lose the job, and the group a start.
sql($node, "SELECT idemq.create_queue('g', group_rate_limit => 1, group_rate_period => '100 years', lease => '1 h')");
sql($node, enqueue('last'));
sql($node, "CALL idemq.wait('g', '0')");
my $refused = send_to($claim, 'idemq_claim_one');
my $other = session($node);
my $charged = stop_at($other->{backend}, 'idemq_transition');
$other->query_until(qr/sent/, "\\echo sent\n$claim;\n");
$charged->();
unlike($refused->(), qr/last/, 'a claim that is refused the last start');
$charged->();
like($other->query_safe('SELECT 1'), qr/last/, 'the claim that was charged for it has the job');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
sql($node, "SELECT idemq.drop_queue('g', force => true)");
leave($one, $two, $other);

# In the shipped library, where nothing stops between the two looks at the rate.
shipped($node);
sql($node, "SELECT idemq.create_queue('g', group_rate_limit => 1, group_rate_period => '100 years', lease => '1 h')");
sql($node, enqueue('once'));
is_sql($node, $claim, 'once', 'claimed');
is_sql($node, "SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running'", 'released', 'and given back');
is_sql($node, $claim, '', 'no other start');
$node->stop;
done_testing();
