// Errors: those of the server, by SQLSTATE; those that a handler throws to end its attempt; and the reason of a job's signal.

import { inspect } from 'node:util';

/** An error of idemq's SQL functions. Test `sqlstate`; do not parse the message. */
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
/** IQ002: there is no such job, or the role may not see it. */
export class NoSuchJob extends IdemqError {}
/** IQ003: a job with another payload has this key. */
export class KeyReused extends IdemqError {}
/** IQ004: the key is taken, and `onDuplicate` is `error`. */
export class DuplicateKey extends IdemqError {}
/** IQ005: there is no such queue. */
export class NoSuchQueue extends IdemqError {}
/** IQ006: this attempt has already completed the job. */
export class AlreadyCommitted extends IdemqError {}
/** IQ007: the queue (max_unfinished) or the job's group (group_max_unfinished) is full. */
export class QueueFull extends IdemqError {}

/** @type {Record<string, typeof IdemqError>} */
const classes = {
  IQ001: StaleToken,
  IQ002: NoSuchJob,
  IQ003: KeyReused,
  IQ004: DuplicateKey,
  IQ005: NoSuchQueue,
  IQ006: AlreadyCommitted,
  IQ007: QueueFull,
};

/** The SQLSTATE of an error of the driver, or ''. EPIPE looks like a SQLSTATE, but is a code of the operating system. @param {unknown} error @returns {string} */
export function sqlstate(error) {
  const code = read(() => /** @type {any} */ (error)?.code ?? /** @type {any} */ (error)?.sqlstate);
  const own = typeof code === 'string' && /^[0-9A-Z]{5}$/.test(code) && read(() => /** @type {any} */ (error)?.errno) === undefined;
  return own ? code : '';
}

/** Reads a property of an error. The error may be of any class, so that can throw as well. @template T @param {() => T} what @returns {T | undefined} */
export function read(what) {
  try {
    return what();
  } catch {
    return undefined;
  }
}

/** The error, converted to the class for its SQLSTATE if it is one of idemq's. @param {unknown} error @returns {unknown} */
export function typed(error) {
  const of = classes[sqlstate(error)];
  return of && !(error instanceof IdemqError) ? new of(/** @type {Error} */ (error).message, /** @type {any} */ (error)) : error;
}

/** Thrown by a handler: the attempt has failed, and the job is retried after this delay. */
export class RetryLater extends Error {
  /** @param {import('../index.js').Interval} delay @param {string} [reason] */
  constructor(delay, reason = 'retry later') {
    super(reason);
    this.name = 'RetryLater';
    this.delay = delay;
  }
}

/** Thrown by a handler: the job is ready again after this delay. The attempt does not count. */
export class Snooze extends Error {
  /** @param {import('../index.js').Interval} delay @param {string} [reason] */
  constructor(delay, reason = 'snooze') {
    super(reason);
    this.name = 'Snooze';
    this.delay = delay;
  }
}

/**
 * Thrown by a handler whose provider asks for a pause (429): until delay has passed, no further job of the same group (or of the
 * queue, if the job has no group) starts. The job is ready again at that time. The first 100 such attempts in a row do not count.
 */
export class HoldBack extends Error {
  /** @param {import('../index.js').Interval} delay @param {'group' | 'queue' | null} [scope] @param {string} [reason] */
  constructor(delay, scope = null, reason = 'held back') {
    super(reason);
    this.name = 'HoldBack';
    this.delay = delay;
    this.scope = scope;
  }
}

/** Thrown by a handler: no attempt can succeed, so the job is dead. */
export class Dead extends Error {
  /** @param {string} reason */
  constructor(reason) {
    super(reason);
    this.name = 'Dead';
  }
}

/** Thrown by `job.awaitEvent`: the job waits until the event arrives. */
export class Waiting extends Error {
  /** @param {string} event @param {import('../index.js').Interval} timeout */
  constructor(event, timeout) {
    super(`waits for event ${event}`);
    this.name = 'Waiting';
    this.event = event;
    this.timeout = timeout;
  }
}

/** Thrown by the call of a step: the other system has definitely not performed it. */
export class Refused extends Error {
  /** @param {string} reason @param {ErrorOptions} [options] */
  constructor(reason, options) {
    super(reason, options);
    this.name = 'Refused';
  }
}

/** The reason of `job.signal`: why the handler must stop. */
export class Cancelled extends Error {
  /** @param {'lease' | 'timeout' | 'drain'} why @param {string} message */
  constructor(why, message) {
    super(message);
    this.name = 'Cancelled';
    this.why = why;
  }
}

