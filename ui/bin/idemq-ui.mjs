#!/usr/bin/env node
// idemq-ui [--port=N] [--actions] [--listen=ADDRESS --proxy=ADDRESS --host=NAME --user-header=NAME]
import { parseArgs } from 'node:util';
import { Database } from '../src/database.mjs';
import { isLoopback, networks } from '../src/security.mjs';
import { makeServer } from '../src/server.mjs';

const usage = `Usage: idemq-ui [--port=4332] [--actions] [--listen=ADDRESS --proxy=ADDRESS ...]

A web page for idemq on this machine's loopback.  It connects by the PG* settings (PGHOST,
PGDATABASE, PGUSER, PGSERVICEFILE is not read), and shows what row-level security lets that
role see.

  --port=N    the port to listen on; 0: any that is free
  --actions   offer retry, redrive, cancel, pause ...; read-only otherwise

Who may look is the operating system's to decide on this machine, and a proxy's elsewhere:
  --proxy=ADDRESS      where the proxy is, 10.0.0.7 or 10.0.0.0/24; may be given again
  --user-header=NAME   the header in which it names the user (X-Forwarded-User), who becomes the
                       actor in idemq.audit; from other addresses it is not read
  --host=NAME          the name under which it is reached; may be given again
  --listen=ADDRESS     the address to listen on (127.0.0.1); another wants --proxy

  --help      this text
`;

function options() {
  try {
    const { values } = parseArgs({ options: {
      port: { type: 'string', default: '4332' },
      actions: { type: 'boolean', default: false },
      listen: { type: 'string', default: '127.0.0.1' },
      proxy: { type: 'string', multiple: true, default: [] },
      host: { type: 'string', multiple: true, default: [] },
      'user-header': { type: 'string', default: 'X-Forwarded-User' },
      help: { type: 'boolean', default: false },
    } });
    if (!/^[0-9]{1,5}$/.test(values.port) || Number(values.port) > 65535) throw new Error(`--port must be 0 to 65535, not "${values.port}"`);
    networks(values.proxy);
    if (!isLoopback(values.listen) && values.proxy.length === 0) throw new Error(`--listen=${values.listen} wants --proxy: the page has no login of its own`);
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
const app = await makeServer({ database: new Database(), writes: given.actions,
  access: { proxies: given.proxy, hosts: given.host, header: given['user-header'] } });
try {
  const address = await app.listen({ host: given.listen, port: Number(given.port) });
  process.stdout.write(`idemq-ui: ${address}${given.actions ? '' : ' (read-only: --actions offers actions)'}\n`);
} catch (error) {
  process.stderr.write(`idemq-ui: ${error.code === 'EADDRINUSE' ? `port ${given.port} is taken: --port=0 takes any` : error.message}\n`);
  process.exit(1);
}
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => app.close().then(() => process.exit(0)));
