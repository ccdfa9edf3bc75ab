# idemq.check() while sessions do everything at full speed: never a row.  And it
# finds a true violation among them.
# slow: sessions at full speed for at least 8 s; sql/check and breakpoints.pl plant and stop one thing at a time
# at least 13 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IPC::Run;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = 8 * ($ENV{IDEMQ_STRESS} // 1);
my $node = new_server('check', log_statement => 'none', max_connections => 40);

sql($node, q{
	SELECT idemq.create_queue('r', lease => '30 ms', retry_base => '1 ms');
	CREATE TABLE held (id bigint, token bigint);
});

# One transaction of a client; \if and random() choose what it does.
my $work = $node->basedir . '/everything.sql';
append_to_file($work, <<'EOF2');
\set p random(0, 9)
\set n random(1, 12)
\set what random(1, 12)
\set rollback random(1, 4)
\set queue random(0, 1)
BEGIN;
SELECT idemq.enqueue((ARRAY['q', 'r'])[:queue + 1], '1', priority => :p, delay => CASE WHEN :n < 3 THEN interval '2 ms' END);
SAVEPOINT s;
\if :what < 4
SELECT idemq.commit(id, token) FROM idemq.claim((ARRAY['q', 'r'])[:queue + 1], :n);
\elif :what = 4
SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.claim('q', :n);
\elif :what = 5
SELECT idemq.release(id, token) FROM idemq.claim('r', :n);
\elif :what = 6
SELECT idemq.cancel(id) FROM idemq.claim('q', 2);
\elif :what = 7
SELECT id FROM idemq.claim('r', :n, lease => '1 ms');
\elif :what = 8
SELECT idemq.heartbeat(id, token, '1 ms') FROM idemq.claim('q', :n);
\elif :what = 9
SELECT count(idemq.retry(id)) FROM (SELECT id FROM idemq.jobs WHERE status IN ('retrying', 'cancelled') LIMIT 2) x;
\elif :what = 10
SELECT idemq.claim('q', 2);
ROLLBACK TO s;
SELECT idemq.claim('q', 1);
\elif :what = 11
SELECT count(idemq.cancel(id)) FROM (SELECT id FROM idemq.jobs WHERE status = 'pending' ORDER BY random() LIMIT 1) x;
SELECT id FROM idemq.claim('q', 1, lease => '5 ms');
ROLLBACK TO s;
\else
SELECT id FROM idemq.claim_any(ARRAY['q', 'r'], :n, lease => '20 ms');
\endif
\if :rollback = 1
ROLLBACK;
\else
COMMIT;
\endif
EOF2
my $finish = $node->basedir . '/finish.sql';
append_to_file($finish, <<'EOF2');
\set n random(1, 20)
\set how random(1, 5)
BEGIN;
CREATE TEMP TABLE IF NOT EXISTS mine (id bigint, token bigint);
INSERT INTO mine SELECT id, token FROM idemq.claim('q', :n);
COMMIT;
BEGIN;
SELECT CASE WHEN :how < 4 THEN idemq.try_commit(id, token) WHEN :how = 4 THEN idemq.fail(id, token, 'x', '0') ELSE idemq.release(id, token) END FROM mine ORDER BY id;
\if :how = 2
ROLLBACK;
BEGIN;
SELECT idemq.try_commit(id, token) FROM mine ORDER BY id;
\endif
DELETE FROM mine;
COMMIT;
EOF2
my $prepared = $node->basedir . '/prepared.sql';
append_to_file($prepared, <<'EOF2');
\set n random(1, 3)
\set g random(1, 100000000)
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(token), '{}') AS tokens FROM idemq.claim('q', :n) \gset
BEGIN;
SELECT count(*) FROM idemq.fail_many(':ids', ':tokens', retry_in => '0');
SELECT idemq.commit_once(id) FROM (SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id('r') AND status = 'pending' LIMIT 1) x;
SELECT idemq.enqueue('q', '2');
PREPARE TRANSACTION 'g:client_id';
\if :n = 1
COMMIT PREPARED 'g:client_id';
\else
ROLLBACK PREPARED 'g:client_id';
\endif
EOF2

my ($checks, @found) = (0);
my $session = session($node);

