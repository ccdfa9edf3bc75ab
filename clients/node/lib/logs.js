// Logs of handlers: the job of the code that runs, and the last lines of an attempt for idemq.attempts.

import { AsyncLocalStorage } from 'node:async_hooks';
import { format } from 'node:util';

/** Bytes of UTF-8 that are kept of an attempt's log. */
const maxLog = 16_384;
/** Bytes of the log as JSON, apart from quotes and backslashes. The limit of the server (idemq.max_document) is at least 64 kB. */
const maxJson = 2 * maxLog;
/** Characters of which JSON makes six. */
const control = /[\x01-\x08\x0b\x0c\x0e-\x1f]/g;
/** Characters of one call of job.log that are looked at. */
const maxLine = 2 ** 20;
const modes = ['off', 'failed', 'all'];

/** @type {AsyncLocalStorage<import('./job.js').Job>} */
const storage = new AsyncLocalStorage();

/** Calls a function for a job. @template T @param {import('./job.js').Job} job @param {() => T} call @returns {T} */
export const inJob = (job, call) => storage.run(job, call);

/** The job whose handler has called this, directly or through others; undefined outside of a handler. */
export function currentJob() {
  return storage.getStore();
}

/** @param {unknown} mode @param {string} what @returns {'off' | 'failed' | 'all' | undefined} */
export function optionalMode(mode, what) {
  if (mode === undefined) return undefined;
  if (!modes.includes(/** @type {any} */ (mode))) throw new RangeError(`${what} must be 'off', 'failed' or 'all', not ${typeof mode === 'string' ? `'${mode}'` : String(mode)}`);
  return /** @type {any} */ (mode);
}

/**
 * The application's function for texts of a handler. If it fails, nothing is left of the text.
 * @param {unknown} redact @param {import('../index.js').Logger} logger @returns {(text: string) => string}
 */
export function redactor(redact, logger) {
  if (redact === undefined) return (text) => text;
  if (typeof redact !== 'function') throw new TypeError(`redact must be a function, not ${redact === null || typeof redact !== 'object' ? String(redact) : 'an object'}`);
  return (text) => {
    let why;
    try {
      const answer = redact(text);
      if (typeof answer === 'string') return answer;
      why = `it returned ${answer === null ? 'null' : typeof answer}`;
      Promise.resolve(answer).catch(() => {}); // a promise that nobody awaits would end the process
    } catch (error) {
      why = error instanceof Error ? error.constructor.name : typeof error; // its text may contain what it should have removed
    }
    logger.error(`idemq: redact failed, so a text is not stored: ${why}`);
    return '(removed, because redact failed)';
  };
}

/** The last log lines of an attempt. */
export class Lines {
  /** @type {{ text: string, size: number }[]} */
  #records = [];
  #size = 0;
  #cut = false;

  /** @param {string} text */
  add(text) {
    if (text.length > maxLine) {
      // Half a line could contain half of a secret, which redact would not recognize.
      const tail = text.slice(-maxLine);
      text = tail.includes('\n') ? tail.slice(tail.indexOf('\n') + 1) : '(a line that was too long)';
      this.#cut = true;
    }
    const size = Buffer.byteLength(text) + 1;
    this.#records.push({ text, size });
    this.#size += size;
    while (this.#size - this.#records[0].size > maxLog) {
      this.#size -= /** @type {{ size: number }} */ (this.#records.shift()).size;
      this.#cut = true;
    }
  }

  /**
   * The members of details: log, and log_cut if the log had more lines; undefined if there is no log.
   * @param {(text: string) => string} redact @param {boolean} [utf8] whether the server can store every character
   */
  details(redact, utf8 = true) {
    if (this.#records.length === 0) return undefined;
    let text = redact(this.#records.map((each) => each.text).join('\n')).replaceAll('\0', '');
    if (!utf8) text = inAscii(text);
    const all = Buffer.from(text); // half of a surrogate pair becomes U+FFFD
    const kept = lastLines(all);
    let log = kept.toString();
    if (kept.length + 5 * (log.match(control) ?? []).length > maxJson) log = log.replace(control, '?');
    return { log, ...(this.#cut || kept.length < all.length ? { log_cut: true } : {}) };
  }
}

/** A text with \u and a number instead of other characters. @param {string} text */
const inAscii = (text) => text.replace(/[^\0-~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);

/** The last bytes, from the beginning of a line. Of a single line that is too long, the end. @param {Buffer} data */
function lastLines(data) {
  if (data.length <= maxLog) return data;
  const start = data.indexOf('\n', data.length - maxLog - 1) + 1;
  if (start > 0 && start < data.length) return data.subarray(start);
  let at = data.length - maxLog;
  while (at < data.length && (data[at] & 0xc0) === 0x80) at++;
  return data.subarray(at);
}

/**
 * The log of a job: the worker's logger, with the job in front of each line, which is also captured.
 * @param {import('./job.js').Job} job @param {import('../index.js').Logger} to @param {() => Lines | undefined} lines
 * @returns {import('../index.js').JobLog}
 */
export function jobLog(job, to, lines) {
  const write = (/** @type {'info' | 'warn' | 'error'} */ level) => (/** @type {unknown[]} */ ...values) => {
    const text = format(...values);
    lines()?.add(`${new Date().toISOString()} ${level.toUpperCase()} ${text}`);
    to[level](`${job.queue} ${job.id} attempt ${job.attempt}: ${text}`);
  };
  return { info: write('info'), warn: write('warn'), error: write('error') };
}

/**
 * The statement that stores the logs of jobs that the statement before it completes, or none. It must not fail, because the jobs would not be completed.
 * @param {import('./job.js').Attempt[]} attempts @param {import('./consumer.js').Consumer} worker @param {boolean} utf8 whether the server can store every character
 */
export function recordsOf(attempts, worker, utf8) {
  if (worker.captureLogs !== 'all') return [];
  const logs = attempts.flatMap((attempt) => {
    const details = attempt.lines?.details(worker.redact, utf8);
    // In ASCII, because the handler may have changed the encoding of its connection.
    return details ? [{ job: attempt.job, details: inAscii(JSON.stringify(details)) }] : [];
  });
  if (logs.length === 0) return [];
  return [{
    name: 'idemq_record',
    text: 'SELECT FROM idemq.record_details($1::bigint[], $2::bigint[], $3::jsonb[])',
    values: [logs.map(({ job }) => job.id), logs.map(({ job }) => job.token), logs.map(({ details }) => details)],
  }];
}
