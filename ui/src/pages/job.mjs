// One job: its status and the reason for it, its timeline, and its documents.
import { now } from '../clock.mjs';
import { html } from '../html.mjs';
import { bytes, count, duration, time } from '../format.mjs';
import { part } from '../live.mjs';
import { LATEST, SHOWN, TRACE, documents } from '../jobs/queries.mjs';
import { lineOf } from '../jobs/line.mjs';
import { causeOf } from '../jobs/trace.mjs';
import { encrypted, errorOf, tree } from './document.mjs';
import { graphPicture } from './graph.mjs';
import { lineFigure, outcomes } from './line.mjs';
import { button, jobLink, key, number, progress, moment as shownTime, queueLink, status, table, when, whySentence } from './layout.mjs';

const at = (value) => (value ? Date.parse(value.replace(' ', 'T').replace(/\+00$/, 'Z')) : Number.POSITIVE_INFINITY);
const took = (from, to) => (from && to ? duration((at(to) - at(from)) / 1000) : null);

/** One entry of the timeline: the time, the state that its mark shows, a title, and details. */
const moment = (value, mark, what, more = null) => ({ value, mark, what, more });

function attemptOf(a, id, isLast) {
  const [mark, word] = outcomes[a.outcome] ?? ['blocked', a.outcome];
  const text = a.trace ?? a.error;
  const own = a.error && a.trace && !a.trace.includes(a.error.split('\n')[0]) ? html`<p class="error">${a.error.slice(0, 2000)}</p>` : null;
  const error = text && html`${own}${isLast ? errorOf(`trace${a.token}`, text, text.length >= TRACE)
    : html`<details><summary>${causeOf(text).slice(0, 160)}</summary>${errorOf(`trace${a.token}`, text, text.length >= TRACE)}</details>`}`;
  return moment(a.claimed_at ?? a.ended_at, mark, html`Attempt ${a.attempt}${a.worker && html` by ${key(a.worker)}`}: ${status(mark, word)}${a.took !== null && html` after <b>${duration(a.took)}</b>`}`,
    html`${error}${a.details && html`<details><summary>Details</summary>${tree(`details${a.token}`, 'Details', a.details, a.details.length < SHOWN)}</details>`}`);
}

const states = {
  open: ['running', 'open, no response yet'], done: ['completed', 'done'], refused: ['dead', 'refused'], void: ['cancelled', 'belongs to an earlier payload'],
  waiting: ['pending', 'waiting'], arrived: ['completed', 'arrived'], timed_out: ['dead', 'timed out'],
};

function stepOf(s, job, i) {
  const event = ['waiting', 'arrived', 'timed_out'].includes(s.state);
  const unknown = s.state === 'open' && (job.status !== 'running' || s.token !== job.token);
  const [mark, word] = unknown ? ['retrying', 'unknown (its attempt ended without a response)'] : states[s.state] ?? ['blocked', s.state];
  const until = s.state === 'waiting' ? html`, times out ${when(s.call_until)}` : s.state === 'open' && s.call_until ? html`; its request may arrive until ${time(s.call_until)}` : null;
  const document = (name) => s[`${name}_bytes`] !== null && html`<details><summary>${event ? 'payload' : name}</summary>${s[name] === null ? html`<p class="quiet">${bytes(s[`${name}_bytes`])}: too large to show here; use psql.</p>`
    : s[`${name}_encrypted`] !== null ? encrypted(s[`${name}_encrypted`]) : tree(`step${i}${name}`, `${s.name} ${name}`, s[name], s[`${name}_whole`])}</details>`;
  return moment(s.begun_at ?? s.answered_at, mark, html`${event ? 'Event' : 'Step'} ${key(s.name)}: ${status(mark, word)}${s.answered_at && s.begun_at && html` after <b>${took(s.begun_at, s.answered_at)}</b>`}${until}`,
    html`${document('request')}${document('response')}${s.error && html`<p class="error">${s.error}</p>`}${s.effect_key && html`<p class="quiet small">effect key ${key(s.effect_key)}${s.round > 0 && html`, round ${s.round + 1}`}</p>`}`);
}

