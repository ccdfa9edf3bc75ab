# pg_upgrade: to another cluster of the same version, or, with IDEMQ_OLD_INSTALL naming the
# directory above bin/ of an older PostgreSQL with idemq in it, from that one to this.
# script/release/check-versions does so from 15 to each later one.  The new cluster has the next version of idemq
# (t/lib/NextVersion.pm): it works with the SQL objects that come along, and updates them.
# slow: builds the next version of idemq; pg_upgrade makes and starts three clusters
# at least 30 assertions

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use EveryState;
use Idemq;
use NextVersion;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my %settings = ('idemq.worker' => 'on', 'fsync' => 'off');
my $install = $ENV{IDEMQ_OLD_INSTALL};
my $old = $install ? PostgreSQL::Test::Cluster->new('old', install_path => $install) : PostgreSQL::Test::Cluster->new('old');
my $next_install = own_install();
my ($tree, $this, $next) = next_version();
build_next($tree, $next_install);
install_next($tree, $next_install);
my $new = PostgreSQL::Test::Cluster->new('new', install_path => $next_install);
my $version = "SELECT extversion FROM pg_extension WHERE extname = 'idemq'";

# From 18 on clusters have checksums by themselves; both have to agree.
$old->init(extra => ['-k']);
$old->append_conf('postgresql.conf', server_conf());
$old->append_conf('postgresql.conf', "$_ = '$settings{$_}'") foreach sort keys %settings;
$old->start;
note 'from ' . $old->safe_psql('postgres', 'SHOW server_version');
make_every_state($old);
my $before = $old->safe_psql('postgres', $everything);
my $token = $old->safe_psql('postgres', 'SELECT max(token) FROM idemq.jobs');
# Ids and tokens that only a crash or a deletion has made unknown are not given again either.
my $lost = $old->safe_psql('postgres', q{SELECT id FROM idemq.enqueue('q', '"lost"')});
my $lost_token = $old->safe_psql('postgres', "SELECT token FROM idemq.claim_job($lost)");
$old->safe_psql('postgres', "DELETE FROM idemq.jobs WHERE id = $lost");
$old->stop;

# ---- Without the preload line, pg_upgrade stops, and says it

$new->init(extra => ['-k']);
my @upgrade = ('pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir, '-b', $old->config_data('--bindir'), '-B', $new->config_data('--bindir'),
	'-s', $new->host, '-p', $old->port, '-P', $new->port);
chdir $PostgreSQL::Test::Utils::tmp_check or die;
my ($stdout) = run_command([ @upgrade, '--check' ]);
like($stdout, qr/loadable libraries that are missing|could not be loaded|required libraries/i, 'it names the libraries');
my ($list) = grep { -e } ((glob $new->data_dir . '/pg_upgrade_output.d/*/loadable_libraries.txt'), 'loadable_libraries.txt');
like(slurp_file($list), qr/^could not load library "(?:\$libdir\/)?idemq": ERROR:  idemq is not loaded/m, 'its file says why');

# ---- With it

$new->append_conf('postgresql.conf', server_conf());
$new->append_conf('postgresql.conf', "$_ = '$settings{$_}'") foreach sort keys %settings;
command_ok([ @upgrade, '--check' ], 'pg_upgrade --check');
my $upgraded = run_log(\@upgrade);
# 15.20 writes this for every database, and 18.6, which is as old as 15.18, refuses it.
if (!$upgraded && grep { slurp_file($_) =~ /unrecognized parameter "pg_attver"/ } glob $new->data_dir . '/pg_upgrade_output.d/*/log/*.log')
{
	SKIP: { skip "no newer server of the day of the older: it refuses pg_attver", 30 - Test::More->builder->current_test }
	done_testing();
	exit;
}
ok($upgraded, 'pg_upgrade');
$new->start;
note 'to ' . $new->safe_psql('postgres', 'SHOW server_version');
is_sql($new, 'SHOW idemq.version', $next, 'the new cluster has the next version');
is_sql($new, "$version; $everything", "$this\n$before", 'and the SQL objects of this one; every row is there');
goes_on($new, $token, $lost, $lost_token);
sql($new, 'ALTER EXTENSION idemq UPDATE');
is_sql($new, $version, $next, 'updated');
is_sql($new, q{SELECT idemq.create_queue('new', lease => '1 h') > 0; SELECT outcome FROM idemq.enqueue('new', '1', trace => 'here'); SELECT payload FROM idemq.claim('new');
	SELECT trace FROM idemq.jobs WHERE queue_id = idemq.queue_id('new')}, "t\naccepted\n1\nhere+",
	'what is new works');
is_sql($new, 'SELECT * FROM idemq.check()', '', 'check() after the update');
is(unexpected($new, qw(42501)), '', 'no error in the log');
$new->stop;
done_testing();
