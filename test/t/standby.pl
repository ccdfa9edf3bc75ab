# What a standby answers: the tables, views and functions that read say what the primary says, in
# every session, also of a change that was just replayed; what writes raises 25006; and
# CALL idemq.wait_result waits there, even for a job that has not arrived yet, and through a promotion.
# at least 65 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('primary', 'idemq.worker' => 'on', max_connections => 40);
$node->backup('base');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'base', has_streaming => 1);
$standby->start;

# ---- Reads

sql($node, "SELECT idemq.create_queue('other', max_attempts => 1, retention => '1 day');
	SELECT count(*) FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[4]));
	SELECT idemq.enqueue('q', '5', delay => '1 h'), idemq.enqueue('other', '6', key => 'six');
	SELECT idemq.fail(id, token, 'no such account') FROM idemq.claim('other');
	SELECT idemq.ensure_queue('declared', lease => '1 min'), idemq.ensure_topic('declared');
	CREATE ROLE reader; CREATE ROLE stranger; GRANT USAGE ON SCHEMA idemq TO stranger");
sql($node, "SELECT idemq.grant_queue('q', 'reader', 'enqueue')");
my ($id, $token) = split /\|/, sql($node, "SELECT id, token FROM idemq.claim('q')");
caught_up($node, $standby);
my $session = session($standby);
foreach ('SELECT id, status, attempt, token, deadline, payload, last_error FROM idemq.jobs ORDER BY id',
	'SELECT name, lease, retention, paused_until FROM idemq.queues ORDER BY 1',
	'SELECT queue, pending, running, retrying, dead, oldest_ready IS NULL FROM idemq.metrics ORDER BY 1',
	'SELECT job_id, outcome, error FROM idemq.attempts', 'SELECT count(*) FROM idemq.errors',
	'SELECT (idemq.job(id)).status FROM idemq.jobs ORDER BY id', "SELECT status FROM idemq.job_by_key('other', 'six')",
	"SELECT idemq.validate($id, $token), idemq.validate($id, $token - 1)", q[SELECT * FROM idemq.check() WHERE severity = 'error'])
{
	my $name = s/^SELECT //r;
	my $says = sql($node, $_);

	is($session->query_safe($_), $says, "as the primary: $name");
	isnt($says, '', 'which says something') unless /check/;
}
is($session->query_safe('SELECT count(*) FROM idemq.running_jobs'), 0, 'leases are in the primary\'s memory');

# What only the primary's memory knows is not made up: its leases, limits, workers.
my $ask = '; this is a standby: leases, limits and workers are known only on the primary, so call idemq.why there';
is($session->query_safe("SELECT idemq.why($id)"), "running: attempt 1 of 20 (its lease is recorded only in the row)$ask", 'why, of a running job');
like($session->query_safe("SELECT idemq.why($id + 1)"), qr/^pending: ready since \S+ \S+ and first in line\Q$ask\E$/, 'of one that is ready');
is(sql($standby, "SELECT idemq.why(id) FROM idemq.jobs WHERE status = 'dead'"), sql($node, "SELECT idemq.why(id) FROM idemq.jobs WHERE status = 'dead'"),
	'of one that is dead: as on the primary');
sql($node, "SELECT idemq.alter_queue('q', max_running => 1)");
caught_up($node, $standby);
like(sql($node, "SELECT idemq.why($id + 1)"), qr/is at max_running: 1 of 1/, 'a limit, on the primary');
like($session->query_safe("SELECT idemq.why($id + 1)"), qr/first in line\Q$ask\E$/, 'which the standby does not count');
sql($node, "SELECT idemq.alter_queue('q', max_running => 100)");
my $holder = session($node);
$holder->query_safe("BEGIN; SELECT id FROM idemq.jobs WHERE id = $id + 1 FOR UPDATE; SELECT pg_current_xact_id()");
# Known to the standby with the next record of the transactions that run.
sql($node, 'CHECKPOINT');
caught_up($node, $standby);
is_soon($standby, "SELECT idemq.why($id + 1) LIKE '%is locked by a transaction on the primary%'", 'a row that the primary holds');
$holder->query_safe('ROLLBACK');
leave($holder);

# A setting that was changed is that of a session that has read the former one.
sql($node, "SELECT idemq.pause('q')");
caught_up($node, $standby);
like($session->query_safe("SELECT idemq.why($id + 1)"), qr/paused/, 'a pause is known once it is replayed');
sql($node, "SELECT idemq.resume('q')");
caught_up($node, $standby);
unlike($session->query_safe("SELECT idemq.why($id + 1)"), qr/paused/, 'and its end');

