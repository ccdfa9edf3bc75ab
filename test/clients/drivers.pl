# enqueue_statement and enqueueStatement with the drivers and ORMs of doc/usage/enqueue-anywhere.md, each in its own transaction:
# drivers.py and drivers.mjs.
# slow: needs libraries from npm and pip (test/clients/drivers)
# at least 55 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

# script/test has fetched them, or said why not.
my $libraries = $ENV{IDEMQ_DRIVERS};
plan skip_all => 'no libraries' unless $libraries;

my $here = $FindBin::RealBin;
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('drivers', max_connections => 60);

{
	# psycopg from pip precedes Debian's, which is too old for Django.
	local $ENV{PYTHONPATH} = "$libraries/python:$ENV{IDEMQ_SOURCE}/clients/python:$here";
	local @ENV{qw(IDEMQ_DSN IDEMQ_HOST IDEMQ_PORT)} = ("dbname=postgres user=postgres connect_timeout=60 host=${\$node->host} port=${\$node->port}", $node->host, $node->port);
	reports('Python', 5, [ '/usr/bin/python3', '-W', 'ignore::ResourceWarning', "$here/drivers.py" ]);
}

# An application with these packages and the client.
my $app = "$tmp/app";
mkdir $_ foreach $app, "$app/node_modules";
foreach my $package (grep { !m{/\.} } glob "$libraries/node_modules/*") { symlink $package, "$app/node_modules/" . $package =~ s{.*/}{}r or die "symlink: $!" }
system_or_bail('cp', '-r', "$ENV{IDEMQ_SOURCE}/clients/node", "$app/node_modules/idemq");
system_or_bail('cp', "$here/drivers.mjs", "$here/drivers/schema.prisma", "$here/drivers/package.json", $app);
{
	# prisma generate downloads a program for migrations unless it is told where one is.  It does not run it.
	local @ENV{qw(PRISMA_SCHEMA_ENGINE_BINARY CHECKPOINT_DISABLE HOME)} = ('/bin/true', 1, $app);
	command_ok([ 'env', '-C', $app, 'node', 'node_modules/prisma/build/index.js', 'generate', '--schema', 'schema.prisma' ], 'Prisma generates its client');
}
local $ENV{CONNECTION} = JSON::PP->new->canonical->encode({ host => $node->host, port => $node->port + 0, user => 'postgres', database => 'postgres', connectionTimeoutMillis => 60_000 });
reports('Node', 44, [ 'node', '--test-reporter=tap', "$app/drivers.mjs" ]);
is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');
$node->stop;
done_testing();
