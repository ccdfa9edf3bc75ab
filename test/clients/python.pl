# clients/python: its own tests (python_client.py), then the three programs of
# doc/usage/three-programs.md as they stand there, killed, told to end, disconnected, and behind a
# pooler that closes what is idle; the webhook through a failover, too: each effect once.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use HTTP::Tiny;
use Idemq;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my @settings = ('idemq.worker' => 'on', max_connections => 60);
my $node = new_server('python', @settings);
my $files = 0;

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;

sub dsn
{
	return join ' ', 'dbname=postgres user=postgres target_session_attrs=read-write', 'host=' . join(',', map { $_->host } @_),
	  'port=' . join(',', map { $_->port } @_);
}

# A program, with its output in a file.
sub start
{
	my ($program, %env) = @_;
	my $said = "$tmp/said." . ++$files;

	local @ENV{ keys %env } = values %env;
	my $run = IPC::Run::start([ '/usr/bin/python3', "$here/$program" ], '<', \undef, '>', $said, '2>&1', IPC::Run::timeout(400));
	return { run => $run, said => $said };
}

# Its exit status, or the signal; and what it said.
sub ended
{
	my ($it) = @_;

	$it->{run}->finish;
	my $status = $it->{run}->full_result(0);
	return ($status & 127 ? 'signal ' . ($status & 127) : $status >> 8, slurp_file($it->{said}));
}

sub kill_9
{
	my ($it) = @_;

	# Not kill_kill, which asks by SIGTERM first.
	$it->{run}->signal('KILL');
	is((ended($it))[0], 'signal 9', 'killed');
	return;
}

sub told_to_end
{
	my ($it, $name) = @_;

	$it->{run}->signal('TERM');
	my ($status, $said) = ended($it);
	return is($status, 0, $name) || diag $said;
}

sub get
{
	my ($url) = @_;
	my $answer = HTTP::Tiny->new(timeout => 150)->get($url);

	die "$url: $answer->{status} $answer->{content}" unless $answer->{success};
	return JSON::PP->new->allow_nonref->decode($answer->{content});
}

# The wheel that pip makes, with nothing but what Debian has; all below runs from it.
SKIP:
{
	my @pip = ('/usr/bin/python3', '-m', 'pip', '--no-cache-dir', '--disable-pip-version-check', '--quiet');
	my @local = ('--no-index', '--no-deps');
	my ($out, $err) = ('', '');

	skip 'no pip', 4 unless IPC::Run::run([ @pip, '--version' ], '<', \undef, '>', \$out, '2>', \$err);
	local $ENV{HOME} = $tmp;
	command_ok([ 'cp', '-R', "$ENV{IDEMQ_SOURCE}/clients/python", "$tmp/python" ], 'the sources');
	command_ok([ @pip, 'wheel', '--no-build-isolation', @local, '-w', "$tmp/wheel", "$tmp/python" ], 'pip makes a wheel');
	command_ok([ @pip, 'install', @local, '--target', "$tmp/installed", glob "$tmp/wheel/idemq-*.whl" ], 'and installs it');
	$ENV{PYTHONPATH} = "$tmp/installed";
	command_like([ '/usr/bin/python3', '-c', 'import idemq, os; print(idemq.__file__, os.listdir(os.path.dirname(idemq.__file__)))' ],
		qr/installed.*py\.typed/, 'which has the types');
}

