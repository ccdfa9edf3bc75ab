# Many servers as one queue: a router with the map, eight shards on two servers, PL/Proxy between.
# Routing by known answers, a key once over all shards, each as itself and a stranger not at all,
# a shard that is down as a row, and one that moves to another server under traffic: each
# acknowledged job is there, its effect once, and nobody with an old map gets through.
# slow: three servers, and traffic while a shard moves
# at least 163 assertions
# takes long

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

# No idemq on the router's server: it preloads nothing.
my $router = PostgreSQL::Test::Cluster->new('router');
$router->init;
$router->append_conf('postgresql.conf', "max_connections = 60\nlog_line_prefix = '%m [%p] %e %b '");
$router->start;
if (sql($router, "SELECT count(*) FROM pg_available_extensions WHERE name = 'plproxy'") eq '0')
{
	$router->stop;
	plan skip_all => 'no plproxy';
}

my %settings = ('idemq.worker' => 'off', max_connections => 100, max_replication_slots => 10, max_wal_senders => 20,
	max_logical_replication_workers => 8, max_worker_processes => 16);
my @servers = map { my $node = new_node($_, %settings); $node->start; $node } 'east', 'west';
my ($east, $west) = @servers;
my $psql = sub { my ($node, $db) = @_; return 'host=' . $node->host . ' port=' . $node->port . " dbname=$db" };

sub rt { return sql($router, $_[0], 'router') }
sub is_rt { local $Test::Builder::Level = $Test::Builder::Level + 1; return is(rt($_[0]), $_[1], $_[2]) }
sub is_rt_state { local $Test::Builder::Level = $Test::Builder::Level + 1; return is_state($router, $_[0], $_[1], $_[2], 'router') }

