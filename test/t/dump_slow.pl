# After a restore from plain text everything goes on from where it was; parallel restores, whose tables come in any order,
# bring the same rows.
# slow: the order in which pg_restore -j 4 brings tables differs each time, so it is tried six times
# at least 56 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Dumped;
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('dump_slow');
my $file = "$PostgreSQL::Test::Utils::tmp_check/dump";
my @server = ('-h', $node->host, '-p', $node->port);

make_states($node);
my $before = sql($node, $content);

command_ok([ 'pg_dump', @server, '-Fplain', '-f', "$file.plain", 'postgres' ], 'pg_dump -Fplain');
sql($node, 'CREATE DATABASE copy_plain');
command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', @server, '-d', 'copy_plain', '-f', "$file.plain" ], 'restore -Fplain');
is(sql($node, $content, 'copy_plain'), $before, 'plain: rows are the same');
goes_on_in($node, 'copy_plain', 'plain');

# A foreign key of the user's is added when its own table is there, whether or not the jobs are.
command_ok([ 'pg_dump', '-F', 'c', '-T', 'app', @server, '-f', "$file.parallel", 'postgres' ], 'a dump without one');
my $rest = join ';', grep { !/FROM app/ } split /;/, $content;
foreach my $try (1 .. 6)
{
	sql($node, 'CREATE DATABASE parallel');
	$node->command_checks_all([ 'pg_restore', '-j', 4, @server, '-d', 'parallel', "$file.parallel" ],
		0, [qr/^$/], [qr/^$/], "restore -j 4, try $try");
	is(sql($node, $rest, 'parallel'), sql($node, $rest), "-j 4, try $try: rows are the same");
	is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', "-j 4, try $try: check()", 'parallel');
	sql($node, 'DROP DATABASE parallel');
}

$node->stop;
done_testing();
