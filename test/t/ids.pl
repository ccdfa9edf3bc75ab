# Job ids are never given twice: not after a crash that lost commits, not after
# the promotion of a standby that lags, not in a copy restored from a dump.
# expects in log: was terminated by signal 9
# looks at sessions
# stops: before_setval
# at least 40 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Commits reach the disk by a later flush alone: a crash loses them for certain.  Full
# pages are not, since these would be flushed as they fill.
# The longest wal_writer_delay there is: meant to expire now and then, see lose().
my $node = new_node('ids', 'synchronous_commit' => 'off', 'wal_writer_delay' => '10s', 'full_page_writes' => 'off');
# The extension is made here, since new_server copies one that was there before this server started.
$node->start;
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h')");
my %given;

# Enqueues $count jobs at once; answers their ids, none given before.
sub take
{
	my ($server, $count, $name) = @_;
	my @ids = split /\n/,
	  sql($server, "SELECT id FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[$count]))");

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ grep { $given{$_}++ } @ids ], [], $name);
	return @ids;
}

# Takes 3 ids that are lost with the server: a sequence has 32 in its last record.
sub take_and_lose
{
	my ($name) = @_;

	sql($node, "SELECT count(nextval('idemq.jobs_id_seq')) FROM generate_series(1, 32)");
	return take($node, 3, $name);
}

