# The endpoints of doc/usage/any-language.md, as they are there, with idemq-work --http, and the producers in their languages.  Its programs for
# --lines: lines.pl.  What befalls the endpoints: test/t/lib/ThreePrograms.pm, and kill -9 of each.
# LANGUAGES='ruby php' (make check-languages: go, and java as a producer, too); those that are not installed are left out.
# expects in log: was terminated by signal 9
# slow: runs Ruby, PHP and Perl, which need packages; leases of 3 s, kills, a failover
# at least 240 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IO::Socket::INET;
use IPC::Run;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Runner;
use Test::More;
use ThreePrograms;
use Time::HiRes ();

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $page = slurp_file("$ENV{IDEMQ_SOURCE}/doc/usage/any-language.md");

# A program of the page, by its name, as a file; its text, of which a test may be made.
sub program
{
	my ($name) = @_;

	$page =~ /^```\w+\n((?:<\?php )?(?:#|\/\/) \Q$name\E:.*?)^```/ms or die "$name is not on the page";
	my $file = "$tmp/$name";
	return $file if -e $file;
	append_to_file($file, $1);
	cmp_ok(scalar(split /\n/, $1), '<=', 20, "$name has 20 lines at most");
	return $file;
}

# How the endpoint of a language is started at a port, and how to see that the language is there.
my %endpoint = (
	ruby => { there => 'puma --version && ruby -e "require %q(pg)"', start => sub { return ('puma', '-q', '-e', 'production', '-t', '16:16', '-b', "tcp://127.0.0.1:$_[0]", program('config.ru')) } },
	php => { there => 'php -m | grep -q pdo_pgsql', start => sub { return ('php', '-S', "127.0.0.1:$_[0]", program('jobs.php')) } },
	perl => { there => 'starman --version && perl -MDBD::Pg -e 1', start => sub { return ('starman', '--workers', 16, '--listen', "127.0.0.1:$_[0]", '--error-log', "$tmp/starman.log", program('jobs.psgi')) } },
	go => { there => 'go version && test -d /usr/share/gocode/src/github.com/jackc/pgx', start => sub { return (built('jobs.go')) } });

# A Go program, built with Debian's libraries.
sub built
{
	my ($name, $source) = @_;

	$source //= program($name);
	if (!-x "$source.bin")
	{
		local @ENV{qw(GO111MODULE GOPATH GOFLAGS GOCACHE)} = ('off', '/usr/share/gocode', '-buildvcs=false', "$tmp/gocache");
		system('go', 'build', '-o', "$source.bin", $source) == 0 or die "$name does not compile";
	}
	return "$source.bin";
}

