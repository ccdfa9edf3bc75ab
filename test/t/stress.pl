# A randomised stress: sessions do everything at once, then all is drained.
# Every job ends completed, dead or cancelled; what is ready is claimable; the
# effect of each completed job happened once.
# takes long
# at least 17 assertions
#
# SEED=n repeats the choices of a run (not its interleaving);
# IDEMQ_STRESS=n makes it n times longer.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Stress;
use Test::More;

# In make test a failure repeats; the long forms, of other builds, draw.
my $seed = $ENV{SEED} // ($ENV{IDEMQ_STRESS} || $ENV{COPT} ? int(rand(2**31)) : 45);
my $clients = 6;
my $steps = 1200 * ($ENV{IDEMQ_STRESS} // 1);

diag "seed $seed: SEED=$seed repeats it";
srand($seed);

# meant to expire
my $node = new_server('stress', deadlock_timeout => '20ms', autovacuum_naptime => '1s',
	'idemq.max_leases' => 40 + int(rand(200)), log_statement => 'none', log_min_duration_statement => 300, log_lock_waits => 'on', max_prepared_transactions => 20);

sql($node, setup_sql($clients));

my $start = time;
my @runs = map { start_script($node, script($_, $steps)) } 0 .. $clients - 1;
is(end_script($_, 180), 0, 'a session came through') foreach @runs;
my ($unexpected, $errors) = error_states(\@runs);
note "$clients sessions, " . (time - $start) . " s, errors: $errors";
is_deeply($unexpected, [], 'no error but those that are to be expected');

# ---- Quiet: everybody is gone.

sql($node, join(';', 'SELECT 1', map { "ROLLBACK PREPARED '$_'" } split /\n/, sql($node, 'SELECT gid FROM pg_prepared_xacts')));
sql($node, 'SELECT idemq.reap()');
# Leases are meant to expire, but for those of an hour.
wait_until($node, "SELECT idemq.reap() >= 0 AND NOT EXISTS (SELECT FROM idemq_internal.leases() WHERE expires_in < '1 min')");
sql($node, 'SELECT idemq.reap()');
note sql($node, "SELECT string_agg(name || ' ' || status || ' ' || n, ', ') FROM
	(SELECT name, status, count(*) AS n FROM idemq.jobs JOIN idemq.queues USING (queue_id) GROUP BY 1, 2 ORDER BY 1, 2) x");
foreach my $queue ('q', 'r')
{
	# What comes due after this moment may be claimed or not.
	my $now = sql($node, 'SELECT clock_timestamp()');

	sql($node, "WITH c AS (SELECT * FROM idemq.claim('$queue', 1000000, lease => '1 h'))
		INSERT INTO held_0 SELECT id, token FROM c");
	is_sql($node, "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id)
		WHERE name = '$queue' AND status IN ('pending', 'retrying') AND ready_at <= '$now'
		AND coalesce(expires_at > clock_timestamp(), true)", 0, "queue $queue: all that is ready is claimed by one call");
}
is_sql($node, "SELECT count(*) FROM idemq.jobs j WHERE status = 'running'
	AND token <= (SELECT max(token) FROM idemq.attempts a WHERE a.job_id = j.id)", 0, 'the token of each is greater than those of its history');

# ---- Drained: retry what waits, commit what is held.

for (my $round = 0; $round < 50; $round++)
{
	sql($node, drain_sql());
	last if sql($node, 'SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL') eq '0';
}
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status NOT IN ('completed', 'dead', 'cancelled')
	OR finished_at IS NULL OR ready_at IS NOT NULL", 0, 'every job ended');
is_sql($node, "SELECT count(*) FROM (SELECT id FROM idemq.jobs j LEFT JOIN effects e ON e.job = j.id
	WHERE status = 'completed' GROUP BY id HAVING count(e.job) <> 1) x", 0, 'the effect of each completed job happened once');
is_sql($node, "SELECT count(*) FROM effects e LEFT JOIN idemq.jobs j ON j.id = e.job
	WHERE status IS DISTINCT FROM 'completed'", 0, 'no other effect happened');
is_sql($node, 'SELECT count(*) FROM idemq.jobs WHERE attempt > max_attempts', 0, 'no attempt too many');
is_sql($node, "SELECT count(*) FROM (SELECT job_id FROM idemq.attempts a JOIN idemq.jobs j ON j.id = a.job_id
	WHERE a.token > j.token) x", 0, 'no token of history is greater than the last');
is_sql($node, 'SELECT count(*) FROM idemq.claim_any(ARRAY[\'q\', \'r\'], 1000000)', 0, 'nothing is left');
cmp_ok(sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'completed'"), '>', 50, 'there was something to do');

$node->stop;
done_testing();
