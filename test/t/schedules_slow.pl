# Schedules with pg_cron: the jobs that it runs, restarts, other databases, and what idemq.schedule says where it
# is missing.
# slow: it restarts the server for each job of pg_cron, and waits for the end of a minute
#
# at least 35 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my ($libdir) = run_command([ 'pg_config', '--pkglibdir' ]);
if (!-e "$libdir/pg_cron.so")
{
	plan skip_all => 'no pg_cron for this PostgreSQL';
}

# What idemq.schedule says in a database: SQLSTATE, and the lines of its hint.
sub refusal
{
	my ($node, $db, $role) = @_;
	my $stderr;

	$node->psql($db, ($role ? "SET ROLE $role; " : '') . "SELECT idemq.schedule('a', '0 0 1 1 *', 'q', '1')",
		stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	my ($state) = $stderr =~ /ERROR:\s+(\w{5})/;
	my ($hint) = $stderr =~ /HINT:\s+(.*?)\n(?:LOCATION|\z)/s;
	return ($state, $hint // $stderr);
}

# Once a year: a minute may end between any two statements, and would bring a tick more.
my $yearly = '0 0 1 1 *';

# Makes ticks of the last time due again, as if nothing had run meanwhile.
sub miss
{
	my ($node, $name, $since, $db) = @_;

	return sql($node, "UPDATE idemq_internal.schedule_entries SET done_until = clock_timestamp() - interval '$since' WHERE name = '$name'", $db);
}

# pg_cron's own minute: the wall clock.
my $every_minute = join ' ', ('*') x 5;

# Has pg_cron run a command once, now: what it knows of such is done at its start.
sub restart_and_run
{
	my ($node, $command, $db) = (@_, 'postgres');

	sql($node, "SELECT cron.schedule_in_database('now', '\@reboot', \$c\$$command\$c\$, \$d\$$db\$d\$);
		DELETE FROM cron.job_run_details");
	$node->restart;
	wait_until($node, "SELECT count(*) = 1 FROM cron.job_run_details
		WHERE command = \$c\$$command\$c\$ AND status IN ('succeeded', 'failed')");
	sql($node, "SELECT cron.unschedule('now')");
	return sql($node, "SELECT status || ': ' || return_message FROM cron.job_run_details WHERE command = \$c\$$command\$c\$");
}

my $node = new_node('schedules', 'shared_preload_libraries' => 'idemq');
$node->start;
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h');
	CREATE ROLE shop; SELECT idemq.grant_queue('q', 'shop', 'enqueue'); CREATE DATABASE \"other's\"");
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h')", "other's");

# ---- Without it

my ($state, $hint) = refusal($node, 'postgres');
is($state, '55000', 'not loaded');
my @lines = $hint =~ /^(shared_preload_libraries = .*)\n(cron\.database_name = .*)\n(CREATE EXTENSION pg_cron);$/m;
is_deeply(\@lines, [ "shared_preload_libraries = 'idemq, pg_cron'", "cron.database_name = 'postgres'", 'CREATE EXTENSION pg_cron' ],
	'the three lines');
(undef, $hint) = refusal($node, 'postgres', 'shop');
like($hint, qr/^shared_preload_libraries = '\.\.\., pg_cron'$/m, 'a role that may not read the setting does not see it');
is_sql($node, 'SELECT count(*) FROM idemq.schedules', 0, 'nothing is scheduled');

# The very lines work; background workers, so that it connects without a password.
$node->append_conf('postgresql.conf', "$lines[0]\n$lines[1]\ncron.use_background_workers = on\nmax_worker_processes = 20");
$node->restart;
($state, $hint) = refusal($node, 'postgres');
is($state, '55000', 'loaded, not created');
like($hint, qr/^CREATE EXTENSION pg_cron;$/m, 'what is left to do');
sql($node, $lines[2]);

# ---- Its job

sql($node, "SET ROLE shop; SELECT idemq.schedule('annual', '$yearly', 'q', '{\"n\": 1}')");
is_sql($node, 'SELECT jobname, schedule, command, database, username, active FROM cron.job',
	'idemq-tick|* * * * *|CALL idemq.tick()|postgres|postgres|t', 'one job for the database, made by the first schedule');
sql($node, "SELECT idemq.schedule('monthly', '\@monthly', 'q', '1'); SELECT idemq.schedule('another', '$yearly', 'q', '2')");
is_sql($node, 'SELECT count(*) FROM cron.job', 1, 'and one it stays');

# A schedule that is rolled back takes it away again.
sql($node, "SELECT cron.unschedule('idemq-tick'); BEGIN; SELECT idemq.schedule('b', '$yearly', 'q', '1'); ROLLBACK");
is_sql($node, 'SELECT count(*) FROM cron.job', 0, 'rolled back');
sql($node, "SELECT idemq.schedule('another', '$yearly', 'q', '2')");
is_sql($node, 'SELECT count(*) FROM cron.job', 1, 'made again');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check: a schedule that is new is not abandoned');

# A job of a role that may not tick is no driver.
sql($node, "SELECT cron.unschedule('idemq-tick'); GRANT USAGE ON SCHEMA cron TO shop; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA cron TO shop;
	SET ROLE shop; SELECT cron.schedule('shop-tick', '$every_minute', 'CALL idemq.tick()')");
sql($node, "SELECT idemq.schedule('another', '$yearly', 'q', '2')");
is_sql($node, 'SELECT username FROM cron.job ORDER BY jobid', "shop\npostgres", 'made beside one whose role may not tick');
sql($node, "SET ROLE shop; SELECT cron.unschedule('shop-tick')");
sql($node, 'REVOKE USAGE ON SCHEMA cron FROM shop; REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA cron FROM shop');
sql($node, "SELECT idemq.unschedule('another')");

# ---- An interval of less than a minute requires pg_cron 1.5 or later

my $every_second = "SELECT idemq.schedule('secondly', 'every 1 s', 'q', '1')";
sub says
{
	my ($stdout, $stderr);

	$node->psql('postgres', $_[0], stdout => \$stdout, stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}
if (sql($node, "SELECT regexp_match(extversion, '^(\\d+)\\.(\\d+)')::int[] >= '{1,5}' FROM pg_extension WHERE extname = 'pg_cron'") eq 't')
{
	sql($node, $every_second);
	is_sql($node, 'SELECT jobname, schedule FROM cron.job', 'idemq-tick|1 second', 'the pg_cron job now calls idemq.tick() every second');
	is_soon($node, "SELECT count(*) >= 2 FROM idemq.jobs WHERE key LIKE 'secondly\@%'", 'the schedule ticks');
	sql($node, "SELECT cron.schedule('idemq-tick', '5 seconds', 'CALL idemq.tick()'); SELECT idemq.schedule('secondly', 'every 10 s', 'q', '1')");
	is_sql($node, 'SELECT jobname, schedule FROM cron.job', 'idemq-tick|5 seconds', 'a job that calls twice per interval is not changed');
	sql($node, "SELECT idemq.unschedule('secondly'); DELETE FROM idemq.jobs WHERE key LIKE 'secondly\@%'; SELECT cron.schedule('idemq-tick', '$every_minute', 'CALL idemq.tick()')");
}
else
{
	like(says($every_second), qr/55000:.*requires idemq\.worker, or pg_cron 1\.5.*pg_cron has version 1\.4.*HINT:  Set idemq\.worker to on/s, 'an older version is refused');
	is_sql($node, 'SELECT jobname, schedule FROM cron.job', "idemq-tick|$every_minute", 'and the pg_cron job is not changed');
	# If the catalog claims version 1.5, idemq requests a schedule that this older version rejects.
	like(says("BEGIN; SET allow_system_table_mods = on; UPDATE pg_extension SET extversion = '1.5' WHERE extname = 'pg_cron'; $every_second; ROLLBACK"),
		qr/invalid schedule: 1 second/, 'from 1.5 on, idemq requests a call every second');
}

# ---- A database where it is not

($state, $hint) = refusal($node, "other's");
is($state, '55000', 'in another database');
my ($there, $here) = $hint =~ /^(SELECT cron\.schedule_in_database\(.*\);)\n(CALL idemq\.tick\(\));$/m;
is($there, "SELECT cron.schedule_in_database('idemq-tick-other''s', '$every_minute', 'CALL idemq.tick()', 'other''s');", 'what to call there');
sql($node, "CREATE ROLE guest; SELECT idemq.grant_queue('q', 'guest', 'enqueue')", "other's");
my $stderr;
$node->psql("other's", "SET ROLE guest; SELECT idemq.schedule('a', '$yearly', 'q', '1')", stderr => \$stderr);
like($stderr, qr/the database named by cron.database_name/, 'which it is, is told to who may read it');
sql($node, $there);
sql($node, $here, "other's");
is_state($node, "SELECT idemq.schedule('a', '$yearly', 'q', '\"elsewhere\"')", '00000', 'then it works', "other's");
is_state($node, "UPDATE idemq_internal.ticker SET called_at = called_at - interval '11 min'; SELECT idemq.schedule('b', '$yearly', 'q', '1')", '55000', 'until nobody has called it for long', "other's");

# ---- pg_cron runs it: late, under the tick's own time, once

sql($node, "SELECT cron.alter_job(jobid, active => false) FROM cron.job");
miss($node, 'annual', '3 years');
sql($node, "SELECT idemq.schedule('old', '0 3 * * *', 'q', '\"old\"', 'Asia/Tokyo')");
miss($node, 'old', '2 days');
like(restart_and_run($node, 'CALL idemq.tick()'), qr/^succeeded/, 'pg_cron ran the procedure');
is_sql($node, "SELECT split_part(key, 'T', 2), key = 'old\@' || (headers->>'tick'), headers->>'schedule', payload,
	(headers->>'tick')::timestamptz = (SELECT last_run FROM idemq.schedules WHERE name = 'old') FROM idemq.jobs WHERE key ~ '^old\@'",
	'18:00:00Z|t|old|"old"|t', 'three in the morning in Tokyo, in UTC');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE key ~ '^annual\@'", 1, 'of three missed ticks one');
miss($node, 'old', '2 days');
my $jobs = sql($node, "SELECT count(*) FROM idemq.jobs WHERE key ~ '^old\@'");
restart_and_run($node, 'CALL idemq.tick()');
is_sql($node, "SELECT count(*) - $jobs FROM idemq.jobs WHERE key ~ '^old\@'", 0, 'again after a restart: not twice');

# What fails, pg_cron knows.
sql($node, "SELECT idemq.revoke_queue('q', 'shop', 'enqueue')");
miss($node, 'annual', '3 years');
like(restart_and_run($node, 'CALL idemq.tick()'),
	qr/^failed: .*schedule "annual": role "shop", which created the schedule, may no longer enqueue to queue "q"/s, 'pg_cron records why');
sql($node, "SELECT idemq.grant_queue('q', 'shop', 'enqueue'); SELECT idemq.unschedule('old')");

# In the other database.
miss($node, 'a', '3 years', "other's");
like(restart_and_run($node, 'CALL idemq.tick() ', "other's"), qr/^succeeded/, 'pg_cron ran it in the other database');
is_sql($node, 'SELECT count(*), min(payload::text) FROM idemq.jobs', '1|"elsewhere"', 'with that one\'s schedules', "other's");

# ---- pg_cron as driver of idemq.reap()

sql($node, "SELECT idemq.create_queue('lost', lease => '1 us', max_attempts => 5); SELECT idemq.enqueue('lost', '1');
	SELECT id FROM idemq.claim('lost')");
like(restart_and_run($node, 'SELECT idemq.reap()'), qr/^succeeded/, 'pg_cron ran idemq.reap()');
is_sql($node, "SELECT status, attempt FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'lost'", 'pending|1', 'the lease is taken back');

# ---- By the clock: pg_cron's own minute

my $first_tick = sql($node, "SET ROLE shop; SELECT idemq.schedule('minutely', '$every_minute', 'q', '{\"n\": 1}')");
sql($node, "DELETE FROM cron.job_run_details; SELECT cron.alter_job(jobid, active => true) FROM cron.job WHERE database = 'postgres'");
wait_until($node, "SELECT count(*) > 0 FROM cron.job_run_details WHERE status = 'succeeded' AND command = 'CALL idemq.tick()'");
is_sql($node, "SELECT bool_and(extract(second FROM (headers->>'tick')::timestamptz) = 0 AND key = 'minutely\@' || (headers->>'tick')), count(*) = count(DISTINCT headers->>'tick'), count(*) > 0
	FROM idemq.jobs WHERE headers->>'schedule' = 'minutely'", 't|t|t', 'pg_cron ticks by itself');
is_soon($node, "SELECT last_run >= '$first_tick' AND next_run > now() FROM idemq.schedules WHERE name = 'minutely'", 'the view follows');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');

# ---- It goes away

sql($node, 'DROP EXTENSION pg_cron');
sql($node, "UPDATE idemq_internal.ticker SET called_at = called_at - interval '1 h'; UPDATE idemq_internal.schedule_entries SET created_at = created_at - interval '1 h'");
is((refusal($node, 'postgres'))[0], '55000', 'without pg_cron again');
is_sql($node, 'SELECT severity, invariant FROM idemq.check()', 'warning|schedules.driver', 'check: nobody ticks');
is_sql($node, "SELECT idemq.unschedule('annual')", 't', 'unschedule works without it');
$node->stop;
done_testing();
