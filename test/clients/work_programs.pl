# The three programs of doc/usage/three-programs.md as shell scripts that idemq-work starts, by the server itself and through
# a pooler in transaction mode that closes what is idle for a second; and as handlers, which are a webhook's worker and a
# report inside the server.  What befalls them: test/t/lib/ThreePrograms.pm.
# expects in log: was terminated by signal 9|terminating any other active server processes
# takes long
# slow: leases of 3 s pass in real time, a failover
# at least 146 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;
use ThreePrograms;

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
# After kill -9 of a handler it starts again by itself.  Each database has a background worker, beside the handlers.
my $node = new_server('programs', 'idemq.worker' => 'on', max_connections => 150, max_worker_processes => 16, restart_after_crash => 'on');
my $provider = provider();
my ($start, @pooler) = pooler($node, default_pool_size => 20, client_idle_timeout => 1, server_idle_timeout => 1);
my $pgbouncer = $start->();

my $command = sub {
	my ($it, $program) = @_;
	my %options = (webhook => [qw(-q events)], mailer => [qw(-q mail -j 4 --result)], report => [qw(-q reports)]);
	my %files = (webhook => 'book.sh', mailer => 'mail.sh', report => 'report.sh');

	return ([ 'idemq-work', '-d', $it->dsn, @{ $options{$program} }, '--', "$here/$files{$program}" ],
		DSN => $it->dsn, PROVIDER => "$it->{provider}{url}/mails");
};
my %form = (provider => $provider, command => $command, schedules => 1);
my $work = ThreePrograms->new($node, 'idemq-work', %form);
my $pooled = ThreePrograms->new($node, 'idemq-work, pooler', %form, pooler => \@pooler);

# What befalls a handler befalls one of its processes, or the server.
my $processes = q[FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE backend_type = 'idemq handler' AND datname = current_database() AND NOT granted];
my $handlers = ThreePrograms->new($node, 'handler', programs => [], schedules => 1, mails => 0, blows => {
	'kill -9' => sub {
		my ($it, $in_hand) = @_;
		my $pid = sql($node, "SELECT min(pid) $processes", $it->{db});

		kill 'KILL', $pid;
		$it->wait_for("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
		# The lock is gone with the server.
		eval { leave($in_hand->{lock}) };
	},
	'SIGTERM' => sub {
		my ($it, $in_hand) = @_;

		is_sql($node, "SELECT count(pg_terminate_backend(pid)) $processes", 2, 'handler: told to end in their effects', $it->{db});
		$it->let_go($in_hand);
	} });
sql($node, q[
	CREATE FUNCTION book(payload jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog, public, pg_temp AS $$
		UPDATE accounts SET balance = balance + (payload->>'amount')::int WHERE account = payload->>'account'
	$$;
	CREATE FUNCTION report(payload jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog, public, pg_temp AS $$
		INSERT INTO reports SELECT headers->>'tick', (SELECT sum(total) FROM sales) FROM idemq.current_job()
	$$;
	SELECT idemq.set_handler('events', 'book(jsonb)', workers => 2);
	SELECT idemq.set_handler('reports', 'report(jsonb)', workers => 2)], $handlers->{db});

# The last one takes the server along.
survives($work, $pooled, $handlers);
$pooled->ends;
$pgbouncer->kill_kill;
fails_over($node, $work, $handlers)->stop;
$provider->{run}->kill_kill;
done_testing();
