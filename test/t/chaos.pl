# Exactly once for database effects, while workers stall beyond their lease, die,
# lose their backends and their answers, and the server stops at once.
#
# Each job's effect adds its number, and the square of it, to sums in the
# transaction of the job's commit.  However often an attempt was begun, the sums
# are exact in the end.  IDEMQ_CHAOS=n jobs (make chaos: 100,000).
# takes long

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $jobs = $ENV{IDEMQ_CHAOS} // 5000;
my $workers = 5;
my $lease = 0.5;    # seconds
my $stops = $jobs > 20000 ? 5 : 1;    # of the server
my $patience = 120 + $jobs / 20;
my $start = time;

my $node = new_server('chaos', 'idemq.worker' => 'on', max_connections => 50, log_statement => 'none');
my $log = "$PostgreSQL::Test::Utils::tmp_check/chaos.log";
my (@runs, %done);
my $number = 0;

sub start_worker
{
	my ($slot) = @_;
	my $name = 'chaos-' . ++$number;
	my $run = { name => $name };

	$run->{h} = IPC::Run::start([ '/usr/bin/python3', "$ENV{IDEMQ_SOURCE}/test/chaos/worker.py",
			"host=${\$node->host} port=${\$node->port} dbname=postgres user=postgres", $name, $log ],
		'<', \undef, '2>', "$log.$name");
	$runs[$slot] = $run;
}

sub any { return $runs[ int(rand($workers)) ] }

my %trouble = (
	# Sleeps through its lease with jobs in hand, and knows nothing of it.
	stalls => sub {
		my $run = any();
		$run->{h}->signal('STOP');
		sleep $lease * 1.6;
		$run->{h}->signal('CONT');
		return 1;
	},
	kills => sub {
		my $slot = int(rand($workers));
		$runs[$slot]{h}->signal('KILL');
		$runs[$slot]{h}->finish;
		my $killed = ($runs[$slot]{h}->full_result(0) & 127) == 9;
		start_worker($slot);
		return $killed;
	},
	terminations => sub {
		return sql($node, q{SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
			WHERE application_name LIKE 'chaos-%' ORDER BY random() LIMIT 1) x});
	},
	crashes => sub {
		crash($node);
		wait_until($node, 'SELECT true');
		return 1;
	});
my @usual = qw(stalls kills terminations kills terminations);

sql($node, "SELECT idemq.create_queue('chaos', lease => '$lease s', max_attempts => 1000000, retry_base => '1 ms', retry_max => '10 ms');
	CREATE TABLE sums (part int PRIMARY KEY, n bigint NOT NULL DEFAULT 0, total bigint NOT NULL DEFAULT 0,
		squares numeric NOT NULL DEFAULT 0) WITH (fillfactor = 20);
	INSERT INTO sums SELECT generate_series(0, 63);
	SELECT count(*) FROM idemq.enqueue_many('chaos', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, $jobs) i))");
start_worker($_) foreach 0 .. $workers - 1;

my $finished = 0;
for (my $n = 0; ($finished = sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'completed'")) < $jobs && time < $start + $patience; $n++)
{
	# The server stops at even parts of the way.
	my $what = ($done{crashes} // 0) < $stops && $finished > $jobs * (1 + ($done{crashes} // 0)) / ($stops + 1)
	  ? 'crashes' : $usual[ $n % @usual ];
	$done{$what} += $trouble{$what}->();
	sleep 0.1 + rand(0.2);
}
$_->{h}->finish foreach @runs;
is(join('', map { $_->{h}->result(0) . slurp_file("$log.$_->{name}") } @runs), '0' x $workers, 'the last workers came through');

my %met = (IQ001 => 0, IQ006 => 0, lost => 0, again => 0);
$met{$_}++ foreach split /\n/, slurp_file($log);
my ($n, $total, $squares) = split /\|/, sql($node, 'SELECT sum(n), sum(total), sum(squares) FROM sums');
is($n, $jobs, 'as many effects as jobs');
is($total, $jobs * ($jobs + 1) / 2, 'the sum is exact');
is_sql($node, "SELECT sum(i::numeric * i) = $squares FROM generate_series(1, $jobs) i", 't', 'so is the sum of the squares');
is_sql($node, 'SELECT status, count(*) FROM idemq.jobs GROUP BY 1', "completed|$jobs", 'every job is completed');
cmp_ok($met{IQ001}, '>', 0, 'zombies tried to commit, and were refused');
cmp_ok($met{IQ006}, '>', 0, 'commits whose answer was lost were repeated, and refused');
cmp_ok($done{$_} // 0, '>', 0, "there were $_") foreach sort keys %trouble;
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
is(unexpected($node, qw(IQ001 IQ006 08006 57P01 57P02 57P03)), '', 'no error but refusals, and of those that were ended');
my $again = sql($node, 'SELECT sum(attempt) FROM idemq.jobs') - $jobs;
diag sprintf('figure: %d jobs in %d s: sum %s of %s; %d further attempts; refused: %d zombie commits (IQ001), '
	  . '%d repeated commits (IQ006)', $jobs, time - $start, $total, $jobs * ($jobs + 1) / 2, $again, $met{IQ001}, $met{IQ006});
diag 'figure: ' . join(', ', map { $_ . ' ' . ($done{$_} // 0) } qw(stalls kills terminations crashes))
  . "; answers thrown away $met{lost}, transactions run again $met{again}";

$node->stop;
done_testing();
