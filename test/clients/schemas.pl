# The option schema of the Node client with zod, valibot and arktype (node_schemas.ts), in enqueue and before the handler; that each of them
# is a Schema to the compiler.
# slow: needs npm (typescript, zod, valibot, arktype)
# at least 10 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Reports;
use Shop;
use Test::More;

# script/test has fetched it, or said why not.
plan skip_all => 'no npm packages' unless $ENV{IDEMQ_NODE_MODULES} && -d "$ENV{IDEMQ_NODE_MODULES}/arktype";

my $app = compiled('schemas', "$FindBin::RealBin/node_schemas.ts");
my $node = new_server('schemas', 'idemq.worker' => 'on');
local $ENV{DSN} = sprintf 'postgresql://%s@/postgres?host=%s&port=%d', scalar getpwuid($>), $node->host, $node->port;
local $ENV{PGPORT} = $node->port;
reports('node_schemas.ts', 8, [ 'node', '--test-reporter=tap', "$app/node_schemas.js" ]);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
