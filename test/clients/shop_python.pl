# The shop of doc/tutorials/shop.md in Python (shop_py): strictly typed, at most 60 lines, with SQL in one module; and its own tests.
# What faults do to it: shop_faults.pl.  That ruff has formatted it: python_typing.pl.
# at least 6 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Shop;
use Test::More;

my $shop = "$ENV{IDEMQ_SOURCE}/test/clients/shop_py";
local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;

# The producer, the workers and the schedule.  Not counted: tables.py, provider.py and the tests.
my $counted = join '', map { slurp_file("$shop/$_.py") } qw(queues shop server worker);
# Without imports, docstrings, blank lines and comments.
my @lines = grep { /\S/ && !/^\s*#/ } split /^/, $counted =~ s/^""".*?"""$//gmsr =~ s/^(?:from \S+ )?import (?:\([^)]*\)|.*)$//gmr;
cmp_ok(scalar(@lines), '<=', 60, 'it has at most 60 lines of code');
note 'figure: ' . @lines . ' lines';
cmp_ok(scalar(@lines), '>', 40, 'the lines are counted');
unlike($counted, qr/\b(?:SELECT|INSERT|UPDATE|DELETE)\b|\bexecute\b/, 'all SQL is in tables.py');
is(join(' ', grep { length > 100 } split /\n/, join '', map { slurp_file($_) } glob "$shop/*.py"), '', 'no line is longer than 100 characters');

my $node = new_server('shop', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on');
my $provider = shop_provider();
local $ENV{DSN} = sprintf 'postgresql://%s@/postgres?host=%s&port=%d&connect_timeout=60', scalar getpwuid($>), $node->host, $node->port;
local $ENV{PROVIDER} = $provider->{url};
my $out = '';
IPC::Run::run([ '/usr/bin/python3', "$shop/test_shop.py" ], '<', \undef, '>&', \$out, IPC::Run::timeout(200));
is($? >> 8, 0, 'its tests pass') or diag $out;
like($out, qr/^Ran 4 tests/m, 'all of them');

is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$provider->{run}->kill_kill;
$node->stop;
done_testing();
