// A flow: its state, its graph or when its jobs ran, its critical path, and its jobs.
import { html } from '../html.mjs';
import { count, duration, percent } from '../format.mjs';
import { lostWords } from '../flows/actions.mjs';
import { DRAWN, secondsOf, stateOf } from '../flows/model.mjs';
import { part } from '../live.mjs';
import { ganttOf } from './gantt.mjs';
import { graphPicture, wordOf } from './graph.mjs';
import { button, jobLink, key, number, queueLink, status, table, when, whySentence } from './layout.mjs';

/** The states of a flow's jobs, in the order in which the bar shows them: [field of idemq.flow, status, word]. */
export const parts = [['completed', 'completed', 'completed'], ['running', 'running', 'running'], ['retrying', 'retrying', 'retrying'],
  ['waiting', 'pending', 'waiting'], ['blocked', 'blocked', 'blocked'], ['cancelled', 'cancelled', 'cancelled'], ['dead', 'dead', 'dead']];
/** Maximum number of rows in the table of steps. */
const STEPS = 200;

const jobs = (n, word) => `${count(n)} ${String(n) === '1' ? 'job' : 'jobs'} ${word}`;

/** The states of a flow's jobs as a bar. */
export function bar(flow, label = null) {
  const all = Number(flow.jobs);
  let x = 0;
  return html`<svg class="parts" viewBox="0 0 1000 24" preserveAspectRatio="none"${label === null ? html` aria-hidden="true"` : html` role="img" aria-label="${label}"`}>${parts.map(([name]) => {
    const width = (Number(flow[name]) * 1000) / all;
    x += width;
    return width > 0 && html`<rect class="${name}" x="${(x - width).toFixed(1)}" width="${Math.max(width, 2).toFixed(1)}" height="24"/>`;
  })}</svg>`;
}

/** The sentence about a flow.  Only a flow whose jobs have all completed is 100 % completed. */
function headline(flow, lost) {
  const [shape, word] = stateOf(flow);
  const left = Number(flow.jobs) - Number(flow.done);
  // The kind of the jobs that died, if it is the same for all of them.
  const kinds = new Set(lost.dead.map(({ kind }) => kind));
  const died = kinds.size === 1 && lost.dead.length === Number(flow.dead) && !kinds.has(null) ? html`<b>${[...kinds][0]}</b> died${Number(flow.dead) > 1 && ` (${count(flow.dead)} jobs)`}` : jobs(flow.dead, 'died');
  const losses = [Number(flow.dead) > 0 && died, Number(flow.cancelled) > 0 && jobs(flow.cancelled, 'cancelled')].filter(Boolean);
  const now = parts.slice(1, 5).filter(([name]) => Number(flow[name]) > 0).map(([name, , is]) => `${count(flow[name])} ${is}`);
  const end = flow.ended_at ? html`. It ended ${when(flow.ended_at)}.` : flow.eta !== null && left > 0 ? html`. The rest will take about <b>${duration(flow.eta)}</b> at the current rate.` : '. No estimate yet.';
  return html`<p class="why">${status(shape, word)}${losses.length > 0 && html`: ${losses.map((loss, i) => html`${i > 0 && ', '}${loss}`)}`}. <b>${count(flow.completed)} of ${count(flow.jobs)}</b>
${String(flow.jobs) === '1' ? 'job' : 'jobs'} completed (${percent((Number(flow.completed) * 100) / Number(flow.jobs))})${now.length > 0 && `, ${now.join(', ')}`}${end}</p>`;
}

/** The critical path in words. */
function pathOf(members, path) {
  if (path.ids.length === 0) return null;
  const byId = new Map(members.map((member) => [member.id, member]));
  const shown = path.ids.length > 12 ? [...path.ids.slice(0, 6), null, ...path.ids.slice(-5)] : path.ids;
  return html`<p class="path"><b>Critical path</b>: ${count(path.ids.length)} ${path.ids.length === 1 ? 'job' : 'jobs'}, ${duration(path.seconds)} of run time. ${shown.map((id, i) => {
    if (id === null) return html` → <span class="quiet">${count(path.ids.length - 11)} more</span>`;
    const seconds = secondsOf(byId.get(id));
    return html`${i > 0 && ' → '}<a href="/job/${id}">${byId.get(id).kind ?? id}</a>${seconds !== null && html` <span class="quiet">${duration(seconds)}</span>`}`;
  })}</p>`;
}

const errorOf = (text) => text && html`<span class="error">${text}</span>`;

/** Every job of a small flow. */
function jobTable(members) {
  const known = new Map(members.map((member) => [member.id, member]));
  const name = (id) => known.get(id)?.kind ?? id;
  return table('Jobs of the flow', ['Job', 'Status', 'Queue', 'Depends on', number('Run time'), 'Started', 'Ended', 'Error'],
    [...members].sort((a, b) => a.depth - b.depth).map((job) => [html`<a class="key" href="/job/${job.id}" title="${job.id}">${job.kind ?? job.id}</a>`, status(job.status, wordOf(job.status)), queueLink(job.queue),
      job.parents.length > 0 ? html`${job.parents.slice(0, 5).map((parent, i) => html`${i > 0 && ', '}<a href="/job/${parent}">${name(parent)}</a>`)}${job.parents.length > 5 && ` and ${count(job.parents.length - 5)} more`}` : html`<span class="quiet">–</span>`,
      duration(secondsOf(job)), job.begun === null ? null : when(job.begun * 1000), job.status === 'running' || job.ended === null ? null : when(job.ended * 1000), errorOf(job.last_error)]), '');
}

