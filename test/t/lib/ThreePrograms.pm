# The three programs of doc/usage/three-programs.md in one form, such as Python's, and what befalls them.
#
# A webhook's events are booked in accounts, mails go to a provider that answers 502, or too late, or not before it is
# told to, and reports are rows of reports.  Each form has a database of its own, so that several go through it side by
# side.  What is done to them is done to all three at once, while each has a job in its hands: the booking and the report wait
# for a lock, the mail for the provider's answer.  Afterwards each effect is there once: settled.
#
#   my $it = ThreePrograms->new($node, 'Python', provider => provider(), command => sub { ... }, ...);
#   survives($it, ...);             work, answers of 502 or too late, closed idle connections, kill -9, a lost session, SIGTERM
#   fails_over($node, $it, ...);    with jobs in hand, beside workers that sleep
#
# Of a form: command ($it, $program) answers how a program is started, and its environment; programs: their names, if they are
# not webhook, mailer, report; http: the webhook takes POST on PORT; pooler: [ its socket's folder, port ], which
# is between the programs and the server; schedules: no program of its makes the schedule; mails => 0: it has no mailer;
# asks: its mailer asks the provider what has become of a mail; blows: what befalls it instead of %blow.
package ThreePrograms;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use HTTP::Tiny;
use Idemq;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(provider survives fails_over);

my $json = JSON::PP->new->canonical->allow_nonref;
my $files = 0;

