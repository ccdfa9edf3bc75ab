# What is due is done at once, and no process polls for it: forty trials each of an expired
# lease, the end of an attached session, a delay, the end of a hold, the next head of a group, seen by a
# session that sleeps until then.  Half of them are seen within 50 ms, ten times what is normal
# here: a worker that looks five times a second is late by 100 ms on average.
#
# slow: asserts medians of real times
# at least 30 assertions
# runs alone
# asserts times

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $trials = 40;
my $node = new_server('prompt', 'idemq.worker' => 'on', 'idemq.purge_interval' => '-1', autovacuum => 'off', log_statement => 'none');

sql($node, q{
	CREATE TABLE due (trial int, at timestamptz);
	CREATE TABLE woken (trial int GENERATED ALWAYS AS IDENTITY, at timestamptz, id bigint, attempt int);
	-- Waits until the waiter has had so many jobs, and sleeps again.
	CREATE PROCEDURE after(trials int) LANGUAGE plpgsql AS $$
	BEGIN
		WHILE (SELECT count(*) FROM woken) < trials OR NOT EXISTS (SELECT FROM pg_stat_activity
			WHERE application_name = 'waiter' AND state = 'active' AND wait_event IN ('Extension', 'IdemqWait')) LOOP
			PERFORM pg_sleep(0.002);
			COMMIT;
		END LOOP;
	END $$;
	-- One trial: what is due, and when.
	CREATE PROCEDURE expired_lease(trial int) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM idemq.enqueue('q', to_jsonb(trial));
		INSERT INTO due SELECT trial, deadline FROM idemq.claim('q', lease => '120 ms');
	END $$;
	CREATE PROCEDURE delay(trial int) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM idemq.enqueue('q', to_jsonb(trial), delay => '120 ms');
		INSERT INTO due SELECT trial, ready_at FROM idemq.jobs WHERE payload = to_jsonb(trial);
	END $$;
	-- The waiter was asleep before the hold began, and a job that comes during the hold is no reason to wake.
	CREATE PROCEDURE hold_of_queue(trial int) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM idemq.enqueue('q', '0');
		INSERT INTO due SELECT trial, idemq.hold_back(id, token, '120 ms') FROM idemq.claim('q');
		COMMIT;
		PERFORM idemq.enqueue('q', to_jsonb(trial));
	END $$;
	CREATE TABLE heads (trial int, id bigint, token bigint);
	CREATE PROCEDURE next_head(which int) LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM idemq.commit(id, token) FROM heads WHERE trial = which;
		INSERT INTO due VALUES (which, clock_timestamp());
	END $$;
	CREATE PROCEDURE hold_of_group(which int) LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO due SELECT trial, idemq.hold_back(id, token, '120 ms') FROM heads WHERE trial = which;
		PERFORM idemq.commit(id, token) FROM heads WHERE trial = which;
	END $$});

# A fresh queue, and a session that sleeps, claims, and says when.
sub begin
{
	my ($with) = @_;

	sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h');
		TRUNCATE due; TRUNCATE woken RESTART IDENTITY");
	$with->() if $with;
	my $session = session($node);

	$session->query_safe("SET application_name = 'waiter'");
	# More often than there are trials: a wake-up may find that another was faster.
	$session->query_until(qr/sent/, "\\echo sent\n" . join('', map {
				"CALL idemq.wait('q', '5 min');\nINSERT INTO woken (at, id, attempt) SELECT clock_timestamp(), id, attempt FROM idemq.claim('q');\n"
			} 1 .. 4 * $trials));
	return $session;
}

