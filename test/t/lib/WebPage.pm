# Shared by the tests of the web page in a headless browser: a server with queues of every kind, pages for several roles, and the parts
# of the test in ui/test.
package WebPage;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Copy qw(copy);
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Reports;
use Test::More;

our @EXPORT = qw(serve_pages page program part pictures big_flow end_pages);

my ($node, $tmp, $ui, $flow, @pages);

# The folder of the pictures that parts take.
sub pictures { return "$tmp/pictures" }

# The flow of 2,001 jobs.
sub big_flow { return $flow }

# Starts the server that the pages show, and returns it.  Skips the test if the browser or a package is missing.
sub serve_pages
{
	my $modules = $ENV{IDEMQ_NODE_MODULES};

	plan skip_all => 'no fastify: npm cannot fetch it' unless $modules && -d "$modules/fastify" && -d "$modules/playwright-core";
	plan skip_all => 'no /usr/bin/chromium' unless -x '/usr/bin/chromium';
	my ($release) = qx{node --version} =~ /^v(\d+)/;
	plan skip_all => "no Node.js 20 or newer, which page and browser want: $release" if $release < 20;

	$tmp = PostgreSQL::Test::Utils::tempdir();
	$ui = "$tmp/ui";
	mkdir pictures() or die $!;
	system('cp', '-r', "$ENV{IDEMQ_SOURCE}/ui", $ui) == 0 or die 'cp';
	system('rm', '-rf', "$ui/node_modules") == 0 or die 'rm';
	symlink $modules, "$ui/node_modules" or die "symlink: $!";

	# Each page has a pool of its own.
	$node = new_server('ui', 'idemq.worker' => 'on', max_connections => 200);
	# 500 of one cause among 100,000, and 80 of another.
	sql($node, q{SELECT idemq.create_queue(name, max_attempts => 1, expect_workers => false) FROM unnest('{mail,orders,hostile,large}'::text[]) name;
		SELECT idemq.create_queue('sms', retry_base => '1 h');
		SELECT count(*) FROM idemq.enqueue_many('orders', (SELECT array_agg(jsonb_build_object('order', g)) FROM generate_series(1, 99000) g));
		SELECT count(*) FROM idemq.claim('orders', 98000) c, idemq.commit(c.id, c.token);
		SELECT count(*) FROM idemq.enqueue_many('mail', (SELECT array_agg(jsonb_build_object('customer', g)) FROM generate_series(1, 600) g));
		SELECT count(*) FROM idemq.claim('mail', 500) c, idemq.fail(c.id, c.token,
			format('column "customer_id" of relation "customers_%s" does not exist', c.id), details => '{"sqlstate": "42703"}');
		SELECT count(*) FROM idemq.claim('mail', 80) c, idemq.fail(c.id, c.token, format('no answer in %s ms', c.id));
		SELECT count(*) FROM idemq.enqueue('sms', '1') e, idemq.claim('sms') c, idemq.fail(c.id, c.token, 'no route');
		SELECT idemq.enqueue('sms', '2', run_at => '20000-01-01');
		SELECT idemq.enqueue('hostile', '{"text": "<script>alert(1)</script>"}', key => '<img src=x onerror=alert(1)>');
		SELECT idemq.enqueue('large', to_jsonb(repeat('x', 999998)));
		CREATE ROLE tenant LOGIN; SELECT idemq.grant_queue('hostile', 'tenant', 'claim');
		SELECT count(*) FROM idemq.enqueue('mail', '2', priority => 0), idemq.claim('mail', lease => '1 h', worker => 'one');
		SELECT idemq.create_queue('flows');
		SELECT idemq.enqueue('flows', '"send"', kind => 'letter', depends_on => ARRAY[id]) FROM idemq.enqueue('flows', '"order"');
		SELECT idemq.await_event(id, token, 'paid 7', '3 days') FROM idemq.claim('flows')});

	# An hour, a day and a week of history, in which some jobs died, in the place of what was done above;
	# the worker adds what happens from here on.
	until_true('what was done is history', sub { sql($node, 'SELECT count(*) > 0 FROM idemq.history WHERE step = 10 AND queue IS NULL AND completed > 50000') eq 't' });
	sql($node, q{INSERT INTO idemq_internal.history_steps
		SELECT s.step, idemq_internal.history_place(s.step, at), q.id, at, (200 + 150 * sin(t / 900))::bigint, 0, (4 + 3 * sin(t / 1800))::bigint, 2, 0,
			at - make_interval(secs => 3 + 2 * sin(t / 700)), s.step * 12, s.step * 11, (s.step * (10 + 6 * sin(t / 1300)))::bigint,
			CASE WHEN t::int / s.step % 7 = 0 THEN s.step / 5 ELSE 0 END, CASE WHEN s.step = 10 AND ends - at IN ('40 min', '38 min', '14 min') THEN 12 ELSE 0 END, 0, 0,
			ARRAY[68, 20, 60, 90, 50, 20, (6 + 6 * sin(t / 1100))::int], ARRAY[60, 30, 80, 40, 9]
		FROM (VALUES (10, 3600), (60, 86400), (600, 604800)) s (step, seconds), (SELECT 0 UNION ALL SELECT idemq.queue_id(n) FROM unnest('{mail,orders,hostile}'::text[]) n) q (id),
			LATERAL (SELECT date_bin(make_interval(secs => s.step), now(), '2000-01-01')) e (ends),
			LATERAL generate_series(ends - make_interval(secs => s.seconds - 2 * s.step), ends, make_interval(secs => s.step)) at, LATERAL (SELECT extract(epoch FROM at)::float8) x (t)
		ON CONFLICT (step, place, queue_id) DO UPDATE SET (at, pending, running, enqueued, claimed, completed, failures, died, wait_counts, run_counts)
			= (excluded.at, excluded.pending, excluded.running, excluded.enqueued, excluded.claimed, excluded.completed, excluded.failures, excluded.died, excluded.wait_counts, excluded.run_counts)});

	# An import of 2,001 jobs: 801 done, 10 dead, one cancelled, one runs.
	sql($node, q{SELECT idemq.create_queue('import', max_attempts => 1);
		WITH file AS (SELECT id FROM idemq.enqueue('import', '{"file": "catalogue.csv"}', kind => 'file')),
			members AS (SELECT array_agg(r.id) AS ids FROM file, LATERAL idemq.enqueue_many('import', (SELECT array_agg(jsonb_build_object('row', g)) FROM generate_series(1, 1999) g),
				kinds => array_fill('row'::text, ARRAY[1999]), depends_on => ARRAY[file.id]) r)
		SELECT idemq.enqueue('import', '{}', kind => '<script>alert(2)</script>', depends_on => ids, on_parent_failure => 'run') FROM members;
		SELECT idemq.commit(id, token) FROM idemq.claim('import')});
	until_true('its rows are released', sub { sql($node, q{SELECT pending FROM idemq.metrics WHERE queue = 'import'}) eq '1999' });
	sql($node, q{SELECT count(*) FROM idemq.claim('import', 800) c, idemq.commit(c.id, c.token);
		SELECT count(*) FROM idemq.claim('import', 10) c, idemq.fail(c.id, c.token, 'row 7: no price');
		SELECT idemq.cancel(max(id)) FROM idemq.jobs WHERE queue_id = idemq.queue_id('import') AND status = 'pending';
		SELECT count(*) FROM idemq.claim('import', lease => '1 h', worker => '<b>bold</b>')});
	$flow = sql($node, q{SELECT max(id) FROM idemq.jobs WHERE queue_id = idemq.queue_id('import')});

	# Who is there, was, and nobody; a handler; a dead-letter queue with something in it.
	sql($node, q{CREATE ROLE app LOGIN; SELECT idemq.grant_queue('mail', 'app', 'claim'), idemq.grant_queue('orders', 'app', 'claim');
		SET SESSION AUTHORIZATION app;
		SELECT idemq.report_worker('00000000-0000-0000-0000-000000000001', 'mail-1', '{mail,orders}', 'node', '1.0.0', 'web-1.shop.example', 8, '{1000000000001}', 18233);
		SELECT idemq.report_worker('00000000-0000-0000-0000-000000000002', '<img src=x onerror=alert(1)>', '{mail}', 'python', '1.0.0', 'web-2', 1);
		SELECT idemq.report_worker('00000000-0000-0000-0000-000000000003', 'mail-3', '{mail}', 'idemq-work', '1.0.0', 'web-3', 4, done => 7, stopping => true);
		RESET SESSION AUTHORIZATION;
		CREATE FUNCTION thumbnail(payload jsonb) RETURNS void SET search_path = pg_catalog LANGUAGE sql AS '';
		SELECT idemq.create_queue('thumbnails'), idemq.set_handler('thumbnails', 'thumbnail');
		SELECT idemq.create_queue('reports'), idemq.enqueue('reports', '3', run_at => now() - interval '5 min');
		SELECT idemq.create_queue('undelivered'), idemq.create_queue('letters', max_attempts => 1, dead_letter_queue => 'undelivered');
		SELECT count(*) FROM idemq.enqueue('letters', '1') e, idemq.claim('letters') c, idemq.fail(c.id, c.token, 'no such street')});

	# What lists and the page of a job show, and what is done to several jobs.
	sql($node, slurp_file("$ENV{IDEMQ_SOURCE}/ui/test/jobs.sql"));

	# Failures at two times, of few causes.
	sql($node, slurp_file("$ENV{IDEMQ_SOURCE}/ui/test/incident.sql"));

	return $node;
}

