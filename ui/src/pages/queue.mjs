// One queue: its jobs by tab and filter, one page at a time, and the actions on several jobs.
import { href, html } from '../html.mjs';
import { bytes, count, duration, percent, rate, time } from '../format.mjs';
import { spans } from '../history.mjs';
import { doings } from '../jobs/doing.mjs';
import { causeOf } from '../jobs/trace.mjs';
import { part } from '../live.mjs';
import { charts as drawn, spanTabs } from './charts.mjs';
import { PAGE, cursorText, filters, momentOf, tabs } from '../jobs/walk.mjs';
import { spanFacts } from './span.mjs';
import { button, jobLink, key, moment, number, progress, queueLink, status, table, when } from './layout.mjs';

/** The default priority of jobs. */
const USUAL = 4;
/** Number of characters of a payload that a list shows. */
const SHOWN = 80;

/** The most useful time of a job on each tab: the column's title and the field. */
const times = {
  waiting: ['Due', 'ready_at'], running: ['Running since', 'claimed_at'], retrying: ['Next attempt', 'ready_at'], blocked: ['Enqueued', 'enqueued_at'],
  scheduled: ['Due', 'ready_at'], completed: ['Completed', 'finished_at'], dead: ['Died', 'dead_at'], cancelled: ['Cancelled', 'finished_at'],
};

export const addressOf = (queue) => `/queue/${encodeURIComponent(queue.name ?? queue)}`;

/** The beginning of a payload.  A payload that is too large is not read. */
export function payloadOf(job) {
  if (job.payload === null) return html`<span class="quiet">${bytes(job.payload_bytes)}, not read</span>`;
  if (job.encrypted !== null) return html`<span class="quiet">encrypted</span>`;
  const characters = [...job.payload];
  return html`<code class="payload">${characters.slice(0, SHOWN).join('')}${characters.length > SHOWN && '…'}</code>`;
}

/** A job's error; in a dead-letter queue, the error of the original job. */
const errorOf = (job) => {
  const text = job.last_error ?? job.original_error;
  return text && html`<span class="error" title="${text.slice(0, 500)}">${causeOf(text).slice(0, 200)}</span>`;
};

/** The word for a status: a pending job is either waiting or scheduled. */
export const wordOf = (job) => (job.status === 'pending' ? (job.later ? 'scheduled' : 'waiting') : job.status);

function seconds(from, to) {
  return from && to ? (Date.parse(to.replace(' ', 'T').replace(/\+00$/, 'Z')) - Date.parse(from.replace(' ', 'T').replace(/\+00$/, 'Z'))) / 1000 : null;
}

/** The columns of a list: the title, the cell of a job, and whether the job has a value there.  A column without values is omitted. */
function columnsOf(tab, rows, picks) {
  const [timeName, timeOf] = times[tab] ?? ['Since', null];
  const name = (job) => job.key ?? job.kind ?? job.id;
  const all = [
    [{ name: html`${picks && html`<input type="checkbox" class="every" aria-label="Select all jobs on this page" hidden> `}Job`, text: 'Job' },
      (job) => html`<span class="pick"><span class="line">${picks && html`<input type="checkbox" name="ids" value="${job.id}" aria-label="Select job ${job.id}"> `}<a class="key${name(job) === job.id ? ' number' : ''}" href="/job/${job.id}" title="${name(job)}">${name(job)}</a></span>${tab === 'all' && html` ${status(job.status, wordOf(job))}`}</span>`],
    ['Kind', (job) => key(job.kind), (job) => job.key !== null && job.kind !== null],
    ['Error', (job) => (tab === 'completed' ? null : errorOf(job)), (job) => tab !== 'completed' && Boolean(errorOf(job))],
    ['Progress', (job) => progress(job.progress, `Progress of job ${job.id}`), (job) => job.progress !== null],
    ['Group', (job) => key(job.group_key), (job) => job.group_key !== null],
    [number('Priority'), (job) => job.priority, (job) => job.priority !== USUAL],
    [number('Attempt'), (job) => html`${job.attempt} of ${job.max_attempts}`, (job) => job.attempt > 0],
    [timeName, (job) => when(timeOf ? job[timeOf] : job.finished_at ?? job.claimed_at ?? job.enqueued_at)],
    [number('Took'), (job) => duration(seconds(job.claimed_at, job.finished_at)), (job) => tab === 'completed' && job.claimed_at !== null],
    ['Worker', (job) => key(job.worker), (job) => ['running', 'completed'].includes(tab) && job.worker !== null],
    ['Payload', (job) => (job.original ? html`<a href="/job/${job.original}">original job</a>` : payloadOf(job))],
    ['Resolved error', (job) => errorOf(job), (job) => tab === 'completed' && Boolean(errorOf(job))],
    [number('Number'), (job) => html`<a class="quiet small" href="/job/${job.id}">${job.id}</a>`, (job) => name(job) !== job.id],
  ];
  return all.filter(([, , has]) => !has || rows.some(has));
}

