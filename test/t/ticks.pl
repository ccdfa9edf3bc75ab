# Schedules that idemq's own worker ticks: no pg_cron, nothing that calls idemq.tick().
# at least 28 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('ticks', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'max_worker_processes' => 12);

# Schedules here tick once a year, in half a year, but for one that is there for the clock: no minute that ends between two
# statements brings a tick more.
my $yearly = '0 0 1 ' . (((gmtime)[4] + 6) % 12 + 1) . ' *';

# Makes the last tick due again, as if nothing had run meanwhile; the worker hears of it.
sub miss
{
	my ($name, $db) = @_;

	return sql($node, "UPDATE idemq_internal.schedule_entries SET done_until = idemq.clock_timestamp() - interval '3 years' WHERE name = '$name'", $db);
}

sub ticked { return "SELECT count(*) FROM idemq.jobs WHERE key LIKE '$_[0]\@%'" }

# ---- Made without a driver, and ticked

sql($node, "CREATE ROLE shop; SELECT idemq.grant_queue('q', 'shop', 'enqueue');
	SET ROLE shop; SELECT idemq.schedule('a', '$yearly', 'q', '{\"n\": 1}')");
miss('a');
is_soon($node, ticked('a'), 1, 'what is due is enqueued by the worker');
is_sql($node, "SELECT key = 'a\@' || to_char(last_run AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), last_job = j.id, next_run > idemq.now(), failed_at IS NULL
	FROM idemq.schedules s, idemq.jobs j WHERE s.name = 'a'", 't|t|t|t', 'the last tick alone, under its own time');
is_sql($node, 'SELECT count(*) FROM idemq_internal.ticker', 0, 'nobody has called idemq.tick()');
sql($node, "UPDATE idemq_internal.schedule_entries SET created_at = created_at - interval '1 h'");
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check: the worker is the driver');

# By the clock, and not before.
my $hour = ((gmtime)[2] + 12) % 24;
my $due = sql($node, "SELECT idemq.create_queue('clock'); SELECT idemq.schedule('clock', '0 $hour * * *', 'clock', '1')") =~ s/.*\n//sr;
advance($node, '10 h');
is_sql($node, ticked('clock'), 0, 'before its time there is no tick');
advance($node, '2 h');
is_sql($node, "SELECT count(*), bool_and(enqueued_at >= '$due') FROM idemq.jobs WHERE key LIKE 'clock\@%'", '1|t', 'at its time there is one');

# ---- One that fails holds up no other, and is not tried without a pause

sql($node, "SELECT idemq.schedule('b', '$yearly', 'q', '2'); SELECT idemq.revoke_queue('q', 'shop', 'enqueue')");
miss($_) foreach 'a', 'b';
is_soon($node, ticked('b'), 1, 'the other is enqueued');
is_soon($node, "SELECT last_error LIKE '%may no longer enqueue%' FROM idemq.schedules WHERE name = 'a'", 'the failure is noted');
my $failed = sql($node, "SELECT failed_at FROM idemq.schedules WHERE name = 'a'");
foreach (1 .. 3)
{
	# What brings the worker back to the schedules brings it not back to that one.
	sql($node, "DELETE FROM idemq.jobs WHERE key LIKE 'b\@%'");
	miss('b');
	is_soon($node, ticked('b'), 1, 'listed again');
}
is_sql($node, "SELECT failed_at = '$failed' OR failed_at >= '$failed'::timestamptz + interval '1 min' FROM idemq.schedules WHERE name = 'a'", 't', 'tried once in a minute');
sql($node, "SELECT idemq.grant_queue('q', 'shop', 'enqueue'); DELETE FROM idemq.jobs WHERE key LIKE 'a\@%'");
advance($node, '1 min');
is_sql($node, ticked('a'), 1, 'and then made up for');

# A deferred trigger that refuses a tick at COMMIT: the schedules that are due at the same time are ticked.
sql($node, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN IF NEW.payload = '\"late\"' THEN RAISE 'refused'; END IF; RETURN NULL; END \$\$;
	CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON idemq.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse();
	SELECT idemq.schedule('a late', '$yearly', 'q', '\"late\"'); DELETE FROM idemq.jobs WHERE key LIKE 'b\@%';
	UPDATE idemq_internal.schedule_entries SET done_until = idemq.clock_timestamp() - interval '3 years' WHERE name IN ('a late', 'b')");
is_soon($node, ticked('b'), 1, 'a tick that fails at COMMIT holds up no other');
is_soon($node, "SELECT last_error FROM idemq.schedules WHERE name = 'a late'", 'refused', 'its error is noted');
sql($node, "DROP TRIGGER refuse ON idemq.jobs; SELECT idemq.unschedule('a late')");

# ---- Beside another driver, and one in the midst of it

my $session = session($node);
sql($node, "DELETE FROM idemq.jobs WHERE key NOT LIKE 'clock\@%'");
# A driver that has listed a schedule, and comes to it after another, has nothing to do: it does not meet the key of the
# other's job.
my $duplicates = "SELECT duplicates_total FROM idemq.metrics WHERE queue = 'q'";
my $before = sql($node, $duplicates);
miss('b');
$session->query_safe('CALL idemq.tick()') foreach 1 .. 3;
advance($node, '0');
is_sql($node, "SELECT idemq_internal.run_schedule('b')", 'f', 'a driver that is late finds nothing to do');
is_sql($node, ticked('b'), 1, 'two drivers, one job');
is_sql($node, $duplicates, $before, 'and no other was tried');

# ---- A session that makes one wakes the worker; one that is rolled back, or ended, does not tick

sql($node, "BEGIN; SELECT idemq.schedule('c', '$yearly', 'q', '3'); UPDATE idemq_internal.schedule_entries SET done_until = idemq.now() - interval '3 years' WHERE name = 'c'; ROLLBACK");
sql($node, "SELECT idemq.unschedule('b'); DELETE FROM idemq.jobs WHERE key NOT LIKE 'clock\@%'");
miss('a');
is_soon($node, ticked('a'), 1, 'a round of the worker');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE key NOT LIKE 'clock\@%'", 1, 'for what is there');

# ---- A crash in the midst, a worker that is killed, one that is switched off

sql($node, "DELETE FROM idemq.jobs WHERE key NOT LIKE 'clock\@%'");
leave($session);
sql($node, "ALTER SYSTEM SET idemq.worker = off; SELECT pg_reload_conf()");
wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idemq worker'", 0);
miss('a');
is_state($node, "SELECT idemq.schedule('d', '$yearly', 'q', '1')", '00000', 'called lately: a schedule may be made');
sql($node, "UPDATE idemq_internal.ticker SET called_at = called_at - interval '1 h'");
is_state($node, "SELECT idemq.schedule('e', '$yearly', 'q', '1')", '55000', 'with the worker off there is no schedule without a driver');
is_sql($node, ticked('a'), 0, 'and nothing ticks');
is_sql($node, 'SELECT severity, invariant FROM idemq.check()', 'warning|schedules.driver', 'check says so');
crash($node);
sql($node, "ALTER SYSTEM RESET idemq.worker; SELECT pg_reload_conf()");
is_soon($node, ticked('a'), 1, 'switched on after a crash, the worker makes up for it');

# ---- A function at a time, once: a handler and a schedule

sql($node, q[CREATE TABLE report (at timestamptz, schedule text, tick text);
	CREATE FUNCTION report(payload jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS
	$$BEGIN INSERT INTO report SELECT now(), headers->>'schedule', headers->>'tick' FROM idemq.current_job(); END$$;
	SELECT idemq.create_queue('reports', max_attempts => 3, job_timeout => '1 min');
	SELECT idemq.set_handler('reports', 'report(jsonb)')]);
sql($node, "SELECT idemq.schedule('nightly', '$yearly', 'reports', '{}')");
miss('nightly');
is_soon($node, "SELECT count(*) = 1 AND bool_and(schedule = 'nightly' AND tick = to_char(s.last_run AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'))
	FROM report, idemq.schedules s WHERE s.name = 'nightly'", 'the function ran, once, for its tick');

is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
is(unexpected($node, 'workers', '57P01'), '', 'no error of idemq\'s own processes');
$node->stop;
done_testing();
