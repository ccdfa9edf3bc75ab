// What pages say, of rows that are given: axes of charts, figures that are not known any longer, many queues, and
// what a page that is already shown is refreshed with.
import { axisCount, axisDuration } from '../src/format.mjs';
import { changes, have, part } from '../src/live.mjs';
import { html } from '../src/html.mjs';
import { carry, timesOf, withSpan } from '../src/span.mjs';
import { trendOf } from '../src/pages/cause.mjs';
import { charts } from '../src/pages/charts.mjs';
import { plainWhy, whySentence } from '../src/pages/layout.mjs';
import { runningPage } from '../src/pages/lists.mjs';
import { overviewPage } from '../src/pages/overview.mjs';

const tell = (value, what, detail = '') => {
  process.stdout.write(`${value ? 'ok' : 'not ok'} - ${what}\n`);
  if (!value) process.stderr.write(`${what}: ${JSON.stringify(detail)}\n`);
};
const text = (markup) => String(markup).replace(/<[^>]+>/g, ' ').replace(/\s+/g, ' ');

// Axes.
const ticks = (markup) => [...String(markup).matchAll(/<text class="y"[^>]*>([^<]*)</g)].map(([, tick]) => tick);
const seriesOf = (values) => ({ title: 'the last hour', point: 30, empty: false, times: values.map((_, i) => i * 30_000), latest: values.length - 1, died: values.map(() => 0),
  ...Object.fromEntries(['pending', 'running', 'completed', 'failures', 'oldest_due', 'wait_p95', 'wait_p50', 'run_p95', 'run_p50'].map((name) => [name, values])) });
const axes = (values) => ticks(charts(seriesOf(values)));
tell(['500k', '1.0M', '1.5M'].every((tick) => axes([0, 1_000_001]).includes(tick)), 'an axis of a million jobs is short', axes([0, 1_000_001]));
const rates = axes([0, 0.2]).filter((tick) => tick.endsWith('/s'));
tell(rates.length >= 3 && new Set(rates).size === rates.length, 'ticks of small rates differ', rates);
const times = ticks(charts(seriesOf([0, 0.0021]))).filter((tick) => /[mµ]s$/.test(tick));
tell(times.length >= 3 && new Set(times.slice(0, 3)).size === 3, 'ticks of milliseconds differ', times);
tell(Math.max(...axes([0, 1_000_001]).map((tick) => tick.length)) <= 9 && axisDuration(5400, 1800) === '1 h 30 min', 'no tick is longer than its room');
tell(axisCount(0.05, 0.05) === '0.05' && axisCount(0.1, 0.05) === '0.10' && axisCount(20_000, 10_000) === '20k', 'as many digits as the step needs');

// A figure that is not known for the last point is not taken from an earlier one.
const stale = { ...seriesOf([1, 1]), wait_p95: [369, null], oldest_due: [5, null] };
tell(/age –/.test(text(charts(stale))) && /p95 –/.test(text(charts(stale))), 'an old value is not shown as the current one', text(charts(stale)));
tell(charts({ ...seriesOf([1, 1]), died: [0, 3] }).toString().match(/M\S+ 4l6 6m0-6l-6 6/g).length === 1, 'deaths are marked in one chart only');

// A time span: what is one, and what carries it.
const spans = [['2026-11-30', '2026-12-01', 86400], ['2026-11-30 10:00', '2026-11-30T10:00:01Z', 1], ['2026-11-30 10:00 UTC', '2026-11-30T16:00+05:45', 900], ['2026-11-30 10:00:00.5', '2026-11-30 10:00:02', 1.5],
  ['2026-02-30', '2026-12-01', null], ['2026-11-30 10:00', '2026-11-30 10:00', null], ['2026-11-30 10:00', '2026-11-30 09:00', null], ['x', '2026-11-30', null], ['2026-13-01', '2026-12-01', null], ['', '2026-11-30', null], ['2026-11-30 24:61', '2026-12-02', null]];
const wrongSpans = spans.filter(([from, to, seconds]) => {
  const { span, trouble } = timesOf({ from, to });
  return seconds === null ? span !== null || !trouble : trouble !== null || (span.to - span.from) / 1000 !== seconds;
});
tell(wrongSpans.length === 0 && timesOf({}).trouble === null && timesOf({ from: ['2026-11-30', 'x'], to: '2026-12-01' }).span === null, 'what is a time span, and what is not', wrongSpans);
const carried = carry(String(html`<a href="/queue/a%26b?tab=dead&amp;x=1#jobs">a</a><a class="key" title="href" href="/">b</a><a data-now href="/">c</a><a href="https://example.org/">d</a><form method="post" action="/do"></form><form data-now action="/"></form><a href="/static/x.js">e</a>`),
  { from: Date.UTC(2026, 10, 30), to: Date.UTC(2026, 10, 30, 1) });
tell(carried.includes('href="/queue/a%26b?tab=dead&amp;x=1&amp;from=2026-11-30T00%3A00%3A00Z&amp;to=2026-11-30T01%3A00%3A00Z#jobs"') && carried.match(/from=/g).length === 2 && carried.match(/name="from"/g).length === 1
  && carry('<a href="/">', null) === '<a href="/">', 'links and forms carry it, but those that lead elsewhere', carried);
