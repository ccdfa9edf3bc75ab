#!/usr/bin/env node
// idemq-ui [--port=N] [--actions [--allow-settings]] [--database=NAME=URL ...] [--listen=ADDRESS --proxy=ADDRESS --host=NAME --user-header=NAME --path-prefix=PATH]
import { parseArgs } from 'node:util';
import { Database } from '../src/database.mjs';
import { isLoopback, networks } from '../src/security.mjs';
import { makeServer } from '../src/server.mjs';
import { databasesOf, makeSite, prefixOf } from '../src/site.mjs';

const usage = `Usage: idemq-ui [--port=4332] [--actions [--allow-settings]] [--listen=ADDRESS --proxy=ADDRESS ...]

Serves a web page for idemq on this machine's loopback interface.  The program connects with the
PG* variables (PGHOST, PGDATABASE, PGUSER and so on, but not PGSERVICEFILE), and shows what
row-level security allows the connecting role to see.

  --port=N    port to listen on; 0 means any free port
  --actions   allow actions such as retry, redrive, cancel and pause; read-only by default
  --allow-settings   with --actions: also allow changes to the settings of queues and to schedules
  --database=NAME=URL  database to show under this name, with a URL such as postgresql://host/db, in which
                       PG* variables supply what is missing; can be repeated

On this machine, the operating system decides who may open the page.  Elsewhere, a proxy must do so:
  --proxy=ADDRESS      address of the proxy, such as 10.0.0.7 or 10.0.0.0/24; can be repeated
  --user-header=NAME   header with the user's name (X-Forwarded-User), which becomes the actor in
                       idemq.audit; it is ignored in requests from other addresses
  --host=NAME          host name by which the page is reached; can be repeated
  --path-prefix=PATH   path under which the proxy serves the page, such as /idemq
  --listen=ADDRESS     address to listen on (127.0.0.1); any other requires --proxy

  --help      show this text
`;

function options() {
  try {
    const { values } = parseArgs({ options: {
      port: { type: 'string', default: '4332' },
      actions: { type: 'boolean', default: false },
      'allow-settings': { type: 'boolean', default: false },
      listen: { type: 'string', default: '127.0.0.1' },
      proxy: { type: 'string', multiple: true, default: [] },
      host: { type: 'string', multiple: true, default: [] },
      database: { type: 'string', multiple: true, default: [] },
      'path-prefix': { type: 'string', default: '' },
      'user-header': { type: 'string', default: 'X-Forwarded-User' },
      help: { type: 'boolean', default: false },
    } });
    if (!/^[0-9]{1,5}$/.test(values.port) || Number(values.port) > 65535) throw new Error(`--port must be a number from 0 to 65535, not "${values.port}"`);
    if (values['allow-settings'] && !values.actions) throw new Error('--allow-settings requires --actions');
    networks(values.proxy);
    values.prefix = prefixOf(values['path-prefix']);
    values.databases = databasesOf(values.database);
    if (!isLoopback(values.listen) && values.proxy.length === 0) throw new Error(`--listen=${values.listen} requires --proxy, because the page does not have its own login`);
    return values;
  } catch (error) {
    process.stderr.write(`idemq-ui: ${error.message}\n${usage}`);
    return process.exit(2);
  }
}

const given = options();
if (given.help) {
  process.stdout.write(usage);
  process.exit(0);
}
const common = { writes: given.actions, settings: given['allow-settings'], access: { proxies: given.proxy, hosts: given.host, header: given['user-header'] } };
const app = given.databases.length === 0 ? await makeServer({ ...common, database: new Database(), site: { prefix: given.prefix, root: given.prefix } })
  : await makeSite(given.databases.map(({ name, url }) => ({ name, database: new Database({ connectionString: url }) })), given.prefix,
    ({ database, ...site }) => makeServer({ ...common, database, site }));
try {
  const address = await app.listen({ host: given.listen, port: Number(given.port) });
  process.stdout.write(`idemq-ui: ${address}${given.prefix}${given.actions ? '' : ' (read-only; use --actions to allow actions)'}\n`);
} catch (error) {
  process.stderr.write(`idemq-ui: ${error.code === 'EADDRINUSE' ? `port ${given.port} is already in use; use --port=0 for any free port` : error.message}\n`);
  process.exit(1);
}
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => app.close().then(() => process.exit(0)));
