// Functions for single jobs, for schedules, and for pauses of a queue.

import { checkId, checkName, optionalInteger, optionalInterval, optionalKey, optionalName, optionalObject, optionalTime } from './arguments.js';
import { checkCodec, decoded, decodedResults, encoded } from './codec.js';
import { json, rows } from './enqueue.js';
import { CODEC, PAUSE as PAUSE_OPTIONS, RESCHEDULE as RESCHEDULE_OPTIONS, SCHEDULE as SCHEDULE_OPTIONS, checkOptions } from './options.js';

/** Times as milliseconds, which do not depend on DateStyle. @param {string} column */
const ms = (column) => `(1000 * extract(epoch FROM ${column}))::text`;
const SCHEDULE = `SELECT ${ms('next')} AS next FROM idemq.schedule($1::text, $2::text, $3::text, $4::jsonb, time_zone => $5::text, priority => $6::int,
    group_key => $7::text, max_attempts => $8::int, headers => $9::jsonb, expires_in => $10::interval, kind => $11::text) AS next`;
const UNSCHEDULE = 'SELECT idemq.unschedule($1::text) AS answer';
const RETRY = 'SELECT idemq.retry($1::bigint)::text AS answer';
const CANCEL = 'SELECT idemq.cancel($1::bigint)::text AS answer';
const RESCHEDULE = 'SELECT idemq.reschedule($1::bigint, run_at => $2::timestamptz, priority => $3::int)::text AS answer';
const PAUSE = 'SELECT idemq.pause($1::text, until => $2::timestamptz)';
const RESUME = 'SELECT idemq.resume($1::text)';
const JOB = `SELECT j.id::text, q.name AS queue, j.status::text, j.payload, j.key, j.group_key AS "groupKey", j.kind, j.priority::int, j.attempt,
    j.max_attempts AS "maxAttempts", j.checkpoint, j.result, j.last_error AS error, j.worker, j.headers, ${ms('j.enqueued_at')} AS "enqueuedAt",
    ${ms('j.ready_at')} AS "readyAt", ${ms('j.claimed_at')} AS "claimedAt", ${ms('j.finished_at')} AS "finishedAt"
  FROM idemq.jobs AS j JOIN idemq.queues AS q USING (queue_id) WHERE j.id = $1::bigint`;
const RESULT = 'SELECT status::text, result FROM idemq.result($1::bigint)';
const WHY = 'SELECT idemq.why($1::bigint) AS answer';

/** @param {string | null} text */
const time = (text) => (text === null ? null : new Date(Number(text)));

/** @type {typeof import('../index.js').schedule} */
export async function schedule(client, name, cron, queue, payload, options = {}) {
  checkOptions(options, SCHEDULE_OPTIONS, 'schedule');
  const headers = optionalObject(options.headers, 'headers');
  const codec = checkCodec(options.codec);
  const [{ next }] = await rows(client, SCHEDULE, [
    checkName(name, 'name'),
    checkName(cron, 'cron'),
    checkName(queue, 'queue'),
    codec ? await encoded(codec, payload, 'payload') : json(payload, 'payload'),
    optionalName(options.timeZone, 'timeZone') ?? 'UTC',
    optionalInteger(options.priority, 'priority') ?? 4,
    optionalKey(options.groupKey, 'groupKey'),
    optionalInteger(options.maxAttempts, 'maxAttempts'),
    headers && json(headers, 'headers'),
    optionalInterval(options.expiresIn, 'expiresIn'),
    optionalName(options.kind, 'kind'),
  ]);
  return time(next);
}

/** @param {import('../index.js').Queryable} client @param {string} text @param {unknown[]} values @returns {Promise<any>} the only value */
const answer = async (client, text, values) => (await rows(client, text, values))[0].answer;

/** @type {typeof import('../index.js').unschedule} */
export const unschedule = async (client, name) => answer(client, UNSCHEDULE, [checkName(name, 'name')]);

/** @type {typeof import('../index.js').retry} */
export const retry = async (client, id) => answer(client, RETRY, [checkId(id, 'id')]);

/** @type {typeof import('../index.js').cancel} */
export const cancel = async (client, id) => answer(client, CANCEL, [checkId(id, 'id')]);

/** @type {typeof import('../index.js').why} */
export const why = async (client, id) => answer(client, WHY, [checkId(id, 'id')]);

/** @type {typeof import('../index.js').reschedule} */
export async function reschedule(client, id, options) {
  checkOptions(options, RESCHEDULE_OPTIONS, 'reschedule');
  return answer(client, RESCHEDULE, [checkId(id, 'id'), optionalTime(options.runAt, 'runAt'), optionalInteger(options.priority, 'priority')]);
}

/** @type {typeof import('../index.js').pause} */
export async function pause(client, queue, options = {}) {
  checkOptions(options, PAUSE_OPTIONS, 'pause');
  await rows(client, PAUSE, [checkName(queue, 'queue'), optionalTime(options.until, 'until')]);
}

/** @type {typeof import('../index.js').resume} */
export async function resume(client, queue) {
  await rows(client, RESUME, [checkName(queue, 'queue')]);
}

/** @type {typeof import('../index.js').job} */
export async function job(client, id, options = {}) {
  checkOptions(options, CODEC, 'job');
  const codec = checkCodec(options.codec);
  const [found] = await rows(client, JOB, [checkId(id, 'id')]);
  if (!found) return null;
  const { enqueuedAt, readyAt, claimedAt, finishedAt, ...others } = found;
  if (codec) for (const name of ['payload', 'checkpoint', 'result']) others[name] = await decoded(codec, others[name]);
  return { ...others, enqueuedAt: /** @type {Date} */ (time(enqueuedAt)), readyAt: time(readyAt), claimedAt: time(claimedAt), finishedAt: time(finishedAt) };
}

/** @type {typeof import('../index.js').result} */
export async function result(client, id, options = {}) {
  checkOptions(options, CODEC, 'result');
  const codec = checkCodec(options.codec);
  return (await decodedResults(codec, await rows(client, RESULT, [checkId(id, 'id')])))[0];
}
