// node_manage.mjs: functions of the Node client for single jobs, schedules, many jobs at once, and tests.  CONNECTION is JSON, and its
// database has idemq.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  Dead, KeyReused, NoSuchJob, NoSuchQueue, assertEnqueued, cancel, createPool, drain, enqueue, enqueueMany, job, makeDue, pause, reschedule, result, resume, retry,
  schedule, sendEvent, unschedule, why,
} from 'idemq';
import { connection, jobsOf, logger, one, pool, queue } from './node_common.mjs';

test('enqueueMany: what enqueue returns for each, in order, in the transaction of its client', async () => {
  const q = await queue(", max_attempts => 7");
  assert.deepEqual(await enqueueMany(pool, q, []), []);
  const first = await enqueue(pool, q, 'b', { key: 'b' });
  const jobs = await enqueueMany(pool, q, [
    { payload: { quote: '"\\', list: [1, null] }, headers: { a: '"x"' } }, { payload: 'b', key: 'b' }, { payload: null, key: 3, delay: '1 h', kind: 'k', maxAttempts: 2 },
    { payload: 4, runAt: new Date(Date.now() + 3_600_000), priority: 0, expiresIn: 86_400, keyTtl: '1 h', key: 'four' }, { payload: 5, groupKey: 'g' },
  ]);
  assert.deepEqual(jobs.map(({ outcome, error }) => [outcome, error]), [['accepted', null], ['duplicate', null], ['accepted', null], ['accepted', null], ['accepted', null]]);
  assert.equal(jobs[1].id, first.id);
  const [a, , c, d, e] = await Promise.all(jobs.map(({ id }) => job(pool, id)));
  assert.deepEqual([a.payload, a.headers, a.priority, a.maxAttempts, a.key], [{ quote: '"\\', list: [1, null] }, { a: '"x"' }, 4, 7, null]);
  assert.deepEqual([c.payload, c.key, c.kind, c.groupKey, c.maxAttempts, c.readyAt > new Date(Date.now() + 3_000_000)], [null, '3', 'k', null, 2, true]);
  assert.deepEqual([d.payload, d.priority, d.readyAt > new Date(Date.now() + 3_000_000)], [4, 0, true]);
  assert.deepEqual([e.payload, e.groupKey], [5, 'g']);
  await assert.rejects(enqueueMany(pool, q, [{ payload: 'other', key: 'b' }]), KeyReused);
  await assert.rejects(enqueueMany(pool, q, [{ payload: 1 }, { payload: 1, group_key: 'g' }]), /^TypeError: job 1 has no option group_key: did you mean groupKey\?/);
  await assert.rejects(enqueueMany(pool, q, [{ payload: 1, runAt: 5 }]), /^TypeError: runAt of job 0 must be a Date/);
  await assert.rejects(enqueueMany(pool, q, [{}]), /^TypeError: payload of job 0 must be a value/);
  await assert.rejects(enqueueMany(pool, q, { payload: 1 }), /^TypeError: jobs must be an array of jobs, not an object/);
  const client = await pool.connect();
  await client.query('BEGIN');
  const [undone] = await enqueueMany(client, q, [{ payload: 1 }], { onDuplicate: 'ignore', nowait: true, onParentFailure: 'run', dependsOn: [first.id] });
  assert.equal(undone.status, 'blocked');
  await client.query('ROLLBACK');
  client.release();
  assert.equal(await job(pool, undone.id), null);
});

test('a duplicate of a dead job returns its error', async () => {
  const q = await queue();
  const { id } = await enqueue(pool, q, 1, { key: 'k' });
  assert.equal((await enqueue(pool, q, 1, { key: 'k' })).error, null);
  await drain(connection, q, () => { throw new Dead('no such account'); }, { logger });
  const expected = { id, outcome: 'duplicate', status: 'dead', result: null, error: 'no such account' };
  assert.deepEqual(await enqueue(pool, q, 1, { key: 'k' }), expected);
  assert.deepEqual((await enqueueMany(pool, q, [{ payload: 2 }, { payload: 1, key: 'k' }]))[1], expected);
});

