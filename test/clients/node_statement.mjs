// node_statement.mjs: enqueueStatement in every style, and enqueue with clients that are not pg's.  CONNECTION is JSON, and its database
// has idemq.  drivers.mjs tests the same with other libraries.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import pg from 'pg';
import { KeyReused, drain, enqueue, enqueueMany, enqueueStatement, ensureQueue } from 'idemq';

const connection = JSON.parse(process.env.CONNECTION);
const pool = new pg.Pool(connection);
const q = 'statement.of-node';
// Also what looks like a parameter.
const awkward = [
  "it's", '"', '\\', '%s %(name)s %% :name ::x ? ?? $1 $$', '\u{1f600} ä €', '\r\n\t', '', null, true, [], [1, [2]], {}, -0.5, { 'a:b?': '%' }, 2 ** 53 - 1,
  { at: new Date(0) }, 'x'.repeat(2 ** 20),
];

/** Each style, and how pg is made to execute it. */
const styles = {
  $1: (statement) => statement,
  '?': ({ text, values }) => ({ text: text.split('?').reduce((all, part, n) => `${all}$${n}${part}`), values }),
  ':name': ({ text, values }) => {
    const names = [...text.matchAll(/:(\w+)/g)].map(([, name]) => name);
    return { text: text.replace(/:(\w+)/g, (_, name) => `$${names.indexOf(name) + 1}`), values: names.map((name) => values[name]) };
  },
  template: ([strings, ...values]) => ({ text: strings.raw.reduce((all, part, n) => `${all}$${n}${part}`), values }),
};
const execute = async (queue, payload, options, style = '$1', client = pool) =>
  (await client.query(styles[style](enqueueStatement(queue, payload, { ...options, style })))).rows[0];
const stored = async (id) => (await pool.query(`SELECT payload, group_key, kind, priority, max_attempts, headers, status, ready_at - enqueued_at AS delay, expires_at - enqueued_at AS expiry,
  key_expires_at - enqueued_at AS key_expiry, flags, ARRAY(SELECT parent::text FROM idemq.parents(id)) AS parents FROM idemq.jobs WHERE id = $1`, [id])).rows[0];

before(() => ensureQueue(pool, q, { lease: 3600, idempotencyWindow: '1 h' }));
after(() => pool.end());

test('every style adds the job that enqueue adds', async () => {
  const parent = (await enqueue(pool, q, 'parent')).id;
  const options = {
    delay: '1 h', priority: 2, groupKey: 7, maxAttempts: 3, headers: { h: "'%s :x ? $1" }, expiresIn: 7200, keyTtl: '1 day', onDuplicate: 'ignore', nowait: true, kind: 'k%?:',
    dependsOn: [parent], onParentFailure: 'run',
  };
  const expected = await stored((await enqueue(pool, q, { n: 1 }, { ...options, key: 'one' })).id);
  for (const style of Object.keys(styles)) {
    const first = await execute(q, { n: 1 }, { ...options, key: style }, style);
    assert.deepEqual(first, { id: first.id, outcome: 'accepted', status: 'blocked', result: null });
    assert.equal(typeof first.id, 'string');
    assert.deepEqual(await stored(first.id), expected, style);
    assert.deepEqual(await execute(q, { n: 2 }, { ...options, key: style }, style), { ...first, outcome: 'duplicate' });
    // Options that are not given, in each way.
    const none = await execute(q, 1, { key: undefined, delay: null, runAt: undefined, groupKey: null, headers: undefined, dependsOn: null, priority: undefined }, style);
    assert.deepEqual(await stored(none.id), await stored((await enqueue(pool, q, 1)).id), style);
  }
});

test('values arrive as they are, whatever they contain', async () => {
  for (const style of Object.keys(styles)) {
    for (const payload of awkward) {
      const { id } = await execute(q, payload, { key: `${style} ${JSON.stringify(payload).slice(0, 100)}`, kind: `k${payload}`.slice(0, 30) }, style);
      const { rows: [row] } = await pool.query('SELECT payload, payload = $2::jsonb AS same, kind, key FROM idemq.jobs WHERE id = $1', [id, JSON.stringify(payload)]);
      assert.deepEqual([row.payload, row.same], [JSON.parse(JSON.stringify(payload)), true]);
      assert.deepEqual([row.kind, row.key], [`k${payload}`.slice(0, 30), `${style} ${JSON.stringify(payload).slice(0, 100)}`]);
    }
  }
  const soon = new Date(Date.now() + 3_600_123);
  for (const [runAt, expected] of [[soon, soon.toISOString()], ['2100-02-03 04:05+01', '2100-02-03T03:05:00.000Z'], [new Date('+012345-01-01T00:00:00.000Z'), '12345-01-01T00:00:00.000Z']]) {
    const { id } = await execute(q, 1, { runAt });
    assert.deepEqual((await pool.query('SELECT ready_at = $2::text::timestamptz AS same FROM idemq.jobs WHERE id = $1', [id, expected])).rows, [{ same: true }]);
  }
  const { id } = await execute(q, 1, { key: 2n ** 64n, groupKey: 9007199254740991 });
  assert.deepEqual((await pool.query('SELECT key, group_key FROM idemq.jobs WHERE id = $1', [id])).rows, [{ key: '18446744073709551616', group_key: '9007199254740991' }]);
});

