# Dependencies, events, topics, sequences, debounce, kinds, sagas, limits and tenants, all at
# once, while clients stall beyond their leases, are killed, lose their sessions and their
# answers, queues and rights are altered, retention runs, and the server crashes.  What was
# asked for and what was done stand in ledgers; test/chaos/flows/account.py compares them.
#
# IDEMQ_FLOWS=seconds (12; make chaos: SOAK); FLOWS_SEED=n makes the choices of a run again
# (not its interleaving).  FLOWS_PART=watch runs only the second part, in which jobs are kept from starting by holds,
# pauses and rates, and test/chaos/flows/watchdog.py checks that each job started as soon as it could.  FLOWS_PART=steer
# runs only the third part, in which running jobs are cancelled, queues are declared, schedules with short intervals are
# paused, and finished jobs are announced; test/chaos/flows/steering_account.py checks it.
# slow: a load of 12 s, with random faults
# at least 50 assertions
#
# expects in log: was terminated by signal 9
# takes long
# looks at sessions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time sleep);

my $seconds = $ENV{IDEMQ_FLOWS} // 12;
my $seed = $ENV{FLOWS_SEED} // int(rand(2**31));
my $tenants = 3;
my $slow = 1 + 5 * to_begin();
my $flows = "$ENV{IDEMQ_SOURCE}/test/chaos/flows";
my $log = "$PostgreSQL::Test::Utils::tmp_check/flows.log";
my (%done, @clients, @stalled);
my $number = 0;
my @turners = qw(single.1 pair.1 pair.2);

srand($seed);
diag "figure: seed $seed: FLOWS_SEED=$seed repeats its choices";
my $node = new_server('flows', track_commit_timestamp => 'on', 'idemq.worker' => 'on', max_connections => 120, log_statement => 'none', restart_after_crash => 'on',
	'idemq.purge_interval' => '1s', autovacuum_naptime => '5s', deadlock_timeout => '100ms');
$node->safe_psql('postgres', slurp_file("$flows/setup.sql"), extra_params => [ '-v', "tenants=$tenants", '-v', "slow=$slow" ]);

my $orders = '';
my $nursery = IPC::Run::start([ '/usr/bin/python3', "$flows/nursery.py", "host=${\$node->host} port=${\$node->port} dbname=postgres", $log, $seed ],
	'<', \$orders, '>&', "$log.nursery");

# What a client has left in a file, once it is there.
sub file_of
{
	my ($client, $what) = @_;
	my $file = "$log.$client->{name}.$what";
	my $end = time + 180 * (1 + to_begin());

	until (-e $file)
	{
		die "no $file: " . slurp_file("$log.nursery") if time > $end;
		sleep 0.01;
	}
	return slurp_file($file);
}

sub start_client
{
	my ($slot, $program, $role, @more) = @_;
	my $name = "flows-$program-" . ++$number;

	$orders .= "$name $program $role @more\n";
	$nursery->pump while $orders ne '';
	$clients[$slot] = { name => $name, what => [ $program, $role, @more ] };
	return;
}

