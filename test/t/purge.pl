# Retention and expiry by the background worker: it deletes what is past its
# retention and nothing else, misses nothing for ever, and cancels in time.  purge_slow counts its passes.
# stops: idemq_ranges_begin_pass idemq_retention_ended idemq_jobs_delete idemq_expire_ended
#
# at least 86 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

# meant to expire
my $node = new_server('purge', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'idemq.purge_interval' => '100ms', autovacuum => 'off');
my $other = session($node);

sub set_to
{
	my ($name, $value) = @_;
	sql($node, "ALTER SYSTEM SET $name = '$value'");
	return sql($node, 'SELECT pg_reload_conf()');
}

# Turns the worker's passes off.  It may have begun one before it reads the setting: until what is past its retention stays.
sub passes_off
{
	set_to('idemq.purge_interval', '-1');
	until_true('no pass', sub {
		my $id = finish('mark');

		advance($node, '1 min');
		return sql($node, "SELECT count(*) FROM idemq.jobs WHERE id = $id");
	});
	return;
}

sub passes_on { return set_to('idemq.purge_interval', '100ms') } # meant to expire

# A new job of a queue, finished by SQL that has %d for its id and %t for its token.
sub finish
{
	my ($queue, $how) = @_;
	my ($id, $token) = split /\|/, sql($node, "SELECT c.id, c.token FROM idemq.enqueue('$queue', '1') e, idemq.claim_job(e.id) c");
	$how //= 'SELECT idemq.commit(%d, %t)';
	$how =~ s/%d/$id/g;
	$how =~ s/%t/$token/g;
	sql($node, $how);
	return $id;
}

