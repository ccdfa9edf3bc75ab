// graphile-worker: addJob and addJobs; run() with its default of no local queue for one by
// one, and for hundreds with the local queue and the batched completion that its
// documentation advises for throughput.  It deletes a job that is done.
import { makeWorkerUtils, run, runMigrations, Logger } from 'graphile-worker';
import { pool } from '../postgres.mjs';

const logger = new Logger(() => () => {});

export default class Graphile {
  async open(lanes) {
    this.utils = await makeWorkerUtils({ pgPool: pool(lanes), logger });
  }

  async put(_, jobs) {
    if (jobs.length === 1) {
      await this.utils.addJob('bench', jobs[0]);
    } else {
      await this.utils.addJobs(jobs.map((payload) => ({ identifier: 'bench', payload })));
    }
  }

  async work(lanes, batch, onJobs) {
    const concurrentJobs = batch === 1 ? lanes : batch;
    const worker = batch === 1 ? {} : { localQueue: { size: 5 * batch }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
    await run({
      pgPool: pool(Math.max(10, lanes + 2)),
      logger,
      noHandleSignals: true,
      taskList: { bench: async (payload, helpers) => { await onJobs([payload], helpers); } },
      preset: { worker: { ...worker, concurrentJobs } },
    });
  }
}

Graphile.setup = async () => {
  const pgPool = pool(2);
  await runMigrations({ pgPool, logger });
  await pgPool.end();
};
Graphile.reset = async (client) => {
  await client.query('TRUNCATE graphile_worker._private_jobs');
};
Graphile.fill = async (client, payload, count) => {
  await client.query(`SELECT count(*) FROM graphile_worker.add_jobs(array_fill(
    ROW('bench', $1::json, NULL, NULL, NULL, NULL, NULL, NULL)::graphile_worker.job_spec, ARRAY[$2::int]))`,
  [payload, count]);
};
Graphile.tables = ['graphile_worker._private_jobs'];