# On a busy machine a few checks take longer than the clients: then there are more of both.
foreach my $round (1 .. 10)
{
	my @runs;

	foreach ([ $work, 5 ], [ $finish, 2 ], [ $prepared, 1 ])
	{
		my ($script, $clients) = @$_;
		# A file: a pipe that nobody reads would stop pgbench, with what it has locked.
		my $run = { out => "$script.$round.out" };

		$run->{h} = IPC::Run::start([ 'pgbench', '-n', '-f', $script, '-c', $clients, '-T', $seconds, '--max-tries', 100,
				'-h', $node->host, '-p', $node->port, 'postgres' ], '<', \undef, '>&', $run->{out});
		push @runs, $run;
	}

	my $end = time + $seconds;

	while (time < $end)
	{
		my $rows = $session->query_safe('SELECT * FROM idemq.check()');

		$checks++;
		push @found, $rows if $rows ne '';
	}
	foreach my $run (@runs)
	{
		$run->{h}->finish;
		my $out = slurp_file($run->{out});

		is($run->{h}->result(0), 0, 'the clients came through') or diag substr($out, 0, 2000);
		note $1 if $out =~ /(number of transactions actually processed.*)/;
	}
	last if $checks > 5;
}
note "$checks checks";
cmp_ok($checks, '>', 5, 'it checked more than a few times');
is_deeply(\@found, [], 'and found nothing') or note join("\n", @found[0 .. ($#found > 20 ? 20 : $#found)]);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'nor at rest');

# A job that a broken trigger let fall below the scan start is found, and mended by a claim that finds nothing.
sql($node, q{
	SELECT idemq.create_queue('b', lease => '1 h');
	SELECT idemq.enqueue('b', '1');
	SELECT idemq.claim('b');
	ALTER TABLE idemq.jobs DISABLE TRIGGER idemq_jobs_changed;
	INSERT INTO idemq.jobs (queue_id, enqueued_at, priority, max_attempts, status, ready_at, payload)
		SELECT queue_id, now(), 4, 3, 'pending', '2001-01-01', '"hand"' FROM idemq.queues WHERE name = 'b';
	ALTER TABLE idemq.jobs ENABLE ALWAYS TRIGGER idemq_jobs_changed;
});
is_sql($node, 'SELECT severity, invariant FROM idemq.check()', "error|scan_start.claimable\nwarning|gauges", 'a job below the scan start is found, and in no gauge');
sql($node, 'SELECT idemq.recount()');

# Sessions that die leave nothing to find.
my $dying = session($node);
my $pid = $dying->query_safe('SELECT pg_backend_pid()');
$dying->query_safe("BEGIN; SELECT count(*) FROM idemq.claim_any(ARRAY['q', 'r'], 20)");
is_sql($node, "SELECT DISTINCT state, pid = $pid FROM idemq.running_jobs WHERE pid = $pid", 'claiming|t', 'an open claim is seen');
sql($node, "SELECT pg_terminate_backend($pid, 10000)");
is_sql($node, "SELECT count(*) FROM idemq.running_jobs WHERE pid = $pid", 0, 'and gone with its session');
is_sql($node, "SELECT invariant FROM idemq.check() WHERE invariant <> 'scan_start.claimable'", '', 'nothing is left of it');

# After a restart memory is empty, and that is no violation.
crash($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'nothing after a crash');
leave($session);

# Tables that are full are said to be.
$node->append_conf('postgresql.conf', "idemq.max_leases = 10\nidemq.max_leases_per_database = 10\nidemq.reserved_leases = 0\nidemq.max_queues = 1");
$node->restart;
sql($node, "SELECT idemq.enqueue('q', '1') FROM generate_series(1, 20)");
sql($node, "SELECT count(*) FROM idemq.claim('q', 20)");
is_sql($node, 'SELECT DISTINCT severity, invariant FROM idemq.check() ORDER BY 2', "warning|leases.full\nwarning|queue_states.full", 'full tables');
is_sql($node, "SELECT count(*) FROM idemq.check() WHERE detail LIKE 'queue \"r\" has no state in shared memory%raise idemq.max_queues%'", 1, 'and which queue has no state');
$node->stop;
done_testing();
