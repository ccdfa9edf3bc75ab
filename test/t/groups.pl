# FIFO groups under load: 16 workers that commit, fail, release, roll back and are
# killed, two producers, somebody who moves ready_at of heads back by hand; every group's effects happen in its order, each once, and
# nothing is lost.  With the background worker, which promotes heads, and without,
# when claims do.  And what the worker does by itself.
#
# IDEMQ_GROUP_JOBS=n jobs with the worker (100000), in 1,000 groups.
# slow: a load of 34,000 jobs, while sessions are killed
# at least 36 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $jobs = $ENV{IDEMQ_GROUP_JOBS} // (to_begin() ? 1500 : 30000);
my $groups = to_begin() ? 100 : 1000;
my $few = to_begin() ? 600 : 4000;
my $workers = 16;

my $node = new_server('groups', 'idemq.worker' => 'on', max_connections => 60, log_statement => 'none',
	log_min_error_statement => 'fatal');

sql($node, q{
	SELECT idemq.drop_queue('q');
	CREATE TABLE done (seq bigint GENERATED ALWAYS AS IDENTITY, queue text, name text, n int);
	-- One attempt in one transaction: claim, effect, end.
	CREATE FUNCTION work(q text, dice float8) RETURNS bool LANGUAGE plpgsql AS $$
	DECLARE job record;
	BEGIN
		SELECT * INTO job FROM idemq.claim(q, attach => true);
		IF job.id IS NULL THEN RETURN false; END IF;
		PERFORM finish(q, job.id, job.token, job.group_key, (job.payload ->> 'n')::int, dice);
		RETURN true;
	END $$;
	CREATE FUNCTION finish(q text, job bigint, job_token bigint, job_group text, job_n int, dice float8) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF dice < 0.02 THEN
			PERFORM idemq.fail(job, job_token, 'no luck', retry_in => '2 ms');
		ELSIF dice < 0.03 THEN
			PERFORM idemq.release(job, job_token);
		ELSE
			PERFORM idemq.commit(job, job_token);
			INSERT INTO done (queue, name, n) VALUES (q, job_group, job_n);
		END IF;
		IF dice > 0.98 THEN RAISE EXCEPTION 'rolled back'; END IF;
	EXCEPTION WHEN SQLSTATE 'P0001' THEN
		-- To the savepoint: the attempt goes on.
		PERFORM idemq.commit(job, job_token);
		INSERT INTO done (queue, name, n) VALUES (q, job_group, job_n);
	END $$;
	CREATE FUNCTION produce(q text, jobs int, groups int, part int, parts int) RETURNS void LANGUAGE sql AS $$
		SELECT count(*) FROM (SELECT array_agg(jsonb_build_object('n', n) ORDER BY n) AS payloads,
			array_agg('g' || n % groups ORDER BY n) AS names FROM generate_series(1, jobs) n WHERE n % groups % parts = part
			GROUP BY n / 5000 ORDER BY n / 5000) b, LATERAL idemq.enqueue_many(q, payloads, group_keys => names) $$;
});

# A pgbench of workers: with one transaction for an attempt, with two, and with one that is rolled back.
sub start_workers
{
	my ($queue, $seconds) = @_;

	return clients($node, [
			[ "SELECT work('$queue', random());\n", 10 ],
			[ qq{SELECT coalesce(max(id), 0) AS id, coalesce(max(token), 0) AS token, coalesce(max(group_key), '') AS name,
	coalesce(max((payload ->> 'n')::int), 0) AS n FROM idemq.claim('$queue', attach => true) \\gset
\\if :id > 0
SELECT finish('$queue', :id, :token, :name, :n, random());
\\endif
}, 10 ],
			[ "BEGIN;\nSELECT work('$queue', random());\nROLLBACK;\n", 1 ],
			# By hand, as after a clock jump: many groups are marked one by one after this is visible.
			[ "UPDATE idemq.jobs SET ready_at = ready_at - interval '1 h' WHERE id IN (SELECT id FROM idemq.jobs"
				. " WHERE queue_id = idemq.queue_id('$queue') AND finished_at IS NULL AND ready_at IS NOT NULL LIMIT 50 FOR UPDATE SKIP LOCKED);\n", 1 ] ],
		'-c', $workers, '-T', $seconds, '-M', 'prepared', 'killed');
}

