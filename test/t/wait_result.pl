# CALL idemq.wait_result: a session waits for the end of a job; and sessions wait through
# pgbouncer in transaction mode.
# at least 48 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('result', 'idemq.worker' => 'on', 'idemq.test_clock' => 'on', max_connections => 40);
my $claim = "INSERT INTO held SELECT id, token FROM idemq.claim('q')";

sub new_job
{
	sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues; SELECT idemq.create_queue('q', lease => '1 h');
		DROP TABLE IF EXISTS held; CREATE TABLE held (id bigint, token bigint)");
	return sql($node, "SELECT id FROM idemq.enqueue('q', '1')");
}

# What ends a job, and what its waiter then answers.
my @ends = (
	[ 'commit', "$claim; SELECT idemq.commit(id, token, '{\"a\": 1}') FROM held", 'completed|{"a": 1}' ],
	[ 'commit without a result', "$claim; SELECT idemq.commit(id, token) FROM held", 'completed|' ],
	[ 'commit_once', "SELECT idemq.commit_once(max(id), '2') FROM idemq.jobs", 'completed|2' ],
	[ 'a failure, a retry, a commit', "$claim; SELECT idemq.fail(id, token, retry_in => '0') FROM held; TRUNCATE held;
		$claim; SELECT idemq.commit(id, token, '3') FROM held", 'completed|3' ],
	[ 'a permanent failure', "$claim; SELECT idemq.fail(id, token, permanent => true) FROM held", 'dead|' ],
	[ 'cancel', 'SELECT idemq.cancel(max(id)) FROM idemq.jobs', 'cancelled|' ],
	[ 'cancel of a job in flight', "$claim; SELECT idemq.cancel(max(id)) FROM idemq.jobs", 'cancelled|' ],
	[ 'COMMIT PREPARED', "$claim; BEGIN; SELECT idemq.commit(id, token, '4') FROM held; PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'",
		'completed|4' ],
	[ 'a hand-made UPDATE', "UPDATE idemq.jobs SET status = 'completed', finished_at = now(), ready_at = NULL, result = '5'", 'completed|5' ],
	[ 'a hand-made DELETE', 'DELETE FROM idemq.jobs', 'IQ002' ],
	[ 'purge', "SELECT idemq.purge('q')", 'IQ002' ],
	[ 'TRUNCATE', 'TRUNCATE idemq.jobs', 'IQ002' ],
	[ 'drop_queue', "SELECT idemq.drop_queue('q', force => true)", 'IQ002' ],
	[ 'retention 0', "SELECT idemq.alter_queue('q', retention => '0'); $claim; SELECT idemq.commit(id, token) FROM held", 'IQ002' ],
	[ 'cancel of the CALL', 'SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE ' . asleep(), '57014' ],
);

my $waiting = session($node);
foreach my $with ('on', 'off')
{
	$node->append_conf('postgresql.conf', "idemq.worker = '$with'");
	$node->reload;
	wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idemq worker'",
		$with eq 'on' ? 1 : 0);
	foreach (@ends)
	{
		my ($name, $end, $expected) = @$_;
		my $id = new_job();
		my $waiter = waiter($node, "CALL idemq.wait_result($id, '10 min')", $waiting);

		is_sql($node, "SELECT backend_xmin IS NULL, backend_xid IS NULL, (SELECT string_agg(locktype, ' ')
			FROM pg_locks WHERE pg_locks.pid = a.pid) FROM pg_stat_activity a WHERE pid = $waiter->{pid}",
			't|t|virtualxid', 'it holds nothing') if $name eq 'commit';
		sql($node, $end);
		is(answer($waiter), $expected, "worker $with: $name");
	}
}
leave($waiting);

my $id = new_job();
is_sql($node, "CALL idemq.wait_result($id, '0')", 'pending|', 'timeout 0');
ends_in_time($node, "CALL idemq.wait_result($id, '10 min')", 'pending|', 'before statement_timeout');
# meant to expire
is_sql($node, "$claim; CALL idemq.wait_result($id, '1 ms')", 'running|', 'the status after timeout');
sql($node, 'SELECT idemq.release(id, token) FROM held; TRUNCATE held; CREATE ROLE stranger; CREATE ROLE friend; GRANT USAGE ON SCHEMA idemq TO stranger');
sql($node, "SELECT idemq.grant_queue('q', 'friend', 'enqueue')");
# meant to expire
is_sql($node, "SET ROLE friend; CALL idemq.wait_result($id, '1 ms')", 'pending|', 'a producer may wait');
is_state($node, $_, 'IQ002', $_)
  foreach ("SET ROLE stranger; CALL idemq.wait_result($id, '10 min')", 'CALL idemq.wait_result(-1)', "CALL idemq.wait_result($id + 1)");
is_state($node, 'CALL idemq.wait_result(NULL)', '22004', 'no id');
is_state($node, "CALL idemq.wait_result($id, NULL)", '22004', 'no timeout');
my $waiter = waiter($node, "SET ROLE friend; CALL idemq.wait_result($id, '10 min')");
sql($node, "SELECT idemq.revoke_queue('q', 'friend', 'enqueue')");
is(answer($waiter), 'IQ002', 'the privilege is revoked while it sleeps');
leave($waiter->{session});

# Many who wait for one job; 10 MB.
my @many = map { waiter($node, "CALL idemq.wait_result($id, '10 min')") } 1 .. 3;
sql($node, "$claim; SELECT idemq.commit(id, token, to_jsonb(repeat('x', 10485760))) FROM held");
is(length(answer($_)), length('completed|""') + 10485760, 'a result of 10 MB') foreach @many;
leave(map { $_->{session} } @many);

# pgbouncer in transaction mode.
SKIP:
{
	skip 'no pgbouncer', 3 unless grep { -x "$_/pgbouncer" } split(/:/, $ENV{PATH});
	my ($start, $dir, $port) = pooler($node, default_pool_size => 3);

	new_job();
	my $run = $start->();
	my @workers = map {
		my ($printed, $errors) = ('', '');
		{ printed => \$printed, errors => \$errors,
			run => IPC::Run::start([ 'python3', "$ENV{IDEMQ_SOURCE}/test/clients/wait_claim_commit.py",
				"host=$dir port=$port dbname=postgres user=" . sql($node, 'SELECT current_user'), 2 ],
				'>', \$printed, '2>', \$errors, IPC::Run::timeout(300)) }
	} 1 .. 2;
	foreach my $n (2 .. 6)
	{
		sql($node, "SELECT idemq.enqueue('q', '$n')");
	}
	my @done;
	foreach my $worker (@workers)
	{
		$worker->{run}->finish;
		push @done, ${ $worker->{printed} } =~ /^(\d) committed$/mg;
		like(${ $worker->{printed} } . ${ $worker->{errors} }, qr/^\d committed\n\d committed\n2D000 True\n$/,
			'wait, claim, commit through pgbouncer');
	}
	is_sql($node, "SELECT string_agg(payload::text, ' ' ORDER BY payload), count(*) FROM idemq.jobs WHERE status = 'completed'", join(' ', sort @done) . '|4',
		'each job once: the completed jobs are those that the workers have done');
	$run->kill_kill;
}

$node->stop;
done_testing();
