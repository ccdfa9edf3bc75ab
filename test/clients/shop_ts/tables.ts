// The tables of the shop, and all its SQL.
import type { Queryable } from 'idemq';
import type { Pool, PoolClient } from 'pg';
import type { Order } from './queues.js';

const tables = `
  CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, customer text, amount int, charge text);
  CREATE TABLE IF NOT EXISTS reports (tick text, paid bigint, total bigint)`;

export async function createTables(pool: Pool): Promise<void> {
  await pool.query(tables);
}

export async function transaction<T>(pool: Pool, fn: (db: PoolClient) => Promise<T>): Promise<T> {
  const db = await pool.connect();
  let broken: Error | undefined;
  try {
    await db.query('BEGIN');
    const result = await fn(db);
    await db.query('COMMIT');
    return result;
  } catch (error) {
    await db.query('ROLLBACK').catch((lost: Error) => (broken = lost));
    throw error;
  } finally {
    db.release(broken);
  }
}

export async function insertOrder(db: Queryable, { id, customer, amount }: Order): Promise<void> {
  const values = [id, customer, amount];
  await db.query('INSERT INTO orders VALUES ($1, $2, $3) ON CONFLICT DO NOTHING', values);
}

export async function markPaid(db: Queryable, order: string, charge: string): Promise<void> {
  await db.query('UPDATE orders SET charge = $2 WHERE id = $1', [order, charge]);
}

export async function insertReport(db: Queryable, tick: string): Promise<void> {
  const paid = 'SELECT $1, count(*), sum(amount) FROM orders WHERE charge IS NOT NULL';
  await db.query(`INSERT INTO reports ${paid}`, [tick]);
}
