# A worker's process is told at once that one of its attempts is cancelled or taken back: by each call that does so, whether or not
# the worker's transaction holds the row, and even if the call is rolled back.  Nothing else wakes the process.
#
# at least 109 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('cancel_at_once', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', max_connections => 40, max_prepared_transactions => 1);
my $own = "SET idemq.process = 'p'";
my ($worker, $pulse, $listener, $other) = map { session($node) } 1 .. 4;
$_->query_safe($own) foreach ($worker, $pulse, $listener);
my $listen = "CALL idemq.wait(NULL, '10 h')";
my $one = "(SELECT min(id) FROM held)";

# Creates a queue with two jobs, which the process claims.
sub reset_queue
{
	my (%settings) = (lease => "'1 h'", retry_jitter => 0, @_);
	my $settings = join ', ', map { "$_ => $settings{$_}" } sort keys %settings;

	sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues; SELECT idemq.create_queue('q', $settings);
		SELECT idemq.enqueue('q', '1', key => 'k' || n) FROM generate_series(1, 2) n; DROP TABLE IF EXISTS held; CREATE TABLE held (id bigint, token bigint)");
	$worker->query_safe("INSERT INTO held SELECT id, token FROM idemq.claim('q', 2)");
}

# Lets the process take all earlier signals, and then sleep.
sub listener
{
	$listener->query_safe("CALL idemq.wait('q', '0')");
	return waiter($node, $listen, $listener);
}

sub beats { return $pulse->query_safe("SELECT idemq.heartbeat(id, token) FROM held WHERE id = $one") }

# Sends a statement that may have to wait.
sub begin_sql { $other->query_until(qr/sent/, "\\echo sent\n$_[0];\n"); return }

