// Reports a worker to the server (idemq.report_worker), for monitoring only.  A report that fails is
// skipped.  It uses the link of the heartbeats, so it does not wait for a lock, the disk or a standby.

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { sleep, withTimeout } from './connection.js';
import { sqlstate } from './errors.js';
import { REPORT_WORKER } from './statements.js';

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
/** Milliseconds between two reports, and until the worker reports again what the server has refused: a queue, or everything if its SQL objects are of an older version. */
const reportInterval = 30_000;
const reportAfterRefusal = 600_000;
/** SQLSTATEs of a report that names a queue that does not exist or from which the role may not claim. */
const queueRefused = ['IQ005', '42501'];
/** Milliseconds before the first report. A worker that ends sooner reports nothing. */
const firstReportAfter = 1000;

export class WorkerReport {
  #link;
  #state;
  #values;
  #reported = false;
  /** The queues that are reported until #allAgainAt, from Date.now(). @type {string[]} */
  #accepted = [];
  #allAgainAt = 0;

  /**
   * @param {import('./connection.js').Link} link
   * @param {() => { name: string, queues: string[], concurrency: number, jobs: string[], done: number }} state
   */
  constructor(link, state) {
    const id = randomUUID();
    this.#link = link;
    this.#state = state;
    this.#values = (/** @type {string[]} */ queues) => {
      const { name, concurrency, jobs, done } = state();
      return [id, name, queues, 'node', version, hostname(), concurrency, jobs, done];
    };
  }

  /** Reports regularly until the worker ends. @param {AbortSignal} until */
  async reportRegularly(until) {
    for (let pause = firstReportAfter; ; pause = await this.#report(false)) {
      await sleep(pause, until);
      if (until.aborted) return;
    }
  }

  /** @param {boolean} stopping @param {number[]} [endWaits] processes of sessions whose waits must end @returns {Promise<number>} milliseconds until the next report */
  async #report(stopping, endWaits = []) {
    if (!this.#link.session) return firstReportAfter;
    if (Date.now() >= this.#allAgainAt) {
      this.#accepted = this.#state().queues;
      this.#allAgainAt = Infinity;
    }
    try {
      await this.#send(this.#accepted, stopping, endWaits).catch((error) => {
        if (!queueRefused.includes(sqlstate(error)) || this.#accepted.length < 2) throw error;
        return this.#sendWithoutRefused(stopping);
      });
    } catch (error) {
      // The code that needs the connection logs the error.
      if (!sqlstate(error)) return reportInterval;
      this.#allAgainAt = 0;
      return reportAfterRefusal;
    }
    return reportInterval;
  }

  /** @param {string[]} queues @param {boolean} stopping @param {number[]} [endWaits] */
  async #send(queues, stopping, endWaits = []) {
    await this.#link.withSession((session) => withTimeout(this.#link.answerTimeout, session, session.query(REPORT_WORKER, [...this.#values(queues), stopping, endWaits])));
    this.#reported = true;
  }

  /** Reports each queue by itself, to find those that the server refuses, and then the others together. @param {boolean} stopping */
  async #sendWithoutRefused(stopping) {
    /** @type {string[]} */
    const accepted = [];
    /** @type {unknown} */
    let refusal;
    for (const queue of this.#accepted) {
      try {
        await this.#send([queue], stopping);
        accepted.push(queue);
      } catch (error) {
        if (!queueRefused.includes(sqlstate(error))) throw error;
        refusal = error;
      }
    }
    if (accepted.length === 0) throw refusal;
    this.#accepted = accepted;
    this.#allAgainAt = Date.now() + reportAfterRefusal;
    await this.#send(accepted, stopping);
  }

  /**
   * Ends the current or next wait of a session of the worker. A cancel request would also end it, but would log an ERROR in the server.
   * @param {number} process @param {boolean} stopping
   */
  async endWait(process, stopping) {
    await this.#report(stopping, [process]);
  }

  /** Sends the last report if the worker has reported before and the server answers at once. @param {AbortSignal} until */
  async reportStopping(until) {
    if (this.#reported) await Promise.race([this.#report(true), sleep(500, until)]);
  }
}
