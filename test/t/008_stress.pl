# A randomised stress: sessions do everything at once, then all is drained.
# Every job ends completed, dead or cancelled; what is ready is claimable; the
# effect of each completed job happened once.
#
# IDEMQ_SEED=n repeats the choices of a run (not its interleaving);
# IDEMQ_STRESS=n makes it n times longer.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{IDEMQ_SEED} // int(rand(2**31));
my $clients = 6;
my $steps = 1200 * ($ENV{IDEMQ_STRESS} // 1);

diag "seed $seed: IDEMQ_SEED=$seed repeats it";
srand($seed);

my $node = new_server('stress', deadlock_timeout => '20ms', autovacuum_naptime => '1s',
	'idemq.max_leases' => 40 + int(rand(200)), log_statement => 'none', log_min_messages => 'error', log_min_duration_statement => 300, log_lock_waits => 'on', max_prepared_transactions => 20);

sql($node, q{
	SELECT idemq.drop_queue('q');
	SELECT idemq.create_queue('q', lease => '1 h', retry_base => '1 ms', max_attempts => 5, idempotency_window => '0');
	SELECT idemq.create_queue('r', lease => '20 ms', retry_base => '1 ms', retry_jitter => 1, max_attempts => 8);
	CREATE TABLE effects (job bigint);
	CREATE TABLE gone (job bigint);
	CREATE FUNCTION one_of(q text, s text) RETURNS bigint LANGUAGE sql AS
		$$ SELECT id FROM (SELECT id FROM idemq.jobs JOIN idemq.queues USING (queue_id)
			WHERE name = q AND status::text ~ s ORDER BY finished_at DESC NULLS FIRST, id LIMIT 40) x ORDER BY random() LIMIT 1 $$;
});
sql($node, "CREATE TABLE held_$_ (id bigint, token bigint)") foreach 0 .. $clients - 1;

sub pick { return $_[ int(rand(@_)) ]; }
sub chance { return rand() < $_[0]; }

sub enqueue
{
	my ($queue, $no_key) = @_;
	my @more;

	push @more, 'priority => ' . int(rand(10)) if chance(0.3);
	push @more, "run_at => now() - interval '1 h' * random()" if chance(0.2);
	push @more, "delay => '" . int(rand(30)) . " ms'" if !@more && chance(0.2);
	push @more, "key => 'k" . int(rand(50)) . "'", 'on_duplicate => \'' . pick('ignore', 'replace', 'replace', 'error') . "'"
	  if !$no_key && chance(0.4);
	push @more, 'max_attempts => ' . (1 + int(rand(3))) if chance(0.1);
	push @more, "expires_in => '1 ms'" if chance(0.02);
	return 'SELECT idemq.enqueue(' . join(', ', "'$queue'", "to_jsonb(repeat('x', " . int(rand(200)) . '))', @more) . ')';
}

# One statement of client $c.
sub statement
{
	my ($c) = @_;
	my $held = "held_$c";
	my $queue = pick('q', 'r');
	my $some = "(SELECT * FROM $held ORDER BY random() LIMIT " . (1 + int(rand(4))) . ')';
	my $lease = chance(0.15) ? ", lease => '1 ms'" : '';
	my $arrays = "(SELECT array_agg(id ORDER BY k) i, array_agg(token ORDER BY k) t FROM (SELECT *, random() k FROM $held) x
		HAVING count(*) > 0) a";
	my @menu = (
		(sub { enqueue($queue) }) x 5,
		sub { "SELECT count(*) FROM idemq.enqueue_many('$queue', array_fill('1'::jsonb, ARRAY[" . int(rand(20)) . ']))' },
		sub { "INSERT INTO idemq.jobs (queue_id, created_at, priority, max_attempts, status, ready_at, payload)
			SELECT queue_id, now(), " . int(rand(10)) . ", 3, 'pending', now() - interval '1 min' * random(), '\"hand\"'
			FROM idemq.queues WHERE name = '$queue'" },
		(sub { "INSERT INTO $held SELECT id, token FROM idemq.claim('$queue', " . (1 + int(rand(20))) . "$lease)" }) x 4,
		sub { "INSERT INTO $held SELECT id, token FROM idemq.claim_any(ARRAY['q', 'r'], " . (1 + int(rand(5))) . ')' },
		sub { "INSERT INTO $held SELECT id, token FROM idemq.claim_job(one_of('$queue', 'pending|failed')) WHERE outcome::text ~ 'claimed'" },
		sub { "INSERT INTO effects SELECT id FROM (SELECT id, idemq.commit(id, token) FROM $some x) y" },
		(sub { "INSERT INTO effects SELECT id FROM (SELECT id, idemq.try_commit(id, token) AS o FROM $some x) y WHERE o = 'committed'" }) x 4,
		(sub { "INSERT INTO effects SELECT m.id FROM $arrays, idemq.commit_many(i, t) m WHERE outcome = 'committed'" }) x 2,
		sub { "INSERT INTO effects SELECT id FROM (SELECT j.id, idemq.commit_once(j.id) AS o FROM (SELECT one_of('$queue', 'pending') AS id) j) x WHERE o = 'committed'" },
		sub { "INSERT INTO effects SELECT id FROM (SELECT id, idemq.commit(id, token) FROM idemq.claim('$queue', 3)) x" },
		sub { "SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM $some x" },
		sub { "SELECT idemq.fail(id, token) FROM $some x" },
		sub { "SELECT m.* FROM $arrays, idemq.fail_many(i, t, retry_in => '1 ms') m" },
		sub { "SELECT idemq.fail(id, token, permanent => true) FROM (SELECT * FROM $held LIMIT 1) x" },
		sub { "SELECT idemq.release(id, token) FROM $some x" },
		sub { "SELECT idemq.checkpoint(id, token, '1') FROM (SELECT * FROM $held ORDER BY token DESC LIMIT 1) x" },
		sub { "SELECT idemq.assert_current(id, token) FROM (SELECT * FROM $held ORDER BY token DESC LIMIT 1) x" },
		sub { "SELECT idemq.heartbeat(id, token, " . pick("'1 h'", "'1 ms'", 'NULL') . ") FROM $some x" },
		(sub { "SELECT idemq.cancel(one_of('$queue', 'pending|failed|processing'))" }) x 2,
		sub { "SELECT idemq.retry(one_of('$queue', '.'))" },
		sub { "SELECT idemq.redrive('$queue', 3)" },
		sub { 'SELECT idemq.reap(' . pick("'q'", "'r'", '') . ')' },
		sub { "SELECT id FROM idemq.jobs WHERE finished_at IS NULL ORDER BY random() LIMIT 3 FOR "
			  . pick('KEY SHARE', 'SHARE', 'NO KEY UPDATE', 'UPDATE') . ' SKIP LOCKED' },
		sub { "UPDATE idemq.jobs SET priority = " . int(rand(10)) . " WHERE id = (SELECT one_of('$queue', 'pending'))" },
		sub { "DELETE FROM $held" },
		sub { 'SELECT pg_sleep(0.002)' });

	return pick(@menu)->() . ";\n";
}

# What client $c does, as a script for psql.
sub script
{
	my ($c) = @_;
	my $script = "SET statement_timeout = '30s'; SELECT setseed(" . rand() . ");\n";

	for (my $n = 0; $n < $steps;)
	{
		my $many = 1 + int(rand(5));
		my $end = pick('COMMIT', 'COMMIT', 'COMMIT', 'ROLLBACK', 'PREPARE', 'none', 'none', 'none');

		$n += $many;
		if ($end eq 'none')
		{
			$script .= statement($c) foreach 1 .. $many;
			next;
		}
		$script .= 'BEGIN ISOLATION LEVEL ' . pick(('READ COMMITTED') x 3, 'REPEATABLE READ', 'SERIALIZABLE') . ";\n";
		my $savepoint = 0;
		foreach (1 .. $many)
		{
			$script .= statement($c);
			$script .= "SELECT pg_sleep(0.003);\n" if chance(0.2);
			if (!$savepoint && chance(0.2)) { $script .= "SAVEPOINT s;\n"; $savepoint = 1 }
			elsif ($savepoint && chance(0.5)) { $script .= pick('ROLLBACK TO s', 'RELEASE s; SAVEPOINT s') . ";\n" }
		}
		if ($end eq 'PREPARE')
		{
			# An aborted transaction is not prepared, and then there is none.
			# Between: nothing that could wait for it.
			$script .= "PREPARE TRANSACTION 'p$c';\n" . enqueue('q', 1) . ";\n"
			  . pick('SELECT pg_sleep(0.002)', enqueue('r', 1), "SELECT count(*) FROM (SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q', 2)) x") . ";\n"
			  . pick('COMMIT', 'ROLLBACK') . " PREPARED 'p$c';\n";
		}
		else { $script .= "$end;\n" }
	}
	return $script;
}

my @runs;
my $start = time;
foreach my $c (0 .. $clients - 1)
{
	my ($in, $out, $err) = (script($c), '', '');
	my $run = { in => $in, out => '', err => '' };
	$run->{h} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-h', $node->host, '-p', $node->port, 'postgres' ],
		'<', \$run->{in}, '>', \$run->{out}, '2>', \$run->{err}, IPC::Run::timeout(180));
	push @runs, $run;
}
my (%errors, %message);
foreach my $run (@runs)
{
	$run->{h}->finish;
	is($run->{h}->result(0), 0, 'a session came through');
	while ($run->{err} =~ /(?:ERROR|FATAL|PANIC|WARNING):\s+(\w{5}): (.*)/g)
	{
		$errors{$1}++;
		$message{$1} = $2;
	}
}
note "$clients sessions, " . (time - $start) . " s, errors: " . join(', ', map { "$_ x $errors{$_}" } sort keys %errors);

