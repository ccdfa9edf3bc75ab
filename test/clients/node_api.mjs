// node_api.mjs: the Node client's calls.  CONNECTION is JSON, and its database has idemq.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import http from 'node:http';
import { after, before, test } from 'node:test';
import pg from 'pg';
import {
  AlreadyCommitted, Dead, DuplicateKey, IdemqError, KeyReused, NoSuchJob, NoSuchQueue, QueueFull, RetryLater, Snooze, StaleToken, Waiting, Worker,
  cancelMany, cancelMatching, drain, enqueue, enqueueGraph, enqueueSequenced, ensureHandler, ensureQueue, ensureTopic, finishedJobs, flow, pauseGroup, publish, resumeGroup, sendEvent, waitResults,
} from 'idemq';

const connection = JSON.parse(process.env.CONNECTION);
const pool = new pg.Pool(connection);
const silent = { info: () => {}, warn: (text) => said.push(text), error: (text) => said.push(text) };
const said = [];
let queues = 0;

// What an application may have done for its own queries: ids and tokens keep their digits all the same.
pg.types.setTypeParser(20, Number);

async function queue(settings = '') {
  const name = `api_${++queues}`;
  await pool.query(`SELECT idemq.create_queue('${name}', lease => '1 h'${settings})`);
  return name;
}

async function one(sql, ...values) {
  return (await pool.query(sql, values)).rows[0];
}

const jobOf = (id) => one('SELECT status, attempt, result, last_error, checkpoint, headers FROM idemq.jobs WHERE id = $1', id);

before(() => pool.query('CREATE TABLE marks (name text)'));
after(() => pool.end());

test('enqueue answers, in the transaction of its client', async () => {
  const q = await queue();
  const client = await pool.connect();
  await client.query('BEGIN');
  const first = await enqueue(client, q, { a: [1, 'zwei'] }, { key: 'k' });
  assert.deepEqual(first, { id: first.id, outcome: 'accepted', status: 'pending', result: null, error: null });
  assert.equal(typeof first.id, 'string');
  await client.query('ROLLBACK');
  client.release();
  assert.equal(await jobOf(first.id), undefined);

  const again = await enqueue(pool, q, { a: [1, 'zwei'] }, { key: 'k' });
  assert.equal(again.outcome, 'accepted');
  assert.deepEqual(await enqueue(pool, q, { a: [1, 'zwei'] }, { key: 'k' }), { ...again, outcome: 'duplicate' });
  for (const payload of ['text', ['a', 'list'], 5, null, true, '"', []]) {
    const { id } = await enqueue(pool, q, payload, { headers: { n: 1 } });
    assert.deepEqual((await one('SELECT payload FROM idemq.jobs WHERE id = $1', id)).payload, payload);
  }
  const { id } = await enqueue(pool, q, 1, {
    delay: 90, priority: 2, maxAttempts: 7, expiresIn: '2 days', keyTtl: '1 h', key: 'all', onDuplicate: 'replace', nowait: true,
  });
  assert.deepEqual(await one(`SELECT ready_at - enqueued_at BETWEEN '89 s' AND '91 s' AS late, priority, max_attempts,
    expires_at > now() + '1 day' AS expires FROM idemq.jobs WHERE id = $1`, id), { late: true, priority: 2, max_attempts: 7, expires: true });
  const grouped = await enqueue(pool, q, 1, { groupKey: 'g', runAt: new Date(Date.now() + 90_000) });
  assert.equal((await one('SELECT group_key FROM idemq.jobs WHERE id = $1', grouped.id)).group_key, 'g');
});

test('kinds: a handler each, and what has none is given back', async () => {
  const q = await queue();
  const ids = [];
  for (const kind of ['mail', null, 'new', 'constructor']) ids.push((await enqueue(pool, q, ids.length, { kind })).id);
  said.length = 0;
  const handlers = { mail: async (job) => job.kind, '': async (job) => `none: ${job.payload}` };
  assert.deepEqual(await drain(connection, q, handlers, { logger: silent, unknownKind: '1 h' }), { committed: 2, released: 2 });
  assert.deepEqual([(await jobOf(ids[0])).result, (await jobOf(ids[1])).result], ['mail', 'none: 1']);
  assert.deepEqual(said.filter((line) => /no handler for kind (new|constructor), so the worker releases such jobs$/.test(line)).length, 2);
  // For that time, and no attempt counted: a newer worker knows it.
  const { waits } = await one("SELECT ready_at > now() + interval '50 min' AND attempt = 0 AS waits FROM idemq.jobs WHERE id = $1", ids[2]);
  assert.equal(waits, true);
  await one('SELECT idemq.retry(id) FROM idemq.jobs WHERE id = $1', ids[2]);
  assert.deepEqual(await drain(connection, q, { new: (job) => job.kind }, { outside: true, logger: silent }), { committed: 1 });
  assert.equal((await jobOf(ids[2])).result, 'new');
  await assert.rejects(drain(connection, q, {}), TypeError);
  await assert.rejects(drain(connection, q, { mail: 1 }), TypeError);
});

test('awaitEvent: the job sleeps until the event comes', async () => {
  for (const outside of [false, true]) {
    const q = await queue();
    const { id } = await enqueue(pool, q, { n: 1 });
    const name = `paid ${id}`;
    const handler = async (job, client) => {
      await client?.query('INSERT INTO marks VALUES ($1)', [name]);
      return job.awaitEvent(name, '1 h');
    };
    const marks = async () => (await pool.query('SELECT FROM marks WHERE name = $1', [name])).rows.length;
    assert.deepEqual(await drain(connection, q, handler, { outside }), { waiting: 1 });
    // What it had done is undone, the attempt not counted, and nobody gets the job until the hour is over.
    assert.equal(await marks(), 0);
    const { status, attempt } = await jobOf(id);
    assert.deepEqual([status, attempt], ['pending', 0]);
    assert.deepEqual(await drain(connection, q, handler, { outside }), {});
    assert.deepEqual(await one("SELECT name, state, call_until - begun_at = '1 h' AS patience FROM idemq.steps WHERE job_id = $1", id), { name, state: 'waiting', patience: true });
    assert.deepEqual(await sendEvent(pool, q, name, { amount: 7 }), { outcome: 'accepted', firstPayload: { amount: 7 }, samePayload: true });
    assert.deepEqual(await drain(connection, q, handler, { outside }), { committed: 1 });
    assert.equal(await marks(), outside ? 0 : 1);
    await pool.query('DELETE FROM marks');
    assert.deepEqual((await jobOf(id)).result, { arrived: true, payload: { amount: 7 } });
    assert.deepEqual(await sendEvent(pool, q, name), { outcome: 'duplicate', firstPayload: { amount: 7 }, samePayload: false });

    // A time that is over is no payload of null.
    const late = await enqueue(pool, q, 'late');
    const early = await enqueue(pool, q, 'early');
    const next = (job) => job.awaitEvent(job.payload, 3600);
    await sendEvent(pool, q, 'early');
    assert.deepEqual(await drain(connection, q, next, { outside }), { committed: 1, waiting: 1 });
    assert.deepEqual((await jobOf(early.id)).result, { arrived: true, payload: null });
    await pool.query("UPDATE idemq.steps SET call_until = now() - interval '1 s' WHERE job_id = $1", [late.id]);
    await one('SELECT idemq.retry($1)', late.id);
    assert.deepEqual(await drain(connection, q, next, { outside }), { committed: 1 });
    assert.deepEqual((await jobOf(late.id)).result, { arrived: false, payload: null });
  }
});

