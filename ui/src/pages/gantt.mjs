// When the jobs of a flow ran, to scale: one row per job, or per step of a folded flow.
import { html } from '../html.mjs';
import { count, duration } from '../format.mjs';
import { concurrency, secondsOf } from '../flows/model.mjs';
import { key, moment, number, status, table } from './layout.mjs';
import { mark, wordOf } from './graph.mjs';

/** Number of parts of the curve that shows how many jobs of a step ran at the same time. */
const PARTS = 120;

const percentOf = (value) => `${Math.round(value * 10000) / 100}%`;

/** Times for the axis: about four round distances from the start. */
export function ticksOf(seconds) {
  const steps = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 604800];
  const step = steps.find((one) => seconds / one <= 5) ?? Math.ceil(seconds / 5 / 604800) * 604800;
  const ticks = [];
  for (let at = 0; seconds > 0 && at <= seconds; at += step) ticks.push(at);
  return ticks;
}

/** members: the jobs; the graph: from model.mjs.  A box of the graph is a row here. */
export function ganttOf(members, { nodes, by, nameOf }) {
  const ran = members.filter((member) => secondsOf(member) !== null);
  if (ran.length === 0) return html`<p class="none">No job of this flow has run yet.</p>`;
  const from = Math.min(...ran.map(({ begun }) => begun));
  const until = Math.max(...ran.map(({ ended }) => ended), from + 1e-6);
  const span = until - from;
  const at = (time) => percentOf((time - from) / span);
  const within = new Map();
  for (const member of members) {
    const name = nameOf(member);
    if (!within.has(name)) within.set(name, []);
    within.get(name).push(member);
  }
  const rows = nodes.map((node) => {
    const own = within.get(node.name) ?? [];
    const run = own.filter((member) => secondsOf(member) !== null);
    const first = Math.min(...run.map(({ begun }) => begun));
    const last = Math.max(...run.map(({ ended }) => ended));
    return { node, run, first, last };
  }).sort((a, b) => (a.run.length === 0) - (b.run.length === 0) || (a.run.length > 0 && (a.first - b.first || a.last - b.last)) || 0);
  const ticks = ticksOf(span);
  const lines = ticks.map((tick) => html`<line class="tick" x1="${percentOf(tick / span)}" x2="${percentOf(tick / span)}" y1="0" y2="100%"/>`);
  const bar = ({ node, run, first, last }) => {
    if (run.length === 0) return null;
    const what = node.jobs === 1 ? `from ${duration(first - from)} to ${duration(last - from)}: ${wordOf(node.status)}` : `${count(run.length)} jobs from ${duration(first - from)} to ${duration(last - from)}`;
    const sums = node.jobs === 1 ? null : concurrency(run, from, until, PARTS);
    const most = sums && Math.max(...sums);
    const shape = sums && `M0 20${sums.map((sum, i) => `L${i} ${(20 - (sum * 20) / most).toFixed(1)}L${i + 1} ${(20 - (sum * 20) / most).toFixed(1)}`).join('')}L${PARTS} 20z`;
    return html`<svg class="gantt ${sums ? 'several' : node.status}${node.critical ? ' critical' : ''}" width="100%" height="22" role="img" aria-label="${what}"><title>${what}${most ? `, on average up to ${most < 10 ? most.toFixed(1) : Math.round(most)} at the same time` : ''}</title>${lines}
<rect class="${sums ? 'all' : 'one'}" x="${at(first)}" y="3" width="${percentOf((last - first) / span)}" height="16" rx="2"/><line class="least" x1="${at(first)}" x2="${at(first)}" y1="3" y2="19"/>
${sums && html`<svg x="0" y="1" width="100%" height="20" viewBox="0 0 ${PARTS} 20" preserveAspectRatio="none"><path class="area" d="${shape}"/></svg>`}
${['dead', 'cancelled', 'running', 'retrying'].includes(node.status) && html`<svg class="${node.status}" x="${at(last)}" y="6" overflow="visible">${mark(node.status, (last - from) / span > 0.97 ? -12 : 2, 0)}</svg>`}</svg>`;
  };
  const axis = html`<span class="unseen">Time</span><svg class="gantt axis" width="100%" height="18" aria-hidden="true">${lines}${ticks.map((tick) => html`<text x="${percentOf(tick / span)}" y="13" dx="3">${tick === 0 ? '0' : duration(tick)}</text>`)}</svg>`;
  const longest = (node) => (node.seconds === null ? '–' : duration(node.seconds));
  return html`<p class="quiet">From ${moment(from * 1000)}, for ${duration(span)}. Each bar is the latest attempt of a job${by !== 'job' && '; the curve of a step shows how many of its jobs ran at the same time'}.</p>
${table('When the jobs ran', [by === 'job' ? 'Job' : by === 'step' ? 'Step' : 'Queue', 'Status', number(by === 'job' ? 'Run time' : 'Longest run'), { name: axis, text: 'Time' }],
    rows.map((row) => [html`${row.node.jobs === 1 ? html`<a class="key" href="/job/${row.node.id}">${row.node.kind ?? `job ${row.node.id}`}</a>` : html`${count(row.node.jobs)} × ${key(row.node.kind ?? row.node.queue ?? 'jobs')}`}`,
      status(row.node.status, `${row.node.jobs === 1 ? '' : `${count(row.node.counts[row.node.status])} `}${wordOf(row.node.status)}`), longest(row.node), bar(row) ?? html`<span class="quiet">has not run</span>`]), '')}`;
}
