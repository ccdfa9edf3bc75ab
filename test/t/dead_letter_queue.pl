# dead_letter_queue with a background worker: jobs whose worker died for the last time reach
# those who wait for the dead-letter queue; PREPARE TRANSACTION, a crash, a dead-letter queue that
# is gone, or being dropped.
# at least 32 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('dead_letter_queue', 'idemq.worker' => 'on', max_prepared_transactions => 2);
my $record = "SELECT payload->>'id', payload->>'last_error', payload->'attempts'->-1->>'worker' FROM idemq.claim('letters')";

sql($node, "SELECT idemq.create_queue('letters', lease => '1 h'), idemq.alter_queue('q', max_attempts => 1, dead_letter_queue => 'letters')");
worker_pid($node);

# A job of queue q that is claimed for so long, by a session or by one that is there no more.
sub claimed
{
	my ($lease, $session) = @_;
	my $id = sql($node, "SELECT id FROM idemq.enqueue('q', '1')");
	my $claim = "SELECT outcome FROM idemq.claim_job($id, lease => '$lease', worker => 'w', attach => @{[ $session ? 'true' : 'false' ]})";

	is($session ? $session->query_safe($claim) : sql($node, $claim), 'claimed', "job $id is claimed");
	return $id;
}

# ---- The worker reaps: somebody who waits for the dead-letter queue has the job

my $sleeping = session($node);
my $listener = session($node);
$listener->query_safe('LISTEN idemq_letters');
my $dying = session($node);
my $id = claimed('1 h', $dying);
my $waiter = waiter($node, "CALL idemq.wait('letters', '10 min')", $sleeping);
sql($node, 'SELECT pg_terminate_backend(' . $dying->query_safe('SELECT pg_backend_pid()') . ')');
is(answer($waiter), 't', 'a lost session: who waits for the dead-letter queue is woken');
is_sql($node, $record, "$id|the worker's session ended|w", 'and claims the dead-letter record');
is_sql($node, "SELECT status FROM idemq.job($id)", 'dead', 'the job itself is dead in its queue');
$waiter = waiter($node, "CALL idemq.wait('letters', '10 min')", $sleeping);
$id = claimed('200 ms'); # meant to expire
is(answer($waiter), 't', 'an expired lease: woken');
is_sql($node, $record, "$id|lease expired|w", 'and claims the dead-letter record');
my $heard = '';
until_true('NOTIFY', sub { ($heard .= $listener->query('SELECT 1')) =~ /"event":"ready","queue":"letters"/ });
pass('NOTIFY says so');

# ---- PREPARE TRANSACTION, and a crash

$id = claimed('1 h');
sql($node, "BEGIN; SELECT idemq.fail(id, token, 'prepared') FROM idemq.job($id); PREPARE TRANSACTION 'p'");
is_sql($node, "SELECT count(*) FROM idemq.claim('letters')", '0', 'prepared: nobody has it');
crash($node);
worker_pid($node);
is_sql($node, "SELECT count(*) FROM idemq.claim('letters')", '0', 'nor after a crash');
$waiter = waiter($node, "CALL idemq.wait('letters', '10 min')");
sql($node, "COMMIT PREPARED 'p'");
is(answer($waiter), 't', 'COMMIT PREPARED: woken');
is_sql($node, $record, "$id|prepared|w", 'and claims the dead-letter record');
$id = claimed('200 ms'); # meant to expire
my $dead = "SELECT status = 'dead' FROM idemq.job($id)";
crash($node);
is_soon($node, $dead, 'a job that expired while the server was down is reaped');
is_sql($node, $record, "$id|lease expired|w", 'and its dead-letter record is there, once');
is_sql($node, "SELECT count(*) FROM idemq.claim('letters')", '0', 'no more');

# ---- Somebody is dropping the dead-letter queue: the worker waits for nobody

