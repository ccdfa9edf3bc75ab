# Every SQL function, with arguments of every kind, by all roles, in transactions of every
# kind, in sessions side by side (test/fuzz/fuzz.py): no crash, no internal error, no
# SQLSTATE that the manual does not name, nothing of another tenant's seen or changed.
#
# FUZZ_CALLS=n calls (3,000; make fuzz: 100,000); FUZZ_SEED=n repeats the choices of a run
# (not its interleaving).  Without it the seed comes from the sources: the same for as long as
# they are the same, so that a failure repeats, and another for each change.
# at least 6 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Digest::MD5 'md5';
use File::Find;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

# A number that the C and SQL sources, and the fuzzer, decide.
sub seed_of_sources
{
	my @files = ("$ENV{IDEMQ_SOURCE}/test/fuzz/fuzz.py");

	find({ no_chdir => 1, wanted => sub { push @files, $_ if /\.(?:c|h|sql)$/ } }, map { "$ENV{IDEMQ_SOURCE}/$_" } qw(src sql));
	return unpack('N', md5(map { slurp_file($_) } sort @files)) >> 1;
}

my $calls = $ENV{FUZZ_CALLS} // 3000;
# make fuzz, which sets FUZZ_CALLS, makes new choices each time.
my $seed = $ENV{FUZZ_SEED} // ($ENV{FUZZ_CALLS} ? int(rand(2**31)) : seed_of_sources());

diag "figure: seed $seed: FUZZ_SEED=$seed repeats it";
my $node = new_server('fuzz', 'idemq.worker' => 'on', max_connections => 80, deadlock_timeout => '20ms', # meant to expire
	log_statement => 'none', log_min_error_statement => 'error', max_prepared_transactions => 20);
my ($out, $error) = ('', '');

ok(IPC::Run::run([ '/usr/bin/python3', "$ENV{IDEMQ_SOURCE}/test/fuzz/fuzz.py", "host=${\$node->host} port=${\$node->port} dbname=postgres",
			$calls, $seed ], '<', \undef, '>', \$out, '2>', \$error, IPC::Run::timeout(60 + $calls / 10)), 'it came to its end');
is($error, '', 'and complained of nothing');
is(join("\n", $out =~ /^found: .*$/mg), '', 'nothing was found');
like($out, qr/^figure: (\d+) calls/m, 'it said what it did');
cmp_ok($out =~ /^figure: (\d+) calls/m ? $1 : 0, '>=', 0.99 * $calls, 'there were so many calls');
diag $_ foreach $out =~ /^figure: .*$/mg;
is_sql($node, 'SELECT 1', 1, 'the server is there');
$node->stop;
done_testing();
