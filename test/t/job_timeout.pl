# job_timeout: the background worker takes a job back then, though its session lives and its
# heartbeats come; after a crash, and with its lease on the row alone, too.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('job_timeout', 'idemq.worker' => 'on', 'idemq.max_leases' => 64, 'idemq.max_leases_per_database' => 64,
	'idemq.reserved_leases' => 0);
my $taken_back = q[SELECT status = 'pending' AND last_error = 'job_timeout reached' FROM idemq.jobs WHERE payload = '"late"' ORDER BY id DESC LIMIT 1];

sql($node, q[SELECT idemq.create_queue('brief', lease => '1 h', job_timeout => '2 s', retry_base => '1 h', retry_jitter => 0)]);
sql($node, 'CREATE TABLE held (id bigint, token bigint)');

# A job that is claimed by a session that stays.
sub begin
{
	my ($how) = @_;
	my $session = session($node);

	sql($node, q[TRUNCATE held; SELECT idemq.enqueue('brief', '"late"')]);
	$session->query_safe("INSERT INTO held SELECT id, token FROM idemq.claim('brief'$how)");
	return $session;
}

# Heartbeats until one is refused; what they were answered, each once.
sub beat
{
	my ($lease) = @_;
	my @answers;

	foreach (1 .. 900)
	{
		my $answer = sql($node, "SELECT idemq.heartbeat(id, token, $lease) FROM held");

		push @answers, $answer if !@answers || $answers[-1] ne $answer;
		last if $answer ne 'current';
		select undef, undef, undef, 0.1;
	}
	return "@answers";
}

foreach my $how ('', ', attach => true', ", lease => '1 s'")
{
	my ($session, $said);

	# A lease of a second may end before the first heartbeat comes: then it is no case of job_timeout, and once more.
	foreach (1 .. 20)
	{
		$session = begin($how);
		$said = beat(q['1 h']);
		last if $how !~ /lease/ || $said =~ /^current/;
		$session->quit;
		sql($node, q[SELECT idemq.purge('brief')]);
	}
	like($said, qr/^(current )?(expired|stale)$/, "heartbeats are refused from then on (claim: '$how')");
	is_soon($node, $taken_back, 'the worker has taken the job back');
	is($session->query_safe('SELECT 1'), '1', 'its session lives');
	$session->quit;
}

# Without heartbeats: a long lease that is attached ends as well.
my $session = begin(", lease => '10 h', attach => true");
is_soon($node, $taken_back, 'without a heartbeat');
$session->quit;

# Memory is lost: the row knows when the attempt began.
begin('')->quit;
crash($node);
like(beat('NULL'), qr/^(current )?(expired|stale)$/, 'after a crash');
is_soon($node, $taken_back, 'taken back, too');

# The lease table is full: the lease is on its row.
sql($node, q[SELECT idemq.enqueue('q', '1') FROM generate_series(1, 64); SELECT count(*) FROM idemq.claim('q', 64)]);
begin('')->quit;
is_sql($node, q[SELECT row_only_total > 0 FROM idemq.metrics WHERE queue = 'brief'], 't', 'a lease without an entry');
like(beat(q['1 h']), qr/^(current )?(expired|stale)$/, 'is renewed no further either');
sql($node, q[SELECT idemq.reap('brief')]);
is_soon($node, $taken_back, 'and its job is taken back');
is_sql($node, 'SELECT * FROM idemq.check() WHERE severity = \'error\'', '', 'check');

$node->stop;
done_testing();