const words = {
  cause: ['Fingerprint of the error', 'text'], kind: ['Kind', 'text'], key: ['Key begins with', 'text'], group: ['Group', 'text'], error: ['Error contains', 'text'],
  since: ['Enqueued from (UTC)', 'datetime-local'], until: ['Enqueued until (UTC)', 'datetime-local'], payload: ['Payload contains (JSON)', 'text'],
};

function filterForm(path, tab, given, open) {
  return html`<details class="filter"${open ? html` open` : ''}><summary>Filter</summary>
<form method="get" action="${path}"><input type="hidden" name="tab" value="${tab}">
<div class="fields">${filters.filter((name) => name !== 'cause' || given.cause).map((name) => html`<label${name === 'payload' ? html` class="wide"` : ''}>${words[name][0]}<input type="${words[name][1]}" name="${name}" value="${given[name] ?? ''}"${name === 'payload' ? html` placeholder='{"order": 42}'` : ''}${words[name][1] === 'datetime-local' ? html` step="1"` : ''} autocomplete="off" spellcheck="false"></label>`)}</div>
<p class="actions"><button>Filter</button>${open && html` <a class="button" href="${href(path, { tab })}">Clear filters</a>`}</p></form></details>`;
}

/** A sentence about the result of a walk. */
function found(list, tab, result, rows, given, of, span) {
  const narrowed = Object.keys(given).length > 0 || Boolean(span);
  const looked = html`searched ${count(result.looked)} of ${count(Math.max(of, result.looked))} jobs`;
  const payloads = given.payload ? ' Payloads larger than 64 kB are not searched.' : '';
  if (!narrowed && rows.length > 0) return html`<p class="quiet found" role="status">${list.atLeast ? 'More than ' : ''}${count(list.count)} ${tab === 'all' ? 'jobs' : tab}, ${tabs[tab].word}.</p>`;
  if (!narrowed && result.next === null) return null;
  return html`<p class="found" role="status">${count(rows.length)} found${result.next !== null && rows.length === PAGE ? ' so far' : ''}; ${looked}${rows.length < PAGE && result.next !== null ? ' in one second' : ''}.${span && ` The list contains the jobs ${momentOf[tab]?.[1] ?? 'enqueued, claimed or finished'} in the time span.`}${payloads}</p>`;
}

function bulk(context, tab, list, narrowed, rows) {
  const may = Object.entries(doings).filter(([, doing]) => doing.tabs.includes(tab) && context.may[doing.needs]);
  if (may.length === 0 || rows.length === 0) return null;
  return html`<fieldset class="bulk"><legend class="unseen">Actions for several jobs</legend>
<p class="chosen" role="status" data-chosen>Select jobs above, or all:</p>
<label class="all"><input type="checkbox" name="all" value="1"> ${narrowed ? 'all matching jobs' : html`all ${list.atLeast ? 'that are' : count(list.count)} ${tab === 'all' ? 'jobs' : tab}`}</label>
<span class="actions">${may.map(([name, doing]) => (doing.value
    ? html`<span class="with"><select name="value" aria-label="Priority to set">${Array.from({ length: 10 }, (_, i) => html`<option${i === USUAL ? html` selected` : ''}>${i}</option>`)}</select><button name="doing" value="${name}">${doing.title}</button></span>`
    : html`<button name="doing" value="${name}">${doing.title}</button>`))}</span></fieldset>`;
}

/**
 * numbers: the result of counts(), or null if it failed; result: that of the tab's walk; given: the filter as it was entered;
 * of: the number of jobs that the walk can search; doing: the actions in progress.
 */
