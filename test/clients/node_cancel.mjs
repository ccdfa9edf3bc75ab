// node_cancel.mjs: a handler is told at once that its job is cancelled, with and without a transaction, even if the cancel is rolled back.
// For node.pl.  Leases last for an hour, so no heartbeat is due: without the server's hint, a handler would wait for its signal
// until the test fails.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import pg from 'pg';
import { Worker, drain } from 'idemq';
import { connection, jobsOf, logger, mark, marksOf, one, pool, queue } from './node_common.mjs';

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
