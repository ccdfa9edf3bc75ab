# Install, dump and restore: what CREATE EXTENSION says without preload, and
# what a dump brings into another database.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('dump');
my $file = "$PostgreSQL::Test::Utils::tmp_check/dump";

sql($node, q{
	CREATE ROLE producer; CREATE ROLE "Odd Worker";
	SELECT idemq.create_queue('other', lease => '2 h', max_attempts => 3, dead_queue => 'q');
	SELECT idemq.grant_queue('q', 'producer', 'enqueue');
	SELECT idemq.grant_queue('q', '"Odd Worker"', 'claim');
	SELECT idemq.enqueue('q', '1', key => 'k');
	SELECT idemq.enqueue('q', '2', headers => '{"trace": 1}');
	SELECT idemq.enqueue('q', '3', delay => '1 h');
	SELECT idemq.enqueue('other', to_jsonb(repeat('x', 100000)));
	SELECT idemq.enqueue('q', '5', priority => 0);
	SELECT idemq.commit(id, token, '"done"') FROM idemq.claim('q');
	SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.claim('q');
	CREATE TABLE held AS SELECT id, token FROM idemq.claim('q');
	CREATE TABLE app (job bigint REFERENCES idemq.jobs);
	INSERT INTO app SELECT min(id) FROM idemq.jobs;
	GRANT USAGE ON SCHEMA idemq TO producer; GRANT EXECUTE ON FUNCTION idemq.create_queue TO producer;
	SELECT idemq.once('letters', 'sent');
	SELECT idemq.create_queue('grouped', lease => '1 h'), idemq.create_queue('limited', lease => '1 h', max_running => 2);
	SELECT idemq.enqueue('grouped', to_jsonb(n), group_key => 'g') FROM generate_series(1, 3) n;
	SELECT idemq.enqueue('limited', to_jsonb(n)) FROM generate_series(1, 5) n;
	SELECT idemq.create_queue('paced', group_rate => 1, group_period => '100 years');
	SELECT idemq.enqueue('paced', '"paced"', group_key => 'g') FROM generate_series(1, 2);
	SELECT idemq.commit_once(min(id)) FROM idemq.jobs WHERE payload = '"paced"';
	CALL idemq.tick();
	SELECT idemq.schedule('nightly', '0 3 * * *', 'q', '"n"'), idemq.schedule('weekly', '0 3 * * 1', 'other', '"w"');
	SELECT idemq.create_queue('ended');
	SELECT idemq.enqueue('ended', '"dead"', key => 'd'), idemq.enqueue('ended', '"cancelled"', key => 'c'), idemq.enqueue('ended', '"failed"');
	SELECT idemq.cancel_by_key('ended', 'c');
	SELECT idemq.fail(id, token, 'no', permanent => payload = '"dead"', retry_in => '0') FROM idemq.claim('ended', 2);
	SELECT idemq.finish_step(id, token, 'done', '{"a": 1}') FROM held;
	SELECT idemq.enqueue_sequenced('ended', 'partition', 7, '7', kind => 'numbered');
	DO $$ DECLARE h record; o text; r jsonb; q jsonb; b timestamptz; a interval; k text;
		BEGIN SELECT * INTO h FROM held; CALL idemq.begin_step(h.id, h.token, 'begun', '2', '1 h', o, r, q, b, a, k); END $$;
	SELECT idemq.send_event('q', 'first', '{"a": 1}'), idemq.send_event('grouped', 'second');
	SELECT idemq.create_topic('topic'), idemq.grant_topic('topic', 'producer', 'publish'), idemq.bind_topic('topic.#', 'grouped');
	CREATE TABLE running AS SELECT id, token FROM idemq.claim('grouped', 5) UNION ALL SELECT id, token FROM idemq.claim('limited', 5);
});
my $content = q{
	SELECT j FROM idemq.jobs j ORDER BY id;
	SELECT md5(payload::text) FROM idemq.jobs ORDER BY id;
	SELECT q FROM idemq.queues q ORDER BY 1;
	SELECT g FROM idemq.queue_grants g ORDER BY 1;
	SELECT s FROM idemq.schedule_entries s ORDER BY 1;
	SELECT a FROM idemq.attempts a ORDER BY 1;
	SELECT s FROM idemq.steps s ORDER BY 1;
	SELECT d FROM idemq.database_uuid d;
	SELECT e FROM idemq.events e ORDER BY 1;
	SELECT t FROM idemq.topic_entries t ORDER BY 1; SELECT g FROM idemq.topic_grants g ORDER BY 1; SELECT b FROM idemq.topic_binding_entries b ORDER BY 1;
	SELECT s FROM idemq.seen s ORDER BY 1;
	SELECT p FROM idemq.producers p ORDER BY 1;
	SELECT a FROM idemq.audit a ORDER BY id;
	SELECT * FROM app; SELECT * FROM held};
