# Jobs in every state, and what else idemq keeps, to be dumped and restored into another database of the same
# server: made, and used where they have come.  For dump.pl and dump_slow.pl.
package Dumped;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;

our @EXPORT = qw(make_states is_in_flight_in goes_on_in $content);

# What must be the same on both sides.
our $content = q{
	SELECT j FROM idemq.jobs j ORDER BY id;
	SELECT md5(payload::text) FROM idemq.jobs ORDER BY id;
	SELECT q FROM idemq.queues q ORDER BY 1;
	SELECT g FROM idemq_internal.queue_grants g ORDER BY 1;
	SELECT s FROM idemq_internal.schedule_entries s ORDER BY 1;
	SELECT a FROM idemq.attempts a ORDER BY 1;
	SELECT s FROM idemq.steps s ORDER BY 1;
	SELECT d FROM idemq_internal.database_uuid d;
	SELECT e FROM idemq.events e ORDER BY 1;
	SELECT t FROM idemq_internal.topic_entries t ORDER BY 1; SELECT g FROM idemq_internal.topic_grants g ORDER BY 1; SELECT b FROM idemq_internal.topic_binding_entries b ORDER BY 1; SELECT o FROM idemq_internal.topic_over_limit o ORDER BY 1;
	SELECT s FROM idemq_internal.seen s ORDER BY 1;
	SELECT p FROM idemq.producers p ORDER BY 1;
	SELECT h FROM idemq_internal.hold_entries h ORDER BY 1;
	SELECT g FROM idemq.paused_groups g ORDER BY 1;
	SELECT a FROM idemq.audit a ORDER BY id;
	SELECT * FROM app; SELECT * FROM held};

sub make_states
{
	my ($node) = @_;

	sql($node, q{
		CREATE ROLE producer; CREATE ROLE "Odd Worker";
		SELECT idemq.create_queue('other', lease => '2 h', max_attempts => 3, dead_letter_queue => 'q');
		SELECT idemq.grant_queue('q', 'producer', 'enqueue');
		SELECT idemq.grant_queue('q', '"Odd Worker"', 'claim');
		SELECT idemq.enqueue('q', '1', key => 'k');
		SELECT idemq.enqueue('q', '2', headers => '{"trace": 1}');
		SELECT idemq.enqueue('q', '3', delay => '1 h');
		SELECT idemq.enqueue('other', to_jsonb(repeat('x', 100000)));
		SELECT idemq.enqueue('q', '5', priority => 0);
		SELECT idemq.commit(id, token, '"done"') FROM idemq.claim('q');
		SELECT idemq.fail(id, token, 'no', retry_in => '0') FROM idemq.claim('q');
		CREATE TABLE held AS SELECT id, token FROM idemq.claim('q');
		CREATE TABLE app (job bigint REFERENCES idemq.jobs);
		INSERT INTO app SELECT min(id) FROM idemq.jobs;
		GRANT USAGE ON SCHEMA idemq TO producer; GRANT EXECUTE ON FUNCTION idemq.create_queue TO producer;
		SELECT idemq.once('letters', 'sent');
		SELECT idemq.create_queue('grouped', lease => '1 h'), idemq.create_queue('limited', lease => '1 h', max_running => 2);
		SELECT idemq.enqueue('grouped', to_jsonb(n), group_key => 'g') FROM generate_series(1, 3) n;
		SELECT idemq.enqueue('limited', to_jsonb(n)) FROM generate_series(1, 5) n;
		SELECT idemq.create_queue('paced', group_rate_limit => 1, group_rate_period => '100 years');
		SELECT idemq.enqueue('paced', '"paced"', group_key => 'g') FROM generate_series(1, 2);
		SELECT idemq.commit_once(min(id)) FROM idemq.jobs WHERE payload = '"paced"';
		SELECT idemq.ensure_queue('declared', max_running => 5, lease => '1 h', notify_finished => true), idemq.alter_queue('declared', max_running => 6);
		CALL idemq.tick();
		SELECT idemq.schedule('nightly', '0 3 * * *', 'q', '"n"'), idemq.schedule('halfdaily', 'every 12 h', 'other', '"w"');
		SELECT idemq.pause_schedule('halfdaily');
		SELECT idemq.create_queue('ended');
		SELECT idemq.enqueue('ended', '"dead"', key => 'd'), idemq.enqueue('ended', '"cancelled"', key => 'c'), idemq.enqueue('ended', '"failed"');
		SELECT idemq.cancel_by_key('ended', 'c');
		SELECT idemq.fail(id, token, 'no', permanent => payload = '"dead"', retry_in => '0') FROM idemq.claim('ended', 2);
		SELECT idemq.finish_step(id, token, 'done', '{"a": 1}') FROM held;
		SELECT idemq.enqueue_sequenced('ended', 'partition', 7, '7', kind => 'numbered');
		DO $$ DECLARE h record; o text; r jsonb; q jsonb; b timestamptz; a interval; k text;
			BEGIN SELECT * INTO h FROM held; CALL idemq.begin_step(h.id, h.token, 'begun', '2', '1 h', o, r, q, b, a, k); END $$;
		SELECT idemq.send_event('q', 'first', '{"a": 1}'), idemq.send_event('grouped', 'second');
		SELECT idemq.create_queue('partly'), idemq.pause('partly', group_key => 'out'), idemq.pause('partly', now() + interval '100 years', 'long');
		SELECT idemq.enqueue('partly', to_jsonb(name), group_key => name) FROM unnest('{in,out,long}'::text[]) name;
		SELECT idemq.create_topic('topic'), idemq.grant_topic('topic', 'producer', 'publish'), idemq.bind_topic('topic.#', 'grouped');
		SELECT idemq.create_queue('small', max_unfinished => 1);
		SELECT idemq.enqueue('small', '"small"'), idemq.bind_topic('topic.#', 'small', when_full => 'skip');
		CREATE TABLE running AS SELECT id, token FROM idemq.claim('grouped', 5) UNION ALL SELECT id, token FROM idemq.claim('limited', 5);
	});
	return;
}