# Works a queue until nothing is left and backends were killed meanwhile.
sub drain
{
	my ($queue, $limit) = @_;
	my $start = time;
	my ($killed, $said, $rest) = (0, '', 0);
	my $left = "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = '$queue' AND finished_at IS NULL";

	while (time - $start < $limit * (1 + to_begin()))
	{
		my $run = start_workers($queue, 3);

		foreach (1 .. 5)
		{
			sleep 0.4 + 2 * to_begin();
			$killed += sql($node, "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
				WHERE query ~ 'work\\(|finish\\(|claim\\(' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) x");
		}
		$said .= $run->();
		$rest = sql($node, $left);
		last if $rest == 0 && $killed > 0;
	}
	note sprintf '%s: %.1f s, %d sessions killed', $queue, time - $start, $killed;
	cmp_ok($killed, '>', 0, "$queue: sessions were killed");
	is($said, '', "$queue: the workers say nothing but that they were ended");
	# Not asked again: a producer may have committed since.
	is($rest, 0, "$queue: nothing is left");
}

sub check_effects
{
	my ($queue, $count) = @_;

	is_sql($node, "SELECT count(*), count(DISTINCT n) FROM done WHERE queue = '$queue'", "$count|$count", "$queue: every effect once");
	is_sql($node, "SELECT count(*) FROM (SELECT n, lag(n) OVER (PARTITION BY name ORDER BY seq) AS before FROM done
		WHERE queue = '$queue') x WHERE before > n", 0, "$queue: each group in its order");
	is_sql($node, "SELECT string_agg(DISTINCT status::text, ' ') FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = '$queue'",
		'completed', "$queue: all completed");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$queue: check() is clean");
}

# ---- With the worker: produced while it is worked.

sql($node, "SELECT idemq.create_queue('w', lease => '10 s', retry_base => '1 ms', max_attempts => 1000)");
my @producers = map {
	my ($part, $out) = ($_, '');
	{ out => \$out, run => IPC::Run::start([ 'psql', '-X', '-q', '-h', $node->host, '-p', $node->port,
				'-c', "SELECT produce('w', $jobs, $groups, $part, 2)", '-o', '/dev/null', 'postgres' ], '<', \undef, '>&', \$out) }
} 0 .. 1;
drain('w', 300);
foreach my $producer (@producers)
{
	$producer->{run}->finish;
	is($producer->{run}->result(0) . ${ $producer->{out} }, '0', 'a producer came through');
}
drain('w', 300) if sql($node, "SELECT count(*) FROM done WHERE queue = 'w'") < $jobs;
check_effects('w', $jobs);

# ---- What it does by itself: heads are promoted, waiters woken, with nobody claiming.

sql($node, "SELECT idemq.create_queue('s'); SELECT idemq.enqueue('s', to_jsonb(n), group_key => 'g') FROM generate_series(1, 3) n");
ok($node->poll_query_until('postgres', "SELECT status = 'pending' FROM idemq.jobs WHERE payload = '1'"), 'the worker promotes the first');
is_sql($node, "SELECT payload FROM idemq.claim('s', 5)", 1, 'one is in flight');
my $waiter = waiter($node, "CALL idemq.wait('s', '1 min')");
sql($node, "SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE payload = '1'");
is(answer($waiter), 't', 'the end of the head wakes who waits');
is_sql($node, "SELECT payload FROM idemq.claim('s', 5)", 2, 'for the next one');
sql($node, "SELECT idemq.enqueue('s', '4', group_key => 'g', expires_in => '100 ms')");
ok($node->poll_query_until('postgres', "SELECT status = 'cancelled' FROM idemq.jobs WHERE payload = '4'"),
	'one that is blocked for too long is cancelled while it is');
