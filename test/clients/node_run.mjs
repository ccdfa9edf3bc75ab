// node_run.mjs: Worker.run of the Node client: when its transaction begins, and in how many messages.  The
// only package it needs is pg.  Tests that need real time or other packages are in node_run_slow.mjs.

import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { once } from 'node:events';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker as Thread } from 'node:worker_threads';
import pg from 'pg';
import { Cancelled, Dead, HoldBack, Snooze, Worker, drain, enqueue } from 'idemq';
import { connection, isIn, jobsOf, logger, mark, marksOf, one, pool, proxied, queue, said, withHold } from './node_common.mjs';

const jobs = 40;

test('messages: k + 1 directly, k + 2 behind a pooler', async (t) => {
  // A pause of 2 ms before a handler's first statement costs a message.  With this clock there are no pauses.
  t.mock.method(performance, 'now', () => 0);
  const count = 20;
  for (const [pooled, k, options, expected] of [
    [false, 1, {}, 2], [false, 3, {}, 4], [true, 1, {}, 3], [true, 3, {}, 5], [true, 1, { batch: 4 }, 7 / 4], [false, 1, { batch: 4 }, 7 / 4],
  ]) {
    const q = await queue('', count);
    await proxied({ pooled }, async (proxy, to) => {
      const handler = async (job, db) => {
        for (let n = 0; n < k; n++) await mark(db, q, `${job.payload}.${n}`);
      };
      assert.deepEqual(await drain(to, q, handler, options), { committed: count });
      // At the start: who the server is, settings and the first claim; the end finds nothing.
      const each = (proxy.messages - 12) / count;
      assert.ok(each <= expected && proxy.messages >= expected * count, `k ${k}, pooled ${pooled}, ${JSON.stringify(options)}: ${proxy.messages} messages: ${proxy.log.slice(0, 20).join('\n')}`);
      // Nothing stands behind COMMIT for a pooler, and none of our settings or statements is left to others.
      if (pooled) assert.ok(!proxy.log.some((what) => /idemq_hold|hold_claimed/.test(what)), proxy.log.join('\n'));
      if (pooled) assert.ok(proxy.log.filter((what) => /COMMIT/.test(what)).every((what) => /COMMIT\) unnamed$/.test(what)), proxy.log.join('\n'));
      else assert.equal(proxy.log.some((what) => /idemq_end idemq_begin idemq_hold$/.test(what)), !options.batch);
    });
    assert.equal((await marksOf(q)).length, count * k);
  }
});

test('a handler that never touches its client has no transaction, and ends together with others', async () => {
  for (const pooled of [false, true]) {
    const q = await queue('', jobs);
    await proxied({ pooled }, async (proxy, to) => {
      const states = new Set();
      // A slot whose connection comes first would do them one by one.
      let running = 0;
      let go;
      const all = new Promise((resolve) => (go = resolve));
      setTimeout(go, 60_000).unref();
      const handler = async (job, db) => {
        if (++running === 10) go();
        await all;
        if (job.payload === 7) states.add((await one('SELECT state FROM pg_stat_activity WHERE pid = $1', db.processID))?.state);
        return { n: job.payload };
      };
      assert.deepEqual(await drain(to, q, handler, { concurrency: 10 }), { committed: jobs });
      if (!pooled) assert.deepEqual([...states], ['idle']);
      assert.ok(!proxy.log.some((what) => /begin/i.test(what)), proxy.log.join('\n'));
      assert.ok(proxy.log.filter((what) => /commit/.test(what)).length < jobs / 2, proxy.log.join('\n'));
    });
    assert.deepEqual((await jobsOf(q)).map(({ status, attempt, result }) => [status, attempt, result.n]), Array.from({ length: jobs }, (_, n) => ['completed', 1, n + 1]));
  }
  // Of several in one transaction, too.
  const q = await queue('', 10);
  assert.deepEqual(await drain(connection, q, ({ payload }) => payload, { batch: 4 }), { committed: 10 });
  // One that fails, and what its result may not be.
  const odd = await queue(", retry_base => '1 h'");
  for (const payload of ['throws', 'nul', 'fine']) await enqueue(pool, odd, payload);
  assert.deepEqual(await drain(connection, odd, ({ payload }) => {
    if (payload === 'throws') throw new Error('no');
    return payload === 'nul' ? 'a\0' : payload;
  }, { concurrency: 3, logger }), { committed: 1, retrying: 2 });
  assert.deepEqual((await jobsOf(odd)).map(({ status, result }) => [status, result]), [['retrying', null], ['retrying', null], ['completed', 'fine']]);
  // Some of each kind, with one slot: what was begun with the claim, and not used, is committed as well.
  const mixed = await queue('', jobs);
  await drain(connection, mixed, async ({ payload }, db) => void (payload % 3 && (await mark(db, mixed, `${payload}`))));
  assert.deepEqual([(await jobsOf(mixed)).every(({ status, attempt }) => status === 'completed' && attempt === 1), (await marksOf(mixed)).length], [true, 27]);
});

