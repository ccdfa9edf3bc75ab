# A randomised stress with background workers: rounds in which sessions do
# everything at once, while workers are ended and, in some, the server crashes.
# Between rounds all is quiet: idemq.check() finds nothing, the gauges are the
# rows, what is ready is claimable.  At the end waiters are woken for every job,
# and each has ended as its history says.
#
# STRESS_SECS=n: how long (20); SEED=n repeats the choices of a run (not its
# interleaving).
# slow: random rounds of 20 s in all
# at least 52 assertions
# takes long

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Stress;
use Test::More;
use Time::HiRes qw(sleep time);

my $seed = $ENV{SEED} // int(rand(2**31));
my $seconds = $ENV{STRESS_SECS} // 20;
my $clients = 6;
my $patience = 60;

diag "seed $seed: SEED=$seed repeats it";
srand($seed);

my %settings = ('idemq.max_leases' => pick(40 + int(rand(200)), 65536));
my $node = new_server('stress2', 'idemq.worker' => 'on', deadlock_timeout => '20ms', autovacuum_naptime => '1s',
	restart_after_crash => 'on', log_statement => 'none', max_prepared_transactions => 20, %settings);
note join ', ', map { "$_ = $settings{$_}" } sort keys %settings;
sql($node, setup_sql($clients));
sql($node, "SELECT idemq.create_queue('empty')");

# Of queues whose gauges are in memory; SQL counts the others, at that moment.
my $drift = "SELECT string_agg(format('%s %s: %s instead of %s', q.name, c.status, coalesce(gauge::text, 'NULL'), jobs), ', ') FROM idemq.queues q
	JOIN idemq.metrics m USING (queue_id),
	LATERAL (VALUES ('pending', pending), ('running', running), ('retrying', retrying),
		('completed', completed), ('dead', dead), ('cancelled', cancelled)) c(status, gauge),
	LATERAL (SELECT count(*) AS jobs FROM idemq.jobs j WHERE j.queue_id = q.queue_id AND j.status::text = c.status) j
	WHERE jobs IS DISTINCT FROM gauge";

