// Puts the live part of a page anew every two seconds, while the page is seen.
'use strict';

for (const part of document.querySelectorAll('[data-live]')) {
  const refresh = async () => {
    // A focus inside would be lost, and with it the reader's place.
    if (document.visibilityState === 'visible' && !part.contains(document.activeElement)) {
      try {
        const answer = await fetch(part.dataset.live, { credentials: 'same-origin' });
        part.innerHTML = await answer.text();
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
