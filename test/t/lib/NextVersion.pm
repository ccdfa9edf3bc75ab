# A version after this one, made of this tree by what the rule allows (src/README.md, what a version keeps): a call, a
# column, a primitive and the settings of a queue change.  A PostgreSQL to install both into.
#
# Call: idemq.enqueue has a further argument, trace, of a symbol of its own.  Column: idemq.jobs has trace, which enqueue
# writes, and to which a claim adds.  Primitive: idemq_internal.check_kind has a further argument, and idemq.schedule calls it.
# Setting: max_trace of idemq.queues, create_queue and alter_queue, which enqueue heeds.  What gives way to a function of the
# same name is there as v1_enqueue and so on, after an update and in a new database.
package NextVersion;

use strict;
use warnings FATAL => 'all';

use Digest::SHA qw(sha256_hex);
use Exporter 'import';
use Fcntl ':flock';
use IPC::Run;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(next_version own_install build_next install_next install_this);

my $source = $ENV{IDEMQ_SOURCE};
# Known when the test begins.
sub tmp { return $PostgreSQL::Test::Utils::tmp_check }
my ($this) = slurp_file("$source/idemq.control") =~ /^default_version = '(.*)'/m;
my $next = $this =~ s/\.(\d+)\./'.' . ($1 + 1) . '.'/er;

