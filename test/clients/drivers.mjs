// drivers.mjs: enqueueStatement with real libraries, each in its own transaction.  doc/usage/enqueue-anywhere.md shows the functions named
// orderWithLIBRARY.
//
// For drivers.pl, which says where the server is (CONNECTION, as JSON) and has npm install the libraries.

import 'reflect-metadata';
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { PrismaPg } from '@prisma/adapter-pg';
import { drizzle } from 'drizzle-orm/node-postgres';
import { drizzle as drizzleOverPostgres } from 'drizzle-orm/postgres-js';
import { sql as drizzleSql } from 'drizzle-orm';
import knex from 'knex';
import pg from 'pg';
import postgres from 'postgres';
import { DataSource } from 'typeorm';
import { KeyReused, drain, enqueue, enqueueStatement } from 'idemq';
import prisma from './generated/index.js';

const connection = JSON.parse(process.env.CONNECTION);
const pool = new pg.Pool(connection);

function orderWithPrisma(prisma, number) {
  return prisma.$transaction(async (tx) => {
    await tx.orders.create({ data: { number } });
    const [job] = await tx.$queryRaw(...enqueueStatement('mail', { order: number }, { key: `order-${number}`, style: 'template' }));
    return job;
  });
}

function orderWithDrizzle(db, sql, number) {
  return db.transaction(async (tx) => {
    await tx.execute(sql`INSERT INTO orders VALUES (${number})`);
    const { rows: [job] } = await tx.execute(sql(...enqueueStatement('mail', { order: number }, { key: `order-${number}`, style: 'template' })));
    return job;
  });
}

function orderWithKnex(knex, number) {
  return knex.transaction(async (trx) => {
    await trx('orders').insert({ number });
    const { text, values } = enqueueStatement('mail', { order: number }, { key: `order-${number}`, style: '?' });
    const { rows: [job] } = await trx.raw(text, values);
    return job;
  });
}

function orderWithTypeORM(dataSource, number) {
  return dataSource.transaction(async (manager) => {
    await manager.query('INSERT INTO orders VALUES ($1)', [number]);
    return enqueue(manager, 'mail', { order: number }, { key: `order-${number}` }); // manager has query(text, values)
  });
}

function orderWithPostgres(sql, number) {
  return sql.begin(async (tx) => {
    await tx`INSERT INTO orders VALUES (${number})`;
    const [job] = await tx(...enqueueStatement('mail', { order: number }, { key: `order-${number}`, style: 'template' }));
    return job;
  });
}

const clientOf = (tx) => ({ query: (text, values) => tx.unsafe(text, values) }); // of postgres.js

// The same for all libraries: execute(tx, statement) returns a row, and transaction and savepoint are those of the library.
const PLACE = { host: connection.host, port: connection.port, user: connection.user, database: connection.database };
const typeorm = new DataSource({ type: 'postgres', ...PLACE, username: PLACE.user });
const sql = postgres(PLACE);
const knexes = knex({ client: 'pg', connection: PLACE });
// A busy machine takes longer than Prisma's five seconds.
const prismas = new prisma.PrismaClient({ adapter: new PrismaPg(PLACE), transactionOptions: { maxWait: 60_000, timeout: 60_000 } });
const drizzles = drizzle(pool);
const overPostgres = drizzleOverPostgres(postgres(PLACE));
const first = async (rows) => (await rows)[0];

