// Puts the live part of a page anew every few seconds, while the page is seen and nobody points
// into it.  A button stops that.
'use strict';

for (const part of document.querySelectorAll('[data-live]')) {
  const seconds = Number(part.dataset.every);
  const stop = document.querySelector('[data-stop]');
  let stopped = false;
  if (stop) {
    stop.hidden = false;
    stop.addEventListener('click', () => {
      stopped = !stopped;
      stop.textContent = stopped ? 'Refresh again' : 'Stop refreshing';
    });
  }
  // A focus inside would be lost, and with it the reader's place; so would be what is read of a chart.
  const mayChange = () => !stopped && document.visibilityState === 'visible' && !part.contains(document.activeElement)
    && !part.querySelector('.cursor.on') && !part.contains(document.getSelection().isCollapsed ? null : document.getSelection().anchorNode);
  const put = (text) => {
    const open = [...part.querySelectorAll('details[open]')].map(({ id }) => id);
    part.innerHTML = text;
    for (const id of open) document.getElementById(id)?.setAttribute('open', '');
    document.dispatchEvent(new Event('idemq:anew'));
  };
  const refresh = async () => {
    if (mayChange()) {
      try {
        const answer = await fetch(part.dataset.live, { credentials: 'same-origin' });
        const text = await answer.text();
        if (mayChange()) put(text);
        part.classList.remove('stale');
      } catch {
        part.classList.add('stale');
      }
    }
    setTimeout(refresh, seconds * 1000);
  };
  setTimeout(refresh, seconds * 1000);
}
