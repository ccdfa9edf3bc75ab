// A list of jobs as CSV (RFC 4180).  Jobs are found and sent slice by slice, with the same privileges as the pages, so that a long list
// needs neither much memory nor one long statement.  The file ends early if the browser closes the connection.
import { Readable } from 'node:stream';
import { queue as queueByName } from './queries.mjs';
import { filterOf } from './jobs/doing.mjs';
import { rowsOf, tabs, walk } from './jobs/walk.mjs';
import { find } from './search/find.mjs';
import { parse } from './search/parse.mjs';

const SLICE = 500;
const columns = ['id', 'queue', 'status', 'kind', 'key', 'group_key', 'priority', 'attempt', 'max_attempts', 'worker', 'enqueued_at', 'ready_at', 'claimed_at', 'finished_at', 'last_error', 'payload'];

/**
 * A value in a row.  A spreadsheet runs a text that begins with one of these characters as a formula, even in quotes; an apostrophe
 * before it prevents this.
 */
export function cell(value) {
  if (value === null || value === undefined) return '';
  const text = String(value);
  const safe = typeof value === 'string' && /^\s*[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

const line = (values) => `${values.map(cell).join(',')}\r\n`;

/** The lines of a list.  next(cursor) returns {ids, next} from a cursor on. */
async function* linesOf(query, next) {
  yield line(columns);
  let cursor = null;
  do {
    const part = await next(cursor);
    cursor = part.next;
    for (const job of await rowsOf(query, part.ids, true)) yield line(columns.map((name) => (name === 'payload' && job.encrypted !== null ? 'encrypted' : job[name])));
  } while (cursor !== null);
}

/** Adds /queue/NAME/jobs.csv and /search.csv to the page's server. */
export function csvRoutes(app, { database }) {
  const query = (...statement) => database.query(...statement);
  const send = async (reply, name, next) => {
    const lines = linesOf(query, next);
    // The first slice is read before the answer begins, so that an error has its status.
    const [head, first] = [await lines.next(), await lines.next()];
    const rest = (async function* all() {
      yield head.value;
      if (first.done) return;
      yield first.value;
      yield* lines;
    }());
    return reply.type('text/csv; charset=utf-8').header('Content-Disposition', `attachment; filename="${name.replace(/[^\w.-]/g, '_')}.csv"`).send(Readable.from(rest));
  };

  app.get('/queue/:name/jobs.csv', async (request, reply) => {
    const [queue] = await query(queueByName, [request.params.name]);
    if (!queue) throw Object.assign(new Error(`No queue named "${request.params.name}" is visible to you.`), { statusCode: 404 });
    const tab = Object.hasOwn(tabs, request.query.tab ?? '') ? request.query.tab : 'all';
    return send(reply, `${queue.name}-${tab}`, (cursor) => walk(query, { queue: queue.queue_id, tab, filter: filterOf(request.query), cursor, want: SLICE }));
  });
  app.get('/search.csv', async (request, reply) => {
    const search = parse(typeof request.query.q === 'string' ? request.query.q.trim() : '');
    return send(reply, 'jobs', (cursor) => find(query, search, { cursor, want: SLICE }));
  });
}
