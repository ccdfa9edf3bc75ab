# Groups of which several jobs may be in processing.  Turns: every group has its next job within one round,
# however many jobs of others wait, jobs without one being one more; of groups with a job to be claimed all the time nobody gets ahead
# by more than one.  Limits: 16 workers that commit, fail, release, roll back, claim by id and are killed, a
# crash in between, while group_running is what a watcher compares each snapshot with; then every
# effect has happened once, and some groups were at their limit.  With the background worker and without.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;
use Time::HiRes qw(sleep time);

my $jobs = $ENV{IDEMQ_GROUP_JOBS} // (to_begin() ? 600 : 6000);
my $few = int($jobs / 4);

my $node = new_server('group_running', 'idemq.worker' => 'on', max_connections => 60, log_statement => 'none',
	log_min_error_statement => 'fatal');

sql($node, q{
	SELECT idemq.drop_queue('q');
	CREATE TABLE turns (n bigint GENERATED ALWAYS AS IDENTITY, name text, waiting text[]);
	-- Claims one at a time, and notes which groups had a job that could be claimed then.
	CREATE PROCEDURE take_turns(q text, turns int, ends bool) LANGUAGE plpgsql AS $$
	DECLARE
		job record;
		names text[];
	BEGIN
		FOR i IN 1 .. turns LOOP
			LOOP
				names := array(SELECT group_key FROM idemq.jobs WHERE queue_id = idemq.queue_id(q) AND status = 'pending'
					AND run_at IS NULL AND group_key IS NOT NULL);
				SELECT * INTO job FROM idemq.claim(q);
				EXIT WHEN job.id IS NOT NULL;
				COMMIT;
			END LOOP;
			INSERT INTO turns (name, waiting) VALUES (coalesce(job.group_key, ''), names);
			COMMIT;
			IF ends THEN PERFORM idemq.commit(job.id, job.token); END IF;
			COMMIT;
		END LOOP;
	END $$;
	-- Of each two groups, over each interval in which both had a job waiting: the most by which one got ahead.
	CREATE FUNCTION most_ahead(these text DEFAULT '') RETURNS int LANGUAGE sql AS $$
		WITH names AS (SELECT DISTINCT name FROM turns WHERE name ~ these),
		pairs AS (SELECT g.name AS g, h.name AS h, t.n, (t.name = g.name)::int - (t.name = h.name)::int AS step,
			t.waiting @> ARRAY[g.name, h.name] AS waits FROM names g JOIN names h ON g.name < h.name CROSS JOIN turns t),
		intervals AS (SELECT *, sum((NOT waits)::int) OVER (PARTITION BY g, h ORDER BY n) AS stretch FROM pairs),
		sums AS (SELECT g, h, stretch, n, sum(step) OVER (PARTITION BY g, h, stretch ORDER BY n) AS ahead FROM intervals WHERE waits)
		-- An interval may begin anywhere in its stretch.
		SELECT max(greatest(high, 0) - least(low, 0))::int FROM (SELECT max(ahead) AS high, min(ahead) AS low FROM sums GROUP BY g, h, stretch) x $$;
	CREATE FUNCTION fill(q text, names int, jobs int, alone text DEFAULT '') RETURNS bigint LANGUAGE sql AS $$
		SELECT count(idemq.enqueue(q, to_jsonb(n), group_key => NULLIF('g' || n % names, alone))) FROM generate_series(1, names * jobs) n $$;
});

# ---- Turns.

sub take_turns
{
	my ($queue, $turns, $ends) = @_;

	sql($node, "TRUNCATE turns RESTART IDENTITY");
	sql($node, "CALL take_turns('$queue', $turns, $ends)");
	is_sql($node, 'SELECT count(*) FROM turns', $turns, "$queue: so many claims");
}

