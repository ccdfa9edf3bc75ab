// What the real libraries do in moving.pl: node moving.mjs LIBRARY fill | run COUNT.
//
// fill makes jobs in every state.  run is a producer of COUNT jobs {"n": 1..COUNT}, one after the other, and beside it, from
// the second half on, a worker, whose effect is a row.  It says "half", and goes on by SIGUSR2; "sent"; and ends by SIGTERM.
import pg from 'pg';

const [library, command, count] = process.argv.slice(2);
const db = new pg.Client(); // PGHOST and so on
await db.connect();
const effect = (n, by) => db.query('INSERT INTO effects VALUES ($1, $2)', [n, by]);
const ended = new Promise((resolve) => { process.on('SIGTERM', resolve); });
const going = new Promise((resolve) => { process.on('SIGUSR2', resolve); });
async function produce(send, work) {
  for (let n = 1; n <= count; n += 1) {
    if (n === Math.ceil(count / 2)) {
      console.log('half');
      await going;
      await work();
    }
    await send(n);
  }
  console.log('sent');
  await ended;
}
const later = new Date(Date.now() + 7 * 86400 * 1000);

async function pgBoss() {
  const { PgBoss, default: older } = await import(library);
  const boss = new (PgBoss ?? older)({ host: process.env.PGHOST, port: process.env.PGPORT, user: process.env.PGUSER, database: process.env.PGDATABASE });
  boss.on('error', (error) => console.error(error));
  await boss.start();
  for (const [name, policy] of [['mail', 'standard'], ['short', 'short'], ['one', 'singleton']]) {
    if (!await boss.getQueue(name)) await boss.createQueue(name, { name, policy });
  }
  if (command === 'fill') {
    const fail = async (name, message) => {
      const [job] = await boss.fetch(name);
      await boss.fail(name, job.id, new Error(message));
    };
    await boss.send('mail', { is: 'dead' }, { retryLimit: 0 });
    await fail('mail', 'no such address');
    await boss.send('mail', { is: 'retried' }, { retryLimit: 4, retryDelay: 86400 });
    await fail('mail', 'try later');
    await boss.send('mail', { is: 'active' });
    await boss.fetch('mail');
    await boss.send('mail', { is: 'waiting' });
    await boss.send('mail', null);
    await boss.send('mail', { is: 'delayed' }, { startAfter: later });
    await boss.send('mail', { is: 'urgent' }, { priority: 3 });
    await boss.send('mail', { is: 'most urgent' }, { priority: 2147483647, retryLimit: 2147483647 });
    await boss.send('short', { is: 'too long' }, { singletonKey: 'k'.repeat(1500) });
    await boss.send('short', { is: 'keyed' }, { singletonKey: 'customer-7' });
    await boss.send('short', { is: 'known' }, { singletonKey: 'customer-8' });
    await boss.send('short', { is: 'other' }, { singletonKey: 'customer-9' });
    await boss.send('one', { is: 'one' });
    await boss.send('one', { is: 'another' });
    await boss.schedule('mail', '0 3 * * *', { is: 'nightly' }, { tz: 'Europe/Berlin' });
  } else {
    await produce((n) => boss.send('mail', { n }), () => boss.work('mail', { batchSize: 5, pollingIntervalSeconds: 0.5 }, async (jobs) => {
      for (const job of jobs) await effect(job.data.n, 'pg-boss');
    }));
  }
  await boss.stop({ graceful: command === 'run', wait: true, timeout: 20000 });
}

async function graphile() {
  const { Logger, makeWorkerUtils, run } = await import('graphile-worker');
  const pgPool = new pg.Pool();
  const logger = new Logger(() => () => {});
  const utils = await makeWorkerUtils({ pgPool, logger });
  await utils.migrate();
  if (command === 'fill') {
    const add = (is, options) => utils.addJob('mail', { is }, options);
    await add('waiting');
    await add('delayed', { runAt: later });
    await add('urgent', { priority: -3 });
    await add('last', { priority: 100 });
    await add('keyed', { jobKey: 'customer-7' });
    await add('known', { jobKey: 'customer-8' });
    await add('other', { jobKey: 'customer-9' });
    for (const n of [1, 2, 3]) await utils.addJob(n % 2 ? 'mail' : 'print', { is: `ordered ${n}` }, { queueName: 'customer-1' });
    await utils.permanentlyFailJobs([(await add('dead')).id], 'no such address');
    await utils.addJob('fails', { is: 'retried' }, { maxAttempts: 5 });
    await utils.addJob('hangs', { is: 'active' }, { queueName: 'busy' });
    await utils.addJob('mail', { is: 'behind it' }, { queueName: 'busy' });
    // One attempt of the one fails, and the other is in hand when the process ends.
    let begun;
    const hangs = new Promise((resolve) => { begun = resolve; });
    const runner = await run({ pgPool, logger, noHandleSignals: true, concurrency: 2, taskList: {
      fails: async () => { throw new Error('try later'); }, hangs: () => { begun(); return new Promise(() => {}); } } });
    await hangs;
    for (;;) {
      const { rowCount } = await db.query("UPDATE graphile_worker._private_jobs SET run_at = now() + interval '1 day' WHERE last_error = 'try later' AND locked_at IS NULL");
      if (rowCount === 1) break;
    }
    process.exit(0);
  }
  let runner;
  await produce((n) => utils.addJob('mail', { n }), async () => {
    runner = await run({ pgPool, logger, noHandleSignals: true, concurrency: 2, pollInterval: 500,
      taskList: { mail: async ({ n }) => { await effect(n, 'graphile-worker'); } } });
  });
  await runner.stop();
  await pgPool.end();
}

await (library === 'graphile-worker' ? graphile() : pgBoss());
await db.end();
