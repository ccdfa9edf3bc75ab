# attach => true: the end of the session, however it ends, is the end of the
# lease, and the next claim gets the job.
# at least 66 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('attach');

sub wait_for_end
{
	my ($pid) = @_;

	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
}

# Claims two jobs, one of them attached, in a session that then ends.
sub check
{
	my ($name, $in_transaction, $end) = @_;
	my $session = session($node);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h');
		SELECT idemq.enqueue('q', '1'); SELECT idemq.enqueue('q', '2'); SELECT idemq.enqueue('q', '3')");
	my ($first) = split /\n/, sql($node, 'SELECT id FROM idemq.jobs ORDER BY id');
	$session->query_safe('BEGIN') if $in_transaction;
	my ($token) = split /\n/, $session->query_safe("SELECT token FROM idemq.claim('q', attach => true)");
	$session->query_safe("SELECT token FROM idemq.claim('q')");
	is_sql($node, "SELECT id - $first, attempt FROM idemq.claim('q', 10)", '2|1', "$name: two jobs are held");
	is_sql($node, "SELECT idemq.heartbeat($first, $token)", 'current', "$name: heartbeats go on") unless $in_transaction;
	$end->($session, $pid);
	is_sql($node, "SELECT id - $first, attempt FROM idemq.claim('q', 10) ORDER BY id",
		$in_transaction ? "0|1\n1|1" : '0|2', "$name: the next claim gets what was attached");
	is_sql($node, "SELECT outcome, error FROM idemq.attempts WHERE job_id = $first",
		$in_transaction ? '' : "expired|the worker's session ended", "$name: its history");
	is_sql($node, "SELECT idemq.try_commit($first, $token)", 'stale', "$name: the old token is stale");
}

sub quit { leave($_[0]) }
sub terminate { sql($node, "SELECT pg_terminate_backend($_[1])"); wait_for_end($_[1]); $_[0]->{run}->kill_kill; }
sub kill_client { $_[0]->{run}->signal('KILL'); wait_for_end($_[1]); eval { $_[0]->{run}->finish }; }

check('disconnect', 0, \&quit);
check('pg_terminate_backend', 0, \&terminate);
check('kill -9 of the client', 0, \&kill_client);
check('disconnect in a transaction', 1, \&quit);
check('pg_terminate_backend in a transaction', 1, \&terminate);
check('kill -9 of the client in a transaction', 1, \&kill_client);
check('DISCARD ALL', 0, sub { $_[0]->query_safe('DISCARD ALL') });

# Attaching only shortens a lease; what was ended before is not touched.
my $session = session($node);
my $setup = "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h');
	SELECT idemq.enqueue('q', to_jsonb(n)) FROM generate_series(1, 4) n";
sql($node, $setup);
$session->query_safe("SELECT idemq.commit(id, token) FROM idemq.claim('q', attach => true)");
$session->query_safe("SELECT idemq.fail(id, token, retry_in => '1 h') FROM idemq.claim('q', attach => true)");
$session->query_safe("SELECT * FROM idemq.claim('q', lease => '1 ms', attach => true)"); # meant to expire
$session->query_safe('DISCARD PLANS');
$session->query_safe("BEGIN; SAVEPOINT a; SELECT * FROM idemq.claim('q', attach => true); ROLLBACK TO a; COMMIT");
# The reap that was rolled back with the savepoint is not done again at once.
my $reaped = 0;
until_true('the lease is reaped', sub { ($reaped += sql($node, "SELECT idemq.reap('q')")) > 0 });
is_sql($node, "SELECT payload, attempt FROM idemq.claim('q', 10) ORDER BY 1", "3|2\n4|1",
	'the deadline holds for an attached lease too');
leave($session);
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 10)", 0, 'the session left nothing');
is_sql($node, 'SELECT payload, status FROM idemq.jobs ORDER BY 1',
	"1|completed\n2|retrying\n3|running\n4|running", 'and took nothing with it');

