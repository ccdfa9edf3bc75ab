# A child is enqueued while its parent's deletion is under way: after purge has looked and before it locks,
# and when a row that had no child is about to be deleted.  The parent stays.  The other interleavings:
# specs/purge-parents, purge-held and dependencies-held.
# stops: idemq_sql_internal_deletable idemq_jobs_delete
# at least 21 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('deletable', autovacuum => 'off');
my $deleter = session($node);

sub job { return sql($node, "SELECT id FROM idemq.enqueue('q', '1')") }

# Enqueues a child of a job: id and status.
sub child
{
	my ($parent, $more) = (@_, '');

	return split /\|/, sql($node, "SELECT id, status FROM idemq.enqueue('c', '2', depends_on => ARRAY[$parent] $more)");
}

sub status { my ($id) = @_; return sql($node, "SELECT coalesce((SELECT status::text FROM idemq.jobs WHERE id = $id), 'gone')") }

# Runs SQL in the deleter's session, up to a stop, where $between->() is called.  Returns its SQLSTATE and its result.
sub interrupted
{
	my ($place, $sql, $between) = @_;
	my $stop = stop_at($deleter->{backend}, $place);

	$deleter->query_until(qr/sent/, "\\echo sent\n\\set result none\n$sql AS result \\gset\n\\echo :SQLSTATE :result\n");
	$stop->();
	$between->();
	$stop->();
	return (split /\n/, $deleter->query('SELECT 1 WHERE false'))[-1];
}

SKIP:
{
	skip 'no stops', 18 unless can_stop($node);
	sql($node, "SELECT idemq.create_queue('c'); SELECT idemq.alter_queue('q', retention => '1 day')");

	# ---- Purge: between the look and the lock
	foreach my $level ('READ COMMITTED', 'REPEATABLE READ')
	{
		my ($parent, $other) = (job(), job());
		my ($child, $was);

		$deleter->query_safe("BEGIN ISOLATION LEVEL $level");
		is(interrupted('idemq_sql_internal_deletable', "SELECT idemq.purge('q')", sub { ($child, $was) = child($parent) }), '00000 1', "purge, $level: one of two jobs");
		$deleter->query_safe('COMMIT');
		is($was, 'blocked', 'the other one has a child');
		is(sql($node, "SELECT count(*) FROM idemq.claim('c')"), 0, 'which does not run');
		is_deeply([ map { status($_) } $parent, $other, $child ], [ 'pending', 'gone', 'blocked' ], 'and whose parent stays');
		sql($node, "SELECT idemq.cancel($child), idemq.purge('c'), idemq.purge('q')");
	}

	# ---- A job without children, by a transaction that has not locked it
	sql($node, "SELECT idemq.alter_queue('q', retention => '0', dead_retention => '0')");
	my $parent = job();
	my $call = "SELECT idemq.commit($parent, " . sql($node, "SELECT token FROM idemq.claim_job($parent)") . ", '{\"n\": 1}')";
	my ($child) = (0);
	is(interrupted('idemq_jobs_delete', $call, sub { ($child) = child($parent) }), '40001 none', 'a commit that would delete the row fails');
	is(status($parent), 'running', 'and nothing has happened');
	is_sql($node, $call, 'committed', 'the same commit again');
	is(status($parent), 'completed', 'leaves the row');
	is_sql($node, "SELECT c.id, p.result FROM idemq.claim('c') c, idemq.parents(c.id) p", "$child|{\"n\": 1}", 'the child reads the result');
	sql($node, "SELECT idemq.cancel($child), idemq.purge('c'), idemq.purge('q')");

	$parent = job();
	sql($node, "SELECT idemq.cancel($parent)");
	is(interrupted('idemq_jobs_delete', 'SELECT idemq.apply_retention()', sub { ($child) = child($parent, ", on_parent_failure => 'wait'") }), '40001 none', 'retention that would delete the row fails');
	is_sql($node, 'SELECT idemq.apply_retention()', 0, 'and leaves the row');
	is_sql($node, "SELECT idemq.retry($parent)", 'retrying', 'the parent is brought back');
	is_sql($node, "SELECT idemq.commit_once($parent)", 'committed', 'and completes');
	is_sql($node, "SELECT id FROM idemq.claim('c')", $child, 'the child runs');
}

is_sql($node, "SELECT count(*) FROM idemq.check() WHERE severity = 'error'", 0, 'nothing is broken');
leave($deleter);

# In the shipped library, which has no stops.
shipped($node);
my $last = job();
my ($unfinished) = child($last);
is_sql($node, "SELECT idemq.purge('q')", 0, 'shipped: the parent stays');
is_sql($node, "SELECT count(idemq.cancel($unfinished)) + idemq.purge('q')", 2, 'shipped: and goes when its child is finished');
$node->stop;
done_testing();
