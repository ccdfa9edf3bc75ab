// node_trace.mjs: the Node client with OpenTelemetry, which only npm has.  CONNECTION is JSON, and its database has idemq.

import assert from 'node:assert/strict';
import { AsyncLocalStorage } from 'node:async_hooks';
import { after, test } from 'node:test';
import * as otel from '@opentelemetry/api';
import pg from 'pg';
import { drain, enqueue } from 'idemq';

const connection = JSON.parse(process.env.CONNECTION);
const pool = new pg.Pool(connection);
const jobOf = async (id) => (await pool.query('SELECT headers FROM idemq.jobs WHERE id = $1', [id])).rows[0];

after(() => pool.end());

test('trace context goes with the job', async () => {
  const storage = new AsyncLocalStorage();
  otel.context.setGlobalContextManager({
    active: () => storage.getStore() ?? otel.ROOT_CONTEXT,
    with: (context, fn, self, ...args) => storage.run(context, () => fn.apply(self, args)),
    bind: (context, fn) => fn,
    enable() { return this; },
    disable() { return this; },
  });
  const key = otel.createContextKey('test');
  otel.propagation.setGlobalPropagator({
    inject: (context, carrier, setter) => context.getValue(key) && setter.set(carrier, 'traceparent', context.getValue(key)),
    extract: (context, carrier, getter) => context.setValue(key, getter.get(carrier, 'traceparent')),
    fields: () => ['traceparent'],
  });
  const q = 'traced';
  await pool.query('SELECT idemq.create_queue($1)', [q]);
  await otel.context.with(otel.ROOT_CONTEXT.setValue(key, '00-trace'), () => enqueue(pool, q, 1, { headers: { own: 1 } }));
  const own = await enqueue(pool, q, 2);
  assert.equal((await jobOf(own.id)).headers, null);
  const seen = [];
  await drain(connection, q, async (job) => {
    await new Promise((resolve) => setTimeout(resolve, 1));
    seen.push([job.payload, job.headers, otel.context.active().getValue(key)]);
  });
  assert.deepEqual(seen, [[1, { own: 1, traceparent: '00-trace' }, '00-trace'], [2, {}, undefined]]);
});
