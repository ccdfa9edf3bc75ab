// node_shards.mjs run|outside: a worker over shards for shards.pl, as shard_worker.py.

import { appendFileSync, existsSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { ClusterWorker } from 'idemq';

const { T, CONNECTION, OPTIONS } = process.env;
const say = (level) => (text) => console.error(`${level} ${text}`);
const worker = new ClusterWorker(JSON.parse(CONNECTION), 'q', {
  ...JSON.parse(OPTIONS ?? '{}'),
  logger: { info: say('info'), warn: say('warn'), error: say('error') },
});

async function handler(job, client) {
  appendFileSync(`${T}/began`, `${job.key} ${job.attempt}\n`);
  const { gate } = job.payload;
  while (gate && !existsSync(`${T}/${gate}`)) await delay(20);
  if (client) await client.query('INSERT INTO effects (key, at) VALUES ($1, current_database())', [job.key]);
  else appendFileSync(`${T}/effects`, `${job.key}\n`);
  return { attempt: job.attempt };
}

const ended = await (process.argv[2] === 'outside' ? worker.runOutside(handler) : worker.run(handler));
console.log(JSON.stringify(Object.fromEntries(Object.entries(ended).sort())));
