# idemq-relay: the outbox of a plain PostgreSQL, as a managed one is, and a server with idemq beside it.  The relay is killed
# at each step, which a lock holds open; a relay is stopped and goes on when another has taken over; either server crashes,
# fails over, or is restored from a backup.  Each row is one job, and each result is in its row.
# expects in log: was terminated by signal

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use Idemq;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $user = getpwuid($>);

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";

my $app = PostgreSQL::Test::Cluster->new('app');
$app->init(allows_streaming => 1);
$app->append_conf('postgresql.conf', 'max_connections = 80');
$app->start;
my $jobs = new_server('jobs', 'idemq.worker' => 'on', max_connections => 80);
my ($apps, $relays, $rows) = ([$app], 0, 0);

# A connection string to one server, or to the one of several that takes writes.
sub dsn
{
	my ($name, @nodes) = @_;

	return join ' ', 'host=' . join(',', map { $_->host } @nodes), 'port=' . join(',', map { $_->port } @nodes),
	  "dbname=postgres user=$user application_name=$name";
}

sub relay_command
{
	my ($name, $command, @options) = @_;

	return ('/usr/bin/python3', '-m', 'idemq.relay', $command, '--app', dsn($name, @$apps), '--idemq', dsn($name, $jobs), @options);
}

sub relay
{
	my $name = 'relay-' . ++$relays;

	return { name => $name, %{ program([ relay_command($name, 'run', '--poll', '0.2') ]) } };
}

# A wait of a session of the relay's, on a server.
sub waits_on
{
	my ($it, $node, $query, $for) = @_;

	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$it->{name}' AND query LIKE '%$query%'
		AND " . ($for // "wait_event_type = 'Lock'"));
	return;
}