# Whether a language is wanted; and whether it is also installed.
sub wanted { my ($language) = @_; return ($ENV{LANGUAGES} // 'ruby php perl') =~ /\b$language\b/ }
sub there { my ($language, $command) = @_; return wanted($language) && system("($command) >/dev/null 2>&1") == 0 }
my @languages = grep { there($_, $endpoint{$_}{there}) } sort keys %endpoint;
plan skip_all => 'no endpoint: neither Ruby, PHP nor Perl has its packages' unless @languages;
plan skip_all => 'no libcurl in idemq-work' if qx(idemq-work -q q --http ftp://x 2>&1) =~ /without libcurl/;
foreach my $language (grep { wanted($_) } sort keys %endpoint)
{
	SKIP: { skip "no $language", 69 unless grep { $_ eq $language } @languages; pass("$language is there") }
}

# JDBC knows no socket.
my $node = new_server('languages', 'idemq.worker' => 'on', listen_addresses => '127.0.0.1', max_connections => 300, max_worker_processes => 16, restart_after_crash => 'on');

# An endpoint is a process group, which a test's end leaves behind if nobody ends it.
my %serving;
sub stop_serving
{
	my ($name) = @_;
	my $its = delete $serving{$name} or return;

	kill 'KILL', -$its->{pid};
	waitpid $its->{pid}, 0;
	# Those that it has started may take longer to end, and have the port until then.
	until_true("$name: nobody listens", sub { !IO::Socket::INET->new(PeerAddr => "127.0.0.1:$its->{port}") });
	return;
}
END { stop_serving($_) foreach keys %serving }

# Has a form's endpoint serve, by its server's place of now; answers its port.
sub serve
{
	my ($it, $language) = @_;
	my ($host, $port) = $it->place;

	if (my $its = $serving{ $it->{name} })
	{
		return $its->{port} if $its->{place} eq "$host $port";
		stop_serving($it->{name});
	}
	my $at = PostgreSQL::Test::Cluster::get_free_port();
	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE PGTARGETSESSIONATTRS PORT PHP_CLI_SERVER_WORKERS)} =
	  ($host, $port, scalar getpwuid($>), $it->{db}, 'read-write', $at, 16);
	my @command = $endpoint{$language}{start}->($at);
	my $pid = fork // die "fork: $!";
	if ($pid == 0)
	{
		setpgrp;
		open STDIN, '<', '/dev/null' or die;
		open STDOUT, '>>', "$tmp/$it->{db}.endpoint.log" or die;
		open STDERR, '>&', \*STDOUT or die;
		exec @command or POSIX::_exit(127);
	}
	$serving{ $it->{name} } = { pid => $pid, port => $at, place => "$host $port" };
	until_true("$it->{name}: the endpoint listens", sub { IO::Socket::INET->new(PeerAddr => "127.0.0.1:$at") });
	return $at;
}

my ($start, @pooler) = pooler($node, default_pool_size => 40, client_idle_timeout => 1, server_idle_timeout => 1);
my $pgbouncer = $start->();
my @forms;
foreach my $language (@languages)
{
	push @forms, ThreePrograms->new($node, $language, mails => 0, schedules => 1, programs => [qw(webhook report)], command => sub {
		my ($it, $program) = @_;
		my %what = (webhook => [ 'events', 'book' ], report => [ 'reports', 'report' ]);
		my ($queue, $route) = @{ $what{$program} };

		my $at = serve($it, $language);
		return [ 'idemq-work', '-d', $it->dsn, '-q', $queue, '-j', 4, '--http', 'http://127.0.0.1:' . ($it->{gateway} // $at) . "/jobs/$route" ];
	});
}
# One of them through the pooler, too.
push @forms, ThreePrograms->new($node, "$languages[0], pooler", mails => 0, schedules => 1, programs => [qw(webhook report)], pooler => \@pooler, command => $forms[0]{command})
  if @forms;
foreach my $it (@forms)
{
	sql($node, q[
		CREATE FUNCTION book(payload jsonb, headers jsonb) RETURNS void LANGUAGE sql AS $$
			UPDATE accounts SET balance = balance + (payload->>'amount')::int WHERE account = payload->>'account'
		$$;
		CREATE FUNCTION report(payload jsonb, headers jsonb) RETURNS void LANGUAGE sql AS $$
			INSERT INTO reports SELECT headers->>'tick', sum(total) FROM sales
		$$], $it->{db});
}

survives(@forms);
# What is not ASCII.
foreach my $it (@forms)
{
	my $id = sql($node, q[INSERT INTO accounts VALUES ('zoë €', 0); SELECT id FROM idemq.enqueue('events', '{"account": "zoë €", "amount": 7}')], $it->{db});

	$it->wait_for("SELECT status = 'completed' FROM idemq.jobs WHERE id = $id");
	$it->is_now(q[SELECT balance FROM accounts WHERE account = 'zoë €'], 7, 'a payload that is not ASCII');
	sql($node, "DELETE FROM accounts WHERE account <> 'anna'; DELETE FROM idemq.jobs WHERE id = $id", $it->{db});
}
# A gateway answers 502 to each job twice: it has not passed on the first request, and loses the answer when the job is done.
my %gateway;
foreach my $it (@forms)
{
	my ($at, $end) = ('', time + 180);
	my $log = "$tmp/$it->{db}.gateway";
	my $run = IPC::Run::start([ '/usr/bin/python3', "$ENV{IDEMQ_SOURCE}/test/clients/gateway.py", $serving{ $it->{name} }{port}, $log ], '<', \undef, '>', \$at);

	$run->pump until $at =~ /\n/ || time > $end;
	$gateway{ $it->{name} } = { run => $run, at => $at + 0, log => $log };
}
# Has the forms' programs end, and others begin, with the gateways before their endpoints or without.
sub restart
{
	my ($with) = @_;

	$_->signal('TERM') foreach @forms;
	foreach my $it (@forms)
	{
		$it->ended(0, 'told to end, for another place');
		$it->{gateway} = $with ? $gateway{ $it->{name} }{at} : undef;
		$it->start;
	}
	return;
}
restart(1);
foreach my $it (@forms) { foreach (1 .. 3) { $it->event; $it->night } }
foreach my $it (@forms)
{
	my %answers;

	$it->settled('502 of a gateway');
	# It writes down what it has answered when the job is done.
	until_true("$it->{name}: the gateway has said all", sub { 6 == (() = slurp_file($gateway{ $it->{name} }{log}) =~ / 204:/g) });
	push @{ $answers{ $_->[0] } }, $_->[1] foreach map { [ split / / ] } split /\n/, slurp_file($gateway{ $it->{name} }{log});
	is(scalar(grep { join(',', @$_) =~ /^502,(500,)*204:502$/ } values %answers), 6, "$it->{name}: six jobs have met it");
}
restart(0);
$_->{run}->kill_kill foreach values %gateway;
# The endpoint is killed with jobs in its hands: whether they are done nobody knows, but for the rows.
foreach my $it (@forms)
{
	my $in_hand = $it->in_hand;
	my $port = $serving{ $it->{name} }{port};

	stop_serving($it->{name});
	$it->let_go($in_hand);
	Time::HiRes::sleep(0.2);
	# At the port where it was.
	{
		no warnings 'redefine';
		local *PostgreSQL::Test::Cluster::get_free_port = sub { return $port };
		serve($it, $it->{name} =~ /^(\w+)/);
	}
	$it->settled('kill -9 of the endpoint');
}
if (@forms > @languages)
{
	my $pooled = pop @forms;

	$pooled->ends;
	stop_serving($pooled->{name});
}
$pgbouncer->kill_kill;
$node = fails_over($node, @forms);
stop_serving($_) foreach keys %serving;

# No block of the page is left out.
my @blocks = $page =~ /^```(?:ruby|php|perl|go|java)\n(.*)$/mg;
is(join(' ', sort map { /(?:#|\/\/) (\S+?):/ ? $1 : $_ } @blocks), 'Upper.java config.ru jobs.go jobs.php jobs.psgi upper.go upper.php upper.pl upper.rb', 'the programs of the page');

# Producers: what the page says of each driver.
my %producer = (
	ruby => q[ruby -rpg -rjson -e 'puts PG.connect.exec_params(%q(SELECT id FROM idemq.enqueue($1, $2, key => $3)), ["q", JSON.generate(a: "é"), "ruby"]).getvalue(0, 0)'],
	php => q[php -r '$s = (new PDO("pgsql:"))->prepare("SELECT id FROM idemq.enqueue(?, ?, key => ?)"); $s->execute(["q", json_encode(["a" => "é"]), "php"]); echo $s->fetchColumn();'],
	perl => q[perl -MDBI -Mutf8 -e 'print DBI->connect("dbi:Pg:", "", "", { RaiseError => 1 })->selectrow_array("SELECT id FROM idemq.enqueue(?, ?, key => ?)", undef, "q", q({"a": "é"}), "perl")']);
if (there('go', $endpoint{go}{there}))
{
	append_to_file("$tmp/producer.go", <<'EOP');
package main
import ("context"; "fmt"; "github.com/jackc/pgx/v4")

func main() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, "")
	if err != nil { panic(err) }
	tx, err := conn.Begin(ctx)
	if err != nil { panic(err) }
	var id int64
	err = tx.QueryRow(ctx, "SELECT id FROM idemq.enqueue($1, $2, key => $3)", "q", `{"a": "é"}`, "go").Scan(&id)
	if err != nil { panic(err) }
	if err := tx.Commit(ctx); err != nil { panic(err) }
	fmt.Println(id)
}
EOP
	$producer{go} = built('producer.go', "$tmp/producer.go");
}
SKIP:
{
	last SKIP unless wanted('java');
	skip 'no java', 1 unless there('java', 'javac -version && test -e /usr/share/java/postgresql.jar');
	append_to_file("$tmp/Producer.java", <<'EOP');
import java.sql.*;

class Producer {
	public static void main(String[] args) throws SQLException {
		Connection conn = DriverManager.getConnection(args[0]);
		conn.setAutoCommit(false);
		PreparedStatement call = conn.prepareStatement("SELECT id FROM idemq.enqueue(?, ?::jsonb, key => ?)");
		call.setString(1, "q");
		call.setString(2, "{\"a\": \"\u00e9\"}");
		call.setString(3, "java");
		ResultSet row = call.executeQuery();
		row.next();
		System.out.println(row.getLong(1));
		conn.commit();
	}
}
EOP
	$producer{java} = "java -cp /usr/share/java/postgresql.jar $tmp/Producer.java 'jdbc:postgresql://127.0.0.1:" . $node->port . '/postgres?user=' . getpwuid($>) . "'";
}
foreach my $language (grep { $producer{$_} } @languages, 'java')
{
	local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, 'postgres');
	my $id = qx($producer{$language});
	chomp $id;

	is_sql($node, "SELECT key, payload FROM idemq.jobs WHERE id = $id", qq($language|{"a": "é"}), "$language: a producer");
}
$node->stop;
done_testing();