const LIBRARIES = {
  Prisma: {
    styles: {
      template: (tx, statement) => first(tx.$queryRaw(...statement)),
      $1: (tx, { text, values }) => first(tx.$queryRawUnsafe(text, ...values)),
    },
    order: (number) => orderWithPrisma(prismas, number),
    transaction: (body) => prismas.$transaction(body),
    savepoint: (tx, body) => tx.$transaction(body),
    client: (tx) => ({ query: (text, values) => tx.$queryRawUnsafe(text, ...values) }),
    sqlstate: (error) => error.meta?.driverAdapterError?.cause?.originalCode,
    end: () => prismas.$disconnect(),
  },
  Drizzle: {
    styles: { template: async (tx, statement) => (await tx.execute(drizzleSql(...statement))).rows[0] },
    order: (number) => orderWithDrizzle(drizzles, drizzleSql, number),
    transaction: (body) => drizzles.transaction(body),
    savepoint: (tx, body) => tx.transaction(body),
    sqlstate: (error) => error.cause.code,
  },
  'Drizzle with postgres.js': {
    styles: { template: (tx, statement) => first(tx.execute(drizzleSql(...statement))) },
    transaction: (body) => overPostgres.transaction(body),
    savepoint: (tx, body) => tx.transaction(body),
    sqlstate: (error) => error.cause.code,
    end: () => overPostgres.$client.end(),
  },
  Knex: {
    styles: {
      '?': async (tx, { text, values }) => (await tx.raw(text, values)).rows[0],
      ':name': async (tx, { text, values }) => (await tx.raw(text, values)).rows[0],
    },
    order: (number) => orderWithKnex(knexes, number),
    transaction: (body) => knexes.transaction(body),
    savepoint: (tx, body) => tx.transaction(body),
    sqlstate: (error) => error.code,
    end: () => knexes.destroy(),
  },
  TypeORM: {
    styles: { $1: (tx, { text, values }) => first(tx.query(text, values)) },
    order: (number) => orderWithTypeORM(typeorm, number),
    begin: () => typeorm.initialize(),
    transaction: (body) => typeorm.transaction(body),
    savepoint: (tx, body) => tx.transaction(body),
    client: (tx) => tx,
    sqlstate: (error) => error.code,
    end: () => typeorm.destroy(),
  },
  'postgres.js': {
    styles: {
      template: (tx, statement) => first(tx(...statement)),
      $1: (tx, { text, values }) => first(tx.unsafe(text, values)),
    },
    order: (number) => orderWithPostgres(sql, number),
    transaction: (body) => sql.begin(body),
    savepoint: (tx, body) => tx.savepoint(body),
    client: clientOf,
    sqlstate: (error) => error.code,
    end: () => sql.end(),
  },
};
// Also what looks like a parameter.
const AWKWARD = ["it's \\ \" %s %(a)s %% :a ::x ? ?? \\? $1 $$", '\u{1f600} ä €\r\n\t', '', null, true, [], [1, [2]], { 'a:b?': '%' }, 2 ** 53 - 1, { at: new Date(0) }, 'x'.repeat(2 ** 20)];

const rows = async (text, values) => (await pool.query(text, values)).rows;
/** What exists: orders, and keys of jobs. */
const existing = () => first(rows('SELECT ARRAY(SELECT number FROM orders ORDER BY number) AS orders, ARRAY(SELECT key FROM idemq.jobs ORDER BY key) AS keys'));
const refused = new Error('refused');

before(() => Promise.all(Object.values(LIBRARIES).map((library) => library.begin?.())));
after(() => Promise.all([pool.end(), ...Object.values(LIBRARIES).map((library) => library.end?.())]));
beforeEach(() => pool.query(`SELECT idemq.drop_queue('mail', force => true) FROM idemq.queues WHERE name = 'mail';
  SELECT idemq.create_queue('mail'); DROP TABLE IF EXISTS orders; CREATE TABLE orders (number int PRIMARY KEY)`));