# Ends what is left of it there; what a session waits for may be done after its client is gone.
sub end_sessions
{
	my ($it, $node, $query) = @_;

	sql($node, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = '$it->{name}'
		AND query LIKE '%" . ($query // '') . "%'");
	return;
}

# So many rows more, of payload {"n": ...}.
sub insert
{
	my ($count, $reply) = (@_, 'false');
	my ($from, $to) = ($rows + 1, $rows += $count);

	sql($apps->[0], "INSERT INTO idemq_outbox.jobs (queue, payload, reply) SELECT 'q', jsonb_build_object('n', g), $reply FROM generate_series($from, $to) g");
	return;
}

my $in_idemq = "FROM idemq.jobs WHERE queue_id = idemq.queue_id('q') AND payload ? 'n'";

sub each_once
{
	my ($when) = @_;

	wait_until($apps->[0], 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 0);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sql($jobs, "SELECT count(*), count(DISTINCT payload -> 'n') $in_idemq", "$rows|$rows", "$when: each row is one job");
}

# What is made, twice, by a role that owns no more than its database; what is not there is said.
command_fails_like([ relay_command('none', 'run') ], qr/IQ005: .*; idemq-relay create makes what is needed/, 'without the queue');
command_ok([ relay_command('make', 'create') ], 'created') foreach 1 .. 2;
command_like([ '/usr/bin/python3', '-m', 'idemq.relay', 'sql' ], qr/CREATE TABLE IF NOT EXISTS idemq_outbox\.jobs/, 'its SQL');
command_fails_like([ relay_command('none', 'run'), '--app', dsn('none', $jobs) ], qr/(?:3F000|42P01): .*idemq_outbox.*; idemq-relay create/, 'without the outbox');
sql($app, "CREATE ROLE owner LOGIN; CREATE DATABASE owned OWNER owner");
my $made = run_log([ '/usr/bin/python3', '-m', 'idemq.relay', 'create', '--app', dsn('make', $app) . ' dbname=owned user=owner', '--idemq', dsn('make', $jobs) ]);
ok($made, 'by a role that owns its database');

# Roles with what the page says that they need, and no more.
sql($app, 'CREATE ROLE shop; CREATE ROLE mover LOGIN; GRANT USAGE ON SCHEMA idemq_outbox TO shop, mover;
	GRANT INSERT, SELECT ON idemq_outbox.jobs TO shop; GRANT SELECT, UPDATE, DELETE ON idemq_outbox.jobs TO mover');
sql($jobs, "CREATE ROLE mover LOGIN; GRANT USAGE ON SCHEMA idemq TO mover; SELECT idemq.create_queue('mine'); SELECT idemq.grant_queue('mine', 'mover', 'enqueue');
	SELECT idemq.grant_queue('outbox_results', 'mover', p) FROM unnest('{enqueue, claim}'::text[]) p");
my $it = { name => 'mover', %{ program([ relay_command('mover', 'run', '--app', dsn('mover', $app) . ' user=mover', '--idemq', dsn('mover', $jobs) . ' user=mover') ]) } };
sql($app, q[SET ROLE shop; INSERT INTO idemq_outbox.jobs (queue, payload, reply) VALUES ('mine', '{}', true), ('q', '{}', false)]);
is_soon($app, q[SELECT string_agg(concat_ws(' ', queue, status, left(error, 5), job_id IS NOT NULL), ', ' ORDER BY id) FROM idemq_outbox.jobs WHERE sent_at IS NOT NULL], 'mine t, q refused 42501 f', 'by roles with few rights');
sql($jobs, q[SELECT idemq.commit(id, token, '"done"') FROM idemq.claim('mine')]);
is_soon($app, q[SELECT result FROM idemq_outbox.jobs WHERE queue = 'mine'], '"done"', 'and the result');
kill_9($it);
sql($app, 'TRUNCATE idemq_outbox.jobs');
command_fails_like([ relay_command('none', 'run', @$_) ], qr/1 or more, and --poll is more than 0/, "@$_") foreach [ '--batch', '0' ], [ '--writers', '0' ], [ '--poll', '-1' ];

# What the database cannot say in UTF-8 holds up nothing; null is a payload.
sql($app, q[CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C']);
my @bytes = ('--app', dsn('bytes', $app) . ' dbname=bytes');
command_ok([ relay_command('make', 'create', @bytes) ], 'created in SQL_ASCII');
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, key) VALUES ('mine', '1', 'before'), ('mine', E'"\xff"', 'bytes'), ('mine', 'null', 'null'), ('mine', E'"\xfe"', 'more'), ('mine', '3', 'behind')], 'bytes');
$it = { name => 'bytes', %{ program([ relay_command('bytes', 'run', @bytes) ]) } };
until_true('all are done with', sub { sql($app, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 'bytes') eq '0' });
is_sql($app, q[SELECT string_agg(concat_ws(' ', key, status, left(error, 5)), ', ' ORDER BY id) FROM idemq_outbox.jobs],
	'before, bytes refused 22021, null, more refused 22021, behind', 'what is no text is refused, and holds up nothing', 'bytes');
is_sql($jobs, q[SELECT payload FROM idemq.jobs WHERE key = 'null'], 'null', 'null is a payload');
kill_9($it);

# Both ways, and what a row may say.
$it = relay();
insert(3);
each_once('three');
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, key, kind, priority, run_at, expires_at, group_key, max_attempts, headers, key_ttl, on_duplicate)
	VALUES ('q', '{"is": 1.00000000000000000000001}', 'full', 'k', 2, '2050-01-01', '2051-01-01', 'g', 7, '{"h": 1}', '1 h', 'ignore')]);
is_soon($jobs, q[SELECT payload::text || kind || priority || (run_at > '2049-12-31')::text || (expires_at BETWEEN '2050-12-30' AND '2051-01-02')::text || group_key || max_attempts || headers
	|| (key_expires_at IS NOT NULL)::text FROM idemq.jobs WHERE key = 'full'], '{"is": 1.00000000000000000000001}k2truetrueg7{"h": 1}true', 'all that a row says is in the job');
