// Hooks: functions that an application has called around each attempt, after a failure, and at the start and end of a worker.

import { textOf } from './errors.js';
import { finishedResult } from './handlers.js';
import { HOOKS, checkOptions } from './options.js';

/** Milliseconds that hooks may take after their worker has ended. */
const hooksTimeout = 5000;
/** The same for a process that must end and has no time left. */
const hooksLastWords = 400;

/** Waits, at most ms milliseconds. @param {number} ms @param {Promise<unknown>} what */
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
   * The handler, wrapped in the hook.
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
      // Otherwise the job would be completed although the handler could still fail.
      called?.catch(() => {});
      throw new Error('hooks.around must return or await next()');
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
   * @param {number} [end] time at which a process that was told to stop must end, from Date.now(); hooks that are still running then are abandoned
   */
  async stopped(worker, outcomes, end) {
    const { stopped } = this.given;
    const ms = end === undefined ? hooksTimeout : Math.min(Math.max(end - Date.now(), hooksLastWords), hooksTimeout);
    await within(ms, Promise.all(this.#running));
    if (!stopped) return;
    const called = this.#call('stopped', async () => stopped(worker, outcomes));
    await (end === undefined ? called : within(Math.max(end - Date.now(), hooksLastWords), called));
  }

  /** Calls a hook, and logs what it throws. @param {string} name @param {() => Promise<unknown>} call */
  async #call(name, call) {
    try {
      await call();
    } catch (error) {
      this.logger.error(`idemq: hooks.${name}: ${textOf(error)}`);
    }
  }
}
