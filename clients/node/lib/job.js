// An attempt: the job that its handler gets, and its time limit.

import { checkClient, checkId, checkIds, checkName, optionalInterval } from './arguments.js';
import { decoded, decodedResults, encoded } from './codec.js';
import { Cancelled, Snooze, Waiting, typed } from './errors.js';
import { json } from './enqueue.js';
import { finishedResult } from './handlers.js';
import { inJob, jobLog } from './logs.js';
import { ADD_PARENTS, AWAIT_EVENT, CHECKPOINT, PARENTS } from './statements.js';
import { step } from './step.js';
import { processing } from './trace.js';

/** Milliseconds that a handler may take to end after its signal has fired. In a drain, the process must end five seconds after the grace period, with its jobs released. */
const abandonAfter = 5000;
const abandonInDrain = 2000;

// setTimeout accepts at most 24 days, and fires at once for a longer time.
const longestTimer = 2 ** 31 - 1;

/**
 * A copy of a value that was decoded from JSON. A handler may change it without changing what the handler gets when it runs again. Other values than arrays and
 * plain objects, which a type parser of the application may have made, are not copied.
 * @param {any} value @returns {any}
 */
export function ownCopy(value) {
  if (Array.isArray(value)) return value.map(ownCopy);
  if (typeof value !== 'object' || value === null || Object.getPrototypeOf(value) !== Object.prototype) return value;
  // Unlike an assignment, this also copies a member named __proto__.
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, ownCopy(each)]));
}

/** The job that a handler gets. */
export class Job {
  /** @type {Attempt} */
  #attempt;

  /** @param {any} row of a claim @param {string} queue @param {Attempt} attempt */
  constructor(row, queue, attempt) {
    this.#attempt = attempt;
    this.queue = queue;
    /** @type {string} */
    this.id = row.id;
    /** @type {string} */
    this.token = row.token;
    /** @type {number} */
    this.attempt = row.attempt;
    /** @type {number} */
    this.maxAttempts = row.max_attempts;
    /** @type {any} */
    this.payload = row.payload;
    /** @type {Record<string, any>} */
    this.headers = row.headers ?? {};
    /** @type {string | null} */
    this.key = row.key;
    /** @type {string | null} */
    this.groupKey = row.group_key;
    /** @type {string | null} */
    this.kind = row.kind;
    /** @type {any} */
    this.checkpoint = row.checkpoint;
    /** @type {Date} */
    this.enqueuedAt = row.enqueued_at;
  }

