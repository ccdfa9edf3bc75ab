# Answers about what others have committed wait for the synchronous standby, too.
use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# A receiver that is stopped for long is not given up.
my $node = new_server('primary', max_connections => 40, wal_sender_timeout => 0);
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
# It answers new WAL, and otherwise nothing.
$standby->append_conf('postgresql.conf', "wal_receiver_status_interval = '1h'");
$standby->start;

# The mean time of a duplicate's answer, in ms.
sub duplicate_time
{
	my $start = time;
	sql($node, "DO \$\$BEGIN FOR i IN 1 .. 500 LOOP PERFORM idemq.enqueue('q', '1', key => 'known'); COMMIT; END LOOP; END\$\$");
	return (time - $start) * 1000 / 500;
}
sql($node, "SELECT idemq.enqueue('q', '1', key => 'known')");
# Somebody writes all the time, so that the standby never has what was just flushed.
sub busy_duplicate_time
{
	my $writer = session($node);

	$writer->query_until(qr/sent/, "SET synchronous_commit = local;\n\\echo sent\n"
		  . "DO \$\$BEGIN LOOP PERFORM idemq.enqueue('q', '1', key => 'writer', on_duplicate => 'replace'); COMMIT; END LOOP; END\$\$;\n");
	my $ms = duplicate_time();
	sql($node, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%writer%' AND pid <> pg_backend_pid()");
	$writer->query('SELECT');
	$writer->quit;
	return $ms;
}
my ($without, $busy_without) = (duplicate_time(), busy_duplicate_time());
$node->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'");
$node->reload;
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'");
note sprintf 'figure: a duplicate: %.3f ms without a synchronous standby, %.3f ms with one that has it; beside a writer %.3f ms and %.3f ms',
  $without, duplicate_time(), $busy_without, busy_duplicate_time();

my ($done, $token) = split /\|/, sql($node, "SELECT c.id, c.token FROM idemq.enqueue('q', '1', key => 'done') e, idemq.claim_job(e.id) c");
is_sql($node, "SELECT outcome FROM idemq.enqueue('q', '1', key => 'done')", 'duplicate', 'a standby that has all: no wait');

# A standby that has all, and was made synchronous after it said so, is asked: by itself it says nothing for an hour.
foreach my $round (1 .. 3)
{
	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	wait_until($node, "SELECT sync_state = 'async' FROM pg_stat_replication");
	sql($node, "SELECT idemq.enqueue('q', '1', key => 'round $round')");
	wait_until($node, 'SELECT flush_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication');
	$node->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'");
	$node->reload;
	wait_until($node, "SELECT sync_state = 'sync' FROM pg_stat_replication");
	my $session = session($node);
	my $start = time;
	is($session->query_safe("SELECT outcome FROM idemq.enqueue('q', '1', key => 'round $round')"), 'duplicate', 'what a standby had before it was synchronous');
	cmp_ok(time - $start, '<', 60, 'it is asked for that at once');
	$session->query("SET statement_timeout = '100 ms'");
	$start = time;
	$session->query('SELECT pg_sleep(60)');
	cmp_ok(time - $start, '<', 30, 'who has waited can be cancelled after it');
	$session->quit;
}

# Commits wait for it from when the checkpointer knows of that.
sql($node, 'CHECKPOINT');

# The standby hears nothing any more.
my $receiver = sql($standby, "SELECT pid FROM pg_stat_wal_receiver");
kill 'STOP', $receiver or die;

# A session that has sent SQL, and waits for the standby in it.
sub waiting
{
	my ($sql) = @_;
	my $session = session($node);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\n$sql;\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'SyncRep'");
	return { session => $session, pid => $pid };
}

# Cuts a session's wait off, and returns what it answered.
sub cut
{
	my ($waiter) = @_;

	sql($node, "SELECT pg_cancel_backend($waiter->{pid})");
	my $answer = answer($waiter);
	$waiter->{session}->quit;
	return $answer;
}

# Committed here, and not on the standby.
cut(waiting("SELECT idemq.enqueue('q', '1', key => 'new')"));
cut(waiting("SELECT idemq.commit($done, $token)"));
cut(waiting("SELECT idemq.once('s', 'k', '1 h')"));
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $done", 'completed', 'a commit whose wait was cut off is visible');

my %call = (
	"SELECT outcome FROM idemq.enqueue('q', '1', key => 'new')" => qr/duplicate/,
	"SELECT count(*) FROM idemq.enqueue_many('q', ARRAY['1', '1']::jsonb[], keys => ARRAY['new', 'known'])" => qr/2/,
	"SELECT idemq.enqueue('q', '1', key => 'new', on_duplicate => 'error')" => qr/IQ004/,
	"SELECT outcome FROM idemq.acquire('q', 'done')" => qr/completed/,
	"SELECT outcome FROM idemq.claim_job($done)" => qr/completed/,
	"SELECT idemq.commit_once($done)" => qr/already_committed/,
	"SELECT idemq.commit($done, $token)" => qr/IQ006/,
	"SELECT idemq.try_commit($done, $token)" => qr/already_committed/,
	"SELECT outcome FROM idemq.commit_many(ARRAY[$done], ARRAY[$token]::bigint[])" => qr/already_committed/,
	"SELECT 'first: ' || idemq.once('s', 'k', '1 h')" => qr/first: false/,
);
is(cut(waiting($_)), '40003', "cut off: $_") foreach sort keys %call;
is_sql($node, "SET synchronous_commit = local; SELECT outcome FROM idemq.enqueue('q', '1', key => 'new')", 'duplicate',
	'who does not ask for the standby does not wait');
my %waiter = map { $_ => waiting($_) } keys %call;
kill 'CONT', $receiver;
foreach (sort keys %call)
{
	like(answer($waiter{$_}), $call{$_}, "once the standby has it: $_");
	$waiter{$_}{session}->quit;
}

# Without a standby's name nobody waits.
kill 'STOP', sql($standby, "SELECT pid FROM pg_stat_wal_receiver");
cut(waiting("SELECT idemq.enqueue('q', '1', key => 'newer')"));
# The duplicate is the first to be woken.
my $repeated = waiting("SELECT outcome FROM idemq.enqueue('q', '1', key => 'newer')");
my $left = waiting("SELECT idemq.enqueue('q', '1', key => 'newest')");
my $go = sub { };
# The checkpointer between waking it, and saying that there is nobody to wait for.
if (has_debugger($node))
{
	$go = stop_at(sql($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"),
		qw(SyncRepUpdateSyncStandbysDefined SetLatch SetLatch));
}
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
$go->() foreach 1 .. 5;
wait_until($node, "SELECT wait_event_type = 'LWLock' FROM pg_stat_activity WHERE pid = $repeated->{pid}") if has_debugger($node);
$go->();
my $answer = answer($repeated);
like($answer, qr/duplicate/, 'no standby is waited for any more, by a duplicate' . ($answer !~ /duplicate/ && ", which answers $answer"));
$repeated->{session}->quit;
like(answer($left), qr/accepted/, 'nor by what is new');
$left->{session}->quit;
is_sql($node, "SELECT outcome FROM idemq.enqueue('q', '1', key => 'newer')", 'duplicate', 'nor by a duplicate');
kill 'CONT', sql($standby, "SELECT pid FROM pg_stat_wal_receiver");
$node->stop;
$standby->stop;
done_testing();