# Takes ids and brings the server down by $down, which loses them; answers the ids.  Another process may flush in
# between, now and then (the WAL writer, each ten seconds): then once more.
sub lose
{
	my ($name, $down, $lost) = @_;
	my @ids;

	foreach (1 .. 20)
	{
		@ids = take_and_lose($name);
		$down->();
		last if sql($node, "SELECT count(*) FROM idemq.jobs WHERE id = $ids[-1]") == 0;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_lost($node, $ids[-1], $lost);
	return @ids;
}

# Whether the server knows a job.
sub is_lost
{
	my ($server, $id, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sql($server, "SELECT count(*) FROM idemq.jobs WHERE id = $id", 0, $name);
}

# ---- A crash that loses commits

# Beyond int on the first day, so that a column of that type does not wait for the first restart.
my $start = 1_000_000_000_001;
is_deeply([ take($node, 3, 'ids of a new extension') ], [ $start, $start + 1, $start + 2 ], 'begin beyond int');
sql($node, 'SET synchronous_commit = on; SELECT pg_current_xact_id()');
my @lost = lose('ids that no disk has', sub { crash($node) }, 'the crash lost the job');
my ($first) = take($node, 5, 'ids after the crash');
cmp_ok($first, '>', 2e13, 'are the time of day');
cmp_ok($first, '<', 2**53, 'below 2^53');
is_sql($node, "SELECT idemq.commit_once($lost[-1])", 'not_found', 'a lost id is nobody\'s');
is_sql($node, "SELECT idemq.cancel($lost[-1])", 'not_found', 'and cancels nothing');

# What was set after the first crash is lost by the second.
@lost = lose('more ids that no disk has', sub { crash($node) }, 'the second crash lost what followed the first');
take($node, 40, 'ids after two crashes');
is_sql($node, "SELECT idemq.commit_once($lost[-1])", 'not_found', 'an id of the time between is nobody\'s');

# A backend killed: the server starts again by itself.
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
lose('ids before kill -9', sub {
	my $session = session($node);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	my $log = -s $node->logfile;

	kill 'KILL', $pid;
	$session->{run}->finish;
	# Until it has died, the server answers as before.
	$node->wait_for_log(qr/\(PID $pid\) was terminated by signal 9/, $log);
	wait_until($node, 'SELECT true');
}, 'kill -9 lost the job');
take($node, 40, 'ids after kill -9');

# ---- All at once

# One raises the sequence, the others wait for it; a rollback takes nothing back.
$node->restart;
my $opener = session($node);
my @sessions = map { session($node) } 1 .. 3;
$opener->query_safe('BEGIN');
$opener->query_safe("SELECT id FROM idemq.enqueue('q', '1')");
my $rolled_back = $opener->query_safe("SELECT max(id) FROM idemq.jobs");
$given{$rolled_back}++;
my @ids = map { $_->query_safe("SELECT id FROM idemq.enqueue('q', '1')") } @sessions;
is_deeply([ grep { $given{$_}++ } @ids ], [], 'an open transaction keeps nobody waiting');
$opener->query_safe('ROLLBACK');
($first) = take($node, 1, 'ids after the rollback of the first');
cmp_ok($first - $rolled_back, '<', 1000, 'go on: the sequence is raised once');
leave($opener, @sessions);

# Two at once: the one that is about to raise the sequence is awaited, so that it
# does not lower it again below what the other has taken.
{
	$node->restart;
	my ($one, $two) = (session($node), session($node));
	my $pid_two = $two->{backend};
	my $stop = stop_at($one->{backend}, 'before_setval');
	$one->query_until(qr/sent/, "\\echo sent\nSELECT id FROM idemq.enqueue('q', '1');\n");
	$stop->();
	$two->query_until(qr/sent/, "\\echo sent\nSELECT id FROM idemq.enqueue('q', '1');\n");
	ok($node->poll_query_until('postgres', "SELECT wait_event_type = 'Lock' AND wait_event = 'object' FROM pg_stat_activity WHERE pid = $pid_two"),
		'a second session waits for the one that raises the sequence');
	$stop->();
	@ids = sort { $a <=> $b } map { $_->query_safe('SELECT 1') =~ /^(\d{5,})/ } $one, $two;
	is($ids[1] - $ids[0], 1, 'and does not raise it again');
	$given{$_}++ foreach @ids;
	leave($one, $two);
}

is_state($node, "BEGIN READ ONLY; SELECT idemq.enqueue('q', '1')", '25006', 'a read-only transaction takes none');

# ---- Promotion of a standby that lags

$node->append_conf('postgresql.conf', 'synchronous_commit = on');
$node->restart;
take($node, 2, 'ids of the primary');
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('ids_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
caught_up($node, $standby);
$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
$standby->reload;
wait_until($node, 'SELECT count(*) = 0 FROM pg_stat_replication');
@lost = take($node, 100, 'ids that the standby has not heard of');
my $behind = session($standby);
is($behind->query("SELECT status FROM idemq.job($lost[-1])"), '', 'a session of the standby');
is($behind->query('SELECT pg_is_in_recovery()'), 't', 'which takes no id yet');
$node->stop('immediate');
$standby->promote;
wait_until($standby, 'SELECT NOT pg_is_in_recovery()');
is_lost($standby, $lost[-1], 'the promotion lost the job');
my $own = $behind->query_safe("SELECT id FROM idemq.enqueue('q', '1')");
ok(!$given{$own}++, 'a session from before the promotion takes a new id');
take($standby, 2, 'ids after the promotion');
is_sql($standby, "SELECT idemq.commit_once($lost[-1])", 'not_found', 'an id of the lost primary is nobody\'s');
leave($behind);

# ---- A dump that is older than the ids

my $file = "$PostgreSQL::Test::Utils::tmp_check/ids.dump";
my @at = ('-h', $standby->host, '-p', $standby->port);
sql($standby, 'CREATE DATABASE small');
sql($standby, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q')", 'small');
is_sql($standby, "SELECT id FROM idemq.enqueue('q', '1')", $start, 'a new extension starts beyond int', 'small');
command_ok([ 'pg_dump', @at, '-Fc', '-f', $file, 'small' ], 'pg_dump');
is_sql($standby, "SELECT id FROM idemq.enqueue('q', '2')", $start + 1, 'an id after the dump', 'small');
sql($standby, 'DROP DATABASE small');
sql($standby, 'CREATE DATABASE small');
command_ok([ 'pg_restore', '-e', @at, '-d', 'small', $file ], 'restored under the same name');
$first = sql($standby, "SELECT id FROM idemq.enqueue('q', '2')", 'small');
cmp_ok($first, '>', 2e13, 'the copy knows that it is one');
is_sql($standby, "SELECT idemq.commit_once($start + 1)", 'not_found', 'an id from after the dump is nobody\'s', 'small');
is_sql($standby, "SELECT id - $first FROM idemq.enqueue('q', '2')", 1, 'the next follows it', 'small');

# Rows that came from elsewhere, without the sequence.
sql($standby, 'CREATE DATABASE copied');
sql($standby, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q');
	INSERT INTO idemq.jobs (id, queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	SELECT 1, queue_id, now(), 4, 1, 'pending', now(), '1' FROM idemq.queues", 'copied');
is_sql($standby, "SELECT id > 2e13 FROM idemq.enqueue('q', '2')", 't', 'ids beside rows of another server', 'copied');
is_sql($standby, 'SELECT * FROM idemq.check()', '', 'all is well');

# The library as it ships, without stop points.
shipped($standby);
is_sql($standby, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$standby->stop;
done_testing();
