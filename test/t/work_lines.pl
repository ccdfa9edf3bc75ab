# idemq-work --lines: what a program that stays is given, what its lines mean, and what happens to it when it dies, hangs,
# floods, or says what it should not.  work_lines_slow has programs that hang with other jobs behind them.
# at least 178 assertions

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
my $node = new_server('work_lines', 'idemq.worker' => 'on');
# Its sessions can be found, to be cut.
my $dsn = $node->connstr('postgres') . ' application_name=idemq-work';
# A job that fails is tried again in an hour, not in this test.
sql($node, "SELECT idemq.alter_queue('q', retry_base => '1 h', retry_max => '2 h')");

# A program that does what a payload says: it prints "say", with %s for the id and %0 for a NUL.
append_to_file("$tmp/program.pl", <<'EOP');
use strict;
use JSON::PP;
use POSIX ();
$| = 1;
open my $log, '>>', "$ENV{T}/given";
$log->autoflush;
print $log "start $$\n";
while (my $line = <STDIN>)
{
	print $log $line;
	# JSON::PP would take seconds for a long line.
	my $job = length $line < 2**20 ? decode_json($line) : { id => $line =~ /^\{"id" : "(\d+)"/, payload => { say => '{"id": "%s", "result": "%long"}' } };
	my $do = ref $job->{payload} eq 'HASH' ? $job->{payload} : {};
	my $id = $job->{id};

	die "it is broken\n" if $do->{die};
	if ($do->{close}) { close STDOUT; sleep 1000 }
	if ($do->{deaf})
	{
		print qq({"id": "$id"}\n);
		select my $in = "\1", undef, undef, undef if $do->{deaf} > 1;
		close STDIN;
		sleep 1000;
	}
	if ($do->{hang}) { print $log "hangs $$\n"; $SIG{TERM} = 'IGNORE' if $do->{hang} > 1; sleep 1000 while 1 }
	if ($do->{flood}) { print $do->{flood} x 2**20 for 1 .. 1024; exit }
	if ($do->{leave} && fork == 0) { POSIX::setsid(); close $log; sleep 1 until -e "$ENV{T}/left"; exit }
	exit 3 if $do->{leave};
	print $log "waits\n" if $do->{gate};
	if ($do->{gate}) { select undef, undef, undef, 0.05 until -e "$ENV{T}/$do->{gate}" }
	my $say = $do->{say} // '{"id": "%s", "result": ' . $id . '}';
	$say =~ s/%s/$id/g;
	$say =~ s/%0/\0/g;
	$say =~ s/%long/'y' x 16_000_000/e;
	print "$say\n";
}
print $log "end $$\n";
EOP

sub runner { my (@options) = @_; return start_runner($dsn, @options, '--lines', '--', 'perl', "$tmp/program.pl") }

sub once
{
	unlink "$tmp/given";
	my ($status, $said) = ended(runner('--once', @_));

	is($status, 0, 'the runner ends with 0') or diag $said;
	return $said;
}

sub enqueue
{
	my ($payload, $more) = (@_, '');

	$payload = encode_json($payload) if ref $payload;
	$payload =~ s/'/''/g;
	return sql($node, "SELECT id FROM idemq.enqueue('q', '$payload'$more)");
}

sub given { return -e "$tmp/given" ? slurp_file("$tmp/given") : '' }

# What a program is given.
{
	my $id = enqueue('{"text": "a\nb\u2028é", "number": 123456789012345678901234567890.50}', q(, key => 'k 1', kind => 'mail', headers => '{"h": 1}'));
	is(once('--timeout', '1000'), '', 'nothing is said of a success');
	my ($first, $line, @rest) = split /\n/, given();
	like($first, qr/^start/, 'a program is started');
	like($rest[0], qr/^end/, 'and its stdin is closed');
	my $job = decode_json($line);
	is_sql($node, "SELECT token FROM idemq.jobs WHERE id = $id", $job->{token}, 'the token');
	like($line, qr/"id" : "$id", "token" : "\d+", .*123456789012345678901234567890\.50/, 'ids are strings, and numbers are what they were');
	is("@$job{qw(queue key kind attempt max_attempts)} $job->{headers}{h}", "q k 1 mail 1 20 1", 'the attempt');
	is($job->{checkpoint}, undef, 'no checkpoint');
	my $claimed = sql($node, "SELECT floor(extract(epoch FROM claimed_at)) FROM idemq.jobs WHERE id = $id");
	ok($job->{deadline} >= $claimed + 999 && $job->{deadline} <= time + 1001, 'and when it will be ended');
	is($job->{payload}{text}, "a\nb\x{2028}\x{e9}", 'the payload');
	is_job($node, $id, "completed|1|$id|", 'its result is stored');

	my @ids = map { enqueue($_) } 1 .. 5;
	is(once(), '', 'five more');
	is(scalar(() = given() =~ /^start/mg), 1, 'are for one program');
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE id = ANY('{" . join(',', @ids) . "}') AND status = 'completed' AND result #>> '{}' = id::text", 5, 'each with its result');
	sql($node, "SELECT idemq.enqueue('q', to_jsonb(i), key => 'four-' || i) FROM generate_series(1, 200) i");
	is(once('-j', '4'), '', '200 more');
	is_sql($node, "SELECT count(*), sum(attempt) FROM idemq.jobs WHERE key LIKE 'four-%' AND status = 'completed' AND result #>> '{}' = id::text", '200|200', 'for four');
}

# What its lines mean.
foreach (
	[ '{"id": "%s"}', 'completed|1||', qr/^$/, 'no result' ],
	[ '{"id": "%s", "result": null}', 'completed|1||', qr/^$/, 'a result that is null' ],
	[ '{"result": {"n": 123456789012345678901234567890.10}, "id": "%s"}', 'completed|1|{"n": 123456789012345678901234567890.10}|', qr/^$/, 'a number with all its digits' ],
	[ "one line of a log\n\n [2]\n{\"id\": \"%s\", \"result\": 1}", 'completed|1|1|', qr/^idemq-work: perl 1: one line of a log\nidemq-work: perl 1:  \[2\]\n$/, 'a log' ],
	[ '{"id": "%s", "error": "no such customer"}', 'retrying|1||no such customer', qr/attempt 1 of 20: retrying: no such customer/, 'an error' ],
	[ '{"id": "%s", "error": {"code": 7}, "retry_in": "5min"}', 'retrying|1||{"code": 7}', qr/retrying/, 'a delay', [ 4, 6 ] ],
	[ '{"id": "%s", "error": "slowly", "retry_in": 300}', 'retrying|1||slowly', qr/retrying/, 'a delay in seconds', [ 4, 6 ] ],
	[ '{"id": "%s", "error": "x", "retry_in": "soon"}', 'retrying|1||x', qr/"retry_in": "soon" is not a valid time/, 'a delay that is none' ],
	[ '{"id": "%s", "error": "no such address", "dead": true}', 'dead|1||no such address', qr/: dead: no such address/, 'dead' ],
	[ '{"id": "%s", "dead": true}', 'dead|1||', qr/: dead:$/, 'dead, without a word' ],
	[ '{"id": "%s", "later": true}', 'pending|0||', qr/^$/, 'later', [ 0, 2 ] ],
	[ '{"id": "%s", "later": "soon"}', 'pending|0||', qr/"later": "soon" is not a valid time/, 'later, at no time', [ 0, 2 ] ],
	[ '{"id": "%s", "later": "5min"}', 'pending|0||', qr/^$/, 'later, by then', [ 4, 6 ] ],
	[ '{"id": "%s", "later": false, "error": null, "result": 1}', 'completed|1|1|', qr/^$/, 'neither later nor an error' ],
	[ '{"id": "%s", "error": "€ \ud83d\ude00"}', "retrying|1||\x{20ac} \x{1f600}", qr/retrying/, 'an error in other letters' ],
	[ '{"id": "%s", "result": 1', 'retrying|1||', qr/retrying: the program's line is not JSON/, 'a line that is no JSON' ],
	[ '{"id": "%s", "result": "\u0000"}', 'retrying|1||', qr/retrying: the program's line is not JSON/, 'JSON that jsonb cannot hold' ],
	[ '{"id": "%s", "result": "%0"}', 'retrying|1||', qr/retrying: the program's line contains a NUL byte/, 'a NUL' ],
	[ '{"id": "7", "result": 1}', 'retrying|1||the program has responded with another id: {"id": "7", "result": 1} (a line on stdout that begins with { is a response, so write logs to stderr)', qr/responded with another id/, 'an id that it has not' ],
	[ '{"level": 30, "msg": "a line of a log"}', 'retrying|1||the program has responded without an id: {"level": 30, "msg": "a line of a log"} (a line on stdout that begins with { is a response, so write logs to stderr)', qr/write logs to stderr/, 'a log in JSON' ],
	# What no text can hold is a question mark, and the rest of an error is kept.
	[ '{"id": "%s", "error": "a \\u0000 \ud83d b \\\\u0000 \ud83d\ude00", "dead": true}', "dead|1||a ? ? b \\u0000 \x{1f600}", qr/: dead: a \? \? b/, 'an error with what no text can hold' ],
	[ "{\"id\": \"%s\", \"error\": \"a \xff \xc3\xbc b\"}", "retrying|1||a ? \x{fc} b", qr/retrying: a \? /, 'an error that is not UTF-8' ],
	[ '{"result": 1}', 'retrying|1||the program has responded without an id: {"result": 1} (a line on stdout that begins with { is a response, so write logs to stderr)', qr/responded without an id/, 'no id' ])
{
	my ($say, $expected, $said, $name, $minutes) = @$_;
	my $id = enqueue({ say => $say });
	my $next = enqueue('1');

	like(join('', map { /perl 1: (?:the program has|exit|ended)/ ? '' : "$_\n" } split /\n/, once()), $said, "$name: said");
	utf8::encode($expected);
	is(sql($node, "SELECT status, attempt, result, CASE WHEN '$expected' LIKE '%||' AND status = 'retrying' THEN '' ELSE last_error END FROM idemq.jobs WHERE id = $id"), $expected, $name);
	is_sql($node, "SELECT ready_at - (SELECT max(ended_at) FROM idemq.attempts WHERE job_id = id) BETWEEN '$minutes->[0] min' AND '$minutes->[1] min'
		FROM idemq.jobs WHERE id = $id", 't', "$name: then") if $minutes;
	is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $next", 'completed|1', "$name: the next job is done");
	sql($node, "SELECT idemq.cancel($id)");
}

# Long numbers and deep arrays, as payloads and as results: the program is given them, and what cannot be stored fails its own job.
{
	my @ids = map { sql($node, "SELECT id FROM idemq.enqueue('q', $_)") } q('1'), q(repeat('9', 5000)::jsonb), q((repeat('[', 1500) || repeat(']', 1500))::jsonb), q('2');
	my $answers = q($| = 1; while (<STDIN>) { print qq({"id": "$1"}\n) if /"id" : "(\d+)"/ });

	is_deeply([ ended(start_runner($dsn, '--once', '-j', '2', '--lines', '--', 'perl', '-e', $answers)) ], [ 0, '' ], 'a program that does not read the payload');
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE id = ANY ('{@{[ join ',', @ids ]}}') AND status = 'completed' AND attempt = 1", 4, 'long and deep payloads, and their neighbours');
	my @back = map { enqueue($_) } { say => '{"id": "%s", "result": ' . '[' x 1500 . ']' x 1500 . '}' }, { say => '{"id": "%s", "result": ' . '[' x 200_000 . ']' x 200_000 . '}' }, 3;

	once('-j', '2', '--max-output', '1000000');
	is_sql($node, "SELECT string_agg(status || ' ' || attempt || ' ' || coalesce(length(result::text)::text, left(last_error, 40)), ', ' ORDER BY id) FROM idemq.jobs WHERE id = ANY ('{@{[ join ',', @back ]}}')",
		"completed 1 3000, retrying 1 the program's line is not JSON that the , completed 1 14", 'a result that is too deep fails its own job');
	sql($node, "SELECT idemq.cancel($back[1])");
}

# A checkpoint goes with what is to be done again, and comes with the next attempt.
{
	my $id = enqueue({ say => '{"id": "%s", "later": 0, "checkpoint": {"at": 7}}' });
	my $runner = runner();
	until_true('it is given again', sub { given() =~ /"checkpoint" : \{"at": 7\}/ });
	sql($node, "SELECT idemq.cancel($id)");
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
	pass('a checkpoint is stored');
}

# What programs do that are broken.
foreach (
	[ { die => 1 }, '255: it is broken', 'exit status', 'that dies' ],
	# meant to expire
	[ { close => 1 }, 'the program has closed its stdout', '', 'that closes its stdout', '--kill-after', '200ms' ],
	[ { leave => 1 }, '3', 'exit status', 'that leaves a child the pipe' ],
	[ { flood => 'x' }, '0', 'exit status', 'that prints 1 GB without the end of a line' ],
	[ { flood => '{' }, 'the program\'s line is longer than --max-output', '', 'that answers with 1 GB' ])
{
	my ($payload, $error, $what, $name, @options) = @$_;
	my $id = enqueue($payload);
	my @next = map { enqueue($_) } 1 .. 3;
	my $said = once(@options);

	$error = "exit status $error" if $what;
	is(sql($node, "SELECT status, attempt, left(last_error, 60) FROM idemq.jobs WHERE id = $id"), "retrying|1|$error", "a program $name");
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE id = ANY('{" . join(',', @next) . "}') AND status = 'completed' AND attempt = 1", 3, "$name: the next jobs are done");
	cmp_ok(length($said), '<', 10_000, "$name: little is said");
	sql($node, "SELECT idemq.cancel($id)");
	append_to_file("$tmp/left", 'x') if $payload->{leave};
}

# One that hangs is ended at its time, and the next one does the next jobs.
foreach my $deaf (1, 2)
{
	my $id = enqueue({ hang => $deaf });

	# meant to expire
	my $said = once('--timeout', '300ms', '--kill-after', '100ms');
	is(sql($node, "SELECT status, attempt, last_error FROM idemq.jobs WHERE id = $id"), 'retrying|1|stopped after 0.3 s (--timeout)', "a program that hangs, $deaf");
	cmp_ok(length($said), '<', 10_000, "a program that hangs, $deaf: little is said");
	sql($node, "SELECT idemq.cancel($id)");
	$id = enqueue('1');
	once();
	is_job($node, $id, "completed|1|$id|", "a program that hangs, $deaf: the next job is done");
}

# A program that closes its stdin hears of no job: 2, when the next one lies in the pipe.
foreach (1, 2)
{
	my @ids = map { enqueue($_) } { deaf => $_ }, 1, 2;
	# meant to expire
	once('--kill-after', '200ms', '--timeout', '600s');
	is_job($node, $ids[0], 'completed|1||', "what it had before is done, $_");
	is_job($node, $ids[1], 'retrying|1||the program has closed its stdin', "the next one has failed, $_");
	is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $ids[2]", 'completed|1', "the one after it is done, $_");
	sql($node, "SELECT idemq.cancel($ids[1])");
}

# One that answers before it has read the end of its line: the next line begins after that.
append_to_file("$tmp/early.pl", <<'EOP');
$| = 1;
my $text = '';
while (sysread STDIN, $text, 65536, length $text)
{
	while ($text =~ /^\{"id" : "(\d+)"/)
	{
		print qq({"id": "$1"}\n) unless $answered{$1}++;
		select undef, undef, undef, 0.05 until -e "$ENV{T}/read";
		last unless $text =~ s/^[^\n]*\n//;
	}
	exit 7 if $text =~ /^[^{]/;
}
EOP
{
	my @ids = (sql($node, q(SELECT id FROM idemq.enqueue('q', to_jsonb(repeat('x', 3000000))))), enqueue(1));
	my $runner = start_runner($dsn, '--timeout', '60s', '--lines', '--', 'perl', "$tmp/early.pl");
	is_soon($node, "SELECT status = 'completed' FROM idemq.jobs WHERE id = $ids[0]", 'an answer before the end of its line');
	is_soon($node, "SELECT status = 'running' FROM idemq.jobs WHERE id = $ids[1]", 'the next job is given');
	open_gate('read');
	is_soon($node, "SELECT status = 'completed' AND attempt = 1 FROM idemq.jobs WHERE id = $ids[1]", 'and understood');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
}

# Nothing else is held up by a program that dies with each job.
{
	my @dies = map { enqueue({ die => 1 }) } 1 .. 4;
	my @does = map { enqueue(1) } 1 .. 20;
	once('-j', '2');
	is_sql($node, "SELECT count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status = 'retrying') FROM idemq.jobs WHERE id >= $dies[0]", '20|4', 'each job has its own end');
	sql($node, "SELECT idemq.cancel(id) FROM unnest('{" . join(',', @dies) . "}'::bigint[]) id");
}

# A line of 16 MB, there and back.
{
	sql($node, q(SELECT idemq.enqueue('q', jsonb_build_object('text', repeat('x', 16000000)), key => 'long')));
	is(once('--max-output', '17000000'), '', 'a long line');
	is_sql($node, "SELECT status, length(result #>> '{}') FROM idemq.job_by_key('q', 'long')", 'completed|16000000', 'and a long answer');
}

# A lease that is lost, SIGTERM, kill -9.
{
	my $id = enqueue({ hang => 1 });
	unlink "$tmp/given";
	my $runner = runner('--lease', '10min');
	until_true('it hangs', sub { given() =~ /hangs/ });
	my ($pid) = given() =~ /hangs (\d+)/;
	is_sql($node, "SELECT idemq.cancel($id)", 'cancelled', 'a job is cancelled');
	# A runner that connects again sends its heartbeats at once.
	sql($node, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'idemq-work'");
	until_said($runner, qr/^idemq-work: q $id: the job (?:was|is being) cancelled, so the program is being stopped$/m);
	until_true('its program is ended', sub { !runs($pid) });
	is_job($node, $id, 'cancelled|1||', 'it stays cancelled');
	$id = enqueue({ gate => 'answer' });
	until_true('another program has the next job', sub { given() =~ /waits/ });
	kill 'TERM', $runner->{pid};
	until_said($runner, qr/stopping: 1 programs have 30 s to finish/);
	open_gate('answer');
	my ($status, $said) = ended($runner);
	is($status, 0, 'a runner that was told to end ends with 0');
	is_job($node, $id, "completed|1|$id|", 'after the answer that is owed');
	like(given(), qr/end \d+\n$/, 'the program has seen the end of its stdin');

	unlink "$tmp/given";
	$id = enqueue({ hang => 1 });
	# meant to expire
	$runner = runner('--grace', '100ms');
	until_true('it hangs', sub { given() =~ /hangs/ });
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'when the grace is over, too');
	is_job($node, $id, 'pending|0||', 'the job is given back');

	unlink "$tmp/given";
	$runner = runner('--attach');
	until_true('it hangs', sub { given() =~ /hangs/ });
	($pid) = given() =~ /hangs (\d+)/;
	kill 'KILL', $runner->{pid};
	$runner->{run}->finish;
	until_true('a program dies with its runner', sub { !runs($pid) });
	is_soon($node, "SELECT status = 'pending' FROM idemq.jobs WHERE id = $id", 'its job is taken back');
	sql($node, "SELECT idemq.cancel($id)");
}

# A crash of the server while a program is at work.
{
	my $runner = runner();
	unlink "$tmp/answer", "$tmp/given";
	my $id = enqueue({ gate => 'answer' });
	until_true('it waits', sub { given() =~ /waits/ });
	crash($node);
	until_said($runner, qr/^idemq-work: server: /m);
	open_gate('answer');
	is_soon($node, "SELECT status = 'completed' AND attempt = 1 FROM idemq.jobs WHERE id = $id", 'it is committed when the server is back');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
done_testing();
