// A worker for all shards of a cluster: the map of shards, and one worker per shard.
//
// The worker reads the map from the router at the start, when the router announces a change (NOTIFY
// cluster_map), when a shard reports that its jobs are elsewhere (55000), and after each reconnection.
// It also reads the map once a minute, because a silent connection announces nothing.  While the router is down, the last map is used.
//
// To its worker, a shard that moves looks like a failover: the worker reconnects at the new place, and every
// attempt continues there, because the rows have moved with their tokens.  Refused calls had no
// effect, and completed jobs are reported as committed.
//
// A shard that is down delays only its own worker, which waits without a slot (handler-slots.js).

import { optionalBoolean, reject } from './arguments.js';
import { Address, Link, Server, answerTimeout, hosts, sleep, withTimeout } from './connection.js';
import { sqlstate, textOf } from './errors.js';
import { ShardSlots, SlotPool } from './handler-slots.js';
import { checkHandlers } from './handlers.js';
import { Hooks } from './hooks.js';
import { CLUSTER_WORKER, checkOptions } from './options.js';
import { onSignals } from './signals.js';
import { Worker, lastWords, quiet } from './worker.js';

const MAP = 'SELECT shard, dsn, state, version::text FROM cluster.map() ORDER BY shard';
const moveWait = 1000;
/** Milliseconds after which the map is read again, even without an announcement. */
const mapMaxAge = 60_000;

/**
 * host, port and dbname of a connection string of libpq: keywords and values, or a URL.
 * @param {string} dsn @returns {{ host?: string, port?: string, dbname?: string }}
 */
