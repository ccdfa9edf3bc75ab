// Puts the live part of a page anew every two seconds, while the page is seen.
'use strict';

for (const part of document.querySelectorAll('[data-live]')) {
  // A focus inside would be lost, and with it the reader's place.
  const mayChange = () => document.visibilityState === 'visible' && !part.contains(document.activeElement);
  const refresh = async () => {
    if (mayChange()) {
      try {
        const answer = await fetch(part.dataset.live, { credentials: 'same-origin' });
        const text = await answer.text();
        if (mayChange()) part.innerHTML = text;
      } catch {
        part.classList.add('stale');
        return;
      } finally {
        setTimeout(refresh, 2000);
      }
      part.classList.remove('stale');
      return;
    }
    setTimeout(refresh, 2000);
  };
  setTimeout(refresh, 2000);
}
