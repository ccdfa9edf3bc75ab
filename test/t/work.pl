# idemq-work: a program for each job.  What its exit status, its output and its silence mean; what
# happens to it when the lease, the time, the runner or the server ends.  work_slow has the parts that take real time.
# at least 148 assertions
# expects in log: \] XX[0-9A-Z]{3} .*canceling the wait for synchronous

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Runner;
use Test::More;

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('work', 'idemq.worker' => 'on');
# Its sessions can be found, to be cut.
our $dsn = $node->connstr('postgres') . ' application_name=idemq-work';
my $user = getpwuid($>);

# The program is the text of a shell script.
sub runner { my ($script, @options) = @_; return start_runner($dsn, @options, '--', 'sh', '-c', $script) }

# Does what is ready; answers what it said.
sub once
{
	my ($status, $said) = ended(runner(@_, '--once'));

	is($status, 0, 'the runner ends with 0') or diag $said;
	return $said;
}

sub enqueue
{
	my ($payload, $more, $db) = (@_, '');

	return sql($node, "SELECT id FROM idemq.enqueue('q', '$payload'$more)", $db || undef);
}

# The command line.
{
	my ($control) = slurp_file("$ENV{IDEMQ_SOURCE}/idemq.control") =~ /^default_version = '(.*)'/m;
	my $try = sub {
		my ($out, $err) = ('', '');
		IPC::Run::run([ 'idemq-work', @_ ], '<', \undef, '>', \$out, '2>', \$err);
		return ($? >> 8) . " $out$err";
	};

	is($try->('--version'), "0 idemq-work (idemq) $control\n", '--version');
	like($try->('--help'), qr/^0 idemq-work runs the jobs/, '--help');
	cmp_ok(scalar(() = $try->('--help') =~ /\n/g), '<=', 2 * 34, 'on two screens');
	is(scalar(grep { length > 100 } split /\n/, $try->('--help')), 0, 'of 100 columns');
	like($try->('--', 'true'), qr/^2 .*no queue specified: pass -q QUEUE/, 'a queue is asked for');
	like($try->('-q', 'q'), qr/^2 .*no program specified: pass -- PROGRAM/, 'and a program');
	like($try->('-q', 'q', '--http', 'ftp://x'), qr/^2 .*--http requires a URL|^2 .*without libcurl/, 'a URL');
	like($try->('-q', 'q', '--http', 'http://x', 'true'), qr/^2 .*cannot be used with --lines or a program/, 'a URL or a program');
	like($try->('-q', 'q', '--unix-socket', 'x', 'true'), qr/^2 .*require --http/, 'a socket is for a URL');
	like($try->('-q', 'q', '--', 'no_such_program'), qr/^2 .*not found in PATH/, 'one that is there');
	like($try->('-q', 'q', '--timeout', '5 parsecs', 'true'), qr/^2 .*--timeout requires a time/, 'a time with a unit');
	like($try->('-q', 'q', '-j', '0', 'true'), qr/^2 .*--jobs requires a number/, 'a number of jobs');
	like($try->('-d', $dsn, '-q', 'no_such_queue', 'true'), qr/^1 .*no such queue|^1 .*does not exist/, 'a queue that is not there is an error at the start');
	like($try->('-d', 'host=/nonexistent', '-q', 'q', '--once', 'true'), qr/^1 .*server: /, '--once does not wait for a server');
}

