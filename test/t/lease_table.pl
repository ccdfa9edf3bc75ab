# The lease table: who looks at it sees its own entries alone, one partition at a time, and
# misses none; a session's end finds what it owns; shares of databases, and the reserve.
# at least 75 assertions
# stops: idemq_due_by idemq_lease_collect_expired idemq_lease_hold idemq_lease_orphan idemq_lease_take idemq_leases_lock idemq_qstate_recovered_to visit_expired
# expects in log: was terminated by signal 9

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $clean = "SELECT * FROM idemq.check() WHERE severity = 'error'";

# How often a session comes to each of some places while it runs SQL.
sub hits
{
	my ($session, $sql, @places) = @_;
	my $counted = count_at($session->{backend}, @places);

	$session->query_safe($sql);
	return $counted->();
}

# ---- A session's end

plan skip_all => 'no stop points in the library' unless has_stops();

my $node = new_server('leases', 'idemq.max_leases' => 32768, 'idemq.max_queues' => 8, max_connections => 30, max_prepared_transactions => 2);
my $mine = "SELECT id || ', ' || token FROM idemq.claim('q', attach => true)";

# Another transaction has taken the job over when its owner ends; undone, it is nobody's.
foreach my $end ('quit', 'DISCARD ALL')
{
	sql($node, "SELECT idemq.purge('q'); SELECT idemq.enqueue('q', '1')");
	my ($owner, $other) = (session($node), session($node));
	my $job = $owner->query_safe($mine);
	$other->query_safe("BEGIN; SELECT idemq.release($job)");
	is($other->query_safe("SELECT attempt FROM idemq.claim('q')"), 1, "$end: another has ended the attempt, and claimed the job again");
	$end eq 'quit' ? leave($owner) : $owner->query_safe($end);
	is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'it is held');
	$other->query_safe('ROLLBACK');
	is_sql($node, "SELECT attempt FROM idemq.claim('q')", 2, 'rolled back, it is not held for a session that has ended');
	is_sql($node, "SELECT error FROM idemq.attempts ORDER BY attempt DESC LIMIT 1", "the worker's session ended", 'its history');
	is_sql($node, $clean, '', 'check');
	sql($node, "SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running'");
	leave($other, $end eq 'quit' ? () : $owner);
}

# A new life of the session has its own leases: what was taken over in it comes back to it.
sql($node, "SELECT idemq.enqueue('q', '1')");
my ($owner, $other) = (session($node), session($node));
$owner->query_safe('DISCARD ALL');
my $job = $owner->query_safe($mine);
$other->query_safe("BEGIN; SELECT idemq.release($job); SELECT * FROM idemq.claim('q'); ROLLBACK");
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'undone, it is the session\'s as before');
is_sql($node, "SELECT idemq.heartbeat($job), idemq.commit($job)", 'current|committed', 'heartbeat, commit by another');

