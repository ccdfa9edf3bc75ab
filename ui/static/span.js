// The time span of the page.  Dragging over a chart, or Shift with the arrow keys and then Enter, shows that span on the whole page.
// The fields, the axes and the tables of charts show the browser's time zone (see refresh.js), and the address has UTC.
import { times } from './refresh.js';

const NS = 'http://www.w3.org/2000/svg';
const charts = () => [...document.querySelectorAll('figure.chart svg[data-begin]')];
/** Minimum number of pixels of a drag.  Less is a click. */
const LEAST = 8;
let drag = null; // { svg, x, from, to }: points, counted from 0
let anchor = null; // the point at which a selection by keyboard began

const lastOf = (svg) => svg.closest('figure').querySelectorAll('tbody tr').length - 1;
const pointAt = (svg, clientX) => {
  const box = svg.getBoundingClientRect();
  const { left, right } = svg.dataset;
  const share = (((clientX - box.left) * svg.viewBox.baseVal.width) / box.width - left) / (svg.viewBox.baseVal.width - left - right);
  return Math.round(Math.min(1, Math.max(0, share)) * lastOf(svg));
};
const both = (one, other) => [Math.min(one, other), Math.max(one, other)];
/** The time span of two points.  A point covers the time before its end. */
const timesOf = (svg, one, other) => {
  const [from, to] = both(one, other);
  return [Number(svg.dataset.begin) + from * svg.dataset.point, Number(svg.dataset.begin) + (to + 1) * svg.dataset.point];
};
const iso = (at) => new Date(at).toISOString().replace('.000Z', 'Z');

function mark(source, one, other) {
  for (const svg of charts()) {
    let box = svg.querySelector('rect.selected');
    if (source === null) {
      box?.remove();
      continue;
    }
    if (!box) {
      box = document.createElementNS(NS, 'rect');
      box.setAttribute('class', 'selected');
      svg.prepend(box);
    }
    const [left, right, last] = [Number(svg.dataset.left), Number(svg.dataset.right), lastOf(svg)];
    const x = (point) => left + (point * (svg.viewBox.baseVal.width - left - right)) / last;
    const [from, to] = both(one, other);
    for (const [name, value] of Object.entries({ x: x(from), y: 0, width: Math.max(x(to) - x(from), 1), height: svg.viewBox.baseVal.height - 22 })) box.setAttribute(name, value);
  }
}

function choose(svg, one, other) {
  const [from, to] = timesOf(svg, one, other);
  const address = new URL(window.location.href);
  for (const name of ['after', 'last', 'page']) address.searchParams.delete(name);
  address.searchParams.set('from', iso(from));
  address.searchParams.set('to', iso(to));
  window.location.assign(address);
}

document.addEventListener('pointerdown', (event) => {
  const svg = event.target.closest?.('svg[data-begin]');
  if (!svg || event.button !== 0) return;
  const point = pointAt(svg, event.clientX);
  drag = { svg, x: event.clientX, from: point, to: point };
  svg.setPointerCapture(event.pointerId);
});
document.addEventListener('pointermove', (event) => {
  if (drag === null) return;
  drag.to = pointAt(drag.svg, event.clientX);
  if (Math.abs(event.clientX - drag.x) >= LEAST) mark(drag.svg, drag.from, drag.to);
});
document.addEventListener('pointerup', (event) => {
  if (drag === null) return;
  const { svg, x, from, to } = drag;
  drag = null;
  if (Math.abs(event.clientX - x) >= LEAST) choose(svg, from, to);
  else mark(null);
});
// For example, the browser scrolls the page under a finger.
document.addEventListener('pointercancel', () => { drag = null; mark(null); });

