// The search box in a browser: terms, suggestions, a wrong term, progress and its continuation, saved searches, and what a role may not find:
//   search.mjs BASE (with actions) BASE (of a role that sees the queue hostile alone)
// The jobs are those of ui_slow.pl and jobs.sql, of which other tests have deleted some.  PG* reach the server.
import pg from 'pg';
import { browser, follow, ok, open, reads, said } from './browser.mjs';

const [base, tenant] = process.argv.slice(2);
const database = new pg.Client();
await database.connect();
const page = await open({ viewport: { width: 1200, height: 800 }, permissions: ['clipboard-read', 'clipboard-write'] });
const box = page.locator('header input[name="q"]');
const rows = () => page.locator('.scroll[aria-label="Jobs"] tbody tr');
const search = (text) => `${base}/search?${new URLSearchParams({ q: text })}`;
/** Searches on until all is searched, or a job is found: a busy machine searches little in a second. */
const searchOn = async (least = 1) => {
  for (let i = 0; i < 60 && await rows().count() < least && await page.locator('[data-more]').count() > 0; i += 1) {
    await page.locator('[data-more]').click();
    await page.waitForFunction((n) => document.querySelectorAll('main table.rows tbody tr').length > n || document.querySelector('[data-more]')?.textContent !== 'Stop searching', await rows().count());
  }
};

// By keyboard: Ctrl-K, a term and its value from the suggestions, Enter.
await page.goto(`${base}/errors`);
await page.keyboard.press('Control+k');
ok(await box.evaluate((element) => element === document.activeElement), 'Ctrl-K leads to the box');
await page.keyboard.type('st');
await page.getByRole('option', { name: 'state:' }).waitFor();
await page.keyboard.press('ArrowDown');
ok(await box.getAttribute('aria-activedescendant') === await page.getByRole('option', { name: 'state:' }).getAttribute('id'), 'a suggestion is marked, and said to screen readers');
await page.keyboard.press('Enter');
await page.getByRole('option', { name: 'state:dead' }).waitFor();
ok(await box.inputValue() === 'state:', 'Enter takes it, and its values are suggested', await box.inputValue());
await page.keyboard.type('dea');
await page.waitForFunction(() => document.querySelectorAll('#suggestions li').length === 1);
await page.keyboard.press('ArrowDown');
await page.keyboard.press('Enter');
await page.keyboard.type('queue:und');
await page.getByRole('option', { name: 'queue:undelivered' }).click();
ok(await box.inputValue() === 'state:dead queue:undelivered ', 'the pointer takes one, too', await box.inputValue());
await box.fill('queue:shop payload.cust');
await page.getByRole('option', { name: 'payload.customer.id:' }).waitFor();
await page.keyboard.press('Escape');
ok(await page.locator('#suggestions').isHidden() && await box.inputValue() === 'queue:shop payload.cust', 'Escape closes the suggestions');
await box.fill('payload.customer.id:77');
await page.keyboard.press('Enter');
await page.waitForURL(/search/);
ok(new URL(page.url()).searchParams.get('q') === 'payload.customer.id:77' && await box.inputValue() === 'payload.customer.id:77', 'the search is in the address and in the box', page.url());
await searchOn();
ok(await rows().count() === 1 && (await rows().first().innerText()).includes('order-1842') && (await rows().first().innerText()).includes('shop'), 'a job is found by a field of its payload, in all queues', await said(page));
ok(/1 job found/.test(await said(page)) && /searched [\d,]+ of [\d,]+ jobs/.test(await said(page)), 'and how much was searched is said', await said(page));

// Terms together, and words.
await page.goto(search('state:dead error:"no account" kind:charge'));
ok(await rows().count() === 1 && /1 job found; searched [\d,]+ of [\d,]+ jobs in .*The search is complete/.test(await said(page)), 'terms together', await said(page));
await page.goto(search('queue:post key:letter-2026-11-24-order-1800'));
const [{ letters }] = (await database.query("SELECT count(*)::int AS letters FROM idemq.job_list WHERE queue = 'post' AND starts_with(key, 'letter-2026-11-24-order-1800')")).rows;
ok(letters > 0 && await rows().count() === letters, 'the beginning of a key', await said(page));
await follow(page.getByRole('link', { name: 'Open in the list of queue post' }));
ok(page.url().includes('/queue/post?') && await rows().count() === letters, 'the same jobs in the list of their queue', page.url());
await page.goto(search('letter'));
ok(/Queues:[^]*letters/.test(await said(page)), 'a word also finds queues', await said(page));
const [newest] = (await database.query('SELECT kind, queue FROM idemq.job_list WHERE kind IS NOT NULL ORDER BY id DESC LIMIT 1')).rows;
await database.end();
await page.goto(search(newest.kind));
ok((await said(page)).includes(`${newest.kind} in ${newest.queue}`) && /Kinds:/.test(await said(page)), 'and kinds', await said(page));
await page.goto(search('undelivered'));
ok(page.url().endsWith('/queue/undelivered'), 'the whole name of a queue leads there');
await page.goto(search('order-1842'));
ok(/\/job\/\d+$/.test(page.url()), 'and a whole key to its job');
await page.goto(search('state:dead'));
const first = await rows().count();
await page.locator('[data-more]').click();
await page.waitForFunction((n) => document.querySelectorAll('main table.rows tbody tr').length > n, first);
ok(first === 50 && await rows().count() > 50, 'more results are added to the page', `${first}, ${await rows().count()}`);
ok((await page.locator('[data-found]').innerText()).startsWith(`${await rows().count()} jobs found`), 'and are counted', await page.locator('[data-found]').innerText());

