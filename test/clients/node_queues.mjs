// node_queues.mjs: one worker of the Node client with several queues: its connections, its rounds, its errors and its end.
// CONNECTION is JSON, and its database has idemq.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Inside, NoSuchQueue, Outside, Worker, drain, enqueue } from 'idemq';
import { connection, jobsOf, logger, mark, marksOf, one, pool, proxied, queue, said } from './node_common.mjs';
import { WorkerReport } from './node_modules/idemq/lib/worker-report.js';

const options = { logger, signals: false };
/** Waits until a condition holds. */
const until = async (what) => {
  for (let n = 0; !(await what()); n++) {
    assert.ok(n < 6000, `${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
};
const sessions = async (name) => (await pool.query("SELECT query FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database() AND state = 'active'", [name])).rows.map((row) => row.query);
const sessionCount = async (name) => (await one('SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()', name)).n;
const asleep = async (name) => (await sessions(name)).filter((query) => /^CALL idemq\.wait(_any)?\(/.test(query)).length === 1;
const gate = () => {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { opened, open };
};

test('queues with handlers of every kind', async () => {
  const [charges, mails, plain, shop] = [await queue('', 3), await queue('', 9), await queue('', 1), await queue()];
  for (const kind of ['order', 'refund', null, 'other']) await enqueue(pool, shop, 1, { kind });
  const xids = new Set();
  const send = async (job, db) => {
    const { rows } = await db.query('SELECT pg_current_xact_id()::text AS xid');
    xids.add(rows[0].xid);
  };
  const charge = (job, db) => assert.equal(db, undefined);
  const queues = {
    [charges]: new Outside(charge, { concurrency: 2 }),
    [mails]: new Inside(send, { concurrency: 1, batch: 3 }),
    [plain]: (job, db) => mark(db, plain, job.queue),
    [shop]: { order: () => 'o', refund: () => 'r', '': () => 'n' },
  };
  const worker = new Worker(connection, queues, options);
  assert.deepEqual([worker.queue, worker.queues], [[charges, mails, plain, shop].join(', '), [charges, mails, plain, shop]]);
  assert.deepEqual(await drain(connection, queues, { logger }), { committed: 16, released: 1 });
  assert.equal(xids.size, 3);
  assert.deepEqual(await marksOf(plain), [plain]);
  assert.deepEqual((await jobsOf(shop)).map(({ status, result }) => [status, result]), [['completed', 'o'], ['completed', 'r'], ['completed', 'n'], ['pending', null]]);

  // A drain ends when no queue has a job: a handler may add one to a queue that had none.
  const [first, second] = [await queue('', 1), await queue()];
  assert.deepEqual(await drain(connection, { [second]: () => {}, [first]: (job, db) => enqueue(db, second, 1).then(() => {}) }), { committed: 2 });
});

test('a drain notices a job that was added after its last claim, but before the answer', async () => {
  const { Session } = await import(new URL('lib/connection.js', import.meta.resolve('idemq/package.json')));
  const [adds, gets] = [await queue('', 1), await queue()];
  const { opened: claimed, open: claim } = gate();
  const { send } = Session.prototype;
  // Holds the answer to the first claim of the second queue until the job of the first has ended.
  Session.prototype.send = async function (steps) {
    const answer = await send.call(this, steps);
    if (steps[0].name === 'idemq_claim' && steps[0].values[0] === gets) {
      claim();
      await until(async () => (await jobsOf(adds))[0].status === 'completed');
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return answer;
  };
  try {
    const handler = async (_, db) => {
      await claimed;
      await enqueue(db, gets, 1);
    };
    assert.deepEqual(await drain(connection, { [adds]: handler, [gets]: () => {} }), { committed: 2 });
  } finally {
    Session.prototype.send = send;
  }
});

test('what is refused', async () => {
  const handler = () => {};
  const queues = { a: handler };
  for (const [call, says] of [
    [() => new Worker({}, {}), /^RangeError: queues must not be empty/],
    [() => new Worker({}, queues, { concurrency: 2 }), /^TypeError: with several queues, pass concurrency to Inside or Outside/],
    [() => new Worker({}, { a: 1 }), /^TypeError: handler must be a function/],
    [() => new Outside(handler, { batch: 2 }), /^TypeError: Outside has no option batch/],
    [() => new Inside(handler, { concurency: 2 }), /^TypeError: Inside has no option concurency: did you mean concurrency\?/],
    [() => new Inside(handler, { batch: 0 }), /^RangeError: batch must be at least 1, not 0$/],
    [() => new Inside(handler, { concurrency: 1.5 }), /^TypeError: concurrency must be an integer, not 1.5$/],
    [() => new Outside(handler, { timeout: '30' }), /^TypeError: timeout must be a number of seconds, not "30"$/],
    [() => new Worker({}, 'a', { grace: -1 }), /^RangeError: grace must be at least 0 seconds, not -1$/],
    [() => new Worker({}, queues).run(handler), /^TypeError: this worker already has its handlers; call run\(\) without one/],
    [() => new Worker({}, queues).runOutside(handler), /^TypeError: this worker already has its handlers; use Outside\(handler\) for the queue/],
    [() => new Worker({}, 'a').run(), /^TypeError: run\(\) needs a handler/],
  ]) await assert.rejects(async () => call(), says);
});

test('a queue without work has no connection; one drain ends all', async () => {
  const names = [await queue(), await queue(), await queue(), await queue()];
  const application = `idemq ${names[0]} and 3 more`;
  const { opened, open } = gate();
  const began = [];
  const handler = async (job, db) => {
    if (db) await mark(db, job.queue, 'row');
    began.push(job.queue);
    await opened;
  };
  const worker = new Worker(connection, {
    [names[0]]: new Inside(handler, { concurrency: 5 }), [names[1]]: new Outside(handler, { concurrency: 5 }), [names[2]]: handler, [names[3]]: handler,
  }, { ...options, name: 'several' });
  const ended = worker.run();
  await until(() => asleep(application));
  assert.equal((await sessionCount(application)), 2, 'one claims, and one sleeps for all');
  await enqueue(pool, names[2], 1);
  await until(() => began.length === 1);
  assert.equal((await sessionCount(application)), 3, 'a job has one');
  await enqueue(pool, names[0], 1);
  await enqueue(pool, names[1], 1);
  await until(() => began.length === 3);
  await until(async () => (await one("SELECT queues FROM idemq.workers WHERE worker = 'several'"))?.queues);
  const { queues, concurrency } = await one("SELECT queues, concurrency FROM idemq.workers WHERE worker = 'several'");
  assert.deepEqual([queues.sort(), concurrency], [[...names].sort(), 12]);
  worker.stop();
  await enqueue(pool, names[3], 1); // not claimed any more
  open();
  assert.deepEqual(await ended, { committed: 3 });
  assert.equal((await jobsOf(names[3]))[0].status, 'pending');
  assert.equal(await sessionCount(application), 0);
});

test('the queues take turns, and a busy one delays no other', async () => {
  const [busy, other, third] = [await queue('', 30), await queue('', 30), await queue('', 30)];
  const order = [];
  const handler = async (job, db) => {
    order.push(job.queue);
    await mark(db, job.queue, 'row');
  };
  assert.deepEqual(await drain(connection, { [busy]: handler, [other]: handler, [third]: handler }), { committed: 90 });
  // Each has its slot as soon as a round has visited it: long before the first has finished.
  for (const name of [other, third]) assert.ok(order.indexOf(name) < 30 && order.lastIndexOf(busy) > order.indexOf(name), `${order}`);

  // A queue whose jobs never end.
  const endless = await queue('', 1);
  const rare = await queue();
  let turns = 0;
  const worker = new Worker(connection, {
    [endless]: async (job, db) => {
      turns++;
      await enqueue(db, endless, 1);
    },
    [rare]: () => worker.stop(),
  }, options);
  const ended = worker.run();
  await until(() => turns > 5);
  await enqueue(pool, rare, 1);
  assert.equal((await ended).committed >= 7, true);
  assert.equal((await jobsOf(rare))[0].status, 'completed');
});

test('a queue that gets a free slot is waited for at once, although the worker sleeps for another', async () => {
  const [full, idle] = [await queue(), await queue()];
  const application = `idemq ${full} and 1 more`;
  await proxied({}, async (proxy, to) => {
    const ends = () => proxy.log.filter((what) => what.startsWith('(SELECT outcome::text FROM ide')).length;
    const calls = async (name) => (await sessions(application)).some((query) => query.startsWith(`CALL idemq.${name}(`));
    const gates = [];
    const worker = new Worker(to, { [full]: () => new Promise((resolve) => gates.push(resolve)), [idle]: () => {} }, options);
    const ended = worker.run();
    try {
      // A sleep may also time out at that moment, but not each time.
      for (let n = 1; n <= 10 && ends() === 0; n++) {
        await enqueue(pool, full, n);
        await until(async () => gates.length === n && (await calls('wait'))); // for the queue without work alone
        gates[n - 1]();
        await until(() => calls('wait_any'));
      }
      assert.ok(ends() > 0, 'the sleep for one queue was ended');
    } finally {
      worker.stop();
      await ended;
    }
  });
});

test('a queue that is refused: at the start all end, later the others go on', async () => {
  const [stays, goes] = [await queue(), await queue()];
  await assert.rejects(new Worker(connection, { [stays]: () => {}, none: () => {} }, options).run(), NoSuchQueue);
  said.length = 0;
  const done = [];
  const worker = new Worker(connection, { [goes]: () => {}, [stays]: (job) => void done.push(job.payload) }, options);
  const ended = worker.run();
  await until(() => asleep(`idemq ${goes} and 1 more`));
  await pool.query('SELECT idemq.drop_queue($1)', [goes]);
  await enqueue(pool, stays, 1);
  await until(() => said.some((text) => new RegExp(`idemq: ${goes}: .*; trying again in 5 s`).test(text)));
  await enqueue(pool, stays, 2);
  await until(() => done.length === 2);
  worker.stop();
  assert.deepEqual(await ended, { committed: 2 });
});

test('a queue that is refused is left out of the reports; the others are still reported', async () => {
  const asked = [];
  const session = { query: (text, values) => (asked.push(values[2]), pool.query(text, values)) };
  const q = await queue();
  const gone = await queue();
  await pool.query('SELECT idemq.drop_queue($1)', [gone]);
  const report = new WorkerReport({ session, answerTimeout: 60_000, withSession: (ask) => ask(session) }, () => ({ name: 'without', queues: [gone, q], concurrency: 1, jobs: [], done: 0 }));
  await report.endWait(1, false);
  assert.deepEqual(asked.splice(0), [[gone, q], [gone], [q], [q]]);
  assert.deepEqual((await one("SELECT queues FROM idemq.workers WHERE worker = 'without'")).queues, [q]);
  await report.endWait(1, false);
  assert.deepEqual(asked.splice(0), [[q]]);
  // Ten minutes later, it is tried again.
  const { now } = Date;
  Date.now = () => now() + 600_001;
  await report.endWait(1, false).finally(() => (Date.now = now));
  assert.deepEqual(asked[0], [gone, q]);
});

test('a cancellation is heard at once in each queue, whatever its lease', async () => {
  const [one_, other] = [await queue('', 1), await queue('', 1)];
  const cancelled = [];
  const handler = async (job) => {
    const heard = new Promise((resolve) => job.signal.addEventListener('abort', resolve));
    await pool.query('SELECT idemq.cancel($1)', [job.id]);
    await heard;
    cancelled.push(job.queue);
    await until(() => cancelled.length === 2);
  };
  // Without the hint, the next heartbeat is due after twenty minutes.
  const ended = await drain(connection, { [one_]: new Inside(handler, { lease: '2 h' }), [other]: new Outside(handler) }, { logger });
  assert.deepEqual([ended, cancelled.sort()], [{ stale: 2 }, [one_, other].sort()]);
});
