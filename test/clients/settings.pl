# Settings that change how a server prints and reads values, set for a role: the clients for Python and Node, idemq-work and the relay do
# and answer the same, whatever they are.  Timeouts, isolation levels and poolers are in surroundings.pl.
# takes long
# at least 20 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Brokers;
use Idemq;
use IPC::Run;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no node-pg' unless $ENV{IDEMQ_NODE_MODULES};

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $tmp = $PostgreSQL::Test::Utils::tmp_check;
my $node = new_server('settings', 'idemq.worker' => 'on', max_connections => 60);
my $superuser = getpwuid($>);
my $major = sql($node, q[SELECT current_setting('server_version_num')::int / 10000]);

# A role for each; that of plain has none.
my @settings = (
	[ 'plain' ],
	(map { [ "datestyle_$_", DateStyle => "'$_, DMY'" ] } qw(german sql postgres)),
	(map { [ "interval_$_", IntervalStyle => "'$_'" ] } qw(iso_8601 postgres_verbose sql_standard)),
	[ 'bytea', bytea_output => q['escape'] ],
	[ 'digits', extra_float_digits => '-15' ],
	[ 'zone', TimeZone => q['Asia/Kathmandu'] ],
	[ 'zone_half', TimeZone => q['America/St_Johns'] ],
	$major < 19 ? [ 'strings', standard_conforming_strings => 'off', backslash_quote => 'off' ] : (),
	[ 'encoding', client_encoding => q['LATIN1'] ],
	[ 'path', search_path => 'strange, pg_catalog, public' ],
	[ 'path_empty', search_path => q['']],
	[ 'locale', map { ("lc_$_" => q['C']) } qw(messages monetary numeric time) ],
	[ 'xml', xmlbinary => q['hex'], quote_all_identifiers => 'on', array_nulls => 'off' ]);
my @roles = map { $_->[0] } @settings;

# What a search_path may put before ours.
sql($node, q[CREATE SCHEMA strange; GRANT USAGE ON SCHEMA strange TO PUBLIC;
	CREATE FUNCTION strange.pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT 0';
	CREATE FUNCTION strange.unnest(anyarray) RETURNS SETOF anyelement LANGUAGE sql AS 'SELECT $1[1] WHERE false';
	CREATE FUNCTION strange.now() RETURNS timestamptz LANGUAGE sql AS $$SELECT timestamptz '-infinity'$$;
	CREATE TABLE strange.queues (name text)]);
foreach (@settings)
{
	my ($role, %set) = @$_;

	sql($node, "CREATE ROLE $role LOGIN; " . join ' ', map { "ALTER ROLE $role SET $_ = $set{$_};" } sort keys %set);
	# Lengths that a client reads, and that must not be rounded: a lease is renewed, none is meant to expire.
	sql($node, qq[SELECT idemq.create_queue('${role}_' || q, retry_base => '1 h', lease => '1 min 15 s', job_timeout => CASE WHEN q = 'run' THEN interval '75 s' END),
		idemq.grant_queue('${role}_' || q, '$role', 'enqueue'), idemq.grant_queue('${role}_' || q, '$role', 'claim'),
		idemq.grant_queue('${role}_' || q, '$role', 'admin') FROM unnest(ARRAY['node', 'step', 'run', 'graph', 'many', 'work', 'lines', 'relay']) q]);
}

# Runs a program for all roles; its lines are those of plain.
sub same
{
	my ($name, @command) = @_;
	my ($out, $err) = ('', '');

	ok(IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err, IPC::Run::timeout(900)), "$name ends well") or diag $out . $err;
	my @lines = split /\n/, $out;
	is(scalar @lines, scalar @roles, "$name has answered as each role");
	unlike($lines[0], qr/\bfalse\b[^}]*?"runAt|\[false|"left": ?false|"year": ?false/, "$name: plain is as it should be") or diag $lines[0];
	like($lines[0], qr/"text": ?"1 /, "$name: and has text");
	is($lines[$_], $lines[0], "$name: $roles[$_]") foreach 1 .. $#lines;
	return;
}

