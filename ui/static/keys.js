// Single-letter keyboard shortcuts.  The page /keys lists them, and can turn them off; "?" shows this page in a dialog.
'use strict';

const places = { o: '/', e: '/errors', r: '/running', f: '/flows', w: '/workers', s: '/schedules', a: '/audit', c: '/check' };
const off = () => localStorage.getItem('idemq-keys') === 'off';
let after = '';

const base = document.documentElement.dataset.base ?? '';

function prepareChoice() {
  const choice = document.querySelector('[data-keys]');
  if (!choice) return;
  choice.checked = !off();
  choice.addEventListener('change', () => localStorage.setItem('idemq-keys', choice.checked ? 'on' : 'off'));
}
prepareChoice();
document.addEventListener('idemq:dialog', prepareChoice);

const rowsOf = () => [...document.querySelectorAll('main table.rows tbody tr')].filter((row) => row.querySelector('a'));
const rowNow = () => rowsOf().find((row) => row.contains(document.activeElement));

/** Moves the focus to the link of the next or the previous row. */
function step(by) {
  const rows = rowsOf();
  const row = rows[Math.min(rows.length - 1, Math.max(0, rows.indexOf(rowNow()) + by))];
  if (!row) return;
  row.querySelector('a').focus({ preventScroll: true });
  row.scrollIntoView({ block: 'nearest' });
}

document.addEventListener('keydown', (event) => {
  const { key, target } = event;
  // A check box takes no letters, so that the keys also work there.
  if (off() || event.ctrlKey || event.altKey || event.metaKey || target.closest('input:not([type="checkbox"]), select, textarea') || document.querySelector('dialog[open]')) return;
  const before = after;
  after = key;
  const place = before === 'g' ? places[key] : undefined;
  if (place !== undefined) window.location.assign(base + place);
  else if (key === '/') document.querySelector('header input')?.focus();
  else if (key === '?') document.dispatchEvent(new CustomEvent('idemq:show', { detail: `${base}/keys` }));
  else if (key === 'x') rowNow()?.querySelector('input[name="ids"]')?.click();
  else if (key === 'n') document.querySelector('main a.more')?.click();
  else if (key === 'p') document.dispatchEvent(new Event('idemq:pause'));
  else if (key === 'u') {
    localStorage.setItem('idemq-utc', localStorage.getItem('idemq-utc') === 'on' ? 'off' : 'on');
    document.dispatchEvent(new Event('idemq:times'));
  } else if (key === 'j' || key === 'k') step(key === 'j' ? 1 : -1);
  else return;
  after = '';
  event.preventDefault();
});
