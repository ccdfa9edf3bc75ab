// Jobs that a worker has claimed ahead: they wait in the worker, in the order of their claims, until a slot is free.
//
// A job that was claimed a moment ago begins at once.  A job that waits longer is marked in the server, so that it returns without counting
// an attempt if the worker is killed.  It begins only after the server has removed the mark and confirmed that it still may begin, which it may
// not if its lease has ended, if it is cancelled, or if its queue is paused or held back.  So the server never has a mark on a job that has begun.
//
// Jobs that have waited for aheadWait are given back.  The worker then claims none ahead until a handler has ended, and at most half as many.
// The number doubles again whenever the last waiting job has begun early.

import { textOf } from './errors.js';
import { BEGIN_AHEAD, MARK_AHEAD } from './statements.js';

/** Milliseconds since the answer of its claim in which a job may begin without being confirmed. */
const freshFor = 20;

/** @typedef {import('./job.js').Attempt} Attempt */
/** @typedef {{ attempts: Attempt[], then: (fit: Attempt[]) => void }} Asking attempts that are about to begin */

export class Ahead {
  /** @type {Attempt[]} */
  #waiting = [];
  /** Attempts that wait to be confirmed. @type {Asking[]} */
  #asking = [];
  #confirming = false;
  /** The mark that is under way. */
  #marking = Promise.resolve();
  /** Calls that are under way although no slot waits for them. */
  #pending = 0;
  /** Number of jobs that may wait now. */
  #most;
  /** Whether jobs have waited for too long, and no handler has ended since. */
  #stalled = false;
  /** Why the queue's jobs are not claimed ahead. @type {string | undefined} */
  #refused;
  /** Whether the last claim has found fewer jobs than it asked for. */
  dry = false;
  /** @type {NodeJS.Timeout | undefined} */
  #timer;

  /** @param {import('./consumer.js').Consumer} worker @param {number} ahead @param {number} wait milliseconds */
  constructor(worker, ahead, wait) {
    this.worker = worker;
    this.ahead = this.#most = ahead;
    this.wait = wait;
    worker.stopping.addEventListener('abort', () => this.giveBackAll('the worker is stopping'));
  }

  /** Number of jobs that wait. */
  get size() {
    return this.#waiting.length;
  }

  /** Number of jobs and calls that must end before the worker does. */
  get pending() {
    return this.#waiting.length + this.#pending;
  }

  /** Number of jobs that may wait now. */
  get most() {
    return this.#refused !== undefined || this.#stalled || this.worker.stopping.aborted ? 0 : this.#most;
  }

  /** Whether few jobs wait, and there may be more in the queue. */
  get low() {
    return !this.dry && this.most > 0 && 2 * this.size < this.most;
  }

