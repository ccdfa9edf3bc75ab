# The test clock where something due cannot be done: the call returns after 30 s, and says what is left.  And on a standby.
# slow: waits three times for the 30 s that advance_clock waits for what cannot be done
# at least 17 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('test_clock_slow', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', autovacuum => 'off');

# Moves the clock, and answers the warning.
sub warned
{
	my ($interval, $on) = @_;
	my $stderr = '';

	($on // $node)->psql('postgres', "CALL idemq.advance_clock('$interval')", stderr => \$stderr);
	return $stderr;
}

# ---- A row that is held

my $job = sql($node, "SELECT id FROM idemq.enqueue('q', '1')");
sql($node, "SELECT id FROM idemq.claim('q')");
my $holder = session($node);
$holder->query_safe("BEGIN; SELECT id FROM idemq.jobs WHERE id = $job FOR UPDATE");
like(warned('1 h'), qr/WARNING:  some work that was due was not completed within 30 s\nDETAIL:  The following work remains: 1 expired lease \(queue "q"\)\.\nHINT:  Check the server's log/,
	'a lease whose row is held is left');
is_sql($node, 'SELECT idemq.test_clock_ahead()', '01:00:00', 'the clock has moved all the same');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $job", 'running', 'and the job is as it was');
$holder->query_safe('ROLLBACK');
is(warned('0'), '', 'once it is free all is done');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $job", 'pending', 'the lease too');
leave($holder);

# ---- A task that fails

sql($node, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
	CREATE TRIGGER refuse BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (OLD.status = 'running') EXECUTE FUNCTION refuse()");
sql($node, "SELECT id FROM idemq.claim('q')");
like(warned('1 h'), qr/DETAIL:  The following work remains: .*1 expired lease \(queue "q"\)\.$/m, 'what a task fails to do is left');
sql($node, 'DROP TRIGGER refuse ON idemq.jobs');
is(warned('0'), '', 'it is tried again at once when it is asked for');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $job", 'retrying', 'and done: the lease was lost for the second time in a row');

# ---- No worker, though there should be one

my $worker = stop_worker($node);
like(warned('1 min'), qr/DETAIL:  The following work remains: .*(?:task|is not responding)/, 'a worker that is stopped does nothing');
kill 'CONT', $worker;
is(warned('0'), '', 'one that goes on does all');

# ---- A standby has a clock of its own

my $delayed = sql($node, "SELECT id FROM idemq.enqueue('q', '2', delay => '1 day')");
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
my $ahead = 'SELECT idemq.test_clock_ahead()';
is_sql($standby, $ahead, sql($node, $ahead), 'a standby begins with the clock of the backup');
my $waiter = waiter($standby, "CALL idemq.wait_result($delayed, '2 days')");
advance($node, '1 day');
isnt(sql($standby, $ahead), sql($node, $ahead), 'and does not follow');
is(warned('1 day', $standby), '', 'it can be moved as well');
is_sql($standby, $ahead, sql($node, $ahead), 'to the same time');
is(warned('1 day', $standby), '', 'beyond it, too');
is(answer($waiter), 'pending|', 'who waits there wakes at its time');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() finds nothing');
$standby->stop;
$node->stop;
done_testing();
