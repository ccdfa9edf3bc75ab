// Access control.  The page does not have its own login.  By default, it listens only on loopback,
// accepts only loopback host names (another name that resolves to 127.0.0.1 is refused), and accepts
// forms only from its own pages.  For access from other machines, a proxy decides who can open the page.
// The proxy's address and the page's host name are options, and the proxy's header names the user.
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';
import { BlockList, isIP, isIPv6 } from 'node:net';

const COOKIE = 'idemq_ui';
const loopback = ['localhost', '127.0.0.1', '[::1]'];

const familyOf = (address) => (isIPv6(address) ? 'ipv6' : 'ipv4');

/** Addresses and networks, such as 10.0.0.7 or 10.0.0.0/24.  Throws if a text is neither. */
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

/** A socket's address.  An IPv4 address on a dual-stack socket is returned in IPv4 form. */
const plain = (address) => address?.replace(/^::ffff:(?=[0-9.]+$)/, '') ?? '';
const among = (list, address) => isIP(address) !== 0 && list.check(address, familyOf(address));
export const isLoopback = (address) => among(here, address) || address === 'localhost';

/** The host in a Host or Origin header, without the port, which ssh -L may change. */
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
  /** hosts: accepted host names in addition to those of loopback; proxies: networks; header: the header in which a proxy names the user; path: the path of the cookie. */
  constructor({ hosts = [], proxies = [], header = 'x-forwarded-user', path = '/' } = {}) {
    this.path = path;
    this.key = randomBytes(32);
    this.names = new Set([...loopback, ...hosts.map((host) => host.toLowerCase())]);
    this.proxies = networks(proxies);
    this.header = header.toLowerCase();
  }

  /** The user of a request, or null for a request from this machine.  Throws if the client is not allowed. */
  actor(request) {
    const from = plain(request.socket.remoteAddress);
    const named = request.headers[this.header];
    if (among(this.proxies, from)) {
      // If the header is present twice, the proxy has passed on a header that the client sent.
      if (typeof named !== 'string' || named.trim() === '' || named.includes(','))
        throw Object.assign(new Error(`The proxy did not name a user. It must set the header ${this.header} exactly once.`), { statusCode: 403 });
      return named.trim();
    }
    if (!among(here, from)) throw Object.assign(new Error('This page accepts requests only from its proxy.'), { statusCode: 403 });
    return null;
  }

  /** The browser's session: a random name in a cookie that is set with the first page. */
  session(request, reply) {
    const found = /(?:^|;\s*)idemq_ui=([0-9a-f]{32})(?:;|$)/.exec(request.headers.cookie ?? '');
    if (found) return found[1];
    const name = randomBytes(16).toString('hex');
    reply.header('Set-Cookie', `${COOKIE}=${name}; Path=${this.path}; HttpOnly; SameSite=Strict`);
    return name;
  }

  /** The token that a form of this session must contain. */
  token(session) {
    return createHmac('sha256', this.key).update(session).digest('hex');
  }

  matches(session, token) {
    return same(this.token(session), token);
  }

  /** The signature of a text in an address, which shows that this process created the text. */
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
