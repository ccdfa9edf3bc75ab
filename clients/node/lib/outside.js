// Outside and Worker.runOutside, for handlers with effects outside the database.

import { Link } from './connection.js';
import { encoded } from './codec.js';
import { json } from './enqueue.js';
import { textOf } from './errors.js';
import { GroupCommit } from './group-commit.js';
import { settle } from './settle.js';

const maxLinks = 4;

/** @typedef {import('./job.js').Attempt} Attempt */

/** The links of all queues of a worker. Each is opened when it is first needed. */
export class OutsideLinks {
  #turn = 0;

  /** @param {import('./connection.js').Server} server @param {number} concurrency of these queues together */
  constructor(server, concurrency) {
    /** For commits: one, or two if there are many. */
    this.commits = [new Link(server), new Link(server)];
    /** For checkpoints, steps and failures, which may wait for a lock. Heartbeats use another link, so they are not delayed. */
    this.others = Array.from({ length: Math.min(concurrency, maxLinks) }, () => new Link(server));
  }

  /** The link for the next attempt. @returns {Link} */
  next() {
    return this.others[this.#turn++ % this.others.length];
  }

  async end() {
    await Promise.all([...this.commits, ...this.others].map((link) => link.end()));
  }
}

export class OutsideAttempts {
  /** @param {import('./consumer.js').Consumer} worker @param {import('../index.js').OutsideHandler} handler @param {OutsideLinks} links */
  constructor(worker, handler, links) {
    this.worker = worker;
    this.handler = handler;
    this.links = links;
    this.groupCommit = new GroupCommit(worker, async ({ attempt }, error) => this.#without(attempt, error), [...links.commits]);
  }

  /** The link for outside effects. @returns {Link} */
  link() {
    return this.links.next();
  }

  /** A slot for consecutive attempts. None is needed here. */
  acquire() {}

  release() {}

  /** @param {Attempt[]} attempts one @returns {Promise<Attempt[]>} the jobs that were claimed with its commit */
  async attempt([attempt]) {
    /** @type {unknown} */
    let result;
    try {
      result = await attempt.call(() => attempt.handle(() => this.handler(attempt.job)));
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
    const text = attempt.codec ? await this.#encoded(attempt.codec, attempt, result) : this.#json(attempt, result);
    const ended = this.groupCommit.commit([{ attempt, result: text }], 1);
    const { ahead } = this.worker;
    if (!ahead || ahead.size === 0) return this.worker.lendWhile(ended);
    // The slot continues with a job that waits.
    ahead.track(ended);
    return [];
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

  /** Like #json, with a codec. @param {import('../index.js').Codec} codec @param {Attempt} attempt @param {unknown} result */
  async #encoded(codec, attempt, result) {
    if (result === undefined) return null;
    try {
      return await encoded(codec, result, 'the result');
    } catch (error) {
      return this.#without(attempt, error);
    }
  }

  /** @param {Attempt} attempt @param {unknown} error @returns {null} */
  #without(attempt, error) {
    this.worker.logger.warn(`idemq: ${attempt.name}: committed without a result, because of an error: ${this.worker.redact(textOf(error))}`);
    return null;
  }
}
