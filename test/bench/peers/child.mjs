// One process of producers or of workers, told by its parent what to do: a call is
// { call, ...arguments }, its answer { answer } or { error }.
//
// A job carries in t when its enqueue was called, in nanoseconds of CLOCK_MONOTONIC, which
// processes of one machine share.
import process from 'node:process';

const PAYLOAD = JSON.parse(process.env.BENCH_PAYLOAD);
const now = () => Number(process.hrtime.bigint() / 1000n); // microseconds
const sleep = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });

let side;
let finished = 0; // by the workers, as the parent hears of it

const calls = {
  async open({ name, options = {}, lanes = 0 }) {
    const { default: Side } = await import(`./sides/${name}.mjs`);
    side = new Side(options);
    if (lanes > 0) await side.open(lanes);
  },

  // As fast as it goes; with rate, so many jobs a second, at random times; with room, so
  // that no more than that wait.
  async produce({ lanes, batch = 1, seconds, rate = 0, room = 0, warm = 0 }) {
    const began = now();
    const end = began + (seconds + warm) * 1e6;
    const cpu = process.cpuUsage();
    let sent = 0;
    let counted = 0;
    const lane = async (n) => {
      let next = began;
      while (now() < end) {
        if (rate > 0) {
          next += -Math.log(1 - Math.random()) * (1e6 * lanes) / rate;
          if (next > now()) await sleep((next - now()) / 1000);
        }
        while (room > 0 && sent - finished > room && now() < end) await sleep(1);
        // a job that is late for its time waits since then
        const t = rate > 0 ? next : now();
        await side.put(n, Array.from({ length: batch }, () => ({ ...PAYLOAD, t })));
        sent += batch;
        if (now() > began + warm * 1e6) counted += batch;
      }
    };
    await Promise.all(Array.from({ length: lanes }, (_, n) => lane(n)));
    const { user, system } = process.cpuUsage(cpu);
    return { jobs: sent, rate: counted * 1e6 / (now() - began - warm * 1e6), cpu: user + system };
  },

  // For so many seconds after warm seconds from the first job on, or until count jobs are done.
  async work({ lanes, batch = 1, seconds, count = Infinity, parts = 0, until, warm = 0 }) {
    const latencies = [];
    const timeline = Array(Math.max(parts, 1)).fill(0);
    const cpu = process.cpuUsage();
    let start = 0;
    let last = 0;
    let jobs = 0;
    let counted = 0;
    let over;
    const done = new Promise((resolve) => { over = resolve; });
    await side.work(lanes, batch, (payloads) => {
      last = now();
      if (start === 0) {
        start = last + warm * 1e6;
        setTimeout(over, (seconds + warm) * 1000);
      }
      jobs += payloads.length;
      if (jobs >= count) over();
      if (last <= start) return;
      counted += payloads.length;
      const part = Math.floor((last - start) / 1e6 / seconds * timeline.length);
      if (part < timeline.length) timeline[part] += payloads.length;
      for (const { t } of payloads) {
        if (t) latencies.push(last - t);
      }
    });
    const tell = setInterval(() => process.send({ finished: jobs }), 20);
    if (until) setTimeout(over, until * 1000);
    await done;
    clearInterval(tell);
    const { user, system } = process.cpuUsage(cpu);
    return { jobs, rate: counted > 0 ? counted * 1e6 / (last - start) : 0, timeline, latencies, cpu: user + system };
  },

  // Takes a job, says so, and never ends it.
  async hang({ lanes = 1 }) {
    return new Promise((resolve, reject) => {
      side.work(lanes, 1, () => { resolve({ at: now() }); return new Promise(() => {}); }).catch(reject);
    });
  },

  // Waits until a job is in its hand.
  async rescue({ lanes = 1 }) {
    await side.work(lanes, 1, () => { process.send({ rescued: now() }); });
    return {};
  },
};

process.on('message', async ({ call, ...rest }) => {
  if (call === 'finished') {
    finished = rest.jobs;
    return;
  }
  try {
    process.send({ answer: (await calls[call](rest)) ?? {} });
  } catch (error) {
    process.send({ error: error.stack ?? String(error) });
  }
});
process.on('disconnect', () => process.exit(0));
process.on('unhandledRejection', (error) => {
  process.send?.({ error: error?.stack ?? String(error) });
});
