// The page of one cause of failures, and the action that retries one of its jobs first.
import { html } from './html.mjs';
import { insist, rights } from './jobs/doing.mjs';
import { causeAddress, causePage } from './pages/cause.mjs';
import * as queries from './queries.mjs';

const wrong = (statusCode, message) => Object.assign(new Error(message), { statusCode });
const fingerprintOf = (text) => {
  if (!/^[0-9a-f]{16}$/.test(text ?? '')) throw wrong(404, 'There is no such error. Start from the Errors page.');
  return text;
};
const bounds = (span) => (span ? [new Date(span.from).toISOString(), new Date(span.to).toISOString()] : [null, null]);

/** The causes of failures in a time span, with those that a retry has resolved.  queue: a name, or null for all queues. */
export const causesWithin = (query, queue, span) => query(queries.errorsWithin, [queue, ...bounds(span)]);

/** The causes of failures: those of unfinished and dead jobs, and those that a retry has resolved.  In a time span, those of the span. */
export async function allCauses(query, queue, span) {
  if (span) return causesWithin(query, queue, span);
  const rows = new Map((await query(queries.errors, [queue])).map((row) => [`${row.queue} ${row.fingerprint}`, row]));
  for (const row of await query(queries.healedOfAll)) {
    if (queue !== null && row.queue !== queue) continue;
    const name = `${row.queue} ${row.fingerprint}`;
    rows.set(name, { ...row, jobs: '0', dead: '0', ...rows.get(name), healed: row.healed });
  }
  return [...rows.values()];
}

export const retryFirst = {
  title: 'Retry one job first',
  button: () => 'Retry 1 job',
  inputs: ['queue', 'error', 'id'],
  async preview(query, input) {
    const error = fingerprintOf(input.error);
    const [queue] = await query('SELECT q.queue_id, q.name FROM idemq.queues q WHERE q.name = $1', [input.queue]);
    if (!queue) throw wrong(404, `No queue named "${input.queue ?? ''}" is visible to you.`);
    await insist(query, 'enqueue', queue);
    const [job] = await query(queries.deadOfCause, [input.queue, error]);
    if (!job) throw wrong(409, 'No dead job with this error is left. Another user may have retried them.');
    input.id = job.id;
    return { jobs: 1, text: html`Job ${job.id}${job.kind !== null && html` (<b>${job.kind}</b>)`} of queue <b>${input.queue}</b> becomes ready immediately, with a fresh set of attempts. The other dead jobs do not change. The page then shows whether this job completes.` };
  },
  async run(query, input) {
    if (!/^[0-9]{1,18}$/.test(input.id ?? '')) throw wrong(400, 'There is no job with that number.');
    // Only a job that is still dead with this error.
    const [job] = await query('SELECT e.status, e.fingerprint FROM idemq.job_errors e WHERE e.job_id = $1 AND e.queue = $2', [input.id, input.queue]);
    if (job?.status !== 'dead' || job.fingerprint !== input.error) return { text: `Job ${input.id} is no longer dead with this error.`, done: false };
    const [{ outcome }] = await query('SELECT idemq.retry($1) AS outcome', [input.id]);
    return { text: outcome === 'retrying' ? `Job ${input.id} can be claimed again.` : `Job ${input.id}: ${outcome}.`, done: outcome === 'retrying' };
  },
  back: (input) => `${causeAddress(input.queue, fingerprintOf(input.error))}?${new URLSearchParams({ first: input.id ?? '' })}`,
};

/** Adds the page of a cause to the page's server. */
export function causeRoutes(app, { database, writes, contextOf, send }) {
  const query = (...statement) => database.query(...statement);
  app.get('/queue/:name/error/:fingerprint', async (request, reply) => {
    const fingerprint = fingerprintOf(request.params.fingerprint);
    const [queue] = await query(queries.queue, [request.params.name]);
    if (!queue) throw wrong(404, `No queue named "${request.params.name}" is visible to you.`);
    const context = { ...await contextOf(request, '/errors'), every: 10, spanned: true, may: writes ? await rights(query, queue.queue_id) : {} };
    const { span } = context.times;
    const all = await query(queries.failedJobs, [queue.queue_id]);
    const those = all.filter((job) => job.fingerprint === fingerprint);
    const jobs = those.filter(({ at }) => !span || (at * 1000 >= span.from && at * 1000 <= span.to));
    const newest = jobs.slice(0, queries.NEWEST);
    const [known] = await query(queries.cause, [queue.name, fingerprint]);
    const firstId = /^[0-9]{1,18}$/.test(request.query.first ?? '') ? request.query.first : null;
    const first = firstId && ((await query(queries.firstRetried, [firstId, queue.queue_id]))[0] ?? null);
    if (those.length === 0 && !known && !first) throw wrong(404, 'No job that is visible to you has failed with this error. Its jobs may have been deleted after their retention period.');
    const cause = { fingerprint, error: known?.error ?? those[0]?.error, sqlstate: known?.sqlstate ?? those[0]?.sqlstate, dead: known?.dead ?? 0 };
    return send(reply, 'Error', causePage({ queue, cause, jobs, first, looked: all.length, most: queries.FAILED,
      workers: newest.length > 0 ? await query(queries.causeWorkers, [newest.map(({ job_id: id }) => id)]) : [], workersOf: newest.length }, context), context);
  });
}