tell(withSpan('/errors?queue=a#b', { from: '2026-11-30', to: '2026-12-01' }) === '/errors?queue=a&from=2026-11-30T00%3A00%3A00Z&to=2026-12-01T00%3A00%3A00Z#b' && withSpan('/', { from: 'x' }) === '/' && withSpan('/', undefined) === '/', 'and so do answers');
const trend = trendOf([100, 110, 3000, 3001, 3001], 100, 3001);
tell(trend.values.reduce((sum, value) => sum + value, 0) === 5 && trend.values[0] + trend.values[1] === 2 && trend.times.at(-1) >= 3001_000 && trend.values.length <= 60, 'the points of a trend', trend);
tell(trendOf([0, 86400 * 900], 0, 86400 * 900).values.length <= 60, 'of years, too');
// A job that waits in its worker. A server of an earlier version does not say so.
const runs = (more) => text(runningPage([{ job_id: '7', queue: 'q', worker: 'W', pid: 1, attempt: 1, claimed_at: new Date(), expires_in: 5, attached: false, state: 'active', progress: null, ahead: null, ...more }]));
tell(runs({ ahead: 'true' }).includes('ahead, waits for a free place') && [{ ahead: 'false' }, {}].every((more) => runs(more).includes(' active ')), 'a job that was claimed ahead is marked', runs({}));

// Many queues.
const queue = (name, more = {}) => ({ queue: name, unfinished: null, max_unfinished: null, pending: '3', running: '0', blocked: '0', dead: '0', retrying: '0', groups_held: '0', oldest_ready: null,
  unattended_for: null, held_for: null, paused: false, is_dead_letter_queue: false, may_administer: false, ...more });
const overview = (queues, more = {}) => String(overviewPage({ queues, last: '1h', all: null, of: () => null, health: null, troubles: [], filter: null, page: 1, ...more }, { writes: false }));
const full = overview([queue('full', { unfinished: '3', max_unfinished: '3' }), queue('above', { unfinished: '12', max_unfinished: '9' }), queue('room', { unfinished: '9', max_unfinished: '10' }), queue('uncounted', { max_unfinished: '5' })]);
tell(full.match(/full: \d+ unfinished jobs/g)?.sort().join() === 'full: 12 unfinished jobs,full: 3 unfinished jobs', 'full queues are marked, and no others', full);
const review = text(overview([queue('undelivered', { is_dead_letter_queue: true, pending: '1' }), queue('empty', { is_dead_letter_queue: true, pending: '0' })]));
tell(/Dead-letter queue undelivered has 1 job to review/.test(review) && !/queue empty has/.test(review), 'a dead-letter queue with jobs needs attention', review);
const tenants = [...Array.from({ length: 1000 }, (_, i) => queue(`tenant-${i}`)), queue('tenant-dead', { dead: '7' }), queue('mail')];
const folded = overview(tenants);
tell(/tenant-\*/.test(folded) && /1,001 queues/.test(folded) && /1 with dead jobs/.test(folded) && folded.length < 60_000, '1,000 queues whose names begin alike are one row', folded.length);
const filtered = overview(tenants, { filter: 'TENANT-' });
tell(filtered.match(/<tr data-part/g).length === 50 && filtered.indexOf('tenant-dead') < filtered.indexOf('tenant-0') && /1 to 50 of 1,001/.test(filtered), 'a filter shows 50, the worst first', filtered.length);
tell(/951 to 1,000 of 1,001/.test(overview(tenants, { filter: 'tenant', page: 20 })) && /1,001 to 1,001 of 1,001/.test(overview(tenants, { filter: 'tenant', page: 21 })), 'and the others on further pages');
tell(/No queue that is visible to you has &quot;none&quot; in its name/.test(overview(tenants, { filter: 'none' })), 'no match is said');

// Why a job is where it is.
const why = 'dead since 2026-11-29 08:39:02.51249+00, after attempt 2 of 3: see idemq.attempts where job_id = 1000000000001; call idemq.retry(1000000000001) to make it ready again';
tell(plainWhy(why) === 'dead since 2026-11-29 08:39:02 UTC, after attempt 2 of 3', 'a sentence without SQL and microseconds', plainWhy(why));
tell(/<details class="hint">[^]*idemq\.retry\(1000000000001\)/.test(String(whySentence(why))) && /<a href="\/job\/1000000002533">job 1000000002533<\/a>/.test(String(whySentence('blocked: waits for its parent, job 1000000002533, which is retrying: see idemq.why(1000000002533)'))),
  'SQL is behind a summary, and jobs are links');

// What a page that is shown is refreshed with.
const page = (a, b, at) => String(html`<h1>Page</h1>${part('a-', a)}<table>${part('b', html`<td>${b}</td>`, { tag: 'tr' })}</table>${part('c', html`<time datetime="x">${at}</time>`)}`);
const shown = have(page('one', 'two', '3 s ago'));
tell(Object.keys(changes(page('one', 'two', '5 s ago'), 'T', shown).parts).length === 0, 'that a time has passed is no change');
const changed = changes(page('one', '<three>', '5 s ago'), 'T', shown);
tell(changed.all === undefined && JSON.stringify(changed.parts) === '{"b":"<tr data-part=\\"b\\"><td>&lt;three&gt;</td></tr>"}', 'only the part that has changed is sent', changed);
tell(changes(page('one', 'two', '').replace('Page', 'Other'), 'T', shown).all.includes('Other') && changes(page('one', 'two', ''), 'T', 'nonsense').all !== undefined, 'a page with other parts is sent whole');
