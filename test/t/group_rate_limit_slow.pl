# group_rate_limit, while 16 sessions claim, roll back, release, fail, commit_and_claim and take by id, and some of them are ended:
# of no group more starts than it may have; in short periods, over every interval.
# slow: sessions that compete for some seconds, and starts that come back in real time
# at least 13 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use GroupRateLimit;
use Idemq;
use Test::More;

my $node = rate_server('group_rate_limit_slow');

# ---- Never more, whatever happens to the starts.

foreach my $running (1, 4)
{
	my $q = "r$running";

	sql($node, "SELECT idemq.create_queue('$q', group_max_running => $running, group_rate_limit => 20, group_rate_period => '$per', max_attempts => 1000);
		SELECT fill('$q', 40, 40)");
	foreach (1 .. 2)
	{
		my $run = hammer($node, $q, '-c', 16, '-T', 2);

		sql($node, "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity WHERE query ~ 'work\\(' AND pid <> pg_backend_pid() LIMIT 2) x");
		is($run->(), '', "$q: the workers say nothing but that they were ended");
	}
	until_true("$q: a group has its starts", sub { hammer($node, $q, '-c', 16, '-T', 1)->(); sql($node, "SELECT max(starts) FROM starts('$q')") >= 20 });
	is_sql($node, "SELECT max(starts) FROM starts('$q')", 20, "$q: of no group more than may be, and as many");
	is_sql($node, 'SELECT * FROM idemq.check()', '', "$q: check() is clean");
}

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
	SELECT idemq.create_queue('w', group_max_running => 3, group_rate_limit => 5, group_rate_period => '500 ms', lease => '1 h');
	SELECT fill('w', 10, 30);
});
my $left = "SELECT count(*) FROM idemq.jobs WHERE queue_id = idemq.queue_id('w') AND finished_at IS NULL";
my $said = '';
until_true('all are done', sub { $said .= clients($node, [ [ "SELECT step('w');\n", 1 ] ], '-c', 8, '-T', 2, '-M', 'prepared')->(); sql($node, $left) == 0 });
is($said, '', 'the workers say nothing');
is_sql($node, 'SELECT count(*) FROM started', 300, 'each was started once');
# Those that are within an interval from before one to after another; a clock may be a millisecond off.
is_sql($node, q{SELECT count(*) FROM (SELECT a.name, a.before, b.after, count(*) AS starts FROM (SELECT DISTINCT name, before FROM started) a
	JOIN (SELECT DISTINCT name, after FROM started) b ON b.name = a.name AND b.after > a.before
	JOIN started s ON s.name = a.name AND s.before >= a.before AND s.after <= b.after GROUP BY 1, 2, 3) x
	WHERE starts > 5 + 10 * (extract(epoch FROM after - before) + 0.001)}, 0, 'never more than the rate, over any interval');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');

$node->stop;
is(unexpected($node, qw(57P01 57P02 57P03)), '', 'no error but of those that were ended');
done_testing();
