# idemq-work --lines: a program that hangs is ended while other jobs wait behind it, and a lease is found lost by a heartbeat.
# slow: programs hang for 5 s, with other jobs behind them that must be done within that time
# asserts times
# at least 12 assertions

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
my $node = new_server('work_lines_slow', 'idemq.worker' => 'on');
my $dsn = $node->connstr('postgres');
# A job that fails is tried again in an hour, not in this test.
sql($node, "SELECT idemq.alter_queue('q', retry_base => '1 h', retry_max => '2 h')");

append_to_file("$tmp/program.pl", <<'EOP');
use strict;
use JSON::PP;
$| = 1;
while (my $line = <STDIN>)
{
	my $job = decode_json($line);
	my $hang = ref $job->{payload} ? $job->{payload}{hang} : 0;

	if ($hang) { open my $log, '>>', "$ENV{T}/hangs"; print $log "$$\n"; close $log; $SIG{TERM} = 'IGNORE' if $hang > 1; sleep 1000 while 1 }
	print qq({"id": "$job->{id}", "result": $job->{id}}\n);
}
EOP

sub runner { my (@options) = @_; return start_runner($dsn, @options, '--lines', '--', 'perl', "$tmp/program.pl") }
sub enqueue { my ($payload) = @_; $payload = encode_json($payload) if ref $payload; return sql($node, "SELECT id FROM idemq.enqueue('q', '$payload')") }

foreach ([ 1, 'that hangs' ], [ 2, 'that hangs, and does not hear', '--kill-after', '100ms' ])
{
	my ($hang, $name, @options) = @$_;
	my $id = enqueue({ hang => $hang });
	my @next = map { enqueue($_) } 1 .. 3;
	my ($status, $said) = ended(runner('--once', '--timeout', '5s', @options));

	is($status, 0, 'the runner ends with 0') or diag $said;
	is(sql($node, "SELECT status, attempt, last_error FROM idemq.jobs WHERE id = $id"), 'retrying|1|stopped after 5 s (--timeout)', "a program $name");
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE id = ANY('{" . join(',', @next) . "}') AND status = 'completed' AND attempt = 1", 3, "$name: the next jobs are done");
	cmp_ok(length($said), '<', 10_000, "$name: little is said");
	sql($node, "SELECT idemq.cancel($id)");
}

{
	unlink "$tmp/hangs";
	my $id = enqueue({ hang => 1 });
	my $runner = runner('--once', '--lease', '3s');
	my $pid = until_file('hangs') + 0;
	is_sql($node, "SELECT idemq.cancel($id)", 'cancelled', 'a job is cancelled');
	until_said($runner, qr/^idemq-work: q $id: the job (?:was|is being) cancelled, so the program is being stopped$/m);
	until_true('its program is ended', sub { !runs($pid) });
	is_job($node, $id, 'cancelled|1||', 'it stays cancelled');
	is((ended($runner))[0], 0, 'the runner ends');
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
done_testing();
