// Producers.

import { interval, typed } from './errors.js';
import { ENQUEUE as OPTIONS, checkOptions } from './options.js';
import { inject } from './trace.js';

const ENQUEUE = `SELECT id::text, outcome::text, status::text, result
  FROM idemq.enqueue($1::text, $2::jsonb, key => $3::text, delay => $4::interval, run_at => $5::timestamptz,
    priority => $6::int, group_key => $7::text, max_attempts => $8::int, headers => $9::jsonb,
    expires_in => $10::interval, key_ttl => $11::interval, on_duplicate => $12::text, nowait => $13::bool,
    kind => $14::text, max_wait => $15::interval, depends_on => $16::bigint[], on_parent_failure => $17::text)`;

/** Bytes: the most that idemq.max_document can be. */
const maxJsonLength = 64 * 2 ** 20;

/**
 * A value as JSON text.
 * @param {unknown} value @param {string} what @returns {string}
 */
export function json(value, what) {
  const text = JSON.stringify(value);
  if (text === undefined) throw new TypeError(`${what} is ${typeof value}, which is no JSON`);
  // A message of hundreds of megabytes that is refused holds up all that stands behind it.
  if (text.length > maxJsonLength) throw new RangeError(`${what} is ${text.length} characters long as JSON, more than any server takes; pass a reference to it`);
  return text;
}

/** @type {typeof import('../index.js').enqueue} */
export async function enqueue(client, queue, payload, options = {}) {
  checkOptions(options, OPTIONS, 'enqueue');
  const headers = inject(options.headers);
  try {
    const { rows } = await client.query(ENQUEUE, [
      queue,
      json(payload, 'the payload'),
      options.key ?? null,
      interval(options.delay),
      options.runAt ?? null,
      options.priority ?? 4,
      options.groupKey ?? null,
      options.maxAttempts ?? null,
      headers && json(headers, 'headers'),
      interval(options.expiresIn),
      interval(options.keyTtl),
      options.onDuplicate ?? 'keep',
      options.nowait ?? false,
      options.kind ?? null,
      interval(options.maxWait),
      options.dependsOn ?? null,
      options.onParentFailure ?? 'cancel',
    ]);
    return rows[0];
  } catch (error) {
    throw typed(error);
  }
}
