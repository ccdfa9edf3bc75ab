# Schedules as drivers call them, without pg_cron: two that tick at once, a crash in the midst of a tick, dump and
# restore, and what idemq.schedule says where nothing ticks.  schedules_slow has pg_cron.
#
# at least 45 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use File::Copy;
use PostgreSQL::Test::Utils;
use Test::More;

my $node;

# What idemq.schedule says in a database: SQLSTATE, and the lines of its hint.
sub refusal
{
	my ($server, $db, $role) = @_;
	my $stderr;

	$server->psql($db, ($role ? "SET ROLE $role; " : '') . "SELECT idemq.schedule('a', '0 0 1 1 *', 'q', '1')",
		stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	my ($state) = $stderr =~ /ERROR:\s+(\w{5})/;
	my ($hint) = $stderr =~ /HINT:\s+(.*?)\n(?:LOCATION|\z)/s;
	return ($state, $hint // $stderr);
}

# What a statement in postgres raises, with its SQLSTATE; nothing if it succeeds.
sub refusal_of
{
	my $stderr;

	$node->psql('postgres', $_[0], stderr => \$stderr, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

# Once a year: a minute may end between any two statements, and would bring a tick more.
my $yearly = '0 0 1 1 *';

# Makes ticks of the last time due again, as if nothing had run meanwhile.
sub miss
{
	my ($node, $name, $since, $db) = @_;

	return sql($node, "UPDATE idemq_internal.schedule_entries SET done_until = clock_timestamp() - interval '$since' WHERE name = '$name'", $db);
}

$node = new_node('schedules', 'shared_preload_libraries' => 'idemq');
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

# ---- Something ticks

sql($node, 'CALL idemq.tick()');
sql($node, "SET ROLE shop; SELECT idemq.schedule('annual', '$yearly', 'q', '{\"n\": 1}')");
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check: a schedule that is new is not abandoned');

# ---- Two schedulers at once

my ($one, $two) = (session($node), session($node));
miss($node, 'annual', '3 years');
is($one->query_safe("BEGIN; SELECT idemq_internal.run_schedule('annual')"), 't', 'one is in the midst of a tick');
is($two->query_safe("SET lock_timeout = '1min'; SELECT idemq_internal.run_schedule('annual')"), 'f', 'the other passes on');
$two->query_safe('CALL idemq.tick()');
$one->query_safe('COMMIT');
is_sql($node, 'SELECT count(*) FROM idemq.jobs', 1, 'one job');
miss($node, 'annual', '3 years');
$one->query_safe("BEGIN; SELECT idemq_internal.run_schedule('annual')");
$one->query_safe('ROLLBACK');
is_sql($node, "SELECT next_run < now() FROM idemq.schedules WHERE name = 'annual'", 't', 'rolled back: still due');

# One name, two who make it: the second waits, and then may, or may not, replace it.
foreach my $end ([ 'COMMIT', '42501' ], [ 'ROLLBACK', '00000' ])
{
	my $waiter = session($node);

	$one->query_safe("BEGIN; SELECT idemq.schedule('duplicate', '$yearly', 'q', '1')");
	$waiter->query_until(qr/sent/, "\\set VERBOSITY sqlstate\nSET ROLE shop;\n\\echo sent\nSELECT idemq.schedule('duplicate', '$yearly', 'q', '2');\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%duplicate%'");
	$one->query_safe($end->[0]);
	$waiter->query('SELECT 1');
	is($waiter->{stderr} =~ /ERROR:\s+(\w{5})/ ? $1 : '00000', $end->[1], "a duplicate after $end->[0]");
	is_sql($node, "SELECT count(*), idemq.unschedule('duplicate') FROM idemq.schedules WHERE name = 'duplicate'", '1|t', 'one schedule');
	leave($waiter);
}

# The row was put back meanwhile, and the duplicate of the tick is open: only the key knows.
sql($node, 'DELETE FROM idemq.jobs');
$one->query_safe("BEGIN; SELECT idemq.enqueue('q', '{\"n\": 1}', key => 'annual\@' || to_char(last_tick AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'))
	FROM idemq.last_tick('$yearly')");
is_state($node, 'CALL idemq.tick()', '55P03', 'the tick does not wait for its duplicate');
$one->query_safe('COMMIT');
sql($node, 'CALL idemq.tick()');
is_sql($node, "SELECT count(*), max(last_job) = max(j.id) FROM idemq.jobs j, idemq.schedules s WHERE s.name = 'annual'", '1|t', 'it is the duplicate');

# Somebody who sits on the key for ever is given up, and other schedules go on.
sql($node, 'DELETE FROM idemq.jobs');
sql($node, "SELECT idemq.schedule('next', '$yearly', 'q', '3')");
miss($node, $_, '3 years') foreach 'annual', 'next';
$one->query_safe("BEGIN; SELECT idemq.enqueue('q', '1', key => 'annual\@' || to_char(t AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'))
	FROM idemq.last_tick('$yearly') t");
is_state($node, "CALL idemq.tick()", '55P03', 'given up');
is_sql($node, "SELECT name, failed_at IS NOT NULL, last_error FROM idemq.schedules WHERE name IN ('annual', 'next') ORDER BY 1",
	"annual|t|an open transaction holds the key of the tick\nnext|f|", 'it alone');
$one->query_safe('ROLLBACK');
sql($node, 'CALL idemq.tick()');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE key ~ '^(annual|next)\@'", 2, 'made up for');
sql($node, "SELECT idemq.unschedule('next'); DELETE FROM idemq.jobs");
leave($one, $two);

# ---- Crash in the midst of a tick

sql($node, 'DELETE FROM idemq.jobs');
miss($node, 'annual', '3 years');
my $session = session($node);
$session->query_safe("BEGIN; SELECT idemq_internal.run_schedule('annual')");
crash($node, sub { $session->{run}->kill_kill });
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE key ~ '^annual\@'", 0, 'not committed');
sql($node, 'CALL idemq.tick()');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE key ~ '^annual\@'", 1, 'made up for after the crash');

# ---- Dump and restore

my $content = 'SELECT s.* FROM idemq_internal.schedule_entries s ORDER BY name';
my $file = "$PostgreSQL::Test::Utils::tmp_check/schedules.dump";
sql($node, "SELECT idemq.schedule('all', '1-5/2 3 * jan mon', 'q', '{\"a\": [1]}', 'Europe/Berlin', priority => 1, group_key => 'g', max_attempts => 2,
	headers => '{\"h\": 1}', expires_in => '1 mon 2 days')");
command_ok([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-Fc', '--extension=idemq', '-f', $file, 'postgres' ], 'pg_dump');
sql($node, 'CREATE DATABASE copy');
command_ok([ 'pg_restore', '-e', '-h', $node->host, '-p', $node->port, '-d', 'copy', $file ], 'pg_restore');
is(sql($node, $content, 'copy'), sql($node, $content), 'schedules are the same');
is_sql($node, 'SELECT count(*) FROM idemq_internal.ticker', 0, 'nobody ticks there: a copy does nothing by itself', 'copy');
miss($node, 'annual', '3 years', 'copy');
sql($node, 'DELETE FROM idemq.jobs; CALL idemq.tick()', 'copy');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE key ~ '^annual\@'", 1, 'until it is told to', 'copy');

# ---- Nothing ticks any more

sql($node, "UPDATE idemq_internal.ticker SET called_at = called_at - interval '1 h'; UPDATE idemq_internal.schedule_entries SET created_at = created_at - interval '1 h'");
is((refusal($node, 'postgres'))[0], '55000', 'no new schedule');
is_sql($node, 'SELECT severity, invariant FROM idemq.check()', 'warning|schedules.driver', 'check: nobody ticks');
is_sql($node, "SELECT idemq.unschedule('annual')", 't', 'unschedule works all the same');
# ---- An interval of less than a minute asks for pg_cron 1.5.  A stand-in for it, of any version, that only keeps its jobs

my $library = "$PostgreSQL::Test::Utils::tmp_check/pg_cron.so";
my $below = '59 s';  # meant to expire, but nothing ticks here
my $seconds = sub { return refusal_of("SELECT idemq.schedule('fast', 'every $_[0]', 'q', '1')") };

copy(sql($node, q{SELECT setting || '/dict_snowball.so' FROM pg_config WHERE name = 'PKGLIBDIR'}), $library) or die "copy: $!";
chmod 0755, $library;
like($seconds->($below), qr/55000.*1\.5 or later in this database.*pg_cron is not loaded/s, 'below a minute: pg_cron is not loaded');
sql($node, 'CALL idemq.tick()');
like($seconds->($below), qr/55000.*pg_cron is not loaded/s, 'a call of idemq.tick() is not enough');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'idemq, $library'");
$node->restart;
like($seconds->($below), qr/55000.*pg_cron has not been created/s, 'it is not in this database');
sql($node, q{CREATE SCHEMA cron;
	CREATE TABLE cron.job (jobid bigint GENERATED ALWAYS AS IDENTITY, jobname text, schedule text, command text, database text DEFAULT current_database(), username text DEFAULT current_user, UNIQUE (jobname, username));
	CREATE FUNCTION cron.schedule(text, text, text) RETURNS bigint LANGUAGE sql AS $$ INSERT INTO cron.job (jobname, schedule, command) VALUES ($1, $2, $3) ON CONFLICT (jobname, username) DO UPDATE SET schedule = $2, command = $3 RETURNING jobid $$;
	SET allow_system_table_mods = on; INSERT INTO pg_extension VALUES (99999, 'pg_cron', 10, 'cron'::regnamespace, false, '1.4')});
is($seconds->('60 s'), '', 'a minute: any version');
like($seconds->($below), qr/55000.*pg_cron has version 1\.4/s, 'less: not 1.4');
foreach my $version ('1.5', '1.10', '2.0')
{
	sql($node, "SET allow_system_table_mods = on; UPDATE pg_extension SET extversion = '$version' WHERE extname = 'pg_cron'");
	is($seconds->($below) . sql($node, 'SELECT jobname, schedule, command FROM cron.job'), 'idemq-tick|1 second|CALL idemq.tick()', "$version: its job is changed");
	sql($node, q{UPDATE cron.job SET schedule = '* * * * *'});  # meant to tick, but only a row
}
# What calls each second, or twice in an interval, is enough.  (Nothing calls here: these times are not meant to expire.)
foreach my $case ([ '1 second', '1 s', '1 second' ], [ '5 seconds', '10 s', '5 seconds' ], [ '5 seconds', '9 s', '1 second' ], [ '30 seconds', '60 s', '30 seconds' ], [ '59 seconds', '10 s', '1 second' ], [ '0 * * * *', '1 min', '0 * * * *' ])
{
	sql($node, "UPDATE cron.job SET schedule = '$case->[0]'");
	is($seconds->($case->[1]) . sql($node, 'SELECT schedule FROM cron.job'), $case->[2], "every $case->[1] with a call every $case->[0]");
}
# A job of another database, of a role that may not call idemq.tick(), or with another command, is no driver.
foreach my $change (q{database = 'other''s'}, q{username = 'shop'}, q{command = 'SELECT 1', jobname = 'mine'})
{
	# meant to expire, but only a row
	sql($node, "DELETE FROM cron.job; INSERT INTO cron.job (jobname, schedule, command) VALUES ('tick', '1 second', 'CALL idemq.tick()'); UPDATE cron.job SET $change");
	# meant to expire, but there is no driver
	is($seconds->('1 s') . sql($node, q{SELECT count(*) FROM cron.job WHERE jobname = 'idemq-tick'}), 1, "no driver: $change");
}
$node->stop;
done_testing();
