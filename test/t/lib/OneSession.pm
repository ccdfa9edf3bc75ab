# For valgrind, under which a session costs seconds until its first answer: SQL that tests run in a session for it
# alone, and that must succeed, is run in one of its server, which DISCARD ALL makes as new.  IDEMQ_TO_BEGIN,
# those seconds, asks for it; a test with a line "# looks at sessions" is left as it is.
package OneSession;

use strict;
use warnings FATAL => 'all';

use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes ();

return 1 if slurp_file($0) =~ /^# looks at sessions$/m;

no warnings 'redefine';

my $safe_psql = \&PostgreSQL::Test::Cluster::safe_psql;
my $wait_until = \&Idemq::wait_until;
my $sql_counted = \&Idemq::sql_counted;
my %session_of;

# The session of a server's database postgres that answers, a new one if need be; nothing if there is none.
sub kept
{
	my ($node) = @_;
	my $session = $session_of{ $node->name };

	return $session if $session && is_as_new($session);
	delete $session_of{ $node->name };
	eval { $session = $node->background_psql('postgres'); $session->set_query_timer_restart } or return;
	return $session_of{ $node->name } = $session;
}

# Makes a session as new; whether it is there, and none of a transaction.
sub is_as_new
{
	my ($session) = @_;
	my ($out, $failed) = eval { $session->query('DISCARD ALL') };

	return defined $failed && !$failed;
}

# Answers what SQL answers, what it said, and whether it came to its end.
sub ask
{
	my ($node, $session, $sql) = @_;
	my $answer = eval { $session->query($sql) };
	my $said = $session->{stderr};

	# Where psql's output is read to: not to be replaced.
	$session->{stderr} = '';
	delete $session_of{ $node->name } if !defined $answer || !is_as_new($session);
	return ($answer, $said, defined $answer);
}

*PostgreSQL::Test::Cluster::safe_psql = sub {
	my ($node, $db, $sql, @params) = @_;
	my $session = $db eq 'postgres' && !@params && $sql !~ /^\s*\\|;\s*\\/m && kept($node) or return $safe_psql->(@_);
	my ($answer, $said, $ended) = ask($node, $session, $sql);

	die "error running SQL: '$said'\nwith sql '$sql'" if !$ended;
	print $said;
	return $answer;
};

# While a server is down, and of another database, as ever.
*Idemq::wait_until = sub {
	my ($node, $sql, $expected, $db) = @_;

	$expected //= 't';
	for (my $end = time + $PostgreSQL::Test::Utils::timeout_default; time < $end; Time::HiRes::sleep(0.1))
	{
		my $session = ($db // 'postgres') eq 'postgres' && kept($node) or return $wait_until->(@_);
		my ($answer, $said, $ended) = ask($node, $session, $sql);

		return if $ended && $answer eq $expected && $said eq '';
	}
	die "never '$expected': $sql";
};

*Idemq::sql_counted = sub {
	local *PostgreSQL::Test::Cluster::safe_psql = $safe_psql;

	return $sql_counted->(@_);
};

*PostgreSQL::Test::Cluster::poll_query_until = sub {
	my ($node, $db, $sql, $expected) = @_;

	return eval { Idemq::wait_until($node, $sql, $expected // 't', $db); 1 } // 0;
};

1;
