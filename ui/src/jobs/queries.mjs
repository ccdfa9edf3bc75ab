// The statements of a job's page.
import { keyOf } from './document.mjs';

/** Number of characters of a document that a page shows.  The download contains all of them. */
export const SHOWN = 16384;
/** Maximum size in bytes of a document that is read from the server. */
export const LARGEST = 64 * 1024 * 1024;
/** Maximum number of characters of an error with its stack frames. */
export const TRACE = 65536;
/** Maximum number of attempts and of steps that a page shows, starting with the latest. */
export const LATEST = 100;
/** Maximum number of jobs of a flow that a graph includes. */
export const GRAPH = 4000;

export const job = `
  SELECT j.id, j.queue_id, q.name AS queue, j.status, j.priority, j.attempt, j.max_attempts, j.key, j.group_key,
    j.kind, j.enqueued_at, j.run_at, j.ready_at, j.claimed_at, j.deadline, j.finished_at, j.dead_at, j.expires_at, j.worker,
    j.token, left(j.last_error, ${TRACE}) AS last_error, idemq.why(j.id) AS why, j.ready_at > idemq.clock_timestamp() AS later,
    CASE WHEN pg_column_size(j.checkpoint) <= 65536 THEN idemq.progress(j.checkpoint) END AS progress,
    w.expires_in, w.attached, w.state, w.pid
  FROM idemq.jobs j LEFT JOIN idemq.queues q ON q.queue_id = j.queue_id
  LEFT JOIN (SELECT x.job_id, extract(epoch FROM x.expires_in)::float8 AS expires_in, x.attached, x.state, x.pid FROM idemq.running_jobs x) w ON w.job_id = j.id
  WHERE j.id = $1`;

/** The documents of a job: the part that is shown, and the full length.  No other columns are documents. */
export const documents = ['payload', 'result', 'headers', 'checkpoint'];
export const shown = `
  SELECT ${documents.map((name) => `left(j.${name}::text, ${SHOWN}) AS ${name}, octet_length(j.${name}::text) AS ${name}_bytes,
    char_length(j.${name}::text) <= ${SHOWN} AS ${name}_whole, ${keyOf(`j.${name}`)} AS ${name}_encrypted`).join(',\n    ')}
  FROM idemq.jobs j WHERE j.id = $1
    AND greatest(${documents.map((name) => `pg_column_size(j.${name})`).join(', ')}) < ${LARGEST / 64}`;
/** One document at a time, for a job with a large document. */
export const begun = (name) => `
  SELECT CASE WHEN pg_column_size(j.${name}) < ${LARGEST} THEN left(j.${name}::text, ${SHOWN}) END AS ${name},
    CASE WHEN pg_column_size(j.${name}) < ${LARGEST} THEN octet_length(j.${name}::text) ELSE pg_column_size(j.${name}) END AS ${name}_bytes,
    CASE WHEN pg_column_size(j.${name}) < ${LARGEST} THEN char_length(j.${name}::text) <= ${SHOWN} END AS ${name}_whole,
    CASE WHEN pg_column_size(j.${name}) < ${LARGEST} THEN ${keyOf(`j.${name}`)} END AS ${name}_encrypted
  FROM idemq.jobs j WHERE j.id = $1`;
export const stored = (name) => `SELECT pg_column_size(j.${name}) AS bytes FROM idemq.jobs j WHERE j.id = $1`;
export const download = (name) => `
  SELECT j.${name}::text AS document FROM idemq.jobs j WHERE j.id = $1 AND pg_column_size(j.${name}) < ${LARGEST}`;

export const attempts = `
  SELECT a.attempt, a.token, a.worker, a.claimed_at, a.ended_at, a.outcome, left(a.error, ${TRACE}) AS error,
    CASE WHEN pg_column_size(a.details) <= 1048576 THEN left(a.object ->> 'trace', ${TRACE}) END AS trace,
    CASE WHEN pg_column_size(a.details) <= 1048576 AND coalesce(a.object - 'trace' - 'type', a.details) <> '{}'
      THEN left(coalesce(a.object - 'trace' - 'type', a.details)::text, ${SHOWN}) END AS details,
    extract(epoch FROM a.ended_at - a.claimed_at)::float8 AS took
  FROM (SELECT t.*, CASE jsonb_typeof(t.details) WHEN 'object' THEN t.details END AS object FROM idemq.attempts t WHERE t.job_id = $1 ORDER BY t.token DESC LIMIT ${LATEST}) a ORDER BY a.token`;

/** The unfinished jobs of a job's group, in order. */
export const group = `
  SELECT j.id, j.status, j.enqueued_at FROM idemq.jobs j
  WHERE j.queue_id = $1 AND j.group_key = $2 AND j.finished_at IS NULL ORDER BY j.ready_at, j.id LIMIT 20`;

const document = (column) => `CASE WHEN pg_column_size(s.${column}) <= 1048576 THEN left(s.${column}::text, ${SHOWN}) END AS ${column},
    CASE WHEN pg_column_size(s.${column}) <= 1048576 THEN char_length(s.${column}::text) <= ${SHOWN} END AS ${column}_whole, pg_column_size(s.${column}) AS ${column}_bytes,
    CASE WHEN pg_column_size(s.${column}) <= 1048576 THEN ${keyOf(`s.${column}`)} END AS ${column}_encrypted`;
/** Steps and awaited events. */
export const steps = `
  SELECT s.name, s.state, s.round, s.token, s.begun_at, s.call_until, s.answered_at, s.effect_key, left(s.error, ${TRACE}) AS error,
    ${document('request')}, ${document('response')}, s.begun_at IS NOT NULL AND s.call_until < idemq.clock_timestamp() AS over
  FROM (SELECT x.* FROM idemq.steps x WHERE x.job_id = $1 ORDER BY x.begun_at DESC NULLS LAST LIMIT ${LATEST}) s ORDER BY coalesce(s.begun_at, s.answered_at), s.name`;

/** The jobs of a job's flow.  A job without parents and children is the only one. */
export const flow = `SELECT f.id, f.queue, f.kind, f.status, f.parents::text[] AS parents, f.depth,
  extract(epoch FROM f.begun_at)::float8 AS begun, extract(epoch FROM CASE f.status WHEN 'running' THEN idemq.clock_timestamp() ELSE f.ended_at END)::float8 AS ended FROM idemq.flow_jobs($1, ${GRAPH + 1}) f`;