test('every use begins the transaction, and locks the job', async () => {
  const uses = {
    promise: (db, q) => mark(db, q, 'promise'),
    callback: (db, q) => new Promise((resolve, reject) => db.query('INSERT INTO run_marks VALUES ($1, $2)', [q, 'callback'], (error) => (error ? reject(error) : resolve()))),
    object: (db, q) => db.query({ text: 'INSERT INTO run_marks VALUES ($1, $2)', values: [q, 'object'] }),
    named: (db, q) => db.query({ name: 'mine', text: 'INSERT INTO run_marks VALUES ($1, $2)', values: [q, 'named'] }),
    submittable: async (db, q) => once(db.query(new pg.Query('INSERT INTO run_marks VALUES ($1, $2)', [q, 'submittable'])), 'end'),
    several: async (db, q) => Promise.all([mark(db, q, 'several'), mark(db, q, 'several'), db.query('SELECT 1')]),
    parents: async (db, q, job) => {
      await job.parents();
      await mark(db, q, 'parents');
    },
    savepoint: async (db, q) => {
      await db.query('SAVEPOINT s');
      await mark(db, q, 'not this');
      await db.query('ROLLBACK TO s');
      await mark(db, q, 'savepoint');
      await db.query('RELEASE s');
    },
    transaction: (db, q) => db.transaction(async (same) => {
      await assert.rejects(same.transaction(async (inner) => {
        await mark(inner, q, 'not this');
        throw new Error('undone');
      }), /undone/);
      await mark(same, q, 'transaction');
    }),
    'not awaited': async (db, q) => void mark(db, q, 'not awaited'),
    deallocate: async (db, q) => {
      await db.query('DEALLOCATE ALL');
      await mark(db, q, 'deallocate');
    },
  };
  for (const [name, use] of Object.entries(uses)) await isIn(name, use);
});

test('two transaction() at a time are refused: the rollback of one would undo the other', async () => {
  const q = await queue('', 1);
  const handler = async (job, db) => {
    const parts = await Promise.allSettled([
      db.transaction(async () => {
        await mark(db, q, 'not this');
        await sleep(20);
        throw new Error('undone');
      }),
      db.transaction(() => mark(db, q, 'nor this')),
    ]);
    assert.deepEqual(parts.map(({ reason }) => reason?.message), ['undone', 'another transaction() of this client is still running; await it first']);
    await db.transaction(() => mark(db, q, 'after it'));
  };
  assert.deepEqual(await drain(connection, q, handler, { logger }), { committed: 1 });
  assert.deepEqual(await marksOf(q), ['after it']);
});

test('what begins or ends a transaction is refused', async () => {
  const refused = ['BEGIN', ' -- so\n COMMIT', '/* a */ rollback', 'END', 'ABORT', 'START TRANSACTION', "PREPARE TRANSACTION 'x'", 'ROLLBACK AND CHAIN', 'commit;'];
  const q = await queue('', refused.length + 2);
  const handler = async (job, db) => {
    const text = refused[job.payload - 1];
    if (text) {
      await assert.rejects(async () => db.query(text), /not allowed in a handler|ended the transaction/);
      await assert.rejects(new Promise((resolve, reject) => db.query(text, (error) => (error ? reject(error) : resolve()))), /not allowed in a handler|ended the transaction/);
      await assert.rejects(once(db.query(new pg.Query(text)), 'end'), /not allowed in a handler|ended the transaction/);
      for (const of of ['end', 'connect']) await assert.rejects(async () => db[of](), /only the worker may open or close this connection/);
    }
    await mark(db, q, `${job.payload}`);
  };
  assert.deepEqual(await drain(connection, q, handler), { committed: refused.length + 2 });
  assert.equal((await marksOf(q)).length, refused.length + 2);

  // In a statement of several it is noticed when it has been done.
  for (const text of ['SELECT 1; COMMIT', 'COMMIT; BEGIN', 'ROLLBACK; BEGIN']) {
    const late = await queue(", retry_base => '1 h'", 2);
    const ended = await drain(connection, late, (job, db) => db.query(job.payload === 1 ? `SELECT 1; ${text}` : 'SELECT 1').then(() => {}), { logger });
    assert.deepEqual(ended, { committed: 1, retrying: 1 });
    assert.match((await jobsOf(late))[0].last_error, /has ended the transaction/);
  }
});

