# The NestJS module (clients/node/nestjs) with real Nest: the application of doc/usage/nestjs.md, which is killed and told to stop, and
# nestjs/nestjs.test.ts; in CommonJS; and that the client does not need Nest.
# expects in log: terminating connection
# slow: needs npm (typescript, @nestjs/common, @nestjs/core)
# at least 21 assertions

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
plan skip_all => 'no npm packages' unless $ENV{IDEMQ_NODE_MODULES} && -d "$ENV{IDEMQ_NODE_MODULES}/\@nestjs/core";

my $client = "$ENV{IDEMQ_SOURCE}/clients/node";
my $tmp = $PostgreSQL::Test::Utils::tmp_check;

cmp_ok(scalar(map { split /\n/, slurp_file($_) } glob "$client/nestjs/*"), '<=', 400, 'the module has at most 400 lines');

my $app = compiled('nestjs', glob "$FindBin::RealBin/nestjs/*.{ts,json}");
my $node = new_server('nestjs', 'idemq.worker' => 'on', max_connections => 60);
local $ENV{DSN} = sprintf 'postgresql://%s@/postgres?host=%s&port=%d', scalar getpwuid($>), $node->host, $node->port;
chdir $app or die "chdir: $!";
reports('nestjs.test.ts', 10, [ 'node', '--test-reporter=tap', "$app/nestjs.test.js" ]);

# An application in CommonJS.
append_to_file("$app/common.cjs", <<'EOP');
require('reflect-metadata');
const { NestFactory } = require('@nestjs/core');
const { IdemqModule, Queue, getQueueToken } = require('idemq/nestjs');
const { Queue: same } = require('idemq/nestjs');
const root = { module: class {}, imports: [IdemqModule.forRoot({ connection: process.env.DSN }), IdemqModule.forFeature('a', 'b')] };
NestFactory.createApplicationContext(root, { logger: false }).then(async (app) => {
	console.log(app.get(getQueueToken('b'), { strict: false }) instanceof same, Queue.name);
	await app.close();
});
EOP
command_like([ 'node', "$app/common.cjs" ], qr/^true Queue$/m, 'an application in CommonJS');

# Without Nest.
mkdir $_ foreach "$tmp/bare", "$tmp/bare/node_modules";
symlink "$ENV{IDEMQ_NODE_MODULES}/pg", "$tmp/bare/node_modules/pg" or die "symlink: $!";
system_or_bail('cp', '-r', $client, "$tmp/bare/node_modules/idemq");
append_to_file("$tmp/bare/bare.mjs", <<'EOP');
import { Worker } from 'idemq';
console.log(Worker.name, await import('idemq/nestjs').catch(({ code, message }) => `${code}: ${message}`));
EOP
chdir "$tmp/bare" or die "chdir: $!";
command_like([ 'node', 'bare.mjs' ], qr{^Worker ERR_MODULE_NOT_FOUND: idemq/nestjs requires the package \@nestjs/common, which is not installed; run npm install}, 'the client does not need Nest');

is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
