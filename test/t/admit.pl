# idemq.admit: exact while many sessions call one bucket, not undone by anything but
# a restart, in recovery, and what happens when the table of buckets is full.
# More calls at once, of several costs, and while buckets come and go: admit_slow.pl.
# at least 52 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $share = 16; # of one database
my $buckets = 2 * $share;
my $node = new_server('admit', 'idemq.max_buckets' => $buckets, max_connections => 50, log_statement => 'none',
	max_prepared_transactions => 2);
# So long that no token comes back.
my $per = '100 years';

# ---- Exactly max_calls of a race, by what committed and by what is counted

sql($node, 'CREATE TABLE got (bucket text, cost int)');
my $before = sql($node, 'SELECT allowed FROM idemq.admissions');
# Eight sessions, each call a transaction of its own.
my $race = $node->basedir . '/race.sql';
append_to_file($race, "INSERT INTO got SELECT 'one', 1 FROM idemq.admit('one', 1000, '$per') WHERE allowed;\n");
$node->command_ok([ 'pgbench', '-n', '-M', 'prepared', '-c', '8', '-j', '2', '-t', '250', '-h', $node->host, '-p', $node->port,
		'-f', $race, 'postgres' ], '8 sessions, 250 calls each');
is_sql($node, "SELECT count(*) FROM got WHERE bucket = 'one'", '1000', 'exactly max_calls are allowed');
is_sql($node, "SELECT allowed, remaining FROM idemq.admit('one', 1000, '$per')", 'f|0', 'and not one more');
is_sql($node, "SELECT allowed - $before, refused, shared FROM idemq.admissions", '1000|1001|0', 'all of it is counted');

# ---- Not undone

sub left { return sql($node, "SELECT remaining FROM idemq.admit('left', 10, '$per', cost => 0)") }

sql($node, "BEGIN; SELECT idemq.admit('left', 10, '$per'); ROLLBACK");
is(left(), '9', 'ROLLBACK');
sql($node, "BEGIN; SAVEPOINT s; SELECT idemq.admit('left', 10, '$per'); ROLLBACK TO s; COMMIT");
is(left(), '8', 'ROLLBACK TO');
is_state($node, "DO \$\$ BEGIN PERFORM idemq.admit('left', 10, '$per'); RAISE 'no'; END \$\$", 'P0001', 'an error');
is(left(), '7', 'a failed transaction');
sql($node, "BEGIN; SELECT idemq.admit('left', 10, '$per'); PREPARE TRANSACTION 'p'; ROLLBACK PREPARED 'p'");
is(left(), '6', 'ROLLBACK PREPARED');
sql($node, "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY; SELECT idemq.admit('left', 10, '$per'); COMMIT");
is(left(), '5', 'a serializable read-only transaction');
my $open = session($node);
$open->query_safe("BEGIN; SELECT idemq.admit('left', 10, '$per')");
is(left(), '4', 'others see it before the commit');
leave($open);
is(left(), '4', 'a session that ends');

# ---- Databases and roles

sql($node, 'CREATE DATABASE other');
sql($node, 'CREATE EXTENSION idemq', 'other');
is_sql($node, "SELECT allowed, remaining FROM idemq.admit('one', 1000, '$per')", 't|999', 'another database has its own bucket', 'other');
sql($node, 'CREATE ROLE caller LOGIN; CREATE ROLE watcher LOGIN IN ROLE pg_monitor');
is_state($node, "SET ROLE caller; SELECT idemq.admit('left', 10, '$per')", '42501', 'not for everybody');
is_sql($node, 'SET ROLE watcher; SELECT allowed > 0 FROM idemq.admissions', 't', 'the counts are');
sql($node, 'GRANT USAGE ON SCHEMA idemq TO caller; GRANT EXECUTE ON FUNCTION idemq.admit TO caller');
is_sql($node, "SET ROLE caller; SELECT remaining FROM idemq.admit('left', 10, '$per')", '3', 'a role that may');

# ---- The table is full

my $used = 'SELECT used, size, refused FROM idemq.memory WHERE resource = \'buckets\'';
my $inuse = 0 + sql($node, 'SELECT used FROM idemq.memory WHERE resource = \'buckets\'');
is($inuse, 3, 'two buckets here, one there');
sql($node, 'DROP DATABASE other');
is_sql($node, $used, "2|$buckets|0", 'DROP DATABASE forgets its own');
sql($node, "SELECT idemq.admit('used' || i, 1, '$per') FROM generate_series(3, $share - 1) i");
is_sql($node, "SELECT allowed FROM idemq.admit('idle 1', 1, '10 ms')", 't', 'the last room'); # meant to expire
is_sql($node, $used, "$share|$buckets|0", 'half of the table: this database gets no more');
# One that is idle makes room, again and again.
foreach my $n (2 .. 4)
{
	sql($node, 'SELECT pg_sleep(0.02)');
	# meant to expire
	is_sql($node, "SELECT allowed, remaining FROM idemq.admit('idle $n', 1, '10 ms')", 't|0', "an idle bucket makes room, $n");
	is_sql($node, $used, "$share|$buckets|0", 'nobody was refused room');
}
sql($node, 'SELECT pg_sleep(0.02)');
sql($node, "SELECT idemq.admit('used last', 1, '$per')");
my $shared = sql($node, 'SELECT shared FROM idemq.admissions');
is_sql($node, "SELECT string_agg((idemq.admit('new' || i, 2, '$per')).allowed::text, ' ') FROM generate_series(1, 3) i", 'true true false',
	'all in use: new names of one limit have it together');
