// Hooks: what an application adds around each attempt, at each failure, and at start and end of a worker.

import { textOf } from './errors.js';
import { finishedResult } from './handlers.js';
import { HOOKS, checkOptions } from './options.js';

/** Milliseconds that hooks may take to end when their worker has. */
const hooksTimeout = 5000;
/** The same of a process that was told to end, and has no time left. */
const hooksLastWords = 400;

/** Waits, for so long at most. @param {number} ms @param {Promise<unknown>} what */
async function within(ms, what) {
  /** @type {NodeJS.Timeout | undefined} */
  let timer;
  const late = new Promise((resolve) => (timer = setTimeout(resolve, Math.min(ms, 2 ** 31 - 1))));
  await Promise.race([what, late]);
  clearTimeout(timer);
}

/** @typedef {import('../index.js').Hooks} Given */

export class Hooks {
  /** @type {Set<Promise<void>>} */
  #running = new Set();

  /** @param {Given | undefined} given @param {import('../index.js').Logger} logger */
  constructor(given = {}, logger) {
    checkOptions(given, HOOKS, 'hooks');
    for (const [name, hook] of Object.entries(given)) {
      if (hook !== undefined && typeof hook !== 'function') throw new TypeError(`hooks.${name} must be a function, not ${hook === null || typeof hook !== 'object' ? String(hook) : 'an object'}`);
    }
    this.given = given;
    this.logger = logger;
  }

  /**
   * A handler with the hook around it.
   * @param {(job: any, ...more: any[]) => unknown} handler @returns {(job: any, ...more: any[]) => unknown}
   */
  around(handler) {
    const { around } = this.given;
    if (!around) return handler;
    return async (job, ...more) => {
      let running = false;
      /** @type {Promise<any> | undefined} */
      let called;
      const call = async () => {
        running = true;
        try {
          return finishedResult(await handler(job, ...more));
        } finally {
          running = false;
        }
      };
      const answer = await around(job, () => (called ??= call()));
      if (!running) return answer;
      // It would be committed although it may fail yet.
      called?.catch(() => {});
      throw new Error('hooks.around did not await next(): return it, or await it');
    };
  }

  /** @param {import('./job.js').Job} job @param {import('../index.js').Failure} failure */
  failed(job, failure) {
    const { failed } = this.given;
    if (!failed) return;
    const running = this.#call('failed', async () => failed(job, failure)).finally(() => this.#running.delete(running));
    this.#running.add(running);
  }

  /** @param {any} worker */
  async started(worker) {
    await this.given.started?.(worker);
  }

  /**
   * @param {any} worker @param {import('../index.js').Outcomes} outcomes
   * @param {number} [end] when the process is to end that was told to, by Date.now(): hooks that go on regardless are left
   */
  async stopped(worker, outcomes, end) {
    const { stopped } = this.given;
    const ms = end === undefined ? hooksTimeout : Math.min(Math.max(end - Date.now(), hooksLastWords), hooksTimeout);
    await within(ms, Promise.all(this.#running));
    if (!stopped) return;
    const called = this.#call('stopped', async () => stopped(worker, outcomes));
    await (end === undefined ? called : within(Math.max(end - Date.now(), hooksLastWords), called));
  }

  /** What a hook throws is said, and changes nothing. @param {string} name @param {() => Promise<unknown>} call */
  async #call(name, call) {
    try {
      await call();
    } catch (error) {
      this.logger.error(`idemq: hooks.${name}: ${textOf(error)}`);
    }
  }
}