# The client's own tests.
{
	my ($out, $err) = ('', '');

	local $ENV{IDEMQ_DSN} = dsn($node);
	IPC::Run::run([ '/usr/bin/python3', '-W', 'ignore::ResourceWarning', "$here/python_client.py" ], '<', \undef, '>', \$out, '2>', \$err,
		IPC::Run::timeout(400));
	is($? >> 8, 0, 'python_client.py') or diag "$out$err";
	my ($ran, $seconds) = $err =~ /^Ran (\d+) tests in ([\d.]+)s/m;
	cmp_ok($ran // 0, '>=', 45, 'has run all of it');
	diag "figure: python_client.py: $ran tests in $seconds s";
	is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');
}

my $inside = q[SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ '^(UPDATE accounts|INSERT INTO reports)'];
my $asleep = q[SELECT count(*) >= 1 FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'CALL idemq.wait%'];

sub prepare
{
	sql($_[0], q[DROP TABLE IF EXISTS accounts, reports, sales;
		CREATE TABLE accounts (account text PRIMARY KEY, balance int);
		INSERT INTO accounts VALUES ('anna', 0);
		CREATE TABLE reports (tick text, total numeric);
		CREATE TABLE sales AS SELECT 12.50 AS total FROM generate_series(1, 4);
		CALL idemq.tick();
		SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name IN ('events', 'mail', 'reports');
		SELECT idemq.create_queue(q, retry_base => '10 ms', lease => '3 s') FROM unnest('{events,mail,reports}'::text[]) q]);
	return;
}

# Events come two or three times; while a worker is in one, it is killed, told to end, disconnected.
sub webhook
{
	my ($dsn, $what, $of, $break) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my @env = (DSN => $dsn, PORT => $port);
	my $event = 0;
	my $sum = 0;
	my $post = sub {
		my ($times) = @_;
		my $body = JSON::PP->new->canonical->encode({ id => 'evt-' . ++$event, account => 'anna', amount => $event });

		$sum += $event;
		foreach (1 .. $times)
		{
			my $answer;
			foreach (1 .. 600)
			{
				$answer = HTTP::Tiny->new->post("http://127.0.0.1:$port/", { content => $body });
				last if $answer->{success};
				Time::HiRes::sleep(0.1);
			}
			is($answer->{status}, 204, "$what: event $event is taken") or diag $answer->{content};
		}
	};
	my $it = start('webhook.py', @env);

	$post->($_) foreach 1 .. 3;
	wait_until($of->(), "SELECT balance = $sum FROM accounts");
	if ($what =~ /pooler/)
	{
		# What is idle is closed now; the worker wakes all the same.
		Time::HiRes::sleep(2.5);
		$post->(2);
		wait_until($of->(), "SELECT balance = $sum FROM accounts");
	}
	foreach my $end (qw(kill disconnect term))
	{
		my $blocker = session($of->());

		$blocker->query_safe('BEGIN; LOCK accounts');
		$post->(1);
		wait_until($of->(), $inside);
		if ($end eq 'kill') { kill_9($it) }
		sql($of->(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE acc%'") if $end ne 'term';
		$it->{run}->signal('TERM') if $end eq 'term';
		$blocker->query_safe('COMMIT');
		$blocker->quit;
		if ($end eq 'kill') { $it = start('webhook.py', @env) }
		if ($end eq 'term')
		{
			my ($status, $said) = ended($it);
			is($status, 0, "$what: told to end in an effect, it ends by itself") or diag $said;
		}
		wait_until($of->(), "SELECT balance = $sum FROM accounts");
	}
	$it = start('webhook.py', @env);
	$break->() if $break;
	$post->(2);
	wait_until($of->(), "SELECT balance = $sum FROM accounts");
	told_to_end($it, "$what: asleep, it ends soon");
	is_sql($of->(), "SELECT count(*), count(*) FILTER (WHERE status = 'completed') FROM idemq.jobs WHERE key LIKE 'evt-%'",
		"$event|$event", "$what: each event is one job, and done");
	return;
}

# Mails to addresses for which the provider answers 502, or too late, or nothing until the worker was killed.
sub mailer
{
	my ($dsn, $what, $of) = @_;
	my $said = '';
	my $provider = IPC::Run::start([ '/usr/bin/python3', "$here/mail_provider.py" ], '<', \undef, '>', \$said, IPC::Run::timeout(400));

	$provider->pump until $said =~ /(\d+)\n/;
	my $url = 'http://127.0.0.1:' . $said =~ s/\s//gr;
	my @env = (DSN => $dsn, PROVIDER => "$url/mails");
	my @to = map { ("$_-1", "$_-2") } qw(anna bad late);
	my $it = start('mailer.py', @env);

	sql($of->(), "SELECT idemq.enqueue('mail', jsonb_build_object('to', t)) FROM unnest('{" . join(',', @to) . "}'::text[]) t");
	wait_until($of->(), q[SELECT count(*) = 6 FROM idemq.jobs WHERE queue_id = idemq.queue_id('mail') AND status = 'completed']);
	is(join(' ', @{ get("$url/mails") }), join(' ', sort @to), "$what: each mail was sent once, whatever the provider answered");
	cmp_ok(get("$url/requests"), '>', 8, "$what: it was asked again for some");

	sql($of->(), q[SELECT idemq.enqueue('mail', '{"to": "stall"}')]);
	foreach (1 .. 600)
	{
		last if grep { $_ eq 'stall' } @{ get("$url/mails") };
		Time::HiRes::sleep(0.1);
	}
	kill_9($it);
	get("$url/go");
	$it = start('mailer.py', @env);
	wait_until($of->(), q[SELECT count(*) = 7 FROM idemq.jobs WHERE queue_id = idemq.queue_id('mail') AND status = 'completed']);
	is(scalar(grep { $_ eq 'stall' } @{ get("$url/mails") }), 1, "$what: killed between call and answer, it is sent once");
	is_sql($of->(), q[SELECT result FROM idemq.jobs WHERE queue_id = idemq.queue_id('mail') ORDER BY id DESC LIMIT 1], '{"sent": "stall"}',
		"$what: its answer is the result");
	told_to_end($it, "$what: told to end");
	$provider->kill_kill;
	return;
}

# A tick of the schedule, while its worker is killed.
sub report
{
	my ($dsn, $what, $of) = @_;

	sql($of->(), q[SELECT idemq.unschedule('nightly')]);
	my $it = start('report.py', DSN => $dsn);
	my $due = q[UPDATE idemq.schedule_entries SET done_until = clock_timestamp() - interval '1 day' WHERE name = 'nightly'; CALL idemq.tick()];

	# Asleep may be one that is about to end, of the program before.
	wait_until($of->(), q[SELECT count(*) = 1 FROM idemq.schedules WHERE name = 'nightly']);
	wait_until($of->(), $asleep);
	my $blocker = session($of->());
	$blocker->query_safe('BEGIN; LOCK reports');
	sql($of->(), $due);
	wait_until($of->(), $inside);
	kill_9($it);
	sql($of->(), q[SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO rep%']);
	$blocker->query_safe('COMMIT');
	$blocker->quit;
	$it = start('report.py', DSN => $dsn);
	wait_until($of->(), 'SELECT count(*) = 1 FROM reports');
	sql($of->(), $due);
	told_to_end($it, "$what: told to end");
	is_sql($of->(), q[SELECT count(*), count(DISTINCT tick), max(total) FROM reports], '1|1|50.00', "$what: one report of the day");
	return;
}

my $has_steps = sql($node, q[SELECT to_regclass('idemq.steps') IS NOT NULL]) eq 't';
my $of = sub { $node };

prepare($node);
webhook(dsn($node), 'webhook', $of);
SKIP:
{
	skip 'no idemq.begin_step', 1 if !$has_steps;
	mailer(dsn($node), 'mailer', $of);
}
report(dsn($node), 'report', $of);

# A pooler that closes what is idle for a second.
my ($start, $dir, $port) = pooler($node, default_pool_size => 4, client_idle_timeout => 1, server_idle_timeout => 1);
my $pgbouncer = $start->();
my $pooled = "dbname=postgres user=postgres host=$dir port=$port";
prepare($node);
webhook($pooled, 'webhook, pooler', $of);
mailer($pooled, 'mailer, pooler', $of) if $has_steps;
report($pooled, 'report, pooler', $of);
$pgbouncer->kill_kill;
is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');

# A failover, while the worker sleeps, and with a job in its hands.
{
	my $standby = PostgreSQL::Test::Cluster->new('python_standby');
	my $primary = $node;

	prepare($node);
	$node->backup('base');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	webhook(dsn($standby, $node), 'webhook, failover', sub { $primary }, sub {
		wait_until($primary, $asleep);
		my $blocker = session($primary);
		$blocker->query_safe('BEGIN; LOCK accounts');
		# In the worker's hands when the primary is gone.
		sql($primary, q[SELECT idemq.enqueue('events', '{"account": "anna", "amount": 0}')]);
		wait_until($primary, $inside);
		$primary->wait_for_catchup($standby);
		$primary->stop('immediate');
		$standby->promote;
		$primary = $standby;
		eval { $blocker->quit };
		wait_until($primary, q[SELECT bool_and(status = 'completed') FROM idemq.jobs WHERE queue_id = idemq.queue_id('events')]);
	});
	is_sql($standby, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'every invariant holds on the new primary');
	$standby->stop;
}

done_testing();
