// Producers.

import { checkClient, checkIds, checkName, optionalBoolean, optionalInteger, optionalInterval, optionalKey, optionalName, optionalObject, optionalTime, reject } from './arguments.js';
import { addDocuments, checkCodec, decodedResults, plain } from './codec.js';
import { ENQUEUE as OPTIONS, ENQUEUE_MANY as MANY_OPTIONS, ENQUEUE_STATEMENT as STATEMENT_OPTIONS, NEW_JOB, checkOptions } from './options.js';
import { checkStyle, portable } from './portable.js';
import { json, rows } from './rows.js';
import { checkSchema, validated, validatedNow } from './schema.js';
import { inject, sends } from './trace.js';

const enqueueIn = portable(`SELECT id::text, outcome::text, status::text, result
  FROM idemq.enqueue(queue => $1::text, payload => $2::jsonb, key => $3::text, delay => $4::interval, run_at => $5::timestamptz,
    priority => $6::int, group_key => $7::text, max_attempts => $8::int, headers => $9::jsonb,
    expires_in => $10::interval, key_ttl => $11::interval, on_duplicate => $12::text, nowait => $13::bool,
    kind => $14::text, max_wait => $15::interval, depends_on => $16::bigint[], on_parent_failure => $17::text)`);
const ENQUEUE_MANY = `SELECT id::text, outcome::text, status::text, result
  FROM idemq.enqueue_many($1::text, $2::jsonb[], keys => $3::text[], run_ats => $4::timestamptz[], priorities => $5::int[],
    group_keys => $6::text[], delays => $7::interval[], max_attempts => $8::int[], headers => $9::jsonb[],
    expires_ins => $10::interval[], key_ttls => $11::interval[], on_duplicate => $12::text, nowait => $13::bool,
    kinds => $14::text[], max_wait => $15::interval, depends_on => $16::bigint[], on_parent_failure => $17::text)
  ORDER BY ord`;
const LAST_ERRORS = 'SELECT id::text, last_error AS error FROM idemq.jobs WHERE id = ANY ($1::text::bigint[])';
const defaultPriority = 4;

export { json, rows };

/**
 * The statement that adds a job.
 * @param {string} queue @param {unknown} payload @param {import('../index.js').EnqueueOptions} options @param {string} style
 */
function statement(queue, payload, options, style) {
  return enqueueIn(valuesOf(queue, json(payload, 'payload'), options), style);
}

/** @param {string} queue @param {string | null} payload as JSON @param {import('../index.js').EnqueueOptions} options @returns {any[]} */
function valuesOf(queue, payload, options) {
  const headers = inject(optionalObject(options.headers, 'headers'));
  return [
    queue,
    payload,
    optionalKey(options.key, 'key'),
    optionalInterval(options.delay, 'delay'),
    optionalTime(options.runAt, 'runAt'),
    optionalInteger(options.priority, 'priority') ?? defaultPriority,
    optionalKey(options.groupKey, 'groupKey'),
    optionalInteger(options.maxAttempts, 'maxAttempts'),
    headers && json(headers, 'headers'),
    optionalInterval(options.expiresIn, 'expiresIn'),
    optionalInterval(options.keyTtl, 'keyTtl'),
    optionalName(options.onDuplicate, 'onDuplicate') ?? 'keep',
    optionalBoolean(options.nowait, 'nowait') ?? false,
    optionalName(options.kind, 'kind'),
    optionalInterval(options.maxWait, 'maxWait'),
    optionalIds(options.dependsOn, 'dependsOn'),
    optionalName(options.onParentFailure, 'onParentFailure') ?? 'cancel',
  ];
}

/**
 * @param {import('../index.js').Queryable} client @param {string} queue @param {unknown} payload
 * @param {import('../index.js').EnqueueOptions} [options] @returns {Promise<any>}
 */
async function add(client, queue, payload, options = {}) {
  checkClient(client);
  checkName(queue, 'queue');
  checkOptions(options, OPTIONS, 'enqueue');
  checkSchema(options.schema);
  await validated(options.schema, options.kind, payload);
  const codec = checkCodec(options.codec);
  if (codec) return addEncoded(codec, client, queue, payload, options);
  const { text, values } = statement(queue, payload, options, '$1');
  return (await withErrors(client, await rows(client, text, values)))[0];
}

/**
 * @param {string} queue @param {unknown} payload @param {import('../index.js').EnqueueStatementOptions} [options] @returns {any}
 */
function statementFor(queue, payload, options = {}) {
  checkName(queue, 'queue');
  checkOptions(options, STATEMENT_OPTIONS, 'enqueueStatement');
  checkSchema(options.schema);
  validatedNow(options.schema, options.kind, payload);
  return statement(queue, payload, options, checkStyle(options.style ?? '$1'));
}

/**
 * @param {import('../index.js').Codec} codec @param {import('../index.js').Queryable} client @param {string} queue @param {unknown} payload
 * @param {import('../index.js').EnqueueOptions} options
 */
async function addEncoded(codec, client, queue, payload, options) {
  const values = valuesOf(queue, null, options);
  const onDuplicate = values[11];
  const send = async (/** @type {import('../index.js').Queryable} */ own, /** @type {string} */ document, /** @type {unknown} */ how) => {
    const { text, values: sent } = enqueueIn([queue, document, ...values.slice(2, 11), how, ...values.slice(12)], '$1');
    return decodedResults(codec, await withErrors(own, await rows(own, text, sent)));
  };
  const [added] = await addDocuments(codec, client, {
    documents: [plain(payload, 'payload')],
    compared: [values[2] !== null && onDuplicate === 'keep'],
    add: (own, [document], ignore) => send(own, document, ignore ? 'ignore' : onDuplicate),
    compare: (own, _, [document]) => send(own, document, onDuplicate),
  });
  return added;
}

