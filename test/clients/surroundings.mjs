// surroundings.mjs HOST PORT ROLE...: until SIGTERM, workers as each role, of its queues ROLE_node_run and ROLE_node_outside.  Their log goes to stderr.
//
// As role late, of queues late_node, whose handlers block the event loop for longer than a lease, in their first attempts, and large,
// late_large_run and late_large_outside, whose results are.

import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'idemq';

const [host, port, ...roles] = process.argv.slice(2);
const pause = 1500; // longer than some of these sessions may be idle in a transaction, or at all
const say = (level) => (text) => process.stderr.write(`${level} ${text}\n`);
const logger = { info: say('INFO'), warn: say('WARNING'), error: say('ERROR') };

const answer = (job) => ({ said: job.payload.said, year: job.enqueuedAt.getFullYear() });

async function transact(job, db) {
  await sleep(pause);
  await db.query('INSERT INTO effects (job, said) VALUES ($1, $2)', [job.id, job.payload.said]);
  return answer(job);
}

async function outside(job) {
  await sleep(pause);
  await job.saveCheckpoint({ said: job.payload.said });
  return answer(job);
}

async function late(job) {
  const until = Date.now() + (job.attempt === 1 ? 3000 : 0);
  while (Date.now() < until);
}

const large = async () => 'x'.repeat(300 * 2 ** 20);

const ends = roles.flatMap((role) => {
  const connection = { host, port: Number(port), user: role, database: 'postgres' };
  const worker = (way) => new Worker(connection, `${role}_${way}`, { logger });
  if (role === 'late')
    return [
      new Worker(connection, 'late_node', { logger, concurrency: 2 }).runOutside(late),
      worker('large_run').run(large),
      worker('large_outside').runOutside(large),
    ];
  return [worker('node_run').run(transact), worker('node_outside').runOutside(outside)];
});
for (const end of await Promise.allSettled(ends)) if (end.status === 'rejected') logger.error(`a worker has ended: ${end.reason}`);
