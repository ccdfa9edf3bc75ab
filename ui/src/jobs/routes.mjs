// The pages of a queue and of a job, and the actions on several jobs.
import { readFileSync } from 'node:fs';

import { errorsOfQueue, healedOfQueue, holds, queue as queueByName, servedBy, workersOfQueue } from '../queries.mjs';
import { causesWithin } from '../causes.mjs';
import { timesOf } from '../span.mjs';
import { drawn } from '../flows/drawn.mjs';
import { doingPage, enqueuePage, listOf, said, surePage } from '../pages/chosen.mjs';
import { jobPage } from '../pages/job.mjs';
import { queuePage } from '../pages/queue.mjs';
import { Doings, filterOf, insist, preview, rights, runNow, wanted } from './doing.mjs';
import * as queries from './queries.mjs';
import { counts, cursorOf, everything, filters, rowsOf, tabs, walk } from './walk.mjs';

/** Maximum number of boxes in the graph on a job's page. */
const BOXES = 30;

const wrong = (statusCode, message) => Object.assign(new Error(message), { statusCode });
const text = (value) => (typeof value === 'string' && value !== '' ? value : null);
const idOf = (given) => {
  if (!/^[0-9]{1,18}$/.test(given)) throw wrong(404, 'There is no job with that number.');
  return given;
};
/** The filters in an address as the user entered them, for use in forms and links. */
const givenOf = (given) => Object.fromEntries(filters.map((name) => [name, text(given[name])?.trim()]).filter(([, value]) => value));

/** The tab that a queue opens on: the first that needs attention, otherwise the first that has jobs. */
function firstTab(numbers) {
  const has = (name) => (numbers?.counts[name] ?? 0) > 0;
  return ['dead', 'retrying', 'running', 'waiting', 'blocked', 'scheduled', 'completed', 'cancelled'].find(has) ?? 'waiting';
}

/** A job's flow, as the job's page shows it; null for a job without parents and children. */
function flowOf(rows, own) {
  if (rows.length < 2) return null;
  // The graph always includes this job.
  const members = rows.filter(({ id }, i) => i < queries.GRAPH || id === own);
  return { jobs: members.length, more: rows.length > queries.GRAPH, picture: drawn(members, { own, direction: 'TB', most: BOXES }) };
}

