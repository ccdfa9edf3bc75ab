// What is around the pages of one database: the path prefix behind a proxy, several databases in one process, and the look (theme and
// density), which a cookie keeps in the browser.  The pages write their addresses without a prefix; it is added to what is sent.
import { createServer } from 'node:http';

/** A path prefix as an option: /idemq.  Throws an error if the text is not one. */
export function prefixOf(text) {
  if (text === '' || text === '/') return '';
  if (!/^(\/[\w.~-]+)+\/?$/.test(text)) throw new Error(`--path-prefix must be a path such as /idemq, not "${text}"`);
  return text.replace(/\/$/, '');
}

/** The databases of the options NAME=URL: {name, url}. */
export function databasesOf(texts) {
  const databases = texts.map((text) => {
    const [, name, url] = /^([\w.-]+)=(postgres(?:ql)?:\/\/.*)$/s.exec(text) ?? [];
    if (name === undefined) throw new Error(`--database must be NAME=postgresql://..., with letters, digits, "_", "." and "-" in NAME, not "${text.split('=')[0]}=..."`);
    return { name, url };
  });
  const twice = databases.find(({ name }, i) => databases.findIndex((other) => other.name === name) < i);
  if (twice) throw new Error(`--database has the name "${twice.name}" more than once`);
  return databases;
}

/** Adds the prefix to the addresses in markup.  Only templates contain such attributes, because values are escaped. */
export const prefixed = (markup, prefix) => (prefix === '' ? markup : markup.replace(/ (href|src|action)="\/(?!\/)/g, ` $1="${prefix}/`));

/** The address of a request without the prefix, which a proxy may have removed. */
export function withoutPrefix(url, prefix) {
  if (prefix === '' || !url.startsWith(prefix) || !/^(?:[/?]|$)/.test(url.slice(prefix.length))) return url;
  const rest = url.slice(prefix.length);
  return rest.startsWith('/') ? rest : `/${rest}`;
}

// The look.

export const looks = { theme: ['auto', 'light', 'dark'], density: ['normal', 'compact'] };
const LOOK = 'idemq_look';

/** The look that the browser has chosen: {theme, density}. */
export function lookOf(request) {
  const parts = new RegExp(`(?:^|;\\s*)${LOOK}=([a-z.]{1,40})(?:;|$)`).exec(request.headers.cookie ?? '')?.[1].split('.') ?? [];
  return Object.fromEntries(Object.entries(looks).map(([name, values]) => [name, values.find((value) => parts.includes(value)) ?? values[0]]));
}

/** Adds the prefix of redirects, and the route that changes the look; root: the prefix that all databases share. */
export function siteRoutes(app, { prefix, root }) {
  app.addHook('onSend', async (request, reply, payload) => {
    const to = reply.getHeader('location');
    if (typeof to === 'string' && to.startsWith('/')) reply.header('location', prefix + to);
    return payload;
  });
  app.get('/look', async (request, reply) => {
    const look = lookOf(request);
    for (const [name, values] of Object.entries(looks)) if (values.includes(request.query[name])) look[name] = request.query[name];
    // Only an address of this page: "//host" and "/\host" are addresses of other hosts.
    const back = typeof request.query.back === 'string' && /^\/(?![/\\])[^\\\r\n]*$/.test(request.query.back) ? request.query.back : '/';
    return reply.header('Set-Cookie', `${LOOK}=${look.theme}.${look.density}; Path=${root}/; Max-Age=31536000; HttpOnly; SameSite=Strict`).redirect(back, 303);
  });
}

/**
 * One server for the pages of several databases.  make: makes the page of one, given {prefix, root, name, names, all}.  The page of a
 * database has addresses that begin with /db/NAME; all other addresses lead to the first one.
 */
export async function makeSite(databases, root, make) {
  const names = databases.map(({ name }) => name);
  const apps = new Map();
  for (const { name, database } of databases) apps.set(name, await make({ database, prefix: `${root}/db/${name}`, root, name, names, all: databases }));
  for (const app of apps.values()) await app.ready();
  const server = createServer((request, response) => {
    const url = withoutPrefix(request.url, root);
    const [, name, rest] = /^\/db\/([^/?]+)(.*)$/s.exec(url) ?? [];
    if (apps.has(name)) {
      request.url = rest.startsWith('/') ? rest : `/${rest}`;
      apps.get(name).routing(request, response);
    } else if (/^\/healthz(\?|$)/.test(url)) {
      request.url = '/healthz?all=1';
      apps.get(names[0]).routing(request, response);
    } else if (url === '/' || url.startsWith('/?')) response.writeHead(303, { Location: `${root}/db/${names[0]}/` }).end();
    else {
      request.url = '/not-found';
      apps.get(names[0]).routing(request, response);
    }
  });
  return {
    listen: ({ host, port }) => new Promise((resolve, reject) => {
      server.once('error', reject);
      server.listen(port, host, () => {
        const { address, family, port: own } = server.address();
        resolve(`http://${family === 'IPv6' ? `[${address}]` : address}:${own}`);
      });
    }),
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => { server.close(resolve); });
      for (const app of apps.values()) await app.close();
    },
  };
}
