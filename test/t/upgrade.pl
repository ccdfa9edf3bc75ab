# From this version to the next (t/lib/NextVersion.pm): an updated database has the same catalogs as a new one, with jobs in
# every state, rights that were given by hand, and what depends on idemq's objects.
# slow: builds the next version of idemq
# at least 131 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use EveryState;
use Idemq;
use NextVersion;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $install = own_install();
my ($tree, $this, $next) = next_version();
build_next($tree, $install);
my $node = PostgreSQL::Test::Cluster->new('upgrade', install_path => $install);
my $old = "SELECT extversion FROM pg_extension WHERE extname = 'idemq'";
my $update = 'ALTER EXTENSION idemq UPDATE';

$node->init;
$node->append_conf('postgresql.conf', server_conf());
# Who copies a database ends what vacuums it, with an error that looks like one of the worker.
$node->append_conf('postgresql.conf', "idemq.worker = 'on'\nautovacuum = off");
$node->start;

# ---- This version: jobs in every state, and rights that a DBA has given and taken

make_every_state($node);
sql($node, 'CREATE ROLE upgrade_friend; CREATE ROLE upgrade_other; CREATE ROLE upgrade_super SUPERUSER;
	GRANT EXECUTE ON FUNCTION idemq.create_queue TO upgrade_friend WITH GRANT OPTION; GRANT EXECUTE ON FUNCTION idemq.once TO upgrade_friend;
	GRANT SELECT ON idemq_internal.seen TO upgrade_friend; GRANT SELECT (name) ON idemq_internal.schedule_entries TO upgrade_friend; GRANT USAGE ON SCHEMA idemq TO upgrade_friend;
	REVOKE EXECUTE ON FUNCTION idemq.reap FROM PUBLIC; REVOKE SELECT ON idemq.attempts FROM PUBLIC; REVOKE EXECUTE ON FUNCTION idemq.enqueue FROM PUBLIC;
	CREATE DATABASE depends');

# All that is there now, by its columns: the update adds some.
my %columns = map { $_ => sql($node, "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
	WHERE attrelid = 'idemq.$_'::regclass AND attnum > 0 AND NOT attisdropped") } qw(jobs queues);
my $rows = $everything;
$rows =~ s/SELECT (j|q) FROM idemq\.(jobs|queues) \1\b/SELECT $columns{$2} FROM idemq.$2/g;
my $before = sql($node, $rows);
my $token = sql($node, 'SELECT max(token) FROM idemq.jobs');
my $lost = sql($node, q{SELECT id FROM idemq.enqueue('q', '"lost"')});
my $lost_token = sql($node, "SELECT token FROM idemq.claim_job($lost)");
sql($node, "DELETE FROM idemq.jobs WHERE id = $lost");

# All that the catalogs say of idemq, but OIDs.
sub catalogs
{
	my ($db) = @_;

	# Of functions every column: prosrc, probin, proconfig, costs ...
	my $columns = sql($node, q{SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 'pg_proc'::regclass AND attnum > 0 AND NOT attisdropped
		AND attname NOT IN ('oid', 'proacl', 'proowner', 'pronamespace', 'prorettype', 'proallargtypes', 'proargtypes', 'proargdefaults', 'prosqlbody')}, $db);
	my %queries = (
		# Each with its comment, its rights in any order, and those that pg_dump takes for given.
		members => q{
			SELECT pg_describe_object(d.classid, d.objid, 0) AS object, obj_description(d.objid, d.classid::regclass::text::name),
				(SELECT string_agg(x::text, ' ' ORDER BY x::text) FROM unnest(coalesce(p.proacl, c.relacl, n.nspacl, t.typacl)) x),
				(SELECT string_agg(i.objsubid || x::text, ' ' ORDER BY i.objsubid, x::text) FROM pg_init_privs i, unnest(i.initprivs) x
					WHERE i.classoid = d.classid AND i.objoid = d.objid),
				coalesce(p.proowner, c.relowner, n.nspowner, t.typowner)::regrole
			FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'idemq'
			LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
			LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
			LEFT JOIN pg_namespace n ON d.classid = 'pg_namespace'::regclass AND n.oid = d.objid
			LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
			WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' ORDER BY pg_describe_object(d.classid, d.objid, 0) COLLATE "C"},
		functions => qq{SELECT oid::regprocedure, prorettype::regtype, proallargtypes::regtype[], CASE WHEN prokind <> 'a' THEN pg_get_functiondef(oid) END, $columns
			FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^idemq' ORDER BY oid::regprocedure::text COLLATE "C"},
		extension => q{SELECT extversion, extrelocatable, extnamespace::regnamespace, extconfig::regclass[], extcondition, extowner::regrole
			FROM pg_extension WHERE extname = 'idemq'},
		relations => q{SELECT oid::regclass, relkind, relpersistence, reloptions, relrowsecurity, relforcerowsecurity, relreplident, relhastriggers,
			(SELECT t.reloptions FROM pg_class t WHERE t.oid = c.reltoastrelid), relnatts, relchecks, relhasrules, reltablespace
			FROM pg_class c WHERE relnamespace::regnamespace::text ~ '^idemq' ORDER BY oid::regclass::text COLLATE "C"},
		columns => q{SELECT attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod), attnotnull, atthasdef, attidentity, attgenerated,
			attcollation, attstorage, attcompression, attstattarget, (SELECT array_agg(x) FROM unnest(attoptions) x WHERE x !~ '^pg_attver='), attacl, atthasmissing, attisdropped, col_description(attrelid, attnum),
			pg_get_expr(d.adbin, d.adrelid)
			FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (attrelid, attnum)
			WHERE relnamespace::regnamespace::text ~ '^idemq' AND attnum > 0 ORDER BY attrelid::regclass::text COLLATE "C", attnum},
		indexes => q{SELECT pg_get_indexdef(indexrelid), indisvalid, indisclustered, indisreplident
			FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE relnamespace::regnamespace::text ~ '^idemq' ORDER BY 1},
		constraints => q{SELECT conrelid::regclass, conname, pg_get_constraintdef(oid), convalidated, obj_description(oid, 'pg_constraint')
			FROM pg_constraint WHERE connamespace::regnamespace::text ~ '^idemq' ORDER BY conrelid::regclass::text COLLATE "C", conname},
		triggers => q{SELECT tgrelid::regclass, tgname, pg_get_triggerdef(t.oid), tgenabled, tgisinternal FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
			WHERE relnamespace::regnamespace::text ~ '^idemq' ORDER BY tgrelid::regclass::text COLLATE "C", tgname},
		policies => q{SELECT * FROM pg_policies WHERE schemaname ~ '^idemq' ORDER BY tablename, policyname},
		views => q{SELECT schemaname, viewname, viewowner, definition FROM pg_views WHERE schemaname ~ '^idemq' ORDER BY 1, 2},
		sequences => q{SELECT schemaname, sequencename, data_type, start_value, min_value, max_value, increment_by, cycle, cache_size FROM pg_sequences WHERE schemaname ~ '^idemq' ORDER BY 1, 2},
		owned => q{SELECT d.objid::regclass, d.refobjid::regclass, d.refobjsubid, d.deptype FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
			WHERE c.relnamespace::regnamespace::text ~ '^idemq' AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass ORDER BY d.objid::regclass::text},
		enums => q{SELECT enumtypid::regtype, string_agg(enumlabel, ' ' ORDER BY enumsortorder) FROM pg_enum JOIN pg_type t ON t.oid = enumtypid
			WHERE typnamespace::regnamespace::text ~ '^idemq' GROUP BY 1 ORDER BY enumtypid::regtype::text},
		schemas => q{SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY 1},
		temporary => q{SELECT relname FROM pg_class WHERE relpersistence = 't'});
	# One psql for all of them; each begins with a line of its own.
	my @parts = split /^== catalog (\w+)\n?/m, sql($node, join(";\n", map { "SELECT '== catalog $_'; $queries{$_}" } sort keys %queries), $db);
	my %catalogs = @parts[ 1 .. $#parts ];
	chomp foreach values %catalogs;
	return \%catalogs;
}

# Compares a database's catalogs with those of a fresh install, but for some.
my $fresh;
sub same_catalogs
{
	my ($db, $name, @but) = @_;
	my $found = catalogs($db);

	foreach my $what (sort keys %$fresh)
	{
		next if grep { $_ eq $what } @but;
		my (%found, %expected);
		@found{ split /\n/, $found->{$what} } = ();
		@expected{ split /\n/, $fresh->{$what} } = ();
		is(join("\n", sort grep { !exists $expected{$_} } keys %found), join("\n", sort grep { !exists $found{$_} } keys %expected),
			"$name: $what: the same lines");
		is($found->{$what} eq $fresh->{$what}, 1, "$name: $what: in the same order");
	}
	return;
}

# What a DBA has made beside idemq's objects, and the data in it.
my @dependents = (
	'CREATE TABLE mine (job bigint, was idemq.status DEFAULT $$pending$$, did idemq.outcome)', 'INSERT INTO mine VALUES (1, $$completed$$, $$committed$$)',
	'CREATE VIEW names AS SELECT name FROM idemq.queues', 'CREATE VIEW behind AS SELECT queue, pending FROM idemq.metrics', 'CREATE VIEW in_flight AS SELECT * FROM idemq.running_jobs',
	'CREATE MATERIALIZED VIEW kept AS SELECT * FROM idemq.jobs',
	'CREATE FUNCTION send(jsonb) RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT id FROM idemq.enqueue($$q$$, $1); END',
	'CREATE FUNCTION finish(bigint, bigint) RETURNS idemq.outcome LANGUAGE sql BEGIN ATOMIC SELECT idemq.try_commit($1, $2); END',
	'CREATE FUNCTION late(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT id FROM idemq.enqueue($q$q$q$, to_jsonb($1))); END $$',
	'CREATE FUNCTION first(bigint) RETURNS idemq.jobs LANGUAGE sql AS $$ SELECT * FROM idemq.job($1) $$',
	'CREATE TABLE refers (job bigint REFERENCES idemq.jobs)', 'CREATE INDEX by_worker ON idemq.jobs (worker)',
	'CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$', 'CREATE TRIGGER note AFTER INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION note()',
	'ALTER TABLE idemq.jobs ADD CONSTRAINT small CHECK (priority < 100)', 'CREATE POLICY more ON idemq.jobs USING (true)',
	'CREATE PUBLICATION out FOR TABLE idemq.jobs', 'CREATE STATISTICS worker_of ON queue_id, worker FROM idemq.jobs');
my $dependent = q{SELECT pg_describe_object('pg_class'::regclass, oid, 0) FROM pg_class WHERE relnamespace = 'public'::regnamespace OR relname = 'by_worker' ORDER BY 1;
	SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'public'::regnamespace ORDER BY 1; SELECT conname FROM pg_constraint WHERE conname IN ('refers_job_fkey', 'small') ORDER BY 1;
	SELECT tgname FROM pg_trigger WHERE tgname = 'note'; SELECT policyname FROM pg_policies WHERE policyname = 'more'; SELECT tablename FROM pg_publication_tables; SELECT stxname FROM pg_statistic_ext};
sql($node, join(';', 'CREATE EXTENSION idemq', "SELECT idemq.create_queue('q', lease => '1 h')", @dependents), 'depends');
my $made = sql($node, $dependent, 'depends');

# ---- The package is there, and the old library in memory

install_next($tree, $install);
my (undef, undef, $said) = $node->psql('postgres', $update);
like($said, qr/ERROR:  the server still has an older version of the idemq library loaded\nHINT:  Restart the server, then run ALTER EXTENSION idemq UPDATE again\./,
	'ALTER EXTENSION is refused by the library in memory');
is_state($node, $update, '55000', 'SQLSTATE');
sql($node, 'CREATE DATABASE early');
(undef, undef, $said) = $node->psql('early', 'CREATE EXTENSION idemq');
like($said, qr/ERROR:  the server still has an older version of the idemq library loaded\nHINT:  Restart the server, and run CREATE EXTENSION idemq again\./, 'and so is CREATE EXTENSION');
is_sql($node, $old, $this, 'nothing has changed');

# ---- The new library

$node->restart;
is_sql($node, 'SHOW idemq.version', $next, 'the library is new');
is_sql($node, "$old; $rows", "$this\n$before", 'the SQL objects are what they were, and so is every row');
sql($node, 'CREATE DATABASE fresh; CREATE DATABASE empty');
sql($node, 'CREATE EXTENSION idemq', 'fresh');
$fresh = catalogs('fresh');
same_catalogs('fresh', 'the comparison itself');
sql($node, "CREATE EXTENSION idemq VERSION '$this'; $update", 'empty');
same_catalogs('empty', 'empty');

# ---- The update, by a superuser who does not own it

sql($node, "SET ROLE upgrade_super; $update");
is_sql($node, $old, $next, 'updated');
# A table of EveryState's refers to idemq.jobs.
same_catalogs('postgres', 'updated', qw(members columns triggers));
is_sql($node, $rows, $before, 'every row is there');
is_sql($node, $without_driver, '', 'check()');
is_sql($node, "SELECT DISTINCT pg_get_userbyid(proowner) = (SELECT pg_get_userbyid(extowner) FROM pg_extension WHERE extname = 'idemq')
	FROM pg_proc WHERE pronamespace::regnamespace::text ~ '^idemq'", 't', 'what is new has the owner of what was there');

# Rights, and the same in a dump.
sub rights
{
	my ($db, $name) = @_;

	is_sql($node, q{SELECT has_function_privilege('upgrade_friend', p.oid, 'EXECUTE WITH GRANT OPTION'), has_function_privilege('upgrade_other', p.oid, 'EXECUTE')
		FROM pg_proc p WHERE p.proname IN ('create_queue', 'v1_create_queue')}, "t|f\nt|f", "$name: a right on a function with a new argument, and on the one that gave way", $db);
	is_sql($node, q{SELECT has_function_privilege('upgrade_friend', 'idemq.once(text, text, interval)', 'EXECUTE'), has_table_privilege('upgrade_friend', 'idemq_internal.seen', 'SELECT'),
		has_column_privilege('upgrade_friend', 'idemq_internal.schedule_entries', 'name', 'SELECT'), has_column_privilege('upgrade_friend', 'idemq_internal.schedule_entries', 'payload', 'SELECT')},
		't|t|t|f', "$name: on one that stays, on a table, on a column", $db);
	is_sql($node, q{SELECT has_function_privilege('upgrade_other', 'idemq.reap(text)', 'EXECUTE'), has_table_privilege('upgrade_other', 'idemq.attempts', 'SELECT'),
		(SELECT has_function_privilege('upgrade_other', oid, 'EXECUTE') FROM pg_proc WHERE proname = 'enqueue'),
		(SELECT has_function_privilege('upgrade_other', oid, 'EXECUTE') FROM pg_proc WHERE proname = 'alter_queue'), has_table_privilege('upgrade_other', 'idemq.jobs', 'SELECT')},
		'f|f|f|t|t', "$name: what was revoked stays so", $db);
	is_sql($node, q{SELECT string_agg(r, ' ' ORDER BY r) FROM unnest('{producer,worker,upgrade_friend,upgrade_other}'::text[]) r
		WHERE has_schema_privilege(r, 'idemq', 'USAGE')}, 'producer upgrade_friend worker', "$name: who may use the schema", $db);
	return;
}
rights('postgres', 'updated');
is_sql($node, q{SELECT count(*) FROM pg_init_privs WHERE initprivs::text ~ 'upgrade_';
	SELECT count(*) FROM pg_shdepend JOIN pg_roles r ON r.oid = refobjid WHERE deptype = 'i' AND rolname ~ 'upgrade_'}, "0\n0", 'none of these is the extension\'s own');
my $file = "$PostgreSQL::Test::Utils::tmp_check/dump";
my $kept = join ';', grep { /FROM idemq\.(?:jobs|queues|attempts|queue_grants|schedule_entries)/ } split /;/, $rows;
my $held = sql($node, $kept);
$node->command_ok([ 'pg_dump', '-f', $file, '-d', $node->connstr('postgres') ], 'pg_dump');
sql($node, 'CREATE DATABASE dumped');
$node->command_ok([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $node->connstr('dumped'), '-f', $file ], 'restore');
rights('dumped', 'restored');
is_sql($node, $kept, $held, 'restored: every row', 'dumped');

# ---- The jobs are worked

goes_on($node, $token, $lost, $lost_token);

# ---- What depends on idemq's objects is not in the way

sql($node, $update, 'depends');
is_sql($node, $old, $next, 'updated with what depends on it', 'depends');
is_sql($node, $dependent, $made, 'all of it is there', 'depends');
is_sql($node, q{SELECT * FROM mine; SELECT count(*) FROM names; SELECT send('1') > 0, late('x') > 0; SELECT pending FROM behind; SELECT finish(id, token) FROM idemq.claim('q');
	SELECT count(*) FROM in_flight; REFRESH MATERIALIZED VIEW kept; SELECT count(*) FROM kept; INSERT INTO refers SELECT id FROM idemq.jobs;
	SELECT (first(job)).id = job FROM refers}, "1|completed|committed\n1\nt|t\n2\ncommitted\n0\n2\nt\nt", 'types, views and functions go on', 'depends');
is_sql($node, $without_driver, '', 'check()', 'depends');

is(unexpected($node, 'workers'), '', 'the worker had no error');
done_testing();
