// Errors: those that the server raises, by SQLSTATE; what a handler throws to say what is to become
// of its job; what a job's signal fires with.

import { inspect } from 'node:util';

/** An error of idemq's SQL functions. `sqlstate` says which; do not read the message. */
export class IdemqError extends Error {
  /** @param {string} message @param {{ code?: string, detail?: string, hint?: string }} [from] the driver's error */
  constructor(message, from = {}) {
    super(from.hint ? `${message} (${from.hint})` : message, { cause: from });
    this.name = new.target.name;
    this.sqlstate = from.code ?? '';
    this.detail = from.detail;
    this.hint = from.hint;
  }
}

/** IQ001: the lease was lost; another attempt may have the job. */
export class StaleToken extends IdemqError {}
/** IQ002: there is no such job, or not for this role. */
export class NoSuchJob extends IdemqError {}
/** IQ003: the key is taken by a job with another payload. */
export class KeyReused extends IdemqError {}
/** IQ004: the key is taken, and `onDuplicate` is `error`. */
export class DuplicateKey extends IdemqError {}
/** IQ005: there is no such queue. */
export class NoSuchQueue extends IdemqError {}
/** IQ006: this attempt has committed already. */
export class AlreadyCommitted extends IdemqError {}

/** @type {Record<string, typeof IdemqError>} */
const classes = {
  IQ001: StaleToken,
  IQ002: NoSuchJob,
  IQ003: KeyReused,
  IQ004: DuplicateKey,
  IQ005: NoSuchQueue,
  IQ006: AlreadyCommitted,
};

/** The SQLSTATE of an error of the driver, or ''. EPIPE looks like one, and is the system's. @param {unknown} error @returns {string} */
export function sqlstate(error) {
  const code = read(() => /** @type {any} */ (error)?.code ?? /** @type {any} */ (error)?.sqlstate);
  const own = typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) && read(() => /** @type {any} */ (error)?.errno) === undefined;
  return own ? code : '';
}

/** What an error says of itself. Its class is anybody's: that may throw, too. @template T @param {() => T} what @returns {T | undefined} */
function read(what) {
  try {
    return what();
  } catch {
    return undefined;
  }
}

/** The error itself, or for an SQLSTATE of idemq the class of that. @param {unknown} error @returns {unknown} */
export function typed(error) {
  const of = classes[sqlstate(error)];
  return of && !(error instanceof IdemqError) ? new of(/** @type {Error} */ (error).message, /** @type {any} */ (error)) : error;
}

/** Thrown by a handler: the attempt has failed, and the next one comes after this delay. */
export class RetryLater extends Error {
  /** @param {import('../index.js').Interval} delay @param {string} [reason] */
  constructor(delay, reason = 'retry later') {
    super(reason);
    this.name = 'RetryLater';
    this.delay = delay;
  }
}

/** Thrown by a handler: not now; the job comes again after this delay, and the attempt does not count. */
export class Snooze extends Error {
  /** @param {import('../index.js').Interval} delay @param {string} [reason] */
  constructor(delay, reason = 'snooze') {
    super(reason);
    this.name = 'Snooze';
    this.delay = delay;
  }
}

/** Thrown by a handler: no attempt will succeed; the job is dead. */
export class Dead extends Error {
  /** @param {string} reason */
  constructor(reason) {
    super(reason);
    this.name = 'Dead';
  }
}

/** Thrown in a handler by `job.awaitEvent`: its job sleeps until the event comes. */
export class Waiting extends Error {
  /** @param {string} event @param {import('../index.js').Interval} timeout */
  constructor(event, timeout) {
    super(`waits for event ${event}`);
    this.name = 'Waiting';
    this.event = event;
    this.timeout = timeout;
  }
}

/** Thrown by the call of a step: the other side has definitely not done it. */
export class Refused extends Error {
  /** @param {string} reason @param {ErrorOptions} [options] */
  constructor(reason, options) {
    super(reason, options);
    this.name = 'Refused';
  }
}

/** The reason of `job.signal`: why the handler is to stop. */
export class Cancelled extends Error {
  /** @param {'lease' | 'timeout' | 'drain'} why @param {string} message */
  constructor(why, message) {
    super(message);
    this.name = 'Cancelled';
    this.why = why;
  }
}

const maxTextLength = 10_000;
/** Characters of a message before its first cause, and of a cause: the server's fingerprint reads the first 2,000 bytes. */
const maxBeforeCause = 1200;
const maxCauseLength = 1000;
/** A chain of causes may be long, or a circle; an AggregateError may have thousands of errors. */
const maxCauseDepth = 8;
const maxErrors = 16;

/** What kind of error it is: pg's all have the name error, and classes seldom give one. @param {Error} error */
function typeOf(error) {
  return ['Error', 'error'].includes(error.name) ? error.constructor?.name ?? 'Error' : error.name;
}

