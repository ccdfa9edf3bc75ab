# The parts of the web page (ui/) that need neither npm nor a browser: how it reads the history (ui/test/history.mjs),
# what pages say (ui/test/pages.mjs), schedules in words (ui/test/cron.mjs), what pages say of flows
# (ui/test/flow.mjs), the life of a job (ui/test/line.mjs), the terms of the search (ui/test/terms.mjs), whether the
# server accepts each of its statements (ui/test/statements.mjs), that it shows nothing of encrypted documents
# (ui/test/encrypted.mjs), and whether settings of the role change what it reads (ui/test/settings.mjs).  ui_slow.pl and
# ui_parts_slow.pl test the page itself.
# at least 267 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

plan skip_all => 'no node-pg' unless $ENV{IDEMQ_NODE_MODULES};

my $ui = PostgreSQL::Test::Utils::tempdir() . '/ui';
system_or_bail('cp', '-r', "$ENV{IDEMQ_SOURCE}/ui", $ui);
system_or_bail('rm', '-rf', "$ui/node_modules");
symlink $ENV{IDEMQ_NODE_MODULES}, "$ui/node_modules" or die "symlink: $!";

my $node = new_server('ui');
my (undef, $trouble) = reports('history.mjs', 17, [ 'node', '--max-old-space-size=160', "$ui/test/history.mjs" ]);
is($trouble, '', 'history.mjs: and nothing else');
(undef, $trouble) = reports('pages.mjs', 24, [ 'node', "$ui/test/pages.mjs" ]);
is($trouble, '', 'pages.mjs: and nothing else');
(undef, $trouble) = reports('flow.mjs', 27, [ 'node', "$ui/test/flow.mjs" ]);
is($trouble, '', 'flow.mjs: and nothing else');
(undef, $trouble) = reports('line.mjs', 14, [ 'node', "$ui/test/line.mjs" ]);
is($trouble, '', 'line.mjs: and nothing else');

local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ($node->host, $node->port, 'postgres', 'postgres');
reports('statements.mjs', 52, [ 'node', "$ui/test/statements.mjs" ]);
reports('cron.mjs', 62, [ 'node', "$ui/test/cron.mjs" ]);
reports('encrypted.mjs', 5, [ 'node', "$ui/test/encrypted.mjs" ]);

# Roles that see all, whose settings differ; the first has none.
my @settings = (
	[ 'plain' ],
	[ 'dates', DateStyle => q['German, DMY'] ],
	(map { [ "interval_$_", IntervalStyle => "'$_'" ] } qw(iso_8601 postgres_verbose sql_standard)),
	[ 'bytes', bytea_output => q['escape'] ],
	[ 'digits', extra_float_digits => '-15' ],
	[ 'zone', TimeZone => q['Asia/Kathmandu'] ],
	sql($node, 'SHOW server_version_num') < 190000 ? [ 'strings', standard_conforming_strings => 'off', escape_string_warning => 'off' ] : (),
	[ 'encoding', client_encoding => q['LATIN1'] ],
	[ 'path', search_path => 'strange, pg_catalog, public' ],
	[ 'locale', map { ("lc_$_" => q['C']) } qw(messages monetary numeric time) ],
	[ 'names', quote_all_identifiers => 'on', array_nulls => 'off', xmlbinary => 'hex' ]);
sql($node, q[CREATE SCHEMA strange; CREATE FUNCTION strange.left(text, int) RETURNS text LANGUAGE sql AS 'SELECT ''''']);
foreach (@settings)
{
	my ($role, %set) = @$_;

	sql($node, "CREATE ROLE $role LOGIN SUPERUSER; " . join ' ', map { "ALTER ROLE $role SET $_ = $set{$_};" } sort keys %set);
}
sql($node, q[SELECT idemq.ensure_queue('strange', lease => '75.001 s', retry_base => '1 h', job_timeout => '2 h 3 min', retention => '24 h', max_unfinished => 1000, notify_finished => true);
	SELECT idemq.alter_queue('strange', max_unfinished => 900, retention => '1 day')]);
# One that is completed, after a step; one that waits for its retry; one that runs; one that waits for the first.
sql($node, q[SELECT idemq.enqueue('strange', '"1 € für"', key => 'a\b'), idemq.enqueue('strange', '2', priority => 5)]);
my ($id, $token) = split /\|/, sql($node, q[SELECT id, token FROM idemq.claim('strange', worker => 'w \ é')]);
sql($node, qq[CALL idemq.begin_step($id, $token, 'call', '{"n": 1.00001}', '1 min 30 s')]);
sql($node, qq[SELECT idemq.finish_step($id, $token, 'call', '{"ok": 0.1}'), idemq.commit($id, $token, '{"é": 1}')]);
($id, $token) = split /\|/, sql($node, q[SELECT id, token FROM idemq.claim('strange')]);
sql($node, qq[SELECT idemq.fail($id, $token, 'Fehler: für \\ 1', details => '{"a": 1.5}'), idemq.enqueue('strange', '3')]);
sql($node, q[SELECT * FROM idemq.claim('strange', worker => 'runs', lease => '1 h')]);
sql($node, q[CALL idemq.tick()]);
sql($node, q[SELECT idemq.schedule('yearly', '0 3 1 2 *', 'strange', '4', time_zone => 'Asia/Kathmandu')]);
reports('settings.mjs', @settings + 8, [ 'node', "$ui/test/settings.mjs", map { $_->[0] } @settings ]);

# The search, among more jobs.
sql($node, q[SELECT idemq.create_queue(n, max_attempts => 1) FROM unnest('{many,others}'::text[]) n;
	SELECT count(*) FROM idemq.enqueue_many('many', (SELECT array_agg(jsonb_build_object('customer', jsonb_build_object('id', g % 1000, 'name', 'Jörg ö'))) FROM generate_series(1, 6000) g),
		keys => (SELECT array_agg('k' || g) FROM generate_series(1, 6000) g), kinds => (SELECT array_agg((ARRAY['even', 'odd'])[1 + g % 2]) FROM generate_series(1, 6000) g));
	SELECT count(*) FROM idemq.claim('many', 300) c, idemq.fail(c.id, c.token, 'no such Address');
	SELECT count(*) FROM idemq.claim('many', 300) c, idemq.commit(c.id, c.token);
	SELECT count(*) FROM idemq.enqueue_many('others', array_fill('1'::jsonb, ARRAY[120]));
	SELECT count(*) FROM idemq.claim('others', 60) c, idemq.fail(c.id, c.token, 'other');
	SELECT count(*) FROM idemq.claim('others', 3, lease => '1 h');
	CREATE ROLE seeks LOGIN; SELECT idemq.grant_queue('many', 'seeks', 'claim')]);
(undef, $trouble) = reports('terms.mjs', 57, [ 'node', "$ui/test/terms.mjs" ]);
is($trouble, '', 'terms.mjs: and nothing else');
$node->stop;
done_testing();
