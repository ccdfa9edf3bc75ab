-- fence: a row with the token of an attempt that has lost its job is refused.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', lease => '1 h', retry_jitter => 0);
SELECT idemq.create_queue('nothing', retention => '0', lease => '1 h');
CREATE TABLE charges (n int, job_id bigint, token bigint);
CREATE TRIGGER fence BEFORE INSERT OR UPDATE ON charges FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token');

SELECT id, token FROM idemq.acquire('q', 'a', '1') \gset
INSERT INTO charges VALUES (1, :id, :token);
UPDATE charges SET n = 2;
INSERT INTO charges SELECT i, :id, :token FROM generate_series(3, 1000) i;
-- A token that is not, or no longer, the job's.
INSERT INTO charges VALUES (3, :id, :token - 1);
INSERT INTO charges VALUES (3, :id, :token + 1);
INSERT INTO charges VALUES (3, :id + 1000, :token);
SELECT idemq.fail(:id, :token, retry_in => '0');
INSERT INTO charges VALUES (3, :id, :token);
UPDATE charges SET n = 3 WHERE n = 2;
SELECT id, token AS second FROM idemq.acquire('q', 'a') \gset
INSERT INTO charges VALUES (3, :id, :token);
UPDATE charges SET n = 3 WHERE n = 2;
UPDATE charges SET token = :second WHERE n = 2;
DELETE FROM charges WHERE n > 2;
SELECT n, token = :second AS second FROM charges;
-- Its own commit before the effect, in one transaction: the safe order.
BEGIN;
SELECT idemq.commit(:id, :second, '"r"');
INSERT INTO charges VALUES (4, :id, :second);
COMMIT;
-- Committed earlier: no newer token was issued.  The commit itself is what refuses the repetition.
INSERT INTO charges VALUES (5, :id, :second);
INSERT INTO charges VALUES (5, :id, :token);
BEGIN;
SELECT idemq.commit(:id, :second, '"r"');
ROLLBACK;
SELECT n FROM charges ORDER BY 1;
-- Released, cancelled, dead.
SELECT id, token FROM idemq.acquire('q', 'b', '1') \gset
SELECT idemq.release(:id, :token);
INSERT INTO charges VALUES (6, :id, :token);
SELECT id, token FROM idemq.acquire('q', 'b', '1') \gset
SELECT idemq.cancel(:id);
INSERT INTO charges VALUES (6, :id, :token);
SELECT idemq.retry(:id);
SELECT id, token FROM idemq.acquire('q', 'b', '1') \gset
SELECT idemq.fail(:id, :token, permanent => true);
INSERT INTO charges VALUES (6, :id, :token);

-- A queue that keeps nothing: the row is gone with the commit.
SELECT (idemq.enqueue('nothing', '1')).id \gset
SELECT token FROM idemq.claim('nothing') \gset
BEGIN;
SELECT idemq.commit(:id, :token);
INSERT INTO charges VALUES (7, :id, :token);
INSERT INTO charges VALUES (7, :id, :token);
SAVEPOINT s;
INSERT INTO charges VALUES (7, :id, :token - 1);
ROLLBACK TO s;
INSERT INTO charges VALUES (7, :id + 1, :token);
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idemq.commit(:id, :token);
ROLLBACK TO s;
INSERT INTO charges VALUES (8, :id, :token);
SELECT idemq.commit(:id, :token);
INSERT INTO charges VALUES (8, :id, :token);
COMMIT;
INSERT INTO charges VALUES (9, :id, :token);
SELECT count(*) FROM charges WHERE n = 8;
-- A job that was deleted otherwise is gone, also here.
SELECT (idemq.enqueue('nothing', '1')).id \gset
SELECT token FROM idemq.claim('nothing') \gset
BEGIN;
DELETE FROM charges;
SELECT idemq.drop_queue('nothing', force => true);
INSERT INTO charges VALUES (9, :id, :token);
ROLLBACK;

