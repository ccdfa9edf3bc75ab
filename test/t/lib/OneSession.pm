# Runs the SQL that a test means for a session of its own (sql, sqlstate, wait_until and what is made of them) in one
# psql session per server, which DISCARD ALL makes as new after each: starting psql and a backend costs some 20 ms, and
# under valgrind seconds.  Only database postgres has such a session, and none is kept while its server is down.
#
# It is one connection more than the test opens.  A test that counts sessions, or has the database to itself, says so in a
# line "# looks at sessions", and is left as it is.
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

# Starts a session with a server's database postgres, unless one is there; nothing if the server does not answer.
sub kept
{
	my ($node) = @_;
	my $session = $session_of{ $node->name };

	return $session if $session && $session->{run}->pumpable && kill 0, $session->{backend};
	delete $session_of{ $node->name };
	# Without psql's complaint where the server is not up.
	return if !-e $node->data_dir . '/postmaster.pid';
	eval {
		$session = $node->background_psql('postgres', on_error_stop => 0);
		$session->set_query_timer_restart;
		$session->{backend} = $session->query('SELECT pg_backend_pid()');
		1;
	} or return;
	return $session_of{ $node->name } = $session;
}

# Ends the session of a server, for a test that must be alone on it for a while.
sub end
{
	my ($node) = @_;
	my $session = delete $session_of{ $node->name };

	leave($session) if $session;
	return;
}

# Runs SQL in the session of a server; answers its output, and what psql said of it; nothing if there is no session, or it
# ended before the SQL ran.  The first error ends the SQL.  $verbosity: of psql.
sub ask
{
	my ($node, $sql, $verbosity) = @_;
	# What begins a command of psql is for a psql of its own.
	my $session = $sql !~ /^\s*\\|;\s*\\/m && kept($node) or return;
	# psql that stops at an error has to be started again, which one statement does not need.
	my $stop = $sql =~ /;\s*\S/ ? 1 : 0;
	my $out = eval {
		# The library notes each query, polls among them.
		local *PostgreSQL::Test::BackgroundPsql::note = sub { };

		$session->query("\\set ON_ERROR_STOP $stop\n\\set VERBOSITY $verbosity\n$sql\n;\n\\set ON_ERROR_STOP 0\nDISCARD ALL");
	};
	my $said = $session->{stderr};
	# The transaction that the SQL left open is in the way.
	my $open = $said =~ s/^.*(?:25001\b|DISCARD ALL cannot run).*\n?//m;

	# Where psql's output is read to: not to be replaced.
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

# While a server is down, and of another database, as ever.
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
