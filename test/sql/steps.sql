-- Steps: what an attempt has done already, outside of this database and in it.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h', max_attempts => 10) AS q \gset
SELECT (idemq.enqueue('q', '1')).id \gset
SELECT token AS t FROM idemq.claim('q') \gset
CREATE VIEW steps AS SELECT name, state, round, token, earlier, effect_key IS NOT NULL AS has_key, begun_at IS NOT NULL AS begun,
	call_until - begun_at AS may_last, answered_at IS NOT NULL AS answered, request, response, error FROM idemq.steps ORDER BY job_id, name;
-- What an attempt that was lost looks like: its call can arrive no more.
CREATE FUNCTION call_is_over() RETURNS void LANGUAGE sql AS
	$$ UPDATE idemq.steps SET begun_at = begun_at - interval '1 day', call_until = call_until - interval '1 day' WHERE state = 'open' $$;

-- New: a key to send along, and nothing else.
CALL idemq.begin_step(:id, :t, 'charge', '{"amount": 12, "to": "a"}', '10 min') \gset new_
SELECT :'new_outcome' AS outcome, :{?new_response} AS response, :{?new_former_request} AS former, :{?new_retry_after} AS retry_after,
	:'new_begun_at'::timestamptz BETWEEN now() - interval '1 min' AND now() AS now,
	:'new_effect_key' ~ '^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$' AS key;
SELECT name, state, round, token = :t AS mine, earlier, has_key, begun, may_last, answered, request, response, error FROM steps;
-- The key is made of the database's uuid, the job, the step and its round: the test makes it, too.
CREATE FUNCTION key_of(id bigint, name text, round int) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws('-', left(h, 8), substr(h, 9, 4), '8' || substr(h, 14, 3),
		to_hex((('x' || substr(h, 17, 1))::bit(4)::int & 3) + 8) || substr(h, 18, 3), substr(h, 21, 12))
	FROM (SELECT encode(sha256(uuid_send(uuid) || int8send(id) || int4send(round) || convert_to(name, 'UTF8')), 'hex') AS h
		FROM idemq_internal.database_uuid) u $$;
SELECT :'new_effect_key' = key_of(:id, 'charge', 0) AS made_so, effect_key = :'new_effect_key' AS stored FROM idemq.steps;
-- The same attempt again, an equal request: whether it has called is not known here either.
CALL idemq.begin_step(:id, :t, 'charge', '{"to": "a", "amount": 12.0}', '1 h') \gset busy_
SELECT :'busy_outcome' AS outcome, :'busy_retry_after'::interval BETWEEN '1 us' AND '10 min' AS retry_after, :'busy_former_request' AS former,
	:'busy_effect_key' = :'new_effect_key' AS same_key, :'busy_begun_at' = :'new_begun_at' AS same_time;
SELECT call_until - begun_at AS unchanged FROM idemq.steps;
-- Another request.
CALL idemq.begin_step(:id, :t, 'charge', '{"amount": 13, "to": "a"}', '10 min');
-- It is over: unknown, and begun anew by who was told so.
SELECT call_is_over();
CALL idemq.begin_step(:id, :t, 'charge', '{"amount": 13, "to": "a"}', '10 min');
CALL idemq.begin_step(:id, :t, 'charge', '{"amount": 12, "to": "a"}', '1 min') \gset unknown_
SELECT :'unknown_outcome' AS outcome, :{?unknown_retry_after} AS retry_after, :'unknown_former_request' AS former, :{?unknown_response} AS response,
	:'unknown_effect_key' = :'new_effect_key' AS same_key, :'unknown_begun_at'::timestamptz < now() - interval '23 h' AS former_time;
