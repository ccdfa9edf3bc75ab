# No call waits for a lock of what its role has no right to: how long it lasts would tell whether a guessed id, key or
# name is there.  Every function that the role may execute, from the catalog, with every argument, while another
# session holds all there is: the queue, its rows, its keys, a topic, a schedule.
# at least 69 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('rights_first', log_statement => 'none');

# ---- What is another's: queue q, which is held, and what is the stranger's own

sql($node, 'CALL idemq.tick()');
sql($node, "CREATE ROLE stranger LOGIN; SELECT idemq.create_queue('own'); SELECT idemq.grant_queue('own', 'stranger', 'admin');
	GRANT EXECUTE ON FUNCTION idemq.create_queue, idemq.create_topic, idemq.set_handler, idemq.once, idemq.admit TO stranger;
	CREATE ROLE other; SELECT idemq.grant_queue('q', 'other', 'admin'), idemq.create_topic('t'), idemq.bind_topic('t.#', 'q'),
	idemq.schedule('s', '0 3 1 1 *', 'q', '1'), idemq.enqueue_sequenced('q', 'p', 1, '1')");
sql($node, 'CREATE FUNCTION f(jsonb) RETURNS void LANGUAGE sql AS $$$$; GRANT EXECUTE ON FUNCTION f TO stranger');
my $id = sql($node, "SELECT id FROM idemq.enqueue('q', '1', key => 'k', group_key => 'g', priority => 0)");
my $token = sql($node, "SELECT token FROM idemq.claim_job($id, lease => '1 h')");
my $dead = sql($node, "SELECT id FROM idemq.enqueue('q', '2', key => 'dead')");
sql($node, "SELECT idemq.cancel($dead), idemq.send_event('q', 'name', '1')");
sql($node, "CALL idemq.begin_step($id, $token, 'name', '1', '1 h')");

# Values by the name of an argument: what is the other's, then what lets a call come that far.
my %values = (
	id => [$id, $dead], ids => ["ARRAY[$id, $dead]"], token => [$token], tokens => ["ARRAY[$token, $token]"], depends_on => ["ARRAY[$id]", "ARRAY[$dead]"], child => [$dead], parents => ["ARRAY[$id]"],
	queue => [ "'q'", "'own'" ], queues => [ "'{q}'", "'{q,own}'" ], name => [ "'q'", "'own'", "'s'", "'name'", "'new'" ], key => [ "'k'", "'dead'" ],
	keys => ["'{k}'"], topic => [ "'t'", "'t.a'" ], pattern => ["'t.#'"], dead_letter_queue => ["'q'"], queue_id => ["idemq.queue_id('q')"],
	producer => ["'p'"], seq => ['2'], group_key => ["'g'"], payload => ["'1'"], payloads => ["'{1}'"], result => ["'1'"], state => ["'1'"],
	jobs => ["'[{\"name\": \"a\", \"queue\": \"own\", \"payload\": 1, \"depends_on\": [$id]}]'", "'[{\"name\": \"a\", \"queue\": \"q\", \"payload\": 1}]'"],
	# meant to expire
	role => ["'stranger'"], privilege => ["'enqueue'"], cron => ["'0 3 1 1 *'"], function => ["'f(jsonb)'"], timeout => ["'1 ms'"],
	call_timeout => ["'1 h'"], request => ["'1'"], scope => ["'c'"], bucket => ["'b'"], max_calls => ['1'], per => ["'1 min'"], request_id => ["'r'"],
	error => ["'e'"], sqlstate => ["'22012'"], details => ["'{}'"], time_zone => ["'UTC'"], done_until => ['now()'],
	created_by => ["'other'"], created_by_oid => ["'other'::regrole"], checkpoint => ["'1'"], shard => ['0'], shards => ['1'], on_duplicate => [ "'replace'", "'rerun'" ],
	max_running => ['1'], force => ['true'], queue_name => ["'q'"]);

# All calls of a function: what it must have, every value of each; then with each argument that it may have.
sub calls
{
	my ($name, $kind, $arguments) = @_;
	my @required = grep { !/ DEFAULT / } @$arguments;
	my @calls = ([]);
	my $text = sub { ($kind eq 'p' ? 'CALL ' : 'SELECT count(*) FROM ') . "idemq.$name(" . join(', ', @_) . ')' };

	foreach my $argument (@required)
	{
		my ($its, $type) = $argument =~ /^(?:IN )?(\S+) (.*)/;
		my $given = $values{$its} // ["NULL::$type"];

		@calls = map { my $call = $_; map { [ @$call, "$its => $_" ] } @$given } @calls;
	}
	my @all = map { $text->(@$_) } @calls;
	foreach my $argument (grep { / DEFAULT / && !/^INOUT / } @$arguments)
	{
		my ($its) = $argument =~ /^(?:IN )?(\S+)/;

		push @all, map { my $call = $_; map { $text->(@$call, "$its => $_") } @{ $values{$its} // [] } } @calls;
	}
	return @all;
}

my @functions = map { [ split /\|/, $_, 3 ] } split /\n/, sql($node, "SELECT proname, prokind, pg_get_function_arguments(oid) FROM pg_proc
	WHERE pronamespace = 'idemq'::regnamespace AND prokind <> 'a' AND prorettype <> 'trigger'::regtype AND has_function_privilege('stranger', oid, 'EXECUTE') ORDER BY 1");
my (@calls, @procedures);
foreach my $function (@functions)
{
	my @arguments = grep { length && !/^OUT / } split /, (?=\w+ \w)/, $function->[2] // '';

	push @{ $function->[1] eq 'p' ? \@procedures : \@calls }, calls($function->[0], $function->[1], \@arguments);
}

# ---- Another session holds it all

my $holder = session($node);
$holder->query_safe("BEGIN; SELECT idemq.unschedule('s'); SELECT idemq.grant_topic('t', 'other', 'publish'); SELECT idemq.drop_queue('q', force => true)");

# In one session: each call in a subtransaction, undone; a lock that it would wait for is 55P03.
sub states
{
	my ($role, $patience, @sql) = @_;
	my $list = join ', ', map { '$call$' . $_ . '$call$' } @sql;

	return map { [ split /\|/, $_, 2 ] } split /\n/, sql($node, "SET client_min_messages = error; SET ROLE $role; SET lock_timeout = '$patience';
		CREATE TEMP TABLE answers (ord int GENERATED ALWAYS AS IDENTITY, state text, call text);
		DO \$do\$
		DECLARE
			call text;
			state text;
		BEGIN
			FOREACH call IN ARRAY ARRAY[$list]
			LOOP
				state := '00000';
				BEGIN
					EXECUTE call;
					RAISE SQLSTATE 'UNDO1';
				EXCEPTION WHEN SQLSTATE 'UNDO1' THEN NULL;
				WHEN OTHERS THEN
					state := SQLSTATE;
				END;
				INSERT INTO answers (state, call) VALUES (state, call);
			END LOOP;
		END \$do\$;
		SELECT state, call FROM answers ORDER BY ord");
}

# Would it be seen?  A role that may do it waits, for each kind of thing.
my @held = ("SELECT idemq.commit($id, $token)", "SELECT idemq.retry($dead)", "SELECT idemq.enqueue('q', '1')", "SELECT idemq.unschedule('s')",
	"SELECT idemq.enqueue('own', '1', depends_on => ARRAY[$id])", "SELECT idemq.alter_queue('own', dead_letter_queue => 'q')");
# meant to expire
is(join("\n", map { "$_->[0] $_->[1]" } grep { $_->[0] ne '55P03' } states('postgres', '10 ms', @held)), '', 'it is all held');

# A name that is taken is known to be: whoever may create queues waits for it.
@calls = grep { !/create_queue\(name => 'q'/ } @calls;
my @answers = states('stranger', '1 min', @calls);
is(scalar @answers, scalar @calls, 'every call was made');
is(join("\n", map { $_->[1] } grep { $_->[0] eq '55P03' } @answers), '', 'and none has waited');
my %reached = map { $_->[1] =~ /idemq\.(\w+)/; ("$1 $_->[0]" => 1) } @answers;
ok($reached{$_}, "reached: $_") foreach ('enqueue IQ002', 'enqueue_graph IQ002', 'enqueue 42501', 'commit IQ002', 'cancel 00000', 'alter_queue 42501',
	'bind_topic 42501', 'publish 42501', 'claim 42501', 'acquire 42501', 'create_queue 42501', 'checkpoint IQ002', 'unschedule 00000', 'schedule 42501', 'send_event 42501');
cmp_ok(scalar @calls, '>', 300, 'many of them');

# Procedures end transactions: one by one.
foreach my $call (@procedures)
{
	my ($status, $stdout, $stderr) = $node->psql('postgres', "SET ROLE stranger; SET lock_timeout = '1 min'; $call", extra_params => [ '-v', 'VERBOSITY=sqlstate' ]);

	isnt($stderr =~ /(\w{5})\s*\z/ ? $1 : '', '55P03', $call);
}
$holder->query_safe('ROLLBACK');
leave($holder);
$node->stop;
done_testing();