for (const [name, library] of Object.entries(LIBRARIES)) {
  if (library.order) {
    test(`${name}: the job commits with the order, and answers`, async () => {
      const { id, outcome, status, result } = await library.order(42);
      assert.equal(typeof id, 'string');
      assert.deepEqual([outcome, status, result], ['accepted', 'pending', null]);
      assert.deepEqual(await existing(), { orders: [42], keys: ['order-42'] });
      await assert.rejects(library.order(42));
      await pool.query('DELETE FROM orders');
      assert.deepEqual(await drain(connection, 'mail', (job) => ({ sent: job.payload.order }), { outside: true }), { committed: 1 });
      const again = await library.order(42);
      assert.deepEqual([again.id, again.outcome, again.status, again.result], [id, 'duplicate', 'completed', { sent: 42 }]);
      await pool.query("SELECT idemq.enqueue('mail', '1', key => 'order-43')");
      await assert.rejects(library.order(43), (error) => error instanceof KeyReused || library.sqlstate(error) === 'IQ003');
      assert.deepEqual(await existing(), { orders: [42], keys: ['order-42', 'order-43'] }, 'a refused job takes the order with it');
    });
  }

  for (const [style, execute] of Object.entries(library.styles)) {
    const add = (tx, payload, options) => execute(tx, enqueueStatement('mail', payload, { ...options, style }));

    test(`${name}, ${style}: the job is rolled back with the transaction`, async () => {
      await assert.rejects(library.transaction(async (tx) => {
        assert.equal((await add(tx, 1, { key: 'a' })).outcome, 'accepted');
        throw refused;
      }), refused);
      assert.deepEqual(await existing(), { orders: [], keys: [] });
    });

    test(`${name}, ${style}: the job is rolled back with the savepoint`, async () => {
      await library.transaction(async (tx) => {
        await add(tx, 1, { key: 'before' });
        await assert.rejects(library.savepoint(tx, async (inner) => {
          assert.equal((await add(inner, 1, { key: 'inside' })).outcome, 'accepted');
          throw refused;
        }), refused);
        await library.savepoint(tx, (inner) => add(inner, 1, { key: 'kept' }));
        // Within a savepoint, a refused statement does not end the transaction.
        await assert.rejects(library.savepoint(tx, (inner) => add(inner, 2, { key: 'before' })), (error) => library.sqlstate(error) === 'IQ003');
        assert.equal((await add(tx, 1, { key: 'inside' })).outcome, 'accepted');
      });
      assert.deepEqual(await existing(), { orders: [], keys: ['before', 'inside', 'kept'] });
    });

    test(`${name}, ${style}: values and options arrive as they are`, async () => {
      const parent = (await enqueue(pool, 'mail', 1)).id;
      const options = {
        delay: '1 h', priority: 2, groupKey: 7n, maxAttempts: 3, headers: { h: "'%s :x ? $1" }, expiresIn: 7200, keyTtl: '1 day', onDuplicate: 'ignore', nowait: true, kind: 'k?:a',
        dependsOn: [parent], onParentFailure: 'run',
      };
      const ids = [(await enqueue(pool, 'mail', 1, { ...options, key: 'one' })).id];
      const at = new Date(Date.now() + 3_600_123);
      const later = await library.transaction(async (tx) => {
        ids.push((await add(tx, 1, { ...options, key: 'two' })).id);
        const added = [];
        for (const payload of AWKWARD) added.push({ payload, key: `key ${JSON.stringify(payload).slice(0, 50)}`, id: (await add(tx, payload, { key: `key ${JSON.stringify(payload).slice(0, 50)}`, runAt: at })).id });
        return added;
      });
      assert.equal((await rows(`SELECT DISTINCT payload, group_key, kind, priority, max_attempts, headers, status, ready_at - enqueued_at, expires_at - enqueued_at,
        key_expires_at - enqueued_at, flags, ARRAY(SELECT parent FROM idemq.parents(id)) FROM idemq.jobs WHERE id = ANY ($1)`, [ids])).length, 1);
      for (const { id, payload, key } of later) {
        assert.deepEqual(await rows('SELECT payload, key, ready_at FROM idemq.jobs WHERE id = $1', [id]), [{ payload: JSON.parse(JSON.stringify(payload)), key, ready_at: at }]);
      }
    });

    test(`${name}, ${style}: a payload that PostgreSQL refuses is an error`, async () => {
      await assert.rejects(library.transaction((tx) => add(tx, 'a\0b', { key: 'a' })), (error) => library.sqlstate(error) === '22P05');
      assert.deepEqual(await existing(), { orders: [], keys: [] });
    });
  }

  if (library.client) {
    test(`${name}: enqueue with an object that has query(text, values)`, async () => {
      const all = { key: 'k', priority: 3, delay: 60, headers: { h: [1] }, nowait: false, dependsOn: [], runAt: null };
      const { id, outcome, error } = await library.transaction((tx) => enqueue(library.client(tx), 'mail', { n: ['x'] }, all));
      assert.deepEqual([outcome, error], ['accepted', null]);
      assert.deepEqual(await rows('SELECT id, payload, priority, headers FROM idemq.jobs'), [{ id, payload: { n: ['x'] }, priority: 3, headers: { h: [1] } }]);
      await pool.query("SELECT idemq.retry(id) FROM idemq.jobs; SELECT idemq.alter_queue('mail', max_attempts => 1)");
      await drain(connection, 'mail', () => { throw new Error('gone'); }, { neverRetry: [Error], logger: { info() {}, warn() {}, error() {} } });
      const dead = await library.transaction((tx) => enqueue(library.client(tx), 'mail', { n: ['x'] }, all));
      assert.deepEqual([dead.id, dead.status, dead.error.split('\n')[0]], [id, 'dead', 'Error: gone']);
    });
  }
}
