# An error shows what idemq says, and nothing of the statements that idemq runs: no CONTEXT line of theirs, whatever fails in
# them.  Lines of the caller's own functions, and of a trigger that the DBA has put on idemq.jobs, stay.
#
# Each function and procedure of schema idemq, from the catalog, is called while another session holds each of idemq's
# tables in turn: the first statement that needs the table fails.
# at least 121 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Calls;
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('context', 'idemq.test_clock' => 'on');

$node->start;
sql($node, "CREATE EXTENSION idemq; CREATE ROLE boss; CREATE ROLE grantee; CREATE ROLE granted");
my $made = prepare_calls($node);
my $calls = calls($node, $made);
sql($node, "SELECT idemq.grant_queue('q', 'granted', 'claim')");

# The SQLSTATE and the context of what a statement raises, without what this function itself adds.
sql($node, <<'SQL');
CREATE FUNCTION try(statement text, OUT state text, OUT context text) LANGUAGE plpgsql AS $$
DECLARE
	r record;
	hint text;
BEGIN
	BEGIN
		IF statement ~ '^CALL' THEN
			EXECUTE statement INTO r;
		ELSE
			FOR r IN EXECUTE statement LOOP
			END LOOP;
		END IF;
		RAISE SQLSTATE 'UNDO1';
	EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
		state := '00000';
	WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, context = PG_EXCEPTION_CONTEXT, hint = PG_EXCEPTION_HINT;
		context := regexp_replace(context, 'PL/pgSQL function (public\.)?try\(text\) line \d+ at [^\n]*$', '');
		context := trim(E'\n' FROM replace(context, format('SQL statement "%s"', statement), ''));
	END;
END $$;
SQL

# ---- Each statement that waits for a table

# The calls need these to find the queue and the caller's rights.  They are in a session's cache, unless it is told to read again.
my @tables = split /\n/, sql($node, "SELECT oid::regclass FROM pg_class WHERE relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace) AND relkind = 'r' ORDER BY 1");
my $holder = session($node);
my $caller = session($node);
my (%context, %states);

