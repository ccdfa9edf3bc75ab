// once_worker.mjs JSON: workers for once.pl in one process, until SIGTERM.
//
// JSON has connection; wait, another one to sleep by, or null; log and sent, files; control, whether to work for that queue.
// Each call of a handler is a line of log, QUEUE N TOKEN ATTEMPT, which outlives the process.  Of the jobs of transactions
// those with an even n write a row of effects, each by another way of the driver; the others never touch their connection.
// One in 97 fails in its first attempt, after its effect.

import { appendFileSync, openSync, readFileSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'idemq';
import pg from 'pg';

const { connection, wait, log, sent, control } = JSON.parse(process.argv[2]);
const file = openSync(log, 'a');
const say = (level) => (text) => process.stderr.write(`${level} ${text}\n`);
const logger = { info: say('INFO'), warn: say('WARNING'), error: say('ERROR') };
const options = { logger, signals: false, ...(wait ? { waitConnection: wait } : {}) };
const INSERT = 'INSERT INTO effects (queue, n, token) VALUES ($1, $2, $3)';

const called = ({ queue, payload, token, attempt }) => writeSync(file, `${queue} ${payload.n} ${token} ${attempt}\n`);
// So that trouble comes in the middle, too.
const moment = () => sleep(Math.random() * 4);

const ways = [
  (db, values) => db.query(INSERT, values),
  (db, values) => db.query({ text: INSERT, values, ...(wait ? {} : { name: 'effect' }) }),
  (db, values) => new Promise((resolve, reject) => { db.query(INSERT, values, (error) => (error ? reject(error) : resolve())); }),
  (db, values) => new Promise((resolve, reject) => { db.query(new pg.Query(INSERT, values)).on('end', resolve).on('error', reject); }),
  async (db, values) => {
    await db.query('SAVEPOINT here');
    await db.query(INSERT, values);
    await db.query('ROLLBACK TO SAVEPOINT here');
    await db.query(INSERT, values);
    await db.query('RELEASE SAVEPOINT here');
  },
];

function end({ payload: { n }, attempt }) {
  if (n % 97 === 0 && attempt === 1) throw new Error('planned');
  return { n };
}

async function transact(job, db) {
  const { n } = job.payload;
  called(job);
  if (n % 3 === 0) await moment();
  if (n % 2 === 0) {
    await ways[(n / 2) % ways.length](db, [job.queue, n, job.token]);
    if (n % 4 === 0) await moment();
  }
  return end(job);
}

// The provider, which can be asked, is a file.
const provided = (key) => readFileSync(sent, 'utf8').split('\n').includes(key);

async function outside(job) {
  const { n } = job.payload;
  called(job);
  if (n % 2 === 0) await moment();
  if (n % 20 === 0) {
    await job.step('send', ({ key, until }) => {
      if (Date.now() > until.getTime()) throw new Error('too late');
      appendFileSync(sent, `${key}\n`);
      return {};
    }, { callTimeout: 4, ask: ({ key }) => (provided(key) ? {} : undefined) });
  }
  return end(job);
}

// What the account must find: an effect that is not in the job's transaction.
let own;
async function uncontrolled(job) {
  const { n } = job.payload;
  called(job);
  if (n % 2 === 0) {
    if (!own) {
      own = new pg.Pool({ ...connection, max: 1 });
      own.on('error', () => {});
    }
    await own.query(INSERT, [job.queue, n, job.token]);
    await sleep(30);
  }
  return end(job);
}

const workers = [
  new Worker(connection, 'node_run', { ...options, concurrency: 3 }),
  new Worker(connection, 'node_batch', { ...options, batch: 8 }),
  new Worker(connection, 'node_outside', { ...options, concurrency: 6 }),
  ...(control ? [new Worker(connection, 'control', options)] : []),
];
process.on('SIGTERM', () => workers.forEach((worker) => worker.stop()));
logger.info('hears signals');
await Promise.all([workers[0].run(transact), workers[1].run(transact), workers[2].runOutside(outside), workers[3]?.run(uncontrolled)]);
await own?.end();
