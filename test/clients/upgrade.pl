# The next version comes: from this one's library and SQL objects to a synthetic next one's (t/lib/NextVersion.pm), which
# changes a call, a column, a primitive and the settings of a queue.  Two applications, three workers, a handler and a schedule go on all the time, half
# of them behind a pooler: at the package, the restart with the new library, the way back to the old one, and ALTER EXTENSION.
# Nobody meets an error but the restart's own; in the end every effect is counted.
# takes long
# slow: builds the next version of idemq
# at least 101 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use JSON::PP;
use NextVersion;
use NodeClient;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $old = "SELECT extversion FROM pg_extension WHERE extname = 'idemq'";
my $update = "SET lock_timeout = '60 s'; ALTER EXTENSION idemq UPDATE";
my $install = own_install();
my ($tree, $this, $next) = next_version();
build_next($tree, $install);
is(join('', run_command([ '/usr/bin/python3', "$tree/script/check/kept", "$tree/sql/idemq--$this.sql", $tree ])), '', 'by the rules, as far as lint knows them');
my $with_node = !!$ENV{IDEMQ_NODE_MODULES};
my $app;
if ($with_node)
{
	packed();
	$app = application('app', [], "$here/once_worker.mjs");
}
my @queues = ((map { ("${_}_run", "${_}_batch") } 'python', 'asyncio', $with_node ? 'node' : ()), 'handled');
SKIP: { skip 'no npm packages', 1 if !$with_node; pass('Node is there') }

my $node = PostgreSQL::Test::Cluster->new('upgrade', install_path => $install);
$node->init;
$node->append_conf('postgresql.conf', server_conf());
$node->append_conf('postgresql.conf', "idemq.worker = 'on'\nlog_statement = 'none'\nmax_connections = 100\nmax_prepared_transactions = 2");
$node->start;

# ---- Who goes on

sql($node, 'CREATE EXTENSION idemq; CREATE TABLE orders (queue text, n int, PRIMARY KEY (queue, n)); CREATE TABLE effects (queue text, n int, token bigint);
	CREATE TABLE ticks (schedule text); ' . join('; ', map { "SELECT idemq.create_queue('$_', lease => '30 s', max_attempts => 1000000, retry_base => '1 ms',
	retry_max => '10 ms')" } @queues, map({ "${_}_outside" } qw(python asyncio node)), 'ticking') . q{;
	CREATE FUNCTION effect(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO effects SELECT 'handled', (payload->>'n')::int WHERE (payload->>'n')::int % 2 = 0 $$;
	CREATE FUNCTION tick(payload jsonb) RETURNS void LANGUAGE sql AS $$ INSERT INTO ticks VALUES (payload #>> '{}') $$;
	SELECT idemq.set_handler('handled', 'effect', workers => 2), idemq.set_handler('ticking', 'tick'), idemq.schedule('ticks', '* * * * *', 'ticking', '"always"', kind => 'tick'); -- meant to tick
	CREATE ROLE maker; GRANT USAGE ON SCHEMA idemq TO maker; GRANT EXECUTE ON FUNCTION idemq.create_queue TO maker;
	CREATE DATABASE other});
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h')", 'other');

my $user = getpwuid($>);
my ($start_pooler, @pooler) = pooler($node, default_pool_size => 20, max_client_conn => 200);
my $pooler = $start_pooler->();
my %place = (direct => [ $node->host, $node->port ], pooled => \@pooler);
my @processes;

sub process
{
	my ($name, $place, $command, %settings) = @_;
	my $to = sub {
		my ($host, $port) = @{ $place{ $_[0] } };

		return { host => $host, port => $port + 0, user => $user, database => 'postgres' } if $command->[0] eq 'node';
		return "host=$host port=$port user=$user dbname=postgres";
	};
	my $said = "$tmp/said.$#processes." . $name =~ s/ /_/gr;
	my $json = JSON::PP->new->canonical->encode({ connection => $to->($place), wait => $place eq 'pooled' ? $to->('direct') : undef,
			log => "$tmp/called", sent => "$tmp/sent", control => JSON::PP::false, %settings });

	push @processes, { name => $name, said => $said, run => IPC::Run::start([ @$command, $json ], '<', \undef, '>', '/dev/null', '2>', $said) };
	return;
}

