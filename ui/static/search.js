// The search box: suggestions, Ctrl-K, saved searches, and the continuation of a search on the same page.  Without this script, the
// box is an ordinary form, and "Keep searching" is a link.
'use strict';

const box = document.querySelector('header input[name="q"]');
const list = document.createElement('ul');
const SAVED = 'idemq-searches';
let from = 0; // where the part of the text begins that a suggestion replaces
let asked = 0;
let active = -1;

const base = document.documentElement.dataset.base ?? '';
const searchAddress = (text) => `${base}/search?${new URLSearchParams({ q: text })}`;
function saved() {
  try {
    const texts = JSON.parse(localStorage.getItem(SAVED) ?? '[]');
    return Array.isArray(texts) ? texts.filter((text) => typeof text === 'string') : [];
  } catch {
    return [];
  }
}

// Suggestions.

function close() {
  list.hidden = true;
  active = -1;
  box.setAttribute('aria-expanded', 'false');
  box.removeAttribute('aria-activedescendant');
}

function mark(index) {
  const items = [...list.children];
  active = index;
  items.forEach((item, i) => item.setAttribute('aria-selected', String(i === index)));
  if (index < 0) box.removeAttribute('aria-activedescendant');
  else {
    box.setAttribute('aria-activedescendant', items[index].id);
    items[index].scrollIntoView({ block: 'nearest' });
  }
}

function show(items) {
  list.replaceChildren(...items.map(({ text, help }, i) => {
    const item = document.createElement('li');
    Object.assign(item, { id: `suggestion-${i}`, role: 'option' });
    item.setAttribute('aria-selected', 'false');
    item.dataset.text = text;
    const [code, more] = [document.createElement('code'), document.createElement('span')];
    code.textContent = text;
    more.textContent = help ?? '';
    item.append(code, ' ', more);
    return item;
  }));
  list.hidden = items.length === 0;
  active = -1;
  box.removeAttribute('aria-activedescendant');
  box.setAttribute('aria-expanded', String(!list.hidden));
}

async function suggest() {
  asked += 1;
  const now = asked;
  const text = box.value.slice(0, box.selectionStart ?? box.value.length);
  try {
    const response = await fetch(`${base}/suggest?${new URLSearchParams({ q: text })}`, { credentials: 'same-origin', cache: 'no-store' });
    const answer = await response.json();
    if (now !== asked || document.activeElement !== box) return;
    from = answer.from;
    const own = text === '' ? saved().slice(0, 5).map((one) => ({ text: one, help: 'saved search' })) : [];
    show([...own, ...answer.items]);
  } catch {
    close();
  }
}

function pick(item) {
  const rest = box.value.slice(box.selectionStart ?? box.value.length);
  const head = box.value.slice(0, from) + item.dataset.text;
  box.value = head + (head.endsWith(' ') ? rest.trimStart() : rest);
  box.setSelectionRange(head.length, head.length);
  suggest();
}

if (box) {
  Object.assign(list, { id: 'suggestions', role: 'listbox', ariaLabel: 'Suggestions', hidden: true });
  box.closest('form').append(list);
  for (const [name, value] of Object.entries({ role: 'combobox', 'aria-expanded': 'false', 'aria-controls': 'suggestions', 'aria-autocomplete': 'list' })) box.setAttribute(name, value);
  box.addEventListener('input', suggest);
  box.addEventListener('focus', suggest);
  box.addEventListener('blur', close);
  list.addEventListener('mousedown', (event) => {
    event.preventDefault(); // so that the box keeps the focus
    const item = event.target.closest('li');
    if (item) pick(item);
  });
  box.addEventListener('keydown', (event) => {
    const last = list.children.length - 1;
    if (event.key === 'Escape' && !list.hidden) close();
    else if (event.key === 'ArrowDown' && !list.hidden) mark(active >= last ? 0 : active + 1);
    else if (event.key === 'ArrowUp' && !list.hidden) mark(active <= 0 ? last : active - 1);
    else if (event.key === 'Enter' && active >= 0) pick(list.children[active]);
    else return;
    event.preventDefault();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key.toLowerCase() !== 'k' || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    box.focus();
    box.select();
  });
}

