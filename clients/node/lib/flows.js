// Functions beyond a single job: events, topics, ordered logs, graphs and their progress, cancelling many jobs, and waiting for results.

import { checkClient, checkId, checkIds, checkName, optionalInteger, optionalInterval, optionalKey, optionalName, optionalObject, optionalTime, reject } from './arguments.js';
import { addDocuments, checkCodec, decoded, decodedResults, encoded, encodedWithEachKey, plain } from './codec.js';
import { json, rows, withErrors } from './enqueue.js';
import { CODEC, GRAPH_JOB, MATCHING, MESSAGE, PAUSE, checkOptions } from './options.js';
import { inject, sends } from './trace.js';

const SEND_EVENT = `SELECT outcome::text, first_payload AS "firstPayload", same_payload AS "samePayload"
  FROM idemq.send_event($1::text, $2::text, $3::jsonb)`;
const OPTIONS = `delay => $1::interval, run_at => $2::timestamptz, priority => $3::int, group_key => $4::text,
    max_attempts => $5::int, headers => $6::jsonb, expires_in => $7::interval, kind => $8::text`;
const PUBLISH = `SELECT queue, id::text, outcome::text
  FROM idemq.publish(topic => $9::text, payload => $10::jsonb, key => $11::text, ${OPTIONS})`;
const ENQUEUE_SEQUENCED = `SELECT id::text, outcome::text, status::text, result
  FROM idemq.enqueue_sequenced(queue => $9::text, producer => $10::text, seq => $11::bigint, payload => $12::jsonb, ${OPTIONS})`;
const ENQUEUE_GRAPH = 'SELECT name, id::text, outcome::text, status::text FROM idemq.enqueue_graph($1::jsonb)';
// Times and numbers are transferred as JSON, which does not depend on DateStyle, IntervalStyle or extra_float_digits.
const FLOW = `SELECT pg_catalog.json_build_object('jobs', jobs, 'waiting', waiting, 'blocked', blocked, 'running', running, 'retrying', retrying,
      'completed', completed, 'dead', dead, 'cancelled', cancelled, 'done', done, 'progress', progress::numeric,
      'eta', extract(epoch FROM eta), 'slowestFor', extract(epoch FROM slowest_for))::text AS numbers,
    (1000 * extract(epoch FROM begun_at))::text AS begun_at, (1000 * extract(epoch FROM ended_at))::text AS ended_at,
    held_up_by::text AS "heldUpBy", held_up_why AS "heldUpWhy", slowest::text, slowest_kind AS "slowestKind",
    failed_ids::text[] AS "failedIds", roots::text[], cut
  FROM idemq.flow($1::bigint, $2::int)`;
const CANCEL_MANY = 'SELECT id::text, outcome::text FROM idemq.cancel_many($1::bigint[])';
const CANCEL_MATCHING = `SELECT cancelled::text, locked::text
  FROM idemq.cancel_matching($1::text, kind => $2::text, group_key => $3::text, key_prefix => $4::text, max_jobs => $5::int)`;
const PAUSE_GROUP = 'SELECT idemq.pause($1::text, until => $2::timestamptz, group_key => $3::text)';
const RESUME_GROUP = 'SELECT idemq.resume($1::text, group_key => $2::text)';
const WAIT_RESULTS = 'CALL idemq.wait_results($1::bigint[], $2::interval)';

/** @param {import('../index.js').MessageOptions} options */
function common(options) {
  const headers = inject(optionalObject(options.headers, 'headers'));
  return [
    optionalInterval(options.delay, 'delay'),
    optionalTime(options.runAt, 'runAt'),
    optionalInteger(options.priority, 'priority') ?? 4,
    optionalKey(options.groupKey, 'groupKey'),
    optionalInteger(options.maxAttempts, 'maxAttempts'),
    headers && json(headers, 'headers'),
    optionalInterval(options.expiresIn, 'expiresIn'),
    optionalName(options.kind, 'kind'),
  ];
}

/** @type {typeof import('../index.js').sendEvent} */
export async function sendEvent(client, queue, name, payload, options = {}) {
  checkClient(client);
  checkOptions(options, CODEC, 'sendEvent');
  const codec = checkCodec(options.codec);
  const own = [checkName(queue, 'queue'), checkName(name, 'name')];
  if (codec && payload !== undefined) return sendEncoded(codec, client, own, payload);
  const [sent] = await rows(client, SEND_EVENT, [...own, payload === undefined ? null : json(payload, 'payload')]);
  return codec ? { ...sent, firstPayload: await decoded(codec, sent.firstPayload) } : sent;
}

