import { Worker } from 'idemq';

await new Worker({ connectionString: process.env.DSN }, 'mail').run(async (job, db) => {
  await db.query('INSERT INTO confirmations (order_id) VALUES ($1)', [job.payload.order]);
  return { sent: true }; // the job's result
}); // until SIGTERM
