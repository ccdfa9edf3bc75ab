import { Worker, enqueue } from 'idemq';

const charges = process.env.CHARGE_API ?? 'https://pay.example.com/charges';
await new Worker({}, 'charges', { concurrency: 10 }).run(async (job, db) => {
  const { order, amount } = job.payload;
  const paid = await job.step('charge', async ({ key, request, signal }) => {
    const headers = { 'Idempotency-Key': key };
    const answer = await fetch(charges, { method: 'POST', headers, body: JSON.stringify(request), signal });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${answer.status}: ${text}`); // the card may have been charged, or not
    return JSON.parse(text);
  }, { request: { amount } });
  await db.query('UPDATE orders SET charge = $1 WHERE id = $2', [paid.id, order]);
  await enqueue(db, 'mail', { paid: order }, { key: job.key });
});
