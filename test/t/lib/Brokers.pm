# Consumers of a broker, for the tests of test/clients that have a real one.
#
# What the consumers do to the database is held up at two places, so that a test can kill
# somebody there: before the effect (hold_effects), and in COMMIT (hold_commits), where the
# server goes on by itself, whoever has gone.
package Brokers;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

our @EXPORT = qw(has_python program first_line broker broker_until consumer kill_9 held complains died heard
  pays hold_effects hold_commits);

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $files = 0;

# Whether Python has a module.
sub has_python
{
	return IPC::Run::run([ '/usr/bin/python3', '-c', "import $_[0]" ], '<', \undef, '>', '/dev/null', '2>', '/dev/null');
}

# A program, with its output in files; %env is its own.
sub program
{
	my ($command, %env) = @_;
	my $said = "$PostgreSQL::Test::Utils::tmp_check/said." . ++$files;

	local @ENV{ 'PYTHONDONTWRITEBYTECODE', keys %env } = (1, values %env);
	my $run = IPC::Run::start($command, '<', \undef, '>', $said, '2>', "$said.err", IPC::Run::timeout(400));
	return { run => $run, said => $said, errors => "$said.err" };
}

# broker(command, arguments..., [lines]): asks the broker, and answers what it says.
sub broker
{
	my ($command, @arguments) = @_;
	my $in = ref $arguments[-1] ? join('', map { "$_\n" } @{ pop @arguments }) : '';
	my ($out, $err);

	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	IPC::Run::run([ '/usr/bin/python3', "$here/broker.py", $command, @arguments ], '<', \$in, '>', \$out, '2>', \$err,
		IPC::Run::timeout(120)) or die "$command: $err";
	chomp $out;
	return $out;
}

# Waits until it says so, or what matches; answers it.
sub broker_until
{
	my ($expected, @command) = @_;
	my $end = time + 120;
	my $said;

	while (time < $end)
	{
		$said = eval { broker(@command) } // $@;
		return $said if ref $expected ? $said =~ $expected : $said eq $expected;
		Time::HiRes::sleep(0.1);
	}
	die "@command: never '$expected', but $said";
}

# Waits until a program has said something; answers it.
sub first_line
{
	my ($it) = @_;
	my $end = time + 60;
	my $line;

	until (($line) = slurp_file($it->{said}) =~ /^(.*)\n/)
	{
		die slurp_file($it->{errors}) if time > $end || !$it->{run}->pumpable;
		Time::HiRes::sleep(0.1);
	}
	return $line;
}

# A consumer, which is known to the server by its name.
sub consumer
{
	my ($node, $name, @command) = @_;
	my $user = getpwuid($>);

	return { name => $name, %{ program(\@command, PGAPPNAME => $name, PGHOST => $node->host, PGPORT => $node->port,
		PGUSER => $user, PGDATABASE => 'postgres', DSN => '') } };
}

sub kill_9
{
	foreach my $it (@_)
	{
		$it->{run}->signal('KILL');
		$it->{run}->finish;
		is($it->{run}->full_result(0), 9, "$it->{name} is killed");
	}
	return;
}

# Waits until a program has complained of something; SINCE: behind that place of its file.
sub complains
{
	my ($it, $of, $since) = @_;
	my $end = time + 120;

	until (slurp_file($it->{errors}, $since) =~ $of)
	{
		die "$it->{name}: " . slurp_file($it->{errors}) if time > $end || !$it->{run}->pumpable;
		Time::HiRes::sleep(0.1);
	}
	return;
}

# Whether it has ended by itself: none may.
sub died
{
	my ($it) = @_;

	return $it->{run}->pumpable ? '' : slurp_file($it->{errors});
}

# What consumers have said of messages: { 'KEY OUTCOME' => times }.
sub heard
{
	my %heard;

	foreach my $it (@_)
	{
		$heard{$_}++ foreach split /\n/, slurp_file($it->{said});
	}
	return \%heard;
}

# Waits until one of these consumers, or some, are held up in the effect or in COMMIT; answers them.
sub held
{
	my ($node, @consumers) = @_;
	my $held = "FROM pg_stat_activity WHERE application_name LIKE 'consumer-%' AND wait_event_type = 'Lock' AND query NOT LIKE '%once(%'";

	wait_until($node, "SELECT count(*) > 0 $held");
	my %names = map { $_ => 1 } split /\n/, sql($node, "SELECT application_name $held");
	return grep { $names{ $_->{name} } } @consumers;
}

# The function of doc/usage/brokers-rabbitmq.md that converts a message: JSON stays as it is, other bytes become hex.
our $to_payload = q{CREATE FUNCTION to_payload(message bytea) RETURNS jsonb LANGUAGE plpgsql AS $$
	BEGIN
		RETURN convert_from(message, 'UTF8')::jsonb;
	EXCEPTION WHEN data_exception OR statement_too_complex THEN
		RETURN jsonb_build_object('not JSON', encode(message, 'hex'));
	END $$;};

# The effect of all brokers' messages {"id": ..., "amount": ...}, where nothing but idemq keeps it from
# happening twice; and where it is held up.
sub pays
{
	my ($node) = @_;

	sql($node, $to_payload . q{CREATE TABLE paid (id text NOT NULL, amount int NOT NULL, at timestamptz DEFAULT clock_timestamp());
		CREATE FUNCTION pay(message jsonb) RETURNS void LANGUAGE sql
			AS $$ INSERT INTO paid VALUES (message->>'id', (message->>'amount')::int) $$;
		CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql
			AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NULL; END $$;
		CREATE CONSTRAINT TRIGGER gate AFTER INSERT ON paid DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION gate()});
	return;
}

# Both answer a session: what they hold goes on when that ends its transaction, or is ended.
sub hold_effects
{
	my $session = session($_[0]);

	$session->query_safe('BEGIN; LOCK TABLE paid IN SHARE MODE');
	return $session;
}

sub hold_commits
{
	my $session = session($_[0]);

	$session->query_safe('BEGIN; SELECT pg_advisory_xact_lock(42)');
	return $session;
}

1;
