// node_codec.mjs: documents that a codec encodes, before, across and after a rotation of its keys.  CONNECTION is JSON, and its database has idemq.
// The codec is the one that the manual shows.

import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import pg from 'pg';
import {
  Dead, Inside, KeyReused, Outside, Worker, assertEnqueued, drain, enqueue, enqueueGraph, enqueueMany, enqueueSequenced, enqueueStatement, job as jobOf, makeDue, publish,
  result, schedule, sendEvent, unschedule, waitResults,
} from 'idemq';
import { AesGcm } from './encryption.mjs';
import { connection, jobsOf, logger, one, pool, queue, said } from './node_common.mjs';

const secret = '4111-1111';
const keys = { 1: Buffer.alloc(32, 1), 2: Buffer.alloc(32, 2) };
const codecOf = (...names) => new AesGcm(new Map(names.map((name) => [name, keys[name] ?? Buffer.alloc(32, 3)])));
const [old, both, young] = [codecOf('1'), codecOf('2', '1'), codecOf('2')];
const settings = ", retry_base => '1 h', retention => '1 d'";
const clients = [];

after(async () => {
  for (const client of clients) await client.end();
});

/** Everything that is stored about the jobs of a queue. */
async function stored(q) {
  const { rows } = await pool.query(
    `SELECT ARRAY[j.payload, j.checkpoint, j.result] AS documents FROM idemq.jobs j WHERE queue_id = idemq.queue_id($1)
     UNION ALL SELECT ARRAY[s.request, s.response] FROM idemq.steps s JOIN idemq.jobs j ON j.id = s.job_id WHERE j.queue_id = idemq.queue_id($1)
     UNION ALL SELECT ARRAY[e.payload] FROM idemq.events e WHERE e.queue_id = idemq.queue_id($1)`, [q]);
  return rows.flatMap(({ documents }) => documents).filter((each) => each !== null);
}

async function assertAllEncoded(q, least) {
  const documents = await stored(q);
  assert.ok(documents.length >= least, `${documents.length}`);
  for (const each of documents) assert.deepEqual(Object.keys(each).sort(), ['data', 'idemq_codec', 'key']);
}

/** A client of a role that may only enqueue. */
async function producer(q) {
  const role = `producer_${q}_${process.pid}`;
  await pool.query(`CREATE ROLE ${role} LOGIN`);
  await pool.query('SELECT idemq.grant_queue($1, $2, $3)', [q, role, 'enqueue']);
  const client = new pg.Client({ ...connection, user: role });
  await client.connect();
  clients.push(client);
  return client;
}

const due = async (q, ...args) => {
  await makeDue(pool, q);
  return drain(connection, q, ...args);
};

test('everything about a job is encoded', async () => {
  const q = await queue(settings);
  const seen = [];
  const { id } = await enqueue(pool, q, { card: secret }, { codec: old });
  const sent = await sendEvent(pool, q, 'approved', { by: secret }, { codec: old });
  assert.deepEqual(sent, { outcome: 'accepted', firstPayload: { by: secret }, samePayload: true });
  const handler = async (job, db) => {
    seen.push([job.payload, job.checkpoint]);
    const answer = await job.step('charge', ({ request }) => ({ ...request, paid: true }), { request: { card: secret } });
    if (job.checkpoint === null) {
      await job.saveCheckpoint({ card: secret });
      assert.deepEqual(job.checkpoint, { card: secret });
      throw new Error('once');
    }
    const event = await job.awaitEvent('approved', '1 h');
    await db.query('SELECT 1');
    await job.saveCheckpoint([secret], db);
    return [answer, event];
  };
  assert.deepEqual(await drain(connection, q, handler, { codec: old, logger }), { retrying: 1 });
  assert.deepEqual(await due(q, handler, { codec: old, logger }), { committed: 1 });
  assert.deepEqual(seen, [[{ card: secret }, null], [{ card: secret }, { card: secret }]]);
  const expected = [{ card: secret, paid: true }, { arrived: true, payload: { by: secret } }];
  assert.deepEqual(await result(pool, id, { codec: old }), { status: 'completed', result: expected });
  assert.deepEqual(await waitResults(pool, [id], 30, { codec: old }), [{ status: 'completed', result: expected }]);
  const { payload, checkpoint, result: found } = await jobOf(pool, id, { codec: old });
  assert.deepEqual([payload, checkpoint, found], [{ card: secret }, [secret], expected]);
  await assertAllEncoded(q, 6);
  assert.ok(!JSON.stringify(await stored(q)).includes(secret));
});

