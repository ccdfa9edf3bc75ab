-- once: true the first time for a scope and key, until its time is over.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.once('s', 'k'), idemq.once('s', 'k'), idemq.once('s', 'K'), idemq.once('t', 'k');
SELECT scope, key, expires_at - now() BETWEEN '23:59' AND '24:01' AS a_day FROM idemq_internal.seen ORDER BY 1, 2;
-- Undone with the transaction, and with the savepoint.
BEGIN;
SELECT idemq.once('s', 'r'), idemq.once('s', 'r');
ROLLBACK;
BEGIN;
SAVEPOINT a;
SELECT idemq.once('s', 'r');
ROLLBACK TO a;
SELECT idemq.once('s', 'r');
COMMIT;
SELECT idemq.once('s', 'r');
-- Its time is over: the first time again, once.
SELECT idemq.once('s', 'ttl', ttl => '1 us');
SELECT pg_sleep(0.001);
SELECT idemq.once('s', 'ttl', ttl => '1 h'), idemq.once('s', 'ttl', ttl => '1 us');
SELECT expires_at - now() BETWEEN '59 min' AND '61 min' AS an_hour FROM idemq_internal.seen WHERE key = 'ttl';
BEGIN;
UPDATE idemq_internal.seen SET expires_at = now() WHERE key = 'ttl';
SELECT idemq.once('s', 'ttl');
ROLLBACK;
SELECT idemq.once('s', 'ttl');
-- A key that was seen writes nothing.
SELECT xmin AS version, xmax AS locker FROM idemq_internal.seen WHERE scope = 's' AND key = 'k' \gset
BEGIN;
SELECT idemq.once('s', 'k');
SELECT pg_current_xact_id_if_assigned();
COMMIT;
SELECT xmin = :'version' AND xmax = :'locker' AS untouched FROM idemq_internal.seen WHERE scope = 's' AND key = 'k';
-- Levels; for an effect in one statement.
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idemq.once('s', 'rr'), idemq.once('s', 'rr'), idemq.once('s', 'k');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idemq.once('s', 'ser'), idemq.once('s', 'ser');
COMMIT;
CREATE TABLE effects (n int);
INSERT INTO effects SELECT i FROM generate_series(1, 100) i WHERE idemq.once('loop', (i % 3)::text);
SELECT * FROM effects ORDER BY 1;
SELECT string_agg(idemq.once('bytes', chr(i))::text, '') = repeat('true', 255) AS all_bytes FROM generate_series(1, 255) i;
BEGIN READ ONLY;
SELECT idemq.once('s', 'k');
ROLLBACK;
-- Bad input.
SELECT idemq.once('', 'k');
SELECT idemq.once('s', '');
SELECT idemq.once(NULL, 'k');
SELECT idemq.once('s', NULL);
SELECT idemq.once('s', 'k', NULL);
SELECT idemq.once('s', 'k', '0');
SELECT idemq.once(repeat('x', 257), 'k');
SELECT idemq.once('s', repeat('x', 1025));
SELECT idemq.once(repeat('x', 256), string_agg(md5(i::text), '')) FROM generate_series(1, 32) i;
-- Not PUBLIC's: all roles that have it share its keys, and see none of them.
CREATE ROLE idemq_a;
CREATE ROLE idemq_b;
SET ROLE idemq_a;
SELECT idemq.once('shared', 'k');
RESET ROLE;
GRANT USAGE ON SCHEMA idemq TO idemq_a, idemq_b;
GRANT EXECUTE ON FUNCTION idemq.once TO idemq_a, idemq_b;
SET ROLE idemq_a;
SELECT idemq.once('shared', 'k');
SET ROLE idemq_b;
SELECT idemq.once('shared', 'k');
SELECT * FROM idemq_internal.seen;
DELETE FROM idemq_internal.seen;
RESET ROLE;
SELECT * FROM idemq.check();
DROP OWNED BY idemq_a, idemq_b;
DROP OWNED BY idemq_a, idemq_b;
DROP ROLE idemq_a, idemq_b;
