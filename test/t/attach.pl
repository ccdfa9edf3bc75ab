# attach => true: the end of the session, however it ends, is the end of the
# lease, and the next claim gets the job.

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

sub quit { $_[0]->quit; wait_for_end($_[1]); }
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
$session->query_safe("SELECT * FROM idemq.claim('q', lease => '1 ms', attach => true)");
$session->query_safe('DISCARD PLANS');
$session->query_safe("BEGIN; SAVEPOINT a; SELECT * FROM idemq.claim('q', attach => true); ROLLBACK TO a; COMMIT");
# What was rolled back with a savepoint, a reap among it, is looked at again after 100 ms.
sql($node, 'SELECT pg_sleep(0.2)');
is_sql($node, "SELECT payload, attempt FROM idemq.claim('q', 10) ORDER BY 1", "3|2\n4|1",
	'the deadline holds for an attached lease too');
quit($session, $session->query_safe('SELECT pg_backend_pid()'));
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 10)", 0, 'the session left nothing');
is_sql($node, 'SELECT payload, status FROM idemq.jobs ORDER BY 1',
	"1|completed\n2|failed\n3|processing\n4|processing", 'and took nothing with it');

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
quit($session, $session->query_safe('SELECT pg_backend_pid()'));
is_sql($node, "SELECT id - $id, attempt FROM idemq.claim('q', 10) ORDER BY id", "2|2\n3|2",
	'a new claim is not attached because an old one was');

$node->stop;
done_testing();
