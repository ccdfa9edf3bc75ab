// node.mjs prepare|work|produce|control JSON: one process of bench-workers, told by its arguments.
//
// work says "warm" when so many handlers have begun, and "end" when all have; with samples, for each handler the nanoseconds
// since its job's enqueue began.  CLOCK_MONOTONIC is that of all processes of the machine.
import { writeSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { connections } from './postgres.mjs';

const [call, json] = process.argv.slice(2);
const spec = JSON.parse(json);
const PAYLOAD = JSON.parse(process.env.BENCH_PAYLOAD);
const INSERT = 'INSERT INTO bench.effects (job) VALUES ($1)';
const now = () => Number(process.hrtime.bigint());
const sleep = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
const say = (word) => writeSync(1, `${word}\n`);

let begun = 0;
function begins(payload) {
  begun += 1;
  if (spec.samples) say(`sample ${now() - payload.t}`);
  else if (begun === spec.warm) say('warm');
  else if (begun === spec.jobs) say('end');
}

/** A handler that waits for its signal. */
async function told({ id, signal }) {
  say(`begun ${id}`);
  if (!signal.aborted) await new Promise((resolve) => { signal.addEventListener('abort', resolve); });
  say(`told ${now()}`);
  throw signal.reason;
}

async function idemq() {
  const { Worker } = await import(spec.client);
  const connection = { host: spec.socket, user: 'postgres', database: 'postgres' };
  const wait = spec.wait ? { waitConnection: { ...connection, host: spec.wait } } : {};
  const worker = new Worker(connection, 'bench', { concurrency: spec.concurrency, ...(spec.batch > 1 ? { batch: spec.batch } : {}), ...(spec.ahead > 0 ? { ahead: spec.ahead } : {}), ...wait });
  const cancelled = async (job, db) => {
    if (spec.insert) await db.query(INSERT, [job.id]);
    return told(job);
  };
  if (spec.samples === 'cancel') return spec.outside ? worker.runOutside(cancelled) : worker.run(cancelled);
  const handler = spec.insert
    ? async (job, db) => {
      begins(job.payload);
      await db.query(INSERT, [job.id]);
    }
    : async (job) => begins(job.payload);
  return spec.outside ? worker.runOutside(handler) : worker.run(handler);
}

async function peer() {
  const { default: Side } = await import(`./sides/${spec.side}.mjs`);
  const side = new Side({ notify: Boolean(spec.samples) });
  if (spec.samples === 'cancel') return side.workUntilCancelled(spec.concurrency, told);
  return side.work(spec.concurrency, spec.batch, async (payloads, its) => {
    for (const payload of payloads) begins(payload);
    if (spec.insert) await its.query(INSERT, [begun]);
  });
}

const calls = {
  work: () => (spec.side === 'idemq' ? idemq() : peer()),

  async prepare() {
    const { default: Side } = await import(`./sides/${spec.side}.mjs`);
    const [admin] = await connections(1);
    await Side.setup(admin, { notify: Boolean(spec.samples), heartbeat: spec.samples === 'cancel' ? 10 : 0 });
    await Side.reset(admin);
    if (spec.jobs > 0) await Side.fill(admin, process.env.BENCH_PAYLOAD, spec.jobs, spec.batch);
    if (Side.tables?.length > 0) await admin.query(`VACUUM ANALYZE ${Side.tables.join(', ')}`);
    process.exit(0);
  },

  // Of a system with cancel: answers "put" with the id of a new job, and "cancel ID" with the time before the call.
  async control() {
    const { default: Side } = await import(`./sides/${spec.side}.mjs`);
    const side = new Side({ notify: true });
    await side.open(1);
    for await (const line of createInterface({ input: process.stdin })) {
      const [word, id] = line.split(' ');
      const before = now();
      if (word === 'cancel') await side.cancel(id);
      say(word === 'put' ? await side.putOne(PAYLOAD) : before);
    }
  },

  async produce() {
    const { default: Side } = await import(`./sides/${spec.side}.mjs`);
    const side = new Side({ notify: true });
    await side.open(1);
    for (let n = 0; n < spec.jobs; n += 1) {
      await sleep((-Math.log(1 - Math.random()) * 1000) / spec.rate);
      await side.put(0, [{ ...PAYLOAD, t: now() }]);
    }
    process.exit(0);
  },
};

await calls[call]();
