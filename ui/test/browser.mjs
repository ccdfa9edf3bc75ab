// What the parts of the test share: a headless Chromium, its pages, what every page has to be.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

export function ok(value, what, detail = '') {
  process.stdout.write(value ? `ok - ${what}\n` : `not ok - ${what}: ${String(detail).slice(0, 300).replace(/[\s#]+/g, ' ')}\n`);
  if (!value) process.stderr.write(`${what}: ${detail}\n`);
}

const PATIENCE = Number(process.env.UI_PATIENCE ?? 120_000);
export const browser = await chromium.launch({
  timeout: PATIENCE,
  executablePath: '/usr/bin/chromium',
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
    '--disable-component-update', '--disable-sync', '--disable-dev-shm-usage'],
});

export async function open(settings = {}) {
  const context = await browser.newContext({ viewport: { width: 1100, height: 640 }, ...settings });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.troubles = [];
  page.on('dialog', (dialog) => { page.troubles.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('pageerror', (error) => page.troubles.push(`script: ${error.message}`));
  page.on('console', (message) => { if (message.type() === 'error') page.troubles.push(`console: ${message.text()}`); });
  return page;
}

/** What a page says: the dialog that is open on it, or its content and the message about what was done. */
export const said = async (page) => {
  const dialog = page.locator('dialog[open]');
  if (await dialog.count() > 0) return dialog.innerText();
  const toast = page.locator('.toast');
  return `${await page.locator('main').innerText()}\n${await toast.count() > 0 ? await toast.innerText() : ''}`;
};
/** A click that leads to another page, which is there as a whole then, or opens a dialog. */
export const follow = async (locator) => {
  const page = locator.page();
  const leads = [page.waitForNavigation()];
  if (await page.locator('dialog[open]').count() === 0) leads.push(page.locator('dialog[open]').waitFor());
  await Promise.all([Promise.race(leads.map((lead) => lead.catch(() => new Promise(() => {})))), locator.click()]);
};
/** Closes the dialog of an action without doing anything. */
export const close = (page) => page.locator('dialog[open]').getByRole('link', { name: 'Keep as is' }).click();

// What does not fit: the page, or something in it that no region scrolls; a key in two lines; a
// target of less than 24 pixels that is no link in a sentence (axe knows which are).
const faults = () => {
  const width = window.innerWidth;
  const scrolled = (element) => element.closest('.scroll, pre, svg, .unseen, .skip') !== null;
  const found = [];
  if (document.scrollingElement.scrollWidth > width) found.push(`the page is ${document.scrollingElement.scrollWidth} wide`);
  for (const element of document.querySelectorAll('body *')) {
    const box = element.getBoundingClientRect();
    if (box.width > 0 && (box.right > width + 1 || box.left < -1) && !scrolled(element)) found.push(`overflows: ${element.outerHTML.slice(0, 120)}`);
  }
  for (const key of document.querySelectorAll('.key')) if (key.getClientRects().length > 1 || key.offsetHeight > 40) found.push(`broken: ${key.outerHTML.slice(0, 120)}`);
  for (const scroll of document.querySelectorAll('.scroll')) if (scroll.querySelector('table.rows') && scroll.scrollWidth > scroll.clientWidth + 1) found.push(`a table scrolls: ${scroll.ariaLabel}`);
  return found;
};

/** Opens an address at the three widths, light and dark: it fits, and axe finds nothing. */
export async function reads(address, name, settings = {}) {
  const reader = await open({ bypassCSP: true, ...settings });
  await reader.goto(address);
  await reader.evaluate(axe);
  for (const [width, colorScheme] of [[768, 'light'], [360, 'dark'], [1440, 'light']]) {
    await reader.setViewportSize({ width, height: 900 });
    await reader.emulateMedia({ colorScheme });
    const wrong = await reader.evaluate(faults);
    // Only these rules depend on the width or the colours.
    const options = colorScheme === 'dark' ? { runOnly: ['color-contrast', 'scrollable-region-focusable', 'target-size'] } : { rules: { 'target-size': { enabled: true } } };
    const { violations } = width === 768 ? { violations: [] } : await reader.evaluate((given) => window.axe.run(given), options);
    ok(violations.length === 0 && wrong.length === 0, `${name}, ${width} wide, ${colorScheme}: it fits, and axe finds nothing`,
      JSON.stringify({ wrong, violations: violations.map((found) => [found.id, found.nodes.slice(0, 3).map((node) => node.html.slice(0, 200))]) }));
  }
  await reader.context().close();
}

/** A picture of what is seen, of so many pixels; it is kept small by few colours: see test/clients/ui.pl. */
export const picture = (page, folder, name) => page.screenshot({ path: `${folder}/${name}.png` });
