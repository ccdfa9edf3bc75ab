// The queue that applications write by hand: FOR UPDATE SKIP LOCKED over a partial index of
// what waits (bench.skip of tables.sql), through node-postgres.  With notify, enqueues
// send NOTIFY and idle workers LISTEN; each looks once a second in any case.  Somebody
// looks once a second for jobs whose deadline is over.  With through, a job is completed
// and the next is claimed by one statement.
import { connections, prepared } from '../postgres.mjs';

const INSERT = `INSERT INTO bench.skip (queue_id, enqueued_at, priority, max_attempts, status, run_at, payload)
  SELECT 1, now(), 4, 20, 'pending', now(), p FROM unnest($1::jsonb[]) p RETURNING id`;
const INSERT_ONE = `INSERT INTO bench.skip (queue_id, enqueued_at, priority, max_attempts, status, run_at, payload)
  VALUES (1, now(), 4, 20, 'pending', now(), $1) RETURNING id`;
const CLAIM = `UPDATE bench.skip SET status = 'running', attempt = attempt + 1, claimed_at = now(),
    deadline = now() + interval '30 s'
  WHERE id = ANY (ARRAY(SELECT id FROM bench.skip WHERE queue_id = 1 AND status = 'pending' AND run_at <= now()
    ORDER BY priority, run_at, id LIMIT $1 FOR UPDATE SKIP LOCKED))
  RETURNING id, payload`;
const CLAIM_ONE = `UPDATE bench.skip SET status = 'running', attempt = attempt + 1, claimed_at = now(),
    deadline = now() + interval '30 s'
  WHERE id = (SELECT id FROM bench.skip WHERE queue_id = 1 AND status = 'pending' AND run_at <= now()
    ORDER BY priority, run_at, id LIMIT 1 FOR UPDATE SKIP LOCKED)
  RETURNING id, payload`;
const COMPLETE = `UPDATE bench.skip SET status = 'completed', finished_at = now(), result = '{"ok": true}'
  WHERE id = ANY ($1::bigint[]) AND status = 'running'`;
const COMPLETE_ONE = `UPDATE bench.skip SET status = 'completed', finished_at = now(), result = '{"ok": true}'
  WHERE id = $1 AND status = 'running'`;
const REAP = `UPDATE bench.skip SET status = 'pending' WHERE status = 'running' AND deadline < now()`;

export default class Skip {
  constructor(options) {
    this.notify = Boolean(options.notify);
    this.through = Boolean(options.through);
    this.reaps = Boolean(options.reaps);
    this.stopped = false;
    this.waiters = [];
  }

  async open(lanes) {
    this.lanes = await connections(lanes);
  }

  async put(lane, jobs) {
    const insert = jobs.length === 1 ? INSERT_ONE : INSERT;
    const text = this.notify ? `WITH job AS (${insert}) SELECT id, pg_notify('bench', '') FROM job` : insert;
    const payloads = jobs.map((job) => JSON.stringify(job));
    await prepared(this.lanes[lane], text, [jobs.length === 1 ? payloads[0] : payloads]);
  }

  async work(lanes, batch, onJobs) {
    await this.open(lanes);
    if (this.notify) {
      [this.listener] = await connections(1);
      this.listener.on('notification', () => this.wake());
      await this.listener.query('LISTEN bench');
    }
    if (this.reaps) {
      const [reaper] = await connections(1);
      setInterval(() => reaper.query(REAP).then(({ rowCount }) => rowCount > 0 && this.wake()), 1000);
    }
    this.loops = this.lanes.map((client) => this.loop(client, batch, onJobs));
  }

  wake() {
    this.heard = true;
    this.waiters.splice(0).forEach((wake) => wake());
  }

  async sleep() {
    if (this.notify && !this.heard) {
      await new Promise((resolve) => {
        this.waiters.push(resolve);
        setTimeout(resolve, 1000);
      });
    } else if (!this.notify) {
      await new Promise((resolve) => { setTimeout(resolve, 1); });
    }
  }

  async loop(client, batch, onJobs) {
    let done = [];
    while (!this.stopped) {
      this.heard = false;
      let rows;
      try {
        if (this.through && done.length > 0) {
          const text = `WITH done AS (${batch === 1 ? COMPLETE_ONE : COMPLETE})
            ${batch === 1 ? CLAIM_ONE : CLAIM.replace('$1', '$2')}`;
          ({ rows } = await prepared(client, text, batch === 1 ? [done[0].id] : [done.map((job) => job.id), batch]));
        } else {
          ({ rows } = await prepared(client, batch === 1 ? CLAIM_ONE : CLAIM, batch === 1 ? [] : [batch]));
        }
      } catch (error) {
        // A claim locks a row that another has claimed since its snapshot, sees it is taken and keeps the
        // lock; two that complete what the other has locked so wait for each other.  One goes again.
        if (error.code !== '40P01') throw error;
        continue;
      }
      done = rows;
      if (rows.length === 0) {
        await this.sleep();
        continue;
      }
      await onJobs(rows.map((job) => job.payload));
      if (!this.through) {
        await prepared(client, batch === 1 ? COMPLETE_ONE : COMPLETE,
          [batch === 1 ? rows[0].id : rows.map((job) => job.id)]);
      }
    }
  }
}

Skip.setup = async () => {}; // tables.sql
Skip.reset = async (client) => {
  await client.query('TRUNCATE bench.skip');
};
Skip.fill = async (client, payload, count) => {
  await client.query(`INSERT INTO bench.skip (queue_id, enqueued_at, priority, max_attempts, status, run_at, payload)
    SELECT 1, now(), 4, 20, 'pending', now(), $1 FROM generate_series(1, $2)`, [payload, count]);
};
Skip.tables = ['bench.skip'];