test('outside, batches and group commits', async () => {
  const q = await queue(settings);
  const jobs = await enqueueMany(pool, q, Array.from({ length: 40 }, (_, n) => ({ payload: { n } })), { codec: old });
  assert.deepEqual(await drain(connection, { [q]: new Outside(async (job) => {
    const n = await job.step('n', ({ request }) => request, { request: job.payload.n });
    return { n };
  }, { concurrency: 8, codec: old }) }), { committed: 40 });
  const more = await enqueueMany(pool, q, Array.from({ length: 40 }, (_, n) => ({ payload: { n } })), { codec: old });
  let failed = false;
  const handler = async (job, db) => {
    if (job.payload.n % 2 === 0) await db.query('SELECT 1');
    if (job.payload.n === 7 && !failed) {
      failed = true;
      throw new Error('once');
    }
    return job.payload;
  };
  assert.deepEqual(await drain(connection, { [q]: new Inside(handler, { batch: 8, concurrency: 2, codec: old }) }, { logger }), { committed: 40 });
  for (const [n, { id }] of [...jobs, ...more].entries()) assert.deepEqual((await result(pool, id, { codec: old })).result, { n: n % 40 });
  await assertAllEncoded(q, 240);
});

test('parents and graphs', async () => {
  const q = await queue(settings);
  const graph = {
    a: { queue: q, payload: { name: 'a' }, key: 'a' },
    b: { queue: q, payload: { name: 'b' }, key: 'b', dependsOn: ['a'] },
  };
  const outcomes = async (client, jobs, codec) => Object.values(await enqueueGraph(client, jobs, { codec })).map(({ outcome }) => outcome);
  assert.deepEqual(await outcomes(pool, graph, old), ['accepted', 'accepted']);
  for (const codec of [old, both]) assert.deepEqual(await outcomes(pool, graph, codec), ['duplicate', 'duplicate']);
  const mixed = { ...graph, c: { queue: q, payload: { name: 'c' }, key: 'c', dependsOn: ['b'] } };
  assert.deepEqual(await outcomes(pool, mixed, both), ['duplicate', 'duplicate', 'accepted']);
  const changed = { ...mixed, b: { ...graph.b, payload: { name: 'x' } }, d: { queue: q, payload: {}, key: 'd' } };
  await assert.rejects(enqueueGraph(pool, changed, { codec: both }), KeyReused);
  assert.equal((await jobsOf(q)).length, 3);
  const found = [];
  const handler = async (job) => {
    found.push(...(await job.parents()).map((parent) => parent.result));
    return { of: job.payload.name };
  };
  while ((await jobsOf(q)).some(({ status }) => status !== 'completed')) await drain(connection, q, handler, { codec: both });
  assert.deepEqual(found, [{ of: 'a' }, { of: 'b' }]);
});

/** A second enqueue before, across and after a rotation. */
async function rotation(client, q) {
  const add = (n, codec, options = {}) => enqueue(client, q, { n, card: secret }, { key: `key-${n}`, codec, ...options });
  const first = await add(1, old);
  const duplicate = { ...first, outcome: 'duplicate' };
  assert.equal(first.outcome, 'accepted');
  for (const codec of [old, codecOf('1', '2'), both, both]) assert.deepEqual(await add(1, codec), duplicate);
  assert.equal((await add(2, both)).outcome, 'accepted');
  for (const codec of [both, young, codecOf('1', '2')]) assert.equal((await add(2, codec)).outcome, 'duplicate');
  for (const codec of [old, both]) await assert.rejects(enqueue(client, q, { n: 7 }, { key: 'key-1', codec }), KeyReused);
  assert.equal((await jobsOf(q)).length, 2);
  await add(3, old, { kind: 'mail' });
  await assert.rejects(add(3, both, { kind: 'report' }), KeyReused);
  assert.equal((await add(3, both)).outcome, 'duplicate');
}

