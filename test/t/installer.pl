# Who installs, and who uses it: the owner of a database, who is no superuser, gets from every
# first step of the manual either success or an error that the GRANT of doc/operations/install.md
# ends; an application's role runs the first job with what grant_queue gives.
# slow: a database for each of fifteen pages, whose SQL docs.pl runs as superuser
# at least 77 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Manual;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $page = 'doc/operations/install.md';
my $node = new_node('installer', max_connections => 50);
$node->start;

# A new database of a role that is no superuser and owns nothing else.
sub database
{
	my ($name, $owner) = @_;

	sql($node, "CREATE ROLE $owner LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE");
	sql($node, "CREATE DATABASE $name OWNER $owner");
	return;
}

# What a statement says to a role: its SQLSTATE and message, or ''.
sub says
{
	my ($db, $user, $sql) = @_;
	my ($stdout, $stderr) = ('', '');

	$node->psql($db, $sql, stdout => \$stdout, stderr => \$stderr, extra_params => [ '-U', $user, '-v', 'VERBOSITY=verbose' ]);
	return $stderr =~ /ERROR:\s+([0-9A-Z]{5}: .*)$/m ? $1 : $stderr;
}

database('shop', 'owner');
like(says('shop', 'owner', 'CREATE EXTENSION idemq'), qr/^42501: permission denied to create extension/,
	'the owner of a database does not create the extension');
sql($node, 'CREATE EXTENSION idemq', 'shop');
# In place of pg_cron: schedules want somebody who ticks.
sql($node, 'CALL idemq.tick()', 'shop');

# One error after the other, each ended by one GRANT.
my $create = q[SELECT idemq.create_queue('steps')];
is(says('shop', 'owner', $create), '42501: permission denied for schema idemq', 'first the schema is missing');
sql($node, 'GRANT USAGE ON SCHEMA idemq TO owner', 'shop');
is(says('shop', 'owner', $create), '42501: permission denied for function create_queue', 'then the function');
sql($node, 'GRANT EXECUTE ON FUNCTION idemq.create_queue TO owner', 'shop');
is(says('shop', 'owner', $create), '', 'then nothing');
is(says('shop', 'owner', q[SELECT idemq.drop_queue('steps')]), '', 'and what it made is its own');

# The manual's two GRANTs are those, and no more.
my @grants = map { /^(GRANT .*? TO) shop_owner;/mg } blocks($page, 'sql');
is_deeply(\@grants, [ 'GRANT USAGE ON SCHEMA idemq TO', 'GRANT EXECUTE ON FUNCTION idemq.create_queue TO' ],
	"$page shows these two");

# With them, the owner of a database runs what the manual begins with; two of the pages are about
# what takes more.  (doc/usage/outside-effects.md makes a second database.)
my %more = (
	'doc/usage/limits.md' => [ 'GRANT EXECUTE ON FUNCTION idemq.admit TO', 'GRANT pg_monitor TO' ],
	'doc/usage/keys.md' => ['GRANT EXECUTE ON FUNCTION idemq.once TO']);
foreach my $file ('README.md', 'doc/tutorials/getting-started.md', 'doc/tutorials/first-worker.md',
	'doc/explanation/promises.md', map { "doc/usage/$_.md" }
	qw(workers producers rerun schedules groups-limits limits drivers keys recovery-points steps events))
{
	my $name = lc $file =~ s/\W/_/gr;

	database($name, "owner_$name");
	sql($node, 'CREATE EXTENSION idemq; CALL idemq.tick()', $name);
	sql($node, "$_ owner_$name", $name) foreach @grants, @{ $more{$file} // [] };
	ok(runs_sql($node, $file, $name, "owner_$name"), "$file: run by the owner of the database");
}

# What is shared by all queues needs a GRANT each, and the page has a line of each such function.
my %granted = map { $_ => 1 } map { /`(\w+)`/g } map { (split /\|/)[1] } grep { /^\| `/ } split /\n/, slurp_file("$source/$page");
my $withheld = sql($node, q[SELECT DISTINCT proname FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace
	AND prorettype <> 'trigger'::regtype AND obj_description(oid, 'pg_proc') !~ '^part of '
	AND NOT has_function_privilege('owner', oid, 'EXECUTE')
	UNION SELECT relname FROM pg_class WHERE relnamespace = 'idemq'::regnamespace AND relkind = 'v'
	AND NOT has_table_privilege('owner', oid, 'SELECT') ORDER BY 1], 'shop');
my @missing = grep { !$granted{$_} } split /\n/, $withheld;
is(join(' ', @missing), 'prometheus_names', "$page names all that is withheld, but what a view has of its own");
my $routines = sql($node, q[SELECT count(*) FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace
	AND has_function_privilege('owner', oid, 'EXECUTE')], 'shop');
cmp_ok($routines, '>', 50, 'the rest is granted');
is(says('shop', 'owner', q[SELECT idemq.once('a', 'b')]), '42501: permission denied for function once', 'once is withheld');
sql($node, 'GRANT EXECUTE ON FUNCTION idemq.once, idemq.admit TO owner', 'shop');
is(says('shop', 'owner', q[SELECT idemq.once('a', 'b'); SELECT idemq.admit('b', 1, '1 s')]), '', 'until it is granted');
is(says('shop', 'owner', q[SELECT * FROM idemq.memory]), '42501: permission denied for view memory', 'the server\'s figures, too');
is(says('shop', 'owner', q[SELECT * FROM idemq.check()]), '42501: permission denied for function check', 'and the audit');
sql($node, 'GRANT pg_monitor TO owner', 'shop');
is(says('shop', 'owner', q[SELECT * FROM idemq.memory; SELECT * FROM idemq.check()]), '', 'until it is a monitor');

# The manual's first job, run by an application's role: the owner makes the queue and grants its use.
my ($first) = grep { /create_queue\('hello'\)/ } blocks('doc/tutorials/getting-started.md', 'sql');
my ($made, $job) = $first =~ /^(SELECT idemq\.create_queue\('hello'\);).*?\n(.*)/s;
ok($job, 'the manual has a first job');
sql($node, 'CREATE ROLE app LOGIN');
is(says('shop', 'owner', $made), '', 'the owner makes its queue');
is(says('shop', 'app', $job), '42501: permission denied for schema idemq', 'without a privilege nothing works');
is(says('shop', 'owner', q[SELECT idemq.grant_queue('hello', 'app', 'claim')]), '', 'the owner grants one half');
like(says('shop', 'app', $job), qr/^42501: permission denied for queue "hello"/, 'the other half is missing');
is(says('shop', 'owner', q[SELECT idemq.grant_queue('hello', 'app', 'enqueue')]), '', 'the owner grants it');
is($node->safe_psql('shop', $job, extra_params => [ '-U', 'app', '-F', ', ' ]) =~ s/.*\n//sr, 'hello, completed, 1, "Hello world"',
	'and the application runs the first job');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check', 'shop');

# Default privileges of the role that creates the extension do not open the internal schema.
sql($node, 'CREATE DATABASE defaults');
sql($node, 'ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO app; ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO app; CREATE EXTENSION idemq', 'defaults');
is_sql($node, q[SELECT has_schema_privilege('app', 'idemq', 'USAGE'), has_schema_privilege('app', 'idemq_internal', 'USAGE')], 't|f',
	'default privileges of the role that creates the extension leave idemq_internal closed', 'defaults');

$node->stop;
done_testing();
