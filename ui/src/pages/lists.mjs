// The pages that consist of a list: errors, running jobs, schedules, audit, check, keys.
import { html, href } from '../html.mjs';
import { count, duration } from '../format.mjs';
import { page } from '../queries.mjs';
import { button, jobLink, key, more, number, progress, queueLink, status, table, when } from './layout.mjs';

export function errorsPage(rows, queue, context) {
  return html`${queue && html`<p>Errors of queue ${queueLink(queue)}. <a href="/errors">Show all queues</a></p>`}
${table('Errors', ['Error', number('Jobs'), number('Dead'), 'Queue', 'SQLSTATE', 'First', 'Last', 'Sample job', ...(context.writes ? ['Action'] : [])],
    rows.map((e) => [html`<a href="${href(`/queue/${encodeURIComponent(e.queue)}`, { tab: Number(e.dead) > 0 ? 'dead' : 'retrying', cause: e.fingerprint })}"><span class="error">${e.error ?? 'no message'}</span></a>`, count(e.jobs), count(e.dead), queueLink(e.queue), e.sqlstate && html`<code>${e.sqlstate}</code>`,
      when(e.first_seen), when(e.last_seen),
      jobLink(e.example_id), ...(context.writes ? [Number(e.dead) > 0 && e.may_administer
        ? button(context, 'redrive', `Retry ${count(e.dead)} dead jobs`, { queue: e.queue, error: e.fingerprint }, `Retry ${count(e.dead)} dead jobs of queue ${e.queue}: ${(e.error ?? '').slice(0, 80)}`) : null] : [])]),
    'No jobs are dead or failing.')}`;
}

/** The results of a search: only queues, jobs and kinds that the role may see. */
export function foundPage(wanted, { queues, keys, kinds }) {
  if (queues.length + keys.length + kinds.length === 0) return html`<p class="none">Nothing that is visible to you matches <q>${wanted}</q>. The search covers job numbers, the beginnings of keys, names of queues, and the kinds of the newest jobs. To search payloads and errors, open a queue and use its filter.</p>`;
  return html`${queues.length > 0 && html`<h2>Queues</h2><ul class="said">${queues.map((q) => html`<li>${queueLink(q.name)}</li>`)}</ul>`}
${keys.length > 0 && html`<h2>Jobs whose key begins with <q>${wanted}</q></h2>${table('Jobs', ['Job', 'Kind', 'Queue', 'Status'], keys.map((j) => [html`<a class="key" href="/job/${j.id}">${j.key}</a>`, key(j.kind), queueLink(j.queue), status(j.status)]), '')}`}
${kinds.length > 0 && html`<h2>Kinds</h2><ul class="said">${kinds.map((k) => html`<li><a href="${href(`/queue/${encodeURIComponent(k.queue)}`, { tab: 'all', kind: k.kind })}">${k.kind}</a> in queue ${k.queue}: ${count(k.jobs)} of the newest jobs</li>`)}</ul>`}`;
}

export function runningPage(rows) {
  return table('Running', [number('Job'), 'Queue', 'Worker', number('Process'), number('Attempt'), 'Since', number('Lease ends in'), 'State', 'Progress'],
    rows.map((w) => [jobLink(w.job_id), queueLink(w.queue), key(w.worker), w.pid ?? '–', w.attempt, when(w.claimed_at),
      duration(w.expires_in), html`${w.ahead === 'true' ? 'ahead, waits for a free place' : w.state}${w.attached && ', ends with its session'}`, progress(w.progress)]), 'No jobs are running.');
}

export function schedulesPage(rows, context) {
  return table('Schedules', ['Schedule', 'Queue', 'Expression', 'Zone', 'Next', 'After that', 'Last', 'State', ...(context.writes ? ['Action'] : [])],
    rows.map((s) => [key(s.name), queueLink(s.queue), html`<code>${s.cron}</code>`, s.time_zone, when(s.next_run),
      (s.ticks ?? []).slice(1).map((tick) => html`<div>${when(tick)}</div>`), s.last_run ? html`${when(s.last_run)} ${s.last_job && jobLink(s.last_job)}` : 'never',
      html`${s.paused_at && html`<div>${status('warn', 'paused')} ${when(s.paused_at)}</div>`}${s.failed_at ? html`<div>${status('dead', 'failed')} ${s.last_error}</div>` : !s.paused_at && status('well', 'OK')}`,
      ...(context.writes ? [s.may_run && html`${button(context, 'run_schedule', 'Run now', { schedule: s.name }, `Run schedule ${s.name} now`)}
${s.paused_at ? button(context, 'resume_schedule', 'Resume', { schedule: s.name }, `Resume schedule ${s.name}`) : button(context, 'pause_schedule', 'Pause', { schedule: s.name }, `Pause schedule ${s.name}`)}`] : [])]),
    'No schedules are visible to you. Create one with idemq.schedule.');
}

export function auditPage(rows, queue) {
  return html`${table('Audit', ['When', 'Who', 'Action', 'Queue', number('Job'), number('Jobs'), 'Details'], rows.map((a) => [
    when(a.at), html`<div>${a.actor && html`<div>${key(a.actor)}</div>`}<div class="${a.actor && 'small quiet'}">${a.role === a.session_role ? a.session_role : `${a.session_role} as ${a.role}`}</div></div>`, a.action, a.queue && key(a.queue), a.job_id && jobLink(a.job_id),
    a.jobs === null ? '' : count(a.jobs), html`<code>${a.details}</code>`]), 'No entries are visible to you. Administrators of a queue see the changes made to it.')}
${rows.length === page.size && more('/audit', { queue, before: rows.at(-1).id }, 'Older')}`;
}

export function checkPage(rows) {
  if (!rows) {
    return html`<p>Checks rows, indexes and shared memory, and changes nothing. It reads every job: allow a few seconds per million jobs.</p>
<form method="get" action="${href('/check')}"><input type="hidden" name="run" value="1"><button>Run idemq.check()</button></form>`;
  }
  return html`${table('Findings', ['Severity', 'Invariant', 'Detail'], rows.map((r) => [status(r.severity === 'error' ? 'dead' : 'warn', r.severity), r.invariant, r.detail]),
    'No problems found.')}<p><a href="/check?run=1">Run again</a></p>`;
}

const keys = [['/', 'go to the search field'], ['?', 'go to this page'], ['g o', 'go to the overview; g e errors, g r running jobs, g w workers, g s schedules, g a audit, g c check'],
  ['j', 'go to the next row of the first table, with k to the previous row; Enter opens it'], ['← →', 'in a chart, go to the previous or next value; Page Up and Page Down move by ten, Home and End go to the first and last value, Escape goes to now'],
  ['p', 'pause the live updates of the page, or resume them'], ['u', 'show times in UTC, or in the time zone of this browser'],
  ['Tab', 'go to the next link, button or chart; the first link on each page skips the menu']];

export function keysPage() {
  return html`${table('Keys', ['Key', 'Action'], keys.map(([name, does]) => [html`<kbd>${name}</kbd>`, does]), '')}
<p><label><input type="checkbox" data-keys checked> Use single-letter keys in this browser</label></p>`;
}
