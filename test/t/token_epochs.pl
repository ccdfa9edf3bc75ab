# Tokens go on growing in a copy that begins its timelines anew: after dump and
# restore into another cluster, and after idemq.advance_tokens().
# at least 29 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $step = 2**41;
my $claim = "SELECT token FROM idemq.claim('q')";
my $bases = 'SELECT timeline, base FROM idemq_internal.clusters WHERE system_identifier = (SELECT system_identifier FROM pg_control_system()) ORDER BY 1, 2';

# A job's token, of a job of its own.
sub token
{
	my ($server) = @_;

	sql($server, "SELECT idemq.enqueue('q', '1')");
	return sql($server, $claim);
}

sub dump_to
{
	my ($from, $to) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/token_epochs.dump";

	run_command([ 'pg_dump', '-h', $from->host, '-p', $from->port, '-Fc', '-f', $file, 'postgres' ]);
	command_ok([ 'pg_restore', '-e', '-h', $to->host, '-p', $to->port, '-d', 'postgres', $file ], 'dumped and restored');
	return;
}

# ---- A timeline's row

my $node = new_server('token_epochs');
is_sql($node, 'SELECT count(*) FROM idemq_internal.clusters', 0, 'an install leaves no row, which a dump would collide with');
my $one = session($node);
sql($node, "SELECT idemq.enqueue('q', '1') FROM generate_series(1, 3)");
$one->query_safe("BEGIN; $claim");
like(token($node), qr/^\d+$/, 'a claim does not wait for the one that writes the row');
is_sql($node, $bases, '', 'which is open still');
$one->query_safe("SAVEPOINT s; $claim; ROLLBACK TO s; $claim; ROLLBACK");
is_sql($node, $bases, '', 'and rolls back');
is($one->query_safe("SELECT idemq.enqueue('q', '1')") =~ /accepted/, 1, 'a job');
like($one->query_safe($claim), qr/^\d+$/, 'the next claim');
is_sql($node, $bases, '1|0', 'writes it');
leave($one);

# ---- Promotion, dump, restore

$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('token_epochs_standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;
caught_up($node, $standby);
my $before = token($node);
$node->stop;
$standby->promote;
wait_until($standby, 'SELECT NOT pg_is_in_recovery()');
my $after = token($standby);
cmp_ok($after - $before, '>', $step, 'a promotion raises tokens');
is_sql($standby, $bases, "1|0\n2|0", 'and has a row');

my $copy = new_node('token_epochs_copy');
$copy->start;
dump_to($standby, $copy);
my $restored = token($copy);
cmp_ok($restored, '>', $after, 'a token of the copy is greater than any before it');
cmp_ok($restored - $after, '<', 2 * $step, 'by a promotion and what has passed');
is_sql($copy, $bases, '1|' . 2 * $step, 'its base is the lead of the cluster before');
is_sql($copy, 'SELECT * FROM idemq.check()', '', 'and check() finds nothing');
$standby->stop;

# The same however often it is computed; a restart and a restore into the same cluster.
$copy->restart;
my $next = token($copy);
cmp_ok($next - $restored, '<', $step / 100, 'a restart adds nothing');
is_sql($copy, 'SELECT count(*) FROM idemq_internal.clusters', 3, 'and no row');

# ---- advance_tokens

is_sql($copy, 'SELECT idemq.advance_tokens()', 3 * $step, 'a new epoch');
my $raised = token($copy);
cmp_ok($raised - $next, '>=', $step, 'raises tokens as a promotion does');
cmp_ok($raised, '<', 2**53, 'below 2^53');
is_sql($copy, $bases, '1|' . 2 * $step . "\n1|" . 3 * $step, 'and has a row of its own');
$one = session($copy);
sql($copy, "SELECT idemq.enqueue('q', '1') FROM generate_series(1, 2)");
$one->query_safe($claim);
is($one->query_safe('BEGIN; SELECT idemq.advance_tokens(); ROLLBACK'), 4 * $step, 'one that rolls back');
cmp_ok($one->query_safe($claim) - $raised, '<', $step / 100, 'raises nothing');
leave($one);

# A session that has looked up no queue since knows of it all the same.
$one = session($copy);
is($one->query_safe("SELECT FROM idemq.queue_id('q'); SELECT * FROM idemq.check()"), '', 'check() finds nothing');
sql($copy, 'SELECT idemq.advance_tokens()');
token($copy);
is($one->query_safe('SELECT * FROM idemq.check()'), '', 'nor after an epoch that another session has begun');
leave($one);

# A third cluster: the leads add up.
my $third = new_node('token_epochs_third');
$third->start;
dump_to($copy, $third);
cmp_ok(token($third), '>', $raised + $step, 'a copy of the copy goes on');
is_sql($third, 'SELECT * FROM idemq.check()', '', 'and check() finds nothing');
sql($third, "INSERT INTO idemq_internal.clusters VALUES (0, 1, 2::bigint ^ 52)");
is_state($third, 'SELECT idemq.advance_tokens()', '54000', 'there is an end to them');
is_state($third, 'CREATE ROLE r; SET ROLE r; SELECT idemq.advance_tokens()', '42501', 'they are the owner\'s');

$_->stop foreach $copy, $third;
done_testing();