# Waits until in each queue jobs were done that came after this call; no process ends by itself.
sub goes_on
{
	my ($when) = @_;
	my $from = sql($node, 'SELECT coalesce(max(id), 0) FROM idemq.jobs');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok( eval {
			until_true('jobs are done', sub {
				foreach my $it (@processes)
				{
					next if eval { $it->{run}->pump_nb; 1 };
					die "$it->{name} has ended: " . slurp_file($it->{said});
				}
				return sql($node, "SELECT count(DISTINCT queue_id) FROM (SELECT queue_id FROM idemq.jobs
					WHERE id > $from AND status = 'completed' GROUP BY queue_id, (payload->>'n')::int / 2 % 2 HAVING count(*) > 3) j") >= @queues;
			});
			1;
		}, "$when: all go on") or BAIL_OUT($@);
	return;
}

# The worker's part: a schedule of the first version that is made again as it is, and comes due now: each once, whatever the minute.
my $schedule = sub { return "SELECT idemq.schedule('$_[0]', '0 0 1 1 *', 'ticking', '\"$_[0]\"', kind => 'tick')" };
sub ticks
{
	my ($when, $code) = @_;

	sql($node, $schedule->($when) . "; UPDATE idemq_internal.schedule_entries SET done_until = done_until - interval '1 year' WHERE name = '$when'");
	$code->();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_soon($node, "SELECT count(*) > 0 FROM ticks WHERE schedule = '$when'", "$when: the schedule and its handler");
}
sql($node, $schedule->($_)) foreach 'the new library', 'after ALTER EXTENSION';

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
append_to_file("$tmp/$_", '') foreach qw(called sent);
process('application 1', 'direct', [ '/usr/bin/python3', "$here/producer.py" ], half => 0, queues => \@queues, prepare => JSON::PP::true);
process('application 2', 'pooled', [ '/usr/bin/python3', "$here/producer.py" ], half => 1, queues => \@queues, prepare => JSON::PP::false);
process('python', 'direct', [ '/usr/bin/python3', "$here/once_worker.py", 'threads' ]);
process('asyncio', 'pooled', [ '/usr/bin/python3', "$here/once_worker.py", 'asyncio' ]);
process('node', 'direct', [ 'node', "$app/once_worker.mjs" ]) if $with_node;

