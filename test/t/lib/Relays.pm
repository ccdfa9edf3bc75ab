# idemq-relay in tests: a plain PostgreSQL with an outbox, a server with idemq, and relays between them that can be held up
# at each of their steps.
package Relays;

use strict;
use warnings FATAL => 'all';

use Brokers;
use Exporter 'import';
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(servers relays_of in_idemq dsn relay_command relay waits_on end_sessions insert rows each_once make_gates held_up hold_at results);

my ($apps, $jobs, $relays, $rows) = ([], undef, 0, 0);

# The servers, which are running: that of the application, and that of the jobs.
sub servers
{
	my $app = PostgreSQL::Test::Cluster->new('app');

	$app->init(allows_streaming => 1);
	$app->append_conf('postgresql.conf', 'max_connections = 80');
	$app->start;
	relays_of([$app], new_server('jobs', 'idemq.worker' => 'on', max_connections => 80));
	return ($app, $jobs);
}

# Sets the servers that relays connect to: those of the application, the first of which takes writes, and that of the jobs.
sub relays_of { ($apps, $jobs) = @_; return }

# Number of rows that have been inserted.  rows(n) adds n rows that the test has inserted itself.
sub rows { $rows += $_[0] // 0; return $rows }

# A connection string to one server, or to the one of several that takes writes.
sub dsn
{
	my ($name, @nodes) = @_;

	return join ' ', 'host=' . join(',', map { $_->host } @nodes), 'port=' . join(',', map { $_->port } @nodes),
	  "dbname=postgres user=${\scalar getpwuid($>)} application_name=$name";
}

sub relay_command
{
	my ($name, $command, @options) = @_;

	return ('/usr/bin/python3', '-m', 'idemq.relay', $command, '--app', dsn($name, @$apps), '--idemq', dsn($name, $jobs), @options);
}

sub relay
{
	my $name = 'relay-' . ++$relays;

	return { name => $name, %{ program([ relay_command($name, 'run', '--poll', '0.2') ]) } };
}

# A wait of a session of the relay's, on a server.
sub waits_on
{
	my ($it, $node, $query, $for) = @_;

	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$it->{name}' AND query LIKE '%$query%'
		AND " . ($for // "wait_event_type = 'Lock'"));
	return;
}

# Ends what is left of it there; what a session waits for may be done after its client is gone.
sub end_sessions
{
	my ($it, $node, $query) = @_;

	sql($node, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = '$it->{name}'
		AND query LIKE '%" . ($query // '') . "%'");
	return;
}

# So many rows more, of payload {"n": ...}.
sub insert
{
	my ($count, $reply) = (@_, 'false');
	my ($from, $to) = ($rows + 1, $rows += $count);

	sql($apps->[0], "INSERT INTO idemq_outbox.jobs (queue, payload, reply) SELECT 'q', jsonb_build_object('n', g), $reply FROM generate_series($from, $to) g");
	return;
}

# The jobs of these rows.
my $in_idemq = "FROM idemq.jobs WHERE queue_id = idemq.queue_id('q') AND payload ? 'n'";
sub in_idemq { return $in_idemq }

sub each_once
{
	my ($when) = @_;

	wait_until($apps->[0], 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 0);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sql($jobs, "SELECT count(*), count(DISTINCT payload -> 'n') $in_idemq", "$rows|$rows", "$when: each row is one job");
}

# Where a relay is held up while a session has the lock of that number: 1 before the job is in idemq, 2 in the COMMIT there,
# 3 before the row is marked, 4 in the COMMIT of that.
my $gates = q[CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_advisory_xact_lock_shared(TG_ARGV[0]::int) FROM pg_stat_activity WHERE pid = pg_backend_pid() AND application_name LIKE 'relay-%';
		RETURN NULL;
	END $$];

sub make_gates
{
	sql($jobs, "$gates; CREATE TRIGGER gate1 BEFORE INSERT ON idemq.jobs FOR EACH STATEMENT EXECUTE FUNCTION gate(1);
		CREATE CONSTRAINT TRIGGER gate2 AFTER INSERT ON idemq.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gate(2)");
	sql($apps->[0], "$gates; CREATE TRIGGER gate3 BEFORE UPDATE ON idemq_outbox.jobs FOR EACH STATEMENT EXECUTE FUNCTION gate(3);
		CREATE CONSTRAINT TRIGGER gate4 AFTER UPDATE ON idemq_outbox.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gate(4)");
	return;
}

my %held = (1 => 'jsonb_to_recordset', 2 => 'jsonb_to_recordset', 3 => 'UPDATE', 4 => 'COMMIT');

# Part of the statement that the relay runs where it is held up.
sub held_up { return $held{ $_[0] } }

# A session that holds up the relay at a place.
sub hold_at
{
	my ($number) = @_;
	my $session = session($number < 3 ? $jobs : $apps->[0]);

	$session->query_safe("SELECT pg_advisory_lock($number)");
	return $session;
}

# Inserts a row that wants its result, calls a function with SQL that completes its job, and asserts that the result
# arrives in the row.
sub results
{
	my ($name, $killed) = @_;

	insert(1, 'true');
	my $n = $rows;
	wait_until($apps->[0], "SELECT job_id IS NOT NULL FROM idemq_outbox.jobs WHERE payload ->> 'n' = '$n'");
	my $id = sql($apps->[0], "SELECT job_id FROM idemq_outbox.jobs WHERE payload ->> 'n' = '$n'");
	$killed->("SELECT idemq.commit(id, (claim).token, '$n') FROM (SELECT ${id}::bigint AS id, idemq.claim_job($id) AS claim) c");
	is_soon($apps->[0], "SELECT status || result FROM idemq_outbox.jobs WHERE payload ->> 'n' = '$n'", "completed$n", "$name: the result is there");
	is_soon($jobs, q[SELECT count(*) = 0 FROM idemq.jobs WHERE queue_id = idemq.queue_id('outbox_results') AND status <> 'completed'], "$name: no result waits");
	return;
}

1;
