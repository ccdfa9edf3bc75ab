# Schedules with an interval, which idemq's background worker runs, and paused schedules.  The test moves the test clock second by
# second.  Real seconds pass as well, so the assertions must also hold on a slow machine.
# at least 45 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('intervals', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'max_worker_processes' => 12);

# By how much the clock moves.
my ($second, $two_seconds) = ('1 s', '2 s');  # meant to expire

sql($node, q{CREATE VIEW ticks AS SELECT headers->>'schedule' AS schedule, (headers->>'tick')::timestamptz AS tick, id, xmin, enqueued_at, payload
		FROM idemq.jobs WHERE headers ? 'tick'});
# Returns how often a schedule has ticked.
sub ticked { return sql($node, "SELECT count(*) FROM ticks WHERE schedule = '$_[0]'") }

# Asserts that a schedule ticks again, and more than once if times is given.
sub goes_on
{
	my ($schedule, $name, $times) = @_;
	my $count = ticked($schedule) + ($times // 1);

	advance($node, $second) foreach 1 .. $times // 1;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_soon($node, "SELECT count(*) >= $count FROM ticks WHERE schedule = '$schedule'", $name);
}

# ---- A hundred schedules that tick every second: ticks that are due together are enqueued in one transaction

sql($node, q{SELECT count(idemq.schedule('s' || n, 'every 1 s', 'q', to_jsonb(n))) FROM generate_series(1, 100) n});
advance($node, $second) foreach 1 .. 4;
is_soon($node, q{SELECT count(*) >= 3 FROM (SELECT FROM ticks GROUP BY tick HAVING count(*) = 100) t}, 'all schedules tick');
sql($node, q{SELECT idemq.pause_schedule(name) FROM idemq.schedules WHERE name <> 's1'});
is_sql($node, q{SELECT max(transactions) FROM (SELECT count(DISTINCT xmin::text) AS transactions FROM ticks GROUP BY tick HAVING count(*) = 100) t}, 1,
	'one transaction and one subtransaction per second');
is_sql($node, q{SELECT count(*) = count(DISTINCT (schedule, tick)), bool_and(tick = date_trunc('second', tick)), bool_and(enqueued_at >= tick) FROM ticks}, 't|t|t',
	'each tick is enqueued once, at a whole second, and not early');

# ---- A paused schedule has no ticks until it is resumed, and continues with its next tick

my $paused = ticked('s2');
goes_on('s1', 'a schedule that is not paused continues', 2);
is_sql($node, q{SELECT count(*) FROM ticks t JOIN idemq.schedules s ON s.name = t.schedule WHERE t.enqueued_at > s.paused_at}, 0, 'paused schedules do not tick');
is(ticked('s2'), $paused, 'not even late');
is_sql($node, q{SELECT next_run FROM idemq.schedules WHERE name = 's2'}, '', 'a paused schedule has no next run');
sql($node, q{CREATE TABLE resumed AS SELECT paused_at, clock_timestamp() AS at FROM idemq.schedules WHERE name = 's2'; SELECT idemq.resume_schedule('s2')});
goes_on('s2', 'a resumed schedule ticks');
is_sql($node, q{SELECT count(*) FROM ticks, resumed WHERE schedule = 's2' AND tick > paused_at AND tick <= at}, 0, 'the ticks during the pause are skipped');
sql($node, q{SELECT idemq.unschedule(name) FROM idemq.schedules WHERE paused_at IS NOT NULL});

# ---- pause_schedule waits for a tick whose transaction is open

sub waits
{
	my ($session, $call) = @_;

	$session->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\n$call;\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $session->{backend} AND wait_event_type = 'Lock'");
	return;
}
my ($one, $two) = (session($node), session($node));
# With ticks a day apart, the worker does not run it during the test.
sql($node, q{SELECT idemq.schedule('open', 'every 24 h', 'q', '1')});
$one->query_safe(q{BEGIN; UPDATE idemq_internal.schedule_entries SET done_until = idemq.clock_timestamp() - interval '3 days' WHERE name = 'open'; SELECT idemq_internal.run_schedule('open')});
waits($two, q{SELECT idemq.pause_schedule('open')});
$one->query_safe('COMMIT');
$two->query_safe('SELECT 1');
is_sql($node, q{SELECT (SELECT count(*) FROM ticks WHERE schedule = 'open'), paused_at IS NOT NULL, next_run FROM idemq.schedules WHERE name = 'open'}, '1|t|',
	'the open tick is enqueued, and then the schedule is paused');

# ---- Open transactions that pause, drop and change a schedule do not delay other schedules (here s2)

$one->query_safe(q{BEGIN; SELECT idemq.pause_schedule('s1')});
my $before = ticked('s1');
my $runs = q{SELECT runs FROM idemq.maintenance_tasks WHERE task = 'tick'};
my $ran = sql($node, $runs);
goes_on('s2', 'other schedules continue while a pause is uncommitted', 2);
cmp_ok(sql($node, $runs) - $ran, '<', 1000, 'the worker tries again with the next tick, not continuously');
is(ticked('s1'), $before, 'the schedule that is being paused does not tick');
is_sql($node, q{SELECT idemq_internal.run_schedule('s1')}, 'f', 'other drivers skip it');
$one->query_safe('ROLLBACK');
goes_on('s1', 'it ticks after the pause was rolled back');
$one->query_safe(q{BEGIN; SELECT idemq.unschedule('s1')});
goes_on('s2', 'other schedules continue while one is being dropped');
$one->query_safe('COMMIT');
$before = ticked('s1');
goes_on('s2', 'and after the drop has committed', 2);
is(ticked('s1'), $before, 'a dropped schedule does not tick');
sql($node, q{SELECT idemq.schedule('changed', 'every 1 s', 'q', '"one"')});
goes_on('changed', 'a new schedule ticks');
sql($node, q{SELECT idemq.schedule('changed', 'every 2 s', 'q', '"two"')});
advance($node, $second) foreach 1 .. 5;
is_soon($node, q{SELECT count(*) >= 2 AND bool_and(extract(epoch FROM tick)::int % 2 = 0) FROM ticks WHERE payload = '"two"'}, 'after a change, it ticks at the new interval');
sql($node, q{SELECT idemq.unschedule('changed')});
# A snapshot that is older than the last tick.
$two->query_safe(q{\set VERBOSITY sqlstate
	BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM ticks});
goes_on('s2', 'the schedule ticks after the snapshot');
$two->query(q{SELECT idemq.pause_schedule('s2')});
like($two->{stderr}, qr/ERROR:\s+40001/, 'pause_schedule then raises a serialization failure');
$two->{stderr} = '';
$two->query_safe('ROLLBACK');

# ---- A schedule that fails is tried again by itself with its next tick, and logged once per minute

sql($node, q{SELECT idemq.schedule('s3', 'every 1 s', 'q', '3'); CREATE ROLE shop; SELECT idemq.grant_queue('q', 'shop', 'enqueue'); SET ROLE shop; SELECT idemq.schedule('shop', 'every 1 s', 'q', '1')});
goes_on('shop', 'the schedule of a role ticks');
my $log = -s $node->logfile;
sql($node, q{SELECT idemq.revoke_queue('q', 'shop', 'enqueue')});
is_soon($node, q{SELECT last_error LIKE '%may no longer enqueue%' FROM idemq.schedules WHERE name = 'shop'}, 'it fails when the role has lost its privilege');
my $failed = sql($node, q{SELECT failed_at FROM idemq.schedules WHERE name = 'shop'});
goes_on('s2', 'other schedules continue');
# When advance returns, all schedules that are due have run.  A schedule that waited for a minute would not have.
advance($node, $second) foreach 1 .. 3;
is_sql($node, "SELECT failed_at >= '$failed'::timestamptz + interval '$two_seconds' FROM idemq.schedules WHERE name = 'shop'", 't', 'it is tried again with its next tick');
is_sql($node, q{SELECT count(*), count(DISTINCT xmin::text) FROM ticks WHERE schedule IN ('s2', 's3') AND tick = (SELECT max(tick) FROM ticks WHERE schedule = 's3')}, '2|1',
	'the other schedules again run in one transaction');
my $minutes = sql($node, "SELECT 1 + extract(epoch FROM date_trunc('minute', failed_at) - date_trunc('minute', '$failed'::timestamptz))::int / 60 FROM idemq.schedules WHERE name = 'shop'");
my $lines = scalar(() = slurp_file($node->logfile, $log) =~ /LOG: .*schedule "shop": role "shop", which created the schedule, may no longer/g);
cmp_ok($lines, '<=', $minutes, 'the log has at most one line per minute');
cmp_ok($lines, '>', 0, 'and at least one');
$before = ticked('shop');
sql($node, q{SELECT idemq.grant_queue('q', 'shop', 'enqueue')});
goes_on('shop', 'it ticks when the role has the privilege again');
is_sql($node, q{SELECT count(*) FROM ticks t, idemq.schedules s WHERE t.schedule = 'shop' AND s.name = 'shop' AND s.failed_at IS NOT NULL}, 0, 'its error has been removed');
is_sql($node, "SELECT count(*) FROM ticks WHERE schedule = 'shop' AND tick > '$failed'::timestamptz AND tick < '$failed'::timestamptz + interval '$second'", 0, 'the next tick has replaced the failed one');
sql($node, q{SELECT idemq.unschedule('shop')});

# ---- After an outage of a day, or a clock jump, one job is enqueued

my $start = sql($node, q{SELECT date_trunc('second', idemq.clock_timestamp())});
sql($node, q{SELECT idemq.schedule('stopped', 'every 1 s', 'q', '1'); UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '1 day' WHERE name = 'stopped'});
goes_on('stopped', 'it ticks after a day without ticks');
is_sql($node, "SELECT count(*) FROM ticks WHERE schedule = 'stopped' AND tick < '$start'", 0, 'of the missed ticks, only the last is enqueued');
advance($node, '1 day');
goes_on('s2', 'it ticks after the clock was set ahead');
is_sql($node, "SELECT count(*) FROM ticks WHERE schedule = 's2' AND tick > idemq.clock_timestamp() - interval '23 h 50 min' AND tick < '$start'::timestamptz + interval '1 day'", 0, 'the skipped seconds have no jobs');
# As if a clock that was ahead has been set back.  If it was ahead by an hour, the schedule does not wait; by some minutes, it does.
sql($node, q{UPDATE idemq_internal.schedule_entries SET done_until = idemq.clock_timestamp() + interval '1 h' WHERE name = 's2'});
goes_on('s2', 'it ticks after the clock was set back by an hour');
sql($node, q{UPDATE idemq_internal.schedule_entries SET done_until = idemq.clock_timestamp() + interval '5 min' WHERE name = 'stopped'});
$before = ticked('stopped');
goes_on('s2', 'others tick after a clock was set back by five minutes', 2);
is(ticked('stopped'), $before, 'the repeated minutes have no ticks');

# ---- The commit of a run fails, after the run: what was rolled back is due as before

# SET CONSTRAINTS ALL IMMEDIATE in the run fires put_aside, which leaves something for the commit.
sql($node, q{CREATE TABLE aside (n bigint); CREATE SEQUENCE commits;
	CREATE FUNCTION refuse_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('public.commits') = 1 THEN RAISE EXCEPTION 'not now' USING ERRCODE = 'LATE1'; END IF; RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON aside DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse_once();
	CREATE FUNCTION put_aside() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN SET CONSTRAINTS public.at_commit DEFERRED; INSERT INTO public.aside VALUES (NEW.id); RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER put_aside AFTER INSERT ON idemq.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.key LIKE 'undone@%') EXECUTE FUNCTION put_aside()});
$log = -s $node->logfile;
sql($node, q{SELECT idemq.schedule('undone', '0 0 1 1 *', 'q', '1'); UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '1 year' WHERE name = 'undone'});
wait_logged($node, qr/LATE1 .*not now/, $log);
advance($node, $second) foreach 1 .. 3;
is(ticked('undone'), 1, 'a tick whose commit failed is enqueued with the next attempt, not when the schedules are read the next time');
sql($node, q{DROP TRIGGER put_aside ON idemq.jobs; SELECT idemq.unschedule('undone')});

sql($node, q{SELECT idemq.unschedule('stopped')});
leave($one, $two);

# ---- After a restart, paused schedules stay paused and the others continue

$node->restart;
goes_on('s2', 'schedules tick after a restart');
is_sql($node, q{SELECT count(*) FROM idemq.schedules WHERE name = 'open' AND paused_at IS NOT NULL}, 1, 'a paused schedule is still paused');
is_sql($node, q{SELECT count(*) = count(DISTINCT (schedule, tick)) FROM ticks}, 't', 'each tick was enqueued once');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
is(unexpected($node, '40001', '57P01', 'LATE1'), '', 'no other error');
$node->stop;
done_testing();
