// Worker.runOutside: a handler's effects are outside of the database.

import { Commits } from './commits.js';
import { Line } from './connection.js';
import { json } from './enqueue.js';
import { textOf } from './errors.js';
import { settle } from './settle.js';

const mostLines = 4;

/** @typedef {import('./job.js').Attempt} Attempt */

export class Outside {
  #turn = 0;

  /** @param {import('./worker.js').Context} worker @param {import('../index.js').OutsideHandler} handler */
  constructor(worker, handler) {
    this.worker = worker;
    this.handler = handler;
    /** For commits: one, or two when there are many. */
    this.commitLines = [new Line(worker.server), new Line(worker.server)];
    this.commits = new Commits(worker, async ({ attempt }, error) => this.#without(attempt, error), [...this.commitLines]);
    /** For checkpoints, steps and failures, which may wait for a lock: no heartbeat stands behind them. */
    this.lines = Array.from({ length: Math.min(worker.concurrency, mostLines) }, () => new Line(worker.server));
  }

  /** The line for outside effects. @returns {Line} */
  line() {
    return this.lines[this.#turn++ % this.lines.length];
  }

  /** A lane for attempts that follow each other: none is needed. */
  enter() {}

  leave() {}

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
    return this.worker.lent(this.commits.commit([{ attempt, result: this.#json(attempt, result) }], 1));
  }

  /** What was done is not undone by a result that is no JSON. @param {Attempt} attempt @param {unknown} result */
  #json(attempt, result) {
    if (result === undefined) return null;
    try {
      return json(result, 'the result');
    } catch (error) {
      return this.#without(attempt, error);
    }
  }

  /** @param {Attempt} attempt @param {unknown} error @returns {null} */
  #without(attempt, error) {
    this.worker.logger.warn(`idemq: ${attempt.name}: no result: committed without: ${textOf(error)}`);
    return null;
  }

  async end() {
    await Promise.all([...this.commitLines, ...this.lines].map((line) => line.end()));
  }
}