async function many(client, q) {
  const add = async (numbers, codec) =>
    (await enqueueMany(client, q, numbers.map((n) => ({ payload: { n }, key: `many-${n}` })), { codec })).map(({ outcome }) => outcome);
  assert.deepEqual(await add([12, 11], old), ['accepted', 'accepted']);
  for (const codec of [old, both]) assert.deepEqual(await add([11, 12], codec), ['duplicate', 'duplicate']);
  assert.deepEqual(await add([13, 11, 14, 12], both), ['accepted', 'duplicate', 'accepted', 'duplicate']);
  assert.deepEqual(await add([11, 13, 15, 13], both), ['duplicate', 'duplicate', 'accepted', 'duplicate']);
  assert.deepEqual(await add([13, 14, 15], young), ['duplicate', 'duplicate', 'duplicate']);
  const before = (await jobsOf(q)).length;
  const jobs = [{ payload: { n: 11 }, key: 'many-11' }, { payload: {}, key: 'many-19' }, { payload: 'other', key: 'many-13' }];
  await assert.rejects(enqueueMany(client, q, jobs, { codec: both }), KeyReused);
  assert.equal((await jobsOf(q)).length, before);
}

/** A pool of a role that may only enqueue. */
async function producers(q) {
  const own = new pg.Pool({ ...connection, user: (await producer(q)).user });
  clients.push(own);
  return own;
}

for (const [name, make] of [['a pool', () => pool], ['a role that may only enqueue', producers]]) {
  test(`duplicates across a rotation: ${name}`, async () => {
    const q = await queue(settings);
    const client = await make(q);
    await rotation(client, q);
    await many(client, q);
  });
}

test('a duplicate in a transaction loses nothing that the transaction has done', async () => {
  const q = await queue(settings);
  await pool.query('GRANT ALL ON run_marks TO PUBLIC');
  const own = new pg.Client(connection);
  await own.connect();
  clients.push(own);
  for (const [n, client] of [own, await producer(q)].entries()) {
    const mark = (what) => client.query('INSERT INTO run_marks VALUES ($1, $2)', [`${q} ${n}`, what]);
    const key = `key ${n}`;
    await enqueue(client, q, { n: 1 }, { key, codec: old });
    await client.query('BEGIN');
    await mark('1');
    const [duplicate] = await Promise.all([enqueue(client, q, { n: 1 }, { key, codec: both }), mark('2')]);
    assert.equal(duplicate.outcome, 'duplicate');
    const results = await enqueueMany(client, q, [{ payload: { n: 1 }, key }, { payload: { n: 2 } }], { codec: both });
    assert.deepEqual(results.map(({ outcome }) => outcome), ['duplicate', 'accepted']);
    await mark('3');
    await client.query('COMMIT');
    assert.equal(Number((await one('SELECT count(*) FROM run_marks WHERE queue = $1', `${q} ${n}`)).count), 3);
    await client.query('BEGIN');
    const jobs = [{ payload: {}, key: `more ${n}` }, { payload: 'other', key }];
    await assert.rejects(enqueueMany(client, q, jobs, { codec: both }), KeyReused);
    await client.query('COMMIT');
    assert.equal(Number((await one('SELECT count(*) FROM idemq.jobs WHERE key = $1', `more ${n}`)).count), 0);
  }
});

test('statements that run at the same time are never undone silently', async () => {
  const q = await queue(settings);
  await pool.query('GRANT ALL ON run_marks TO PUBLIC');
  const client = await producer(q);
  for (let n = 0; n < 10; n++) await enqueue(client, q, { n }, { key: `key-${n}`, codec: old });
  await client.query('BEGIN');
  let marked = 0;
  const done = await Promise.allSettled([
    ...Array.from({ length: 10 }, (_, n) => enqueue(client, q, { n }, { key: `key-${n}`, codec: both })),
    (async () => {
      for (let n = 0; n < 60; n++) {
        await client.query('INSERT INTO run_marks VALUES ($1, $2)', [q, `${n}`]);
        marked++;
      }
    })(),
  ]);
  const { rowCount } = await client.query('SELECT FROM run_marks WHERE queue = $1', [q]).catch(() => ({ rowCount: null }));
  await client.query('COMMIT');
  // Either all is there, or the application has seen an error.
  if (rowCount !== null) assert.equal(rowCount, marked);
  if (done.every(({ status }) => status === 'fulfilled')) assert.equal(marked, 60);
});