/**
 * The payload of the first event may be encoded with another key, so the server compares it with each.
 * @param {import('../index.js').Codec} codec @param {import('../index.js').Queryable} client @param {unknown[]} own @param {unknown} payload
 */
async function sendEncoded(codec, client, own, payload) {
  let first;
  for (const text of await encodedWithEachKey(codec, payload, 'payload')) {
    const [sent] = await rows(client, SEND_EVENT, [...own, text]);
    first ??= { ...sent, firstPayload: await decoded(codec, sent.firstPayload) };
    first.samePayload = sent.samePayload;
    if (sent.samePayload) break;
  }
  return first;
}

/** @type {typeof import('../index.js').publish} */
async function publishNow(client, topic, payload, options = {}) {
  checkClient(client);
  checkName(topic, 'topic');
  checkOptions(options, { ...MESSAGE, key: true, codec: true }, 'publish');
  const codec = checkCodec(options.codec);
  const text = codec ? await encoded(codec, payload, 'payload') : json(payload, 'payload');
  return rows(client, PUBLISH, [...common(options), topic, text, optionalKey(options.key, 'key')]);
}
export const publish = sends(publishNow, (_, topic, __, options) => [topic, undefined, options?.headers]);

/** @type {typeof import('../index.js').enqueueSequenced} */
async function enqueueNext(client, queue, producer, seq, payload, options = {}) {
  checkClient(client);
  checkName(queue, 'queue');
  checkName(producer, 'producer');
  if (typeof seq !== 'bigint' && !Number.isSafeInteger(seq) && !(typeof seq === 'string' && /^-?\d+$/.test(seq))) reject('seq', 'an integer, or a string of digits', seq);
  checkOptions(options, { ...MESSAGE, codec: true }, 'enqueueSequenced');
  const codec = checkCodec(options.codec);
  const text = codec ? await encoded(codec, payload, 'payload') : json(payload, 'payload');
  const enqueued = await rows(client, ENQUEUE_SEQUENCED, [...common(options), queue, producer, `${seq}`, text]);
  return (await decodedResults(codec, await withErrors(client, enqueued)))[0];
}
export const enqueueSequenced = sends(enqueueNext, (_, queue, __, ___, ____, options) => [queue, undefined, options?.headers]);

/** @type {typeof import('../index.js').enqueueGraph} */
async function enqueueAll(client, jobs, options = {}) {
  checkClient(client);
  checkOptions(options, CODEC, 'enqueueGraph');
  const codec = checkCodec(options.codec);
  if (optionalObject(jobs, 'jobs') === null) reject('jobs', 'an object that maps names to jobs', jobs);
  const placed = codec ? await addGraphEncoded(codec, client, Object.entries(jobs))
    : await rows(client, ENQUEUE_GRAPH, [`[${Object.entries(jobs).map(([name, job]) => jobText(name, job, json(job.payload, `payload of job ${name} of a graph`)))}]`]);
  return Object.fromEntries(placed.map(({ name, ...job }) => [name, job]));
}
export const enqueueGraph = sends(enqueueAll, (_, jobs) => [undefined, jobs]);

/** @param {import('../index.js').Codec} codec @param {import('../index.js').Queryable} client @param {[string, import('../index.js').GraphJob][]} jobs */
async function addGraphEncoded(codec, client, jobs) {
  jobs.forEach(([name, job]) => checkOptions(job, GRAPH_JOB, `job ${name} of a graph`));
  const compared = jobs.map(([, { key, onDuplicate }]) => key !== undefined && key !== null && (onDuplicate ?? 'keep') === 'keep');
  const send = async (/** @type {import('../index.js').Queryable} */ own, /** @type {string[]} */ members) => {
    const placed = new Map((await rows(own, ENQUEUE_GRAPH, [`[${members}]`])).map((each) => [each.name, each]));
    return jobs.filter(([name]) => placed.has(name)).map(([name]) => placed.get(name));
  };
  return addDocuments(codec, client, {
    documents: jobs.map(([name, { payload }]) => plain(payload, `payload of job ${name} of a graph`)),
    compared,
    add: (own, texts, ignore) => send(own, jobs.map(([name, job], n) => jobText(name, ignore && compared[n] ? { ...job, onDuplicate: 'ignore' } : job, texts[n]))),
    // The jobs are duplicates, so they keep their parents.
    compare: (own, numbers, texts) => send(own, numbers.map((n, at) => jobText(jobs[n][0], { ...jobs[n][1], dependsOn: null }, texts[at]))),
  });
}

