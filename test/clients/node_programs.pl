# The three programs that doc/usage/three-programs.md shows for Node: a webhook, a sender of e-mail, a report; and the
# orders of doc/usage/events.md, which wait for a payment.
# Killed, ended, behind a pooler that closes idle connections, failed over: each effect is there once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use NodeClient;
use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

# script/test has fetched it, or said why not.
plan skip_all => 'node-postgres is not there' unless $ENV{IDEMQ_NODE_MODULES};

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $json = JSON::PP->new->canonical->allow_nonref;
my $port = PostgreSQL::Test::Cluster::get_free_port();
my $node = new_server('programs', 'idemq.worker' => 'on', max_connections => 60);
my %env = (PGHOST => $node->host, PGPORT => $node->port, PGDATABASE => 'postgres', PGUSER => scalar getpwuid($>), PORT => $port);
my $files = 0;

packed();
my @examples = glob "$ENV{IDEMQ_SOURCE}/clients/node/examples/*.js";
my $app = application('app', [ 'pg' ], "$ENV{IDEMQ_SOURCE}/test/clients/node_provider.mjs", @examples);

foreach my $file (@examples)
{
	cmp_ok(scalar(() = slurp_file($file) =~ /^/mg), '<=', 15, "$file has 15 lines");
}

sub program
{
	my ($name, %more) = @_;
	my $n = ++$files;
	my %program = (out => "$name.$n.out", err => "$name.$n.err");

	local @ENV{ keys %env, keys %more } = (values %env, values %more);
	$program{run} = IPC::Run::start([ 'node', "$app/$name" ], '<', \undef, '>', "$tmp/$program{out}", '2>', "$tmp/$program{err}", IPC::Run::timeout(300));
	return \%program;
}

sub kill9 { my ($program) = @_; $program->{run}->signal('KILL'); $_[0]{run}->finish; return }

# Once: a second signal kills a program that is about to end.
sub told_to_end { my ($program) = @_; $program->{run}->signal('TERM') if !$program->{told}++; return }