sub pid { $_[0]{pid} //= file_of($_[0], 'pid'); return $_[0]{pid}; }

sub kill_client
{
	kill 'KILL', pid($_[0]);
	return (file_of($_[0], 'exit') & 127) == 9;
}

# Ends all clients between two pieces of work; they must have said nothing.
sub end_clients
{
	my ($name) = @_;

	kill 'CONT', map { pid($_) } @clients;
	kill 'TERM', map { pid($_) } @clients;
	finish_clients($name);
	return;
}

sub finish_clients
{
	my ($name) = @_;

	is(join('', map { my $status = file_of($_, 'exit'); my $said = slurp_file("$log.$_->{name}"); $status || $said ne '' ? "$_->{name}: $status $said" : () } @clients),
		'', "$name: the clients came through");
	@clients = ();
	return;
}

sub tenant { return 't' . int(rand($tenants)); }

my $ours = q{FROM (SELECT pid FROM pg_stat_activity WHERE application_name ~ '^flows-(worker|producer|turner)' ORDER BY random() LIMIT 1) x};
my %trouble = (
	# Sleeps through its lease with jobs in hand, and knows nothing of it.
	stalls => sub {
		my $client = $clients[ int(rand(@clients)) ];
		kill 'STOP', pid($client);
		push @stalled, [ time + 1.4 * $slow, pid($client) ];
		return 1;
	},
	kills => sub {
		my $slot = int(rand(@clients));
		my $client = $clients[$slot];
		my $killed = kill_client($client);
		start_client($slot, @{ $client->{what} });
		return $killed;
	},
	terminations => sub { return sql($node, "SELECT count(pg_terminate_backend(pid)) $ours") },
	cancels => sub { return sql($node, "SELECT count(pg_cancel_backend(pid)) $ours") },
	alters => sub { sql($node, 'SELECT alter_one(' . rand() . ')'); return 1 },
	rights => sub { sql($node, "SELECT toggle('" . tenant() . "')"); return 1 },
	mends => sub { return sql($node, 'SELECT mend(0.3)') },
	retentions => sub { sql($node, 'SELECT idemq.apply_retention(1000)'); return 1 },
	workers => sub {
		return sql($node, q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'idemq worker'});
	},
	crashes => sub {
		crash($node);
		wait_until($node, 'SELECT true');
		return 1;
	},
	nines => sub {
		my $offset = -s $node->logfile;
		my $pid = sql($node, "SELECT coalesce(max(pid), 0) $ours");
		# One that has ended by itself meanwhile takes signals until it is buried, and does not stop.
		return 0 if !$pid || !kill 'STOP', $pid;
		for (my $state = ''; $state ne 'T'; sleep 0.001)
		{
			($state) = (eval { slurp_file("/proc/$pid/stat") } // '') =~ /\) (\w)/ or return 0;
			return 0 if $state =~ /[ZX]/;
		}
		kill 'KILL', $pid;
		$node->wait_for_log(qr/all server processes terminated; reinitializing/, $offset);
		wait_until($node, 'SELECT true');
		return 1;
	});
my @usual = qw(kills terminations alters rights mends cancels stalls retentions alters terminations rights kills mends workers);

# Trouble of all kinds for so long; crashes: of the server, at even times of it.
sub rage
{
	my ($for, @crashes) = @_;
	my $start = time;
	my $n = 0;

	# Each kind of it at least once, however slow the machine.
	while (time < $start + $for || $n < @usual || @crashes)
	{
		my $crash = @crashes && (time > $start + $for * 0.5 || $n >= @usual);
		my $what = $crash ? $crashes[0] : $usual[ $n++ % @usual ];
		my $count = $trouble{$what}->();
		$done{$what} += $count;
		shift @crashes if $crash && $count;
		sleep $slow * (0.05 + rand(0.1));
		while (@stalled && $stalled[0][0] < time) { kill 'CONT', (shift @stalled)->[1]; }
	}
	return;
}

sub start_all
{
	my $slot = 0;

	foreach my $t (0 .. $tenants - 1)
	{
		start_client($slot++, $_, "t$t") foreach qw(worker worker producer);
	}
	start_client($slot++, 'turner', $_) foreach @turners;
	start_client($slot++, 'watcher', 'all');
	pid($_) foreach @clients;
	return;
}

# Calm clients do what is left.
sub drain
{
	my ($name) = @_;

	start_client($_, 'producer', "t$_", 'calm') foreach 0 .. $tenants - 1;
	finish_clients("$name, what was to come");
	start_client($_, 'worker', "t$_", 'calm') foreach 0 .. $tenants - 1;
	start_client($tenants, 'watcher', 'all', 'calm');
	start_client($tenants + 1 + $_, 'turner', $turners[$_], 'calm') foreach 0 .. $#turners;
	my $left = 'SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL';
	my $end = time + 180 * (1 + to_begin());
	while (sql($node, $left) > 0 && time < $end)
	{
		sleep 0.2;
		sql($node, 'SELECT mend(1)');
	}
	is_sql($node, "SELECT count(*), string_agg(name || ' ' || idemq.why(id), E'\\n') FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE finished_at IS NULL",
		'0|', "$name: nothing is left");
	end_clients($name);
	return;
}

# At rest: the counters since the server's start say what has been done in it.
my $counters = q{SELECT queue, enqueued_total + redriven_total + reruns_total AS came, committed_total + dead_total + cancelled_total AS went,
	(SELECT count(*) FROM idemq.jobs j WHERE j.queue_id = m.queue_id AND finished_at IS NULL) AS there FROM idemq.metrics m WHERE queue ~ '^t\d'};

# ---- The second part: holds, pauses and rates keep jobs from starting, and each job must start as soon as it may

my @watched = map { my $kind = $_; map { "w.$kind$_" } 1 .. 3 } qw(plain fifo permits tenants rate rates one groups full);
my $watched_ours = q{FROM (SELECT pid FROM pg_stat_activity WHERE application_name ~ '^flows-(sleeper|feeder|filler|crowder|holder|hearer|canceller|declarer|administrator|pauser|enqueuer)' ORDER BY random() LIMIT 1) x};

# Writes a line for the watchdog.
sub mark
{
	my ($what, $name) = @_;

	PostgreSQL::Test::Utils::append_to_file($log, sprintf("watch %s %s %.6f\n", $what, $name, time));
	return;
}

# Stops the server or its background worker.  No instant counts until a moment after it is back.
sub away
{
	my ($why, $trouble) = @_;

	mark('away', $why);
	my $count = $trouble->();
	worker_pid($node);
	sleep $slow;
	mark('back', $why);
	return $count;
}

my %watched_trouble = (
	stalls => sub {
		my $client = $clients[ int(rand(@clients)) ];
		mark('stops', $client->{name});
		kill 'STOP', pid($client);
		sleep rand(0.6) * $slow;
		kill 'CONT', pid($client);
		mark('continues', $client->{name});
		return 1;
	},
	kills => sub {
		my $slot = int(rand(@clients));
		my $client = $clients[$slot];
		mark('killed', $client->{name});
		my $killed = kill_client($client);
		mark('killed', $client->{name});
		start_client($slot, @{ $client->{what} });
		return $killed;
	},
	terminations => sub { return sql($node, "SELECT count(pg_terminate_backend(pid)) $watched_ours") },
	workers => sub { return away('worker', $trouble{workers}) },
	crashes => sub { return away('crash', $trouble{crashes}) },
	nines => sub { return away('crash', sub {
		my $offset = -s $node->logfile;
		my $pid = sql($node, "SELECT coalesce(max(pid), 0) $watched_ours");
		return 0 if !$pid || !kill 'KILL', $pid;
		wait_logged($node, qr/all server processes terminated; reinitializing|server process .* was terminated by signal 9/, $offset);
		wait_until($node, 'SELECT true');
		return 1;
	}) });

sub keep_from_starting
{
	my @kinds = (('kills', 'terminations', 'stalls') x 4, 'workers', 'kills', 'terminations', 'crashes', 'stalls', 'nines');
	my ($slot, $n, %count) = (0, 0);
	my $unfinished = q{SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name ~ '^w\.' AND finished_at IS NULL};

	$node->safe_psql('postgres', slurp_file("$flows/watch.sql"));
	mark('away', 'start');
	foreach my $q (@watched)
	{
		start_client($slot++, 'sleeper', $q) foreach 1 .. 2;
	}
	start_client($slot++, 'sleeper', $_) foreach 'w.plain1,w.fifo1', 'w.permits1,w.tenants1,w.rate1';
	foreach my $n (0 .. 2)
	{
		start_client($slot++, 'feeder', join ',', @watched[ map { 3 * $_ + $n } 0 .. 6 ]);
		start_client($slot++, 'holder', join ',', @watched[ map { 3 * $_ + $n } 1 .. 7 ]);
		start_client($slot++, 'crowder', "w.groups" . ($n + 1)) foreach 1 .. 2;
		start_client($slot++, 'filler', "w.full" . ($n + 1)) foreach 1 .. 3;
	}
	start_client($slot++, 'holder', 'w.full1,w.full2,w.full3');
	my $pinger = $slot;
	start_client($pinger, 'pinger', 'w.plain');
	pid($_) foreach @clients;
	wait_until($node, "SELECT count(*) >= $pinger + 1 FROM pg_stat_activity WHERE application_name ~ '^flows'");
	sleep 2 * $slow;
	mark('back', 'start');
	# The pinger is not disturbed.
	my $pinging = pop @clients;
	my $start = time;
	while (time < $start + 4 * $seconds)
	{
		my $kind = $kinds[ $n++ % @kinds ];
		$count{$kind} += $watched_trouble{$kind}->();
		sleep rand(1.2);
	}
	# The feeders, fillers and holders end; the sleepers must do the jobs that are left.
	my @fillers = grep { $_->{what}[0] eq 'filler' } @clients;
	my @sleepers = grep { $_->{what}[0] eq 'sleeper' } @clients;
	# A filler that is sleeping until there is room cannot be told to end, so it is killed.
	foreach my $filler (@fillers)
	{
		mark('killed', $filler->{name});
		kill_client($filler);
	}
	my $said = join '', map { slurp_file("$log.$_->{name}") } @fillers;
	@clients = grep { $_->{what}[0] =~ /feeder|crowder|holder/ } @clients;
	end_clients('the feeders, crowders and holders');
	sql($node, "SELECT watch_resume(queue, NULL) FROM watched");
	sql($node, "SELECT watch_resume(queue, g) FROM watched, unnest('{g0,g1,g2,g3}'::text[]) g WHERE grouped");
	is_soon($node, $unfinished, 0, 'the sleepers do the jobs that are left');
	mark('end', '-');
	@clients = (@sleepers, $pinging);
	is(scalar(grep { !kill_client($_) } @clients), 0, 'the sleepers are still running');
	$said .= join '', map { slurp_file("$log.$_->{name}") } @clients;
	is($said, '', 'and printed nothing');
	@clients = ();

	my ($out, $error) = ('', '');
	IPC::Run::run([ '/usr/bin/python3', "$flows/watchdog.py", "host=${\$node->host} port=${\$node->port} dbname=postgres", $log ], '<', \undef, '>', \$out, '2>', \$error);
	is($error, '', 'the watchdog finishes without errors');
	my @found = $out =~ /^found: .*$/mg;
	is(join("\n", @found[0 .. ($#found < 4 ? $#found : 4)]), '', 'each job started as soon as it could, and none too early');
	diag $_ foreach $out =~ /^figure: .*$/mg;
	my ($instants) = $out =~ /^instants: (\d+)$/m;
	cmp_ok($instants, '>', 1000, 'there were enough instants at which a job could start');
	my ($full, $refused) = $out =~ /^figure: groups that became full (\d+) jobs refused (\d+)$/m;
	cmp_ok($_, '>', 20, 'enough groups became full, and enough jobs were refused') foreach $full, $refused;
	diag 'figure: ' . join(', ', map { "$_ $count{$_}" } sort keys %count);
	cmp_ok($count{$_} // 0, '>', 0, "while jobs are kept from starting, there were: $_") foreach keys %watched_trouble;
	return;
}

# ---- The third part: running jobs are cancelled, queues declared, schedules paused, and finished jobs announced

sub steer
{
	my @kinds = (('kills', 'stalls', 'terminations') x 2, 'workers');
	my @crashes = qw(crashes nines);
	my ($slot, $n, %count) = (0, 0);
	my $unfinished = q{SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name ~ '^s\.' AND finished_at IS NULL};

	$node->safe_psql('postgres', slurp_file("$flows/steering.sql"));
	start_client($slot++, $_, 'all') foreach ('hearer') x 3, ('canceller') x 2, ('declarer') x 3, qw(administrator pauser enqueuer listener pinger);
	pid($_) foreach @clients;
	# These two are not disturbed.
	my @undisturbed = splice @clients, -2;
	my $start = time;
	while (time < $start + 2 * $seconds || @crashes || $n < @kinds)
	{
		# After the crashes, no notification may be lost.
		my $kind = @crashes && time > $start + 0.3 * $seconds ? shift @crashes : $kinds[ $n++ % @kinds ];
		my $times = $watched_trouble{$kind}->();
		$count{$kind} += $times;
		push @crashes, $kind if $kind eq 'nines' && !$times;
		sleep rand(1.2);
	}
	my @hearers = grep { $_->{what}[0] eq 'hearer' } @clients;
	@clients = grep { $_->{what}[0] ne 'hearer' } @clients;
	end_clients('the cancellers and the others');
	sql($node, 'CREATE TABLE schedules_ended AS SELECT max(at) AS until FROM (SELECT clock_timestamp() AS at, idemq.unschedule(name) FROM idemq.schedules) s');
	@clients = @hearers;
	is_soon($node, "$unfinished", 0, 'the hearers do the jobs that are left');
	end_clients('the hearers');
	my ($out, $error) = ('', '');
	IPC::Run::run([ '/usr/bin/python3', "$flows/steering_account.py", "host=${\$node->host} port=${\$node->port} dbname=postgres", $log ], '<', \undef, '>', \$out, '2>', \$error);
	is($error, '', 'the account of the third part finishes without errors');
	my @found = $out =~ /^found: .*$/mg;
	is(join("\n", @found[0 .. ($#found < 9 ? $#found : 9)]), '', 'cancels, declarations, schedules and notifications did what was promised');
	diag $_ foreach $out =~ /^figure: .*$/mg;
	@clients = @undisturbed;
	end_clients('the listener and the pinger');
	cmp_ok($count{$_} // 0, '>', 0, "while jobs are cancelled, there were: $_") foreach keys %watched_trouble;
	return;
}

sub part_one
{
	start_all();
	rage($seconds * 0.7, ('crashes', 'nines') x (1 + int($seconds / 120)));
	# All are killed, and the server crashes; from there on it counts.
	kill_client($_) foreach @clients;
	@clients = ();
	crash($node);
	my ($before, $again) = ('', '');
	while (1)
	{
		($before, $again) = ($again, sql($node, "$counters ORDER BY 1"));
		last if $before eq $again;
		sleep 0.5;
	}
	sql($node, "CREATE TABLE at_start AS $counters");
	my $effects = sql($node, 'SELECT coalesce(max(seq), 0) FROM effects');
	start_all();
	rage($seconds * 0.3);
	end_clients('the end');
	drain('the end');

	is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
	my ($out, $error) = ('', '');
	IPC::Run::run([ '/usr/bin/python3', "$flows/account.py", "host=${\$node->host} port=${\$node->port} dbname=postgres" ], '<', \undef, '>', \$out, '2>', \$error);
	is($error, '', 'the account came to its end');
	is(join("\n", $out =~ /^found: .*$/mg), '', 'nothing was found');
	diag $_ foreach $out =~ /^figure: .*$/mg;
	is_sql($node, "SELECT c.queue, c.came - s.came, c.went - s.went, s.there, c.there FROM ($counters) c JOIN at_start s USING (queue)
		WHERE s.there + c.came - s.came <> c.went - s.went + c.there", '', 'what came, went or is there');
	is_sql($node, "SELECT m.queue, committed_total, count(e.job) FROM idemq.metrics m LEFT JOIN (SELECT c.queue, e.job FROM effects e JOIN claims c USING (job, token)
		WHERE e.seq > $effects) e USING (queue) WHERE m.queue ~ '^t\\d' GROUP BY 1, 2 HAVING committed_total <> count(e.job)", '', 'commits are counted');
	my %met = map { $_ => 0 } qw(lost again IQ001 IQ006 57014 probes unknown-kind);
	my %foreign;
	foreach (split /\n/, slurp_file($log))
	{
		$met{$_}++ if /^\S+$/;
		$foreign{$_}++ if /^foreign/;
	}
	is(join("\n", sort keys %foreign), '', 'nothing of another tenant was seen or answered');
	cmp_ok($met{$_}, '>', 0, "there were: $_") foreach qw(lost again probes);
	cmp_ok($done{$_} // 0, '>', 0, "there were: $_") foreach qw(kills terminations alters rights stalls crashes nines);
	is_sql($node, "SELECT string_agg(f, ' ') FROM unnest('{graph,events,fan,seq,debounce,kinds,trips,undo,limited,elastic,grouped,permits,turns}'::text[]) f
		WHERE NOT EXISTS (SELECT FROM effects WHERE flow = f)", '', 'each flow had effects');
	diag 'figure: ' . join(', ', map { "$_ " . ($done{$_} // 0) } sort keys %trouble);
	diag 'figure: clients met ' . join(', ', map { "$_ $met{$_}" } sort keys %met);
	return;
}

my $part = $ENV{FLOWS_PART} // '';
part_one() if $part eq '';
keep_from_starting() if $part ne 'steer';
steer() if $part ne 'watch';
is_sql($node, 'SELECT * FROM idemq.check()', '', 'and check() is clean');
my @errors = split /\n/, unexpected($node, qw(22023 40001 40P01 IQ001 IQ005 IQ007 IQ002 IQ006 42501 57014 57P01 57P02 57P03 08006));
# The child was cancelled between the worker's query and its call of add_parents.
is(join("\n", grep { !/^55000 job \d+ does not wait for job \d+$/ } @errors), '', 'no errors except refusals, and those of sessions that were terminated');
$orders .= "end\n";
$nursery->finish;
is($nursery->result(0) . slurp_file("$log.nursery"), '0', 'the nursery came through');
$node->stop;
done_testing();
