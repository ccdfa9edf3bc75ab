// What keeps others out, since there is no login: the server listens on loopback, answers to
// loopback's names alone (a foreign name that resolves to 127.0.0.1 is refused), and takes a form
// only from its own pages.  Elsewhere a proxy decides who may look: its address and the page's
// name are told, and who comes through it is whom its header names.
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { BlockList, isIP, isIPv6 } from 'node:net';

const COOKIE = 'idemq_ui';
const loopback = ['localhost', '127.0.0.1', '[::1]'];

const familyOf = (address) => (isIPv6(address) ? 'ipv6' : 'ipv4');

/** Addresses and networks, as 10.0.0.7 or 10.0.0.0/24; throws for what is neither. */
export function networks(texts) {
  const list = new BlockList();
  for (const text of texts) {
    const [address, bits, more] = text.split('/');
    const most = isIPv6(address) ? 128 : 32;
    if (!isIP(address) || more !== undefined || (bits !== undefined && (!/^[0-9]{1,3}$/.test(bits) || Number(bits) > most)))
      throw new Error(`"${text}" is neither an address nor a network such as 10.0.0.0/24`);
    list.addSubnet(address, Number(bits ?? most), familyOf(address));
  }
  return list;
}

const here = networks(['127.0.0.0/8', '::1']);

/** A socket's address; of IPv4 on a socket of both, the plain one. */
const plain = (address) => address?.replace(/^::ffff:(?=[0-9.]+$)/, '') ?? '';
const among = (list, address) => isIP(address) !== 0 && list.check(address, familyOf(address));
export const isLoopback = (address) => among(here, address) || address === 'localhost';

/** The host of a Host header or an Origin, without its port; ssh -L may change that. */
function hostOf(text) {
  try {
    return new URL(/^https?:\/\//.test(text) ? text : `http://${text}`).hostname;
  } catch {
    return null;
  }
}

const headers = {
  'Content-Security-Policy':
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    + "frame-ancestors 'none'; base-uri 'none'",
  'X-Content-Type-Options': 'nosniff',
  'X-Frame-Options': 'DENY',
  'Referrer-Policy': 'same-origin',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Cache-Control': 'no-store',
};

function same(expected, given) {
  const [a, b] = [Buffer.from(expected), Buffer.from(String(given ?? ''))];
  return a.length === b.length && timingSafeEqual(a, b);
}

export class Security {
  /** hosts: names that it answers to beside loopback's; proxies: networks; header: names the user there. */
  constructor({ hosts = [], proxies = [], header = 'x-forwarded-user' } = {}) {
    this.key = randomBytes(32);
    this.names = new Set([...loopback, ...hosts.map((host) => host.toLowerCase())]);
    this.proxies = networks(proxies);
    this.header = header.toLowerCase();
  }

  /** For whom a request is: null of this machine's own; throws for who may not come. */
  actor(request) {
    const from = plain(request.socket.remoteAddress);
    const named = request.headers[this.header];
    if (among(this.proxies, from)) {
      // A header that is given twice is one of a client that the proxy has let through.
      if (typeof named !== 'string' || named.trim() === '' || named.includes(','))
        throw Object.assign(new Error(`The proxy did not name a user. It must set the header ${this.header} exactly once.`), { statusCode: 403 });
      return named.trim();
    }
    if (!among(here, from)) throw Object.assign(new Error('This page accepts requests only from its proxy.'), { statusCode: 403 });
    return null;
  }

  /** The browser's session: a random name in a cookie of its own, made at its first page. */
  session(request, reply) {
    const found = /(?:^|;\s*)idemq_ui=([0-9a-f]{32})(?:;|$)/.exec(request.headers.cookie ?? '');
    if (found) return found[1];
    const name = randomBytes(16).toString('hex');
    reply.header('Set-Cookie', `${COOKIE}=${name}; Path=/; HttpOnly; SameSite=Strict`);
    return name;
  }

  /** What a form of this session carries. */
  token(session) {
    return createHmac('sha256', this.key).update(session).digest('hex');
  }

  matches(session, token) {
    return same(this.token(session), token);
  }

  /** What shows that a text in an address is of this run of the page. */
  sign(text) {
    return createHmac('sha256', this.key).update(`text ${text}`).digest('hex').slice(0, 32);
  }

  signed(text, sign) {
    return same(this.sign(text), sign);
  }

  install(app) {
    app.addHook('onRequest', async (request, reply) => {
      reply.headers(headers);
      try {
        request.actor = this.actor(request);
      } catch (error) {
        return reply.code(error.statusCode).type('text/plain').send(`${error.message}\n`);
      }
      if (!this.names.has(hostOf(request.headers.host ?? '')))
        return reply.code(421).type('text/plain').send('This page accepts only the host name localhost and the names given with --host. Open http://localhost with the port of this page.\n');
      if (request.method === 'GET' || request.method === 'HEAD') {
        request.session = this.session(request, reply);
        return undefined;
      }
      const { origin } = request.headers;
      const site = request.headers['sec-fetch-site'];
      if ((origin !== undefined && !this.names.has(hostOf(origin))) || (site !== undefined && site !== 'same-origin'))
        return reply.code(403).type('text/plain').send('This form came from another page, so nothing was done.\n');
      request.session = this.session(request, reply);
      return undefined;
    });
    app.addHook('preHandler', async (request, reply) => {
      if (request.method === 'POST' && !this.matches(request.session, request.body?.csrf))
        return reply.code(403).type('text/plain').send('This form was created before the page was last restarted. Go back, reload the page, and submit the form again.\n');
      return undefined;
    });
  }
}
