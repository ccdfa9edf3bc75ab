// node_logs.mjs: the job of each log line, and logs of attempts in idemq.attempts.  The only package it needs is pg.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { Inside, Outside, Refused, Worker, currentJob, drain, enqueue } from 'idemq';
import { connection, logger, mark, pool, proxied, queue } from './node_common.mjs';

const attemptsOf = async (q) => (await pool.query(
  'SELECT j.payload, a.outcome, a.error, a.details FROM idemq.attempts a JOIN idemq.jobs j ON j.id = a.job_id WHERE j.queue_id = idemq.queue_id($1) ORDER BY a.job_id, a.token', [q])).rows;
async function add(q, ...payloads) {
  const added = [];
  for (const payload of payloads) added.push(await enqueue(pool, q, payload, { maxAttempts: 1 }));
  return added;
}

/** The attempt of a handler that logs lines and then fails. */
async function logged(lines, options = {}) {
  const q = await queue();
  await add(q, 1);
  const handler = async (job) => {
    for (const line of lines) job.log.info(line);
    throw new Error('no secret-1');
  };
  assert.deepEqual(await drain(connection, q, handler, { captureLogs: 'failed', logger, ...options }), { dead: 1 });
  return (await attemptsOf(q))[0];
}

async function says(job, db) {
  await sleep(0);
  job.log.info('job %s says é', job.payload);
  if (db) await mark(db, job.queue, `${job.payload}`);
  if (job.payload === 'fails') throw new Error('no');
  return 'done';
}

test('each line of job.log has the job, and currentJob is known everywhere in a handler', async () => {
  const q = await queue();
  const ids = [];
  for (const n of [1, 2, 3]) ids.push((await enqueue(pool, q, n)).id);
  const lines = [];
  const seen = [];
  const elsewhere = () => seen.push(`${currentJob()?.id} ${currentJob()?.attempt}`);
  const handler = async (job) => {
    await sleep(5);
    job.log.warn('hello %d', job.payload, { a: 1 });
    elsewhere();
    await Promise.all([sleep(1).then(elsewhere), new Promise((done) => setImmediate(() => done(elsewhere())))]);
  };
  const own = { info: () => {}, warn: (line) => lines.push(line), error: () => {} };
  assert.equal(currentJob(), undefined);
  assert.deepEqual(await drain(connection, q, handler, { concurrency: 3, logger: own }), { committed: 3 });
  assert.equal(currentJob(), undefined);
  assert.deepEqual(lines.sort(), ids.map((id, n) => `${q} ${id} attempt 1: hello ${n + 1} { a: 1 }`));
  assert.deepEqual(seen.sort(), ids.flatMap((id) => Array(3).fill(`${id} 1`)));
  // Without a logger: console.
  const printed = [];
  const { info } = console;
  console.info = (line) => printed.push(line);
  try {
    const { id } = await enqueue(pool, q, 4);
    await drain(connection, q, async (job) => job.log.info('there'));
    assert.deepEqual(printed, [`${q} ${id} attempt 1: there`]);
  } finally {
    console.info = info;
  }
});

test('captureLogs: of failed attempts, and of all', async () => {
  for (const outside of [false, true]) {
    for (const [captureLogs, options] of [['failed', {}], ['all', {}], ['all', { concurrency: 3 }], ...(outside ? [] : [['all', { batch: 5 }]])]) {
      const q = await queue();
      await add(q, 'a', 'b', 'fails');
      assert.deepEqual(await drain(connection, q, says, { captureLogs, outside, logger, ...options }), { committed: 2, dead: 1 });
      const attempts = await attemptsOf(q);
      const text = `${outside} ${captureLogs} ${JSON.stringify(options)}`;
      assert.deepEqual(attempts.map(({ payload, outcome }) => [payload, outcome]), [...(captureLogs === 'all' ? [['a', 'committed'], ['b', 'committed']] : []), ['fails', 'failed']], text);
      for (const { payload, details } of attempts) assert.match(details.log, new RegExp(`^\\d{4}-\\S+Z INFO job ${payload} says é(\n.* says é)?$`), text);
      const { details } = attempts.at(-1);
      assert.equal(details.type, 'Error');
      assert.match(details.trace, /at .*says/);
    }
  }
  // A handler that does not use its client; none that logs nothing has a row; and Inside has a value of its own.
  const q = await queue();
  await add(q, 1);
  await drain(connection, q, (job) => says(job), { captureLogs: 'all', logger });
  assert.equal((await attemptsOf(q)).length, 1);
  await add(q, 2);
  await drain(connection, q, async () => {}, { captureLogs: 'all', logger });
  await add(q, 3);
  await drain(connection, { [q]: new Inside(says, { captureLogs: 'off' }) }, { captureLogs: 'all', logger });
  await add(q, 4);
  await drain(connection, q, says, { logger });
  assert.equal((await attemptsOf(q)).length, 1);
  await add(q, 5);
  await drain(connection, { [q]: new Outside(says, { captureLogs: 'all' }) }, { logger });
  assert.equal((await attemptsOf(q)).length, 2);
});

