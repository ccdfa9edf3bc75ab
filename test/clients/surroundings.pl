# What a role, a database or a pooler may set, and a worker has to live with: workers in Python, Node and idemq-work, each as
# roles with settings that have stopped one, directly and through a pooler in transaction mode.
# expects in log: 25006|57014|57P05|25P03|55P03|40001
# slow: waits for the timeouts of roles and poolers in real time
# at least 19 assertions

use strict;
use warnings FATAL => 'all';
use utf8;

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use NodeClient;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $node = new_server('surroundings', 'idemq.worker' => 'on', max_connections => 300);
my $major = sql($node, q[SELECT current_setting('server_version_num')::int / 10000]);

# What each role has set; of a worker's own sessions nothing of that may be felt.
my %settings = (
	words => {
		client_encoding => q['LATIN1'], DateStyle => q['German, DMY'], IntervalStyle => q['sql_standard'], TimeZone => q['Asia/Kathmandu'],
		bytea_output => q['escape'], extra_float_digits => '-15', $major < 19 ? (standard_conforming_strings => 'off') : ()
	},
	short => {
		idle_in_transaction_session_timeout => q['1 s'], idle_session_timeout => q['3 s'], statement_timeout => q['16 s'],
		lock_timeout => q['1 s'], $major >= 17 ? (transaction_timeout => q['60 s']) : ()
	},
	strict => { default_transaction_isolation => q['serializable'], default_transaction_deferrable => 'on', synchronous_commit => 'off' },
	strange => {
		search_path => 'strange, pg_catalog, public', plan_cache_mode => 'force_generic_plan', enable_indexscan => 'off',
		jit_above_cost => '0'
	});

my @roles = sort keys %settings;

# Each way in which a worker runs jobs has a queue of its own for each role, directly ('d') and through the pooler ('p').
my @ways = qw(run outside thread node_run node_outside work);
sql($node, q[CREATE TABLE effects (job bigint PRIMARY KEY, said text);
	GRANT INSERT ON effects TO PUBLIC;
	CREATE SCHEMA strange;
	GRANT USAGE ON SCHEMA strange TO PUBLIC;
	CREATE FUNCTION strange.pg_backend_pid() RETURNS int LANGUAGE sql AS 'SELECT 0';
	CREATE TABLE strange.queues (name text)]);
my @users;
foreach my $role (@roles)
{
	foreach my $user (map { "${_}_$role" } qw(d p))
	{
		# A pooler keeps idle sessions, and may hand out one that is just being ended: no worker's to mend.
		my @names = grep { $_ ne 'idle_session_timeout' || $user =~ /^d/ } sort keys %{ $settings{$role} };
		my $set = join '; ', map { "ALTER ROLE $user SET $_ = $settings{$role}{$_}" } @names;

		sql($node, "CREATE ROLE $user LOGIN; $set");
		sql($node, qq[SELECT idemq.create_queue('${user}_$_', retry_base => '10 ms', lease => '20 s'),
			idemq.grant_queue('${user}_$_', '$user', 'enqueue'), idemq.grant_queue('${user}_$_', '$user', 'claim')]) foreach @ways;
		push @users, $user;
	}
}
my $all = join ', ', map { my $user = $_; map { "'${user}_$_'" } @ways } @users;
my $jobs = qq[SELECT count(idemq.enqueue(q, '{"said": "1 € für ü"}')) FROM unnest(ARRAY[$all]) q];

my ($start, $dir, $port) = pooler($node, users => \@users, default_pool_size => 20, max_client_conn => 400);
my $pgbouncer = $start->();
my $packed = packed();
my $app = application('app', [], "$here/surroundings.mjs");

my (@programs, %log);
sub start
{
	my ($name, @command) = @_;

	$log{$name} = "$PostgreSQL::Test::Utils::tmp_check/surroundings.$name";
	push @programs, IPC::Run::start(\@command, '<', \undef, '>&', $log{$name});
	return;
}

sql($node, $jobs);
foreach ([ 'd', $node->host, $node->port ], [ 'p', $dir, $port ])
{
	my ($by, $host, $at) = @$_;
	my @of = grep { /^$by/ } @users;

	local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	start("$by.python", '/usr/bin/python3', "$here/surroundings.py", "host=$host port=$at dbname=postgres", @of);
	start("$by.node", 'node', "$app/surroundings.mjs", $host, $at, @of);
	start("$_.work", 'idemq-work', '-d', "host=$host port=$at dbname=postgres user=$_", '-q', "${_}_work", '--result', '--', 'sh', '-c',
		'sleep 1.5; cat') foreach @of;
}

# Some jobs were there, and some come when everybody has waited for longer than a session may be idle, or a statement last.
# A wait takes 0.8 of that: of a short time too little would be left for a busy machine.
sub all_done
{
	my ($which) = @_;

	return if eval { until_true("$which are done", sub { sql($node, q[SELECT count(*) = 0 FROM idemq.jobs WHERE status <> 'completed']) eq 't' }); 1 };
	diag sql($node, q[SELECT DISTINCT idemq.queue_name(queue_id), status, last_error FROM idemq.jobs WHERE status <> 'completed']);
	diag "$_:\n" . join "\n", grep { defined } (split /\n/, slurp_file($log{$_}))[ 0 .. 9 ] foreach sort keys %log;
	die "$which are not done";
}
all_done('jobs that were there');
Time::HiRes::sleep(18);
sql($node, $jobs);
all_done('jobs that come later');
is_sql($node, q[SELECT count(*), max(attempt), bool_and(coalesce(result->>'said', '1 € für ü') = '1 € für ü'), bool_and(coalesce(result->>'year', to_char(now(), 'YYYY')) = to_char(now(), 'YYYY'))
	FROM idemq.jobs], scalar(@users) * @ways * 2 . '|1|t|t', 'each in its first attempt, with its result');
