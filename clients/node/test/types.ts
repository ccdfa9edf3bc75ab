// Checked by tsc, never run: what index.d.ts says is what lib/ has, and the code of an application that declares its queues fits it.
// untyped.ts has the code of an application that declares none.

import type pg from 'pg';
import * as declared from 'idemq';
import * as real from '../lib/index.js';
import { ClusterWorker, Inside, Kind, Outside, Worker, drain, enqueue, enqueueMany, enqueueStatement, type Codec, type Handler, type Job, type JobOf, type OutsideHandler } from 'idemq';

// Classes that an application makes no object of: what they are, not how they are made.
type Made<T> = { [K in keyof T]: T[K] extends new (...args: any[]) => declared.IdemqError | declared.Cancelled ? new (...args: any[]) => InstanceType<T[K]> : T[K] };
export const api: Made<typeof declared> = real;

// What doc/usage/typescript.md shows: an application says once what its queues hold.
type Mail = { to: string; copies?: number };
type Receipt = { messageId: string };
type Charge = { order: number; amount: number };

declare module 'idemq' {
  interface Queues {
    mail: { payload: Mail; result: Receipt };
    shop: { kinds: { charge: { payload: Charge; result: { id: string } }; refund: { payload: { charge: string } } } };
    log: { kinds: { '': { payload: string }; error: { payload: Error } } };
  }
}

export async function order(client: pg.PoolClient): Promise<string | undefined> {
  const mail = await enqueue(client, 'mail', { to: 'anna@example.com' }, { key: 'order-42' });
  await enqueue(client, 'shop', { order: 42, amount: 12 }, { kind: 'charge' });
  return mail.result?.messageId; // of a duplicate that has been sent
}

export const work = () => new Worker('postgresql://db1/shop', {
  mail: new Outside((job) => ({ messageId: job.payload.to }), { concurrency: 4 }),
  shop: {
    charge: async (job, db) => {
      await db.query('UPDATE orders SET paid = $1 WHERE id = $2', [job.payload.amount, job.payload.order]);
      return { id: job.id };
    },
    refund: new Kind((job: Job<{ charge: string }>) => console.log(job.payload.charge), { timeout: 30, backoff: [1, '1 min'] }),
  },
}).run();

const send: Handler<Mail, Receipt> = async (job, db) => {
  await db.query('INSERT INTO sent (address) VALUES ($1)', [job.payload.to]);
  return { messageId: job.id };
};
const call: OutsideHandler<Mail, Receipt> = (job) => ({ messageId: job.payload.to });
const charge = (job: Job<Charge>) => ({ id: `${job.payload.amount}` });
const refund = (job: Job<{ charge: string }>) => job.payload.charge;
declare const name: string;
declare const mailSchema: declared.Schema;

export async function queues(client: pg.PoolClient): Promise<void> {
  // @ts-expect-error there is no such queue
  await enqueue(client, 'mails', { to: 'anna@example.com' });
  // @ts-expect-error nor for many
  await enqueueMany(client, 'mails', [{ payload: { to: 'anna@example.com' } }]);
  // @ts-expect-error nor for a worker
  new Worker({}, 'mails');
  // @ts-expect-error nor for a worker of several queues
  new Worker({}, { mail: send, mails: send });
  // @ts-expect-error nor for a cluster
  new ClusterWorker({}, 'mails');
  // @ts-expect-error nor for a drain
  await drain({}, 'mails', send);
  // @ts-expect-error nor for one of several queues
  await drain({}, { mails: send });
  // The way out.
  await enqueue(client, 'mails' as string, { from: 1 });
  await enqueueMany(client, name, [{ payload: 1 }]);
  await new Worker({}, name).run((job, db) => db.query('SELECT $1', [job.payload]));
  await drain({}, name, (job: Job<number>) => job.payload.toFixed());
}

export async function payloads(client: pg.PoolClient): Promise<void> {
  // @ts-expect-error to is missing
  await enqueue(client, 'mail', { copies: 2 });
  // @ts-expect-error to is a string
  await enqueueMany(client, 'mail', [{ payload: { to: 7 } }]);
  await enqueueMany(client, 'mail', [{ payload: { to: 'anna@example.com' }, key: 'k' }], { onDuplicate: 'ignore', schema: mailSchema });
  // @ts-expect-error there is no such kind
  await enqueue(client, 'shop', { order: 42, amount: 12 }, { kind: 'charges' });
  // @ts-expect-error the kind is missing
  await enqueue(client, 'shop', { order: 42, amount: 12 });
  // @ts-expect-error the payload of another kind
  await enqueue(client, 'shop', { order: 42, amount: 12 }, { kind: 'refund' });
  await enqueueMany(client, 'shop', [{ payload: { order: 42, amount: 12 }, kind: 'charge' }, { payload: { charge: 'ch_1' }, kind: 'refund' }]);
  // @ts-expect-error the payload of another kind
  await enqueueMany(client, 'shop', [{ payload: { order: 42, amount: 12 }, kind: 'refund' }]);
  await enqueue(client, 'log', 'a line');
  await enqueue(client, 'log', new Error('x'), { kind: 'error' });
  // @ts-expect-error a job without a kind has a line
  await enqueue(client, 'log', 7);
}

