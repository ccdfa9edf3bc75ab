// Lists as CSV, by keyboard, and on a phone; and the overview of a role that sees one queue:
//   lists.mjs BASE (with actions) BASE (of a role that sees the queue hostile alone)
// The jobs are those of ui_slow.pl and jobs.sql; PG* reach the server.
import pg from 'pg';
import { cell } from '../src/csv.mjs';
import { readFileSync } from 'node:fs';
import { browser, ok, open, said } from './browser.mjs';

const [base, tenant] = process.argv.slice(2);
const database = new pg.Client();
await database.connect();

/** The rows of a CSV text, as objects. */
function read(text) {
  const rows = [];
  for (const match of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r\n)/g)) {
    if (rows.length === 0 || rows.at(-1).ended) rows.push({ cells: [], ended: false });
    rows.at(-1).cells.push(match[1] === undefined ? match[2] : match[1].replaceAll('""', '"'));
    rows.at(-1).ended = match[3] !== ',';
  }
  const [heads, ...others] = rows.map(({ cells }) => cells);
  return others.map((cells) => Object.fromEntries(heads.map((head, i) => [head, cells[i]])));
}

// A formula in a key, a kind and an error; quotes, commas, line ends.
const formulas = ['=HYPERLINK("http://evil.example")', '+1', '-1+2', '@SUM(1)', '\t=1', ' =1'];
await database.query("SELECT idemq.create_queue('sheet', max_attempts => 1, expect_workers => false)");
for (const key of formulas) await database.query("SELECT idemq.enqueue('sheet', '{\"a\": \"b, \\\"c\\\"\"}', key => $1, kind => $1)", [key]);
await database.query("SELECT idemq.fail(id, token, E'=cmd|''/c calc''!A1\\nline 2') FROM idemq.claim('sheet', 10)");
const sheet = await fetch(`${base}/queue/sheet/jobs.csv?tab=dead`);
const jobs = read(await sheet.text());
ok(sheet.headers.get('content-type') === 'text/csv; charset=utf-8' && sheet.headers.get('content-disposition') === 'attachment; filename="sheet-dead.csv"', 'a list is a file');
ok(jobs.length === 6 && formulas.every((text) => jobs.some(({ key, kind }) => key === `'${text}` && kind === `'${text}`)), 'formulas are made text', JSON.stringify(jobs));
ok(jobs.every((job) => job.last_error === "'=cmd|'/c calc'!A1\nline 2" && job.payload === '{"a": "b, \\"c\\""}' && job.queue === 'sheet' && job.status === 'dead'), 'and other values are whole', JSON.stringify(jobs[0]));
ok(cell(-5) === '-5' && cell(null) === '' && cell('a"b') === '"a""b"' && cell('plain') === 'plain', 'a number is no formula');

// All of a list, and of a search, in slices.
const sent = read(await (await fetch(`${base}/queue/bulk/jobs.csv?tab=all`)).text()).map(({ id }) => id);
const own = (await database.query("SELECT id::text FROM idemq.job_list WHERE queue = 'bulk'")).rows.map(({ id }) => id);
ok(own.length >= 500 && sent.length === own.length && new Set(sent).size === sent.length && own.every((id) => sent.includes(id)), 'all jobs of a list, once each', `${sent.length} of ${own.length}`);
const [{ kept }] = (await database.query("SELECT count(*)::int AS kept FROM idemq.job_list WHERE queue = 'post' AND starts_with(key, 'letter-2026-11-24-order-1800')")).rows;
ok(kept > 0 && read(await (await fetch(`${base}/queue/post/jobs.csv?${new URLSearchParams({ tab: 'all', key: 'letter-2026-11-24-order-1800' })}`)).text()).length === kept, 'with its filter');
const found = read(await (await fetch(`${base}/search.csv?${new URLSearchParams({ q: 'payload.customer.id:77' })}`)).text());
ok(found.length === 1 && found[0].key === 'order-1842' && found[0].payload.includes('Jörg Müller'), 'a search is searched to its end', JSON.stringify(found));

// The same privileges.
ok((await fetch(`${tenant}/queue/mail/jobs.csv?tab=all`)).status === 404, 'a role does not see the list of another queue');
ok(read(await (await fetch(`${tenant}/search.csv?q=`)).text()).every(({ queue }) => queue === 'hostile'), 'nor its jobs in a search');
ok((await fetch(`${base}/search.csv?q=stat:dead`)).status === 400 && (await fetch(`${base}/queue/post/jobs.csv?payload=x`)).status === 400, 'what is wrong has a status');
await database.query("SELECT idemq.drop_queue('sheet', force => true)");
await database.end();

