// Connections of a worker to whichever of several hosts accepts writes.  They are reopened when they break.
//
// A Link is one connection that reconnects.  Its statements run one after the other, in the order of the
// requests; use `withSession` to run several in a row.  Links never belong to a pool, because a pool
// would close an idle connection, and the leases attached to its session would end.

import net from 'node:net';
import { reject } from './arguments.js';
import { read, sqlstate, textOf, walk } from './errors.js';
import { pg } from './packages.js';
import { Pipeline } from './pipeline.js';

/**
 * The process of the session, whether it is read-only, whether the server is a standby, statement_timeout in milliseconds (0: none), and whether
 * idemq.hold_claimed exists.  $2 identifies the worker in all its sessions; behind a pooler, the setting would reach other processes.  A session that belongs to the worker ($1 is its process) may be idle while its handler is busy, and reads NULL in an array as NULL.
 */
const SESSION_INFO = `SELECT who.pid, pg_catalog.current_setting('transaction_read_only') = 'on' AS read_only, pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.current_setting('server_encoding') = 'UTF8' AS utf8,
    (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'statement_timeout') AS statement_timeout,
    EXISTS (SELECT FROM pg_catalog.pg_proc AS f JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
      WHERE n.nspname = 'idemq' AND f.proname = 'hold_claimed' AND pg_catalog.has_function_privilege(f.oid, 'EXECUTE')) AS has_hold_claimed,
    (SELECT extract(epoch FROM backend_start)::text FROM pg_catalog.pg_stat_get_activity(who.pid)) AS backend_start,
    CASE WHEN who.pid = $1::int THEN pg_catalog.set_config('array_nulls', 'on', false) || pg_catalog.set_config('idle_session_timeout',
        pg_catalog.set_config('idle_in_transaction_session_timeout', '0', false), false) END,
    CASE WHEN who.pid = $1::int AND pg_catalog.current_setting('idemq.process', true) IS NOT NULL
      THEN pg_catalog.set_config('idemq.process', $2::text, false) END AS worker
  FROM pg_catalog.pg_backend_pid() AS who (pid)`;

/**
 * Makes a new client request dates that pg can parse, whatever role and database have set. It is a startup parameter, so that behind a
 * pooler it does not affect other clients.  Poolers know DateStyle, but refuse unknown parameters such as IntervalStyle and
 * extra_float_digits, so the worker's statements return neither intervals nor floats (statements.js).
 * @param {import('pg').Client} client
 */
function setDateStyle(client) {
  const own = /** @type {any} */ (client);
  const startup = own.getStartupConf;
  own.getStartupConf = () => ({ ...startup.call(own), DateStyle: 'ISO' });
}

/**
 * The properties of a new session. Throws if it cannot write.
 * @param {import('pg').Client} client @param {string} [worker] identifies the worker in all its sessions
 * @returns {Promise<{ direct: boolean, process: number, backendStart: string | null, statementTimeout: number, hasHoldClaimed: boolean, hearsEnds: boolean, utf8: boolean }>} direct: whether
 *   the process belongs to this session only (a pooler invents the number that it reports); process: its number; statementTimeout in
 *   milliseconds (0: none); hasHoldClaimed: whether idemq.hold_claimed exists; hearsEnds: whether the server tells the worker at once if one of its
 *   attempts is cancelled or taken back; utf8: whether the server can store every character
 */
export async function sessionInfo(client, worker = '') {
  const told = /** @type {any} */ (client).processID ?? 0;
  const [{ pid, read_only: readOnly, standby, statement_timeout: statementTimeout, has_hold_claimed: hasHoldClaimed, backend_start: backendStart, worker: known, utf8 }] = (await client.query(SESSION_INFO, [told, worker])).rows;
  if (readOnly) {
    const why = standby
      ? `${client.host}:${client.port} is a standby, which does not accept writes`
      : 'default_transaction_read_only is on for this role, database or server, but a worker must write: ALTER ROLE ... SET default_transaction_read_only = off';
    throw Object.assign(new Error(why), { code: '25006' });
  }
  return { direct: pid === told, process: pid, backendStart, statementTimeout: Number(statementTimeout), hasHoldClaimed, hearsEnds: !!known, utf8 };
}

/**
 * The settings for each host of a connection string or settings object, in order. As in libpq, host and
 * port can be lists with commas: 'postgresql://db1:5432,db2:5433/shop', { host: 'db1,db2' }.
 * @param {import('../index.js').Connection} connection @returns {import('pg').ClientConfig[]}
 */