/** Adds these routes to the page's server. */
export function jobRoutes(app, { database, writes, security, contextOf, send, forget, chartsOf }) {
  const query = (...statement) => database.query(...statement);
  const doings = new Doings(database);
  const script = readFileSync(new URL('../../static/jobs.js', import.meta.url));
  app.get('/static/jobs.js', (request, reply) => reply.type('text/javascript; charset=utf-8').header('Cache-Control', 'max-age=60').send(script));
  app.addHook('preClose', () => doings.close());

  const queueOf = async (name) => {
    const [queue] = await query(queueByName, [name]);
    if (!queue) throw wrong(404, `No queue named "${name}" is visible to you.`);
    return queue;
  };
  const withRights = async (context, queueId) => ({ ...context, may: writes ? await rights(query, queueId) : {} });
  const refuseReadOnly = () => {
    if (!writes) throw wrong(403, 'This page is read-only. To allow actions, start it with --actions.');
  };
  const back = (reply, address, notice, bad) => reply.redirect(`${address}${address.includes('?') ? '&' : '?'}${new URLSearchParams({ notice, sign: security.sign(notice), ...(bad ? { bad: '1' } : {}) })}`, 303);

  // The causes of a queue's failures, read at most every 10 s.
  const causes = new Map();
  const errorsOf = async (queue) => {
    for (const [other, { at }] of causes) if (Date.now() - at > 10_000) causes.delete(other);
    if (!causes.has(queue.queue_id)) {
      const read = async (...statement) => query(...statement).catch((error) => { if (error.code !== '57014') throw error; return []; });
      const found = new Map();
      for (const row of [...await read(errorsOfQueue, [queue.name]), ...await read(healedOfQueue, [queue.queue_id])])
        found.set(row.fingerprint, { ...row, ...found.get(row.fingerprint), healed: Number(row.healed ?? 0) });
      causes.set(queue.queue_id, { at: Date.now(), errors: [...found.values()] });
    }
    return causes.get(queue.queue_id).errors;
  };

  app.get('/queue/:name', async (request, reply) => {
    const queue = await queueOf(request.params.name);
    // A search is not repeated: it may take a second.
    const { span } = timesOf(request.query);
    const searches = Object.keys(givenOf(request.query)).length > 0 || span !== null;
    const context = { ...await withRights(await contextOf(request, null), queue.queue_id), every: searches ? 0 : 2, spanned: true };
    const numbers = await counts(query, queue.queue_id);
    const tab = Object.hasOwn(tabs, request.query.tab ?? '') ? request.query.tab : firstTab(numbers);
    const cursor = cursorOf(text(request.query.after));
    const known = numbers && !numbers.atLeast.includes(tab) ? numbers.counts[tab] : null;
    let result = { ids: [], looked: 0, next: null, seconds: 0 };
    let trouble = null;
    try {
      result = await walk(query, { queue: queue.queue_id, tab, filter: filterOf(span ? request.query : { ...request.query, from: '', to: '' }), cursor, known });
    } catch (error) {
      // A filter that PostgreSQL cannot read is shown again, with the reason.
      if (!searches || !(/^22/.test(error.code ?? '') || error.statusCode === 400)) throw error;
      trouble = error.code ? `${error.message} (${error.code}). ${error.hint ?? ''}` : error.message;
    }
    const rows = await rowsOf(query, result.ids);
    const of = tabs[tab].walks ? numbers?.counts.all ?? 0 : await everything(query);
    const charts = await chartsOf(request, queue.name);
    const [errors, workers, serves] = [span ? await causesWithin(query, queue.name, span).catch((error) => { if (error.code !== '57014') throw error; return []; }) : await errorsOf(queue), await query(workersOfQueue, [queue.name]), await query(servedBy, [queue.queue_id])];
    if (trouble !== null) reply.code(400);
    return send(reply, `Queue ${queue.name}${queue.paused ? ' (paused)' : ''}`,
      queuePage({ queue, numbers, tab, result, rows, given: givenOf(request.query), of, first: cursor === null, doing: doings.of(queue.queue_id), held: await query(holds, [queue.name]), trouble, charts, errors, workers, serves }, context), context);
  });

  app.get('/queue/:name/sure', async (request, reply) => {
    refuseReadOnly();
    const queue = await queueOf(request.params.name);
    const want = wanted(request.query);
    await insist(query, want.doing.needs, queue);
    const numbers = want.all ? await counts(query, queue.queue_id) : null;
    const seen = await preview(query, queue, want, numbers && !numbers.atLeast.includes(want.tab) ? numbers.counts[want.tab] : null);
    return send(reply, `${want.doing.title}?`, surePage({ queue, want, seen, given: givenOf(request.query), token: security.token(request.session) }), await contextOf(request, null));
  });

  app.post('/queue/:name/do', async (request, reply) => {
    refuseReadOnly();
    const queue = await queueOf(request.params.name);
    const want = wanted(request.body);
    await insist(query, want.doing.needs, queue);
    forget();
    if (!want.all) {
      const came = await runNow(database, queue, want, request.actor);
      return back(reply, listOf(queue, want, givenOf(request.body)), said(want.doing, came), !came[want.doing.success]);
    }
    if (want.upto === undefined) throw wrong(400, 'The request does not contain the number of the last job to change. Start from the list.');
    const numbers = await counts(query, queue.queue_id);
    const plain = Object.keys(want.filter).length === 0 && want.value === null;
    const known = plain && numbers && !numbers.atLeast.includes(want.tab);
    const expected = { jobs: known ? numbers.counts[want.tab] : 0, atLeast: !known, total: tabs[want.tab].walks ? numbers?.counts.all ?? 0 : await everything(query) };
    return reply.redirect(`/doing/${doings.begin(queue, want, expected, request.actor).id}`, 303);
  });

  const doingOf = (id) => {
    const doing = doings.get(id);
    if (!doing) throw wrong(404, 'No such action is in progress or has run in the last hour. The audit log lists completed actions.');
    return doing;
  };
  app.get('/doing/:id', async (request, reply) => {
    const doing = doingOf(request.params.id);
    return send(reply, `${doing.want.doing.title}: queue ${doing.queue.name}`, doingPage(doing, security.token(request.session)), { ...await contextOf(request, null), every: doing.ended === null ? 1 : 0 });
  });
  app.post('/doing/:id/stop', async (request, reply) => {
    const doing = doingOf(request.params.id);
    doing.stopped = true;
    await doing.work;
    return reply.redirect(`/doing/${doing.id}`, 303);
  });

  app.get('/queue/:name/enqueue', async (request, reply) => {
    refuseReadOnly();
    const queue = await queueOf(request.params.name);
    await insist(query, 'enqueue', queue);
    return send(reply, `Enqueue a job to ${queue.name}`, enqueuePage(queue, {}, null, security.token(request.session)), await contextOf(request, null));
  });
  app.post('/queue/:name/enqueue', async (request, reply) => {
    refuseReadOnly();
    const queue = await queueOf(request.params.name);
    const given = request.body;
    const value = (name) => text(given[name])?.trim() || null;
    await insist(query, 'enqueue', queue);
    let trouble = ['payload', 'headers'].map((field) => {
      try {
        if (value(field) !== null || field === 'payload') JSON.parse(value(field) ?? '');
        return null;
      } catch (error) {
        return { field, message: `${field === 'payload' ? 'The payload is' : 'The headers are'} not valid JSON: ${error.message}.` };
      }
    }).find(Boolean) ?? null;
    if (!trouble) {
      try {
        const [job] = await database.write((run) => run(`SELECT e.id, e.outcome FROM idemq.enqueue($1, $2::jsonb, key => $3, kind => $4, group_key => $5,
          delay => $6::interval, priority => coalesce($7::int, 4), max_attempts => $8::int, headers => $9::jsonb) e`,
        [queue.name, value('payload'), value('key'), value('kind'), value('group_key'), value('delay'), value('priority'), value('max_attempts'), value('headers')]), request.actor);
        // A role that may only enqueue cannot see the job.
        const { see } = await rights(query, queue.queue_id);
        return await back(reply, see ? `/job/${job.id}` : `/queue/${encodeURIComponent(queue.name)}`, job.outcome === 'accepted' ? `Job ${job.id} was enqueued.` : `Nothing was enqueued, because this job already has the key (${job.outcome}).`, job.outcome !== 'accepted');
      } catch (error) {
        // If the input is invalid, or there is no room, show the form again with the values that were entered.
        if (!/^(22|IQ003|IQ004|IQ007|23|53400|54|55P03)/.test(error.code ?? '')) throw error;
        trouble = { field: ['kind', 'key', 'group_key', 'delay', 'priority', 'max_attempts'].find((name) => error.message.includes(name) || (name === 'delay' && error.message.includes('interval'))) ?? null,
          message: `${error.message} (${error.code}). ${error.hint ?? ''}` };
      }
    }
    return send(reply.code(400), `Enqueue a job to ${queue.name}`, enqueuePage(queue, given, trouble, security.token(request.session)), await contextOf(request, null));
  });

  app.get('/job/:id', async (request, reply) => {
    const id = idOf(request.params.id);
    const job = await database.one(queries.job, [id]);
    if (!job) throw wrong(404, `No job with the number ${id} is visible to you. The job never existed, it was deleted after its retention period, or you have no privilege on its queue.`);
    const context = { ...await withRights(await contextOf(request, null), job.queue_id), every: job.finished_at ? 10 : 2 };
    // If a document takes too long to read, the page is shown without it.
    const inTime = async (statement) => database.one(statement, [id]).catch((error) => { if (error.code !== '57014') throw error; return null; });
    let shown = await inTime(queries.shown);
    if (!shown) {
      shown = {};
      for (const name of queries.documents) Object.assign(shown, await inTime(queries.begun(name)) ?? { [name]: null, [`${name}_bytes`]: (await database.one(queries.stored(name), [id])).bytes });
    }
    return send(reply, [job.kind, job.key].filter(Boolean).join(' ') || `Job ${id}`, jobPage({
      job,
      shown,
      attempts: await query(queries.attempts, [id]),
      group: job.group_key === null ? null : await query(queries.group, [job.queue_id, job.group_key]),
      steps: await query(queries.steps, [id]),
      flow: flowOf(await query(queries.flow, [id]), id),
    }, context), context);
  });
  app.get('/job/:id/:document', async (request, reply) => {
    const { id, document } = request.params;
    if (!queries.documents.includes(document)) throw wrong(404, 'The documents of a job are payload, headers, checkpoint and result.');
    const found = await database.one(queries.download(document), [idOf(id)]);
    if (!found || found.document === null) throw wrong(404, `Job ${id} does not have a ${document} that can be shown here.`);
    return reply.type('application/json; charset=utf-8')
      .header('Content-Disposition', `attachment; filename="job-${id}-${document}.json"`).send(found.document);
  });
}