SELECT state, token = :t AS mine, earlier, begun_at > now() - interval '1 min' AS anew, call_until - begun_at AS may_last FROM idemq.steps;
CALL idemq.begin_step(:id, :t, 'charge', '{"amount": 12, "to": "a"}', '1 min') \gset busy_
SELECT :'busy_outcome';
-- The first answer stays.
SELECT idemq.finish_step(:id, :t, 'charge', '{"charge": 77}');
SELECT idemq.finish_step(:id, :t, 'charge', '{"charge": 78}');
SELECT idemq.finish_step(:id, :t, 'charge');
CALL idemq.begin_step(:id, :t, 'charge', '{"amount": 12, "to": "a"}', '10 min') \gset done_
SELECT :'done_outcome' AS outcome, :'done_response' AS response, :'done_former_request' AS former, :{?done_retry_after} AS retry_after,
	:'done_effect_key' = :'new_effect_key' AS same_key, :'done_begun_at'::timestamptz > now() - interval '1 h' AS begun;
CALL idemq.begin_step(:id, :t, 'charge', '{"amount": 13, "to": "a"}', '10 min');
-- A refusal after that.
SELECT idemq.refuse_step(:id, :t, 'charge', 'no');
SELECT state, response, error FROM steps;

-- Refused: new, under another key; the refusal can be repeated.
CALL idemq.begin_step(:id, :t, 'mail', '{}', '10 min') \gset new_
SELECT idemq.refuse_step(:id, :t, 'mail', 'mailbox full');
SELECT idemq.refuse_step(:id, :t, 'mail', 'mailbox still full');
SELECT state, round, answered, error FROM steps WHERE name = 'mail';
CALL idemq.begin_step(:id, :t, 'mail', '{"to": "b"}', '10 min') \gset again_
SELECT :'again_outcome' AS outcome, :{?again_former_request} AS former, :'again_effect_key' = :'new_effect_key' AS same_key,
	:'again_effect_key' = key_of(:id, 'mail', 1) AS made_so;
SELECT state, round, answered, request, error FROM steps WHERE name = 'mail';
-- A receipt after the refusal: it was refused too soon, and nothing has been sent since.
SELECT idemq.refuse_step(:id, :t, 'mail');
SELECT idemq.finish_step(:id, :t, 'mail', '"sent"');
CALL idemq.begin_step(:id, :t, 'mail', '{"to": "b"}', '10 min') \gset done_
SELECT :'done_outcome' AS outcome, :'done_response' AS response, :'done_effect_key' = :'again_effect_key' AS same_key;
SELECT state, round, error FROM steps WHERE name = 'mail';

-- In this database: the first statement of the effect's transaction.
CREATE TABLE stock (reserved int);
INSERT INTO stock VALUES (0);
BEGIN;
SELECT idemq.finish_step(:id, :t, 'reserve', '{"shelf": 3}');
UPDATE stock SET reserved = reserved + 1;
COMMIT;
SELECT state, round, token = :t AS mine, has_key, begun, answered, request, response FROM steps WHERE name = 'reserve';
-- Again, by an attempt that lost the answer to its COMMIT.
BEGIN;
SELECT idemq.finish_step(:id, :t, 'reserve', '{"shelf": 4}');
UPDATE stock SET reserved = reserved + 1;
COMMIT;
SELECT idemq.refuse_step(:id, :t, 'reserve');
CALL idemq.begin_step(:id, :t, 'reserve', '{}', '10 min');
-- Rolled back, also to a savepoint: not done.
BEGIN;
SELECT idemq.finish_step(:id, :t, 'pack', '1');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT idemq.finish_step(:id, :t, 'pack', '2');
UPDATE stock SET reserved = reserved + 10;
ROLLBACK TO a;
SELECT idemq.finish_step(:id, :t, 'pack', '3');
COMMIT;
SELECT response FROM steps WHERE name = 'pack';
SELECT reserved FROM stock;

