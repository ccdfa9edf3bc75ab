// Who is there: what workers say of themselves, and the handlers in the server.
import { html } from '../html.mjs';
import { count, duration, rate } from '../format.mjs';
import { jobLink, key, number, queueLink, status, table, when } from './layout.mjs';

const words = { here: ['completed', 'here'], silent: ['warn', 'silent'], gone: ['cancelled', 'gone'],
  running: ['completed', 'runs'], idle: ['pending', 'idle: no job is ready'], waiting: ['warn', 'waits: no process is free for it'],
  refused: ['dead', 'refused: see its error'], stopped: ['dead', 'stopped after crashes'], off: ['paused', 'off: idemq.worker is off'] };
const stateOf = (state) => status(...(words[state] ?? ['pending', state]));

/** What it runs, and the oldest of that since when. */
function runs(worker) {
  const running = Number(worker.running ?? 0);
  if (running === 0) return 'nothing';
  const jobs = worker.jobs ?? [];
  return html`<div>${jobs.map((id) => html`${jobLink(id)} `)}${running > jobs.length && jobs.length > 0 && `and ${count(running - jobs.length)} more`}${jobs.length === 0 && count(running)}
${worker.oldest && html`<span class="quiet small">the oldest ${when(worker.oldest)}</span>`}</div>`;
}

/** The time of the last report: of a silent worker it is what a reader looks for. */
const lastReport = (worker) => (worker.state === 'silent' ? html`<b>${when(worker.seen_at)}</b>` : when(worker.seen_at));

const queuesOf = (queues) => html`<div>${queues.slice(0, 5).map((queue) => html`${queueLink(queue)} `)}${queues.length > 5
  && html`<span class="quiet line">and ${count(queues.length - 5)} more</span>`}</div>`;
const order = ['silent', 'here', 'gone'];

const handlerFacts = (h) => html`<div>${count(h.workers_running)} of ${count(h.workers)} ${String(h.workers) === '1' ? 'process' : 'processes'}</div>
<div class="small quiet">up to ${count(h.batch)} ${String(h.batch) === '1' ? 'job' : 'jobs'} a transaction; ends after ${duration(h.max_idle)} without one</div>`;

/** seen: idemq.workers; handlers: idemq.handlers; unattended: queues that nobody works on. */
export function workersPage(seen, handlers, unattended) {
  const workers = seen.filter(({ program }) => program !== 'handler').sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state));
  return html`${unattended.length > 0 && html`<div class="notice bad">${unattended.map((queue) => html`<div>${status('gone', 'Nobody works on')} ${queueLink(queue.queue)}: ${count(queue.pending)} ${String(queue.pending) === '1' ? 'job waits' : 'jobs wait'}, for ${duration(queue.unattended_for)}.</div>`)}</div>`}
${table('Workers', ['Worker', 'State', 'Queues', 'Since', 'Last report', number('At a time'), 'Runs', number('A minute'), number('Done')],
    workers.map((w) => [html`<div>${key(w.worker)}<div class="small quiet">${w.program && html`${key(`${w.program} ${w.version ?? ''}`.trim())} `}${w.host && html`on ${key(w.host)} `}as ${key(w.role)}</div></div>`, stateOf(w.state), queuesOf(w.queues ?? []), when(w.started_at), lastReport(w), w.concurrency ?? '–', runs(w),
      w.per_minute === null ? '–' : rate(w.per_minute), count(w.done)]),
    'No worker has reported in the last hour. Clients and idemq-work report every 30 s; a worker of your own calls idemq.report_worker.')}
${workers.length > 0 && html`<p class="quiet small">Silent: no report for 90 s. Gone: the worker has reported its end. Workers that are silent or gone are listed for an hour.</p>`}
<h2>Handlers in the server</h2>
${table('Handlers', ['Queue', 'Function', 'State', 'Processes', number('A second'), number('Done'), number('Failed'), 'Last error', 'Set'],
    handlers.map((h) => [queueLink(h.queue), html`<div>${key(h.function)}<div class="small quiet">as ${key(h.role)}</div></div>`, stateOf(h.state), handlerFacts(h),
      rate(h.jobs_per_second === null ? null : Number(h.jobs_per_second)), count(h.done_total), count(h.failed_total),
      h.last_error && html`<div><span class="error">${h.last_error}</span> <span class="quiet small">${when(h.last_error_at)}</span></div>`, when(h.set_at)]), 'None: idemq.set_handler makes one.')}`;
}
