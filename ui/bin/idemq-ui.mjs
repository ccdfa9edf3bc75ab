#!/usr/bin/env node
// idemq-ui [--port=N] [--actions]
import { parseArgs } from 'node:util';
import { Database } from '../src/database.mjs';
import { makeServer } from '../src/server.mjs';

const usage = `Usage: idemq-ui [--port=4332] [--actions]

A web page for idemq on this machine's loopback.  It connects by the PG* settings (PGHOST,
PGDATABASE, PGUSER, PGSERVICEFILE is not read), and shows what row-level security lets that
role see.

  --port=N    the port to listen on; 0: any that is free
  --actions   offer retry, redrive, cancel, pause, release ...; read-only otherwise
  --help      this text
`;

function options() {
  try {
    const { values } = parseArgs({ options: {
      port: { type: 'string', default: '4332' },
      actions: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    } });
    if (!/^[0-9]{1,5}$/.test(values.port) || Number(values.port) > 65535) throw new Error(`--port must be 0 to 65535, not "${values.port}"`);
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
const app = await makeServer({ database: new Database(), writes: given.actions });
try {
  const address = await app.listen({ host: '127.0.0.1', port: Number(given.port) });
  process.stdout.write(`idemq-ui: ${address}${given.actions ? '' : ' (read-only: --actions offers actions)'}\n`);
} catch (error) {
  process.stderr.write(`idemq-ui: ${error.code === 'EADDRINUSE' ? `port ${given.port} is taken: --port=0 takes any` : error.message}\n`);
  process.exit(1);
}
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => app.close().then(() => process.exit(0)));
