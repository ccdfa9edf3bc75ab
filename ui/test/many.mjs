// What the sampler keeps of 2,000 queues for two minutes has room in a small process, and each
// queue's points come out: run with node --max-old-space-size=160.
import { Sampler } from '../src/sampler.mjs';
import { timings } from '../src/queries.mjs';

const QUEUES = 2000;
const bounds = Array.from({ length: 27 }, (_, i) => (i === 26 ? Infinity : 2 ** (i + 10) / 1e6));
let round = 0;
const database = {
  async query(statement) {
    const ids = Array.from({ length: QUEUES }, (_, id) => id);
    if (statement !== timings) {
      return ids.map((id) => ({ queue_id: id, queue: `queue ${id}`, enqueued_total: String(round * id), committed_total: String(round),
        failed_total: '0' }));
    }
    round += 1;
    return ids.flatMap((id) => ['run', 'wait'].flatMap((timing) => bounds.map((le, i) => (
      { queue_id: id, timing, le, jobs: String(i < 10 ? 0 : round * 100) }))));
  },
};

const now = Date.now();
let clock = now;
Date.now = () => clock;
const sampler = new Sampler(database);
for (let i = 0; i < 70; i += 1) {
  await Promise.all([sampler.read(), sampler.read()]);
  clock += 2000;
}
const series = sampler.series(7);
const { enqueued, committed, wait } = series.at(-1);
// 100 jobs that waited for 0.52 to 1.05 s, between the bounds of buckets 9 and 10.
const well = round === 70 && series.length === 60 && enqueued === 3.5 && committed === 0.5 && wait > 1.04 && wait < 1.05
  && sampler.series(QUEUES + 1).length === 0;
process.stdout.write(`${well ? 'ok' : 'not ok'} - two minutes of 2,000 queues have room, and make points\n`);
if (!well) process.stderr.write(JSON.stringify({ round, points: series.length, last: series.at(-1) }));
process.exit(0);
