// What keeps other pages of the same browser out, since there is no login: the server listens on
// loopback, answers to loopback's names alone (a foreign name that resolves to 127.0.0.1 is
// refused), and takes a form only from its own pages.
import { createHmac, randomBytes, timingSafeEqual } from 'node:crypto';

const COOKIE = 'idemq_ui';
const names = new Set(['localhost', '127.0.0.1', '[::1]']);

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
  constructor() {
    this.key = randomBytes(32);
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
      if (!names.has(hostOf(request.headers.host ?? '')))
        return reply.code(421).type('text/plain').send('This page answers to localhost alone: open http://localhost and its port.\n');
      if (request.method === 'GET' || request.method === 'HEAD') {
        request.session = this.session(request, reply);
        return undefined;
      }
      const { origin } = request.headers;
      const site = request.headers['sec-fetch-site'];
      if ((origin !== undefined && !names.has(hostOf(origin))) || (site !== undefined && site !== 'same-origin'))
        return reply.code(403).type('text/plain').send('This form came from another page: nothing was done.\n');
      request.session = this.session(request, reply);
      return undefined;
    });
    app.addHook('preHandler', async (request, reply) => {
      if (request.method === 'POST' && !this.matches(request.session, request.body?.csrf))
        return reply.code(403).type('text/plain').send('This form is not from this run of the page: go back, reload, and send it again.\n');
      return undefined;
    });
  }
}
