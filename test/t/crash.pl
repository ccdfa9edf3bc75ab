# What a crash, a restart, a promotion and a clock that steps leave of leases
# and tokens.  (Leases that run out in real time, also while the server is down: crash_slow.pl.)
# takes long
# at least 37 assertions
#
# expects in log: was terminated by signal 9

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('crash', restart_after_crash => 'on', 'idemq.test_clock' => 'on');

# Waits until SQL that claims returns a row, and returns it.
sub claimed
{
	my ($server, $sql) = @_;
	my $got = '';

	until_true($sql, sub { ($got = sql($server, $sql)) ne '' });
	return $got;
}

# ---- Leases in flight

# Job a has a lease of ten hours, b one of an hour.
my ($a, $b, $c) = split /\n/, sql($node, "SELECT id FROM idemq.enqueue_many('q', ARRAY['1', '2', '3']::jsonb[])");
my ($token_a, $token_b, $token_c) = split /\n/, sql($node, join ';', map { "SELECT token FROM idemq.claim_job($_->[0], lease => '$_->[1]')" } [ $a, '10 h' ],
	[ $b, '1 h' ], [ $c, '1 h' ]);
sql($node, "UPDATE idemq.jobs SET claimed_at = claimed_at - interval '1 day', deadline = deadline - interval '1 day' WHERE id IN ($a, $b)");
sql($node, "BEGIN; SELECT idemq.commit($c, $token_c, '\"kept\"'); CREATE TABLE effects AS SELECT $c AS job; COMMIT");

# The rows' deadlines have passed when it starts.
crash($node);
my $claim = "SELECT id FROM idemq.claim('q', 10, lease => '10 h')";
is_sql($node, $claim, '', 'after a crash, leases begin anew, whatever the rows say');
advance($node, '50 min');
is_sql($node, $claim, '', 'a lease lasts as long as before');
advance($node, '20 min');
is_sql($node, $claim, $b, 'then its job comes back, and no other');
is_sql($node, "SELECT outcome, retry_after > clock_timestamp() FROM idemq.claim_job($a)", 'locked|t',
	'claim_job knows of the other one, too');
is_sql($node, "SELECT idemq.validate($a, $token_a)", 'current', 'its worker holds it still');
is_sql($node, "SELECT idemq.heartbeat($a, $token_a, '10 h')", 'current', 'and lives');
is_sql($node, "SELECT id, status, attempt, token > $token_b FROM idemq.jobs ORDER BY id",
	"$a|running|1|f\n$b|running|2|t\n$c|completed|1|t", 'with a greater token');
is_sql($node, "SELECT idemq.try_commit($b, $token_b), idemq.try_commit($c, $token_c), idemq.commit($a, $token_a)",
	'stale|already_committed|committed', 'old tokens after the crash');
is_sql($node, 'SELECT job FROM effects', $c, 'the effect of the committed job is there');

# kill -9 of a backend with an open claim: the whole server restarts, the claim never was.
my $session = session($node);
my $pid = $session->query_safe('SELECT pg_backend_pid()');
my $d = sql($node, "SELECT id FROM idemq.enqueue('q', '4', priority => 0)");
my $e = sql($node, "SELECT id FROM idemq.enqueue('q', '5', priority => 1)");
my $token_e = sql($node, "SELECT token FROM idemq.claim_job($e, lease => '1 h')");
my $token_d = $session->query_safe("BEGIN; SELECT token FROM idemq.claim_job($d)");
is_sql($node, "SELECT outcome FROM idemq.claim_job($d)", 'locked', 'an open claim');
my $log = log_end($node);
kill 'KILL', $pid;
$session->{run}->finish;
wait_logged($node, qr/\(PID $pid\) was terminated by signal 9[\s\S]*reinitializing/, $log);
wait_until($node, 'SELECT true');
is_sql($node, "SELECT id, attempt, token > $token_d FROM idemq.claim('q', 10, lease => '1 h')", "$d|1|t",
	'kill -9 undoes an open claim at once, and its token is not given again');
is_sql($node, "SELECT idemq.validate($e, $token_e), outcome FROM idemq.claim_job($e)", 'current|locked',
	'and leaves a committed one alone');

# ---- Tokens

