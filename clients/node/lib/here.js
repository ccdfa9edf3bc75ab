// Reports a worker to the server (idemq.report_worker), for people; no promise depends on it.  A report that fails is
// left out.  It goes by the line of the heartbeats, so it waits for no lock, disk or standby.

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { hostname } from 'node:os';
import { sleep, within } from './connection.js';
import { sqlstate } from './errors.js';
import { REPORT_WORKER } from './statements.js';

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
/** Milliseconds between two reports, and after the server has refused one: its SQL may be an older version's. */
const each = 30_000;
const afterRefusal = 600_000;
/** A worker that ends sooner reports nothing. */
const first = 1000;

export class Here {
  #line;
  #values;
  #said = false;

  /**
   * @param {import('./connection.js').Line} line
   * @param {() => { name: string, queue: string, concurrency: number, jobs: string[], done: number }} state
   */
  constructor(line, state) {
    const id = randomUUID();
    this.#line = line;
    this.#values = () => {
      const { name, queue, concurrency, jobs, done } = state();
      return [id, name, [queue], 'node', version, hostname(), concurrency, jobs, done];
    };
  }

  /** Until the end. @param {AbortSignal} until */
  async tell(until) {
    for (let pause = first; ; pause = await this.#say(false)) {
      await sleep(pause, until);
      if (until.aborted) return;
    }
  }

  /** @param {boolean} stopping @returns {Promise<number>} when to say it again */
  async #say(stopping) {
    if (!this.#line.session) return first;
    try {
      await this.#line.hold((session) => within(10_000, session, session.query(REPORT_WORKER, [...this.#values(), stopping])));
      this.#said = true;
    } catch (error) {
      // What has happened to the connection is said by those who need it.
      if (sqlstate(error)) return afterRefusal;
    }
    return each;
  }

  /** The last report of a worker that has reported before, if the server answers at once. @param {AbortSignal} until */
  async reportStopping(until) {
    if (this.#said) await Promise.race([this.#say(true), sleep(1000, until)]);
  }
}
