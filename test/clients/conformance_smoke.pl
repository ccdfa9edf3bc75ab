# One scenario of test/conformance for each client but Go's: the effect and the job commit together.
# at least 5 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Conformance;
use Idemq;
use NodeClient;
use Test::More;

my $node = conformance_server(max_connections => 60);
my @node = $ENV{IDEMQ_NODE_MODULES} ? ('node') : ();

SKIP: { skip 'no node-pg', 1 unless @node; pass('node-pg is there') }
conformance($node, 'smoke', 4 + @node, '--clients', join(' ', 'python', @node, 'idemq-work'), '--only', '6 14');
$node->stop;
done_testing();