# FILE => [ what is there once, as text or as a pattern, what takes its place ]...
my %changes = (
	'idemq.control' => [ [ "default_version = '$this'", "default_version = '$next'" ] ],
	# What a release does.
	'Makefile' => [ [ qr/^RELEASED =.*/m, "RELEASED = sql/idemq--$this.sql sql/idemq--$this--$next.sql" ] ],
	'src/table/table.h' => [ [ "\n} JobColumn;", ",\n\tCOL_TRACE\n} JobColumn;" ],
		[ '#define JOB_COLUMNS (COL_PAYLOAD + 1)', '#define JOB_COLUMNS (COL_TRACE + 1)' ] ],
	'src/table/jobs.c' => [ [ 'later_columns[] = {{NULL}}', 'later_columns[] = {{"trace", TEXTOID}, {NULL}}' ],
		[ qq{#include "executor/executor.h"\n}, qq{#include "catalog/pg_type.h"\n#include "executor/executor.h"\n} ] ],
	'src/job/transition.c' => [ [ "\tset_argument_columns(change, transition->columns, job, args);", <<'C' ],
	set_argument_columns(change, transition->columns, job, args);
	if (transition->to == JOB_RUNNING && job->status != JOB_RUNNING)
		job_set(change, COL_TRACE,
				CStringGetTextDatum(psprintf("%s+", job_has(job, COL_TRACE)
														? TextDatumGetCString(job_value(job, COL_TRACE))
														: "")));
C
	],
	'src/api/enqueue.c' => [ [ "\tARG_DEPENDS_ON\n}", "\tARG_DEPENDS_ON,\n\tARG_TRACE = 17\n}" ],
		[ "SQL_FUNCTION(idemq_sql_enqueue)\n", "static Datum\nenqueue(FunctionCallInfo fcinfo, bool has_trace)\n" ],
		[ "\tidemq_enqueue_set_options(&columns, &queue, options);\n\tif (waits)\n", <<'C' ],
	idemq_enqueue_set_options(&columns, &queue, options);
	if (has_trace && !PG_ARGISNULL(ARG_TRACE))
	{
		if (queue.max_trace > 0 && (int32) VARSIZE_ANY_EXHDR(PG_GETARG_TEXT_PP(ARG_TRACE)) > queue.max_trace)
			ereport(ERROR, errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					errmsg("trace is longer than max_trace of queue \"%s\"", queue.name));
		job_set(&columns, COL_TRACE, PG_GETARG_DATUM(ARG_TRACE));
	}
	if (waits)
C
		[ "/* The arrays of enqueue_many.  An array", <<'C' ] ],
/* As the SQL objects of the version before call it, and enqueue_job. */
SQL_FUNCTION(idemq_sql_enqueue)
{
	return enqueue(fcinfo, false);
}

SQL_FUNCTION(idemq_sql_v2_enqueue)
{
	return enqueue(fcinfo, true);
}

/* The arrays of enqueue_many.  An array
C
	'src/queue/queue.h' => [ [ '#define QUEUE_SETTINGS(SETTING)', '#define SETTINGS_BEFORE(SETTING)' ],
		[ "\n/* The kinds, and what each is in QueueInfo. */\n", <<'C' ] ],
/* They may be NULL, and are not there before ALTER EXTENSION. */
#define LATER_SETTINGS(SETTING) SETTING(max_trace, LIMIT, 1, PG_INT32_MAX)
#define QUEUE_SETTINGS(SETTING) SETTINGS_BEFORE(SETTING) LATER_SETTINGS(SETTING)

/* The kinds, and what each is in QueueInfo. */
C
	# A column of that name may be a DBA's, of another type.  What the version before writes has the arguments that it has.
	'src/queue/queue_settings.c' => [ [ qr/"AND coalesce\(h\.group_key, ''\) > ''\)" QUEUE_SETTINGS\(\s*SETTING_COLUMN\) " FROM idemq\.queues q WHERE queue_id/, <<'C' ],
"AND coalesce(h.group_key, '') > '')" SETTINGS_BEFORE(SETTING_COLUMN)
			 ", (SELECT CASE WHEN pg_typeof(max_trace) = 'int'::regtype THEN max_trace::text::int END "
			 "FROM (SELECT q.*) own) FROM idemq.queues q, (SELECT NULL::int AS max_trace) later WHERE queue_id
C
		[ qr/^static SqlStatement insert_queue = .*?^static SqlStatement update_queue = [^\n]*/ms, <<'C' ],
static SqlStatement inserts[2]; /* of the version before, of this one */
static SqlStatement updates[2];
C
		[ qr/^static void\nsettings_build\(void\)\n\{.*?^\}/ms, <<'C' ],
static void
settings_build(int nsettings, SqlStatement *insert, SqlStatement *update)
{
	StringInfoData columns;
	StringInfoData parameters;
	StringInfoData changes;

	if (update->text != NULL)
		return;
	initStringInfo(&columns);
	initStringInfo(&parameters);
	initStringInfo(&changes);
	insert->nargs = update->nargs = nsettings + 1;
	insert->types[0] = update->types[0] = TEXTOID;
	for (int i = 0; i < nsettings; i++)
	{
		const char *name = idemq_queue_settings[i].name;
		const char *none = idemq_setting_nones[idemq_queue_settings[i].kind];
		int parameter = i + 2;

		appendStringInfo(&columns, ", %s", name);
		appendStringInfo(&parameters, ", $%d", parameter);
		appendStringInfo(&changes,
						 none != NULL ? "%s%s = nullif(coalesce($%d, %s), %s)"
									  : "%s%s = coalesce($%d, %s)",
						 i > 0 ? ", " : "", name, parameter, name, none);
		insert->types[i + 1] = update->types[i + 1] =
			idemq_setting_types[idemq_queue_settings[i].kind];
	}
	insert->text = MemoryContextStrdup(
		TopMemoryContext, psprintf("INSERT INTO idemq.queues (name%s) VALUES ($1%s) ON CONFLICT (name) "
								   "DO NOTHING RETURNING queue_id",
								   columns.data, parameters.data));
	update->text =
		MemoryContextStrdup(TopMemoryContext,
							psprintf("UPDATE idemq.queues SET %s WHERE name = $1", changes.data));
}
C
		[ 'if (PG_ARGISNULL(n) && (may_be_none || !is_new))', 'if (n >= PG_NARGS() || (PG_ARGISNULL(n) && (may_be_none || !is_new)))' ],
		[ 'for (int i = 1; i < (int) SETTING_ARGS; i++)', 'for (int i = 1; i < PG_NARGS(); i++)' ],
		[ "\tbool inserted;\n\n\tsettings_build();\n", "\tbool inserted;\n\tint by = PG_NARGS() == SETTING_ARGS;\n\n\tsettings_build(PG_NARGS() - 1, &inserts[by], &updates[by]);\n" ],
		[ 'run_with_settings(&insert_queue,', 'run_with_settings(&inserts[by],' ],
		[ "\tSqlScope scope;\n\n\tsettings_build();\n", "\tSqlScope scope;\n\tint by = PG_NARGS() == SETTING_ARGS;\n\n\tsettings_build(PG_NARGS() - 1, &inserts[by], &updates[by]);\n" ],
		[ 'update_queue.latest', 'updates[by].latest' ],
		[ 'run_with_settings(&update_queue,', 'run_with_settings(&updates[by],' ] ],
	'src/api/create_queue.c' => [ [ "\t\tidemq_audit(&entry);\n\tPG_RETURN_VOID();\n}\n", <<'C' ] ],
		idemq_audit(&entry);
	PG_RETURN_VOID();
}

/* create_queue and alter_queue with a setting more. */
SQL_FUNCTION(idemq_sql_v2_create_queue)
{
	return idemq_sql_create_queue(fcinfo);
}

SQL_FUNCTION(idemq_sql_v2_alter_queue)
{
	return idemq_sql_alter_queue(fcinfo);
}
C
	'src/api/internal.c' => [ [ '/* Returns the QueuePrivilege bits for the name of a privilege. */', <<'C' ] ],
/* check_kind(name, value) -> void; 22004, 22023. */
SQL_FUNCTION(idemq_sql_v2_internal_check_kind)
{
	(void) idemq_wrapper_caller();
	(void) idemq_arg_text(fcinfo, 1, TextDatumGetCString(PG_GETARG_DATUM(0)), 64);
	PG_RETURN_VOID();
}

/* Returns the QueuePrivilege bits for the name of a privilege. */
C
	'sql/parts/05_internal.sql' => [ [ "CREATE FUNCTION idemq_internal.check_kind(kind text) RETURNS void", <<'SQL' ] ],
CREATE FUNCTION idemq_internal.check_kind(name text, value text) RETURNS void
	LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_internal_check_kind';
CREATE FUNCTION idemq_internal.check_kind(kind text) RETURNS void
SQL
	'sql/parts/20_tables.sql' => [ [ " OPERATOR(pg_catalog.=) 'object')\n);", " OPERATOR(pg_catalog.=) 'object'),\n\tmax_trace          int\n);" ],
		[ "\tpayload      jsonb NOT NULL,\n\tPRIMARY KEY (id)\n", "\tpayload      jsonb NOT NULL,\n\ttrace        text,\n\tPRIMARY KEY (id)\n" ] ],
	'sql/parts/30_queues.sql' => [ [ "notify_finished boolean DEFAULT false)\n\tRETURNS int LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_create_queue';",
			"notify_finished boolean DEFAULT false,\n\tmax_trace int DEFAULT NULL)\n\tRETURNS int LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_create_queue';" ],
		[ "notify_finished boolean DEFAULT NULL)\n\tRETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_alter_queue';",
			"notify_finished boolean DEFAULT NULL,\n\tmax_trace int DEFAULT NULL)\n\tRETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_alter_queue';" ] ],
	'sql/parts/40_jobs.sql' => [ [ "on_parent_failure text DEFAULT 'cancel')\n\tRETURNS idemq.enqueue_result\n\tLANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_enqueue'\n",
			"on_parent_failure text DEFAULT 'cancel', trace text DEFAULT NULL)\n\tRETURNS idemq.enqueue_result\n\tLANGUAGE c AS 'MODULE_PATHNAME', 'idemq_sql_v2_enqueue'\n" ],
		[ "FUNCTION idemq.enqueue(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, interval, text, boolean, text, interval, bigint[], text)",
			"FUNCTION idemq.enqueue(text, jsonb, text, interval, timestamptz, int, text, int, jsonb, interval, interval, text, boolean, text, interval, bigint[], text, text)" ] ],
	'sql/parts/80_schedules.sql' => [ [ 'PERFORM idemq_internal.check_kind(kind) WHERE kind IS NOT NULL;', "PERFORM idemq_internal.check_kind('kind', kind) WHERE kind IS NOT NULL;" ] ]);

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

# One without a semicolon within.
sub statement
{
	my ($file, $begins) = @_;
	my ($found) = slurp_file($file) =~ /^(\Q$begins\E[^;]*;)/m;

	return $found // die "$file: no $begins";
}

# The comment on a function of idemq.
sub comment
{
	my ($file, $function) = @_;
	my ($found) = slurp_file($file) =~ /^(COMMENT ON FUNCTION idemq\.$function\b.*?';)$/ms;

	return $found // die "$file: no comment on $function";
}

# The functions that give way, as a tree makes them: the statement, and the comment.
sub functions
{
	my ($tree) = @_;
	my ($jobs, $queues) = map { "$tree/sql/parts/$_" } qw(40_jobs.sql 30_queues.sql);

	return (
		enqueue => part($jobs, 'CREATE FUNCTION idemq.enqueue(') . ";\n" . comment($jobs, 'enqueue'),
		map { $_ => statement($queues, "CREATE FUNCTION idemq.$_(") . "\n" . comment($queues, $_) } qw(create_queue alter_queue));
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

			my $pattern = ref $from ? $from : qr/\Q$from\E/;

			2 == (my @around = split $pattern, $text, -1) or die "$file: not once: $from";
			# What is written as a heredoc ends in the end of a line, as what it stands for need not.
			chomp $to if ref $from || $from !~ /\n\z/;
			$text = join $to, @around;
		}
		write_file("$tree/$file", $text);
	}
	# As it will be released, and the update from it.
	write_file("$tree/sql/idemq--$this.sql", join '', map { slurp_file($_) } sort glob "$source/sql/parts/*.sql");
	my $update = slurp_file("$source/test/upgrade/next.sql");
	my %functions = functions($tree);
	my %parts = ((map { uc $_ => $functions{$_} } keys %functions),
		SCHEDULE => part("$tree/sql/parts/80_schedules.sql", 'CREATE FUNCTION idemq_internal.schedule_impl(') =~ s/^CREATE /CREATE OR REPLACE /r);
	$update =~ s/^-- (ENQUEUE|CREATE_QUEUE|ALTER_QUEUE|SCHEDULE)$/$parts{$1}/mg;
	$update =~ s/NEXT_VERSION/$next/g;
	write_file("$tree/sql/idemq--$this--$next.sql", $update);
	# A database that was updated has the former functions; a dump of it may name them.
	my %former = functions($source);
	$former{$_} =~ s/\bidemq\.$_\b/idemq.v1_$_/ foreach keys %former;
	$former{$_} =~ s/(COMMENT ON FUNCTION )idemq\.$_\b/$1idemq.v1_$_/ foreach keys %former;
	write_file("$tree/sql/parts/95_former.sql", join "\n", (map { $former{$_} } sort keys %former),
		'REVOKE ALL ON FUNCTION idemq.v1_enqueue, idemq.v1_create_queue, idemq.v1_alter_queue FROM PUBLIC;',
		"GRANT EXECUTE ON FUNCTION idemq.v1_enqueue, idemq.v1_alter_queue TO PUBLIC;\n");
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

# The built trees that tests share; script/test keeps them in .test.
my $shared = $ENV{IDEMQ_NEXT};

# Identifies what a build of the tree depends on, but for the place of PostgreSQL.
sub digest
{
	my ($tree, $install) = @_;
	my $all = '';

	IPC::Run::run([ 'sh', '-ec', <<'SH', "$install/bin/pg_config", $tree ], '>', \$all) or die "$tree: no digest";
"$0" --version
${CC:-$("$0" --cc)} --version
cd "$1"
find src sql idemq-work cluster Makefile idemq.control -type f -not -name '*.[od]' -not -name '*.so' -not -name idemq-work |
	sort | xargs cat
SH
	return sha256_hex($all, @quick);
}

# Builds it, or copies what another test has built: half a minute's work, better done before a server is under load.
sub build_next
{
	my ($tree, $install) = @_;
	my $built = $shared && "$shared/" . digest($tree, $install);

	return make($tree, $install, @quick, 'all') if !$shared;
	open my $lock, '>', "$shared/lock" or die $!;
	flock $lock, LOCK_EX or die $!;
	if (-d $built)
	{
		system_or_bail('rm', '-rf', $tree);
		system_or_bail('cp', '-a', $built, $tree);
		return;
	}
	make($tree, $install, @quick, 'all');
	# One is enough.  Its lists of headers name PostgreSQL's of this run; the digest takes their place.
	system_or_bail('sh', '-c', 'rm -rf "$0"/*/ && cp -a "$1" "$0/new" && find "$0/new" -name "*.d" -delete && mv "$0/new" "$2"', $shared, $tree, $built);
	return;
}

# What a package does: its files take the place of those that are there, while the server runs or not.
sub install_next { my ($tree, $install) = @_; return make($tree, $install, @quick, 'install') }
sub install_this { my ($install) = @_; return make($source, $install, 'install') }

1;
