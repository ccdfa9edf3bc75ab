# max_running and rate_limit under load: exact whatever ends an attempt, an open claim, a session or the server; no
# session polls.  The rest is in limits.pl.
# slow: sixteen clients for seconds at a time, and context switches counted over seconds
# expects in log: was terminated by signal 9
# asserts times
# at least 39 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
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

# ---- Stress: 16 sessions, max_running 5.  A session that has an attempt holds lock 7:
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
CREATE TABLE watched (running int, held int, looks int);
-- Looks, for so long, at how many jobs are running and how many sessions have an attempt.
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
		SELECT count(*) INTO rows FROM idemq.jobs WHERE status = 'running';
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
my $watched = 'SELECT max(running) <= 5, max(held) <= 5, max(running) FROM watched';
my $settings = "lease => '1 min', max_attempts => 1000000, max_running => 5, retry_jitter => 0";

sub check_exact
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql($node, $watched, 't|t|5', "$name: never more than 5 at once, and 5");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$name: idemq.check()");
	note "$name: " . sql($node, "SELECT 'looks ' || sum(looks) FROM watched") . ', ' .
	  sql($node, "SELECT 'claims ' || claimed_total || ', permits used ' || permits_used FROM idemq.metrics");
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
		last if sql($node, 'SELECT (SELECT max(running) >= 5 FROM watched) AND ' . ($condition // 'true')) eq 't' && (!$enough || $enough->());
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
		leave($watch);
		is($end->(), '', 'the clients say nothing but that they were ended');
	},
	'true', sub { $killed > 5 });
cmp_ok($killed, '>', 5, "$killed of them were");
check_exact('sessions that end');

# The server crashes, with a worker and without; what is running is counted before
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
	my $left = sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'running'");
	cmp_ok($left, '<=', 5, "worker $worker: after a crash no more than 5 are running");
	is_sql($node, "SELECT count(*) FROM idemq.claim('q', 100)", 5 - $left, "worker $worker: the others are claimed, no more");
	sql($node, "UPDATE idemq.jobs SET status = 'pending', ready_at = now(), flags = 0 WHERE status = 'running'");
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
sql($node, "DELETE FROM idemq.jobs WHERE id > (SELECT min(id) + 3000 FROM idemq.jobs WHERE status NOT IN ('completed', 'running'))
	AND status NOT IN ('completed', 'running')");
for (my $n = 0; $n < 100 && sql($node, "SELECT count(*) FROM idemq.jobs WHERE status <> 'completed'") > 0; $n++)
{
	is(clients($node, $work, '-c', 16, '-T', 2)->(), '', 'to the end');
}
is_sql($node, "SELECT string_agg(DISTINCT status::text, ' ') FROM idemq.jobs", 'completed', 'all jobs are done');
is_sql($node, 'SELECT permits_used FROM idemq.metrics', 0, 'and nothing runs');

# ---- Waking

sql($node, 'CREATE TABLE held (id bigint, token bigint)');
my $waiters = 'SELECT count(*) FROM pg_stat_activity WHERE ' . asleep();

# One slot wakes one waiter; what is free at once is passed on.  A session that is woken may end without a job, for which
# another one is woken: three are spare.
fresh("lease => '1 h', max_running => 5", 30);
sql($node, "INSERT INTO held SELECT id, token FROM idemq.claim('q', 5)");
{
	my $done = clients($node, "CALL idemq.wait('q', '1 h');\nINSERT INTO held SELECT id, token FROM idemq.claim('q');\n", '-c', 20, '-t', 1);

	is_soon($node, $waiters, 20, '20 waiters in a queue at its limit');
	my $worker = stop_worker($node);

	sql($node, 'SELECT idemq.commit(id, token) FROM held ORDER BY id LIMIT 1');
	is_soon($node, 'SELECT count(*) FROM held', 6, 'a slot that comes free: one claims');
	is_soon($node, "SELECT ($waiters) BETWEEN 16 AND 19", 'and one was woken');
	sql($node, "SELECT idemq.commit_many(array_agg(id), array_agg(token)) FROM (SELECT h.* FROM held h JOIN idemq.jobs j USING (id) WHERE status = 'running') h");
	is_soon($node, 'SELECT count(*) FROM held', 11, 'five slots: five claim');
	is_soon($node, "SELECT ($waiters) BETWEEN 11 AND 14", 'and five were woken');
	sql($node, "SELECT idemq.alter_queue('q', max_running => 0)");
	is($done->(), '', 'no limit: all end well');
	is_sql($node, 'SELECT count(*) BETWEEN 20 AND 25 FROM held', 't', 'with a job');
	kill 'CONT', $worker;
}

# Nobody polls: neither the waiters nor the worker, at the limit and with no token.
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
	is_soon($node, $waiters, 10, "$limit: 10 waiters");
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

# ---- rate_limit

sql($node, 'CREATE TABLE at (id bigint, at timestamptz)');

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
		SELECT max((SELECT count(*) FROM c WHERE c.began >= a.began AND c.ended < a.began + interval '1 s')) <= 20
		FROM c a", 't', 'never more claims than the rate allows in any second');
	last if sql($node, $many) eq 't';
}
is_sql($node, $many, 't', 'and not much fewer');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'idemq.check()');
$node->stop;

done_testing();
