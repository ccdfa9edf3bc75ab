# Two sessions read the dependencies at once, after a restart and without a worker: what one of them read
# before a COMMIT PREPARED does not count for what that has made visible.
# at least 11 assertions
# stops: idemq_dependencies_learn_end idemq_dependency_edges

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

plan skip_all => 'no stop points in the library' unless has_stops();

my $node = new_server('learners', max_prepared_transactions => 2);

sql($node, q{
	SELECT idemq.create_queue(n, lease => '1 h') FROM unnest('{parents,children,other}'::text[]) n;
	SELECT idemq.enqueue('parents', '1', key => 'parent');
	BEGIN;
	SELECT idemq.enqueue('children', '1', key => 'child', depends_on => (SELECT array_agg(id) FROM idemq.jobs WHERE key = 'parent'));
	PREPARE TRANSACTION 'child';
});
# The bits of the filter, which the child's enqueue has set, are gone.
$node->restart;
# All queues have queue states by then, and what was known of them is not any more.
sql($node, q{SELECT count(*) FROM idemq.claim_any('{children,other}'); BEGIN; SELECT idemq.enqueue('parents', '2'); PREPARE TRANSACTION 'first'});
sql($node, "COMMIT PREPARED 'first'");

my @stops;
my @sessions = map { session($node) } 1 .. 2;
sub claims
{
	my ($session, $function) = @_;
	my $stop = stop_at($session->{backend}, $function);

	$session->query_until(qr/sent/, "\\echo sent\nSELECT count(*) FROM idemq.claim('other');\n");
	$stop->();
	push @stops, $stop;
	return;
}

claims($sessions[0], 'idemq_dependencies_learn_end');
sql($node, "COMMIT PREPARED 'child'");
claims($sessions[1], 'idemq_dependency_edges');
$stops[0]->();
is($sessions[0]->query('SELECT 1') =~ s/.*\n//sr, '1', 'one has read the rows before the child was there');
is_sql($node, "SELECT count(*) FROM idemq.claim('children')", '0', 'a claim looks at the child: its parent is not done');
is_sql($node, q{SELECT idemq.commit_once(id) FROM idemq.jobs WHERE key = 'parent'}, 'committed', 'then it is');
$stops[1]->();
is($sessions[1]->query('SELECT 1') =~ s/.*\n//sr, '1', 'the other one has read them since');
is_sql($node, "SELECT count(*) FROM idemq.claim('children')", '1', 'the child is released');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
leave(@sessions);

# With the shipped library, one after the other.
shipped($node);
sql($node, "SELECT idemq.commit_once(id) FROM idemq.jobs WHERE status = 'pending'; SELECT idemq.enqueue('parents', '1', key => 'other parent');
	BEGIN; SELECT idemq.enqueue('children', '1', key => 'other child', depends_on => (SELECT array_agg(id) FROM idemq.jobs WHERE key = 'other parent')); PREPARE TRANSACTION 'child'");
is_sql($node, "SELECT count(*) FROM idemq.claim('other')", 0, 'a claim reads the rows before the child is there');
sql($node, "COMMIT PREPARED 'child'");
is_sql($node, "SELECT count(*) FROM idemq.claim('children')", 0, 'the parent is not done');
is_sql($node, q{SELECT idemq.commit_once(id) FROM idemq.jobs WHERE key = 'other parent'}, 'committed', 'then it is');
is_sql($node, "SELECT count(*) FROM idemq.claim('children')", 1, 'the child is released');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
$node->stop;
done_testing();
