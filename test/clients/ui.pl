# The parts of the web page (ui/) that need neither npm nor a browser: how it reads the history (ui/test/history.mjs), and
# whether the server accepts each of its statements (ui/test/statements.mjs).  ui_slow.pl tests the page itself.
# at least 51 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

plan skip_all => 'no node-pg' unless $ENV{IDEMQ_NODE_MODULES};

my $ui = PostgreSQL::Test::Utils::tempdir() . '/ui';
system_or_bail('cp', '-r', "$ENV{IDEMQ_SOURCE}/ui", $ui);
system_or_bail('rm', '-rf', "$ui/node_modules");
symlink $ENV{IDEMQ_NODE_MODULES}, "$ui/node_modules" or die "symlink: $!";

my $node = new_server('ui');
my (undef, $trouble) = reports('history.mjs', 10, [ 'node', '--max-old-space-size=160', "$ui/test/history.mjs" ]);
is($trouble, '', 'history.mjs: and nothing else');

local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ($node->host, $node->port, 'postgres', 'postgres');
reports('statements.mjs', 36, [ 'node', "$ui/test/statements.mjs" ]);
$node->stop;
done_testing();
