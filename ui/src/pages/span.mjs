// What pages show of their time span: the fields that choose it, the way back to the present, and figures of the whole span.
import { html, href } from '../html.mjs';
import { count, duration, percent } from '../format.mjs';
import { part } from '../live.mjs';
import { moment } from './layout.mjs';

const field = (at) => new Date(at).toISOString().slice(0, 19).replace('T', ' ');

/** The bar below the title.  url: the address of the page; times: the result of timesOf. */
export function spanBar(url, { span, given, trouble }) {
  const address = new URL(url, 'http://page');
  const others = [...address.searchParams].filter(([name]) => !['from', 'to', 'after', 'notice', 'sign', 'bad', 'last'].includes(name));
  const back = href(address.pathname, Object.fromEntries(others));
  const value = (name) => (span ? field(span[name]) : given[name]);
  const fields = html`<form data-now method="get" action="${address.pathname}" class="actions span">${others.map(([name, text]) => html`<input type="hidden" name="${name}" value="${text}">`)}
<label>From <input name="from" data-time value="${value('from')}" placeholder="2026-11-30 20:15" size="19" autocomplete="off" spellcheck="false" required${trouble && html` aria-invalid="true" aria-describedby="span-trouble"`}></label>
<label>to <input name="to" data-time value="${value('to')}" placeholder="now" size="19" autocomplete="off" spellcheck="false"${trouble && html` aria-invalid="true" aria-describedby="span-trouble"`}></label>
<span class="quiet" data-zone-name>UTC</span> <button>Show</button></form>`;
  const hint = html`<p class="quiet small" data-drag hidden>Or drag over a chart. With the keyboard: focus a chart, hold Shift and press the arrow keys, then press Enter.</p>`;
  return html`${trouble && html`<p class="notice bad" role="alert" id="span-trouble">${trouble}</p>`}
${span ? html`<div class="notice span" role="status"><p>Charts, errors and jobs from <b>${moment(new Date(span.from).toISOString())}</b> to <b>${moment(new Date(span.to).toISOString())}</b> (${duration((span.to - span.from) / 1000)}). <a data-now class="button" href="${back}">Back to now</a></p>
<details id="span"><summary>Change the time span</summary>${fields}${hint}</details></div>`
    : html`<details id="span"${trouble && html` open`}><summary>Time span</summary>${fields}${hint}</details>`}`;
}

/** The figures of a time span, from the history. */
export function spanFacts(series) {
  const known = (name) => series[name].filter((value) => value !== null);
  const sum = (name, per = series.point) => (known(name).length === 0 ? null : Math.round(known(name).reduce((all, value) => all + value, 0) * per));
  const most = (name) => (known(name).length === 0 ? null : Math.max(...known(name)));
  const [completed, failures] = [sum('completed'), sum('failures')];
  const facts = [['completed', count(completed)], ['failed attempts', count(failures)],
    ['failed', completed + failures > 0 ? percent((100 * failures) / (completed + failures)) : '–'], ['died', count(sum('died', 1))],
    ['most pending', count(most('pending'))], ['most running', count(most('running'))], ['oldest waiting job', duration(most('oldest_due'))], ['highest latency p95', duration(most('wait_p95'))]];
  return part('span-facts', html`<h2 class="unseen">In this time span</h2><dl class="facts">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`);
}