# Asserts the median of what a session that sleeps has been woken for.
sub is_prompt
{
	my ($name, $session) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql($node, "CALL after($trials); SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'waiter'");
	my ($count, $early, $median, $most) = split /\|/, sql($node, "SELECT count(*), count(*) FILTER (WHERE late < -1),
		round((percentile_cont(0.5) WITHIN GROUP (ORDER BY late))::numeric, 1), round(max(late), 1)
		FROM (SELECT extract(epoch FROM w.at - d.at) * 1000 AS late FROM woken w JOIN due d USING (trial)) x");
	$session->{run}->kill_kill;
	is("$count $early", "$trials 0", "$name: each trial was seen, none before it was due");
	diag "figure: $name: median $median ms, at most $most ms";
	cmp_ok($median, '<', 50, "$name: at once");
	return;
}

worker_pid($node);
# The heads of all groups are taken before anybody sleeps.
my %with = (next_head => sub {
		sql($node, "TRUNCATE heads; SELECT idemq.enqueue('q', to_jsonb(n), group_key => 'g' || n % $trials) FROM generate_series(0, 2 * $trials - 1) n");
		wait_until($node, "WITH taken AS (INSERT INTO heads SELECT payload::int + 1, id, token FROM idemq.claim('q', 100) RETURNING 1)
			SELECT (SELECT count(*) FROM taken) + (SELECT count(*) FROM heads) = $trials");
	});
$with{hold_of_group} = $with{next_head};
foreach my $what ('expired_lease', 'delay', 'hold_of_queue', 'hold_of_group', 'next_head')
{
	my $session = begin($with{$what});

	sql($node, join ';', map { 'CALL after(' . ($_ - 1) . '); CALL ' . "$what($_)" } 1 .. $trials);
	is_prompt($what =~ tr/_/ /r =~ s/^hold of/the end of a hold of a/r, $session);
}

{
	my $session = begin();

	foreach my $trial (1 .. $trials)
	{
		# It ends with its last statement.
		sql($node, 'CALL after(' . ($trial - 1) . "); BEGIN; SELECT idemq.enqueue('q', '1'); SELECT id FROM idemq.claim('q', attach => true); COMMIT;
			INSERT INTO due VALUES ($trial, clock_timestamp())");
	}
	is_prompt('the end of an attached session', $session);
}

# ---- Nobody polls: while nothing is due, neither a waiter nor the worker runs.

sub switches
{
	my %count;

	foreach my $line (split /\n/, sql($node, "SELECT application_name, pid FROM pg_stat_activity WHERE application_name ~ '^(one|another|idemq)'"))
	{
		my ($name, $pid) = split /\|/, $line;

		$count{$name} = $1 if slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m;
	}
	return %count;
}

my %waits_for = (
	'nothing' => '',
	'the end of a hold of the queue, in an hour' => "SELECT idemq.enqueue('q', '1'); SELECT idemq.hold_back(id, token, '1 h') FROM idemq.claim('q'); SELECT idemq.enqueue('q', '2')",
	'the end of a hold of a group, in an hour' => "SELECT idemq.enqueue('q', '1', group_key => 'g'); SELECT pg_sleep(0.2);
		SELECT idemq.hold_back(id, token, '1 h'), idemq.commit(id, token) FROM idemq.claim('q'); SELECT idemq.enqueue('q', '2', group_key => 'g')",
	'a lease, a delay, a blocked job, in an hour' => "SELECT idemq.enqueue('q', '1'); SELECT id FROM idemq.claim('q');
		SELECT idemq.enqueue('q', '2', delay => '1 h'); SELECT idemq.enqueue('q', '3', group_key => 'g');
		SELECT idemq.enqueue('q', '4', group_key => 'g'); SELECT pg_sleep(0.2); SELECT id FROM idemq.claim('q')");
foreach my $name (sort keys %waits_for)
{
	sql($node, "SELECT idemq.drop_queue('q', force => true); SELECT idemq.create_queue('q', lease => '1 h'); $waits_for{$name}");
	my @waiters = map { waiter($node, "SET application_name = '$_'; CALL idemq.wait('q', '5 min')") } qw(one another);

	my (%before, %after, %switches);
	# The median of three: the machine itself may wake a process once; one that polls is awake each time.
	foreach (1 .. 3)
	{
		wait_until($node, "SELECT bool_and(state_change < clock_timestamp() - interval '1.5 s') FROM pg_stat_activity WHERE application_name = 'idemq worker'");
		%before = switches();
		sql($node, 'SELECT pg_sleep(3)');
		%after = switches();
		push @{ $switches{$_} }, $after{$_} - ($before{$_} // 0) foreach keys %after;
	}
	is(join(' ', sort keys %after), 'another idemq launcher idemq worker one', "$name: all are there");
	foreach my $process (sort keys %switches)
	{
		my @counts = sort { $a <=> $b } @{ $switches{$process} };

		cmp_ok($counts[$#counts / 2], '<', 5, "$name: $process sleeps (@counts switches in 3 s)");
	}
	$_->{session}{run}->kill_kill foreach @waiters;
}

$node->stop;
done_testing();
