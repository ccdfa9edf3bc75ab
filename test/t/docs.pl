# What the documents show: README.md and all of doc/.  Python is that of the files that test/clients runs, and JavaScript
# that of the Node client's examples or of test/clients, word for word; TypeScript is that of its test of types, which
# lint compiles, of the shop (test/clients/shop_ts) or of test/clients/nestjs; so is a shell script that begins with #!.  A command of make has targets that do something, and
# variables that something reads.  Every link has an end.
#
# The SQL of README.md, doc/tutorials and doc/usage runs here, that of all other pages in docs_slow.pl: each page in a session and a
# database of its own.  How blocks of SQL are read: test/t/lib/Manual.pm.
#
# What changes the machine stands in a fence of language "shell", which make check-install runs in a chroot.
# What cannot run stands in a fence without a language, or of language "text".
# takes long
# at least 340 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Documents;
use Idemq;
use Manual;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my @pages = pages();
my @others = grep { -e "$source/$_" } qw(CONTRIBUTING.md SECURITY.md CHANGELOG.md), files('src', qr|\.md$|),
  files('test', qr|\.md$|);

# ---- Code that stands word for word in a file that a test runs

my %of = (
	python => [ files('test/clients', qr/\.py$/) ],
	js => [ files('clients/node/examples', qr/\.js$/), files('test/clients', qr/(?:_consumer|testing|drivers|encryption)\.mjs$/) ],
	ts => [ 'clients/node/test/types.ts', files('test/clients/shop_ts', qr/\.ts$/), files('test/clients/nestjs', qr/\.ts$/) ],
	sh => [ files('test/clients', qr/\.sh$/) ]);
my %tested = map { my $language = $_; $language => [ map { slurp_file("$source/$_") } @{ $of{$language} } ] } keys %of;