-- The next attempt: a stale one may bring what it has begun, and nothing else.
CALL idemq.begin_step(:id, :t, 'late', '{}', '10 min') \gset
CALL idemq.begin_step(:id, :t, 'later', '{}', '10 min') \gset
CALL idemq.begin_step(:id, :t, 'latest', '{}', '10 min') \gset
CALL idemq.begin_step(:id, :t, 'no', '{}', '10 min') \gset
CALL idemq.begin_step(:id, :t, 'not', '{}', '10 min') \gset
SELECT effect_key AS late_key FROM idemq.steps WHERE name = 'late' \gset
SELECT idemq.fail(:id, :t, 'lost', '0');
SELECT token AS t2 FROM idemq.claim('q') \gset
CALL idemq.begin_step(:id, :t, 'late', '{}', '10 min');
CALL idemq.begin_step(:id, :t, 'never', '{}', '10 min');
SELECT idemq.finish_step(:id, :t, 'never', '{}');
SELECT idemq.refuse_step(:id, :t, 'never');
-- What an attempt that lives may not do before it asks: settle what another began.
SELECT idemq.finish_step(:id, :t2, 'late', '{}');
SELECT idemq.refuse_step(:id, :t2, 'late');
SELECT idemq.refuse_step(:id, :t2, 'never');
SELECT idemq.finish_step(:id, :t2, 'charge', '{}');
SELECT idemq.finish_step(:id, :t2, 'reserve', '{}');
-- Busy for it too, then unknown; with the same key.
CALL idemq.begin_step(:id, :t2, 'late', '{}', '10 min') \gset
SELECT :'outcome', :'effect_key' = :'late_key' AS same_key;
-- The stale one's answer comes in time; another's when the next has taken it over; a refusal.
SELECT idemq.finish_step(:id, :t, 'late', '"first"');
SELECT call_is_over();
CALL idemq.begin_step(:id, :t2, 'later', '{}', '10 min') \gset
SELECT :'outcome', token = :t2 AS theirs, earlier = ARRAY[:t] AS earlier FROM idemq.steps WHERE name = 'later';
SELECT idemq.finish_step(:id, :t, 'later', '"second"');
SELECT idemq.finish_step(:id, :t2, 'later', '"third"');
SELECT idemq.refuse_step(:id, :t, 'no', 'card declined');
CALL idemq.begin_step(:id, :t2, 'no', '{}', '10 min') \gset
SELECT :'outcome', round, token = :t2 AS theirs, earlier FROM idemq.steps WHERE name = 'no';
-- The first attempt began another round: what it says is not about this one.
SELECT idemq.finish_step(:id, :t, 'no', '{}');
-- Taken over: a refusal of the first says nothing of the second's call.
CALL idemq.begin_step(:id, :t2, 'latest', '{}', '10 min') \gset
SELECT :'outcome';
SELECT idemq.refuse_step(:id, :t, 'latest');
SELECT name, state, response FROM steps WHERE name IN ('late', 'later', 'latest', 'no') ORDER BY name;

-- Why, the metrics and the audit know: not is of an attempt that is over.
SELECT regexp_replace(idemq.why(:id), '\d{4}-\d\d-\d\d[^;,]*', 'TIME', 'g') LIKE '%its step "not" is unknown: an attempt that began it at TIME; the next attempt must ask the other system; its step "no" is open%' AS why,
	idemq.why(:id) LIKE '%its step "latest" is open: its request may last until %' AS open;
SELECT steps_open, steps_unknown, steps_done_total FROM idemq.metrics WHERE queue = 'q';
SELECT * FROM idemq.check();
SELECT idemq.commit(:id, :t2);
SELECT steps_open, steps_unknown, steps_done_total FROM idemq.metrics WHERE queue = 'q';
SELECT call_is_over();
SELECT idemq.why(:id) LIKE 'completed at %; its step "not" is unknown: % ask the other system, then call idemq.finish_step(' || :id || ', ' || :t || ', ...)%' AS why;
SELECT severity, invariant FROM idemq.check();
-- It can be settled then.
SELECT idemq.finish_step(:id, :t, 'not', '{}');
SELECT idemq.finish_step(:id, :t2, 'no', '{}');
SELECT idemq.refuse_step(:id, :t2, 'latest');
SELECT * FROM idemq.check();
CALL idemq.begin_step(:id, :t2, 'one more', '{}', '10 min');
SELECT idemq.finish_step(:id, :t2, 'one more');
-- A greater token than the job's.
UPDATE idemq.steps SET token = token + 1000000000 WHERE name = 'late';
SELECT severity, invariant FROM idemq.check();