/** The entries of a job's timeline, in the order in which they happened. */
function history({ job, attempts, steps, documents: shown }) {
  const last = attempts.findLast?.((a) => ['failed', 'expired'].includes(a.outcome)) ?? attempts.at(-1);
  const moments = [
    moment(job.enqueued_at, 'pending', html`Enqueued${job.run_at && at(job.run_at) > at(job.enqueued_at) && html`, for ${when(job.run_at)}`}`),
    ...attempts.map((a) => attemptOf(a, job.id, a === last)),
    ...steps.map((s, i) => stepOf(s, job, i)),
  ];
  // The worker has stored a log of the attempt that completed the job, so the attempt is already in the list.
  const shownAbove = attempts.some((a) => a.outcome === 'committed' && a.token === job.token);
  const checkpoint = job.progress !== null || shown?.checkpoint ? html`<p>${job.progress !== null ? html`Checkpoint: ${progress(job.progress)}` : 'A checkpoint was saved.'}</p>` : null;
  if (job.status === 'running') {
    moments.push(moment(job.claimed_at, 'running', html`Attempt ${job.attempt}${job.worker && html` by ${key(job.worker)}`}: ${status('running', 'running')} for <b>${duration((now() - at(job.claimed_at)) / 1000)}</b>`,
      html`${checkpoint}${job.expires_in !== null && html`<p class="quiet">Its lease ends in ${duration(job.expires_in)}${job.attached && ', or with its session'}${job.pid && html`; process ${job.pid}`}.</p>`}`));
  } else if (job.status === 'completed' && !shownAbove) {
    moments.push(moment(job.claimed_at ?? job.finished_at, 'completed', job.claimed_at ? html`Attempt ${job.attempt}${job.worker && html` by ${key(job.worker)}`}: ${status('completed', 'committed')} after <b>${took(job.claimed_at, job.finished_at)}</b>`
      : html`${status('completed', 'committed')}, without a claim`, checkpoint));
  } else if (checkpoint) {
    const before = moments[attempts.length]; // the last attempt, or the enqueue if there is no attempt
    before.more = html`${before.more}${checkpoint}`;
  }
  moments.sort((a, b) => at(a.value) - at(b.value));
  if (job.finished_at) moments.push(moment(job.finished_at, job.status, html`${status(job.status)}${took(job.enqueued_at, job.finished_at) && html`, ${took(job.enqueued_at, job.finished_at)} after it was enqueued`}`));
  else if (job.later) moments.push(moment(job.ready_at, 'next', steps.some((s) => s.state === 'waiting') ? 'Ready at this time, even without the event' : 'Ready for the next attempt'));
  if (!job.finished_at && job.expires_at) moments.push(moment(job.expires_at, 'next', 'Cancelled at this time, unless a worker claims it first'));
  return moments;
}

function shownDocument(id, name, shown) {
  if (!shown[`${name}_bytes`]) return null;
  if (shown[name] === null)
    return html`<section class="card" aria-label="${name}"><h2>${name}</h2><p class="none">The ${name} is too large to show here. Run <code>SELECT ${name} FROM idemq.job(${id})</code> in psql.</p></section>`;
  if (shown[`${name}_encrypted`] !== null) return html`<section class="card" aria-label="${name}"><h2>${name}</h2>${encrypted(shown[`${name}_encrypted`])}</section>`;
  const all = Number(shown[`${name}_bytes`]);
  const whole = shown[`${name}_whole`];
  return html`<section class="card" aria-label="${name}"><h2>${name}</h2>${!whole && html`<p>The first ${bytes(SHOWN)} of ${bytes(all)}.</p>`}
${tree(name, name, shown[name], whole)}<p class="last"><a class="button" href="/job/${id}/${name}" download>Download ${name}</a> <span class="quiet">${bytes(all)}</span></p></section>`;
}