# An asynchronous commit that a crash loses: the client has seen its token.
$node->append_conf('postgresql.conf', "synchronous_commit = off\nwal_writer_delay = 10s"); # meant to expire: longer than it takes to crash the server
$node->restart;
my ($f, $lost, $row);
# Another process may flush in between, now and then: then once more.
foreach (1 .. 20)
{
	$f = sql($node, "SELECT id FROM idemq.enqueue('q', '6')");
	sql($node, 'CHECKPOINT');
	$lost = sql($node, "SELECT token FROM idemq.claim_job($f, lease => '1 h')");
	crash($node);
	$row = sql($node, "SELECT status, attempt, token FROM idemq.jobs WHERE id = $f");
	last if $row ne "running|1|$lost";
}
is($row, 'pending|0|0', 'the claim was lost with the crash');
my $again = sql($node, "SELECT token FROM idemq.claim_job($f)");
cmp_ok($again, '>', $lost, 'the next token is greater than the one that was lost');
is_sql($node, "SELECT idemq.try_commit($f, $lost)", 'stale', 'the lost token commits nothing');
sql($node, "SELECT idemq.fail($f, $again, retry_in => '0')");
# Otherwise the standby would wait for the WAL writer.
$node->append_conf('postgresql.conf', "synchronous_commit = on\nwal_writer_delay = 10ms"); # meant to expire

foreach my $how ('fast', 'immediate')
{
	$node->stop($how);
	$node->start;
	my $next = sql($node, "SELECT token FROM idemq.claim_job($f)");
	cmp_ok($next, '>', $again, "tokens grow over a restart ($how)");
	sql($node, "SELECT idemq.fail($f, $next, retry_in => '0')");
	$again = $next;
}
cmp_ok($again, '<', 2**53, 'and stay below 2^53');

# ---- Promotion

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my ($g, $h, $i) = split /\n/, sql($node, "SELECT id FROM idemq.enqueue_many('q', ARRAY['7', '8', '9']::jsonb[])");
my $token_g = sql($node, "SELECT token FROM idemq.claim_job($g, lease => '10 h')");
my $token_i = sql($node, "SELECT token FROM idemq.claim_job($i, lease => '1 h')");
# The row says that it is over, as of a worker that beats.
sql($node, "UPDATE idemq.jobs SET claimed_at = claimed_at - interval '1 day', deadline = deadline - interval '1 day' WHERE id IN ($g, $i)");
caught_up($node, $standby);
# The standby does not hear of these.
$standby->append_conf('postgresql.conf', "primary_conninfo = ''");
$standby->reload;
sql($standby, 'SELECT 1');
wait_until($node, 'SELECT count(*) = 0 FROM pg_stat_replication');
my $token_h = sql($node, "SELECT token FROM idemq.claim_job($h)");
is_sql($standby, "SELECT idemq.validate($g, $token_g), idemq.validate($h, $token_h)", 'current|stale',
	'a standby can be asked');
is_sql($node, "SELECT idemq.heartbeat($g, $token_g)", 'current', 'the worker beats on the primary');
$node->stop('immediate');
$standby->promote;
is_sql($standby, "SELECT idemq.validate($g, $token_g), outcome FROM idemq.claim_job($g)", 'current|locked',
	'a promotion does not rob a worker that beats');
$claim = "SELECT id FROM idemq.claim('q', 10) WHERE id = $i";
advance($standby, '50 min');
is_sql($standby, $claim, '', 'nor, until its lease ends, one that no longer beats');
advance($standby, '20 min');
is_sql($standby, $claim, $i, 'whose job comes back when the lease has ended');
my $token_h2 = sql($standby, "SELECT token FROM idemq.jobs WHERE id = $h");
cmp_ok($token_h2, '>', $token_h, 'a token is greater than what the lost primary gave');
is_sql($standby, "SELECT idemq.try_commit($g, $token_g), idemq.try_commit($i, $token_i), idemq.try_commit($h, $token_h), idemq.commit($h, $token_h2)",
	'committed|stale|stale|committed', 'old tokens after the promotion');
$standby->stop;

# ---- Clocks that step