# One with 20,000 jobs, and a hundred with ten each that came later; fewer where all is slow.
my $each = to_begin() ? 3 : 10;
my $giants = 2000 * $each;
sql($node, "SELECT idemq.create_queue('t', group_running => 5);
	SELECT count(*) FROM idemq.enqueue_many('t', array_fill('1'::jsonb, '{$giants}'), group_keys => array_fill('giant'::text, '{$giants}'));
	SELECT count(idemq.enqueue('t', '1', group_key => 'dwarf' || n % 100)) FROM generate_series(1, 100 * $each) n");
my $waiting = "SELECT count(*) = 101 FROM idemq.jobs WHERE queue_id = idemq.queue_id('t') AND status = 'pending'";
ok($node->poll_query_until('postgres', $waiting), 'the worker has promoted a job of each');
take_turns('t', 101, 'true');
is_sql($node, 'SELECT count(DISTINCT name), count(*) FROM turns', '101|101', 'all are served in the first round');
take_turns('t', 110 * $each, 'true');
is_sql($node, "SELECT most_ahead('giant|dwarf.\$') <= 1", 't', 'nobody gets ahead by more than one');
is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('t') AND group_key <> 'giant' AND status <> 'completed'", 0,
	'the small ones are done');
is_sql($node, "SELECT count(*) >= 8 FROM turns WHERE name = 'giant'", 't', 'the large one had its turns');
is_sql($node, "SELECT idemq.drop_queue('t', force => true) IS NOT NULL", 't', 'dropped');

