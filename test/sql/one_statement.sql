-- Several calls in one statement see each other, wherever they stand: target
-- list, CTE, LATERAL, DML, plpgsql loop, cursor, trigger, prepared statement.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h');
CREATE TABLE effects (job bigint PRIMARY KEY, n int);
CREATE FUNCTION fill(n int) RETURNS bigint LANGUAGE sql AS
	$$ SELECT count(idemq.enqueue('q', to_jsonb(g))) FROM generate_series(1, n) g $$;
-- What is there, and then nothing.
CREATE FUNCTION drain(OUT statuses text, OUT claimable bigint) LANGUAGE plpgsql AS $$
BEGIN
	SELECT string_agg(status || ' ' || n, ', ' ORDER BY status) INTO statuses
		FROM (SELECT status, count(*) n FROM idemq.jobs GROUP BY 1) s;
	SELECT count(*) INTO claimable FROM idemq.claim('q', 1000);
	DELETE FROM idemq.jobs;
END $$;

-- Enqueue for each row of a query: once each, with ids in order.
SELECT count(DISTINCT (e).id), bool_and((e).outcome = 'accepted')
FROM (SELECT idemq.enqueue('q', to_jsonb(g)) AS e FROM generate_series(1, 10) g OFFSET 0) s;
SELECT * FROM drain();
SELECT count(DISTINCT e.id) FROM generate_series(1, 10) g, LATERAL idemq.enqueue('q', to_jsonb(g)) e;
SELECT * FROM drain();

-- Claim and commit in one SELECT.
SELECT fill(20);
SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', 10);
SELECT idemq.commit(id, token), attempt, payload FROM idemq.claim('q', 2);
SELECT * FROM drain();

-- In the target list.
SELECT fill(3);
SELECT (c).attempt, (c).payload FROM (SELECT idemq.claim('q', 5) AS c OFFSET 0) s;
SELECT * FROM drain();

-- Claims twice in one statement: no job twice.
SELECT fill(10);
SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM idemq.claim('q', 4) UNION ALL SELECT id FROM idemq.claim('q', 4)) u;
SELECT a.attempt, b.attempt, a.id = b.id AS same FROM idemq.claim('q') a, idemq.claim('q') b;
SELECT * FROM drain();

-- In CTEs: enqueue, claim what was just enqueued, commit, and the effect.
WITH enqueued AS MATERIALIZED (
	SELECT count(idemq.enqueue('q', to_jsonb(g))) AS n FROM generate_series(1, 5) g),
claimed AS MATERIALIZED (
	SELECT c.* FROM enqueued, LATERAL idemq.claim('q', enqueued.n::int) c),
committed AS MATERIALIZED (
	SELECT c.id, c.payload, idemq.commit(c.id, c.token, c.payload) AS outcome FROM claimed c),
effect AS (
	INSERT INTO effects SELECT id, payload::int FROM committed WHERE outcome = 'committed' RETURNING n)
SELECT array_agg(n ORDER BY n) FROM effect;
SELECT count(*) FROM effects JOIN idemq.jobs ON job = id WHERE status = 'completed' AND result = to_jsonb(n);
SELECT * FROM drain();
TRUNCATE effects;

-- Claim, fail and claim again; commit twice; commit and release.
SELECT fill(1);
SELECT idemq.fail(id, token, 'once', '0') AS first, (SELECT attempt FROM idemq.claim('q')) AS then_attempt FROM idemq.claim('q');
SELECT * FROM drain();
SELECT fill(1);
SELECT idemq.try_commit(id, token, '1') AS first, idemq.try_commit(id, token, '2') AS second, idemq.release(id, token) AS third
FROM idemq.claim('q');
SELECT result FROM idemq.jobs;
SELECT * FROM drain();
SELECT fill(1);
SELECT idemq.commit(id, token, '1') AS first, idemq.commit(id, token, '2') AS second FROM idemq.claim('q');
SELECT * FROM drain();
SELECT fill(1);
SELECT idemq.commit_once(id) AS first, idemq.commit_once(id) AS second, (idemq.claim_job(id)).outcome AS third FROM idemq.jobs;
SELECT * FROM drain();

-- Batches: claim and commit_many in one statement.
SELECT fill(50);
WITH c AS MATERIALIZED (SELECT array_agg(id) AS ids, array_agg(token) AS tokens FROM idemq.claim('q', 50))
SELECT outcome, count(*) FROM c, idemq.commit_many(ids, tokens) GROUP BY 1;
SELECT * FROM drain();

-- An INSERT ... SELECT of the work, and the effect's own constraint.
SELECT fill(5);
INSERT INTO effects SELECT id, payload::int FROM idemq.claim('q', 5) WHERE idemq.commit(id, token) = 'committed';
SELECT count(*) FROM effects;
SELECT * FROM drain();
SELECT fill(2);
INSERT INTO effects SELECT min(id), 0 FROM idemq.jobs;
INSERT INTO effects SELECT id, payload::int FROM idemq.claim('q', 5) WHERE idemq.commit(id, token) = 'committed';
SELECT statuses, claimable FROM drain();
TRUNCATE effects;

-- Jobs with large payloads are read after their rows are gone.
SELECT idemq.create_queue('gone', retention => '0');
CREATE FUNCTION big(n int) RETURNS text LANGUAGE sql AS
	$$ SELECT string_agg(md5(i::text), '') FROM generate_series(1, n) i $$;
SELECT count(idemq.enqueue('gone', jsonb_build_object('big', big(3000)))) FROM generate_series(1, 3);
SELECT outcome, payload ->> 'big' = big(3000) AS whole
FROM (SELECT payload, idemq.commit(id, token) AS outcome FROM idemq.claim('gone', 3) OFFSET 0) s;
SELECT count(*) FROM idemq.jobs;

