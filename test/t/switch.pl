# How a DBA switches idemq off: the whole extension, one queue, one tenant, handlers, all claims, the
# worker; what a crash in its code looks like; and the report to send to whoever helps.  doc/operations/switch.md
# has these statements.
#
# at least 53 assertions
# expects in log: was terminated by signal 11

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('switch', 'idemq.worker' => 'on', restart_after_crash => 'on');
my $deploy = "$ENV{IDEMQ_SOURCE}/deploy/psql";

# The page's statement that has this text.
my $page = slurp_file("$ENV{IDEMQ_SOURCE}/doc/operations/switch.md");

sub page_says
{
	my ($text) = @_;
	my ($statement) = grep { index($_, $text) >= 0 } map { split /\n/ } $page =~ /^```(?:sql|text)\n(.*?)^```/msg;

	die "the page does not say \"$text\"" unless $statement;
	return $statement =~ s/\s*--.*//r;
}

# Runs a statement of ALTER SYSTEM and the reload behind it; each is a transaction of its own.
sub page_sets
{
	sql($node, $_) foreach map { s/^\s+//r } grep { /\S/ } split /;/, page_says($_[0]);
	return;
}

# --- Out of shared_preload_libraries, and back.

sql($node, q[CREATE TABLE orders (id int); SELECT idemq.enqueue('q', '"waits"', key => 'the-key')]);
my $claimed = sql($node, q[SELECT id, token FROM idemq.claim('q')]);
sql($node, q[SELECT idemq.enqueue('q', '"waits too"')]);
my ($id, $token) = split /\|/, $claimed;

$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
$node->stop('fast');
$node->start;
is_state($node, 'INSERT INTO orders VALUES (1)', '00000', 'without the library the database works');
is_state($node, q[SELECT idemq.enqueue('q', '1')], '55000', 'a call of idemq raises');
my ($said) = ($node->psql('postgres', q[SELECT idemq.claim('q')]))[2];
like($said, qr/idemq is not loaded/, 'and says why');
is_state($node, q[BEGIN; INSERT INTO orders VALUES (2); SELECT idemq.enqueue('q', '1'); COMMIT], '55000',
	"an application's transaction that calls it");
is_sql($node, 'SELECT count(*) FROM orders', '1', 'is rolled back');
is_sql($node, page_says('FROM idemq.jobs'), "pending|1\nrunning|1", 'the rows can be read, by who may read the table');
is_state($node, q[UPDATE idemq.jobs SET priority = 0], '55000', 'and not written past it');
command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $node->basedir . '/dump' ], 'a dump can be taken');
like(slurp_file($node->basedir . '/dump'), qr/waits too/, 'with the jobs');

$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "'idemq'");
$node->stop('fast');
$node->start;
is_sql($node, qq[SELECT idemq.commit($id, $token, '"done"')], 'committed', 'when it is back a token of before is good');
is_sql($node, q[SELECT outcome FROM idemq.enqueue('q', '"waits"', key => 'the-key')], 'duplicate', 'and a key');
is_sql($node, q[SELECT payload FROM idemq.claim('q')], '"waits too"', 'what waited is claimed');
is_soon($node, 'SELECT pid IS NOT NULL FROM idemq.background_worker', 'the worker is there');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'and nothing is broken');

# --- One queue.

sql($node, q[SELECT idemq.create_queue('mail', lease => '1 h'), idemq.enqueue('mail', '1')]);
sql($node, page_says(q[idemq.pause('mail')]));
is_sql($node, q[SELECT count(*) FROM idemq.claim('mail')], '0', 'a paused queue hands out nothing');
is_sql($node, q[SELECT outcome FROM idemq.enqueue('mail', '2')], 'accepted', 'and takes jobs');
sql($node, page_says(q[idemq.resume('mail')]));
is_sql($node, q[SELECT count(*) FROM idemq.claim('mail')], '1', 'until it is resumed');

# --- All claims: what was paused before stays so.

