// Checks of the arguments of public calls, made before anything is sent.  Each error names the argument.  The server's error for a
// value of the wrong type would name neither the argument nor the call.

import { types } from 'node:util';
import { interval } from './errors.js';

/** @typedef {import('../index.js').Interval} Interval */

/** Describes a value in an error. @param {unknown} value @returns {string} */
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

/** A client that can run statements.  It is checked first, because callers forget it most often. @param {unknown} value */
export function checkClient(value) {
  if (typeof (/** @type {any} */ (value)?.query) !== 'function') reject('client', "an object with query(text, values), such as pg's Client or Pool, or the client of a handler", value);
}

/** A name.  An array of one name is refused, because pg would send it as text. @param {unknown} value @param {string} what @returns {string} */
export function checkName(value, what) {
  if (typeof value !== 'string') reject(what, 'a string', value);
  return /** @type {string} */ (value);
}

/** A name, or nothing. @param {unknown} value @param {string} what @returns {string | null} */
export function optionalName(value, what) {
  return value === null || value === undefined ? null : checkName(value, what);
}

/**
 * A key. Applications often use numbers as ids, so an integer is sent as text. An integer that may have lost digits is refused.
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

/** @param {unknown} value @param {string} what @returns {number | null} */
export function optionalNumber(value, what) {
  if (value === null || value === undefined) return null;
  if (typeof value !== 'number') reject(what, 'a number', value);
  return /** @type {number} */ (value);
}

/** An integer that is at least 1. @param {unknown} value @param {string} what @returns {number} */
export function checkCount(value, what) {
  if (!Number.isSafeInteger(value)) reject(what, 'an integer', value);
  if (/** @type {number} */ (value) < 1) throw new RangeError(`${what} must be at least 1, not ${value}`);
  return /** @type {number} */ (value);
}

/** A number of seconds that is greater than 0, or at least 0. @param {unknown} value @param {string} what @param {boolean} [orZero] @returns {number} */
export function checkSeconds(value, what, orZero = false) {
  if (typeof value !== 'number' || Number.isNaN(value)) return reject(what, 'a number of seconds', value);
  if (orZero ? value < 0 : value <= 0) throw new RangeError(`${what} must be ${orZero ? 'at least' : 'greater than'} 0 seconds, not ${value}`);
  return value;
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

/** An id, unchanged. A number is refused, because it may have lost digits. @param {unknown} value @param {string} what @returns {string} */
export function checkId(value, what) {
  if ((typeof value === 'string' && /^-?\d+$/.test(value)) || typeof value === 'bigint' || Number.isSafeInteger(value)) return `${value}`;
  return reject(what, 'a job id, which is a string of digits', value);
}

/** @param {unknown} value @param {string} what @returns {string[]} */
export function checkIds(value, what) {
  if (!Array.isArray(value)) reject(what, 'an array of job ids', value);
  return /** @type {unknown[]} */ (value).map((id, n) => checkId(id, `${what}[${n}]`));
}
