# The three programs of doc/usage/three-programs.md in Node, as its client's examples, by the server itself and through a
# pooler in transaction mode that closes what is idle for a second.  What befalls them: test/t/lib/ThreePrograms.pm.  And
# the orders of doc/usage/events.md, which wait for a payment.
# slow: needs npm; leases of 3 s pass in real time, a failover
# at least 133 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use HTTP::Tiny;
use IPC::Run;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;
use ThreePrograms;

# script/test has fetched it, or said why not.
plan skip_all => 'no npm packages' unless $ENV{IDEMQ_NODE_MODULES};

my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('programs', 'idemq.worker' => 'on', max_connections => 150);

packed();
my @examples = glob "$ENV{IDEMQ_SOURCE}/clients/node/examples/*.js";
my $app = application('app', [], @examples);

foreach my $file (@examples)
{
	cmp_ok(scalar(() = slurp_file($file) =~ /^/mg), '<=', 15, "$file has 15 lines");
}

# As it stands there, but for the 10 s that a provider may take.
my $source = slurp_file("$app/mail.js");
is($source =~ s/callTimeout: 10,/callTimeout: 2,/, 1, 'the mailer gives up on a call');
write_whole("$app/mail.js", $source);

my $provider = provider('keyless');
my ($start, @pooler) = pooler($node, default_pool_size => 20, client_idle_timeout => 1, server_idle_timeout => 1);
my $pgbouncer = $start->();
my $command = sub {
	my ($it, $program) = @_;
	my %files = (webhook => 'webhook.js', mailer => 'mail.js', report => 'report.js');
	my ($host, $port) = $it->place;

	return ([ 'node', "$app/$files{$program}" ], PGHOST => $host, PGPORT => $port, PGDATABASE => $it->{db}, PGUSER => scalar getpwuid($>),
		MAIL_API => "$it->{provider}{url}/mails");
};
my %form = (provider => $provider, command => $command, http => 1, asks => 1);
my $direct = ThreePrograms->new($node, 'Node', %form);
my $pooled = ThreePrograms->new($node, 'Node, pooler', %form, pooler => \@pooler);

survives($direct, $pooled);
is(HTTP::Tiny->new->post($direct->{url}, { content => 'no JSON' })->{status}, 503, 'what is no JSON ends nothing');
is_sql($node, q[SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('reports') AND result->>'total' IS DISTINCT FROM '50.00'], 0,
	'the report is the result', $direct->{db});
$pgbouncer->kill_kill;
$pgbouncer = $start->();
$pooled->event;
$pooled->settled('a pooler that was killed');
$pooled->ends;
$pgbouncer->kill_kill;

# Orders that wait for their payment, while the worker is killed.
sub orders
{
	local @ENV{qw(PGHOST PGPORT PGDATABASE PGUSER)} = ($node->host, $node->port, 'postgres', scalar getpwuid($>));
	return IPC::Run::start([ 'node', "$app/orders.js" ], '<', \undef, '>', "$tmp/orders", '2>&1', IPC::Run::timeout(300));
}

sql($node, q[SELECT idemq.create_queue('orders', retry_base => '10 ms'); CREATE TABLE shipments (no int); CREATE TABLE reminders (no int)]);
my $orders = orders();
sql($node, q[SELECT idemq.enqueue('orders', jsonb_build_object('no', n), kind => 'order') FROM unnest('{42,43}'::int[]) n;
	SELECT idemq.enqueue('orders', '{"no": 44}', kind => 'refund')]);
wait_until($node, q[SELECT count(*) = 2 FROM idemq.steps WHERE state = 'waiting']);
is_soon($node, q[SELECT status = 'pending' AND ready_at > now() + '30 s' AND attempt = 0 FROM idemq.jobs WHERE kind = 'refund'], 'a kind that the program does not know is given back');
$orders->signal('KILL');
$orders->finish;
sql($node, q[SELECT idemq.enqueue('orders', '{"no": 42}', kind => 'payment') FROM generate_series(1, 2)]);
$orders = orders();
is_soon($node, q[SELECT count(*) = 3 FROM idemq.jobs WHERE queue_id = idemq.queue_id('orders') AND status = 'completed'], 'the payment wakes its order');
is_sql($node, q[SELECT s.no, r.no FROM shipments s LEFT JOIN reminders r ON true], '42|', 'which is shipped, once');
sql($node, q[UPDATE idemq.steps SET call_until = now() WHERE name = 'paid 43'; SELECT idemq.retry(job_id) FROM idemq.steps WHERE name = 'paid 43']);
is_soon($node, q[SELECT array_agg(no) = '{43}' FROM reminders], 'and a customer who has not paid in time is reminded');
$orders->signal('TERM');
$orders->finish;
is($orders->full_result(0), 0, 'and end by SIGTERM') or diag slurped('orders');

is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');

fails_over($node, $direct)->stop;
$provider->{run}->kill_kill;
done_testing();
