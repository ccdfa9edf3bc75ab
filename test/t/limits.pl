# max_running and rate_limit between sessions: exact under everything that ends an
# attempt, an open claim, a session or the server; and who waits is woken when a slot
# or a token comes free, by nobody's polling.
#
# expects in log: was terminated by signal 9
# asserts times

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $node = new_server('limits', 'idemq.worker' => 'on', max_connections => 60, restart_after_crash => 'on', jit => 'off', log_statement => 'none');

# A fresh queue with those settings and that many jobs.
sub fresh
{
	my ($settings, $jobs) = @_;

	sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues");
	sql($node, "SELECT idemq.create_queue('q', $settings); SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(1, $jobs) n");
}

# 1. Stress: 16 sessions, max_running 5.  A session that has an attempt holds lock 7:
# from its claim, in the open transaction, until just before it ends the attempt.
my $work = <<'END';
\set what random(1, 100)
\set ms random(0, 4)
BEGIN;
SELECT coalesce(max(c.id), 0) AS id, coalesce(max(c.token), 0) AS token, count(pg_advisory_lock_shared(7)) AS n FROM idemq.claim('q', 1, attach => true) c \gset
\if :id = 0
COMMIT;
CALL idemq.wait('q', '100 ms');
\elif :what <= 10
SELECT pg_advisory_unlock_shared(7);
ROLLBACK;
\elif :what <= 15
SAVEPOINT a;
SELECT idemq.try_commit(:id, :token);
ROLLBACK TO a;
COMMIT;
SELECT pg_advisory_unlock_shared(7);
SELECT idemq.try_commit(:id, :token);
\else
COMMIT;
\sleep :ms ms
\if :what <= 50
SELECT pg_advisory_unlock_shared(7);
SELECT idemq.try_commit(:id, :token);
\elif :what <= 65
SELECT pg_advisory_unlock_shared(7);
SELECT idemq.fail(:id, :token, retry_in => '0');
\elif :what <= 70
SELECT pg_advisory_unlock_shared(7);
SELECT idemq.heartbeat(:id, :token, '1 us');
\elif :what <= 75
SELECT pg_advisory_unlock_shared(7);
SELECT idemq.release(:id, :token);
\elif :what <= 90
SELECT pg_advisory_unlock_shared(7);
BEGIN;
SELECT idemq.try_commit(:id, :token);
SELECT coalesce(max(c.id), 0) AS id, coalesce(max(c.token), 0) AS token, count(pg_advisory_lock_shared(7)) AS n FROM idemq.claim('q', 1, attach => true) c \gset
COMMIT;
\if :id > 0
SELECT pg_advisory_unlock_shared(7);
SELECT idemq.try_commit(:id, :token);
\endif
\else
SELECT pg_advisory_unlock_shared(7);
BEGIN;
SELECT idemq.try_commit(:id, :token);
ROLLBACK;
SELECT idemq.try_commit(:id, :token);
\endif
\endif
END

sql($node, <<'END');
CREATE TABLE watched (processing int, held int, looks int);
-- Looks, for so long, at how many jobs are in processing and how many sessions have an attempt.
CREATE PROCEDURE watch(seconds float) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + seconds * interval '1 s';
	rows int;
	locks int;
	most_rows int := 0;
	most_locks int := 0;
	looks int := 0;
BEGIN
	WHILE clock_timestamp() < until LOOP
		SELECT count(*) INTO rows FROM idemq.jobs WHERE status = 'processing';
		SELECT count(*) INTO locks FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND granted;
		most_rows := greatest(most_rows, rows);
		most_locks := greatest(most_locks, locks);
		looks := looks + 1;
		COMMIT;
	END LOOP;
	INSERT INTO watched VALUES (most_rows, most_locks, looks);
END $$;
END

my $jobs = 30000;
my $watched = 'SELECT max(processing) <= 5, max(held) <= 5, max(processing) FROM watched';
my $settings = "lease => '1 min', max_attempts => 1000000, max_running => 5, retry_jitter => 0";

sub check_exact
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql($node, $watched, 't|t|5', "$name: never more than 5 at once, and 5");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$name: idemq.check()");
	note "$name: " . sql($node, "SELECT 'looks ' || sum(looks) FROM watched") . ', ' .
	  sql($node, "SELECT 'claims ' || claimed_total || ', running ' || running FROM idemq.metrics");
	sql($node, 'TRUNCATE watched');
}

