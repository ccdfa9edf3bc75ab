// PgQ: insert_event, and one consumer that reads batches, each from one tick to the next.
// What its ticker daemon calls is called here, ten times a second.  There is no claim of
// one event: what it does one by one is left out.
import { connections, prepared } from '../postgres.mjs';

export default class PgQ {
  constructor() {
    this.stopped = false;
  }

  async open(lanes) {
    this.lanes = await connections(lanes);
  }

  async put(lane, jobs) {
    if (jobs.length === 1) {
      await prepared(this.lanes[lane], "SELECT pgq.insert_event('bench', 'job', $1)", [JSON.stringify(jobs[0])]);
    } else {
      await prepared(this.lanes[lane], "SELECT pgq.insert_event('bench', 'job', p) FROM unnest($1::text[]) p",
        [jobs.map((job) => JSON.stringify(job))]);
    }
  }

  // One reader, whatever the number of lanes: a consumer has one batch at a time.
  async work(_, __, onJobs) {
    await this.open(2);
    setInterval(() => prepared(this.lanes[1], "SELECT pgq.ticker('bench')", []), 100);
    this.loops = [this.loop(this.lanes[0], onJobs)];
  }

  async loop(client, onJobs) {
    while (!this.stopped) {
      const { rows: [{ id }] } = await prepared(client, "SELECT pgq.next_batch('bench', 'reader') AS id", []);
      if (id === null) {
        await new Promise((resolve) => { setTimeout(resolve, 10); });
        continue;
      }
      const { rows } = await prepared(client, 'SELECT ev_id, ev_data FROM pgq.get_batch_events($1)', [id]);
      if (rows.length > 0) await onJobs(rows.map((event) => JSON.parse(event.ev_data)));
      await prepared(client, 'SELECT pgq.finish_batch($1)', [id]);
    }
  }
}

PgQ.setup = async (client) => {
  await client.query('CREATE EXTENSION IF NOT EXISTS pgq');
  await client.query("SELECT pgq.create_queue('bench'), pgq.register_consumer('bench', 'reader')");
  await client.query("SELECT pgq.set_queue_config('bench', 'ticker_max_lag', '50 ms'), pgq.set_queue_config('bench', 'ticker_max_count', '1')");
};
PgQ.reset = async (client) => {
  await client.query("SELECT pgq.unregister_consumer('bench', 'reader'), pgq.drop_queue('bench')");
  await PgQ.setup(client);
};
// A tick for each batch.
PgQ.fill = async (client, payload, count, batch) => {
  await client.query(`CREATE OR REPLACE PROCEDURE bench.fill_pgq(payload text, ticks int, batch int) LANGUAGE plpgsql AS $$
    BEGIN
      FOR i IN 1..ticks LOOP
        PERFORM pgq.insert_event('bench', 'job', payload) FROM generate_series(1, batch);
        COMMIT;
        PERFORM pgq.force_tick('bench');
        PERFORM pgq.ticker('bench');
        COMMIT;
      END LOOP;
    END $$`);
  await client.query('CALL bench.fill_pgq($1, $2, $3)', [payload, Math.ceil(count / batch), batch]);
  const { rows } = await client.query(`SELECT c.oid::regclass AS its FROM pg_class c
    WHERE relnamespace = 'pgq'::regnamespace AND relname LIKE 'event\\_%' AND relkind = 'r'`);
  await client.query(`VACUUM ANALYZE ${rows.map((row) => row.its).join(', ')}, pgq.tick`);
};
PgQ.tables = [];
