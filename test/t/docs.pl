# What the documents show: README.md and all of doc/.  Every block of SQL and of shell
# runs, each document in a session and a database of its own; Python is that of the
# files that test/clients runs, word for word; every link has an end.
#
# In a block of SQL "-- ERROR 12345" at the end of a line means that this statement
# fails with that SQLSTATE, and no other statement may fail; "--> a, b" at the end of
# a statement is what it answers (a NULL is empty).  CREATE EXTENSION idemq is done.
#
# A block of shell runs in an empty directory, with the document's database as the
# default one.  "make" says what it would do: its targets and variables must exist.
#
# What cannot run stands in a fence without a language, or of language "text".

use strict;
use warnings FATAL => 'all';

use File::Find;
use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $node = new_server('docs', max_connections => 50);
my %runs = map { $_ => 1 } qw(sql python sh);

# The files below a folder whose path matches, in order.
sub files
{
	my ($folder, $pattern) = @_;
	my @found;

	find({ no_chdir => 1, wanted => sub { push @found, s|^\Q$source\E/||r if -f && /$pattern/ } }, "$source/$folder")
	  if -d "$source/$folder";
	return sort @found;
}

# A document's lines: [ language of the block it stands in, or 'fence', or ''; text ].
sub lines
{
	my ($file) = @_;
	my ($in, @lines) = ('');

	foreach my $text (split /\n/, slurp_file("$source/$file"))
	{
		if ($text =~ /^\s*(?:```|~~~)\s*(\S*)/)
		{
			$in = $in ne '' ? '' : $1 eq '' ? 'text' : $1;
			push @lines, [ 'fence', $text ];
			die "$file: no block of $in\n" if $in ne '' && $in ne 'text' && !$runs{$in};
		}
		else { push @lines, [ $in, $text ] }
	}
	die "$file: a block has no end\n" if $in ne '';
	return @lines;
}

# The blocks of one language.
sub blocks
{
	my ($file, $language) = @_;
	my ($open, @blocks) = (0);

	foreach (lines($file))
	{
		my $here = $_->[0] eq $language;

		push @blocks, '' if $here && !$open;
		$blocks[-1] .= "$_->[1]\n" if $here;
		$open = $here;
	}
	return @blocks;
}

# Makes a script of a document's SQL: after each statement it says where that ended.
# All other lines are empty, so that psql's line numbers are the document's.
# Answers the script, the errors and the answers to be expected, by line, and the
# lines at which a statement ends.
sub script
{
	my ($file) = @_;
	my ($script, $number, $quoted, %errors, %answers, %ends) = ('', 0, 0);

	foreach (lines($file))
	{
		my $text = $_->[0] eq 'sql' ? $_->[1] : '';

		$number++;
		$text =~ s/^CREATE EXTENSION idemq;//;
		# The word for a statement in a transaction that has failed.
		$errors{$number} = '25P02' if $text =~ /-- ERROR: the transaction is aborted/;
		$errors{$number} = $1 if $text =~ /-- ERROR ([0-9A-Z]{5})\b/;
		$answers{$number} = $1 if $text =~ /--> ?(.*)$/;
		$text =~ s/\s*--(>|\s).*$// if !$quoted;
		$quoted ^= 1 foreach $text =~ /\$\$/g;
		if (!$quoted && $text =~ /;$/)
		{
			$text .= " \\echo \@$number";
			$ends{$number} = 1;
		}
		$script .= "$text\n";
	}
	return ($script, \%errors, \%answers, \%ends);
}

# Runs a document's SQL in a database; true if there was any.
sub runs_sql
{
	my ($file, $db) = @_;
	my ($script, $errors, $answers, $ends) = script($file);
	my ($stdout, $stderr, %failed, %said);
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$db.sql";

	return 0 if !%$ends;
	append_to_file($path, $script);
	IPC::Run::run([ 'psql', '-XAtq', '-F', ', ', '-v', 'VERBOSITY=sqlstate', '-h', $node->host, '-p', $node->port,
			'-f', $path, $db ], '<', \undef, '>', \$stdout, '2>', \$stderr, IPC::Run::timeout(120));
	$failed{$1} = $2 while $stderr =~ /:(\d+): (?:ERROR|FATAL):\s+(\w{5})/g;
	is_deeply(\%failed, $errors, "$file: the statements that fail are those that should") or diag $stderr;
	my $rows = '';
	foreach my $row (split /\n/, $stdout)
	{
		if ($row =~ /^\@(\d+)$/)
		{
			my $line = $1;

			$said{$line} = $rows =~ s/\n$//r;
			$rows = '';
		}
		else { $rows .= "$row\n" }
	}
	is_deeply([ sort { $a <=> $b } keys %said ], [ sort { $a <=> $b } keys %$ends ], "$file: every statement ran");
	$said{$_} //= 'not run' foreach keys %$answers;
	is_deeply({ map { $_ => $said{$_} } keys %$answers }, $answers, "$file: answers");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$file: check", $db);
	return 1;
}

sub runs_shell
{
	my ($file, $db) = @_;
	my @blocks = blocks($file, 'sh');
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

# Python in a document stands word for word in a file that a test runs.
sub quotes
{
	my ($file, @of) = @_;
	my @blocks = blocks($file, 'python');

	foreach my $block (@blocks)
	{
		ok((grep { index(slurp_file("$source/$_"), $block) >= 0 } @of), "$file: quotes what is tested") or diag $block;
	}
	return @blocks > 0;
}

# Runs a document, and removes the databases and roles that it made.
sub runs
{
	my ($file, @python) = @_;
	my $db = $file =~ s/\W/_/gr;
	my $ran = 0;
	my %before = map { $_ => 1 } split /\n/, sql($node, 'SELECT datname FROM pg_database');
	my $roles = sql($node, q[SELECT quote_literal(array_agg(rolname)) FROM pg_roles]);

	sql($node, "CREATE DATABASE \"$db\"");
	sql($node, 'CREATE EXTENSION idemq', $db);
	# In place of pg_cron: schedules want somebody who ticks.
	sql($node, 'CALL idemq.tick()', $db);
	$ran += runs_sql($file, $db);
	$ran += runs_shell($file, $db);
	$ran += quotes($file, @python);
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
my @others = grep { -e "$source/$_" } qw(CONTRIBUTING.md SECURITY.md CHANGELOG.md), files('src', qr|/README\.md$|),
  files('test', qr|/README\.md$|);

my %ran = map { $_ => runs($_, @python) } 'README.md', @pages;
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
