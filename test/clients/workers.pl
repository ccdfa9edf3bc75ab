# The workers that README.md and doc/usage show, worker.py and letters.py, as they
# stand there: killed, disconnected and failing, each confirmation is there once, and
# a letter is sent again only under the key of the first time.
# takes long
# slow: leases of 1 to 2 s pass in real time
# at least 39 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $here = "$ENV{IDEMQ_SOURCE}/test/clients";
my $node = new_server('workers', 'idemq.worker' => 'on');
my $dsn = "host=${\$node->host} port=${\$node->port} dbname=postgres user=postgres";
my $tmp = PostgreSQL::Test::Utils::tempdir();

sub start
{
	my ($program, %env) = @_;

	local @ENV{ 'PYTHONDONTWRITEBYTECODE', keys %env } = (1, values %env);
	return IPC::Run::start([ '/usr/bin/python3', "$here/$program", $dsn ], '<', \undef,
		'>', \my $stdout, '2>', \my $stderr, IPC::Run::timeout(300));
}

sql($node, q[SELECT idemq.create_queue('mail', lease => '1 h', retry_base => '10 ms', max_attempts => 2);
	CREATE TABLE confirmations (order_id int, sent_at timestamptz DEFAULT now())]);

# Jobs that were there before, and jobs that wake a worker asleep.
my $order = 'SELECT count(idemq.enqueue(\'mail\', jsonb_build_object(\'order\', n), key => \'order-\' || n))';
sql($node, "$order FROM generate_series(1, 20) n");
my @workers = map { start('worker.py') } 1 .. 2;
is_soon($node, q[SELECT completed = 20 FROM idemq.metrics WHERE queue = 'mail'], 'two workers do what was there');
sql($node, "$order FROM generate_series(21, 40) n");
is_soon($node, q[SELECT completed = 40 FROM idemq.metrics WHERE queue = 'mail'], 'and what comes later');

# An effect that fails undoes the commit, and counts as an attempt.
sql($node, q[SELECT idemq.enqueue('mail', '{"order": "none"}')]);
is_soon($node, q[SELECT dead = 1 FROM idemq.metrics WHERE queue = 'mail'], 'a job that always fails dies');
is_sql($node, q[SELECT count(*), bool_and(error LIKE 'invalid input syntax%') FROM idemq.attempts], '2|t',
	'its attempts tell why');

