// Connections to the bench's own server; each statement is prepared once a connection.
import pg from 'pg';

export const settings = { host: process.env.BENCH_SOCKET, user: 'postgres', database: 'postgres' };

export async function connections(count) {
  const clients = Array.from({ length: count }, () => new pg.Client(settings));
  await Promise.all(clients.map((client) => client.connect()));
  return clients;
}

export function pool(max) {
  const its = new pg.Pool({ ...settings, max });
  its.on('error', () => {});
  its.on('connect', (client) => client.on('error', () => {}));
  return its;
}

const names = new Map();

export function prepared(client, text, values) {
  if (!names.has(text)) names.set(text, `s${names.size}`);
  return client.query({ name: names.get(text), text, values });
}
