// Worker.runOutside: a handler's effects are outside of the database.
//
// What has ended is committed together with what else has, in one statement that also claims the next
// jobs.  Repeated after a lost answer, it says already_committed.

import { Line } from './connection.js';
import { json } from './enqueue.js';
import { sqlstate, textOf } from './errors.js';
import { settle } from './settle.js';
import { COMMIT, COMMIT_AND_CLAIM } from './statements.js';

const mostLines = 4;

/** @typedef {import('./job.js').Attempt} Attempt */
/** @typedef {{ attempt: Attempt, result: string | null, then: (next: Attempt[]) => void }} Ended */

export class Outside {
  /** @type {Ended[]} */
  #ended = [];
  #committing = false;
  #turn = 0;

  /** @param {import('./worker.js').Context} worker @param {import('../index.js').OutsideHandler} handler */
  constructor(worker, handler) {
    this.worker = worker;
    this.handler = handler;
    this.commits = new Line(worker.server);
    /** For checkpoints, steps and failures, which may wait for a lock: no heartbeat stands behind them. */
    this.lines = Array.from({ length: Math.min(worker.concurrency, mostLines) }, () => new Line(worker.server));
  }

  /** The line for outside effects. @returns {Line} */
  line() {
    return this.lines[this.#turn++ % this.lines.length];
  }

  /** @param {Attempt[]} attempts one @returns {Promise<Attempt[]>} what was claimed with its commit */
  async attempt([attempt]) {
    /** @type {unknown} */
    let result;
    try {
      result = await attempt.call(() => this.handler(attempt.job));
    } catch (error) {
      if (!attempt.waiting) {
        await this.worker.lent(settle(this.worker, this.line(), attempt, error));
        return [];
      }
    }
    if (Date.now() > attempt.leaseEnds) this.worker.heldUp(attempt);
    if (attempt.waiting) {
      // Given back by then: whatever the handler did is not heard.
      this.worker.ended(attempt, 'waiting', attempt.waiting.message);
      return [];
    }
    return this.worker.lent(
      new Promise((then) => {
        this.#ended.push({ attempt, result: this.#json(attempt, result), then });
        if (!this.#committing) void this.#commitAll();
      }),
    );
  }

  /** What was done is not undone by a result that is no JSON. @param {Attempt} attempt @param {unknown} result */
  #json(attempt, result) {
    if (result === undefined) return null;
    try {
      return json(result, 'the result');
    } catch (error) {
      this.worker.logger.warn(`idemq: ${attempt.name}: no result: committed without: ${textOf(error)}`);
      return null;
    }
  }

  async #commitAll() {
    this.#committing = true;
    while (this.#ended.length > 0) {
      // What ends in this turn of the loop goes along.
      await new Promise((resolve) => setImmediate(resolve));
      await this.#commit(this.#ended.splice(0));
    }
    this.#committing = false;
  }

  /** @param {Ended[]} ended */
  async #commit(ended) {
    const pairs = [ended.map(({ attempt }) => attempt.job.id), ended.map(({ attempt }) => attempt.job.token), ended.map(({ result }) => result)];
    /** @type {Attempt[]} */
    let next = [];
    ended.forEach(({ attempt }) => (attempt.sent = true));
    try {
      const asked = Date.now();
      const claim = this.worker.claims;
      const { rows, again } = await this.commits.answer(claim ? COMMIT_AND_CLAIM : COMMIT, [...pairs, ...(claim ? this.worker.claimArguments(null, ended.length) : [])]);
      const outcomes = new Map(rows.filter(({ outcome }) => outcome !== 'claimed').map((row) => [`${row.id} ${row.token}`, row.outcome]));
      next = this.worker.begun(rows.filter(({ outcome }) => outcome === 'claimed'), asked);
      for (const { attempt } of ended) {
        const outcome = outcomes.get(`${attempt.job.id} ${attempt.job.token}`);
        // Of a queue that keeps no finished jobs, a job that was committed is not there.
        const committed = outcome === 'already_committed' || (outcome === 'not_found' && again);
        this.worker.ended(attempt, committed ? 'committed' : outcome === 'committed' ? outcome : 'stale');
      }
    } catch (error) {
      const refused = /^(22|54)/.test(sqlstate(error));
      if (refused && ended.length > 1) {
        for (const one of ended) await this.#commit([one]);
        return;
      }
      if (refused && ended[0].result !== null) {
        this.worker.logger.warn(`idemq: ${ended[0].attempt.name}: no result: committed without: ${textOf(error)}`);
        await this.#commit([{ ...ended[0], result: null }]);
        return;
      }
      ended.forEach(({ attempt }) => this.worker.ended(attempt, 'lost', textOf(error)));
    }
    for (const { then } of ended) then(next.splice(0, 1));
  }

  async end() {
    await Promise.all([this.commits, ...this.lines].map((line) => line.end()));
  }
}
