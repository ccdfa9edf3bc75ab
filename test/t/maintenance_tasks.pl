# A worker's maintenance tasks: an error is logged with its context and does not keep the
# others, a user's trigger gains nothing, settings do not matter, and nothing
# is done over and over.
# takes long
# at least 53 assertions
# looks at sessions
# stops: after_commit

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('maintenance_tasks', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on');
my $worker = "FROM pg_stat_activity WHERE backend_type = 'idemq worker' AND datname = 'postgres'";

# Claims a new job of a queue and lets the lease end; answers its id.
sub expire
{
	my ($queue) = @_;
	my $id = sql($node, "SELECT id FROM idemq.enqueue('$queue', '1')");

	# meant to expire
	sql($node, "SELECT idemq.claim_job($id, lease => '10 ms')");
	return $id;
}

sub is_reaped { my ($id, $name) = @_; return is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $id", $name) }

# A worker that has something to do over and over runs a task in any half second.
sql($node, "CREATE FUNCTION is_quiet() RETURNS boolean LANGUAGE plpgsql AS \$\$
	DECLARE
		before numeric := (SELECT sum(runs) FROM idemq.maintenance_tasks);
	BEGIN
		PERFORM pg_sleep(0.5);
		RETURN before = (SELECT sum(runs) FROM idemq.maintenance_tasks);
	END \$\$");
sub sleeps { return is_soon($node, 'SELECT is_quiet()', "$_[0]: it sleeps") }

sub pid { return sql($node, "SELECT pid $worker") }

is_soon($node, "SELECT count(*) = 1 $worker", 'a worker');
my $pid = pid();
is_sql($node, q{SELECT prorows = (SELECT count(*) FROM idemq_internal.task_counts()) FROM pg_proc WHERE oid = 'idemq_internal.task_counts'::regproc}, 't',
	'the planner expects as many rows as there are tasks');

# ---- Nothing to do

sql($node, "SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,3}'); SELECT idemq.enqueue('q', '1', delay => '1 h')");
sleeps('ready jobs that nobody claims');
my $other = session($node);
$other->query_safe('BEGIN; SELECT id FROM idemq.jobs FOR UPDATE');
sql($node, "SELECT idemq.enqueue('q', '1', delay => '10 ms')");  # meant to expire
sleeps('ready jobs that somebody holds');
$other->query_safe('ROLLBACK');
$other->query_safe("BEGIN; SELECT idemq.create_queue('new', lease => '1 h'); SAVEPOINT s; SELECT idemq.enqueue('new', '1')");
sleeps('a queue that is being created');
$other->query_safe('RELEASE s; COMMIT');
is_reaped(expire('new'), 'the queue is seen once it is there');
$other->query_safe("BEGIN; SELECT idemq.create_queue('never'); ROLLBACK");
$other->query_safe("BEGIN; SELECT idemq.pause('q')");
is_reaped(expire('new'), 'a queue that is being paused is not in the way');
$other->query_safe('ROLLBACK');
$other->query_safe("BEGIN; SELECT idemq.cancel(min(id)) FROM idemq.jobs WHERE queue_id = idemq.queue_id('q'); PREPARE TRANSACTION 'p'");
is_reaped(expire('q'), 'nor is a prepared transaction');
$other->query_safe("ROLLBACK PREPARED 'p'");
sleeps('after a prepared transaction');

# ---- A trigger that raises

my $log = log_end($node);
# A sequence counts its tries, which nextval leaves though they are undone: of what fails so often, most is not logged.
sql($node, "SELECT idemq.create_queue('bad' || i, lease => '1 h') FROM generate_series(1, 70) i;
	DO \$\$ BEGIN EXECUTE (SELECT string_agg(format('CREATE SEQUENCE %I', 'tries_' || queue_id), ';') FROM idemq.queues WHERE name LIKE 'bad%'); END \$\$;
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \$\$
	BEGIN
		IF NEW.status = 'pending' AND NEW.queue_id IN (SELECT queue_id FROM idemq.queues WHERE name LIKE 'bad%') THEN
			PERFORM nextval('public.tries_' || NEW.queue_id);
			RAISE 'not this one';
		END IF;
		RETURN NEW;
	END \$\$;
	CREATE TRIGGER refuse BEFORE UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION refuse()");
my $tries = "FROM (SELECT name, coalesce(pg_sequence_last_value('public.tries_' || queue_id), 0) AS n FROM idemq.queues WHERE name LIKE 'bad%') t";
my $failing = sql($node, 'SELECT clock_timestamp()');
my $bad = expire('bad1');
is_logged($node, qr/\[$pid\] \w{5}  CONTEXT:.*\n(?:\t.*\n)*\tidemq worker, maintenance task "reap" for queue "bad1"/, 'an error is logged with task and queue', $log);
is_reaped(expire($_), "queue $_ goes on") foreach qw(q new);
sql($node, "DO \$\$
	DECLARE job bigint;
	BEGIN
		FOR i IN 2 .. 70 LOOP
			SELECT id INTO job FROM idemq.enqueue('bad' || i, '1');
			-- meant to expire
			PERFORM idemq.claim_job(job, lease => '10 ms');
			COMMIT;
		END LOOP;
	END \$\$");
wait_until($node, "SELECT bool_and(n > 0) $tries");
is_reaped(expire('q'), 'also while 70 queues fail');
wait_until($node, "SELECT n >= 3 $tries WHERE name = 'bad1'");
# After a second, then two: however late each is.
is_sql($node, "SELECT 2 ^ (least(n, 7) - 1) - 1 <= extract(epoch FROM clock_timestamp() - '$failing') $tries WHERE name = 'bad1'", 't',
	'it is tried less and less often');
# More than are logged in a minute.
wait_until($node, "SELECT sum(n) > 100 $tries");
sql($node, 'DROP TRIGGER refuse ON idemq.jobs');
advance($node, '0');
is_reaped($bad, 'and done when the trigger is gone');
is_soon($node, "SELECT count(*) = 0 FROM idemq.jobs WHERE status = 'running'", 'in all 70 queues');
is(pid(), $pid, 'by the same worker');
sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name LIKE 'bad%'");

# ---- A trigger that waits

$other->query_safe('CREATE TABLE gate (began timestamptz); BEGIN; LOCK TABLE gate');
sql($node, "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS \$\$
	BEGIN
		IF NEW.status = 'pending' AND NEW.queue_id = (SELECT queue_id FROM idemq.queues WHERE name = 'new') THEN
			LOCK TABLE public.gate IN ACCESS SHARE MODE;
			INSERT INTO public.gate SELECT xact_start FROM pg_stat_activity WHERE pid = pg_backend_pid();
		END IF;
		RETURN NEW;
	END \$\$;
	CREATE TRIGGER wait BEFORE UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION wait()");
my $asked = sql($node, 'SELECT clock_timestamp()');
my $waiting = expire('new');
# For a fifth of a second each time, and each time later: who looks does not start a program for it.
sql($node, "DO \$\$ BEGIN
	FOR i IN 1 .. 18000 LOOP
		PERFORM pg_stat_clear_snapshot();
		EXIT WHEN (SELECT wait_event_type = 'Lock' AND query = 'reap on queue new' $worker);
		IF i = 18000 THEN RAISE 'never'; END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
END \$\$");
pass('a trigger waits for a lock');
is_reaped(expire('q'), 'it does not keep the others for ever');
$other->query_safe('COMMIT');
leave($other);
is_reaped($waiting, 'and comes to its end when the lock is free');
# Not when the worker itself began: that would be a snapshot held for days.
is_sql($node, "SELECT count(*), bool_and(began > '$asked') FROM gate", '1|t', 'a task\'s transaction began when the task did');
sql($node, 'DROP TRIGGER wait ON idemq.jobs');

# ---- A trigger that wants to gain something

sub set_owner
{
	sql($node, "DO \$\$ BEGIN EXECUTE (SELECT string_agg(format('ALTER TABLE %I.%I OWNER TO $_[0]', schemaname, tablename), ';') FROM pg_tables
		WHERE schemaname IN ('idemq', 'idemq_internal')); END \$\$");
}

sql($node, 'CREATE ROLE app');
set_owner('app');
sql($node, "GRANT USAGE ON SCHEMA idemq, idemq_internal TO app; GRANT app TO postgres;
	CREATE TABLE gained (what text, as_role name, at text); GRANT ALL ON gained TO app;
	CREATE FUNCTION gain() RETURNS trigger LANGUAGE plpgsql AS \$\$
	DECLARE
		command text;
		state text;
	BEGIN
		IF OLD.status <> 'running' OR NEW.status <> 'pending' THEN
			RETURN NEW;
		END IF;
		FOREACH command IN ARRAY ARRAY['SET ROLE postgres', 'RESET ROLE', 'SET SESSION AUTHORIZATION postgres',
				'RESET SESSION AUTHORIZATION', 'SET ROLE NONE', 'SET LOCAL ROLE postgres', 'CREATE ROLE evil SUPERUSER',
				'SELECT set_config(''role'', ''postgres'', false)', 'COPY public.gained TO PROGRAM ''true''']
		LOOP
			state := '00000';
			BEGIN
				EXECUTE command;
			EXCEPTION WHEN OTHERS THEN
				state := SQLSTATE;
			END;
			INSERT INTO public.gained VALUES (command, current_user, TG_NAME || ' ' || state);
		END LOOP;
		SET statement_timeout = 1;
		SET default_transaction_read_only = on;
		SET default_transaction_isolation = serializable;
		SET search_path = nowhere;
		RETURN NEW;
	END \$\$;
	CREATE TRIGGER before BEFORE UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION gain();
	CREATE CONSTRAINT TRIGGER deferred AFTER UPDATE ON idemq.jobs DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION gain()");
is_reaped(expire('q'), 'a trigger of a role that owns idemq.jobs');
is_sql($node, 'SELECT count(*), string_agg(DISTINCT as_role, NULL) FROM gained', '18|app', 'it ran, at once and deferred, as that role');
is_sql($node, "SELECT string_agg(what, ', ') FROM gained WHERE at NOT LIKE '% 42501'", '', 'and gained nothing');
is_reaped(expire('q'), 'what it has SET is not for the next task');
is_sql($node, "SELECT rolname FROM pg_roles WHERE rolname = 'evil'", '', 'no role was made');
is(pid(), $pid, 'by the same worker');
sql($node, 'DROP TRIGGER before ON idemq.jobs; DROP TRIGGER deferred ON idemq.jobs;');
set_owner('postgres');
is_reaped(expire('q'), 'ALTER TABLE ... OWNER TO');

# ---- Who is woken by a commit looks before its invalidations are sent

SKIP:
{
	skip 'no stop points', 4 unless can_stop($node);

	my $listener = session($node);
	my $resumer = session($node);
	my $waiter = session($node);
	sql($node, "SELECT idemq.create_queue('p'); SELECT idemq.pause('p'); SELECT idemq.enqueue('p', '1')");
	sleeps('a paused queue');
	$listener->query_safe('LISTEN idemq_p');
	$resumer->query_safe('SELECT 1 FROM idemq.queues');
	$waiter->query_until(qr/begun/, "SET statement_timeout = 0;\n\\echo begun\nCALL idemq.wait('p', '10 min');\n");
	is_soon($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%' AND wait_event_type = 'Extension'",
		'somebody waits for it');
	my $stop = stop_at($resumer->query_safe('SELECT pg_backend_pid()'), 'after_commit');
	$resumer->query_until(qr/begun/, "\\echo begun\nSELECT idemq.resume('p');\n");
	$stop->();
	my $told = '';
	for (my $i = 0; $i < 1800 && $told !~ /"ready"/; $i++)
	{
		select undef, undef, undef, 0.1 if $i;
		$told .= $listener->query("SELECT 'looked'");
	}
	like($told, qr/notification "idemq_p" with payload "\{"event":"ready","queue":"p"\}"/, 'the worker tells that a queue is resumed');
	like($waiter->query('SELECT 1'), qr/^t$/m, 'who waits for it wakes');
	$stop->();
	$resumer->query('SELECT 1');
	leave($_) foreach $listener, $resumer, $waiter;
}

# ---- 10,000 tasks

$pid = pid();
sub memory { return sql($node, "SELECT (regexp_match(pg_read_file('/proc/$pid/status'), 'VmData:\\s+(\\d+)'))[1]::int") }
sub churn
{
	my ($jobs) = @_;

	# Each in a commit of its own; the worker takes back, tells, and looks at what came due.
	sql($node, "DO \$\$
		DECLARE job bigint;
		BEGIN
			FOR i IN 1 .. $jobs LOOP
				SELECT id INTO job FROM idemq.enqueue('q', '1', max_attempts => 1);
				-- meant to expire, both
				PERFORM idemq.claim_job(job, lease => '1 ms'); COMMIT;
				PERFORM idemq.enqueue('q', '2', delay => '1 ms'); COMMIT; -- meant to expire
			END LOOP;
		END \$\$");
	is_soon($node, "SELECT count(*) = 0 FROM idemq.jobs WHERE status = 'running'", "$jobs leases taken back");
}
churn(2000);
my $before = memory();
churn(10000);
# malloc's heap grows in steps of 1 MB: one is no leak, 200 bytes a task would be two.
cmp_ok(memory() - $before, '<', 1536, 'no memory is lost');
is(pid(), $pid, 'by the same worker');
sleeps('afterwards');
is_sql($node, "SELECT * FROM idemq.check()", '', 'idemq.check() finds nothing');

# ---- Statistics, for autovacuum

my $stats = "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'idemq.jobs'::regclass";
expire('q');
sleeps('before the statistics');
my $updates = sql($node, $stats);
# meant to expire
sql($node, "SELECT count(*) FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[50])); SELECT count(*) FROM idemq.claim('q', 50, lease => '10 ms')");
is_soon($node, "SELECT count(*) = 0 FROM idemq.jobs WHERE status = 'running'", 'taken back');
is_soon($node, "SELECT n_tup_upd >= $updates + 100 FROM pg_stat_user_tables WHERE relid = 'idemq.jobs'::regclass", 'autovacuum is told');

# ---- What is logged again when the minute of the many errors is over

advance($node, '1 min');
$log = log_end($node);
sql($node, "SELECT idemq.create_queue('bad', lease => '1 h');
	CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''nor this one''; END';
	CREATE TRIGGER refuse BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (NEW.status = 'pending') EXECUTE FUNCTION refuse()");
$bad = expire('bad');
is_logged($node, qr/ERROR:  nor this one/, 'after a minute errors are logged again', $log);
sql($node, 'DROP TRIGGER refuse ON idemq.jobs');
advance($node, '0');
is_reaped($bad, 'and this one is done as well');
is(pid(), $pid, 'by the same worker');

# ---- Settings of the database, the role and the server

$ENV{PGOPTIONS} = '-c default_transaction_read_only=off -c default_transaction_isolation=read\\ committed -c statement_timeout=0 '
  . '-c lock_timeout=0 -c search_path=public';
my @hostile = ('default_transaction_read_only = on', "default_transaction_isolation = 'serializable'",
	'default_transaction_deferrable = on', 'statement_timeout = 1', 'lock_timeout = 1', 'idle_in_transaction_session_timeout = 1',
	"search_path = 'nowhere'", 'row_security = off', "session_replication_role = 'replica'", "DateStyle = 'German'",
	"IntervalStyle = 'iso_8601'", 'extra_float_digits = -15', "bytea_output = 'escape'");
if ($node->pg_version >= 17)
{
	push @hostile, 'transaction_timeout = 1';
	$ENV{PGOPTIONS} .= ' -c transaction_timeout=0';
}
foreach my $where ('ALTER DATABASE postgres SET', 'ALTER ROLE postgres SET', 'ALTER ROLE postgres IN DATABASE postgres SET', 'ALTER SYSTEM SET')
{
	# As a default of the server it ends sessions while they connect, before PGOPTIONS count: ours too.
	sql($node, "$where $_") foreach grep { $where ne 'ALTER SYSTEM SET' || !/^transaction_timeout/ } @hostile;
	$pid = pid();
	sql($node, "SELECT pg_reload_conf(); SELECT pg_terminate_backend($pid)");
	# The next one comes later each time.
	wait_until($node, "SELECT count(*) FILTER (WHERE pid = $pid) = 0 $worker");
	advance($node, '2 min');
	is_soon($node, "SELECT count(*) = 1 AND min(pid) <> $pid $worker", "$where ...: a worker");
	my $id = sql($node, "SET session_replication_role = origin; SELECT id FROM idemq.enqueue('q', '1')");
	sql($node, "SELECT idemq.claim_job($id, lease => '10 ms')");  # meant to expire
	is_reaped($id, "$where ...: works");
}
sql($node, "ALTER DATABASE postgres RESET ALL");
sql($node, "ALTER ROLE postgres RESET ALL");
sql($node, "ALTER ROLE postgres IN DATABASE postgres RESET ALL");
sql($node, "ALTER SYSTEM RESET ALL");
sql($node, "SELECT pg_reload_conf()");
delete $ENV{PGOPTIONS};

# The library as it ships, without stop points.
shipped($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$node->stop;
unlike(slurp_file($node->logfile), qr/PANIC|TRAP|terminated by signal/, 'no crash');
done_testing();
