// What needs no server.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import net from 'node:net';
import { test } from 'node:test';
import { location, shardConnection } from '../lib/cluster.js';
import { Session, hosts } from '../lib/connection.js';
import { Dead, IdemqError, StaleToken, detailsOf, interval, sqlstate, textOf, typed } from '../lib/errors.js';
import { ClusterWorker, Worker, drain, enqueue, enqueueGraph, enqueueSequenced, publish } from '../lib/index.js';
import { Attempt } from '../lib/job.js';
import { arrayText } from '../lib/pipeline.js';
import { ShardSlots, SlotPool } from '../lib/handler-slots.js';

const strings = (connection) => hosts(connection).map((config) => config.connectionString);

test('several hosts', () => {
  delete process.env.PGHOST;
  delete process.env.PGPORT;
  assert.deepEqual(strings('postgresql://u:p%40,w@h1:1,h2:2/db?ssl=true'), ['postgresql://u:p%40,w@h1:1/db?ssl=true', 'postgresql://u:p%40,w@h2:2/db?ssl=true']);
  assert.deepEqual(strings('postgres://h1,[::1]:5433/db?target_session_attrs=read-write'), ['postgres://h1/db', 'postgres://[::1]:5433/db']);
  assert.deepEqual(strings('postgres:///db?host=/a,/b&port=1,2'), ['postgres:///db?host=%2Fa&port=1', 'postgres:///db?host=%2Fb&port=2']);
  assert.deepEqual(strings('postgres://u@h/db?application_name=a+b'), ['postgres://u@h/db?application_name=a+b']);
  assert.deepEqual(hosts({ host: 'h1,h2', port: '1,2', database: 'db' }), [{ database: 'db', host: 'h1', port: 1 }, { database: 'db', host: 'h2', port: 2 }]);
  assert.deepEqual(hosts({ host: 'h1,h2', port: 7 }), [{ host: 'h1', port: 7 }, { host: 'h2', port: 7 }]);
  assert.deepEqual(hosts({ database: 'db' }), [{ database: 'db' }]);
  assert.deepEqual(hosts({ port: 7 }), [{ port: 7 }]);
  for (const logger of [{}, null]) assert.throws(() => new Worker({}, 'q', { logger }), /logger has functions info, warn and error/);
  // As of an environment variable that is not set.
  assert.throws(() => new Worker(undefined, 'q'), /a connection is a URL, .* not undefined/);
  process.env.PGHOST = 'a,b';
  process.env.PGPORT = '1,';
  assert.deepEqual(hosts({}), [{ host: 'a', port: 1 }, { host: 'b' }]);
  assert.deepEqual(strings('postgres:///db'), ['postgres:///db?host=a&port=1', 'postgres:///db?host=b']);
  assert.deepEqual(strings('postgres://h/db'), ['postgres://h/db']);
});

test('the location of a shard', () => {
  assert.deepEqual(location("host=/a,/b port = 5433 dbname='a \\'b' target_session_attrs=read-write"), { host: '/a,/b', port: '5433', dbname: "a 'b" });
  assert.deepEqual(location('hostaddr=127.0.0.1 dbname=s1'), { host: '127.0.0.1', port: undefined, dbname: 's1' });
  assert.deepEqual(location('postgresql://h1:1,[::1]/s%201?user=x'), { host: 'h1,::1', port: '1,5432', dbname: 's 1' });
  assert.deepEqual(location('postgresql:///s1?host=/a&port=7'), { host: '/a', port: '7', dbname: 's1' });
  assert.deepEqual(shardConnection({ host: 'r', port: 1, database: 'router', user: 'u' }, 'host=h port=2 dbname=s1'), { host: 'h', port: '2', database: 's1', user: 'u' });
  assert.deepEqual(shardConnection({ host: 'r' }, 'host=h port=6432 dbname=s1', { port: 5432 }), { host: 'h', port: 5432, database: 's1' });
  assert.deepEqual(strings(shardConnection('postgresql://u:p%40@r:1/router?sslmode=require&host=x', 'host=/a,/b port=2 dbname=s1')), [
    'postgresql://u:p%40@/s1?sslmode=require&host=%2Fa&port=2',
    'postgresql://u:p%40@/s1?sslmode=require&host=%2Fb&port=2',
  ]);
});