test('the last 16 kB, cut at a line', async () => {
  let { details } = await logged(Array.from({ length: 1000 }, (_, n) => `line ${n} ${'é'.repeat(50)}`));
  const bytes = Buffer.byteLength(details.log);
  assert.ok(bytes > 16_200 && bytes <= 16_384, `${bytes}`);
  assert.ok(details.log_cut);
  const lines = details.log.split('\n');
  lines.forEach((line, n) => assert.match(line, new RegExp(`^\\d{4}-\\S+ INFO line ${1000 - lines.length + n} é{50}$`)));
  ({ details } = await logged(['begin', `x${'é'.repeat(20_000)}\0`]));
  assert.equal(details.log, 'é'.repeat(8192));
  ({ details } = await logged([`${'y'.repeat(3_000_000)}\nthe last line`, 'short']));
  assert.match(details.log, /^the last line\n.* short$/);
  ({ details } = await logged(['half of a pair: \ud800', 'a literal \\u0000 and \\ud800']));
  assert.match(details.log, /half of a pair: \ufffd\n.*a literal \\u0000 and \\ud800$/);
  assert.equal(details.log_cut, undefined);
});

test('a log that is long as JSON, and a handler that changes the encoding', async () => {
  // It must be shorter than idemq.max_document can be, which is 64 kB, or the job would fail.
  for (const [line, kept] of [['\x01'.repeat(16_000), '?'.repeat(16_000)], ['\x1b[31m', '\x1b[31m'], ['"'.repeat(16_000), '"'.repeat(16_000)]]) {
    const { details } = await logged([line]);
    assert.equal(details.log.slice(-kept.length), kept);
    assert.ok(JSON.stringify(details.log).length < 50_000);
  }
  const q = await queue();
  await add(q, 1);
  const handler = async (job, client) => {
    await client.query("SET LOCAL client_encoding = 'EUC_JP'");
    job.log.info('é 😀');
  };
  assert.deepEqual(await drain(connection, q, handler, { captureLogs: 'all', logger }), { committed: 1 });
  assert.match((await attemptsOf(q))[0].details.log, /INFO é 😀$/);
});

