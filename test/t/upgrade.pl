# From 0.1.0 to this version: the same catalogs as a fresh install, with jobs in every state,
# rights that were given by hand, and what depends on idemq's objects.
#
# at least 221 assertions
#
# test/upgrade/0.1.0.sql is a dump that 0.1.0 wrote; sql/idemq--0.1.0.sql is its install script.

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# Who copies a database ends what vacuums it, with an error that looks like one of the worker.
my $node = new_node('upgrade', 'idemq.worker' => 'on', max_prepared_transactions => 4, autovacuum => 'off');
my $state = "$ENV{IDEMQ_SOURCE}/test/upgrade/0.1.0.sql";
my $old = "SELECT extversion FROM pg_extension WHERE extname = 'idemq'";
my $default = "SELECT default_version FROM pg_available_extensions WHERE name = 'idemq'";
my $update = 'ALTER EXTENSION idemq UPDATE';
my $no_driver = "invariant <> 'schedules.driver'";

$node->start;
sql($node, 'CREATE ROLE upgrade_producer; CREATE ROLE "Upgrade Worker"; CREATE ROLE upgrade_friend; CREATE ROLE upgrade_other;
	CREATE DATABASE fresh');
sql($node, 'CREATE EXTENSION idemq', 'fresh');
my $version = sql($node, 'SHOW idemq.version');
is_sql($node, $default, $version, 'the version in memory is the one that is installed');

# A database of 0.1.0, with the rows of the dump.
sub restored
{
	my ($db) = @_;

	sql($node, "CREATE DATABASE $db");
	sql($node, "CREATE EXTENSION idemq VERSION '0.1.0'", $db);
	$node->command_ok([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $node->connstr($db), '-f', $state ],
		"$db: restore of 0.1.0's dump");
	return;
}

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
			FROM pg_proc WHERE pronamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) ORDER BY oid::regprocedure::text COLLATE "C"},
		extension => q{SELECT extversion, extrelocatable, extnamespace::regnamespace, extconfig::regclass[], extcondition, extowner::regrole
			FROM pg_extension WHERE extname = 'idemq'},
		relations => q{SELECT oid::regclass, relkind, relpersistence, reloptions, relrowsecurity, relforcerowsecurity, relreplident, relhastriggers,
			(SELECT t.reloptions FROM pg_class t WHERE t.oid = c.reltoastrelid), relnatts, relchecks, relhasrules, reltablespace
			FROM pg_class c WHERE relnamespace = 'idemq'::regnamespace ORDER BY oid::regclass::text COLLATE "C"},
		columns => q{SELECT attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod), attnotnull, atthasdef, attidentity, attgenerated,
			attcollation, attstorage, attcompression, attstattarget, (SELECT array_agg(x) FROM unnest(attoptions) x WHERE x !~ '^pg_attver='), attacl, atthasmissing, attisdropped, col_description(attrelid, attnum),
			pg_get_expr(d.adbin, d.adrelid)
			FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (attrelid, attnum)
			WHERE relnamespace = 'idemq'::regnamespace AND attnum > 0 ORDER BY attrelid::regclass::text COLLATE "C", attnum},
		indexes => q{SELECT pg_get_indexdef(indexrelid), indisvalid, indisclustered, indisreplident
			FROM pg_index JOIN pg_class c ON c.oid = indrelid WHERE relnamespace = 'idemq'::regnamespace ORDER BY 1},
		constraints => q{SELECT conrelid::regclass, conname, pg_get_constraintdef(oid), convalidated, obj_description(oid, 'pg_constraint')
			FROM pg_constraint WHERE connamespace = 'idemq'::regnamespace ORDER BY conrelid::regclass::text COLLATE "C", conname},
		triggers => q{SELECT tgrelid::regclass, tgname, pg_get_triggerdef(t.oid), tgenabled, tgisinternal FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid
			WHERE relnamespace = 'idemq'::regnamespace ORDER BY tgrelid::regclass::text COLLATE "C", tgname},
		policies => q{SELECT * FROM pg_policies WHERE schemaname = 'idemq' ORDER BY tablename, policyname},
		views => q{SELECT viewname, viewowner, definition FROM pg_views WHERE schemaname = 'idemq' ORDER BY 1},
		sequences => q{SELECT sequencename, data_type, start_value, min_value, max_value, increment_by, cycle, cache_size FROM pg_sequences WHERE schemaname = 'idemq' ORDER BY 1},
		owned => q{SELECT d.objid::regclass, d.refobjid::regclass, d.refobjsubid, d.deptype FROM pg_depend d JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S'
			WHERE c.relnamespace = 'idemq'::regnamespace AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass ORDER BY d.objid::regclass::text},
		enums => q{SELECT enumtypid::regtype, string_agg(enumlabel, ' ' ORDER BY enumsortorder) FROM pg_enum JOIN pg_type t ON t.oid = enumtypid
			WHERE typnamespace = 'idemq'::regnamespace GROUP BY 1 ORDER BY enumtypid::regtype::text},
		schemas => q{SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' ORDER BY 1},
		temporary => q{SELECT relname FROM pg_class WHERE relpersistence = 't'});
	# One psql for all of them; each begins with a line of its own.
	my @parts = split /^== catalog (\w+)\n?/m, sql($node, join(";\n", map { "SELECT '== catalog $_'; $queries{$_}" } sort keys %queries), $db);
	my %catalogs = @parts[ 1 .. $#parts ];
	chomp foreach values %catalogs;
	return \%catalogs;
}

