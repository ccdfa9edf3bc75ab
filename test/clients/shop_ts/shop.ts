// What the shop does: it takes orders, charges them, sends mails and writes reports.
import { Inside, Outside, enqueue, type HandlerClient, type JobOf } from 'idemq';
import type { Pool } from 'pg';
import { payments, postbox } from './provider.js';
import type { Order } from './queues.js';
import { insertOrder, insertReport, markPaid, transaction } from './tables.js';

export async function place(pool: Pool, order: Order): Promise<void> {
  await transaction(pool, async (db) => {
    await insertOrder(db, order);
    await enqueue(db, 'charges', order, { key: order.id, groupKey: order.customer });
  });
}

async function charge(job: JobOf<'charges'>, db: HandlerClient) {
  const { id: order, customer: to } = job.payload;
  const call = { request: job.payload, callTimeout: 2, ask: payments.find };
  const paid = await job.step('charge', payments.charge, call);
  await markPaid(db, order, paid.id);
  const review = { key: `review ${order}`, delay: '1 day' };
  await enqueue(db, 'mails', { order, to, text: 'receipt' }, { key: `receipt ${order}` });
  await enqueue(db, 'mails', { order, to, text: 'review' }, review);
  return { charge: paid.id };
}

function mail(job: JobOf<'mails'>) {
  const call = { request: job.payload, callTimeout: 2, ask: postbox.find };
  return job.step('mail', postbox.send, call);
}

export const handlers = {
  charges: new Inside(charge, { concurrency: 5 }),
  mails: new Outside(mail, { concurrency: 4 }),
  reports: (job: JobOf<'reports'>, db: HandlerClient) => insertReport(db, job.headers.tick),
};
