// The web server: its pages, actions and error messages.
import { readFileSync } from 'node:fs';
import { promisify } from 'node:util';
import { gzip } from 'node:zlib';
import formbody from '@fastify/formbody';
import fastify from 'fastify';
import { actions, inputsOf } from './actions.mjs';
import { apiRoutes } from './api.mjs';
import { allCauses, causeRoutes } from './causes.mjs';
import { csvRoutes } from './csv.mjs';
import { setAhead } from './clock.mjs';
import { href, html } from './html.mjs';
import { count } from './format.mjs';
import { flowRoutes } from './flows/routes.mjs';
import { jobRoutes } from './jobs/routes.mjs';
import * as queries from './queries.mjs';
import { searchRoutes } from './search/routes.mjs';
import { lookOf, prefixed, siteRoutes, withoutPrefix } from './site.mjs';
import { History, spans } from './history.mjs';
import { Security } from './security.mjs';
import { scheduleRoutes } from './schedules.mjs';
import { settingsRoutes } from './settings.mjs';
import { addressTime, carry, timesOf, withSpan } from './span.mjs';
import { HAVE, changes } from './live.mjs';
import { content, layout, plainWhy } from './pages/layout.mjs';
import { overviewPage } from './pages/overview.mjs';
import { auditPage, checkPage, errorsPage, keysPage, runningPage, schedulesPage } from './pages/lists.mjs';
import { workersPage } from './pages/workers.mjs';

const wrong = (statusCode, message) => Object.assign(new Error(message), { statusCode });
const idOf = (text) => {
  if (!/^[0-9]{1,18}$/.test(text)) throw wrong(404, 'There is no job with that number.');
  return text;
};
const text = (value) => (typeof value === 'string' && value !== '' ? value : null);

const script = 'text/javascript; charset=utf-8';
const statics = { 'icon.svg': 'image/svg+xml', 'icon-alert.svg': 'image/svg+xml', 'style.css': 'text/css; charset=utf-8', 'refresh.js': script, 'search.js': script, 'dialog.js': script, 'charts.js': script, 'span.js': script, 'keys.js': script };

/** Seconds between refreshes of a live page, and of a live page whose statements take longer. */
const EVERY = 2;
const SELDOM = 10;

/** The name of a statement in queries.mjs, so that a developer can find it. */
const nameOf = (statement) => Object.entries(queries).find(([, known]) => known === statement)?.[0]
  ?? statement?.replace(/\s+/g, ' ').trim().slice(0, 60);

/** The message for an error: PostgreSQL's text, and the next step if one is known. */
function explain(error) {
  if (error.statusCode) return { code: error.statusCode, message: error.message };
  const steps = {
    42501: 'The role that started this page lacks a privilege. An administrator can grant it with idemq.grant_queue(queue, role, \'admin\'). Server-wide information requires membership in pg_monitor.',
    57014: `The query${error.statement ? ` "${nameOf(error.statement)}" of this page` : ''} was cancelled after ${error.statement ? '2 s' : '15 s'}. Select fewer jobs, or use psql.`,
    '3F000': 'Run CREATE EXTENSION idemq in this database, or start the page with another PGDATABASE.',
    '42P01': 'Run CREATE EXTENSION idemq in this database.',
    42883: 'This page requires a newer version of idemq. Run ALTER EXTENSION idemq UPDATE in this database.',
  };
  if (!error.code) return { code: 500, message: error.message };
  // The input is not a valid number, time or text.
  if (/^22...$/.test(error.code)) return { code: 400, message: `${error.message} (${error.code}). ${error.hint ?? ''}` };
  if (error.code === '42501') return { code: 403, message: `${error.message} (42501). ${steps[42501]}` };
  const lost = /^(08|57P|ECONN|ENOENT|ETIMEDOUT)/.test(error.code);
  return {
    code: lost ? 503 : 500,
    message: `${error.message}${error.code.length === 5 ? ` (${error.code})` : ''}. ${steps[error.code] ?? (lost ? 'The server cannot be reached. This page tries again with each request.' : error.hint ?? '')}`,
  };
}

/**
 * Makes the page's server.  database: a Database; writes: whether it offers actions; settings: whether it also changes settings of queues and
 * schedules; access: the options of Security; site: see makeSite.
 */
