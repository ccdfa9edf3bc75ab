# A lease table that is full: everything works, with leases on the rows alone.
# at least 58 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('full', 'idemq.max_leases' => 2);
my @queues = ('q', 'r', 's');

sql($node, "SELECT idemq.create_queue('r', lease => '1 h'); SELECT idemq.create_queue('s', lease => '1 h');
	CREATE TABLE held (id bigint, token bigint, queue text);
	CREATE TABLE effects (job bigint)");

# Twenty jobs in flight.
foreach my $queue (@queues)
{
	sql($node, "SELECT idemq.enqueue('$queue', to_jsonb(n)) FROM generate_series(1, 8) n");
	sql($node, "INSERT INTO held SELECT id, token, '$queue' FROM idemq.claim('$queue', 4)");
}
sql($node, "INSERT INTO held SELECT id, token, queue FROM idemq.claim_any(ARRAY['q', 'r', 's'], 8)");
is_sql($node, 'SELECT count(*), count(DISTINCT id) FROM held', '20|20', 'twenty jobs are claimed');
is_sql($node, "SELECT count(*) FROM held h JOIN idemq.jobs j USING (id, token) WHERE j.status = 'running'", 20,
	'each with its token');
is_sql($node, 'SELECT string_agg(DISTINCT outcome::text, \' \') FROM held h, idemq.claim_job(h.id)', 'locked',
	'claim_job: all are locked');
is_sql($node, 'SELECT count(*) FROM held h, idemq.claim_job(h.id) c WHERE c.retry_after > clock_timestamp()', 20,
	'until their deadlines');
is_sql($node, 'SELECT string_agg(DISTINCT idemq.commit_once(id)::text, \' \') FROM held', 'locked', 'commit_once: too');
is_sql($node, 'SELECT string_agg(DISTINCT idemq.validate(id, token)::text, \' \') FROM held', 'current', 'validate');
is_sql($node, "SELECT string_agg(DISTINCT idemq.heartbeat(id, token, '1 h')::text, ' ') FROM held", 'current', 'heartbeat');
is_sql($node, 'SELECT string_agg(DISTINCT outcome::text, \' \') FROM
	idemq.heartbeat_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held))', 'current', 'heartbeat_many');
is_sql($node, 'SELECT sum(idemq.reap(queue)) FROM (SELECT DISTINCT queue FROM held) q', 0, 'nothing has expired');

