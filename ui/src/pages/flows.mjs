// The list of flows with their progress, newest first.
import { html } from '../html.mjs';
import { count, duration, percent } from '../format.mjs';
import { stateOf } from '../flows/model.mjs';
import { bar, parts } from './flow.mjs';
import { more, number, queueLink, status, table, when } from './layout.mjs';

const share = (flow) => percent((Number(flow.completed) * 100) / Number(flow.jobs));

/** before: the address of the next page, or null on the first page. */
export function flowsPage({ flows, next }, before) {
  const rows = flows.map((flow) => {
    const [shape, word] = stateOf(flow);
    const counts = parts.slice(1).filter(([name]) => Number(flow[name]) > 0).map(([name, of, is]) => status(of, `${count(flow[name])} ${is}`));
    const left = Number(flow.jobs) - Number(flow.done);
    return [html`<a class="key" href="/flow/${flow.root?.id ?? flow.id}" title="job ${flow.root?.id ?? flow.id}">${flow.root?.key ?? flow.root?.kind ?? `job ${flow.root?.id ?? flow.id}`}</a>`,
      flow.root?.queue ? queueLink(flow.root.queue) : null, status(shape, word),
      html`<span class="line share">${bar(flow, `${count(flow.completed)} of ${count(flow.jobs)} jobs completed`)} ${share(flow)}</span>`,
      html`${flow.cut && 'more than '}${count(flow.jobs)}`, counts.length > 0 ? html`<span class="counts">${counts}</span>` : html`<span class="quiet">–</span>`,
      flow.root ? when(flow.root.enqueued_at) : when(flow.begun_at), left === 0 ? when(flow.ended_at) : flow.eta === null ? html`<span class="quiet">–</span>` : html`about ${duration(flow.eta)} left`];
  });
  return html`<p class="quiet">A flow is a set of jobs that depend on each other. Newest first.</p>
${table('Flows', ['Flow', 'Queue', 'State', 'Completed', number('Jobs'), 'Not completed', 'Enqueued', 'Ended'], rows,
    before === null ? 'There are no flows. Enqueue a job with depends_on, or several jobs with idemq.enqueue_graph.' : 'There are no older flows.', flows.map((flow) => `flow ${flow.root?.id ?? flow.id}`))}
${next !== null && more('/flows', { before: next }, 'Older flows')}`;
}