# What is refused holds up nothing, and is sent again when it is asked for.
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, key, reply) VALUES ('q', '{"is": 2}', 'full', false), ('later', '{"is": 3}', 'l', true), ('q', '{"is": 4}', 'good', false)]);
wait_until($app, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 0);
is_sql($app, q[SELECT key, status, left(error, 5), job_id IS NULL FROM idemq_outbox.jobs WHERE status IS NOT NULL ORDER BY id], "full|refused|IQ003|t\nl|refused|IQ005|t", 'what is refused says why');
is_sql($jobs, q[SELECT count(*) FROM idemq.jobs WHERE key = 'good'], 1, 'and the row behind it is a job');
sql($jobs, "SELECT idemq.create_queue('later')");
sql($app, "UPDATE idemq_outbox.jobs SET sent_at = NULL WHERE key = 'l'");
is_soon($jobs, q[SELECT count(*) = 1 FROM idemq.jobs WHERE key = 'l'], 'sent again when the queue is there');
# The result, whatever becomes of the job; no digit is lost.
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, reply) VALUES ('later', '{"is": 5}', true), ('later', '{"is": 6}', true)]);
wait_until($jobs, "SELECT count(*) = 3 FROM idemq.jobs WHERE queue_id = idemq.queue_id('later')");
my $waiter = session($app);
$waiter->query_safe('LISTEN idemq_outbox_done');
sql($jobs, q[SELECT CASE payload ->> 'is' WHEN '6' THEN idemq.fail(id, token, 'no such order', permanent => true) ELSE idemq.commit(id, token, '{"sum": 0.10000000000000000000001}') END FROM idemq.claim('later', 3)]);
is_soon($app, q[SELECT string_agg(concat_ws(' ', payload ->> 'is', status, result, error), '; ' ORDER BY id) FROM idemq_outbox.jobs WHERE finished_at IS NOT NULL AND reply],
	'3 completed {"sum": 0.10000000000000000000001}; 5 completed {"sum": 0.10000000000000000000001}; 6 dead no such order', 'results are in their rows');
like($waiter->query('SELECT 1'), qr/Asynchronous notification "idemq_outbox_done" with payload "\d+"/, 'and whoever listens is told');
$waiter->quit;

# An id that becomes visible behind a later one that was sent.
my $late = session($app);
$late->query_safe(q[BEGIN; INSERT INTO idemq_outbox.jobs (queue, payload) VALUES ('q', '{"n": 4}')]);
$rows++;
insert(1);
wait_until($app, "SELECT count(*) = 1 FROM idemq_outbox.jobs WHERE sent_at IS NOT NULL AND payload ->> 'n' = '5'");
$late->query_safe('COMMIT');
$late->quit;
each_once('a lower id that is committed later');

# The order of a group, and nothing of what is rolled back.
sql($app, q[BEGIN; INSERT INTO idemq_outbox.jobs (queue, payload) VALUES ('q', '{"n": 0}'); ROLLBACK;
	INSERT INTO idemq_outbox.jobs (queue, payload, group_key) SELECT 'q', jsonb_build_object('o', g), 'order' FROM generate_series(1, 2500) g]);
each_once('a rollback');
is_sql($jobs, q[SELECT count(*), bool_and(o > before IS NOT FALSE) FROM (SELECT (payload ->> 'o')::int AS o, lag((payload ->> 'o')::int) OVER (ORDER BY id) AS before
	FROM idemq.jobs WHERE group_key = 'order') o], '2500|t', 'a group is in order over several batches');

# Where the relay is held up, while a session has the lock of that number: 1 before the job is in idemq, 2 in the COMMIT there,
# 3 before the row is marked, 4 in the COMMIT of that.
my $gates = q[CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM pg_advisory_xact_lock_shared(TG_ARGV[0]::int) FROM pg_stat_activity WHERE pid = pg_backend_pid() AND application_name LIKE 'relay-%';
		RETURN NULL;
	END $$];
