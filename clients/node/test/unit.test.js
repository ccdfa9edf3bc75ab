// What needs no server.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import net from 'node:net';
import { test } from 'node:test';
import { Breaker } from '../lib/breaker.js';
import { location, shardConnection } from '../lib/cluster.js';
import { Address, Session, hosts, isServerLost } from '../lib/connection.js';
import { Buffer as Items, itemsOf, mostKept } from '../lib/finished.js';
import { Dead, IdemqError, StaleToken, detailsOf, interval, sqlstate, textOf, typed } from '../lib/errors.js';
import { ClusterWorker, Worker, cancelMany, drain, enqueue, enqueueGraph, enqueueSequenced, flow, publish, sendEvent, waitResults } from '../lib/index.js';
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
  for (const logger of [{}, null]) assert.throws(() => new Worker({}, 'q', { logger }), /logger must have the functions info, warn and error/);
  // As of an environment variable that is not set.
  assert.throws(() => new Worker(undefined, 'q'), /connection must be a URL, .* not undefined/);
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
  assert.equal(textOf(Object.create(null)), '[Object: null prototype] {}');
  assert.equal(textOf('x'.repeat(1e6)).length, 10_000);
  const half = new Error('x');
  half.stack = '\ud800 \0';
  assert.deepEqual(JSON.parse(detailsOf(half)), { type: 'Error', trace: '? ' });
  assert.equal(interval(1.5), '1.500000 seconds');
  assert.equal(interval('1 day'), '1 day');
  assert.equal(interval(undefined), null);
  assert.throws(() => interval(Infinity), TypeError);
});

test('the reason of an error is kept', () => {
  const refused = (address) => Object.assign(new Error(`connect ECONNREFUSED ${address}:1`), { code: 'ECONNREFUSED' });
  const failed = new TypeError('fetch failed', { cause: refused('127.0.0.1') });
  assert.equal(textOf(failed), 'TypeError: fetch failed; caused by Error: connect ECONNREFUSED 127.0.0.1:1');
  const { causes, trace } = JSON.parse(detailsOf(failed));
  assert.deepEqual(causes, [{ type: 'Error', code: 'ECONNREFUSED', text: 'Error: connect ECONNREFUSED 127.0.0.1:1' }]);
  assert.match(trace, /^TypeError: fetch failed\n[^]*\n {2}\[cause\]: Error: connect ECONNREFUSED/);
  const all = Object.assign(new AggregateError([refused('::1'), refused('127.0.0.1')]), { code: 'ECONNREFUSED' });
  assert.equal(textOf(all), 'AggregateError [ECONNREFUSED]; errors: Error: connect ECONNREFUSED ::1:1; and Error: connect ECONNREFUSED 127.0.0.1:1');
  assert.equal(JSON.parse(detailsOf(all)).code, 'ECONNREFUSED');
  assert.equal(textOf(new AggregateError([], '')), 'AggregateError');
  // What is thrown need not be an error.
  assert.equal(textOf({ code: 'why' }), "{ code: 'why' }");
  assert.equal(textOf({ toString: () => 'its own' }), 'its own');
  assert.equal(textOf(new Error('x', { cause: { status: 503 } })), 'Error: x; caused by { status: 503 }');
  assert.equal(textOf(null), 'null');
  // The driver's error is the cause of ours, and says the same.
  assert.equal(textOf(typed(Object.assign(new Error('lease lost'), { code: 'IQ001' }))), 'StaleToken: lease lost');
});

test('a chain of causes is bounded', () => {
  const circle = new Error('a');
  circle.cause = new Error('b', { cause: circle });
  assert.equal(textOf(circle), 'Error: a; caused by Error: b');
  let deep = new Error('0');
  for (let n = 1; n < 100; n++) deep = new Error(`${n}`, { cause: deep });
  const wide = new AggregateError(Array.from({ length: 10_000 }, (_, n) => new Error(`${n}`)), 'wide');
  const long = new Error('x'.repeat(1e6), { cause: new Error('y'.repeat(1e6)) });
  for (const error of [deep, wide, long]) {
    assert.ok(textOf(error).length <= 10_000);
    assert.ok(detailsOf(error).length < 40_000);
    assert.ok(JSON.parse(detailsOf(error)).causes.length <= 16);
  }
  // A long message does not push the cause out.
  assert.match(textOf(long), /^Error: x{1000,}; caused by Error: y{900,}$/);
  const unreadable = new Error('outside');
  Object.defineProperty(unreadable, 'cause', { get: () => assert.fail('not even that') });
  assert.equal(textOf(unreadable), 'Error: outside');
});

test('require() loads the client', { skip: !process.features.require_module && 'this Node cannot require an ES module' }, () => {
  // Without a top-level await in any of its modules.
  const { Worker: required } = createRequire(import.meta.url)('../lib/index.js');
  assert.equal(required, Worker);
});

