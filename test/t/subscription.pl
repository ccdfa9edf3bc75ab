# A database that follows another by logical replication: only the apply worker writes there,
# whatever the publisher does; then the database takes over.
# at least 196 assertions
use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my %settings = ('idemq.worker' => 'on', max_prepared_transactions => 10, max_worker_processes => 20,
	max_logical_replication_workers => 8, max_connections => 60);
my $pub = new_server('publisher', %settings);
my $sub = new_node('subscriber', %settings);
$sub->start;
my $follows = "SELECT count(*) FROM idemq.check() WHERE invariant = 'follows'";
my $own = 'system_identifier = (SELECT system_identifier FROM pg_control_system())';

sub all_applied
{
	# The worker commits without a flush: this commit flushes what the worker has written before.
	sql($pub, "SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'flush', 'flush')");
	$pub->wait_for_catchup('everything', 'replay', $pub->lsn('flush'));
	return;
}

# The publisher's worker has promoted what others have left to it, of what was committed before.
sub heads_are_ready
{
	wait_until($pub, "SELECT count(*) = 0 FROM idemq.jobs WHERE status = 'blocked' AND NOT EXISTS (SELECT FROM idemq.jobs h
		WHERE h.group_key = jobs.group_key AND h.status IN ('pending', 'retrying', 'running')) AND queue_id IS DISTINCT FROM (SELECT queue_id FROM idemq.queues WHERE name = 'partly')");
	return;
}

# What both sides must have: all rows of a table.
sub rows
{
	my ($node, $table) = @_;
	my $except = $table =~ /^(?:queue_grants|topic_grants|topic_binding_entries)$/ ? " - 'role_oid'" : $table eq 'schedule_entries' ? " - 'created_by_oid'" : '';

	my $schema = $table =~ /^(?:database_uuid|seen|topic_\w+|queue_grants|schedule_entries|hold_entries)$/ ? 'idemq_internal' : 'idemq';

	return sql($node, "SELECT count(*), md5(string_agg(t, '|' ORDER BY t)) FROM (SELECT (to_jsonb(x)$except)::text AS t FROM $schema.$table x) y");
}

sub same_rows
{
	my ($name) = @_;

	all_applied();
	is(rows($sub, $_), rows($pub, $_), "$name: $_") foreach qw(jobs attempts steps dependencies children events topic_entries topic_grants topic_binding_entries topic_over_limit database_uuid queues queue_grants schedule_entries audit seen producers hold_entries paused_groups);
	# 55006: as two_phase begins, the apply worker starts anew.  The others are of the start of
	# this test, 57P01 where DROP DATABASE has sent the worker away, 55P03 where it was refused a lock.
	is(unexpected($sub, qw(55000 55006 55P03 0A000 42501 57P01)), '', "$name: the subscriber's log has no error");
	is_sql($sub, 'SELECT subenabled FROM pg_subscription', 't', "$name: the subscription is enabled");
	return;
}

# Runs lines of the manual's nth block of text: all, or the one of a number; answers what the last one did.
sub manual
{
	my ($n, $only) = @_;
	my @blocks = slurp_file("$ENV{IDEMQ_SOURCE}/doc/operations/logical-replication.md") =~ /^```text\n(.*?)^```/gms;
	my @lines = $blocks[$n] =~ /^(.*)$/gm;
	my $answer;

	foreach (defined $only ? $lines[$only] : @lines)
	{
		/^(publisher|subscriber)=# (.*);$/ or die "not a statement: $_";
		my ($node, $sql) = ($1 eq 'publisher' ? $pub : $sub, $2);

		$sql =~ s/host=publisher dbname=app/$pub->connstr . ' dbname=postgres'/e;
		$sql .= ' WITH (two_phase = on)' if $sql =~ /^CREATE SUBSCRIPTION/;
		$answer = sql($node, $sql);
	}
	return $answer;
}

# ---- The switch, without a subscription

