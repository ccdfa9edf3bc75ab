// The page in a headless browser: the night's story, what must not be possible, what must be
// readable.  test/clients/ui.pl makes the server and its jobs, starts the pages, and runs this:
//   story.mjs BASE (with actions) BASE (read-only) BASE (of a role that sees one queue) FOLDER (for pictures)
import { readFileSync } from 'node:fs';
import { browser, follow, ok, open, picture as take, reads, said } from './browser.mjs';

const [base, readOnly, tenant, pictures] = process.argv.slice(2);
const picture = (page, name) => take(page, pictures, name);
let steps = 0;

// Three in the morning: an alert says that queue mail has dead jobs.
const page = await open();
await page.goto(base);
ok((await said(page)).includes('580 dead'), 'the overview shows a queue with dead jobs', await said(page));
await page.waitForFunction(() => document.querySelectorAll('svg.spark path').length > 0);
ok(true, 'it refreshes itself, and draws');
await picture(page, 'ui-night');

// An answer that comes when somebody has put the focus there meanwhile does not take the focus away.
const dead = page.getByRole('link', { name: '580 dead' }).last();
let begun = () => {};
const asks = new Promise((resolve) => { begun = resolve; });
let focused = () => {};
const focus = new Promise((resolve) => { focused = resolve; });
await page.route(`${base}/`, async (route) => {
  if (!route.request().headers()['x-idemq-have']) return route.continue();
  begun();
  await focus;
  const answer = await (await route.fetch()).json();
  return route.fulfill({ json: { ...answer, parts: { ...answer.parts, 'queue%20mail': '<tr data-part="queue%20mail"><td>anew</td></tr>', facts: '<div data-part="facts">anew</div>' } } });
}, { times: 1 });
await asks;
await dead.focus();
focused();
await page.waitForFunction(() => document.querySelector('[data-part="facts"]').textContent === 'anew');
ok(await dead.evaluate((link) => link === document.activeElement), 'a focus is not lost', await said(page));

await follow(dead);
steps += 1;
const row = page.getByRole('row').filter({ hasText: 'of relation' });
ok(/^column[^\n]*\s+500\s+500\s/.test(await row.innerText()), 'the errors are grouped: 500 jobs of one cause', await said(page));
ok((await page.getByRole('row').count()) === 3, 'and one more', await said(page));
await picture(page, 'ui-errors');

await follow(row.getByRole('link').last());
steps += 1;
ok((await said(page)).includes('column "customer_id" of relation'), 'an example shows the whole error', await said(page));
await picture(page, 'ui-job');
await page.goBack();

await follow(row.getByRole('button'));
steps += 1;
ok(/500 dead jobs of queue mail .* become ready immediately/.test(await said(page)), 'the question says what will happen, to how many', await said(page));
await picture(page, 'ui-confirm');
await follow(page.locator('dialog').getByRole('button', { name: 'Retry 500 dead jobs' }));
steps += 1;
ok((await said(page)).includes('500 jobs of queue mail are ready again') && !page.url().includes('notice'), 'what was done is said, and is not in the address', await said(page));
await follow(page.locator('.toast').getByRole('link', { name: 'Audit' }));
steps += 1;
ok(/redrive\s+mail\s+500/.test(await said(page)), 'and stands in the audit', await said(page));
await picture(page, 'ui-audit');
ok(steps <= 5, `in ${steps} clicks`);

// By keyboard alone: pause a queue.
await page.goto(`${base}/queue/orders`);
for (let i = 0; i < 30; i += 1) {
  await page.keyboard.press('Tab');
  if (await page.evaluate(() => document.activeElement?.textContent === 'Pause')) break;
}
await page.keyboard.press('Enter');
await page.locator('dialog[open]').waitFor();
for (let i = 0; i < 30; i += 1) {
  await page.keyboard.press('Tab');
  if (await page.evaluate(() => document.activeElement?.classList.contains('do'))) break;
}
await page.keyboard.press('Enter');
await page.locator('.toast').waitFor();
ok((await said(page)).includes('Queue orders was paused'), 'a queue is paused by keyboard', await said(page));
await page.goto(base);
ok(/orders\s+paused/.test(await said(page)), 'and the overview says so at once', await said(page));

// A payload, a key, an error that are markup are text.
await page.goto(`${base}/queue/hostile?tab=all`);
const hostile = await said(page);
ok(hostile.includes('<img src=x onerror=alert(1)>'), 'a key with markup is text', hostile);
await follow(page.locator('.scroll[aria-label="Jobs"] tbody a').first());
ok((await said(page)).includes('<script>alert(1)</script>') && page.troubles.every((trouble) => !trouble.startsWith('dialog')),
  'a payload with a script is text, and nothing ran', page.troubles.join('; '));

// What a job waits for.
await page.goto(`${base}/queue/flows?tab=all`);
await follow(page.locator('.scroll[aria-label="Jobs"] tbody a').first());
const child = await said(page);
ok(child.includes('blocked: waits for its parent') && child.includes('letter') && await page.locator('.graph a').count() === 2, 'a child, its kind, and its parent in a picture', child);
await follow(page.locator('.graph a:not([aria-current])'));
const parent = await said(page);
ok(parent.includes('waiting for event "paid 7"') && /Event paid 7:\s+waiting, times out in 2 d/.test(parent), 'an awaited event', parent);

