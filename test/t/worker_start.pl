# A database that is dropped while a worker is on its way there: none comes to where it was.
# Skipped where there is no gdb.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

# debug1: as in worker.pl.
my $node = new_server('starts', 'idemq.worker' => 'on', autovacuum => 'off', log_min_messages => 'debug1',
	log_statement => 'none', shared_buffers => '64MB');

plan skip_all => 'no gdb that may attach' unless has_debugger($node);

worker_pid($node);
my $launcher = sql($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idemq launcher'");
my $session = session($node);
my $pid = $session->query_safe('SELECT pg_backend_pid()');
my $came_and_went = qr/starting background worker process "idemq worker"[\s\S]*background worker "idemq worker" \(PID \d+\) exited/;
my ($postmaster) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');
my ($log, $stop);

sub log_end { return -s $node->logfile }

# What the server has said since, of a database that is not there.
sub missed { return join '', grep { / 3D000 / } split /^/m, slurp_file($node->logfile, $log) }

# Begins DROP DATABASE in the session, which gets to where it waits for another process.
sub begin_drop
{
	my ($db, $waits) = @_;

	$session->query_until(qr/sent/, "\\echo sent\nDROP DATABASE $db;\n");
	wait_until($node, "SELECT query = 'DROP DATABASE $db;' AND (state = 'idle' OR $waits) FROM pg_stat_activity WHERE pid = $pid");
	is_sql($node, "SELECT state FROM pg_stat_activity WHERE pid = $pid", 'active', "$db: the command waits");
	return;
}

# ---- The launcher has noted the worker, and is about to ask the postmaster for it

# The command has sent the worker away before; a stopped launcher holds up its end, a stopped postmaster the worker's start.
$stop = stop_at($launcher, 'RegisterDynamicBackgroundWorker');
$log = log_end();
sql($node, 'CREATE DATABASE noted');
$stop->();
begin_drop('noted', "wait_event = 'ProcSignalBarrier'");
kill 'STOP', $postmaster;
$stop->();
is($session->query_safe("SELECT count(*) FROM pg_database WHERE datname = 'noted'"), 0, 'dropped');
kill 'CONT', $postmaster;
$node->wait_for_log($came_and_went, $log);
is(missed(), '', 'the worker comes, and goes without a word');

# ---- The worker has attached to the board, and is not a session yet

# The next process that the postmaster starts stops where it would connect to its database.
sub stop_next_process
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/next";
	my $until = sub {
		foreach (1 .. 1800)
		{
			return if -e "$file.$_[0]";
			select undef, undef, undef, 0.1;
		}
		die "gdb did not get there ($_[0])";
	};
	my $out = '';
	my $gdb = IPC::Run::start([ 'gdb', '-nx', '-batch', '-p', $postmaster,
			'-ex', 'handle SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGTERM nostop noprint pass',
			'-ex', 'set follow-fork-mode child', '-ex', 'break BackgroundWorkerInitializeConnectionByOid',
			'-ex', "shell touch $file.set", '-ex', 'continue',
			'-ex', "shell touch $file.hit; while [ ! -e $file.go ]; do sleep 0.01; done", '-ex', 'delete', '-ex', 'detach' ],
		'<', \undef, '>&', \$out);

	$until->('set');
	return ($until, sub { append_to_file("$file.go", ''); $gdb->finish });
}

$stop = stop_at($launcher, 'RegisterDynamicBackgroundWorker');
$log = log_end();
sql($node, 'CREATE DATABASE begun');
$stop->();
my ($until, $go_on) = stop_next_process();
$stop->();
$until->('hit');
begin_drop('begun', "wait_event_type = 'Extension'");
$go_on->();
is($session->query_safe("SELECT count(*) FROM pg_database WHERE datname = 'begun'"), 0, 'dropped');
$node->wait_for_log($came_and_went, $log);
is(missed(), '', 'after the worker had gone');

# ---- What came of it

sql($node, 'CREATE DATABASE next');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q')", 'next');
worker_pid($node, 'next');
is_sql($node, "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_stat_activity WHERE backend_type = 'idemq worker'",
	'next postgres', 'the others have theirs');

$session->quit;
done_testing();
