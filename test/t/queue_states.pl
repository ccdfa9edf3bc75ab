# More queues than idemq.max_queues: create_queue raises 53400, and so does the first use of a queue
# that was restored, whose jobs stay as they are and go on when there are more queue states.
# at least 79 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# ---- Queue states are given, and given back

my $queue_states = new_server('slots', 'idemq.worker' => 'on', 'idemq.max_queues' => 3);
my $no_state = qr/queue "c" has no state in shared memory\n.*DETAIL:  All 3 queue states are in use by other queues\.\n.*HINT:  Raise idemq\.max_queues, which is 3, and restart the server, or drop a queue/;
my $used = "SELECT used FROM idemq.memory WHERE resource = 'queues'";

sub error_of
{
	my ($node, $sql) = @_;
	my $err;

	$node->psql('postgres', $sql, stderr => \$err);
	return $err;
}

sql($queue_states, "SELECT idemq.create_queue('a', lease => '1 h'), idemq.create_queue('b', lease => '1 h')");
like(error_of($queue_states, "SELECT idemq.create_queue('c')"), $no_state, 'create_queue beyond idemq.max_queues');
is_state($queue_states, "SELECT idemq.create_queue('c')", '53400', 'raises 53400');
is_sql($queue_states, "SELECT count(*) FROM idemq.queues WHERE name = 'c'", 0, 'and makes none');
# A queue state is given back by the commit of a drop, and by the rollback of a create.
is_state($queue_states, "BEGIN; SELECT idemq.drop_queue('b'); SELECT idemq.create_queue('c'); COMMIT", '53400', 'a drop gives its slot back when it is committed');
sql($queue_states, "SELECT idemq.drop_queue('b')");
is_sql($queue_states, $used, 2, 'then it does');
is_state($queue_states, "BEGIN; SELECT idemq.create_queue('b'); SELECT idemq.create_queue('c'); COMMIT", '53400', 'a transaction that creates more than there are');
is_sql($queue_states, $used, 2, 'keeps no queue state');
{
	my $creator = session($queue_states);

	$creator->query("BEGIN; SELECT idemq.create_queue('b', lease => '1 h'); SAVEPOINT s; SELECT idemq.create_queue('c'); ROLLBACK TO s; COMMIT");
	like($creator->{stderr}, qr/no state/, 'in a savepoint');
	$creator->{stderr} = '';
	leave($creator);
}
is_sql($queue_states, "SELECT string_agg(name, ' ' ORDER BY name) FROM idemq.queues", 'a b q', 'the rest of the transaction stands');
sql($queue_states, "SELECT idemq.enqueue('b', '1')");
is_sql($queue_states, "SELECT idemq.commit(id, token) FROM idemq.claim('b')", 'committed', 'a queue in a slot that was another\'s');
# Databases share the queue states.
$queue_states->safe_psql('postgres', 'CREATE DATABASE other');
$queue_states->safe_psql('other', 'CREATE EXTENSION idemq');
is(sqlstate($queue_states, "SELECT idemq.create_queue('elsewhere')", 'other'), '53400', 'in another database, too');
sql($queue_states, "SELECT idemq.drop_queue('b', force => true)");
sql($queue_states, "SELECT idemq.create_queue('elsewhere')", 'other');
is_sql($queue_states, $used, 3, 'which gets what is given back here');
sql($queue_states, 'DROP DATABASE other');
is_sql($queue_states, $used, 2, 'and gives it back at its end');
is_sql($queue_states, 'SELECT * FROM idemq.check()', '', 'check()');

# ---- More queues than queue states: a restore, a setting that was lowered

