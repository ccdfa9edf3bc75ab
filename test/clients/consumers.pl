# Consumers with real drivers: every message is delivered two or three times, at
# once, to several processes; each effect happens once.  Directly, and through
# pgbouncer in transaction mode.
# at least 31 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use JSON::PP;
use List::Util qw(sum0);
use PostgreSQL::Test::Utils;
use Test::More;

my $consumers = 4;
my $messages = 150;
my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $json = JSON::PP->new->canonical;
my $node = new_server('consumers', max_connections => 50);

# Each message goes to two or three consumers, which get to it at about the same time.  All pairs and triples occur.
sub deliveries
{
	my @dealt = map { '' } 1 .. $consumers;
	my $count = 0;

	foreach my $i (1 .. $messages)
	{
		# The consumers are the bits set in one of these numbers.
		my @to = grep { (3, 5, 6, 7, 9, 10, 11, 12, 13, 14)[ $i % 10 ] & 1 << $_ } 0 .. $consumers - 1;
		$dealt[$_] .= $json->encode({ key => "message-$i", account => $i % 5, amount => $i }) . "\n" foreach @to;
		$count += @to;
	}
	return ($count, @dealt);
}

# Runs consumers over a fresh inbox; the command gets the name of each as its last argument.
sub consume
{
	my ($what, @command) = @_;
	my ($delivered, @dealt) = deliveries();
	my (@runs, %seen);

	sql($node, q{DROP TABLE IF EXISTS accounts;
		SELECT idemq.drop_queue('inbox', force => true) FROM idemq.queues WHERE name = 'inbox';
		SELECT idemq.create_queue('inbox', lease => '1 h');
		CREATE TABLE accounts AS SELECT account, 0 AS balance FROM generate_series(0, 4) account;});
	foreach my $n (1 .. $consumers)
	{
		# Files: IPC::Run feeds one process at a time.
		my $run = { in => "$PostgreSQL::Test::Utils::tmp_check/deliveries-$n", out => '', err => '' };
		open my $file, '>', $run->{in} or die;
		print $file $dealt[ $n - 1 ];
		close $file;
		$run->{h} = IPC::Run::start([ @command, "consumer-$n" ], '<', $run->{in}, '>', \$run->{out},
			'2>', \$run->{err}, IPC::Run::timeout(180));
		push @runs, $run;
	}
	$_->{h}->finish foreach @runs;
	is(join('', map { $_->{h}->result(0) . $_->{err} } @runs), '0' x $consumers, "$what: the consumers came through");
	foreach my $run (@runs)
	{
		my $counts = $json->decode($run->{out} || '{}');
		$seen{$_} += $counts->{$_} foreach keys %$counts;
	}
	diag "figure: $what: $delivered deliveries of $messages messages: " . join(', ', map { "$_ $seen{$_}" } sort keys %seen);
	is(($seen{claimed} // 0), $messages, "$what: each message was claimed once");
	is(($seen{completed} // 0), $delivered - $messages, "$what: every other delivery learned that it is done");
	is_sql($node, 'SELECT sum(balance) FROM accounts', sum0(1 .. $messages), "$what: each effect happened once");
	is_sql($node, 'SELECT status, count(*), max(attempt) FROM idemq.jobs GROUP BY 1', "completed|$messages|1",
		"$what: every job is completed");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$what: check");
}

my ($start, $dir, $port) = pooler($node, default_pool_size => 3, ignore_startup_parameters => 'extra_float_digits');
my $pgbouncer = $start->();
my @python = ('/usr/bin/python3', "$here/consumer.py");
my $dsn = 'dbname=postgres user=postgres';
consume('psycopg', @python, "$dsn host=${\$node->host} port=${\$node->port}");
consume('psycopg, pgbouncer', @python, "$dsn host=$dir port=$port");

SKIP:
{
	skip 'no node-pg', 12 unless $ENV{IDEMQ_NODE_MODULES};
	local $ENV{NODE_PATH} = $ENV{IDEMQ_NODE_MODULES};
	my @node = ('node', "$here/consumer.js");
	consume('node-postgres', @node, $node->host, $node->port, 'postgres');
	consume('node-postgres, pgbouncer', @node, $dir, $port, 'postgres');
}

# The pool was shared: fewer server sessions than clients.  One of ours that has ended may be there for a moment.
is_soon($node, "SELECT count(*) BETWEEN 1 AND 3 FROM pg_stat_activity WHERE datname = 'postgres' AND backend_type = 'client backend'
	AND pid <> pg_backend_pid()", 'pgbouncer shared its sessions, and kept them');

# Behind a pooler an attached lease ends at its deadline alone: the client's session is not the server's.
# The delay before its retry is meant to expire.
sql($node, "SELECT idemq.create_queue('pooled', retry_base => '1 ms'); SELECT idemq.enqueue('pooled', '1')");
command_like([ 'psql', '-XAtq', '-h', $dir, '-p', $port, '-U', 'postgres', '-d', 'postgres',
		'-c', "SELECT attempt FROM idemq.claim('pooled', lease => '1 h', attach => true)" ], qr/^1$/, 'claimed through pgbouncer, attached');
is_sql($node, "SELECT count(*) FROM idemq.running_jobs WHERE queue = 'pooled' AND expires_in > '50 min'", 1, 'the client has gone, and the job is held');
is_sql($node, "SELECT count(*) FROM idemq.claim('pooled')", 0, 'nobody else gets it');
sql($node, "SELECT idemq.heartbeat(id, token, lease => '1 ms') FROM idemq.jobs WHERE queue_id = idemq.queue_id('pooled')");    # meant to expire
wait_until($node, "SELECT count(*) = 1 FROM idemq.claim('pooled')");
is_sql($node, "SELECT error FROM idemq.attempts WHERE queue_id = idemq.queue_id('pooled')", 'lease expired', 'until its deadline');
$pgbouncer->kill_kill;
$node->stop;
done_testing();
