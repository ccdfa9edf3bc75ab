// JSON for programs: the data of the pages, with the names used in SQL.  GET only, with the same privileges as the pages.
import * as jobQueries from './jobs/queries.mjs';
import * as queries from './queries.mjs';

const wrong = (statusCode, message) => Object.assign(new Error(message), { statusCode });

/** Adds /healthz and /api/1 to the page's server. */
export function apiRoutes(app, { database, all = [] }) {
  const json = (reply, value) => reply.header('Cache-Control', 'no-store').type('application/json; charset=utf-8').send(JSON.stringify(value));
  const texts = ['queue', 'error', 'sqlstate', 'fingerprint', 'example_id'];
  const numbers = ({ queue_id: _, may_administer: __, ...row }) => Object.fromEntries(Object.entries(row)
    .map(([name, value]) => [name, !texts.includes(name) && typeof value === 'string' && /^\d+$/.test(value) ? Number(value) : value]));

  // For a load balancer: whether the page can reach its database.
  app.get('/healthz', async (request, reply) => {
    // With several databases: the first one that cannot be reached is named.
    for (const other of request.query.all === '1' ? all : [{ database }])
      await other.database.one('SELECT 1 AS one').catch((error) => { throw other.name === undefined ? error : Object.assign(error, { message: `database ${other.name}: ${error.message}` }); });
    return json(reply, { status: 'ok' });
  });
  app.get('/api/1/queues', async (request, reply) => json(reply, (await database.query(queries.overview)).map((row) => numbers(row))));
  app.get('/api/1/errors', async (request, reply) => json(reply, (await database.query(queries.errors, [request.query.queue ?? null])).map((row) => numbers(row))));
  app.get('/api/1/jobs/:id', async (request, reply) => {
    const { id } = request.params;
    const job = /^[0-9]{1,18}$/.test(id) ? await database.one(jobQueries.job, [id]) : null;
    if (!job) throw wrong(404, `No job with the number ${id} is visible to you.`);
    const { queue_id: _, ...shown } = job;
    return json(reply, shown);
  });
}