test('handler slots', async () => {
  const never = new AbortController().signal;
  const pool = new SlotPool(2);
  const [home, away] = [new ShardSlots(pool, true), new ShardSlots(pool, false)];
  const order = [];
  assert.equal(await away.acquire(5, never), 2); // as many as there are
  const waits = (name, slots, until = never) => slots.acquire(1, until).then((n) => order.push(`${name} ${n}`));
  const ends = new AbortController();
  const all = [waits('away', away), waits('gone', away, ends.signal), waits('home', home)];
  assert.equal(away.shouldYield, true); // a home shard waits
  ends.abort();
  pool.release(1);
  pool.release(1);
  await Promise.all(all);
  assert.deepEqual(order.sort(), ['away 1', 'gone 0', 'home 1']);
  assert.equal(pool.free, 0);
  // Home first, although it has asked later.
  order.length = 0;
  const two = [waits('away', away), waits('home', home)];
  pool.release(1);
  await two[1];
  assert.deepEqual(order, ['home 1']);
  pool.release(1);
  await two[0];
  pool.release(2);
  // A place is lent while something takes long, and not given to two.
  assert.equal(await home.acquire(2, never), 2);
  let end;
  const lent = home.lendWhile(new Promise((resolve) => (end = resolve)));
  assert.equal(await away.acquire(1, never), 1);
  end('done');
  assert.equal(await lent, 'done');
  assert.equal(pool.free, -1);
  pool.release(3);
  assert.equal(pool.free, 2);
});

test('errors', () => {
  const stale = typed(Object.assign(new Error('lease lost'), { code: 'IQ001', detail: 'd', hint: 'h' }));
  assert.ok(stale instanceof StaleToken && stale instanceof IdemqError);
  assert.deepEqual([stale.name, stale.message, stale.sqlstate, stale.detail, stale.hint], ['StaleToken', 'lease lost (h)', 'IQ001', 'd', 'h']);
  assert.equal(typed(stale), stale);
  const other = Object.assign(new Error('x'), { code: 'ECONNRESET' });
  assert.equal(typed(other), other);
  assert.equal(sqlstate(other), '');
  assert.equal(sqlstate(stale), 'IQ001');
  assert.equal(sqlstate(undefined), '');
  assert.equal(sqlstate(Object.assign(new Error('write EPIPE'), { code: 'EPIPE', errno: -32, syscall: 'write' })), '', 'an error of a socket');
});

test('texts', () => {
  class Late extends Error {}
  assert.equal(textOf(new Late('a\0b')), 'Late: ab');
  assert.equal(textOf(new TypeError('x')), 'TypeError: x');
  assert.equal(textOf(new Dead('gone')), 'gone');
  assert.equal(textOf('text'), 'text');
  assert.equal(textOf(undefined), 'undefined');
  assert.equal(textOf(Object.create(null)), 'an error that has no text');
  assert.equal(textOf('x'.repeat(1e6)).length, 10_000);
  const half = new Error('x');
  half.stack = '\ud800 \0';
  assert.deepEqual(JSON.parse(detailsOf(half)), { type: 'Error', trace: '? ' });
  assert.equal(interval(1.5), '1.500000 seconds');
  assert.equal(interval('1 day'), '1 day');
  assert.equal(interval(undefined), null);
  assert.throws(() => interval(Infinity), TypeError);
});

test('an error that cannot be read', () => {
  const raises = () => {
    throw new Error('not even that');
  };
  const unreadable = { get: raises };
  for (const error of [new Error('x'), new Dead('x')]) {
    Object.defineProperties(error, { stack: unreadable, message: unreadable, name: unreadable, code: unreadable });
    assert.equal(textOf(error), 'an error that has no text');
    assert.deepEqual(JSON.parse(detailsOf(error)), { type: 'Error' });
    assert.equal(sqlstate(error), '');
  }
  const odd = Object.assign(new Dead('x'), { message: 1, stack: 2, name: 3 });
  assert.deepEqual([textOf(odd), JSON.parse(detailsOf(odd))], ['1', { type: '3', trace: '2' }]);
});

test('arrays in the text of PostgreSQL', () => {
  assert.equal(arrayText(['1', null, 'a "b" \\ {c}, NULL']), '{"1",NULL,"a \\"b\\" \\\\ {c}, NULL"}');
  assert.equal(arrayText([]), '{}');
});

