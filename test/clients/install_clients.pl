# The clients stay installed, as doc/usage/install-clients.md says: from a file in the application's folder, once more by npm ci and in a new
# virtual environment, and beside what is installed later.
# slow: needs npm and pip
# at least 9 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use File::Path qw(remove_tree);
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;

my $tmp = $PostgreSQL::Test::Utils::tmp_check;

SKIP: {
	skip 'no npm packages', 6 unless $ENV{IDEMQ_NODE_MODULES} && -d "$ENV{IDEMQ_NODE_MODULES}/zod";
	my $app = "$tmp/node_app";
	my ($file) = packed() =~ m{([^/]+)$};
	# What script/test has fetched, and no more.
	my @npm = ('npm', '--prefix', $app, '--offline', '--cache', "$ENV{IDEMQ_NODE_MODULES}/../cache", '--no-audit', '--no-fund', '--silent');

	mkdir $_ foreach $app, "$app/vendor";
	system_or_bail('cp', "$tmp/$file", "$app/vendor");
	append_to_file("$app/package.json", '{ "type": "module" }');
	append_to_file("$app/main.js", 'import { Worker } from "idemq"; console.log(typeof Worker)');
	command_ok([ @npm, 'install', "$app/vendor/$file" ], 'npm installs the client');
	like(slurp_file("$app/package.json"), qr{"idemq": ?"file:vendor/\Q$file\E"}, 'from the file, which is in package.json');
	command_like([ 'node', "$app/main.js" ], qr/^function$/, 'it can be imported');
	remove_tree("$app/node_modules");
	command_ok([ @npm, 'ci' ], 'npm ci installs it again');
	command_ok([ @npm, 'install', 'zod' ], 'another package is installed');
	command_like([ 'node', "$app/main.js" ], qr/^function$/, 'and the client is still there');
}

SKIP: {
	# Debian's pip and psycopg, so nothing is fetched.
	my @pip = ('/usr/bin/python3', '-m', 'pip', '--quiet', '--disable-pip-version-check', '--no-cache-dir');

	skip 'no pip', 3 unless run_log([ @pip, '--version' ]);
	my $app = "$tmp/python_app";

	mkdir $app;
	system_or_bail("$ENV{IDEMQ_SOURCE}/script/release/make-clients", "$app/vendor", $ENV{IDEMQ_SOURCE}, 'python');
	my ($file) = glob("$app/vendor/idemq-*.whl") =~ m{([^/]+)$};
	append_to_file("$app/requirements.txt", "./vendor/$file\n");
	foreach my $time ('first', 'second')
	{
		remove_tree("$app/venv");
		system_or_bail('/usr/bin/python3', '-m', 'venv', '--without-pip', '--system-site-packages', "$app/venv");
		command_ok([ 'env', '-C', $app, @pip, '--python', 'venv', 'install', '--no-index', '-r', 'requirements.txt' ], "pip installs the client, for the $time time");
		command_like([ "$app/venv/bin/python", '-c', 'import idemq; print(idemq.__file__)' ], qr{^\Q$app\E/venv/}, 'and it can be imported');
	}
}
done_testing();
