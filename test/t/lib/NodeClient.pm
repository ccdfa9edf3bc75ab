# Shared by the tests of the Node client: an application that has the client from the source tree, or the package that
# npm makes, and the programs of a test.
package NodeClient;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(slurped until_file folder packed application);

# A file of the test's folder; '' when it is not there.
sub slurped
{
	my ($file) = @_;
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$file";

	return -e $path ? slurp_file($path) : '';
}

# Waits until such a file has a line, or what matches.
sub until_file
{
	my ($file, $what) = @_;

	until_true("$file: " . ($what // 'a line'), sub { slurped($file) =~ ($what // qr/\n/) });
	return;
}

# The folder of an application with the client from the source tree, pg, and programs.  It needs no npm.
sub folder
{
	my ($name, @programs) = @_;
	my $app = "$PostgreSQL::Test::Utils::tmp_check/$name";

	mkdir $_ foreach $app, "$app/node_modules";
	append_to_file("$app/package.json", '{ "type": "module" }');
	# A copy, not a link: Node looks for the imports of a linked package next to the link's target.
	system_or_bail('cp', '-r', "$ENV{IDEMQ_SOURCE}/clients/node", "$app/node_modules/idemq");
	symlink "$ENV{IDEMQ_NODE_MODULES}/pg", "$app/node_modules/pg" or die "symlink: $!";
	system_or_bail('cp', @programs, $app);
	return $app;
}

# The package as make dist makes it; its path.
sub packed
{
	my $tmp = $PostgreSQL::Test::Utils::tmp_check;

	system_or_bail("$ENV{IDEMQ_SOURCE}/script/release/make-clients", $tmp, $ENV{IDEMQ_SOURCE}, 'node');
	return glob "$tmp/idemq-*.tgz";
}

# A folder of an application in which npm has installed the client, and with it pg, other packages, and programs.
sub application
{
	my ($name, $packages, @programs) = @_;
	my $tmp = $PostgreSQL::Test::Utils::tmp_check;
	my $app = "$tmp/$name";

	mkdir $app;
	append_to_file("$app/package.json", '{ "type": "module" }');
	# What script/test has fetched, and no more.
	system_or_bail('npm', 'install', '--prefix', $app, '--offline', '--cache', "$ENV{IDEMQ_NODE_MODULES}/../cache", '--no-audit', '--no-fund',
		'--silent', glob("$tmp/idemq-*.tgz"), @$packages);
	system_or_bail('cp', @programs, $app);
	return $app;
}

1;
