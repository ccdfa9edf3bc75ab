// A worker: claims, waits, keeps leases, drains.  What becomes of a claimed job is for transactions.js
// (Worker.run) and outside.js (Worker.runOutside).
//
// Connections: one claims and keeps leases; one sleeps in idemq.wait; the others are those of the jobs.
// So no job's statement, and no wait for a lock, stands before a heartbeat.

import { setMaxListeners } from 'node:events';
import { Address, Line, Server, hosts, sleep, within } from './connection.js';
import { interval, sqlstate, textOf, typed } from './errors.js';
import { Attempt, killAfter } from './job.js';
import { Here } from './here.js';
import { Hooks } from './hooks.js';
import { handlerOf } from './kinds.js';
import { WORKER, known } from './options.js';
import { Outside } from './outside.js';
import { onSignals } from './signals.js';
import { CLAIM, HEARTBEAT, RELEASE_MANY, SETTINGS, WAIT, jobOf } from './statements.js';
import { Transactions } from './transactions.js';

const settingsEvery = 60_000;
/** Milliseconds that the server sleeps in one wait; less, where its statements may not take as long. */
const longestWait = 5000;

/** Of a cluster's shard: where it is, the places that it shares, whether a first claim that was refused ends the run.
 * @typedef {{ address: Address, places: import('./places.js').Places, refused: () => boolean }} OfShard */

/** @typedef {{
 *   queue: string, concurrency: number, batch: number, logger: import('../index.js').Logger, server: Server,
 *   claims: boolean, lent: <T>(work: Promise<T>) => Promise<T>,
 *   claimArguments: (session: import('./connection.js').Session, jobs?: number) => unknown[],
 *   begun: (rows: any[], asked: number, session: import('./connection.js').Session) => Attempt[],
 *   ended: (attempt: Attempt, outcome: string, text?: string) => void,
 *   heldUp: (attempt: Attempt) => void,
 *   failed: (attempt: Attempt, error: unknown, outcome: string) => void,
 * }} Context */

/** @type {import('../index.js').Logger} */
export const quiet = { info: () => {}, warn: console.warn, error: console.error };

export class Worker {
  #address;
  #waitAddress;
  #shard;
  #queue;
  #options;
  #logger;
  #hooks;
  #over = new AbortController();
  #stop = new AbortController();
  /** Attempts that are not settled. @type {Set<Attempt>} */
  #running = new Set();
  #places = 0;
  #freed = () => {};
  #pulse = () => {};
  #lease = 30_000;
  #timeout;
  /** @type {unknown} */
  #fatal;
  /** @type {Transactions | Outside | undefined} */
  #way;
  /** @type {Record<string, number>} */
  #counts = {};
  /** @type {NodeJS.Timeout | undefined} */
  #graceTimer;
  #claimed = false;
  /** That of the wait, in a drain. @type {Promise<void> | undefined} */
  #cancelling;

