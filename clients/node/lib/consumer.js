// One queue of a worker: its slots, its settings, and the attempts that it has claimed.  worker.js claims for it; transactions.js (Inside)
// and outside.js (Outside) run the attempts.

import { Ahead } from './ahead.js';
import { Breaker } from './breaker.js';
import { textOf } from './errors.js';
import { Outside, singleHandler } from './handlers.js';
import { Attempt } from './job.js';
import { Lines } from './logs.js';
import { OutsideAttempts } from './outside.js';
import { validated } from './schema.js';
import { RELEASE_MANY } from './statements.js';
import { settling } from './trace.js';
import { Transactions } from './transactions.js';

/** @typedef {import('./connection.js').Session} Session */

/** What the queues of a worker share.
 * @typedef {{
 *   name: string, logger: import('../index.js').Logger, jobLogger: import('../index.js').Logger, captureLogs: 'off' | 'failed' | 'all', redact: (text: string) => string, hooks: import('./hooks.js').Hooks, server: import('./connection.js').Server,
 *   control: import('./connection.js').Link, stopping: AbortSignal, once: boolean, pooled: boolean,
 *   slots: import('./transactions.js').TransactionSlots, links: import('./outside.js').OutsideLinks,
 *   shardSlots: import('./handler-slots.js').ShardSlots | undefined, running: Set<Attempt>, counts: Record<string, number>,
 *   freed: (consumer: Consumer) => void, abandoned: (attempt: Attempt) => void, failed: (error: unknown) => void,
 * }} Shared pooled: whether there is a pooler, according to the options; freed: called when a slot is free again */

/**
 * The handler, with a check of its payload. A payload that does not fit fails the attempt like any error, because a newer worker may know it.
 * @param {(job: import('./job.js').Job, ...more: any[]) => unknown} handler @param {import('../index.js').Schemas | undefined} schema
 * @returns {(job: import('./job.js').Job, ...more: any[]) => unknown}
 */
function checked(handler, schema) {
  if (schema === undefined) return handler;
  return async (job, ...more) => {
    job.payload = await validated(schema, job.kind, job.payload);
    return handler(job, ...more);
  };
}

export class Consumer {
  /** Number of slots in use. */
  busy = 0;
  /** Whether the last claim found nothing, and nothing has happened since. */
  empty = false;
  /** Whether a claim has been answered. */
  known = false;
  /** Nothing is claimed before this time, from Date.now(). */
  pausedUntil = 0;
  /** Milliseconds. */
  lease = 30_000;
  #timeout;
  #timeoutOfQueue = false;
  #attached;
  /** @type {Transactions | OutsideAttempts} */
  #mode;
  /** Attempts that have not ended. @type {Set<Attempt>} */
  #held = new Set();
  /** Number of jobs that claims under way ask for, and of attempts that the same statements end. */
  #asked = 0;
  #ending = 0;
  /** The jobs that are claimed ahead, if the worker does that. @type {Ahead | undefined} */
  ahead;
  #shared;
  /** Attempts of this turn of the event loop whose handlers succeeded, but after their leases. @type {Attempt[]} */
  #late = [];
  /** How many times in a row this happened. */
  #blockedInARow = 0;
  #breaker = new Breaker();
  /** The attempt that may begin while the breaker is open. @type {Attempt | undefined} */
  #probe;

  /** @param {string} queue @param {import('./handlers.js').Inside | Outside} way @param {Shared} shared */
  constructor(queue, way, shared) {
    this.queue = queue;
    this.way = way;
    this.logger = shared.logger;
    this.captureLogs = way.captureLogs ?? shared.captureLogs;
    this.redact = shared.redact;
    this.server = shared.server;
    this.control = shared.control;
    this.stopping = shared.stopping;
    this.#shared = shared;
    this.#timeout = way.timeout * 1000;
    const outside = (this.outside = way instanceof Outside);
    this.#attached = way.attach ?? (!outside && !shared.pooled);
    const handler = shared.hooks.around(checked(singleHandler(way.handler, way.unknownKind, shared.logger), way.schema));
    if (way.ahead > 0 && !shared.once && !shared.shardSlots) this.ahead = new Ahead(this, way.ahead, 1000 * way.aheadWait);
    this.#mode = outside ? new OutsideAttempts(this, handler, shared.links) : new Transactions(this, handler, shared.slots);
  }

  /** Number of jobs that run at once. */
  get concurrency() {
    return this.#breaker.open ? 1 : this.way.concurrency;
  }

  get batch() {
    return this.#breaker.open ? 1 : this.way.batch;
  }

  get free() {
    return Math.max(this.concurrency - this.busy, 0);
  }

  /** Whether nothing may be claimed for a while. */
  get paused() {
    return Date.now() < this.pausedUntil;
  }