// What is not found is searched on, with progress, and can be stopped.
await page.goto(search('payload.order:5 queue:orders'));
await searchOn();
ok(await rows().count() === 1, 'one of 100,000 is found', await said(page));
await page.goto(search('payload.nothing:1'));
if (await page.locator('[data-more]').count() > 0) ok(/0 jobs found so far; searched [\d,]+ of [\d,]+ jobs \([\d.]+ %\) in .*The rest takes about/.test(await said(page)), 'how long the rest takes is said', await said(page));
else ok(/The search is complete/.test(await said(page)), 'all was searched at once', await said(page));
await searchOn();
ok(/0 jobs found; searched ([\d,]+) of \1 jobs/.test(await said(page)) && /No job that is visible to you matches/.test(await said(page)), 'at the end all was searched', await said(page));
const plain = await open({ javaScriptEnabled: false });
await plain.goto(search('payload.nothing:1'));
for (let i = 0; i < 60 && await plain.locator('[data-more]').count() > 0; i += 1) await follow(plain.locator('[data-more]'));
ok(/The search is complete/.test(await said(plain)), 'without JavaScript a link searches on', await said(plain));

// What is wrong is said, and the text stays.
const status = (await page.goto(search('stat:dead queue:mail'))).status();
ok(status === 400 && /There is no term stat:\. Did you mean state:dead\?/.test(await said(page)) && await box.inputValue() === 'stat:dead queue:mail', 'a wrong term has a message, and the text stays', await said(page));
ok((await page.goto(search('queue:mial'))).status() === 400 && /No queue that is visible to you is named "mial"/.test(await said(page)), 'so has a queue that is not there', await said(page));
ok((await page.goto(search('since:2026-02-31'))).status() === 400 && /date\/time field value out of range/.test(await said(page)), 'and a day that is not in the calendar', await said(page));
ok((await page.goto(`${base}/search?q=state:dead&after=x`)).status() === 400, 'and an address that was changed');

// Saved searches are links.
await page.goto(search('state:dead error:account'));
await page.getByRole('button', { name: 'Save this search' }).click();
await page.getByRole('button', { name: 'Copy link' }).click();
await page.getByRole('button', { name: 'Copied' }).waitFor();
ok(await page.evaluate(() => navigator.clipboard.readText()) === page.url(), 'the link of a search is copied');
await page.goto(`${base}/search`);
ok(await page.locator('[data-saved] a').count() === 1, 'a saved search is listed');
await follow(page.locator('[data-saved] a'));
ok(new URL(page.url()).searchParams.get('q') === 'state:dead error:account' && await rows().count() === 1, 'and is a link', page.url());
await page.goto(`${base}/errors`);
await box.focus();
await page.getByRole('option', { name: 'state:dead error:account' }).waitFor();
await page.goto(`${base}/search`);
await page.getByRole('button', { name: 'Remove saved search' }).click();
ok(await page.locator('[data-saved] a').count() === 0, 'and can be removed');

// Nothing of other queues is found or suggested, and markup is text.
const other = await open();
await other.goto(`${tenant}/search?q=customer&all=1`);
ok(/searched 1 of 1 jobs/.test(await said(other)), 'a role searches what it may see', await said(other));
await other.goto(`${tenant}/search?q=queue:mail`);
ok(/No queue that is visible to you is named "mail"/.test(await said(other)), 'and not even learns of other queues', await said(other));
ok((await (await fetch(`${tenant}/suggest?q=queue:ma`)).json()).items.length === 0 && (await (await fetch(`${tenant}/suggest?q=payload.`)).json()).items.every(({ text }) => text === 'payload.text:'), 'nor by suggestions');
await page.goto(`${base}/search?q=queue:hostile`);
ok((await said(page)).includes('<img src=x onerror=alert(1)>'), 'markup in a key is text', await said(page));
await page.goto(search('<img src=x onerror=alert(9)>'));
ok(await box.inputValue() === '<img src=x onerror=alert(9)>', 'and so it is in the search');
await box.fill('key:<im');
await page.getByRole('option', { name: 'onerror=alert(1)' }).waitFor();
ok(true, 'and in a suggestion');

// For programs.
const answer = await (await fetch(`${base}/api/1/jobs?q=${encodeURIComponent('state:dead error:"no account"')}`)).json();
ok(answer.jobs.length === 1 && answer.jobs[0].key === 'order-1842' && answer.jobs[0].queue === 'shop' && answer.next === null && !('payload' in answer.jobs[0]), 'JSON of a search', JSON.stringify(answer));
const wrong = await fetch(`${base}/api/1/jobs?q=stat:dead`);
ok(wrong.status === 400 && /There is no term stat:/.test((await wrong.json()).error), 'and of a wrong term');

for (const [path, name] of [['/search', 'help of the search'], ['/search?q=state:dead', 'search'], ['/search?q=stat:dead', 'wrong search']]) await reads(base + path, name);
ok(page.troubles.filter((trouble) => !/40[04]/.test(trouble)).length === 0, 'no script failed', page.troubles.join('; '));
await browser.close();
