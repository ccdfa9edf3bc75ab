// node_steps.mjs: calls of job in Worker.run of the Node client: steps, checkpoints and events before the handler uses its client, and after.
// CONNECTION is JSON, and its database has idemq.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import http from 'node:http';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { RetryLater, StaleToken, Worker, assertEnqueued, drain, enqueue, makeDue, sendEvent } from 'idemq';
import { connection, jobsOf, logger, mark, marksOf, one, pool, proxied, queue } from './node_common.mjs';

const stepsOf = async (q) => (await pool.query('SELECT s.name, s.state, s.response FROM idemq.steps s WHERE s.queue_id = idemq.queue_id($1) ORDER BY s.job_id, s.name', [q])).rows;
const sessionsOf = async (q) => (await one("SELECT count(*)::int AS n FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database()", `idemq ${q}`)).n;
const late = /is not available after the handler has used its connection, because the transaction that completes the job has begun\. Call it before the first statement, or save a checkpoint in the transaction with job\.saveCheckpoint\(data, client\)/;

test('run: a step, then rows, then the commit; a failure later repeats no call', async () => {
  const q = await queue(", retry_base => '1 ms'", 3);
  let calls = 0;
  let fails = 3;
  const handler = async (job, db) => {
    const receipt = await job.step('charge', ({ key }) => {
      assert.match(key, /./);
      return { paid: ++calls };
    }, { request: job.payload });
    await mark(db, q, `paid ${job.payload}`);
    await enqueue(db, q, 'never', { delay: '1 day', key: `mail ${job.payload}` });
    if (fails-- > 0) throw new Error('after the charge');
    return receipt;
  };
  for (let n = 0; n < 500 && (await jobsOf(q)).some(({ status }) => status === 'retrying' || status === 'pending') && fails > -3; n++) await drain(connection, q, handler, { logger });
  assert.equal(calls, 3);
  assert.deepEqual(await marksOf(q), ['paid 1', 'paid 2', 'paid 3']);
  const jobs = (await jobsOf(q)).filter(({ status }) => status === 'completed');
  assert.deepEqual(jobs.map(({ result }) => result.paid).sort(), [1, 2, 3]);
  assert.equal(Math.max(...jobs.map(({ attempt }) => attempt)), 2);
});

test('run: steps and checkpoints take no connection of their own', async () => {
  const q = await queue('', 4);
  const seen = [];
  let waiting = 0;
  let go;
  const all = new Promise((resolve) => (go = resolve));
  const worker = new Worker(connection, q, { concurrency: 4, signals: false });
  const handler = async (job, db) => {
    await job.saveCheckpoint({ at: 1 });
    await job.step('call', async () => {
      if (++waiting === 4) go();
      await all;
    });
    await job.parents();
    seen.push(await sessionsOf(q));
    await mark(db, q, `${job.payload}`);
    if (seen.length === 4) worker.stop();
  };
  assert.deepEqual(await worker.run(handler), { committed: 4 });
  // One claims, one may wait, and four have a job each.
  assert.ok(seen.every((n) => n <= 6), `${seen}`);
});

test('run: what the worker has locked early is given up for a step, and the job stays its own', async (t) => {
  // By this clock every handler uses its client at once, so the next job is locked with the commit of the last.
  t.mock.method(performance, 'now', () => 0);
  const q = await queue('', 6);
  await proxied({}, async (proxy, to) => {
    const handler = async (job, db) => {
      if (job.payload % 2 === 0) {
        await job.saveCheckpoint(job.payload);
        await job.step('call', () => job.payload);
      }
      await mark(db, q, `${job.payload}`);
    };
    assert.deepEqual(await drain(to, q, handler), { committed: 6 });
    assert.ok(proxy.log.some((what) => /idemq_end idemq_begin idemq_hold$/.test(what)));
    assert.equal(proxy.log.filter((what) => what === 'ROLLBACK').length, 3, proxy.log.join('\n'));
  });
  assert.deepEqual(await marksOf(q), ['1', '2', '3', '4', '5', '6']);
  assert.ok((await jobsOf(q)).every(({ attempt }) => attempt === 1));
});