-- With a commit in the same transaction, also where nothing stays.
SELECT (idemq.enqueue('q', '2')).id \gset
SELECT token AS t FROM idemq.claim('q') \gset
CALL idemq.begin_step(:id, :t, 'a', '{}', '10 min') \gset
BEGIN;
SELECT idemq.commit(:id, :t);
SELECT idemq.finish_step(:id, :t, 'a', '1'), idemq.finish_step(:id, :t, 'b', '2');
COMMIT;
SELECT name, state, response FROM idemq.steps WHERE job_id = :id ORDER BY name;
SELECT idemq.create_queue('nothing', retention => '0') AS nothing \gset
SELECT (idemq.enqueue('nothing', '1')).id \gset
SELECT token AS t FROM idemq.claim('nothing') \gset
CALL idemq.begin_step(:id, :t, 'a', '{}', '10 min') \gset
BEGIN;
SELECT idemq.commit(:id, :t);
SELECT idemq.finish_step(:id, :t, 'a', '1'), idemq.finish_step(:id, :t, 'b', '2'), idemq.refuse_step(:id, :t, 'a');
ROLLBACK;
SELECT count(*) FROM idemq.steps WHERE job_id = :id;
SELECT idemq.commit(:id, :t);
SELECT count(*) FROM idemq.steps WHERE job_id = :id;
SELECT idemq.finish_step(:id, :t, 'a', '1');

-- Retry and redrive keep key and answers.
SELECT (idemq.enqueue('q', '3')).id \gset
SELECT token AS t FROM idemq.claim('q') \gset
-- meant to expire
CALL idemq.begin_step(:id, :t, 'a', '{}', '1 ms') \gset a_
CALL idemq.begin_step(:id, :t, 'b', '{}', '10 min') \gset
SELECT idemq.finish_step(:id, :t, 'b', '7');
SELECT pg_sleep(0.002);
SELECT idemq.fail(:id, :t, permanent => true);
SELECT idemq.redrive('q');
SELECT token AS t FROM idemq.claim('q') \gset
CALL idemq.begin_step(:id, :t, 'a', '{}', '10 min') \gset r_
SELECT :'r_outcome', :'r_effect_key' = :'a_effect_key' AS same_key;
CALL idemq.begin_step(:id, :t, 'b', '{}', '10 min') \gset r_
SELECT :'r_outcome', :'r_response';
SELECT idemq.cancel(:id);
SELECT idemq.retry(:id);
SELECT token AS t FROM idemq.claim('q') \gset
CALL idemq.begin_step(:id, :t, 'b', '{}', '10 min') \gset r_
SELECT :'r_outcome', :'r_response';
SELECT idemq.release(:id, :t);

-- Another payload is another effect: replace, and rerun of a job that is finished, running or waits.
CREATE FUNCTION states() RETURNS text LANGUAGE sql AS
	$$ SELECT string_agg(name || ' ' || state || ' ' || round || coalesce(' ' || error, ''), ', ' ORDER BY name) FROM idemq.steps WHERE job_id = (SELECT max(id) FROM idemq.jobs) $$;
