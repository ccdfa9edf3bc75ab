# A proxy (test/clients/silent_proxy.py) that swallows what clients and a server say to each other, from the point on that a test names.
package SilentProxy;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(silent_proxy);

my $count = 0;

# One of its own, before this server: { run, port, arm => sub { WHEN }, silent => sub: waits until it has swallowed something }.
sub silent_proxy
{
	my ($node) = @_;
	my $tmp = $PostgreSQL::Test::Utils::tmp_check;
	my $control = "$tmp/control." . ++$count;
	my $out = '';
	my $run = IPC::Run::start([ '/usr/bin/python3', '-u', "$ENV{IDEMQ_SOURCE}/test/clients/silent_proxy.py", $control, $node->host . '/.s.PGSQL.' . $node->port ],
		'<', \undef, '>', \$out, '2>', "$tmp/proxy.$count.err");

	$run->pump until $out =~ /^(\d+)\n/ || !$run->pumpable;
	my %proxy = (run => $run, port => $1);
	my $silent = 0;
	$proxy{arm} = sub { append_to_file($control, "$_[0]\n") };
	$proxy{silent} = sub {
		until_true('it is silent', sub { $run->pump_nb; $silent < (() = $out =~ /^silent/mg) });
		$silent++;
	};
	return \%proxy;
}

1;