test('a handler adds duplicates', async () => {
  const q = await queue(settings);
  const jobs = [1, 2].map((n) => ({ payload: { n }, key: `job ${n}`, delay: '1 h' }));
  await enqueueMany(pool, q, jobs.slice(0, 1), { codec: old });
  await enqueue(pool, q, { n: 0 }, { codec: both });
  const outcomes = [];
  await drain(connection, q, async (job, db) => {
    for (const { outcome } of await enqueueMany(db, q, jobs, { codec: both })) outcomes.push(outcome);
    await db.transaction(async () => outcomes.push((await enqueue(db, q, { n: 1 }, { key: 'job 1', codec: both })).outcome));
    await assert.rejects(db.transaction(() => enqueueMany(db, q, [...jobs, { payload: 'new' }, { payload: 'other', key: 'job 1' }], { codec: both })), KeyReused);
  }, { codec: both, logger });
  assert.deepEqual(outcomes, ['duplicate', 'accepted', 'duplicate']);
  assert.deepEqual((await jobsOf(q)).map(({ status }) => status), ['pending', 'completed', 'pending']);
});

test('a client without a transaction adds duplicates that are all encoded with the same key', async () => {
  const q = await queue(settings);
  const client = await producer(q);
  const jobs = [1, 2].map((n) => ({ payload: { n }, key: `job ${n}` }));
  const add = async (codec) => (await enqueueMany(client, q, jobs, { codec })).map(({ outcome }) => outcome);
  assert.deepEqual(await add(old), ['accepted', 'accepted']);
  assert.deepEqual(await add(both), ['duplicate', 'duplicate']);
  await enqueue(client, q, { n: 3 }, { key: 'job 3', codec: both });
  jobs.push({ payload: { n: 3 }, key: 'job 3' });
  await assert.rejects(add(both), KeyReused);
  await client.query('BEGIN');
  assert.deepEqual(await add(both), ['duplicate', 'duplicate', 'duplicate']);
  await client.query('COMMIT');
});

test('an accepted job needs no more statements', async () => {
  const q = await queue(settings);
  const client = new pg.Client(connection);
  await client.connect();
  clients.push(client);
  let statements = 0;
  const counted = { query: (...args) => (statements++, client.query(...args)) };
  await client.query('BEGIN');
  await enqueue(counted, q, 1, { codec: both });
  await enqueue(counted, q, 1, { key: 'new', codec: both });
  await enqueue(counted, q, 1, { key: 'plain' });
  await enqueue(counted, q, 2, { key: 'old', codec: old });
  await enqueue(counted, q, 2, { key: 'old', codec: old });
  await client.query('COMMIT');
  assert.equal(statements, 5);
});

test('the result of a duplicate', async () => {
  const q = await queue(settings);
  await enqueue(pool, q, { n: 1 }, { key: 'done', codec: old });
  await drain(connection, q, () => ({ card: secret }), { codec: old });
  for (const codec of [old, both]) {
    const { status, result: found } = await enqueue(pool, q, { n: 1 }, { key: 'done', codec });
    assert.deepEqual([status, found], ['completed', { card: secret }]);
  }
  await enqueue(pool, q, { n: 2 }, { key: 'dies', codec: old });
  await drain(connection, q, () => { throw new Dead('never'); }, { codec: old, logger });
  assert.match((await enqueue(pool, q, { n: 2 }, { key: 'dies', codec: both })).error, /never/);
});

test('a step across a rotation', async () => {
  const q = await queue(settings);
  const calls = [];
  const { id } = await enqueue(pool, q, {}, { codec: old });
  const handler = async (job) => {
    const answer = await job.step('charge', ({ request }) => (calls.push(request), { paid: secret }), { request: { card: secret } });
    if (job.attempt === 1) throw new Error('after the step');
    await assert.rejects(job.step('charge', () => 0, { request: { card: 'another' } }), KeyReused);
    return answer;
  };
  await drain(connection, q, handler, { codec: old, logger });
  assert.deepEqual(await due(q, handler, { codec: both, logger }), { committed: 1 });
  assert.deepEqual(calls, [{ card: secret }]);
  assert.deepEqual((await result(pool, id, { codec: both })).result, { paid: secret });
});

test('ask gets the earlier request', async () => {
  const q = await queue(settings);
  const asked = [];
  await enqueue(pool, q, {}, { codec: old });
  const handler = async (job) => job.step('charge', () => { throw new Error('lost'); }, {
    request: { card: secret }, callTimeout: 0.001, ask: ({ request }) => (asked.push(request), { found: true }),
  });
  await drain(connection, q, handler, { codec: old, outside: true, logger });
  while ((await jobsOf(q))[0].status !== 'completed') await due(q, handler, { codec: both, outside: true, logger });
  assert.deepEqual(asked, [{ card: secret }]);
});