SELECT (idemq.enqueue('q', '4', key => 'k')).id \gset
SELECT token AS t FROM idemq.claim_job(:id) \gset
CALL idemq.begin_step(:id, :t, 'a', '{}', '10 min') \gset a_
CALL idemq.begin_step(:id, :t, 'b', '{}', '10 min') \gset
SELECT idemq.finish_step(:id, :t, 'b', '7');
CALL idemq.begin_step(:id, :t, 'c', '{}', '10 min') \gset
SELECT idemq.refuse_step(:id, :t, 'c', 'no');
SELECT idemq.release(:id, :t);
SELECT outcome FROM idemq.enqueue('q', '4', key => 'k');
SELECT states();
SELECT outcome FROM idemq.enqueue('q', '5', key => 'k', on_duplicate => 'replace');
SELECT states();
SELECT token AS t2 FROM idemq.claim_job(:id) \gset
CALL idemq.begin_step(:id, :t2, 'a', '{"other": 1}', '10 min') \gset v_
SELECT :'v_outcome', :'v_effect_key' = :'a_effect_key' AS same_key;
-- The answer of the first payload's call: not about this one.
SELECT idemq.finish_step(:id, :t, 'b', '8');
SELECT idemq.finish_step(:id, :t, 'a', '9');
SELECT outcome FROM idemq.enqueue('q', '6', key => 'k', on_duplicate => 'rerun');
SELECT states();
SELECT idemq.commit(:id, :t2);
SELECT states();
SELECT token AS t FROM idemq.claim_job(:id) \gset
SELECT idemq.finish_step(:id, :t, 'b', '"done here"');
SELECT outcome FROM idemq.enqueue('q', '7', key => 'k', on_duplicate => 'rerun');
SELECT idemq.fail(:id, :t, retry_in => '0');
SELECT states();
-- It repeats its transaction: fenced, though the step is void.
SELECT idemq.finish_step(:id, :t, 'b', '"done again"');
SELECT token AS t FROM idemq.claim_job(:id) \gset
CALL idemq.begin_step(:id, :t, 'b', '{}', '10 min') \gset v_
SELECT :'v_outcome', :'v_effect_key' = key_of(:id, 'b', 2) AS key;
SELECT idemq.fail(:id, :t, retry_in => '1 h');
SELECT outcome FROM idemq.enqueue('q', '8', key => 'k', on_duplicate => 'rerun');
SELECT states();
SELECT * FROM idemq.check() WHERE invariant = 'steps';

-- In a group nothing is different.
SELECT (idemq.enqueue('q', '1', group_key => 'g')).id \gset
SELECT status FROM idemq.enqueue('q', '2', group_key => 'g');
SELECT token AS t FROM idemq.claim_job(:id) \gset
CALL idemq.begin_step(:id, :t, 'a', '{}', '10 min') \gset v_
SELECT :'v_outcome', idemq.finish_step(:id, :t, 'a');

-- Arguments.
CALL idemq.begin_step(NULL, :t, 'a', '{}', '10 min');
CALL idemq.begin_step(:id, NULL, 'a', '{}', '10 min');
CALL idemq.begin_step(:id, :t, NULL, '{}', '10 min');
CALL idemq.begin_step(:id, :t, 'a', NULL, '10 min');
CALL idemq.begin_step(:id, :t, 'a', '{}', NULL);
CALL idemq.begin_step(:id, :t, '', '{}', '10 min');
CALL idemq.begin_step(:id, :t, repeat('a', 257), '{}', '10 min');
CALL idemq.begin_step(:id, :t, 'a', '{}', '0');
CALL idemq.begin_step(:id, :t, 'a', '{}', '-1 s');
CALL idemq.begin_step(:id, :t, 'a', '{}', '1001 years');
CALL idemq.begin_step(-1, :t, 'a', '{}', '10 min');
CALL idemq.begin_step(:id, :t, repeat('ä', 128), 'null', '1000 years') \gset v_
SELECT :'v_outcome', effect_key = key_of(job_id, name, 0) AS key FROM idemq.steps WHERE name = repeat('ä', 128);
SELECT idemq.finish_step(NULL, :t, 'a');
SELECT idemq.finish_step(:id, NULL, 'a');
SELECT idemq.finish_step(:id, :t, NULL);
SELECT idemq.finish_step(:id, :t, '');
SELECT idemq.finish_step(-1, :t, 'a');
SELECT idemq.refuse_step(NULL, :t, 'a');
SELECT idemq.refuse_step(:id, NULL, 'a');
SELECT idemq.refuse_step(:id, :t, NULL);
SELECT idemq.refuse_step(-1, :t, 'a');
-- Long documents.
-- meant to expire
CALL idemq.begin_step(:id, :t, 'long', to_jsonb(repeat('x', 1000000)), '1 ms') \gset v_
SELECT pg_sleep(0.002);
CALL idemq.begin_step(:id, :t, 'long', to_jsonb(repeat('x', 1000000)), '10 min') \gset v_
SELECT :'v_outcome', length(:'v_former_request');
SELECT length(idemq.finish_step(:id, :t, 'long', to_jsonb(repeat('y', 1000000)))::text);
CALL idemq.begin_step(:id, :t, 'long', to_jsonb(repeat('x', 1000000)), '10 min') \gset v_
SELECT :'v_outcome', length(:'v_response');
CALL idemq.begin_step(:id, :t, 'too long', to_jsonb(repeat('x', 17000000)), '10 min');
SELECT idemq.finish_step(:id, :t, 'too long', to_jsonb(repeat('x', 17000000)));
SELECT idemq.refuse_step(:id, :t, 'too long', repeat('x', 17000000));

