// The overview of the database: what needs attention, its current and past activity, and its queues, the most severe first.
import { html, href } from '../html.mjs';
import { count, duration, percent, plural, rate } from '../format.mjs';
import { part } from '../live.mjs';
import { spans } from '../history.mjs';
import { charts, spanTabs, sparkline } from './charts.mjs';
import { spanFacts } from './span.mjs';
import { firstOf } from './first.mjs';
import { button, number, queueLink, status, table } from './layout.mjs';

/** Number of queues on a page, and minimum number of queues with the same prefix that are combined in one row. */
const PAGE = 50;
const ALIKE = 10;

const errorsOf = (queue) => `/errors?queue=${encodeURIComponent(queue)}`;

const unattended = (queue) => queue.unattended_for !== null && queue.unattended_for !== undefined;

/** Whether a queue is full, and therefore refuses further jobs. */
const isFull = (queue) => queue.max_unfinished !== null && queue.unfinished !== null && Number(queue.unfinished) >= Number(queue.max_unfinished);

/** The states of a queue, the most severe first: [severity, shape, words, link]. */
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

const severity = (queue) => states(queue)[0][0];
const mark = ([, shape, words, where]) => html`<div>${where ? html`<a class="status ${shape}" href="${where}">${words}</a>` : status(shape, words)}</div>`;

/** The problems that need attention, one sentence each. */
function troublesOf(queues, health) {
  const said = [];
  if (health && health.pid === null)
    said.push(html`<b>No background worker is running</b> in this database. Expired leases wait for the next claim, and no history is written.`);
  if (health && health.stuck_for !== null) said.push(html`<b>The background worker has been stuck</b> for ${duration(health.stuck_for)}.`);
  for (const queue of queues) {
    if (unattended(queue))
      said.push(html`${status('gone', '')}${queueLink(queue.queue)} has <b>no workers</b>: ${plural(queue.pending, 'job')} pending, and no worker has polled the queue for ${duration(queue.unattended_for)}.`);
    if (Number(queue.dead) > 0)
      said.push(html`${status('dead', '')}${queueLink(queue.queue)}: <a class="dead" href="${errorsOf(queue.queue)}">${plural(queue.dead, 'job is', 'jobs are')} dead</a>`);
    if (queue.is_dead_letter_queue && Number(queue.pending) > 0)
      said.push(html`${status('warn', '')}Dead-letter queue ${queueLink(queue.queue)} has ${plural(queue.pending, 'job')} to review.`);
  }
  return said;
}

function attention(said, health) {
  const shown = said.slice(0, 10);
  return html`<section class="card" aria-label="Needs attention" data-attention="${said.length}">${said.length === 0 ? html`<p class="last">${status('well', 'All clear.')}${health && ' The background worker is healthy.'}</p>`
    : html`<h2>Needs attention</h2><ul class="said">${shown.map((sentence) => html`<li>${sentence}</li>`)}</ul>${said.length > shown.length && html`<p class="quiet"><a href="#queues">${count(said.length - shown.length)} more in the list of queues</a></p>`}`}</section>`;
}

