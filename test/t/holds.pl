# Holds (idemq.hold_back) and the processes of a server: at the end of a hold, and after idemq.resume, those who sleep
# wake; without a worker; in a handler; after a restart and a crash; in another database that follows;
# on a standby; in a dump; at COMMIT PREPARED.
# at least 52 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('holds', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', max_prepared_transactions => 2, max_connections => 40);

sql($node, "SELECT idemq.alter_queue('q', lease => '10 days', max_lease => '10 days', max_hold_back => '1 day', max_attempts => 20)");

# Claims a job of a queue, and holds back its group or queue.
sub held
{
	my ($q, $delay, $group) = @_;

	return sql($node, sprintf(q{BEGIN; SELECT idemq.enqueue('%1$s', '"first"', group_key => %3$s); COMMIT;
		SELECT idemq.hold_back(id, token, '%2$s') > idemq.now() FROM idemq.claim('%1$s')}, $q, $delay, $group ? "'$group'" : 'NULL'));
}

# ---- A waiter sleeps to the end of the hold.

is(held('q', '2 h') =~ s/.*\n//sr, 't', 'a hold');
my $waiter = waiter($node, "CALL idemq.wait('q', '10 days')");
sql($node, "SELECT idemq.enqueue('q', to_jsonb(n)) FROM generate_series(1, 3) n");
my $second = waiter($node, "CALL idemq.wait('q', '10 days')");
advance($node, '1 h');
is_soon($node, "SELECT count(*) = 2 FROM pg_stat_activity WHERE pid IN ($waiter->{pid}, $second->{pid}) AND " . asleep(), 'both sleep in the middle of it');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'and nothing can be claimed');
advance($node, '61 min');
is(answer($waiter), 't', 'its end wakes one');
is(answer($second), 't', 'and the other');
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 10)", 3, 'the jobs can be claimed');
leave($waiter->{session}, $second->{session});

# One that fell asleep before the hold began, when there was nothing: a job that comes during the hold wakes it in vain.
$waiter = waiter($node, "CALL idemq.wait('q', '10 days')");
is(sql($node, "SELECT idemq.hold_back(id, token, '2 h') > idemq.now() FROM idemq.jobs WHERE status = 'running' ORDER BY id DESC LIMIT 1"), 't', 'another hold');
sql($node, "SELECT idemq.enqueue('q', '4')");
is_sql($node, 'SELECT idemq.clock_timestamp() < max(until) FROM idemq.holds', 't', 'it is in force');
sql($node, "SELECT idemq.resume('q')");
is(answer($waiter), 't', 'resume wakes it');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'for the job');

# An extension: it sleeps on to the later end.
is(sql($node, "SELECT idemq.hold_back(id, token, '1 h') > idemq.now() FROM idemq.jobs WHERE payload = '4'"), 't', 'a hold');
sql($node, "SELECT idemq.enqueue('q', '5')");
$waiter = waiter($node, "CALL idemq.wait('q', '10 days')", $waiter->{session});
is(sql($node, "SELECT idemq.hold_back(id, token, '3 h') > idemq.now() FROM idemq.jobs WHERE payload = '4'"), 't', 'that is extended');
advance($node, '2 h');
is_soon($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $waiter->{pid} AND " . asleep(), 'it sleeps beyond the first end');
advance($node, '61 min');
is(answer($waiter), 't', 'and wakes at the second');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'for the job');
leave($waiter->{session});

# ---- A group: its next job comes due at the end.

