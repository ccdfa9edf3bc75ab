# From pg-boss, graphile-worker and a table with SKIP LOCKED into idemq, with deploy/import, and out again: jobs that the real
# libraries have made, in every state; a script that is killed, run again, and beside workers and producers of both sides.
# slow: imports from pg-boss and graphile-worker, which need npm
# at least 71 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $node = new_server('moving', 'idemq.worker' => 'on', max_connections => 100);
my $user = getpwuid($>);
my $app = PostgreSQL::Test::Utils::tempdir();

if ($ENV{IDEMQ_NODE_MODULES})
{
	symlink $ENV{IDEMQ_NODE_MODULES}, "$app/node_modules" or die $!;
	system_or_bail('cp', "$here/moving.mjs", $app);
}

# A script of deploy/import: what it printed, and said on stderr.
sub import_command
{
	my ($db, $file, @options) = @_;

	return ('psql', '-X', '-d', $node->connstr($db), (map { ('-v', $_) } @options), '-f', $file =~ m{/} ? $file : "$ENV{IDEMQ_SOURCE}/deploy/import/$file.sql");
}

sub import_from
{
	my ($out, $err) = ('', '');

	local $ENV{PGAPPNAME} = 'import';
	IPC::Run::run([ import_command(@_) ], '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(120));
	return ($out, $err);
}

sub node_program
{
	my ($db, @command) = @_;

	return { name => "@command", %{ program([ 'node', "$app/moving.mjs", @command ], PGHOST => $node->host, PGPORT => $node->port, PGUSER => $user, PGDATABASE => $db) } };
}

sub database
{
	my ($db) = @_;

	sql($node, "CREATE DATABASE $db");
	sql($node, 'CREATE EXTENSION idemq; CREATE TABLE effects (n int, by text)', $db);
	return;
}

sub counts_of { my ($done) = @_; return qr/NOTICE:  jobs moved: $done->[0]; dead jobs moved: $done->[1]; jobs merged with a waiting job that has the same key: $done->[2]; jobs not moved because of errors: $done->[3]; jobs not moved because another session has locked them: 0\n/ }

my $jobs = q[SELECT concat_ws(' ', queue, payload ->> 'is', status, priority, CASE WHEN ready_at > now() + interval '6 days' THEN 'later' END, key, group_key, kind, max_attempts, last_error,
	'(' || (headers #>> '{imported,attempts}') || ')', headers #>> '{imported,last_error}') FROM (SELECT l.queue, j.* FROM idemq.jobs j JOIN idemq.job_list l USING (id)) j
	WHERE payload ->> 'is' <> 'mine' OR payload = 'null' ORDER BY queue, payload ->> 'is'];

# Killed while it moves jobs, in a trigger that a lock holds open: what was moved before is moved, and the rest is not.
sub killed
{
	my ($db, $file) = @_;

	sql($node, q[CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
		CREATE TRIGGER gate AFTER INSERT ON idemq.jobs FOR EACH ROW WHEN (NEW.payload ->> 'is' = 'urgent') EXECUTE FUNCTION gate()], $db);
	my $gate = session($node, $db);
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my $it = { name => 'the import', %{ program([ import_command($db, $file, 'go=1') ], PGAPPNAME => 'import') } };
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'import' AND wait_event_type = 'Lock'");
	kill_9($it);
	sql($node, "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'import'");
	leave($gate);
	sql($node, 'DROP TRIGGER gate ON idemq.jobs; DROP FUNCTION gate()', $db);
	return;
}

# Producer and worker of the library, workers of idemq, and imports one after the other, of which some are killed.
sub side_by_side
{
	my ($db, $library, $file, $queue) = @_;
	my $count = 300;

	my $it = node_program($db, $library, 'run', $count);
	my ($sent, $killed, $round) = (0, 0, 0);

	# Of the first half there is something to move, and its worker does some of the second.
	until_true('half are sent', sub { slurp_file($it->{said}) =~ /^half/m });
	my $half = $count / 2 - 1;
	like((import_from($db, $file, 'go=1'))[1], qr/moved: $half;/, "$library: the first half is moved");
	$it->{run}->signal('USR2');
	until_true('its worker works', sub { sql($node, "SELECT EXISTS (SELECT FROM effects WHERE n IS NOT NULL)", $db) eq 't' });
	my $work = "INSERT INTO effects SELECT (payload ->> 'n')::int, 'idemq' FROM idemq.claim('$queue', 5) c WHERE idemq.commit(c.id, c.token) IS NOT NULL";
	my $end = time + 300;

	until ($killed && $sent && sql($node, "SELECT count(*) FROM effects WHERE n IS NOT NULL", $db) >= $count)
	{
		die 'not all are done: ' . slurp_file($it->{errors}) if time > $end;
		# Every other import is ended where it is.
		{
			local $ENV{PGOPTIONS} = '-c statement_timeout=' . ($round++ % 2 ? 0 : 1 + int(rand(60)));
			$killed += (import_from($db, $file, 'go=1'))[1] =~ /ERROR: .*statement timeout/;
		}
		sql($node, $work, $db);
		$sent ||= slurp_file($it->{said}) =~ /^sent/m;
	}
	$it->{run}->signal('TERM');
	$it->{run}->finish;
	is($it->{run}->full_result(0), 0, "$library: its process ends") or diag slurp_file($it->{errors});
	is_sql($node, 'SELECT count(*), count(DISTINCT n), count(DISTINCT by) FROM effects WHERE n IS NOT NULL', "$count|$count|2", "$library: side by side each effect is there once, by both, while imports are ended", $db);
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$library: check", $db);
	diag "figure: $library: " . join(', ', split /\n/, sql($node, "SELECT by || ' ' || count(*) FROM effects GROUP BY by ORDER BY by", $db));
	return;
}

# A library's jobs: what a dry run says, what is killed, moved, and moved again; then beside each other.
sub moves
{
	my ($library, $file, $left, %it) = @_;
	my $db = $library =~ tr/-/_/r;
	my $queues = join ', ', @{ $it{queues} };

	SKIP:
	{
		skip "no $library", 1 unless $ENV{IDEMQ_NODE_MODULES} && -d "$ENV{IDEMQ_NODE_MODULES}/$library";
		database($db);
		my $run = node_program($db, $library, 'fill');
		$run->{run}->finish;
		is($run->{run}->full_result(0), 0, "$library has made jobs") or diag slurp_file($run->{errors});
		my $before = sql($node, $left, $db);
		my ($out, $err) = import_from($db, $file);
		like($out, $_, "$library: what it would do") foreach @{ $it{shows} };
		is($err, '', "$library: a dry run complains of nothing");
		is_sql($node, $left, $before, "$library: and has done nothing", $db);
		($out, $err) = import_from($db, $file, 'go=1');
		like($err, qr/ERROR:  these queues do not exist in idemq: .*\nHINT/, "$library: without the queues");
		is_sql($node, $left, $before, "$library: nothing is moved", $db);

		# One that is asked for already, and one that is asked for with another payload.
		my ($keyed) = $it{keyed};
		sql($node, "SELECT idemq.create_queue(name) FROM unnest('{$queues}'::text[]) AS name; SELECT idemq.enqueue('$keyed->[0]', '{\"is\": \"known\"}', key => 'customer-8', kind => $keyed->[1]);
			SELECT idemq.enqueue('$keyed->[0]', '{\"is\": \"mine\"}', key => 'customer-9', kind => $keyed->[1])", $db);
		killed($db, $file);
		is_sql($node, $left, $before, "$library: killed within a transaction, that has done nothing", $db);
		($out, $err) = import_from($db, $file, 'go=1');
		like($err, counts_of($it{counts}), "$library: what was done");
		like($err, $_, "$library: what was said") foreach @{ $it{says} // [] };
		is_sql($node, $left, $it{left}, "$library: what stays", $db);
		my $after = sql($node, $jobs, $db);
		is($after =~ s{/(?:[0-9a-f-]{36}|\d+)}{/ID}gr, $it{jobs}, "$library: as jobs of idemq");
		($out, $err) = import_from($db, $file, 'go=1');
		like($err, counts_of([ 0, 0, 0, $it{counts}[3] ]), "$library: once more, there is nothing to do");
		is_sql($node, $jobs, $after, "$library: and nothing is done", $db);
		$it{after}->($db);
		sql($node, "SELECT idemq.drop_queue(name, force => true) FROM unnest('{$queues}'::text[]) AS name; SELECT idemq.create_queue(name) FROM unnest('{$queues}'::text[]) AS name", $db);
		side_by_side($db, $library, $file, $it{queues}[0]);
	}
	return;
}

foreach my $library ('pg-boss-10', 'pg-boss')
{
	moves($library, 'pg-boss', "SELECT concat_ws(' ', data ->> 'is', state) FROM pgboss.job ORDER BY 1",
		queues => [qw(mail one short)], keyed => [ 'short', 'NULL' ],
		shows => [ qr/ mail  \|     4 \|       2 \|    1 \|             1 \|          0 \|          0 \| create it first\n/, qr/ mail +\| active \| +1\n/, qr/mail +\| 0 3 \* \* \* \| Europe\/Berlin/ ],
		counts => [ 10, 1, 1, 1 ], says => [ qr/WARNING:  could not move job .* of queue short: .*key/, qr/created schedule mail in idemq/ ],
		left => "active active\ntoo long created",
		jobs => join("\n", 'mail dead dead 4 pg-boss/ID 1 no such address (1)', 'mail delayed pending 4 later pg-boss/ID 3 (0)', 'mail most urgent pending 0 pg-boss/ID 2147483647 (0)',
			'mail retried pending 4 pg-boss/ID 4 (1) try later', 'mail urgent pending 1 pg-boss/ID 3 (0)', 'mail waiting pending 4 pg-boss/ID 3 (0)', 'mail pending 4 pg-boss/ID 3 (0)',
			'one another blocked 4 pg-boss/ID one 3 (0)', 'one one pending 4 pg-boss/ID one 3 (0)', 'short keyed pending 4 customer-7 3 (0)', 'short known pending 4 customer-8 20',
			'short other pending 4 pg-boss/ID 3 (0)'),
		after => sub {
			my ($db) = @_;

			is_sql($node, q[SELECT name, queue, cron, time_zone, payload FROM idemq.schedules], 'pg-boss/mail|mail|0 3 * * *|Europe/Berlin|{"is": "nightly"}', "$library: the schedule", $db);
			is_sql($node, 'SELECT count(*) FROM pgboss.schedule', 0, "$library: is there no longer", $db);
			sql($node, "SELECT idemq.unschedule('pg-boss/mail'); DELETE FROM pgboss.job", $db);
		});
}

moves('graphile-worker', 'graphile-worker', "SELECT concat_ws(' ', payload ->> 'is', task_identifier) FROM graphile_worker._private_jobs j JOIN graphile_worker.jobs USING (id) ORDER BY 1",
	queues => ['jobs'], keyed => [ 'jobs', "'mail'" ],
	shows => [ qr/ jobs  \|     9 \|       2 \|    1 \|             1 \|          3 \|          3 \| create it first\n/, qr/ hangs +\| +1\n/ ],
	counts => [ 10, 1, 1, 0 ], left => "active hangs\nbehind it mail",
	jobs => join("\n", 'jobs dead dead 4 graphile-worker/ID mail 1 no such address (25)', 'jobs delayed pending 4 later graphile-worker/ID mail 25 (0)', 'jobs keyed pending 4 customer-7 mail 25 (0)',
		'jobs known pending 4 customer-8 mail 20', 'jobs last pending 9 graphile-worker/ID mail 25 (0)', 'jobs ordered 1 pending 4 graphile-worker/ID customer-1 mail 25 (0)',
		'jobs ordered 2 blocked 4 graphile-worker/ID customer-1 print 25 (0)', 'jobs ordered 3 blocked 4 graphile-worker/ID customer-1 mail 25 (0)',
		'jobs other pending 4 graphile-worker/ID mail 25 (0)', 'jobs retried pending 4 graphile-worker/ID fails 4 (1) try later', 'jobs urgent pending 1 graphile-worker/ID mail 25 (0)',
		'jobs waiting pending 4 graphile-worker/ID mail 25 (0)'),
	after => sub { sql($node, 'DELETE FROM graphile_worker._private_jobs', $_[0]) });

# A table of one's own; its payloads may be no JSON.
database('skip');
sql($node, q[CREATE TABLE jobs (id bigserial PRIMARY KEY, payload text, status text NOT NULL DEFAULT 'waiting', priority int NOT NULL DEFAULT 4, run_at timestamptz,
		attempts int NOT NULL DEFAULT 0, max_attempts int NOT NULL DEFAULT 5, last_error text, created_at timestamptz NOT NULL DEFAULT now());
	INSERT INTO jobs (payload, status, priority, run_at, attempts, last_error) VALUES ('{"is": "waiting"}', 'waiting', 4, NULL, 0, NULL), ('{"is": "urgent"}', 'waiting', -7, NULL, 2, 'try later'),
		('{"is": "delayed"}', 'waiting', 4, now() + interval '7 days', 0, NULL), ('{"is": "dead"}', 'failed', 4, NULL, 5, 'no such address'), ('{"is"', 'waiting', 4, NULL, 0, NULL),
		('{"is": "active"}', 'running', 4, NULL, 0, NULL), ('{"is": "held"}', 'waiting', 4, NULL, 0, NULL);
	SELECT idemq.create_queue('mail')], 'skip');
my $holder = session($node, 'skip');
$holder->query_safe(q[BEGIN; SELECT FROM jobs WHERE payload LIKE '%held%' FOR UPDATE]);
my ($out, $err) = import_from('skip', 'skip-locked', 'go=1');
like($err, qr/WARNING:  could not move job 5 of queue mail: invalid input syntax for type json\n/, 'a table: what cannot be taken');
like($err, qr/jobs moved: 3; dead jobs moved: 1; jobs merged with a waiting job that has the same key: 0; jobs not moved because of errors: 1; jobs not moved because another session has locked them: 1/, 'a table: what a worker has is left to it');
leave($holder);
is_sql($node, q[SELECT payload FROM jobs ORDER BY id], qq[{"is"\n{"is": "active"}\n{"is": "held"}], 'a table: what stays', 'skip');
is_sql($node, $jobs, qq[mail dead dead 4 jobs/4 1 no such address (5)\nmail delayed pending 4 later jobs/3 5 (0)\nmail urgent pending 0 jobs/2 3 (2) try later\nmail waiting pending 4 jobs/1 5 (0)], 'a table: as jobs of idemq', 'skip');

# And out again, as the page says it.
my ($leave) = slurp_file("$ENV{IDEMQ_SOURCE}/doc/operations/moving.md") =~ /^(BEGIN;\nLOCK TABLE idemq.jobs.*?^COMMIT;)$/ms;
sql($node, q[UPDATE jobs SET status = 'gone'; SELECT idemq.commit(id, token) FROM idemq.claim('mail')], 'skip');
sql($node, $leave, 'skip');
is_sql($node, q[SELECT payload, status, priority, run_at > now() + interval '6 days', attempts, max_attempts, last_error FROM jobs WHERE status <> 'gone' ORDER BY 1],
	qq[{"is": "dead"}|failed|4||1|1|no such address\n{"is": "delayed"}|waiting|4|t|0|5|\n{"is": "waiting"}|waiting|4|f|0|5|], 'out again: as rows', 'skip');
is_state($node, q[SELECT idemq.enqueue('mail', '{}')], 'IQ005', 'and the queue is gone', 'skip');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check', 'skip');
$node->stop;
done_testing();
