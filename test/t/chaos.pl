# Exactly once for database effects, while workers stall beyond their lease, die, lose their
# sessions and their answers, and the server stops at once.
#
# Jobs are claimed by sessions of SQL, a handler, the client for Python and idemq-work, each of a queue of
# its own.  Each job's effect adds its number, and the square of it, to sums in the transaction of the
# job's commit.  However often an attempt was begun, the sums are exact in the end.
# IDEMQ_CHAOS=n jobs (make chaos: 100,000), CHAOS_SECS=seconds in which they are enqueued at most; to
# each hundred there is a fault at least.
# slow: a load of half a minute, with random faults
# at least 15 assertions
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

my $jobs = $ENV{IDEMQ_CHAOS} // (to_begin() ? 500 : 5000);
my $part = $jobs > 20000 ? 1000 : int($jobs / 20);    # is enqueued at a time
my $secs = $ENV{CHAOS_SECS} // 'inf';
my @kinds = (('sql') x 5, 'client', 'work');
my @queues = ('sql', 'sql', 'sql', 'sql', 'client', 'work', 'handler', 'handler');    # of jobs, in turn
my $slow = 1 + 5 * to_begin();
my $lease = 0.5 * $slow;    # seconds
my $stops = $jobs > 20000 ? int(5 + $jobs / 100000) : 1;    # of the server
my $patience = (180 + $jobs / 20) * (1 + to_begin());
my $start = time;

my $node = new_server('chaos', 'idemq.worker' => 'on', max_connections => 60, log_statement => 'none');
my $log = "$PostgreSQL::Test::Utils::tmp_check/chaos.log";
my (@runs, @stalled, %done);
my $number = 0;
local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";

sub start_worker
{
	my ($slot) = @_;
	my $kind = $kinds[$slot];
	my $name = "chaos-$kind-" . ++$number;
	my $dsn = "host=${\$node->host} port=${\$node->port} dbname=postgres user=postgres" . ($kind eq 'client' ? " application_name=$name" : '');
	my @program = ('/usr/bin/python3', "$ENV{IDEMQ_SOURCE}/test/chaos/worker.py", $kind, $dsn, $name, $log);

	@program = ('idemq-work', '-d', "$dsn application_name=$name", '-q', 'work', '--worker', $name, '-j', 2, '--lines', '--', @program) if $kind eq 'work';
	$runs[$slot] = { name => $name, h => IPC::Run::start([@program], '<', \undef, '>', '/dev/null', '2>', "$log.$name") };
}

sub any { return int(rand(@kinds)) }

my %trouble = (
	# Sleeps through its lease with jobs in hand, and knows nothing of it.
	stalls => sub {
		my $run = $runs[ any() ];
		$run->{h}->signal('STOP');
		push @stalled, [ time + $lease * 1.6, $run ];
		return 1;
	},
	kills => sub {
		my $slot = any();
		$runs[$slot]{h}->signal('KILL');
		$runs[$slot]{h}->finish;
		my $killed = ($runs[$slot]{h}->full_result(0) & 127) == 9;
		start_worker($slot);
		return $killed;
	},
	terminations => sub {
		return sql($node, q{SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
			WHERE application_name ~ '^(chaos-|idemq handler)' ORDER BY random() LIMIT 3) x});
	},
	crashes => sub {
		crash($node);
		wait_until($node, 'SELECT true');
		return 1;
	});
my @usual = qw(stalls terminations terminations kills terminations terminations);

sub awake
{
	my ($until) = @_;
	while (@stalled && $stalled[0][0] < $until) { (shift @stalled)->[1]{h}->signal('CONT'); }
	return;
}

