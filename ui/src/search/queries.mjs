// The statements of the search and of its suggestions.

/** The queues in which the role may see jobs, with their gauges. */
export const searchedQueues = `
  SELECT m.queue_id AS id, m.queue AS name, m.pending, m.running, m.retrying, m.blocked, m.dead,
    m.pending + m.running + m.retrying + m.blocked + m.completed + m.dead + m.cancelled AS jobs
  FROM idemq.metrics m JOIN idemq.queue_privileges p USING (queue_id) WHERE 'claim' = ANY (p.privileges) ORDER BY m.queue_id`;

/** The queues that have a job whose key begins with $1.  No key contains a character after U+10FFFF, with which $2 ends. */
export const queuesWithKey = `
  SELECT i AS id FROM unnest($3::int[]) i WHERE EXISTS (SELECT FROM idemq.jobs j
    WHERE j.queue_id = i AND j.key >= $1 COLLATE "C" AND j.key < $2 COLLATE "C") ORDER BY 1`;

/** The indexes on fields of the payload, which an administrator has created. */
export const payloadIndexes = `
  SELECT c.relname AS name FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
  WHERE i.indrelid = 'idemq.jobs'::regclass AND i.indisvalid AND pg_get_expr(i.indexprs, i.indrelid) LIKE '%payload%'`;

/** The payloads of the newest jobs, whose fields are suggested; of queue $1 if it is not NULL. */
export const newestPayloads = `
  SELECT j.payload FROM (SELECT * FROM idemq.jobs j ORDER BY j.id DESC LIMIT 500) j JOIN idemq.queues q USING (queue_id)
  WHERE ($1::text IS NULL OR q.name = $1) AND pg_column_size(j.payload) <= 4096 LIMIT 200`;

/** The errors of the newest jobs. */
export const newestErrors = `
  SELECT left(split_part(j.last_error, E'\\n', 1), 80) AS error, count(*) AS jobs FROM (SELECT * FROM idemq.jobs j ORDER BY j.id DESC LIMIT 5000) j
  WHERE strpos(lower(j.last_error), lower($1)) > 0 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 8`;
