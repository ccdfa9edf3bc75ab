// Reports a worker to the server (idemq.report_worker), for monitoring only.  A report that fails is
// skipped.  It uses the link of the heartbeats, so it does not wait for a lock, the disk or a standby.

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { sleep, withTimeout } from './connection.js';
import { sqlstate } from './errors.js';
import { REPORT_WORKER } from './statements.js';

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
/** Milliseconds between two reports, and after the server has refused one because its SQL objects are of an older version. */
const reportInterval = 30_000;
const reportAfterRefusal = 600_000;
/** Milliseconds before the first report. A worker that ends sooner reports nothing. */
const firstReportAfter = 1000;

export class WorkerReport {
  #link;
  #values;
  #reported = false;

  /**
   * @param {import('./connection.js').Link} link
   * @param {() => { name: string, queues: string[], concurrency: number, jobs: string[], done: number }} state
   */
  constructor(link, state) {
    const id = randomUUID();
    this.#link = link;
    this.#values = () => {
      const { name, queues, concurrency, jobs, done } = state();
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
    try {
      await this.#link.withSession((session) => withTimeout(this.#link.answerTimeout, session, session.query(REPORT_WORKER, [...this.#values(), stopping, endWaits])));
      this.#reported = true;
    } catch (error) {
      // The code that needs the connection logs the error.
      if (sqlstate(error)) return reportAfterRefusal;
    }
    return reportInterval;
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