sql($node, q[SELECT idemq.create_queue('held'), idemq.pause('held')]);
sql($node, page_says(q[idemq.pause(name, ]));
is_sql($node, q[SELECT count(*) FROM idemq.claim_any(ARRAY['q', 'mail', 'held'])], '0', 'no queue hands out anything');
sql($node, page_says(q[idemq.resume(name)]));
is_sql($node, q[SELECT name FROM idemq.queues WHERE paused], 'held', 'and afterwards the queue that was paused is paused still');
is_sql($node, q[SELECT count(*) FROM idemq.claim('mail')], '1', 'others are not');

# --- One tenant.

sql($node, q[CREATE ROLE shop_app LOGIN; SELECT idemq.grant_queue('mail', 'shop_app', p) FROM unnest('{enqueue,claim}'::text[]) p;
	SELECT idemq.enqueue('mail', '3')]);
my $stop = page_says(q[NOLOGIN]);
my $tenant = session($node, undef, extra_params => [ '-U', 'shop_app' ]);
$tenant->query_safe('SELECT 1');
sql($node, $stop);
my ($out, $err) = ('', '');
isnt($node->psql('postgres', 'SELECT 1', stderr => \$err, extra_params => [ '-U', 'shop_app' ]), 0, 'a tenant is kept out');
sql($node, page_says(q[pg_terminate_backend]));
is_soon($node, q[SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'shop_app'], 'and its sessions are gone');
eval { leave($tenant) };
sql($node, 'ALTER ROLE shop_app LOGIN');

# --- All handlers.

sql($node, q[SELECT idemq.create_queue('thumbs');
	CREATE FUNCTION public.thumb(payload jsonb) RETURNS jsonb LANGUAGE sql SET search_path = pg_catalog, pg_temp AS 'SELECT payload';
	SELECT idemq.set_handler('thumbs', 'public.thumb(jsonb)')]);
sql($node, q[SELECT idemq.enqueue('thumbs', '1')]);
is_soon($node, q[SELECT count(*) = 1 FROM idemq.job_list WHERE queue = 'thumbs' AND status = 'completed'], 'a handler runs');
page_sets('max_handler_workers = 0');
is_soon($node, q[SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name LIKE 'idemq handler%'], 'its process ends');
sql($node, q[SELECT idemq.enqueue('thumbs', '2')]);
# The worker has been at work since then: it wakes a session for a job of q that has come due.
# meant to expire
sql($node, q[SELECT idemq.enqueue('q', '"due"', delay => '10 ms')]);
is_sql($node, q[CALL idemq.wait('q', '10 min'); SELECT payload FROM idemq.claim('q')], qq[t\n"due"], 'the worker goes on');
is_sql($node, q[SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'idemq handler%'], '0', 'and no handler begins');
is_sql($node, q[SELECT count(*) FROM idemq.job_list WHERE queue = 'thumbs' AND status = 'pending'], '1', 'so the job waits');
page_sets('RESET idemq.max_handler_workers');
is_soon($node, q[SELECT count(*) = 2 FROM idemq.job_list WHERE queue = 'thumbs' AND status = 'completed'], 'until they may again');

# --- Without the worker.

page_sets('idemq.worker = off');
is_soon($node, q[SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'idemq worker'], 'the worker goes');
is_sql($node, q[SELECT outcome FROM idemq.enqueue('mail', '4')], 'accepted', 'jobs come in without it');
is_sql($node, q[SELECT count(*) FROM idemq.claim('mail')], '1', 'and are handed out');
page_sets('RESET idemq.worker');
is_soon($node, 'SELECT pid IS NOT NULL FROM idemq.background_worker', 'it comes back');

# --- A crash in its code: the server starts itself again, and the log says whose it was.

my $worker = worker_pid($node);
my $offset = log_end($node);
my $running = sql($node, q[SELECT idemq.enqueue('mail', '5'); SELECT id, token FROM idemq.claim('mail')]) =~ s/.*\n//sr;
kill 'SEGV', $worker;
wait_until($node, "SELECT pid <> $worker FROM idemq.background_worker");
is_logged($node, qr/background worker "idemq worker[^"]*" \(PID $worker\) was terminated by signal 11/, "the log names idemq's process", $offset);
is_sql($node, 'SELECT idemq.commit(' . join(', ', split /\|/, $running) . ')', 'committed', 'an attempt of before commits');

my $backend = session($node);
my $pid = $backend->query_safe('SELECT pg_backend_pid()');
$offset = log_end($node);
$backend->{stdin} .= "CALL idemq.wait('q', '1 h');\n";
eval { $backend->{run}->pump_nb };
wait_until($node, "SELECT wait_event IS NOT NULL AND state = 'active' AND query LIKE 'CALL idemq.wait%' FROM pg_stat_activity WHERE pid = $pid");
kill 'SEGV', $pid;
is_logged($node, qr/Failed process was running: CALL idemq\.wait/, 'and the statement of a session', $offset);
eval { leave($backend) };
# The report tells of leases once the worker has found them again.
worker_pid($node);

# --- The report.

sql($node, q[SELECT idemq.create_queue('secrets', dead_retention => '1 day', max_attempts => 1);
	SELECT idemq.enqueue('secrets', '{"word": "xyzzy-payload"}', key => 'xyzzy-key', group_key => 'xyzzy-group',
		headers => '{"h": "xyzzy-header"}', kind => 'xyzzy_kind');
	SELECT idemq.fail(id, token, 'xyzzy-error') FROM idemq.claim('secrets', worker => 'xyzzy-worker');
	SELECT idemq.schedule('xyzzy-schedule', '0 3 * * *', 'secrets', '"xyzzy-payload"');
	CREATE ROLE monitor LOGIN IN ROLE pg_monitor; CREATE ROLE nobody LOGIN; GRANT USAGE ON SCHEMA idemq TO nobody]);
my $open = session($node);
$open->query_safe(q[BEGIN; SELECT 'xyzzy-statement']);
($out, $err) = ('', '');
is(IPC::Run::run([ 'psql', '-XqAt', '-d', $node->connstr('postgres') . ' user=monitor', '-v', 'ON_ERROR_STOP=1', '-f', "$deploy/report.sql" ],
		'>', \$out, '2>', \$err), 1, 'the report is written as pg_monitor') or diag $err;
unlike($out, qr/xyzzy/, 'without payload, key, group, kind, header, worker, error, schedule or statement');
foreach my $section (qw(server setting queue metrics worker maintenance_task memory handler schedule lease error audit relation session))
{
	like($out, qr/^\Q$section\E\|\{/m, "it has $section");
}
like($out, qr/^error\|.*"sqlstate"/m, 'an error is told by its fingerprint');
is_state($node, 'SET ROLE nobody; SELECT idemq.report()', '42501', 'nobody else may have it');
leave($open);

$node->stop;
done_testing();
