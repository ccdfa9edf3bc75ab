// One cause of failures in a queue: how often and since when it occurs, in which kinds and workers, its jobs, and how to retry them.
import { href, html } from '../html.mjs';
import { count } from '../format.mjs';
import { causeOf } from '../jobs/trace.mjs';
import { part } from '../live.mjs';
import { trend } from './charts.mjs';
import { button, jobLink, key, number, queueLink, status, table, when } from './layout.mjs';
import { addressOf, wordOf } from './queue.mjs';

/** Number of the newest jobs that the page lists. */
const LISTED = 20;
const MINUTE = 60;
const widths = [10, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400, 7 * 86400, 28 * 86400];

export const causeAddress = (queue, fingerprint) => `${addressOf(queue)}/error/${fingerprint}`;

/** The number of jobs per point, from a time to another, in seconds. */
export function trendOf(failed, from, to) {
  const point = widths.find((width) => (to - from) / width <= 58) ?? widths.at(-1);
  const first = Math.floor(from / point);
  const size = Math.max(Math.ceil(to / point) - first, 6);
  const values = new Array(size).fill(0);
  for (const at of failed) {
    const place = Math.ceil(at / point) - first - 1;
    if (place >= 0 && place < size) values[place] += 1;
    else if (place === -1) values[0] += 1; // exactly at the beginning
  }
  const times = values.map((_, i) => (first + i + 1) * point * 1000);
  return { values, times, point, latest: size - 1, chosen: true, title: `${new Date((first) * point * 1000).toISOString().slice(0, 16).replace('T', ' ')} to ${new Date(times.at(-1)).toISOString().slice(0, 16).replace('T', ' ')} UTC` };
}

/** The result of retrying one job first: what became of it, in one sentence. */
function firstSentence(first, cause) {
  if (!first) return null;
  const job = html`Job ${jobLink(first.id)}, which was retried first,`;
  if (first.status === 'completed') return html`<p class="notice" role="status">${job} has <b>completed</b>. The others can be retried now.</p>`;
  if (first.status === 'dead' || (first.status === 'retrying' && first.failed)) return html`<p class="notice bad" role="status">${job} has <b>failed again</b>${first.fingerprint === cause.fingerprint ? ' with the same error' : ' with another error'}. Fix the cause before you retry the others.</p>`;
  return html`<p class="notice warn" role="status">${job} is <b>${wordOf(first)}</b>. Wait for its result before you retry the others.</p>`;
}

const tabOf = { dead: 'dead', retrying: 'retrying', running: 'running', completed: 'completed' };

