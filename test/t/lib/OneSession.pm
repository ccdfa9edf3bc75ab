# Runs the SQL that would otherwise get a session of its own (sql, sqlstate, wait_until and everything built on them) in
# one psql session per server, because starting psql and a backend takes about 20 ms, or seconds under valgrind.  DISCARD
# ALL resets the session after each use.  Only database postgres has such a session, and none is kept while its server is
# down.
#
# This session is one connection more than the test opens.  A test that counts sessions, or requires the database for
# itself, has a line "# looks at sessions", and this module then changes nothing.
package OneSession;

use strict;
use warnings FATAL => 'all';

use Idemq;
use PostgreSQL::Test::BackgroundPsql;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes ();

return 1 if slurp_file($0) =~ /^# looks at sessions$/m;

no warnings 'redefine';

my $safe_psql = \&PostgreSQL::Test::Cluster::safe_psql;
my $wait_until = \&Idemq::wait_until;
my $sql_counted = \&Idemq::sql_counted;
my $sqlstate = \&Idemq::sqlstate;
my %session_of;

# Returns the session of a server's database postgres, and starts one if there is none; returns nothing if the server does
# not answer.
sub kept
{
	my ($node) = @_;
	my $session = $session_of{ $node->name };

	return $session if $session && $session->{run}->pumpable && kill 0, $session->{backend};
	delete $session_of{ $node->name };
	# Avoid psql's error message if the server is down.
	return if !-e $node->data_dir . '/postmaster.pid';
	eval {
		$session = $node->background_psql('postgres', on_error_stop => 0);
		$session->set_query_timer_restart;
		$session->{backend} = $session->query('SELECT pg_backend_pid()');
		1;
	} or return;
	return $session_of{ $node->name } = $session;
}

# Ends the session of a server, for a test that requires the server for itself for a while.
sub end
{
	my ($node) = @_;
	my $session = delete $session_of{ $node->name };

	leave($session) if $session;
	return;
}

# Runs SQL in the session of a server.  Returns its output and psql's messages, or nothing if there is no session or it
# ended before the SQL ran.  The first error ends the SQL.  $verbosity is psql's VERBOSITY.
sub ask
{
	my ($node, $sql, $verbosity) = @_;
	# SQL with a psql command requires a psql of its own.
	my $session = $sql !~ /^\s*\\|;\s*\\/m && kept($node) or return;
	# With ON_ERROR_STOP, psql exits on an error and must be started again.  A single statement does not need that.
	my $stop = $sql =~ /;\s*\S/ ? 1 : 0;
	my $out = eval {
		# PostgreSQL's library would note every query, polls included.
		local *PostgreSQL::Test::BackgroundPsql::note = sub { };

		$session->query("\\set ON_ERROR_STOP $stop\n\\set VERBOSITY $verbosity\n$sql\n;\n\\set ON_ERROR_STOP 0\nDISCARD ALL");
	};
	my $said = $session->{stderr};
	# DISCARD ALL fails if the SQL has left a transaction open.
	my $open = $said =~ s/^.*(?:25001\b|DISCARD ALL cannot run).*\n?//m;

	# IPC::Run writes into this variable, so empty it rather than replace it.
	$session->{stderr} = '';
	if (!defined $out || $open || $said =~ /FATAL: |connection to server was lost/)
	{
		delete $session_of{ $node->name };
		eval { leave($session) };
	}
	return if $said =~ /FATAL: +terminating connection|FATAL: +57P0/ || !defined $out && $said !~ /ERROR: /;
	return ($out // '', $said);
}

*PostgreSQL::Test::Cluster::safe_psql = sub {
	my ($node, $db, $sql, @params) = @_;
	my ($out, $said) = $db eq 'postgres' && !@params ? ask($node, $sql, 'default') : ();

	return $safe_psql->(@_) if !defined $out;
	die "error running SQL: '$said'\nwith sql '$sql'" if $said =~ /^(?:psql:<stdin>:\d+: )?(?:ERROR|FATAL|PANIC): /m;
	print $said;
	return $out;
};

*Idemq::sqlstate = sub {
	my ($node, $sql, $db, @params) = @_;
	my ($out, $said) = ($db // 'postgres') eq 'postgres' && !@params ? ask($node, $sql, 'sqlstate') : ();

	return $sqlstate->(@_) if !defined $out;
	return $said =~ /(?:ERROR|FATAL):\s+([0-9A-Z]{5})\s*$/m ? $1 : $said eq '' ? '00000' : $said;
};

# While a server is down, or for another database, the original wait_until runs.
*Idemq::wait_until = sub {
	my ($node, $sql, $expected, $db) = @_;

	$expected //= 't';
	for (my $end = time + $PostgreSQL::Test::Utils::timeout_default; time < $end; Time::HiRes::sleep(0.02))
	{
		my ($out, $said) = ($db // 'postgres') eq 'postgres' ? ask($node, $sql, 'default') : ();

		return $wait_until->(@_) if !defined $out;
		return if $out eq $expected && $said eq '';
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
