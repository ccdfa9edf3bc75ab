// Runs the measures of bench-peers, the sides in turn, and writes what it found as JSON.
//
// MEASURES chooses among them, SIDES among the sides.  Times are seconds: SECS of a piece of
// enqueue and cycle, SECS_MIXED, SECS_HELD, SECS_IDLE of the others.
import { execFileSync, fork } from 'node:child_process';
import { existsSync, readFileSync, readdirSync, statSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import { connections } from './postgres.mjs';

const env = (name, otherwise) => process.env[name] || otherwise;
const number = (name, otherwise) => Number(env(name, otherwise));
const MEASURES = env('MEASURES', 'enqueue cycle mixed latency held waiting idle killed notify bytes').split(' ');
const SIDES = env('SIDES', 'idemq skip pgq graphile boss bullmq').split(' ');
const ROUNDS = number('ROUNDS', 3);
const SECS = number('SECS', 5);
const WARM = Math.min(1, SECS / 2); // seconds until a new process of Node.js has compiled what it runs
const SECS_MIXED = number('SECS_MIXED', 60);
const SECS_HELD = number('SECS_HELD', 90);
const SECS_IDLE = number('SECS_IDLE', 20);
const RATE = number('RATE', 300);
const ROOM = number('ROOM', 2000);
const WAITING = number('WAITING', 2000000);
const KEPT = number('KEPT', 20000);
const LOST = number('LOST', 20);
const PATIENCE = number('PATIENCE', 90);
const SYNCS = env('SYNCS', 'on off').split(' ');
const SYNC = env('SYNC', 'off');
const PACKAGES = { graphile: 'graphile-worker', boss: 'pg-boss', bullmq: 'bullmq' };
const PAYLOAD = env('BENCH_PAYLOAD', '{}');
const ONE_READER = new Set(['pgq']);

const started = Date.now();
const results = { settings: {}, versions: {}, measures: {} };
const sleep = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
const say = (text) => console.error(`bench-peers ${((Date.now() - started) / 60000).toFixed(1)} min: ${text}`);
const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : null;
};
const percentiles = (latencies) => {
  const sorted = latencies.map((us) => us / 1000).sort((a, b) => a - b);
  const at = (part) => sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * part) - 1)];
  return sorted.length ? { samples: sorted.length, p50: at(0.5), p99: at(0.99), p999: at(0.999), worst: at(1) } : null;
};

let admin;
const modules = {};