# Makes jobs as old as they have to be; a pass or more goes by.
sub age { my ($where) = @_; return sql($node, "UPDATE idemq.jobs SET finished_at = finished_at - interval '2 days' WHERE $where") }
sub gone { my ($id, $name) = @_; advance($node, '00:00:10'); return is_soon($node, "SELECT NOT EXISTS (SELECT FROM idemq.jobs WHERE id = $id)", $name) }
sub there { my ($id, $name) = @_; return is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE id = $id", 1, $name) }

# Waits until the worker has come round: a job whose id one pass has met first, and a later
# one again, is gone.
sub next_pass { my ($name) = @_; return gone(finish('mark'), "$name: a pass") }

# ---- It purges by itself

# meant to expire
sql($node, "SELECT idemq.create_queue('mark', retention => '1 ms', idempotency_window => '0');
	SELECT idemq.create_queue('month', retention => '30 days');
	SELECT idemq.create_queue('second', retention => '10 min', dead_retention => '10 min', idempotency_window => '10 min')");
my $dead = finish('second', "SELECT idemq.fail(%d, %t, 'no', permanent => true)");
my $cancelled = finish('second', 'SELECT idemq.cancel(%d)');
my $completed = finish('second');
my $keyed = sql($node, "SELECT id FROM idemq.enqueue('second', '1', key => 'k')");
my $waits = sql($node, "SELECT id FROM idemq.enqueue('second', '1')");
my $kept = finish('month');
sql($node, "SELECT idemq.commit_once($keyed); SELECT idemq.once('s', 'k', '10 min')");
advance($node, '9 min');
there($_, 'stays until then') foreach $dead, $cancelled, $completed, $keyed;
advance($node, '2 min');
gone($_, 'deleted after its retention') foreach $dead, $cancelled, $completed, $keyed;
there($_, 'stays') foreach $waits, $kept;
is_soon($node, 'SELECT count(*) = 0 FROM idemq.attempts', 'with their history');
is_soon($node, 'SELECT count(*) = 0 FROM idemq_internal.seen', 'and what once need not remember');
sql($node, q{UPDATE idemq.audit SET at = at - interval '91 days' WHERE queue = 'month'});
is_soon($node, q{SELECT count(*) FILTER (WHERE queue = 'month') = 0 AND count(*) > 0 FROM idemq.audit}, 'and what was decided long ago');
is_sql($node, "SELECT purged_total, completed, dead, cancelled FROM idemq.metrics WHERE queue = 'second'", '4|0|0|0', 'they are counted');
is_state($node, "CALL idemq.wait_result($completed, '1 min', NULL, NULL)", 'IQ002', 'who waits for its result is told that there is no such job');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'nothing is wrong');

# A look for another length of time would find what the one at hand has missed.
sql($node, "SELECT idemq.drop_queue('second', force => true)");

# ---- A row that somebody holds

my $held = finish('q');
$other->query_safe("BEGIN; SELECT id FROM idemq.jobs WHERE id = $held FOR KEY SHARE");
age("id = $held");
my $free = finish('q');
age("id = $free");
sql($node, "SELECT idemq.alter_queue('q', retention => '1 h', idempotency_window => '1 h')");
gone($free, 'the others go');
next_pass('a row is held');
there($held, 'a row that is held stays');
$other->query_safe('COMMIT');
gone($held, 'and goes when it is free');

# A row that comes after the pass that has met its id.
SKIP:
{
	skip 'no stops', 1 unless can_stop($node);
	my $stop = stop_at(worker_pid($node), ('idemq_ranges_begin_pass') x 3);

	# A pass that does not know the id; one that does, and is over; the next one has not begun.
	$stop->();
	my $id = sql($node, "SELECT nextval('idemq.jobs_id_seq')");
	$stop->() foreach 1 .. 4;
	sql($node, "INSERT INTO idemq.jobs (id, queue_id, enqueued_at, priority, max_attempts, status, finished_at, payload)
		SELECT $id, queue_id, now(), 4, 1, 'completed', now(), '1' FROM idemq.queues WHERE name = 'mark'");
	$stop->();
	gone($id, 'a row that comes after its id, and after a pass');
}

# A session that sleeps in a transaction that is older than what is purged: what it
# finished comes behind the front.
$other->query_safe("BEGIN; SELECT pg_current_xact_id(); SELECT idemq.enqueue('mark', '\"late\"')");
$other->query_safe("SELECT idemq.commit(id, token) FROM idemq.claim('mark')");
next_pass('it is open');
$other->query_safe('COMMIT');
is_soon($node, "SELECT count(*) = 0 FROM idemq.jobs WHERE payload = '\"late\"'", 'what is committed late goes as well');
$other->query_safe("BEGIN; SELECT idemq.commit_once(id) FROM idemq.enqueue('mark', '\"later\"'); PREPARE TRANSACTION 'p'");
next_pass('it is prepared');
is_sql($node, 'SELECT count(*) FROM pg_prepared_xacts', 1, 'a prepared transaction is in nobody\'s way');
$other->query_safe("COMMIT PREPARED 'p'");
is_soon($node, "SELECT count(*) = 0 FROM idemq.jobs WHERE payload = '\"later\"'", 'nor is it missed');

# Jobs that finish long after their neighbours, and in another order, each in its time: long
# before the next sweep.
# meant to expire
sql($node, "SELECT idemq.create_queue('slow', retention => '300 ms', dead_retention => '300 ms', idempotency_window => '0')");
sql($node, "SELECT idemq.enqueue('slow', to_jsonb(n)) FROM generate_series(1, 3000) n");
next_pass('thousands wait');
$other->query_safe("SELECT idemq.commit_once(id) FROM idemq.jobs WHERE payload IN ('3000', '1500')");
is_soon($node, "SELECT count(*) = 0 FROM idemq.jobs WHERE payload IN ('3000', '1500')", 'two finish among them');
next_pass('they wait on');
$other->query_safe("SELECT idemq.cancel(id) FROM idemq.jobs WHERE payload::text ~ '^[0-9]*7\$'");
$other->query_safe("SELECT idemq.fail(c.id, c.token, 'no', permanent => true) FROM idemq.jobs j, idemq.claim_job(j.id) c WHERE j.payload = '2'");
is_soon($node, "SELECT count(*) = 2697 AND count(finished_at) = 0 FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = 'slow'", 'hundreds finish in all parts');
sql($node, "SELECT idemq.drop_queue('slow', force => true)");

# ---- Moved by hand, and other settings

my $moved = finish('month');
sql($node, "UPDATE idemq.jobs SET finished_at = finished_at - interval '2 h' WHERE id = $moved");
next_pass('kept for a month');
there($moved, 'one that is kept for a month');
sql($node, "SELECT idemq.alter_queue('month', retention => '1 h', idempotency_window => '1 h')");
gone($moved, 'goes when the retention gets shorter');
there($kept, 'but not a younger one');
sql($node, "SELECT idemq.alter_queue('month', retention => '30 days')");
$moved = finish('month');
sql($node, "UPDATE idemq.jobs SET queue_id = q.queue_id FROM idemq.queues q WHERE id = $moved AND q.name = 'mark'");
$node->restart;
$other = session($node);
gone($moved, 'after a restart, all is looked at');

# ---- Off and on

passes_off();
my $stays = finish('mark');
advance($node, '1 h');
there($stays, 'turned off');
is_sql($node, 'SELECT idemq.apply_retention() > 0', 't', 'by hand');
$stays = finish('mark');
passes_on();
gone($stays, 'turned on');

# ---- A held snapshot

$other->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idemq.jobs');
sql($node, "SELECT count(*) FROM idemq.enqueue_many('mark', array_fill('1'::jsonb, ARRAY[5000]));
	SELECT count(*) FROM idemq.claim('mark', 5000) c, idemq.try_commit(c.id, c.token)");
advance($node, '00:00:10');
is_soon($node, "SELECT count(*) = 0 FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = 'mark'", 'beside a held snapshot');
$other->query_safe('COMMIT');

# ---- What a DBA has put on the table

my $log = log_end($node);
sql($node, "CREATE TABLE mine (job_id bigint REFERENCES idemq.jobs DEFERRABLE INITIALLY DEFERRED);
	CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF OLD.payload = ''\"no\"'' THEN RAISE ''not this one''; END IF; RETURN OLD; END';
	CREATE TRIGGER refuse BEFORE DELETE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION refuse()");
my @stay = (finish('q', "SELECT idemq.commit(%d, %t); UPDATE idemq.jobs SET payload = '\"no\"' WHERE id = %d"),
	finish('q', 'SELECT idemq.commit(%d, %t); INSERT INTO mine VALUES (%d)'));
my $goes = finish('q');
age("id IN ($stay[0], $stay[1], $goes)");
sql($node, "SELECT idemq.alter_queue('q', retention => '2 h', idempotency_window => '2 h')");
gone($goes, 'what is refused does not keep the others');
next_pass('refusals');
there($_, 'what is refused stays') foreach @stay;
is_logged($node, qr/LOG:  job $stay[0] has passed its retention period but cannot be deleted: not this one/, 'and is logged', $log);
# A task that had to wait for a lock of the statements above gives up after 200 ms (55P03), and is run again.
is(join('', grep { /ERROR:/ && !/\] 55P03 / } split /^/, slurp_file($node->logfile, $log)), '', 'the task has not failed');
sql($node, 'DROP TABLE mine; DROP FUNCTION refuse CASCADE');
sql($node, "SELECT idemq.alter_queue('q', retention => '3 h', dead_retention => '3 h', idempotency_window => '3 h')");
gone($_, 'and goes when nothing keeps it') foreach @stay;

# ---- A job that comes back to life

SKIP:
{
	skip 'no stops', 4 unless can_stop($node);
	passes_off();
	sql($node, 'SELECT idemq.apply_retention()');
	my $back = finish('q', "SELECT idemq.fail(%d, %t, 'no', permanent => true)");
	age("id = $back");
	# With the row looked at, and found free and past its retention.
	my $purger = session($node);
	my $stop = stop_at($purger->query_safe('SELECT pg_backend_pid()'), 'idemq_jobs_delete');
	$purger->query_until(qr/sent/, "\\echo sent\nSELECT idemq.apply_retention();\n");
	$stop->();
	is_sql($node, "SELECT idemq.retry($back)", 'retrying', 'a dead job is made ready at the moment when it is deleted');
	$stop->();
	is($purger->query('SELECT'), 0, 'it is not deleted');
	is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $back", 'pending', 'and is ready');
	is_sql($node, "SELECT count(*) FROM idemq.attempts WHERE job_id = $back", 1, 'with its history');
	leave($purger);
	passes_on();
}

# ---- Expiry

my $brief = "expires_in => '10 min'";
my $is_expired = "status = 'cancelled' AND last_error LIKE 'expired%'";

sub is_cancelled { my ($id, $name) = @_; return is_soon($node, "SELECT $is_expired FROM idemq.jobs WHERE id = $id", $name) }
sub expiring { my ($queue, $more) = @_; return sql($node, "SELECT id FROM idemq.enqueue('$queue', '1', $brief" . ($more // '') . ')') }

sql($node, "SELECT idemq.create_queue('paused'); SELECT idemq.pause('paused'); SELECT idemq.create_queue('nested'); SELECT idemq.create_queue('brief')");
sql($node, "SELECT idemq.purge('q')");
# meant to expire
is_cancelled(sql($node, "SELECT id FROM idemq.enqueue('brief', '1', expires_in => '50 ms')"), 'nobody claimed it, by the real time');
my $never = sql($node, "SELECT id FROM idemq.enqueue('q', '1', expires_in => '1 day')");
my %expires = (expiring('q') => 'nobody claimed it', expiring('q', ", delay => '1 h', priority => 9") => 'one that is not due',
	expiring('q', ", key => 'k'") => 'one with a key', expiring('paused') => 'in a paused queue',
	expiring('paused', ", delay => '2 h', priority => 1") => 'in a paused queue, one of two priorities',
	expiring('paused', ", delay => '1 h', priority => 8") => 'in a paused queue, the other one');
my ($replaced) = split /\n/, sql($node, "SELECT id FROM idemq.enqueue('q', '1', key => 'r');
	SELECT id FROM idemq.enqueue('q', '2', key => 'r', on_duplicate => 'replace', $brief)");
$expires{$replaced} = 'one that was replaced';
sql($node, "SELECT idemq.enqueue('q', '1', group_key => 'x', delay => '1 h')");
my ($blocked) = split /\n/, sql($node, "SELECT id FROM idemq.enqueue('q', '1', key => 'b', group_key => 'x');
	SELECT id FROM idemq.enqueue('q', '2', key => 'b', on_duplicate => 'replace', $brief)");
$expires{$blocked} = 'one that was replaced behind its group\'s head';
# The only one of its queue that expires: nothing else has the worker look.
sql($node, "BEGIN; SELECT idemq.enqueue('nested', '2'); SAVEPOINT s; SELECT idemq.enqueue('nested', '1', $brief); RELEASE s; COMMIT");
my $nested = sql($node, "SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id('nested') AND expires_at IS NOT NULL");
$expires{$nested} = 'one of a savepoint';
my $awaited = sql($node, "SELECT id FROM idemq.enqueue('q', '1', key => 'w')");
my $waiter = waiter($node, "CALL idemq.wait_result($awaited, '10 h', NULL, NULL)");
is_sql($node, "SELECT id FROM idemq.enqueue('q', '2', key => 'w', on_duplicate => 'replace', $brief)", $awaited, 'one that somebody waits for');
# Claimed in time, and given back.
$other->query_safe('CREATE TABLE claimed (id bigint, token bigint)');
my $released = expiring('q');
is($other->query_safe("INSERT INTO claimed SELECT id, token FROM idemq.claim_job($released) RETURNING id"), $released, 'claimed in time');
my $failed = expiring('q');
is($other->query_safe("SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.claim_job($failed)"), 'retrying', 'claimed in time, and failed');
my $rolled_back = expiring('q');
my $claimer = session($node);
is($claimer->query_safe("BEGIN; SELECT outcome FROM idemq.claim_job($rolled_back)"), 'claimed', 'claimed in time, and open');
$other->query_safe("BEGIN; SELECT idemq.enqueue('q', '\"prepared\"', $brief); PREPARE TRANSACTION 'p'");
sql($node, "SELECT count(*) FROM idemq.enqueue_many('q', array_fill('\"many\"'::jsonb, ARRAY[2000]), expires_ins => array_fill('10 min'::interval, ARRAY[2000]))");
my $all = join ', ', $awaited, sort keys %expires;

advance($node, '9 min');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE id IN ($all) AND status IN ('pending', 'blocked')", 1 + keys %expires, 'none before its time');
advance($node, '2 min');
foreach my $id (sort keys %expires) { is_cancelled($id, $expires{$id}) }
like(answer($waiter), qr/cancelled/, 'a session that waits for its result is woken');
leave($waiter->{session});
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE payload = '\"many\"' AND status = 'cancelled'", 2000, 'many');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $released", 'running', 'a job that was claimed in time goes on');
$other->query_safe('SELECT idemq.release(id, token) FROM claimed');
is_cancelled($released, 'given back, it has expired');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $rolled_back", 'pending', 'a claim that is open');
$claimer->query_safe('ROLLBACK');
is_cancelled($rolled_back, 'is rolled back');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $failed", 'retrying', 'one that waits for its retry does not expire');
$other->query_safe("COMMIT PREPARED 'p'");
is_soon($node, "SELECT status = 'cancelled' FROM idemq.jobs WHERE payload = '\"prepared\"'", 'a prepared one');
leave($other, $claimer);
my $restart = expiring('q');
crash($node);
my $by_hand = sql($node, "INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload, expires_at)
	SELECT queue_id, idemq.now(), 4, 1, 'pending', idemq.now(), '1', idemq.now() + interval '10 min' FROM idemq.queues WHERE name = 'q' RETURNING id");
advance($node, '11 min');
is_cancelled($restart, 'after a crash');
is_cancelled($by_hand, 'one that was inserted by hand');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $never", 'pending', 'one that has time left stays');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'nothing is wrong');

# A scan of two steps, stopped between them: a retry moves a job to where it has been, and says so.
# (In a paused queue: nobody looks for work, and meets it.)
SKIP:
{
	skip 'no stops', 3 unless can_stop($node);
	sql($node, "SELECT idemq.create_queue('far'); SELECT idemq.pause('far');
		SELECT count(*) FROM idemq.enqueue_many('far', array_fill('1'::jsonb, ARRAY[21000]), delays => array_fill('50 min'::interval, ARRAY[21000]))");
	my $moved = sql($node, "SELECT id FROM idemq.enqueue('far', '1', delay => '1 h', expires_in => '30 min')");
	my $first = expiring('far');
	my $stop = stop_at(worker_pid($node), 'idemq_expire_ended');
	my $clock = session($node);

	$clock->query_until(qr/sent/, "\\echo sent\nCALL idemq.advance_clock('11 min');\n");
	$stop->();
	is_sql($node, "SELECT status FROM idemq.jobs WHERE id IN ($first, $moved) ORDER BY id", "pending\ncancelled", 'a scan, in the middle');
	is_sql($node, "SELECT idemq.retry($moved)", 'retrying', 'a retry');
	$stop->();
	$clock->query_safe('SELECT');
	leave($clock);
	advance($node, '20 min');
	is_cancelled($moved, 'and what was moved behind it expires');
}

# The worker has read the sequence of ids; TRUNCATE locks the table, and then the sequence.  What the worker does after the
# first batch of the pass may be refused the table, if TRUNCATE holds it for more than 200 ms.
SKIP:
{
	skip 'no stops', 3 unless can_stop($node);
	my $stop = stop_at(worker_pid($node), 'idemq_ranges_begin_pass', 'idemq_retention_ended');
	my $truncate = session($node);

	$stop->();
	my $log = log_end($node);
	$truncate->query_until(qr/sent/, "\\echo sent\nTRUNCATE idemq.jobs RESTART IDENTITY;\n");
	wait_until($node, "SELECT relation = 'idemq.jobs_id_seq'::regclass FROM pg_locks WHERE pid = $truncate->{backend} AND NOT granted");
	$stop->();
	$stop->();
	is(join('', grep { /ERROR/ } split /^/, slurp_file($node->logfile, $log)), '', 'a pass of retention begins beside TRUNCATE ... RESTART IDENTITY');
	is($truncate->query('SELECT 1'), 1, 'TRUNCATE goes on when it has begun');
	is($truncate->{stderr}, '', 'neither is in the way of the other');
	$stop->();
	leave($truncate);
}

# In the shipped library, which has no stops.
shipped($node);
my $last = finish('mark');
gone($last, 'shipped: deleted');
$last = expiring('q');
advance($node, '11 min');
is_cancelled($last, 'shipped: cancelled');
$node->stop;
done_testing();