-- Columns: NULL, others by name, defaults, domains; not there, of another type, a system's.
SELECT id, token FROM idemq.acquire('q', 'c', '1') \gset
INSERT INTO charges VALUES (1, NULL, :token);
INSERT INTO charges VALUES (1, :id, NULL);
CREATE DOMAIN job_token AS bigint;
CREATE TABLE other (dropped int, who bigint, "Odd Name" job_token);
ALTER TABLE other DROP COLUMN dropped;
CREATE TRIGGER fence BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION idemq.fence('who', 'Odd Name');
INSERT INTO other VALUES (:id, :token);
INSERT INTO other VALUES (:id, :token - 1);
CREATE TABLE defaults (token bigint, job_id bigint);
CREATE TRIGGER fence BEFORE INSERT ON defaults FOR EACH ROW EXECUTE FUNCTION idemq.fence();
INSERT INTO defaults VALUES (:token, :id);
INSERT INTO defaults VALUES (:id, :token);
CREATE TABLE wrong (job_id numeric, token bigint);
CREATE TRIGGER fence BEFORE INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION idemq.fence();
INSERT INTO wrong VALUES (:id, :token);
ALTER TABLE wrong ALTER job_id TYPE bigint;
INSERT INTO wrong VALUES (:id, :token);
ALTER TABLE wrong DROP COLUMN token;
INSERT INTO wrong VALUES (:id);
CREATE OR REPLACE TRIGGER fence BEFORE INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'xmin');
INSERT INTO wrong VALUES (:id);
DROP TRIGGER fence ON wrong;
-- Not where it cannot refuse.
CREATE TRIGGER fence AFTER INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION idemq.fence();
INSERT INTO wrong VALUES (:id);
CREATE OR REPLACE TRIGGER fence BEFORE INSERT OR DELETE ON wrong FOR EACH STATEMENT EXECUTE FUNCTION idemq.fence();
INSERT INTO wrong VALUES (:id);
DROP TRIGGER fence ON wrong;
INSERT INTO wrong VALUES (:id);
CREATE TRIGGER fence BEFORE DELETE ON wrong FOR EACH ROW EXECUTE FUNCTION idemq.fence();
DELETE FROM wrong;
SELECT idemq.fence();
-- Partitioned tables, and a row that moves.
CREATE TABLE parts (job_id bigint, token bigint, at int) PARTITION BY LIST (at);
CREATE TABLE part1 PARTITION OF parts FOR VALUES IN (1);
CREATE TABLE part2 (at int, extra text DEFAULT 'x', token bigint, job_id bigint);
CREATE TRIGGER fence BEFORE INSERT OR UPDATE ON parts FOR EACH ROW EXECUTE FUNCTION idemq.fence('job_id', 'token');
ALTER TABLE part2 DROP COLUMN extra;
ALTER TABLE parts ATTACH PARTITION part2 DEFAULT;
INSERT INTO parts VALUES (:id, :token, 1);
INSERT INTO parts VALUES (:id, :token, 2);
INSERT INTO parts VALUES (:id, :token - 1, 2);
SELECT tableoid::regclass, at FROM parts ORDER BY 2;
UPDATE parts SET at = 3 - at;
SELECT tableoid::regclass, at FROM parts ORDER BY 2;
-- ON CONFLICT goes through it.
CREATE UNIQUE INDEX ON defaults (job_id);
CREATE OR REPLACE TRIGGER fence BEFORE INSERT OR UPDATE ON defaults FOR EACH ROW EXECUTE FUNCTION idemq.fence();
INSERT INTO defaults VALUES (:token, :id) ON CONFLICT (job_id) DO UPDATE SET token = excluded.token;
INSERT INTO defaults VALUES (:token - 1, :id) ON CONFLICT (job_id) DO UPDATE SET token = excluded.token;
-- A job of a queue that the writer may not claim from is not there for him.
CREATE ROLE idemq_writer;
GRANT INSERT ON charges TO idemq_writer;
SET ROLE idemq_writer;
INSERT INTO charges VALUES (1, :id, :token);
RESET ROLE;
SELECT idemq.grant_queue('q', 'idemq_writer', 'claim');
SET ROLE idemq_writer;
INSERT INTO charges VALUES (1, :id, :token);
RESET ROLE;
-- The right row is locked to the end: nobody else gets the job meanwhile.
BEGIN;
INSERT INTO charges VALUES (1, :id, :token);
SELECT xmax::text = pg_current_xact_id()::xid::text AS locked FROM idemq.jobs WHERE id = :id;
COMMIT;
BEGIN READ ONLY;
SELECT idemq.commit(:id, :token);
ROLLBACK;
BEGIN ISOLATION LEVEL SERIALIZABLE;
INSERT INTO charges VALUES (1, :id, :token);
SELECT idemq.commit(:id, :token);
INSERT INTO charges VALUES (1, :id, :token);
COMMIT;
SELECT * FROM idemq.check();
DROP OWNED BY idemq_writer;
DROP OWNED BY idemq_writer;
DROP ROLE idemq_writer;