# A session of an application that stays as long as the server does.
sub session_with_statements
{
	my $session = session($node);

	$session->query_safe(q{PREPARE claims AS SELECT * FROM idemq.claim('python_outside'); PREPARE answers AS SELECT * FROM idemq.try_commit(1, 1);
		PREPARE adds AS SELECT * FROM idemq.enqueue('outside', '1'); PREPARE lists AS SELECT * FROM idemq.job_list WHERE id = 1;
		PREPARE columns AS SELECT id, status FROM idemq.job(1); PREPARE schedules AS SELECT * FROM idemq.schedules});
	return $session;
}
sub statements_go_on
{
	my ($session, $when) = @_;
	my $said = join ' ', map { scalar $session->query("EXECUTE $_; \\echo :SQLSTATE") =~ s/.*\n//sr } qw(answers adds lists columns schedules claims);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($said, '00000 00000 00000 00000 00000 00000', "$when: prepared statements");
	return;
}
sql($node, "SELECT idemq.create_queue('outside')");

sub restarted
{
	my ($library) = @_;

	$node->restart;
	wait_until($node, 'SELECT true');
	is_sql($node, 'SHOW idemq.version', $library, "the library is $library");
	return;
}

# How often the log has said of a database that an update waits.
sub told
{
	my ($db) = @_;

	return scalar(() = slurp_file($node->logfile) =~ /LOG:  an update of idemq is available in database "$db": its SQL objects have version \Q$this\E, and the library has version \Q$next\E\n/g);
}

# ---- Package, restart, back, and once more

goes_on("version $this");
install_next($tree, $install);
goes_on('the package is there');
restarted($next);
is_sql($node, $old, $this, 'the SQL objects are what they were');
ticks('the new library', sub { goes_on('the new library') });
worker_pid($node, $_) foreach qw(postgres other);
is(told('postgres') . told('other'), '11', 'the log says once for each database that an update waits');
is_sql($node, q{SET ROLE maker; SELECT idemq.create_queue('made', max_running => 3) > 0; SELECT idemq.alter_queue('made', max_running => 0, lease => '1 min'); RESET ROLE;
	SELECT lease, max_running IS NULL FROM idemq.queues WHERE name = 'made'}, "t\n\n00:01:00|t", 'settings of a queue, without the new one');

install_this($install);
goes_on('the old package is there again');
restarted($this);
goes_on('back');
install_next($tree, $install);
restarted($next);
goes_on('the new library again');
worker_pid($node, $_) foreach qw(postgres other);
is(told('postgres') . told('other'), '22', 'and once more in its second life');

# ---- ALTER EXTENSION, under load

my $session = session_with_statements();
statements_go_on($session, 'before ALTER EXTENSION');
# It waits for a transaction that has written, and does not roll it back.
my $writer = session($node);
$writer->query_safe(q{BEGIN; SELECT idemq.enqueue('outside', '"open"')});
my $updating = session($node);
$updating->query_until(qr/sent/, "\\set VERBOSITY sqlstate\n\\echo sent\n$update; SELECT 'updated';\n");
wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%ALTER EXTENSION%' AND pid <> pg_backend_pid()});
is($writer->query_safe(q{SELECT outcome FROM idemq.enqueue('outside', '"open, too"')}), 'accepted', 'a transaction that is open goes on');
$writer->query_safe('COMMIT');
like(scalar $updating->query('SELECT 1'), qr/updated/, 'ALTER EXTENSION');
is_sql($node, $old, $next, 'the SQL objects are new');
ticks('after ALTER EXTENSION', sub { goes_on('after ALTER EXTENSION') });
statements_go_on($session, 'after ALTER EXTENSION');
is_sql($node, q{SELECT payload FROM idemq.jobs j WHERE queue_id = idemq.queue_id('outside') AND payload::text LIKE '"%' ORDER BY id}, qq{"open"\n"open, too"}, 'what was open is there');

# What is new, and what is not.
is_sql($node, q{SELECT outcome FROM idemq.enqueue('outside', '"new"', priority => 0, trace => 'here')}, 'accepted', 'the further argument');
is_sql($node, q{SELECT payload FROM idemq.claim('outside')}, '"new"', 'is claimed');
is_sql($node, q{SELECT trace FROM idemq.jobs WHERE payload = '"new"'}, 'here+', 'the column: written by the call, and by the claim');
is_state($node, q{SELECT idemq.schedule('long', '0 3 * * *', 'outside', '1', kind => repeat('x', 65))}, '22023', 'the primitive');
is_sql($node, q{SET ROLE maker; SELECT idemq.create_queue('made_too', max_trace => 3) > 0; RESET ROLE; SELECT idemq.alter_queue('outside', max_trace => 4);
	SELECT name, max_trace FROM idemq.queues WHERE max_trace > 0 ORDER BY 1}, "t\n\nmade_too|3\noutside|4", 'the setting, by a role that might make queues before');
is(scalar $session->query(q{\set VERBOSITY sqlstate}) . $session->query(q{SELECT outcome FROM idemq.enqueue('outside', '1', trace => 'here'); SELECT FROM idemq.enqueue('outside', '1', trace => 'there');
\echo :SQLSTATE}), "accepted\n22023", 'a session from before heeds it');
is_sql($node, $old, $this, 'the other database is as it was', 'other');
is_sql($node, q{SELECT outcome FROM idemq.enqueue('q', '1'); SELECT attempt FROM idemq.claim('q'); SELECT idemq.commit(id, token) FROM idemq.jobs}, "accepted\n1\ncommitted", 'and works', 'other');

leave($session, $writer, $updating);
restarted($next);
goes_on('with all that is new');
worker_pid($node, $_) foreach qw(postgres other);
is(told('postgres') . told('other'), '23', 'an update waits in the other database alone');

# ---- The account

sql($node, q{SELECT idemq.unschedule('ticks')});
$_->{run}->signal('TERM') foreach @processes[ 0, 1 ];
$_->{run}->finish foreach @processes[ 0, 1 ];
ok(eval { until_true('all is done', sub { return sql($node, q{SELECT count(*) FROM idemq.jobs WHERE status <> 'completed' AND queue_id <> idemq.queue_id('outside')}) == 0 }); 1 }, 'all is done');
# Those of a restart: sessions ended, no connection while it starts and stops; whoever had claimed in such a session finds the job
# given back, and whose answer to COMMIT it cut runs the transaction again, and is told that it was committed.  (A worker that is told
# to end cancels its wait.)
like(unexpected($node, qw(57P01 57P03 IQ001 IQ006)), qr/\A22023 kind [^\n]*\n22023 trace [^\n]*\z/, 'no error but those of the restarts, and of what is new');
$_->{run}->signal('TERM') foreach @processes[ 2 .. $#processes ];
$_->{run}->finish foreach @processes[ 2 .. $#processes ];
is(join(', ', map { $_->{run}->full_result(0) ? "$_->{name}: " . slurp_file($_->{said}) : () } @processes), '', 'applications and workers end when they are told');
sql($node, 'CREATE INDEX ON effects (queue, n)');
foreach my $queue (@queues)
{
	is_sql($node, qq{SELECT count(*) > 100, count(*) - count(DISTINCT j.id), count(*) FILTER (WHERE j.id IS NULL), count(*) FILTER (WHERE effects <> 1 - n % 2)
		FROM (SELECT n, (SELECT count(*) FROM effects e WHERE e.queue = o.queue AND e.n = o.n) AS effects FROM orders o WHERE queue = '$queue') o
		FULL JOIN (SELECT id, (payload->>'n')::int AS n FROM idemq.jobs WHERE queue_id = idemq.queue_id('$queue')) j USING (n)},
		't|0|0|0', "$queue: each order has one job, and that one effect");
}
is_sql($node, q{SELECT count(*) - (SELECT count(*) FROM ticks), count(*) - count(DISTINCT headers) FROM idemq.jobs WHERE queue_id = idemq.queue_id('ticking')}, '0|0', 'no tick came twice');
is_sql($node, 'SELECT * FROM idemq.check()', '', "check() in $_", $_) foreach qw(postgres other);
$pooler->kill_kill;

# ---- What is in the way

# A database of the version before, made anew, as for the restore of a dump.
sub old_database
{
	my ($db, $sql) = @_;

	sql($node, "CREATE DATABASE $db");
	sql($node, "CREATE EXTENSION idemq VERSION '$this'; SELECT idemq.create_queue('q', lease => '1 h'); $sql", $db);
	return;
}
sub works
{
	my ($on, $db, $name) = @_;

	my $said = sql($on, q{SELECT outcome FROM idemq.enqueue('q', '1'); SELECT count(idemq.enqueue('q', '2', group_key => 'g')) FROM generate_series(1, 2)}, $db);
	my $done = 0;

	# A group's head may be on its way still.
	until_true('three jobs are done', sub { ($done += sql($on, q{SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 5)}, $db)) >= 3 });
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# By is_sql, which knows of a worker that has no processor.
	is_sql($on, q{SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'}, '', "$name: check()", $db);
	return is("$said $done", "accepted\n2 3", $name);
}
foreach my $it ([ 'jobs', 'tenant text DEFAULT $$mine$$' ], [ 'jobs', 'trace int DEFAULT 7' ], [ 'queues', 'max_trace text DEFAULT $$mine$$' ])
{
	my ($table, $column) = @$it;
	my ($name) = $column =~ /(\w+)/;

	old_database("has_$name", "ALTER TABLE idemq.$table ADD COLUMN $column");
	works($node, "has_$name", "a column of a DBA's in the place of the new one, $column");
	my (undef, undef, $said) = $node->psql("has_$name", 'ALTER EXTENSION idemq UPDATE');
	like($said, qr/ERROR:  column "$name" of idemq.$table is in the place of a new one/, 'is named');
	is_sql($node, $old, $this, 'nothing has changed', "has_$name");
	works($node, "has_$name", 'and all works');
	is_sql($node, "SELECT count(DISTINCT $name), count($name) FROM idemq.$table", $table eq 'jobs' ? '1|6' : '1|1', 'the column is as it was', "has_$name");
}

# An update that is rolled back; its own transaction and others see each what there is for them.
old_database('undone', 'CREATE VIEW mine AS SELECT id FROM idemq.enqueue($$q$$, $$"view"$$)');
my $other = session($node, 'undone');
is($other->query_safe("SELECT outcome FROM idemq.enqueue('q', '1')"), 'accepted', 'a session of before');
my $undone = session($node, 'undone');
is($undone->query_safe("BEGIN; ALTER EXTENSION idemq UPDATE; SELECT outcome FROM idemq.enqueue('q', '3', trace => 'x'); SELECT count(*) FROM idemq.claim('q', 9);
	SELECT trace FROM idemq.jobs WHERE payload = '3'; SELECT count(idemq.create_queue('more', max_trace => 1)); ROLLBACK"), "accepted\n2\nx+\n1", 'an update, and what it brings');
is_sql($node, $old, $this, 'rolled back', 'undone');
foreach my $it ([ $undone, 'its session' ], [ $other, 'the other one' ])
{
	is($it->[0]->query_safe("SELECT outcome FROM idemq.enqueue('q', '4'); SELECT count(idemq.create_queue('more')); SELECT idemq.drop_queue('more'); SELECT count(idemq.commit(id, token)) FROM idemq.claim('q')"), "accepted\n1\n\n1", "$it->[1] goes on");
}
works($node, 'undone', 'so do new ones') if sql($node, "SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 9)", 'undone');
# A snapshot, and a transaction that is prepared, from before the update.
$other->query_safe(q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM idemq.queues});
$undone->query_safe(q{BEGIN; SELECT idemq.enqueue('q', '"prepared"'); PREPARE TRANSACTION 'before'});
is_state($node, q{SET lock_timeout = '100 ms'; ALTER EXTENSION idemq UPDATE}, '55P03', 'an update waits for a prepared transaction', 'undone');
is_sql($node, $old, $this, 'and changes nothing when it gives up', 'undone');
$undone->query_safe(q{COMMIT PREPARED 'before'; SELECT idemq.enqueue('q', '1') FROM idemq.queues});
$other->query_safe('COMMIT; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class');
sql($node, 'ALTER EXTENSION idemq UPDATE', 'undone');
# It looks into no catalog again before it locks something: the function that it finds is the one that was renamed.
is($other->query_safe(q{SELECT outcome FROM idemq.enqueue('q', '"snapshot"'); COMMIT}), 'accepted', 'a transaction from before: the call that was');
is($other->query_safe(q{SELECT outcome FROM idemq.enqueue('q', '"after"', trace => 'late')}), 'accepted', 'the next one: the one that is');
works($node, 'undone', 'the update, after all') if sql($node, "SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 9)", 'undone');
is_sql($node, 'SELECT count(*) FROM mine', 1, 'a view of the call that was', 'undone');
leave($other, $undone);

# Two tables are locked: a session that has locked the second, and wants the first, is not in its way, nor it in the session's.
old_database('two_tables', '');
$other = session($node, 'two_tables');
my $both = session($node, 'two_tables');
$other->query_safe('BEGIN; SELECT count(*) FROM idemq.queues');
$both->query_until(qr/sent/, "\\echo sent\n$update; SELECT 'updated';\n");
wait_until($node, q{SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = 'two_tables' AND wait_event = 'PgSleep' AND query LIKE '%ALTER EXTENSION%'});
is($other->query_safe(q{SELECT outcome FROM idemq.enqueue('q', '1'); COMMIT}), 'accepted', 'an update that waits for the second of two tables lets others have the first');
like(scalar $both->query('SELECT 1'), qr/updated/, 'and is made then');
leave($other, $both);

# SQL objects that are newer than the library, beside some that are not.
install_this($install);
$node->restart;
wait_until($node, 'SELECT true');
foreach my $call (q{SELECT idemq.enqueue('outside', '1')}, q{SELECT * FROM idemq.claim('outside')}, 'SELECT * FROM idemq.metrics')
{
	my (undef, undef, $said) = $node->psql('postgres', $call);
	like($said, qr/ERROR:  (?:idemq's SQL objects in this database are newer than the loaded library, version \Q$this\E|could not find function "idemq_sql_v2_)/, "the older library: $call is refused");
}
works($node, 'other', 'the other database works') if sql($node, "SELECT count(idemq.commit(id, token)) >= 0 FROM idemq.claim('q', 9)", 'other');
is_logged($node, qr/LOG:  idemq is inactive in database "postgres": its SQL objects are newer than the library/, 'the worker says why it stays away');
$node->stop;

# ---- By a standby: the next library, and the SQL objects of this one

my $primary = new_server('primary', 'idemq.worker' => 'on');
install_next($tree, $install);
my $standby = PostgreSQL::Test::Cluster->new('standby', install_path => $install);
$primary->backup('first');
$standby->init_from_backup($primary, 'first', has_streaming => 1);
$standby->start;
is_sql($primary, 'SHOW idemq.version', $this, 'a primary with this library');
is_sql($standby, 'SHOW idemq.version', $next, 'a standby with the next one');
my $id = sql($primary, q{SELECT id FROM idemq.enqueue('q', '1', key => 'k')});
is_sql($primary, q{SELECT count(*) FROM idemq.claim('q')}, 1, 'the primary works');
$primary->wait_for_catchup('standby');
is_sql($standby, qq{SELECT status FROM idemq.job_list WHERE id = $id; SELECT pending FROM idemq.metrics WHERE queue = 'q'; SELECT status FROM idemq.result($id)}, "running\n0\nrunning", 'the standby can be read');
is_state($standby, q{SELECT idemq.enqueue('q', '1')}, '25006', 'and says what it is');
$primary->stop;
$standby->promote;
is_sql($standby, qq{SELECT idemq.commit(id, token) FROM idemq.jobs WHERE id = $id}, 'committed', 'promoted: the token holds');
works($standby, 'postgres', 'and all works');
sql($standby, 'ALTER EXTENSION idemq UPDATE');
works($standby, 'postgres', 'after the update, too');
$standby->stop;
done_testing();
