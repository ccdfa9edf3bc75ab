# idemq-relay when another relay takes over, when one is stopped and continues, when a server runs out of space, crashes,
# fails over or is restored from a backup, and behind a pooler; and how fast it is.  Each row becomes one job.
# slow: crashes, a failover and a backup of two servers, 20,000 rows
# expects in log: was terminated by signal
# at least 53 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use Idemq;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Relays;
use Test::More;

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
my ($app, $jobs) = servers();

command_ok([ relay_command('make', 'create') ], 'created');
make_gates();
my $it = relay();
# A row that is refused: it must still be there in the end.
sql($app, q[INSERT INTO idemq_outbox.jobs (queue, payload, reply) VALUES ('none', '{"is": 1}', false)]);
insert(3);
each_once('three');

# Killed at each of its steps, while its last statement completes alongside the next relay.
foreach my $number (1 .. 4)
{
	my $node = $number < 3 ? $jobs : $app;
	my $name = "killed at $number, done beside the next";
	my $gate = hold_at($number);

	insert(10);
	waits_on($it, $node, held_up($number));
	kill_9($it);
	$it = relay();
	# It has come as far as it can: to the same gate, to keys that another uses, to rows that another has.
	waits_on($it, $node, held_up($number), $number > 1 ? "state = 'idle'" : undef) if $number < 3;
	wait_until($app, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$it->{name}' AND query = 'COMMIT' AND state = 'idle'") if $number != 1;
	is_sql($app, 'SELECT count(*) FROM idemq_outbox.jobs WHERE sent_at IS NULL', 10, "$name: they wait");
	leave($gate);
	each_once($name);
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

# Two at once: one sends, and the other goes on when it is killed; one that was stopped wakes up when all of it is done.
my $gate = hold_at(1);
insert(10);
waits_on($it, $jobs, held_up(1));
my $other = relay();
wait_until($app, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$other->{name}' AND query = 'COMMIT' AND state = 'idle'");
kill_9($it);
end_sessions($it, $_) foreach $jobs, $app;
waits_on($other, $jobs, held_up(1));
leave($gate);
each_once('the other goes on');
$gate = hold_at(1);
insert(10);
waits_on($other, $jobs, held_up(1));
$other->{run}->signal('STOP');
# As idle_in_transaction_session_timeout does, and a statement that never came through.
end_sessions($other, $_) foreach $jobs, $app;
leave($gate);
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
relays_of([ $app, $standby ], $jobs);
$it = relay();
$gate = hold_at(3);
insert(10);
waits_on($it, $app, held_up(3));
is_sql($jobs, "SELECT count(*) ${\in_idemq}", rows(), 'sent, and not marked');
$app->stop('immediate');
eval { leave($gate) };
$standby->promote;
relays_of([ $standby, $app ], $jobs);
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
relays_of([ $standby, $app ], $jobs);
kill_9($it);
$it = relay();
is_sql($jobs, "SELECT count(*) ${\in_idemq}", rows() - 11, 'restored: what came after the backup is lost');
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
$it = { name => 'relay-pooled', %{ program([ relay_command('relay-pooled', 'run', '--poll', '0.2', '--app', "host=$dir port=$port dbname=postgres user=${\scalar getpwuid($>)}") ]) } };
insert(1500);
each_once('through a pooler');
kill_9($it);
$it = { name => 'relay-pooled', %{ program([ relay_command('relay-pooled', 'run', '--poll', '0.2', '--app', "host=$dir port=$port dbname=postgres user=${\scalar getpwuid($>)}") ]) } };
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
