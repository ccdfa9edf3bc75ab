# script/dev/server, which gives whoever wants to try idemq a server, without root: what it says, what start keeps and reset drops, and that
# clean leaves nothing.  As root it starts its server as user postgres, by the same functions as script/test.
# takes long
# at least 19 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";

use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'this is root, whose server user postgres starts' if $> == 0;

my $dir = "$PostgreSQL::Test::Utils::tmp_check/dev";
my $said;

# Runs it: its exit status; what it has said is in $said.
sub server
{
	my (@arguments) = @_;

	local @ENV{qw(IDEMQ_DEV NO_INSTALL)} = ($dir, 1);
	IPC::Run::run([ "$ENV{IDEMQ_SOURCE}/script/dev/server", @arguments ], '<', \undef, '>&', \$said, IPC::Run::timeout(300));
	return $? >> 8;
}

# One statement in database dev, by the connection string that start has printed; or what psql says of it.
my ($psql, $clients);
sub asks
{
	my ($sql) = @_;
	my $answer;

	IPC::Run::run([ $psql, '-XAtq', '-d', $clients, '-c', $sql ], '<', \undef, '>&', \$answer, IPC::Run::timeout(60));
	return $answer;
}

is(server(), 2, 'without a command it ends with 2');
like($said, qr/^\s*script\/dev\/server start .*^\s*script\/dev\/server reset .*^\s*script\/dev\/server clean /ms, 'and says what it can do');

is(server('start'), 0, 'start') or diag $said;
unlike($said, qr/compiling/, 'what is built is not built again');
($psql) = $said =~ /^psql: +(\S+\/psql) -h \Q$dir\E -U postgres dev$/m;
($clients) = $said =~ /^clients: (\S+)$/m;
ok($psql, 'it prints a command for psql') or diag $said;
is($clients, "postgresql:///dev?host=$dir&user=postgres", 'and a connection string for a client');
is(asks('SELECT extversion IS NOT NULL FROM pg_extension WHERE extname = $$idemq$$'), "t\n", 'by which the extension is there');
asks("SELECT idemq.create_queue('mine')");
is(asks("SELECT outcome FROM idemq.enqueue('mine', '1')"), "accepted\n", 'and takes a job');

is(server('start'), 0, 'start again');
is(asks('SELECT count(*) FROM idemq.jobs'), "1\n", 'keeps the database');
is(server('psql', '-XAtc', 'SELECT current_database(), session_user'), 0, 'psql');
is($said, "dev|postgres\n", 'is in that database');
is(server('log', '1000'), 0, 'log');
like($said, qr/database system is ready to accept connections/, 'shows the server\'s log');

is(server('reset'), 0, 'reset') or diag $said;
is(asks('SELECT count(*) FROM idemq.jobs'), "0\n", 'makes the database anew');
is(server('stop'), 0, 'stop');
like(asks('SELECT 1'), qr/No such file or directory|Connection refused/, 'there is no server then');
is(server('clean'), 0, 'clean');
ok(!-e $dir, 'leaves nothing');
done_testing();