// A large payload is cut, and can be had whole.
await page.goto(`${base}/queue/large?tab=all`);
await follow(page.locator('.scroll[aria-label="Jobs"] tbody a').first());
ok((await page.locator('pre').first().innerText()).length <= 16384 && (await said(page)).includes('The first 16 kB of 1.0 MB'),
  'a large payload is cut', (await said(page)).slice(0, 300));
const download = page.waitForEvent('download');
await page.getByRole('link', { name: 'Download payload' }).click();
ok(readFileSync(await (await download).path()).length === 1000000, 'and downloaded whole');

// All of a queue, a page at a time.
const seen = new Set();
await page.goto(`${base}/queue/mail?tab=dead`);
for (;;) {
  for (const id of await page.locator('.scroll[aria-label="Jobs"] td:first-child a').allInnerTexts()) seen.add(id);
  const next = page.locator('a.more');
  if (await next.count() === 0) break;
  await follow(next);
}
ok(seen.size === 80, 'the pages of a list hold each job once', `${seen.size}`);

// What others may not do.
const token = /name="csrf" value="([0-9a-f]{64})"/;
const form = (body, headers = {}) => fetch(`${base}/do`, { method: 'POST', redirect: 'manual', body: new URLSearchParams(body), headers });
const question = await fetch(`${base}/confirm?action=resume&queue=orders`);
const cookie = question.headers.get('set-cookie').split(';')[0];
const csrf = token.exec(await question.text())[1];
const resume = { action: 'resume', queue: 'orders' };
ok((await form(resume)).status === 403, 'a form without a token is refused');
ok((await form({ ...resume, csrf })).status === 403, 'so is a token without its cookie');
ok((await form({ ...resume, csrf }, { cookie, origin: 'http://evil.example' })).status === 403, 'so is a form of another page');
ok((await form({ ...resume, csrf }, { cookie, origin: base })).status === 303, 'a form of its own is not');
ok((await fetch(`${readOnly}/confirm?action=resume&queue=orders`)).status === 403, 'a read-only page has no actions');
// The question is about the jobs of one fingerprint: what idemq.redrive would read as a pattern is none.
ok((await fetch(`${base}/confirm?action=redrive&queue=mail&error=%25`)).status === 400
  && (await form({ action: 'redrive', queue: 'mail', error: '%', csrf }, { cookie })).status === 400, 'a redrive by pattern is refused');
ok(!(await (await fetch(`${base}/?notice=Call+us`)).text()).includes('Call us'), 'a link cannot make the page say something');
ok((await form({ ...resume, csrf }, { cookie, origin: 'http://evil.example://localhost' })).status === 403, 'nor is a strange origin');

// What is asked for is nonsense, or a time beyond those of JavaScript.
for (const nonsense of ['/queue/orders?tab=constructor', '/queue/orders?tab=__proto__'])
  ok((await fetch(base + nonsense)).status === 200, `${nonsense} is a page`);
for (const nonsense of ['/queue/orders?tab=waiting&after=x', '/queue/%00', '/audit?queue=%00', '/confirm?action=retry&id=9999999999999999999'])
  ok((await fetch(base + nonsense)).status === 400, `${nonsense} is refused, and no failure`);
await page.goto(`${base}/queue/sms?tab=all`);
await follow(page.locator('.scroll[aria-label="Jobs"] tbody a').first());
ok(/20000-01-01 00:00:00 UTC,?\s+\(?far off/.test(await said(page)), 'a job of the year 20000 has a page', await said(page));
ok((await fetch(`${tenant}/check?run=1`)).status === 403, 'what a role may not do is forbidden, and no failure');
await page.goto(readOnly);
ok((await page.locator('main').getByRole('button', { name: 'Pause' }).count()) === 0 && (await page.locator('footer').innerText()).includes('read-only'),
  'and offers none');
const { headers } = await fetch(base);
ok(headers.get('content-security-policy').startsWith("default-src 'none'") && headers.get('x-frame-options') === 'DENY',
  'a strict policy of content');
const { request } = await import('node:http');
const foreign = await new Promise((resolve) => {
  request(base, { headers: { host: 'evil.example' } }, (answer) => { answer.resume(); resolve(answer.statusCode); }).end();
});
ok(foreign === 421, 'a foreign name of this machine is refused', foreign);

// Row-level security decides what is seen.
const other = await open();
await other.goto(tenant);
ok((await said(other)).includes('hostile') && !(await said(other)).includes('orders'), 'a role sees its own queues', await said(other));
ok((await other.goto(`${tenant}/queue/orders`)).status() === 404, 'and no other by its address');

// Readable for all, light and dark, on a phone, a tablet, a desk.
for (const [path, name] of [['/', 'overview'], ['/errors', 'errors'], ['/schedules', 'schedules'], ['/audit', 'audit'],
  ['/check?run=1', 'check'], ['/queue/mail?tab=dead', 'queue'], ['/queue/hostile?tab=all', 'all jobs'], [`/job/${[...seen][0]}`, 'job'],
  ['/confirm?action=pause&queue=mail', 'question']]) await reads(base + path, name);
ok(page.troubles.filter((trouble) => !/404|403/.test(trouble)).length === 0, 'no script failed', page.troubles.join('; '));
await browser.close();
