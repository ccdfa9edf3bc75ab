# The client for Node as npm packs it: its calls (node_api.mjs), and its workers (node_worker.mjs) killed, ended, cut
# off, failed over, behind a pooler, and hung.  Each effect is there once.
# expects in log: \] XX[0-9A-Z]{3} .*canceling the wait for synchronous
# takes long

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use NodeClient;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

# script/test has fetched it, or said why not.
plan skip_all => 'node-postgres is not there' unless $ENV{IDEMQ_NODE_MODULES};

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $client = "$ENV{IDEMQ_SOURCE}/clients/node";
my $json = JSON::PP->new->canonical;
my $user = getpwuid($>);
my $files = 0;

sub open_gate { append_to_file("$tmp/$_[0]", "open\n"); return }

{
	my ($packed) = packed() =~ m{([^/]+)$};
	my ($control) = slurp_file("$ENV{IDEMQ_SOURCE}/idemq.control") =~ /^default_version = '(.*)'/m;

	is($packed, "idemq-$control.tgz", 'npm pack: the version is that of the extension');
	is(join(' ', sort grep { !m{^(lib|examples)/[a-z-]+\.js$} } map { s{^package/|\n$}{}gr } qx(tar -tf "$tmp/$packed")), 'LICENSE README.md index.d.ts package.json',
		'what a user needs, and nothing else');
	is(slurp_file("$client/LICENSE"), slurp_file("$ENV{IDEMQ_SOURCE}/LICENSE"), 'the license is that of idemq');
}
my @programs = glob "$ENV{IDEMQ_SOURCE}/test/clients/node_*.mjs";
my $app = application('app', [], @programs);
my $traced = application('traced', ['@opentelemetry/api'], @programs);
my $used = application('used', [ 'pg-cursor', 'pg-copy-streams' ], @programs);

my $node = new_server('node', 'idemq.worker' => 'on', max_connections => 60);
my %primary = (host => $node->host, port => $node->port + 0, user => $user, database => 'postgres');

