# One call of each function of schema idemq, on things that new_calls makes: what every_call.pl does as each role, and
# every_setting.pl with each setting.  A function that has no call here fails those tests.
package Calls;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Idemq;
use Test::More;

our @EXPORT = qw(prepare_calls calls relations);

# What is secret in queue q is named "secret ...", what is secret in queue foreign, "foreign ...".  Ids and tokens of jobs of
# q by what they are for: pending, running (claimed), dead, completed, and child (of pending).
my $setup = <<'SQL';
CREATE FUNCTION handle(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS '';
CREATE FUNCTION make(q text, secret text) RETURNS TABLE (what text, id bigint, token bigint) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq.create_queue(q || '_letters', lease => '1 h');
	PERFORM idemq.create_queue(q, lease => '1 h', retry_jitter => 0, max_attempts => 2, retry_base => '1 h', dead_letter_queue => q || '_letters');
	PERFORM idemq.create_topic(q || '_space');
	PERFORM idemq.bind_topic(q || '_space.#', q), idemq.grant_topic(q || '_space', 'boss', 'admin');
	PERFORM idemq.schedule(q || '_yearly', '0 0 1 1 *', q, to_jsonb(secret || ' schedule'), headers => '{"h": 1}');
	PERFORM idemq.send_event(q, 'happened', to_jsonb(secret || ' event'));
	PERFORM idemq.pause(q, group_key => secret || ' group, paused');
	PERFORM idemq.enqueue_sequenced(q, secret || ' producer', 1, to_jsonb(secret || ' numbered'), delay => '1 h');
	what := 'running';
	PERFORM idemq.enqueue(q, to_jsonb(secret || ' payload'), key => secret || ' key', headers => jsonb_build_object('h', secret || ' header'),
		group_key => secret || ' group', priority => 0);
	SELECT c.id, c.token INTO id, token FROM idemq.claim(q, worker => secret || ' worker') c;
	PERFORM idemq.checkpoint(id, token, to_jsonb(secret || ' checkpoint')), idemq.hold_back(id, token, '30 min');
	RETURN NEXT;
	-- For the audit: a job that died and was retried.
	PERFORM idemq.enqueue(q, '1', priority => 0);
	PERFORM idemq.fail(c.id, c.token, secret || ' error of it', permanent => true) FROM idemq.claim(q) c;
	PERFORM idemq.redrive(q, error => secret || ' error of it');
	PERFORM idemq.commit(c.id, c.token) FROM idemq.claim(q) c;
	what := 'dead';
	PERFORM idemq.enqueue(q, to_jsonb(secret || ' payload'), priority => 0);
	SELECT c.id, c.token INTO id, token FROM idemq.claim(q, worker => secret || ' worker') c;
	PERFORM idemq.fail(id, token, secret || ' error', permanent => true, details => jsonb_build_object('d', secret || ' details'));
	RETURN NEXT;
	what := 'retrying';
	PERFORM idemq.enqueue(q, to_jsonb(secret || ' payload'), priority => 0);
	SELECT c.id, c.token INTO id, token FROM idemq.claim(q, worker => secret || ' worker') c;
	PERFORM idemq.fail(id, token, secret || ' error');
	RETURN NEXT;
	what := 'completed';
	PERFORM idemq.enqueue(q, to_jsonb(secret || ' payload'), key => 'done', priority => 0);
	SELECT c.id, c.token INTO id, token FROM idemq.claim(q, worker => secret || ' worker') c;
	PERFORM idemq.commit(id, token, to_jsonb(secret || ' result'));
	RETURN NEXT;
	what := 'pending';
	token := 0;
	id := (idemq.enqueue(q, to_jsonb(secret || ' payload'), key => 'waits', kind => 'due')).id;
	RETURN NEXT;
	what := 'child';
	id := (idemq.enqueue(q, to_jsonb(secret || ' payload'), depends_on => ARRAY[id])).id;
	RETURN NEXT;
	PERFORM idemq.report_worker(gen_random_uuid(), secret || ' worker', ARRAY[q]);
	PERFORM idemq.set_handler(q, 'public.handle');
	-- For the audit.
	PERFORM idemq.enqueue(q, '1', key => secret || ' key of a cancelled job', group_key => secret || ' group of it');
	PERFORM idemq.cancel_matching(q, key_prefix => secret || ' key of a cancelled'), idemq.enqueue(q, '1', group_key => secret || ' group of it');
	PERFORM idemq.cancel_matching(q, group_key => secret || ' group of it');
END $$;
CREATE TABLE made AS SELECT m.what, m.id, m.token FROM make('q', 'secret') m;
CREATE TABLE made_foreign AS SELECT m.what, m.id, m.token FROM make('foreign', 'foreign') m;
INSERT INTO idemq_internal.history_steps (step, place, queue_id, at, enqueued, claimed, completed, failures, died, cancelled, expired)
	SELECT 10, 0, queue_id, idemq.now(), 0, 0, 0, 0, 0, 0, 0 FROM idemq.queues;
CREATE TABLE made_queue AS SELECT queue_id, name FROM idemq.queues;
CREATE TABLE fenced (job_id bigint, token bigint);
CREATE TRIGGER fence BEFORE INSERT ON fenced FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token');
GRANT ALL ON fenced, made_queue TO PUBLIC;
SQL

# Makes what the calls are about, on a server without the queue q.  Role boss, which must be there, administers the topics.
sub prepare_calls
{
	my ($node) = @_;

	sql($node, 'CALL idemq.tick()');
	sql($node, $setup);
	return [ map { ids_of($node, $_) } 'made', 'made_foreign' ];
}

# The ids and tokens in a table; makes two steps of the job that runs.
sub ids_of
{
	my ($node, $table) = @_;
	my $secret = $table eq 'made' ? 'secret' : 'foreign';
	my %made = map { my ($what, $id, $token) = split /\|/; ($what => $id, "$what token" => $token) }
	  split /\n/, sql($node, "SELECT * FROM $table");
	my $attempt = "$made{running}, $made{'running token'}";

	sql($node, "CALL idemq.begin_step($attempt, 'charge', '\"$secret request\"', '1 h')");
	sql($node, "SELECT idemq.finish_step($attempt, 'charge', '\"$secret response\"')");
	sql($node, "CALL idemq.begin_step($attempt, 'open', '\"$secret request\"', '1 h')");
	return \%made;
}

# The arguments of each function and procedure.  One that is not in the hash fails the test.
my %arguments = (
	acquire => "'q', 'waits'",
	add_parents => "(idemq.enqueue('q', '1', depends_on => ARRAY[{running}])).id, ARRAY[(idemq.enqueue('q', '1')).id], {running}, {running token}",
	admit => "'bucket', 100, '1 s'",
	advance_clock => "'0'",
	advance_tokens => '',
	alter_queue => "'q', lease => '2 h'",
	apply_retention => '',
	assert_current => '{running}, {running token}',
	assert_shard => '0, 1',
	await_event => "{running}, {running token}, 'happened', '1 h'",
	begin_step => "{running}, {running token}, 'charge', '\"secret request\"', '1 h'",
	bind_topic => "'q_space.new', 'q'",
	cancel => '{pending}',
	cancel_by_key => "'q', 'waits'",
	cancel_many => 'ARRAY[{pending}]',
	cancel_matching => "'q', kind => 'due'",
	check => '',
	checkpoint => "{running}, {running token}, '1'",
	claim => "'q'",
	claim_any => "'{q}'",
	claim_job => '{pending}',
	clock_timestamp => '',
	commit => '{running}, {running token}',
	commit_and_claim => '{running}, {running token}',
	commit_job => '{running}, {running token}',
	commit_many => 'ARRAY[{running}], ARRAY[{running token}]',
	commit_many_and_claim => 'ARRAY[{running}], ARRAY[{running token}]',
	commit_once => '{pending}',
	create_queue => "'new'",
	create_topic => "'new'",
	current_job => '',
	drop_handler => "'q'",
	drop_queue => "'q', force => true",
	drop_topic => "'q_space'",
	enqueue => "'q', '1', key => 'done', on_duplicate => 'ignore'",
	enqueue_graph => q('[{"name": "a", "queue": "q", "payload": 1}]'),
	enqueue_job => "'q', '1', key => 'new'",
	enqueue_many => "'q', '{1}', keys => '{waits}', on_duplicate => 'replace'",
	enqueue_sequenced => "'q', 'secret producer', 2, '1'",
	ensure_handler => "'q', 'public.handle'",
	ensure_queue => "'q', lease => '2 h'",
	ensure_topic => "'q_space'",
	fail => '{running}, {running token}',
	fail_job => '{running}, {running token}',
	fail_many => 'ARRAY[{running}], ARRAY[{running token}]',
	finish_step => "{running}, {running token}, 'open', '1'",
	flow => '{pending}',
	flow_ids => '{pending}',
	flow_jobs => '{pending}',
	follow => '',
	forget_producer => "'q', 'secret producer'",
	grant_queue => "'q', 'grantee', 'claim'",
	grant_topic => "'q_space', 'grantee', 'bind'",
	heartbeat => '{running}, {running token}',
	heartbeat_many => 'ARRAY[{running}], ARRAY[{running token}]',
	hold_claimed => '',
	job => '{pending}',
	job_by_key => "'q', 'waits'",
	last_tick => "'0 0 1 1 *'",
	next_tick => "'0 0 1 1 *'",
	now => '',
	once => "'scope', 'key'",
	parents => '{child}',
	pause => "'q', group_key => 'g'",
	pause_schedule => "'q_yearly'",
	percentile => "'{10,1}', 0.5",
	progress => q('{"done": 1, "of": 2}'),
	prometheus_text => '',
	publish => "'q_space.any', '1'",
	purge => "'q'",
	queue_id => "'q'",
	queue_name => "(SELECT queue_id FROM public.made_queue WHERE name = 'q')",
	reap => "'q'",
	recount => '',
	redrive => "'q'",
	refuse_step => "{running}, {running token}, 'open', 'no'",
	hold_back => "{running}, {running token}, '50 min'",
	release => '{running}, {running token}',
	record_details => q(ARRAY[{completed}], ARRAY[{completed token}], ARRAY['{}'::jsonb]),
	release_many => 'ARRAY[{running}], ARRAY[{running token}]',
	report => '',
	report_worker => "'7b0c7f6a-1111-4222-8333-444455556666', 'w', '{q}'",
	reschedule => "{pending}, priority => 7",
	result => '{completed}',
	resume => "'q'",
	resume_schedule => "'q_yearly'",
	retire => "'elsewhere'",
	retry => '{dead}',
	retry_many => 'ARRAY[{dead}]',
	revoke_lease => '{running}',
	revoke_queue => "'q', 'granted', 'claim'",
	revoke_topic => "'q_space', 'boss', 'admin'",
	run_schedule_now => "'q_yearly'",
	schedule => "'new', '0 0 1 1 *', 'q', '1'",
	send_event => "'q', 'happened', '1'",
	set_handler => "'q', 'public.handle'",
	set_shard => '0, 1',
	shard_of => '{pending}',
	sum_counts => "'{10,1}'",
	take_over => '',
	test_clock_ahead => '',
	tick => '',
	topic_matches => "'a.#', 'a.b'",
	try_commit => '{running}, {running token}',
	unbind_topic => "'q_space.#', 'q'",
	unschedule => "'q_yearly'",
	validate => '{running}, {running token}',
	wait => "'q', '0'",
	wait_any => "'{q}', '0'",
	wait_for_room => "'q', 1, '0'",
	wait_result => "{completed}, '0'",
	wait_results => "ARRAY[{completed}], '0'",
	why => '{pending}');

# Calls that end the caller's transaction, or demand one of their own.
my %alone = map { $_ => 1 } qw(advance_clock begin_step check recount tick wait wait_any wait_for_room wait_result wait_results);

# The calls, by name: sql, foreign (the same on queue foreign, if it is about one), alone (whether it cannot run in a transaction block).  Fails
# if a function has none.
sub calls
{
	my ($node, $made) = @_;
	my %calls = (fence => { both($made, 'INSERT INTO public.fenced VALUES ({running}, {running token}) RETURNING 1') });

	foreach (split /\n/, sql($node, "SELECT DISTINCT proname, prokind FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace AND proname <> 'fence' ORDER BY 1"))
	{
		my ($name, $kind) = split /\|/;
		my $call = "idemq.$name(" . (delete $arguments{$name} // next) . ')';

		$calls{$name} = { alone => $alone{$name}, both($made, $kind eq 'p' ? "CALL $call" : $kind eq 'a' ? "SELECT $call" : "SELECT x.* FROM $call x") };
	}
	is_sql($node, "SELECT string_agg(DISTINCT proname, ' ') FROM pg_proc WHERE pronamespace = 'idemq'::regnamespace AND proname <> ALL ('{"
		  . join(',', keys %calls) . "}')", '', 'test/t/lib/Calls.pm has a call of each function');
	is(join(' ', keys %arguments), '', 'and none of a function that is not there');
	return \%calls;
}

# A call on queue q and on queue foreign, with ids and tokens filled in.
sub both
{
	my ($made, $sql) = @_;
	my $foreign = $sql =~ s/\bq(?=_|\b)/foreign/gr =~ s/\bsecret\b/foreign/gr;

	return (sql => fill($sql, $made->[0]), foreign => $sql eq $foreign && $sql !~ /\{\w+(?: token)?\}/ ? undef : fill($foreign, $made->[1]));
}

sub fill
{
	my ($sql, $made) = @_;

	return $sql =~ s/\{((?:pending|running|dead|completed|child|retrying)(?: token)?)\}/$made->{$1}/gr;
}

# The tables, views and sequences of schema idemq.
sub relations
{
	my ($node) = @_;

	return split /\n/, sql($node, "SELECT relname FROM pg_class WHERE relnamespace = 'idemq'::regnamespace AND relkind IN ('r', 'v', 'S') ORDER BY 1");
}

1;
