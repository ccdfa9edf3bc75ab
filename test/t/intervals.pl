# Schedules with an interval, ticked by idemq's own worker, and schedules that are paused.  The test clock moves from second
# to second; real seconds pass as well, and what is asserted holds on a machine that is late, too.
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
# How often a schedule has ticked; that it ticks again, from now on.
sub ticked { return sql($node, "SELECT count(*) FROM ticks WHERE schedule = '$_[0]'") }

sub goes_on
{
	my ($schedule, $name, $times) = @_;
	my $count = ticked($schedule) + ($times // 1);

	advance($node, $second) foreach 1 .. $times // 1;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_soon($node, "SELECT count(*) >= $count FROM ticks WHERE schedule = '$schedule'", $name);
}

# ---- A hundred schedules of a second: one transaction has the ticks of all that are due together

sql($node, q{SELECT count(idemq.schedule('s' || n, 'every 1 s', 'q', to_jsonb(n))) FROM generate_series(1, 100) n});
advance($node, $second) foreach 1 .. 4;
is_soon($node, q{SELECT count(*) >= 3 FROM (SELECT FROM ticks GROUP BY tick HAVING count(*) = 100) t}, 'they tick');
sql($node, q{SELECT idemq.pause_schedule(name) FROM idemq.schedules WHERE name <> 's1'});
is_sql($node, q{SELECT max(transactions) FROM (SELECT count(DISTINCT xmin::text) AS transactions FROM ticks GROUP BY tick HAVING count(*) = 100) t}, 1,
	'a transaction, and a subtransaction, for each second');
is_sql($node, q{SELECT count(*) = count(DISTINCT (schedule, tick)), bool_and(tick = date_trunc('second', tick)), bool_and(enqueued_at >= tick) FROM ticks}, 't|t|t',
	'each tick once, at a whole second, not before its time');

# ---- Paused: no ticks, until it is resumed with the next one

my $paused = ticked('s2');
goes_on('s1', 'what is not paused goes on', 2);
is_sql($node, q{SELECT count(*) FROM ticks t JOIN idemq.schedules s ON s.name = t.schedule WHERE t.enqueued_at > s.paused_at}, 0, 'what is paused does not');
is(ticked('s2'), $paused, 'at all');
is_sql($node, q{SELECT next_run FROM idemq.schedules WHERE name = 's2'}, '', 'it has no next run');
sql($node, q{CREATE TABLE resumed AS SELECT paused_at, clock_timestamp() AS at FROM idemq.schedules WHERE name = 's2'; SELECT idemq.resume_schedule('s2')});
goes_on('s2', 'resumed, it ticks');
is_sql($node, q{SELECT count(*) FROM ticks, resumed WHERE schedule = 's2' AND tick > paused_at AND tick <= at}, 0, 'the ticks of the pause are skipped');
sql($node, q{SELECT idemq.unschedule(name) FROM idemq.schedules WHERE paused_at IS NOT NULL});

# ---- While a tick is open: the pause waits for it

sub waits
{
	my ($session, $call) = @_;

	$session->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\n$call;\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $session->{backend} AND wait_event_type = 'Lock'");
	return;
}
my ($one, $two) = (session($node), session($node));
# A day apart: it does not tick by itself here.
sql($node, q{SELECT idemq.schedule('open', 'every 24 h', 'q', '1')});
$one->query_safe(q{BEGIN; UPDATE idemq_internal.schedule_entries SET done_until = idemq.clock_timestamp() - interval '3 days' WHERE name = 'open'; SELECT idemq_internal.run_schedule('open')});
waits($two, q{SELECT idemq.pause_schedule('open')});
$one->query_safe('COMMIT');
$two->query_safe('SELECT 1');
is_sql($node, q{SELECT (SELECT count(*) FROM ticks WHERE schedule = 'open'), paused_at IS NOT NULL, next_run FROM idemq.schedules WHERE name = 'open'}, '1|t|',
	'the tick that was open is there, and then it is paused');

# ---- Open transactions that pause, drop and change a schedule hold it up alone; s2 is the other one

$one->query_safe(q{BEGIN; SELECT idemq.pause_schedule('s1')});
my $before = ticked('s1');
my $runs = q{SELECT runs FROM idemq.maintenance_tasks WHERE task = 'tick'};
my $ran = sql($node, $runs);
goes_on('s2', 'others go on while a pause is open', 2);
cmp_ok(sql($node, $runs) - $ran, '<', 1000, 'the worker tries again with the next tick, and not all the time');
is(ticked('s1'), $before, 'its schedule does not');
is_sql($node, q{SELECT idemq_internal.run_schedule('s1')}, 'f', 'no driver waits for it');
$one->query_safe('ROLLBACK');
goes_on('s1', 'rolled back, it ticks');
$one->query_safe(q{BEGIN; SELECT idemq.unschedule('s1')});
goes_on('s2', 'others go on while one is dropped');
$one->query_safe('COMMIT');
$before = ticked('s1');
goes_on('s2', 'and then', 2);
is(ticked('s1'), $before, 'it is gone');
sql($node, q{SELECT idemq.schedule('changed', 'every 1 s', 'q', '"one"')});
goes_on('changed', 'a schedule');
sql($node, q{SELECT idemq.schedule('changed', 'every 2 s', 'q', '"two"')});
advance($node, $second) foreach 1 .. 5;
is_soon($node, q{SELECT count(*) >= 2 AND bool_and(extract(epoch FROM tick)::int % 2 = 0) FROM ticks WHERE payload = '"two"'}, 'changed, it has the ticks of the other interval');
sql($node, q{SELECT idemq.unschedule('changed')});
# A snapshot that is older than the last tick.
$two->query_safe(q{\set VERBOSITY sqlstate
	BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM ticks});
goes_on('s2', 'a tick after the snapshot');
$two->query(q{SELECT idemq.pause_schedule('s2')});
like($two->{stderr}, qr/ERROR:\s+40001/, 'is a serialization failure');
$two->{stderr} = '';
$two->query_safe('ROLLBACK');

# ---- One that fails: tried again with the next tick, alone; the log has it once a minute

sql($node, q{SELECT idemq.schedule('s3', 'every 1 s', 'q', '3'); CREATE ROLE shop; SELECT idemq.grant_queue('q', 'shop', 'enqueue'); SET ROLE shop; SELECT idemq.schedule('shop', 'every 1 s', 'q', '1')});
goes_on('shop', 'a role\'s schedule');
my $log = -s $node->logfile;
sql($node, q{SELECT idemq.revoke_queue('q', 'shop', 'enqueue')});
is_soon($node, q{SELECT last_error LIKE '%may no longer enqueue%' FROM idemq.schedules WHERE name = 'shop'}, 'its role may not any more: it fails');
my $failed = sql($node, q{SELECT failed_at FROM idemq.schedules WHERE name = 'shop'});
goes_on('s2', 'others go on');
# When advance returns, all that is due has run; one that waited for a minute has not.
advance($node, $second) foreach 1 .. 3;
is_sql($node, "SELECT failed_at >= '$failed'::timestamptz + interval '$two_seconds' FROM idemq.schedules WHERE name = 'shop'", 't', 'tried again with the next one');
is_sql($node, q{SELECT count(*), count(DISTINCT xmin::text) FROM ticks WHERE schedule IN ('s2', 's3') AND tick = (SELECT max(tick) FROM ticks WHERE schedule = 's3')}, '2|1',
	'the others are together again');
my $minutes = sql($node, "SELECT 1 + extract(epoch FROM date_trunc('minute', failed_at) - date_trunc('minute', '$failed'::timestamptz))::int / 60 FROM idemq.schedules WHERE name = 'shop'");
my $lines = scalar(() = slurp_file($node->logfile, $log) =~ /LOG: .*schedule "shop": role "shop", which created the schedule, may no longer/g);
cmp_ok($lines, '<=', $minutes, 'a line of the log a minute');
cmp_ok($lines, '>', 0, 'and there is one');
$before = ticked('shop');
sql($node, q{SELECT idemq.grant_queue('q', 'shop', 'enqueue')});
goes_on('shop', 'given back, it ticks');
is_sql($node, q{SELECT count(*) FROM ticks t, idemq.schedules s WHERE t.schedule = 'shop' AND s.name = 'shop' AND s.failed_at IS NOT NULL}, 0, 'it has not failed since');
is_sql($node, "SELECT count(*) FROM ticks WHERE schedule = 'shop' AND tick > '$failed'::timestamptz AND tick < '$failed'::timestamptz + interval '$second'", 0, 'what failed was replaced by the next one');
sql($node, q{SELECT idemq.unschedule('shop')});

# ---- A stop of a day, and clocks that jump: one job

my $start = sql($node, q{SELECT date_trunc('second', idemq.clock_timestamp())});
sql($node, q{SELECT idemq.schedule('stopped', 'every 1 s', 'q', '1'); UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '1 day' WHERE name = 'stopped'});
goes_on('stopped', 'after a day');
is_sql($node, "SELECT count(*) FROM ticks WHERE schedule = 'stopped' AND tick < '$start'", 0, 'the ticks that were missed are one, the last');
advance($node, '1 day');
goes_on('s2', 'a clock that was set ahead');
is_sql($node, "SELECT count(*) FROM ticks WHERE schedule = 's2' AND tick > idemq.clock_timestamp() - interval '23 h 50 min' AND tick < '$start'::timestamptz + interval '1 day'", 0, 'no job for each second of it');
# As a clock does that was ahead: by an hour it is not waited for, by some minutes it is.
sql($node, q{UPDATE idemq_internal.schedule_entries SET done_until = idemq.clock_timestamp() + interval '1 h' WHERE name = 's2'});
goes_on('s2', 'a clock that was set back by an hour');
sql($node, q{UPDATE idemq_internal.schedule_entries SET done_until = idemq.clock_timestamp() + interval '5 min' WHERE name = 'stopped'});
$before = ticked('stopped');
goes_on('s2', 'a clock that was set back by five minutes', 2);
is(ticked('stopped'), $before, 'the minutes that come again have no ticks');

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

# ---- A restart: paused stays paused, and the others go on

$node->restart;
goes_on('s2', 'after a restart');
is_sql($node, q{SELECT count(*) FROM idemq.schedules WHERE name = 'open' AND paused_at IS NOT NULL}, 1, 'paused is paused');
is_sql($node, q{SELECT count(*) = count(DISTINCT (schedule, tick)) FROM ticks}, 't', 'each tick once');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
is(unexpected($node, '40001', '57P01', 'LATE1'), '', 'no other error');
$node->stop;
done_testing();
