// node_cancel.mjs: a handler is told at once that its job is cancelled, with and without a transaction, even if the cancel is rolled back.
// For node.pl.  Leases last for an hour, so no heartbeat is due: without the server's hint, a handler would wait for its signal
// until the test fails.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import pg from 'pg';
import { Worker, drain } from 'idemq';
import { connection, jobsOf, logger, mark, marksOf, one, pool, queue, said } from './node_common.mjs';

const limit = { timeout: 120_000 };

/** Runs one job.  Its handler calls `end`, which ends the attempt, and waits for the signal. */
async function runs(outside, end, options = {}) {
  const q = await queue(", retry_base => '1 h'", 1);
  const client = new pg.Client(connection);
  await client.connect();
  const ends = [];
  const handler = async (job, db) => {
    if (!outside) await mark(db, q, 'effect'); // now the transaction holds the job's row
    ends.push(end(client, job));
    if (!job.signal.aborted) await once(job.signal, 'abort');
    throw new Error('it has stopped');
  };
  const counts = await drain(connection, q, handler, { outside, logger, ...options });
  await Promise.all(ends);
  return { q, client, counts, ends: ends.length };
}

for (const outside of [true, false]) {
  const kind = outside ? 'without a transaction' : 'with a transaction';
  test(`a cancellation arrives at once ${kind}`, limit, async () => {
    const { q, client, counts, ends } = await runs(outside, (by, job) => by.query('SELECT idemq.cancel($1)', [job.id]));
    await client.end();
    assert.deepEqual([ends, counts.committed, counts.retrying], [1, undefined, undefined]);
    assert.equal((await jobsOf(q))[0].status, 'cancelled');
    assert.deepEqual(await marksOf(q), []);
  });

  test(`the attempt ends as released if the cancel is rolled back ${kind}`, limit, async () => {
    const { q, client, ends } = await runs(outside, async (by, job) => {
      await by.query('BEGIN');
      await by.query('SELECT idemq.cancel($1)', [job.id]);
    });
    await client.query('ROLLBACK');
    await client.end();
    assert.equal(ends, 1);
    let job;
    do [job] = await jobsOf(q);
    while (job.status === 'running');
    assert.deepEqual([job.status, job.attempt], ['pending', 0]);
    assert.equal((await one('SELECT string_agg(outcome, \' \') AS outcomes FROM idemq.attempts WHERE job_id = $1', job.id)).outcomes, 'released');
  });
}

test('a worker listens whether or not it has free slots', limit, async () => {
  for (const concurrency of [1, 2]) {
    const q = await queue();
    const worker = new Worker(connection, q, { concurrency, signals: false, logger });
    let told = 0;
    const running = worker.runOutside(async (job) => {
      pool.query('SELECT idemq.cancel($1)', [job.id]);
      if (!job.signal.aborted) await once(job.signal, 'abort');
      told++;
      throw job.signal.reason;
    });
    for (let n = 1; n <= 3; n++) {
      await pool.query('SELECT idemq.enqueue($1, $2)', [q, '1']);
      while (told < n) await new Promise((resolve) => setTimeout(resolve, 20));
    }
    worker.stop();
    await running;
    assert.equal(told, 3);
  }
});

test('a handler that has ended its attempt through SQL runs on, even if the cancel of another job makes the worker send heartbeats', limit, async () => {
  const ends = {
    commit: ['SELECT idemq.commit($1, $2)', 'committed'],
    fail: ["SELECT idemq.fail($1, $2, 'its own', retry_in => '1 h')", 'retrying'],
    release: ["SELECT idemq.release($1, $2, '1 h')", 'released'],
    await_event: ["SELECT idemq.await_event($1, $2, 'paid', '1 h')", 'released'],
  };
  for (const [name, [sql, counted]] of Object.entries(ends)) {
    const q = await queue('', 2);
    const [own, other] = (await jobsOf(q)).map(({ id }) => id);
    const worker = new Worker(connection, q, { concurrency: 2, signals: false, logger });
    const began = [];
    const told = [];
    let goOn;
    const gate = new Promise((resolve) => (goOn = resolve));
    const running = worker.runOutside(async (job) => {
      if (job.id === own) await pool.query(sql, [job.id, job.token]);
      began.push(job.id);
      if (job.id === own) await gate;
      else if (!job.signal.aborted) await once(job.signal, 'abort');
      told.push([job.id, job.signal.aborted]);
    });
    while (began.length < 2) await new Promise((resolve) => setTimeout(resolve, 20));
    said.length = 0;
    await pool.query('SELECT idemq.cancel($1)', [other]);
    while (told.length < 1) await new Promise((resolve) => setTimeout(resolve, 20));
    goOn();
    worker.stop();
    const counts = await running;
    assert.deepEqual(told, [[other, true], [own, false]], name);
    assert.equal(counts[counted], 1, name);
    assert.deepEqual(said.filter((text) => text.includes(own) && !text.includes(': retrying: ')), [], name);
  }
});

test('a worker that stops still listens while handlers run', limit, async () => {
  for (const concurrency of [2, 3]) {
    const q = await queue('', 2);
    const worker = new Worker(connection, q, { concurrency, signals: false, grace: 3600, logger });
    const began = [];
    const told = [];
    const running = worker.runOutside(async (job) => {
      began.push(job.id);
      if (!job.signal.aborted) await once(job.signal, 'abort');
      told.push(job.id);
      throw job.signal.reason;
    });
    const listens = () => one("SELECT count(*)::int AS sessions FROM pg_stat_activity WHERE application_name = 'idemq ' || $1 AND state = 'active' AND query LIKE 'CALL idemq.wait%'", q);
    while (began.length < 2 || (await listens()).sessions < 1) await new Promise((resolve) => setTimeout(resolve, 20));
    worker.stop();
    for (const id of began) {
      await pool.query('SELECT idemq.cancel($1)', [id]);
      while (!told.includes(id)) await new Promise((resolve) => setTimeout(resolve, 20));
    }
    await running;
    assert.deepEqual(told, began);
  }
});
