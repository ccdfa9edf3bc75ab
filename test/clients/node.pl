# The Node client, run from the source tree: its calls (node_api.mjs), its transactions (node_run.mjs), and workers
# (node_worker.mjs) that are killed, told to end, or cut off.  Each effect happens once.  The only package it needs is pg.
# Tests that need npm, a second server or real time are in node_slow.pl.
# expects in log: \] XX[0-9A-Z]{3} .*canceling the wait for synchronous
# takes long
# at least 214 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use NodeClient;
use NodeWorkers;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

plan skip_all => 'no node-pg' unless $ENV{IDEMQ_NODE_MODULES};

my $json = JSON::PP->new->canonical;
# Each database has a worker of idemq.
my $node = new_server('node', 'idemq.worker' => 'on', max_connections => 60, max_worker_processes => 20);
my $app = folder('app', "$ENV{IDEMQ_SOURCE}/clients/node/examples/finished.js", "$FindBin::RealBin/encryption.mjs", glob "$FindBin::RealBin/node_*.mjs");

workers_of($node, $app);

# Runs a file of tests.
sub node_tests
{
	my ($file, $least, %env) = @_;

	local @ENV{ keys %env } = values %env;
	reports($file =~ s/.*\///r, $least, [ 'node', '--test-reporter=tap', "$app/$file" ]);
	return;
}

node_tests('node_modules/idemq/test/unit.test.js', 20);
foreach ([ 'run', 13 ], [ 'steps', 17 ], [ 'queues', 9 ], [ 'manage', 7 ], [ 'codec', 21 ], [ 'failures', 9 ], [ 'cancel', 7 ], [ 'logs', 7 ], [ 'api', 31 ], [ 'statement', 6 ], [ 'ahead', 13 ])
{
	my ($name, $least) = @$_;

	sql($node, "CREATE DATABASE $name");
	sql($node, 'CREATE EXTENSION idemq', $name);
	# A drain tries to connect once: a busy machine may take longer than the client's five seconds.
	node_tests("node_$name.mjs", $least, CONNECTION => $json->encode({ primary(), connectionTimeoutMillis => 60_000, database => $name }));
}

# A link to the client, as npm install PATH makes it: pg is the application's.
{
	my $linked = "$PostgreSQL::Test::Utils::tmp_check/linked";
	my $copy = "$PostgreSQL::Test::Utils::tmp_check/elsewhere";
	my $import = 'import { Worker } from "idemq"; console.log(typeof Worker)';

	mkdir $_ foreach $linked, "$linked/node_modules", $copy;
	system_or_bail('cp', '-r', "$ENV{IDEMQ_SOURCE}/clients/node", "$copy/node");
	symlink "$copy/node", "$linked/node_modules/idemq" or die "symlink: $!";
	append_to_file("$linked/main.mjs", $import);
	# Debian's Node finds Debian's node-pg from anywhere.
	if (run_log([ 'node', '-e', q[require('node:module').createRequire('/main.js').resolve('pg')] ]))
	{
		command_like([ 'node', "$linked/main.mjs" ], qr/^function$/, 'the pg that Node finds from anywhere is used');
	}
	else
	{
		command_fails_like([ 'node', "$linked/main.mjs" ], qr/idemq requires the package pg/, 'without pg it says what it needs');
	}
	symlink "$ENV{IDEMQ_NODE_MODULES}/pg", "$linked/node_modules/pg" or die "symlink: $!";
	command_like([ 'node', "$linked/main.mjs" ], qr/^function$/, 'through a link pg of the application is found');
}

# A job that cannot be sent, in a database whose encoding forbids no bytes, does not keep the one before it from being committed.
{
	sql($node, q[CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C']);
	sql($node, q[CREATE EXTENSION idemq; SELECT idemq.create_queue('q')], 'bytes');
	sql($node, q[SET client_encoding = SQL_ASCII; SELECT idemq.enqueue('q', '"good"'), idemq.enqueue('q', convert_from('\\x22ff22', 'SQL_ASCII')::jsonb)], 'bytes');
	append_to_file("$app/bytes.mjs", 'import { drain } from "idemq"; await drain(JSON.parse(process.env.CONNECTION), "q", () => 1, { outside: true }).catch(({ code }) => console.log(code));');
	local $ENV{CONNECTION} = $json->encode({ primary(), connectionTimeoutMillis => 60_000, database => 'bytes' });
	command_like([ 'node', "$app/bytes.mjs" ], qr/^22021$/, 'bytes that are no UTF-8 are not claimed');
	is_sql($node, 'SELECT status, attempt FROM idemq.jobs ORDER BY id', "completed|1\npending|0", 'and the job before them is committed', 'bytes');
}

my $asleep = 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep();
sql($node, "CREATE TABLE effects (id bigint, token bigint); SELECT idemq.alter_queue('q', retry_base => '1 h')");

# kill -9 in mid-transaction: the lease ends with the session, and another worker does it.
{
	my $worker = worker('run');
	my $id = enqueue('{"gate": "killed"}');

	until_file("began.$id");
	is_sql($node, "SELECT attached FROM idemq.running_jobs WHERE job_id = $id", 't', 'run: the lease is attached');
	kill9($worker);
	is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $id", 'kill -9: the job is taken back, long before its lease ends');
	open_gate('killed');
	$worker = worker('run');
	soon_done($id, 2, 'another worker does it');

	# One that sleeps ends at once.
	wait_until($node, $asleep);
	my $from = -s $node->logfile;
	is(terminate($worker), '0 {"committed":1}', 'SIGTERM ends a worker that sleeps');
	is_soon($node, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE ' . asleep(), 'and its sleep in the server');
	unlike(slurp_file($node->logfile, $from), qr/ERROR/, 'and nothing was cancelled: no ERROR is in the log');

	$worker = worker('outside');
	$id = enqueue('{"gate": "killed outside"}');
	until_file("began.$id");
	is_sql($node, "SELECT attached FROM idemq.running_jobs WHERE job_id = $id", 'f', 'runOutside: it is not');
	kill9($worker);
	# meant to expire
	is_sql($node, "SELECT idemq.heartbeat(id, token, lease => '1 ms') FROM idemq.jobs WHERE id = $id", 'current', 'the job is held until its lease ends');
	open_gate('killed outside');
	$worker = worker('outside');
	soon_done($id, 2, 'after its lease another worker does it');
	is(terminate($worker), '0 {"committed":1}', 'and ends');
}

# SIGTERM.
foreach my $kind ('run', 'outside')
{
	my $worker = worker($kind, { concurrency => 2, grace => 3600 });
	my $id = enqueue(qq({"gate": "drained $kind"}));

	until_file("began.$id");
	kill 'TERM', $worker->{pid};
	said($worker, qr/^info idemq: q: stopping: 1 jobs have 3600 s to finish$/m);
	my $next = enqueue('{"until": true}');
	open_gate("drained $kind");
	is(ended($worker), '0 {"committed":1}', "$kind: SIGTERM lets what runs end");
	is_job($id, 'completed|1|{"attempt": 1}|', 'with its commit');
	is_job($next, 'pending|0||', 'it has claimed no more');

	$worker = worker($kind, { grace => 0.1 });    # meant to expire
	until_file("began.$next");
	is(terminate($worker), '0 {"released":1}', "$kind: when the grace is over the handler is cancelled");
	is(slurped("cancelled.$next"), "drain\n", 'by its signal');
	is_job($next, 'pending|0||', 'and its job released, the attempt not counted');

	$worker = worker($kind, { grace => 3600 });
	until_file("began.$next", qr/\n.*\n/);
	kill 'TERM', $worker->{pid};
	said($worker, qr/stopping/);
	is(terminate($worker), '0 {"released":1}', "$kind: a second signal ends the grace");
	sql($node, "SELECT idemq.cancel($next)");
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
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
effects_are_once();
$node->stop;
done_testing();
