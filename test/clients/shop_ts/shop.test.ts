// The tests of the shop, on a server with idemq.test_clock: node --test shop.test.js
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { KeyReused, advanceClock, assertEnqueued, createPool, drain } from 'idemq';
import { declareQueues } from './queues.js';
import { handlers, place } from './shop.js';
import { createTables } from './tables.js';

const dsn = process.env.DSN!;
const pool = createPool(dsn);
await createTables(pool);
await declareQueues(pool);
after(() => pool.end());

async function done(what: 'charges' | 'mails') {
  return (await (await fetch(`${process.env.PROVIDER}/${what}`)).json()) as {
    [field: string]: unknown;
  }[];
}

test('an order is charged once, and the customer gets a receipt', async () => {
  const order = { id: 'a', customer: 'anna', amount: 12 };
  for (let request = 1; request <= 2; request++) await place(pool, order);
  await drain(dsn, handlers);
  assert.deepEqual(await done('charges'), [order]);
  assert.deepEqual(await done('mails'), [{ order: 'a', to: 'anna', text: 'receipt' }]);
  await assert.rejects(place(pool, { ...order, amount: 13 }), KeyReused);
});

test('a review is due tomorrow', async () => {
  await assertEnqueued(pool, 'mails', { payload: { order: 'a', text: 'review' } });
  await advanceClock(pool, '23 h');
  await drain(dsn, handlers);
  assert.equal((await done('mails')).length, 1);
  await advanceClock(pool, '1 h');
  await drain(dsn, handlers);
  assert.deepEqual((await done('mails'))[1], { order: 'a', to: 'anna', text: 'review' });
});

test('the orders of a customer are charged in their order', async () => {
  for (const id of ['b', 'c', 'd']) await place(pool, { id, customer: 'berta', amount: 1 });
  await drain(dsn, { charges: handlers.charges });
  assert.deepEqual(
    (await done('charges')).slice(1).map(({ id }) => id),
    ['b', 'c', 'd'],
  );
});

test('each minute has a report', async () => {
  await advanceClock(pool, '1 min');
  await drain(dsn, handlers);
  const { rows } = await pool.query('SELECT paid, total FROM reports ORDER BY tick DESC LIMIT 1');
  assert.deepEqual(rows, [{ paid: '4', total: '15' }]);
});
