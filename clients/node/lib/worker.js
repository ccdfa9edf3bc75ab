// A worker: claims jobs, waits for them, renews leases and drains.  transactions.js (Worker.run) and outside.js
// (Worker.runOutside) run the claimed jobs.
//
// Connections: one claims jobs and renews leases, one sleeps in idemq.wait, and the others belong to the jobs.
// So heartbeats are never delayed by a job's statement or by a lock.

import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { Address, Link, Server, answerTimeout, hosts, shortestAnswerTimeout, sleep, withTimeout } from './connection.js';
import { checkName, optionalBoolean, optionalInterval, optionalName } from './arguments.js';
import { sqlstate, textOf, typed } from './errors.js';
import { singleHandler } from './handlers.js';
import { Hooks } from './hooks.js';
import { Attempt } from './job.js';
import { WORKER, checkOptions } from './options.js';
import { Outside } from './outside.js';
import { onSignals, stopWhenHung } from './signals.js';
import { watchSilence } from './silence.js';
import { CLAIM, END_WAIT, ENDED_THEMSELVES, HEARTBEAT, RELEASE_MANY, SETTINGS, WAIT, jobFromRow } from './statements.js';
import { Transactions } from './transactions.js';
import { WorkerReport } from './worker-report.js';

const settingsMaxAge = 60_000;
/**
 * Milliseconds that the server sleeps in one wait, or less if statement_timeout is shorter. Behind a pooler a wait cannot be ended, so a
 * worker that stops lets it time out.
 */
const longestWait = 5000;
const longestPooledWait = 3000;
/** Milliseconds that a worker without free slots waits before it listens for the end of its attempts, so that short jobs cost nothing extra. */
const listenAfter = 10;
/** Milliseconds after a stop in which the wait must end, and after the grace period in which the outcomes of the last jobs are reported. */
const waitEnds = 3500;
export const lastWords = 4000;

/** Options for a shard of a cluster: its address, the slots that it shares, and whether a refused first claim ends the run.
 * @typedef {{ address: Address, slots: import('./handler-slots.js').ShardSlots, refused: () => boolean }} ShardOptions */

