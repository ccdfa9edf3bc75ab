# script/test itself: what it counts, what it refuses to pass, and what it runs again.
# slow: it builds a copy of the tree and starts the runner on it several times
# at least 34 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use POSIX qw(strftime);
use Test::More;

my $tree = "$PostgreSQL::Test::Utils::tmp_check/tree";
my $tests = "$tree/test/t";

mkdir $tree;
system_or_bail('sh', '-c', "tar -C '$ENV{IDEMQ_SOURCE}' --exclude=./test/t/\\*.pl -cf - . | tar -C '$tree' -xf -");

# Writes a TAP test of this body and these lines at its top.
sub write_test
{
	my ($name, $top, $body) = @_;

	unlink "$tests/$name.pl";
	append_to_file("$tests/$name.pl", "$top\nuse Test::More;\n$body\ndone_testing();\n");
	return;
}

# Runs script/test with settings in its environment; answers its status and its output.
sub run_tests
{
	my (%env) = @_;
	my $out;

	# This test's own run is none of its business.
	local %ENV = (map({ $_ => $ENV{$_} } grep { !/^(?:IDEMQ_|TEST|PG|CI$|COPT$|RETRY$|SCOPE$|TAP$|LANES$|KEEP$|RECORD$)/ } keys %ENV),
		PG_CONFIG => $ENV{PG_CONFIG} // 'pg_config', NO_INSTALL => 1, %env);
	IPC::Run::run([ "$tree/script/test", 'tap' ], '<', \undef, '>&', \$out);
	note($out);
	return ($? >> 8, $out);
}

sub flakes
{
	my (@lines) = @_;

	unlink "$tree/test/flakes.tsv";
	append_to_file("$tree/test/flakes.tsv", join '', "# date, commit, test, assertion\n", map { "$_\n" } @lines);
	return;
}

# What passes and what does not.
write_test('good', '# at least 2 assertions', 'ok(1); ok(1);');
write_test('short', '# at least 3 assertions', 'ok(1); ok(1);');
write_test('bad', '', 'ok(0, "the sky is green");');
write_test('skips', '# at least 2 assertions', 'SKIP: { skip "no telescope", 2 }');
write_test('absent', '# at least 5 assertions', 'plan skip_all => "no moon"; ');
write_test('slow', '# slow: it waits for the tide', 'ok(1);');
flakes();

my ($status, $out) = run_tests();
is($status, 1, 'a test that fails fails the run');
like($out, qr/^ok +tap\/good \(2 assertions/m, 'one that makes its assertions passes');
like($out, qr/^not ok tap\/short .*\n(?:.*\n)*?it made 2 assertions, of at least 3$/m, 'one that makes fewer does not');
like($out, qr/^not ok tap\/bad /m, 'a failed assertion fails its test');
like($out, qr/^ +LEFT OUT: tap\/skips: no telescope$/m, 'what is skipped is named');
like($out, qr/^ +LEFT OUT: tap\/absent: no moon$/m, 'as is a test that skips all');
unlike($out, qr/tap\/slow/, 'a slow test is not among the quick ones');
like($out, qr/^3 passed, 2 failed, 2 skipped\n\z/m, 'the last line counts all of them');

($status, $out) = run_tests(CI => 'true', TAP => 'good skips');
is($status, 1, 'with CI=true a skip fails the run');
like($out, qr/^not ok tap\/skips skips: no telescope$/m, 'and is named');
like($out, qr/^2 passed, 1 failed, 1 skipped\n\z/m, 'and counted');

($status, $out) = run_tests(SCOPE => 'slow');
is($status, 0, 'SCOPE=slow: what is left passes');
like($out, qr/^ok +tap\/slow .*\n(?:.*\n)*1 passed, 0 failed, 0 skipped\n\z/m, 'and is the slow tests alone');

# A test that fails the first time only.
sub write_flaky
{
	my ($assertion) = @_;

	unlink "$PostgreSQL::Test::Utils::tmp_check/seen";
	write_test('flaky', '# slow: it fails at first', qq{
		my \$seen = -e '$PostgreSQL::Test::Utils::tmp_check/seen';
		open my \$file, '>', '$PostgreSQL::Test::Utils::tmp_check/seen' or die;
		ok(\$seen, '$assertion');});
	return;
}
my $today = strftime('%Y-%m-%d', localtime);
my @old = localtime(time - 40 * 86400);

write_flaky('the fish bites');
($status, $out) = run_tests(SCOPE => 'slow', RETRY => 1, TAP => 'flaky slow');
is($status, 0, 'RETRY: a test that passes the second time passes');
like($out, qr/^FLAKY tap\/flaky: the fish bites; both logs: \S*\.test\/failed\/tap-flaky/m, 'it is called a flake, by its first failure');
like($out, qr/^add to test\/flakes\.tsv: $today\t\w+( \w+)?\ttap\/flaky\tthe fish bites$/m, 'with the line to add');
like($out, qr/^2 passed, 0 failed, 0 skipped\n\z/m, 'and counted once');
ok(-s "$tree/.test/failed/tap-flaky.first/flaky.log", 'the log of its first failure is kept');

flakes("$today\t1234abcd\ttap/flaky\tthe fish bites");
write_flaky('the fish bites');
($status, $out) = run_tests(RETRY => 1, TAP => 'flaky');
is($status, 1, 'a test with a line of the last 30 days has no second run');
unlike($out, qr/once more/, 'and none is tried');
like($out, qr/^0 passed, 1 failed, 0 skipped\n\z/m, 'it has failed');

flakes(strftime('%Y-%m-%d', @old) . "\t1234abcd\ttap/flaky\tthe fish bites");
write_flaky('the fish bites');
($status, $out) = run_tests(RETRY => 1, TAP => 'flaky');
is($status, 0, 'an older line counts no more');
like($out, qr/^FLAKY tap\/flaky/m, 'it is a flake again');

flakes();
foreach my $broken ('every effect happened once', 'no job is lost', 'the limit is never exceeded')
{
	write_flaky($broken);
	($status, $out) = run_tests(RETRY => 1, TAP => 'flaky');
	is($status, 1, "never retried: $broken");
	unlike($out, qr/once more|FLAKY/, 'it runs once');
}

write_test('broken', '# slow: it fails each time', 'ok(0, "the sun rises");');
($status, $out) = run_tests(RETRY => 1, TAP => 'broken');
is($status, 1, 'a test that fails twice fails');
like($out, qr/^ +tap\/broken failed; it runs once more, alone\n(?:.*\n)*not ok tap\/broken /m, 'after its second run');
like($out, qr/^0 passed, 1 failed, 0 skipped\n\z/m, 'and is counted once');

# .ci/run with a make of our own, which fails in the first part: the second part runs, and the last line counts both.
{
	my $bin = "$PostgreSQL::Test::Utils::tmp_check/bin";
	my %scripts = ("$bin/make" => 'echo "ran: $*"
case "$*" in
"test") echo "3 passed, 1 failed, 0 skipped" && exit 2 ;;
*) echo "5 passed, 0 failed, 2 skipped" ;;
esac', "$tree/script/install-packages" => 'exit 0');
	my $out;

	mkdir $bin;
	foreach my $file (keys %scripts)
	{
		unlink $file;
		append_to_file($file, "#!/bin/sh\n$scripts{$file}\n");
		chmod 0755, $file or die $!;
	}
	local $ENV{PATH} = "$bin:$ENV{PATH}";
	IPC::Run::run([ "$tree/.ci/run" ], '<', \undef, '>&', \$out);
	is($? >> 8, 1, '.ci/run fails when its first part does');
	is($out, "ran: test\nran: test-all SCOPE=slow RETRY=1 KEEP_FAILED=1\n8 passed, 1 failed, 2 skipped\n", 'after both parts, which its last line counts');
}

done_testing();