test('awaitEvent: a handler that goes on regardless, one of a batch, an event in between, a lost job', async () => {
  const q = await queue();
  const caught = await enqueue(pool, q, 1);
  const swallows = async (job, client) => {
    await assert.rejects(job.awaitEvent('never', '1 h'), Waiting);
    await client?.query("INSERT INTO marks VALUES ('swallowed')");
    if (!client) throw new Error('no way');
  };
  const wraps = async (job, client) => {
    await swallows(job, client);
    throw new Dead('no way');
  };
  const forgets = async (job) => void job.awaitEvent('never', '1 h').catch(() => {});
  for (const [handler, outside] of [[swallows, false], [wraps, false], [forgets, false], [swallows, true]]) {
    assert.deepEqual(await drain(connection, q, handler, { outside }), { waiting: 1 });
    const { status, attempt, last_error } = await jobOf(caught.id);
    assert.deepEqual([status, attempt, last_error], ['pending', 0, null]);
    await one('SELECT idemq.retry($1)', caught.id);
  }
  assert.equal((await one("SELECT count(*)::int AS n FROM marks WHERE name = 'swallowed'")).n, 0);
  await one('SELECT idemq.cancel($1)', caught.id);

  for (const n of [1, 2, 3]) await enqueue(pool, q, n);
  const second = async (job) => void (job.payload === 2 && (await job.awaitEvent('never', '1 h')));
  assert.deepEqual(await drain(connection, q, second, { batch: 3 }), { committed: 2, waiting: 1 });

  // Its transaction is undone; the event comes before the wait is noted.
  const between = await enqueue(pool, q, 'between');
  const awaits = async (job, client) => {
    const rollback = client.query.bind(client);
    client.query = async (text, ...more) => {
      const answer = await rollback(text, ...more);
      if (text === 'ROLLBACK') await sendEvent(pool, q, 'between', 'now');
      return answer;
    };
    try {
      await client.query('SELECT 1'); // from then on, the wait is part of its transaction
      return await job.awaitEvent('between', '1 h');
    } finally {
      if (job.token !== (awaits.first ??= job.token)) client.query = rollback;
    }
  };
  assert.deepEqual(await drain(connection, q, awaits), { released: 1, committed: 1 });
  assert.deepEqual((await jobOf(between.id)).result, { arrived: true, payload: 'now' });

  const lost = await enqueue(pool, q, 'lost');
  const cancelled = async (job, client) => {
    const rollback = client.query.bind(client);
    client.query = async (text, ...more) => {
      const answer = await rollback(text, ...more);
      if (text === 'ROLLBACK') await one('SELECT idemq.cancel($1)', job.id);
      return answer;
    };
    await client.query('SELECT 1');
    return job.awaitEvent('never', '1 h');
  };
  assert.deepEqual(await drain(connection, q, cancelled, { logger: silent }), { stale: 1 });
  assert.equal((await jobOf(lost.id)).status, 'cancelled');

  const refused = await enqueue(pool, q, 'refused', { maxAttempts: 1 });
  assert.deepEqual(await drain(connection, q, (job) => job.awaitEvent('x'.repeat(257), 1), { logger: silent }), { dead: 1 });
  assert.equal((await one("SELECT details->>'sqlstate' AS state FROM idemq.attempts WHERE job_id = $1", refused.id)).state, '22023');
});

test('awaitEvent: what a handler has heard stays, though its transaction is undone', async () => {
  const q = await queue();
  // As at the end of the queue's idempotency_window.
  const forget = async (name) => (await pool.query('DELETE FROM idemq.events WHERE name = $1', [`${q} ${name}`])).rowCount;
  const failures = [new Error('no way'), new Snooze(0)];
  const handler = async (job) => {
    const first = await job.awaitEvent(`${q} first`, '1 h');
    if (failures.length > 0 && job.payload === 2) throw failures.pop();
    return [first.payload, (await job.awaitEvent(`${q} second`, '1 h')).payload];
  };
  await pool.query(`SELECT idemq.alter_queue('${q}', retry_base => '1 ms')`);
  for (const [payload, ended] of [[1, { waiting: 1 }], [2, { waiting: 1, retrying: 1, released: 1 }]]) {
    const { id } = await enqueue(pool, q, payload);
    await sendEvent(pool, q, `${q} first`, 7);
    assert.deepEqual(await drainAll(q, handler, Object.keys(ended).length, { logger: silent }), ended);
    assert.equal(await forget('first'), 1);
    await sendEvent(pool, q, `${q} second`, 8);
    assert.deepEqual(await drain(connection, q, handler), { committed: 1 });
    assert.deepEqual((await jobOf(id)).result, [7, 8]);
    assert.equal(await forget('second'), 1);
  }
});

