// Worker.runOutside, for handlers with effects outside the database.

import { Link } from './connection.js';
import { json } from './enqueue.js';
import { textOf } from './errors.js';
import { GroupCommit } from './group-commit.js';
import { settle } from './settle.js';

const maxLinks = 4;

/** @typedef {import('./job.js').Attempt} Attempt */

export class Outside {
  #turn = 0;

  /** @param {import('./worker.js').Context} worker @param {import('../index.js').OutsideHandler} handler */
  constructor(worker, handler) {
    this.worker = worker;
    this.handler = handler;
    /** Links for commits: one, or two if there are many. */
    this.commitLinks = [new Link(worker.server), new Link(worker.server)];
    this.groupCommit = new GroupCommit(worker, async ({ attempt }, error) => this.#without(attempt, error), [...this.commitLinks]);
    /** Links for checkpoints, steps and failures, which may wait for a lock. Heartbeats use another link, so they are not delayed. */
    this.links = Array.from({ length: Math.min(worker.concurrency, maxLinks) }, () => new Link(worker.server));
  }

  /** The link for outside effects. @returns {Link} */
  link() {
    return this.links[this.#turn++ % this.links.length];
  }

  /** A slot for consecutive attempts. None is needed here. */
  acquire() {}

  release() {}

  /** @param {Attempt[]} attempts one @returns {Promise<Attempt[]>} the jobs that were claimed with its commit */
  async attempt([attempt]) {
    /** @type {unknown} */
    let result;
    try {
      result = await attempt.call(() => this.handler(attempt.job));
    } catch (error) {
      if (!attempt.waiting) {
        await this.worker.lendWhile(settle(this.worker, this.link(), attempt, error));
        return [];
      }
    }
    if (Date.now() > attempt.leaseEnds) this.worker.pauseClaims(attempt);
    if (attempt.waiting) {
      // The job has been released, so the handler's result is ignored.
      this.worker.ended(attempt, 'waiting', attempt.waiting.message);
      return [];
    }
    return this.worker.lendWhile(this.groupCommit.commit([{ attempt, result: this.#json(attempt, result) }], 1));
  }

  /** The result as JSON, or null if it cannot be encoded, because the effect has already happened. @param {Attempt} attempt @param {unknown} result */
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
    this.worker.logger.warn(`idemq: ${attempt.name}: committed without a result, because of an error: ${textOf(error)}`);
    return null;
  }

  async end() {
    await Promise.all([...this.commitLinks, ...this.links].map((link) => link.end()));
  }
}