// The handler of charts.js moves the point; these run before and after it.
const moves = ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'PageUp', 'PageDown', 'Home', 'End'];
document.addEventListener('keydown', (event) => {
  if (event.shiftKey && anchor === null && moves.includes(event.key) && event.target.matches?.('svg[data-begin]')) anchor = Number(event.target.getAttribute('aria-valuenow'));
}, true);
document.addEventListener('keydown', (event) => {
  const svg = event.target;
  if (event.key === 'Escape' && drag !== null) drag = null;
  if (event.key === 'Escape') { anchor = null; mark(null); }
  if (!svg.matches?.('svg[data-begin]')) return;
  const now = Number(svg.getAttribute('aria-valuenow'));
  if (event.key === 'Enter' && anchor !== null) {
    event.preventDefault();
    choose(svg, anchor, now);
  } else if (moves.includes(event.key) && event.shiftKey) {
    mark(svg, anchor, now);
    const [from, to] = timesOf(svg, anchor, now).map((at) => times.local(new Date(at)));
    svg.setAttribute('aria-valuetext', `Selected: ${from} to ${to}. Press Enter to show this time span.`);
  } else if (moves.includes(event.key)) { anchor = null; mark(null); }
});
document.addEventListener('focusout', (event) => { if (event.target.matches?.('svg[data-begin]')) { anchor = null; mark(null); } });

// Time zones.

/** The parts of a time in the zone of the page: the date, and the time of day. */
const split = (at) => times.local(at).split(' ');
const texts = {
  minute: (at) => split(at)[1].slice(0, 5),
  clock: (at) => split(at)[1],
  full: (at) => `${split(at)[0]} ${split(at)[1].slice(0, 5)}`,
  day: (at) => {
    const [date, clock] = split(at);
    const day = new Date(`${date}T12:00Z`);
    return clock.startsWith('00:00') ? `${day.toLocaleDateString('en', { weekday: 'short', timeZone: 'UTC' })} ${day.getUTCDate()}` : `${day.toLocaleDateString('en', { weekday: 'short', timeZone: 'UTC' })} ${clock.slice(0, 5)}`;
  },
};

function showChartTimes() {
  const now = new Date();
  const zone = split(now).slice(2).join(' ');
  for (const element of document.querySelectorAll('[data-at]')) {
    const text = texts[element.dataset.as](new Date(Number(element.dataset.at)));
    if (element.textContent !== text) element.textContent = text;
  }
  for (const head of document.querySelectorAll('[data-until]')) head.textContent = `Until, ${zone}`;
  for (const name of document.querySelectorAll('[data-zone-name]')) name.textContent = zone;
  for (const field of document.querySelectorAll('input[data-time]')) {
    // What the user has typed stays.
    if (field.dataset.shown !== undefined && field.value !== field.dataset.shown) continue;
    field.dataset.utc ??= field.value;
    const at = /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/.test(field.dataset.utc) ? new Date(`${field.dataset.utc.replace(' ', 'T')}Z`) : null;
    if (at) field.value = split(at).slice(0, 2).join(' ');
    field.dataset.shown = field.value;
  }
  for (const hint of document.querySelectorAll('[data-drag]')) hint.hidden = charts().length === 0;
}

/** The time that the user has entered in the zone of the page, in UTC.  A text that is not a time is left to the server. */
function entered(text) {
  const match = /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d))?)?$/.exec(text.trim());
  if (!match) return text;
  const [year, month, day, hour, minute, second] = match.slice(1).map((part) => Number(part ?? 0));
  const at = times.utc() ? new Date(Date.UTC(year, month - 1, day, hour, minute, second)) : new Date(year, month - 1, day, hour, minute, second);
  const back = times.utc() ? at.getUTCDate() : at.getDate();
  return Number.isNaN(at.getTime()) || back !== day ? text : iso(at);
}

document.addEventListener('submit', (event) => {
  const form = event.target;
  if (!form.matches('form.span')) return;
  event.preventDefault();
  const address = new URL(form.getAttribute('action'), window.location.href);
  address.search = new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, name === 'from' || name === 'to' ? entered(value) : value]).filter(([, value]) => value !== '')).toString();
  window.location.assign(address);
});
document.addEventListener('idemq:times', showChartTimes);
document.addEventListener('idemq:anew', showChartTimes);
showChartTimes();
