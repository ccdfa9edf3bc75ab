# The test clock: idemq.advance_clock moves the time that idemq reads, and returns when everything due has run.  It needs
# its setting and the right to call it, survives a restart and a crash, and is reported wherever people look.
# at least 128 assertions
# expects in log: XX001 .*invalid data in file

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('test_clock', 'idemq.worker' => 'on', autovacuum => 'off');
my $file = $node->data_dir . '/idemq_test_clock';
# Seconds by which idemq's clock is ahead.
my $ahead = 'SELECT extract(epoch FROM idemq.test_clock_ahead())::float8';

sub enqueue { return sql($node, "SELECT id FROM idemq.enqueue('q', '1'" . (@_ ? ", $_[0]" : '') . ')') }
sub claim { return sql($node, "SELECT id FROM idemq.claim('q')") }
sub status { return sql($node, "SELECT status FROM idemq.jobs WHERE id = $_[0]") }

# Removes all jobs, and leaves a time between what is due now and the parts of this test.
sub clean { return sql($node, 'TRUNCATE idemq.jobs') }

# ---- Without the setting

my ($stderr);
$node->psql('postgres', "CALL idemq.advance_clock('1 min')", stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
like($stderr, qr/ERROR:  55000: idemq\.test_clock is off/, 'without the setting the clock cannot be moved');
like($stderr, qr/HINT:  .*idemq\.test_clock = on.*postgresql\.conf/, 'the hint says what to do');
is_sql($node, "BEGIN; SELECT idemq.now() = now(), idemq.clock_timestamp() BETWEEN clock_timestamp() - interval '1 min' AND clock_timestamp(),
	idemq.test_clock_ahead() IS NULL; COMMIT", 't|t|t', "idemq's clock is the server's");
is_sql($node, "SELECT count(*) FROM idemq.prometheus WHERE name = 'idemq_test_clock_ahead_seconds'", 0, 'there is no figure for it');
ok(!-e $file, 'nor a file');

# ---- With it

my $log = log_end($node);
$node->append_conf('postgresql.conf', 'idemq.test_clock = on');
$node->restart;
worker_pid($node);
is_logged($node, qr/WARNING:  idemq\.test_clock is on: this server is for tests/, 'the server says so when it starts', $log);
is_sql($node, $ahead, 0, 'the clock has not moved');
is_sql($node, "SELECT value, type, unit FROM idemq.prometheus WHERE name = 'idemq_test_clock_ahead_seconds'", '0|gauge|seconds', 'and has a figure');

# ---- What is refused

my %refused = (
	"CALL idemq.advance_clock(NULL)" => '22004',
	"CALL idemq.advance_clock('-1 us')" => '22023',
	"CALL idemq.advance_clock('1 day -25 hours')" => '22023',
	"CALL idemq.advance_clock('1 month')" => '22023',
	"CALL idemq.advance_clock('1 year')" => '22023',
	"CALL idemq.advance_clock('400000 days')" => '22023',
	"CALL idemq.advance_clock('178956970 years')" => '22023',
	"CALL idemq.advance_clock('3654 days')" => '22008',
	"BEGIN; CALL idemq.advance_clock('1 min')" => '2D000',
	"DO \$\$BEGIN CALL idemq.advance_clock('1 min'); EXCEPTION WHEN division_by_zero THEN NULL; END\$\$" => '2D000',
	"CREATE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql AS \$\$BEGIN CALL idemq.advance_clock('1 min'); END\$\$; SELECT pg_temp.f()" => '2D000');
$refused{"CALL idemq.advance_clock('infinity')"} = '22023' if $node->pg_version >= 17;
is_state($node, $_, $refused{$_}, $_) foreach sort keys %refused;
sql($node, 'CREATE ROLE shop LOGIN; CREATE ROLE tester LOGIN; GRANT USAGE ON SCHEMA idemq TO shop, tester;
	GRANT EXECUTE ON PROCEDURE idemq.advance_clock TO tester');
is_state($node, "SET ROLE shop; CALL idemq.advance_clock('1 min')", '42501', 'a role needs the right to call it');
is_sql($node, "SET ROLE shop; SELECT idemq.now() - now(), idemq.test_clock_ahead()", '00:00:00|00:00:00', 'to read the clock it does not');
is_sql($node, $ahead, 0, 'the clock has not moved');
$node->connect_ok($node->connstr('postgres') . ' user=tester', 'a role that may', sql => "CALL idemq.advance_clock('1 min')");
is_sql($node, $ahead, 60, 'moves it');
is(slurp_file($file), "60000000\n", 'a file has the sum');

# ---- Time passes

# From here on each part moves the clock by more than what the others leave to come.
my @before = split /\|/, sql($node, 'SELECT idemq.now(), idemq.clock_timestamp()');
advance($node, '2 hours');
is_sql($node, "SELECT idemq.now() >= '$before[0]'::timestamptz + interval '2 h', idemq.clock_timestamp() >= '$before[1]'::timestamptz + interval '2 h',
	idemq.now() - now() = interval '2 h 1 min', idemq.test_clock_ahead()", 't|t|t|02:01:00', 'both clocks are ahead');
my $session = session($node);
$session->query_safe('BEGIN');
my $then = $session->query_safe('SELECT idemq.now()');
advance($node, '1 min');
is($session->query_safe('SELECT idemq.now()'), $then, 'a transaction keeps its time, as with now()');
is($session->query_safe("SELECT idemq.clock_timestamp() >= '$then'::timestamptz + interval '1 min'"), 't', 'and sees the clock move');
$session->query_safe('COMMIT');
is($session->query_safe("SELECT idemq.now() >= '$then'::timestamptz + interval '1 min'"), 't', 'the next one has the new time');

# A lease.
my $job = enqueue();
is(claim(), $job, 'a job is claimed, for an hour');
advance($node, '59 min');
is(status($job), 'running', 'after 59 minutes it runs');
advance($node, '1 min');
is_sql($node, "SELECT status, last_error FROM idemq.jobs WHERE id = $job", 'pending|lease expired', 'after 60 its lease has expired');
is_sql($node, "SELECT ended_at - claimed_at BETWEEN interval '1 h' AND interval '61 min' FROM idemq.attempts WHERE job_id = $job", 't', 'by the clock');
my $again = sql($node, "SELECT token FROM idemq.claim('q')");
is_state($node, "SELECT idemq.commit($job, $again - 1)", 'IQ001', 'the worker that had it cannot commit');
# A heartbeat counts from the new time.
advance($node, '50 min');
sql($node, "SELECT idemq.heartbeat($job, $again)");
advance($node, '50 min');
is(status($job), 'running', 'a heartbeat keeps it');

# A retry, and a delay.
sql($node, "SELECT idemq.fail($job, $again, 'x', retry_in => '3 days')");
my $delayed = enqueue("delay => '3 days'");
my $at = enqueue("run_at => idemq.now() + interval '3 days'");
advance($node, '2 days 23 h');
is(claim(), '', 'none is due too soon');
advance($node, '1 h');
is_sql($node, "SELECT array_agg(id ORDER BY id) = ARRAY[$job, $delayed, $at]::bigint[] FROM idemq.claim('q', 10)", 't', 'a retry, a delay and a run_at are due');
clean();

# A job that is not claimed in time.
$job = enqueue("expires_in => '1 day'");
advance($node, '1 day');
is(status($job), 'cancelled', 'a job that nobody has claimed expires');

# A pause.
sql($node, "SELECT idemq.pause('q', until => idemq.now() + interval '1 day')");
$job = enqueue();
is(claim(), '', 'a queue is paused');
advance($node, '1 day');
is_sql($node, "SELECT paused FROM idemq.queues WHERE name = 'q'", 'f', 'its pause ends');
is(claim(), $job, 'and its job can be claimed');
clean();

# Schedules: however many ticks a step passes, one is enqueued.
my $ticks = "SELECT count(*), max(j.headers->>'tick') = to_char(max(s.last_run) AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')
	FROM idemq.jobs j, idemq.schedules s WHERE s.name = 'nightly'";
sql($node, "SELECT idemq.schedule('nightly', '0 3 * * *', 'q', '{}')");
advance($node, '10 days');
is_sql($node, $ticks, '1|t', 'one tick in ten days');
advance($node, '1 day') foreach 1 .. 3;
is_sql($node, $ticks, '4|t', 'one for each of three steps');
is_sql($node, "SELECT next_run BETWEEN idemq.now() AND idemq.now() + interval '1 day' FROM idemq.schedules", 't', 'the next one is to come');
is_sql($node, "SELECT idemq.next_tick('0 3 * * *') = next_run, idemq.last_tick('0 3 * * *') = last_run FROM idemq.schedules", 't|t', 'the calendar has the same time');
sql($node, "SELECT idemq.unschedule('nightly')");
clean();

# A tick that fails.
sql($node, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''refused''; END';
	CREATE TRIGGER refuse BEFORE INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION refuse();
	SELECT idemq.schedule('refused', '0 3 * * *', 'q', '{}')");
$node->psql('postgres', "CALL idemq.advance_clock('1 day')", stderr => \$stderr);
like($stderr, qr/WARNING:  some schedules that were due have not enqueued their jobs\nDETAIL:  Schedules: "refused"\./, 'a tick that fails is reported');
sql($node, 'DROP TRIGGER refuse ON idemq.jobs');
advance($node, '1 min');
is_sql($node, 'SELECT count(*) FROM idemq.jobs', 1, 'a minute later it is tried again');
sql($node, "SELECT idemq.unschedule('refused')");
clean();

# A key's idempotency window, and its own time.
sql($node, "SELECT idemq.create_queue('keys', lease => '1 h', idempotency_window => '10 days', retention => '0')");
sql($node, "SELECT count(*) FROM idemq.enqueue('keys', '1', key => 'k'); SELECT count(*) FROM idemq.enqueue('keys', '1', key => 't', key_ttl => '20 days');
	SELECT idemq.commit(id, token) FROM idemq.claim('keys', 2)");
advance($node, '9 days');
is_sql($node, "SELECT outcome FROM idemq.enqueue('keys', '1', key => 'k')", 'duplicate', 'a key is in its window');
advance($node, '1 day');
is_sql($node, 'SELECT key FROM idemq.jobs', 't', 'which ends, and the job goes with it');
is_sql($node, "SELECT outcome FROM idemq.enqueue('keys', '1', key => 'k')", 'accepted', 'a key can be used again');
is_sql($node, "SELECT outcome FROM idemq.enqueue('keys', '1', key => 't')", 'duplicate', 'one with a time of its own is kept');
advance($node, '10 days');
is_sql($node, "SELECT outcome FROM idemq.enqueue('keys', '1', key => 't')", 'accepted', 'until that is over');
sql($node, "SELECT idemq.drop_queue('keys', force => true)");

# Retention: of jobs, of their attempts, of what idemq.once has seen, of events and of the audit.
sql($node, "SELECT idemq.create_queue('kept', retention => '7 days', idempotency_window => '7 days')");
sql($node, "SELECT count(*) FROM idemq.enqueue_many('kept', array_fill('1'::jsonb, ARRAY[3000]))");
sql($node, "SELECT idemq.fail(id, token, 'x', retry_in => '1 us') FROM idemq.claim('kept')");
sql($node, "SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.claim('kept', 3000)) c, idemq.commit_many(c.ids, c.tokens)");
sql($node, "SELECT idemq.once('kept', 'seen', '7 days'); SELECT idemq.send_event('kept', 'arrived', '1')");
my $kept = "SELECT (SELECT count(*) FROM idemq.jobs), (SELECT count(*) FROM idemq.attempts a JOIN idemq.queues q USING (queue_id) WHERE q.name = 'kept'),
	(SELECT count(*) FROM idemq_internal.seen), (SELECT count(*) FROM idemq.events), (SELECT count(*) > 0 FROM idemq.audit)";
advance($node, '6 days 23 h');
is_sql($node, $kept, '3000|1|1|1|t', 'before its time nothing goes');
advance($node, '1 h');
is_sql($node, $kept, '0|0|0|0|t', 'all that is past its retention has gone');
advance($node, '90 days');
is_sql($node, "SELECT count(*) FROM idemq.audit", '0', 'in the end the audit too');

# The statements that delete it have the same plans by idemq's clock as by PostgreSQL's.
foreach my $table ([ 'idemq_internal.seen', 'visit_at' ], [ 'idemq.events', 'keep_until' ], [ 'idemq.audit', 'at' ])
{
	my $plan = sub { return sql($node, "SET enable_seqscan = off; EXPLAIN (COSTS OFF) SELECT FROM $table->[0] WHERE $table->[1] <= $_[0] ORDER BY $table->[1] LIMIT 10") };
	my $by_now = $plan->('now()');

	is($plan->('idemq.now()') =~ s/idemq\.now\(\)/now()/gr, $by_now, "the plan for $table->[0] stays");
	like($by_now, qr/Index Cond: \($table->[1] <= now\(\)\)/, 'which reads an index');
}
is_sql($node, "SELECT provolatile, proparallel FROM pg_proc WHERE oid = 'idemq.now()'::regprocedure", 's|r', 'the planner may use idemq.now() as it does now(), but no parallel worker has a time of its own');

# The history: of 10 s, a minute, ten minutes; nothing is in two steps.
my $steps = "SELECT step, sum(enqueued), sum(claimed), sum(completed), sum(expired), bool_and(extract(epoch FROM at)::bigint %% step = 0), bool_and(at <= idemq.clock_timestamp())
	FROM idemq.history WHERE queue = 'q' AND at > '%s' GROUP BY 1 ORDER BY 1";
my $since = sql($node, 'SELECT idemq.now()');
enqueue() foreach 1 .. 3;
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('q', 2)");
claim();
advance($node, '10 s');  # meant to expire: the step
like(sql($node, sprintf($steps, $since)), qr/^10\|3\|3\|2\|0\|t\|t$/m, 'a step of 10 s is written');
advance($node, '2 h');
is_sql($node, sprintf($steps, $since), "10|3|3|2|0|t|t\n60|3|3|2|0|t|t\n600|3|3|2|0|t|t", 'a minute and ten minutes are folded; what ends now is in none of them');
advance($node, '10 min');
is_sql($node, sprintf($steps, $since), "10|3|3|2|1|t|t\n60|3|3|2|1|t|t\n600|3|3|2|1|t|t", 'but in the next');
clean();

# A FIFO group goes on when its head's lease ends for good, or its head expires.
my $first = enqueue("group_key => 'g', max_attempts => 1");
my $second = enqueue("group_key => 'g', expires_in => '2 h'");
my $third = enqueue("group_key => 'g'");
claim();
advance($node, '1 h');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id IN ($first, $second, $third) ORDER BY id", "dead\npending\nblocked", 'the next of a group is promoted');
advance($node, '1 h');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id IN ($first, $second, $third) ORDER BY id", "dead\ncancelled\npending", 'and the one after it');
clean();

# A rate: a start counts for a day and the rest of its sixteenth, which is 1.5 hours.
sql($node, "SELECT idemq.create_queue('rated', rate_limit => 1, rate_period => '1 day', lease => '1 day')");
sql($node, "SELECT idemq.enqueue('rated', '1') FROM generate_series(1, 2)");
is_sql($node, "SELECT count(*) FROM idemq.claim('rated', 2)", 1, 'a rate lets one job through');
advance($node, '26 h');
is_sql($node, "SELECT count(*) FROM idemq.claim('rated', 2)", 1, 'and one the day after');
is_sql($node, "SELECT allowed FROM idemq.admit('name', 1, '1 day')", 't', 'so does idemq.admit');
is_sql($node, "SELECT allowed FROM idemq.admit('name', 1, '1 day')", 'f', 'which refuses the next');
advance($node, '26 h');
is_sql($node, "SELECT allowed FROM idemq.admit('name', 1, '1 day')", 't', 'until the day after');
sql($node, "SELECT idemq.drop_queue('rated', force => true)");

# ---- Waiters wake

my $waiter = waiter($node, "CALL idemq.wait('q', '30 days')");
$job = enqueue();
claim();
my $result = waiter($node, "CALL idemq.wait_result($job, '40 days')");
my $any = waiter($node, "CALL idemq.wait_any('{q}', '50 days')");
my $soon = enqueue("delay => '10 days'");
advance($node, '10 days');
# The job whose lease has expired is one, the other was deferred.
is(answer($waiter), 't', 'a session in wait wakes when a job comes due');
is(answer($any), 't', 'and so does one in wait_any');
advance($node, '30 days');
like(answer($result), qr/^\w+\|/, 'wait_result ends at its time');
clean();
$waiter = waiter($node, "CALL idemq.wait('q', '1 day')");
advance($node, '1 day');
is(answer($waiter), 'f', 'wait ends at its time, with nothing');

# ---- It is reported, and nothing is broken

is_sql($node, "SELECT value = extract(epoch FROM idemq.test_clock_ahead()), value > 100 * 86400 FROM idemq.prometheus WHERE name = 'idemq_test_clock_ahead_seconds'", 't|t', 'the figure');
like(sql($node, 'SELECT idemq.prometheus_text()'), qr/^idemq_test_clock_ahead_seconds \d+/m, 'as text');
is_sql($node, 'SELECT stuck_for IS NULL FROM idemq.background_worker', 't', 'the worker is not late');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() finds nothing');

# ---- Two sessions at once; the smallest steps

my $start = sql($node, $ahead);
{
	my @sessions = map { session($node) } 1 .. 4;

	$_->query_until(qr/sent/, "\\echo sent\n" . "CALL idemq.advance_clock('1 us');\n" x 25) foreach @sessions;
	$_->query_safe('SELECT 1') foreach @sessions;
	leave($_) foreach @sessions;
}
is_sql($node, "SELECT round(($ahead)::numeric * 1000000 - $start\::numeric * 1000000)", 100, 'a hundred calls of four sessions add up');
is(slurp_file($file), sql($node, "SELECT (extract(epoch FROM idemq.test_clock_ahead()) * 1000000)::bigint") . "\n", 'in the file as well');
is_state($node, "CALL idemq.advance_clock('0')", '00000', 'by nothing: what is due has run');

# ---- A restart, and a crash

$start = sql($node, $ahead);
my $restored = enqueue("delay => '1 day'");
$node->restart;
worker_pid($node);
is_sql($node, $ahead, $start, 'the clock stays ahead over a restart');
claim();
crash($node);
worker_pid($node);
is_sql($node, $ahead, $start, 'and over a crash');
advance($node, '1 day');
is(status($restored), 'pending', 'what was deferred before is due');

# A caller that is killed has moved the clock, or has not.
{
	my @sessions = map { session($node) } 1 .. 2;
	my $log_at = log_end($node);

	$_->query_until(qr/sent/, "\\echo sent\n" . "CALL idemq.advance_clock('1 h');\n" x 1000) foreach @sessions;
	wait_until($node, "SELECT extract(epoch FROM idemq.test_clock_ahead()) > $start + 86400 + 7200");
	my $seen;
	crash($node, sub { $seen = slurp_file($file) });
	$_->{run}->kill_kill foreach @sessions;
	worker_pid($node);
	is_sql($node, "SELECT (extract(epoch FROM idemq.test_clock_ahead()) * 1000000)::bigint", $seen =~ s/\n//r, 'after kill -9 in the midst of many calls the clock is where the file says');
	is_sql($node, "SELECT (extract(epoch FROM idemq.test_clock_ahead()) - $start)::bigint % 3600", 0, 'by whole calls');
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() finds nothing');
clean();

# ---- Without a worker only the clock moves

$node->append_conf('postgresql.conf', 'idemq.worker = off');
my $lost_lease = enqueue();
sql($node, "SELECT id FROM idemq.claim('q', lease => '1 min')");
$node->restart;
# The call is the first to ask since when this server has been running.
advance($node, '1 h');
is(status($lost_lease), 'running', 'without a worker the call does not take a lease back');
is(claim(), $lost_lease, 'the next claim does: a lease from before a restart ends when its length has passed');
clean();
my $lost = enqueue("max_attempts => 1, group_key => 'g'");
my $next = enqueue("group_key => 'g'");
claim();
my $late = enqueue("expires_in => '30 min', priority => 9");
sql($node, "CALL idemq.tick(); SELECT idemq.schedule('hourly', '0 * * * *', 'q', '{\"tick\": 1}')");
$node->connect_ok($node->connstr('postgres') . ' user=tester', 'a call of another role', sql => "CALL idemq.advance_clock('1 h')");
is(claim(), $next, 'the next claim promotes the next job of the group');
is(status($lost), 'dead', 'after it has taken back the lease of the one before');
is(claim(), '', 'there is no other');
is(status($late), 'cancelled', 'a claim cancels the job that has expired');
sql($node, 'CALL idemq.tick()');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE payload ? 'tick'", 1, 'tick enqueues the job of the schedule');
sql($node, "SELECT idemq.unschedule('hourly'); SELECT idemq.commit($next, token) FROM idemq.jobs WHERE id = $next; SELECT idemq.commit(id, token) FROM idemq.claim('q', 10)");
advance($node, '60 days');
is_sql($node, 'SELECT idemq.apply_retention(); SELECT count(*) FROM idemq.jobs', "4\n0", 'and apply_retention deletes the jobs');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() finds nothing');

# ---- The setting is gone, the rows are not

enqueue();
sql($node, "SELECT id FROM idemq.claim('q')");
$node->append_conf('postgresql.conf', 'idemq.test_clock = off');
$node->restart;
is_sql($node, "SELECT severity, invariant, detail ~ '^\\d+ rows of idemq\\.\\w+ have times in the future, up to .*: discard this server if it has run with idemq\\.test_clock'
	FROM idemq.check() WHERE invariant = 'clock.future' AND detail LIKE '% idemq.jobs %'", 'error|clock.future|t', 'check() says that rows are from the future');
is_sql($node, 'SELECT idemq.now() = now()', 't', "idemq's clock is the server's");
ok(-e $file, 'the file stays');
$node->append_conf('postgresql.conf', 'idemq.test_clock = on');
$node->restart;
is_sql($node, "SELECT * FROM idemq.check()", '', 'with the setting all is well again');

# ---- The file is damaged

$start = slurp_file($file);
foreach my $text ('', 'x', "1\n2\n", " 1\n", "-1\n", '1', "1\n\0", '9' x 40 . "\n")
{
	(my $shown = $text) =~ s/([\n\0])/sprintf('\\%o', ord $1)/ge;
	$node->stop;
	write_whole($file, $text);
	$log = log_end($node);
	ok(!$node->start(fail_ok => 1), "with the file '$shown' the server does not start");
	is_logged($node, qr/XX001 +FATAL:  invalid data in file "idemq_test_clock"/, 'and says why', $log);
	write_whole($file, $start);
	$node->start;
}
write_whole($file, 'x');
$node->append_conf('postgresql.conf', 'idemq.test_clock = off');
$log = log_end($node);
$node->restart;
is_logged($node, qr/WARNING:  invalid data in file "idemq_test_clock"/, 'with the setting off it starts', $log);
is_sql($node, 'SELECT idemq.now() = now(), idemq.test_clock_ahead()', 't|', "its clock is the server's");
is_sql($node, "SELECT severity FROM idemq.check() WHERE invariant = 'clock.future' AND detail LIKE '% idemq.jobs %'", 'error', 'and check() still reports rows from the future');
write_whole($file, $start);
$node->append_conf('postgresql.conf', 'idemq.test_clock = on');
$node->restart;
is(unexpected($node, '55000', '22004', '22023', '22008', '2D000', '42501', 'IQ001', '57P01', 'XX001'), '', 'nothing else was logged');

# ---- The file is lost

$node->stop;
unlink $file or die "$file: $!";
$node->start;
is_sql($node, $ahead, 0, 'without the file the clock goes back');
is_sql($node, "SELECT severity FROM idemq.check() WHERE invariant = 'clock.future' AND detail LIKE '% idemq.jobs %'", 'error', 'which check() reports with the setting on');
my $back = $start / 1000000;
advance($node, "$back s");
is_sql($node, 'SELECT * FROM idemq.check()', '', 'moved forward to where it was, all is well');
leave($session);
$node->stop;
done_testing();