# Runs a round of clients under watch, and others until the watcher has seen all five, and CONDITION
# is true, and what ENOUGH asks: on a busy machine clients may begin when the watch is nearly over.
sub rounds
{
	my ($round, $condition, $enough) = @_;

	foreach (1 .. 15)
	{
		$round->();
		last if sql($node, 'SELECT (SELECT max(processing) >= 5 FROM watched) AND ' . ($condition // 'true')) eq 't' && (!$enough || $enough->());
	}
}

fresh($settings, $jobs);
my $end;
my $no_stall = '(SELECT claimed_total > 1000 FROM idemq.metrics)';
rounds(
	sub {
		$end = clients($node, $work, '-c', 16, '-T', 4);
		sql($node, 'CALL watch(3.5)');
		is($end->(), '', 'the clients came through');
	},
	$no_stall);
check_exact('stress');
is_sql($node, "SELECT $no_stall", 't', 'and no stall');

# Sessions that are terminated, at any place.
my $killed = 0;
rounds(
	sub {
		$end = clients($node, $work, '-c', 16, '-T', 4, 'killed');
		my $watch = session($node);
		$watch->query_until(qr/sent/, "\\echo sent\nCALL watch(3.5);\n");
		foreach (1 .. 10)
		{
			sleep 0.2;
			$killed += sql($node, "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
				WHERE application_name = 'pgbench' ORDER BY random() LIMIT 1) x");
		}
		$watch->query('SELECT');
		$watch->quit;
		is($end->(), '', 'the clients say nothing but that they were ended');
	},
	'true', sub { $killed > 5 });
cmp_ok($killed, '>', 5, "$killed of them were");
check_exact('sessions that end');

# The server crashes, with a worker and without; what is in processing is counted before
# anything is handed out.
foreach my $worker ('on', 'off')
{
	sql($node, "ALTER SYSTEM SET \"idemq.worker\" = $worker; SELECT pg_reload_conf()");
	$end = clients($node, $work, '-c', 16, '-T', 10, 'killed');
	wait_until($node, "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'pgbench'");
	sleep 1;
	my ($log, $victim) = (-s $node->logfile);
	until_true('a client', sub { $victim = sql($node, "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench' ORDER BY state <> 'active' LIMIT 1") });
	kill 'KILL', $victim;
	is($end->(), '', "worker $worker: the clients say nothing but that they were ended");
	$node->wait_for_log(qr/all server processes terminated; reinitializing/, $log);
	wait_until($node, 'SELECT true');
	my $left = sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'processing'");
	cmp_ok($left, '<=', 5, "worker $worker: after a crash no more than 5 are in processing");
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 100)", 5 - $left, "worker $worker: the others are claimed, no more");
	sql($node, "UPDATE idemq.jobs SET status = 'pending', ready_at = now() WHERE status = 'processing'");
	rounds(
		sub {
			$end = clients($node, $work, '-c', 16, '-T', 3);
			sql($node, 'CALL watch(2.5)');
			is($end->(), '', "worker $worker: and so they come through");
		});
	check_exact("after a crash, worker $worker");
}
sql($node, 'ALTER SYSTEM RESET "idemq.worker"; SELECT pg_reload_conf()');

# To the end.
sql($node, "DELETE FROM idemq.jobs WHERE id > (SELECT min(id) + 3000 FROM idemq.jobs WHERE status NOT IN ('completed', 'processing'))
	AND status NOT IN ('completed', 'processing')");
for (my $n = 0; $n < 100 && sql($node, "SELECT count(*) FROM idemq.jobs WHERE status <> 'completed'") > 0; $n++)
{
	is(clients($node, $work, '-c', 16, '-T', 2)->(), '', 'to the end');
}
is_sql($node, "SELECT string_agg(DISTINCT status::text, ' ') FROM idemq.jobs", 'completed', 'all jobs are done');
is_sql($node, 'SELECT running FROM idemq.metrics', 0, 'and nothing runs');

# 2. A restart with jobs in processing, many ready ones before and behind them.
fresh("lease => '1 h', max_running => 5", 3000);
sql($node, "CREATE TABLE held AS SELECT id, token FROM idemq.claim('q', 100)");
sql($node, "SELECT count(idemq.enqueue('q', '0', priority => n % 10)) FROM generate_series(1, 3000) n");
foreach my $worker ('off', 'on')
{
	$node->append_conf('postgresql.conf', "idemq.worker = $worker");
	crash($node);
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 100)", 0, "worker $worker: nothing is claimed after a restart");
	is_sql($node, 'SELECT running, recovering FROM idemq.metrics', '5|f', 'all are counted');
	is_sql($node, "SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1", 'committed', 'a commit');
	sql($node, 'DELETE FROM held WHERE id = (SELECT min(id) FROM held)');
	is_sql($node, "INSERT INTO held SELECT id, token FROM idemq.claim('q', 100) RETURNING 1", 1, 'makes room for one');
}
# In a transaction that ends an attempt which nobody has counted yet, no search is trusted.
$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->restart;
is_sql($node, "BEGIN; SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1; SELECT count(*) FROM idemq.claim('q', 100); ROLLBACK;
	SELECT count(*) FROM idemq.claim('q', 100)", "committed\n0\n0", 'an uncounted attempt makes no room');
$node->append_conf('postgresql.conf', 'idemq.worker = on');
$node->restart;
wait_until($node, "SELECT recovering FROM idemq.metrics WHERE queue = 'q'", 'f');

# 3. PREPARE TRANSACTION.
is_state($node, "BEGIN; SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1; PREPARE TRANSACTION 'p'", '0A000', 'PREPARE of an end');
is_sql($node, "SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1", 'committed', 'and it is undone');
is_state($node, "BEGIN; SELECT id FROM idemq.claim('q'); PREPARE TRANSACTION 'p'", '0A000', 'PREPARE of a claim');
# The limit is set after the end, by somebody else: PREPARE reads the settings anew.
sql($node, "SELECT idemq.alter_queue('q', max_running => 0)");
my $preparer = session($node);
$preparer->query("\\set VERBOSITY sqlstate\nBEGIN; SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'processing' ORDER BY id LIMIT 1");
sql($node, "SELECT idemq.alter_queue('q', max_running => 5)");
$preparer->query("PREPARE TRANSACTION 'p'");
like($preparer->{stderr}, qr/0A000/, 'PREPARE of an end from before there was a limit');
$preparer->quit;
is_state($node, "BEGIN; SELECT idemq.enqueue('q', '1'); PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'", '00000', 'of an enqueue it is allowed');
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 100)", 1, 'after ROLLBACK PREPARED everything is counted');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');

# The end of a transaction that has ended one attempt and claimed in its place, stopped
# before the claim is counted: the one that it ended still is.
SKIP:
{
	skip 'no gdb that may attach', 4 unless has_debugger($node);
	fresh("lease => '1 h', max_running => 1", 5);
	my $worker = session($node);
	my $pid = $worker->query_safe('SELECT pg_backend_pid()');

	$worker->query_safe("SELECT id, token FROM idemq.claim('q') \\gset\nBEGIN; SELECT idemq.commit(:id, :token); SELECT id FROM idemq.claim('q')");
	my $stop = stop_at($pid, 'idemq_lease_settle_loan');
	$worker->query_until(qr/sent/, "\\echo sent\nCOMMIT;\n");
	$stop->();
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'processing'", 1, 'a commit that others see, before it is counted');
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 5)", 0, 'makes no room');
	$stop->();
	$worker->query('SELECT');
	$worker->quit;
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 5)", 0, 'nor after it');
	is_sql($node, 'SELECT running, processing FROM idemq.metrics', '1|1', 'and all is counted');
}