is_sql($node, 'SELECT count(*), bool_and(said = $$1 € für ü$$) FROM effects', scalar(@users) * 3 * 2 . '|t', 'each effect is there once');
$_->signal('TERM') foreach @programs;
$_->finish foreach @programs;
foreach my $name (sort keys %log)
{
	my $said = join "\n", grep { !/^INFO|^idemq-work: .* \d+: committed$/ } split /\n/, slurp_file($log{$name});

	is($said, '', "$name: nobody complains");
}
$pgbouncer->kill_kill;

# A role that may not write: each says so, in words that name the setting, and goes on when it is mended.
my $read_only = q[ALTER DATABASE postgres SET default_transaction_read_only];
sql($node, "$read_only = on; CREATE ROLE late LOGIN");
@programs = ();
%log = ();
{
	local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
	start('python', '/usr/bin/python3', "$here/surroundings.py", "host=${\$node->host} port=${\$node->port} dbname=postgres", 'd_strict');
	start('node', 'node', "$app/surroundings.mjs", $node->host, $node->port, 'd_strict');
	start('work', 'idemq-work', '-d', "host=${\$node->host} port=${\$node->port} dbname=postgres user=d_strict", '-q', 'd_strict_work', '--', 'true');
}
my %says = (python => 'default_transaction_read_only is on', node => 'default_transaction_read_only is on', work => 'session is read-only');
foreach my $name (sort keys %log)
{
	until_true("$name says why it does not work", sub { slurp_file($log{$name}) =~ $says{$name} });
}
sql($node, "SET default_transaction_read_only = off; $read_only = off");
sql($node, qq[SELECT count(idemq.enqueue(q, '{"said": "later"}')) FROM unnest(ARRAY['d_strict_run', 'd_strict_node_run', 'd_strict_work']) q]);
all_done('jobs of workers that could not write');
$_->signal('TERM') foreach @programs;
$_->finish foreach @programs;

# Handlers that block the event loop for longer than a lease: their jobs are not done again for ever, and the log names them.
# What others do in the same loop, such as making JSON of 300 MB, may cost them another attempt.
# A result that no server takes is not sent: the attempt fails, or is committed without.
sql($node, qq[SELECT idemq.create_queue('late_$_', lease => CASE WHEN '$_' ~ 'large' THEN interval '1 h' ELSE '1 s' END, retry_base => '10 ms', retry_max => '10 ms', max_attempts => CASE WHEN '$_' ~ 'large' THEN 2 ELSE 20 END),
	idemq.grant_queue('late_$_', 'late', 'enqueue'), idemq.grant_queue('late_$_', 'late', 'claim')]) foreach qw(python node large_run large_outside);
sql($node, q[SELECT count(idemq.enqueue('late_' || q, '{}')) FROM unnest(ARRAY['python', 'python', 'node', 'node', 'large_run', 'large_outside']) q]);
@programs = ();
%log = ();
{
	local $ENV{PYTHONPATH} = "$ENV{IDEMQ_SOURCE}/clients/python";
	start('python', '/usr/bin/python3', "$here/surroundings.py", "host=${\$node->host} port=${\$node->port} dbname=postgres", 'late');
	start('node', 'node', "$app/surroundings.mjs", $node->host, $node->port, 'late');
}
until_true('what is late or large has ended', sub { sql($node, q[SELECT count(*) = 0 FROM idemq.jobs WHERE status NOT IN ('completed', 'dead')]) eq 't' });
is_sql($node, q[SELECT idemq.queue_name(queue_id), status, least(attempt, 2), result IS NULL, left(last_error, 46) FROM idemq.jobs
	WHERE queue_id IN (SELECT idemq.queue_id('late_' || q) FROM unnest(ARRAY['python', 'node', 'large_run', 'large_outside']) q) ORDER BY 1, id],
	join("\n", 'late_large_outside|completed|1|t|', 'late_large_run|dead|2|t|RangeError: the result is 314572802 characters',
		('late_node|completed|2|t|lease expired') x 2, ('late_python|completed|2|t|lease expired') x 2), 'what became of late and large ones');
foreach my $name (sort keys %log)
{
	my $ids = join '|', split /\n/, sql($node, "SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id('late_$name')");

	like(slurp_file($log{$name}), qr/\d handlers ended after their leases.*the event loop was blocked for longer than a lease.*Jobs: (?:$ids).* Claims pause for /, "$name names them");
}
like(slurp_file($log{node}), qr/late_large_outside \d+: committed without a result, because of an error: RangeError: the result is 314572802 characters/, 'node tells of a result that is too long');
$_->signal('TERM') foreach @programs;
$_->finish foreach @programs;
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
