# What the stress tests have their sessions do: random statements on queues q and
# r, in random transactions.  The choices follow perl's seed.
package Stress;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use POSIX 'WNOHANG';
use PostgreSQL::Test::Utils;
use Time::HiRes 'sleep';

our @EXPORT = qw(pick chance setup_sql drain_sql script start_script is_running end_script error_states);

my $started = 0;

sub pick { return $_[ int(rand(@_)) ]; }
sub chance { return rand() < $_[0]; }

# Queues, and tables that say what has happened: accepted has every job that was
# enqueued, effects the effect of each commit, held_N the claims of session N; each
# is written by the transaction of which it tells.
sub setup_sql
{
	my ($clients) = @_;

	return join "\n", q{
	SELECT idemq.drop_queue('q');
	SELECT idemq.create_queue('q', lease => '1 h', retry_base => '1 ms', max_attempts => 5, idempotency_window => '0');
	SELECT idemq.create_queue('r', lease => '20 ms', retry_base => '1 ms', retry_jitter => 1, max_attempts => 8);
	CREATE TABLE accepted (job bigint);
	CREATE TABLE effects (job bigint);
	CREATE FUNCTION one_of(q text, s text) RETURNS bigint LANGUAGE sql AS
		$$ SELECT id FROM (SELECT id FROM idemq.jobs JOIN idemq.queues USING (queue_id)
			WHERE name = q AND status::text ~ s ORDER BY finished_at DESC NULLS FIRST, id LIMIT 40) x ORDER BY random() LIMIT 1 $$;
	}, map { "CREATE TABLE held_$_ (id bigint, token bigint);" } 0 .. $clients - 1;
}

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
	return "INSERT INTO accepted SELECT id FROM idemq.enqueue("
	  . join(', ', "'$queue'", "to_jsonb(repeat('x', " . int(rand(200)) . '))', @more) . ") WHERE outcome = 'accepted'";
}

# One statement of session $c.
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
		sub { "INSERT INTO accepted SELECT id FROM idemq.enqueue_many('$queue', array_fill('1'::jsonb, ARRAY[" . int(rand(20)) . ']))' },
		sub { "WITH j AS (INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
			SELECT queue_id, now(), " . int(rand(10)) . ", 3, 'pending', now() - interval '1 min' * random(), '\"hand\"'
			FROM idemq.queues WHERE name = '$queue' RETURNING id) INSERT INTO accepted SELECT id FROM j" },
		(sub { "INSERT INTO $held SELECT id, token FROM idemq.claim('$queue', " . (1 + int(rand(20))) . "$lease)" }) x 4,
		sub { "INSERT INTO $held SELECT id, token FROM idemq.claim_any(ARRAY['q', 'r'], " . (1 + int(rand(5))) . ')' },
		sub { "INSERT INTO $held SELECT id, token FROM idemq.claim_job(one_of('$queue', 'pending|retrying')) WHERE outcome::text ~ 'claimed'" },
		sub { "INSERT INTO $held SELECT id, token FROM idemq.claim('$queue', 3, attach => true)" },
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
		(sub { "SELECT idemq.cancel(one_of('$queue', 'pending|retrying|running'))" }) x 2,
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

# What stands between transactions: waits, and ends of sessions.
sub alone
{
	my ($c) = @_;

	return pick(
		"CALL idemq.wait('" . pick('q', 'r') . "', '" . (10 + int(rand(300))) . " ms');\n" . statement($c),
		"CALL idemq.wait_any(ARRAY['r', 'q'], '" . (10 + int(rand(300))) . " ms');\n" . statement($c),
		"CALL idemq.wait_result(one_of('" . pick('q', 'r') . "', 'running'), '20 ms');\n",
		"DISCARD ALL;\n",
		"\\connect -\nSET statement_timeout = '10min';\n");
}

