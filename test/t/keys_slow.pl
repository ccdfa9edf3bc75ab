# Idempotency keys under load: races of fifty sessions, how soon "locked" is returned, an immediate stop in the middle
# of an insert.  The rest is in keys.pl.
# slow: it takes fifty sessions at once, and asserts how long answers take
# stops: idemq_jobs_index_insert_keyed after_confirm
# at least 35 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $node = new_server('keys', restart_after_crash => 'on', autovacuum => 'off', max_connections => 70);

sub is_sound
{
	my ($server, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sql($server, 'SELECT * FROM idemq.check()', '', "$name: idemq.check() finds nothing");
	sql($server, "CREATE EXTENSION IF NOT EXISTS amcheck");
	return is_sql($server, "SELECT count(bt_index_check(indexrelid, true)) > 0 FROM pg_index
		WHERE indrelid = 'idemq.jobs'::regclass", 't', "$name: each row has its index entries");
}

# ---- Races: 50 sessions, at each key at once

sub race
{
	my ($name, $script, $transactions) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/$name.sql";
	my $gate = session($node);

	append_to_file($file, "SELECT pg_advisory_lock_shared(1), pg_advisory_unlock_shared(1);\n\\set n :n + 1\n$script");
	$gate->query_safe('SELECT pg_advisory_lock(1)');
	my $bench = IPC::Run::start([ 'pgbench', '-n', '-p', $node->port, '-h', $node->host, '-c', 50, '-j', 2,
			'-t', $transactions, '-D', 'n=0', '-f', $file, 'postgres' ], '<', \undef, '>&', \my $out);
	wait_until($node, "SELECT count(*) = 50 FROM pg_locks WHERE NOT granted AND locktype = 'advisory'");
	leave($gate);
	return ok($bench->finish && $out !~ /ERROR/, "$name: no error") || diag $out;
}

sql($node, 'CREATE TABLE answers (race text, n int, id bigint, outcome idemq.outcome);
	CREATE TABLE effects (race text, n int)');

race('enqueue', "INSERT INTO answers SELECT 'enqueue', :n, id, outcome FROM idemq.enqueue('q', '1', key => 'e' || :n);\n", 20);
is_sql($node, "SELECT DISTINCT count(*), count(*) FILTER (WHERE outcome = 'accepted'),
	count(*) FILTER (WHERE outcome = 'duplicate'), count(DISTINCT id) FROM answers WHERE race = 'enqueue' GROUP BY n",
	'50|1|49|1', 'of 50 sessions one is accepted, 49 are duplicates with its id');
is_sql($node, "SELECT enqueued_total, duplicates_total FROM idemq.metrics", '20|980', 'and counted');

# Here some roll back: the answers with them.
race('rollbacks', "BEGIN;
INSERT INTO answers SELECT 'rollbacks', :n, id, outcome FROM idemq.enqueue('q', '1', key => 'r' || :n);
\\set back random(1, 3)
\\if :back = 1
ROLLBACK;
\\else
COMMIT;
\\endif\n", 20);
is_sql($node, "SELECT DISTINCT count(*) FILTER (WHERE outcome = 'accepted'), count(DISTINCT id),
	bool_and(EXISTS (SELECT FROM idemq.jobs j WHERE j.id = a.id AND key = 'r' || n))
	FROM answers a WHERE race = 'rollbacks' GROUP BY n", '1|1|t', 'with rollbacks: of those that committed, the same');

# 50 deliveries of each message; some consumers fail.
race('deliveries', "BEGIN;
SELECT outcome IN ('claimed', 'claimed_again') AS mine, coalesce(id, 0) AS id, coalesce(token, 0) AS token FROM idemq.acquire('q', 'd' || :n, to_jsonb(:n)) \\gset
\\if :mine
SELECT idemq.commit(:id, :token);
INSERT INTO effects VALUES ('deliveries', :n);
\\endif
\\set back random(1, 3)
\\if :back = 1
ROLLBACK;
\\else
COMMIT;
\\endif\n", 20);
is_sql($node, "SELECT n, count(*) FROM effects GROUP BY 1 HAVING count(*) > 1", '', 'deliveries: no effect twice');
is_sql($node, "SELECT count(*) FROM effects e FULL JOIN idemq.jobs j ON j.key = 'd' || n AND status = 'completed'
	WHERE j.key LIKE 'd%' AND n IS NULL OR j.key IS NULL", 0, 'an effect for each completed job, and for no other');

race('once', "INSERT INTO effects SELECT 'once', :n WHERE idemq.once('race', :n::text);\n", 20);
is_sql($node, "SELECT count(*), count(DISTINCT n) FROM effects WHERE race = 'once'", '20|20', 'once is once');

race('batches', "SELECT count(*) FROM idemq.enqueue_many('q', array_fill('1'::jsonb, ARRAY[20]),
	keys => ARRAY(SELECT 'b' || g % 15 FROM generate_series(1, 20) g ORDER BY random()));\n", 3);
is_sql($node, "SELECT count(*), count(DISTINCT key) FROM idemq.jobs WHERE key LIKE 'b%'", '15|15', 'batches in any order: no deadlock');
is_sound($node, 'after the races');

# ---- "locked" is returned at once: by three calls out of four, since any single one may wait for a processor

my $holder = session($node);
my $soon = 0.5; # seconds: a hundred times what it takes

sub is_locked_soon
{
	my ($name, @calls) = @_;
	my $asker = session($node);

	foreach my $call (@calls)
	{
		my @times = sort { $a <=> $b } map {
			my $start = time;
			my $outcome = $asker->query_safe($call =~ /commit_once/ ? "SELECT $call" : "SELECT (a).outcome FROM (SELECT $call AS a) s");
			$outcome eq 'locked' or die "$call: $outcome";
			time - $start;
		} 1 .. 20;

		cmp_ok($times[14], '<', $soon, "$name: $call is quick, fifteen times of twenty");
	}
	leave($asker);
	return;
}

$holder->query_safe("BEGIN; SELECT * FROM idemq.acquire('q', 'hot', '1')");
is_locked_soon('an open acquire', "idemq.acquire('q', 'hot', '1')", "idemq.acquire('q', 'hot')");
$holder->query_safe("ROLLBACK; BEGIN; SELECT * FROM idemq.enqueue('q', '1', key => 'hot')");
is_locked_soon('an open enqueue', "idemq.acquire('q', 'hot', '1')");
my $hot = $holder->query_safe("COMMIT; BEGIN; SELECT id FROM idemq.acquire('q', 'hot')");
is_locked_soon('an open claim', "idemq.acquire('q', 'hot')", "idemq.claim_job($hot)", "idemq.commit_once($hot)");
$holder->query_safe('ROLLBACK');
$holder->query_safe("BEGIN; SELECT idemq.commit_once($hot)");
is_locked_soon('an open commit_once', "idemq.acquire('q', 'hot')", "idemq.claim_job($hot)", "idemq.commit_once($hot)");
$holder->query_safe('ROLLBACK');
$holder->query_safe("SELECT * FROM idemq.claim_job($hot)");
$holder->query_safe("BEGIN; SELECT idemq.commit(id, token) FROM idemq.job($hot)");
is_locked_soon('an open commit', "idemq.acquire('q', 'hot')", "idemq.claim_job($hot)", "idemq.commit_once($hot)");
$holder->query_safe('COMMIT');
leave($holder);

# ---- An immediate stop in the middle of an insert: the key is free, and nothing is left that says otherwise

foreach my $place ('idemq_jobs_index_insert_keyed', 'after_confirm')
{
	my $session = session($node);
	my $at = stop_at($session->{backend}, $place);

	$session->query_until(qr/sent/, "\\echo sent\nSELECT idemq.enqueue('q', '1', key => 'killed');\n");
	$at->();
	crash($node);
	eval { $session->{run}->finish };
	is_sql($node, "SELECT count(*) FROM idemq.job_by_key('q', 'killed')", 0, "at $place: no job");
	is_sound($node, "at $place");
	is_sql($node, "SELECT a.outcome, b.outcome FROM idemq.enqueue('q', '1', key => 'killed') a, idemq.enqueue('q', '1', key => 'killed') b",
		'accepted|duplicate', "at $place: the key is free, once");
	sql($node, "DELETE FROM idemq.jobs WHERE key = 'killed'");
}
# The library as it ships, without stop points.
shipped($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');
$node->stop;
done_testing();
