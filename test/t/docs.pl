# What the documents show: README.md and all of doc/.  Every block of SQL and of shell
# runs, each document in a session and a database of its own; Python is that of the
# files that test/clients runs, and JavaScript that of the Node client's examples or of test/clients, word for word; TypeScript
# is that of its test of types, which lint compiles; so is a shell script that begins with #!; every link has an end.
#
# How blocks of SQL are read: test/t/lib/Manual.pm.
#
# A block of shell runs in an empty directory, with the document's database as the
# default one.  "make" says what it would do: its targets and variables must exist.
#
# What changes the machine stands in a fence of language "shell", which make check-install runs in a chroot.
# What cannot run stands in a fence without a language, or of language "text".
# takes long

use strict;
use warnings FATAL => 'all';

use File::Find;
use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Manual;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $node = new_server('docs', max_connections => 50);

# The files below a folder whose path matches, in order.
sub files
{
	my ($folder, $pattern) = @_;
	my @found;

	find({ no_chdir => 1, wanted => sub { push @found, s|^\Q$source\E/||r if -f && /$pattern/ } }, "$source/$folder")
	  if -d "$source/$folder";
	return sort @found;
}

sub runs_shell
{
	my ($file, $db) = @_;
	my @blocks = grep { !/^#!/ } blocks($file, 'sh');
	my $number = 0;

	local @ENV{qw(PGHOST PGPORT PGDATABASE IDEMQ_SOURCE)} = ($node->host, $node->port, $db, $source);
	foreach my $block (@blocks)
	{
		my $dir = PostgreSQL::Test::Utils::tempdir();
		my $output = '';
		my $script = qq{set -euo pipefail; cd "$dir"\nmake() { command make -n -C "\$IDEMQ_SOURCE" "\$@"; }\n$block};

		$number++;
		ok(IPC::Run::run([ 'bash', '-c', $script ], '<', \undef, '>&', \$output, IPC::Run::timeout(120)),
			"$file: shell $number") or diag "$block$output";
	}
	return @blocks > 0;
}

# Python, JavaScript and scripts in a document stand word for word in a file that a test runs.
sub quotes
{
	my ($file, $language, @of) = @_;
	my @blocks = grep { $language ne 'sh' || /^#!/ } blocks($file, $language);

	foreach my $block (@blocks)
	{
		ok((grep { index(slurp_file("$source/$_"), $block) >= 0 } @of), "$file: quotes what is tested") or diag $block;
	}
	return @blocks > 0;
}

# Runs a document, and removes the databases and roles that it made.
sub runs
{
	my ($file, $python, $javascript) = @_;
	my $db = $file =~ s/\W/_/gr;
	my $ran = 0;
	my %before = map { $_ => 1 } split /\n/, sql($node, 'SELECT datname FROM pg_database');
	my $roles = sql($node, q[SELECT quote_literal(array_agg(rolname)) FROM pg_roles]);

	sql($node, "CREATE DATABASE \"$db\"");
	sql($node, 'CREATE EXTENSION idemq', $db);
	# In place of pg_cron: schedules want somebody who ticks.
	sql($node, 'CALL idemq.tick()', $db);
	$ran += runs_sql($node, $file, $db);
	$ran += runs_shell($file, $db);
	$ran += quotes($file, 'python', @$python);
	$ran += quotes($file, 'js', @$javascript);
	$ran += quotes($file, 'ts', 'clients/node/test/types.ts');
	$ran += quotes($file, 'sh', files('test/clients', qr/\.sh$/));
	foreach my $made (split /\n/, sql($node, 'SELECT datname FROM pg_database'))
	{
		sql($node, "DROP DATABASE \"$made\" WITH (FORCE)") if !$before{$made};
	}
	sql($node, $_) foreach split /\n/,
	  sql($node, "SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE rolname <> ALL ($roles)");
	return $ran;
}

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

my @pages = files('doc', qr/\.md$/);
my @python = files('test/clients', qr/\.py$/);
my @javascript = (files('clients/node/examples', qr/\.js$/), files('test/clients', qr/(?:_consumer|testing)\.mjs$/));
my @others = grep { -e "$source/$_" } qw(CONTRIBUTING.md SECURITY.md CHANGELOG.md), files('src', qr|/README\.md$|),
  files('test', qr|/README\.md$|);

my %ran = map { $_ => runs($_, \@python, \@javascript) } 'README.md', @pages;
ok($ran{$_}, "$_: there was something to run") foreach 'README.md', grep { m|^doc/usage/| } @pages;

has_no_dead_link($_) foreach 'README.md', @pages, @others;

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
foreach my $file ('Makefile', 'META.json', 'CHANGELOG.md', map { files($_, qr/\.(?:c|h|sql|pl|pm|py|js|sh|spec|md)$/) }
	qw(src sql test demo))
{
	push @wrong, map { "$file: $_" } grep { !-e "$source/$_" } slurp_file("$source/$file") =~ m{(?<![\w/.])(doc/[\w/-]+\.(?:md|svg))}g;
}
is(join("\n", @wrong), '', 'a file that names a page of doc/ names one that exists');

$node->stop;
done_testing();
