# Two sessions read the dependencies at once, after a restart and without a worker: what one of them read
# before a COMMIT PREPARED does not count for what that has made visible.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('learners', max_prepared_transactions => 2);
plan skip_all => 'no gdb that may attach' unless has_debugger($node);

sql($node, q{
	SELECT idemq.create_queue(n, lease => '1 h') FROM unnest('{parents,children,other}'::text[]) n;
	SELECT idemq.enqueue('parents', '1', key => 'parent');
	BEGIN;
	SELECT idemq.enqueue('children', '1', key => 'child', depends_on => (SELECT array_agg(id) FROM idemq.jobs WHERE key = 'parent'));
	PREPARE TRANSACTION 'child';
});
# The bits of the filter, which the child's enqueue has set, are gone.
$node->restart;
# All queues have slots by then, and what was known of them is not any more.
sql($node, q{SELECT count(*) FROM idemq.claim_any('{children,other}'); BEGIN; SELECT idemq.enqueue('parents', '2'); PREPARE TRANSACTION 'first'});
sql($node, "COMMIT PREPARED 'first'");

my @stops;
my @sessions = map { session($node) } 1 .. 2;
sub claims
{
	my ($session, $function) = @_;
	my $stop = stop_at($session->query_safe('SELECT pg_backend_pid()'), $function);

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
$node->stop;
done_testing();