same('Node', 'node', folder('app', "$here/settings.mjs") . '/settings.mjs', $node->host, $node->port, $superuser, @roles);
sql($node, q[SELECT count(idemq.cancel(id)) FROM idemq.jobs WHERE finished_at IS NULL]);
{
	local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	same('Python', '/usr/bin/python3', "$here/settings.py", "host=${\$node->host} port=${\$node->port} dbname=postgres connect_timeout=60", $superuser, @roles);
}

# idemq-work: a program for each job, and one that stays: its deadline, a delay, a checkpoint, text.
append_to_file("$tmp/lines.pl", <<'EOP');
$| = 1;
while (<STDIN>)
{
	my ($id, $deadline) = (/"id" : "(\d+)"/, /"deadline": (\d+)/);
	my $left = $deadline - time;
	print qq({"id": "$id", "result": ) . ($left > 30 && $left <= 75 ? 'true' : $left) . "}\n" if /"kind" : "times"/;
	print qq({"id": "$id", "later": "1h", "checkpoint": "1 ), '\u20ac f\u00fcr', qq("}\n) if /"kind" : "later"/;
}
EOP
foreach my $role (@roles)
{
	my $dsn = "host=${\$node->host} port=${\$node->port} dbname=postgres user=$role connect_timeout=60";

	sql($node, qq[SELECT idemq.alter_queue('${role}_lines', job_timeout => '75 s'), idemq.enqueue('${role}_lines', '1', kind => 'times'),
		idemq.enqueue('${role}_lines', '1', kind => 'later'), idemq.enqueue('${role}_work', '"1 € für"')]);
	system_or_bail('idemq-work', '-d', $dsn, '-q', "${role}_work", '--once', '--result', '--', 'cat');
	system_or_bail('idemq-work', '-d', $dsn, '-q', "${role}_lines", '--once', '--lines', '--', 'perl', "$tmp/lines.pl");
	is_sql($node, qq[SELECT status, result, checkpoint, ready_at > now() + '50 min' FROM idemq.jobs WHERE queue_id IN (idemq.queue_id('${role}_work'), idemq.queue_id('${role}_lines')) ORDER BY id],
		qq[completed|true||\npending||"1 € für"|t\ncompleted|"1 € für"||], "idemq-work: $role");
}

# The relay, from a database whose settings are those of the role.
{
	local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	my $dsn = "host=${\$node->host} port=${\$node->port} connect_timeout=60";
	my @idemq = ('--idemq', "$dsn dbname=postgres user=$superuser");

	sql($node, 'CREATE DATABASE app');
	system_or_bail('/usr/bin/python3', '-m', 'idemq.relay', 'create', '--app', "$dsn dbname=app user=$superuser", @idemq);
	foreach my $role (@roles)
	{
		sql($node, "GRANT USAGE ON SCHEMA idemq_outbox TO $role; GRANT ALL ON idemq_outbox.jobs TO $role", 'app');
		sql($node, qq[INSERT INTO idemq_outbox.jobs (queue, payload, key, key_ttl, run_at) VALUES ('${role}_relay', '"1 € für"', 'r', '1 day -1 hour', '2050-01-02 03:04:05+00')], 'app');
		my $relay = { name => "relay $role", %{ program([ '/usr/bin/python3', '-m', 'idemq.relay', 'run', '--app', "$dsn dbname=app user=$role", @idemq ]) } };
		is_soon($node, qq[SELECT count(*) = 1 FROM idemq.jobs WHERE queue_id = idemq.queue_id('${role}_relay') AND payload = '"1 € für"'
			AND ready_at = '2050-01-02 03:04:05+00' AND key_expires_at - enqueued_at BETWEEN '22 h' AND '24 h'], "relay: $role");
		kill_9($relay);
	}
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
