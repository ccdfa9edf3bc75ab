# idemq.admit while 16 sessions call the same buckets: several costs, calls that roll back, and buckets that come
# and go at full speed.
# slow: 20,000 calls of 16 sessions that compete for the processors
# at least 12 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('admit_slow', 'idemq.max_buckets' => 32, max_connections => 50, log_statement => 'none');
# So long that no token comes back.
my $per = '100 years';

# Runs pgbench scripts in 16 sessions, all of them at the same buckets; each call is a transaction.
sub hammer
{
	my ($name, @scripts) = @_;
	my @files = map { my $file = $node->basedir . "/$name.$_.sql"; append_to_file($file, $scripts[$_]); ('-f', $file) } 0 .. $#scripts;

	$node->command_ok([ 'pgbench', '-n', '-M', 'prepared', '-c', '16', '-j', '2', '-t', '250', '-h', $node->host,
			'-p', $node->port, @files, 'postgres' ], "$name: 16 sessions, 250 calls each");
	return;
}

sql($node, 'CREATE TABLE got (bucket text, cost int)');
hammer('three', "INSERT INTO got SELECT 'three', 3 FROM idemq.admit('three', 1000, '$per', 3) WHERE allowed;\n");
is_sql($node, "SELECT count(*) FROM got WHERE bucket = 'three'", '333', 'cost 3: a third of the calls are allowed');
is_sql($node, "SELECT allowed, remaining FROM idemq.admit('three', 1000, '$per', cost => 0)", 't|1', 'one is left');
my $before = sql($node, 'SELECT allowed FROM idemq.admissions');
hammer('mixed', map { "INSERT INTO got SELECT 'mixed', $_ FROM idemq.admit('mixed', 1000, '$per', $_) WHERE allowed;\n" } (1, 2, 7));
is_sql($node, "SELECT sum(cost) FROM got WHERE bucket = 'mixed'", '1000', 'mixed costs: all are used up');
hammer('undone', "BEGIN;\nINSERT INTO got SELECT 'undone', 1 FROM idemq.admit('undone', 1000, '$per') WHERE allowed;\nCOMMIT;\n",
	"BEGIN;\nSELECT allowed FROM idemq.admit('undone', 1000, '$per');\nROLLBACK;\n",
	"BEGIN;\nSAVEPOINT s;\nSELECT allowed FROM idemq.admit('undone', 1000, '$per');\nROLLBACK TO s;\nCOMMIT;\n");
is_sql($node, "SELECT count(*) BETWEEN 1 AND 999 FROM got WHERE bucket = 'undone'", 't', 'some calls were allowed and rolled back');
is_sql($node, "SELECT allowed FROM idemq.admit('undone', 1000, '$per')", 'f', 'none of them came back');
is_sql($node, "SELECT allowed - $before FROM idemq.admissions", 1000 + sql($node, "SELECT count(*) FROM got WHERE bucket = 'mixed'"),
	'exactly max_calls were allowed');

# Buckets come and go at full speed, next to one that is in use all the time.
$node->restart;
hammer('churn', "INSERT INTO got SELECT 'churn', 1 FROM idemq.admit('churn', 1000, '$per') WHERE allowed;\n",
	"\\set n random(1, 200)\nSELECT allowed FROM idemq.admit(:n::text, 1, '100 us');\n");
is_sql($node, "SELECT count(*) FROM got WHERE bucket = 'churn'", '1000', 'evictions: exactly max_calls of the bucket in use');
is_sql($node, "SELECT used <= size FROM idemq.memory WHERE resource = 'buckets'", 't', 'never more buckets than there is room for');

$node->stop;
done_testing();
