# What type checkers find in programs with typed queues (typed_errors.py), in the manual's example and in the shop; pydantic models; and
# that ruff has formatted the shop.
# slow: needs pip (mypy, pyright, pydantic, ruff)
# at least 9 assertions

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
my $client = "$ENV{IDEMQ_SOURCE}/clients/python";
my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $shop = "$here/shop_py";
my @python = '/usr/bin/python3';
my ($out, $err) = ('', '');

local $ENV{HOME} = $tmp;
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
plan skip_all => "no pip, or no packages for it: $err"
	unless IPC::Run::run([ @python, '-m', 'pip', '--no-cache-dir', '--disable-pip-version-check', '--quiet', 'install', '--target', "$tmp/packages",
		'mypy', 'pyright[nodejs]', 'pydantic>=2', 'ruff', 'psycopg[binary]==3.1.8; python_version < "3.12"' ], '<', \undef, '>', \$out, '2>', \$err);
local $ENV{PYTHONPATH} = "$tmp/packages:$client";

# A tool says nothing is wrong.
sub finds_nothing
{
	my ($name, @command) = @_;
	my $said = '';

	IPC::Run::run(\@command, '<', \undef, '>&', \$said, IPC::Run::timeout(400));
	is($? >> 8, 0, $name) or diag $said;
	return;
}

my @files = map { "$here/$_" } qw(typed.py typed_errors.py);
{
	local $ENV{MYPYPATH} = "$client:$here:$shop";
	my @mypy = (@python, '-m', 'mypy', '--strict', '--follow-imports=silent', '--cache-dir=/dev/null', '--python-executable', @python);

	finds_nothing('mypy --strict: each wrong line of typed_errors.py has an error, and no other one', @mypy, @files);
	finds_nothing('mypy --strict: the shop', @mypy, glob "$shop/*.py");
}
# pyright reads the files of the configuration's folder.
mkdir "$tmp/checked";
system_or_bail('cp', '-r', @files, $shop, $client, "$tmp/checked");
append_to_file("$tmp/checked/pyrightconfig.json", qq({ "include": ["typed.py", "typed_errors.py", "shop_py"], "extraPaths": [".", "python", "shop_py"],
	"reportUnnecessaryTypeIgnoreComment": true, "reportUnusedExpression": false, "pythonVersion": "3.9" }));
finds_nothing('pyright: the same', @python, '-m', 'pyright', '-p', "$tmp/checked", '--pythonpath', @python);
# And it can fail.
{
	my $text = slurp_file("$here/typed_errors.py");
	my $expected = () = $text =~ /# type: ignore/g;

	append_to_file("$tmp/checked/typed_errors_shown.py", $text =~ s/  # type: ignore\S*//gr);
	append_to_file("$tmp/checked/all.json", '{ "include": ["typed_errors_shown.py"], "extraPaths": [".", "python"], "reportUnusedExpression": false }');
	IPC::Run::run([ @python, '-m', 'pyright', '-p', "$tmp/checked/all.json", '--outputjson', '--pythonpath', @python ], '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(400));
	my %lines = map { $_ => 1 } $out =~ /"start":\s*\{\s*"line":\s*(\d+)/g;
	is(keys %lines, $expected, 'without the comments, pyright finds each of the wrong lines');
	cmp_ok($expected, '>=', 30, 'there are many');
}
finds_nothing('the shop is formatted by ruff at 100 columns', "$tmp/packages/bin/ruff", 'format', '--no-cache', '--check', '--line-length', 100, $shop);

# With psycopg in C, of about the oldest version that the client accepts.
my $node = new_server('python', 'idemq.worker' => 'on');
local $ENV{IDEMQ_DSN} = "dbname=postgres user=postgres connect_timeout=60 host=${\$node->host} port=${\$node->port}";
reports('python_pydantic.py', 3, [ @python, '-W', 'ignore::ResourceWarning', "$here/python_pydantic.py" ]);
$node->stop;
done_testing();
