// Producers.

import { checkClient, checkIds, checkName, optionalBoolean, optionalInteger, optionalInterval, optionalKey, optionalName, optionalObject, optionalTime } from './arguments.js';
import { textOf, typed } from './errors.js';
import { ENQUEUE as OPTIONS, checkOptions } from './options.js';
import { inject } from './trace.js';

const ENQUEUE = `SELECT id::text, outcome::text, status::text, result
  FROM idemq.enqueue($1::text, $2::jsonb, key => $3::text, delay => $4::interval, run_at => $5::timestamptz,
    priority => $6::int, group_key => $7::text, max_attempts => $8::int, headers => $9::jsonb,
    expires_in => $10::interval, key_ttl => $11::interval, on_duplicate => $12::text, nowait => $13::bool,
    kind => $14::text, max_wait => $15::interval, depends_on => $16::bigint[], on_parent_failure => $17::text)`;

/** Bytes: the maximum of idemq.max_document. */
const maxJsonLength = 64 * 2 ** 20;

/**
 * A value as JSON text.
 * @param {unknown} value @param {string} what @returns {string}
 */
export function json(value, what) {
  let text;
  try {
    text = JSON.stringify(value);
  } catch (error) {
    // The message of JSON.stringify does not name the value, for example a circular object or a bigint.
    throw error instanceof RangeError ? error : new TypeError(`${what} cannot be encoded as JSON: ${textOf(error)}`, { cause: error });
  }
  if (text === undefined) throw new TypeError(`${what} must be a value that JSON can represent, not ${typeof value === 'undefined' ? 'undefined' : `a ${typeof value}`}`);
  // Sending hundreds of megabytes only to have them refused would delay all following messages.
  if (text.length > maxJsonLength) throw new RangeError(`${what} is ${text.length} characters long as JSON, which is longer than any server accepts; pass a reference to it instead`);
  return text;
}

/** @type {typeof import('../index.js').enqueue} */
export async function enqueue(client, queue, payload, options = {}) {
  checkClient(client);
  checkName(queue, 'queue');
  checkOptions(options, OPTIONS, 'enqueue');
  const headers = inject(optionalObject(options.headers, 'headers'));
  const values = [
    queue,
    json(payload, 'payload'),
    optionalKey(options.key, 'key'),
    optionalInterval(options.delay, 'delay'),
    optionalTime(options.runAt, 'runAt'),
    optionalInteger(options.priority, 'priority') ?? 4,
    optionalKey(options.groupKey, 'groupKey'),
    optionalInteger(options.maxAttempts, 'maxAttempts'),
    headers && json(headers, 'headers'),
    optionalInterval(options.expiresIn, 'expiresIn'),
    optionalInterval(options.keyTtl, 'keyTtl'),
    optionalName(options.onDuplicate, 'onDuplicate') ?? 'keep',
    optionalBoolean(options.nowait, 'nowait') ?? false,
    optionalName(options.kind, 'kind'),
    optionalInterval(options.maxWait, 'maxWait'),
    options.dependsOn === undefined || options.dependsOn === null ? null : checkIds(options.dependsOn, 'dependsOn'),
    optionalName(options.onParentFailure, 'onParentFailure') ?? 'cancel',
  ];
  try {
    const { rows } = await client.query(ENQUEUE, values);
    return rows[0];
  } catch (error) {
    throw typed(error);
  }
}
