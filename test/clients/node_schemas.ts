// node_schemas.ts: the option schema with zod, valibot and arktype, which schemas.pl compiles with tsc --strict and runs.  DSN is a connection string.
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { type } from 'arktype';
import { Inside, Outside, Worker, assertEnqueued, createPool, drain, enqueue, enqueueMany, ensureQueue, job, makeDue, type Job, type Schema } from 'idemq';
import * as v from 'valibot';
import { z } from 'zod';

type Mail = { to: string[]; copies?: number };

declare module 'idemq' {
  interface Queues {
    zod: { payload: Mail };
    valibot: { payload: Mail };
    arktype: { payload: Mail };
    kinds: { kinds: { zod: { payload: Mail }; valibot: { payload: Mail }; arktype: { payload: Mail }; other: { payload: number } } };
    later: { payload: { to: string } };
  }
}

const dsn = process.env.DSN!;
const pool = createPool(dsn);
const logger = { info: () => {}, warn: () => {}, error: () => {} };
const schemas = {
  zod: z.object({ to: z.array(z.string()), copies: z.number().default(1) }),
  valibot: v.object({ to: v.array(v.string()), copies: v.optional(v.number(), 1) }),
  arktype: type({ to: 'string[]', copies: 'number = 1' }),
};
schemas satisfies { [name: string]: Schema };
const wrong = { to: ['anna', 7] } as unknown as Mail;
const says = (where: string) => (error: Error) => error instanceof TypeError && error.message.startsWith(`the payload does not fit its schema: ${where}: `);

after(() => pool.end());

for (const name of ['zod', 'valibot', 'arktype'] as const) {
  test(`${name}: before anything is sent`, async () => {
    await ensureQueue(pool, name);
    const schema = schemas[name];
    await assert.rejects(enqueue(pool, name, wrong, { schema }), says('payload.to.1'));
    await assert.rejects(enqueueMany(pool, name, [{ payload: { to: [] } }, { payload: wrong }], { schema }), says('payload.to.1'));
    await assertEnqueued(pool, name, { times: 0 });
    const { id } = await enqueue(pool, name, { to: ['anna'] }, { schema });
    assert.deepEqual((await job(pool, id!))!.payload, { to: ['anna'] }, 'it is stored as it was passed');
    await enqueueMany(pool, name, [{ payload: { to: [], copies: 2 } }], { schema });
    await assertEnqueued(pool, name, { times: 2 });
  });

  test(`${name}: before the handler, inside and outside`, async () => {
    const schema = schemas[name];
    const got: unknown[] = [];
    assert.deepEqual(await drain(dsn, { [name]: new Inside(({ payload }: Job<Mail>) => void got.push(payload), { schema }) }, { logger }), { committed: 2 });
    assert.deepEqual(got, [{ to: ['anna'], copies: 1 }, { to: [], copies: 2 }], 'the handler gets what the validator returns');
    let called = 0;
    for (const Way of [Inside, Outside]) {
      // Another version of the program has enqueued it.
      const { id } = await enqueue(pool, name, wrong);
      const handler = () => called++;
      assert.deepEqual(await drain(dsn, { [name]: new Way(handler, { schema }) }, { logger }), { retrying: 1 });
      const { status, error } = (await job(pool, id!))!;
      assert.equal(status, 'retrying');
      assert.match(error!, /the payload does not fit its schema: payload\.to\.1: ./);
      await makeDue(pool, name);
      assert.deepEqual(await drain(dsn, { [name]: new Way(handler, { schema, neverRetry: [TypeError] }) }, { logger }), { dead: 1 });
    }
    assert.equal(called, 0, 'the handler does not get what does not fit');
  });
}

test('validators by kind', async () => {
  await ensureQueue(pool, 'kinds');
  for (const kind of ['zod', 'valibot', 'arktype'] as const) {
    await assert.rejects(enqueue(pool, 'kinds', wrong, { kind, schema: schemas }), says('payload.to.1'));
    await enqueue(pool, 'kinds', { to: [] }, { kind, schema: schemas });
  }
  await enqueue(pool, 'kinds', 7, { kind: 'other', schema: schemas });
  const got: unknown[] = [];
  const take = ({ payload }: Job<unknown>) => void got.push(payload);
  const handlers = { zod: take, valibot: take, arktype: take, other: take };
  assert.deepEqual(await drain(dsn, { kinds: new Outside(handlers, { schema: schemas }) }, { logger }), { committed: 4 });
  assert.deepEqual(got, [{ to: [], copies: 1 }, { to: [], copies: 1 }, { to: [], copies: 1 }, 7]);
});

test('a validator that returns a promise', async () => {
  await ensureQueue(pool, 'later');
  const schema = z.object({ to: z.string().refine(async (to) => to.includes('@'), 'no address').transform((to) => to.toLowerCase()) });
  await assert.rejects(enqueue(pool, 'later', { to: 'anna' }, { schema }), says('payload.to'));
  await enqueue(pool, 'later', { to: 'Anna@example.com' }, { schema });
  const got: string[] = [];
  assert.deepEqual(await drain(dsn, 'later', ({ payload }) => void got.push(payload.to), { schema, logger }), { committed: 1 });
  assert.deepEqual(got, ['anna@example.com']);
  new Worker(dsn, 'later', { schema });
});