# Asserts that attempts, ids and the audit go on from where they were, which equal rows do not show.
sub is_in_flight_in
{
	my ($node, $db, $format) = @_;

	is_sql($node, 'SELECT status, token = (SELECT token FROM held) FROM idemq.jobs WHERE id = (SELECT id FROM held)',
		'running|t', "$format: the job in flight is in flight", $db);
	is_sql($node, 'SELECT outcome, retry_after > clock_timestamp() FROM held h, idemq.claim_job(h.id)', 'locked|t',
		"$format: and locked", $db);
	is_sql($node, "SELECT count(*), min(attempt) FROM idemq.claim('q', 10)", '1|2', "$format: ready jobs are claimable", $db);
	is_sql($node, "SELECT id > (SELECT max(id) FROM idemq.jobs) FROM idemq.enqueue('q', '6')", 't',
		"$format: new ids are greater", $db);
	is_sql($node, "SELECT idemq.create_queue('new') > (SELECT max(queue_id) FROM idemq.queues)", 't',
		"$format: new queue ids too", $db);
	is_sql($node, "SELECT count(*) FROM idemq.audit WHERE id > (SELECT id FROM idemq.audit WHERE action = 'grant_queue' ORDER BY id DESC LIMIT 1)
		AND action = 'create_queue' AND queue = 'new'", 1, "$format: and the audit goes on", $db);
	is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', "$format: check()", $db);
	return;
}

# Asserts that everything goes on from where it was.
sub goes_on_in
{
	my ($node, $db, $format) = @_;

	is_in_flight_in($node, $db, $format);
	is_sql($node, "SELECT attempt, payload, token > (SELECT max(token) FROM running) FROM idemq.claim('ended')", '2|"failed"|t',
		"$format: a failed job is claimed again, by a greater token", $db);
	is_sql($node, "SELECT outcome, status FROM idemq.enqueue('ended', '\"dead\"', key => 'd'), idemq.redrive('ended')", 'duplicate|dead',
		"$format: a dead job has its key, and is redriven", $db);
	is_sql($node, "SELECT outcome FROM idemq.ensure_queue('declared', max_running => 5, lease => '1 h')", 'unchanged',
		"$format: the declaration is unchanged, and a setting that was changed since keeps its value", $db);
	is_sql($node, "SELECT outcome, changes FROM idemq.ensure_queue('declared', max_running => 7)", 'changed|{"max_running": {"to": 7, "from": 6}}',
		"$format: a new declaration changes it", $db);
	is_sql($node, "SELECT outcome, status FROM idemq.enqueue('q', '1', key => 'k')", 'duplicate|running',
		"$format: keys are remembered", $db);
	is_sql($node, "SELECT idemq.commit(id, token) FROM held", 'committed', "$format: the worker's token commits", $db);
	is_sql($node, 'SET ROLE producer; SELECT outcome FROM idemq.enqueue(\'q\', \'7\')', 'accepted',
		"$format: a producer's grant", $db);
	is_state($node, "SET ROLE producer; SELECT * FROM idemq.claim('q')", '42501', "$format: is no more than that", $db);
	is_sql($node, 'SET ROLE "Odd Worker"; SELECT count(*) FROM idemq.claim(\'q\', 10)', 2, "$format: a worker's grant", $db);
	is_state($node, "SET ROLE producer; SELECT idemq.create_queue('mine')", '00000', "$format: rights on functions", $db);
	is_sql($node, "SELECT idemq.once('letters', 'sent'), idemq.once('letters', 'new')", 'f|t', "$format: once remembers", $db);
	is_sql($node, "SELECT count(*) FROM idemq.claim_any('{grouped,limited}', 10)", 0, "$format: a group's head is in flight, a limit is reached", $db);
	is_sql($node, "SELECT idemq.commit(id, token) FROM running JOIN idemq.jobs USING (id, token) WHERE payload = '1'", "committed\ncommitted",
		"$format: they end", $db);
	is_sql($node, "SELECT queue, payload FROM idemq.claim_any('{grouped,limited}', 10) ORDER BY 1", "grouped|2\nlimited|3",
		"$format: the next of the group, and one more of the limit", $db);
	is_sql($node, "SELECT count(*) FROM idemq.claim('paced', 10)", 0, "$format: a group's rate is used up, though memory knows of no start", $db);
	is_sql($node, "SELECT idemq.alter_queue('paced', group_rate_limit => 0); SELECT count(*) FROM idemq.claim('paced', 10)", "\n1", "$format: without it the next one goes", $db);
	is_sql($node, "SELECT string_agg(group_key, ' ') FROM idemq.claim('partly', 10)", 'in', "$format: paused groups are paused", $db);
	is_sql($node, "SELECT idemq.resume('partly', 'out'); SELECT string_agg(group_key, ' ') FROM idemq.claim('partly', 10)", "\nout", "$format: until they are resumed", $db);
	is_sql($node, "SELECT * FROM idemq.check() WHERE invariant <> 'schedules.driver'", '', "$format: check()", $db);
	return;
}

1;
