# To a new server by logical replication, while workers run, and cut-over.  From the same version,
# or, with IDEMQ_OLD_INSTALL naming the directory above bin/ of an older PostgreSQL with idemq in
# it, from that one to this.  script/release/check-versions does so from 15 to each later one.
# (What holds while a database follows, and at the switch: subscription.pl.)
# slow: waits for logical replication several times; subscription.pl covers the steps
# at least 33 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use EveryState;
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $install = $ENV{IDEMQ_OLD_INSTALL};
my $blue = PostgreSQL::Test::Cluster->new('blue', $install ? (install_path => $install) : ());
my $green = new_node('green', 'idemq.worker' => 'on');

# Not allows_streaming: 18's library then writes a setting that older servers do not know.
$blue->init;
$blue->append_conf('postgresql.conf', server_conf());
$blue->append_conf('postgresql.conf', "idemq.worker = 'on'\nmax_wal_senders = 10\nmax_replication_slots = 10");
$blue->start;
$green->start;
note 'from ' . sql($blue, 'SHOW server_version') . ' to ' . sql($green, 'SHOW server_version');

sub all_has_come { return $blue->wait_for_catchup('everything') }

# ---- Half of it comes with the copy of the tables, half one by one

make_every_state($blue, sub {
	# A role, a table and a view are no rows.
	my ($schema) = run_command([ $blue->config_data('--bindir') . '/pg_dump', '-h', $blue->host, '-p', $blue->port, '--schema-only', 'postgres' ]);

	sql($green, 'CREATE ROLE producer; CREATE ROLE worker; CREATE ROLE maker');
	# A newer minor version than this server's may have written it: settings and psql's commands that it does not know.
	$green->psql('postgres', join("\n", grep { !/^(?:SET|\\)/ } split /\n/, $schema), on_error_die => 1);
	sql($blue, 'CREATE PUBLICATION everything FOR ALL TABLES');
	sql($green, "CREATE SUBSCRIPTION everything CONNECTION '" . $blue->connstr . " dbname=postgres' PUBLICATION everything");
	wait_until($green, "SELECT NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's'))");
	is_sql($green, q{SELECT count(*) FROM idemq.jobs WHERE finished_at IS NOT NULL; SELECT count(*) FROM idemq.jobs WHERE payload = '"cancelled"'}, "2\n0", 'a half has come');
});
all_has_come();
is_sql($green, $everything, sql($blue, $everything), 'every row is there');
is_sql($green, "SELECT string_agg(invariant, ' ') FROM idemq.check() WHERE invariant <> 'schedules.driver'", 'follows', 'and check() says that it follows');
is_state($green, "SELECT * FROM idemq.claim('q')", '55000', 'so that nothing else writes');

# ---- Workers, whose effects go along

my $work = "BEGIN;\nWITH j AS MATERIALIZED (SELECT * FROM idemq.claim('effects', 3)),\n"
  . "d AS (SELECT j.key, j.token, idemq.try_commit(j.id, j.token) AS outcome FROM j)\n"
  . "INSERT INTO effects SELECT key, token FROM d WHERE outcome = 'committed';\nEND;\n";
my $table = 'CREATE TABLE effects (key text, token bigint)';
sql($_, $table) foreach $green, $blue;
sql($green, 'ALTER SUBSCRIPTION everything REFRESH PUBLICATION');
sql($blue, "SELECT idemq.create_queue('effects');
	SELECT count(*) FROM idemq.enqueue_many('effects', array_fill(to_jsonb('effect'::text), '{300}'), keys => (SELECT array_agg('e' || i) FROM generate_series(1, 300) i))");
is(clients($blue, $work, '-c', 4, '-t', 12)->(), '', 'workers on the old server');
my $effects = 'SELECT count(*), count(DISTINCT key) FROM effects';
is_sql($blue, $effects, '144|144', 'about half of the effects');
wait_until($green, "SELECT NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate NOT IN ('r', 's'))");
all_has_come();
is_sql($green, $effects, '144|144', 'have come');

# ---- The cut

my $token = sql($blue, 'SELECT max(token) FROM idemq.jobs');
sql($green, 'ALTER SUBSCRIPTION everything DISABLE');
# Who has not heard of it goes on there: ids and tokens that never come.
my ($lost, $lost_token) = split /\|/, sql($blue, q{SELECT e.id, c.token FROM idemq.enqueue('q', '"lost"') e, idemq.claim_job(e.id) c});
is_sql($green, 'SELECT idemq.take_over()', 't', 'the new server takes over');
$blue->stop;
sql($green, 'ALTER SUBSCRIPTION everything SET (slot_name = NONE); DROP SUBSCRIPTION everything');
goes_on($green, $token, $lost, $lost_token);
is(clients($green, $work, '-c', 4, '-t', 20)->(), '', 'workers on the new server');
is_sql($green, $effects, '300|300', 'each effect once');
is_sql($green, "SELECT min(token) > $lost_token FROM effects e WHERE token > $token", 't', 'by tokens above those of the old one');
is_sql($green, 'SELECT * FROM idemq.check()', '', 'check()');
# 55000: claims while it followed; 57P01, 55P03, 55006: of the subscription's beginning, as in subscription.pl.
is(unexpected($green, qw(42501 55000 55006 55P03 57P01)), '', 'no other error in its log');
$green->stop;
done_testing();