test('an event across a rotation', async () => {
  const q = await queue(settings);
  const send = (by, codec) => sendEvent(pool, q, 'approved', { by }, { codec });
  assert.deepEqual(await send(1, old), { outcome: 'accepted', firstPayload: { by: 1 }, samePayload: true });
  for (const codec of [old, both]) assert.deepEqual(await send(1, codec), { outcome: 'duplicate', firstPayload: { by: 1 }, samePayload: true });
  assert.deepEqual(await send(2, both), { outcome: 'duplicate', firstPayload: { by: 1 }, samePayload: false });
  assert.equal((await sendEvent(pool, q, 'none', undefined, { codec: both })).firstPayload, null);
});

test('a job whose key is unknown, or that was changed, fails and is retried', async () => {
  const q = await queue(settings);
  const { id } = await enqueue(pool, q, { n: 1 }, { codec: young });
  const none = () => assert.fail('the handler must not be called');
  assert.deepEqual(await drain(connection, q, none, { codec: old, logger }), { retrying: 1 });
  const unknown = 'Error: a document is encoded with key 2 of codec aes-gcm, but this program has only 1 of codec aes-gcm';
  assert.equal((await jobsOf(q))[0].last_error, unknown);
  await assert.rejects(jobOf(pool, id, { codec: old }), { message: unknown.slice('Error: '.length) });
  assert.deepEqual(await due(q, (job) => assert.deepEqual(job.payload, { n: 1 }), { codec: both, logger }), { committed: 1 });
  await enqueue(pool, q, { n: 1 }, { codec: old });
  await pool.query(`UPDATE idemq.jobs SET payload = jsonb_set(payload, '{data}', '"${'A'.repeat(64)}"') WHERE queue_id = idemq.queue_id($1) AND status = 'pending'`, [q]);
  assert.deepEqual(await drain(connection, q, none, { codec: old, logger }), { retrying: 1 });
  assert.match((await jobsOf(q))[1].last_error, /^Error: a document that is encoded with key 1 cannot be decoded: /);
  await enqueue(pool, q, { n: 1 }, { key: 'k', codec: codecOf('0') });
  await assert.rejects(enqueue(pool, q, { n: 1 }, { key: 'k', codec: both }), /is encoded with key 0, but this program has only 2, 1/);
});

test('plain jobs and dead-letter records are read', async () => {
  const [q, dead] = [await queue(settings), await queue(settings)];
  await pool.query('SELECT idemq.alter_queue($1, dead_letter_queue => $2)', [q, dead]);
  await enqueue(pool, q, { plain: true });
  await enqueue(pool, q, { card: secret }, { codec: old });
  const seen = [];
  await drain(connection, q, async (job) => {
    seen.push(job.payload);
    if (job.payload.plain) return;
    await job.step('charge', () => ({ paid: true }), { request: { card: secret } });
    await job.saveCheckpoint([1]);
    throw new Dead('never');
  }, { codec: old, logger });
  assert.deepEqual(seen, [{ plain: true }, { card: secret }]);
  const records = [];
  await drain(connection, dead, (job) => void records.push(job.payload), { codec: both });
  const [{ payload, checkpoint, steps: [{ request, response }] }] = records;
  assert.deepEqual([payload, checkpoint, request, response], [{ card: secret }, [1], { card: secret }, { paid: true }]);
});

test('other calls that add jobs, and assertEnqueued', async () => {
  const q = await queue(settings);
  await pool.query('SELECT idemq.create_topic($1)', [`topic_${q}`]);
  await pool.query('SELECT idemq.bind_topic($1, $2)', [`topic_${q}`, q]);
  for (const codec of [old, both]) {
    await publish(pool, `topic_${q}`, { n: 3 }, { key: 'message', codec });
    await enqueueSequenced(pool, q, 'log', 1, { n: 1 }, { codec });
  }
  await schedule(pool, q, 'every 1 h', q, { n: 2 }, { codec: old });
  assert.equal((await one("SELECT payload->>'idemq_codec' AS codec FROM idemq.schedules WHERE name = $1", q)).codec, 'aes-gcm');
  await unschedule(pool, q);
  await enqueue(pool, q, { n: 4, card: secret }, { key: 'k', codec: old });
  await assertEnqueued(pool, q, { payload: { n: 4 }, key: 'k', codec: both });
  await assertEnqueued(pool, q, { times: 3, codec: both });
  await assert.rejects(assertEnqueued(pool, q, { payload: { n: 5 }, codec: both }), new RegExp(`found 0. Jobs in ${q}:\n.*"card": "${secret}"`));
  const seen = [];
  await drain(connection, q, (job) => void seen.push(job.payload.n), { codec: old });
  assert.deepEqual(seen.sort(), [1, 3, 4]);
  await assertAllEncoded(q, 3);
});

