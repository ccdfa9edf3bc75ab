# Answers that wait for the synchronous standby: what they cost, and a duplicate that is woken while the checkpointer
# still says that there is a standby.  The rest is in sync_rep.pl.
# slow: it stops the checkpointer inside PostgreSQL with a debugger, and measures
# at least 7 assertions

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
$standby->start;

# ---- What a duplicate costs

# Returns the mean time of a duplicate's answer, in ms.
sub duplicate_time
{
	my $repeats = "SELECT duplicates_total FROM idemq.metrics WHERE queue = 'q'";
	my $before = sql($node, $repeats);
	my $start = time;

	sql($node, "DO \$\$BEGIN FOR i IN 1 .. 500 LOOP PERFORM idemq.enqueue('q', '1', key => 'known'); COMMIT; END LOOP; END\$\$");
	my $ms = (time - $start) * 1000 / 500;
	cmp_ok(sql($node, $repeats) - $before, '>=', 500, '500 duplicates');
	return $ms;
}

# The same while another session writes all the time, so that the standby never has what was just flushed.
sub busy_duplicate_time
{
	my $writer = session($node);

	$writer->query_until(qr/sent/, "SET synchronous_commit = local;\n\\echo sent\n"
		  . "DO \$\$BEGIN LOOP PERFORM idemq.enqueue('q', '1', key => 'writer', on_duplicate => 'replace'); COMMIT; END LOOP; END\$\$;\n");
	my $ms = duplicate_time();
	sql($node, "SELECT pg_cancel_backend($writer->{backend})");
	$writer->query('SELECT');
	leave($writer);
	return $ms;
}

sql($node, "SELECT idemq.enqueue('q', '1', key => 'known')");
my ($without, $busy_without) = (duplicate_time(), busy_duplicate_time());
sync_standby_in_force($node, 'standby');
note sprintf 'figure: a duplicate: %.3f ms without a synchronous standby, %.3f ms with one that has it; beside a writer %.3f ms and %.3f ms',
  $without, duplicate_time(), $busy_without, busy_duplicate_time();

# ---- Without a standby's name no session waits, whichever of the checkpointer's steps it is woken in

SKIP:
{
	skip 'no gdb that may attach', 3 unless has_debugger($node);

	# A session that has sent SQL, and waits for the standby in it.
	my $waiting = sub {
		my ($sql) = @_;
		my $session = session($node);

		$session->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\n$sql;\n");
		wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $session->{backend} AND wait_event = 'SyncRep'");
		return { session => $session };
	};

	kill 'STOP', sql($standby, "SELECT pid FROM pg_stat_wal_receiver");
	my $cut = $waiting->("SELECT idemq.enqueue('q', '1', key => 'newer')");
	sql($node, "SELECT pg_cancel_backend($cut->{session}{backend})");
	answer($cut);
	# The duplicate is the first to be woken.
	my $repeated = $waiting->("SELECT outcome FROM idemq.enqueue('q', '1', key => 'newer')");
	my $left = $waiting->("SELECT idemq.enqueue('q', '1', key => 'newest')");
	# The checkpointer between waking it, and saying that there is no standby to wait for.
	my $go = stop_at(sql($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'"),
		qw(SyncRepUpdateSyncStandbysDefined SetLatch SetLatch));

	$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
	$node->reload;
	$go->() foreach 1 .. 5;
	wait_until($node, "SELECT wait_event_type = 'LWLock' FROM pg_stat_activity WHERE pid = $repeated->{session}{backend}");
	$go->();
	like(answer($repeated), qr/duplicate/, 'no standby is waited for any more, by a duplicate that is woken before the checkpointer says so');
	like(answer($left), qr/accepted/, 'nor by what is new');
	is_sql($node, "SELECT outcome FROM idemq.enqueue('q', '1', key => 'newer')", 'duplicate', 'nor by a duplicate');
	kill 'CONT', sql($standby, "SELECT pid FROM pg_stat_wal_receiver");
	leave(map { $_->{session} } $cut, $repeated, $left);
}
$node->stop;
$standby->stop;
done_testing();
