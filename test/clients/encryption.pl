# The codec that doc/usage/encryption.md shows, in Python and Node: each language reads what the other has stored, and a duplicate is
# one before, across and after a rotation of the keys, whichever language sends it.
# slow: needs the package python3-cryptography
# at least 47 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use JSON::PP;
use MIME::Base64;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no node-pg' unless $ENV{IDEMQ_NODE_MODULES};
plan skip_all => 'no python3-cryptography' if system('/usr/bin/python3 -c "import cryptography" 2>/dev/null') != 0;

my $json = JSON::PP->new->canonical->allow_nonref->utf8;
my $node = new_server('encryption', 'idemq.worker' => 'on');
my $here = $FindBin::RealBin;
my $app = folder('app', "$here/encryption.mjs", "$here/encryption_shop.mjs");
my %secrets = map { $_ => encode_base64(chr(ord($_)) x 32, '') } qw(1 2);
# The keys before, during and after a rotation.
my %keys = (old => "1:$secrets{1}", known => "1:$secrets{1} 2:$secrets{2}", both => "2:$secrets{2} 1:$secrets{1}", new => "2:$secrets{2}");

local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
my %program = (
	python => [ '/usr/bin/python3', "$here/encryption_shop.py", $node->connstr('postgres') . ' user=postgres connect_timeout=60' ],
	node => [ 'node', "$app/encryption_shop.mjs", $json->encode({ host => $node->host, port => $node->port + 0, user => 'postgres', database => 'postgres' }) ]);

# What a program prints, or its error.
sub shop
{
	my ($language, $keys, @args) = @_;
	local $ENV{CARD_KEYS} = $keys{$keys};
	my ($out, $err) = run_command([ @{ $program{$language} }, @args ]);

	return $out eq '' ? $err : $out;
}

sql($node, q[SELECT idemq.create_queue('cards', lease => '1 h', retry_base => '1 h', retention => '1 d')]);
sql($node, 'CREATE TABLE payments (order_id int, paid text)');

my $order = 0;
foreach my $pair ([ 'python', 'node' ], [ 'node', 'python' ], [ 'python', 'python' ], [ 'node', 'node' ])
{
	my ($first, $second) = @$pair;

	$order++;
	is(shop($first, 'old', 'pay', $order, '4111'), '"accepted"', "$first enqueues");
	foreach my $keys (qw(old known both))
	{
		is(shop($second, $keys, 'pay', $order, '4111'), '"duplicate"', "$keys keys: a second enqueue by $second is a duplicate");
	}
	like(shop($second, 'both', 'pay', $order, '5500'), qr/KeyReused/, 'another card is none');
	is(shop($second, 'both', 'work'), '{"committed":1}', "$second works");
	is(shop($first, 'both', 'pay', $order, '4111'), '"duplicate"', 'a duplicate of a job that is completed');

	# Everything else that is stored.
	my $given = $json->encode({ n => $order, text => "\x{e4}\x{1f600}", list => [ 1, 0.5, { b => JSON::PP::true, a => undef } ] });
	my $ids = $json->decode(shop($first, 'old', 'all', "parent $order", '1'));
	sql($node, "SELECT idemq.commit(id, token) FROM idemq.claim('cards')");
	$ids = $json->decode(shop($first, 'old', 'all', "all $order", $given, $ids->[1]));
	is($ids->[0], 'accepted', "$first enqueues what has a parent");
	my $before = shop($first, 'old', 'handle');
	shop($first, 'old', 'send', "approved $order", $given);
	like(shop($second, 'both', 'send', "approved $order", $given), qr/^\["duplicate",\{.*\},true\]$/, 'an event that was sent before');
	shop($second, 'both', 'handle') foreach 1 .. 2;
	my $result = $json->decode(shop($first, 'both', 'read', $ids->[1]));
	my $expected = $json->decode($given);
	is_deeply($result, [ { of => $expected }, { first => $expected }, $expected, [undef] ],
		"what $first began with the old key, $second has ended with the new one") or diag $before, $json->encode($result);
}
is_sql($node, 'SELECT order_id, paid FROM payments ORDER BY 1', join("\n", map { "$_|paid with 4111" } 1 .. $order), 'each payment happened once');
is_sql($node, q[SELECT count(*) FROM idemq.jobs, jsonb_each(jsonb_build_object('p', payload, 'c', checkpoint, 'r', result)) AS d
	WHERE d.value <> 'null' AND NOT d.value ?& '{idemq_codec,key,data}'], 0, 'nothing is stored in clear');
is_sql($node, 'SELECT count(*) FROM idemq.steps WHERE NOT request ?& \'{idemq_codec,key,data}\'', 0, 'nor in steps');
is_sql($node, q[SELECT string_agg(DISTINCT payload->>'key', ' ') FROM idemq.jobs], '1', 'all jobs were enqueued with the old key');
like(shop($_, 'new', 'all', 'order-1', '1'), qr/KeyReused/, "$_: a key that is not there any more") foreach qw(python node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
