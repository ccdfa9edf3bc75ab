// The connection: that of whoever starts the page, by the PG* settings.  Row-level security
// decides what is shown.  (pg asks for client_encoding UTF8 itself.)
import pg from 'pg';

// Times with their microseconds, as text; ids are text already.  (Debian's pg does not export TypeOverrides.)
const asText = {
  getTypeParser: (type, format) => (type === pg.types.builtins.TIMESTAMPTZ ? String : pg.types.getTypeParser(type, format)),
};

// PGOPTIONS may say otherwise.
const patience = { statement_timeout: '2s', lock_timeout: '3s' };
const settings = {
  search_path: 'pg_catalog',
  jit: 'off', // no statement of a page is worth compiling
  default_transaction_read_only: 'on',
  idle_in_transaction_session_timeout: '60s',
  // What the server prints and reads, whatever is set for the role or the database.
  TimeZone: 'UTC',
  DateStyle: 'ISO,MDY',
  IntervalStyle: 'postgres', // the one that pg reads
  extra_float_digits: '1',
  bytea_output: 'hex',
  standard_conforming_strings: 'on',
  array_nulls: 'on',
  quote_all_identifiers: 'off',
};

export class Database {
  constructor(config = {}) {
    const options = (values) => Object.entries(values).map(([name, value]) => `-c ${name}=${value}`).join(' ');
    this.pool = new pg.Pool({
      application_name: 'idemq-ui',
      max: 4,
      // A page that refreshes itself finds its connection again.
      idleTimeoutMillis: 30_000,
      types: asText,
      connectionTimeoutMillis: 5000,
      ...config,
      options: `${options(patience)} ${process.env.PGOPTIONS ?? ''} ${options(settings)}`,
    });
    // A connection that dies idle is made anew by the next request.
    this.pool.on('error', () => {});
  }

  /** Rows of a query; one statement, one transaction.  An error knows its statement. */
  async query(text, values = []) {
    try {
      return (await this.pool.query(text, values)).rows;
    } catch (error) {
      throw Object.assign(error, { statement: text });
    }
  }

  /** Rows of a query that somebody asked for, and that may take longer than a page's. */
  async patiently(text, values = []) {
    return this.transaction('BEGIN', async (query) => query(text, values));
  }

  async one(text, values = []) {
    return (await this.query(text, values))[0];
  }

  /** Runs an action in a transaction that may write; actor: for whom, as idemq.audit says it. */
  async write(run, actor = null) {
    return this.transaction('BEGIN READ WRITE', async (query) => {
      if (actor !== null) await query("SELECT set_config('idemq.actor', $1, true)", [actor]);
      return run(query);
    });
  }

  async transaction(begin, run) {
    const client = await this.pool.connect();
    try {
      await client.query(begin);
      await client.query("SET LOCAL statement_timeout = '15s'");
      const result = await run(async (text, values = []) => (await client.query(text, values)).rows);
      await client.query('COMMIT');
      client.release();
      return result;
    } catch (error) {
      await client.query('ROLLBACK').then(() => client.release(), (lost) => client.release(lost));
      throw error;
    }
  }

  close() {
    return this.pool.end();
  }
}