test('a job: what it is, its result, and why it waits', async () => {
  const q = await queue();
  const { id } = await enqueue(pool, q, { n: 1 }, { key: 'k', kind: 'mail', headers: { h: 1 }, priority: 3 });
  const { enqueuedAt, readyAt, ...others } = await job(pool, id);
  assert.ok(Math.abs(enqueuedAt - Date.now()) < 600_000 && readyAt instanceof Date);
  assert.deepEqual(others, {
    id, queue: q, status: 'pending', payload: { n: 1 }, key: 'k', groupKey: null, kind: 'mail', priority: 3, attempt: 0, maxAttempts: 20, checkpoint: null, result: null, error: null,
    worker: null, headers: { h: 1 }, claimedAt: null, finishedAt: null,
  });
  assert.deepEqual(await result(pool, id), { status: 'pending', result: null });
  assert.match(await why(pool, id), /./);
  let running;
  await drain(connection, q, async (own) => {
    await own.saveCheckpoint({ far: 1 });
    running = await job(pool, own.id);
    return { done: true };
  }, { name: 'somebody' });
  assert.deepEqual([running.status, running.attempt, running.worker, running.checkpoint, running.claimedAt instanceof Date], ['running', 1, 'somebody', { far: 1 }, true]);
  assert.deepEqual(await result(pool, id), { status: 'completed', result: { done: true } });
  assert.ok((await job(pool, id)).finishedAt instanceof Date);
  assert.equal(await job(pool, '7'), null);
  await assert.rejects(result(pool, '7'), NoSuchJob);
  await assert.rejects(why(pool, 'x'), TypeError);
});

test('retry, cancel, reschedule, pause and resume', async () => {
  const q = await queue(", retry_base => '1 h'");
  const [fails, later] = await enqueueMany(pool, q, [{ payload: 1 }, { payload: 2, delay: '1 h' }]);
  assert.deepEqual(await drain(connection, q, () => { throw new Error('no'); }, { logger }), { retrying: 1 });
  assert.equal(await retry(pool, fails.id), 'retrying');
  assert.equal(await reschedule(pool, later.id, { runAt: new Date(0), priority: 1 }), (await one("SELECT idemq.reschedule($1, priority => 1)::text AS is", later.id)).is);
  assert.equal((await job(pool, later.id)).priority, 1);
  await pause(pool, q);
  assert.deepEqual(await drain(connection, q, () => 1), {});
  await resume(pool, q);
  await pause(pool, q, { until: new Date(Date.now() + 3_600_000) });
  assert.deepEqual(await drain(connection, q, () => 1), {});
  await resume(pool, q);
  assert.deepEqual(await drain(connection, q, () => 1), { committed: 2 });
  const { id } = await enqueue(pool, q, 3);
  assert.equal(await cancel(pool, id), 'cancelled');
  assert.equal(await cancel(pool, later.id), 'completed');
  await assert.rejects(reschedule(pool, id, { run_at: 1 }), /reschedule has no option run_at: did you mean runAt\?/);
  await assert.rejects(pause(pool, 'none'), NoSuchQueue);
});

test('schedule and unschedule', async () => {
  const q = await queue();
  // Once a year, because a minute can end at any moment.
  const next = await schedule(pool, `yearly ${q}`, '0 3 1 1 *', q, { report: 'year' }, { timeZone: 'Europe/Berlin', kind: 'report', groupKey: 'g', headers: { h: 1 }, maxAttempts: 3, expiresIn: '1 day', priority: 2 });
  assert.deepEqual([next.getUTCMonth(), next.getUTCHours()], [0, 2]);
  assert.deepEqual(await schedule(pool, `yearly ${q}`, '0 3 1 1 *', q, { report: 'year' }), new Date(next.getTime() + 3_600_000));
  await pool.query('SELECT idemq.pause_schedule($1)', [`yearly ${q}`]);
  assert.equal(await schedule(pool, `yearly ${q}`, '0 3 1 1 *', q, {}), null);
  assert.deepEqual([await unschedule(pool, `yearly ${q}`), await unschedule(pool, `yearly ${q}`)], [true, false]);
  await assert.rejects(schedule(pool, 'x', '* * *', q, {}), { code: '22023' });
});