# Savepoints, and ends of all kinds: the list has what is there.
sql($node, "SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM generate_series(1, 400) n");
$owner->query_safe("BEGIN; SAVEPOINT a; SELECT count(*) FROM idemq.claim('q', 100, attach => true); ROLLBACK TO a;
	SELECT count(*) FROM idemq.claim('q', 50, attach => true); SAVEPOINT b; SELECT count(idemq.release(id, token)) FROM idemq.claim('q', 50, attach => true);
	SELECT count(*) FROM idemq.claim('q', 25, attach => true); ROLLBACK TO b; COMMIT");
$other->query_safe("SELECT count(*) FROM idemq.claim('q', 100, attach => true)");
is_sql($node, "SELECT count(*) FILTER (WHERE attached), count(*) FROM idemq.running_jobs", '150|150', 'what is left of savepoints');
$owner->query_safe("SELECT count(idemq.heartbeat(job_id, token)) FROM idemq.running_jobs JOIN idemq.jobs ON id = job_id WHERE pid = pg_backend_pid()");
$owner->query_safe("SELECT count(idemq.commit(id, token)) FROM (SELECT id, token FROM idemq.jobs JOIN idemq.running_jobs ON job_id = id WHERE pid = pg_backend_pid() LIMIT 20) j");
leave($owner);
is_sql($node, "SELECT count(*) FROM idemq.running_jobs WHERE attached", 100, 'its end is not that of another session');
is_sql($node, "SELECT idemq.reap('q')", 30, 'and all that it had is taken back');
is_sql($node, $clean, '', 'check');
leave($other);
sql($node, "SELECT idemq.reap('q'); SELECT idemq.purge('q')");

# A session with 4,000 of them.
$owner = session($node);
sql($node, "SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 4000) n))");
is($owner->query_safe("SELECT count(*) FROM idemq.claim('q', 4000, attach => true)"), 4000, '4,000 attached leases');
$owner->query_safe("SELECT count(*) FROM idemq.commit_many((SELECT array_agg(id) FROM idemq.jobs WHERE id % 2 = 0), (SELECT array_agg(token) FROM idemq.jobs WHERE id % 2 = 0))");
leave($owner);
is_sql($node, "SELECT count(*) FROM idemq.running_jobs WHERE attached", 0, 'half of them were committed; its end');
is_sql($node, "SELECT idemq.reap('q')", 2000, 'gives the others back');
is_sql($node, $clean, '', 'check');

# kill -9: the server starts again, without lists; rows have the grace.
# The grace is meant to expire.
$node->append_conf('postgresql.conf', "restart_after_crash = on\nidemq.attach_grace = '1 ms'");
$node->reload;
$owner = session($node);
is($owner->query_safe("SELECT count(*) FROM idemq.claim('q', 300, attach => true)"), 300, 'attached, then killed');
kill 'KILL', $owner->query_safe('SELECT pg_backend_pid()');
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%attach => true%' AND pid <> pg_backend_pid()");
eval { $owner->{run}->finish };
is_soon($node, "SELECT idemq.reap('q') >= 0 AND count(*) = 0 FROM idemq.jobs WHERE status = 'running'", 'all come back');
is_sql($node, $clean, '', 'check');

# ---- Looks, and what comes in between

{
	sql($node, "SELECT idemq.purge(name) FROM idemq.queues; SELECT idemq.create_queue('r', lease => '1 h'); SELECT idemq.create_queue('s', lease => '1 h')");
	sql($node, "SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 5000) n));
		SELECT count(*) FROM idemq.enqueue_many('r', '{1,2,3}'); SELECT count(*) FROM idemq.enqueue_many('s', '{1,2,3}')");
	sql($node, "SELECT count(*) FROM idemq.claim('q', 5000)");
	is_sql($node, "SELECT used FROM idemq.memory WHERE resource = 'leases'", 5000, '5,000 leases');

	# A reaper has read every partition, and not yet noted the next deadline, when a lease begins that ends at once.
	my $one = session($node);
	my $pid = $one->{backend};
	$one->query_safe("SELECT idemq.reap('r')");
	my $stop = stop_at($pid, 'idemq_lease_collect_expired', 'idemq_due_by');
	$one->query_until(qr/sent/, "\\echo sent\nSELECT idemq.reap('r');\n");
	$stop->();
	$stop->();
	$stop->();
	# The leases are meant to expire.
	is_sql($node, "SELECT count(*) FROM idemq.claim('r', 2, lease => '1 ms')", 2, 'claims behind a scan that goes on');
	$stop->();
	$one->query_safe('SELECT pg_sleep(0.01)');
	is_sql($node, "SELECT attempt FROM idemq.claim('r', 3) ORDER BY 1", "1\n2\n2", 'their deadline is known');
	is_sql($node, $clean, '', 'check');

	# What a look costs does not depend on others' leases: entries looked at, and locks taken.
	my ($entries, $locks) = hits($one, "SELECT idemq.reap('s')", 'visit_expired', 'idemq_leases_lock');
	cmp_ok($entries, '<=', 3, 'a search for expired leases looks at its queue\'s');
	cmp_ok($locks, '<=', 64, 'and takes each lock once in a look');
	$one->query_safe("SELECT count(*) FROM idemq.claim('s', 2, attach => true)");
	($entries, $locks) = hits($one, 'DISCARD ALL', 'idemq_lease_orphan', 'idemq_leases_lock');
	is($entries, 2, 'the end of a session, at its own leases');
	is($locks, 32, 'and each lock once');
	is_sql($node, "SELECT idemq.reap('s')", 2, 'which have ended');
	# Of a queue's own leases only those that are due, and one in each partition that is not.
	sql($node, "SELECT count(idemq.heartbeat(id, token, '1 us')) FROM (SELECT id, token FROM idemq.jobs WHERE status = 'running' AND queue_id = idemq.queue_id('q') LIMIT 10) j");
	($entries) = hits($one, "SELECT idemq.reap('q')", 'visit_expired');
	cmp_ok($entries, '>=', 10, 'ten leases have ended');
	cmp_ok($entries, '<=', 10 + 32 * 3, 'and no more than these and the next of each partition are looked at');
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'pending' AND queue_id = idemq.queue_id('q')", 10, 'they are taken back');

	# Another search for lost leases is requested while a claim searches: the claim relies on its own search and hands
	# out a job, and the next claim searches again.
	sql($node, "SELECT idemq.create_queue('again', max_running => 3, lease => '1 h'); SELECT count(*) FROM idemq.enqueue_many('again', '{1,2,3}'); SELECT count(*) FROM idemq.claim('again')");
	sql($node, "BEGIN; SELECT idemq.enqueue('r', '4'); PREPARE TRANSACTION '$_'") foreach 'before', 'meanwhile';
	sql($node, "COMMIT PREPARED 'before'");
	$stop = stop_at($pid, 'idemq_qstate_recovered_to');
	$one->query_until(qr/sent/, "\\echo sent\nSELECT count(*) || ' claimed' FROM idemq.claim('again');\n");
	$stop->();
	sql($node, "COMMIT PREPARED 'meanwhile'");
	sql($node, "INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, attempt, token, status, ready_at, claimed_at, deadline, payload)
		SELECT idemq.queue_id('again'), now(), 4, 3, 1, 1, 'running', now(), now(), now() + interval '1 h', '4'");
	$stop->();
	like($one->query_safe('SELECT 1'), qr/^1 claimed$/m, 'a search during which another one is requested');
	is_sql($node, "SELECT count(*) FROM idemq.claim('again'); SELECT permits_used FROM idemq.metrics WHERE queue = 'again'", "0\n3", 'the next claim counts what came by hand');
	is_sql($node, $clean, '', 'check');

	# A session that is ended while it searches for lost leases leaves no entry of a job whose attempt has ended meanwhile.
	sql($node, "SELECT idemq.create_queue('ended', lease => '1 h'); SELECT count(*) FROM idemq.enqueue_many('ended', '{1,2}'); SELECT count(*) FROM idemq.claim('ended', 2)");
	sql($node, "BEGIN; SELECT idemq.enqueue('r', '5'); PREPARE TRANSACTION 'ended'");
	sql($node, "COMMIT PREPARED 'ended'");
	my $ended = session($node);
	$stop = stop_at($ended->{backend}, 'idemq_lease_hold');
	$ended->query_until(qr/sent/, "\\echo sent\nSELECT count(*) FROM idemq.claim('ended');\n");
	$stop->();
	sql($node, "SELECT idemq.release(id, token) FROM idemq.jobs WHERE payload = '1' AND queue_id = idemq.queue_id('ended'); SELECT pg_terminate_backend($ended->{backend})");
	$stop->();
	until_true('its end', sub { !kill 0, $ended->{backend} });
	$ended->{run}->kill_kill;
	is_sql($node, "SELECT payload FROM idemq.claim('ended', 2)", 1, 'a search that was ended: the job can be claimed at once');
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');

	# A queue that loses its state under a claim: the entry would be counted nowhere, so there is none, and the job waits.
	$one->query_safe("SELECT idemq.reap('s')");
	$stop = stop_at($pid, 'idemq_lease_take');
	$one->query_until(qr/sent/, "\\echo sent\nBEGIN; SELECT count(*) FROM idemq.claim('s'); COMMIT;\n");
	$stop->();
	sql($node, "CREATE TABLE kept AS TABLE idemq.queues; TRUNCATE idemq.queues");
	$stop->();
	is($one->query_safe('SELECT 1'), "0\n1", 'a claim whose queue is gone takes nothing');
	sql($node, "INSERT INTO idemq.queues OVERRIDING SYSTEM VALUE TABLE kept");
	is_sql($node, "SELECT permits_used FROM idemq.metrics WHERE queue = 's'", 0, 'nothing runs');
	is_sql($node, "SELECT idemq.alter_queue('s', max_running => 1); SELECT count(*) FROM idemq.claim('s', 3)", "\n1", 'and the limit holds');
	sql($node, "SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running' AND queue_id = idemq.queue_id('s'); SELECT idemq.alter_queue('s', max_running => 0)");
	is_sql($node, $clean, '', 'check');
	leave($one);
}
$node->stop;

# ---- Shares

$node = new_server('shares', 'idemq.max_leases' => 80, 'idemq.max_leases_per_database' => 30, 'idemq.reserved_leases' => 16);
my $used = "SELECT used FROM idemq.memory WHERE resource = 'leases'";
my $share = "SELECT used, size FROM idemq.memory WHERE resource = 'leases of this database'";
my $alone = "SELECT row_only_total FROM idemq.metrics WHERE queue = 'q'";

sub fill
{
	my ($db) = @_;

	sql($node, "SELECT idemq.create_queue('lim', max_running => 50, lease => '1 h');
		SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 200) n));
		SELECT count(*) FROM idemq.enqueue_many('lim', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 200) n))", $db);
}