/** A job of a graph as JSON. @param {string} name @param {import('../index.js').GraphJob} job @param {string} payload as JSON @returns {string} */
function jobText(name, job, payload) {
  const of = `job ${name} of a graph`;
  checkOptions(job, GRAPH_JOB, of);
  /** @type {Record<string, unknown>} */
  const members = {
    name,
    queue: checkName(job.queue, `queue of ${of}`),
    key: optionalKey(job.key, `key of ${of}`),
    delay: optionalInterval(job.delay, `delay of ${of}`),
    run_at: optionalTime(job.runAt, `runAt of ${of}`),
    priority: optionalInteger(job.priority, `priority of ${of}`),
    group_key: optionalKey(job.groupKey, `groupKey of ${of}`),
    max_attempts: optionalInteger(job.maxAttempts, `maxAttempts of ${of}`),
    headers: inject(optionalObject(job.headers, `headers of ${of}`)),
    expires_in: optionalInterval(job.expiresIn, `expiresIn of ${of}`),
    key_ttl: optionalInterval(job.keyTtl, `keyTtl of ${of}`),
    on_duplicate: optionalName(job.onDuplicate, `onDuplicate of ${of}`),
    on_parent_failure: optionalName(job.onParentFailure, `onParentFailure of ${of}`),
    kind: optionalName(job.kind, `kind of ${of}`),
    max_wait: optionalInterval(job.maxWait, `maxWait of ${of}`),
  };
  const parents = job.dependsOn ?? [];
  if (!Array.isArray(parents)) reject(`dependsOn of ${of}`, 'an array', parents);
  const given = Object.entries(members).filter(([, value]) => value !== undefined && value !== null);
  const own = json(Object.fromEntries(given), of);
  return `${own.slice(0, -1)}, "payload": ${payload}, "depends_on": [${parents.map((each) => parentText(each, `dependsOn of ${of}`))}]}`;
}

/** A name, or an id with all its digits. @param {unknown} parent @param {string} what @returns {string} */
function parentText(parent, what) {
  if (typeof parent === 'string') return JSON.stringify(parent);
  return checkId(/** @type {any} */ (parent)?.id, `${what}: id`);
}

/** @type {typeof import('../index.js').flow} */
export async function flow(client, id, most = 100_000) {
  const [found] = await rows(client, FLOW, [checkId(id, 'id'), optionalInteger(most, 'most')]);
  if (!found) return null;
  const { numbers, begun_at: begunAt, ended_at: endedAt, ...texts } = found;
  const time = (/** @type {string | null} */ ms) => (ms === null ? null : new Date(Number(ms)));
  return { ...JSON.parse(numbers), begunAt: time(begunAt), endedAt: time(endedAt), ...texts };
}

/** @type {typeof import('../index.js').cancelMany} */
export async function cancelMany(client, ids) {
  return rows(client, CANCEL_MANY, [checkIds(ids, 'ids')]);
}

/** @type {typeof import('../index.js').cancelMatching} */
export async function cancelMatching(client, queue, which) {
  checkClient(client);
  checkName(queue, 'queue');
  checkOptions(which, MATCHING, 'cancelMatching');
  const { kind, groupKey, keyPrefix, maxJobs } = which;
  const values = [queue, optionalName(kind, 'kind'), optionalKey(groupKey, 'groupKey'), optionalKey(keyPrefix, 'keyPrefix'), optionalInteger(maxJobs, 'maxJobs')];
  const [counts] = await rows(client, CANCEL_MATCHING, values);
  return { cancelled: Number(counts.cancelled), locked: Number(counts.locked) };
}

/** @type {typeof import('../index.js').pauseGroup} */
export async function pauseGroup(client, queue, groupKey, options = {}) {
  checkClient(client);
  checkName(queue, 'queue');
  checkName(groupKey, 'groupKey');
  checkOptions(options, PAUSE, 'pauseGroup');
  await rows(client, PAUSE_GROUP, [queue, optionalTime(options.until, 'until'), groupKey]);
}

/** @type {typeof import('../index.js').resumeGroup} */
export async function resumeGroup(client, queue, groupKey) {
  checkClient(client);
  checkName(queue, 'queue');
  checkName(groupKey, 'groupKey');
  await rows(client, RESUME_GROUP, [queue, groupKey]);
}

/** @type {typeof import('../index.js').waitResults} */
export async function waitResults(client, ids, timeout = 30, options = {}) {
  checkOptions(options, CODEC, 'waitResults');
  const codec = checkCodec(options.codec);
  const [{ statuses, results }] = await rows(client, WAIT_RESULTS, [checkIds(ids, 'ids'), optionalInterval(timeout, 'timeout')]);
  // pg returns an array of an enum as text, unless the application has set a parser for it.
  const names = typeof statuses === 'string' ? statuses.slice(1, -1).split(',') : statuses;
  return decodedResults(codec, ids.map((_, n) => ({ status: names[n], result: results[n] })));
}