  /**
   * @param {import('../index.js').Connection} connection @param {string} queue
   * @param {import('../index.js').WorkerOptions} [options] @param {{ once?: boolean, shard?: OfShard }} [internal]
   */
  constructor(connection, queue, options = {}, { once = false, shard } = {}) {
    known(options, WORKER, 'Worker');
    const { concurrency = 1, batch = 1, timeout = 3600, grace = 30, signals = true, logger = quiet } = options;
    for (const [name, value] of Object.entries({ concurrency, batch })) {
      if (!Number.isInteger(value) || value < 1) throw new RangeError(`${name} is a number of jobs, from 1, not ${value}`);
    }
    if (!(timeout > 0)) throw new RangeError(`timeout is a number of seconds, not ${timeout}`);
    if (!(grace >= 0)) throw new RangeError(`grace is a number of seconds, not ${grace}`);
    if (!['info', 'warn', 'error'].every((level) => typeof (/** @type {any} */ (logger)?.[level]) === 'function')) throw new TypeError('logger has functions info, warn and error');
    const name = options.name ?? `node ${process.pid}`;
    const named = (/** @type {import('../index.js').Connection} */ to) => hosts(to).map((config) => ({ application_name: `idemq ${queue}`, ...config }));
    this.#address = shard?.address ?? new Address(named(connection));
    this.#waitAddress = options.waitConnection === undefined ? this.#address : new Address(named(options.waitConnection));
    this.#shard = shard;
    this.#queue = queue;
    this.#logger = logger;
    this.#hooks = new Hooks(options.hooks, logger);
    this.#timeout = timeout * 1000;
    this.#options = { ...options, name, concurrency, batch, timeout, grace, signals, once, lease: interval(options.lease) };
    // As many wait for them as there are jobs at a time.
    setMaxListeners(0, this.#over.signal, this.#stop.signal);
    const life = { over: this.#over.signal, patient: !once };
    this.server = new Server(this.#address, logger, life);
    this.heart = new Line(this.server, (session) => this.#settings(session));
    this.waiter = new Line(new Server(this.#waitAddress, logger, { ...life, over: this.#stop.signal }));
  }

  get queue() {
    return this.#queue;
  }

  get name() {
    return this.#options.name;
  }

  /** @param {import('../index.js').Handler | import('../index.js').Handlers<import('../index.js').Handler>} handler */
  async run(handler) {
    return this.#run(Transactions, handler);
  }

  /** @param {import('../index.js').OutsideHandler | import('../index.js').Handlers<import('../index.js').OutsideHandler>} handler */
  async runOutside(handler) {
    return this.#run(Outside, handler);
  }

  /** Claims no more; run ends when what runs has ended, or the grace is over. Called again: it is over. */
  stop() {
    if (this.#stop.signal.aborted) {
      if (this.#running.size > 0) this.#graceOver();
      return;
    }
    this.#stop.abort();
    this.#freed();
    this.#cancelling = this.waiter.session?.cancel();
    if (this.#running.size === 0) return;
    this.#logger.info(`idemq: ${this.#queue}: ending: ${this.#running.size} jobs have ${this.#options.grace} s`);
    this.#graceTimer = setTimeout(() => this.#graceOver(), Math.min(this.#options.grace * 1000, 2 ** 31 - 1));
  }

  #graceOver() {
    clearTimeout(this.#graceTimer);
    for (const attempt of this.#running) attempt.cancel('drain');
    // To give the jobs back, if there is a server.
    this.#graceTimer = setTimeout(() => this.#over.abort(), 2 * killAfter);
  }

  /** @param {any} Way @param {any} handlers @returns {Promise<Record<string, number>>} */
  async #run(Way, handlers) {
    const handler = this.#hooks.around(handlerOf(handlers, this.#options.unknownKind ?? 60, this.#logger));
    if (this.#way) throw new Error('this worker has run already: make another one');
    const { signals, attach, lease, name, concurrency } = this.#options;
    const batch = Way === Outside ? 1 : this.#options.batch;
    const worker = this;
    /** The session if leases end with it. @param {import('./connection.js').Session} session */
    const attachedTo = (session) => (attached && session.direct ? session : undefined);
    const attached = attach ?? (Way === Transactions && this.#waitAddress === this.#address);
    /** @type {Context} */
    const context = {
      queue: this.#queue,
      concurrency,
      batch,
      logger: this.#logger,
      server: this.server,
      // Whether the next job is claimed with a commit.
      get claims() {
        return !worker.#stop.signal.aborted && !worker.#shard?.places.wanted && Date.now() >= worker.#claimsAt;
      },
      lent: (work) => this.#shard?.places.lent(work) ?? work,
      // A pooler's session is not ours to tie a lease to.
      claimArguments: (session, jobs = batch) => [this.#queue, jobs, lease, name, attachedTo(session) !== undefined],
      begun: (rows, asked, session) => rows.map((row) => this.#begin(row, asked, attachedTo(session))),
      ended: (attempt, outcome, text) => this.#end(attempt, outcome, text),
      heldUp: (attempt) => this.#holdUp(attempt),
      failed: (attempt, error, outcome) => this.#hooks.failed(attempt.job, failureOf(attempt, error, outcome)),
    };
    const way = new Way(context, handler);

    this.#way = way;
    await this.#hooks.started(this);
    const unheard = signals ? onSignals(() => this.stop()) : () => {};
    const beating = this.#beat(Way === Outside);
    const here = new Here(this.heart, () => ({
      name,
      queue: this.#queue,
      concurrency: concurrency * batch,
      jobs: [...this.#running].map(({ job }) => job.id),
      done: Object.values(this.#counts).reduce((sum, count) => sum + count, 0),
    }));
    const telling = this.#options.once ? undefined : here.tell(this.#over.signal);
    try {
      await this.#dispatch(context, batch);
    } finally {
      while (this.#places > 0) await new Promise((resolve) => (this.#freed = () => resolve(undefined)));
      await here.reportStopping(this.#over.signal);
      this.#stop.abort();
      this.#over.abort();
      clearTimeout(this.#graceTimer);
      unheard();
      await Promise.all([beating, telling, way.end(), this.heart.end(), this.waiter.end(), this.#cancelling]);
      await this.#hooks.stopped(this, this.#counts);
    }
    if (this.#fatal) throw this.#fatal;
    return this.#counts;
  }

  /** Claims for places that are free, and waits. @param {Context} context @param {number} batch */
  async #dispatch(context, batch) {
    const { concurrency, once } = this.#options;
    for (let known = false; !this.#stop.signal.aborted; ) {
      const free = concurrency - this.#places;
      if (Date.now() < this.#claimsAt) await sleep(this.#claimsAt - Date.now(), this.#stop.signal);
      try {
        const attempts = free === 0 ? null : await this.#take(free, batch, (places) => this.#claim(context, places * batch));
        known = this.#claimed = true;
        if (attempts && attempts.length > 0) {
          while (attempts.length > 0) this.#start(attempts.splice(0, batch));
        } else if (attempts && !once) {
          await this.waiter.hold((session) => {
            const ms = session.patience > 0 ? Math.min(longestWait, 0.8 * session.patience) : longestWait;
            return within(ms + 10_000, session, session.query(WAIT, [this.#queue, `${ms} ms`]));
          });
        } else if (this.#places > 0) {
          await this.#place();
        } else {
          return;
        }
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        // What is wrong at the start is the caller's to mend; later, it may be mended meanwhile.
        const refused = !known && sqlstate(error) && !/^(08|25|40|53|57)/.test(sqlstate(error));
        if (once || (refused && (this.#shard?.refused() ?? true))) throw typed(error);
        const lost = error === this.heart.broke || error === this.waiter.broke;
        if (!lost) this.#logger.error(`idemq: ${this.#address.name}${this.#queue}: ${textOf(error)}; trying again in 5 s`);
        await sleep(lost ? 200 : 5000, this.#stop.signal);
      }
    }
  }

  /**
   * Claims for as many places as there are; of a shard, they are those of all shards.
   * @param {number} free @param {number} batch @param {(places: number) => Promise<Attempt[]>} claim
   */
  async #take(free, batch, claim) {
    const places = this.#shard?.places;
    if (!places) return claim(free);
    // No place is kept by a shard that is down.
    await this.heart.hold(async () => {}, this.#stop.signal);
    const taken = await places.take(free, this.#stop.signal);
    /** @type {Attempt[]} */
    let attempts = [];
    try {
      if (taken > 0) attempts = await claim(taken);
    } finally {
      places.leave(taken - Math.ceil(attempts.length / batch));
    }
    return attempts;
  }

  /** Of a shard: whether its server is down, as far as is known. */
  get unreachable() {
    return !this.#claimed && (this.server.down || this.waiter.server.down);
  }

  /** Of a shard: its address has changed. Who sleeps there wakes up; other lines find out by themselves. */
  moved() {
    this.waiter.session?.destroy();
  }

  /** A place that is freed, or the end. @returns {Promise<void>} */
  #place() {
    return new Promise((resolve) => {
      this.#freed = () => resolve();
      if (this.#stop.signal.aborted) resolve();
    });
  }

  /** @param {Context} context @param {number} jobs @returns {Promise<Attempt[]>} */
  #claim(context, jobs) {
    return this.heart.hold(async (session) => {
      if (Date.now() - this.#settingsRead > settingsEvery) await this.#settings(session);
      const asked = Date.now();
      const answer = await within(10_000, session, session.send([{ ...CLAIM, values: context.claimArguments(session, jobs) }]));
      if (answer.error) throw answer.error;
      const rows = answer.rows[0].map((fields) => jobOf(session, fields, 0));
      if (!this.#stop.signal.aborted || rows.length === 0) return context.begun(rows, asked, session);
      await session.query(RELEASE_MANY, [rows.map((row) => row.id), rows.map((row) => row.token)]);
      return [];
    }, this.#stop.signal);
  }

  /** @param {any} row of a claim @param {number} asked @param {import('./connection.js').Session} [on] the session with which its lease ends */
  #begin(row, asked, on) {
    const attempt = new Attempt(row, this.#queue, { asked, lease: this.#lease, timeout: this.#timeout, line: this.#way?.line() });
    attempt.on = on;
    on?.attempts.add(attempt);
    this.#running.add(attempt);
    return attempt;
  }

  /** @param {Attempt[]} attempts */
  #start(attempts) {
    let next = attempts;
    const way = /** @type {Transactions} */ (this.#way);
    const run = async () => {
      const lane = way.enter();
      try {
        while (next.length > 0) {
          // Claimed with the last commit, and not begun: given back.
          if (this.#stop.signal.aborted) next.forEach((attempt) => attempt.cancel('drain'));
          next = await way.attempt(next, lane);
        }
      } finally {
        way.leave(lane);
      }
    };
    this.#places++;
    run()
      .catch((error) => {
        this.#logger.error(`idemq: ${this.#queue}: ${textOf(error)}`);
        next.forEach((attempt) => this.#forget(attempt));
        if (this.#options.once) this.#fatal ??= error;
      })
      .finally(() => {
        this.#places--;
        this.#shard?.places.leave(1);
        this.#freed();
      });
  }

  /** Attempts whose handlers have ended well, and after their leases: of one turn of the loop. @type {Attempt[]} */
  #late = [];
  /** How often in a row there were such; nothing is claimed before #claimsAt. */
  #heldUp = 0;
  #claimsAt = 0;

  /**
   * A lease was over before its handler had ended, and nobody could renew it: the event loop was blocked. The jobs are given out again,
   * here perhaps, for ever: so nothing is claimed for a while.
   * @param {Attempt} attempt
   */
  #holdUp(attempt) {
    if (this.#late.push(attempt) > 1) return;
    const pause = Math.min(1000 * 2 ** this.#heldUp++, 60_000);
    this.#claimsAt = Date.now() + pause;
    setImmediate(() => {
      const late = this.#late.splice(0);
      const names = late.slice(0, 3).map(({ job }) => job.id);
      this.#logger.error(
        `idemq: ${this.#queue}: ${late.length} handlers ended after their leases, which nobody could renew: the event loop was blocked for longer than a lease. ` +
          `Jobs ${names.join(', ')}${late.length > 3 ? ' and more' : ''}. Do what blocks in a worker thread, or give the queue a longer lease; claims pause for ${pause / 1000} s`,
      );
    });
  }

  /** @param {Attempt} attempt */
  #forget(attempt) {
    this.#running.delete(attempt);
    attempt.on?.attempts.delete(attempt);
  }

  /** @param {Attempt} attempt @param {string} outcome @param {string} [text] */
  #end(attempt, outcome, text) {
    const { job } = attempt;
    if (outcome === 'committed') this.#heldUp = 0;
    const of = `idemq: ${attempt.name}: attempt ${job.attempt} of ${job.maxAttempts}`;
    this.#forget(attempt);
    this.#counts[outcome] = (this.#counts[outcome] ?? 0) + 1;
    if (outcome === 'stale' || outcome === 'not_found') this.#logger.warn(`${of}: the lease was lost: another attempt does it`);
    else if (outcome === 'lost') this.#logger.warn(`${of}: left to its lease: ${text}`);
    else if (outcome === 'released' || outcome === 'waiting') this.#logger.info(`${of}: ${outcome}: ${text}`);
    else if (outcome !== 'committed') this.#logger.warn(`${of}: ${outcome}: ${text}`);
  }

  #settingsRead = 0;

  /** Reads the queue's settings. @param {import('./connection.js').Session} session */
  async #settings(session) {
    const { rows } = await session.query(SETTINGS, [this.#queue, this.#options.lease]);
    this.#settingsRead = Date.now();
    if (rows.length === 0) return; // the claim says why
    // The next heartbeat by the new length.
    if (this.#lease !== rows[0].lease) this.#pulse();
    this.#lease = rows[0].lease;
    this.#timeout = rows[0].timeout ?? this.#options.timeout * 1000;
  }

  /** Keeps leases, until the end. @param {boolean} strict a lease that may have ended is lost, not only that of a handler that has locked nothing */
  async #beat(strict) {
    /** @type {Promise<void> | undefined} */
    let asking;
    while (!this.#over.signal.aborted) {
      const pulse = new Promise((resolve) => (this.#pulse = () => resolve(undefined)));
      await Promise.race([pulse, sleep(Math.min(this.#lease / 3, 3_600_000), this.#over.signal)]);
      const running = [...this.#running].filter((attempt) => attempt.why !== 'timeout');
      if (running.length > 0) asking ??= this.#heartbeat(running).finally(() => (asking = undefined));
      await Promise.race([asking, sleep(this.#lease / 6, this.#over.signal)]);
      for (const attempt of running) {
        if ((strict || attempt.bare) && Date.now() > attempt.leaseEnds && this.#running.has(attempt) && !attempt.sent) attempt.cancel('lease');
      }
    }
    await asking;
  }

  /** @param {Attempt[]} running */
  async #heartbeat(running) {
    try {
      await this.heart.hold(async (session) => {
        const asked = Date.now();
        const values = [running.map(({ job }) => job.id), running.map(({ job }) => job.token), this.#options.lease];
        const { rows } = await within(10_000, session, session.query(HEARTBEAT, values));
        const outcomes = new Map(rows.map((row) => [`${row.id} ${row.token}`, row.outcome]));
        for (const attempt of running) {
          if (outcomes.get(`${attempt.job.id} ${attempt.job.token}`) === 'current') attempt.leaseEnds = asked + this.#lease;
          // Committed, or about to be: it is no lease any more.
          else if (this.#running.has(attempt) && !attempt.sent) attempt.cancel('lease');
        }
      });
    } catch (error) {
      // That there is no connection is said already.
      if (this.heart.session && !this.#over.signal.aborted) this.#logger.warn(`idemq: ${this.#queue}: heartbeat: ${textOf(error)}`);
    }
  }
}

/** @param {Attempt} attempt @param {unknown} error @param {any} outcome @returns {import('../index.js').Failure} */
function failureOf({ job }, error, outcome) {
  return { attempt: job.attempt, willRetry: outcome !== 'dead', error, outcome };
}

/**
 * Does what is ready now, through the real path.
 * @param {import('../index.js').Connection} connection @param {string} queue
 * @param {import('../index.js').Handler | import('../index.js').OutsideHandler | import('../index.js').Handlers<any>} handler
 * @param {import('../index.js').WorkerOptions & { outside?: boolean }} [options]
 */
export async function drain(connection, queue, handler, options = {}) {
  known(options, { ...WORKER, outside: true }, 'drain');
  const { outside = false, ...own } = options;
  const worker = new Worker(connection, queue, { signals: false, ...own }, { once: true });
  return outside ? worker.runOutside(/** @type {any} */ (handler)) : worker.run(handler);
}