foreach my $db ('one', 'two')
{
	sql($node, "CREATE DATABASE $db");
	sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h')", $db);
}
fill($_) foreach 'postgres', 'one', 'two';

# Two databases come to their shares at once.
my @filling = map {
	my $session = session($node, $_);
	my $work = 'SELECT count(*) FROM idemq.claim(\'q\', 1);' x 60;
	$session->query_until(qr/sent/, "\\echo sent\n$work\n");
	$session
} 'one', 'two';
$_->query_safe('SELECT 1'), leave($_) foreach @filling;
is_sql($node, $share, '24|30', "$_: queues without a limit use their share but for the reserve of it", $_) foreach 'one', 'two';
is_sql($node, $alone, 36, "$_: the other claims are on their rows alone", $_) foreach 'one', 'two';
is_sql($node, "SELECT count(*) FROM idemq.claim('lim', 20)", 6, "$_: the reserve is there for its limited queues", $_) foreach 'one', 'two';
is_sql($node, "SELECT idemq.why(max(id)) LIKE '%idemq.max_leases%' FROM idemq.jobs WHERE status = 'pending' AND queue_id = idemq.queue_id('lim')", 't', 'why', 'one');
is_sql($node, "SELECT string_agg(DISTINCT invariant, ' ' ORDER BY invariant) FROM idemq.check()", 'leases.full limits.full', 'check says so', 'one');

