# The documents of the manual: README.md and all of doc/, for docs.pl and docs_slow.pl.
#
# How blocks of SQL are read: Manual.pm.  A block of shell calls make, or begins with #! and is word for word a file
# of test/clients.
package Documents;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use File::Find;
use Idemq;
use Manual;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(files pages quick_pages manual_server runs_document);

my $source = $ENV{IDEMQ_SOURCE};

# The files below a folder whose path matches, in order.
sub files
{
	my ($folder, $pattern) = @_;
	my @found;

	find({ no_chdir => 1, wanted => sub { push @found, s|^\Q$source\E/||r if -f && /$pattern/ } }, "$source/$folder")
	  if -d "$source/$folder";
	return sort @found;
}

# All pages, README.md first.
sub pages { return ('README.md', files('doc', qr/\.md$/)) }

# Those whose SQL docs.pl runs: what users of idemq read.  docs_slow.pl runs the others.
sub quick_pages { return grep { m{^(?:README\.md$|doc/(?:tutorials|usage)/)} } pages() }

# A server that runs pages.
sub manual_server
{
	my ($name) = @_;
	my $node = new_server($name, max_connections => 50);

	sql($node, 'CREATE DATABASE manual');
	sql($node, 'CREATE EXTENSION idemq', 'manual');
	return $node;
}

# Runs a page's SQL in a database of its own, and removes the databases and roles that it made.
sub runs_document
{
	my ($node, $file) = @_;
	my $db = $file =~ s/\W/_/gr;
	my %before = map { $_ => 1 } split /\n/, sql($node, 'SELECT datname FROM pg_database');
	my $roles = sql($node, q[SELECT quote_literal(array_agg(rolname)) FROM pg_roles]);

	sql($node, "CREATE DATABASE \"$db\" TEMPLATE manual");
	# In place of pg_cron: schedules want somebody who ticks.
	sql($node, 'CALL idemq.tick()', $db);
	runs_sql($node, $file, $db);
	foreach my $made (split /\n/, sql($node, 'SELECT datname FROM pg_database'))
	{
		sql($node, "DROP DATABASE \"$made\" WITH (FORCE)") if !$before{$made};
	}
	sql($node, $_) foreach split /\n/,
	  sql($node, "SELECT format('DROP ROLE %I', rolname) FROM pg_roles WHERE rolname <> ALL ($roles)");
	return;
}

1;
