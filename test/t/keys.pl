# Idempotency keys with failures: answers that wait for no transaction, the lock of a key, a full lock table,
# lost answers, crashes in the middle of an insert.  Races of many sessions: keys_slow.pl.
#
# expects in log: was terminated by signal 9
# stops: idemq_jobs_index_insert_keyed before_confirm after_confirm idemq_lease_drop
# at least 88 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('keys', restart_after_crash => 'on', autovacuum => 'off');

sql($node, 'CREATE TABLE effects (race text, n int)');

sub is_sound
{
	my ($server, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql($server, 'SELECT * FROM idemq.check()', '', "$name: idemq.check() finds nothing");
	sql($server, "CREATE EXTENSION IF NOT EXISTS amcheck");
	return is_sql($server, "SELECT count(bt_index_check(indexrelid, true)) > 0 FROM pg_index
		WHERE indrelid = 'idemq.jobs'::regclass", 't', "$name: each row has its index entries");
}

# ---- "locked" without a wait for any lock, with nothing written

sub is_locked
{
	my ($name, @calls) = @_;
	my $asker = session($node);

	# A call that waits for a lock at all raises 55P03: this is meant to expire then.
	$asker->query_safe("SET lock_timeout = '1 ms'");
	foreach my $call (@calls)
	{
		my $sql = $call =~ /commit_once/ ? "SELECT $call" : "SELECT (a).outcome FROM (SELECT $call AS a) s";
		my @outcomes;
		my $written = wal_records($node, sub { @outcomes = map { scalar $asker->query($sql) } 1 .. 3 });

		delete $written->{$_} foreach grep { m{^(XLOG|Standby|LogicalMessage|Heap2)/} } keys %$written;
		is("@outcomes", 'locked locked locked', "$name: $call waits for no lock");
		is_deeply($written, {}, "$name: $call writes no WAL");
	}
	leave($asker);
	return;
}

my $holder = session($node);

$holder->query_safe("BEGIN; SELECT * FROM idemq.acquire('q', 'hot', '1')");
is_locked('an open acquire', "idemq.acquire('q', 'hot', '1')", "idemq.acquire('q', 'hot')");
$holder->query_safe("ROLLBACK; BEGIN; SELECT * FROM idemq.enqueue('q', '1', key => 'hot')");
is_locked('an open enqueue', "idemq.acquire('q', 'hot', '1')");
my $hot = $holder->query_safe("COMMIT; BEGIN; SELECT id FROM idemq.acquire('q', 'hot')");
is_locked('an open claim', "idemq.acquire('q', 'hot')", "idemq.claim_job($hot)", "idemq.commit_once($hot)");
$holder->query_safe('ROLLBACK');
$holder->query_safe("BEGIN; SELECT idemq.commit_once($hot)");
is_locked('an open commit_once', "idemq.acquire('q', 'hot')", "idemq.claim_job($hot)", "idemq.commit_once($hot)");
$holder->query_safe('ROLLBACK');
$holder->query_safe("SELECT * FROM idemq.claim_job($hot)");
$holder->query_safe("BEGIN; SELECT idemq.commit(id, token) FROM idemq.job($hot)");
is_locked('an open commit', "idemq.acquire('q', 'hot')", "idemq.claim_job($hot)", "idemq.commit_once($hot)");
$holder->query_safe('COMMIT');

# ---- The lock of a key is nobody else's

$holder->query_safe("BEGIN; SELECT * FROM idemq.acquire('q', 'own', '1')");
my ($high, $low) = split /\|/, sql($node, "SELECT classid::bigint, objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 26993");
my $numbers = "((bigint '$high' << 32) | bigint '$low')";
my $pair = "(bigint '$high')::bit(32)::int, (bigint '$low')::bit(32)::int";
is_sql($node, "SELECT pg_try_advisory_lock($numbers), pg_try_advisory_lock($pair)", 't|t', 'an application may take the same numbers meanwhile');
$holder->query_safe('ROLLBACK');
$holder->query_safe("SELECT pg_advisory_lock($numbers), pg_advisory_lock($pair)");
is_sql($node, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND classid = $high AND objid = $low", 2, 'an application has taken them');
is_sql($node, "SELECT outcome FROM idemq.acquire('q', 'own', '1')", 'claimed', 'acquire does not mind');
$holder->query_safe('SELECT pg_advisory_unlock_all()');
# Nobody can tell from pg_locks whether a key that he guesses is being acquired: the hash is of this start of this server.
my $of_key = "SELECT classid, objid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 26993";
$holder->query_safe("BEGIN; SELECT * FROM idemq.acquire('q', 'guessed', '1')");
my $hash = sql($node, $of_key);
$holder->query_safe('ROLLBACK');
$holder->query_safe("BEGIN; SELECT * FROM idemq.acquire('q', 'guessed', '1')");
is_sql($node, $of_key, $hash, 'the lock of one key is one lock');
leave($holder);
$node->restart;
$holder = session($node);
$holder->query_safe("BEGIN; SELECT * FROM idemq.acquire('q', 'guessed', '1')");
isnt(sql($node, $of_key), $hash, 'another one after a restart');
$holder->query_safe('ROLLBACK');

# ---- Prepared transactions

sql($node, "BEGIN; SELECT idemq.enqueue('q', '1', key => 'p1'); SELECT idemq.enqueue('q', '1', key => 'p2'); PREPARE TRANSACTION 'p'");
foreach my $when ('prepared', 'prepared, after a crash')
{
	is_sql($node, "SELECT a.outcome, b.outcome FROM idemq.acquire('q', 'p1', '1') a, idemq.acquire('q', 'p2', '1') b", 'locked|locked', $when);
	# meant to expire
	is_state($node, "SET lock_timeout = '100 ms'; SELECT idemq.enqueue('q', '1', key => 'p1')", '55P03', "$when: an enqueue waits");
	leave($holder);
	crash($node);
	$holder = session($node);
}
sql($node, "ROLLBACK PREPARED 'p'");
is_sql($node, "SELECT a.outcome, b.outcome FROM idemq.acquire('q', 'p1', '1') a, idemq.enqueue('q', '1', key => 'p2') b", 'claimed|accepted', 'rolled back: free');
sql($node, "BEGIN; SELECT idemq.enqueue('q', '1', key => 'p3'); PREPARE TRANSACTION 'p'");
sql($node, "COMMIT PREPARED 'p'");
is_sql($node, "SELECT outcome FROM idemq.acquire('q', 'p3', '1')", 'claimed', 'committed: there');

# ---- A waiter is woken

foreach my $how ("SELECT idemq.enqueue('wq', '1', key => 'wake')", 'ROLLBACK')
{
	my $waiter = session($node);

	sql($node, "DROP TABLE IF EXISTS none; SELECT idemq.drop_queue('wq', force => true) FROM idemq.queues WHERE name = 'wq';
		SELECT idemq.create_queue('wq')");
	if ($how eq 'ROLLBACK')
	{
		sql($node, "SELECT idemq.enqueue('wq', '1', key => 'wake')");
		$holder->query_safe("BEGIN; SELECT * FROM idemq.acquire('wq', 'wake')");
	}
	$waiter->query_until(qr/sent/, "\\echo sent\nCALL idemq.wait('wq', '1 h');\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CALL%' AND wait_event_type = 'Extension'");
	$holder->query_safe($how);
	like($waiter->query('SELECT 1'), qr/^t$/m, "$how wakes a session that sleeps");
	leave($waiter);
}

# ---- Logical decoding knows what was taken back

SKIP: {
	skip 'no test_decoding', 2
	  unless eval { sql($node, "SELECT pg_create_logical_replication_slot('s', 'test_decoding')") };
	my $duplicate = session($node);

	$holder->query_safe("BEGIN; SELECT idemq.enqueue('q', '1', key => 'decoded')");
	$duplicate->query_until(qr/sent/, "\\echo sent\nSELECT outcome FROM idemq.enqueue('q', '1', key => 'decoded');\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'");
	$holder->query_safe('COMMIT');
	like($duplicate->query('SELECT 1'), qr/^duplicate$/m, 'a duplicate writes its row, and takes it back');
	sql($node, "SELECT idemq.enqueue_many('q', ARRAY['1', '1', '1']::jsonb[], keys => ARRAY['x', 'x', 'x'])");
	is_sql($node, "SELECT count(*) FROM pg_logical_slot_get_changes('s', NULL, NULL) WHERE data LIKE 'table idemq.jobs: INSERT:%'", 2,
		'a replica sees the two that stayed');
	sql($node, "SELECT pg_drop_replication_slot('s')");
	leave($duplicate);
}

# ---- What a DBA adds to the table changes no answer

my $series = "SELECT outcome FROM idemq.enqueue('dba', '1', key => 'k');
	SELECT outcome FROM idemq.enqueue('dba', '1', key => 'k');
	SELECT outcome FROM idemq.enqueue('dba', '2', key => 'k', on_duplicate => 'replace');
	SELECT outcome FROM idemq.acquire('dba', 'k', '2');
	SELECT outcome FROM idemq.acquire('dba', 'k', '2');
	SELECT idemq.commit(id, token, '7') FROM idemq.job_by_key('dba', 'k');
	SELECT outcome FROM idemq.enqueue('dba', '3', key => 'k');
	SELECT outcome, payload FROM idemq.acquire('dba', 'l', '4');
	SELECT outcome FROM idemq.enqueue_many('dba', ARRAY['4', '5', '5']::jsonb[], keys => ARRAY['l', 'm', 'm']) ORDER BY ord;
	SELECT idemq.cancel_by_key('dba', 'm')";
my $plain;

sql($node, "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'");
foreach my $extra ('SELECT 1', 'CREATE INDEX extra ON idemq.jobs ((payload::text))',
	'CREATE TRIGGER extra BEFORE INSERT OR UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION nothing()',
	'DROP INDEX idemq.extra', 'DROP TRIGGER extra ON idemq.jobs; CREATE UNIQUE INDEX extra ON idemq.jobs (queue_id, key) WHERE key IS NOT NULL')
{
	sql($node, "$extra; SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name = 'dba';
		SELECT idemq.create_queue('dba', idempotency_window => '0')");
	my $answers = join ' ', split /\n/, sql($node, $series);
	$plain //= $answers;
	is($answers, $plain, "the same answers with: $extra");
	is_sql($node, "SELECT enqueued_total, duplicates_total, claimed_total, running, pending, completed, cancelled
		FROM idemq.metrics WHERE queue = 'dba'", '4|4|2|1|1|1|1', 'the same counters');
}
is($plain, 'accepted duplicate duplicate claimed locked committed accepted claimed|4 duplicate accepted duplicate cancelled', 'and they are right');
sql($node, 'DROP INDEX idemq.extra');
is_sound($node, 'after all that');

leave($holder);

# ---- Stopped in the middle of an insert, or of a commit

{
	# An insert that is not confirmed yet: a duplicate waits, an acquire does not.
	my ($one, $two) = (session($node), session($node));
	my $stop = stop_at($one->{backend}, 'before_confirm');
	$one->query_until(qr/sent/, "\\echo sent\nSELECT outcome FROM idemq.enqueue('q', '1', key => 'spec');\n");
	$stop->();
	$two->query_until(qr/sent/, "\\echo sent\nSELECT outcome FROM idemq.enqueue('q', '1', key => 'spec');\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = 'spectoken'");
	is_sql($node, "SELECT outcome FROM idemq.acquire('q', 'spec', '1')", 'locked', 'an unconfirmed insert: locked');
	$stop->();
	like($one->query('SELECT 1'), qr/^accepted$/m, 'the first is accepted');
	like($two->query('SELECT 1'), qr/^duplicate$/m, 'the duplicate is its duplicate');
	leave($one, $two);

	# Killed there: the key is free, and nothing is left that says otherwise.
	foreach (map({ [ $_, 'kill -9' ] } qw(idemq_jobs_index_insert_keyed before_confirm after_confirm)), [ 'before_confirm', 'immediate stop' ])
	{
		my ($place, $how) = @$_;
		my $session = session($node);
		my $pid = $session->{backend};
		my $at = stop_at($pid, $place);
		my $log = log_end($node);

		$session->query_until(qr/sent/, "\\echo sent\nSELECT idemq.enqueue('q', '1', key => 'killed');\n");
		$at->();
		if ($how eq 'kill -9')
		{
			kill 'KILL', $pid;
			wait_logged($node, qr/\(PID $pid\) was terminated by signal 9/, $log);
		}
		else { crash($node) }
		eval { $session->{run}->finish };
		wait_until($node, 'SELECT true');
		is_sql($node, "SELECT count(*) FROM idemq.job_by_key('q', 'killed')", 0, "$how at $place: no job");
		is_sound($node, "$how at $place");
		is_sql($node, "SELECT a.outcome, b.outcome FROM idemq.enqueue('q', '1', key => 'killed') a, idemq.enqueue('q', '1', key => 'killed') b",
			'accepted|duplicate', "$how at $place: the key is free, once");
		sql($node, "DELETE FROM idemq.jobs WHERE key = 'killed'");
	}

	# The answer to COMMIT is lost: the client runs the same transaction again.
	my ($id, $token) = split /\|/, sql($node, "SELECT id, token FROM idemq.acquire('q', 'lost', '1')");
	my $work = "BEGIN; SELECT idemq.commit($id, $token, '\"done\"'); INSERT INTO effects VALUES ('lost', 1); COMMIT;";
	my $client = session($node);
	my $pid = $client->{backend};
	my $committed = stop_at($pid, 'idemq_lease_drop');
	$client->query_until(qr/sent/, "\\echo sent\n$work\n");
	$committed->();
	$client->{run}->kill_kill(grace => 0);
	eval { $client->{run}->finish };
	# The server has not got over it either: the rows alone tell.
	is_state($node, $work, 'IQ006', 'run again while the server is still at it: IQ006');
	$committed->();
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid");
	is_state($node, $work, 'IQ006', 'run again: IQ006');
	is_sql($node, "SELECT count(*) FROM effects WHERE race = 'lost'", 1, 'the effect stands once');
	is_sql($node, "SELECT outcome, result FROM idemq.acquire('q', 'lost', '1')", 'completed|"done"', 'the message again: its result');
	is_sql($node, "SELECT outcome FROM idemq.commit_many(ARRAY[$id], ARRAY[$token])", 'already_committed', 'in bulk, too');
	is_sound($node, 'at the end');
}
$node->stop;

# ---- A full lock table

my $small = new_server('small', max_connections => 10, max_prepared_transactions => 0);
my ($filler, $worker, $asker) = (session($small), session($small), session($small));

sql($small, "SELECT idemq.enqueue_many('q', ARRAY['1', '1']::jsonb[], keys => ARRAY['a', 'b']);
	SELECT idemq.commit(id, token, '7') FROM idemq.acquire('q', 'done', '1')");
$asker->query_safe("SELECT idemq.acquire('q', 'leased', '1')");
$worker->query_safe("SELECT idemq.acquire('q', 'leased', '1')");
$worker->query_safe('BEGIN; SELECT pg_current_xact_id()');
$filler->query("SELECT count(pg_advisory_lock(g)) FROM generate_series($_ * 200000, $_ * 200000 + 100000) g") foreach 1 .. 3;
is($asker->query("SELECT pg_try_advisory_lock(0)"), '', 'no lock is left');
is($worker->query("SELECT outcome FROM idemq.acquire('q', 'a', '1')"), 'claimed', 'acquire does without its lock');
is($asker->query("SELECT outcome, result FROM idemq.acquire('q', 'done')"), 'completed|7', 'a finished job');
is($asker->query("SELECT outcome, id > 0 FROM idemq.acquire('q', 'leased')"), 'locked|t', 'a leased job');
is($asker->query("SELECT outcome FROM idemq.acquire('q', 'a', '1')"), 'locked', 'a job whose claim is open');
# What writes needs a lock of PostgreSQL's own.
is($asker->query("SELECT outcome FROM idemq.acquire('q', 'c', '1')"), '', 'a new job is refused, as any INSERT is');
is($worker->query("SELECT idemq.commit(id, token) FROM idemq.job_by_key('q', 'a')"), 'committed', 'the claim is as good');
$worker->query_safe('COMMIT');
$filler->query('SELECT pg_advisory_unlock_all()');
is($asker->query("SELECT a.outcome, b.outcome FROM idemq.acquire('q', 'a', '1') a, idemq.acquire('q', 'c', '1') b"), 'completed|claimed', 'room again');
is_sql($small, 'SELECT * FROM idemq.check()', '', 'idemq.check() finds nothing');
leave($asker, $filler, $worker);
# The library as it ships, without stop points.
shipped($small);
is_sql($small, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$small->stop;
done_testing();