# The others keep theirs; of the table, too, one part is for limited queues alone.
is_sql($node, $used, 60, 'both shares are used');
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 20)", 20, 'a third database claims');
is_sql($node, $share, '4|30', 'in the table, up to the reserve');
is_sql($node, "SELECT count(*) FROM idemq.claim('lim', 40)", 16, 'its limited queue has that');
is_sql($node, $used, 80, 'and the table is full');
is_sql($node, "SELECT count(*) FROM idemq.claim('lim', 40)", 0, 'to the last entry');

# What goes makes room where it was.
sql($node, "SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running' AND queue_id = idemq.queue_id('lim') LIMIT 3", 'one');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'three entries of the reserve are free: not for others', 'one');
is_sql($node, $share, '27|30', 'they stay free', 'one');
is_sql($node, "SELECT count(*) FROM idemq.claim('lim', 40)", 3, 'but for limited queues, of any database');
is_sql($node, "BEGIN; SAVEPOINT a; SELECT count(*) FROM idemq.claim('lim', 1); ROLLBACK TO a; COMMIT", 0, 'full', 'two');
is_sql($node, $clean, '', "check: $_", $_) foreach 'postgres', 'one', 'two';

# A database that is dropped takes its leases along; a new one finds the whole share.
is_state($node, 'DROP DATABASE two', '00000', 'DROP DATABASE');
is_sql($node, $used, 50, 'its leases are gone');
sql($node, 'CREATE DATABASE three');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h')", 'three');
fill('three');
is_sql($node, "SELECT count(*) FROM idemq.claim('lim', 40)", 30, 'a new one', 'three');
is_sql($node, $share, '30|30', 'has a share', 'three');
is_sql($node, "BEGIN; TRUNCATE idemq.jobs; COMMIT; $share", '0|30', 'TRUNCATE: too', 'three');
$node->append_conf('postgresql.conf', 'idemq.max_leases_per_database = -1');
$node->reload;
is_soon($node, "SELECT size FROM idemq.memory WHERE resource = 'leases of this database'", '60', 'three quarters, after a reload');
is_sql($node, $clean, '', 'check');

# With the shipped library, which counts at no place.
shipped($node);
my $session = session($node, 'three');
my $counted = count_at($session->{backend}, 'idemq_leases_lock');
is($session->query_safe("SELECT count(*) FROM idemq.enqueue_many('lim', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, 60) n));
	SELECT count(*) FROM idemq.claim('lim', 60); $share; BEGIN; TRUNCATE idemq.jobs; COMMIT; $share"), "60\n50\n50|60\n0|60", 'a claim, and TRUNCATE');
SKIP:
{
	skip 'the library was built with stop points', 1 unless $ENV{IDEMQ_SHIPPED};
	is(($counted->())[0], 0, 'no place counts in the shipped library');
}
is_sql($node, $clean, '', 'check');
leave($session);
$node->stop;
done_testing();
