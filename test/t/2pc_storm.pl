# Two-phase commits that come one after the other: each asks for another search for lost leases in
# every queue of the database.  A claim that needs one, for max_running, does not begin anew for
# ever; nor does a waiter wait for the end of all that.
# slow: a hundred thousand jobs, and traffic that goes on while a claim searches them
# at least 9 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

# Several ends come in the time of one search.
my $node = new_server('storm', 'idemq.worker' => 'on', max_prepared_transactions => 10, fsync => 'off', synchronous_commit => 'off', jit => 'off');

sql($node, "SELECT idemq.create_queue('many', max_running => 9, lease => '1 h');
	SELECT count(*) FROM (SELECT idemq.enqueue('many', '1') FROM generate_series(1, 100000)) AS e");

my $ends = "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'q'";
my $traffic = clients($node, "BEGIN;\nSELECT idemq.enqueue('q', '1');\nPREPARE TRANSACTION 'c:client_id';\nCOMMIT PREPARED 'c:client_id';\n",
	'-c', 3, '-T', 250, 'killed');

foreach my $n (1 .. 3)
{
	my $count = sql($node, $ends);

	wait_until($node, "SELECT ($ends) > $count + 20");
	is_sql($node, "SET statement_timeout = '40 s'; SELECT count(*) FROM idemq.claim('many')", 1, "claim $n");
	is_sql($node, "CALL idemq.wait('many', '20 s')", 't', 'wait says that there is more');
}
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench'");
is($traffic->(), '', 'the others have come through');
sql($node, "ROLLBACK PREPARED '$_'") foreach split /\n/, sql($node, 'SELECT gid FROM pg_prepared_xacts');
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'running'", 3, 'three have been claimed');
is_soon($node, "SELECT count(*) = 0 FROM idemq.check() WHERE invariant <> 'worker.stuck'", 'all is well');

$node->stop;
done_testing;