test('values are what they were, and a schema and hooks see them', async () => {
  const q = await queue(settings);
  const values = [null, true, 1, 1e300, -0.5, '\u007f\u00e4\u{1F600}\n"\\\u0001', [], {}, { '': [{ b: 1, a: [null, false] }] }, { idemq_codec: 'x', key: 'y', data: 'z' }];
  const seen = [];
  for (const value of values) await enqueue(pool, q, value, { codec: old });
  const schema = { '~standard': { validate: (value) => ({ value: [value] }) } };
  const around = (job, next) => (seen.push(job.payload), next());
  await drain(connection, q, (job) => void seen.push(job.payload[0]), { codec: old, schema, hooks: { around } });
  assert.deepEqual(seen, values.flatMap((value) => [value, value]));
  const same = [];
  for (const payload of [{ b: 1, a: { 10: 1, 9: 2 } }, { a: { 9: 2, 10: 1 }, b: 1 }]) same.push(await enqueue(pool, q, payload, { key: 'order', codec: old }));
  assert.equal(same[0].id, same[1].id);
});

test('equal numbers are equal bytes', async () => {
  // python_codec.py has the same texts.
  const q = await queue(settings);
  const texts = [];
  const codec = Object.assign(codecOf('1'), { encode: (data) => (texts.push(data.toString()), data) });
  for (const value of [1, 0, 0.1, 0.00001, 1e-7, -1.25e-7, -5e-324, -1.25e21, 123456789012345680000]) await enqueue(pool, q, value, { codec });
  assert.deepEqual(texts, ['1', '0', '0.1', '0.00001', '0.0000001', '-0.000000125', `-0.${'0'.repeat(323)}5`, '-1.25e+21', '123456789012345680000']);
});

test('a document that is not JSON, and a plain one that resembles an encoded one', async () => {
  const q = await queue(settings);
  const { id } = await enqueue(pool, q, { n: 1 }, { codec: old });
  const wrong = Object.assign(codecOf('1'), { decode: () => Buffer.from(secret) });
  // Nothing of the document is in the error.
  await assert.rejects(jobOf(pool, id, { codec: wrong }), (error) => {
    assert.equal(error.message, "a document that is encoded with key 1 cannot be decoded: the codec's decode returned data that cannot be read as JSON");
    assert.equal(error.cause, undefined);
    return true;
  });
  for (const [n, payload] of [{ idemq_codec: 1 }, ['idemq_codec']].entries()) {
    await enqueue(pool, q, payload, { key: `plain-${n}` });
    await assert.rejects(enqueue(pool, q, payload, { key: `plain-${n}`, codec: both }), KeyReused);
  }
});

test('what cannot be encoded, and what is no codec', async () => {
  const q = await queue(settings);
  await assert.rejects(enqueue(pool, q, undefined, { codec: old }), /payload must be a value that JSON can represent/);
  for (const codec of [{}, 'aes', { ...old, name: 'x', keys: [] }, Object.assign(codecOf('1'), { encode: undefined })]) {
    await assert.rejects(enqueue(pool, q, 1, { codec }), TypeError);
    assert.throws(() => new Worker(connection, q, { codec }), TypeError);
  }
  await enqueue(pool, q, 1, { codec: old });
  assert.deepEqual(await drain(connection, q, () => 10n, { codec: old, outside: true, logger }), { committed: 1 });
  assert.equal((await jobsOf(q))[0].result, null);
  await enqueue(pool, q, 1, { codec: old });
  assert.deepEqual(await drain(connection, q, () => 10n, { codec: old, logger }), { retrying: 1 });
  assert.ok(said.length > 0);
  // A duplicate may need several statements, so it must not be sent without being encoded.
  assert.throws(() => enqueueStatement(q, 1, { codec: old }), /enqueueStatement has no option codec/);
});