-- plpgsql loops: a query that claims feeds a loop that commits.
SELECT fill(10);
DO $$
DECLARE
	c record;
BEGIN
	FOR c IN SELECT * FROM idemq.claim('q', 6) LOOP
		INSERT INTO effects VALUES (c.id, c.payload::int);
		PERFORM idemq.commit(c.id, c.token);
	END LOOP;
	LOOP
		SELECT * INTO c FROM idemq.claim('q');
		EXIT WHEN NOT FOUND;
		INSERT INTO effects VALUES (c.id, c.payload::int);
		PERFORM idemq.commit(c.id, c.token);
	END LOOP;
END $$;
SELECT count(*), sum(n) FROM effects;
SELECT * FROM drain();
TRUNCATE effects;

-- A procedure that commits between jobs.
SELECT fill(5);
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
DECLARE
	c record;
BEGIN
	LOOP
		SELECT * INTO c FROM idemq.claim('q');
		EXIT WHEN NOT FOUND;
		COMMIT;
		PERFORM idemq.commit(c.id, c.token);
		INSERT INTO effects VALUES (c.id, c.payload::int);
		COMMIT;
	END LOOP;
END $$;
CALL work();
SELECT count(*), sum(n) FROM effects;
SELECT * FROM drain();

-- A cursor: what it has claimed stays claimed while rows are fetched.
SELECT fill(5);
BEGIN;
DECLARE work CURSOR FOR SELECT payload, idemq.commit(id, token) FROM idemq.claim('q', 3);
FETCH 1 FROM work;
SELECT count(*) FROM idemq.claim('q', 10);
FETCH ALL FROM work;
COMMIT;
SELECT * FROM drain();
-- One that is closed early has claimed, and committed what it fetched.
SELECT fill(3);
BEGIN;
DECLARE work CURSOR FOR SELECT payload, idemq.commit(id, token) FROM idemq.claim('q', 3);
FETCH 2 FROM work;
CLOSE work;
COMMIT;
SELECT * FROM drain();
-- One that outlives its transaction.
SELECT fill(3);
BEGIN;
DECLARE work CURSOR WITH HOLD FOR SELECT payload FROM idemq.claim('q', 3);
COMMIT;
FETCH ALL FROM work;
CLOSE work;
SELECT * FROM drain();

-- In SQL functions.
SELECT fill(4);
CREATE FUNCTION one_job() RETURNS int LANGUAGE sql AS
	$$ SELECT payload::int FROM idemq.claim('q') c, LATERAL (SELECT idemq.commit(c.id, c.token)) d $$;
SELECT one_job() AS a, one_job() AS b;
SELECT one_job() FROM generate_series(1, 2);
SELECT * FROM drain();

-- A trigger on an application's table enqueues; another completes.
CREATE TABLE orders (id int PRIMARY KEY, job bigint);
CREATE FUNCTION order_placed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	SELECT e.id INTO NEW.job FROM idemq.enqueue('q', to_jsonb(NEW.id), key => 'order-' || NEW.id) e;
	RETURN NEW;
END $$;
CREATE TRIGGER placed BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION order_placed();
INSERT INTO orders SELECT g FROM generate_series(1, 3) g;
SELECT o.id, key, payload, status FROM orders o JOIN idemq.jobs j ON j.id = o.job ORDER BY 1;
CREATE FUNCTION order_shipped() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idemq.commit_once(OLD.job, '"shipped"');
	RETURN NULL;
END $$;
CREATE TRIGGER shipped AFTER DELETE ON orders FOR EACH ROW EXECUTE FUNCTION order_shipped();
DELETE FROM orders WHERE id < 3;
SELECT key, status, result FROM idemq.jobs ORDER BY id;
SELECT * FROM drain();

-- Prepared statements, generic plans too.
SELECT fill(8);
SET plan_cache_mode = force_generic_plan;
PREPARE take(int) AS SELECT count(idemq.commit(id, token)) FROM idemq.claim('q', $1);
EXECUTE take(3);
EXECUTE take(3);
SET plan_cache_mode = force_custom_plan;
EXECUTE take(3);
RESET plan_cache_mode;
SELECT * FROM drain();

-- EXPLAIN ANALYZE runs it, EXPLAIN does not; COPY reads it.
SELECT fill(2);
DO $$ BEGIN EXECUTE 'EXPLAIN SELECT * FROM idemq.claim(''q'', 2)'; END $$;
SELECT string_agg(status::text, ' ') FROM idemq.jobs;
DO $$ BEGIN EXECUTE 'EXPLAIN ANALYZE SELECT * FROM idemq.claim(''q'', 1)'; END $$;
SELECT string_agg(status::text, ' ' ORDER BY id) FROM idemq.jobs;
COPY (SELECT payload, attempt FROM idemq.claim('q', 2)) TO STDOUT;
SELECT * FROM drain();

-- With another path and other settings in force.
SET search_path = pg_temp;
SET timezone = 'Asia/Kathmandu';
SET datestyle = 'German';
SET intervalstyle = 'sql_standard';
DO $$ BEGIN
	IF current_setting('server_version_num')::int < 190000 THEN -- always on since
		SET standard_conforming_strings = off;
	END IF;
END $$;
SET enable_indexscan = off;
SET enable_seqscan = off;
SET default_transaction_isolation = 'serializable';
SELECT public.fill(2);
SELECT outcome, payload FROM (SELECT payload, idemq.commit(id, token) AS outcome FROM idemq.claim('q', 5) OFFSET 0) s;
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', delay => '1 h');
SELECT outcome FROM idemq.enqueue('q', '1', key => 'k', delay => '1 h');
SELECT * FROM public.drain();