# The connection breaks in the middle of an effect: the worker runs the job again.
# The attached lease has ended with the session, so it may be the other worker that does it.
my $blocker = session($node);
my $inside = q[SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'INSERT INTO conf%'];
$blocker->query_safe('BEGIN; LOCK confirmations');
sql($node, "$order FROM generate_series(41, 41) n");
is_soon($node, $inside, 'a worker is in its effect');
sql($node, q[SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock']);
$blocker->query_safe('COMMIT');
is_soon($node, q[SELECT completed = 41 FROM idemq.metrics WHERE queue = 'mail'], 'it is done nevertheless');

# Both asleep, both disconnected: they come back.
sql($node, q[SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%']);
sql($node, "$order FROM generate_series(42, 42) n");
is_soon($node, q[SELECT completed = 42 FROM idemq.metrics WHERE queue = 'mail'], 'workers connect again');

# Killed in the middle of an effect.  The one that is left takes over, and so does a new one.
$blocker->query_safe('BEGIN; LOCK confirmations');
sql($node, "$order FROM generate_series(43, 43) n");
is_soon($node, $inside, 'a worker is in its effect again');
$_->kill_kill foreach @workers;
sql($node, q[SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock']);
$blocker->query_safe('COMMIT');
@workers = start('worker.py');
is_soon($node, q[SELECT completed = 43 FROM idemq.metrics WHERE queue = 'mail'], 'another worker does the job of one that was killed');
$_->kill_kill foreach @workers;

# Told to end in the middle of an effect, a worker ends after it; one that sleeps, soon.
@workers = map { start('worker.py') } 1 .. 2;
is_soon($node, q[SELECT count(*) = 2 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%'], 'two workers sleep');
$blocker->query_safe('BEGIN; LOCK confirmations');
sql($node, "$order FROM generate_series(44, 44) n");
is_soon($node, $inside, 'one is in its effect');
$_->signal('TERM') foreach @workers;
$blocker->query_safe('COMMIT');
$_->finish foreach @workers;
is(join(' ', map { $_->full_result(0) } @workers), '0 0', 'both end by themselves');
is_sql($node, q[SELECT status, attempt FROM idemq.job_by_key('mail', 'order-44')], 'completed|1', 'the job is done');

# A server that only reads, as after a failover behind one address: the worker connects until it is on one that writes.
@workers = start('worker.py');
my $asleep = q[SELECT count(*) = 1 FROM pg_stat_activity WHERE query LIKE 'CALL idemq.wait%'];
is_soon($node, $asleep, 'a worker sleeps');
my $writer = session($node);
$writer->query_safe('SET default_transaction_read_only = off');
$node->append_conf('postgresql.conf', 'default_transaction_read_only = on');
$node->reload;
is_soon($node, q[SELECT current_setting('transaction_read_only') = 'on'], 'the server only reads');
$writer->query_safe("$order FROM generate_series(45, 45) n");
is_soon($node, q[SELECT count(*) = 0 FROM pg_stat_activity WHERE query ~ 'idemq.(wait|claim)\(' AND pid <> pg_backend_pid()], 'the worker has left it');
$node->append_conf('postgresql.conf', 'default_transaction_read_only = off');
$node->reload;
is_soon($node, q[SELECT completed = 45 FROM idemq.metrics WHERE queue = 'mail'], 'it goes on where it can write');
$_->kill_kill foreach @workers;
leave($writer);
leave($blocker);

is_sql($node, 'SELECT count(*), count(DISTINCT order_id), max(order_id) FROM confirmations', '45|45|45',
	'every order is confirmed once');

# letters.py: one job, three letters.
sub letters
{
	my (%env) = @_;
	my $run = start('letters.py', LETTERS => "$tmp/letters", %env);

	$run->finish;
	return $run->full_result(0);
}

sql($node, q[SELECT idemq.create_queue('letters', retry_base => '1 ms');
	SELECT idemq.enqueue('letters', '{"to": ["anna", "ben", "carl"]}', key => 'news-1')]);
is(letters(AT => 'die ben'), 9, 'killed after the second letter');
is_sql($node, q[SELECT checkpoint->>'done', status FROM idemq.job_by_key('letters', 'news-1')], '1|running',
	'before the recovery point of that letter');
sql($node, q[SELECT idemq.fail(id, token, 'killed', retry_in => '0') FROM idemq.job_by_key('letters', 'news-1')]);
is(letters(AT => 'refuse carl'), 0, 'a letter that cannot be sent');
is_sql($node, q[SELECT checkpoint->>'done', last_error FROM idemq.job_by_key('letters', 'news-1')], '2|no way to carl',
	'fails the job and keeps the recovery point');
is_soon($node, q[SELECT ready_at <= clock_timestamp() FROM idemq.job_by_key('letters', 'news-1')], 'the retry is due');
is(letters(), 0, 'the third attempt ends it');
is_sql($node, q[SELECT status, attempt FROM idemq.job_by_key('letters', 'news-1')], 'completed|3', 'completed');
isnt(letters(), 0, 'there is no other job');

my @sent = map { [ split / / ] } split /\n/, slurp_file("$tmp/letters");
is_deeply([ map { "$_->[0] $_->[2]" } @sent ], [ 'news-1/0 anna', 'news-1/1 ben', 'news-1/1 ben', 'news-1/2 carl' ],
	'only the letter without a recovery point is sent again, under the same key');
cmp_ok($sent[2][1], '>', $sent[1][1], 'with a greater fencing token');

# Told to end in mid-job: it gives the job back, without the loss of an attempt.  An answer
# that cannot be read fails it.
sql($node, q[SELECT idemq.enqueue('letters', '{"to": ["emil", "fritz", "gerd"]}', key => 'news-2')]);
isnt(letters(AT => 'end emil'), 0, 'told to end at the first letter');
is_sql($node, q[SELECT checkpoint->>'done', status, attempt FROM idemq.job_by_key('letters', 'news-2')], '1|pending|0',
	'the job is ready at once, with its recovery point, and no attempt is lost');
is(letters(AT => 'garble gerd'), 0, 'a proxy answers for the service');
is_sql($node, q[SELECT checkpoint->>'done', status, attempt, last_error LIKE 'Expecting value%' FROM idemq.job_by_key('letters', 'news-2')],
	'2|retrying|1|t', 'fails the job');
is_soon($node, q[SELECT ready_at <= clock_timestamp() FROM idemq.job_by_key('letters', 'news-2')], 'its retry is due');
is(letters(), 0, 'the next attempt ends it');
is(join(' ', map { /^news-2\S+ \S+ (\S+)$/ ? $1 : () } split /\n/, slurp_file("$tmp/letters")), 'emil fritz gerd', 'each letter was sent once');

# Two jobs without a key: the receiver can tell their letters from each other.
sql($node, q[SELECT idemq.enqueue('letters', '{"to": ["dora"]}') FROM generate_series(1, 2)]);
is(letters(), 0, "job $_ without a key") foreach 1 .. 2;
my @keys = map { /^(\S+) \S+ dora$/ ? $1 : () } split /\n/, slurp_file("$tmp/letters");
is(join(' ', @keys), sql($node, q[SELECT string_agg(format('job-%s/0', id), ' ' ORDER BY id) FROM idemq.jobs
	WHERE queue_id = idemq.queue_id('letters') AND key IS NULL]), 'each sends its id');

is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
