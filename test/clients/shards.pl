# Workers over the shards of a cluster: those of Python and of Node, and idemq-work.  Each goes through
# the same: jobs on four shards; one server dies while there is work, and comes back; one shard moves
# while an attempt is under way, which ends at the new place; SIGTERM.  Every effect is there once.
# expects in log: was terminated by signal

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use NodeClient;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $user = getpwuid($>);
my $files = 0;
my @settings = ('idemq.worker' => 'on', max_connections => 150, max_worker_processes => 20);

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;

# Shards 0, 1 and 2 are on one server, with the router; 3 is on the other one.
my $node = new_server('shards', @settings);
my $other = new_server('other', @settings);
my @shards;
my $generation = 0;

sub dsn { my ($server, $db) = @_; return 'host=' . $server->host . ' port=' . $server->port . " dbname=$db" }

# Until the table is as the shards say.
sub set_map
{
	my ($number, $state) = @_;

	sql($node, "SELECT cluster.set_shard_dsn($number, '" . dsn(@{ $shards[$number] }) . "')", 'router') if $state eq 'up';
	sql($node, "SELECT cluster.set_shard_state($number, '$state')", 'router');
	return;
}

sql($node, 'CREATE DATABASE router');
sql($node, q[CREATE SCHEMA cluster;
	CREATE TABLE cluster.shards (shard int PRIMARY KEY, dsn text NOT NULL, state text NOT NULL, version bigint NOT NULL);
	CREATE SEQUENCE cluster.map_version;
	CREATE FUNCTION cluster.map() RETURNS SETOF cluster.shards LANGUAGE sql AS 'SELECT * FROM cluster.shards';
	CREATE FUNCTION cluster.set_shard_dsn(int, text) RETURNS void LANGUAGE sql AS
		'INSERT INTO cluster.shards VALUES ($1, $2, ''up'', nextval(''cluster.map_version''))
			ON CONFLICT (shard) DO UPDATE SET dsn = $2, version = nextval(''cluster.map_version''); NOTIFY cluster_map';
	CREATE FUNCTION cluster.set_shard_state(int, text) RETURNS void LANGUAGE sql AS
		'UPDATE cluster.shards SET state = $2, version = nextval(''cluster.map_version'') WHERE shard = $1; NOTIFY cluster_map'], 'router');
foreach my $number (0 .. 3)
{
	my $server = $number == 3 ? $other : $node;

	$shards[$number] = [ $server, "s$number" ];
	sql($server, "CREATE DATABASE s$number");
	sql($server, q[CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '20 s');
		CREATE TABLE effects (key text, at text)], "s$number");
	set_map($number, 'up');
}

sub on_shard { my ($number, $query) = @_; return sql($shards[$number][0], $query, $shards[$number][1]) }

sub until_on { my ($number, $query) = @_; wait_until($shards[$number][0], $query, 't', $shards[$number][1]); return }

# Jobs of a shard, by their keys.
my @expected;

sub enqueue
{
	my ($number, $count, $name, $payload) = (@_, '{}');

	on_shard($number, "SELECT idemq.enqueue('q', '$payload', key => '$name.$number.' || g) FROM generate_series(1, $count) g");
	push @expected, map { "$name.$number.$_" } 1 .. $count;
	return;
}

sub until_done
{
	my ($number) = @_;

	until_on($number, q[SELECT NOT EXISTS (SELECT FROM idemq.jobs WHERE status <> 'completed')]);
	return;
}

# Fences the shard, copies it to another database of its server, and says so.
sub move
{
	my ($number) = @_;
	my ($server, $from) = @{ $shards[$number] };
	my $to = "s${number}_" . ++$generation;

	sql($server, "CREATE DATABASE $to");
	set_map($number, 'moving');
	on_shard($number, 'SELECT idemq.follow()');
	system_or_bail('sh', '-c', "pg_dump -d '@{[ dsn($server, $from) ]}' | psql -XAtq -v ON_ERROR_STOP=1 -d '@{[ dsn($server, $to) ]}' >&2");
	$shards[$number][1] = $to;
	set_map($number, 'up');
	return;
}

# A worker: { run, said, pid }.
sub start
{
	my ($env, @command) = @_;
	my $said = "$tmp/said." . ++$files;

	local @ENV{ 'T', keys %$env } = ($tmp, values %$env);
	my $run = IPC::Run::start([ @command ], '<', \undef, '>', $said, '2>&1', IPC::Run::timeout(300));
	return { run => $run, said => $said };
}

sub slurp_if { my ($file) = @_; return -e $file ? slurp_file($file) : '' }

