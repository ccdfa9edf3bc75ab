# Servers and sessions for idemq's TAP tests.
package Idemq;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use POSIX qw(SIGQUIT);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

our @EXPORT = qw(new_server new_node server_conf restored_queue session sql sql_counted sqlstate is_sql is_state wal_records wal_bytes
  has_debugger has_stops can_stop stop_at at_stop count_at shipped asleep waiter answer worker_pid stop_worker wait_until until_true crash
  clients to_begin unexpected is_soon ends_in_time write_whole pooler
  leave log_end is_logged wait_logged barrier advance reload_worker caught_up sync_standby_in_force stop_at_once);

# Seconds until what does not come ends a test; PG_TEST_TIMEOUT_DEFAULT is for all of them.
my $patience = $PostgreSQL::Test::Utils::timeout_default // 180;

# The seconds that a session may take to begin, where that is more than nothing: under valgrind, 8.
sub to_begin
{
	return $ENV{IDEMQ_TO_BEGIN} // 0;
}

# Settings of script/server.conf: what a server needs to preload idemq.
sub server_conf
{
	return slurp_file("$ENV{IDEMQ_SOURCE}/script/server.conf");
}

# A server that is initialized and not started; without background workers,
# unless asked for by 'idemq.worker' => 'on': what is due is then done by the
# statement of the test that asks for it, never before.
sub new_node
{
	my ($name, %settings) = ($_[0], 'idemq.worker' => 'off', @_[ 1 .. $#_ ]);
	my $node = PostgreSQL::Test::Cluster->new($name);

	initialize($node, 'plain', allows_streaming => 'logical');
	return configure($node, %settings);
}

# Appends the settings of a server to its configuration.
sub configure
{
	my ($node, %settings) = @_;

	$node->append_conf('postgresql.conf', server_conf());
	$node->append_conf('postgresql.conf', "$_ = '$settings{$_}'") for sort keys %settings;
	return $node;
}

# Like $node->init, but copies a data directory that script/test has made instead of running initdb.  $kind is 'plain', or
# 'idemq' for one that has the extension and the queue q in database postgres.  Returns whether it copied one.  The n-th
# server of a test copies the n-th directory, because the servers of a test need different system identifiers.
my $servers = 0;

sub initialize
{
	my ($node, $kind, %params) = @_;
	my $run = \&PostgreSQL::Test::Utils::system_or_bail;
	my $template = ($ENV{IDEMQ_TEMPLATE} // '') . '/' . ++$servers . ".$kind";
	my $copied = 0;

	no warnings 'redefine';
	local *PostgreSQL::Test::Utils::system_or_bail = sub {
		my @command = @_;

		return $run->(@command) if !-d $template || "@command" ne 'initdb -D ' . $node->data_dir . ' -A trust -N';
		$copied = 1;
		return $run->('cp', '-a', $template, $node->data_dir);
	};
	$node->init(%params);
	return $copied;
}

# A running server with the extension in database postgres, and a queue q.
sub new_server
{
	my ($name, %settings) = ($_[0], 'idemq.worker' => 'off', @_[ 1 .. $#_ ]);
	my $node = PostgreSQL::Test::Cluster->new($name);
	my $copied = initialize($node, 'idemq', allows_streaming => 'logical');

	configure($node, %settings)->start;
	$node->safe_psql('postgres', "CREATE EXTENSION idemq;
		SELECT idemq.create_queue('q', lease => '1 h')") if !$copied;
	return $node;
}

# SQL that writes the row of a queue as a restore does, with q's settings: it gets no state by that.
sub restored_queue
{
	my ($name) = @_;

	return "INSERT INTO idemq.queues OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(q, jsonb_build_object('queue_id',
		nextval(pg_get_serial_sequence('idemq.queues', 'queue_id')), 'name', '$name'))).* FROM idemq.queues q WHERE name = 'q'";
}

# An interactive session; $s->query(sql) answers unaligned rows, and goes on after errors.
sub session
{
	my ($node, $db, %params) = @_;

	my $session = $node->background_psql($db // 'postgres', on_error_stop => 0, %params);

	# The time limit is that of a query, not of the session.
	$session->set_query_timer_restart;
	$session->{backend} = $session->query('SELECT pg_backend_pid()');
	return $session;
}

# Quits sessions, and waits until their backends have ended.  psql ends before its backend does, so what the backend
# releases at its end (leases, locks, its row in pg_stat_activity) might otherwise still be there.
sub leave
{
	foreach my $session (@_)
	{
		my $pid = $session->{backend};

		$session->quit;
		until_true("the end of backend $pid", sub { !kill 0, $pid });
	}
	return;
}

# The result of SQL that must succeed.
sub sql
{
	my ($node, $sql, $db) = @_;

	return $node->safe_psql($db // 'postgres', $sql);
}

# The same, in a session that is gone when this answers: what it has counted is in PostgreSQL's statistics.
sub sql_counted
{
	my ($node, $sql, $db) = @_;
	my ($answer, $pid) = sql($node, "$sql; SELECT pg_backend_pid()", $db) =~ /^(.*?)\n?(\d+)\z/s;

	wait_until($node, "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = $pid", 't', $db);
	return $answer;
}

# The SQLSTATE of the first error of SQL, or 00000.
sub sqlstate
{
	my ($node, $sql, $db, %params) = @_;
	my ($stdout, $stderr);

	$node->psql($db // 'postgres', $sql, stdout => \$stdout, stderr => \$stderr,
		on_error_stop => 1, extra_params => [ '-v', 'VERBOSITY=sqlstate' ], %params);
	return $1 if $stderr =~ /(?:ERROR|FATAL):\s+([0-9A-Z]{5})\s*$/m;
	return $stderr eq '' ? '00000' : $stderr;
}

sub is_sql
{
	my ($node, $sql, $expected, $name, $db) = @_;

	my $answer = sql($node, $sql, $db);

	# A worker that has had no processor for two seconds is stuck, says the audit: asked again while that is all it lacks.
	for (my $starved = 1; $starved && $answer ne $expected && $sql =~ /idemq\.check\(\)/ && $answer =~ /\bworker\.stuck\b/;)
	{
		Time::HiRes::sleep(0.1);
		$starved = is_starved($node);
		$answer = sql($node, $sql, $db);
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $holds = is($answer, $expected, $name);

	# Tells script/test that this is not a flake.
	diag('never retried: idemq.check()') if !$holds && $sql =~ /idemq\.check\(/;
	return $holds;
}

# Whether a background worker would run, had it a processor or its page.
sub is_starved
{
	my ($node) = @_;
	my @pids = split /\n/, sql($node, "SELECT pid FROM pg_stat_activity WHERE application_name = 'idemq worker'");

	return grep { (eval { slurp_file("/proc/$_/stat") } // '') =~ /\) [RD] / } @pids;
}

sub is_state
{
	my ($node, $sql, $expected, $name, $db) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(sqlstate($node, $sql, $db), $expected, $name);
}

# is_soon(node, sql, [expected,] name): as is_sql ('t'), of what becomes so.
sub is_soon
{
	my ($node, $sql, $name, $expected) = @_ == 3 ? (@_, 't') : @_[ 0, 1, 3, 2 ];

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($node->poll_query_until('postgres', $sql, $expected), $name);
}

# Asserts that a CALL that sleeps ends by itself before statement_timeout, whatever its own timeout is.  The CALL uses
# idemq's clock, so this moves that clock to the time by which the CALL must have ended: 0.1 s before statement_timeout.
# PostgreSQL's timer does not use that clock, so it cannot fire first, however busy the machine is.  Requires a server
# started with idemq.test_clock = on.
sub ends_in_time
{
	my ($node, $call, $expected, $name) = @_;

	$call =~ s/'\d+ (?:s|min|h)'\)$/'1 day')/ or die "no timeout: $call";
	my $waiter = waiter($node, "SET statement_timeout = '1 h'; $call");

	advance($node, '59 min 59.9 s');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $answer = eval { answer($waiter) };
	is($answer // 'it sleeps on', $expected, $name);
	defined $answer ? leave($waiter->{session}) : $waiter->{session}{run}->kill_kill;
	return;
}

# The WAL records that $code causes, counted by type, such as 'Heap/HOT_UPDATE'.
sub wal_records { return (wal_written(@_))[0] }

# Their bytes by type, without page images.
sub wal_bytes { return (wal_written(@_))[1] }

sub wal_written
{
	my ($node, $code) = @_;
	my $lsn = 'SELECT pg_current_wal_insert_lsn()';
	my ($start, $end, %count, %bytes);

	$start = sql($node, $lsn);
	$code->();
	# A record of our own, so that the interval is never empty.
	$end = sql($node, "SELECT pg_logical_emit_message(false, 'end', 'end')");
	# On disk with this commit.  (A switch of the segment may end in a checkpoint that removes it.)
	sql($node, "SET synchronous_commit = on; SELECT pg_logical_emit_message(true, 'flush', 'flush')");
	my $dump = run_command_output('pg_waldump', '--stats=record', '-p', $node->data_dir . '/pg_wal', '-s', $start, '-e', $end);
	foreach (split /\n/, $dump)
	{
		# Except hint bits, which belong to earlier transactions.
		($count{$1}, $bytes{$1}) = ($2, $3) if m{^(\w+/\S+)\s+(\d+)\s+\([^)]*\)\s+(\d+)} && $1 ne 'XLOG/FPI_FOR_HINT';
	}
	return (\%count, \%bytes);
}

# Whether a debugger is there, may attach to servers, and sees them (of one under valgrind it sees valgrind).
sub has_debugger
{
	my ($node) = @_;
	my $session = session($node);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	my ($stdout, $stderr) = eval { run_command([ 'gdb', '-nx', '-batch', '-p', $pid, '-ex', 'print (int) MyProcPid' ]) };

	$session->quit;
	return defined $stdout && $stdout =~ /= $pid$/m;
}

# The stop points that this test names in its line "# stops: ...".  A test with such a line runs with a library that has
# stop points (script/test), so it requires no debugger.
my %stops = map { $_ => 1 } map { /^# stops:(.*)/ ? split(' ', $1) : () } split /\n/, slurp_file($0);

# Returns whether the library in use has stop points.
sub has_stops
{
	my ($dir) = run_command([ 'pg_config', '--pkglibdir' ]);

	return scalar(slurp_file("$dir/idemq.so") =~ m{idemq_stops/});
}

# Returns whether stop_at works, with the stop points that the test names or, if it names none, with a debugger.
sub can_stop
{
	my ($node) = @_;

	return %stops ? has_stops() : has_debugger($node);
}

# Makes a process stop once at each of these places, in this order.  The places are stop points (IDEMQ_STOP in
# src/base/base.h) if the test names any; otherwise they are functions at which a debugger stops the process.
# Returns a sub.  Its first call waits until the process has stopped, its second call lets the process continue, and so on
# for each place.  If a server is passed instead of a pid, the first process that arrives stops.
sub stop_at
{
	return %stops ? stop_at_points(@_) : stop_with_debugger(@_);
}

sub stop_at_points
{
	my ($pid, @names) = @_;
	# The working directory of a server's processes is its data directory.
	my $dir = (ref $pid ? $pid->data_dir : readlink("/proc/$pid/cwd")) . '/idemq_stops';
	my ($id, $calls) = (ref $pid ? 0 : $pid, 0);
	my $arm = sub { append_to_file("$dir/$id.$names[$_[0]]", '') };

	foreach (@names) { $stops{$_} or die "the line '# stops:' does not name $_" }
	mkdir $dir;
	$arm->(0);
	return sub {
		my $n = int($calls++ / 2);
		my $here = "$dir/$id.$names[$n].here";

		if ($calls % 2)
		{
			for (my $end = time + $patience; time < $end; Time::HiRes::sleep(0.005))
			{
				return if -e $here;
			}
			die "no process got to $names[$n]";
		}
		$arm->($n + 1) if $n < $#names;
		unlink $here;
		return;
	};
}

# Returns the processes of a list that are at a stop point now.
sub at_stop
{
	return grep { my @here = glob(readlink("/proc/$_/cwd") . "/idemq_stops/$_.*.here"); @here > 0 } @_;
}

# Counts how often a process reaches these stop points from now on.  Returns a sub that returns the counts so far.
sub count_at
{
	my ($pid, @names) = @_;
	my $dir = readlink("/proc/$pid/cwd") . '/idemq_stops';
	my @files = map { "$dir/$pid.$_.count" } @names;

	foreach (@names) { $stops{$_} or die "the line '# stops:' does not name $_" }
	mkdir $dir;
	foreach (@files)
	{
		open(my $file, '>', $_) or die "$_: $!";
		close $file;
	}
	return sub { return map { -s } @files };
}

# Restarts a server with the shipped library, which has no stop points, and returns the server.  Close its sessions first.
# Without IDEMQ_SHIPPED, the server keeps the usual build, which then has stop points (script/dev/coverage).
sub shipped
{
	my ($node) = @_;

	$node->stop;
	$node->{_install_path} = $ENV{IDEMQ_SHIPPED} if $ENV{IDEMQ_SHIPPED};
	$node->start;
	return $node;
}

sub stop_with_debugger
{
	my ($pid, @functions) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/stop.$pid." . int(rand(2**31));
	my $until = sub {
		for (my $end = time + $patience; time < $end; Time::HiRes::sleep(0.1))
		{
			return if -e "$file.$_[0]";
		}
		die "gdb did not get to @functions ($_[0])";
	};
	my ($out, $calls) = ('', 0);
	my @stops = map {
		(   '-ex', "break $functions[$_]", '-ex', "shell touch $file.set", '-ex', 'continue',
			'-ex', "shell touch $file.hit$_; while [ ! -e $file.go$_ ]; do sleep 0.01; done", '-ex', 'delete')
	} 0 .. $#functions;
	my $gdb = IPC::Run::start([ 'gdb', '-nx', '-batch', '-p', $pid,
			'-ex', 'handle SIGHUP SIGUSR1 SIGUSR2 SIGALRM nostop noprint pass', @stops, '-ex', 'detach' ],
		'<', \undef, '>&', \$out);

	$until->('set');
	return sub {
		my $n = int($calls++ / 2);

		return $until->("hit$n") if $calls % 2;
		append_to_file("$file.go$n", '');
		$gdb->finish if $n == $#functions;
	};
}

# The pids of the sessions that sleep in CALL idemq.wait and the like, as a condition.
sub asleep
{
	return "state = 'active' AND wait_event IN ('Extension', 'IdemqWait') AND query LIKE '%CALL idemq.wait%'";
}

# A session that has begun a CALL, or what else ends in one, and sleeps in it.
sub waiter
{
	my ($node, $call, $session) = @_;

	$session //= session($node);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');
	$session->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\n$call;\n");
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $pid AND " . asleep());
	return { session => $session, pid => $pid };
}

# What a waiter answered, or the SQLSTATE that it ended with.
sub answer
{
	my ($waiter) = @_;
	my ($output) = $waiter->{session}->query('SELECT');
	my $error = $waiter->{session}{stderr};

	$waiter->{session}{stderr} = '';
	return $error =~ /(?:ERROR|FATAL):\s+([0-9A-Z]{5})/ ? $1 : $output . $error;
}

# Waits until a query answers what it should ('t'); a test that goes on without it tells nothing.
# Also while the server is down: psql has nothing to read that it could leave unread.
sub wait_until
{
	my ($node, $sql, $expected, $db) = @_;
	my @command = ('psql', '-XAtq', '-d', $node->connstr($db // 'postgres'), '-c', $sql);
	my $end = time + $patience;

	$expected //= 't';
	while (time < $end)
	{
		my ($out, $error) = ('', '');

		IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$error);
		chomp $out;
		return if $out eq $expected && $error eq '';
		Time::HiRes::sleep(0.1);
	}
	die "never '$expected': $sql";
}

# Waits until code answers true; a test that goes on without it tells nothing.
sub until_true
{
	my ($what, $code) = @_;

	for (my $end = time + $patience; time < $end; Time::HiRes::sleep(0.1))
	{
		return if $code->();
	}
	die "never: $what";
}

# Stops a server immediately (its processes get SIGQUIT).  A process that is stopped, for example by stop_worker, acts on
# that signal only when it continues.  So this continues it as soon as the signal is pending; otherwise PostgreSQL would
# wait 5 s and kill it.
sub stop_at_once
{
	my ($node) = @_;
	my ($postmaster) = split /\n/, slurp_file($node->data_dir . '/postmaster.pid');
	my @stopped = map { m{^/proc/(\d+)/} } grep { (eval { slurp_file($_) } // '') =~ /\) T $postmaster / } glob('/proc/[0-9]*/stat');
	my $helper = @stopped ? fork : undef;

	if (defined $helper && $helper == 0)
	{
		foreach my $pid (@stopped)
		{
			# Wait until SIGQUIT is among the pending signals, or the process is gone.
			Time::HiRes::sleep(0.005) while (eval { slurp_file("/proc/$pid/status") } // '') =~ /^SigPnd:\s+([0-9a-f]+)\nShdPnd:\s+([0-9a-f]+)$/m
			  && !((hex($1) | hex($2)) & 1 << SIGQUIT - 1);
			kill 'CONT', $pid;
		}
		POSIX::_exit(0);
	}
	$node->stop('immediate');
	waitpid $helper, 0 if defined $helper;
	return;
}

# A crash of the whole server, and its start; $between->() while it is down.  Answers when it
# was started.  ($node->restart('immediate') is none: that argument is ignored.)
sub crash
{
	my ($node, $between) = @_;

	stop_at_once($node);
	$between->() if $between;
	my $log = -s $node->logfile;
	my $started = Time::HiRes::time;
	$node->start;
	slurp_file($node->logfile, $log) =~ /was not properly shut down/ or die 'the server has not crashed';
	return $started;
}

# Returns the position at which a server's log ends now, for is_logged and wait_logged to start from.
sub log_end
{
	my ($node) = @_;

	return -s $node->logfile;
}

# Waits until a server's log contains a match for $regex after position $from (default 0).
sub wait_logged
{
	my ($node, $regex, $from) = @_;

	until_true("in the log: $regex", sub { slurp_file($node->logfile, $from // 0) =~ $regex });
	return;
}

# Asserts that a server's log contains a match for $regex after position $from (default 0).  A process may write its line
# after its effect is visible, so the log is read until the line appears.
sub is_logged
{
	my ($node, $regex, $name, $from) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(eval { wait_logged($node, $regex, $from); 1 }, $name) || diag($@);
}

# Moves the time that idemq reads forward by an interval, and returns when everything due by then has run; dies if
# something has not.  Requires a server started with idemq.test_clock = on.
sub advance
{
	my ($node, $interval, $db) = @_;

	my ($stdout, $stderr) = ('', '');

	$node->psql($db // 'postgres', "CALL idemq.advance_clock('$interval')", stdout => \$stdout, stderr => \$stderr, on_error_stop => 1);
	die "advance_clock('$interval'): $stderr" if $stderr =~ /not everything that is due|ERROR: |FATAL: /;
	return $stdout;
}

# Waits until a standby has replayed everything that its primary has written.  PostgreSQL's wait_for_catchup can take 10 s
# longer, for two reasons: the end of the WAL may be after the header of a page to which nothing more is written, and a
# standby reports what it has replayed only when it reports something else.
sub caught_up
{
	my ($node, $standby) = @_;

	sql($node, "SET synchronous_commit = local; SELECT pg_logical_emit_message(true, 'caught_up', '')");
	my $lsn = sql($node, 'SELECT pg_current_wal_flush_lsn()');
	wait_until($standby, "SELECT pg_last_wal_replay_lsn() >= '$lsn'");
	return;
}

# Reloads the settings, and returns when the postmaster has signalled every process.  It signals them one after another:
# once a session has noticed a second reload, all have been signalled for the first.
sub signal_all
{
	my ($node) = @_;

	foreach (1, 2)
	{
		my $loaded = sql($node, 'SELECT pg_conf_load_time()');

		$node->reload;
		wait_until($node, "SELECT pg_conf_load_time() > '$loaded'");
	}
	return;
}

# Reloads the settings, and returns when the background worker uses them.  It reads them each time before it looks for
# work, so at the latest between two calls of advance_clock.  Requires idemq.test_clock = on.
sub reload_worker
{
	my ($node) = @_;

	signal_all($node);
	advance($node, '1 us') foreach 1, 2;
	return;
}

# Sets synchronous_standby_names ('' for none), and waits until it is in force: the standbys are synchronous, and COMMITs
# wait for them.  They begin to wait once the checkpointer has read the setting; it is the last process to read it.
# $standbys: minimum number of synchronous standbys to wait for (1); 0 if the name belongs to no standby.
sub sync_standby_in_force
{
	my ($node, $names, $standbys) = @_;

	$standbys //= $names eq '' ? 0 : 1;

	$node->append_conf('postgresql.conf', "synchronous_standby_names = '$names'");
	$node->reload;
	wait_until($node, 'SHOW synchronous_standby_names', $names);
	wait_until($node, "SELECT count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) " . ($standbys ? '>=' : '=') . " $standbys FROM pg_stat_replication");
	signal_all($node);
	# The checkpointer reads the settings before it serves such a request, or at the latest before the second.  A CHECKPOINT
	# would also work, but it writes WAL, so the standby would report what it has.
	foreach (1, 2)
	{
		my $from = log_end($node);

		sql($node, "SELECT pg_log_backend_memory_contexts(pid) FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
		wait_logged($node, qr/logging memory contexts of PID/, $from);
	}
	return;
}

my $barriers = 0;

# Returns a barrier at which sessions of a database stop, so that a test knows that several run at once.  $barrier->sql is the
# statement in which a session stops.  $barrier->wait_for($n) waits until n sessions have stopped there.  $barrier->open lets
# these sessions and all later ones through.
sub barrier
{
	my ($node, $db) = @_;
	my $barrier = bless { node => $node, db => $db, key => 4_500_000 + ++$barriers, holder => session($node, $db) }, 'Idemq::Barrier';

	$barrier->{holder}->query_safe("SELECT pg_advisory_lock($barrier->{key})");
	return $barrier;
}

sub Idemq::Barrier::sql
{
	my ($barrier) = @_;

	return "SELECT pg_advisory_xact_lock_shared($barrier->{key})";
}

sub Idemq::Barrier::wait_for
{
	my ($barrier, $n) = @_;

	wait_until($barrier->{node}, "SELECT count(*) = $n FROM pg_locks WHERE locktype = 'advisory' AND objid = $barrier->{key} AND NOT granted",
		't', $barrier->{db});
	return;
}

sub Idemq::Barrier::open
{
	my ($barrier) = @_;

	leave($barrier->{holder});
	return;
}

# Writes a file that servers may read at any time: they see what it was, or all of this.
sub write_whole
{
	my ($file, $text) = @_;

	append_to_file("$file.new", $text);
	rename "$file.new", $file or die "$file: $!";
	return;
}

my $scripts = 0;

# Clients of pgbench, which run a script, or one of several [text, weight] at random.
# Answers a sub that waits for their end, and answers what they complained of: '' when all
# came through.  With 'killed' among the options, sessions that are ended from outside are
# no complaint, nor is a server that is not there.  -T is longer by what sessions take to begin.
sub clients
{
	my ($node, $script, @options) = @_;
	my ($sessions, $seconds) = map { my $option = $_; grep { $options[ $_ - 1 ] eq $option } 1 .. $#options } '-c', '-T';
	my $killed = grep { $_ eq 'killed' } @options;
	my @files;

	$options[$seconds] += $options[$sessions] * to_begin() if defined $seconds;
	foreach (ref $script ? @$script : [ $script, 1 ])
	{
		my $file = "$PostgreSQL::Test::Utils::tmp_check/script." . ++$scripts . '.sql';

		append_to_file($file, $_->[0]);
		push @files, '-f', "$file\@$_->[1]";
	}
	# A file: a pipe that nobody reads would stop pgbench, with what it has locked.
	my $said = "$PostgreSQL::Test::Utils::tmp_check/script.$scripts.err";

	local $ENV{PGAPPNAME} = 'pgbench';
	my $run = IPC::Run::start([ 'pgbench', '-n', '-j', 2, (grep { $_ ne 'killed' } @options), @files,
			'-h', $node->host, '-p', $node->port, 'postgres' ], '<', \undef, '>', '/dev/null', '2>', $said, IPC::Run::timeout($ENV{TEST_TIMEOUT} // 300));
	return sub {
		$run->finish;
		my $status = $run->result(0);
		my @lines = grep { !/^pgbench \(/ } split /^/, slurp_file($said);

		@lines = grep { /ERROR: |PANIC: |FATAL: |WARNING: / && !/terminating connection|canceling statement due to user request|the database system is/ } @lines if $killed;
		return join('', @lines) || ($status == 0 || $killed && $status <= 2 ? '' : "status $status");
	};
}

# A pgbouncer in transaction mode before a server, with settings of its own: a sub that starts
# it, its socket's folder, its port.  The sub answers its process, of which kill_kill is the end.
# users => [names]: these have sessions of their own; otherwise all have those of the superuser.
sub pooler
{
	my ($node, %settings) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir_short();
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $user = getpwuid($>);
	my $socket = "$dir/.s.PGSQL.$port";
	my $users = delete $settings{users};

	append_to_file("$dir/users", join '', map { qq("$_" ""\n) } 'postgres', $user, @{ $users // [] });
	append_to_file("$dir/ini", join("\n", '[databases]', "* = host=${\$node->host} port=${\$node->port}" . ($users ? '' : " user=$user"),
			'[pgbouncer]', 'listen_addr =', "listen_port = $port", "unix_socket_dir = $dir",
			'auth_type = ' . ($users ? 'trust' : 'any'), "auth_file = $dir/users",
			'pool_mode = transaction', map({ "$_ = $settings{$_}" } sort keys %settings), ''));
	my $start = sub {
		my $end = time + $patience;

		# Of one that was killed.
		unlink $socket;
		# A file: a pipe that nobody reads would stop it.
		my $run = IPC::Run::start([ 'pgbouncer', "$dir/ini" ], '<', \undef, '>&', "$dir/log");
		until (-S $socket)
		{
			die 'pgbouncer does not start: ' . slurp_file("$dir/log") if time > $end || !$run->pumpable;
			Time::HiRes::sleep(0.05);
		}
		return $run;
	};
	return ($start, $dir, $port);
}

# The errors in a server's log that are not of one of these SQLSTATEs, each message once;
# 'workers' among them: those of idemq's own processes alone.
sub unexpected
{
	my ($node, @expected) = @_;
	my $states = join '|', @expected;
	my $who = (grep { $_ eq 'workers' } @expected) ? '' : '.*';
	my %found;

	foreach (split /\n/, slurp_file($node->logfile))
	{
		$found{"$1 $2"}++ if /^\S+ \S+ \S+ \[\d+\] (\w{5}) $who (?:ERROR|FATAL|PANIC):  (.*)/ && $1 !~ /^(?:$states)$/;
	}
	return join "\n", sort keys %found;
}

# The pid of a database's background worker, once it runs.
sub worker_pid
{
	my ($node, $db) = ($_[0], $_[1] // 'postgres');
	my $pid = "SELECT pid FROM pg_stat_activity WHERE datname = '$db' AND application_name = 'idemq worker'
		AND wait_event IN ('Extension', 'IdemqWorkerMain')";

	# Between the two questions it may have something to do: then it is asked for again.
	foreach (1 .. 100)
	{
		wait_until($node, "SELECT count(*) = 1 FROM ($pid) AS p", 't', $db);
		my $found = sql($node, $pid, $db);
		return $found if $found =~ /^\d+$/;
	}
	die "no worker that waits in $db";
}

# Stops a database's background worker (SIGSTOP) in its sleep, and answers its pid.  One that is
# stopped in its work may hold a lock, which whoever comes next would wait for.
sub stop_worker
{
	my ($node, $db) = ($_[0], $_[1] // 'postgres');

	foreach (1 .. 100)
	{
		my $pid = worker_pid($node, $db);

		kill 'STOP', $pid;
		Time::HiRes::sleep(0.001) until slurp_file("/proc/$pid/stat") =~ /\) T /;
		return $pid if sql($node, "SELECT wait_event IN ('Extension', 'IdemqWorkerMain') FROM pg_stat_activity WHERE pid = $pid", $db) eq 't';
		note 'the worker was stopped in its work; once more';
		kill 'CONT', $pid;
	}
	die "no worker that sleeps in $db";
}

sub run_command_output
{
	my ($stdout, $stderr) = run_command(\@_);

	die "@_: $stderr" if $stdout eq '';
	return $stdout;
}

require OneSession;

1;
