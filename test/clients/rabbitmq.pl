# RabbitMQ and the consumer of doc/usage/brokers-rabbitmq.md: consumers killed before and after the
# COMMIT, the broker killed, the database down.  Each message's effect happens once, and what
# is not done stays with the broker.
# slow: needs RabbitMQ; kills consumers and the broker
# at least 31 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";

my $program = '/usr/lib/rabbitmq/bin/rabbitmq-server';
plan skip_all => 'no rabbitmq-server' unless -x $program;
plan skip_all => 'no python3-pika' unless has_python('pika');

my $node = new_server('rabbitmq', 'idemq.worker' => 'on', 'idemq.attach_grace' => '1 s', max_connections => 40);
pays($node);
sql($node, q{SELECT idemq.create_queue('payments', retry_base => '10 ms', max_attempts => 3, idempotency_window => '14 days')});

# A broker of its own: its ports, its files, its epmd.
my $dir = PostgreSQL::Test::Utils::tempdir_short();
my ($port, $dist_port, $epmd_port) = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. 3;
append_to_file("$dir/plugins", '[].');
local @ENV{qw(HOME ERL_EPMD_ADDRESS ERL_EPMD_PORT AMQP_URL)} =
  ($dir, '127.0.0.1', $epmd_port, "amqp://guest:guest\@127.0.0.1:$port/%2F");
my $epmd = IPC::Run::start([ 'epmd', '-address', '127.0.0.1', '-port', $epmd_port ], '<', \undef, '>&', "$dir/epmd.log");
my ($server, $server_pid);

sub start_broker
{
	local %ENV = (%ENV,
		RABBITMQ_CONF_ENV_FILE => "$dir/none",
		RABBITMQ_CONFIG_FILE => "$dir/none",
		RABBITMQ_ADVANCED_CONFIG_FILE => "$dir/none",
		RABBITMQ_ENABLED_PLUGINS_FILE => "$dir/plugins",
		RABBITMQ_NODENAME => 'idemq@localhost',
		RABBITMQ_NODE_IP_ADDRESS => '127.0.0.1',
		RABBITMQ_NODE_PORT => $port,
		RABBITMQ_DIST_PORT => $dist_port,
		RABBITMQ_MNESIA_BASE => "$dir/data",
		RABBITMQ_SCHEMA_DIR => "$dir/schema",
		RABBITMQ_GENERATED_CONFIG_DIR => "$dir/schema",
		RABBITMQ_LOG_BASE => "$dir/log",
		RABBITMQ_PID_FILE => "$dir/pid",
		RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS => '-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none');
	unlink "$dir/pid";
	$server = IPC::Run::start([$program], '<', \undef, '>&', "$dir/said", IPC::Run::timeout(400));
	until_broker();
	chomp($server_pid = slurp_file("$dir/pid"));
	return;
}

# Waits until the broker answers; its queues are there then.
sub until_broker
{
	my $end = time + 120;

	while (time < $end)
	{
		return 1 if eval { broker('rabbitmq_create'); 1 };
		die slurp_file("$dir/said") unless $server->pumpable;
		Time::HiRes::sleep(0.2);
	}
	die "the broker does not start: $@" . slurp_file("$dir/said");
}

my ($sent, @consumers, @gone) = (0);

# So many payments more, each sent twice: the sender has lost the answer, and sends again.
sub pay_more
{
	my @messages = map { "pay-$_ " . qq({"id": "pay-$_", "amount": $_}) } $sent + 1 .. $sent + $_[0];

	broker('rabbitmq_send', [ map { ($_, $_) } @messages ]);
	$sent += $_[0];
	return;
}

sub consumers
{
	push @consumers, map { consumer($node, 'consumer-' . (@consumers + @gone + $_), '/usr/bin/python3', "$here/rabbitmq_consumer.py") } 1 .. $_[0];
	return;
}

# kill -9 to one of them; a new one takes its place.
sub lose
{
	my ($it) = @_;

	kill_9($it);
	@consumers = grep { $_ != $it } @consumers;
	push @gone, $it;
	consumers(1);
	return;
}