sql($_, 'CREATE TABLE effects (key text, token bigint); CREATE ROLE worker') foreach $pub, $sub;
sql($sub, 'CREATE EXTENSION idemq');
is_sql($sub, $follows, 0, 'a database follows nobody');
is_sql($sub, 'SELECT idemq.take_over()', 'f', 'which has nothing to take over');
my $early = session($sub);
$early->query_safe("SELECT idemq.create_queue('early')");
$early->query_safe("BEGIN; SELECT idemq.follow()");
like(scalar $early->query('\set VERBOSITY sqlstate' . "\nSELECT idemq.enqueue('early', '1')") . $early->{stderr}, qr/55000/, 'the transaction that switches follows');
$early->{stderr} = '';
$early->query_safe('ROLLBACK');
like($early->query_safe("SELECT idemq.enqueue('early', '1')"), qr/accepted/, 'one that rolls back does not');
is_sql($sub, 'SELECT idemq.follow()', 't', 'follow()');
is_sql($sub, 'SELECT idemq.follow()', 'f', 'the second time it does nothing');
is_sql($sub, $follows, 1, 'check() says so');
like(sql($sub, 'SELECT idemq.why(min(id)) FROM idemq.jobs'), qr/^pending: this database has been following another database since /, 'why says so');
is_state($sub, 'SET ROLE worker; SELECT idemq.follow()', '42501', 'the owner\'s');
is_state($sub, 'SET ROLE worker; SELECT idemq.take_over()', '42501', 'both');
is_state($sub, "BEGIN; SELECT idemq.take_over(); PREPARE TRANSACTION 'x'", '0A000', 'cannot be prepared');
is_sql($sub, 'SELECT idemq.take_over()', 't', 'take_over()');
is_sql($sub, 'SELECT * FROM idemq.check()', '', 'and all is well');
like($early->query_safe("SELECT id FROM idemq.claim('early')"), qr/^\d+$/, 'a session goes on at once');

