# idemq.history: what the worker writes is what was counted, and nothing twice, through a worker that ends, a restart,
# a crash, the setting; an idle database is left alone; a standby reads it.
# at least 38 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('history', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'idemq.purge_interval' => '-1', autovacuum => 'off', log_statement => 'none');
sql($node, q{
	SELECT idemq.create_queue('r'), idemq.create_queue('idle');
	-- So many jobs: each is enqueued and claimed; every fifth fails, every tenth dies, the others are committed.
	CREATE PROCEDURE work(queue text, jobs int) LANGUAGE plpgsql AS $$
	DECLARE
		c record;
	BEGIN
		FOR i IN 1 .. jobs LOOP
			PERFORM idemq.enqueue(queue, to_jsonb(i));
			SELECT * INTO c FROM idemq.claim(queue);
			IF i % 10 = 0 THEN
				PERFORM idemq.fail(c.id, c.token, 'x', permanent => true);
			ELSIF i % 5 = 0 THEN
				PERFORM idemq.fail(c.id, c.token, 'x', retry_in => '1 h');
			ELSE
				PERFORM idemq.commit(c.id, c.token);
			END IF;
			COMMIT;
		END LOOP;
	END $$});

my $figures = "ARRAY[sum(enqueued), sum(claimed), sum(completed), sum(failures), sum(died), sum(cancelled), sum(expired)]::bigint[]";
my $counters = "ARRAY[sum(enqueued_total), sum(claimed_total), sum(committed_total), sum(failed_total), sum(dead_total), sum(cancelled_total), sum(expired_total)]::bigint[]";

# The step that is under way ends, and is written.
sub end_step { return advance($node, '10 s', @_) }  # meant to expire

# Steps after a time have what the counters have, of each queue and of all together; and as many times in the histograms.
sub agree
{
	my ($since, $name) = @_;
	my $of = "FROM idemq.history WHERE step = 10 AND at > '$since'";

	end_step();
	is_sql($node, "SELECT bool_and((SELECT $figures $of AND queue = m.queue) IS NOT DISTINCT FROM m.counters)
		AND (SELECT $figures $of AND queue IS NULL) = (SELECT $counters FROM idemq.metrics)
		FROM (SELECT queue, $counters AS counters FROM idemq.metrics WHERE queue <> 'idle' GROUP BY 1) m",
		't', "$name: steps have what the counters have");
	is_sql($node, "SELECT (SELECT sum(n) FROM unnest((idemq.sum_counts(wait_counts))[2:]) n) = sum(claimed),
			(SELECT sum(n) FROM unnest((idemq.sum_counts(run_counts))[2:]) n) = sum(completed) $of AND queue IS NULL",
		't|t', "$name: what was counted is written, and its times with it");
	is_sql($node, "SELECT count(*) FROM idemq.history WHERE least(enqueued, claimed, completed, failures, died, cancelled, expired, pending, blocked,
			running, retrying, dead) < 0", 0, "$name: nothing is negative");
	return;
}

# ---- A database that is left alone from here on
sql($node, 'CREATE DATABASE still');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q'), idemq.enqueue('q', '1')", 'still');
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('q')", 'still');

# ---- While others work
my $begin = sql($node, "SELECT idemq.now() - interval '1 min'");

sql($node, "CALL work('q', 40); CALL work('r', 25)");
end_step();
is_sql($node, "SELECT sum(enqueued) FROM idemq.history WHERE queue = 'q' AND step = 10", 40, 'a step is written when it ends');
my @sessions = map { session($node) } 1 .. 3;
$_->query_until(qr/sent/, "\\echo sent\nCALL work('q', 60);\nCALL work('r', 60);\n") foreach @sessions;
$_->query('SELECT') foreach @sessions;
agree($begin, 'three sessions');
leave($_) foreach @sessions;
is_sql($node, "SELECT (h.pending, h.retrying, h.dead, h.running, h.blocked) = (m.pending, m.retrying, m.dead, m.running, m.blocked)
	FROM idemq.history h JOIN idemq.metrics m USING (queue) WHERE queue = 'q' AND step = 10 ORDER BY at DESC LIMIT 1", 't', 'the last row has the gauges');
is_sql($node, "SELECT count(*), max(enqueued) FROM idemq.history WHERE queue = 'idle' AND step = 10", '1|0', 'an idle queue has the row of the worker that began');
my $last = "SELECT pending, oldest_due IS NULL, oldest_due >= '0' FROM idemq.history WHERE queue = 'r' AND step = 10 ORDER BY at DESC LIMIT 1";
sql($node, "SELECT idemq.enqueue('r', '1')");
end_step();
is_sql($node, $last, '1|f|t', 'a job that is due is seen');
# By time alone, without a commit.
sql($node, "SELECT idemq.cancel(id) FROM idemq.jobs WHERE status = 'pending'");
sql($node, "SELECT idemq.enqueue('r', '1', delay => '1 min')");
end_step();
is_sql($node, $last, '1|t|', 'one that is deferred is not');
advance($node, '1 min');
end_step();
is_sql($node, $last, '1|f|t', 'what comes due by time alone is seen');
agree($begin, 'a delay');

# Nothing is counted there: the ends of its last minute and last 10 minutes, and nothing else.
end_step('still');
is_sql($node, "SELECT max(completed) FROM idemq.history WHERE queue = 'q' AND step = 10", 1, 'a database in which little happens', 'still');
my $runs = "SELECT runs FROM idemq.maintenance_tasks WHERE task = 'history'";
my $before = sql($node, $runs, 'still');

end_step('still') foreach 1 .. 12;
cmp_ok(sql($node, $runs, 'still') - $before, '<=', 2, 'an idle worker does not write every 10 s');

# ---- A worker that ends: the next goes on from there
my $former = worker_pid($node);
sql($node, "SELECT pg_terminate_backend($former)");
wait_until($node, "SELECT pid <> $former FROM idemq.background_worker");
worker_pid($node);
sql($node, "CALL work('q', 10)");
agree($begin, 'another worker');

# ---- A minute: its row is the sum of its parts, and has the last one's gauges
advance($node, '1 min');
is_sql($node, "SELECT count(*) > 1, bool_and((m.enqueued, m.claimed, m.completed, m.failures, m.wait_counts, m.pending, m.dead)
		IS NOT DISTINCT FROM (p.enqueued, p.claimed, p.completed, p.failures, p.wait_counts, p.pending, p.dead))
	FROM idemq.history m CROSS JOIN LATERAL (SELECT sum(enqueued) AS enqueued, sum(claimed) AS claimed, sum(completed) AS completed,
		sum(failures) AS failures, idemq.sum_counts(wait_counts) AS wait_counts, (array_agg(pending ORDER BY at DESC))[1] AS pending,
		(array_agg(dead ORDER BY at DESC))[1] AS dead
		FROM idemq.history WHERE step = 10 AND queue IS NOT DISTINCT FROM m.queue AND at > m.at - interval '1 min' AND at <= m.at) p
	WHERE m.step = 60", 't|t', 'a minute is what its steps are');

# ---- A standby reads it
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby, 'replay', $node->lsn('insert'));
is_sql($standby, "SELECT count(*) > 2, sum(completed) > 100, idemq.percentile(idemq.sum_counts(run_counts), 0.5) > '0' FROM idemq.history WHERE queue = 'q' AND step = 10", 't|t|t', 'a standby shows it');
$standby->stop;