  /** Whether a commit also claims the next job. */
  get mayClaim() {
    const { stopping, shardSlots } = this.#shared;
    return !stopping.aborted && !shardSlots?.shouldYield && !this.paused && !this.#breaker.open;
  }

  /**
   * Calls a claim with the number of jobs that it may ask for. Claims and ends of attempts that are under way are taken into account.
   * @template T @param {number} ending number of attempts that the same statement ends @param {(most: number) => Promise<T>} claim
   */
  async claiming(ending, claim) {
    this.#ending += ending;
    const most = Math.max(this.concurrency * this.batch + (this.ahead?.most ?? 0) - (this.#held.size - this.#ending) - this.#asked, 0);
    this.#asked += most;
    try {
      return await claim(most);
    } finally {
      this.#ending -= ending;
      this.#asked -= most;
    }
  }

  /** Whether it claims although no slot is free. The commits of runOutside also claim ahead. */
  get refills() {
    return !this.outside && !!this.ahead?.low && this.mayClaim;
  }

  /** Awaits work that only waits for the server. @template T @param {Promise<T>} work @returns {Promise<T>} */
  lendWhile(work) {
    return this.#shared.shardSlots?.lendWhile(work) ?? work;
  }

  /** The session, if leases are attached to it. A lease cannot be attached to a pooler's session. @param {Session} session */
  #attachedTo(session) {
    return this.#attached && session.direct ? session : undefined;
  }

  /** @param {Session} session */
  claimArguments(session, jobs = this.batch) {
    return [this.queue, jobs, this.way.lease, this.#shared.name, this.#attachedTo(session) !== undefined];
  }

  /** The attempts of claimed jobs. @param {any[]} rows @param {number} asked when they were claimed @param {Session} session @returns {Attempt[]} */
  begun(rows, asked, session) {
    return rows.map((row) => {
      const attempt = new Attempt(row, this.queue, {
        asked, lease: this.lease, timeout: this.#timeout, ofQueue: this.#timeoutOfQueue,
        ofKind: 1000 * (this.way.kind(row.kind)?.timeout ?? Infinity), link: this.#mode.link(),
        codec: this.way.codec, strict: this.outside, warn: (text) => this.logger.warn(text),
        logger: this.#shared.jobLogger, lines: this.captureLogs === 'off' ? undefined : new Lines(), redact: this.redact, workerName: this.#shared.name,
      });
      attempt.leaseSession = this.#attachedTo(session);
      attempt.leaseSession?.attempts.add(attempt);
      attempt.claimSession = session;
      this.#held.add(attempt);
      this.#shared.running.add(attempt);
      return attempt;
    });
  }

  /** Takes the queue's settings. @param {{ lease: string, timeout: string | null, not_ahead: string | null }} row */
  configure({ lease, timeout, not_ahead: notAhead }) {
    this.ahead?.configure(notAhead);
    this.lease = Number(lease);
    this.#timeoutOfQueue = timeout !== null;
    this.#timeout = timeout === null ? this.way.timeout * 1000 : Number(timeout);
  }

  /** Starts slots for claimed jobs that wait. */
  fill() {
    if (this.ahead) for (let n = Math.min(this.free, Math.ceil(this.ahead.size / this.batch)); n > 0; n--) this.start([]);
  }

  /** Called when a call for which no slot waits has ended. */
  settled() {
    if (this.#shared.stopping.aborted) this.#shared.freed(this);
  }

  /** Runs attempts in a slot, and then those that were claimed with their commits or wait. @param {Attempt[]} attempts */
  start(attempts) {
    let next = attempts;
    const mode = /** @type {Transactions} */ (this.#mode);
    const run = async () => {
      const slot = mode.acquire();
      try {
        while ((next = await this.#next(next)).length > 0) {
          // Jobs that were claimed with the last commit but not started are released.
          if (this.#shared.stopping.aborted) next.forEach((attempt) => attempt.cancel('drain'));
          next = await mode.attempt(next, slot);
        }
      } finally {
        mode.release(slot);
      }
    };
    if (this.#breaker.open && this.busy === 0 && attempts.length > 0) [this.#probe] = attempts;
    this.busy++;
    run()
      .catch((error) => {
        this.logger.error(`idemq: ${this.queue}: ${textOf(error)}`);
        next.forEach((attempt) => this.#forget(attempt));
        this.#shared.failed(error);
      })
      .finally(() => {
        this.busy--;
        if (this.ahead) this.ahead.dry = false;
        this.#shared.shardSlots?.release(1);
        this.#shared.freed(this);
        this.fill();
      });
  }

  /** The attempts that a slot begins next: the given ones, or else some that wait. @param {Attempt[]} attempts */
  async #next(attempts) {
    let next = attempts;
    if (this.ahead && next.length === 0) {
      next = await this.ahead.take(this.batch);
      if (next.length > 0 && this.#breaker.open && this.busy === 1) [this.#probe] = next;
      if (this.refills) this.#shared.freed(this);
    }
    return this.unheld(next);
  }

  /**
   * Gives back the attempts that must not begin, because their handlers would probably fail. Returns the others.
   * @param {Attempt[]} attempts
   */
  async unheld(attempts) {
    const held = attempts.filter((attempt) => this.#breaker.open && attempt !== this.#probe && !attempt.commitSent);
    if (held.length > 0) await this.giveBack(held, 'the last attempts have failed with the same error');
    return attempts.filter((attempt) => !held.includes(attempt));
  }

  /** Releases attempts that have not begun. @param {Attempt[]} attempts @param {string} why */
  async giveBack(attempts, why) {
    await settling(attempts, async ({ outcome }) => {
      await this.control.answer(RELEASE_MANY, [attempts.map(({ job }) => job.id), attempts.map(({ job }) => job.token)]);
      outcome('released');
    });
    for (const attempt of attempts) this.ended(attempt, 'released', why);
  }

  /**
   * Called when a lease expired before its handler ended, because the blocked event loop could not renew it. This worker might claim the
   * same jobs again and again, so it claims nothing for a while.
   * @param {Attempt} attempt
   */
  pauseClaims(attempt) {
    if (this.#late.push(attempt) > 1) return;
    const pause = Math.min(1000 * 2 ** this.#blockedInARow++, 60_000);
    this.pausedUntil = Date.now() + pause;
    setImmediate(() => {
      const late = this.#late.splice(0);
      const names = late.slice(0, 3).map(({ job }) => job.id);
      this.logger.error(
        `idemq: ${this.queue}: ${late.length} handlers ended after their leases had expired, because the event loop was blocked for longer than a lease and could not send heartbeats. ` +
          `Jobs: ${names.join(', ')}${late.length > 3 ? ' and more' : ''}. Run blocking code in a worker thread, or give the queue a longer lease. Claims pause for ${pause / 1000} s`,
      );
    });
  }

  /** @param {Attempt} attempt */
  #forget(attempt) {
    this.#held.delete(attempt);
    this.#shared.running.delete(attempt);
    attempt.leaseSession?.attempts.delete(attempt);
  }

  /** @param {Attempt} attempt @param {unknown} error @param {string} outcome @param {boolean} willRetry */
  failed(attempt, error, outcome, willRetry) {
    const { job } = attempt;
    if (!this.#shared.once && (outcome === 'retrying' || outcome === 'dead')) {
      const opened = this.#breaker.failed(job.kind, error);
      if (opened) this.ahead?.giveBackAll('the last attempts have failed with the same error');
      if (opened) this.logger.error(`idemq: ${this.queue}${job.kind === null ? '' : `, kind ${job.kind}`}: ten attempts in a row have failed with the same error, so the worker runs one job at a time until one succeeds: ${this.redact(textOf(error))}`);
      this.pausedUntil = Math.max(this.pausedUntil, Date.now() + this.#breaker.pause());
    }
    this.#shared.hooks.failed(attempt.job, { attempt: attempt.job.attempt, willRetry, error, outcome: /** @type {any} */ (outcome) });
  }

  /** @param {Attempt} attempt @param {string} outcome @param {string} [text] */
  ended(attempt, outcome, text) {
    const { job } = attempt;
    const { counts } = this.#shared;
    if (outcome === 'committed') {
      this.#blockedInARow = 0;
      if (this.#breaker.succeeded(job.kind)) {
        this.pausedUntil = 0;
        this.logger.info(`idemq: ${this.queue}: an attempt has succeeded, so the worker runs ${this.way.concurrency * this.way.batch} jobs at a time again`);
      }
    }
    const of = `idemq: ${attempt.name}: attempt ${job.attempt} of ${job.maxAttempts}`;
    this.#forget(attempt);
    this.ahead?.ended(attempt);
    counts[outcome] = (counts[outcome] ?? 0) + 1;
    if (attempt.abandoned) this.#shared.abandoned(attempt);
    if (outcome === 'stale' || outcome === 'not_found') this.logger.warn(`${of}: the lease was lost${text ? `: ${text}` : ''}`);
    else if (outcome === 'lost') this.logger.warn(`${of}: waiting until its lease expires: ${text}`);
    else if (outcome === 'released' || outcome === 'waiting') this.logger.info(`${of}: ${outcome}: ${text}`);
    else if (outcome !== 'committed') this.logger.warn(`${of}: ${outcome}: ${text}`);
  }
}
