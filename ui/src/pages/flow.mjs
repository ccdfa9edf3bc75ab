// The flow that a job belongs to: its progress, and the job that is holding it up.
import { html } from '../html.mjs';
import { count, duration, percent } from '../format.mjs';
import { button, jobLink, key, number, queueLink, status, table, when, whySentence } from './layout.mjs';

/** The states of a flow's jobs, in the order in which the bar shows them: [field of idemq.flow, status, word]. */
const parts = [['completed', 'completed', 'completed'], ['running', 'running', 'running'], ['retrying', 'retrying', 'retrying'],
  ['waiting', 'pending', 'waiting'], ['blocked', 'blocked', 'blocked'], ['cancelled', 'cancelled', 'cancelled'], ['dead', 'dead', 'dead']];

function bar(flow) {
  const all = Number(flow.jobs);
  let x = 0;
  return html`<svg class="parts" viewBox="0 0 1000 24" preserveAspectRatio="none" aria-hidden="true">${parts.map(([name]) => {
    const width = (Number(flow[name]) * 1000) / all;
    x += width;
    return width > 0 && html`<rect class="${name}" x="${(x - width).toFixed(1)}" width="${Math.max(width, 2).toFixed(1)}" height="24"/>`;
  })}</svg>`;
}

/** groups: the rows of queries.flowJobs, or the reason why there are none. */
export function flowPage(id, flow, groups, context) {
  const left = Number(flow.jobs) - Number(flow.done);
  const failed = flow.failed_ids ?? [];
  const lost = Number(flow.dead) + Number(flow.cancelled);
  const jobs = (n, word) => `${count(n)} ${String(n) === '1' ? 'job' : 'jobs'} ${word}`;
  const state = Number(flow.dead) > 0 ? html`${status('dead', 'Failed')}: ${jobs(flow.dead, 'died')}${Number(flow.cancelled) > 0 && html`, ${jobs(flow.cancelled, 'cancelled')}`}. `
    : Number(flow.cancelled) > 0 ? html`${status('cancelled', 'Partly cancelled')}: ${jobs(flow.cancelled, 'cancelled')}. `
      : left === 0 ? html`${status('completed', 'Completed')}. ` : null;
  return html`<p class="why">${state}<b>${count(Number(flow.done) - lost)} of ${count(flow.jobs)}</b> ${String(flow.jobs) === '1' ? 'job' : 'jobs'} completed${left > 0 && html`, <b>${percent(flow.progress)}</b> finished`}${flow.ended_at ? html`. It ended ${when(flow.ended_at)}.`
    : flow.eta !== null ? html`. The rest will take about <b>${duration(flow.eta)}</b> at the current rate.` : '. No estimate yet.'}</p>
${flow.cut && html`<p class="notice warn">Not all jobs of this flow are counted. The figures cover the first ${count(flow.jobs)} jobs.</p>`}
${bar(flow)}
<dl class="facts">${parts.filter(([name]) => Number(flow[name]) > 0).map(([name, shape, word]) => html`<div><dt>${status(shape, word)}</dt><dd>${count(flow[name])}</dd></div>`)}
<div><dt>started</dt><dd>${when(flow.begun_at)}</dd></div></dl>
${flow.held_up_by && html`<p class="notice warn"><b>Blocked by job ${jobLink(flow.held_up_by)}</b></p>${whySentence(flow.held_up_why)}`}
${left > 0 && html`<p class="actions">${button(context, 'cancel_flow', 'Cancel flow', { id })}</p>`}
<dl class="facts"><div><dt>${(flow.roots ?? []).length === 1 ? 'root job' : 'root jobs'}</dt><dd>${(flow.roots ?? []).slice(0, 10).map((root) => html`${jobLink(root)} `)}${(flow.roots ?? []).length > 10 && 'and more'}</dd></div>
${flow.slowest && html`<div><dt>slowest</dt><dd>${jobLink(flow.slowest)}${flow.slowest_kind && html`, ${key(flow.slowest_kind)},`} ran for ${duration(flow.slowest_for)}</dd></div>`}
${failed.length > 0 && html`<div><dt>dead or failing</dt><dd>${failed.slice(0, 20).map((job) => html`${jobLink(job)} `)}${failed.length > 20 && 'and more'}</dd></div>`}
</dl>
<h2>Steps</h2>
${typeof groups === 'string' ? html`<p class="notice bad" role="alert">${groups}</p>` : steps(groups, flow)}`;
}

function steps(groups, flow) {
  const folded = groups.reduce((sum, { jobs }) => sum + Number(jobs), 0);
  return html`${folded < Number(flow.jobs) && html`<p class="quiet">Only the first ${count(folded)} jobs are included.</p>`}
${table('Jobs of the flow', [number('Step'), 'Queue', 'Kind', 'Status', number('Jobs'), 'Sample job', number('Longest run'), 'Started', 'Ended', 'Error'],
    groups.map((g) => [Number(g.depth) + 1, queueLink(g.queue), key(g.kind), status(g.status), count(g.jobs), jobLink(g.example), duration(g.longest),
      g.begun_at && when(g.begun_at), g.ended_at && when(g.ended_at), g.last_error && html`<span class="error">${g.last_error}</span>`]), 'None of these jobs is visible to you.')}`;
}
