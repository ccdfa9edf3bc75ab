import http from 'node:http';
import { text } from 'node:stream/consumers';
import { Worker, createPool, enqueue } from 'idemq';

const pool = createPool({}); // PGHOST, PGDATABASE, ...
http.createServer((request, response) => {
  text(request).then(JSON.parse)
    .then((event) => enqueue(pool, 'events', event, { key: event.id }))
    .then(() => 202, () => 503).then((status) => response.writeHead(status).end()); // 503: the sender repeats it
}).listen(process.env.PORT);
await new Worker({}, 'events').run(async (job, db) => {
  const { amount, account } = job.payload;
  await db.query('UPDATE accounts SET balance = balance + $1 WHERE account = $2', [amount, account]);
});
process.exit();
