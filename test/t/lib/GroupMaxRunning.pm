# Sessions that work queues with group_max_running, for group_max_running.pl and group_max_running_slow.pl.
package GroupMaxRunning;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use Test::More;

our @EXPORT = qw(running_server take_turns start_workers check_limits each_claim_promotes);

# A server with what the sessions run.
sub running_server
{
	my ($name, %settings) = @_;
	my $node = new_server($name, 'idemq.worker' => 'on', max_connections => 60, log_statement => 'none', log_min_error_statement => 'fatal', %settings);

	sql($node, q{
		SELECT idemq.drop_queue('q');
		CREATE TABLE turns (n bigint GENERATED ALWAYS AS IDENTITY, name text, waiting text[]);
		-- Whether each group that has jobs, and a permit for one, has a job that can be claimed.  ('' is what has no group, and no limit.)
		CREATE FUNCTION is_promoted(q text) RETURNS bool LANGUAGE sql AS $$
			SELECT NOT EXISTS (SELECT FROM idemq.jobs j JOIN idemq.queues USING (queue_id) WHERE name = q AND group_key IS NOT NULL AND finished_at IS NULL
				GROUP BY group_key, group_max_running HAVING count(*) FILTER (WHERE j.status = 'blocked') > 0
					AND count(*) FILTER (WHERE j.status = 'pending') = 0 AND (group_key = '' OR count(*) FILTER (WHERE j.status = 'running') < group_max_running)) $$;
		-- Claims one at a time, and notes which groups had a job that could be claimed then; promoted: after the worker has promoted
		-- a job of each that has a permit.
		CREATE PROCEDURE take_turns(q text, turns int, ends bool, promoted bool) LANGUAGE plpgsql AS $$
		DECLARE
			job record;
			names text[];
		BEGIN
			FOR i IN 1 .. turns LOOP
				WHILE promoted AND NOT is_promoted(q) LOOP
					PERFORM pg_sleep(0.001);
					COMMIT;
				END LOOP;
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
		CREATE TABLE done (seq bigint GENERATED ALWAYS AS IDENTITY, queue text, name text, n int);
		CREATE TABLE seen (queue text, permits int, looks int);
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
			INSERT INTO seen SELECT q, coalesce(max(permits), 0), 1 FROM (SELECT count(*) AS permits FROM idemq.jobs
				WHERE queue_id = idemq.queue_id(q) AND group_key IS NOT NULL AND (status = 'running' OR status = 'pending' AND run_at IS NULL)
				GROUP BY group_key) x $$;
		CREATE FUNCTION produce(q text, jobs int, groups int) RETURNS bigint LANGUAGE sql AS $$
			SELECT count(*) FROM (SELECT array_agg(jsonb_build_object('n', n)) AS payloads, array_agg('g' || n % groups) AS names,
				array_agg(CASE WHEN n % 50 = 0 THEN interval '20 ms' ELSE '0' END) AS delays FROM generate_series(1, jobs) n GROUP BY n / 1000) b,
				LATERAL idemq.enqueue_many(q, payloads, group_keys => names, delays => delays) $$;
	});
	return $node;
}

# Claims a number of jobs of a queue, one after the other; with promoted, each after the worker has promoted a job of every group.
sub take_turns
{
	my ($node, $queue, $turns, %options) = @_;
	my ($ends, $promoted) = map { $options{$_} ? 'true' : 'false' } qw(ends promoted);

	sql($node, "TRUNCATE turns RESTART IDENTITY");
	# Without promotions the call would not end.
	sql($node, "SET statement_timeout = '3 min'; CALL take_turns('$queue', $turns, $ends, $promoted)");
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sql($node, 'SELECT count(*) FROM turns', $turns, "$queue: so many claims");
}

# Starts sessions that work a queue, with options of pgbench; returns what clients returns.
sub start_workers
{
	my ($node, $queue, @options) = @_;

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
		@options, '-M', 'prepared', 'killed');
}

# Asserts what must hold when all jobs of a queue are done.
sub check_limits
{
	my ($node, $queue, $count, $running) = @_;

	is_sql($node, "SELECT count(*), count(DISTINCT n) FROM done WHERE queue = '$queue'", "$count|$count", "$queue: every effect once");
	is_sql($node, "SELECT max(permits), sum(looks) > 10 FROM seen WHERE queue = '$queue'", "$running|t", "$queue: never more of a group than may be, and as many");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$queue: check() is clean");
	return;
}

# Asserts that each claim has the next job of a group promoted, even a claim that searches its queue more than once: these
# jobs run on, so no end of an attempt would promote one.
sub each_claim_promotes
{
	my ($node, $queues) = @_;
	my ($first, $second) = (session($node), session($node));

	foreach my $k (1 .. $queues)
	{
		my $group = $k % 2 ? ", group_key => 'g'" : '';

		$first->query_safe("SELECT idemq.create_queue('s$k', group_max_running => 10, lease => '1 h')");
		$first->query_safe("SELECT count(idemq.enqueue('s$k', to_jsonb(n)$group)) FROM generate_series(1, 6) n; SELECT id FROM idemq.claim('s$k')");
		$second->query_safe("SELECT id FROM idemq.claim('s$k'); " x 12);
	}
	leave($first, $second);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_soon($node, "SELECT count(c.id) >= 0 FROM idemq.queues q, idemq.claim(q.name) c WHERE q.name ~ '^s[0-9]';
		SELECT count(*) = 6 * $queues FROM idemq.jobs j JOIN idemq.queues q USING (queue_id) WHERE q.name ~ '^s[0-9]' AND j.status = 'running'", "t\nt",
		'no group stands still while its jobs run');
}

1;