  /** Time at which the handler will be cancelled. */
  get deadline() {
    return new Date(this.#attempt.ends);
  }

  /** Fires when the handler must stop. Its reason is a Cancelled. */
  get signal() {
    return this.#attempt.signal;
  }

  /** @type {import('../index.js').JobLog} */
  get log() {
    return this.#attempt.log;
  }

  /** @type {import('../index.js').Job['saveCheckpoint']} */
  async saveCheckpoint(data, client) {
    if (client !== undefined && client !== null) checkClient(client);
    const text = json(data, 'the checkpoint');
    const { codec } = this.#attempt;
    const values = [this.id, this.token, codec ? await encoded(codec, data, 'the checkpoint') : text];
    try {
      if (client) await this.#attempt.within('saveCheckpoint', client, (own) => own.query(CHECKPOINT, values));
      else await this.#attempt.apart('saveCheckpoint', (ask) => ask(CHECKPOINT, values));
    } catch (error) {
      throw typed(error);
    }
    this.checkpoint = JSON.parse(text);
    if (!client) this.#attempt.stored = text;
  }

  /** @type {import('../index.js').Job['awaitEvent']} */
  async awaitEvent(name, timeout) {
    const attempt = this.#attempt;
    const values = [this.id, this.token, checkName(name, 'name'), optionalInterval(timeout, 'timeout')];
    const undone = !!attempt.transaction?.used; // with the handler's transaction, unless that commits
    const [{ outcome, payload }] = await attempt.ask(AWAIT_EVENT, values);
    if (outcome === 'waiting') {
      attempt.released = !undone;
      throw (attempt.waiting = new Waiting(name, timeout));
    }
    if (outcome === 'arrived' && undone) attempt.arrived.push({ name, timeout });
    return { arrived: outcome === 'arrived', payload: attempt.codec ? await decoded(attempt.codec, payload) : payload };
  }

  /** @type {import('../index.js').Job['addParents']} */
  async addParents(child, parents) {
    const values = [checkId(child, 'child'), checkIds(parents, 'parents'), this.id, this.token];
    const locked = (await this.#attempt.ask(ADD_PARENTS, values, true)).filter(({ outcome }) => outcome === 'locked').map(({ id }) => id);
    // If this attempt went on and completed, the child would start without these parents.
    if (locked.length) throw new Snooze('1 s', `parents could not be added because another transaction is using them: ${locked.slice(0, 10).join(', ')}`);
  }

  /** @type {import('../index.js').Job['parents']} */
  async parents() {
    return decodedResults(this.#attempt.codec, await this.#attempt.ask(PARENTS, [this.id]));
  }

  /** @type {import('../index.js').Job['step']} */
  step(name, call, options = {}) {
    const warn = (/** @type {string} */ text) => this.#attempt.warn(`idemq: ${this.#attempt.name}: ${text}`);
    const answer = this.#attempt.step(name, () => this.#attempt.apart('step', (ask) => step(this, ask, name, call, options, warn, this.#attempt.redact, this.#attempt.codec)));
    answer.catch(() => {}); // of a step that is not awaited
    return answer;
  }
}

/** Runs a statement and returns its rows. @typedef {(text: string, values: unknown[], types?: any) => Promise<any[]>} Ask */

/** An attempt, from its claim to its end. */
export class Attempt {
  /** Created when it is first needed. @type {AbortController | undefined} */
  #controller;
  /** @type {import('./connection.js').Link | undefined} */
  #link;
  /** @type {(() => void) | undefined} */
  #onCancel;
  /** @type {((ms: number) => void) | undefined} */
  #abandonIn;
  /** @type {import('../index.js').JobLog | undefined} */
  #log;
  #notice;
  #timeoutName;
  /** Why the handler must stop. @type {Cancelled['why'] | undefined} */
  why;
  /** The reason of its signal. @type {Cancelled | undefined} */
  reason;
  /** Whether the handler was abandoned because it did not end in time, and whether it has ended since. */
  abandoned = false;
  ended = false;
  /** The client of a handler that has a transaction, and the transaction. @type {import('pg').ClientBase | undefined} */
  client;
  /** @type {import('./handler-client.js').HandlerTransaction | undefined} */
  transaction;
  /** The Waiting that was thrown in the handler, if it waits for an event, and whether the job has already been released to wait. @type {Waiting | undefined} */
  waiting;
  released = false;
  /** The latest checkpoint that is not undone with the handler's transaction, as JSON. @type {string | undefined} */
  stored;
  /** Events that the handler has received. @type {{ name: string, timeout: import('../index.js').Interval }[]} */
  arrived = [];
  /** Names of the steps that are under way. @type {Set<{ name: string }>} */
  #steps = new Set();
  /** Whether the handler has ended, so that it must begin no step. */
  #handled = false;
  /** Whether its payload and checkpoint have been decoded. */
  #decoded = false;
  /** Whether its commit was sent, and may have taken effect. */
  commitSent = false;
  /** Whether its handler may use a transaction but has not locked the job yet. When the lease ends, another attempt may then get the job. */
  unlocked = false;
  /** The session with which its lease ends. @type {import('./connection.js').Session | undefined} */
  leaseSession;
  /** When it was claimed, from Date.now(), and when its handler was called. @type {number} */
  claimedAt = 0;
  /** @type {number | undefined} */
  began;
  /** The session that claimed it. @type {import('./connection.js').Session | undefined} */
  claimSession;
  /** Whether the server knows that it waits for a free slot. */
  marked = false;
  /** Whether its lease was lost at the last check. */
  lost = false;
  /** Whether its handler has ended it through SQL, so that it has no lease any more. The handler continues. */
  endedItself = false;
  /** Whether metrics have counted it. */
  consumed = false;
  /** Whether it shares a transaction with others, and their span. */
  sharesSpan = false;
  /** OpenTelemetry's context of its handler. @type {import('@opentelemetry/api').Context | undefined} */
  processContext;
  /** The context of the producer (trace.js). @type {{ context: import('@opentelemetry/api').Context, span: import('@opentelemetry/api').SpanContext | undefined } | undefined} */
  sent;

  /**
   * @param {any} row of a claim @param {string} queue
   * @param {{
   *   asked: number, lease: number, timeout: number, ofQueue?: boolean, ofKind?: number, strict?: boolean,
   *   link?: import('./connection.js').Link, codec?: import('../index.js').Codec, warn?: (text: string) => void, logger?: import('../index.js').Logger,
   *   lines?: import('./logs.js').Lines, workerName?: string, redact?: (text: string) => string,
   * }} of asked: when the claim was sent; lease, timeout: milliseconds; ofQueue: whether the timeout is the queue's
   *   job_timeout, at which the server takes the job back; ofKind: the timeout of its kind; strict: whether a lease that may have ended always counts as lost, because
   *   the handler cannot lock its job; link: for checkpoints and steps of outside handlers
   */
  constructor(row, queue, { asked, lease, timeout, ofQueue = false, ofKind = Infinity, strict = false, link, codec, warn = () => {}, logger = console, lines, workerName = '', redact = (text) => text }) {
    this.row = row;
    this.codec = codec;
    this.warn = warn;
    this.logger = logger;
    /** The log lines of this attempt, if they are captured. */
    this.lines = lines;
    this.redact = redact;
    this.workerName = workerName;
    this.lease = lease;
    this.strict = strict;
    this.#link = link;
    /** Time at which the lease ends, unless a heartbeat is answered before. */
    this.leaseEnds = asked + lease;
    /** Milliseconds that the handler may take to end after its time is over, so that the outcome is reported before the server takes the job back. */
    this.#notice = ofQueue ? Math.min(abandonAfter, timeout / 10) : abandonAfter;
    const own = ofQueue ? timeout - this.#notice - Math.min(1000, timeout / 10) : timeout;
    this.timeout = Math.min(own, ofKind);
    this.#timeoutName = ofKind < own ? `timeout of kind ${row.kind ?? ''}`.trimEnd() : 'job_timeout';
    this.ends = Date.now() + this.timeout;
    this.job = new Job(row, queue, this);
  }

  get signal() {
    if (!this.#controller) {
      this.#controller = new AbortController();
      if (this.reason) this.#controller.abort(this.reason);
    }
    return this.#controller.signal;
  }

  get log() {
    return (this.#log ??= jobLog(this.job, this.logger, () => this.lines));
  }

  get name() {
    return `${this.job.queue} ${this.job.id}`;
  }

  /** Prepares another call of the handler, in a transaction if it has one. @param {import('./handler-client.js').HandlerTransaction} transaction @param {import('pg').ClientBase} client */
  restart(transaction, client) {
    this.transaction = transaction;
    this.client = client;
    this.waiting = undefined;
    this.released = false;
    this.arrived = [];
    this.unlocked = !transaction.touched;
    // A checkpoint that was saved in a transaction that has been rolled back does not count.
    this.job.payload = ownCopy(this.row.payload);
    this.job.headers = ownCopy(this.row.headers ?? {});
    this.job.checkpoint = this.stored === undefined ? ownCopy(this.row.checkpoint) : JSON.parse(this.stored);
  }

  /**
   * Runs the handler itself. If a step is still under way when it ends, the attempt fails, because the job must not be completed before its calls.
   * @template T @param {() => T | Promise<T>} handler @returns {Promise<T>}
   */
  async handle(handler) {
    this.#steps = new Set();
    this.#handled = false;
    try {
      if (this.codec) await this.#decode(this.codec);
      const result = await handler();
      for (const { name } of this.#steps) throw new Error(`the handler has ended while step ${name} was under way; await job.step`);
      return result;
    } finally {
      this.#handled = true;
    }
  }

  /** Decodes the job, before the handler is called for the first time. @param {import('../index.js').Codec} codec */
  async #decode(codec) {
    if (!this.#decoded) {
      const [payload, checkpoint] = [await decoded(codec, this.row.payload), await decoded(codec, this.row.checkpoint)];
      this.row = { ...this.row, payload, checkpoint };
      this.#decoded = true;
    }
    this.job.payload = ownCopy(this.row.payload);
    this.job.checkpoint = this.stored === undefined ? ownCopy(this.row.checkpoint) : JSON.parse(this.stored);
  }

  /** Runs a step. @template T @param {string} name @param {() => Promise<T>} fn @returns {Promise<T>} */
  async step(name, fn) {
    if (this.#handled) throw new Error('job.step was called after the handler had ended');
    const own = { name };
    const steps = this.#steps;
    steps.add(own);
    try {
      return await fn();
    } finally {
      steps.delete(own);
    }
  }

  /**
   * Calls fn with a function that runs statements, each committed by itself.
   * @template T @param {string} what @param {(ask: Ask) => Promise<T>} fn @returns {Promise<T>}
   */
  async apart(what, fn) {
    return this.transaction ? this.transaction.apart(what, fn) : fn(this.#ask);
  }

  /**
   * Calls fn with a client of the application. The handler's own transaction must not have locked the job, unless the client is the handler's.
   * @template T @param {string} what @param {import('../index.js').Queryable} client @param {(client: import('../index.js').Queryable) => Promise<T>} fn
   */
  async within(what, client, fn) {
    if (client !== this.client) {
      this.transaction?.refuseApart(what);
      await this.transaction?.unlock();
    }
    return fn(client);
  }

  /** @type {Ask} */
  #ask = async (...statement) => (await /** @type {import('./connection.js').Link} */ (this.#link).answer(...statement)).rows;

  /**
   * Runs a statement, in the handler's transaction if it has used that, or if this is a use of it.
   * @param {string} text @param {unknown[]} values @param {boolean} [use] @returns {Promise<any[]>}
   */
  async ask(text, values, use = false) {
    try {
      if (this.transaction && (use || this.transaction.used)) return (await /** @type {import('pg').ClientBase} */ (this.client).query(text, values)).rows;
      return await (this.transaction?.ask(text, values) ?? this.#ask(text, values));
    } catch (error) {
      throw typed(error);
    }
  }

  /** Called when the session to which the lease is attached has ended. A handler that has locked nothing is cancelled. */
  leaseSessionEnded() {
    if (this.unlocked && !this.commitSent) this.cancel('lease');
  }

  /** The error for a handler that must not lock its job any more. @returns {unknown} */
  get refusal() {
    if (this.unlocked && (this.leaseSession?.gone || Date.now() > this.leaseEnds)) this.cancel('lease');
    return this.why === 'lease' ? this.reason : undefined;
  }

  /** @param {Cancelled['why']} why */
  cancel(why) {
    if (this.why) {
      if (why === 'drain') this.#abandonIn?.(abandonInDrain);
      return;
    }
    this.why = why;
    const seconds = this.timeout / 1000;
    this.reason = new Cancelled(why, { lease: 'the lease was lost', timeout: `stopped after ${seconds} s (${this.#timeoutName})`, drain: 'the worker is stopping' }[why]);
    this.#controller?.abort(this.reason);
    this.#onCancel?.();
  }

  /**
   * Calls the handler within its time limit.  Settles with the handler, or some seconds after the signal if the handler
   * ignores it, in which case its result is ignored.
   * @template T @param {() => T | Promise<T>} handler @param {() => void} [onCancel] called when the signal fires
   * @returns {Promise<T>}
   */
  async call(handler, onCancel) {
    /** @type {NodeJS.Timeout | undefined} */
    let timer;
    /** @type {NodeJS.Timeout | undefined} */
    let kill;
    const arm = () => {
      const left = this.ends - Date.now();
      timer = setTimeout(() => (left > longestTimer ? arm() : this.cancel('timeout')), Math.min(Math.max(left, 0), longestTimer));
    };
    const given = new Promise((_, reject) => {
      this.#onCancel = () => {
        onCancel?.();
        this.#abandonIn?.({ timeout: this.#notice, drain: abandonInDrain, lease: abandonAfter }[/** @type {Cancelled['why']} */ (this.why)]);
      };
      this.#abandonIn = (ms) => {
        clearTimeout(kill);
        kill = setTimeout(() => {
          this.abandoned = true;
          reject(this.reason);
        }, ms);
      };
    });
    if (this.why) throw this.reason;
    if (this.row.unreadable) throw this.row.unreadable;
    this.began = Date.now();
    this.ends = this.began + this.timeout;
    arm();
    const run = async () => finishedResult(await handler());
    const running = inJob(this.job, () => (this.sharesSpan ? run() : processing([this], run)));
    const end = () => void (this.ended = true);
    running.then(end, end);
    try {
      return await /** @type {Promise<T>} */ (Promise.race([running, given]));
    } finally {
      this.#onCancel = this.#abandonIn = undefined;
      clearTimeout(timer);
      clearTimeout(kill);
    }
  }
}
