# SQS, as moto has it, and the consumer of doc/usage/brokers.md: consumers killed before and
# after the COMMIT, an effect that takes longer than the visibility timeout, the database down,
# a broker that has lost everything.  Each message's effect happens once.

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

# script/test has installed them, or said why not.
local $ENV{PYTHONPATH} = $ENV{IDEMQ_PYTHON_MODULES} // '';
plan skip_all => 'no moto' unless has_python('moto') && has_python('boto3');

my $node = new_server('sqs', 'idemq.worker' => 'on', max_connections => 40);
pays($node);

my $port = PostgreSQL::Test::Cluster::get_free_port();
local @ENV{qw(SQS_ENDPOINT AWS_DEFAULT_REGION AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_EC2_METADATA_DISABLED)} =
  ("http://127.0.0.1:$port", 'us-east-1', 'none', 'none', 'true');
my ($server, $refused);

sub start_broker
{
	my $end = time + 120;

	$server = IPC::Run::start([ '/usr/bin/python3', '-m', 'moto.server', '-H', '127.0.0.1', '-p', $port ], '<', \undef,
		'>', '/dev/null', '2>', "$PostgreSQL::Test::Utils::tmp_check/moto.err", IPC::Run::timeout(400));
	while (time < $end)
	{
		my $queues = eval { broker('sqs_create') };

		($ENV{SQS_QUEUE}, $refused) = split / /, $queues if $queues;
		return if $queues;
		die slurp_file("$PostgreSQL::Test::Utils::tmp_check/moto.err") unless $server->pumpable;
		Time::HiRes::sleep(0.2);
	}
	die "moto does not answer: $@";
}

my ($sent, @consumers, @gone) = (0);

# So many payments more, each sent twice: as messages with ids of their own.
sub pay_more
{
	my @messages = map { qq({"id": "pay-$_", "amount": $_}) } $sent + 1 .. $sent + $_[0];

	broker('sqs_send', [ map { ($_, $_) } @messages ]);
	$sent += $_[0];
	return;
}

sub consumers
{
	push @consumers, map { consumer($node, 'sqs_consumer.py', 'consumer-' . (@consumers + @gone + $_)) } 1 .. $_[0];
	return;
}

sub lose
{
	my ($it) = @_;

	kill_9($it);
	@consumers = grep { $_ != $it } @consumers;
	push @gone, $it;
	consumers(1);
	return;
}

# The key that a consumer has spoken of last.
sub last_key
{
	my ($key) = (split /\n/, slurp_file($_[0]{said}))[-1] =~ /^(\S+) first$/;

	return $key;
}

sub all_paid
{
	my ($when) = @_;

	is_soon($node, "SELECT count(*) = $sent FROM paid", "$when: all are paid");
	broker_until('0 0', 'sqs_state', $ENV{SQS_QUEUE});
	is_sql($node, 'SELECT count(*), count(DISTINCT id), sum(amount) FROM paid', join('|', $sent, $sent, $sent * ($sent + 1) / 2),
		"$when: each once, and no message is left");
	return;
}

start_broker();

# Killed before the COMMIT.
my $hold = hold_effects($node);
pay_more(10);
consumers(2);
my ($victim) = held($node, @consumers);
my $key = last_key($victim);
lose($victim);
$hold->quit;
all_paid('killed before the COMMIT');
ok((grep { $_ eq "$key first" } keys %{ heard(@consumers) }), 'by another consumer, after the visibility timeout');

# Killed after the COMMIT, before the deletion: it comes again after the visibility timeout.
$hold = hold_commits($node);
pay_more(10);
($victim) = held($node, @consumers);
$key = last_key($victim);
$victim->{run}->signal('STOP');
$hold->quit;
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$victim->{name}' AND state = 'idle'");
is_sql($node, "SELECT count(*) FROM paid WHERE id = '$key'", 1, 'what it was told is done, and it does not know');
lose($victim);
all_paid('killed after the COMMIT');
my $others = heard(@consumers);
is($others->{"$key first"}, undef, 'nobody has done it again');
cmp_ok($others->{"$key repeated"} // 0, '>=', 2, 'it was delivered again');

# An effect that takes longer than the visibility timeout: who gets the message meanwhile waits for the first.
$hold = hold_effects($node);
broker('sqs_send', [ '{"id": "slow", "amount": 0}' ]);
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%pay(%'");
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%once(%'");
$hold->quit;
is_soon($node, "SELECT count(*) = 1 FROM paid WHERE id = 'slow'", 'a slow effect is there');
broker_until('0 0', 'sqs_state', $ENV{SQS_QUEUE});
cmp_ok(heard(@consumers)->{'slow repeated'} // 0, '>=', 1, 'the twin has learned that it is done');
is_sql($node, "DELETE FROM paid WHERE id = 'slow' RETURNING id", 'slow', 'once');

# The database is down for longer than the visibility timeout: nothing is deleted, nobody receives.
$hold = hold_effects($node);
pay_more(10);
held($node, @consumers);
$node->stop('immediate');
broker_until('20 0', 'sqs_state', $ENV{SQS_QUEUE});
pay_more(5);
is(broker('sqs_state', $ENV{SQS_QUEUE}), '30 0', 'the database is down: the broker keeps all messages, nobody receives');
$node->start;
all_paid('the database was down');
is(broker('sqs_state', $refused), '0 0', 'none of them has come too often');
eval { $hold->quit };

# Poison: the broker itself puts it aside.
broker('sqs_policy', 1, 3);
broker('sqs_send', [ '{"id": "poison-1", "amount": "much"}', '{"id', '{"amount": 1}' ]);
broker_until('3 0', 'sqs_state', $refused);

# The broker has lost everything, and the sender sends it once more: with other message ids.
$server->kill_kill;
start_broker();
broker('sqs_send', [ map { qq({"id": "pay-$_", "amount": $_}) } 1 .. $sent ]);
pay_more(5);
all_paid('the broker has lost everything');

is(join('', map { died($_) } @consumers), '', 'no consumer has ended');
my $heard = heard(@consumers, @gone);
my %outcomes;
$outcomes{ (split / /)[1] } += $heard->{$_} foreach keys %$heard;
diag "figure: $sent messages, each sent twice: " . join(', ', map { "$_ $outcomes{$_}" } sort keys %outcomes);
kill_9(@consumers);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$server->kill_kill;
$node->stop;
done_testing();
