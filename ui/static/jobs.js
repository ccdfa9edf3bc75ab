// Lists of jobs: how many are chosen, all of a page at once, a row of them with the shift key.
// Documents: their text into the clipboard.
'use strict';

const list = document.querySelector('form.list');
if (list) {
  const boxes = [...list.querySelectorAll('input[name="ids"]')];
  const every = list.querySelector('.every');
  const all = list.querySelector('input[name="all"]');
  const said = list.querySelector('[data-chosen]');
  let last = null;
  const say = () => {
    const chosen = boxes.filter((box) => box.checked).length;
    if (said) said.textContent = all?.checked ? 'All jobs of the list:' : chosen > 0 ? `${chosen} selected:` : 'Select jobs above, or all:';
    if (every) {
      every.checked = chosen === boxes.length;
      every.indeterminate = chosen > 0 && chosen < boxes.length;
    }
  };
  if (every) {
    every.hidden = false;
    every.addEventListener('change', () => {
      for (const box of boxes) box.checked = every.checked;
      say();
    });
  }
  for (const [i, box] of boxes.entries()) {
    box.addEventListener('click', (event) => {
      if (event.shiftKey && last !== null) for (const between of boxes.slice(Math.min(i, last), Math.max(i, last))) between.checked = box.checked;
      last = i;
      say();
    });
  }
  all?.addEventListener('change', say);
  window.addEventListener('pageshow', say);
}

for (const button of document.querySelectorAll('[data-copy]')) {
  if (!navigator.clipboard) break;
  button.hidden = false;
  button.addEventListener('click', async () => {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Copying failed: select the text instead';
    }
    setTimeout(() => { button.textContent = before; }, 2000);
  });
}