# Checks that the consumers say each of these at least twice, now or soon.
sub heard_twice
{
	my ($name, @what) = @_;
	my $end = time + 120;
	my @missing;

	while (@missing = grep { (heard(@consumers)->{$_} // 0) < 2 } @what)
	{
		last if time > $end;
		Time::HiRes::sleep(0.1);
	}
	is("@missing", '', $name);
	return;
}

sub all_paid
{
	my ($when) = @_;

	is_soon($node, "SELECT count(*) = $sent FROM paid", "$when: all are paid");
	is_sql($node, 'SELECT count(*), count(DISTINCT id), sum(amount) FROM paid', join('|', $sent, $sent, $sent * ($sent + 1) / 2),
		"$when: each once");
	return;
}

start_broker();
is_sql($node, 'SELECT 1', 1, 'broker and database run');

# Killed before the COMMIT: nothing has happened, and another consumer does it.
my $hold = hold_effects($node);
pay_more(30);
consumers(3);
my ($victim) = held($node, @consumers);
my $claimed = (split /\n/, slurp_file($victim->{said}))[-1];
like($claimed, qr/^pay-\d+ claimed$/, 'a consumer is before the effect');
my ($message) = split / /, $claimed;
lose($victim);
leave($hold);
all_paid('killed before the COMMIT');
is_sql($node, "SELECT attempt, status FROM idemq.job_by_key('payments', '$message')", '2|completed', 'by another attempt');

# Killed after the COMMIT, before the acknowledgement: whoever gets it again learns that it is done.
$hold = hold_commits($node);
pay_more(30);
($victim) = held($node, @consumers);
$victim->{run}->signal('STOP');
leave($hold);
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$victim->{name}' AND state = 'idle'");
my @last = split /\n/, slurp_file($victim->{said});
($message) = split / /, $last[-1];
is_sql($node, "SELECT count(*) FROM paid WHERE id = '$message'", 1, 'what it was told is done, and it does not know');
lose($victim);
all_paid('killed after the COMMIT');
broker_until('0 3', 'rabbitmq_state', 'payments');
# It was sent twice, and the first of the two was not acknowledged.
heard_twice('it was delivered again', "$message completed");
is(heard(@consumers)->{"$message claimed"}, undef, 'nobody has done it again');

# The broker is killed while consumers are between COMMIT and acknowledgement.
$hold = hold_commits($node);
pay_more(30);
my %before = map { $_->{name} => (split /\n/, slurp_file($_->{said}))[-1] } held($node, @consumers);
kill 'KILL', $server_pid;
$server->finish;
leave($hold);
wait_until($node, "SELECT count(*) >= $sent - 30 + " . keys(%before) . ' FROM paid');
start_broker();
all_paid('the broker killed');
broker_until('0 3', 'rabbitmq_state', 'payments');
heard_twice('what could not be acknowledged came again', map { (split / /)[0] . ' completed' } values %before);

# The database is down: nothing is acknowledged, nobody consumes, and all goes on by itself.
$hold = hold_effects($node);
pay_more(30);
held($node, @consumers);
my %told = map { $_->{name} => -s $_->{errors} } @consumers;
$node->stop('immediate');
# A consumer has left its queue before it has given back all that it was given: both are done when it complains.
complains($_, qr/OperationalError/, $told{ $_->{name} }) foreach @consumers;
# Of the thirty before, who waited for the other of its kind may not have acknowledged it yet.
my ($kept) = broker_until(qr/ 0$/, 'rabbitmq_state', 'payments') =~ /^(\d+)/;
cmp_ok($kept, '>=', 60, 'the database is down: all messages are with the broker');
pay_more(10);
is(broker('rabbitmq_state', 'payments'), $kept + 20 . ' 0', 'it keeps them, nobody consumes');
$node->start;
all_paid('the database was down');
eval { leave($hold) };

# Poison: an effect that always fails, what is no JSON, an id that was another message's, no id.
broker('rabbitmq_send', [ 'poison-1 {"id": "poison-1", "amount": "much"}', 'poison-2 {"id', 'pay-1 {"id": "pay-1", "amount": 1000}',
	'- {"id": "nameless", "amount": 1}' ]);
pay_more(10);
all_paid('poison');
broker_until('2 0', 'rabbitmq_state', 'refused');
is_soon($node, "SELECT status = 'dead' AND attempt = 3 FROM idemq.job_by_key('payments', '$_')", "$_: what always fails is dead")
  foreach 'poison-1', 'poison-2';

is(join('', map { died($_) } @consumers), '', 'no consumer has ended');
my $left;
foreach (1 .. 10)
{
	kill_9(@consumers);
	push @gone, splice @consumers;
	Time::HiRes::sleep(0.1) until ($left = broker('rabbitmq_state', 'payments')) =~ / 0$/;
	last if $left eq '0 0';
	# One was killed in its work.
	consumers(1);
	broker_until('0 1', 'rabbitmq_state', 'payments');
}
is($left, '0 0', 'the broker has nothing left that was not acknowledged');
my $heard = heard(@gone);
my %outcomes;
foreach (keys %$heard)
{
	my (undef, $outcome) = split / /;
	$outcomes{$outcome} += $heard->{$_};
}
diag "figure: $sent messages, each sent twice: " . join(', ', map { "$_ $outcomes{$_}" } sort keys %outcomes);
cmp_ok($outcomes{completed}, '>=', $sent, 'a message that was sent again is settled by the first one');
is_sql($node, "SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1", "completed|$sent\ndead|2", 'nor has the queue');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');

END
{
	my $status = $?;

	if ($epmd)
	{
		kill 'KILL', $server_pid if $server_pid;
		$server->kill_kill if $server;
		$epmd->kill_kill;
	}
	$? = $status;
}
$node->stop;
done_testing();
