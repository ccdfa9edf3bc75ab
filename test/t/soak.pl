# Everything at once: groups, limits, keys, schedules, a handler, expiry, deaths with a dead-letter queue,
# retention, rollbacks, savepoints, killed sessions, a killed worker, crashes.  At its end
# every effect has happened once, no limit was ever exceeded, and check() is clean; the
# tokens of each job have grown from claim to claim, and of two jobs of a group the one
# that was visible when the other's enqueue began had its effect first.
#
# From its third part on some sessions stay, the worker and the server's other processes do, and none of
# them holds more memory at the end than soon after.
#
# IDEMQ_SOAK=seconds (20); `make soak` runs 600; `make chaos` in a build that sleeps at
# random between "visible" and "noted" (base/base.h).
# slow: a load of 20 s, with random faults
# at least 31 assertions
# takes long

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $seconds = $ENV{IDEMQ_SOAK} // 20;
my (%figures, %held);
my @steady = (0);    # sessions that stay

my $node = new_server('soak', 'idemq.worker' => 'on', max_connections => 100, log_statement => 'none',
	log_min_error_statement => 'fatal', 'idemq.purge_interval' => '2s', autovacuum_naptime => '5s');

# Before the schedule: the minute may end between the two.
my $started = sql($node, "SELECT date_trunc('minute', clock_timestamp())");
sql($node, q{
	SELECT idemq.create_queue('letters', retention => '1 h');
	SELECT idemq.create_queue('plain', lease => '5 s', retry_base => '1 ms', max_attempts => 3, dead_letter_queue => 'letters', retention => '5 s', dead_retention => '5 s', idempotency_window => '5 s');
	SELECT idemq.create_queue('grouped', lease => '5 s', retry_base => '1 ms', max_attempts => 100000, retention => '5 s', idempotency_window => '5 s');
	SELECT idemq.create_queue('limited', lease => '5 s', retry_base => '1 ms', max_attempts => 100000, retention => '5 s', idempotency_window => '5 s',
		max_running => 5, rate_limit => 300);
	SELECT idemq.create_queue('keyed', lease => '5 s', retry_base => '1 ms', max_attempts => 100000, retention => '5 s', idempotency_window => '1 h');
	SELECT idemq.create_queue('handled', lease => '5 s', retry_base => '1 ms', max_attempts => 100000, retention => '5 s', idempotency_window => '5 s');
	SELECT idemq.create_queue('ticks', lease => '5 s', retention => '1 h');
	CREATE TABLE produced (queue text, n bigint, name text, xid xid8 DEFAULT pg_current_xact_id(), saw pg_snapshot);
	CREATE TABLE claims (seq bigint GENERATED ALWAYS AS IDENTITY, job bigint, token bigint);
	CREATE TABLE effects (seq bigint GENERATED ALWAYS AS IDENTITY, queue text, name text, n bigint, at timestamptz DEFAULT clock_timestamp());
	CREATE TABLE excess (what text, at timestamptz DEFAULT clock_timestamp());
	-- What the watcher saw; life: of the server, whose counters begin anew in the next one.
	-- The claims were read between two times.
	CREATE TABLE looks (at timestamptz, until timestamptz, life timestamptz, claims bigint);
	CREATE SEQUENCE numbers;

	CREATE FUNCTION produce(q text, dice float8) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE n bigint := nextval('numbers');
		saw pg_snapshot := pg_current_snapshot();
	BEGIN
		INSERT INTO produced VALUES (q, n, CASE WHEN q = 'grouped' THEN 'g' || (dice * 1000)::int % 50 END, DEFAULT, saw);
		PERFORM idemq.enqueue(q, jsonb_build_object('n', n),
			key => CASE WHEN q = 'keyed' THEN 'k' || n END,
			group_key => CASE WHEN q = 'grouped' THEN 'g' || (dice * 1000)::int % 50 END,
			priority => (dice * 100)::int % 10,
			delay => CASE WHEN q = 'plain' AND dice < 0.05 THEN interval '20 ms' END);
		-- The message comes again.
		IF q = 'keyed' THEN PERFORM idemq.enqueue(q, jsonb_build_object('n', n), key => 'k' || n); END IF;
		-- One whose time runs out: it may have its effect, or not.
		IF dice < 0.02 THEN PERFORM idemq.enqueue(q, '{"n": -1}', expires_in => '5 ms', group_key => CASE WHEN q = 'grouped' THEN 'g1' END); END IF;
		-- A savepoint's rollback leaves nothing behind.
		IF dice > 0.95 THEN
			BEGIN
				PERFORM idemq.enqueue(q, '{"n": -2}', group_key => CASE WHEN q = 'grouped' THEN 'g2' END);
				RAISE EXCEPTION 'undone';
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
		END IF;
	END $$;

	-- The end of an attempt, with its effect.
	CREATE FUNCTION finish(q text, job bigint, job_token bigint, name text, n bigint, dice float8) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF dice < 0.03 THEN PERFORM idemq.fail(job, job_token, 'no luck', retry_in => '2 ms'); RETURN; END IF;
		IF dice < 0.04 THEN PERFORM idemq.release(job, job_token); RETURN; END IF;
		IF dice < 0.05 AND q = 'plain' THEN PERFORM idemq.fail(job, job_token, 'hopeless', permanent => true); RETURN; END IF;
		IF dice < 0.06 THEN PERFORM idemq.heartbeat(job, job_token); END IF;
		IF dice > 0.97 THEN
			BEGIN
				PERFORM idemq.commit(job, job_token);
				INSERT INTO effects (queue, name, n) VALUES (q, name, n);
				RAISE EXCEPTION 'undone';
			EXCEPTION WHEN raise_exception THEN NULL;
			END;
		END IF;
		IF idemq.try_commit(job, job_token) = 'committed' THEN INSERT INTO effects (queue, name, n) VALUES (q, name, n); END IF;
	END $$;
	CREATE FUNCTION handle(payload jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
	BEGIN
		IF random() < 0.01 THEN RAISE 'no luck'; END IF;
		INSERT INTO effects (queue, name, n) VALUES ('handled', '', coalesce((payload ->> 'n')::bigint, 0));
	END $$;
	SELECT idemq.set_handler('handled', 'handle', batch => 10);
	CREATE FUNCTION work(q text, dice float8) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE job record;
	BEGIN
		FOR job IN SELECT * FROM idemq.claim(q, 1 + (dice * 1000)::int % 3, attach => dice < 0.5) LOOP
			INSERT INTO claims (job, token) VALUES (job.id, job.token);
			PERFORM finish(q, job.id, job.token, coalesce(job.group_key, ''), coalesce((job.payload ->> 'n')::bigint, 0), random());
		END LOOP;
	END $$;
	CREATE PROCEDURE watch(seconds int) LANGUAGE plpgsql AS $$
	DECLARE
		ends timestamptz := clock_timestamp() + make_interval(secs => seconds);
		looked timestamptz;
		n int := 0;
	BEGIN
		WHILE clock_timestamp() < ends OR n <= 10 LOOP
			INSERT INTO excess (what) SELECT 'running ' || count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('limited')
				AND status = 'running' HAVING count(*) > 5;
			INSERT INTO excess (what) SELECT 'heads ' || group_key FROM idemq.jobs WHERE group_key IS NOT NULL AND finished_at IS NULL
				AND status <> 'blocked' GROUP BY queue_id, group_key HAVING count(*) > 1;
			looked := clock_timestamp();
			INSERT INTO looks SELECT looked, clock_timestamp(), pg_postmaster_start_time(), claimed_total FROM idemq.metrics WHERE queue = 'limited';
			n := n + 1;
			COMMIT;
			PERFORM pg_sleep(0.02);
			COMMIT;
		END LOOP;
	END $$;
	CALL idemq.tick();
	SELECT idemq.schedule('minute', '* * * * *', 'ticks', '{"n": 0}'); -- meant to tick
});

my @queues = qw(plain grouped limited keyed);
my (@producing, @working);
push @producing, [ "SELECT produce('$_', random());\n", 1 ] foreach @queues, 'handled';
foreach my $queue (@queues, 'ticks')
{
	push @working, [ "SELECT work('$queue', random());\n", 4 ];
	push @working, [ "BEGIN;\nSELECT work('$queue', random());\nROLLBACK;\n", 1 ];
	push @working, [ qq{WITH c AS (SELECT * FROM idemq.claim('$queue', attach => true)), l AS (INSERT INTO claims (job, token) SELECT id, token FROM c)
	SELECT coalesce(max(id), 0) AS id, coalesce(max(token), 0) AS token,
	coalesce(max(group_key), '') AS name, coalesce(max((payload ->> 'n')::bigint), 0) AS n FROM c \\gset
\\if :id > 0
SELECT finish('$queue', :id, :token, :name, :n, random());
\\endif
}, 4 ];
}
push @working, [ "CALL idemq.tick();\n\\sleep 200 ms\n", 1 ];
push @working, [ "CALL idemq.wait_any('{plain,grouped,limited,keyed}', '50 ms');\n", 1 ];

# Not prepared where all is slow: pgbench executes what was cancelled while it was prepared.
my @usual = ('-M', to_begin() ? 'extended' : 'prepared', 'killed');

# Notes the private memory of each process, in kB.
sub note_memory
{
	foreach (split /\n/, sql($node, "SELECT backend_type || CASE WHEN application_name LIKE 'idemq%' THEN ', ' || application_name ELSE '' END, pid
		FROM pg_stat_activity WHERE pid = ANY('{" . join(',', @steady) . "}') OR backend_type <> 'client backend' AND backend_type NOT LIKE 'autovacuum worker'"))
	{
		my ($what, $pid) = split /\|/;
		my ($kb) = eval { slurp_file("/proc/$pid/status") } =~ /^RssAnon:\s+(\d+)/m or next;
		push @{ $held{"$what $pid"} }, $kb;
	}
	return;
}

# ---- The soak, in rounds; a client that was killed is back in the next one.

my $end = time + $seconds;
my $calm = $seconds >= 600 && time + $seconds / 3;
my $round = 0;
my $stays;
# Each kind of trouble at least once, however slow the machine.
while (time < $end || $round < 3 || $round < 30 && !($figures{terminate} && $figures{cancel}))
{
	if ($calm && time > $calm && time < $end)
	{
		if (!$stays)
		{
			wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'");
			$stays = clients($node, [ @working, @producing ], '-c', 4, '-T', int($end - time) + 1, '-R', 100, @usual);
			wait_until($node, "SELECT count(*) = 4 FROM pg_stat_activity WHERE application_name = 'pgbench'");
			@steady = split /\n/, sql($node, "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgbench'");
		}
		note_memory();
	}
	# Producers are held back where the backlog grows: this is no bench.
	my $backlog = sql($node, 'SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL');
	my @runs = (clients($node, \@working, '-c', 10, '-T', 5, @usual),
		$backlog < 20000 ? clients($node, \@producing, '-c', 2, '-T', 5 + 10 * to_begin(), '-R', 800, @usual) : ());
	my $watch = IPC::Run::start([ 'psql', '-X', '-q', '-h', $node->host, '-p', $node->port, '-c', 'CALL watch(4)', 'postgres' ], '<', \undef, '>&', \my $out);
	my $crashed = 0;
	my $looks = sql($node, 'SELECT count(*) FROM looks');

	foreach (1 .. 4)
	{
		sleep 1 + 2 * to_begin();
		my $how = $_ % 2 ? 'terminate' : 'cancel';
		$figures{$how} += sql($node, "SELECT count(pg_${how}_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
			WHERE query ~ 'work\\(|finish\\(|produce\\(|claim\\(' AND pid <> ALL(pg_backend_pid() || '{${\join ',', @steady}}'::int[]) ORDER BY random() LIMIT 1) x");
	}
	if (++$round % 5 == 2 && !$stays)
	{
		my $worker = worker_pid($node);

		sql($node, "SELECT pg_terminate_backend($worker)");
		wait_until($node, "SELECT count(*) FILTER (WHERE pid = $worker) = 0 AND count(*) = 1 FROM pg_stat_activity WHERE application_name = 'idemq worker'");
		$figures{workers}++;
	}
	if ($round % 10 == 3 && !$stays)
	{
		$figures{crashes}++;
		$crashed = 1;
		crash($node);
	}
	is($_->(), '', "round $round: the clients say nothing but that they were ended") foreach @runs;
	$watch->finish;
	is($watch->result(0) . $out, '0', "round $round: the watcher came through") unless $crashed;
	cmp_ok(sql($node, 'SELECT count(*) FROM looks') - $looks, '>', $crashed ? 0 : 10, "round $round: and looked");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "round $round: check() is clean");
}

if ($stays)
{
	is($stays->(), '', 'those who stayed say nothing');
	my @whole = grep { @{ $held{$_} } >= 10 } sort keys %held;
	cmp_ok(scalar(grep { /^client/ } @whole), '==', 4, 'they have stayed');
	cmp_ok(scalar(grep { /, idemq worker/ } @whole), '>=', 1, 'so has the worker');
	cmp_ok(scalar(grep { /, idemq handler/ } @whole), '>=', 1, 'and a handler');
	my @most = (-1e9, '');
	foreach (@whole)
	{
		my @kb = @{ $held{$_} };
		my $fifth = int(@kb / 5) || 1;
		my ($first, $last) = map { (sort { $a <=> $b } @kb[ $_ .. $_ + $fifth - 1 ])[ $fifth / 2 ] } $fifth, @kb - $fifth;
		cmp_ok($last, '<=', $first + 1024, "$_ holds no more memory");
		diag "$_: $first kB, at the end $last kB of its own";
		@most = ($last - $first, "$first kB, at the end $last kB of its own ($_)") if $last - $first > $most[0];
	}
	diag 'figure: ' . @whole . " processes stayed; which grew most: $most[1]";
}

# ---- Drained.

my $left = 'SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL AND queue_id <> idemq.queue_id(\'letters\')';
for (my $i = 0; $i < 60 && sql($node, $left) > 0; $i++)
{
	is(clients($node, \@working, '-c', 8, '-T', 3, '-M', 'prepared')->(), '', 'draining');
}
is_sql($node, $left, 0, 'nothing is left');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
is_sql($node, 'SELECT what FROM excess LIMIT 3', '', 'no limit was exceeded, no group had two heads');
# 300 at once and 300 a second; a claim is counted a moment after its token is taken.
is_sql($node, q{SELECT count(*) > 10, max(claims - 300 * extract(epoch FROM until) - low) <= 330 FROM (SELECT *,
	min(claims - 300 * extract(epoch FROM at)) OVER (PARTITION BY life ORDER BY at) AS low FROM looks) l}, 't|t', 'nor the rate, at any two looks');
cmp_ok($figures{$_} // 0, '>', 0, "there were: $_") foreach qw(terminate cancel workers crashes);
is(unexpected($node, qw(57014 57P01 57P02 57P03)), '', 'no error but of those that were ended');
is_sql($node, 'SELECT count(*) FROM (SELECT FROM effects WHERE n > 0 GROUP BY queue, n HAVING count(*) > 1) x', 0, 'no effect twice');
is_sql($node, q{SELECT count(*) FROM (SELECT token <= lag(token) OVER (PARTITION BY job ORDER BY seq) AS back FROM claims) c WHERE back}, 0,
	'the tokens of each job only grow');
cmp_ok(sql($node, 'SELECT count(*) - count(DISTINCT job) FROM claims'), '>', 0, 'some were claimed again');
# Each with the forty that followed it in its group.
my $pairs = q{SELECT %s FROM (SELECT n, p.name, xid, saw, seq, row_number() OVER (PARTITION BY p.name ORDER BY n) AS place
		FROM produced p JOIN effects e USING (queue, n) WHERE queue = 'grouped') a
	JOIN (SELECT n, p.name, saw, seq, row_number() OVER (PARTITION BY p.name ORDER BY n) AS place
		FROM produced p JOIN effects e USING (queue, n) WHERE queue = 'grouped') b
	ON a.name = b.name AND b.place BETWEEN a.place + 1 AND a.place + 40 AND pg_visible_in_snapshot(a.xid, b.saw)};
is_sql($node, sprintf($pairs, 'count(*)') . ' WHERE a.seq > b.seq', 0, 'groups are in order');
cmp_ok(sql($node, sprintf($pairs, 'count(*)')), '>', 100, 'there was an order to keep');
is_sql($node, 'SELECT count(*) FROM effects WHERE n = -2', 0, 'none of what was rolled back');
is_sql($node, q{SELECT queue, count(*) FROM produced p WHERE NOT EXISTS (SELECT FROM effects e WHERE e.queue = p.queue AND e.n = p.n)
	AND NOT (queue = 'plain' AND EXISTS (SELECT FROM idemq.jobs j WHERE queue_id = idemq.queue_id('letters') AND (j.payload #>> '{payload,n}')::bigint = p.n))
	GROUP BY 1}, '', 'every job has had its effect, or is in the dead-letter queue');
is_sql($node, q{SELECT count(*) FROM effects e JOIN idemq.jobs j ON e.queue = 'plain' AND j.queue_id = idemq.queue_id('letters')
	AND (j.payload #>> '{payload,n}')::bigint = e.n WHERE e.n > 0}, 0, 'and not both');
# Of this moment: the next minute may begin between two statements.
is_sql($node, "SELECT jobs <= minutes, jobs >= minutes - 1, keys = jobs FROM
	(SELECT count(*) AS jobs, count(DISTINCT key) AS keys FROM idemq.jobs WHERE queue_id = idemq.queue_id('ticks') AND enqueued_at <= statement_timestamp()) j,
	(SELECT count(*) - 1 AS minutes FROM generate_series('$started'::timestamptz, statement_timestamp(), '1 min')) m",
	't|t|t', 'each minute was one job');
ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name IN ('plain', 'grouped', 'limited')}),
	'what is past its retention is gone');
is_sql($node, q{SELECT count(*) FROM idemq.attempts a WHERE NOT EXISTS (SELECT FROM idemq.jobs WHERE id = a.job_id)}, 0, 'with its history');
diag 'figure: effects ' . sql($node, q{SELECT string_agg(queue || ' ' || n, ', ') FROM (SELECT queue, count(*) AS n FROM effects GROUP BY 1 ORDER BY 1) x});
note sql($node, q{SELECT 'dead ' || count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('letters')});
note sql($node, q{SELECT 'table ' || pg_size_pretty(pg_table_size('idemq.jobs')) || ', indexes ' || pg_size_pretty(pg_indexes_size('idemq.jobs'))});
diag "figure: $round rounds; " . join ', ', map { "$_ $figures{$_}" } sort keys %figures;
$node->stop;
done_testing();
