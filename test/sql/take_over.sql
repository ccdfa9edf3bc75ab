-- follow() and take_over(): what the database gives afterwards is above all that came from
-- the publisher, by any table.  The rows are written here as the apply worker writes them.
CREATE EXTENSION idemq;
\pset null -
SELECT idemq.create_queue('q', lease => '1 h') AS q \gset
-- The session is sure of the sequence: it has given ids of this run of the server before.
SELECT id FROM idemq.enqueue('q', '1', run_at => '2001-01-01') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT extract(epoch FROM now() - '2026-01-01')::bigint * 1000000 AS now, 31536000000000 AS year \gset
CREATE PROCEDURE came(what jsonb) LANGUAGE sql AS $$
	INSERT INTO idemq.jobs OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(j, what)).* FROM idemq.jobs j WHERE id = (SELECT min(id) FROM idemq.jobs)
$$;

SELECT idemq.follow(), pg_sleep(0.1);
-- From a publisher whose clock is ahead by two years; running, with a lease that is over by its row.
SET session_replication_role = replica;
CALL came(jsonb_build_object('id', :now + 2 * :year, 'token', :token + 2 * :year, 'queue_id', :q + 50,
	'claimed_at', now() - interval '2 h', 'deadline', now() - interval '1 h'));
INSERT INTO idemq.queues OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(queues, jsonb_build_object('queue_id', :q + 50, 'name', 'came'))).* FROM idemq.queues;
INSERT INTO idemq.audit OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(a, '{"id": 5000}')).* FROM idemq.audit a LIMIT 1;
RESET session_replication_role;
SELECT idemq.enqueue('q', '2');
SELECT idemq.create_queue('ours');
SELECT idemq.take_over();

SELECT id AS next, id > :now + 2 * :year AS above FROM idemq.enqueue('q', '2') \gset
\echo :above
SELECT token AS next_token, token > :token + 2 * :year AS above FROM idemq.claim('q') \gset
\echo :above
SELECT idemq.create_queue('new') = :q + 51 AS above;
SELECT min(id) > 5000 AS above FROM idemq.audit WHERE queue = 'new';
-- The lease of the job that came lasts its length from now on.
SELECT idemq.reap('came');
SELECT w.deadline + interval '00:00:00.01' > f.taken_over_at + interval '1 h' AS from_the_switch FROM idemq.running_jobs w, idemq_internal.followers f WHERE w.job_id = :now + 2 * :year;
SELECT idemq.heartbeat(:now + 2 * :year, :token + 2 * :year);
SELECT status FROM idemq.jobs WHERE id = :now + 2 * :year;

-- Once more: the greatest numbers are in tables other than idemq.jobs.
SELECT idemq.follow();
SET session_replication_role = replica;
INSERT INTO idemq.attempts (job_id, token, queue_id, attempt, ended_at, outcome) VALUES (:now + 3 * :year, :token + 3 * :year, :q + 70, 1, now(), 'failed');
RESET session_replication_role;
SELECT idemq.take_over();
SELECT id > :now + 3 * :year AS above FROM idemq.enqueue('q', '3');
SELECT token > :token + 3 * :year AS above FROM idemq.claim('q');
SELECT idemq.create_queue('newer') = :q + 71 AS above;
SELECT idemq.take_over();
