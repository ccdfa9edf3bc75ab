# The Python client's own tests (python_SUBJECT.py), run from the source tree.  python_slow.pl tests the package that pip
# makes, and runs the tests that need real time; python_programs.pl runs the three programs.
# takes long
# at least 350 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use Reports;
use Test::More;

my $node = new_server('python', 'idemq.worker' => 'on', max_connections => 60);

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
# A drain tries to connect once: a busy machine may take longer than the client's three seconds.
local $ENV{IDEMQ_DSN} = "dbname=postgres user=postgres connect_timeout=60 target_session_attrs=read-write host=${\$node->host} port=${\$node->port}";
# python_drain.py reads it.
local $ENV{IDEMQ_SERVER_LOG} = $node->logfile;
my @of_transactions = qw(batches cancel handler_connection job_timeout lost_answers lost_leases messages transactions);
my @others = qw(ahead codec drain failures finished flows handler_slots handlers hooks jobs logs manual outside processes producers queues run_steps statement steps trace types values worker_report);
foreach ([ 'of transactions', 73, @of_transactions ], [ 'others', 272, @others ])
{
	my ($name, $least, @subjects) = @$_;

	reports($name, $least, [ '/usr/bin/python3', '-W', 'ignore::ResourceWarning', "$FindBin::RealBin/tap.py", map { "python_$_" } @subjects ]);
}
is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');
$node->stop;
done_testing();