test('a handler whose job has been lost is told so, and its client refuses', async () => {
  // The session has ended that its lease was attached to.
  const attached = await queue(", retry_base => '1 ms'", 1);
  const whys = [];
  const second = new Worker(connection, attached, { logger, signals: false, name: attached });
  await second.run(async (job, db) => {
    if (whys.length === 0) {
      assert.equal((await one('SELECT attached FROM idemq.running_jobs WHERE job_id = $1', job.id)).attached, true);
      await pool.query('SELECT pg_terminate_backend(pid) FROM idemq.running_jobs WHERE job_id = $1', [job.id]);
      // Perhaps it was told before the answer came.
      if (!job.signal.aborted) await once(job.signal, 'abort');
      whys.push(job.signal.reason.why, (await mark(db, attached, 'late').catch((error) => error)) === job.signal.reason);
      throw job.signal.reason;
    }
    await mark(db, attached, 'again');
    second.stop();
  });
  assert.deepEqual([whys, await marksOf(attached)], [['lease', true], ['again']]);

  // Somebody else has it: the lock says so, whatever the handler does then.
  const taken = await queue('', 2);
  assert.deepEqual(await drain(connection, taken, async (job, db) => {
    if (job.payload === 1) await one('SELECT idemq.cancel($1)', job.id);
    await mark(db, taken, `${job.payload}`).catch(() => {});
  }, { logger }), { stale: 1, committed: 1 });
  assert.deepEqual(await marksOf(taken), ['2']);
});

test('a client that is used when its handler has ended refuses', async () => {
  const q = await queue('', 2);
  const late = [];
  let begin;
  const begun = new Promise((resolve) => (begin = resolve)); // of the second handler: the first has ended
  said.length = 0;
  assert.deepEqual(await drain(connection, q, async (job, db) => {
    if (job.payload === 1) return void late.push(begun.then(() => mark(db, q, 'late')).catch((error) => error.message));
    begin();
    await late[0];
  }, { logger }), { committed: 2 });
  assert.deepEqual([await Promise.all(late), await marksOf(q)], [['the handler has ended, and so has its transaction'], []]);
  assert.equal(said.filter((text) => /a statement was refused because its handler had already ended/.test(text)).length, 1);
});

test('the answer to COMMIT is lost: each effect is there once', async (t) => {
  // By this clock, no handler pauses before its first statement.  After a pause, nothing would be chained.
  t.mock.method(performance, 'now', () => 0);
  // The chained message, and a message that only ends jobs.  Other messages are in node_run_slow.mjs.
  for (const [what, options, touches] of [[/idemq_end idemq_begin idemq_hold$/, {}, true], [/commit_many_claim/, { concurrency: 5 }, false]]) {
    const q = await queue(", retry_base => '1 ms', max_attempts => 1000", 10);
    const running = new Set();
    await proxied({}, async (proxy, to) => {
      let cuts = 0;
      proxy.cut = (text) => what.test(text) && cuts < 1 && ++cuts > 0;
      const worker = new Worker(to, q, { logger, signals: false, ...options });
      const run = worker.run(async (job, db) => {
        running.add(job.id);
        if (touches) await mark(db, q, job.id);
        running.delete(job.id);
      });
      for (let left = 10; left > 0; await sleep(20)) {
        const rows = await jobsOf(q);
        left = rows.filter(({ status }) => status !== 'completed').length;
        // The job that the lost answer claimed would wait an hour for its lease, so it is taken back here.  If the worker
        // has that job after all, its attempt becomes stale and another one begins.
        const lost = rows.filter(({ id, status }) => status === 'running' && !running.has(id)).map(({ id }) => id);
        if (cuts === 1) await pool.query("SELECT idemq.fail(id, token, 'lost', retry_in => '0') FROM idemq.jobs WHERE id = ANY ($1::bigint[]) AND status = 'running'", [lost]).catch(() => {});
      }
      worker.stop();
      const outcomes = await run;
      assert.equal(cuts, 1, `${what}: ${proxy.log.join('\n')}`);
      assert.ok(outcomes.committed >= 9, JSON.stringify(outcomes));
    });
    if (touches) assert.deepEqual(await marksOf(q), (await jobsOf(q)).map(({ id }) => id), `${what}`);
  }
});

