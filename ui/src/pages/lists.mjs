// The pages that are a list: errors, workers and handlers, schedules, audit, check.
import { html, href } from '../html.mjs';
import { count, distance, duration, time } from '../format.mjs';
import { page } from '../queries.mjs';
import { button, jobLink, more, number, queueLink, table } from './layout.mjs';

export function errorsPage(rows, queue, context) {
  return html`${queue && html`<p>Of queue ${queueLink(queue)}. <a href="/errors">Of all queues</a></p>`}
${table('Errors', [number('Jobs'), number('Dead'), 'Queue', 'SQLSTATE', 'Error', 'First', 'Last', 'Example', ...(context.writes ? ['Action'] : [])],
    rows.map((e) => [count(e.jobs), count(e.dead), queueLink(e.queue), html`<code>${e.sqlstate}</code>`, html`<span class="error">${e.error ?? 'no message'}</span>`,
      html`<span title="${time(e.first_seen)}">${distance(e.first_seen)}</span>`, html`<span title="${time(e.last_seen)}">${distance(e.last_seen)}</span>`,
      jobLink(e.example_id), ...(context.writes ? [Number(e.dead) > 0
        ? button(context, 'redrive', `Redrive ${count(e.dead)}`, { queue: e.queue, error: e.fingerprint }, `Redrive ${count(e.dead)} jobs of queue ${e.queue}: ${(e.error ?? '').slice(0, 80)}`) : null] : [])]),
    'No job is dead or failing.')}`;
}

export function workersPage(rows, handlers) {
  return html`${table('Workers', ['Queue', number('Job'), 'Worker', number('Process'), number('Attempt'), 'Since', number('Lease ends in'), 'Attached', 'State', number('Progress')],
    rows.map((w) => [queueLink(w.queue), jobLink(w.job_id), w.worker, w.pid ?? '–', w.attempt, html`<span title="${time(w.claimed_at)}">${distance(w.claimed_at)}</span>`,
      duration(w.expires_in), w.attached ? 'yes' : 'no', w.state, w.progress === null ? '–' : html`${w.progress} %`]), 'No job is running.')}
${handlers && html`<h2>Handlers in the server</h2>${handlers.length === 0 ? html`<p class="none">None: idemq.set_handler makes one.</p>`
    : table('Handlers', Object.keys(handlers[0].handler), handlers.map(({ handler }) => Object.values(handler).map((value) => (value !== null && typeof value === 'object' ? JSON.stringify(value) : value))), '')}`}`;
}

export function schedulesPage(rows, context) {
  return table('Schedules', ['Schedule', 'Queue', 'Cron', 'Zone', 'Next', 'After that', 'Last', 'State', ...(context.writes ? ['Action'] : [])],
    rows.map((s) => [s.name, queueLink(s.queue), html`<code>${s.cron}</code>`, s.time_zone, html`<span title="${time(s.next_run)}">${distance(s.next_run)}</span>`,
      (s.ticks ?? []).slice(1).map((tick) => html`<div>${time(tick)}</div>`), s.last_run ? html`${distance(s.last_run)} ${s.last_job && jobLink(s.last_job)}` : 'never',
      s.failed_at ? html`<span class="status dead">failed</span> ${s.last_error}` : html`<span class="status completed">well</span>`,
      ...(context.writes ? [button(context, 'run_schedule', 'Run now', { schedule: s.name }, `Run schedule ${s.name} now`)] : [])]),
    'There is no schedule that you may see: idemq.schedule makes one.');
}

export function auditPage(rows, queue) {
  return html`${table('Audit', ['When', 'Who', 'Action', 'Queue', number('Job'), number('Jobs'), 'Details'], rows.map((a) => [
    time(a.at), a.role === a.session_role ? a.session_role : `${a.session_role} as ${a.role}`, a.action, a.queue, a.job_id && jobLink(a.job_id),
    a.jobs === null ? '' : count(a.jobs), html`<code>${a.details}</code>`]), 'Nothing was done that you may see: administrators of a queue see what was done to it.')}
${rows.length === page.size && more('/audit', { queue, before: rows.at(-1).id }, 'Older')}`;
}

export function checkPage(rows) {
  if (!rows) {
    return html`<p>Audits rows, indexes and shared memory, and reads all jobs: seconds a million. It changes nothing.</p>
<form method="get" action="${href('/check')}"><input type="hidden" name="run" value="1"><button>Run idemq.check()</button></form>`;
  }
  return html`${table('Findings', ['Severity', 'Invariant', 'Detail'], rows.map((r) => [html`<span class="status ${r.severity === 'error' ? 'dead' : 'failed'}">${r.severity}</span>`, r.invariant, r.detail]),
    'All is well: no invariant is broken.')}<p><a href="/check?run=1">Run again</a></p>`;
}
