# group_rate, while 16 sessions claim, roll back, release, fail, commit_and_claim and take by id: of no group
# more starts than it may have, in groups with one job at a time and with several, through kill -9 of sessions, a
# crash and a restart; in short periods over every interval; and what happens when there is no room for buckets.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use Test::More;

my $node = new_server('group_rate', 'idemq.worker' => 'on', 'idemq.max_buckets' => 256, max_connections => 60, log_statement => 'none',
	log_min_error_statement => 'fatal');
# So long that no start comes back.
my $per = '100 years';

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
	EXCEPTION WHEN SQLSTATE 'P0001' THEN NULL;
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

# ---- Never more, whatever happens to the starts.

sub hammer
{
	my ($queue, $seconds) = @_;

	return clients($node, [
			[ "SELECT work('$queue', random());\n", 8 ],
			[ "SELECT by_id('$queue', random());\n", 4 ],
			[ "BEGIN;\nSELECT work('$queue', random());\nROLLBACK;\n", 2 ],
			[ "BEGIN;\nSAVEPOINT s;\nSELECT work('$queue', random());\nROLLBACK TO s;\nCOMMIT;\n", 1 ] ],
		'-c', 16, '-T', $seconds, '-M', 'prepared', 'killed');
}

foreach my $running (1, 4)
{
	my $q = "r$running";

	sql($node, "SELECT idemq.create_queue('$q', group_running => $running, group_rate => 20, group_period => '$per', max_attempts => 1000);
		SELECT fill('$q', 40, 40)");
	foreach (1 .. 2)
	{
		my $run = hammer($q, 2);

		sql($node, "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE query ~ 'work\\(' AND pid <> pg_backend_pid() LIMIT 2) x");
		is($run->(), '', "$q: the workers say nothing but that they were ended");
	}
	foreach (1 .. 30)
	{
		last if sql($node, "SELECT max(starts) FROM starts('$q')") >= 20;
		hammer($q, 1)->();
	}
	is_sql($node, "SELECT max(starts) FROM starts('$q')", 20, "$q: of no group more than may be, and as many");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$q: check() is clean");
}

# ---- A crash and a restart forget the buckets: they are empty then, and full where nothing can have been started.

sql($node, "SELECT idemq.create_queue('old', group_rate => 20, group_period => '$per'); SELECT fill('old', 1, 3)");
crash($node);
# A sequence jumps in a crash.
sql($node, "SELECT count(restart(name)) FROM starts('r4')");
sql($node, "SELECT idemq.create_queue('young', group_running => 9, group_rate => 3, group_period => '$per'); SELECT fill('young', 2, 5)");
is(hammer('r4', 1)->(), '', 'r4 after the crash');
is_sql($node, "SELECT max(starts) FROM starts('r4')", 0, 'r4: not one more after the crash');
is_sql($node, "SELECT count(*) FROM idemq.claim('old')", 0, 'nothing of a queue from before');
is_sql($node, "SELECT idemq.why(min(id)) ~ 'group_rate of queue \"old\" is used up' FROM idemq.jobs WHERE queue_id = idemq.queue_id('old')", 't', 'why says so');
is(hammer('young', 1)->(), '', 'a new queue');
foreach (1 .. 30)
{
	last if sql($node, "SELECT min(starts) FROM starts('young')") >= 3;
	hammer('young', 1)->();
}
is_sql($node, "SELECT min(starts), max(starts) FROM starts('young')", '3|3', 'all of a queue that is new');
sql($node, "SELECT count(restart(name)) FROM starts('$_')") foreach qw(r1 young);
$node->restart;
is(hammer($_, 1)->(), '', "$_ after a restart") foreach qw(r1 young);
is_sql($node, "SELECT max(starts) FROM starts('$_')", 0, "$_: not one more") foreach qw(r1 young);

# ---- With short periods: over each interval, and all of them get on by time alone.

sql($node, q{
	CREATE TABLE started (name text, before timestamptz, after timestamptz);
	CREATE FUNCTION step(q text) RETURNS void LANGUAGE plpgsql AS $$
	DECLARE
		began timestamptz := clock_timestamp();
		job record;
	BEGIN
		FOR job IN SELECT * FROM idemq.claim(q, 2) LOOP
			INSERT INTO started VALUES (job.group_key, began, clock_timestamp());
			PERFORM idemq.commit(job.id, job.token);
		END LOOP;
	END $$;
	SELECT idemq.create_queue('w', group_running => 3, group_rate => 5, group_period => '500 ms', lease => '1 h');
	SELECT fill('w', 10, 30);
});
my $left = "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('w') AND finished_at IS NULL";
foreach (1 .. 30)
{
	is(clients($node, [ [ "SELECT step('w');\n", 1 ] ], '-c', 8, '-T', 2, '-M', 'prepared')->(), '', 'the workers say nothing');
	last if sql($node, $left) == 0;
}
is_sql($node, $left, 0, 'all are done');
is_sql($node, 'SELECT count(*) FROM started', 300, 'each was started once');
# Those that are within an interval from before one to after another; a clock may be a millisecond off.
is_sql($node, q{SELECT count(*) FROM (SELECT a.name, a.before, b.after, count(*) AS starts FROM (SELECT DISTINCT name, before FROM started) a
	JOIN (SELECT DISTINCT name, after FROM started) b ON b.name = a.name AND b.after > a.before
	JOIN started s ON s.name = a.name AND s.before >= a.before AND s.after <= b.after GROUP BY 1, 2, 3) x
	WHERE starts > 5 + 10 * (extract(epoch FROM after - before) + 0.001)}, 0, 'never more than the rate, over any interval');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

# ---- Another rate has its effect at once, also for jobs that wait: promoted for later, and put off when they were to be retried.

foreach my $running (1, 3)
{
	my $q = "a$running";
	my $of = "FROM idemq.jobs WHERE queue_id = idemq.queue_id('$q')";

	sql($node, "SELECT idemq.create_queue('$q', group_running => $running, group_rate => 1, group_period => '$per', lease => '1 h', max_attempts => 1000);
		SELECT fill('$q', 50, 3)");
	is_soon($node, "SELECT count(*) >= 0 FROM idemq.claim('$q', 100); SELECT count(*) = 50 $of AND status = 'processing'", "t\nt", "$q: one of each group");
	sql($node, "SELECT CASE WHEN id % 2 = 0 THEN idemq.commit(id, token)::text ELSE idemq.fail(id, token, 'no', retry_in => '0')::text END $of AND status = 'processing'");
	is_soon($node, "SELECT count(*) FROM idemq.claim('$q', 100); SELECT count(*) = 50 $of AND status IN ('pending', 'failed') AND ready_at > now() + interval '1 day'", "0\nt", "$q: the next ones wait");
	my $sleeper = sleeper($node, "CALL idemq.wait('$q', '1 min')");
	# Each of them has one more start, a little later.
	sql($node, "SELECT idemq.alter_queue('$q', group_period => '1 ms')");
	is(answer($sleeper), 't', "$q: who waits for work is woken");
	$sleeper->{session}->quit;
	is_soon($node, "SELECT count(idemq.commit(id, token)) >= 0 FROM idemq.claim('$q', 100); SELECT count(*) = 0 $of AND finished_at IS NULL", "t\nt", "$q: all get on");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$q: check() is clean");
}

# ---- Nobody gets all buckets, and nobody needs one: a queue whose groups find none has one for them together.

my $used = "SELECT used = size FROM idemq.memory WHERE resource = 'buckets'";
sql($node, "CREATE DATABASE other");
sql($node, "CREATE EXTENSION idemq", 'other');
sql($node, "SELECT idemq.admit('used' || i, 1, '$per') FROM generate_series(1, 300) i", 'other');
is_sql($node, $used, 'f', 'the names of one database do not fill the table');
sql($node, "SELECT idemq.create_queue('before', group_rate => 1, group_period => '$per'), idemq.create_queue('greedy', group_rate => 1, group_period => '$per');
	SELECT fill('before', 1, 2), fill('greedy', 300, 1)");
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('greedy') AND status = 'pending'", 300, 'heads');
my $started = sql($node, "SELECT count(*) FROM idemq.claim('greedy', 1000)");
cmp_ok($started, '<', 130, 'the groups of one queue get half at most');
cmp_ok($started, '>', 1, 'and have what is left');
is_sql($node, $used, 't', 'together they fill it');
my $shared = sql($node, 'SELECT shared FROM idemq.admissions');
my $refused = sql($node, "SELECT refused FROM idemq.memory WHERE resource = 'buckets'");
sql($node, "SELECT idemq.create_queue('f', group_rate => 7, group_period => '$per', lease => '1 h'); SELECT fill('f', 20, 3)");
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('f') AND status = 'pending'", 20, 'other heads');
# Sixteen at once, each of which commits what it gets: so the next of each group follow.
is(clients($node, "SELECT count(idemq.commit(id, token)) FROM idemq.claim('f', 2);\n", '-c', 16, '-t', 20)->(), '', '16 sessions');
# A start that lost a race and is not the last one is not given back.
is_sql($node, "SELECT count(*) BETWEEN 1 AND 7 FROM idemq.jobs WHERE queue_id = idemq.queue_id('f') AND status = 'completed'", 't', 'they start, all together as many as one may at most');
is_sql($node, "SELECT idemq.why(min(id)) ~ 'group_rate of queue \"f\" is used up' FROM idemq.jobs WHERE queue_id = idemq.queue_id('f') AND status <> 'completed'", 't', 'why says so');
is_sql($node, "SELECT refused > $refused FROM idemq.memory WHERE resource = 'buckets'", 't', 'it is counted');
is_sql($node, 'SELECT shared FROM idemq.admissions', $shared, 'and not as a call of admit');
is_sql($node, "SELECT count(*) FROM idemq.claim('before', 10)", 1, 'so does one that came before');
# A queue that is dropped gives its buckets back, and the queue that gets its slot is a new one.
sql($node, "SELECT idemq.drop_queue('greedy', force => true)");
is_sql($node, "SELECT used <= 130 FROM idemq.memory WHERE resource = 'buckets'", 't', 'a queue that is dropped has no buckets');
sql($node, "SELECT idemq.create_queue('heir', group_rate => 1, group_period => '$per'); SELECT fill('heir', 20, 1)");
is_soon($node, "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('heir') AND status = 'pending'", 20, 'its heads');
is_sql($node, "SELECT count(*) FROM idemq.claim('heir', 100)", 20, 'the next queue of its slot begins with full ones');
# There is room: who was started without a bucket is not started too soon with one.
sql($node, 'DROP DATABASE other');
sql($node, "SELECT idemq.enqueue('f', '1', group_key => 'new')");
is_sql($node, "SELECT count(*) FROM idemq.claim('f', 100)", 0, 'a bucket begins where the common one stood');
is_sql($node, $used, 'f', 'there is room');
sql($node, "SELECT idemq.alter_queue('f', group_period => '1 ms')");
is_soon($node, "SELECT count(idemq.commit(id, token)) >= 0 FROM idemq.claim('f', 100); SELECT count(*) = 0 FROM idemq.jobs WHERE queue_id = idemq.queue_id('f') AND status <> 'completed'",
	"t\nt", 'they all get on');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
is(unexpected($node, qw(57P01 57P02 57P03)), '', 'no error but of those that were ended');
$node->stop;
done_testing();
