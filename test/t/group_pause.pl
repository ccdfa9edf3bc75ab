# One customer's jobs are paused: until a time, with and without a worker, through a crash, COMMIT PREPARED and a restart; a
# promotion that comes in between; on a standby; and ten thousand paused groups cost the others nothing.
# stops: idemq_pending_apply
# at least 44 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use Test::More;

my $node = new_server('pause', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', max_prepared_transactions => 5, max_connections => 40);
my $rows = 'SELECT count(*) FROM idemq.paused_groups';
my $in_index = q[SELECT count(*) FROM idemq.jobs WHERE group_key = 'g' AND ready_at IS NOT NULL AND status <> 'running'];
my $claim = q[SELECT string_agg(group_key || payload::text, ' ') FROM idemq.claim('q', 10)];
my $finish = q[SELECT count(*) FROM (SELECT idemq.try_commit(id, token) FROM idemq.jobs WHERE status = 'running') j WHERE true OR '' = 'running'];

# Pauses a group for a time, which passes when the test says so.
sub pause
{
	my ($for, $group) = (@_, 'g');

	return "SELECT idemq.pause('q', " . ($for ? "idemq.clock_timestamp() + interval '$for'" : 'NULL') . ", '$group')";
}

sub enqueue
{
	my ($payload, $group, $more) = (@_, '');

	return sql($node, "SELECT outcome FROM idemq.enqueue('q', '$payload', group_key => '$group'$more)");
}

# ---- The end of a pause: a session that sleeps wakes, the row goes, the audit says so

sql($node, pause('1 h'));
enqueue(1, 'g');
my $waiter = waiter($node, "CALL idemq.wait('q', '1 day')");
sql($node, pause('10 min'));
advance($node, '9 min');
is_sql($node, $rows, 1, 'a pause lasts until its time');
is_sql($node, $claim, '', 'and nothing is claimed');
is_sql($node, 'SELECT m.paused_groups, l.paused_until > idemq.clock_timestamp() FROM idemq.metrics m, idemq.paused_group_list l', '1|t', 'it is shown');
advance($node, '1 min');
is(answer($waiter), 't', 'a session that waits is woken at its end');
leave($waiter->{session});
is_sql($node, $rows, 0, 'the worker deletes the row');
is_sql($node, q[SELECT action, session_role <> '', details ? 'until', details ->> 'group_key' FROM idemq.audit ORDER BY id DESC LIMIT 1], 'resume|t|t|g', 'the audit says so');
is_sql($node, $claim, 'g1', 'the job is there');
sql($node, $finish);

# A longer pause replaces a shorter one; another group shows that the worker has come past the time.
enqueue(2, 'g');
sql($node, pause('10 min'));
sql($node, pause('1 h'));
sql($node, pause('20 min', 'clock'));
advance($node, '20 min');
is_sql($node, 'SELECT group_key FROM idemq.paused_groups', 'g', 'a pause that was made longer goes on');
is_sql($node, $claim, '', 'and its jobs wait');

# A row that is locked holds up nobody, and is tried again.
my $holder = session($node);
$holder->query_safe(q[BEGIN; SELECT FROM idemq.paused_groups WHERE group_key = 'g' FOR UPDATE]);
sql($node, pause('10 min', 'clock'));
my $worker = stop_worker($node);
my $mover = session($node);
$mover->query_until(qr/sent/, "\\echo sent\nCALL idemq.advance_clock('1 h');\n");
kill 'CONT', $worker;
is_soon($node, $rows, 1, 'the worker is not held up by a locked row');
is_sql($node, $rows . q[ WHERE group_key = 'g'], 1, 'which is still there');
$holder->query_safe('COMMIT');
is_soon($node, $rows, 0, 'and goes once it can');
$mover->query_safe('SELECT 1');
leave($holder, $mover);
is_soon($node, q[SELECT count(*) FROM idemq.jobs WHERE group_key = 'g' AND status = 'pending'], 1, 'the worker promotes the group');
sql($node, $claim);
sql($node, $finish);

# expires_in goes on counting.
sql($node, pause(undef));
enqueue(3, 'g', ", expires_in => '5 min'");
enqueue(4, 'g', ", expires_in => '1 day'");
advance($node, '6 min');
is_sql($node, q[SELECT string_agg(payload::text || ':' || status, ' ' ORDER BY id) FROM idemq.jobs WHERE group_key = 'g' AND payload IN ('3', '4')], '3:cancelled 4:blocked', 'a job of a paused group expires');

# ---- A crash, a restart, two phases

crash($node);
worker_pid($node);
advance($node, '1 min');
is_sql($node, $in_index, 0, 'after a crash the group is paused');
is_sql($node, $claim, '', 'nothing of it is claimed');
sql($node, pause('10 min'));
$node->restart;
worker_pid($node);
advance($node, '9 min');
is_sql($node, $claim, '', 'after a restart, too');
advance($node, '1 min');
is_soon($node, $claim, 'g4', 'until its time');
sql($node, $finish);
enqueue(5, 'g');
sql($node, 'BEGIN; ' . pause('10 min') . q[; PREPARE TRANSACTION 'p']);
sql($node, q[COMMIT PREPARED 'p']);
is_sql($node, $claim, '', 'a pause that was prepared holds once it is committed');
is_soon($node, $in_index, 0, 'and the job is not in the index');
sql($node, q[BEGIN; SELECT idemq.resume('q', 'g'); PREPARE TRANSACTION 'r'; ROLLBACK PREPARED 'r']);
is_sql($node, $claim, '', 'a resume that was rolled back does not');
sql($node, q[BEGIN; SELECT idemq.resume('q', 'g'); PREPARE TRANSACTION 'r']);
sql($node, q[COMMIT PREPARED 'r']);
is_soon($node, $claim, 'g5', 'one that was prepared and committed does');
sql($node, $finish);

# ---- The worker checks a group as soon as the pause's commit has marked it, before the commit has told others of the change

SKIP:
{
	skip 'no stop points in the library', 3 unless has_stops();
	my $session = session($node);
	my $stop = stop_at($session->query_safe('SELECT pg_backend_pid()'), 'idemq_pending_apply');

	$session->query_until(qr/sent/, "\\echo sent\nBEGIN; " . pause(undef) . "; SELECT idemq.enqueue('q', '6', group_key => name) FROM unnest('{g,other}'::text[]) name; COMMIT;\n");
	$stop->();
	is_soon($node, q[SELECT count(*) FROM idemq.jobs WHERE group_key = 'other' AND status = 'pending'], 1, 'the worker promotes another group of the same commit');
	is_sql($node, $in_index, 0, 'and knows already that this one is paused');
	$stop->();
	$session->query_safe('SELECT 1');
	is_sql($node, $claim, 'other6', 'no claim takes its job');
	leave($session);
	sql($node, $finish);
	sql($node, "SELECT idemq.resume('q', 'g')");
	is_soon($node, $claim, 'g6', 'it comes after the resume');
	sql($node, $finish);
}

# A worker that has read the settings before, and whose attempt fails after.
enqueue(7, 'g');
is_soon($node, $claim, 'g7', 'a job runs');
my $old = session($node);
$old->query_safe(q[SELECT count(*) FROM idemq.claim('q')]);
sql($node, pause(undef));
is($old->query_safe(q[SELECT idemq.fail(id, token, 'no', retry_in => '0 s') FROM idemq.jobs WHERE status = 'running']), 'retrying', 'it fails');
is_sql($node, $in_index, 0, 'and is not put into the index');
leave($old);

# ---- A standby

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my $reader = session($standby);
my $seventh = q[SELECT idemq.why(id) FROM idemq.jobs WHERE payload = '7'];
like($reader->query_safe($seventh), qr/its group in queue "q" is paused: call idemq.resume/, 'a standby says that the group is paused');
is($reader->query_safe('SELECT queue, group_key, paused_by = current_user FROM idemq.paused_group_list'), 'q|g|t', 'and shows it');
is($reader->query_safe(q[SELECT paused_groups FROM idemq.metrics WHERE queue = 'q']), 1, 'in metrics, too');
is_state($standby, "SELECT idemq.pause('q', group_key => 'h')", '25006', 'pause is refused there');
is_state($standby, "SELECT idemq.resume('q', 'g')", '25006', 'and resume');
sql($node, "SELECT idemq.resume('q', 'g')");
caught_up($node, $standby);
unlike($reader->query_safe($seventh), qr/paused/, 'an end that was replayed is known');
leave($reader);
$standby->stop;
is_soon($node, $claim, 'g7', 'it runs again');
sql($node, $finish);

# ---- Ten thousand paused groups, and a hundred that are not: pages that a claim reads, as in a queue that has only the hundred

# Pages that claims of all hundred groups read, one job each: the first one apart, the median of the others.
sub pages
{
	my ($queue) = @_;
	my $session = session($node);
	my @pages;

	foreach (1 .. 50)
	{
		my $plan = $session->query_safe("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) SELECT idemq.commit(id, token) FROM idemq.claim('$queue')");
		my ($hit) = $plan =~ /shared hit=(\d+)/;
		my ($read) = $plan =~ /shared (?:hit=\d+ )?read=(\d+)/;

		push @pages, ($hit // 0) + ($read // 0);
	}
	leave($session);
	my @others = sort { $a <=> $b } @pages[1 .. 49];

	return ($pages[0], $others[24], $others[48]);
}

sql($node, "SELECT idemq.create_queue('few', lease => '1 h'), idemq.create_queue('many', lease => '1 h');
	SELECT count(*) FROM idemq.enqueue_many('few', array_fill('1'::jsonb, ARRAY[500]), group_keys => ARRAY(SELECT 'live ' || n % 100 FROM generate_series(1, 500) n));
	SELECT count(*) FROM idemq.enqueue_many('many', array_fill('1'::jsonb, ARRAY[20000]), group_keys => ARRAY(SELECT 'paused ' || n % 10000 FROM generate_series(1, 20000) n));
	SELECT count(*) FROM idemq.enqueue_many('many', array_fill('1'::jsonb, ARRAY[500]), group_keys => ARRAY(SELECT 'live ' || n % 100 FROM generate_series(1, 500) n))");
# All have been in the index before they are paused, and a snapshot keeps them there.
is_soon($node, q[SELECT count(*) FROM idemq.jobs WHERE status = 'pending'], 10_200, 'all groups have a job in the index');
my $snapshot = session($node);
$snapshot->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idemq.jobs');
is_sql($node, q[SELECT count(idemq.pause('many', group_key => 'paused ' || n)) FROM generate_series(0, 9999) n], 10000, 'ten thousand groups are paused');
is_sql($node, q[SELECT count(*) FROM idemq.jobs WHERE group_key LIKE 'paused %' AND ready_at IS NOT NULL], 0, 'none is in the index');
pages('few');
pages('many');
my (undef, $few, $few_most) = pages('few');
my (undef, $many, $many_most) = pages('many');
note("pages of a claim and commit: $few (at most $few_most) in a queue of 100 groups, $many (at most $many_most) beside 10,000 paused ones");
cmp_ok($many, '<=', $few + 8, 'a claim reads no more under a held snapshot');
$snapshot->query_safe('COMMIT');
leave($snapshot);
$node->restart;
worker_pid($node);
(my $first_few, $few, $few_most) = pages('few');
(my $first, $many, $many_most) = pages('many');
note("after a restart: $first_few, then $few (at most $few_most); $first, then $many (at most $many_most)");
cmp_ok($many, '<=', $few + 8, 'nor after a restart');

# ---- Without a worker the clock alone ends a pause

sql($node, 'ALTER SYSTEM SET idemq.worker = off');
$node->restart;
my $first_alone = (pages('many'))[0];
enqueue(8, 'g');
sql($node, pause('1 h'));
$waiter = waiter($node, "CALL idemq.wait('q', '1 day')");
advance($node, '1 h');
is(answer($waiter), 't', 'a session that waits wakes by itself');
leave($waiter->{session});
is_sql($node, $claim, 'g8', 'and claims the job');
sql($node, $finish);
note("without a worker, the first claim after a restart, which looks at all groups: $first_alone");
cmp_ok($first_alone, '<', 120_000, 'the first claim of a queue after a restart reads few pages for each group that is paused');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');

# The library as it ships, without stop points.
shipped($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
is(unexpected($node, '57P01'), '', 'nothing else in the log');
$node->stop;
done_testing();
