// The client that a handler of Worker.run gets: a proxy for the client of pg.
//
// Its transaction begins at the first use: the first statement, cursor or COPY waits for BEGIN and the lock of the job.  Statements that
// would end the transaction are refused.  So is everything after the handler has ended, or after the lease has expired before the job was locked.
//
// Before the first use, the calls of job (steps, checkpoints, events) are committed by themselves on the same session.  So a job never needs a
// second connection, and a step that waits for a lock or a standby delays no heartbeat.

import { AsyncLocalStorage } from 'node:async_hooks';
import { broken } from './connection.js';

/** Milliseconds after the end of its handler in which code that was not awaited may continue to read a cursor. */
const halfReadTimeout = 1000;
/** The savepoint in which code runs. Savepoints that it starts are nested. @type {AsyncLocalStorage<object>} */
const currentSavepoint = new AsyncLocalStorage();
const ENDS_TRANSACTION = /^(?:\s|;|--[^\n]*(?:\n|$)|\/\*[^]*?\*\/)*(begin|start\s+transaction|commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:work\s+|transaction\s+)?to\b))\b/i;

/** @typedef {import('./connection.js').Session} Session */

/** Ends a batch, because one of its jobs must run alone. */
export class BatchEnded extends Error {}

/**
 * The transaction of some jobs on one session. It begins at its first use, or has begun when it is created.
 */
export class HandlerTransaction {
  /** @type {Promise<void> | undefined} */
  #beginning;
  /** The error that prevented it from beginning. @type {unknown} */
  failed;
  /** Time of its first use, from performance.now(). @type {number | undefined} */
  usedAt;
  /** Uses that wait for the transaction to begin, and then run in order. */
  waiting = 0;
  /** Whether the worker itself is using the handler's client, so that a wrapper that the handler has put around query sees the ROLLBACK. */
  ending = false;
  /** Cursors of the handlers. A cursor that is only partly read never ends. @type {Set<{ state?: string }>} */
  cursors = new Set();
  /** Whether the handlers have ended. */
  over = false;
  /** The first mistake of the handler, after which its attempt fails even if it has caught the error. @type {Error | undefined} */
  misuse;
  /** Number of statements that are committed by themselves, and of those that have not been answered. */
  apartCalls = 0;
  asking = 0;
  /** When those have been answered. @type {Promise<void>} */
  #asked = Promise.resolve();
  /** Calls of job that the handler must await before it uses its client. @type {string[]} */
  #calls = [];

  /**
   * @param {Session} session @param {import('./job.js').Attempt[]} jobs
   * @param {{ begin: () => Promise<void>, begun: boolean, control: import('./connection.js').Link }} of begin: begins the transaction; begun: whether
   *   the session is already in it; control: the worker's link, used if the session is lost
   */
  constructor(session, jobs, { begin, begun, control }) {
    this.session = session;
    this.jobs = jobs;
    this.begun = begun;
    this.start = begin;
    this.control = control;
  }

  /** Whether calls of job belong to this transaction: the handler has used its client, or shares the transaction with others. */
  get used() {
    return this.usedAt !== undefined || this.jobs.length > 1;
  }

  /** Whether there is anything to commit or roll back. */
  get touched() {
    return this.begun || this.#beginning !== undefined;
  }