test('the answer has the result of the first job', async () => {
  const first = await execute(q, 'done', { key: 'done' });
  await drain(connection, q, (job) => (job.key === 'done' ? { sent: [1] } : null), { batch: 100 });
  assert.deepEqual(await execute(q, 'done', { key: 'done' }, 'template'), { ...first, outcome: 'duplicate', status: 'completed', result: { sent: [1] } });
});

test('what cannot be stored is refused', async () => {
  for (const options of [{ key: 'a\0b' }, { groupKey: '\0' }, { kind: 'k\0' }]) {
    assert.throws(() => enqueueStatement(q, 1, options), { name: 'TypeError', message: `${Object.keys(options)[0]} contains a NUL character, which PostgreSQL cannot store` });
  }
  assert.throws(() => enqueueStatement('q\0', 1), /^TypeError: queue contains a NUL/);
  // Otherwise '\ud800' and '\ud801' would be one key.
  for (const options of [{ key: '\ud800' }, { key: 'a\udc00b' }, { groupKey: '\ud83d' }]) {
    const [name] = Object.keys(options);
    const says = { name: 'TypeError', message: `${name} contains half of a surrogate pair, which PostgreSQL cannot store` };
    assert.throws(() => enqueueStatement(q, 1, options), says);
    await assert.rejects(enqueue(pool, q, 1, options), says);
    await assert.rejects(enqueueMany(pool, q, [{ payload: 1, ...options }]), { message: `${name} of job 0${says.message.slice(name.length)}` });
  }
  assert.equal((await execute(q, 1, { key: '\u{1f600}' })).outcome, 'accepted');
  // In JSON it is an escape, which the server refuses.
  await assert.rejects(execute(q, 'a\0b'), { code: '22P05' });
  for (const style of Object.keys(styles)) await assert.rejects(execute("'%s :x ? $1", 1, {}, style), { code: 'IQ005', message: /"'%s :x \? \$1"/ });
  for (const [options, says] of [
    [{ style: '%s' }, /^style must be one of \$1, \?, :name, template, not "%s"/], [{ style: 'toString' }, /^style must be/], [{ Style: '?' }, /no option Style: did you mean style\?/],
    [{ key: {} }, /^key must be/],
  ]) assert.throws(() => enqueueStatement(q, 1, options), ({ name, message }) => name === 'TypeError' && says.test(message));
  assert.throws(() => enqueueStatement(q), /^TypeError: payload must be a value that JSON can represent, not undefined/);
  assert.throws(() => enqueueStatement(q, 1n), /^TypeError: payload cannot be encoded as JSON/);
});

test('a schema is checked at once', async () => {
  const schema = (answer) => ({ '~standard': { validate: () => answer } });
  assert.throws(() => enqueueStatement(q, 1, { schema: schema({ issues: [{ message: 'too small', path: ['to'] }] }) }), /payload does not fit its schema: payload.to: too small/);
  assert.throws(() => enqueueStatement(q, 1, { schema: schema(Promise.resolve({ value: 1 })) }), /cannot wait for a schema/);
  assert.throws(() => enqueueStatement(q, 1, { schema: schema(Promise.reject(new Error('unheard'))) }), /cannot wait for a schema/);
  await new Promise(setImmediate); // an unhandled rejection would fail this test
  const wrong = schema({ issues: [{ message: 'too small' }] });
  assert.throws(() => enqueueStatement(q, 1, { schema: [wrong], kind: 'a' }), /^TypeError: schema must be a Standard Schema, or an object of them by kind, not an array/);
  await assert.rejects(enqueueMany(pool, q, [{ payload: 1, kind: 'a' }, { payload: 2, kind: 'b' }], { schema: { b: wrong } }), /^TypeError: the payload of job 1 does not fit its schema: payload: too small$/);
  assert.equal((await execute(q, 1, { schema: schema({ value: 1 }) })).outcome, 'accepted');
});

test('enqueue takes any client with query(text, values)', async () => {
  const all = { key: 'any', delay: 60, runAt: null, priority: 3, groupKey: 'g', maxAttempts: 2, headers: {}, nowait: false, dependsOn: [] };
  const sent = [];
  // As TypeORM's, whose query resolves to the rows.
  const client = { query: async (text, values) => (sent.push(...values), (await pool.query(text, values)).rows) };
  const first = await enqueue(client, q, { n: 1 }, all);
  assert.deepEqual(first, { id: first.id, outcome: 'accepted', status: first.status, result: null, error: null });
  await assert.rejects(enqueue(client, q, { n: 2 }, all), KeyReused);
  await assert.rejects(enqueue({ query: async () => undefined }, q, 1), { name: 'TypeError', message: "what client's query resolves to must be the rows, or an object that has rows, not undefined" });
  const dead = (await enqueue(client, q, 'dead', { key: 'dead', maxAttempts: 1 })).id;
  await drain(connection, q, (job) => { if (job.key === 'dead') throw new Error('gone'); }, { logger: { info() {}, warn() {}, error() {} } });
  const again = await enqueue(client, q, 'dead', { key: 'dead' });
  assert.deepEqual([again.id, again.outcome, again.status, again.error.split('\n')[0]], [dead, 'duplicate', 'dead', 'Error: gone']);
  assert.deepEqual(sent.filter((value) => typeof value !== 'string' && value !== null), [], 'values are text or null');
});
