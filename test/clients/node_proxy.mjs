// A proxy between a client and PostgreSQL that counts the client's messages, and cuts connections where it is told to.

import net from 'node:net';
import { once } from 'node:events';

/**
 * @param {{ host: string, port?: number }} to a socket's folder, or a host
 * @param {{ pooled?: boolean }} [how] pooled: it makes up the server's process, as a pooler does
 */
export async function proxyTo({ host, port = 5432 }, { pooled = false } = {}) {
  const proxy = {
    /** Messages that ask for an answer, of all connections. */
    messages: 0,
    /** The same by what they have run: 'BEGIN idemq_hold'. @type {string[]} */
    log: [],
    /** Called with what a message runs, before it is passed on; true: its connection is cut when the server has answered. */
    cut: (/** @type {string} */ _what) => false,
    /** Transaction states after answers. @type {string[]} */
    states: [],
    sockets: new Set(),
  };
  const server = net.createServer((client) => {
    const upstream = host.startsWith('/') ? net.connect(`${host}/.s.PGSQL.${port}`) : net.connect(port, host);
    let started = false;
    let rest = Buffer.alloc(0);
    let back = Buffer.alloc(0);
    let doomed = false;
    /** @type {string[]} */
    let runs = [];
    const end = () => {
      client.destroy();
      upstream.destroy();
    };
    proxy.sockets.add(client);
    for (const socket of [client, upstream]) socket.on('error', end).on('close', end);
    client.on('close', () => proxy.sockets.delete(client));
    client.on('data', (chunk) => {
      rest = Buffer.concat([rest, chunk]);
      const from = rest;
      let at = 0;
      for (;;) {
        const head = started ? 1 : 0;
        if (from.length < at + head + 4) break;
        const length = from.readInt32BE(at + head) + head;
        if (from.length < at + length) break;
        const type = started ? String.fromCharCode(from[at]) : '';
        const body = from.subarray(at + head + 4, at + length);
        if (type === 'B') runs.push(body.toString('latin1').split('\0')[1] || 'unnamed');
        if (type === 'P' && runs.length === 0) runs.push('');
        if (type === 'P' && body[0] === 0) runs.push(`(${body.toString('latin1', 1).split('\0')[0].replace(/\s+/g, ' ').slice(0, 30)})`);
        if (type === 'Q') runs.push(body.toString('latin1').replace(/\0$/, ''));
        if (type === 'S' || type === 'Q') {
          const what = runs.filter(Boolean).join(' ');
          runs = [];
          proxy.messages++;
          proxy.log.push(what);
          if (proxy.cut(what)) doomed = true;
        }
        // A cancel's connection, and the startup; TLS is not for tests.
        if (!started) started = true;
        at += length;
      }
      rest = from.subarray(at);
      upstream.write(from.subarray(0, at));
    });
    upstream.on('data', (chunk) => {
      back = Buffer.concat([back, chunk]);
      const out = [];
      let at = 0;
      while (back.length >= at + 5 && back.length >= at + 1 + back.readInt32BE(at + 1)) {
        const length = 1 + back.readInt32BE(at + 1);
        const message = back.subarray(at, at + length);
        at += length;
        if (message[0] === 0x4b && pooled) message.writeInt32BE(1, 5);
        if (message[0] === 0x5a) {
          proxy.states.push(String.fromCharCode(message[5]));
          if (doomed) return end();
        }
        if (!doomed) out.push(message);
      }
      back = back.subarray(at);
      if (out.length > 0) client.write(Buffer.concat(out));
    });
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  return Object.assign(proxy, {
    port: /** @type {net.AddressInfo} */ (server.address()).port,
    close() {
      for (const socket of proxy.sockets) socket.destroy();
      server.close();
    },
  });
}
