// The results of a search, and the help for it.
import { href, html } from '../html.mjs';
import { count, duration, percent } from '../format.mjs';
import { PAGE } from '../jobs/walk.mjs';
import { causeOf } from '../jobs/trace.mjs';
import { cursorText } from '../search/find.mjs';
import { quote, terms } from '../search/parse.mjs';
import { key, number, queueLink, status, table, when } from './layout.mjs';
import { addressOf, payloadOf, wordOf } from './queue.mjs';

const timeOf = (job) => job.finished_at ?? job.claimed_at ?? job.enqueued_at;
const name = (job) => job.key ?? job.kind ?? job.id;

const columns = [
  ['Job', (job) => html`<a class="key" href="/job/${job.id}" title="${name(job)}">${name(job)}</a>`],
  ['State', (job) => status(job.status, wordOf(job))],
  ['Queue', (job) => queueLink(job.queue)],
  ['Kind', (job) => key(job.kind), (job) => job.key !== null && job.kind !== null],
  ['Error', (job) => job.last_error && html`<span class="error" title="${job.last_error.slice(0, 500)}">${causeOf(job.last_error).slice(0, 200)}</span>`, (job) => job.last_error !== null],
  [number('Attempt'), (job) => html`${job.attempt} of ${job.max_attempts}`, (job) => job.attempt > 0],
  ['Last change', (job) => when(timeOf(job))],
  ['Payload', (job) => payloadOf(job)],
  [number('Number'), (job) => html`<a class="quiet small" href="/job/${job.id}">${job.id}</a>`, (job) => name(job) !== job.id],
];

/** How far the search is: the number found, the number searched, and the time for the rest. */
function howFar(result) {
  const { ids, looked, of, next, seconds, found, index } = result;
  const all = found + ids.length;
  const jobs = `${count(all)} ${all === 1 ? 'job' : 'jobs'} found`;
  if (index) return html`<b>${jobs}${next && ' so far'}</b>, with the index <code>${index}</code>, newest first.`;
  const share = of === null || of === 0 ? null : Math.min(looked / of, 1);
  const left = next !== null && ids.length < PAGE && share > 0.001 ? Math.max(1, (seconds / share) * (1 - share)) : null;
  return html`<b>${jobs}${next && ' so far'}</b>; searched ${count(looked)}${of === null ? ' jobs' : html` of ${count(Math.max(of, looked))} jobs`}${next !== null && share !== null && html` (${percent(share * 100)})`} in ${duration(seconds)}.${
    left !== null && html` The rest takes about ${duration(Math.round(left))}.`}${next === null && ' The search is complete.'}`;
}

const examples = ['state:dead error:timeout', 'queue:mail state:retrying since:1h', 'payload.customer.id:77', 'key:order-18', 'queue:tenant-* state:running'];

/** The help for the search box, if nothing was searched. */
export function searchHelp() {
  return html`<p>Enter terms or plain words in the box at the top of the page. A job must match all of them. Plain words are searched in the number, key, kind, group and last error of each job.</p>
${table('Terms', ['Term', 'Meaning'], Object.entries(terms).map(([term, help]) => [html`<code>${term}:</code>`, help]), '')}
<p>Put a value that contains spaces in double quotes: <code>error:"no such address"</code>.</p>
<h2>Examples</h2><ul class="said">${examples.map((text) => html`<li><a href="${href('/search', { q: text })}"><code>${text}</code></a></li>`)}</ul>
<section data-saved hidden><h2>Saved searches</h2><p class="quiet">They are kept in this browser. Each one is a link that you can share.</p><ul class="said"></ul></section>`;
}

/** The list of one queue with the same conditions, where several jobs can be changed at once; null if it has no such filter. */
function listOf(search) {
  if (search.queue === null || search.queue.includes('*') || search.words.length > 0 || search.fields.length > 0 || search.filter.payloadText !== undefined
    || ['since', 'until'].some((term) => search.filter[term]?.ago !== undefined)) return null;
  const { since, until, ...filter } = search.filter;
  const at = (time) => time && time.at.slice(0, 16).replace(' ', 'T');
  return href(addressOf(search.queue), { tab: search.state ?? 'all', ...filter, since: at(since), until: at(until) });
}

/** text: what was entered; search: its meaning; result: of find(); rows: its jobs; others: queues and kinds whose names contain a plain word; trouble: what is wrong with the text. */
export function searchPage({ text, search, result, rows, others, trouble, first }) {
  if (trouble !== null) return html`<p class="notice bad" role="alert" id="search-trouble">${trouble}</p><p class="quiet">The text of your search is still in the box at the top of the page.</p>${searchHelp()}`;
  const used = columns.filter(([, , has]) => !has || rows.some(has));
  const list = listOf(search);
  const words = search.words.length > 0 && rows.length === 0;
  const heading = others.queues.length > 0 || others.kinds.length > 0;
  return html`${heading && html`<p class="named">${others.queues.length > 0 && html`Queues: ${others.queues.map((queue, i) => html`${i > 0 && ', '}${queueLink(queue.name)}`)}. `}${
    others.kinds.length > 0 && html`Kinds: ${others.kinds.map((kind, i) => html`${i > 0 && ', '}<a href="${href('/search', { q: `queue:${quote(kind.queue)} kind:${quote(kind.kind)}` })}">${kind.kind}</a> in ${kind.queue}`)}.`}</p>`}
<p class="found" role="status" data-found>${howFar(result)}${search.fields.length > 0 && !result.index && ' Payloads larger than 64 kB are not searched.'}</p>
<p class="actions"><button type="button" data-save hidden>Save this search</button> <button type="button" data-share hidden>Copy link</button> ${rows.length > 0 && html`<a class="button" href="${href('/search.csv', { q: text })}" download>Download as CSV</a>`} ${list && html`<a class="button" href="${list}">Open in the list of queue ${search.queue}</a>`}</p>
${table('Jobs', used.map(([head]) => head), rows.map((job) => used.map(([, cell]) => cell(job))),
    result.next !== null ? 'No match among the jobs searched so far.' : html`No job that is visible to you matches.${words && html` Plain words are not searched in payloads: <a href="${href('/search', { q: `payload:${quote(search.words[0])}` })}">search payloads for <q>${search.words[0]}</q></a>.`}`)}
<p class="actions">${!first && html`<a class="button" href="${href('/search', { q: text })}">First results</a>`}${result.next !== null && html`<a class="button more" data-more href="${href('/search', { q: text, after: cursorText(result.next) })}">${rows.length === PAGE ? 'More results' : 'Keep searching'}</a>`}</p>
<section data-saved hidden><h2>Saved searches</h2><ul class="said"></ul></section>`;
}
