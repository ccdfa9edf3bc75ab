// What goes beyond one job: events, topics, numbered producers, graphs and how far they are, cancels of many, waiting for results.

import { interval, typed } from './errors.js';
import { json } from './enqueue.js';
import { GRAPH_JOB, MATCHING, MESSAGE, checkOptions } from './options.js';
import { inject } from './trace.js';

const SEND_EVENT = `SELECT outcome::text, first_payload AS "firstPayload", same_payload AS "samePayload"
  FROM idemq.send_event($1::text, $2::text, $3::jsonb)`;
const OPTIONS = `delay => $1::interval, run_at => $2::timestamptz, priority => $3::int, group_key => $4::text,
    max_attempts => $5::int, headers => $6::jsonb, expires_in => $7::interval, kind => $8::text`;
const PUBLISH = `SELECT queue, id::text, outcome::text
  FROM idemq.publish(topic => $9::text, payload => $10::jsonb, key => $11::text, ${OPTIONS})`;
const ENQUEUE_SEQUENCED = `SELECT id::text, outcome::text, status::text, result
  FROM idemq.enqueue_sequenced(queue => $9::text, producer => $10::text, seq => $11::bigint, payload => $12::jsonb, ${OPTIONS})`;
const ENQUEUE_GRAPH = 'SELECT name, id::text, outcome::text, status::text FROM idemq.enqueue_graph($1::jsonb)';
const FLOW = `SELECT jobs::float8, waiting::float8, blocked::float8, running::float8, retrying::float8, completed::float8, dead::float8,
    cancelled::float8, done::float8, progress, begun_at AS "begunAt", ended_at AS "endedAt", extract(epoch FROM eta)::float8 AS eta,
    held_up_by::text AS "heldUpBy", held_up_why AS "heldUpWhy", slowest::text, slowest_kind AS "slowestKind",
    extract(epoch FROM slowest_for)::float8 AS "slowestFor", failed_ids::text[] AS "failedIds", roots::text[], cut
  FROM idemq.flow($1::bigint, $2::int)`;
const CANCEL_MANY = 'SELECT id::text, outcome::text FROM idemq.cancel_many($1::bigint[])';
const CANCEL_MATCHING = `SELECT cancelled::float8, locked::float8
  FROM idemq.cancel_matching($1::text, kind => $2::text, group_key => $3::text, key_prefix => $4::text, max_jobs => $5::int)`;
const WAIT_RESULTS = 'CALL idemq.wait_results($1::bigint[], $2::interval)';

/**
 * @param {import('../index.js').Queryable} client @param {string} text @param {unknown[]} values
 * @returns {Promise<any[]>}
 */
async function rows(client, text, values) {
  try {
    return (await client.query(text, values)).rows;
  } catch (error) {
    throw typed(error);
  }
}

/** @param {import('../index.js').MessageOptions} options */
function common(options) {
  const headers = inject(options.headers);
  return [
    interval(options.delay),
    options.runAt ?? null,
    options.priority ?? 4,
    options.groupKey ?? null,
    options.maxAttempts ?? null,
    headers && json(headers, 'headers'),
    interval(options.expiresIn),
    options.kind ?? null,
  ];
}

/** @type {typeof import('../index.js').sendEvent} */
export async function sendEvent(client, queue, name, payload) {
  const [sent] = await rows(client, SEND_EVENT, [queue, name, payload === undefined ? null : json(payload, 'the payload')]);
  return sent;
}

/** @type {typeof import('../index.js').publish} */
export async function publish(client, topic, payload, options = {}) {
  checkOptions(options, { ...MESSAGE, key: true }, 'publish');
  return rows(client, PUBLISH, [...common(options), topic, json(payload, 'the payload'), options.key ?? null]);
}

/** @type {typeof import('../index.js').enqueueSequenced} */
export async function enqueueSequenced(client, queue, producer, seq, payload, options = {}) {
  checkOptions(options, MESSAGE, 'enqueueSequenced');
  const [enqueued] = await rows(client, ENQUEUE_SEQUENCED, [...common(options), queue, producer, `${seq}`, json(payload, 'the payload')]);
  return enqueued;
}

/** @type {typeof import('../index.js').enqueueGraph} */
export async function enqueueGraph(client, jobs) {
  const graph = Object.entries(jobs).map(([name, job]) => jobText(name, job));
  const placed = await rows(client, ENQUEUE_GRAPH, [`[${graph}]`]);
  return Object.fromEntries(placed.map(({ name, ...job }) => [name, job]));
}

/** A job of a graph, as JSON. @param {string} name @param {import('../index.js').GraphJob} job @returns {string} */
function jobText(name, job) {
  checkOptions(job, GRAPH_JOB, `job ${name} of a graph`);
  /** @type {Record<string, unknown>} */
  const members = {
    name,
    queue: job.queue,
    key: job.key,
    delay: interval(job.delay),
    // One that is none would be null, and so at once.
    run_at: job.runAt instanceof Date ? job.runAt.toISOString() : job.runAt,
    priority: job.priority,
    group_key: job.groupKey,
    max_attempts: job.maxAttempts,
    headers: inject(job.headers),
    expires_in: interval(job.expiresIn),
    key_ttl: interval(job.keyTtl),
    on_duplicate: job.onDuplicate,
    on_parent_failure: job.onParentFailure,
    kind: job.kind,
    max_wait: interval(job.maxWait),
  };
  const given = Object.entries(members).filter(([, value]) => value !== undefined && value !== null);
  const own = json(Object.fromEntries(given), `job ${name}`);
  return `${own.slice(0, -1)}, "payload": ${json(job.payload, `the payload of ${name}`)}, "depends_on": [${(job.dependsOn ?? []).map(parent)}]}`;
}

/** A name, or an id with all its digits. @param {string | { id: string | null }} parent @returns {string} */
function parent(parent) {
  if (typeof parent === 'string') return JSON.stringify(parent);
  if (!/^\d+$/.test(`${parent.id}`)) throw new TypeError(`an id is a string of digits, not ${parent.id}`);
  return `${parent.id}`;
}

/** @type {typeof import('../index.js').flow} */
export async function flow(client, id, most = 100_000) {
  const [found] = await rows(client, FLOW, [id, most]);
  return found ?? null;
}

/** @type {typeof import('../index.js').cancelMany} */
export async function cancelMany(client, ids) {
  return rows(client, CANCEL_MANY, [ids]);
}

/** @type {typeof import('../index.js').cancelMatching} */
export async function cancelMatching(client, queue, which) {
  checkOptions(which, MATCHING, 'cancelMatching');
  const { kind, groupKey, keyPrefix, maxJobs } = which;
  const [counts] = await rows(client, CANCEL_MATCHING, [queue, kind ?? null, groupKey ?? null, keyPrefix ?? null, maxJobs ?? null]);
  return counts;
}

/** @type {typeof import('../index.js').waitResults} */
export async function waitResults(client, ids, timeout = 30) {
  const [{ statuses, results }] = await rows(client, WAIT_RESULTS, [ids, interval(timeout)]);
  // An array of an enum comes as text, unless pg was told of it.
  const names = typeof statuses === 'string' ? statuses.slice(1, -1).split(',') : statuses;
  return ids.map((_, n) => ({ status: names[n], result: results[n] }));
}
