// Errors: those that the server raises, by SQLSTATE; what a handler throws to say what is to become
// of its job; what a job's signal fires with.

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

/** IQ001: the lease is lost; another attempt may have the job. */
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

/** What kind of error it is: pg's all have the name error, and classes seldom give one. @param {Error} error */
function typeOf(error) {
  return ['Error', 'error'].includes(error.name) ? error.constructor?.name ?? 'Error' : error.name;
}

/**
 * An error as text that the server takes: without NUL, of bounded length.
 * @param {unknown} error @returns {string}
 */
export function textOf(error) {
  const own = error instanceof RetryLater || error instanceof Dead || error instanceof Cancelled;
  const text = read(() => (error instanceof Error && !own ? `${typeOf(error)}: ${error.message}` : `${own ? error.message : error}`));
  return (text ?? 'an error that has no text').replaceAll('\0', '').slice(0, maxTextLength);
}

/** What a program is to read of an error: for `details` of idemq.attempts. @param {unknown} error @returns {string} */
export function detailsOf(error) {
  /** @type {Record<string, string>} */
  const details = { type: read(() => (error instanceof Error ? `${typeOf(error)}` : typeof error)) ?? 'Error' };
  if (sqlstate(error)) details.sqlstate = sqlstate(error);
  const trace = read(() => (error instanceof Error && error.stack ? `${error.stack}` : ''));
  if (trace) details.trace = trace.replaceAll('\0', '').slice(0, maxTextLength);
  // A half of a surrogate pair is no JSON to the server.
  return JSON.stringify(details).replace(/\\u(?:0000|d[89a-f][0-9a-f]{2})/gi, '?');
}

/**
 * An interval in the text of PostgreSQL: of seconds, or such text already.
 * @param {import('../index.js').Interval | null | undefined} delay @returns {string | null}
 */
export function interval(delay) {
  if (delay === null || delay === undefined) return null;
  if (typeof delay === 'string') return delay;
  if (typeof delay !== 'number' || !Number.isFinite(delay)) throw new TypeError(`an interval is seconds, or PostgreSQL's text for one, not ${delay}`);
  return `${delay.toFixed(6)} seconds`;
}