  /** Stops claiming jobs ahead, because of a setting of the queue or a job. @param {string} why */
  refuse(why) {
    if (this.#refused === undefined) this.worker.logger.info(`idemq: ${this.worker.queue}: jobs are claimed without ahead, because of ${why}`);
    this.#refused = why;
  }

  /** Takes the settings of the queue. @param {string | null} why */
  configure(why) {
    if (why !== null) this.refuse(why);
    else if (this.#refused !== 'groups' && this.#refused !== 'jobs with one attempt') this.#refused = undefined;
  }

  /** Takes claimed jobs. @param {Attempt[]} attempts */
  accept(attempts) {
    if (attempts.length === 0) return;
    const now = Date.now();
    for (const attempt of attempts) {
      attempt.claimedAt = now;
      if (attempt.job.groupKey !== null) this.refuse('groups');
      else if (attempt.job.maxAttempts === 1) this.refuse('jobs with one attempt');
    }
    this.#waiting.push(...attempts);
    if (this.worker.stopping.aborted) return this.giveBackAll('the worker is stopping');
    this.worker.fill();
    // By then, slots that have waited for this claim have taken theirs.
    if (this.#refused !== undefined) setImmediate(() => this.giveBackAll(`the queue is served without ahead, because of ${this.#refused}`));
    this.#tickIn(freshFor);
  }

  /** The next jobs that may begin: the ones claimed first. @param {number} count @returns {Promise<Attempt[]>} none if no job waits */
  async take(count) {
    while (this.#waiting.length > 0) {
      const taken = this.#waiting.splice(0, count);
      const now = Date.now();
      const fresh = taken.every((attempt) => !attempt.marked && !attempt.why && now - attempt.claimedAt < freshFor && now < attempt.leaseEnds && !this.#isLost(attempt));
      this.#pending++;
      const fit = fresh ? taken : await this.#confirmed(taken);
      this.#pending--;
      if (this.#waiting.length === 0 && now - taken[0].claimedAt < this.wait / 2) this.#most = Math.min(this.ahead, 2 * this.#most + 1);
      if (fit.length > 0) return fit;
    }
    return [];
  }

  /** Called when an attempt of the queue has ended. @param {Attempt} attempt */
  ended(attempt) {
    if (attempt.began === undefined) return;
    this.#stalled = false;
    if (this.#most === 0 && Date.now() - attempt.began < this.wait / 2) this.#most = 1;
  }

  /** Awaits a call for which no slot waits. @param {Promise<unknown>} call */
  track(call) {
    this.#pending++;
    void call.catch((error) => this.worker.logger.error(`idemq: ${this.worker.queue}: ${textOf(error)}`)).finally(() => {
      this.#pending--;
      this.worker.settled();
    });
  }

  /** @param {string} why */
  giveBackAll(why) {
    this.#giveBack(this.#waiting.splice(0), why);
  }

  /** @param {Attempt[]} attempts @param {string} why */
  #giveBack(attempts, why) {
    if (attempts.length > 0) this.track(this.worker.giveBack(attempts, why));
  }

  /** Whether the session that claimed it has ended, and with it perhaps the lease. @param {Attempt} attempt */
  #isLost(attempt) {
    return !!attempt.claimSession?.gone;
  }

  /** Those of the attempts that may begin. The others are given back. @param {Attempt[]} attempts @returns {Promise<Attempt[]>} */
  #confirmed(attempts) {
    return new Promise((then) => {
      this.#asking.push({ attempts, then });
      if (!this.#confirming) void this.#confirmAll();
    });
  }

  async #confirmAll() {
    this.#confirming = true;
    // A mark that is under way must not be set after the answer.
    for (await this.#marking; this.#asking.length > 0; ) {
      const asking = this.#asking.splice(0);
      const fit = new Set(await this.#confirm(asking.flatMap(({ attempts }) => attempts)));
      for (const { attempts, then } of asking) then(attempts.filter((attempt) => fit.has(attempt)));
    }
    this.#confirming = false;
  }

  /** @param {Attempt[]} attempts @returns {Promise<Attempt[]>} */
  async #confirm(attempts) {
    const asked = Date.now();
    const sound = attempts.filter((attempt) => !attempt.why && !this.#isLost(attempt));
    /** @type {Map<string, string>} */
    let outcomes = new Map();
    try {
      if (sound.length > 0) outcomes = await this.#tell(BEGIN_AHEAD, sound);
    } catch (error) {
      this.worker.logger.warn(`idemq: ${this.worker.queue}: ${sound.length} waiting jobs could not be begun: ${textOf(error)}`);
    }
    const fit = sound.filter((attempt) => outcomes.get(attempt.job.token) === 'current' && !attempt.why);
    for (const attempt of fit) {
      attempt.leaseEnds = asked + attempt.lease;
      attempt.marked = false;
    }
    this.#giveBack(attempts.filter((attempt) => !fit.includes(attempt)), 'it must not begin now, because it was lost or cancelled, or its queue is paused or held back');
    return fit;
  }

  /** Tells the server about waiting jobs. Returns outcomes by token. @param {string} text @param {Attempt[]} attempts */
  async #tell(text, attempts) {
    const rows = await this.worker.control.rows(text, [attempts.map(({ job }) => job.id), attempts.map(({ job }) => job.token)]);
    return new Map(rows.map((row) => [row.token, row.outcome]));
  }

  /** @param {number} ms */
  #tickIn(ms) {
    if (this.#timer === undefined && this.#waiting.length > 0) this.#timer = setTimeout(() => this.#tick(), ms);
  }

  /** Marks jobs that have begun to wait, and gives back those that have waited for too long. */
  #tick() {
    this.#timer = undefined;
    const now = Date.now();
    const unfit = this.#waiting.filter((attempt) => attempt.why || this.#isLost(attempt));
    const old = this.#waiting.filter((attempt) => now - attempt.claimedAt >= this.wait && !unfit.includes(attempt));
    this.#waiting = this.#waiting.filter((attempt) => !unfit.includes(attempt) && !old.includes(attempt));
    this.#giveBack(unfit, 'it was lost or cancelled');
    if (old.length > 0) {
      this.#stalled = true;
      this.#most = Math.floor(this.#most / 2);
      this.#giveBack(old, `no place was free within ${this.wait / 1000} s`);
    }
    const unmarked = this.#waiting.filter((attempt) => !attempt.marked && now - attempt.claimedAt >= freshFor);
    if (unmarked.length > 0) {
      for (const attempt of unmarked) attempt.marked = true;
      this.#marking = this.#mark(unmarked);
      this.track(this.#marking);
    }
    const oldest = Math.min(...this.#waiting.map(({ claimedAt }) => claimedAt));
    const next = this.#waiting.some(({ marked }) => !marked) ? freshFor : Math.min(Math.max(oldest + this.wait - now, 1), 10 * freshFor);
    this.#tickIn(next);
  }

  /** A mark that could not be set is missing only if the worker is killed. @param {Attempt[]} attempts */
  async #mark(attempts) {
    const before = this.#marking;
    try {
      const outcomes = await this.#tell(MARK_AHEAD, attempts);
      for (const attempt of attempts) if (outcomes.get(attempt.job.token) !== 'current') attempt.cancel('lease');
    } catch (error) {
      this.worker.logger.warn(`idemq: ${this.worker.queue}: ${attempts.length} waiting jobs could not be marked: ${textOf(error)}`);
    }
    await before;
  }
}