test('hold_claimed busy, gone, failing, or not there', async () => {
  for (const sql of [
    "BEGIN RETURN 'busy'; END", "BEGIN RETURN 'gone'; END", 'BEGIN RETURN 1 / 0; END',
    "BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN 'held'; END",
  ]) {
    const q = await queue('', 10);
    const calls = [];
    await withHold(sql, async () => {
      const ended = await drain(connection, q, async (job, db) => {
        calls.push(job.id);
        await mark(db, q, job.id);
      }, { logger, attach: false });
      assert.deepEqual(ended, { committed: 10 }, sql);
    });
    assert.deepEqual(calls, (await jobsOf(q)).map(({ id }) => id), sql);
    assert.deepEqual(await marksOf(q), calls);
  }
  // A claimed job that is lost by then: its handler is not called.
  const q = await queue('', 3);
  const calls = [];
  await pool.query('CREATE TABLE run_lost AS SELECT id FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND payload = $2', [q, '2']);
  await pool.query('CREATE EXTENSION IF NOT EXISTS dblink');
  const dsn = `host=${connection.host} port=${connection.port ?? 5432} user=${connection.user} dbname=${connection.database}`;
  await withHold(`DECLARE lost bigint; BEGIN
      SELECT id INTO lost FROM run_lost; PERFORM * FROM dblink('${dsn}', format('SELECT idemq.cancel(%s)', lost)) AS t (outcome text); RETURN 'gone'; END`, async () => {
    assert.deepEqual(await drain(connection, q, async (job, db) => {
      calls.push(job.payload);
      await mark(db, q, `${job.payload}`);
    }, { logger }), { committed: 2, stale: 1 });
  });
  assert.deepEqual([calls, await marksOf(q)], [[1, 3], ['1', '3']]);

  // Without hold_claimed: BEGIN and the lock come when they are needed.
  await pool.query('ALTER FUNCTION idemq.hold_claimed() RENAME TO hold_later');
  try {
    const old = await queue('', jobs);
    await proxied({}, async (proxy, to) => {
      assert.deepEqual(await drain(to, old, (job, db) => mark(db, old, job.id).then(() => {})), { committed: jobs });
      assert.ok(!proxy.log.some((what) => /hold/.test(what)));
      // A fourth message for each job would be 40 more.  On a busy machine, some claims are empty.
      assert.ok(proxy.messages <= 3 * jobs + 30, `${proxy.messages}`);
    });
    assert.equal((await marksOf(old)).length, jobs);
  } finally {
    await pool.query('ALTER FUNCTION idemq.hold_later() RENAME TO hold_claimed');
  }
});

test('a handler that uses its client late holds nothing before', async () => {
  const q = await queue('', 4);
  const states = [];
  await drain(connection, q, async (job, db) => {
    await sleep(20);
    states.push((await one('SELECT state FROM pg_stat_activity WHERE pid = $1', db.processID)).state);
    await mark(db, q, job.id);
  });
  assert.deepEqual([states, (await marksOf(q)).length], [['idle', 'idle', 'idle', 'idle'], 4]);
});

test('several workers in a process, and one in a thread of its own', async (t) => {
  const warnings = [];
  const onWarning = (warning) => warnings.push(`${warning}`);
  process.on('warning', onWarning);
  t.after(() => process.off('warning', onWarning));
  const names = [];
  for (let n = 0; n < 6; n++) names.push(await queue('', 20));
  const listening = process.listenerCount('SIGTERM');
  const workers = names.flatMap((name) => [new Worker(connection, name, { logger, concurrency: 2 }), new Worker(connection, name, { logger })]);
  const ends = workers.map((worker, n) => (n % 4 < 2 ? worker.run((job, db) => mark(db, worker.queue, job.id).then(() => {})) : worker.runOutside(() => {})));
  const thread = await queue('', 20);
  const other = new Thread(new URL('./node_thread.mjs', import.meta.url), { workerData: { connection, queue: thread } });
  const done = async () => (await one("SELECT count(*)::int AS left FROM idemq.jobs WHERE status <> 'completed' AND queue_id IN (SELECT idemq.queue_id(q) FROM unnest($1::text[]) q)", [...names, thread])).left === 0;
  while (!(await done())) await sleep(20);
  assert.equal(process.listenerCount('SIGTERM'), listening + 1);
  process.emit('SIGTERM');
  other.postMessage('stop');
  const [[outcomes]] = await Promise.all([once(other, 'message'), once(other, 'exit'), ...ends]);
  assert.deepEqual(outcomes, { committed: 20 });
  const all = (await Promise.all(ends)).reduce((sum, { committed = 0 }) => sum + committed, 0);
  assert.deepEqual([all, process.listenerCount('SIGTERM'), warnings], [120, listening, []]);
  for (const name of [...names.filter((_, n) => n % 2 === 0), thread]) assert.deepEqual(await marksOf(name), (await jobsOf(name)).map(({ id }) => id));
});

