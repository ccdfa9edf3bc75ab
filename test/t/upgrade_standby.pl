# From this version to the next (t/lib/NextVersion.pm) by a standby (doc/operations/upgrade.md): the standby has the new
# library first, takes over and is updated; the old primary comes back behind it.  A second standby stays with the old library.
# slow: builds the next version of idemq; four servers
# at least 37 assertions

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
install_next($tree, $install);
my $old = PostgreSQL::Test::Cluster->new('old');
my $new = PostgreSQL::Test::Cluster->new('new', install_path => $install);
my $stays = PostgreSQL::Test::Cluster->new('stays');
my $version = "SELECT extversion FROM pg_extension WHERE extname = 'idemq'";

# ---- The primary: this version, with jobs in every state

$old->init(allows_streaming => 1);
$old->append_conf('postgresql.conf', server_conf());
$old->append_conf('postgresql.conf', "idemq.worker = 'on'");
$old->start;
make_every_state($old);
my $columns = sql($old, q{SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'idemq.jobs'::regclass AND attnum > 0});
my $rows = "SELECT $columns FROM idemq.jobs ORDER BY id;" . q{SELECT name, lease, paused FROM idemq.queues ORDER BY 1; SELECT a FROM idemq.attempts a ORDER BY 1;
	SELECT queue_id, role_name, privilege FROM idemq_internal.queue_grants ORDER BY 1, 2, 3};

# ---- 1. The standby gets the new library, and replays what the old one writes

$old->backup('of_old');
foreach my $standby ($new, $stays)
{
	$standby->init_from_backup($old, 'of_old', has_streaming => 1);
	$standby->start;
}
is_sql($new, 'SHOW idemq.version', $next, 'the standby has the new library');
is_sql($new, $version, $this, 'and the old SQL objects');
my $lost = sql($old, q{SELECT id FROM idemq.enqueue('q', '"while it replays"', priority => 0)});
my $lost_token = sql($old, "SELECT token FROM idemq.claim_job($lost)");
$old->wait_for_catchup('new');
is_sql($new, qq{SELECT status, attempt FROM idemq.job_list WHERE id = $lost; SELECT count(*) > 0 FROM idemq.metrics}, "running|1\nt", 'what the old one has written can be read there');
is_state($new, q{SELECT * FROM idemq.claim('q')}, '25006', 'and it says what it is');
sql($old, "DELETE FROM idemq.jobs WHERE id = $lost");
my $token = sql($old, 'SELECT max(token) FROM idemq.jobs');
my $before = sql($old, $rows);

# ---- 2. The switch

# Stopped in good order it has sent all, its last checkpoint too, to who has come by then.
$old->wait_for_catchup($_) foreach $new, $stays;
$old->stop;
my ($control) = run_command([ 'pg_controldata', $old->data_dir ]);
my ($checkpoint) = $control =~ /^Latest checkpoint location:\s+(\S+)/m;
wait_until($new, "SELECT pg_last_wal_replay_lsn() > '$checkpoint'");
is_sql($new, $rows, $before, 'the standby has every row');
$new->promote;
is_sql($new, "$version; $rows", "$this\n$before", 'promoted, it has changed nothing');
is_sql($new, q{SELECT outcome FROM idemq.enqueue('graves', '"before ALTER EXTENSION"'); SELECT idemq.commit(id, token) FROM idemq.claim_job((SELECT max(id) FROM idemq.jobs))}, "accepted\ncommitted",
	'and works with the SQL objects that are there');
$before = sql($new, $rows);
sql($new, 'ALTER EXTENSION idemq UPDATE');
is_sql($new, $version, $next, 'updated');
is_sql($new, $rows, $before, 'every row is there');
goes_on($new, $token, $lost, $lost_token);
is_sql($new, q{SELECT outcome FROM idemq.enqueue('q', '"new"', trace => 'here')}, 'accepted', 'what is new');

# ---- 3. The old primary comes back as a standby, with the new library

# What it has on disk, under another name.
my $back = PostgreSQL::Test::Cluster->new('back', install_path => $install);
$old->backup_fs_cold('as_it_stopped');
$back->init_from_backup($old, 'as_it_stopped');
$back->enable_streaming($new);
$back->start;
sql($new, q{SELECT idemq.enqueue('q', '"after the switch"')});
$new->wait_for_catchup('back');
is_sql($back, q{SELECT count(*) FROM idemq.jobs WHERE payload = '"after the switch"'}, 1, 'it follows');
is_sql($back, "SELECT count(*) > 0 FROM idemq.metrics", 't', 'and can be read');

# A standby that was left with the old library.
$stays->enable_streaming($new);
$stays->restart;
$new->wait_for_catchup('stays');
is_state($stays, q{SELECT * FROM idemq.metrics}, '55000', 'one that has the old library refuses the new SQL objects');
is_sql($stays, q{SELECT count(*) FROM idemq.jobs WHERE payload = '"after the switch"'}, 1, 'and follows all the same');
is(unexpected($_, qw(08006 25006 42501 55000 57P01)), '', 'no other error in the log of ' . $_->name) foreach $new, $back, $stays;
$_->stop foreach $stays, $back, $new;
done_testing();