# A lease on the row alone that has run out, and that nobody has reaped: the worker still has it.
my ($late) = split /\n/, sql($node, "SELECT id FROM idemq.enqueue('s', '9', priority => 0);
	SELECT token FROM idemq.claim('s', 1, lease => '1 ms')") =~ s/\n/, /r; # meant to expire
sql($node, 'SELECT pg_sleep(0.05)');
is_sql($node, "SELECT idemq.validate($late)", 'expired', 'validate of a lease that has run out');
is_sql($node, "SELECT idemq.heartbeat($late, '1 h')", 'current', 'heartbeat of it');
is_sql($node, "SELECT idemq.validate($late), idemq.reap('s')", 'current|0', 'and it is held again');
# meant to expire
is_sql($node, "SELECT idemq.heartbeat($late, '1 ms'), pg_sleep(0.05), idemq.commit($late)", 'current||committed',
	'commit of a lease that has run out');

# Undone claims.
is_sql($node, "BEGIN; SAVEPOINT a; SELECT count(*) FROM idemq.claim('s', 10); ROLLBACK TO a;
	SELECT count(*) FROM idemq.claim('s', 10); ROLLBACK", "4\n4", 'a claim rolled back to a savepoint');
is_sql($node, "SELECT count(*) FROM idemq.claim('s', 10)", 4, 'and wholly: claimable at once');

# A scan start does not stay past what was undone.
foreach my $undo ('ROLLBACK', 'ROLLBACK TO a; COMMIT')
{
	sql($node, "SELECT idemq.enqueue('q', '10'); SELECT idemq.enqueue('q', '11')");
	is_sql($node, "BEGIN; SAVEPOINT a; SELECT count(*) FROM idemq.claim('q', 10); $undo", 2, "two claims undone by $undo");
	is_sql($node, "SELECT outcome FROM idemq.enqueue('q', '12'); SELECT count(*) FROM idemq.claim('q', 10)", "accepted\n3",
		'are claimed with the next job');
}

# Ends of attempts.
sql($node, 'INSERT INTO effects SELECT id FROM (SELECT id, idemq.commit(id, token) FROM held ORDER BY id LIMIT 5) x');
is_sql($node, "SELECT count(*) FROM effects e JOIN idemq.jobs j ON j.id = e.job WHERE j.status = 'completed'", 5, 'commit');
is_sql($node, 'SELECT idemq.try_commit(id, token) FROM held ORDER BY id LIMIT 1', 'already_committed', 'a repeated commit');
is_sql($node, "SELECT string_agg(DISTINCT outcome::text, ' ') FROM idemq.fail_many(
	(SELECT array_agg(id) FROM held WHERE queue = 'r'), (SELECT array_agg(token) FROM held WHERE queue = 'r'),
	retry_in => '0')", 'retrying', 'fail_many') or diag sql($node, 'SELECT * FROM held ORDER BY id');
is_sql($node, "SELECT count(*) FROM idemq.claim('r', 20) WHERE attempt = 2", sql($node, "SELECT count(*) FROM held WHERE queue = 'r'"),
	'retrying jobs are claimable at once');

# Expiry: those that beat live, the others come back, once each.
sql($node, "TRUNCATE held; SELECT idemq.drop_queue(name, force => true) FROM idemq.queues;
	-- meant to expire
	SELECT idemq.create_queue(name, lease => '200 ms') FROM unnest(ARRAY['q', 'r', 's']) name;
	SELECT idemq.enqueue(name, to_jsonb(n)) FROM unnest(ARRAY['q', 'r', 's']) name, generate_series(1, 6) n;
	INSERT INTO held SELECT id, token, queue FROM idemq.claim_any(ARRAY['q', 'r', 's'], 18)");
is_sql($node, "SELECT count(idemq.heartbeat(id, token, '1 h')) FROM held WHERE id % 3 = 0", 6, 'six jobs beat');
sql($node, 'CREATE TABLE second AS SELECT id, token, queue FROM held LIMIT 0');
is_soon($node, "WITH more AS (INSERT INTO second SELECT id, token, queue
	FROM idemq.claim_any(ARRAY['q', 'r', 's'], 100, lease => '1 h') RETURNING id)
	SELECT (SELECT count(*) FROM more) + (SELECT count(*) FROM second) >= 12", 'the others come back')
  or diag sql($node, 'SELECT * FROM idemq.jobs');
is_sql($node, 'SELECT count(*), count(DISTINCT s.id), min(s.id % 3), bool_and(s.token > h.token)
	FROM second s JOIN held h USING (id)', '12|12|1|t', 'each once, with a greater token');
is_sql($node, "SELECT string_agg(DISTINCT o, ' ' ORDER BY o) FROM (SELECT idemq.try_commit(id, token)::text AS o FROM held) x",
	'committed stale', 'who beat commits, who did not is stale');
is_sql($node, 'SELECT count(*) FROM second s, idemq.commit(s.id, s.token)', 12, 'the second attempts commit');

# Rows that two sessions had locked at once, and let go of: the lease is taken back, the job seen.
my @lockers = map { session($node) } 1, 2;
sql($node, "SELECT idemq.enqueue('s', '\"free\"', priority => 0); SELECT idemq.claim('s', 1, lease => '100 ms'); SELECT idemq.enqueue('s', '\"free\"')"); # meant to expire
$_->query_safe("BEGIN; SELECT FROM idemq.jobs WHERE payload = '\"free\"' FOR SHARE") foreach @lockers;
$_->query_safe('COMMIT') foreach @lockers;
leave(@lockers);
is_sql($node, "CALL idemq.wait('s', '0')", 't', 'a row whose lockers are gone is ready');
my $done = "WITH c AS (SELECT idemq.commit(id, token) AS o, attempt FROM idemq.claim('s') WHERE payload = '\"free\"')
	SELECT count(*) FILTER (WHERE attempt = 2) FROM c";
is_soon($node, $done, 1, 'a lease whose row had lockers is taken back');
sql($node, $done);
is_sql($node, "SELECT string_agg(status::text, ' ') FROM idemq.jobs WHERE payload = '\"free\"'", 'completed completed', 'and both jobs are claimed');

# Many workers at once: nothing twice, nothing lost.
my $work = "$PostgreSQL::Test::Utils::tmp_check/full.sql";
append_to_file($work, q{
SELECT idemq.enqueue(chr(ascii('q') + :client_id % 3), '1');
SELECT id, token FROM (SELECT 0 AS id, 0 AS token, 1 AS n UNION ALL
	SELECT id, token, 0 FROM idemq.claim_any(ARRAY['q', 'r', 's'], 1)) x ORDER BY n LIMIT 1 \gset
SELECT idemq.heartbeat(:id, :token);
INSERT INTO effects SELECT id FROM idemq.commit_many(ARRAY[:id], ARRAY[:token]) WHERE outcome = 'committed';
});
sql($node, "TRUNCATE effects; SELECT idemq.purge(name) FROM idemq.queues;
	SELECT idemq.alter_queue(name, lease => '1 h') FROM idemq.queues");
$node->command_checks_all([ 'pgbench', '-n', '-c', 8, '-t', 150, '-f', $work, '-h', $node->host, '-p', $node->port, 'postgres' ],
	0, [qr/processed: 1200/], [qr/^(?!.*error)/is], 'eight workers');
sql($node, "INSERT INTO effects SELECT id FROM (SELECT id, idemq.commit(id, token)
	FROM idemq.claim_any(ARRAY['q', 'r', 's'], 10000)) x");
is_sql($node, 'SELECT status, count(*) FROM idemq.jobs GROUP BY 1', 'completed|1200', 'no job is lost');
is_sql($node, 'SELECT count(*), count(DISTINCT job) FROM effects', '1200|1200', 'every effect happened once');

$node->stop;

# ---- With a background worker

my $full = new_server('worker', 'idemq.worker' => 'on', 'idemq.max_leases' => 1);
sql($full, "SELECT idemq.create_queue(name, lease => '1 h') FROM unnest(ARRAY['r', 's']) name;
	CREATE TABLE held (id bigint, token bigint, queue text)");
wait_until($full, "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'idemq worker'");

# Calls a procedure in a session; answers a sub that waits for its result.
sub calls
{
	my ($call) = @_;
	my $session = session($full);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	$session->query_until(qr/asleep/, "\\echo asleep\nCALL $call;\n");
	wait_until($full, "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid");
	return sub {
		my $answer = $session->query_safe("\\echo awake") =~ s/\nawake$//r;

		leave($session);
		return $answer;
	};
}

foreach my $queue ('q', 'r')
{
	my @woken = map { calls($_) } "idemq.wait('$queue', '10 min')", "idemq.wait_any(ARRAY['s', '$queue'], '10 min')";

	sql($full, "SELECT count(*) FROM idemq.enqueue_many('$queue', '{1,2}')");
	is($_->(), 't', "queue $queue: a waiter is woken") foreach @woken;
	sql($full, "INSERT INTO held SELECT id, token, '$queue' FROM idemq.claim('$queue', 2)");

	my $due = calls("idemq.wait('$queue', '10 min')");
	sql($full, "SELECT idemq.enqueue('$queue', '3', delay => '300 ms')"); # meant to expire
	is($due->(), 't', "queue $queue: by what comes due");

	my $result = calls('idemq.wait_result(' . sql($full, "SELECT id FROM idemq.claim('$queue', lease => '1 h')") . ", '10 min')");
	sql($full, "SELECT idemq.commit(id, token, '7') FROM idemq.jobs WHERE payload = '3' AND status = 'running'");
	is($result->(), 'completed|7', "queue $queue: by a result");

	# A lease that runs out, in shared memory or on the row alone; attached or not.
	my $lost = calls("idemq.wait('$queue', '10 min')");
	# meant to expire
	sql($full, "BEGIN; SELECT idemq.enqueue('$queue', '4'); SELECT idemq.claim('$queue', 1, lease => '300 ms', attach => true); COMMIT");
	is($lost->(), 't', "queue $queue: by a lease that runs out");
	is_sql($full, "SELECT attempt, idemq.commit(id, token) FROM idemq.claim('$queue')", '2|committed', 'and takes its job');
}
is_sql($full, 'SELECT count(*), string_agg(DISTINCT idemq.heartbeat(id, token)::text, \' \') FROM held', '4|current', 'heartbeat');
is_sql($full, 'SELECT string_agg(DISTINCT outcome::text, \' \') FROM
	idemq.heartbeat_many((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held))', 'current', 'heartbeat_many');

is_sql($full, 'SELECT queue, running, completed, row_only_total, in_memory, recovering FROM idemq.metrics ORDER BY queue',
	"q|2|2|4|t|t\nr|2|2|5|t|t\ns|0|0|0|t|f", 'idemq.metrics');
is_sql($full, "SELECT string_agg(resource, ' ' ORDER BY resource) FROM idemq.memory WHERE used = size AND refused > 0", 'leases leases of this database', 'idemq.memory');
is_sql($full, 'SELECT DISTINCT severity FROM idemq.check()', 'warning', 'idemq.check() warns, and no more');

sql($full, "SELECT idemq.enqueue('r', '5'); SELECT idemq.enqueue('q', '5')");

# After a crash leases begin anew, on the rows; then their jobs come back.
# Those of two for an hour, those of the others for an instant.  With flags 0 and without
# renewed_at the rows are as after a claim.
my $left = "CASE WHEN id % 2 = 0 THEN interval '1 h' ELSE '500 ms' END"; # meant to expire
sql($full, "SELECT idemq.heartbeat(id, token, $left) FROM held; UPDATE idemq.jobs SET claimed_at = now(), deadline = now() + $left, flags = 0, renewed_at = NULL WHERE status = 'running'");
crash($full);
is_sql($full, 'SELECT count(*) FROM held, idemq.try_commit(id, token) o WHERE id % 2 = 0 AND o = \'committed\'', 2, 'after a crash, leases go on');
sql($full, 'CREATE TABLE again (id bigint, attempt int)');
is_soon($full, "WITH c AS (INSERT INTO again SELECT c.id, attempt FROM idemq.claim_any(ARRAY['q', 'r', 's'], 10, lease => '1 h') c)
	SELECT count(*) = 4 FROM again", 'and those that run out are taken back');
is_sql($full, 'SELECT count(*) FILTER (WHERE attempt = 2 AND id IN (SELECT id FROM held)), count(*) FILTER (WHERE attempt = 1) FROM again', '2|2',
	'each once');
is_sql($full, 'SELECT count(*) FROM idemq.check() WHERE severity <> \'warning\'', 0, 'idemq.check() finds nothing');
$full->stop;
unlike(slurp_file($full->logfile), qr/ERROR/, 'nobody saw an error');
done_testing();