test('run: after the first use of the client, a step and a checkpoint fail the attempt', async () => {
  const calls = {
    step: (job) => job.step('late', () => assert.fail('it was called')),
    saveCheckpoint: (job) => job.saveCheckpoint(1),
    'saveCheckpoint of another client': (job) => job.saveCheckpoint(1, pool),
  };
  for (const [name, call] of Object.entries(calls)) {
    for (const caught of [false, true]) {
      const q = await queue(", retry_base => '1 h'", 1);
      const handler = async (job, db) => {
        await mark(db, q, 'undone');
        if (caught) await assert.rejects(call(job), late);
        else await call(job);
      };
      assert.deepEqual(await drain(connection, q, handler, { logger }), { retrying: 1 }, name);
      assert.deepEqual(await marksOf(q), [], name);
      assert.deepEqual(await stepsOf(q), [], name);
      const [{ attempt, last_error: error }] = await jobsOf(q);
      assert.equal(attempt, 1);
      assert.match(error, late);
      assert.match(error, new RegExp(`job\\.${name.split(' ')[0]} `));
    }
  }
});

test('run: addParents is a use of the client', async () => {
  const q = await queue(", retry_base => '1 h'", 1);
  const { id: parent } = await enqueue(pool, q, 'parent', { delay: '1 h' });
  const handler = async (job) => {
    const child = await enqueue(pool, q, 'child', { dependsOn: [job.id] });
    await job.addParents(child.id, [parent]);
    await job.step('late', () => assert.fail('it was called'));
  };
  assert.deepEqual(await drain(connection, q, handler, { logger }), { retrying: 1 });
  assert.match((await jobsOf(q))[0].last_error, late);
});