test('an error that cannot be read', () => {
  const raises = () => {
    throw new Error('not even that');
  };
  const unreadable = { get: raises };
  for (const error of [new Error('x'), new Dead('x')]) {
    Object.defineProperties(error, { stack: unreadable, message: unreadable, name: unreadable, code: unreadable });
    assert.equal(textOf(error), 'an error without a message');
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
      const said = meant ? `did you mean ${meant}\\?` : 'its options are .*, ';
      await assert.rejects(async () => call({ [option]: undefined }), (error) => error instanceof TypeError && new RegExp(`^${name} has no option ${option}: ${said}`).test(error.message), `${name} ${option}`);
    }
    if (!name.startsWith('job a')) await assert.rejects(async () => call(null), { name: 'TypeError', message: `options of ${name} must be an object, not null` });
  }
  assert.throws(() => new ClusterWorker({}, 'q', { shardPlace: { ports: 5432 } }), { message: 'shardPlace has no option ports: did you mean port?' });
  await assert.rejects(enqueue(never, 'q', 1, 'key'), TypeError);
});

test('arguments are checked before anything is sent, and named', async () => {
  const sent = [];
  const client = { query: async (text, values) => (sent.push(values), { rows: [{ id: '1' }] }) };
  const a = { queue: 'q', payload: 1 };
  /** @type {[string, () => unknown, RegExp][]} */
  const wrong = [
    ['a forgotten client', () => enqueue('mail', { to: 'anna' }), /^client must be an object with query\(text, values\), such as pg's Client or Pool, or the client of a handler, not "mail"/],
    ['no client', () => publish(undefined, 't', 1), /^client must be .*, not undefined/],
    ['swapped', () => enqueue(client, { to: 'anna' }, 'mail'), /^queue must be a string, not an object/],
    ['several queues', () => enqueue(client, ['mail', 'reports'], 1), /^queue must be a string, not an array/],
    ['no payload', () => enqueue(client, 'q'), /^payload must be a value that JSON can represent, not undefined/],
    ['a circle', () => enqueue(client, 'q', client.circle), /^payload cannot be encoded as JSON: /],
    ['a key', () => enqueue(client, 'q', 1, { key: {} }), /^key must be a string or an integer, not an object/],
    ['a key with a fraction', () => enqueue(client, 'q', 1, { key: 1.5 }), /^key must be a string or an integer, not 1.5/],
    ['a key that has lost digits', () => enqueue(client, 'q', 1, { key: 2 ** 60 }), /^key must be/],
    ['a delay', () => enqueue(client, 'q', 1, { delay: [1] }), /^delay must be a number of seconds, or a PostgreSQL interval as text, not 1/],
    ['a time', () => enqueue(client, 'q', 1, { runAt: new Date('soon') }), /^runAt must be a Date, .*, not an invalid Date/],
    ['a number as a time', () => enqueue(client, 'q', 1, { runAt: 7 }), /^runAt must be a Date, .*, not 7/],
    ['a priority', () => enqueue(client, 'q', 1, { priority: 'high' }), /^priority must be an integer, not "high"/],
    ['headers', () => enqueue(client, 'q', 1, { headers: ['x'] }), /^headers must be an object, not an array/],
    ['a kind', () => enqueue(client, 'q', 1, { kind: 7 }), /^kind must be a string, not 7/],
    ['nowait', () => enqueue(client, 'q', 1, { nowait: 'yes' }), /^nowait must be true or false, not "yes"/],
    ['parents', () => enqueue(client, 'q', 1, { dependsOn: '7' }), /^dependsOn must be an array of job ids, not "7"/],
    ['a parent', () => enqueue(client, 'q', 1, { dependsOn: [null] }), /^dependsOn\[0\] must be a job id, .*, not null/],
    ['an event', () => sendEvent(client, 'q', 7), /^name must be a string, not 7/],
    ['a topic', () => publish(client, ['t'], 1), /^topic must be a string, not an array/],
    ['a number in a log', () => enqueueSequenced(client, 'q', 'p', 'x', 1), /^seq must be an integer, or a string of digits, not "x"/],
    ['jobs', () => enqueueGraph(client, [a]), /^jobs must be an object, not an array/],
    ['a job of a graph', () => enqueueGraph(client, { a: { ...a, key: [] } }), /^key of job a of a graph must be a string or an integer, not an array/],
    ['its queue', () => enqueueGraph(client, { a: { payload: 1 } }), /^queue of job a of a graph must be a string, not undefined/],
    ['its parents', () => enqueueGraph(client, { a: { ...a, dependsOn: [{}] } }), /^dependsOn of job a of a graph: id must be a job id/],
    ['an id', () => flow(client, 'x'), /^id must be a job id/],
    ['ids', () => cancelMany(client, '7'), /^ids must be an array of job ids, not "7"/],
    ['ids of results', () => waitResults(client, [1.5]), /^ids\[0\] must be a job id/],
    ['a time of a wait', () => waitResults(client, ['1'], NaN), /^timeout must be a number of seconds, .*, not NaN/],
    ['a worker of queues', () => new Worker({}, ['a', 'b']), /^queue must be a string, or an object that maps queues to handlers, not an array/],
    ['a pool of a worker', () => new Worker(client, 'q'), /^connection must be a URL, .*a worker opens its own connections/],
    ['a lease', () => new Worker({}, 'q', { lease: {} }), /^lease must be a number of seconds/],
    ['attach', () => new Worker({}, 'q', { attach: 'no' }), /^attach must be true or false, not "no"/],
    ['home', () => new ClusterWorker({}, 'q', { home: 1 }), /^home must be an array of shard numbers, not 1/],
  ];
  client.circle = { client };
  client.circle.circle = client.circle;
  for (const [name, call, says] of wrong) await assert.rejects(async () => call(), (error) => error instanceof TypeError && says.test(error.message), name);
  assert.deepEqual(sent, [], 'nothing was sent');
  // Ids of an application.
  await enqueue(client, 'q', 1, { key: 42, groupKey: 7n });
  await enqueue(client, 'q', 1, { key: 'b1e1e0a6-1a5c-4b52-9a5b-0f6d7c1f2a10', dependsOn: ['1', 2, 3n] });
  assert.deepEqual(sent.map((values) => [values[2], values[6], values[15]]), [['42', '7', null], ['b1e1e0a6-1a5c-4b52-9a5b-0f6d7c1f2a10', null, '{1,2,3}']]);
});

test('handlers that run nothing', async () => {
  const worker = () => new Worker({}, 'q');
  for (const handler of [function* () {}, async function* () {}, { a: () => {}, b: function* () {} }]) {
    await assert.rejects(worker().run(handler), /generator function/);
    await assert.rejects(worker().runOutside(handler), /generator function/);
    await assert.rejects(drain({}, 'q', handler), /generator function/);
    await assert.rejects(new ClusterWorker({}, 'q').run(handler), /generator function/);
  }
  await assert.rejects(worker().run(), /^TypeError: run\(\) needs a handler/);
  for (const handler of [{}, null, { a: null }]) await assert.rejects(worker().run(handler), /handler must be a function/);
});

test('a handler that does not end in time is told, and left', async () => {
  const attempt = new Attempt({ id: '1', token: '2' }, 'q', { asked: Date.now(), lease: 1000, timeout: 20 });
  let cancelled = 0;
  assert.equal(await attempt.call(() => 'in time', () => cancelled++), 'in time');
  await assert.rejects(
    attempt.call(() => new Promise((_, reject) => attempt.signal.addEventListener('abort', () => reject(attempt.signal.reason))), () => cancelled++),
    (error) => error.why === 'timeout' && /^stopped after 0.02 s/.test(error.message),
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

test('a handler that keeps failing', () => {
  const breaker = new Breaker();
  const fails = (kind, text, times) => Array.from({ length: times }, (_, n) => breaker.failed(kind, new Error(text.replace('N', n)))).filter(Boolean).length;
  assert.equal(fails('a', 'row N of "t N"', 9), 0);
  assert.equal(breaker.pause(), 0);
  assert.equal(fails('a', 'another error', 1), 0); // begins again
  assert.equal(fails('a', "row N of 't N', 0123456789abN", 9), 0);
  assert.equal(breaker.succeeded('a'), false);
  assert.equal(fails('a', 'row N', 9), 0);
  assert.equal(fails('b', 'row N', 9), 0); // each kind for itself
  assert.equal(breaker.open, false);
  assert.equal(fails('a', 'row N', 1), 1);
  assert.equal(breaker.open, true);
  assert.equal(fails('a', 'row N', 20), 0); // it says so once
  assert.deepEqual([1, 2, 3, 4, 5, 6].map(() => breaker.pause()), [1000, 2000, 4000, 8000, 10_000, 10_000]);
  assert.equal(fails('b', 'row N', 1), 1);
  assert.equal(breaker.succeeded('a'), false); // b still fails
  assert.equal(breaker.open, true);
  assert.equal(breaker.pause(), 1000);
  assert.equal(breaker.succeeded('b'), true);
  assert.deepEqual([breaker.open, breaker.pause()], [false, 0]);
});

test('the failing kind has no more jobs: after ten successes of other kinds, several jobs run at a time again', () => {
  const breaker = new Breaker();
  const others = (times) => Array.from({ length: times }, () => breaker.succeeded('b'));
  for (let n = 0; n < 10; n++) breaker.failed('a', new Error('no'));
  assert.deepEqual(others(9), Array(9).fill(false));
  breaker.failed('a', new Error('no')); // it has one
  assert.deepEqual(others(10), [...Array(9).fill(false), true]);
  assert.equal(breaker.open, false);
  assert.equal(breaker.failed('a', new Error('no')), true);
  assert.equal(breaker.open, true);
});

test('of many kinds that fail, those that failed last are remembered', () => {
  const breaker = new Breaker();
  const fails = (kind, times = 1) => Array.from({ length: times }, () => breaker.failed(kind, new Error('no'))).some(Boolean);
  fails('open', 10);
  fails('first', 9);
  for (let n = 0; n < 998; n++) fails(`${n}`);
  fails('open');
  assert.equal(breaker.open, true);
  assert.equal(fails('first'), true);
  for (let n = 0; n < 998; n++) fails(`${n} more`);
  assert.equal(breaker.open, true);
  fails('one more');
  fails('and another');
  assert.equal(breaker.open, false);
});

test('whose connection was lost', () => {
  const of = (config) => ({ address: new Address(hosts(config)), lostAt: 5 });
  const tcp = of({ host: 'db', port: 5433 });
  const folder = of({ host: '/run', port: 5433 });
  const refused = (address, port) => Object.assign(new Error(`connect ECONNREFUSED ${address}`), { code: 'ECONNREFUSED', syscall: 'connect', address, port });
  const reset = Object.assign(new Error('read ECONNRESET'), { code: 'ECONNRESET', syscall: 'read' });
  for (const [error, server, since, expected] of [
    [Object.assign(new Error('terminating'), { code: '57P01' }), tcp, 9, true],
    [Object.assign(new Error('crash'), { code: '57P02' }), tcp, 9, true],
    [Object.assign(new Error('starting'), { code: '57P03' }), tcp, 9, true],
    [Object.assign(new Error('gone'), { code: '08006' }), tcp, 9, true],
    [Object.assign(new Error('cancelled'), { code: '57014' }), tcp, 9, false],
    [new Error('of mine', { cause: new Error('Connection terminated unexpectedly') }), tcp, 9, true],
    [new TypeError('Connection terminated'), tcp, 9, false],
    [new Error('no'), tcp, 9, false],
    ['text', tcp, 9, false],
    [refused('10.0.0.1', 5433), tcp, 9, true],
    [new AggregateError([refused('::1', 5433)], ''), tcp, 9, true],
    [new TypeError('fetch failed', { cause: refused('10.0.0.2', 443) }), tcp, 9, false],
    [refused('/run/.s.PGSQL.5433', undefined), folder, 9, true],
    [refused('/tmp/.s.PGSQL.5433', undefined), folder, 9, false],
    [refused('10.0.0.1', 5433), folder, 9, false],
    [reset, tcp, 4, true],
    [reset, tcp, 6, false],
  ]) assert.equal(isServerLost(error, server, since), expected, `${error}`);
});

test('notifications of finished jobs', () => {
  assert.deepEqual(itemsOf('{"event":"finished","queue":"q-1.2","completed":[9223372036854775807],"later":[1],"dead":[2,3]}'), [
    { event: 'finished', queue: 'q-1.2', id: '9223372036854775807', status: 'completed' },
    { event: 'finished', queue: 'q-1.2', id: '2', status: 'dead' },
    { event: 'finished', queue: 'q-1.2', id: '3', status: 'dead' },
  ]);
  assert.deepEqual(itemsOf('{"event":"overflow","queue":"q","lost":7,"more":1}'), [{ event: 'overflow', queue: 'q', lost: 7 }]);
  assert.deepEqual(itemsOf('{"event":"overflow","queue":"q","lost":null}'), [{ event: 'overflow', queue: 'q', lost: null }]);
  assert.deepEqual(itemsOf('{"event":"later","queue":"q"}'), []);
  const job = (queue, id) => ({ event: 'finished', queue, id: `${id}`, status: 'dead' });
  const items = new Items();
  for (let n = 0; n < mostKept; n++) items.put(job('a', n));
  assert.deepEqual(items.take(), job('a', 0));
  items.put({ event: 'overflow', queue: 'b', lost: 5 });
  items.put(job('a', 'last'));
  assert.deepEqual([items.take(), items.take(), items.take(), items.size], [
    { event: 'overflow', queue: 'a', lost: mostKept - 1 }, { event: 'overflow', queue: 'b', lost: 5 }, job('a', 'last'), 0,
  ]);
  for (let n = 0; n <= mostKept; n++) items.put(n % 2 ? job('a', n) : { event: 'overflow', queue: 'a', lost: n ? 1 : null });
  assert.deepEqual(items.take(), { event: 'overflow', queue: 'a', lost: null });
  for (let n = 0; n < 3 * mostKept; n++) {
    items.put(job('c', n));
    items.take();
  }
  assert.equal(items.size, 1);
});
