// An attempt at a job: what its handler sees of it, and the time that it has.

import { checkName, optionalInterval } from './arguments.js';
import { Cancelled, Waiting, typed } from './errors.js';
import { json } from './enqueue.js';
import { finishedResult } from './handlers.js';
import { AWAIT_EVENT, CHECKPOINT, PARENTS } from './statements.js';
import { step } from './step.js';
import { traced } from './trace.js';

/** How long a handler whose signal has fired may take to end: its process is to end five seconds after the grace, jobs given back. */
const abandonAfter = 5000;
const abandonInDrain = 2000;

// setTimeout takes 24 days at most, and fires at once for more.
const longestTimer = 2 ** 31 - 1;

/** What a handler is given. */
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
    this.state = row.checkpoint;
    /** @type {Date} */
    this.enqueuedAt = row.enqueued_at;
  }

  /** When the handler will be cancelled. */
  get deadline() {
    return new Date(this.#attempt.ends);
  }

  /** Fires when the handler is to stop: its reason is a Cancelled. */
  get signal() {
    return this.#attempt.signal;
  }

  /**
   * Stores how far the job came; the next attempt finds it in `state`.
   * @param {unknown} data
   */
  async checkpoint(data) {
    const link = this.#attempt.outside('checkpoint');
    const text = json(data, 'the checkpoint');
    try {
      await link.answer(CHECKPOINT, [this.id, this.token, text]);
    } catch (error) {
      throw typed(error);
    }
    this.state = JSON.parse(text);
  }

  /** @type {import('../index.js').Job['awaitEvent']} */
  async awaitEvent(name, timeout) {
    const values = [this.id, this.token, checkName(name, 'name'), optionalInterval(timeout, 'timeout')];
    const [{ outcome, payload }] = await this.#attempt.ask('awaitEvent', AWAIT_EVENT, values);
    if (outcome === 'waiting') throw (this.#attempt.waiting = new Waiting(name, timeout));
    if (outcome === 'arrived') this.#attempt.arrived.push({ name, timeout });
    return { arrived: outcome === 'arrived', payload };
  }

  /** @type {import('../index.js').Job['parents']} */
  async parents() {
    return this.#attempt.ask('parents', PARENTS, [this.id]);
  }

  /** @type {import('../index.js').Job['step']} */
  step(name, call, options = {}) {
    return step(this, this.#attempt.outside('step'), name, call, options, (text) => this.#attempt.warn(`idemq: ${this.#attempt.name}: ${text}`));
  }
}

/** An attempt, from its claim to its end. */
export class Attempt {
  /** Made when somebody asks for it. @type {AbortController | undefined} */
  #controller;
  /** @type {import('./connection.js').Link | undefined} */
  #link;
  /** @type {(() => void) | undefined} */
  #onCancel;
  /** @type {((ms: number) => void) | undefined} */
  #abandonIn;
  #notice;
  /** Why the handler is to stop. @type {Cancelled['why'] | undefined} */
  why;
  /** The same, for its signal. @type {Cancelled | undefined} */
  reason;
  /** Whether a handler was left that did not end in time; and whether it has ended since. */
  abandoned = false;
  ended = false;
  /** Of a handler that has a transaction: its client. @type {import('pg').ClientBase | undefined} */
  client;
  /** Thrown in the handler: it waits for an event. @type {Waiting | undefined} */
  waiting;
  /** Events that the handler has heard. @type {{ name: string, timeout: import('../index.js').Interval }[]} */
  arrived = [];
  /** Whether its commit was sent, and perhaps done. */
  commitSent = false;
  /** Whether its handler may use a transaction, and nothing is locked yet: when the lease ends, somebody else may have the job. */
  unlocked = false;
  /** The session with which its lease ends. @type {import('./connection.js').Session | undefined} */
  leaseSession;
  /** Whether its lease was lost when somebody looked last. */
  lost = false;

  /**
   * @param {any} row of a claim @param {string} queue
   * @param {{ asked: number, lease: number, timeout: number, ofQueue?: boolean, link?: import('./connection.js').Link, warn?: (text: string) => void }} of
   *   asked: when the claim was sent; lease, timeout: milliseconds; ofQueue: it is the queue's job_timeout, at which the server takes the job
   *   back; link: for checkpoints and steps of outside handlers
   */
  constructor(row, queue, { asked, lease, timeout, ofQueue = false, link, warn = () => {} }) {
    this.row = row;
    this.warn = warn;
    this.#link = link;
    /** Without a heartbeat that was answered, the lease may end then. */
    this.leaseEnds = asked + lease;
    /** How long its handler may take to end when its time is over: so that what became of it is said before the server takes the job back. */
    this.#notice = ofQueue ? Math.min(abandonAfter, timeout / 10) : abandonAfter;
    this.timeout = ofQueue ? timeout - this.#notice - Math.min(1000, timeout / 10) : timeout;
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

  get name() {
    return `${this.job.queue} ${this.job.id}`;
  }

  /** The link for outside effects. @param {string} what @returns {import('./connection.js').Link} */
  outside(what) {
    if (!this.#link) throw new Error(`job.${what} is only for runOutside: in run, the handler's effects roll back with its transaction`);
    return this.#link;
  }

  /** A statement, in the handler's transaction if it has one. @param {string} what @param {string} text @param {unknown[]} values @returns {Promise<any[]>} */
  async ask(what, text, values) {
    try {
      return (await (this.client ? this.client.query(text, values) : this.outside(what).answer(text, values))).rows;
    } catch (error) {
      throw typed(error);
    }
  }

  /** The session has ended with which its lease ends: a handler that has locked nothing is told. */
  leaseSessionEnded() {
    if (this.unlocked && !this.commitSent) this.cancel('lease');
  }

  /** Why a handler that has locked nothing may not begin to. @returns {unknown} */
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
    this.reason = new Cancelled(why, { lease: 'the lease was lost', timeout: `stopped after ${seconds} s (job_timeout)`, drain: 'the worker ends' }[why]);
    this.#controller?.abort(this.reason);
    this.#onCancel?.();
  }

  /**
   * Calls the handler, for its time at most.  Settles with it, or some seconds later than the signal when it goes on
   * regardless: what it answers then is not heard.
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
    this.ends = Date.now() + this.timeout;
    arm();
    const running = traced(this.job, async () => finishedResult(await handler()));
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
