// node_ahead.mjs: jobs that a worker of the Node client has claimed ahead: when they begin, and when they are given back.
// CONNECTION is JSON, and its database has idemq.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { test } from 'node:test';
import { Inside, Outside, Worker, cancel, enqueue, pause, resume } from 'idemq';
import { connection, one, pool, queue } from './node_common.mjs';

const infos = [];
const logger = { info: (text) => infos.push(text), warn: () => {}, error: (text) => infos.push(text) };
const until = async (what) => {
  for (let n = 0; !(await what()); n++) {
    assert.ok(n < 6000, `${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
};
const gate = () => {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { opened, open };
};
const marked = async (q) => (await one('SELECT count(*)::int AS n FROM idemq.running_jobs WHERE queue = $1 AND ahead', q)).n;
const countOf = async (q, status) => (await one('SELECT count(*)::int AS n FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND status = $2::text::idemq.status', q, status)).n;
const counted = async (q) => (await one('SELECT coalesce(sum(attempt), 0)::int AS n FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', q)).n;
/** A worker with one place whose first job waits for a gate, and the payloads of the jobs that have begun. */
const blocked = (q, options = {}) => {
  const { opened, open } = gate();
  const begun = [];
  const worker = new Worker(connection, q, { ahead: 100, aheadWait: 1000, logger, signals: false, ...options });
  const run = (way = 'runOutside') => worker[way](async (job) => {
    begun.push(job.payload);
    if (begun.length === 1) await opened;
  });
  return { worker, begun, open, run };
};

for (const way of ['runOutside', 'run']) {
  test(`${way}: jobs begin in the order of their claims, also after the server has marked them`, async () => {
    const q = await queue('', 30);
    const { worker, begun, open, run } = blocked(q);
    const ran = run(way);
    await until(async () => begun.length === 1 && (await marked(q)) === 29);
    assert.match((await one("SELECT idemq.why(id) AS why FROM idemq.jobs WHERE payload = '2' AND queue_id = idemq.queue_id($1)", q)).why, /claimed by worker "node \d+", waits for a free place/);
    open();
    await until(async () => (await countOf(q, 'completed')) === 30);
    worker.stop();
    assert.deepEqual([await ran, begun], [{ committed: 30 }, Array.from({ length: 30 }, (_, n) => n + 1)]);
    assert.equal(await counted(q), 30);
  });
}

test('quick jobs begin without a mark, each once', async () => {
  const q = await queue('', 500);
  const begun = [];
  const worker = new Worker(connection, q, { concurrency: 10, ahead: 100, aheadWait: 1000, logger, signals: false });
  const ran = worker.runOutside((job) => void begun.push(job.payload));
  await until(async () => (await countOf(q, 'completed')) === 500);
  worker.stop();
  assert.deepEqual(await ran, { committed: 500 });
  assert.deepEqual([begun.length, new Set(begun).size], [500, 500]);
});

test('of two workers, the one that is not blocked begins every job', async () => {
  const q = await queue('', 50);
  const one = blocked(q, { aheadWait: 0.05 });
  const oneRan = one.run();
  await until(() => one.begun.length === 1);
  const other = new Worker(connection, q, { ahead: 100, logger, signals: false });
  const begun = [];
  const otherRan = other.runOutside((job) => void begun.push(job.payload));
  await until(() => begun.length === 49);
  one.open();
  await until(async () => (await countOf(q, 'completed')) === 50);
  one.worker.stop();
  other.stop();
  await Promise.all([oneRan, otherRan]);
  assert.equal(one.begun.length, 1);
  assert.equal(await counted(q), 50);
});

for (const [what, stop, resumes] of [
  ['paused', (q) => pause(pool, q), (q) => resume(pool, q)],
  ['held back', (q) => pool.query("SELECT idemq.hold_back(id, token, '1 h', scope => 'queue') FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND payload = '1'", [q]), (q) => resume(pool, q)],
]) {
  test(`no job begins while the queue is ${what}`, async () => {
    const q = await queue('', 5);
    const { worker, begun, open, run } = blocked(q);
    const ran = run();
    await until(async () => (await marked(q)) === 4);
    await stop(q);
    open();
    // They are given back one after another, as the place is free.
    await until(async () => (await countOf(q, 'pending')) === 4);
    assert.deepEqual([begun, await counted(q)], [[1], 1]);
    await resumes(q);
    await until(async () => (await countOf(q, 'completed')) === 5);
    worker.stop();
    await ran;
    assert.equal(await counted(q), 5);
  });
}

test('a cancelled job does not begin', async () => {
  const q = await queue('', 5);
  const { worker, begun, open, run } = blocked(q);
  const ran = run();
  await until(async () => (await marked(q)) === 4);
  const { id } = await one("SELECT id::text FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) AND payload = '2'", q);
  assert.equal(await cancel(pool, id), 'cancelled');
  open();
  await until(async () => (await countOf(q, 'completed')) === 4);
  worker.stop();
  await ran;
  assert.deepEqual(begun, [1, 3, 4, 5]);
});

test('a worker that stops gives back what has not begun', async () => {
  const q = await queue(', max_attempts => 2', 20);
  const { worker, begun, open, run } = blocked(q, { grace: 1000 });
  const ran = run();
  await until(async () => (await marked(q)) === 19);
  worker.stop();
  await until(async () => (await countOf(q, 'pending')) === 19);
  open();
  await ran;
  assert.deepEqual([begun, await counted(q)], [[1], 1]);
});

test('after a lost connection, what has not begun is given back', async () => {
  const q = await queue(', max_attempts => 2', 20);
  const { worker, begun, open, run } = blocked(q, { name: 'cut off' });
  const ran = run();
  await until(async () => (await marked(q)) === 19);
  await pool.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1', [`idemq ${q}`]);
  // Given back, they may be claimed again, but not more than once is counted.
  await until(() => infos.some((text) => text.includes(`${q} `) && text.includes('it was lost or cancelled')));
  assert.deepEqual(begun, [1]);
  open();
  await until(async () => (await countOf(q, 'completed')) === 20);
  worker.stop();
  await ran;
  assert.deepEqual([begun.length, await counted(q)], [20, 20]);
});

test('a worker that is killed loses only the attempt that has begun', async () => {
  const q = await queue(", max_attempts => 2", 20);
  const program = `import { Worker } from 'idemq';
    await new Worker(${JSON.stringify(connection)}, '${q}', { ahead: 100, aheadWait: 1000, attach: true }).runOutside(() => new Promise(() => setInterval(() => {}, 1000)));`;
  const child = spawn('node', ['--input-type=module', '-e', program], { cwd: import.meta.dirname ?? new URL('.', import.meta.url).pathname, stdio: 'inherit' });
  await until(async () => (await marked(q)) === 19);
  child.kill('SIGKILL');
  await until(async () => (await pool.query('SELECT idemq.reap($1)', [q])) && (await countOf(q, 'running')) === 0);
  assert.deepEqual(await one('SELECT count(*) FILTER (WHERE attempt = 0)::int AS ahead, count(*) FILTER (WHERE attempt = 1)::int AS begun FROM idemq.jobs WHERE queue_id = idemq.queue_id($1)', q), { ahead: 19, begun: 1 });
  assert.deepEqual((await pool.query('SELECT a.outcome, count(*)::int FROM idemq.attempts a JOIN idemq.jobs j ON j.id = a.job_id WHERE j.queue_id = idemq.queue_id($1) GROUP BY 1 ORDER BY 1', [q])).rows, [{ outcome: 'expired', count: 1 }, { outcome: 'released', count: 19 }]);
});

test('the time limits of a job begin with its handler', async () => {
  const q = await queue(", job_timeout => '1 h'", 2);
  const { worker, open } = blocked(q);
  const deadlines = [];
  const ran = worker.runOutside(async (job) => {
    if (job.payload === 1) {
      await until(async () => (await marked(q)) === 1);
      deadlines.push(Date.now());
    } else deadlines.push((await one("SELECT extract(epoch FROM deadline)::float8 * 1000 AS at FROM (SELECT (SELECT count(*) FROM idemq.heartbeat_many(ARRAY[$1::bigint], ARRAY[$2::bigint], '1 day')), 1) b, idemq.running_jobs WHERE job_id = $1", job.id, job.token)).at, job.deadline.getTime());
  });
  open();
  await until(async () => (await countOf(q, 'completed')) === 2);
  worker.stop();
  await ran;
  const [begun, deadline, own] = deadlines;
  assert.ok(deadline >= begun + 3_600_000 - 1000, `${deadline - begun}`);
  assert.ok(own >= begun + 3_600_000 - 7000 && own < deadline, `${own - begun}`);
});

test('a queue with limits, groups or one attempt is served without ahead', async () => {
  for (const [settings, said] of [[', max_running => 50', 'max_running'], [', rate_limit => 1000', 'rate_limit'], [', max_attempts => 1', 'max_attempts 1'], [', group_max_running => 2', 'group_max_running']]) {
    const q = await queue(settings, 5);
    const { worker, begun, open, run } = blocked(q);
    const ran = run();
    await until(() => begun.length === 1);
    assert.equal(await countOf(q, 'running'), 1, said);
    open();
    await until(async () => (await countOf(q, 'completed')) === 5);
    worker.stop();
    await ran;
    assert.deepEqual(infos.filter((text) => text === `idemq: ${q}: jobs are claimed without ahead, because of ${said}`).length, 1, infos.join('\n'));
  }
  // Jobs of groups, and jobs with one attempt, are noticed when they are claimed.
  for (const [options, said] of [[(n) => ({ groupKey: `g${n}` }), 'groups'], [() => ({ maxAttempts: 1 }), 'jobs with one attempt']]) {
    const q = await queue();
    for (let n = 1; n <= 5; n++) await enqueue(pool, q, n, options(n));
    const { worker, begun, open, run } = blocked(q);
    const ran = run();
    await until(async () => begun.length === 1 && (await countOf(q, 'running')) === 1);
    open();
    await until(async () => (await countOf(q, 'completed')) === 5);
    worker.stop();
    await ran;
    assert.equal(infos.filter((text) => text === `idemq: ${q}: jobs are claimed without ahead, because of ${said}`).length, 1);
    assert.equal(await counted(q), 5);
  }
});

test('several queues, batches, and options that are refused', async () => {
  const [a, b] = [await queue('', 40), await queue('', 40)];
  const worker = new Worker(connection, { [a]: new Inside((job, db) => db.query('SELECT 1'), { ahead: 20, batch: 4, aheadWait: 100 }), [b]: new Outside(() => {}, { ahead: 20, concurrency: 2, aheadWait: 100 }) }, { logger, signals: false });
  const ran = worker.run();
  await until(async () => (await countOf(a, 'completed')) + (await countOf(b, 'completed')) === 80);
  worker.stop();
  assert.deepEqual(await ran, { committed: 80 });
  assert.throws(() => new Outside(() => {}, { ahead: -1 }), RangeError);
  assert.throws(() => new Outside(() => {}, { ahead: 1.5 }), TypeError);
  assert.throws(() => new Outside(() => {}, { aheadWait: 0 }), RangeError);
});
