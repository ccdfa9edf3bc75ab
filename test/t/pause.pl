# A queue that is paused until a time resumes by itself: who sleeps wakes, the row says so,
# whether a worker runs, died, was slow, or could not write.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('pause', 'idemq.worker' => 'on', max_prepared_transactions => 5);
# Where all is slow (make sanitize), the call itself takes a while.
my $slow = $PostgreSQL::Test::Utils::timeout_default > 180;
my $soon = $slow ? '15 s' : '1 s';
my $later = $slow ? '30 s' : '1500 ms';
my $resumed = q[SELECT NOT paused AND paused_until IS NULL FROM idemq.queues WHERE name = 'q'];

sub pause
{
	my ($queue, $for) = @_;

	return "SELECT idemq.pause('$queue', clock_timestamp() + interval '$for')";
}

# A sleeper that waits for the one job of the queue, which is paused for so long.
sql($node, pause('q', '1 h'));
sql($node, q[SELECT idemq.enqueue('q', '1')]);
my $sleeper = sleeper($node, "CALL idemq.wait('q', '150 s')");
my $listener = session($node);
$listener->query_safe('LISTEN idemq_q');
sql($node, pause('q', $soon));
is(answer($sleeper), 't', 'who waits for it is woken');
is_soon($node, $resumed, 'the worker writes that it is over');
is_sql($node, q[SELECT action, session_role <> '', details ? 'until', job_id FROM idemq.audit ORDER BY id DESC LIMIT 1],
	'resume|t|t|', 'and who did, and why');
my $heard = '';
foreach (1 .. 1200)
{
	$heard .= $listener->query('SELECT pg_sleep(0.1)');
	last if $heard =~ /"ready"/;
}
like($heard, qr/"event":"ready"/, 'who listens is told');
$listener->quit;

# A longer pause replaces a shorter: another queue shows that the worker has come past the time.
sql($node, q[SELECT idemq.create_queue('clock')]);
sql($node, pause('q', $soon));
sql($node, pause('q', '1 h'));
sql($node, pause('clock', $later));
is_soon($node, $resumed =~ s/'q'/'clock'/r, 'a pause is over');
is_sql($node, $resumed, 'f', 'and not the one that was made longer');
is_sql($node, q[SELECT count(*) FROM idemq.claim('q')], '0', 'which hands out nothing');

# A row that is locked is tried again; claims do not wait for that.
my $holder = session($node);
my $worker = stop_worker($node);
sql($node, pause('q', $soon));
$holder->query_safe(q[BEGIN; SELECT FROM idemq.queues WHERE name = 'q' FOR UPDATE]);
kill 'CONT', $worker;
is_soon($node, q[SELECT count(*) FROM idemq.claim('q')], '1', 'claims go by the time, though the row is locked');
is_sql($node, $resumed, 'f', 'which says paused');
sql($node, pause('clock', $soon));
is_soon($node, $resumed =~ s/'q'/'clock'/r, 'the worker is not held up');
$holder->query_safe('COMMIT');
is_soon($node, $resumed, 'and writes the row once it can');

# A pause that commits when the worker has read the settings, and before it forgets the time.
if (has_debugger($node))
{
	my $due = stop_at(worker_pid($node), 'idemq_due');

	sql($node, q[SELECT idemq.alter_queue('q', max_attempts => 21)]);
	$due->();
	sql($node, pause('q', $soon));
	$due->();
	is_soon($node, $resumed, 'no pause is forgotten');
}
else
{
	note('no gdb');
}

# Prepared; and a server that dies in between.
sql($node, 'BEGIN; ' . pause('q', $soon) . q[; PREPARE TRANSACTION 'p']);
is_sql($node, q[SELECT paused FROM idemq.queues WHERE name = 'q'], 'f', 'a pause that is prepared');
sql($node, q[COMMIT PREPARED 'p']);
is_soon($node, $resumed, 'is over as well');
sql($node, pause('q', $soon));
crash($node);
is_soon($node, $resumed, 'after a crash');

# By hand, as a DBA or logical replication writes it.
sql($node, q[UPDATE idemq.queues SET paused = true, paused_until = clock_timestamp() + interval '1 s' WHERE name = 'q']);
is_soon($node, $resumed, 'written by hand');
is(unexpected($node), '', 'nothing else in the log');

# Without a worker the sleeper has a clock of its own.
sql($node, q[ALTER SYSTEM SET idemq.worker = off]);
$node->restart;
sql($node, q[SELECT idemq.enqueue('q', '2')]);
sql($node, pause('q', '1 h'));
$sleeper = sleeper($node, "CALL idemq.wait('q', '150 s')");
sql($node, pause('q', $soon));
is(answer($sleeper), 't', 'without a worker a sleeper wakes by itself');
is_sql($node, q[SELECT m.paused, q.paused FROM idemq.metrics m JOIN idemq.queues q USING (queue_id) WHERE m.queue = 'q'], 'f|t', 'metrics go by the time');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');

$node->stop;
done_testing();