# What a program is given, and what it answers.
{
	# Those of the test itself.
	delete local @ENV{grep { /^IDEMQ_/ } keys %ENV};
	my $id = enqueue('{"to": "a b"}', ", key => 'k 1', kind => 'mail'");
	my $said = once('cat >$T/in; env | grep ^IDEMQ_ | sort >$T/env; date +%s >>$T/env; echo to stdout', '--timeout', '1000');

	is($said, '', 'nothing is said of a success');
	is(slurp_file((sort { -M $a <=> -M $b } glob "$tmp/work.*.out")[0]), "to stdout\n", 'stdout is the runner\'s');
	is(slurp_file("$tmp/in"), qq({"to": "a b"}\n), 'the payload is on stdin');
	my ($env, $deadline, $rest, $now) = slurp_file("$tmp/env") =~ /^(.*?)IDEMQ_DEADLINE=(\d+)\n(.*\n)(\d+)\n$/s;
	like($env . $rest, qr/^IDEMQ_ATTEMPT=1\nIDEMQ_ID=$id\nIDEMQ_KEY=k 1\nIDEMQ_KIND=mail\nIDEMQ_QUEUE=q\nIDEMQ_TOKEN=\d{10,}\n$/, 'the attempt is in the environment');
	my $claimed = sql($node, "SELECT floor(extract(epoch FROM claimed_at)) FROM idemq.jobs WHERE id = $id");
	ok($deadline >= $claimed + 999 && $deadline <= $now + 1001, 'and when it is ended');
	is_job($node, $id, 'completed|1||', 'exit status 0 commits, without a result');

	local @ENV{qw(IDEMQ_KEY IDEMQ_KIND)} = ('of an outer runner') x 2;
	$id = enqueue('1');
	is(once('echo ${IDEMQ_KEY-none} ${IDEMQ_KIND-none} >&2; exit 1') =~ /attempt 1 of 20: retrying: exit status 1: none none$/m ? 1 : 0, 1, 'no key or kind, no variable');
	is_sql($node, "SELECT idemq.cancel($id)", 'cancelled', 'that is all of it');
}

# The trace of the producer goes on in the program.
{
	local @ENV{qw(TRACEPARENT TRACESTATE BAGGAGE)} = ('of an outer runner') x 3;
	my $trace = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
	my $of = sub {
		my ($headers) = @_;
		enqueue('1', $headers eq '' ? '' : ", headers => '$headers'");
		return once('echo "${TRACEPARENT-none}|${TRACESTATE-none}|${BAGGAGE-none}" >$T/trace') . slurp_file("$tmp/trace");
	};

	is($of->(qq({"traceparent": "$trace", "tracestate": "a=1,b=2", "baggage": "customer=7", "own": "x"})), "$trace|a=1,b=2|customer=7\n", 'traceparent, tracestate and baggage');
	is($of->(''), "none|none|none\n", 'none, not even its own');
	is($of->(qq({"traceparent": "nonsense", "tracestate": "a\\nb", "baggage": "é"})), "none|none|none\n", 'none that is not one');
	is($of->(qq("traceparent")), "none|none|none\n", 'none of headers that are no object');
}

# A program that waits for an event.
{
	my $id = enqueue('{}');
	my $ask = q[echo "SELECT outcome FROM idemq.await_event(:id, :token, 'paid', '1 h')" |] .
	  qq[ psql -XAt -d '$dsn' -v id="\$IDEMQ_ID" -v token="\$IDEMQ_TOKEN"];
	my $waits = qq[heard=\$($ask) && case \$heard in waiting) exit 75 ;; *) echo '"'\$heard'"' ;; esac];

	is(once($waits, '--result'), '', 'an event that is not there');
	is_job($node, $id, 'pending|0||', 'the job sleeps');
	is_sql($node, "SELECT state, ready_at > now() + '50 min' FROM idemq.steps JOIN idemq.jobs ON id = job_id WHERE job_id = $id", 'waiting|t', 'for as long as it was told to');
	sql($node, "SELECT idemq.send_event('q', 'paid')");
	is(once($waits, '--result'), '', 'the event comes');
	is_job($node, $id, 'completed|1|"arrived"|', 'and the job has heard it');
}

# Results.
{
	my $id = enqueue('{"a": [1, 2]}');

	is(once('cat', '--result'), '', 'stdout is the result');
	is_job($node, $id, 'completed|1|{"a": [1, 2]}|', 'which is stored');
	foreach (
		[ 'true', '', 'no output is no result' ],
		[ 'echo "not json"', qr/not a valid result: committed without a result: ERROR:  invalid input syntax for type json/, 'what is no JSON' ],
		[ q(echo '"\u0000"'), qr/not a valid result: committed without a result/, 'JSON that jsonb cannot hold' ],
		[ q(printf '1\0002'), qr/stdout contains a NUL byte: committed without/, 'a NUL' ],
		[ q(printf '"\377"'), qr/not a valid result: committed without a result/, 'no UTF-8' ],
		[ 'head -c 3000000 /dev/zero | tr "\0" 1', qr/longer than --max-output: committed without/, 'huge output' ])
	{
		my ($script, $expected, $name) = @$_;

		$id = enqueue('1');
		like(once($script, '--result'), $expected eq '' ? qr/^$/ : $expected, "$name: said");
		is_job($node, $id, 'completed|1||', "$name: committed all the same");
	}
}

