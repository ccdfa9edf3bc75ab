# The SQL of the manual's pages outside doc/tutorials and doc/usage, which docs.pl runs: each page in a session and a database of its own.
# slow: a database for each page, one after the other
# at least 96 assertions
# takes long

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Documents;
use Test::More;

my $node = manual_server('docs_slow');
my %quick = map { $_ => 1 } quick_pages();

runs_document($node, $_) foreach grep { !$quick{$_} } pages();
$node->stop;
done_testing();
