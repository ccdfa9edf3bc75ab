// node_common.mjs: what node_run.mjs and node_run_slow.mjs share.  CONNECTION is JSON, and its database has idemq.

import assert from 'node:assert/strict';
import { after, before } from 'node:test';
import pg from 'pg';
import { drain } from 'idemq';
import { proxyTo } from './node_proxy.mjs';

export const connection = JSON.parse(process.env.CONNECTION);
export const pool = new pg.Pool(connection);
export const said = [];
export const logger = { info: () => {}, warn: (text) => said.push(text), error: (text) => said.push(text) };
let queues = 0;

export async function queue(settings = '', jobs = 0) {
  const name = `run_${++queues}`;
  await pool.query(`SELECT idemq.create_queue('${name}'${/lease =>/.test(settings) ? '' : ", lease => '1 h'"}${settings})`);
  if (jobs > 0) await pool.query('SELECT count(*) FROM idemq.enqueue_many($1, ARRAY(SELECT to_jsonb(n) FROM generate_series(1, $2::int) n))', [name, jobs]);
  return name;
}

export const one = async (sql, ...values) => (await pool.query(sql, values)).rows[0];
export const jobsOf = async (q) => (await pool.query('SELECT id::text, status, attempt, result, last_error FROM idemq.jobs WHERE queue_id = idemq.queue_id($1) ORDER BY id', [q])).rows;
export const marksOf = async (q) => (await pool.query('SELECT mark FROM run_marks WHERE queue = $1 ORDER BY mark', [q])).rows.map(({ mark }) => mark);
export const mark = (db, q, what) => db.query('INSERT INTO run_marks VALUES ($1, $2)', [q, what]);

/** Runs a function with a proxy that everything of the worker goes through. */
export async function proxied(how, fn) {
  const proxy = await proxyTo(connection, how);
  try {
    return await fn(proxy, { ...connection, host: '127.0.0.1', port: proxy.port });
  } finally {
    proxy.close();
  }
}

/** Has idemq.hold_claimed be what a test wants. */
export async function withHold(sql, fn) {
  const [now, back] = ["AS '$libdir/idemq', 'idemq_sql_hold_claimed'", `LANGUAGE plpgsql AS $$ ${sql} $$`];
  await pool.query(`CREATE OR REPLACE FUNCTION idemq.hold_claimed() RETURNS text ${back}`);
  try {
    await fn();
  } finally {
    await pool.query(`CREATE OR REPLACE FUNCTION idemq.hold_claimed() RETURNS text LANGUAGE c ${now}`);
  }
}

before(() => pool.query('CREATE TABLE run_marks (queue text, mark text)'));
after(() => pool.end());

/** Asserts that a use of a handler's client begins the job's transaction, locks the job, and is undone with it. */
export async function isIn(name, use) {
  const q = await queue(", retry_base => '1 ms', max_attempts => 2", 3);
  let fails = true;
  const handler = async (job, db) => {
    await use(db, q, job);
    if (name !== 'not awaited') {
      // A handler in a transaction holds its job's row, so a call that would end its attempt has to wait.
      await assert.rejects(pool.query('SELECT FROM idemq.jobs WHERE id = $1 FOR NO KEY UPDATE NOWAIT', [job.id]), { code: '55P03' }, name);
    }
    if (fails) {
      fails = false;
      throw new Error('once');
    }
  };
  const ended = await drain(connection, q, handler, { logger });
  for (let n = 0; n < 100 && (await jobsOf(q)).some(({ status }) => status !== 'completed'); n++) await drain(connection, q, handler, { logger });
  assert.deepEqual([(await jobsOf(q)).map(({ status }) => status), ended.retrying], [['completed', 'completed', 'completed'], 1], `${name}: ${JSON.stringify(await jobsOf(q))}`);
  const marks = await marksOf(q);
  assert.deepEqual([...new Set(marks)], [name]);
  assert.equal(marks.length, { cursor: 9, several: 6 }[name] ?? 3, name);
}
