// The charts for a time span.  static/charts.js shows the values at the pointer or the keyboard
// position, which it reads from the table of values of each chart.
import { html, href } from '../html.mjs';
import { part } from '../live.mjs';
import { axisCount, axisDuration, axisTime, count, duration, rate, time } from '../format.mjs';

const [WIDTH, HEIGHT] = [400, 170];
const [LEFT, RIGHT, TOP, BOTTOM] = [60, 8, 14, 22];

/** About three round values for the ticks of an axis that ends at most, and the step between them. */
function ticks(most, kind) {
  const rounds = kind === 'time' && most >= 60
    ? [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000]
    : [1, 2, 5, 10].map((n) => n * 10 ** Math.floor(Math.log10(most / 3)));
  let step = rounds.find((round) => most / round <= 4) ?? most / 3;
  if (kind === 'count') step = Math.max(1, step);
  return { step, marks: Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, i) => i * step) };
}

/** The label of a tick.  All labels of an axis have as many digits as the step needs. */
const tickText = {
  count: axisCount,
  rate: (value, step) => `${axisCount(value, step)}/s`,
  time: axisDuration,
};

const formats = {
  count: (value) => (value === null ? '–' : count(Math.round(value))),
  rate: (value) => (value === null ? '–' : `${rate(value)}/s`),
  time: (value) => (value === null ? '–' : duration(value)),
};

function path(values, x, y) {
  let text = '';
  let pen = 'M';
  values.forEach((value, i) => {
    if (value === null) {
      pen = 'M';
      return;
    }
    // An isolated point must also be visible.
    text += `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}${pen === 'M' && (values[i + 1] ?? null) === null ? 'h1' : ''}`;
    pen = 'L';
  });
  return text;
}

/** The area below a line: one shape for each part without a gap. */
function area(values, x, y) {
  let text = '';
  values.forEach((value, i) => {
    if (value === null) return;
    const at = x(i).toFixed(1);
    text += `${(values[i - 1] ?? null) === null ? `M${at} ${y(0)}` : ''}L${at} ${y(value).toFixed(1)}${(values[i + 1] ?? null) === null ? `V${y(0)}Z` : ''}`;
  });
  return text;
}

/** A chart of one or two series of {name, values}, in one unit.  dead: how many jobs died in each point, if the chart marks them. */
function chart(title, kind, lines, series, dead = null) {
  const { times, point } = series;
  const last = times.length - 1;
  const most = Math.max(...lines.flatMap(({ values }) => values.filter((value) => value !== null)), 0) || 1;
  const { step, marks } = ticks(most, kind);
  const top = marks.at(-1);
  const format = formats[kind];
  const x = (i) => LEFT + (i * (WIDTH - LEFT - RIGHT)) / last;
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const whole = times.length * point;
  const every = [60, 120, 300, 900, 3600, 10800, 21600, 86400].find((seconds) => whole / seconds <= 7) * 1000;
  const name = title.toLowerCase().replace(/[^a-z]+/g, '-');
  const latest = (line) => format(line.values[series.latest]);
  const present = series.chosen ? 'at the end' : 'now';
  const highest = lines.map((line) => `${line.name}: ${present} ${latest(line)}, at most ${format(line.values.reduce((a, b) => (b !== null && (a === null || b > a) ? b : a), null))}`).join('; ');
  return part(`chart ${name}`, html`<figure class="chart card" id="chart-${name}"><figcaption><h3>${title}</h3><span class="legend">${lines.map((line, i) => html`<span class="line"><svg width="22" height="8" aria-hidden="true"><path class="l${i}" d="M0 4h22"/></svg> ${line.name}</span> `)}${dead && html`<span class="line"><svg width="10" height="10" aria-hidden="true"><path class="cross" d="M2 2l6 6m0-6l-6 6"/></svg> died</span>`}</span></figcaption>
<svg role="img" aria-label="${title}, ${series.title}. ${highest}" viewBox="0 0 ${WIDTH} ${HEIGHT}" data-left="${LEFT}" data-right="${RIGHT}" data-begin="${times[0] - point * 1000}" data-point="${point * 1000}">
${marks.map((mark) => html`<path class="rule" d="M${LEFT} ${y(mark).toFixed(1)}H${WIDTH - RIGHT}"/><text class="y" x="${LEFT - 6}" y="${(y(mark) + 4).toFixed(1)}">${mark === 0 ? '0' : tickText[kind](mark, step)}</text>`)}
${times.map((at, i) => (at % every === 0 ? html`<path class="tick" d="M${x(i).toFixed(1)} ${HEIGHT - BOTTOM}v4"/>${x(i) < LEFT + 14 ? null : html`<text class="x" x="${Math.min(x(i), WIDTH - RIGHT - 16).toFixed(1)}" y="${HEIGHT - 5}" data-at="${at}" data-as="${every >= 86_400_000 ? 'day' : 'minute'}">${axisTime(at, every >= 86_400_000)}</text>`}` : null))}
${dead?.map((died, i) => (died > 0 ? html`<path class="cross" d="M${(x(i) - 3).toFixed(1)} 4l6 6m0-6l-6 6"/>` : null))}
${lines.length === 1 && html`<path class="area" d="${area(lines[0].values, x, y)}"/>`}
${lines.map((line, i) => html`<path class="l${i}" d="${path(line.values, x, y)}"/>`)}
<path class="cursor" d="M0 ${TOP}V${HEIGHT - BOTTOM}"/></svg>
<p class="values small">${lines.map((line) => html`<span>${line.name} <b>${latest(line)}</b></span> `)}<span class="quiet">${present}</span></p>
<details id="values-${name}"><summary>Values</summary><div class="scroll" role="region" aria-label="Values: ${title}" tabindex="0"><table><thead><tr><th scope="col" data-until>Until, UTC</th>${lines.map((line) => html`<th scope="col" class="n">${line.name}</th>`)}${dead && html`<th scope="col" class="n">died</th>`}</tr></thead>
<tbody>${times.map((at, i) => html`<tr><td data-at="${at}" data-as="${point < 60 ? 'clock' : 'full'}">${point < 60 ? time(at).slice(11, 19) : time(at).slice(0, 16)}</td>${lines.map(({ values }) => html`<td class="n">${format(values[i])}</td>`)}${dead && html`<td class="n">${dead[i] === null ? '–' : count(dead[i])}</td>`}</tr>
`)}</tbody></table></div></details></figure>`);
}