// Saved searches.

const now = () => (window.location.pathname === `${base}/search` ? new URLSearchParams(window.location.search).get('q')?.trim() ?? '' : '');

function showSaved() {
  for (const section of document.querySelectorAll('[data-saved]')) {
    const texts = saved();
    section.hidden = texts.length === 0;
    section.querySelector('ul').replaceChildren(...texts.map((text) => {
      const [item, link, remove] = [document.createElement('li'), document.createElement('a'), document.createElement('button')];
      link.href = searchAddress(text);
      link.textContent = text;
      Object.assign(remove, { type: 'button', textContent: 'Remove', ariaLabel: `Remove saved search ${text}` });
      remove.addEventListener('click', () => keep(saved().filter((other) => other !== text)));
      item.append(link, ' ', remove);
      return item;
    }));
  }
  const save = document.querySelector('[data-save]');
  if (save) {
    save.hidden = false;
    save.disabled = saved().includes(now());
    save.textContent = save.disabled ? 'Saved' : 'Save this search';
  }
}

function keep(texts) {
  localStorage.setItem(SAVED, JSON.stringify(texts.slice(0, 50)));
  showSaved();
}

document.querySelector('[data-save]')?.addEventListener('click', () => keep([now(), ...saved().filter((text) => text !== now())]));
const share = document.querySelector('[data-share]');
if (share && navigator.clipboard) {
  share.hidden = false;
  share.addEventListener('click', async () => {
    share.textContent = await navigator.clipboard.writeText(new URL(searchAddress(now()), window.location.href).href).then(() => 'Copied', () => 'Copying failed: use the address of this page');
    setTimeout(() => { share.textContent = 'Copy link'; }, 2000);
  });
}
showSaved();

// Continuation: the rows of the next page are added to this one, until one slice after another has found a page of jobs, or all is searched.

let searching = false;

function append(page) {
  const fresh = page.querySelector('table.rows tbody');
  const table = document.querySelector('main table.rows tbody');
  if (fresh) {
    // The two pages may have different columns, so that the rows of the first are only extended if the columns are equal.
    const heads = (root) => [...root.closest('table').querySelectorAll('th')].map((head) => head.textContent).join();
    if (table && heads(table) === heads(fresh)) table.append(...fresh.children);
    else if (table) table.closest('.scroll').after(fresh.closest('.scroll'));
    else document.querySelector('main .none').replaceWith(fresh.closest('.scroll'));
  } else if (!table) document.querySelector('main .none').replaceWith(page.querySelector('.none'));
  document.querySelector('[data-found]').replaceWith(page.querySelector('[data-found]'));
}

document.addEventListener('click', async (event) => {
  const link = event.target.closest('[data-more]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  event.preventDefault();
  if (searching) {
    searching = false;
    return;
  }
  searching = true;
  const label = link.textContent;
  link.textContent = 'Stop searching';
  let added = 0;
  try {
    for (let next = link.href; searching && next && added === 0;) {
      const response = await fetch(next, { credentials: 'same-origin' });
      const page = new DOMParser().parseFromString(await response.text(), 'text/html');
      if (!response.ok || !page.querySelector('[data-found]')) throw new Error('no results');
      added = page.querySelectorAll('table.rows tbody tr').length;
      append(page);
      next = page.querySelector('[data-more]')?.getAttribute('href');
      if (next) link.setAttribute('href', next);
      else link.remove();
    }
  } catch {
    window.location.assign(link.href);
  }
  searching = false;
  link.textContent = label === 'More results' ? label : 'Keep searching';
  document.dispatchEvent(new Event('idemq:anew'));
});