SKIP:
{
	my ($faketime) = glob('/usr/lib/*/faketime/libfaketime.so.1');
	skip 'no faketime', 1 unless defined $faketime;

	my $file = "$PostgreSQL::Test::Utils::tmp_check/faketime";
	my $set = sub { write_whole($file, "$_[0]\n") };
	my $fake_start = sub {
		local $ENV{LD_PRELOAD} = $faketime;
		local $ENV{FAKETIME_TIMESTAMP_FILE} = $file;
		local $ENV{FAKETIME_NO_CACHE} = 1;
		local $ENV{FAKETIME_DONT_FAKE_MONOTONIC} = 1;
		$_[0]->start;
	};

	$set->('+0');
	$fake_start->($node);
	sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h')");
	my ($i, $j) = split /\n/, sql($node, "SELECT id FROM idemq.enqueue_many('q', ARRAY['9', '10']::jsonb[])");
	my ($token_i, $token_j) = split /\n/, sql($node, "SELECT token FROM idemq.claim('q', 2)");

	$set->('+1d');
	is_sql($node, "SELECT now() > enqueued_at + interval '20 h' FROM idemq.jobs WHERE id = $i", 't', 'the clock is a day ahead');
	is_sql($node, "SELECT idemq.reap(), count(*) FROM idemq.claim('q', 10)", '0|0', 'a step forward reaps nothing');
	is_sql($node, "SELECT idemq.validate($i, $token_i)", 'current', 'the lease runs on');
	# In a queue of its own: claims of others do not take it.
	# meant to expire
	my $k = sql($node, "SELECT idemq.create_queue('later', lease => '1 h'); SELECT id FROM idemq.enqueue('later', '11', delay => '100 ms')") =~ s/.*\n//sr;

	$set->('-1d');
	is_sql($node, "SELECT now() < enqueued_at - interval '20 h' FROM idemq.jobs WHERE id = $i", 't', 'the clock is a day behind');
	is_sql($node, "SELECT idemq.reap(), idemq.validate($i, $token_i)", '0|current', 'a step back reaps nothing');
	is_sql($node, "SELECT idemq.release($i, $token_i)", 'released', 'a job is released');
	my $next = sql($node, "SELECT token FROM idemq.claim_job($i, lease => '100 ms')"); # meant to expire
	cmp_ok($next, '>', $token_i, 'after a step back a job is due at once, and its token is greater');
	is(claimed($node, "SELECT id FROM idemq.claim('q') WHERE id = $i"), $i, 'leases expire all the same');
	sql($node, "SELECT idemq.enqueue('q', '12')");
	is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 1, 'a new job is due at once');
	is(claimed($node, "SELECT id FROM idemq.claim('later', 10) WHERE id = $k"), $k, 'delays end all the same');

	# A restart forgets the last token; the row's own covers a clock that is behind.
	sql($node, "SELECT idemq.fail($j, $token_j, retry_in => '0')");
	$node->stop('immediate');
	$fake_start->($node);
	$next = sql($node, "UPDATE idemq.jobs SET ready_at = '2020-01-01' WHERE id = $j;
		SELECT token FROM idemq.claim_job($j)");
	cmp_ok($next, '>', $token_j, 'tokens grow over a restart with a clock a day behind');

	# A standby whose clock is ten days behind: the timeline covers it.
	my $slow = PostgreSQL::Test::Cluster->new('slow');
	$node->stop;
	$set->('+0');
	$fake_start->($node);
	$node->backup('clock');
	$slow->init_from_backup($node, 'clock');
	my $l = sql($node, "SELECT id FROM idemq.enqueue('q', '13', run_at => '2020-01-01')");
	sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q')");
	$l = sql($node, "SELECT id FROM idemq.enqueue('q', '13', run_at => '2020-01-01')");
	my $token_l = sql($node, "SELECT token FROM idemq.claim_job($l)");
	$node->stop('immediate');
	$slow->set_standby_mode;
	$set->('-10d');
	$fake_start->($slow);
	$slow->promote;
	my $m = sql($slow, "SELECT id FROM idemq.enqueue('q', '14', run_at => '2020-01-01')");
	cmp_ok(sql($slow, "SELECT token FROM idemq.claim_job($m)"), '>', $token_l,
		'tokens grow over a promotion to a clock ten days behind');
	$slow->stop;
}

$node->stop('immediate', fail_ok => 1);
$standby->stop('immediate', fail_ok => 1);
done_testing();