function factsOf(queues, all) {
  const sum = (name) => queues.reduce((total, queue) => total + Number(queue[name] ?? 0), 0);
  const due = queues.filter((queue) => !queue.paused && !(queue.held_for > 0)).map((queue) => queue.oldest_ready).filter((value) => value !== null);
  const perSecond = (value) => (value === null || value === undefined ? '–' : `${rate(value)}/s`);
  const of = all?.point > 30 ? ` (${duration(all.point)} avg)` : '';
  const facts = [['pending', count(sum('pending'))], ['running', count(sum('running'))], ['retrying', count(sum('retrying'))], ['blocked', count(sum('blocked'))],
    [`completed${of}`, perSecond(all?.completed[all.latest])], [`failed${of}`, perSecond(all?.failures[all.latest])],
    ['oldest waiting job', due.length ? duration(Math.max(...due)) : '–'], ['dead', count(sum('dead'))]];
  return html`<dl class="facts big">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Rows of the table: queues, or {prefix, queues} if many names begin with the same prefix. */
function rowsOf(queues, filter) {
  const sorted = queues.filter(({ queue }) => filter === null || queue.toLowerCase().includes(filter.toLowerCase()))
    .map((queue) => [severity(queue), queue]).sort(([a], [b]) => b - a).map(([, queue]) => queue);
  if (filter !== null || sorted.length <= PAGE) return sorted;
  const groups = new Map();
  for (const queue of sorted) {
    const prefix = /^(.+?[-_.:/])[^-_.:/]*$/.exec(queue.queue)?.[1];
    if (prefix) groups.set(prefix, [...groups.get(prefix) ?? [], queue]);
  }
  const rows = [];
  for (const queue of sorted) {
    const prefix = /^(.+?[-_.:/])[^-_.:/]*$/.exec(queue.queue)?.[1];
    const group = groups.get(prefix);
    if (!group || group.length < ALIKE) rows.push(queue);
    else if (group[0] === queue) rows.push({ prefix, queues: group });
  }
  return rows;
}

const failedShare = (completed, failures) => (completed + failures > 0 ? percent((100 * failures) / (completed + failures)) : '–');
const total = (values) => values.reduce((sum, value) => sum + (value ?? 0), 0);

function queueRow(queue, series, context) {
  const perSecond = (value) => `${rate(value)}/s`;
  const latest = (field) => series && duration(series[field][series.latest]);
  return [html`${queueLink(queue.queue)}${queue.is_dead_letter_queue && html` <span class="small quiet">dead-letter queue</span>`}`, html`<div>${states(queue).map(mark)}</div>`,
    count(queue.pending), count(queue.running), count(queue.blocked), duration(queue.paused ? null : queue.oldest_ready),
    series && sparkline(series.completed, series.latest, perSecond, `Completed per second, ${series.title}`), series && failedShare(total(series.completed), total(series.failures)),
    latest('wait_p95'), latest('run_p95'),
    queue.may_administer && (queue.paused || queue.held_for > 0 ? button(context, 'resume', 'Resume', { queue: queue.queue }, `Resume queue ${queue.queue}`)
      : button(context, 'pause', 'Pause', { queue: queue.queue }, `Pause queue ${queue.queue}`))];
}

function groupRow({ prefix, queues }, parameters) {
  const sum = (name) => queues.reduce((all, queue) => all + Number(queue[name] ?? 0), 0);
  const oldest = queues.filter((queue) => !queue.paused && queue.oldest_ready !== null).map((queue) => queue.oldest_ready);
  const count5 = (level, words) => {
    const those = queues.filter((queue) => severity(queue) === level);
    return those.length > 0 && mark([level, states(those[0])[0][1], `${count(those.length)} ${words}`]);
  };
  return [html`<a href="${href('/', { ...parameters, filter: prefix })}#queues">${prefix}*</a> <span class="small quiet">${count(queues.length)} queues</span>`,
    html`<div>${count5(5, 'without a worker')}${count5(4, 'with dead jobs')}${count5(3, 'to review')}${count5(2, 'retrying')}${count5(1, 'paused, full or held back')}${queues.every((queue) => severity(queue) === 0) && status('well', 'OK')}</div>`,
    count(sum('pending')), count(sum('running')), count(sum('blocked')), oldest.length ? duration(Math.max(...oldest)) : '–', '', '', '', '', ''];
}

function queuesTable({ queues, of, filter, page, last, span }, context) {
  const parameters = { last: last === '1h' ? null : last };
  const hour = span ? 'in the span' : '1 h';
  const all = rowsOf(queues, filter);
  const shown = all.slice((page - 1) * PAGE, page * PAGE);
  const heads = ['Queue', 'State', number('Pending'), number('Running'), number('Blocked'), number('Oldest waiting'),
    `Completed, ${hour}`, number(`Failed, ${hour}`), number('Latency p95'), number('Run p95'), 'Action'];
  const width = context.writes ? heads.length : heads.length - 1;
  const rows = shown.map((row) => (row.prefix ? groupRow(row, parameters) : queueRow(row, of(row.queue), context)).slice(0, width));
  return html`<div class="heading"><h2 id="queues">Queues</h2>${(queues.length > 10 || filter !== null) && html`<form method="get" action="/#queues" class="actions">${last && html`<input type="hidden" name="last" value="${last}">`}<input name="filter" value="${filter ?? ''}" aria-label="Part of a queue's name" placeholder="Filter by name"><button>Filter</button>${filter !== null && html` <a href="${href('/', parameters)}#queues">Show all</a>`}</form>`}</div>
${table('Queues', heads.slice(0, width), rows, filter !== null ? `No queue that is visible to you has "${filter}" in its name.`
    : 'No queues are visible to you. Create one with SELECT idemq.create_queue(\'name\'), or ask an administrator for a privilege with idemq.grant_queue.',
  shown.map((row) => `queue ${row.prefix ?? row.queue}`))}
${all.length > PAGE && html`<p class="actions">${page > 1 && html`<a class="button" href="${href('/', { ...parameters, filter, page: page - 1 })}#queues">Previous</a>`}<span class="quiet">${count((page - 1) * PAGE + 1)} to ${count(Math.min(page * PAGE, all.length))} of ${count(all.length)}</span>${page * PAGE < all.length && html`<a class="button more" href="${href('/', { ...parameters, filter, page: page + 1 })}#queues">Next</a>`}</p>`}`;
}

/**
 * queues: rows of idemq.metrics; last: the time span of the charts; all: their series; of: returns a queue's series; troubles: messages about data that could not be read;
 * span: the time span of the page, or null; filter: part of a name; page: page of the table, counted from 1.
 */
export function overviewPage({ queues, last, span = null, all, of, health, troubles, filter, page }, context) {
  const worst = [...queues].sort((a, b) => severity(b) - severity(a));
  const said = troublesOf(worst, health);
  return html`${part('troubles', troubles.map((trouble) => html`<p class="notice bad" role="alert">${trouble}</p>`))}
${part('first', firstOf(queues, health !== null, context.server?.role))}
${(queues.length > 0 || said.length > 0) && part('attention', attention(said, health))}
${queues.length > 0 && html`${span ? all && spanFacts(all) : part('facts', factsOf(queues, all))}
${spanTabs(Object.keys(spans), last, (other) => href('/', { last: other, filter }))}
${all && charts(all, true)}
${queuesTable({ queues, of, filter, page, last, span }, context)}`}`;
}