-- Where it may not be called: it commits by itself.
BEGIN;
CALL idemq.begin_step(:id, :t, 'x', '{}', '10 min');
ROLLBACK;
DO $$ DECLARE o text; r jsonb; q jsonb; b timestamptz; a interval; k text;
	BEGIN BEGIN CALL idemq.begin_step(1, 1, 'x', '{}', '10 min', o, r, q, b, a, k); EXCEPTION WHEN division_by_zero THEN END; END $$;
CREATE FUNCTION f() RETURNS void LANGUAGE plpgsql AS
	$$ DECLARE o text; r jsonb; q jsonb; b timestamptz; a interval; k text; BEGIN CALL idemq.begin_step(1, 1, 'x', '{}', '10 min', o, r, q, b, a, k); END $$;
SELECT f();
SELECT 1 \; CALL idemq.begin_step(1, 1, 'x', '{}', '10 min');
-- In a procedure it is a COMMIT: of the claim as well.
SELECT (idemq.enqueue('q', '9')).id \gset
DO $$
DECLARE
	o text; r jsonb; q jsonb; b timestamptz; a interval; k text;
	job record;
BEGIN
	SELECT id, token INTO job FROM idemq.claim_job((SELECT max(id) FROM idemq.jobs));
	CALL idemq.begin_step(job.id, job.token, 'in a procedure', '{}', '10 min', o, r, q, b, a, k);
	ASSERT o = 'new' AND k IS NOT NULL;
	ROLLBACK;
END $$;
SELECT j.status, s.state FROM idemq.jobs j JOIN idemq.steps s ON s.job_id = j.id AND s.token = j.token WHERE j.id = :id;
-- A transaction that only reads.
SET default_transaction_read_only = on;
CALL idemq.begin_step(:id, 1, 'x', '{}', '10 min');
SELECT idemq.finish_step(:id, 1, 'x');
SELECT idemq.refuse_step(:id, 1, 'x');
RESET default_transaction_read_only;

-- Each isolation level.
SELECT token AS t FROM idemq.jobs WHERE id = :id \gset
SET default_transaction_isolation = 'repeatable read';
CALL idemq.begin_step(:id, :t, 'rr', '{}', '10 min') \gset v_
SELECT :'v_outcome';
CALL idemq.begin_step(:id, :t, 'rr', '{}', '10 min') \gset v_
SELECT :'v_outcome';
SELECT idemq.finish_step(:id, :t, 'rr', '1'), idemq.finish_step(:id, :t, 'rr', '2'), idemq.finish_step(:id, :t, 'inside', '2');
SET default_transaction_isolation = 'serializable';
CALL idemq.begin_step(:id, :t, 'rr', '{}', '10 min') \gset v_
SELECT :'v_outcome', :'v_response', idemq.finish_step(:id, :t, 'serializable', '2');
RESET default_transaction_isolation;

