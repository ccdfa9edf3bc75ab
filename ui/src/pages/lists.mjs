// The pages that consist of a list: errors, running jobs, schedules, audit, check, keys.
import { inWords } from '../cron.mjs';
import { html, href } from '../html.mjs';
import { count, duration, plural } from '../format.mjs';
import { page } from '../queries.mjs';
import { causeAddress } from './cause.mjs';
import { button, jobLink, key, more, number, progress, queueLink, status, table, when } from './layout.mjs';

export function errorsPage(rows, queue, context) {
  const healed = rows.some((e) => Number(e.healed) > 0);
  return html`${queue && html`<p>Errors of queue ${queueLink(queue)}. <a href="/errors">Show all queues</a></p>`}
${table('Errors', ['Error', number('Jobs'), number('Dead'), ...(healed ? [number('Resolved by a retry')] : []), 'Queue', 'SQLSTATE', 'First', 'Last', 'Sample job', ...(context.writes ? ['Action'] : [])],
    rows.map((e) => [html`<a href="${causeAddress(e.queue, e.fingerprint)}"><span class="error">${e.error ?? 'no message'}</span></a>`, count(e.jobs), count(e.dead), ...(healed ? [Number(e.healed) > 0 ? count(e.healed) : ''] : []), queueLink(e.queue), e.sqlstate && html`<code>${e.sqlstate}</code>`,
      when(e.first_seen), when(e.last_seen),
      jobLink(e.example_id), ...(context.writes ? [Number(e.dead) > 0 && e.may_administer
        ? button(context, 'redrive', `Retry ${plural(e.dead, 'dead job')}`, { queue: e.queue, error: e.fingerprint }, `Retry ${plural(e.dead, 'dead job')} of queue ${e.queue}: ${(e.error ?? '').slice(0, 80)}`) : null] : [])]),
    context.times?.span ? 'No job failed in this time span.' : 'No jobs are dead or failing.')}`;
}

export function runningPage(rows) {
  return table('Running', [number('Job'), 'Queue', 'Worker', number('Process'), number('Attempt'), 'Since', number('Lease ends in'), 'State', 'Progress'],
    rows.map((w) => [jobLink(w.job_id), queueLink(w.queue), key(w.worker), w.pid ?? '–', w.attempt, when(w.claimed_at),
      duration(w.expires_in), html`${w.ahead === 'true' ? 'ahead, waits for a free place' : w.state}${w.attached && ', ends with its session'}`, progress(w.progress)]), 'No jobs are running.');
}

export function schedulesPage(rows, context) {
  return html`${context.settings && html`<p class="actions"><a class="button" href="/schedule/add">Add a schedule</a></p>`}${table('Schedules', ['Schedule', 'Queue', 'Expression', 'Zone', 'Next', 'After that', 'Last', 'State', ...(context.writes ? ['Action'] : [])],
    rows.map((s) => [html`<a class="key" title="${s.name}" href="${href('/schedule', { name: s.name })}">${s.name}</a>`, queueLink(s.queue), html`<div>${inWords(s.cron)}</div><code class="quiet">${s.cron}</code>`, s.time_zone, when(s.next_run),
      (s.ticks ?? []).slice(1).map((tick) => html`<div>${when(tick)}</div>`), s.last_run ? html`${when(s.last_run)} ${s.last_job && jobLink(s.last_job)}` : 'never',
      html`${s.paused_at && html`<div>${status('warn', 'paused')} ${when(s.paused_at)}</div>`}${s.failed_at ? html`<div>${status('dead', 'failed')} ${s.last_error}</div>` : !s.paused_at && status('well', 'OK')}`,
      ...(context.writes ? [s.may_run && html`${button(context, 'run_schedule', 'Run now', { schedule: s.name }, `Run now: schedule ${s.name}`)}
${s.paused_at ? button(context, 'resume_schedule', 'Resume', { schedule: s.name }, `Resume schedule ${s.name}`) : button(context, 'pause_schedule', 'Pause', { schedule: s.name }, `Pause schedule ${s.name}`)}`] : [])]),
    'No schedules are visible to you. Create one with idemq.schedule.')}`;
}

export function auditPage(rows, queue, spanned) {
  return html`${table('Audit', ['When', 'Who', 'Action', 'Queue', number('Job'), number('Jobs'), 'Details'], rows.map((a) => [
    when(a.at), html`<div>${a.actor && html`<div>${key(a.actor)}</div>`}<div class="${a.actor && 'small quiet'}">${a.role === a.session_role ? a.session_role : `${a.session_role} as ${a.role}`}</div></div>`, a.action, a.queue && key(a.queue), a.job_id && jobLink(a.job_id),
    a.jobs === null ? '' : count(a.jobs), html`<code>${a.details}</code>`]), `No entries${spanned ? ' of this time span' : ''} are visible to you. Administrators of a queue see the changes made to it.`)}
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

const keys = [['/', 'go to the search box; so does Ctrl-K, even from a field'], ['↓ ↑', 'in the search box, mark a suggestion; Enter takes it, Escape closes the list'],
  ['j', 'go to the next row of a list; k goes to the previous row'], ['Enter', 'open the row'], ['x', 'select the job of the row, or deselect it'], ['n', 'go to the next page, or continue a search'],
  ['g o', 'go to the overview'], ['g e', 'go to the errors; g r running jobs, g f flows, g w workers, g s schedules, g a audit, g c check'],
  ['p', 'pause the live updates of the page, or resume them'], ['u', 'show times in UTC, or in the time zone of this browser'],
  ['← →', 'in a chart, go to the previous or next value; Page Up and Page Down move by ten, Home and End go to the first and last value, Escape goes to now'],
  ['Shift ← →', 'in a chart, select a time span; Enter shows it on the whole page, Escape drops it'],
  ['Tab', 'go to the next link, button or chart; the first links of each page skip the menu and lead to the list'], ['Escape', 'close a dialog'], ['?', 'show this list']];

export function keysPage() {
  return html`${table('Keys', ['Key', 'Action'], keys.map(([name, does]) => [html`<kbd>${name}</kbd>`, does]), '')}
<p><label><input type="checkbox" data-keys checked> Use single-letter keys in this browser</label></p>
<p class="dialog-only"><a class="button" href="/keys">Close</a></p>`;
}
