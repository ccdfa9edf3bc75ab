// The frame of every page.
import { html, href } from '../html.mjs';
import { distance, duration, percent, time } from '../format.mjs';

const links = [['/', 'Overview'], ['/errors', 'Errors'], ['/running', 'Running'], ['/workers', 'Workers'], ['/schedules', 'Schedules'],
  ['/audit', 'Audit'], ['/check', 'Check'], ['/keys', 'Keys']];

/** A page: title, its markup, and {path, server, writes, notice}. */
export function layout(title, body, context) {
  const { path, server, actor, writes, notice, bad } = context;
  return html`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${title} – idemq</title>
<link rel="icon" href="/static/icon.svg">
<link rel="stylesheet" href="/static/style.css">
${['charts', 'refresh', 'keys'].map((name) => html`<script src="/static/${name}.js" defer></script>
`)}</head>
<body>
<a class="skip" href="#main">Skip to content</a>
<header>
<span class="brand">idemq</span>
<nav aria-label="Pages"><ul>${links.map(([address, name]) => html`<li><a href="${address}"${address === path ? html` aria-current="page"` : ''}>${name}</a></li>`)}</ul></nav>
<form method="get" action="/find" role="search"><input name="text" required aria-label="Job number or key" placeholder="Job number or key"> <button>Find</button></form>
</header>
<main id="main" tabindex="-1">
${server?.tests && html`<p class="notice warn test-clock">This is a test server. Its clock is <b>${duration(server.ahead ?? 0)}</b> ahead.</p>`}
<h1>${title}</h1>
${notice && html`<p class="notice ${bad ? 'bad' : ''}" role="status">${notice}</p>`}
${body}
</main>
${server && html`<footer>${server.role}@${server.database}${server.standby ? ' (standby)' : ''}, PostgreSQL ${server.postgresql}, idemq ${server.idemq}${writes ? '' : ', read-only'}${actor && html`; signed in as ${actor}`}</footer>`}
</body>
</html>`;
}

/** A button that leads to the question before an action; nothing on a read-only page. */
export function button(context, name, title, input, label = title) {
  if (!context.writes) return null;
  return html`<form method="get" action="/confirm" class="inline"><input type="hidden" name="action" value="${name}">${Object.entries(input)
    .map(([key, value]) => html`<input type="hidden" name="${key}" value="${value}">`)}<button aria-label="${label}">${title}</button></form>`;
}

/** A table with its head; rows of cells; what to say when there are none.  On a narrow screen a row is a card. */
export function table(label, heads, rows, none) {
  if (rows.length === 0) return html`<p class="none">${none}</p>`;
  return html`<div class="scroll" role="region" aria-label="${label}" tabindex="0"><table class="rows" role="table"><thead role="rowgroup"><tr role="row">${heads.map((head) => html`<th scope="col" role="columnheader"${head.number ? html` class="n"` : ''}>${head.name ?? head}</th>`)}</tr></thead>
<tbody role="rowgroup">${rows.map((cells) => html`<tr role="row">${cells.map((cell, i) => html`<td role="cell" data-label="${heads[i].text ?? heads[i].name ?? heads[i]}"${heads[i].number ? html` class="n"` : ''}>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
}

export const number = (name) => ({ name, number: true });

/** How far a time is, and the whole of it under the pointer. */
export const when = (value) => (value ? html`<time datetime="${time(value).replace(' UTC', 'Z')}" title="${time(value)}">${distance(value)}</time>` : html`<span class="quiet">–</span>`);
/** A name, a key: never broken, cut where there is no room, and whole under the pointer. */
export const key = (text) => (text === null || text === undefined ? null : html`<span class="key" title="${text}">${text}</span>`);
export const queueLink = (name) => html`<a class="key" title="${name}" href="/queue/${encodeURIComponent(name)}">${name}</a>`;
export const jobLink = (id) => html`<a href="/job/${id}">${id}</a>`;
/** A status, or another word: its shape is of static/style.css, by kind. */
export const status = (name, word = name) => html`<span class="status ${name}">${word}</span>`;
export const more = (path, parameters, text = 'Next') => html`<p><a class="button more" href="${href(path, parameters)}">${text}</a></p>`;
/** How far something is, in percent; nothing where that is not known. */
export const progress = (value, label = 'Progress') => (value === null || value === undefined ? null
  : html`<span class="line"><progress max="100" value="${value}" aria-label="${label}"></progress> ${percent(value)}</span>`);
