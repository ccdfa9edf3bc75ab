// Connections of a worker: to whichever of several hosts takes writes, opened again when they break.
//
// A Link is one connection that comes back.  Its statements go one after the other, in the order in
// which they were asked for; whoever needs several in a row takes the link with `withSession`.  None is ever
// handed to a pool, which would close it when it is idle, and end the leases attached to its session.

import net from 'node:net';
import { reject } from './arguments.js';
import { sqlstate, textOf } from './errors.js';
import { pg } from './packages.js';
import { Pipeline } from './pipeline.js';

/**
 * Which process it is, whether it takes no writes, whether it is a standby, milliseconds that a statement may take, or 0, whether it
 * may call idemq.hold_claimed.  A session of one's own ($1 is its process) may be idle while its job is elsewhere, and reads NULL in an array as such.
 */
const SESSION_INFO = `SELECT who.pid, pg_catalog.current_setting('transaction_read_only') = 'on' AS read_only, pg_catalog.pg_is_in_recovery() AS standby,
    (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'statement_timeout') AS statement_timeout,
    EXISTS (SELECT FROM pg_catalog.pg_proc AS f JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
      WHERE n.nspname = 'idemq' AND f.proname = 'hold_claimed' AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE')) AS has_hold_claimed,
    (SELECT extract(epoch FROM backend_start)::text FROM pg_catalog.pg_stat_get_activity(who.pid)) AS backend_start,
    CASE WHEN who.pid = $1::int THEN pg_catalog.set_config('array_nulls', 'on', false) || pg_catalog.set_config('idle_session_timeout',
        pg_catalog.set_config('idle_in_transaction_session_timeout', '0', false), false) END
  FROM pg_catalog.pg_backend_pid() AS who (pid)`;

/**
 * Has a new client ask for dates that pg reads, whatever role and database have set. As a startup parameter, so that behind a
 * pooler nothing is left to others.  Poolers know DateStyle, and refuse parameters that they do not know, such as IntervalStyle or
 * extra_float_digits: so our statements answer neither intervals nor floats (statements.js).
 * @param {import('pg').Client} client
 */
function setDateStyle(client) {
  const own = /** @type {any} */ (client);
  const startup = own.getStartupConf;
  own.getStartupConf = () => ({ ...startup.call(own), DateStyle: 'ISO' });
}

/**
 * What a new session is: throws where nothing can be written.
 * @param {import('pg').Client} client
 * @returns {Promise<{ direct: boolean, process: number, backendStart: string | null, statementTimeout: number, hasHoldClaimed: boolean }>} whether its
 *   process is ours alone (a pooler makes up the number that it tells), and which that is; how many milliseconds a statement may take, 0: any;
 *   whether it may call idemq.hold_claimed
 */
export async function sessionInfo(client) {
  const told = /** @type {any} */ (client).processID ?? 0;
  const [{ pid, read_only: readOnly, standby, statement_timeout: statementTimeout, has_hold_claimed: hasHoldClaimed, backend_start: backendStart }] = (await client.query(SESSION_INFO, [told])).rows;
  if (readOnly) {
    const why = standby
      ? `${client.host}:${client.port} is a standby, which does not accept writes`
      : 'default_transaction_read_only is on for this role, database or server, but a worker must write: ALTER ROLE ... SET default_transaction_read_only = off';
    throw Object.assign(new Error(why), { code: '25006' });
  }
  return { direct: pid === told, process: pid, backendStart, statementTimeout: Number(statementTimeout), hasHoldClaimed };
}

/**
 * The settings of each host that a connection string or settings name, in their order; as with libpq a
 * host or a port may be a list with commas: 'postgresql://db1:5432,db2:5433/shop', { host: 'db1,db2' }.
 * @param {import('../index.js').Connection} connection @returns {import('pg').ClientConfig[]}
 */
