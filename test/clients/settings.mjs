// settings.mjs HOST PORT SUPERUSER ROLE...: what the Node client does and answers as each role, whose settings differ; a line of JSON for each, in
// which nothing may differ.  Queues of a role are ROLE_SUBJECT; a superuser, whose settings are the server's own, looks at the rows.

import assert from 'node:assert/strict';
import pg from 'pg';
import { cancelMatching, createPool, drain, enqueue, enqueueGraph, flow, waitResults } from 'idemq';

const [host, port, superuser, ...roles] = process.argv.slice(2);
const admin = new pg.Client({ host, port: Number(port), database: 'postgres', user: superuser });
await admin.connect();
const one = async (sql, ...values) => (await admin.query({ text: sql, values, rowMode: 'array' })).rows[0];
const text = '1 € für ü';
const isNow = (date) => date instanceof Date && Math.abs(date - Date.now()) < 600_000;

for (const role of roles) {
  const connection = { host, port: Number(port), database: 'postgres', user: role };
  const pool = createPool(connection, { max: 1 });
  const said = {};

  // An enqueue with all that is a time.
  const { id } = await enqueue(pool, `${role}_node`, text, { delay: 3600, keyTtl: '2 days', key: 'k', expiresIn: 7200, headers: { text } });
  said.enqueue = await one(`SELECT ready_at BETWEEN now() + '50 min' AND now() + '70 min', key_expires_at BETWEEN now() + '47 h' AND now() + '49 h',
    expires_at BETWEEN now() + '110 min' AND now() + '130 min', payload, headers FROM idemq.jobs WHERE id = $1`, id);
  const late = await enqueue(pool, `${role}_node`, text, { runAt: new Date(Date.now() + 3_600_000) });
  said.runAt = await one("SELECT ready_at BETWEEN now() + '50 min' AND now() + '70 min' FROM idemq.jobs WHERE id = $1", late.id);

  // A step that another attempt is busy with is not called: the job comes back when that call cannot arrive any more.
  const step = await enqueue(pool, `${role}_step`, {});
  const { rows: [lost] } = await admin.query('SELECT id::text, token::text FROM idemq.claim($1)', [`${role}_step`]);
  await admin.query("CALL idemq.begin_step($1::bigint, $2::bigint, 'call', 'null', '1 h')", [lost.id, lost.token]);
  await admin.query("SELECT idemq.fail($1::bigint, $2::bigint, 'lost', retry_in => '0')", [lost.id, lost.token]);
  let calls = 0;
  said.step = await drain(connection, `${role}_step`, (job) => job.step('call', () => void calls++), { outside: true });
  // Given back until the call of the attempt that was lost can no longer arrive: no failure, as of an interval that cannot be read.
  assert.deepEqual(said.step, { released: 1 }, role);
  said.calls = calls;
  said.stepReady = await one("SELECT ready_at BETWEEN now() + '50 min' AND now() + '70 min' FROM idemq.jobs WHERE id = $1", step.id);

  // A handler's times, and a result.
  const job = await enqueue(pool, `${role}_run`, text);
  said.run = await drain(connection, `${role}_run`, async (own, db) => {
    const { rows } = await db.query('SELECT $1::text AS text', [text]);
    const left = own.deadline - Date.now();
    return { text: rows[0].text, payload: own.payload, left: left > 30_000 && left <= 75_000, year: isNow(own.enqueuedAt) };
  });
  said.result = await one('SELECT result FROM idemq.jobs WHERE id = $1', job.id);
  said.waited = await waitResults(pool, [job.id], 5);

  // Numbers of more than one digit, and times, of a graph; intervals that are answered.
  const graph = Object.fromEntries(Array.from({ length: 12 }, (_, n) => [`n${n}`, { queue: `${role}_graph`, payload: n, dependsOn: n > 0 ? ['n0'] : [] }]));
  const { n0 } = await enqueueGraph(pool, graph);
  while ((await flow(pool, n0.id)).done < 12) await drain(connection, `${role}_graph`, () => {}, { batch: 3 });
  const { begunAt, endedAt, eta, slowest, slowestFor, heldUpBy, roots, ...numbers } = await flow(pool, n0.id);
  said.flow = { ...numbers, begun: isNow(begunAt), ended: isNow(endedAt), slowest: slowestFor >= 0 && slowestFor < 600, roots: roots.length, eta };
  for (let n = 0; n < 12; n++) await enqueue(pool, `${role}_many`, n, { kind: 'k' });
  said.cancelled = await cancelMatching(pool, `${role}_many`, { kind: 'k' });
  await pool.end();
  console.log(JSON.stringify(said));
}
await admin.end();
