// Hooks: what an application adds around each attempt, at each failure, and at start and end of a worker.

import { textOf } from './errors.js';
import { finishedResult } from './handlers.js';
import { HOOKS, checkOptions } from './options.js';

/** Milliseconds that hooks may take to end when their worker has. */
const hooksTimeout = 5000;

/** @typedef {import('../index.js').Hooks} Given */

export class Hooks {
  /** @type {Set<Promise<void>>} */
  #running = new Set();

  /** @param {Given | undefined} given @param {import('../index.js').Logger} logger */
  constructor(given = {}, logger) {
    checkOptions(given, HOOKS, 'hooks');
    for (const [name, hook] of Object.entries(given)) {
      if (hook !== undefined && typeof hook !== 'function') throw new TypeError(`hooks.${name} is a function, not ${hook}`);
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
      throw new Error('hooks.around has not awaited next(): return it, or await it');
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

  /** @param {any} worker @param {import('../index.js').Outcomes} outcomes */
  async stopped(worker, outcomes) {
    const { stopped } = this.given;
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    const late = new Promise((resolve) => (timer = setTimeout(resolve, hooksTimeout)));
    await Promise.race([Promise.all(this.#running), late]);
    clearTimeout(timer);
    if (stopped) await this.#call('stopped', async () => stopped(worker, outcomes));
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
