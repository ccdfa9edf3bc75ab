# The tests that doc/usage/testing.md shows an application, in Python and Node.
# at least 5 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $node = new_server('testing', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on');

# Runs a program of tests; each of them must pass.
sub passes
{
	my ($name, $tests, @command) = @_;
	my $out = '';

	IPC::Run::run(\@command, '<', \undef, '>&', \$out, IPC::Run::timeout(200));
	is($? >> 8, 0, $name) or diag $out;
	like($out, $tests, "$name: all of them ran");
	return;
}

{
	local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	passes('testing.py', qr/^5 tests$/m, '/usr/bin/python3', "$here/testing.py", $node->connstr('postgres') . ' user=postgres connect_timeout=60');
}

SKIP:
{
	skip 'no node-pg', 2 unless $ENV{IDEMQ_NODE_MODULES};
	my $app = folder('app', "$here/testing.mjs");
	# Debian's pg does not read the port of such a URL.
	local $ENV{PGPORT} = $node->port;
	local $ENV{CONNECTION} = sprintf 'postgresql://postgres@/postgres?host=%s&port=%d', $node->host, $node->port;
	passes('testing.mjs', qr/^# pass 2$/m, 'node', '--test-reporter=tap', "$app/testing.mjs");
}

is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