test('redact', async () => {
  const redact = (text) => text.replace(/secret-\d+/g, '(removed)');
  let { details, error } = await logged(['one secret-1', 'two secret-22'], { redact });
  assert.doesNotMatch(JSON.stringify([details, error]), /secret/);
  assert.equal(details.log.split('(removed)').length, 3);
  ({ details } = await logged(['x', `secret-${'1'.repeat(20_000)}`], { redact }));
  assert.match(details.log, /\(removed\)$/);
  for (const wrong of [() => { throw new Error('secret-5'); }, () => undefined, async () => { throw new Error('secret-5'); }]) {
    const said = [];
    ({ details, error } = await logged(['secret-1'], { redact: wrong, logger: { ...logger, error: (text) => said.push(text) } }));
    assert.deepEqual([details.log, details.trace, error], Array(3).fill('(removed, because redact failed)'));
    assert.match(said.join(), /redact failed/);
    assert.doesNotMatch(said.join(), /secret/);
  }
  const q = await queue();
  await add(q, 1);
  await drain(connection, q, async (job) => job.log.info('secret-3'), { outside: true, captureLogs: 'all', redact, logger });
  assert.match((await attemptsOf(q))[0].details.log, /INFO \(removed\)$/);
  const [{ id }] = await add(q, 2);
  await drain(connection, q, (job) => job.step('s', () => { throw new Refused('secret-4'); }), { outside: true, redact, logger });
  assert.deepEqual((await pool.query('SELECT error FROM idemq.steps WHERE job_id = $1', [id])).rows, [{ error: 'Refused: (removed)' }]);
  const warnings = [];
  const codec = { name: 'none', keys: ['1'], encode: () => { throw new Error('secret-8'); }, decode: () => { throw new Error('no'); } };
  await add(q, 3);
  await drain(connection, q, () => 1, { outside: true, redact, codec, logger: { ...logger, warn: (text) => warnings.push(text) } });
  assert.match(warnings.join(), /committed without a result, because of an error: Error: \(removed\)/);
  // The text of a cause, too.
  const q2 = await queue();
  await add(q2, 1);
  await drain(connection, q2, async () => { throw new Error('secret-6', { cause: new Error('secret-7') }); }, { redact, logger });
  assert.doesNotMatch(JSON.stringify(await attemptsOf(q2)), /secret/);
});

test('logs do not make a job fail', async () => {
  // The answer to COMMIT is lost.
  const q = await queue();
  await add(q, 1);
  await proxied({}, async (proxy, to) => {
    let cuts = 0;
    proxy.cut = (what) => /COMMIT|idemq_end/.test(what) && cuts++ === 0;
    assert.deepEqual(await drain(to, q, says, { captureLogs: 'all', attach: false, logger }), { committed: 1 });
    assert.ok(cuts > 0);
  });
  const [{ outcome, details }] = await attemptsOf(q);
  assert.deepEqual([outcome, /says/.test(details.log)], ['committed', true]);
  // A server that cannot store every character.
  await pool.query("CREATE DATABASE logs_latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
  const latin = new pg.Pool({ ...connection, database: 'logs_latin' });
  latin.on('error', () => {}); // it may end after the database
  try {
    await latin.query("CREATE EXTENSION idemq; SELECT idemq.create_queue('q'); CREATE TABLE run_marks (queue text, mark text)");
    for (const outside of [false, true]) {
      await enqueue(latin, 'q', 1);
      const handler = async (job, db) => {
        job.log.info('costs 5 €');
        await says(job, db);
      };
      assert.deepEqual(await drain({ ...connection, database: 'logs_latin' }, 'q', handler, { outside, captureLogs: 'all', logger }), { committed: 1 });
    }
    const logs = (await latin.query('SELECT details FROM idemq.attempts')).rows.map(({ details }) => details.log);
    assert.equal(logs.length, 2);
    for (const log of logs) assert.match(log, /costs 5 \\u20ac\n.*says/);
    // Of a failure, neither the log nor the rest of the details is lost.
    await enqueue(latin, 'q', 'fails', { maxAttempts: 1 });
    await drain({ ...connection, database: 'logs_latin' }, 'q', async (job) => { job.log.info('costs 5 €'); throw new RangeError('no'); }, { outside: true, captureLogs: 'failed', logger });
    const [{ details }] = (await latin.query("SELECT details FROM idemq.attempts WHERE outcome = 'failed'")).rows;
    assert.deepEqual([details.type, /costs 5 \\u20ac$/.test(details.log)], ['RangeError', true]);
  } finally {
    await latin.end();
  }
  await pool.query('DROP DATABASE logs_latin (FORCE)');
});

test('wrong options', () => {
  assert.throws(() => new Worker(connection, 'q', { captureLogs: 'some' }), { name: 'RangeError', message: "captureLogs must be 'off', 'failed' or 'all', not 'some'" });
  assert.throws(() => new Inside(() => {}, { captureLogs: true }), { name: 'RangeError', message: "captureLogs must be 'off', 'failed' or 'all', not true" });
  assert.throws(() => new Worker(connection, { q: () => {} }, { redact: 'x' }), { name: 'TypeError', message: 'redact must be a function, not x' });
});
