# A database that is dropped while a worker is on its way there: none comes to where it was.
# at least 9 assertions
# stops: launcher_before_start worker_before_connect

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no stop points in the library' unless has_stops();

# debug1: as in worker.pl.
my $node = new_server('starts', 'idemq.worker' => 'on', autovacuum => 'off', log_min_messages => 'debug1',
	log_statement => 'none', shared_buffers => '64MB');

worker_pid($node);
my $launcher = sql($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idemq launcher'");
my $session = session($node);
my $pid = $session->{backend};
my $came_and_went = qr/starting background worker process "idemq worker"[\s\S]*background worker "idemq worker" \(PID \d+\) exited/;
my ($postmaster) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');
my ($log, $stop);

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
$stop = stop_at($launcher, 'launcher_before_start');
$log = log_end($node);
sql($node, 'CREATE DATABASE noted');
$stop->();
begin_drop('noted', "wait_event = 'ProcSignalBarrier'");
kill 'STOP', $postmaster;
$stop->();
is($session->query_safe("SELECT count(*) FROM pg_database WHERE datname = 'noted'"), 0, 'dropped');
kill 'CONT', $postmaster;
wait_logged($node, $came_and_went, $log);
is(missed(), '', 'the worker comes, and goes without a word');

# ---- The worker has attached to the worker registry, and is not a session yet

$stop = stop_at($launcher, 'launcher_before_start');
$log = log_end($node);
sql($node, 'CREATE DATABASE begun');
$stop->();
# The next worker stops where it would connect to its database.
my $connecting = stop_at($node, 'worker_before_connect');
$stop->();
$connecting->();
begin_drop('begun', "wait_event_type = 'Extension'");
$connecting->();
is($session->query_safe("SELECT count(*) FROM pg_database WHERE datname = 'begun'"), 0, 'dropped');
wait_logged($node, $came_and_went, $log);
is(missed(), '', 'after the worker had gone');

# ---- What came of it

sub others_have_theirs
{
	my ($db) = @_;

	sql($node, "CREATE DATABASE $db");
	sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q')", $db);
	worker_pid($node, $db);
	is_sql($node, "SELECT string_agg(datname, ' ' ORDER BY datname) FROM pg_stat_activity WHERE backend_type = 'idemq worker'",
		"$db postgres", 'the others have theirs');
	return;
}
others_have_theirs('next');
leave($session);

# With the shipped library: a database that is dropped with its worker, and another one.
shipped($node);
worker_pid($node, 'next');
$log = log_end($node);
sql($node, 'DROP DATABASE next');
is(missed(), '', 'a worker leaves its database without a word');
others_have_theirs('last');
$node->stop;
done_testing();