foreach my $file (@pages)
{
	foreach my $language (sort keys %of)
	{
		foreach my $block (grep { $language ne 'sh' || /^#!/ } blocks($file, $language))
		{
			ok((grep { index($_, $block) >= 0 } @{ $tested{$language} }), "$file: its $language is what is tested") or diag $block;
		}
	}
}

# ---- Commands of make

# The targets that make knows, and whether they have a recipe or need other targets; and the text of everything that
# may read a variable.
my ($known) = run_command([ 'make', '-pRrqn', '-C', $source ]);
my %does;
$does{$1} ||= $2 =~ /\S/ || $3 =~ /^\t/m while $known =~ /^([a-z][\w-]*)::?(.*)\n((?:[#\t].*\n)*)/mg;
my $reads = join "\n", $known, map { slurp_file("$source/$_") } grep { !/\.(?:md|svg|png)$/ } map { files($_, qr/./) } qw(script test/bench test/failover test/mutants test/model);
my %asked;

# The commands of a page: in blocks of shell, and in code within a line.
sub commands
{
	my ($file) = @_;
	my @commands;

	foreach (lines($file))
	{
		my ($language, $text) = @$_;
		my @code = $language eq 'sh' ? $text =~ /^([^#]*)/ : $language eq '' ? $text =~ /`([^`]+)`/g : ();

		push @commands, grep { /^(?:[A-Z_]+=(?:'[^']*'|\S+) )*make\b/ } map { split /\s*;\s*/ } @code;
		# In a comment, only names that cannot be English words.
		push @commands, $text =~ /\b(make [a-z]+-[a-z-]+)/g if $language eq 'sh' && $text =~ s/^[^#]*#//;
	}
	return @commands;
}

sub is_what_make_does
{
	my ($file) = @_;
	my @wrong;

	foreach my $command (commands($file))
	{
		my @words = $command =~ s/'[^']*'//gr =~ /(\S+)/g;

		foreach my $word (@words)
		{
			next if $word eq 'make';
			if ($word =~ /^([A-Z_]+)=/) { push @wrong, "nothing reads $1: $command" if $reads !~ /(?:\$[({]?|\w[(\[]["']|\benv\.)$1\b/ }
			elsif (!$does{$word}) { push @wrong, "$word does nothing: $command" }
			else { $asked{$word} = 1 }
		}
	}
	is(join("\n", @wrong), '', "$file: make has what it names");
	return;
}

is_what_make_does($_) foreach @pages, @others;
my @asked = sort keys %asked;
cmp_ok(scalar(@asked), '>', 20, 'the pages name targets of make');
command_ok([ 'make', '-n', '-C', $source, @asked ], 'and make knows the way to each');

# ---- Links

# The anchors of a document's headings, as a forge makes them.
my %anchors;

sub anchors
{
	my ($file) = @_;
	my %seen;

	return $anchors{$file} //= do
	{
		foreach (grep { $_->[0] eq '' } lines($file))
		{
			my $text = $_->[1];

			$seen{$1} //= 1 while $text =~ /<a (?:id|name)="([^"]+)"/g;
			next if $text !~ /^#+ +(.*?)\s*$/;
			my $name = lc($1 =~ s/\[([^\]]*)\]\([^)]*\)/$1/gr);
			utf8::decode($name);
			$name =~ s/[^\w\- ]//g;
			$name =~ tr/ /-/;
			my $again = $seen{$name}++;
			$seen{"$name-$again"} = 1 if $again;
		}
		\%seen;
	};
}

# The relative links of a document, as [ file, anchor ].
sub links
{
	my ($file) = @_;
	my $folder = $file =~ m|^(.*)/| ? $1 : '';
	my @links;

	foreach (grep { $_->[0] eq '' } lines($file))
	{
		my $text = $_->[1] =~ s/`[^`]*`//gr;

		while ($text =~ /\]\(\s*<?([^)\s>]+)|^\[[^\]]+\]:\s*(\S+)|\b(?:src|href|srcset)="([^"]+)"/g)
		{
			my $link = $1 // $2 // $3;
			next if $link =~ /^[a-z]+:/;
			my ($path, $anchor) = split /#/, $link, 2;
			my @parts;
			foreach my $part ($path eq '' ? split(m|/|, $file) : (split(m|/|, $folder), split(m|/|, $path)))
			{
				if ($part eq '..') { pop @parts }
				elsif ($part ne '.') { push @parts, $part }
			}
			push @links, [ join('/', @parts), $anchor, $link ];
		}
	}
	return @links;
}

sub has_no_dead_link
{
	my ($file) = @_;
	my @dead;

	foreach (links($file))
	{
		my ($path, $anchor, $link) = @$_;

		if ($link =~ m|^/| || !-e "$source/$path") { push @dead, $link }
		elsif (defined $anchor && (!-f "$source/$path" || !anchors($path)->{$anchor})) { push @dead, $link }
	}
	is(join("\n", @dead), '', "$file: every link has an end");
	return;
}

has_no_dead_link($_) foreach @pages, @others;

# A page that no link leads to is not there.
my %met = ('README.md' => 1);
my @open = keys %met;
while (defined(my $file = shift @open))
{
	push @open, grep { m|\.md$| && -f "$source/$_" && !$met{$_}++ } map { $_->[0] } links($file);
}
is(join("\n", grep { !$met{$_} } @pages), '', 'every page of the manual can be reached from README.md');

# Where code names a page, that page exists.
my @wrong;
foreach my $file ('Makefile', 'dev.mk', 'META.json', 'CHANGELOG.md', map { files($_, qr/\.(?:c|h|sql|pl|pm|py|js|sh|spec|md)$/) }
	qw(src sql test demo))
{
	push @wrong, map { "$file: $_" } grep { !-e "$source/$_" } slurp_file("$source/$file") =~ m{(?<![\w/.])(doc/[\w/-]+\.(?:md|svg))}g;
}
is(join("\n", @wrong), '', 'a file that names a page of doc/ names one that exists');

# ---- The SQL of README.md, doc/tutorials and doc/usage

cmp_ok(scalar(grep { blocks($_, 'sql') } quick_pages()), '>=', 20, 'there are pages with SQL to run');
my $node = manual_server('docs');
runs_document($node, $_) foreach quick_pages();
$node->stop;
done_testing();