-- Roles: as the job.  One that may not claim finds no job, and sees no step.
CREATE ROLE regress_steps_worker;
CREATE ROLE regress_steps_stranger;
SELECT idemq.grant_queue('q', 'regress_steps_worker', 'claim'), idemq.grant_queue('nothing', 'regress_steps_stranger', 'claim');
SET ROLE regress_steps_worker;
CALL idemq.begin_step(:id, :t, 'as a worker', '{}', '10 min') \gset v_
SELECT :'v_outcome', idemq.finish_step(:id, :t, 'as a worker', '3');
SELECT state, response FROM idemq.steps WHERE name = 'as a worker';
UPDATE idemq.steps SET response = '4';
DELETE FROM idemq.steps;
TABLE idemq_internal.database_uuid;
SET ROLE regress_steps_stranger;
SELECT count(*) FROM idemq.steps;
CALL idemq.begin_step(:id, :t, 'as a worker', '{}', '10 min');
SELECT idemq.finish_step(:id, :t, 'as a worker', '{}');
SELECT idemq.refuse_step(:id, :t, 'as a worker');
SELECT idemq.finish_step(:id, :t, 'b', '{}');
RESET ROLE;
-- Nothing that a role brings along is run.
CREATE SCHEMA trap;
CREATE FUNCTION trap.gen_random_uuid() RETURNS uuid LANGUAGE plpgsql AS 'BEGIN RAISE ''trapped''; END';
CREATE FUNCTION trap.eq(text, text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''trapped''; END';
CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.eq);
SET search_path = trap, pg_catalog, public;
CALL idemq.begin_step(:id, :t, 'trapped', '{}', '10 min') \gset v_
SELECT :'v_outcome', idemq.finish_step(:id, :t, 'trapped');
RESET search_path;

-- Retention, purge and drop_queue take the steps along; of others they stay.
CREATE VIEW left_over AS SELECT q.name, count(*) AS steps, count(DISTINCT s.job_id) AS jobs FROM idemq.steps s LEFT JOIN idemq.queues q USING (queue_id) GROUP BY 1 ORDER BY 1;
SELECT idemq.create_queue('p', retention => '1 h') IS NOT NULL;
CREATE PROCEDURE some_jobs(n int) LANGUAGE plpgsql AS $$
DECLARE
	o text; r jsonb; q jsonb; b timestamptz; a interval; k text;
	job record;
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM idemq.enqueue('p', to_jsonb(i));
		SELECT id, token INTO job FROM idemq.claim('p');
		CALL idemq.begin_step(job.id, job.token, 'x', '{}', '10 min', o, r, q, b, a, k);
		PERFORM idemq.finish_step(job.id, job.token, 'x'), idemq.finish_step(job.id, job.token, 'y');
		PERFORM idemq.commit(job.id, job.token);
	END LOOP;
END $$;
CALL some_jobs(3);
SELECT * FROM left_over WHERE name = 'p';
SELECT idemq.apply_retention();
SELECT * FROM left_over WHERE name = 'p';
UPDATE idemq.jobs SET finished_at = finished_at - interval '2 h' WHERE id = (SELECT max(id) FROM idemq.jobs);
SELECT idemq.apply_retention();
SELECT * FROM left_over WHERE name = 'p';
UPDATE idemq.jobs SET status = 'cancelled' WHERE id = (SELECT max(id) FROM idemq.jobs);
SELECT idemq.purge('p', 'cancelled');
SELECT * FROM left_over WHERE name = 'p';
SELECT idemq.drop_queue('p', force => true);
SELECT count(*) > 0 AS others FROM idemq.steps WHERE queue_id = :q;
SELECT name FROM left_over WHERE name IS DISTINCT FROM 'q';

DROP SCHEMA trap CASCADE;
SELECT idemq.drop_queue('q', force => true), idemq.drop_queue('nothing', force => true);
SELECT count(*) FROM idemq.steps;
DROP ROLE regress_steps_worker, regress_steps_stranger;
DROP VIEW steps, left_over;
DROP EXTENSION idemq;
