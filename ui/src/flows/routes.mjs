// The pages of flows.
import { readFileSync } from 'node:fs';
import * as queries from '../queries.mjs';
import { flowPage } from '../pages/flow.mjs';
import { flowsPage } from '../pages/flows.mjs';
import { drawn } from './drawn.mjs';
import { newestFlows } from './list.mjs';
import { lostJobs } from './model.mjs';

/** Seconds between refreshes of a flow's page, of the page of a flow with many jobs, and of the list. */
const [EVERY, SELDOM] = [2, 10];
const MANY = 500;

const wrong = (statusCode, message) => Object.assign(new Error(message), { statusCode });
const idOf = (text) => {
  if (!/^[0-9]{1,18}$/.test(text)) throw wrong(404, 'There is no job with that number.');
  return text;
};

/** Adds these routes to the page's server.  messageOf: the message for an error. */
export function flowRoutes(app, { database, writes, contextOf, send, messageOf }) {
  const query = (...statement) => database.query(...statement);
  const script = readFileSync(new URL('../../static/flow.js', import.meta.url));
  app.get('/static/flow.js', (request, reply) => reply.type('text/javascript; charset=utf-8').header('Cache-Control', 'max-age=60').send(script));

  app.get('/flow/:id', async (request, reply) => {
    const id = idOf(request.params.id);
    const [flow] = await query(queries.flow, [id]);
    if (!flow) throw wrong(404, `No job with the number ${id} is visible to you. The job never existed, it was deleted after its retention period, or you have no privilege on its queue.`);
    // Start at the root job, so that only the end of a large flow is omitted.
    const members = await query(queries.flowJobs, [flow.roots?.[0] ?? id]).catch((error) => messageOf(error));
    const read = Array.isArray(members) && members.length > 0;
    const lost = read ? lostJobs(members) : { dead: [], cancelled: [] };
    const may = {};
    if (writes) {
      // If a flow is too large for this query to finish in time, it can be cancelled only through SQL.
      may.cancel = Number(flow.jobs) > Number(flow.done) && (await query(queries.flowOthers, [id]).catch(() => [null])).length === 0;
      const queues = [...new Set([...lost.dead, ...lost.cancelled].map(({ queue }) => queue))];
      may.retry = queues.length > 0 && (await query(queries.queuesRefused, [queues])).length === 0;
    }
    const context = { ...await contextOf(request, null), every: Number(flow.jobs) > MANY ? SELDOM : EVERY, may };
    const view = request.query.view === 'time' ? 'time' : 'graph';
    const [root] = await query(queries.flowRoot, [flow.roots?.length > 0 ? flow.roots : [id]]);
    return send(reply, `Flow ${root?.key ?? root?.kind ?? `of job ${id}`}`, flowPage(id, flow, { members, picture: read ? drawn(members) : null, lost, view }, context), context);
  });

  app.get('/flows', async (request, reply) => {
    const before = typeof request.query.before === 'string' && request.query.before !== '' ? idOf(request.query.before) : null;
    const context = { ...await contextOf(request, '/flows'), every: SELDOM };
    return send(reply, 'Flows', flowsPage(await newestFlows(query, before), before), context);
  });
}