/** jobs: rows {job_id, kind, status, failed_at, at}, the newest first; workers: rows of causeWorkers; first: the job that was retried first, or null. */
export function causePage({ queue, cause, jobs, workers, first, looked, most, workersOf }, context) {
  const n = (wanted) => jobs.filter((job) => job.status === wanted).length;
  const unfinished = jobs.filter(({ status: name }) => !['dead', 'completed'].includes(name)).length;
  const list = (parameters) => href(addressOf(queue), { ...parameters, cause: cause.fingerprint });
  const [newest, oldest] = [jobs.reduce((a, b) => (b.at > a.at ? b : a), jobs[0]), jobs.reduce((a, b) => (b.at < a.at ? b : a), jobs[0])];
  const from = context.times.span ? context.times.span.from / 1000 : oldest?.at;
  const series = jobs.length > 0 && trendOf(jobs.map(({ at }) => at), from, context.times.span ? context.times.span.to / 1000 : newest.at + 1);
  const byKind = new Map();
  for (const job of jobs) byKind.set(job.kind, [...byKind.get(job.kind) ?? [], job]);
  const kinds = [...byKind].sort(([, a], [, b]) => b.length - a.length);
  const dead = Number(cause.dead ?? 0);
  const of = (those, name) => count(those.filter(({ status: is }) => is === name).length);
  return html`<p>In queue ${queueLink(queue.name)}. <a href="${href('/errors', { queue: queue.name })}">All errors of the queue</a></p>
<p class="cause">${causeOf(cause.error ?? 'no message')}</p>${cause.sqlstate && html`<p>SQLSTATE <code>${cause.sqlstate}</code></p>`}
${part('first', firstSentence(first, cause))}
${part('actions', html`<p class="actions">${dead > 1 && context.may.enqueue && button(context, 'retry_first', 'Retry 1 job first', { queue: queue.name, error: cause.fingerprint })}
${dead > 0 && context.may.admin && button(context, 'redrive', `Retry ${count(dead)} dead ${dead === 1 ? 'job' : 'jobs'}`, { queue: queue.name, error: cause.fingerprint })}</p>`)}
${part('facts', html`<dl class="facts big"><div><dt>jobs</dt><dd>${count(jobs.length)}${looked >= most && '+'}</dd></div>
<div><dt>dead</dt><dd>${n('dead') > 0 ? html`<a class="status dead" href="${list({ tab: 'dead' })}">${count(n('dead'))}</a>` : '0'}</dd></div>
<div><dt>unfinished</dt><dd>${unfinished > 0 ? html`<a class="status retrying" href="${list({ tab: 'retrying' })}">${count(unfinished)}</a>` : '0'}</dd></div>
<div><dt>resolved by a retry</dt><dd>${n('completed') > 0 ? html`<a class="status well" href="${list({ tab: 'completed' })}">${count(n('completed'))}</a>` : '0'}</dd></div>
<div><dt>first</dt><dd>${oldest ? html`${when(oldest.failed_at)} <a class="small" href="/job/${oldest.job_id}">job</a>` : '–'}</dd></div>
<div><dt>last</dt><dd>${newest ? html`${when(newest.failed_at)} <a class="small" href="/job/${newest.job_id}">job</a>` : '–'}</dd></div></dl>`)}
${jobs.length === 0 && html`<p class="none">No job failed with this error${context.times.span && ' in this time span'}.</p>`}
${series && html`<h2 class="unseen">Trend</h2><div class="charts">${trend('Jobs by their last failure', series)}</div>`}
${jobs.length > 0 && html`<div class="grid"><section aria-label="By kind"><h2>Kinds</h2>${part('kinds', table('Kinds', ['Kind', number('Jobs'), number('Dead'), number('Resolved')],
    kinds.slice(0, 20).map(([kind, those]) => [kind === null ? html`<span class="quiet">none</span>` : html`<a class="key" title="${kind}" href="${list({ tab: 'all', kind })}">${kind}</a>`, count(those.length), of(those, 'dead'), of(those, 'completed')]), ''))}</section>
<section aria-label="By worker"><h2>Workers and versions</h2>${part('workers', table('Workers', ['Worker', 'Version', number('Jobs'), 'Last'],
    workers.map((w) => [key(w.worker) ?? html`<span class="quiet">unnamed</span>`, w.program ? html`${w.program} ${w.version}${w.host && ` on ${w.host}`}` : html`<span class="quiet">not known</span>`, count(w.jobs), when(w.last)]), 'No attempt is recorded.'))}
<p class="quiet small">The workers of the last failed attempts of the newest ${count(workersOf)} jobs. A version is known if the worker has reported within the last hour, and has run since before the failure.</p></section></div>
<h2>Jobs</h2>${table('Jobs', ['Job', 'Status', 'Kind', 'Failed'], jobs.slice(0, LISTED).map((job) => [html`<a class="key" href="/job/${job.job_id}">${job.key ?? job.job_id}</a>`, status(job.status, wordOf(job)), key(job.kind), when(job.failed_at)]), '', jobs.slice(0, LISTED).map(({ job_id: id }) => `job ${id}`))}
<p class="actions">${Object.entries(tabOf).filter(([name]) => n(name) > 0).map(([name, tab]) => html`<a class="button" href="${list({ tab })}">All ${count(n(name))} ${name === 'completed' ? 'resolved' : name}</a>`)}</p>`}
${looked >= most && html`<p class="quiet">The page covers the newest ${count(most)} failed jobs of the queue.</p>`}`;
}
