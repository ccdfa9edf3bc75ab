# The Node client as npm packs it: the package, the tests of its transactions that need real time or other packages, and
# workers (node_worker.mjs) that hang, send no heartbeats, are idle, run in a container or behind a pooler, and go through
# a crash and a failover.  Each effect happens once.
# slow: needs npm; leases and job_timeout expire in real time, the server crashes and fails over
# takes long
# at least 69 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use NodeClient;
use NodeWorkers;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

# script/test has fetched it, or said why not.
plan skip_all => 'no npm packages' unless $ENV{IDEMQ_NODE_MODULES} && -d "$ENV{IDEMQ_NODE_MODULES}/pg-cursor";

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $client = "$ENV{IDEMQ_SOURCE}/clients/node";
my $json = JSON::PP->new->canonical;

{
	my ($packed) = packed() =~ m{([^/]+)$};
	my ($control) = slurp_file("$ENV{IDEMQ_SOURCE}/idemq.control") =~ /^default_version = '(.*)'/m;

	is($packed, "idemq-$control.tgz", 'npm pack: the version is that of the extension');
	is(join(' ', sort grep { !m{^(lib|examples|nestjs)/[a-z-]+\.js$} } map { s{^package/|\n$}{}gr } qx(tar -tf "$tmp/$packed")), 'LICENSE README.md index.d.ts nestjs/index.d.ts package.json',
		'what a user needs, and nothing else');
	is(slurp_file("$client/LICENSE"), slurp_file("$ENV{IDEMQ_SOURCE}/LICENSE"), 'the license is that of idemq');
}
my @programs = glob "$FindBin::RealBin/node_*.mjs";
my $app = application('app', [], @programs);
# Version 2 of the SDK runs with Node 18.
my $traced = application('traced', [ '@opentelemetry/api@~1.9.0', map { "\@opentelemetry/$_\@^2.0.0" } qw(sdk-trace-base sdk-metrics context-async-hooks core) ], @programs);
my $used = application('used', [ 'pg-cursor', 'pg-copy-streams' ], @programs);

my $node = new_server('node', 'idemq.worker' => 'on', max_connections => 60);

workers_of($node, $app);
foreach ([ 'run', $used, 'node_run_slow.mjs', 6 ], [ 'trace', $traced, 'node_trace.mjs', 1 ], [ 'otel', $traced, 'node_otel.mjs', 6 ])
{
	my ($name, $dir, $file, $least) = @$_;

	sql($node, "CREATE DATABASE $name");
	sql($node, 'CREATE EXTENSION idemq', $name);
	# A drain tries to connect once: a busy machine may take longer than the client's five seconds.
	local $ENV{CONNECTION} = $json->encode({ primary(), connectionTimeoutMillis => 60_000, database => $name });
	reports($file, $least, [ 'node', '--test-reporter=tap', "$dir/$file" ]);
}

my $asleep = 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep();
sql($node, "CREATE TABLE effects (id bigint, token bigint); SELECT idemq.alter_queue('q', retry_base => '1 h')");

