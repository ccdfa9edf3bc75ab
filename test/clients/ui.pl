# The web page of ui/, in a headless browser: the story of doc/operations/three-in-the-morning.md
# end to end, what other pages and other roles may not do, and who can read it.  The browser's
# part is ui/test/story.mjs.  UI_PICTURES=dir keeps the pictures that doc/operations shows.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use File::Copy qw(copy);
use HTTP::Tiny;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $modules = $ENV{IDEMQ_NODE_MODULES};
plan skip_all => 'no fastify: npm cannot fetch it' unless $modules && -d "$modules/fastify" && -d "$modules/playwright-core";
plan skip_all => 'no /usr/bin/chromium' unless -x '/usr/bin/chromium';
my ($release) = qx{node --version} =~ /^v(\d+)/;
plan skip_all => "no Node.js 20 or newer, which page and browser want: $release" if $release < 20;

my $tmp = PostgreSQL::Test::Utils::tempdir();
my $ui = "$tmp/ui";
my $pictures = "$tmp/pictures";
mkdir $pictures or die $!;
system('cp', '-r', "$ENV{IDEMQ_SOURCE}/ui", $ui) == 0 or die 'cp';
system("rm", "-rf", "$ui/node_modules") == 0 or die "rm";
symlink $modules, "$ui/node_modules" or die "symlink: $!";

my $node = new_server('ui', 'idemq.worker' => 'on');
# 500 of one cause among 100,000, and 80 of another.
sql($node, q{SELECT idemq.create_queue(name, max_attempts => 1) FROM unnest('{mail,orders,hostile,large}'::text[]) name;
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

my @pages;

# Starts a page; returns its address.
sub page
{
	my ($role, @arguments) = @_;
	my $said = '';

	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ($node->host, $node->port, $role, 'postgres');
	my $page = IPC::Run::start([ 'node', "$ui/bin/idemq-ui.mjs", '--port=0', @arguments ], '<', \undef, '>', \$said,
		'2>&1', IPC::Run::timeout(300));
	$page->pump until $said =~ m{(http://\S+)};
	push @pages, $page;
	return $1;
}

IPC::Run::run([ 'node', '--max-old-space-size=160', "$ui/test/many.mjs" ], '<', \undef, '>', \my $many, '2>&1', IPC::Run::timeout(120));
like($many, qr/^ok - /, 'two minutes of 2,000 queues have room') or diag(substr $many, 0, 1000);
my @addresses = (page('postgres', '--actions'), page('postgres'), page('tenant'));
my $started = time;
my ($out, $err) = ('', '');
{
	local $ENV{HOME} = $tmp;
	IPC::Run::run([ 'node', "$ui/test/story.mjs", @addresses, $pictures ], '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(300));
}
ok(!$1, $2) while $out =~ /^(not )?ok - (.*)$/mg;
is($err, '', 'and nothing else');
note(sprintf '# figure: the browser took %d s', time - $started);

is_sql($node, q{SELECT count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'dead')
	FROM idemq.jobs WHERE queue_id = idemq.queue_id('mail') AND id <= 1000000099580}, '500|80', 'just those were redriven');
is_sql($node, q{SELECT session_role, queue, jobs FROM idemq.audit WHERE action = 'redrive'}, 'postgres|mail|500', 'and by whom');
is_sql($node, q{SELECT string_agg(action, ' ' ORDER BY id) FROM idemq.audit WHERE queue = 'orders'}, 'create_queue pause resume',
	'nothing that was refused was done');
# After a page: what is idle for ten seconds is closed.  A session of ours that has ended may be there for a moment.
until_true('its sessions have a name', sub {
	HTTP::Tiny->new->get($addresses[0])->{success} or die 'no page';
	return sql($node, q{SELECT count(*) > 0 AND bool_and(application_name = 'idemq-ui') FROM pg_stat_activity
		WHERE client_port IS NOT NULL AND pid <> pg_backend_pid()}) eq 't';
});

if (my $to = $ENV{UI_PICTURES})
{
	copy($_, $to) or die "copy $_: $!" for glob "$pictures/*.png";
}
$_->signal('TERM') for @pages;
ok($_->finish, 'a page ends when it is told to') for @pages;
$node->stop;
done_testing();