/** The charts of a queue or of the database.  series: the result of History.of; few: whether to draw only the three most important charts. */
export function charts(series, few = false) {
  if (series.empty) return html`<p class="none">Nothing has been recorded for ${series.title} yet. The background worker writes idemq.history every ten seconds.</p>`;
  const draw = (title, kind, lines, dead) => chart(title, kind, Object.entries(lines).map(([name, values]) => ({ name, values })), series, dead);
  return html`<div class="charts">${draw('Completed and failed', 'rate', { completed: series.completed, failed: series.failures }, series.died)}
${draw('Pending jobs', 'count', { pending: series.pending })}
${draw('Oldest waiting job', 'time', { age: series.oldest_due })}
${!few && html`${draw('Running jobs', 'count', { running: series.running })}
${draw('Queue latency', 'time', { p95: series.wait_p95, p50: series.wait_p50 })}
${draw('Run time', 'time', { p95: series.run_p95, p50: series.run_p50 })}`}</div>`;
}

/** A chart of the number of jobs per point.  series: the result of trendOf. */
export const trend = (title, series) => chart(title, 'count', [{ name: 'jobs', values: series.values }], series);

/** Links to the same page with another time span. */
export function spanTabs(names, name, address) {
  return html`<nav aria-label="Time span"><ul class="tabs scroll">${names.map((other) => html`<li><a data-now href="${address(other)}"${other === name ? html` aria-current="page"` : ''}>${other.replace(/([a-z])/, ' $1')}</a></li>`)}</ul></nav>`;
}

/** A small chart in a table, with its last value, which is marked, and its maximum. */
export function sparkline(values, latest, format, label) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return html`<span class="quiet">–</span>`;
  const [width, height] = [120, 24];
  const most = Math.max(...known);
  const y = (value) => height - 3 - (value / (most || 1)) * (height - 6);
  const x = (i) => (i * (width - 6)) / (values.length - 1);
  const last = values[latest];
  return html`<span class="line"><svg class="spark" role="img" aria-label="${label}: now ${format(values[latest])}, maximum ${format(most)}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><path d="${path(values, x, y)}"/>${last !== null && last !== undefined && html`<circle cx="${x(latest).toFixed(1)}" cy="${y(last).toFixed(1)}" r="2.5"/>`}</svg> <b>${format(last)}</b> <span class="small quiet">max ${format(most)}</span></span>`;
}