# As soon_done, of a job of a queue with a job_timeout: one that a busy machine has kept for longer is begun once more.
sub done_in_time
{
	my ($id, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_soon($node, "SELECT status FROM idemq.jobs WHERE id = $id AND (status = 'completed' OR idemq.retry(id) IS NULL)", 'completed', $name);
}

# job_timeout.
sql($node, "SELECT idemq.alter_queue('q', job_timeout => '1 s')");
{
	my $worker = worker('run');
	my $slow = enqueue('{"sleep": 1000}');
	my $hung = enqueue('{"hang": true}');
	my $good = enqueue('{}');

	done_in_time($good, 'run: a worker whose handlers hang goes on');
	# The lease is over too: whoever is first when the transaction has ended, worker or server, says so.
	my $over = "count(*) FROM idemq.attempts WHERE attempt = 1 AND error IN ('stopped after 0.8 s (job_timeout)', 'job_timeout reached')";
	is_sql($node, "SELECT $over AND job_id = $slow", 1, 'a statement that lasts longer is cancelled');
	is_sql($node, "SELECT $over AND job_id = $hung", 1, 'a handler that does not end is left');
	is(slurped("cancelled.$hung"), "timeout\n", 'after its signal');
	like(terminate($worker), qr/^0 \{"committed":1,("retrying":\d+,?|"stale":\d+,?)+\}$/, 'it ends');
	is_sql($node, "SELECT count(*) FROM effects WHERE id IN ($slow, $hung)", 0, 'their effects are undone');
	is_soon($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND pid <> pg_backend_pid()", 'nothing is left in the server');

	$worker = worker('outside', { lease => '1 s' });
	$hung = enqueue('{"hang": true}');
	$good = enqueue('{}');
	done_in_time($good, 'outside: a worker whose handler hangs goes on');
	# Whoever is first: the worker's clock, or a heartbeat that finds the lease ended by the server's.
	like(slurped("cancelled.$hung"), qr/^((timeout|lease)\n)+$/, 'the handler was told');
	is_soon($node, "SELECT last_error ~ 'job_timeout|lease expired' FROM idemq.jobs WHERE id = $hung", 'its lease was let go');
	terminate($worker);
	sql($node, "SELECT idemq.cancel(id) FROM idemq.jobs WHERE finished_at IS NULL");
}
sql($node, "SELECT idemq.alter_queue('q', job_timeout => '0')");

# Heartbeats, and a lease that is lost.
{
	my $worker = worker('outside', { lease => '9 s', concurrency => 2 });
	my $id = enqueue('{"gate": "beaten"}');
	my $lost = enqueue('{"until": true}');

	until_file("began.$_") foreach $id, $lost;
	is_sql($node, "SELECT idemq.cancel($lost)", 'cancelled', 'a job is cancelled');
	until_file("cancelled.$lost");
	is(slurped("cancelled.$lost"), "lease\n", 'its handler is told');
	wait_until($node, "SELECT clock_timestamp() > claimed_at + '10 s' FROM idemq.jobs WHERE id = $id");
	open_gate('beaten');
	soon_done($id, 1, 'heartbeats keep a lease for longer than it is');
	is(terminate($worker), '0 {"committed":1,"stale":1}', 'it ends');

	# A loop that hangs sends none: the job is not kept by a timer of its own.
	$worker = worker('outside', { lease => '5 s' });
	$id = enqueue('{"block": "blocked"}');
	until_file("began.$id");
	is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $id", 'a worker that hangs loses its lease');
	open_gate('blocked');
	is_soon($node, "SELECT status = 'completed' AND attempt > 1 FROM idemq.jobs WHERE id = $id", 'and does it again when it has it again');
	terminate($worker);
	cmp_ok(() = slurped('effects') =~ /^$id /mg, '>', 1, 'an outside effect happens twice then: its token is another');
}

# An attached lease survives a server that ends idle sessions: the worker's own are excepted.
{
	my $worker = worker('run', {}, { primary(), options => '-c idle_session_timeout=1s', idleTimeoutMillis => 100 });
	my $id = enqueue('{"gate": "idle"}');

	until_file("began.$id");
	is_soon($node, "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'idemq q' AND state = 'idle'
		AND state_change < clock_timestamp() - interval '2 s'", 'a connection that is idle for longer stays');
	is_sql($node, "SELECT attached FROM idemq.running_jobs WHERE job_id = $id", 't', 'with its lease');
	open_gate('idle');
	soon_done($id, 1, 'connections that are idle keep their leases');
	terminate($worker);
}

# As the first process of a container, who gets no signal that it does not listen to.
SKIP: {
	my @alone = qw(unshare --user --map-root-user --pid --fork --kill-child);

	skip 'no namespaces here', 2 unless run_log([ @alone, 'true' ]);
	my $worker = worker('run', {}, undef, @alone);
	my $id = enqueue('{"gate": "contained"}');
	until_file("began.$id");
	my ($inside) = split ' ', slurp_file("/proc/$worker->{pid}/task/$worker->{pid}/children");
	like(slurp_file("/proc/$inside/status"), qr/^NSpid:.*\t1$/m, 'a worker with the number 1');
	kill 'TERM', $inside;
	said($worker, qr/stopping: 1 jobs/);
	open_gate('contained');
	is(ended($worker), '0 {"committed":1}', 'SIGTERM lets what runs end');
}

# A crash, and a server that only reads for a while.
foreach my $kind ('run', 'outside')
{
	my $worker = worker($kind, { concurrency => 2 });
	my $id = enqueue(qq({"gate": "crashed $kind"}));

	until_file("began.$id");
	wait_until($node, $asleep);
	crash($node);
	said($worker, qr/^warn idemq: reconnected after [0-9.]+ s$/m);
	open_gate("crashed $kind");
	soon_done($id, 1, "$kind: a job outlives a crash of the server");
	wait_until($node, $asleep);
	crash($node);
	soon_done(enqueue('{}'), 1, "$kind: so does a worker that waits");

	wait_until($node, $asleep);
	sql($node, 'ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()');
	wait_until($node, 'SHOW default_transaction_read_only', 'on');
	$id = sql($node, "SET default_transaction_read_only = off; SELECT id FROM idemq.enqueue('q', '{}')");
	said($worker, qr/no connection.*(does not accept writes|read-only)/);
	sql($node, 'SET default_transaction_read_only = off; ALTER SYSTEM RESET default_transaction_read_only; SELECT pg_reload_conf()');
	soon_done($id, 1, "$kind: a server that only reads is left, and found again");
	like(terminate($worker), qr/^0 \{"committed":3\}$/, "$kind: all of it is counted");
}

# A pooler in transaction mode, which is killed and started again in mid-job.
{
	my ($start, $dir, $port) = pooler($node, default_pool_size => 3);
	my %pooled = (primary(), host => $dir, port => $port);
	my $pooler = $start->();
	foreach my $kind ('run', 'outside')
	{
		my $worker = worker($kind, { waitConnection => { primary() }, concurrency => 5 }, \%pooled);
		wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'idemq q' AND " . asleep());
		my $id = enqueue(qq({"gate": "pooled $kind"}));
		until_file("began.$id");
		is_sql($node, "SELECT attached FROM idemq.running_jobs WHERE job_id = $id", 'f', "pooler, $kind: no lease is attached");
		$pooler->kill_kill;
		said($worker, qr/no connection/) if $kind eq 'run';
		$pooler = $start->();
		open_gate("pooled $kind");
		soon_done($id, 1, "pooler, $kind: one that is killed takes no job with it");
		my @ids = map { enqueue('{}') } 1 .. 20;
		is_soon($node, "SELECT count(*) = 20 FROM idemq.jobs WHERE id = ANY ('{@{[join ',', @ids]}}') AND status = 'completed' AND attempt = 1",
			"pooler, $kind: more jobs at a time than its pool has sessions");
		is(terminate($worker), '0 {"committed":21}', "pooler, $kind: each once");
		is_sql($node, "SELECT count(*), count(DISTINCT id) FROM effects WHERE id = ANY ('{@{[join ',', @ids]}}')", '20|20', 'and its effect') if $kind eq 'run';
	}

	# A pooler that nobody has told it of.
	my $worker = worker('run', {}, \%pooled);
	my $id = enqueue('{"gate": "unknown pooler"}');
	until_file("began.$id");
	is_sql($node, "SELECT attached FROM idemq.running_jobs WHERE job_id = $id", 'f', 'a pooler is noticed: no lease is attached');
	open_gate('unknown pooler');
	soon_done($id, 1, 'the job is done');
	is(terminate($worker), '0 {"committed":1}', 'and the worker ends');
	$pooler->kill_kill;
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');

# A failover, with both servers in the settings.
{
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$node->backup('base');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	my %both = (primary(), host => $standby->host . ',' . $node->host, port => $standby->port . ',' . $node->port);
	my @workers = (worker('run', {}, \%both), worker('outside', {}, \%both));
	my @ids;
	foreach my $n (0, 1)
	{
		push @ids, enqueue('{"gate": "failed over"}');
		until_file("began.$ids[$n]");
	}
	$node->wait_for_catchup($standby);
	$node->stop('immediate');
	$standby->promote;
	open_gate('failed over');
	$node = $standby;
	workers_of($node, $app);
	soon_done($_, 1, 'a job outlives a failover') foreach @ids;
	soon_done(enqueue('{}'), 1, 'and so do the workers');
	like(terminate($_), qr/^0 \{"committed":[12]\}$/, 'which end') foreach @workers;
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds there');
}

effects_are_once();
$node->stop;
done_testing();
