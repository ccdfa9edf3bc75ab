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
const TIMINGS = ['wait', 'run'];

/** What became of one queue between two readings. */
function point(at, seconds, [before, after], [was, is]) {
  const made = { at };
  for (const name of COUNTERS) {
    const difference = Number(after[name]) - Number(before[name]);
    // A restart begins anew.
    made[name.replace('_total', '')] = difference >= 0 ? difference / seconds : null;
  }
  for (const timing of TIMINGS) {
    const [old, now] = [was?.[timing], is?.[timing]];
    made[timing] = old && now ? quantile(now.map(([le, jobs], n) => [le, jobs - (old[n]?.[1] ?? 0)]), 0.99) : null;
  }
  return made;
}

export class Sampler {
  constructor(database) {
    this.database = database;
    // Of the readings the last alone is kept, and of each queue the points made of them: histograms
    // of thousands of queues sixty times over are more than a process has memory for.
    this.reading = null;
    this.points = new Map();
    this.reads = null;
    this.asked = 0;
    this.timer = null;
  }

  async ask() {
    const queues = await this.database.query(queries.overview);
    const timings = await this.database.query(queries.timings).catch(() => []);
    const histograms = new Map();
    for (const { queue_id: id, timing, le, jobs } of timings) {
      if (!histograms.has(id)) histograms.set(id, {});
      (histograms.get(id)[timing] ??= []).push([le, Number(jobs)]);
    }
    return { at: Date.now(), queues, histograms, byId: new Map(queues.map((queue) => [queue.queue_id, queue])) };
  }

  add(reading) {
    const before = this.reading;
    const points = new Map();
    for (const { queue_id: id } of before ? reading.queues : []) {
      if (!before.byId.has(id)) continue;
      const kept = (this.points.get(id) ?? []).filter(({ at }) => reading.at - at < KEPT * EVERY).slice(1 - KEPT);
      kept.push(point(reading.at, Math.max(reading.at - before.at, 1) / 1000, [before.byId.get(id), reading.byId.get(id)],
        [before.histograms.get(id), reading.histograms.get(id)]));
      points.set(id, kept);
    }
    this.reading = reading;
    this.points = points;
  }

  /** Reads; who comes meanwhile, of several pages or the timer, waits for the same. */
  read() {
    this.reads ??= this.ask().then((reading) => this.add(reading)).finally(() => { this.reads = null; });
    return this.reads;
  }

  /** The last reading, made if there is none that is new enough; from now on they go on. */
  async last() {
    this.asked = Date.now();
    if (this.reading && Date.now() - this.reading.at >= KEPT * EVERY) this.reading = null;
    if (!this.reading || Date.now() - this.reading.at > EVERY * 2) await this.read();
    this.timer ??= setInterval(() => this.tick(), EVERY).unref();
    return this.reading;
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
    return this.points.get(queueId) ?? [];
  }
}