# 4. Waking.  The worker stays where it is, so that the first signal must do.
sub without_worker
{
	my ($code) = @_;
	my $worker = stop_worker($node);

	$code->();
	kill 'CONT', $worker;
}
my $sleepers = 'SELECT count(*) FROM pg_stat_activity WHERE ' . asleep();
my $wait_and_claim = "CALL idemq.wait('q', '60 s');\nINSERT INTO held SELECT id, token FROM idemq.claim('q');\n";

my %frees = (
	'a commit' => 'SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1',
	'a fail' => "SELECT idemq.fail(id, token, permanent => true) FROM held ORDER BY id LIMIT 1",
	'a cancel' => 'SELECT idemq.cancel(min(id)) FROM held',
	'a batch' => 'SELECT idemq.commit_many(array_agg(id), array_agg(token)) FROM (SELECT * FROM held ORDER BY id LIMIT 1) h',
	'an UPDATE by hand' => "UPDATE idemq.jobs SET status = 'completed', ready_at = NULL, finished_at = now() WHERE id = (SELECT min(id) FROM held)",
	'a limit that is raised' => "SELECT idemq.alter_queue('q', max_running => 6)",
	'a limit that is taken away' => "SELECT idemq.alter_queue('q', max_running => 0)");
foreach my $name (sort keys %frees)
{
	fresh("lease => '1 h', max_running => 5", 30);
	sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
	without_worker(sub {
		my $sleeper = sleeper($node, "CALL idemq.wait('q', '150 s')");
		my $started = time;

		sql($node, $frees{$name});
		is(answer($sleeper), 't', "$name wakes a sleeper");
		cmp_ok(time - $started, '<', 60, 'long before its time is over');
		$sleeper->{session}->quit;
	});
}
# One slot wakes one sleeper; what is free at once is passed on.  Who finds the worker still looks once a second,
# and may end without a job for which another one is woken, and is slow: three are spare.
fresh("lease => '1 h', max_running => 5", 30);
sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
without_worker(sub {
	my $done = clients($node, $wait_and_claim, '-c', 20, '-t', 1);

	is_soon($node, $sleepers, 20, '20 sleepers in a queue at its limit');
	sql($node, 'SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1');
	is_soon($node, 'SELECT count(*) FROM held', 6, 'a slot that comes free: one claims');
	is_soon($node, "SELECT ($sleepers) BETWEEN 16 AND 19", 'and one was woken');
	sql($node, 'SELECT idemq.commit_many(array_agg(id), array_agg(token)) FROM (SELECT h.* FROM held h JOIN idemq.jobs j USING (id) WHERE status = \'processing\') h');
	is_soon($node, 'SELECT count(*) FROM held', 11, 'five slots: five claim');
	is_soon($node, "SELECT ($sleepers) BETWEEN 11 AND 14", 'and five were woken');
	sql($node, "SELECT idemq.alter_queue('q', max_running => 0)");
	is($done->(), '', 'no limit: all end well');
	is_sql($node, 'SELECT count(*) BETWEEN 20 AND 25 FROM held', 't', 'with a job');
});

