# The first workers that README.md and doc/tutorials/first-worker.md show, in Python and in Node, as they stand there: each
# runs a job, its effect happens once, and SIGTERM ends it.
# at least 6 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $node = new_server('first_worker', 'idemq.worker' => 'on');

# What the page says before the first worker.
sql($node, q[CREATE TABLE confirmations (order_id int, sent_at timestamptz DEFAULT now()); SELECT idemq.create_queue('mail')]);

# One program works on a job, and ends when it is told to.
sub works
{
	my ($name, $order, @command) = @_;
	my $stderr = '';

	local $ENV{DSN} = "postgresql:///postgres?host=${\$node->host}&port=${\$node->port}&user=" . scalar getpwuid($>);
	# Debian 12's pg (8.8) does not read user and port from a connection string without a host; the client requires 8.11.
	local @ENV{qw(PGUSER PGPORT)} = (scalar getpwuid($>), $node->port);
	local $ENV{PYTHONPATH} = "$source/clients/python";
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	sql($node, "SELECT idemq.enqueue('mail', '{\"order\": $order}', key => 'order-$order')");
	my $run = IPC::Run::start([@command], '<', \undef, '>', \my $stdout, '2>', \$stderr, IPC::Run::timeout(180));
	is_soon($node, "SELECT status = 'completed' FROM idemq.job_by_key('mail', 'order-$order')", "$name: the job is done");
	$run->signal('TERM');
	$run->finish;
	is($run->full_result(0), 0, "$name: SIGTERM ends the worker") or diag $stderr;
	is_sql($node, "SELECT count(*), min((SELECT result FROM idemq.job_by_key('mail', 'order-$order'))::text) FROM confirmations WHERE order_id = $order",
		'1|{"sent": true}', "$name: one confirmation, and the job's result");
	return;
}

works('Python', 42, '/usr/bin/python3', "$source/test/clients/first_worker.py");

SKIP:
{
	skip 'no node-pg', 3 unless $ENV{IDEMQ_NODE_MODULES};
	my $app = folder('app', "$source/clients/node/examples/first-worker.js");
	works('Node', 43, 'node', "$app/first-worker.js");
}

$node->stop;
done_testing();