export function queuePage({ queue, numbers, tab, result, rows, given, of, first, doing, held, trouble, charts, errors, workers, serves }, context) {
  const path = addressOf(queue);
  const { span } = charts;
  const narrowed = Object.keys(given).length > 0 || Boolean(span);
  // The counts are those of the present.
  const countOf = (name) => (span ? null : numbers?.counts[name] ?? null);
  const list = { count: countOf(tab), atLeast: numbers?.atLeast.includes(tab) };
  const settings = Object.entries(queue).filter(([name]) => !['queue_id', 'name', 'paused', 'created_at', 'lease_seconds', 'declared', 'changed_since'].includes(name));
  const actions = context.writes && Object.values(doings).some(({ needs }) => context.may[needs]);
  const columns = columnsOf(tab, rows, actions);
  const none = trouble !== null ? 'Correct the filter.' : narrowed ? (result.next === null && Object.keys(given).length === 0 ? 'No such job in this time span.' : 'No job matches the filter. Remove a condition, or continue the search.') : result.next === null ? (tab === 'all' ? 'This queue has no jobs.' : `No job in this queue is ${tab}.`) : 'No match among the newest jobs. Continue the search.';
  const jobs = table('Jobs', columns.map(([head]) => head), rows.map((job) => columns.map(([, cell]) => cell(job))), none, rows.map(({ id }) => `job ${id}`));
  const at = (parameters) => href(path, { tab, ...given, ...parameters });
  return html`<div class="actions">${context.may.admin && (queue.paused || held.length > 0 ? button(context, 'resume', 'Resume', { queue: queue.name }) : button(context, 'pause', 'Pause', { queue: queue.name }))}
${context.writes && context.may.enqueue && html`<a class="button" href="${path}/enqueue">Enqueue a job</a>`}
${context.settings && context.may.admin && html`<a class="button" href="${path}/settings">Change settings</a>`}
</div>
${numbers?.unattended && html`<p class="notice bad"><b>No workers</b>: jobs are due, and no worker has polled the queue for ${duration(numbers.unattended)}.</p>`}
${held.slice(0, 20).map((hold) => html`<p class="notice warn">${hold.scope === 'queue' ? 'This queue' : hold.group_key === null ? 'A group' : html`Group <code>${hold.group_key}</code>`} has been held back since ${moment(hold.began_at)}, and will be for another ${duration(hold.left)}, as requested by the worker of job ${jobLink(hold.job_id)}.</p>`)}${held.length > 20 && html`<p class="notice warn">More groups are held back: see the view <code>idemq.holds</code>.</p>`}
${numbers?.pausedGroups > 0 && html`<p class="notice warn">${numbers.pausedGroups === 1 ? html`<b>1 group is paused.</b> Its jobs are waiting` : html`<b>${count(numbers.pausedGroups)} groups are paused.</b> Their jobs are waiting`}; other groups continue. The view <code>idemq.paused_group_list</code> lists the paused groups and when each pause ends.</p>`}
${numbers?.isDeadLetterQueue && html`<p>Dead-letter queue of ${serves.length > 0 ? serves.map(({ name }, i) => html`${i > 0 && ', '}<b>${queueLink(name)}</b>`) : 'a queue that is not visible to you'}: its jobs are records of jobs that died there. Retrying an original job removes its record here, unless a worker has already claimed it.</p>`}
${doing.map((one) => html`<p class="notice warn">${doings[one.want.name].title} is in progress: <a href="/doing/${one.id}">view progress</a>.</p>`)}
${span && charts.series ? spanFacts(charts.series) : part('now', now({ queue, numbers, charts, workers }))}
${errors.length > 0 && part('errors', topErrors(queue, errors, given.cause, span))}
<details id="charts"${charts.open ? html` open` : ''}><summary>Charts</summary>${spanTabs(Object.keys(spans), charts.last, (last) => href(path, { tab, ...given, last }))}
${charts.trouble && html`<p class="notice bad" role="alert">${charts.trouble}</p>`}${charts.series && drawn(charts.series)}</details>
<nav aria-label="Jobs" id="jobs"><ul class="tabs scroll">${Object.keys(tabs).map((name) => html`<li><a href="${href(path, { tab: name, ...given })}"${name === tab ? html` aria-current="page"` : ''}>${name} <span class="count">${countOf(name) === null ? '' : html`${count(countOf(name))}${numbers.atLeast.includes(name) ? '+' : ''}`}</span></a></li>`)}</ul></nav>
${filterForm(path, tab, given, Object.keys(given).length > 0)}
${trouble && html`<p class="notice bad" role="alert">${trouble}</p>`}
${trouble === null && found(list, tab, result, rows, given, of, span)}
${actions && rows.length > 0 ? html`<form method="get" action="${path}/sure" class="list"><input type="hidden" name="tab" value="${tab}">${Object.entries(given).map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`)}
${jobs}${bulk(context, tab, list, narrowed, rows)}</form><script src="/static/jobs.js" defer></script>` : jobs}
<p class="actions">${!first && html`<a class="button" href="${at({})}">First page</a>`}${result.next !== null && html`<a class="button more" href="${at({ after: cursorText(result.next) })}">${rows.length === PAGE ? 'Next page' : 'Continue search'}</a>`}${rows.length > 0 && html`<a class="button" href="${href(`${path}/jobs.csv`, { tab, ...given })}" download>Download as CSV</a>`}</p>
<details><summary>Settings</summary><dl class="settings">${settings.map(([name, value]) => html`<div><dt>${name}</dt><dd>${formatSetting(value)}${queue.changed_since && name in queue.changed_since && html` <span class="quiet">(declared: ${queue.changed_since[name] ?? 'none'})</span>`}</dd></div>`)}</dl></details>`;
}

/** The current state of the queue: a line of figures, and its workers. */
function now({ queue, numbers, charts: { series }, workers }) {
  const latest = (field) => (series ? series[field][series.latest] : null);
  const perSecond = (value) => (value === null || value === undefined ? '–' : `${rate(value)}/s`);
  const sum = (field) => (series?.[field] ?? []).reduce((total, value) => total + (value ?? 0), 0);
  const [completed, failures] = [sum('completed'), sum('failures')];
  const busy = workers.reduce((total, worker) => total + Number(worker.running ?? 0), 0);
  const places = workers.reduce((total, worker) => total + Number(worker.concurrency ?? 0), 0);
  const facts = [['workers', workers.length === 0 ? 'none' : html`${count(workers.length)}${workers.length > 20 && '+'}, ${count(busy)} of ${count(places)} slots busy`],
    ['oldest waiting job', duration(queue.paused ? null : latest('oldest_due'))], ['completed', perSecond(latest('completed'))],
    [`failed, ${series?.title ?? 'last hour'}`, completed + failures > 0 ? percent((100 * failures) / (completed + failures)) : '–'],
    ['latency p95', duration(latest('wait_p95'))], ['run time p95', duration(latest('run_p95'))]];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
${workers.length > 0 && html`<details id="workers"><summary>${workers.length === 1 ? '1 worker' : `${count(workers.length)} workers`}</summary>${table('Workers', ['Worker', 'State', 'Program', number('Running'), 'Last seen'],
    workers.map((w) => [key(w.worker), status(w.state === 'silent' ? 'warn' : 'well', w.state === 'silent' ? 'silent' : 'online'), html`${w.program}${w.host && ` on ${w.host}`}`, html`${count(w.running ?? 0)} of ${count(w.concurrency ?? 1)}`, when(w.seen_at)]), '')}</details>`}`;
}

