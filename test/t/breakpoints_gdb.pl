# The stop points of breakpoints.pl and others stand where gdb stops the shipped library: a session that gdb stops on entry
# to a function is seen by others in the state in which the stop point of that name holds it.
# slow: gdb attaches to a process for each place
# at least 13 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('shipped', autovacuum => 'off', max_prepared_transactions => 2);

plan skip_all => 'no gdb that may attach' unless has_debugger($node);

my $one = session($node);
my $claim = "SELECT string_agg(payload::text, ' ' ORDER BY payload) FROM idemq.claim('q', 10)";

# Jobs 1 and 2, of which $claimed are claimed.
sub prepare
{
	my ($claimed) = @_;

	sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h');
		SELECT idemq.enqueue('q', '1'); SELECT idemq.enqueue('q', '2');
		DROP TABLE IF EXISTS held; CREATE TABLE held (id bigint, token bigint, payload jsonb)");
	sql($node, "INSERT INTO held SELECT id, token, payload FROM idemq.claim('q', $claimed)") if $claimed;
	$one->query_safe('SELECT 1');
	return;
}

# Sends SQL to session one, which stops at a function.
sub send_to
{
	my ($sql, $function) = @_;
	my $stop = stop_at($one->{backend}, $function);

	$one->query_until(qr/sent/, "\\echo sent\n$sql;\n");
	$stop->();
	return sub { $stop->(); return $one->query('SELECT 1') };
}

# Not written yet: the row is pending, and has an entry.
prepare(0);
my $go = send_to("SELECT payload FROM idemq.claim('q')", 'idemq_transition');
is_sql($node, 'SELECT DISTINCT status FROM idemq.jobs', 'pending', 'idemq_transition: nothing is written');
is_sql($node, $claim, '2', 'but the job is taken');
$go->();

# Committed: the row is written, and the lease has not started.
prepare(0);
$go = send_to("SELECT payload FROM idemq.claim('q')", 'idemq_lease_activate');
is_sql($node, "SELECT status FROM idemq.jobs WHERE payload = '1'", 'running', 'idemq_lease_activate: the claim is committed');
is_sql($node, 'SELECT state FROM idemq.running_jobs', 'claiming', 'its lease has not started');
$go->();
is_sql($node, 'SELECT state FROM idemq.running_jobs', 'active', 'and then it has');

# Committed: the row is written, and the scan start is not lowered.
prepare(2);
$go = send_to("SELECT idemq.enqueue('q', '3')", 'idemq_scan_start_lower');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE payload = '3'", 1, 'idemq_scan_start_lower: the enqueue is committed');
$go->();
is_sql($node, $claim, '3', 'the job is claimed');

# Ended: the row is written, and the entry is there.
prepare(1);
$go = send_to("SELECT idemq.commit(id, token) FROM held", 'idemq_lease_drop');
is_sql($node, "SELECT status FROM idemq.jobs WHERE payload = '1'", 'completed', 'idemq_lease_drop: the end is committed');
is_sql($node, "SELECT count(*) FROM idemq.running_jobs", 1, 'its entry is there');
$go->();
is_sql($node, "SELECT count(*) FROM idemq.running_jobs", 0, 'and then it is not');

# Rolled back: another session sees the row as it was, and its entry.
prepare(1);
$one->query_safe("BEGIN; SELECT idemq.release(id, token) FROM held; SELECT count(*) FROM idemq.claim_job((SELECT id FROM held))");
$go = send_to('ROLLBACK', 'idemq_lease_restore');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'running'", 1, 'idemq_lease_restore: the attempt goes on');
$go->();

# Committed: a group is not marked yet.
prepare(0);
$go = send_to("SELECT idemq.enqueue('q', '5', group_key => 'g')", 'idemq_group_mark');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE group_key = 'g'", 1, 'idemq_group_mark: the enqueue is committed');
$go->();
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

leave($one);
$node->stop;
done_testing();
