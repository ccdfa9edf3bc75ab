# The Python client with OpenTelemetry's SDK, which only PyPI has: its spans and metrics (python_otel.py).
# slow: needs pip and the network
# at least 8 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my ($out, $err) = ('', '');
my @pip = ('/usr/bin/python3', '-m', 'pip', '--no-cache-dir', '--disable-pip-version-check', '--quiet');

plan skip_all => 'no pip' unless IPC::Run::run([ @pip, '--version' ], '<', \undef, '>', \$out, '2>', \$err);
{
	local $ENV{HOME} = $tmp;
	plan skip_all => "PyPI's opentelemetry-sdk is out of reach: $err"
		unless IPC::Run::run([ @pip, 'install', '--target', "$tmp/otel", 'opentelemetry-sdk' ], '<', \undef, '>', \$out, '2>', \$err);
}

my $node = new_server('python_otel', 'idemq.worker' => 'on', max_connections => 60);

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python:$tmp/otel";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
local $ENV{IDEMQ_DSN} = "dbname=postgres user=postgres connect_timeout=60 host=${\$node->host} port=${\$node->port}";
reports('python_otel.py', 7, [ '/usr/bin/python3', '-W', 'ignore::ResourceWarning', "$FindBin::RealBin/python_otel.py" ]);
is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');
$node->stop;
done_testing();
