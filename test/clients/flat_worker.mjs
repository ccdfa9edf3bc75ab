// flat_worker.mjs JSON: workers of all kinds in one process, until SIGTERM, for flat.pl.  At SIGUSR2 it says, in a line of
// stdout, what it holds: kB of the heap, kB of resident memory of its own, descriptors.

import { readFileSync, readdirSync, writeSync } from 'node:fs';
import { Worker } from 'idemq';

const { connection, waiters } = JSON.parse(process.argv[2]);
const INSERT = 'INSERT INTO effects (job) VALUES ($1)';

async function half(job, db) {
  if (job.payload % 2 === 0) await db.query(INSERT, [job.id]);
  if (job.payload % 97 === 0 && job.attempt === 1) throw new Error('planned');
}
const outside = async (job) => {
  if (job.payload % 97 === 0 && job.attempt === 1) throw new Error('planned');
};

const quiet = { info() {}, warn() {}, error: console.error };
const options = { signals: false, logger: quiet };
const workers = [
  [new Worker(connection, 'run', { ...options, concurrency: 4 }), 'run', half],
  [new Worker(connection, 'batch', { ...options, batch: 50 }), 'run', half],
  [new Worker(connection, 'outside', { ...options, concurrency: 20 }), 'runOutside', outside],
  ...Array.from({ length: waiters }, (_, n) => [new Worker(connection, `wait${n}`, options), n % 2 ? 'run' : 'runOutside', async () => {}]),
];
process.on('SIGTERM', () => workers.forEach(([worker]) => worker.stop()));
process.on('SIGUSR2', () => {
  globalThis.gc();
  const own = Number(/^Anonymous: +(\d+)/m.exec(readFileSync('/proc/self/smaps_rollup', 'utf8'))[1]);
  writeSync(1, `${Math.round(process.memoryUsage().heapUsed / 1024)} ${own} ${readdirSync('/proc/self/fd').length}\n`);
});
await Promise.all(workers.map(([worker, way, handler]) => worker[way](handler)));
