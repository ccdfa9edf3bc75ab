# idemq-work --http: heartbeats find out, in their own time, that a lease is lost or that a job has committed itself.
# slow: waits for leases of 3 s in real time
# asserts times
# at least 11 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Runner;
use Test::More;

my $tmp = $PostgreSQL::Test::Utils::tmp_check;

if (qx(idemq-work -q q --http ftp://x 2>&1) =~ /without libcurl/)
{
	plan skip_all => 'no libcurl: idemq-work is built without it';
}

my $node = new_server('work_http_slow', 'idemq.worker' => 'on');
our $dsn = $node->connstr('postgres');
# A job that fails is tried again in an hour, not in this test.
sql($node, "SELECT idemq.alter_queue('q', retry_base => '1 h', retry_max => '2 h')");
my $endpoint = endpoint('requests');
my $url = "http://127.0.0.1:$endpoint->{at}/jobs";

sub runner { my (@options) = @_; return start_runner($dsn, '--http', $url, @options) }

sub enqueue
{
	my ($payload, $more) = (@_, '');

	$payload = encode_json($payload) if ref $payload;
	$payload =~ s/'/''/g;
	return sql($node, "SELECT id FROM idemq.enqueue('q', '$payload'$more)");
}

# What the endpoint was sent, in order.
sub requests { my ($of) = (@_, $endpoint); return -e $of->{log} ? map { decode_json($_) } split /\n/, slurp_file($of->{log}) : () }

# A lease that is lost, and a job that commits itself.
{
	my $id = enqueue({ do => 'nothing' });
	my $runner = runner('--lease', '3s');

	until_true('a request', sub { grep { ($_->{headers}{'idemq-id'} // '') eq $id } requests() });
	is_sql($node, "SELECT idemq.cancel($id)", 'cancelled', 'a job is cancelled');
	until_true('its connection is closed', sub { grep { ($_->{closed} // '') eq $id } requests() });
	until_said($runner, qr/^idemq-work: q $id: the job (?:was|is being) cancelled, so the request is being stopped$/m);
	is_job($node, $id, 'cancelled|1||', 'it stays cancelled');

	$id = enqueue({ do => 'wait', gate => "$tmp/committed", status => 500 });
	until_true('a request', sub { grep { ($_->{waits} // '') eq $id } requests() });
	my $beats = sql($node, "SELECT clock_timestamp()");
	sql($node, "SELECT idemq.commit(id, token, '\"its own\"') FROM idemq.jobs WHERE id = $id");
	wait_until($node, "SELECT clock_timestamp() > '$beats'::timestamptz + '4 s'");
	open_gate('committed');
	enqueue('1', ", key => 'after'");
	is_soon($node, "SELECT status = 'completed' FROM idemq.job_by_key('q', 'after')", 'the next one');
	is_job($node, $id, 'completed|1|"its own"|', 'what has committed itself is not ended, and has not failed');
	unlike(slurp_file($runner->{err}), qr/q $id/, 'of which nothing is said');

	# It sleeps through its lease; the claim that takes the job, and makes it stale, is undone.
	unlink "$tmp/committed";
	$id = enqueue({ do => 'wait', gate => "$tmp/committed" });
	until_true('a request', sub { grep { ($_->{waits} // '') eq $id } requests() });
	stop_worker($node);
	kill 'STOP', $runner->{pid};
	wait_until($node, "SELECT expires_in < '0' FROM idemq_internal.leases() WHERE job_id = $id");
	my $thief = session($node);
	$thief->query_safe('BEGIN');
	is($thief->query_safe("SELECT id FROM idemq.claim('q')"), $id, 'another has the job, for now');
	kill 'CONT', $runner->{pid};
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%try_commit%'");
	$thief->query_safe('ROLLBACK');
	leave($thief);
	until_true('its connection is closed', sub { slurp_file($runner->{err}) =~ /q $id: the lease/ });
	is_soon($node, "SELECT count(*) = 1 FROM idemq.attempts WHERE job_id = $id", 'the attempt is over');
	isnt(sql($node, "SELECT status FROM idemq.jobs WHERE id = $id"), 'completed', 'by no commit: nobody has done it');
	kill 'CONT', worker_pid($node);
	open_gate('committed');
	is_soon($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $id", 'then it is done');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
}

is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
$endpoint->{run}->kill_kill;
done_testing();
