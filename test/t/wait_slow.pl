# CALL idemq.wait ends before statement_timeout ends it, and is refused on a standby.
# slow: a statement_timeout passes in real time
#
# at least 2 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use Test::More;

my $node = new_server('wait', 'idemq.worker' => 'on');
my $call = "CALL idemq.wait('q', '10 h')";

ends_in_time($node, $call, 'f', 'it ends before statement_timeout');

$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
is_state($standby, $call, '25006', "standby: $call");
$standby->stop;
$node->stop;
done_testing();