# ---- A restart, and a crash: counters begin anew
foreach my $how ('a restart', 'a crash')
{
	# The next worker's first row may be there soon.
	my $last = sql($node, "SELECT max(at) FROM idemq.history WHERE queue = 'q' AND step = 10");
	my $written = "SELECT count(*), sum(completed) FROM idemq.history WHERE queue = 'q' AND step = 10 AND at <= '$last'";
	my $rows = sql($node, $written);

	$begin = sql($node, 'SELECT idemq.clock_timestamp()');
	sql($node, 'CHECKPOINT') if $how eq 'a crash';
	$how eq 'a crash' ? crash($node) : $node->restart;
	worker_pid($node);
	is_sql($node, $written, $rows, "$how: what was written is there");
	sql($node, "CALL work('q', 20)");
	agree($begin, $how);
}

# ---- Queues come and go
sql($node, "SELECT idemq.create_queue('new'); CALL work('new', 7)");
end_step();
is_sql($node, "SELECT sum(enqueued) FROM idemq.history WHERE queue = 'new' AND step = 10", 7, 'a queue that is created');
sql($node, "SELECT idemq.drop_queue('new', force => true); SELECT idemq.create_queue('new')");
is_sql($node, "SELECT count(*) FROM idemq.history WHERE queue = 'new' AND enqueued > 0", 0, 'another queue of that name has not its past');
sql($node, "CALL work('new', 3)");
end_step();
is_sql($node, "SELECT sum(enqueued) FROM idemq.history WHERE queue = 'new' AND step = 10", 3, 'but one of its own');
sql($node, 'TRUNCATE idemq.jobs');
sql($node, "CALL work('new', 2)");
end_step();
is_sql($node, "SELECT sum(enqueued) FROM idemq.history WHERE queue = 'new' AND step = 10", 5, 'a TRUNCATE takes nothing from it');

# ---- Rows are written over in place
sql($node, "UPDATE idemq_internal.history_steps SET at = at - interval '1 h'");
is_sql($node, "SELECT pg_relation_size('idemq_internal.history_steps') / 8192 < count(*) / 5 FROM idemq_internal.history_steps", 't', 'pages have room for it');
# The room of the versions before is free once nobody has a snapshot of before, as a worker in the middle of a task.
wait_until($node, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL) AND pid <> pg_backend_pid()');
my $hot = sql_counted($node, "UPDATE idemq_internal.history_steps SET at = at - interval '1 h'");
is_sql($node, "SELECT n_tup_hot_upd > 0.5 * n_tup_upd FROM pg_stat_all_tables WHERE relid = 'idemq_internal.history_steps'::regclass", 't', 'HOT');

# ---- The setting
my $off = sql($node, 'SELECT idemq.clock_timestamp()');
$node->append_conf('postgresql.conf', 'idemq.history = off');
$node->restart;
worker_pid($node);
my $steps = 'SELECT count(*), max(at) FROM idemq_internal.history_steps';
my $count = sql($node, $steps);
sql($node, "CALL work('q', 30)");
end_step();
is_sql($node, $steps, $count, 'nothing is written while it is off');
$node->append_conf('postgresql.conf', 'idemq.history = on');
$node->reload;
# The row with which it begins; of what was counted before it has nothing.
my $since = "FROM idemq.history WHERE queue = 'q' AND step = 10 AND at > '$off'";
until_true('the worker writes again', sub { end_step(); return sql($node, "SELECT count(*) $since") > 0 });
is_sql($node, "SELECT count(*), sum(enqueued), bool_and(pending IS NOT NULL) $since", '1|0|t', 'what happened while it was off is not there');
sql($node, "CALL work('q', 10)");
end_step();
is_sql($node, "SELECT sum(enqueued) $since", 10, 'and what happens from then on is');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'all is well');
# 57P01: a session that was about to end when the server restarted.
is(unexpected($node, '57P01'), '', 'nothing else was logged');
$node->stop;
done_testing();
