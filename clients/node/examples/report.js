import { Worker, createPool } from 'idemq';

const pool = createPool({});
await pool.query("SELECT idemq.schedule('nightly', '0 3 * * *', 'reports', '{}')");
await pool.end();
await new Worker({}, 'reports').run(async (job, db) => {
  const { rows } = await db.query('INSERT INTO reports SELECT $1, sum(total) FROM sales RETURNING total', [job.headers.tick]);
  return rows[0];
});