# An open transaction that has written keeps both waiting, and is not refused in the end.
$early->query_safe("BEGIN; SELECT idemq.enqueue('early', '2')");
my $switcher = session($sub);
$switcher->query_until(qr/sent/, "\\echo sent\nSELECT idemq.follow();\n");
wait_until($sub, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%follow()%'");
my $late = session($sub);
$late->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\nSELECT idemq.enqueue('early', '3');\n");
wait_until($sub, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%enqueue%'");
$early->query_safe('COMMIT');
like($switcher->query_safe('SELECT 1'), qr/1/, 'follow() waits for an open writer');
$late->query('SELECT 1');
like($late->{stderr}, qr/55000/, 'a call that looked before, and then waited for the lock, is refused');
leave($early, $switcher, $late);

# ---- Every function that writes

# name => a call that must be refused, or why it need not be.
my %calls = (
	(map { $_ => "SELECT * FROM idemq.$_('early')" } qw(claim pause resume purge redrive drop_queue alter_queue reap)),
	(map { $_ => "SELECT * FROM idemq.$_(1, 1)" } qw(heartbeat commit commit_and_claim try_commit fail release assert_current)),
	(map { $_ => "SELECT * FROM idemq.$_('{1}', '{1}')" } qw(heartbeat_many commit_many commit_many_and_claim fail_many release_many)),
	(map { $_ => "SELECT * FROM idemq.$_(1)" } qw(cancel retry claim_job commit_once revoke_lease)),
	(map { $_ => "SELECT idemq.$_('early', 'worker', 'claim')" } qw(grant_queue revoke_queue)),
	(map { $_ => "SELECT idemq.$_()" } qw(apply_retention advance_tokens)),
	create_queue => "SELECT idemq.create_queue('another')",
	ensure_handler => "SELECT idemq.ensure_handler('early', 'handled')",
	ensure_queue => "SELECT idemq.ensure_queue('early', lease => '2 h')",
	ensure_topic => "SELECT idemq.ensure_topic('another')",
	enqueue => "SELECT idemq.enqueue('early', '1')",
	enqueue_many => "SELECT * FROM idemq.enqueue_many('early', '{1}')",
	enqueue_sequenced => "SELECT idemq.enqueue_sequenced('early', 'p', 1, '1')",
	enqueue_graph => q{SELECT * FROM idemq.enqueue_graph('[{"name": "a", "queue": "early", "payload": 1}]')},
	forget_producer => "SELECT idemq.forget_producer('early', 'p')",
	enqueue_job => "CALL idemq.enqueue_job('early', '1')",
	hold_back => "SELECT idemq.hold_back(1, 1, '1 min')",
	commit_job => 'CALL idemq.commit_job(1, 1)',
	fail_job => 'CALL idemq.fail_job(1, 1)',
	claim_any => "SELECT * FROM idemq.claim_any('{early}')",
	checkpoint => "SELECT idemq.checkpoint(1, 1, '1')",
	add_parents => "SELECT * FROM idemq.add_parents(1, '{2}', 1, 1)",
	acquire => "SELECT idemq.acquire('early', 'k')",
	once => "SELECT idemq.once('s', 'k')",
	cancel_by_key => "SELECT idemq.cancel_by_key('early', 'k')",
	cancel_many => "SELECT * FROM idemq.cancel_many('{1}')",
	cancel_matching => "SELECT * FROM idemq.cancel_matching('early', kind => 'k')",
	record_details => "SELECT idemq.record_details('{1}', '{1}', ARRAY['{}'::jsonb])",
	report_worker => "SELECT idemq.report_worker(gen_random_uuid(), 'w', '{early}')",
	wait => "CALL idemq.wait('early', '0')",
	wait_any => "CALL idemq.wait_any('{early}', '0')",
	wait_for_room => "CALL idemq.wait_for_room('early', 1, '0')",
	schedule => "SELECT idemq.schedule('s', '0 0 1 1 *', 'early', '1')",
	unschedule => "SELECT idemq.unschedule('s')",
	pause_schedule => "SELECT idemq.pause_schedule('s')",
	resume_schedule => "SELECT idemq.resume_schedule('s')",
	tick => 'CALL idemq.tick()',
	run_schedule_now => "SELECT idemq.run_schedule_now('s')",
	retry_many => "SELECT * FROM idemq.retry_many('{1}')",
	reschedule => 'SELECT idemq.reschedule(1, now())',
	begin_step => "CALL idemq.begin_step(1, 1, 's', '{}', '1 min')",
	finish_step => "SELECT idemq.finish_step(1, 1, 's', '1')",
	refuse_step => "SELECT idemq.refuse_step(1, 1, 's', 'x')",
	await_event => "SELECT idemq.await_event(1, 1, 'e', '1 min')",
	send_event => "SELECT idemq.send_event('early', 'e')",
	create_topic => "SELECT idemq.create_topic('t')",
	drop_topic => "SELECT idemq.drop_topic('t')",
	grant_topic => "SELECT idemq.grant_topic('t', 'pg_monitor', 'bind')",
	revoke_topic => "SELECT idemq.revoke_topic('t', 'pg_monitor', 'bind')",
	bind_topic => "SELECT idemq.bind_topic('t.#', 'early')",
	unbind_topic => "SELECT idemq.unbind_topic('t.#', 'early')",
	publish => "SELECT idemq.publish('t', '1')",
	set_handler => "SELECT idemq.set_handler('early', 'handled(jsonb)')",
	drop_handler => "SELECT idemq.drop_handler('early')",
	fence => "INSERT INTO fenced VALUES (1, 1)",
	set_shard => 'SELECT idemq.set_shard(1, 8)',
	follow => 'the switch', take_over => 'the switch', retire => 'the switch',
	(map { $_ => 'it reads' }
		qw(validate result assert_shard why flow current_job check prometheus_text wait_result wait_results clock_timestamp)),
	hold_claimed => 'it locks what a claim has taken',
	recount => 'it writes shared memory alone', admit => 'it writes shared memory alone', advance_clock => 'it moves the test clock alone');
sql($sub, 'CREATE FUNCTION handled(payload jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS $$$$;
	CREATE TABLE fenced (job_id bigint, token bigint);
	CREATE TRIGGER t BEFORE INSERT ON fenced FOR EACH ROW EXECUTE FUNCTION idemq.fence()');
is_sql($sub, "SELECT string_agg(DISTINCT proname, ' ' ORDER BY proname) FROM pg_proc
	WHERE pronamespace = 'idemq'::regnamespace AND provolatile = 'v'", join(' ', sort keys %calls), 'no function is forgotten');
my $caller = session($sub);
$caller->query_safe('\set VERBOSITY verbose');

# What an error says, all of it.
sub refusal
{
	my ($call) = @_;

	$caller->query($call);
	my $error = $caller->{stderr};
	$caller->{stderr} = '';
	return $error;
}
my $before = rows($sub, 'jobs') . rows($sub, 'queues');
foreach (sort keys %calls)
{
	like(refusal($calls{$_}), qr/55000: this database follows another/, "refused: $_") if $calls{$_} =~ /^(?:SELECT|CALL|INSERT) /;
}
# Functions that idemq.tick() and the worker call.
foreach ("due_schedules()", "run_schedule('s')", "run_schedules('{s}', '{NULL}')", "schedule_failed('s', 'x')")
{
	like(refusal("SELECT idemq_internal.$_"), qr/55000: this database follows another/, "refused: $_");
}
leave($caller);
is(rows($sub, 'jobs') . rows($sub, 'queues'), $before, 'and nothing has changed');
is_state($sub, $_, '00000', "not refused: $_") foreach "CALL idemq.wait_result(" . sql($sub, 'SELECT min(id) FROM idemq.jobs') . ", '0')",
  'SELECT * FROM idemq.metrics', 'SELECT * FROM idemq.running_jobs', "SELECT idemq.admit('b', 1, '1 min')", 'SELECT idemq.validate(1, 1)';

# Copies of a follower follow nobody.
my $dump = "$PostgreSQL::Test::Utils::tmp_check/follower.dump";
run_command([ 'pg_dump', '-h', $sub->host, '-p', $sub->port, '-Fc', '-f', $dump, 'postgres' ]);
sql($sub, 'CREATE DATABASE copy');
command_ok([ 'pg_restore', '-e', '-h', $sub->host, '-p', $sub->port, '-d', 'copy', $dump ], 'a dump of a follower');
is_sql($sub, $follows, 0, 'is none', 'copy');
sql($sub, 'SELECT idemq.follow()', 'copy');
sql($sub, 'CREATE DATABASE duplicate TEMPLATE copy');
is_sql($sub, $follows, 0, 'a copy of a follower is none', 'duplicate');
is_sql($sub, $follows, 1, 'which it was made of', 'copy');
sql($sub, "DROP DATABASE $_") foreach qw(copy duplicate);
$sub->restart;
is_sql($sub, $follows, 1, 'a restart does not end it');
sql($sub, 'DROP TABLE fenced; DROP EXTENSION idemq; CREATE EXTENSION idemq');
is_sql($sub, $follows, 0, 'DROP EXTENSION does');
sql($sub, 'DROP EXTENSION idemq');

# ---- The publisher: everything at once, and a switch of its own

sql($pub, "SELECT idemq.follow(); SELECT idemq.take_over();
	-- meant to expire
	SELECT idemq.alter_queue('q', lease => '1 s', max_attempts => 50, retry_base => '1 ms', retry_max => '5 ms');
	SELECT idemq.create_queue('effects', lease => '1 h');
	SELECT idemq.create_queue('limited', max_running => 2, lease => '1 h');
	SELECT idemq.create_queue('dead');
	SELECT idemq.create_queue('mortal', max_attempts => 1, dead_letter_queue => 'dead');
	SELECT idemq.grant_queue('effects', 'worker', 'claim');
	SELECT idemq.once('s', 'k');
	CALL idemq.tick(); SELECT idemq.schedule('s', '0 0 1 1 *', 'q', '1')");
# As after a switch-over and back: the publisher knows the subscriber, as one that has taken over.
sql($pub, 'INSERT INTO idemq_internal.followers VALUES (' . sql($sub, "SELECT system_identifier || ', ' || oid FROM pg_control_system(), pg_database WHERE datname = 'postgres'") . ', now(), now())');
manual(0);
is_sql($sub, "SELECT count(*) FROM idemq_internal.followers WHERE taken_over_at IS NULL AND $own", 1, 'an enabled subscription switches it on');
wait_until($sub, "SELECT NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's'))");
is_sql($sub, 'SELECT count(*), count(taken_over_at) FROM idemq_internal.followers', '1|0', 'the publisher\'s rows do not come along');
sql($pub, 'UPDATE idemq_internal.followers SET since = now()');
is_state($sub, 'SELECT idemq.take_over()', '55000', 'no taking over while the subscription is enabled');
sql($pub, 'DELETE FROM idemq_internal.followers');
all_applied();
is_sql($sub, "SELECT count(*) FROM idemq_internal.followers WHERE taken_over_at IS NULL AND $own", 1, 'nor do their ends');
# The worker has to wait for whoever writes jobs, and is refused: it comes again.
is_soon($sub, 'SELECT pid > 0, stuck_for, lag FROM idemq.background_worker', 't||', 'its worker has nothing to do');
is_soon($sub, "SELECT count(*) FROM idemq.check() WHERE invariant = 'worker.stuck'", '0', 'and is not stuck');
my $writer = session($sub);
my $log = log_end($sub);
$writer->query_safe('BEGIN; LOCK TABLE idemq.jobs IN ROW EXCLUSIVE MODE');
sql($pub, 'TRUNCATE idemq_internal.followers');
all_applied();
is_sql($sub, $follows, 1, 'it follows even after a TRUNCATE of the publisher');
wait_logged($sub, qr/idemq worker, maintenance task "follow"/, $log);
$writer->query_safe('COMMIT');
leave($writer);
is_soon($sub, "SELECT count(*) = 1 FROM idemq_internal.followers WHERE taken_over_at IS NULL AND $own", 'the worker writes our own again');
# It is stuck if it does not move for 2 s while there is something to do: they are meant to expire.
wait_until($sub, "SELECT state = 'idle' AND state_change < clock_timestamp() - interval '2 s' FROM pg_stat_activity WHERE backend_type = 'idemq worker'");
is_sql($sub, "SELECT string_agg(invariant, ' ') FROM idemq.check()", 'follows', 'and sleeps, for as long as there is, which is not stuck');

# Only heartbeats keep these two jobs: their rows will say that their leases have expired.
my ($kept, $zombie) = (session($pub), session($pub));
$kept->query_safe("SELECT idemq.claim_job((SELECT id FROM idemq.enqueue('effects', '1', key => 'kept')), lease => '2 min')");
$zombie->query_safe("SELECT idemq.claim_job((SELECT id FROM idemq.enqueue('effects', '1', key => 'zombie')), lease => '1 min')");
my @kept = split /\|/, sql($pub, "SELECT id, token FROM idemq.jobs WHERE key = 'kept'");
my @zombie = split /\|/, sql($pub, "SELECT id, token FROM idemq.jobs WHERE key = 'zombie'");
# A queue that is held back.
sql($pub, "SELECT idemq.create_queue('holding', lease => '1 day', max_hold_back => '1 day'); SELECT idemq.enqueue('holding', to_jsonb(n)) FROM generate_series(1, 2) n");
is_sql($pub, "SELECT idemq.hold_back(id, token, '1 day') > now() FROM idemq.claim('holding')", 't', 'a hold');
# A full queue, and a job above its limit.
sql($pub, "SELECT idemq.create_queue('small', max_unfinished => 1), idemq.create_topic('space'); SELECT idemq.enqueue('small', '1'), idemq.bind_topic('space.#', 'small')");
sql($pub, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT idemq.publish('space.a', '2'); COMMIT");
# A queue with a paused group.
sql($pub, "SELECT idemq.create_queue('partly', lease => '1 day'), idemq.pause('partly', group_key => 'out'); SELECT idemq.enqueue('partly', to_jsonb(name), group_key => name) FROM unnest('{in,out}'::text[]) name");
is_sql($pub, "SELECT idemq.heartbeat($kept[0], $kept[1], '1 h'), idemq.heartbeat($zombie[0], $zombie[1], '1 h')", 'current|current', 'two workers heartbeat');

my $reader = session($sub);
$reader->query_safe("SELECT idemq.queue_id('q')");
# As the worker would have done: reaped, promoted, copied to the dead-letter queue, ticked.
my @scripts = (
  "SELECT idemq.enqueue('q', '1', group_key => 'g' || (random() * 5)::int, delay => random() * interval '50 ms')\n;\n"    # meant to expire
  # meant to expire
  . "SELECT count(*) FROM idemq.claim('q', 5, lease => '20 ms');\n",
  "SELECT count(*) FROM idemq.enqueue('limited', '1');\nSELECT idemq.try_commit(id, token) FROM idemq.claim('limited');\n",
  "SELECT count(*) FROM idemq.enqueue('mortal', '1');\nSELECT idemq.fail(id, token, 'no') FROM idemq.claim('mortal');\n",
  "BEGIN;\nWITH j AS MATERIALIZED (SELECT * FROM idemq.claim('q', 2)) SELECT idemq.try_commit(id, token) FROM j;\nEND;\n");
my $enough = "SELECT (SELECT count(*) > 10 FROM idemq.attempts WHERE outcome = 'expired') AND (SELECT count(*) > 10 FROM idemq.jobs WHERE queue_id = idemq.queue_id('dead'))";
my $complaints = '';
my @load = map { clients($pub, $_, '-c', 2, '-t', 60) } @scripts;

sql($pub, "SELECT idemq.create_queue('later'); SELECT idemq.pause('dead')");
all_applied();
like($reader->query_safe("SELECT idemq.queue_id('later')"), qr/^\d+$/, 'a session of the subscriber knows a queue that is new on the publisher');
is_sql($sub, "SELECT scope, until > now() FROM idemq.holds WHERE queue = 'holding'", 'queue|t', 'the subscriber shows the hold');
is_sql($sub, "SELECT over_limit FROM idemq.topic_bindings WHERE queue = 'small'", '1', 'the subscriber has the count of jobs above the limit of a full queue');
is_sql($sub, "SELECT unfinished, max_unfinished FROM idemq.metrics WHERE queue = 'small'", '|1', 'and the limit, but has not counted the jobs');
is_sql($sub, 'SELECT queue, group_key FROM idemq.paused_group_list', 'partly|out', 'and the paused group');
is_state($sub, "CALL idemq.wait_for_room('small', 1, '1 h')", '55000', 'no session can wait for room before take_over');
is_state($sub, $_, '55000', "refused before take_over: $_") foreach "SELECT idemq.pause('partly', group_key => 'in')", "SELECT idemq.resume('partly', 'out')";
until_true('leases that expired, and dead jobs', sub {
	$complaints .= $_->() foreach @load;
	@load = sql($pub, $enough) eq 't' ? () : map { clients($pub, $_, '-c', 2, '-t', 60) } @scripts;
	return !@load;
});
is($complaints, '', 'the publisher\'s clients had no error');
sql($pub, "SELECT idemq.enqueue_sequenced('q', 'partition', n, '1') FROM generate_series(1, 3) n");
sql($pub, "UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '1 year'; CALL idemq.tick();
	DELETE FROM idemq.jobs WHERE id IN (SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id('limited') LIMIT 3)");
# What is left over is running, and will be reaped: then both sides stand still.
wait_until($pub, "SELECT count(*) = 0 FROM idemq.jobs WHERE status = 'running' AND queue_id = idemq.queue_id('q')");
sql($pub, "SELECT idemq.pause('q')");
heads_are_ready();
# The zombie's lease is so short that it ends at once where its heartbeats are not known.
sql($pub, "UPDATE idemq.jobs SET claimed_at = claimed_at - interval '5 min', deadline = deadline - interval '5 min' WHERE id = $kept[0];
	-- meant to expire
	UPDATE idemq.jobs SET claimed_at = claimed_at - interval '5 min', deadline = claimed_at - interval '5 min' + interval '1 ms' WHERE id = $zombie[0]");
all_applied();
# Something that has the subscriber's worker look after all its queues.
sql($pub, "SELECT idemq.alter_queue('later', lease => '2 h')");
same_rows('with load');
is_sql($sub, 'SELECT queue, pending + blocked + running + retrying + completed + dead + cancelled AS n FROM idemq.metrics ORDER BY 1',
	sql($pub, 'SELECT q.name, count(j.id) FROM idemq.queues q LEFT JOIN idemq.jobs j USING (queue_id) GROUP BY 1 ORDER BY 1'), 'the subscriber\'s metrics count them');

# ---- Prepared transactions, which the apply worker ends past our hooks

sql($sub, 'SELECT idemq.recount()');
my $waiter = waiter($sub, "CALL idemq.wait_result($kept[0], '1 h')");

sql($pub, "BEGIN; SELECT count(*) FROM idemq.enqueue_many('later', array_fill('1'::jsonb, '{20}'), group_keys => array_fill('g'::text, '{20}'));
	SELECT count(*) FROM idemq.enqueue_many('later', array_fill('1'::jsonb, '{20}'));
	PREPARE TRANSACTION 'two'");
all_applied();
wait_until($sub, 'SELECT count(*) = 1 FROM pg_prepared_xacts');
sql($sub, 'ALTER SUBSCRIPTION everything DISABLE');
is_state($sub, 'SELECT idemq.take_over()', '55006', 'no taking over while a prepared transaction has written jobs');
is_sql($sub, $follows, 1, 'a subscription that is disabled does not end it');
sql($sub, 'ALTER SUBSCRIPTION everything ENABLE');
sql($pub, "COMMIT PREPARED 'two'");
sql($pub, "BEGIN; SELECT idemq.enqueue('later', '1'); PREPARE TRANSACTION 'three'; ROLLBACK PREPARED 'three'");
heads_are_ready();
same_rows('after COMMIT PREPARED');
sql($sub, "SELECT pg_cancel_backend($waiter->{pid})");
is(answer($waiter), '57014', 'a session waits for a result');
leave($waiter->{session});

# ---- Switching over, while workers run

my $effect = "BEGIN;\nWITH j AS MATERIALIZED (SELECT * FROM idemq.claim('effects', 3)),\n"
  . "d AS (SELECT j.key, j.token, idemq.try_commit(j.id, j.token) AS outcome FROM j)\n"
  . "INSERT INTO effects SELECT key, token FROM d WHERE outcome = 'committed';\nEND;\n";
sql($pub, "SELECT count(*) FROM idemq.enqueue_many('effects', array_fill('1'::jsonb, '{300}'), keys => (SELECT array_agg('e' || i) FROM generate_series(1, 300) i))");
is(clients($pub, $effect, '-c', 4, '-t', 12)->(), '', 'workers on the publisher');
all_applied();
cmp_ok(sql($sub, 'SELECT count(*) FROM effects'), '==', 144, 'half of the effects came');

# Sequences that are replicated, since 19: ids_since is of the publisher's run then, and does not hold here.
my $sequences = $sub->pg_version >= 19;
my $positions = 'SELECT j.last_value, a.last_value, i.last_value FROM idemq.jobs_id_seq j, idemq.audit_id_seq a, idemq.ids_since i';
if ($sequences)
{
	sql($pub, 'CREATE PUBLICATION sequences FOR ALL SEQUENCES');
	sql($sub, "CREATE SUBSCRIPTION sequences CONNECTION '${\$pub->connstr} dbname=postgres' PUBLICATION sequences");
	wait_until($sub, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel r JOIN pg_class c ON c.oid = srrelid WHERE relkind = 'S'");
	sql($pub, "SELECT idemq.enqueue('mortal', '1')");
	isnt(sql($sub, $positions), sql($pub, $positions), 'sequences come when they are asked for');
	sql($sub, 'ALTER SUBSCRIPTION sequences REFRESH SEQUENCES');
	wait_until($sub, $positions, sql($pub, $positions));
	all_applied();
}
manual(1, 0);
# These are lost: ids and tokens that never came.
my $lost_id = sql($pub, "SELECT max(id) FROM idemq.enqueue_many('later', array_fill('1'::jsonb, '{1000}'))");
my $lost_token = sql($pub, "SELECT max(token) FROM idemq.claim('later', 100)");
my $lost_queue = sql($pub, "SELECT idemq.create_queue('lost')");
is(manual(1, 1), 't', 'the subscriber takes over');
is_sql($sub, 'SELECT idemq.take_over()', 'f', 'once');
is_sql($sub, $follows, 0, 'and follows no more');
is_sql($sub, "SELECT count(*) FROM idemq.claim('holding')", 0, 'a queue that was held back is held back here');
is_state($sub, "SELECT idemq.enqueue('small', '3')", 'IQ007', 'after take_over, a queue that was full is still full');
is_sql($sub, "SELECT count(idemq.cancel(id)) FROM idemq.job_list WHERE queue = 'small'; SELECT outcome FROM idemq.enqueue('small', '3')", "2\naccepted", 'until jobs have finished');
is_sql($sub, "SELECT string_agg(group_key, ' ') FROM idemq.claim('partly', 10)", 'in', 'a group that was paused is paused here');
is_sql($sub, "SELECT idemq.resume('partly', 'out'); SELECT string_agg(group_key, ' ') FROM idemq.claim('partly', 10)", "\nout", 'until it is resumed');
is_soon($sub, "SELECT count(*) = 1 FROM idemq.running_jobs, idemq_internal.followers WHERE job_id = $kept[0] AND deadline > taken_over_at + interval '119 s' AND $own",
	'a lease lasts its length from the switch, not from the start of the server');
is_sql($sub, "SELECT idemq.heartbeat($kept[0], $kept[1])", 'current', 'a worker goes on here with its token, though its row\'s deadline is long past');
is_sql($sub, "SELECT idemq.commit($kept[0], $kept[1])", 'committed', 'and commits');
cmp_ok(sql($sub, "SELECT id FROM idemq.enqueue('later', '1')"), '>', $lost_id, 'ids go on above those that were lost');
cmp_ok(sql($sub, "SELECT token FROM idemq.claim('later', lease => '1 h')"), '>', $lost_token, 'tokens as well');
cmp_ok(sql($sub, "SELECT idemq.create_queue('other')"), '>', sql($sub, "SELECT queue_id FROM idemq.queues WHERE name = 'later'"), 'a new queue has a new id');
is_sql($sub, 'SELECT queue FROM idemq.audit ORDER BY id DESC LIMIT 1', 'other', 'and its row of idemq.audit as well');
is_sql($sub, "SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relnamespace = 'idemq'::regnamespace AND relkind = 'S'",
	'audit_id_seq ids_since jobs_id_seq queues_queue_id_seq', 'there is no sequence more');
if ($sequences)
{
	my $session = session($sub);
	my $last = $session->query_safe("SELECT id FROM idemq.enqueue('other', '1')");

	# By mistake, after the switch: all are set back to where the publisher is.
	sql($sub, 'ALTER SUBSCRIPTION sequences REFRESH SEQUENCES');
	wait_until($sub, 'SELECT last_value FROM idemq.ids_since', sql($pub, 'SELECT last_value FROM idemq.ids_since'));
	wait_until($sub, "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel r JOIN pg_class c ON c.oid = srrelid WHERE relkind = 'S'");
	cmp_ok($session->query_safe("SELECT id FROM idemq.enqueue('other', '1')"), '>', $last, 'ids go on above those that were given here, in a session that is older');
	cmp_ok(sql($sub, "SELECT id FROM idemq.enqueue('other', '1')"), '>', $last, 'and in a new one');
	sql($sub, 'ALTER SUBSCRIPTION sequences DISABLE; ALTER SUBSCRIPTION sequences SET (slot_name = NONE); DROP SUBSCRIPTION sequences');
	leave($session);
}
is_sql($sub, "SELECT count(*) FROM idemq.claim('q')", 0, 'a pause that came holds');
is_sql($sub, "SELECT count(*) FROM idemq.claim('later', 100, lease => '1 h') WHERE group_key IS NULL", 20, 'what the apply worker committed past our hooks is found: 20, less 1, and the new one');
is_soon($sub, "SELECT count(*) = 1 FROM idemq.jobs WHERE group_key = 'g' AND status IN ('pending', 'running')", 'and its group has its head');

# The zombie: its lease ends here, another worker has the job, and its effect comes too late.
is_soon($sub, "SELECT count(*) = 1 FROM idemq.attempts WHERE job_id = $zombie[0] AND outcome = 'expired'", 'the lease of a worker that stayed behind ends');
sql($sub, 'CREATE TABLE receiver (key text PRIMARY KEY, token bigint)');
sub receive
{
	return sql($sub, "INSERT INTO receiver AS r VALUES ('zombie', $_[0]) ON CONFLICT (key) DO UPDATE SET token = excluded.token
		WHERE excluded.token > r.token RETURNING 'taken'");
}
my $successor = sql($sub, "SET ROLE worker; SELECT token FROM idemq.claim_job($zombie[0], lease => '1 h')");
cmp_ok($successor, '>', $zombie[1], 'a role of a replicated grant claims the job, with a greater token');
is(receive($successor), 'taken', 'its effect');
like($zombie->query_safe("SELECT idemq.commit($zombie[0], $zombie[1])"), qr/committed/, 'nobody tells the zombie on the old publisher');
is(receive($zombie[1]), '', 'but the receiver refuses its token');
is_sql($sub, "SELECT idemq.commit($zombie[0], $successor)", 'committed', 'the job is done once');

is(clients($sub, $effect, '-c', 4, '-t', 20)->(), '', 'workers on the subscriber');
is_sql($sub, 'SELECT count(*), count(DISTINCT key) FROM effects', '300|300', 'each effect once');
is_sql($sub, 'CALL idemq.tick(); SELECT count(*) FROM (SELECT key FROM idemq.jobs WHERE key LIKE \'%s%\' AND headers ? \'tick\' GROUP BY key HAVING count(*) > 1) d', 0, 'no tick twice');
is_sql($sub, 'SELECT idemq.resume(\'q\')', '', 'the queue goes on');
is(clients($sub, "SELECT idemq.try_commit(id, token) FROM idemq.claim('q', 20);\n", '-c', 2, '-t', 200)->(), '', 'with its groups');
wait_until($sub, "SELECT count(*) = 0 FROM idemq.check()");
is_sql($sub, "SELECT sum(pending + blocked + running + retrying + completed + dead + cancelled) = (SELECT count(*) FROM idemq.jobs) FROM idemq.metrics", 't', 'the gauges are right');
sql($sub, 'ALTER SUBSCRIPTION everything SET (slot_name = NONE); DROP SUBSCRIPTION everything');
is_sql($sub, $follows, 0, 'without its subscription');
is(unexpected($sub, qw(55000 55006 55P03 57014 57P01 42501 0A000 IQ007)), '', 'no other error in its log');

leave($kept, $zombie, $reader);
$_->stop foreach $pub, $sub;
done_testing();
