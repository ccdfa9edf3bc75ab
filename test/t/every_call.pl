# Who can do what: each function, procedure, table and view of schema idemq, from the catalog, called as a role with one
# privilege.  For which roles it does its work, and what secrets of a queue they see, is what doc/security.md says in its
# tables "Every call" and "What they see".  Of another queue no role sees or changes anything.
#
# A call does its work for a role if it has the SQLSTATE and the effect on the tables that it has for a superuser, and
# answers something; "not_found" is no work.
# at least 150 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Calls;
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

# Roles of the test, and their names in the manual.
my %named = (outsider => 'any other role', enqueue => '`enqueue`', claim => '`claim`', admin => '`admin`', monitor => '`pg_monitor`',
	reader => '`pg_read_all_data`', writer => '`pg_write_all_data`');
my @roles = qw(outsider enqueue claim admin monitor reader writer);
my $node = new_node('every_call', 'idemq.test_clock' => 'on');

$node->start;
sql($node, "CREATE EXTENSION idemq; CREATE ROLE boss; CREATE ROLE grantee; CREATE ROLE granted; CREATE ROLE outsider; CREATE ROLE enqueue;
	CREATE ROLE claim; CREATE ROLE admin; CREATE ROLE monitor IN ROLE pg_monitor; CREATE ROLE reader IN ROLE pg_read_all_data;
	CREATE ROLE writer IN ROLE pg_write_all_data");
my $made = prepare_calls($node);
my $calls = calls($node, $made);
sql($node, "SELECT idemq.grant_queue('q', p::regrole, p) FROM unnest('{enqueue,claim,admin}'::text[]) p; SELECT idemq.grant_queue('q', 'granted', 'claim')");
foreach my $relation (relations($node))
{
	$calls->{$relation} = { sql => "SELECT * FROM idemq.$relation", is_relation => 1 };
}

# ---- What each answers, and what it changes

sql($node, <<'SQL');
CREATE FUNCTION tables_now() RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
	answer jsonb := '{}';
	rel regclass;
	content text;
BEGIN
	FOR rel IN SELECT oid FROM pg_class WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND relkind = 'r' LOOP
		EXECUTE format('SELECT md5(string_agg(x::text, '';'' ORDER BY x::text)) FROM %s x', rel) INTO content;
		answer := answer || jsonb_build_object(rel::text, content);
	END LOOP;
	RETURN answer;
END $$;
CREATE FUNCTION changed(earlier jsonb) RETURNS text LANGUAGE sql AS $$
	SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM jsonb_each(tables_now()) n JOIN jsonb_each(earlier) e USING (key) WHERE n.value <> e.value
$$;
-- The tables that this transaction has written, with what it has undone, and how many rows.
CREATE FUNCTION written() RETURNS jsonb LANGUAGE sql AS $$
	SELECT jsonb_object_agg(c.oid::regclass, pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid) + pg_stat_get_xact_tuples_deleted(c.oid))
	FROM pg_class c WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND relkind = 'r'
$$;
-- What a role is told, errors included, and what changes.  All is undone.
CREATE FUNCTION try(role text, statement text, OUT state text, OUT answer text, OUT changed text) LANGUAGE plpgsql AS $$
DECLARE
	r record;
	detail text;
	hint text;
	earlier jsonb := written();
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', role);
	answer := '';
	BEGIN
		IF statement ~ '^CALL' THEN
			EXECUTE statement INTO r;
			answer := r::text;
		ELSE
			FOR r IN EXECUTE statement LOOP
				answer := answer || nullif(r::text, '()');
			END LOOP;
		END IF;
		answer := coalesce(answer, '');
		state := '00000';
	EXCEPTION WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, answer = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
		answer := concat_ws(' ', answer, detail, hint);
	END;
	RESET ROLE;
	changed := (SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM jsonb_each(written()) n JOIN jsonb_each(earlier) e USING (key) WHERE n.value <> e.value);
	RAISE SQLSTATE 'UNDO1';
EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
	NULL;
