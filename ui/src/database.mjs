// The database connections, which use the PG* variables of the user who started the page.  Row-level
// security determines what the page shows.  (pg itself requests client_encoding UTF8.)
import pg from 'pg';

// Times are returned as text, with microseconds.  Ids are text anyway.  (Debian's pg does not export TypeOverrides.)
const asText = {
  getTypeParser: (type, format) => (type === pg.types.builtins.TIMESTAMPTZ ? String : pg.types.getTypeParser(type, format)),
};

// PGOPTIONS can override these settings.
const patience = { statement_timeout: '2s', lock_timeout: '3s' };
const settings = {
  search_path: 'pg_catalog',
  jit: 'off', // the statements of the pages are too short for compilation to pay off
  default_transaction_read_only: 'on',
  idle_in_transaction_session_timeout: '60s',
  // Formats of input and output, regardless of the settings of the role or the database.
  TimeZone: 'UTC',
  DateStyle: 'ISO,MDY',
  IntervalStyle: 'postgres', // the style that pg can read
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
      // Long enough for a live page to use the same connection for each refresh.
      idleTimeoutMillis: 30_000,
      types: asText,
      connectionTimeoutMillis: 5000,
      ...config,
      options: `${options(patience)} ${process.env.PGOPTIONS ?? ''} ${options(settings)}`,
    });
    // If an idle connection is lost, the next request opens a new one.
    this.pool.on('error', () => {});
  }

  /** The rows of one statement, in its own transaction.  An error contains the statement. */
  async query(text, values = []) {
    try {
      return (await this.pool.query(text, values)).rows;
    } catch (error) {
      throw Object.assign(error, { statement: text });
    }
  }

  /** The rows of a query that the user has requested, and that may take longer than the query of a page. */
  async patiently(text, values = []) {
    return this.transaction('BEGIN', async (query) => query(text, values));
  }

  async one(text, values = []) {
    return (await this.query(text, values))[0];
  }

  /** Runs an action in a read-write transaction.  actor: the user that idemq.audit records. */
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