/** The most frequent causes of failures, each with links to its jobs. */
function topErrors(queue, errors, cause, span) {
  const list = (e, tab) => href(addressOf(queue), { tab, cause: e.fingerprint });
  const shown = errors.slice(0, 5);
  return html`<section class="card" aria-label="Errors by cause"><h2>Errors by cause${span && ' in this time span'}</h2><ul class="said">${shown.map((e) => html`<li${e.fingerprint === cause ? html` aria-current="true"` : ''}><a href="${addressOf(queue)}/error/${e.fingerprint}"><span class="error">${causeOf(e.error ?? 'no message').slice(0, 200)}</span></a> ${e.sqlstate && html`<code>${e.sqlstate}</code> `}
${Number(e.dead) > 0 && html`<a class="status dead" href="${list(e, 'dead')}">${count(e.dead)} dead</a> `}${Number(e.retrying) > 0 && html`<a class="status retrying" href="${list(e, 'retrying')}">${count(e.retrying)} retrying</a> `}${e.healed > 0 && html`<a class="status well" href="${list(e, 'completed')}">${count(e.healed)} resolved by a retry</a> `}
<span class="quiet small">${e.kinds && html`kind ${e.kinds.slice(0, 3).join(', ')}${e.kinds.length > 3 && '…'}, `}first ${when(e.first_seen)}, last ${when(e.last_seen)}</span></li>`)}</ul>
${errors.length > shown.length && html`<p class="quiet"><a href="${href('/errors', { queue: queue.name })}">${count(errors.length - shown.length)} more</a></p>`}</section>`;
}

/** node-postgres returns an interval as an object. */
function formatSetting(value) {
  if (value === null) return 'none';
  if (typeof value === 'object') return value.toPostgres ? value.toPostgres() : JSON.stringify(value);
  return /^\d{4}-\d\d-\d\d \d\d:/.test(String(value)) ? time(value) : String(value);
}
