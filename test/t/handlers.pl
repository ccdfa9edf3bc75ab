# Handlers: jobs that a function in the database runs, in processes that idemq starts: what
# an error makes of a job, batches, job_timeout, rights, who may have a process, and each way in
# which such a process, its function, its role, its database and its server can end.  A process that is stopped when its
# database is dropped, and memory: handlers_slow.pl.
# takes long
# stops: idemq_handler_note_error idemq_handler_settle_failed
# at least 138 assertions

# expects in log: was terminated by signal 9|terminating any other active server processes|terminating background worker

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('handlers', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'max_worker_processes' => 16);
$node->start;
sql($node, q[CREATE EXTENSION idemq;
	CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION app;
	GRANT USAGE ON SCHEMA idemq TO app; GRANT EXECUTE ON FUNCTION idemq.set_handler TO app;
	SET ROLE app;
	CREATE TABLE app.done (n int, id bigint, attempt int, pid int DEFAULT pg_backend_pid(), xid xid8 DEFAULT pg_current_xact_id());
	CREATE FUNCTION app.f(payload jsonb) RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
	DECLARE job record;
	BEGIN
		SELECT * INTO job FROM idemq.current_job();
		INSERT INTO app.done (n, id, attempt) VALUES ((payload->>'n')::int, job.id, job.attempt);
		IF payload ? 'sql' THEN
			EXECUTE payload->>'sql';
		END IF;
		RETURN jsonb_build_object('n', payload->'n', 'key', job.key, 'queue', job.queue, 'user', session_user);
	END $$]);