END $$;
CREATE TABLE calls (name text PRIMARY KEY, statement text, alien text);
CREATE TABLE at_first (now jsonb);
SQL
foreach my $name (grep { !$calls->{$_}{alone} } sort keys %$calls)
{
	my $alien = $calls->{$name}{foreign};

	sql($node, "INSERT INTO calls VALUES ('$name', \$\$$calls->{$name}{sql}\$\$, " . (defined $alien ? "\$\$$alien\$\$)" : 'NULL)'));
}
sql($node, "CREATE TABLE told AS SELECT role, name, a.run = c.statement AS own, t.*
	FROM calls c, unnest(ARRAY[c.statement, c.alien]) a (run), unnest('{postgres,outsider,enqueue,claim,admin,monitor,reader,writer}'::text[]) role,
		try(role, a.run) t WHERE a.run IS NOT NULL");

# Those that end the transaction of their caller, or demand one of their own.
my $session = session($node);
$session->query('\\set VERBOSITY verbose');
foreach my $name (grep { $calls->{$_}{alone} } sort keys %$calls)
{
	foreach my $role ('postgres', @roles)
	{
		foreach my $own ('t', 'f')
		{
			my $sql = $calls->{$name}{ $own eq 't' ? 'sql' : 'foreign' } // next;

			sql($node, 'TRUNCATE at_first; INSERT INTO at_first SELECT tables_now()');
			$session->{stderr} = '';
			$session->query("SET ROLE $role");
			my $answer = $session->query($sql);
			my $state = $session->{stderr} =~ /ERROR:\s+([0-9A-Z]{5}):/ ? $1 : '00000';

			# A procedure that answers nothing tells that it has ended.
			$answer = 'done' if $answer eq '' && $name =~ /^(?:advance_clock|tick)$/ && $state eq '00000';
			sql($node, "INSERT INTO told SELECT '$role', '$name', '$own', '$state', \$said\$$answer $session->{stderr}\$said\$, changed(now) FROM at_first");
		}
	}
}
$session->{stderr} = '';
leave($session);

# ---- For whom it does its work: the manual's table, and what was observed

my $manual = slurp_file("$ENV{IDEMQ_SOURCE}/doc/security.md");
my %promised;
my ($every) = $manual =~ /^### Every call\n(.*?)^#/ms or die 'no table "Every call"';
foreach (grep { /^\| `/ } split /\n/, $every)
{
	my (undef, $names, $who) = split / ?\| ?/;
	my $roles = join ' ', grep { $who =~ /every role that may use the schema/ ? $_ ne 'outsider' : $who =~ /\Q$named{$_}/ } @roles;

	$promised{$_} = $roles foreach $names =~ /`(\w+)`/g;
}

# A superuser's answer that is empty, as of a table without rows, tells only that the role may ask.
my $works = "o.own AND o.state = p.state AND o.changed = p.changed AND (p.answer = '') = (o.answer = '') AND o.answer !~ 'not_found|does not exist'";
my %observed = map { /^(\w+)\|(.*)$/ ? ($1 => $2) : die "$_?" } split /\n/, sql($node, "SELECT name, coalesce(string_agg(o.role, ' '
	ORDER BY array_position('{outsider,enqueue,claim,admin,monitor,reader,writer}', o.role)) FILTER (WHERE $works), '')
	FROM told o JOIN told p USING (name) WHERE p.role = 'postgres' AND p.own AND o.role <> 'postgres' AND o.own GROUP BY name");

foreach my $name (sort keys %$calls)
{
	is($observed{$name}, $promised{$name}, "$name does its work for the roles that doc/security.md names");
}
is(join(' ', grep { !$calls->{$_} } sort keys %promised), '', 'and the manual names nothing that is not there');
is_sql($node, "SELECT string_agg(name || ' ' || state || ' ' || answer, '; ') FROM told WHERE role = 'postgres' AND own AND state NOT IN ('00000', '55000')", '',
	'a superuser is refused nothing');
is_sql($node, "SELECT count(*) > 50 FROM told WHERE role = 'postgres' AND own AND changed <> ''", 't', 'and most calls change something');

# ---- What they see

my %words = (payload => 'payloads', numbered => 'payloads', key => 'keys', group => 'group keys', header => 'headers', worker => 'worker names',
	checkpoint => 'checkpoints', error => 'errors', details => 'error details', result => 'results', request => 'step requests',
	response => 'step responses', event => 'event payloads', producer => 'producer names', schedule => 'schedule payloads');
my ($see) = $manual =~ /^### What they see\n(.*?)^#/ms or die 'no table "What they see"';
my %seen_by = map { my (undef, $who, $what) = split / ?\| ?/; ($who => $what) } grep { /^\| / } split /\n/, $see;

foreach my $role (@roles)
{
	my %sees = map { $words{$_} // die("$_?"), 1 } split /\n/,
	  sql($node, "SELECT DISTINCT m[1] FROM told, regexp_matches(answer, 'secret (\\w+)', 'g') m WHERE role = '$role' AND own");

	is(join(', ', sort keys %sees), join(', ', sort split /, /, ($seen_by{ $named{$role} } // '') =~ s/^nothing$//r),
		"$role sees of a queue what doc/security.md says");
}
is_sql($node, "SELECT string_agg(DISTINCT m[1], ' ' ORDER BY m[1]) FROM told, regexp_matches(answer, 'secret (\\w+)', 'g') m WHERE role = 'postgres'",
	join(' ', sort keys %words), 'a superuser sees all of it');

# ---- Nothing of another queue

is_sql($node, "SELECT string_agg(DISTINCT role || ' ' || name, ', ') FROM told WHERE answer ~ 'foreign (payload|numbered|key|group|header|checkpoint|error|details|result|request|response|event|producer|schedule)'
	AND role <> 'postgres'", '', 'no role sees anything of another queue');
is_sql($node, "SELECT string_agg(DISTINCT role || ' ' || name, ', ') FROM told WHERE NOT own AND changed <> '' AND role <> 'postgres'", '',
	'or changes anything of it');
is_sql($node, "SELECT string_agg(DISTINCT role || ' ' || name, ', ') FROM told WHERE changed <> '' AND role IN ('outsider', 'monitor', 'reader', 'writer')", '',
	'without a privilege on a queue a role changes nothing at all');
is_sql($node, "SELECT count(*) > 50 FROM told WHERE role = 'postgres' AND NOT own AND changed <> ''", 't', 'a superuser changes that one, too');

$node->stop;
done_testing();
