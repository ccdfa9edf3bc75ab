# idemq.auto_update: if nothing works before ALTER EXTENSION idemq UPDATE, the background worker runs
# it after the restart, and calls wait for it, for 5 s.
# at least 19 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('upgrade_auto', 'idemq.worker' => 'on');
my $old = "SELECT extversion FROM pg_extension WHERE extname = 'idemq'";

$node->start;
my $version = sql($node, 'SHOW idemq.version');
sql($node, 'CREATE ROLE upgrade_producer; CREATE ROLE "Upgrade Worker"');

# A session that waits in a call, with its answer, or the SQLSTATE.
sub caller_of
{
	my ($it, $statement) = @_;

	$it->{session}->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\n$statement;\n");
	return $it;
}
sub opened
{
	my $session = session($node, 'app');

	return { session => $session, pid => $session->query_safe('SELECT pg_backend_pid()') };
}
my %waits = (
	'an enqueue' => [ q{SELECT outcome, status FROM idemq.enqueue('mail', '"while it waits"', key => 'w')}, 'accepted|pending' ],
	'its NULLs' => [ q{SELECT idemq.fail(999, 1, NULL)}, 'not_found' ],
	'a claim, whose rows are others' => [ q{SELECT id FROM idemq.claim('mail')}, '40001' ],
	'a snapshot from before' => [ q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT idemq.try_commit(1, 1); ROLLBACK}, '40001' ],
	'a fence' => [ q{INSERT INTO effects VALUES (1, 1)}, '40001' ]);
sql($node, 'CREATE DATABASE app');
sql($node, "CREATE EXTENSION idemq VERSION '0.1.0'", 'app');
$node->command_ok([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $node->connstr('app'), '-f', "$ENV{IDEMQ_SOURCE}/test/upgrade/0.1.0.sql" ],
	'a database of 0.1.0');
is_sql($node, 'SHOW idemq.auto_update', 'off', 'off, unless it is set');
is_state($node, q{SELECT idemq.enqueue('mail', '1')}, '55000', 'a call is refused at once', 'app');

# ---- While something is in the way

my $holder = session($node, 'app');
$holder->query_safe('BEGIN; LOCK TABLE idemq.jobs IN ACCESS SHARE MODE');
$node->append_conf('postgresql.conf', 'idemq.auto_update = on');
$node->reload;
wait_until($node, 'SHOW idemq.auto_update', 'on');

my $refused = caller_of(opened(), q{SELECT idemq.enqueue('mail', '1')});
wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = 'app' AND application_name = 'idemq worker' AND wait_event_type = 'Lock'});
is(answer($refused), '55000', 'the update waits for a lock: a call is refused when it has waited');
sql($node, "CREATE TABLE effects (job_id bigint, token bigint);
	CREATE TRIGGER fence BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token')", 'app');

# Voluntary context switches of a process: one each time that it has slept.
sub sleeps { return slurp_file("/proc/$_[0]/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m ? $1 : 0 }

# A session that is stopped in a call that waits for the update, so that its 5 s are no matter of this machine's speed:
# the call looks for the update once more when it goes on.
sub stopped_caller
{
	my ($statement) = @_;
	my ($waits_in) = $statement =~ /(idemq\.(?!fence)\w+\(|INTO effects)/;

	foreach (1 .. 20)
	{
		my $it = caller_of(opened(), $statement);
		my $in_call = "SELECT state = 'active' AND strpos(query, '$waits_in') > 0 FROM pg_stat_activity WHERE pid = $it->{pid}";
		my $slept;

		# It sleeps 10 ms between two looks.  Where it was refused meanwhile, another one is tried.
		until_true("a call waits: $statement", sub {
			return 1 if sql($node, "SELECT state IN ('idle', 'idle in transaction (aborted)') AND query NOT LIKE 'SELECT pg_backend_pid%'
				FROM pg_stat_activity WHERE pid = $it->{pid}") eq 't';
			return 0 if sql($node, $in_call) ne 't';
			$slept //= sleeps($it->{pid});
			return sleeps($it->{pid}) >= $slept + 5;
		});
		kill 'STOP', $it->{pid};
		until_true('it is stopped', sub { slurp_file("/proc/$it->{pid}/stat") =~ /\) T / });
		return $it if sql($node, $in_call) eq 't';
		kill 'CONT', $it->{pid};
		answer($it);
		leave($it->{session});
	}
	die "no call waits: $statement";
}
my %callers = map { $_ => stopped_caller($waits{$_}[0]) } keys %waits;
is_sql($node, $old, '0.1.0', 'nothing has changed', 'app');
$holder->query_safe('COMMIT');
wait_until($node, $old, $version, 'app');
kill 'CONT', map { $_->{pid} } values %callers;
my %answers = map { $_ => answer($callers{$_}) } keys %waits;

# ---- It is done

is($answers{$_}, $waits{$_}[1], "$_ that has waited: $waits{$_}[1]") foreach sort keys %waits;
is_sql($node, $old, $version, 'updated', 'app');
worker_pid($node, 'app');
is_sql($node, q{SELECT outcome FROM idemq.enqueue('mail', '"while it waits"', key => 'w')}, 'duplicate', 'the enqueue that waited is there, once', 'app');
is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', 'check()', 'app');
is_logged($node, qr/LOG:  idemq has updated its SQL objects in database "app" to \Q$version\E\n/, 'the log says so');
is(unexpected($node, 'workers', '55P03'), '', 'and no other error than that of the lock');
leave($holder, map { $_->{session} } $refused, values %callers);

# ---- A view of a DBA's is in the way

sql($node, 'CREATE DATABASE viewed');
sql($node, "CREATE EXTENSION idemq VERSION '0.1.0'; CREATE VIEW mine AS SELECT name FROM idemq.queues", 'viewed');
is_state($node, q{SELECT idemq.enqueue('mail', '1')}, '55000', 'a view in the way: a call is refused when it has waited', 'viewed');
is_logged($node, qr/2BP01 .*ERROR:  other objects depend on tables or functions of idemq that change\n.*DETAIL:  view public\.mine\n/, 'and the log names it');
is_sql($node, $old, '0.1.0', 'nothing has changed', 'viewed');
sql($node, 'DROP VIEW mine', 'viewed');
wait_until($node, $old, $version, 'viewed');
is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', 'updated as soon as it is gone', 'viewed');
done_testing();