# claim_job and claim_any attach as well; after DISCARD ALL the session goes on.
sql($node, $setup);
$session = session($node);
my $id = sql($node, 'SELECT min(id) FROM idemq.jobs');
$session->query_safe("SELECT * FROM idemq.claim_job($id, attach => true);
	SELECT * FROM idemq.claim_any(ARRAY['q'], 1, attach => true)");
$session->query_safe('DISCARD ALL');
is($session->query_safe("SELECT id - $id, attempt FROM idemq.claim('q', 2, attach => true) ORDER BY id"), "2|1\n3|1",
	'first what was ready before');
is($session->query_safe("SELECT id - $id, attempt FROM idemq.claim('q', 2) ORDER BY id"), "0|2\n1|2",
	'then what DISCARD ALL gave back');
leave($session);
# By reap, since a claim takes back no more than fits in its slice of 0.1 s; and by the rows, since a job that
# is lost a second time waits: no claim would get it.
is_sql($node, "SELECT idemq.reap('q')", 2, 'the end of the session takes two');
is_sql($node, "SELECT id - $id, attempt, status FROM idemq.jobs ORDER BY id",
	"0|2|running\n1|2|running\n2|1|pending\n3|1|pending", 'a new claim is not attached because an old one was');

# The server goes down with the workers: what was attached is held for the grace that is set by then, or its
# length if that is less, the rest for its length.  By the row nothing but a flag tells which is which: here a lease
# that is not attached is as long as the grace.
$node->append_conf('postgresql.conf', "idemq.attach_grace = '5 min'");
$node->restart;
sql($node, $setup);
$session = session($node);
my $claim = "SELECT deadline - clock_timestamp() > '30 min' FROM idemq.claim('q', attach => true, lease =>";
is($session->query_safe("$claim '1 h')"), 't', 'claim answers the deadline that the lease has');
is($session->query_safe("SELECT count(*) FROM idemq.claim('q', attach => true, lease => '10 min')"), 1, 'a short one');
is($session->query_safe("SELECT count(*) FROM idemq.claim('q', lease => '20 min')"), 1, 'one that is not attached');
is($session->query_safe("SELECT count(*) FROM idemq.claim('q')"), 1, 'and another');
my $rows = "SELECT id - (SELECT min(id) FROM idemq.jobs), deadline - claimed_at, flags FROM idemq.jobs
	WHERE status = 'running' ORDER BY 1";
is_sql($node, $rows, "0|01:00:00|1\n1|00:10:00|1\n2|00:20:00|0\n3|01:00:00|0",
	'the rows have the deadlines of the claims, and say which are attached');
is_sql($node, "SELECT count(*) FILTER (WHERE deadline > clock_timestamp() + '30 min') FROM idemq.running_jobs", 2,
	'idemq.running_jobs has the deadlines of the leases');
like(sql($node, 'SELECT idemq.why(min(id)) FROM idemq.jobs'), qr/lease expires at .*attached/, 'why too');
is_sql($node, "SELECT idemq.validate(id, token) FROM idemq.jobs WHERE id = (SELECT min(id) FROM idemq.jobs)", 'current',
	'and validate');
# How far the leases reach from now, as the least of these times that is not before.
my $reach = "SELECT string_agg((SELECT min(t) FROM unnest('{5 min,10 min,20 min,1 h}'::interval[]) t
	WHERE t >= deadline - clock_timestamp())::text, ' ' ORDER BY job_id) FROM idemq.running_jobs";
my $beats = "SELECT string_agg(idemq.heartbeat(id, token)::text, ' ') FROM idemq.jobs WHERE status = 'running'";
is_sql($node, $beats, 'current current current current', 'a heartbeat');
is_sql($node, $reach, '01:00:00 00:10:00 00:20:00 01:00:00', 'extends each by its own length');
$node->append_conf('postgresql.conf', "idemq.attach_grace = '20 min'");
crash($node, sub { $session->{run}->finish });
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 10)", 0, 'after a crash all are held');
is_sql($node, $reach, '00:20:00 00:10:00 00:20:00 01:00:00', 'for the new grace, or their length');
is_sql($node, $beats, 'current current current current', 'their workers connect again within the grace');
is_sql($node, $reach, '01:00:00 00:10:00 00:20:00 01:00:00', 'and a heartbeat extends each by its own length again');
crash($node);
is_sql($node, $beats, 'current current current current', 'the same by a heartbeat that comes first');
is_sql($node, $reach, '01:00:00 00:10:00 00:20:00 01:00:00', 'which finds no lease entry');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check finds nothing');

