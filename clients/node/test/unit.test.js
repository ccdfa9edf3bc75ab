// What needs no server.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { hosts } from '../lib/connection.js';
import { Dead, IdemqError, StaleToken, detailsOf, interval, sqlstate, textOf, typed } from '../lib/errors.js';
import { Attempt } from '../lib/job.js';

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
  process.env.PGHOST = 'a,b';
  process.env.PGPORT = '1,';
  assert.deepEqual(hosts({}), [{ host: 'a', port: 1 }, { host: 'b' }]);
  assert.deepEqual(strings('postgres:///db'), ['postgres:///db?host=a&port=1', 'postgres:///db?host=b']);
  assert.deepEqual(strings('postgres://h/db'), ['postgres://h/db']);
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
