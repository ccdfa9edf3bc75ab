// Charts of a span of time, drawn here: static/charts.js adds the values under the pointer and
// by keyboard, out of the table of values that is behind each.
import { html, href } from '../html.mjs';
import { axisTime, count, duration, rate, time } from '../format.mjs';

const [WIDTH, HEIGHT] = [400, 170];
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 8, 14, 22];

/** Values at which an axis up to most is marked: some three, round in the unit. */
function ticks(most, kind) {
  const rounds = kind === 'time' && most >= 60
    ? [60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000]
    : [1, 2, 5, 10].map((n) => n * 10 ** Math.floor(Math.log10(most / 3)));
  let step = rounds.find((round) => most / round <= 4) ?? most / 3;
  if (kind === 'count') step = Math.max(1, step);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, i) => i * step);
}

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
    // A point that stands alone is seen as well.
    text += `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}${pen === 'M' && (values[i + 1] ?? null) === null ? 'h1' : ''}`;
    pen = 'L';
  });
  return text;
}

/** What is below a line: a shape for each part that has no gap. */
function area(values, x, y) {
  let text = '';
  values.forEach((value, i) => {
    if (value === null) return;
    const at = x(i).toFixed(1);
    text += `${(values[i - 1] ?? null) === null ? `M${at} ${y(0)}` : ''}L${at} ${y(value).toFixed(1)}${(values[i + 1] ?? null) === null ? `V${y(0)}Z` : ''}`;
  });
  return text;
}

/** A chart of one or two series of {name, values}, in one unit; deaths: how many died in each point. */
function chart(title, kind, lines, series, dead) {
  const { times, point } = series;
  const last = times.length - 1;
  const most = Math.max(...lines.flatMap(({ values }) => values.filter((value) => value !== null)), 0) || 1;
  const marks = ticks(most, kind);
  const top = marks.at(-1);
  const format = formats[kind];
  const x = (i) => LEFT + (i * (WIDTH - LEFT - RIGHT)) / last;
  const y = (value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
  const whole = times.length * point;
  const every = [60, 120, 300, 900, 3600, 10800, 21600, 86400].find((seconds) => whole / seconds <= 7) * 1000;
  const name = title.toLowerCase().replace(/[^a-z]+/g, '-');
  const highest = lines.map((line) => `${line.name}: now ${format(line.values.findLast((value) => value !== null) ?? null)}, at most ${format(line.values.reduce((a, b) => (b !== null && (a === null || b > a) ? b : a), null))}`).join('; ');
  return html`<figure class="chart card" id="chart-${name}"><figcaption><h3>${title}</h3><span class="legend">${lines.map((line, i) => html`<span class="line"><svg width="22" height="8" aria-hidden="true"><path class="l${i}" d="M0 4h22"/></svg> ${line.name}</span> `)}</span></figcaption>
<svg role="img" aria-label="${title}, ${series.title}. ${highest}" viewBox="0 0 ${WIDTH} ${HEIGHT}" data-left="${LEFT}" data-right="${RIGHT}">
${marks.map((mark) => html`<path class="rule" d="M${LEFT} ${y(mark).toFixed(1)}H${WIDTH - RIGHT}"/><text class="y" x="${LEFT - 6}" y="${(y(mark) + 4).toFixed(1)}">${mark === 0 ? '0' : format(mark).replace(/\.0(?=\D)/, '')}</text>`)}
${times.map((at, i) => (at % every === 0 ? html`<path class="tick" d="M${x(i).toFixed(1)} ${HEIGHT - BOTTOM}v4"/>${x(i) < LEFT + 14 ? null : html`<text class="x" x="${Math.min(x(i), WIDTH - RIGHT - 16).toFixed(1)}" y="${HEIGHT - 5}">${axisTime(at, every >= 86_400_000)}</text>`}` : null))}
${dead.map((died, i) => (died > 0 ? html`<path class="death" d="M${x(i).toFixed(1)} ${TOP}V${HEIGHT - BOTTOM}"/><path class="cross" d="M${(x(i) - 4).toFixed(1)} 3l8 8m0-8l-8 8"/>` : null))}
${lines.length === 1 && html`<path class="area" d="${area(lines[0].values, x, y)}"/>`}
${lines.map((line, i) => html`<path class="l${i}" d="${path(line.values, x, y)}"/>`)}
<path class="cursor" d="M0 ${TOP}V${HEIGHT - BOTTOM}"/></svg>
<p class="values small">${lines.map((line) => html`<span>${line.name} <b>${format(line.values.findLast((value) => value !== null) ?? null)}</b></span> `)}<span class="quiet">now</span></p>
<details id="values-${name}"><summary>Values</summary><div class="scroll" role="region" aria-label="Values: ${title}" tabindex="0"><table><thead><tr><th scope="col">Until, UTC</th>${lines.map((line) => html`<th scope="col" class="n">${line.name}</th>`)}<th scope="col" class="n">died</th></tr></thead>
<tbody>${times.map((at, i) => html`<tr><td>${point < 60 ? time(at).slice(11, 19) : time(at).slice(0, 16)}</td>${lines.map(({ values }) => html`<td class="n">${format(values[i])}</td>`)}<td class="n">${dead[i] === null ? '–' : count(dead[i])}</td></tr>
`)}</tbody></table></div></details></figure>`;
}

/** All charts of a queue, or of the database: what History.of gives. */
export function charts(series) {
  if (series.empty) return html`<p class="none">Nothing has been recorded for ${series.title} yet. The background worker writes idemq.history every ten seconds.</p>`;
  const draw = (title, kind, lines) => chart(title, kind, Object.entries(lines).map(([name, values]) => ({ name, values })), series, series.died);
  return html`<div class="charts">${draw('Waiting jobs', 'count', { waiting: series.pending })}
${draw('Running jobs', 'count', { running: series.running })}
${draw('Done and failed', 'rate', { done: series.completed, failed: series.failures })}
${draw('Oldest due', 'time', { 'due for': series.oldest_due })}
${draw('Wait until claimed', 'time', { p95: series.wait_p95, p50: series.wait_p50 })}
${draw('Run until done', 'time', { p95: series.run_p95, p50: series.run_p50 })}</div>`;
}

/** Links to the other spans of time of the same page. */
export function spanTabs(names, name, queue) {
  return html`<nav aria-label="Span of time"><ul class="tabs">${names.map((other) => html`<li><a href="${href('/', { queue, last: other })}"${other === name ? html` aria-current="page"` : ''}>${other.replace(/([a-z])/, ' $1')}</a></li>`)}</ul></nav>`;
}

/** A line in a table, beside what it says now and at most. */
export function sparkline(values, format, label) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return html`<span class="quiet">–</span>`;
  const [width, height] = [120, 24];
  const most = Math.max(...known);
  return html`<span class="line"><svg class="spark" role="img" aria-label="${label}: now ${format(known.at(-1))}, at most ${format(most)}" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}"><path d="${path(values,
    (i) => (i * width) / (values.length - 1), (value) => height - 2 - (value / (most || 1)) * (height - 4))}"/></svg> <span class="small quiet">≤ ${format(most)}</span></span>`;
}
