// Reports a worker to the server (idemq.report_worker), for people; no promise depends on it.  A report that fails is
// left out.  It goes by the link of the heartbeats, so it waits for no lock, disk or standby.

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { sleep, withTimeout } from './connection.js';
import { sqlstate } from './errors.js';
import { REPORT_WORKER } from './statements.js';

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
/** Milliseconds between two reports, and after the server has refused one: its SQL may be an older version's. */
const reportInterval = 30_000;
const reportAfterRefusal = 600_000;
/** A worker that ends sooner reports nothing. */
const firstReportAfter = 1000;

export class WorkerReport {
  #link;
  #values;
  #reported = false;

  /**
   * @param {import('./connection.js').Link} link
   * @param {() => { name: string, queue: string, concurrency: number, jobs: string[], done: number }} state
   */
  constructor(link, state) {
    const id = randomUUID();
    this.#link = link;
    this.#values = () => {
      const { name, queue, concurrency, jobs, done } = state();
      return [id, name, [queue], 'node', version, hostname(), concurrency, jobs, done];
    };
  }

  /** Until the end. @param {AbortSignal} until */
  async reportRegularly(until) {
    for (let pause = firstReportAfter; ; pause = await this.#report(false)) {
      await sleep(pause, until);
      if (until.aborted) return;
    }
  }

  /** @param {boolean} stopping @param {number[]} [endWaits] processes of sessions whose waits are to end @returns {Promise<number>} when to say it again */
  async #report(stopping, endWaits = []) {
    if (!this.#link.session) return firstReportAfter;
    try {
      await this.#link.withSession((session) => withTimeout(this.#link.answerTimeout, session, session.query(REPORT_WORKER, [...this.#values(), stopping, endWaits])));
      this.#reported = true;
    } catch (error) {
      // What has happened to the connection is said by those who need it.
      if (sqlstate(error)) return reportAfterRefusal;
    }
    return reportInterval;
  }

  /**
   * Ends the wait in which a session of the worker sleeps, or the next one. A cancel would do so, too, as an error in the server's log.
   * @param {number} process @param {boolean} stopping
   */
  async endWait(process, stopping) {
    await this.#report(stopping, [process]);
  }

  /** The last report of a worker that has reported before, if the server answers at once. @param {AbortSignal} until */
  async reportStopping(until) {
    if (this.#reported) await Promise.race([this.#report(true), sleep(500, until)]);
  }
}