# A provider of mails: { url, run }.
sub provider
{
	my (@options) = @_;
	my $said = "$PostgreSQL::Test::Utils::tmp_check/provider." . ++$files;
	my $run = IPC::Run::start([ '/usr/bin/python3', "$ENV{IDEMQ_SOURCE}/test/clients/mail_provider.py", @options ],
		'<', \undef, '>', $said, '2>', "$said.err", IPC::Run::timeout(400));

	until_true('the provider starts', sub { -s $said && slurp_file($said) =~ /\n/ });
	return { run => $run, url => 'http://127.0.0.1:' . (slurp_file($said) =~ s/\s//gr) };
}

# What it answers.
sub ask
{
	my ($it, $path) = @_;
	my $answer = HTTP::Tiny->new(timeout => 60)->get("$it->{provider}{url}/$path");

	die "$path: $answer->{status} $answer->{content}" unless $answer->{success};
	return $json->decode($answer->{content});
}

# Of a list of recipients, those of this form.
sub mine { my ($it, $path) = @_; return $it->{mails} ? grep { /\.\Q$it->{db}\E\./ } @{ $it->ask($path) } : () }

sub new
{
	my ($class, $node, $name, %form) = @_;
	my $it = bless {
		node => $node, hosts => [$node], name => $name, db => lc($name) =~ s/\W+/_/gr,
		programs => [qw(webhook mailer report)], mails => 1, running => [], events => 0, sum => 0, sent => [], ticks => [], %form
	}, $class;

	sql($node, qq[CREATE DATABASE "$it->{db}"]);
	sql($node, q[CREATE EXTENSION idemq;
		CREATE TABLE accounts (account text PRIMARY KEY, balance int);
		INSERT INTO accounts VALUES ('anna', 0);
		CREATE TABLE reports (tick text, total numeric);
		CREATE TABLE sales AS SELECT 12.50 AS total FROM generate_series(1, 4);
		CALL idemq.tick();
		SELECT idemq.create_queue(q, retry_base => '10 ms', retry_max => '100 ms', lease => '3 s', max_attempts => 1000) FROM unnest('{events,mail,reports}'::text[]) q],
		$it->{db});
	sql($node, q[SELECT idemq.schedule('nightly', '0 3 * * *', 'reports', '{}')], $it->{db}) if $it->{schedules};
	return $it;
}

# Host and port by which programs and producers reach the server, or servers.
sub place
{
	my ($it) = @_;

	return @{ $it->{pooler} }[ 0, 1 ] if $it->{pooler};
	return (join(',', map { $_->host } @{ $it->{hosts} }), join(',', map { $_->port } @{ $it->{hosts} }));
}

sub dsn
{
	my ($it) = @_;
	my ($host, $port) = $it->place;

	return "host=$host port=$port dbname=$it->{db} user=" . getpwuid($>) . ' target_session_attrs=read-write';
}

sub is_now { my ($it, $sql, $expected, $name) = @_; local $Test::Builder::Level = $Test::Builder::Level + 1; return is_sql($it->{node}, $sql, $expected, "$it->{name}: $name", $it->{db}) }
sub wait_for { my ($it, $sql) = @_; return wait_until($it->{node}, $sql, 't', $it->{db}) }

# Starts its programs, once more.
sub start
{
	my ($it) = @_;

	foreach my $program (@{ $it->{programs} })
	{
		my ($command, %env) = $it->{command}->($it, $program);
		my $said = "$PostgreSQL::Test::Utils::tmp_check/$it->{db}.$program." . ++$files;

		if ($it->{http} && $program eq 'webhook')
		{
			$env{PORT} = PostgreSQL::Test::Cluster::get_free_port();
			$it->{url} = "http://127.0.0.1:$env{PORT}/";
		}
		local @ENV{ keys %env } = values %env;
		my $run = IPC::Run::start($command, '<', \undef, '>', $said, '2>&1', IPC::Run::timeout(400));
		push @{ $it->{running} }, { program => $program, run => $run, said => $said };
	}
	return;
}

# Waits for the end of its programs, which a signal is the cause of: all by status 0, or by SIGKILL.
sub ended
{
	my ($it, $expected, $name) = @_;

	foreach my $each (splice @{ $it->{running} })
	{
		$each->{run}->finish;
		my $status = $each->{run}->full_result(0);
		is($status & 127 ? 'signal ' . ($status & 127) : $status >> 8, $expected, "$it->{name}: $each->{program}: $name") or diag slurp_file($each->{said});
	}
	return;
}

sub signal
{
	my ($it, $signal) = @_;

	# Not kill_kill, which asks by SIGTERM first.
	$_->{run}->signal($signal) foreach @{ $it->{running} };
	return;
}

# A producer, which repeats what has not been acknowledged.
sub enqueue
{
	my ($it, $queue, $payload, $key, $more) = (@_, '');
	my $text = $json->encode($payload);
	my @command = ('psql', '-XAtq', '-d', $it->dsn, '-c', "SELECT idemq.enqueue('$queue', '$text', key => '$key'$more)");

	until_true("$it->{name}: $key is stored", sub {
		my ($out, $error) = ('', '');
		return IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$error);
	});
	return;
}

# An event, which comes twice.
sub event
{
	my ($it) = @_;
	my $n = ++$it->{events};
	my $event = { id => "evt-$n", account => 'anna', amount => $n };

	$it->{sum} += $n;
	foreach (1, 2)
	{
		if ($it->{http})
		{
			until_true("$it->{name}: event $n is taken",
				sub { HTTP::Tiny->new(timeout => 30)->post($it->{url}, { content => $json->encode($event) })->{success} });
		}
		else { $it->enqueue('events', $event, $event->{id}) }
	}
	return;
}

# A mail, and how the provider is to take it.
sub mail
{
	my ($it, $how) = @_;

	return if !$it->{mails};
	my $to = "$how.$it->{db}." . (1 + @{ $it->{sent} });

	push @{ $it->{sent} }, $to;
	$it->enqueue('mail', { to => $to }, $to);
	return $to;
}

# A night's tick, which is enqueued twice: as idemq.tick() does it, which gives the last three o'clock.
sub night
{
	my ($it) = @_;
	my $tick = 'night ' . (1 + @{ $it->{ticks} });

	push @{ $it->{ticks} }, $tick;
	$it->enqueue('reports', {}, $tick, ", headers => jsonb_build_object('tick', '$tick')") foreach 1, 2;
	return;
}

# The schedule's own tick, which comes twice as well.  Where idemq's worker is at it in this moment, tick raises.
sub schedule
{
	my ($it) = @_;
	my $due = q[UPDATE idemq_internal.schedule_entries SET done_until = clock_timestamp() - interval '1 day' WHERE name = 'nightly'; CALL idemq.tick()];

	$it->wait_for(q[SELECT count(*) = 1 FROM idemq.schedules WHERE name = 'nightly']);
	foreach (1, 2)
	{
		until_true("$it->{name}: the tick", sub { $it->{node}->psql($it->{db}, $due, on_error_stop => 1, stderr => \my $error) == 0 });
	}
	return;
}

# All that has been asked for is done, and done once.
sub settled
{
	my ($it, $what) = @_;
	my $ticks = join ',', map { qq("$_") } @{ $it->{ticks} };

	$it->wait_for("SELECT count(*) = 0 FROM idemq.jobs WHERE finished_at IS NULL");
	is_now($it, 'SELECT count(*) FROM idemq.jobs WHERE status <> \'completed\'', 0, "$what: every job has succeeded");
	is_now($it, q[SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('events')], $it->{events}, "$what: webhook: each event is one job");
	is_now($it, 'SELECT balance FROM accounts', $it->{sum}, "$what: webhook: each is booked once");
	if ($it->{mails})
	{
		is(join(' ', sort($it->mine('mails'))), join(' ', sort @{ $it->{sent} }), "$it->{name}: $what: mailer: each mail is sent once");
		is_now($it, q[SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('mail') AND result->'sent' IS DISTINCT FROM payload->'to'], 0,
			"$what: mailer: the provider's answer is the result");
	}
	# The other ticks are real ones of the schedule: one, or two when it is three o'clock meanwhile.
	is_now($it, "SELECT count(*) - count(DISTINCT tick), min(total), max(total), array_agg(tick ORDER BY tick) \@> '{$ticks}' FROM reports",
		'0|50.00|50.00|t', "$what: report: each night has one");
	return;
}

# Jobs that wait: how many sessions for the booking's lock, and for the report's; more where an attempt has lost its lease.
sub held { my ($n) = @_; return q[SELECT count(*) FILTER (WHERE relation = 'accounts'::regclass) >= ] . $n . q[ AND count(*) FILTER (WHERE relation = 'reports'::regclass) >= ] . $n
	  . q[ FROM pg_locks WHERE NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())] }

