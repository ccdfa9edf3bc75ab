# The Python client as the package that pip makes.  From that package, the client's tests that need real time or many
# jobs run (python_slow.py).
# slow: needs pip; leases and job_timeout expire in real time
# takes long
# at least 25 assertions

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
my $node = new_server('python', 'idemq.worker' => 'on', max_connections => 60);

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;

# The wheel of make dist, with Debian's packages only.  All tests below run from it.
SKIP:
{
	my @pip = ('/usr/bin/python3', '-m', 'pip', '--no-cache-dir', '--disable-pip-version-check', '--quiet');
	my @local = ('--no-index', '--no-deps');
	my ($out, $err) = ('', '');

	skip 'no pip', 6 unless IPC::Run::run([ @pip, '--version' ], '<', \undef, '>', \$out, '2>', \$err);
	local $ENV{HOME} = $tmp;
	command_ok([ "$ENV{IDEMQ_SOURCE}/script/release/make-clients", "$tmp/wheel", $ENV{IDEMQ_SOURCE}, 'python' ], 'pip makes a wheel');
	command_ok([ @pip, 'install', @local, '--target', "$tmp/installed", glob "$tmp/wheel/idemq-*.whl" ], 'and installs it');
	$ENV{PYTHONPATH} = "$tmp/installed";
	command_like([ '/usr/bin/python3', '-c', 'import idemq, os; print(idemq.__file__, os.listdir(os.path.dirname(idemq.__file__)))' ],
		qr/installed.*py\.typed/, 'which has the types');
	# From the source tree, with pip's own isolation of builds: nothing is fetched for it.
	command_ok([ @pip, 'install', @local, '--target', "$tmp/from_source", "$ENV{IDEMQ_SOURCE}/clients/python" ], 'pip installs the source tree without a network');
	ok(-e "$tmp/from_source/idemq/outbox.sql", 'with all of its files');
	command_like([ "$tmp/installed/bin/idemq-relay", 'sql' ], qr/CREATE TABLE IF NOT EXISTS idemq_outbox\.jobs/, 'and the command idemq-relay');
}

# A drain tries to connect once: a busy machine may take longer than the client's three seconds.
local $ENV{IDEMQ_DSN} = "dbname=postgres user=postgres connect_timeout=60 target_session_attrs=read-write host=${\$node->host} port=${\$node->port}";
reports('python_slow.py', 12, [ '/usr/bin/python3', '-W', 'ignore::ResourceWarning', "$FindBin::RealBin/python_slow.py" ]);
is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');
$node->stop;
done_testing();
