# Steps that are interrupted: by a crash with synchronous_commit = off, by a client that
# is killed between begin_step and finish_step, by a synchronous standby that does not answer, by a
# failover that loses the beginning; and a dump.
# at least 33 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Nothing but begin_step flushes: the walwriter sleeps for as long as it can, and no commit asks for it.
# Those 10 s are meant to expire now and then: then a set-up is made once more.
my $node = new_server('steps', 'idemq.worker' => 'on', synchronous_commit => 'off', wal_writer_delay => '10s', max_connections => 40,
	# A receiver that is stopped for long is not given up.
	wal_sender_timeout => 0);

# A claimed job: id and token.
sub job
{
	my ($server, $attach, $session) = (@_, undef);
	my $sql = 'SELECT c.id, c.token FROM idemq.enqueue(\'q\', \'1\') e, idemq.claim_job(e.id, attach => ' . ($attach ? 'true' : 'false') . ') c';

	return split /\|/, $session ? $session->query_safe($sql) : sql($server, $sql);
}

# What begin_step answers: outcome, response, former request, begun_at, retry_after, effect key.
sub begin
{
	my ($server, $id, $token, $name, $timeout) = @_;

	return split /\|/, sql($server, "SET intervalstyle = postgres; CALL idemq.begin_step($id, $token, '$name', '{\"amount\": 12}', '$timeout')"), -1;
}

# ---- A crash

# Another process may flush in between, on a busy machine now and then: then once more.
my ($id, $token);
my @begun;
my $loses = 0;
foreach (1 .. 20)
{
	($id, $token) = job($node);
	sql($node, 'CHECKPOINT');
	my ($lost) = job($node);
	crash($node);
	$loses = sql($node, "SELECT count(*) = 0 FROM idemq.jobs WHERE id = $lost") eq 't';
	last if $loses;
}
ok($loses, 'with synchronous_commit = off a crash loses commits');

my $state = '';
foreach (1 .. 20)
{
	@begun = begin($node, $id, $token, 'charge', '1 h');
	die "a step that is $begun[0]" if $begun[0] ne 'new';
	sql($node, "SELECT idemq.finish_step($id, $token, 'charge', '7')");
	crash($node);
	my ($key, $until);
	($state, $key, $until) = split /\|/, sql($node, "SELECT state, effect_key, call_until - begun_at FROM idemq.steps WHERE job_id = $id");
	die "the beginning is lost: $key, $until" if $key ne $begun[5] || $until ne '01:00:00';
	last if $state eq 'open';
	($id, $token) = job($node);
}
is($state, 'open', 'the beginning of a step is there after a crash, its answer was as any commit');
# The claim of the same moment, too: what was committed before is flushed with it.
($id, $token) = job($node);
@begun = begin($node, $id, $token, 'charge', '1 h');
crash($node);
is_sql($node, "SELECT j.status, idemq.validate(j.id, s.token), s.state FROM idemq.jobs j JOIN idemq.steps s ON s.job_id = j.id WHERE j.id = $id",
	'running|current|open', 'so is the claim');
my @again = begin($node, $id, $token, 'charge', '1 h');
is("@again[0, 5]", "busy $begun[5]", 'the worker that lives on is told that its call may arrive');
# What it answers is on disk, though another has committed it without.
sql($node, "SELECT idemq.finish_step($id, $token, 'charge', '7')");
@again = begin($node, $id, $token, 'charge', '1 h');
crash($node);
is_sql($node, "SELECT state, response FROM idemq.steps WHERE job_id = $id", 'done|7', 'an answer that was told stays');
is("@again[0, 1, 5]", "done 7 $begun[5]", 'and was that');

# ---- A client that is killed between begin_step and finish_step