// By keyboard: few stops to the first job, rows, a selection, a job.
const page = await open({ viewport: { width: 1200, height: 800 } });
const active = (read) => page.evaluate(read);
await page.goto(`${base}/queue/bulk?tab=all`);
let stops = 0;
for (; stops < 10; stops += 1) {
  await page.keyboard.press('Tab');
  const text = await active(() => document.activeElement.textContent);
  if (text === 'Skip to the list') await page.keyboard.press('Enter');
  if (await active(() => document.activeElement.matches('[aria-label="Jobs"] tbody tr:first-child a'))) break;
}
ok(stops < 10, 'at most 10 Tab stops to the first job', `${stops}`);
const numberOf = () => active(() => [...document.querySelectorAll('main table.rows tbody tr')].findIndex((row) => row.contains(document.activeElement)));
await page.goto(`${base}/queue/bulk?tab=all`);
await page.keyboard.press('j');
await page.keyboard.press('j');
await page.keyboard.press('j');
await page.keyboard.press('k');
ok(await numberOf() === 1, 'j and k go from row to row', `${await numberOf()}`);
await page.keyboard.press('x');
await page.keyboard.press('j');
await page.keyboard.press('x');
ok(await page.locator('input[name="ids"]:checked').count() === 2 && /2 selected/.test(await page.locator('[data-chosen]').innerText()), 'x selects the job of a row', await page.locator('[data-chosen]').innerText());
const job = await active(() => document.activeElement.closest('tr').querySelector('a').getAttribute('href'));
await page.keyboard.press('j');
await page.keyboard.press('k');
await page.keyboard.press('Enter');
await page.waitForURL(/job/);
ok(page.url() === base + job, 'Enter opens it', page.url());
await page.goBack();
await page.keyboard.press('n');
await page.waitForURL(/after=/);
ok(true, 'n goes to the next page');

// The help is a dialog, and complete.
await page.keyboard.press('?');
await page.locator('dialog[open]').waitFor();
const help = await page.locator('dialog kbd').allInnerTexts();
const source = ['keys', 'search', 'refresh', 'dialog', 'charts'].map((name) => readFileSync(new URL(`../static/${name}.js`, import.meta.url), 'utf8')).join('');
const letters = [...new Set([...source.matchAll(/key(?:\.toLowerCase\(\))? === '(.)'/g)].map(([, letter]) => letter))].filter((letter) => letter !== 'k');
const places = [...source.matchAll(/\b([a-z]): '\//g)].map(([, letter]) => letter);
const told = await page.locator('dialog').innerText();
ok(letters.length >= 7 && letters.every((letter) => help.includes(letter)) && places.length >= 7 && places.every((letter) => new RegExp(`\\bg ?${letter}\\b`).test(told)) && told.includes('k goes to the previous row') && told.includes('Ctrl-K'),
  'the help is a dialog with every key', `${letters} ${places} ${help}`);
await page.keyboard.press('Escape');
ok(await page.locator('dialog[open]').count() === 0, 'Escape closes it');

// On a phone the first job is on the first screen.
const phone = await open({ viewport: { width: 390, height: 844 } });
for (const [queue, tab] of [['mail', 'dead'], ['shop', 'retrying'], ['bulk', 'all']]) {
  await phone.goto(`${base}/queue/${queue}?tab=${tab}`);
  const bottom = await phone.locator('[aria-label="Jobs"] tbody tr:first-child a').first().evaluate((link) => link.getBoundingClientRect().bottom);
  ok(bottom <= 844, `on a phone the first job of queue ${queue} is on the first screen`, `${bottom}`);
}

// A role that sees one queue is told so.
await page.goto(tenant);
ok(/The role tenant sees one queue, hostile\./.test(await said(page)) && await page.locator('[data-part="first"] a').getAttribute('href') === '/queue/hostile', 'a role that sees one queue is told so', await said(page));
await page.goto(base);
ok(!/sees one queue|Enqueue the first job/.test(await said(page)), 'and one that sees all is not');
ok(page.troubles.length === 0, 'no script failed', page.troubles.join('; '));
await browser.close();
