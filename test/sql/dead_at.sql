-- dead_at: set by what kills a job, cleared by what brings it back, and by nothing else; redrive
-- goes by it.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', max_attempts => 1, lease => '1 h', retry_base => '1 us', retry_max => '1 us') > 0 AS created;
CREATE FUNCTION job(n int, group_key text DEFAULT NULL) RETURNS TABLE (id bigint, token bigint) LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY SELECT c.id, c.token FROM idemq.enqueue('q', to_jsonb(n), group_key => group_key) e, idemq.claim_job(e.id) c;
END $$;
CREATE VIEW shown AS SELECT payload AS n, status, dead_at = finished_at AS at_its_end, dead_at IS NULL AS is_null FROM idemq.jobs ORDER BY id;

-- Each way to end, and to die.
SELECT idemq.commit(id, token) FROM job(1);
SELECT idemq.fail(id, token, 'no') FROM job(2);
SELECT idemq.fail(id, token, 'no', permanent => true) FROM job(3);
SELECT idemq.cancel(id) FROM job(4);
SELECT outcome FROM job(5) j, idemq.fail_many(ARRAY[j.id], ARRAY[j.token]);
SELECT count(*) FROM job(6) j, idemq.heartbeat(j.id, j.token, lease => '1 us');
SELECT pg_sleep(0.001);
SELECT idemq.reap('q');
SELECT idemq.release(id, token) FROM job(7);
SELECT outcome FROM idemq.enqueue('q', '8', delay => '1 h');
SELECT * FROM shown;
SELECT * FROM idemq.check();

-- Back to life, one by one and all, the longest dead first.
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload IN ('3', '4') ORDER BY id;
SELECT * FROM shown WHERE n IN ('3', '4');
UPDATE idemq.jobs SET dead_at = dead_at - interval '1 h' WHERE payload = '6';
SELECT idemq.redrive('q', 1);
SELECT * FROM shown;
SELECT idemq.redrive('q');
SELECT * FROM shown;
SELECT idemq.fail(id, token, 'again') FROM idemq.claim('q', 3);
SELECT n, status, at_its_end FROM shown WHERE status = 'dead';

-- In a group; undone; and by a trigger's leave, in SQL.
BEGIN;
SELECT idemq.redrive('q') > 0 AS some;
ROLLBACK;
SELECT count(*) FROM shown WHERE status = 'dead' AND at_its_end;
CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER mine BEFORE UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION nothing();
SELECT idemq.fail(id, token, 'no') FROM job(9);
SELECT * FROM shown WHERE n = '9';
SELECT idemq.retry(id) FROM idemq.jobs WHERE payload = '9';
SELECT * FROM shown WHERE n = '9';
DROP FUNCTION nothing CASCADE;

-- By the index, however many completed and cancelled there are.
SELECT count(*) FROM generate_series(1, 1000) n, idemq.enqueue('q', '0') e, idemq.cancel(e.id);
SELECT count(*) FROM idemq.jobs WHERE dead_at IS NOT NULL;
SELECT * FROM idemq.check();
DROP VIEW shown;
DROP FUNCTION job;
DROP EXTENSION idemq;