# page(role, arguments): starts a page; returns its address.  PAGE_OPTIONS replaces the settings of its sessions.
sub page
{
	my ($role, @arguments) = @_;
	my $said = '';

	# A busy machine is no slow statement.
	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE PGOPTIONS)} = ($node->host, $node->port, $role, 'postgres', $ENV{PAGE_OPTIONS} // '-c statement_timeout=100s');
	my $page = IPC::Run::start([ 'node', program(), '--port=0', @arguments ], '<', \undef, '>', \$said, '2>&1', IPC::Run::timeout(2400));
	$page->pump until $said =~ m{(http://\S+)};
	push @pages, $page;
	return $1;
}

# The program that serves a page.
sub program { return "$ui/bin/idemq-ui.mjs" }

# part(file, least, arguments): runs a part of the test, which makes at least that many assertions.  UI_PARTS names the parts to run,
# for ui/test/mutants.
sub part
{
	my ($part, $least, @arguments) = @_;

	return if $ENV{UI_PARTS} && index(" $ENV{UI_PARTS} ", " $part ") < 0;
	my $started = time;
	local @ENV{qw(HOME PGHOST PGPORT PGUSER PGDATABASE)} = ($tmp, $node->host, $node->port, 'postgres', 'postgres');

	# Two have said nothing since, one goes on; and nobody has claimed the report for a minute.
	sql($node, q{UPDATE idemq_internal.worker_entries SET seen_at = seen_at - interval '2 min' WHERE worker <> 'mail-1'; SET SESSION AUTHORIZATION app;
		SELECT idemq.report_worker('00000000-0000-0000-0000-000000000001', 'mail-1', '{mail,orders}', 'node', '1.0.0', 'web-1.shop.example', 8, '{1000000000001}', 18733)});
	until_true('nobody works on it', sub { sql($node, q{SELECT unattended_for IS NOT NULL FROM idemq.metrics WHERE queue = 'reports'}) eq 't' });
	my (undef, $err) = reports($part, $least, [ 'node', "$ui/test/$part", @arguments ]);
	is($err, '', "$part: and nothing else");
	note(sprintf 'figure: the browser took %d s for %s', time - $started, $part);
	return;
}

# Ends the pages and the server.  UI_PICTURES is the folder that keeps the pictures.
sub end_pages
{
	if (my $to = $ENV{UI_PICTURES})
	{
		foreach my $picture (glob pictures() . '/*.png')
		{
			# A third of their size, where it is there.
			system('pngquant', '--force', '--skip-if-larger', '--output', $picture, '64', $picture) if -x '/usr/bin/pngquant';
			copy($picture, $to) or die "copy $picture: $!";
		}
	}
	$_->signal('TERM') for @pages;
	ok($_->finish, 'a page ends when it is told to') for @pages;
	$node->stop;
	return;
}

1;