# The next job of a group with a long name is held: the worker looks now and then, and is not busy.
sql($node, "SELECT idemq.create_queue('held'); SELECT idemq.enqueue('held', to_jsonb('h' || n), group_key => repeat('h', 200)) FROM generate_series(1, 2) n");
ok($node->poll_query_until('postgres', q{SELECT status = 'pending' FROM idemq.jobs WHERE payload = '"h1"'}), 'a long name: the first');
my $holder = session($node);
$holder->query_safe(q{BEGIN; SELECT FROM idemq.jobs WHERE payload = '"h2"' FOR UPDATE});
sql($node, q{SELECT idemq.cancel(id) FROM idemq.jobs WHERE payload = '"h1"'});
my $transactions = "SELECT pg_stat_clear_snapshot(); SELECT xact_commit FROM pg_stat_database WHERE datname = 'postgres'";
my $began = time;
my ($before) = sql($node, $transactions) =~ /(\d+)/;
sleep 3;
my ($after) = sql($node, $transactions) =~ /(\d+)/;
cmp_ok($after - $before, '<', 1000 * (time - $began), 'nobody spins while its next job is held');
$holder->query_safe('COMMIT');
leave($holder);
ok($node->poll_query_until('postgres', q{SELECT status = 'pending' FROM idemq.jobs WHERE payload = '"h2"'}), 'let go, it is next');
# At once, again and again: a claim after the end of the head finds the next one, whoever promotes it.  For a round
# of the worker it waits 50 ms; on a busy machine that may last longer, and then one that has waited so long looks again.
is_sql($node, q{
	DO $$ BEGIN
		PERFORM idemq.create_queue('fast');
		PERFORM idemq.enqueue('fast', to_jsonb(n), group_key => 'g') FROM generate_series(1, 300) n;
	END $$;
	CREATE PROCEDURE run_fast(INOUT missed int) LANGUAGE plpgsql AS $$
	DECLARE
		job record;
		began timestamptz;
	BEGIN
		missed := 0;
		FOR i IN 1 .. 300 LOOP
			FOR look IN 1 .. 600 LOOP
				began := clock_timestamp();
				SELECT * INTO job FROM idemq.claim('fast');
				COMMIT;
				EXIT WHEN job.id IS NOT NULL OR clock_timestamp() < began + '49 ms';
			END LOOP;
			IF job.id IS NULL OR job.payload <> to_jsonb(i) THEN missed := missed + 1; ELSE PERFORM idemq.commit(job.id, job.token); END IF;
			COMMIT;
		END LOOP;
	END $$;
	CALL run_fast(0)}, 0, 'a claim after each commit finds the next one');

# ---- Marks that lower low-water marks, a thousand at a time, beside enqueues that have their groups checked.

