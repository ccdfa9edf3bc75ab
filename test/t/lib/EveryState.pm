# Jobs in every state, and what else idemq keeps, to be taken to another server: made there, and
# used here.  upgrade.pl, upgrade_standby.pl, pg_upgrade.pl and blue_green.pl are the ways.
package EveryState;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use Test::More;

our @EXPORT = qw(make_every_state goes_on $everything $without_driver);

# What must be the same on both sides.
our $everything = q{SELECT j FROM idemq.jobs j ORDER BY id; SELECT q FROM idemq.queues q ORDER BY 1; SELECT a FROM idemq.attempts a ORDER BY 1;
	SELECT queue_id, role_name, privilege FROM idemq_internal.queue_grants ORDER BY 1, 2, 3; SELECT name, queue_id, cron, done_until, payload, paused_at FROM idemq_internal.schedule_entries ORDER BY 1;
	SELECT s FROM idemq_internal.seen s; SELECT a FROM idemq.audit a ORDER BY id; SELECT * FROM app; SELECT * FROM open};
our $without_driver = "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'";

# Makes it, with the extension; $middle->(), if given, in the middle.
sub make_every_state
{
	my ($node, $middle) = @_;
	my @steps = (
		q{SELECT idemq.enqueue('q', '"completed"', key => 'first'); SELECT idemq.commit(id, token, '"done"') FROM idemq.claim('q')},
		q{SELECT idemq.enqueue('q', '"failed"', key => 'second'); SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.claim('q')},
		q{SELECT idemq.enqueue('narrow', '"dead"', max_attempts => 1); SELECT idemq.fail(id, token, 'for good') FROM idemq.claim('narrow')},
		# The worker may be the one that promotes a head: for a moment nobody can claim it.
		sub {
			sql($node, q{SELECT idemq.enqueue('groups', to_jsonb(n), group_key => 'g') FROM generate_series(1, 3) n});
			wait_until($node, q{SELECT count(*) FROM idemq.claim('groups', 5)}, 1);
		},
		q{INSERT INTO app SELECT min(id), 'committed' FROM idemq.jobs},
		q{SELECT idemq.enqueue('q', '"running"', priority => 0); SELECT idemq.checkpoint(id, token, '1') FROM idemq.claim('q')},
		q{SELECT idemq.enqueue('q', '"cancelled"', key => 'third'); SELECT idemq.cancel_by_key('q', 'third')},
		q{SELECT idemq.enqueue('narrow', to_jsonb(n)) FROM generate_series(1, 3) n; SELECT count(*) FROM idemq.claim('narrow', 5)},
		q{SELECT idemq.enqueue('q', '"later"', delay => '1 day'), idemq.enqueue('q', to_jsonb((SELECT string_agg(md5(n::text), '') FROM generate_series(1, 300) n)), priority => 9)},
		sub {
			sql($node, q{SELECT idemq.enqueue('paced', to_jsonb('paced ' || n), group_key => 'g') FROM generate_series(1, 3) n});
			wait_until($node, q{SELECT status FROM idemq.jobs WHERE payload = '"paced 1"'}, 'pending');
			sql($node, q{SELECT idemq.commit_once(id) FROM idemq.jobs WHERE payload = '"paced 1"';
				SELECT idemq.once('letters', 'sent'); CALL idemq.tick(); SELECT idemq.schedule('yearly', '0 0 1 1 *', 'q', '1'),
				idemq.schedule('paused', 'every 24 h', 'q', '"paused"'); SELECT idemq.pause_schedule('paused')});
		});

	sql($node, q{
		CREATE ROLE producer; CREATE ROLE worker; CREATE ROLE maker;
		CREATE EXTENSION idemq;
		SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 3, retry_jitter => 0), idemq.create_queue('graves'),
			idemq.create_queue('groups', lease => '1 h'), idemq.create_queue('paced', group_rate_limit => 1, group_rate_period => '100 years'), idemq.create_queue('narrow', lease => '1 h', max_running => 2, dead_letter_queue => 'graves');
		SELECT idemq.grant_queue('q', 'producer', 'enqueue'), idemq.grant_queue('q', 'worker', 'claim');
		GRANT USAGE ON SCHEMA idemq TO maker; GRANT EXECUTE ON FUNCTION idemq.create_queue TO maker;
		-- A promotion or two in its past.
		SELECT idemq.advance_tokens(), idemq.advance_tokens();
		CREATE TABLE app (job bigint REFERENCES idemq.jobs, did idemq.outcome);
		CREATE VIEW open AS SELECT count(*) FROM idemq.jobs WHERE finished_at IS NULL});
	foreach my $i (0 .. $#steps)
	{
		$middle->() if $middle && $i == @steps / 2;
		ref $steps[$i] ? $steps[$i]->() : sql($node, $steps[$i]);
	}
	is_sql($node, 'SELECT count(DISTINCT status) FROM idemq.jobs', 7, 'jobs in every state');
	is_sql($node, $without_driver, '', 'check() before');
	return;
}

