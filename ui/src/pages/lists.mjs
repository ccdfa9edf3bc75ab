// The pages that are a list: errors, what runs, schedules, audit, check, keys.
import { html, href } from '../html.mjs';
import { count, duration } from '../format.mjs';
import { page } from '../queries.mjs';
import { button, jobLink, key, more, number, progress, queueLink, status, table, when } from './layout.mjs';

export function errorsPage(rows, queue, context) {
  return html`${queue && html`<p>Of queue ${queueLink(queue)}. <a href="/errors">Of all queues</a></p>`}
${table('Errors', ['Error', number('Jobs'), number('Dead'), 'Queue', 'SQLSTATE', 'First', 'Last', 'Example', ...(context.writes ? ['Action'] : [])],
    rows.map((e) => [html`<span class="error">${e.error ?? 'no message'}</span>`, count(e.jobs), count(e.dead), queueLink(e.queue), e.sqlstate && html`<code>${e.sqlstate}</code>`,
      when(e.first_seen), when(e.last_seen),
      jobLink(e.example_id), ...(context.writes ? [Number(e.dead) > 0 && e.may_administer
        ? button(context, 'redrive', `Redrive ${count(e.dead)}`, { queue: e.queue, error: e.fingerprint }, `Redrive ${count(e.dead)} jobs of queue ${e.queue}: ${(e.error ?? '').slice(0, 80)}`) : null] : [])]),
    'No job is dead or failing.')}`;
}

export function runningPage(rows) {
  return table('Running', [number('Job'), 'Queue', 'Worker', number('Process'), number('Attempt'), 'Since', number('Lease ends in'), 'State', 'Progress'],
    rows.map((w) => [jobLink(w.job_id), queueLink(w.queue), key(w.worker), w.pid ?? '–', w.attempt, when(w.claimed_at),
      duration(w.expires_in), html`${w.state}${w.attached && ', ends with its session'}`, progress(w.progress)]), 'No job is running.');
}

export function schedulesPage(rows, context) {
  return table('Schedules', ['Schedule', 'Queue', 'Cron', 'Zone', 'Next', 'After that', 'Last', 'State', ...(context.writes ? ['Action'] : [])],
    rows.map((s) => [key(s.name), queueLink(s.queue), html`<code>${s.cron}</code>`, s.time_zone, when(s.next_run),
      (s.ticks ?? []).slice(1).map((tick) => html`<div>${when(tick)}</div>`), s.last_run ? html`${when(s.last_run)} ${s.last_job && jobLink(s.last_job)}` : 'never',
      s.failed_at ? html`<div>${status('dead', 'failed')} ${s.last_error}</div>` : status('well'),
      ...(context.writes ? [s.may_run && button(context, 'run_schedule', 'Run now', { schedule: s.name }, `Run schedule ${s.name} now`)] : [])]),
    'There is no schedule that you may see: idemq.schedule makes one.');
}

export function auditPage(rows, queue) {
  return html`${table('Audit', ['When', 'Who', 'Action', 'Queue', number('Job'), number('Jobs'), 'Details'], rows.map((a) => [
    when(a.at), html`<div>${a.actor && html`<div>${key(a.actor)}</div>`}<div class="${a.actor && 'small quiet'}">${a.role === a.session_role ? a.session_role : `${a.session_role} as ${a.role}`}</div></div>`, a.action, a.queue && key(a.queue), a.job_id && jobLink(a.job_id),
    a.jobs === null ? '' : count(a.jobs), html`<code>${a.details}</code>`]), 'Nothing was done that you may see: administrators of a queue see what was done to it.')}
${rows.length === page.size && more('/audit', { queue, before: rows.at(-1).id }, 'Older')}`;
}

export function checkPage(rows) {
  if (!rows) {
    return html`<p>Audits rows, indexes and shared memory, and reads all jobs: seconds a million. It changes nothing.</p>
<form method="get" action="${href('/check')}"><input type="hidden" name="run" value="1"><button>Run idemq.check()</button></form>`;
  }
  return html`${table('Findings', ['Severity', 'Invariant', 'Detail'], rows.map((r) => [status(r.severity === 'error' ? 'dead' : 'warn', r.severity), r.invariant, r.detail]),
    'All is well: no invariant is broken.')}<p><a href="/check?run=1">Run again</a></p>`;
}

const keys = [['/', 'to the field that finds a job'], ['?', 'to this page'], ['g o', 'to the overview; g e errors, g r what runs, g w workers, g s schedules, g a audit, g c check'],
  ['j', 'to the next row of the first table, k to the one before; Enter opens it'], ['← →', 'in a chart: the value before, or after; Page up and down: ten, Home and End: the first, the last; Escape: now'],
  ['Tab', 'to the next link, button or chart; on each page the first leads over the menu']];

export function keysPage() {
  return html`${table('Keys', ['Key', 'What it does'], keys.map(([name, does]) => [html`<kbd>${name}</kbd>`, does]), '')}
<p><label><input type="checkbox" data-keys checked> Keys of one letter work in this browser</label></p>`;
}
