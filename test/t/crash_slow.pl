# A lease lasts as long after a crash, and after a promotion, as it did before: from when the server began anew.
# slow: leases that run out in real time, while the server is down and after it
# at least 8 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use Test::More;
use Time::HiRes qw(time sleep);

my $lease = 2; # seconds
my $node = new_server('crash_slow');

# Waits until SQL that claims returns a row; returns the row, and when it came.
sub claimed
{
	my ($server, $sql) = @_;
	my ($got, $when) = ('');

	until_true($sql, sub { $got = sql($server, $sql); $when = time; $got ne '' });
	return ($got, $when);
}

sub is_in_order
{
	my ($early, $late, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return cmp_ok($early, '<=', $late, $name);
}

# ---- A crash

# Job a has a lease that no delay of this test outlasts, b one whose end is waited for.
my ($a, $b) = split /\n/, sql($node, "SELECT id FROM idemq.enqueue_many('q', ARRAY['1', '2']::jsonb[])");
my ($token_a) = split /\n/, sql($node, "SELECT token FROM idemq.claim_job($a, lease => '1 h'); SELECT token FROM idemq.claim_job($b, lease => '$lease s')");

# The rows' deadlines have passed when it starts.
my $before = crash($node, sub { sleep $lease + 0.1 });
my ($got, $when) = claimed($node, "SELECT id FROM idemq.claim('q', 10, lease => '1 h')");
is($got, $b, 'after a crash a job comes back');
is_in_order($before + $lease, $when, 'not before the restart + its lease');
is_sql($node, "SELECT count(*) FROM idemq.claim('q', 10)", 0, 'and that one alone');
is_sql($node, "SELECT idemq.validate($a, $token_a)", 'current', 'the other worker still holds its job');

# ---- A promotion

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('crash_slow_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
my ($g, $i) = split /\n/, sql($node, "SELECT id FROM idemq.enqueue_many('q', ARRAY['7', '9']::jsonb[])");
my ($token_g, $token_i) = split /\n/, sql($node, "SELECT token FROM idemq.claim_job($g, lease => '1 h'); SELECT token FROM idemq.claim_job($i, lease => '$lease s')");
caught_up($node, $standby);
$node->stop('immediate');
sleep $lease + 0.1;
$before = time;
$standby->promote;
($got, $when) = claimed($standby, "SELECT id FROM idemq.claim('q', 10) WHERE id = $i");
is($got, $i, 'a worker that beats no more loses its job after a promotion');
is_in_order($before + $lease, $when, 'not before the promotion + its lease');
is_sql($standby, "SELECT idemq.validate($g, $token_g), outcome FROM idemq.claim_job($g)", 'current|locked', 'one with a long lease does not');
is_sql($standby, "SELECT idemq.try_commit($i, $token_i), idemq.try_commit($g, $token_g)", 'stale|committed', 'old tokens after the promotion');

$standby->stop;
done_testing();
