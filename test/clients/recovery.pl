# Recovery points: a job of three steps (reserve, charge over HTTP, mail), killed
# at every point and resumed; a worker that stalls in the middle.  Each order is
# reserved once, charged once, mailed once.
# slow: three steps killed at each of their points, with leases of 1 and 2 s
# at least 130 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use HTTP::Tiny;
use Idemq;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

my @points = ('claimed', 'checkpoint written', 'reserve', 'charge', 'request sent', 'charged', 'mail',
	'committed', 'mail enqueued', 'done');
my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $node = new_server('recovery', 'idemq.worker' => 'on');

my $said = '';
my $service = IPC::Run::start([ '/usr/bin/python3', "$here/charge_server.py" ], '<', \undef, '>', \$said,
	IPC::Run::timeout(300));
$service->pump until $said =~ /(\d+)\n/;
my $address = "127.0.0.1:$said";
chomp $address;

sub service
{
	my ($path) = @_;
	my $answer = HTTP::Tiny->new->get("http://$address/$path");

	die "$path: $answer->{status} $answer->{content}" unless $answer->{success};
	return JSON::PP->new->allow_nonref->decode($answer->{content});
}

sub start_worker
{
	my (%env) = @_;

	local @ENV{ keys %env } = values %env;
	return IPC::Run::start([ '/usr/bin/python3', "$here/recovery.py",
			"host=${\$node->host} port=${\$node->port} dbname=postgres user=postgres", $address ],
		'<', \undef, IPC::Run::timeout(120));
}

# Runs a worker to its end; answers its status, or the signal that ended it.
sub worker
{
	my $run = start_worker(@_);

	$run->finish;
	my $status = $run->full_result(0);
	return $status & 127 ? 'signal ' . ($status & 127) : $status >> 8;
}

# The lost worker's lease ends with its session, which is told a moment after the kill.
sub wait_for_work
{
	sql($node, 'CALL idemq.wait(\'orders\', timeout => \'60 s\')');
}

sub order
{
	my ($key) = @_;

	return sql($node, qq[SELECT id FROM idemq.enqueue('orders',
		'{"item": "book", "amount": 12, "mail": "anna\@example.com"}', key => '$key')]);
}

my $orders = 0;

# One more order is done: each effect once.
sub is_done_once
{
	my ($id, $key, $what) = @_;

	$orders++;
	is_sql($node, "SELECT status, checkpoint->>'step', result->'charge' = checkpoint->'charge' FROM idemq.job($id)",
		'completed|charged|t', "$what: completed");
	is_sql($node, 'SELECT reserved FROM stock', $orders, "$what: reserved once");
	is(scalar(@{ service('charges') }), $orders, "$what: charged once");
	is_sql($node, "SELECT count(*), count(*) FILTER (WHERE key = '$key') FROM idemq.jobs
		WHERE queue_id = idemq.queue_id('mail')", "$orders|1", "$what: mailed once");
}

sql($node, q{SELECT idemq.create_queue('orders', lease => '1 h', retry_base => '10 ms', retry_max => '50 ms', retry_jitter => 0);
	SELECT idemq.create_queue('mail');
	CREATE TABLE stock (item text PRIMARY KEY, reserved int NOT NULL);
	INSERT INTO stock VALUES ('book', 0);});

is(worker(), 3, 'nothing to do');
my $id = order('smooth');
is(worker(), 0, 'an order that nobody interrupts');
is_done_once($id, 'smooth', 'not interrupted');

# A proxy in between answers, in HTML: a failed attempt like any other.
$id = order('behind a proxy');
service('break');
is(worker(), 4, 'a charge that is answered in HTML');
is_sql($node, "SELECT status, last_error LIKE 'charge: 502 %<%' FROM idemq.job($id)", 'retrying|t', 'fails the attempt');
wait_for_work();
is(worker(), 0, 'the retry');
is_done_once($id, 'behind a proxy', 'after a 502');

# Without keys of their own, two orders are two charges.
foreach my $n (1, 2)
{
	$id = sql($node, q[SELECT id FROM idemq.enqueue('orders', '{"item": "book", "amount": 12, "mail": "anna@example.com"}')]);
	is(worker(DIE_AT => 'charged'), 'signal 9', "order $n without a key, killed after the charge");
	wait_for_work();
	is(worker(), 0, 'resumed');
	is_done_once($id, "order-$id", "order $n without a key");
}

foreach my $point (@points)
{
	$id = order("killed at $point");
	is(worker(DIE_AT => $point), 'signal 9', "killed at: $point");
	if ($point ne 'done')
	{
		is_sql($node, "SELECT finished_at IS NULL FROM idemq.job($id)", 't', "$point: the order is not finished");
		wait_for_work();
		is(worker(), 0, "$point: resumed");
	}
	is_done_once($id, "killed at $point", $point);
}

# One order that is killed at every point in turn: each attempt begins where the one before came to.
$id = order('killed again and again');
foreach my $point (@points)
{
	is(worker(DIE_AT => $point), 'signal 9', "one order, killed at: $point");
	wait_for_work() if $point ne 'done';
}
is_done_once($id, 'killed again and again', 'one order, killed at every point');
is_sql($node, "SELECT attempt FROM idemq.job($id)", scalar(@points), 'one attempt each');
cmp_ok(service('requests'), '>', $orders, 'the service was asked more than once for some');

# A worker that stalls with an answer in hand comes back when another one is done.  Its lease ends when it has come to the
# point, and not before; whoever takes over has a long one.
foreach my $point ('charge', 'charged', 'mail', 'reserve')
{
	$id = order("stalled at $point");
	my $stalled = start_worker(STOP_AT => $point);
	until_true("$point: it stalls", sub { slurp_file("/proc/$stalled->{KIDS}[0]{PID}/stat") =~ /\) T / });
	is_sql($node, "SELECT idemq.heartbeat(id, token, lease => '1 ms') FROM idemq.job($id)", 'current', "$point: it has the order");
	# In the middle of a transaction it holds the row: then nobody takes its order.
	if ($point eq 'reserve')
	{
		sql($node, 'SELECT pg_sleep(0.1)');
		is(worker(), 3, "$point: nobody takes an order whose worker has its row locked");
		$stalled->signal('CONT');
		$stalled->finish;
		# Its lease is over: after its transaction it is a race with the reaper.
		my $status = $stalled->result(0);
		ok($status == 0 || $status == 4, "$point: the stalled worker goes on, or learns that it lost the order");
		if ($status == 4)
		{
			wait_for_work();
			is(worker(), 0, "$point: another worker took over");
		}
	}
	else
	{
		wait_for_work();
		is(worker(), 0, "$point: another worker took over");
		$stalled->signal('CONT');
		$stalled->finish;
		is($stalled->result(0), 4, "$point: the stalled worker learns that it lost the order");
	}
	is_done_once($id, "stalled at $point", "stalled at $point");
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
diag "figure: $orders orders, killed at " . scalar(@points) . ' points and stalled at 4: '
  . service('requests') . ' requests, ' . scalar(@{ service('charges') }) . ' charges';

$service->signal('TERM');
$service->finish;
$node->stop;
done_testing();
