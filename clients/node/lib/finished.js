// Notifications of finished jobs, as an async iterator (setting notify_finished of a queue).
//
// A connection of its own runs LISTEN, and is read all the time, even while the caller does something else: if the server could not
// send, PostgreSQL's queue of notifications would fill up.  What the caller has not taken yet is limited: beyond mostKept items,
// each queue's items become one overflow with their number.
//
// Each new connection begins with an overflow for every queue, because jobs may have finished while nobody listened.  The caller
// therefore reads its tables whenever it gets one, and needs no other code for the start, a failover or a slow consumer.

import { checkName, reject } from './arguments.js';
import { Address, Link, Server, answerTimeout, hosts, sleep, withTimeout } from './connection.js';
import { textOf } from './errors.js';
import { FINISHED_JOBS, checkOptions } from './options.js';
import { quiet } from './worker.js';

/** @typedef {import('../index.js').FinishedJob | import('../index.js').Overflow} Item */

/** Items that are kept for a caller that does not take them. */
export const mostKept = 10_000;
/** Milliseconds after which the server is asked for an answer, because the connection may be silent. */
const pingAfter = 60_000;
const prefix = 'idemq_finished:';

/**
 * The items of a notification. Events and members of later versions are ignored.
 * @param {string} payload @returns {Item[]}
 */
export function itemsOf(payload) {
  // Ids become strings, because a number would lose digits. A queue's name contains neither brackets nor commas.
  const message = JSON.parse(payload.replace(/([[,])(\d+)/g, '$1"$2"'));
  const { event, queue } = message;
  if (event === 'overflow') return [{ event, queue, lost: message.lost }];
  if (event !== 'finished') return [];
  return /** @type {const} */ (['completed', 'dead', 'cancelled'])
    .flatMap((status) => (message[status] ?? []).map((/** @type {string} */ id) => ({ event, queue, id, status })));
}

/** Items that the caller has not taken yet. */
export class Buffer {
  /** @type {Item[]} */
  #items = [];
  #taken = 0;

  get size() {
    return this.#items.length - this.#taken;
  }

  /** Adds an item. If there are too many, those of each queue become one overflow. @param {Item} item */
  put(item) {
    if (this.size >= mostKept) {
      /** @type {Map<string, number | null>} */
      const counts = new Map();
      for (const kept of this.#items.slice(this.#taken)) {
        const lost = kept.event === 'overflow' ? kept.lost : 1;
        const known = counts.get(kept.queue) ?? (counts.has(kept.queue) ? null : 0);
        counts.set(kept.queue, lost === null || known === null ? null : known + lost);
      }
      this.#items = [...counts].map(([queue, lost]) => ({ event: 'overflow', queue, lost }));
      this.#taken = 0;
    }
    this.#items.push(item);
  }

  /** Removes and returns the first item. @returns {Item} */
  take() {
    const item = this.#items[this.#taken++];
    if (this.#taken === this.#items.length || this.#taken > mostKept) {
      this.#items = this.#items.slice(this.#taken);
      this.#taken = 0;
    }
    return item;
  }
}

/** @type {typeof import('../index.js').finishedJobs} */
export function finishedJobs(connection, queues, options = {}) {
  checkOptions(options, FINISHED_JOBS, 'finishedJobs');
  const names = [...new Set(Array.isArray(queues) ? queues : [queues])].map((name) => checkName(name, 'queues'));
  if (names.length === 0) reject('queues', 'at least one name', queues);
  for (const name of names) if (!/^[A-Za-z_][A-Za-z0-9_.-]{0,47}$/.test(name)) reject('queues', 'names of queues', name);
  return iterate(hosts(connection), names, options);
}

/**
 * @param {import('pg').ClientConfig[]} configs @param {string[]} queues @param {import('../index.js').FinishedJobsOptions} options
 * @returns {AsyncGenerator<Item, void, undefined>}
 */
async function* iterate(configs, queues, { signal, logger = quiet }) {
  const over = new AbortController();
  const buffer = new Buffer();
  let more = () => {};
  /** @param {Item[]} items */
  const put = (items) => {
    for (const item of items) buffer.put(item);
    more();
  };
  const end = () => {
    over.abort();
    more();
  };
  if (signal?.aborted) return;
  signal?.addEventListener('abort', end);
  /** @type {unknown} */
  let failed;
  const listening = listen(configs, queues, put, logger, over.signal).catch((error) => {
    failed = error;
    end();
  });
  try {
    while (!over.signal.aborted) {
      if (buffer.size > 0) yield buffer.take();
      else await new Promise((resolve) => (more = () => resolve(undefined)));
    }
    if (failed) throw failed;
  } finally {
    signal?.removeEventListener('abort', end);
    end();
    await listening;
  }
}

/**
 * Listens until the signal fires, and passes on what arrives.
 * @param {import('pg').ClientConfig[]} configs @param {string[]} queues @param {(items: Item[]) => void} put
 * @param {import('../index.js').Logger} logger @param {AbortSignal} over
 */
async function listen(configs, queues, put, logger, over) {
  let look = () => {};
  const named = configs.map((config) => ({ application_name: 'idemq finished jobs', ...config }));
  const link = new Link(new Server(new Address(named, 'finished jobs: '), logger, { over, retryConnect: true }), async (session) => {
    const client = /** @type {any} */ (session.client);
    client.on('notification', (/** @type {{ channel: string, payload: string }} */ { channel, payload }) => {
      if (channel.startsWith(prefix)) put(itemsOf(payload));
    });
    for (const event of ['end', 'error']) client.on(event, () => look());
    for (const queue of queues) await session.query(`LISTEN "${prefix}${queue}"`);
    put(queues.map((queue) => ({ event: 'overflow', queue, lost: null })));
  });
  try {
    while (!over.aborted) {
      try {
        await link.repeat(async (session) => withTimeout(answerTimeout, session, session.query('SELECT')));
      } catch (error) {
        if (over.aborted) return;
        if (error !== link.sessionError) throw error;
        logger.error(`idemq: finished jobs: ${textOf(error)}`);
      }
      const rest = new AbortController();
      look = () => rest.abort();
      over.addEventListener('abort', look);
      if (over.aborted || !link.session) look();
      await sleep(pingAfter, rest.signal);
      over.removeEventListener('abort', look);
    }
  } finally {
    await link.end();
  }
}
