-- reschedule: another time, another priority; retry_many: many at once.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', max_attempts => 3, retry_jitter => 0) > 0 AS created;
-- What a claim takes, in order.
CREATE FUNCTION take(n int) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(payload #>> '{}', ' ') FROM (SELECT payload FROM idemq.claim('q', n)) c $$;
CREATE FUNCTION job(name text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.jobs WHERE payload = to_jsonb(name) ORDER BY id DESC LIMIT 1 $$;

-- Later, sooner, first, last; what is not given stays.
SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM unnest('{a,b,c,d}'::text[]) n;
SELECT (idemq.enqueue('q', '"tomorrow"', delay => '1 day')).outcome;
SELECT idemq.reschedule(job('a'), clock_timestamp() + '1 h'), idemq.reschedule(job('d'), priority => 0), idemq.reschedule(job('b'), priority => 9);

SELECT idemq.reschedule(job('tomorrow'), clock_timestamp() - interval '1 year', 5);
SELECT payload, status, priority, attempt, ready_at - enqueued_at < '1 min' AS soon FROM idemq.jobs ORDER BY id;
SELECT * FROM idemq.check();
SELECT take(10);
SELECT idemq.why(job('a')) ~ 'not due before' AS not_due;
SELECT idemq.reschedule(job('a'), now()), take(10);

-- Only one that waits.
SELECT idemq.reschedule(job('a'), now()) AS running;
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE id = job('a');
SELECT idemq.fail(id, token, permanent => true) FROM idemq.jobs WHERE id = job('b');
SELECT idemq.cancel(job('c')), idemq.reschedule(job('c'), now()), idemq.reschedule(job('a'), now()), idemq.reschedule(job('b'), now()), idemq.reschedule(-1, now());
-- A job that is retrying stays so, with its attempts and error.
SELECT idemq.fail(id, token, 'oops', retry_in => '1 h') FROM idemq.jobs WHERE id = job('d');
SELECT idemq.reschedule(job('d'), '2100-01-01 00:00+00', 3);
SELECT status, attempt, last_error, priority, ready_at FROM idemq.job(job('d'));
SELECT idemq.reschedule(job('d'), priority => 4);
SELECT status, priority, ready_at FROM idemq.job(job('d'));
SELECT idemq.reschedule(job('d'), '2000-01-01'), take(5);

-- Arguments.
SELECT idemq.reschedule(NULL, now());
SELECT idemq.reschedule(1);
SELECT idemq.reschedule(1, 'infinity');
SELECT idemq.reschedule(1, '-infinity');
SELECT idemq.reschedule(1, priority => 10);
SELECT idemq.reschedule(1, priority => -1);
BEGIN READ ONLY;
SELECT idemq.reschedule(job('d'), now());
ROLLBACK;

-- Rolled back, it stands where it stood, for this session and for a claim.
SELECT count(idemq.enqueue('q', to_jsonb(n))) FROM unnest('{e,f}'::text[]) n;
BEGIN;
SELECT idemq.reschedule(job('e'), now() + '1 day', 1);
SAVEPOINT s;
SELECT idemq.reschedule(job('f'), now() + '1 day', 9);
ROLLBACK TO s;
SELECT take(1);
ROLLBACK;
SELECT take(2);
SELECT * FROM idemq.check();

-- It expires all the same; a claim that comes too late cancels it.
-- meant to expire
SELECT id AS x FROM idemq.enqueue('q', '"x"', expires_in => '1 ms') \gset
SELECT pg_sleep(0.01);
SELECT idemq.reschedule(:x, clock_timestamp(), 0), take(1);
SELECT status FROM idemq.job(:x);

-- A group keeps its order; the time of a blocked job counts when its turn comes, a head's at once.
SELECT count(idemq.enqueue('q', to_jsonb(n), group_key => 'g')) FROM unnest('{g1,g2,g3}'::text[]) n;
SELECT take(1) AS head;
SELECT idemq.reschedule(job('g2'), clock_timestamp() + '1 h'), idemq.reschedule(job('g3'), clock_timestamp() - interval '1 h', 0);
SELECT payload, status, run_at > clock_timestamp() AS later, priority, ready_at FROM idemq.jobs WHERE group_key = 'g' AND status = 'blocked' ORDER BY id;
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE id = job('g1');
SELECT take(5) AS none;
SELECT status, ready_at > clock_timestamp() AS later FROM idemq.job(job('g2'));
SELECT idemq.reschedule(job('g2'), clock_timestamp()), take(5);
SELECT run_at FROM idemq.job(job('g2'));
SELECT * FROM idemq.check();
SELECT idemq.commit(id, token) FROM idemq.jobs WHERE id = job('g2');
SELECT take(5);
SELECT * FROM idemq.check();
-- So does that of a child, when its parent has ended.
SELECT id AS parent FROM idemq.enqueue('q', '"kin"') \gset
SELECT id AS child FROM idemq.enqueue('q', '"kid"', depends_on => ARRAY[:parent]) \gset
SELECT idemq.reschedule(:child, clock_timestamp() + '1 h', 3), idemq.commit_once(:parent);
SELECT take(1) AS none;
SELECT status, priority, ready_at > clock_timestamp() AS later FROM idemq.job(:child);
SELECT idemq.cancel(:child);
-- With what a DBA has added to the table, by SQL.
CREATE TABLE seen (id bigint, priority int);
CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen VALUES (new.id, new.priority); RETURN NULL; END $$;
CREATE TRIGGER see AFTER UPDATE OF priority ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION see();
SELECT id AS y FROM idemq.enqueue('q', '"y"', delay => '1 h') \gset
SELECT idemq.reschedule(:y, now(), 2);
SELECT id = :y AS y, priority FROM seen;
SELECT take(1);
DROP TRIGGER see ON idemq.jobs;
SELECT action, queue, job_id IS NOT NULL AS job, jobs, details ? 'run_at' AS run_at, details->>'priority' AS priority FROM idemq.audit WHERE action = 'reschedule' ORDER BY id LIMIT 5;

-- Many at once: a row for each id; one row a queue in the audit.
SELECT idemq.create_queue('other', max_attempts => 1) > 0 AS created;
SELECT count(idemq.enqueue('other', to_jsonb('o' || g))) FROM generate_series(1, 3) g;
SELECT count(idemq.fail(id, token)) FROM idemq.claim('other', 2);
SELECT id AS p FROM idemq.enqueue('q', '"p"', delay => '1 h') \gset
SELECT payload, outcome, status FROM idemq.retry_many((SELECT array_agg(id) || array_agg(id) FROM idemq.jobs WHERE payload::text ~ '^"(o|p|d|a|c|e)')) r JOIN idemq.jobs USING (id) ORDER BY id;
SELECT * FROM idemq.retry_many(ARRAY[-5, -7, -5]);
SELECT * FROM idemq.retry_many('{}');
SELECT * FROM idemq.retry_many(NULL);
SELECT * FROM idemq.retry_many('{NULL}');
SELECT action, queue, job_id, jobs, details FROM idemq.audit WHERE action = 'retry_many' ORDER BY queue;

-- Producers and administrators; a worker's role may not.
CREATE ROLE idemq_producer; CREATE ROLE idemq_worker;
GRANT USAGE ON SCHEMA idemq TO idemq_producer, idemq_worker;
SELECT idemq.grant_queue('other', 'idemq_producer', 'enqueue'), idemq.grant_queue('other', 'idemq_worker', 'claim');
SELECT job('o3') AS o, job('d') AS d \gset
SET ROLE idemq_producer;
SELECT idemq.reschedule(:o, priority => 1), idemq.reschedule(:d, now()), (SELECT outcome FROM idemq.retry_many(ARRAY[:o])), (SELECT outcome FROM idemq.retry_many(ARRAY[:d]));
SET ROLE idemq_worker;
SELECT idemq.reschedule(:o, priority => 2), (SELECT outcome FROM idemq.retry_many(ARRAY[:o]));
RESET ROLE;
SELECT priority FROM idemq.job(:o);
SELECT idemq.drop_queue('q', true), idemq.drop_queue('other', true);
DROP FUNCTION take, job, see;
DROP TABLE seen;
DROP EXTENSION idemq;
DROP ROLE idemq_producer, idemq_worker;
