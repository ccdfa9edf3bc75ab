# idemq-work in tests: what it is started with, what it says, how it ends.
package Runner;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(start_runner ended until_file until_said open_gate runs is_job endpoint);

# Known when the test begins.
sub tmp { return $PostgreSQL::Test::Utils::tmp_check }
my $files = 0;

# A runner for queue q: { run, err, out, pid }; its programs find the test's files in $T.
sub start_runner
{
	my ($dsn, @options) = @_;
	my $err = "${\tmp}/work." . ++$files . '.err';
	my $out = "${\tmp}/work.$files.out";

	local $ENV{T} = tmp;
	local @ENV{ to_begin() ? 'PGCONNECT_TIMEOUT' : () } = 60;
	my $run = IPC::Run::start([ 'idemq-work', '-d', $dsn, '-q', 'q', @options ],
		'<', \undef, '>', $out, '2>', $err, IPC::Run::timeout($ENV{TEST_TIMEOUT} // 300));
	return { run => $run, err => $err, out => $out, pid => $run->{KIDS}[0]{PID} };
}

# Its end: the exit status, or that and more when a signal ended it, and what it said on stderr.
sub ended
{
	my ($runner) = @_;

	$runner->{run}->finish;
	my $status = $runner->{run}->full_result(0);

	return ($status & 127 ? $status : $status >> 8, slurp_file($runner->{err}));
}

sub until_file { my ($file) = @_; until_true($file, sub { -s "${\tmp}/$file" }); return slurp_file("${\tmp}/$file") }

sub until_said
{
	my ($runner, $what) = @_;

	eval { until_true($what, sub { slurp_file($runner->{err}) =~ $what }); 1 } or die "$@It said:\n" . slurp_file($runner->{err});
	return;
}

sub open_gate { append_to_file("${\tmp}/$_[0]", "open\n"); return }

# Whether a process with this number runs and is not a zombie.  It may end between open and read.
sub runs { my ($pid) = @_; return (eval { slurp_file("/proc/$pid/stat") } // '') =~ /\) [^ZX] / }

# Of a job: status, attempt, result, last error.
sub is_job
{
	my ($node, $id, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $is = sql($node, "SELECT status, attempt, result, last_error FROM idemq.jobs WHERE id = $id");
	return ref $expected ? like($is, $expected, $name) : is($is, $expected, $name);
}

# An endpoint (test/clients/endpoint.py), at a port or a socket: { run, at, log }.
sub endpoint
{
	my ($log, @where) = @_;
	my ($at, $end) = ('', time + 180);
	my $run = IPC::Run::start([ 'python3', "$ENV{IDEMQ_SOURCE}/test/clients/endpoint.py", "${\tmp}/$log", @where ], '<', \undef, '>', \$at, '2>', "${\tmp}/$log.err");

	$run->pump until $at =~ /\n/ || !$run->pumpable || time > $end;
	chomp $at;
	$at ne '' or die 'no endpoint: ' . slurp_file("${\tmp}/$log.err");
	return { run => $run, at => $at, log => "${\tmp}/$log" };
}

1;
