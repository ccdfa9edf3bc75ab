// testing.mjs: what doc/usage/testing.md shows, by node --test; CONNECTION is a connection string.

import assert from 'node:assert/strict';
import { after, beforeEach, test } from 'node:test';
import pg from 'pg';
import { drain, enqueue } from 'idemq';

const connection = process.env.CONNECTION;
const pool = new pg.Pool({ connectionString: connection });

async function confirm(job, db) {
  await db.query('INSERT INTO confirmations VALUES ($1)', [job.payload.order]);
}

beforeEach(async () => {
  await pool.query("SELECT idemq.drop_queue(name, force => true) FROM idemq.queues WHERE name = 'mail'");
  await pool.query("SELECT idemq.create_queue('mail')");
  await pool.query('TRUNCATE confirmations');
});
// On a busy machine, a lease may expire before a handler returns.
beforeEach(() => pool.query("SELECT idemq.alter_queue('mail', lease => '1 h')"));
after(() => pool.end());

test('an order is confirmed an hour later, and once', async () => {
  for (let request = 1; request <= 2; request++) await enqueue(pool, 'mail', { order: 42 }, { key: 'order-42', delay: '1 h' });
  assert.deepEqual(await drain(connection, 'mail', confirm), {}); // it is not due
  await pool.query("CALL idemq.advance_clock('1 h')");
  assert.deepEqual(await drain(connection, 'mail', confirm), { committed: 1 });
  assert.deepEqual((await pool.query('SELECT * FROM confirmations')).rows, [{ order_id: 42 }]);
});

test('a reminder is sent tomorrow', async () => {
  const { rows } = await pool.query("SELECT idemq.now() + interval '1 day' AS tomorrow");
  await enqueue(pool, 'mail', { order: 42 }, { runAt: rows[0].tomorrow });
  await pool.query("CALL idemq.advance_clock('23 h')");
  assert.deepEqual(await drain(connection, 'mail', confirm), {});
  await pool.query("CALL idemq.advance_clock('1 h')");
  assert.deepEqual(await drain(connection, 'mail', confirm), { committed: 1 });
});