test('run: the client is refused while a step is under way', async () => {
  const q = await queue(", retry_base => '1 h'", 1);
  const handler = (job, db) => job.step('call', () => assert.rejects(mark(db, q, 'inside'), /the handler's connection was used while job\.step was under way/).then(() => 1));
  assert.deepEqual(await drain(connection, q, handler, { logger }), { retrying: 1 });
  assert.match((await jobsOf(q))[0].last_error, /the handler's connection was used while job\.step was under way; use it after the step has returned/);
  assert.deepEqual(await marksOf(q), []);
  // The call has been performed, so its answer is stored.
  assert.deepEqual(await stepsOf(q), [{ name: 'call', state: 'done', response: 1 }]);
});

test('a step that is not awaited fails the attempt, and one that begins after the handler is refused', async () => {
  const calls = [];
  const handler = async (job) => {
    let go;
    const begun = new Promise((resolve) => (go = resolve));
    void job.step('charge', async () => {
      calls.push('charge');
      go();
      await ended;
    });
    await begun;
    setImmediate(() => {
      late = assert.rejects(job.step('late', () => calls.push('late')), /job\.step was called after the handler had ended/);
    });
  };
  let ended;
  let late;
  for (const options of [{}, { outside: true }]) {
    const q = await queue(", retry_base => '1 h'", 1);
    let end;
    ended = new Promise((resolve) => (end = resolve));
    late = undefined;
    calls.length = 0;
    assert.deepEqual(await drain(connection, q, handler, { logger, ...options }), { retrying: 1 });
    assert.equal((await jobsOf(q))[0].last_error, 'Error: the handler has ended while step charge was under way; await job.step');
    end();
    await late;
    assert.deepEqual(calls, ['charge']);
  }
});

test('run: a checkpoint in a transaction is undone with it', async () => {
  const q = await queue(", retry_base => '1 ms'", 1);
  const seen = [];
  const handler = async (job, db) => {
    seen.push(job.checkpoint);
    if (seen.length === 1) {
      await job.saveCheckpoint({ kept: 1 });
      assert.deepEqual(job.checkpoint, { kept: 1 });
      await job.saveCheckpoint({ undone: 1 }, db);
      assert.deepEqual(job.checkpoint, { undone: 1 });
      throw Object.assign(new Error('again at once'), { code: '40001' });
    }
    if (seen.length === 2) throw new RetryLater(0);
    await mark(db, q, 'row');
    await job.saveCheckpoint({ committed: 1 }, db);
  };
  for (let n = 0; n < 500 && seen.length < 3; n++) await drain(connection, q, handler, { logger });
  assert.deepEqual(seen, [null, { kept: 1 }, { kept: 1 }]);
  assert.deepEqual((await one('SELECT checkpoint, attempt FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', q)), { checkpoint: { committed: 1 }, attempt: 2 });
  // With a client of the application, it is part of that client's transaction.
  const other = await queue('', 1);
  const client = await pool.connect();
  await client.query('BEGIN');
  assert.deepEqual(await drain(connection, other, async (job) => {
    await job.saveCheckpoint(7, client);
    await client.query('ROLLBACK');
  }), { committed: 1 });
  client.release();
  assert.equal((await one('SELECT checkpoint FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', other)).checkpoint, null);
});

test('run: 40001 repeats the handler, whose steps return what is stored', async () => {
  const q = await queue('', 1);
  let calls = 0;
  let runs = 0;
  const answers = [];
  const handler = async (job, db) => {
    answers.push(await job.step('call', () => ++calls));
    await mark(db, q, 'row');
    if (++runs < 3) await db.query(`DO $$ BEGIN RAISE '${runs}' USING ERRCODE = '${runs === 1 ? '40001' : '40P01'}'; END $$`);
  };
  assert.deepEqual(await drain(connection, q, handler, { logger }), { committed: 1 });
  assert.deepEqual([calls, answers, await marksOf(q)], [1, [1, 1, 1], ['row']]);
  assert.equal((await jobsOf(q))[0].attempt, 1);
});

test('run: a repeated handler gets what is stored, even if its first call has changed it', async () => {
  const q = await queue();
  const seen = [];
  const handler = async (job, db) => {
    seen.push(structuredClone([job.payload, job.headers, job.checkpoint]));
    if (seen.length === 1) await job.saveCheckpoint({ pages: [1] });
    job.payload.items.push('changed');
    delete job.headers.h;
    job.checkpoint.pages.push(2);
    if (seen.length < 3) await db.query("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$");
  };
  const payload = JSON.parse('{ "items": ["x", null, 1.5], "__proto__": { "a": true } }');
  await enqueue(pool, q, payload, { headers: { h: 1 } });
  assert.deepEqual(await drain(connection, q, handler, { logger }), { committed: 1 });
  assert.deepEqual(seen, [null, { pages: [1] }, { pages: [1] }].map((checkpoint) => [payload, { h: 1 }, checkpoint]));
});

test('run: a lost connection between the call and its answer loses no answer', async () => {
  const q = await queue('', 1);
  let calls = 0;
  const handler = async (job, db) => {
    const answer = await job.step('call', async () => {
      calls++;
      // Before the call, its step was begun on the handler's own session.
      await pool.query('SELECT pg_terminate_backend($1)', [db.processID]);
      return 'answered';
    });
    await mark(db, q, answer);
  };
  assert.deepEqual(await drain(connection, q, handler, { logger }), { committed: 1 });
  assert.deepEqual([calls, await marksOf(q), await stepsOf(q)], [1, ['answered'], [{ name: 'call', state: 'done', response: 'answered' }]]);
});

test('a call is not made after its time, because another attempt may have asked meanwhile', async () => {
  const q = await queue(", retry_base => '1 ms', max_attempts => 20", 1);
  const [calls, asks] = [[], []];
  const ask = async () => {
    asks.push(1);
    if (asks.length > 1) return 'found';
    await sleep(600);
  };
  const call = () => {
    calls.push(1);
    throw new Error('502');
  };
  const handler = (job) => job.step('call', call, { callTimeout: 0.5, ask });
  for (let n = 0; n < 500 && (await jobsOf(q))[0].status !== 'completed'; n++) {
    await drain(connection, q, handler, { logger });
    await makeDue(pool, q);
    await sleep(20);
  }
  const [{ status, result }] = await jobsOf(q);
  assert.deepEqual([status, result, calls.length], ['completed', 'found', 1]);
});

test('batch: a step ends the batch, and each job runs alone', async () => {
  for (const call of [(job) => job.step('call', () => job.payload), (job) => job.saveCheckpoint(1), (job) => job.saveCheckpoint(1, pool)]) {
    const q = await queue('', 5);
    const xids = new Map();
    const info = [];
    const handler = async (job, db) => {
      if (job.payload === 3) await call(job).catch(() => {}); // even if it goes on
      const { rows } = await db.query('SELECT pg_current_xact_id()::text AS xid');
      xids.set(rows[0].xid, (xids.get(rows[0].xid) ?? 0) + 1);
      await mark(db, q, `${job.payload}`);
    };
    assert.deepEqual(await drain(connection, q, handler, { batch: 5, logger: { ...logger, info: (text) => info.push(text) } }), { committed: 5 });
    assert.deepEqual([...xids.values()], [3, 1, 1, 1, 1, 1]);
    assert.deepEqual(await marksOf(q), ['1', '2', '3', '4', '5']);
    assert.ok((await jobsOf(q)).every(({ attempt }) => attempt === 1));
    assert.match(info.join('\n'), new RegExp(`idemq: ${q}: running the 5 jobs of a transaction one at a time: job\\.(step|saveCheckpoint) was called`));
  }
});

test('a step whose answer comes after the lease was lost raises StaleToken; the next attempt gets the answer', async () => {
  for (const outside of [false, true]) {
    const q = await queue(", retry_base => '1 ms'", 1);
    const seen = [];
    let calls = 0;
    const handler = async (job, db) => {
      seen.push(job.attempt);
      const answer = await job.step('call', async () => {
        calls++;
        // meant to expire
        await pool.query("SELECT idemq.heartbeat($1, $2, lease => '1 ms')", [job.id, job.token]);
        while ((await one('SELECT token::text FROM idemq.job($1)', job.id)).token === job.token) await pool.query('SELECT FROM idemq.claim($1)', [q]);
        return 'late';
      }).catch((error) => {
        assert.ok(error instanceof StaleToken, `${error}`);
        assert.match(error.message, /the answer of step call arrived after the lease was lost; it is stored, and the next attempt returns it/);
        throw error;
      });
      await (db ?? pool).query('INSERT INTO run_marks VALUES ($1, $2)', [q, answer]);
    };
    assert.deepEqual(await drain(connection, q, handler, { outside, logger }), { stale: 1 });
    assert.deepEqual(await marksOf(q), []);
    // The other attempt, which claimed the job above, is gone.
    await pool.query('SELECT idemq.release(id, token) FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', [q]);
    assert.deepEqual(await drain(connection, q, handler, { outside, logger }), { committed: 1 });
    assert.deepEqual([calls, await marksOf(q)], [1, ['late']]);
  }
});

test('run: an event, a step, and then rows; an event after the first use is undone with them', async () => {
  const q = await queue('', 1);
  let calls = 0;
  const handler = async (job, db) => {
    const approved = await job.awaitEvent(`approved ${q}`, '1 h');
    const parents = await job.parents();
    await job.step('call', () => ++calls);
    await mark(db, q, `${approved.payload} ${parents.length}`);
    return (await job.awaitEvent(`done ${q}`, '1 h')).payload;
  };
  assert.deepEqual(await drain(connection, q, handler, { logger }), { waiting: 1 });
  await sendEvent(pool, q, `approved ${q}`, 'yes');
  assert.deepEqual(await drain(connection, q, handler, { logger }), { waiting: 1 });
  assert.deepEqual([calls, await marksOf(q)], [1, []]);
  await sendEvent(pool, q, `done ${q}`, 'done');
  assert.deepEqual(await drain(connection, q, handler, { logger }), { committed: 1 });
  assert.deepEqual([calls, await marksOf(q), (await jobsOf(q))[0].result], [1, ['yes 0'], 'done']);
});

test('run: a step that waits for a lock delays no heartbeat, and ends with its job', async () => {
  const q = await queue('', 2);
  const client = await pool.connect();
  const worker = new Worker(connection, q, { concurrency: 2, signals: false, logger, grace: 0 });
  const handler = async (job, db) => {
    if (job.payload === 2) {
      await mark(db, q, 'other');
      return;
    }
    await client.query('BEGIN');
    await client.query('SELECT FROM idemq.jobs WHERE id = $1 FOR UPDATE', [job.id]);
    const waits = job.step('call', () => assert.fail('it was called'));
    for (let n = 0; (await one("SELECT count(*)::int AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%begin_step%'")).n === 0; n++) assert.ok(n < 10_000);
    // The connection of heartbeats and claims is free.
    await worker.control.rows('SELECT 1');
    worker.stop();
    await assert.rejects(waits);
    await client.query('ROLLBACK');
    throw job.signal.reason;
  };
  const { released } = await worker.run(handler);
  client.release();
  assert.equal(released, 1);
  assert.equal((await jobsOf(q))[0].status, 'pending');
});

test('the example: a charge, then rows and the next job', async () => {
  await pool.query("CREATE TABLE orders (id int PRIMARY KEY, charge text); INSERT INTO orders VALUES (42); SELECT idemq.create_queue('charges', retry_base => '1 ms'), idemq.create_queue('mail')");
  const calls = [];
  const provider = http.createServer((request, response) => {
    calls.push(request.headers['idempotency-key']);
    response.writeHead(calls.length === 1 ? 502 : 200).end(JSON.stringify({ id: 'ch_1' })); // after the first call, nobody knows
  }).listen(0);
  const { id } = await enqueue(pool, 'charges', { order: 42, amount: 12 }, { key: 'order-42' });
  const env = { ...process.env, PGHOST: connection.host, PGPORT: `${connection.port ?? ''}`, PGUSER: connection.user, PGDATABASE: connection.database, CHARGE_API: `http://127.0.0.1:${provider.address().port}` };
  const worker = spawn(process.execPath, [fileURLToPath(new URL('examples/charge.js', import.meta.resolve('idemq/package.json')))], { env, stdio: ['ignore', 'inherit', 'inherit'] });
  const ended = once(worker, 'exit');
  const status = async () => (await one('SELECT status FROM idemq.jobs WHERE id = $1', id)).status;
  while ((await status()) !== 'completed') {
    if (worker.exitCode !== null) assert.fail('the worker has ended');
    // The lost call can no longer arrive.
    await pool.query("UPDATE idemq.steps SET call_until = now() - interval '1 s' WHERE job_id = $1 AND state = 'open' AND (SELECT status <> 'running' FROM idemq.jobs WHERE id = $1)", [id]);
    await makeDue(pool, 'charges');
    await sleep(20);
  }
  worker.kill('SIGTERM');
  assert.deepEqual(await ended, [0, null]);
  provider.close();
  assert.equal(new Set(calls).size, 1); // each call has the same key
  assert.equal((await one('SELECT charge FROM orders')).charge, 'ch_1');
  await assertEnqueued(pool, 'mail', { payload: { paid: 42 }, key: 'order-42' });
});