export function hosts(connection) {
  const given = typeof connection === 'string' ? { connectionString: connection } : connection;
  if (typeof given !== 'object' || given === null || Array.isArray(given)) reject('connection', "a URL, or a configuration object for pg's Client", given);
  // A pool or a client: a worker opens connections of its own.
  if (typeof (/** @type {any} */ (given).query) === 'function') reject('connection', "a URL, or a configuration object for pg's Client (a worker opens its own connections, so pass neither a client nor a pool)", given);
  const { port: numbers, ...config } = given;
  const url = /^(\w+:\/\/(?:[^@/?#]*@)?)([^/?#]*)([^?#]*)(?:\?([^#]*))?/s.exec(config.connectionString ?? '');
  if (url) {
    const [, start, authority, path, query] = url;
    const parameters = new URLSearchParams(query);
    const none = authority === '';
    const named = pairs(parameters.get('host') ?? (none && process.env.PGHOST), parameters.get('port') ?? (none && process.env.PGPORT));
    parameters.delete('target_session_attrs'); // always read-write
    return (named ?? authority.split(',').map((host) => ({ host, port: undefined }))).map(({ host, port }) => {
      if (named) parameters.set('host', host);
      if (port) parameters.set('port', port);
      else parameters.delete('port');
      const rest = parameters.toString();
      return { ...config, connectionString: `${start}${named ? '' : host}${path}${rest && `?${rest}`}` };
    });
  }
  const port = `${numbers ?? process.env.PGPORT ?? ''}`;
  const named = pairs(config.host ?? process.env.PGHOST, port);
  return named ? named.map(({ host, port }) => ({ ...config, host, ...(port ? { port: Number(port) } : {}) })) : [{ ...config, ...(port ? { port: Number(port) } : {}) }];
}

/**
 * @param {string | false | null | undefined} hosts @param {string | false | null | undefined} ports
 * @returns {{ host: string, port: string | undefined }[] | null}
 */
function pairs(hosts, ports) {
  if (!hosts) return null;
  const numbers = ports ? ports.split(',') : [];
  return hosts.split(',').map((host, n) => ({ host, port: numbers[numbers.length === 1 ? 0 : n] || undefined }));
}

/** Whether an error says that the connection is of no use any more. @param {unknown} error @param {Session} session */
export function broken(error, session) {
  // 25006: a standby now.  40003: an answer that may not last.  Errors of sockets have no SQLSTATE.
  return session.gone || /^(08...|57P0[1235]|25006|40003)$/.test(sqlstate(error));
}

/** Milliseconds that a cancel may take: what is cancelled is not waited for any longer. */
const cancelTimeout = 2000;
/** Milliseconds that a statement of the worker's own may take that waits for nothing. */
export const answerTimeout = 10_000;
/** The same on the connection of the heartbeats: a third of the lease, but not less than this. */
export const shortestAnswerTimeout = 2000;

/** Milliseconds after which a connection that is lost is said once more. */
const sayAgain = 60_000;

/** Waits, or until the signal fires. @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
export function sleep(ms, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done);
  });
}

/**
 * An answer in time; otherwise the session is ended.
 * @template T @param {number} ms @param {Session} session @param {Promise<T>} answer @returns {Promise<T>}
 */
export async function withTimeout(ms, session, answer) {
  const timer = setTimeout(() => session.cut(), ms);
  try {
    return await answer;
  } finally {
    clearTimeout(timer);
  }
}

/** One session with a server that takes writes. */
export class Session {
  /** The state of its transaction: I, T or E. */
  status = 'I';
  gone = false;
  /** Whether it was we who ended it. */
  destroyed = false;
  /** What it was made from, of its Address. @type {import('pg').ClientConfig[] | undefined} */
  configs;
  version = '-1';
  /** Whether it was ended since what it was asked for is elsewhere. */
  moved = false;
  /** Whether the server's process is ours alone: a pooler makes up the number that it tells. */
  direct = false;
  /** Its process in the server, and when that began. */
  process = 0;
  /** @type {string | null} */
  backendStart = null;
  /** How often in a row the server had nothing to do for it while its answer was awaited: silence.js. */
  suspected = 0;
  /** Since when an answer has been awaited, and nothing has come; by Date.now(). 0: none is awaited. */
  #since = 0;
  #bytes = 0;
  /** Milliseconds that a statement may take; 0: any. */
  statementTimeout = 0;
  /** Whether the server has idemq.hold_claimed. */
  hasHoldClaimed = false;
  /** Our statements that the server knows by name; undefined: not on this session, which others use too. @type {Set<string> | undefined} */
  prepared;
  /** Our message that is under way. @type {Pipeline | undefined} */
  message;
  /** Whether what a handler has asked for is under way. */
  busy = false;
  /** BEGIN and COMMIT that a handler has run in a statement of several. */
  controlled = false;
  /** Attempts whose leases end with this session. @type {Set<import('./job.js').Attempt>} */
  attempts = new Set();
  /** @type {(() => void)[]} */
  #drains = [];

  /** @param {import('pg').ClientConfig} config */
  constructor(config) {
    this.config = config;
    // With pg's pipeline option there are no cursors.
    const own = /** @type {any} */ ({ pipeline: false });
    this.client = new pg.Client({ keepAlive: true, keepAliveInitialDelayMillis: 10_000, connectionTimeoutMillis: 5000, ...config, ...own });
    setDateStyle(this.client);
    this.client.on('error', () => this.#lost());
    this.client.on('end', () => this.#lost());
    this.client.on('drain', () => this.#drained());
    // The protocol's own events, which pg listens to itself.
    const { connection } = /** @type {any} */ (this.client);
    connection.on('readyForQuery', (/** @type {{ status?: string }} */ message) => (this.status = message?.status ?? 'T'));
    connection.on('parseComplete', () => this.message?.parsed());
    connection.on('commandComplete', (/** @type {{ text: string }} */ { text }) => {
      if (this.message) return;
      if (/^(BEGIN|START TRANSACTION|COMMIT|PREPARE TRANSACTION)$/.test(text)) this.controlled = true;
      else if (/^(DEALLOCATE|DISCARD) ALL$/.test(text)) this.prepared?.clear();
    });
  }

  /** Its connection is no more, and with it the leases that are attached to it. */
  #lost() {
    this.gone = true;
    for (const attempt of this.attempts) attempt.leaseSessionEnded();
    this.#drained();
  }

  /** Something is asked. */
  asked() {
    if (this.#since === 0) this.heard();
  }

  /** Something has come, or is on its way. */
  heard() {
    this.#since = Date.now();
    this.suspected = 0;
  }

  /** For how many milliseconds an answer has been awaited, and nothing has come. */
  get silentFor() {
    const { stream } = /** @type {any} */ (this.client).connection;
    const bytes = stream.bytesRead + stream.bytesWritten;
    if (bytes !== this.#bytes && this.#since !== 0) this.heard();
    this.#bytes = bytes;
    return this.#since === 0 ? 0 : Date.now() - this.#since;
  }

  #drained() {
    this.busy = false;
    this.#since = 0;
    for (const then of this.#drains.splice(0)) then();
  }

  /** Until what handlers have asked for is answered, or for so long. @param {number} [ms] @returns {Promise<void>} */
  drained(ms) {
    if (!this.busy || this.gone) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = ms === undefined ? undefined : setTimeout(resolve, ms);
      this.#drains.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }

  /**
   * Several statements in one message. Never rejects.
   * @param {import('./pipeline.js').Step[]} steps @returns {Promise<import('./pipeline.js').Answer>}
   */
  async send(steps) {
    const message = new Pipeline(this, steps);
    this.asked();
    this.client.query(message);
    const answer = await message.answer;
    // Forgotten by the server, or planned for other types: as after an update of the extension.
    if (['26000', '42P05'].includes(sqlstate(answer.error)) || (sqlstate(answer.error) === '0A000' && this.prepared)) {
      this.prepared = undefined;
      answer.error = Object.assign(new Error(answer.error.message, { cause: answer.error }), { code: '40001' });
    }
    return answer;
  }

  /**
   * The first host that takes writes; the last one's error when there is none.
   * @param {import('pg').ClientConfig[]} configs @param {AbortSignal} until then it gives up @returns {Promise<Session>}
   */
  static async open(configs, until) {
    let last;
    for (const config of configs) {
      const session = new Session(config);
      const give = () => session.destroy();
      until.addEventListener('abort', give);
      try {
        if (last && until.aborted) throw last;
        await session.client.connect();
        Object.assign(session, await withTimeout(5000, session, sessionInfo(session.client)));
        if (session.direct) session.prepared = new Set();
        return session;
      } catch (error) {
        last = error;
      } finally {
        until.removeEventListener('abort', give);
      }
      session.destroy();
    }
    throw last;
  }

  /** @param {string} text @param {unknown[]} [values] @param {any} [types] @returns {Promise<import('pg').QueryResult<any>>} */
  query(text, values, types) {
    this.asked();
    return types ? this.client.query({ text, values, types }) : this.client.query(text, values);
  }

  /**
   * Cancels the statement that runs, in the server. Never rejects.
   * As libpq does, it waits for the other side to hang up: pgbouncer 1.18 and 1.19 end when a client goes away amid its cancel.
   * @returns {Promise<void>}
   */
  cancel() {
    const { host, port, processID, secretKey } = /** @type {any} */ (this.client);
    if (this.gone || !Number.isInteger(secretKey)) return Promise.resolve();
    const request = Buffer.alloc(16);
    [16, 80877102, processID, secretKey].forEach((word, n) => request.writeInt32BE(word, 4 * n));
    return new Promise((resolve) => {
      const socket = host?.startsWith('/') ? net.connect(`${host}/.s.PGSQL.${port}`) : net.connect(port, host);
      socket.setTimeout(cancelTimeout, () => socket.destroy());
      socket.on('connect', () => socket.write(request));
      socket.on('error', () => {});
      socket.on('close', () => resolve());
      socket.resume();
    });
  }

  /** Ends it at once, whatever it is doing. */
  destroy() {
    this.destroyed = true;
    this.cut();
  }

  /** The same of one that does not answer. */
  cut() {
    this.#lost();
    // pg has no other way to end a connection that may not answer.
    /** @type {any} */ (this.client).connection.stream.destroy();
  }

  /** Ends it in good order. */
  async end() {
    if (this.gone) return;
    this.gone = true;
    await Promise.race([this.client.end().catch(() => {}), new Promise((resolve) => setTimeout(resolve, 500).unref())]);
    this.destroy();
  }
}

/** Where a server is.  That of a cluster's shard changes with the map: cluster.js. */
export class Address {
  /** Grows with each change. */
  version = '-1';

  /** @param {import('pg').ClientConfig[]} configs @param {string} [name] in the log */
  constructor(configs, name = '') {
    this.configs = configs;
    this.name = name;
  }

  /** The database's name, as pg reads it from settings, URL and environment. */
  get database() {
    return /** @type {any} */ (new pg.Client(this.configs[0])).database;
  }

  /**
   * Whether an error of a session that was made at this version means that what was asked for is, or will
   * soon be, at another place.
   * @param {unknown} _error @param {string} _version @returns {Promise<boolean>}
   */
  async hasMoved(_error, _version) {
    return false;
  }
}

/** What the links of one worker share: how to connect, when to give up, and what is said of it. */
export class Server {
  #since = 0;
  #said = 0;
  /** Those that are open. @type {Set<Session>} */
  sessions = new Set();

  /**
   * @param {Address} address @param {import('../index.js').Logger} logger
   * @param {{ over: AbortSignal, retryConnect: boolean }} life over: fires when nothing is to be waited for any more
   */
  constructor(address, logger, life) {
    this.address = address;
    this.logger = logger;
    this.life = life;
  }

  /** Opens a session, as often as it takes. @param {AbortSignal} until @returns {Promise<Session>} */
  async open(until) {
    for (let pause = 200; ; pause = Math.min(2 * pause, 5000)) {
      // Nobody would close it.
      if (until.aborted || this.life.over.aborted) throw new Error('the worker is stopping, and has no connection');
      const { configs, version } = this.address;
      try {
        const session = Object.assign(await Session.open(configs, until), { configs, version });
        for (const other of this.sessions) if (other.gone) this.sessions.delete(other);
        this.sessions.add(session);
        if (this.#since) this.logger.warn(`idemq: ${this.address.name}reconnected after ${((Date.now() - this.#since) / 1000).toFixed(1)} s`);
        this.#since = 0;
        return session;
      } catch (error) {
        // A wrong password, a database that is not there: at the start it is the caller's to mend.
        if (!this.life.retryConnect || until.aborted || this.life.over.aborted) throw error;
        this.lost(error);
        await sleep(pause * (0.75 + Math.random() / 2), until);
      }
    }
  }

  /** Says that the server is gone, once a minute. @param {unknown} error */
  lost(error) {
    const now = Date.now();
    if (!this.#since || now - this.#said >= sayAgain) {
      this.#said = now;
      const { code, message } = /** @type {any} */ (error) ?? {};
      // 3D000 names the database; other errors do not say which it was.
      const to = code === '3D000' ? '' : ` to database "${this.address.database}"`;
      this.logger.warn(`idemq: ${this.address.name}no connection${to}: ${message || textOf(error)}; ${this.#since ? `for ${((now - this.#since) / 1000).toFixed(0)} s; ` : ''}trying again`);
    }
    this.#since ||= now;
  }

  /** Whether there is no connection, although it was tried. */
  get down() {
    return this.#since > 0;
  }
}

/** A connection that comes back. */
export class Link {
  /** @type {Session | null} */
  #session = null;
  /** @type {Promise<unknown>} */
  #last = Promise.resolve();
  /** The error that ended the last session. @type {unknown} */
  sessionError;
  /** Milliseconds that a statement may take which waits for nothing. */
  answerTimeout = answerTimeout;

  /** Whether something is asked. */
  #asking = false;

  /**
   * @param {Server} server @param {(session: Session) => Promise<void>} [onConnect] called with each new session
   * @param {AbortSignal} [cut] when it fires no answer is waited for any more
   */
  constructor(server, onConnect, cut = server.life.over) {
    this.server = server;
    this.onConnect = onConnect;
    cut.addEventListener('abort', () => {
      if (this.#asking) this.#session?.destroy();
    });
  }

  /**
   * Calls fn with the session, and nobody else until it is done.
   * @template T @param {(session: Session) => Promise<T>} fn
   * @param {AbortSignal} [until] no connection is waited for any more
   * @returns {Promise<T>}
   */
  withSession(fn, until = this.server.life.over) {
    const turn = this.#last.then(async () => {
      const session = await this.#open(until);
      this.#asking = true;
      try {
        return await fn(session);
      } catch (error) {
        if (!broken(error, session)) session.moved = await this.server.address.hasMoved(error, session.version);
        if (session.moved || broken(error, session)) {
          this.sessionError = error;
          if (!session.destroyed) this.server.lost(error);
          session.destroy();
        }
        throw error;
      } finally {
        this.#asking = false;
      }
    });
    this.#last = turn.catch(() => {});
    return turn;
  }

  /** One statement. @param {string} text @param {unknown[]} [values] @returns {Promise<any[]>} its rows */
  async rows(text, values) {
    return this.withSession(async (session) => (await session.query(text, values)).rows);
  }

  /**
   * One statement that may be repeated: until it is answered, by the server that takes writes then.
   * @param {string} text @param {unknown[]} [values] @param {any} [types] parsers in place of the client's
   * @returns {Promise<{ rows: any[], again: boolean }>}
   */
  async answer(text, values, types) {
    const { answer, again } = await this.repeat(async (session) => (await session.query(text, values, types)).rows);
    return { rows: answer, again };
  }

  /**
   * The same of whatever is asked of a session. again: an answer may have been lost.
   * @template T @param {(session: Session) => Promise<T>} ask @returns {Promise<{ answer: T, again: boolean }>}
   */
  async repeat(ask) {
    for (let again = false; ; again = true) {
      /** @type {Session | undefined} */
      let on;
      try {
        return { answer: await this.withSession((session) => ask((on = session))), again };
      } catch (error) {
        if (!on || !broken(error, on) || this.server.life.over.aborted) throw error;
        await sleep(100, this.server.life.over);
      }
    }
  }

  /** The session, if it is open. @returns {Session | null} */
  get session() {
    return this.#session?.gone ? null : this.#session;
  }

  /** @param {AbortSignal} until @returns {Promise<Session>} */
  async #open(until) {
    if (this.session && this.session.configs !== this.server.address.configs) await this.session.end();
    while (!this.session) {
      const session = await this.server.open(until);
      this.#session = session;
      try {
        if (this.onConnect) await withTimeout(this.answerTimeout, session, this.onConnect(session));
      } catch (error) {
        const again = broken(error, session) && this.server.life.retryConnect && !until.aborted;
        session.destroy();
        if (!again) throw error;
        this.server.lost(error);
        await sleep(200, until);
      }
    }
    return /** @type {Session} */ (this.#session);
  }

  async end() {
    await this.#session?.end();
  }
}
