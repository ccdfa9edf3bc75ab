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

done_testing();