test('hooks: around, failed, started, stopped', async () => {
  for (const outside of [false, true]) {
    const q = await queue(", retry_base => '1 h', max_attempts => 2", 5);
    const log = [];
    const storage = new AsyncLocalStorage();
    const hooks = {
      around: (job, next) => storage.run({ payload: job.payload }, async () => {
        log.push(`around ${job.payload}`);
        const result = await next();
        if (job.payload === 2) throw new Error('the hook');
        return { result };
      }),
      failed: (job, { attempt, willRetry, error, outcome }) => {
        log.push(`failed ${job.payload} ${attempt} ${willRetry} ${outcome} ${error.message}`);
        if (job.payload === 3) throw new Error('of failed');
      },
      started: async (worker) => void log.push(`started ${worker.queue} ${worker.name}`),
      stopped: async (worker, outcomes) => {
        log.push(`stopped ${worker.queue} ${JSON.stringify(outcomes)}`);
        throw new Error('of stopped');
      },
    };
    said.length = 0;
    const ended = await drain(connection, q, async (job, db) => {
      assert.equal(storage.getStore().payload, job.payload);
      if (db) await mark(db, q, `${job.payload}`);
      if (job.payload === 3) throw new Error('three');
      if (job.payload === 4) throw new Dead('four');
      return job.payload;
    }, { outside, hooks, logger, name: 'w' });
    assert.deepEqual(ended, { committed: 2, retrying: 2, dead: 1 });
    assert.deepEqual(log, [
      `started ${q} w`, 'around 1', 'around 2', 'failed 2 1 true retrying the hook', 'around 3', 'failed 3 1 true retrying three', 'around 4',
      'failed 4 1 false dead four', 'around 5', `stopped ${q} ${JSON.stringify(ended)}`,
    ]);
    assert.deepEqual((await jobsOf(q)).map(({ result }) => result?.result), [1, undefined, undefined, undefined, 5]);
    assert.deepEqual(await marksOf(q), outside ? [] : ['1', '5']);
    assert.deepEqual(said.filter((text) => /hooks/.test(text)), ['idemq: hooks.failed: Error: of failed', 'idemq: hooks.stopped: Error: of stopped']);

    // One that does not await next, one that does not call it, one that does so twice.
    const careless = await queue(", retry_base => '1 h'", 3);
    const calls = [];
    await drain(connection, careless, async (job) => {
      await sleep(20);
      calls.push(job.payload);
    }, { outside, logger, hooks: { around: (job, next) => (job.payload === 1 ? void next() : job.payload === 2 ? 'instead' : Promise.all([next(), next()])) } });
    assert.deepEqual((await jobsOf(careless)).map(({ status, result }) => [status, result]), [['retrying', null], ['completed', 'instead'], ['completed', [null, null]]]);
    assert.match((await jobsOf(careless))[0].last_error, /must return or await next/);
    assert.deepEqual(calls, [1, 3]);
  }
  const q = await queue('', 1);
  await assert.rejects(drain(connection, q, () => {}, { hooks: { started: () => Promise.reject(new Error('not yet')) } }), /not yet/);
  assert.equal((await jobsOf(q))[0].attempt, 0);
  await assert.rejects(drain(connection, q, () => {}, { hooks: { onFailed: () => {} } }), /hooks has no option onFailed/);
  await assert.rejects(drain(connection, q, () => {}, { hooks: { failed: 1 } }), /hooks.failed must be a function, not 1/);
  // The time that is over is a failure; what is given back is none.
  const failures = [];
  const late = await queue(", retry_base => '1 h', job_timeout => '1 s'", 2); // meant to expire
  await drain(connection, late, async (job) => {
    if (job.payload === 1) throw new Snooze(3600);
    await once(job.signal, 'abort');
    throw job.signal.reason;
  }, { logger, hooks: { failed: (job, { error }) => failures.push([job.payload, error instanceof Cancelled && error.why]) } });
  assert.deepEqual(failures, [[2, 'timeout']]);
});

