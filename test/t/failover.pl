# The scenarios of make failover that take servers alone, in small: an asynchronous standby that
# lags is promoted, and a synchronous one; producers and workers under way, every job accounted
# for.  What holds, and how it is counted: test/failover/README.md.
# slow: traffic of some seconds, and two failovers
# at least 24 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();
my $out = '';

chomp(my $bin = `pg_config --bindir`);
# Where Patroni is not installed, and who runs this may not search a folder of PATH.
mkdir "$dir/closed", 0 or die "$dir/closed: $!";
local @ENV{qw(FAILOVER_WORK FAILOVER_BIN FAILOVER_WARM FAILOVER_SLOW SCENARIO PATH)} = ($dir, $bin, 40, 1 + 2 * to_begin(), 'async sync', "$dir/closed:$bin");
ok(IPC::Run::run([ '/usr/bin/python3', "$ENV{IDEMQ_SOURCE}/test/failover/main.py", "$dir/table" ],
		'<', \undef, '>&', \$out, IPC::Run::timeout($ENV{TEST_TIMEOUT} // 400)), 'all went well') or diag $out;
like($out, qr{^ok     failover/$_ }m, $_) foreach 'async', 'sync';

# A table of nothing, or of another event, is none: jobs and commits, those lost, effects twice.
my @rows = map { [ map { s/[^0-9]//gr } (split / \| /)[ 4 .. 8 ] ] } grep { /^\| .*(killed|planned)/ } split /^/, slurp_file("$dir/table");
is(@rows, 4, 'four events');
foreach my $n (0 .. $#rows)
{
	my ($jobs, $commits, $lost, $lost_commits, $twice) = @{ $rows[$n] };

	cmp_ok($jobs, '>', 80, "event $n: jobs were acknowledged");
	cmp_ok($commits, '>', 80, 'so were commits');
	cmp_ok($lost, $n == 0 ? '>' : '==', 0, $n == 0 ? 'asynchronous: jobs were lost' : 'none was lost');
	cmp_ok($lost_commits, $n == 0 ? '>' : '==', 0, $n == 0 ? 'so were commits' : 'no commit was');
	is($twice, 0, 'no effect twice');
}

done_testing();
