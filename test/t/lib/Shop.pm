# The shop of doc/tutorials/shop.md in TypeScript and Python, for shop_python.pl, shop_typescript.pl and shop_faults.pl: the compiled program, its
# provider (test/clients/shop_provider.py), and what its web server answers.
package Shop;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use HTTP::Tiny;
use Idemq;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(compiled shop_provider did answers_orders);

# A folder with the client, the packages of test/clients/package.json and a program of TypeScript (the shop), which is compiled by
# tsc --strict; its path.  A program may have a tsconfig.json of its own.
sub compiled
{
	my ($name, @files) = @_;
	my $app = "$PostgreSQL::Test::Utils::tmp_check/$name";
	my $shop = "$ENV{IDEMQ_SOURCE}/test/clients/shop_ts";

	mkdir $_ foreach $app, "$app/node_modules";
	my @settings = grep { my $setting = $_; !grep { m|/\Q$setting\E$| } @files } qw(package.json tsconfig.json .prettierrc);
	system_or_bail('cp', map({ "$shop/$_" } @settings), @files ? @files : glob("$shop/*.ts"), $app);
	symlink $_, "$app/node_modules/" . s|.*/||r or die "symlink: $!" foreach glob "$ENV{IDEMQ_NODE_MODULES}/{.bin,*}";
	# A copy, not a link: Node looks for the imports of a linked package next to the link's target.
	system_or_bail('cp', '-r', "$ENV{IDEMQ_SOURCE}/clients/node", "$app/node_modules/idemq");
	command_ok([ "$app/node_modules/.bin/tsc", '-p', $app ], "$name passes tsc --strict");
	return $app;
}

# The provider: { run, url }.
sub shop_provider
{
	my (@options) = @_;
	my $said = "$PostgreSQL::Test::Utils::tmp_check/provider." . join '.', 'of', @options;
	my $run = IPC::Run::start([ '/usr/bin/python3', "$ENV{IDEMQ_SOURCE}/test/clients/shop_provider.py", @options ], '<', \undef, '>', $said, '2>', "$said.err");

	until_true('the provider starts', sub { -s $said && slurp_file($said) =~ /\n/ });
	return { run => $run, url => 'http://127.0.0.1:' . (slurp_file($said) =~ s/\s//gr) };
}

# Whether the web server, started by a command, answers as the tutorial says.
sub answers_orders
{
	my (@command) = @_;
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $http = HTTP::Tiny->new(timeout => 60);
	my $order = '{ "customer": "eva", "amount": 1 }';
	local $ENV{PORT} = $port;
	my $run = IPC::Run::start(\@command, '<', \undef, '>&', "$PostgreSQL::Test::Utils::tmp_check/server.log");
	my $status = sub {
		my ($body, %headers) = @_;
		return $http->post("http://127.0.0.1:$port/orders", { content => $body, headers => \%headers })->{status};
	};

	until_true('the web server starts', sub { return $status->('{', 'Idempotency-Key' => 'none') == 400 });
	foreach (
		[ 'a new order', $order, 202 ], [ 'the same again', $order, 202 ], [ 'another one with this key', $order =~ s/1/2/r, 422 ], [ 'no object', 'null', 400 ],
		[ 'a wrong type', '{ "customer": "eva", "amount": "1" }', 400 ], [ 'a NUL character', '{ "customer": "\u0000", "amount": 1 }', 400 ],
		[ 'an amount that is too large', $order =~ s/1/10000000000/r, 400 ], [ 'half of a surrogate pair', '{ "customer": "\ud800", "amount": 1 }', 400 ])
	{
		my ($what, $body, $expected) = @$_;
		my $key = $expected == 400 ? $what : 'eva';

		is($status->($body, 'Idempotency-Key' => $key), $expected, "the web server: $what");
	}
	is($status->($order), 400, 'the web server: no key');
	$run->kill_kill;
	return;
}

# What the provider has done: 'charges' or 'mails'; or its 'troubles'.
sub did
{
	my ($provider, $what) = @_;
	my $answer = HTTP::Tiny->new(timeout => 60)->get("$provider->{url}/$what");

	die "$what: $answer->{status} $answer->{content}" unless $answer->{success};
	return decode_json($answer->{content});
}

1;