# Gives each program so many jobs, and waits until they have them in their hands: { lock, stalls }.
sub in_hand
{
	my ($it, $n, $mails) = (@_, 1, 1);
	my $lock = session($it->{node}, $it->{db});

	$lock->query_safe('BEGIN; LOCK accounts, reports');
	foreach (1 .. $n) { $it->event; $it->night }
	my @stalls = grep { defined } map { $it->mail('stall') } 1 .. $mails;
	$it->wait_for(held($n));
	until_true("$it->{name}: $mails calls at a time", sub { my %to = map { $_ => 1 } $it->mine('calls'); keys %to == @stalls });
	return { lock => $lock, stalls => \@stalls };
}

sub let_go
{
	my ($it, $in_hand) = @_;

	if (my $lock = $in_hand->{lock})
	{
		# Nobody waits for a standby in this.
		$lock->query_safe('ROLLBACK');
		$lock->quit;
	}
	$it->ask("go/$_") foreach @{ $in_hand->{stalls} };
	return;
}

# What can be done to programs with jobs in their hands.
my %blow = (
	'kill -9' => sub {
		my ($it, $in_hand) = @_;

		$it->signal('KILL');
		$it->ended('signal 9', 'killed');
		$it->let_go($in_hand);
		$it->start;
	},
	'a session that ends' => sub {
		my ($it, $in_hand) = @_;
		my $lock = $in_hand->{lock}->query_safe('SELECT pg_backend_pid()');

		sql($it->{node}, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
			AND backend_type = 'client backend' AND pid NOT IN (pg_backend_pid(), $lock)", $it->{db});
		$it->let_go($in_hand);
	},
	'SIGTERM' => sub {
		my ($it, $in_hand) = @_;

		$it->signal('TERM');
		$it->let_go($in_hand);
		$it->ended(0, 'told to end in an effect, it ends by itself');
		$it->start;
	});

# What is idle is closed by the pooler, of the server and of its clients.
sub idles
{
	my ($it) = @_;

	until_true("$it->{name}: idle clients are closed",
		sub { slurp_file("$it->{pooler}[0]/log") =~ m{ \Q$it->{db}\E/\S+ closing because: client_idle_timeout} });
	$it->wait_for("SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND state = 'idle'");
	return;
}

# Each phase for all forms, then what has come of it: they wait side by side.
sub survives
{
	my @forms = @_;

	foreach my $it (@forms)
	{
		$it->start;
		$it->event foreach 1 .. 3;
		$it->mail($_) foreach qw(well bad worse lost late late);
		$it->night;
		$it->schedule;
	}
	foreach my $it (@forms)
	{
		my %asked;

		$it->settled('work');
		$asked{$_}++ foreach $it->mine('requests');
		# Who can ask what has become of a mail need not send it again.
		is(join(' ', grep { $asked{$_} < 2 && ($it->{asks} ? /^(bad|worse)/ : /^(bad|worse|lost|late)/) } sort keys %asked), '',
			"$it->{name}: mailer: it goes on after 502 and late answers") if $it->{mails};
	}
	my @pooled = grep { $_->{pooler} } @forms;
	foreach my $it (@pooled)
	{
		$it->idles;
		$it->event;
		$it->mail('well');
		$it->night;
	}
	$_->settled('idle connections are closed') foreach @pooled;
	foreach my $how (sort keys %blow)
	{
		my @struck = grep { !$_->{blows} || $_->{blows}{$how} } @forms;

		($_->{blows} ? $_->{blows}{$how} : $blow{$how})->($_, $_->in_hand) foreach @struck;
		$_->settled($how) foreach @struck;
	}
	return;
}

# All is well, also with a program that is told to end in its sleep.
sub ends
{
	my ($it) = @_;

	$it->signal('TERM');
	$it->ended(0, 'told to end, it does');
	is_now($it, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'every invariant holds');
	return;
}

# Commits that have come to the standby, whose answer waits for it: those of the booking, the report, and whatever the mail
# has come to: its answer is stored, or its call has timed out meanwhile.
sub in_the_air
{
	my ($it) = @_;
	my $commit = q[(backend_type = 'idemq handler' OR query ~* '^commit')];

	return "SELECT count(*) FILTER (WHERE $commit) = 2 AND count(*) FILTER (WHERE NOT $commit AND query !~ 'heartbeat') >= $it->{mails}
		FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'";
}

# The synchronous standby of a server is promoted, which then is down: one program of each has a job in its hands, another
# one sleeps.  Then the same with the new primary, when the job is committed there, and nobody has heard of it: what waits
# for the standby is answered when it has applied it, which is paused until its promotion.  Answers the last primary.
sub fails_over
{
	my ($node, @forms) = @_;

	$node = fails_over_once($node, $_, @forms) foreach 'failover', 'failover in COMMIT';
	$_->ends foreach @forms;
	return $node;
}

sub fails_over_once
{
	my ($node, $what, @forms) = @_;
	my $standby = PostgreSQL::Test::Cluster->new($node->name . '_standby');
	my %in_hand;

	$node->backup('base');
	$standby->init_from_backup($node, 'base', has_streaming => 1);
	$standby->start;
	# What is acknowledged from now on is there afterwards.
	$node->append_conf('postgresql.conf', "synchronous_standby_names = '*'\nsynchronous_commit = remote_apply");
	$node->reload;
	wait_until($node, q[SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync']);
	# The checkpointer, which has COMMITs wait for standbys, has read it, too.
	sql($node, 'CHECKPOINT');
	foreach my $it (@forms)
	{
		$it->ends;
		$it->{hosts} = [ $standby, $node ];
		$it->start foreach 1, 2;
	}
	foreach my $it (@forms)
	{
		my $waiters = @{ $it->{running} } ? 4 : 0;

		$in_hand{$it} = $it->in_hand;
		# Of six queues' workers those of webhook and report that have a job do not sleep.
		$it->wait_for("SELECT count(*) >= $waiters FROM pg_stat_activity WHERE datname = current_database() AND " . asleep());
	}
	if ($what =~ /COMMIT/)
	{
		sql($standby, 'SELECT pg_wal_replay_pause()');
		wait_until($standby, 'SELECT pg_get_wal_replay_pause_state()', 'paused');
		$_->let_go($in_hand{$_}) foreach @forms;
		$_->wait_for(in_the_air($_)) foreach @forms;
	}
	$node->stop('immediate');
	$standby->promote;
	foreach my $it (@forms)
	{
		$it->{node} = $standby;
		# With the server the lock has gone.
		eval { (delete $in_hand{$it}{lock})->quit };
		$it->let_go($in_hand{$it});
	}
	$_->settled($what) foreach @forms;
	# Who had the job and who slept: both go on.  (A mailer has four calls at a time, or questions of what has become of one.)
	$_->let_go($_->in_hand(2, 5)) foreach @forms;
	$_->settled("after the $what") foreach @forms;
	return $standby;
}

1;
