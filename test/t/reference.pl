# The reference in doc/ says what the catalog says: make doc has been run.
# at least 5 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $node = new_server('reference');
my $output;

sub is_fresh
{
	return IPC::Run::run([ "$source/script/dev/make-reference", '--check', '-h', $node->host, '-p', $node->port, 'postgres' ],
		'<', \undef, '>&', \$output, IPC::Run::timeout(300));
}

ok(is_fresh(), 'doc/reference is as the catalog has it') or diag "$output\nmake doc";
sql($node, "COMMENT ON FUNCTION idemq.claim IS 'something else'");
ok(!is_fresh(), 'a comment that has changed is noticed');
like($output, qr/^\+.*something else/m, 'and shown');

# What is public is on the page.
is_sql($node, "SELECT count(*) FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace",
	scalar(() = slurp_file("$source/doc/reference/functions.md") =~ /^\| `(?:CALL )?\w+\(/mg), 'every function has a row');

is(join("\n", map { /^\| `(\w+)/ } grep { length > 500 } slurp_file("$source/doc/reference/functions.md") =~ /^(\|.*)$/mg), '',
	'no row is longer than a few lines: what a long COMMENT says is a list, in lines that begin with "- "');

$node->stop;
done_testing();