test('makeDue: delays and retries, and nothing else', async () => {
  const [q, other] = [await queue(", retry_base => '1 h'"), await queue()];
  await enqueue(pool, other, 1, { delay: '1 h' });
  const [delayed, fails, waits] = await enqueueMany(pool, q, [{ payload: 'delayed', delay: '1 h' }, { payload: 'fails' }, { payload: 'waits' }]);
  let again = false;
  const handler = async (own) => {
    if (own.payload === 'fails' && !again) throw new Error('no');
    if (own.payload === 'waits') await own.awaitEvent('never', '1 h');
  };
  assert.deepEqual(await drain(connection, q, handler, { logger }), { retrying: 1, waiting: 1 });
  again = true;
  assert.equal(await makeDue(pool, q), 2);
  assert.deepEqual(await drain(connection, q, handler), { committed: 2 });
  assert.deepEqual((await Promise.all([delayed, fails].map(({ id }) => result(pool, id)))).map(({ status }) => status), ['completed', 'completed']);
  assert.equal((await result(pool, waits.id)).status, 'pending');
  await sendEvent(pool, q, 'never');
  assert.deepEqual(await drain(connection, q, handler), { committed: 1 });
  assert.equal((await jobsOf(other))[0].status, 'pending');
  assert.ok((await makeDue(pool)) >= 1);
  assert.deepEqual(await drain(connection, other, () => 1), { committed: 1 });
});

test('assertEnqueued: a part of the payload, key, kind and number; otherwise it lists the jobs', async () => {
  const q = await queue();
  const fails = (expected, says) => assert.rejects(assertEnqueued(pool, q, expected), (error) => {
    assert.ok(error instanceof assert.AssertionError);
    assert.equal(error.message, says);
    return true;
  });
  await fails({ payload: { order: 42 } }, `expected 1 job in ${q} with payload {"order":42}, but found 0. There is no job in ${q}.`);
  await assertEnqueued(pool, q, { times: 0 });
  const first = await enqueue(pool, q, { order: 42, to: ['anna'] }, { key: 'k', kind: 'mail' });
  const second = await enqueue(pool, q, null, { delay: '1 h' });
  for (const expected of [{ payload: { order: 42 } }, { payload: { to: [] } }, { key: 'k' }, { kind: 'mail', payload: {} }, { payload: null }, { times: 2 }, { key: 'x', times: 0 }]) await assertEnqueued(pool, q, expected);
  const listed = `Jobs in ${q}:\n${second.id} pending null\n${first.id} pending key k kind mail {"to": ["anna"], "order": 42}`;
  await fails({ payload: { order: 43 }, key: 'k', kind: 'mail' }, `expected 1 job in ${q} with payload {"order":43} and key k and kind mail, but found 0. ${listed}`);
  await fails({ times: 3 }, `expected 3 jobs in ${q}, but found 2. ${listed}`);
  await drain(connection, q, () => 1);
  await assertEnqueued(pool, q, { key: 'k' }); // in every status
  await enqueueMany(pool, q, Array.from({ length: 30 }, (_, n) => ({ payload: n })));
  await assert.rejects(assertEnqueued(pool, q, { payload: 99 }), /\n\.\.\. and 12 more$/);
  await assertEnqueued(pool, q, { payload: 29 });
  await assertEnqueued(pool, q, { payload: 0 }); // not among those that are listed
  await assert.rejects(assertEnqueued(pool, 'none', {}), (error) => !(error instanceof assert.AssertionError));
});

test('createPool: a connection that breaks while its client is in use, between two statements, fails the next statement and not the process', async () => {
  const shop = createPool(connection);
  const client = await shop.connect();
  await client.query('BEGIN');
  const { rows } = await client.query('SELECT pg_backend_pid() AS pid');
  const ended = new Promise((resolve) => client.once('end', resolve));
  assert.deepEqual(await one('SELECT pg_terminate_backend($1)', rows[0].pid), { pg_terminate_backend: true });
  await ended;
  await assert.rejects(client.query('SELECT 1'));
  client.release(new Error('broken'));
  assert.equal((await shop.query('SELECT 1 AS one')).rows[0].one, 1);
  await shop.end();
});
