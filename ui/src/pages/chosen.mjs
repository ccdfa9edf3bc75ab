// Actions on several jobs: their confirmation and their progress.  Also the form that enqueues a job by hand.
import { href, html } from '../html.mjs';
import { count, duration } from '../format.mjs';
import { doings } from '../jobs/doing.mjs';
import { part } from '../live.mjs';
import { momentOf } from '../jobs/walk.mjs';
import { key, moment, number, progress, status, table } from './layout.mjs';
import { addressOf } from './queue.mjs';

const outcomes = {
  current: 'already ready', locked: 'running, or held by another transaction', completed: 'completed', dead: 'dead', cancelled: 'cancelled',
  blocked: 'blocked', not_found: 'deleted', kept: 'kept, because they are running or another job waits for them', not_due: 'not due', accepted: 'accepted',
};

/** A sentence about the result of an action: the number of jobs changed, and the reasons why others were not. */
export function said(doing, came) {
  const others = Object.entries(came).filter(([outcome, jobs]) => outcome !== doing.success && jobs > 0)
    .map(([outcome, jobs]) => `${count(jobs)} ${outcomes[outcome] ?? outcome}`);
  const n = came[doing.success] ?? 0;
  return `${count(n)} ${n === 1 ? 'job' : 'jobs'} ${doing.done}.${others.length > 0 ? ` Not changed: ${others.join(', ')}.` : ''}`;
}

/** The address of the list from which an action was started. */
export const listOf = (queue, want, given) => href(addressOf(queue), { tab: want.tab, ...given });

const inWords = { kind: 'of kind', key: 'with a key that begins with', group: 'of group', error: 'whose error contains', cause: 'whose error has the fingerprint', since: 'enqueued from', until: 'enqueued until', payload: 'whose payload contains' };

export function surePage({ queue, want, seen, given, token }) {
  const unmet = seen.looked === 0 && (seen.atLeast || seen.jobs > 0);
  const jobs = unmet && seen.jobs === 0 ? 'jobs not counted yet' : html`${seen.atLeast && 'at least '}${count(seen.jobs)} ${seen.jobs === 1 ? 'job' : 'jobs'}`;
  const { doing } = want;
  const { from, to } = want.filter;
  const within = want.all && from && html`, ${momentOf[want.tab]?.[1] ?? 'enqueued, claimed or finished'} between <b>${moment(from)}</b> and <b>${moment(to)}</b>`;
  const of = want.all && Object.entries(given).map(([name, value], i) => html`${i > 0 && ', '} ${inWords[name]} <code>${value}</code>`);
  if (seen.jobs === 0 && !unmet) return html`<p class="why">None of these jobs exists any longer.</p><p><a class="button" href="${listOf(queue, want, given)}">Back</a></p>`;
  const details = unmet ? html`<p class="quiet">No matching job was found within one second${seen.jobs === 0 && ', and there may be none'}.</p>` : table('Selected jobs', ['Status', 'Kind', number('Jobs')], seen.of.slice(0, 20).map((row) => [status(row.status), key(row.kind) ?? html`<span class="quiet">none</span>`, count(row.jobs)]), '');
  return html`<p class="why"><b>${jobs}</b> of queue <b class="whole">${queue.name}</b>${want.all && html`, all ${want.tab === 'all' ? 'jobs' : `that are ${want.tab}`}${within}${of}`}${want.value !== null && html`, to priority <b>${want.value}</b>`}: ${doing.does}</p>
${details}${!unmet && seen.looked < seen.jobs && html`<p class="quiet">The table covers the first ${count(seen.looked)} of them.</p>`}
<form method="post" action="${addressOf(queue)}/do" class="actions"><input type="hidden" name="csrf" value="${token}"><input type="hidden" name="doing" value="${want.name}"><input type="hidden" name="tab" value="${want.tab}">
${Object.entries(given).map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`)}${want.value !== null && html`<input type="hidden" name="value" value="${want.value}">`}
${want.all ? html`<input type="hidden" name="all" value="1"><input type="hidden" name="upto" value="${seen.upto}">` : html`<input type="hidden" name="ids" value="${want.ids.join(',')}">`}
<button class="do${doing.undo === false ? ' final' : ''}">${doing.title.replace(/^(Set) (priority)$/, 'Set priority of')} ${jobs}</button> <a class="button" href="${listOf(queue, want, given)}">Keep as is</a></form>`;
}

/** The part of the page that is refreshed while the action is in progress. */
function doingPart(doing) {
  const { want, outcomes: came, expected, ended, began, jobs, looked, stopped, trouble } = doing;
  const took = ((ended ?? Date.now()) - began) / 1000;
  const share = expected.atLeast || expected.jobs === 0 ? looked / Math.max(expected.total, looked, 1) : jobs / Math.max(expected.jobs, jobs);
  const left = share > 0.02 && took > 1 ? took / share - took : null;
  const how = html`${said(doings[want.name], came)}`;
  return html`<p class="why">${ended === null ? html`<b>${count(jobs)}${expected.atLeast ? '' : html` of ${count(expected.jobs)}`}</b> ${jobs === 1 ? 'job' : 'jobs'} so far.`
    : trouble ? html`<b>Stopped early because of an error.</b>` : stopped ? html`<b>Stopped.</b>` : html`<b>Done.</b>`} ${how}</p>
