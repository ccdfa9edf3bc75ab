# Figures for machines: idemq.prometheus shows what the other views show, under the names that the collector
# expects.  The dashboard and the alerts of deploy/prometheus are well-formed.  prometheus_slow has Prometheus itself.
#
# at least 76 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $deploy = "$source/deploy/prometheus";

my $node = new_server('prometheus', 'idemq.worker' => 'on', 'idemq.max_leases' => 64, 'idemq.max_queues' => 32, autovacuum => 'off',
	max_prepared_transactions => 2, max_worker_processes => 4, max_connections => 40, timezone => 'Asia/Kathmandu', lc_messages => 'C');

# ---- The view

# Names as promtool wants them, of all that there is; and what it says is what the other views say.
sql($node, "CREATE ROLE watch LOGIN IN ROLE pg_monitor; CREATE ROLE stranger LOGIN; CALL idemq.tick();
	SELECT idemq.create_queue('hung', lease => '1 h');
	SELECT idemq.schedule('on time \"quoted\\', '0 0 1 1 *', 'hung', '1')");
sql($node, q[SELECT idemq.create_queue('handled', group_max_running => 2); CREATE FUNCTION handle(payload jsonb) RETURNS void LANGUAGE sql AS '';
	SELECT idemq.set_handler('handled', 'handle(jsonb)', workers => 2)]);
is_state($node, 'SET ROLE stranger; SELECT * FROM idemq.prometheus', '42501', 'not for everybody');
is_sql($node, 'SET ROLE watch; SELECT count(*) FROM idemq.prometheus_names n WHERE NOT EXISTS (SELECT FROM idemq.prometheus p WHERE p.family = n.name)
	AND n.name NOT IN (\'idemq_test_clock_ahead_seconds\', \'idemq_schedule_last_run_timestamp_seconds\', \'idemq_table_last_vacuum_timestamp_seconds\', \'idemq_queue_max_running\', \'idemq_queue_unfinished\', \'idemq_queue_max_unfinished\')', 0,
	'pg_monitor sees all there is');
is_sql($node, q[SELECT count(*), count(DISTINCT (name, labels)) = count(*), bool_and(jsonb_typeof(labels) = 'object'), bool_or(family IS NULL),
	bool_and((type = 'counter') = (name LIKE '%\_total')), bool_and(coalesce(unit = 'seconds', false) = (family ~ '_seconds(_total)?$'))
	FROM idemq.prometheus] =~ s/count\(\*\), //r, 't|t|f|t|t', 'each sample once, named by its type and unit');
is_sql($node, q[SELECT count(*) FROM idemq.prometheus p WHERE (SELECT count(*) FROM idemq.prometheus_names n WHERE n.name = p.family) <> 1], 0, 'a family each');
is_sql($node, q[SELECT count(*) FROM idemq_internal.prometheus_samples s WHERE value IS NOT NULL AND NOT EXISTS (SELECT FROM idemq.prometheus p WHERE (p.name, p.labels) = (s.name, s.labels))], 0,
	'no sample without a name');
is_sql($node, q[SELECT string_agg(name || coalesce(labels->>'state', '') || '=' || value, ' ' ORDER BY name, value DESC, labels->>'state') FROM idemq.prometheus
	WHERE name LIKE 'idemq\_handler%'], 'idemq_handler_done_total=0 idemq_handler_failed_total=0 idemq_handler_max_workers=2 ' .
	join(' ', map { "idemq_handler_state$_" } qw(idle=1 off=0 refused=0 running=0 stopped=0 waiting=0)) . ' idemq_handler_workers=0', 'what a handler does');
# A label that the collector leaves out makes two samples one.
my ($labels) = slurp_file("$deploy/sql-exporter.yml") =~ /^\s+labels: \[metric, (.*)\]$/m;
is_sql($node, "SELECT string_agg(DISTINCT k, ' ') FROM idemq.prometheus, jsonb_object_keys(labels) k WHERE k <> ALL ('{$labels}')", '',
	'the collector passes on all labels');
sql($node, q[SELECT idemq.drop_handler('handled'); SELECT idemq.drop_queue('handled'); DROP FUNCTION handle]);
sql($node, q[SELECT idemq.create_queue('times', lease => '1 h'); SELECT count(*) FROM idemq.enqueue_many('times', '{1,2,3,4}');
	SELECT count(*) FROM idemq.claim('times', 3)]);
# No job is done within the first bucket.
sql($node, q[SELECT pg_sleep(0.01); SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running' ORDER BY id LIMIT 2; SELECT pg_sleep(0.3);
	SELECT idemq.commit(id, token) FROM idemq.jobs WHERE status = 'running']);
my $of = sub { return "(SELECT value FROM idemq.prometheus WHERE labels->>'queue' = 'times' AND name = '$_[0]'" . ($_[1] // '') . ')' };
is_sql($node, "SELECT @{[ $of->('idemq_jobs', q[ AND labels->>'status' = 'completed']) ]}, @{[ $of->('idemq_jobs', q[ AND labels->>'status' = 'pending']) ]},
	@{[ $of->('idemq_committed_total') ]}, @{[ $of->('idemq_run_seconds_count') ]}, @{[ $of->('idemq_wait_seconds_count') ]}, @{[ $of->('idemq_queue_lease_seconds') ]}",
	'3|1|3|3|3|3600', 'what the other views say');
is_sql($node, "SELECT @{[ $of->('idemq_oldest_ready_seconds') ]} BETWEEN 0.3 AND 600, @{[ $of->('idemq_run_seconds_sum') ]} BETWEEN 0.26 AND 600", 't|t', 'times are in seconds');
is_sql($node, "SELECT count(*), min(value), max(value), bool_and(value >= before) FROM
	(SELECT value, coalesce(lag(value) OVER (ORDER BY CASE labels->>'le' WHEN '+Inf' THEN 'Infinity' ELSE (labels->>'le')::float8 END), 0) AS before
	FROM idemq.prometheus WHERE labels->>'queue' = 'times' AND name = 'idemq_run_seconds_bucket') AS b", '27|0|3|t', 'buckets are cumulative');
# The third has run for longer than that; on a busy machine the others may have, too.
is_sql($node, "SELECT @{[ $of->('idemq_run_seconds_bucket', q[ AND labels->>'le' = '0.262144']) ]}",
	sql($node, q[SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('times') AND finished_at - claimed_at <= '00:00:00.262144']), 'and exact at their bounds');
is_soon($node, q[SELECT count(*) FROM idemq.maintenance_tasks WHERE runs > 0 AND task IN ('discover', 'follow', 'purge') AND busy > '0' AND failures = 0], 3, 'the worker has done its tasks');
is_soon($node, q[SELECT pid IS NOT NULL, stuck_for IS NULL, last_run > now() - interval '5 min', lag < '1 min' FROM idemq.background_worker], 't|t|t|t', 'and is well');

# Children, and waits for events; one whose time is over is none.
my $flows = q[SELECT string_agg(p.value::int::text, ' ' ORDER BY p.name, p.labels->>'queue') FROM idemq.prometheus p
	WHERE p.name IN ('idemq_children', 'idemq_event_waits') AND p.labels->>'queue' IN ('flows', 'times')];
sql($node, q[SELECT idemq.create_queue('flows'); SELECT idemq.enqueue('flows', '1', depends_on => ARRAY[e.id]) FROM idemq.enqueue('flows', '1') e, generate_series(1, 2);
	SELECT idemq.await_event(id, token, 'paid', '1 h') FROM idemq.claim('flows')]);
is_sql($node, $flows, '2 0 1 0', 'jobs that wait for others, and for events');
sql($node, q[UPDATE idemq.steps SET begun_at = begun_at - interval '10 min' WHERE state = 'waiting']);
is_sql($node, q[SELECT value BETWEEN 600 AND 1200 FROM idemq.prometheus WHERE name = 'idemq_oldest_event_wait_seconds' AND labels->>'queue' = 'flows'], 't', 'for how long');
sql($node, q[UPDATE idemq.steps SET call_until = clock_timestamp() WHERE state = 'waiting']);
is_sql($node, $flows, '2 0 0 0', 'until the time of the wait is over');
sql($node, q[SELECT idemq.drop_queue('flows', force => true)]);

# What has not been counted is not counted for a scrape.
sql($node, "BEGIN; SELECT idemq.enqueue('times', '5'); PREPARE TRANSACTION 'p'");
$node->restart;
worker_pid($node);
is_logged($node, qr/LOG:  idemq is starting recovery of database "postgres": 3 queues\n.*LOG:  idemq completed recovery of database "postgres": 3 queues, 0 running jobs, \d+ ms/s,
	'the log says that a recovery has begun, and what came of it');
sql($node, 'ALTER SYSTEM SET idemq.worker = off; SELECT pg_reload_conf()');
wait_until($node, 'SELECT pid IS NULL FROM idemq.background_worker');
sql($node, "COMMIT PREPARED 'p'");
is_sql($node, q[SELECT count(*) FROM idemq_internal.queue_metrics(false) WHERE pending IS NULL AND enqueued_total IS NOT NULL AND oldest_ready IS NULL = (queue_id <> (SELECT queue_id FROM idemq.queues WHERE name = 'times'))], 3,
	'gauges that would be counted are left out');
is_sql($node, q[SELECT count(*) FILTER (WHERE name = 'idemq_jobs'), count(*) FILTER (WHERE name = 'idemq_enqueued_total'), sum(value) FILTER (WHERE name IN ('idemq_worker_wanted', 'idemq_worker_up'))
	FROM idemq.prometheus], '0|3|0', 'of idemq.prometheus as well');
is_sql($node, q[SELECT idemq.recount() > 0], 't', 'until somebody counts');
is_sql($node, q[SELECT sum(value) FROM idemq.prometheus WHERE name = 'idemq_jobs' AND labels->>'status' = 'pending'], 2, 'then they are there');
sql($node, 'ALTER SYSTEM RESET idemq.worker; SELECT pg_reload_conf()');
is_logged($node, qr/LOG:  idemq background worker for database "postgres" exited\n.*DETAIL:  $_\./, "the log says why a worker ended: $_")
  foreach 'It was asked to stop, for example because the server is shutting down', 'The setting idemq.worker is off';

# ---- deploy/prometheus

my $board = decode_json(slurp_file("$deploy/grafana-idemq.json"));
my %seen;
ok(!$seen{ $_->{id} }++, "dashboard: panel $_->{id} has a number of its own") foreach @{ $board->{panels} };
my %place;
my @over = grep { my $p = $_->{gridPos}; my $bad = $p->{x} + $p->{w} > 24; foreach my $x ($p->{x} .. $p->{x} + $p->{w} - 1) { foreach my $y ($p->{y} .. $p->{y} + $p->{h} - 1) { $bad ||= $place{"$x $y"}++ } } $bad } @{ $board->{panels} };
is(scalar @over, 0, 'dashboard: no panel lies over another');

# Every alert has a section of the manual, which it names.
my $page = slurp_file("$source/doc/operations/alerts.md");
my @named = slurp_file("$deploy/idemq-rules.yml") =~ m|- alert: (\w+)\n(?:(?!- alert).*\n)*? +runbook: (\S+)|g;
while (my ($alert, $runbook) = splice @named, 0, 2)
{
	ok($runbook eq 'doc/operations/alerts.md#' . lc $alert && $page =~ /^## $alert$/m, "$alert: its runbook is there");
}

$node->stop;
done_testing();
