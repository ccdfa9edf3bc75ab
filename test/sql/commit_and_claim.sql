-- commit_and_claim, commit_many_and_claim: one statement ends an attempt and begins the next.
SET client_min_messages = warning;
CREATE EXTENSION idemq;
SELECT idemq.create_queue('q'), idemq.create_queue('other'), idemq.create_queue('one', max_running => 1);
SELECT count(*) FROM idemq.enqueue_many('q', (SELECT array_agg(to_jsonb('job ' || n)) FROM generate_series(1, 14) n));
CREATE TABLE held (id bigint, token bigint, payload jsonb);
CREATE FUNCTION hold() RETURNS text LANGUAGE sql AS
	$$ WITH c AS (INSERT INTO held SELECT id, token, payload FROM idemq.claim('q') RETURNING payload) SELECT string_agg(payload #>> '{}', ', ') FROM c $$;
SELECT hold();

-- The next job, with all that claim answers.
SELECT c.payload, c.attempt, c.token > h.token AS greater, c.deadline > now() AS later, c.key, c.enqueued_at IS NOT NULL AS enqueued
	FROM held h, LATERAL idemq.commit_and_claim(h.id, h.token, '{"ok": 1}') c;
SELECT payload, status, result FROM idemq.jobs WHERE status IN ('completed', 'running') ORDER BY id;

-- A repetition, a stale token, no such job: no job is claimed.
SELECT idemq.commit_and_claim(id, token) FROM held;
\set VERBOSITY terse
SELECT idemq.commit_and_claim(id, token - 1) FROM held;
\set VERBOSITY default
SELECT idemq.commit_and_claim(0, 1);
SELECT idemq.commit_and_claim(NULL, 1);
SELECT count(*) FROM idemq.jobs WHERE status = 'running';

-- Wrong arguments: nothing is committed.
TRUNCATE held;
SELECT hold();
SELECT idemq.commit_and_claim(id, token, NULL, 'q', 0) FROM held;
SELECT idemq.commit_and_claim(id, token, NULL, 'q', NULL) FROM held;
SELECT idemq.commit_and_claim(id, token, NULL, 'q', 1, '-1 s') FROM held;
SELECT status FROM idemq.jobs JOIN held USING (id);

-- What keeps the claim from being made does not undo the commit.
SELECT count(*) FROM held, LATERAL idemq.commit_and_claim(id, token, NULL, 'no such');
SELECT status FROM idemq.jobs JOIN held USING (id);
TRUNCATE held;
SELECT hold();
SELECT idemq.pause('q');
SELECT count(*) FROM held, LATERAL idemq.commit_and_claim(id, token);
SELECT idemq.resume('q');
SELECT status FROM idemq.jobs JOIN held USING (id);
TRUNCATE held;
SELECT hold();
CREATE ROLE regress_worker;
GRANT SELECT ON held TO regress_worker;
GRANT USAGE ON SCHEMA idemq TO regress_worker;
SELECT idemq.grant_queue('q', 'regress_worker', 'claim');
SET ROLE regress_worker;
SELECT count(*) FROM held, LATERAL idemq.commit_and_claim(id, token, NULL, 'other');
RESET ROLE;
SELECT status FROM idemq.jobs JOIN held USING (id);

TRUNCATE held;
SELECT hold();
SELECT count(*) FROM held, LATERAL idemq.commit_and_claim(id, token, NULL, 'other', 1, '2 days');
SELECT status FROM idemq.jobs JOIN held USING (id);

-- Another queue, several jobs, the lease and the worker.
TRUNCATE held;
SELECT hold();
SELECT count(*) FROM idemq.enqueue_many('other', ARRAY['1', '2', '3']::jsonb[]);
SELECT c.payload, round(extract(epoch FROM c.deadline - clock_timestamp()) / 600) AS lease FROM held h,
	LATERAL idemq.commit_and_claim(h.id, h.token, NULL, 'other', 2, '10 min', 'me', true) c;
SELECT payload, worker FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'other' AND status = 'running' ORDER BY id;

-- In a queue that runs one at a time, in the place of the one that ends.
SELECT count(*) FROM idemq.enqueue_many('one', ARRAY['1', '2', '3']::jsonb[]);
TRUNCATE held;
INSERT INTO held SELECT id, token, payload FROM idemq.claim('one');
SELECT count(*) FROM idemq.claim('one');
BEGIN;
SELECT c.payload FROM held, LATERAL idemq.commit_and_claim(id, token, NULL, NULL, 5) c;
ROLLBACK;
SELECT status, count(*) FROM idemq.jobs JOIN idemq.queues USING (queue_id) WHERE name = 'one' GROUP BY 1 ORDER BY 1;
SELECT c.payload FROM held, LATERAL idemq.commit_and_claim(id, token, NULL, NULL, 5) c;
SELECT count(*) FROM idemq.claim('one');

-- The next of the same group comes after the commit.
SELECT count(*) FROM idemq.enqueue_many('other', ARRAY['"a1"', '"a2"', '"b1"']::jsonb[], group_keys => ARRAY['a', 'a', 'b']);
TRUNCATE held;
SELECT count(*) FROM idemq.claim('other');
INSERT INTO held SELECT id, token, payload FROM idemq.claim('other');
SELECT payload FROM held;
SELECT c.payload FROM held, LATERAL idemq.commit_and_claim(id, token, NULL, NULL, 5) c ORDER BY 1;
SELECT payload FROM idemq.claim('other', 5);

-- Many: an outcome for each, then the claimed ones.
TRUNCATE held;
INSERT INTO held SELECT id, token, payload FROM idemq.claim('q', 2);
SELECT c.outcome, c.id IS NOT NULL AS id, c.token IS NOT NULL AS token, c.payload, c.attempt, j.result
	FROM idemq.commit_many_and_claim((SELECT array_agg(id ORDER BY id) || 0 || array_agg(id) FILTER (WHERE payload = '"job 8"') FROM held),
		(SELECT array_agg(token ORDER BY id) || 1 || array_agg(token - 1) FILTER (WHERE payload = '"job 8"') FROM held),
		ARRAY['1', '2', '3', '4']::jsonb[], max_jobs => 2) c LEFT JOIN idemq.jobs j USING (id) ORDER BY c.outcome, j.id;
-- None is committed, and no queue named: none is claimed.
SELECT outcome FROM idemq.commit_many_and_claim((SELECT array_agg(id) FROM held), (SELECT array_agg(token) FROM held));
SELECT outcome FROM idemq.commit_many_and_claim('{}', '{}');
SELECT outcome, payload FROM idemq.commit_many_and_claim('{}', '{}', NULL, 'q');
SELECT outcome FROM idemq.commit_many_and_claim('{1}', '{}');

-- Above READ COMMITTED.
TRUNCATE held;
INSERT INTO held SELECT id, token, payload FROM idemq.claim('q');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT c.payload FROM held, LATERAL idemq.commit_and_claim(id, token) c;
SAVEPOINT a;
SELECT idemq.commit_and_claim(id, token) FROM held;
ROLLBACK TO a;
COMMIT;
SELECT * FROM idemq.check();
SELECT idemq.drop_queue('q', force => true), idemq.drop_queue('other', force => true), idemq.drop_queue('one', force => true);
DROP TABLE held;
DROP FUNCTION hold;
DROP OWNED BY regress_worker;
DROP EXTENSION idemq;
DROP ROLE regress_worker;
