# The web page of ui/, in a headless browser: the story of doc/tutorials/night-on-call.md
# end to end, what other pages and other roles may not do, and who can read it.  ui.pl tests the parts that need no browser, and
# ui_parts_slow.pl the other parts of the browser's test.  Here they are ui/test/story.mjs, jobs.mjs for lists and jobs, screens.mjs for charts,
# workers and the proxy, and limits.mjs for settings.  UI_PICTURES=dir keeps the pictures that README and
# doc/operations show.
# slow: needs npm and Chromium, which takes minutes
# takes long
# at least 350 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use HTTP::Tiny;
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;
use WebPage;

my $node = serve_pages();
my $tmp = PostgreSQL::Test::Utils::tempdir();
my @addresses = (page('postgres', '--actions'), page('postgres'), page('tenant'));
my $proxied = page('postgres', '--actions', '--proxy=127.0.0.2');
my @settings = (page('postgres', '--actions', '--allow-settings'), $addresses[0], page('clerk', '--actions', '--allow-settings'));
isnt(system("node @{[program()]} --port=0 --allow-settings >$tmp/refused 2>&1"), 0, 'settings without actions are refused');
like(slurp_file("$tmp/refused"), qr/--allow-settings requires --actions/, 'with the reason');
isnt(system("node @{[program()]} --port=0 --listen=0.0.0.0 >$tmp/refused 2>&1"), 0, 'elsewhere than on loopback it wants a proxy');
like(slurp_file("$tmp/refused"), qr/--listen=0\.0\.0\.0 requires --proxy/, 'and says so');
part(@$_)
	foreach (
	[ 'story.mjs', 68, @addresses, pictures() ],
	[ 'jobs.mjs', 153, @addresses[ 0, 1 ], page('looker', '--actions'), page('clerk', '--actions'), $proxied, pictures() ],
	[ 'screens.mjs', 75, @addresses, $proxied, pictures(), big_flow() ],
	[ 'limits.mjs', 42, @settings ]);

# What takes longer than 2 s is ended, and the page says which; the rest of it is there.
{
	my $holder = session($node);
	$holder->query_safe('BEGIN; LOCK TABLE idemq_internal.history_steps');
	local $ENV{PAGE_OPTIONS} = '';
	my $answer = HTTP::Tiny->new->get(page('tenant') . '/?last=7d');
	ok($answer->{success} && $answer->{content} =~ /The query &quot;history\w+&quot; of this page was cancelled after 2 s/ && $answer->{content} =~ m{href="/queue/hostile"},
		'a statement that takes too long is ended, and named') or diag($answer->{content});
	leave($holder);
}

is_sql($node, q{SELECT count(*) FILTER (WHERE status = 'pending'), count(*) FILTER (WHERE status = 'dead')
	FROM idemq.jobs WHERE queue_id = idemq.queue_id('mail') AND (payload->>'customer')::int <= 580}, '500|80', 'just those were redriven');
is_sql($node, q{SELECT session_role, queue, jobs FROM idemq.audit WHERE action = 'redrive'}, 'postgres|mail|500', 'and by whom');
is_sql($node, q{SELECT string_agg(action, ' ' ORDER BY id) FROM idemq.audit WHERE queue = 'orders'}, 'create_queue grant_queue pause resume pause pause',
	'nothing that was refused was done');
# After a page: what is idle for ten seconds is closed.  A session of ours that has ended may be there for a moment.
until_true('its sessions have a name', sub {
	HTTP::Tiny->new->get($addresses[0])->{success} or die 'no page';
	return sql($node, q{SELECT count(*) > 0 AND bool_and(application_name = 'idemq-ui') FROM pg_stat_activity
		WHERE client_port IS NOT NULL AND pid <> pg_backend_pid()}) eq 't';
});

end_pages();
done_testing();
