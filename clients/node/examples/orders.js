import { Worker, sendEvent } from 'idemq';

await new Worker({}, 'orders').run({
  order: async (job, db) => {
    const { no } = job.payload;
    const paid = await job.awaitEvent(`paid ${no}`, '3 days'); // sleeps until then, and starts from the top
    await db.query(`INSERT INTO ${paid.arrived ? 'shipments' : 'reminders'} VALUES ($1)`, [no]);
  },
  payment: (job, db) => sendEvent(db, 'orders', `paid ${job.payload.no}`, job.payload),
}); // jobs of other kinds are released
