# A version after this one, made of this tree by what the rule allows (src/README.md, what a version keeps): a call, a
# column and a primitive change.  A PostgreSQL to install both into.
#
# Call: idemq.enqueue has a further argument, trace, of a symbol of its own.  Column: idemq.jobs has trace, which enqueue
# writes, and to which a claim adds.  Primitive: idemq_inside.check_kind has a further argument, and idemq.schedule calls it.
package NextVersion;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use IPC::Run;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(next_version own_install build_next install_next install_this);

my $source = $ENV{IDEMQ_SOURCE};
# Known when the test begins.
sub tmp { return $PostgreSQL::Test::Utils::tmp_check }
my ($this) = slurp_file("$source/idemq.control") =~ /^default_version = '(.*)'/m;
my $next = $this =~ s/\.(\d+)\./'.' . ($1 + 1) . '.'/er;

# FILE => [ what is there once, what takes its place ]...
my %changes = (
	'idemq.control' => [ [ "default_version = '$this'", "default_version = '$next'" ] ],
	# What a release does.
	'Makefile' => [ [ 'RELEASED = sql/idemq--0.1.0.sql', "RELEASED = sql/idemq--$this.sql sql/idemq--$this--$next.sql" ],
		[ 'UPDATE_BUILT = sql/idemq--$(UPDATE_FROM)--$(EXTVERSION).sql', 'UPDATE_BUILT =' ] ],
	'src/table/table.h' => [ [ "\n} JobColumn;", ",\n\tCOL_TRACE\n} JobColumn;" ],
		[ '#define JOB_COLUMNS (COL_PAYLOAD + 1)', '#define JOB_COLUMNS (COL_TRACE + 1)' ] ],
	'src/table/jobs.c' => [ [ 'later_columns[] = {{NULL}}', 'later_columns[] = {{"trace", TEXTOID}, {NULL}}' ],
		[ qq{#include "executor/executor.h"\n}, qq{#include "catalog/pg_type.h"\n#include "executor/executor.h"\n} ] ],
	'src/job/transition.c' => [ [ "\tset_argument_columns(change, transition->columns, job, args);", <<'C' ],
	set_argument_columns(change, transition->columns, job, args);
	if (transition->to == JOB_PROCESSING && job->status != JOB_PROCESSING)
		job_set(change, COL_TRACE,
				CStringGetTextDatum(psprintf("%s+", job_has(job, COL_TRACE)
														? TextDatumGetCString(job_value(job, COL_TRACE))
														: "")));
C
	],
	'src/api/enqueue.c' => [ [ "\tARG_DEPENDS_ON\n}", "\tARG_DEPENDS_ON,\n\tARG_TRACE = 17\n}" ],
		[ "SQL_FUNCTION(idemq_sql_v2_enqueue)\n", "static Datum\nenqueue(FunctionCallInfo fcinfo, bool has_trace)\n" ],
		[ "\tidemq_enqueue_set_options(&columns, &queue, options);\n\tif (waits)\n", <<'C' ],
	idemq_enqueue_set_options(&columns, &queue, options);
	if (has_trace && !PG_ARGISNULL(ARG_TRACE))
		job_set(&columns, COL_TRACE, PG_GETARG_DATUM(ARG_TRACE));
	if (waits)
C
		[ "/* The arrays of enqueue_many; values", <<'C' ] ],
/* As the SQL objects of the version before call it, and enqueue_job. */
SQL_FUNCTION(idemq_sql_v2_enqueue)
{
	return enqueue(fcinfo, false);
}

SQL_FUNCTION(idemq_sql_v3_enqueue)
{
	return enqueue(fcinfo, true);
}

/* The arrays of enqueue_many; values
C
	'src/api/inside.c' => [ [ '/* Returns the QueuePrivilege bits that a word stands for. */', <<'C' ] ],
/* check_kind(name, value) -> void; 22004, 22023. */
SQL_FUNCTION(idemq_sql_v3_inside_check_kind)
{
	(void) idemq_gate_caller();
	(void) idemq_arg_text(fcinfo, 1, TextDatumGetCString(PG_GETARG_DATUM(0)), 64);
	PG_RETURN_VOID();
}

/* Returns the QueuePrivilege bits that a word stands for. */
C
	'sql/parts/05_inside.sql' => [ [ "CREATE FUNCTION idemq_inside.check_kind(kind text) RETURNS void", <<'SQL' ] ],
CREATE FUNCTION idemq_inside.check_kind(name text, value text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v3_inside_check_kind';
CREATE FUNCTION idemq_inside.check_kind(kind text) RETURNS void
SQL
	'sql/parts/20_tables.sql' => [ [ "\tpayload      jsonb NOT NULL,\n\tPRIMARY KEY (id)\n", "\tpayload      jsonb NOT NULL,\n\ttrace        text,\n\tPRIMARY KEY (id)\n" ] ],
	'sql/parts/40_jobs.sql' => [ [ "on_parent_failure text DEFAULT 'cancel')\n\tRETURNS idemq.enqueue_result\n\tLANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_enqueue'\n",
			"on_parent_failure text DEFAULT 'cancel', trace text DEFAULT NULL)\n\tRETURNS idemq.enqueue_result\n\tLANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v3_enqueue'\n" ],
		[ "FUNCTION idemq.enqueue(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, interval, text, boolean, text, interval, bigint[], text)",
			"FUNCTION idemq.enqueue(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, interval, text, boolean, text, interval, bigint[], text, text)" ] ],
	'sql/parts/80_schedules.sql' => [ [ 'PERFORM idemq_inside.check_kind(kind) WHERE kind IS NOT NULL;', "PERFORM idemq_inside.check_kind('kind', kind) WHERE kind IS NOT NULL;" ] ]);

sub write_file
{
	my ($file, $text) = @_;

	unlink $file;
	append_to_file($file, $text);
	return;
}

# The statement of a file of SQL that begins so: to where its quotes end.
sub part
{
	my ($file, $begins) = @_;
	my ($found) = slurp_file($file) =~ /^(\Q$begins\E.*?)(?:^\$sql\$|(?<=\$\$;)$)/ms;

	return $found // die "$file: no $begins";
}

# Makes its tree; answers the tree and the version.  The objects of this tree come along: what has changed is built.
sub next_version
{
	my $tree = tmp() . "/next";

	system_or_bail('cp', '-a', $source, $tree);
	foreach my $file (sort keys %changes)
	{
		my $text = slurp_file("$tree/$file");

		foreach my $change (@{ $changes{$file} })
		{
			my ($from, $to) = @$change;

			2 == (my @around = split /\Q$from\E/, $text, -1) or die "$file: not once: $from";
			# What is written as a heredoc ends in the end of a line, as what it stands for need not.
			chomp $to if $from !~ /\n\z/;
			$text = join $to, @around;
		}
		write_file("$tree/$file", $text);
	}
	# As it will be released, and the update from it.
	write_file("$tree/sql/idemq--$this.sql", join '', map { slurp_file($_) } sort glob "$source/sql/parts/*.sql");
	my $update = slurp_file("$source/test/upgrade/next.sql");
	my %parts = (ENQUEUE => part("$tree/sql/parts/40_jobs.sql", 'CREATE FUNCTION idemq.enqueue(') . ';',
		SCHEDULE => part("$tree/sql/parts/80_schedules.sql", 'CREATE FUNCTION idemq_inside.schedule(') =~ s/^CREATE /CREATE OR REPLACE /r);
	$update =~ s/^-- (ENQUEUE|SCHEDULE)$/$parts{$1}/mg;
	$update =~ s/NEXT_VERSION/$next/g;
	write_file("$tree/sql/idemq--$this--$next.sql", $update);
	return ($tree, $this, $next);
}

# A copy of the PostgreSQL that tests run on, with this version in it; answers the directory above its bin/.
sub own_install
{
	my $copy = tmp() . '/pg';
	my %dir;

	foreach my $what (qw(bindir sharedir pkglibdir))
	{
		($dir{$what}) = run_command([ 'pg_config', "--$what" ]);
		chomp $dir{$what};
	}
	my $above = $dir{bindir};
	$above =~ s{/[^/]+\z}{} until $dir{sharedir} =~ m{^\Q$above\E/} && $dir{pkglibdir} =~ m{^\Q$above\E/};
	system_or_bail('cp', '-a', $above, $copy);
	return $copy . substr($dir{bindir}, length $above) =~ s{/bin\z}{}r;
}

# Flags by which it is soon built.
my @quick = ('COPT=-O0 -g0');

sub make
{
	my ($tree, $install, @targets) = @_;
	my $said = '';

	# Not with the tests that were chosen, nor with what they are told of PostgreSQL.
	delete local @ENV{qw(REGRESS ISOLATION TAP CLIENTS)};
	IPC::Run::run([ 'make', '-s', '-j2', '-C', $tree, "PG_CONFIG=$install/bin/pg_config", @targets ], '<', \undef, '>&', \$said)
	  or die "make @targets: $said";
	return;
}

# Builds it: half of a minute's work, better done before a server is under load.
sub build_next { my ($tree, $install) = @_; return make($tree, $install, @quick, 'all') }

# What a package does: its files take the place of those that are there, while the server runs or not.
sub install_next { my ($tree, $install) = @_; return make($tree, $install, @quick, 'install') }
sub install_this { my ($install) = @_; return make($source, $install, 'install') }

1;