/** The jobs of a large flow by distance from the root job, queue, kind and status. */
function stepTable(members) {
  const groups = new Map();
  for (const job of members) {
    const name = JSON.stringify([job.depth, job.queue, job.kind, job.status]);
    const group = groups.get(name) ?? { ...job, jobs: 0, longest: null };
    group.jobs += 1;
    group.longest = secondsOf(job) === null ? group.longest : Math.max(group.longest ?? 0, secondsOf(job));
    if (job.begun !== null) group.begun = Math.min(group.begun ?? job.begun, job.begun);
    if (job.ended !== null) group.ended = Math.max(group.ended ?? job.ended, job.ended);
    group.last_error ??= job.last_error;
    groups.set(name, group);
  }
  const rows = [...groups.values()].sort((a, b) => a.depth - b.depth || (a.queue < b.queue ? -1 : a.queue > b.queue ? 1 : 0));
  return html`${rows.length > STEPS && html`<p class="quiet">The first ${STEPS} of ${count(rows.length)} steps.</p>`}${table('Jobs of the flow', [number('Step'), 'Queue', 'Kind', 'Status', number('Jobs'), 'Sample job', number('Longest run'), 'Started', 'Ended', 'Error'],
    rows.slice(0, STEPS).map((g) => [Number(g.depth) + 1, queueLink(g.queue), key(g.kind), status(g.status, wordOf(g.status)), count(g.jobs), jobLink(g.id), duration(g.longest),
      g.begun === null ? null : when(g.begun * 1000), g.status === 'running' || g.ended === null ? null : when(g.ended * 1000), errorOf(g.last_error)]), 'None of these jobs is visible to you.')}`;
}

/** The graph with its buttons, which need a script, or the times. */
function viewOf(id, members, picture, view) {
  const { graph } = picture;
  const tab = (name, title, address) => html`<li><a href="${address}"${name === view ? html` aria-current="true"` : ''}>${title}</a></li>`;
  const folded = { job: null, step: 'by step (queue and kind)', queue: 'by queue', flow: 'into one box, because its jobs have too many dependencies to draw' }[graph.by];
  return html`<nav class="tabs" aria-label="Views"><ul>${tab('graph', 'Graph', `/flow/${id}`)}${tab('time', 'Timeline', `/flow/${id}?view=time`)}</ul></nav>
${folded && html`<p class="quiet">The ${count(members.length)} jobs are folded ${folded}.</p>`}
${view === 'time' ? part('time', ganttOf(members, graph)) : html`<div class="canvas"><p class="zoom" hidden><button type="button" data-zoom="out" aria-label="Zoom out">−</button><button type="button" data-zoom="in" aria-label="Zoom in">+</button>
<button type="button" data-zoom="fit">Fit</button><button type="button" data-zoom="follow" aria-pressed="false">Follow running jobs</button></p>
<div class="scroll graph" role="region" aria-label="The flow of job ${id}" tabindex="0">${part('graph', graphPicture(picture, id))}</div></div>`}
${part('path', pathOf(members, graph.path))}`;
}

/** members: the rows of queries.flowJobs, or the reason why there are none; picture: from flows/drawn.mjs; lost: from lostJobs; view: graph or time. */
export function flowPage(id, flow, { members, picture, lost, view = 'graph' }, context) {
  const failed = (flow.failed_ids ?? []).filter((job) => job !== flow.held_up_by);
  const roots = flow.roots ?? [];
  const read = picture !== null;
  return html`${part('headline', html`${headline(flow, lost)}
${flow.cut && html`<p class="notice warn">Not all jobs of this flow are counted. The figures cover the first ${count(flow.jobs)} jobs.</p>`}
${bar(flow)}
<dl class="facts">${parts.filter(([name]) => Number(flow[name]) > 0).map(([name, shape, word]) => html`<div><dt>${status(shape, word)}</dt><dd>${count(flow[name])}</dd></div>`)}
<div><dt>started</dt><dd>${when(flow.begun_at)}</dd></div>
<div><dt>${roots.length === 1 ? 'root job' : 'root jobs'}</dt><dd>${roots.slice(0, 5).map((root) => html`${jobLink(root)} `)}${roots.length > 5 && 'and more'}</dd></div>
${flow.slowest && html`<div><dt>slowest</dt><dd>${flow.slowest_kind ? html`<a href="/job/${flow.slowest}">${flow.slowest_kind}</a>` : jobLink(flow.slowest)}, ran for ${duration(flow.slowest_for)}</dd></div>`}
${failed.length > 0 && html`<div><dt>dead or retrying</dt><dd>${failed.slice(0, 5).map((job) => html`${jobLink(job)} `)}${failed.length > 5 && 'and more'}</dd></div>`}</dl>
${flow.held_up_by && html`<p class="notice warn"><b>Blocked by job ${jobLink(flow.held_up_by)}</b></p>${whySentence(flow.held_up_why)}`}`)}
${part('actions', html`<div class="actions">${context.may?.retry && button(context, 'retry_flow', `Retry ${lostWords(lost)}`, { id })}${context.may?.cancel && button(context, 'cancel_flow', 'Cancel flow', { id })}</div>`)}
${typeof members === 'string' ? html`<p class="notice bad" role="alert">${members}</p>` : html`${read && viewOf(id, members, picture, view)}
${part('jobs', html`<h2>${members.length <= DRAWN ? 'Jobs' : 'Steps'}</h2>${members.length < Number(flow.jobs) && html`<p class="quiet">${count(members.length)} of ${count(flow.jobs)} jobs are listed. The others have been deleted, or are beyond the first 10,000.</p>`}
${members.length <= DRAWN && read ? jobTable(members) : stepTable(members)}`)}`}
<script src="/static/flow.js" defer></script>`;
}