/**
 * @param {import('../index.js').Queryable} client @param {string} queue @param {readonly import('../index.js').NewJob[]} jobs
 * @param {import('../index.js').EnqueueManyOptions} [options] @returns {Promise<any[]>}
 */
async function addMany(client, queue, jobs, options = {}) {
  checkClient(client);
  checkName(queue, 'queue');
  if (!Array.isArray(jobs)) reject('jobs', 'an array of jobs', jobs);
  checkOptions(options, MANY_OPTIONS, 'enqueueMany');
  jobs.forEach((job, n) => checkOptions(job, NEW_JOB, `job ${n}`));
  checkSchema(options.schema);
  for (const [n, job] of jobs.entries()) await validated(options.schema, job.kind, job.payload, `the payload of job ${n}`);
  if (jobs.length === 0) return [];
  /** A member of all jobs. @param {(job: any, what: (name: string) => string) => unknown} of */
  const all = (of) => jobs.map((job, n) => of(job, (name) => `${name} of job ${n}`));
  const codec = checkCodec(options.codec);
  const values = [
    queue,
    codec ? null : all((job, what) => json(job.payload, what('payload'))),
    all((job, what) => optionalKey(job.key, what('key'))),
    all((job, what) => optionalTime(job.runAt, what('runAt'))),
    all((job, what) => optionalInteger(job.priority, what('priority')) ?? defaultPriority),
    all((job, what) => optionalKey(job.groupKey, what('groupKey'))),
    all((job, what) => optionalInterval(job.delay, what('delay'))),
    all((job, what) => optionalInteger(job.maxAttempts, what('maxAttempts'))),
    all((job, what) => {
      const headers = inject(optionalObject(job.headers, what('headers')));
      return headers && json(headers, what('headers'));
    }),
    all((job, what) => optionalInterval(job.expiresIn, what('expiresIn'))),
    all((job, what) => optionalInterval(job.keyTtl, what('keyTtl'))),
    optionalName(options.onDuplicate, 'onDuplicate') ?? 'keep',
    optionalBoolean(options.nowait, 'nowait') ?? false,
    all((job, what) => optionalName(job.kind, what('kind'))),
    optionalInterval(options.maxWait, 'maxWait'),
    optionalIds(options.dependsOn, 'dependsOn'),
    optionalName(options.onParentFailure, 'onParentFailure') ?? 'cancel',
  ];
  if (codec) return addManyEncoded(codec, client, jobs.map(({ payload }) => payload), values);
  return withErrors(client, await rows(client, ENQUEUE_MANY, values));
}

/** The arguments of ENQUEUE_MANY that have an element for each job, without the payloads. */
const columnsOfMany = [2, 3, 4, 5, 6, 7, 8, 9, 10, 13];

/** @param {import('../index.js').Codec} codec @param {import('../index.js').Queryable} client @param {unknown[]} payloads @param {any[]} values of ENQUEUE_MANY without the payloads */
async function addManyEncoded(codec, client, payloads, values) {
  const onDuplicate = values[11];
  const send = async (/** @type {import('../index.js').Queryable} */ own, /** @type {number[]} */ numbers, /** @type {string[]} */ texts, /** @type {unknown} */ how) => {
    const sent = values.map((value, n) => (columnsOfMany.includes(n) ? numbers.map((job) => value[job]) : value));
    sent[1] = texts;
    sent[11] = how;
    return decodedResults(codec, await withErrors(own, await rows(own, ENQUEUE_MANY, sent)));
  };
  return addDocuments(codec, client, {
    documents: payloads.map((payload, n) => plain(payload, `payload of job ${n}`)),
    compared: values[2].map((/** @type {unknown} */ key) => key !== null && onDuplicate === 'keep'),
    add: (own, texts, ignore) => send(own, texts.map((_, n) => n), texts, ignore ? 'ignore' : onDuplicate),
    compare: (own, numbers, texts) => send(own, numbers, texts, onDuplicate),
  });
}

// Their types depend on the queue, which an implementation cannot express.
export const enqueue = /** @type {typeof import('../index.js').enqueue} */ (/** @type {unknown} */ (sends(add, (_, queue, __, options) => [queue, undefined, options?.headers])));
export const enqueueStatement = /** @type {typeof import('../index.js').enqueueStatement} */ (/** @type {unknown} */ (statementFor));
export const enqueueMany = /** @type {typeof import('../index.js').enqueueMany} */ (/** @type {unknown} */ (sends(addMany, (_, queue, jobs) => [queue, jobs ?? undefined])));

/** @param {unknown} ids @param {string} what */
function optionalIds(ids, what) {
  return ids === undefined || ids === null ? null : checkIds(ids, what);
}

/** Adds the error to each duplicate of a dead job. @param {import('../index.js').Queryable} client @param {any[]} enqueued @returns {Promise<any[]>} */
export async function withErrors(client, enqueued) {
  const dead = enqueued.filter(({ outcome, status }) => outcome === 'duplicate' && status === 'dead').map(({ id }) => id);
  const errors = new Map(dead.length === 0 ? [] : (await rows(client, LAST_ERRORS, [`{${dead.join(',')}}`])).map(({ id, error }) => [id, error]));
  return enqueued.map((each) => ({ ...each, error: errors.get(each.id) ?? null }));
}
