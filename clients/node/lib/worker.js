// A worker: claims jobs of its queues, waits for them, renews leases and drains.  consumer.js has what belongs to one queue, and
// transactions.js and outside.js run the claimed jobs.
//
// Connections: one claims jobs and renews leases, one sleeps in idemq.wait, and the others belong to the jobs.
// So heartbeats are never delayed by a job's statement or by a lock.  The queues share all of them, so a queue without work has none.
//
// Claims go in rounds.  A round visits each queue that has a free slot, and then the worker sleeps until one of these queues has a job.
// A busy queue cannot delay another one, because each has its own slots.

import { randomUUID } from 'node:crypto';
import { setMaxListeners } from 'node:events';
import { checkName, checkSeconds, optionalBoolean, optionalName } from './arguments.js';
import { Address, Link, Server, answerTimeout, hosts, shortestAnswerTimeout, sleep, withTimeout } from './connection.js';
import { Consumer } from './consumer.js';
import { sqlstate, textOf, typed } from './errors.js';
import { Inside, Outside, checkQueues } from './handlers.js';
import { Hooks } from './hooks.js';
import { optionalMode, redactor } from './logs.js';
import { INSIDE, QUEUES_WORKER, WORKER, checkOptions } from './options.js';
import { OutsideLinks } from './outside.js';
import { onSignals, stopWhenHung } from './signals.js';
import { watchSilence } from './silence.js';
import { CLAIM, END_WAIT, ENDED_THEMSELVES, HEARTBEAT, RELEASE_MANY, SETTINGS, WAIT, WAIT_ANY, jobFromRow } from './statements.js';
import { TransactionSlots } from './transactions.js';
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
/** Milliseconds of pause after a refused claim or wait, and after a lost connection. */
const errorPause = 5000;
const lostPause = 200;

/** Options for a shard of a cluster: its address, the slots that it shares, and whether a refused first claim ends the run.
 * @typedef {{ address: Address, slots: import('./handler-slots.js').ShardSlots, refused: () => boolean }} ShardOptions */
/** @typedef {import('./job.js').Attempt} Attempt */

/** @type {import('../index.js').Logger} */
export const quiet = { info: () => {}, warn: console.warn, error: console.error };

export class Worker {
  #address;
  #waitAddress;
  #shard;
  /** The queues with their handlers, unless run gets the handler. @type {Map<string, Inside | Outside> | undefined} */
  #ways;
  #names;
  #options;
  #logger;
  #hooks;
  #redact;
  #over = new AbortController();
  #stop = new AbortController();
  /** @type {Consumer[]} */
  #consumers = [];
  /** Attempts whose outcome has not been reported. @type {Set<Attempt>} */
  #running = new Set();
  /** Queues for which the worker sleeps. @type {Consumer[]} */
  #sleepers = [];
  #changed = () => {};
  /** How often a slot has become free. */
  #ends = 0;
  #heartbeatNow = () => {};
  /** Whether to send heartbeats at once, because an attempt may have ended. */
  #told = false;
  #settingsRead = 0;
  /** @type {unknown} */
  #fatal;
  #ran = false;
  /** @type {Record<string, number>} */
  #counts = {};
  /** @type {NodeJS.Timeout | undefined} */
  #graceTimer;
  /** Attempts whose handlers were abandoned. @type {Attempt[]} */
  #abandoned = [];
  /** Time at which the process was told to stop, from Date.now(). @type {number | undefined} */
  #stoppedAt;
  #graceEnded = false;
  #endWait = async () => {};
  #endingWait = Promise.resolve();
  /** Settles when the last wait has ended. @type {Promise<unknown>} */
  #waiting = Promise.resolve();

