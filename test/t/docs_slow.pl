# The SQL of every page of the manual but those that docs.pl runs, each page in a session and a database of its own.
# slow: fifty databases, one after the other
# at least 150 assertions
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
