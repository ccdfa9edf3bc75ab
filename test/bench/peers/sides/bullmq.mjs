// BullMQ on Redis, append-only file: add and addBulk through one connection, as ioredis
// puts the lanes' commands together; a Worker of as many jobs at a time.  Batches of
// jobs for one call of the handler are not in the free edition: for hundreds it has 100
// jobs at a time.
import { Queue, Worker } from 'bullmq';
import Redis from 'ioredis';

export const connection = { path: process.env.BENCH_REDIS, maxRetriesPerRequest: null };

export default class BullMQ {
  async open() {
    this.queue = new Queue('bench', { connection });
    await this.queue.waitUntilReady();
  }

  async put(_, jobs) {
    if (jobs.length === 1) {
      await this.queue.add('job', jobs[0]);
    } else {
      await this.queue.addBulk(jobs.map((data) => ({ name: 'job', data })));
    }
  }

  async work(lanes, batch, onJobs) {
    this.worker = new Worker('bench', async (job) => {
      await onJobs([job.data]);
      return { ok: true };
    }, { connection, concurrency: batch === 1 ? lanes : batch });
    this.worker.on('error', (error) => console.error(error.message));
    await this.worker.waitUntilReady();
  }
}

BullMQ.setup = async () => {};
BullMQ.reset = async () => {
  const redis = new Redis({ path: process.env.BENCH_REDIS });
  await redis.flushall();
  await redis.quit();
};
BullMQ.fill = async (_, payload, count) => {
  const queue = new Queue('bench', { connection });
  const data = JSON.parse(payload);
  for (let left = count; left > 0; left -= 2000) {
    await queue.addBulk(Array.from({ length: Math.min(left, 2000) }, () => ({ name: 'job', data })));
  }
  await queue.close();
};