sub is_asleep { my ($who, $name) = @_; return is_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $who->{pid} AND " . asleep(), 1, $name) }

# ---- The session that listens

is($listener->query_safe($listen), 'f', 'the first wait returns at once, because an attempt may have ended before it');
is_state($node, $listen, '22004', 'a session without idemq.process must name a queue');
reset_queue();
my $asleep = listener();
sql($node, "SELECT idemq.enqueue('q', '1')");
is_asleep($asleep, 'a new job does not wake a process that has no free slot');
is_sql($node, "SELECT num_nulls(backend_xmin, backend_xid) FROM pg_stat_activity WHERE pid = $asleep->{pid}", 2, 'the session holds no snapshot');
sql($node, "SELECT idemq.cancel($one)");
is(answer($asleep), 'f', 'cancel wakes it');
foreach my $call ("CALL idemq.wait('r', '10 h')", "CALL idemq.wait_any('{r}', '10 h')")
{
	reset_queue();
	sql($node, "SELECT idemq.create_queue('r')");
	listener() && sql($node, "SELECT idemq.cancel($one)") && answer({ session => $listener });
	$asleep = waiter($node, $call, $listener);
	sql($node, 'SELECT idemq.cancel(max(id)) FROM held');
	is(answer($asleep), 'f', "a cancel also ends $call");
	$asleep = waiter($node, $call, $listener);
	sql($node, "SELECT idemq.enqueue('r', '1')");
	is(answer($asleep), 't', 'and so does a new job');
}
reset_queue();
my $id = $node->safe_psql('postgres', 'SELECT max(id) FROM held');
listener();
sql($node, "SELECT idemq.cancel($one)");
answer({ session => $listener });
$asleep = waiter($node, "CALL idemq.wait_result($id, '10 h')", $listener);
is($other->query_safe('SELECT idemq.revoke_lease(max(id)) FROM held'), 'released', 'an attempt ends');
is_asleep($asleep, 'but a wait for a result continues');
sql($node, "SELECT idemq.cancel($id)");
is(answer($asleep), 'cancelled|', 'until there is a result');

# ---- Each call that ends an attempt

my %ends = (
	cancel => [ "SELECT idemq.cancel($one)", 'stale' ],
	cancel_by_key => [ "SELECT idemq.cancel_by_key('q', 'k1')", 'stale' ],
	cancel_many => [ "SELECT idemq.cancel_many(ARRAY[$one])", 'stale' ],
	cancel_matching => [ "SELECT idemq.cancel_matching('q', key_prefix => 'k1')", 'stale' ],
	revoke_lease => [ "SELECT idemq.revoke_lease($one)", 'stale' ],
	drop_queue => [ "SELECT idemq.drop_queue('q', force => true)", 'not_found' ],
	'a DELETE by hand' => [ "DELETE FROM idemq.jobs WHERE id = $one", 'not_found' ],
	'the end of the lease' => [ '2 h', 'stale' ],
	job_timeout => [ '2 min', 'stale', job_timeout => "'1 min'" ]);
foreach my $name (sort keys %ends)
{
	my ($sql, $beats, @settings) = @{ $ends{$name} };

	reset_queue(@settings);
	$asleep = listener();
	$sql =~ /^\d/ ? advance($node, $sql) : sql($node, $sql);
	is(answer($asleep), 'f', "$name ends the wait");
	is(beats(), $beats, 'and a heartbeat returns the reason');
	$asleep = waiter($node, $listen, $listener) if $name =~ /cancel|revoke/;
	is_asleep($asleep, 'the process was told once') if $name =~ /cancel|revoke/;
	sql($node, 'SELECT idemq.cancel(max(id)) FROM held'), answer($asleep) if $name =~ /cancel|revoke/;
}

# ---- The worker's transaction holds the row

foreach my $name ('cancel', 'cancel_by_key', 'revoke_lease', 'drop_queue')
{
	reset_queue();
	$worker->query_safe("BEGIN; SELECT idemq.assert_current(id, token) FROM held WHERE id = $one");
	$asleep = listener();
	begin_sql($ends{$name}[0]);
	is(answer($asleep), 'f', "$name waits for the worker's transaction, and ends its wait");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
	is(beats(), 'cancelled', 'while the call waits, heartbeats return cancelled');
	$worker->query_safe('ROLLBACK');
	$other->query('SELECT');
	is(beats(), $ends{$name}[1], 'and afterwards its result');
}
# A call that does not wait for the row does not wake the worker.
reset_queue();
$worker->query_safe("BEGIN; SELECT idemq.assert_current(id, token) FROM held WHERE id = $one");
$asleep = listener();
is_sql($node, "SELECT outcome FROM idemq.cancel_many(ARRAY[$one])", 'locked', 'cancel_many does not wait');
is_asleep($asleep, 'so it does not wake the worker');
$worker->query_safe('ROLLBACK');
sql($node, "SELECT idemq.cancel($one)");
answer($asleep);
reset_queue(job_timeout => "'1 min'");
$worker->query_safe("BEGIN; SELECT idemq.assert_current(id, token) FROM held WHERE id = $one");
$asleep = listener();
begin_sql("CALL idemq.advance_clock('2 min')");
is(answer($asleep), 'f', 'job_timeout ends the wait');
like(beats(), qr/^(?:expired|stale)$/, 'a heartbeat returns the reason while the worker holds the row');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $one", 'running', 'and the job is still running');
$worker->query_safe('ROLLBACK');
$other->query('SELECT');

# ---- A cancel that is rolled back

foreach my $held (0, 1)
{
	my $holder = $held ? 'a worker that holds the row' : 'a worker that does not hold the row';

	reset_queue();
	$worker->query_safe("BEGIN; SELECT idemq.assert_current(id, token) FROM held WHERE id = $one") if $held;
	$asleep = listener();
	begin_sql("BEGIN; SELECT idemq.cancel($one)");
	is(answer($asleep), 'f', "$holder is told");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'") if $held;
	$worker->query_safe('ROLLBACK') if $held;
	$other->query('SELECT');
	is($pulse->query_safe("SELECT idemq.release(id, token) FROM held WHERE id = $one"), 'cancelled', 'release does not wait');
	is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $one", 'running', 'while the cancel is open');
	$other->query_safe('ROLLBACK');
	wait_until($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $one");
	is_sql($node, "SELECT attempt, (SELECT string_agg(outcome, ' ') FROM idemq.attempts WHERE job_id = j.id) FROM idemq.jobs j WHERE id = $one",
		'0|released', 'the attempt ends as released, and does not count');
}
# If the worker ignores a cancel that is rolled back, its lease continues, and the next cancel wakes it again.
reset_queue();
$asleep = listener();
begin_sql("BEGIN; SELECT idemq.cancel($one)");
is(answer($asleep), 'f', 'a cancel ends the wait');
$other->query_safe('ROLLBACK');
is(beats(), 'current', 'after its rollback, heartbeats return current');
$asleep = waiter($node, $listen, $listener);
sql($node, "SELECT idemq.cancel($one)");
is(answer($asleep), 'f', 'the next cancel ends the wait again');
# The same if a call that did not get the row was open when the cancel was rolled back.
reset_queue();
$asleep = listener();
begin_sql("BEGIN; SELECT idemq.cancel($one)");
is(answer($asleep), 'f', 'a cancel ends the wait');
$pulse->query_safe('BEGIN');
is($pulse->query_safe("SELECT outcome FROM idemq.cancel_many(ARRAY[$one])"), 'locked', 'cancel_many does not get the row');
$other->query_safe('ROLLBACK');
$pulse->query_safe('COMMIT');
is(beats(), 'current', 'the attempt continues');
$asleep = waiter($node, $listen, $listener);
sql($node, "SELECT idemq.cancel($one)");
is(answer($asleep), 'f', 'the next cancel ends the wait again');
# The same after PREPARE TRANSACTION.
reset_queue();
$asleep = listener();
$other->query_safe("BEGIN; SELECT idemq.cancel($one); PREPARE TRANSACTION 'cancels'");
is(answer($asleep), 'f', 'a cancel that is then prepared ends the wait');
$other->query_safe("ROLLBACK PREPARED 'cancels'");
is(beats(), 'current', 'after ROLLBACK PREPARED, the attempt continues');
$asleep = waiter($node, $listen, $listener);
sql($node, "SELECT idemq.cancel($one)");
is(answer($asleep), 'f', 'and the next cancel ends the wait again');
# A worker releases the job in the transaction that holds the row: the waiting revoke_lease comes first.
reset_queue();
$worker->query_safe("BEGIN; SELECT idemq.assert_current(id, token) FROM held WHERE id = $one");
begin_sql("SELECT idemq.revoke_lease($one)");
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
is($worker->query_safe("SELECT idemq.release(id, token) FROM held WHERE id = $one"), 'cancelled', 'a worker that holds the row releases the job');
$worker->query_safe('COMMIT');
$other->query('SELECT');
is_sql($node, "SELECT string_agg(outcome || ': ' || error, ' ') FROM idemq.attempts WHERE job_id = $one", 'released: the lease was revoked', 'revoke_lease ends that attempt, and not the next one');

# ---- A handler's process in the server, which always holds the row

sql($node, q(CREATE ROLE regress_app LOGIN; CREATE SCHEMA app AUTHORIZATION regress_app; GRANT USAGE ON SCHEMA idemq TO regress_app;
	GRANT EXECUTE ON FUNCTION idemq.set_handler TO regress_app; SET ROLE regress_app; CREATE TABLE app.done (n int);
	CREATE FUNCTION app.f(payload jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
	BEGIN
		INSERT INTO app.done VALUES (payload::int);
		PERFORM pg_advisory_xact_lock(7) WHERE payload::int = 3;
		PERFORM pg_sleep(CASE WHEN payload::int = 1 THEN 3600 ELSE 0 END);
	END $$));
my $sleeps = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'";

# A function that cancels its own job does not interrupt itself.
sql($node, q(CREATE FUNCTION app.cancels(payload jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
	BEGIN
		INSERT INTO app.done VALUES (payload::int);
		PERFORM idemq.cancel_by_key('own', 'k');
		PERFORM pg_sleep(0);
	END $$;
	SELECT idemq.create_queue('own', lease => '1 h'); SELECT idemq.grant_queue('own', 'regress_app', 'claim'); SELECT idemq.grant_queue('own', 'regress_app', 'enqueue');
	SET ROLE regress_app; SELECT idemq.set_handler('own', 'app.cancels(jsonb)')));
$id = sql($node, "SELECT (idemq.enqueue('own', '4', key => 'k')).id");
is_soon($node, "SELECT status = 'cancelled' AND attempt = 1 FROM idemq.jobs WHERE id = $id", 'a function can cancel its own job');
is_sql($node, 'SELECT * FROM app.done', 4, 'and its effect is committed');
sql($node, q(SELECT idemq.grant_queue('own', 'regress_app', 'admin');
	CREATE OR REPLACE FUNCTION app.cancels(payload jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
	BEGIN
		PERFORM idemq.drop_queue('own', force => true);
		PERFORM pg_sleep(0);
	END $$));
sql($node, "SELECT idemq.enqueue('own', '5')");
is_soon($node, "SELECT count(*) = 0 FROM idemq.queues WHERE name = 'own'", 'and drop its own queue');
foreach my $batch (1, 10)
{
	sql($node, "SELECT idemq.create_queue('h$batch', lease => '1 h'); SELECT idemq.grant_queue('h$batch', 'regress_app', 'claim'); TRUNCATE app.done;
		SET ROLE regress_app; SELECT idemq.set_handler('h$batch', 'app.f(jsonb)', batch => $batch)");
	my $slow = sql($node, "SELECT (idemq.enqueue('h$batch', '1')).id");
	my $fast = sql($node, "SELECT (idemq.enqueue('h$batch', '2')).id");
	wait_until($node, $sleeps);
	is_sql($node, "SELECT idemq.cancel($slow)", 'cancelled', "batch $batch: a cancel ends the function");
	wait_until($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $fast");
	is_sql($node, 'SELECT * FROM app.done', 2, 'its effect is rolled back, and that of another job is not');

	$slow = sql($node, "SELECT (idemq.enqueue('h$batch', '1')).id");
	wait_until($node, $sleeps);
	$other->query_safe("BEGIN; SELECT idemq.cancel($slow)");
	$other->query_safe('ROLLBACK');
	wait_until($node, "SELECT count(*) > 0 FROM idemq.attempts WHERE job_id = $slow");
	is_sql($node, "SELECT string_agg(outcome, ' ') FROM idemq.attempts WHERE job_id = $slow", 'released', 'a cancel that is rolled back releases the job');
	wait_until($node, $sleeps);
	is_sql($node, "SELECT attempt FROM idemq.jobs WHERE id = $slow", 1, 'the job runs again, and the attempt was not counted');
	is_sql($node, "SELECT idemq.revoke_lease($slow)", 'released', 'revoke_lease also ends the function');
	wait_until($node, "SELECT count(*) = 2 FROM idemq.attempts WHERE job_id = $slow");
	wait_until($node, $sleeps);
	sql($node, "SELECT idemq.drop_queue('h$batch', force => true)");
	is_soon($node, "SELECT NOT ($sleeps)", 'and so does drop_queue');
}
# All jobs of a batch are marked at once, while one of them runs: none of them runs to its end.
sql($node, "SELECT idemq.create_queue('h', lease => '1 h'); SELECT idemq.grant_queue('h', 'regress_app', 'claim');
	SELECT idemq.enqueue_many('h', array_agg('1'::jsonb)) FROM generate_series(1, 30); SET ROLE regress_app; SELECT idemq.set_handler('h', 'app.f(jsonb)', batch => 30)");
wait_until($node, $sleeps);
begin_sql("SELECT idemq.drop_queue('h', force => true)");
is_soon($node, "SELECT count(*) = 0 FROM idemq.queues WHERE name = 'h'", 'drop_queue ends a batch');
$other->query('SELECT');
# A job of a batch is marked before it runs.
sql($node, "SELECT idemq.create_queue('h', lease => '1 h'); SELECT idemq.grant_queue('h', 'regress_app', 'claim');
	SELECT idemq.enqueue_many('h', '{3,1}')");
my $late = sql($node, "SELECT max(id) FROM idemq.jobs");
$pulse->query_safe('SELECT pg_advisory_lock(7)');
sql($node, "SET ROLE regress_app; SELECT idemq.set_handler('h', 'app.f(jsonb)', batch => 2)");
wait_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted");
begin_sql("SELECT idemq.cancel($late)");
wait_until($node, "SELECT count(*) = 2 FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
$pulse->query_safe('SELECT pg_advisory_unlock(7)');
is_soon($node, "SELECT status = 'cancelled' FROM idemq.jobs WHERE id = $late", 'its function ends as soon as it begins');
$other->query('SELECT');

# ---- Attempts that end between two waits; jobs that another session has claimed

reset_queue();
listener() && sql($node, "SELECT idemq.cancel($one)") && answer({ session => $listener });
sql($node, 'SELECT idemq.cancel(max(id)) FROM held');
is($listener->query_safe($listen), 'f', 'a cancel between two waits ends the second one');
reset_queue();
sql($node, "SELECT idemq.enqueue('q', '1'); INSERT INTO held SELECT id, token FROM idemq.claim('q')");
$pulse->query_safe('SELECT idemq.heartbeat(id, token) FROM held');
$asleep = listener();
sql($node, 'SELECT idemq.cancel(max(id)) FROM held');
is(answer($asleep), 'f', 'an attempt belongs to the process that sends its heartbeats');

# A claim takes back an expired lease, and claims the job again in the same transaction.
reset_queue();
$asleep = listener();
stop_worker($node);
# meant to expire
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held WHERE id = $one");
wait_until($node, "SELECT expires_in < '0' FROM idemq_internal.leases() WHERE job_id = $one");
is_sql($node, "SELECT id = $one FROM idemq.claim('q')", 't', 'a claim takes a job whose lease has expired');
kill 'CONT', worker_pid($node);
is(answer($asleep), 'f', 'the process that had the lease is told');
is(beats(), 'stale', 'and a heartbeat returns the reason');

reset_queue();
$asleep = listener();
$worker->query_safe('SELECT count(*) FROM idemq.cancel_many(ARRAY(SELECT max(id) FROM held))');
is(answer($asleep), 'f', 'a process is also told of what another of its sessions cancels');

# ---- Events that do not wake a process

sql($node, "CREATE ROLE regress_other LOGIN; SELECT idemq.grant_queue('q', 'regress_other', 'claim')");
my $foreign = session($node, undef, extra_params => [ '-U', 'regress_other' ]);
my $stranger = session($node);
$foreign->query_safe($own);
$stranger->query_safe("SET idemq.process = 'another'");
$_->query_safe($listen) foreach ($foreign, $stranger);
my @others = map { waiter($node, $listen, $_) } ($foreign, $stranger);
reset_queue();
sql($node, "SELECT idemq.enqueue_many('q', array_agg('1'::jsonb)) FROM generate_series(1, 1000)");
$worker->query_safe("INSERT INTO held SELECT id, token FROM idemq.claim('q', 1000)");
$asleep = listener();
$worker->query_safe("SELECT idemq.commit(max(id), max(token)) FROM held WHERE id = (SELECT max(id) FROM held)");
$worker->query_safe("SELECT idemq.fail(id, token) FROM held WHERE id = (SELECT max(id) - 1 FROM held)");
$worker->query_safe("SELECT idemq.release(id, token) FROM held WHERE id = (SELECT max(id) - 2 FROM held)");
is_asleep($asleep, 'a worker that ends its own attempts does not end its wait');
sql($node, "SELECT idemq.$_(id, token) FROM held WHERE id = (SELECT max(h.id) FROM held h JOIN idemq.jobs j USING (id, token) WHERE j.status = 'running')")
  foreach ('commit', 'fail', 'release');
sql($node, "SELECT idemq.await_event(id, token, 'paid', '1 h') FROM held WHERE id = (SELECT max(h.id) FROM held h JOIN idemq.jobs j USING (id, token) WHERE j.status = 'running')");
is_asleep($asleep, 'nor does its program, which has the token, in a session of its own');
$worker->query_safe("BEGIN; SELECT idemq.assert_current(id, token) FROM held WHERE id = $one; SELECT idemq.cancel($one)");
is_asleep($asleep, 'nor does a transaction that holds the row and cancels the job, before its commit');
$worker->query_safe('ROLLBACK');
sql($node, "SELECT idemq.cancel($one)");
is(answer($asleep), 'f', 'a cancel of one of 1,000 jobs ends the wait');
$asleep = waiter($node, $listen, $listener);
is_asleep($asleep, 'only once');
# 900 cancels in a row: none is lost, and each one wakes the process at most once.
sql($node, 'SELECT idemq.cancel((SELECT id FROM held ORDER BY id OFFSET 950 LIMIT 1))');
answer($asleep);
begin_sql('DO $$ DECLARE job bigint; BEGIN FOR job IN SELECT h.id FROM held h ORDER BY h.id LIMIT 900 LOOP PERFORM idemq.cancel(job); COMMIT; END LOOP; END $$');
my ($wakes, $left) = (0, 1);
while ($left > 0)
{
	$listener->query_safe($listen);
	$wakes++;
	$left = $pulse->query_safe("SELECT count(*) FROM (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM (SELECT * FROM held ORDER BY id LIMIT 900) h) h, idemq.heartbeat_many(ids, tokens) WHERE outcome = 'current'");
}
cmp_ok($wakes, '<=', 900, '900 cancels wake the process at most 900 times, and none is lost');
$other->query('SELECT');
$listener->query_safe("CALL idemq.wait(NULL, '0')");
$asleep = waiter($node, $listen, $listener);
is_asleep($_, 'but not the wait of another process, or of another role') foreach @others;
is($pulse->query_safe("SELECT count(*) FROM idemq.heartbeat_many('{}', '{}', end_waits => ARRAY[$asleep->{pid}, $others[0]{pid}])"), 0,
	'heartbeat_many accepts end_waits without ids');
is(answer($asleep), 'f', 'and ends the wait of a session of its role, as if its timeout had passed');
is_asleep($others[0], 'but not that of another role');
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN ($others[0]{pid}, $others[1]{pid})");
eval { leave($_) } foreach ($foreign, $stranger);
# A session that is given to another user does not listen any more.
reset_queue();
sql($node, "SELECT idemq.create_queue('r')");
$listener->query_safe('DISCARD ALL');
$asleep = waiter($node, "CALL idemq.wait('r', '10 h')", $listener);
sql($node, "SELECT idemq.cancel($one)");
is_asleep($asleep, 'after DISCARD ALL, a session does not listen');
sql($node, "SELECT idemq.enqueue('r', '1')");
is(answer($asleep), 't', 'but waits for work');
leave($worker, $pulse, $listener, $other);
is_sql($node, "SELECT count(*) FROM idemq.check() WHERE severity = 'error'", 0, 'check');

done_testing();
