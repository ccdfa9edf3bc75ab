// A message with several statements and one Sync, so that one write and one answer are enough for all of them.
//
// pg accepts it like a cursor (a Submittable).  Answers are read by position, as text, without a Describe.
// On a session that belongs to the worker, statements have names, so that the server parses and plans each once.

/** @typedef {{ name: string, text: string, values?: unknown[] }} Step */
/** @typedef {{ rows: (string | null)[][][], tags: string[], error?: any }} Answer rows and tags: of each completed step; error: the error that ended the message */

export class Pipeline {
  #session;
  #steps;
  /** Names whose Parse was sent but not answered. @type {string[]} */
  #parsing = [];
  /** @type {(string | null)[][][]} */
  #rows = [[]];
  /** @type {string[]} */
  #tags = [];
  /** @type {(answer: Answer) => void} */
  #end = () => {};
  /** Callback of pg, if queries have a time limit. @type {((error?: unknown) => void) | undefined} */
  callback;

  /** @param {import('./connection.js').Session} session @param {Step[]} steps */
  constructor(session, steps) {
    this.#session = session;
    this.#steps = steps;
    /** @type {Promise<Answer>} */
    this.answer = new Promise((resolve) => (this.#end = resolve));
  }

  /** @param {any} connection pg's */
  submit(connection) {
    const { prepared } = this.#session;
    this.#session.message = this;
    // One write instead of a dozen costs half as much.
    /** @type {Buffer[]} */
    const parts = [];
    const stream = { writable: true, write: (/** @type {Buffer} */ part) => parts.push(part) };
    const collected = Object.create(connection, { stream: { value: stream } });
    for (const { name, text, values = [] } of this.#steps) {
      if (!prepared?.has(name) && !this.#parsing.includes(name)) {
        collected.parse({ name: prepared ? name : '', text, types: [] });
        if (prepared) this.#parsing.push(name);
      }
      collected.bind({ portal: '', statement: prepared ? name : '', binary: false, values: values.map(asText) });
      collected.execute({});
    }
    collected.sync();
    if (connection.stream.writable) connection.stream.write(Buffer.concat(parts));
  }

  /** The server has parsed a statement, even if executing it fails. */
  parsed() {
    const name = this.#parsing.shift();
    if (name !== undefined) this.#session.prepared?.add(name);
  }

  /** @param {{ fields: (string | null)[] }} message */
  handleDataRow({ fields }) {
    this.#rows[this.#tags.length].push(fields);
  }

  /** @param {{ text: string }} message */
  handleCommandComplete({ text }) {
    this.#tags.push(text);
    this.#rows.push([]);
  }

  /** @param {unknown} error */
  handleError(error) {
    this.#done(error);
  }

  handleReadyForQuery() {
    this.#done();
  }

  /** @param {unknown} [error] */
  #done(error) {
    if (this.#session.message === this) this.#session.message = undefined;
    this.#end({ rows: this.#rows, tags: this.#tags, error });
    this.callback?.(error);
    this.callback = undefined;
  }

  handleRowDescription() {}
  handlePortalSuspended() {}
  handleEmptyQuery() {}
}

/** @param {unknown} value */
function asText(value) {
  if (value === null || value === undefined) return null;
  return Array.isArray(value) ? arrayText(value) : `${value}`;
}

/** An array as text that PostgreSQL reads. @param {(string | null)[]} values */
export function arrayText(values) {
  return `{${values.map((value) => (value === null ? 'NULL' : `"${value.replace(/[\\"]/g, '\\$&')}"`)).join(',')}}`;
}