$node->append_conf('postgresql.conf', "idemq.attach_grace = '1 ms'"); # meant to expire
$node->restart;
$session = session($node);
sql($node, $setup);
$session->query_safe("SELECT * FROM idemq.claim('q', attach => true)");
crash($node, sub { $session->{run}->finish });
# The grace begins when the first reap looks.
until_true('the lease is reaped', sub { sql($node, "SELECT idemq.reap('q')") > 0 });
is_sql($node, "SELECT payload, attempt FROM idemq.claim('q', 10) ORDER BY attempt DESC LIMIT 1", '1|2',
	'after the grace the next claim has it');
like(sql($node, 'SELECT error FROM idemq.attempts'), qr/^lease expired$/, 'its lease expired');

$node->append_conf('postgresql.conf', "idemq.max_leases = 1");
$node->restart;
sql($node, $setup);
sql($node, "SELECT * FROM idemq.claim('q', 3, attach => true, lease => '10 min')");
is_sql($node, "SELECT count(*) >= 2, max(deadline - claimed_at) FROM idemq.jobs WHERE status = 'running' AND flags = 0", 't|00:10:00',
	'a claim by its row alone is not attached');
# A heartbeat by the row alone moves the row's deadline, and notes when, so that the row still tells the length of the claim.
my $by_row = sql($node, "SELECT min(id) FROM idemq.jobs WHERE status = 'running' AND flags = 0");
sql($node, "UPDATE idemq.jobs SET claimed_at = claimed_at - interval '5 h', deadline = deadline - interval '5 h' WHERE id = $by_row");
my $beat = "SELECT idemq.heartbeat(id, token) FROM idemq.jobs WHERE id = $by_row";
my $length = "SELECT flags, deadline - renewed_at, clock_timestamp() - renewed_at < '5 min', renewed_at - claimed_at > '5 h' FROM idemq.jobs WHERE id = $by_row";
foreach (qw(first second third))
{
	is_sql($node, $beat, 'current', "a heartbeat by the row alone, the $_");
	is_sql($node, $length, '4|00:10:00|t|t', 'extends the lease by its length');
}
sql($node, "UPDATE idemq.jobs SET renewed_at = renewed_at - interval '1 h', deadline = deadline - interval '1 h' WHERE id = $by_row");
is_sql($node, q[SELECT * FROM idemq.check() WHERE invariant <> 'leases.full'], '', 'check finds nothing');
$node->append_conf('postgresql.conf', "idemq.max_leases = 1000");
crash($node);
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 1)", 1, 'the next claim looks for leases that the crash lost');
my $left = "SELECT deadline - clock_timestamp() BETWEEN '5 min' AND '10 min' FROM idemq.running_jobs WHERE job_id = $by_row";
is_sql($node, $left, 't', 'and does not take the time since the claim, or the lease of the queue, for the length of the lease');
is_sql($node, $beat, 'current', 'a heartbeat, for which the table has room');
is_sql($node, $left, 't', 'extends the lease by its length');
# Heartbeats of another length by the row alone, which hold for later ones.
$node->append_conf('postgresql.conf', "idemq.max_leases = 1");
$node->restart;
sql($node, "SELECT idemq.heartbeat(id, token) FROM idemq.jobs WHERE status = 'running' AND id <> $by_row ORDER BY id");
foreach ("'20 min'", 'NULL')
{
	is_sql($node, "SELECT idemq.heartbeat(id, token, $_) FROM idemq.jobs WHERE id = $by_row", 'current', "a heartbeat of $_ by the row alone");
	is_sql($node, $length =~ s/.*deadline - renewed_at\K.* FROM/ FROM/r, '4|00:20:00', 'extends the lease by 20 minutes');
}
is_sql($node, "SELECT idemq.fail(id, token, 'x', retry_in => '0') FROM idemq.jobs WHERE id = $by_row", 'retrying', 'an attempt ends');
is_sql($node, "SELECT flags & 4, renewed_at IS NULL FROM idemq.jobs WHERE id = $by_row", '0|t', 'and nothing is left of its heartbeats');
is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check finds nothing');

$node->stop;
done_testing();
