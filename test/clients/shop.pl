# The charge of doc/tutorials/charge-a-card.md and the orders of doc/usage/three-programs.md, as they stand there: a charge is made once, an order that is paid is
# shipped, and the other one waits.  Its other programs: python_programs.pl.
# at least 5 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $node = new_server('shop', 'idemq.worker' => 'on');

local $ENV{DSN} = "host=${\$node->host} port=${\$node->port} dbname=postgres user=" . scalar getpwuid($>);
local $ENV{PYTHONPATH} = "$source/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
sql($node, q[SELECT idemq.create_queue('charges'), idemq.create_queue('orders');
	CREATE TABLE charged (key text PRIMARY KEY, amount int); CREATE TABLE orders (id int PRIMARY KEY, charge text); INSERT INTO orders VALUES (42); SELECT idemq.create_queue('mail');
	CREATE TABLE shipments (order_no int); CREATE TABLE reminders (order_no int)]);
my @workers = map { IPC::Run::start([ '/usr/bin/python3', "$source/test/clients/$_.py" ], '<', \undef,
		'>', \my $stdout, '2>', \my $stderr, IPC::Run::timeout(180)) } qw(charges orders);

sql($node, q[SELECT idemq.enqueue('charges', '{"order": 42, "amount": 12}', key => 'charge-42')]);
is_soon($node, q[SELECT status = 'completed' FROM idemq.job_by_key('charges', 'charge-42')], 'the card is charged');
is_sql($node, q[SELECT count(*), sum(amount), bool_and(key = charge), (SELECT count(*) FROM idemq.job_by_key('mail', 'charge-42')) FROM charged, orders],
	'1|12|t|1', 'once, the order has the charge, and the mail is enqueued');

sql($node, q[SELECT idemq.enqueue('orders', jsonb_build_object('order', n), kind => 'order', key => 'order-' || n) FROM generate_series(42, 43) n;
	SELECT idemq.enqueue('orders', '{"order": 42}', kind => 'payment', key => 'payment-42')]);
is_soon($node, q[SELECT status = 'completed' FROM idemq.job_by_key('orders', 'order-42')], 'the order that was paid is done');
is_sql($node, q[SELECT (SELECT string_agg(order_no::text, ' ') FROM shipments), (SELECT count(*) FROM reminders),
	(SELECT status <> 'completed' FROM idemq.job_by_key('orders', 'order-43'))], '42|0|t', 'it is shipped, and the other one waits');

$_->signal('TERM') foreach @workers;
$_->finish foreach @workers;
is(join(' ', map { $_->full_result(0) } @workers), '0 0', 'SIGTERM ends both');

$node->stop;
done_testing();