is_sql($node, "SELECT string_agg((idemq.admit('new' || i, 2, '1 h')).allowed::text, ' ') FROM generate_series(1, 3) i", 'true true false',
	'and those of another have theirs');
is_sql($node, "SELECT used, refused FROM idemq.memory WHERE resource = 'buckets'", "$share|6", 'idemq.memory counts who found no room');
is_sql($node, "SELECT shared - $shared FROM idemq.admissions", '6', 'so does idemq.admissions');
sql($node, "SELECT idemq.admit('long' || i, i, '$per') FROM generate_series(1, 50) i");
# meant to expire: how long a name with a short period must wait, which 50 limits with a long period do not change.
is_sql($node, "SELECT max((idemq.admit('short', i, '1 s')).retry_after) < '4 s' FROM generate_series(1, 50) i", 't',
	'a limit with a short period does not wait for those with a long one');
# Others have their half; and when that is used up, too, a third is limited, and starts.
foreach my $db (qw(second third))
{
	sql($node, "CREATE DATABASE $db");
	sql($node, 'CREATE EXTENSION idemq', $db);
}
is_sql($node, "SELECT count(*) FROM generate_series(1, $share) i, idemq.admit('used' || i, 1, '$per') a WHERE a.allowed", $share, 'another database has the other half', 'second');
is_sql($node, "SELECT used FROM idemq.memory WHERE resource = 'buckets'", $buckets, 'the table is full');
is_sql($node, "SELECT string_agg((idemq.admit('one', 3, '$per')).allowed::text, ' ') FROM generate_series(1, 4) i", 'true true true false', 'a third is limited', 'third');
is_sql($node, "SELECT count(*) FROM idemq.admit('short', 1, '1 s')", '1', 'it finds that nothing becomes free', 'third'); # meant to expire
sql($node, 'DROP DATABASE second');
is_sql($node, "SELECT allowed FROM idemq.admit('one', 3, '$per')", 'f', 'also once it has a bucket', 'third');
is_sql($node, "SELECT used FROM idemq.memory WHERE resource = 'buckets'", $share + 1, 'which it has', 'third');
# The room that DROP DATABASE has made is used up.  What is idle by then makes room for others, though nothing was idle before.
sql($node, "SELECT idemq.admit('used' || i, 1, '$per') FROM generate_series(3, $share) i", 'third');
is_sql($node, "SELECT allowed FROM idemq.admit('idle', 1, '10 ms')", 't', 'the last room', 'third'); # meant to expire
$shared = sql($node, 'SELECT shared FROM idemq.admissions');
sql($node, 'SELECT pg_sleep(0.02)');
is_sql($node, "SELECT allowed FROM idemq.admit('another', 1, '1 h')", 't', 'a name gets the room of one that is idle', 'third');
is_sql($node, "SELECT shared - $shared FROM idemq.admissions", '0', 'a bucket of its own');
# Names without a bucket of their own have used up what they share, for $per.  Of the databases that come later, one gets the share of "second" and one this.
is_sql($node, "SELECT count(*) FROM generate_series(1, 5) i, idemq.admit('late' || i, 2, '$per') a WHERE a.allowed", '0', 'names without a bucket are limited', 'third');
sql($node, 'DROP DATABASE third');
foreach my $db (qw(fourth fifth))
{
	sql($node, "CREATE DATABASE $db");
	sql($node, 'CREATE EXTENSION idemq', $db);
	is_sql($node, "SELECT count(*) FROM generate_series(1, 5) i, idemq.admit('new' || i, 1, '$per') a WHERE a.allowed", '5', 'a new database is not limited by what a dropped one did', $db);
}
sql($node, "DROP DATABASE $_") foreach qw(fourth fifth);
is_sql($node, "SELECT count(*) FROM generate_series(3, $share - 1) i, idemq.admit('used' || i, 1, '$per') a WHERE a.allowed", '0',
	'those in use are limited as ever');
is(left(), '3', 'and nothing is lost');

# ---- A standby has its own; a promotion keeps them

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('admit_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
caught_up($node, $standby);
is_sql($standby, "SELECT allowed, remaining FROM idemq.admit('one', 1000, '$per')", 't|999', 'standby: its own bucket');
is_sql($standby, "SELECT count(*) FILTER (WHERE (a).allowed) FROM (SELECT idemq.admit('one', 1000, '$per') AS a FROM generate_series(1, 1000) OFFSET 0) s", '999',
	'standby: limited as on the primary');
is_sql($standby, 'SELECT allowed, refused, shared FROM idemq.admissions', '1000|1|0', 'standby: counted');
is_sql($node, "SELECT allowed FROM idemq.admit('one', 1000, '$per')", 'f', "the primary's is not touched");
$standby->promote;
is_sql($standby, "SELECT allowed FROM idemq.admit('one', 1000, '$per')", 'f', 'promoted: the same bucket');
$standby->stop;

# ---- A restart forgets

$node->restart;
is_sql($node, "SELECT allowed, remaining FROM idemq.admit('one', 1000, '$per')", 't|999', 'a restart forgets');
is_sql($node, 'SELECT allowed, refused, shared FROM idemq.admissions', '1|0|0', 'and counts anew');

$node->stop;
done_testing();
