# job_timeout: the background worker takes a job back then, though its session lives and its
# heartbeats come; after a crash, and with its lease on the row alone, too.
#
# at least 24 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('job_timeout', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', 'idemq.max_leases' => 64,
	'idemq.max_leases_per_database' => 64, 'idemq.reserved_leases' => 0);
my $taken_back = q[SELECT status = 'retrying' AND last_error = 'job_timeout reached' FROM idemq.jobs WHERE payload = '"late"' ORDER BY id DESC LIMIT 1];

sql($node, q[SELECT idemq.create_queue('brief', lease => '1 h', job_timeout => '10 min', retry_base => '1 day', retry_jitter => 0)]);
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

# What a heartbeat is answered.
sub beat
{
	my ($lease) = @_;

	return sql($node, "SELECT idemq.heartbeat(id, token, $lease) FROM held");
}

foreach my $how ('', ', attach => true', ", lease => '2 min'")
{
	my $session = begin($how);

	is(beat(q['1 h']), 'current', "a heartbeat for longer than the job may take (claim: '$how')");
	advance($node, '9 min');
	is(beat(q['1 h']), 'current', 'and one before its time is over');
	advance($node, '2 min');
	is_sql($node, $taken_back, 't', 'the worker has taken the job back');
	like(beat(q['1 h']), qr/^(expired|stale)$/, 'heartbeats are refused from then on');
	is($session->query_safe('SELECT 1'), '1', 'its session lives');
	leave($session);
}

# Without heartbeats: a long lease that is attached ends as well.
my $session = begin(", lease => '10 h', attach => true");
advance($node, '11 min');
is_sql($node, $taken_back, 't', 'without a heartbeat');
leave($session);

# Memory is lost: the row knows when the attempt began.
leave(begin(''));
crash($node);
is(beat('NULL'), 'current', 'after a crash');
advance($node, '11 min');
is_sql($node, $taken_back, 't', 'taken back, too');
like(beat('NULL'), qr/^(expired|stale)$/, 'and refused');

# Without a heartbeat since the restart nobody knows when the worker died.
leave(begin(''));
crash($node);
advance($node, '11 min');
is_sql($node, q[SELECT status, last_error FROM idemq.jobs WHERE payload = '"late"' ORDER BY id DESC LIMIT 1], 'pending|lease expired',
	'a worker that was not heard of after a crash has not reached job_timeout');
sql($node, q[SELECT idemq.cancel(id) FROM idemq.jobs WHERE status = 'pending']);

# The lease table is full: the lease is on its row.
sql($node, q[SELECT idemq.alter_queue('q', lease => '1 day'); SELECT idemq.enqueue('q', '1') FROM generate_series(1, 64);
	SELECT count(*) FROM idemq.claim('q', 64)]);
leave(begin(''));
is_sql($node, q[SELECT row_only_total > 0 FROM idemq.metrics WHERE queue = 'brief'], 't', 'a lease without an entry');
advance($node, '11 min');
like(beat(q['1 h']), qr/^(expired|stale)$/, 'is renewed no further either');
sql($node, q[SELECT idemq.reap('brief')]);
is_soon($node, $taken_back, 'and its job is taken back');
is_sql($node, 'SELECT * FROM idemq.check() WHERE severity = \'error\'', '', 'check');

$node->stop;
done_testing();