my $fresh = catalogs('fresh');

# Compares a database's catalogs with those of a fresh install, but for some.
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

# ---- The old SQL objects with the new library

restored('app');
is_sql($node, $old, '0.1.0', 'the SQL objects are those of 0.1.0', 'app');
my @calls = split /\n/, sql($node, q{SELECT format(CASE WHEN prokind = 'p' THEN 'CALL %s(%s)' ELSE 'SELECT %s(%s)' END, oid::regproc,
	(SELECT string_agg('NULL::' || t::regtype, ', ') FROM unnest(proargtypes) t)) FROM pg_proc
	WHERE pronamespace = 'idemq'::regnamespace AND prolang = (SELECT oid FROM pg_language WHERE lanname = 'c') AND prorettype <> 'trigger'::regtype}, 'app');
cmp_ok(scalar(@calls), '>', 50, 'functions of 0.1.0');
my $sqlstate = q{\echo :SQLSTATE};
my $caller = session($node, 'app');
is(join(' ', grep { scalar($caller->query("$_; $sqlstate")) ne '55000' } @calls), '', 'each of them raises 55000');
leave($caller);
my (undef, undef, $said) = $node->psql('app', "SELECT idemq.claim('mail')");
is($said, "psql:<stdin>:1: ERROR:  the SQL objects of idemq in this database are older than its library, $version\n"
	  . 'HINT:  Run ALTER EXTENSION idemq UPDATE in this database.', 'and says what to do');
