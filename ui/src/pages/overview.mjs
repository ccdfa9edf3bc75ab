// The database: what needs somebody, what it does now and did, and its queues.
import { html, href } from '../html.mjs';
import { count, duration, rate, time } from '../format.mjs';
import { spans } from '../history.mjs';
import { charts, spanTabs, sparkline } from './charts.mjs';
import { button, number, queueLink, status, table } from './layout.mjs';

const errorsOf = (queue) => `/errors?queue=${encodeURIComponent(queue)}`;
const plural = (n, one, many = `${one}s`) => `${count(n)} ${String(n) === '1' ? one : many}`;

const unattended = (queue) => queue.unattended_for !== null && queue.unattended_for !== undefined;

/** Whether a queue is full, so that it refuses further jobs. */
const isFull = (queue) => queue.max_unfinished !== null && queue.unfinished !== null && Number(queue.unfinished) >= Number(queue.max_unfinished);

/** What is to be said of a queue's state, the worst first: [how bad, its shape, its words, where to look]. */
function states(queue) {
  const jobs = `/queue/${encodeURIComponent(queue.queue)}`;
  const found = [unattended(queue) && [5, 'gone', 'no worker', jobs],
    Number(queue.dead) > 0 && [4, 'dead', `${count(queue.dead)} dead`, errorsOf(queue.queue)],
    queue.is_dead_letter_queue && Number(queue.pending) > 0 && [3, 'warn', `${count(queue.pending)} to review`, jobs],
    Number(queue.retrying) > 0 && [2, 'retrying', `${count(queue.retrying)} retrying`, errorsOf(queue.queue)],
    queue.paused && [1, 'paused', 'paused'],
    isFull(queue) && [1, 'warn', `full: ${count(queue.unfinished)} unfinished jobs`, jobs],
    queue.held_for > 0 && [1, 'paused', `held back, ${duration(queue.held_for)} left`, jobs],
    Number(queue.groups_held) > 0 && [1, 'paused', `${plural(queue.groups_held, 'group')} held back`, jobs]].filter(Boolean);
  return found.length > 0 ? found : [[0, 'well', 'OK']];
}

const stateMarks = (queue) => html`<div>${states(queue).map(([, shape, words, where]) => html`<div>${where ? html`<a class="status ${shape}" href="${where}">${words}</a>` : status(shape, words)}</div>`)}</div>`;

/** Sentences: what somebody is to look at. */
function attention(queues, health) {
  const said = [];
  if (health && health.pid === null)
    said.push(html`<b>No background worker is running</b> in this database. Expired leases wait for the next claim, and no history is written.`);
  if (health && health.stuck_for !== null) said.push(html`<b>The background worker has been stuck</b> for ${duration(health.stuck_for)}.`);
  for (const queue of queues) {
    const dead = Number(queue.dead);
    if (unattended(queue))
      said.push(html`<b>No worker for</b> ${queueLink(queue.queue)}: ${plural(queue.pending, 'job is waiting', 'jobs are waiting')}, and no worker has polled the queue for ${duration(queue.unattended_for)}.`);
    if (dead > 0) said.push(html`${queueLink(queue.queue)}: <a class="status dead" href="${errorsOf(queue.queue)}">${plural(dead, 'job is dead', 'jobs are dead')}</a>`);
    if (queue.is_dead_letter_queue && Number(queue.pending) > 0)
      said.push(html`Dead-letter queue ${queueLink(queue.queue)} has ${plural(queue.pending, 'job')} to review.`);
  }
  const shown = said.slice(0, 10);
  return html`<section class="card" aria-label="Needs attention">${said.length === 0 ? html`<p class="last">${status('well', 'All clear.')}${health && ' The background worker is healthy.'}</p>`
    : html`<h2>Needs attention</h2><ul class="said">${shown.map((sentence) => html`<li>${sentence}</li>`)}</ul>${said.length > shown.length && html`<p class="quiet">The list of queues below shows ${count(said.length - shown.length)} more.</p>`}`}</section>`;
}

function nowOf(queues, all) {
  const sum = (name) => queues.reduce((total, queue) => total + Number(queue[name] ?? 0), 0);
  const newest = (values) => values?.findLast((value) => value !== null) ?? null;
  const due = queues.filter((queue) => !queue.paused && !(queue.held_for > 0)).map((queue) => queue.oldest_ready).filter((value) => value !== null);
  const perSecond = (value) => (value === null ? '–' : `${rate(value)}/s`);
  const of = all?.point > 30 ? `, mean of ${duration(all.point)}` : '';
  const facts = [['waiting', count(sum('pending'))], ['running', count(sum('running'))], ['retrying', count(sum('retrying'))], ['blocked', count(sum('blocked'))],
    [`done${of}`, perSecond(newest(all?.completed))], [`failed${of}`, perSecond(newest(all?.failures))],
    ['oldest due', due.length ? duration(Math.max(...due)) : '–'], ['dead', count(sum('dead'))]];
  return html`<dl class="facts big">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/**
 * The part that is fetched anew.  reading: rows of idemq.metrics; all: the charts' series, of the queue
 * or of all; of: a queue's series; troubles: what could not be read.
 */
export function live({ at, queues, only, last, all, of, health, troubles }, context) {
  const here = only === null ? queues : queues.filter(({ queue }) => queue === only);
  const sorted = here.map((queue) => [states(queue)[0][0], queue]).sort(([a], [b]) => b - a).map(([, queue]) => queue);
  const perSecond = (value) => `${rate(value)}/s`;
  const rows = only !== null ? [] : sorted.map((queue) => {
    const series = of(queue.queue);
    const newest = (values) => values?.findLast((value) => value !== null) ?? null;
    return [html`${queueLink(queue.queue)}${queue.is_dead_letter_queue && html` <span class="small quiet">dead-letter queue</span>`}`, stateMarks(queue), count(queue.pending), count(queue.running), count(queue.blocked),
      duration(queue.paused ? null : queue.oldest_ready), series && sparkline(series.completed, perSecond, `Done per second, ${series.title}`),
      series && duration(newest(series.wait_p95)), series && duration(newest(series.run_p95)),
      html`<a href="${href('/', { queue: queue.queue, last })}" aria-label="Charts of queue ${queue.queue}">Charts</a>`,
      queue.may_administer && (queue.paused || queue.held_for > 0 ? button(context, 'resume', 'Resume', { queue: queue.queue }, `Resume queue ${queue.queue}`)
        : button(context, 'pause', 'Pause', { queue: queue.queue }, `Pause queue ${queue.queue}`))];
  });
  const heads = ['Queue', 'State', number('Waiting'), number('Running'), number('Blocked'), number('Oldest due'),
    'Done, last hour', number('Wait, p95'), number('Run, p95'), 'Charts', 'Action'];
  return html`${troubles.map((trouble) => html`<p class="notice bad" role="alert">${trouble}</p>`)}
${attention(sorted, health)}
${nowOf(here, all)}
${spanTabs(Object.keys(spans), last, only)}
${all && charts(all)}
${only === null && html`<h2 id="queues">Queues</h2>${table('Queues', context.writes ? heads : heads.slice(0, -1), context.writes ? rows : rows.map((row) => row.slice(0, -1)),
    'No queues are visible to you. Create one with SELECT idemq.create_queue(\'name\'), or ask an administrator for a privilege with idemq.grant_queue.')}`}
<p class="quiet small">As of ${time(at)}. Times are UTC.</p>`;
}
