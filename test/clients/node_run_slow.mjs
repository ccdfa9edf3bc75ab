// node_run_slow.mjs: tests of Worker.run that need real time (leases that expire, cursors that are waited for) or other
// packages than pg: pg-cursor and pg-copy-streams.

import assert from 'node:assert/strict';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { from as copyFrom, to as copyTo } from 'pg-copy-streams';
import Cursor from 'pg-cursor';
import { Cancelled, Worker, drain } from 'idemq';
import { connection, isIn, jobsOf, logger, mark, marksOf, pool, proxied, queue } from './node_common.mjs';

test('a cursor and COPY begin the transaction, and lock the job', async () => {
  const uses = {
    cursor: async (db, q) => {
      const cursor = db.query(new Cursor("INSERT INTO run_marks SELECT $1, 'cursor' FROM generate_series(1, 3) RETURNING mark", [q]));
      assert.equal((await cursor.read(2)).length, 2);
      await cursor.close();
    },
    'copy in': (db, q) => pipeline(Readable.from([`${q}\tcopy in\n`]), db.query(copyFrom('COPY run_marks FROM STDIN'))),
    'copy out': async (db, q) => {
      let text = '';
      for await (const chunk of db.query(copyTo(`COPY (SELECT '${q}') TO STDOUT`))) text += chunk;
      assert.equal(text, `${q}\n`);
      await mark(db, q, 'copy out');
    },
  };
  for (const [name, use] of Object.entries(uses)) await isIn(name, use);
});

test('a cursor that is left half read fails its attempt, and not its slot', async () => {
  const q = await queue(', max_attempts => 1', 2);
  const handler = async (job, db) => {
    await mark(db, q, `${job.payload}`);
    if (job.payload === 1) await db.query(new Cursor('SELECT generate_series(1, 1000)')).read(10);
  };
  assert.deepEqual(await drain(connection, q, handler, { logger }), { dead: 1, committed: 1 });
  assert.match((await jobsOf(q))[0].last_error, /left a cursor partly read/);
  assert.deepEqual(await marksOf(q), ['2']);
});

test('a handler that has locked nothing is told that its lease is over, and its client refuses', async () => {
  // It blocks the event loop for longer than its lease: then its first statement comes too late.
  const q = await queue(", lease => '1 s', retry_base => '1 ms'", 1);
  const seen = [];
  const worker = new Worker(connection, q, { logger, signals: false });
  const running = worker.run(async (job, db) => {
    // In its first call: an attempt whose lease ends before that has none.
    if (seen.length === 0) {
      for (const until = Date.now() + 3000; Date.now() < until; );
      const [promise, back, cursor] = await Promise.all([
        mark(db, q, 'late').catch((error) => error),
        new Promise((resolve) => db.query('SELECT 1', (error) => resolve(error))),
        db.query(new Cursor('SELECT 1')).read(1).catch((error) => error),
      ]);
      seen.push(...[promise, back, cursor].map((error) => error instanceof Cancelled && error.why), job.signal.reason?.why);
      throw promise;
    }
    await mark(db, q, 'in time');
    worker.stop();
  });
  await running;
  assert.deepEqual(seen, ['lease', 'lease', 'lease', 'lease']);
  assert.deepEqual(await marksOf(q), ['in time']);
});

test('a cursor that is left open, and a handler that fails amid it', async () => {
  const q = await queue(", retry_base => '1 h', job_timeout => '1 min'", 3);
  const handler = async (job, db) => {
    if (job.payload === 3) return mark(db, q, 'fine').then(() => {});
    const cursor = db.query(new Cursor('SELECT generate_series(1, 100000)'));
    await cursor.read(1);
    if (job.payload === 2) throw new Error('amid it');
  };
  const ended = await drain(connection, q, handler, { logger });
  assert.equal(ended.committed, 1);
  assert.deepEqual((await jobsOf(q)).map(({ status }) => status).slice(2), ['completed']);
  assert.ok((await jobsOf(q)).slice(0, 2).every(({ status, last_error }) => status !== 'completed' && last_error), JSON.stringify(await jobsOf(q)));
  assert.deepEqual(await marksOf(q), ['fine']);
});

test("the answer to COMMIT is lost: what stood behind it, and the handler's effect, are there once", async () => {
  // Before COMMIT is known; of the chained message, of a first one, and of a batch; and of one that nothing was to be committed with.
  for (const [what, times, options, touches, ms] of [
    [/idemq_end idemq_begin idemq_hold$/, 3, {}, true, 0], [/claim idemq_end$/, 2, {}, true, 10], [/^idemq_end$/, 2, { batch: 5 }, true, 0],
    [/commit_many_claim/, 2, { concurrency: 5 }, false, 0],
  ]) {
    const q = await queue(", lease => '2 s'", 20);
    const calls = new Map();
    await proxied({}, async (proxy, to) => {
      let cuts = 0;
      proxy.cut = (text) => what.test(text) && cuts < times && ++cuts > 0;
      const worker = new Worker(to, q, { logger, signals: false, ...options });
      let done = 0;
      const running = worker.run(async (job, db) => {
        calls.set(job.id, (calls.get(job.id) ?? 0) + 1);
        if (ms) await sleep(ms);
        if (touches) await mark(db, q, job.id);
      });
      for (; done < 20; await sleep(20)) done = (await jobsOf(q)).filter(({ status }) => status === 'completed').length;
      worker.stop();
      const outcomes = await running;
      assert.equal(cuts, times, `${what}: ${proxy.log.join('\n')}`);
      // Those that were claimed with an answer that is lost wait for their leases, in a second attempt.
      assert.equal(outcomes.committed, 20, JSON.stringify(outcomes));
    });
    if (touches) assert.deepEqual(await marksOf(q), (await jobsOf(q)).map(({ id }) => id), `${what}`);
  }
});

test('a slot whose connection is refused gives its job back, and takes none until it is connected', async () => {
  const q = await queue('', 2);
  const role = `limited_${q}`;
  // The worker has the connection with which it claims, and no other.
  await pool.query(`CREATE ROLE ${role} LOGIN CONNECTION LIMIT 1`);
  await pool.query(`SELECT idemq.grant_queue('${q}', '${role}', 'claim')`);
  const info = [];
  const worker = new Worker({ ...connection, user: role }, q, { signals: false, logger: { ...logger, info: (text) => info.push(text) } });
  let done = 0;
  const ended = worker.run(() => {
    if (++done === 2) worker.stop();
  });
  let over = false;
  ended.then(() => (over = true));
  for (let n = 0; !info.some((text) => /released: there is no connection for its handler/.test(text)); n++) {
    assert.ok(!over && n < 6000, 'it gives its job back');
    await sleep(20);
  }
  assert.ok((await jobsOf(q)).every(({ status, attempt }) => status === 'pending' && attempt === 0), JSON.stringify(await jobsOf(q)));
  await pool.query(`ALTER ROLE ${role} CONNECTION LIMIT -1`);
  assert.deepEqual(await ended, { released: 1, committed: 2 });
});