is_state($standby, $_, '25006', "refused: $_")
  foreach ("SELECT * FROM idemq.enqueue('q', '1')", "SELECT * FROM idemq.claim('q')", "SELECT idemq.commit($id, $token)",
	"SELECT idemq.heartbeat($id, $token)", "SELECT idemq.cancel($id)", "CALL idemq.wait('q', '1 h')", "CALL idemq.wait_any('{q}', '1 h')", "CALL idemq.wait_for_room('q', 1, '1 h')",
	"SET idemq.process = 'p'; CALL idemq.wait(NULL, '1 h')", "SELECT idemq.ensure_queue('declared', lease => '2 min')", "SELECT idemq.ensure_queue('undeclared')", "SELECT idemq.ensure_topic('undeclared')");
is_sql($standby, "SELECT outcome, idemq.ensure_topic('declared') FROM idemq.ensure_queue('declared', lease => '60 s')", 'unchanged|unchanged',
	'a declaration that changes nothing works on a standby');

# ---- wait_result

is_sql($standby, "CALL idemq.wait_result($id, '0')", 'running|', 'wait_result looks');
my $waiter = waiter($standby, "CALL idemq.wait_result($id, '10 min')");
# It looks now and then.
is_soon($standby, "SELECT backend_xmin IS NULL, (SELECT string_agg(locktype, ' ') FROM pg_locks WHERE pg_locks.pid = a.pid)
	FROM pg_stat_activity a WHERE pid = $waiter->{pid}", 't|virtualxid', 'and holds nothing that replay would wait for');
sql($node, "SELECT idemq.commit($id, $token, '{\"sum\": 12}')");
is(answer($waiter), 'completed|{"sum": 12}', 'the result arrives there');
leave($waiter->{session});

# A job that has yet to arrive: replay stands still while it is enqueued.
sql($standby, 'SELECT pg_wal_replay_pause()');
wait_until($standby, 'SELECT pg_get_wal_replay_pause_state()', 'paused');
my $late = sql($node, "SELECT id FROM idemq.enqueue('other', '7')");
$waiter = waiter($standby, "CALL idemq.wait_result($late, '10 min')");
# meant to expire
is_state($standby, "CALL idemq.wait_result($late, '50 ms')", 'IQ002', 'a job that did not come in time');
my ($stdout, $stderr);
$standby->psql('postgres', "CALL idemq.wait_result($late, '0')", stdout => \$stdout, stderr => \$stderr);
like($stderr, qr/does not exist on this standby.*HINT:  The job may not have been replicated yet/s, 'where to go');
sql($standby, 'SELECT pg_wal_replay_resume()');
caught_up($node, $standby);
is_sql($standby, "CALL idemq.wait_result($late, '0')", 'pending|', 'it has arrived');
sql($node, "SELECT idemq.cancel($late)");
is(answer($waiter), 'cancelled|', 'who waited before it was there is answered');

# One that has been there, and goes.
my $gone = sql($node, "SELECT id FROM idemq.enqueue('other', '8')");
caught_up($node, $standby);
waiter($standby, "CALL idemq.wait_result($gone, '10 min')", $waiter->{session});
wait_until($standby, "SELECT count(*) = 1 FROM idemq.jobs WHERE id = $gone");
sql($node, "DELETE FROM idemq.jobs WHERE id = $gone");
is(answer($waiter), 'IQ002', 'a job that has gone is not waited for');

# As on the primary.
is_state($standby, "SET ROLE stranger; CALL idemq.wait_result($late, '0')", 'IQ002', 'not for a stranger');
is_sql($standby, "SET ROLE reader; CALL idemq.wait_result($id, '0')", 'completed|{"sum": 12}', 'a producer may');
is_state($standby, "BEGIN; CALL idemq.wait_result($id)", '2D000', 'not in a transaction');
is_state($standby, 'CALL idemq.wait_result(NULL)', '22004', 'no id');
is_state($standby, "CALL idemq.wait_result($id, NULL)", '22004', 'no timeout');
waiter($standby, "CALL idemq.wait_result($late + 1000, '10 min')", $waiter->{session});
sql($standby, "SELECT pg_cancel_backend($waiter->{pid})");
is(answer($waiter), '57014', 'it can be cancelled');

# ---- Through a promotion

my $next = sql($node, "SELECT id FROM idemq.enqueue('q', '9')");
# Groups, one with a permit that is free, and their next jobs, which wait for the rate.
my $of_groups = "FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name IN ('permits', 'ordered')";
sql($node, "SELECT idemq.create_queue('permits', group_max_running => 3, group_rate_limit => 2, group_rate_period => '100 years', lease => '1 h'),
		idemq.create_queue('ordered', group_rate_limit => 1, group_rate_period => '100 years', lease => '1 h');
	SELECT count(idemq.enqueue(q, to_jsonb(n), group_key => 'g')) FROM generate_series(1, 5) n, unnest('{permits,ordered}'::text[]) q;
	SELECT idemq.create_queue('rated', rate_limit => 2, rate_period => '100 years', lease => '1 h');
	SELECT count(idemq.enqueue('rated', '1')) FROM generate_series(1, 5)");
wait_until($node, "SELECT count(*) >= 0 FROM idemq.claim_any('{permits,ordered}', 9); SELECT count(*) = 3 $of_groups AND status = 'running'", "t\nt");
sql($node, "SELECT idemq.commit(id, token) $of_groups AND name = 'ordered' AND status = 'running'");
wait_until($node, "SELECT count(*) = 2 $of_groups AND status = 'pending' AND ready_at > now() + '1 day'");
caught_up($node, $standby);
# It has met these queues.
is_sql($standby, "SELECT count(*) FROM idemq.metrics WHERE queue IN ('permits', 'ordered')", 2, 'queues with groups');
waiter($standby, "CALL idemq.wait_result($next, '10 min')", $waiter->{session});
my $other = waiter($standby, "CALL idemq.wait_result($next + 100000, '10 min')");
$node->stop('immediate');
$standby->promote;
wait_until($standby, 'SELECT NOT pg_is_in_recovery()');
is(answer($other), 'IQ002', 'what has not arrived by the promotion does not come');
is_sql($standby, "SELECT idemq.commit(id, token, '10') FROM idemq.claim_job($next)", 'committed', 'a worker of the new primary');
is(answer($waiter), 'completed|10', 'wakes who waited on the standby that it was');
is($session->query_safe("SELECT outcome FROM idemq.enqueue('q', '10')"), 'accepted', 'a session that read there writes');

# What was started on the old primary nobody knows here: a group's rate is used up.  Of a queue that is new nothing is.
is_sql($standby, "SELECT count(*) FROM idemq.claim_any('{permits,ordered}', 9)", 0, 'no more of a group than may be started');
is_sql($standby, "SELECT count(*) FROM idemq.claim('rated', 9)", 0, 'nor of a queue with a rate');
sql($standby, "SELECT idemq.retry(id) $of_groups AND status = 'pending'");
is_sql($standby, "SELECT count(*) FROM idemq.claim_any('{permits,ordered}', 9)", 0, 'nor when they are looked at again');
sql($standby, "SELECT idemq.create_queue('since', group_max_running => 9, group_rate_limit => 2, group_rate_period => '100 years');
	SELECT count(idemq.enqueue('since', '1', group_key => 'g')) FROM generate_series(1, 5) n");
is_soon($standby, "SELECT count(*) >= 0 FROM idemq.claim('since', 9);
	SELECT count(*) FILTER (WHERE status = 'running') = 2 AND count(*) FILTER (WHERE ready_at > now() + '1 day') = 1 FROM idemq.jobs WHERE queue_id = idemq.queue_id('since')",
	"t\nt", 'of a queue that is new, as many as may be');
sql($standby, "SELECT idemq.alter_queue(q, group_rate_limit => 0) FROM unnest('{permits,ordered}'::text[]) q");
is_soon($standby, "SELECT count(*) >= 0 FROM idemq.claim_any('{permits,ordered}', 9); SELECT count(*) = 4 $of_groups AND status = 'running'", "t\nt",
	'without the rate they go on, as many as have permits');
is_sql($standby, "SELECT idemq.alter_queue('rated', rate_limit => 0); SELECT count(*) FROM idemq.claim('rated', 9)", "\n5", 'as does the queue');
leave($session, $waiter->{session}, $other->{session});
is_sql($standby, q[SELECT * FROM idemq.check() WHERE severity = 'error'], '', 'check');

$standby->stop;
done_testing();
