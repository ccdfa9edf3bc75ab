// idemq through node-postgres, a connection for each lane: commit_and_claim, as in the
// README's worker loop; a worker without a job waits in idemq.wait.
import { connections, prepared } from '../postgres.mjs';

const RESULT = '{"ok": true}';

export default class Idemq {
  constructor(options) {
    this.attach = Boolean(options.attach);
    this.stopped = false;
  }

  async open(lanes) {
    this.lanes = await connections(lanes);
  }

  async put(lane, jobs) {
    const client = this.lanes[lane];
    if (jobs.length === 1) {
      await prepared(client, "SELECT id FROM idemq.enqueue('bench', $1)", [JSON.stringify(jobs[0])]);
    } else {
      await prepared(client, "SELECT id FROM idemq.enqueue_many('bench', $1::jsonb[])",
        [jobs.map((job) => JSON.stringify(job))]);
    }
  }

  async work(lanes, batch, onJobs) {
    await this.open(lanes);
    this.loops = this.lanes.map((client) => (batch === 1 ? this.one(client, onJobs) : this.many(client, batch, onJobs)));
  }

  async one(client, onJobs) {
    let job;
    while (!this.stopped) {
      const { rows } = job
        ? await prepared(client, 'SELECT id, token, payload FROM idemq.commit_and_claim($1, $2, $3, attach => $4)',
          [job.id, job.token, RESULT, this.attach])
        : await prepared(client, "SELECT id, token, payload FROM idemq.claim('bench', attach => $1)", [this.attach]);
      [job] = rows;
      if (job) {
        await onJobs([job.payload]);
      } else {
        await prepared(client, "CALL idemq.wait('bench', '1 s')", []);
      }
    }
  }

  async many(client, batch, onJobs) {
    let jobs = [];
    while (!this.stopped) {
      const { rows } = jobs.length > 0
        ? await prepared(client, `SELECT id, token, payload
            FROM idemq.commit_many_and_claim($1, $2, max_jobs => $3) WHERE outcome = 'claimed'`,
        [jobs.map((job) => job.id), jobs.map((job) => job.token), batch])
        : await prepared(client, "SELECT id, token, payload FROM idemq.claim('bench', $1)", [batch]);
      jobs = rows;
      if (jobs.length > 0) {
        await onJobs(jobs.map((job) => job.payload));
      } else {
        await prepared(client, "CALL idemq.wait('bench', '1 s')", []);
      }
    }
  }
}

Idemq.setup = async (client) => {
  await client.query('CREATE EXTENSION IF NOT EXISTS idemq');
  await client.query("SELECT idemq.create_queue('bench') WHERE NOT EXISTS (SELECT FROM idemq.queues WHERE name = 'bench')");
};
Idemq.reset = async (client) => {
  await client.query("TRUNCATE idemq.jobs; SELECT idemq.reap('bench')");
};
Idemq.fill = async (client, payload, count) => {
  await client.query("SELECT count(*) FROM idemq.enqueue_many('bench', array_fill($1::jsonb, ARRAY[$2::int]))", [payload, count]);
};
Idemq.tables = ['idemq.jobs'];