sub turns_of
{
	my ($what, $running, $ends) = @_;

	# Jobs without a group are one more, where groups may have several at once.
	my $alone = $running > 1 ? 'g0' : '';
	my $others_waited = "SELECT sum((waiting = '{}')::int) < 250 FROM turns";

	# Once more while others mostly did not wait: a worker that has had no processor has promoted nobody.
	foreach (1 .. 5)
	{
		sql($node, "SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name = 'f';
			SELECT idemq.create_queue('f', group_running => $running); SELECT fill('f', 12, 40, '$alone')");
		take_turns('f', 300, $ends);
		last if $what !~ /with the/ || sql($node, $others_waited) eq 't';
	}
	is_sql($node, 'SELECT count(DISTINCT name) FROM turns', 12, "$what: all have turns");
	# Without the worker each claim promotes the job that it takes.
	if ($what =~ /with the/)
	{
		is_sql($node, 'SELECT most_ahead() <= 1', 't', "$what: at most one ahead");
		is_sql($node, $others_waited, 't', "$what: others mostly waited");
	}
	is_sql($node, "SELECT max(n) - min(n) <= 2 FROM (SELECT count(*) AS n FROM turns GROUP BY name) x", 't', "$what: even");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$what: check() is clean");
	sql($node, "SELECT idemq.drop_queue('f', force => true)");
}

turns_of('with the worker, 3 of a group', 3, 'true');
turns_of('with the worker, never ended', 100, 'false');
turns_of('with the worker, in order', 1, 'true');

# ---- Limits.

sql($node, q{
	CREATE TABLE done (seq bigint GENERATED ALWAYS AS IDENTITY, queue text, name text, n int);
	CREATE TABLE seen (queue text, places int, looks int);
	CREATE FUNCTION finish(q text, job bigint, job_token bigint, job_group text, job_n int, dice float8) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF dice < 0.05 THEN
			PERFORM idemq.fail(job, job_token, 'no luck', retry_in => '2 ms');
		ELSIF dice < 0.07 THEN
			PERFORM idemq.fail(job, job_token, 'no luck', retry_in => '0');
		ELSIF dice < 0.09 THEN
			PERFORM idemq.release(job, job_token);
		ELSIF dice < 0.10 THEN
			PERFORM idemq.release(job, job_token, '3 ms');
		ELSE
			PERFORM idemq.commit(job, job_token);
			INSERT INTO done (queue, name, n) VALUES (q, job_group, job_n);
		END IF;
		IF dice > 0.97 THEN RAISE EXCEPTION 'rolled back'; END IF;
	EXCEPTION WHEN SQLSTATE 'P0001' THEN
		PERFORM idemq.commit(job, job_token);
		INSERT INTO done (queue, name, n) VALUES (q, job_group, job_n);
	END $$;
	-- In one transaction.
	CREATE FUNCTION work(q text, dice float8) RETURNS bool LANGUAGE plpgsql AS $$
	DECLARE job record;
	BEGIN
		FOR job IN SELECT * FROM idemq.claim(q, 1 + (dice * 100)::int % 3, attach => true) LOOP
			PERFORM finish(q, job.id, job.token, job.group_key, (job.payload ->> 'n')::int, random());
		END LOOP;
		RETURN true;
	END $$;
	CREATE FUNCTION by_id(q text) RETURNS text LANGUAGE plpgsql AS $$
	DECLARE job record;
	BEGIN
		SELECT c.* INTO job FROM (SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id(q) AND finished_at IS NULL
			ORDER BY random() LIMIT 1) j, idemq.claim_job(j.id, attach => true) c;
		IF job.outcome IN ('claimed', 'claimed_again') THEN
			PERFORM finish(q, job.id, job.token, job.group_key, (job.payload ->> 'n')::int, random());
		END IF;
		RETURN job.outcome;
	END $$;
	-- Jobs of one group that run, or have been promoted, in one snapshot.
	CREATE FUNCTION watch(q text) RETURNS void LANGUAGE sql AS $$
		INSERT INTO seen SELECT q, coalesce(max(places), 0), 1 FROM (SELECT count(*) AS places FROM idemq.jobs
			WHERE queue_id = idemq.queue_id(q) AND group_key IS NOT NULL AND (status = 'processing' OR status = 'pending' AND run_at IS NULL)
			GROUP BY group_key) x $$;
	CREATE FUNCTION produce(q text, jobs int, groups int) RETURNS bigint LANGUAGE sql AS $$
		SELECT count(*) FROM (SELECT array_agg(jsonb_build_object('n', n)) AS payloads, array_agg('g' || n % groups) AS names,
			array_agg(CASE WHEN n % 50 = 0 THEN interval '20 ms' ELSE '0' END) AS delays FROM generate_series(1, jobs) n GROUP BY n / 1000) b,
			LATERAL idemq.enqueue_many(q, payloads, group_keys => names, delays => delays) $$;
});

sub start_workers
{
	my ($queue, $seconds) = @_;

	return clients($node, [
			[ "SELECT work('$queue', random());\n", 8 ],
			[ qq{SELECT coalesce(max(id), 0) AS id, coalesce(max(token), 0) AS token, coalesce(max(group_key), '') AS name,
	coalesce(max((payload ->> 'n')::int), 0) AS n FROM idemq.claim('$queue', attach => true) \\gset
\\if :id > 0
SELECT finish('$queue', :id, :token, :name, :n, random());
\\endif
}, 12 ],
			[ "SELECT by_id('$queue');\n", 1 ],
			[ "SELECT watch('$queue');\n", 2 ],
			[ "BEGIN;\nSELECT work('$queue', random());\nROLLBACK;\n", 1 ] ],
		'-c', 16, '-T', $seconds, '-M', 'prepared', 'killed');
}

# Works a queue until nothing is left, while backends are killed; crash: once, in the middle.
sub drain
{
	my ($queue, $limit, $crash) = @_;
	my ($start, $killed, $said) = (time, 0, '');
	my $left = "SELECT count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = '$queue' AND finished_at IS NULL";

	while (time - $start < $limit * (1 + to_begin()))
	{
		my $run = start_workers($queue, 2);

		foreach (1 .. 3)
		{
			sleep 0.4 + 2 * to_begin();
			$killed += sql($node, "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity
				WHERE query ~ 'work\\(|finish\\(|claim\\(' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) x");
		}
		$said .= $run->();
		crash($node) if $crash;
		last if !$crash && sql($node, $left) == 0;
		$crash = 0 if defined $crash;
	}
	note sprintf '%s: %.1f s, %d sessions killed', $queue, time - $start, $killed;
	cmp_ok($killed, '>', 0, "$queue: sessions were killed");
	is($crash, 0, "$queue: the server crashed") if defined $crash;
	is($said, '', "$queue: the workers say nothing but that they were ended");
	is_sql($node, $left, 0, "$queue: nothing is left");
}

sub check_limits
{
	my ($queue, $count, $running) = @_;

	is_sql($node, "SELECT count(*), count(DISTINCT n) FROM done WHERE queue = '$queue'", "$count|$count", "$queue: every effect once");
	is_sql($node, "SELECT max(places), sum(looks) > 10 FROM seen WHERE queue = '$queue'", "$running|t", "$queue: never more of a group than may be, and as many");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$queue: check() is clean");
}

sql($node, "SELECT idemq.create_queue('w', group_running => 3, lease => '10 s', retry_base => '1 ms', max_attempts => 1000);
	SELECT produce('w', $jobs, 7)");
drain('w', 200, 1);
check_limits('w', $jobs, 3);

# ---- A group at its limit is seen; the end of one wakes who waits.

sql($node, "SELECT idemq.create_queue('l', group_running => 2); SELECT fill('l', 1, 4)");
# Two at most, whatever the worker and the claim each promote.
ok($node->poll_query_until('postgres', "SELECT count(*) = 0 FROM idemq.claim('l', 10); SELECT count(*) = 2 FROM idemq.jobs WHERE queue_id = idemq.queue_id('l') AND status = 'processing'",
	"t\nt"), 'two run');
ok($node->poll_query_until('postgres', "SELECT coalesce(sum(groups_limited), 0) = 1 FROM idemq.metrics WHERE queue = 'l'"), 'a group is at its limit');
my $sleeper = sleeper($node, "CALL idemq.wait('l', '1 min')");
sql($node, "SELECT idemq.commit(id, token) FROM idemq.jobs WHERE queue_id = idemq.queue_id('l') AND status = 'processing' LIMIT 1");
is(answer($sleeper), 't', 'the end of one wakes who waits');
is_sql($node, "SELECT groups_limited FROM idemq.metrics WHERE queue = 'l'", 0, 'it is not at its limit now');
is_sql($node, "SELECT count(*) FROM idemq.claim('l', 10)", 1, 'the next one runs');

# More groups than memory has room for.
sql($node, "SELECT idemq.create_queue('m', group_running => 2);
	SELECT count(*) FROM idemq.enqueue_many('m', array_fill('1'::jsonb, '{40000}'), group_keys => (SELECT array_agg('m' || n % 20000) FROM generate_series(1, 40000) n))");
is_sql($node, "SELECT used <= size, refused > 0 FROM idemq.memory WHERE resource = 'groups'", 't|t', 'there is no room for so many groups');
ok($node->poll_query_until('postgres', "SELECT count(*) = 20000 FROM idemq.jobs WHERE queue_id = idemq.queue_id('m') AND status = 'pending'"),
	'each gets its turn all the same');
my $some = to_begin() ? 1000 : 20000;
is_sql($node, "SELECT count(*), count(DISTINCT group_key) FROM idemq.claim('m', $some)", "$some|$some", 'one of each');
ok($node->poll_query_until('postgres', "SELECT count(*) = 20000 FROM idemq.jobs WHERE queue_id = idemq.queue_id('m') AND status = 'pending'"),
	'and then the second');
sql($node, "SELECT idemq.drop_queue('m', force => true)");

# Each claim has the next job promoted, also one that searches its queue more than once: nothing ends here
# that would do so in its place.
my ($first, $second) = (session($node), session($node));
foreach my $k (1 .. 60)
{
	my $group = $k % 2 ? ", group_key => 'g'" : '';

	$first->query_safe("SELECT idemq.create_queue('s$k', group_running => 10, lease => '1 h')");
	$first->query_safe("SELECT count(idemq.enqueue('s$k', to_jsonb(n)$group)) FROM generate_series(1, 6) n; SELECT id FROM idemq.claim('s$k')");
	$second->query_safe("SELECT id FROM idemq.claim('s$k'); " x 12);
}
$_->quit foreach $first, $second;
ok($node->poll_query_until('postgres', "SELECT count(c.id) >= 0 FROM idemq.queues q, idemq.claim(q.name) c WHERE q.name ~ '^s[0-9]';
	SELECT count(*) = 360 FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name ~ '^s[0-9]' AND j.status = 'processing'", "t\nt"),
	'no group stands still while its jobs run');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# ---- Without the worker.

$node->append_conf('postgresql.conf', 'idemq.worker = off');
$node->restart;
turns_of('without the worker', 3, 'true');
sql($node, "SELECT idemq.create_queue('n', group_running => 2, lease => '10 s', retry_base => '1 ms', max_attempts => 1000);
	SELECT produce('n', $few, 5)");
drain('n', 200);
check_limits('n', $few, 2);
is(unexpected($node, qw(57P01 57P02 57P03)), '', 'no error but of those that were ended');
$node->stop;
done_testing();
