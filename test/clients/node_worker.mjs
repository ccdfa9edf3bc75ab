// node_worker.mjs run|outside: a worker for node.pl, by the Node client as it is packed.
//
// CONNECTION and OPTIONS are JSON; files are in the folder T.  A handler writes its job's effect, into
// the table effects or the file effects, says that it has begun (began.ID), and does what the payload asks for:
// gate: waits for that file; sleep: for seconds in the server; hang: does not end, whatever is told to it;
// block: keeps the event loop busy until that file is there, in the first attempt; until: waits for the signal, and ends with its reason.

import { appendFileSync, existsSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { Worker } from 'idemq';

const { T, CONNECTION, OPTIONS } = process.env;
const outside = process.argv[2] === 'outside';
const say = (level) => (text) => console.error(`${level} ${text}`);
const worker = new Worker(JSON.parse(CONNECTION), 'q', {
  ...JSON.parse(OPTIONS ?? '{}'),
  logger: { info: say('info'), warn: say('warn'), error: say('error') },
});

async function handler(job, client) {
  const { gate, sleep, hang, block, until } = job.payload;
  // Its time may be over while the effect is under way.
  job.signal.addEventListener('abort', () => appendFileSync(`${T}/cancelled.${job.id}`, `${job.signal.reason.why}\n`));
  if (client) await client.query('INSERT INTO effects (id, token) VALUES ($1, $2)', [job.id, job.token]);
  appendFileSync(`${T}/began.${job.id}`, `${job.attempt}\n`);
  while (gate && !existsSync(`${T}/${gate}`)) await delay(20);
  if (sleep) await client.query('SELECT pg_sleep($1)', [sleep]);
  if (hang) await new Promise(() => {});
  while (block && job.attempt === 1 && !existsSync(`${T}/${block}`));
  if (until) {
    await new Promise((resolve) => job.signal.addEventListener('abort', resolve));
    throw job.signal.reason;
  }
  if (!client) appendFileSync(`${T}/effects`, `${job.id} ${job.token}\n`);
  return { attempt: job.attempt };
}

const ended = await (outside ? worker.runOutside(handler) : worker.run(handler));
console.log(JSON.stringify(Object.fromEntries(Object.entries(ended).sort())));