sql($node, "SELECT idemq.create_queue(q, lease => '$lease s', max_attempts => 1000000, retry_base => '1 ms', retry_max => '10 ms', job_timeout => '$slow min')
		FROM unnest('{sql,client,work,handler}'::text[]) q;
	CREATE TABLE over ();
	CREATE TABLE sums (part int PRIMARY KEY, n bigint NOT NULL DEFAULT 0, total bigint NOT NULL DEFAULT 0,
		squares numeric NOT NULL DEFAULT 0) WITH (fillfactor = 20);
	INSERT INTO sums SELECT generate_series(0, 63);
	CREATE FUNCTION effect(payload jsonb) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS \$\$
	BEGIN
		PERFORM pg_sleep(random() * 0.004);
		UPDATE sums SET n = n + 1, total = total + payload::bigint, squares = squares + payload::bigint ^ 2::numeric WHERE part = payload::bigint % 64;
	END \$\$;
	SELECT idemq.set_handler('handler', 'effect', workers => 2)");
start_worker($_) foreach 0 .. $#kinds;

# Jobs come when there has been trouble enough for those before, and end when the last is done.
my ($finished, $enqueued, $made) = (0, 0, 0);
for (my $n = 0; $finished < ($jobs = time > $start + $secs ? $enqueued : $jobs) && time < $start + $patience; $n++)
{
	if ($enqueued < $jobs && $enqueued - $finished < $part && $made >= $enqueued / 100)
	{
		my $more = $enqueued + $part > $jobs - $part ? $jobs : $enqueued + $part;
		sql($node, "SELECT count(*) FROM (SELECT q, array_agg(to_jsonb(i)) AS payloads FROM generate_series($enqueued + 1, $more) i,
			LATERAL (SELECT ('{${\join ',', @queues}}'::text[])[1 + i % ${\scalar @queues}] AS q) x GROUP BY q) j, LATERAL idemq.enqueue_many(q, payloads)");
		$enqueued = $more;
	}
	# The server stops at even parts of the way.
	my $what = ($done{crashes} // 0) < $stops && $finished > $jobs * (1 + ($done{crashes} // 0)) / ($stops + 1)
	  ? 'crashes' : $usual[ $n % @usual ];
	my $count = $trouble{$what}->();
	$done{$what} += $count;
	$made += $count;
	# What is behind makes haste.
	sleep($slow * ($made < $enqueued / 100 ? 0.02 : 0.1 + rand(0.2)));
	awake(time);
	$finished = sql($node, 'SELECT sum(n) FROM sums');
}
awake('inf');
sql($node, 'INSERT INTO over DEFAULT VALUES');
$_->{h}->signal('TERM') foreach grep { $_->{name} !~ /-sql-/ } @runs;
$_->{h}->finish foreach @runs;
is(join('', map { $_->{h}->result(0) . ($_->{name} =~ /-sql-/ ? slurp_file("$log.$_->{name}") : '') } @runs), '0' x @kinds, 'the last workers came through');

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
cmp_ok($made, '>=', ($jobs - $part) / 100, 'and as many as there were to be');
is(sql($node, q{SELECT name, count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id)
	WHERE worker ~ CASE name WHEN 'handler' THEN '^idemq handler' ELSE '^chaos-' || name END GROUP BY 1 ORDER BY 1}),
	join("\n", map { my $q = $_; "$q|" . grep { $queues[ $_ % @queues ] eq $q } 1 .. $jobs } qw(client handler sql work)), 'each by those who were to');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
is(unexpected($node, qw(IQ001 IQ006 08006 57014 57P01 57P02 57P03)), '', 'no error but refusals, and of those that were ended');
my $again = sql($node, 'SELECT sum(attempt) FROM idemq.jobs') - $jobs;
diag sprintf('figure: %d jobs in %d s: sum %s of %s; %d further attempts; refused: %d zombie commits (IQ001), '
	  . '%d repeated commits (IQ006)', $jobs, time - $start, $total, $jobs * ($jobs + 1) / 2, $again, $met{IQ001}, $met{IQ006});
diag 'figure: ' . join(', ', map { $_ . ' ' . ($done{$_} // 0) } qw(stalls kills terminations crashes))
  . "; answers thrown away $met{lost}, transactions run again $met{again}";

$node->stop;
done_testing();