# What the rows say that must not be; $ended: no job is alive any more.
sub broken
{
	my ($ended) = @_;
	my %broken = (
		'accepted and not there' => 'accepted a WHERE NOT EXISTS (SELECT FROM idemq.jobs j WHERE j.id = a.job)',
		'there and not accepted once' => 'idemq.jobs j WHERE (SELECT count(*) FROM accepted a WHERE a.job = j.id) <> 1',
		'completed, and not one effect' => "idemq.jobs j WHERE status = 'completed' AND (SELECT count(*) FROM effects e WHERE e.job = j.id) <> 1",
		'an effect, and not completed' => "effects e WHERE NOT EXISTS (SELECT FROM idemq.jobs j WHERE j.id = e.job AND status = 'completed')",
		'too many attempts' => 'idemq.jobs WHERE attempt > max_attempts',
		'more attempts than began' => "idemq.jobs j WHERE attempt > (status::text IN ('completed', 'running'))::int
			+ (SELECT count(*) FROM idemq.attempts a WHERE a.job_id = j.id AND outcome <> 'released')",
		'an attempt with a later token' => 'idemq.jobs j JOIN idemq.attempts a ON a.job_id = j.id WHERE a.token > j.token',
		'one attempt ended twice' => '(SELECT FROM idemq.attempts GROUP BY job_id, token HAVING count(*) > 1) x',
		'committed, and ended otherwise' => "idemq.jobs j JOIN idemq.attempts a ON a.job_id = j.id AND a.token = j.token WHERE status = 'completed'",
		'dead without a failure' => "idemq.jobs j WHERE status = 'dead' AND NOT EXISTS
			(SELECT FROM idemq.attempts a WHERE a.job_id = j.id AND a.token = j.token AND outcome IN ('failed', 'expired'))",
		'finished and ready' => "idemq.jobs WHERE (finished_at IS NULL) <> (status::text IN ('pending', 'retrying', 'running'))
			OR (ready_at IS NULL) <> (finished_at IS NOT NULL)");

	$broken{'not ended'} = "idemq.jobs WHERE status::text NOT IN ('completed', 'dead', 'cancelled')" if $ended;
	return join ' UNION ALL ', map { "SELECT '$_' AS what, count(*) FROM $broken{$_} HAVING count(*) > 0" } sort keys %broken;
}

# Everybody is idle; the worker may still do what comes due.
sub quiet
{
	my ($round) = @_;

	sql($node, join(';', 'SELECT 1', map { pick('ROLLBACK', 'COMMIT') . " PREPARED '$_'" }
				sort split /\n/, sql($node, 'SELECT gid FROM pg_prepared_xacts')));
	foreach (1 .. 3)
	{
		is_sql($node, "SELECT * FROM idemq.check() WHERE severity <> 'warning'", '', "round $round: check finds nothing");
	}
	is_sql($node, broken(0), '', "round $round: the rows are what happened");
	ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM ($drift) d(d) WHERE d IS NOT NULL"), "round $round: gauges are the rows")
	  or diag sql($node, $drift);
	ok($node->poll_query_until('postgres', 'SELECT bool_or(recovering) IS NOT TRUE FROM idemq.metrics'), "round $round: every lease is known")
	  if $settings{'idemq.max_leases'} == 65536;
	# What was ready before the claim, and is not among the claimed: rolled back.
	foreach my $queue ('q', 'r')
	{
		is_sql($node, "BEGIN;
			CREATE TEMP TABLE ready ON COMMIT DROP AS SELECT id FROM idemq.jobs JOIN idemq.queues USING (queue_id)
				WHERE name = '$queue' AND status IN ('pending', 'retrying') AND ready_at <= clock_timestamp();
			CREATE TEMP TABLE claimed ON COMMIT DROP AS SELECT id FROM idemq.claim('$queue', 1000000, lease => '1 h');
			SELECT count(*) FROM ready WHERE id NOT IN (SELECT id FROM claimed)
				AND id NOT IN (SELECT id FROM idemq.jobs WHERE status = 'cancelled');
			ROLLBACK", 0, "round $round: queue $queue: all that is ready is claimable");
	}
	return;
}

my ($disturbed, %ends) = (0, map { $_ => 0 } qw(workers sessions crashes));

# Ends the workers, by signal or by setting, in turn.
sub disturb
{
	my $how = (qw(terminate none setting none))[ $disturbed++ % 4 ];

	if ($how eq 'terminate')
	{
		$ends{workers} += sql($node, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'idemq worker'");
	}
	elsif ($how eq 'setting')
	{
		sql($node, "ALTER SYSTEM SET idemq.worker = '" . pick('on', 'off') . "'");
		$node->reload;
	}
	return;
}

# psql ends at the loss of its connection, unless it is just making a new one.
sub end_sessions
{
	my (@runs) = @_;

	while (grep { is_running($_) } @runs)
	{
		$ends{sessions} += sql($node, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
		sleep 0.1;
	}
	return;
}

my ($round, $begun) = (0, time);
while (time < $begun + $seconds || $round < 4)
{
	my $crash = $round % 4 == 2;
	my $length = 0.3 + rand(1.5) + $clients * to_begin();
	my @runs = map { start_script($node, script($_, 4000, waits => 1)) } 0 .. $clients - 1;
	my $started = time;

	$round++;
	while (time < $started + $length)
	{
		sleep 0.05;
		disturb() if chance(0.3);
	}
	if ($crash)
	{
		# As if the power had gone; or only one process, and the server starts again by itself.
		crash($node);
		$ends{crashes}++;
	}
	else
	{
		end_sessions(@runs);
	}
	end_script($_, $patience) foreach @runs;
	my ($unexpected, $errors) = error_states(\@runs, map { $_ => 1 } qw(57P01 57P02 57P03));
	note "round $round, " . ($crash ? 'crash, ' : '') . sprintf('%.1f s, ', $length) . "errors: $errors";
	is_deeply($unexpected, [], "round $round: no error but those that are to be expected");
	sql($node, "ALTER SYSTEM SET idemq.worker = 'on'");
	$node->reload;
	ok($node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq worker'"),
		"round $round: the worker is back");
	quiet($round);
}

# ---- Waiters take what is left, one at a time: nothing else wakes them than idemq.

sql($node, q{
	SELECT idemq.release(id, token) FROM idemq.jobs WHERE status = 'running';
	CREATE PROCEDURE work(queue text) LANGUAGE plpgsql AS $$
	DECLARE
		ready boolean;
		job record;
	BEGIN
		LOOP
			SELECT * INTO job FROM idemq.claim(queue, 1, lease => '1 h');
			EXIT WHEN NOT FOUND;
			IF job.id % 17 = 0 AND job.attempt < job.max_attempts THEN
				PERFORM idemq.fail(job.id, job.token, retry_in => '5 ms');
			ELSE
				INSERT INTO effects SELECT job.id FROM idemq.commit(job.id, job.token);
			END IF;
			COMMIT;
		END LOOP;
	END $$;
});
is_sql($node, "SELECT idemq.recount() IS NOT NULL", 't', 'recount');
my $left = sql($node, 'SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL');
my $work = join '', map { "CALL idemq.wait('%s', '1 h');\nCALL work('%s');\n" =~ s/%s/QUEUE/gr } 1 .. 5000;
my @waiters = map { start_script($node, $work =~ s/QUEUE/$_ % 2 ? 'q' : 'r'/gre) } 0 .. 3;
my $end = time + $patience;
my $until = time + $seconds / 5;
while (time < $until)
{
	my $rows = 1 + int(rand(5));
	my $queue = pick('q', 'r');

	sql($node, pick(
		"INSERT INTO accepted SELECT id FROM idemq.enqueue_many('$queue', array_fill('1'::jsonb, ARRAY[$rows]))",
		"INSERT INTO accepted SELECT id FROM idemq.enqueue('$queue', '1', delay => '20 ms')",
		"BEGIN; SAVEPOINT a; INSERT INTO accepted SELECT id FROM idemq.enqueue('$queue', '1'); RELEASE a;
			SELECT id FROM idemq.claim('$queue', $rows); ROLLBACK",
		"BEGIN; INSERT INTO accepted SELECT id FROM idemq.enqueue('$queue', '1'); PREPARE TRANSACTION 'last'; COMMIT PREPARED 'last'",
		"SELECT id FROM idemq.claim('$queue', $rows, lease => '10 ms')",
		"SELECT id FROM idemq.claim('$queue', $rows, attach => true)"));
}
# The last thing is not one that wakes everybody, as COMMIT PREPARED does: with no
# wake-up, this stays.
sql($node, "INSERT INTO accepted SELECT id FROM unnest(ARRAY['q', 'r']) queue, idemq.enqueue_many(queue, '{1,2,3}')");
# A session that sleeps for an hour is woken for each of them, long before that.
my $alive = "SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL
	AND NOT (status = 'running' AND deadline > clock_timestamp() + interval '1 min')";
while (time < $end && sql($node, $alive) ne '0')
{
	sleep 0.1;
}
is_sql($node, $alive, 0, "waiters were woken for every job, $left and more")
  or diag sql($node, "SELECT name, id, status, idemq.why(id) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE finished_at IS NULL");
end_sessions(@waiters);
my ($unexpected, $errors) = error_states(\@waiters, '57P01' => 1);
is_deeply($unexpected, [], "waiters: no errors: $errors");

foreach (1 .. 50)
{
	sql($node, drain_sql());
	last if sql($node, 'SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL') eq '0';
}
is_sql($node, broken(1), '', 'every job has ended, as its history says');
quiet('last');
cmp_ok(sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'completed'"), '>', 50, 'there was something to do');
note sql($node, "SELECT string_agg(name || ' ' || status || ' ' || n, ', ') FROM
	(SELECT name, status, count(*) AS n FROM idemq.jobs JOIN idemq.queues USING (queue_id) GROUP BY 1, 2 ORDER BY 1, 2) x");
cmp_ok($ends{$_}, '>', 0, "ended: $_") foreach sort keys %ends;
note join ', ', map { "$_ $ends{$_}" } sort keys %ends;
is(unexpected($node, qw(workers 57P01 57P02 57P03)), '', 'no error of a worker');

$node->stop;
done_testing();
