// The parts that all pages share.
import { html, href } from '../html.mjs';
import { now } from '../clock.mjs';
import { distance, duration, percent, time } from '../format.mjs';
import { have, part } from '../live.mjs';
import { spanBar } from './span.mjs';
import { looks } from '../site.mjs';

const links = [['/', 'Overview'], ['/errors', 'Errors'], ['/running', 'Running'], ['/flows', 'Flows'], ['/workers', 'Workers'], ['/schedules', 'Schedules'],
  ['/audit', 'Audit'], ['/check', 'Check'], ['/keys', 'Keys']];

/** The content of a page between its header and its footer.  A live page refreshes this. */
export function content(title, body, { server, notice, bad, spanned, times, url }) {
  return html`${server?.tests && html`<p class="notice warn test-clock">This is a test server. Its clock is <b>${duration(server.ahead ?? 0)}</b> ahead.</p>`}
<h1>${title}</h1>
${notice && html`<p class="notice ${bad ? 'bad' : ''}" role="status">${notice}</p>`}
${spanned && spanBar(url, times)}
${body}`;
}

/** The menu of databases, if there are several.  Its addresses contain the prefix already, so they are in apostrophes: see site.mjs. */
function databasesMenu({ root, name, names = [] }, path) {
  if (names.length < 2) return null;
  return html`<details class="menu"><summary>${name}</summary><ul aria-label="Databases">${names.map((other) => html`<li><a href='${root}/db/${other}${path ?? '/'}'${other === name && html` aria-current="true"`}>${other}</a></li>`)}</ul></details>`;
}

/** The menu with which the look is chosen. */
function lookMenu({ look, here }) {
  return html`<details class="menu look"><summary>Display</summary><form method="get" action="/look"><input type="hidden" name="back" value="${here}">
${Object.entries(looks).map(([what, values]) => html`<fieldset><legend>${what}</legend>${values.map((value) => html`<button name="${what}" value="${value}" aria-pressed="${String(look[what] === value)}">${value}</button>`)}</fieldset>`)}</form></details>`;
}

/** A page: its title, its markup, and {path, server, writes, notice, every}.  every: seconds between refreshes, if it is live. */
export function layout(title, body, context) {
  const { path, server, actor, writes, every = 0, search = '', site } = context;
  const inside = content(title, body, context);
  return html`<!DOCTYPE html>
<html lang="en" data-base="${site?.prefix ?? ''}" data-theme="${site?.look.theme ?? 'auto'}" data-density="${site?.look.density ?? 'normal'}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="${!site || site.look.theme === 'auto' ? 'light dark' : site.look.theme}">
<title>${title} – idemq</title>
<link rel="icon" href="/static/icon.svg">
<link rel="stylesheet" href="/static/style.css">
${['charts', 'dialog', 'refresh', 'search', 'span', 'keys'].map((name) => html`<script src="/static/${name}.js" type="module"></script>
`)}</head>
<body>
<a class="skip" href="#main">Skip to content</a>${String(inside).includes('id="list"') && html`<a class="skip" href="#list">Skip to the list</a>`}
<header>
<span class="brand">idemq</span>${server && !writes && html` <span class="readonly">read-only</span>`}
<nav aria-label="Pages"><ul class="scroll">${links.map(([address, name]) => html`<li><a href="${address}"${address === path ? html` aria-current="page"` : ''}>${name}</a></li>`)}</ul></nav>
<form method="get" action="/search" role="search"><input name="q" value="${search}" required maxlength="1000" aria-label="Search" placeholder="Search: queue: state: error: payload.…" autocomplete="off" spellcheck="false"> <button>Search</button></form>
${site && html`${databasesMenu(site, path)}${lookMenu(site)}`}
</header>
<p class="live" hidden><span data-age role="status"></span> <button type="button" data-pause>Pause live</button></p>
<main id="main" tabindex="-1" data-every="${every}" data-now="${now()}" data-have="${have(String(inside))}">${inside}</main>
${server && html`<footer>${server.role}@${server.database}${server.standby ? ' (standby)' : ''}, PostgreSQL ${server.postgresql}, idemq ${server.idemq}${writes ? '' : ', read-only'}${actor && html`; signed in as ${actor}`}. <span data-zone>Times are in UTC.</span></footer>`}
</body>
</html>`;
}

