# Further parts of the test of the web page in a headless browser, which expect the jobs as ui/test/jobs.sql and incident.sql leave them:
# incident.mjs for the time span and the page of an error, schedules.mjs, search.mjs, lists.mjs for lists as CSV and by keyboard,
# site.mjs for a path prefix, several databases and themes, and flows.mjs for flows.  ui_slow.pl has the others.
# slow: needs npm and Chromium, which takes minutes
# takes long
# at least 262 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use Test::More;
use WebPage;

my $node = serve_pages();
my @addresses = (page('postgres', '--actions'), page('postgres'), page('tenant'));
my @settings = (page('postgres', '--actions', '--allow-settings'), $addresses[0], page('clerk', '--actions', '--allow-settings'));
sql($node, 'CREATE DATABASE empty');
sql($node, 'CREATE EXTENSION idemq', 'empty');
my $site = page('postgres', '--actions', '--path-prefix=/idemq', '--database=shop=postgresql:///postgres', '--database=empty=postgresql:///empty');

part('incident.mjs', 61, @addresses);
part('schedules.mjs', 33, @settings);
part('search.mjs', 47, @addresses[ 0, 2 ]);
part('lists.mjs', 23, @addresses[ 0, 2 ]);
part('site.mjs', 48, $site);
part('flows.mjs', 49, @addresses[ 0, 1 ], page('looker', '--actions'), pictures());
end_pages();
done_testing();
