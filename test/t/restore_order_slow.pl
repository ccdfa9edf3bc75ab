# A restore table by table (restore_order) in further orders, some of them at random, with a worker that has random
# amounts of time between two tables.
# slow: random orders and pauses, as many as the time allows
# at least 73 assertions
#
#   RESTORE_ORDERS=n  orders with each server (6); the first ones are always the same
#   RESTORE_SEED=n    of the others

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use List::Util qw(shuffle);
use PostgreSQL::Test::Utils;
use RestoreOrder;
use Test::More;

my $seed = $ENV{RESTORE_SEED} // time;
my $orders = $ENV{RESTORE_ORDERS} // 6;

diag "RESTORE_SEED=$seed";
srand $seed;

# Jobs last, first, and before their queues; then any order.
my @first = ([qw(queues dependencies children steps events attempts jobs)], [qw(jobs children dependencies steps events attempts queues)],
	[qw(queues dependencies jobs children steps events attempts)], [ reverse @tables ]);
start_servers();
foreach my $n (0 .. $orders - 1)
{
	my @order = $n < @first ? @{ $first[$n] } : shuffle(@tables);

	try_order($_, "copy$n", \@order, undef, 0.03) foreach $without, $with;
}
try_order($_, 'at_random', [ shuffle(@tables) ], [ shuffle(@tables) ], 0.03) foreach $without, $with;
is(unexpected($with, 'workers'), '', 'no error of the worker');

done_testing();
