# Settings of a role or database that change how SQL is read, which rows it finds, or how values become text: each function,
# procedure, table and view of schema idemq, from the catalog, answers with each of them as without, and writes the same.
#
# What a call returns is printed with the same settings each time, so a difference is in text that idemq itself has made, or
# in what a value means.  Digits are left out: ids, tokens and times differ from call to call.
# at least 28 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Calls;
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('every_setting', 'idemq.test_clock' => 'on', autovacuum => 'off');

$node->start;
# It may execute everything, and is no superuser: row-level security is for it.
sql($node, "CREATE EXTENSION idemq; CREATE ROLE boss; CREATE ROLE grantee; CREATE ROLE granted; CREATE ROLE tester LOGIN IN ROLE pg_monitor, boss;
	GRANT CREATE, USAGE ON SCHEMA public TO tester; CREATE SCHEMA planted");
my $made = prepare_calls($node);
my $calls = calls($node, $made);
sql($node, "SELECT idemq.grant_queue('q', 'tester', p) FROM unnest('{enqueue,admin}'::text[]) p; SELECT idemq.grant_queue('q', 'granted', 'claim');
	SELECT idemq.grant_queue('q_letters', 'tester', 'admin');
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA idemq TO tester; GRANT SELECT ON ALL TABLES IN SCHEMA idemq TO tester; GRANT SELECT ON ALL SEQUENCES IN SCHEMA idemq TO tester");
$calls->{$_} = { sql => "SELECT * FROM idemq.$_", is_relation => 1 } foreach relations($node);

# What the server's processes are doing right now changes by itself.  Whether the jobs of a queue are counted depends on
# which calls have been rolled back.
$calls->{report}{sql} .= " WHERE section <> 'session'";
$calls->{prometheus}{sql} .= " WHERE name <> 'idemq_jobs'";
$calls->{prometheus_text}{sql} = "SELECT l FROM idemq.prometheus_text() t, pg_catalog.string_to_table(t, pg_catalog.chr(10)) l WHERE l !~ 'idemq_jobs( |[{])'";

# What is written as text or as jsonb: the audit of a change of settings, a dead-letter record, a step, an answer with times.
my $attempt = "$made->[0]{running}, $made->[0]{'running token'}";
my %more = ('alter_queue, many' => "SELECT idemq.alter_queue('q', lease => '2 h 3.5 s', retry_factor => 1.1::float8 * 3, retry_jitter => 0.1::float8 * 3, retention => '3 days')",
	'create_queue, many' => "SELECT idemq.create_queue('more', lease => '1 h 2.5 s', retry_factor => 1.1::float8 * 3)",
	'pause until' => "SELECT idemq.pause('q', '2040-01-02 03:04:05+00')",
	'reschedule to' => "SELECT idemq.reschedule($made->[0]{pending}, run_at => '2040-01-02 03:04:05+00')",
	'fail at last' => "SELECT idemq.fail($attempt, 'it' || chr(92) || 'n', permanent => true)",
	'enqueue and read' => "SELECT key, headers, ready_at FROM idemq.jobs WHERE id = (SELECT id FROM idemq.enqueue('q', '1', key => E'a\\\\b''c', headers => '{\"h\": 0.30000000000000004}', run_at => '2040-01-02 03:04:05+00'))",
	'why of a child' => "SELECT idemq.why($made->[0]{child})",
	'why of a step' => "SELECT idemq.why($made->[0]{running})",
	'why of one that retries' => "SELECT idemq.why($made->[0]{retrying})",
	'why of a dead one' => "SELECT idemq.why($made->[0]{dead})");
$calls->{$_} = { sql => $more{$_} } foreach keys %more;

# ---- What is answered and written

sql($node, <<'SQL');
CREATE FUNCTION printed(r record) RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog SET DateStyle = 'ISO' SET IntervalStyle = 'postgres'
	SET extra_float_digits = 1 SET bytea_output = 'hex' SET TimeZone = 'UTC' SET quote_all_identifiers = off AS $$
BEGIN
	RETURN r::text;
END $$;
-- Of ids, tokens, counts and times only that they are there.
CREATE FUNCTION without_digits(t text) RETURNS text LANGUAGE sql SET standard_conforming_strings = on AS $$
	SELECT pg_catalog.regexp_replace(pg_catalog.regexp_replace(t, '-?[0-9]+([.:+-][0-9]+)*|here|silent', 'N', 'g'), '(N days? |N mons? )?N(,N)*', 'N', 'g')
$$;
CREATE TABLE audited AS SELECT (SELECT max(id) FROM idemq.audit) AS last, (SELECT max(id) FROM idemq.jobs) AS last_job;
-- What the call has written that holds text or documents.
CREATE FUNCTION written() RETURNS text LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog SET row_security = on AS $$
	SELECT concat((SELECT string_agg(public.printed(a), ' ' ORDER BY id) FROM (SELECT id, action, queue, job_id, jobs, details FROM idemq.audit) a WHERE id > (SELECT last FROM public.audited)),
		(SELECT string_agg(public.printed(j), ' ') FROM (SELECT key, payload, headers FROM idemq.jobs j JOIN idemq.queues USING (queue_id) WHERE name = 'q_letters' AND j.id > (SELECT last_job FROM public.audited)) j))
$$;
CREATE FUNCTION tell(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	answer text := '';
	lines text[] := '{}';
BEGIN
	BEGIN
		IF statement OPERATOR(pg_catalog.~) '^CALL' THEN
			EXECUTE statement INTO r;
			answer := public.printed(r);
		ELSE
			FOR r IN EXECUTE statement LOOP
				lines := lines || public.without_digits(public.printed(r));
			END LOOP;
		END IF;
		-- In the order of the text, whatever plan there was.
		SELECT pg_catalog.concat('00000 ', answer, pg_catalog.string_agg(l, ' ' ORDER BY l COLLATE "C"), ' / ', public.written()) INTO answer FROM pg_catalog.unnest(lines) l;
		RAISE SQLSTATE 'UNDO1';
	EXCEPTION WHEN SQLSTATE 'UNDO1' THEN
		NULL;
	WHEN OTHERS THEN
		answer := pg_catalog.concat(SQLSTATE, ' ', SQLERRM);
	END;
	RETURN pg_catalog.concat(pg_catalog.left(answer, 6), public.without_digits(pg_catalog.substr(answer, 7)));
END $$;
GRANT SELECT ON audited TO tester;
SQL

# What role tester is told by each call, by name, in a session of its own, each call in a transaction of its own.  One psql
# reads all of them: to ask a session for one answer after another takes longer than the calls.
sub told
{
	my $script = '';
	my ($out, $err) = ('', '');
	my %told;

	foreach my $name (sort keys %$calls)
	{
		my $sql = $calls->{$name}{sql};

		$script .= "\\echo == $name\n\\warn == $name\n"
		  . ($calls->{$name}{alone} ? "$sql;\n" : "SELECT public.tell(E'" . ($sql =~ s/\\/\\\\/gr =~ s/'/''/gr) . "');\n");
	}
	IPC::Run::run([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-U', 'tester' ], '<', \$script, '>', \$out, '2>', \$err)
	  or die "psql: $err";
	my %answers = by_name($out);
	my %errors = by_name($err =~ s/^psql:<stdin>:\d+: //gmr);
	foreach my $name (sort keys %$calls)
	{
		my ($answer, $error) = map { $_->{$name} // die "no answer: $name" } \%answers, \%errors;

		if ($calls->{$name}{alone})
		{
			# The session prints it in its own way.
			$told{$name} = $error =~ /(ERROR:.*)/ ? $1 =~ s/[0-9]+/N/gr : '00000 with ' . ($answer eq '' ? 'nothing' : 'something');
		}
		else
		{
			$told{$name} = $answer . $error;
		}
	}
	return \%told;
}

# What psql has printed of each call, by the lines that name the calls.
sub by_name
{
	my ($printed) = @_;

	return map { /^(.*?)\n(.*?)\n?\z/s } split /^== /m, $printed =~ s/\A== //r;
}

# ---- With each setting, of the role or of the database, as without

my @locales = grep { /^(?:[a-z]+_[A-Z]+|C)\.(?:utf8|UTF-8)$/ } split /\n/, run_command([ 'locale', '-a' ]) // '';
my $locale = $locales[-1] // 'C';
my $rls = join '|', split /\n/, sql($node, "SELECT relname FROM pg_class WHERE relnamespace = 'idemq'::regnamespace AND relrowsecurity");
# Setting, and what may be different: the names of calls, and what they answer instead.
my @settings = (
	[ "DateStyle = 'German'" ],
	[ "DateStyle = 'SQL, DMY'" ],
	[ "DateStyle = 'Postgres, MDY'" ],
	[ "IntervalStyle = 'iso_8601'" ],
	[ "IntervalStyle = 'sql_standard'" ],
	[ "IntervalStyle = 'postgres_verbose'" ],
	[ "bytea_output = 'escape'" ],
	[ 'extra_float_digits = -15' ],
	[ 'extra_float_digits = 3' ],
	# Texts of times name their offset.
	[ "TimeZone = 'Asia/Kathmandu'", qr/^(?:pause until|reschedule to|report)$/, qr/N N \+N|\+N/ ],
	[ 'escape_string_warning = off' ],
	[ 'backslash_quote = off' ],
	[ "client_encoding = 'LATIN1'" ],
	[ "search_path = ''" ],
	[ 'search_path = planted, pg_temp, pg_catalog' ],
	[ "lc_messages = '$locale'" ], [ "lc_monetary = '$locale'" ], [ "lc_numeric = '$locale'" ], [ "lc_time = '$locale'" ],
	# PostgreSQL promises that this raises where rows would be left out.
	[ 'row_security = off', qr/^(?:$rls|job|job_by_key|enqueue and read)$/, qr/^42501 query would be affected by row-level security policy/ ],
	[ 'quote_all_identifiers = on', qr/^(?:handlers|workers)$/, qr/"public"".""handle/ ],
	# It is in the report.
	[ "default_transaction_isolation = 'repeatable read'", qr/^report$/, qr/repeatable read/ ],
	[ "default_transaction_isolation = 'serializable'", qr/^report$/, qr/serializable/ ],
	[ 'default_transaction_deferrable = on' ],
	# A queue whose calls were not rolled back has no leases to be looked for again, and metrics says so.
	[ 'default_transaction_read_only = on', qr/./, qr/cannot execute .* in a read-only transaction|^00000 \(foreign,/ ]);
push @settings, [ 'standard_conforming_strings = off' ], [ "standard_conforming_strings = off; ALTER # SET backslash_quote = off; ALTER # SET escape_string_warning = on" ]
  if $node->pg_version < 19;

# What the first call of a kind changes is changed for all: leases that were lost are looked for, caches are filled.
sql($node, "SELECT idemq.reap(name) FROM idemq.queues");
told();
my $expected = told();
my $n = 0;
foreach (@settings)
{
	my ($setting, $names, $instead) = @$_;
	my $where = $n++ % 2 ? 'ROLE tester' : 'DATABASE postgres';

	sql($node, "ALTER # SET $setting" =~ s/#/$where/gr);
	my $told = told();
	$node->safe_psql('template1', "ALTER $where RESET ALL");
	my @differ = grep { $told->{$_} ne $expected->{$_} && !(defined $names && /$names/ && $told->{$_} =~ $instead) } sort keys %$told;
	is(join("\n", map { "$_: $told->{$_}\n  instead of: $expected->{$_}" } @differ), '', "$where, $setting");
}
my $shown = join ', ', grep { $expected->{$_} !~ /^00000/ } sort keys %$expected;
is($shown, 'assert_shard, set_shard', 'all calls but these do their work') or diag join "\n", map { "$_: $expected->{$_}" } split /, /, $shown;

$node->stop;
done_testing();
