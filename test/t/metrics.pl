# idemq.metrics: gauges are exact, whatever a count meets on its way: commits
# that are visible and not yet added, prepared transactions, a restart, a
# standby; full tables.  Counts under load: metrics_slow.pl.
# stops: before_commit idemq_counters_add idemq_counters_end_count idemq_spi_query_at
# at least 66 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# The extension is made here, since new_server copies one whose jobs have not been counted since the server's start.
my $node = new_node('metrics', max_prepared_transactions => 5);
$node->start;
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h')");

# What the table says and the gauges do not.  Each queue has seven gauges: none may be missing.
my $drift = "SELECT string_agg(q.name || ' ' || status || ' ' || coalesce(gauge::text, 'nothing') || ' instead of ' || jobs, ', ') FROM idemq.queues q
	LEFT JOIN idemq.metrics m USING (queue_id),
	LATERAL (VALUES ('pending', pending), ('blocked', blocked), ('running', running), ('retrying', retrying),
		('completed', completed), ('dead', dead), ('cancelled', cancelled)) c(status, gauge),
	LATERAL (SELECT count(*) AS jobs FROM idemq.jobs j WHERE j.queue_id = q.queue_id AND j.status::text = c.status) j
	WHERE jobs IS DISTINCT FROM gauge";

# Whether queue q's gauges come from memory: SQL would count what is not committed.
sub is_known
{
	my ($server, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sql($server, "BEGIN; CREATE TEMP TABLE before AS SELECT pending FROM idemq.metrics WHERE queue = 'q';
		DO \$\$ BEGIN PERFORM idemq.enqueue('q', '1'); END \$\$;
		SELECT m.pending = before.pending FROM idemq.metrics m, before WHERE queue = 'q'; ROLLBACK", $expected, $name);
}

sub is_exact
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_known($node, 't', "$name: known");
	return is_sql($node, $drift, '', "$name: exact");
}

is_exact('a new queue');

# Every status but blocked has a job.
sql($node, "SELECT count(*) FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[20]));
	SELECT count(idemq.try_commit(id, token)) FROM idemq.claim('q', 3);
	SELECT count(idemq.fail(id, token, permanent => true)) FROM idemq.claim('q', 2);
	SELECT count(idemq.fail(id, token, retry_in => '1 h')) FROM idemq.claim('q', 2);
	SELECT count(idemq.cancel(id)) FROM idemq.job_list WHERE status = 'pending' AND id % 5 = 0;
	SELECT count(*) FROM idemq.claim('q', 2)");
is_sql($node, "SELECT string_agg(DISTINCT status::text, ' ' ORDER BY status::text) FROM idemq.jobs", 'cancelled completed dead pending retrying running', 'jobs in six states');
is_exact('jobs of every kind');

# ---- A wait is counted below the bounds that are greater than it

# Up to a quarter more than the greatest bound, 2^35 microseconds.
sql($node, "SELECT idemq.create_queue('bounds'); SELECT idemq.enqueue('bounds', '1', run_at => now() - interval '34400 s'); SELECT count(*) FROM idemq.claim('bounds')");
is_sql($node, "SELECT max(le) FILTER (WHERE le < 'Infinity'), max(jobs) FILTER (WHERE le < 'Infinity'), max(jobs), round(max(seconds) / 34400)
	FROM idemq_internal.timing_buckets() JOIN idemq.queues USING (queue_id) WHERE name = 'bounds' AND timing = 'wait'", '34359.738368|0|1|1', 'a wait of more than each bound');
sql($node, "SELECT idemq.drop_queue('bounds', force => true)");

# ---- Two-phase commit

foreach my $end ('COMMIT', 'ROLLBACK')
{
	sql($node, "BEGIN; SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,3}'); PREPARE TRANSACTION 'p'");
	is_exact("prepared, then $end");
	sql($node, "$end PREPARED 'p'");
	is_known($node, 'f', "after $end PREPARED, unknown");
	is_sql($node, "BEGIN; CREATE TEMP TABLE changed (); $drift; ROLLBACK", '', "after $end PREPARED, right all the same");
	sql($node, 'SELECT idemq.recount()');
	is_exact("counted after $end PREPARED");
}
sql($node, "BEGIN; SELECT idemq.enqueue('q', '1'); PREPARE TRANSACTION 'p'; SELECT idemq.recount()");
is_exact('counted while prepared');
sql($node, "COMMIT PREPARED 'p'; SELECT idemq.recount()");
is_exact('and then committed');

# ---- A count and a commit, at every turn

{
	my ($worker, $counter) = (session($node), session($node));
	my ($pid, $counter_pid) = ($worker->{backend}, $counter->{backend});
	my $work = "SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,3}')";
	my $count = 'SELECT idemq.recount()';
	# Runs SQL in a session up to a function; answers a sub that lets it end.
	my $begin = sub {
		my ($session, $at, $function, $sql) = @_;
		my $stop = stop_at($at, $function);

		$session->query_until(qr/began/, "\\echo began\n$sql;\n");
		$stop->();
		return sub { $stop->(); $session->query_safe('SELECT 1'); };
	};

	$counter->query_safe($count);
	my $end = $begin->($worker, $pid, 'before_commit', $work);
	$counter->query_safe($count);
	$end->();
	is_exact('counted before the commit is visible');

	$end = $begin->($worker, $pid, 'idemq_counters_add', $work);
	$counter->query_safe($count);
	$end->();
	is_exact('counted after the commit is visible, and before it is added');

	$end = $begin->($worker, $pid, 'idemq_counters_add', $work);
	$counter->query_safe($count);
	sql($node, $work);
	$counter->query_safe($count);
	$end->();
	is_exact('counted twice before it is added');

	$end = $begin->($counter, $counter_pid, 'idemq_counters_end_count', $count);
	sql($node, $work);
	is_state($node, $count, '55006', 'two counts at a time');
	is_known($node, 'f', 'unknown during a count');
	is_sql($node, $drift, '', 'right all the same');
	$end->();
	is_exact('committed and added during the count');

	my $end_count = $begin->($counter, $counter_pid, 'idemq_counters_end_count', $count);
	$end = $begin->($worker, $pid, 'idemq_counters_add', $work);
	$end_count->();
	$end->();
	is_exact('committed during the count, added after it');

	$end = $begin->($worker, $pid, 'idemq_counters_add', $work);
	$end_count = $begin->($counter, $counter_pid, 'idemq_counters_end_count', $count);
	$end->();
	$end_count->();
	is_exact('committed before the count, added during it');

	sql($node, "BEGIN; $work; PREPARE TRANSACTION 'p'");
	$end_count = $begin->($counter, $counter_pid, 'idemq_counters_end_count', $count);
	sql($node, "COMMIT PREPARED 'p'");
	$end_count->();
	is_known($node, 'f', 'a prepared transaction that ends during a count voids it');
	is_sql($node, $drift, '', 'right all the same');

	# A count that is interrupted ends.
	my $lock = session($node);
	$lock->query_safe('BEGIN; LOCK TABLE idemq.jobs IN ACCESS EXCLUSIVE MODE');
	# meant to expire
	is_state($node, "SET lock_timeout = '100 ms'; $count", '55P03', 'a count waits for a lock, and gives up');
	$lock->query_safe('ROLLBACK');
	$end_count = $begin->($counter, $counter_pid, 'idemq_spi_query_at', $count);
	sql($node, "SELECT pg_terminate_backend($counter_pid)");
	eval { $end_count->() };
	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $counter_pid");
	is_known($node, 'f', 'a count that was cut off leaves the gauges unknown');
	sql($node, $count);
	is_exact('the next one makes them known');
	leave($worker, $lock);
}

# ---- Another database, a restart, a standby, a promotion

$node->safe_psql('postgres', 'CREATE DATABASE other');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q'); SELECT idemq.enqueue('q', '1'); SELECT idemq.recount()", 'other');
is_sql($node, "SELECT pending, enqueued_total FROM idemq.metrics", '1|1', 'another database has its own', 'other');
is_exact('and the first one keeps its');
sql($node, 'DROP DATABASE other');

my $gauges = "SELECT pending, completed, dead FROM idemq.metrics WHERE queue = 'q'";
my $before = sql($node, $gauges);
$node->restart;
is_known($node, 'f', 'after a restart they are unknown');
is_sql($node, $gauges, $before, 'the first who asks counts them');
is_known($node, 't', 'and makes them known');
is_sql($node, "SELECT enqueued_total, wait_p50 IS NULL FROM idemq.metrics WHERE queue = 'q'", '0|t', 'counters begin anew');
sql($node, 'SELECT idemq.recount()');
is_exact('counted after the restart');

sql($node, "SELECT idemq.enqueue('q', '1', run_at => now() - interval '1 d')");
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
sql($node, "SELECT idemq.enqueue('q', '1')");
caught_up($node, $standby);
is_sql($standby, $gauges, sql($node, $gauges), 'a standby shows what it has replayed');
is_sql($standby, "SELECT oldest_ready > '23 h', in_memory FROM idemq.metrics WHERE queue = 'q'", 't|t', 'the oldest job as well');
is_sql($standby, 'SELECT count(*) FROM idemq.memory', 6, 'its memory is its own');
is_sql($standby, q[SELECT count(*) FILTER (WHERE labels ? 'queue'), max(value) FILTER (WHERE name = 'idemq_in_recovery'), count(*) > 50 FROM idemq.prometheus],
	'0|1|t', 'its figures for machines are of the server, not of queues');
is_state($standby, 'SELECT idemq.recount()', '25006', 'it has nothing to count');
$node->stop;
$standby->promote;
sql($standby, "SELECT idemq.enqueue('q', '1')");
is_sql($standby, $drift, '', 'after the promotion');
sql($standby, "SELECT idemq.recount(); SELECT idemq.enqueue('q', '1')");
is_known($standby, 't', 'known after the promotion');
is_sql($standby, $drift, '', 'and exact');
$standby->stop;

# ---- Full tables

my $full = new_server('full', 'idemq.max_leases' => 2, 'idemq.max_queues' => 1);
# Queue q is used first, so that the one slot is its own.
is_sql($full, "SELECT count(*) FROM idemq.claim('q')", 0, 'queue q is used');
sql($full, restored_queue('r') . "; INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
	SELECT idemq.queue_id('r'), now() - interval '1 min', 4, 5, 'pending', now() - interval '1 min', '1' FROM generate_series(1, 2);
	SELECT count(*) FROM idemq.enqueue_many('q', '{1,2,3,4,5}'); SELECT count(*) FROM idemq.claim('q', 4)");
is_sql($full, 'SELECT queue, pending, running, claimed_total, row_only_total, in_memory, counted_since IS NOT NULL,
	wait_p50 IS NOT NULL, oldest_ready IS NOT NULL FROM idemq.metrics ORDER BY queue',
	"q|1|4|4|2|t|t|t|t\nr|2|0|||f|f|f|t", 'a queue without a slot has gauges, and no counters');
is_sql($full, 'SELECT resource, used, size, refused > 0 FROM idemq.memory ORDER BY 1', "buckets|0|4096|f\ngroup room|0|4096|f\ngroups|0|16384|f\nleases|2|2|t\nleases of this database|2|2|t\nqueues|1|1|t", 'idemq.memory says so');
is_sql($full, 'SELECT idemq.recount()', 7, 'recount');
is_sql($full, $drift, '', 'exact');
# The library as it ships, without stop points.
shipped($full);
is_sql($full, $drift, '', 'exact with the shipped library');
$full->stop;

done_testing();