# lost, no job, duplicate, done already; serialization, deadlock; aborted
# transaction and savepoint; prepared or held by a deleted job; NULL id
my %expected = map { $_ => 1 } qw(IQ001 IQ002 IQ003 IQ004 IQ006 40001 40P01 25P02 25P01 3B001 42704 22004);
is_deeply([ map { "$_: $message{$_}" } grep { !$expected{$_} } sort keys %errors ], [],
	'no error but those that are to be expected');

# ---- Quiet: everybody is gone.

sql($node, join(';', 'SELECT 1', map { "ROLLBACK PREPARED '$_'" } split /\n/, sql($node, 'SELECT gid FROM pg_prepared_xacts')));
sql($node, 'SELECT idemq.reap()');
sql($node, 'SELECT pg_sleep(0.2)');
sql($node, 'SELECT idemq.reap()');
note sql($node, "SELECT string_agg(name || ' ' || status || ' ' || n, ', ') FROM
	(SELECT name, status, count(*) AS n FROM idemq.jobs JOIN idemq.queues USING (queue_id) GROUP BY 1, 2 ORDER BY 1, 2) x");
foreach my $queue ('q', 'r')
{
	my $ready = sql($node, "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id)
		WHERE name = '$queue' AND status IN ('pending', 'failed') AND ready_at <= clock_timestamp()
		AND coalesce(expires_at > clock_timestamp(), true)");
	is_sql($node, "WITH c AS (SELECT * FROM idemq.claim('$queue', 1000000, lease => '1 h')),
		h AS (INSERT INTO held_0 SELECT id, token FROM c) SELECT count(*) FROM c", $ready,
		"queue $queue: all that is ready is claimed by one call");
}
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'processing' AND token IS NULL", 0, 'tokens');

# ---- Drained: retry what waits, commit what is held.

for (my $round = 0; $round < 50; $round++)
{
	sql($node, "SELECT idemq.retry(id) FROM idemq.jobs WHERE status IN ('pending', 'failed');
		SELECT * FROM idemq.claim_any(ARRAY['q', 'r'], 1000000, lease => '1 h');
		BEGIN;
		INSERT INTO effects SELECT id FROM (SELECT id, idemq.try_commit(id, token) AS o FROM idemq.jobs
			WHERE status = 'processing') x WHERE o = 'committed';
		COMMIT");
	last if sql($node, 'SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL') eq '0';
}
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status NOT IN ('completed', 'dead', 'cancelled')
	OR finished_at IS NULL OR ready_at IS NOT NULL", 0, 'every job ended');
is_sql($node, "SELECT count(*) FROM (SELECT id FROM idemq.jobs j LEFT JOIN effects e ON e.job = j.id
	WHERE status = 'completed' GROUP BY id HAVING count(e.job) <> 1) x", 0, 'the effect of each completed job happened once');
is_sql($node, "SELECT count(*) FROM effects e LEFT JOIN idemq.jobs j ON j.id = e.job
	WHERE status IS DISTINCT FROM 'completed'", 0, 'no other effect happened');
is_sql($node, 'SELECT count(*) FROM idemq.jobs WHERE attempt > max_attempts', 0, 'no attempt too many');
is_sql($node, "SELECT count(*) FROM (SELECT job_id FROM idemq.attempts a JOIN idemq.jobs j ON j.id = a.job_id
	WHERE a.token > j.token OR a.attempt > a.attempt + 1) x", 0, 'no token of history is greater than the last');
is_sql($node, 'SELECT count(*) FROM idemq.claim_any(ARRAY[\'q\', \'r\'], 1000000)', 0, 'nothing is left');
cmp_ok(sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'completed'"), '>', 50, 'there was something to do');

$node->stop;
done_testing();
