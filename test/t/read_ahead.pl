# The read-ahead buffer of the next entries of the ready index: what it saves, and what comes into the
# index, or moves in the table, while it is filled, copied, and used.
# at least 58 assertions
# stops: claim_before_snapshot idemq_scan_start_advance idemq_scan_start_lower

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

# expects in log: terminating connection due to administrator command

plan skip_all => 'no stop points in the library' unless has_stops();

my $node = new_server('ring', autovacuum => 'off', max_prepared_transactions => 2);
my $claim = "SELECT string_agg(payload #>> '{}', ' ' ORDER BY ord) FROM idemq.claim('q', %d) WITH ORDINALITY c(id, token, attempt, max_attempts, deadline, payload, key, group_key, checkpoint, enqueued_at, headers, ord)";

sub claim { return sprintf($claim, $_[0] // 1) }

# Jobs first .. last, a second apart, and an hour ago.
sub enqueue
{
	my ($first, $last, $queue) = (@_, 'q');

	return "SELECT count(*) FROM (SELECT idemq.enqueue('$queue', to_jsonb(n), run_at => now() - interval '1 h' + make_interval(secs => n))
		FROM generate_series($first, $last) n) e";
}

# One job between n and the next.
sub enqueue_after
{
	my ($n, $payload, $queue) = (@_, 'q');

	return "SELECT idemq.enqueue('$queue', to_jsonb('$payload'::text),
		run_at => (SELECT ready_at FROM idemq.jobs WHERE payload = '$n') + make_interval(secs => 0.001))";
}

# Queue q with 1 .. count; the first is claimed, so that the read-ahead buffer has the others.
sub prepare
{
	my ($count) = @_;

	sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h')");
	sql($node, enqueue(1, $count));
	is_sql($node, claim(), 1, "queue of $count, the first claimed");
}

# How often the ready index has been scanned, by this test's own statements and by sessions that have ended.
sub scans
{
	sql($node, 'SELECT pg_stat_force_next_flush()');
	return sql($node, "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'jobs_ready'");
}

# 1. What it saves.
prepare(400);
my $counting = session($node);
my $before = scans();
$counting->query_safe(claim()) for 1 .. 300;
leave($counting);
my $scans = scans() - $before;
ok($scans >= 1 && $scans <= 12, '300 claims scan the index some times only') or diag "$scans times";
is_sql($node, claim(12), join(' ', 302 .. 313), 'in order');
is_sql($node, claim(20), join(' ', 314 .. 333), 'a larger batch goes by the index');
is_sql($node, claim(3), join(' ', 334 .. 336), 'and a small one behind it');

# 2. What is lowered to cuts it.
prepare(50);
sql($node, enqueue_after(20, 'late'));
is_sql($node, claim(16), join(' ', 2 .. 17), 'a job that is committed later, before others');
is_sql($node, claim(6), '18 19 20 late 21 22', 'has its turn');
is_sql($node, "BEGIN; " . claim(2) . '; ROLLBACK', '23 24', 'a claim that is rolled back');
is_sql($node, claim(3), '23 24 25', 'comes first again');
sql($node, "BEGIN; " . enqueue_after(30, 'prepared') . "; PREPARE TRANSACTION 'p'");
is_sql($node, claim(2), '26 27', 'beside a prepared one');
sql($node, "COMMIT PREPARED 'p'");
is_sql($node, claim(5), '28 29 30 prepared 31', 'which has its turn when it is committed');
like(sql($node, 'BEGIN; ' . enqueue_after(33, 'own') . '; ' . claim(4) . '; COMMIT'), qr/^32 33 own 34$/m,
	'a transaction meets what it has enqueued itself');
like(sql($node, 'BEGIN ISOLATION LEVEL REPEATABLE READ; ' . claim(2) . '; COMMIT'), qr/^35 36$/m, 'above READ COMMITTED');
sql($node, "UPDATE idemq.jobs SET ready_at = ready_at - interval '1 min' WHERE payload = '45'");
is_sql($node, claim(3), '45 37 38', 'a statement by hand');
sql($node, "UPDATE idemq.jobs SET payload = to_jsonb('changed'::text) WHERE payload = '40'");
sql($node, "DELETE FROM idemq.jobs WHERE payload = '41'");
is_sql($node, claim(3), '39 changed 42', 'changed and deleted ones');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# 3. Places of the table that are others' now.
prepare(60);
sql($node, 'VACUUM FULL idemq.jobs');
is_sql($node, claim(3), '2 3 4', 'after VACUUM FULL');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
sql($node, 'CLUSTER idemq.jobs USING jobs_pkey');
is_sql($node, claim(3), '5 6 7', 'after CLUSTER');
sql($node, "SELECT idemq.create_queue('other')");
is_sql($node, claim(), 8, 'the read-ahead buffer is filled again');
my $places = sql($node, "SELECT count(*) FROM idemq.jobs WHERE (payload #>> '{}')::int BETWEEN 9 AND 40");
sql($node, "DELETE FROM idemq.jobs WHERE (payload #>> '{}')::int BETWEEN 9 AND 40");
sql($node, 'VACUUM idemq.jobs');
sql($node, enqueue(1009, 1080, 'other'));
is_sql($node, claim(3), '41 42 43', 'jobs deleted and vacuumed, their places given to jobs of another queue');
is_sql($node, "SELECT count(*) FROM idemq.jobs j JOIN idemq.queues USING (queue_id) WHERE name = 'other' AND status <> 'pending'", 0,
	'which are left alone');
is($places, 32, 'there were as many');
sql($node, "SELECT idemq.drop_queue('other', force => true)");