sql($node, "CREATE TABLE effects (job_id bigint, token bigint);
	CREATE TRIGGER fence BEFORE INSERT ON effects FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token')", 'app');
is_state($node, 'INSERT INTO effects VALUES (1, 1)', '55000', 'a fence lets nothing through', 'app');
is_state($node, "BEGIN; CREATE TABLE other (); PREPARE TRANSACTION 'other'", '00000', 'what is not idemq\'s goes on', 'app');
is_state($node, "COMMIT PREPARED 'other'", '00000', 'COMMIT PREPARED, too', 'app');
is_sql($node, q{SELECT status, count(*) FROM idemq.jobs GROUP BY 1 ORDER BY 1},
	"blocked|3\npending|8\nrunning|4\nretrying|1\ncompleted|1\ndead|1\ncancelled|1", 'rows in every state', 'app');
my $rows = q{SELECT id, queue_id, enqueued_at, priority, max_attempts, expires_at, run_at, status, attempt, token, ready_at, claimed_at, deadline,
	finished_at, worker, key, group_key, headers, payload, checkpoint, result, last_error FROM idemq.jobs ORDER BY id;
	SELECT queue_id, name, lease, max_attempts, retry_base, retry_factor, retry_max, retry_jitter, retention, idempotency_window, max_running,
		rate_limit, rate_period, dead_letter_queue, paused, created_at FROM idemq.queues ORDER BY 1;
	SELECT job_id, token, queue_id, attempt, worker, claimed_at, ended_at, outcome, error FROM idemq.attempts ORDER BY 1, 2;
	SELECT queue_id, role_name, privilege FROM idemq_internal.queue_grants ORDER BY 1, 2, 3; SELECT scope, key, expires_at FROM idemq_internal.seen;
	SELECT name, queue_id, cron, time_zone, payload, priority, group_key, max_attempts, headers, expires_in, created_by, created_at, done_until,
		last_run, last_job, failed_at, last_error FROM idemq_internal.schedule_entries};
my $before = sql($node, $rows, 'app');
my $highest = sql($node, 'SELECT max(token) FROM idemq.jobs', 'app');
my $ids = sql($node, 'SELECT last_value FROM idemq.jobs_id_seq', 'app');
sql($node, 'CREATE DATABASE copied TEMPLATE app');

# ---- The update

is(sql($node, "SELECT string_agg(prosrc, ' ') FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace AND probin IS NOT NULL AND prosrc !~ '^idemq_sql_v2_'", 'fresh'),
	'', 'no function of ours is one of 0.1.0\'s library');
# What an older library in memory comes to: it has no such setting.
my ($guard) = slurp_file("$ENV{IDEMQ_SOURCE}/sql/idemq--0.1.0--$version.sql") =~ /(DO \$\$\nBEGIN\n\tIF pg_catalog\.current_setting.*?END \$\$;)/s;
is_state($node, $guard, '00000', 'the library in memory is new enough');
$guard =~ s/'idemq\.version'/'idemq_of_old.version'/;
(undef, undef, $said) = $node->psql('postgres', $guard);
like($said, qr/ERROR:  the server still has an older library of idemq in memory\nHINT:  Restart the server, then run ALTER EXTENSION idemq UPDATE again\./,
	'an older one is refused');

same_catalogs('fresh', 'the comparison itself');
sql($node, 'CREATE DATABASE empty');
sql($node, "CREATE EXTENSION idemq VERSION '0.1.0'; $update", 'empty');
same_catalogs('empty', 'empty');
is_sql($node, 'SELECT last_value, is_called FROM idemq.jobs_id_seq', '1000000000001|f', 'a sequence that has given nothing is beyond int', 'empty');

# By a superuser who does not own it; with rights that a DBA has given and taken.
sql($node, 'CREATE ROLE upgrade_super SUPERUSER');
sql($node, 'GRANT EXECUTE ON FUNCTION idemq.create_queue TO upgrade_friend WITH GRANT OPTION; GRANT EXECUTE ON FUNCTION idemq.once TO upgrade_friend;
	GRANT SELECT ON idemq_internal.seen TO upgrade_friend; GRANT SELECT (name) ON idemq_internal.schedule_entries TO upgrade_friend;
	REVOKE EXECUTE ON FUNCTION idemq.reap FROM PUBLIC; REVOKE SELECT ON idemq.attempts FROM PUBLIC;
	REVOKE EXECUTE ON FUNCTION idemq.enqueue_many FROM PUBLIC', 'app');
# A session of a pool, from before the update.
my $pool = session($node, 'app');
$pool->query_safe("PREPARE every AS SELECT * FROM idemq.claim('none'); PREPARE named AS SELECT id, token FROM idemq.claim('none')");
is(scalar($pool->query("EXECUTE every; $sqlstate")), '55000', 'prepared before the update: refused');
sql($node, "SET ROLE upgrade_super; $update", 'app');
is_sql($node, $old, $version, 'updated', 'app');
is(scalar($pool->query("EXECUTE named; $sqlstate")), 'IQ005', 'after it, columns by their names: the new function');
is(scalar($pool->query("EXECUTE every; $sqlstate")), '0A000', 'and *: the plan is of other columns, until');
is(scalar($pool->query("DISCARD ALL; SELECT * FROM idemq.claim('none'); $sqlstate")), 'IQ005', 'the session is new');
leave($pool);
same_catalogs('app', 'app', qw(members columns));
is_sql($node, $rows, $before, 'every row is there', 'app');
is_sql($node, "SELECT * FROM idemq.check() WHERE $no_driver", '', 'check()', 'app');
is_sql($node, 'SELECT status, (dead_at = finished_at)::text FROM idemq.jobs WHERE dead_at IS NOT NULL', 'dead|true', 'since when a job is dead', 'app');
is_sql($node, q{SELECT name, dead_retention, max_lease FROM idemq.queues WHERE name IN ('mail', 'stopped') ORDER BY 1},
	"mail|36500 days|36500 days\nstopped|30 days|1 day", 'new settings are no stricter than what was there', 'app');
is_sql($node, "SELECT DISTINCT pg_get_userbyid(proowner) = (SELECT pg_get_userbyid(extowner) FROM pg_extension WHERE extname = 'idemq')
	FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace", 't', 'what is new has the owner of what was there', 'app');
worker_pid($node, 'app');

# Rights, and the same in a dump.
sub rights
{
	my ($db, $name) = @_;

	is_sql($node, q{SELECT has_function_privilege('upgrade_friend', p.oid, 'EXECUTE WITH GRANT OPTION'), has_function_privilege('upgrade_other', p.oid, 'EXECUTE')
		FROM pg_proc p WHERE p.proname = 'create_queue'}, 't|f', "$name: a right on a function with new arguments", $db);
	is_sql($node, q{SELECT has_function_privilege('upgrade_friend', 'idemq.once(text, text, interval)', 'EXECUTE'), has_table_privilege('upgrade_friend', 'idemq_internal.seen', 'SELECT'),
		has_column_privilege('upgrade_friend', 'idemq_internal.schedule_entries', 'name', 'SELECT'), has_column_privilege('upgrade_friend', 'idemq_internal.schedule_entries', 'payload', 'SELECT')},
		't|t|t|f', "$name: on one that stays, on a table, on a column", $db);
	is_sql($node, q{SELECT has_function_privilege('upgrade_other', 'idemq.reap(text)', 'EXECUTE'), has_table_privilege('upgrade_other', 'idemq.attempts', 'SELECT'),
		(SELECT has_function_privilege('upgrade_other', oid, 'EXECUTE') FROM pg_proc WHERE proname = 'enqueue_many'), has_table_privilege('upgrade_other', 'idemq.jobs', 'SELECT')},
		'f|f|f|t', "$name: what was revoked stays so", $db);
	is_sql($node, q{SELECT string_agg(r, ' ' ORDER BY r) FROM unnest('{upgrade_producer,Upgrade Worker,upgrade_friend,upgrade_other}'::text[]) r
		WHERE has_schema_privilege(r, 'idemq', 'USAGE')}, 'Upgrade Worker upgrade_friend upgrade_producer', "$name: who has any may use the schema", $db);
	return;
}
rights('app', 'updated');
is_sql($node, q{SELECT count(*) FROM pg_init_privs WHERE initprivs::text ~ 'upgrade_'}, 0, 'none of these is the extension\'s own', 'app');
my $file = "$PostgreSQL::Test::Utils::tmp_check/dump";
$node->command_ok([ 'pg_dump', '-f', $file, '-d', $node->connstr('app') ], 'pg_dump');
sql($node, 'CREATE DATABASE dumped');
$node->command_ok([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $node->connstr('dumped'), '-f', $file ], 'restore');
rights('dumped', 'restored');
is_sql($node, $rows, $before, 'restored: every row', 'dumped');

# ---- The jobs are worked

my $claimed = q{SELECT j.id, j.token FROM idemq.jobs j JOIN idemq.queues USING (queue_id) WHERE status = 'running'};
is_sql($node, "SELECT outcome, count(*) FROM ($claimed AND name <> 'mail') p, idemq.heartbeat_many(ARRAY[p.id], ARRAY[p.token]) GROUP BY 1", 'current|3', 'leases go on', 'app');
is_sql($node, "SELECT idemq.why(id) LIKE 'running%' FROM ($claimed AND name = 'mail') p", 't', 'why()', 'app');
is_sql($node, q{SELECT count(*) FROM idemq.claim('narrow', 5)}, 0, 'the limit counts what is in flight', 'app');
is_sql($node, q{SELECT payload FROM idemq.claim('groups', 5)}, 11, 'the free group\'s head alone is claimed', 'app');
is_sql($node, "SELECT idemq.commit(id, token, '\"late\"') FROM ($claimed AND name <> 'mail') p", "committed\n" x 3 . 'committed', 'workers commit by the tokens that they have', 'app');
is_sql($node, q{SELECT payload FROM idemq.claim('groups', 5) ORDER BY payload}, "2\n12", 'the next of each group', 'app');
is_sql($node, q{SELECT payload FROM idemq.claim('narrow', 5)}, 3, 'there is room under the limit', 'app');
is_sql($node, q{SELECT outcome, status, result FROM idemq.enqueue('mail', '"completed"', key => 'first')}, 'duplicate|completed|{"sent": true}', 'a key has its answer', 'app');
is_sql($node, q{SELECT outcome, status FROM idemq.enqueue('narrow', '"dead"', key => 'dead')}, 'duplicate|dead', 'a dead job has its key', 'app');
is_sql($node, qq{SELECT payload #>> '{}' AS p, attempt, token > $highest FROM idemq.claim('mail', 2) ORDER BY attempt DESC}, "failed|2|t\nnow|1|t", 'ready jobs are claimed, by greater tokens', 'app');
is_sql($node, q{SELECT length(payload #>> '{}') FROM idemq.claim('mail', 5)}, 9600, 'a large one, too', 'app');
is_sql($node, q{SELECT idemq.commit(id, token), checkpoint FROM idemq.jobs WHERE payload = '"running"'}, 'committed|{"step": 2}', 'one with a checkpoint', 'app');
is_sql($node, qq{SELECT id > $ids FROM idemq.enqueue('mail', '"new"')}, 't', 'ids that were given do not come again', 'app');
is_sql($node, q{SELECT payload->'payload' FROM idemq.claim('graves')}, '"dead"', 'the dead-letter queue\'s copy', 'app');
is_sql($node, q{SELECT idemq.redrive('narrow'), idemq.once('letters', 'sent')}, '1|f', 'redrive; once remembers', 'app');
is_sql($node, q{SELECT idemq.create_queue('newest') > 6, (SELECT paused FROM idemq.queues WHERE name = 'stopped')}, 't|t', 'queues\' numbers go on', 'app');
is_sql($node, q{SET ROLE "Upgrade Worker"; SELECT count(*) FROM idemq.claim('mail')}, 1, 'grants hold', 'app');
is_state($node, q{SET ROLE upgrade_producer; SELECT count(*) FROM idemq.claim('mail')}, '42501', 'and no more than they gave', 'app');
is_sql($node, q{CALL idemq.tick(); SELECT queue, created_by, next_run > now() FROM idemq.schedules}, 'mail|upgrade_producer|t', 'schedules', 'app');
is_sql($node, q{SELECT on_rerun.outcome FROM idemq.enqueue('mail', '"again"', key => 'first', on_duplicate => 'rerun') on_rerun}, 'rerun', 'the value that came with the update', 'app');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() after all of that', 'app');
is_state($node, 'INSERT INTO effects VALUES (1, 1)', 'IQ001', 'the fence tells stale tokens again', 'app');

# ---- Tokens of a cluster that had been promoted, which 0.1.0 did not keep

sql($node, "UPDATE idemq.jobs SET token = token + 5 * 2199023255552 WHERE status = 'retrying'", 'copied');
$highest = sql($node, 'SELECT max(token) FROM idemq.jobs', 'copied');
sql($node, $update, 'copied');
is_sql($node, qq{SELECT min(token) > $highest FROM idemq.claim('mail', 2)}, 't', 'tokens grow beyond them', 'copied');
is_sql($node, "SELECT * FROM idemq.check() WHERE $no_driver", '', 'check() knows', 'copied');

# ---- What depends on idemq's objects

restored('depends');
$before = sql($node, $rows, 'depends');
sql($node, q{
	CREATE TABLE mine (job bigint, was idemq.status DEFAULT 'pending', did idemq.outcome);
	INSERT INTO mine VALUES (1, 'completed', 'committed');
	CREATE VIEW in_flight AS SELECT * FROM idemq.running_jobs;
	CREATE FUNCTION finish(bigint, bigint) RETURNS idemq.outcome LANGUAGE sql BEGIN ATOMIC SELECT idemq.try_commit($1, $2); END;
	CREATE FUNCTION late(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RETURN (SELECT id FROM idemq.enqueue('mail', to_jsonb($1))); END $$}, 'depends');
my %in_the_way = (
	'view public.names' => [ 'CREATE VIEW public.names AS SELECT name FROM idemq.queues', 'DROP VIEW public.names' ],
	'view public.behind' => [ 'CREATE VIEW public.behind AS SELECT queue, pending FROM idemq.metrics', 'DROP VIEW public.behind' ],
	'materialized view public.kept' => [ 'CREATE MATERIALIZED VIEW public.kept AS SELECT * FROM idemq.jobs', 'DROP MATERIALIZED VIEW public.kept' ],
	'function public.send(jsonb)' => [ q{CREATE FUNCTION public.send(jsonb) RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT id FROM idemq.enqueue('mail', $1); END}, 'DROP FUNCTION public.send(jsonb)' ],
	'function public.first(bigint)' => [ 'CREATE FUNCTION public.first(bigint) RETURNS idemq.jobs LANGUAGE sql AS $$ SELECT * FROM idemq.job($1) $$', 'DROP FUNCTION public.first(bigint)' ],
	'constraint mine_job_fkey on table public.mine' => [ 'ALTER TABLE public.mine ADD FOREIGN KEY (job) REFERENCES idemq.jobs', 'ALTER TABLE public.mine DROP CONSTRAINT mine_job_fkey' ],
	'index idemq.by_worker' => [ 'CREATE INDEX by_worker ON idemq.jobs (worker)', 'DROP INDEX idemq.by_worker' ],
	'trigger note on table idemq.jobs' => [ q{CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER note AFTER INSERT ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION public.note()}, 'DROP TRIGGER note ON idemq.jobs' ],
	'column tenant of table idemq.jobs' => [ 'ALTER TABLE idemq.jobs ADD tenant text', 'ALTER TABLE idemq.jobs DROP tenant' ],
	'constraint small on table idemq.jobs' => [ 'ALTER TABLE idemq.jobs ADD CONSTRAINT small CHECK (priority < 100)', 'ALTER TABLE idemq.jobs DROP CONSTRAINT small' ],
	'policy more on table idemq.jobs' => [ 'CREATE POLICY more ON idemq.jobs USING (true)', 'DROP POLICY more ON idemq.jobs' ],
	'publication of table idemq.jobs in publication out' => [ 'CREATE PUBLICATION out FOR TABLE idemq.jobs', 'DROP PUBLICATION out' ],
	'statistics object public.worker_of' => [ 'CREATE STATISTICS public.worker_of ON queue_id, worker FROM idemq.jobs', 'DROP STATISTICS public.worker_of' ]);
foreach my $object (sort keys %in_the_way)
{
	my ($make, $drop) = @{ $in_the_way{$object} };

	sql($node, $make, 'depends');
	(undef, undef, $said) = $node->psql('depends', "SET search_path = ''; $update");
	(my $short = $object) =~ s/public\.//g;
	like($said, qr/ERROR:  other objects depend on tables or functions of idemq that change\nDETAIL:  \Q$object\E\nHINT:  In one transaction/, "in the way, by its name: $short");
	is_state($node, $update, '2BP01', 'SQLSTATE', 'depends');
	sql($node, $drop, 'depends');
}
sql($node, 'CREATE SCHEMA idemq_internal', 'depends');
is_state($node, $update, '42P06', 'a schema that was planted', 'depends');
sql($node, 'DROP SCHEMA idemq_internal', 'depends');
is_sql($node, "$old; $rows", "0.1.0\n$before", 'nothing has changed', 'depends');

# The manual's way: it writes the commands, which are one transaction with the update.
sql($node, $in_the_way{$_}[0], 'depends') foreach 'view public.names', 'function public.send(jsonb)', 'constraint mine_job_fkey on table public.mine', 'index idemq.by_worker';
my ($writes) = slurp_file("$ENV{IDEMQ_SOURCE}/doc/operations/upgrade.md") =~ /^```sql\n(-- What is in the way.*?)^```/ms;
my $commands = sql($node, $writes, 'depends');
note $commands;
sql($node, $commands, 'depends');
is_sql($node, $old, $version, 'updated with what depends on it', 'depends');
is_sql($node, $rows, $before, 'every row', 'depends');
# When the worker has found the leases.
wait_until($node, 'SELECT count(*) FROM in_flight', 4, 'depends');
is_sql($node, q{SELECT * FROM mine; SELECT count(*) FROM names; SELECT count(*) FROM in_flight; SELECT send('1') > 0, late('x') > 0;
	SELECT conname FROM pg_constraint WHERE conrelid = 'mine'::regclass; SELECT finish(id, token) FROM idemq.claim('mail'); SELECT to_regclass('idemq.by_worker') IS NOT NULL},
	"1|completed|committed\n5\n4\nt|t\nmine_job_fkey\ncommitted\nt", 'types, views and functions go on', 'depends');
sql($node, 'DROP INDEX idemq.by_worker; ALTER TABLE mine DROP CONSTRAINT mine_job_fkey', 'depends');
same_catalogs('depends', 'depends', qw(members));

# ---- SQL objects that are older than the library in memory, or newer

my $gated = sql($node, "SELECT oid::regproc || '()' FROM pg_proc WHERE prosrc = 'idemq_sql_gate' AND pronargs = 0 ORDER BY proname DESC LIMIT 1", 'fresh');
foreach my $other ([ '0.1.9', qr/older than its library, \Q$version\E\nHINT:  Run ALTER EXTENSION/ ], [ '0.10.0', qr/newer than its library, \Q$version\E\nHINT:  Install the library/ ])
{
	my ($number, $refusal) = @$other;

	sql($node, "UPDATE pg_extension SET extversion = '$number' WHERE extname = 'idemq'", 'fresh');
	foreach my $call ($gated, "idemq.enqueue('q', '1')", "idemq_internal.may_see(1)")
	{
		(undef, undef, $said) = $node->psql('fresh', "SELECT $call");
		like($said, qr/ERROR:  the SQL objects of idemq in this database are $refusal/, "$number: $call is refused");
		is_state($node, "SELECT $call", '55000', 'SQLSTATE', 'fresh');
	}
}
sql($node, "UPDATE pg_extension SET extversion = '$version' WHERE extname = 'idemq'", 'fresh');
is_state($node, "SELECT $gated", '00000', 'those of the library\'s own: called', 'fresh');

is_logged($node, qr/LOG:  idemq does nothing in database "app": its SQL objects, 0\.1\.0, are older than its library, \Q$version\E\n/, 'the worker had said why it stayed away');
is(unexpected($node, 'workers'), '', 'and had no error');
done_testing();
