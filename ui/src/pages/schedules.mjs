// The page of a schedule, and the form that adds or changes one.
import { html } from '../html.mjs';
import { duration } from '../format.mjs';
import { part } from '../live.mjs';
import { button, jobLink, key, moment, number, queueLink, status, table, when } from './layout.mjs';
import { wordOf } from './queue.mjs';
import { invalid, troubleOf } from './settings.mjs';

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** The next runs, computed by the database. */
export const runsList = (words, ticks) => html`${words && html`<p>Runs <b>${words}</b>.</p>`}${ticks.length > 0 && html`<p>Next runs:</p><ul class="said">${ticks.map((tick) => html`<li>${moment(tick)} <span class="quiet">(${when(tick)})</span></li>`)}</ul>`}`;

const seconds = (from, to) => (from && to ? (Date.parse(to.replace(' ', 'T').replace(/\+00$/, 'Z')) - Date.parse(from.replace(' ', 'T').replace(/\+00$/, 'Z'))) / 1000 : null);

/** The ticks: those that have a job, and those of the last ticks of the expression that have none, the latest first. */
export function ticksOf(jobs, past, name) {
  const found = new Map();
  for (const job of jobs) {
    const tick = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)Z$/.exec(job.key.slice(name.length + 1));
    if (tick) found.set(`${tick[1]} ${tick[2]}+00`, job);
  }
  const oldest = jobs.length >= 50 ? [...found.keys()].sort()[0] : '';
  for (const { at } of past) if (!found.has(at) && at > oldest) found.set(at, null);
  return [...found].sort(([a], [b]) => (a < b ? 1 : -1)).slice(0, 50);
}

/** schedule: a row of the statement; jobs: those of its ticks; past: its last ticks; edit: the address of the form, or null. */
export function schedulePage({ schedule: s, words, jobs, past, edit }, context) {
  const ticks = ticksOf(jobs, past, s.name);
  const facts = [['Queue', queueLink(s.queue)], ['Expression', html`<code>${s.cron}</code>`], ['Time zone', s.time_zone], ['Kind', s.kind], ['Priority', s.priority], ['Group', s.group_key && key(s.group_key)],
    ['Attempts', s.max_attempts], ['Expires after', s.expires_in && html`<span>${s.expires_in}</span>`], ['Role', s.created_by], ['Payload', s.payload && html`<code class="payload">${s.payload}</code>`], ['Headers', s.headers && html`<code class="payload">${s.headers}</code>`]];
  return html`<p class="why">${words ? `${capital(words)}${/^every (\d+ )?(second|minute|hour)s?$/.test(words) ? '' : `, ${s.time_zone} time`}.` : html`<code>${s.cron}</code>`}</p>
<p class="actions">${s.may_change && html`${button(context, 'run_schedule', 'Run now', { schedule: s.name })}
${s.paused_at ? button(context, 'resume_schedule', 'Resume', { schedule: s.name }) : button(context, 'pause_schedule', 'Pause', { schedule: s.name })}`}${edit && html`<a class="button" href="${edit}">Change schedule</a>`}</p>
${part('state', html`${s.paused_at && html`<p class="notice warn">Paused since ${moment(s.paused_at)}. It has no ticks until it is resumed.</p>`}
${s.failed_at && html`<p class="notice bad"><b>The last tick failed</b> ${when(s.failed_at)}: ${s.last_error ?? 'the reason is visible only to the role that created the schedule and to administrators of the queue'}</p>`}`)}
<dl class="facts">${facts.filter(([, value]) => value !== null && value !== undefined && value !== '').map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
${s.paused_at ? null : html`<h2>Next runs</h2>${part('next', (s.ticks ?? []).length === 0 ? html`<p class="none">There is no further tick.</p>` : html`<ul class="said">${s.ticks.map((tick) => html`<li>${moment(tick)} <span class="quiet">(${when(tick)})</span></li>`)}</ul>`)}`}
<h2>History</h2>${part('history', table('Ticks', ['Tick', 'Job', 'Status', number('Late'), number('Took'), 'Error'], ticks.map(([tick, job]) => (job === null
    ? [moment(tick), html`<span class="quiet">no job</span>`, '', '', '', '']
    : [moment(tick), jobLink(job.id), status(job.status, wordOf(job)), duration(Math.max(seconds(tick, job.enqueued_at), 0)), duration(seconds(job.claimed_at, job.finished_at)), job.last_error && html`<span class="error">${job.last_error}</span>`])),
  'No tick of this schedule is visible to you yet.'))}
${ticks.some(([, job]) => job === null) && html`<p class="quiet">A tick has no job if the schedule was paused or was changed later, if the server was down at the time, or if the job has been deleted after its retention period.</p>`}`;
}

/** values: what the fields show; was: the values that the user wants to replace; trouble: {message, fields}, or null. */
export function scheduleForm({ fields, adds, name, values, was, trouble, queues }) {
  const input = ([field, type, help, optional]) => {
    const value = values[field] ?? '';
    if (type === 'jsonb') return html`<textarea name="${field}" rows="${field === 'payload' ? 6 : 2}" spellcheck="false"${invalid(trouble, field)}>${value}</textarea>`;
    if (field === 'queue') return html`<select name="queue"${invalid(trouble, field)}>${[...new Set([...queues, value].filter((one) => one !== ''))].map((queue) => html`<option${queue === value ? html` selected` : ''}>${queue}</option>`)}</select>`;
    return html`<input name="${field}" value="${value}"${optional && html` placeholder="none"`}${type === 'int' && html` inputmode="numeric"`} autocomplete="off" spellcheck="false"${invalid(trouble, field)}>`;
  };
  return html`${troubleOf(trouble)}
<form method="get" action="${adds ? '/schedule/add' : '/schedule/edit'}/confirm" class="settings-form byhand">
${adds ? html`<label>Name<input name="name" value="${name}" required autocomplete="off" spellcheck="false"${invalid(trouble, 'name')}><span class="quiet small">unique in the database</span></label>` : html`<input type="hidden" name="name" value="${name}">`}
<div class="fields">${fields.map((field) => html`<label${field[1] === 'jsonb' ? html` class="wide"` : ''}>${field[0]}${!adds && html`<input type="hidden" name="was_${field[0]}" value="${was[field[0]]}">`}${input(field)}<span class="quiet small">${field[2]}</span></label>`)}</div>
<p class="actions"><button class="do">${adds ? 'Review the schedule' : 'Review the change'}</button> <a class="button" href="${adds ? '/schedules' : `/schedule?${new URLSearchParams({ name })}`}">Cancel</a></p></form>`;
}
