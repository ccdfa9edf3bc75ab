# pg_upgrade: to another cluster of the same version, or, with IDEMQ_OLD_INSTALL naming the
# directory above bin/ of an older PostgreSQL with idemq in it, from that one to this.
# script/check-versions does so from 15 to each later one.

use strict;
use warnings FATAL => 'all';
use lib "$ENV{IDEMQ_SOURCE}/test/t/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my %settings = ('idemq.worker' => 'on', 'fsync' => 'off');
my $install = $ENV{IDEMQ_OLD_INSTALL};
my $old = $install ? PostgreSQL::Test::Cluster->new('old', install_path => $install) : PostgreSQL::Test::Cluster->new('old');
my $new = PostgreSQL::Test::Cluster->new('new');
my $without_driver = "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'";

# From 18 on clusters have checksums by themselves; both have to agree.
$old->init(extra => ['-k']);
$old->append_conf('postgresql.conf', server_conf());
$old->append_conf('postgresql.conf', "$_ = '$settings{$_}'") foreach sort keys %settings;
$old->start;
note 'from ' . $old->safe_psql('postgres', 'SHOW server_version');
$old->safe_psql('postgres', q{
	CREATE ROLE producer; CREATE ROLE worker; CREATE ROLE maker;
	CREATE EXTENSION idemq;
	SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 3, retry_jitter => 0), idemq.create_queue('graves'),
		idemq.create_queue('groups', lease => '1 h'), idemq.create_queue('narrow', lease => '1 h', max_running => 2, dead_queue => 'graves');
	SELECT idemq.grant_queue('q', 'producer', 'enqueue'), idemq.grant_queue('q', 'worker', 'claim');
	GRANT USAGE ON SCHEMA idemq TO maker; GRANT EXECUTE ON FUNCTION idemq.create_queue TO maker;
	-- A promotion or two in its past.
	SELECT idemq.new_generation(), idemq.new_generation();
	CREATE TABLE app (job bigint REFERENCES idemq.jobs, did idemq.outcome);
	CREATE VIEW open AS SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL});
$old->safe_psql('postgres', $_) foreach
  q{SELECT idemq.enqueue('q', '"completed"', key => 'first'); SELECT idemq.commit(id, token, '"done"') FROM idemq.claim('q')},
  q{SELECT idemq.enqueue('q', '"failed"', key => 'second'); SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.claim('q')},
  q{SELECT idemq.enqueue('q', '"processing"', priority => 0); SELECT idemq.checkpoint(id, token, '1') FROM idemq.claim('q')},
  q{SELECT idemq.enqueue('q', '"cancelled"', key => 'third'); SELECT idemq.cancel_by_key('q', 'third')},
  q{SELECT idemq.enqueue('narrow', '"dead"', max_attempts => 1); SELECT idemq.fail(id, token, 'for good') FROM idemq.claim('narrow')},
  q{SELECT idemq.enqueue('narrow', to_jsonb(n)) FROM generate_series(1, 3) n; SELECT count(*) FROM idemq.claim('narrow', 5)},
  q{SELECT idemq.enqueue('groups', to_jsonb(n), group_key => 'g') FROM generate_series(1, 3) n; SELECT count(*) FROM idemq.claim('groups', 5)},
  q{SELECT idemq.enqueue('q', '"later"', delay => '1 day'), idemq.enqueue('q', to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n)), priority => 9)},
  q{SELECT idemq.once('letters', 'sent'); CALL idemq.tick(); SELECT idemq.schedule('yearly', '0 0 1 1 *', 'q', '1')},
  q{INSERT INTO app SELECT min(id), 'committed' FROM idemq.jobs};
my $content = q{SELECT j FROM idemq.jobs j ORDER BY id; SELECT q FROM idemq.queues q ORDER BY 1; SELECT a FROM idemq.attempts a ORDER BY 1;
	SELECT queue_id, role_name, privilege FROM idemq.queue_grants ORDER BY 1, 2, 3; SELECT name, queue_id, cron, done_until, payload FROM idemq.schedule_entries;
	SELECT s FROM idemq.seen s; SELECT a FROM idemq.audit a ORDER BY id; SELECT * FROM app; SELECT * FROM open};
is($old->safe_psql('postgres', 'SELECT count(DISTINCT status) FROM idemq.jobs'), 7, 'jobs in every state');
is($old->safe_psql('postgres', $without_driver), '', 'check() before');
my $before = $old->safe_psql('postgres', $content);
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
like(slurp_file($list), qr/^could not load library "\$libdir\/idemq": ERROR:  idemq is not loaded/m, 'its file says why');

# ---- With it

$new->append_conf('postgresql.conf', server_conf());
$new->append_conf('postgresql.conf', "$_ = '$settings{$_}'") foreach sort keys %settings;
command_ok([ @upgrade, '--check' ], 'pg_upgrade --check');
command_ok(\@upgrade, 'pg_upgrade');
$new->start;
note 'to ' . $new->safe_psql('postgres', 'SHOW server_version');
is_sql($new, $content, $before, 'every row is there');
is_sql($new, $without_driver, '', 'check()');
is_sql($new, q{SELECT outcome, count(*) FROM (SELECT * FROM idemq.jobs WHERE status = 'processing') p, idemq.heartbeat_many(ARRAY[p.id], ARRAY[p.token]) GROUP BY 1},
	'current|4', 'leases go on, by the tokens that workers have');
is_sql($new, q{SELECT count(*) FROM idemq.claim_any('{groups,narrow}', 9)}, 0, 'a group\'s head is in flight, a limit is reached');
is_sql($new, q{SELECT idemq.commit(id, token) FROM idemq.jobs WHERE payload IN ('1')}, "committed\ncommitted", 'they end');
is_sql($new, q{SELECT queue, payload FROM idemq.claim_any('{groups,narrow}', 9) ORDER BY 1}, "groups|2\nnarrow|3", 'and let the next go');
is_sql($new, qq{SELECT attempt, payload, token > $token AND token > $lost_token FROM idemq.claim('q')}, '2|"failed"|t', 'tokens grow');
is_sql($new, qq{SELECT id > $lost FROM idemq.enqueue('q', '"new"')}, 't', 'ids that were given do not come again');
is_sql($new, q{SELECT outcome, status, result FROM idemq.enqueue('q', '"completed"', key => 'first')}, 'duplicate|completed|"done"', 'keys have their answers');
is_sql($new, q{SELECT idemq.redrive('narrow'), idemq.once('letters', 'sent')}, '1|f', 'redrive, once');
is_sql($new, q{SELECT payload->'payload' FROM idemq.claim('graves')}, '"dead"', 'the dead queue');
is_sql($new, q{SET ROLE worker; SELECT count(*) FROM idemq.claim('q')}, 1, 'a worker\'s grant');
is_state($new, q{SET ROLE producer; SELECT * FROM idemq.claim('q')}, '42501', 'a producer\'s is no more than that');
is_sql($new, q{SET ROLE maker; SELECT idemq.create_queue('made') > 4}, 't', 'rights on functions, numbers of queues');
is_sql($new, q{CALL idemq.tick(); SELECT next_run > now() FROM idemq.schedules}, 't', 'schedules');
worker_pid($new);
is_sql($new, 'SELECT * FROM idemq.check()', '', 'check() in the end');
is(unexpected($new, qw(42501)), '', 'no error in the log');
$new->stop;
done_testing();