test('an option that nobody reads', async () => {
  const never = { query: () => assert.fail('it was asked') };
  const of = {
    enqueue: (options) => enqueue(never, 'q', 1, options),
    publish: (options) => publish(never, 't', 1, options),
    enqueueSequenced: (options) => enqueueSequenced(never, 'q', 'p', 1, 1, options),
    'job a of a graph': (options) => enqueueGraph(never, { a: { queue: 'q', payload: 1, ...options } }),
    Worker: async (options) => new Worker({}, 'q', options),
    ClusterWorker: async (options) => new ClusterWorker({}, 'q', options),
    drain: (options) => drain({}, 'q', () => {}, options),
    'job.step': async (options) => new Attempt({ id: '1', token: '2' }, 'q', { asked: 0, lease: 1, timeout: 1, link: never }).job.step('s', () => {}, options),
  };
  const wrong = {
    enqueue: { depends_on: 'dependsOn', group_key: 'groupKey', onParentFail: 'onParentFailure', max_wait: 'maxWait', Kind: 'kind', __proto__x: null },
    publish: { group_Key: 'groupKey', nowait: null },
    enqueueSequenced: { key: null, Priority: 'priority' },
    'job a of a graph': { depends_on: 'dependsOn', nowait: null },
    Worker: { concurency: 'concurrency', home: null, once: null, shard: null, outside: null },
    ClusterWorker: { shard_place: 'shardPlace', waitConnection: null, once: null },
    drain: { outsid: 'outside', unknown_kind: 'unknownKind', once: null },
    'job.step': { timeout: null, call_timeout: 'callTimeout' },
  };
  for (const [name, call] of Object.entries(of)) {
    for (const [option, meant] of Object.entries(wrong[name])) {
      const said = meant ? `perhaps you meant ${meant}` : 'it has .*, ';
      await assert.rejects(async () => call({ [option]: undefined }), (error) => error instanceof TypeError && new RegExp(`^${name} has no option ${option}: ${said}`).test(error.message), `${name} ${option}`);
    }
    if (!name.startsWith('job a')) await assert.rejects(async () => call(null), { name: 'TypeError', message: `the options of ${name} are an object, not null` });
  }
  assert.throws(() => new ClusterWorker({}, 'q', { shardPlace: { ports: 5432 } }), { message: 'shardPlace has no option ports: perhaps you meant port' });
  await assert.rejects(enqueue(never, 'q', 1, 'key'), TypeError);
});

test('handlers that run nothing', async () => {
  const worker = () => new Worker({}, 'q');
  for (const handler of [function* () {}, async function* () {}, { a: () => {}, b: function* () {} }]) {
    await assert.rejects(worker().run(handler), /generator function/);
    await assert.rejects(worker().runOutside(handler), /generator function/);
    await assert.rejects(drain({}, 'q', handler), /generator function/);
    await assert.rejects(new ClusterWorker({}, 'q').run(handler), /generator function/);
  }
  for (const handler of [{}, null, undefined, { a: null }]) await assert.rejects(worker().run(handler), /a handler is a function/);
});

test('a handler that does not end in time is told, and left', async () => {
  const attempt = new Attempt({ id: '1', token: '2' }, 'q', { asked: Date.now(), lease: 1000, timeout: 20 });
  let cancelled = 0;
  assert.equal(await attempt.call(() => 'in time', () => cancelled++), 'in time');
  await assert.rejects(
    attempt.call(() => new Promise((_, reject) => attempt.signal.addEventListener('abort', () => reject(attempt.signal.reason))), () => cancelled++),
    (error) => error.why === 'timeout' && /^ended after 0.02 s/.test(error.message),
  );
  assert.equal(cancelled, 1);
  await assert.rejects(attempt.call(() => 'never'), { name: 'Cancelled' });
  assert.equal(attempt.abandoned, false);
  // Longer than setTimeout can: not at once.
  const long = new Attempt({ id: '1', token: '2' }, 'q', { asked: 0, lease: 1, timeout: 2 ** 40 });
  assert.equal(await long.call(() => new Promise((resolve) => setTimeout(resolve, 20, 'fine'))), 'fine');
});

test('a cancel waits for the server to hang up', async (t) => {
  const seen = [];
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('end', () => seen.push('the client hangs up'));
    socket.once('data', (request) => {
      seen.push(request.length);
      setTimeout(() => {
        seen.push('the server hangs up');
        socket.end();
      }, 200);
    });
  });
  t.after(() => server.close());
  await once(server.listen(0, '127.0.0.1'), 'listening');
  const session = new Session({ host: '127.0.0.1', port: server.address().port });
  Object.assign(session.client, { processID: 1, secretKey: 2 });
  await session.cancel();
  assert.deepEqual(seen.slice(0, 2), [16, 'the server hangs up']);
});
