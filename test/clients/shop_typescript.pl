# The shop of doc/tutorials/shop.md in TypeScript (shop_ts): strictly typed, formatted, at most 60 lines, with SQL in one module; and its
# own tests.  What faults do to it: shop_faults.pl.
# slow: needs npm (typescript, prettier)
# at least 7 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Shop;
use Test::More;

# script/test has fetched it, or said why not.
plan skip_all => 'no npm packages' unless $ENV{IDEMQ_NODE_MODULES} && -d "$ENV{IDEMQ_NODE_MODULES}/typescript";

my $app = compiled('shop');
# The producer, the workers and the schedule.  Not counted: tables.ts, provider.ts and the tests.
my @counted = map { "$app/$_.ts" } qw(queues shop server worker);

command_ok([ "$app/node_modules/.bin/prettier", '--check', glob "$app/*.ts" ], 'it is formatted by prettier at 100 columns');
# Without imports, which may have several lines, blank lines and comments.
my @lines = grep { /\S/ && !m{^\s*//} } split /^/, join('', map { slurp_file($_) } @counted) =~ s/^import\b[^;]*;$//gmr;
cmp_ok(scalar(@lines), '<=', 60, 'it has at most 60 lines of code');
note 'figure: ' . @lines . ' lines';
cmp_ok(scalar(@lines), '>', 40, 'the lines are counted');
unlike(join('', map { slurp_file($_) } @counted), qr/\b(?:SELECT|INSERT|UPDATE|DELETE)\b|\.query\(/, 'all SQL is in tables.ts');

my $node = new_server('shop', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on');
my $provider = shop_provider();
local $ENV{DSN} = sprintf 'postgresql://%s@/postgres?host=%s&port=%d', scalar getpwuid($>), $node->host, $node->port;
local $ENV{PGPORT} = $node->port;
local $ENV{PROVIDER} = $provider->{url};
my $out = '';
IPC::Run::run([ 'node', '--test-reporter=tap', "$app/shop.test.js" ], '<', \undef, '>&', \$out, IPC::Run::timeout(200));
is($? >> 8, 0, 'its tests pass') or diag $out;
like($out, qr/^# pass 4$/m, 'all of them');

is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$provider->{run}->kill_kill;
$node->stop;
done_testing();
