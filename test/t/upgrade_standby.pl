# From 0.1.0 to this version by a standby (doc/operations/upgrade.md): the standby has the new
# library first, takes over and is updated; the old primary comes back behind it.
#
# With IDEMQ_OLD_LIBRARY naming the directory above bin/ of a PostgreSQL of this version with
# idemq 0.1.0 in it, the primary works with that until the switch, and a second standby stays with it.
# slow: three servers, and upgrade is the quick test of the same update
# at least 17 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = $ENV{IDEMQ_OLD_LIBRARY};
my @old_install = $library ? (install_path => $library) : ();
my $old = PostgreSQL::Test::Cluster->new('old', @old_install);
my $new = PostgreSQL::Test::Cluster->new('new');
my $version = "SELECT extversion FROM pg_extension WHERE extname = 'idemq'";

# ---- The primary: 0.1.0, with jobs in every state

$old->init(allows_streaming => 1);
$old->append_conf('postgresql.conf', server_conf());
$old->append_conf('postgresql.conf', "idemq.worker = 'on'");
$old->start;
sql($old, 'CREATE ROLE upgrade_producer; CREATE ROLE "Upgrade Worker"; CREATE DATABASE app');
sql($old, "CREATE EXTENSION idemq VERSION '0.1.0'", 'app');
command_ok([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-o', '/dev/null', '-d', $old->connstr('app'), '-f', "$ENV{IDEMQ_SOURCE}/test/upgrade/0.1.0.sql" ], 'rows in every state');
my $rows = q{SELECT id, queue_id, status, attempt, token, ready_at, claimed_at, deadline, finished_at, key, group_key, payload, checkpoint, result FROM idemq.jobs ORDER BY id;
	SELECT name, lease, paused FROM idemq.queues ORDER BY 1; SELECT job_id, token, outcome FROM idemq.attempts ORDER BY 1, 2;
	SELECT queue_id, role_name, privilege FROM idemq_internal.queue_grants ORDER BY 1, 2, 3};

# ---- 1. The standby gets the new library, and replays what the old one writes

$old->backup('of_old');
my @standbys = map {
	my $standby = $_ eq 'new' ? $new : PostgreSQL::Test::Cluster->new($_, @old_install);
	$standby->init_from_backup($old, 'of_old', has_streaming => 1);
	$standby->start;
	$standby;
} 'new', $library ? 'stays' : ();
is_sql($new, $version, '0.1.0', 'the standby has the old SQL objects', 'app');
is_state($new, q{SELECT * FROM idemq.metrics}, '55000', 'and the new library: they say so', 'app');
if ($library)
{
	is_sql($old, q{SELECT outcome FROM idemq.enqueue('mail', '"while it replays"', priority => 0)}, 'accepted', 'with the old library', 'app');
	is_sql($old, q{SELECT payload, attempt FROM idemq.claim('mail', lease => '1 h')}, '"while it replays"|1', 'a job is claimed', 'app');
}
my $token = sql($old, 'SELECT max(token) FROM idemq.jobs', 'app');
my $ids = sql($old, 'SELECT max(id) FROM idemq.jobs', 'app');
my $before = sql($old, $rows, 'app');

# ---- 2. The switch

# Stopped in good order it has sent all, its last checkpoint too, to who has come by then.
$old->wait_for_catchup($_) foreach @standbys;
$old->stop;
my ($control) = run_command([ 'pg_controldata', $old->data_dir ]);
my ($checkpoint) = $control =~ /^Latest checkpoint location:\s+(\S+)/m;
wait_until($new, "SELECT pg_last_wal_replay_lsn() > '$checkpoint'");
is_sql($new, $rows, $before, 'the standby has every row', 'app');
$new->promote;
is_state($new, q{SELECT * FROM idemq.claim('mail')}, '55000', 'promoted, it still says what to do', 'app');
is_sql($new, $rows, $before, 'and has changed nothing', 'app');
sql($new, 'ALTER EXTENSION idemq UPDATE', 'app');
is_sql($new, $version, sql($new, 'SHOW idemq.version'), 'updated', 'app');
is_sql($new, $rows, $before, 'every row is there', 'app');
is_sql($new, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', 'check()', 'app');
is_sql($new, q{SELECT outcome, count(*) FROM (SELECT * FROM idemq.jobs WHERE status = 'running') p, idemq.heartbeat_many(ARRAY[p.id], ARRAY[p.token]) GROUP BY 1},
	'current|' . (4 + !!$library), 'leases go on, by the tokens that workers have', 'app');
is_sql($new, q{SELECT outcome, status, result FROM idemq.enqueue('mail', '"completed"', key => 'first')}, 'duplicate|completed|{"sent": true}', 'keys have their answers', 'app');
is_sql($new, qq{SELECT min(token) > $token FROM idemq.claim('mail', 3)}, 't', 'tokens grow', 'app');
is_sql($new, qq{SELECT id > $ids FROM idemq.enqueue('mail', '"new"')}, 't', 'ids do not come again', 'app');
worker_pid($new, 'app');

# ---- 3. The old primary comes back as a standby, with the new library

# What it has on disk, under another name.
my $back = PostgreSQL::Test::Cluster->new('back');
$old->backup_fs_cold('as_it_stopped');
$back->init_from_backup($old, 'as_it_stopped');
$back->enable_streaming($new);
$back->start;
sql($new, q{SELECT idemq.enqueue('mail', '"after the switch"')}, 'app');
$new->wait_for_catchup('back');
is_sql($back, q{SELECT count(*) FROM idemq.jobs WHERE payload = '"after the switch"'}, 1, 'it follows', 'app');
is_sql($back, "SELECT count(*) > 0 FROM idemq.metrics", 't', 'and can be read', 'app');
is(unexpected($_, qw(08006 55000 57P01)), '', 'no other error in the log of ' . $_->name) foreach $new, $back;

# A standby that was left with the old library.
if ($library)
{
	my $stays = $standbys[1];

	$stays->enable_streaming($new);
	$stays->restart;
	$new->wait_for_catchup('stays');
	is_state($stays, q{SELECT * FROM idemq.metrics}, '42883', 'one that has the old library cannot call the new functions', 'app');
	$stays->stop;
}
$_->stop foreach $back, $new;
done_testing();
