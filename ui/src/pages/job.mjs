// One job: where it stands and why, what it holds, its attempts.
import { html } from '../html.mjs';
import { bytes, distance, duration, time } from '../format.mjs';
import { SHOWN, documents } from '../queries.mjs';
import { button, jobLink, number, queueLink, status, table } from './layout.mjs';

const moments = ['created_at', 'run_at', 'ready_at', 'claimed_at', 'deadline', 'finished_at', 'dead_at', 'expires_at'];

function shownDocument(id, name, shown) {
  if (!shown) {
    return html`<section><h2>${name}</h2><p class="none">A document of this job is too large for a page: <code>SELECT ${name} FROM idemq.job(${id})</code> in psql.</p></section>`;
  }
  if (shown[name] === null) return null;
  const all = Number(shown[`${name}_bytes`]);
  return html`<section><h2>${name}</h2>${shown[name].length >= SHOWN && html`<p>The first ${bytes(SHOWN)} of ${bytes(all)}.</p>`}
<pre tabindex="0">${shown[name]}</pre><p><a href="/job/${id}/${name}" download>Download ${name}</a> (${bytes(all)})</p></section>`;
}

/** How long an attempt took: the server's clock at both ends. */
function took(attempt) {
  return attempt.claimed_at && attempt.ended_at
    ? duration((Date.parse(attempt.ended_at.replace(' ', 'T').replace(/\+00$/, 'Z'))
      - Date.parse(attempt.claimed_at.replace(' ', 'T').replace(/\+00$/, 'Z'))) / 1000) : '–';
}

/** Parents or children of a job, if it has any. */
function related(title, jobs) {
  return jobs.length > 0 && html`<section><h2>${title}</h2>${table(title, [number('Job'), 'Queue', 'Status'],
    jobs.map((k) => [jobLink(k.id), k.queue ? queueLink(k.queue) : '–', k.status ? status(k.status) : 'completed and gone']), 'None.')}</section>`;
}

export function jobPage({ job, shown, attempts, group, steps, parents, children }, context) {
  const finished = job.finished_at !== null;
  return html`<p class="why"><span class="${job.status}">${job.why}</span></p>
<p class="actions">${(!finished || ['dead', 'cancelled'].includes(job.status)) && job.status !== 'processing' && button(context, 'retry', 'Retry', { id: job.id })}
${!finished && button(context, 'cancel', 'Cancel', { id: job.id })}
${job.status === 'processing' && button(context, 'release', 'Release', { id: job.id })}</p>
<dl class="facts"><div><dt>queue</dt><dd>${job.queue ? queueLink(job.queue) : job.queue_id}</dd></div>
<div><dt>attempt</dt><dd>${job.attempt} of ${job.max_attempts}</dd></div>
<div><dt>priority</dt><dd>${job.priority}</dd></div>
${job.kind !== null && html`<div><dt>kind</dt><dd>${job.kind}</dd></div>`}
${job.key !== null && html`<div><dt>key</dt><dd>${job.key}</dd></div>`}
${job.group_key !== null && html`<div><dt>group</dt><dd>${job.group_key}</dd></div>`}
${job.worker !== null && html`<div><dt>worker</dt><dd>${job.worker}</dd></div>`}
${job.token !== '0' && html`<div><dt>token</dt><dd>${job.token}</dd></div>`}
${moments.filter((name) => job[name]).map((name) => html`<div><dt>${name.replace('_at', '')}</dt><dd>${time(job[name])} <span class="quiet">(${distance(job[name])})</span></dd></div>`)}</dl>
${job.last_error !== null && html`<section><h2>last error</h2><pre class="error" tabindex="0">${job.last_error}</pre></section>`}
${documents.map((name) => shownDocument(job.id, name, shown))}
<section><h2>attempts that did not commit</h2>${table('Attempts', [number('Attempt'), 'Outcome', 'Worker', 'Ended', number('After'), 'Error'],
    attempts.map((a) => [a.attempt, a.outcome, a.worker, html`<span title="${time(a.ended_at)}">${distance(a.ended_at)}</span>`, took(a),
      html`<span class="error">${a.error}</span>${a.details && html` <code>${a.details}</code>`}`]), 'None.')}</section>
${steps && html`<section><h2>steps</h2>${table('Steps', ['Step', 'State', 'Request', 'Response', 'Begun'], steps.map((s) => [s.name,
    s.state === 'waiting' ? html`waits for this event until ${time(s.call_until)}` : s.state, html`<code>${s.request}</code>`, html`<code>${s.response}</code>`, time(s.begun_at)]), 'None.')}</section>`}
${related('the jobs that it waits for', parents)}
${related('the jobs that wait for it', children)}
${group && html`<section><h2>its group, in order</h2>${table('Group', [number('Job'), 'Status', 'Enqueued'],
    group.map((g) => [g.id === job.id ? html`<b>${g.id}</b>` : jobLink(g.id), status(g.status), distance(g.created_at)]), 'None.')}</section>`}`;
}
