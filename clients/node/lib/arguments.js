// Arguments of the public calls.  Each is checked before anything is sent, and its error names it: what the server says of a
// value of another type names neither the argument nor the call.

import { types } from 'node:util';
import { interval } from './errors.js';

/** @typedef {import('../index.js').Interval} Interval */

/** What a value is, in an error. @param {unknown} value @returns {string} */
function described(value) {
  if (value === null || value === undefined || typeof value === 'boolean' || typeof value === 'number') return `${value}`;
  if (typeof value === 'string') return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}…` : value);
  if (Array.isArray(value)) return 'an array';
  if (types.isDate(value)) return Number.isNaN(value.getTime()) ? 'an invalid Date' : 'a Date';
  if (typeof value === 'object') return 'an object';
  return `a ${typeof value}`;
}

/** @param {string} what @param {string} wanted @param {unknown} value @returns {never} */
export function reject(what, wanted, value) {
  throw new TypeError(`${what} must be ${wanted}, not ${described(value)}`);
}

/** What can run a statement; first of all, since it is what one forgets. @param {unknown} value */
export function checkClient(value) {
  if (typeof (/** @type {any} */ (value)?.query) !== 'function') reject('client', "pg's Client or Pool, or the client of a handler", value);
}

/** A name: not an array of one, which pg would send as text. @param {unknown} value @param {string} what @returns {string} */
export function checkName(value, what) {
  if (typeof value !== 'string') reject(what, 'a string', value);
  return /** @type {string} */ (value);
}

/** The same of one that may be left out. @param {unknown} value @param {string} what @returns {string | null} */
export function optionalName(value, what) {
  return value === null || value === undefined ? null : checkName(value, what);
}

/**
 * A key. Ids of an application are often numbers: those are taken as text; of one that has lost digits nobody knows what it was.
 * @param {unknown} value @param {string} what @returns {string | null}
 */
export function optionalKey(value, what) {
  if (value === null || value === undefined || typeof value === 'string') return value ?? null;
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) return `${value}`;
  return reject(what, 'a string or an integer', value);
}

/** @param {unknown} value @param {string} what @returns {number | null} */
export function optionalInteger(value, what) {
  if (value === null || value === undefined) return null;
  if (!Number.isSafeInteger(value)) reject(what, 'an integer', value);
  return /** @type {number} */ (value);
}

/** @param {unknown} value @param {string} what @returns {boolean | null} */
export function optionalBoolean(value, what) {
  if (value === null || value === undefined) return null;
  if (typeof value !== 'boolean') reject(what, 'true or false', value);
  return value;
}

/** @param {unknown} value @param {string} what @returns {string | null} */
export function optionalInterval(value, what) {
  return interval(/** @type {any} */ (value), what);
}

/** @param {unknown} value @param {string} what @returns {Date | string | null} */
export function optionalTime(value, what) {
  if (value === null || value === undefined) return null;
  if (typeof value === 'string' || (types.isDate(value) && !Number.isNaN(value.getTime()))) return value;
  return reject(what, "a Date, or a PostgreSQL timestamp as text", value);
}

/** @param {unknown} value @param {string} what @returns {Record<string, unknown> | null} */
export function optionalObject(value, what) {
  if (value === null || value === undefined) return null;
  if (typeof value !== 'object' || Array.isArray(value) || types.isDate(value)) reject(what, 'an object', value);
  return /** @type {Record<string, unknown>} */ (value);
}

/** An id, as it came; a number may have lost digits. @param {unknown} value @param {string} what @returns {string} */
export function checkId(value, what) {
  if ((typeof value === 'string' && /^-?\d+$/.test(value)) || typeof value === 'bigint' || Number.isSafeInteger(value)) return `${value}`;
  return reject(what, 'a job id, which is a string of digits', value);
}

/** @param {unknown} value @param {string} what @returns {string[]} */
export function checkIds(value, what) {
  if (!Array.isArray(value)) reject(what, 'an array of job ids', value);
  return /** @type {unknown[]} */ (value).map((id, n) => checkId(id, `${what}[${n}]`));
}
