// A pool for producers that finds the host that accepts writes.

import { hosts, sessionInfo } from './connection.js';
import { pg } from './packages.js';

/** @type {typeof import('../index.js').createPool} */
export function createPool(connection, options = {}) {
  const configs = hosts(connection);
  let at = 0;

  // The index of the host that accepted writes last. When it stops doing so, the pool tries the next host.
  class Client extends pg.Client {
    /** @param {import('pg').ClientConfig} config */
    constructor(config) {
      super({ ...config, ...configs[at % configs.length] });
      // If the connection of a client that is in use breaks between two statements, the next statement fails. Without a listener, the process would end.
      this.on('error', () => {});
    }

    /** @param {any} [callback] @returns {Promise<any>} */
    connect(callback) {
      const turn = at;
      const connected = super.connect().then(async () => {
        await sessionInfo(this);
        return this;
      });
      const checked = connected.catch((error) => {
        if (at === turn) at++;
        void super.end().catch(() => {});
        throw error;
      });
      return callback ? checked.then(() => callback(), callback) : checked;
    }
  }

  class Pool extends pg.Pool {
    /** @param {any} [callback] @returns {any} */
    connect(callback) {
      const connected = (async () => {
        for (let left = configs.length; ; ) {
          try {
            return await super.connect();
          } catch (error) {
            if (--left <= 0) throw error;
          }
        }
      })();
      return callback ? connected.then((client) => callback(undefined, client, client.release), callback) : connected;
    }
  }

  const pool = new Pool({ connectionTimeoutMillis: 10_000, keepAlive: true, ...options, .../** @type {any} */ ({ Client }) });
  // An idle connection broke. The pool has already removed it.
  pool.on('error', () => {});
  return pool;
}
