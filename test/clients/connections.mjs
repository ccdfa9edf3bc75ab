// connections.mjs METHOD CONCURRENCY GATE: a worker for connections.pl.  Its handlers run until the file GATE exists.  DSN is a connection string.
import fs from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { Inside, Outside, Worker } from 'idemq';

const [method, concurrency, gate] = process.argv.slice(2);
const dsn = process.env.DSN;
const opened = async () => { while (!fs.existsSync(gate)) await setTimeout(20); };
const uses = async (job, db) => { await db.query("SELECT set_config('idemq_test.uses', 'yes', false)"); await opened(); };
const options = { concurrency: Number(concurrency) };
const short = { run: (worker) => worker.run(uses), runOutside: (worker) => worker.runOutside(opened) };
const ways = { q: new Inside(uses, options), other: new Inside(uses, options), calls: new Outside(opened, options) };
await (method === 'several' ? new Worker(dsn, ways).run() : short[method](new Worker(dsn, 'q', options)));