  /** Begins the transaction, once. @returns {Promise<void>} */
  begin() {
    if (this.begun) return Promise.resolve();
    return (this.#beginning ??= this.#asked.then(this.start).then(
      () => {
        this.begun = true;
      },
      (error) => {
        this.failed = error;
        throw error;
      },
    ));
  }

  /**
   * Calls fn with a function that runs statements, each committed by itself. Throws after the first use, and in a batch.
   * @template T @param {string} what @param {(ask: import('./job.js').Ask) => Promise<T>} fn @returns {Promise<T>}
   */
  async apart(what, fn) {
    this.refuseApart(what);
    this.#calls.push(what);
    try {
      return await fn(this.ask);
    } finally {
      this.#calls.splice(this.#calls.indexOf(what), 1);
    }
  }

  /** Throws if the handler has used its client, and if other jobs share its transaction, which then run alone. @param {string} what */
  refuseApart(what) {
    if (this.jobs.length > 1) throw (this.misuse = new BatchEnded(`job.${what} was called`));
    if (this.usedAt === undefined) return;
    throw (this.misuse ??= new Error(
      `job.${what} is not available after the handler has used its connection, because the transaction that completes the job has begun. ` +
        'Call it before the first statement, or save a checkpoint in the transaction with job.saveCheckpoint(data, client)',
    ));
  }

  /** The error of a use while a call of job is under way. @returns {Error | undefined} */
  get refusal() {
    const [what] = this.#calls;
    if (!what) return undefined;
    return (this.misuse ??= new Error(`the handler's connection was used while job.${what} was under way; use it after the ${what === 'step' ? 'step' : 'call'} has returned`));
  }

  /** Runs a statement that is committed by itself, after the one before it. @type {import('./job.js').Ask} */
  ask = async (...statement) => {
    const own = !this.used && !this.over;
    if (own) void this.unlock();
    const answer = this.#asked.then(() => this.#ask(own, statement));
    this.#asked = answer.then(() => {}, () => {});
    this.apartCalls++;
    this.asking++;
    try {
      return await answer;
    } finally {
      this.asking--;
    }
  };

  /** @param {boolean} own whether to use the session, if it is still there @param {Parameters<import('./job.js').Ask>} statement */
  async #ask(own, statement) {
    const { session } = this;
    if (own && !session.gone) {
      try {
        return (await session.query(...statement)).rows;
      } catch (error) {
        if (!broken(error, session)) throw error;
      }
    }
    return (await this.control.answer(...statement)).rows;
  }

  /** Rolls back a transaction that the worker has begun and the handler has not used, because it has locked the job. */
  unlock() {
    if (this.touched && !this.used) {
      this.begun = false;
      this.#beginning = undefined;
      for (const attempt of this.jobs) attempt.unlocked = true;
      // If this fails, the session is gone.
      this.#asked = this.#asked.then(() => this.session.query('ROLLBACK')).then(() => {}, () => {});
    }
    return this.#asked;
  }

  /**
   * Waits until all statements have been answered.
   * @returns {Promise<void>}
   */
  async drained() {
    if (this.waiting === 0 && !this.session.busy && this.asking === 0) return;
    while (this.waiting > 0 || (this.session.busy && !this.session.gone) || this.asking > 0) {
      await this.#asked;
      if (this.waiting > 0) await this.begin().catch(() => {});
      await this.session.drained(this.cursors.size > 0 ? halfReadTimeout : undefined);
      if (this.session.busy && [...this.cursors].some(({ state }) => state === 'idle')) throw new Error('the handler left a cursor partly read; read it to the end, or close it');
    }
    // The answers have resumed code after an await.
    await new Promise((resolve) => setImmediate(resolve));
  }
}

/**
 * @param {HandlerTransaction} handlerTransaction @param {() => unknown} refusal the reason why statements are refused now, or undefined
 * @returns {import('../index.js').HandlerClient}
 */