export function location(dsn) {
  const url = /^\w+:\/\/(?:[^@/?#]*@)?([^/?#]*)\/?([^?#]*)(?:\?([^#]*))?/s.exec(dsn);
  /** @type {Record<string, string>} */
  const values = {};
  if (url) {
    const [, authority, path, query] = url;
    const list = authority.split(',').map((host) => /^(\[.*\]|[^:]*)(?::(\d+))?$/.exec(host) ?? ['', host, '']);
    if (authority) values.host = list.map(([, host]) => decodeURIComponent(host.replace(/^\[|\]$/g, ''))).join(',');
    if (list.some(([, , port]) => port)) values.port = list.map(([, , port]) => port || '5432').join(',');
    if (path) values.dbname = decodeURIComponent(path);
    for (const [name, value] of new URLSearchParams(query)) values[name] = value;
  } else {
    for (const [, name, quoted, plain] of dsn.matchAll(/(\w+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s'\\]|\\.)*))/gs)) {
      values[name] = (quoted ?? plain ?? '').replace(/\\(.)/gs, '$1');
    }
  }
  const { hostaddr, host = hostaddr, port, dbname } = values;
  return { host, port, dbname };
}

/**
 * The connection to a shard: the router's settings (user, password, TLS) with the shard's place.
 * @param {import('../index.js').Connection} router @param {string} dsn
 * @param {{ host?: string, port?: number | string }} [instead] @returns {import('../index.js').Connection}
 */
export function shardConnection(router, dsn, instead = {}) {
  const { host, port, dbname } = { ...location(dsn), ...instead };
  const given = typeof router === 'string' ? { connectionString: router } : router;
  if (!given.connectionString) return { ...given, host, port, database: dbname };
  const [, start, query] = /** @type {string[]} */ (/^(\w+:\/\/(?:[^@/?#]*@)?)[^?#]*(?:\?([^#]*))?/s.exec(given.connectionString) ?? ['', 'postgresql://', '']);
  const parameters = new URLSearchParams(query);
  for (const [name, value] of Object.entries({ host, port })) {
    if (value) parameters.set(name, `${value}`);
    else parameters.delete(name);
  }
  return { ...given, connectionString: `${start}/${encodeURIComponent(dbname ?? '')}?${parameters}` };
}

/** A shard's address, and its entry in the map. */
class Shard extends Address {
  state = '';
  dsn = '';

  /** @param {ShardMap} map @param {number} number */
  constructor(map, number) {
    super([], `shard ${number}: `);
    this.map = map;
    this.number = number;
  }

  /** @param {unknown} error @param {string} version */
  async hasMoved(error, version) {
    if (sqlstate(error) !== '55000') return false;
    await this.map.readAgain();
    if (this.version === version && this.state === 'moving') await this.map.change();
    return this.version !== version || this.state === 'moving';
  }
}

/** The cluster's map, kept up to date. */
class ShardMap {
  /** @type {Map<number, Shard>} */
  shards = new Map();
  #look = () => {};
  #reason = false;
  /** @type {(() => void)[]} */
  #asked = [];
  /** @type {(() => void)[]} */
  #waiting = [];
  /** Functions that end the waits for a change of the map. @type {Set<() => void>} */
  #waits = new Set();
  #ending = false;

  /**
   * @param {import('../index.js').Connection} router @param {string} name
   * @param {import('../index.js').Logger} logger @param {{ over: AbortSignal, retryConnect: boolean }} life
   * @param {{ host?: string, port?: number | string }} [instead] host and port to use instead of the map's
   */
  constructor(router, name, logger, life, instead) {
    this.instead = instead;
    this.router = router;
    this.name = name;
    this.logger = logger;
    this.life = life;
    const configs = hosts(router).map((config) => ({ application_name: name, ...config }));
    this.link = new Link(new Server(new Address(configs, 'router: '), logger, life), async (session) => {
      for (const event of ['notification', 'end', 'error']) /** @type {any} */ (session.client).on(event, () => this.look());
      await session.query('LISTEN cluster_map');
    });
  }

  /** Called when there is a reason to read the map. */
  look() {
    this.#reason = true;
    this.#look();
  }

  /** Reads the map. Returns the shards that are new or have moved. @returns {Promise<Shard[]>} */
  async read() {
    const changed = [];
    const { answer } = await this.link.repeat(async (session) => (await withTimeout(answerTimeout, session, session.query(MAP))).rows);
    for (const { shard: number, dsn, state, version } of answer) {
      const shard = this.shards.get(number) ?? new Shard(this, number);
      this.shards.set(number, shard);
      if (BigInt(version) < BigInt(shard.version)) continue; // the router has been restored from a backup
      if (shard.dsn !== dsn || (shard.state === 'moving' && state === 'up')) changed.push(shard);
      if (shard.dsn !== dsn) {
        if (shard.dsn) this.logger.warn(`idemq: shard ${number} has moved: ${dsn}`);
        shard.configs = hosts(shardConnection(this.router, dsn, this.instead)).map((config) => ({ application_name: this.name, ...config }));
      }
      Object.assign(shard, { dsn, state, version });
    }
    return changed;
  }

  /** Reads the map whenever there is a reason to, until the worker ends. @param {(shards: Shard[]) => void} moved */
  async follow(moved) {
    while (!this.life.over.aborted) {
      const asked = this.#asked.splice(0);
      this.#reason = false;
      try {
        moved(await this.read());
        for (const then of this.#waiting.splice(0)) then();
      } catch (error) {
        if (this.life.over.aborted) return;
        if (error !== this.link.sessionError) this.logger.error(`idemq: router: ${textOf(error)}`);
        await sleep(error === this.link.sessionError ? 100 : 5000, this.life.over);
        this.#asked.push(...asked);
        continue;
      }
      for (const then of asked) then();
      if (this.#reason || this.#asked.length > 0 || !this.link.session) continue;
      const rest = new AbortController();
      const look = (this.#look = () => rest.abort());
      if (this.life.over.aborted) look();
      this.life.over.addEventListener('abort', look);
      await sleep(mapMaxAge, rest.signal);
      this.life.over.removeEventListener('abort', look);
    }
  }

  /** Waits until the map has been read again, if the router answers. A worker that is stopping does not wait long. */
  readAgain() {
    return this.#soon(this.#asked, this.#ending ? moveWait : answerTimeout, () => this.look());
  }

  /** Called when the worker stops: it no longer waits long for the router. */
  end() {
    this.#ending = true;
    setTimeout(() => this.#waits.forEach((give) => give()), moveWait).unref();
  }

  /** Waits until the map has been read again, at most a second. */
  change() {
    return this.#soon(this.#waiting, moveWait);
  }

  /** @param {(() => void)[]} list @param {number} ms @param {() => void} [then] @returns {Promise<void>} */
  #soon(list, ms, then) {
    return new Promise((resolve) => {
      const give = () => {
        clearTimeout(timer);
        this.#waits.delete(give);
        resolve();
      };
      const timer = setTimeout(give, ms);
      this.#waits.add(give);
      list.push(give);
      then?.();
    });
  }
}

export class ClusterWorker {
  #router;
  #queue;
  #name;
  #options;
  #logger;
  #hooks;
  #over = new AbortController();
  #stops = 0;
  /** When the worker was first told to stop. @type {number | undefined} */
  #stoppedAt;
  #stopped = () => {};
  /** @type {Map<number, Worker>} */
  #workers = new Map();
  /** @type {Promise<Record<string, number>>[]} */
  #runs = [];
  /** @type {Set<number>} */
  #refused = new Set();
  #ran = false;

  /**
   * @param {import('../index.js').Connection} router @param {string} queue
   * @param {import('../index.js').ClusterWorkerOptions} [options]
   */
  constructor(router, queue, options = {}) {
    if (typeof queue === 'object') throw new TypeError('ClusterWorker serves one queue');
    checkOptions(options, CLUSTER_WORKER, 'ClusterWorker');
    const { home, roam = true, shardPlace, ...own } = options;
    if (home !== undefined && !(Array.isArray(home) && home.every(Number.isSafeInteger))) reject('home', 'an array of shard numbers', home);
    optionalBoolean(roam, 'roam');
    if (home?.length === 0 && !roam) throw new RangeError('a worker without home shards must have roam enabled, or it would never get a job; pass home, roam or both');
    if (shardPlace) checkOptions(shardPlace, { host: true, port: true }, 'shardPlace');
    // Checks the other options.
    this.#name = new Worker({}, queue, own).name;
    this.#router = router;
    this.#queue = queue;
    this.#logger = own.logger ?? quiet;
    this.#hooks = new Hooks(own.hooks, this.#logger);
    // Options for the worker of each shard. Signals and the start and stop hooks are handled here, once for all shards.
    const { started: _, stopped: __, ...hooks } = own.hooks ?? {};
    this.#options = { home, roam, shardPlace, own: { ...own, hooks } };
  }

  get queue() {
    return this.#queue;
  }

  get name() {
    return this.#name;
  }

  /** @param {any} handler */
  async run(handler) {
    return this.#run(handler, (worker) => worker.run(handler));
  }

  /** @param {any} handler */
  async runOutside(handler) {
    return this.#run(handler, (worker) => worker.runOutside(handler));
  }

  /** Like Worker.stop, for all shards. */
  stop() {
    this.#stops++;
    this.#stoppedAt ??= Date.now();
    this.#stopped();
    this.#workers.forEach((worker) => worker.stop());
  }

  /** @param {unknown} handler @param {(worker: Worker) => Promise<Record<string, number>>} start */
  async #run(handler, start) {
    checkHandlers(handler);
    if (this.#ran) throw new Error('this worker has already run; create a new one');
    this.#ran = true;
    const { concurrency = 1, signals = true, grace = 30 } = this.#options.own;
    const pool = new SlotPool(concurrency);
    const map = new ShardMap(this.#router, `idemq ${this.#queue}`, this.#logger, { over: this.#over.signal, retryConnect: true }, this.#options.shardPlace);
    /** @type {unknown} */
    let failed;
    /** @type {Record<string, number>} */
    const counts = {};
    const moved = (/** @type {Shard[]} */ shards) => {
      for (const shard of shards) this.#moved(shard, pool, start, (error) => (failed ??= error));
    };

    await this.#hooks.started(this);
    const unheard = signals ? onSignals(() => this.stop()) : () => {};
    /** @type {Promise<void> | undefined} */
    let following;
    try {
      const stopped = new Promise((resolve) => (this.#stopped = () => {
        map.end();
        resolve(undefined);
      }));
      const first = map.read();
      first.catch(() => {}); // it is not awaited if the worker is told to stop first
      moved(await Promise.race([first, stopped.then(() => [])]));
      if (this.#runs.length === 0 && !this.#stops) throw new Error('the cluster has no shard for this worker; check cluster.map()');
      following = map.follow(moved);
      let seen;
      do {
        seen = this.#runs.length;
        await Promise.allSettled(this.#runs);
      } while (seen < this.#runs.length);
    } finally {
      this.#over.abort();
      unheard();
      await following;
      await map.link.end();
      for (const run of await Promise.allSettled(this.#runs)) {
        for (const [outcome, count] of Object.entries(run.status === 'fulfilled' ? run.value : {})) counts[outcome] = (counts[outcome] ?? 0) + count;
      }
      await this.#hooks.stopped(this, counts, this.#stoppedAt === undefined ? undefined : this.#stoppedAt + 1000 * grace + lastWords);
    }
    if (failed) throw failed;
    return counts;
  }

  /**
   * Called for a shard that is new or has moved.
   * @param {Shard} shard @param {SlotPool} pool @param {(worker: Worker) => Promise<Record<string, number>>} start
   * @param {(error: unknown) => void} failed
   */
  #moved(shard, pool, start, failed) {
    const { home, roam, own } = this.#options;
    const isHome = home?.includes(shard.number) ?? true;
    const known = this.#workers.get(shard.number);
    if (known) return known.moved();
    if (this.#stops || !(isHome || roam)) return;
    const worker = new Worker({}, this.#queue, { ...own, signals: false }, {
      shard: { address: shard, slots: new ShardSlots(pool, isHome), refused: () => this.#isRefused(shard.number) },
    });
    this.#workers.set(shard.number, worker);
    const run = start(worker);
    this.#runs.push(run);
    run.catch((error) => {
      failed(error);
      while (this.#stops < 2) this.stop(); // an error of one shard ends all
    });
  }

  /** Whether a refused first claim is the caller's mistake, which it is if no shard has accepted one. @param {number} number */
  #isRefused(number) {
    this.#refused.add(number);
    return [...this.#workers].every(([other, worker]) => this.#refused.has(other) || worker.unreachable);
  }
}