${stopped && ended === null && html`<p class="notice warn">It stops after the current batch.</p>`}
${doing.waits && ended === null && html`<p class="notice warn">Another transaction holds one of these jobs, so the action tries again.</p>`}
${trouble && html`<p class="notice bad" role="alert">${trouble}. Completed changes remain. Start the action again for the rest.</p>`}
<p>${progress(ended !== null && !trouble && !stopped ? 100 : share * 100, 'Progress')}
<span class="quiet">${expected.atLeast && html`searched ${count(looked)} of ${count(Math.max(expected.total, looked))} jobs, `}${duration(took)}${ended === null && left !== null && html`, about ${duration(left)} left`}</span></p>`;
}

export function doingPage(doing, token) {
  const back = html`<a class="button" href="${addressOf(doing.queue)}">Queue ${doing.queue.name}</a>`;
  if (doing.ended !== null) return html`${doingPart(doing)}<p class="actions">${back}</p>`;
  return html`<noscript><meta http-equiv="refresh" content="2"></noscript>
${part('progress', doingPart(doing))}
<form method="post" action="/doing/${doing.id}/stop" class="actions"><input type="hidden" name="csrf" value="${token}"><button class="do">Stop</button> ${back}</form>
<p class="quiet">The action continues while this page’s server runs, even if you leave the page. Each batch of 500 jobs is a separate transaction with its own audit entry.</p>`;
}

const fields = [
  ['kind', 'Kind', 'label that tells the worker which handler to use (up to 64 bytes)'],
  ['key', 'Key', 'a second job with the same key is not added'],
  ['group_key', 'Group', 'jobs of one group run one at a time, in order'],
  ['delay', 'Delay', 'for example 10 min; empty means immediately'],
  ['priority', 'Priority', '0 is claimed first, 9 last'],
  ['max_attempts', 'Attempts', 'empty means the queue’s setting'],
];

/** given: the values that were entered; trouble: {field, message} if one of them is invalid. */
export function enqueuePage(queue, given, trouble, token) {
  const invalid = (name) => (trouble?.field === name ? html` aria-invalid="true" aria-describedby="trouble"` : '');
  return html`${trouble && html`<p class="notice bad" role="alert" id="trouble">${trouble.message}</p>`}
<form method="post" action="${addressOf(queue)}/enqueue" class="byhand"><input type="hidden" name="csrf" value="${token}">
<label>Payload (JSON)<textarea name="payload" rows="10" required spellcheck="false"${invalid('payload')}>${given.payload ?? '{}'}</textarea></label>
<div class="fields">${fields.map(([name, title, help]) => html`<label>${title}<input name="${name}" value="${given[name] ?? (name === 'priority' ? '4' : '')}" autocomplete="off" spellcheck="false"${invalid(name)}><span class="quiet small">${help}</span></label>`)}</div>
<label>Headers (JSON)<textarea name="headers" rows="3" spellcheck="false"${invalid('headers')}>${given.headers ?? ''}</textarea></label>
<p class="actions"><button class="do">Enqueue to ${queue.name}</button> <a class="button" href="${addressOf(queue)}">Go back</a></p></form>`;
}
