# A queue that is paused until a time resumes by itself: a session that sleeps wakes, and the row says so, whether a worker
# runs, died, was slow, or could not write.
# stops: idemq_due
# at least 26 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('pause', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', max_prepared_transactions => 5);
my $resumed = q[SELECT NOT paused AND paused_until IS NULL FROM idemq.queues WHERE name = 'q'];
my $resumed_clock = $resumed =~ s/'q'/'clock'/r;

# Pauses a queue for a time.  Ten minutes pass when the test says so.
sub pause
{
	my ($queue, $for) = @_;

	return "SELECT idemq.pause('$queue', idemq.clock_timestamp() + interval '$for')";
}

# A session that waits for the one job of the queue, which is paused for a time.
sql($node, pause('q', '1 h'));
sql($node, q[SELECT idemq.enqueue('q', '1')]);
my $waiter = waiter($node, "CALL idemq.wait('q', '1 day')");
my $listener = session($node);
$listener->query_safe('LISTEN idemq_q');
sql($node, pause('q', '10 min'));
advance($node, '9 min');
is_sql($node, $resumed, 'f', 'a pause lasts until its time');
advance($node, '1 min');
is(answer($waiter), 't', 'a session that waits for its end is woken');
is_sql($node, $resumed, 't', 'the worker writes that it is over');
is_sql($node, q[SELECT action, session_role <> '', details ? 'until', job_id FROM idemq.audit ORDER BY id DESC LIMIT 1],
	'resume|t|t|', 'and which role did, and why');
my $heard = '';
until_true('a NOTIFY', sub { $heard .= scalar $listener->query('SELECT'); $heard =~ /"ready"/ });
like($heard, qr/"event":"ready"/, 'a session that listens is told');
leave($listener, $waiter->{session});

# A longer pause replaces a shorter: another queue shows that the worker has come past the time.
sql($node, q[SELECT idemq.create_queue('clock')]);
sql($node, pause('q', '10 min'));
sql($node, pause('q', '1 h'));
sql($node, pause('clock', '20 min'));
advance($node, '20 min');
is_sql($node, $resumed_clock, 't', 'a pause is over');
is_sql($node, $resumed, 'f', 'and not the one that was made longer');
is_sql($node, q[SELECT count(*) FROM idemq.claim('q')], '0', 'which hands out nothing');

# A row that is locked is tried again; claims do not wait for that.
my ($holder, $mover) = (session($node), session($node));
my $worker = stop_worker($node);
sql($node, pause('q', '10 min'));
sql($node, pause('clock', '10 min'));
$holder->query_safe(q[BEGIN; SELECT FROM idemq.queues WHERE name = 'q' FOR UPDATE]);
kill 'CONT', $worker;
$mover->query_until(qr/sent/, "\\echo sent\nCALL idemq.advance_clock('10 min');\n");
is_soon($node, q[SELECT count(*) FROM idemq.claim('q')], '1', 'claims go by the time, though the row is locked');
is_soon($node, $resumed_clock, 'the worker is not held up');
is_sql($node, $resumed, 'f', 'the row still says paused');
$holder->query_safe('COMMIT');
is_soon($node, $resumed, 'and the worker writes it once it can');
$mover->query_safe('SELECT 1');
leave($holder, $mover);

# A pause that commits when the worker has read the settings, and before it forgets the time.
my $due = stop_at(worker_pid($node), 'idemq_due');

sql($node, q[SELECT idemq.alter_queue('q', max_attempts => 21)]);
$due->();
sql($node, pause('q', '10 min'));
$due->();
is_sql($node, $resumed, 'f', 'a pause that commits while the worker looks');
advance($node, '10 min');
is_sql($node, $resumed, 't', 'is not forgotten');

# Prepared; and a server that dies in between.
sql($node, 'BEGIN; ' . pause('q', '10 min') . q[; PREPARE TRANSACTION 'p']);
is_sql($node, q[SELECT paused FROM idemq.queues WHERE name = 'q'], 'f', 'a pause that is prepared');
sql($node, q[COMMIT PREPARED 'p']);
is_sql($node, $resumed, 'f', 'holds when it is committed');
advance($node, '10 min');
is_sql($node, $resumed, 't', 'and is over as well');
sql($node, pause('q', '10 min'));
crash($node);
worker_pid($node);
is_sql($node, $resumed, 'f', 'after a crash a pause still holds');
advance($node, '10 min');
is_sql($node, $resumed, 't', 'and ends at its time');

# By hand, as a DBA or logical replication writes it.
sql($node, q[UPDATE idemq.queues SET paused = true, paused_until = idemq.clock_timestamp() + interval '10 min' WHERE name = 'q']);
is_sql($node, $resumed, 'f', 'written by hand');
advance($node, '10 min');
is_sql($node, $resumed, 't', 'it ends as well');
is(unexpected($node, '57P01'), '', 'nothing else in the log');

# Without a worker the waiter looks at the clock itself.
sql($node, q[ALTER SYSTEM SET idemq.worker = off]);
$node->restart;
sql($node, q[SELECT idemq.enqueue('q', '2')]);
sql($node, pause('q', '1 h'));
$waiter = waiter($node, "CALL idemq.wait('q', '1 day')");
advance($node, '1 h');
is(answer($waiter), 't', 'without a worker a waiter wakes by itself');
is_sql($node, q[SELECT m.paused, q.paused FROM idemq.metrics m JOIN idemq.queues q USING (queue_id) WHERE m.queue = 'q'], 'f|t', 'metrics go by the time');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');

# The library as it ships, without stop points.
shipped($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$node->stop;
done_testing();