sql($node, "SELECT idemq.create_queue('m', retention => '0'); SELECT idemq.enqueue('m', to_jsonb(n), group_key => 'm' || n % 1000) FROM generate_series(1, 20000) n;
	CREATE TABLE twice (name text)");
my $dir = "$PostgreSQL::Test::Utils::tmp_check/groups";
mkdir $dir;
my %scripts = (
	enqueue => "\\set n random(0, 999)\nSELECT idemq.enqueue('m', '1', group_key => 'm' || :n);\n",
	work => "SELECT idemq.commit(id, token) FROM idemq.claim('m', 20);\n",
	watch => "INSERT INTO twice SELECT group_key FROM idemq.jobs WHERE queue_id = idemq.queue_id('m') AND finished_at IS NULL AND status <> 'blocked'"
	  . " GROUP BY group_key HAVING count(*) > 1;\n",
	# It waits for no row: it and who commits 20 jobs would wait for each other.
	move => "UPDATE idemq.jobs SET ready_at = ready_at - interval '1 h' WHERE id IN (SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id('m')"
	  . " AND ready_at IS NOT NULL AND status = 'pending' FOR UPDATE SKIP LOCKED);\n\\sleep 50 ms\n");
append_to_file("$dir/$_.m.sql", $scripts{$_}) foreach keys %scripts;
my @runs = map {
	my ($clients, @files) = @$_;
	my $out = '';
	[ IPC::Run::start([ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', $clients, '-T', 6 + 8 * to_begin(), '-M', 'prepared', '--max-tries=100',
			(map { ('-f', "$dir/$_") } @files), 'postgres' ], '<', \undef, '>&', \$out), \$out ]
} [ 6, "enqueue.m.sql\@5", "work.m.sql\@3" ], [ 1, 'move.m.sql' ], [ 1, 'watch.m.sql' ];
foreach (@runs)
{
	$_->[0]->finish;
	like(${ $_->[1] }, qr/number of transactions actually processed: [1-9]/, 'they did something');
}
is_sql($node, 'SELECT count(*) FROM twice', 0, 'no second head');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'no job below a low-water mark');
sql($node, "SELECT idemq.drop_queue('m', force => true)");

# ---- A crash: marks are lost, and found again.

sql($node, "SELECT idemq.create_queue('c'); SELECT idemq.enqueue('c', to_jsonb(n), group_key => repeat('g', 100 + n % 40)) FROM generate_series(1, 120) n");
crash($node);
ok($node->poll_query_until('postgres', "SELECT count(*) = 40 FROM idemq.jobs JOIN idemq.queues USING (queue_id)
	WHERE name = 'c' AND status = 'pending'"), 'after a crash the worker gives every group its head, those with long names too');
is_sql($node, "SELECT count(*), count(DISTINCT group_key), max(payload::int) FROM idemq.claim('c', 1000)", '40|40|40', 'the first of each');

# ---- Without the worker.

$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->restart;
sql($node, "SELECT idemq.create_queue('n', lease => '10 s', retry_base => '1 ms', max_attempts => 1000);
	SELECT produce('n', $few, 100, 0, 1)");
drain('n', 300);
check_effects('n', $few);
# A held snapshot: a look at a group does not read again what that keeps in the index.
my $reader = session($node);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
sql($node, q{SELECT idemq.create_queue('still'); SELECT idemq.enqueue('still', to_jsonb(n), group_key => 'g') FROM generate_series(1, 700) n;
	CREATE PROCEDURE run_still(jobs int) LANGUAGE plpgsql AS $$
	DECLARE job record;
	BEGIN
		FOR i IN 1 .. jobs LOOP
			SELECT * INTO job FROM idemq.claim('still');
			COMMIT;
			PERFORM idemq.commit(job.id, job.token);
			COMMIT;
		END LOOP;
	END $$});
my @reads = map {
	sql_counted($node, 'CALL run_still(' . ($_ == 2 ? 400 : 100) . ')');
	sql($node, "SELECT idx_tup_read FROM pg_stat_all_indexes WHERE indexrelname = 'jobs_group'");
} 0 .. 3;
cmp_ok($reads[3] - $reads[2], '<', 2 * ($reads[1] - $reads[0]), 'the last hundred of heads reads no more of the index than the second');
leave($reader);

# A wait looks for itself.
sql($node, "SELECT idemq.enqueue('n', '{\"n\": 5001}', group_key => 'a')");
is_sql($node, "CALL idemq.wait('n', '1 min')", 't', 'without a worker wait promotes');
is_sql($node, "SELECT status FROM idemq.jobs ORDER BY id DESC LIMIT 1", 'pending', 'what it says is ready');
is(unexpected($node, qw(57P01 57P02 57P03)), '', 'no error but of those that were ended');
$node->stop;
done_testing();
