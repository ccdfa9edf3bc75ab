# A jump of the wall clock ahead that is corrected: what the manual has a DBA run after the restart.
# at least 42 assertions
use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use Manual;
use PostgreSQL::Test::Utils;
use Test::More;

my ($faketime) = glob('/usr/lib/*/faketime/libfaketime.so.1');
plan skip_all => 'no faketime' unless defined $faketime;

my $file = "$PostgreSQL::Test::Utils::tmp_check/clock_faketime";
my ($correct) = grep { /taken/ } blocks('doc/operations/clocks.md', 'sql');

sub set_clock
{
	return write_whole($file, "$_[0]\n");
}

# The id of a new job.
sub enqueue
{
	my ($node, $options, $db) = @_;

	return sql($node, "SELECT id FROM idemq.enqueue('q', '1'$options)", $db);
}

sub claim
{
	my ($node, $id, $options) = @_;

	return sql($node, "SELECT token FROM idemq.claim_job($id" . ($options // '') . ')');
}

my $node = new_node('clock');

sub start_with_clock
{
	local $ENV{LD_PRELOAD} = $faketime;
	local $ENV{FAKETIME_TIMESTAMP_FILE} = $file;
	local $ENV{FAKETIME_NO_CACHE} = 1;
	local $ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;
	return $node->start;
}
set_clock('+0');
start_with_clock();
sql($node, "CREATE EXTENSION idemq;
	SELECT idemq.create_queue('q', lease => '1 h', retry_base => '10 min', retry_jitter => 0, max_attempts => 2)");
sql($node, 'CREATE DATABASE other');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h')", 'other');

# ---- Before the jump
my %job;
$job{$_} = enqueue($node, '') foreach qw(failing releasing lost retried dead redriven finishing beating);
$job{delayed_before} = enqueue($node, ", delay => '2 days'");
my $before = sql($node, "SELECT enqueued_at, ready_at FROM idemq.jobs WHERE id = $job{delayed_before}");
$job{retried_before} = enqueue($node, ", delay => '5 min'");
$job{group1} = enqueue($node, ", group_key => 'g'");
$job{group2} = enqueue($node, ", group_key => 'g'");
$job{group3} = enqueue($node, ", group_key => 'g', delay => '2 days'");
$job{parent} = enqueue($node, '');
$job{child} = enqueue($node, ", depends_on => ARRAY[$job{parent}]");
my %token = map { $_ => claim($node, $job{$_}) } qw(failing releasing retried dead redriven finishing);
$token{lost} = claim($node, $job{lost}, ", lease => '1 ms'"); # meant to expire
wait_until($node, "SELECT idemq.validate($job{lost}, $token{lost})", 'expired');
sql($node, "SELECT idemq.fail($job{retried}, $token{retried})");
sql($node, "SELECT idemq.fail($job{redriven}, $token{redriven}, permanent => true)");

# Groups of several at once, and by a rate: 1 an hour, of which a failed attempt was one.
sql($node, q{SELECT idemq.create_queue('permits', group_max_running => 2, lease => '1 h', retry_base => '10 min', retry_jitter => 0),
	idemq.create_queue('paced', group_rate_limit => 1, group_rate_period => '1 h', lease => '1 h', retry_base => '1 h', retry_jitter => 0)});
$job{$_} = sql($node, "SELECT id FROM idemq.enqueue('permits', '1', group_key => '$_')") foreach qw(placed deferred);
sql($node, "SELECT idemq.enqueue('permits', '1', group_key => 'deferred') FROM generate_series(1, 2)");
$job{paced} = sql($node, "SELECT id FROM idemq.enqueue('paced', '1', group_key => 'g')");
$token{$_} = claim($node, $job{$_}) foreach qw(placed deferred paced);
sql($node, "SELECT idemq.fail($job{paced}, $token{paced}, 'no', retry_in => '0')");

# ---- A day ahead
set_clock('+1d');
is_sql($node, "SELECT now() > enqueued_at + interval '20 h' FROM idemq.jobs WHERE id = $job{failing}", 't', 'the clock is a day ahead');
$job{enqueued} = enqueue($node, '');
$job{expiring} = enqueue($node, ", delay => '1 h', expires_in => '10 min'");
$job{delayed} = enqueue($node, ", delay => '1 h'");
$job{blocked} = enqueue($node, ", group_key => 'h'");
$job{blocked2} = enqueue($node, ", group_key => 'h', delay => '1 h', expires_in => '10 min'");
sql($node, "SELECT idemq.fail($job{failing}, $token{failing})");
sql($node, "SELECT idemq.release($job{releasing}, $token{releasing}, delay => '20 min')");
is_sql($node, "SELECT idemq.reap('q')", 1, 'a lease is reaped');
sql($node, "SELECT idemq.retry($job{retried}), idemq.retry($job{redriven})");
sql($node, "SELECT idemq.commit($job{finishing}, $token{finishing})");
is_sql($node, "SELECT count(*) FROM idemq.claim('permits', 9)", 1, 'the second permit of its group');
sql($node, "SELECT idemq.fail($job{placed}, $token{placed}), idemq.fail($job{deferred}, $token{deferred}, 'no', retry_in => '0')");
# It waits for its turn again.
is_sql($node, "SELECT count(*) FROM idemq.claim('permits', 9)", 1, 'its own goes to the next one');
is_sql($node, "SELECT status, run_at > claimed_at FROM idemq.jobs WHERE id = $job{deferred}", 'blocked|t', 'it was deferred');
is_sql($node, "SELECT count(*) FROM idemq.claim('paced')", 0, 'the rate is used up');
is_sql($node, "SELECT ready_at > now() + interval '10 min' FROM idemq.jobs WHERE id = $job{paced}", 't', 'it is deferred');
$token{beating} = claim($node, $job{beating});
my $first = claim($node, $job{group1});
sql($node, "SELECT idemq.commit($job{group1}, $first)");
is(claim($node, $job{group2}) =~ /^\d+$/, 1, 'the next head is promoted');
sql($node, "SELECT idemq.release($job{group2}, token) FROM idemq.jobs WHERE id = $job{group2}");
claim($node, $job{blocked});
sql($node, "SELECT idemq.commit($job{parent}, token) FROM idemq.claim_job($job{parent})");
sql($node, "CALL idemq.wait('q', '1 ms')"); # meant to expire
is_sql($node, "SELECT status, token FROM idemq.jobs WHERE id = $job{child}", 'pending|0', 'its child is due');
$job{child2} = enqueue($node, ", depends_on => ARRAY[$job{beating}], delay => '1 h'");
sql($node, "CALL idemq.begin_step($job{beating}, $token{beating}, 'ahead', '{}', '10 min')");
# In another database: a head that was promoted during the jump, and is running.
my ($head, $next) = (enqueue($node, ", group_key => 'g'", 'other'), enqueue($node, ", group_key => 'g'", 'other'));
my $head_token = sql($node, "SELECT token FROM idemq.claim_job($head)", 'other');

# ---- The clock is right again
set_clock('+0');
my $ahead = "greatest(enqueued_at, claimed_at, finished_at, ready_at, CASE WHEN status = 'blocked' AND token > 0 THEN run_at END) > now() + interval '20 h'";
is_sql($node, "SELECT outcome FROM idemq.claim_job($job{enqueued})", 'claimed', 'due by the clock that stayed ahead');
sql($node, "SELECT idemq.release($job{enqueued}, token) FROM idemq.jobs WHERE id = $job{enqueued}");
$node->stop;
start_with_clock();
is_sql($node, "SELECT outcome FROM idemq.claim_job($job{enqueued})", 'not_due', 'not by that of the restart: it is yet to come');
is_sql($node, "SELECT idemq.reap('q')", 0, 'the search for lost leases finds that of the jump');
cmp_ok(sql($node, "SELECT count(*) FROM idemq.jobs WHERE $ahead AND id NOT IN ($job{delayed_before}, $job{paced})"), '>', 10, 'times of the jump');
sql($node, $correct);
sql($node, "CREATE TABLE corrected AS SELECT * FROM idemq.jobs");
sql($node, $correct);
is_sql($node, 'SELECT count(*) FROM (TABLE corrected EXCEPT TABLE idemq.jobs) AS x', 0, 'once');
is_sql($node, "SELECT string_agg(id::text, ',' ORDER BY id) FROM idemq.jobs WHERE $ahead AND id <> $job{paced}", $job{delayed_before},
	'nothing is of another day, but what is to be');
is_sql($node, "SELECT count(*) FROM idemq.attempts WHERE greatest(claimed_at, ended_at) > now()", 0, 'nor are the attempts');
is_sql($node, 'SELECT count(*) FROM idemq.audit WHERE at > now()', 0, 'nor is the audit');
is_sql($node, "SELECT begun_at <= now(), call_until - begun_at FROM idemq.steps WHERE name = 'ahead'", 't|00:10:00', 'nor is a step');

# The minutes until a time, in steps of ten: as many as when it was set, ten minutes later, too.
sub minutes { return "CASE WHEN $_[0] <= now() THEN 0 ELSE ceil(extract(epoch FROM $_[0] - now()) / 600) * 10 END" }

is_sql($node, "SELECT @{[minutes('ready_at')]} FROM idemq.jobs WHERE id = $job{$_->[0]}", $_->[1], "$_->[0]: due in $_->[1] min")
  foreach [ enqueued => 0 ], [ failing => 10 ], [ releasing => 20 ], [ lost => 0 ], [ retried => 0 ], [ redriven => 0 ],
  [ delayed => 60 ], [ group2 => 0 ], [ child => 0 ];
is_sql($node, "SELECT enqueued_at, ready_at, ready_at - enqueued_at FROM idemq.jobs WHERE id = $job{delayed_before}", "$before|2 days", 'delayed_before: due when it was');
is_sql($node, "SELECT status, @{[minutes('run_at')]} FROM idemq.jobs WHERE id = $job{child2}", 'blocked|60', 'a child waits for its time, too');
is_sql($node, "SELECT @{[minutes('run_at')]} FROM idemq.jobs WHERE id = $job{placed}", 10,
	'and so is its run_at, or it would wait for that when it is due');
is_sql($node, "SELECT status, run_at <= now() FROM idemq.jobs WHERE id = $job{deferred}", 'blocked|t', 'deferred: due when it has a permit');
is_sql($node, "SELECT count(*) FROM idemq.claim('paced')", 0, 'the rate is still used up');
is_sql($node, "SELECT ready_at BETWEEN now() + interval '30 min' AND now() + interval '64 min' FROM idemq.jobs WHERE id = $job{paced}", 't',
	'one that was deferred waits as long as the rate says');
is_sql($node, "SELECT @{[minutes('w.deadline')]}, @{[minutes('j.deadline')]}
	FROM idemq.running_jobs w JOIN idemq.jobs j ON j.id = w.job_id WHERE j.id = $job{beating}", '60|60', 'a lease of the jump ends in time');
is_sql($node, "SELECT idemq.commit($job{beating}, $token{beating})", 'committed', 'its worker commits');
is_sql($node, "SELECT @{[minutes('expires_at')]}, @{[minutes('run_at')]}
	FROM idemq.jobs WHERE id = $job{blocked2}", '10|60', 'a blocked job expires, and is due, in time');
my $late = enqueue($node, '');
is_sql($node, "SELECT enqueued_at <= clock_timestamp() FROM idemq.jobs WHERE id = $late", 't',
	'the clock of the queues is right');
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 100) WHERE id IN ($job{retried}, $job{enqueued}, $job{lost}, $late)", 4,
	'jobs are due');

# A head of another database.
sql($node, $correct, 'other');
sql($node, "SELECT idemq.fail($head, $head_token, retry_in => '0')", 'other');
enqueue($node, ", group_key => 'g'", 'other'); # marks the group
is_sql($node, "SELECT id FROM idemq.claim('q', 10)", $head, 'no other head is made beside it', 'other');
is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $next", 'blocked', 'the next job waits', 'other');
is_sql($node, 'SELECT * FROM idemq.check()', '', "idemq.check() in $_", $_) foreach qw(postgres other);

$node->stop;
done_testing();
