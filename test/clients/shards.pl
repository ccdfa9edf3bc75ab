# Workers over the shards of a cluster: those of Python and of Node, and idemq-work.  Each goes through
# the same: jobs on four shards; one server dies while there is work, and comes back; one shard moves
# while an attempt is under way, which ends at the new place; SIGTERM.  Every effect is there once.
# expects in log: was terminated by signal
# takes long
# slow: needs PL/Proxy; several servers, leases of 2 s
# at least 49 assertions

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
my @settings = ('idemq.worker' => 'on', max_connections => 150, max_worker_processes => 30, max_replication_slots => 10,
	max_wal_senders => 20, max_logical_replication_workers => 8);

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;

# Shards 0, 1 and 2 are on one server, with the router; 3 is on the other one.
my $node = new_server('shards', @settings);
my $other = new_server('other', @settings);
if (sql($node, "SELECT count(*) FROM pg_available_extensions WHERE name = 'plproxy'") eq '0')
{
	$_->stop foreach $node, $other;
	plan skip_all => 'no plproxy';
}
my @shards;
my $generation = 0;

sub dsn { my ($server, $db) = @_; return 'host=' . $server->host . ' port=' . $server->port . " dbname=$db" }

sql($node, 'CREATE DATABASE router');
sql($node, "CREATE EXTENSION plproxy; CREATE EXTENSION idemq_cluster; SELECT cluster.init(4);
	CREATE USER MAPPING FOR CURRENT_USER SERVER idemq_cluster OPTIONS (user '$user')", 'router');
foreach my $number (0 .. 3)
{
	my $server = $number == 3 ? $other : $node;

	$shards[$number] = [ $server, "s$number" ];
	sql($server, "CREATE DATABASE s$number");
	# No unique key: an effect that happens twice would show.
	sql($server, qq[CREATE EXTENSION idemq; SELECT idemq.set_shard($number, 4);
		CREATE TABLE effects (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), key text, at text)], "s$number");
	sql($node, "SELECT cluster.set_shard_dsn($number, '" . dsn($server, "s$number") . "')", 'router');
}

# SQL in the router; that all shards have done it.
sub routed { my ($query) = @_; return sql($node, $query, 'router') }

sub on_all
{
	my ($call) = @_;

	is(routed("SELECT count(*) FILTER (WHERE error IS NULL), string_agg(error, ' ') FROM cluster.$call"), '4|', $call);
	return;
}

on_all("create_queue('q', lease => '20 s')");
# What a key begins with, to be on this shard.
my @tags = split /\n/, routed('SELECT DISTINCT ON (cluster.shard_of_key(g::text)) g FROM generate_series(1, 100) g ORDER BY cluster.shard_of_key(g::text)');
is(scalar @tags, 4, 'a tag for each shard');

sub on_shard { my ($number, $query) = @_; return sql($shards[$number][0], $query, $shards[$number][1]) }

sub until_on { my ($number, $query) = @_; wait_until($shards[$number][0], $query, 't', $shards[$number][1]); return }

# Jobs of a shard, by their keys.
my @expected;

sub enqueue
{
	my ($number, $count, $name, $payload) = (@_, '{}');

	my $errors = routed("SELECT count(error) FROM cluster.enqueue_many('q', array_fill('$payload'::jsonb, ARRAY[$count]),
		keys => (SELECT array_agg('{$tags[$number]}$name.' || g) FROM generate_series(1, $count) g))");
	is($errors, 0, "$count jobs for shard $number") if $errors;
	push @expected, map { "{$tags[$number]}$name.$_" } 1 .. $count;
	return;
}

sub until_done
{
	my ($number) = @_;

	until_on($number, q[SELECT NOT EXISTS (SELECT FROM idemq.jobs WHERE status <> 'completed')]);
	return;
}

