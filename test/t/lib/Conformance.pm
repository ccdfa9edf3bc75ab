# The runner of test/conformance in tests: its server, and its adapters.
package Conformance;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use NodeClient;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

our @EXPORT = qw(conformance conformance_server go_adapter);

my $here = "$ENV{IDEMQ_SOURCE}/test/conformance";

sub conformance_server
{
	my (%settings) = @_;

	return new_server('conformance', 'idemq.worker' => 'on', max_connections => 200, %settings);
}

# The adapter of the Go client, built; '' if it cannot be built, for example because its modules cannot be fetched.
sub go_adapter
{
	my $tmp = $PostgreSQL::Test::Utils::tmp_check;
	my $to = "$tmp/go_adapter";

	# Below a copy, because go.mod names the client by its place.
	system_or_bail('mkdir', '-p', "$tmp/tree/test/conformance/adapters", "$tmp/tree/clients");
	system_or_bail('cp', '-R', "$here/adapters/go", "$tmp/tree/test/conformance/adapters");
	system_or_bail('cp', '-R', "$ENV{IDEMQ_SOURCE}/clients/go", "$tmp/tree/clients");
	my $out = qx(cd $tmp/tree/test/conformance/adapters/go && $ENV{IDEMQ_SOURCE}/script/with-go go build -o $to . 2>&1);
	diag($out) if $?;
	return $? ? '' : $to;
}

# conformance(node, name, least, option...): runs scenarios with run.py, at least as many as $least.  Returns what it said on stderr.
sub conformance
{
	my ($node, $name, $least, @options) = @_;
	my $folder = "conformance_$name";
	my @node = ();

	if ($ENV{IDEMQ_NODE_MODULES})
	{
		$folder =~ s/\W/_/g;
		@node = ('--node', folder($folder, "$here/adapters/node.mjs") . '/node.mjs');
	}
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	local $ENV{PGCONNECT_TIMEOUT} = 60;
	delete local $ENV{PGAPPNAME};
	my (undef, $said) = reports($name, $least, [ '/usr/bin/python3', "$here/run.py", '--dsn',
			"host=${\$node->host} port=${\$node->port} dbname=postgres user=" . getpwuid($>), @node, @options ], 2400);
	return $said;
}

1;
