# What the scripts promise to who runs them, whatever machine they are on.

use strict;
use warnings FATAL => 'all';

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $output;

# A script of bash's with script/lib.sh; answers what it says.
sub script
{
	my ($text, @arguments) = @_;

	IPC::Run::run([ 'bash', '-c', ". '$source/script/lib.sh'; $text", 'script', @arguments ], '<', \undef, '>&', \$output, IPC::Run::timeout(180));
	return $output;
}

# Root's PATH may begin with a folder that user postgres may not search.
mkdir "$tmp/closed", 0 or die "$tmp/closed: $!";
{
	local $ENV{PATH} = "$tmp/closed:$ENV{PATH}";
	my $missing = 'import subprocess; subprocess.run(["no-such-program"])';

	like(IPC::Run::run([ '/usr/bin/python3', '-c', $missing ], '>&', \$output) . $output, qr/PermissionError/, 'such a PATH forbids what is not there');
	like(script('as_server /usr/bin/python3 -c "$1"', $missing), qr/FileNotFoundError/, 'that of programs of the server has no such folder');
	is(script('bindir=/usr as_server printenv PATH') =~ s/:.*//sr, '/usr', 'and begins with the private PostgreSQL');
}

# What would be installed is said; NO_INSTALL=1 does without.
{
	mkdir "$tmp/bin" or die "$tmp/bin: $!";
	foreach my $program ([ 'id', 'echo 0' ], [ 'apt-get', "touch '$tmp/called'" ],
		[ 'dpkg-query', q{for p; do case $p in mandoc | mypy | prometheus) ;; *) printf 'installed:%s ' "$p" ;; esac; done} ])
	{
		append_to_file("$tmp/bin/$program->[0]", "#!/bin/sh\n$program->[1]\n");
		chmod 0755, "$tmp/bin/$program->[0]" or die $!;
	}
	local @ENV{qw(PATH NO_INSTALL)} = ("$tmp/bin:$ENV{PATH}", 1);
	my $install = sub { return IPC::Run::run([ "$source/script/install-packages", 'test', @_ ], '<', \undef, '>&', \$output) };

	ok(!$install->('lint'), 'what is needed ends the run');
	is($output, "missing packages; as root: apt-get install mandoc mypy\n", 'and is named');
	ok($install->('tap'), 'what is wished for does not');
	is($output, "done without: prometheus\n", 'and is named, too');
	ok(!-e "$tmp/called", 'nothing is installed');
}

done_testing();
