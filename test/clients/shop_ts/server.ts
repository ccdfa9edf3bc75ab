// The web server of the shop: POST /orders with an Idempotency-Key.
import http from 'node:http';
import { json } from 'node:stream/consumers';
import { KeyReused, createPool } from 'idemq';
import { declareQueues, type Order } from './queues.js';
import { place } from './shop.js';
import { createTables } from './tables.js';

const pool = createPool(process.env.DSN!);
await createTables(pool);
await declareQueues(pool);

async function answer(request: http.IncomingMessage): Promise<number> {
  const id = request.headers['idempotency-key'];
  const { customer, amount } = (await json(request)) as Order;
  if (!id || typeof customer !== 'string' || !Number.isInteger(amount)) return 400;
  await place(pool, { id: `${id}`, customer, amount });
  return 202; // not before it is stored
}

const server = http.createServer(async (request, response) => {
  const status = await answer(request).catch((error) => (error instanceof KeyReused ? 422 : 503));
  response.writeHead(status, { Connection: 'close' }).end();
});
server.listen(process.env.PORT);
process.once('SIGTERM', () => server.close(() => pool.end()));
