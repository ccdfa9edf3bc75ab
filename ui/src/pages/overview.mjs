// All queues, with what they do now.
import { html } from '../html.mjs';
import { count, duration, rate, time } from '../format.mjs';
import { button, number, queueLink, table } from './layout.mjs';

/** A line of values over time as SVG; points without a value interrupt it. */
export function sparkline(values, label) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return html`<span class="quiet">–</span>`;
  const [width, height] = [120, 24];
  const most = Math.max(...known) || 1;
  let path = '';
  let pen = 'M';
  values.forEach((value, i) => {
    if (value === null) {
      pen = 'M';
      return;
    }
    path += `${pen}${((i * width) / (values.length - 1)).toFixed(1)} ${(height - 2 - (value / most) * (height - 4)).toFixed(1)}`;
    pen = 'L';
  });
  return html`<svg class="spark" role="img" aria-label="${label}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><path d="${path}"/></svg>`;
}

function state(queue) {
  if (queue.paused) return html`<span class="status cancelled">paused</span>`;
  if (Number(queue.dead) > 0) return html`<a class="status dead" href="/errors?queue=${encodeURIComponent(queue.queue)}">${count(queue.dead)} dead</a>`;
  if (Number(queue.failed) > 0) return html`<a class="status failed" href="/errors?queue=${encodeURIComponent(queue.queue)}">${count(queue.failed)} failing</a>`;
  return html`<span class="status completed">well</span>`;
}

/** The part that is fetched anew every two seconds. */
export function live(reading, sampler, health, context) {
  const rows = reading.queues.map((queue) => {
    const series = sampler.series(queue.queue_id);
    const now = series.at(-1);
    const per = (name) => rate(now?.[name]);
    const slow = now?.wait;
    return [queueLink(queue.queue), state(queue), count(queue.pending), count(queue.processing), count(queue.blocked),
      duration(queue.oldest_ready), per('enqueued'), per('committed'),
      html`${sparkline(series.map((point) => point.committed), `jobs done a second, the last two minutes, now ${per('committed')}`)}`,
      html`<span class="line">${slow === null || slow === undefined ? '–' : duration(slow)} ${sparkline(series.map((point) => point.wait ?? 0), 'waiting time, 99 of 100 jobs, the last two minutes')}</span>`,
      queue.paused ? button(context, 'resume', 'Resume', { queue: queue.queue }, `Resume queue ${queue.queue}`)
        : button(context, 'pause', 'Pause', { queue: queue.queue }, `Pause queue ${queue.queue}`)];
  });
  const heads = ['Queue', 'State', number('Waiting'), number('Running'), number('Blocked'), number('Oldest due'),
    number('In / s'), number('Done / s'), 'Done', 'Wait, p99', 'Action'];
  return html`${health && html`<p class="health">${health.pid === null ? html`<b>No background worker runs</b> in this database: expired leases wait for the next claim.`
    : health.stuck_for !== null ? html`<b>The background worker is stuck</b> for ${duration(health.stuck_for)}.` : html`The background worker is well.`}</p>`}
${table('Queues', context.writes ? heads : heads.slice(0, -1), context.writes ? rows : rows.map((row) => row.slice(0, -1)),
    'There is no queue that you may see: SELECT idemq.create_queue(\'name\') makes one; idemq.grant_queue lets a role see one.')}
<p class="quiet">As of ${time(reading.at)}.</p>`;
}
