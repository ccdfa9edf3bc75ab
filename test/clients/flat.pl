# A worker's process holds as much after many jobs, and after many waits, as after a fifth of them: memory and descriptors.
# FLAT_JOBS=n jobs in all, FLAT_WAITS=n waits of 50 ms (make once: 200,000 and 20,000).
# slow: measures memory under load
# at least 26 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use JSON::PP;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;

my $jobs = $ENV{FLAT_JOBS} // 6000;
my $waits = $ENV{FLAT_WAITS} // 400;
my $waiters = 10;
# What may be more at the end.  A leak of 50 bytes a job is 8 MB in the long form; a process that has just begun still grows.
my %room = $jobs < 100000 ? (heap => 8000, own => 60000, descriptors => 4) : (heap => 3000, own => 16000, descriptors => 4);
# Blocks of Python's are some 60 bytes.
my $block = 0.06;
my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('flat', 'idemq.worker' => 'on', max_connections => 200, log_statement => 'none', fsync => 'off');
my $user = getpwuid($>);
my @queues = qw(run batch outside);
my $application;

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
sql($node, join('; ', map { "SELECT idemq.create_queue('$_', retry_base => '1 ms', retry_max => '1 ms', retention => '0')" } @queues,
	map { "wait$_" } 0 .. $waiters - 1) . q[; CREATE TABLE effects (job bigint);
	CREATE PROCEDURE pace(n int) LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1 .. n LOOP
			PERFORM idemq.enqueue('wait' || w, '1') FROM generate_series(0, ] . ($waiters - 1) . q[) w;
			COMMIT;
			PERFORM pg_sleep(0.05);
		END LOOP;
	END $$]);
if ($ENV{IDEMQ_NODE_MODULES})
{
	packed();
	$application = application('app', [], "$here/flat_worker.mjs");
}
SKIP: { skip 'no npm packages', 1 unless $application; pass('Node is there') }

# What the process says of itself: (heap, own, descriptors).
sub holds
{
	my ($kind, $run) = @_;
	my $said = () = slurped("said.$kind") =~ /\n/g;
	my @lines;

	$run->signal('USR2');
	until_true("$kind says what it holds", sub { return (@lines = split /\n/, slurped("said.$kind")) > $said });
	my %holds;
	@holds{qw(heap own descriptors)} = split / /, $lines[-1];
	$holds{heap} *= $block if $kind ne 'node';
	return \%holds;
}

sub all_done
{
	wait_until($node, q[SELECT count(*) = 0 FROM idemq.jobs WHERE status <> 'completed']);
	return;
}

my %work = (
	jobs => sub {
		my ($part) = @_;
		my $left = int($jobs * $part / @queues);

		# No more than so many wait.
		while ($left > 0)
		{
			my $now = $left < 5000 ? $left : 5000;

			$left -= $now;
			sql($node, join '; ', map { "SELECT count(*) FROM idemq.enqueue_many('$_', (SELECT array_agg(to_jsonb(n)) FROM generate_series(1, $now) n))" } @queues);
			all_done();
		}
	},
	waits => sub {
		my ($part) = @_;

		sql($node, 'CALL pace(' . int($waits * $part / $waiters) . ')');
		all_done();
	});

foreach my $kind ($application ? 'node' : (), 'threads', 'asyncio')
{
	my $to = $kind eq 'node' ? { host => $node->host, port => $node->port + 0, user => $user, database => 'postgres' }
	  : "host=${\$node->host} port=${\$node->port} user=$user dbname=postgres";
	# What Node sets aside for young objects grows for long, and further in each version, up to this.
	my @command = $kind eq 'node' ? ('node', '--expose-gc', '--max-semi-space-size=8', "$application/flat_worker.mjs") : ('/usr/bin/python3', "$here/flat_worker.py", $kind);

	append_to_file("$tmp/said.$kind", '');
	my $run = IPC::Run::start([ @command, JSON::PP->new->canonical->encode({ connection => $to, waiters => $waiters }) ],
		'<', \undef, '>', "$tmp/said.$kind", '2>', "$tmp/complained.$kind");
	# All of them are at work.
	$work{jobs}->(0.02);
	$work{waits}->(0.02);
	foreach my $what (qw(jobs waits))
	{
		my @seen;

		foreach my $part (0.2, 0.3, 0.5)
		{
			$work{$what}->($part);
			push @seen, holds($kind, $run);
		}
		foreach my $of (qw(heap own descriptors))
		{
			cmp_ok($seen[-1]{$of} - $seen[0]{$of}, '<=', $room{$of}, "$kind, $what: $of") or diag "$seen[0]{$of} $seen[1]{$of} $seen[2]{$of}";
		}
		diag "figure: $kind, $what: " . join ', ', map { my $of = $_; "$of " . join '/', map { int $_->{$of} } @seen } qw(heap own descriptors);
	}
	$run->signal('TERM');
	$run->finish;
	is($run->full_result(0), 0, "$kind ends when it is told") or diag slurped("complained.$kind");
	is(slurped("complained.$kind"), '', "$kind: no complaint");
}
my $even = sql($node, q[SELECT count(*), count(DISTINCT job) FROM effects]);
like($even, qr/^(\d+)\|\1$/, 'each effect is there once');
$node->stop;
done_testing();
