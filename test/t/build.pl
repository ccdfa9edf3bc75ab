# The Makefile as PGXS users know it: built outside of the tree, installed below DESTDIR with
# the documents, make installcheck on a running server, without libcurl, uninstall, clean.
# slow: compiles everything twice
# at least 25 assertions
# takes long

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use File::Find;
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my ($build, $root) = ("$tmp/build", "$tmp/root");
my $output;

# The caller's choice of tests is not ours.
delete @ENV{qw(REGRESS ISOLATION TAP CLIENTS)};
mkdir $build;

# make in the directory outside of the tree; answers whether it succeeded.
sub make
{
	return IPC::Run::run([ 'make', '-s', '-j2', '-C', $build, '-f', "$source/Makefile", 'PG_CONFIG=pg_config',
			'COPT=-O0', 'WERROR=', @_ ], '<', \undef, '>&', \$output, IPC::Run::timeout($ENV{TEST_TIMEOUT} // 300));
}

# The files below a directory, with or without what changes when they are written.
sub files
{
	my ($dir, $with_time) = @_;
	my @files;

	find(sub { push @files, substr($File::Find::name, length($dir) + 1) . ($with_time ? ' ' . (stat)[9] : '') if -f },
		$dir) if -d $dir;
	return sort @files;
}

my @before = files($source, 1);
ok(make('all'), 'builds in a directory of its own') or diag $output;
is_deeply([ files($source, 1) ], \@before, 'which leaves the tree as it is');
my @units = map { s{^\Q$source\E/(.*)\.c$}{$1.o}r } glob("$source/src/*.c $source/src/*/*.c $source/src/*/*/*.c $source/idemq-work/*.c $source/cluster/*.c");
is_deeply([ grep { /\.o$/ } files($build) ], [ sort @units ], 'with all objects');
ok(make('-q', 'all', 'WERROR=-Werror'), 'which are those of script/test, too') or diag $output;

ok(make('install', "DESTDIR=$root", "VPATH=$source"), 'installs, also with the VPATH of pg_buildext') or diag $output;
my @installed = files($root);
is(scalar(grep { m{/lib/idemq(?:_cluster)?\.so$} } @installed), 2, 'the libraries');
is(scalar(grep { m{/bin/idemq-(?:work|move-shard)$|/man/man1/idemq-work\.1$} } @installed), 3, 'the runner and its manual page, and what moves a shard');
my ($version) = slurp_file("$source/idemq.control") =~ /^default_version = '(.*)'/m;
my ($script) = grep { m{/extension/idemq--\Q$version\E\.sql$} } @installed;
my ($released) = slurp_file("$source/Makefile") =~ /^RELEASED =(.*)$/m;
is_deeply([ sort map { m{/extension/(idemq[^/]*)$} ? $1 : () } @installed ], [ sort qw(idemq.control idemq_cluster.control), "idemq_cluster--$version.sql", "idemq--$version.sql", $released =~ m{sql/(\S+)}g ],
	'the control files, the scripts of this version and those of released ones');
is(slurp_file("$root/$script"), join('', map { slurp_file($_) } sort glob("$source/sql/parts/*.sql")), 'which has all parts');
is(slurp_file("$source/sql/" . $script =~ s{.*/}{}r), slurp_file("$root/$script"), 'as the one that was built in the tree');
my @documents = map { m{/extension/idemq/(.*)} ? $1 : () } @installed;
is_deeply(\@documents, [ sort(qw(README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE), grep { m{^doc/.*\.(md|svg|png)$|^deploy/.*/|^cluster/README} } files($source)) ],
	'the documents, in their folders');

ok(make('uninstall', "DESTDIR=$root"), 'uninstalls') or diag $output;
is_deeply([ files($root) ], [], 'what it had installed');

# On a server with the settings of one who has just installed it.
my $node = new_node('build', 'idemq.worker' => 'on', max_prepared_transactions => 0);
$node->start;
{
	local ($ENV{PGHOST}, $ENV{PGPORT}) = ($node->host, $node->port);
	ok(make('installcheck', 'REGRESS=attempts keys', 'ISOLATION=group-order zombie'),
		'installcheck, with a background worker about') or diag $output, map { slurp_file($_) } glob("$build/{,*/,*/*/}regression.diffs");
	is(scalar(() = $output =~ /^(?:test|ok) .*\b(?:attempts|keys|group-order|zombie)\b/mg), 4, 'of four tests') or diag $output;
	ok(!make('installcheck', 'REGRESS=no_such_test'), 'a test that fails is a failure');
}
is_sql($node, "SELECT datname FROM pg_database WHERE datname LIKE 'idemq%'", '', 'no database of a test is left');
$node->stop;

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->start;
{
	local ($ENV{PGHOST}, $ENV{PGPORT}) = ($node->host, $node->port);
	ok(!make('installcheck', 'REGRESS=keys'), 'without preload there is nothing to check');
	like($output, qr/the server does not preload idemq/, 'and make says why');
}
$node->stop;

# Where pkg-config finds no libcurl.
{
	mkdir "$tmp/path";
	append_to_file("$tmp/path/pkg-config", "#!/bin/sh\nexit 1\n");
	chmod 0755, "$tmp/path/pkg-config";
	local $ENV{PATH} = "$tmp/path:$ENV{PATH}";
	ok(make('idemq-work/idemq-work'), 'builds without libcurl') or diag $output;
	is($output, "idemq-work is built without --http: pkg-config finds no libcurl 7.66 and libcrypto\n", 'of which make says in one line what is left out');
	my $said = qx('$build/idemq-work/idemq-work' -q q --http http://127.0.0.1/ 2>&1);
	is(($? >> 8) . ": $said", "2: idemq-work: this idemq-work was built without libcurl, so --http is not available\n", 'as --http does');
}

ok(!make('-q', 'all', 'COPT=-O1'), 'objects are not those of other flags');
ok(make('clean'), 'cleans') or diag $output;
is_deeply([ files($build) ], [], 'all of it');

done_testing();