# Told to end, it does, with status 0.
sub ends
{
	my ($program, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	told_to_end($program);
	$program->{run}->finish;
	is($program->{run}->full_result(0), 0, "$name ends by SIGTERM") or diag slurped($program->{err});
	return;
}

sub soon
{
	my ($sql, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_soon($node, $sql, $name);
	return;
}

sql($node, q[CALL idemq.tick();
	SELECT idemq.create_queue('events', retry_base => '10 ms'), idemq.create_queue('mail', lease => '2 s', retry_base => '10 ms', retry_jitter => 0),
		idemq.create_queue('reports', retry_base => '10 ms');
	CREATE TABLE accounts (account text PRIMARY KEY, balance int);
	CREATE TABLE sales (total numeric);
	CREATE TABLE reports (tick text, total numeric);
	INSERT INTO accounts VALUES ('anna', 0);
	INSERT INTO sales VALUES (3), (4)]);

# The webhook: a sender that repeats until it is answered with 202.
my $sent = 0;

sub send_event
{
	my ($event) = @_;
	my $tries = 0;

	until_true("event $event", sub {
		$tries++;
		HTTP::Tiny->new(timeout => 10)->post("http://127.0.0.1:$port/", { content => $json->encode({ id => $event, account => 'anna', amount => 5 }) })->{status} == 202;
	});
	$sent++;
	return;
}

my $paid = sub { return "SELECT balance = 5 * $sent FROM accounts" };
my $webhook = program('webhook.js');
my $blocker = session($node);

send_event('first');
soon($paid->(), 'a webhook is worked on');
send_event('first');
$sent--;
is_sql($node, 'SELECT count(*) FROM idemq.jobs', 1, 'a repetition is the same job');
my ($bad) = map { $_->{status} } HTTP::Tiny->new->post("http://127.0.0.1:$port/", { content => 'no JSON' });
is($bad, 503, 'what is no JSON ends nothing');

# Killed in the middle of its effect.
$blocker->query_safe('BEGIN; LOCK accounts IN SHARE MODE');
send_event('killed');
my $inside = "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE accounts%'";
wait_until($node, $inside);
kill9($webhook);
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
$blocker->query_safe('COMMIT');
$webhook = program('webhook.js');
soon($paid->(), 'kill -9 in the effect: it is done once');

# Ended in the middle of its effect.
$blocker->query_safe('BEGIN; LOCK accounts IN SHARE MODE');
send_event('ended');
wait_until($node, $inside);
told_to_end($webhook);
$blocker->query_safe('COMMIT');
ends($webhook, 'the webhook');
soon($paid->(), 'SIGTERM in the effect: it is done');

# Behind a pooler that closes idle connections, of itself and of its clients.
my ($start, $dir, $pooled) = pooler($node, default_pool_size => 5, server_idle_timeout => 1, client_idle_timeout => 1);
my $pooler = $start->();
$webhook = program('webhook.js', PGHOST => $dir, PGPORT => $pooled);
send_event("pooled $_") foreach 1 .. 3;
soon($paid->(), 'through a pooler');
soon("SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE '%idemq.enqueue(%' AND pid <> pg_backend_pid()", 'which closes what is idle');
send_event('after idling');
soon($paid->(), 'and goes on');
$pooler->kill_kill;
$pooler = $start->();
send_event('another pooler');
soon($paid->(), 'a pooler that was killed');
ends($webhook, 'the webhook');
$pooler->kill_kill;

# The report.
my $report = program('report.js');
wait_until($node, "SELECT count(*) = 1 FROM idemq.schedules WHERE name = 'nightly'");
$blocker->query_safe('BEGIN; LOCK reports IN SHARE MODE');
my $id = sql($node, "SELECT id FROM idemq.enqueue('reports', '{}', key => 'tonight', headers => jsonb_build_object('tick', now()))");
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO reports%'");
kill9($report);
sql($node, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
$blocker->query_safe('COMMIT');
$report = program('report.js');
soon("SELECT status = 'completed' FROM idemq.job($id)", 'the report is made, by a second attempt');
is_sql($node, "SELECT total, attempt, result->>'total' FROM reports, idemq.job($id)", '7|2|7', 'once, and is the result');
ends($report, 'the report');

# Orders that wait for their payment, while the worker is killed.
sql($node, q[SELECT idemq.create_queue('orders', retry_base => '10 ms'); CREATE TABLE shipments (no int); CREATE TABLE reminders (no int)]);
my $orders = program('orders.js');
sql($node, q[SELECT idemq.enqueue('orders', jsonb_build_object('no', n), kind => 'order') FROM unnest('{42,43}'::int[]) n;
	SELECT idemq.enqueue('orders', '{"no": 44}', kind => 'refund')]);
wait_until($node, q[SELECT count(*) = 2 FROM idemq.steps WHERE state = 'waiting']);
soon(q[SELECT status = 'pending' AND ready_at > now() + '30 s' AND attempt = 0 FROM idemq.jobs WHERE kind = 'refund'], 'a kind that the program does not know is given back');
kill9($orders);
sql($node, q[SELECT idemq.enqueue('orders', '{"no": 42}', kind => 'payment') FROM generate_series(1, 2)]);
$orders = program('orders.js');
soon(q[SELECT count(*) = 3 FROM idemq.jobs WHERE queue_id = idemq.queue_id('orders') AND status = 'completed'], 'the payment wakes its order');
is_sql($node, q[SELECT s.no, r.no FROM shipments s LEFT JOIN reminders r ON true], '42|', 'which is shipped, once');
sql($node, q[UPDATE idemq.steps SET call_until = now() WHERE name = 'paid 43'; SELECT idemq.retry(job_id) FROM idemq.steps WHERE name = 'paid 43']);
soon(q[SELECT array_agg(no) = '{43}' FROM reminders], 'and a customer who has not paid in time is reminded');
ends($orders, 'the orders');

# The sender of e-mail: its provider answers 502, late, or not before the sender is dead.
my $provider = program('node_provider.mjs');
until_file($provider->{out});
my $api = 'http://127.0.0.1:' . (slurped($provider->{out}) =~ s/\n//r);
my %mail = (MAIL_API => "$api/messages");
my $mails = 0;

sub provider
{
	my ($path, $content) = @_;
	my $answer = defined $content ? HTTP::Tiny->new->post("$api/$path", { content => $content }) : HTTP::Tiny->new->get("$api/$path");

	die "$path: $answer->{content}" unless $answer->{success};
	return $json->decode($answer->{content});
}

sub next_mail
{
	my (@how) = @_;

	provider('next', $json->encode(\@how));
	$mails++;
	return sql($node, "SELECT id FROM idemq.enqueue('mail', '{\"to\": \"anna\"}', key => 'mail-$mails')");
}

sub is_sent
{
	my ($mail, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	soon("SELECT status = 'completed' AND result ? 'message' FROM idemq.job($mail)", "$name: is sent");
	is(scalar(@{ provider('sent') }), $mails, 'once');
	return;
}

# As it stands there, but for the 10 s that a provider may take.
my $source = slurp_file("$app/mail.js");
is($source =~ s/callTimeout: 10,/callTimeout: 1,/, 1, 'the program gives up on a call');
write_whole("$app/mail.js", $source);
my $sender = program('mail.js', %mail);

is_sent(next_mail('ok'), 'a mail');
is_sent(next_mail('502'), 'a provider that answers 502, and has not sent');
is_sent(next_mail('sent 502'), 'a provider that answers 502, and has sent');
is_sent(next_mail('late'), 'a provider that answers too late');
is_sent(next_mail('502', '502', 'sent 502'), 'a provider that answers 502 again and again');
foreach my $how ('kill -9', 'SIGTERM')
{
	my $mail = next_mail('late');

	until_true('the call', sub { @{ provider('sent') } == $mails });
	if ($how eq 'kill -9') { kill9($sender) }
	else { ends($sender, 'the sender') }
	$sender = program('mail.js', %mail);
	is_sent($mail, "$how in the call");
}
is(scalar(keys %{ { map { $_ => 1 } @{ provider('sent') } } }), $mails, 'each mail has a key of its own');

# A failover, with both servers in PGHOST.
$blocker->quit;
my $standby = PostgreSQL::Test::Cluster->new('standby');
$node->backup('base');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
$env{PGHOST} = join ',', $standby->host, $node->host;
$env{PGPORT} = join ',', $standby->port, $node->port;
ends($sender, 'the sender');
$_ = program($_) foreach $webhook = 'webhook.js', $report = 'report.js';
$sender = program('mail.js', %mail);
send_event('before the failover');
soon($paid->(), 'with two servers');
is_sent(next_mail('ok'), 'with two servers');
$node->wait_for_catchup($standby);
$node->stop('immediate');
$standby->promote;
$node = $standby;
send_event('after the failover');
soon($paid->(), 'the webhook goes on');
is_sent(next_mail('ok'), 'the sender goes on');
$id = sql($node, "SELECT id FROM idemq.enqueue('reports', '{}', headers => jsonb_build_object('tick', now()))");
soon("SELECT status = 'completed' FROM idemq.job($id)", 'the report goes on');
ends($webhook, 'the webhook');
ends($report, 'the report');
ends($sender, 'the sender');
kill9($provider);

is_sql($node, 'SELECT balance FROM accounts', 5 * $sent, 'every event has had its effect once');
is_sql($node, 'SELECT count(*), count(DISTINCT tick) FROM reports', '2|2', 'every tick has its report, once');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
$node->stop;
done_testing();