# A pipe holds a megabyte, should its program ask for that: all of it is there when it ends.  The runner is stopped
# from before the first byte until the program has ended.
{
	append_to_file("$tmp/enlarged", <<'EOF');
use POSIX ();
sub until_is { my ($pid, $state) = @_; select undef, undef, undef, 0.02 until state($pid) eq $state }
sub state { open my $stat, '<', "/proc/$_[0]/stat" or return ''; return readline($stat) =~ /\) (\S)/ ? $1 : '' }
my ($runner, $program) = (getppid, $$);
my ($pipe, $text) = $ARGV[0] eq 'out' ? (\*STDOUT, '"' . 'x' x 900_000 . '"') : (\*STDERR, '-' x 900_000 . 'the end');
if (fork == 0)
{
	POSIX::setsid();
	POSIX::close($_) foreach 1, 2;
	until_is($program, 'Z');
	kill 'CONT', $runner;
	exit;
}
fcntl $pipe, 1031, 1 << 20 or die "F_SETPIPE_SZ: $!";
kill 'STOP', $runner;
until_is($runner, 'T');
syswrite($pipe, $text) == length $text or die;
exit($ARGV[0] eq 'out' ? 0 : 3);
EOF
	my $id = enqueue('1');
	is(once('exec perl $T/enlarged out', '--result'), '', 'a program that has enlarged its pipe');
	is_sql($node, "SELECT status, length(result #>> '{}') FROM idemq.jobs WHERE id = $id", 'completed|900000', 'all of its result');

	$id = enqueue('1');
	once('exec perl $T/enlarged err');
	is_sql($node, "SELECT status, right(last_error, 8) FROM idemq.jobs WHERE id = $id", 'retrying|-the end', 'and the end of its stderr');
	sql($node, "SELECT idemq.cancel($id)");
}

