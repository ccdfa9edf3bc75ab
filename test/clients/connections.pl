# How many connections a worker has, as the table of doc/reference/clients.md says: while it is idle, while all its handlers run, and after
# their jobs have ended.
# slow: starts eight workers, one after the other
# at least 24 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('connections', 'idemq.worker' => 'on', max_connections => 60);
my $user = getpwuid($>);
my $app = $ENV{IDEMQ_NODE_MODULES} ? folder('app', "$FindBin::RealBin/connections.mjs") : undef;
my $count = q[SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()];

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
local $ENV{PGPORT} = $node->port;

# busy: with all handlers running.  most: when their jobs have ended, which may take one or two more.
sub has_connections
{
	my ($language, $method, $busy, $most) = @_;
	my $name = lc "${language}_$method";
	my $gate = "$tmp/$name.gate";
	my @command = $language eq 'node' ? ('node', "$app/connections.mjs") : ('/usr/bin/python3', "$FindBin::RealBin/connections.py");

	sql($node, "CREATE DATABASE $name");
	sql($node, q[CREATE EXTENSION idemq; SELECT idemq.create_queue(name, lease => '1 h') FROM unnest('{q,other,calls}'::text[]) name], $name);
	local $ENV{DSN} = $language eq 'node' ? sprintf('postgresql://%s@/%s?host=%s&port=%d', $user, $name, $node->host, $node->port)
	  : sprintf('host=%s port=%d dbname=%s user=%s', $node->host, $node->port, $name, $user);
	my $run = IPC::Run::start([ @command, $method, 4, $gate ], '<', \undef, '>&', "$tmp/$name.out");

	wait_until($node, q[SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'CALL idemq.wait%' AND state = 'active'], 't', $name);
	is_sql($node, $count, 2, "$name: two connections while it is idle", $name);
	sql($node, q[SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(1, 4) n], $name);
	wait_until($node, q[SELECT count(*) = 4 FROM idemq.running_jobs], 't', $name);
	wait_until($node, q[SELECT count(*) = 4 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'], 't', $name) if $busy > 2;
	is_sql($node, $count, $busy, "$name: $busy connections while four handlers run", $name);
	append_to_file($gate, '');
	wait_until($node, q[SELECT count(*) = 4 FROM idemq.jobs WHERE status = 'completed'], 't', $name);
	is_sql($node, "SELECT ($count) <= $most", 't', "$name: at most $most when they have ended", $name);
	$run->signal('TERM');
	$run->finish;
	is($run->full_result(0), 0, "$name: ends") or diag slurp_file("$tmp/$name.out");
	return;
}

SKIP:
{
	skip 'no node-pg', 12 unless $app;
	has_connections('node', @$_) foreach [ 'run', 6, 6 ], [ 'runOutside', 2, 4 ], [ 'several', 6, 6 ];
}
has_connections('python', @$_) foreach [ 'run', 6, 6 ], [ 'run_outside', 2, 3 ], [ 'several', 6, 7 ], [ 'async_run', 6, 6 ], [ 'async_run_outside', 2, 2 ];
$node->stop;
done_testing();