# 4. Rows that somebody holds: they are passed by, and had when they are free.
prepare(200);
my $holder = session($node);
$holder->query_safe("BEGIN; SELECT 1 FROM idemq.jobs WHERE payload IN ('2', '5') FOR UPDATE");
is_sql($node, claim(3), '3 4 6', 'held rows are left for later');
is_sql($node, claim(10), join(' ', 7 .. 16), 'with a scan start that stays');
sql($node, claim()) for 1 .. 60;
is_sql($node, claim(2), '77 78', 'for as long as it is');
$holder->query_safe('COMMIT');
is_sql($node, claim(3), '2 5 79', 'then they come first');

# 5. Two priorities: the urgent ones do not wait for the read-ahead buffer of the others.
sql($node, "SELECT idemq.enqueue('q', to_jsonb('urgent ' || n), priority => 1) FROM generate_series(1, 3) n");
is_sql($node, claim(2), 'urgent 1 urgent 2', 'urgent ones first');
is_sql($node, claim(3), 'urgent 3 80 81', 'then the others');

# 6. Rows with more entries than one of the same key: updates that were not HOT, kept by a
# snapshot.  Where the read-ahead buffer, or a copy of it, ends between two of them, no job is left out.
sub update_all
{
	my $snapshot = session($node);

	$snapshot->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
	sql($node, "UPDATE idemq.jobs SET headers = (SELECT to_jsonb(string_agg(md5(random()::text || id || n), '')) FROM generate_series(1, 30) n) WHERE $_")
	  for 'true', 'true', 'id % 2 = 0', 'true';
	return $snapshot;
}
prepare(400);
my $snapshot = update_all();
is(join(' ', map { sql($node, claim($_)) } (1, 3, 5) x 40), join(' ', 2 .. 361), 'each job is claimed in its turn');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() finds each in the read-ahead buffer');
leave($snapshot);

# So does the search for leases that memory lost, which takes a thousand entries at a time.
prepare(2100);
sql($node, claim(2100));
leave(update_all());
crash($node);
sql($node, claim()) for 1 .. 20;
is_sql($node, 'SELECT count(*) FROM idemq.running_jobs', 2100, 'a crash, and every lease is found');

{
	my $one = session($node);
	my $pid = $one->{backend};

	# Sends a claim to session one, which stops at a function.
	my $send_to = sub {
		my ($function) = @_;
		my $stop = stop_at($pid, $function);

		$one->query_until(qr/sent/, "\\echo sent\n" . claim() . ";\n");
		$stop->();
		return sub { $stop->(); return $one->query('SELECT 1') };
	};

	# Filled before, installed after.
	prepare(50);
	sql($node, 'BEGIN; ' . claim() . '; ROLLBACK'); # cuts the read-ahead buffer
	$one->query_safe('SELECT 1');
	my $go = $send_to->('idemq_scan_start_advance');
	sql($node, enqueue_after(10, 'between'));
	like($go->(), qr/^2$/m, 'a claim has read entries for the read-ahead buffer; a job is committed among them before they are installed');
	is_sql($node, claim(11), '3 4 5 6 7 8 9 10 between 11 12', 'it has its turn');

	# Committed when the scan for the read-ahead buffer has passed its place, lowered to after the install.
	my $two = session($node);
	my $stop = stop_at($two->{backend}, 'idemq_scan_start_lower');
	$two->query_until(qr/sent/, "\\echo sent\n" . enqueue_after(20, 'unnoted') . ";\n");
	$stop->();
	my $got = sql($node, claim(12));
	$stop->();
	$two->query_safe('SELECT 1');
	my @all = split / /, "$got " . sql($node, claim(1));
	is_deeply([sort grep { $_ eq 'unnoted' } @all], ['unnoted'], 'visible, and lowered to later: claimed at once or next, and once');
	is(scalar @all, 13, 'and nothing else is lost');

	# Copied, and cut after that: the claim's snapshot is newer.
	prepare(50);
	$one->query_safe('SELECT 1');
	$go = $send_to->('claim_before_snapshot');
	sql($node, enqueue_after(1, 'first'));
	like($go->() . ' ' . sql($node, claim(2)), qr/first/, 'committed between the copy and the snapshot: not passed by');

	# The session that reads on for the read-ahead buffer dies; others go on.
	prepare(200);
	sql($node, claim(16)) for 1 .. 5;
	$one->query_safe('SELECT 1');
	$stop = stop_at($pid, 'idemq_scan_start_advance');
	$one->query_until(qr/sent/, "\\echo sent\n" . claim(16) . ";\n");
	$stop->();
	sql($node, "SELECT pg_terminate_backend($pid)");
	$stop->();
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	is_sql($node, claim(4), '82 83 84 85', 'the claim of a session that died while it filled the read-ahead buffer comes first again');
	is_sql($node, claim(16), join(' ', 86 + 16 * $_ .. 101 + 16 * $_), 'and the read-ahead buffer goes on') for 0 .. 5;
	leave($two);
}

is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# check() sees what a trigger that a DBA has switched off hides.
sub hide_one
{
	prepare(50);
	sql($node, "SET session_replication_role = replica; ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
		INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
		SELECT queue_id, now(), priority, 3, 'pending', ready_at, '\"hidden\"' FROM idemq.jobs WHERE payload = '20';
		ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed");
	like(sql($node, 'SELECT invariant FROM idemq.check()'), qr/^scan_start\.claimable$/m, 'check() tells what the read-ahead buffer does not have');
	return;
}
hide_one();

# In the shipped library as well, where nothing stops.
shipped($node);
is_sql($node, 'SELECT invariant FROM idemq.check()', '', 'a restart begins with an empty read-ahead buffer');
hide_one();
$node->stop;
done_testing();
