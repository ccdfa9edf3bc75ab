# The worker of doc/usage/events.md: crashes while its jobs sleep and after their events, waiters that
# are told, a prepared transaction that a restart outlives, and a handler.  events_slow has many of all at once.
#
# at least 25 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Manual;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('events', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', max_prepared_transactions => 4, max_connections => 40);
my ($page) = blocks('doc/usage/events.md', 'sql');
my ($tables, $work) = $page =~ /^(.*?)(CREATE FUNCTION work\(.*?^END \$\$;)/ms;
ok($work, 'the page has a worker');
sql($node, "$tables$work");

# Works until there is nothing to do now; answers what the worker said.
sub work
{
	my ($patience) = @_;
	my @said;

	while (1)
	{
		my $said = sql($node, "SELECT work('$patience')");
		return "@said" if $said eq 'nothing to do';
		push @said, $said;
	}
}

my $asleep = "SELECT count(*) FROM idemq.steps s JOIN idemq.jobs j ON j.id = s.job_id WHERE s.state = 'waiting' AND j.finished_at IS NULL";
my $checked = "SELECT * FROM idemq.check() WHERE invariant NOT IN ('steps.unknown', 'worker.stuck')";

# ---- The page's orders

sql($node, "SELECT idemq.enqueue('orders', jsonb_build_object('order', n)) FROM generate_series(1, 4) n");
is(sql($node, "SELECT outcome FROM idemq.send_event('orders', 'paid 4', '\"early\"')"), 'accepted', 'one is paid first');
is(join(' ', map { sql($node, "SELECT work('3 days')") } 1 .. 4), 'waiting waiting waiting arrived', 'the others sleep');
crash($node);
is_sql($node, $asleep, 3, 'also after a crash');
# Open at the crash: never sent.
my $open = session($node);
$open->query_safe("BEGIN; SELECT idemq.send_event('orders', 'paid 2', '\"lost\"')");
is_sql($node, "SELECT outcome FROM idemq.send_event('orders', 'paid 1', '\"late\"')", 'accepted', 'one is paid');
crash($node);
leave($open);
is_sql($node, "SELECT status, ready_at <= clock_timestamp() FROM idemq.jobs WHERE payload = '{\"order\": 1}'", 'pending|t',
	'it is ready after the next crash');
is(work('3 days'), 'arrived', 'and worked on, once');
advance($node, '2 days');
is(work('3 days'), '', 'the rest wait on');
advance($node, '2 days');
is(work('3 days'), 'timed_out timed_out', 'for three days, crashes included');
is_sql($node, 'SELECT * FROM shipments ORDER BY 1', "1|\"late\"\n4|\"early\"", 'shipped');
is_sql($node, 'SELECT * FROM reminders ORDER BY 1', "2\n3", 'reminded of');
is_sql($node, "SELECT min(s.answered_at - s.begun_at) >= '3 days' FROM idemq.steps s WHERE state = 'timed_out'", 't', 'not before its time');
is_sql($node, $checked, '', 'check');

# ---- Who sleeps in wait is told, of the event and of the time-out

my $queue = "SELECT idemq.create_queue('told', lease => '1 h')";
my $claim = "SELECT idemq.await_event(c.id, c.token, 'go', '%s') FROM idemq.enqueue('told', '1') e, idemq.claim_job(e.id) c";
sql($node, $queue);
sql($node, sprintf $claim, '1 h');
my $waiter = waiter($node, "CALL idemq.wait('told', '10 min')");
is_sql($node, "SELECT outcome FROM idemq.send_event('told', 'go')", 'accepted', 'an event, while somebody sleeps');
is(answer($waiter), 't', 'wakes who waits for work');
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('told')");
sql($node, "DELETE FROM idemq.events");
$waiter = waiter($node, "CALL idemq.wait('told', '10 min')", $waiter->{session});
sql($node, sprintf $claim, '1 h');
advance($node, '2 h');
is(answer($waiter), 't', 'so does the time-out');
leave($waiter->{session});
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('told')");

# ---- Prepared: the wait is held over a restart, and the event wakes it then

my ($id, $token) = split /\|/, sql($node, "SELECT c.id, c.token FROM idemq.enqueue('told', '2') e, idemq.claim_job(e.id) c");
sql($node, "BEGIN; SELECT idemq.await_event($id, $token, 'held', '1 h'); PREPARE TRANSACTION 'wait'");
crash($node);
# meant to expire
is_state($node, "SET lock_timeout = '100ms'; SELECT idemq.send_event('told', 'held')", '55P03', 'a prepared wait holds the name after a restart');
my $sender = session($node);
my $pid = $sender->query_safe('SELECT pg_backend_pid()');
$sender->query_until(qr/sent/, "\\echo sent\nSELECT outcome FROM idemq.send_event('told', 'held', '1');\n");
wait_until($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $pid");
sql($node, "COMMIT PREPARED 'wait'");
is($sender->query('SELECT'), 'accepted', 'the sender goes on');
leave($sender);
is_soon($node, "SELECT count(*) = 1 FROM idemq.claim('told')", 'and has woken it');
sql($node, "BEGIN; SELECT idemq.send_event('told', 'sent', '1'); PREPARE TRANSACTION 'event'");
crash($node);
# meant to expire
is_state($node, "SET lock_timeout = '100ms'; SELECT idemq.await_event(c.id, c.token, 'sent', '1 h') FROM idemq.enqueue('told', '3') e, idemq.claim_job(e.id) c",
	'55P03', 'so does a prepared event');
sql($node, "COMMIT PREPARED 'event'");
is_sql($node, "SELECT a.outcome, a.payload FROM idemq.enqueue('told', '3') e, idemq.claim_job(e.id) c, idemq.await_event(c.id, c.token, 'sent', '1 h') a",
	'arrived|1', 'and is heard');

# ---- A handler's function awaits

sql($node, q{
	SELECT idemq.create_queue('handled');
	CREATE TABLE handled (what text);
	CREATE FUNCTION handle(payload jsonb) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
		DECLARE job record := idemq.current_job(); said record;
		BEGIN
			said := idemq.await_event(job.id, job.token, 'e' || (payload->>'n'), '1 h');
			IF said.outcome = 'waiting' THEN RETURN NULL; END IF;
			INSERT INTO handled VALUES (said.outcome || said.payload);
			RETURN said.payload;
		END $$;
	SELECT idemq.enqueue('handled', jsonb_build_object('n', n)) FROM generate_series(1, 3) n;
	SELECT idemq.set_handler('handled', 'handle(jsonb)', batch => 10)});
is_soon($node, $asleep, '3', 'jobs of a handler sleep');
sql($node, "SELECT idemq.send_event('handled', 'e' || n, to_jsonb(n)) FROM generate_series(1, 3) n");
is_soon($node, "SELECT string_agg(what, ' ' ORDER BY what) FROM handled", 'arrived1 arrived2 arrived3', 'and run when their events come');
is_sql($node, "SELECT string_agg(DISTINCT j.status::text || j.attempt, ' ') FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = 'handled'",
	'completed1', 'in one attempt each');
sql($node, "SELECT idemq.drop_handler('handled')");

is(unexpected($node, qw(55P03 57P01 57P02 57P03)), '', 'no other error');

$node->stop;
done_testing();
