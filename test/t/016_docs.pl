# What the documents show: every block of SQL runs, each document in a session and
# a database of its own; quoted Python is that of the files that run.
#
# In a block "-- ERROR 12345" at the end of a line means that this statement fails
# with that SQLSTATE, and no other statement may fail; "--> a, b" at the end of a
# statement is what it answers (a NULL is empty).  CREATE EXTENSION idemq is done.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = $ENV{IDEMQ_SOURCE};
my $node = new_server('docs', max_connections => 50);

# The lines of a document's blocks of one language; all others are empty, so that
# psql's line numbers are the document's.
sub blocks
{
	my ($file, $language) = @_;
	my ($in, @lines) = ('');

	foreach my $line (split /\n/, slurp_file("$source/$file"))
	{
		my $fence = $line =~ /^```(\w*)/ ? ($in ne '' ? '' : $1 || 'text') : undef;
		push @lines, !defined $fence && $in eq $language ? $line : '';
		$in = $fence if defined $fence;
	}
	return @lines;
}

# Makes a script of the blocks: after each statement it says where that ended.
# Answers the script, the errors and the answers to be expected, by line.
sub script
{
	my ($script, $number, $quoted, %errors, %answers) = ('', 0, 0);

	foreach my $line (@_)
	{
		$number++;
		my $text = $line =~ s/^CREATE EXTENSION idemq;//r;
		# README's word for a statement in a transaction that has failed.
		$errors{$number} = '25P02' if $text =~ /-- ERROR: the transaction is aborted/;
		$errors{$number} = $1 if $text =~ /-- ERROR ([0-9A-Z]{5})\b/;
		$answers{$number} = $1 if $text =~ /--> ?(.*)$/;
		$text =~ s/\s*--(>|\s).*$// if !$quoted;
		$quoted ^= 1 foreach $text =~ /\$\$/g;
		$text .= " \\echo \@$number" if !$quoted && $text =~ /;$/;
		$script .= "$text\n";
	}
	return ($script, \%errors, \%answers);
}

sub runs
{
	my ($file) = @_;
	my ($script, $errors, $answers) = script(blocks($file, 'sql'));
	my $db = $file =~ s/\W/_/gr;
	my ($stdout, $stderr, %failed, %said);
	my $path = "$PostgreSQL::Test::Utils::tmp_check/$db.sql";

	sql($node, "CREATE DATABASE \"$db\"");
	sql($node, 'CREATE EXTENSION idemq', $db);
	# In place of pg_cron: schedules want somebody who ticks.
	sql($node, 'CALL idemq.tick()', $db);
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
	$said{$_} //= 'not run' foreach keys %$answers;
	is_deeply({ map { $_ => $said{$_} } keys %$answers }, $answers, "$file: answers");
	cmp_ok(scalar(keys %said), '>', 0, "$file: there was something to run");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$file: check", $db);
	return;
}

# Python in a document stands word for word in a file that a test runs.
sub quotes
{
	my ($file, @of) = @_;
	my $code = join("\n", map { slurp_file("$source/$_") } @of);
	my $quoted = 0;

	foreach my $block (split /\n{4,}/, join("\n", map { $_ eq '' ? '' : $_ } blocks($file, 'python')))
	{
		$block =~ s/^\n+|\n+$//g;
		next if $block eq '';
		$quoted++;
		ok(index($code, $block) >= 0, "$file: quotes what is tested") or diag $block;
	}
	cmp_ok($quoted, '>', 0, "$file: quotes something");
}

runs($_) foreach grep { -e "$source/$_" } qw(README.md doc/patterns.md doc/recovery-points.md doc/operations.md);
quotes('doc/recovery-points.md', 'test/clients/recovery.py');

$node->stop;
done_testing();
