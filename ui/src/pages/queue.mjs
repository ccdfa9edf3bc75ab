// One queue: its settings and its jobs, a page at a time.
import { html } from '../html.mjs';
import { count, distance, time } from '../format.mjs';
import { lists, page } from '../queries.mjs';
import { button, jobLink, more, number, status, table } from './layout.mjs';

const statuses = ['blocked', 'pending', 'processing', 'failed', 'completed', 'dead', 'cancelled'];

function jobs(rows) {
  return table('Jobs', [number('Job'), 'Status', 'Key', 'Group', number('Attempt'), 'Since', 'Last error'], rows.map((job) => [
    jobLink(job.id), status(job.status), job.key, job.group_key, `${job.attempt} of ${job.max_attempts}`,
    html`<time datetime="${job.finished_at ?? job.claimed_at ?? job.created_at}" title="${time(job.finished_at ?? job.claimed_at ?? job.created_at)}">${distance(job.finished_at ?? job.claimed_at ?? job.created_at)}</time>`,
    html`<span class="error">${job.last_error}</span>`]), 'None.');
}

/** list: a name of lists, or all; rows: what its statement gave. */
export function queuePage(queue, metrics, list, rows, filter, context) {
  const path = `/queue/${encodeURIComponent(queue.name)}`;
  const tabs = [...Object.keys(lists), 'all'];
  const settings = Object.entries(queue).filter(([name]) => !['queue_id', 'name', 'paused', 'created_at', 'lease_seconds'].includes(name));
  const found = rows.filter((row) => row.id !== null);
  const last = found.at(-1);
  let next = null;
  if (list === 'all') {
    // A page that found fewer looked at all of its window.
    const before = found.length === page.size ? last.id : rows[0]?.looked_to;
    if (before && (found.length === page.size || Number(rows[0].looked) === page.window))
      next = more(path, { list, status: filter, before }, found.length === page.size ? 'Older' : `Look on, before job ${before}`);
  } else if (found.length === page.size) {
    next = more(path, { list, ...Object.fromEntries(lists[list].keys.map((key, i) => [`after${i}`, last[key]])) });
  }
  return html`<dl class="facts">${metrics && ['pending', 'processing', 'blocked', 'failed', 'completed', 'dead', 'cancelled']
    .map((name) => html`<div><dt>${name}</dt><dd>${count(metrics[name])}</dd></div>`)}</dl>
<p>${queue.paused ? button(context, 'resume', 'Resume', { queue: queue.name }) : button(context, 'pause', 'Pause', { queue: queue.name })}
${Number(metrics?.dead) > 0 && html`<a href="/errors?queue=${encodeURIComponent(queue.name)}">What the ${count(metrics.dead)} died of</a>`}</p>
<nav aria-label="Jobs"><ul class="tabs">${tabs.map((name) => html`<li><a href="${path}?list=${name}"${name === list ? html` aria-current="page"` : ''}>${name}</a></li>`)}</ul></nav>
${list === 'all' ? html`<form method="get" action="${path}"><input type="hidden" name="list" value="all"><label>Status <select name="status"><option value="">any</option>${statuses
    .map((name) => html`<option${name === filter ? html` selected` : ''}>${name}</option>`)}</select></label> <button>Show</button></form>`
    : html`<h2>${lists[list].title}</h2>`}
${jobs(found)}${next}
<details><summary>Settings</summary><dl class="settings">${settings.map(([name, value]) => html`<div><dt>${name}</dt><dd>${formatSetting(value)}</dd></div>`)}</dl></details>`;
}

/** node-postgres gives an interval as an object. */
function formatSetting(value) {
  if (value === null) return 'none';
  if (typeof value === 'object') return value.toPostgres ? value.toPostgres() : JSON.stringify(value);
  return String(value);
}
