# SQS, as fauxqs answers it, and the consumer of doc/usage/brokers-sqs.md: consumers killed before and
# after the COMMIT, an effect that takes longer than the visibility timeout, the database down,
# a broker that has lost everything.  Each message's effect happens once.
# slow: needs fauxqs from npm; waits for its visibility timeout
# at least 26 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use HTTP::Tiny;
use Idemq;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";

# script/test has installed them, or said why not.
plan skip_all => 'no fauxqs' unless -d "$ENV{IDEMQ_NODE_MODULES}/fauxqs";

my $node = new_server('sqs', 'idemq.worker' => 'on', max_connections => 40);
pays($node);

# Where the programs find their packages.
my $app = PostgreSQL::Test::Utils::tempdir();
symlink $ENV{IDEMQ_NODE_MODULES}, "$app/node_modules" or die $!;
system_or_bail('cp', "$here/sqs_consumer.mjs", "$here/sqs_server.mjs", $app);

my $json = JSON::PP->new->canonical->allow_nonref;
my $http = HTTP::Tiny->new(timeout => 60);
my $port = 0;
my ($server, $queue, $refused);

# A call of SQS; answers what it answers.
sub sqs
{
	my ($action, %arguments) = @_;
	my $answer = $http->post("http://127.0.0.1:$port/", { content => $json->encode(\%arguments),
			headers => { 'Content-Type' => 'application/x-amz-json-1.0', 'X-Amz-Target' => "AmazonSQS.$action" } });

	die "$action: $answer->{status} $answer->{content}" unless $answer->{success};
	return $answer->{content} eq '' ? {} : $json->decode($answer->{content});
}

# A message is invisible for so many seconds, and may come so many times.
sub policy
{
	my ($seconds, $times) = @_;
	my $arn = sqs('GetQueueAttributes', QueueUrl => $refused, AttributeNames => ['QueueArn'])->{Attributes}{QueueArn};

	sqs('SetQueueAttributes', QueueUrl => $queue, Attributes => { VisibilityTimeout => "$seconds",
			RedrivePolicy => $json->encode({ deadLetterTargetArn => $arn, maxReceiveCount => $times }) });
	return;
}

# 'N M': messages that wait, and those that somebody has been given.
sub state_of
{
	my $is = sqs('GetQueueAttributes', QueueUrl => $_[0],
		AttributeNames => [ 'ApproximateNumberOfMessages', 'ApproximateNumberOfMessagesNotVisible' ])->{Attributes};

	return "$is->{ApproximateNumberOfMessages} $is->{ApproximateNumberOfMessagesNotVisible}";
}

sub until_state
{
	my ($expected, $of) = @_;
	my $end = time + 120;

	until (state_of($of) eq $expected)
	{
		die "never '$expected', but " . state_of($of) if time > $end;
		Time::HiRes::sleep(0.1);
	}
	return;
}

# At the port of the last one.
sub start_broker
{
	$server = program([ 'node', "$app/sqs_server.mjs", $port ]);
	$port = first_line($server);
	($refused, $queue) = map { sqs('CreateQueue', QueueName => $_)->{QueueUrl} } 'refused', 'payments';
	policy(2, 200);
	return;
}

sub deliver
{
	sqs('SendMessage', QueueUrl => $queue, MessageBody => $_) foreach @_;
	return;
}

my ($sent, @consumers, @gone) = (0);

# So many payments more, each sent twice: as messages with ids of their own.
sub pay_more
{
	my @messages = map { qq({"id": "pay-$_", "amount": $_}) } $sent + 1 .. $sent + $_[0];

	deliver(map { ($_, $_) } @messages);
	$sent += $_[0];
	return;
}

sub consumers
{
	push @consumers, map { consumer($node, 'consumer-' . (@consumers + @gone + $_), 'node', "$app/sqs_consumer.mjs") } 1 .. $_[0];
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
	until_state('0 0', $queue);
	is_sql($node, 'SELECT count(*), count(DISTINCT id), sum(amount) FROM paid', join('|', $sent, $sent, $sent * ($sent + 1) / 2),
		"$when: each once, and no message is left");
	return;
}

start_broker();
local @ENV{qw(SQS_ENDPOINT SQS_QUEUE AWS_REGION AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY)} =
  ("http://127.0.0.1:$port", $queue, 'us-east-1', 'none', 'none');

# Killed before the COMMIT.
my $hold = hold_effects($node);
pay_more(10);
consumers(2);
my ($victim) = held($node, @consumers);
my $key = last_key($victim);
lose($victim);
leave($hold);
all_paid('killed before the COMMIT');
ok((grep { $_ eq "$key first" } keys %{ heard(@consumers) }), 'by another consumer, after the visibility timeout');

# Killed after the COMMIT, before the deletion: it comes again after the visibility timeout.
$hold = hold_commits($node);
pay_more(10);
($victim) = held($node, @consumers);
$key = last_key($victim);
$victim->{run}->signal('STOP');
leave($hold);
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$victim->{name}' AND state = 'idle'");
is_sql($node, "SELECT count(*) FROM paid WHERE id = '$key'", 1, 'what it was told is done, and it does not know');
lose($victim);
all_paid('killed after the COMMIT');
my $others = heard(@consumers);
is($others->{"$key first"}, undef, 'nobody has done it again');
cmp_ok($others->{"$key repeated"} // 0, '>=', 2, 'it was delivered again');

# An effect that takes longer than the visibility timeout: who gets the message meanwhile waits for the first.
$hold = hold_effects($node);
deliver('{"id": "slow", "amount": 0}');
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%pay(%'");
wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%once(%'");
leave($hold);
is_soon($node, "SELECT count(*) = 1 FROM paid WHERE id = 'slow'", 'a slow effect is there');
until_state('0 0', $queue);
cmp_ok(heard(@consumers)->{'slow repeated'} // 0, '>=', 1, 'the duplicate has learned that it is done');
is_sql($node, "DELETE FROM paid WHERE id = 'slow' RETURNING id", 'slow', 'once');

# The database is down for longer than the visibility timeout: nothing is deleted, nobody receives.
$hold = hold_effects($node);
pay_more(10);
held($node, @consumers);
$node->stop('immediate');
complains($_, qr/^connect /m) foreach @consumers;
my @before = split / /, state_of($queue);
is($before[0] + $before[1], 20, 'the database is down: nothing is deleted');
pay_more(5);
# What is invisible becomes visible when somebody receives.
my @after = split / /, state_of($queue);
is("@after", join(' ', $before[0] + 10, $before[1]), 'and nobody receives');
$node->start;
all_paid('the database was down');
is(state_of($refused), '0 0', 'none of them has come too often');
eval { leave($hold) };

# Poison: the broker itself puts it aside.
policy(1, 3);
deliver('{"id": "poison-1", "amount": "much"}', '{"id', '{"amount": 1}');
until_state('3 0', $refused);

# The broker has lost everything, and the sender sends it once more: with other message ids.
kill_9({ name => 'the broker', %$server });
start_broker();
deliver(map { qq({"id": "pay-$_", "amount": $_}) } 1 .. $sent);
pay_more(5);
all_paid('the broker has lost everything');

is(join('', map { died($_) } @consumers), '', 'no consumer has ended');
my $heard = heard(@consumers, @gone);
my %outcomes;
$outcomes{ (split / /)[1] } += $heard->{$_} foreach keys %$heard;
diag "figure: $sent messages, each sent twice: " . join(', ', map { "$_ $outcomes{$_}" } sort keys %outcomes);
kill_9(@consumers, { name => 'the broker', %$server });
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
