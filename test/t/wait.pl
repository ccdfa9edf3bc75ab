# CALL idemq.wait, wait_any and wait_result: who sleeps holds nothing, and is woken
# by whatever makes work, with a background worker and without.
#
# at least 153 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('wait', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', max_connections => 40);
my $call = "CALL idemq.wait('q', '10 h')";

# A fresh queue.
sub reset_queue
{
	sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
		SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0);
		DROP TABLE IF EXISTS held; CREATE TABLE held (id bigint, token bigint)");
}

my $claim = "INSERT INTO held SELECT id, token FROM idemq.claim('q')";

# What makes work: before somebody sleeps, then; the time that goes by in the end.
my @wakers = (
	[ 'enqueue', '', "SELECT idemq.enqueue('q', '1')" ],
	[ 'enqueue with a key', '', "SELECT idemq.enqueue('q', '1', key => 'k')" ],
	[ 'enqueue_many', '', "SELECT idemq.enqueue_many('q', '{1,2}')" ],
	# meant to expire
	[ 'a delayed job', '', "SELECT idemq.enqueue('q', '1', delay => '50 ms')" ],
	[ 'a delayed job, later', '', "SELECT idemq.enqueue('q', '1', delay => '20 min')", '21 min' ],
	[ 'a delayed job that was there before', "SELECT idemq.enqueue('q', '1', delay => '20 min')", '', '21 min' ],
	[ 'a delayed job enqueued behind one that is later', "SELECT idemq.enqueue('q', '1', delay => '1 h')",
		"SELECT idemq.enqueue('q', '2', delay => '20 min', priority => 9)", '21 min' ],
	# meant to expire
	[ 'an enqueue that was due, once it commits', '', "BEGIN; SELECT idemq.enqueue('q', '1', delay => '1 ms');
		SELECT pg_sleep(0.01); COMMIT" ],
	[ 'fail', "SELECT idemq.enqueue('q', '1'); $claim", "SELECT idemq.fail(id, token, retry_in => '0') FROM held" ],
	[ 'fail, retried later', "SELECT idemq.enqueue('q', '1'); $claim",
		"SELECT idemq.fail(id, token, retry_in => '20 min') FROM held", '21 min' ],
	[ 'release', "SELECT idemq.enqueue('q', '1'); $claim", 'SELECT idemq.release(id, token) FROM held' ],
	[ 'a claim that is rolled back', "SELECT idemq.enqueue('q', '1'); BEGIN; $claim; ROLLBACK; $claim",
		'BEGIN; SELECT idemq.release(id, token) FROM held; SAVEPOINT a; ' .
		  "SELECT id FROM idemq.claim('q'); ROLLBACK TO a; COMMIT" ],
	[ 'an expired lease', "SELECT idemq.enqueue('q', '1'); $claim",
		# meant to expire
		"SELECT idemq.heartbeat(id, token, '50 ms') FROM held" ],
	[ 'an expired lease, later', "SELECT idemq.enqueue('q', '1'); $claim", '', '61 min' ],
	[ 'idemq.reap', "SELECT idemq.enqueue('q', '1'); $claim",
		# meant to expire
		"SELECT idemq.heartbeat(id, token, '1 ms') FROM held; SELECT pg_sleep(0.01); SELECT idemq.reap()" ],
	[ 'redrive', "SELECT idemq.enqueue('q', '1'); $claim; SELECT idemq.fail(id, token, permanent => true) FROM held",
		"SELECT idemq.redrive('q')" ],
	[ 'retry', "SELECT idemq.enqueue('q', '1', delay => '1 h')", 'SELECT idemq.retry(id) FROM idemq.jobs' ],
	[ 'replace', "SELECT idemq.enqueue('q', '1', key => 'k', delay => '1 h')",
		"SELECT idemq.enqueue('q', '2', key => 'k', on_duplicate => 'replace')" ],
	[ 'COMMIT PREPARED of an enqueue', "BEGIN; SELECT idemq.enqueue('q', '1'); PREPARE TRANSACTION 'p'",
		"COMMIT PREPARED 'p'" ],
	[ 'ROLLBACK PREPARED of a cancel', "SELECT idemq.enqueue('q', '1'); BEGIN; SELECT idemq.cancel(id) FROM idemq.jobs; PREPARE TRANSACTION 'p'",
		"ROLLBACK PREPARED 'p'" ],
	[ 'resume', "SELECT idemq.pause('q'); SELECT idemq.enqueue('q', '1')", "SELECT idemq.resume('q')" ],
	[ 'a resume by hand', "SELECT idemq.pause('q'); SELECT idemq.enqueue('q', '1')",
		'UPDATE idemq.queues SET paused = false' ],
	[ 'a hand-made INSERT', '', "INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
		SELECT queue_id, now(), 4, 3, 'pending', now(), '1' FROM idemq.queues" ],
	[ 'a hand-made UPDATE', "SELECT idemq.enqueue('q', '1', delay => '1 h')", 'UPDATE idemq.jobs SET ready_at = now()' ],
	[ 'a job moved here by hand', "SELECT idemq.create_queue('elsewhere'); SELECT idemq.enqueue('elsewhere', '1')",
		"UPDATE idemq.jobs SET queue_id = idemq.queue_id('q')" ],
	[ 'a row lock that ends', "SELECT idemq.enqueue('q', '1'); $claim",
		'BEGIN; SELECT idemq.release(id, token) FROM held; COMMIT; BEGIN; SELECT FROM idemq.jobs FOR UPDATE; ROLLBACK' ],
	[ 'an enqueue after a TRUNCATE', "SELECT idemq.enqueue('q', '1', delay => '1 h')",
		"TRUNCATE idemq.jobs; SELECT idemq.enqueue('q', '1')" ],
);

sub check_wakers
{
	my ($with) = @_;
	my $sleeping = session($node);

	foreach my $waker (@wakers)
	{
		my ($name, $before, $then, $later) = @$waker;

		reset_queue();
		sql($node, $before) if $before ne '';
		my $waiter = waiter($node, $call, $sleeping);
		sql($node, $then) if $then ne '';
		advance($node, $later) if $later;
		is(answer($waiter), 't', "$with: $name");
	}
	leave($sleeping);

	# A session's end gives back what it had attached.
	reset_queue();
	sql($node, "SELECT idemq.enqueue('q', '1')");
	my $worker = session($node);
	$worker->query_safe("SELECT id FROM idemq.claim('q', attach => true)");
	my $waiter = waiter($node, $call);
	leave($worker);
	is(answer($waiter), 't', "$with: the end of a session with an attached lease");
	leave($waiter->{session});

	# What makes no work.
	reset_queue();
	is_sql($node, "CALL idemq.wait('q', '0')", 'f', "$with: timeout 0 of an empty queue");
	is_sql($node, "CALL idemq.wait('q', '50 ms')", 'f', "$with: a timeout"); # meant to expire
	my $idle = waiter($node, "CALL idemq.wait('q', '20 min')");
	sql($node, "BEGIN; SELECT idemq.enqueue('q', '1'); ROLLBACK; SELECT idemq.enqueue('q', '1', delay => '1 h');
		SELECT idemq.pause('q'); SELECT idemq.enqueue('q', '1')");
	is_sql($node, "SELECT state FROM pg_stat_activity WHERE pid = $idle->{pid}", 'active', "$with: it sleeps on");
	advance($node, '21 min');
	is(answer($idle), 'f', "$with: rollback, a job that is not due, a queue that is paused");
	sql($node, "SELECT idemq.resume('q')");
	is_sql($node, "CALL idemq.wait('q', '0')", 't', "$with: timeout 0 of a queue with work");
	is_sql($node, $call, 't', "$with: no sleep where there is work");
	leave($idle->{session});
}

check_wakers('with a worker');

# Asleep: no snapshot, no transaction id, no lock but the one every session has.
reset_queue();
sql($node, 'CREATE TABLE t AS SELECT generate_series(1, 1000) AS n; CREATE TABLE wanted ()');
my $state = "SELECT backend_xmin IS NULL, backend_xid IS NULL, (SELECT string_agg(locktype, ' ')
	FROM pg_locks WHERE pg_locks.pid = a.pid) FROM pg_stat_activity a WHERE pid = ";
my %ways = (
	'by itself' => $call,
	'wait_any' => "CALL idemq.wait_any('{q,q}', '10 h')",
	'REPEATABLE READ' => "SET default_transaction_isolation = 'repeatable read'; $call",
	'SERIALIZABLE' => "SET default_transaction_isolation = 'serializable'; $call",
	'in DO' => "DO 'DECLARE r bool; BEGIN PERFORM count(*) FROM t; $call; END'" =~ s/'q', '10 h'/''q'', ''10 h'', r/r,
	'in a procedure' => "CREATE PROCEDURE p(INOUT r bool) LANGUAGE plpgsql AS \$\$BEGIN
		CALL idemq.wait('q', '10 h', r); END\$\$; /* CALL idemq.wait */ CALL p(NULL)");
foreach my $way (sort keys %ways)
{
	sql($node, 'TRUNCATE t; INSERT INTO t SELECT generate_series(1, 1000); VACUUM t');
	my $waiter = waiter($node, $ways{$way});
	is_sql($node, "$state $waiter->{pid}", 't|t|virtualxid', "$way: a waiter holds nothing");
	sql($node, 'DELETE FROM t');
	# Not in the way of VACUUM: others' transactions of before, as of a worker in the middle of a task.
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AND pid NOT IN (pg_backend_pid(), $waiter->{pid})");
	sql($node, 'VACUUM t');
	is_sql($node, "SELECT pg_relation_size('t')", 0, "$way: VACUUM removes what dies meanwhile");
	is_state($node, 'SET statement_timeout = \'60 s\'; CREATE INDEX CONCURRENTLY extra ON idemq.jobs (enqueued_at)',
		'00000', "$way: CREATE INDEX CONCURRENTLY goes on");
	sql($node, "DROP INDEX idemq.extra; SELECT idemq.enqueue('q', '1')");
	is(answer($waiter), $way eq 'in DO' ? '' : 't', "$way: woken");
	sql($node, 'TRUNCATE idemq.jobs');
	leave($waiter->{session});
}

# Where it cannot end a transaction.
sql($node, "CREATE FUNCTION f() RETURNS bool LANGUAGE plpgsql AS
	\$\$DECLARE r bool; BEGIN CALL idemq.wait('q', '0', r); RETURN r; END\$\$");
my ($out, $err);
$node->psql('postgres', "BEGIN; CALL idemq.wait('q')", stderr => \$err);
like($err, qr/cannot run inside a transaction block.*turn on autocommit/s, 'BEGIN: the hint');
is_state($node, $_, '2D000', $_) foreach ("BEGIN; CALL idemq.wait('q')", "BEGIN; CALL idemq.wait_any('{q}')",
	'BEGIN; CALL idemq.wait_result(1)', 'SELECT f()',
	'DO \'DECLARE r bool; BEGIN CALL idemq.wait(\'\'q\'\', \'\'0\'\', r); EXCEPTION WHEN division_by_zero THEN NULL; END\'');

# Arguments.
is_state($node, "CALL idemq.wait(NULL)", '22004', 'no queue');
is_state($node, "CALL idemq.wait('q', NULL)", '22004', 'no timeout');
is_state($node, "CALL idemq.wait('q', '-1 s')", '22023', 'a timeout below 0');
is_state($node, "CALL idemq.wait('nobody')", 'IQ005', 'no such queue');
is_state($node, "CALL idemq.wait('q', 'infinity')", $node->pg_version < 17 ? '22007' : '22023', 'no interval, or one that is too long');
is_state($node, "CALL idemq.wait_any('{}')", '22023', 'wait_any: no queues');
is_state($node, "CALL idemq.wait_any(NULL)", '22004', 'wait_any: NULL');
is_state($node, "CALL idemq.wait_any('{q,NULL}')", '22004', 'wait_any: a NULL among them');
is_state($node, "CALL idemq.wait_any('{q,nobody}', '10 h')", 'IQ005', 'wait_any: one that does not exist');

# wait_any: the first with work; a queue named twice; woken by each of them.
sql($node, "SELECT idemq.create_queue('r'); SELECT idemq.create_queue('s')");
foreach my $queue (qw(q r s))
{
	my $waiter = waiter($node, "CALL idemq.wait_any('{q,r,q,s}', '10 h')");
	sql($node, "SELECT idemq.enqueue('$queue', '1')");
	is(answer($waiter), 't', "wait_any: woken by $queue");
	is_sql($node, "CALL idemq.wait_any('{q,r,s}', '10 h')", 't', 'wait_any: one of them has work');
	is_sql($node, "SELECT queue FROM idemq.claim_any('{q,r,s}')", $queue, 'and claim_any gets it');
	leave($waiter->{session});
}

# A row that foreign keys refer to is held for claims by nobody: not while they are
# checked, by one or by two, nor afterwards.
reset_queue();
sql($node, "CREATE TABLE refers (id bigint REFERENCES idemq.jobs); SELECT idemq.enqueue('q', '1')");
my @referrers = map { session($node) } 1 .. 2;
foreach my $referrer (@referrers)
{
	$referrer->query_safe('BEGIN; INSERT INTO refers SELECT id FROM idemq.jobs');
	is_sql($node, "CALL idemq.wait('q', '0')", 't', 'a foreign key does not hold a job');
}
is_sql($node, "BEGIN; SELECT attempt FROM idemq.claim('q'); ROLLBACK", 1, 'and a claim takes it');
$_->query_safe('ROLLBACK') foreach @referrers;
is_sql($node, "CALL idemq.wait('q', '0')", 't', 'nor do those that are over');
$_->query_safe('BEGIN; SELECT id FROM idemq.jobs FOR SHARE') foreach @referrers;
is_sql($node, "CALL idemq.wait('q', '0')", 'f', 'FOR SHARE of two does');
$_->query_safe('ROLLBACK') foreach @referrers;
is_sql($node, "CALL idemq.wait('q', '0')", 't', 'until they are over');
leave(@referrers);
sql($node, 'DROP TABLE refers');
reset_queue();

# Errors while it sleeps.
my $waiter = waiter($node, $call);
sql($node, "SELECT idemq.drop_queue('q', force => true)");
is(answer($waiter), 'IQ005', 'the queue is dropped');
reset_queue();
sql($node, "CREATE ROLE w LOGIN; SELECT idemq.grant_queue('q', 'w', 'claim')");
waiter($node, "SET ROLE w; $call", $waiter->{session});
sql($node, "SELECT idemq.revoke_queue('q', 'w', 'claim')");
is(answer($waiter), '42501', 'the privilege is revoked');
is_state($node, "SET ROLE w; $call", '42501', 'no privilege to begin with');
sql($node, "SELECT idemq.grant_queue('q', 'w', 'enqueue')");
is_state($node, "SET ROLE w; $call", '42501', 'enqueue is not the privilege');
$waiter->{session}->query_safe('RESET ROLE');
waiter($node, $call, $waiter->{session});
sql($node, "SELECT pg_cancel_backend($waiter->{pid})");
is(answer($waiter), '57014', 'cancel');
ends_in_time($node, $call, 'f', 'it ends before statement_timeout');
waiter($node, $call, $waiter->{session});
sql($node, "SELECT pg_terminate_backend($waiter->{pid})");
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $waiter->{pid}"), 'terminate');
eval { leave($waiter->{session}) };

# report_worker ends the waits of sessions of its login role, and only these.
reset_queue();
sql($node, "SELECT idemq.create_queue('r'); SELECT idemq.enqueue('q', '1', delay => '10 h') FROM generate_series(1, 2)");
sql($node, "CREATE ROLE other LOGIN; SELECT idemq.grant_queue('q', 'other', 'claim'), idemq.grant_queue('r', 'other', 'claim')");
my $reporter = session($node);
sub end_waits
{
	return $reporter->query_safe('SELECT idemq.report_worker(gen_random_uuid(), \'w\', \'{q}\', end_waits => \'{' . join(',', @_) . '}\')');
}
my ($one, $two) = split /\n/, $node->safe_psql('postgres', 'SELECT id FROM idemq.jobs ORDER BY id');
my %early = (
	wait => [ $call, 'f' ],
	wait_any => [ "CALL idemq.wait_any('{r,q}', '10 h')", 'f' ],
	wait_result => [ "CALL idemq.wait_result($one, '10 h')", 'pending|' ],
	wait_results => [ "CALL idemq.wait_results('{$one,$two}', '10 h')", '{pending,pending}|{NULL,NULL}' ],
	'a login role that has become another' => [ "SET ROLE other; $call", 'f' ]);
foreach my $name (sort keys %early)
{
	my ($statement, $answer) = @{ $early{$name} };
	my $asleep = waiter($node, $statement);

	is(end_waits($asleep->{pid}), 't', "$name: its end is asked for");
	is(answer($asleep), $answer, 'and it returns as after its timeout');
	leave($asleep->{session});
}
my $foreign = session($node, undef, extra_params => [ '-U', 'other' ]);
$foreign = waiter($node, $call, $foreign);
$waiter = session($node);
my $pid = $waiter->query_safe('SELECT pg_backend_pid()');
end_waits($foreign->{pid}, $pid, 0, -1, 2147483647);
is($waiter->query_safe("CALL idemq.wait('q', '10 h')"), 'f', 'the next wait of a session that was not waiting returns at once');
$waiter = waiter($node, $call, $waiter);
is_sql($node, "SELECT count(*) FROM pg_stat_activity WHERE pid IN ($pid, $foreign->{pid}) AND " . asleep(), 2,
	'the one after that sleeps, and so does a session of another login role');
sql($node, "SELECT idemq.enqueue_many('q', '{1,2}')");
is(answer($_), 't', 'until there are jobs') foreach ($foreign, $waiter);
leave($reporter, $foreign->{session}, $waiter->{session});

# A trigger of a DBA that runs at the end of a look, and registers what is to be
# done at the session's end.
reset_queue();
sql($node, "CREATE FUNCTION temporary() RETURNS trigger LANGUAGE plpgsql AS
	\$\$BEGIN CREATE TEMP TABLE IF NOT EXISTS seen (); RETURN NULL; END\$\$;
	CREATE CONSTRAINT TRIGGER temporary AFTER UPDATE ON idemq.jobs DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW EXECUTE FUNCTION temporary();
	ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER temporary");
$node->append_conf('postgresql.conf', "idemq.worker = 'off'");
$node->reload;
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'idemq worker'");
sql($node, "SELECT idemq.enqueue('q', '1'); $claim");
$waiter = waiter($node, $call);
sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM held"); # meant to expire
is(answer($waiter), 't', 'a deferred trigger that makes a temporary table, at a look');
leave($waiter->{session});
sql($node, 'DROP FUNCTION temporary CASCADE');

check_wakers('without a worker');

# Somebody who sleeps when the worker goes does without it from then on.
$node->append_conf('postgresql.conf', "idemq.worker = 'on'");
$node->reload;
reset_queue();
worker_pid($node);
$waiter = waiter($node, $call);
$node->append_conf('postgresql.conf', "idemq.worker = 'off'");
$node->reload;
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'idemq worker'");
sql($node, "SELECT idemq.enqueue('q', '1', delay => '50 ms')"); # meant to expire
is(answer($waiter), 't', 'the worker is switched off while somebody sleeps');

# The extension goes, and comes again.
sql($node, 'TRUNCATE idemq.jobs');
waiter($node, $call, $waiter->{session});
my $other = waiter($node, "CALL idemq.wait_any('{q}', '10 h')");
is_state($node, "SET statement_timeout = '60 s'; DROP EXTENSION idemq",
	'00000', 'DROP EXTENSION does not wait for waiters');
isnt(answer($waiter), 'f', 'and ends them');
isnt(answer($other), 'f', 'all');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q')");
waiter($node, $call, $waiter->{session});
sql($node, "SELECT idemq.enqueue('q', '1')");
is(answer($waiter), 't', 'and a new one works');
leave($_->{session}) foreach ($waiter, $other);

# Read-only.
is_state($node, "SET default_transaction_read_only = on; $call", '25006', 'read-only');
$node->stop;

# The end of a session in a nested CALL: what it waits for is not read once it is freed.
{
	local $ENV{MALLOC_PERTURB_} = 165;
	my $freed = new_server('freed', 'idemq.worker' => 'on');
	my $nested = 'DO $$ DECLARE r boolean; queues text[] := (SELECT array_agg(name) FROM idemq.queues);
		BEGIN CALL idemq.wait_any(queues, \'10 min\', r); END $$';

	sql($freed, "SELECT idemq.create_queue('q' || n) FROM generate_series(1, 200) n");
	my $waiter = waiter($freed, $nested);
	sql($freed, "SELECT pg_terminate_backend($waiter->{pid})");
	ok($freed->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $waiter->{pid}"),
		'terminated in a nested CALL');
	unlike(PostgreSQL::Test::Utils::slurp_file($freed->logfile), qr/terminated by signal/, 'in peace');
	is_sql($freed, 'SELECT * FROM idemq.check()', '', 'and nothing is left of it');
	$waiter->{session}{run}->kill_kill;
	$freed->stop;
}
done_testing();