export function hosts(connection) {
  const given = typeof connection === 'string' ? { connectionString: connection } : connection;
  if (typeof given !== 'object' || given === null || Array.isArray(given)) reject('connection', "a URL, or a configuration object for pg's Client", given);
  // A pool or a client is refused, because a worker opens its own connections.
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

/** Whether an error means that the connection can no longer be used. @param {unknown} error @param {Session} session */
export function broken(error, session) {
  // 25006: the server has become a standby.  40003: the result may be lost.  Socket errors have no SQLSTATE.
  return session.gone || /^(08...|57P0[1235]|25006|40003)$/.test(sqlstate(error));
}

/** What pg says of a lost connection in errors that have no code. */
const pgLost = /^(Connection terminated|Client has encountered a connection error|Client was closed)/;

/**
 * Whether an error of a handler, or one of its causes, says that its own connection to the server of the worker has been lost.
 * @param {unknown} error @param {Server} server @param {number} since when the attempt began, from Date.now() @returns {boolean}
 */
export function isServerLost(error, server, since) {
  let lost = false;
  walk(error, (each) => void read(() => {
    const { code, syscall, address, port, message } = /** @type {any} */ (each instanceof Error ? each : {});
    if (/^(08...|57P0[123])$/.test(sqlstate(each))) lost = true;
    else if (code === undefined) lost ||= each instanceof Error && each.name === 'Error' && pgLost.test(message);
    // A socket of another program, such as an HTTP client, has another address.
    else if (syscall === 'connect') lost ||= server.address.is(address, port);
    // An open socket does not say whose it is.
    else if (syscall === 'read' || syscall === 'write') lost ||= server.lostAt >= since;
  }));
  return lost;
}

/** Milliseconds that a cancel request may take. */
const cancelTimeout = 2000;
/** Milliseconds that a statement of the worker may take if it does not wait for anything. */
export const answerTimeout = 10_000;
/** Lower limit for the connection of the heartbeats, whose limit is a third of the lease. */
export const shortestAnswerTimeout = 2000;

/** Milliseconds after which a lost connection is logged again. */
const sayAgain = 60_000;

/** Waits for ms milliseconds, or until the signal fires. @param {number} ms @param {AbortSignal} signal @returns {Promise<void>} */
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
 * Awaits an answer. If it takes too long, the session is ended.
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

/** One session with a server that accepts writes. */
export class Session {
  /** State of its transaction: I, T or E. */
  status = 'I';
  gone = false;
  /** Whether this worker ended the session. */
  destroyed = false;
  /** The settings of its Address from which it was created. @type {import('pg').ClientConfig[] | undefined} */
  configs;
  version = '-1';
  /** Whether it was ended because the jobs are at another place. */
  moved = false;
  /** Whether the server process belongs to this session only. A pooler invents the number that it reports. */
  direct = false;
  /** Its server process, and the start time of that process. */
  process = 0;
  /** @type {string | null} */
  backendStart = null;
  /** How many times in a row the server was idle for this session while an answer was awaited (silence.js). */
  suspected = 0;
  /** Time since which an answer has been awaited without any data, from Date.now(). 0 if none is awaited. */
  #since = 0;
  #bytes = 0;
  /** Milliseconds that a statement may take; 0 means no limit. */
  statementTimeout = 0;
  /** Whether the server has idemq.hold_claimed. */
  hasHoldClaimed = false;
  /** Whether the server tells the worker at once if one of its attempts is cancelled or taken back. */
  hearsEnds = false;
  /** Whether the server can store every character. */
  utf8 = false;
  /** Names of prepared statements; undefined on a session that others may also use. @type {Set<string> | undefined} */
  prepared;
  /** The worker's message that is under way. @type {Pipeline | undefined} */
  message;
  /** Whether a handler's statement is under way. */
  busy = false;
  /** Number of BEGIN and COMMIT that a handler has run in a text of several statements. */
  controlled = false;
  /** Attempts whose leases are attached to this session. @type {Set<import('./job.js').Attempt>} */
  attempts = new Set();
  /** @type {(() => void)[]} */
  #drains = [];
  /** Called when the connection has ended, but not by this worker. */
  onLost = () => {};

  /** @param {import('pg').ClientConfig} config */
  constructor(config) {
    this.config = config;
    // pg's pipeline option does not support cursors.
    const own = /** @type {any} */ ({ pipeline: false });
    this.client = new pg.Client({ keepAlive: true, keepAliveInitialDelayMillis: 10_000, connectionTimeoutMillis: 5000, ...config, ...own });
    setDateStyle(this.client);
    this.client.on('error', () => this.#lost());
    this.client.on('end', () => this.#lost());
    this.client.on('drain', () => this.#drained());
    // Events of the protocol, to which pg also listens.
    const { connection } = /** @type {any} */ (this.client);
    connection.on('readyForQuery', (/** @type {{ status?: string }} */ message) => (this.status = message?.status ?? 'T'));
    connection.on('parseComplete', () => this.message?.parsed());
    connection.on('commandComplete', (/** @type {{ text: string }} */ { text }) => {
      if (this.message) return;
      if (/^(BEGIN|START TRANSACTION|COMMIT|PREPARE TRANSACTION)$/.test(text)) this.controlled = true;
      else if (/^(DEALLOCATE|DISCARD) ALL$/.test(text)) this.prepared?.clear();
    });
  }

  /** Called when the connection has ended, and with it the attached leases. */
  #lost() {
    if (!this.gone) this.onLost();
    this.gone = true;
    for (const attempt of this.attempts) attempt.leaseSessionEnded();
    this.#drained();
  }

  /** Called when a request is sent. */
  asked() {
    if (this.#since === 0) this.heard();
  }

  /** Called when data has arrived, or is arriving. */
  heard() {
    this.#since = Date.now();
    this.suspected = 0;
  }

  /** Milliseconds for which an answer has been awaited without any data. */
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

  /** Waits until the statements of handlers have been answered, at most ms milliseconds. @param {number} [ms] @returns {Promise<void>} */
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
   * Sends several statements in one message. Never rejects.
   * @param {import('./pipeline.js').Step[]} steps @returns {Promise<import('./pipeline.js').Answer>}
   */
  async send(steps) {
    const message = new Pipeline(this, steps);
    this.asked();
    this.client.query(message);
    const answer = await message.answer;
    // The server has forgotten the statement, or has planned it for other types, for example after an update of the extension.
    if (['26000', '42P05'].includes(sqlstate(answer.error)) || (sqlstate(answer.error) === '0A000' && this.prepared)) {
      this.prepared = undefined;
      answer.error = Object.assign(new Error(answer.error.message, { cause: answer.error }), { code: '40001' });
    }
    return answer;
  }

  /**
   * Connects to the first host that accepts writes. Throws the error of the last host if there is none.
   * @param {import('pg').ClientConfig[]} configs @param {AbortSignal} until ends the attempt when it fires
   * @param {string} [worker] @returns {Promise<Session>}
   */
  static async open(configs, until, worker) {
    let last;
    for (const config of configs) {
      const session = new Session(config);
      const give = () => session.destroy();
      until.addEventListener('abort', give);
      try {
        if (last && until.aborted) throw last;
        await session.client.connect();
        Object.assign(session, await withTimeout(5000, session, sessionInfo(session.client, worker)));
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
   * Cancels the running statement in the server. Never rejects.
   * Like libpq, it waits until the other side closes the connection: pgbouncer 1.18 and 1.19 crash if a client disconnects during its cancel request.
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

  /** Ends the session at once, whatever it is doing. */
  destroy() {
    this.destroyed = this.gone = true;
    this.cut();
  }

  /** Ends a session that does not answer. */
  cut() {
    this.#lost();
    // pg offers no other way to end a connection that may not answer.
    /** @type {any} */ (this.client).connection.stream.destroy();
  }

  /** Ends the session properly. */
  async end() {
    if (this.gone) return;
    this.gone = true;
    await Promise.race([this.client.end().catch(() => {}), new Promise((resolve) => setTimeout(resolve, 500).unref())]);
    this.destroy();
  }
}

/** The address of a server.  The address of a shard changes with the map (cluster.js). */
export class Address {
  /** Increases with each change. */
  version = '-1';

  /** @param {import('pg').ClientConfig[]} configs @param {string} [name] in the log */
  constructor(configs, name = '') {
    this.configs = configs;
    this.name = name;
  }

  /** Name of the database, as pg reads it from settings, URL and environment. */
  get database() {
    return /** @type {any} */ (new pg.Client(this.configs[0])).database;
  }

  /** Whether a socket was to be connected to this server: the path of a socket, or a port. @param {string | undefined} address @param {number | undefined} port */
  is(address, port) {
    return this.configs.some((config) => {
      const client = new pg.Client(config);
      return client.host.startsWith('/') ? address === `${client.host}/.s.PGSQL.${client.port}` : port === client.port;
    });
  }

  /**
   * Whether an error of a session that was created at this version means that the jobs are, or will
   * soon be, at another place.
   * @param {unknown} _error @param {string} _version @returns {Promise<boolean>}
   */
  async hasMoved(_error, _version) {
    return false;
  }
}

/** State that the links of one worker share: the address, the time limits and the logger. */
export class Server {
  /** Time since which no session could be opened, from Date.now(); 0 if one could. */
  #since = 0;
  /** The last error of a connection. @type {unknown} */
  error;
  /** When a session was lost last, from Date.now(). */
  lostAt = 0;
  #said = 0;
  /** Open sessions. @type {Set<Session>} */
  sessions = new Set();

  /**
   * @param {Address} address @param {import('../index.js').Logger} logger
   * @param {{ over: AbortSignal, retryConnect: boolean, worker?: string }} life over: fires when the worker must not wait any longer; worker: identifies
   *   the worker in all its sessions
   */
  constructor(address, logger, life) {
    this.address = address;
    this.logger = logger;
    this.life = life;
  }

  /** Opens a session, trying until it succeeds. @param {AbortSignal} until @returns {Promise<Session>} */
  async open(until) {
    for (let pause = 200; ; pause = Math.min(2 * pause, 5000)) {
      // Otherwise the session would never be closed.
      if (until.aborted || this.life.over.aborted) throw new Error('the worker is stopping and has no connection');
      const { configs, version } = this.address;
      try {
        const session = Object.assign(await Session.open(configs, until, this.life.worker), { configs, version });
        for (const other of this.sessions) if (other.gone) this.sessions.delete(other);
        this.sessions.add(session);
        session.onLost = () => (this.lostAt = Date.now());
        if (this.#since) this.logger.warn(`idemq: ${this.address.name}reconnected after ${((Date.now() - this.#since) / 1000).toFixed(1)} s`);
        this.#since = 0;
        return session;
      } catch (error) {
        // A wrong password or database name. At startup, the caller must fix it.
        if (!this.life.retryConnect || until.aborted || this.life.over.aborted) throw error;
        this.lost(error);
        await sleep(pause * (0.75 + Math.random() / 2), until);
      }
    }
  }

  /** Logs once a minute that the server cannot be reached. @param {unknown} error */
  lost(error) {
    const now = Date.now();
    this.error = error;
    if (!this.#since || now - this.#said >= sayAgain) {
      this.#said = now;
      const { code, message } = /** @type {any} */ (error) ?? {};
      // The message of 3D000 names the database; other messages do not.
      const to = code === '3D000' ? '' : ` to database "${this.address.database}"`;
      this.logger.warn(`idemq: ${this.address.name}no connection${to}: ${message || textOf(error)}; ${this.#since ? `for ${((now - this.#since) / 1000).toFixed(0)} s; ` : ''}trying again`);
    }
    this.#since ||= now;
  }

  /** Whether the last attempt to connect has failed. */
  get down() {
    return this.#since > 0;
  }

  /** Milliseconds for which it has been down. */
  get downFor() {
    return this.down ? Date.now() - this.#since : 0;
  }
}

/** A connection that reconnects. */
export class Link {
  /** @type {Session | null} */
  #session = null;
  /** @type {Promise<unknown>} */
  #last = Promise.resolve();
  /** The error that ended the last session. @type {unknown} */
  sessionError;
  /** Milliseconds that a statement may take if it does not wait for anything. */
  answerTimeout = answerTimeout;

  /** Whether a request is under way. */
  #asking = false;

  /**
   * @param {Server} server @param {(session: Session) => Promise<void>} [onConnect] called for each new session
   * @param {AbortSignal} [cut] when it fires, the link stops waiting for answers
   */
  constructor(server, onConnect, cut = server.life.over) {
    this.server = server;
    this.onConnect = onConnect;
    cut.addEventListener('abort', () => {
      if (this.#asking) this.#session?.destroy();
    });
  }

  /**
   * Calls fn with the session, exclusively until fn is done.
   * @template T @param {(session: Session) => Promise<T>} fn
   * @param {AbortSignal} [until] when it fires, the link stops waiting for a connection
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

  /** Runs one statement. @param {string} text @param {unknown[]} [values] @returns {Promise<any[]>} its rows */
  async rows(text, values) {
    return this.withSession(async (session) => (await session.query(text, values)).rows);
  }

  /**
   * Runs one statement that may be repeated, until a server that accepts writes has answered it.
   * @param {string} text @param {unknown[]} [values] @param {any} [types] parsers to use instead of the client's
   * @returns {Promise<{ rows: any[], again: boolean }>}
   */
  async answer(text, values, types) {
    const { answer, again } = await this.repeat(async (session) => (await session.query(text, values, types)).rows);
    return { rows: answer, again };
  }

  /**
   * Runs ask on a session in the same way. again: whether an answer may have been lost.
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