/** @typedef {{
 *   queue: string, outside: boolean, concurrency: number, batch: number, logger: import('../index.js').Logger, server: Server,
 *   mayClaim: boolean, lendWhile: <T>(work: Promise<T>) => Promise<T>,
 *   claimArguments: (session: import('./connection.js').Session, jobs?: number) => unknown[],
 *   begun: (rows: any[], asked: number, session: import('./connection.js').Session) => Attempt[],
 *   ended: (attempt: Attempt, outcome: string, text?: string) => void,
 *   pauseClaims: (attempt: Attempt) => void,
 *   failed: (attempt: Attempt, error: unknown, outcome: string, willRetry: boolean) => void,
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
  /** Attempts whose outcome has not been reported. @type {Set<Attempt>} */
  #running = new Set();
  #busySlots = 0;
  #onSlotFreed = () => {};
  #heartbeatNow = () => {};
  #lease = 30_000;
  #timeout;
  #timeoutOfQueue = false;
  /** @type {unknown} */
  #fatal;
  /** @type {Transactions | Outside | undefined} */
  #mode;
  /** @type {Record<string, number>} */
  #counts = {};
  /** @type {NodeJS.Timeout | undefined} */
  #graceTimer;
  #claimed = false;
  /** Attempts whose handlers were abandoned. @type {Attempt[]} */
  #abandoned = [];
  /** Time at which the process was told to stop, from Date.now(). @type {number | undefined} */
  #stoppedAt;
  #endWait = async () => {};
  #endingWait = Promise.resolve();
  /** Settles when the last wait has ended. @type {Promise<unknown>} */
  #waiting = Promise.resolve();

  /**
   * @param {import('../index.js').Connection} connection @param {string} queue
   * @param {import('../index.js').WorkerOptions} [options] @param {{ once?: boolean, shard?: ShardOptions }} [internal]
   */
  constructor(connection, queue, options = {}, { once = false, shard } = {}) {
    checkName(queue, 'queue');
    checkOptions(options, WORKER, 'Worker');
    optionalName(options.name, 'name');
    const attach = optionalBoolean(options.attach, 'attach') ?? undefined;
    optionalBoolean(options.signals, 'signals');
    optionalInterval(options.unknownKind, 'unknownKind');
    const { concurrency = 1, batch = 1, timeout = 3600, grace = 30, signals = true, logger = quiet } = options;
    for (const [name, value] of Object.entries({ concurrency, batch })) {
      if (!Number.isInteger(value) || value < 1) throw new RangeError(`${name} must be an integer greater than 0, not ${value}`);
    }
    if (!(timeout > 0)) throw new RangeError(`timeout must be a positive number of seconds, not ${timeout}`);
    if (!(grace >= 0)) throw new RangeError(`grace must be a number of seconds and must not be negative, not ${grace}`);
    if (!['info', 'warn', 'error'].every((level) => typeof (/** @type {any} */ (logger)?.[level]) === 'function')) throw new TypeError('logger must have the functions info, warn and error');
    const name = options.name ?? `node ${process.pid}`;
    const named = (/** @type {import('../index.js').Connection} */ to) => hosts(to).map((config) => ({ application_name: `idemq ${queue}`, ...config }));
    this.#address = shard?.address ?? new Address(named(connection));
    this.#waitAddress = options.waitConnection === undefined ? this.#address : new Address(named(options.waitConnection));
    this.#shard = shard;
    this.#queue = queue;
    this.#logger = logger;
    this.#hooks = new Hooks(options.hooks, logger);
    this.#timeout = timeout * 1000;
    this.#options = { ...options, name, concurrency, batch, timeout, grace, signals, once, attach, lease: optionalInterval(options.lease, 'lease') };
    // Each of the jobs that run at once adds a listener.
    setMaxListeners(0, this.#over.signal, this.#stop.signal);
    const life = { over: this.#over.signal, retryConnect: !once, worker: randomUUID() };
    this.server = new Server(this.#address, logger, life);
    this.control = new Link(this.server, (session) => this.#settings(session));
    this.waiter = new Link(new Server(this.#waitAddress, logger, { ...life, over: this.#stop.signal }), undefined, this.#over.signal);
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

  /**
   * Stops claiming. run ends when the running jobs have ended, or five seconds after the grace period, whatever the state of the connections.
   * A second call ends the grace period.
   */
  stop() {
    if (this.#stop.signal.aborted) {
      if (this.#mode && this.#stoppedAt !== undefined && !this.#over.signal.aborted) this.#graceOver();
      return;
    }
    this.#stoppedAt = Date.now();
    this.#stop.abort();
    this.#onSlotFreed();
    if (!this.#mode) return;
    this.#endingWait = this.#endWait();
    if (this.#running.size > 0) this.#logger.info(`idemq: ${this.#queue}: stopping: ${this.#running.size} jobs have ${this.#options.grace} s to finish`);
    this.#graceTimer = setTimeout(() => this.#graceOver(), Math.min(this.#options.grace * 1000, 2 ** 31 - 1));
  }

  #graceOver() {
    clearTimeout(this.#graceTimer);
    for (const attempt of this.#running) attempt.cancel('drain');
    // Time to release the jobs, if a server is there.
    this.#graceTimer = setTimeout(() => this.#over.abort(), lastWords);
  }

  /** @param {any} Mode @param {any} handlers @returns {Promise<Record<string, number>>} */
  async #run(Mode, handlers) {
    const handler = this.#hooks.around(singleHandler(handlers, this.#options.unknownKind ?? 60, this.#logger));
    if (this.#mode) throw new Error('this worker has already run; create a new one');
    const { signals, attach, lease, name, concurrency } = this.#options;
    const batch = Mode === Outside ? 1 : this.#options.batch;
    const worker = this;
    /** The session, if leases are attached to it. @param {import('./connection.js').Session} session */
    const attachedTo = (session) => (attached && session.direct ? session : undefined);
    const attached = attach ?? (Mode === Transactions && this.#waitAddress === this.#address);
    /** @type {Context} */
    const context = {
      queue: this.#queue,
      outside: Mode === Outside,
      concurrency,
      batch,
      logger: this.#logger,
      server: this.server,
      // Whether a commit also claims the next job.
      get mayClaim() {
        return !worker.#stop.signal.aborted && !worker.#shard?.slots.shouldYield && Date.now() >= worker.#claimsPausedUntil;
      },
      lendWhile: (work) => this.#shard?.slots.lendWhile(work) ?? work,
      // A lease cannot be attached to a pooler's session.
      claimArguments: (session, jobs = batch) => [this.#queue, jobs, lease, name, attachedTo(session) !== undefined],
      begun: (rows, asked, session) => rows.map((row) => this.#begin(row, asked, attachedTo(session))),
      ended: (attempt, outcome, text) => this.#end(attempt, outcome, text),
      pauseClaims: (attempt) => this.#pauseClaims(attempt),
      failed: (attempt, error, outcome, willRetry) => this.#hooks.failed(attempt.job, { attempt: attempt.job.attempt, willRetry, error, outcome: /** @type {any} */ (outcome) }),
    };
    const mode = new Mode(context, handler);

    this.#mode = mode;
    await this.#hooks.started(this);
    const unheard = signals ? onSignals(() => this.stop()) : () => {};
    const heartbeats = this.#sendHeartbeats(Mode === Outside);
    const report = new WorkerReport(this.control, () => ({
      name,
      queue: this.#queue,
      concurrency: concurrency * batch,
      jobs: [...this.#running].map(({ job }) => job.id),
      done: Object.values(this.#counts).reduce((sum, count) => sum + count, 0),
    }));
    const reporting = this.#options.once ? undefined : report.reportRegularly(this.#over.signal);
    const watching = watchSilence(this.server, this.control, () => this.#lease, (ms) => sleep(ms, this.#over.signal), this.#over.signal);
    /** @type {NodeJS.Timeout | undefined} */
    let waitTimer;
    this.#endWait = async () => {
      const { session } = this.waiter;
      // Waits that do not end by themselves are abandoned: their connection is silent, or the server could not be asked to end them.
      waitTimer = setTimeout(() => this.waiter.session?.destroy(), waitEnds);
      // While handlers run, the session then listens.
      this.#waiting.then(() => clearTimeout(waitTimer));
      if (session?.direct) await report.endWait(session.process, this.#running.size === 0);
    };
    try {
      await this.#dispatch(context, batch);
    } finally {
      while (this.#busySlots > 0) await this.#listen(new Promise((resolve) => (this.#onSlotFreed = () => resolve(undefined))));
      // If a report is interrupted, it could be written after the last one.
      await Promise.race([this.#endingWait, sleep(1000, this.#over.signal)]);
      await report.reportStopping(this.#over.signal);
      this.#stop.abort();
      this.#over.abort();
      clearTimeout(this.#graceTimer);
      clearTimeout(waitTimer);
      unheard();
      await Promise.all([heartbeats, reporting, watching, mode.end(), this.control.end(), this.waiter.end()]);
      await this.#hooks.stopped(this, this.#counts, this.#stoppedAt === undefined ? undefined : this.#stoppedAt + 1000 * this.#options.grace + lastWords);
      if (this.#abandoned.some((each) => !each.ended)) stopWhenHung(() => this.#logger.warn(`idemq: ${this.#queue}: a handler is still running although its job was released, so the process will exit`));
    }
    if (this.#fatal) throw this.#fatal;
    return this.#counts;
  }

  /** Claims jobs for free slots, and waits for jobs. @param {Context} context @param {number} batch */
  async #dispatch(context, batch) {
    const { concurrency, once } = this.#options;
    for (let known = false; !this.#stop.signal.aborted; ) {
      const free = concurrency - this.#busySlots;
      if (Date.now() < this.#claimsPausedUntil) await sleep(this.#claimsPausedUntil - Date.now(), this.#stop.signal);
      try {
        const attempts = free === 0 ? null : await this.#acquireSlots(free, batch, (slots) => this.#claim(context, slots * batch));
        known = this.#claimed = true;
        if (attempts && attempts.length > 0) {
          while (attempts.length > 0) this.#start(attempts.splice(0, batch));
        } else if (attempts && !once) {
          await this.#wait(this.#queue);
        } else if (this.#busySlots > 0) {
          await this.#listen(this.#slotFreed());
        } else {
          return;
        }
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        // The caller must fix an error at startup. A later error may be fixed meanwhile.
        const refused = !known && sqlstate(error) && !/^(08|25|40|53|57)/.test(sqlstate(error));
        const said = this.#withoutExtension(error);
        if (once || (refused && (this.#shard?.refused() ?? true))) throw typed(said);
        const lost = error === this.control.sessionError || error === this.waiter.sessionError;
        if (!lost) this.#logger.error(`idemq: ${this.#address.name}${this.#queue}: ${textOf(said)}; trying again in 5 s`);
        await sleep(lost ? 200 : 5000, this.#stop.signal);
      }
    }
  }

  /**
   * Waits until the queue has work (if a queue is given), an attempt of this worker is cancelled or taken back, or the wait times out.
   * @param {string | null} queue
   */
  #wait(queue) {
    const waiting = this.waiter.withSession(async (session) => {
      if (queue === null && !session.hearsEnds) return;
      const longest = session.direct ? longestWait : longestPooledWait;
      const ms = session.statementTimeout > 0 ? Math.min(longest, 0.8 * session.statementTimeout) : longest;
      const { rows } = await withTimeout(ms + 10_000, session, session.query(WAIT, [queue, `${ms} ms`]));
      if (rows[0].ready || !session.hearsEnds || this.#running.size === 0) return;
      this.#told = true;
      this.#heartbeatNow();
    });
    this.#waiting = waiting.catch(() => {});
    return waiting;
  }

  /**
   * Listens, in the session that otherwise waits for jobs, until a slot is free. A worker that is stopping does not open a session for that.
   * @param {Promise<void>} freed
   */
  async #listen(freed) {
    let over = false;
    freed.then(() => (over = true));
    await Promise.race([freed, sleep(listenAfter, this.#stop.signal)]);
    const stopping = this.#stop.signal.aborted;
    while (!over && (this.waiter.session?.hearsEnds ?? !stopping)) {
      const pause = () => sleep(1000, stopping ? this.#over.signal : this.#stop.signal); // until then, heartbeats find the end of an attempt
      const listening = this.#wait(null).catch(pause);
      await Promise.race([freed, listening]);
      const { session } = this.waiter;
      if (!over || !session?.direct) continue;
      const limit = sleep(waitEnds, this.#over.signal);
      await Promise.race([this.control.rows(END_WAIT, [session.process]).catch(() => {}), limit]);
      await Promise.race([listening, limit]);
    }
    await freed;
  }

  /**
   * Claims jobs for the free slots. The slots of a shard are shared by all shards.
   * @param {number} free @param {number} batch @param {(slots: number) => Promise<Attempt[]>} claim
   */
  async #acquireSlots(free, batch, claim) {
    const slots = this.#shard?.slots;
    if (!slots) return claim(free);
    // A shard that is down does not hold a slot.
    await this.control.withSession(async () => {}, this.#stop.signal);
    const taken = await slots.acquire(free, this.#stop.signal);
    /** @type {Attempt[]} */
    let attempts = [];
    try {
      if (taken > 0) attempts = await claim(taken);
    } finally {
      slots.release(taken - Math.ceil(attempts.length / batch));
    }
    return attempts;
  }

  /** For a shard: whether its server is known to be down. */
  get unreachable() {
    return !this.#claimed && (this.server.down || this.waiter.server.down);
  }

  /** Called when the address of a shard has changed. Wakes up a waiting link; other links find out by themselves. */
  moved() {
    this.waiter.session?.destroy();
  }

  /** Waits until a slot is free, or until the end. @returns {Promise<void>} */
  #slotFreed() {
    return new Promise((resolve) => {
      this.#onSlotFreed = () => resolve();
      if (this.#stop.signal.aborted) resolve();
    });
  }

  /** @param {Context} context @param {number} jobs @returns {Promise<Attempt[]>} */
  #claim(context, jobs) {
    return this.control.withSession(async (session) => {
      if (Date.now() - this.#settingsRead > settingsMaxAge) await withTimeout(this.control.answerTimeout, session, this.#settings(session));
      const asked = Date.now();
      const answer = await withTimeout(this.control.answerTimeout, session, session.send([{ ...CLAIM, values: context.claimArguments(session, jobs) }]));
      if (answer.error) throw answer.error;
      const rows = answer.rows[0].map((fields) => jobFromRow(session, fields, 0));
      if (!this.#stop.signal.aborted || rows.length === 0) return context.begun(rows, asked, session);
      await withTimeout(this.control.answerTimeout, session, session.query(RELEASE_MANY, [rows.map((row) => row.id), rows.map((row) => row.token)]));
      return [];
    }, this.#stop.signal);
  }

  /** @param {any} row of a claim @param {number} asked @param {import('./connection.js').Session} [on] the session with which its lease ends */
  #begin(row, asked, on) {
    const attempt = new Attempt(row, this.#queue, { asked, lease: this.#lease, timeout: this.#timeout, ofQueue: this.#timeoutOfQueue, link: this.#mode?.link(), warn: (text) => this.#logger.warn(text) });
    attempt.leaseSession = on;
    on?.attempts.add(attempt);
    this.#running.add(attempt);
    return attempt;
  }

  /** @param {Attempt[]} attempts */
  #start(attempts) {
    let next = attempts;
    const mode = /** @type {Transactions} */ (this.#mode);
    const run = async () => {
      const slot = mode.acquire();
      try {
        while (next.length > 0) {
          // Jobs that were claimed with the last commit but not started are released.
          if (this.#stop.signal.aborted) next.forEach((attempt) => attempt.cancel('drain'));
          next = await mode.attempt(next, slot);
        }
      } finally {
        mode.release(slot);
      }
    };
    this.#busySlots++;
    run()
      .catch((error) => {
        this.#logger.error(`idemq: ${this.#queue}: ${textOf(error)}`);
        next.forEach((attempt) => this.#forget(attempt));
        if (this.#options.once) this.#fatal ??= error;
      })
      .finally(() => {
        this.#busySlots--;
        this.#shard?.slots.release(1);
        this.#onSlotFreed();
      });
  }

  /** Attempts of this turn of the event loop whose handlers succeeded, but after their leases. @type {Attempt[]} */
  #late = [];
  /** How many times in a row this happened. Nothing is claimed before #claimsPausedUntil. */
  #blockedInARow = 0;
  #claimsPausedUntil = 0;

  /**
   * Called when a lease expired before its handler ended, because the blocked event loop could not renew it. This worker might claim the
   * same jobs again and again, so it claims nothing for a while.
   * @param {Attempt} attempt
   */
  #pauseClaims(attempt) {
    if (this.#late.push(attempt) > 1) return;
    const pause = Math.min(1000 * 2 ** this.#blockedInARow++, 60_000);
    this.#claimsPausedUntil = Date.now() + pause;
    setImmediate(() => {
      const late = this.#late.splice(0);
      const names = late.slice(0, 3).map(({ job }) => job.id);
      this.#logger.error(
        `idemq: ${this.#queue}: ${late.length} handlers ended after their leases had expired, because the event loop was blocked for longer than a lease and could not send heartbeats. ` +
          `Jobs: ${names.join(', ')}${late.length > 3 ? ' and more' : ''}. Run blocking code in a worker thread, or give the queue a longer lease. Claims pause for ${pause / 1000} s`,
      );
    });
  }

  /** @param {Attempt} attempt */
  #forget(attempt) {
    this.#running.delete(attempt);
    attempt.leaseSession?.attempts.delete(attempt);
  }

  /** @param {Attempt} attempt @param {string} outcome @param {string} [text] */
  #end(attempt, outcome, text) {
    const { job } = attempt;
    if (outcome === 'committed') this.#blockedInARow = 0;
    const of = `idemq: ${attempt.name}: attempt ${job.attempt} of ${job.maxAttempts}`;
    this.#forget(attempt);
    this.#counts[outcome] = (this.#counts[outcome] ?? 0) + 1;
    if (attempt.abandoned) this.#abandoned = [...this.#abandoned.filter((each) => !each.ended), attempt];
    if (outcome === 'stale' || outcome === 'not_found') this.#logger.warn(`${of}: the lease was lost${text ? `: ${text}` : ''}`);
    else if (outcome === 'lost') this.#logger.warn(`${of}: waiting until its lease expires: ${text}`);
    else if (outcome === 'released' || outcome === 'waiting') this.#logger.info(`${of}: ${outcome}: ${text}`);
    else if (outcome !== 'committed') this.#logger.warn(`${of}: ${outcome}: ${text}`);
  }

  /** The error, replaced by a clearer one if the database does not have the extension. @param {unknown} error @returns {unknown} */
  #withoutExtension(error) {
    if (!['3F000', '42P01'].includes(sqlstate(error))) return error;
    return Object.assign(new Error(`the database "${this.#address.database}" does not have idemq: run CREATE EXTENSION idemq in it`, { cause: error }), { code: sqlstate(error) });
  }

  #settingsRead = 0;
  /** Whether to send heartbeats at once, because an attempt may have ended. */
  #told = false;

  /** Reads the queue's settings. @param {import('./connection.js').Session} session */
  async #settings(session) {
    const { rows } = await session.query(SETTINGS, [this.#queue, this.#options.lease]);
    this.#settingsRead = Date.now();
    if (rows.length === 0) return; // the claim reports the reason
    // Send the next heartbeat according to the new lease.
    const [lease, timeout] = [Number(rows[0].lease), rows[0].timeout];
    if (this.#lease !== lease) this.#heartbeatNow();
    this.#lease = lease;
    // A heartbeat is sent after a third of the lease, and given up after another third. The last third is left for a new connection.
    this.control.answerTimeout = Math.min(Math.max(lease / 3, shortestAnswerTimeout), answerTimeout);
    this.#timeoutOfQueue = timeout !== null;
    this.#timeout = timeout === null ? this.#options.timeout * 1000 : Number(timeout);
  }

  /** Renews leases until the end. @param {boolean} strict whether every lease that may have ended counts as lost, even if the handler has locked its job */
  async #sendHeartbeats(strict) {
    /** @type {Promise<void> | undefined} */
    let asking;
    while (!this.#over.signal.aborted) {
      const due = new Promise((resolve) => (this.#heartbeatNow = () => resolve(undefined)));
      // The heartbeats that are under way may have been answered before the attempt ended, so send others after them.
      if (asking || !this.#told) await Promise.race([due, sleep(Math.min(this.#lease / 3, 3_600_000), this.#over.signal), ...(asking && this.#told ? [asking] : [])]);
      if (!asking) this.#told = false;
      const running = [...this.#running].filter((attempt) => attempt.why !== 'timeout' && !attempt.endedItself);
      if (running.length > 0) asking ??= this.#sendHeartbeat(running).finally(() => (asking = undefined));
      await Promise.race([asking, sleep(this.#lease / 6, this.#over.signal)]);
      for (const attempt of running) {
        if ((strict || attempt.unlocked) && Date.now() > attempt.leaseEnds && this.#running.has(attempt) && !attempt.commitSent) attempt.cancel('lease');
      }
    }
    await asking;
  }

  /** Marks stale attempts that have ended themselves. A transaction can only be rolled back, so its attempt is not among them. @param {import('./connection.js').Session} session @param {Attempt[]} stale */
  async #findEnded(session, stale) {
    if (stale.length === 0 || !(this.#mode instanceof Outside)) return;
    const values = [stale.map(({ job }) => job.id), stale.map(({ job }) => job.token)];
    const { rows } = await withTimeout(this.control.answerTimeout, session, session.query(ENDED_THEMSELVES, values));
    const tokens = new Set(rows.map((row) => row.token));
    for (const attempt of stale) {
      if (!tokens.has(attempt.job.token)) continue;
      attempt.endedItself = true;
      attempt.leaseEnds = Infinity;
    }
  }

  /** @param {Attempt[]} running */
  async #sendHeartbeat(running) {
    try {
      await this.control.withSession(async (session) => {
        const asked = Date.now();
        const values = [running.map(({ job }) => job.id), running.map(({ job }) => job.token), this.#options.lease];
        const { rows } = await withTimeout(this.control.answerTimeout, session, session.query(HEARTBEAT, values));
        const outcomes = new Map(rows.map((row) => [`${row.id} ${row.token}`, row.outcome]));
        const outcomeOf = (/** @type {Attempt} */ { job }) => outcomes.get(`${job.id} ${job.token}`);
        await this.#findEnded(session, running.filter((attempt) => outcomeOf(attempt) === 'stale' && this.#running.has(attempt) && !attempt.commitSent));
        for (const attempt of running) {
          const outcome = outcomeOf(attempt);
          if (outcome === 'current') attempt.leaseEnds = asked + this.#lease;
          // If the job is committed, or about to be, there is no lease any more.
          else if (this.#running.has(attempt) && !attempt.commitSent && !attempt.endedItself) attempt.cancel(outcome === 'expired' ? 'timeout' : 'lease');
        }
      });
    } catch (error) {
      // The missing connection has already been logged.
      if (this.control.session && !this.#over.signal.aborted) this.#logger.warn(`idemq: ${this.#queue}: heartbeat: ${textOf(error)}`);
    }
  }
}

/**
 * Runs the jobs that are ready, in the same way as a worker.
 * @param {import('../index.js').Connection} connection @param {string} queue
 * @param {import('../index.js').Handler | import('../index.js').OutsideHandler | import('../index.js').Handlers<any>} handler
 * @param {import('../index.js').WorkerOptions & { outside?: boolean }} [options]
 */
export async function drain(connection, queue, handler, options = {}) {
  checkOptions(options, { ...WORKER, outside: true }, 'drain');
  const { outside = false, ...own } = options;
  const worker = new Worker(connection, queue, { signals: false, ...own }, { once: true });
  return outside ? worker.runOutside(/** @type {any} */ (handler)) : worker.run(handler);
}