sub keys_of_files { my %times; $times{$_}++ foreach split /\n/, slurp_if("$tmp/effects"); return %times }

# Everything that a worker is to get through.
sub goes_through
{
	my ($name, $outside, $start) = @_;
	my $gate = "gate.$name";

	@expected = ();
	enqueue($_, 20, $name) foreach 0 .. 3;
	my $worker = $start->();
	until_done($_) foreach 0 .. 3;
	# It sleeps on all of them, and is woken on each.
	until_on($_, 'SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND ' . asleep()) foreach 0 .. 3;
	enqueue($_, 1, "$name.woken") foreach 0 .. 3;
	until_done($_) foreach 0 .. 3;
	pass("$name: done on four shards");

	# One server is down: the others go on; it comes back.
	enqueue(3, 100, "$name.crash");
	$other->stop('immediate');
	enqueue($_, 20, "$name.down") foreach 0 .. 2;
	until_done($_) foreach 0 .. 2;
	pass("$name: goes on while a server is down");
	$other->start;
	enqueue(3, 20, "$name.back");
	until_done(3);
	pass("$name: and works for it when it is back");

	# A shard moves, with an attempt under way, and jobs that wait.
	enqueue(1, 1, $gate, qq[{"gate": "$gate"}]) if $outside;
	NodeClient::until_true("$gate began", sub { slurp_if("$tmp/began") =~ /^\Q$gate\E\.1\.1 1$/m }) if $outside;
	enqueue(1, 50, "$name.busy");
	move(1);
	enqueue(1, 5, "$name.moved");
	append_to_file("$tmp/$gate", "open\n");
	until_done(1);
	is(on_shard(1, "SELECT result FROM idemq.jobs WHERE key = '$gate.1.1'"), '{"attempt": 1}',
		"$name: the attempt that was under way has ended at the new place") if $outside;
	sql($shards[1][0], "DROP DATABASE $_ WITH (FORCE)")
	  foreach split /\n/, sql($shards[1][0], "SELECT datname FROM pg_database WHERE datname ~ '^s1' AND datname <> '$shards[1][1]'");

	$worker->{run}->signal('TERM');
	$worker->{run}->finish;
	is($worker->{run}->full_result(0), 0, "$name: it ends when it is told to") or diag slurp_file($worker->{said});
	my %times = $outside ? keys_of_files() : ();
	foreach my $number ($outside ? () : 0 .. 3)
	{
		$times{$_}++ foreach split /\n/, on_shard($number, 'SELECT key FROM effects');
	}
	my @wrong = map { "$_: " . ($times{$_} // 0) } grep { ($times{$_} // 0) != 1 } @expected;
	is("@wrong", '', "$name: " . scalar @expected . ' effects, each once') or diag slurp_file($worker->{said});
	return $worker;
}

my $router = dsn($node, 'router');
my %python = (ROUTER => "$router user=$user", OPTIONS => '{"concurrency": 3, "home": [0, 1]}');

my ($only) = $ENV{ONLY} // '';
sub wanted { my ($name) = @_; return $only eq '' || $only =~ /\b$name\b/ }

foreach my $kind (grep { wanted($_) } qw(sync async outside outside_async))
{
	goes_through($kind, scalar($kind =~ /outside/), sub { start({%python}, '/usr/bin/python3', "$here/shard_worker.py", $kind) });
}

if (wanted('work'))
{
	my $program = q{gate=$(sed -n 's/.*"gate": "\([^"]*\)".*/\1/p'); echo "$IDEMQ_KEY $IDEMQ_ATTEMPT" >>"$T/began"
		while [ -n "$gate" ] && [ ! -e "$T/$gate" ]; do sleep 0.02; done
		echo "$IDEMQ_KEY" >>"$T/effects"; echo "{\"attempt\": $IDEMQ_ATTEMPT}"};

	goes_through('work', 1, sub { start({}, 'idemq-work', "--cluster=$router", '--home=0,1', '-j', 3, '-q', 'q', '--result', '--', 'sh', '-c', $program) });
}

SKIP:
{
	skip 'no node-postgres', 1 unless $ENV{IDEMQ_NODE_MODULES};
	next unless wanted('node');
	packed();
	my $app = application('app', ['pg'], "$here/node_shards.mjs");
	my %connection = (host => $node->host, port => $node->port + 0, user => $user, database => 'router');
	my %node = (CONNECTION => encode_json(\%connection), OPTIONS => '{"concurrency": 3, "home": [0, 1]}');

	foreach my $kind (qw(run outside))
	{
		goes_through("node_$kind", $kind eq 'outside', sub { start({%node}, 'node', "$app/node_shards.mjs", $kind) });
	}
}

done_testing();