  /**
   * @param {import('../index.js').Connection} connection @param {string | Record<string, any>} queues
   * @param {import('../index.js').WorkerOptions} [options] @param {{ once?: boolean, shard?: ShardOptions }} [internal]
   */
  constructor(connection, queues, options = {}, { once = false, shard } = {}) {
    if (typeof queues === 'string') {
      checkOptions(options, WORKER, 'Worker');
      new Inside(() => {}, queueOptions(options)); // checks them
      this.#names = [checkName(queues, 'queue')];
    } else {
      this.#ways = checkQueues(queues);
      this.#names = [...this.#ways.keys()];
      const own = Object.keys(options ?? {}).find((name) => Object.hasOwn(INSIDE, name) && !Object.hasOwn(QUEUES_WORKER, name));
      if (own !== undefined) throw new TypeError(`with several queues, pass ${own} to Inside or Outside`);
      checkOptions(options, QUEUES_WORKER, 'Worker');
    }
    optionalName(options.name, 'name');
    optionalBoolean(options.signals, 'signals');
    const { giveUpAfter } = options;
    if (giveUpAfter !== undefined) checkSeconds(giveUpAfter, 'giveUpAfter');
    const { grace = 30, signals = true, logger = quiet } = options;
    checkSeconds(grace, 'grace', true);
    if (!['info', 'warn', 'error'].every((level) => typeof (/** @type {any} */ (logger)?.[level]) === 'function')) throw new TypeError('logger must have the functions info, warn and error');
    const [first, ...more] = this.#names;
    const application = `idemq ${first}${more.length > 0 ? ` and ${more.length} more` : ''}`;
    const named = (/** @type {import('../index.js').Connection} */ to) => hosts(to).map((config) => ({ application_name: application, ...config }));
    this.#address = shard?.address ?? new Address(named(connection));
    this.#waitAddress = options.waitConnection === undefined ? this.#address : new Address(named(options.waitConnection));
    this.#shard = shard;
    this.#logger = logger;
    this.#hooks = new Hooks(options.hooks, logger);
    this.#redact = redactor(options.redact, logger);
    optionalMode(options.captureLogs, 'captureLogs');
    this.#options = { ...options, name: options.name ?? `node ${process.pid}`, grace, signals, once };
    // Each of the jobs that run at once adds a listener.
    setMaxListeners(0, this.#over.signal, this.#stop.signal);
    const life = { over: this.#over.signal, retryConnect: !once, worker: randomUUID() };
    this.server = new Server(this.#address, logger, life);
    this.control = new Link(this.server, (session) => this.#settings(session));
    this.waiter = new Link(new Server(this.#waitAddress, logger, { ...life, over: this.#stop.signal }), undefined, this.#over.signal);
  }

  get queue() {
    return this.#names.join(', ');
  }

  get queues() {
    return [...this.#names];
  }

  get name() {
    return this.#options.name;
  }

  /** @param {any} [handler] */
  async run(handler) {
    if (this.#ways && handler !== undefined) throw new TypeError('this worker already has its handlers; call run() without one');
    if (!this.#ways && handler === undefined) throw new TypeError('run() needs a handler');
    return this.#run(this.#ways ?? new Map([[this.#names[0], new Inside(handler, queueOptions(this.#options))]]));
  }

  /** @param {any} handler */
  async runOutside(handler) {
    if (this.#ways) throw new TypeError('this worker already has its handlers; use Outside(handler) for the queue');
    const { batch: _, ...own } = queueOptions(this.#options);
    return this.#run(new Map([[this.#names[0], new Outside(handler, own)]]));
  }

  /**
   * Stops claiming. run ends when the running jobs have ended, or five seconds after the grace period, whatever the state of the connections.
   * A second call ends the grace period.
   */
  stop() {
    if (this.#stop.signal.aborted) {
      if (this.#ran && this.#stoppedAt !== undefined && !this.#over.signal.aborted) this.#graceOver();
      return;
    }
    this.#stoppedAt = Date.now();
    this.#stop.abort();
    // A wait behind a pooler must not be left before it has ended.
    if (this.#sleepers.length === 0) this.#changed();
    if (!this.#ran) return;
    this.#endingWait = this.#endWait();
    if (this.#running.size > 0) this.#logger.info(`idemq: ${this.queue}: stopping: ${this.#running.size} jobs have ${this.#options.grace} s to finish`);
    this.#graceTimer = setTimeout(() => this.#graceOver(), Math.min(this.#options.grace * 1000, 2 ** 31 - 1));
  }

  #graceOver() {
    this.#graceEnded = true;
    clearTimeout(this.#graceTimer);
    for (const attempt of this.#running) attempt.cancel('drain');
    // Time to release the jobs, if a server is there.
    this.#graceTimer = setTimeout(() => this.#over.abort(), lastWords);
  }

  /** @param {Map<string, Inside | Outside>} ways @returns {Promise<Record<string, number>>} */
  async #run(ways) {
    if (this.#ran) throw new Error('this worker has already run; create a new one');
    const { signals, name, once } = this.#options;
    const outside = [...ways.values()].filter((way) => way instanceof Outside);
    const slots = new TransactionSlots(this.server);
    const links = new OutsideLinks(this.server, outside.reduce((sum, { concurrency }) => sum + concurrency, 0));
    /** @type {import('./consumer.js').Shared} */
    const shared = {
      name, logger: this.#logger, jobLogger: this.#options.logger ?? console, captureLogs: this.#options.captureLogs ?? 'off', redact: this.#redact, hooks: this.#hooks, server: this.server, control: this.control, stopping: this.#stop.signal, once,
      pooled: this.#waitAddress !== this.#address, slots, links, shardSlots: this.#shard?.slots, running: this.#running, counts: this.#counts,
      freed: (consumer) => this.#freed(consumer),
      abandoned: (attempt) => (this.#abandoned = [...this.#abandoned.filter((each) => !each.ended), attempt]),
      failed: (error) => {
        if (once) this.#fatal ??= error;
      },
    };
    this.#consumers = [...ways].map(([queue, way]) => new Consumer(queue, way, shared));

    this.#ran = true;
    await this.#hooks.started(this);
    const unheard = signals ? onSignals(() => this.stop()) : () => {};
    const heartbeats = this.#sendHeartbeats();
    const report = new WorkerReport(this.control, () => ({
      name,
      queues: this.#names,
      concurrency: this.#consumers.reduce((sum, { way }) => sum + way.concurrency * way.batch, 0),
      jobs: [...this.#running].map(({ job }) => job.id),
      done: Object.values(this.#counts).reduce((sum, count) => sum + count, 0),
    }));
    const reporting = once ? undefined : report.reportRegularly(this.#over.signal);
    const givingUp = this.#giveUp();
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
      await this.#dispatch();
    } finally {
      while (this.#busy > 0) await this.#listen(this.#change());
      // If a report is interrupted, it could be written after the last one.
      await Promise.race([this.#endingWait, sleep(1000, this.#over.signal)]);
      await report.reportStopping(this.#over.signal);
      this.#stop.abort();
      this.#over.abort();
      clearTimeout(this.#graceTimer);
      clearTimeout(waitTimer);
      unheard();
      await Promise.all([heartbeats, reporting, watching, givingUp, slots.end(), links.end(), this.control.end(), this.waiter.end()]);
      await this.#hooks.stopped(this, this.#counts, this.#stoppedAt === undefined ? undefined : this.#stoppedAt + 1000 * this.#options.grace + lastWords);
      if (this.#abandoned.some((each) => !each.ended)) stopWhenHung(() => this.#logger.warn(`idemq: ${this.queue}: a handler is still running although its job was released, so the process will exit`));
    }
    if (this.#fatal) throw this.#fatal;
    return this.#counts;
  }

  /** Ends the worker if it has had no connection for giveUpAfter. */
  async #giveUp() {
    const after = 1000 * (this.#options.giveUpAfter ?? Infinity);
    let lostAt = Date.now();
    // An idle worker only tries to connect its wait.
    const servers = [this.server, this.waiter.server];
    while (after < Infinity && !this.#over.signal.aborted) {
      if (this.control.session) lostAt = Date.now();
      else if (Math.min(Date.now() - lostAt, Math.max(...servers.map(({ downFor }) => downFor))) >= after) {
        this.#fatal ??= servers.find(({ down }) => down)?.error;
        this.#logger.error(`idemq: ${this.queue}: the worker gives up, because it has had no connection for ${this.#options.giveUpAfter} s`);
        while (!this.#over.signal.aborted && !this.#graceEnded) this.stop();
        return;
      }
      await sleep(Math.min(after / 4, 1000), this.#over.signal);
    }
  }

  /** Number of slots in use. */
  get #busy() {
    return this.#consumers.reduce((sum, { busy, ahead }) => sum + busy + (ahead?.pending ?? 0), 0);
  }

  /** The shortest lease in milliseconds. */
  get #lease() {
    return Math.min(...this.#consumers.map(({ lease }) => lease));
  }

  /** Claims jobs for free slots, in rounds, and waits for jobs. */
  async #dispatch() {
    const consumers = [...this.#consumers];
    while (!this.#stop.signal.aborted) {
      const ready = consumers.filter((consumer) => (consumer.free > 0 || consumer.refills) && !consumer.empty && !consumer.paused);
      for (const consumer of ready) await this.#claimFor(consumer);
      consumers.push(.../** @type {Consumer[]} */ (consumers.splice(0, 1))); // the next round begins with the next queue
      if (ready.length > 0) continue;
      if (this.#options.once && this.#busy === 0 && !consumers.some(({ paused }) => paused)) return;
      await this.#rest();
    }
  }

  /** Claims jobs for the free slots of a queue. @param {Consumer} consumer */
  async #claimFor(consumer) {
    if (this.#stop.signal.aborted) return;
    const ends = this.#ends;
    try {
      const attempts = await this.#acquireSlots(consumer, (slots) => this.#claim(consumer, slots * consumer.batch));
      consumer.known = true;
      // In a drain, a job that has ended meanwhile may have added jobs after the claim.
      consumer.empty = attempts.length === 0 && (!this.#options.once || ends === this.#ends);
      if (consumer.ahead) consumer.ahead.accept(attempts.splice(0));
      while (attempts.length > 0) consumer.start(attempts.splice(0, consumer.batch));
    } catch (error) {
      if (this.#stop.signal.aborted) return;
      // The caller must fix an error at startup. A later error may be fixed meanwhile.
      const refused = !consumer.known && sqlstate(error) && !/^(08|25|40|53|57)/.test(sqlstate(error));
      if (this.#options.once || (refused && (this.#shard?.refused() ?? true))) throw typed(this.#withoutExtension(error));
      if (error === this.control.sessionError) return sleep(lostPause, this.#stop.signal);
      this.#trouble(consumer.queue, error);
      consumer.pausedUntil = Date.now() + errorPause;
    }
  }

  /** Logs an error of a claim or a wait. @param {string} queues @param {unknown} error */
  #trouble(queues, error) {
    this.#logger.error(`idemq: ${this.#address.name}${queues}: ${textOf(this.#withoutExtension(error))}; trying again in ${errorPause / 1000} s`);
  }

  /** Called when a slot of a queue is free again. @param {Consumer} consumer */
  #freed(consumer) {
    this.#ends++;
    // In a drain, the job may have added jobs to other queues, and the worker does not sleep in the server.
    if (this.#options.once) this.#consumers.forEach((each) => (each.empty = false));
    if (this.#sleepers.includes(consumer)) return;
    consumer.empty = false;
    this.#changed();
  }

  /** Sleeps until a queue with a free slot may have a job, a queue gets its first free slot, or a pause ends. */
  async #rest() {
    const sleepers = this.#options.once ? [] : this.#consumers.filter((consumer) => consumer.free > 0 && !consumer.paused);
    const change = this.#change();
    const pauseEnds = Math.min(...this.#consumers.filter(({ paused }) => paused).map(({ pausedUntil }) => pausedUntil));
    const timer = Number.isFinite(pauseEnds) ? setTimeout(() => this.#changed(), pauseEnds - Date.now() + 1) : undefined;
    this.#sleepers = sleepers;
    try {
      if (sleepers.length > 0) {
        const ready = await this.#unless(change, this.#wait(sleepers));
        if (ready || !change.over) sleepers.forEach((consumer) => (consumer.empty = false));
      } else {
        await this.#listen(change);
      }
    } catch (error) {
      if (this.#stop.signal.aborted) return;
      sleepers.forEach((consumer) => (consumer.empty = false));
      if (error === this.waiter.sessionError) return sleep(lostPause, this.#stop.signal);
      // The claims find out which of several queues is the cause.
      if (sleepers.length > 1) return sleep(1000, this.#stop.signal);
      this.#trouble(sleepers[0].queue, error);
      await sleep(errorPause, this.#stop.signal);
    } finally {
      clearTimeout(timer);
      this.#sleepers = [];
    }
  }

  /** The next change: a slot is free, a pause ends, or the worker that does not wait for jobs is told to stop. */
  #change() {
    const change = { over: false, happened: Promise.resolve() };
    change.happened = new Promise((resolve) => {
      this.#changed = () => {
        change.over = true;
        resolve();
      };
    });
    // It was told before.
    if (this.#stop.signal.aborted && this.#busy === 0) this.#changed();
    return change;
  }

  /**
   * Listens for the end of an attempt, in the session that otherwise waits for jobs, until something changes. A worker that is stopping does
   * not open a session for that.
   * @param {{ over: boolean, happened: Promise<void> }} change
   */
  async #listen(change) {
    await Promise.race([change.happened, sleep(listenAfter, this.#stop.signal)]);
    const stopping = this.#stop.signal.aborted;
    while (!change.over && (this.waiter.session?.hearsEnds ?? !stopping)) {
      // Until then, heartbeats find the end of an attempt.
      const pause = () => sleep(1000, stopping ? this.#over.signal : this.#stop.signal);
      await this.#unless(change, this.#wait([]).catch(pause));
    }
    await change.happened;
  }

  /**
   * Awaits a wait. If something changes before it has ended, the server is asked to end it.
   * @template T @param {{ happened: Promise<void> }} change @param {Promise<T>} waiting
   */
  async #unless(change, waiting) {
    const first = await Promise.race([change.happened.then(() => true), waiting.then(() => false)]);
    const { session } = this.waiter;
    if (!first) return waiting;
    const ended = waiting.catch(() => undefined);
    if (!session?.direct) return undefined; // it times out
    const limit = sleep(waitEnds, this.#over.signal);
    await Promise.race([this.control.rows(END_WAIT, [session.process]).catch(() => {}), limit]);
    return Promise.race([ended, limit]);
  }

  /**
   * Waits until one of these queues has work, an attempt of this worker is cancelled or taken back, or the wait times out. Without queues, only
   * for its attempts.
   * @param {Consumer[]} consumers @returns {Promise<boolean>} whether there is work
   */
  #wait(consumers) {
    const queues = consumers.map(({ queue }) => queue);
    const waiting = this.waiter.withSession(async (session) => {
      if (queues.length === 0 ? !session.hearsEnds : this.#stop.signal.aborted) return false;
      const longest = session.direct ? longestWait : longestPooledWait;
      const ms = session.statementTimeout > 0 ? Math.min(longest, 0.8 * session.statementTimeout) : longest;
      const values = queues.length > 1 ? queues : queues[0] ?? null;
      const { rows } = await withTimeout(ms + 10_000, session, session.query(queues.length > 1 ? WAIT_ANY : WAIT, [values, `${ms} ms`]));
      if (rows[0].ready || !session.hearsEnds || this.#running.size === 0) return rows[0].ready;
      this.#told = true;
      this.#heartbeatNow();
      return false;
    });
    this.#waiting = waiting.catch(() => {});
    return waiting;
  }

  /**
   * Claims jobs for the free slots. The slots of a shard are shared by all shards.
   * @param {Consumer} consumer @param {(slots: number) => Promise<Attempt[]>} claim
   */
  async #acquireSlots({ free, batch }, claim) {
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
    return !this.#consumers.some(({ known }) => known) && (this.server.down || this.waiter.server.down);
  }

  /** Called when the address of a shard has changed. Wakes up a waiting link; other links find out by themselves. */
  moved() {
    this.waiter.session?.destroy();
  }

  /** @param {Consumer} consumer @param {number} jobs @returns {Promise<Attempt[]>} */
  #claim(consumer, jobs) {
    return this.control.withSession(async (session) => {
      if (Date.now() - this.#settingsRead > settingsMaxAge) await withTimeout(this.control.answerTimeout, session, this.#settings(session));
      if (!consumer.ahead) return this.#claimOn(session, consumer, jobs);
      return consumer.claiming(0, async (most) => (most === 0 ? [] : this.#claimOn(session, consumer, most)));
    }, this.#stop.signal);
  }

  /** @param {import('./connection.js').Session} session @param {Consumer} consumer @param {number} most @returns {Promise<Attempt[]>} */
  async #claimOn(session, consumer, most) {
    const asked = Date.now();
    const answer = await withTimeout(this.control.answerTimeout, session, session.send([{ ...CLAIM, values: consumer.claimArguments(session, most) }]));
    if (answer.error) throw answer.error;
    const rows = answer.rows[0].map((fields) => jobFromRow(session, fields, 0));
    if (consumer.ahead) consumer.ahead.dry = rows.length < most;
    if (!this.#stop.signal.aborted || rows.length === 0) return consumer.begun(rows, asked, session);
    await withTimeout(this.control.answerTimeout, session, session.query(RELEASE_MANY, [rows.map((row) => row.id), rows.map((row) => row.token)]));
    return [];
  }

  /** The error, replaced by a clearer one if the database does not have the extension. @param {unknown} error @returns {unknown} */
  #withoutExtension(error) {
    if (!['3F000', '42P01'].includes(sqlstate(error))) return error;
    return Object.assign(new Error(`the database "${this.#address.database}" does not have idemq: run CREATE EXTENSION idemq in it`, { cause: error }), { code: sqlstate(error) });
  }

  /** Reads the settings of the queues. @param {import('./connection.js').Session} session */
  async #settings(session) {
    const { rows } = await session.query(SETTINGS, [this.#names, this.#consumers.map(({ way }) => way.lease)]);
    this.#settingsRead = Date.now();
    const before = this.#lease;
    // For a queue that does not exist, the claim reports that.
    for (const row of rows) this.#consumers.find(({ queue }) => queue === row.name)?.configure(row);
    // Send the next heartbeat according to the new lease.
    if (this.#lease !== before) this.#heartbeatNow();
    // A heartbeat is sent after a third of the lease, and given up after another third. The last third is left for a new connection.
    this.control.answerTimeout = Math.min(Math.max(this.#lease / 3, shortestAnswerTimeout), answerTimeout);
  }

  /** Renews leases until the end. */
  async #sendHeartbeats() {
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
        if ((attempt.strict || attempt.unlocked) && Date.now() > attempt.leaseEnds && this.#running.has(attempt) && !attempt.commitSent) attempt.cancel('lease');
      }
    }
    await asking;
  }

  /** Marks stale attempts that have ended themselves. A transaction can only be rolled back, so its attempt is not among them. @param {import('./connection.js').Session} session @param {Attempt[]} stale */
  async #findEnded(session, stale) {
    if (stale.length === 0) return;
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
        const { rows } = await withTimeout(this.control.answerTimeout, session, session.query(HEARTBEAT, [running.map(({ job }) => job.id), running.map(({ job }) => job.token)]));
        const outcomes = new Map(rows.map((row) => [`${row.id} ${row.token}`, row.outcome]));
        const outcomeOf = (/** @type {Attempt} */ { job }) => outcomes.get(`${job.id} ${job.token}`);
        await this.#findEnded(session, running.filter((attempt) => attempt.strict && outcomeOf(attempt) === 'stale' && this.#running.has(attempt) && !attempt.commitSent));
        for (const attempt of running) {
          const outcome = outcomeOf(attempt);
          if (outcome === 'current') attempt.leaseEnds = asked + attempt.lease;
          // If the job is committed, or about to be, there is no lease any more.
          else if (this.#running.has(attempt) && !attempt.commitSent && !attempt.endedItself) attempt.cancel(outcome === 'expired' ? 'timeout' : 'lease');
        }
      });
    } catch (error) {
      // The missing connection has already been logged.
      if (this.control.session && !this.#over.signal.aborted) this.#logger.warn(`idemq: ${this.queue}: heartbeat: ${textOf(error)}`);
    }
  }
}

/** The options of a worker for one queue that belong to the queue. @param {Record<string, any>} options */
function queueOptions(options) {
  return Object.fromEntries(Object.keys(INSIDE).filter((name) => options[name] !== undefined).map((name) => [name, options[name]]));
}

/**
 * Runs the jobs that are ready, in the same way as a worker.
 * @param {import('../index.js').Connection} connection @param {any} queues @param {any[]} more the handler, if queues is the name of one, and options
 * @returns {Promise<Record<string, number>>}
 */
export async function drain(connection, queues, ...more) {
  const handler = typeof queues === 'string' ? more.shift() : undefined;
  const [options = {}] = more;
  checkOptions(options, { ...WORKER, outside: true }, 'drain');
  const { outside = false, ...own } = options;
  const worker = new Worker(connection, queues, { signals: false, ...own }, { once: true });
  return outside ? worker.runOutside(handler) : worker.run(handler);
}
