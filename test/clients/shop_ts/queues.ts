// The queues of the shop, what they hold, and the schedule.
import { ensureQueue, schedule, type Queryable } from 'idemq';

declare module 'idemq' {
  interface Queues {
    charges: { payload: Order; result: { charge: string } };
    mails: { payload: { order: string; to: string; text: 'receipt' | 'review' } };
    reports: { payload: null };
  }
}
export type Order = { id: string; customer: string; amount: number };

export async function declareQueues(db: Queryable): Promise<void> {
  await ensureQueue(db, 'charges', { rateLimit: 5, ratePeriod: '1 s' });
  await ensureQueue(db, 'mails');
  await ensureQueue(db, 'reports');
  await schedule(db, 'report', '* * * * *', 'reports', null);
}
