# Install, dump and restore: what CREATE EXTENSION says without preload, and
# what a dump brings into another database.
# takes long
# at least 105 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Dumped;
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('dump');
my $file = "$PostgreSQL::Test::Utils::tmp_check/dump";

make_states($node);
my $before = sql($node, $content);

# ---- Dump and restore

sql($node, 'CREATE DATABASE blank');
sql($node, 'CREATE EXTENSION idemq', 'blank');
is_sql($node, 'SELECT count(DISTINCT status) FROM idemq.jobs', 7, 'jobs of every status');
is_sql($node, 'SELECT count(*) FROM idemq_internal.queue_grants, idemq_internal.schedule_entries', 4, 'two grants, two schedules');
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
	$format eq 'custom' ? goes_on_in($node, $db, $format) : is_in_flight_in($node, $db, $format);
	is(sql($node, $content), $before, "$format: the original is as it was");
}

# In parallel, tables come in any order: grants and schedules before their queues, too.  A foreign
# key of the user's is added when its own table is there, whether or not the jobs are.
command_ok([ 'pg_dump', '-F', 'c', '-T', 'app', '-h', $node->host, '-p', $node->port, '-f', "$file.parallel", 'postgres' ], 'a dump without one');
my $rest = join ';', grep { !/FROM app/ } split /;/, $content;
sql($node, 'CREATE DATABASE parallel');
$node->command_checks_all([ 'pg_restore', '-j', 4, '-h', $node->host, '-p', $node->port, '-d', 'parallel', "$file.parallel" ],
	0, [qr/^$/], [qr/^$/], 'restore -j 4');
is(sql($node, $rest, 'parallel'), sql($node, $rest), '-j 4: rows are the same');
is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', '-j 4: check()', 'parallel');
sql($node, 'DROP DATABASE parallel');
sql($node, 'CREATE DATABASE parallel');
command_ok([ 'pg_restore', "--section=$_", '-j', 4, '-h', $node->host, '-p', $node->port, '-d', 'parallel', "$file.custom" ], "by sections: $_")
	foreach qw(pre-data data post-data);
is(sql($node, $content, 'parallel'), $before, 'by sections, with a foreign key to jobs: rows are the same');
sql($node, 'DROP DATABASE parallel');
# What such an order comes to, each time.
sql($node, 'CREATE DATABASE data TEMPLATE blank');
my @order = ('-e', '--data-only', '-h', $node->host, '-p', $node->port, '-d', 'data', "$file.custom");
command_ok([ 'pg_restore', '-t', $_, @order ], "data alone: $_") foreach qw(queue_grants schedule_entries);
is_sql($node, "SELECT string_agg(DISTINCT invariant, ' ') FROM idemq.check() WHERE severity = 'error'", 'grants.queue schedules.queue', 'check() tells of orphans', 'data');
command_ok([ 'pg_restore', '-t', 'queues', @order ], 'data alone: queues');
is_sql($node, "SELECT * FROM idemq.check() WHERE severity = 'error'", '', 'which they are no more', 'data');
sql($node, 'DROP DATABASE data');

# idemq alone, by its extension, and by its tables into an extension that is there.
foreach my $what ([ '-e', 'idemq' ], ['--data-only', '-t', 'idemq.*', '-t', 'idemq_internal.*'])
{
	sql($node, 'CREATE DATABASE data TEMPLATE ' . ("@$what" =~ /data-only/ ? 'blank' : 'template1'));
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
sql($node, 'CREATE DATABASE data TEMPLATE blank');
command_ok([ 'pg_restore', '-e', '--data-only', '--disable-triggers', '-n', 'idemq', '-h', $node->host, '-p', $node->port, '-d', 'data', "$file.custom" ],
	'restore of data alone');
my $by_hand = "INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
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
is_state($node, 'CREATE DATABASE duplicate TEMPLATE copy_custom', '00000', 'CREATE DATABASE TEMPLATE');
my $left = sql($node, "SELECT id FROM idemq.enqueue('q', '8')", 'duplicate');
is_sql($node, "SELECT id - $left FROM idemq.claim('q')", 0, 'the duplicate works', 'duplicate');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'its original has jobs of its own', 'copy_custom');
sql($node, 'DROP DATABASE duplicate');
sql($node, 'CREATE DATABASE duplicate TEMPLATE copy_custom');
$left = sql($node, "SELECT id FROM idemq.enqueue('q', '9')", 'duplicate');
is_sql($node, "SELECT id - $left FROM idemq.claim('q')", 0, 'a database of the same name is another', 'duplicate');

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
