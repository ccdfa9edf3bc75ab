# What the tests of the Node client share: the package as npm makes it, and programs.
package NodeClient;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(slurped until_file packed application);

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

# Packs the client as npm would publish it; answers what npm says of it.
sub packed
{
	my $tmp = $PostgreSQL::Test::Utils::tmp_check;
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'npm', 'pack', '--cache', "$tmp/cache", '--pack-destination', $tmp, '--json', "$ENV{IDEMQ_SOURCE}/clients/node" ],
		'<', \undef, '>', \$out, '2>', \$err) or die "npm pack: $err";
	my $said = JSON::PP->new->decode($out);
	# npm 12 names each package; before, it was a list.
	return ref $said eq 'ARRAY' ? $said->[0] : $said->{idemq};
}

# A folder of an application with the packed client, other packages, and programs.
sub application
{
	my ($name, $packages, @programs) = @_;
	my $tmp = $PostgreSQL::Test::Utils::tmp_check;
	my $app = "$tmp/$name";

	mkdir $_ foreach $app, "$app/node_modules";
	system_or_bail('tar', '-xf', glob("$tmp/idemq-*.tgz"), '-C', "$app/node_modules");
	rename "$app/node_modules/package", "$app/node_modules/idemq" or die $!;
	symlink "$ENV{IDEMQ_NODE_MODULES}/$_", "$app/node_modules/$_" foreach @$packages;
	append_to_file("$app/package.json", '{ "type": "module" }');
	system_or_bail('cp', @programs, $app);
	return $app;
}

1;
