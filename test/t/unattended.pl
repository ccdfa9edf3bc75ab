# Nobody works on it: due jobs, nobody in flight, no claim, nobody asleep, for a minute. Every other queue here has
# due jobs that are older, and somebody, or nobody that has to: they are asked when the one is found.
# at least 15 assertions
# looks at sessions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('unattended', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', autovacuum => 'off', log_statement => 'none');
my %queues = (
	empty => '', future => '', paused => '', cron => 'expect_workers => false', letters => '', asleep => '', in_flight => '', polled => '',
	by_id => '', full => 'max_running => 1', rated => "rate_limit => 1, rate_period => '1 h'", alone => '', handled => '');
foreach my $queue (sort keys %queues)
{
	my $with = $queues{$queue} ? ", $queues{$queue}" : '';

	sql($node, "SELECT idemq.create_queue('$queue', lease => '1 h'$with)");
}
sql($node, "SELECT idemq.create_queue('dies', dead_letter_queue => 'letters'); CREATE ROLE worker LOGIN; SELECT idemq.grant_queue('alone', 'worker', 'claim')");
# Due for a while, and counted for as long: a queue that has just begun to be counted is new.
my $due = join ', ', map { "idemq.enqueue('$_', '1')" } grep { !/empty|future/ } sort keys %queues;
sql($node, "SELECT idemq.enqueue('future', '1', delay => '1 h'); SELECT $due");
sql($node, "SELECT idemq.pause('paused'); CREATE FUNCTION f(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS 'SELECT pg_sleep(3600)'; SELECT idemq.set_handler('handled', 'f')");
sql($node, "SELECT idemq.enqueue(q, '2') FROM unnest('{in_flight,full,rated,alone,by_id,handled}'::text[]) q");
sql($node, "SELECT count(*) FROM idemq.claim('in_flight'); SELECT count(*) FROM idemq.claim('full'); SELECT idemq.commit(id, token) FROM idemq.claim('rated')");
wait_until($node, "SELECT count(*) > 0 FROM idemq.jobs WHERE queue_id = idemq.queue_id('handled') AND status = 'running'");
# It has been worked on, until now.
my $since = sql($node, 'SELECT idemq.clock_timestamp()');
sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('alone')");
# One that is ready is not slept for, but one whose row is held.
my $held = session($node);
$held->query_safe(q{BEGIN; SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id('asleep') FOR UPDATE});
my $other = waiter($node, "CALL idemq.wait('asleep', '1 h')");

is_sql($node, 'SELECT count(unattended_for) FROM idemq.metrics', 0, 'not before a minute is over');
my $polled = "SELECT count(*) FROM idemq.claim('polled', 1) c CROSS JOIN LATERAL idemq.release(c.id, c.token)";
my $by_id = "SELECT idemq.release(id, token) FROM idemq.claim_job((SELECT min(id) FROM idemq.jobs WHERE queue_id = idemq.queue_id('by_id') AND status = 'pending'))";
advance($node, '1 min');
sql($node, $_) foreach $polled, $by_id;
is_sql($node, "SELECT string_agg(queue, ' ' ORDER BY queue) FROM idemq.metrics WHERE unattended_for IS NOT NULL", 'alone', 'that one, and no other');
is_sql($node, "SELECT unattended_for >= '1 min', unattended_for <= idemq.clock_timestamp() - '$since'::timestamptz FROM idemq.metrics WHERE queue = 'alone'", 't|t', 'for as long as it was');
like(sql($node, "SELECT idemq.why(id) FROM idemq.jobs WHERE queue_id = idemq.queue_id('alone') AND status = 'pending'"),
	qr/; queue "alone" has had no worker since .*: start a worker that calls idemq\.claim\('alone'\)$/, 'why says so');
unlike(sql($node, "SELECT idemq.why(id) FROM idemq.jobs WHERE queue_id = idemq.queue_id('cron')"), qr/nobody/, 'and not of one that expects no workers');
# A minute may have gone by since.
sql($node, $_) foreach $polled, $by_id;
is_sql($node, "SELECT bool_and((value > 0) = (labels ->> 'queue' = 'alone')), count(*) FROM idemq.prometheus WHERE name = 'idemq_queue_unattended_seconds'", 't|15', 'its figure');
is_sql($node, "SELECT string_agg(labels ->> 'queue', ' ') FROM idemq.prometheus WHERE name = 'idemq_queue_is_dead_letter_queue' AND value = 1", 'letters', 'and that of the dead-letter queue');
is_sql($node, "SELECT unattended_for >= '1 min' FROM idemq.metrics WHERE queue = 'alone'", 't', 'who may claim from it sees it', 'postgres');

# Each of these is enough; all is as before when it is over.
sub attended
{
	my ($name) = @_;

	return is_sql($node, "SELECT unattended_for FROM idemq.metrics WHERE queue = 'alone'", '', $name);
}
sub is_marked
{
	my ($name, $mark, $unmark) = @_;

	sql($node, $mark);
	attended($name);
	sql($node, $unmark);
	return is_sql($node, "SELECT unattended_for >= '1 min' FROM idemq.metrics WHERE queue = 'alone'", 't', "$name: no more");
}
is_marked('expects no workers', "SELECT idemq.alter_queue('alone', expect_workers => false)", "SELECT idemq.alter_queue('alone', expect_workers => true)");
is_marked('paused', "SELECT idemq.pause('alone')", "SELECT idemq.resume('alone')");
is_marked('a dead-letter queue', "SELECT idemq.alter_queue('dies', dead_letter_queue => 'alone')", "SELECT idemq.alter_queue('dies', dead_letter_queue => 'letters')");
# A claim, be it one that finds nothing: somebody comes by.
sql($node, 'BEGIN; SELECT count(*) FROM idemq.claim(\'alone\'); ROLLBACK');
attended('a claim that is rolled back');
$other->{session}{run}->kill_kill;
$held->{run}->kill_kill;
$node->stop;
done_testing();
