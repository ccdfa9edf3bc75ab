# Python workers behind a proxy that stops forwarding, and sends no RST, at each point of a job's life: run, run_outside, and both of
# AsyncWorker.
# slow: limits of seconds pass in real time, and the end of each process is measured
# takes long
# asserts times
# at least 8 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use Reports;
use Test::More;

my $node = new_server('silence', 'idemq.worker' => 'on', max_connections => 100);

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
local $ENV{IDEMQ_DSN} = "dbname=postgres user=postgres target_session_attrs=read-write host=${\$node->host} port=${\$node->port}";
reports('silence', 5, [ '/usr/bin/python3', '-W', 'ignore::ResourceWarning', "$FindBin::RealBin/tap.py", 'python_silence' ], 3600);
is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');
$node->stop;
done_testing();
