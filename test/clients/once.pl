# Exactly once, through the workers of Node and Python as they are: run, in batches and outside of transactions, in three
# places: directly, behind a pooler that closes what is idle, and behind cutter.py, which ends connections in the middle of
# a message.  Their processes are killed and stopped beyond their leases, their sessions ended, the server and the
# pooler killed.  In the end every effect is counted.
#
# ONCE_KILLS=n of processes, ONCE_TERMINATIONS=n of sessions (make once: 100, 500); ONCE_LANGUAGES='node python asyncio'.
# expects in log: was terminated by signal 9
# slow: faults for about a minute
# at least 32 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use JSON::PP;
use List::Util qw(min sum);
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my %wanted = (kills => $ENV{ONCE_KILLS} // 9, terminations => $ENV{ONCE_TERMINATIONS} // 30);
my $long = $wanted{kills} >= 100;
%wanted = (%wanted, stalls => $long ? 20 : 2, crashes => $long ? 8 : 1, poolers => $long ? 12 : 1, cuts => $long ? 100 : 5);

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $lease = 2;       # seconds
my $waiting = 40;    # jobs that wait in each queue at least, while there is trouble
my $start = time;
SKIP: { skip 'no npm packages', 1 unless $ENV{IDEMQ_NODE_MODULES}; pass('Node is there') }
my @languages = grep { !$ENV{ONCE_LANGUAGES} || $ENV{ONCE_LANGUAGES} =~ /\b$_\b/ } (($ENV{IDEMQ_NODE_MODULES} ? 'node' : ()), 'python', 'asyncio');
my @transacted = map { ("${_}_run", "${_}_batch") } @languages;
my @outside = map { "${_}_outside" } @languages;
# Node's worker has it.
my @control = (grep { $_ eq 'node' } @languages) ? 'control' : ();
my @queues = (@transacted, @outside, @control);
my $node = new_server('once', 'idemq.worker' => 'on', max_connections => 300, log_statement => 'none', fsync => 'off',
	restart_after_crash => 'on');
my $user = getpwuid($>);
my %enqueued = map { $_ => 0 } @queues;
my (%done, @processes, $application);

# Where they work: the socket's folder and port.
my ($start_pooler, @pooler) = pooler($node, default_pool_size => 30, max_client_conn => 500, client_idle_timeout => 1,
	server_idle_timeout => 1, server_lifetime => 5);
my $pooler = $start_pooler->();
my $cutter_dir = PostgreSQL::Test::Utils::tempdir_short();
my %place = (direct => [ $node->host, $node->port ], pooled => \@pooler, cut => [ $cutter_dir, $node->port ]);
my $cutter = IPC::Run::start([ '/usr/bin/python3', "$here/cutter.py", map({ "$_/.s.PGSQL.${\$node->port}" } $cutter_dir, $node->host), "$tmp/cuts" ],
	'<', \undef, '>&', "$tmp/cutter.log");
local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
append_to_file("$tmp/$_", '') foreach qw(cuts called sent);

sub process
{
	my ($language, $place) = @_;
	my $to = sub {
		my ($host, $port) = @{ $place{ $_[0] } };

		return { host => $host, port => $port + 0, user => $user, database => 'postgres' } if $language eq 'node';
		return "host=$host port=$port user=$user dbname=postgres";
	};
	my $settings = JSON::PP->new->canonical->encode({
			connection => $to->($place), wait => $place eq 'pooled' ? $to->('direct') : undef,
			log => "$tmp/called", sent => "$tmp/sent",
			control => $language eq 'node' && $place eq 'direct' ? JSON::PP::true : JSON::PP::false
	});
	my @command = $language eq 'node' ? ('node', "$application/once_worker.mjs") :
	  ('/usr/bin/python3', "$here/once_worker.py", $language eq 'python' ? 'threads' : 'asyncio');
	my $it = { name => "$language, $place", said => "$tmp/said.$language.$place" };

	$it->{start} = sub {
		$it->{from} = -s $it->{said} // 0;
		$it->{run} = IPC::Run::start([ @command, $settings ], '<', \undef, '>', '/dev/null', '2>>', $it->{said});
		return;
	};
	$it->{start}->();
	push @processes, $it;
	return;
}

# No process ends by itself.
sub look_after
{
	my ($it) = @_;

	# It says nothing, and dies when the process has ended.
	return if eval { $it->{run}->pump_nb; 1 };
	$it->{run}->finish;
	fail("$it->{name} has exited unexpectedly: " . $it->{run}->full_result(0));
	my @said = split /^/, slurp_file($it->{said});
	diag(join '', @said[ -min(60, scalar @said) .. -1 ]);
	$it->{start}->();
	return;
}

sub completed { return sql($node, q[SELECT count(*) FROM idemq.jobs WHERE status = 'completed']) }
sub any { return $processes[ rand @processes ] }
sub lines { return split /\n/, slurp_file("$tmp/$_[0]") }

# So that each queue has jobs.  This process alone ends the server, so no answer to it is lost.
sub enqueue
{
	my %left = map { split /\|/ } split /\n/, sql($node, q[SELECT q.name, count(j.id) FROM idemq.queues q
		LEFT JOIN idemq.jobs j ON j.queue_id = q.queue_id AND j.status IN ('pending', 'retrying') GROUP BY 1]);
	my @calls;

	foreach my $queue (grep { $left{$_} < $waiting } @queues)
	{
		my ($from, $more) = ($enqueued{$queue} + 1, $queue eq 'control' ? 20 : 3 * $waiting);

		$enqueued{$queue} += $more;
		push @calls, "SELECT count(*) FROM idemq.enqueue_many('$queue', (SELECT array_agg(jsonb_build_object('n', n))
			FROM generate_series($from, $enqueued{$queue}) n))";
	}
	sql($node, join '; ', @calls) if @calls;
	return;
}