# Nobody polls: neither the sleepers nor the worker, at the limit and with no token.
sub switches
{
	my $sum = 0;

	foreach my $pid (split /\n/, sql($node, 'SELECT pid FROM pg_stat_activity WHERE ' . asleep() . " OR application_name = 'idemq worker'"))
	{
		$sum += $1 if slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	}
	return $sum;
}
foreach my $limit ('max_running => 1', "rate_limit => 1, rate_period => '1 h'")
{
	fresh("lease => '1 h', $limit", 30);
	sql($node, "SELECT id FROM idemq.claim('q', 5)");
	my $done = clients($node, "CALL idemq.wait('q', '2 min');\n", '-c', 10, '-t', 1);
	is_soon($node, $sleepers, 10, "$limit: 10 sleepers");
	sleep 1;
	my $before = switches();
	sleep 2;
	my $switches = switches() - $before;
	# A tick ten times a second of any of them would be 20.
	note "$switches switches";
	cmp_ok($switches, '<', 20, "$limit: they sleep ($switches switches in 2 s)");
	sql($node, "SELECT idemq.alter_queue('q', @{[ $limit =~ s/=> 1\b.*/=> 0/r ]})");
	is($done->(), '', 'until there is no limit');
}

# With both limits, claims that max_running turns away use no token and wake nobody.
fresh("lease => '1 h', max_running => 1, rate_limit => 2, rate_period => '1 h'", 30);
sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
{
	my $sleeper = sleeper($node, "CALL idemq.wait('q', '60 s')");
	my $before = switches();

	sql($node, "SELECT count(*) FROM generate_series(1, 100) n, LATERAL idemq.claim('q', n)");
	cmp_ok(switches() - $before, '<', 10, 'both limits: claims in vain wake nobody');
	sql($node, 'SELECT idemq.commit(id, token) FROM held');
	is(answer($sleeper), 't', 'a commit does');
	is_sql($node, "INSERT INTO held SELECT id, token FROM idemq.claim('q', 5) RETURNING 1", 1, 'and there is a token');
	$sleeper->{session}->quit;
}

# LISTEN: who was turned away is told when there is room.
fresh("lease => '1 h', max_running => 1", 3);
sql($node, "TRUNCATE held; INSERT INTO held SELECT id, token FROM idemq.claim('q')");
my $listener = session($node);
$listener->query_safe('LISTEN idemq_q');
sleep 0.5;
$listener->query('SELECT');
$listener->{stdout} = '';
is($listener->query_safe("SELECT count(*) FROM idemq.claim('q')"), '0', 'a claim is turned away');
sql($node, 'SELECT idemq.commit(id, token) FROM held');
my $told = 0;
foreach (1 .. 1200)
{
	last if $told = scalar($listener->query('SELECT 1') . $listener->{stdout} =~ /"ready"/);
	sleep 0.05;
}
ok($told, 'and told when there is room');
$listener->quit;

