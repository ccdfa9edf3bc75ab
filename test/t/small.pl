# Functions of arithmetic alone, over all small inputs (test/small/small.c): the history of lowerings,
# the read-ahead buffer, GCRA, backoff, tokens, retention's ranges.
# at least 4 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $program = "$PostgreSQL::Test::Utils::tmp_check/small";
my ($cc, $include) = map { my $out; IPC::Run::run([ 'pg_config', $_ ], '>', \$out); chomp $out; $out } qw(--cc --includedir-server);
my ($said, $out) = ('', '');

# What the files call and no test reaches goes with its section.
ok(IPC::Run::run([ $cc, qw(-O1 -w -ffunction-sections -fdata-sections -D_GNU_SOURCE), '-Wl,--gc-sections',
			"-I$source/src", '-isystem', $include, '-o', $program, "$source/test/small/small.c", '-lm' ], '>&', \$said), 'it builds') or diag $said;
ok(IPC::Run::run([$program], '>', \$out, IPC::Run::timeout(300)), 'and comes to its end');
like($out, qr/^1\.\.15$/m, 'with all tests');
is(scalar(() = $out =~ /^ok /mg), 15, 'each of which holds');
diag $1 while $out =~ /^# (?!figure)(.*)$/mg;
diag $1 while $out =~ /^# (figure: .*)$/mg;
done_testing();