# Ends what a server has left, a session that began just before its end too: that may wait for ever for
# a lock of one that was killed.
sub kill_orphans
{
	my $data = $node->data_dir;

	kill 'KILL', map { m|^/proc/(\d+)| } grep { (readlink($_) // '') eq $data } glob '/proc/[0-9]*/cwd';
	return;
}

my %trouble = (
	kills => sub {
		my $it = any();

		$it->{run}->signal('KILL');
		$it->{run}->finish;
		my $killed = ($it->{run}->full_result(0) & 127) == 9;
		$it->{start}->();
		return $killed;
	},
	# Of those that have a job in hand rather than of those that wait.
	terminations => sub {
		return sql($node, q[SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
			ORDER BY random() + CASE WHEN state LIKE 'idle in%' THEN 0 WHEN query LIKE 'CALL%' THEN 1 ELSE 0.5 END LIMIT 3) x]);
	},
	# Sleeps through its leases with jobs in hand, and knows nothing of it.
	stalls => sub {
		my $it = any();

		$it->{run}->signal('STOP');
		sleep 1.5 * $lease;
		$it->{run}->signal('CONT');
		return 1;
	},
	# One process of the server, of which all others die; or all of it.
	crashes => sub {
		my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
		my @children = split /\n/, sql($node, q[SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()]);

		if (($done{crashes} // 0) % 2)
		{
			my $crash = -s $node->logfile;

			kill 'KILL', $children[ rand @children ];
			until_true('the server has noticed', sub { slurp_file($node->logfile, $crash) =~ /all server processes terminated/ });
		}
		else
		{
			$node->kill9;
			until_true('the server is there again', sub { kill_orphans(); $node->{_pid} = undef; $node->start(fail_ok => 1) });
		}
		wait_until($node, 'SELECT true');
		return 1;
	},
	poolers => sub {
		$pooler->signal('KILL');
		$pooler->finish;
		$pooler = $start_pooler->();
		return 1;
	});

sql($node, join('; ', map { "SELECT idemq.create_queue('$_', lease => '$lease s', max_attempts => 1000000, retry_base => '1 ms',
	retry_max => '10 ms')" } @queues) . '; CREATE TABLE effects (queue text, n int, token bigint)');
if (@control)
{
	packed();
	$application = application('app', [], "$here/once_worker.mjs");
}
enqueue();
foreach my $language (@languages) { process($language, $_) foreach qw(direct pooled cut) }

# The trouble takes turns, so that the rare comes at even parts of the way; between two, some jobs are done.
my $lacking = sub { return grep { ($done{$_} // 0) < $wanted{$_} } keys %wanted };
# The control shows that the account finds an effect that happened twice, so one has to happen.
my $doubled = sub { return !@control || sql($node, q[SELECT count(*) > 0 FROM (SELECT FROM effects WHERE queue = 'control' GROUP BY n HAVING count(*) > 1) d]) eq 't' };
my $patience = time + ($long ? 2400 : 300);
while (($lacking->() || !$doubled->()) && time < $patience)
{
	my ($next) = sort { ($done{$a} // 0) / $wanted{$a} <=> ($done{$b} // 0) / $wanted{$b} || $a cmp $b } grep { $trouble{$_} } $lacking->();
	$next //= 'kills' unless $lacking->();
	my $before = completed();

	enqueue();
	until_true('jobs are done', sub { enqueue(); look_after($_) foreach @processes; return completed() >= $before + 20 });
	$done{$next} += $trouble{$next}->() if $next;
	$done{cuts} = () = lines('cuts');
}
my $troubled = time - $start;
cmp_ok($done{$_} // 0, '>=', $wanted{$_}, "there were $_") foreach sort keys %wanted;

ok(eval { until_true('all is done', sub { look_after($_) foreach @processes; return completed() == sum(values %enqueued) }); 1 }, 'all is done');
# The others may have done it all before one that was just started again hears signals.
foreach my $it (@processes)
{
	until_true("$it->{name} hears signals", sub { slurp_file($it->{said}, $it->{from}) =~ /^INFO hears signals$/m });
}
$_->{run}->signal('TERM') foreach @processes;
$_->{run}->finish foreach @processes;
is(join(', ', map { $_->{run}->full_result(0) ? "$_->{name}: ${\$_->{run}->full_result(0)}" : () } @processes), '', 'workers end when they are told');
$pooler->kill_kill;
$cutter->kill_kill;

# The account.
my %calls;
foreach (lines('called'))
{
	my ($queue, $n, $token, $attempt) = split / /;
	$calls{$queue}{$n}{$token}++;
	$done{failures}++ if $n % 97 == 0 && $attempt == 1;
}
cmp_ok($done{failures} // 0, '>', 0, 'some handlers have failed');

# Of a queue: jobs, those that are not completed by their number, effects of odd numbers, even numbers with none, and with more than one.
sub account
{
	my ($queue, $effects) = @_;

	return sql($node, qq[SELECT count(*), count(*) FILTER (WHERE status <> 'completed' OR result IS DISTINCT FROM payload),
			count(*) FILTER (WHERE n % 2 = 1 AND effects > 0), count(*) FILTER (WHERE n % 2 = 0 AND effects = 0), count(*) FILTER (WHERE effects > 1)
		FROM (SELECT j.*, (payload->>'n')::int AS n FROM idemq.jobs j WHERE queue_id = idemq.queue_id('$queue')) j
		LEFT JOIN LATERAL (SELECT count(*) AS effects FROM effects e WHERE e.queue = '$queue' AND e.n = j.n) e ON true]);
}
sql($node, 'CREATE INDEX ON effects (queue, n)');
is(account($_), "$enqueued{$_}|0|0|0|0", "$_: each effect is there once, and no other") foreach @transacted;
is_sql($node, qq[SELECT count(*), count(DISTINCT payload->>'n'), count(*) FILTER (WHERE result IS DISTINCT FROM payload)
	FROM idemq.jobs WHERE queue_id = idemq.queue_id('$_')], "$enqueued{$_}|$enqueued{$_}|0", "$_: each job is done") foreach @outside;
like(account($_), qr/^\d+\|0\|0\|0\|[1-9]/, 'an effect that is not in the transaction is there twice, as the account finds') foreach @control;

# A job runs again where an attempt was lost, or has failed, and nowhere else.
foreach my $queue (@transacted, @outside)
{
	my %known = map { my ($n, @tokens) = split /[|,]/; $n => { map { $_ => 1 } @tokens } } split /\n/, sql($node, qq[
		SELECT payload->>'n', concat_ws(',', token, (SELECT string_agg(a.token::text, ',') FROM idemq.attempts a WHERE a.job_id = j.id))
		FROM idemq.jobs j WHERE queue_id = idemq.queue_id('$queue')]);
	my ($none, $unknown, $twice) = (0, 0, 0);

	foreach my $n (1 .. $enqueued{$queue})
	{
		my $tokens = $calls{$queue}{$n};

		$none++ if !$tokens;
		# A step that may not yet be repeated gives its job back, which is no attempt.
		$unknown += grep { !$known{$n}{$_} } keys %$tokens if $queue !~ /outside/ || $n % 20;
		# A transaction that is undone is repeated by its attempt.
		$twice += grep { $_ > 1 } values %$tokens if $queue =~ /outside/;
	}
	is("$none $unknown $twice", '0 0 0', "$queue: no handler was left out, or called but for an attempt of its own");
	$done{again} += keys(%$_) - 1 foreach values %{ $calls{$queue} };
}
my %sent;
$sent{$_}++ foreach lines('sent');
my $steps = sum(map { int($enqueued{$_} / 20) } @outside);
my $again = grep { $_ > 1 } values %sent;
is(keys(%sent) . " $again", "$steps 0", 'each step was done once' . ($again && ", not $again twice"));

is_sql($node, q[SELECT * FROM idemq.check()], '', 'check');
# psycopg leaves a pipeline whose connection was cut with an error of its own.
is_sql($node, q[SELECT string_agg(DISTINCT error, ', ') FROM idemq.attempts WHERE error !~
	'^(Error: |RuntimeError: )?planned|^lease expired|session ended|terminating connection|connection|Connection|server closed|shutdown|starting up|recovery mode|too late|exit pipeline mode|EPIPE|ECONNRESET'],
	'', 'no attempt has failed for another reason');
diag sprintf 'figure: %d jobs, %d further attempts, in %d s of trouble and %d s in all: %s', sum(values %enqueued), $done{again}, $troubled, time - $start,
  join ', ', map { "$_ $done{$_}" } sort keys %done;

$node->stop;
done_testing();
