// Documents as JSON text, and statements of public functions.

import { checkClient, reject } from './arguments.js';
import { textOf, typed } from './errors.js';

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

/**
 * Runs a statement of a public function. @param {import('../index.js').Queryable} client @param {string} text @param {unknown[]} values
 * @returns {Promise<any[]>}
 */
export async function rows(client, text, values) {
  checkClient(client);
  let answer;
  try {
    answer = await client.query(text, values);
  } catch (error) {
    throw typed(error);
  }
  const all = Array.isArray(answer) ? answer : answer?.rows;
  if (!Array.isArray(all)) reject("what client's query resolves to", 'the rows, or an object that has rows', answer);
  return all;
}
