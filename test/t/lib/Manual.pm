# Runs the SQL of the manual's pages.
#
# In a block of SQL "-- ERROR 12345" at the end of a line means that this statement
# fails with that SQLSTATE, and no other statement may fail; "--> a, b" at the end of
# a statement is what it answers (a NULL is empty).  CREATE EXTENSION idemq is done.
#
# What cannot run stands in a fence without a language, or of language "text".
package Manual;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(lines blocks runs_sql);

my $source = $ENV{IDEMQ_SOURCE};
my %runs = map { $_ => 1 } qw(sql python sh shell js ts);
# clients/languages, clients/lines, clients/rails and clients/go take what they run from these pages.
my %taken = ((map { $_ => ['doc/usage/any-language.md'] } qw(php perl java)), ruby => [ 'doc/usage/any-language.md', 'doc/usage/rails.md' ], go => [ 'doc/usage/any-language.md', 'doc/usage/go.md' ]);

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
			die "$file: no block of $in\n" if $in ne '' && $in ne 'text' && !$runs{$in} && !grep { $_ eq $file } @{ $taken{$in} // [] };
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

# Runs a document's SQL in a database, as superuser or as another; true if there was any.
sub runs_sql
{
	my ($node, $file, $db, $user) = @_;
	my ($script, $errors, $answers, $ends) = script($file);
	my ($stdout, $stderr, %failed, %said);
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$db.sql";

	return 0 if !%$ends;
	append_to_file($path, $script);
	IPC::Run::run([ 'psql', '-XAtq', '-F', ', ', '-v', 'VERBOSITY=sqlstate', '-h', $node->host, '-p', $node->port,
			($user ? ('-U', $user) : ()), '-f', $path, $db ], '<', \undef, '>', \$stdout, '2>', \$stderr, IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
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

1;
