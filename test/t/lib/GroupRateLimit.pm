# Sessions that claim of queues with group_rate_limit, roll back, release, fail, commit_and_claim and take by id, and count each
# start, for group_rate_limit.pl and group_rate_limit_slow.pl.
package GroupRateLimit;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;

our @EXPORT = qw(rate_server hammer $per);

# So long that no start comes back.
our $per = '100 years';

# A server with what the sessions run.
sub rate_server
{
	my ($name) = @_;
	my $node = new_server($name, 'idemq.worker' => 'on', 'idemq.max_buckets' => 256, max_connections => 60, log_statement => 'none',
		log_min_error_statement => 'fatal');

	sql($node, q{
		SELECT idemq.drop_queue('q');
		-- What was started, be it rolled back: a sequence of each group counts it.
		CREATE FUNCTION note_start(q text, name text) RETURNS bigint LANGUAGE sql AS $$ SELECT nextval(format('%s_%s', q, name)) $$;
		CREATE FUNCTION finish(q text, job bigint, job_token bigint, dice float8) RETURNS void LANGUAGE plpgsql AS $$
		DECLARE next record;
		BEGIN
			IF dice < 0.2 THEN PERFORM idemq.fail(job, job_token, 'no luck', retry_in => '0');
			ELSIF dice < 0.4 THEN PERFORM idemq.release(job, job_token);
			ELSIF dice < 0.5 THEN PERFORM idemq.commit(job, job_token);
			ELSE
				FOR next IN SELECT * FROM idemq.commit_and_claim(job, job_token, queue => q) c WHERE c.id IS NOT NULL LOOP
					PERFORM note_start(q, next.group_key);
					PERFORM idemq.release(next.id, next.token);
				END LOOP;
			END IF;
			IF dice > 0.9 THEN RAISE EXCEPTION 'rolled back'; END IF;
		EXCEPTION WHEN SQLSTATE 'P0001' THEN
			-- The attempt goes on.  Few stay with their session until it ends: their groups start nothing meanwhile.
			IF dice < 0.99 THEN PERFORM idemq.release(job, job_token); END IF;
		END $$;
		CREATE FUNCTION work(q text, dice float8) RETURNS void LANGUAGE plpgsql AS $$
		DECLARE job record;
		BEGIN
			FOR job IN SELECT *, note_start(q, group_key) FROM idemq.claim(q, 1 + (dice * 100)::int % 3, attach => true) LOOP
				PERFORM finish(q, job.id, job.token, random());
			END LOOP;
		END $$;
		CREATE FUNCTION by_id(q text, dice float8) RETURNS text LANGUAGE plpgsql AS $$
		DECLARE
			name text;
			job record;
		BEGIN
			SELECT j.id, group_key INTO job FROM idemq.jobs j WHERE queue_id = idemq.queue_id(q) AND finished_at IS NULL
				AND status <> 'blocked' ORDER BY random() LIMIT 1;
			IF job.id IS NULL THEN RETURN NULL; END IF;
			name := job.group_key;
			IF dice < 0.5 THEN
				IF idemq.commit_once(job.id) = 'committed' THEN PERFORM note_start(q, name); END IF;
				RETURN NULL;
			END IF;
			SELECT c.* INTO job FROM idemq.claim_job(job.id, attach => true) c;
			IF job.outcome IN ('claimed', 'claimed_again') THEN
				PERFORM note_start(q, name), finish(q, job.id, job.token, random());
			END IF;
			RETURN job.outcome;
		END $$;
		CREATE FUNCTION fill(q text, names int, jobs int) RETURNS bigint LANGUAGE plpgsql AS $$
		BEGIN
			FOR i IN 0 .. names - 1 LOOP EXECUTE format('CREATE SEQUENCE %I', q || '_g' || i); END LOOP;
			RETURN (SELECT count(idemq.enqueue(q, to_jsonb(n), group_key => 'g' || n % names)) FROM generate_series(1, names * jobs) n);
		END $$;
		CREATE FUNCTION restart(name text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN EXECUTE format('ALTER SEQUENCE %I RESTART', name); END $$;
		CREATE FUNCTION starts(q text) RETURNS TABLE (name text, starts bigint) LANGUAGE sql AS $$
			SELECT sequencename::text, coalesce(last_value, 0) FROM pg_sequences WHERE schemaname = 'public' AND sequencename LIKE q || '\_g%' $$;
	});
	return $node;
}

# Starts sessions that work a queue, with options of pgbench; returns what clients returns.
sub hammer
{
	my ($node, $queue, @options) = @_;

	return clients($node, [
			[ "SELECT work('$queue', random());\n", 8 ],
			[ "SELECT by_id('$queue', random());\n", 4 ],
			[ "BEGIN;\nSELECT work('$queue', random());\nROLLBACK;\n", 2 ],
			[ "BEGIN;\nSAVEPOINT s;\nSELECT work('$queue', random());\nROLLBACK TO s;\nCOMMIT;\n", 1 ] ],
		@options, '-M', 'prepared', 'killed');
}

1;