# Moves the shard to another database of its server, under whatever goes on.
sub move
{
	my ($number) = @_;
	my ($server) = @{ $shards[$number] };
	my $to = "s${number}_" . ++$generation;

	sql($server, "CREATE DATABASE $to");
	command_ok([ 'idemq-move-shard', '--router', dsn($node, 'router'), '--shard', $number, '--to', dsn($server, $to) ], "shard $number moves");
	$shards[$number][1] = $to;
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
	NodeClient::until_true("$gate began", sub { slurp_if("$tmp/began") =~ /^\Q{$tags[1]}$gate.1\E 1$/m }) if $outside;
	enqueue(1, 50, "$name.busy");
	move(1);
	enqueue(1, 5, "$name.moved");
	append_to_file("$tmp/$gate", "open\n");
	until_done(1);
	is(on_shard(1, "SELECT result FROM idemq.jobs WHERE key = '{$tags[1]}$gate.1'"), '{"attempt": 1}',
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

# ONLY='async outside': these parts, of which two are left out otherwise, since others go the same ways.
my $only = $ENV{ONLY} || 'sync outside_async work node outbox limits';
sub wanted { my ($name) = @_; return $only =~ /\b$name\b/ }

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
	skip 'no npm packages', 1 unless $ENV{IDEMQ_NODE_MODULES};
	next unless wanted('node');
	packed();
	my $app = application('app', [], "$here/node_shards.mjs");
	my %connection = (host => $node->host, port => $node->port + 0, user => $user, database => 'router');
	my %node = (CONNECTION => encode_json(\%connection), OPTIONS => '{"concurrency": 3, "home": [0, 1]}');

	foreach my $kind (qw(run outside))
	{
		goes_through("node_$kind", $kind eq 'outside', sub { start({%node}, 'node', "$app/node_shards.mjs", $kind) });
	}
}

# The outbox: a forwarder between two databases (outbox.py).
if (wanted('outbox'))
{
	my %env = (DSN => dsn($node, 'shop') . " user=$user", ROUTER => "$router user=$user");
	my $forwarder = sub { start({%env}, '/usr/bin/python3', "$here/outbox.py") };
	my $kill = sub { $_[0]{run}->signal('KILL'); $_[0]{run}->finish; is($_[0]{run}->full_result(0) & 127, 9, 'the forwarder is killed'); };
	my $forwarded = "SELECT count(*) FROM idemq.jobs WHERE status = 'completed'";

	on_all("create_queue('mail')");
	sql($node, 'CREATE DATABASE shop');
	sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('outbox', lease => '1 min', retry_max => '1 s', max_attempts => 1000)", 'shop');

	# Between the commit there and the commit here.  The key is taken in the cluster by a transaction that
	# is open, until a lock keeps the commit of the outbox; then the key is free.
	my $id = sql($node, q[SELECT id FROM idemq.enqueue('outbox', '{"order": 1}')], 'shop');
	my $shard = routed("SELECT cluster.shard_of_key('shop-$id')");
	my $taker = session($shards[$shard][0], $shards[$shard][1]);
	my $locker = session($node, 'shop');

	$taker->query_safe("BEGIN; SELECT idemq.enqueue('mail', '{}', key => 'shop-$id')");
	my $first = $forwarder->();
	until_on($shard, q[SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock']);
	$locker->query_safe("BEGIN; SELECT FROM idemq.jobs WHERE id = $id FOR UPDATE");
	$taker->query_safe('ROLLBACK');
	until_on($shard, qq[SELECT count(*) = 1 FROM idemq.jobs WHERE key = 'shop-$id']);
	wait_until($node, q[SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = 'shop' AND wait_event_type = 'Lock'], 't', 'shop');
	$kill->($first);
	# Its session would go on with what it was asked for.
	sql($node, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = 'shop' AND wait_event_type = 'Lock'");
	$locker->query_safe('ROLLBACK');
	# Its lease ends now, and not before, however long a busy machine takes.
	is_sql($node, "SELECT idemq.heartbeat(id, token, lease => '1 ms') FROM idemq.jobs WHERE id = $id", 'current', 'it has had the job', 'shop');
	sql($node, q[SELECT idemq.alter_queue('outbox', lease => '2 s')], 'shop');
	leave($locker);
	leave($taker);
	my $next = $forwarder->();
	wait_until($node, $forwarded, 1, 'shop');
	is_sql($node, "SELECT attempt, result FROM idemq.jobs WHERE id = $id", '2|"duplicate"', 'the second attempt hears of the first', 'shop');

	# Everything is killed while 300 are on their way, of which some come when a server is down.
	my $orders = sub { sql($node, "SELECT idemq.enqueue_many('outbox', (SELECT array_agg(jsonb_build_object('order', g)) FROM generate_series($_[0], $_[1]) g))", 'shop') };
	$orders->(2, 181);
	foreach my $step (50, 100)
	{
		wait_until($node, "SELECT ($forwarded) >= $step", 't', 'shop');
		$kill->($next);
		$next = $forwarder->();
	}
	wait_until($node, "SELECT ($forwarded) >= 130", 't', 'shop');
	$other->stop('immediate');
	$orders->(182, 301);
	wait_until($node, "SELECT count(*) > 0 FROM idemq.jobs WHERE status = 'retrying'", 't', 'shop');
	$other->start;
	wait_until($node, "SELECT ($forwarded) >= 180", 't', 'shop');
	# The router, the other shards and the shop at once.
	$node->stop('immediate');
	$kill->($next);
	$node->start;
	$next = $forwarder->();
	wait_until($node, $forwarded, 301, 'shop');
	$next->{run}->signal('TERM');
	$next->{run}->finish;
	my (%orders, @wrong);
	foreach my $number (0 .. 3)
	{
		$orders{$_}++ foreach split /\n/, on_shard($number, q[SELECT j.payload ->> 'order' FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name = 'mail']);
	}
	@wrong = grep { ($orders{$_} // 0) != 1 } 1 .. 301;
	is("@wrong", '', '301 orders, each once in the cluster');
	is(scalar keys %orders, 301, 'and nothing else');
}

# A limit is one shard's; what must hold for all lives on one.
if (wanted('limits'))
{
	my $claimed = sub { my ($queue) = @_; my $sum = 0; $sum += on_shard($_, "SELECT count(*) FROM idemq.claim('$queue', 10)") foreach 0 .. 3; return $sum; };

	on_all("create_queue('$_', max_running => 2)") foreach 'partner', 'each';
	routed("SELECT cluster.enqueue_many('partner', array_fill('{}'::jsonb, ARRAY[12]), keys => (SELECT array_agg('{partner}order-' || g) FROM generate_series(1, 12) g))");
	routed("SELECT cluster.enqueue_many('each', array_fill('{}'::jsonb, ARRAY[12]), keys => (SELECT array_agg(format('{%s}order-%s', t, g))
		FROM generate_series(1, 3) g, unnest(ARRAY[" . join(', ', @tags) . "]) t))");
	is($claimed->('partner'), 2, 'one text is hashed: the limit is that of all');
	is($claimed->('each'), 8, 'otherwise it is that of each of four shards');
	is($claimed->('partner'), 0, 'and no more');
}

done_testing();