my $before = sql($node, $content);

# ---- Dump and restore

is_sql($node, 'SELECT count(DISTINCT status) FROM idemq.jobs', 7, 'jobs of every status');
is_sql($node, 'SELECT count(*) FROM idemq.queue_grants, idemq.schedule_entries', 4, 'two grants, two schedules');
foreach my $format ('custom', 'plain')
{
	my $db = "copy_$format";

	command_ok([ 'pg_dump', '-h', $node->host, '-p', $node->port, "-F$format", '-f', "$file.$format", 'postgres' ],
		"pg_dump -F$format");
	sql($node, "CREATE DATABASE $db");
	my @restore = ('-h', $node->host, '-p', $node->port, '-d', $db);
	$node->command_checks_all(
		$format eq 'plain' ? [ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', @restore, '-f', "$file.plain" ]
		: [ 'pg_restore', '-e', @restore, "$file.custom" ], 0, [qr/^/], [qr/^$/], "restore -F$format");
	is(sql($node, $content, $db), $before, "$format: rows are the same");
	is_sql($node, 'SELECT status, token = (SELECT token FROM held) FROM idemq.jobs WHERE id = (SELECT id FROM held)',
		'processing|t', "$format: the job in flight is in flight", $db);
	is_sql($node, 'SELECT outcome, retry_after > clock_timestamp() FROM held h, idemq.claim_job(h.id)', 'locked|t',
		"$format: and locked", $db);
	is_sql($node, "SELECT count(*), min(attempt) FROM idemq.claim('q', 10)", '1|2', "$format: ready jobs are claimable", $db);
	is_sql($node, "SELECT id > (SELECT max(id) FROM idemq.jobs) FROM idemq.enqueue('q', '6')", 't',
		"$format: new ids are greater", $db);
	is_sql($node, "SELECT idemq.create_queue('new') > (SELECT max(queue_id) FROM idemq.queues)", 't',
		"$format: new queue ids too", $db);
	is_sql($node, "SELECT count(*) FROM idemq.audit WHERE id > (SELECT id FROM idemq.audit WHERE action = 'grant_queue' ORDER BY id DESC LIMIT 1)
		AND action = 'create_queue' AND queue = 'new'", 1, "$format: and the audit goes on", $db);
	is_sql($node, "SELECT attempt, payload, token > (SELECT max(token) FROM running) FROM idemq.claim('ended')", '2|"failed"|t',
		"$format: a failed job is claimed again, by a greater token", $db);
	is_sql($node, "SELECT outcome, status FROM idemq.enqueue('ended', '\"dead\"', key => 'd'), idemq.redrive('ended')", 'duplicate|dead',
		"$format: a dead job has its key, and is redriven", $db);
	is_sql($node, "SELECT outcome, status FROM idemq.enqueue('q', '1', key => 'k')", 'duplicate|processing',
		"$format: keys are remembered", $db);
	is_sql($node, "SELECT idemq.commit(id, token) FROM held", 'committed', "$format: the worker's token commits", $db);
	is_sql($node, 'SET ROLE producer; SELECT outcome FROM idemq.enqueue(\'q\', \'7\')', 'accepted',
		"$format: a producer's grant", $db);
	is_state($node, "SET ROLE producer; SELECT * FROM idemq.claim('q')", '42501', "$format: is no more than that", $db);
	is_sql($node, 'SET ROLE "Odd Worker"; SELECT count(*) FROM idemq.claim(\'q\', 10)', 2, "$format: a worker's grant", $db);
	is_state($node, "SET ROLE producer; SELECT idemq.create_queue('mine')", '00000', "$format: rights on functions", $db);
	is_sql($node, "SELECT idemq.once('letters', 'sent'), idemq.once('letters', 'new')", 'f|t', "$format: once remembers", $db);
	is_sql($node, "SELECT count(*) FROM idemq.claim_any('{grouped,limited}', 10)", 0, "$format: a group's head is in flight, a limit is reached", $db);
	is_sql($node, "SELECT idemq.commit(id, token) FROM running JOIN idemq.jobs USING (id, token) WHERE payload = '1'", "committed\ncommitted",
		"$format: they end", $db);
	is_sql($node, "SELECT queue, payload FROM idemq.claim_any('{grouped,limited}', 10) ORDER BY 1", "grouped|2\nlimited|3",
		"$format: the next of the group, and one more of the limit", $db);
	is_sql($node, "SELECT count(*) FROM idemq.claim('paced', 10)", 0, "$format: a group's rate is used up, though memory knows of no start", $db);
	is_sql($node, "SELECT idemq.alter_queue('paced', group_rate => 0); SELECT count(*) FROM idemq.claim('paced', 10)", "\n1", "$format: without it the next one goes", $db);
	is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', "$format: check()", $db);
	is(sql($node, $content), $before, "$format: the original is as it was");
}

# In parallel, tables come in any order: grants and schedules before their queues, too.  A foreign
# key of the user's is added when its own table is there, whether or not the jobs are.
command_ok([ 'pg_dump', '-F', 'c', '-T', 'app', '-h', $node->host, '-p', $node->port, '-f', "$file.parallel", 'postgres' ], 'a dump without one');
my $rest = join ';', grep { !/FROM app/ } split /;/, $content;
foreach my $try (1 .. 6)
{
	sql($node, 'CREATE DATABASE parallel');
	$node->command_checks_all([ 'pg_restore', '-j', 4, '-h', $node->host, '-p', $node->port, '-d', 'parallel', "$file.parallel" ],
		0, [qr/^$/], [qr/^$/], "restore -j 4, try $try");
	is(sql($node, $rest, 'parallel'), sql($node, $rest), "-j 4, try $try: rows are the same");
	is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', "-j 4, try $try: check()", 'parallel');
	sql($node, 'DROP DATABASE parallel');
}
sql($node, 'CREATE DATABASE parallel');
command_ok([ 'pg_restore', "--section=$_", '-j', 4, '-h', $node->host, '-p', $node->port, '-d', 'parallel', "$file.custom" ], "by sections: $_")
	foreach qw(pre-data data post-data);
is(sql($node, $content, 'parallel'), $before, 'by sections, with a foreign key to jobs: rows are the same');
sql($node, 'DROP DATABASE parallel');
# What such an order comes to, each time.
sql($node, 'CREATE DATABASE data');
sql($node, 'CREATE EXTENSION idemq', 'data');
my @order = ('-e', '--data-only', '-h', $node->host, '-p', $node->port, '-d', 'data', "$file.custom");
command_ok([ 'pg_restore', '-t', $_, @order ], "data alone: $_") foreach qw(queue_grants schedule_entries);
is_sql($node, "SELECT string_agg(DISTINCT invariant, ' ') FROM idemq.check() WHERE severity = 'error'", 'grants.queue schedules.queue', 'check() tells of orphans', 'data');
command_ok([ 'pg_restore', '-t', 'queues', @order ], 'data alone: queues');
is_sql($node, "SELECT * FROM idemq.check() WHERE severity = 'error'", '', 'which they are no more', 'data');
sql($node, 'DROP DATABASE data');

# idemq alone, by its extension, and by its tables into an extension that is there.
foreach my $what ([ '-e', 'idemq' ], ['--data-only', '-t', 'idemq.*'])
{
	sql($node, 'CREATE DATABASE data');
	sql($node, 'CREATE EXTENSION idemq', 'data') if "@$what" =~ /data-only/;
	command_ok([ 'pg_dump', '-h', $node->host, '-p', $node->port, '-Fc', @$what, '-f', "$file.part", 'postgres' ], "pg_dump @$what");
	$node->command_checks_all([ 'pg_restore', '-e', '-h', $node->host, '-p', $node->port, '-d', 'data', "$file.part" ], 0, [qr/^$/], [qr/^$/], "@$what: restore");
	my $own = join ';', grep { !/FROM (app|held)/ } split /;/, $content;
	is(sql($node, $own, 'data'), sql($node, $own), "@$what: rows are the same");
	is_sql($node, "SELECT id > (SELECT max(id) FROM idemq.jobs) FROM idemq.enqueue('q', '6')", 't', "@$what: new ids are greater", 'data');
	is_sql($node, "SELECT token > (SELECT max(token) FROM idemq.jobs) FROM idemq.claim('q')", 't', "@$what: so are tokens", 'data');
	is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', "@$what: check()", 'data');
	sql($node, 'DROP DATABASE data');
}

# Into an extension that is there: triggers are weaker then, and check() says what mends them.
sql($node, 'CREATE DATABASE data');
sql($node, 'CREATE EXTENSION idemq', 'data');
command_ok([ 'pg_restore', '-e', '--data-only', '--disable-triggers', '-n', 'idemq', '-h', $node->host, '-p', $node->port, '-d', 'data', "$file.custom" ],
	'restore of data alone');
my $by_hand = "INSERT INTO idemq.jobs (queue_id, created_at, priority, max_attempts, status, ready_at, payload)
	SELECT queue_id, now(), 0, 3, 'pending', '2001-01-01', '\"by hand\"' FROM idemq.queues WHERE name = 'q'";
my $broken = "SELECT substring(detail FROM 'ALTER TABLE [^;,]*') FROM idemq.check() WHERE severity = 'error' AND invariant = 'triggers'";
my @mends = split /\n/, sql($node, $broken, 'data');
cmp_ok(scalar(@mends), '>', 0, 'check() finds triggers that do not fire always');
note join "\n", @mends;
sql($node, join(';', @mends), 'data');
is_sql($node, "SELECT * FROM idemq.check() WHERE severity = 'error'", '', 'its commands mend them', 'data');
sql($node, "SELECT count(*) FROM idemq.claim('q', 10); SET session_replication_role = replica; $by_hand", 'data');
is_sql($node, "SELECT payload FROM idemq.claim('q')", '"by hand"', 'in earnest', 'data');

# ---- Databases come and go

is_state($node, 'DROP DATABASE copy_plain', '00000', 'DROP DATABASE right after use');
is_state($node, 'CREATE DATABASE twin TEMPLATE copy_custom', '00000', 'CREATE DATABASE TEMPLATE');
my $left = sql($node, "SELECT id FROM idemq.enqueue('q', '8')", 'twin');
is_sql($node, "SELECT id - $left FROM idemq.claim('q')", 0, 'the twin works', 'twin');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'its original has jobs of its own', 'copy_custom');
sql($node, 'DROP DATABASE twin');
sql($node, 'CREATE DATABASE twin TEMPLATE copy_custom');
$left = sql($node, "SELECT id FROM idemq.enqueue('q', '9')", 'twin');
is_sql($node, "SELECT id - $left FROM idemq.claim('q')", 0, 'a database of the same name is another', 'twin');

# ---- DROP EXTENSION and back

sql($node, 'CREATE DATABASE again');
sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q', lease => '1 h');
	SELECT idemq.enqueue('q', '1'); SELECT * FROM idemq.claim('q'); DROP EXTENSION idemq", 'again');
is_state($node, "SELECT idemq.claim('q')", '3F000', 'without the extension', 'again');
is_sql($node, "CREATE EXTENSION idemq; SELECT idemq.create_queue('q');
	SELECT id FROM idemq.enqueue('q', '1'); SELECT id, attempt FROM idemq.claim('q')", "1\n1000000000001\n1000000000001|1",
	'a new extension starts from nothing', 'again');
sql($node, 'CREATE DATABASE planted');
is_state($node, 'CREATE SCHEMA idemq; CREATE EXTENSION idemq', '42P06', 'a planted schema fails closed', 'planted');
is_state($node, 'DROP SCHEMA idemq; CREATE EXTENSION idemq SCHEMA public', '0A000', 'it cannot be put elsewhere', 'planted');
$node->stop;

# ---- Without preload

foreach my $others ('', 'pg_stat_statements', "auto_explain, pg_stat_statements")
{
	my $expected = $others eq '' ? 'idemq' : "$others, idemq";
	my ($stdout, $stderr);

	$node->append_conf('postgresql.conf', "shared_preload_libraries = '$others'");
	if (!$node->start(fail_ok => 1))
	{
		note "no $others";
		next;
	}
	sql($node, 'CREATE DATABASE bare') if $others eq '';
	$node->psql('bare', 'CREATE EXTENSION idemq', stdout => \$stdout, stderr => \$stderr);
	like($stderr, qr/^shared_preload_libraries = '\Q$expected\E'$/m, "the line to add ($expected)");
	unlike($stderr, qr/server closed the connection/, 'no crash');
	is_state($node, 'CREATE EXTENSION idemq', '55000', 'SQLSTATE', 'bare');
	is_state($node, "SELECT idemq.claim('q')", '55000', 'a function of an installed extension', 'copy_custom');
	is_state($node, "LOAD 'idemq'", '55000', 'LOAD', 'bare');

	# The very line works.
	my ($line) = $stderr =~ /^(shared_preload_libraries = .*)$/m;
	$node->append_conf('postgresql.conf', $line);
	$node->restart;
	is_state($node, 'CREATE EXTENSION idemq; DROP EXTENSION idemq', '00000', 'with that line it works', 'bare');
	$node->stop;
}

done_testing();
