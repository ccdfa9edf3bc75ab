# Kafka's protocol, as librdkafka's own brokers speak it, and the consumer of
# doc/usage/brokers-kafka.md: rebalances by a consumer that was stopped and comes back, and by one
# that was killed, the database down, a topic whose offsets begin anew.  Each message is one job,
# and the jobs of one key run in the order of their offsets.
# takes long
# slow: needs librdkafka; waits for the timers of its broker
# at least 36 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use Idemq;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";

plan skip_all => 'no python3-confluent-kafka' unless has_python('confluent_kafka');

my $node = new_server('kafka', 'idemq.worker' => 'on', max_connections => 40);
sql($node, $Brokers::to_payload . q{SELECT idemq.create_queue('events', retry_base => '10 ms', max_attempts => 2, idempotency_window => '14 days');
	CREATE TABLE happened (n serial, customer text, event int NOT NULL);
	CREATE FUNCTION happen(payload jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog, public, pg_temp
		AS $$ INSERT INTO happened (customer, event) VALUES (payload->>'customer', (payload->>'event')::int) $$;
	SELECT idemq.set_handler('events', 'happen(jsonb)')});

my $cluster;

sub start_cluster
{
	$cluster = program([ '/usr/bin/python3', "$here/broker.py", 'kafka_cluster' ]);
	my $brokers = first_line($cluster);
	$ENV{KAFKA} = encode_json({ 'bootstrap.servers' => $brokers, 'auto.offset.reset' => 'earliest',
			'session.timeout.ms' => 3000, 'heartbeat.interval.ms' => 500, 'fetch.wait.max.ms' => 100 });
	return;
}

my ($sent, $customers, @consumers, @gone) = (0, 12);

# So many events more of each customer.
sub send_more
{
	my @messages;

	foreach my $event ($sent + 1 .. $sent + $_[0])
	{
		push @messages, map { qq(customer-$_ {"customer": "customer-$_", "event": $event}) } 1 .. $customers;
	}
	broker('kafka_send', \@messages);
	$sent += $_[0];
	return;
}

sub consumers
{
	push @consumers, map { consumer($node, 'consumer-' . (@consumers + @gone + $_), '/usr/bin/python3', "$here/kafka_consumer.py") } 1 .. $_[0];
	return;
}

# Holds up who enqueues messages of a partition; answers the session, and who it is.
sub hold_partition
{
	my $session = session($node);

	$session->query_safe(q{BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('events/0', 0))});
	send_more(2);
	wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name LIKE 'consumer-%' AND wait_event_type = 'Lock'});
	my $name = sql($node, q{SELECT application_name FROM pg_stat_activity WHERE application_name LIKE 'consumer-%' AND wait_event_type = 'Lock'});
	my ($it) = grep { $_->{name} eq $name } @consumers;
	return ($session, $it);
}

sub all_happened
{
	my ($when) = @_;
	my $all = $sent * $customers;

	is_soon($node, "SELECT count(*) = $all FROM happened", "$when: all have happened");
	is_sql($node, "SELECT count(*), count(DISTINCT (customer, event)) FROM happened", "$all|$all", "$when: each once");
	is_sql($node, q{SELECT count(*) FROM (SELECT event - lag(event, 1, 0) OVER (PARTITION BY customer ORDER BY n) AS step FROM happened) s
		WHERE step <> 1}, 0, "$when: those of a customer in order");
	return;
}

start_cluster();
send_more(3);
consumers(3);
all_happened('three consumers');
broker_until(join(' ', ($sent * $customers) x 2), 'kafka_offsets');

# A consumer is stopped while it enqueues.  The group goes on without it, and whoever has its partition
# enqueues the same messages.  Then it wakes up.
my ($hold, $zombie) = hold_partition();
$zombie->{run}->signal('STOP');
# A commit may have met the rebalance in which the three of them came together.
my $before = -s $zombie->{errors};
wait_until($node, q{SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name LIKE 'consumer-%' AND wait_event_type = 'Lock'});
my $duplicates = sql($node, q{SELECT duplicates_total FROM idemq.metrics WHERE queue = 'events'});
leave($hold);
all_happened('a rebalance beside a consumer that was stopped');
is_soon($node, "SELECT duplicates_total > $duplicates FROM idemq.metrics WHERE queue = 'events'", 'both have enqueued');
is(slurp_file($zombie->{errors}, $before), '', 'it knows nothing of it');
$zombie->{run}->signal('CONT');
complains($zombie, qr/KafkaException/, $before);
like(slurp_file($zombie->{errors}, $before), qr/_ASSIGNMENT_LOST|ILLEGAL_GENERATION|UNKNOWN_MEMBER_ID/, 'its offsets are refused');
send_more(2);
all_happened('it takes part again');

# Killed while it enqueues: the server goes on to the COMMIT, the offsets are not committed.
($hold, my $victim) = hold_partition();
kill_9($victim);
push @gone, $victim;
@consumers = grep { $_ != $victim } @consumers;
$duplicates = sql($node, q{SELECT duplicates_total FROM idemq.metrics WHERE queue = 'events'});
leave($hold);
wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = '$victim->{name}'");
consumers(1);
all_happened('a consumer was killed');
broker_until(join(' ', ($sent * $customers) x 2), 'kafka_offsets');
cmp_ok(sql($node, q{SELECT duplicates_total FROM idemq.metrics WHERE queue = 'events'}), '>', $duplicates,
	'what it had enqueued was read again');

my $again = sql($node, q{SELECT duplicates_total FROM idemq.metrics WHERE queue = 'events'});

# The database is down: no offset is committed.
my $committed = $sent * $customers;
$node->stop('immediate');
send_more(2);
complains($_, qr/OperationalError/) foreach @consumers;
is(broker('kafka_offsets'), "$committed " . $sent * $customers, 'the database is down: offsets stay');
$node->start;
all_happened('the database was down');
broker_until(join(' ', ($sent * $customers) x 2), 'kafka_offsets');

# Poison.
broker('kafka_send', [ 'customer-1 {"customer"', 'customer-1 {"customer": "customer-1"}' ]);
send_more(1);
all_happened('poison');
is_soon($node, q{SELECT count(*) = 2 FROM idemq.jobs WHERE status = 'dead'}, 'poison is dead');
is_sql($node, q{SELECT convert_from(decode(payload->>'not JSON', 'hex'), 'UTF8') FROM idemq.jobs WHERE payload ? 'not JSON'},
	'{"customer"', 'what was no JSON is there');
is(join('', map { died($_) } @consumers), '', 'no consumer has ended');
my $enqueued = sql($node, 'SELECT count(*) FROM idemq.jobs');
diag "figure: $enqueued messages, $again of them enqueued again after two rebalances";
is($enqueued, $sent * $customers + 2, 'a job a message');

# The topic is made anew, and its offsets begin at 0: not taken for what has been done.
kill_9(map { { name => 'a process', %$_ } } @consumers, $cluster);
@consumers = ();
start_cluster();
$sent++;
broker('kafka_send', [qq(customer-1 {"customer": "customer-1", "event": $sent})]);
consumers(1);
$consumers[0]{run}->finish;
like(slurp_file($consumers[0]{errors}), qr/IQ003|different payload/, 'another message with the same offset: the consumer stops');
is(broker('kafka_offsets'), '0 1', 'and the message stays');
kill_9({ name => 'the cluster', %$cluster });
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
