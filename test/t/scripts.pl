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

# Lint looks again at what has changed, and at what has not passed; CI=true at all.  Its checks are two of our own here.
{
	my $tree = "$tmp/tree";
	my $looked;
	my $lint = slurp_file("$source/script/lint") =~ s/^check ".*//msr;
	my $write = sub { my ($file, $text) = @_; unlink "$tree/$file"; append_to_file("$tree/$file", $text) };
	my $run = sub {
		unlink "$tmp/looked";
		IPC::Run::run([ 'bash', "$tree/script/lint" ], '<', \undef, '>&', \$output);
		$looked = -e "$tmp/looked" ? join ' ', sort split ' ', slurp_file("$tmp/looked") : '';
	};

	mkdir $_ or die "$_: $!" foreach $tree, map { "$tree/$_" } 'script', 'src', 'doc';
	$write->('script/lint', "$lint
look() { echo \$1 >>'$tmp/looked'; grep -H mistake \$1/* || true; ! grep -q failure \$1/*; }
reads='src/' check 'of src' look src
check 'of doc' look doc
all_shown
[ \$unchanged -eq 0 ] || echo unchanged: \$unchanged
exit \$bad
");
	$write->($_, "text\n") foreach 'src/a.c', 'doc/a.txt', 'Makefile';
	local $ENV{CI} = '';

	$run->();
	is("$looked: $output", "doc src: ok of src\nok of doc\n", 'lint looks at what it has not seen');
	$run->();
	is("$looked: $output", "doc: ok of src\nok of doc\nunchanged: 1\n", 'not again at what has passed, where it is told what is read');
	$write->('doc/b.txt', 'text');
	$run->();
	is($looked, 'doc', 'nor when another file has changed');
	foreach my $bad ([ 'mistake', "src/a.c:mistake\n" ], [ 'failure', '' ])
	{
		$write->('src/a.c', $bad->[0]);
		foreach my $time ('that has changed', 'that has not passed')
		{
			$run->();
			is("$looked: $output", "doc src: not ok of src\n$bad->[1]ok of doc\n", "at a file $time: a $bad->[0]");
		}
	}
	$write->('src/a.c', "text\n");
	$run->();
	is($looked, 'doc', 'at no file that is as it was when it passed');
	foreach my $change ([ 'src/b.c', "text\n" ], [ 'Makefile', "all:\n" ], [ 'script/lib.sh', "true\n" ])
	{
		$write->(@$change);
		$run->();
		is($looked, 'doc src', "but when $change->[0] is new, or another");
		$run->();
		is($looked, 'doc', 'once');
	}
	$ENV{CI} = 'true';
	$run->();
	is("$looked: $output", "doc src: ok of src\nok of doc\n", 'with CI=true at everything');
}

done_testing();