# 5. rate_limit.  A token wakes one sleeper, when it comes, with a worker and without.
foreach my $worker ('on', 'off')
{
	$node->append_conf('postgresql.conf', "idemq.worker = $worker");
	$node->restart;
	fresh("lease => '1 h', rate_limit => 2, rate_period => '2 s'", 30);
	sql($node, 'TRUNCATE held; CREATE TABLE IF NOT EXISTS at (id bigint, at timestamptz)');
	sql($node, "TRUNCATE at; INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
	my $started = time;
	my $done = clients($node, "CALL idemq.wait('q', '2 min');\nINSERT INTO held SELECT id, token FROM idemq.claim('q');\n", '-c', 4, '-t', 1);
	is($done->(), '', "worker $worker: sleepers wait for tokens");
	my $took = time - $started;
	cmp_ok($took, '>', 0.8, "worker $worker: not before they come ($took s)");
	cmp_ok($took, '<', 119, 'and not to the end of their time');
	is_sql($node, "SELECT count(*) > 2 FROM held", 't', 'and claim');
}
$node->append_conf('postgresql.conf', 'idemq.worker = on');
$node->restart;

# Eight sessions for 3 seconds: at any time no more than may be, and in all not much fewer, unless the machine had no time
# for them: then once more.
my $many = "SELECT count(*) >= 0.8 * (20 + 20 * extract(epoch FROM max(claimed_at) - min(claimed_at)))
	AND extract(epoch FROM max(claimed_at) - min(claimed_at)) > 2 FROM idemq.jobs WHERE claimed_at IS NOT NULL";
foreach (1 .. 15)
{
	fresh("lease => '1 h', rate_limit => 20, rate_period => '1 s'", 2000);
	sql($node, 'TRUNCATE at');
	$end = clients($node, "INSERT INTO at SELECT id, clock_timestamp() FROM idemq.claim('q', 3);\n\\sleep 2 ms\n", '-c', 8, '-T', 3);
	is($end->(), '', 'a rate: the clients came through');
	# A claim's time is taken before its token, on a busy machine long before; after it, the client's.
	is_sql($node, "WITH c AS (SELECT claimed_at AS began, at AS ended FROM at JOIN idemq.jobs USING (id))
		SELECT max((SELECT count(*) FROM c WHERE c.began >= a.began AND c.ended <= b.ended) - 20 - 20 * extract(epoch FROM b.ended - a.began)) < 1
		FROM c a, c b WHERE b.ended >= a.began", 't', 'never more claims than the rate allows');
	last if sql($node, $many) eq 't';
}
is_sql($node, $many, 't', 'and not much fewer');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
$node->stop;

# 6. Full tables: what cannot be counted is not handed out.
my $full = new_server('limits_full', 'idemq.max_leases' => 4, 'idemq.max_leases_per_database' => 4);
sql($full, "SELECT idemq.create_queue('lim', lease => '1 h', max_running => 3);
	SELECT count(idemq.enqueue(name, to_jsonb(n))) FROM idemq.queues, generate_series(1, 9) n;
	CREATE TABLE held AS SELECT id, token FROM idemq.claim('q', 3)");
is_sql($full, "SELECT count(*) FROM idemq.claim('lim', 5)", 1, 'a limited queue hands out what finds room in the lease table');
is_sql($full, "SELECT count(*) FROM idemq.claim('q', 2)", 2, 'one without a limit more');
is_sql($full, "SELECT refused > 0 FROM idemq.memory WHERE resource = 'leases'", 't', 'it is counted');
is_sql($full, "SELECT idemq.why(max(id)) LIKE '%idemq.max_leases%' FROM idemq.jobs WHERE status = 'pending' AND queue_id = idemq.queue_id('lim')",
	't', 'idemq.why');
is_sql($full, "SELECT count(*) FROM idemq.check() WHERE invariant = 'limits.full'", 1, 'idemq.check() warns');
is_sql($full, 'SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 2', "committed\ncommitted", 'room');
is_sql($full, "SELECT count(*) FROM idemq.claim('lim', 5)", 2, 'and it goes on, to its limit');

is_sql($full, "SELECT count(*) FROM idemq.check() WHERE severity = 'error'", 0, 'idemq.check() finds no error');

done_testing();