/** flow: {jobs, more (whether there are more), picture (from flows/drawn.mjs)}, or null. */
function flowOf(job, flow) {
  if (flow === null) return null;
  const by = { step: ', by step (queue and kind)', queue: ', by queue' }[flow.picture.graph.by];
  return html`<section class="card"><h2>flow</h2><p>${flow.more && 'More than '}${count(flow.jobs)} jobs${by}. <a class="button" href="/flow/${job.id}">View progress</a></p>
<div class="scroll graph" role="region" aria-label="The flow of job ${job.id}" tabindex="0">${graphPicture(flow.picture, job.id)}</div></section>`;
}

/** The actions that are possible on a job now. */
function actionsOf(job, context) {
  const waits = !job.finished_at && job.status !== 'running';
  return html`${context.may.enqueue && html`${(job.status === 'retrying' || ['dead', 'cancelled'].includes(job.status)) && button(context, 'retry', 'Retry', { id: job.id })}
${job.status === 'pending' && job.later && button(context, 'run_now', 'Run now', { id: job.id })}
${!job.finished_at && button(context, 'cancel', 'Cancel', { id: job.id })}`}
${context.may.admin && job.status === 'running' && button(context, 'revoke_lease', 'Revoke lease', { id: job.id })}
${context.writes && context.may.enqueue && waits && html`<details class="reschedule"><summary class="button">Reschedule</summary><form method="get" action="/confirm" class="actions"><input type="hidden" name="action" value="reschedule"><input type="hidden" name="id" value="${job.id}">
<label>Not before (UTC) <input type="datetime-local" name="run_at" step="1"${job.later ? html` value="${time(job.ready_at).slice(0, 19).replace(' ', 'T')}"` : ''}></label>
<label>Priority <select name="priority">${Array.from({ length: 10 }, (_, i) => html`<option${i === job.priority ? html` selected` : ''}>${i}</option>`)}</select></label>
<button>Reschedule …</button></form></details>`}`;
}

export function jobPage({ job, shown, attempts, group, steps, flow }, context) {
  const fact = (name, value) => value !== null && value !== undefined && html`<div><dt>${name}</dt><dd class="whole">${value}</dd></div>`;
  const moments = history({ job, attempts, steps, documents: shown });
  const error = job.last_error !== null && !attempts.some((a) => ['failed', 'expired'].includes(a.outcome) && (a.error ?? a.trace));
  const line = lineOf(job, attempts, now() / 1000, attempts.length < LATEST);
  return html`${part('why', html`<div class="${job.status}">${whySentence(job.why, job.status)}</div>`)}
<div class="actions">${actionsOf(job, context)}</div>
<dl class="facts">${fact('job', html`<span class="number">${job.id}</span>`)}${fact('queue', job.queue ? queueLink(job.queue) : job.queue_id)}${fact('status', status(job.status))}${fact('kind', job.kind)}${fact('key', job.key)}${fact('group', job.group_key)}
${fact('attempt', html`${job.attempt} of ${job.max_attempts}`)}${fact('priority', job.priority)}${fact('progress', progress(job.progress))}${job.token !== '0' && fact('token', job.token)}</dl>
${line && part('line', lineFigure(line))}
<div class="job"><div>
<section><h2 class="unseen">History</h2>${attempts.length >= LATEST && html`<p class="quiet">Only the latest ${LATEST} attempts are shown.</p>`}
<ol class="times">${moments.map((m) => html`<li class="${m.mark}"><div class="what">${m.what}</div><div class="then">${shownTime(m.value)}, ${when(m.value)}</div>${m.more}</li>`)}</ol></section>
${error && html`<section class="card"><h2>last error</h2>${errorOf('last', job.last_error, job.last_error.length >= TRACE)}</section>`}
${flowOf(job, flow)}
${group && html`<section><h2>group, in order</h2>${table('Group', [number('Job'), 'Status', 'Enqueued'],
    group.map((g) => [g.id === job.id ? html`<b>${g.id}</b>` : jobLink(g.id), status(g.status), when(g.enqueued_at)]), 'None.')}</section>`}
</div><div>${documents.map((name) => shownDocument(job.id, name, shown))}</div></div>
<script src="/static/jobs.js" defer></script>`;
}
