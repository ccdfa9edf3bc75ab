# Programs in other languages that report tests: each "ok - NAME", "not ok - NAME" or "ok - NAME # skip REASON" that
# they print becomes an assertion of the test that runs them, so that the runner counts them and sees every skip.
package Reports;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use Test::More;

our @EXPORT = qw(reports);

# reports(name, least, command, [seconds]): runs a program of tests.  It also asserts that the program ends with status 0
# after at least $least tests, because a program that was killed or that ended early has not passed.
# Returns the program's stdout and stderr.
sub reports
{
	my ($name, $least, $command, $seconds) = @_;
	my ($out, $err, $made) = ('', '', 0);
	my $status = eval { IPC::Run::run($command, '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout($seconds // 900)); $? };
	my $end = defined $status ? "status $status" : "none: $@";

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# Only whole lines: if the program was killed, its last line may be incomplete.
	while ($out =~ /^(not )?ok\b(?: \d+)?(?: - | )?(.*)\n/mg)
	{
		my ($failed, $test) = ($1, "$name: $2");

		$made++;
		if (!$failed && $test =~ / # skip\b\s*(.*)/i) { my $reason = $1; SKIP: { skip($reason, 1) } }
		else { ok(!$failed, $test) }
	}
	is($end, 'status 0', "$name: ends well") or diag $out . $err;
	cmp_ok($made, '>=', $least, "$name: all of its tests ran");
	return ($out, $err);
}

1;
