// Rates and latencies of the last two minutes: counters are read while somebody looks, and two
// readings make a point.  Nothing is asked of the server when no page is open.
import * as queries from './queries.mjs';

const EVERY = 2000;
const KEPT = 60;
/** No page has asked for so long: nobody looks. */
const IDLE = 15000;

/** The time within which a share of the jobs were, of a cumulative histogram [[le, jobs], ...]. */
export function quantile(buckets, share) {
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const wanted = total * share;
  let below = 0;
  let from = 0;
  for (const [le, jobs] of buckets) {
    if (jobs >= wanted) return Number.isFinite(le) ? from + ((le - from) * (wanted - below)) / (jobs - below) : from;
    below = jobs;
    from = le;
  }
  return from;
}

const COUNTERS = ['enqueued_total', 'committed_total', 'failed_total'];

export class Sampler {
  constructor(database) {
    this.database = database;
    this.readings = [];
    this.asked = 0;
    this.timer = null;
  }

  async read() {
    const queues = await this.database.query(queries.overview);
    const timings = await this.database.query(queries.timings).catch(() => []);
    const histograms = new Map();
    for (const { queue_id: id, timing, le, jobs } of timings) {
      const name = `${id} ${timing}`;
      if (!histograms.has(name)) histograms.set(name, []);
      histograms.get(name).push([le, Number(jobs)]);
    }
    this.readings.push({ at: Date.now(), queues, histograms });
    if (this.readings.length > KEPT) this.readings.shift();
  }

  /** The last reading, made if there is none that is new enough; from now on they go on. */
  async last() {
    this.asked = Date.now();
    if (!this.readings.length || Date.now() - this.readings.at(-1).at > EVERY * 2) {
      this.readings = this.readings.filter((reading) => Date.now() - reading.at < KEPT * EVERY);
      await this.read();
    }
    this.timer ??= setInterval(() => this.tick(), EVERY).unref();
    return this.readings.at(-1);
  }

  async tick() {
    if (Date.now() - this.asked > IDLE) {
      clearInterval(this.timer);
      this.timer = null;
      return;
    }
    // What fails is said by the page that asks next.
    await this.read().catch(() => {});
  }

  /** Of one queue: [{at, enqueued, committed, failed (a second), wait, run (p99, seconds)}], a point for two readings. */
  series(queueId) {
    const points = [];
    for (let i = 1; i < this.readings.length; i += 1) {
      const [before, after] = [this.readings[i - 1], this.readings[i]];
      const [from, to] = [before, after].map((reading) => reading.queues.find((queue) => queue.queue_id === queueId));
      if (!from || !to) continue;
      const seconds = (after.at - before.at) / 1000;
      const point = { at: after.at };
      for (const name of COUNTERS) {
        const difference = Number(to[name]) - Number(from[name]);
        // A restart begins anew.
        point[name.replace('_total', '')] = difference >= 0 ? difference / seconds : null;
      }
      for (const timing of ['wait', 'run']) {
        const [old, now] = [before, after].map((reading) => reading.histograms.get(`${queueId} ${timing}`));
        point[timing] = old && now ? quantile(now.map(([le, jobs], n) => [le, jobs - (old[n]?.[1] ?? 0)]), 0.99) : null;
      }
      points.push(point);
    }
    return points;
  }
}