sql($jobs, "$gates; CREATE TRIGGER gate1 BEFORE INSERT ON idemq.jobs FOR EACH STATEMENT EXECUTE FUNCTION gate(1);
	CREATE CONSTRAINT TRIGGER gate2 AFTER INSERT ON idemq.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gate(2)");
sql($app, "$gates; CREATE TRIGGER gate3 BEFORE UPDATE ON idemq_outbox.jobs FOR EACH STATEMENT EXECUTE FUNCTION gate(3);
	CREATE CONSTRAINT TRIGGER gate4 AFTER UPDATE ON idemq_outbox.jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION gate(4)");
my %held = (1 => 'jsonb_to_recordset', 2 => 'jsonb_to_recordset', 3 => 'UPDATE', 4 => 'COMMIT');

sub gate
{
	my ($number) = @_;
	my $session = session($number < 3 ? $jobs : $apps->[0]);

	$session->query_safe("SELECT pg_advisory_lock($number)");
	return $session;
}

# Killed at each of them: what waits there is ended with it, or is done by a session whose client is gone, before the next
# relay begins or beside it.
foreach my $number (1 .. 4)
{
	my $node = $number < 3 ? $jobs : $app;

	foreach my $what ('ended', 'done', 'done beside the next')
	{
		my $name = "killed at $number, $what";
		my $gate = gate($number);

		insert(10);
		waits_on($it, $node, $held{$number});
		kill_9($it);
		end_sessions($it, $node, $held{$number}) if $what eq 'ended';
		$gate->quit if $what eq 'done';
		wait_until($node, "SELECT count(*) FROM pg_stat_activity WHERE application_name = '$it->{name}' AND query LIKE '%$held{$number}%'", 0)
		  if $what eq 'done';
		is_sql($jobs, "SELECT count(*) $in_idemq", $number < 3 ? $rows - 10 : $rows, "$name: jobs that are there") if $what eq 'ended';
		is_sql($app, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 10, "$name: rows that are to be sent") if $what eq 'ended';
		my $dead = $it;
		$it = relay();
		if ($what eq 'done beside the next')
		{
			# It has come as far as it can: to the same gate, to keys that another uses, to rows that another has.
			waits_on($it, $node, $held{$number}, $number > 1 ? "state = 'idle'" : undef) if $number < 3;
			wait_until($app, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$it->{name}' AND query = 'COMMIT' AND state = 'idle'") if $number != 1;
			is_sql($app, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 10, "$name: they wait");
		}
		$gate->quit if $what ne 'done';
		each_once($name);
	}
}

# What is no row's fault is tried again, for as long as it takes, and said once.
sql($jobs, q[CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no space' USING ERRCODE = '53100'; END $$;
	CREATE TRIGGER full_disk BEFORE INSERT ON idemq.jobs FOR EACH ROW WHEN (NEW.payload ? 'n') EXECUTE FUNCTION full_disk()]);
insert(10);
until_true('three attempts', sub { my @times = slurp_file($jobs->logfile) =~ / 53100 .*ERROR:  no space/g; @times >= 3 });
is_sql($app, q[SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL AND status IS NULL], 10, 'the disk is full: the rows wait');
sql($jobs, 'DROP FUNCTION full_disk() CASCADE');
each_once('there is room again');
like(join(' ', slurp_file($it->{errors}) =~ /^idemq-relay: (53100|goes on)/mg), qr/^(?:goes on )*53100 goes on$/, 'said once, when it began and when it ended');

# The result: killed with the job in hand, before it is written, and before that is committed.
sub results
{
	my ($name, $killed) = @_;

	insert(1, 'true');
	my $n = $rows;
	wait_until($app, "SELECT job_id IS NOT NULL FROM idemq_outbox.jobs WHERE payload ->> 'n' = '$n'");
	my $id = sql($app, "SELECT job_id FROM idemq_outbox.jobs WHERE payload ->> 'n' = '$n'");
	$killed->("SELECT idemq.commit(id, (claim).token, '$n') FROM (SELECT ${id}::bigint AS id, idemq.claim_job($id) AS claim) c");
	is_soon($app, "SELECT status || result FROM idemq_outbox.jobs WHERE payload ->> 'n' = '$n'", "completed$n", "$name: the result is there");
	is_soon($jobs, q[SELECT count(*) = 0 FROM idemq.jobs WHERE queue_id = idemq.queue_id('outbox_results') AND status <> 'completed'], "$name: no result waits");
	return;
}

results('results', sub { sql($jobs, $_[0]) });
foreach my $number (3, 4)
{
	results("a result, killed at $number", sub {
		my $gate = gate($number);

		sql($jobs, $_[0]);
		# In autocommit: its COMMIT is of the same statement.
		waits_on($it, $app, 'WITH written AS');
		kill_9($it);
		end_sessions($it, $app, 'WITH written AS') if $number == 3;
		$gate->quit;
		$it = relay();
	});
}

# Two at once: one sends, and the other goes on when it is killed; one that was stopped wakes up when all of it is done.
my $gate = gate(1);
insert(10);
waits_on($it, $jobs, $held{1});
my $other = relay();
wait_until($app, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$other->{name}' AND query = 'COMMIT' AND state = 'idle'");
kill_9($it);
end_sessions($it, $_) foreach $jobs, $app;
waits_on($other, $jobs, $held{1});
$gate->quit;
each_once('the other goes on');
$gate = gate(1);
insert(10);
waits_on($other, $jobs, $held{1});
$other->{run}->signal('STOP');
# As idle_in_transaction_session_timeout does, and a statement that never came through.
end_sessions($other, $_) foreach $jobs, $app;
$gate->quit;
$it = relay();
each_once('one is stopped');
insert(10);
each_once('and the other goes on');
$other->{run}->signal('CONT');
insert(300);
each_once('both are there');

# Either server crashes while rows come, and the relay is killed with it.
foreach my $node ($app, $jobs, $app, $jobs)
{
	insert(3000);
	wait_until($app, 'SELECT count(*) < 3000 FROM idemq_outbox.jobs WHERE sent_at IS NULL');
	crash($node);
	insert(300);
	kill_9($other);
	$other = relay();
	each_once($node->name . ' has crashed');
}
kill_9($other);

# The managed server fails over to its standby, while the relay has sent rows and not marked them.
$app->backup('for_standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($app, 'for_standby', has_streaming => 1);
$standby->start;
$app->append_conf('postgresql.conf', "synchronous_standby_names = '*'");
$app->reload;
kill_9($it);
$apps = [ $app, $standby ];
$it = relay();
$gate = gate(3);
insert(10);
waits_on($it, $app, $held{3});
is_sql($jobs, "SELECT count(*) $in_idemq", $rows, 'sent, and not marked');
$app->stop('immediate');
eval { $gate->quit };
$standby->promote;
$apps = [ $standby, $app ];
insert(10);
each_once('the managed server has failed over');

# It is restored to an earlier time: ids are given out once more.  The rows under them are new jobs.
my $again = sql($standby, q[SELECT setval(pg_get_serial_sequence('idemq_outbox.jobs', 'id'), min(id) - 1) FROM (SELECT id FROM idemq_outbox.jobs ORDER BY id DESC LIMIT 20) i]);
sql($standby, "DELETE FROM idemq_outbox.jobs WHERE id > $again");
insert(20);
each_once('ids that come again');

# The server with idemq is restored from a backup: what was sent after that is sent again, and what was sent before is known.
insert(10);
each_once('before the backup');
$jobs->backup('early');
my $after = sql($standby, 'SELECT clock_timestamp()');
insert(10);
insert(1, 'true');
each_once('after the backup');
$jobs->stop('immediate');
my $old = $jobs;
$jobs = PostgreSQL::Test::Cluster->new('restored');
$jobs->init_from_backup($old, 'early');
$jobs->start;
kill_9($it);
$it = relay();
is_sql($jobs, "SELECT count(*) $in_idemq", $rows - 11, 'restored: what came after the backup is lost');
sql($standby, "UPDATE idemq_outbox.jobs SET sent_at = NULL WHERE sent_at >= '$after'::timestamptz - interval '1 hour' AND job_id IS NOT NULL AND finished_at IS NULL");
each_once('restored, and sent again');

# What was sent long ago goes, and what is refused or waits for its result stays.
sql($standby, "UPDATE idemq_outbox.jobs SET sent_at = sent_at - interval '8 days', finished_at = finished_at - interval '8 days'");
kill_9($it);
$it = relay();
is_soon($standby, q[SELECT count(*) FROM idemq_outbox.jobs WHERE NOT reply AND status IS NULL], 0, 'old rows are deleted');
is_sql($standby, q[SELECT count(*) FILTER (WHERE status = 'refused'), count(*) FILTER (WHERE finished_at IS NULL) FROM idemq_outbox.jobs], '1|1', 'but those that somebody waits for');

# Through a pooler in transaction mode, where no NOTIFY comes.
my ($start_pooler, $dir, $port) = pooler($standby, default_pool_size => 2);
my $pooler = $start_pooler->();
kill_9($it);
$it = { name => 'relay-pooled', %{ program([ relay_command('relay-pooled', 'run', '--poll', '0.2', '--app', "host=$dir port=$port dbname=postgres user=$user") ]) } };
insert(1500);
each_once('through a pooler');
kill_9($it);
$it = { name => 'relay-pooled', %{ program([ relay_command('relay-pooled', 'run', '--poll', '0.2', '--app', "host=$dir port=$port dbname=postgres user=$user") ]) } };
insert(10);
each_once('and the next one, in the same sessions');
$pooler->kill_kill;
kill_9($it);
$it = relay();
insert(1);
each_once('directly again');

# SIGTERM ends it.
$it->{run}->signal('TERM');
$it->{run}->finish;
is($it->{run}->full_result(0), 0, 'SIGTERM') or diag slurp_file($it->{errors});
is_sql($jobs, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');

# Microseconds of processor time of the relay, of its sessions there, and here.
sub processor_time
{
	my @pids = ([ $it->{run}{KIDS}[0]{PID} ], map { [ split /\n/, sql($_, "SELECT pid FROM pg_stat_activity WHERE application_name = '$it->{name}'") ] } $standby, $jobs);
	my @sums;

	foreach my $processes (@pids)
	{
		my $ticks = 0;

		$ticks += $_->[11] + $_->[12] foreach map { [ split / /, slurp_file("/proc/$_/stat") =~ s/^.*\) //r ] } @$processes;
		push @sums, $ticks * 1000000 / POSIX::sysconf(POSIX::_SC_CLK_TCK());
	}
	return @sums;
}

# How fast, with all on one machine, and without the gates and the logs of this test: the page says these.
sql($jobs, 'DROP FUNCTION gate() CASCADE');
sql($standby, 'DROP FUNCTION gate() CASCADE');
foreach my $node ($standby, $jobs)
{
	$node->append_conf('postgresql.conf', "log_statement = 'none'\nfsync = on");
	$node->reload;
}
$it = relay();
sql($standby, 'TRUNCATE idemq_outbox.jobs');
insert(1);
each_once('before the figures');
sql($standby, 'TRUNCATE idemq_outbox.jobs');
my @before = processor_time();
sql($standby, q[INSERT INTO idemq_outbox.jobs (queue, payload) SELECT 'q', jsonb_build_object('order', g, 'address', 'anna@example.com') FROM generate_series(1, 20000) g]);
wait_until($standby, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 0);
my @spent = processor_time();
diag 'figure: 20,000 rows: ' . sql($standby, q[SELECT round(count(*) / extract(epoch FROM max(sent_at) - min(created_at))) FROM idemq_outbox.jobs]) . ' jobs a second; '
  . join(', ', map { sprintf '%.0f us of %s', ($spent[$_] - $before[$_]) / 20000, ('the relay', 'its sessions in the outbox', 'those in idemq')[$_] } 0 .. 2) . ' a row';
sql($standby, 'TRUNCATE idemq_outbox.jobs');
foreach (1 .. 50)
{
	sql($standby, q[INSERT INTO idemq_outbox.jobs (queue, payload) VALUES ('q', '{}')]);
	wait_until($standby, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 0);
}
diag 'figure: one row: ' . sql($standby, q[SELECT format('%s ms in the median, %s ms at most, until its job is there', round(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms)::numeric, 1), round(max(ms)::numeric, 1))
	FROM (SELECT 1000 * extract(epoch FROM sent_at - created_at) AS ms FROM idemq_outbox.jobs) l]);
kill_9($it);
$_->stop foreach $standby, $jobs;
done_testing();
