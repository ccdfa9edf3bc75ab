# Answers about what others have committed wait for the synchronous standby, too.
# at least 28 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# A receiver that is stopped for long is not given up.
my $node = new_server('primary', max_connections => 40, wal_sender_timeout => 0);
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
# It answers new WAL, and otherwise nothing.
$standby->append_conf('postgresql.conf', "wal_receiver_status_interval = '1h'");
$standby->start;

sql($node, "SELECT idemq.enqueue('q', '1', key => 'known')");
sync_standby_in_force($node, 'standby');

my ($done, $token) = split /\|/, sql($node, "SELECT c.id, c.token FROM idemq.enqueue('q', '1', key => 'done') e, idemq.claim_job(e.id) c");
is_sql($node, "SELECT outcome FROM idemq.enqueue('q', '1', key => 'done')", 'duplicate', 'a standby that has all: no wait');

# A standby that has all, and was made synchronous after it said so, is asked: by itself it says nothing for an hour.
sync_standby_in_force($node, '');
sql($node, "SELECT idemq.enqueue('q', '1', key => 'before')");
wait_until($node, 'SELECT flush_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication');
sync_standby_in_force($node, 'standby');
{
	my $session = session($node);

	is($session->query_safe("SELECT outcome FROM idemq.enqueue('q', '1', key => 'before')"), 'duplicate',
		'what a standby had before it was synchronous: it is asked for that at once');
	$session->query("SET statement_timeout = '100 ms'"); # meant to expire
	$session->query('SELECT pg_sleep(3600)');
	like($session->{stderr}, qr/canceling statement due to statement timeout/, 'who has waited can be cancelled after it');
	leave($session);
}
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
	leave($waiter->{session});
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
	leave($waiter{$_}{session});
}

# Without a standby's name nobody waits.
kill 'STOP', sql($standby, "SELECT pid FROM pg_stat_wal_receiver");
cut(waiting("SELECT idemq.enqueue('q', '1', key => 'newer')"));
# The duplicate is the first to be woken.
my $repeated = waiting("SELECT outcome FROM idemq.enqueue('q', '1', key => 'newer')");
my $left = waiting("SELECT idemq.enqueue('q', '1', key => 'newest')");
$node->append_conf('postgresql.conf', "synchronous_standby_names = ''");
$node->reload;
my $answer = answer($repeated);
like($answer, qr/duplicate/, 'no standby is waited for any more, by a duplicate' . ($answer !~ /duplicate/ && ", which answers $answer"));
leave($repeated->{session});
like(answer($left), qr/accepted/, 'nor by what is new');
leave($left->{session});
is_sql($node, "SELECT outcome FROM idemq.enqueue('q', '1', key => 'newer')", 'duplicate', 'nor by a duplicate');
kill 'CONT', sql($standby, "SELECT pid FROM pg_stat_wal_receiver");
$node->stop;
$standby->stop;
done_testing();