# That all goes on where it stood.  The greatest token that came; an id and a token that were given
# and are in no row.
sub goes_on
{
	my ($node, $token, $lost, $lost_token) = @_;

	is_sql($node, $without_driver, '', 'check()');
	is_sql($node, q{SELECT outcome, count(*) FROM (SELECT * FROM idemq.jobs WHERE status = 'running') p, idemq.heartbeat_many(ARRAY[p.id], ARRAY[p.token]) GROUP BY 1},
		'current|4', 'leases go on, by the tokens that workers have');
	is_sql($node, q{SELECT count(*) FROM idemq.claim_any('{groups,narrow}', 9)}, 0, 'a group\'s head is in flight, a limit is reached');
	is_sql($node, q{SELECT status FROM idemq.jobs WHERE payload = '"paced 1"'; SELECT count(*) FROM idemq.claim('paced', 9)}, "completed\n0",
		'a group\'s rate is used up, though memory knows of no start');
	sql($node, q{SELECT idemq.alter_queue('paced', group_rate_limit => 0)});
	is_soon($node, q{SELECT payload FROM idemq.claim('paced', 9)}, '"paced 2"', 'without it the next one goes');
	is_sql($node, q{SELECT idemq.commit(id, token) FROM idemq.jobs WHERE payload IN ('1')}, "committed\ncommitted", 'they end');
	wait_until($node, q{SELECT status FROM idemq.jobs WHERE payload = '2' AND group_key = 'g'}, 'pending');
	is_sql($node, q{SELECT queue, payload FROM idemq.claim_any('{groups,narrow}', 9) ORDER BY 1}, "groups|2\nnarrow|3", 'and let the next go');
	is_sql($node, qq{SELECT attempt, payload, token > $token AND token > $lost_token FROM idemq.claim('q')}, '2|"failed"|t', 'tokens grow');
	is_sql($node, qq{SELECT id > $lost FROM idemq.enqueue('q', '"new"')}, 't', 'ids that were given do not come again');
	is_sql($node, q{SELECT outcome, status, result FROM idemq.enqueue('q', '"completed"', key => 'first')}, 'duplicate|completed|"done"', 'keys have their answers');
	is_sql($node, q{SELECT a.attempt, a.outcome, a.error FROM idemq.attempts a JOIN idemq.jobs j ON j.id = a.job_id WHERE j.payload = '"failed"'}, '1|failed|no', 'attempts');
	is_sql($node, q{SELECT payload->'payload' FROM idemq.claim('graves')}, '"dead"', 'the dead-letter queue');
	is_sql($node, q{SELECT idemq.redrive('narrow'), idemq.once('letters', 'sent')}, '1|f', 'redrive, once');
	is_sql($node, q{SET ROLE worker; SELECT count(*) FROM idemq.claim('q')}, 1, 'a worker\'s grant');
	is_state($node, q{SET ROLE producer; SELECT * FROM idemq.claim('q')}, '42501', 'a producer\'s is no more than that');
	is_sql($node, q{SET ROLE maker; SELECT idemq.create_queue('made') > 4}, 't', 'rights on functions, numbers of queues');
	is_sql($node, q{CALL idemq.tick(); SELECT next_run > now() FROM idemq.schedules WHERE name = 'yearly'}, 't', 'schedules');
	is_sql($node, q{UPDATE idemq_internal.schedule_entries SET done_until = now() - interval '3 days' WHERE name = 'paused'; CALL idemq.tick();
		SELECT next_run, idemq.resume_schedule('paused') > now(), (SELECT count(*) FROM idemq.jobs WHERE key LIKE 'paused@%') FROM idemq.schedules WHERE name = 'paused'}, '|t|0', 'a paused schedule stays paused');
	worker_pid($node);
	is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() in the end');
	return;
}

1;
