// pg-boss: send and insert; one by one by fetch and complete, since a worker of its own polls
// between single jobs; in hundreds by work() with batches and bursts.  With notify, its
// queue option of that name, its LISTEN and work().
import { PgBoss } from 'pg-boss';
import { settings } from '../postgres.mjs';

const boss = (options) => new PgBoss({ ...settings, schedule: false, ...options });

export default class Boss {
  constructor(options) {
    this.notify = Boolean(options.notify);
    this.polls = Boolean(options.polls); // work() all the same: it sends heartbeats
    this.stopped = false;
  }

  async open(lanes) {
    this.boss = boss({ max: lanes, supervise: false, useListenNotify: false });
    this.boss.on('error', (error) => console.error(error.message));
    await this.boss.start();
  }

  async put(_, jobs) {
    if (jobs.length === 1) {
      await this.boss.send('bench', jobs[0]);
    } else {
      await this.boss.insert('bench', jobs.map((data) => ({ data })));
    }
  }

  async work(lanes, batch, onJobs) {
    this.boss = boss({ max: lanes + 2, useListenNotify: this.notify, superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 });
    this.boss.on('error', (error) => console.error(error.message));
    this.boss.on('warning', () => {});
    await this.boss.start();
    if (batch === 1 && !this.notify && !this.polls) {
      this.loops = Array.from({ length: lanes }, () => this.loop(onJobs));
    } else {
      await this.boss.work('bench', {
        batchSize: Math.max(batch, 2), burstWhenBatchFull: true, localConcurrency: lanes, pollingIntervalSeconds: 0.5,
      }, async (jobs) => { await onJobs(jobs.map((job) => job.data)); });
    }
  }

  /** Runs jobs by a handler that waits for their signals. */
  async workUntilCancelled(lanes, handler) {
    this.boss = boss({ max: lanes + 2, useListenNotify: true, supervise: false });
    this.boss.on('error', (error) => console.error(error.message));
    await this.boss.start();
    await this.boss.work('bench', { localConcurrency: lanes, pollingIntervalSeconds: 0.5 }, ([job]) => handler(job));
  }

  putOne(data) {
    return this.boss.send('bench', data);
  }

  cancel(id) {
    return this.boss.cancel('bench', id);
  }

  async loop(onJobs) {
    while (!this.stopped) {
      const jobs = await this.boss.fetch('bench');
      if (jobs.length === 0) {
        await new Promise((resolve) => { setTimeout(resolve, 1); });
        continue;
      }
      await onJobs([jobs[0].data]);
      await this.boss.complete('bench', jobs[0].id, { ok: true });
    }
  }
}

Boss.setup = async (_, options) => {
  const its = boss({ supervise: false });
  await its.start();
  const queue = { notify: Boolean(options.notify), ...(options.heartbeat ? { heartbeatSeconds: options.heartbeat } : {}) };
  if (await its.getQueue('bench')) {
    await its.updateQueue('bench', queue);
  } else {
    await its.createQueue('bench', queue);
  }
  await its.stop({ graceful: false });
};
Boss.reset = async (client) => {
  await client.query('TRUNCATE pgboss.job CASCADE');
};
Boss.fill = async (_, payload, count) => {
  Boss.filler ??= await boss({ supervise: false, max: 1 }).start();
  const data = JSON.parse(payload);
  for (let left = count; left > 0; left -= 5000) {
    await Boss.filler.insert('bench', Array.from({ length: Math.min(left, 5000) }, () => ({ data })));
  }
};
Boss.tables = ['pgboss.job', 'pgboss.job_common'];