# What an error says, all of it.
sub says
{
	my ($sql) = @_;
	my ($stdout, $stderr) = ('', '');

	$router->psql('router', $sql, stdout => \$stdout, stderr => \$stderr, on_error_stop => 0, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return $stderr;
}

# ---- The map

sql($router, 'CREATE DATABASE router');
rt('CREATE EXTENSION idemq_cluster CASCADE');
is_rt_state('SELECT cluster.shard_of_key($$a$$)', '55000', 'before init there are no shards');
is_rt_state("SELECT cluster.init($_)", '22023', "init($_)") foreach 'NULL', 0, 3, 128;
rt('SELECT cluster.init(8)');
is_rt_state('SELECT cluster.init(16)', '55000', 'their number is for ever');
rt('SELECT cluster.init(8)');
rt('CREATE USER MAPPING FOR CURRENT_USER SERVER idemq_cluster');

foreach my $node (@servers)
{
	sql($node, 'CREATE DATABASE shard');
	sql($node, 'CREATE EXTENSION idemq', 'shard');
	sql($node, "CREATE ROLE $_ LOGIN") foreach 'app', 'viewer';
}
foreach my $shard (0 .. 7)
{
	my $node = $servers[ $shard % 2 ];

	sql($node, "CREATE DATABASE shard_$shard TEMPLATE shard");
	sql($node, "SELECT idemq.set_shard($shard, 8); CREATE TABLE effects (key text, id bigint PRIMARY KEY, token bigint); GRANT ALL ON effects TO app", "shard_$shard");
	rt("SELECT cluster.set_shard_dsn($shard, '" . $psql->($node, "shard_$shard") . "')");
}
is_rt('SELECT count(*), max(version) FROM cluster.map()', '8|8', 'the map');
is_rt_state("SELECT cluster.set_shard_dsn($_)", '22023', "set_shard_dsn($_)")
  foreach q{8, 'host=a'}, q{NULL, 'host=a'}, '1, NULL', q{1, 'host=a user=b'}, q{1, 'host=a password=b'}, q{1, 'postgresql://b@a/c'}, q{1, ''};
unlike(says(q{SELECT cluster.set_shard_dsn(1, 'host=a password=''se cret''')}), qr/se cret/, 'a password is in no log');

rt('CREATE ROLE app LOGIN; CREATE ROLE viewer LOGIN; CREATE ROLE stranger LOGIN; CREATE ROLE unmapped LOGIN');
is_rt('SELECT string_agg(is_shard::text, $$ $$ ORDER BY shard) FROM cluster.identities()', '0 1 2 3 4 5 6 7', 'each is the shard that the map names');

# ---- Routing: md5, known answers

my %known = (
	'a' => '0 0 3',
	'order-42' => '2 4 19',
	'customer-7' => '0 0 3',
	"Z\xc3\xbcrich" => '0 1 4',
	'{customer-7}order-42' => '0 0 3',
	'{}x' => '2 4 16',
	'x{a}{b}' => '0 0 3',
	'{a' => '5 11 47',
	'it\'s' => '3 7 28',
	'evt_1NG8Du2eZvKYlo2CUI79vXWy' => '6 13 55',
	"\xe6\x9d\xb1\xe4\xba\xac" => '3 7 28',
);
is_rt(q{SELECT string_agg(cluster.shard_of_key('} . ($_ =~ s/'/''/gr) . q{', n)::text, ' ' ORDER BY n) FROM unnest('{8,16,64}'::int[]) n}, $known{$_}, 'key ' . substr($_, 0, 30)) foreach sort keys %known;
is_rt(q{SELECT cluster.shard_of_key('order-42'), cluster.shard_of_key('order-42', 1), cluster.shard_of_key(NULL)}, (split / /, $known{'order-42'})[0] . '|0|', 'in this cluster');
is_rt('SELECT min(n) > 850 FROM (SELECT count(*) AS n FROM generate_series(1, 8000) i GROUP BY cluster.shard_of_key(i::text)) t', 't', 'keys are spread');

# ---- Jobs

is_rt(q{SELECT string_agg(DISTINCT coalesce(error, done::text), ' '), count(*) FROM cluster.create_queue('q', lease => '1 h', max_attempts => 3)}, 'true|8', 'create_queue on all');
like(rt(q{SELECT error FROM cluster.create_queue('q') WHERE shard = 3}), qr/^42710: queue "q" already exists.*Shard 3/, 'what each says');
my ($id, $shard) = split /\|/, rt(q{SELECT id, cluster.shard_of(id) FROM cluster.enqueue('q', '{"n": 1}', key => 'order-42')});
is($shard, (split / /, $known{'order-42'})[0], 'the id tells the key\'s shard');
is(rt(q{SELECT id, outcome FROM cluster.enqueue('q', '{"n": 1}', key => 'order-42')}), "$id|duplicate", 'a key is there once');
is_rt_state(q{SELECT cluster.enqueue('q', '{"n": 2}', key => 'order-42')}, 'IQ003', 'an error of a shard is that error');
like(says(q{SELECT cluster.enqueue('q', '{"n": 2}', key => 'order-42')}), qr/ERROR:  IQ003: (?!.*REMOTE).*DETAIL:.*\(Shard $shard\.\)/s, 'and says which');
is_rt(qq{SELECT queue, key, status, payload FROM cluster.job($id)}, 'q|order-42|pending|{"n": 1}', 'job');
is_rt(q{SELECT id FROM cluster.job_by_key('q', 'order-42')}, $id, 'job_by_key');
like(rt("SELECT cluster.why($id)"), qr/./, 'why');
is_rt("SELECT jobs, roots FROM cluster.flow($id)", "1|{$id}", 'flow');
is_rt_state("SELECT cluster.job($_->[0])", $_->[1], "job($_->[0])") foreach [ 'NULL', '22004' ], [ 8 << 47, '22023' ], [ -1, '22023' ];
is_rt("SELECT cluster.cancel($id), cluster.cancel($id), cluster.retry($id)", 'cancelled|cancelled|retrying', 'cancel, retry');
my ($outcome, $token) = split /\|/, rt(q{SELECT outcome, token FROM cluster.acquire('q', 'order-42', '{"n": 1}')});
is($outcome, 'claimed', 'acquire');
is_rt("SELECT cluster.heartbeat($id, $token), cluster.validate($id, $token)", 'current|current', 'heartbeat, validate');
rt("SELECT cluster.checkpoint($id, $token, '1')");
is_rt("SELECT cluster.try_commit($id, $token, '[1]'), cluster.try_commit($id, $token, '[1]')", 'committed|already_committed', 'try_commit');
is(rt("CALL cluster.wait_result($id)"), 'completed|[1]', 'wait_result');
is_rt_state('CALL cluster.wait_result(1)', 'IQ002', 'of no job');
my $unfinished = rt(q{SELECT id FROM cluster.enqueue('q', '2', key => 'unfinished')});
is(rt("CALL cluster.wait_result($unfinished, '10 ms')"), 'pending|', 'one that does not come');
is_rt_state("BEGIN; CALL cluster.wait_result($unfinished, '10 ms')", '2D000', 'not in a transaction block');

# Key and group.
is_rt_state(q{SELECT cluster.enqueue('q', '1', key => 'a', group_key => 'b')}, '0A000', 'a key and a group that go to shards of their own');
is_rt(q{SELECT outcome, cluster.shard_of(id) = cluster.shard_of_key('customer-7') FROM cluster.enqueue('q', '1', key => '{customer-7}a', group_key => 'customer-7')}, 'accepted|t', 'a key that begins with its group');
is_rt(q{SELECT count(DISTINCT cluster.shard_of(id)) FROM generate_series(1, 5), LATERAL (SELECT id FROM cluster.enqueue('q', to_jsonb(generate_series), group_key => 'g')) e}, 1, 'a group is on one shard');

# Many.
is_rt(q{SELECT count(*), count(DISTINCT id), count(DISTINCT cluster.shard_of(id)), count(*) FILTER (WHERE cluster.shard_of(id) <> cluster.shard_of_key('k' || ord)), count(error)
	FROM cluster.enqueue_many('q', (SELECT array_agg(to_jsonb(i)) FROM generate_series(1, 200) i), keys => (SELECT array_agg('k' || i) FROM generate_series(1, 200) i))}, '200|200|8|0|0', 'enqueue_many');
is_rt(q{SELECT payload FROM cluster.job_by_key('q', 'k77')}, '77', 'each payload with its key');
is_rt(q{SELECT count(*), count(DISTINCT cluster.shard_of(id)) FROM cluster.enqueue_many('q', '{1,2,3}')}, '3|1', 'without keys: together');
is_rt_state(q{SELECT cluster.enqueue_many('q', '{1,2,3}', keys => '{a}')}, '2202E', 'arrays of different lengths');
is_rt(q{SELECT ord, id IS NULL, substr(error, 1, 5) FROM cluster.enqueue_many('q', '{1,99,3}', keys => '{k1,k2,k3}') WHERE error IS NOT NULL}, '2|t|IQ003', 'a shard that refuses its part');

# All that enqueue and acquire take, and what the shard then knows of it.
is_rt(q{SELECT outcome FROM cluster.enqueue('q', '1', key => 'whole', delay => '1 h', priority => 3, max_attempts => 7, headers => '{"h": 1}', expires_in => '2 h',
	key_ttl => '3 h', on_duplicate => 'replace', nowait => true, kind => 'mail', max_wait => '2 h')}, 'accepted', 'enqueue with all that it takes');
is_rt(q{SELECT kind, priority, max_attempts, headers, expires_at > ready_at, rerun_at, dead_at FROM cluster.job_by_key('q', 'whole')}, 'mail|3|7|{"h": 1}|t||', 'job_by_key shows it');
is_rt(q{SELECT string_agg(kind, ' ' ORDER BY ord) FROM cluster.enqueue_many('q', '{1,2,3}', keys => '{m1,m2,m3}', kinds => '{a,NULL,c}', on_duplicate => 'replace', max_wait => '1 h') e, LATERAL cluster.job(e.id)}, 'a c', 'enqueue_many the kinds');
is_rt_state(q{SELECT cluster.enqueue_many('q', '{1,2}', kinds => '{a}')}, '2202E', 'a kind for each');
rt(q{SELECT cluster.enqueue('q', '1', key => 'letter', kind => 'letter')});
is_rt(q{SELECT outcome, kind FROM cluster.acquire('q', 'letter')}, 'claimed|letter', 'acquire tells the kind');
is_rt_state(q{SELECT cluster.acquire('q', 'letter', attach => true)}, '0A000', 'and attaches no lease');

# Parents are of the job's own shard: it goes there, or is refused with the reason.
my ($p1, $p2) = map { rt("SELECT id FROM cluster.enqueue('q', '1', key => '{order-7}$_')") } 'a', 'b';
my $stranger = rt(q{SELECT id FROM cluster.enqueue('q', '1', key => (SELECT min(i::text) FROM generate_series(1, 100) i WHERE cluster.shard_of_key(i::text) <> cluster.shard_of_key('order-7')))});
is_rt("SELECT outcome, status, cluster.shard_of(id) = cluster.shard_of($p1) FROM cluster.enqueue('q', '1', depends_on => ARRAY[$p1, $p2], on_parent_failure => 'run')", 'accepted|blocked|t', 'a job goes where its parents are');
is_rt("SELECT status FROM cluster.enqueue('q', '1', key => '{order-7}c', depends_on => ARRAY[$p1])", 'blocked', 'or its key leads there, too');
is_rt("SELECT DISTINCT status, cluster.shard_of(id) = cluster.shard_of($p1), error FROM cluster.enqueue_many('q', '{1,2}', keys => ARRAY['{order-7}d', NULL], depends_on => ARRAY[$p1])", 'blocked|t|', 'so with many');
is_rt_state("SELECT cluster.$_", '0A000', "parents on another shard: $_")
  foreach "enqueue('q', '1', depends_on => ARRAY[$p1, $stranger])", "enqueue('q', '1', key => '{order-7}e', depends_on => ARRAY[$stranger])",
  "enqueue('q', '1', group_key => 'order-7', depends_on => ARRAY[$stranger])", "enqueue_many('q', '{1}', keys => '{k1}', depends_on => ARRAY[$p1, $stranger])";
is_rt_state("SELECT cluster.enqueue('q', '1', depends_on => ARRAY[NULL]::bigint[])", '22004', 'a parent that is NULL');
like(says("SELECT cluster.enqueue('q', '1', key => '{order-7}e', depends_on => ARRAY[$stranger])"), qr/DETAIL:  The job would be on shard \d, but its parents are on \d\./, 'and says where they are');

# Many are cancelled and retried on their shards.
is_rt("SELECT shard = cluster.shard_of(id), outcome, error FROM cluster.cancel_many(ARRAY[$stranger, $p1, $p1]) ORDER BY id = $p1", "t|cancelled|\nt|cancelled|", 'cancel_many');
is_rt("SELECT count(*), count(error) FROM cluster.retry_many(ARRAY[$stranger, $p1, (cluster.shard_of($p1)::bigint << 47) + 1])", '3|0', 'retry_many');
is_rt_state("SELECT cluster.cancel_many($_)", '22004', "cancel_many($_)") foreach 'NULL', 'ARRAY[NULL]::bigint[]';
is_rt(q{SELECT count(*) FROM cluster.cancel_many('{}')}, 0, 'of none');
is_rt(q{SELECT count(*), sum(cancelled), sum(locked), count(error) FROM cluster.cancel_matching('q', key_prefix => '{order-7}')}, '8|4|0|0', 'cancel_matching');
is_rt(q{SELECT DISTINCT substr(error, 1, 5) FROM cluster.cancel_matching('q')}, '22004', 'which wants to know what');

# Settings of queues: all of them.
is_rt(q{SELECT count(done) FROM cluster.create_queue('grouped', dead_letter_queue => 'q', dead_letter_cancelled => true, group_max_running => 2, group_rate_limit => 3, group_rate_period => '1 min')}, 8, 'create_queue with settings of groups');
is_sql($west, q{SELECT dead_letter_cancelled, group_max_running, group_rate_limit, group_rate_period FROM idemq.queues WHERE name = 'grouped'}, 't|2|3|00:01:00', 'which the shards have', 'shard_3');
is_rt(q{SELECT string_agg(DISTINCT coalesce(error, outcome), ' '), count(*) FROM cluster.ensure_queue('declared', max_attempts => 3)}, 'created|8', 'ensure_queue creates the queue on all shards');
is_rt(q{SELECT string_agg(DISTINCT coalesce(error, outcome), ' '), count(*) FROM cluster.ensure_queue('declared', max_attempts => 3)}, 'unchanged|8', 'a second call changes nothing');
is_rt(q{SELECT DISTINCT changes FROM cluster.ensure_queue('declared', max_attempts => 4)}, '{"max_attempts": {"to": 4, "from": 3}}', 'a call with another value returns the change');
rt(q{SELECT count(*) FROM cluster.drop_queue('declared')});
is_rt(q{SELECT count(done) FROM cluster.alter_queue('grouped', dead_letter_cancelled => false, group_max_running => 1, group_rate_limit => 0, group_rate_period => '1 s')}, 8, 'alter_queue');
is_sql($west, q{SELECT dead_letter_cancelled, group_max_running, group_rate_limit, group_rate_period FROM idemq.queues WHERE name = 'grouped'}, 'f|1||00:00:01', 'as well', 'shard_3');
is_rt(q{SELECT count(done) FROM cluster.drop_queue('grouped')}, 8, 'drop_queue');

# At once, whatever becomes of the transaction.
is_rt_state(q{BEGIN; SELECT cluster.enqueue('q', '1')}, '25001', 'no job without a key in a transaction block');
is_rt_state(q{BEGIN; SELECT cluster.enqueue_many('q', '{1,2}', keys => '{t1,NULL}')}, '25001', 'nor many');
is_rt_state(q{SELECT 1\; SELECT cluster.enqueue('q', '1')}, '25001', 'nor in a message of several statements');
is_rt_state(q{DO $$BEGIN CREATE TEMP TABLE t (); PERFORM cluster.enqueue('q', '1'); END$$}, '25001', 'nor after the transaction has written something');
is_rt(q{DO $$BEGIN PERFORM cluster.enqueue('q', '"do"'); END$$; SELECT outcome FROM cluster.enqueue('q', '1')}, 'accepted', 'but alone');
rt(q{BEGIN; SELECT cluster.enqueue('q', '1', key => 'rolled back'); ROLLBACK});
is_rt(q{SELECT outcome FROM cluster.enqueue('q', '1', key => 'rolled back')}, 'duplicate', 'with a key it is there, and again it is the same');

# ---- Rights: each comes to the shards as itself

rt('SELECT cluster.grant_use($$app$$); SELECT cluster.grant_use($$viewer$$); SELECT cluster.grant_use($$unmapped$$)');
rt("CREATE USER MAPPING FOR $_ SERVER idemq_cluster OPTIONS (user '$_')") foreach 'app', 'viewer';
is_rt(q{SELECT count(*) FILTER (WHERE done) FROM cluster.grant_queue('q', 'app', 'enqueue'); SELECT count(*) FILTER (WHERE done) FROM cluster.grant_queue('q', 'app', 'claim')}, "8\n8", 'grant_queue on all');
sub as { return "SET SESSION AUTHORIZATION $_[0]; $_[1]" }
is_rt(as('app', q{SELECT outcome FROM cluster.enqueue('q', '1', key => 'of app')}), 'accepted', 'a producer');
is_rt(as('app', 'SELECT count(*) FROM cluster.map()'), '8', 'reads the map');
is_rt(as('app', 'SELECT DISTINCT role FROM cluster.identities()'), 'app', 'comes as itself');
is_rt_state(as('app', $_), '42501', "and may not: $_") foreach 'SELECT cluster.set_shard_dsn(1, $$host=a$$)', 'SELECT cluster.init(8)', 'SELECT * FROM cluster.shards', 'SELECT cluster.grant_use($$stranger$$)', 'ALTER SERVER idemq_cluster OPTIONS (SET p0 $$host=a$$)';
like(rt(as('app', q{SELECT DISTINCT substr(error, 1, 6) FROM cluster.pause('q')})), qr/^42501:$/, 'nor administer the queue');
is_rt_state(as('viewer', q{SELECT cluster.enqueue('q', '1', key => 'x')}), '42501', 'a role without rights in the shards');
is_rt_state(as('stranger', $_), '42501', "a stranger: $_") foreach q{SELECT cluster.enqueue('q', '1', key => 'x')}, q{SELECT cluster.at_enqueue(1, 8, 'q', '1')}, 'SELECT cluster.metrics()', 'SELECT cluster.map()';
is_rt_state(as('unmapped', q{SELECT cluster.enqueue('q', '1', key => 'x')}), '42704', 'a role without a user mapping');
is_rt(as('unmapped', 'SELECT count(*), count(error), count(queue) FROM cluster.metrics()'), '8|8|0', 'in all of them');
rt('SELECT cluster.revoke_use($$unmapped$$)');
is_rt_state(as('unmapped', 'SELECT * FROM cluster.map()'), '42501', 'revoke_use');

# ---- All of them, one of them down

is_rt('SELECT count(*), count(DISTINCT shard), count(error), sum(enqueued_total) > 200 FROM cluster.metrics()', '8|8|0|t', 'metrics');
is_rt('SELECT * FROM cluster.check() WHERE invariant <> $$schedules.driver$$', '', 'check');
is_rt(q{SELECT count(*) FILTER (WHERE done) FROM cluster.pause('q', group_key => 'unpaid')}, '8', 'pause of a group');
my $unpaid = rt(q{SELECT id FROM cluster.enqueue('q', '1', group_key => 'unpaid')});
my $why = "SELECT cluster.why($unpaid) ~ 'its group in queue .q. is paused'";
is_rt("SELECT bool_or(paused) FROM cluster.metrics(); $why", "f\nt", 'pauses it, and not the queue');
is_rt(q{SELECT DISTINCT substr(error, 1, 6) FROM cluster.pause('q', group_key => NULL)}, '22023:', 'a group that is NULL is refused');
is_rt(q{SELECT count(*) FILTER (WHERE done) FROM cluster.resume('q', 'unpaid')}, '8', 'resume of a group');
is_rt("$why; SELECT cluster.cancel($unpaid)", "f\ncancelled", 'resumes it');
rt(as('app', q{SELECT cluster.acquire('q', 'of app', '1', worker => 'w')}));
is_rt('SELECT count(*) FILTER (WHERE worker = $$w$$) FROM cluster.running_jobs()', '1', 'running_jobs');
rt(q{SELECT cluster.fail(id, token, 'boom', permanent => true) FROM cluster.acquire('q', 'dies', '1')});
is_rt('SELECT jobs, pattern FROM cluster.errors()', '1|boom', 'errors');
my $session = session($router, 'router');
# PL/Proxy tells of each connection that it drops.
$session->query_safe('SET client_min_messages = error; SELECT count(*) FROM cluster.metrics()');
$west->stop('immediate');
my $down = 'SELECT string_agg(shard::text, $$ $$ ORDER BY shard) FILTER (WHERE error LIKE $$08006: could not connect to shard %.%$$), count(*) FILTER (WHERE error IS NULL) FROM cluster.metrics()';
is_rt($down, '1 3 5 7|4', 'shards that are down are rows that say so');
is($session->query_safe($down), '1 3 5 7|4', 'also where there was a connection');
my ($up_key) = grep { rt("SELECT cluster.shard_of_key('$_') % 2") eq '0' } 'a' .. 'z';
my ($down_key) = grep { rt("SELECT cluster.shard_of_key('$_') % 2") eq '1' } 'a' .. 'z';
is($session->query_safe("SELECT outcome FROM cluster.enqueue('q', '1', key => '$up_key')"), 'accepted', 'the others go on');
is_rt_state("SELECT cluster.enqueue('q', '1', key => '$down_key')", '08006', 'a key of theirs is refused');
is_rt("SELECT outcome, substr(error, 1, 6) FROM cluster.enqueue_many('q', '{1,1}', keys => '{$up_key,$down_key}') ORDER BY ord", "duplicate|\n|08006:", 'part of a batch');
$west->start;
is($session->query_safe($down), '|8', 'and come back, in the same session');
is($session->query_safe("SELECT outcome FROM cluster.enqueue('q', '1', key => '$down_key')"), 'accepted', 'for their keys');
leave($session);

# One where somebody has locked a table, which gives up by a setting in the map.
my $locked = session($west, 'shard_3');
$locked->query_safe('BEGIN; LOCK TABLE idemq.queues IN ACCESS EXCLUSIVE MODE');
rt(q{SELECT cluster.set_shard_dsn(3, '} . $psql->($west, 'shard_3') . q{ options=''-c lock_timeout=200ms'' ')});
is_rt('SELECT shard, substr(error, 1, 6) FROM cluster.metrics() WHERE error IS NOT NULL', '3|55P03:', 'nor does one that gives up');
$locked->query_safe('ROLLBACK');
leave($locked);
rt(q{SELECT cluster.set_shard_dsn(3, '} . $psql->($west, 'shard_3') . q{')});
is_rt($down, '|8', 'until it does');

# ---- A dump of the router is a router

my $file = "$PostgreSQL::Test::Utils::tmp_check/router.dump";
my @at = ('-h', $router->host, '-p', $router->port);
command_ok([ 'pg_dump', @at, '-Fc', '-f', $file, 'router' ], 'pg_dump of the router');
sql($router, 'CREATE DATABASE copy');
command_ok([ 'pg_restore', '-e', @at, '-d', 'copy', $file ], 'pg_restore');
is(sql($router, 'TABLE cluster.shards ORDER BY 1', 'copy'), rt('TABLE cluster.shards ORDER BY 1'), 'the map is there');
is_sql($router, q{SELECT id FROM cluster.job_by_key('q', 'order-42')}, $id, 'and the way', 'copy');
is_sql($router, as('app', q{SELECT outcome FROM cluster.enqueue('q', '1', key => 'of app')}), 'duplicate', 'and the rights', 'copy');
sql($router, 'DROP DATABASE copy');

# ---- A shard moves to the other server, under traffic

my $moving = 2;
my $old = $psql->($east, "shard_$moving");
my $new = $psql->($west, 'moved');
sql($west, 'CREATE DATABASE moved');
my @move = ("$ENV{IDEMQ_SOURCE}/cluster/bin/move-shard", '--router', $psql->($router, 'router'), '--shard', $moving, '--to', $new);

# It fails, and all is as before.
sql($east, 'CREATE TABLE plain (n int)', "shard_$moving");
my ($out, $err) = run_command(\@move);
like($err, qr/tables without a primary key.*plain/, 'a table that could not be updated meanwhile is refused first');
sql($east, 'DROP TABLE plain; CREATE VIEW v AS SELECT 1 AS one', "shard_$moving");
sql($east, 'CREATE ROLE only_here; GRANT SELECT ON v TO only_here', "shard_$moving");
($out, $err) = run_command(\@move);
like($err, qr/role "only_here" does not exist.*move abandoned/s, 'a schema that cannot be copied');
is_rt("SELECT outcome FROM cluster.enqueue('q', '1', group_key => 'g')", 'accepted', 'and the old database goes on');
is_sql($east, 'SELECT count(*) FROM pg_publication', 0, 'with nothing left behind', "shard_$moving");
sql($east, 'DROP OWNED BY only_here; DROP ROLE only_here; DROP VIEW v', "shard_$moving");
sql($west, 'DROP DATABASE moved');
sql($west, 'CREATE DATABASE moved');

# An attempt that begins before, and ends after.
my $long_key = rt("SELECT 'long' || i FROM generate_series(1, 100) i WHERE cluster.shard_of_key('long' || i) = $moving LIMIT 1");
my ($long, $long_token) = split /\|/, rt("SELECT id, token FROM cluster.acquire('q', '$long_key', '1')");

# A transaction of the router that has called the old place, and will call the new one.
my $block = session($router, 'router');
$block->query_safe("SET client_min_messages = error; BEGIN; SELECT cluster.enqueue('q', '1', key => '$long_key', on_duplicate => 'ignore')");

# Producers through the router, and workers that go by the map and commit with their effect.
rt(q{UPDATE cluster.settings SET patience = '2 min'});
my $traffic = "$PostgreSQL::Test::Utils::tmp_check/traffic";
my $stop = "$traffic.stop";
my $producer = write_producer();
my @running = map {
	my ($said, $n) = ('', $_);
	{ said => \$said, run => IPC::Run::start([ 'python3', $producer, $psql->($router, 'router'), $_->[0], $_->[1], $stop ], '<', \undef, '>', "$traffic.$_->[0].$_->[1]", '2>', \$said, IPC::Run::timeout($ENV{TEST_TIMEOUT} // 400)) }
} [ 'produce', 'p1' ], [ 'produce', 'p2' ], [ 'work', 'w1' ], [ 'work', 'w2' ];
wait_until($east, 'SELECT count(*) > 30 FROM effects', 't', "shard_$moving");
($out, $err) = run_command(\@move);
like($out, qr/^shard $moving: moved to \Q$new\E; pause (\d+\.\d+) s$/, 'moved');
diag $err if $out eq '';
note $out;
my $moved_at = sql($west, 'SELECT count(*) FROM effects', 'moved');
cmp_ok($moved_at, '>', 30, 'what was there has come');
wait_until($west, "SELECT count(*) > $moved_at + 30 FROM effects", 't', 'moved');
append_to_file($stop, '');
foreach (@running)
{
	$_->{run}->finish;
	is(${ $_->{said} }, '', 'no error was told to a client');
}
is_rt("SELECT dsn, state FROM cluster.map() WHERE shard = $moving", "$new|up", 'the map');
is($block->query_safe("SELECT outcome FROM cluster.enqueue('q', '1', key => '$long_key', on_duplicate => 'ignore')"), 'duplicate', 'a transaction that began before the move finds the new place');
$block->query_safe('ROLLBACK');
leave($block);

# Every acknowledged key is there, each effect once, over all shards.
my @acknowledged = map { split /\n/, slurp_file("$traffic.produce.$_") } 'p1', 'p2';
my (%effects, $effects);
foreach my $shard (0 .. 7)
{
	my ($node, $db) = $shard == $moving ? ($west, 'moved') : ($servers[ $shard % 2 ], "shard_$shard");

	foreach (split /\n/, sql($node, "SELECT key FROM effects", $db))
	{
		$effects{$_}++;
		$effects++;
	}
}
cmp_ok(scalar(@acknowledged), '>', 200, scalar(@acknowledged) . ' keys acknowledged');
is(join(' ', grep { !$effects{$_} } @acknowledged), '', 'the effect of each is there');
is(join(' ', grep { $effects{$_} > 1 } keys %effects), '', 'once');
is_sql($east, 'SELECT count(*) FROM effects', sql($east, 'SELECT count(*) FROM effects', "shard_$moving"), 'the old database has got none since', "shard_$moving");
is_state($east, "SELECT idemq.enqueue('q', '1')", '55000', 'it refuses', "shard_$moving");
is_rt("SELECT cluster.try_commit($long, $long_token)", 'committed', 'an attempt that began before the move ends after it');
is_rt("SELECT cluster.shard_of(id) FROM cluster.enqueue('q', '1', key => '$long_key', on_duplicate => 'ignore')", $moving, 'its keys go there');
is_sql($west, q{SELECT min(id >> 47), max(id >> 47) FROM idemq.jobs}, "$moving|$moving", 'its ids are the shard\'s', 'moved');
is_sql($west, 'SELECT invariant FROM idemq.check() WHERE invariant <> $$schedules.driver$$', '', 'check', 'moved');
is_sql($west, 'SELECT count(*) FROM pg_subscription', 0, 'no subscription is left', 'moved');
is_sql($east, 'SELECT count(*) FROM pg_replication_slots', 0, 'nor a slot', "shard_$moving");

# ---- While a shard is being moved, calls wait for it; for so long

my $in4 = rt("SELECT 'four' || i FROM generate_series(1, 100) i WHERE cluster.shard_of_key('four' || i) = 4 LIMIT 1");
my $four = "SELECT outcome FROM cluster.enqueue('q', '1', key => '$in4')";
rt(q{SELECT cluster.set_shard_state(4, 'moving')});
is_rt_state(q{SELECT cluster.set_shard_state(4, 'lost')}, '23514', 'a state that there is not');
is_rt($four, 'accepted', 'until it is fenced it accepts');
sql($east, "SELECT idemq.retire('nowhere')", 'shard_4');
rt(q{UPDATE cluster.settings SET patience = '100 ms'});
is_rt_state($four, '55000', 'it is not waited for longer than that');
like(says($four), qr/shard 4 is being moved/, 'and that is what is said');
rt(q{UPDATE cluster.settings SET patience = '10 min'});
my $waiting = session($router, 'router');
my $pid = $waiting->query_safe('SET client_min_messages = error; SELECT pg_backend_pid()');
$waiting->query_until(qr/sent/, "\\echo sent\n$four;\n");
wait_until($router, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $pid");
sql($east, 'SELECT idemq.retire(NULL); SELECT idemq.take_over()', 'shard_4');
rt(q{SELECT cluster.set_shard_state(4, 'up')});
like($waiting->query_safe('SELECT 1'), qr/^duplicate/, 'who has waited is answered');
leave($waiting);

$_->stop foreach $router, @servers;
done_testing();

# A producer enqueues keys through the router and says which were acknowledged.  A worker goes by
# the map: it claims in each shard, commits with its effect there, and reads the map again when it
# is refused.
sub write_producer
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/traffic.py";

	append_to_file($file, <<'END');
import os, sys, time
import psycopg

router, what, name, stop = sys.argv[1:]
rt = psycopg.connect(router, autocommit=True)


def produce():
    n = 0
    while not os.path.exists(stop):
        n += 1
        key = f"{name}-{n}"
        rt.execute("SELECT id FROM cluster.enqueue('q', to_jsonb(%s::text), key => %s)", (key, key))
        print(key, flush=True)


# What was claimed before a move is committed after it, by the same token.
def run(shard, claimed):
    if not claimed:
        claimed += shard.execute("SELECT id, token, key FROM idemq.claim('q', 5) WHERE key LIKE 'p_-%'").fetchall()
    done = len(claimed)
    while claimed:
        id, token, key = claimed[0]
        with shard.transaction():
            shard.execute("SELECT idemq.commit(%s, %s)", (id, token))
            shard.execute("INSERT INTO effects VALUES (%s, %s, %s)", (key, id, token))
        claimed.pop(0)
    return done


def work():
    shards = {}
    claimed = {}
    idle = 0
    while idle < 2 or not os.path.exists(stop):
        done = 0
        for number, dsn in rt.execute("SELECT shard, dsn FROM cluster.map()").fetchall():
            if number not in shards or shards[number][0] != dsn:
                shards[number] = (dsn, psycopg.connect(dsn, autocommit=True))
            try:
                done += run(shards[number][1], claimed.setdefault(number, []))
            except psycopg.errors.ObjectNotInPrerequisiteState:
                done += 1
        idle = 0 if done or not os.path.exists(stop) else idle + 1
        if not done:
            time.sleep(0.01)


produce() if what == "produce" else work()
END
	return $file;
}