# Work of all kinds, in queues that have their states.
$queue_states->append_conf('postgresql.conf', 'idemq.max_queues = 6');
$queue_states->restart;
sql($queue_states, "SELECT idemq.create_queue('b', lease => '1 h', max_running => 2), idemq.create_queue('c', lease => '1 h', max_unfinished => 1000), idemq.create_queue('d', lease => '1 h'), idemq.create_queue('e');
	SELECT idemq.alter_queue('a', dead_letter_queue => 'c', max_attempts => 1);
	CREATE TABLE held (id bigint, token bigint); CREATE TABLE made (id bigint, what text); CREATE TABLE done (id bigint);
	CREATE FUNCTION handle(jsonb) RETURNS void LANGUAGE sql AS ''");
sql($queue_states, "SELECT idemq.enqueue('c', to_jsonb('plain ' || n)) FROM generate_series(1, 20) n;
	SELECT idemq.enqueue('c', to_jsonb('grouped ' || n), group_key => 'g') FROM generate_series(1, 3) n;
	-- meant to expire
	SELECT idemq.enqueue('c', '\"soon\"', delay => '1 s'); SELECT idemq.enqueue('c', '\"once\"', key => 'k');
	SELECT idemq.enqueue('b', to_jsonb('limited ' || n)) FROM generate_series(1, 3) n;
	INSERT INTO made SELECT id, 'parent' FROM idemq.enqueue('c', '\"parent\"', delay => '1 h');
	INSERT INTO made SELECT id, 'child' FROM idemq.enqueue('q', '\"child\"', depends_on => (SELECT array_agg(id) FROM made));
	-- Once a year: a minute ends anywhere, and would bring jobs that nobody counts on.
	SELECT idemq.schedule('tick', '0 0 1 1 *', 'c', '\"tick\"'); SELECT idemq.schedule('tock', '0 0 1 1 *', 'q', '\"tock\"')");
sql($queue_states, "INSERT INTO held SELECT id, token FROM idemq.claim('c', 2); INSERT INTO held SELECT id, token FROM idemq.claim('b', 1)");
my ($job, $token) = split /\|/, sql($queue_states, 'SELECT id, token FROM held ORDER BY id LIMIT 1');

$queue_states->append_conf('postgresql.conf', 'idemq.max_queues = 3');
$queue_states->restart;
wait_until($queue_states, "$used AND (SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq worker')" =~ s/used FROM/used = 3 FROM/r);
is_sql($queue_states, 'SELECT queue, in_memory FROM idemq.metrics ORDER BY queue_id', "q|t\na|t\nb|t\nc|f\nd|f\ne|f", 'those that were created first have the slots');
my %uses = (
	enqueue => "SELECT idemq.enqueue('c', '1')",
	'enqueue with a key' => "SELECT idemq.enqueue('c', '1', key => 'k')",
	enqueue_many => "SELECT idemq.enqueue_many('c', '{1,2}')",
	enqueue_sequenced => "SELECT idemq.enqueue_sequenced('c', 'producer', 1, '1')",
	'a child of its job' => "SELECT idemq.enqueue('q', '1', depends_on => ARRAY[$job])",
	claim => "SELECT idemq.claim('c')",
	claim_any => "SELECT idemq.claim_any('{q,c}')",
	wait => "CALL idemq.wait('c', '10 min')",
	wait_any => "CALL idemq.wait_any('{q,c}', '10 min')",
	wait_for_room => "CALL idemq.wait_for_room('c', 1, '10 min')",
	reap => "SELECT idemq.reap('c')",
	acquire => "SELECT idemq.acquire('c', 'new', '1')",
	claim_job => "SELECT idemq.claim_job($job)",
	commit_once => "SELECT idemq.commit_once($job)",
	commit => "SELECT idemq.commit($job, $token)",
	try_commit => "SELECT idemq.try_commit($job, $token)",
	fail => "SELECT idemq.fail($job, $token, 'no')",
	release => "SELECT idemq.release($job, $token)",
	heartbeat => "SELECT idemq.heartbeat($job, $token)",
	checkpoint => "SELECT idemq.checkpoint($job, $token, '1')",
	set_handler => "SELECT idemq.set_handler('c', 'handle(jsonb)')",
	run_schedule_now => "SELECT idemq.run_schedule_now('tick')");
is_state($queue_states, $uses{$_}, '53400', "first use: $_") foreach sort keys %uses;
like(error_of($queue_states, $uses{claim}), $no_state, 'says which queue, and what to do');
# heartbeat_many renews those that have a state, whatever the others raise.
wait_until($queue_states, "SELECT coalesce(max(deadline) < now() + interval '2 h', false) FROM idemq.running_jobs WHERE queue = 'b'");
is_state($queue_states, "SELECT idemq.heartbeat_many(array_agg(id ORDER BY id), array_agg(token ORDER BY id), '3 h') FROM held", '53400', 'heartbeat_many: of a queue without a slot');
is_sql($queue_states, "SELECT max(deadline) > now() + interval '2 h' FROM idemq.running_jobs WHERE queue = 'b'", 't', 'heartbeat_many: the other queue\'s lease is renewed');
sql($queue_states, q{CREATE TABLE before AS SELECT id, status, token FROM idemq.jobs WHERE queue_id = idemq.queue_id('c')});

# Who only looks, or administers, is not refused.
is_sql($queue_states, "SELECT string_agg(substring(detail from 'queue \"(\\w+)\" has no state'), ' ' ORDER BY detail) FROM idemq.check() WHERE severity = 'warning' AND invariant = 'queue_states.full'", 'c d e', 'check() names them');
is_sql($queue_states, "SELECT count(*) FROM idemq.check() WHERE invariant <> 'queue_states.full'", 0, 'and finds nothing else');
is_sql($queue_states, "SELECT pending, blocked, running FROM idemq.metrics WHERE queue = 'c'", sql($queue_states, "SELECT count(*) FILTER (WHERE status = 'pending'),
	count(*) FILTER (WHERE status = 'blocked'), count(*) FILTER (WHERE status = 'running') FROM before"), 'its gauges are counted');
is_sql($queue_states, "SELECT count(*) >= 20 FROM before WHERE idemq.why(id) LIKE '%: queue \"c\" has no state in shared memory: raise idemq.max_queues%'", 't', 'why');
is_sql($queue_states, "SELECT status FROM idemq.job_list WHERE id = $job", 'running', 'job_list');
is_sql($queue_states, "SELECT idemq.alter_queue('c', max_attempts => 7), idemq.pause('c'), idemq.resume('c')", '||', 'alter_queue, pause, resume');
is_sql($queue_states, "SELECT idemq.reap() >= 0, count(*) FROM idemq.claim('q')", 't|0', 'reap() passes over it') or diag sql($queue_states, 'SELECT * FROM idemq.jobs');
sql($queue_states, q{INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload) VALUES (idemq.queue_id('c'), now(), 4, 5, 'pending', now(), '"by hand"')});
sql($queue_states, "SELECT idemq.enqueue('a', '\"dies\"'); SELECT idemq.fail(id, token, 'no') FROM idemq.claim('a')");
is_sql($queue_states, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('c') AND payload->>'queue' = 'a'", 1, 'it is a dead-letter queue all the same');
# The worker goes on, for the others: what comes due, ticks.
# meant to expire
is_sql($queue_states, "SELECT outcome FROM idemq.enqueue('a', '\"later\"', delay => '200 ms')", 'accepted', 'a queue with a slot');
is_sql($queue_states, "CALL idemq.wait('a', '100 s')", 't', 'its worker wakes who waits');
sql($queue_states, "UPDATE idemq_internal.schedule_entries SET done_until = now() - interval '2 years'");
is_soon($queue_states, "SELECT count(*) FROM idemq.jobs WHERE payload = '\"tock\"'", 1, 'a tick for it');
is_soon($queue_states, "SELECT count(*) FROM idemq.schedules WHERE name = 'tick' AND last_error LIKE '%has no state%'", 1, 'and one for the other fails, and says why');
is_soon($queue_states, "SELECT count(*) FROM idemq.jobs WHERE payload = '\"child\"' AND status = 'pending'", 0, 'a child of its job waits');
sql($queue_states, "UPDATE idemq.jobs SET status = 'completed', ready_at = NULL, finished_at = now() WHERE id = (SELECT id FROM made WHERE what = 'parent')");
is_soon($queue_states, "SELECT count(*) FROM idemq.jobs WHERE payload = '\"child\"' AND status = 'pending'", 1, 'and is released when that is done by hand');
# One that is dropped frees no queue state if it had none; a queue state that comes free is given to another queue.
sql($queue_states, "SELECT idemq.drop_queue('e', force => true)");
is_state($queue_states, "SELECT idemq.enqueue('d', '1')", '53400', 'drop_queue of a queue without a slot');
sql($queue_states, "SELECT idemq.drop_queue('b', force => true)");
# It is the first that is used, or the oldest, if the worker counts just then.
is(join(' ', sort map { sqlstate($queue_states, "SELECT idemq.enqueue('$_', '\"late\"')") } qw(d c)), '00000 53400', 'of one with a slot: another gets it, and no third one');
$queue_states->append_conf('postgresql.conf', 'idemq.max_queues = 10');
$queue_states->restart;
is_sql($queue_states, 'SELECT * FROM idemq.check()', '', 'with more slots check() finds nothing');
is_sql($queue_states, "SELECT count(*), count(DISTINCT o) FROM (SELECT idemq.commit(h.id, h.token) AS o FROM held h JOIN idemq.jobs j USING (id)) x", '2|1', 'attempts go on, and commit');
is_sql($queue_states, "SELECT outcome FROM idemq.enqueue('c', '\"once\"', key => 'k')", 'duplicate', 'keys are known');
# This includes the job with a delay of one second.
ok($queue_states->poll_query_until('postgres', "WITH c AS (INSERT INTO done SELECT id FROM (SELECT id, idemq.commit(id, token) FROM idemq.claim_any('{q,a,c,d}', 100)) x RETURNING id)
	SELECT (SELECT count(*) FROM c) = 0 AND NOT EXISTS (SELECT FROM idemq.jobs WHERE finished_at IS NULL AND ready_at <= now() + interval '1 min' OR status = 'blocked')"), 'all is worked off');
is_sql($queue_states, "SELECT count(*) FROM before b WHERE NOT EXISTS (SELECT FROM idemq.jobs j WHERE j.id = b.id AND j.status = 'completed')", 0, 'no job is lost')
  or diag sql($queue_states, 'SELECT id, status, ready_at, payload FROM idemq.jobs WHERE status <> \'completed\'');
is_sql($queue_states, "SELECT count(*) FROM idemq.jobs WHERE payload = '\"by hand\"' AND status = 'completed'", 1, 'nor what came by hand');
is_sql($queue_states, 'SELECT count(*) = count(DISTINCT id) FROM done', 't', 'each is claimed once');
is_sql($queue_states, 'SELECT * FROM idemq.check()', '', 'check()');

# A dump of more queues than fit is restored, in parallel, without an error.
my $dump = "$PostgreSQL::Test::Utils::tmp_check/full.dump";
sql($queue_states, "SELECT idemq.enqueue(name, '\"dumped\"') FROM idemq.queues, generate_series(1, 5); SELECT idemq.enqueue('c', '\"dumped\"', group_key => 'h') FROM generate_series(1, 2)");
my $waiting = sql($queue_states, "SELECT count(*) FROM idemq.jobs WHERE payload = '\"dumped\"'");
command_ok([ 'pg_dump', '-Fc', '-h', $queue_states->host, '-p', $queue_states->port, '-f', $dump, 'postgres' ], 'pg_dump');
$queue_states->append_conf('postgresql.conf', 'idemq.max_queues = 5');
$queue_states->restart;
# After a restart, the background worker takes the states of the queues when it starts.
is_soon($queue_states, $used, 4, 'four queues');
sql($queue_states, 'CREATE DATABASE copy');
$queue_states->command_checks_all([ 'pg_restore', '-e', '-h', $queue_states->host, '-p', $queue_states->port, '-d', 'copy', $dump ], 0, [qr/^$/], [qr/^$/], 'pg_restore of four more');
is_sql($queue_states, 'SELECT count(*) FROM idemq.jobs', sql($queue_states, 'SELECT count(*) FROM idemq.jobs'), 'all jobs', 'copy');
is_sql($queue_states, 'SELECT count(*) > 1 FROM idemq.check() WHERE invariant = \'queue_states.full\'', 't', 'check() names two at least', 'copy');
is_sql($queue_states, "SELECT count(*) FROM idemq.check() WHERE severity = 'error'", 0, 'and finds no error', 'copy');
is(sqlstate($queue_states, "SELECT idemq.claim_any('{q,a,c,d}', 1000)", 'copy'), '53400', 'a use of all of them');
$queue_states->append_conf('postgresql.conf', 'idemq.max_queues = 8');
$queue_states->restart;
my $worked = 0;
until_true('all jobs that were restored', sub {
	$worked += sql($queue_states, "SELECT count(idemq.commit(id, token)) FROM idemq.claim_any('{q,a,c,d}', 100) WHERE payload = '\"dumped\"'", 'copy');
	return $worked >= $waiting;
});
is($worked, $waiting, 'with more slots all jobs that were restored are worked off');
is_sql($queue_states, "SELECT count(*) FROM idemq.check() WHERE invariant <> 'schedules.driver'", 0, 'check()', 'copy');
sql($queue_states, 'DROP DATABASE copy');

# A standby that is promoted with a smaller setting.
$queue_states->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($queue_states, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', 'idemq.max_queues = 3');
$standby->start;
$queue_states->wait_for_catchup($standby, 'replay', $queue_states->lsn('insert'));
$queue_states->stop;
$standby->promote;
is_state($standby, "SELECT idemq.claim_any('{q,a,c,d}', 1000)", '53400', 'promoted with fewer slots than queues');
is_sql($standby, "SELECT count(*) FROM idemq.check() WHERE invariant = 'queue_states.full'", 1, 'check() names the one without');
$standby->append_conf('postgresql.conf', 'idemq.max_queues = 4');
$standby->restart;
is_sql($standby, "SELECT count(*) FROM idemq.claim_any('{q,a,c,d}', 100, lease => '1 h') WHERE payload = '\"dumped\"'", $waiting - 1, 'with enough of them all is claimed, but for the second of a group');
is_sql($standby, "SELECT count(*) FROM idemq.check() WHERE severity = 'error'", 0, 'check()');
$standby->stop;
done_testing();
