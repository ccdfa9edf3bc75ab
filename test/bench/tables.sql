-- The competitors' tables: idemq.jobs' columns and storage settings, with the
-- indexes that each side of each bench is allowed.
CREATE EXTENSION idemq;
-- The scripts write queue_id = 1 into the competitors' rows.
SELECT 1 / (idemq.create_queue('bench') = 1)::int;

CREATE SCHEMA bench;

-- The raw floor: a primary key and nothing else.
CREATE TABLE bench.floor (LIKE idemq.jobs INCLUDING DEFAULTS INCLUDING IDENTITY);
ALTER TABLE bench.floor ADD PRIMARY KEY (id);

-- A queue as most applications write it; the default fill factor, which served
-- its two non-HOT updates best.
CREATE TABLE bench.skip (LIKE idemq.jobs INCLUDING DEFAULTS INCLUDING IDENTITY);
ALTER TABLE bench.skip DROP COLUMN run_at;
ALTER TABLE bench.skip RENAME COLUMN ready_at TO run_at;
ALTER TABLE bench.skip ADD PRIMARY KEY (id);
CREATE INDEX skip_pending ON bench.skip (queue_id, priority, run_at, id) WHERE status = 'pending';
CREATE INDEX skip_finished ON bench.skip (finished_at) WHERE finished_at IS NOT NULL;

-- For plain INSERTs: every index of idemq.jobs.
CREATE TABLE bench.plain (LIKE idemq.jobs INCLUDING ALL);

-- Of both the scripts count the rows from 1.
ALTER TABLE bench.floor ALTER COLUMN id SET START WITH 1;
ALTER TABLE bench.plain ALTER COLUMN id SET START WITH 1;

SELECT pg_catalog.format('ALTER TABLE bench.%I SET (%s)', t, pg_catalog.array_to_string(c.reloptions, ', '))
FROM pg_catalog.unnest(ARRAY['floor', 'skip', 'plain']) t,
	pg_catalog.pg_class c
WHERE c.oid = 'idemq.jobs'::pg_catalog.regclass AND c.reloptions IS NOT NULL \gexec
ALTER TABLE bench.skip RESET (fillfactor);