$node->append_conf('postgresql.conf', 'synchronous_commit = on');
$node->reload;
my $worker = session($node);
($id, $token) = job($node, 1, $worker);
$worker->query_safe("CALL idemq.begin_step($id, $token, 'charge', '{\"amount\": 12}', '1 h')");
my $key = sql($node, "SELECT effect_key FROM idemq.steps WHERE job_id = $id");
$worker->{run}->kill_kill(grace => 0);
is_soon($node, "SELECT status <> 'running' FROM idemq.jobs WHERE id = $id", 'its session has ended, and the job is taken back');
like(sql($node, "SELECT idemq.why($id)"), qr/; its step "charge" is unknown: an attempt that began it at .*; its request may still arrive until /, 'why');
is_sql($node, "SELECT steps_unknown > 0 FROM idemq.metrics WHERE queue = 'q'", 't', 'the metrics');
my $next = sql($node, "SELECT token FROM idemq.claim_job($id)");
my @answer = begin($node, $id, $next, 'charge', '1 min');
is("@answer[0, 1, 2, 5]", "busy  {\"amount\": 12} $key", 'the next attempt is told to wait');
is_sql($node, "SELECT '$answer[4]'::interval > '0' AND clock_timestamp() + '$answer[4]' >= call_until AND '$answer[4]' <= call_until - begun_at
	FROM idemq.steps WHERE job_id = $id", 't', 'for as long as the call may take');
# The time of the call passes.
sql($node, "UPDATE idemq.steps SET begun_at = begun_at - interval '2 h', call_until = call_until - interval '2 h' WHERE job_id = $id");
like(sql($node, "SELECT idemq.why($id)"), qr/its step "charge" is unknown: an attempt that began it at .*; the next attempt must ask the other system/, 'why says that it has passed');
@answer = begin($node, $id, $next, 'charge', '1 min');
is("@answer[0, 1, 2, 4, 5]", "unknown  {\"amount\": 12}  $key", 'then: unknown, with the same key');
is_sql($node, "SELECT idemq.refuse_step($id, $next, 'charge', 'the other side has nothing of that key')", '', 'it asks: no');
@answer = begin($node, $id, $next, 'charge', '1 min');
is($answer[0], 'new', 'so it calls');
isnt($answer[5], $key, 'under another key');
is_sql($node, "SELECT idemq.finish_step($id, $next, 'charge', '8'); SELECT idemq.commit($id, $next)", "8\ncommitted", 'and goes on');

# ---- Synchronous standbys

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->append_conf('postgresql.conf', "wal_receiver_status_interval = '1h'");
$standby->start;
sync_standby_in_force($node, 'standby');
is_state($standby, "CALL idemq.begin_step($id, $next, 'x', '{}', '1 min')", '25006', 'begin_step on a standby');
is_state($standby, "SELECT idemq.finish_step($id, $next, 'x')", '25006', 'finish_step on a standby');
is_state($standby, "SELECT idemq.refuse_step($id, $next, 'x')", '25006', 'refuse_step on a standby');

($id, $token) = job($node);
my $receiver = sql($standby, 'SELECT pid FROM pg_stat_wal_receiver');
kill 'STOP', $receiver or die;
my $session = session($node);
my $pid = $session->query_safe("SET synchronous_commit = off; SELECT pg_backend_pid()");
$session->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\nCALL idemq.begin_step($id, $token, 'charge', '{\"amount\": 12}', '1 h');\n");
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'SyncRep'");
sql($node, "SET synchronous_commit = local; SELECT pg_cancel_backend($pid)");
# Committed, and its own wait was cut off: it waits on, and says so when that is cut off as well.
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND wait_event = 'SyncRep' AND EXISTS (SELECT FROM idemq.steps WHERE job_id = $id)");
sql($node, "SET synchronous_commit = local; SELECT pg_cancel_backend($pid)");
is(answer({ session => $session }), '40003', 'a beginning that no standby has is not answered');
kill 'CONT', $receiver;
leave($session);
@begun = begin($node, $id, $token, 'charge', '1 h');
is($begun[0], 'busy', 'it is there, all the same');

# ---- A failover that loses what was committed last

sync_standby_in_force($node, '');
caught_up($node, $standby);
like(sql($standby, "SELECT idemq.why($id)"), qr/; its step "charge" is open: /, 'why on a standby');
is_sql($standby, "SELECT steps_open, count(*) FROM idemq.metrics, idemq.steps WHERE queue = 'q' GROUP BY 1", sql($node,
		"SELECT steps_open, count(*) FROM idemq.metrics, idemq.steps WHERE queue = 'q' GROUP BY 1"), 'so are the metrics');
$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
$standby->reload;
sql($standby, 'SELECT 1');
wait_until($node, 'SELECT count(*) = 0 FROM pg_stat_replication');
my @mail = begin($node, $id, $token, 'mail', '1 h');
is($mail[0], 'new', 'a step that the standby does not hear of');

# A dump, restored, before the servers part.
my $file = "$PostgreSQL::Test::Utils::tmp_check/dump";
command_ok([ 'pg_dump', '-Fc', '-h', $node->host, '-p', $node->port, '-f', $file, 'postgres' ], 'pg_dump');
sql($node, 'CREATE DATABASE copy');
command_ok([ 'pg_restore', '-e', '-j', 2, '-h', $node->host, '-p', $node->port, '-d', 'copy', $file ], 'pg_restore');
my $rows = 'SELECT s FROM idemq.steps s ORDER BY 1; TABLE idemq_internal.database_uuid';
is(sql($node, $rows, 'copy'), sql($node, $rows), 'a restored database has the same steps and the same uuid');
my $call = "CALL idemq.begin_step($id, $token, 'third', '{}', '1 h')";
is((split /\|/, sql($node, $call, 'copy'))[5], (split /\|/, sql($node, $call))[5], 'and makes the same keys');

$node->stop('immediate');
$standby->promote;
@answer = begin($standby, $id, $token, 'charge', '1 h');
is("@answer[0, 5]", "busy $begun[5]", 'the promoted standby knows what it had heard of');
@answer = begin($standby, $id, $token, 'mail', '1 h');
is("@answer[0, 5]", "new $mail[5]", 'what it had not begins anew: under the same key');
is_sql($standby, "SELECT idemq.finish_step($id, $token, 'mail', '\"sent\"'), idemq.finish_step($id, $token, 'charge'), idemq.commit($id, $token)",
	'"sent"||committed', 'and ends');
is_sql($standby, 'SELECT severity FROM idemq.check() WHERE invariant <> \'steps.unknown\'', '', 'check');
$standby->stop;

done_testing();