# A random transaction of session $c, or statements without one.
sub transaction
{
	my ($c, $waits, $many) = @_;
	my $end = pick('COMMIT', 'COMMIT', 'COMMIT', 'ROLLBACK', 'PREPARE', 'none', 'none', 'none');
	my $script = '';

	if ($end eq 'none')
	{
		$script .= $waits && chance(0.2) ? alone($c) : statement($c) foreach 1 .. $many;
		return $script;
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
	return "$script$end;\n" if $end ne 'PREPARE';
	# An aborted transaction is not prepared, and then there is none.
	# Between: nothing that could wait for it.
	return $script . "PREPARE TRANSACTION 'p$c';\n" . enqueue('q', 1) . ";\n"
	  . pick('SELECT pg_sleep(0.002)', enqueue('r', 1), "SELECT count(*) FROM (SELECT idemq.fail(id, token, retry_in => '0') FROM idemq.claim('q', 2)) x") . ";\n"
	  . pick('COMMIT', 'ROLLBACK') . " PREPARED 'p$c';\n";
}

# What session $c does, as a script for psql: so many statements, or a few more.
sub script
{
	my ($c, $steps, %params) = @_;
	my $script = "SET statement_timeout = '10min'; SELECT setseed(" . rand() . ");\n";

	for (my $n = 0; $n < $steps;)
	{
		my $many = 1 + int(rand(5));

		$n += $many;
		$script .= transaction($c, $params{waits}, $many);
	}
	return $script;
}

# Starts a session that runs a script; answers what is_running and end_script take.
sub start_script
{
	my ($node, $script) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/script." . ++$started;

	append_to_file("$file.sql", $script);
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		open STDOUT, '>', '/dev/null' or die "/dev/null: $!";
		open STDERR, '>', "$file.err" or die "$file.err: $!";
		exec 'psql', '-XAtq', '-v', 'VERBOSITY=verbose', '-f', "$file.sql", '-h', $node->host, '-p', $node->port, 'postgres'
		  or die "psql: $!";
	}
	return { err => "$file.err", pid => $pid };
}

sub is_running
{
	my ($run) = @_;

	$run->{status} = $? if !defined $run->{status} && waitpid($run->{pid}, WNOHANG) != 0;
	return !defined $run->{status};
}

# Waits for the end of a session, seconds at most, and answers its exit status.
sub end_script
{
	my ($run, $seconds) = @_;

	for (my $n = 0; is_running($run); $n++)
	{
		kill 'KILL', $run->{pid} if $n == 20 * $seconds;
		sleep 0.05;
	}
	return $run->{status};
}

# The errors of finished sessions: a message for each SQLSTATE that is not to be
# expected, and how often each state came.
sub error_states
{
	my ($runs, @more) = @_;
	# lost, no job, duplicate, done already; serialization, deadlock; aborted
	# transaction and savepoint; prepared or held by a deleted job; NULL id
	my %expected = map { $_ => 1 } qw(IQ001 IQ002 IQ003 IQ004 IQ006 40001 40P01 25P02 25P01 3B001 42704 22004 0A000), @more;
	my (%count, @unexpected);

	foreach my $run (@$runs)
	{
		my $errors = slurp_file($run->{err});

		while ($errors =~ /(?:ERROR|FATAL|PANIC|WARNING):\s+(\w{5}): (.*)/g)
		{
			push @unexpected, "$1: $2" if !$expected{$1} && !$count{$1};
			$count{$1}++;
		}
	}
	return (\@unexpected, join(', ', map { "$_ x $count{$_}" } sort keys %count));
}

# Has everything done that waits, and commits what is held.
sub drain_sql
{
	return "SELECT idemq.retry(id) FROM idemq.jobs WHERE status IN ('pending', 'retrying');
		SELECT * FROM idemq.claim_any(ARRAY['q', 'r'], 1000000, lease => '1 h');
		BEGIN;
		INSERT INTO effects SELECT id FROM (SELECT id, idemq.try_commit(id, token) AS o FROM idemq.jobs
			WHERE status = 'running') x WHERE o = 'committed';
		COMMIT";
}

1;