const maxTextLength = 10_000;
/** Maximum number of characters of a message before its first cause, and of a cause. The server's fingerprint reads the first 2,000 bytes. */
const maxBeforeCause = 1200;
const maxCauseLength = 1000;
/** A chain of causes can be long or circular, and an AggregateError can have thousands of errors. */
const maxCauseDepth = 8;
const maxErrors = 16;

/** The type of an error. All errors of pg are named error, and few classes set a name. @param {Error} error */
function typeOf(error) {
  return ['Error', 'error'].includes(error.name) ? error.constructor?.name ?? 'Error' : error.name;
}

/** The text of an error without its causes. @param {unknown} error @returns {string} */
function ownText(error) {
  if (error instanceof RetryLater || error instanceof HoldBack || error instanceof Dead || error instanceof Cancelled) return `${error.message}`;
  if (error instanceof Error) {
    // If a connection is refused at each of several addresses, Node's AggregateError has a code but no message.
    const { code } = /** @type {any} */ (error);
    if (error.message === '') return typeof code === 'string' && code !== '' ? `${typeOf(error)} [${code}]` : typeOf(error);
    return `${typeOf(error)}: ${error.message}`;
  }
  const text = read(() => String(error));
  // Any object can be thrown, and the text of most is useless.
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
  // The cause of our own errors is the driver's error, which has the same text.
  if (error instanceof IdemqError) return [];
  /** @type {[string, unknown][]} */
  const found = cause === undefined || cause === null ? [] : [['caused by', cause]];
  if (Array.isArray(errors)) found.push(...errors.slice(0, maxErrors).map((each, n) => /** @type {[string, unknown]} */ ([n === 0 ? 'errors:' : 'and', each])));
  return found;
}

/**
 * Calls see once with an error and once with each of its causes, the outermost first.
 * @param {unknown} error @param {(error: unknown, word: string) => void} see
 */
export function walk(error, see) {
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
 * An error and its causes as text that the server accepts: without NUL, and of limited length.
 * @param {unknown} error @returns {string}
 */
export function textOf(error) {
  let text = '';
  let causes = 0;
  walk(error, (each, word) => {
    const own = read(() => ownText(each)) ?? 'an error without a message';
    if (!word) text = own;
    else text = `${causes++ === 0 ? text.slice(0, maxBeforeCause) : text}; ${word} ${own.slice(0, maxCauseLength)}`;
  });
  return text.replaceAll('\0', '').slice(0, maxTextLength);
}

/**
 * What is the same in errors with the same cause: class, SQLSTATE, and text without values.
 * @param {unknown} error @returns {string}
 */
export function fingerprint(error) {
  const text = textOf(error).slice(0, 2000).replace(/"[^"]*"|'[^']*'|\b[0-9a-f]{8,}\b|\d+/gi, '?');
  return `${read(() => (error instanceof Error ? typeOf(error) : typeof error))} ${sqlstate(error)} ${text}`;
}

/**
 * The machine-readable form of an error, for `details` of idemq.attempts.
 * @param {unknown} error @param {(text: string) => string} [redact] @param {Record<string, unknown>} [more] other members @returns {string}
 */
export function detailsOf(error, redact = (text) => text, more = {}) {
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
    // This is the format that Node prints and that the web page reads.
    if (trace) traces.push(word ? `  [cause]: ${trace}` : trace);
    if (!word) {
      if (typeof code === 'string' && code !== '' && !details.sqlstate) details.code = code.slice(0, 100);
      return;
    }
    causes.push({
      type: read(() => (each instanceof Error ? `${typeOf(each)}` : typeof each)) ?? 'Error',
      ...(typeof code === 'string' && code !== '' ? { code: code.slice(0, 100) } : {}),
      text: redact(read(() => ownText(each)) ?? '').replaceAll('\0', '').slice(0, maxCauseLength),
    });
  });
  if (causes.length > 0) details.causes = causes;
  if (traces.length > 0) details.trace = redact(traces.join('\n')).replaceAll('\0', '').slice(0, maxTextLength);
  // The server does not accept half of a surrogate pair as JSON.
  return JSON.stringify({ ...details, ...more }).replace(/(?<!\\)((?:\\\\)*)\\u(?:0000|d[89a-f][0-9a-f]{2})/gi, '$1?');
}

/**
 * An interval as text that PostgreSQL reads.
 * @param {import('../index.js').Interval | null | undefined} delay @param {string} [what] its name, for an error @returns {string | null}
 */
export function interval(delay, what = 'an interval') {
  if (delay === null || delay === undefined) return null;
  if (typeof delay === 'string') return delay;
  if (typeof delay !== 'number' || !Number.isFinite(delay)) throw new TypeError(`${what} must be a number of seconds, or a PostgreSQL interval as text, not ${read(() => `${delay}`) ?? typeof delay}`);
  return `${delay.toFixed(6)} seconds`;
}
