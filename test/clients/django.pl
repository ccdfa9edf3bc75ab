# idemq.django: django_worker.py, django_backend.py and django_manual.py with Django 5.2 and django-tasks on this machine's Python, and with Django 6.0 on the Python
# of Debian 13; and with that, Django's own tests of Tasks (django_own.py).
# slow: needs pip, and for Django 6.0 root and debootstrap
# at least 75 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

# script/test has fetched it, or said why not.
my $provided = $ENV{IDEMQ_DJANGO};
plan skip_all => 'no Django' unless $provided;

my $here = $FindBin::RealBin;
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('django', 'idemq.worker' => 'on', max_connections => 100);

# Each has its own database.
sub tests_of
{
	my ($database, $packages, $python, @programs) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE $database");
	local $ENV{PYTHONPATH} = "$provided/$packages:$ENV{IDEMQ_SOURCE}/clients/python:$here:$provided/source";
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	local $ENV{IDEMQ_PYTHON} = $python;
	local $ENV{IDEMQ_DSN} = "dbname=$database user=postgres connect_timeout=60 host=${\$node->host} port=${\$node->port}";
	foreach (@programs)
	{
		my ($program, $least, @apps) = @$_;

		local $ENV{MORE_APPS} = "@apps";
		reports("$packages, $program", $least, [ $python, '-W', 'ignore::ResourceWarning', "$here/$program.py" ]);
	}
	is_sql($node, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', "$packages: check", $database);
	return;
}

my @both = ([ 'django_worker', 29 ], [ 'django_backend', 34 ], [ 'django_manual', 4 ]);
tests_of('bookworm', 'bookworm', '/usr/bin/python3', @both);
SKIP:
{
	skip 'no Debian 13 with Django 6.0', 1 unless -d "$provided/tree";

	# Its programs run with its libraries, and need neither root nor a chroot.
	my $tree = "$provided/tree";
	my ($loader) = grep { /ld-linux/ } glob "$tree/usr/lib/*/ld-linux*";
	my ($libraries) = $loader =~ m{(.*)/};

	append_to_file("$tmp/python", <<"END");
#!/bin/sh
export PYTHONHOME="$tree/usr"
exec "$loader" --library-path "$libraries" "$tree/usr/bin/python3" "\$@"
END
	chmod 0755, "$tmp/python";
	tests_of('trixie', 'trixie', "$tmp/python", @both, [ 'django_own', 50, 'tasks' ]);
}
$node->stop;
done_testing();
