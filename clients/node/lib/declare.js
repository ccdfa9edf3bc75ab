// Functions with which a program declares queues, topic spaces and handlers whenever it starts.

import { checkClient, checkName, optionalBoolean, optionalInteger, optionalInterval, optionalName, optionalNumber } from './arguments.js';
import { rows } from './enqueue.js';
import { HANDLER, QUEUE_SETTINGS, checkOptions } from './options.js';

const ENSURE_QUEUE = `SELECT outcome, changes::text
  FROM idemq.ensure_queue($1::text, exact => $2::boolean,
    lease => $3::interval, max_attempts => $4::int, retry_base => $5::interval, retry_factor => $6::float8,
    retry_max => $7::interval, retry_jitter => $8::float8, retention => $9::interval, idempotency_window => $10::interval,
    max_running => $11::int, rate_limit => $12::int, rate_period => $13::interval, dead_letter_queue => $14::text,
    dead_retention => $15::interval, max_lease => $16::interval, job_timeout => $17::interval,
    dead_letter_cancelled => $18::boolean, group_max_running => $19::int, group_rate_limit => $20::int,
    group_rate_period => $21::interval, expect_workers => $22::boolean, rate_burst => $23::int,
    group_rate_burst => $24::int, max_hold_back => $25::interval, max_unfinished => $26::int,
    group_max_unfinished => $27::int, notify_finished => $28::boolean)`;
const ENSURE_TOPIC = 'SELECT idemq.ensure_topic($1::text) AS outcome';
const ENSURE_HANDLER = `SELECT outcome, changes::text
  FROM idemq.ensure_handler($1::text, $2::text, workers => $3::int, batch => $4::int, max_idle => $5::interval)`;

/** The name of an option, by the name of the setting. @param {string} name */
const camel = (name) => name.replace(/_(\w)/g, (_, letter) => letter.toUpperCase());

/** @param {{ outcome: any, changes: string | null }} row @returns {import('../index.js').Ensured} */
function ensured({ outcome, changes }) {
  const names = changes === null ? null : Object.entries(JSON.parse(changes)).map(([name, change]) => [camel(name), change]);
  return { outcome, changes: names && Object.fromEntries(names) };
}

/** @type {typeof import('../index.js').ensureQueue} */
export async function ensureQueue(client, queue, options = {}) {
  checkClient(client);
  checkName(queue, 'queue');
  checkOptions(options, QUEUE_SETTINGS, 'ensureQueue');
  const [row] = await rows(client, ENSURE_QUEUE, [
    queue,
    optionalBoolean(options.exact, 'exact') ?? false,
    optionalInterval(options.lease, 'lease'),
    optionalInteger(options.maxAttempts, 'maxAttempts'),
    optionalInterval(options.retryBase, 'retryBase'),
    optionalNumber(options.retryFactor, 'retryFactor'),
    optionalInterval(options.retryMax, 'retryMax'),
    optionalNumber(options.retryJitter, 'retryJitter'),
    optionalInterval(options.retention, 'retention'),
    optionalInterval(options.idempotencyWindow, 'idempotencyWindow'),
    optionalInteger(options.maxRunning, 'maxRunning'),
    optionalInteger(options.rateLimit, 'rateLimit'),
    optionalInterval(options.ratePeriod, 'ratePeriod'),
    optionalName(options.deadLetterQueue, 'deadLetterQueue'),
    optionalInterval(options.deadRetention, 'deadRetention'),
    optionalInterval(options.maxLease, 'maxLease'),
    optionalInterval(options.jobTimeout, 'jobTimeout'),
    optionalBoolean(options.deadLetterCancelled, 'deadLetterCancelled'),
    optionalInteger(options.groupMaxRunning, 'groupMaxRunning'),
    optionalInteger(options.groupRateLimit, 'groupRateLimit'),
    optionalInterval(options.groupRatePeriod, 'groupRatePeriod'),
    optionalBoolean(options.expectWorkers, 'expectWorkers'),
    optionalInteger(options.rateBurst, 'rateBurst'),
    optionalInteger(options.groupRateBurst, 'groupRateBurst'),
    optionalInterval(options.maxHoldBack, 'maxHoldBack'),
    optionalInteger(options.maxUnfinished, 'maxUnfinished'),
    optionalInteger(options.groupMaxUnfinished, 'groupMaxUnfinished'),
    optionalBoolean(options.notifyFinished, 'notifyFinished'),
  ]);
  return ensured(row);
}

/** @type {typeof import('../index.js').ensureTopic} */
export async function ensureTopic(client, topic) {
  checkClient(client);
  const [row] = await rows(client, ENSURE_TOPIC, [checkName(topic, 'topic')]);
  return row.outcome;
}

/** @type {typeof import('../index.js').ensureHandler} */
export async function ensureHandler(client, queue, functionName, options = {}) {
  checkClient(client);
  checkName(queue, 'queue');
  checkName(functionName, 'functionName');
  checkOptions(options, HANDLER, 'ensureHandler');
  const [row] = await rows(client, ENSURE_HANDLER, [
    queue,
    functionName,
    optionalInteger(options.workers, 'workers') ?? 1,
    optionalInteger(options.batch, 'batch') ?? 1,
    optionalInterval(options.maxIdle, 'maxIdle') ?? '10 s',
  ]);
  return ensured(row);
}
