# A move of a shard that is killed between any two of its steps, and given up: nothing comes of it.
# slow: each move copies a database by logical replication
# at least 21 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use Shards;
use Test::More;

my $node = shards('shards_slow');

rt(set_place($_, "s$_")) foreach 0, 1;
rt(q{SELECT count(*) FROM cluster.create_queue('q')});
movable();
is_killed_after($_) foreach 'CREATE SUBSCRIPTION', 'lock_timeout', 'idemq.take_over()';

$node->stop;
done_testing();
