// Zooms and moves the graph of a flow, and follows the running jobs.  Without this script, the graph scrolls.
'use strict';

const [LEAST, MOST, STEP] = [0.1, 3, 1.25];
let scale = null; // null: fits into its frame
let dragged = null;

const region = () => document.querySelector('.canvas .graph');
const picture = () => region()?.querySelector('svg');
const following = () => new URLSearchParams(window.location.search).get('follow') === '1';

/** The scale at which the whole graph is visible.  (At first, the graph is not made so small that it cannot be read.) */
function fitting() {
  const [frame, { width, height }] = [region(), picture().viewBox.baseVal];
  return Math.min(1, (frame.clientWidth - 4) / width, (window.innerHeight * 0.7) / height);
}

function show() {
  const svg = picture();
  if (!svg) return;
  const { width, height } = svg.viewBox.baseVal;
  const now = scale ?? Math.max(fitting(), 0.7);
  svg.setAttribute('width', width * now);
  svg.setAttribute('height', height * now);
}

/** Changes the scale; the point at (x, y) of the frame stays where it is. */
function zoom(to, x = region().clientWidth / 2, y = region().clientHeight / 2) {
  const frame = region();
  const svg = picture();
  const before = svg.width.baseVal.value / svg.viewBox.baseVal.width;
  const [left, top] = [(frame.scrollLeft + x) / before, (frame.scrollTop + y) / before];
  scale = to === null ? null : Math.min(MOST, Math.max(LEAST, to(before)));
  if (to === null) scale = fitting();
  show();
  const after = svg.width.baseVal.value / svg.viewBox.baseVal.width;
  frame.scrollTo(left * after - x, top * after - y);
}

/** Scrolls to the running jobs, or to the job that the flow has come to. */
function follow() {
  const frame = region();
  const nodes = [...frame?.querySelectorAll('.node.running') ?? []];
  if (nodes.length === 0) return;
  const boxes = nodes.map((node) => node.getBoundingClientRect());
  const at = frame.getBoundingClientRect();
  const middle = (first, last) => (Math.min(...boxes.map(first)) + Math.max(...boxes.map(last))) / 2;
  frame.scrollBy(middle((box) => box.left, (box) => box.right) - at.left - frame.clientWidth / 2, middle((box) => box.top, (box) => box.bottom) - at.top - frame.clientHeight / 2);
}

function showFollowing() {
  document.querySelector('[data-zoom="follow"]')?.setAttribute('aria-pressed', String(following()));
  if (following()) follow();
}

function start() {
  if (!region()) return;
  document.querySelector('.zoom').hidden = false;
  show();
  showFollowing();
}

document.addEventListener('click', (event) => {
  const name = event.target.closest?.('[data-zoom]')?.dataset.zoom;
  if (name === 'in') zoom((now) => now * STEP);
  else if (name === 'out') zoom((now) => now / STEP);
  else if (name === 'fit') zoom(null);
  else if (name === 'follow') {
    const address = new URL(window.location.href);
    if (following()) address.searchParams.delete('follow');
    else address.searchParams.set('follow', '1');
    window.history.replaceState(null, '', address);
    showFollowing();
  }
});
document.addEventListener('keydown', (event) => {
  if (!region()?.contains(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = { '+': (now) => now * STEP, '=': (now) => now * STEP, '-': (now) => now / STEP, 0: null }[event.key];
  if (to === undefined) return;
  zoom(to);
  event.preventDefault();
});
document.addEventListener('wheel', (event) => {
  if (!event.ctrlKey || !region()?.contains(event.target)) return;
  const at = region().getBoundingClientRect();
  zoom((now) => now * (event.deltaY < 0 ? STEP : 1 / STEP), event.clientX - at.left, event.clientY - at.top);
  event.preventDefault();
}, { passive: false });

// A mouse drags the graph.  A finger scrolls it anyway.
document.addEventListener('pointerdown', (event) => {
  const frame = region();
  if (event.pointerType !== 'mouse' || event.button !== 0 || !frame?.contains(event.target)) return;
  dragged = { x: event.clientX, y: event.clientY, left: frame.scrollLeft, top: frame.scrollTop, moved: false };
});
document.addEventListener('pointermove', (event) => {
  if (dragged === null) return;
  const [x, y] = [event.clientX - dragged.x, event.clientY - dragged.y];
  dragged.moved ||= Math.abs(x) + Math.abs(y) > 4;
  if (dragged.moved) region()?.scrollTo(dragged.left - x, dragged.top - y);
});
document.addEventListener('pointerup', () => { setTimeout(() => { dragged = null; }); });
document.addEventListener('dragstart', (event) => { if (region()?.contains(event.target)) event.preventDefault(); });
document.addEventListener('click', (event) => { if (dragged?.moved) event.preventDefault(); }, { capture: true });

document.addEventListener('idemq:anew', start);
window.addEventListener('resize', () => { if (region() && scale === null) show(); });
start();