/** What an error says of itself, without its causes. @param {unknown} error @returns {string} */
function ownText(error) {
  if (error instanceof RetryLater || error instanceof Dead || error instanceof Cancelled) return `${error.message}`;
  if (error instanceof Error) {
    // Of a connection that was refused at each of several addresses Node's AggregateError has no message, but a code.
    const { code } = /** @type {any} */ (error);
    if (error.message === '') return typeof code === 'string' && code !== '' ? `${typeOf(error)} [${code}]` : typeOf(error);
    return `${typeOf(error)}: ${error.message}`;
  }
  const text = read(() => String(error));
  // Any object can be thrown; the text of most says nothing.
  if (text === undefined || /^\[object \w+\]$/.test(text)) return inspect(error, { depth: 3, breakLength: Infinity, maxStringLength: 1000 });
  return text;
}

/**
 * The errors that led to an error, with the word that introduces each: `cause`, and `errors` of an AggregateError.
 * @param {unknown} error @returns {[string, unknown][]}
 */
function causesOf(error) {
  if (typeof error !== 'object' || error === null) return [];
  const { cause, errors } = /** @type {any} */ (error);
  // That of ours is the driver's, which says the same.
  if (error instanceof IdemqError) return [];
  /** @type {[string, unknown][]} */
  const found = cause === undefined || cause === null ? [] : [['caused by', cause]];
  if (Array.isArray(errors)) found.push(...errors.slice(0, maxErrors).map((each, n) => /** @type {[string, unknown]} */ ([n === 0 ? 'errors:' : 'and', each])));
  return found;
}

/**
 * Calls see with an error and everything that led to it, each once, the outermost first.
 * @param {unknown} error @param {(error: unknown, word: string) => void} see
 */
function walk(error, see) {
  /** @type {Set<unknown>} */
  const seen = new Set();
  const visit = (/** @type {unknown} */ each, /** @type {string} */ word, /** @type {number} */ depth) => {
    if (seen.has(each) || seen.size > maxErrors) return;
    seen.add(each);
    see(each, word);
    if (depth === maxCauseDepth) return;
    for (const [next, cause] of read(() => causesOf(each)) ?? []) visit(cause, next, depth + 1);
  };
  visit(error, '', 0);
}

/**
 * An error as text that the server takes, with its causes: without NUL, of bounded length.
 * @param {unknown} error @returns {string}
 */
export function textOf(error) {
  let text = '';
  let causes = 0;
  walk(error, (each, word) => {
    const own = read(() => ownText(each)) ?? 'an error without a text';
    if (!word) text = own;
    else text = `${causes++ === 0 ? text.slice(0, maxBeforeCause) : text}; ${word} ${own.slice(0, maxCauseLength)}`;
  });
  return text.replaceAll('\0', '').slice(0, maxTextLength);
}

/** What a program is to read of an error: for `details` of idemq.attempts. @param {unknown} error @returns {string} */
export function detailsOf(error) {
  /** @type {Record<string, unknown>} */
  const details = { type: read(() => (error instanceof Error ? `${typeOf(error)}` : typeof error)) ?? 'Error' };
  /** @type {Record<string, string>[]} */
  const causes = [];
  /** @type {string[]} */
  const traces = [];
  if (sqlstate(error)) details.sqlstate = sqlstate(error);
  walk(error, (each, word) => {
    const code = read(() => /** @type {any} */ (each)?.code);
    const trace = read(() => (each instanceof Error && each.stack ? `${each.stack}` : ''));
    // As Node prints it, and as the web page reads it.
    if (trace) traces.push(word ? `  [cause]: ${trace}` : trace);
    if (!word) {
      if (typeof code === 'string' && code !== '' && !details.sqlstate) details.code = code.slice(0, 100);
      return;
    }
    causes.push({
      type: read(() => (each instanceof Error ? `${typeOf(each)}` : typeof each)) ?? 'Error',
      ...(typeof code === 'string' && code !== '' ? { code: code.slice(0, 100) } : {}),
      text: (read(() => ownText(each)) ?? '').replaceAll('\0', '').slice(0, maxCauseLength),
    });
  });
  if (causes.length > 0) details.causes = causes;
  if (traces.length > 0) details.trace = traces.join('\n').replaceAll('\0', '').slice(0, maxTextLength);
  // A half of a surrogate pair is no JSON to the server.
  return JSON.stringify(details).replace(/\\u(?:0000|d[89a-f][0-9a-f]{2})/gi, '?');
}

/**
 * An interval in the text of PostgreSQL: of seconds, or such text already.
 * @param {import('../index.js').Interval | null | undefined} delay @param {string} [what] its name, for an error @returns {string | null}
 */
export function interval(delay, what = 'an interval') {
  if (delay === null || delay === undefined) return null;
  if (typeof delay === 'string') return delay;
  if (typeof delay !== 'number' || !Number.isFinite(delay)) throw new TypeError(`${what} must be seconds, or PostgreSQL's text for an interval, not ${read(() => `${delay}`) ?? typeof delay}`);
  return `${delay.toFixed(6)} seconds`;
}
