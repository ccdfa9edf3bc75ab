# The Go client (clients/go): go vet, staticcheck and go test under the race detector.  Its tests kill workers and sessions, cut and silence
# connections, and count every effect.
# expects in log: terminating connection due to administrator command
# slow: fetches Go modules; kills, leases and pauses in real time
# takes long
# at least 12 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $with_go = "$ENV{IDEMQ_SOURCE}/script/with-go";
my $client = "$tmp/go";

# A command in a copy of the client; its status and its output.
sub go
{
	my (@command) = @_;

	my $out = qx(cd $client && $with_go @command 2>&1);
	return ($?, $out);
}

plan skip_all => 'no Go' if system("$with_go go version") != 0;
system('cp', '-R', "$ENV{IDEMQ_SOURCE}/clients/go", $client) == 0 or die 'cp';
my ($status, $out) = go('go', 'mod', 'download');
plan skip_all => "the modules cannot be fetched: $out" if $status;

my $node = new_server('node', 'idemq.worker' => 'on', max_connections => 200);
sql($node, "CREATE ROLE tester SUPERUSER LOGIN; SELECT idemq.create_queue('other')");
delete $ENV{PGAPPNAME}; # the tests find the sessions of a worker by the name that it gives them
$ENV{IDEMQ_TEST} = sprintf 'host=%s port=%d dbname=postgres user=%s', $node->host, $node->port, scalar getpwuid($>);

# Starts tests, whose output is in a file; returns their process.
sub start_tests
{
	my ($log, @arguments) = @_;

	return IPC::Run::start([ $with_go, 'go', '-C', $client, 'test', '-race', '-v', '-count=1', '-timeout=15m', @arguments, './...' ],
		'<', \undef, '>&', "$tmp/$log");
}

# Waits for tests, of which at least this many must pass.
sub passes
{
	my ($least, $name, $log, $tests) = @_;

	$tests->finish;
	my ($status, $out) = ($tests->result(0), slurp_file("$tmp/$log"));
	my @passed = $out =~ /^--- PASS: (\w+)/mg;

	is($status, 0, $name) or diag(join "\n", grep { !/^\s*(=== |--- PASS)/ } split /\n/, substr $out, -20_000);
	cmp_ok(scalar @passed, '>=', $least, "$name: the tests ran");
	note("figure: $name: " . join ', ', $out =~ /^--- PASS: (\w+ \(\d\d[\d.]*s\))/mg);
	return;
}

($status, $out) = go('gofmt', '-l', '.');
is($status . $out, '0', 'gofmt');
($status, $out) = go('go', 'vet', './...');
is($status . $out, '0', 'go vet');
SKIP: {
	# The latest one that this Go can build.
	foreach my $version ('latest', 'v0.6.1')
	{
		($status, $out) = go("env GOBIN=$tmp/bin", 'go', 'install', "honnef.co/go/tools/cmd/staticcheck\@$version");
		last if $status == 0;
	}
	skip "staticcheck cannot be fetched: $out", 1 if $status;
	($status, $out) = go("$tmp/bin/staticcheck", './...');
	is($status . $out, '0', 'staticcheck');
}
# The programs of the manual.
{
	my $page = slurp_file("$ENV{IDEMQ_SOURCE}/doc/usage/go.md");
	my $n = 0;
	while ($page =~ /^```go\n(.*?)^```/gms)
	{
		mkdir "$client/manual" . ++$n;
		append_to_file("$client/manual$n/program.go", $1);
	}
	($status, $out) = go('go', 'vet', './manual1', './manual2');
	is($status . $out, '0', 'the programs of the manual compile');
	system('rm', '-rf', "$client/manual1", "$client/manual2");
}
# Some of the tests also through a pooler in transaction mode, in a database of their own, because most tests wait most of the time.
$node->safe_psql('postgres', 'CREATE DATABASE pooled');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h'), idemq.create_queue('other')", 'pooled');
my ($start, $dir, $port) = pooler($node, default_pool_size => 20);
my $pooler = $start->();
my $direct = start_tests('direct.log');
my $pooled;
{
	local $ENV{IDEMQ_TEST} = "host=$dir port=$port dbname=pooled user=postgres sslmode=disable";
	local $ENV{IDEMQ_TEST_POOLED} = 1;
	$pooled = start_tests('pooled.log', '-run', 'TestEffect|TestOutside|TestBatch|TestSerialization|TestTransaction|TestSteps|TestCheckpoints|TestEvents|TestDrain|TestKinds');
}
passes(30, 'go test -race', 'direct.log', $direct);
passes(8, 'through a pooler', 'pooled.log', $pooled);
# pgbouncer before 1.21 ends if the connection of a cancel request is closed before the request has been answered.
unlike(slurp_file("$dir/log"), qr/\(nouser\).*unexpected eof|FATAL/, 'no cancel request is cut off');
$pooler->kill_kill;
# The package for OpenTelemetry, which is a module of its own.
SKIP: {
	($status, $out) = go('go', '-C', 'otelidemq', 'mod', 'download');
	skip "the modules of OpenTelemetry cannot be fetched: $out", 1 if $status;
	($status, $out) = go('go', '-C', 'otelidemq', 'vet', './...');
	($status, $out) = go('go', '-C', 'otelidemq', 'test', '-race', '-v', '-count=1', './...') if $status == 0;
	ok($status == 0 && $out =~ /^--- PASS: TestOneTrace/m, 'otelidemq') or diag($out);
}
is(sql($node, "SELECT count(*) FROM idemq.check() AS c WHERE c::text NOT LIKE '%steps.unknown%'", $_), 0, "every invariant holds in $_") foreach qw(postgres pooled);

$node->stop;
done_testing();
