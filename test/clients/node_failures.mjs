// node_failures.mjs: what the Node client does about failures: neverRetry, a handler that keeps failing, lost connections, giveUpAfter, and
// settings of a kind.  CONNECTION is JSON, and its database has idemq.

import assert from 'node:assert/strict';
import net from 'node:net';
import { test } from 'node:test';
import pg from 'pg';
import { Inside, Kind, Outside, RetryLater, Snooze, Worker, drain, enqueue, enqueueMany, job, makeDue } from 'idemq';
import { connection, jobsOf, logger, mark, marksOf, one, pool, proxied, queue, said } from './node_common.mjs';

const until = async (what) => {
  for (let n = 0; !(await what()); n++) {
    assert.ok(n < 6000, `${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
};

test('neverRetry: the job is dead at once', async () => {
  class Invalid extends Error {}
  class Worse extends Invalid {}
  const thrown = { worse: new Worse('no'), other: new TypeError('no'), later: new RetryLater('1 h', 'busy'), snooze: new Snooze('1 h') };
  const expected = { worse: 'dead', other: 'retrying', later: 'retrying', snooze: 'pending' };
  const handler = ({ payload }) => { throw thrown[payload]; };
  for (const way of [(neverRetry) => [new Inside(handler, { neverRetry })], (neverRetry) => [new Outside(handler, { neverRetry })], (neverRetry) => [handler, { neverRetry }], (neverRetry) => [handler, { neverRetry, outside: true }]]) {
    for (const [neverRetry, other] of [[[Invalid], 'retrying'], [[Invalid, Error], 'dead'], [[], 'retrying']]) {
      const q = await queue(", retry_base => '1 h'");
      for (const payload of Object.keys(thrown)) await enqueue(pool, q, payload);
      const [how, more] = way(neverRetry);
      await (more ? drain(connection, q, how, { logger, ...more }) : drain(connection, { [q]: how }, { logger }));
      const { rows } = await pool.query("SELECT payload #>> '{}' AS name, status FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)", [q]);
      assert.deepEqual(Object.fromEntries(rows.map(({ name, status }) => [name, status])), { ...expected, other, worse: neverRetry.length > 0 ? 'dead' : 'retrying' });
    }
  }
  // A timeout is no error of that class.
  const slow = await queue();
  await enqueue(pool, slow, 1);
  const hangs = async (own) => new Promise((_, reject) => own.signal.addEventListener('abort', () => reject(own.signal.reason)));
  assert.deepEqual(await drain(connection, slow, hangs, { neverRetry: [Error], timeout: 0.05, logger }), { retrying: 1 }); // meant to expire
  for (const [wrong, says] of [[Error, /neverRetry must be an array of exception classes/], [['Error'], /neverRetry must contain exception classes, not 'Error'/], [[() => {}], /neverRetry must contain exception classes, not/], [[Map], /neverRetry must contain exception classes, not Map/]]) {
    assert.throws(() => new Worker({}, 'q', { neverRetry: wrong }), says);
    assert.throws(() => new Outside(handler, { neverRetry: wrong }), says);
  }
});

test('ten failures in a row with the same error: one job at a time, until one succeeds', async () => {
  const q = await queue(", retry_base => '1 h'", 60);
  const info = [];
  said.length = 0;
  let broken = true;
  let running = 0;
  let most = 0;
  let opened = false;
  const worker = new Worker(connection, q, { concurrency: 5, signals: false, logger: { ...logger, info: (text) => info.push(text) } });
  const handler = async ({ payload }) => {
    running++;
    if (opened) most = Math.max(most, running);
    await new Promise((resolve) => setTimeout(resolve, 1));
    running--;
    if (broken) throw new Error(`no column "c${payload}" in row ${payload}`);
  };
  const ended = worker.run(handler);
  const lines = () => said.filter((text) => /ten attempts in a row/.test(text));
  await until(() => lines().length > 0 && running === 0);
  opened = true;
  assert.match(lines()[0], new RegExp(`^idemq: ${q}: ten attempts in a row have failed with the same error, so the worker runs one job at a time until one succeeds: Error: no column "c\\d+" in row \\d+$`));
  const failures = async () => (await jobsOf(q)).filter(({ attempt }) => attempt > 0).length;
  const before = await failures();
  assert.ok(before >= 10 && before <= 14, `${before}`);
  await until(async () => (await failures()) > before);
  assert.deepEqual([most, lines().length], [1, 1]);
  broken = false;
  await until(() => info.some((text) => text === `idemq: ${q}: an attempt has succeeded, so the worker runs 5 jobs at a time again`));
  await until(async () => (await jobsOf(q)).every(({ status }) => status === 'completed' || status === 'retrying'));
  worker.stop();
  const { committed, retrying } = await ended;
  assert.ok(committed + retrying === 60 && committed >= 40, `${committed} ${retrying}`);

  // A drain runs them all.
  const all = await queue(", retry_base => '1 h'", 30);
  assert.deepEqual(await drain(connection, all, () => { throw new Error('no'); }, { logger }), { retrying: 30 });
});

test('jobs that have been claimed with the failing ones keep their attempts', async () => {
  for (const options of [{ batch: 100 }, { concurrency: 2, batch: 50 }]) {
    const q = await queue(", retry_base => '1 h'", 200);
    said.length = 0;
    let broken = true;
    let opened = false;
    const worker = new Worker(connection, q, { ...options, signals: false, logger: { ...logger, info: () => {} } });
    const ended = worker.run(async (job, db) => {
      await mark(db, q, `${job.payload}`);
      if (broken) throw new Error('bad deploy');
    });
    await until(() => (opened ||= said.some((text) => /ten attempts in a row/.test(text))));
    await until(async () => (await jobsOf(q)).every(({ status }) => status !== 'running'));
    broken = false;
    await until(async () => (await jobsOf(q)).every(({ status }) => status === 'completed' || status === 'retrying'));
    worker.stop();
    await ended;
    const jobs = await jobsOf(q);
    const failed = jobs.filter(({ status }) => status === 'retrying').length;
    assert.ok(failed >= 10 && failed <= 15, `${failed}`);
    assert.deepEqual((await marksOf(q)).length, 200 - failed);
    assert.ok(jobs.every(({ attempt }) => attempt === 1));
  }
});

test('jobs are given back although the connection is lost before the request', async () => {
  const q = await queue(", retry_base => '1 h', lease => '1 h'", 30);
  const worker = new Worker(connection, q, { batch: 30, attach: false, signals: false, logger: { ...logger, info: () => {} } });
  const { onConnect } = worker.control;
  let requests = 0;
  worker.control.onConnect = async (session) => {
    await onConnect(session);
    const query = session.query.bind(session);
    session.query = (text, ...more) => {
      if (/release_many/.test(text) && ++requests === 1) session.cut();
      return query(text, ...more);
    };
  };
  const ended = worker.run(() => {
    throw new Error('bad deploy');
  });
  await until(async () => requests > 0 && (await jobsOf(q)).every(({ status }) => status !== 'running'));
  worker.stop();
  await ended;
  const jobs = await jobsOf(q);
  assert.ok(jobs.filter(({ status, attempt }) => status === 'pending' && attempt === 0).length >= 15, JSON.stringify(jobs));
});

test('runOutside: an attempt that loses its connection to the server is given back three times', async () => {
  const fails = {
    'ended by the administrator': async () => {
      const client = new pg.Client(connection);
      client.on('error', () => {});
      await client.connect();
      await client.query('SELECT pg_terminate_backend(pg_backend_pid())');
    },
    'lost without an answer': async () => proxied({}, async (proxy, to) => {
      const client = new pg.Client(to);
      client.on('error', () => {});
      await client.connect();
      proxy.cut = () => true;
      await client.query('SELECT 1');
    }).catch((error) => { throw new Error('of the application', { cause: error }); }),
    'no connection': async () => {
      const server = net.createServer().listen(0);
      const { port } = server.address();
      server.close();
      await new pg.Client({ ...connection, host: '127.0.0.1', port }).connect();
    },
  };
  for (const [name, fail] of Object.entries(fails)) {
    const q = await queue(", retry_base => '1 h'", 1);
    const own = name !== 'no connection'; // of another server
    const outcomes = [];
    for (let n = 0; n < 5; n++) {
      outcomes.push(...Object.keys(await drain(connection, q, fail, { outside: true, logger })));
      await makeDue(pool, q);
    }
    assert.deepEqual(outcomes, own ? ['released', 'released', 'released', 'retrying', 'released'] : Array(5).fill('retrying'), name);
    assert.equal((await jobsOf(q))[0].attempt, own ? 1 : 5);
    const inside = await queue(", retry_base => '1 h'", 1);
    assert.deepEqual(await drain(connection, inside, fail, { logger }), { retrying: 1 }, name);
  }
});

test('giveUpAfter: the worker ends if it cannot connect', async () => {
  const q = await queue('', 1);
  const quick = { giveUpAfter: 0.2, signals: false, logger };
  await assert.rejects(new Worker({ ...connection, host: '/nonexistent' }, q, quick).run(() => 1), { code: 'ENOENT' });
  await proxied({}, async (proxy, to) => {
    const worker = new Worker(to, q, quick);
    let done = false;
    const ended = worker.run(() => void (done = true));
    await until(() => done && worker.control.session);
    // An idle worker: only its wait is connected again.
    await until(async () => (await one("SELECT count(*)::int AS waits FROM pg_stat_activity WHERE application_name = $1 AND state = 'active' AND query LIKE 'CALL idemq.wait%'", `idemq ${q}`)).waits > 0);
    proxy.close();
    await assert.rejects(ended, (error) => error instanceof Error && !('sqlstate' in error));
  });
  assert.throws(() => new Worker({}, q, { giveUpAfter: 0 }), /^RangeError: giveUpAfter must be greater than 0 seconds, not 0$/);
});

test('Kind: the timeout and the backoff of a kind', async () => {
  const q = await queue(", job_timeout => '1 h', retry_base => '10 h', retry_max => '10 h'");
  const hangs = async (own) => new Promise((_, reject) => own.signal.addEventListener('abort', () => reject(own.signal.reason)));
  const fails = () => { throw new Error('no'); };
  const later = () => { throw new RetryLater('5 h'); };
  const handlers = {
    slow: new Kind(hangs, { timeout: 0.05 }), // meant to expire
    same: new Kind(fails, { backoff: '1 h' }), list: new Kind(fails, { backoff: [3600, '2 h'] }), own: new Kind(later, { backoff: 60 }), plain: fails, '': new Kind(fails, { backoff: 60 }),
  };
  const ids = {};
  for (const kind of Object.keys(handlers)) [{ id: ids[kind] }] = await enqueueMany(pool, q, [{ payload: 1, kind: kind === '' ? null : kind }]);
  const hours = async (kind) => Math.round(10 * (await one('SELECT extract(epoch FROM ready_at - now())::float8 AS s FROM idemq.jobs WHERE id = $1', ids[kind])).s / 3600) / 10;
  assert.deepEqual(await drain(connection, { [q]: new Outside(handlers) }, { logger }), { retrying: 6 });
  assert.match((await job(pool, ids.slow)).error, /^stopped after 0\.05 s \(timeout of kind slow\)$/);
  assert.deepEqual([await hours('same'), await hours('list'), await hours('own'), await hours('')], [1, 1, 5, 0]);
  assert.ok((await hours('plain')) > 5);
  for (const expected of [2, 2]) {
    await makeDue(pool, q);
    await drain(connection, { [q]: new Inside(handlers, { concurrency: 2 }) }, { logger });
    assert.deepEqual([await hours('same'), await hours('list')], [1, expected]);
  }
  for (const [wrong, says] of [[{ timeout: 0 }, RangeError], [{ backoff: [] }, RangeError], [{ backoff: {} }, TypeError], [{ delay: 1 }, TypeError]]) assert.throws(() => new Kind(fails, wrong), says);
  assert.throws(() => new Inside({ a: new Kind(fails), b: 1 }), TypeError);
});

test('a drain gives its claims the name of a worker', async () => {
  const q = await queue('', 2);
  const names = [];
  const handler = async (own) => void names.push((await job(pool, own.id)).worker);
  await drain(connection, q, handler);
  assert.deepEqual(names, [`node ${process.pid}`, `node ${process.pid}`]);
});

test('schema: payloads are checked when they are enqueued, and before the handler', async () => {
  const validate = (value) => (typeof value?.to === 'string' ? { value: { ...value, times: (value.times ?? 0) + 1 } } : { issues: [{ message: 'Expected string', path: ['to', { key: 0 }] }, { message: 'at all' }] });
  const schema = { '~standard': { version: 1, vendor: 'test', validate } };
  const later = { '~standard': { version: 1, vendor: 'test', validate: async (value) => validate(value) } };
  const says = /^TypeError: the payload does not fit its schema: payload\.to\.0: Expected string; payload: at all$/;
  const q = await queue(", retry_base => '1 h'");
  await assert.rejects(enqueue(pool, q, { from: 1 }, { schema }), says);
  await assert.rejects(enqueueMany(pool, q, [{ payload: { to: 'anna' } }, { payload: { to: 1 } }], { schema: later }), says);
  await assert.rejects(enqueue(pool, q, 1, { kind: 'mail', schema: { mail: schema } }), says);
  assert.deepEqual(await jobsOf(q), []);
  await enqueue(pool, q, 1, { kind: 'other', schema: { mail: schema } });
  const { id } = await enqueue(pool, q, { to: 'anna' }, { kind: 'mail', schema: later });
  assert.deepEqual((await job(pool, id)).payload, { to: 'anna' }, 'what is stored is what was passed');
  assert.throws(() => new Outside(() => {}, { schema: () => true }), /^TypeError: schema must be a Standard Schema/);
  await assert.rejects(enqueue(pool, q, 1, { schema: 7 }), /^TypeError: schema must be a Standard Schema/);

  for (const way of [(handler) => new Inside(handler, { schema }), (handler) => new Outside(handler, { schema: { '': later } }), (handler) => new Inside(handler, { batch: 3, schema: later })]) {
    const own = await queue(", retry_base => '1 h'");
    for (const payload of [{ to: 'anna' }, { to: 7 }]) await enqueue(pool, own, payload);
    const seen = [];
    let conflicts = 1;
    const handler = async ({ payload }, db) => {
      seen.push(payload);
      if (db && conflicts-- > 0) throw Object.assign(new Error('again'), { code: '40001' });
    };
    assert.deepEqual(await drain(connection, { [own]: way(handler) }, { logger }), { committed: 1, retrying: 1 });
    assert.match((await jobsOf(own))[1].last_error, says);
    assert.ok(seen.length > 0 && seen.every((payload) => payload.to === 'anna' && payload.times === 1), JSON.stringify(seen)); // checked once, whenever it runs
  }
});