sql($node, "SELECT idemq.create_queue('g', lease => '10 days', max_lease => '10 days', max_hold_back => '1 day');
	SELECT idemq.enqueue('g', to_jsonb('a' || n), group_key => 'a') FROM generate_series(1, 3) n;
	SELECT idemq.hold_back(id, token, '2 h') FROM idemq.claim('g')");
sql($node, "SELECT idemq.commit(id, token) FROM idemq.jobs WHERE payload = '\"a1\"'");
is_soon($node, "SELECT ready_at = until FROM idemq.jobs, idemq.holds WHERE payload = '\"a2\"'", 'the worker promotes the next job for the end of the hold');
$waiter = waiter($node, "CALL idemq.wait('g', '10 days')");
advance($node, '1 h');
is_soon($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $waiter->{pid} AND " . asleep(), 'it sleeps');
advance($node, '61 min');
is(answer($waiter), 't', 'and wakes at the end');
is_sql($node, "SELECT payload FROM idemq.claim('g')", '"a2"', 'for the next job of the group');
sql($node, "SELECT idemq.hold_back(id, token, '2 h'), idemq.commit(id, token) FROM idemq.jobs WHERE payload = '\"a2\"'");
is_soon($node, "SELECT ready_at = until FROM idemq.jobs, idemq.holds WHERE payload = '\"a3\"'", 'the third one waits');
$waiter = waiter($node, "CALL idemq.wait('g', '10 days')", $waiter->{session});
sql($node, "SELECT idemq.resume('g', group_key => 'a')");
is(answer($waiter), 't', 'resume of the group wakes');
is_soon($node, "SELECT ready_at <= idemq.now() FROM idemq.jobs WHERE payload = '\"a3\"'", 'and makes it due');
is_sql($node, "SELECT payload FROM idemq.claim('g')", '"a3"', 'it can be claimed');
leave($waiter->{session});

# A claim after resume does not need the worker, which is stopped, to find the job.
sql($node, "SELECT idemq.enqueue('g', '\"a4\"', group_key => 'a');
	SELECT idemq.hold_back(id, token, '2 h'), idemq.commit(id, token) FROM idemq.jobs WHERE payload = '\"a3\"'");
is_soon($node, "SELECT ready_at = until FROM idemq.jobs, idemq.holds WHERE payload = '\"a4\"'", 'the fourth one waits');
my $worker = stop_worker($node);
sql($node, "SELECT idemq.resume('g', group_key => 'a')");
is_sql($node, "SELECT payload FROM idemq.claim('g')", '"a4"', 'the first claim after resume finds it');
kill CONT => $worker;

# ---- A handler: its processes obey, and start at the end.

sql($node, "CREATE TABLE ran (payload jsonb, at timestamptz DEFAULT idemq.clock_timestamp());
	CREATE FUNCTION run(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS 'INSERT INTO public.ran VALUES (\$1)';
	SELECT idemq.create_queue('h', lease => '10 days', max_lease => '10 days', max_hold_back => '1 day'), idemq.enqueue('h', '0')");
sql($node, "SELECT idemq.hold_back(id, token, '2 h') FROM idemq.claim('h'); SELECT idemq.enqueue('h', '1'); SELECT idemq.set_handler('h', 'run(jsonb)')");
advance($node, '1 h');
is_sql($node, 'SELECT count(*) FROM ran', 0, 'no job of a held queue is run');
advance($node, '61 min');
is_soon($node, "SELECT count(*) = 1 FROM ran WHERE payload = '1'", 'the end starts it');
is_soon($node, "SELECT status = 'completed' FROM idemq.jobs WHERE queue_id = idemq.queue_id('h') AND payload = '1'", 'and commits it');
# An idle process obeys as well, and wakes.
sql($node, "SELECT idemq.hold_back(id, token, '2 h') FROM idemq.jobs WHERE queue_id = idemq.queue_id('h') AND payload = '0'; SELECT idemq.enqueue('h', '2')");
advance($node, '1 h');
is_sql($node, "SELECT count(*) FROM ran WHERE payload = '2'", 0, 'nor by a process that was idle');
advance($node, '61 min');
is_soon($node, "SELECT count(*) = 1 FROM ran WHERE payload = '2'", 'which wakes at the end');
sql($node, "SELECT idemq.drop_handler('h')");

# ---- NOTIFY: nothing is ready during the hold, and something at its end.

is(held('q', '2 h') =~ s/.*\n//sr, 't', 'a hold');
my $listener = session($node);
$listener->query_safe('LISTEN idemq_q');
sql($node, "SELECT idemq.enqueue('q', '6')");
advance($node, '1 h');
unlike($listener->query('SELECT 1'), qr/"event":"ready"/, 'nothing is announced in a held queue');
advance($node, '61 min');
my $heard = '';
until_true('the announcement', sub { $heard .= $listener->query('SELECT 1'); return $heard =~ /"event":"ready"/ });
pass('its end is announced');
leave($listener);
sql($node, "SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 10)");

# ---- A restart and a crash change nothing.

is(held('q', '2 h') =~ s/.*\n//sr, 't', 'a hold');
sql($node, "SELECT idemq.enqueue('q', '7')");
$node->restart;
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'a restart does not end it');
crash($node);
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'nor does a crash');
is_sql($node, 'SELECT count(*) FROM idemq.holds', 1, 'it is shown');
$waiter = waiter($node, "CALL idemq.wait('q', '10 days')");
advance($node, '121 min');
is(answer($waiter), 't', 'the worker knows its end after a crash');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'and then it is over');
leave($waiter->{session});

# ---- Prepared: in force from COMMIT PREPARED on.

sql($node, "SELECT idemq.enqueue('q', '8');
	BEGIN; SELECT idemq.hold_back(id, token, '1 h') FROM idemq.jobs WHERE payload = '7'; PREPARE TRANSACTION 'p'");
is_sql($node, "BEGIN; SELECT count(*) FROM idemq.claim('q'); ROLLBACK", 1, 'a prepared hold is not in force');
sql($node, "COMMIT PREPARED 'p'");
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'a committed one is');
sql($node, "SELECT idemq.resume('q')");
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'until it is ended');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# ---- Without a worker the clock ends it: a waiter wakes by itself.

$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->restart;
is(sql($node, "SELECT idemq.hold_back(id, token, '2 h') > idemq.now() FROM idemq.jobs WHERE payload = '8'"), 't', 'a hold');
sql($node, "SELECT idemq.enqueue('q', '9')");
$waiter = waiter($node, "CALL idemq.wait('q', '10 days')");
advance($node, '1 h');
is_soon($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $waiter->{pid} AND " . asleep(), 'it sleeps');
advance($node, '61 min');
is(answer($waiter), 't', 'and wakes at the end');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'for the job');
leave($waiter->{session});

# ---- A standby shows it, and refuses a call.

sql($node, "SELECT idemq.hold_back(id, token, '1 h') FROM idemq.jobs WHERE payload = '9'; SELECT idemq.enqueue('q', '10')");
$node->backup('b');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'b', has_streaming => 1);
$standby->start;
caught_up($node, $standby);
is_sql($standby, "SELECT count(*) FROM idemq.holds", 1, 'a standby shows the hold');
is_sql($standby, "SELECT idemq.why(max(id)) ~ 'has been held back since .*requested by the worker of job' FROM idemq.jobs WHERE payload = '10'", 't', 'and why says so');
is_state($standby, "SELECT idemq.hold_back(id, token, '1 h') FROM idemq.jobs WHERE payload = '9'", '25006', 'but no hold begins there');
sql($node, "SELECT idemq.resume('q')");
caught_up($node, $standby);
is_sql($standby, "SELECT count(*) FROM idemq.holds", 0, 'its end is replicated');
sql($node, "SELECT idemq.hold_back(id, token, '1 h') FROM idemq.claim('q'); SELECT idemq.enqueue('q', '11')");
caught_up($node, $standby);
$standby->promote;
is_sql($standby, "SELECT count(*) FROM idemq.claim('q')", 0, 'after a failover it is in force');

# ---- A dump has it.

my $dump = "$PostgreSQL::Test::Utils::tmp_check/holds.sql";
run_command([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-f', $dump, 'postgres' ]);
sql($node, 'CREATE DATABASE copy TEMPLATE template0');
run_command([ 'psql', '-qX', '-v', 'ON_ERROR_STOP=1', '-h', $node->host, '-p', $node->port, '-f', $dump, 'copy' ]);
is_sql($node, 'SELECT count(*) FROM idemq.holds', 1, 'a restored database has the hold', 'copy');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'and obeys it', 'copy');
is_sql($node, "SELECT idemq.resume('q'); SELECT count(*) FROM idemq.claim('q')", "\n1", 'until it is ended', 'copy');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean', 'copy');

done_testing();
