-- The demo's database: one queue, one table of effects, one plain role for the
-- producers and workers.  The table has no unique constraint: an effect that
-- happens twice would show.
CREATE EXTENSION idemq;
SELECT idemq.create_queue('hash', lease => '5 s');

CREATE ROLE app LOGIN;
SELECT idemq.grant_queue('hash', 'app', 'enqueue');
SELECT idemq.grant_queue('hash', 'app', 'claim');

CREATE TABLE results (path text, sha256 text, bytes bigint, hashed_by text);
GRANT SELECT, INSERT ON results TO app;