export async function results(client: pg.PoolClient, job: Job): Promise<unknown> {
  const { result } = await enqueue(client, 'mail', { to: 'anna@example.com' });
  // @ts-expect-error the result is there only when the first job is completed
  result.messageId;
  // @ts-expect-error a receipt has no such field
  result?.id;
  const paid = await enqueue(client, 'shop', { order: 42, amount: 12 }, { kind: 'charge' });
  paid.result?.id satisfies string | undefined;
  // @ts-expect-error the result of another kind
  paid.result?.messageId;
  for (const parent of await job.parents()) {
    if (parent.queue === 'mail') {
      parent.result?.messageId satisfies string | undefined;
      // @ts-expect-error a receipt has no such field
      parent.result?.id;
    }
  }
  const [first] = await job.parents<'mail'>();
  return first.result?.messageId;
}

export async function handlers(): Promise<void> {
  await new Worker({}, 'mail').run(send);
  await new Worker({}, 'mail', { schema: mailSchema }).runOutside(call);
  await new ClusterWorker({}, 'mail').runOutside(({ payload }) => ({ messageId: payload.to }));
  // @ts-expect-error the result is no receipt
  await new Worker({}, 'mail').run(async (job) => job.payload.to);
  // @ts-expect-error a mail has no such field
  await drain({}, 'mail', (job) => ({ messageId: job.payload.from }));
  // @ts-expect-error a handler of an outside call gets no client
  await drain({}, 'mail', send, { outside: true });
  await drain({}, { mail: new Inside(send, { batch: 10 }), shop: new Outside({ charge, refund }) });
  // @ts-expect-error the handler of a kind is missing
  await new Worker({}, 'shop').run({ charge });
  // @ts-expect-error so it is for one of several queues
  new Worker({}, { mail: send, shop: { charge } });
  // @ts-expect-error so it is in Outside
  new Worker({}, { shop: new Outside({ charge }) });
  // @ts-expect-error the handlers of two kinds are exchanged
  await new Worker({}, 'shop').run({ charge: refund, refund: charge });
  await new Worker({}, 'shop').run({ charge, refund: new Kind(refund, { timeout: 30 }) });
  // One handler for all kinds: the kind tells the payload.
  await new Worker({}, 'shop').run((job: JobOf<'shop'>) => (job.kind === 'charge' ? { id: `${job.payload.amount}` } : job.payload.charge));
  // @ts-expect-error the options of a queue belong to Inside and Outside
  new Worker({}, { mail: send }, { concurrency: 2 });
  // @ts-expect-error an outside call has no transaction
  new Outside(call, { batch: 2 });
}

// enqueueStatement: the options are those of enqueue, and the shape depends on the style.
export function statements(tag: (strings: TemplateStringsArray, ...values: unknown[]) => void): void {
  const { text, values } = enqueueStatement('mail', { to: 'anna@example.com' }, { key: 'order-42' });
  const first: string | null = values[0];
  const named: Record<string, string | null> = enqueueStatement('mail', { to: 'anna@example.com' }, { style: ':name' }).values;
  tag(...enqueueStatement('shop', { order: 42, amount: 12 }, { kind: 'charge', style: 'template' }));
  // @ts-expect-error there is no such style
  enqueueStatement('mail', { to: 'anna@example.com' }, { style: '%s' });
  // @ts-expect-error there is no such queue
  enqueueStatement('mails', { to: 'anna@example.com' });
  // @ts-expect-error nor has the payload this field
  enqueueStatement('mail', { too: 'anna@example.com' });
  // @ts-expect-error a queue with kinds needs one
  enqueueStatement('shop', { order: 42, amount: 12 }, { style: '?' });
  // @ts-expect-error without a style, values is an array
  enqueueStatement('mail', { to: 'anna@example.com' }).values.key;
  console.log(text, first, named);
}

// enqueue takes any object with query(text, values), whether it resolves to the rows or to an object with rows.
export async function clients(pool: pg.Pool, manager: { query<T = any>(text: string, values?: any[]): Promise<T> }, sql: { unsafe(text: string, values: any[]): Promise<any[]> }): Promise<void> {
  await enqueue(pool, 'mail', { to: 'anna@example.com' });
  await enqueue(manager, 'mail', { to: 'anna@example.com' });
  await enqueue({ query: (text: string, values: any[]) => sql.unsafe(text, values) }, 'mail', { to: 'anna@example.com' });
  // @ts-expect-error rows are missing
  await enqueue({ query: async () => 1 }, 'mail', { to: 'anna@example.com' });
}

export async function codecs(client: pg.Client, codec: Codec): Promise<void> {
  await enqueue(client, 'mail', { to: 'anna@example.com' }, { key: 'order-42', codec });
  await drain({}, { mail: new Inside(send, { codec }) });
  const plain: Codec = { name: 'plain', keys: ['1'], encode: (data) => data, decode: async (data) => data };
  await new Worker({}, 'mail', { codec: plain }).run(send);
  // @ts-expect-error a codec has keys
  new Inside(send, { codec: { name: 'plain', encode: plain.encode, decode: plain.decode } });
}
