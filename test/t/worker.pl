# The life of launcher and workers: where there is one, when it comes, goes and
# comes back, and whom it is not in the way of.  Commands that give up after seconds, and databases that come and go by the
# dozen: worker_slow.pl.
#
# expects in log: was terminated by signal 9
# stops: idemq_worker_found_nothing
# takes long
# at least 140 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# PostgreSQL before 18 panics ("could not fsync file "(null)"") where a queue of requests for fsync is full, debug1 says
# so, and saying so lets a session close the file, for a DROP DATABASE elsewhere: the
# checkpointer's queue has an entry for each buffer.
my $node = new_server('life', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', log_min_messages => 'debug1', log_statement => 'none', max_worker_processes => 20,
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

# Waits for another worker than a former one.
sub next_worker_of
{
	my ($db, $former, $server) = ($_[0], $_[1], $_[2] // $node);

	wait_until($server, "SELECT count(*) = 1 AND min(pid) <> $former $workers AND datname = '$db'");
	return sql($server, "SELECT min(pid) $workers AND datname = '$db'");
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

	return $log =~ s/.*(?:LOG:  background worker.*exited with exit code 1|FATAL:  terminating autovacuum process due to administrator command|FATAL:  terminating background worker "idemq \w+" due to administrator command|57P01 worker\.pl FATAL:  terminating connection due to administrator command|FATAL:  the database system is (?:starting up|shutting down))\n//gr
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

# ---- What an operator sees

works('postgres', 'CREATE EXTENSION');
is_soon($node, "SELECT backend_type, application_name, datname, state, query, wait_event_type FROM pg_stat_activity
	WHERE backend_type LIKE 'idemq%' AND wait_event IS NOT NULL ORDER BY 1",
	"idemq launcher|idemq launcher||idle||Extension\nidemq worker|idemq worker|postgres|idle||Extension", 'with nothing to do it sleeps: pg_stat_activity');

# ---- Start

create_database($_) foreach qw(a closed);
sql($node, 'CREATE DATABASE plain');
sql($node, 'ALTER DATABASE closed ALLOW_CONNECTIONS false');
my $stopping = log_end($node);
# The launcher may still start workers for the new databases, so count only what this start logs.
$node->stop;
my $log = log_end($node);
$node->start;
worker_of($_) foreach qw(postgres a);
wait_logged($node, qr/(?:starting background worker process "idemq worker"[\s\S]*){3}background worker "idemq worker" \(PID \d+\) exited with exit code 0/, $log);
works($_, "found at start: $_") foreach qw(postgres a);
is(scalar(() = said($log, qr/starting background worker process "idemq worker"/) =~ /\n/g), 3, 'each open database is looked into, once');
is_sql($node, "SELECT count(*) $workers", 2, 'none in a database without idemq, none in one that is closed');
unlike(calm(said($stopping)), qr/ERROR|WARNING|FATAL|idemq/,
	'start and stop say nothing but what PostgreSQL says of every worker');

# ---- CREATE EXTENSION, DROP EXTENSION

my $session = session($node, 'plain');
$session->query_safe("BEGIN; $extension");
$session->query_safe('ROLLBACK');
is_left('plain', 'CREATE EXTENSION rolled back');
$session->query_safe("BEGIN; $extension; SELECT idemq.enqueue('q', '1')");
$session->query_safe('COMMIT');
works('plain', 'CREATE EXTENSION in a transaction');

$session->query_safe('BEGIN; DROP EXTENSION idemq');
is($session->query_safe("SELECT count(*) $workers AND datname = 'plain'"), 0, 'DROP EXTENSION: the worker goes first');
$session->query_safe('ROLLBACK');
works('plain', 'DROP EXTENSION rolled back');
$log = log_end($node);
$session->query_safe('DROP EXTENSION idemq');
is_left('plain', 'DROP EXTENSION');
$session->query_safe('CREATE EXTENSION idemq');
worker_of('plain');
$session->query_safe("SELECT idemq.create_queue('q', lease => '1 h')");
works('plain', 'CREATE EXTENSION again');
$session->query_safe("BEGIN; DROP EXTENSION idemq; $extension; COMMIT");
works('plain', 'DROP and CREATE EXTENSION in one transaction');
foreach (1 .. 3)
{
	$session->query_safe("DROP EXTENSION idemq; $extension; SELECT idemq.enqueue('q', '1')");
}
works('plain', 'after three more');
is(calm(said($log)), '', 'nothing of that is in the log');

# Nobody tells the worker before, and so it looks.
sql($node, 'CREATE ROLE owner SUPERUSER');
sql($node, "DROP EXTENSION idemq; SET ROLE owner; $extension", 'plain');
my $pid = worker_of('plain');
{
	my $stop = stop_at($pid, 'idemq_worker_found_nothing');
	sql($node, 'DROP OWNED BY owner', 'plain');
	# It has something to do at the latest after ten seconds.
	advance($node, '1 min');
	$stop->();
	sql($node, 'SET ROLE owner; CREATE EXTENSION idemq', 'plain');
	$stop->();
	is(worker_of('plain'), $pid, 'CREATE EXTENSION while a worker leaves that found none: it stays');
	sql($node, "SELECT idemq.create_queue('q')", 'plain');
	works('plain', 'CREATE EXTENSION while a worker leaves');
}
sql($node, 'DROP OWNED BY owner', 'plain');
advance($node, '1 min');
is_left('plain', 'DROP OWNED');
leave($session);

# ---- Who may not have a database for himself

sql($node, 'CREATE ROLE nobody; CREATE ROLE creator CREATEDB');
$pid = worker_of('a');
is_state($node, "SET ROLE nobody; $_", '42501', "nobody: $_")
  foreach 'DROP DATABASE a', 'DROP DATABASE a WITH (FORCE)', 'CREATE DATABASE b TEMPLATE a', 'ALTER DATABASE a RENAME TO b',
  'ALTER DATABASE a SET TABLESPACE pg_default';
is_state($node, 'SET ROLE creator; CREATE DATABASE b TEMPLATE a', '42501', 'creator: CREATE DATABASE');
is_state($node, "SET ROLE nobody; $_", '42501', "nobody: $_", 'a')
  foreach 'DROP EXTENSION idemq', 'ALTER EXTENSION idemq UPDATE';
is_state($node, "SET ROLE nobody; SELECT pg_terminate_backend($pid)", '42501', 'nobody: pg_terminate_backend');
works('a', 'after all that');
is(worker_of('a'), $pid, 'it was never away');

# ---- Commands that need the database for themselves

sql($node, 'CREATE DATABASE b TEMPLATE a');
works('a', 'CREATE DATABASE ... TEMPLATE');
works('b', 'the copy has its own worker');
is_sql($node, q{SELECT sum(pg_database_size(oid)) > 0 FROM pg_database}, 't', 'sizes');
sql($node, 'ALTER DATABASE b RENAME TO c');
works('c', 'RENAME');
sql($node, 'BEGIN; ALTER DATABASE c RENAME TO d; ALTER DATABASE d RENAME TO e; ALTER DATABASE e RENAME TO f; ALTER DATABASE f RENAME TO g;
	ALTER DATABASE a RENAME TO b; ALTER DATABASE g RENAME TO h; ROLLBACK');
works($_, 'RENAME rolled back') foreach qw(a c);
is_state($node, 'BEGIN; DROP DATABASE c', '25001', 'DROP DATABASE in a transaction block');
works('c', 'and its worker');
sql($node, "SET allow_in_place_tablespaces = on; CREATE TABLESPACE other LOCATION ''");
sql($node, 'ALTER DATABASE c SET TABLESPACE other');
works('c', 'SET TABLESPACE');
sql($node, 'ALTER DATABASE c SET TABLESPACE pg_default; DROP TABLESPACE other');
works('c', 'and back');
sql($node, 'BEGIN; ALTER DATABASE a RENAME TO x; PREPARE TRANSACTION \'x\'');
sql($node, "ROLLBACK PREPARED 'x'");
works('a', 'RENAME in a prepared transaction');

# Busy: a task that sleeps in a user's trigger.
sub keep_busy
{
	my ($db) = @_;

	sql($node, "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3600); RETURN NEW; END';
		CREATE TRIGGER dawdle BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (OLD.status = 'running') EXECUTE FUNCTION dawdle()", $db);
	# meant to expire
	sql($node, "SELECT idemq.enqueue('q', '1'); SELECT count(*) FROM idemq.claim('q', lease => '1 ms')", $db);
	ok($node->poll_query_until('postgres', "SELECT state = 'active' AND query = 'reap on queue q' AND wait_event = 'PgSleep'
		$workers AND datname = '$db'"), "$db: the worker is busy");
	return worker_of($db);
}

keep_busy('c');
sql($node, 'CREATE DATABASE d TEMPLATE c');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'running'", 1,
	'CREATE DATABASE ... TEMPLATE while the worker is busy: its task was undone', 'd');
sql($node, 'DROP DATABASE d');
$log = log_end($node);
sql($node, 'DROP DATABASE c');
is_sql($node, "SELECT count(*) $workers AND datname = 'c'", 0, 'DROP DATABASE while the worker is busy');
create_database('c');
keep_busy('c');
$session = session($node, 'c');
sql($node, 'DROP DATABASE c WITH (FORCE)');
is_sql($node, "SELECT count(*) $workers AND datname = 'c'", 0, 'DROP DATABASE WITH (FORCE)');
eval { leave($session) };
create_database('c');
keep_busy('c');
my $asked = log_end($node);
sql($node, "SELECT pg_terminate_backend(pid) $workers AND datname = 'c'");
is_logged($node, qr/idemq background worker for database "c" exited\n.*DETAIL:  It was asked to/, 'the log says why a busy worker ended', $asked);
sql($node, 'DROP DATABASE c');
foreach (1 .. 3)
{
	create_database('c');
	sql($node, 'DROP DATABASE c');
}
unlike(said($log), qr/FATAL:  database/, 'no worker is started in a database that is dropped');
is_sql($node, "SELECT string_agg(datname, ' ' ORDER BY datname) $workers", 'a postgres', 'workers of the others stay');

# The template of CREATE DATABASE when none is named.
sql($node, $extension, 'template1');
worker_of('template1');
sql($node, 'CREATE DATABASE c');
works('c', 'a copy of template1');
sql($node, 'SET ROLE creator; CREATE DATABASE by_creator');
works('by_creator', 'a copy of template1 by a role that does not own it');
sql($node, 'DROP EXTENSION idemq', 'template1');
sql($node, 'DROP DATABASE by_creator');
sql($node, 'DROP DATABASE c');

# A database that is closed while it has a worker.
create_database('c');
sql($node, 'ALTER DATABASE c ALLOW_CONNECTIONS false');
$log = log_end($node);
sql($node, "SELECT pg_terminate_backend(" . worker_of('c') . ")");
wait_logged($node, qr/"idemq worker" \(PID \d+\) exited with exit code 1/, $log);
works('a', 'the launcher goes on');
unlike(calm(said($log)), qr/FATAL/, 'no worker is started in a database that is closed');
sql($node, 'ALTER DATABASE c ALLOW_CONNECTIONS true');
sql($node, "SELECT idemq.enqueue('q', '1')", 'c');
works('c', 'its next use brings one');
sql($node, 'DROP DATABASE c');

# ---- ALTER EXTENSION, DDL

$session = session($node, 'a');
$pid = worker_of('a');
$session->query_safe('SET client_min_messages = warning; BEGIN; ALTER EXTENSION idemq UPDATE');
is($session->query_safe("SELECT count(*) $workers AND datname = 'a'"), 0, 'ALTER EXTENSION: the worker goes first');
$session->query_safe('LOCK TABLE idemq.jobs, idemq.queues, idemq.attempts; COMMIT');
works('a', 'ALTER EXTENSION');
$session->query_safe('REINDEX TABLE idemq.jobs; VACUUM FULL idemq.jobs; ALTER TABLE idemq.jobs SET (fillfactor = 70)');
works('a', 'DDL');
leave($session);

# ---- Ended from outside

$pid = worker_of('a');
sql($node, "SELECT pg_cancel_backend($pid)");
works('a', 'pg_cancel_backend');
is(worker_of('a'), $pid, 'it is the same worker');
sql($node, "SELECT pg_terminate_backend($pid)");
isnt(next_worker_of('a', $pid), $pid, 'pg_terminate_backend: another one comes');
works('a', 'the next one');
my $launcher = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idemq launcher'";
my $first = sql($node, $launcher);
$pid = worker_of('a');
sql($node, "SELECT pg_terminate_backend($first)");
ok($node->poll_query_until('postgres', "SELECT count(*) = 1 AND min(pid) <> $first FROM ($launcher) l"), 'another launcher comes');
works('a', 'without its launcher');
is(worker_of('a'), $pid, 'the worker stayed');
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type LIKE 'idemq%'");
next_worker_of('a', $pid);
works('a', 'all ended at once');

# ---- idemq.worker

sub set_worker
{
	$node->append_conf('postgresql.conf', "idemq.worker = $_[0]");
	$node->reload;
}

set_worker('off');
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 $workers"), 'idemq.worker = off');
sql($node, 'CREATE DATABASE late');
sql($node, $extension, 'late');
is_sql($node, "SELECT count(*) $workers", 0, 'and none comes');
set_worker('on');
works($_, 'idemq.worker = on') foreach qw(postgres a late);

# ---- Crash, single-user mode, binary upgrade

crash($node, sub { $log = log_end($node) });
works($_, 'after a crash') foreach qw(postgres a);
unlike(calm(said($log)), qr/ERROR|FATAL|WARNING:  idemq/, 'in peace');
$pid = worker_of('a');
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
$log = log_end($node);
kill 'KILL', $pid;
wait_logged($node, qr/all server processes terminated; reinitializing/, $log);
wait_until($node, 'SELECT true');
works($_, 'kill -9 of a worker') foreach qw(postgres a);

$node->stop;
my ($in, $out, $err) = ("DROP EXTENSION idemq\n$extension\nSELECT idemq.enqueue('q', '1')\nCREATE DATABASE single TEMPLATE late\n", '', '');
$in =~ s/; /\n/g;
ok(IPC::Run::run([ 'postgres', '--single', '-D', $node->data_dir, 'a' ], '<', \$in, '>', \$out, '2>', \$err), 'single-user mode');
unlike($out . $err, qr/ERROR|WARNING|FATAL|starting background worker/, 'in peace');
$log = log_end($node);
ok(run_log([ 'pg_ctl', '-w', '-D', $node->data_dir, '-l', $node->logfile, '-o', '-b --cluster-name=life', 'start' ]), 'binary upgrade');
is_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idemq%'", 0, 'no launcher');
sql($node, 'CREATE DATABASE copy TEMPLATE single');
sql($node, 'DROP EXTENSION idemq', 'copy');
sql($node, 'DROP DATABASE copy');
unlike(said($log, qr/idemq/), qr/background worker/, 'none was ever registered');
ok(run_log([ 'pg_ctl', '-w', '-D', $node->data_dir, 'stop' ]), 'end of binary upgrade');
$node->start;
works($_, 'afterwards') foreach qw(a single);

# ---- Standby

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
# Not by the primary's worker.
my $id = sql($node, "SELECT id FROM idemq.enqueue('q', '1')");
stop_worker($node);
sql($node, "SELECT idemq.claim_job($id, lease => '10 min')");
caught_up($node, $standby);
is_sql($standby, "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'idemq%'", 0, 'a standby has none');
is_sql($standby, "SELECT idemq.why($id) <> ''", 't', 'use of idemq there brings none');
stop_at_once($node);
advance($standby, '20 min');
is_sql($standby, "SELECT status FROM idemq.jobs WHERE id = $id", 'running', 'nor is anything taken back, though the lease is over');
$standby->promote;
worker_of('postgres', $standby);
advance($standby, '9 min');
is_sql($standby, "SELECT status FROM idemq.jobs WHERE id = $id", 'running', 'nor right after the promotion');
advance($standby, '1 min');
is_sql($standby, "SELECT status FROM idemq.jobs WHERE id = $id", 'pending', 'promotion: taken back after its lease, counted from the promotion');
works($_, 'promotion', $standby) foreach qw(postgres a late);
$standby->stop;

# ---- max_worker_processes used up: room for the launchers and one worker

my $full = new_server('full', 'idemq.worker' => 'on', max_worker_processes => 3);
worker_of('postgres', $full);
foreach my $db (qw(a b))
{
	sql($full, "CREATE DATABASE $db");
	sql($full, $extension, $db);
}
wait_logged($full, qr/WARNING:  idemq cannot start a background worker: all 3 worker processes \(max_worker_processes\) are in use/);
is_logged($full, qr/HINT:  Raise max_worker_processes/, 'with a hint');
# meant to expire
sql($full, "SELECT c.id FROM idemq.enqueue('q', '1') e, idemq.claim_job(e.id, lease => '1 ms') c", 'b');
ok($full->poll_query_until('b', "SELECT count(*) = 1 FROM idemq.claim('q') WHERE attempt = 2"), 'without a worker a claim takes back');
sql($full, 'DROP EXTENSION idemq');
wait_until($full, "SELECT count(*) = 1 $workers AND datname IN ('a', 'b')");
my ($db) = sql($full, "SELECT datname $workers");
works($db, 'a worker that goes leaves its place to another', $full);
is(scalar(my @warnings = grep { /WARNING: / } split /^/, slurp_file($full->logfile)), 1, 'one warning, though it was tried again');
# The library as it ships, without stop points.
# On the server with room for all workers: on the other one, either database may get the only one.
$full->stop;
shipped($node);
works('a', 'a worker works with the shipped library');
$node->stop;

done_testing();
