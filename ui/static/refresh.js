// Keeps a page up to date (see src/live.mjs), shows how old it is, and shows times in the browser's time zone.

const main = document.querySelector('main[data-have]');
const ago = document.querySelector('[data-age]');
const pause = document.querySelector('[data-pause]');
const SECOND = 1000;
/** After this time without a key press or pointer movement, the page is refreshed only every SLOW seconds. */
const IDLE = 600 * SECOND;
const SLOW = 10;

// Times.

const offset = main ? Number(main.dataset.now) - Date.now() : 0;
const utc = () => localStorage.getItem('idemq-utc') === 'on';

function duration(seconds) {
  const s = Math.abs(seconds);
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.floor(s)} s`;
  const two = (big, unit, small, unit2) => `${Math.floor(s / big)} ${unit}${Math.floor((s % big) / small) ? ` ${Math.floor((s % big) / small)} ${unit2}` : ''}`;
  if (s < 3600) return two(60, 'min', 1, 's');
  return s < 86400 ? two(3600, 'h', 60, 'min') : two(86400, 'd', 3600, 'h');
}

const two = (number) => String(number).padStart(2, '0');

/** A time as 2026-11-22 05:12:09 CET. */
function local(at) {
  if (utc()) return `${at.toISOString().slice(0, 19).replace('T', ' ')} UTC`;
  const zone = new Intl.DateTimeFormat('en', { timeZoneName: 'short' }).formatToParts(at).find(({ type }) => type === 'timeZoneName').value;
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())} ${zone}`;
}

/** For span.js. */
export const times = { local, utc };

function showTimes(root) {
  for (const element of root.querySelectorAll('time[datetime]')) {
    const at = new Date(element.dateTime.replace(' ', 'T'));
    if (Number.isNaN(at.getTime())) continue;
    const seconds = (at - Date.now() - offset) / 1000;
    const text = element.classList.contains('at') ? local(at) : seconds < 0 ? `${duration(seconds)} ago` : `in ${duration(seconds)}`;
    if (element.textContent !== text) element.textContent = text;
    if (!element.classList.contains('at')) element.title = local(at);
  }
}

// Changes.

let had = main?.dataset.have.split(',');
let stopped = false;
let moved = Date.now();
let readAt = Date.now();
let lostSince = null;
let timer = null;

/** Whether a refresh would disturb the user, who would lose the focus, an input, a selection, or the time that the charts show. */
const inUse = (element) => (element.contains(document.activeElement) && element !== main)
  || (element === main && (document.activeElement.matches('main a, main button, main summary, main input, main select, main textarea') || main.querySelector('.list input:checked') !== null))
  || document.querySelector('dialog[open]') !== null
  || element.querySelector('.cursor.on') !== null || (!document.getSelection().isCollapsed && element.contains(document.getSelection().anchorNode));

function replace(element, text) {
  const open = [...element.querySelectorAll('details[open][id]')].map(({ id }) => id);
  const checked = [...element.querySelectorAll('input[name="ids"]:checked')].map(({ value }) => value);
  const holder = document.createElement('template');
  holder.innerHTML = text;
  const fresh = holder.content.firstElementChild;
  element.replaceWith(fresh);
  for (const id of open) document.getElementById(id)?.setAttribute('open', '');
  for (const box of fresh.querySelectorAll('input[name="ids"]')) box.checked = checked.includes(box.value);
}

function apply(answer) {
  const fresh = answer.have.split(',');
  if (answer.all !== undefined) {
    if (inUse(main)) return;
    const open = [...main.querySelectorAll('details[open][id]')].map(({ id }) => id);
    main.innerHTML = answer.all;
    for (const id of open) document.getElementById(id)?.setAttribute('open', '');
  } else {
    const names = [...main.querySelectorAll('[data-part]')].map((element) => element.dataset.part);
    for (const [name, text] of Object.entries(answer.parts)) {
      const element = main.querySelector(`[data-part="${CSS.escape(name)}"]`);
      if (element === null || inUse(element)) fresh[names.indexOf(name) + 1] = ''; // so that it is requested again
      else replace(element, text);
    }
    if (Object.keys(answer.parts).length === 0 && fresh.join() === had.join()) return;
  }
  had = fresh;
  document.dispatchEvent(new Event('idemq:anew'));
  showTimes(main);
}

function showAttention() {
  const number = Number(main?.querySelector('[data-attention]')?.dataset.attention ?? 0);
  const title = document.title.replace(/^\(\d+\) /, '');
  document.title = number > 0 ? `(${number}) ${title}` : title;
  const icon = document.querySelector('link[rel="icon"]');
  const address = icon.href.replace(/icon(-alert)?\.svg$/, number > 0 ? 'icon-alert.svg' : 'icon.svg');
  if (icon.href !== address) icon.href = address;
}

function showAge() {
  if (ago === null) return;
  const clock = (at) => local(new Date(at)).slice(11);
  ago.textContent = lostSince !== null ? `No connection since ${clock(lostSince)}, retrying` : stopped ? `Paused at ${clock(readAt)}` : `Live, updated ${Math.max(0, Math.round((Date.now() - readAt) / SECOND))} s ago`;
  ago.closest('.live').classList.toggle('lost', lostSince !== null);
  main.classList.toggle('stale', lostSince !== null);
}

async function refresh() {
  clearTimeout(timer);
  const every = Number(main.dataset.every) * SECOND;
  if (!stopped && document.visibilityState === 'visible') {
    try {
      const response = await fetch(window.location.href, { credentials: 'same-origin', cache: 'no-store', headers: { 'x-idemq-have': had.join(), accept: 'application/json' } });
      if (response.status >= 500 || !(response.headers.get('content-type') ?? '').includes('json')) throw new Error(response.statusText);
      const answer = await response.json();
      readAt = Date.now();
      lostSince = null;
      if (answer.have) apply(answer);
      showAttention();
    } catch {
      lostSince ??= readAt;
    }
    showAge();
  }
  timer = setTimeout(refresh, Date.now() - moved > IDLE ? Math.max(SLOW * SECOND, every) : every);
}

const showZone = () => {
  const zone = document.querySelector('[data-zone]');
  if (zone) {
    const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
    zone.textContent = own === 'UTC' ? 'Times are in UTC.' : utc() ? `Times are in UTC; press u for ${own}.` : `Times are in ${own}; press u for UTC.`;
  }
  showTimes(document);
};
document.addEventListener('idemq:times', showZone);
showZone();
if (main && Number(main.dataset.every) > 0) {
  ago.closest('.live').hidden = false;
  const toggle = () => {
    stopped = !stopped;
    pause.textContent = stopped ? 'Resume live' : 'Pause live';
    if (!stopped) refresh();
    showAge();
  };
  pause.addEventListener('click', toggle);
  document.addEventListener('idemq:pause', toggle);
  for (const name of ['keydown', 'pointermove', 'pointerdown'])
    document.addEventListener(name, () => {
      const slept = Date.now() - moved > IDLE;
      moved = Date.now();
      if (slept) refresh();
    }, { passive: true });
  document.addEventListener('visibilitychange', () => { if (document.visibilityState === 'visible') refresh(); });
  timer = setTimeout(refresh, Number(main.dataset.every) * SECOND);
  showAttention();
  showAge();
}
setInterval(() => { if (!stopped && document.visibilityState === 'visible') showTimes(document); showAge(); }, SECOND);