$caller->query("SET lock_timeout = '1ms'");  # meant to expire
$caller->query('\set VERBOSITY verbose');
foreach my $table (@tables)
{
	$holder->query_safe("BEGIN; LOCK TABLE $table IN ACCESS EXCLUSIVE MODE");
	foreach my $name (sort keys %$calls)
	{
		my ($state, $context);
		my $sql = $calls->{$name}{sql};

		$caller->{stderr} = '';
		if ($calls->{$name}{alone})
		{
			$caller->query($sql);
			($state) = $caller->{stderr} =~ /ERROR:  (.....)/;
			($context) = $caller->{stderr} =~ /^CONTEXT:  (.*?)(?:^LOCATION|\z)/ms;
		}
		else
		{
			($state, $context) = split /\|/, $caller->query('SELECT * FROM try($SQL$' . $sql . '$SQL$)'), 2;
		}
		$states{$name}{ $state // '00000' }++;
		$context{$name}{$context} = $table if ($context // '') ne '';
	}
	$holder->query_safe('ROLLBACK');
}
$caller->{stderr} = '';
# These are in the caller's query, of which the server may make their body a part: it is one SELECT as the caller.
my %inlined = map { $_ => 1 } qw(job job_by_key shard_of);
foreach my $name (sort keys %$calls)
{
	is(join("\n", map { "$context{$name}{$_}: $_" } sort keys %{ $context{$name} }), '', "$name: no context") if !$inlined{$name};
}
cmp_ok(scalar(grep { $states{$_}{'55P03'} } keys %states), '>', 70, 'most of them met a lock');
is(join(' ', map { grep { !/^(?:00000|55P03|55000)$/ } keys %{ $states{$_} } } keys %states), '', 'and nothing else');

# ---- Of whoever calls, all lines stay

sql($node, "CREATE FUNCTION mine() RETURNS void LANGUAGE plpgsql AS \$\$ BEGIN PERFORM idemq.alter_queue('q', lease => '2 h'); END \$\$;
	CREATE FUNCTION outer_one() RETURNS void LANGUAGE plpgsql AS 'BEGIN PERFORM mine(); END'");
$holder->query_safe('BEGIN; LOCK TABLE idemq.queues IN ACCESS EXCLUSIVE MODE');
is_sql($node, "SET lock_timeout = '1ms'; SELECT * FROM try('SELECT outer_one()')",  # meant to expire
	qq{55P03|SQL statement "SELECT idemq.alter_queue('q', lease => '2 h')"\nPL/pgSQL function mine() line 1 at PERFORM\nSQL statement "SELECT mine()"\nPL/pgSQL function outer_one() line 1 at PERFORM},
	"the caller's own functions");
$holder->query_safe('ROLLBACK');

# ---- A FATAL error, and warnings, which no statement of idemq's catches

# They reach the client as they reach the log.
my $from = log_end($node);
my $ended = session($node);
$holder->query_safe('BEGIN; LOCK TABLE idemq.queues IN ACCESS EXCLUSIVE MODE');
$ended->query_until(qr/sent/, "\\echo sent\nSELECT idemq.alter_queue('q', lease => '2 h');\n");
wait_until($node, "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $ended->{backend}");
sql($node, "SELECT pg_terminate_backend($ended->{backend})");
wait_logged($node, qr/FATAL:  terminating connection/, $from);
$holder->query_safe('ROLLBACK');
eval { $ended->{run}->finish };
sql($node, "CREATE FUNCTION careless(payload jsonb) RETURNS void LANGUAGE sql AS ''; SELECT idemq.create_queue('warned'); SELECT idemq.set_handler('warned', 'careless(jsonb)')");
wait_logged($node, qr/WARNING:  function .* does not set its search_path/, $from);
unlike(slurp_file($node->logfile, $from), qr/CONTEXT/, 'a FATAL error and a WARNING: no context');
sql($node, "SELECT idemq.drop_handler('warned')");

# ---- Messages of functions in SQL, to a client that shows the context of all

# The settings decide who gets a message, not what it says: a message that the log does not get is the same.
sql($node, <<'SQL');
CREATE FUNCTION revokes() RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM idemq.revoke_queue('leaves', 'granted', 'enqueue'); END $$;
SELECT idemq.create_queue('letters'), idemq.create_queue('leaves'), idemq.create_queue('dies', max_attempts => 1, dead_letter_queue => 'letters');
SELECT idemq.grant_queue('leaves', 'granted', 'enqueue');
GRANT USAGE ON SCHEMA idemq TO granted;
SET ROLE granted;
SELECT idemq.schedule('leaves', '0 0 1 1 *', 'leaves', '1');
RESET ROLE;
SELECT id FROM idemq.enqueue('dies', '1');
SELECT idemq.fail(id, token, 'no') FROM idemq.claim('dies');
SQL
foreach my $log ('notice', 'panic')
{
	my $asks = session($node);
	my $said = sub {
		my ($sql) = @_;

		$asks->{stderr} = '';
		$asks->query("BEGIN; $sql; ROLLBACK");
		return $asks->{stderr} =~ s/^LOCATION.*\n//mgr =~ s/psql:<stdin>:\d+: //gr;
	};

	$asks->query_safe("SET log_min_messages = $log");
	$asks->query('\set SHOW_CONTEXT always');
	like($said->("SELECT idemq.redrive('dies')"), qr/\ANOTICE:  cancelled dead-letter records: 1\n*\z/, "redrive, log_min_messages = $log: no context");
	like($said->("SELECT idemq.revoke_queue('leaves', 'granted', 'enqueue')"), qr/\ANOTICE:  [^\n]*: schedule leaves\nHINT:  [^\n]*\n*\z/, 'revoke_queue');
	like($said->('SELECT revokes()'), qr/\ANOTICE:  [^\n]*\nHINT:  [^\n]*\nCONTEXT:  SQL statement "SELECT idemq.revoke_queue[^"]*"\nPL\/pgSQL function revokes\(\) line 1 at PERFORM\n*\z/, "the caller's own functions stay");
	like($said->("SELECT idemq.set_handler('warned', 'careless(jsonb)')"), qr/\AWARNING:  function [^\n]*\nDETAIL:  [^\n]*\nHINT:  [^\n]*\n*\z/, 'set_handler');
	leave($asks);
}

# ---- A trigger of the DBA's on idemq.jobs

sql($node, "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN PERFORM 1 / 0; END \$\$;
	CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION refuse()");
my $its = qq{22012|SQL statement "SELECT 1 / 0"\nPL/pgSQL function refuse() line 1 at PERFORM};
my $qualified = $its =~ s/refuse\(\)/public.refuse()/r;
foreach (qw(enqueue_job cancel cancel_many reschedule retry claim commit fail release checkpoint enqueue_sequenced enqueue_many))
{
	like($caller->query('SELECT * FROM try($SQL$' . $calls->{$_}{sql} . '$SQL$)'), qr/^(?:\Q$its\E|\Q$qualified\E)$/, "$_: the context of a trigger, and no more");
}

# A WARNING of the trigger, too.
$from = log_end($node);
sql($node, "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \$\$ BEGIN RAISE WARNING 'its own'; RETURN NEW; END \$\$; SELECT id FROM idemq.enqueue('q', '\"warned\"')");
is_logged($node, qr/WARNING:  its own\n[^\n]*CONTEXT:  PL\/pgSQL function (?:public\.)?refuse\(\) line 1 at RAISE\n/, 'a warning has the context of the trigger, and no more', $from);
unlike(slurp_file($node->logfile, $from), qr/SQL statement/, 'no statement of idemq');

leave($holder, $caller);
$node->stop;
done_testing();