# Exit statuses.
{
	my $id = enqueue('1');

	is(once('echo busy >&2; exit 75', '--later', '10min'), '', '75 is nothing to talk of');
	is_sql($node, "SELECT status, attempt, ready_at > now() + '8 min', ready_at < now() + '11 min' FROM idemq.jobs WHERE id = $id",
		'pending|0|t|t', 'it releases with a delay, the attempt not counted');
	sql($node, "SELECT idemq.cancel($id)");

	$id = enqueue('1');
	like(once('echo no such address >&2; exit 65'), qr/attempt 1 of 20: dead: exit status 65: no such address$/, '65 is said');
	is_job($node, $id, 'dead|1||exit status 65: no such address', 'the job is dead');

	$id = enqueue('1');
	like(once('kill -9 $$'), qr/retrying: killed by signal 9$/, 'a signal is said');
	is_sql($node, "SELECT outcome, error, details FROM idemq.attempts WHERE job_id = $id", 'failed|killed by signal 9|{"signal": 9}', 'and kept');
	sql($node, "SELECT idemq.cancel($id)");

	# The first byte of the tail is within a character, wherever it is cut; a NUL; no UTF-8; a new line at the end.
	$id = enqueue('1');
	once(q(yes é | head -c 100001 | tr -d '\n' >&2; printf 'x\000\377\303 the end é\n\n' >&2; exit 3));
	is_sql($node, "SELECT status, last_error LIKE 'exit status 3: é%éx??? the end é', octet_length(last_error) BETWEEN 4000 AND 17000 FROM idemq.jobs WHERE id = $id",
		'retrying|t|t', 'the tail of stderr is kept, as text');
	is_sql($node, "SELECT details FROM idemq.attempts WHERE job_id = $id", '{"exit_status": 3}', 'beside the exit status');
	sql($node, "SELECT idemq.cancel($id)");

	sql($node, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
	sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q')", 'latin');
	enqueue('1', '', 'latin');
	local $dsn = $node->connstr('latin');
	once('echo 10 € und mehr >&2; exit 3');
	is_sql($node, 'SELECT last_error FROM idemq.jobs', 'exit status 3: 10 ? und mehr', 'a character that the server lacks does not undo the report', 'latin');
}

# Programs that do not read, that leave processes behind, that run side by side.
{
	my $id = enqueue('1');

	sql($node, "SELECT idemq.cancel($id); SELECT idemq.enqueue('q', to_jsonb(repeat('x', 1000000)), key => 'unread')");
	is(once('exec <&-; sleep 0.3'), '', 'a program need not read stdin');
	is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE key = 'unread'", 'completed|1', 'and is committed');
	sql($node, "SELECT idemq.enqueue('q', to_jsonb(repeat('x', 1000000)), key => 'long')");
	is(once('wc -c', '--result'), '', 'and may read a megabyte');
	is_sql($node, "SELECT status, result FROM idemq.job_by_key('q', 'long')", 'completed|1000003', 'all of it');

	$id = enqueue('1');
	is(once('sleep 1000 & echo $! >$T/left'), '', 'a process is left behind');
	until_true('left behind', sub { !runs(until_file('left') + 0) });
	is_job($node, $id, 'completed|1||', 'it is ended with its program');

	sql($node, "SELECT idemq.enqueue('q', to_jsonb(i)) FROM generate_series(1, 8) AS i");
	is(once('touch $T/run.$$ $T/job.$IDEMQ_ID; ls $T | grep -c ^run >>$T/counts
		while [ $(ls $T | grep -c ^job) -lt 4 ]; do sleep 0.05; done; rm $T/run.$$', '-j', '4', '--timeout', '120'), '', 'four at a time');
	my @counts = split /\n/, slurp_file("$tmp/counts");
	is(scalar(@counts), 8, 'each job once');
	is(scalar(grep { $_ > 4 } @counts), 0, 'never a fifth');
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status NOT IN ('completed', 'cancelled', 'dead')", 0, 'all is done');
}

# Several queues, in the order given.
sql($node, "SELECT idemq.create_queue('urgent')");
enqueue('"q"');
sql($node, q(SELECT idemq.enqueue('urgent', '"urgent"')));
once('echo $IDEMQ_QUEUE >>$T/order', '-q', 'urgent');
is(slurp_file("$tmp/order"), "q\nurgent\n", 'queues in the order given');

# The time, and the lease.
{
	my $id = enqueue('1');

	# meant to expire
	like(once('trap "" TERM; while :; do sleep 0.1; done', '--timeout', '300ms', '--kill-after', '100ms'),
		qr/retrying: stopped after 0.3 s \(--timeout\)$/, 'a program that ignores SIGTERM is killed when its time is over');
	is_job($node, $id, 'retrying|1||stopped after 0.3 s (--timeout)', 'and has failed');
	sql($node, "SELECT idemq.cancel($id)");

	# The queue's, if that is less; a little before the server ends the lease.
	$id = enqueue('1');
	sql($node, "SELECT idemq.alter_queue('q', job_timeout => '10 min')");
	is(once('echo $IDEMQ_DEADLINE >$T/limited', '--timeout', '1h'), '', 'job_timeout of the queue');
	my ($limited) = slurp_file("$tmp/limited") =~ /(\d+)/;
	is_sql($node, "SELECT $limited BETWEEN extract(epoch FROM claimed_at + '9 min') AND extract(epoch FROM claimed_at + '10 min') FROM idemq.jobs WHERE id = $id",
		't', 'is the time of the program, a little before it');
	sql($node, "SELECT idemq.alter_queue('q', job_timeout => '0')");

	# A runner that connects again sends its heartbeats at once.
	my $cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'idemq-work'";
	$id = enqueue('1');
	my $runner = runner('echo $$ >$T/beats; while [ ! -e $T/beaten ]; do sleep 0.1; done', '--once', '--lease', '10min');
	until_file('beats');
	my $deadline = sql($node, "SELECT deadline FROM idemq.running_jobs WHERE job_id = $id");
	wait_until($node, "SELECT count(*) = 2 FROM pg_stat_activity WHERE application_name = 'idemq-work'");
	is_sql($node, $cut, 2, 'the sessions of a runner end');
	is_soon($node, "SELECT deadline > '$deadline' FROM idemq.running_jobs WHERE job_id = $id", 'heartbeats keep a lease');
	open_gate('beaten');
	my ($status, $said) = ended($runner);
	is_job($node, $id, 'completed|1||', 'and the job is done');

	$id = enqueue('1');
	$runner = runner('echo $$ >$T/lost; sleep 1000 & wait', '--once', '--lease', '10min');
	my $pid = until_file('lost') + 0;
	is_sql($node, "SELECT idemq.cancel($id)", 'cancelled', 'a job is cancelled');
	sql($node, $cut);
	($status, $said) = ended($runner);
	like($said, qr/^idemq-work: q $id: the job (?:was|is being) cancelled, so the program is being stopped$/m, 'its runner says so');
	ok(!runs($pid), 'and its program is ended');
	is_job($node, $id, 'cancelled|1||', 'it stays cancelled');
}

# SIGTERM.
{
	my ($id, $status, $said) = enqueue('1');
	my $runner = runner('echo $$ >$T/drains; while [ ! -e $T/drained ]; do sleep 0.1; done', '-j', '2');

	until_file('drains');
	wait_until($node, 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep());
	wait_until($node, "SELECT count(*) = 1 FROM idemq.workers WHERE program = 'idemq-work' AND version <> '' AND worker LIKE 'idemq-work % $runner->{pid}'
		AND queues = '{q}' AND concurrency = 2 AND running = 1 AND jobs = ARRAY[$id] AND done = 0 AND state = 'here'");
	kill 'TERM', $runner->{pid};
	until_said($runner, qr/stopping: 1 programs have 30 s to finish/);
	my $next = enqueue('2');
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait(NULL%' AND " . asleep());
	open_gate('drained');
	($status, $said) = ended($runner);
	is($status, 0, 'a runner that was told to end ends with 0');
	is_sql($node, "SELECT running, done, state FROM idemq.workers WHERE worker LIKE '% $runner->{pid}'", '0|1|gone', 'and reports that it is stopping');
	is_job($node, $id, 'completed|1||', 'when its program has');
	is_job($node, $next, 'pending|0||', 'it has claimed no more');

	# meant to expire
	$runner = runner('echo $$ >$T/graced; trap "" TERM; while :; do sleep 0.1; done', '--grace', '100ms', '--kill-after', '100ms');
	my $pid = until_file('graced') + 0;
	kill 'TERM', $runner->{pid};
	($status, $said) = ended($runner);
	is($status, 0, 'when the grace is over, too');
	ok(!runs($pid), 'the program is ended');
	is_job($node, $next, 'pending|0||', 'the job is released, the attempt not counted');

	$runner = runner('echo $$ >$T/twice; sleep 1000 & wait', '--grace', '1h');
	until_file('twice');
	kill 'TERM', $runner->{pid};
	until_said($runner, qr/stopping/);
	kill 'TERM', $runner->{pid};
	($status) = ended($runner);
	is($status, 0, 'a second signal ends the grace');
	is_job($node, $next, 'pending|0||', 'the job is released');
	sql($node, "SELECT idemq.cancel($next)");
}

# kill -9 of the runner.
{
	sql($node, 'CREATE TABLE effects (id bigint, token bigint)');
	my $id = enqueue('1');
	my $effect = "psql -Xqd '$dsn' -c \"INSERT INTO effects VALUES (\$IDEMQ_ID, \$IDEMQ_TOKEN)\"";
	my $script = "if [ ! -e \$T/killed ]; then sleep 1000 & echo \$! \$\$ >\$T/killed; wait; fi; $effect";
	my $runner = runner($script, '--attach');
	my @pids = split ' ', until_file('killed');

	is(scalar(grep { runs($_) } @pids), 2, 'a program and its child run');
	kill 'KILL', $runner->{pid};
	$runner->{run}->finish;
	until_true('the program and its child are dead', sub { !grep { runs($_) } @pids });
	pass('they die with the runner');
	is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $id", 'with --attach the job is taken back at once');
	is(once($script), '', 'another runner does it');
	is_job($node, $id, 'completed|2||the worker\'s session ended', 'as the second attempt');
	is_sql($node, "SELECT count(*), bool_and(e.token = j.token) FROM effects e JOIN idemq.jobs j USING (id) WHERE id = $id", '1|t', 'whose effect there is, once');
}

# Waiting, a crash of the server, a server that is a standby for a while, a lost answer.
{
	my $script = 'echo $$ >$T/began.$IDEMQ_ID; while [ ! -e $T/gate ]; do sleep 0.1; done';
	my $runner = runner($script, '-v', '-j', '2');
	my $asleep = 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep();

	wait_until($node, $asleep);
	my $id = enqueue('1');
	until_file("began.$id");
	crash($node);
	until_said($runner, qr/^idemq-work: server: reconnected after [0-9.]+ s$/m);
	ok(runs(slurp_file("$tmp/began.$id") + 0), 'a program runs on while the server crashes');
	open_gate('gate');
	is_soon($node, "SELECT status = 'completed' AND attempt = 1 FROM idemq.jobs WHERE id = $id", 'and is committed when it is back');
	wait_until($node, $asleep);
	crash($node);
	$id = enqueue('2');
	is_soon($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $id", 'a runner that waits survives it as well');

	wait_until($node, $asleep);
	sql($node, 'ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()');
	wait_until($node, 'SHOW default_transaction_read_only', 'on');
	sql($node, "SET default_transaction_read_only = off; SELECT idemq.enqueue('q', '3', key => 'standby')");
	until_said($runner, qr/^idemq-work: server: .*session is read-only|^idemq-work: server: .*read-only transaction/m);
	sql($node, 'SET default_transaction_read_only = off; ALTER SYSTEM RESET default_transaction_read_only; SELECT pg_reload_conf()');
	is_soon($node, "SELECT status = 'completed' FROM idemq.job_by_key('q', 'standby')", 'a server that turns read-only is left, and found again');

	# The commit waits for a standby that is not there; its session is ended when it is done, and not yet answered.
	unlink "$tmp/gate";
	$id = enqueue('4');
	until_file("began.$id");
	sql($node, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()");
	wait_until($node, 'SHOW synchronous_standby_names', 'nobody');
	# Commits wait from when the checkpointer knows of it.
	sql($node, 'CHECKPOINT');
	open_gate('gate');
	my $committing = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%try_commit%'";
	wait_until($node, "SELECT count(*) = 1 $committing");
	sql($node, "SELECT pg_terminate_backend(pid) $committing");
	wait_until($node, "SELECT count(*) = 1 FROM idemq.jobs WHERE id = $id AND status = 'completed'");
	sql($node, 'ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()');
	until_said($runner, qr/^idemq-work: q $id: already_committed$/m);
	pass('a lost answer to a commit is asked for again');
	kill 'TERM', $runner->{pid};
	my ($status, $said) = ended($runner);
	is($status, 0, 'the runner ends');
	unlike($said, qr/lost \(|waiting until its lease expires/, 'and has lost nothing');
	is_sql($node, "SELECT string_agg(DISTINCT attempt::text, ',') FROM idemq.jobs WHERE id >= $id", '1', 'no attempt was repeated');
}

# A runner that sleeps is told to end: the server ends its wait, and nothing is cancelled.
{
	my $from = -s $node->logfile;
	my $runner = runner('true');

	wait_until($node, 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep());
	kill 'TERM', $runner->{pid};
	my ($status, $said) = ended($runner);
	is("$status $said", '0 ', 'a runner that sleeps ends');
	is_soon($node, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE ' . asleep(), 'with its sleep in the server');
	unlike(slurp_file($node->logfile, $from), qr/ERROR/, 'and no ERROR is in the log');
}

# A lease that is lost while its program works: the line says what has become of the job.
{
	# The runner waits as another role, so it is not told of ended attempts.  Otherwise, it would stop the programs at once.
	sql($node, "CREATE ROLE deaf LOGIN; SELECT idemq.grant_queue('q', 'deaf', 'claim')");
	my $runner = runner('echo 1 >$T/begun.$IDEMQ_ID; while [ ! -e $T/late ]; do sleep 0.1; done', '-j', '2', '--lease', '10min', '--wait-dsn', $node->connstr('postgres') . ' user=deaf');
	my ($cancelled, $dead) = map { sql($node, "SELECT id FROM idemq.enqueue('q', '1', max_attempts => 1)") } 1 .. 2;

	until_file("begun.$_") foreach $cancelled, $dead;
	# When the runner begins to wait, it looks after its attempts once.
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE usename = 'deaf' AND " . asleep());
	is_sql($node, "SELECT idemq.cancel($cancelled), idemq.heartbeat(id, token, lease => '1 ms') FROM idemq.jobs WHERE id = $dead", 'cancelled|current', 'a job is cancelled, and the lease of another ended'); # meant to expire
	is_soon($node, "SELECT status = 'dead' FROM idemq.jobs WHERE id = $dead", 'which was its last');
	open_gate('late');
	until_said($runner, qr/^idemq-work: q \d+: .*not committed.*\n(.*\n)*idemq-work: q \d+: .*not committed.*\n/m);
	kill 'TERM', $runner->{pid};
	my ($status, $said) = ended($runner);
	like($said, qr/^idemq-work: q $cancelled: the program succeeded, but the lease was lost, so the job was not committed \(stale\); the job is now cancelled$/m, 'it says that the job is cancelled');
	like($said, qr/^idemq-work: q $dead: the program succeeded, but the lease was lost, so the job was not committed \(stale\); the job is now dead \(lease expired\)$/m, 'it says that the job is dead, and why');
}

# Values that are large or deep, and their neighbours.
{
	my @ids = map { sql($node, "SELECT id FROM idemq.enqueue('q', $_)") } q('1'), q(repeat('9', 5000)::jsonb), q((repeat('[', 1500) || repeat(']', 1500))::jsonb), q('2');
	my $said = once('cat', '--result');

	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE id = ANY ('{@{[ join ',', @ids ]}}') AND status = 'completed' AND attempt = 1 AND result = payload", 4,
		'large numbers and deep arrays are passed on, and come back') or diag $said;
}

# Bytes that are no UTF-8, in a database whose encoding forbids none: a program gets them, and they hold up no other job.
{
	sql($node, q[CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C']);
	sql($node, q[CREATE EXTENSION idemq; SELECT idemq.create_queue('q')], 'bytes');
	sql($node, qq[SET client_encoding = SQL_ASCII; SELECT idemq.enqueue('q', convert_from('\\x22ff22', 'SQL_ASCII')::jsonb), idemq.enqueue('q', '"good"')], 'bytes');
	my ($status, $said) = ended(start_runner($node->connstr('bytes'), '--once', '--result', '--', 'cat'));
	is("$status $said", '0 ', 'a job with bytes that are no UTF-8, and its neighbour');
	is_sql($node, q[SELECT string_agg(encode(convert_to(status || ' ' || result::text, 'SQL_ASCII'), 'escape'), ', ' ORDER BY id) FROM idemq.jobs],
		'completed "\\377", completed "good"', 'are done', 'bytes');
}

# A database that has no idemq, and one that is not there.
{
	my $run = sub { my ($status, $said) = ended(start_runner(@_)); return "$status $said" };

	like($run->("$dsn dbname=template1", '--once', '--', 'true'), qr/^1 idemq-work: claim: database "template1" does not have idemq: run CREATE EXTENSION idemq in it$/, 'no extension');
	like($run->("$dsn dbname=nowhere", '--once', '--', 'true'), qr/^1 idemq-work: server: .*database "nowhere" does not exist$/, 'no database');
}

# A pooler in transaction mode, which is killed and started again in mid-job.
SKIP:
{
	skip 'no pgbouncer', 2 unless grep { -x "$_/pgbouncer" } split(/:/, $ENV{PATH});
	my ($start, $dir, $port) = pooler($node, default_pool_size => 3);
	my $pooler = $start->();
	my ($runner, $id);
	{
		local $dsn = "host=$dir port=$port dbname=postgres";
		$runner = runner('echo $$ >$T/pooled.$IDEMQ_ID; while [ ! -e $T/pool ]; do sleep 0.1; done');
		wait_until($node, 'SELECT count(*) = 1 FROM pg_stat_activity WHERE ' . asleep());
		$id = enqueue('5', '', '');
	}
	until_file("pooled.$id");
	$pooler->kill_kill;
	until_said($runner, qr/^idemq-work: server: /m);
	$pooler = $start->();
	until_said($runner, qr/^idemq-work: server: reconnected/m);
	open_gate('pool');
	is_soon($node, "SELECT status = 'completed' AND attempt = 1 FROM idemq.jobs WHERE id = $id", 'a pooler that ends takes no job with it');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
	$pooler->kill_kill;
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
done_testing();
