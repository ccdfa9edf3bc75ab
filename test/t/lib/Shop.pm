# The shop of doc/tutorials/shop.md in TypeScript and Python, for shop_typescript.pl and shop_faults.pl: the compiled program, and its
# provider (test/clients/shop_provider.py).
package Shop;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use HTTP::Tiny;
use Idemq;
use IPC::Run;
use JSON::PP;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(compiled shop_provider did);

# A folder with the client, the packages of test/clients/package.json and a program of TypeScript (the shop), which is compiled by
# tsc --strict; its path.
sub compiled
{
	my ($name, @files) = @_;
	my $app = "$PostgreSQL::Test::Utils::tmp_check/$name";
	my $shop = "$ENV{IDEMQ_SOURCE}/test/clients/shop_ts";

	mkdir $_ foreach $app, "$app/node_modules";
	system_or_bail('cp', map({ "$shop/$_" } qw(package.json tsconfig.json .prettierrc)), @files ? @files : glob("$shop/*.ts"), $app);
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

# What the provider has done: 'charges' or 'mails'; or its 'troubles'.
sub did
{
	my ($provider, $what) = @_;
	my $answer = HTTP::Tiny->new(timeout => 60)->get("$provider->{url}/$what");

	die "$what: $answer->{status} $answer->{content}" unless $answer->{success};
	return decode_json($answer->{content});
}

1;
