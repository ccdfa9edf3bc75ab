# The postmaster dies, and a handler's process outlives it: the process ends as soon as it waits, or before its next job, and
# the server can start again.  It writes nothing on its way out: the next server takes its jobs back, as after a crash.
# at least 8 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('orphan', 'idemq.worker' => 'on');

# Job "asleep" waits for nothing, until its process ends, and job "busy" computes until a file is gone, without waiting.
$node->start;
sql($node, q[CREATE EXTENSION idemq;
	CREATE TABLE done (job text);
	CREATE FUNCTION f(payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO done VALUES (payload #>> '{}');
		IF payload = '"asleep"' THEN
			PERFORM pg_sleep(3600);
		END IF;
		WHILE payload = '"busy"' AND (pg_stat_file('hold', true)).size IS NOT NULL LOOP
		END LOOP;
	END $$]);

# Makes a queue with a handler, enqueues jobs, and returns the handler's process when it is at the first one.
sub begin
{
	my ($queue, $batch, $condition, @payloads) = @_;

	sql($node, "SELECT idemq.create_queue('$queue', retry_base => '1 h'); SELECT idemq.enqueue('$queue', to_jsonb(p), max_attempts => m)
		FROM (VALUES @{[ join ', ', map { qq{('$_->[0]'::text, $_->[1])} } @payloads ]}) v (p, m); SELECT idemq.set_handler('$queue', 'f(jsonb)', batch => $batch)");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND $condition");
	return sql($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
}

# Kills the postmaster; $between->() comes when it is gone.  When process $pid has ended, starts the server again, without handlers.
sub outlive
{
	my ($pid, $between) = @_;

	my ($postmaster) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');

	$node->kill9;
	until_true('the end of the postmaster', sub { !kill 0, $postmaster });
	$between->() if $between;
	until_true("the end of process $pid", sub { !kill 0, $pid });
	$node->append_conf('postgresql.conf', 'idemq.worker = off');
	until_true('the start of the server', sub { $node->start(fail_ok => 1) });
	return;
}

my $jobs = "SELECT payload #>> '{}', j.status, attempt, last_error FROM idemq.jobs j JOIN idemq.queues USING (queue_id) WHERE name = '%s' ORDER BY id";

# ---- At a job that waits

outlive(begin('waits', 10, "wait_event = 'PgSleep'", [ 'asleep', 1 ], [ 'next', 2 ]));
is_sql($node, sprintf($jobs, 'waits'), "asleep|running|1|\nnext|running|1|", 'on its way out it has written nothing');
is_sql($node, "SELECT idemq.reap('waits')", 2, 'the next server takes back what it had claimed');
is_sql($node, sprintf($jobs, 'waits'), "asleep|dead|1|the handler process has ended\nnext|retrying|1|the handler process has ended", 'as after a crash');
is_sql($node, 'SELECT count(*) FROM done', 0, 'no effect is there');

# ---- At one that does not

my $hold = $node->data_dir . '/hold';

append_to_file($hold, '');
$node->append_conf('postgresql.conf', 'idemq.worker = on');
$node->restart;
outlive(begin('busy', 1, "state = 'active' AND wait_event IS NULL", [ 'busy', 2 ], map { [ $_, 2 ] } 1 .. 20), sub { unlink $hold or die });
is_sql($node, 'SELECT string_agg(job, \' \') FROM done', 'busy', 'what it was at may commit, as in any session; it begins no other job');
is_sql($node, "SELECT idemq.reap('busy') <= 1", 't', 'of the next one it has the claim at most');
is_sql($node, "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'busy' AND status = 'completed'", 1, 'the others are there');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check finds nothing');

$node->stop;
done_testing();