# Makes a queue with a handler of role app.
sub queue
{
	my ($name, $settings, $handler) = @_;

	sql($node, "SELECT idemq.create_queue('$name'" . ($settings ? ", $settings" : '') . ");
		SELECT idemq.grant_queue('$name', 'app', 'claim');
		SET ROLE app; SELECT idemq.set_handler('$name', 'app.f(jsonb)'" . ($handler ? ", $handler" : '') . ')');
	return;
}

# Enqueues a job whose function runs some SQL; answers its id.
sub job
{
	my ($queue, $n, $sql, $more) = @_;

	return sql($node, "SELECT id FROM idemq.enqueue('$queue', jsonb_strip_nulls(jsonb_build_object('n', $n, 'sql', "
			. (defined $sql ? "\$q\$$sql\$q\$" : 'NULL') . '))' . ($more ? ", $more" : '') . ')');
}

# Waits until a queue has nothing left to do.
sub all_done
{
	my ($queue) = @_;

	wait_until($node, "SELECT count(*) = 0 FROM idemq.jobs JOIN idemq.queues USING (queue_id)
		WHERE name = '$queue' AND status NOT IN ('completed', 'dead', 'cancelled')");
	return;
}

sub processes { return "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler'" }
sub history { return "SELECT outcome, error, details->>'sqlstate' FROM idemq.attempts WHERE job_id = $_[0] ORDER BY token" }

# ---- A job is run, in one transaction with its effect, as the role

# One process for all of it, however slow this goes.
queue('a', undef, "max_idle => '10 min'");
my $id = job('a', 1, undef, "key => 'k'");
all_done('a');
is_sql($node, "SELECT status, attempt, result FROM idemq.jobs WHERE id = $id",
	'completed|1|{"n": 1, "key": "k", "user": "app", "queue": "a"}', 'a job is run by its handler, as its role');
is_sql($node, "SELECT worker = 'idemq handler ' || pid FROM idemq.jobs JOIN app.done USING (id) WHERE id = $id", 't',
	'by the process that the row names');
# It counts a job after its commit.
is_soon($node, 'SELECT queue, function, role, workers, batch, workers_running, done_total, failed_total, last_error FROM idemq.handlers',
	'a|app.f(jsonb)|app|1|1|1|1|0|', 'the view');
advance($node, '10 s'); # a step of the history is meant to expire
is_soon($node, 'SELECT jobs_per_second > 0 FROM idemq.handlers', 't', 'its rate, once a step of the history has ended');
is_sql($node, 'SELECT idemq.current_job() IS NULL', 't', 'outside of a handler there is no job');
# While it is at a job, the view idemq.workers shows that, and the row which process claimed it.
my $busy = session($node);
$busy->query_safe('SELECT pg_advisory_lock(41)');
$id = job('a', 1, 'SELECT pg_advisory_xact_lock(41)');
my $workers = "SELECT running, jobs = ARRAY[${id}::bigint] FROM idemq.workers WHERE program = 'handler' AND queues = '{a}'";
is_soon($node, $workers, '1|t', 'the view idemq.workers shows the job of a busy handler');
is_sql($node, "SELECT flags FROM idemq.jobs WHERE id = $id", 3, 'whose row says that a handler claimed it, and that its lease is attached');
$busy->query_safe('SELECT pg_advisory_unlock(41)');
leave($busy);
all_done('a');
is_sql($node, "SELECT running, jobs FROM idemq.workers WHERE program = 'handler' AND queues = '{a}'", '0|{}', 'and that it has none');
is_sql($node, "SELECT flags FROM idemq.jobs WHERE id = $id", 0, 'and the row of a completed job says neither');
is_sql($node, "SELECT usename, datname FROM pg_stat_activity WHERE backend_type = 'idemq handler'", 'app|postgres',
	'the process is a session of the role');
job('a', $_) foreach 2 .. 20;
all_done('a');
is_sql($node, 'SELECT count(*), count(DISTINCT n), count(DISTINCT pid), count(DISTINCT xid) FROM app.done', '21|20|1|21',
	'one process, a transaction each');

# ---- Errors

sub error
{
	my ($n, $sql, $more) = @_;
	my $error = job('a', $n, $sql, $more);

	all_done('a') unless $more && $more eq 'later';
	return $error;
}

sub raise { return "DO \$\$BEGIN RAISE EXCEPTION '$_[1]' USING ERRCODE = '$_[0]'" . ($_[2] ? ", DETAIL = '$_[2]'" : '') . '; END$$' }

$id = job('a', 30, raise('P0001', 'no luck', 'the detail'), 'max_attempts => 1');
all_done('a');
is_sql($node, "SELECT status, last_error FROM idemq.jobs WHERE id = $id", 'dead|no luck', 'an error is a failed attempt');
is_sql($node, "SELECT details->>'sqlstate', details->>'message', details->>'detail', details->>'context' LIKE '%app.f(jsonb)%'
	FROM idemq.attempts WHERE job_id = $id", 'P0001|no luck|the detail|t', 'its SQLSTATE, detail and context are kept');
is_sql($node, 'SELECT count(*) FROM app.done WHERE n = 30', 0, 'and it had no effect');
is_soon($node, 'SELECT failed_total, last_error FROM idemq.handlers', '1|no luck', 'the view has it');
$id = job('a', 31, raise('IQ011', 'for ever'));
all_done('a');
is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'dead|1', 'IQ011: dead at once');

foreach ([ 'IQ010', 'retrying|1|t', 'the attempt counts' ], [ 'IQ012', 'pending|0|t', 'it does not count' ])
{
	my ($state, $row, $name) = @$_;

	$id = job('a', 32, raise($state, 'later', '2 hours'));
	wait_until($node, "SELECT count(*) = 1 FROM idemq.attempts WHERE job_id = $id");
	is_sql($node, "SELECT status, attempt, ready_at BETWEEN now() + '119 min' AND now() + '121 min' FROM idemq.jobs WHERE id = $id",
		$row, "$state: after the interval in DETAIL; $name");
	sql($node, "SELECT idemq.cancel($id)");
}
sql($node, "SELECT idemq.alter_queue('a', retry_base => '2 h', retry_max => '2 h')");
$id = job('a', 33, raise('IQ010', 'later', 'no interval'));
wait_until($node, "SELECT count(*) = 1 FROM idemq.attempts WHERE job_id = $id");
is_sql($node, "SELECT status, ready_at BETWEEN now() + '59 min' AND now() + '121 min' FROM idemq.jobs WHERE id = $id", 'retrying|t',
	'DETAIL that is no interval: the queue\'s backoff');
# meant to expire: a retry's pause
sql($node, "SELECT idemq.cancel($id); SELECT idemq.alter_queue('a', retry_base => '1 s', retry_max => '1 h')");

# 40001 is run again at once, three times: the sequence survives the rollback.
sql($node, 'CREATE SEQUENCE app.tries; GRANT USAGE ON SEQUENCE app.tries TO app');
$id = job('a', 34, "DO \$\$BEGIN IF nextval('app.tries') < 4 THEN RAISE serialization_failure; END IF; END\$\$");
all_done('a');
is_sql($node, "SELECT status, attempt, (SELECT last_value FROM app.tries) FROM idemq.jobs WHERE id = $id", 'completed|1|4',
	'40001: at once, and the attempt is the same');
sql($node, "SELECT setval('app.tries', 1, false)");
$id = job('a', 35, "DO \$\$BEGIN PERFORM nextval('app.tries'); RAISE deadlock_detected; END\$\$", 'max_attempts => 1');
all_done('a');
is_sql($node, "SELECT status, attempt, (SELECT last_value FROM app.tries) FROM idemq.jobs WHERE id = $id", 'dead|1|4',
	'40P01: four times in all');

# What the function has settled itself stays so.
foreach ([ 'fail', "'by hand', permanent => true", 'dead|by hand' ], [ 'commit', q['"by hand"'], 'completed|"by hand"' ])
{
	$id = job('a', 36, "SELECT idemq.$_->[0](id, token, $_->[1]) FROM idemq.current_job()");
	all_done('a');
	is_sql($node, "SELECT status, coalesce(last_error, result::text) FROM idemq.jobs WHERE id = $id", $_->[2], "settled by $_->[0] of its own");
}
is_sql($node, 'SELECT count(*) FROM app.done WHERE n = 36', 2, 'with its effects');

# ---- What a job leaves behind

sql($node, "CREATE TABLE app.left (what text); GRANT ALL ON app.left TO app");
job('a', 40, q[SET application_name = 'mine'; SET work_mem = '100MB'; CREATE TEMPORARY TABLE t AS SELECT 1;
	SELECT pg_advisory_lock(1); SELECT nextval('app.tries'); PREPARE p AS SELECT 1]);
job('a', 41, q[INSERT INTO app.left SELECT 'setting' WHERE current_setting('work_mem') = '100MB' OR current_setting('application_name') <> 'idemq handler'
	UNION ALL SELECT 'table' WHERE to_regclass('pg_temp.t') IS NOT NULL
	UNION ALL SELECT 'lock' FROM pg_locks WHERE locktype = 'advisory' UNION ALL SELECT 'statement' FROM pg_prepared_statements WHERE name = 'p'
	UNION ALL SELECT 'done']);
all_done('a');
is_sql($node, 'SELECT what FROM app.left', 'done', 'nothing is left behind');
is_sql($node, 'SELECT count(DISTINCT pid) FROM app.done WHERE n IN (1, 40, 41)', 1, 'in one and the same session');

# ---- Batches

queue('b', undef, 'batch => 10');
sql($node, "SELECT idemq.pause('b')");
job('b', 100 + $_) foreach 0 .. 9;
sql($node, "SELECT idemq.resume('b')");
all_done('b');
is_sql($node, 'SELECT count(*), count(DISTINCT xid) FROM app.done WHERE n >= 100', '10|1', 'ten jobs, one transaction');
sql($node, "SELECT idemq.pause('b'); CREATE TABLE app.parent (i int PRIMARY KEY);
	CREATE TABLE app.child (i int REFERENCES app.parent DEFERRABLE INITIALLY DEFERRED); GRANT ALL ON ALL TABLES IN SCHEMA app TO app");
job('b', 200, raise('P0001', 'one of ten'), 'max_attempts => 2');
job('b', 201, 'INSERT INTO app.child VALUES (1)', 'max_attempts => 1');
job('b', 210 + $_) foreach 0 .. 7;
sql($node, "SELECT idemq.resume('b')");
all_done('b');
is_sql($node, "SELECT payload->>'n', status, attempt, last_error FROM idemq.jobs WHERE (payload->>'n')::int BETWEEN 200 AND 209 ORDER BY id",
	"200|dead|2|one of ten\n201|dead|1|insert or update on table \"child\" violates foreign key constraint \"child_i_fkey\"",
	'what raises, at COMMIT as well, fails alone');
is_sql($node, "SELECT count(*), count(DISTINCT n), count(DISTINCT xid), min(attempt), max(attempt) FROM app.done WHERE n BETWEEN 210 AND 219",
	'8|8|8|1|1', 'the others run again, a transaction each, once, and no attempt is counted twice');

# What one of them SETs is none of the next one's, though they share a transaction.
sql($node, "SELECT idemq.pause('b'); TRUNCATE app.left; CREATE ROLE team; GRANT team TO app; GRANT INSERT ON app.left TO team");
job('b', 230, "SET app.tenant = 'anna'; SELECT set_config('app.user', 'anna', true); SET ROLE team");
job('b', 231, q[INSERT INTO app.left SELECT concat_ws(' ', current_user, current_setting('role'), nullif(current_setting('app.tenant', true), ''),
	nullif(current_setting('app.user', true), ''))]);
sql($node, "SELECT idemq.resume('b')");
all_done('b');
is_sql($node, 'SELECT what FROM app.left', 'app none', 'settings end with their job, in a batch as well');
is_sql($node, 'SELECT count(DISTINCT xid) FROM app.done WHERE n IN (230, 231)', 1, 'of one transaction');

# One job's function ends the attempt of another of its batch, earlier or later: as if each had a transaction of its own.
sql($node, "SELECT idemq.grant_queue('b', 'app', 'enqueue')");

sql($node, q[CREATE FUNCTION app.token_of(bigint) RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog
	AS 'SELECT token FROM idemq.jobs WHERE id = $1']);

# Runs a batch of two, the first or the last of which does something with the other's id; answers what became of both.
sub meddle
{
	my ($first, $sql) = @_;

	sql($node, "SELECT idemq.pause('b')");
	my @ids = map { job('b', 250) } 0, 1;
	my ($meddler, $victim) = $first ? @ids : reverse @ids;
	sql($node, "UPDATE idemq.jobs SET payload = payload || jsonb_build_object('sql', format(\$q\$$sql\$q\$, $victim)) WHERE id = $meddler;
		SELECT idemq.resume('b')");
	all_done('b');
	return sql($node, "SELECT string_agg(concat_ws(' ', status, attempt, (SELECT count(*) FROM app.done d WHERE d.id = j.id)), ', '
		ORDER BY id = $victim) FROM idemq.jobs j WHERE id IN ($meddler, $victim)");
}
foreach ([ 'cancels', 'SELECT idemq.cancel(%s)', 'cancelled 1 0' ],
	[ 'fails', q[SELECT idemq.fail(%1$s, app.token_of(%1$s), 'no', retry_in => '0')], 'completed 2 1' ],
	[ 'releases', 'SELECT idemq.release(%1$s, app.token_of(%1$s))', 'completed 1 1' ],
	[ 'commits', 'SELECT idemq.commit(%1$s, app.token_of(%1$s))', 'completed 1 0' ])
{
	my ($does, $sql, $later) = @$_;

	is(meddle(1, $sql), "completed 1 1, $later", "a job $does a later one of its batch: that attempt's function is not called");
	is(meddle(0, $sql), 'completed 1 1, completed 1 1', "a job $does an earlier one: that is completed by then, and has its effect, once")
		if $does ne 'commits';
}

# The right to claim goes while the function runs: it has no effect; given again, it has one.
queue('c');
{
	my $gate = session($node);
	$gate->query_safe('SELECT pg_advisory_lock(43)');
	$id = job('c', 255, 'SELECT pg_advisory_xact_lock(43)');
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event = 'advisory'");
	sql($node, "SELECT idemq.revoke_queue('c', 'app', 'claim')");
	$gate->query_safe('SELECT pg_advisory_unlock(43)');
	wait_until($node, "SELECT state = 'refused' FROM idemq.handlers WHERE queue = 'c'");
	is_sql($node, 'SELECT count(*) FROM app.done WHERE n = 255', 0, 'claim is revoked while a job runs: it has no effect');
	sql($node, "SELECT idemq.grant_queue('c', 'app', 'claim'); SET ROLE app; SELECT idemq.set_handler('c', 'app.f(jsonb)')");
	all_done('c');
	is_sql($node, 'SELECT count(*) FROM app.done WHERE n = 255', 1, 'granted again, it has one');
	leave($gate);
}

# ---- A row, a dead-letter queue or a handler that somebody holds: the one process there is goes on with other handlers

sql($node, "CREATE SEQUENCE app.begun; GRANT ALL ON SEQUENCE app.begun TO app;
	CREATE ROLE producer; GRANT USAGE ON SCHEMA idemq TO producer; SELECT idemq.grant_queue('b', 'producer', 'enqueue');
	ALTER SYSTEM SET idemq.max_handler_workers = 1");
reload_worker($node);
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
my $at_gate = "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event = 'advisory'";
my $once = "IF nextval('app.begun') = 1 THEN RAISE 'once'; END IF";

# Asserts that a job of another handler is run.
sub others_run
{
	my ($while) = @_;
	my $other = job('a', 239);

	is_soon($node, "SELECT status FROM idemq.jobs WHERE id = $other", 'completed', "$while: another handler's job is run");
	return;
}

# A role that may only enqueue cancels a job which waits for its turn in a batch that runs one by one, and does not commit.
# With the other two ends: handlers_slow.pl.
foreach my $end ('ROLLBACK', "COMMIT PREPARED 'p'")
{
	sql($node, "SELECT idemq.pause('b'), setval('app.begun', 1, false)");
	job('b', 240, "DO \$\$BEGIN $once; PERFORM pg_advisory_xact_lock(42); END\$\$");
	$id = job('b', 241);
	my $gate = session($node);
	$gate->query_safe('SELECT pg_advisory_lock(42)');
	sql($node, "SELECT idemq.resume('b')");
	wait_until($node, $at_gate);
	my $canceller = session($node);
	like($canceller->query_safe("SET ROLE producer; BEGIN; SELECT idemq.cancel($id)"), qr/cancelled/, 'a job that waits for its turn is cancelled');
	$gate->query_safe('SELECT pg_advisory_unlock(42)');
	others_run('its cancel is open');
	$canceller->query_safe("PREPARE TRANSACTION 'p'") if $end =~ /PREPARED/;
	$canceller->query_safe($end);
	all_done('b');
	is_sql($node, "SELECT status, attempt, last_error, (SELECT count(*) FROM app.done d WHERE d.id = j.id) FROM idemq.jobs j WHERE id = $id",
		$end =~ /^COMMIT/ ? 'cancelled|1||0' : 'completed|1||1', "$end: no attempt has failed");
	is_sql($node, "SELECT outcome, error FROM idemq.attempts WHERE job_id = $id", $end =~ /^COMMIT/ ? 'cancelled|' : 'released|', 'its history');
	leave($gate, $canceller);
}

# The process is told to end meanwhile: it does.
{
	sql($node, "SELECT idemq.pause('b'), setval('app.begun', 1, false)");
	job('b', 240, "DO \$\$BEGIN $once; PERFORM pg_advisory_xact_lock(42); END\$\$");
	$id = job('b', 241);
	my ($gate, $canceller) = (session($node), session($node));
	$gate->query_safe('SELECT pg_advisory_lock(42)');
	sql($node, "SELECT idemq.resume('b')");
	wait_until($node, $at_gate);
	$canceller->query_safe("SET ROLE producer; BEGIN; SELECT idemq.cancel($id)");
	my $pid = sql($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
	sql($node, "SELECT pg_terminate_backend($pid)");
	is_soon($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid", 0, 'a process with a job that is held ends when it is told to');
	$canceller->query_safe('ROLLBACK');
	$gate->query_safe('SELECT pg_advisory_unlock(42)');
	all_done('b');
	is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'completed|1', 'and the job is given back');
	leave($gate, $canceller);
}

# A job has failed, and is cancelled before its process could write that.
{
	sql($node, "SELECT setval('app.begun', 1, false)");
	my ($gate, $canceller) = (session($node), session($node));
	$gate->query_safe('SELECT pg_advisory_lock(42)');
	$id = job('b', 242, "DO \$\$BEGIN PERFORM pg_advisory_xact_lock(42); $once; END\$\$", 'max_attempts => 2');
	wait_until($node, $at_gate);
	my $stop = stop_at(sql($node, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'idemq handler'"), 'idemq_handler_settle_failed');
	$gate->query_safe('SELECT pg_advisory_unlock(42)');
	$stop->();
	$canceller->query_safe("SET ROLE producer; BEGIN; SELECT idemq.cancel($id)");
	$stop->();
	others_run('the row of a job that failed is held');
	$canceller->query_safe('ROLLBACK');
	all_done('b');
	is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'completed|2', 'the failure is written when the row is free');
	is_sql($node, history($id), "failed|failed while the job's row was locked: see the server log|", 'its history');
	leave($gate, $canceller);
}

# A dead-letter queue that is being dropped.
sql($node, "SELECT idemq.create_queue('dying'); SELECT idemq.alter_queue('b', dead_letter_queue => 'dying')");
{
	my ($gate, $dropper) = (session($node), session($node));
	$gate->query_safe('SELECT pg_advisory_lock(42)');
	$id = job('b', 243, "DO \$\$BEGIN PERFORM pg_advisory_xact_lock(42); RAISE 'no'; END\$\$", 'max_attempts => 1');
	wait_until($node, $at_gate);
	$dropper->query_safe("BEGIN; SELECT idemq.drop_queue('dying', force => true)");
	$gate->query_safe('SELECT pg_advisory_unlock(42)');
	others_run('the dead-letter queue of a job is being dropped');
	$dropper->query_safe('ROLLBACK');
	all_done('b');
	is_sql($node, "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'dying' AND payload->>'id' = '$id'", 1,
		'not dropped, it has the dead job');
	sql($node, "SELECT idemq.alter_queue('b', dead_letter_queue => '')");
	leave($gate, $dropper);
}

# A handler that is being set, when a job of it ends a row of crashes.
sql($node, "UPDATE idemq_internal.handler_entries SET crashes = 1 WHERE queue_id = (SELECT queue_id FROM idemq.queues WHERE name = 'b')");
{
	my ($gate, $setter) = (session($node), session($node));
	$gate->query_safe('SELECT pg_advisory_lock(42)');
	job('b', 244, 'SELECT pg_advisory_xact_lock(42)');
	wait_until($node, $at_gate);
	$setter->query_safe("SET ROLE app; BEGIN; SELECT idemq.set_handler('b', 'app.f(jsonb)', batch => 10)");
	$gate->query_safe('SELECT pg_advisory_unlock(42)');
	others_run('a handler is being set');
	$setter->query_safe('ROLLBACK');
	job('b', 245);
	is_soon($node, "SELECT crashes FROM idemq.handlers WHERE queue = 'b'", 0, 'the next job ends the row of crashes');
	leave($gate, $setter);
}
sql($node, 'ALTER SYSTEM RESET idemq.max_handler_workers; SELECT pg_reload_conf()');

sql($node, 'CREATE SCHEMA su');

# ---- job_timeout

queue('t', "job_timeout => '300 ms', max_attempts => 1"); # meant to expire
queue('in_time', "job_timeout => '300 ms'", "max_idle => '10 min'"); # meant to expire when its job is done
# On a busy machine the job may be late: then another one.
my $in_time;
until_true('a job that is done in time', sub {
	$in_time = job('in_time', 299);
	all_done('in_time');
	return sql($node, "SELECT attempt FROM idemq.jobs WHERE id = $in_time") == 1;
});
$id = job('t', 300, 'SELECT pg_sleep(60)');
all_done('t');
is_sql($node, history($id), 'failed|job_timeout of queue "t" has passed|57014', 'a function is cancelled when its time is over');
$id = job('t', 301, q[DO $$BEGIN LOOP BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END$$]);
all_done('t');
is_sql($node, history($id), 'failed|job_timeout has passed, but the function did not stop|', 'one that catches that ends with its process');
# Its process is not ended for a job that was in time.
sql($node, "SELECT idemq.alter_queue('in_time', job_timeout => '1 h')");
$id = job('in_time', 303);
all_done('in_time');
is_sql($node, "SELECT count(*), count(DISTINCT worker) FROM idemq.jobs WHERE id IN ($in_time, $id)", '2|1', 'the time of a job ends with it');
# With more time: this one is not to be late.
sql($node, "SELECT idemq.alter_queue('t', job_timeout => '1 h')");
job('t', 302);
all_done('t');
is_sql($node, 'SELECT count(*) FROM app.done WHERE n = 302', 1, 'and another runs the next job');

# A process notes its error when its queue has been dropped, and another queue has got the queue state.
{
	queue('former', "max_attempts => 1", "max_idle => '10 min'");
	job('former', 304);
	all_done('former');
	my $stop = stop_at($node, 'idemq_handler_note_error');
	job('former', 305, 'SELECT 1 / 0');
	$stop->();
	sql($node, "SELECT idemq.drop_queue('former', force => true)");
	queue('next');
	$stop->();
	job('next', 306);
	all_done('next');
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE query = 'former'");
	is_sql($node, "SELECT coalesce(last_error, 'none') FROM idemq.handlers WHERE queue = 'next'", 'none',
		'a process that notes an error for a dropped queue does not note it for the queue that has its state');
	sql($node, "SELECT idemq.drop_queue('next', force => true)");
}

# ---- A function that ends its own process

queue('e', "retry_base => '1 h', retry_max => '1 h', retention => '0'");
$id = job('e', 310, 'SELECT pg_terminate_backend(pg_backend_pid())');
wait_until($node, "SELECT count(*) = 3 FROM idemq.attempts WHERE job_id = $id");
is_sql($node, "SELECT outcome, error FROM idemq.attempts WHERE job_id = $id ORDER BY token",
	join("\n", map { "$_|the handler process was asked to stop" } 'released', 'released', 'failed'), 'given back twice; the third end in a row is a failed attempt');
is_sql($node, "SELECT status, attempt, last_error, ready_at > now() + '25 min' FROM idemq.jobs WHERE id = $id",
	"retrying|1|the handler process was asked to stop|t", 'after which the queue\'s backoff follows');
# It counts after its commit.
is_soon($node, "SELECT failed_total, last_error FROM idemq.handlers WHERE queue = 'e'", "1|the handler process was asked to stop", 'the view says so');
sql($node, "UPDATE idemq.jobs SET payload = '{\"n\": 311}' WHERE id = $id");
sql($node, "SELECT idemq.retry($id)");
all_done('e');
is_sql($node, "SELECT (SELECT count(*) FROM app.done WHERE n = 311), (SELECT count(*) FROM idemq.attempts WHERE job_id = $id)", '1|0',
	'then it is done; where nothing is kept, nor is its history');

# ---- More processes, and fewer

# Idle processes of other handlers would leave in their own time.
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
queue('w', undef, "workers => 3, max_idle => '200 ms'"); # meant to expire
my $gate = session($node);
$gate->query_safe('SELECT pg_advisory_lock(7)');
job('w', 400 + $_, 'SELECT pg_advisory_xact_lock_shared(7)') foreach 0 .. 3;
is_soon($node, q[SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event_type = 'Lock'], 3,
	'as many as it may have are started while work is left');
is_sql($node, "SELECT state, workers_running FROM idemq.handlers WHERE queue = 'w'", 'running|3', 'the view');
$gate->query_safe('SELECT pg_advisory_unlock(7)');
all_done('w');
is_soon($node, "SELECT state || workers_running FROM idemq.handlers WHERE queue = 'w'", 'idle0', 'without work they end');

# Of idemq.max_handler_workers one goes to a handler that has none.
sql($node, 'ALTER SYSTEM SET idemq.max_handler_workers = 1');
reload_worker($node);
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
job('a', 410);
all_done('a');
job('w', 411);
all_done('w');
is_sql($node, 'SELECT count(*) FROM app.done WHERE n IN (410, 411)', 2, 'an idle one makes way for another handler');
sql($node, 'ALTER SYSTEM SET idemq.max_handler_workers = 0');
reload_worker($node);
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq handler'");
wait_until($node, processes(), 0);
job('w', 412);
is_soon($node, "SELECT state FROM idemq.handlers WHERE queue = 'w'", 'waiting', 'without any a handler waits');
sql($node, 'ALTER SYSTEM RESET idemq.max_handler_workers; SELECT pg_reload_conf()');
all_done('w');

# ---- The process is ended

$gate->query_safe('SELECT pg_advisory_lock(7)');
my $blocked = q[SELECT pg_advisory_xact_lock_shared(7)];
my $waits = q[SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event_type = 'Lock'];
$id = job('a', 500, $blocked);
wait_until($node, $waits, 1);
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event_type = 'Lock'");
wait_until($node, "SELECT count(*) = 1 FROM idemq.attempts WHERE job_id = $id");
is_sql($node, "SELECT outcome, attempt FROM idemq.attempts WHERE job_id = $id", 'released|1', 'pg_terminate_backend gives the job back');
$gate->query_safe('SELECT pg_advisory_unlock(7)');
all_done('a');
is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'completed|1', 'and the next process runs it: no attempt was lost');
is_sql($node, "SELECT count(*) FROM app.done WHERE id = $id", 1, 'once');

# A smart shutdown waits for clients, and not for handlers.
$gate->query_safe('SELECT pg_advisory_lock(7)');
$id = job('a', 501, 'SELECT pg_sleep(100)');
wait_until($node, q[SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event = 'PgSleep'], 1);
leave($gate);
sql($node, "SELECT idemq.pause('a')");
OneSession::end($node);
$node->stop('smart');
$node->start;
is_sql($node, "SELECT outcome FROM idemq.attempts WHERE job_id = $id", 'released', 'a smart shutdown gives the job back');
sql($node, "SELECT idemq.cancel($id); SELECT idemq.resume('a')");
is_sql($node, 'SELECT max(crashes) FROM idemq.handlers', 0, 'it is no crash');

# ---- The function, the role, the rights

sql($node, 'ALTER FUNCTION app.f(jsonb) RENAME TO g');
$id = job('a', 600);
is_soon($node, "SELECT state FROM idemq.handlers WHERE queue = 'a'", 'refused', 'without its function it does not run');
is_sql($node, "SELECT last_error FROM idemq.handlers WHERE queue = 'a'", 'function app.f(jsonb) does not exist', 'the view says why');
is_sql($node, "SELECT idemq.why($id) ~ 'function app.f\\(jsonb\\) does not exist'", 't', 'and so does why');
sql($node, 'ALTER FUNCTION app.g(jsonb) RENAME TO f');
all_done('a');
is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'completed|1', 'with it again, it goes on by itself');

foreach ([ 'ALTER ROLE app NOLOGIN', 'ALTER ROLE app LOGIN', 'is not permitted to log in' ],
	[ 'REVOKE CONNECT ON DATABASE postgres FROM PUBLIC', 'GRANT CONNECT ON DATABASE postgres TO PUBLIC', 'is not permitted to connect' ],
	[ 'REVOKE USAGE ON SCHEMA app FROM app', 'GRANT USAGE ON SCHEMA app TO app', 'lacks USAGE on schema' ],
	[ 'REVOKE EXECUTE ON FUNCTION app.f(jsonb) FROM PUBLIC, app', 'GRANT EXECUTE ON FUNCTION app.f(jsonb) TO app', 'lacks EXECUTE on function' ],
	[ "SELECT idemq.revoke_queue('a', 'app', 'claim')", "SELECT idemq.grant_queue('a', 'app', 'claim')", 'lacks the claim privilege' ])
{
	my ($take, $give, $says) = @$_;

	sql($node, $take);
	$id = job('a', 601);
	is_soon($node, "SELECT state = 'refused' AND last_error ~ '$says' FROM idemq.handlers WHERE queue = 'a'", "refused: $says");
	is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'pending|0', 'the job waits');
	if ($says eq 'lacks the claim privilege')
	{
		# Each look finds it refused, so the next one comes later: in the end after 64 s.
		advance($node, '2 min') foreach 1 .. 7;
	}
	sql($node, $give);
	if ($says eq 'lacks the claim privilege')
	{
		# The grant changes the queue's settings, so the worker looks at once.
		advance($node, '0');
		is_sql($node, "SELECT workers_running > 0 OR (SELECT finished_at IS NOT NULL FROM idemq.jobs WHERE id = $id) FROM idemq.handlers WHERE queue = 'a'",
			't', 'granted again, a process starts at once, however often the handler was refused before');
	}
	else
	{
		# At once, in place of within the pause.
		sql($node, "SET ROLE app; SELECT idemq.set_handler('a', 'app.f(jsonb)')");
	}
	all_done('a');
}
unlike(slurp_file($node->logfile), qr/FATAL: .*(?:role "app" is not permitted to log in|permission denied for database)/,
	'not by a FATAL in a loop');

# A role that has SET role in its settings runs its handler as itself: the group may not claim.
sql($node, q[ALTER ROLE app SET role = 'team'; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq handler']);
is_soon($node, processes(), 0, 'no process has the former settings');
$id = job('a', 605, 'RESET ROLE; TRUNCATE app.left; INSERT INTO app.left VALUES (current_user)');
all_done('a');
is_sql($node, "SELECT status, attempt, what FROM idemq.jobs, app.left WHERE id = $id", 'completed|1|app', 'ALTER ROLE ... SET role is not the handler\'s');
sql($node, 'ALTER ROLE app RESET role');

# The name of a function that was dropped is nobody else's to take.
sql($node, q[CREATE ROLE evil; GRANT USAGE, CREATE ON SCHEMA app TO evil; CREATE ROLE deployer; GRANT USAGE, CREATE ON SCHEMA app TO deployer;
	SELECT idemq.create_queue('name'); SELECT idemq.grant_queue('name', 'app', 'claim');
	CREATE FUNCTION pg_temp.make(owner text) RETURNS void LANGUAGE plpgsql AS $$BEGIN
		DROP FUNCTION IF EXISTS app.named(jsonb);
		EXECUTE format('SET LOCAL ROLE %I', owner);
		CREATE FUNCTION app.named(payload jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp
			AS 'INSERT INTO app.left SELECT current_user';
		RESET ROLE;
	END$$;
	SELECT pg_temp.make('deployer');
	TRUNCATE app.left;
	SET ROLE app; SELECT idemq.set_handler('name', 'app.named(jsonb)'); RESET ROLE;
	SELECT pg_temp.make('evil')]);
$id = job('name', 606);
is_soon($node, "SELECT state, last_error FROM idemq.handlers WHERE queue = 'name'",
	"refused|function app.named(jsonb) was owned by role \"deployer\" when the handler was set, and now has another owner: call idemq.set_handler again if you intended the change",
	'a function of that name which is another\'s is refused');
is_sql($node, 'SELECT count(*) FROM app.left', 0, 'and does not run');
sql($node, 'DROP FUNCTION app.named; DROP OWNED BY deployer; DROP ROLE deployer; CREATE ROLE deployer; GRANT USAGE, CREATE ON SCHEMA app TO deployer;
	SET ROLE deployer;' . q[ CREATE FUNCTION app.named(payload jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog, pg_temp
		AS 'INSERT INTO app.left SELECT current_user']);
is_sql($node, "SELECT owner_oid = 'deployer'::regrole FROM idemq_internal.handler_entries WHERE function_name = 'named'", 'f', 'nor is it of another role of that name');
sql($node, "SET ROLE app; SELECT idemq.set_handler('name', 'app.named(jsonb)')");
all_done('name');
is_sql($node, 'SELECT what FROM app.left', 'app', 'until the handler is set again');
sql($node, "SELECT idemq.drop_handler('name'); DROP FUNCTION app.named; DROP OWNED BY evil, deployer; DROP ROLE evil, deployer");

# A role whose transactions are serializable: what meets another is repeated, and ends no process.
queue('s');
sql($node, "SELECT idemq.pause('s'); SELECT count(*) FROM generate_series(1, 400) n, idemq.enqueue('s', jsonb_build_object('n', 10000 + n));
	ALTER ROLE app SET default_transaction_isolation = 'serializable';
	SET ROLE app; SELECT idemq.set_handler('s', 'app.f(jsonb)', workers => 4); RESET ROLE; SELECT idemq.resume('s')");
all_done('s');
is_sql($node, 'SELECT count(*), count(DISTINCT n) FROM app.done WHERE n > 10000', '400|400', 'SERIALIZABLE: each once');
# A neighbour that has no processor can be in the way of one job four times.
is_sql($node, q[SELECT count(*) FROM idemq.attempts JOIN app.done ON job_id = id WHERE n > 10000 AND details->>'sqlstate' IS DISTINCT FROM '40001'], 0,
	'and no attempt has failed but of 40001');
unlike(slurp_file($node->logfile), qr/handler process for queue "s" is exiting:  /, 'no process ends of a claim that met another');
# What is idemq's own is not serializable: an end of an attempt that met another would end the process, and count for the job.
sql($node, q[CREATE TABLE su.levels (status text, level text);
	CREATE FUNCTION su.level() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
		AS $$BEGIN INSERT INTO su.levels VALUES (NEW.status, current_setting('transaction_isolation')); RETURN NULL; END$$;
	CREATE TRIGGER level AFTER UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION su.level();
	TRUNCATE app.left]);
$id = job('s', 608, 'INSERT INTO app.left VALUES (current_setting(\'transaction_isolation\'))');
all_done('s');
is_sql($node, "SELECT status, what FROM idemq.jobs, app.left WHERE id = $id", 'completed|serializable', 'the function has its role\'s isolation level');
sql($node, 'TRUNCATE su.levels');
job('s', 609, raise('P0001', 'no'), 'max_attempts => 1');
all_done('s');
is_sql($node, "SELECT level FROM su.levels WHERE status = 'dead'", 'read committed', 'the end of an attempt that failed is READ COMMITTED');
sql($node, 'DROP TRIGGER level ON idemq.jobs; DROP FUNCTION su.level; DROP TABLE su.levels');
sql($node, "ALTER ROLE app RESET default_transaction_isolation; SELECT idemq.drop_handler('s')");

# A superuser's handler takes no function of anybody else.
sql($node, "SELECT idemq.create_queue('super')");
sql($node, "SELECT idemq.set_handler('super', 'app.f(jsonb)')");
$id = job('super', 610);
is_soon($node, "SELECT last_error ~ 'is a superuser, but the owner of function' FROM idemq.handlers WHERE queue = 'super'",
	'a superuser\'s handler runs no function of another role');
sql($node, 'CREATE FUNCTION su.f(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS $$SELECT$$');
sql($node, "SELECT idemq.set_handler('super', 'su.f(jsonb)')");
all_done('super');
is_sql($node, "SELECT status, result IS NULL FROM idemq.jobs WHERE id = $id", 'completed|t', 'void: no result');
$gate = session($node);
$gate->query_safe('BEGIN; ALTER FUNCTION su.f(jsonb) OWNER TO app; COMMIT');
$id = job('super', 611);
is_soon($node, "SELECT state FROM idemq.handlers WHERE queue = 'super'", 'refused', 'asked at every run');
sql($node, "SELECT idemq.drop_handler('super')");
is_sql($node, "SELECT count(*) FROM idemq.handlers WHERE queue = 'super'", 0, 'drop_handler ends it');

# ---- DROP ROLE, DROP DATABASE, ALTER EXTENSION

sql($node, "CREATE ROLE gone LOGIN; CREATE TABLE app.gone (pid int); GRANT USAGE ON SCHEMA app, idemq TO gone; GRANT ALL ON app.done TO gone;
	GRANT EXECUTE ON FUNCTION idemq.set_handler TO gone; SELECT idemq.create_queue('r'); SELECT idemq.grant_queue('r', 'gone', 'claim');
	GRANT EXECUTE ON FUNCTION app.f(jsonb) TO gone; SET ROLE gone; SELECT idemq.set_handler('r', 'app.f(jsonb)')");
job('r', 700);
all_done('r');
sql($node, "DROP OWNED BY gone; SELECT idemq.revoke_queue('r', 'gone', 'claim'); DROP ROLE gone");
$id = job('r', 701);
is_soon($node, "SELECT last_error ~ 'no longer exists' FROM idemq.handlers WHERE queue = 'r'", 'the role is gone: refused');
is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'pending|0', 'the job waits');
sql($node, "SELECT idemq.drop_handler('r')");

sql($node, 'CREATE DATABASE other');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q'); CREATE FUNCTION public.f(jsonb) RETURNS void LANGUAGE plpgsql
	SET search_path = pg_catalog AS \$\$BEGIN PERFORM pg_sleep((\$1->>'s')::float8); END\$\$; SELECT idemq.set_handler('q', 'public.f(jsonb)');
	SELECT idemq.enqueue('q', '{\"s\": 100}')", 'other');
wait_until($node, q[SELECT count(*) FROM pg_stat_activity WHERE datname = 'other' AND wait_event = 'PgSleep'], 1);
is_state($node, 'DROP DATABASE other', '00000', 'DROP DATABASE does not fail for a handler at work');

job('a', 710);
all_done('a');
$id = job('a', 711, 'SELECT pg_sleep(100)');
wait_until($node, q[SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event = 'PgSleep'], 1);
sql($node, "SELECT idemq.pause('a')");
sql($node, 'ALTER EXTENSION idemq UPDATE');
is_sql($node, "SELECT outcome FROM idemq.attempts WHERE job_id = $id", 'released', 'nor does ALTER EXTENSION: the job is given back');
sql($node, "SELECT idemq.cancel($id); SELECT idemq.resume('a')");

# ---- The queue is dropped, the handler is replaced

my $old = barrier($node);
$id = job('a', 720, $old->sql);
$old->wait_for(1);
sql($node, 'CREATE FUNCTION app.h(jsonb) RETURNS jsonb LANGUAGE sql SET search_path = pg_catalog AS $$SELECT \'"other"\'::jsonb$$; ALTER FUNCTION app.h(jsonb) OWNER TO app');
sql($node, "SET ROLE app; SELECT idemq.set_handler('a', 'app.h(jsonb)')");
my $next = job('a', 721);
$old->open;
all_done('a');
is_sql($node, "SELECT status, result FROM idemq.jobs WHERE id = $next", 'completed|"other"', 'a handler that is replaced runs what comes from then on');
sql($node, "SET ROLE app; SELECT idemq.set_handler('a', 'app.f(jsonb)')");
sql($node, "SELECT idemq.drop_queue('w', force => true)");
is_sql($node, "SELECT count(*) FROM idemq_internal.handler_entries e WHERE NOT EXISTS (SELECT FROM idemq.queues q WHERE q.queue_id = e.queue_id)", 0,
	'with its queue a handler is gone');

# ---- A queue without a slot in shared memory

sql($node, "ALTER SYSTEM SET idemq.max_queues = 4; SELECT idemq.pause('a')");
$node->restart;
{
	my $late = sql($node, "SELECT queue FROM idemq.handlers WHERE role = 'app' AND queue <> 'a' AND state = 'refused'
		AND last_error = 'its queue has no state in shared memory: raise idemq.max_queues and restart the server' LIMIT 1");
	isnt($late, '', 'the view says that a handler does not run whose queue has no state');
	$id = sql($node, qq[INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
		VALUES (idemq.queue_id('$late'), now(), 4, 5, 'pending', now(), '{"n": 750}') RETURNING id]);
	is_sql($node, "SELECT idemq.why($id) LIKE '%queue \"$late\" has no state in shared memory%'", 't', 'and so does why');
	is_sql($node, "SELECT count(*) FROM idemq.check() WHERE invariant = 'queue_states.full' AND detail LIKE 'queue \"$late\" has no state%'", 1, 'and check');
	is_state($node, "SET ROLE app; SELECT idemq.set_handler('$late', 'app.f(jsonb)')", '53400', 'set_handler refuses such a queue');
	sql($node, "ALTER SYSTEM RESET idemq.max_queues; SELECT idemq.resume('a')");
	$node->restart;
	all_done($late);
	is_sql($node, 'SELECT count(*) > 0 FROM app.done WHERE n = 750', 't', 'with a slot it runs');
}

# ---- The server crashes in the middle of a job: backoff, and after three in a row the handler stops

sql($node, "SELECT idemq.alter_queue('t', job_timeout => '0', max_attempts => 20, retry_base => '1 h')");
leave($gate);
sub kill_in_job
{
	my ($job) = @_;
	my $handler = q[FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event = 'PgSleep'];

	wait_until($node, "SELECT count(*) = 1 $handler");
	my $victim = sql($node, "SELECT pid $handler");
	kill 'KILL', $victim;
	# The attempt's end is written by the server that comes after this one.
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $victim");
	return;
}
$node->append_conf('postgresql.conf', 'restart_after_crash = on');
$node->reload;
$id = job('t', 800, 'SELECT pg_sleep(1000)');
foreach my $n (1 .. 3)
{
	kill_in_job($id);
	wait_until($node, "SELECT count(*) = $n FROM idemq.attempts WHERE job_id = $id");
	is_sql($node, "SELECT status, attempt, ready_at > now() + '30 min' FROM idemq.jobs WHERE id = $id", "retrying|$n|t",
		"crash $n: the attempt counts, and the queue's backoff follows");
	is_soon($node, "SELECT crashes FROM idemq.handlers WHERE queue = 't'", $n, 'counted');
	last if $n == 3;
	if ($n == 2)
	{
		job('t', 801);
		is_soon($node, "SELECT crashes FROM idemq.handlers WHERE queue = 't'", 0, 'a job that is done ends the row');
	}
	sql($node, "SELECT idemq.retry($id)");
}
is_sql($node, history($id), join("\n", ("expired|the handler process has ended|") x 3), 'its history');
is_sql($node, "SELECT state, workers_running FROM idemq.handlers WHERE queue = 't'", 'stopped|0', 'after three of one job the handler is stopped, though it did others');
sql($node, "SELECT idemq.retry($id)");
like(sql($node, "SELECT idemq.why($id)"), qr/stopped after 3 consecutive server crashes/, 'why says so');
is_sql($node, "SELECT crashes FROM idemq.handlers WHERE queue = 'a'", 0, 'another handler is none the worse for it');
sql($node, "UPDATE idemq.jobs SET payload = '{\"n\": 800}' WHERE id = $id; SET ROLE app; SELECT idemq.set_handler('t', 'app.f(jsonb)')");
all_done('t');
is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'completed|4', 'set again, it goes on');
is_sql($node, 'SELECT count(*) FROM app.done WHERE n = 800', 1, 'the effect happened once');

# ---- Failover: what the primary was at waits for the backoff; the rest goes on where the primary is now

$node->backup('copy');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'copy', has_streaming => 1);
$standby->start;
$id = job('t', 900, 'SELECT pg_sleep(1000)');
wait_until($node, q[SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'idemq handler' AND wait_event = 'PgSleep'], 1);
caught_up($node, $standby);
is_sql($standby, processes(), 0, 'on a standby no handler runs');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop('immediate');
$standby->promote;
wait_until($standby, "SELECT count(*) = 1 FROM idemq.attempts WHERE job_id = $id");
is_sql($standby, "SELECT status, attempt, ready_at > now() + '30 min' FROM idemq.jobs WHERE id = $id", 'retrying|1|t',
	'the job of the primary that was lost waits for the backoff');
sql($standby, "SELECT idemq.enqueue('a', '{\"n\": 901}')");
is_soon($standby, 'SELECT count(*) FROM app.done WHERE n = 901', 1, 'and the new primary runs the next');
is_sql($standby, "SELECT crashes FROM idemq.handlers WHERE queue = 't'", 1, 'it counts as a crash');
$standby->stop;

# With the shipped library, where nothing stops.
shipped($node);
job('a', 990);
all_done('a');
is_sql($node, 'SELECT count(*) FROM app.done WHERE n = 990', 1, 'shipped: a handler runs a job');
is(unexpected($node, 'workers', '57P01'), '', 'no error of idemq\'s own processes');
$node->stop;
done_testing();
