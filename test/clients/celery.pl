# The page celery.md: Celery's worker and idemq's beside each other, with producers of both; a message that Celery delivers
# again is one job.
# slow: needs Celery, whose file broker polls
# at least 11 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";

plan skip_all => 'no celery' unless has_python('celery');

my $node = new_server('celery', 'idemq.worker' => 'on', max_connections => 60);
my $user = getpwuid($>);
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $dsn = 'host=' . $node->host . ' port=' . $node->port . " dbname=postgres user=$user";

sql($node, "SELECT idemq.create_queue('shop'); CREATE TABLE confirmations (order_id int); CREATE TABLE reports (month int, by text)");
mkdir "$tmp/$_" foreach qw(broker sent);
# A broker of files, which kombu has built in.  It reads what it finds, also a file that is being written: a producer's come there whole.
append_to_file("$tmp/shop_config.py", qq(import os\nbroker_transport_options = {"data_folder_in": "$tmp/broker", "data_folder_out": os.environ.get("OUT", "$tmp/broker")}\n));
my %env = (DSN => $dsn, BROKER => 'filesystem://', PYTHONPATH => "$ENV{IDEMQ_SOURCE}/clients/python:$here:$tmp");
my $app = 'import celery_shop as shop; shop.app.config_from_object("shop_config")';

append_to_file("$tmp/shop_with_broker.py", "$app; app = shop.app\n");
my $celery = { name => 'Celery', %{ program([ '/usr/bin/python3', '-m', 'celery', '-A', 'shop_with_broker', 'worker', '--pool', 'solo', '--without-gossip', '--without-mingle' ], %env) } };
my $idemq = { name => 'idemq', %{ program([ '/usr/bin/python3', "$here/celery_moved.py" ], %env) } };

sub producer
{
	my ($code) = @_;
	my $it = program([ '/usr/bin/python3', '-c', "$app\n$code" ], %env, OUT => "$tmp/sent");

	$it->{run}->finish;
	foreach (glob "$tmp/sent/*.msg") { rename $_, s{/sent/}{/broker/}r or die "$_: $!" }
	is($it->{run}->full_result(0), 0, 'a producer') or diag slurp_file($it->{errors});
	return;
}

# Producers that have not moved, one that has, a task that has not, and a message that comes twice.
producer('for n in range(1, 21): shop.confirm.delay(n)
shop.report.delay(7)
for _ in range(3): shop.confirm.apply_async((21,), task_id="again")');
producer('import os, psycopg
from idemq import enqueue
with psycopg.connect(os.environ["DSN"]) as conn:
    for n in range(22, 31): enqueue(conn, "shop", {"order": n}, kind="confirm", key=f"order-{n}")');
is_soon($node, 'SELECT count(*) = 30 FROM confirmations', 'all are confirmed');
is_soon($node, q[SELECT count(*) = 1 FROM reports WHERE by = 'celery'], 'what has not moved is done by Celery');
# What came twice has been seen by Celery: nothing is left in its folder.
until_true('Celery has all', sub { !glob "$tmp/broker/*.msg" });
producer('shop.report.delay(8)');
is_soon($node, 'SELECT count(*) = 2 FROM reports', 'and all before it');
is_sql($node, 'SELECT count(*), count(DISTINCT order_id) FROM confirmations', '30|30', 'each once');
is_sql($node, q[SELECT count(*), count(*) FILTER (WHERE key LIKE 'celery/%') FROM idemq.jobs], '30|21', 'as jobs, by the task ids');
$_->{run}->signal('TERM'), $_->{run}->finish foreach $celery, $idemq;
is($_->{run}->full_result(0), 0, "$_->{name} ends") foreach $celery, $idemq;
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
