// Single-letter keyboard shortcuts.  The page /keys lists them, and can turn them off.
'use strict';

const places = { o: '/', e: '/errors', r: '/running', w: '/workers', s: '/schedules', a: '/audit', c: '/check' };
const off = () => localStorage.getItem('idemq-keys') === 'off';
let after = '';

const choice = document.querySelector('[data-keys]');
if (choice) {
  choice.checked = !off();
  choice.addEventListener('change', () => localStorage.setItem('idemq-keys', choice.checked ? 'on' : 'off'));
}

function step(by) {
  const links = [...document.querySelectorAll('main table.rows tbody tr')].map((row) => row.querySelector('a')).filter(Boolean);
  const now = links.findIndex((link) => link.closest('tr').contains(document.activeElement));
  links[Math.min(links.length - 1, Math.max(0, now + by))]?.focus();
}

document.addEventListener('keydown', (event) => {
  const { key, target } = event;
  if (off() || event.ctrlKey || event.altKey || event.metaKey || target.closest('input, select, textarea')) return;
  const before = after;
  after = key;
  const place = before === 'g' ? places[key] : key === '?' ? '/keys' : undefined;
  if (place !== undefined) window.location.assign(place);
  else if (key === '/') document.querySelector('header input')?.focus();
  else if (key === 'p') document.dispatchEvent(new Event('idemq:pause'));
  else if (key === 'u') {
    localStorage.setItem('idemq-utc', localStorage.getItem('idemq-utc') === 'on' ? 'off' : 'on');
    document.dispatchEvent(new Event('idemq:times'));
  } else if (key === 'j' || key === 'k') step(key === 'j' ? 1 : -1);
  else return;
  after = '';
  event.preventDefault();
});