export async function makeServer({ database, writes = false, settings = false, logger = false, access = {}, site = { prefix: '', root: '' } }) {
  const app = fastify({ logger, bodyLimit: 65536, routerOptions: { maxParamLength: 200 }, rewriteUrl: (request) => withoutPrefix(request.url, site.prefix) });
  const security = new Security({ ...access, path: `${site.prefix}/` });
  const history = new History(database);
  let about = null;

  app.addHook('onSend', async (request, reply, payload) => {
    const location = reply.getHeader('Location');
    if (request.method === 'POST' && typeof location === 'string') reply.header('Location', withSpan(location, request.body));
    reply.header('Vary', 'Accept-Encoding');
    if (typeof payload !== 'string' || payload.length < 1024 || !/\bgzip\b/.test(request.headers['accept-encoding'] ?? '')) return payload;
    reply.header('Content-Encoding', 'gzip').removeHeader('Content-Length');
    return promisify(gzip)(payload, { level: 4 });
  });
  await app.register(formbody);
  security.install(app);
  // A time span without an end ends now.  The address says when that was, so that a reload shows the same span.
  app.addHook('preHandler', async (request, reply) => {
    const { from, to } = request.query ?? {};
    if (request.method !== 'GET' || !from || to || request.headers[HAVE] !== undefined) return undefined;
    const { span } = timesOf(request.query);
    if (!span) return undefined;
    const [path, query] = request.url.split('?');
    const wanted = new URLSearchParams(query);
    wanted.set('to', addressTime(span.to));
    return reply.redirect(`${path}?${wanted}`, 303);
  });

  const contextOf = async (request, path) => {
    about ??= await database.one(queries.server);
    if (about.tests) {
      about.ahead = (await database.one(queries.testClock)).ahead;
      setAhead(about.ahead);
    }
    // Only this page can create such a message: the signature prevents a link from showing another text.
    const notice = text(request.query?.notice);
    const own = notice !== null && security.signed(notice, request.query.sign);
    return { path, server: about, actor: request.actor, writes, settings, notice: own ? notice : null, bad: request.query?.bad === '1', times: timesOf(request.query), url: request.url };
  };
  /** Sends a page.  A browser that already shows the page receives only the changes. */
  const send = (reply, title, body, context) => {
    const had = reply.request.headers[HAVE];
    const { span } = timesOf({ ...reply.request.body, ...reply.request.query });
    const around = { ...context, site: { ...site, look: lookOf(reply.request), here: reply.request.url } };
    const finished = (markup) => prefixed(carry(markup, span), site.prefix);
    if (had === undefined) return reply.type('text/html; charset=utf-8').send(finished(String(layout(title, body, around))));
    const answer = changes(String(content(title, body, around)), title, had);
    if (answer.all !== undefined) answer.all = finished(answer.all);
    for (const name of Object.keys(answer.parts ?? {})) answer.parts[name] = finished(answer.parts[name]);
    return reply.header('Cache-Control', 'no-store').send(answer);
  };

  app.setErrorHandler((error, request, reply) => {
    const { code, message } = explain(error);
    about = code === 503 ? null : about;
    reply.code(code);
    if (request.headers[HAVE] !== undefined || /^\/(api|healthz)/.test(request.url)) return reply.send({ error: message });
    return send(reply, 'Request failed', html`<p class="notice bad" role="alert">${message}</p><p><a href="/">Overview</a></p>`, { server: about, writes });
  });
  app.setNotFoundHandler((request, reply) => send(reply.code(404), 'Page not found', html`<p><a href="/">Overview</a></p>`, { server: about, writes }));

  for (const [name, type] of Object.entries(statics)) {
    const content = readFileSync(new URL(`../static/${name}`, import.meta.url));
    app.get(`/static/${name}`, (request, reply) => reply.type(type).header('Cache-Control', 'max-age=60').send(content));
  }

  // The data that the overview shows in addition to the history.  It is read once for all users.
  const reading = { at: 0, asked: null };
  const readNow = async () => {
    if (Date.now() - reading.at < EVERY * 900) return reading;
    reading.asked ??= (async () => {
      const queues = await database.query(queries.overview);
      const health = await database.one(queries.health).catch(() => null); // requires membership in pg_monitor
      Object.assign(reading, { queues, health, at: Date.now(), byName: new Map(queues.map((queue) => [queue.queue, queue])) });
    })().finally(() => { reading.asked = null; });
    await reading.asked;
    return reading;
  };
  // After an action, data that was read before it must not be shown.
  const forget = () => { reading.at = 0; };
  /** The charts of a queue, or of all queues (null), for the time span in the address, or the reason why there are none. */
  const chartsOf = async (request, queue) => {
    const { byName } = await readNow();
    const { span } = timesOf(request.query);
    const last = Object.hasOwn(spans, request.query.last ?? '') ? request.query.last : '1h';
    // The rest of the page is useful even without the history.
    try {
      if (span) return { last: null, span, series: history.of(await history.chosen(span, queue), queue, byName), trouble: null, open: true };
      return { last, span, series: history.of(await history.charts(last, queue), queue, byName), trouble: null, open: request.query.last !== undefined };
    } catch (error) {
      return { last, span, series: null, trouble: `No charts: ${explain(error).message}` };
    }
  };
  app.get('/', async (request, reply) => {
    const context = { ...await contextOf(request, '/'), every: EVERY, spanned: true };
    const { queues, byName, health } = await readNow();
    const { last, series, trouble, span } = await chartsOf(request, null);
    const troubles = trouble === null ? [] : [trouble];
    const table = await (span ? history.chosenTable(span) : history.table()).catch((error) => { troubles.push(`No figures for the last hour: ${explain(error).message}`); return null; });
    const of = (queue) => table && history.of(table, queue, byName);
    const page = Math.max(1, Math.min(Number.parseInt(request.query.page ?? '1', 10) || 1, 10_000));
    return send(reply, 'Overview', overviewPage({ queues, last, span, all: series, of, health, troubles, filter: text(request.query.filter), page }, context), context);
  });

  causeRoutes(app, { database, writes, contextOf, send });
  const back = (reply, address, notice, bad) => reply.redirect(`${address}${address.includes('?') ? '&' : '?'}${new URLSearchParams({ notice, sign: security.sign(notice), ...(bad ? { bad: '1' } : {}) })}`, 303);
  scheduleRoutes(app, { database, allowed: settings, security, contextOf, send, back });
  settingsRoutes(app, { database, allowed: settings, security, contextOf, send, back, forget });
  siteRoutes(app, site);
  apiRoutes(app, { database, all: site.all });
  csvRoutes(app, { database });
  searchRoutes(app, { database, contextOf, send });
  jobRoutes(app, { database, writes, security, contextOf, send, forget, chartsOf });
  flowRoutes(app, { database, writes, contextOf, send, messageOf: (error) => explain(error).message });
  app.get('/errors', async (request, reply) => {
    const context = { ...await contextOf(request, '/errors'), every: SELDOM, spanned: true };
    const queue = text(request.query.queue);
    return send(reply, 'Errors', errorsPage(await allCauses((...statement) => database.query(...statement), queue, context.times.span), queue, context), context);
  });
  app.get('/running', async (request, reply) => send(reply, 'Running', runningPage(await database.query(queries.runningJobs)), { ...await contextOf(request, '/running'), every: EVERY }));
  app.get('/workers', async (request, reply) => send(reply, 'Workers', workersPage(await database.query(queries.workers),
    await database.query(queries.handlers), await database.query(queries.unattended)), { ...await contextOf(request, '/workers'), every: EVERY }));
  app.get('/keys', async (request, reply) => send(reply, 'Keys', keysPage(), await contextOf(request, '/keys')));
  app.get('/schedules', async (request, reply) => {
    const context = { ...await contextOf(request, '/schedules'), every: SELDOM };
    return send(reply, 'Schedules', schedulesPage(await database.query(queries.schedules), context), context);
  });
  app.get('/audit', async (request, reply) => {
    const [queue, before] = [text(request.query.queue), text(request.query.before)];
    const context = { ...await contextOf(request, '/audit'), spanned: true };
    const { span } = context.times;
    const rows = await database.query(queries.audit, [before && idOf(before), queue, ...(span ? [new Date(span.from), new Date(span.to)] : [null, null])]);
    return send(reply, 'Audit', auditPage(rows, queue, span !== null), context);
  });
  app.get('/check', async (request, reply) => {
    const rows = request.query.run === '1' ? await database.patiently(queries.check) : null;
    return send(reply, 'Check', checkPage(rows), await contextOf(request, '/check'));
  });

  const actionOf = (given) => {
    if (!writes) throw wrong(403, 'This page is read-only. To allow actions, start it with --actions.');
    if (!Object.hasOwn(actions, given.action ?? '')) throw wrong(404, 'There is no such action.');
    const action = actions[given.action];
    return { action, input: inputsOf(action, given) };
  };
  app.get('/confirm', async (request, reply) => {
    const { action, input } = actionOf(request.query);
    const seen = await action.preview((...statement) => database.query(...statement), input);
    return send(reply, `${action.title}?`, html`<p class="why">${seen.text}</p>
<form method="post" action="/do"><input type="hidden" name="csrf" value="${security.token(request.session)}"><input type="hidden" name="action" value="${request.query.action}">
${Object.entries(input).map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`)}
<button class="do${action.undo === false ? ' final' : ''}">${action.button?.(seen.jobs, input, seen) ?? action.title}</button> <a class="button" href="${action.back(input)}">Keep as is</a></form>`, await contextOf(request, null));
  });
  app.post('/do', async (request, reply) => {
    const { action, input } = actionOf(request.body);
    const { text: what, done, job = null } = await database.write((query) => action.run(query, input), request.actor);
    forget();
    const why = job === null ? null : await database.one('SELECT idemq.why($1) AS why', [job]).catch(() => null);
    const said = `${what}${why ? ` It is now ${plainWhy(why.why)}.` : ''}`;
    const back = action.back(input);
    return reply.redirect(`${back}${back.includes('?') ? '&' : '?'}${new URLSearchParams({ notice: said, sign: security.sign(said), ...(done ? {} : { bad: '1' }) })}`, 303);
  });

  app.addHook('onClose', () => database.close());
  return app;
}