/** Drains until so many have ended: a child is ready milliseconds after its parents. */
async function drainAll(q, handler, count, options) {
  const ended = {};
  for (let n = 0; n < 1200 && Object.values(ended).reduce((a, b) => a + b, 0) < count; n++) {
    for (const [outcome, times] of Object.entries(await drain(connection, q, handler, options))) ended[outcome] = (ended[outcome] ?? 0) + times;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return ended;
}

test('parents and graphs', async () => {
  const q = await queue();
  const first = await enqueue(pool, q, 'first');
  const bad = await enqueue(pool, q, 'bad');
  const child = await enqueue(pool, q, 'child', { dependsOn: [first.id, bad.id], onParentFailure: 'run' });
  assert.equal(child.status, 'blocked');
  const handler = async (job) => {
    if (job.payload === 'bad') throw new Dead('no');
    return job.payload === 'child' ? job.parents() : { was: job.payload };
  };
  assert.deepEqual(await drainAll(q, handler, 3, { logger: silent }), { committed: 2, dead: 1 });
  const parents = [{ id: first.id, queue: q, status: 'completed', result: { was: 'first' } }, { id: bad.id, queue: q, status: 'dead', result: null }];
  assert.deepEqual((await jobOf(child.id)).result, parents);
  const outside = await enqueue(pool, q, 'child', { dependsOn: [first.id] });
  assert.deepEqual(await drainAll(q, handler, 1, { outside: true }), { committed: 1 });
  assert.deepEqual((await jobOf(outside.id)).result, [parents[0]]);
  await assert.rejects(enqueue(pool, q, 1, { dependsOn: ['9007199254740993'] }), NoSuchJob);

  // A flow that grows: in the handler's transaction, and outside.
  for (const outside of [false, true]) {
    const list = await enqueue(pool, q, 'list');
    const total = await enqueue(pool, q, 'total', { dependsOn: [list.id] });
    const grows = async (job, client) => {
      if (job.payload === 'total') return (await job.parents()).reduce((sum, { result }) => sum + (result ?? 0), 0);
      if (job.payload !== 'list') return job.payload;
      const pages = await Promise.all([1, 2].map((n) => enqueue(outside ? pool : client, q, n)));
      await job.addParents(total.id, pages.map(({ id }) => id));
      await job.addParents(total.id, [pages[0].id]);
      return null;
    };
    assert.deepEqual(await drainAll(q, grows, 4, { outside }), { committed: 4 });
    assert.equal((await jobOf(total.id)).result, 3);
  }
  const locked = await enqueue(pool, q, 'locked');
  const waits = await enqueue(pool, q, 'waits', { dependsOn: [locked.id] });
  const page = await enqueue(pool, q, 'page', { delay: '1 h' });
  const other = await pool.connect();
  await other.query('BEGIN');
  await other.query('DELETE FROM idemq.jobs WHERE id = $1', [page.id]);
  assert.deepEqual(await drain(connection, q, (job) => job.addParents(waits.id, [page.id])), { released: 1 });
  await other.query('ROLLBACK');
  other.release();
  await pool.query(`SELECT idemq.cancel_many(ARRAY[$1::bigint, $2, $3])`, [locked.id, waits.id, page.id]);

  await assert.rejects(enqueueGraph(pool, { a: { queue: q, payload: 1, runAt: new Date(NaN) } }), TypeError);
  const jobs = await enqueueGraph(pool, {
    sum: { queue: q, payload: null, kind: 'sum', dependsOn: ['a', '__proto__', first] },
    a: { queue: q, payload: 1, expiresIn: 172800, runAt: new Date(), headers: { h: 1 } },
    ['__proto__']: { queue: q, payload: 2, delay: 0, key: null },
  });
  assert.deepEqual(Object.keys(jobs).sort(), ['__proto__', 'a', 'sum']);
  assert.deepEqual(jobs.sum, { id: jobs.sum.id, outcome: 'accepted', status: 'blocked' });
  assert.deepEqual(await one("SELECT expires_at - enqueued_at = '2 days' AS expires, headers->'h' AS h FROM idemq.jobs WHERE id = $1", jobs.a.id), { expires: true, h: 1 });
  assert.deepEqual(await waitResults(pool, [jobs.sum.id, jobs.a.id], 0.01), [{ status: 'blocked', result: null }, { status: 'pending', result: null }]);
  const adds = async (job) => (await job.parents()).reduce((sum, { result }) => sum + (result.was ? 0 : result), 0);
  assert.deepEqual(await drainAll(q, { '': (job) => job.payload, sum: adds }, 3), { committed: 3 });
  assert.deepEqual(await waitResults(pool, [jobs.sum.id, first.id]), [{ status: 'completed', result: 3 }, { status: 'completed', result: { was: 'first' } }]);
  assert.deepEqual(await waitResults(pool, []), []);
  await assert.rejects(enqueueGraph(pool, { a: { queue: q, payload: 1, dependsOn: ['a'] } }), { code: '22023' });
  await assert.rejects(enqueueGraph(pool, { a: { queue: q, payload: 1, dependsOn: [{ id: null }] } }), TypeError);
  await assert.rejects(enqueueGraph(pool, { a: { queue: q, payload: 1, dependsOn: [{ id: '9007199254740993' }] } }), NoSuchJob);
  await assert.rejects(enqueueGraph(pool, { a: { queue: q } }), TypeError);
});

test('how far a flow is', async () => {
  const q = await queue();
  const { id } = await enqueue(pool, q, 'list', { kind: 'list' });
  const parts = [];
  for (const n of [1, 2, 3]) parts.push((await enqueue(pool, q, n, { dependsOn: [id] })).id);
  const begun = await flow(pool, parts[1]);
  assert.deepEqual({ ...begun, heldUpWhy: typeof begun.heldUpWhy }, {
    jobs: 4, waiting: 1, blocked: 3, running: 0, retrying: 0, completed: 0, dead: 0, cancelled: 0, done: 0, progress: 0, begunAt: null, endedAt: null,
    eta: null, heldUpBy: id, heldUpWhy: 'string', slowest: null, slowestKind: null, slowestFor: null, failedIds: [], roots: [id], cut: false,
  });
  assert.deepEqual(await drainAll(q, async () => {}, 4), { committed: 4 });
  const ended = await flow(pool, id);
  assert.deepEqual([ended.done, ended.progress, ended.eta, ended.heldUpBy, ended.endedAt instanceof Date, ended.slowestFor > 0], [4, 100, 0, null, true, true]);
  assert.equal((await flow(pool, id, 2)).cut, true);
  assert.equal(await flow(pool, '1'), null);
});

// A worker that has begun one job, which ends when it is told to.
async function holding(q, name, until) {
  await enqueue(pool, q, 1);
  let end;
  const held = new Promise((resolve) => (end = resolve));
  const worker = new Worker(connection, q, { name, concurrency: 3, signals: false, logger: silent });
  const running = worker.runOutside(() => held);
  while (!(await until())) await new Promise((resolve) => setTimeout(resolve, 50));
  end();
  while ((await one('SELECT count(*) AS open FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND finished_at IS NULL', q)).open > 0);
  worker.stop();
  return running;
}

test('a worker reports itself, and that it is stopping', async () => {
  const q = await queue();
  const seen = () => one(`SELECT program, version, host <> '' AS host, queues, concurrency, running, cardinality(jobs) AS jobs, done, state
    FROM idemq.workers WHERE worker = 'talks'`);
  let here;
  assert.deepEqual(await holding(q, 'talks', async () => (here = await seen())), { committed: 1 });
  const { version } = JSON.parse(readFileSync(new URL(import.meta.resolve('idemq/package.json')), 'utf8'));
  assert.deepEqual(here, { program: 'node', version, host: true, queues: [q], concurrency: 3, running: 1, jobs: 1, done: 0, state: 'here' });
  // It waits for a second at most until its last report is heard.
  for (let n = 0; n < 1200 && (await seen()).state !== 'gone'; n++) await new Promise((resolve) => setTimeout(resolve, 50));
  assert.deepEqual(await seen(), { ...here, running: 0, jobs: 0, done: 1, state: 'gone' });
});

test('a word that is refused, or has to wait, disturbs nothing', async () => {
  const q = await queue();
  said.length = 0;
  await pool.query('ALTER FUNCTION idemq.report_worker RENAME TO elsewhere');
  // While it still waits it would be heard after the ROLLBACK.
  const refused = () => one("SELECT count(*) > 0 AS is FROM pg_stat_activity WHERE application_name = $1 AND query LIKE '%idemq.report_worker%' AND state = 'idle'",
    `idemq ${q}`);
  assert.deepEqual(await holding(q, 'refused', async () => (await refused()).is), { committed: 1 });
  await pool.query('ALTER FUNCTION idemq.elsewhere RENAME TO report_worker');
  const client = await pool.connect();
  await client.query('BEGIN; LOCK TABLE idemq_internal.worker_entries');
  assert.deepEqual(await holding(q, 'locked out', async () => (await refused()).is), { committed: 1 });
  await client.query('ROLLBACK');
  client.release();
  assert.equal(await one("SELECT FROM idemq.workers WHERE worker IN ('refused', 'locked out')"), undefined);
  assert.deepEqual(said, []);
});

test('a value that cannot be read fails its own attempt', async () => {
  // What jsonb takes is read by JSON.parse; an application may have given pg another parser, which may throw.
  const odd = ['9'.repeat(5000), `${'['.repeat(1500)}${']'.repeat(1500)}`];
  const { builtins } = pg.types;
  const parse = pg.types.getTypeParser(builtins.JSONB);
  pg.types.setTypeParser(builtins.JSONB, (text) => {
    if (text === '"bad"') throw new SyntaxError('not by me');
    return parse(text);
  });
  try {
    for (const options of [{}, { batch: 3 }, { outside: true }, { outside: true, concurrency: 3 }]) {
      const q = await queue(', max_attempts => 1');
      const add = async (payload) => (await one('SELECT id FROM idemq.enqueue($1, $2::jsonb)', q, payload)).id;
      await add('1');
      const bad = await add('"bad"');
      for (const payload of [...odd, '2']) await add(payload);
      said.length = 0;
      assert.deepEqual(await drain(connection, q, (job) => typeof job.payload, { ...options, logger: silent }), { committed: 4, dead: 1 }, JSON.stringify(options));
      assert.equal((await jobOf(bad)).last_error, "Error: the job's payload could not be read; caused by SyntaxError: not by me");
    }
  } finally {
    pg.types.setTypeParser(builtins.JSONB, parse);
  }
});

test('a group is paused', async () => {
  const q = await queue();
  const claimed = async () => (await pool.query("SELECT coalesce(string_agg(group_key, ' '), '') AS groups FROM idemq.claim($1, 10)", [q])).rows[0].groups;
  for (const groupKey of ['a', 'b']) await enqueue(pool, q, 1, { groupKey });
  assert.equal(await pauseGroup(pool, q, 'a', { until: new Date(Date.now() + 3600e3) }), undefined);
  assert.equal(await claimed(), 'b');
  await assert.rejects(pauseGroup(pool, q, ''), { code: '22023' });
  await assert.rejects(pauseGroup(pool, q, null), /groupKey/);
  await assert.rejects(pauseGroup(pool, q, 'a', { till: 1 }), /no option till/);
  await assert.rejects(resumeGroup(pool, q, undefined), /groupKey/);
  await resumeGroup(pool, q, 'a');
  assert.equal(await claimed(), 'a');
});

test('a queue is declared', async () => {
  const q = await queue();
  const name = `${q}_declared`;
  const settings = { lease: 60, maxRunning: 20, retryFactor: 1.5, expectWorkers: false, deadLetterQueue: q };
  assert.deepEqual(await ensureQueue(pool, name, settings), { outcome: 'created', changes: null });
  assert.deepEqual(await ensureQueue(pool, name, { ...settings, lease: '1 min', maxAttempts: null }), { outcome: 'unchanged', changes: null });
  assert.deepEqual(await ensureQueue(pool, name, { maxRunning: 0, lease: '2 min', deadLetterQueue: '' }), {
    outcome: 'changed',
    changes: { maxRunning: { from: 20, to: null }, lease: { from: '00:01:00', to: '00:02:00' }, deadLetterQueue: { from: q, to: null } },
  });
  assert.deepEqual(Object.keys((await ensureQueue(pool, name, { exact: true })).changes).sort(), ['expectWorkers', 'lease', 'retryFactor']);
  // Every setting.
  const { rows } = await pool.query(`SELECT a, atttypid::regtype::text AS type FROM pg_proc, unnest(proargnames[3:pronargs]) a
    JOIN pg_attribute ON attname = a AND attrelid = 'idemq.queues'::regclass WHERE proname = 'ensure_queue'`);
  const some = { interval: '3 min', integer: 7, 'double precision': 1, boolean: true, text: q };
  await ensureQueue(pool, name, Object.fromEntries(rows.map(({ a, type }) => [a.replace(/_(\w)/g, (_, c) => c.toUpperCase()), some[type]])));
  const declared = await pool.query('SELECT count(*)::int AS n FROM idemq.queues, jsonb_object_keys(declared) WHERE name = $1', [name]);
  assert.equal(declared.rows[0].n, rows.length);
  await assert.rejects(ensureQueue(pool, name, { max_running: 3 }), /no option max_running: did you mean maxRunning/);
  await assert.rejects(ensureQueue(pool, name, { maxRunning: '3' }), /maxRunning must be an integer/);
  await assert.rejects(ensureQueue(pool, name, { retryFactor: '3' }), /retryFactor must be a number/);
  await assert.rejects(ensureQueue(pool, name, { deadLetterQueue: 'nowhere' }), { name: 'NoSuchQueue' });
  await pool.query('SELECT idemq.drop_queue($1)', [name]);

  assert.deepEqual([await ensureTopic(pool, q), await ensureTopic(pool, q)], ['created', 'unchanged']);
  await pool.query("CREATE FUNCTION declared(jsonb) RETURNS void LANGUAGE sql SET search_path = pg_catalog AS ''");
  assert.equal((await ensureHandler(pool, q, 'declared')).outcome, 'created');
  assert.equal((await ensureHandler(pool, q, 'declared', { maxIdle: 10 })).outcome, 'unchanged');
  assert.deepEqual(await ensureHandler(pool, q, 'declared', { workers: 2 }), { outcome: 'changed', changes: { workers: { from: 1, to: 2 } } });
  await pool.query('SELECT idemq.drop_handler($1)', [q]);
  await pool.query('DROP FUNCTION declared');
});

test('cancels of many', async () => {
  const q = await queue();
  const ids = [];
  for (const kind of ['mail', 'pdf', 'mail', 'mail']) ids.push((await enqueue(pool, q, ids.length, { kind, key: `k/${ids.length}`, groupKey: kind })).id);
  assert.deepEqual(await cancelMatching(pool, q, { kind: 'mail', maxJobs: 1 }), { cancelled: 1, locked: 0 });
  assert.deepEqual(await cancelMatching(pool, q, { kind: 'mail', groupKey: 'pdf' }), { cancelled: 0, locked: 0 });
  assert.deepEqual(await cancelMatching(pool, q, { keyPrefix: 'k/2' }), { cancelled: 1, locked: 0 });
  await assert.rejects(cancelMatching(pool, q, {}), { code: '22004' });
  await assert.rejects(cancelMatching(pool, q, { kind: 'pdf', group_key: 'pdf' }), /no option group_key: did you mean groupKey/);
  assert.deepEqual(await cancelMany(pool, [ids[3], ids[1], '-1']), ['-1', ids[1], ids[3]].map((id, n) => ({ id, outcome: n ? 'cancelled' : 'not_found' })));
  assert.deepEqual(await cancelMany(pool, []), []);
});

test('topics and numbers', async () => {
  const q = await queue();
  await pool.query(`SELECT idemq.create_topic('${q}')`);
  assert.deepEqual(await publish(pool, `${q}.paid`, 1), []);
  await pool.query(`SELECT idemq.bind_topic('${q}.#', '${q}')`);
  const [job] = await publish(pool, `${q}.paid`, { n: 1 }, { key: 'k', kind: 'mail', priority: 1, expiresIn: 60 });
  assert.deepEqual(job, { queue: q, id: job.id, outcome: 'accepted' });
  assert.deepEqual(await publish(pool, `${q}.paid`, { n: 1 }, { key: 'k' }), [{ ...job, outcome: 'duplicate' }]);
  assert.deepEqual(await one('SELECT payload, kind, priority FROM idemq.jobs WHERE id = $1', job.id), { payload: { n: 1 }, kind: 'mail', priority: 1 });

  const five = await enqueueSequenced(pool, q, 'log/1', 5n, 'five', { kind: 'k', delay: 1 });
  assert.deepEqual(five, { id: five.id, outcome: 'accepted', status: 'pending', result: null, error: null });
  assert.deepEqual(await enqueueSequenced(pool, q, 'log/1', 5, 'five'), { ...five, outcome: 'duplicate' });
  assert.deepEqual(await enqueueSequenced(pool, q, 'log/1', '4', 'four'), { id: null, outcome: 'duplicate', status: null, result: null, error: null });
  await assert.rejects(sendEvent(pool, 'none', 'e'), NoSuchQueue);
});

test('debounce', async () => {
  const q = await queue();
  const options = { key: 'k', delay: '2 h', maxWait: 3600, onDuplicate: 'replace' };
  const { id } = await enqueue(pool, q, 1, options);
  assert.equal((await enqueue(pool, q, 2, options)).id, id);
  assert.deepEqual(await one("SELECT payload, ready_at - enqueued_at = '1 h' AS bound FROM idemq.jobs WHERE id = $1", id), { payload: 2, bound: true });
});

test('errors are classes', async () => {
  const q = await queue();
  await enqueue(pool, q, 1, { key: 'k' });
  await assert.rejects(enqueue(pool, q, 2, { key: 'k' }), (error) => error instanceof KeyReused && error instanceof IdemqError && error.sqlstate === 'IQ003');
  await assert.rejects(enqueue(pool, q, 1, { key: 'k', onDuplicate: 'error' }), DuplicateKey);
  await assert.rejects(enqueue(pool, 'none', 1), (error) => error instanceof NoSuchQueue && /idemq.create_queue/.test(error.hint));
  await pool.query('SELECT idemq.alter_queue($1, max_unfinished => 1)', [q]);
  await assert.rejects(enqueue(pool, q, 3), (error) => error instanceof QueueFull && error.sqlstate === 'IQ007');
  await pool.query('SELECT idemq.alter_queue($1, max_unfinished => 0)', [q]);
  await assert.rejects(enqueue(pool, q, undefined), TypeError);
  await assert.rejects(enqueue(pool, q, 1, { delay: NaN }), TypeError);
  await assert.rejects(drain(connection, 'none', () => {}), NoSuchQueue);
  await assert.rejects(new Worker(connection, 'none', { signals: false }).run(() => {}), NoSuchQueue);
  await assert.rejects(drain({ ...connection, host: '/nonexistent' }, q, () => {}), /ENOENT/);
  assert.throws(() => new Worker(connection, q, { concurrency: 0 }), RangeError);
});

test('ids and tokens keep their digits', async () => {
  const q = await queue();
  const { last } = await one("SELECT pg_get_serial_sequence('idemq.jobs', 'id') AS last");
  const before = await one(`SELECT last_value::text AS at FROM ${last}`);
  await pool.query('SELECT setval($1, 9007199254740993, false)', [last]);
  const { id } = await enqueue(pool, q, 1);
  assert.equal(id, '9007199254740993');
  await pool.query('SELECT setval($1, $2)', [last, before.at]);
  const seen = [];
  assert.deepEqual(await drain(connection, q, (job) => void seen.push(job.id)), { committed: 1 });
  assert.deepEqual(seen, ['9007199254740993']);
  assert.equal((await one("SELECT status FROM idemq.jobs WHERE id = '9007199254740993'")).status, 'completed');
});

test('run: the effect and the commit are one transaction', async () => {
  const q = await queue(", retry_base => '1 h'");
  const good = await enqueue(pool, q, 'good');
  const bad = await enqueue(pool, q, 'bad');
  const ended = await drain(connection, q, async (job, client) => {
    await client.query('INSERT INTO marks VALUES ($1)', [job.payload]);
    if (job.payload === 'bad') throw new Error('no\0 good');
    return { name: job.payload };
  }, { logger: silent });
  assert.deepEqual(ended, { committed: 1, retrying: 1 });
  assert.deepEqual((await pool.query('SELECT name FROM marks')).rows, [{ name: 'good' }]);
  assert.deepEqual((await jobOf(good.id)).result, { name: 'good' });
  assert.equal((await jobOf(bad.id)).last_error, 'Error: no good');
  const { details } = await one('SELECT details FROM idemq.attempts WHERE job_id = $1', bad.id);
  assert.equal(details.type, 'Error');
  assert.match(details.trace, /node_api/);
});

test('what a handler throws', async () => {
  for (const outside of [false, true]) {
    const q = await queue(", retry_base => '1 h'");
    const ids = {};
    const thrown = {
      later: new RetryLater('10 min', 'busy'), snooze: new Snooze(600), now: new Snooze(0), dead: new Dead('no\0 way'),
      delay: new RetryLater('a while'), half: new Error('\ud800'), text: 'text', sql: Object.assign(new Error('x'), { code: '23505' }),
    };
    for (const name of Object.keys(thrown)) ids[name] = (await enqueue(pool, q, name)).id;
    let now = 0;
    await drain(connection, q, (job) => {
      if (job.payload === 'now' && now++) return;
      throw thrown[job.payload];
    }, { outside, logger: silent, concurrency: 3 });
    const row = async (name) => Object.values(await one(`SELECT status, attempt, ready_at > now() + '9 min' AS later, ready_at > now() + '11 min' AS much, last_error
      FROM idemq.jobs WHERE id = $1`, ids[name]));
    assert.deepEqual(await row('later'), ['retrying', 1, true, false, 'busy']);
    assert.deepEqual(await row('snooze'), ['pending', 0, true, false, null]);
    assert.equal((await row('now'))[0], 'completed');
    assert.deepEqual(await row('dead'), ['dead', 1, null, null, 'no way']);
    assert.match((await row('delay'))[4], /^a while.*interval|^retry later.*interval/);
    assert.equal((await row('delay'))[0], 'retrying');
    assert.match((await row('half'))[4], /^Error: /);
    assert.equal((await row('text'))[4], 'text');
    assert.equal((await one('SELECT details FROM idemq.attempts WHERE job_id = $1', ids.sql)).details.sqlstate, '23505');
  }
});

test('an error that cannot be read fails the attempt', async () => {
  const thrown = Object.create(Error.prototype, { message: { get: () => { throw new Error('not even that'); } }, stack: { value: 1 } });
  for (const outside of [false, true]) {
    const q = await queue(", retry_base => '1 h'");
    const { id } = await enqueue(pool, q, 1);
    assert.deepEqual(await drain(connection, q, () => { throw thrown; }, { outside, logger: silent }), { retrying: 1 });
    const { status, attempt, last_error } = await jobOf(id);
    assert.deepEqual([status, attempt, last_error], ['retrying', 1, 'an error without a message']);
    // The same of a delay.
    const later = Object.defineProperty(new RetryLater(1), 'delay', { get: () => { throw new Error('none'); } });
    await enqueue(pool, q, 1);
    assert.deepEqual(await drain(connection, q, () => { throw later; }, { outside, logger: silent }), { retrying: 1 });
  }
});

test('an answer that has not run fails the attempt', async () => {
  for (const outside of [false, true]) {
    for (const answer of [() => (function* () { assert.fail(); })(), async () => (async function* () { assert.fail(); })(), () => [1].map(async () => 1)]) {
      const q = await queue(", retry_base => '1 h'");
      const { id } = await enqueue(pool, q, 1);
      assert.deepEqual(await drain(connection, q, answer, { outside, logger: silent }), { retrying: 1 });
      assert.match((await jobOf(id)).last_error, /^TypeError: .* (a generator, which has not run|array of promises without awaiting them)/);
    }
  }
});

test('a step whose response cannot be stored is done', async () => {
  const circle = {};
  circle.circle = circle;
  for (const [response, name] of [[circle, 'a circle'], [{ toJSON: () => assert.fail('not even that') }, 'a toJSON that throws'], ['\0', 'a NUL'], [() => {}, 'a function']]) {
    const q = await queue(', max_attempts => 1');
    const { id } = await enqueue(pool, q, 1);
    let calls = 0;
    said.length = 0;
    const handler = async (job) => {
      assert.equal(await job.step('pay', () => (calls++, response)), response);
      assert.equal(await job.step('pay', () => calls++), null); // as the next attempt sees it
    };
    assert.deepEqual(await drain(connection, q, handler, { outside: true, logger: silent }), { committed: 1 }, name);
    assert.equal(calls, 1, name);
    assert.equal((await one('SELECT state FROM idemq.steps WHERE job_id = $1', id)).state, 'done', name);
    assert.ok(said.some((text) => /step pay is done, but its response cannot be stored: /.test(text)), `${name}: ${said}`);
  }
});

test('a step that is dead, and one that does not run', async () => {
  const q = await queue(", retry_base => '1 ms'");
  const stepsOf = async (id) => (await pool.query('SELECT state FROM idemq.steps WHERE job_id = $1', [id])).rows.map(({ state }) => state);
  const keys = [];
  const pays = (job) => job.step('pay', ({ key }) => {
    if (keys.push(key) === 1) throw new Dead('no such account');
    return 'paid';
  });
  const { id } = await enqueue(pool, q, 1);
  assert.deepEqual(await drain(connection, q, pays, { outside: true, logger: silent }), { dead: 1 });
  assert.deepEqual(await stepsOf(id), ['refused']);
  const { details } = await one('SELECT details FROM idemq.attempts WHERE job_id = $1', id);
  assert.equal(details.type, 'Dead');
  assert.match(details.trace, /node_api/);
  await one('SELECT idemq.retry($1)', id);
  assert.deepEqual(await drain(connection, q, pays, { outside: true }), { committed: 1 });
  assert.equal(new Set(keys).size, 2);

  // The call that is asked for may have been done.
  const asks = await enqueue(pool, q, 1);
  const unsure = (job) => job.step('pay', () => { throw new Error('502'); }, { callTimeout: 0.01, ask: () => { throw new Dead('nobody knows'); } });
  for (let n = 0; n < 500 && (await jobOf(asks.id)).status !== 'dead'; n++) await drain(connection, q, unsure, { outside: true, logger: silent });
  assert.equal((await jobOf(asks.id)).last_error, 'nobody knows');
  assert.notDeepEqual(await stepsOf(asks.id), ['refused']);

  for (const [call, steps] of [[function* () { assert.fail(); }, []], [() => (function* () { assert.fail(); })(), ['open']]]) {
    const { id } = await enqueue(pool, q, 1, { maxAttempts: 1 });
    assert.deepEqual(await drain(connection, q, (job) => job.step('pay', call), { outside: true, logger: silent }), { dead: 1 });
    assert.match((await jobOf(id)).last_error, /generator/);
    assert.deepEqual(await stepsOf(id), steps);
  }
});

test('a batch is one transaction; when one fails each runs alone', async () => {
  const q = await queue(", retry_base => '1 h'");
  for (let n = 0; n < 10; n++) await enqueue(pool, q, n);
  const transactions = new Map();
  const handler = async (job, client) => {
    const { rows } = await client.query('SELECT pg_current_xact_id()::text AS xid');
    transactions.set(rows[0].xid, (transactions.get(rows[0].xid) ?? 0) + 1);
    if (job.payload === 13) throw new Error('unlucky');
  };
  assert.deepEqual(await drain(connection, q, handler, { batch: 5 }), { committed: 10 });
  assert.deepEqual([...transactions.values()], [5, 5]);
  transactions.clear();
  for (let n = 10; n < 15; n++) await enqueue(pool, q, n);
  assert.deepEqual(await drain(connection, q, handler, { batch: 5, logger: silent }), { committed: 4, retrying: 1 });
  assert.deepEqual([...transactions.values()], [4, 1, 1, 1, 1, 1]);
  assert.equal((await one('SELECT max(attempt) AS most FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', q)).most, 1);
  // A second attempt goes alone.
  await pool.query("SELECT idemq.retry(id) FROM idemq.jobs WHERE status = 'retrying' AND queue_id = idemq.queue_id($1)", [q]);
  await enqueue(pool, q, 20);
  transactions.clear();
  await drain(connection, q, (job, client) => handler({ payload: 0 }, client), { batch: 5 });
  assert.deepEqual([...transactions.values()], [1, 1]);
});

test('so many at a time, and no more', async () => {
  for (const outside of [false, true]) {
    const q = await queue();
    let running = 0;
    let most = 0;
    // A slot whose connection comes late takes part, too.
    let go;
    const four = new Promise((resolve) => (go = resolve));
    setTimeout(go, 60_000).unref();
    for (let n = 0; n < 40; n++) await enqueue(pool, q, n);
    const ended = await drain(connection, q, async () => {
      most = Math.max(most, ++running);
      if (running === 4) go();
      await four;
      await new Promise((resolve) => setTimeout(resolve, 5));
      running--;
    }, { concurrency: 4, outside });
    assert.deepEqual(ended, { committed: 40 });
    assert.equal(most, 4);
  }
});

test('a conflict of transactions is run again at once', async () => {
  const q = await queue();
  await enqueue(pool, q, 1);
  let calls = 0;
  assert.deepEqual(await drain(connection, q, () => {
    if (++calls < 3) throw Object.assign(new Error('conflict'), { code: '40001' });
  }), { committed: 1 });
  assert.equal(calls, 3);
});

test('a result that cannot be stored', async () => {
  const q = await queue(", retry_base => '1 h'");
  const circle = {};
  circle.circle = circle;
  const results = { nul: 'a\0', circle, big: 1n, fn: () => {}, fine: [1] };
  for (const outside of [false, true]) {
    const ids = {};
    for (const name of Object.keys(results)) ids[name] = (await enqueue(pool, q, name)).id;
    await drain(connection, q, (job) => results[job.payload], { outside, logger: silent, concurrency: 5 });
    for (const name of Object.keys(results)) {
      const { status, result } = await jobOf(ids[name]);
      assert.deepEqual([status, result], name === 'fine' ? ['completed', [1]] : [outside ? 'completed' : 'retrying', null], `${name} ${outside}`);
    }
    await pool.query('SELECT idemq.purge($1)', [q]);
  }
});

test('a handler that ends the transaction has failed', async () => {
  const q = await queue(", retry_base => '1 h'");
  const { id } = await enqueue(pool, q, 1);
  await drain(connection, q, (job, client) => client.query('COMMIT'), { logger: silent });
  assert.match((await jobOf(id)).last_error, /not allowed in a handler|ended the transaction/);
});

test('an outside handler: checkpoint, token, a lost lease', async () => {
  const q = await queue(", retry_base => '1 h'");
  const { id } = await enqueue(pool, q, { n: 1 }, { key: 'k-1', headers: { tenant: 'a' } });
  const seen = [];
  const handler = async (job) => {
    seen.push([job.key, job.headers, job.checkpoint, job.attempt, job.maxAttempts, job.queue]);
    assert.ok(job.deadline - Date.now() > 3_500_000 && job.enqueuedAt <= new Date());
    assert.equal((await one('SELECT idemq.validate($1, $2)::text AS is', job.id, job.token)).is, 'current');
    await job.saveCheckpoint({ far: seen.length });
    assert.deepEqual(job.checkpoint, { far: seen.length });
    if (seen.length === 1) throw new RetryLater(0);
  };
  await drain(connection, q, handler, { outside: true, logger: silent });
  assert.deepEqual(seen, [['k-1', { tenant: 'a' }, null, 1, 20, q], ['k-1', { tenant: 'a' }, { far: 1 }, 2, 20, q]]);
  assert.equal((await jobOf(id)).status, 'completed');

  const lost = await enqueue(pool, q, 2);
  const ended = await drain(connection, q, async (job) => {
    await one('SELECT idemq.cancel($1)', job.id);
    await assert.rejects(job.saveCheckpoint(1), StaleToken);
  }, { outside: true, logger: silent });
  assert.deepEqual(ended, { stale: 1 });
  assert.equal((await jobOf(lost.id)).status, 'cancelled');
  await enqueue(pool, q, 3);
  await drain(connection, q, async (job) => {
    await one('SELECT idemq.commit($1, $2)', job.id, job.token);
    await assert.rejects(job.saveCheckpoint(1), AlreadyCommitted);
  }, { outside: true }).then((of) => assert.deepEqual(of, { committed: 1 }));
});

/** The next items of an iterator. */
async function take(items, count) {
  const taken = [];
  for (let n = 0; n < count; n++) taken.push((await items.next()).value);
  return taken;
}

const listeners = "FROM pg_stat_activity WHERE application_name = 'idemq finished jobs' AND datname = current_database()";

async function until(sql, ...values) {
  while (!(await one(`SELECT ${sql} AS done`, ...values)).done) await new Promise((resolve) => setTimeout(resolve, 20));
}

test('finishedJobs: ids and statuses, and an overflow for each new connection', async (t) => {
  const q = await queue(', notify_finished => true');
  const other = `${q}.Other-1`;
  await pool.query('SELECT idemq.create_queue($1, notify_finished => true)', [other]);
  const items = finishedJobs(connection, [q, other, q], { logger: silent });
  t.after(() => items.return());
  const start = [{ event: 'overflow', queue: q, lost: null }, { event: 'overflow', queue: other, lost: null }];
  assert.deepEqual(await take(items, 2), start);

  const [done, dead, cancelled] = [(await enqueue(pool, q, 1)).id, (await enqueue(pool, q, 2)).id, (await enqueue(pool, q, 3)).id];
  await one('SELECT idemq.commit_once($1)', done);
  assert.deepEqual(await take(items, 1), [{ event: 'finished', queue: q, id: done, status: 'completed' }]);
  await one('SELECT idemq.fail(id, token, permanent => true) FROM idemq.claim($1)', q);
  assert.deepEqual(await take(items, 1), [{ event: 'finished', queue: q, id: dead, status: 'dead' }]);
  await one('SELECT idemq.cancel($1)', cancelled);
  assert.deepEqual(await take(items, 1), [{ event: 'finished', queue: q, id: cancelled, status: 'cancelled' }]);

  await one(`SELECT pg_terminate_backend(pid) ${listeners}`);
  assert.deepEqual(await take(items, 2), start);
  const { id } = await enqueue(pool, other, 1);
  await one('SELECT idemq.cancel($1)', id);
  assert.deepEqual(await take(items, 1), [{ event: 'finished', queue: other, id, status: 'cancelled' }]);
  await items.return();
  await until(`(SELECT count(*) = 0 ${listeners})`);
});

test('finishedJobs: more jobs than fit into notifications', async () => {
  const q = await queue(', notify_finished => true');
  let [kept, lost] = [0, 0];
  for await (const { event, lost: more } of finishedJobs(connection, q)) {
    if (event === 'overflow' && more === null) await one("SELECT count(idemq.cancel((idemq.enqueue($1, '1')).id)) FROM generate_series(1, 2000)", q);
    else if (event === 'overflow') lost += more;
    else kept++;
    if (kept + lost >= 2000) break;
  }
  assert.equal(kept + lost, 2000);
  assert.ok(kept >= 256 && lost > 0, `${kept} named, ${lost} counted`);
  await until(`(SELECT count(*) = 0 ${listeners})`);
});

test('finishedJobs ends with its signal, and checks its arguments', async () => {
  const q = await queue(', notify_finished => true');
  const controller = new AbortController();
  let seen = 0;
  for await (const _ of finishedJobs(connection, q, { signal: controller.signal })) {
    seen++;
    controller.abort();
  }
  assert.equal(seen, 1);
  for await (const item of finishedJobs(connection, q, { signal: controller.signal })) assert.fail(item);
  const later = new AbortController();
  const items = finishedJobs(connection, q, { signal: later.signal });
  await items.next();
  const next = items.next();
  setTimeout(() => later.abort(), 10);
  assert.deepEqual(await next, { value: undefined, done: true });
  await until(`(SELECT count(*) = 0 ${listeners})`);
  for (const queues of ['', 'a"b', 'x'.repeat(49), ['q', ''], [], 5, [5]]) assert.throws(() => finishedJobs(connection, queues), TypeError);
  assert.throws(() => finishedJobs(connection, q, { singal: null }), /did you mean signal/);
  assert.throws(() => finishedJobs(undefined, q), /connection must be a URL/);
});

test('the example that streams finished jobs to a page', async () => {
  await pool.query("SELECT idemq.create_queue('mail', notify_finished => true)");
  const server = http.createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.on('listening', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  const example = spawn('node', [new URL('finished.js', import.meta.url).pathname], {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: { ...process.env, PORT: port, PGHOST: connection.host, PGPORT: connection.port, PGDATABASE: connection.database, PGUSER: connection.user },
  });
  try {
    await until(`(SELECT count(*) = 1 ${listeners} AND query = 'SELECT')`);
    const page = await new Promise((resolve) => {
      const ask = () => http.get({ host: '127.0.0.1', port }, resolve).on('error', () => setTimeout(ask, 20));
      ask();
    });
    let text = '';
    const { id } = await enqueue(pool, 'mail', 1);
    await one('SELECT idemq.cancel($1)', id);
    for await (const part of page) {
      text += part;
      if (text.includes('cancelled')) break;
    }
    assert.ok(text.startsWith('event: overflow\ndata: {}\n\n'), text);
    assert.ok(text.endsWith(`event: finished\ndata: {"queue":"mail","id":"${id}","status":"cancelled"}\n\n`), text);
  } finally {
    example.kill();
  }
});
