# The scenarios of test/conformance: each client alone; with CONFORMANCE_ALL (make conformance) also all clients mixed on one database, and
# each mutant, which must fail.
# ADAPTER='cmd' instead of the clients (make conformance), OMIT='16 17', ONLY='1 6', MUTANTS=1: only the mutants.
# slow: kills, leases and limits of time; fetches Go modules
# takes long
# at least 8 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Conformance;
use Idemq;
use Test::More;

my $node = conformance_server();
my @only = $ENV{CONFORMANCE_ONLY} ? ('--only', $ENV{CONFORMANCE_ONLY}) : ();
my @omit = $ENV{CONFORMANCE_OMIT} ? ('--omit', $ENV{CONFORMANCE_OMIT}) : ();

sub summary { my ($said) = @_; note($_) foreach $said =~ /^# (\S+: \d+ passed.*)/mg; diag($_) foreach $said =~ /^# (\S+: \d+ passed.*)/mg; return }

if ($ENV{CONFORMANCE_ADAPTER})
{
	summary(conformance($node, 'adapter', 1, '--adapter', $ENV{CONFORMANCE_ADAPTER}, @omit, @only));
}
else
{
	my ($go, @clients) = (go_adapter(), 'python', 'idemq-work');

	SKIP: { skip 'no Go, or its modules cannot be fetched', 1 unless $go; pass('Go is there'); push @clients, 'go' }
	SKIP: { skip 'no npm packages', 1 unless $ENV{IDEMQ_NODE_MODULES}; pass('Node is there'); push @clients, 'node' }
	my @options = ('--clients', "@clients", ($go ? ('--go', $go) : ()), @only);
	my $least = @only ? 1 : 30;

	if (!$ENV{CONFORMANCE_MUTANTS})
	{
		summary(conformance($node, 'alone', $least * @clients, @options));
		summary(conformance($node, 'mixed', $least, '--mixed', @options)) if $ENV{CONFORMANCE_ALL};
	}
	conformance($node, 'mutants', $least, '--mutants', @options) if $ENV{CONFORMANCE_ALL} || $ENV{CONFORMANCE_MUTANTS};
}
is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'every invariant holds');
$node->stop;
done_testing();
