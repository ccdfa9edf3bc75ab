// In lists of jobs: shows how many jobs are selected, and lets the user select a whole page, or a range with the Shift key.
// For documents: copies their text to the clipboard.  The list may be refreshed at any time, so the document handles the events.
'use strict';

const boxesOf = () => [...document.querySelectorAll('form.list input[name="ids"]')];
let last = null; // the value of the box that was clicked last

function say() {
  const list = document.querySelector('form.list');
  if (!list) return;
  const boxes = boxesOf();
  const chosen = boxes.filter((box) => box.checked).length;
  const said = list.querySelector('[data-chosen]');
  const every = list.querySelector('.every');
  if (said) said.textContent = list.querySelector('input[name="all"]')?.checked ? 'All jobs in the list:' : chosen > 0 ? `${chosen} selected:` : 'Select jobs above, or all:';
  if (every) {
    every.hidden = false;
    every.checked = chosen > 0 && chosen === boxes.length;
    every.indeterminate = chosen > 0 && chosen < boxes.length;
  }
}

document.addEventListener('click', (event) => {
  const box = event.target.closest('input[name="ids"]');
  if (!box) return;
  const boxes = boxesOf();
  const [from, to] = [boxes.findIndex(({ value }) => value === last), boxes.indexOf(box)];
  if (event.shiftKey && from >= 0) for (const between of boxes.slice(Math.min(from, to), Math.max(from, to))) between.checked = box.checked;
  last = box.value;
  say();
});
document.addEventListener('change', (event) => {
  if (event.target.matches('.every')) for (const box of boxesOf()) box.checked = event.target.checked;
  say();
});
window.addEventListener('pageshow', say);
document.addEventListener('idemq:anew', say);

const showCopying = () => { if (navigator.clipboard) for (const button of document.querySelectorAll('[data-copy]')) button.hidden = false; };
showCopying();
document.addEventListener('idemq:anew', showCopying);
document.addEventListener('click', async (event) => {
  const button = event.target.closest('[data-copy]');
  if (!button) return;
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Copying failed: select the text instead';
  }
  setTimeout(() => { button.textContent = before; }, 2000);
});
say();
