// The workers, as they report themselves, and the handlers in the server.
import { html } from '../html.mjs';
import { count, duration, rate } from '../format.mjs';
import { jobLink, key, number, queueLink, status, table, when } from './layout.mjs';

const words = { here: ['completed', 'online'], silent: ['warn', 'silent'], gone: ['cancelled', 'gone'],
  running: ['completed', 'running'], idle: ['pending', 'idle'], waiting: ['warn', 'waiting for a free process'],
  refused: ['dead', 'refused'], stopped: ['dead', 'stopped after crashes'], off: ['paused', 'off (idemq.worker)'] };
const stateOf = (state) => status(...(words[state] ?? ['pending', state]));

/** The jobs that a worker is running, and the start time of the oldest. */
function runs(worker) {
  const running = Number(worker.running ?? 0);
  if (running === 0) return 'nothing';
  const jobs = worker.jobs ?? [];
  return html`<div>${jobs.map((id) => html`${jobLink(id)} `)}${running > jobs.length && jobs.length > 0 && `and ${count(running - jobs.length)} more`}${jobs.length === 0 && count(running)}
${worker.oldest && html`<span class="quiet small">the oldest ${when(worker.oldest)}</span>`}</div>`;
}

/** The time of the last report, emphasized for a silent worker. */
const lastReport = (worker) => (worker.state === 'silent' ? html`<b>${when(worker.seen_at)}</b>` : when(worker.seen_at));

const queuesOf = (queues) => html`<div>${queues.slice(0, 5).map((queue) => html`${queueLink(queue)} `)}${queues.length > 5
  && html`<span class="quiet line">and ${count(queues.length - 5)} more</span>`}</div>`;
const order = ['silent', 'here', 'gone'];

const handlerFacts = (h) => html`<div>${count(h.workers_running)} of ${count(h.workers)} ${String(h.workers) === '1' ? 'process' : 'processes'}</div>
<div class="small quiet">up to ${count(h.batch)} ${String(h.batch) === '1' ? 'job' : 'jobs'} per transaction; exits after ${duration(h.max_idle)} without a job</div>`;

/** seen: idemq.workers; handlers: idemq.handlers; unattended: queues without a worker. */
export function workersPage(seen, handlers, unattended) {
  const workers = seen.filter(({ program }) => program !== 'handler').sort((a, b) => order.indexOf(a.state) - order.indexOf(b.state));
  return html`${unattended.length > 0 && html`<div class="notice bad">${unattended.map((queue) => html`<div>${status('gone', 'No worker for')} ${queueLink(queue.queue)}: ${count(queue.pending)} ${String(queue.pending) === '1' ? 'job has' : 'jobs have'} been waiting for ${duration(queue.unattended_for)}.</div>`)}</div>`}
${table('Workers', ['Worker', 'State', 'Queues', 'Since', 'Last report', number('Concurrency'), 'Running', number('Per minute'), number('Done')],
    workers.map((w) => [html`<div>${key(w.worker)}<div class="small quiet">${w.program && html`${key(`${w.program} ${w.version ?? ''}`.trim())} `}${w.host && html`on ${key(w.host)} `}as ${key(w.role)}</div></div>`, stateOf(w.state), queuesOf(w.queues ?? []), when(w.started_at), lastReport(w), w.concurrency ?? '–', runs(w),
      w.per_minute === null ? '–' : rate(w.per_minute), count(w.done)]),
    'No worker has reported in during the last hour. The clients and idemq-work report every 30 s; your own workers can call idemq.report_worker.')}
${workers.length > 0 && html`<p class="quiet small">A silent worker has not reported for 90 s. A worker that is gone has reported that it was stopping. Both are listed for one hour.</p>`}
<h2>Handlers</h2>
${table('Handlers', ['Queue', 'Function', 'State', 'Processes', number('Per second'), number('Done'), number('Failed'), 'Last error', 'Set'],
    handlers.map((h) => [queueLink(h.queue), html`<div>${key(h.function)}<div class="small quiet">as ${key(h.role)}</div></div>`, stateOf(h.state), handlerFacts(h),
      rate(h.jobs_per_second === null ? null : Number(h.jobs_per_second)), count(h.done_total), count(h.failed_total),
      h.last_error && html`<div><span class="error">${h.last_error}</span> <span class="quiet small">${when(h.last_error_at)}</span></div>`, when(h.set_at)]), 'There are no handlers. Create one with idemq.set_handler.')}`;
}
