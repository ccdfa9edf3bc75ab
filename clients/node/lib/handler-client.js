// The client that a handler of Worker.run gets: a proxy for the client of pg.
//
// Its transaction begins at the first use: the first statement, cursor or COPY waits for BEGIN and the lock of the job.  Statements that
// would end the transaction are refused.  So is everything after the handler has ended, or after the lease has expired before the job was locked.

import { AsyncLocalStorage } from 'node:async_hooks';

/** Milliseconds after the end of its handler in which code that was not awaited may continue to read a cursor. */
const halfReadTimeout = 1000;
/** The savepoint in which code runs. Savepoints that it starts are nested. @type {AsyncLocalStorage<object>} */
const currentSavepoint = new AsyncLocalStorage();
const ENDS_TRANSACTION = /^(?:\s|;|--[^\n]*(?:\n|$)|\/\*[^]*?\*\/)*(begin|start\s+transaction|commit|end|abort|prepare\s+transaction|rollback(?!\s+(?:work\s+|transaction\s+)?to\b))\b/i;

/** @typedef {import('./connection.js').Session} Session */

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

  /**
   * @param {Session} session @param {() => Promise<void>} begin
   * @param {boolean} begun whether the session is already in this transaction
   */
  constructor(session, begin, begun) {
    this.session = session;
    this.begun = begun;
    this.start = begin;
  }

  /** Whether there is anything to commit or roll back. */
  get touched() {
    return this.begun || this.#beginning !== undefined;
  }

  /** Begins the transaction, once. @returns {Promise<void>} */
  begin() {
    if (this.begun) return Promise.resolve();
    return (this.#beginning ??= this.start().then(
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
   * Waits until all statements have been answered.
   * @returns {Promise<void>}
   */
  async drained() {
    if (this.waiting === 0 && !this.session.busy) return;
    while (this.waiting > 0 || (this.session.busy && !this.session.gone)) {
      await this.begin().catch(() => {});
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
    const refused = refusal() ?? refuseControl(text);
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