my $dropper = session($node);
sql($node, "SELECT idemq.create_queue('other', max_attempts => 1, lease => '200 ms')"); # meant to expire
$dropper->query_safe("BEGIN; SELECT idemq.drop_queue('letters', force => true)");
$id = claimed('10 ms'); # meant to expire
my $other = sql($node, "SELECT id FROM idemq.enqueue('other', '1')");
sql($node, "SELECT idemq.claim_job($other)");
is_soon($node, "SELECT status = 'dead' FROM idemq.job($other)", 'another queue is reaped meanwhile');
is_sql($node, "SELECT status FROM idemq.job($id)", 'running', 'this one is not');
is_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq worker' AND wait_event_type = 'Lock'", '0',
	'the worker does not wait');
$dropper->query_safe('ROLLBACK');
is_soon($node, "SELECT status = 'dead' FROM idemq.job($id)", 'until the drop is over');
is_sql($node, $record, "$id|lease expired|w", 'the dead-letter record is there');

# ---- Many workers that fail, hang, die and roll back: a dead-letter record for each death

sql($node, "SELECT idemq.purge('q'), idemq.purge('letters'), idemq.alter_queue('q', max_attempts => 2, retry_base => '1 ms')"); # meant to expire
my $counts = "SELECT (SELECT dead_total FROM idemq.metrics WHERE queue = 'q'), (SELECT enqueued_total FROM idemq.metrics WHERE queue = 'letters')";
my ($deaths, $records) = split /\|/, sql($node, $counts);
my @scripts = map { my $file = $node->basedir . "/deaths.$_->[0].sql"; append_to_file($file, $_->[1]); ('-f', $file) } (
	[ 'enqueue', "SELECT count(idemq.enqueue('q', '1')) FROM generate_series(1, 4);\n" ],
	[ 'fail', "SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.claim('q', 3);\n" ],
	[ 'hang', "SELECT id FROM idemq.claim('q', 3, lease => '2 ms');\n" ], # meant to expire
	[ 'undone', "BEGIN;\nSELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q', 2);\nROLLBACK;\n" ],
	[ 'savepoint', "BEGIN;\nSELECT id, token FROM idemq.claim('q') \\aset\nSAVEPOINT s;\n" .
		  "SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q', 2);\nROLLBACK TO s;\n" .
		  "SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim('q');\nCOMMIT;\n" ],
	[ 'redrive', "SELECT idemq.redrive('q', 2);\n" ],
	[ 'letters', "SELECT idemq.commit(id, token) FROM idemq.claim('letters', 5);\n" ]);
$node->command_ok([ 'pgbench', '-n', '-c', '8', '-j', '2', '-t', '150', '-h', $node->host, '-p', $node->port, @scripts, 'postgres' ],
	'many workers');
sql($node, "SELECT idemq.cancel(id) FROM idemq.jobs WHERE queue_id = idemq.queue_id('q') AND finished_at IS NULL");
# The worker may be between a commit of its own and its count.
is_soon($node, "SELECT told - $records = died - $deaths FROM ($counts) AS c (died, told)", 'as many dead-letter records as deaths');
cmp_ok(sql($node, "SELECT died - $deaths FROM ($counts) AS c (died, told)"), '>', 50, 'there were deaths');
is_sql($node, "SELECT count(*) FROM idemq.jobs d WHERE queue_id = idemq.queue_id('q') AND status = 'dead' AND NOT EXISTS
	(SELECT FROM idemq.jobs l WHERE l.queue_id = idemq.queue_id('letters') AND l.key = format('\@dead:%s:%s:%s', d.queue_id, d.id, d.token))", '0',
	'each dead job has its own');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
sql($node, "SELECT idemq.purge('q'), idemq.purge('letters'), idemq.alter_queue('q', max_attempts => 1)");

# ---- The dead-letter queue is gone by hand: the death stands, and the log says so

my $log = log_end($node);
sql($node, "DELETE FROM idemq.jobs WHERE queue_id = idemq.queue_id('letters'); DELETE FROM idemq.queues WHERE name = 'letters'");
$id = claimed('10 ms'); # meant to expire
is_soon($node, "SELECT status = 'dead' AND last_error = 'lease expired' FROM idemq.job($id)", 'dead all the same');
is_logged($node, qr/WARNING:  dead job $id was not added to queue "letters" because that queue does not exist/, 'with a warning', $log);
is_sql($node, "SELECT * FROM idemq.check() WHERE severity = 'error'", '', 'check');
leave($sleeping, $listener, $dropper);
$node->stop;
done_testing();
