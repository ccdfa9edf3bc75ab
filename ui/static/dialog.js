// Opens confirmations in a dialog over the page, and shows the result of an action in a message that disappears.
// Without this script, a confirmation is a separate page, and the message stays on the page.
'use strict';

const dialog = document.createElement('dialog');
dialog.setAttribute('aria-labelledby', 'dialog-title');
document.body.append(dialog);

document.addEventListener('submit', async (event) => {
  const form = event.target;
  // A field is named action, so form.action is that field.
  const address = new URL(form.getAttribute('action'), window.location.href);
  if (form.method !== 'get' || !(address.pathname.endsWith('/confirm') || address.pathname.endsWith('/sure'))) return;
  event.preventDefault();
  address.search = new URLSearchParams(new FormData(form, event.submitter)).toString();
  await show(address);
});
/** Shows the content of another page in the dialog. */
async function show(address) {
  try {
    const response = await fetch(address, { credentials: 'same-origin' });
    const page = new DOMParser().parseFromString(await response.text(), 'text/html');
    dialog.replaceChildren(...page.querySelector('main').childNodes);
    dialog.querySelector('h1').id = 'dialog-title';
    dialog.showModal();
    document.dispatchEvent(new Event('idemq:dialog'));
  } catch {
    window.location.assign(address);
  }
}
document.addEventListener('idemq:show', ({ detail }) => show(detail));
dialog.addEventListener('click', (event) => {
  const link = event.target.closest('a.button');
  if (!link && event.target !== dialog) return;
  event.preventDefault();
  dialog.close();
});
// After an action, the page scrolls back to the previous position.
dialog.addEventListener('submit', () => sessionStorage.setItem('idemq-place', JSON.stringify([window.location.pathname, window.scrollY])));
const [path, y] = JSON.parse(sessionStorage.getItem('idemq-place') ?? '[]');
sessionStorage.removeItem('idemq-place');
if (path === window.location.pathname) window.scrollTo(0, y);

const said = document.querySelector('main > .notice[role="status"]');
if (said) {
  const audit = Object.assign(document.createElement('a'), { href: `${document.documentElement.dataset.base ?? ''}/audit`, textContent: 'Audit' });
  const close = Object.assign(document.createElement('button'), { type: 'button', textContent: 'Close' });
  close.addEventListener('click', () => said.remove());
  said.classList.add('toast');
  said.append(' ', audit, ' ', close);
  document.body.append(said);
  if (!said.classList.contains('bad')) setTimeout(() => said.remove(), 15_000);
  // Remove the message from the address, so that a reload or a copied address does not show it again.
  const address = new URL(window.location.href);
  for (const name of ['notice', 'sign', 'bad']) address.searchParams.delete(name);
  window.history.replaceState(null, '', address);
}
