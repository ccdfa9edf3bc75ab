# Prometheus itself: idemq.prometheus by Debian's sql-exporter into Debian's Prometheus, whose
# rules are those of deploy/prometheus with shorter times.  On a healthy server no alert fires;
# then each is made to fire by what it is about, and by nothing else.  The dashboard's queries
# find something.
# slow: Prometheus scrapes in real time, for more than a minute
# takes long
#
# at least 73 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use HTTP::Tiny;
use Idemq;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $source = $ENV{IDEMQ_SOURCE};
my $deploy = "$source/deploy/prometheus";
my $dir = $PostgreSQL::Test::Utils::tmp_check;

sub has { my ($program) = @_; return scalar grep { -x "$_/$program" } split /:/, $ENV{PATH} }

if (my @missing = grep { !has($_) } qw(prometheus promtool prometheus-sql-exporter))
{
	plan skip_all => "no $missing[0]";
}

my $node = new_server('prometheus', 'idemq.worker' => 'on', 'idemq.max_leases' => 64, 'idemq.max_queues' => 32, autovacuum => 'off',
	max_worker_processes => 4, max_connections => 40, timezone => 'Asia/Kathmandu', lc_messages => 'C');

# What is well: queues whose jobs are done, and one whose last job nobody has to do.
sql($node, "CREATE ROLE watch LOGIN IN ROLE pg_monitor; CALL idemq.tick(); SELECT idemq.create_queue('hung', lease => '1 h');
	SELECT idemq.schedule('on time', '0 0 1 1 *', 'hung', '1')");
sql($node, q[SELECT idemq.create_queue('times', lease => '1 h'); SELECT count(*) FROM idemq.enqueue_many('times', '{1,2,3,4}');
	SELECT count(idemq.commit(id, token)) FROM idemq.claim('times', 3)]);
my $pid = worker_pid($node);

# One worker more than max_worker_processes lets run, beside the launchers: it waits for a place.
foreach my $db (qw(other another))
{
	sql($node, "CREATE DATABASE $db");
	sql($node, "CREATE EXTENSION idemq", $db);
}

my $http = HTTP::Tiny->new(timeout => 60);
my %port = map { $_ => PostgreSQL::Test::Cluster::get_free_port() } qw(exporter prometheus);
my %process;
END { $_->kill_kill foreach values %process }

# Runs promtool; answers what it said when it failed.
sub promtool
{
	my ($in, @arguments) = @_;
	my $said = '';

	return IPC::Run::run([ 'promtool', @arguments ], '<', \$in, '>&', \$said, IPC::Run::timeout(180)) ? '' : $said;
}

is(promtool(sql($node, 'SELECT idemq.prometheus_text()') . "\n", 'check', 'metrics'), '', 'promtool finds nothing wrong with names, types and labels');
is(promtool('', 'test', 'rules', "$deploy/idemq-rules-test.yml"), '', 'the rules do what their tests say');

# A file of deploy/, with pairs of patterns and what to put in their place, each of which occurs.
sub adapted
{
	my ($name, @changes) = @_;
	my $text = slurp_file("$deploy/$name");

	while (my ($pattern, $new) = splice @changes, 0, 2)
	{
		$text =~ s/$pattern/$new/g or die "$name has no $pattern";
	}
	append_to_file("$dir/$name", $text);
	return "$dir/$name";
}

sub started
{
	my ($name, $path, @command) = @_;
	my $end = time + 180;

	$process{$name} = IPC::Run::start(\@command, '<', \undef, '>&', "$dir/$name.said");
	until ($http->get("http://127.0.0.1:$port{$name}$path")->{success})
	{
		die "$name does not start: " . slurp_file("$dir/$name.said") if time > $end || !$process{$name}->pumpable;
		sleep 0.05;
	}
	return;
}

# As figures go: the answer of Prometheus to a query, as a list of [ labels, value ].
sub query
{
	my ($expr) = @_;
	my $answer = $http->post_form("http://127.0.0.1:$port{prometheus}/api/v1/query", { query => $expr });
	my $data = eval { decode_json($answer->{content}) } // {};

	die "$expr: $answer->{content}" if ($data->{status} // '') ne 'success';
	return map { [ $_->{metric}, $_->{value}[1] ] } @{ $data->{data}{result} };
}

adapted('sql-exporter.yml', 'interval: 15s' => 'interval: 1s',
	'postgres:///postgres\?host=/var/run/postgresql&user=postgres' => sprintf('postgres:///postgres?host=%s&port=%d&user=watch', $node->host, $node->port));
# Seconds in place of minutes.
adapted('idemq-rules.yml', 'for: \d+m' => 'for: 2s', '\[10m\]' => '[15s]', 'snapshot_seconds > 1800' => 'snapshot_seconds > 8',
	'held_seconds > 1800' => 'held_seconds > 4',
	'stuck_seconds > 30' => 'stuck_seconds > 4', 'failures_total\[15s\]\) > 3' => 'failures_total[15s]) > 1', '> 1e6' => '> 3e4',
	'collected_timestamp_seconds > 120' => 'collected_timestamp_seconds > 20');
adapted('prometheus.yml', 'interval: 15s' => 'interval: 1s', '/etc/prometheus/idemq-rules.yml' => "$dir/idemq-rules.yml", '127.0.0.1:9237' => "127.0.0.1:$port{exporter}");

sql($node, qq[SELECT idemq.create_queue(name, lease => '1 h', max_attempts => 1 + 99 * (name <> 'deadly')::int, retry_base => '1 ms', retry_max => '1 ms')
	FROM unnest('{backlog,deadly,failing,zombie,expires,full,sched,broken,q2}'::text[]) AS name;
	SELECT idemq.create_queue('slow', lease => '1 s')]);
sql($node, q[CREATE ROLE planner LOGIN; SELECT idemq.grant_queue('sched', 'planner', 'enqueue')]);
sql($node, q[SET ROLE planner; SELECT idemq.schedule('refused', '0 0 1 1 *', 'sched', '1')]);
sql($node, q[SELECT idemq.schedule('late', '0 0 1 1 *', 'q2', '1')]);
started('exporter', '/metrics', 'prometheus-sql-exporter', "-config.file=$dir/sql-exporter.yml", "-web.listen-address=127.0.0.1:$port{exporter}");
my $patience = time + 180;
until ($http->get("http://127.0.0.1:$port{exporter}/metrics")->{content} =~ /^sql_idemq\{/m)
{
	die 'the exporter has no figures: ' . slurp_file("$dir/exporter.said") if time > $patience;
	sleep 0.05;
}
started('prometheus', '/-/ready', 'prometheus', "--config.file=$dir/prometheus.yml", "--storage.tsdb.path=$dir/tsdb",
	"--web.listen-address=127.0.0.1:$port{prometheus}", '--log.level=warn');

# A healthy server: jobs come and go, until all has been looked at.
my $since = time;
my $traffic = clients($node, q[SELECT idemq.enqueue('q', '1');
SELECT idemq.commit(id, token) FROM idemq.claim('q');
], '-c', 1, '-R', 30, '-T', 250, 'killed');
my $expect = sub {
	my ($expr, $name) = @_;
	my $end = time + 180;

	while (!query($expr)) { return fail("$name: never $expr") if time > $end; sleep 0.1 }
	return pass($name);
};
$expect->('rate(idemq_committed_total{queue="q"}[15s]) > 1', 'figures arrive, under their own names');
# Nobody works on these, and their jobs are due: here that is as it should be.
sql($node, "SELECT idemq.alter_queue(name, expect_workers => false) FROM idemq.queues WHERE name IN ('times', 'q2', 'sched')");
# Prometheus looks for its targets only some seconds after its start.
my $from = time;
$expect->('idemq:wait_seconds:p99_10m{queue="q"} < 10', 'quantiles of a window');
$expect->('count_over_time(idemq_collected_timestamp_seconds[1m]) > 9', 'for a while');
# Times are short here: where the machine stood still for some seconds, an alert is right; then another ten seconds are looked at.
my @alerts = query(sprintf q[max_over_time(ALERTS{alertstate="firing"}[%ds])], time - $from);
foreach (1 .. 6)
{
	last if !@alerts;
	diag join ' ', 'fired, looked at again: ', map { encode_json($_->[0]) } @alerts;
	sleep 12;
	@alerts = query('max_over_time(ALERTS{alertstate="firing"}[10s])');
}
is(join(" ", map { encode_json($_->[0]) } @alerts), "", "no alert fires on a healthy server");
# A scrape that takes longer than a second has failed, and until the next one there are none.
$expect->('count(count by (__name__) ({__name__=~"idemq_.+",instance!=""})) > 50', 'all figures are there');

# The dashboard: every query finds something.
my $board = decode_json(slurp_file("$deploy/grafana-idemq.json"));
foreach my $panel (grep { $_->{targets} } @{ $board->{panels} })
{
	foreach my $target (@{ $panel->{targets} })
	{
		my $expr = $target->{expr} =~ s/\$(?:database|queue)\b/.*/gr =~ s/\$__rate_interval/15s/gr;
		my (@found, $end);

		for ($end = time + 60; time < $end; sleep 0.2) { last if (@found = eval { query($expr) }) || $@ ne '' || $expr =~ /max_running/ }
		ok(@found > 0 || ($expr =~ /max_running/ && $@ eq ''), "dashboard: $panel->{title}: $target->{refId}") or diag "$expr $@";
	}
}
# ---- Each alert fires

my %wanted = map { $_ => 1 } slurp_file("$deploy/idemq-rules.yml") =~ /- alert: (\w+)/g;
my %fired;

# Waits until these alerts, as name or name{label}, have fired.
sub fire
{
	my (@alerts) = @_;
	my $end = time + 180;

	while (my @open = grep { !$fired{$_} } @alerts)
	{
		foreach (query('ALERTS{alertstate="firing"}'))
		{
			my $of = $_->[0]{queue} // $_->[0]{resource} // $_->[0]{task} // $_->[0]{holder} // $_->[0]{table};
			$fired{ $_->[0]{alertname} . (defined $of ? "($of)" : '') } //= time - $since;
		}
		@open = grep { !$fired{$_} } @alerts or last;
		if (time > $end) { fail("never fired: @open"); return }
		sleep 0.2;
	}
	ok($fired{$_}, "$_ fires") foreach @alerts;
	return;
}

sql($node, q[SELECT idemq.enqueue('backlog', '1', run_at => now() - interval '1 h');
	SELECT count(*) FROM idemq.enqueue_many('hung', '{1,2}'); SELECT count(*) FROM idemq.claim('hung', 2)]);
sql($node, q[SELECT idemq.create_queue('letters'), idemq.alter_queue('deadly', dead_letter_queue => 'letters'); SELECT idemq.enqueue('deadly', '1'); SELECT idemq.fail(id, token, 'no') FROM idemq.claim('deadly')]);
sql($node, q[SELECT count(*) FROM idemq.enqueue_many('failing', array_fill('1'::jsonb, '{20}'));
	SELECT idemq.fail(id, token, 'no', retry_in => '1 h') FROM idemq.claim('failing', 20)]);
# A zombie: it is reaped, and commits.
sql($node, q[SELECT idemq.enqueue('zombie', '1'); CREATE TABLE z AS SELECT id, token FROM idemq.claim('zombie', lease => '1 ms');
	SELECT pg_sleep(0.01); SELECT idemq.reap('zombie')]);
is_sql($node, 'SELECT idemq.try_commit(id, token) FROM z', 'stale', 'a zombie is refused');
sql($node, q[SELECT count(*) FROM idemq.enqueue_many('expires', array_fill('1'::jsonb, '{12}')); SELECT count(*) FROM idemq.claim('expires', 12, lease => '1 ms')]);
# A run beyond the lease of its queue.
my $slow = session($node);
$slow->query_until(qr/begun/, q[SELECT idemq.enqueue('slow', '1'); CREATE TABLE s AS SELECT id, token FROM idemq.claim('slow', lease => '1 h');
\echo begun
SELECT pg_sleep(1.1); SELECT idemq.commit(id, token) FROM s;
]);
my $held = session($node);
$held->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1');
sql($node, q[INSERT INTO idemq_internal.seen (scope, key, expires_at) SELECT 'a', i::text, now() + interval '1 day' FROM generate_series(1, 40000) i;
	UPDATE idemq_internal.seen SET expires_at = expires_at + interval '1 s'; UPDATE idemq_internal.seen SET expires_at = expires_at + interval '1 s']);
# Ticks: one that nobody asks for, one that its role may not enqueue any more.
sql($node, q[SELECT idemq.revoke_queue('sched', 'planner', 'enqueue'); UPDATE idemq_internal.schedule_entries SET done_until = now() - interval '1 year' WHERE name = 'refused']);
# The UPDATE wakes the worker, which tries the tick.
is_soon($node, "SELECT failed_at IS NOT NULL FROM idemq_internal.schedule_entries WHERE name = 'refused'", 'a tick is refused');
# The worker, which that wakes, would make up for it at once; a tick passes over a row that is locked.
my $keeper = session($node);
$keeper->query_safe(q[BEGIN; SELECT FROM idemq_internal.schedule_entries WHERE name = 'late' FOR KEY SHARE]);
sql($node, q[UPDATE idemq_internal.schedule_entries SET done_until = now() - interval '1 year' WHERE name = 'late']);
# A trigger that no reap comes through.
sql($node, q[CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one' USING ERRCODE = 'P0099'; END $$;
	CREATE TRIGGER refuse BEFORE UPDATE ON idemq.jobs FOR EACH ROW WHEN (OLD.worker = 'broken' AND NEW.status = 'pending') EXECUTE FUNCTION refuse();
	SELECT idemq.enqueue('broken', '1'); SELECT count(*) FROM idemq.claim('broken', lease => '1 ms', worker => 'broken')]);
my $filled = time;
# More jobs in flight than the lease table has room for; more queues than slots.
sql($node, q[SELECT count(*) FROM idemq.enqueue_many('full', array_fill('1'::jsonb, '{80}')); SELECT count(*) FROM idemq.claim('full', 80)]);
sql($node, q[SELECT idemq.create_queue('more' || i) FROM generate_series(1, 32 - (SELECT used FROM idemq.memory WHERE resource = 'queues')::int) i;] . restored_queue('more30'));
fire('IdemqBacklog(backlog)', 'IdemqNothingFinishes(hung)', 'IdemqJobsDie(deadly)', 'IdemqMostAttemptsFail(failing)', 'IdemqZombieCommits(zombie)',
	'IdemqLeasesExpire(expires)', 'IdemqMemoryFull(leases)', 'IdemqMemoryFull(queues)', 'IdemqMemoryFillsUp(queues)', 'IdemqQueueWithoutMemory(more30)',
	'IdemqSnapshotHeld(session)', 'IdemqTableBloats(seen)', 'IdemqScheduleLate(q2)', 'IdemqScheduleFails(sched)', 'IdemqMaintenanceTaskFails(reap)', 'IdemqRunsNearLease(slow)',
	'IdemqNobodyWorks(backlog)', 'IdemqDeadLetterQueueWaits(letters)');
is_logged($node, qr/ 53400 .*WARNING:  idemq's shared memory is full: \d+ of \d+ leases.*are in use\n.*DETAIL:  The leases of further claims are kept only in the rows/, 'the log says that the lease table is full');
wait_logged($node, qr/WARNING:  idemq's shared memory is full: \d+ of \d+ queues/);
my $log_file = $node->logfile;
my @said = slurp_file($log_file) =~ /WARNING:  idemq's shared memory is full: \d+ of \d+ (\w+)/g;
my %said = map { $_ => 1 } @said;
is(join(' ', sort keys %said), 'leases queues', 'each table');
cmp_ok(scalar @said, '<=', 2 * (1 + (time - $filled) / 60), 'once a minute');
sql($node, 'DROP TRIGGER refuse ON idemq.jobs');
leave($slow, $held, $keeper);
sql($node, q[SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbench']);
is($traffic->(), '', 'meanwhile jobs came and went');

# A queue that a worker holds back, and one that is full.
sql($node, q[SELECT idemq.hold_back(id, token, '10 min') FROM idemq.claim('backlog')]);
sql($node, q[SELECT idemq.alter_queue('zombie', max_unfinished => 2)]);
sql($node, q[SELECT idemq.enqueue('zombie', '1')]);
fire('IdemqQueueHeld(backlog)', 'IdemqQueueFull(zombie)');

# The worker: stopped, then none.
$pid = worker_pid($node);
kill STOP => $pid;
sql($node, q[SELECT idemq.enqueue('q2', '1'); SELECT count(*) FROM idemq.claim('q2', lease => '1 ms')]);
fire('IdemqWorkerStuck');
kill CONT => $pid;
# The other databases' take the places that there are; who is the first to ask is chance.
my $patience_for_places = time + 180;
until (sql($node, q[SELECT count(*) = 2 FROM pg_stat_activity WHERE backend_type = 'idemq worker' AND datname <> 'postgres']) eq 't')
{
	die 'the worker keeps its place' if time > $patience_for_places;
	sql($node, q[SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'idemq worker' AND datname = 'postgres']);
	sleep 0.1;
}
fire('IdemqWorkerDown');
$process{exporter}->kill_kill;
delete $process{exporter};
fire('IdemqNoFigures');
delete @wanted{ map { /^(\w+)/ } keys %fired };
is(join(' ', sort keys %wanted), '', 'every rule has fired');
is($fired{'IdemqNobodyWorks(letters)'} // $fired{'IdemqBacklog(letters)'}, undef, 'a dead-letter queue is no backlog');
is(join(' ', grep { /\((?:q|times|sched)\)/ && !/^IdemqSchedule/ } sort keys %fired), '', 'and none of the queues that are well');
# 08006: who was ended in the middle of an answer.
is(unexpected($node, qw(42501 P0099 57P01 08006)), '', 'no error that was not meant');
note "figure: the last alert fired after " . int(time - $since) . ' s';

$node->stop;
done_testing();
