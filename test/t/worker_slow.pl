# Workers, and commands that need the database for themselves: those that give up after seconds, and dozens of databases
# and extensions that come and go.  The rest is in worker.pl.
# slow: PostgreSQL waits five seconds for a session that does not leave, and databases come and go by the dozen
# at least 18 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

# PostgreSQL before 18 panics ("could not fsync file "(null)"") where a queue of requests for fsync is full, debug1 says
# so, and saying so lets a session close the file, for a DROP DATABASE elsewhere: the
# checkpointer's queue has an entry for each buffer.
my $node = new_server('life', 'idemq.worker' => 'on', log_min_messages => 'debug1', log_statement => 'none', max_worker_processes => 20,
	# An autovacuum worker that comes upon a dropped database says the same as one of ours would.
	autovacuum => 'off', shared_buffers => '64MB');
my $workers = "FROM pg_stat_activity WHERE backend_type = 'idemq worker'";

# Waits until a database has one worker, and no other; answers its pid.
sub worker_of
{
	my ($db, $server) = ($_[0], $_[1] // $node);

	wait_until($server, "SELECT count(*) = 1 $workers AND datname = '$db'");
	return sql($server, "SELECT min(pid) $workers AND datname = '$db'");
}

# A database has no worker any more: one may be looking still whether there is idemq.
sub is_left
{
	my ($db, $name) = @_;

	return ok($node->poll_query_until('postgres', "SELECT count(*) = 0 $workers AND datname = '$db'"), $name);
}

# A database's worker takes back a lease, which no session here does.  In one psql: there are dozens of these.
sub works
{
	my ($db, $name, $server) = ($_[0], $_[1], $_[2] // $node);
	# meant to expire
	my $claim = "SELECT count(*) FROM idemq.enqueue('q', '1') e, idemq.claim_job(e.id, lease => '1 ms') c";
	my $await = 'DO $$ DECLARE job bigint := (SELECT max(id) FROM idemq.jobs); BEGIN
		FOR i IN 1 .. 18000 LOOP
			IF (SELECT status = \'pending\' FROM idemq.jobs WHERE id = job) THEN RETURN; END IF;
			COMMIT;
			PERFORM pg_sleep(0.01);
		END LOOP;
		RAISE \'never\';
	END $$';

	# Before its use, which would bring one.
	worker_of($db, $server);
	ok(eval { sql($server, "$claim; $await", $db); 1 }, "$name: works") || diag($@);
	is_sql($server, "SELECT count(*) $workers AND datname = '$db'", 1, "$name: one worker");
}

# What the server has said since a place in its log; of what concerns an operator, or matching.
# Without what PostgreSQL says of a worker that had to be ended in the midst of a task, and of a session of ours that is
# about to end by itself, and without the warning of a worker that takes more than 5 s to leave, on a busy machine: the
# command itself fails if it stays.  What idemq's workers say at each start and end is for test prometheus.
sub calm
{
	my ($log) = @_;

	return $log =~ s/.*(?:LOG:  background worker.*exited with exit code 1|FATAL:  terminating autovacuum process due to administrator command|FATAL:  terminating background worker "idemq \w+" due to administrator command|57P01 worker_slow\.pl FATAL:  terminating connection due to administrator command|FATAL:  the database system is (?:starting up|shutting down))\n//gr
	  =~ s/.*(?:CONTEXT:  idemq worker, maintenance task|WARNING:  idemq's background worker for this database \(PID \d+\) has not exited).*\n//gr;
}

sub said
{
	my ($from, $what, $server) = ($_[0], $_[1] // qr/ (?:LOG|WARNING|ERROR|FATAL|PANIC): /, $_[2] // $node);

	return join '', grep { /$what/ && !/listening on|LOG:  checkpoints? |WARNING:  idemq\.test_clock is on|LOG:  idemq (?:background worker for database .* (?:started|exited)|is starting recovery|completed recovery)/ } split /^/, slurp_file($server->logfile, $from);
}

my $extension = "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h')";

sub create_database
{
	sql($node, "CREATE DATABASE $_[0]");
	sql($node, $extension, $_[0]);
	return worker_of($_[0]);
}

create_database($_) foreach qw(a c);

# ---- A command that cannot have the database

# A worker that is stopped cannot leave: the command's error names it.
my $pid = worker_of('c');
kill 'STOP', $pid;
{
	my $stderr;
	$node->psql('postgres', '\\set VERBOSITY verbose
		ALTER DATABASE c RENAME TO d', stderr => \$stderr);
	like($stderr, qr/ERROR:  55006: idemq's background worker .*PID $pid\) has not exited/, 'a stopped worker is named');
	like($stderr, qr/HINT: .*probably been stopped.*kill -CONT $pid/, 'with what to do');
}
kill 'CONT', $pid;
works('c', 'the stopped worker goes on, or another one');
my $session = session($node, 'c');
is_state($node, 'DROP DATABASE c', '55006', 'DROP DATABASE with another session');
works('c', 'and its worker');
leave($session);

# ---- CREATE EXTENSION and DROP EXTENSION, twenty times

$session = session($node, 'a');
my $log = log_end($node);
foreach (1 .. 20)
{
	$session->query_safe("DROP EXTENSION idemq; $extension; SELECT idemq.enqueue('q', '1')");
}
works('a', 'after twenty more');
is(calm(said($log)), '', 'nothing of that is in the log');
leave($session);

# ---- Databases that come and go

sql($node, 'DROP DATABASE c');
$log = log_end($node);
foreach (1 .. 10)
{
	create_database('c');
	sql($node, 'DROP DATABASE c');
}
unlike(said($log), qr/FATAL:  database/, 'no worker is started in a database that is dropped');
is_sql($node, "SELECT string_agg(datname, ' ' ORDER BY datname) $workers", 'a postgres', 'workers of the others stay');

# Several at a time.
$log = log_end($node);
my @children = map {
	my $name = "several$_";
	my @round = map { ('-c', $_) } "CREATE DATABASE $name", "\\c $name", 'CREATE EXTENSION idemq', "SELECT idemq.create_queue('q')",
	  "SELECT idemq.enqueue('q', '1', delay => '10 ms')", 'DROP EXTENSION idemq CASCADE', 'CREATE EXTENSION idemq', '\\c postgres',
	  "CREATE DATABASE ${name}b TEMPLATE $name", "ALTER DATABASE $name RENAME TO ${name}c", "DROP DATABASE ${name}b", "DROP DATABASE ${name}c";
	IPC::Run::start([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port, '-U', 'postgres', (@round) x 10, 'postgres' ],
		'<', \undef, '>', \my $out, '2>', \my $err)
} (1 .. 3);
ok($_->finish, 'databases that come and go') foreach @children;
works('a', 'meanwhile');
is(calm(said($log, qr/ (?:WARNING|ERROR|FATAL|PANIC): |terminated by signal/)), '', 'in peace');

$node->stop;
done_testing();