export function handlerClient(handlerTransaction, refusal) {
  const { session } = handlerTransaction;
  const real = /** @type {any} */ (session.client);
  /** @type {Map<unknown, unknown>} */
  const bound = new Map();
  let savepoints = 0;
  /** Open savepoints, the outermost first. @type {object[]} */
  const open = [];

  /**
   * Runs a use after the transaction has begun, or at once if it already has.
   * @param {string} text @param {() => void} use @param {(error: unknown) => void} fail
   */
  const whenBegun = (text, use, fail) => {
    if (handlerTransaction.ending) {
      use();
      return;
    }
    const refused = refusal() ?? handlerTransaction.refusal ?? refuseControl(text);
    if (refused) {
      process.nextTick(fail, refused);
      return;
    }
    handlerTransaction.usedAt ??= performance.now();
    const run = () => {
      session.busy = true;
      session.asked();
      use();
    };
    if (handlerTransaction.begun && handlerTransaction.waiting === 0) {
      run();
      return;
    }
    handlerTransaction.waiting++;
    handlerTransaction.begin().then(
      () => {
        handlerTransaction.waiting--;
        const over = refusal();
        if (over) fail(over);
        else run();
      },
      (error) => {
        handlerTransaction.waiting--;
        fail(error);
      },
    );
  };

  /** @param {any} config @param {any} [values] @param {any} [callback] */
  const query = (config, values, callback) => {
    if (config === null || config === undefined) return real.query(config);
    const text = typeof config === 'string' ? config : config.text;
    const ask = () => real.query(config, values, callback);
    if (typeof config.submit === 'function') {
      if (typeof config.read === 'function') handlerTransaction.cursors.add(config);
      whenBegun(config.text ?? config.cursor?.text ?? '', ask, (error) => config.handleError(error, real.connection));
      return config;
    }
    const back = [values, callback, config.callback].find((each) => typeof each === 'function');
    if (back) {
      whenBegun(text, ask, back);
      return undefined;
    }
    const answer = new Promise((resolve, reject) => whenBegun(text, () => ask().then(resolve, reject), reject));
    // If this promise is not awaited, the transaction reports the error when it fails.
    answer.catch(() => {});
    return answer;
  };

  /** Runs part of the handler's work in a savepoint. @param {(client: any) => unknown} fn */
  const transaction = async (fn) => {
    // With two at the same time, the rollback of one would undo the other's work after it was reported as done.
    if (open.length > 0 && currentSavepoint.getStore() !== open[open.length - 1]) throw new Error('another transaction() of this client is still running; await it first');
    const name = `idemq_${++savepoints}`;
    const own = { name };
    open.push(own);
    try {
      return await currentSavepoint.run(own, () => part(name, fn));
    } finally {
      open.splice(open.indexOf(own), 1);
    }
  };
  /** @param {string} name @param {(client: any) => unknown} fn */
  const part = async (name, fn) => {
    await query(`SAVEPOINT ${name}`);
    try {
      const answer = await fn(client);
      await query(`RELEASE SAVEPOINT ${name}`);
      return answer;
    } catch (error) {
      await query(`ROLLBACK TO SAVEPOINT ${name}`).catch(() => {});
      throw error;
    }
  };
  const refuse = () => {
    throw new Error("only the worker may open or close this connection");
  };

  /** @type {Map<string | symbol, unknown>} */
  const own = new Map(Object.entries({ query, transaction, connect: refuse, end: refuse }));
  /** @type {any} */
  const client = new Proxy(real, {
    get(_, key) {
      if (own.has(key)) return own.get(key);
      const value = real[key];
      if (typeof value !== 'function' || key === 'constructor') return value;
      if (!bound.has(value)) {
        bound.set(value, (/** @type {unknown[]} */ ...args) => {
          const answer = value.apply(real, args);
          return answer === real ? client : answer;
        });
      }
      return bound.get(value);
    },
    // A property that the handler has set.
    set(_, key, value) {
      own.set(key, value);
      return true;
    },
    has: (_, key) => own.has(key) || key in real,
  });
  return client;
}

/** The error for SQL that begins or ends a transaction, which is not run. @param {unknown} text @returns {Error | undefined} */
function refuseControl(text) {
  const word = typeof text === 'string' ? ENDS_TRANSACTION.exec(text)?.[1].toUpperCase() : undefined;
  if (!word) return undefined;
  return new Error(
    `${word} is not allowed in a handler, because the job is committed in the current transaction; remove it, use client.transaction() or a SAVEPOINT to make part of the work undoable, or use runOutside`,
  );
}
