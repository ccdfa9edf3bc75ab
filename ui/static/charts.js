// Shows the values of a chart at the pointer or the keyboard position.  They are read from the chart's table
// of values.  All charts of a page show the same time.
'use strict';

const chartsOf = () => [...document.querySelectorAll('figure.chart')];

function show(figure, index) {
  const svg = figure.querySelector('svg[data-left]');
  const rows = figure.querySelectorAll('tbody tr');
  const values = figure.querySelector('.values');
  values.dataset.now ??= values.innerHTML;
  const cursor = svg.querySelector('.cursor');
  if (index === null) {
    values.innerHTML = values.dataset.now;
    cursor.classList.remove('on');
    return;
  }
  const { left, right } = svg.dataset;
  const width = svg.viewBox.baseVal.width - left - right;
  const heads = [...figure.querySelectorAll('thead th')].map((head) => head.textContent);
  const cells = [...rows[index].cells].map((cell) => cell.textContent);
  cursor.setAttribute('transform', `translate(${Number(left) + (index * width) / (rows.length - 1)})`);
  cursor.classList.add('on');
  values.replaceChildren(...cells.slice(1).flatMap((cell, i) => {
    if (heads[i + 1] === 'died' && /^[0–]$/.test(cell)) return [];
    const [span, bold] = [document.createElement('span'), document.createElement('b')];
    bold.textContent = cell;
    span.append(`${heads[i + 1]} `, bold);
    return [span, ' '];
  }), Object.assign(document.createElement('span'), { className: 'quiet', textContent: cells[0] }));
  svg.setAttribute('aria-valuenow', index);
  svg.setAttribute('aria-valuetext', `${cells[0]}: ${cells.slice(1).map((cell, i) => `${heads[i + 1]} ${cell}`).join(', ')}`);
}

const showAll = (index) => chartsOf().forEach((figure) => show(figure, index));

function prepare(figure) {
  const svg = figure.querySelector('svg[data-left]');
  // After a refresh, charts that were not replaced have their handlers already.
  if (svg.hasAttribute('tabindex')) return;
  const last = figure.querySelectorAll('tbody tr').length - 1;
  for (const [name, value] of Object.entries({ role: 'slider', tabindex: 0, 'aria-valuemin': 0, 'aria-valuemax': last, 'aria-valuenow': last, 'aria-valuetext': 'now', 'aria-orientation': 'horizontal' }))
    svg.setAttribute(name, value);
  const under = (event) => {
    const box = svg.getBoundingClientRect();
    const scale = svg.viewBox.baseVal.width / box.width;
    const share = ((event.clientX - box.left) * scale - svg.dataset.left) / (svg.viewBox.baseVal.width - svg.dataset.left - svg.dataset.right);
    return Math.round(Math.min(1, Math.max(0, share)) * last);
  };
  svg.addEventListener('pointermove', (event) => showAll(under(event)));
  svg.addEventListener('pointerdown', (event) => showAll(under(event)));
  svg.addEventListener('pointerleave', () => showAll(null));
  svg.addEventListener('blur', () => showAll(null));
  svg.addEventListener('keydown', (event) => {
    const now = Number(svg.getAttribute('aria-valuenow'));
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, ArrowDown: now - 1, ArrowUp: now + 1, PageUp: now + 10, PageDown: now - 10, Home: 0, End: last }[event.key];
    if (event.key === 'Escape') showAll(null);
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    showAll(Math.min(last, Math.max(0, to)));
  });
}

const prepareAll = () => chartsOf().forEach(prepare);
prepareAll();
document.addEventListener('idemq:anew', prepareAll);