class Child {
  constructor(name, options) {
    this.its = { name, options };
    this.process = fork('./child.mjs', { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    this.process.on('message', (message) => this.hear(message));
    this.process.on('exit', () => this.hear({ error: `${name}: a process of its ended` }));
  }

  hear({ answer, error, ...news }) {
    if (news.finished !== undefined) this.onFinished?.(news.finished);
    else if (news.rescued !== undefined) this.onRescued?.(news.rescued);
    else if (error) this.reject?.(new Error(error));
    else this.resolve?.(answer);
  }

  call(call, rest = {}) {
    return new Promise((resolve, reject) => {
      Object.assign(this, { resolve, reject });
      this.process.send({ call, ...rest });
    });
  }

  async open(lanes = 0) {
    await this.call('open', { ...this.its, lanes });
    return this;
  }

  end() {
    this.reject = () => {};
    this.process.kill('SIGKILL');
    return new Promise((resolve) => { this.process.once('exit', resolve); });
  }
}

// Durability: the same words for both servers.
async function durable(sync) {
  await admin.query(`ALTER SYSTEM SET synchronous_commit = ${sync}`);
  await admin.query('SELECT pg_reload_conf()');
  while ((await admin.query('SHOW synchronous_commit')).rows[0].synchronous_commit !== sync) await sleep(20);
  if (modules.bullmq) await redis((its) => its.config('SET', 'appendfsync', sync === 'on' ? 'always' : 'everysec'));
}

let redisClient;
async function redis(ask) {
  if (!redisClient) {
    const { default: Redis } = await import('ioredis');
    redisClient = new Redis({ path: process.env.BENCH_REDIS });
  }
  return ask(redisClient);
}

const HZ = Number(execFileSync('getconf', ['CLK_TCK']));
const stat = (pid) => {
  try {
    return readFileSync(`/proc/${pid}/stat`, 'utf8').replace(/^.*\) /, '').split(' ');
  } catch {
    return null;
  }
};
// Seconds of processor time of a server: its own, its living children's and its dead ones'.
function processorTime(pid) {
  let ticks = 0;
  const own = stat(pid);
  for (const field of [11, 12, 13, 14]) ticks += Number(own[field]);
  for (const each of readdirSync('/proc')) {
    const its = /^\d+$/.test(each) ? stat(each) : null;
    if (its && its[1] === String(pid)) ticks += Number(its[11]) + Number(its[12]) + Number(its[13]) + Number(its[14]);
  }
  return ticks / HZ;
}

async function counters(name) {
  if (name === 'bullmq') {
    const info = await redis((its) => its.info());
    const pid = Number(/process_id:(\d+)/.exec(info)[1]);
    return { log: Number(/aof_current_size:(\d+)/.exec(info)?.[1] ?? 0), cpu: processorTime(pid) };
  }
  const { rows: [{ log }] } = await admin.query("SELECT pg_current_wal_insert_lsn() - '0/0' AS log");
  const pid = Number(readFileSync(`${process.env.BENCH_DATA}/postmaster.pid`, 'utf8').split('\n')[0]);
  return { log: Number(log), cpu: processorTime(pid) };
}

async function reset(name, fill = 0, batch = 100) {
  const Side = modules[name];
  await Side.reset(admin);
  for (let left = fill; left > 0; left -= 100000) {
    await Side.fill(admin, PAYLOAD, Math.min(left, 100000), batch);
  }
  if (name === 'bullmq') {
    await redis((its) => its.info()); // its log is whole
  } else {
    if (Side.tables.length > 0) await admin.query(`VACUUM ANALYZE ${Side.tables.join(', ')}`);
    await admin.query('CHECKPOINT');
  }
}

const record = (measure, row) => {
  (results.measures[measure] ??= []).push(row);
  writeFileSync(process.env.BENCH_RESULTS, JSON.stringify(results));
  const shown = Object.entries(row).map(([key, value]) => `${key} ${typeof value === 'number' ? Number(value.toPrecision(4))
    : typeof value === 'object' ? JSON.stringify(value, (_, v) => (typeof v === 'number' ? Number(v.toPrecision(4)) : v)) : value}`);
  say(`${measure}: ${shown.join(', ')}`);
};

const costs = (before, after, jobs, cpu) => ({
  log: (after.log - before.log) / jobs,
  server: (after.cpu - before.cpu) * 1e6 / jobs,
  client: cpu / jobs,
});

// pgbench with one of the scripts of make bench, for the sides that have one
async function pgbench(script, lanes) {
  const client = execFileSync(`${process.env.BENCH_BINDIR}/pgbench`, ['-h', process.env.BENCH_SOCKET, '-U', 'postgres', '-n',
    '-M', 'prepared', '-c', String(lanes), '-j', '2', '-T', String(SECS), '-f', `${process.env.BENCH_SCRIPTS}/${script}.sql`,
    '-D', `payload=${PAYLOAD}`, '-D', 'id=0', '-D', 'token=0', 'postgres'], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  return { jobs: Number(/actually processed: (\d+)/.exec(client)[1]), rate: Number(/tps = ([\d.]+)/.exec(client)[1]) };
}
const ENQUEUE_SCRIPTS = { idemq: { 1: 'enqueue_idemq', 100: 'hundred_idemq' }, skip: { 1: 'enqueue_skip', 100: 'hundred_skip' } };
const CYCLE_SCRIPTS = { idemq: { 1: 'cycle_idemq-next', 100: 'batch_idemq-next' }, skip: { 1: 'cycle_skip', 100: 'batch_skip' } };

// turns(variants, measure): each side and its variants, ROUNDS times in turn, in both durabilities
async function turns(measure) {
  for (const sync of SYNCS) {
    await durable(sync);
    for (let round = 1; round <= ROUNDS; round += 1) {
      for (const batch of [1, 100]) {
        for (const name of SIDES) await measure(name, batch, sync, round);
      }
    }
  }
}

const measures = {
  async enqueue() {
    await turns(async (name, batch, sync, round) => {
      await reset(name);
      const child = await new Child(name).open(8);
      const before = await counters(name);
      const { jobs, rate: done, cpu } = await child.call('produce', { lanes: 8, batch, seconds: SECS, warm: WARM });
      const after = await counters(name);
      await child.end();
      record('enqueue', { side: name, by: 'node', batch, sync, round, rate: done, ...costs(before, after, jobs, cpu) });
      const script = ENQUEUE_SCRIPTS[name]?.[batch];
      if (script) {
        await reset(name);
        const { rate } = await pgbench(script, 8);
        record('enqueue', { side: name, by: 'pgbench', batch, sync, round, rate: rate * batch });
      }
    });
  },

  async cycle() {
    await turns(async (name, batch, sync, round) => {
      if (ONE_READER.has(name) && batch === 1) return;
      const variants = [[name, {}, batch]];
      if (name === 'skip') variants.push(['skip-next', { through: true }, batch]);
      if (name === 'pgq') variants.push(['pgq-1000', {}, 1000]);
      const fill = (batch === 1 ? 15000 : 60000) * SECS;
      for (const [side, options, size] of variants) {
        let filled = name === 'bullmq' || name === 'boss' ? fill / 2 : fill;
        if (side === 'pgq-1000') filled = 5 * fill; // or the warm-up reads them all
        await reset(name, filled, size);
        const child = await new Child(name, options).open();
        const before = await counters(name);
        const { jobs, rate, cpu } = await child.call('work', { lanes: 8, batch, seconds: SECS, warm: WARM, until: SECS + 10, count: 0.9 * filled });
        const after = await counters(name);
        await child.end();
        record('cycle', { side, by: 'node', batch, sync, round, rate, ...costs(before, after, jobs, cpu) });
      }
      const script = CYCLE_SCRIPTS[name]?.[batch];
      if (script) {
        await reset(name, (batch === 1 ? 80000 : 400000) * SECS);
        const { rate } = await pgbench(script, 8);
        record('cycle', { side: name, by: 'pgbench', batch, sync, round, rate: rate * batch });
      }
    });
  },

  // as many as the workers can do, ROOM waiting at most
  async mixed(measure = 'mixed', seconds = SECS_MIXED, snapshot = false, rate = 0) {
    await durable(SYNC);
    const options = rate > 0 ? { notify: true } : {};
    for (const name of SIDES) {
      if (snapshot && name === 'bullmq') continue;
      await reset(name);
      await modules[name].setup(admin, options);
      let holder;
      if (snapshot) {
        [holder] = await connections(1);
        await holder.query('BEGIN ISOLATION LEVEL REPEATABLE READ');
        await holder.query('SELECT count(*) FROM pg_class');
      }
      const worker = await new Child(name, options).open();
      const producer = await new Child(name, options).open(4);
      worker.onFinished = (jobs) => producer.process.connected && producer.process.send({ call: 'finished', jobs });
      const before = await counters(name);
      // in throughput's runs they produce by tens, so that they are not what is measured
      const [did] = await Promise.all([
        worker.call('work', { lanes: 4, batch: 1, seconds, parts: snapshot ? 18 : 12, until: seconds + 10, warm: 2 }),
        producer.call('produce', { lanes: 4, batch: rate > 0 ? 1 : 10, seconds: seconds + 3, rate, room: rate > 0 ? 0 : ROOM }),
      ]);
      const after = await counters(name);
      await worker.end();
      await producer.end();
      if (holder) {
        await holder.query('COMMIT');
        await holder.end();
      }
      const parts = did.timeline.map((jobs) => jobs * did.timeline.length / seconds);
      const third = Math.max(1, Math.round(parts.length / 6));
      const mean = (list) => list.reduce((sum, value) => sum + value, 0) / list.length;
      record(measure, {
        side: name, sync: SYNC, seconds, rate: mean(parts), parts,
        last_to_first: mean(parts.slice(-third)) / mean(parts.slice(0, third)),
        latency: percentiles(did.latencies), ...costs(before, after, did.jobs, did.cpu),
      });
    }
  },

  async latency() {
    await measures.mixed('latency', SECS_MIXED, false, RATE);
    for (const name of SIDES) await modules[name].setup(admin, {});
  },

  async held() {
    await measures.mixed('held', SECS_HELD, true);
  },

  async waiting() {
    await durable(SYNC);
    for (const name of SIDES) {
      for (const waiting of [50000, WAITING]) {
        const batch = ONE_READER.has(name) ? 100 : 1;
        await reset(name, waiting);
        const child = await new Child(name).open();
        const before = await counters(name);
        const { jobs, rate, cpu } = await child.call('work', { lanes: 8, batch, seconds: SECS, warm: WARM, until: SECS + 20, count: 0.9 * waiting });
        const after = await counters(name);
        await child.end();
        record('waiting', { side: name, waiting, batch, rate, ...costs(before, after, jobs, cpu) });
      }
      await modules[name].reset(admin);
    }
  },

  // one idle worker, a job now and then
  async idle() {
    await durable(SYNC);
    for (const name of SIDES) {
      await reset(name);
      await modules[name].setup(admin, { notify: true });
      const worker = await new Child(name, { notify: true }).open();
      const producer = await new Child(name, { notify: true }).open(1);
      const work = worker.call('work', { lanes: 1, batch: 1, seconds: SECS_IDLE, until: SECS_IDLE + 10 });
      await sleep(2000);
      const [did] = await Promise.all([work, producer.call('produce', { lanes: 1, batch: 1, seconds: SECS_IDLE, rate: 10 })]);
      await worker.end();
      await producer.end();
      record('idle', { side: name, latency: percentiles(did.latencies.slice(1)) });
      await modules[name].setup(admin, {});
    }
  },

  // kill -9 of a worker that has a job; until it is in the hand of another, who waits
  async killed() {
    await durable(SYNC);
    const how = {
      idemq: [{ attach: true }, 'lease attached to the session'],
      skip: [{ notify: true, reaps: true }, 'lease of 30 s, checked once per second'],
      pgq: [{}, 'another reader asks for the batch as the same consumer'],
      graphile: [{}, 'lock valid for 4 hours'],
      boss: [{ polls: true, heartbeat: 10 }, 'heartbeat of 10 s (the minimum), checked once per second and polled twice per second'],
      bullmq: [{}, 'default lock of 30 s, checked every 30 s'],
    };
    for (const name of SIDES) {
      const [options, means] = how[name];
      if (name === 'graphile') {
        record('killed', { side: name, means, samples: 0, more_than: 4 * 3600 * 1000 });
        continue;
      }
      const found = [];
      for (let n = 0; n < (name === 'idemq' || name === 'pgq' ? LOST : 1); n += 1) {
        await reset(name);
        await modules[name].setup(admin, options);
        const producer = await new Child(name, options).open(1);
        const lost = await new Child(name, options).open();
        const hanging = lost.call('hang');
        await sleep(name === 'boss' ? 1500 : 300);
        await producer.call('produce', { lanes: 1, batch: 1, seconds: 0.001, rate: 0 });
        await hanging;
        const rescuer = await new Child(name, options).open();
        const rescued = new Promise((resolve) => { rescuer.onRescued = resolve; });
        // PgQ's second reader would be given the same batch at once: it asks when the first is gone
        if (name !== 'pgq') {
          await rescuer.call('rescue');
          await sleep(500);
        }
        const at = Number(process.hrtime.bigint() / 1000n);
        lost.end();
        if (name === 'pgq') await rescuer.call('rescue');
        const then = await Promise.race([rescued, sleep(PATIENCE * 1000)]);
        found.push(then === undefined ? null : (then - at) / 1000);
        await rescuer.end();
        await producer.end();
      }
      const here = found.filter((value) => value !== null);
      record('killed', here.length ? { side: name, means, samples: here.length, median: median(here), worst: Math.max(...here) }
        : { side: name, means, samples: 0, more_than: PATIENCE * 1000 });
      await modules[name].setup(admin, {});
    }
  },

  // 32 producers of single jobs, with and without a notification in each transaction
  async notify() {
    for (const sync of SYNCS) {
      await durable(sync);
      for (let round = 1; round <= ROUNDS; round += 1) {
        for (const name of SIDES.filter((side) => ['idemq', 'skip', 'graphile', 'boss'].includes(side))) {
          for (const notify of name === 'graphile' ? [true] : [false, true]) {
            await reset(name);
            if (name === 'idemq') {
              await admin.query(`ALTER SYSTEM SET idemq.notify = ${notify ? 'on' : 'off'}`);
              await admin.query('SELECT pg_reload_conf()');
            } else {
              await modules[name].setup(admin, { notify });
            }
            const [listener] = await connections(1);
            await listener.query('LISTEN bench; LISTEN idemq_bench; LISTEN "jobs:insert"');
            const child = await new Child(name, { notify }).open(32);
            const before = await counters(name);
            const { jobs, rate, cpu } = await child.call('produce', { lanes: 32, batch: 1, seconds: SECS, warm: WARM });
            const after = await counters(name);
            await child.end();
            await listener.end();
            record('notify', { side: name, notify, sync, round, rate, ...costs(before, after, jobs, cpu) });
          }
        }
      }
    }
    await admin.query('ALTER SYSTEM RESET idemq.notify');
    await admin.query('SELECT pg_reload_conf()');
    for (const name of SIDES) await modules[name].setup(admin, {});
  },

  // bytes of a waiting job, and of one that is done and kept as the side does by default
  async bytes() {
    await durable(SYNC);
    for (const name of SIDES) {
      const size = async () => {
        if (name === 'bullmq') return Number(/used_memory:(\d+)/.exec(await redis((its) => its.info()))[1]);
        if (name === 'pgq') {
          return Number((await admin.query(`SELECT sum(pg_total_relation_size(c.oid)) AS s FROM pg_class c
            WHERE relnamespace = 'pgq'::regnamespace AND relname LIKE 'event\\_%' AND relkind = 'r'`)).rows[0].s);
        }
        return Number((await admin.query('SELECT sum(pg_total_relation_size(t::regclass)) AS s FROM unnest($1::text[]) t',
          [modules[name].tables])).rows[0].s);
      };
      await reset(name);
      const empty = await size();
      await reset(name, KEPT);
      const waiting = await size();
      const child = await new Child(name).open();
      const { jobs } = await child.call('work', { lanes: 8, batch: ONE_READER.has(name) ? 100 : 1, seconds: 120, until: 130, count: KEPT });
      await sleep(1500);
      await child.end();
      record('bytes', { side: name, jobs, waiting: (waiting - empty) / KEPT, finished: (await size() - empty) / KEPT });
    }
  },
};

const version = (name) => JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8')).version;

async function main() {
  [admin] = await connections(1);
  for (const name of [...SIDES]) {
    const there = PACKAGES[name] ? existsSync(`node_modules/${PACKAGES[name]}`)
      : name !== 'pgq' || (await admin.query("SELECT FROM pg_available_extensions WHERE name = 'pgq'")).rowCount > 0;
    if (!there || (name === 'bullmq' && !process.env.BENCH_REDIS)) {
      SIDES.splice(SIDES.indexOf(name), 1);
      continue;
    }
    ({ default: modules[name] } = await import(`./sides/${name}.mjs`));
    await modules[name].setup(admin, {});
  }
  const { rows: [{ server_version }] } = await admin.query('SHOW server_version');
  results.versions = { PostgreSQL: server_version, 'Node.js': process.versions.node, pg: version('pg') };
  for (const name of SIDES) {
    if (PACKAGES[name]) results.versions[PACKAGES[name]] = version(PACKAGES[name]);
  }
  if (modules.pgq) {
    results.versions.PgQ = (await admin.query("SELECT extversion FROM pg_extension WHERE extname = 'pgq'")).rows[0].extversion;
  }
  if (modules.bullmq) results.versions.Redis = /redis_version:(\S+)/.exec(await redis((its) => its.info()))[1];
  const left = process.env.BENCH_LEFT_OUT;
  results.left_out = existsSync(left) ? readFileSync(left, 'utf8').trim().split('\n') : [];
  results.settings = { ROUNDS, SECS, SECS_MIXED, SECS_HELD, SECS_IDLE, RATE, ROOM, WAITING, KEPT, LOST, PATIENCE, SYNC,
    load: Number(env('BENCH_LOAD', '0')),
    commit: env('BENCH_COMMIT', ''), date: new Date().toISOString().slice(0, 10),
    machine: `${os.cpus().length} x ${os.cpus()[0].model}, Linux ${os.release()}, ${Math.round(os.totalmem() / 2 ** 30)} GB` };
  for (const measure of MEASURES) await measures[measure]();
  results.settings.minutes = Math.round((Date.now() - started) / 60000);
  writeFileSync(process.env.BENCH_RESULTS, JSON.stringify(results));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