test('HoldBack gives the job back, and holds back the others', async () => {
  const holds = async (q) => (await pool.query("SELECT scope, group_key, until > now() + interval '25 min' AS long FROM idemq.holds WHERE queue = $1", [q])).rows;
  for (const outside of [false, true]) {
    const q = await queue('', 2);
    assert.deepEqual(await drain(connection, q, () => { throw new HoldBack(1800, null, 'busy'); }, { outside, logger }), { released: 1 });
    assert.deepEqual((await jobsOf(q)).map(({ status, attempt }) => [status, attempt]), [['pending', 0], ['pending', 0]]);
    assert.deepEqual(await holds(q), [{ scope: 'queue', group_key: null, long: true }]);
  }
  for (const [scope, expected] of [[undefined, { scope: 'group', group_key: 'a', long: true }], ['queue', { scope: 'queue', group_key: null, long: true }]]) {
    const q = await queue();
    await enqueue(pool, q, 1, { groupKey: 'a' });
    assert.deepEqual(await drain(connection, q, () => { throw new HoldBack('30 min', scope); }, { logger }), { released: 1 });
    assert.deepEqual(await holds(q), [expected]);
  }
  // The queue allows less, or nothing: then the job alone waits that long.
  for (const [most, rows] of [['10 min', 1], ['0', 0]]) {
    const q = await queue(`, max_hold_back => '${most}'`, 1);
    assert.deepEqual(await drain(connection, q, () => { throw new HoldBack(1800); }, { logger }), { released: 1 });
    assert.equal((await holds(q)).length, rows);
    assert.ok((await one("SELECT ready_at > now() + interval '25 min' AS later FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)", q)).later);
  }
  // A hundred times in a row; then it counts. So too if the server refuses the hold.
  for (const most of ['1 h', '0']) {
    const q = await queue(`, max_hold_back => '${most}'`, 1);
    await pool.query(`INSERT INTO idemq.attempts (job_id, token, queue_id, attempt, ended_at, outcome)
      SELECT id, n, queue_id, 1, now(), 'released' FROM idemq.jobs, generate_series(1, 99) n WHERE queue_id = idemq.queue_id($1)`, [q]);
    const failures = [];
    const busy = () => drain(connection, q, () => { throw new HoldBack(1800, null, 'busy'); }, { logger, hooks: { failed: (_, { outcome }) => void failures.push(outcome) } });
    assert.deepEqual(await busy(), { released: 1 });
    await pool.query('SELECT idemq.resume($1), idemq.retry(id) FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', [q]);
    assert.deepEqual(await busy(), { retrying: 1 });
    assert.deepEqual((await jobsOf(q)).map(({ status, attempt, last_error: text }) => [status, attempt, text]), [['retrying', 1, 'busy']]);
    assert.deepEqual(failures, ['retrying']);
  }
});

test('a lease that was lost is reported as what became of the job', async () => {
  for (const outside of [false, true]) {
    for (const [ends, outcome, willRetry, says] of [
      // The last attempt: nothing comes after it, and the hook is told.
      [(id) => one("SELECT idemq.heartbeat(id, token, lease => '1 ms') FROM idemq.jobs WHERE id = $1", id), 'dead', false, /dead: /], // meant to expire
      [(id) => one('SELECT idemq.cancel($1)', id), 'stale', undefined, /the lease was lost: the job was cancelled$/],
    ]) {
      const q = await queue(', max_attempts => 1', 1);
      const failures = [];
      said.length = 0;
      const ended = await drain(connection, q, async (job) => {
        await ends(job.id);
        for (let n = 0; n < 3000 && (await one('SELECT finished_at FROM idemq.jobs WHERE id = $1', job.id)).finished_at === null; n++) await sleep(20);
        if (outcome === 'dead') throw new Error('after all');
      }, { outside, logger, attach: false, hooks: { failed: (_, failure) => void failures.push([failure.outcome, failure.willRetry]) } });
      const name = `${outside ? 'outside' : 'run'} ${outcome}`;
      assert.deepEqual(ended, { [outcome]: 1 }, name);
      assert.deepEqual(failures, willRetry === undefined ? [] : [[outcome, willRetry]], name);
      assert.ok(said.some((text) => says.test(text)), `${name}: ${said}`);
    }
  }
});