# Runs a file of tests by node --test.
sub node_tests
{
	my ($dir, $file, %env) = @_;
	my $out = '';

	local @ENV{ keys %env } = values %env;
	my $ok = IPC::Run::run([ 'sh', '-c', 'cd "$0" && exec node --test --test-reporter=tap "$1"', $dir, $file ],
		'<', \undef, '>&', \$out, IPC::Run::timeout(400));
	my ($passed) = $out =~ /^# pass (\d+)/m;

	# What has passed is in nobody's way.
	$out =~ s/^# Subtest: .*\nok .*\n  ---\n(?:  .*\n)*?  \.\.\.\n//mg;
	ok($ok && $passed, "$file: " . ($passed // 0) . ' tests') or diag $out;
	return;
}

symlink $ENV{IDEMQ_NODE_MODULES}, "$client/node_modules" unless -e "$client/node_modules";
node_tests($client, 'test/unit.test.js');
sql($node, 'CREATE DATABASE api');
sql($node, 'CREATE EXTENSION idemq', 'api');
sql($node, 'CREATE DATABASE run');
sql($node, 'CREATE EXTENSION idemq', 'run');
# A drain tries to connect once: a busy machine may take longer than the client's five seconds.
my %patient = (%primary, connectionTimeoutMillis => 60_000);
node_tests($used, 'node_run.mjs', CONNECTION => $json->encode({ %patient, database => 'run' }));
node_tests($traced, 'node_api.mjs', CONNECTION => $json->encode({ %patient, database => 'api' }));

# A worker: { run, pid, err, out }.
sub worker
{
	my ($kind, $options, $connection, @before) = @_;
	my $n = ++$files;
	my %worker = (err => "worker.$n.err", out => "worker.$n.out");

	local @ENV{qw(T CONNECTION OPTIONS)} = ($tmp, $json->encode($connection // \%primary), $json->encode($options // {}));
	$worker{run} = IPC::Run::start([ @before, 'node', "$app/node_worker.mjs", $kind ], '<', \undef, '>', "$tmp/$worker{out}",
		'2>', "$tmp/$worker{err}", IPC::Run::timeout(300));
	$worker{pid} = $worker{run}{KIDS}[0]{PID};
	return \%worker;
}

sub said { my ($worker, $what) = @_; until_file($worker->{err}, $what); return }

# Its end: the exit status, and what it counted.
sub ended
{
	my ($worker) = @_;

	$worker->{run}->finish;
	my $status = $worker->{run}->full_result(0);
	return ($status & 127 ? "signal $status" : $status >> 8) . ' ' . slurped($worker->{out}) =~ s/\n//r;
}

sub terminate { my ($worker) = @_; kill 'TERM', $worker->{pid}; return ended($worker) }
sub kill9 { my ($worker) = @_; $worker->{run}->signal('KILL'); $_[0]{run}->finish; return }

sub enqueue { my ($payload, $more) = (@_, ''); return sql($node, "SELECT id FROM idemq.enqueue('q', '$payload'$more)") }

# Of a job: status, attempt, result, last error.
sub is_job
{
	my ($id, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql($node, "SELECT status, attempt, result, last_error FROM idemq.jobs WHERE id = $id", $expected, $name);
	return;
}

sub soon_done
{
	my ($id, $attempt, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_soon($node, "SELECT status = 'completed' AND attempt = $attempt FROM idemq.jobs WHERE id = $id", $name);
	return;
}

my $asleep = 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep();
sql($node, "CREATE TABLE effects (id bigint, token bigint); SELECT idemq.alter_queue('q', retry_base => '1 h')");

# kill -9 in mid-transaction: the lease ends with the session, and another worker does it.
{
	my $worker = worker('run');
	my $id = enqueue('{"gate": "killed"}');

	until_file("began.$id");
	is_sql($node, "SELECT attached FROM idemq.workers WHERE job_id = $id", 't', 'run: the lease is attached');
	kill9($worker);
	is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $id", 'kill -9: the job is taken back, long before its lease ends');
	open_gate('killed');
	$worker = worker('run');
	soon_done($id, 2, 'another worker does it');

	# One that sleeps ends at once.
	wait_until($node, $asleep);
	is(terminate($worker), '0 {"committed":1}', 'SIGTERM ends a worker that sleeps');
	is_soon($node, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE ' . asleep(), 'and its sleep in the server');

	$worker = worker('outside');
	$id = enqueue('{"gate": "killed outside"}');
	until_file("began.$id");
	is_sql($node, "SELECT attached FROM idemq.workers WHERE job_id = $id", 'f', 'runOutside: it is not');
	kill9($worker);
	is_sql($node, "SELECT idemq.heartbeat(id, token, lease => '1 ms') FROM idemq.jobs WHERE id = $id", 'current', 'the job is held until its lease ends');
	open_gate('killed outside');
	$worker = worker('outside');
	soon_done($id, 2, 'after its lease another worker does it');
	is(terminate($worker), '0 {"committed":1}', 'and ends');
}

# SIGTERM.
foreach my $kind ('run', 'outside')
{
	my $worker = worker($kind, { concurrency => 2 });
	my $id = enqueue(qq({"gate": "drained $kind"}));

	until_file("began.$id");
	kill 'TERM', $worker->{pid};
	said($worker, qr/^info idemq: q: ending: 1 jobs have 30 s$/m);
	my $next = enqueue('{"until": true}');
	open_gate("drained $kind");
	is(ended($worker), '0 {"committed":1}', "$kind: SIGTERM lets what runs end");
	is_job($id, 'completed|1|{"attempt": 1}|', 'with its commit');
	is_job($next, 'pending|0||', 'it has claimed no more');

	$worker = worker($kind, { grace => 0.1 });
	until_file("began.$next");
	is(terminate($worker), '0 {"released":1}', "$kind: when the grace is over the handler is cancelled");
	is(slurped("cancelled.$next"), "drain\n", 'by its signal');
	is_job($next, 'pending|0||', 'and its job released, the attempt not counted');

	$worker = worker($kind, { grace => 3600 });
	until_file("began.$next", qr/\n.*\n/);
	kill 'TERM', $worker->{pid};
	said($worker, qr/ending/);
	is(terminate($worker), '0 {"released":1}', "$kind: a second signal ends the grace");
	sql($node, "SELECT idemq.cancel($next)");
}

# As soon_done, of a job of a queue with a job_timeout: one that a busy machine has kept for longer is begun once more.
sub done_in_time
{
	my ($id, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_soon($node, "SELECT status FROM idemq.jobs WHERE id = $id AND (status = 'completed' OR idemq.retry(id) IS NULL)", 'completed', $name);
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
	said($worker, qr/ending: 1 jobs/);
	open_gate('contained');
	is(ended($worker), '0 {"committed":1}', 'SIGTERM lets what runs end');
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
	my $over = "count(*) FROM idemq.attempts WHERE attempt = 1 AND error IN ('ended after 1 s (job_timeout)', 'job_timeout reached')";
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
	my $worker = worker('run', {}, { %primary, options => '-c idle_session_timeout=1s', idleTimeoutMillis => 100 });
	my $id = enqueue('{"gate": "idle"}');

	until_file("began.$id");
	is_soon($node, "SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'idemq q' AND state = 'idle'
		AND state_change < clock_timestamp() - interval '2 s'", 'a connection that is idle for longer stays');
	is_sql($node, "SELECT attached FROM idemq.workers WHERE job_id = $id", 't', 'with its lease');
	open_gate('idle');
	soon_done($id, 1, 'connections that are idle keep their leases');
	terminate($worker);
}

# The connection is cut: in mid-transaction, and between COMMIT and its answer.
{
	my $worker = worker('run');
	my $id = enqueue('{"gate": "cut"}');

	until_file("began.$id");
	sql($node, q(SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'INSERT INTO effects%'));
	open_gate('cut');
	soon_done($id, 1, 'a transaction that is cut off is run again');
	is(slurped("began.$id"), "1\n1\n", 'in the same attempt');

	# It waits for a standby that is not there; its session is ended when it is done, and not yet answered.
	$id = enqueue('{"gate": "committing"}');
	until_file("began.$id");
	sql($node, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()");
	wait_until($node, 'SHOW synchronous_standby_names', 'nobody');
	# The checkpointer, which has COMMITs wait for standbys, has read it, too.
	sql($node, 'CHECKPOINT');
	open_gate('committing');
	my $committing = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT'";
	wait_until($node, "SELECT count(*) = 1 $committing");
	sql($node, "SELECT pg_terminate_backend(pid) $committing");
	wait_until($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $id");
	sql($node, 'ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()');
	is(terminate($worker), '0 {"committed":2}', 'the answer to COMMIT is lost: it is asked for again');
	is(slurped("began.$id"), "1\n", 'and the handler is not');

	# The same of a commit with no effect here.
	$worker = worker('outside');
	$id = enqueue('{"gate": "committing outside"}');
	until_file("began.$id");
	sql($node, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()");
	wait_until($node, 'SHOW synchronous_standby_names', 'nobody');
	sql($node, 'CHECKPOINT');
	open_gate('committing outside');
	$committing = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%commit_many%'";
	wait_until($node, "SELECT count(*) = 1 $committing");
	sql($node, "SELECT pg_terminate_backend(pid) $committing");
	wait_until($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $id");
	sql($node, 'ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()');
	is(terminate($worker), '0 {"committed":1}', 'outside: so is the answer to that');
}

# A crash, and a server that only reads for a while.
foreach my $kind ('run', 'outside')
{
	my $worker = worker($kind, { concurrency => 2 });
	my $id = enqueue(qq({"gate": "crashed $kind"}));

	until_file("began.$id");
	wait_until($node, $asleep);
	crash($node);
	said($worker, qr/^warn idemq: connected again after [0-9.]+ s$/m);
	open_gate("crashed $kind");
	soon_done($id, 1, "$kind: a job outlives a crash of the server");
	wait_until($node, $asleep);
	crash($node);
	soon_done(enqueue('{}'), 1, "$kind: so does a worker that waits");

	wait_until($node, $asleep);
	sql($node, 'ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()');
	wait_until($node, 'SHOW default_transaction_read_only', 'on');
	$id = sql($node, "SET default_transaction_read_only = off; SELECT id FROM idemq.enqueue('q', '{}')");
	said($worker, qr/no connection: .*(takes no writes|read-only)/);
	sql($node, 'SET default_transaction_read_only = off; ALTER SYSTEM RESET default_transaction_read_only; SELECT pg_reload_conf()');
	soon_done($id, 1, "$kind: a server that only reads is left, and found again");
	like(terminate($worker), qr/^0 \{"committed":3\}$/, "$kind: all of it is counted");
}

# A pooler in transaction mode, which is killed and started again in mid-job.
{
	my ($start, $dir, $port) = pooler($node, default_pool_size => 3);
	my %pooled = (%primary, host => $dir, port => $port);
	my $pooler = $start->();
	foreach my $kind ('run', 'outside')
	{
		my $worker = worker($kind, { waitConnection => \%primary, concurrency => 5 }, \%pooled);
		wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'idemq q' AND " . asleep());
		my $id = enqueue(qq({"gate": "pooled $kind"}));
		until_file("began.$id");
		is_sql($node, "SELECT attached FROM idemq.workers WHERE job_id = $id", 'f', "pooler, $kind: no lease is attached");
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
	is_sql($node, "SELECT attached FROM idemq.workers WHERE job_id = $id", 'f', 'a pooler is noticed: no lease is attached');
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
	my %both = (%primary, host => $standby->host . ',' . $node->host, port => $standby->port . ',' . $node->port);
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
	soon_done($_, 1, 'a job outlives a failover') foreach @ids;
	soon_done(enqueue('{}'), 1, 'and so do the workers');
	like(terminate($_), qr/^0 \{"committed":[12]\}$/, 'which end') foreach @workers;
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds there');
}

# What has committed has had its effect, once, by the attempt that committed.
is_sql($node, q(SELECT count(*), count(DISTINCT e.id), bool_and(e.token = j.token AND j.status = 'completed') FROM effects e JOIN idemq.jobs j USING (id)),
	sql($node, q(SELECT format('%s|%s|t', count(*), count(*)) FROM effects)), 'every effect is there once, and of the attempt that committed');
my %times;
$times{$_}++ foreach map { /^(\d+ \d+)$/mg } slurped('effects');
is(join(' ', grep { $times{$_} > 1 } keys %times), '', 'and outside, no attempt had its effect twice');
$node->stop;
done_testing();