const HINT = /[:;] ((?:see|call|start a worker that calls) [^;]*)/g;
/** A sentence of idemq.why without its hints about SQL and without fractions of seconds. */
export const plainWhy = (text) => text.replace(HINT, '').replace(/(\d\d:\d\d:\d\d)(?:\.\d+)?\+00/g, '$1 UTC');
/** A sentence of idemq.why, with times and links.  Its hints about SQL are collapsed.  state: the status with which it begins, which then has its mark. */
export function whySentence(text, state = null) {
  const hints = [];
  const plain = text.replace(HINT, (_, hint) => { hints.push(hint); return ''; });
  const marked = state !== null && plain.startsWith(state);
  const pieces = (marked ? plain.slice(state.length) : plain).split(/(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\+00|\bjob \d{6,18}\b)/);
  return html`<p class="why">${marked && status(state)}${pieces.map((piece) => (/^\d{4}-.*\+00$/.test(piece) ? moment(piece) : /^job \d/.test(piece) ? html`<a href="/job/${piece.slice(4)}">${piece}</a>` : piece))}.</p>
${hints.length > 0 && html`<details class="hint"><summary>In SQL</summary><p>${hints.map((hint) => html`<span>${hint}</span><br>`)}</p></details>`}`;
}

/** A button that opens the confirmation of an action; null on a read-only page. */
export function button(context, name, title, input, label = title) {
  if (!context.writes) return null;
  return html`<form method="get" action="/confirm" class="inline"><input type="hidden" name="action" value="${name}">${Object.entries(input)
    .map(([key, value]) => html`<input type="hidden" name="${key}" value="${value}">`)}<button aria-label="${label}">${title}</button></form>`;
}

/** A table.  none: the text if there are no rows; names: names of the rows, which are then refreshed one by one.
 * On a narrow screen, each row is a card. */
export function table(label, heads, rows, none, names = null) {
  if (rows.length === 0) return html`<p class="none">${none}</p>`;
  return html`<div class="scroll" role="region" aria-label="${label}" tabindex="0"${['Jobs', 'Queues'].includes(label) && html` id="list"`}><table class="rows" role="table"><thead role="rowgroup"><tr role="row">${heads.map((head) => html`<th scope="col" role="columnheader"${head.number ? html` class="n"` : ''}>${head.name ?? head}</th>`)}</tr></thead>
<tbody role="rowgroup">${rows.map((cells, n) => {
    const row = cells.map((cell, i) => html`<td role="cell" data-label="${heads[i].text ?? heads[i].name ?? heads[i]}"${heads[i].number ? html` class="n"` : ''}>${cell}</td>`);
    return names === null ? html`<tr role="row">${row}</tr>` : part(names[n], row, { tag: 'tr', attributes: html`role="row"` });
  })}</tbody></table></div>`;
}

export const number = (name) => ({ name, number: true });

/** A time as the value of a datetime attribute; empty if JavaScript cannot represent it. */
const iso = (value) => (/^[-\d: ]{19} UTC$/.test(time(value)) ? time(value).replace(' UTC', 'Z') : '');
/** A time.  A script converts it to the browser's time zone. */
export const moment = (value) => html`<time class="at" datetime="${iso(value)}">${time(value)}</time>`;
/** The distance of a time from now.  The title contains the full time. */
export const when = (value) => (value ? html`<time datetime="${iso(value)}" title="${time(value)}">${distance(value)}</time>` : html`<span class="quiet">–</span>`);
/** A name or a key.  It is never wrapped, and is truncated if there is no room.  The title contains the whole text. */
export const key = (text) => (text === null || text === undefined ? null : html`<span class="key" title="${text}">${text}</span>`);
export const queueLink = (name) => html`<a class="key" title="${name}" href="/queue/${encodeURIComponent(name)}">${name}</a>`;
export const jobLink = (id) => html`<a href="/job/${id}">${id}</a>`;
/** A status, or another word.  static/style.css defines the shape for each status. */
export const status = (name, word = name) => html`<span class="status ${name}">${word}</span>`;
export const more = (path, parameters, text = 'Next') => html`<p><a class="button more" href="${href(path, parameters)}">${text}</a></p>`;
/** A progress bar with the percentage; null if the progress is not known. */
export const progress = (value, label = 'Progress') => (value === null || value === undefined ? null
  : html`<span class="line"><progress max="100" value="${value}" aria-label="${label}"></progress> ${percent(value)}</span>`);
